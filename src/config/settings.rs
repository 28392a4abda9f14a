//! `[model.GLOB]` of a profile: settings of requests that hold for its models whatever a client sends.

use serde_json::Value;

use super::file::ModelTable;
use super::glob::Glob;
use super::model::name_forms;
use super::problem::{Problem, nearest};
use super::profile;
use crate::settings::{NO_SETTINGS, Settings};

/// The keys of such a table.
const KEYS: [&str; 2] = ["set", "strip"];

/// Settings that are numbers.
const NUMBERS: [&str; 14] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "thinking_budget_tokens",
    "reasoning_budget_tokens",
];

/// Settings that are tables.
const TABLES: [&str; 4] = ["chat_template_kwargs", "options", "logit_bias", "reasoning"];

/// The settings for models whose name fits a glob.
#[derive(Debug, Clone)]
pub(crate) struct ForModels {
    glob: Glob,
    /// What is set and stripped.
    pub(crate) settings: Settings,
    source: String,
}

impl ForModels {
    /// Whether they are for a model. A profile that is shown without a model shows all that it has.
    fn fits(&self, model: &str) -> bool {
        let forms = name_forms(model);
        model.is_empty() || forms.iter().flatten().any(|form| profile::fits(&self.glob, form))
    }

    /// Key, value and source of each setting, as text.
    fn shown(&self) -> impl Iterator<Item = (String, String, String)> + '_ {
        let glob = self.glob.as_str();
        let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let name = if glob.chars().all(bare) { glob.to_owned() } else { format!("{glob:?}") };
        let row = |key: String, value: String| (format!("model.{name}.{key}"), value, self.source.clone());
        let strip = Some(&self.settings.strip).filter(|strip| !strip.is_empty());
        let set = self.settings.set.iter().map(|(key, value)| (format!("set.{key}"), value.to_string()));
        let strip = strip.map(|strip| ("strip".to_owned(), format!("{strip:?}")));
        set.chain(strip).map(move |(key, value)| row(key, value)).collect::<Vec<_>>().into_iter()
    }
}

/// What holds for a model, and where each of it comes from. `all`: of each profile, the strongest first. The longer glob of a
/// profile counts.
pub(crate) fn holding<'a>(
    all: impl DoubleEndedIterator<Item = &'a [ForModels]>,
    model: &str,
) -> (Settings, Vec<(String, String, String)>) {
    let (mut settings, mut sources) = (Settings::default(), Vec::new());
    for tables in all.rev() {
        let mut fitting: Vec<&ForModels> = tables.iter().filter(|table| table.fits(model)).collect();
        fitting.sort_by_key(|table| table.glob.literal());
        for table in fitting {
            settings.add(&table.settings);
            sources.extend(table.shown());
        }
    }
    (settings, sources)
}

/// Reads the tables of a profile; what is wrong becomes problems.
pub(crate) fn resolve(tables: &[ModelTable], problems: &mut Vec<Problem>) -> Vec<ForModels> {
    tables.iter().map(|table| read(table, problems)).collect()
}

fn read(table: &ModelTable, problems: &mut Vec<Problem>) -> ForModels {
    let mut settings = Settings::default();
    let heading = format!("[model.{:?}]", table.glob);
    let mut wrong = |place: &str, message: String, hint: &str| {
        let problem = Problem::new(place, message);
        problems.push(if hint.is_empty() { problem } else { problem.hint(hint) });
    };
    for (key, place, value) in &table.keys {
        match (key.as_str(), value) {
            ("set", Some(Value::Object(set))) => {
                for (name, value) in set {
                    match wrong_setting(name, value) {
                        Some((message, hint)) => wrong(place, format!("`set.{name}` in {heading} {message}"), &hint),
                        None => drop(settings.set.insert(name.clone(), value.clone())),
                    }
                }
            }
            ("strip", Some(Value::Array(list))) if list.iter().all(Value::is_string) => {
                for name in list.iter().filter_map(Value::as_str).map(str::trim) {
                    match unstrippable(name) {
                        Some(why) => wrong(place, format!("`strip` in {heading} names `{name}`, which {why}"), ""),
                        None => settings.strip.push(name.to_owned()),
                    }
                }
            }
            ("set", _) => wrong(
                place,
                format!("`set` in {heading} must be a table of settings, without dates"),
                "such as set = { temperature = 0.6 }",
            ),
            ("strip", _) => {
                wrong(place, format!("`strip` in {heading} must be a list of names"), "such as strip = [\"top_k\"]")
            }
            (other, _) => wrong(place, format!("unknown key `{other}` in {heading}"), &nearest(other, &KEYS)),
        }
    }
    let both = settings.strip.iter().find(|name| settings.set.contains_key(*name));
    if let Some(name) = both {
        wrong(
            &table.place,
            format!("`{name}` is both set and stripped in {heading}"),
            "a setting that is set needs no stripping",
        );
    } else if table.keys.is_empty() {
        wrong(&table.place, format!("{heading} says nothing"), "give it `set`, `strip` or both");
    }
    ForModels { glob: Glob::new(&table.glob), settings, source: table.source.clone() }
}

