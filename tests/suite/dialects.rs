//! Other dialects than chat completions: managed as they are, and answered in the client's own words.

use serde_json::{Value, json};

use super::support::script::*;
use super::support::*;

/// What a client makes of a reply.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Read {
    pub(crate) text: String,
    /// Names and arguments.
    pub(crate) calls: Vec<(String, Value)>,
    /// Tokens of the prompt.
    pub(crate) prompt: u64,
    /// Why it stopped; empty where it did not come to its end.
    pub(crate) finish: String,
    /// What an error said.
    pub(crate) error: String,
}

/// A dialect as its clients have it: written here, and not with the code under test.
pub(crate) struct Dialect {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    /// A request, from one in OpenAI's words.
    pub(crate) ask: fn(&Chat) -> Value,
    pub(crate) whole: fn(&Value) -> Read,
    pub(crate) stream: fn(&str) -> Read,
    /// What an error says, where it has the dialect's shape.
    pub(crate) error: fn(&Value) -> Option<String>,
    /// Why a reply ends that is complete, and one that ends with calls.
    pub(crate) ends: (&'static str, &'static str),
}

pub(crate) const ALL: [Dialect; 3] = [
    Dialect {
        name: "anthropic",
        path: "/v1/messages",
        ask: anthropic,
        whole: anthropic_whole,
        stream: anthropic_stream,
        error: |body| {
            let error = &body["error"];
            let shaped = body["type"] == "error" && error["type"].is_string() && body["request_id"].is_string();
            shaped.then(|| error["message"].as_str().unwrap_or_default().to_owned())
        },
        ends: ("end_turn", "tool_use"),
    },
    Dialect {
        name: "ollama",
        path: "/api/chat",
        ask: ollama,
        whole: |body| ollama_stream(&format!("{body}\n")),
        stream: ollama_stream,
        error: |body| body["error"].as_str().map(str::to_owned),
        ends: ("stop", "stop"),
    },
    Dialect {
        name: "responses",
        path: "/v1/responses",
        ask: responses,
        whole: responses_whole,
        stream: responses_stream,
        error: |body| body["error"]["message"].as_str().map(str::to_owned),
        ends: ("completed", "completed"),
    },
];

/// As Codex does: items, not messages.
pub(crate) fn responses(chat: &Chat) -> Value {
    let mut items = Vec::new();
    let mut instructions = String::new();
    for (role, text, calls, id) in said(chat) {
        let kind = if role == "assistant" { "output_text" } else { "input_text" };
        match role {
            "system" => instructions.push_str(&text),
            "tool" => items.push(json!({"type": "function_call_output", "call_id": id, "output": text})),
            _ if text.is_empty() => {}
            _ => items.push(json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})),
        }
        items.extend(calls.into_iter().map(|(id, name, arguments)| {
            json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments.to_string()})
        }));
    }
    let tools = tools(chat).into_iter().map(|t| {
        let mut tool = t["function"].clone();
        tool["type"] = "function".into();
        tool
    });
    let web = json!({"type": "web_search"});
    let tools: Vec<Value> = tools.chain([web]).collect();
    let body = json!({"instructions": instructions, "input": items, "tools": tools, "store": false});
    with_fields(body, chat, &["model", "stream"])
}

fn responses_whole(body: &Value) -> Read {
    let mut out = Read { finish: body["status"].as_str().unwrap().into(), ..Read::default() };
    for item in body["output"].as_array().expect("items") {
        match item["type"].as_str().unwrap() {
            "message" => item["content"]
                .as_array()
                .unwrap()
                .iter()
                .for_each(|part| out.text.push_str(part["text"].as_str().unwrap())),
            "function_call" => {
                let arguments = serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap();
                out.calls.push((item["name"].as_str().unwrap().into(), arguments));
            }
            other => panic!("{other}"),
        }
    }
    out.prompt = body["usage"]["input_tokens"].as_u64().unwrap_or(0);
    if out.finish == "failed" {
        out.finish.clear();
        out.error = body["error"]["message"].as_str().unwrap().into();
    }
    out
}

