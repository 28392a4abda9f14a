//! Processes that die at the worst moment: windowsill with `kill -9`, the inference server in the middle of a reply, and a
//! server that comes back with another window.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::servers::{Llama, Windowsill};
use crate::support::session::{Bench, Session, Turn};
use crate::support::{check, http, say};

/// Where windowsill is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// Between two requests.
    Idle,
    /// As soon as the server has the request: the view was just made.
    Sent,
    /// In the middle of the reply.
    Reply,
}

/// The same history yields the same bytes, whenever windowsill was killed.
#[test]
fn killed_at_any_moment_it_sends_the_same_again() {
    let session = Session::demo();
    let mut bench = Bench::start(2048, &[("CONTEXT_STRATEGY", "truncate")]);
    let moments = [Moment::Idle, Moment::Sent, Moment::Reply];
    let mut played: Vec<Turn> = Vec::new();
    for (at, end) in session.turns().into_iter().take(12).enumerate() {
        let moment = moments[at % moments.len()];
        let before = match moment {
            Moment::Idle => bench.turn(&session, end).forwarded,
            _ => killed_while_asked(&mut bench, &session, end, moment),
        };
        if moment == Moment::Idle {
            bench.windowsill.kill();
            bench.windowsill.start_again();
        }
        let again = bench.turn(&session, end);
        assert_eq!(again.forwarded, before, "message {end}, killed {moment:?}");
        if let Some(earlier) = played.last() {
            // A client that goes back a turn, or asks again.
            let once_more = bench.turn(&session, earlier.end);
            assert_eq!(once_more.forwarded, earlier.forwarded, "message {}, after {end}", earlier.end);
        }
        played.push(again);
    }
    assert!(played.iter().filter(|t| t.rewritten).count() >= 8, "there was something to remember");
    let recalled = check::originals(&session, &played, &bench.windowsill);
    // A place in a conversation is one in the history that was sent last.
    let last = bench.turn(&session, played.last().expect("turns").end);
    let messages = check::messages(&session, &last, &bench.windowsill);
    say(&format!("killed {} times: recalled {recalled:?} and {messages} messages", played.len()));
    assert!(recalled.originals >= 5, "{recalled:?}");
}

/// Kills windowsill while a turn is under way and starts it again. Returns what the server had got.
fn killed_while_asked(bench: &mut Bench, session: &Session, end: usize, moment: Moment) -> String {
    bench.relay.take();
    let request = session.request(end, 8, true);
    let url = bench.windowsill.chat_url();
    if moment == Moment::Sent {
        std::thread::scope(|scope| {
            scope.spawn(|| http::try_open(&url, &[], &request).map(|mut live| live.finish()));
            bench.relay.wait();
            bench.windowsill.kill();
        });
    } else {
        let mut live = http::open(&url, &[], &request);
        live.until("\"delta\"");
        bench.windowsill.kill();
        live.finish();
        assert!(!live.text.contains("[DONE]"), "it was not over yet: {}", live.text);
    }
    bench.windowsill.start_again();
    bench.relay.take().pop().expect("the server had it")
}

/// The reply ends with an error event and never looks complete; the next request finds the server that is back.
#[test]
fn a_server_that_dies_in_the_middle_of_a_reply() {
    let mut llama = Llama::start(2048);
    let windowsill = Windowsill::before(&llama.url(), &[]);
    let ask = |stream: bool, max_tokens: u32| {
        json!({
            "model": "smollm2", "messages": [{"role": "user", "content": "Count up from one."}], "stream": stream,
            "max_tokens": max_tokens, "ignore_eos": true,
        })
    };
    assert_eq!(http::post(&windowsill.chat_url(), ask(false, 4)).status, 200);
    let mut live = http::open(&windowsill.chat_url(), &[], ask(true, 1500));
    assert_eq!(live.status, 200);
    live.until("\"content\":\"");
    llama.kill();
    live.finish();
    assert!(!live.text.contains("[DONE]") && !live.text.contains("\"finish_reason\":\"stop\""), "{}", live.text);
    let last = live.text.trim_end().lines().last().expect("events");
    let event: Value = serde_json::from_str(last.strip_prefix("data: ").expect("an event")).unwrap();
    assert_eq!(event["error"]["code"], "upstream_died", "{last}");

    let gone = http::post(&windowsill.chat_url(), ask(true, 4));
    assert_eq!(gone.status, 502, "{}", gone.text);
    assert!(gone.json()["error"]["message"].is_string());
    llama.restart(2048);
    let back = http::post(&windowsill.chat_url(), ask(true, 4));
    assert_eq!((back.status, back.is_done()), (200, true), "{}", back.text);
}

/// The window is that of a slot.
#[test]
fn two_slots_share_the_window() {
    let session = Session::demo();
    let llama = Llama::start_with(4096, &["--parallel", "2"]);
    let windowsill = Windowsill::before(&llama.url(), &[("CONTEXT_STRATEGY", "truncate")]);
    let url = windowsill.chat_url();
    let ask = |end: usize| {
        let reply = http::post(&url, session.request(end, 8, false));
        assert_eq!((reply.status, reply.ours("window")), (200, "2048"), "{}", reply.text);
        let prompt = reply.json()["usage"]["prompt_tokens"].as_u64().expect("usage");
        assert!(prompt + 8 <= 2048, "{prompt}");
        prompt
    };
    // Both at once, each far longer than a slot.
    std::thread::scope(|scope| {
        let others: Vec<_> = [9, 21].map(|end| scope.spawn(move || ask(end))).into_iter().collect();
        others.into_iter().for_each(|o| say(&format!("a slot of 2048: {} tokens", o.join().unwrap())));
    });
}

/// A server that was started anew with another `--ctx` is served with the window it has now: at once where it refuses, and
/// within seconds where it would take more.
#[test]
fn the_window_changes_behind_our_back() {
    let session = Session::demo();
    let mut llama = Llama::start(4096);
    let windowsill = Windowsill::before(&llama.url(), &[("CONTEXT_STRATEGY", "truncate")]);
    let ask = |end: usize| {
        let reply = http::post(&windowsill.chat_url(), session.request(end, 8, false));
        assert_eq!(reply.status, 200, "{}", reply.text);
        let prompt = reply.json()["usage"]["prompt_tokens"].as_u64().expect("usage");
        let line = format!(
            "message {end}: {prompt} tokens, window {} ({}), {}",
            reply.ours("window"),
            reply.ours("window-source"),
            reply.ours("action")
        );
        say(&line);
        (prompt, reply.ours("window").to_owned())
    };
    assert_eq!(ask(13).1, "4096");
    llama.restart(1536);
    let (prompt, window) = ask(15);
    assert!(prompt + 8 <= 1536 && window == "1536", "{prompt} of {window}");
    llama.restart(8192);
    let started = Instant::now();
    while ask(17).1 != "8192" {
        assert!(started.elapsed() < Duration::from_secs(60), "the larger window was never seen");
    }
}
