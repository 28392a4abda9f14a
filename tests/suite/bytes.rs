//! Byte for byte: what arrives at the server is what the client sent in this request, whatever it sent before. Only messages
//! that were answered may stand in the bytes that they had then, and only where no model sees the difference.

use serde_json::{Value, json};

use super::support::*;

/// A message without what no model sees.
fn seen(message: &Value) -> Value {
    let mut out = message.clone();
    let empty = |value: &Value| value.is_null() || *value == "" || *value == json!([]) || *value == json!({});
    if let Some(parts) = out["content"].as_array_mut() {
        parts.iter_mut().filter_map(Value::as_object_mut).for_each(|part| drop(part.remove("cache_control")));
        if let [part] = parts.as_slice()
            && part["type"] == "text"
            && part.as_object().is_some_and(|fields| fields.len() == 2)
        {
            out["content"] = part["text"].clone();
        }
    }
    for call in out["tool_calls"].as_array_mut().into_iter().flatten() {
        call.as_object_mut().unwrap().remove("id");
        if let Some(arguments) = call["function"]["arguments"].as_str().and_then(|a| serde_json::from_str(a).ok()) {
            call["function"]["arguments"] = arguments;
        }
    }
    let fields = out.as_object_mut().unwrap();
    fields.retain(|key, value| !matches!(key.as_str(), "tool_call_id" | "cache_control") && !empty(value));
    out
}

/// Checks what arrived against what a request asked for: the turn that is not answered yet as it is, the rest as models see it.
#[track_caller]
fn arrived(place: &str, expected: &[Value], forwarded: &[Value]) {
    assert_eq!(expected.len(), forwarded.len(), "{place}: {}", json!(forwarded));
    let before = expected.len().saturating_sub(1);
    let answered = expected[..before].iter().rposition(|m| m["role"] == "assistant").unwrap_or(0);
    for (at, (expected, forwarded)) in expected.iter().zip(forwarded).enumerate() {
        assert_eq!(seen(expected), seen(forwarded), "{place}: message {at}");
        if at > answered {
            assert_eq!(expected, forwarded, "{place}: message {at} is of the turn that is asked now");
        }
    }
}

/// A conversation in a client's words: where it is sent, and its messages or items.
struct Talk {
    path: &'static str,
    key: &'static str,
    messages: Vec<Value>,
    /// What else the request says.
    fields: Value,
}

impl Talk {
    fn body(&self) -> Vec<u8> {
        let mut body = self.fields.clone();
        body[self.key] = json!(self.messages);
        body.to_string().into_bytes()
    }
}

fn call(id: &str, arguments: &str) -> Value {
    json!([{"id": id, "type": "function", "function": {"name": "read_file", "arguments": arguments}}])
}