fn responses_stream(text: &str) -> Read {
    let (mut said, mut last) = (String::new(), Value::Null);
    for (nth, block) in text.split("\n\n").filter(|b| !b.is_empty() && !b.starts_with(':')).enumerate() {
        let (name, data) = block.split_once("\ndata: ").unwrap_or_else(|| panic!("{block:?}"));
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(
            (name.strip_prefix("event: "), event["sequence_number"].as_u64()),
            (event["type"].as_str(), Some(nth as u64))
        );
        if event["type"] == "response.output_text.delta" {
            said.push_str(event["delta"].as_str().unwrap());
        }
        last = event;
    }
    let out = responses_whole(&last["response"]);
    assert_eq!(last["type"].as_str().unwrap().strip_prefix("response."), last["response"]["status"].as_str());
    assert_eq!(out.text, said, "the deltas are the text: {text}");
    out
}

/// As clients of Ollama's do: calls have no ids, results name their tool, and what is to be streamed goes without saying.
pub(crate) fn ollama(chat: &Chat) -> Value {
    let mut names = Vec::new();
    let messages: Vec<Value> = said(chat)
        .map(|(role, text, calls, id)| {
            let mut message = json!({"role": role, "content": text});
            if !calls.is_empty() {
                let call = |(_, name, arguments): &(String, String, Value)| json!({"function": {"name": name, "arguments": arguments}});
                message["tool_calls"] = calls.iter().map(call).collect();
            }
            names.extend(calls.into_iter().map(|(id, name, _)| (id, name)));
            if role == "tool" {
                message["tool_name"] = names.iter().find(|(call, _)| *call == id).expect("it was called").1.clone().into();
            }
            message
        })
        .collect();
    let mut body = with_fields(json!({"messages": messages, "tools": tools(chat)}), chat, &["model", "stream"]);
    if body["stream"] == true {
        body.as_object_mut().unwrap().remove("stream");
    }
    body
}

fn ollama_stream(text: &str) -> Read {
    let mut out = Read::default();
    let mut ended = false;
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(!ended, "nothing comes behind the end: {text}");
        if let Some(error) = line["error"].as_str() {
            (out.error, ended) = (error.to_owned(), true);
            continue;
        }
        assert!(line["created_at"].as_str().unwrap().ends_with('Z') && line["model"] == MODEL, "{line}");
        out.text.push_str(line["message"]["content"].as_str().unwrap());
        for call in line["message"]["tool_calls"].as_array().into_iter().flatten() {
            out.calls.push((call["function"]["name"].as_str().unwrap().into(), call["function"]["arguments"].clone()));
        }
        ended = line["done"].as_bool().unwrap();
        if ended {
            out.finish = line["done_reason"].as_str().unwrap().into();
            out.prompt = line["prompt_eval_count"].as_u64().unwrap();
            assert!(line["eval_count"].is_u64() && line["total_duration"].is_u64(), "{line}");
        }
    }
    out
}

/// The messages of a request in OpenAI's words, and what each says.
fn said(chat: &Chat) -> impl Iterator<Item = (&str, String, Vec<(String, String, Value)>, String)> {
    chat.messages.iter().map(|m| {
        let calls = m["tool_calls"].as_array().into_iter().flatten().map(|c| {
            let string = |p: &str| c.pointer(p).and_then(Value::as_str).unwrap().to_owned();
            let arguments = serde_json::from_str(&string("/function/arguments")).unwrap();
            (string("/id"), string("/function/name"), arguments)
        });
        let id = m["tool_call_id"].as_str().unwrap_or_default().to_owned();
        (m["role"].as_str().unwrap(), text(m), calls.collect(), id)
    })
}

fn tools(chat: &Chat) -> Vec<Value> {
    chat.fields.get("tools").and_then(Value::as_array).cloned().unwrap_or_default()
}

fn with_fields(mut body: Value, chat: &Chat, keys: &[&str]) -> Value {
    for key in keys.iter().filter(|k| chat.fields.contains_key(**k)) {
        body[*key] = chat.fields[*key].clone();
    }
    body
}

