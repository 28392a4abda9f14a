//! OpenAI's own SDKs, Python and JavaScript, read the replies in which windowsill answers calls of its own: streamed chunk by
//! chunk, with the SDK's helper, and whole. And the SDKs of other dialects read theirs. The server is scripted, so that the
//! calls come for certain.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::fakes::script::{TOOL, call, evicted, id_in, scripted, turn};
use crate::fakes::{Fake, Kind, MODEL, Served, TestProxy, chat, prose, request, tokens};
use crate::support::say;
use crate::support::servers::place;

/// Runs a script of `tests/sdk` on a request.
fn ask(sdk: &str, proxy: &TestProxy, request: &Value, how: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("request.json");
    std::fs::write(&file, request.to_string()).unwrap();
    let script = |name: &str| format!("{}/tests/sdk/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut command = match sdk {
        "python" => {
            let mut python = Command::new(place("WINDOWSILL_SDK_PYTHON"));
            python.arg(script("ask.py"));
            python
        }
        _ => {
            let mut node = Command::new("node");
            node.arg(script("ask.mjs")).env("WINDOWSILL_SDK_JS", place("WINDOWSILL_SDK_JS"));
            node
        }
    };
    let done = command.arg(format!("http://{}/v1", proxy.address)).arg(&file).arg(how).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{sdk}, {how}: {said}");
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{sdk}, {how}: {e}: {said}"))
}

#[test]
fn the_openai_sdks_read_replies_with_recalls_in_them() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let first = evicted();
    assert_eq!(proxy.chat(&first).ok().action(), "evict");
    let id = id_in(&fake.last());
    let request = first.assistant("Done; what is next?").user("When does the vault open?").value();
    let written: &'static str =
        format!("<tool_call>{{\"name\": \"{TOOL}\", \"arguments\": {{\"id\": \"{id}\"}}}}</tool_call>").leak();
    let own = || ("call_7", "read_file".to_owned(), json!({"path": "src/a.rs"}).to_string());
    for sdk in ["python", "javascript"] {
        for how in ["create", "events", "whole"] {
            for (what, text, rounds) in [
                ("a call", "Let me look.\n\nAt nine.", 2),
                ("a call as text", "At nine.", 2),
                ("mixed calls", "Both.", 1),
                ("no call", "Well.", 1),
            ] {
                let id = id.clone();
                let seen = AtomicUsize::new(0);
                fake.clear();
                scripted(&fake, 7, move |_, _| match (what, seen.fetch_add(1, Ordering::SeqCst)) {
                    ("a call", 0) => turn("Let me look.", vec![call(json!({"id": id}))]),
                    ("a call as text", 0) => turn(written, vec![]),
                    ("mixed calls", _) => turn("Both.", vec![call(json!({"id": id})), own()]),
                    ("no call", _) => turn("Well.", vec![]),
                    _ => turn("At nine.", vec![]),
                });
                let got = ask(sdk, &proxy, &request, how);
                let name = format!("{sdk}, {how}, {what}: {got}");
                assert_eq!((got["text"].as_str(), fake.count()), (Some(text), rounds), "{name}");
                assert_eq!(got["ids"], json!(["c0"]), "one reply has one id: {name}");
                let (calls, finish) = match what {
                    "mixed calls" => (
                        json!([{"id": "call_7", "name": "read_file", "arguments": "{\"path\":\"src/a.rs\"}"}]),
                        "tool_calls",
                    ),
                    _ => (json!([]), "stop"),
                };
                assert_eq!((&got["calls"], &got["finish"]), (&calls, &json!(finish)), "{name}");
                let prompt = u64::from(tokens(&fake.last().json()));
                let wrote = 10 * rounds as u64;
                assert_eq!(got["usage"], json!([prompt, wrote, prompt + wrote]), "{name}");
                assert!(!got.to_string().contains("windowsill"), "{name}");
            }
        }
        say(&format!("{sdk}: all read"));
    }
}