/// What was said so far, in each dialect: a question, a step with a result, a reply, another question.
fn talks() -> Vec<Talk> {
    let chat = json!({"model": MODEL, "max_tokens": 9, "tools": [tool("read_file")]});
    let claude = json!({"model": MODEL, "max_tokens": 9,
        "tools": [{"name": "read_file", "input_schema": {"type": "object", "properties": {}}}]});
    vec![
        Talk {
            path: "/v1/chat/completions",
            key: "messages",
            messages: vec![
                json!({"role": "user", "content": "Read it."}),
                json!({"role": "assistant", "content": null, "tool_calls": call("call_0", r#"{"path":"a.rs","n":1}"#)}),
                json!({"role": "tool", "tool_call_id": "call_0", "content": "fn f() {}"}),
                json!({"role": "assistant", "content": "It holds f."}),
                json!({"role": "user", "content": "And now?"}),
            ],
            fields: chat,
        },
        Talk {
            path: "/v1/messages",
            key: "messages",
            messages: vec![
                json!({"role": "user", "content": [{"type": "text", "text": "Read it."}]}),
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": "call_0", "name": "read_file", "input": {"path": "a.rs", "n": 1}}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0", "content": "fn f() {}"}]}),
                json!({"role": "assistant", "content": [{"type": "text", "text": "It holds f."}]}),
                json!({"role": "user", "content": [{"type": "text", "text": "And now?"}]}),
            ],
            fields: claude,
        },
        Talk {
            path: "/api/chat",
            key: "messages",
            messages: vec![
                json!({"role": "user", "content": "Read it."}),
                json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "read_file", "arguments": {"path": "a.rs", "n": 1}}}]}),
                json!({"role": "tool", "tool_name": "read_file", "content": "fn f() {}"}),
                json!({"role": "assistant", "content": "It holds f."}),
                json!({"role": "user", "content": "And now?"}),
            ],
            fields: json!({"model": MODEL, "stream": false, "tools": [tool("read_file")]}),
        },
        Talk {
            path: "/v1/responses",
            key: "input",
            messages: vec![
                json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read it."}]}),
                json!({"type": "function_call", "call_id": "call_0", "name": "read_file", "arguments": r#"{"path":"a.rs","n":1}"#}),
                json!({"type": "function_call_output", "call_id": "call_0", "output": "fn f() {}"}),
                json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It holds f."}]}),
                json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]}),
            ],
            fields: json!({"model": MODEL, "tools": [{"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}}]}),
        },
    ]
}

/// Changes one thing of a message. Returns what it was.
fn change(message: &mut Value, dice: &mut Dice) -> &'static str {
    let edges = ["\n", "  ", "\n    ", "\t"];
    let edge = edges[dice.below(edges.len())];
    match dice.below(12) {
        0..=3 => {
            let in_front = dice.chance(50);
            let moved = |text: &str| json!(if in_front { format!("{edge}{text}") } else { format!("{text}{edge}") });
            for key in ["content", "output", "text"] {
                let inner = match &mut message[key] {
                    text @ Value::String(_) => Some(text),
                    Value::Array(parts) => parts.last_mut().map(|part| {
                        let key = if part["text"].is_string() { "text" } else { "content" };
                        &mut part[key]
                    }),
                    _ => None,
                };
                if let Some(Value::String(text)) = inner.as_deref() {
                    let text = moved(text);
                    *inner.unwrap() = text;
                    return "the edge of a text";
                }
            }
            "nothing"
        }
        4 => set(message, "name", json!(["alice", "bob"][dice.below(2)])),
        5 => set(message, "reasoning_content", json!("I should look.")),
        6 => set(message, "refusal", json!("No.")),
        7 => set(message, "prefix", json!(true)),
        8 => set(message, "x_unknown", json!({"n": dice.below(3)})),
        9 => set(message, "cache_control", json!({"type": "ephemeral"})),
        10 => {
            let text = message["content"].as_str().map(str::to_owned);
            match text.filter(|_| message["role"] != "tool") {
                Some(text) => set(message, "content", json!([{"type": "text", "text": text}])),
                None => "nothing",
            }
        }
        _ => match message.pointer_mut("/tool_calls/0/function/arguments") {
            Some(arguments @ Value::String(_)) => {
                *arguments = json!("{ \"n\" : 1.0, \"path\":\"a.rs\" }");
                "the spelling of arguments"
            }
            _ => "nothing",
        },
    }
}

fn set(message: &mut Value, key: &'static str, value: Value) -> &'static str {
    message[key] = value;
    key
}

/// Pairs of requests that differ in one thing: the second arrives as it would alone. A session that the client names is a record
/// of its own, so that "alone" needs no other proxy.
fn pairs(kind: Kind, seed: u64) {
    let fake = Fake::start(kind, 1 << 16);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\n");
    let mut dice = Dice(seed);
    for n in 0..160 {
        let mut talk = talks().swap_remove(n % 4);
        let send = |talk: &Talk, session: &str| {
            let answer = proxy.post(talk.path, &[("x-windowsill-session", session)], &talk.body()).ok();
            assert_eq!(answer.action(), "none");
            fake.last().messages()
        };
        // Prefixes of all lengths: what is asked now is a question, a result, or the beginning of a reply.
        let length = 1 + dice.below(talk.messages.len());
        let later = talk.messages.split_off(length);
        let session = format!("pair-{seed}-{n}");
        let at = dice.below(length);
        let before = talk.messages[at].clone();
        change(&mut talk.messages[at], &mut dice);
        send(&talk, &session);
        if dice.chance(60) {
            talk.messages[at] = before;
        }
        let at = dice.below(length);
        let what = change(&mut talk.messages[at], &mut dice);
        if dice.chance(40) {
            talk.messages.extend(later);
        }
        let forwarded = send(&talk, &session);
        let alone = send(&talk, &format!("{session}-alone"));
        let place = format!("pair {n} of {seed} before {kind:?}, {}: {what} of message {at}", talk.path);
        arrived(&place, &alone, &forwarded);
        if kind == Kind::LlamaServer && talk.path == "/v1/chat/completions" {
            // A reply that says nothing and calls that wait for results are mended, and calls without results are answered.
            let same = forwarded.len() == talk.messages.len();
            assert!(same || forwarded.len() == talk.messages.len() + 1, "{place}");
            for (sent, forwarded) in talk.messages.iter().zip(&forwarded) {
                assert_eq!(seen(sent), seen(forwarded), "{place}");
            }
        }
    }
}

#[test]
fn what_arrives_is_what_was_sent_before_llama_server() {
    (1..=3).for_each(|seed| pairs(Kind::LlamaServer, seed));
}

#[test]
fn what_arrives_is_what_was_sent_before_ollama() {
    (4..=6).for_each(|seed| pairs(Kind::Ollama, seed));
}

/// The same first words of two people, and two prefills of one question.
#[test]
fn names_and_prefills_are_those_of_this_request() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let named = |name: &str| chat().push(json!({"role": "user", "name": name, "content": "Who am I?"}));
    let prefilled = |text: &str| {
        chat().user("Write it.").push(json!({"role": "assistant", "content": text, "prefix": text.ends_with(' ')}))
    };
    for asked in
        [named("alice"), named("bob"), prefilled("def f():"), prefilled("def f():\n    "), prefilled("def f():")]
    {
        let answer = proxy.chat(&asked).ok();
        assert_eq!(answer.action(), "none");
        assert_eq!(fake.last().messages(), asked.messages);
    }
}

