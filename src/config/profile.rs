//! A profile: which models it fits, and which settings and template facts it gives them.
//!
//! One TOML file a family; the built-in ones are embedded, a `profile_dir` adds to them or overrides them by name.

use std::path::{Path, PathBuf};

use super::context::{CONTEXT_KEYS, Context, TEMPLATE_KEYS, TemplateLayer, Tiers};
use super::file::{self, Label, Section};
use super::glob::Glob;
use super::model::{ModelHints, SizeClass, name_forms, parameters_in_name};
use super::pin::{self, PinPattern};
use super::problem::Problem;
use super::settings::{self, ForModels};
use super::written::{self as read, Value};

/// The profile of models that no other fits.
pub const DEFAULT: &str = "default";

/// The tables of a profile.
pub(crate) const SECTIONS: &[Section] = &[
    Section { path: "match", keys: &["names", "template_contains", "size"], repeated: false },
    Section { path: "context", keys: CONTEXT_KEYS, repeated: false },
    Section { path: "size.small", keys: CONTEXT_KEYS, repeated: false },
    Section { path: "size.medium", keys: CONTEXT_KEYS, repeated: false },
    Section { path: "size.large", keys: CONTEXT_KEYS, repeated: false },
    Section { path: "template", keys: TEMPLATE_KEYS, repeated: false },
    Section { path: "pin", keys: pin::KEYS, repeated: true },
    Section { path: file::MODEL, keys: &[], repeated: false },
];

/// The built-in profiles by name.
pub(crate) const BUILT_IN: &[(&str, &str)] = &[
    ("deepseek-r1", include_str!("../../profiles/deepseek-r1.toml")),
    ("default", include_str!("../../profiles/default.toml")),
    ("devstral", include_str!("../../profiles/devstral.toml")),
    ("gemma3", include_str!("../../profiles/gemma3.toml")),
    ("gpt-oss", include_str!("../../profiles/gpt-oss.toml")),
    ("granite", include_str!("../../profiles/granite.toml")),
    ("llama3", include_str!("../../profiles/llama3.toml")),
    ("mistral", include_str!("../../profiles/mistral.toml")),
    ("phi4", include_str!("../../profiles/phi4.toml")),
    ("qwen2.5-coder", include_str!("../../profiles/qwen2.5-coder.toml")),
    ("qwen3", include_str!("../../profiles/qwen3.toml")),
    ("qwen3.5", include_str!("../../profiles/qwen3.5.toml")),
    ("smollm2", include_str!("../../profiles/smollm2.toml")),
    ("smollm3", include_str!("../../profiles/smollm3.toml")),
];

/// What a family of models needs.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Its name: the file's name without `.toml`.
    pub name: String,
    /// The file it was read from; `None` for a built-in one.
    pub path: Option<PathBuf>,
    /// The globs of model names it fits, as written.
    pub names: Vec<String>,
    /// Texts that all stand in the chat templates it fits, whatever the model is called.
    pub template_contains: Vec<String>,
    /// The size of its models, where neither the server nor the name tells.
    pub size: Option<SizeClass>,
    globs: Vec<Glob>,
    pub(crate) tiers: Tiers,
    pub(crate) template: TemplateLayer,
    pub(crate) pins: Vec<PinPattern>,
    pub(crate) models: Vec<ForModels>,
}

/// The profiles chosen for a model, and why.
#[derive(Debug, Clone)]
pub(crate) struct Choice<'a> {
    /// The one that was asked for or fits best, and those that it lies over: what it leaves out, they say.
    pub(crate) profiles: Vec<&'a Profile>,
    pub(crate) because: String,
}

/// A model's size and how it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizing {
    pub(crate) class: SizeClass,
    /// How many parameters it has, where that is known.
    pub(crate) parameters: Option<u64>,
    pub(crate) source: &'static str,
}

impl Profile {
    /// Reads a profile from its text; `None` when anything in it is wrong, with problems saying what.
    pub(crate) fn parse(name: &str, text: &str, path: Option<&Path>, problems: &mut Vec<Problem>) -> Option<Profile> {
        let display = path.map_or_else(|| format!("profiles/{name}.toml"), |path| path.display().to_string());
        let mut found = Vec::new();
        let profile = Profile::read(name, text, path, &display, &mut found);
        if found.is_empty() {
            return profile;
        }
        problems.append(&mut found);
        None
    }

