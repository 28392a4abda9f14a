//! Pure: what is known of the settings that a server takes, what a refusal adds to that, and a request with the others left out.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::wire::json::{self, Fields};
use crate::wire::names::{self as tool_names, Names};

/// How much effort a model may be asked for, weakest first. Servers know some of these.
const LEVELS: [&str; 8] = ["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"];

/// Settings without which a reply is still one to the same question. They are left out whoever sent them.
const HARMLESS: [&str; 15] = [
    "think",
    "thinking",
    "enable_thinking",
    "reasoning",
    "reasoning_effort",
    "chat_template_kwargs",
    "stream_options",
    "verbosity",
    "keep_alive",
    "options",
    "cache_prompt",
    "prompt_cache_key",
    "store",
    "metadata",
    "service_tier",
];

/// Fields of a request that are never left out: without one of them the reply would be one to another question.
const NEEDED: [&str; 18] = [
    "model",
    "messages",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "stop",
    "seed",
    "tools",
    "tool_choice",
    "response_format",
    "n",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
];

/// Fields of a message that say what it says.
const SAID: [&str; 5] = ["role", "content", "name", "tool_calls", "tool_call_id"];

/// How servers speak of a field that they do not know, where they do not name it (in small letters).
const UNKNOWN: [&str; 7] = [
    "extra inputs are not permitted",
    "extra_forbidden",
    "unknown field",
    "unknown parameter",
    "unrecognized",
    "additional properties",
    "unexpected keyword",
];

/// How much effort a model may be asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::upstream) enum Effort {
    /// Whatever the client says.
    #[default]
    Any,
    /// One of these levels.
    Among(Vec<&'static str>),
    /// That it thinks or not: it knows no levels.
    OnOff,
    /// Nothing: it does not think.
    Unsaid,
}

/// What is said in the place of a level.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Say {
    /// What the client says.
    Asked,
    /// Another level.
    Level(&'static str),
    /// That it thinks.
    On,
    /// Nothing.
    Nothing,
}

impl Effort {
    /// What is said where a client asks for a level.
    pub(in crate::upstream) fn say(&self, asked: &str) -> Say {
        match self {
            Effort::Any => Say::Asked,
            Effort::Among(levels) if levels.contains(&asked) => Say::Asked,
            Effort::Among(levels) => nearest(asked, levels).map_or(Say::Nothing, Say::Level),
            Effort::OnOff => Say::On,
            Effort::Unsaid => Say::Nothing,
        }
    }

    /// What an Ollama's refusal says of a model that was asked for `said`; `None` where it is about something else.
    pub(in crate::upstream) fn of_ollama(&self, refusal: &[u8], said: Option<&str>) -> Option<Effort> {
        let text = String::from_utf8_lossy(refusal).to_lowercase();
        if text.contains("does not support thinking") {
            return (*self != Effort::Unsaid).then_some(Effort::Unsaid);
        }
        if !text.contains("think value") {
            return None;
        }
        match self {
            Effort::Any => Some(among(&text, said).map_or(Effort::OnOff, Effort::Among)),
            Effort::Among(_) => Some(Effort::OnOff),
            Effort::OnOff => Some(Effort::Unsaid),
            Effort::Unsaid => None,
        }
    }
}

/// The level nearest to the one that is asked for. Who asks for thoughts gets some, where there is a choice.
fn nearest(asked: &str, levels: &[&'static str]) -> Option<&'static str> {
    let rank = |level: &str| LEVELS.iter().position(|l| *l == level);
    let wanted = rank(asked)?;
    let thinks = levels.iter().any(|level| *level != "none");
    let of_use = levels.iter().filter(|level| wanted == 0 || !thinks || **level != "none");
    of_use.copied().min_by_key(|level| rank(level).unwrap_or(0).abs_diff(wanted))
}

/// The levels that a refusal names, but for the one that was refused.
fn among(refusal: &str, said: Option<&str>) -> Option<Vec<&'static str>> {
    let named = LEVELS.into_iter().filter(|level| said != Some(*level) && names(refusal, level));
    let named: Vec<_> = named.collect();
    (!named.is_empty()).then_some(named)
}

/// What is known of one model of one server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::upstream) struct Known {
    /// How much effort it may be asked for.
    pub(in crate::upstream) effort: Effort,
    /// Fields of a request that it refuses.
    without: Vec<String>,
    /// Fields of a message that it refuses.
    unspoken: Vec<String>,
    /// The longest name of a tool that it takes, where it refused one (bytes).
    names: Option<usize>,
}

