//! Pictures of conversations: `window 1000 reserve 100 | sys:100 user:50 call:10 result:300`.
//!
//! In front of the bar: the numbers and the policy. Behind it: messages with what they cost. `sys` before anything else is
//! a leading system message, further down it is one in the middle; `tools` are the tool definitions. `call:10+80` makes
//! two parallel calls; a word in `@` names what a result says or what is called for, so that two can be the same. `stub`
//! is a result that says "unchanged"; `remind` a user message that is nothing but a client's reminder, `rules` one with a
//! client's rules and a person's request. `3*(call:10 result:20)` repeats. `=30` behind a message: an earlier edit of the rule
//! before it, as in `result:300~clear=20`.

use std::sync::Arc;

use bytes::Bytes;
use windowsill::conversation::edit::{Edit, Rule, View};
use windowsill::conversation::{Conversation, Message, Role, Tokens, repair};
use windowsill::plan::{Action, Counting, Facts, FoldAt, KeepRecent, Plan, Policy, ResultRules, Size, Strategy};
use windowsill::wire::{json, openai_chat as wire};

use super::harness::{self, BRIEF_MARK, FRAME, filler};

/// A conversation with its numbers, read from a picture.
#[derive(Debug)]
pub(crate) struct Picture {
    pub conversation: Conversation,
    pub facts: Facts,
    pub policy: Policy,
}

/// Reads a picture; panics where it is wrong, since it is part of a test.
pub(crate) fn read(picture: &str) -> Picture {
    let (numbers, messages) = picture.split_once('|').expect("a bar divides numbers and messages");
    let mut builder = Builder::default();
    let expanded = repeat(messages);
    for word in expanded.split_whitespace() {
        builder.message(word);
    }
    let whole = ResultRules { evict_over: Size::Share(1.0), ..ResultRules::default() };
    let mut policy = Policy { results: whole, fold_at: FoldAt::Line, clear_at: 0.6, ..Policy::default() };
    let (mut window, mut reserve, mut forwarded, mut guessed) = (0, 0, 0, false);
    let mut words = numbers.split_whitespace();
    while let Some(key) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{key} wants a value"));
        let number = |s: &str| s.parse::<Tokens>().unwrap_or_else(|_| panic!("{s} is no number"));
        match key {
            "window" => window = number(value()),
            "reserve" => reserve = number(value()),
            "forwarded" => forwarded = number(value()) as usize,
            "keep" => policy.keep_recent = KeepRecent::Messages(number(value()) as usize),
            "evict" => policy.results.evict_over = Size::Tokens(number(value())),
            "brief" => policy.summary_max_tokens = number(value()) / 2,
            "never" => policy.results.never_clear.push(value().to_owned()),
            "wall" => policy.fold_at = FoldAt::Wall,
            "guessed" => guessed = true,
            "strict" => policy.template.strict_alternation = true,
            "strategy" => {
                policy.strategy = match value() {
                    "off" => Strategy::Off,
                    "truncate" => Strategy::Truncate,
                    _ => Strategy::Summarize,
                }
            }
            other => panic!("{other}?"),
        }
    }
    let mut conversation = builder.conversation;
    conversation.body = repair::repair(conversation.body, None).expect("a picture has no orphans").body;
    let mut edits = builder.edits;
    edits.sort_by_key(|e| !matches!(e, Edit::Fold { .. }));
    for edit in &mut edits {
        if let Edit::Text { at, digest, .. } | Edit::Arguments { at, digest, .. } = edit {
            *digest = conversation.body[*at].digest;
        }
    }
    let view = View { messages: conversation.body.len(), edits, ..View::default() };
    let facts = Facts {
        forwarded,
        counting: Counting { guessed, ..Counting::default() },
        ..harness::facts(&conversation, &view, window, reserve)
    };
    Picture { conversation, facts, policy }
}

/// Writes `3*(a b)` out as `a b a b a b`.
fn repeat(text: &str) -> String {
    let Some(star) = text.find("*(") else { return text.to_owned() };
    let start = text[..star].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    let times: usize = text[start..star].parse().expect("a number before *(");
    let end = star + text[star..].find(')').expect("a closing bracket");
    let inner = format!("{} ", &text[star + 2..end]);
    format!("{}{}{}", &text[..start], inner.repeat(times), repeat(&text[end + 1..]))
}