#[test]
fn the_sdks_of_other_dialects_read_their_replies() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let script = format!("{}/tests/sdk/dialects.py", env!("CARGO_MANIFEST_DIR"));
    for (dialect, called, ended) in
        [("anthropic", "tool_use", "end_turn"), ("ollama", "stop", "stop"), ("responses", "completed", "completed")]
    {
        for how in [dialect.to_owned(), format!("{dialect}-stream")] {
            fake.clear();
            let round = AtomicUsize::new(0);
            scripted(&fake, 7, move |_, _| match round.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    turn("Let me look.", vec![("call_7", "read_file".to_owned(), json!({"path": "a.rs"}).to_string())])
                }
                _ => turn("It is \u{e9}mpty.", vec![]),
            });
            let mut python = Command::new(place("WINDOWSILL_SDK_PYTHON"));
            let done = python.args([&script, &format!("http://{}", proxy.address), &how, MODEL]).output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{how}: {said}");
            let got: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{how}: {e}: {said}"));
            let seen = fake.mains();
            let prompts: Vec<u32> = seen.iter().map(|s| tokens(&s.json())).collect();
            let want = json!([
                ["Let me look.", [["read_file", {"path": "a.rs"}]], called, prompts[0], 10],
                ["It is \u{e9}mpty.", [], ended, prompts[1], 10],
            ]);
            assert_eq!(got, want, "{how}");
            // What came back went on as it was, and in order.
            let messages = seen[1].messages();
            let roles: Vec<&str> = messages.iter().filter_map(|m| m["role"].as_str()).collect();
            assert_eq!(roles, ["system", "user", "assistant", "tool"], "{how}: {messages:?}");
            assert_eq!(messages[..2], seen[0].messages()[..], "{how}");
            assert_eq!(messages[2]["tool_calls"][0]["function"]["arguments"], "{\"path\":\"a.rs\"}", "{how}");
            assert_eq!(messages[2]["tool_calls"][0]["id"], messages[3]["tool_call_id"], "{how}");
            assert_eq!(messages[3]["content"], "fn a() {}", "{how}");
        }
        say(&format!("{dialect}: read, and gone on with"));
    }
}

#[test]
fn helpers_of_the_sdks_go_on_from_what_windowsill_remembers() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let script = format!("{}/tests/sdk/state.py", env!("CARGO_MANIFEST_DIR"));
    for (helper, state) in
        [("anthropic-runner", json!(["create", "continue"])), ("openai-previous", json!([false, true]))]
    {
        for how in [helper.to_owned(), format!("{helper}-stream")] {
            fake.clear();
            scripted(&fake, 7, |round, _| match round {
                0 => turn("", vec![("call_7", "read_file".to_owned(), json!({"path": "a.rs"}).to_string())]),
                _ => turn("It defines a.", vec![]),
            });
            let mut python = Command::new(place("WINDOWSILL_SDK_PYTHON"));
            let done = python.args([&script, &format!("http://{}", proxy.address), &how, MODEL]).output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{how}: {said}");
            let got: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{how}: {e}: {said}"));
            // No request came again with the whole history.
            assert_eq!(got, json!({"said": "It defines a.", "requests": 2, "state": state}), "{how}");
            let messages = fake.mains()[1].messages();
            let roles: Vec<&str> = messages.iter().filter_map(|m| m["role"].as_str()).collect();
            assert_eq!(roles, ["system", "user", "assistant", "tool"], "{how}: {messages:?}");
            assert_eq!(messages[3]["content"], "fn a() {}", "{how}");
        }
        say(&format!("{helper}: gone on with"));
    }
}

#[test]
fn the_mcp_sdk_changes_a_conversation_over_both_transports() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[fake.url()], "");
    let config = std::fs::read_to_string(dir.path().join("config.toml")).unwrap();
    std::fs::write(dir.path().join("config.toml"), config.replace("127.0.0.1:0", &served.address.to_string())).unwrap();
    let data = dir.path().join("data");
    let command = [env!("CARGO_BIN_EXE_windowsill"), "mcp", "--data-dir", data.to_str().unwrap()];
    let ways = [vec![format!("http://{}/mcp", served.address)], command.map(str::to_owned).to_vec()];
    for (seed, way) in (3..).zip(ways) {
        let sent = chat().system("s").user(&format!("Read number {seed}.")).tools().step(1, &prose(seed, 9_000));
        let answer = request(served.address, "POST", "/v1/chat/completions", &[], &sent.body()).ok();
        let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
        let mut python = Command::new(place("WINDOWSILL_SDK_PYTHON"));
        python.arg(format!("{}/tests/sdk/mcp_tools.py", env!("CARGO_MANIFEST_DIR"))).arg(&id).args(&way);
        let done = python.current_dir(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{way:?}: {said}");
        let seen: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{way:?}: {e}: {said}"));
        for (seen, version) in seen.as_array().unwrap().iter().zip(["2025-11-25", "2026-07-28"]) {
            let first = version == "2025-11-25";
            assert_eq!(seen["version"], version, "{way:?}: {seen}");
            assert_eq!(seen["writes"], json!(["done", "pin", "unpin"]), "{seen}");
            assert_eq!(seen["destroys"], json!(["unpin"]), "{seen}");
            let structured = json!(["build", "context", "done", "pin", "pins", "unpin", "window"]);
            assert_eq!(seen["structured"], structured, "{seen}");
            assert!(seen["pins"][0].as_str().unwrap().starts_with("The gate stays green ("), "{seen}");
            assert_eq!((&seen["taken"], &seen["built"]), (&json!(true), &json!("user")), "{seen}");
            assert_eq!((&seen["done"], &seen["again"]), (&json!(first), &Value::Null), "{seen}");
            // A call that is answered at once may tell nothing of its progress.
            assert!(seen["progress"].as_u64() > Some(0), "{seen}");
        }
        say(&format!("{}: both versions", way[0]));
    }
}

