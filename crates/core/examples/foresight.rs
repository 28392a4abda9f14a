//! What the recorded next step refers back to, and how much of that stands in the view: the figures of `foresight.py` of the
//! shared bench, without a network and with sizes by characters. Sessions are split in halves by name: what is fitted on one
//! is judged by the other.
//!
//! `cargo run -p windowsill-core --example foresight -- FOLDER [WINDOW] [NAME] [--detail]`
#![allow(clippy::print_stdout, reason = "it prints a table")]
#![allow(clippy::unwrap_used, reason = "an example that cannot read its data has nothing to say")]

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};
use windowsill_core::conversation::{Conversation, Message, Role, Tokens, repair};
use windowsill_core::plan::rewrite::Out;
use windowsill_core::plan::{self, Cost, Facts};
use windowsill_core::wire::openai_chat as wire;

mod replay;

use replay::{RESERVE, Replay, Rules};

/// What foresight.py takes for a word that can be referred back to.
static WORD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r#"(?:https?://[^\s"'<>)\]]+)|(?:[\w@~.-]*/[\w./@~-]+)|(?:[A-Za-z_]\w*(?:[._:-]+\w+)+)|(?:\b[a-z]+[A-Z]\w+)|(?:\b[A-Z][a-z]+[A-Z]\w*)|(?:\b\d{3,}\b)|(?:\b[0-9a-f]{7,}\b)"#,
    )
    .expect("a constant")
});

/// Characters around a word that must stand in the view too.
const AROUND: usize = 24;

/// References from which a session counts for the mean.
const ENOUGH: usize = 5;

/// Figures of one session, or of many.
#[derive(Debug, Default, Clone)]
struct Score {
    references: usize,
    named: usize,
    in_context: usize,
    own: usize,
    own_used: usize,
    turns: usize,
    filled: f64,
    evaluated: u64,
    answered: usize,
}

/// Characters a token.
const CHARACTERS: usize = 3;

/// Requests of a session that are replayed at most.
const REQUESTS: usize = 40;

/// Prompts that the server remembers.
const REMEMBERED: usize = 4;

struct Session {
    name: String,
    conversation: Conversation,
    ends: Vec<usize>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let detail = args.iter().any(|a| a == "--detail");
    let mut plain = args.iter().filter(|a| !a.starts_with("--"));
    let folder = PathBuf::from(plain.next().expect("a folder of sessions"));
    let window: Tokens = plain.next().map_or(8192, |w| w.parse().unwrap());
    let only = plain.next();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let sessions: Vec<Session> = paths.iter().filter_map(|p| read(p)).collect();
    for half in 0..2 {
        let of = sessions.iter().enumerate().filter(|(i, s)| i % 2 == half && only.is_none_or(|o| s.name.contains(o)));
        let scores: Vec<(String, Score)> = of.map(|(_, s)| (s.name.clone(), score(s, window, detail))).collect();
        print(window, ["A", "B"][half], &scores);
    }
}

fn read(path: &Path) -> Option<Session> {
    let value: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let name = path.file_stem()?.to_string_lossy().into_owned();
    let mut request = json!({"messages": value["messages"]});
    if value["tools"].as_array().is_some_and(|t| !t.is_empty()) {
        request["tools"] = value["tools"].clone();
    }
    let mut conversation = wire::parse(&request.to_string().into()).ok()?.conversation;
    conversation.body = repair::repair(conversation.body, None).ok()?.body;
    let body = &conversation.body;
    let asks = |at: &usize| matches!(body[*at].role, Role::User | Role::Tool) && body[at + 1].role == Role::Assistant;
    let ends: Vec<usize> = (0..body.len().saturating_sub(1)).filter(asks).map(|at| at + 1).collect();
    let ends: Vec<usize> = ends.iter().copied().step_by(ends.len().div_ceil(REQUESTS).max(1)).collect();
    (!ends.is_empty()).then_some(Session { name, conversation, ends })
}