/// A client moves `cache_control` from message to message: what was answered keeps its bytes, also after a restart.
#[test]
fn what_was_answered_keeps_its_bytes_where_no_model_sees_the_difference() {
    let fake = Fake::start(Kind::LlamaServer, 1 << 16);
    let mut proxy = TestProxy::before(&fake);
    let mut sent = chat().system("s");
    let mut before: Vec<Value> = Vec::new();
    for turn in 0..6 {
        sent = sent.user(&format!("Question {turn}"));
        let mut marked = sent.clone();
        let last = marked.messages.last_mut().unwrap();
        let text = text(last);
        last["content"] = json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]);
        proxy.chat(&marked).ok();
        let now = fake.last().messages();
        assert_eq!(now[..before.len()], before[..], "turn {turn}");
        before = now;
        sent = sent.assistant(&format!("Answer {turn}"));
        if turn == 3 {
            let dir = proxy.stop();
            proxy = TestProxy::at(dir, &[fake.url()], "");
        }
    }
}

/// What a server refused and the client mended is never sent again, however long the session goes on.
#[test]
fn what_a_server_refused_does_not_come_back() {
    let fake = Fake::start(Kind::LlamaServer, 1 << 16);
    fake.script(|seen| {
        let marked = seen.is_main() && String::from_utf8_lossy(&seen.body).contains("cache_control");
        match marked {
            true => Play::Json(400, json!({"error": {"code": 400, "message": "unknown field cache_control", "type": "invalid_request_error"}})),
            false => Play::Usual,
        }
    });
    let mut proxy = TestProxy::before(&fake);
    let marked = json!({"role": "user", "content": [{"type": "text", "text": "Hello.", "cache_control": {"type": "ephemeral"}}]});
    let refused = proxy.chat(&chat().push(marked));
    assert_eq!((refused.status, refused.error().1.as_str()), (400, "unknown field cache_control"));
    let mut sent = chat().user("Hello.");
    for turn in 0..5 {
        proxy.chat(&sent).ok();
        assert_eq!(fake.last().messages(), sent.messages, "turn {turn}");
        sent = sent.assistant("Hi.").user(&format!("And {turn}?"));
        if turn == 0 || turn == 2 {
            let dir = proxy.stop();
            proxy = TestProxy::at(dir, &[fake.url()], "");
        }
    }
}

/// Numbers that no double holds.
const NUMBERS: [&str; 8] =
    ["12345678901234567890123", "1.10", "1e400", "0.1000000000000000055", "-0", "1E5", "9007199254740993", "2.50e-3"];

/// Whether two spellings are of one number with the same digits.
fn is_number(spelled: &str, number: &str) -> bool {
    let plain = |text: &str| text.to_lowercase().replace("e+", "e");
    plain(spelled) == plain(number)
}

