//! Events of the trace as lines for people: `windowsill context --follow`, and the list in `windowsill top`.

use serde_json::Value;
use windowsill::plain;
use windowsill::proxy::{sentence_of, told};

use super::paint::{grouped_in, tokens};

/// An event in one line: when (UTC), whose, what.
pub(super) fn event_line(event: &Value) -> String {
    let seconds = event["time_ms"].as_i64().unwrap_or(0).div_euclid(1000).rem_euclid(86_400);
    let time = format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let whose = event["conversation"].as_str().unwrap_or("-");
    let kind = event["kind"].as_str().unwrap_or("");
    plain::line(&format!("{time}  {whose:<14} {}", what_happened(kind, &event["data"]))).into_owned()
}

/// What an event says, for people.
fn what_happened(kind: &str, data: &Value) -> String {
    let text = |key: &str| plain::line(data[key].as_str().unwrap_or("")).into_owned();
    let n = |key: &str| tokens(&data[key]);
    match kind {
        "context_compaction" => sentence_of(data),
        "model_usage" => usage(data),
        "gives_way" => format!("a client's helper waits for {}, which works for people", text("upstream")),
        "waits_for_room" => format!("waits until {} has room for about {} tokens", text("upstream"), n("tokens")),
        "failover" => format!("{} did not answer it ({}): another server was asked", text("upstream"), text("because")),
        "request_failed" => {
            let why = data["reason"].as_str().or(data["code"].as_str()).unwrap_or("no reason was given");
            format!("request failed with {}: {}", data["status"], plain::line(why))
        }
        "steered" => steered(data),
        "recall" => match data["outcome"].as_str() {
            Some("found") => format!("the model read about {} tokens back", n("tokens")),
            _ => "the model looked for something that had left its prompt, and got nothing".to_owned(),
        },
        "recalled_ahead" => {
            format!("about {} tokens came back by themselves, behind message {}", n("tokens"), n("message"))
        }
        "missed" => format!("message {} reads again what had left the prompt (message {})", n("message"), n("of")),
        "model_changed" => format!("goes on with {} of {}; it was {}", text("model"), text("upstream"), text("was")),
        "window_changed" => {
            format!("the window of {} is {} tokens now; it was {}", text("model"), n("window"), n("was"))
        }
        "usage_doubted" => {
            format!(
                "the server reported {} tokens of a prompt of about {}",
                n("prompt_tokens"),
                n("planned_prompt_tokens")
            )
        }
        "silent_truncation" => format!(
            "the server read {} tokens of a prompt of about {}: it drops messages and says nothing",
            n("prompt_tokens"),
            n("planned_prompt_tokens")
        ),
        "count_mismatch" => {
            format!(
                "the server counts {} tokens where the model's vocabulary gives {}",
                n("server_tokens"),
                n("own_tokens")
            )
        }
        kind => told(kind, data).map_or_else(|| in_pairs(kind, data), |told| grouped_in(&told)),
    }
}

/// What a request, or a question of ours to a model, took.
fn usage(data: &Value) -> String {
    let text = |key: &str| plain::line(data[key].as_str().unwrap_or("")).into_owned();
    let cached = match &data["cached_tokens"] {
        Value::Null => String::new(),
        cached => format!(", {} of them cached", tokens(cached)),
    };
    let seconds = data["milliseconds"].as_f64().unwrap_or(0.0) / 1000.0;
    // What a call was for.
    let role = match data["role"].as_str().unwrap_or("") {
        "main" => "reply",
        "summary" => "brief",
        "prefill" => "read ahead",
        other => other,
    };
    let role = plain::line(role);
    if data["prompt_tokens"].is_null() && data["completion_tokens"].is_null() {
        let how = if data["used"] == false { "broken off or of no use" } else { "the server told no counts" };
        return format!("{role}: {how}, {seconds:.1} s");
    }
    let (prompt, said) = (tokens(&data["prompt_tokens"]), tokens(&data["completion_tokens"]));
    // Where several servers have the model: which one it was, and why.
    let because = data["route"]["because"].as_str();
    let by = because.map_or_else(String::new, |because| format!(", by {} ({because})", text("upstream")));
    format!("{role}: {prompt} tokens in{cached}, {said} out, {seconds:.1} s{by}")
}

/// What somebody changed of a conversation, or wants changed.
fn steered(data: &Value) -> String {
    let what = match data["action"].as_str().unwrap_or("") {
        "pin" => "something was pinned",
        "unpin" => "a pin was taken back",
        "pause" => "rewriting was stopped",
        "unpause" => "rewriting goes on",
        "tools" => "how its tools are listed was set",
        "forget" => "what waited for the next rewrite was taken back",
        "useful" => "what came back by itself helps after all",
        "not_useful" => "what came back by itself does not help",
        "restore" => "a message is to come back in full",
        "clear" => "a result is to be cleared",
        "evict" => "a result is to become a preview",
        "brief" => "the brief is to be another one",
        "focus" => "the next brief has a focus",
        other => return format!("somebody asked for a change: {}", plain::line(other)),
    };
    // A focus is for the next brief whenever that comes.
    let waits = if data["when"] == "next_break" && data["action"] != "focus" { ", with the next rewrite" } else { "" };
    format!("{what}{waits}")
}

/// An event that has no words of its own: its kind, and what it says in single figures and words.
fn in_pairs(kind: &str, data: &Value) -> String {
    let single = |(key, value): (&String, &Value)| {
        let value = match value {
            Value::String(text) => plain::line(text).into_owned(),
            Value::Number(_) if value.is_u64() => tokens(value),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            _ => return None,
        };
        Some(format!("{} {value}", key.replace('_', " ")))
    };
    let pairs: Vec<String> = data.as_object().into_iter().flatten().filter_map(single).collect();
    let kind = kind.replace('_', " ");
    if pairs.is_empty() { kind } else { format!("{kind}: {}", pairs.join(", ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// People read words, and no JSON.
    #[test]
    fn every_event_is_told_in_words() {
        let kinds = "steered recall recalled_ahead missed model_changed window_changed usage_doubted silent_truncation count_mismatch \
            waits_for_room tools_listed tools_told system_indexed shadow task small_model something_new";
        let data =
            json!({"action": "pin", "when": "next_break", "tokens": 1_234, "of": [1], "deep": {"a": 1}, "model": "m"});
        for kind in kinds.split_whitespace() {
            let told = what_happened(kind, &data);
            assert!(!told.is_empty() && !told.contains(['{', '"', '[']), "{kind}: {told}");
        }
        assert_eq!(what_happened("steered", &data), "something was pinned, with the next rewrite");
        let new = what_happened("something_new", &data);
        assert_eq!(new, "something new: action pin, when next_break, tokens 1,234, model m");
    }
}