fn tokens(text: &str) -> Tokens {
    Tokens::try_from(text.chars().count().div_ceil(CHARACTERS)).unwrap_or(Tokens::MAX)
}

fn cost(message: &Message) -> Cost {
    Cost {
        text: tokens(&message.text) + 6,
        calls: message.calls.iter().map(|c| tokens(&c.name) + tokens(&c.arguments) + 8).collect(),
        media: message.media.iter().map(|_| 768).sum(),
    }
}

/// What stands where a model would write a brief.
const BLANK: &str =
    "## Current state\nThe work goes on one part at a time; nothing is finished and nothing is given up.";

/// A session that is replayed, and the prompts that the server has seen.
struct Seen<'a> {
    session: &'a Session,
    window: Tokens,
    replay: Replay,
    past: VecDeque<String>,
}

impl Seen<'_> {
    /// The view of the first messages, its text, and what of it a server evaluates.
    fn turn(&mut self, end: usize) -> Option<(Vec<Out>, String, usize)> {
        let Conversation { body, system, tools, .. } = &self.session.conversation;
        let conversation = Conversation {
            body: body[..end].to_vec(),
            system: system.clone(),
            tools: tools.clone(),
            ..Conversation::default()
        };
        let (window, system): (_, Tokens) = (self.window, system.iter().map(|m| cost(m).total()).sum());
        let tools = tools.as_ref().map_or(0, |t| tokens(&String::from_utf8_lossy(t)));
        let output_reserved = plan::output_reserved(window, system + tools, Some(256), RESERVE);
        let head = Facts { window, output_reserved, slack: 16, system, tools, ..Facts::default() };
        let (out, _) = self.replay.turn(&conversation, head)?;
        let text = text_of(&out);
        let known = self.past.iter().map(|p| p.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count());
        let new = text.len() - known.max().unwrap_or(0);
        self.past.push_back(text.clone());
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
        Some((out, text, new / CHARACTERS))
    }
}

fn text_of(out: &[Out]) -> String {
    out.iter().map(shown).collect::<Vec<_>>().join("\n")
}

fn size(out: &[Out]) -> Tokens {
    tokens(&text_of(out)) + 8 * out.len() as Tokens
}

fn print(window: Tokens, half: &str, scores: &[(String, Score)]) {
    let share = |part: usize, all: usize| part as f64 / all.max(1) as f64;
    let mut all = Score::default();
    let (mut named, mut context, mut count) = (0.0, 0.0, 0.0);
    for (name, s) in scores {
        all.references += s.references;
        all.named += s.named;
        all.in_context += s.in_context;
        all.own += s.own;
        all.own_used += s.own_used;
        all.turns += s.turns;
        all.filled += s.filled;
        all.evaluated += s.evaluated;
        all.answered += s.answered;
        if s.references >= ENOUGH {
            named += share(s.named, s.references);
            context += share(s.in_context, s.references);
            count += 1.0;
            println!(
                "    {name:<42} refs {:4} named {:.2} in context {:.2} fill {:.2} evaluated {}",
                s.references,
                share(s.named, s.references),
                share(s.in_context, s.references),
                s.filled / s.turns.max(1) as f64,
                s.evaluated / s.turns.max(1) as u64,
            );
        }
    }
    println!(
        "{window} {half}: named {:.3} · {:.3}  in context {:.3} · {:.3}  precise {:.3} of {}  fill {:.2}  evaluated {}  answered {}/{} refs {}",
        named / f64::max(count, 1.0),
        share(all.named, all.references),
        context / f64::max(count, 1.0),
        share(all.in_context, all.references),
        share(all.own_used, all.own),
        all.own,
        all.filled / all.turns.max(1) as f64,
        all.evaluated / all.turns.max(1) as u64,
        all.answered,
        all.turns,
        all.references,
    );
}

