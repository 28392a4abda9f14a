//! What recall ahead brings, and whether it holds what answers: the questions of the shared bench's `membench.py`, without a network
//! and with sizes by characters. Conversations are split in halves by name: what is fitted on one is judged by the other. Beside
//! them, each conversation is asked what others were asked: nothing there answers that.
//!
//! `cargo run -p windowsill-record --example remind -- SET.json WINDOW`
#![allow(clippy::print_stdout, reason = "it prints figures")]
#![allow(clippy::unwrap_used, reason = "an example that cannot read its data has nothing to say")]

use std::collections::HashSet;

use serde_json::{Value, json};
use windowsill_core::conversation::chain::chain;
use windowsill_core::conversation::edit::{Edit, View};
use windowsill_core::conversation::{Conversation, Message, Role, Tokens};
use windowsill_core::passage::{Found, Said, searched};
use windowsill_core::plan::rewrite::Out;
use windowsill_core::plan::{Cost, Facts};
use windowsill_core::remind;
use windowsill_core::wire::openai_chat as wire;
use windowsill_record::{Batch, ConversationUpdate, Node, Passage, Store};

#[path = "../../core/examples/replay/mod.rs"]
mod replay;

use replay::{Replay, Rules};

/// Characters a token.
const CHARACTERS: usize = 4;

/// Tokens that are kept for a reply.
const KEPT: Tokens = 512;

/// Share of a sentence's word triples that must stand somewhere.
const HIT: f64 = 0.8;

/// Questions of others that each conversation is asked.
const OF_OTHERS: usize = 12;

/// Passages that are looked at.
const FOUND: usize = 40;

/// Figures of one half.
#[derive(Debug, Default)]
struct Score {
    questions: f64,
    prompt: f64,
    sliding: f64,
    ahead: f64,
    worse: f64,
    brought: f64,
    holds: f64,
    items: f64,
    right: f64,
    tokens: f64,
    others: f64,
    nothing: f64,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (set, window) = (args.next().expect("a set"), args.next().map_or(8192, |w| w.parse().unwrap()));
    let all: Vec<Value> = serde_json::from_slice(&std::fs::read(set).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let mut scores = [Score::default(), Score::default()];
    for (at, one) in all.iter().enumerate() {
        let others = all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other);
        let others: Vec<&Value> = others.flat_map(|other| other["questions"].as_array().unwrap()).collect();
        let step = (others.len() / OF_OTHERS).max(1);
        let others: Vec<&Value> = others.into_iter().skip(at).step_by(step).collect();
        runtime.block_on(conversation(one, &others, window, &mut scores[at % 2]));
    }
    for (half, s) in ["A", "B"].iter().zip(&scores) {
        let mean = |sum: f64| sum / s.questions.max(1.0);
        println!(
            "{window} {half}: prompt {:.3} sliding {:.3} with what came {:.3} (less than sliding: {} of {}); came {:.2}, held evidence \
             {:.2}, {:.0} tokens, {:.1} passages, of these with evidence {:.2}; nothing came for {:.2} of {} that others were asked",
            mean(s.prompt),
            mean(s.sliding),
            mean(s.ahead),
            s.worse,
            s.questions,
            mean(s.brought),
            s.holds / s.brought.max(1.0),
            s.tokens / s.brought.max(1.0),
            s.items / s.brought.max(1.0),
            s.right / s.items.max(1.0),
            s.nothing / s.others.max(1.0),
            s.others,
        );
    }
}

