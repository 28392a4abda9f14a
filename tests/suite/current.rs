//! What the window says is current: over sixty asks, each of one file read and one test run, the state that stands in the
//! prompt is never more than one fold old, with models of any size, in any window, with work between requests or without.

use serde_json::{Value, json};

use super::support::*;

/// Asks of a session.
const ASKS: usize = 60;

/// The greatest number that follows a mark in a text.
fn newest(text: &str, mark: &str) -> Option<usize> {
    let number = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok());
    text.split(mark).skip(1).filter_map(number).max()
}

fn texts(messages: &[Value]) -> String {
    messages.iter().map(|message| text(message) + "\n").collect()
}

/// A summary that says which asks its writer has seen: an older brief's word counts where the asks themselves are gone.
fn summary_of(messages: &[Value]) -> String {
    let read = texts(messages);
    let seen = newest(&read, "Ask number ").max(newest(&read, "STATE-AT-")).unwrap_or(0);
    format!(
        "## Goal\nGo through the modules of the ledger one by one: read each file and run its test.\n\
         ## Current state\nSTATE-AT-{seen}: modules up to {seen} were read, and their tests were run.\n\
         ## Technical context\nA module's test is run by make test-MODULE.\n## Exact next steps\nTake module {}.",
        seen + 1
    )
}

/// Has the server play a model that reads a file, runs a test and answers, and that writes such summaries.
fn play(fake: &Fake) {
    fake.script(|seen| {
        let message = match seen.messages() {
            all if seen.is_summary() => json!({"role": "assistant", "content": summary_of(&all)}),
            all if seen.is_main() && !tested(&all) => {
                let called = json!({"name": "read_file", "arguments": "{}"});
                json!({"role": "assistant", "content": null, "tool_calls": [{"id": "x", "type": "function", "function": called}]})
            }
            _ => return Play::Usual,
        };
        let finish = if message["content"].is_null() { "tool_calls" } else { "stop" };
        let prompt = tokens(&seen.json());
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": 20, "total_tokens": prompt + 20});
        Play::Json(200, json!({"object": "chat.completion", "model": MODEL, "usage": usage,
            "choices": [{"index": 0, "finish_reason": finish, "message": message}]}))
    });
}

/// Whether the newest step ran a test.
fn tested(messages: &[Value]) -> bool {
    messages.last().is_some_and(|last| last["role"] == "tool" && text(last).contains("test result"))
}

/// One session.
#[derive(Debug, Clone, Copy)]
struct Session {
    seed: u64,
    /// Parameters of its model.
    parameters: u64,
    window: u32,
    background: bool,
    /// Whether the client gives the server time between its asks.
    pauses: bool,
    asks: usize,
}

/// The part of an ask that is sent: the request itself, then with the file, then with the test's outcome.
fn ask(mut sent: Chat, n: usize, part: usize, dice: &mut Dice) -> Chat {
    let id = format!("call_{n}_{part}");
    match part {
        0 => sent = sent.user(&format!("Ask number {n}. Take module {n}: read it and run its test.")),
        1 => {
            let bytes = 1_400 + dice.below(2_000);
            sent = sent.call(&id, "read_file", json!({"path": format!("src/module_{n}.rs")}));
            sent = sent.result(&id, &prose(dice.next() % 100_000, bytes));
        }
        _ => {
            let bytes = 300 + dice.below(700);
            sent = sent.call(&id, "run", json!({"command": format!("make test-module_{n}")}));
            let said = prose(dice.next() % 100_000, bytes);
            sent = sent.result(&id, &format!("{said}\ntest result: ok. {} passed; 0 failed", 3 + n % 7));
        }
    }
    sent
}

/// Waits until the server has had nothing to do for a while.
fn pause(fake: &Fake, proxy: &TestProxy) {
    let mut quiet = 0;
    while quiet < 3 {
        let before = fake.all().len();
        (0..3).for_each(|_| drop(proxy.get("/windowsill/health")));
        quiet = if fake.all().len() == before { quiet + 1 } else { 0 };
    }
}

/// What is seen of a session's prompts.
#[derive(Debug, Default)]
struct Outcome {
    folds: usize,
    summaries: usize,
    /// Requests whose state was older than the fold before the last one, with what is wrong.
    stale: Vec<String>,
}

/// How many messages of the client's body the brief in a prompt stands for, at most.
fn folded_to(prompt: &str) -> Option<usize> {
    let head = prompt.lines().find(|line| line.starts_with("[windowsill brief of "))?;
    let range = head.split(", messages ").nth(1)?.split(')').next()?;
    range.split('-').nth(1)?.parse::<usize>().ok().map(|last| last + 1)
}

impl Session {
    fn run(self) -> Outcome {
        let fake = Fake::start(Kind::LlamaServer, self.window);
        fake.set(|s| s.parameters = Some(self.parameters));
        play(&fake);
        let toml = format!("[context]\nbackground = {}\n", self.background);
        let proxy = TestProxy::with(&[fake.url()], &toml);
        let (mut dice, mut out) = (Dice(self.seed), Outcome::default());
        let mut sent = chat().system("You are a careful programmer.").tools();
        // Of each message, the ask that it belongs to; where the last folds ended.
        let (mut of_ask, mut folds): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        for n in 1..=self.asks {
            for part in 0..3 {
                sent = ask(sent, n, part, &mut dice);
                of_ask.resize(sent.messages.len() - 1, n);
                proxy.chat(&sent).ok();
                let prompt = texts(&fake.last().messages());
                let to = folded_to(&prompt).unwrap_or(0);
                if folds.last().copied().unwrap_or(0) != to {
                    folds.push(to);
                }
                if let Some(before) = folds.len().checked_sub(2).and_then(|at| folds.get(at)) {
                    let (least, state) = (of_ask[before - 1], newest(&prompt, "STATE-AT-"));
                    if state.is_none_or(|state| state < least) {
                        out.stale.push(format!("ask {n}.{part}: state {state:?}, the fold before reached {least}"));
                    }
                }
            }
            sent = sent.assistant("Done; what is next?");
            of_ask.push(n);
            if self.pauses {
                pause(&fake, &proxy);
            }
        }
        if let Some(dir) = std::env::var_os("WINDOWSILL_KEEP_PROMPTS") {
            let name = format!("{}-{}-{}-{}", self.parameters, self.window, self.background, self.pauses);
            for (at, seen) in fake.mains().iter().enumerate() {
                let file = std::path::Path::new(&dir).join(format!("{name}-{at:03}.txt"));
                let all: String =
                    seen.messages().iter().map(|m| format!("=== {}\n{m}\n{}\n", m["role"], text(m))).collect();
                std::fs::write(file, all).unwrap();
            }
        }
        (out.folds, out.summaries) = (folds.len(), fake.summaries().len());
        out
    }
}

#[test]
fn the_state_is_never_more_than_one_fold_old() {
    for (parameters, billions) in [(1_500_000_000, "1.5B"), (8_000_000_000, "8B"), (30_000_000_000, "30B")] {
        for window in [4_096, 6_144, 8_192, 16_384] {
            for (background, pauses) in [(true, true), (true, false), (false, false)] {
                let session = Session { seed: 11, parameters, window, background, pauses, asks: ASKS };
                let started = std::time::Instant::now();
                let out = session.run();
                eprintln!(
                    "{billions} {window} {background} {pauses}: {} folds, {} summaries, {} stale {:?} {:.1?}",
                    out.folds,
                    out.summaries,
                    out.stale.len(),
                    out.stale.first(),
                    started.elapsed()
                );
            }
        }
    }
}