pub(crate) fn anthropic(chat: &Chat) -> Value {
    let mut messages = Vec::new();
    let mut system = Vec::new();
    for (role, text, calls, id) in said(chat) {
        let block = json!({"type": "text", "text": text});
        match role {
            "system" => system.push(block),
            "tool" => messages.push(
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": [block]}]}),
            ),
            _ => {
                let calls = calls
                    .into_iter()
                    .map(|(id, name, input)| json!({"type": "tool_use", "id": id, "name": name, "input": input}));
                let blocks: Vec<Value> = Some(block).filter(|_| !text.is_empty()).into_iter().chain(calls).collect();
                messages.push(json!({"role": role, "content": blocks}));
            }
        }
    }
    let tools = tools(chat).into_iter().map(|t| {
        let f = &t["function"];
        json!({"name": f["name"], "description": f["description"], "input_schema": f["parameters"]})
    });
    let body = json!({"max_tokens": 64, "system": system, "messages": messages, "tools": tools.collect::<Vec<_>>()});
    with_fields(body, chat, &["model", "stream", "max_tokens"])
}

fn anthropic_whole(body: &Value) -> Read {
    let mut out = Read { finish: body["stop_reason"].as_str().unwrap_or_default().into(), ..Read::default() };
    for block in body["content"].as_array().expect("blocks") {
        match block["type"].as_str().unwrap() {
            "text" => out.text.push_str(block["text"].as_str().unwrap()),
            "tool_use" => out.calls.push((block["name"].as_str().unwrap().into(), block["input"].clone())),
            other => panic!("{other}"),
        }
    }
    let tokens = |key: &str| body["usage"][key].as_u64().unwrap();
    out.prompt = tokens("input_tokens") + tokens("cache_read_input_tokens");
    out
}

fn anthropic_stream(text: &str) -> Read {
    let mut message = Value::Null;
    let mut pieces = String::new();
    let mut ended = false;
    for block in text.split("\n\n").filter(|b| !b.is_empty() && !b.starts_with(':')) {
        let (name, data) = block.split_once("\ndata: ").unwrap_or_else(|| panic!("{block:?}"));
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: "), event["type"].as_str());
        assert!(!ended, "nothing comes behind the end: {text}");
        let at = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
                pieces.clear();
            }
            "content_block_delta" => match event["delta"]["text"].as_str() {
                Some(more) => {
                    let before = message["content"][at]["text"].as_str().unwrap().to_owned();
                    message["content"][at]["text"] = (before + more).into();
                }
                None => pieces.push_str(event["delta"]["partial_json"].as_str().unwrap()),
            },
            "content_block_stop" if !pieces.is_empty() => {
                message["content"][at]["input"] = serde_json::from_str(&pieces).unwrap();
                pieces.clear();
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => ended = true,
            "error" => {
                message["stop_reason"] = Value::Null;
                let error = event["error"]["message"].as_str().unwrap().to_owned();
                return Read { error, ..anthropic_whole(&message) };
            }
            _ => {}
        }
    }
    if !ended {
        message["stop_reason"] = Value::Null;
    }
    anthropic_whole(&message)
}

/// Messages without the ids of calls, which not every dialect has, and a tool's name beside them; each result must have that
/// of the call before it.
fn bare(messages: &[Value]) -> Vec<Value> {
    let mut id = Value::Null;
    let mut out = messages.to_vec();
    for message in &mut out {
        let fields = message.as_object_mut().unwrap();
        fields.remove("tool_name");
        if fields.get("content").is_none_or(Value::is_null) {
            fields.insert("content".into(), "".into());
        }
        if let Some(call) = fields.get_mut("tool_calls").and_then(|c| c.get_mut(0)) {
            id = call["id"].take();
        }
        if let Some(answers) = fields.remove("tool_call_id") {
            assert!(answers.is_string() && answers == id, "{messages:?}");
        }
    }
    out
}

pub(crate) fn ask(proxy: &TestProxy, dialect: &Dialect, chat: &Chat) -> Answer {
    proxy.post(dialect.path, &[], (dialect.ask)(chat).to_string().as_bytes())
}

