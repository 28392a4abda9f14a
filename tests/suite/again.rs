//! A request is sent again with another brief, focus or line. Both answers come back, and the conversation stays as it was.

use serde_json::{Value, json};

use super::support::*;

const LINE: &str = "[context]\nbackground = false\nfold_at = \"line\"\nsummarize_at = 0.6\nsummarize_to = 0.3\n";

/// A conversation that was folded, its id, and the messages of its last request.
fn folded(fake: &Fake) -> (TestProxy, String, usize) {
    let proxy = TestProxy::with(&[fake.url()], LINE);
    let mut sent = chat().system("You mend fences.").user("Paint the fence. It is 12 yards long.").tools();
    for n in 0..40 {
        sent = sent.step(n, &prose(n as u64 + 1, 900));
        let answer = proxy.chat(&sent).ok();
        if answer.action().contains("summarize") {
            let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
            let messages = sent.value()["messages"].as_array().unwrap().len() - 1;
            // A reply may arrive before what it cost is on record.
            proxy.eventually(&format!("/windowsill/conversations/{id}"), |row| {
                row["state"]["messages"] == messages && row["state"]["spend"]["requests"] == n + 1
            });
            return (proxy, id, messages);
        }
    }
    panic!("it was never folded");
}

#[test]
fn it_goes_with_the_fields_of_the_last_request() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let (proxy, id, messages) = folded(&fake);
    let mut sent = chat().system("You mend fences.").user("Paint the fence. It is 12 yards long.").tools();
    for n in 0..40 {
        sent = sent.step(n, &prose(n as u64 + 1, 900));
        if sent.value()["messages"].as_array().unwrap().len() > messages {
            break;
        }
    }
    for (at, most) in [61, 62].into_iter().enumerate() {
        let body = sent.clone().with("max_tokens", json!(most)).with("temperature", json!(0.25 + at as f64)).body();
        let answer = proxy.post("/v1/chat/completions", &[], &body).ok();
        assert_eq!(answer.header("x-windowsill-conversation"), Some(id.as_str()));
        again(&proxy, &id, &json!({"brief": "The fence is BLUE."})).ok();
        let forwarded = fake.last().json();
        assert_eq!((&forwarded["max_tokens"], &forwarded["temperature"]), (&json!(most), &json!(0.25 + at as f64)));
    }
}

fn again(proxy: &TestProxy, id: &str, other: &Value) -> Answer {
    proxy.post(&format!("/windowsill/conversations/{id}/again"), &[], other.to_string().as_bytes())
}

/// All that is kept of a conversation, but for what models were asked.
fn kept(proxy: &TestProxy, id: &str) -> Vec<Value> {
    let mut all: Vec<Value> = ["", "/view", "/messages", "/pins"]
        .iter()
        .map(|what| proxy.get(&format!("/windowsill/conversations/{id}{what}")).ok().json())
        .collect();
    let events = proxy.get("/windowsill/events").ok().json();
    let events = events["events"].as_array().unwrap().iter().filter(|e| e["data"]["role"] != "summary");
    all.push(events.map(|event| event["kind"].clone()).collect());
    all
}

