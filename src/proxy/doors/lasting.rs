//! For how long an Ollama keeps a model loaded: a client may say it by `keep_alive`, and that concerns everybody.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::wire::json::{Fields, mended, with_fields};

/// A body without its `keep_alive`, in whatever case: an Ollama takes any. `None` where it asks for nothing but to unload a model
/// (docs.ollama.com/api: an empty prompt or no messages, and a `keep_alive` of 0).
pub fn without_keep_alive(body: Bytes) -> Option<Bytes> {
    let text = mended(&body);
    let Ok(fields) = Fields::read(&text) else { return Some(body) };
    // Not by its bytes: a name may be written with escapes.
    let said: Vec<&(Cow<'_, str>, &RawValue)> =
        fields.0.iter().filter(|(name, _)| name.to_lowercase() == "keep_alive").collect();
    if said.is_empty() {
        return Some(body);
    }
    let is_over = said.iter().any(|(_, lasts)| lasts.get().trim_start_matches('"').starts_with('0'));
    if is_over && asks_nothing(&fields) {
        return None;
    }
    let changes: Vec<(&str, Option<&str>)> = said.iter().map(|(name, _)| (name.as_ref(), None)).collect();
    let without = with_fields(&text, &changes);
    Some(without.unwrap_or_else(|_| body.clone()))
}

fn asks_nothing(fields: &Fields<'_>) -> bool {
    let empty = |name: &str| fields.get(name).is_none_or(|raw| matches!(raw.trim(), "null" | "\"\"" | "[]"));
    ["prompt", "messages", "input", "images", "suffix"].into_iter().all(empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(body: &str) -> Option<String> {
        without_keep_alive(Bytes::from(body.to_owned())).map(|left| String::from_utf8(left.to_vec()).unwrap())
    }

    #[test]
    fn how_long_a_model_stays_is_left_out_and_the_rest_keeps_its_bytes() {
        for (body, kept) in [
            (r#"{"model":"m","prompt":"hi","keep_alive":0}"#, r#"{"model":"m","prompt":"hi"}"#),
            (r#"{"model":"m","keep_alive":"5m"}"#, r#"{"model":"m"}"#),
            (r#"{"model":"m","prompt":"hi","keep\u005falive":0,"KEEP_ALIVE":0}"#, r#"{"model":"m","prompt":"hi"}"#),
            (r#"{"model":"m","prompt":"\ud83d","keep_alive":0}"#, r#"{"model":"m","prompt":"\ufffd"}"#),
            (r#"{"model":"m","messages":[{"role":"user","content":"keep_alive"}],"seed":1.50}"#, r#""seed":1.50}"#),
            ("no JSON keep_alive", "no JSON keep_alive"),
        ] {
            assert!(left(body).unwrap().contains(kept), "{body}: {:?}", left(body));
        }
        for unloads in [
            r#"{"model":"m","keep_alive":0}"#,
            r#"{"model":"m","messages":[],"keep_alive":"0s"}"#,
            r#"{"model":"m","prompt":"","keep_alive": 0.0}"#,
            r#"{"model":"m","\u212Aeep_alive":0}"#,
        ] {
            assert_eq!(left(unloads), None, "{unloads}");
        }
    }
}