#[derive(Default)]
struct Builder {
    conversation: Conversation,
    edits: Vec<Edit>,
    /// Ids of calls that wait for a result.
    waiting: Vec<String>,
    ids: usize,
}

impl Builder {
    fn message(&mut self, word: &str) {
        let (what, edit) = word.split_once('~').map_or((word, None), |(w, e)| (w, Some(e)));
        let (what, name) = what.split_once('@').map_or((what, None), |(w, n)| (w, Some(n)));
        let (kind, size) = what.split_once(':').unwrap_or((what, "0"));
        if kind == "fold" {
            return self.fold(size);
        }
        let sizes: Vec<Tokens> = size.split('+').map(|s| s.parse().unwrap_or_else(|_| panic!("{word}?"))).collect();
        if kind == "tools" {
            self.conversation.tools = Some(Bytes::from(filler("", sizes[0])));
            return;
        }
        let raw = self.raw(kind, &sizes, name);
        let message = wire::message(Bytes::from(raw)).expect("a message");
        assert_eq!(harness::cost(&message).total(), sizes.iter().sum::<Tokens>(), "{word}");
        if message.role == Role::System && self.conversation.body.is_empty() {
            self.conversation.system.push(message);
            return;
        }
        if let Some((rule, tokens)) = edit.map(|e| e.split_once('=').expect("rule=tokens")) {
            self.edit(&message, rule, tokens.parse().expect("tokens"));
        }
        self.conversation.body.push(message);
    }

