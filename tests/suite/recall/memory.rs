//! The memory tool that windowsill runs itself: files that stay from one conversation to the next.

use std::path::Path;

use serde_json::{Value, json};

use crate::keys::{tables, token};
use crate::support::script::*;
use crate::support::*;

const MEMORY: &str = "windowsill_memory";

fn asks(arguments: &Value) -> (&'static str, String, String) {
    ("call_m", MEMORY.to_owned(), arguments.to_string())
}

/// A model that calls the tool once with this, and then tells what it was answered.
fn calls_once(fake: &Fake, arguments: Value) {
    scripted(fake, 7, move |_, seen| {
        let last = seen.messages().last().cloned().unwrap_or_default();
        if last["role"] == "tool" && last["tool_call_id"] == "call_m" {
            turn("Noted.", Vec::new())
        } else {
            turn("", vec![asks(&arguments)])
        }
    });
}

/// What the last call was answered with.
fn told(fake: &Fake) -> String {
    text(fake.mains().last().unwrap().messages().last().unwrap())
}

fn with_memory(fake: &Fake, dir: &Path, more: &str) -> TestProxy {
    TestProxy::with(&[fake.url()], &format!("{more}\n[memory]\ndir = {:?}\n", dir.to_str().unwrap()))
}

fn asked() -> Chat {
    chat().system("s").user("What did I say of the harbor?").tools()
}

#[test]
fn what_a_model_notes_is_there_in_the_next_conversation() {
    for stream in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, 8192);
        let dir = tempfile::tempdir().unwrap();
        let proxy = with_memory(&fake, dir.path(), "");
        let sent = if stream { asked().stream() } else { asked() };
        calls_once(
            &fake,
            json!({"command": "create", "path": "/memories/harbor.md", "file_text": "The harbor is teal.\n"}),
        );
        let answer = proxy.chat(&sent).ok();
        assert!(
            answer.text().contains("Noted.") && !answer.text().contains(MEMORY),
            "one ordinary reply: {}",
            answer.text()
        );
        assert_eq!(tools_of(&fake.mains()[0]), ["read_file", "run", MEMORY]);
        assert_eq!(told(&fake), "File created successfully at: /memories/harbor.md");
        let kept = std::fs::read_to_string(dir.path().join("default/harbor.md")).unwrap();
        assert_eq!(kept, "The harbor is teal.\n");

        // The call stands in the history that the server sees, and the client's history goes on without it.
        fake.script(|_| Play::Usual);
        fake.clear();
        proxy.chat(&asked().assistant("Noted.").user("And the lighthouse?")).ok();
        let roles: Vec<String> =
            fake.last().messages().iter().map(|m| m["role"].as_str().unwrap().to_owned()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant", "user"]);

        fake.clear();
        calls_once(&fake, json!({"command": "view", "path": "/memories/harbor.md"}));
        let other = chat().system("t").user("Which color has the harbor?").tools();
        let spoken: [(&str, Vec<u8>); 4] = [
            ("/v1/chat/completions", other.body()),
            ("/v1/messages", anthropic(&[])),
            ("/v1/responses", responses()),
            ("/api/chat", ollama()),
        ];
        for (path, body) in spoken {
            fake.clear();
            let answer = proxy.post(path, &[], &body).ok();
            assert!(answer.text().contains("Noted.") && !answer.text().contains(MEMORY), "{path}: {}", answer.text());
            assert!(told(&fake).ends_with("     1\tThe harbor is teal.\n     2\t"), "{path}: {}", told(&fake));
        }
        // What is wrong is told to the model in words, and the reply goes on.
        calls_once(&fake, json!({"command": "view", "path": "/memories/../../etc/passwd"}));
        fake.clear();
        proxy.chat(&chat().system("u").user("Look there.").tools()).ok();
        assert_eq!(told(&fake), "Error: Path /memories/../../etc/passwd would escape /memories directory");
    }
}

fn anthropic(more: &[Value]) -> Vec<u8> {
    let tools = [&[json!({"name": "run", "input_schema": {"type": "object"}})], more].concat();
    let messages = json!([{"role": "user", "content": "Which color has the harbor, in French?"}]);
    json!({"model": MODEL, "max_tokens": 200, "messages": messages, "tools": tools}).to_string().into_bytes()
}

