//! Several clients on one server: what a person waits for goes before what a client asks for by itself.

use serde_json::{Value, json};

use super::support::*;

/// What Open WebUI asks for a title with.
const TITLE: &str = "### Task:\nGenerate a concise title.\n### Guidelines:\n- Be short.\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>";

/// The request for a title, in each dialect.
fn titles() -> [(&'static str, Value); 4] {
    let said = json!([{"role": "user", "content": TITLE}]);
    [
        ("/v1/chat/completions", json!({"model": MODEL, "messages": said})),
        ("/v1/messages", json!({"model": MODEL, "max_tokens": 32, "messages": said})),
        ("/v1/responses", json!({"model": MODEL, "input": TITLE})),
        ("/api/chat", json!({"model": MODEL, "messages": said, "stream": false})),
    ]
}

fn says(seen: &Seen, words: &str) -> bool {
    seen.is_main() && String::from_utf8_lossy(&seen.body).contains(words)
}

#[test]
fn a_title_waits_while_a_person_does() {
    for (path, title) in titles() {
        let fake = Fake::start(Kind::LlamaServer, 8192);
        let gate = Gate::default();
        let held = gate.clone();
        fake.script(move |seen| match says(seen, "garden") || says(seen, "kitchen") {
            true => Play::Wait(held.clone(), Box::new(Play::Usual)),
            false => Play::Usual,
        });
        let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
        // Nobody waits: it is answered at once.
        let json = [("Content-Type", "application/json")];
        let ask = |title: &Value| request(proxy.address, "POST", path, &json, title.to_string().as_bytes());
        assert_eq!(ask(&title).status, 200, "{path}");
        let mut first = proxy.begin(&chat().user("Let us plan the garden."));
        fake.wait("the first person", |seen| seen.iter().any(|s| says(s, "garden")));
        let (address, body) = (proxy.address, title.to_string());
        let title = std::thread::spawn(move || request(address, "POST", path, &json, body.as_bytes()).status);
        proxy.eventually("/windowsill/events?kind=gives_way", |all| !all["events"].as_array().unwrap().is_empty());
        // Who comes later goes first.
        let mut second = proxy.begin(&chat().user("Let us plan the kitchen."));
        fake.wait("the second person", |seen| seen.iter().any(|s| says(s, "kitchen")));
        assert_eq!(fake.count(), 3, "{path}: a title went before a person");
        gate.open();
        assert_eq!((first.answer().status, second.answer().status), (200, 200));
        assert_eq!(title.join().unwrap(), 200, "{path}");
        let order: Vec<bool> = fake.mains().iter().map(|seen| says(seen, "### Task")).collect();
        assert_eq!(order, [true, false, false, true], "{path}");
    }
}