async fn conversation(one: &Value, others: &[&Value], window: Tokens, score: &mut Score) {
    let folder = std::env::temp_dir().join(format!("remind-{}-{}", std::process::id(), one["id"].as_str().unwrap()));
    let store = Store::open(&folder).unwrap();
    let request = json!({"messages": one["messages"]});
    let body = wire::parse(&request.to_string().into()).unwrap().conversation.body;
    record(&store, &body).await;
    let rules = Rules { tokens, size, blank: BLANK };
    let mut replay = Replay::new(rules, body.iter().map(cost).collect());
    for at in 0..body.len() - 1 {
        if body[at].role == Role::User && body[at + 1].role == Role::Assistant {
            turn(&mut replay, &body[..=at], (window, 0));
        }
    }
    let slides = sliding(&body, window);
    for question in one["questions"].as_array().unwrap() {
        let (prompt, block) = ask(&store, &replay, (&body, window), question);
        let keys: Vec<Triples> =
            question["keys"].as_array().unwrap().iter().map(|k| Triples::of(k.as_str().unwrap())).collect();
        if keys.is_empty() {
            continue;
        }
        let share = |texts: &[&str]| {
            let there = keys.iter().filter(|key| texts.iter().any(|text| key.within(text))).count();
            there as f64 / keys.len() as f64
        };
        score.questions += 1.0;
        score.prompt += share(&[&prompt]);
        score.sliding += share(&[&slides]);
        let ahead = share(&[&prompt, block.as_deref().unwrap_or("")]);
        score.ahead += ahead;
        if ahead < share(&[&slides]) {
            score.worse += 1.0;
            println!("less than sliding: {} {}", one["id"], question["q"]);
        }
        if let Some(block) = block {
            score.brought += 1.0;
            score.holds += f64::from(share(&[&block]) > 0.0);
            score.tokens += f64::from(tokens(&block));
            let items: Vec<&str> = block.split("\n- ").skip(1).collect();
            score.items += items.len() as f64;
            score.right += items.iter().filter(|item| keys.iter().any(|key| key.within(item))).count() as f64;
        }
    }
    for question in others {
        score.others += 1.0;
        score.nothing += f64::from(ask(&store, &replay, (&body, window), question).1.is_none());
    }
    drop(store);
    _ = std::fs::remove_dir_all(&folder);
}

/// The prompt for a question, and what comes behind it.
fn ask(
    store: &Store,
    replay: &Replay,
    (body, window): (&[Message], Tokens),
    question: &Value,
) -> (String, Option<String>) {
    let asked = json!({"role": "user", "content": question["q"]}).to_string();
    let mut body = body.to_vec();
    body.push(wire::message(asked.into()).unwrap());
    let before = Replay { costs: body.iter().map(cost).collect(), ..replay.clone() };
    let mut replay = before.clone();
    let (prompt, used) = turn(&mut replay, &body, (window, 0));
    let Some(cue) = remind::cue(&body).filter(|_| replay.view.lacks()) else { return (prompt, None) };
    let found = store.passages(&cue.query, Some("c"), FOUND, &mut |_| true).unwrap();
    let found: Vec<Found> = found.into_iter().map(shown).collect();
    let block = |view: &View, prompt: &str, room: Tokens| {
        let standing = remind::Standing::of([prompt].into_iter());
        let gone = |said: &Said| left(view, said.at) && !standing.holds(said);
        remind::block(&cue, &found, &gone, room, &tokens)
    };
    let free = |used: Tokens| (window - KEPT).saturating_sub(used);
    let whole = block(&replay.view, &prompt, remind::room(window, window));
    let wanted = whole.map_or(0, |block| tokens(&block.text));
    if wanted > free(used) {
        let mut again = before;
        let (prompt, used) = turn(&mut again, &body, (window, wanted + 16));
        let block = block(&again.view, &prompt, remind::room(window, free(used)));
        return (prompt, block.map(|block| block.text));
    }
    let block = block(&replay.view, &prompt, remind::room(window, free(used)));
    (prompt, block.map(|block| block.text))
}

fn shown(found: Passage) -> Found {
    let said = found.said.into_iter().map(|hit| Said {
        of: String::new(),
        id: hit.at.to_string(),
        at: hit.at,
        span: hit.span,
        goes_on: hit.goes_on,
        who: hit.role.unwrap_or(hit.kind),
        date: hit.date,
        text: hit.text,
    });
    Found { said: said.collect(), center: found.center, rank: found.rank }
}