#[test]
fn numbers_keep_their_digits_in_every_dialect_both_ways() {
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let fake = Fake::start(kind, 1 << 16);
        let proxy = TestProxy::before(&fake);
        for number in NUMBERS {
            let input = format!(r#"{{"n":{number},"all":[{number}]}}"#);
            let quoted = json!(input).to_string();
            let schema = format!(r#"{{"type":"object","properties":{{"n":{{"type":"number","maximum":{number}}}}}}}"#);
            let named = format!(r#"{{"name":"f","parameters":{schema}}}"#);
            let result = "the result";
            for (path, body) in [
                (
                    "/v1/chat/completions",
                    format!(
                        r#"{{"model":"{MODEL}","temperature":{number},"tools":[{{"type":"function","function":{named}}}],"messages":[{{"role":"user","content":"a"}},{{"role":"assistant","content":null,"tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":{quoted}}}}}]}},{{"role":"tool","tool_call_id":"c","content":"{result}"}}]}}"#
                    ),
                ),
                (
                    "/v1/messages",
                    format!(
                        r#"{{"model":"{MODEL}","max_tokens":9,"temperature":{number},"tools":[{{"name":"f","input_schema":{schema}}}],"messages":[{{"role":"user","content":"a"}},{{"role":"assistant","content":[{{"type":"tool_use","id":"c","name":"f","input":{input}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c","content":"{result}"}}]}}]}}"#
                    ),
                ),
                (
                    "/v1/responses",
                    format!(
                        r#"{{"model":"{MODEL}","temperature":{number},"tools":[{{"type":"function","name":"f","parameters":{schema}}}],"input":[{{"role":"user","content":"a"}},{{"type":"function_call","call_id":"c","name":"f","arguments":{quoted}}},{{"type":"function_call_output","call_id":"c","output":"{result}"}}]}}"#
                    ),
                ),
                (
                    "/api/chat",
                    format!(
                        r#"{{"model":"{MODEL}","stream":false,"options":{{"temperature":{number}}},"tools":[{{"type":"function","function":{named}}}],"messages":[{{"role":"user","content":"a"}},{{"role":"assistant","content":"","tool_calls":[{{"function":{{"name":"f","arguments":{input}}}}}]}},{{"role":"tool","content":"{result}"}}]}}"#
                    ),
                ),
            ] {
                let place = format!("{number} at {path} before {kind:?}");
                proxy.post(path, &[], body.as_bytes()).ok();
                let sent = fake.last();
                let spelled = String::from_utf8_lossy(&sent.body).matches(number).count();
                assert!(spelled >= 4, "{place}: {}", String::from_utf8_lossy(&sent.body));
                let forwarded = sent.json();
                let call = &forwarded["messages"][1]["tool_calls"][0]["function"]["arguments"];
                let arguments: Value = call.as_str().map_or(call.clone(), |text| serde_json::from_str(text).unwrap());
                let temperature = forwarded.get("temperature").unwrap_or(&forwarded["options"]["temperature"]);
                for spelled in [
                    &arguments["n"],
                    &arguments["all"][0],
                    &forwarded["tools"][0]["function"]["parameters"]["properties"]["n"]["maximum"],
                    temperature,
                ] {
                    assert!(is_number(&spelled.to_string(), number), "{place}: {spelled}");
                }
            }
        }
    }
}

#[test]
fn numbers_of_a_reply_keep_their_digits() {
    for number in NUMBERS {
        let arguments = format!(r#"{{"n":{number}}}"#);
        let fake = Fake::start(Kind::LlamaServer, 1 << 16);
        let text = arguments.clone();
        fake.script(move |seen| {
            if !seen.is_main() {
                return Play::Usual;
            }
            let calls = json!([{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": text}}]);
            let usage = json!({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12});
            if seen.json()["stream"] != true {
                return Play::Json(200, json!({"id": "1", "object": "chat.completion", "created": 1, "model": MODEL, "usage": usage,
                    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": null, "tool_calls": calls}}]}));
            }
            let delta = json!({"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": null}]});
            let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": usage});
            let mut out = sse_head();
            for data in [delta.to_string(), end.to_string(), "[DONE]".into()] {
                out.extend(chunk(format!("data: {data}\n\n").as_bytes()));
            }
            out.extend(b"0\r\n\r\n");
            Play::Pieces(vec![out])
        });
        let proxy = TestProxy::before(&fake);
        let ask = |path: &str, stream: bool| {
            let tools = match path {
                "/v1/messages" => json!([{"name": "f", "input_schema": {"type": "object"}}]),
                "/v1/responses" => json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]),
                _ => json!([tool("f")]),
            };
            let key = if path == "/v1/responses" { "input" } else { "messages" };
            let mut body = json!({"model": MODEL, "stream": stream, "tools": tools, "max_tokens": 9});
            body[key] = json!([{"role": "user", "content": "a"}]);
            proxy.post(path, &[], body.to_string().as_bytes()).ok().text()
        };
        for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"] {
            for stream in [false, true] {
                let said = ask(path, stream).to_lowercase().replace("e+", "e").replace("\\\"", "\"");
                let number = number.to_lowercase();
                assert!(said.contains(&format!("\"n\":{number}}}")), "{number} at {path}, streamed {stream}: {said}");
            }
        }
    }
}