/// A request that is streamed, or says that it is not: Ollama's are where nothing is said.
pub(crate) fn whole_or_streamed(chat: Chat, streamed: bool) -> Chat {
    chat.with("stream", streamed.into())
}

fn read(dialect: &Dialect, answer: &Answer, streamed: bool) -> Read {
    assert_eq!(answer.status, 200, "{}: {}", dialect.name, answer.text());
    assert!(answer.whole, "{}", answer.text());
    if streamed { (dialect.stream)(&answer.text()) } else { (dialect.whole)(&answer.json()) }
}

#[test]
fn a_request_goes_on_in_the_words_of_chat_completions_and_comes_back() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let first = chat().system("Be terse.").user("Read \u{e9} it.").tools().step(1, "fn main() {}\n");
    let both = || {
        vec![
            ("c1", "read_file".to_owned(), json!({"path": "a b"}).to_string()),
            ("c2", "run".to_owned(), json!({"x": [1.5, null]}).to_string()),
        ]
    };
    for dialect in &ALL {
        let mut conversations = Vec::new();
        for streamed in [false, true] {
            for (write, calls) in [(1usize, true), (7, false), (1000, true)] {
                scripted(&fake, write, move |_, _| turn("It is \u{e9}mpty.", if calls { both() } else { Vec::new() }));
                let answer = ask(&proxy, dialect, &whole_or_streamed(first.clone(), streamed));
                let got = read(dialect, &answer, streamed);
                let name = format!("{}, streamed {streamed}: {}", dialect.name, answer.text());
                let seen = fake.last();
                assert_eq!(seen.target, "/v1/chat/completions", "{name}");
                assert_eq!(bare(&seen.messages()), bare(&first.messages), "{name}");
                assert_eq!(tools_of(&seen), ["read_file", "run"], "{name}");
                assert_eq!(got.text, "It is \u{e9}mpty.", "{name}");
                let want = [("read_file", json!({"path": "a b"})), ("run", json!({"x": [1.5, null]}))];
                let want: Vec<_> = want.into_iter().filter(|_| calls).map(|(n, a)| (n.to_owned(), a)).collect();
                assert_eq!(got.calls, want, "{name}");
                assert_eq!(got.finish, if calls { dialect.ends.1 } else { dialect.ends.0 }, "{name}");
                assert_eq!(got.prompt, u64::from(tokens(&seen.json())), "{name}");
                assert_eq!(answer.header("x-windowsill-action"), Some("none"), "{name}");
                assert_eq!(answer.header("x-windowsill-window"), Some("4096"), "{name}");
                conversations.push(answer.header("x-windowsill-conversation").unwrap().to_owned());
            }
        }
        conversations.dedup();
        // The same history is the same conversation in whatever words.
        let openai = proxy.chat(&first).ok();
        assert_eq!(conversations, [openai.header("x-windowsill-conversation").unwrap()], "{}", dialect.name);
    }
}

#[test]
fn what_is_evicted_can_be_recalled_and_no_client_sees_the_call() {
    for dialect in &ALL {
        let fake = Fake::start(Kind::LlamaServer, 8192);
        let proxy = TestProxy::before(&fake);
        let first = evicted();
        let answer = ask(&proxy, dialect, &whole_or_streamed(first.clone(), false));
        assert_eq!((answer.status, answer.action()), (200, "evict"), "{}: {}", dialect.name, answer.text());
        let id = id_in(&fake.last());
        let second = first.assistant("Done; what is next?").user("When does the vault open?");
        for streamed in [false, true] {
            fake.clear();
            let (id, head) = (id.clone(), format!("[{id}"));
            let round = std::sync::atomic::AtomicUsize::new(0);
            scripted(&fake, 5, move |_, _| match round.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 => turn("Let me look.", vec![call(json!({"id": id}))]),
                _ => turn("At nine.", vec![]),
            });
            let answer = ask(&proxy, dialect, &whole_or_streamed(second.clone(), streamed));
            let got = read(dialect, &answer, streamed);
            assert_eq!((got.text.as_str(), got.calls.len()), ("Let me look.\n\nAt nine.", 0), "{}", answer.text());
            assert_eq!(got.finish, dialect.ends.0);
            assert!(!answer.text().contains(TOOL), "{}", answer.text());
            let recalled = text(fake.last().messages().last().unwrap());
            assert!(recalled.starts_with(&head), "{recalled}");
        }
    }
}

