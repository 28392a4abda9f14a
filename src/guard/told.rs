//! What an event of a guardrail says, in words for people: one place, for the terminal and the page.

use serde_json::Value;

/// What an event says; `None` for one of another kind.
pub fn told(kind: &str, data: &Value) -> Option<String> {
    let n = |key: &str| data[key].as_u64().unwrap_or(0);
    let text = |key: &str| data[key].as_str().unwrap_or("-").chars().filter(|c| !c.is_control()).collect::<String>();
    Some(match kind {
        "ceiling" => format!("{}: {} of {}; {}", text("key"), n("spent"), n("most"), text("action")),
        "resumed" => {
            let n = data["turn"]["requests"].as_u64().unwrap_or(0);
            format!("goes on after {n} request{} of its turn", if n == 1 { "" } else { "s" })
        }
        "loop" => format!(
            "loop ({}): {} times in {} calls, last of {}; {}",
            text("kind"),
            n("times"),
            n("calls"),
            text("tool"),
            text("action")
        ),
        "small_model" => {
            // As the client was told: what of it is too much.
            let (prompt, holds) = (n("prompt_tokens"), n("holds"));
            let long = (prompt > holds && holds > 0).then(|| format!("a prompt of {prompt} tokens (it holds {holds})"));
            let tools = (data["tools"] == true || long.is_none()).then(|| "tools to call".to_owned());
            let much: Vec<String> = tools.into_iter().chain(long).collect();
            let refused = if data["action"] == "refuse" { ", and the request was refused" } else { "" };
            format!("a model below 3 billion parameters got {}{refused}", much.join(" and "))
        }
        "not_summarized" => format!("no model wrote the brief: {}", text("because")),
        "task" if data["how"] == "told" => {
            format!("task {}, told from {} words (the next task has {})", text("task"), n("cues"), n("next"))
        }
        "task" if data["before"].is_string() => {
            format!("task {}, named by the request; it was {}", text("task"), text("before"))
        }
        "task" => format!("task {}, named by the request or the config", text("task")),
        "checkpoint" => {
            let by = if data["by"] == "model" { ", said by the model" } else { "" };
            format!("checkpoint: a task of {} messages is done{by}; kept as {}", n("messages"), text("record"))
        }
        "rule" => format!("rule {} {}", n("rule"), text("action")),
        "rules_applied" => {
            let rules = data["rules"].as_array().map_or(0, Vec::len);
            format!("rules: {rules} of this project, {} tokens; {} found no room", n("tokens"), n("left_out"))
        }
        "question" => {
            let (answers, read, lines) = (n("answers"), n("lines_read"), n("lines"));
            let found = if answers == 1 { "1 answer".to_owned() } else { format!("{answers} answers") };
            format!("{} read {read} of {lines} lines of {} for a question: {found}", text("by"), text("record"))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_has_words_and_no_control_characters() {
        let kinds = [
            "ceiling",
            "resumed",
            "loop",
            "small_model",
            "not_summarized",
            "task",
            "checkpoint",
            "rule",
            "rules_applied",
            "question",
        ];
        for kind in kinds {
            assert!(told(kind, &json!({})).is_some_and(|words| !words.is_empty()), "{kind}");
        }
        let data = json!({"key": "turn\u{1b}[31m_tokens", "spent": 5, "most": 4, "action": "warn"});
        let words = told("ceiling", &data).unwrap();
        assert!(words.ends_with(": 5 of 4; warn") && !words.contains('\u{1b}'), "{words}");
        let done = json!({"messages": 12, "by": "model", "record": "r1"});
        let words = told("checkpoint", &done).unwrap();
        assert_eq!(words, "checkpoint: a task of 12 messages is done, said by the model; kept as r1");
        let asked = json!({"record": "r2", "by": "local/qwen3", "lines_read": 900, "lines": 1000, "answers": 1});
        assert_eq!(
            told("question", &asked).unwrap(),
            "local/qwen3 read 900 of 1000 lines of r2 for a question: 1 answer"
        );
        let named = json!({"task": "debug", "how": "named", "before": "review"});
        assert_eq!(told("task", &named).unwrap(), "task debug, named by the request; it was review");
        let small = json!({"tools": true, "prompt_tokens": 240, "holds": 8_192, "action": "warn"});
        assert_eq!(told("small_model", &small).unwrap(), "a model below 3 billion parameters got tools to call");
        assert_eq!(told("model_usage", &done), None);
    }
}
