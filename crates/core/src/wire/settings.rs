//! Settings that hold whatever the client sends, in the bytes of a request. All else keeps its bytes.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::json::{self, Fields};
use crate::settings::{Settings, head, merge, remove};

/// Where clients of Ollama's say settings, too.
const OPTIONS: &str = "options";

impl Settings {
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
}
