//! Anthropic's own helpers manage a history before a real llama.cpp server: context editing, compaction at a line, with a pause and on
//! demand, each over a session three windows long. The server evaluates each prompt; what its small model would write is a call instead,
//! so that the steps come for certain.

use std::process::Command;

use serde_json::{Value, json};

use crate::fakes::script::{scripted, turn};
use crate::fakes::{Fake, Kind, MODEL, TestProxy};
use crate::support::relay::Relay;
use crate::support::say;
use crate::support::servers::{Llama, Windowsill, place};

/// A step brings an eighth of the window: so many are three windows.
const STEPS: usize = 26;

/// Lines of a page for each 1,024 tokens of the window; a line has some 21.
const LINES: u32 = 6;

fn run(url: &str, how: &str, model: &str, (steps, lines): (usize, u32)) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/managed.py");
    let mut python = Command::new(place("WINDOWSILL_SDK_PYTHON"));
    let done = python.args([script, url, how, model, &steps.to_string(), &lines.to_string()]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{how}: {said}");
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{how}: {e}: {said}"))
}

/// Runs a session of three windows, and checks what holds of every one. Returns the replies.
fn session(how: &str, window: u32) -> Vec<Value> {
    let llama = Llama::start(window);
    let relay = Relay::before(&llama.url());
    relay.call("read_page");
    let windowsill = Windowsill::before(&relay.url(), &[("CONTEXT_SUMMARY_MAX_TOKENS", "64")]);
    let got = run(&windowsill.url(), how, "smollm2", (STEPS, LINES * window / 1024));
    let rows = got["rows"].as_array().unwrap().clone();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let prompt = |row: &Value| number(row, "read") + number(row, "cached");
    let (read, largest) =
        (rows.iter().map(|row| number(row, "read")).sum::<u64>(), rows.iter().map(prompt).max().unwrap());
    let pages = number(&got, "pages");
    let compactions = rows.iter().filter(|row| row["content"][0] == "compaction").count();
    say(&format!(
        "{how}: {} replies, {pages} pages, {compactions} compactions; largest prompt {largest}, evaluated {read}",
        rows.len()
    ));
    rows.iter().for_each(|row| say(&row.to_string()));
    let steps = rows.iter().filter(|row| row["stop"] != "compaction").count();
    assert!(rows.len() >= STEPS && pages + 1 >= steps as u64, "{how}: the session came to its end: {got}");
    assert!(largest < u64::from(window), "{how}");
    // Each page is evaluated once, and again after a rewrite now and then.
    assert!(read < pages * u64::from(window) / 8 * 2, "{how}: {read} tokens evaluated for {pages} pages");
    assert_eq!(got["compacts"], true);
    assert!(number(&got, "window") < u64::from(window), "{got}");
    if let Some(counted) = got["counted"].as_array() {
        let of = |at: usize| counted[at].as_u64().unwrap();
        assert!(of(0) < u64::from(window) && of(1) > 3 * u64::from(window), "{how}: {counted:?}");
    }
    rows
}

#[test]
fn the_sdks_tool_runner_edits_the_context() {
    let how = "editing";
    let rows = session(how, 3072);
    assert!(rows.iter().all(|row| row["applied"].is_array()), "{rows:?}");
    let uses = |row: &Value| row["applied"][0]["cleared_tool_uses"].as_u64().unwrap_or(0);
    assert!(rows.iter().filter(|row| uses(row) > 0).count() >= 8, "{rows:?}");
    // What was cleared stays so, until a fold takes it all.
    assert!(rows.windows(2).all(|two| uses(&two[1]) >= uses(&two[0]) || uses(&two[1]) == 0), "{rows:?}");
    let tokens = |row: &Value| row["applied"][0]["cleared_input_tokens"].as_u64().unwrap_or(0);
    assert!(rows.iter().all(|row| tokens(row) >= uses(row) * 100), "{rows:?}");
}

#[test]
fn the_sdks_tool_runner_compacts_at_a_line() {
    for how in ["compaction-stream", "pause"] {
        let rows = session(how, 2048);
        assert!(rows.iter().any(|row| row["content"][0] == "compaction"), "{how}: {rows:?}");
        for row in rows.iter().filter(|row| row["content"][0] == "compaction") {
            assert_eq!(row["iterations"][0], "compaction", "{how}: {row}");
            let alone = how.starts_with("pause");
            assert_eq!(
                (row["stop"] == "compaction", row["content"].as_array().unwrap().len() == 1),
                (alone, alone),
                "{row}"
            );
        }
    }
}

#[test]
fn the_sdks_tool_runner_compacts_on_demand() {
    let how = "on-demand-stream";
    let rows = session(how, 2048);
    let compacted: Vec<usize> = (0..rows.len()).filter(|at| rows[*at]["stop"] == "compaction").collect();
    assert!(compacted.len() >= 2, "{how}: {rows:?}");
    for at in compacted {
        assert_eq!(rows[at]["content"], json!(["compaction"]), "{how}");
        // The next prompt is the brief and what is asked.
        let prompt = |row: &Value| row["read"].as_u64().unwrap() + row["cached"].as_u64().unwrap();
        if let Some(next) = rows.get(at + 1) {
            assert!(prompt(next) < prompt(&rows[at - 1]), "{how}: {next}");
        }
    }
}

#[test]
fn the_sdks_memory_tool_runs_what_the_model_calls() {
    for how in ["memory", "memory-stream"] {
        let fake = Fake::start(Kind::LlamaServer, 8192);
        let proxy = TestProxy::before(&fake);
        let calls = [
            json!({"command": "create", "path": "/memories/notes.md", "file_text": "port 8080\n"}),
            json!({"command": "str_replace", "path": "/memories/notes.md", "old_str": "8080", "new_str": "9090"}),
            json!({"command": "insert", "path": "/memories/notes.md", "insert_line": 0, "insert_text": "# Ports\n"}),
            json!({"command": "rename", "old_path": "/memories/notes.md", "new_path": "/memories/ports.md"}),
            json!({"command": "view", "path": "/memories/ports.md", "view_range": [1, 2]}),
            json!({"command": "delete", "path": "/memories/ports.md"}),
            json!({"command": "view", "path": "/memories"}),
        ];
        let script = calls.clone();
        scripted(&fake, 7, move |round, _| match script.get(round) {
            Some(call) => turn("", vec![("call_7", "memory".to_owned(), call.to_string())]),
            None => turn("Noted.", vec![]),
        });
        let got = run(&format!("http://{}", proxy.address), how, MODEL, (20, 1));
        let last = fake.last().messages();
        let results: Vec<&str> =
            last.iter().filter(|m| m["role"] == "tool").map(|m| m["content"].as_str().unwrap()).collect();
        assert_eq!(results.len(), calls.len(), "{got}");
        assert!(results.iter().all(|result| !result.starts_with("Error")), "{results:?}");
        assert!(results[4].contains("9090") && results[4].contains("# Ports"), "{results:?}");
        let tools = fake.last().json()["tools"].clone();
        assert_eq!(tools[0]["function"]["name"], "memory");
        say(&format!("{how}: {} commands", calls.len()));
    }
}
