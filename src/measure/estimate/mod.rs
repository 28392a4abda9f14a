//! Estimated prompt tokens, where neither the model's vocabulary nor a server that counts is at hand: sizes of texts by the
//! rule of thumb ([`tokens`]), times what the replies of each model taught (`belief.rs`). What a server reported of a
//! conversation's beginning stays exact; what is new errs high.

mod belief;
mod items;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use super::{Known, tokens};
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Conversation, Digest, Message, Tokens, step};
use crate::plan::{Cost, Facts};
pub use belief::Sample;
use belief::{Belief, Row};
use items::{Edited, Item, Items};

/// Messages whose rows are kept, of all histories together.
const REMEMBERED: usize = 1 << 15;

/// Texts before histories whose rows are kept.
const HEADS: usize = 1 << 10;

/// Models whose beliefs are kept: names come from clients.
const MODELS: usize = 512;

/// Standard deviations that are added to what is new since the last report: one recorded prompt in some thousands is more
/// than 1 % above that.
const CAUTION: f64 = 2.75;

/// As above, of a prompt of which nothing was ever reported. Its doubt is much larger, and with [`CAUTION`] a prompt that
/// fits would be rewritten or refused; should it be too long after all, the server says so and tells its window.
const FIRST_CAUTION: f64 = 1.5;

/// What is added to the size of a text by itself, as a share: previews and briefs add up many.
const TEXT_MARGIN: f64 = 0.1;

/// Tool definitions are spelled in many ways: by how much more than the client's, and how much less sure than other texts
/// they are.
const DEFINITIONS: (f64, f64) = (1.1, 2.0);

/// Templates introduce the tools by so much more than what else they add to a prompt.
const TOOLS_PREAMBLE: f64 = 2.0;

/// Some templates keep the reasoning since the last user message, and some drop it: half of it, and its doubt such that
/// [`CAUTION`] takes in the whole.
const REASONING: (f64, f64) = (0.5, 1.8);

/// Estimates of all models in use, corrected by what their servers report.
pub struct Estimates {
    models: Mutex<LruCache<String, Belief>>,
    heads: Mutex<LruCache<Digest, Arc<Item<Row>>>>,
    histories: Mutex<Histories>,
}

/// The rows of histories that were looked at last, each in order: what goes on from one of them is compared with it, message by
/// message, and not looked up.
#[derive(Default)]
struct Histories(VecDeque<Vec<(Digest, Arc<Item<Row>>)>>);

impl Histories {
    /// Takes out the one that a body has most in common with, as far as that goes.
    fn take(&mut self, body: &[Message]) -> Vec<(Digest, Arc<Item<Row>>)> {
        let common = |rows: &Vec<(Digest, Arc<Item<Row>>)>| {
            rows.iter().zip(body).take_while(|((digest, _), message)| *digest == message.digest).count()
        };
        let best = self.0.iter().enumerate().map(|(at, rows)| (common(rows), at)).max();
        let Some((shared, at)) = best.filter(|(shared, _)| *shared > 0) else { return Vec::new() };
        let mut rows = self.0.remove(at).unwrap_or_default();
        rows.truncate(shared);
        rows
    }

    /// Puts one in, and lets those go that were used longest ago.
    fn put(&mut self, rows: Vec<(Digest, Arc<Item<Row>>)>) {
        self.0.push_back(rows);
        let mut all: usize = self.0.iter().map(Vec::len).sum();
        while all > REMEMBERED {
            all -= self.0.pop_front().map_or(all, |rows| rows.len());
        }
    }
}

impl Default for Estimates {
    fn default() -> Self {
        let kept = |n: usize| NonZeroUsize::new(n).expect("not zero");
        Estimates {
            models: Mutex::new(LruCache::new(kept(MODELS))),
            heads: Mutex::new(LruCache::new(kept(HEADS))),
            histories: Mutex::default(),
        }
    }
}