#[test]
fn errors_have_the_dialects_shape() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "api_key = \"k\"\n[limits]\nmax_body_bytes = 200000\n");
    let gone = TestProxy::with(&[format!("http://{}", Fake::absent())], "");
    for dialect in &ALL {
        let key = [("x-api-key", "k")];
        let told = |answer: &Answer| {
            let text = (dialect.error)(&answer.json());
            text.unwrap_or_else(|| panic!("{} has errors of another shape: {}", dialect.name, answer.text()))
        };
        let post =
            |body: &Value, headers: &[(&str, &str)]| proxy.post(dialect.path, headers, body.to_string().as_bytes());
        let fine = (dialect.ask)(&chat().user("hi"));
        let answer = post(&fine, &[]);
        assert_eq!(answer.status, 401);
        assert!(told(&answer).contains("API key"));
        assert_eq!(post(&fine, &key).status, 200);

        let answer = proxy.post(dialect.path, &key, b"{\"model\":");
        assert_eq!(answer.status, 400);
        assert!(told(&answer).contains("not valid JSON"), "{}", answer.text());
        let answer = post(&(dialect.ask)(&chat().user(&"x".repeat(300_000))), &key);
        assert_eq!(answer.status, 413);
        assert!(told(&answer).contains("200000 bytes"), "{}", answer.text());

        // More than any shortening can do.
        let answer = post(&(dialect.ask)(&chat().system(&prose(1, 60_000)).user("hi")), &key);
        assert_eq!(answer.status, 400);
        let message = told(&answer);
        assert!(message.contains("maximum context length is 4096 tokens"), "{message}");
        if dialect.name == "anthropic" {
            assert!(
                message.starts_with("prompt is too long: ") && message.contains(" tokens > 4096 maximum"),
                "{message}"
            );
        }

        // The server's own.
        for status in [404, 500, 503] {
            let error = json!({"error": {"message": format!("so says {status}"), "type": "x", "code": status}});
            fake.script(move |seen| if seen.is_main() { Play::Json(status, error.clone()) } else { Play::Usual });
            for streamed in [false, true] {
                let answer = post(&(dialect.ask)(&whole_or_streamed(chat().user("hi"), streamed)), &key);
                assert_eq!((answer.status, told(&answer)), (status, format!("so says {status}")));
            }
        }
        // What is no completion at all.
        let none = "no chat completion";
        for (nonsense, said) in [("<html>", none), ("[]", none), ("{\"error\":{\"message\":\"odd\"}}", "odd")] {
            fake.script(move |seen| match seen.is_main() {
                true => Play::Pieces(vec![whole(200, "application/json", nonsense.as_bytes())]),
                false => Play::Usual,
            });
            let answer = post(&(dialect.ask)(&whole_or_streamed(chat().user("hi"), false)), &key);
            assert_eq!(answer.status, 502, "{}", answer.text());
            assert!(told(&answer).contains(said), "{}", answer.text());
        }
        fake.script(|_| Play::Usual);

        let answer = ask(&gone, dialect, &chat().user("hi"));
        assert_eq!(answer.status, 502);
        assert!(told(&answer).contains("up0"), "{}", answer.text());
    }
}

#[test]
fn a_server_that_fails_without_a_word_is_said_to_have_given_no_reason() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    for dialect in &ALL {
        for body in ["", " \n", "{\"error\":{}}", "{\"error\":{\"message\":\"\"}}"] {
            fake.script(move |seen| match seen.is_main() {
                true => Play::Pieces(vec![whole(503, "application/json", body.as_bytes())]),
                false => Play::Usual,
            });
            let answer = ask(&proxy, dialect, &chat().user("hi"));
            let said = (dialect.error)(&answer.json()).expect("the dialect's shape");
            assert_eq!(answer.status, 503);
            let told = if body.trim().is_empty() { "503 Service Unavailable and gave no reason" } else { body };
            assert!(said.contains(told), "{}: {said}", dialect.name);
        }
    }
}