/// A request as a server takes it.
#[derive(Debug)]
pub(super) struct Spoken {
    pub(super) body: Bytes,
    /// What became of its settings, in words.
    pub(super) told: Vec<String>,
    /// The names of tools that are to be put back into the reply.
    pub(super) names: Names,
}

impl Known {
    /// The same, with another effort.
    pub(in crate::upstream) fn with_effort(self, effort: Effort) -> Known {
        Known { effort, ..self }
    }

    /// What is known after a refusal of a request that was sent as it says by now; `None` where that teaches nothing.
    /// `translated`: windowsill wrote the request, in other words than the client's.
    pub(super) fn after(&self, refusal: &[u8], sent: &str, translated: bool) -> Option<Known> {
        let text = String::from_utf8_lossy(refusal).to_lowercase();
        let fields = Fields::read(sent).ok()?;
        let mut known = self.clone();
        if let Some(effort) = self.effort_after(&text, &fields) {
            known.effort = effort;
        }
        for (name, value) in &fields.0 {
            let efforts = matches!(&**name, "reasoning_effort" | "reasoning") && said_in(name, value.get()).is_some();
            if !efforts && may_go(name, translated) && is_named(&text, name, value.get()) {
                add(&mut known.without, name);
            }
        }
        for name in fields.get("messages").into_iter().flat_map(unusual) {
            if names(&text, &name) {
                add(&mut known.unspoken, &name);
            }
        }
        if known == *self && UNKNOWN.iter().any(|words| text.contains(words)) {
            // It does not say which.
            let ours = fields.0.iter().filter(|(name, _)| HARMLESS.contains(&&**name));
            ours.for_each(|(name, _)| add(&mut known.without, name));
            fields.get("messages").into_iter().flat_map(unusual).for_each(|name| add(&mut known.unspoken, &name));
        }
        (known != *self).then_some(known)
    }

    /// The same after a refusal of a tool's name; `None` where it is about something else.
    pub(super) fn after_names(&self, refusal: &[u8], sent: &str) -> Option<Known> {
        let text = String::from_utf8_lossy(refusal).to_lowercase();
        if !text.contains("name") || !OF_NAMES.iter().any(|words| text.contains(words)) {
            return None;
        }
        let fields = Fields::read(sent).ok()?;
        // A longer one is the longest by its own word, or the server takes fewer characters.
        let most = tool_names::longest_refused(&fields, 0).and_then(|longest| said_limit(&text, longest));
        let most = most.unwrap_or(tool_names::LONGEST).min(self.names.unwrap_or(usize::MAX));
        let refused = tool_names::longest_refused(&fields, most).is_some();
        refused.then(|| Known { names: Some(most), ..self.clone() })
    }

    /// What a refusal says of the efforts that a request asks for.
    fn effort_after(&self, refusal: &str, fields: &Fields<'_>) -> Option<Effort> {
        let about = ["reasoning_effort", "reasoning.effort", "effort", "reasoning"];
        if !about.iter().any(|name| names(refusal, name)) {
            return None;
        }
        let said: Vec<String> = fields.0.iter().filter_map(|(name, value)| said_in(name, value.get())).collect();
        let level = said.first()?;
        match &self.effort {
            Effort::Any => Some(among(refusal, Some(level)).map_or(Effort::Unsaid, Effort::Among)),
            Effort::Among(_) | Effort::OnOff => Some(Effort::Unsaid),
            Effort::Unsaid => None,
        }
    }

