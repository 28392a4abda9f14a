//! Settings of a request that hold whatever the client sends: some are set, some are stripped. All else keeps its bytes.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::json::{self, Fields};

/// Fields of a request that are never settings: they are what is asked, or how the reply comes.
pub const NO_SETTINGS: [&str; 10] =
    ["model", "messages", "stream", "stream_options", "tools", "tool_choice", "functions", "n", "input", "prompt"];

/// Names of one setting: where one is set or stripped, the other ones of the client's would speak against it.
const SAME: [&[&str]; 2] =
    [&["max_tokens", "max_completion_tokens", "num_predict", "n_predict"], &["repeat_penalty", "repetition_penalty"]];

/// Where clients of Ollama's say settings, too.
const OPTIONS: &str = "options";

/// What is set and stripped.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// Names and values. An object is set field by field within the client's own.
    pub set: Map<String, Value>,
    /// Names of what is left out; `chat_template_kwargs.enable_thinking` is one field of an object.
    pub strip: Vec<String>,
}

impl Settings {
    /// Whether nothing is set or stripped.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.strip.is_empty()
    }

    /// Takes over what another place says, which counts where both say something.
    pub fn add(&mut self, other: &Settings) {
        self.strip.retain(|name| !other.set.contains_key(name));
        for name in &other.strip {
            remove(&mut self.set, name);
            if !self.strip.contains(name) {
                self.strip.push(name.clone());
            }
        }
        merge(&mut self.set, &other.set);
    }

    /// The request with these settings; `None` where it has them, or is no object.
    pub fn applied(&self, body: &str) -> Option<Bytes> {
        let fields = Fields::read(body).ok()?;
        let gone = self.gone();
        let touched =
            |name: &str| name == OPTIONS || self.set.contains_key(name) || gone.iter().any(|gone| head(gone) == name);
        let mut now = Map::new();
        for (name, value) in fields.0.iter().filter(|(name, _)| touched(name)) {
            now.insert(name.to_string(), json::value(value.get()).ok()?);
        }
        let before = now.clone();
        for name in gone {
            remove(&mut now, name);
            remove(&mut now, &format!("{OPTIONS}.{name}"));
        }
        merge(&mut now, &self.set);
        let spelled: Vec<(&str, Option<String>)> = before
            .keys()
            .chain(now.keys().filter(|name| !before.contains_key(*name)))
            .filter(|name| before.get(*name) != now.get(*name))
            .map(|name| (name.as_str(), now.get(name).map(Value::to_string)))
            .collect();
        if spelled.is_empty() {
            return None;
        }
        let changes: Vec<(&str, Option<&str>)> =
            spelled.iter().map(|(name, value)| (*name, value.as_deref())).collect();
        json::with_fields(body, &changes).ok()
    }

    /// What of a client's does not hold: what is stripped, and the other names of what is set.
    fn gone(&self) -> Vec<&str> {
        // Of an object, what is not set stays.
        let set = self.set.iter().filter(|(_, value)| !value.is_object()).map(|(name, _)| name.as_str());
        let mut out: Vec<&str> = self.strip.iter().map(String::as_str).chain(set).collect();
        let same = SAME.into_iter().filter(|names| names.iter().any(|name| out.contains(name))).flatten();
        let same: Vec<&str> = same.copied().collect();
        out.extend(same);
        out
    }
}

/// The field of a request that a name is about.
fn head(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Puts values over others, objects field by field.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            _ => drop(into.insert(name.clone(), value.clone())),
        }
    }
}

/// Takes a field away, and the object that has nothing left without it.
fn remove(from: &mut Map<String, Value>, name: &str) {
    let Some((outer, inner)) = name.split_once('.') else {
        from.shift_remove(name);
        return;
    };
    if let Some(Value::Object(object)) = from.get_mut(outer) {
        remove(object, inner);
        if object.is_empty() {
            from.shift_remove(outer);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(set: Value, strip: &[&str]) -> Settings {
        let Value::Object(set) = set else { panic!() };
        Settings { set, strip: strip.iter().map(ToString::to_string).collect() }
    }

    fn applied(settings: &Settings, body: &str) -> Option<String> {
        settings.applied(body).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn what_is_set_holds_and_the_rest_keeps_its_bytes() {
        let to = settings(
            json!({"temperature": 0.6, "chat_template_kwargs": {"enable_thinking": false}}),
            &["top_k", "options.mirostat"],
        );
        for (body, expect) in [
            (
                r#"{"model":"m",  "messages":[ ]}"#,
                r#"{"model":"m","messages":[ ],"temperature":0.6,"chat_template_kwargs":{"enable_thinking":false}}"#,
            ),
            (
                r#"{"temperature":1.0,"messages":[1e2],"top_k":3,"chat_template_kwargs":{"x":1,"enable_thinking":true},"options":{"mirostat":1}}"#,
                r#"{"temperature":0.6,"messages":[1e2],"chat_template_kwargs":{"x":1,"enable_thinking":false}}"#,
            ),
            (
                r#"{"options":{"mirostat":1,"seed":2},"chat_template_kwargs":7,"temperature":0.6}"#,
                r#"{"options":{"seed":2},"chat_template_kwargs":{"enable_thinking":false},"temperature":0.6}"#,
            ),
        ] {
            let got = applied(&to, body).unwrap();
            assert_eq!(got, expect);
            assert_eq!(applied(&to, &got), None, "applied once is applied");
        }
        assert_eq!(applied(&to, "[1]"), None);
        assert_eq!(applied(&Settings::default(), r#"{"temperature":1}"#), None);
        // One setting of two names.
        let most = settings(json!({"max_tokens": 9}), &[]);
        assert_eq!(applied(&most, r#"{"max_completion_tokens":5}"#).unwrap(), r#"{"max_tokens":9}"#);
        assert_eq!(applied(&most, r#"{"max_tokens":5}"#).unwrap(), r#"{"max_tokens":9}"#);
        assert_eq!(applied(&most, r#"{"max_tokens":9}"#), None);
    }

    /// Clients of Ollama's say in `options` what others say beside it.
    #[test]
    fn what_is_said_in_options_does_not_hold_either() {
        let to = settings(json!({"temperature": 0.6, "max_tokens": 9}), &["top_k"]);
        let body = r#"{"temperature":1,"options":{"temperature":1,"top_k":4,"num_predict":7,"mirostat":1}}"#;
        assert_eq!(applied(&to, body).unwrap(), r#"{"temperature":0.6,"options":{"mirostat":1},"max_tokens":9}"#);
        assert_eq!(
            applied(&to, r#"{"options":{"top_k":4},"temperature":0.6,"max_tokens":9}"#).unwrap(),
            r#"{"temperature":0.6,"max_tokens":9}"#
        );
        let own = settings(json!({"options": {"mirostat": 2}, "temperature": 0.6}), &[]);
        assert_eq!(
            applied(&own, r#"{"options":{"temperature":1,"x":1}}"#).unwrap(),
            r#"{"options":{"x":1,"mirostat":2},"temperature":0.6}"#
        );
    }

    #[test]
    fn a_nearer_place_counts() {
        let mut all = settings(json!({"temperature": 1, "options": {"a": 1, "b": 2}}), &["top_k", "seed"]);
        all.add(&settings(json!({"top_k": 5, "options": {"b": 3}}), &["temperature"]));
        assert_eq!(all, settings(json!({"options": {"a": 1, "b": 3}, "top_k": 5}), &["seed", "temperature"]));
    }
}
