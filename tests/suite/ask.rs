//! A question to one original: a model reads it whole, in parts, and what it names is there.

use serde_json::{Value, json};

use super::support::script::{NEEDLE, call, evicted, id_in, scripted, turn};
use super::support::*;

/// A server that answers questions about a text: with the line that holds the needle, where it is in the part that it sees.
fn reader(fake: &Fake) {
    fake.script(|seen| {
        let asked = seen.messages().last().map(|m| text(m).to_owned()).unwrap_or_default();
        if !asked.contains("write only NOT FOUND") {
            return Play::Usual;
        }
        let line = asked.lines().find(|line| line.contains(NEEDLE));
        let said = match line.and_then(|line| line.split(':').next()) {
            Some(number) => format!("At quarter past nine ({number}). Also L999999."),
            None => "NOT FOUND".to_owned(),
        };
        Play::Json(
            200,
            json!({"id": "q", "object": "chat.completion", "created": 1, "model": MODEL,
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}],
                "usage": {"prompt_tokens": tokens(&seen.json()), "completion_tokens": 12, "total_tokens": 0}}),
        )
    });
}

#[test]
fn an_original_is_read_whole_and_the_lines_named_exist() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    reader(&fake);
    let proxy = TestProxy::before(&fake);
    proxy.chat(&evicted()).ok();
    let id = id_in(&fake.last());
    let path = format!("/windowsill/records/{id}/ask");
    let answer =
        proxy.post(&path, &[], json!({"question": "When does the vault open?"}).to_string().as_bytes()).ok().json();
    assert!(answer["parts"].as_u64() > Some(1), "{answer}");
    assert_eq!(answer["lines"], answer["lines_read"], "all of it was read");
    assert_eq!(answer["answers"].as_array().unwrap().len(), 1);
    let lines: Vec<u64> = answer["answers"][0]["lines"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert_eq!(lines.len(), 1, "the line that is not there is not named: {answer}");
    let shown = answer["text"].as_str().unwrap();
    assert!(
        shown.contains(&format!("up0/{MODEL} read all")) && shown.contains(&format!("L{}: {NEEDLE}", lines[0])),
        "{shown}"
    );
    assert!(tokens(&json!({"messages": [{"role": "user", "content": shown}]})) < 200);
    // No question saw the conversation.
    let asked: Vec<Seen> = fake.all().into_iter().filter(|s| s.json()["max_tokens"] == 256).collect();
    assert!(
        !asked.is_empty()
            && asked.iter().all(|s| s.messages().len() == 1 && !s.json().to_string().contains("Read it."))
    );
    let events =
        proxy.eventually("/windowsill/events?kind=question", |v| v["events"].as_array().is_some_and(|e| !e.is_empty()));
    assert!(!events.to_string().contains("vault"), "no text in the trace");
    let conversation = events["events"][0]["conversation"].as_str().unwrap();
    let shown = String::from_utf8(proxy.cli(&["context", conversation]).stdout).unwrap();
    assert!(shown.contains("for a question: "), "{shown}");
    for (body, status) in [("{}", 400), ("{\"question\": \" \"}", 400), ("{\"questions\": 1}", 400)] {
        assert_eq!(proxy.post(&path, &[], body.as_bytes()).status, status, "{body}");
    }
    let gone = proxy.post("/windowsill/records/r000000000000/ask", &[], b"{\"question\": \"Why?\"}");
    assert_eq!(gone.status, 404);
}

#[test]
fn a_model_asks_the_digest_model_instead_of_reading() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let other = Fake::start(Kind::LlamaServer, 4096);
    other.set(|s| s.model = "tiny".into());
    reader(&other);
    let toml = "[context]\nbackground = false\ndigest_model = 'up1/tiny'\n";
    let proxy = TestProxy::with(&[fake.url(), other.url()], toml);
    scripted(&fake, 1 << 20, |round, seen| match round {
        0 => turn("", vec![call(json!({"id": id_in(seen), "question": "When does the vault open?"}))]),
        _ => turn("At quarter past nine.", vec![]),
    });
    proxy.chat(&evicted()).ok();
    let result = fake.last().messages().last().map(|m| text(m).to_owned()).unwrap();
    assert!(result.contains("up1/tiny read all") && result.contains(NEEDLE), "{result}");
    assert!(result.len() < 1_000, "{}", result.len());
}