    fn read(name: &str, text: &str, path: Option<&Path>, display: &str, found: &mut Vec<Problem>) -> Option<Profile> {
        let label = Label::Profile(name.to_owned());
        let layer = file::parse(text, display, &label, SECTIONS, found).ok()?;
        let mut list = |key: &str| {
            let written = layer.values.get(key)?;
            written.read(read::names, found).map(|sourced| sourced.value)
        };
        let names = list("match.names").unwrap_or_default();
        let template_contains = list("match.template_contains").unwrap_or_default();
        let size = layer.values.get("match.size").and_then(|written| written.read(size_class, found));
        let stated = ["match.names", "match.template_contains"].iter().any(|key| layer.values.contains_key(*key));
        if !stated {
            let problem = Problem::new(display, "it fits no model: `names` in [match] is missing");
            found.push(
                problem.hint("such as names = [\"qwen3*\"], or names = [] if only x-windowsill-profile is to pick it"),
            );
        }
        Some(Profile {
            name: name.to_owned(),
            path: path.map(Path::to_owned),
            globs: names.iter().map(|name| Glob::new(name)).collect(),
            names,
            template_contains,
            size: size.map(|size| size.value),
            tiers: Tiers::read(&layer, found),
            template: TemplateLayer::read(&layer, "template", found),
            pins: pin::resolve(&layer, found),
            models: settings::resolve(&layer.models, found),
        })
    }

    /// Thresholds that contradict each other, for a model of any size, over the default settings.
    pub(crate) fn check(&self, defaults: &Context) -> Vec<Problem> {
        let place = match &self.path {
            Some(path) => path.display().to_string(),
            None => format!("profiles/{}.toml", self.name),
        };
        let mut problems = self.tiers.all.over(defaults).check(Some(&place));
        for size in SizeClass::ALL {
            for problem in self.tiers.of(Some(size)).over(defaults).check(Some(&place)) {
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
        problems
    }

    /// Where it comes from: `built in` or its file.
    pub fn origin(&self) -> String {
        self.path.as_ref().map_or_else(|| "built in".to_owned(), |path| path.display().to_string())
    }

    /// The most specific of its globs that fits one of the forms of a name.
    fn fit(&self, forms: &[String]) -> Option<&Glob> {
        let fit = |glob: &&Glob| forms.iter().any(|form| fits(glob, form));
        self.globs.iter().filter(fit).max_by_key(|glob| glob.literal())
    }
}

/// The profiles of a model: the one `asked` for, or the one that fits it best. A user's own lies over the one that would be
/// chosen without it, and so does one that was asked for: it changes what it says, and the family's facts go on to hold.
pub(crate) fn choose<'a>(
    profiles: &'a [Profile],
    model: &str,
    hints: &ModelHints,
    asked: Option<&'a Profile>,
) -> Option<Choice<'a>> {
    let (mut chosen, mut because) = match asked {
        Some(profile) => (vec![profile], format!("the request asked for profile `{}`", profile.name)),
        None => {
            let (profile, because) = fitting(profiles, &[], model, hints)?;
            (vec![profile], because)
        }
    };
    while chosen.len() == 1 && asked.is_some() || chosen.last().is_some_and(|last| last.path.is_some()) {
        let Some((below, _)) = fitting(profiles, &chosen, model, hints) else { break };
        chosen.push(below);
    }
    // That the default lies under all of them goes without saying.
    for below in chosen.iter().skip(1).filter(|below| below.name != DEFAULT) {
        because.push_str(&format!(", over profile `{}`", below.name));
    }
    Some(Choice { profiles: chosen, because })
}

