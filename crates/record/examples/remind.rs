//! What recall ahead brings, and whether it holds what answers: the questions of the shared bench's `membench.py`, without a network
//! and with sizes by characters. Conversations are split in halves by name: what is fitted on one is judged by the other. Beside
//! them, each conversation is asked what others were asked: nothing there answers that.
//!
//! `cargo run -p windowsill-record --example remind -- SET.json WINDOW`
#![allow(clippy::print_stdout, reason = "it prints figures")]
#![allow(clippy::unwrap_used, reason = "an example that cannot read its data has nothing to say")]

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::{Value, json};
use windowsill_core::apply::{self, Archive};
use windowsill_core::conversation::chain::chain;
use windowsill_core::conversation::edit::{Edit, View};
use windowsill_core::conversation::{Conversation, Digest, Message, Role, Tokens};
use windowsill_core::passage::{Found, Said, searched};
use windowsill_core::plan::{self, Action, Cost, Facts, Policy, rewrite};
use windowsill_core::remind;
use windowsill_core::wire::openai_chat as wire;
use windowsill_record::{Batch, ConversationUpdate, Node, Passage, Store};

/// Characters a token.
const CHARACTERS: usize = 4;

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
    brought: f64,
    holds: f64,
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
            "{window} {half}: prompt {:.3} sliding {:.3} with what came {:.3}; came {:.2}, held evidence {:.2}, {:.0} tokens; nothing \
             came for {:.2} of {} that others were asked",
            mean(s.prompt),
            mean(s.sliding),
            mean(s.ahead),
            mean(s.brought),
            s.holds / s.brought.max(1.0),
            s.tokens / s.brought.max(1.0),
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
    let mut replay = Replay { window, view: View::default(), forwarded: 0, costs: body.iter().map(cost).collect() };
    for at in 0..body.len() - 1 {
        if body[at].role == Role::User && body[at + 1].role == Role::Assistant {
            replay.turn(&body[..=at]);
        }
    }
    let slides = sliding(&body, window);
    for question in one["questions"].as_array().unwrap() {
        let (prompt, block) = ask(&store, &replay, &body, question);
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
        score.ahead += share(&[&prompt, block.as_deref().unwrap_or("")]);
        if let Some(block) = block {
            score.brought += 1.0;
            score.holds += f64::from(share(&[&block]) > 0.0);
            score.tokens += f64::from(tokens(&block));
        }
    }
    for question in others {
        score.others += 1.0;
        score.nothing += f64::from(ask(&store, &replay, &body, question).1.is_none());
    }
    drop(store);
    _ = std::fs::remove_dir_all(&folder);
}

/// The prompt for a question, and what comes behind it.
fn ask(store: &Store, replay: &Replay, body: &[Message], question: &Value) -> (String, Option<String>) {
    let asked = json!({"role": "user", "content": question["q"]}).to_string();
    let mut body = body.to_vec();
    body.push(wire::message(asked.into()).unwrap());
    let mut replay = Replay { costs: body.iter().map(cost).collect(), view: replay.view.clone(), ..*replay };
    let (prompt, used) = replay.turn(&body);
    let Some(cue) = remind::cue(&body).filter(|_| replay.view.lacks()) else { return (prompt, None) };
    let found = store.passages(&cue.query, Some("c"), FOUND, &mut |_| true).unwrap();
    let found: Vec<Found> = found.into_iter().map(shown).collect();
    let standing = remind::Standing::of([prompt.as_str()].into_iter());
    let gone = |said: &Said| left(&replay.view, said.at) && !standing.holds(said);
    let room = remind::room(replay.window, (replay.window - 512).saturating_sub(used));
    let block = remind::block(&cue, &found, &gone, room, &tokens);
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

struct Names;

impl Archive for Names {
    type Error = std::convert::Infallible;

    fn free_id(&self, text: &str) -> Result<String, Self::Error> {
        Ok(format!("r{}", &Digest::of(text.as_bytes()).hex()[..12]))
    }

    fn result_path(&self, id: &str) -> PathBuf {
        format!("/data/large_tool_results/{id}.txt").into()
    }

    fn history_path(&self, conversation: &str) -> PathBuf {
        format!("/data/conversation_history/{conversation}.md").into()
    }
}

fn tokens(text: &str) -> Tokens {
    Tokens::try_from(text.chars().count().div_ceil(CHARACTERS)).unwrap_or(Tokens::MAX)
}

fn cost(message: &Message) -> Cost {
    Cost { text: tokens(&message.text) + 6, ..Cost::default() }
}

/// What is known between the requests of a conversation.
struct Replay {
    window: Tokens,
    view: View,
    forwarded: usize,
    costs: Vec<Cost>,
}

impl Replay {
    /// The prompt's text, and its tokens.
    fn turn(&mut self, body: &[Message]) -> (String, Tokens) {
        let conversation = Conversation { body: body.to_vec(), ..Conversation::default() };
        let edit_cost = |edit: &Edit| match edit {
            Edit::Arguments { arguments: text, .. }
            | Edit::Text { text, .. }
            | Edit::Recalled { text, .. }
            | Edit::Fold { brief: text, .. } => tokens(text) + 8,
        };
        let mut facts = Facts {
            window: self.window,
            output_reserved: 512,
            slack: 16,
            system: 30,
            tools: 120,
            costs: self.costs[..body.len()].to_vec(),
            edit_costs: self.view.edits.iter().map(edit_cost).collect(),
            view: self.view.clone(),
            forwarded: self.forwarded,
            ..Facts::default()
        };
        let policy = Policy::default();
        loop {
            let plan = plan::plan(&conversation, &facts, &policy);
            let blank = "The user and the assistant have been talking about several things, and the assistant has been answering one question at a time.";
            let asks = plan.actions.iter().any(|a| matches!(a, Action::Fold { ask_model: true, .. }));
            let input = apply::Input {
                conversation: &conversation,
                id: "c0123456789ab",
                plan: &plan,
                old: &self.view,
                store: &Names,
                count: &tokens,
                words: apply::Words {
                    written: asks.then_some(apply::Written { text: blank, read: 0, unread: &[] }),
                    ..apply::Words::default()
                },
            };
            let view = if plan.actions.is_empty() { self.view.clone() } else { apply::apply(&input).unwrap().view };
            let out = rewrite::rewrite(&conversation, &view, &policy.template);
            let texts: Vec<String> =
                out.iter().map(|o| wire::message(o.bytes.clone()).unwrap().text.to_string()).collect();
            let used = texts.iter().map(|t| tokens(t) + 6).sum::<Tokens>() + 150;
            if used <= plan.lines.limit || facts.slack > 4000 {
                (self.view, self.forwarded) = (view, body.len());
                return (texts.join("\n"), used);
            }
            facts.slack += 64;
        }
    }
}

/// The text that a client keeps that drops the oldest messages but the first.
fn sliding(body: &[Message], window: Tokens) -> String {
    let mut left = (window - 512 - 230).saturating_sub(cost(&body[0]).total());
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