    fn raw(&mut self, kind: &str, sizes: &[Tokens], name: Option<&str>) -> String {
        self.ids += 1;
        // What it says differs from message to message, but for those with the same name.
        let mark = name.map_or_else(|| format!("{:05}", self.ids), str::to_owned);
        let text = |tokens: Tokens| json::quote(&filler(&mark, tokens - FRAME));
        match kind {
            "sys" => format!(r#"{{"role":"system","content":{}}}"#, text(sizes[0])),
            "user" => format!(r#"{{"role":"user","content":{}}}"#, text(sizes[0])),
            // What a client says in the user's name: a reminder alone, or rules before a person's request.
            "remind" => {
                let (open, close) = ("<system-reminder>", "</system-reminder>");
                let inside = (sizes[0] - FRAME) as usize * 4 - open.len() - close.len() - mark.len();
                let text = format!("{open}{mark}{}{close}", "x".repeat(inside));
                format!(r#"{{"role":"user","content":{}}}"#, json::quote(&text))
            }
            "rules" => {
                let (open, close) = ("<system-reminder>rules", "</system-reminder>\nFix it.");
                let inside = (sizes[0] - FRAME) as usize * 4 - open.len() - close.len() - mark.len();
                let text = format!("{open}{mark}{}{close}", "x".repeat(inside));
                format!(r#"{{"role":"user","content":{}}}"#, json::quote(&text))
            }
            "asst" => format!(r#"{{"role":"assistant","content":{}}}"#, text(sizes[0])),
            "image" => {
                let text = text(sizes[0] - harness::PICTURE);
                let image = r#"{"type":"image_url","image_url":{"url":"x"}}"#;
                format!(r#"{{"role":"user","content":[{{"type":"text","text":{text}}},{image}]}}"#)
            }
            "call" => self.call(sizes, name),
            "result" | "stub" => {
                let id = if self.waiting.is_empty() { String::new() } else { self.waiting.remove(0) };
                let text = match kind {
                    "result" => filler(&mark, sizes[0] - FRAME),
                    _ => filler("File unchanged since last read. ", sizes[0] - FRAME),
                };
                format!(r#"{{"role":"tool","tool_call_id":"{id}","content":{}}}"#, json::quote(&text))
            }
            other => panic!("{other}?"),
        }
    }

    /// Calls: the message itself costs a frame, which the first call bears.
    fn call(&mut self, sizes: &[Tokens], name: Option<&str>) -> String {
        let mut calls = Vec::new();
        for (i, size) in sizes.iter().enumerate() {
            self.ids += 1;
            let id = format!("c{}", self.ids);
            let room = (size - if i == 0 { 2 * FRAME } else { FRAME }) as usize * 4;
            let tool = if name == Some("notes") { "note" } else { "read" };
            let path = name.map_or_else(|| self.ids.to_string(), str::to_owned);
            let least = format!("{{\"path\":\"{path}\"}}");
            let arguments = match room.checked_sub(tool.len() + least.len()) {
                Some(0..10) => format!("{{\"path\":\"{path}\"{}}}", " ".repeat(room - tool.len() - least.len())),
                Some(more) => format!("{{\"path\":\"{path}\",\"x\":\"{}\"}}", "y".repeat(more - 7)),
                None => panic!("a call of {size} tokens is too small"),
            };
            let arguments = json::quote(&arguments);
            calls.push(format!(
                r#"{{"id":"{id}","type":"function","function":{{"name":"{tool}","arguments":{arguments}}}}}"#
            ));
            self.waiting.push(id);
        }
        format!(r#"{{"role":"assistant","content":"","tool_calls":[{}]}}"#, calls.join(","))
    }

    fn edit(&mut self, message: &Message, rule: &str, tokens: Tokens) {
        let rule = match rule {
            "evict" => Rule::Evict,
            "clear" => Rule::Clear,
            "repeat" => Rule::Repeat,
            "restore" => Rule::Restore,
            "truncate" => Rule::Truncate,
            other => panic!("{other}?"),
        };
        let (at, digest) = (self.conversation.body.len(), message.digest);
        let text = Arc::from(filler("[old]", tokens - FRAME));
        self.edits.push(Edit::Text { at, digest, rule, text, record: format!("r{at}") });
    }

    /// `fold:1..5=80`, or `fold:1..5,3=80` where message 3 stays.
    fn fold(&mut self, text: &str) {
        let (range, brief) = text.split_once('=').expect("a fold has a brief");
        let mut parts = range.split(',');
        let (from, to) = parts.next().and_then(|r| r.split_once("..")).expect("a range");
        self.edits.push(Edit::Fold {
            from: from.parse().expect("a number"),
            to: to.parse().expect("a number"),
            keep: parts.map(|k| k.parse().expect("a number")).collect(),
            brief: Arc::from(filler(BRIEF_MARK, brief.parse().expect("tokens"))),
            unread: Vec::new(),
            read: None,
            struck: Vec::new(),
        });
    }
}

/// A plan in a few words: what is done, then the tokens before and after.
pub(crate) fn say(plan: &Plan) -> String {
    let mut words: Vec<(usize, String)> = plan.actions.iter().map(word).collect();
    words.sort();
    let mut out: Vec<String> = Vec::new();
    for run in words.chunk_by(|a, b| kind(&a.1) == kind(&b.1)) {
        // What is done to many messages is one word.
        match run {
            [first, _, _, .., last] => {
                let (kind, at) = first.1.split_once(' ').expect("a word has an index");
                let to = last.1.split_once(' ').expect("a word has an index").1;
                out.push(format!("{kind} {at} … {to} ({} of them)", run.len()));
            }
            few => out.extend(few.iter().map(|(_, word)| word.clone())),
        }
    }
    if out.is_empty() {
        out.push("nothing".into());
    }
    let refused = if plan.fits { "" } else { "refused; " };
    format!("{refused}{} ({} -> {})", out.join("; "), plan.before.prompt(), plan.after.prompt())
}

fn kind(word: &str) -> &str {
    word.split(' ').next().unwrap_or("")
}

fn word(action: &Action) -> (usize, String) {
    match action {
        Action::Preview { at, budget, rule } => {
            let name = if *rule == Rule::Evict { "evict" } else { "shorten" };
            (*at, format!("{name} {at} to {budget}"))
        }
        Action::Placeholder { at, .. } => (*at, format!("clear {at}")),
        Action::Repeat { at, of } => (*at, format!("repeat {at} of {of}")),
        Action::Restore { at, of, whole } => {
            (*at, format!("restore {at} of {of}{}", if *whole { " in full" } else { "" }))
        }
        Action::Elide { at, call, budget, .. } => (*at, format!("elide {at}.{call} to {budget}")),
        Action::Cut { at, budget } => (*at, format!("cut {at} to {budget}")),
        Action::Forget { at } => (*at, format!("forget {at}")),
        Action::Quiet { at } => (*at, format!("leave out the thoughts of {at}")),
        Action::Fold { from, to, keep, budget, ask_model } => {
            let keep: Vec<String> = keep.iter().map(usize::to_string).collect();
            let keep = if keep.is_empty() { String::new() } else { format!(" keep {}", keep.join(" ")) };
            let by = if *ask_model { "" } else { " without a model" };
            (*from, format!("fold {from}..{to}{keep} into {budget}{by}"))
        }
    }
}