fn left(view: &View, message: usize) -> bool {
    view.edits.iter().any(|edit| match edit {
        Edit::Text { at, .. } | Edit::Arguments { at, .. } => *at == message,
        Edit::Recalled { .. } => false,
        Edit::Fold { from, to, keep, .. } => (*from..*to).contains(&message) && !keep.contains(&message),
    })
}

async fn record(store: &Store, body: &[Message]) {
    let chain = chain("", body);
    let node = |(at, m): (usize, &Message)| Node {
        chain: chain[at],
        parent: at.checked_sub(1).map(|i| chain[i]),
        depth: at + 1,
        role: if m.role == Role::User { "user" } else { "assistant" },
        digest: m.digest,
        raw: m.raw.clone(),
        text: searched(m),
    };
    let update = ConversationUpdate {
        id: "c".into(),
        parent: None,
        session: None,
        model: "m".into(),
        upstream: "u".into(),
        tip: *chain.last().unwrap(),
        depth: chain.len(),
        state: "{}".into(),
        now_ms: 1,
        title: "t".into(),
    };
    let nodes = body.iter().enumerate().map(node).collect();
    store.record(Batch { conversation: Some(update), nodes, ..Batch::default() }).await.unwrap();
}

fn tokens(text: &str) -> Tokens {
    Tokens::try_from(text.chars().count().div_ceil(CHARACTERS)).unwrap_or(Tokens::MAX)
}

fn cost(message: &Message) -> Cost {
    Cost { text: tokens(&message.text) + 6, ..Cost::default() }
}

/// What stands where a model would write a brief.
const BLANK: &str = "The user and the assistant have been talking about several things, and the assistant has been answering one question at a time.";

/// Tokens of system prompt and tools.
const HEAD: Tokens = 150;

/// The prompt's text, and its tokens.
fn turn(replay: &mut Replay, body: &[Message], (window, foreseen): (Tokens, Tokens)) -> (String, Tokens) {
    let conversation = Conversation { body: body.to_vec(), ..Conversation::default() };
    let head = Facts { window, output_reserved: KEPT, slack: 16, tools: HEAD, foreseen, ..Facts::default() };
    let (out, used) = replay.turn(&conversation, head).expect("a chat is never too long for its window");
    (out.iter().map(text).collect::<Vec<_>>().join("\n"), used)
}

fn text(out: &Out) -> String {
    wire::message(out.bytes.clone()).unwrap().text.to_string()
}

fn size(out: &[Out]) -> Tokens {
    out.iter().map(|out| tokens(&text(out)) + 6).sum()
}

/// The text that a client keeps that drops the oldest messages but the first.
fn sliding(body: &[Message], window: Tokens) -> String {
    let mut left = (window - KEPT - 230).saturating_sub(cost(&body[0]).total());
    let mut kept = vec![body[0].text.to_string()];
    for message in body[1..].iter().rev() {
        let Some(rest) = left.checked_sub(cost(message).total()) else { break };
        left = rest;
        kept.push(message.text.to_string());
    }
    kept.join("\n")
}

fn words(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// A sentence, by its words.
struct Triples {
    words: Vec<String>,
}

impl Triples {
    fn of(text: &str) -> Triples {
        Triples { words: words(text) }
    }

    fn within(&self, text: &str) -> bool {
        let all = words(text);
        if self.words.len() < 5 {
            return !self.words.is_empty() && all.windows(self.words.len()).any(|w| w == self.words);
        }
        let there: HashSet<&[String]> = all.windows(3).collect();
        let mine: HashSet<&[String]> = self.words.windows(3).collect();
        mine.iter().filter(|t| there.contains(*t)).count() as f64 >= HIT * mine.len() as f64
    }
}