#[test]
fn a_stream_that_breaks_off_never_looks_complete() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let begun = [sse_head(), chunk(b"data: {\"choices\":[{\"delta\":{\"content\":\"first\"}}]}\n\n")].concat();
    let own = chunk(b"data: {\"error\":{\"code\":500,\"message\":\"out of memory\",\"type\":\"server_error\"}}\n\n");
    let own = [begun.clone(), own, b"0\r\n\r\n".to_vec()].concat();
    for dialect in &ALL {
        for (play, why) in [
            (Play::Cut(begun.clone()), "broke off"),
            (Play::Pieces(vec![[begun.clone(), b"0\r\n\r\n".to_vec()].concat()]), "ended the stream before"),
            (Play::Pieces(vec![own.clone()]), "out of memory"),
        ] {
            fake.script(move |seen| if seen.is_main() { play.clone() } else { Play::Usual });
            let answer = ask(&proxy, dialect, &whole_or_streamed(chat().user("hi"), true)).ok();
            let got = (dialect.stream)(&answer.text());
            assert_eq!((got.text.as_str(), got.finish.as_str()), ("first", ""), "{}: {}", dialect.name, answer.text());
            assert!(got.error.contains(why), "{}: {}", dialect.name, answer.text());
        }
    }
}

#[test]
fn a_stream_arrives_as_it_comes_and_who_goes_away_is_gone_for_the_server_too() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let begun = [sse_head(), chunk(b"data: {\"choices\":[{\"delta\":{\"content\":\"first\"}}]}\n\n")].concat();
    for (nth, dialect) in ALL.iter().enumerate() {
        let (begun, never) = (begun.clone(), Gate::default());
        fake.script(move |seen| match seen.is_main() {
            true => Play::Then(begun.clone(), never.clone(), Box::new(Play::Usual)),
            false => Play::Usual,
        });
        let mut conn = Conn::open(proxy.address);
        let body = (dialect.ask)(&whole_or_streamed(chat().user("hi"), true)).to_string();
        conn.send("POST", dialect.path, &[("Content-Type", "application/json")], body.as_bytes());
        conn.head().unwrap();
        conn.until("first");
        drop(conn);
        fake.wait_hung_up(nth + 1);
    }
}

#[test]
fn off_means_off() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    for dialect in &ALL {
        let body = (dialect.ask)(&chat().user(&prose(1, 60_000))).to_string();
        let path = format!("{}?beta=true", dialect.path);
        proxy.post(&path, &[("x-windowsill", "off")], body.as_bytes());
        let seen = fake.all().into_iter().rev().find(|s| s.path() == dialect.path).unwrap();
        assert_eq!((seen.target.as_str(), seen.body.as_slice()), (path.as_str(), body.as_bytes()));
    }
}

