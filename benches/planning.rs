//! The pure parts of a request, each by itself: time for each byte, beside hashing the same bytes in the same run, and the
//! allocations, which no other load changes. Then the same request at one, two and four times the history, seen before:
//! only reading and hashing may grow with it. `cargo bench --bench planning`.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

#[path = "support/history.rs"]
mod history;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use history::{History, code};
use windowsill::conversation::edit::{Edit, Rule, View};
use windowsill::conversation::{Digest, chain, repair};
use windowsill::measure::{Measure, ModelKey, tokens};
use windowsill::plan::{self, Action, Facts, Policy, rewrite};
use windowsill::preview::{Call, Pointer, preview};
use windowsill::wire::openai_chat::{self, Request};

/// So large that nothing crosses a line.
const ENDLESS: u32 = 16_000_000;

fn main() {
    // `cargo test --benches` only wants to see it build.
    if std::env::args().any(|a| a == "--test") {
        return;
    }
    parts();
    growth();
}

/// What one call takes.
struct Taken {
    time: Duration,
    allocations: u64,
    allocated: u64,
}

/// The median time of some calls, and the allocations of one.
fn take<T>(mut act: impl FnMut() -> T) -> Taken {
    let info = allocation_counter::measure(|| {
        black_box(act());
    });
    let time = median(|| {
        let started = Instant::now();
        black_box(act());
        started.elapsed()
    });
    Taken { time, allocations: info.count_total, allocated: info.bytes_total }
}

/// The median of the times that some calls tell.
fn median(mut act: impl FnMut() -> Duration) -> Duration {
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || begun.elapsed() < Duration::from_millis(300) && times.len() < 1000 {
        times.push(act());
    }
    times.sort();
    times[times.len() / 2]
}

fn micros(t: Duration) -> f64 {
    t.as_secs_f64() * 1e6
}

/// A body read and repaired, as `proxy` has it before it plans.
fn read(body: &Bytes) -> Request {
    let mut request = openai_chat::parse(body).expect("the history is valid");
    let messages = std::mem::take(&mut request.conversation.body);
    request.conversation.body = repair::repair(messages, None).expect("each result has its call").body;
    request
}

fn facts(measure: &Measure, request: &Request, view: &View, window: u32) -> Facts {
    let forwarded = request.conversation.body.len().saturating_sub(1);
    Facts {
        window,
        output_reserved: 256,
        slack: 16,
        forwarded,
        ..measure.facts(&ModelKey::new("up", "bench"), &request.conversation, view, None)
    }
}

/// The view that a plan comes to, with short stand-ins for the material.
fn view(request: &Request, actions: &[Action]) -> View {
    let body = &request.conversation.body;
    let text: Arc<str> =
        "[read_file: 120 lines, cleared to save context; full text: windowsill recall r0123456789ab]".into();
    let mut edits: Vec<Edit> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Placeholder { at, .. } | Action::Preview { at, .. } | Action::Repeat { at, .. } => {
                Some(Edit::Text {
                    at: *at,
                    digest: body[*at].digest,
                    rule: Rule::Clear,
                    text: Arc::clone(&text),
                    record: "r0123456789ab".into(),
                })
            }
            Action::Fold { from, to, keep, .. } => Some(Edit::Fold {
                from: *from,
                to: *to,
                keep: keep.clone(),
                brief: code(7, 4_000).into(),
                unread: Vec::new(),
                read: None,
                struck: Vec::new(),
            }),
            _ => None,
        })
        .collect();
    edits.sort_by_key(|e| !matches!(e, Edit::Fold { .. }));
    View { messages: body.len(), edits, ..View::default() }
}