/// A prompt, taken apart.
struct Parts<'a> {
    items: Items<'a, Row>,
    sample: Sample,
    /// Messages of the beginning that was counted.
    counted: Option<usize>,
    /// What has left that beginning since.
    left: Row,
}

impl Estimates {
    /// The facts of a request, costs alone: what is `known` is exact as a whole, and what is new errs high.
    pub fn facts(&self, model: &str, conversation: &Conversation, view: &View, known: Option<Known>) -> Facts {
        let belief = self.belief(model);
        let Parts { items, sample, counted, left } = self.parts(conversation, view, known, belief.writes_calls());
        let (mean, deviation) = belief.foretell(&sample.new);
        let least = belief.least(&sample.new);
        // A part may be believed to cost less than nothing, beside others.
        let middle = items.map(|row| belief.middle(row).max(0.0));
        let Some(messages) = counted else {
            return middle.facts(0, 0.0, (mean + FIRST_CAUTION * deviation).max(least));
        };
        let left = belief.middle(&left);
        middle.facts(messages, f64::from(sample.counted) - left, mean + left + CAUTION * deviation)
    }

    /// The facts of a request by nothing that a server ever reported.
    pub fn unreported(&self, model: &str, conversation: &Conversation, view: &View) -> Facts {
        let belief = Belief::default();
        let calls = self.belief(model).writes_calls();
        let Parts { items, sample, .. } = self.parts(conversation, view, None, calls);
        let mean = belief.middle(&sample.new);
        items.map(|row| belief.middle(row)).facts(0, 0.0, mean)
    }

    /// What there is to learn from once the server has counted this view. Summed up message by message: at that time the record may
    /// still hold all texts of a large request.
    pub fn sample(&self, model: &str, conversation: &Conversation, view: &View, known: Option<Known>) -> Sample {
        let body = &conversation.body;
        let calls = self.belief(model).writes_calls();
        let known = known.filter(|k| (1..=body.len()).contains(&k.messages));
        let put: Vec<Row> = view.edits.iter().map(|edit| put_in_place(conversation, edit, calls)).collect();
        let edited = Edited::of(view, &put);
        let (system, tools) = self.head(conversation);
        // The whole, and the beginning that was counted.
        let upto = [body.len(), known.map_or(0, |known| known.messages)];
        let mut sums = upto.map(|upto| edited.brief(upto));
        let last_user = step::last_user(body).unwrap_or(0);
        for (at, (message, item)) in body.iter().zip(self.rows(body)).enumerate() {
            let said = (at > last_user && !message.reasoning.is_empty()).then(|| with_reasoning(&item, message));
            let silent = (!calls && !item.calls.is_empty())
                .then(|| said.clone().unwrap_or_else(|| Item::clone(&item)).without_calls());
            let item = silent.as_ref().or(said.as_ref()).unwrap_or(&item);
            for (sum, upto) in sums.iter_mut().zip(upto) {
                if at < upto {
                    *sum = *sum + edited.cost(at, item, upto);
                }
            }
        }
        let [all, counted] = sums.map(|sum| system + tools + sum);
        let Some(known) = known else { return Sample { new: all, counted: 0 } };
        Sample { new: (all - counted).without(left(conversation, known.messages)), counted: known.tokens }
    }

    /// The middle costs of each message of the body.
    pub fn costs(&self, model: &str, conversation: &Conversation) -> Vec<Cost> {
        let belief = self.belief(model);
        let last_user = step::last_user(&conversation.body).unwrap_or(0);
        let tokens = |row: &Row| belief.middle(row).round() as Tokens;
        let cost = |(at, (message, item)): (usize, (&Message, Arc<Item<Row>>))| {
            let text = if at > last_user { item.text + reasoning(message) } else { item.text };
            let calls = match belief.writes_calls() {
                true => item.calls.iter().map(tokens).collect(),
                false => vec![0; item.calls.len()],
            };
            Cost { text: tokens(&text), calls, media: tokens(&item.media) }
        };
        conversation.body.iter().zip(self.rows(&conversation.body)).enumerate().map(cost).collect()
    }