/// Claude Code moves the mark of Anthropic's cache each turn, and begins its system prompt with a checksum of the request.
#[test]
fn claude_codes_prompt_begins_as_it_did_the_turn_before() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let turn = |n: usize| {
        let mut messages = Vec::new();
        for i in 0..=n {
            messages.push(json!({"role": "user", "content": [{"type": "text", "text": format!("Say {i}.")}]}));
            let said = json!([{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": format!("{i}")}]);
            messages.push(json!({"role": "assistant", "content": said}));
        }
        messages.pop();
        messages[2 * n]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
        let billing = format!("x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={n}6ee5;");
        let system = json!([{"type": "text", "text": billing}, {"type": "text", "text": "You are an agent."}]);
        json!({"model": MODEL, "max_tokens": 32000, "stream": true, "system": system, "messages": messages,
            "thinking": {"type": "adaptive"}, "metadata": {"user_id": "{}"}, "context_management": {"edits": []}})
    };
    let headers = [("anthropic-version", "2023-06-01"), ("x-api-key", "none"), ("X-Claude-Code-Session-Id", "7")];
    let mut before: Option<(String, String)> = None;
    for n in 0..4 {
        let answer = proxy.post("/v1/messages?beta=true", &headers, turn(n).to_string().as_bytes()).ok();
        assert!(answer.header("request-id").is_some_and(|id| id.starts_with("req_")));
        let body = fake.last().json();
        assert_eq!(body["messages"][0], json!({"role": "system", "content": "You are an agent."}));
        assert!(body.get("metadata").is_none() && body.get("context_management").is_none(), "{body}");
        let prompt = body["messages"].to_string();
        let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
        if let Some((earlier, same)) = before {
            assert!(prompt.starts_with(earlier.trim_end_matches(']')), "{earlier}\n{prompt}");
            assert_eq!(id, same);
        }
        before = Some((prompt, id));
    }
}

#[test]
fn messages_are_counted_as_they_would_be_sent() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    for bytes in [10, 6000] {
        let asked = chat().system("Be terse.").user(&prose(4, bytes)).tools().step(1, "fn main() {}");
        let body = anthropic(&asked);
        fake.clear();
        let answer = proxy.post("/v1/messages/count_tokens?beta=true", &[], body.to_string().as_bytes()).ok();
        assert!(fake.mains().is_empty(), "nothing is sent");
        let counted = answer.json()["input_tokens"].as_u64().unwrap();
        ask(&proxy, &ALL[0], &asked).ok();
        assert_eq!(counted, u64::from(tokens(&fake.last().json())), "{bytes}");
    }
    let answer = proxy.post("/v1/messages/count_tokens", &[], b"{\"model\": \"m\"}");
    assert_eq!((answer.status, &answer.json()["type"]), (400, &json!("error")));
}

#[test]
fn models_are_listed_for_clients_of_anthropics() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let own = proxy.get("/v1/models").json();
    for path in ["/v1/models?limit=20", &format!("/v1/models/{MODEL}")] {
        let answer = request(proxy.address, "GET", path, &[("anthropic-version", "2023-06-01")], b"").ok().json();
        let model = if path.contains('?') { &answer["data"][0] } else { &answer };
        assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!(MODEL)), "{answer}");
        assert_eq!(model["max_input_tokens"], own["data"][0]["context_window"], "{answer}");
        assert_eq!(model["object"], "model", "what OpenAI's clients read stays: {answer}");
        let can = |path: &str| model["capabilities"].pointer(path).and_then(Value::as_bool);
        for path in ["/compaction/summarize/supported", "/context_management/compact_20260112/supported"] {
            assert_eq!(can(path), Some(true), "{answer}");
        }
        assert_eq!(can("/server_tools/web_search/supported"), Some(false), "{answer}");
    }
    assert!(own["data"][0].get("display_name").is_none(), "{own}");
}

