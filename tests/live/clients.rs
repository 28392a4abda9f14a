//! Real clients, by `scripts/clients`: those that install in seconds hold their sessions through windowsill's real binary.
//! The model is scripted; what is tested is that a client notices nothing, and that its requests and results stay.

use std::process::Command;

#[test]
fn clients_keep_their_requests_results_and_files() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/clients");
    let mut command = Command::new("python3");
    command.args([script, "--windowsill", env!("CARGO_BIN_EXE_windowsill"), "--jobs", "2"]);
    let done = command.args(["claude", "codex", "aider", "pydantic-ai"]).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}\n{errors}");
    assert_eq!(said.matches("  ok").count(), 12, "{said}");
}
