//! Ollama's `/api/generate`: clients that go on by its `context` go on with the whole conversation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::support::*;

/// What a client reads of a reply, whole or streamed: all its words, and the last line.
fn read(answer: &Answer) -> (String, Value) {
    let lines: Vec<Value> = answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let words = lines.iter().filter_map(|line| line["response"].as_str()).collect();
    (words, lines.last().unwrap().clone())
}

fn generate(proxy: &TestProxy, body: &Value) -> Answer {
    proxy.post("/api/generate", &[], body.to_string().as_bytes())
}

#[test]
fn a_conversation_goes_on_by_its_context_over_a_restart() {
    for (kind, streamed) in [(Kind::LlamaServer, true), (Kind::LlamaServer, false), (Kind::Ollama, true)] {
        let fake = Fake::start(kind, 4096);
        let mut proxy = TestProxy::before(&fake);
        let mut said = vec![json!({"role": "system", "content": "Be terse."})];
        let (mut context, mut ids) = (Value::Null, Vec::new());
        for (turn, prompt) in ["My name is Zoë.", "What is it?", "Spell it."].into_iter().enumerate() {
            // Real clients send the system prompt once, or each time.
            let system = if turn == 1 { Value::Null } else { json!("Be terse.") };
            let asked =
                json!({"model": MODEL, "prompt": prompt, "system": system, "context": context, "stream": streamed});
            let answer = generate(&proxy, &asked).ok();
            ids.push(answer.header("x-windowsill-conversation").unwrap().to_owned());
            said.push(json!({"role": "user", "content": prompt}));
            let forwarded: Vec<Value> =
                fake.last().messages().iter().map(|m| json!({"role": m["role"], "content": m["content"]})).collect();
            assert_eq!(forwarded, said, "{kind:?}, streamed {streamed}, turn {turn}");
            let (words, last) = read(&answer);
            assert_eq!(last["done"], true);
            context = last["context"].clone();
            assert!(
                context.as_array().unwrap().iter().all(|n| n.as_i64().is_some_and(|n| n <= 0xff_ff_ff)),
                "{context}"
            );
            said.push(json!({"role": "assistant", "content": words}));
            if turn == 0 {
                let dir = proxy.stop();
                proxy = TestProxy::at(Arc::clone(&dir), &[fake.url()], "");
            }
        }
        ids.dedup();
        assert_eq!(ids.len(), 1, "one conversation");
        assert_eq!(
            proxy.get("/windowsill/conversations").ok().json()["conversations"].as_array().map(Vec::len),
            Some(1)
        );
    }
}

#[test]
fn the_context_of_an_ollama_is_the_ollamas() {
    let ollama = Fake::start(Kind::Ollama, 4096);
    let proxy = TestProxy::before(&ollama);
    let asked = json!({"model": MODEL, "prompt": "And now?", "context": [128_006, 882, 128_007, 271], "stream": false});
    generate(&proxy, &asked);
    let seen = ollama.all().into_iter().rev().find(|seen| seen.path() == "/api/generate").unwrap();
    assert_eq!(String::from_utf8_lossy(&seen.body), asked.to_string(), "untouched");

    let other = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&other);
    let answer = generate(&proxy, &asked);
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(answer.status == 400 && error.contains("`context` holds the tokens of an Ollama"), "{error}");

    let first = json!({"model": MODEL, "prompt": "Hello.", "stream": false});
    let context = read(&generate(&proxy, &first).ok()).1["context"].clone();
    let (mut cut, mut raw) = (asked.clone(), asked.clone());
    cut["context"] = context.as_array().unwrap()[..9].to_vec().into();
    (raw["context"], raw["raw"]) = (context, json!(true));
    for (asked, what) in [(cut, "is not whole"), (raw, "leave out `raw`")] {
        let answer = generate(&proxy, &asked);
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && error.contains(what), "{error}");
    }
    assert_eq!(other.mains().len(), 1, "what is refused reaches nobody");
}