#[test]
fn what_ollamas_clients_ask_is_answered_before_any_server() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut conn = Conn::open(proxy.address);
    conn.send("HEAD", "/", &[], b"");
    assert_eq!(conn.head().unwrap().status, 200);
    assert_eq!(proxy.get("/api/tags").ok().json()["models"][0]["name"], MODEL);
    assert_eq!(proxy.get("/api/ps").ok().json()["models"][0]["context_length"], 4096);
    assert!(proxy.get("/api/version").ok().json()["version"].is_string());
    let show = json!({"model": "", "name": MODEL});
    let shown = proxy.post("/api/show", &[], show.to_string().as_bytes()).ok().json();
    assert_eq!(shown["parameters"], "num_ctx 4096", "{shown}");
    assert_eq!(shown["model_info"]["unknown.context_length"], 131_072, "{shown}");
    let unknown = proxy.post("/api/show", &[], b"{\"model\": \"other\"}");
    assert_eq!((unknown.status, unknown.json()["error"].is_string()), (404, true), "{}", unknown.text());
    // Loading needs no doing; what messages cannot say is refused.
    for (path, body) in
        [("/api/chat", json!({"model": MODEL, "messages": []})), ("/api/generate", json!({"model": MODEL}))]
    {
        let answer = proxy.post(path, &[], body.to_string().as_bytes()).ok().json();
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("load")), "{answer}");
    }
    let raw = json!({"model": MODEL, "prompt": "x", "raw": true});
    let answer = proxy.post("/api/generate", &[], raw.to_string().as_bytes());
    assert_eq!(answer.status, 400);
    assert!(answer.json()["error"].as_str().unwrap().contains("`raw`"), "{}", answer.text());
    assert!(fake.mains().is_empty());

    let body = json!({"model": MODEL, "system": "s", "prompt": "p", "stream": false, "options": {"num_predict": 5}});
    let answer = proxy.post("/api/generate", &[], body.to_string().as_bytes()).ok();
    assert_eq!(answer.header("x-windowsill-action"), Some("none"));
    let reply = answer.json();
    assert!(reply["response"].as_str().is_some_and(|t| !t.is_empty()) && reply["done"] == true, "{reply}");
    assert_eq!(
        fake.last().messages(),
        [json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "p"})]
    );
    assert_eq!(fake.last().json()["max_tokens"], 5);
}

#[test]
fn an_ollama_answers_its_clients_itself_and_drops_nothing() {
    let fake = Fake::start(Kind::Ollama, 4096);
    let proxy = TestProxy::before(&fake);
    assert_eq!(proxy.get("/api/version").ok().json()["version"], "0.13.0");
    let load = json!({"model": MODEL, "messages": [], "keep_alive": 0}).to_string();
    proxy.post("/api/chat", &[], load.as_bytes()).ok();
    let seen = fake.all().into_iter().rev().find(|s| s.path() == "/api/chat").unwrap();
    assert_eq!(String::from_utf8_lossy(&seen.body), load);

    let asked = json!({"model": MODEL, "think": false, "keep_alive": "5m", "format": "json", "truncate": true, "shift": true,
        "options": {"temperature": 0.5, "num_gpu": 3, "stop": ["a"]},
        "messages": [{"role": "user", "content": "hi", "images": ["iVBORw0KGgo="]}]});
    let answer = proxy.post("/api/chat", &[], asked.to_string().as_bytes()).ok();
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    assert!(answer.text().trim_end().lines().last().unwrap().contains("\"done\":true"), "{}", answer.text());
    let seen = fake.last().json();
    assert_eq!((seen["truncate"].clone(), seen.get("shift")), (json!(false), None), "nothing is dropped: {seen}");
    for key in ["model", "think", "keep_alive", "format", "messages"] {
        assert_eq!(seen[key], asked[key], "{key}: {seen}");
    }
    assert_eq!(seen["options"], json!({"temperature": 0.5, "num_gpu": 3, "stop": ["a"]}), "{seen}");
}

#[test]
fn a_tool_that_is_named_by_index_is_called_in_every_dialect() {
    use super::admission::{INDEX, agent};
    for dialect in &ALL {
        for streamed in [false, true] {
            let fake = Fake::start(Kind::LlamaServer, 8192);
            let proxy = TestProxy::with(&[fake.url()], "[context]\ntools = \"auto\"\n");
            scripted(&fake, 9, |n, _| {
                let arguments = match n {
                    0 => json!({"name": "Grep"}),
                    _ => json!({"name": "Grep", "arguments": {"pattern": "vault"}}),
                };
                turn("", vec![("call_1", INDEX.to_owned(), arguments.to_string())])
            });
            let answer = ask(&proxy, dialect, &whole_or_streamed(agent(), streamed)).ok();
            let read = if streamed { (dialect.stream)(&answer.text()) } else { (dialect.whole)(&answer.json()) };
            let what = format!("{} streamed: {streamed}", dialect.name);
            assert_eq!(read.calls, [("Grep".to_owned(), json!({"pattern": "vault"}))], "{what}");
            assert_eq!(fake.count(), 2, "{what}");
            assert!(!answer.text().contains(INDEX), "{what}");
        }
    }
}
