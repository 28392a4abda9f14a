//! What the window says is current: over sixty asks, each of one file read and one test run, the state that stands in the
//! prompt is never more than one fold old, with models of any size, in any window, with work between requests or without.

use serde_json::{Value, json};

use super::support::*;

/// Asks of a session; `WINDOWSILL_ASKS=60` for whole ones.
fn asks() -> usize {
    std::env::var_os("WINDOWSILL_ASKS").and_then(|asks| asks.to_str()?.parse().ok()).unwrap_or(24)
}

/// What stands above a summary that is older than its brief.
const MARK: &str = "[This summary goes as far as message ";

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
        let before = fake.total();
        (0..3).for_each(|_| drop(proxy.get("/windowsill/health")));
        quiet = if fake.total() == before { quiet + 1 } else { 0 };
    }
}

/// What is seen of a session's prompts.
#[derive(Debug, Default)]
struct Outcome {
    folds: usize,
    /// What is wrong with the state in a prompt.
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
                let state = newest(&prompt, "STATE-AT-");
                let of = |to: &usize| to.checked_sub(1).map_or(0, |last| of_ask[last]);
                let (now, before) = (folds.last().map_or(0, of), folds.iter().rev().nth(1).map_or(0, of));
                if folds.len() > 1 && state.is_none_or(|state| state < before) {
                    out.stale.push(format!("ask {n}.{part}: state {state:?}, the fold before reached {before}"));
                }
                if state.is_some_and(|state| state < now) && !prompt.contains(MARK) {
                    out.stale
                        .push(format!("ask {n}.{part}: state {state:?} is not marked, and the fold reaches {now}"));
                }
            }
            sent = sent.assistant("Done; what is next?");
            of_ask.push(n);
            if self.pauses {
                pause(&fake, &proxy);
            }
        }
        out.folds = folds.len();
        out
    }
}

/// The sizes of [`Session::parameters`].
const SIZES: [u64; 3] = [1_500_000_000, 8_000_000_000, 30_000_000_000];

fn is_current(background: bool, pauses: bool) {
    let (mut wrong, mut folds) = (Vec::new(), 0);
    for (at, window) in [4_096, 6_144, 8_192, 16_384].into_iter().enumerate() {
        for parameters in SIZES {
            let session = Session { seed: 21 + at as u64, parameters, window, background, pauses, asks: asks() };
            let out = session.run();
            folds += out.folds;
            wrong.extend(out.stale.into_iter().take(2).map(|stale| format!("{session:?}: {stale}")));
        }
    }
    assert!(wrong.is_empty() && folds > 12, "{folds} folds; {wrong:#?}");
}

#[test]
fn a_state_that_is_made_between_requests_is_never_more_than_one_fold_old() {
    is_current(true, true);
}

/// The client comes back at once, so that what is begun between its requests is stopped.
#[test]
fn so_is_one_of_a_client_that_never_pauses() {
    is_current(true, false);
}

#[test]
fn so_is_one_that_requests_wait_for() {
    is_current(false, false);
}

/// After a fold that no model was asked for, one is asked as soon as nobody waits.
#[test]
fn what_was_folded_without_a_model_is_told_of_between_requests() {
    let fake = Fake::start(Kind::LlamaServer, 8_192);
    play(&fake);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nfold_every_turns = 4\nkeep_recent = 2\n");
    let mut sent = chat().system("s");
    let mut asked = 0;
    for n in 1..=12 {
        sent = sent.user(&format!("Ask number {n}. {}", prose(n, 500))).with("stream", json!(false));
        let action = proxy.chat(&sent).ok().action().to_owned();
        sent = sent.assistant("Done; what is next?");
        if action == "summarize" {
            asked += 1;
            fake.wait("a summary", |seen| seen.iter().filter(|s| s.is_summary()).count() >= asked);
        }
        pause(&fake, &proxy);
    }
    assert!(asked > 1, "it was folded {asked} times");
}

/// What is said of a conversation that no model can summarize: in events, in `context`, and by `doctor`.
#[test]
fn where_no_model_can_summarize_it_is_said() {
    let elsewhere = Fake::start(Kind::Ollama, 8_192);
    // Of one model, requests would go to the server with the larger window.
    elsewhere.set(|s| s.model = "another-model".into());
    let cases = [
        (768, "", "a brief may take", true),
        (4_096, "[context]\nsummary_max_tokens = 32\n", "a brief may take", true),
        (4_096, "[context]\nsummary_model = \"up1/absent\"\n", "summary_model up1/absent", true),
        (4_096, "[context]\nsummary_temperature = 0.5\n", "declined to summarize", false),
    ];
    for (window, toml, why, is_seen_before) in cases {
        let fake = Fake::start(Kind::LlamaServer, window);
        fake.set(|s| s.summary = "I'm sorry, but I can't help with that.".into());
        let proxy = TestProxy::with(&[fake.url(), elsewhere.url()], toml);
        let (mut sent, mut id) = (chat().system("s").user("Let us talk."), String::new());
        for n in 0..24 {
            sent = sent.assistant(&prose(n, 600)).user(&prose(n + 40, 400));
            id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
        }
        let events = proxy.eventually("/windowsill/events?kind=not_summarized", |e| e.to_string().contains(why));
        let told = events["events"].as_array().unwrap().len();
        assert!((1..=4).contains(&told), "{toml}: said {told} times");
        let seen = proxy.cli(&["context", &id]);
        let page = String::from_utf8_lossy(&seen.stdout).into_owned();
        assert!(page.contains("no model wrote the last brief") && page.contains(why), "{page}");
        let doctor = proxy.cli(&["doctor", "--json"]);
        let found: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        let found = found["problems"].as_array().unwrap().iter().any(|p| {
            let message = p["message"].as_str().unwrap();
            message.contains("summarizes conversations") || message.contains("briefs are made without a model")
        });
        assert_eq!(found, is_seen_before, "{toml}: {}", String::from_utf8_lossy(&doctor.stdout));
    }
}
