//! OpenAI's own SDK, and openai-agents' compaction session, keep sessions of many windows through windowsill before a real
//! llama-server: with compaction within a request, on demand and by a trigger, and with all state kept here.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::say;
use crate::support::servers::{Llama, Windowsill, place};

/// Tokens of the window; the session has three times as many.
const WINDOW: u32 = 2048;

/// Runs the script; what it found is checked by itself, its figures here.
fn drive(windowsill: &Windowsill, how: &str) -> Value {
    let script = format!("{}/tests/sdk/openai_state.py", env!("CARGO_MANIFEST_DIR"));
    let url = windowsill.chat_url();
    let url = url.trim_end_matches("/v1/chat/completions");
    let mut python = Command::new(place("WINDOWSILL_SDK_PYTHON"));
    // Compaction in openai-agents is for models with OpenAI's names; a llama-server answers to any.
    let done = python.args([&script, url, how, "gpt-4.1"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{how}: {said}");
    let told = serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{how}: {e}: {said}"));
    say(&format!("{how}: {told}"));
    told
}

#[test]
fn the_openai_sdks_compact_and_keep_state_over_many_windows() {
    let llama = Llama::start(WINDOW);
    let windowsill = Windowsill::before(&llama.url(), &[("CONTEXT_BACKGROUND", "false")]);
    for (how, compacts) in [
        ("within", true),
        ("compact", true),
        ("trigger", true),
        ("previous", false),
        ("conversation", true),
        ("background", false),
        ("agents-input", true),
        ("agents-previous_response_id", true),
    ] {
        let told = drive(&windowsill, how);
        let number = |key: &str| told[key].as_u64().unwrap();
        assert!(number("largest") <= u64::from(WINDOW), "{how}: {told}");
        assert_eq!(number("compactions") > 0, compacts, "{how}: {told}");
        let turns = match how {
            "background" => 2,
            "conversation" => 13,
            _ => 14,
        };
        assert_eq!(told["turns"], json!(turns), "{how}: {told}");
    }
}