    /// The request as the server takes it; `None` where that is how it is.
    pub(super) fn spoken(&self, body: &str) -> Option<Spoken> {
        let fields = Fields::read(body).ok()?;
        let mut changes: Vec<(&str, Option<String>)> = Vec::new();
        let mut told = Vec::new();
        for (name, value) in &fields.0 {
            if self.without.iter().any(|without| without == name) {
                changes.push((name, None));
                told.push(format!("{name} is left out: the server refuses it"));
            } else if let Some(level) = said_in(name, value.get()) {
                let (said, how) = match self.effort.say(&level) {
                    Say::Asked => continue,
                    Say::Level(level) => {
                        (with_level(name, value.get(), Some(level)), format!("is asked for as {level}"))
                    }
                    Say::On | Say::Nothing => (with_level(name, value.get(), None), "is left out".to_owned()),
                };
                changes.push((name, said));
                told.push(format!("effort {level} {how}: the server does not have it"));
            } else if self.effort == Effort::Unsaid && &**name == "think" && value.get() == "true" {
                changes.push((name, None));
                told.push("think is left out: the model does not think".into());
            }
        }
        if let Some(messages) = fields.get("messages").filter(|_| !self.unspoken.is_empty())
            && let Some(messages) = without(messages, &self.unspoken)
        {
            changes.push(("messages", Some(messages)));
            told.push(format!("{} of messages is left out: the server refuses it", self.unspoken.join(", ")));
        }
        told.dedup();
        let changes: Vec<(&str, Option<&str>)> =
            changes.iter().map(|(name, value)| (*name, value.as_deref())).collect();
        let changed = if changes.is_empty() { None } else { Some(json::with_fields(body, &changes).ok()?) };
        let text = changed.as_deref().map_or(Cow::Borrowed(body), String::from_utf8_lossy);
        if let Some((body, names)) = self.names.and_then(|most| tool_names::shortened(&text, most)) {
            told.push("names of tools are shortened: the server takes no longer ones".into());
            return Some(Spoken { body, told, names });
        }
        Some(Spoken { body: changed?, told, names: Names::default() })
    }
}

/// How servers speak of a name that is too long, or has other characters than they take (in small letters).
const OF_NAMES: [&str; 10] = [
    "maximum length",
    "max length",
    "max_length",
    "at most",
    "too long",
    "longer than",
    "characters",
    "pattern",
    "a-z",
    "invalid function name",
];

/// The limit of names that a refusal says; none that the longest name keeps to.
fn said_limit(refusal: &str, longest: usize) -> Option<usize> {
    let words = ["length", "most", "than", "limit", "max", "exceed", "{1,", "{0,"];
    let mut at = 0;
    while let Some(start) = refusal[at..].find(|c: char| c.is_ascii_digit()).map(|start| at + start) {
        let end = refusal[start..].find(|c: char| !c.is_ascii_digit()).map_or(refusal.len(), |end| start + end);
        let before: String = refusal[..start].chars().rev().take(16).collect::<Vec<_>>().into_iter().rev().collect();
        let number = refusal[start..end].parse::<usize>().ok();
        let number = number.filter(|n| (16..=256).contains(n) && *n < longest);
        if number.is_some() && words.iter().any(|word| before.contains(word)) {
            return number;
        }
        at = end;
    }
    None
}

fn add(to: &mut Vec<String>, name: &str) {
    if !to.iter().any(|n| n == name) {
        to.push(name.to_owned());
    }
}

/// Whether a field may be left out. What a client says in a server's own words is meant for it, but for what is harmless.
fn may_go(name: &str, translated: bool) -> bool {
    HARMLESS.contains(&name) || translated && !NEEDED.contains(&name)
}

/// The level of effort that a field of a request asks for.
fn said_in(name: &str, value: &str) -> Option<String> {
    let said = match name {
        "reasoning_effort" | "think" => json::string(value),
        "reasoning" => Fields::read(value).ok()?.string("effort"),
        "chat_template_kwargs" => Fields::read(value).ok()?.string("reasoning_effort"),
        _ => None,
    };
    said.filter(|level| !level.is_empty())
}

/// The field with another level, or without any; `None` where nothing is left of it.
fn with_level(name: &str, value: &str, level: Option<&str>) -> Option<String> {
    let level = level.map(json::quote);
    let inner = match name {
        "reasoning" => "effort",
        "chat_template_kwargs" => "reasoning_effort",
        _ => return level,
    };
    let written = json::with_fields(value, &[(inner, level.as_deref())]).ok()?;
    let written = String::from_utf8_lossy(&written).into_owned();
    (written != "{}").then_some(written)
}

