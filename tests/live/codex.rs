//! Codex compacts at its server (`compaction_trigger`), as it does where it takes the provider for OpenAI: over a session three windows
//! long that is resumed. Codex ends the session unless such a reply is exactly one compaction, added, done and completed. The server
//! is scripted, so that the calls come for certain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::fakes::script::{Says, TOOL, scripted};
use crate::fakes::{Fake, Kind, MODEL, Seen, TestProxy, tokens};
use crate::support::say;

/// Tokens of the window.
const WINDOW: u32 = 4096;

/// Codex compacts from so many tokens on, by the usage that it is told: before windowsill would fold.
const LIMIT: u32 = 2600;

/// Commands of the first prompt. Each brings some 350 tokens, so that all of them are three windows and more.
const STEPS: usize = 34;

/// What the first command prints, and no later prompt holds unless it is recalled.
const NEEDLE: &str = "lever Zanzibar opens the vault";

/// Where Codex is, installed by `scripts/clients`.
fn codex() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/clients");
    let done = Command::new("python3").args([script, "--install", "codex"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let place = said.trim().strip_prefix("codex ").unwrap_or_else(|| panic!("{done:?}"));
    Path::new(place).join("node_modules/.bin/codex")
}

/// Writes a config in which Codex takes windowsill for OpenAI, and brings as little of its own as it can.
fn configure(home: &Path, url: &str) {
    let folder = home.join(".codex");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("instructions.md"), "You are a coding agent. Use the tools.").unwrap();
    let config = format!(
        r#"model = "{MODEL}"
model_provider = "windowsill"
model_context_window = 131072
model_auto_compact_token_limit = {LIMIT}
model_instructions_file = "{}"
approval_policy = "never"
sandbox_mode = "danger-full-access"
web_search = "disabled"
include_environment_context = false
[skills.bundled]
enabled = false
[features]
multi_agent = false
goals = false
view_image = false
apps = false
plugins = false
[model_providers.windowsill]
name = "OpenAI"
base_url = "{}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"#,
        folder.join("instructions.md").display(),
        url
    );
    fs::write(folder.join("config.toml"), config).unwrap();
}

/// Runs Codex in `home/project`. Returns what it printed.
fn run(home: &Path, arguments: &[&str]) -> String {
    let project = home.join("project");
    fs::create_dir_all(&project).unwrap();
    let mut command = Command::new("timeout");
    command.arg("900").arg(codex()).args(["exec", "--skip-git-repo-check", "--json"]).args(arguments);
    command.current_dir(project).env("HOME", home).env("CI", "1").stdin(std::process::Stdio::null());
    let done = command.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && !said.contains("remote compact"), "{said}\n{errors}");
    said.into_owned()
}

/// How often the history was compacted, by what Codex keeps of the session.
fn compactions(home: &Path) -> usize {
    let mut folders = vec![home.join(".codex/sessions")];
    let mut found = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found += fs::read_to_string(path).unwrap().matches("\"type\":\"compacted\"").count(),
            }
        }
    }
    found
}

/// What the model says to its nth request.
fn turn(nth: usize, seen: &Seen) -> Says {
    let call = |tool: &str, arguments: serde_json::Value| {
        let id: &'static str = format!("call_{nth}").leak();
        Says::Turn("", vec![(id, tool.to_owned(), arguments.to_string())])
    };
    let command = |cmd: String| call("exec_command", json!({"cmd": cmd}));
    match nth {
        0 => command(format!("echo '{NEEDLE}'; seq 100 160")),
        // Long after it was folded.
        30 => call(TOOL, json!({"query": "lever vault"})),
        31 => {
            let last = seen.messages().pop().unwrap();
            assert!(last["role"] == "tool" && last.to_string().contains(NEEDLE), "{last}");
            command("echo recalled".into())
        }
        STEPS => Says::Turn("The look around is over.", vec![]),
        _ if nth > STEPS + 2 => Says::Turn("Looked once more.", vec![]),
        _ => command(format!("seq {nth}000 {nth}120 | sed 's/$/ boxes/'")),
    }
}

#[test]
fn codex_compacts_at_its_server_and_goes_on() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let home = tempfile::tempdir().unwrap();
    configure(home.path(), &format!("http://{}", proxy.address));
    scripted(&fake, 1 << 20, turn);

    let first = run(home.path(), &["Look around step by step."]);
    assert!(first.contains("The look around is over."), "{first}");
    let again = run(home.path(), &["resume", "--last", "And once more."]);
    assert!(again.contains("Looked once more."), "{again}");

    let prompts: Vec<u32> = fake.mains().iter().map(|seen| tokens(&seen.json())).collect();
    let done = compactions(home.path());
    say(&format!("{} prompts of at most {:?} tokens, {done} compactions", prompts.len(), prompts.iter().max()));
    assert!(prompts.len() > STEPS + 2 && prompts.iter().all(|prompt| *prompt < WINDOW), "{prompts:?}");
    // Each of three windows was compacted at least once.
    assert!(done >= 3, "{done}");
    let conversations = proxy.get("/windowsill/conversations").json();
    let all = conversations["conversations"].as_array().or(conversations.as_array()).unwrap();
    assert_eq!(all.len(), 1, "{conversations}");
}
