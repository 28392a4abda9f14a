//! What clients call their sessions in the bodies of requests. Such a name stands for several histories at once (titles,
//! summaries, sub-agents), and anybody can send it: it only tells where to look first.

use serde_json::{Map, Value};

/// Longer ones are no names.
const LONGEST: usize = 200;

/// The session of a request, from the fields of its body: `prompt_cache_key` (Codex, Kimi Code, OpenHands), `metadata.session_id`,
/// or `metadata.user_id`, in which Claude Code puts its own as JSON, and earlier versions as `…_session_ID`.
pub fn session(fields: &Map<String, Value>) -> Option<String> {
    let key = fields.get("prompt_cache_key").and_then(Value::as_str).map(str::to_owned);
    let metadata = || {
        let metadata = fields.get("metadata")?;
        let named = metadata.get("session_id").and_then(Value::as_str).map(str::to_owned);
        named.or_else(|| of_user(metadata.get("user_id")?.as_str()?))
    };
    key.or_else(metadata).filter(|name| is_name(name))
}

fn of_user(user: &str) -> Option<String> {
    let told = serde_json::from_str::<Value>(user).ok();
    let told = told.and_then(|user| user.get("session_id")?.as_str().map(str::to_owned));
    told.or_else(|| user.rsplit_once("_session_").map(|(_, session)| session.to_owned()))
}

/// Whether a text can be the name of a session.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST && text.chars().all(|c| c.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_say_it_in_their_own_ways() {
        let of = |text: &str| session(&serde_json::from_str(text).unwrap());
        for (body, want) in [
            (r#"{"prompt_cache_key": "session_1"}"#, Some("session_1")),
            (r#"{"metadata": {"user_id": "{\"device_id\": \"d\", \"session_id\": \"s-2\"}"}}"#, Some("s-2")),
            (r#"{"metadata": {"user_id": "user_a_account__session_s3"}}"#, Some("s3")),
            (r#"{"metadata": {"session_id": "s4", "user_id": "x"}}"#, Some("s4")),
            (r#"{"metadata": {"user_id": "somebody"}}"#, None),
            (r#"{"metadata": "m", "prompt_cache_key": 3}"#, None),
            (r#"{"prompt_cache_key": "two\nlines"}"#, None),
            (r#"{"prompt_cache_key": ""}"#, None),
        ] {
            assert_eq!(of(body).as_deref(), want, "{body}");
        }
        assert_eq!(of(&format!("{{\"prompt_cache_key\": \"{}\"}}", "x".repeat(201))), None);
    }
}