    /// Tokens of a text, erring high.
    pub fn text(&self, model: &str, text: &str) -> Tokens {
        self.high(model, &Row::text(tokens::size(text)))
    }

    /// Tokens of what an edit puts in place, erring high.
    pub fn edit_cost(&self, model: &str, conversation: &Conversation, edit: &Edit) -> Tokens {
        self.high(model, &put_in_place(conversation, edit, self.belief(model).writes_calls()))
    }

    /// Whether any reply has corrected the estimates of a model.
    pub fn is_corrected(&self, model: &str) -> bool {
        self.models.lock().get(model).is_some_and(Belief::is_corrected)
    }

    /// Whether a model's template writes tool calls; `None` where that is not known. The number says how often its server had been
    /// recognized by then.
    pub fn writes_calls(&self, model: &str) -> Option<(bool, u64)> {
        self.models.lock().get(model).and_then(|belief| belief.calls)
    }

    /// Keeps whether a model's template writes the calls of tools: what it does not write costs nothing.
    pub fn note_calls(&self, model: &str, told: (bool, u64)) {
        self.models.lock().get_or_insert_mut(model.to_owned(), Belief::default).calls = Some(told);
    }

    /// Learns what the server counted.
    pub fn learn(&self, model: &str, sample: &Sample, reported: Tokens) {
        self.models.lock().get_or_insert_mut(model.to_owned(), Belief::default).learn(sample, reported);
    }

    fn belief(&self, model: &str) -> Belief {
        self.models.lock().get(model).cloned().unwrap_or_default()
    }

    fn high(&self, model: &str, row: &Row) -> Tokens {
        let middle = match self.models.lock().get(model) {
            Some(belief) => belief.middle(row),
            None => Belief::default().middle(row),
        };
        (middle * (1.0 + TEXT_MARGIN)).ceil() as Tokens
    }

    /// `calls`: the template writes them.
    fn parts<'a>(&self, conversation: &Conversation, view: &'a View, known: Option<Known>, calls: bool) -> Parts<'a> {
        let items = self.items(conversation, view, calls);
        let all = items.total(items.body.len());
        let Some(known) = known.filter(|k| (1..=conversation.body.len()).contains(&k.messages)) else {
            let sample = Sample { new: all, counted: 0 };
            return Parts { items, sample, counted: None, left: Row::default() };
        };
        let left = left(conversation, known.messages);
        let new = (all - items.total(known.messages)).without(left);
        Parts { items, sample: Sample { new, counted: known.tokens }, counted: Some(known.messages), left }
    }

    /// What system prompt and tools hold.
    fn head(&self, conversation: &Conversation) -> (Row, Row) {
        let whole = |m: &Message| {
            let item = self.message(m);
            item.calls.iter().fold(item.text + item.media, |sum, c| sum + *c)
        };
        let system = conversation.system.iter().map(whole).fold(Row::preamble(1.0), |sum, row| sum + row);
        let tools = conversation.tools.as_ref().map_or_else(Row::default, |raw| {
            let size = tokens::size(&spelled(raw));
            Row::text(size).at(DEFINITIONS.0, DEFINITIONS.1) + Row::preamble(TOOLS_PREAMBLE)
        });
        (system, tools)
    }

    fn items<'a>(&self, conversation: &Conversation, view: &'a View, calls: bool) -> Items<'a, Row> {
        let (system, tools) = self.head(conversation);
        let mut body: Vec<Item<Row>> = self.rows(&conversation.body).map(Arc::unwrap_or_clone).collect();
        let last_user = step::last_user(&conversation.body).unwrap_or(0);
        for (item, message) in body.iter_mut().zip(&conversation.body).skip(last_user + 1) {
            *item = with_reasoning(item, message);
        }
        if !calls {
            body = body.into_iter().map(Item::without_calls).collect();
        }
        let edits = view.edits.iter().map(|edit| put_in_place(conversation, edit, calls)).collect();
        Items { system, tools, body, view, edits }
    }

    /// The row of each message of a body. Of a very long one none is kept: they would take as much as the texts.
    fn rows<'a>(&self, body: &'a [Message]) -> Box<dyn Iterator<Item = Arc<Item<Row>>> + 'a> {
        if body.len() > REMEMBERED {
            return Box::new(body.iter().map(|message| Arc::new(row(message))));
        }
        let mut rows = self.histories.lock().take(body);
        let new = body[rows.len()..].iter().map(|message| (message.digest, Arc::new(row(message))));
        rows.extend(new);
        let all: Vec<Arc<Item<Row>>> = rows.iter().map(|(_, item)| Arc::clone(item)).collect();
        self.histories.lock().put(rows);
        Box::new(all.into_iter())
    }

    /// The row of a message that stands before many histories.
    fn message(&self, message: &Message) -> Arc<Item<Row>> {
        Arc::clone(self.heads.lock().get_or_insert(message.digest, || Arc::new(row(message))))
    }
}

