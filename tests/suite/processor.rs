//! Processors older than those that llama.cpp was compiled for: told of in words, never by an illegal instruction.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Runs one of the processes that llama.cpp works in as an old processor would, by an emulator.
fn on_an_old_processor(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("qemu-x86_64-static");
    // Without AVX, as it was sold until 2011.
    command.args(["-cpu", "Nehalem", env!("CARGO_BIN_EXE_windowsill")]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("qemu-x86_64-static is in Debian's qemu-user-static");
    let mut input = child.stdin.take().unwrap();
    if arguments[0] == "engine-worker" {
        input.write_all(b"{\"chat_template\":null}\n").unwrap();
    }
    // Some end with their input: it stays open until they have spoken.
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    drop(input);
    let done = child.wait_with_output().unwrap();
    let said = first + &String::from_utf8(done.stderr).unwrap();
    (done.status.code().is_some(), said)
}

// The emulator takes 380 MB: it is tried by hand and, with the archives, by `scripts/test --release`.
#[test]
#[ignore = "needs qemu-x86_64-static"]
fn an_old_processor_is_told_of_by_every_process_that_llama_cpp_works_in() {
    let engine = [
        "engine-worker",
        "--model",
        "none.gguf",
        "--ctx-size",
        "64",
        "--batch-size",
        "64",
        "--ubatch-size",
        "64",
        "--threads",
        "1",
        "--threads-batch",
        "1",
        "--kv-type",
        "f16",
        "--memory-headroom",
        "0.1",
    ];
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for arguments in [&engine[..], &["count-worker", file], &["dry-run-worker", file], &["devices-worker"]] {
        let (ended, said) = on_an_old_processor(arguments);
        assert!(ended && said.contains("does not have (AVX, AVX2, FMA, F16C, BMI2)"), "{arguments:?}: {said}");
        assert!(said.contains("take the windowsill without the engine"), "{said}");
    }
    // Whoever asks for a model reads it at once, and nothing about the model's file.
    let dir = tempfile::tempdir().unwrap();
    let serve = ["serve", "--model", file, "--listen", "127.0.0.1:0", "--data-dir", dir.path().to_str().unwrap()];
    let (ended, said) = on_an_old_processor(&serve);
    assert!(ended && said.contains("error: the llama.cpp in this windowsill") && !said.contains("hint"), "{said}");
    // What needs no llama.cpp works there.
    let (ended, said) = on_an_old_processor(&["--version"]);
    assert!(ended && said.starts_with("windowsill "), "{said}");
}