fn parts() {
    let history = History::new(1, 2_000_000);
    let body = Bytes::from(history.body(false));
    let request = read(&body);
    let conversation = &request.conversation;
    let (measure, policy) = (Measure::default(), Policy::default());
    let log = code(9, 1_000_000);
    let call = Call { tool: "bash", arguments: r#"{"command":"cargo test"}"# };
    let pointer = Pointer { id: "r0123456789ab", path: "results/r0123456789ab.txt" };
    let wide = facts(&measure, &request, &View::default(), ENDLESS);
    let narrow = facts(&measure, &request, &View::default(), 8_192);
    let made = view(&request, &plan::plan(conversation, &narrow, &policy).actions);
    let edited = Facts { window: 100_000, ..facts(&measure, &request, &made, 100_000) };
    let size = body.len();
    let hash = take(|| Digest::of(&body));
    println!(
        "{:<44}{:>10}{:>10}{:>11}{:>12}{:>12}",
        format!("of {:.1} MB, {} messages", history.bytes() as f64 / 1e6, conversation.body.len()),
        "us",
        "ns/byte",
        "x hashing",
        "allocations",
        "allocated"
    );
    let row = |name: &str, bytes: usize, taken: Taken| {
        let per_byte = |t: Duration, n: usize| t.as_secs_f64() * 1e9 / n as f64;
        println!(
            "{name:<44}{:>10.0}{:>10.3}{:>11.2}{:>12}{:>12}",
            micros(taken.time),
            per_byte(taken.time, bytes),
            per_byte(taken.time, bytes) / per_byte(hash.time, size),
            taken.allocations,
            taken.allocated
        );
    };
    let count = |text: &str| tokens::estimate(text);
    row("hash the bytes (BLAKE3)", size, take(|| Digest::of(&body)));
    row("skip them as JSON (serde)", size, take(|| serde_json::from_slice::<serde::de::IgnoredAny>(&body)));
    row("parse, with digests", size, take(|| openai_chat::parse(&body)));
    row("parse and repair", size, take(|| read(&body)));
    row("chain", size, take(|| chain::chain("bench", &conversation.body)));
    row(
        "measure, first seen",
        size,
        take(|| Measure::default().facts(&ModelKey::new("up", "bench"), conversation, &View::default(), None)),
    );
    row(
        "measure, seen before",
        size,
        take(|| measure.facts(&ModelKey::new("up", "bench"), conversation, &View::default(), None)),
    );
    row("plan, nothing to do", size, take(|| plan::plan(conversation, &wide, &policy)));
    row("plan, window of 8,192", size, take(|| plan::plan(conversation, &narrow, &policy)));
    row("plan, edits in force", size, take(|| plan::plan(conversation, &edited, &policy)));
    row("rewrite, no edits", size, take(|| rewrite::rewrite(conversation, &View::default(), &policy.template)));
    row("rewrite, edits in force", size, take(|| rewrite::rewrite(conversation, &made, &policy.template)));
    row("estimate tokens of 1 MB", log.len(), take(|| tokens::estimate(&log)));
    row("preview of 1 MB in 1,024 tokens", log.len(), take(|| preview(&log, &call, &pointer, 1024, &count)));
}

fn growth() {
    const STAGES: [&str; 6] = ["hash bytes", "parse", "repair+chain", "measure", "plan", "rewrite"];
    for (name, result) in [("results of 6 KB", 6_000), ("results of 200 bytes", 200)] {
        print!("\n{:<34}{:>8}", format!("us, seen before, {name}"), "count");
        STAGES.iter().for_each(|s| print!("{s:>14}"));
        println!("{:>14}{:>14}", "not reading", "allocations");
        let mut before: Option<f64> = None;
        for times in [1, 2, 4] {
            let history = History::with_results_of(1, times * 1_000_000, result);
            let body = Bytes::from(history.body(false));
            let measure = Measure::default();
            let policy = Policy::default();
            let request = read(&body);
            let c = &request.conversation;
            let facts = facts(&measure, &request, &View::default(), ENDLESS);
            let repair_and_chain = median(|| {
                let mut request = openai_chat::parse(&body).expect("it was read before");
                let messages = std::mem::take(&mut request.conversation.body);
                let started = Instant::now();
                let body = repair::repair(messages, None).expect("it was repaired before").body;
                black_box(chain::chain("bench", &body));
                started.elapsed()
            });
            let stages = [
                take(|| Digest::of(&body)),
                take(|| openai_chat::parse(&body)),
                Taken { time: repair_and_chain, allocations: 0, allocated: 0 },
                take(|| measure.facts(&ModelKey::new("up", "bench"), c, &View::default(), None)),
                take(|| plan::plan(c, &facts, &policy)),
                take(|| rewrite::rewrite(c, &View::default(), &policy.template)),
            ];
            print!("{:<34}{:>8}", format!("{times} MB"), c.body.len());
            stages.iter().for_each(|s| print!("{:>14.0}", micros(s.time)));
            let rest: f64 = stages[3..].iter().map(|s| micros(s.time)).sum();
            let allocations: u64 = stages[3..].iter().map(|s| s.allocations).sum();
            let ratio = before.map_or(String::new(), |b| format!(" (x{:.1})", rest / b));
            println!("{:>14}{allocations:>14}", format!("{rest:.0}{ratio}"));
            before = Some(rest);
        }
    }
}