/// What windowsill answers to calls of its memory tool is what the tool of Anthropic's SDK answers, word for word.
#[test]
fn the_memory_answers_as_the_sdks_own_does() {
    let file = "/memories/notes/a.md";
    let commands = [
        json!({"command": "view", "path": "/memories/none"}),
        json!({"command": "create", "path": file, "file_text": "one\ntwo\nthree two\nfour\nfive\nsix\n"}),
        json!({"command": "create", "path": file, "file_text": "x"}),
        json!({"command": "create", "path": "/memories/b.md", "file_text": ""}),
        json!({"command": "view", "path": file}),
        json!({"command": "view", "path": file, "view_range": [2, 3]}),
        json!({"command": "view", "path": file, "view_range": [5, -1]}),
        json!({"command": "str_replace", "path": file, "old_str": "two", "new_str": "2"}),
        json!({"command": "str_replace", "path": file, "old_str": "ten", "new_str": "10"}),
        json!({"command": "str_replace", "path": file, "old_str": "four", "new_str": "4\n4.5"}),
        json!({"command": "str_replace", "path": "/memories/none", "old_str": "a", "new_str": "b"}),
        json!({"command": "str_replace", "path": "/memories/notes", "old_str": "a", "new_str": "b"}),
        json!({"command": "insert", "path": file, "insert_line": 0, "insert_text": "zero\n"}),
        json!({"command": "insert", "path": file, "insert_line": 8, "insert_text": "end"}),
        json!({"command": "insert", "path": file, "insert_line": 99, "insert_text": "x"}),
        json!({"command": "insert", "path": "/memories/none", "insert_line": 0, "insert_text": "x"}),
        json!({"command": "view", "path": file}),
        json!({"command": "rename", "old_path": file, "new_path": "/memories/b.md"}),
        json!({"command": "rename", "old_path": file, "new_path": "/memories/c/d.md"}),
        json!({"command": "rename", "old_path": file, "new_path": "/memories/e.md"}),
        json!({"command": "rename", "old_path": "/memories", "new_path": "/memories/f"}),
        json!({"command": "view", "path": "/memories"}),
        json!({"command": "delete", "path": "/memories/b.md"}),
        json!({"command": "delete", "path": "/memories/b.md"}),
        json!({"command": "delete", "path": "/memories/c"}),
        json!({"command": "delete", "path": "/memories"}),
        json!({"command": "view", "path": "/etc/passwd"}),
        json!({"command": "view", "path": "/memories/../../etc/passwd"}),
    ];
    let mut python = Command::new(place("WINDOWSILL_SDK_PYTHON"));
    let script = format!("{}/tests/sdk/memory.py", env!("CARGO_MANIFEST_DIR"));
    let mut child = python.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(json!(commands).to_string().as_bytes()).unwrap();
    let theirs: Vec<String> = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();

    let fake = Fake::start(Kind::LlamaServer, 8192);
    let dir = tempfile::tempdir().unwrap();
    let proxy = TestProxy::with(&[fake.url()], &format!("[memory]\ndir = {:?}\n", dir.path().to_str().unwrap()));
    for ((nth, command), theirs) in commands.iter().enumerate().zip(theirs) {
        fake.clear();
        let calls = ("call_m", "windowsill_memory".to_owned(), command.to_string());
        let round = AtomicUsize::new(0);
        scripted(&fake, 7, move |_, _| match round.fetch_add(1, Ordering::SeqCst) {
            0 => turn("", vec![calls.clone()]),
            _ => turn("Noted.", vec![]),
        });
        proxy.chat(&chat().system("s").user(&format!("Do number {nth}.")).tools()).ok();
        let messages = fake.mains().last().unwrap().messages();
        assert_eq!(messages.last().unwrap()["content"], theirs, "{command}");
    }
}