/// Whether a refusal names a field, or for the words to a template, one of those.
fn is_named(refusal: &str, name: &str, value: &str) -> bool {
    if names(refusal, name) {
        return true;
    }
    if name != "chat_template_kwargs" {
        return false;
    }
    let inner = Fields::read(value).map(|fields| fields.0.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
    let inner = inner.unwrap_or_default();
    let others = inner.iter().filter(|name| **name != "reasoning_effort");
    names(refusal, "chat_template") || others.into_iter().any(|name| names(refusal, name))
}

/// Whether a name stands in a text as a word of its own. `text` is in small letters.
fn names(text: &str, name: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let name = name.to_lowercase();
    !name.is_empty()
        && text
            .match_indices(&name)
            .any(|(at, _)| !text[..at].ends_with(is_of_name) && !text[at + name.len()..].starts_with(is_of_name))
}

/// The fields of messages that do not say what they say.
fn unusual(messages: &str) -> Vec<String> {
    let mut out = Vec::new();
    for message in serde_json::from_str::<Vec<&RawValue>>(messages).unwrap_or_default() {
        let fields = Fields::read(message.get()).map(|fields| fields.0).unwrap_or_default();
        fields.iter().filter(|(name, _)| !SAID.contains(&&**name)).for_each(|(name, _)| add(&mut out, name));
    }
    out
}

/// The messages without some fields; `None` where none has them.
fn without(messages: &str, names: &[String]) -> Option<String> {
    let all: Vec<&RawValue> = serde_json::from_str(messages).ok()?;
    let changes: Vec<(&str, Option<&str>)> = names.iter().map(|name| (name.as_str(), None)).collect();
    let mut changed = false;
    let mut out = String::with_capacity(messages.len());
    for message in all {
        let has = Fields::read(message.get()).is_ok_and(|fields| names.iter().any(|name| fields.get(name).is_some()));
        let written = has.then(|| json::with_fields(message.get(), &changes).ok()).flatten();
        changed |= written.is_some();
        let text = written.as_ref().map_or(Cow::Borrowed(message.get()), |bytes| String::from_utf8_lossy(bytes));
        out.push(if out.is_empty() { '[' } else { ',' });
        out.push_str(&text);
    }
    out.push(']');
    changed.then_some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What is sent in the end, where the server says `refusal` to the first try.
    fn mended(sent: &Value, refusal: &str, translated: bool) -> Option<Value> {
        let sent = sent.to_string();
        let known = Known::default().after(refusal.as_bytes(), &sent, translated)?;
        let spoken = known.spoken(&sent)?;
        assert!(!spoken.told.is_empty());
        Some(serde_json::from_slice(&spoken.body).unwrap())
    }

    #[test]
    fn an_effort_goes_to_the_nearest_that_there_is() {
        for (asked, levels, expect) in [
            ("xhigh", &["none", "low", "medium", "high"][..], Some("high")),
            ("ultra", &["none", "low", "medium", "high"], Some("high")),
            ("minimal", &["none", "low", "medium", "high"], Some("low")),
            ("none", &["low", "high"], Some("low")),
            ("none", &["none", "low"], Some("none")),
            ("medium", &["none"], Some("none")),
            ("high", &["xhigh", "max"], Some("xhigh")),
            ("hardest", &["low"], None),
        ] {
            assert_eq!(nearest(asked, levels), expect, "{asked}");
        }
    }

    #[test]
    fn what_servers_say_of_efforts_is_understood() {
        let field = |effort: &str| json!({"model": "m", "messages": [], "reasoning_effort": effort});
        for (refusal, expect) in [
            (
                "1 validation error: literal_error at body.reasoning_effort: Input should be 'none', 'low', 'medium' or 'high', input: 'xhigh'",
                Some("high"),
            ),
            (
                r#"{"detail":[{"type":"literal_error","loc":["body","reasoning_effort"],"msg":"Input should be 'low', 'medium' or 'high'","input":"xhigh"}]}"#,
                Some("high"),
            ),
            (
                r#"{"error":{"message":"Unsupported value: 'reasoning_effort' does not support 'xhigh' with this model. Supported values are: 'minimal', 'low'."}}"#,
                Some("low"),
            ),
            (r#"{"error":{"message":"Unrecognized request argument supplied: reasoning_effort"}}"#, None),
            (
                r#"{"object":"error","message":"[{'type': 'extra_forbidden', 'loc': ('body', 'reasoning_effort'), 'input': 'xhigh'}]"}"#,
                None,
            ),
            ("unknown field `reasoning_effort`, expected one of `model`, `messages`", None),
        ] {
            let got = mended(&field("xhigh"), refusal, false).unwrap();
            assert_eq!(got.get("reasoning_effort").and_then(Value::as_str), expect, "{refusal}");
        }
        let nested = json!({"messages": [], "reasoning": {"effort": "minimal", "summary": "auto"},
            "chat_template_kwargs": {"reasoning_effort": "minimal"}});
        let got = mended(&nested, "reasoning_effort: one of low, medium, high", false).unwrap();
        assert_eq!(got["reasoning"], json!({"effort": "low", "summary": "auto"}));
        assert_eq!(got["chat_template_kwargs"], json!({"reasoning_effort": "low"}));
        // The nearest was refused, too.
        let known = Known::default().after(b"effort: low or high", &field("max").to_string(), false).unwrap();
        let known = known.after(b"effort: no", &field("high").to_string(), false).unwrap();
        assert_eq!(known.effort, Effort::Unsaid);
        assert_eq!(known.after(b"effort: no", &field("high").to_string(), false), None);
        // About something else.
        assert_eq!(mended(&field("high"), "temperature must be at most 2", false), None);
    }

    #[test]
    fn fields_that_are_named_are_left_out() {
        let sent = json!({"model": "m", "messages": [{"role": "user", "content": "hi"},
            {"role": "assistant", "content": "x", "reasoning_content": "hm", "annotations": []}],
            "chat_template_kwargs": {"enable_thinking": false}, "think": false, "context_hint": {"x": 1}, "top_p": 1});
        let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        let listed = "[{'type': 'extra_forbidden', 'loc': ['body', 'chat_template_kwargs']}, {'loc': ['body', 'think']}, \
            {'loc': ['body', 'context_hint']}, {'loc': ['body', 'top_p']}, {'loc': ['body', 'messages', 1, 'reasoning_content']}]";
        let got = mended(&sent, listed, true).unwrap();
        assert_eq!(names(&got), "model messages top_p");
        assert_eq!(names(&got["messages"][1]), "role content annotations");
        // In the client's own words, what it says to this server is for it to say.
        assert_eq!(names(&mended(&sent, listed, false).unwrap()), "model messages context_hint top_p");
        for (refusal, expect) in [
            ("json: unknown field \"think\"", "model messages chat_template_kwargs context_hint top_p"),
            ("chat_template is not supported for Mistral tokenizers.", "model messages think context_hint top_p"),
            ("unexpected variable enable_thinking", "model messages think context_hint top_p"),
            (
                "property 'messages.1.assistant.annotations' is unsupported",
                "model messages chat_template_kwargs think context_hint top_p",
            ),
            ("Extra inputs are not permitted", "model messages context_hint top_p"),
        ] {
            assert_eq!(names(&mended(&sent, refusal, true).unwrap()), expect, "{refusal}");
        }
        for refusal in ["rethink this", "model m is not there", "top_p must be below 1", ""] {
            assert_eq!(mended(&sent, refusal, true), None, "{refusal}");
        }
    }

    #[test]
    fn an_ollama_says_what_a_model_can() {
        let cannot = br#"{"error":"\"m\" does not support thinking"}"#;
        let no_level = br#"{"error":"think value \"high\" is not supported for this model"}"#;
        let old =
            br#"{"error":"invalid think value: \"max\" (must be \"high\", \"medium\", \"low\", true, or false)"}"#;
        assert_eq!(Effort::Any.of_ollama(cannot, Some("high")), Some(Effort::Unsaid));
        assert_eq!(Effort::Any.of_ollama(no_level, Some("high")), Some(Effort::OnOff));
        assert_eq!(Effort::OnOff.of_ollama(no_level, Some("high")), Some(Effort::Unsaid));
        let levels = Effort::Any.of_ollama(old, Some("max")).unwrap();
        assert_eq!((levels.say("max"), levels.say("low")), (Say::Level("high"), Say::Asked));
        assert_eq!((Effort::Unsaid.of_ollama(cannot, None), Effort::Any.of_ollama(b"other", None)), (None, None));
    }
}