/// The profile that fits a model best, of those not `taken`: the longest glob that fits its name, then its template, then
/// `default`. And why.
fn fitting<'a>(
    profiles: &'a [Profile],
    taken: &[&Profile],
    model: &str,
    hints: &ModelHints,
) -> Option<(&'a Profile, String)> {
    let free = |profile: &&Profile| taken.iter().all(|taken| taken.name != profile.name);
    let named = || profiles.iter().filter(|profile| profile.name != DEFAULT).filter(free);
    for forms in name_forms(model) {
        // `max_by` takes the last of equals, so the names go in reverse: the first by name wins a tie.
        let best = named()
            .rev()
            .filter_map(|profile| profile.fit(&forms).map(|glob| (profile, glob)))
            .max_by_key(|(_, glob)| glob.literal());
        if let Some((profile, glob)) = best {
            let because = format!("`{model}` fits `{}` of profile `{}`", glob.as_str(), profile.name);
            return Some((profile, because));
        }
    }
    let by_template = hints.template.and_then(|template| {
        let fits = |profile: &&Profile| {
            let texts = &profile.template_contains;
            !texts.is_empty() && texts.iter().all(|text| template.contains(text.as_str()))
        };
        named()
            .rev()
            .filter(fits)
            .max_by_key(|profile| profile.template_contains.iter().map(String::len).sum::<usize>())
    });
    if let Some(profile) = by_template {
        let because =
            format!("no profile names `{model}`, but its chat template is that of profile `{}`", profile.name);
        return Some((profile, because));
    }
    let profile = profiles.iter().filter(free).find(|profile| profile.name == DEFAULT)?;
    Some((profile, format!("no profile names `{model}`")))
}

/// The model's size: as the server reports it, else as its name says, else as its profile does.
pub(crate) fn sizing(model: &str, hints: &ModelHints, profiles: &[&Profile]) -> Option<Sizing> {
    let reported = hints.parameters.map(|parameters| (parameters, "the server"));
    if let Some((parameters, source)) = reported.or_else(|| parameters_in_name(model).map(|n| (n, "its name"))) {
        return Some(Sizing { class: SizeClass::of(parameters), parameters: Some(parameters), source });
    }
    let class = profiles.iter().find_map(|profile| profile.size)?;
    Some(Sizing { class, parameters: None, source: "its profile" })
}

/// `"small"`, `"medium"` or `"large"`.
fn size_class(value: &Value) -> Result<SizeClass, String> {
    let name = read::choice(value, &SizeClass::ALL.map(SizeClass::name))?;
    SizeClass::ALL.into_iter().find(|size| size.name() == name).ok_or_else(|| "must be a size".to_owned())
}

/// Built-in profiles and those of `dir`, by name; a file of `dir` replaces the built-in one of the same name.
pub(crate) fn load(dir: Option<&Path>, defaults: &Context, problems: &mut Vec<Problem>) -> Vec<Profile> {
    let mut profiles: Vec<Profile> =
        BUILT_IN.iter().filter_map(|(name, text)| Profile::parse(name, text, None, problems)).collect();
    for path in dir.map(|dir| files(dir, problems)).unwrap_or_default() {
        if let Some(profile) = load_file(&path, problems) {
            profiles.retain(|other| other.name != profile.name);
            profiles.push(profile);
        }
    }
    profiles.sort_by(|a, b| a.name.cmp(&b.name));
    problems.extend(profiles.iter().flat_map(|profile| profile.check(defaults)));
    profiles
}

/// Reads one profile from disk.
pub(crate) fn load_file(path: &Path, problems: &mut Vec<Problem>) -> Option<Profile> {
    let display = path.display().to_string();
    let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else {
        problems.push(Problem::new(display, "a profile's file name must be UTF-8, for it is the profile's name"));
        return None;
    };
    let text = match crate::files::read_text(path) {
        Ok(text) => text,
        Err(error) => {
            problems.push(Problem::new(display, format!("cannot be read: {error}")));
            return None;
        }
    };
    Profile::parse(name, &text, Some(path), problems)
}

/// The `.toml` files of a folder, by name.
fn files(dir: &Path, problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            problems.push(Problem::new(dir.display().to_string(), format!("`profile_dir` cannot be read: {error}")));
            return Vec::new();
        }
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    paths
}

/// Whether a glob fits a form of a name. A glob without a `/` never fits a form with one: the owner in `mistralai/…` would pass
/// for a family.
pub(super) fn fits(glob: &Glob, form: &str) -> bool {
    (glob.as_str().contains('/') || !form.contains('/')) && glob.fits(form)
}