fn score(session: &Session, window: Tokens, detail: bool) -> Score {
    let Conversation { system, body, tools, .. } = &session.conversation;
    let said: Vec<String> = body.iter().map(said).collect();
    let first = body.iter().position(|m| m.role == Role::User).unwrap_or(0);
    let mut head: String = system.iter().map(self::said).collect::<Vec<_>>().join("\n");
    head.push_str(&said[..=first].join("\n"));
    head.push_str(&tools.as_ref().map(|t| String::from_utf8_lossy(t).into_owned()).unwrap_or_default());
    let mut out = Score::default();
    let rules = Rules { tokens, size, blank: BLANK };
    let replay = Replay::new(rules, body.iter().map(cost).collect());
    let mut seen = Seen { session, window, replay, past: VecDeque::new() };
    for end in &session.ends {
        out.turns += 1;
        let Some((view, text, new)) = seen.turn(*end) else { continue };
        out.answered += 1;
        out.evaluated += new as u64;
        out.filled += f64::from(tokens(&text)) / f64::from(window);
        if view.iter().any(|o| o.changed) {
            refer(&mut out, &said, body, &head, first, *end, &text, detail);
        }
        if detail && Some(end) == session.ends.last() {
            println!("{text}");
        }
    }
    out
}

/// Looks up what the message at `end` refers back to.
#[allow(clippy::too_many_arguments, reason = "it is one step of score")]
fn refer(
    out: &mut Score,
    said: &[String],
    body: &[Message],
    head: &str,
    first: usize,
    end: usize,
    view: &str,
    detail: bool,
) {
    let recent = end.saturating_sub(6).max(first + 1);
    let (old, new) = (said[first + 1..recent].join("\n"), said[end.saturating_sub(6)..end].join("\n"));
    let (flat_old, flat_view) = (flat(&old), flat(view));
    for word in words(&said[end]) {
        if !old.contains(word) || new.contains(word) || head.contains(word) {
            continue;
        }
        out.references += 1;
        let named = view.contains(word);
        out.named += usize::from(named);
        out.in_context += usize::from(named && in_context(word, &flat_old, &flat_view));
        if detail && !named {
            println!("      misses {end} {word}");
        }
    }
    let own = view.split('\n').filter(|l| !old.contains(*l) && !new.contains(*l) && !head.contains(*l));
    let own = own.collect::<Vec<_>>().join("\n");
    let later = (end..said.len()).filter(|i| body[*i].role == Role::Assistant).map(|i| said[i].as_str());
    let later = later.collect::<Vec<_>>().join("\n");
    for word in words(&own).into_iter().filter(|w| old.contains(*w)) {
        out.own += 1;
        out.own_used += usize::from(later.contains(word));
    }
}

fn words(text: &str) -> BTreeSet<&str> {
    let trim = |w: &'_ regex::Match<'_>| w.range();
    let found = WORD.find_iter(text).map(|w| text[trim(&w)].trim_matches(['.', ':', '-', '_', '/']));
    found.filter(|w| w.chars().count() >= 4).collect()
}

fn said(message: &Message) -> String {
    let open = |s: &str| s.replace("\\n", "\n").replace("\\\"", "\"");
    let calls: Vec<String> = message.calls.iter().map(|c| format!("{} {}", c.name, open(&c.arguments))).collect();
    format!("{} {}", message.text, calls.join(" "))
}

fn shown(out: &Out) -> String {
    wire::message(out.bytes.clone()).map(|m| said(&m)).unwrap_or_default()
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a word stands in the view with what some earlier message had around it.
fn in_context(word: &str, old: &str, view: &str) -> bool {
    old.match_indices(word).take(400).any(|(at, _)| {
        let start = old[..at].char_indices().rev().nth(AROUND - 1).map_or(0, |(i, _)| i);
        let rest = &old[at + word.len()..];
        let end = rest.char_indices().nth(AROUND).map_or(rest.len(), |(i, _)| i);
        view.contains(old[start..at + word.len() + end].trim())
    })
}