#[test]
fn both_answers_come_back_and_nothing_of_it_is_kept() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::Vllm] {
        let fake = Fake::start(kind, 4096);
        let (proxy, id, messages) = folded(&fake);
        let before = kept(&proxy, &id);
        let first = fake.last().json();
        fake.script(|seen| {
            if !seen.is_main() {
                return Play::Usual;
            }
            let said = json!({"role": "assistant", "content": "Another answer."});
            match seen.path() {
                "/api/chat" => Play::Json(
                    200,
                    json!({"model": MODEL, "message": said, "done": true, "done_reason": "stop",
                    "prompt_eval_count": 700, "eval_count": 3}),
                ),
                _ => Play::Json(
                    200,
                    json!({"id": "c", "object": "chat.completion", "created": 1, "model": MODEL,
                    "choices": [{"index": 0, "finish_reason": "stop", "message": said}],
                    "usage": {"prompt_tokens": 700, "completion_tokens": 3, "total_tokens": 703}}),
                ),
            }
        });
        // Another brief: the rest of the prompt is as it was, with its system prompt and tools.
        let told = again(&proxy, &id, &json!({"brief": "The fence is BLUE."})).ok().json();
        assert_eq!(
            (&told["answer"]["content"], &told["prompt_tokens"]),
            (&json!("Another answer."), &json!(700)),
            "{kind:?}: {told}"
        );
        assert_eq!((&told["messages"], &told["has_head"]), (&json!(messages), &json!(true)));
        let recorded = told["recorded"]["content"].as_str().unwrap();
        assert!(!recorded.is_empty() && recorded != "Another answer.", "{kind:?}: {told}");
        let sent = fake.last().json();
        let (was, is) = (first["messages"].as_array().unwrap(), sent["messages"].as_array().unwrap());
        assert_eq!((was.len(), &was[0], was.last()), (is.len(), &is[0], is.last()), "{kind:?}");
        assert!(sent["messages"].to_string().contains("The fence is BLUE.") && sent["stream"] != json!(true), "{sent}");
        assert!(!sent["messages"].to_string().contains("MARKER-SUMMARY"), "{sent}");
        assert!(!sent["tools"].as_array().unwrap().is_empty(), "{sent}");
        // Another focus: a model writes the brief with it.
        let told = again(&proxy, &id, &json!({"focus": "the roses"})).ok().json();
        assert_eq!(told["written_by_a_model"], json!(true), "{kind:?}: {told}");
        let asked = fake.summaries();
        assert!(String::from_utf8_lossy(&asked.last().unwrap().body).contains("the roses"), "{kind:?}");
        assert!(fake.last().json()["messages"].to_string().contains("MARKER-SUMMARY"));
        // Another line: at a lower one less is left, and a request in between is taken as it was then.
        let size = |line: f64| {
            again(&proxy, &id, &json!({"line": line})).ok();
            tokens(&fake.last().json())
        };
        assert!(size(0.2) <= size(0.5), "{kind:?}");
        let earlier = again(&proxy, &id, &json!({"messages": messages - 4, "line": 0.1})).ok().json();
        assert_eq!(
            (&earlier["messages"], &earlier["recorded"]["role"]),
            (&json!(messages - 4), &json!("assistant")),
            "{earlier}"
        );
        assert_eq!(kept(&proxy, &id), before, "{kind:?}");
        // After a restart, the system prompt and the tools are not known, and that is said.
        let proxy = TestProxy::at(proxy.stop(), &[fake.url()], LINE);
        let told = again(&proxy, &id, &json!({"brief": "The fence is BLUE."})).ok().json();
        assert_eq!(told["has_head"], json!(false));
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let (proxy, id, messages) = folded(&fake);
    let cases = [
        (400, json!({})),
        (400, json!({"line": 0.0})),
        (400, json!({"line": 1.5})),
        (400, json!({"brief": "a", "focus": "b"})),
        (400, json!({"brief": "  "})),
        (400, json!({"focus": "f".repeat(100_000)})),
        (404, json!({"messages": messages + 1, "line": 0.5})),
        (404, json!({"messages": 0, "line": 0.5})),
        (409, json!({"messages": 1, "line": 0.9})),
    ];
    let sent = fake.count();
    for (status, other) in cases {
        let answer = again(&proxy, &id, &other);
        assert_eq!(answer.status, status, "{other}: {}", answer.text());
        assert!(!answer.error().1.is_empty());
    }
    assert_eq!(fake.count(), sent, "nothing was asked");
    // What the server refuses is said in its words.
    fake.script(|seen| if seen.is_main() { Play::Json(400, too_long(5000, 4096)) } else { Play::Usual });
    let refused = again(&proxy, &id, &json!({"brief": "All done."}));
    assert_eq!(refused.status, 502);
    assert!(refused.error().1.contains("exceeds the available context size"), "{}", refused.text());
}
