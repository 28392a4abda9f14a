//! Several conversations on one llama.cpp server with few slots: what a helper pushes out, and prompts that come back from files.

use serde_json::{Value, json};

use super::support::http;
use super::support::say;
use super::support::servers::{Llama, Windowsill};

/// What Open WebUI asks for a title with.
const TITLE: &str = "### Task:\nGenerate a concise title.\n### Guidelines:\n- Be short.\n### Chat History:\n<chat_history>\nUSER: Which beds are free?\n</chat_history>";

/// Someone who knows so many things about a subject, as the first messages of a chat.
fn talk(subject: &str, facts: usize) -> Vec<Value> {
    let words: String = (0..facts).map(|n| format!("{subject} number {n} lies behind the wall {}. ", n * 7)).collect();
    vec![
        json!({"role": "system", "content": format!("You know every {subject}.")}),
        json!({"role": "user", "content": format!("{words}\nWhich {subject} is best?")}),
    ]
}

/// Sends a chat; what the server says: its choices, and how much of the prompt was cached and evaluated.
fn send(windowsill: &Windowsill, messages: &[Value]) -> (Value, u64, u64) {
    let sent = json!({"model": "smollm2", "max_tokens": 6, "temperature": 0, "seed": 1, "logprobs": true, "top_logprobs": 5,
        "messages": messages});
    let reply = http::post(&windowsill.chat_url(), sent);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let told = reply.json();
    let number = |what: &str| told.pointer(what).and_then(Value::as_u64).expect("a figure");
    (told["choices"].clone(), number("/timings/cache_n"), number("/timings/prompt_n"))
}

/// The chat goes on: with what was answered, and with another question.
fn go_on(messages: &mut Vec<Value>, choices: &Value, ask: &str) {
    messages.push(json!({"role": "assistant", "content": choices[0]["message"]["content"]}));
    messages.push(json!({"role": "user", "content": ask}));
}

/// The server alone gives a helper the slot used longest ago, which is the long conversation's.
#[test]
fn a_helper_leaves_the_long_conversation_its_slot() {
    let llama = Llama::start_with(8192, &["--parallel", "2", "--cache-ram", "0"]);
    let windowsill = Windowsill::before(&llama.url(), &[("CONTEXT_BACKGROUND", "false")]);
    let (mut long, short) = (talk("garden", 60), talk("kitchen", 6));
    let (choices, _, first) = send(&windowsill, &long);
    send(&windowsill, &short);
    send(&windowsill, &[json!({"role": "user", "content": TITLE})]);
    go_on(&mut long, &choices, "And which is worst?");
    let (_, cached, again) = send(&windowsill, &long);
    say(&format!("the long conversation: {cached} from its slot, {again} evaluated, {first} at first"));
    assert!(again * 4 < first, "its prompt was still there: {again} of {first}");
}

/// A prompt whose slot another conversation needs goes to a file, once it was seen that the server loses such prompts, and comes back
/// from there: the same reply to the bit, with one token evaluated. So it does after the server was started again.
#[test]
fn a_prompt_comes_back_from_its_file_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap().to_owned();
    let arguments = ["--cache-ram", "0", "--slot-save-path", &path];
    let mut llama = Llama::start_with(4096, &arguments);
    let windowsill = Windowsill::before(&llama.url(), &[("CONTEXT_BACKGROUND", "false")]);
    let (mut one, other) = (talk("garden", 60), talk("kitchen", 50));
    let (choices, _, first) = send(&windowsill, &one);
    send(&windowsill, &other);
    go_on(&mut one, &choices, "And which is worst?");
    let (_, _, lost) = send(&windowsill, &one);
    assert!(lost * 4 > first * 3, "without a file it is read again: {lost} of {first}");
    send(&windowsill, &other);
    send(&windowsill, &one);
    // What the server says while the prompt is in its slot.
    let (as_it_was, cached, evaluated) = send(&windowsill, &one);
    assert!(evaluated <= 2 && cached > first / 2, "{cached} cached, {evaluated} evaluated");
    send(&windowsill, &other);
    let (back, cached, evaluated) = send(&windowsill, &one);
    say(&format!("back from its file: {cached} cached, {evaluated} evaluated, {first} at first"));
    assert!(evaluated <= 2, "{evaluated} were evaluated again");
    assert_eq!(back, as_it_was, "the same tokens with the same probabilities");
    llama.restart_with(4096, &arguments);
    let (back, cached, evaluated) = send(&windowsill, &one);
    say(&format!("after a restart of the server: {cached} cached, {evaluated} evaluated"));
    assert!(evaluated <= 2, "{evaluated} were evaluated again");
    assert_eq!(back, as_it_was);
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert!((1..=8).contains(&files), "{files} files");
}

/// A server that was started without a folder for slots is asked once, and answers as it would alone; one that keeps prompts in RAM is
/// asked nothing.
#[test]
fn a_server_that_cannot_keep_slots_is_left_alone() {
    for (more, again) in [(&["--cache-ram", "0"][..], true), (&["--cache-ram", "512"][..], false)] {
        let llama = Llama::start_with(4096, more);
        let windowsill = Windowsill::before(&llama.url(), &[("CONTEXT_BACKGROUND", "false")]);
        let (one, other) = (talk("garden", 40), talk("kitchen", 40));
        let (_, _, first) = send(&windowsill, &one);
        for _ in 0..3 {
            send(&windowsill, &other);
            let (_, cached, evaluated) = send(&windowsill, &one);
            assert_eq!(evaluated * 2 > first, again, "{more:?}: {cached} cached, {evaluated} evaluated");
        }
    }
}
