//! What `windowsill profile list|show|check` prints, for people and as JSON.
//!
//! It returns text and values; the command line writes them.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::json;

use super::model::{ModelHints, SizeClass};
use super::profile::{self, Sizing};
use super::{Config, Problem, Resolved};

/// The profiles as a table: name, where from, models.
pub fn profile_list(config: &Config) -> String {
    let row = |profile: &super::Profile| [profile.name.clone(), profile.origin(), profile.names.join(", ")];
    let rows: Vec<[String; 3]> = config.profiles.iter().map(row).collect();
    table(&["NAME", "FROM", "MODELS"].map(str::to_owned), &rows)
}

/// The profiles as a JSON list.
pub fn profile_list_json(config: &Config) -> serde_json::Value {
    let one = |profile: &super::Profile| {
        json!({
            "name": profile.name,
            "from": profile.origin(),
            "names": profile.names,
            "template_contains": profile.template_contains,
        })
    };
    config.profiles.iter().map(one).collect()
}

/// What `profile show` was asked for: the settings that a profile, or a model, gets.
pub struct Shown {
    /// The profile or model asked for.
    pub asked: String,
    /// What holds for it.
    pub resolved: Resolved,
    /// For a profile asked for by name: what it says differently for a model of each size.
    pub by_size: Vec<(SizeClass, Vec<(String, String)>)>,
}

/// Resolves a profile's name, or else a model's.
pub fn profile_show(config: &Config, name_or_model: &str, hints: &ModelHints) -> Shown {
    let asked = name_or_model.to_owned();
    let Some(profile) = config.profiles.iter().find(|profile| profile.name == name_or_model) else {
        return Shown { asked, resolved: config.policy(name_or_model, hints, None), by_size: Vec::new() };
    };
    let of = |parameters| config.policy("", &ModelHints { parameters, ..*hints }, Some(&profile.name));
    let mut resolved = of(None);
    resolved.because = format!("`{name_or_model}` is a profile; sizes are shown apart");
    let by_size = [(SizeClass::Small, 1), (SizeClass::Medium, 8), (SizeClass::Large, 70)]
        .into_iter()
        .map(|(size, billions)| (size, differences(&of(Some(billions * 1_000_000_000)), &resolved)))
        .filter(|(_, changed)| !changed.is_empty())
        .collect();
    Shown { asked, resolved, by_size }
}

/// Keys and values of `one` that differ from those of `other`.
fn differences(one: &Resolved, other: &Resolved) -> Vec<(String, String)> {
    let pairs = one.sources.iter().zip(&other.sources);
    pairs.filter(|(a, b)| a.1 != b.1).map(|(a, _)| (a.0.clone(), a.1.clone())).collect()
}

impl Shown {
    /// For people: the profile, why, and each setting with where it comes from.
    pub fn text(&self) -> String {
        let mut text = format!("profile {}: {}\n\n", self.resolved.profile, self.resolved.because);
        let rows: Vec<[String; 3]> = self
            .resolved
            .sources
            .iter()
            .map(|(key, value, source)| [key.clone(), value.clone(), source.clone()])
            .collect();
        text.push_str(&table(&["KEY", "VALUE", "FROM"].map(str::to_owned), &rows));
        for (size, changed) in &self.by_size {
            let changed: Vec<String> = changed.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{} models: {}\n", size.name(), changed.join(", "));
        }
        text
    }

    /// As one JSON object.
    pub fn json(&self) -> serde_json::Value {
        let settings: Vec<_> = self
            .resolved
            .sources
            .iter()
            .map(|(key, value, source)| json!({ "key": key, "value": value, "source": source }))
            .collect();
        let sizes: serde_json::Map<String, serde_json::Value> = self
            .by_size
            .iter()
            .map(|(size, changed)| {
                let changed: serde_json::Map<_, _> =
                    changed.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
                (size.name().to_owned(), changed.into())
            })
            .collect();
        json!({
            "asked": self.asked,
            "profile": self.resolved.profile,
            "because": self.resolved.because,
            "size": self.resolved.size.map(SizeClass::name),
            "settings": settings,
            "by_size": sizes,
        })
    }
}

/// What `profile check` found.
pub struct Check {
    /// How many profiles were read.
    pub checked: usize,
    /// What is wrong with them.
    pub problems: Vec<Problem>,
}

/// Checks the files named, or else the built-in profiles and those of `profile_dir`, over the default settings.
pub fn profile_check(files: &[PathBuf], profile_dir: Option<&std::path::Path>) -> Check {
    let mut problems = Vec::new();
    let Some(defaults) = super::default_context(&mut problems) else {
        return Check { checked: 0, problems };
    };
    if files.is_empty() {
        let profiles = profile::load(profile_dir, &defaults, &mut problems);
        return Check { checked: profiles.len(), problems };
    }
    for file in files {
        if let Some(profile) = profile::load_file(file, &mut problems) {
            problems.extend(profile.check(&defaults));
        }
    }
    Check { checked: files.len(), problems }
}

impl Check {
    /// For people: the problems, or one line that all is well.
    pub fn text(&self) -> String {
        let noun = if self.checked == 1 { "profile" } else { "profiles" };
        match self.problems.as_slice() {
            [] => format!("{} {noun} checked; no problem found\n", self.checked),
            problems => super::report(problems, &format!("{} {noun} checked", self.checked)),
        }
    }

    /// As one JSON object.
    pub fn json(&self) -> serde_json::Value {
        let problems: Vec<_> = self.problems.iter().map(Problem::json).collect();
        json!({ "checked": self.checked, "problems": problems })
    }
}

/// A model's size in words.
pub(crate) fn sizing(sizing: Option<Sizing>) -> String {
    match sizing {
        None => "size unknown".to_owned(),
        Some(Sizing { class, parameters: None, source }) => format!("{} (from {source})", class.name()),
        Some(Sizing { class, parameters: Some(parameters), source }) => {
            let count = match parameters {
                1_000_000_000.. => format!("{:.1}B", parameters as f64 / 1e9).replace(".0B", "B"),
                _ => format!("{}M", parameters / 1_000_000),
            };
            format!("{} ({count} parameters, from {source})", class.name())
        }
    }
}

/// Rows under headings, columns aligned by their longest cell, two spaces between.
fn table(headings: &[String; 3], rows: &[[String; 3]]) -> String {
    let all = || std::iter::once(headings).chain(rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    all().map(|[a, b, c]| format!("{a:first$}  {b:second$}  {c}").trim_end().to_owned() + "\n").collect()
}