/// A message.
fn row(message: &Message) -> Item<Row> {
    let media: Tokens = message.media.iter().map(tokens::media).fold(0, Tokens::saturating_add);
    Item {
        text: said(&message.text),
        calls: message.calls.iter().map(|c| call(&c.name, &c.arguments)).collect(),
        media: Row::media(media),
    }
}

/// The tools as servers spell them: a client's indentation is no part of a prompt. Only JSON that is indented has line ends,
/// since those in a string are escaped (RFC 8259, section 7).
fn spelled(tools: &[u8]) -> Cow<'_, str> {
    let indented = tools.contains(&b'\n');
    match indented.then(|| serde_json::from_slice::<serde_json::Value>(tools)) {
        Some(Ok(value)) => Cow::Owned(value.to_string()),
        _ => String::from_utf8_lossy(tools),
    }
}

/// A message with this text.
fn said(text: &str) -> Row {
    Row::text(tokens::size(text)) + Row::part()
}

/// A call.
fn call(name: &str, arguments: &str) -> Row {
    Row::text(tokens::size(name) + tokens::size(arguments)) + Row::part()
}

/// A message of a turn that goes on.
fn with_reasoning(item: &Item<Row>, message: &Message) -> Item<Row> {
    Item { text: item.text + reasoning(message), ..item.clone() }
}

/// Reasoning of which nobody knows whether the template keeps it.
fn reasoning(message: &Message) -> Row {
    if message.reasoning.is_empty() {
        return Row::default();
    }
    Row::text(tokens::size(&message.reasoning)).at(REASONING.0, REASONING.1)
}

/// The reasoning that was part of the prompt while the conversation had so many messages, and is no more: templates drop that
/// of the turns before the last.
fn left(conversation: &Conversation, messages: usize) -> Row {
    let body = &conversation.body;
    let then = step::last_user(&body[..messages]).unwrap_or(0);
    let now = step::last_user(body).unwrap_or(0).min(messages - 1);
    let dropped = body.get(then + 1..=now).unwrap_or_default();
    dropped.iter().fold(Row::default(), |sum, m| sum + reasoning(m))
}

/// What an edit put in place. `calls`: the template writes them.
fn put_in_place(conversation: &Conversation, edit: &Edit, calls: bool) -> Row {
    match edit {
        Edit::Arguments { .. } if !calls => Row::default(),
        Edit::Text { text, .. } => said(text),
        Edit::Arguments { at, call: nth, arguments, .. } => {
            let called = conversation.body.get(*at).and_then(|m| m.calls.get(*nth));
            call(called.map_or("", |c| &c.name), arguments)
        }
        Edit::Recalled { text, .. } => Row::text(tokens::size(text)),
        Edit::Fold { brief, .. } => Row::text(tokens::size(brief)),
    }
}

#[cfg(test)]
mod tests;