fn responses() -> Vec<u8> {
    let tools = json!([{"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": false}]);
    json!({"model": MODEL, "input": "Which color has the harbor, in Dutch?", "tools": tools}).to_string().into_bytes()
}

fn ollama() -> Vec<u8> {
    let tools = json!([{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]);
    let messages = json!([{"role": "user", "content": "Which color has the harbor, in Welsh?"}]);
    json!({"model": MODEL, "messages": messages, "tools": tools, "stream": false}).to_string().into_bytes()
}

#[test]
fn a_client_with_a_memory_of_its_own_runs_it_itself() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let dir = tempfile::tempdir().unwrap();
    let proxy = with_memory(&fake, dir.path(), "");
    let own = json!({"type": "memory_20250818", "name": "memory"});
    let arguments = json!({"command": "view", "path": "/memories"});
    scripted(&fake, 7, move |_, _| turn("", vec![("call_o", "memory".to_owned(), arguments.to_string())]));
    let answer = proxy.post("/v1/messages", &[], &anthropic(&[own])).ok().json();
    assert_eq!(tools_of(&fake.last()), ["run", "memory"], "no second one");
    assert_eq!(
        (&answer["stop_reason"], &answer["content"][0]["name"]),
        (&json!("tool_use"), &json!("memory")),
        "{answer}"
    );
    assert!(!dir.path().join("default").exists(), "nothing was read or written here");
}

#[test]
fn the_memory_is_there_only_where_it_is_wanted() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let usual = TestProxy::before(&fake);
    usual.chat(&asked()).ok();
    assert_eq!(fake.last().body, asked().body(), "off by default: byte for byte");
    // A model that calls it all the same calls a tool of the client's, as far as windowsill knows.
    calls_once(&fake, json!({"command": "view", "path": "/memories"}));
    assert!(usual.chat(&asked().user("Look.")).ok().text().contains(MEMORY));
    fake.script(|_| Play::Usual);
    let dir = tempfile::tempdir().unwrap();
    let proxy = with_memory(&fake, dir.path(), "");
    proxy.post("/v1/chat/completions", &[("x-windowsill-memory", "off")], &asked().body()).ok();
    assert_eq!(fake.last().body, asked().body());
    assert!(fake.last().header("x-windowsill-memory").is_none(), "the header goes no further");
    for plain in [chat().user("Hello."), asked().with("n", json!(2))] {
        proxy.chat(&plain).ok();
        assert_eq!(fake.last().body, plain.body());
    }
    // Behind the tool for a task that is done, and before the one that reads back: the head only grows.
    let both = with_memory(&fake, dir.path(), "[context]\ndone_tool = true\n");
    both.chat(&evicted()).ok();
    assert_eq!(tools_of(&fake.last()), ["read_file", "run", "windowsill_done", MEMORY, TOOL]);
}

#[test]
fn each_scope_has_a_memory_of_its_own() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let dir = tempfile::tempdir().unwrap();
    let proxy = with_memory(&fake, dir.path(), &tables());
    let ask = |name: &str, arguments: Value| {
        calls_once(&fake, arguments);
        fake.clear();
        let bearer = format!("Bearer {}", token(name));
        proxy.post("/v1/chat/completions", &[("Authorization", &bearer)], &asked().body()).ok();
        told(&fake)
    };
    let create = |text: &str| json!({"command": "create", "path": "/memories/own.md", "file_text": text});
    let view = || json!({"command": "view", "path": "/memories/own.md"});
    for name in ["ann", "bob", "root"] {
        assert!(ask(name, create(&format!("of {name}"))).starts_with("File created"), "{name}");
    }
    for (name, sees) in [("ann", "ann"), ("bob", "bob"), ("cid", "bob"), ("root", "root")] {
        assert!(ask(name, view()).ends_with(&format!("of {sees}")), "{name}");
    }
    assert!(ask("dan", view()).contains("does not exist"));
    assert!(!ask("root", json!({"command": "view", "path": "/memories"})).contains("ann"));
    for scope in ["ann", "team", "default"] {
        assert!(dir.path().join(scope).join("own.md").exists(), "{scope}");
    }
}
