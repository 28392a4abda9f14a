//! OpenAI's own SDK, and openai-agents' compaction session, keep sessions of many windows through windowsill before a real
//! llama-server: with compaction within a request, on demand and by a trigger, and with all state kept here.

use std::process::Command;

use serde_json::Value;

use crate::support::say;
use crate::support::servers::{Llama, Windowsill, place};

/// Tokens of the window; the session has three times as many.
const WINDOW: u32 = 1024;

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

/// Drives sessions, each of three windows: how, how many replies, and whether the history is compacted.
fn drive_all(all: &[(&str, u64, bool)]) {
    let llama = Llama::start(WINDOW);
    let windowsill =
        Windowsill::before(&llama.url(), &[("CONTEXT_BACKGROUND", "false"), ("CONTEXT_SUMMARY_MAX_TOKENS", "64")]);
    for (how, turns, compacts) in all {
        let told = drive(&windowsill, how);
        let number = |key: &str| told[key].as_u64().unwrap();
        assert!(number("largest") <= u64::from(WINDOW), "{how}: {told}");
        assert_eq!(number("compactions") > 0, *compacts, "{how}: {told}");
        assert_eq!(number("turns"), *turns, "{how}: {told}");
    }
}

#[test]
fn the_openai_sdk_compacts_within_on_demand_and_by_a_trigger() {
    drive_all(&[("within", 14, true), ("compact", 14, true), ("trigger", 14, true)]);
}

#[test]
fn the_openai_sdk_keeps_its_state_here() {
    drive_all(&[("previous", 14, false), ("conversation", 13, true), ("background", 2, false)]);
}

#[test]
fn openai_agents_compact_their_sessions_here() {
    drive_all(&[("agents-input", 14, true), ("agents-previous_response_id", 14, true), ("agents-auto", 14, true)]);
}