/// What is wrong with a setting, and a hint.
fn wrong_setting(name: &str, value: &Value) -> Option<(String, String)> {
    let said = |message: &str, hint: &str| Some((message.to_owned(), hint.to_owned()));
    if let Some(why) = unstrippable(name) {
        return said(&why, "");
    }
    if NUMBERS.contains(&name) && !value.is_number() {
        return said("must be a number", "");
    }
    if TABLES.contains(&name) && !value.is_object() {
        return said("must be a table", &format!("such as {name} = {{ … }}"));
    }
    if name == "options" && value.get("num_ctx").is_some() {
        return said("cannot set `num_ctx`", "the window is set by `num_ctx` in [window] of config.toml");
    }
    if name.contains('.') {
        let (outer, inner) = name.split_once('.').unwrap_or((name, ""));
        return said("has a dot in its name", &format!("write {outer} = {{ {inner} = … }}"));
    }
    None
}

/// Why a field is no setting.
fn unstrippable(name: &str) -> Option<String> {
    if name.is_empty() || name.split('.').any(str::is_empty) {
        return Some("is no name of a setting".to_owned());
    }
    let outer = name.split('.').next().unwrap_or(name);
    NO_SETTINGS.contains(&outer).then(|| "is no setting: it is what a client asks, or how its reply comes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::profile::Profile;
    use super::*;

    fn read(text: &str) -> Result<Profile, String> {
        let mut problems = Vec::new();
        let profile = Profile::parse("mine", &format!("[match]\nnames = [\"qwen*\"]\n{text}"), None, &mut problems);
        profile.ok_or_else(|| problems.iter().map(|p| format!("{p:?}")).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn settings_are_those_of_the_globs_that_fit() {
        let text = "[model.\"*\"]\nset = { temperature = 0.6, chat_template_kwargs = { enable_thinking = true } }\nstrip = [\"seed\"]\n\
            [model.\"qwen3*\"]\nset = { temperature = 0.7, stop = [\"a\"] }\n[model.qwen2]\nset.seed = 5\n";
        let profile = read(text).unwrap();
        let of = |model: &str| holding([profile.models.as_slice()].into_iter(), model).0;
        assert_eq!(
            Value::Object(of("qwen3:8b").set),
            serde_json::json!({"temperature": 0.7,
            "chat_template_kwargs": {"enable_thinking": true}, "stop": ["a"]})
        );
        assert_eq!(
            (of("qwen2:1b").set["temperature"].clone(), of("qwen2:1b").set["seed"].clone()),
            (0.6.into(), 5.into())
        );
        assert_eq!((of("qwen2:1b").strip, of("qwen3").strip), (Vec::<String>::new(), vec!["seed".to_owned()]));
        let (_, shown) = holding([profile.models.as_slice()].into_iter(), "qwen3");
        let keys: Vec<_> = shown.iter().map(|(key, value, source)| format!("{key} = {value} ({source})")).collect();
        assert!(keys.contains(&"model.\"qwen3*\".set.temperature = 0.7 (profile mine)".to_owned()), "{keys:?}");
        assert!(keys.contains(&"model.\"*\".strip = [\"seed\"] (profile mine)".to_owned()), "{keys:?}");
        // Without a glob they are for all.
        assert_eq!(read("[model]\nset = { top_k = 3 }\n").unwrap().models[0].settings.set["top_k"], 3);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, expect) in [
            ("[model.\"*\"]\nset = { model = \"x\" }", "is no setting"),
            ("[model.\"*\"]\nset = { messages = [] }", "is no setting"),
            ("[model.\"*\"]\nstrip = [\"tools\"]", "is no setting"),
            ("[model.\"*\"]\nstrip = [\"\"]", "no name of a setting"),
            ("[model.\"*\"]\nset = { temperature = \"hot\" }", "must be a number"),
            ("[model.\"*\"]\nset = { chat_template_kwargs = 1 }", "must be a table"),
            ("[model.\"*\"]\nset = { options = { num_ctx = 1 } }", "[window]"),
            ("[model.\"*\"]\nset = { \"options.seed\" = 1 }", "options = { seed = "),
            ("[model.\"*\"]\nset = 1", "must be a table of settings"),
            ("[model.\"*\"]\nset = { x = 2020-01-01 }", "without dates"),
            ("[model.\"*\"]\nstrip = \"seed\"", "must be a list of names"),
            ("[model.\"*\"]\nsets = { seed = 1 }", "unknown key `sets`"),
            ("[model.\"*\"]\nset = { seed = 1 }\nstrip = [\"seed\"]", "both set and stripped"),
            ("[model.\"*\"]\n", "says nothing"),
            ("[model]\nqwen = 3", "`model.qwen` must be a table"),
        ] {
            let said = read(text).map(|_| ()).unwrap_err();
            assert!(said.contains(expect), "{text}: {said}");
            assert!(said.contains("profiles/mine.toml:"), "{text}: {said}");
        }
    }
}
