//! Settings from outside a file: the environment and the command line, as layers.
//!
//! The only place that reads the process's environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Flags;
use super::file::{Layer, Section};
use super::problem::{Problem, near, nearest};
use super::written::Written;

/// What every variable of ours begins with.
const PREFIX: &str = "WINDOWSILL_";

/// Where a process runs: its variables and its working directory.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Variables by name. An empty one counts as not set, as XDG has it.
    pub vars: BTreeMap<String, String>,
    /// The working directory; relative paths and `./config.toml` start here.
    pub cwd: PathBuf,
}

impl Environment {
    /// The process's own. What is not UTF-8 in a value becomes U+FFFD, which no setting of ours takes.
    pub fn of_process() -> Environment {
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
            .collect();
        Environment { vars, cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")) }
    }

    /// A variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.trim().is_empty())
    }

    /// A folder by XDG: the variable if it is an absolute path, else `fallback` below the home.
    pub fn xdg(&self, variable: &str, fallback: &str) -> Option<PathBuf> {
        let named = self.get(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        named.or_else(|| self.home().map(|home| home.join(fallback)))
    }

    /// `text` as a path: `~/` is the home, and anything relative starts at `base`.
    pub(crate) fn path(&self, text: &str, base: &Path) -> PathBuf {
        match (text.strip_prefix("~/"), self.home()) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => base.join(text),
        }
    }

    /// The home folder.
    pub fn home(&self) -> Option<PathBuf> {
        self.get("HOME").or_else(|| self.get("USERPROFILE")).map(PathBuf::from)
    }

    /// The settings among the variables. A misspelt one of ours is a problem; one that is not near any is not ours.
    pub(crate) fn layer(&self, sections: &[Section], problems: &mut Vec<Problem>) -> Layer {
        let known: Vec<(String, String)> = sections.iter().flat_map(variables).collect();
        let names: Vec<&str> = known.iter().map(|(variable, _)| variable.trim_start_matches(PREFIX)).collect();
        let mut layer = Layer::default();
        for (variable, rest) in self.vars.keys().filter_map(|name| Some((name, name.strip_prefix(PREFIX)?))) {
            let Some(text) = self.get(variable) else { continue };
            if text.contains(char::REPLACEMENT_CHARACTER) {
                problems.push(Problem::new("environment", format!("`{variable}` is not UTF-8")));
            } else if let Some((_, dotted)) = known.iter().find(|(known, _)| known == variable) {
                let source = format!("environment {variable}");
                layer.values.insert(dotted.clone(), Written::word(variable, text, "environment", &source));
            } else if let Some(hint) = slip(rest, sections, &names) {
                problems.push(Problem::new("environment", format!("unknown variable `{variable}`")).hint(hint));
            }
        }
        layer
    }
}

/// Each variable of a section, and the dotted key it sets. Keys stand in the file alone, which is read again when they change.
fn variables(section: &Section) -> Vec<(String, String)> {
    if section.path == "key" {
        return Vec::new();
    }
    let pair = |key: &&str| match section.path {
        "" => (format!("{PREFIX}{}", key.to_uppercase()), (*key).to_owned()),
        path => (format!("{PREFIX}{path}_{key}").to_uppercase().replace('.', "_"), format!("{path}.{key}")),
    };
    section.keys.iter().map(pair).collect()
}

/// A hint, if an unknown variable looks like a slip of one of ours.
fn slip(rest: &str, sections: &[Section], names: &[&str]) -> Option<String> {
    /// Letters by which a variable outside our sections may differ and still be a slip, not somebody else's.
    const SLIPS: usize = 2;
    let lower: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
    let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
    let prefix = |section: &Section| format!("{}_", section.path.replace('.', "_"));
    let section =
        sections.iter().find(|section| !section.path.is_empty() && rest.starts_with(&prefix(section).to_uppercase()));
    if let Some(section) = section {
        if section.path == "key" {
            return Some("keys stand in config.toml, one [[key]] each".to_owned());
        }
        let within: Vec<&str> = lower.iter().copied().filter(|name| name.starts_with(&prefix(section))).collect();
        return Some(match near(rest, &within) {
            Some(name) => format!("did you mean `{PREFIX}{}`?", name.to_uppercase()),
            None => nearest(rest, section.keys),
        });
    }
    // A key of the two sections that people set most, without the section: `WINDOWSILL_TOOLS`.
    let bare = rest.to_lowercase();
    let whole = ["context", "window"].map(|path| format!("{path}_{bare}"));
    if let Some(whole) = whole.iter().find(|whole| lower.contains(&whole.as_str()) && !lower.contains(&bare.as_str())) {
        return Some(format!("did you mean `{PREFIX}{}`?", whole.to_uppercase()));
    }
    let found = near(rest, &lower)?;
    let close = strsim::damerau_levenshtein(&rest.to_lowercase(), found) <= SLIPS;
    close.then(|| format!("did you mean `{PREFIX}{}`?", found.to_uppercase()))
}

/// The settings among the flags, save the data folder, which is a path and not text.
pub(crate) fn flags(flags: &Flags) -> Layer {
    let given = [
        ("--listen", "listen", flags.listen.as_deref()),
        ("--num-ctx", "window.num_ctx", flags.num_ctx.as_deref()),
        ("--task", "task", flags.task.as_deref()),
    ];
    let mut layer = Layer::default();
    for (flag, dotted, text) in given {
        if let Some(text) = text {
            layer.values.insert(dotted.to_owned(), Written::word(flag, text, flag, &format!("flag {flag}")));
        }
    }
    if flags.shadow {
        let written = Written::word("--shadow", "true", "--shadow", "flag --shadow");
        layer.values.insert("shadow".to_owned(), written);
    }
    for url in &flags.upstream {
        let written = Written::word("--upstream", url, "--upstream", "flag --upstream");
        layer.repeated.push(("--upstream".to_owned(), BTreeMap::from([("url".to_owned(), written)])));
    }
    if let Some(model) = &flags.model {
        let template = flags.chat_template_file.as_ref().map(|file| file.to_string_lossy());
        let given = [
            ("name", "--model", Some("embedded")),
            ("kind", "--model", Some("embedded")),
            ("model", "--model", Some(&*model.to_string_lossy())),
            ("chat_template_file", "--chat-template-file", template.as_deref()),
            ("kv_type", "--kv-type", flags.kv_type.as_deref()),
            ("gpu_layers", "--gpu-layers", flags.gpu_layers.as_deref()),
        ];
        let table = given.into_iter().filter_map(|(key, flag, text)| {
            Some((key.to_owned(), Written::word(flag, text?, flag, &format!("flag {flag}"))))
        });
        layer.repeated.push(("--model".to_owned(), table.collect()));
    }
    layer
}

/// A folder of this process alone, for what is thrown away at its end. Not made yet.
pub fn scratch_dir() -> PathBuf {
    std::env::temp_dir().join(format!("windowsill-dry-{}", std::process::id()))
}
