//! Estimated prompt tokens, where neither the model's file nor a server that counts is at hand: texts are counted with a
//! near vocabulary, replies tell which vocabulary and what template it is, and what is given out
//! errs high. How: `mixture.rs`.

mod belief;
mod items;
mod kinds;
mod mixture;
mod row;

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use super::{Known, tokens};
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Conversation, Digest, Message, Role, Tokens, step};
use crate::plan::{Cost, Facts};
use belief::dot;
use items::{Item, Items};
use mixture::Mixture;
pub use mixture::Sample;
use row::{Feature, Ground, Row};

/// Messages, and texts of edits, whose rows are kept.
const REMEMBERED: usize = 1 << 14;

/// Models whose beliefs are kept, 3 MB each: names come from clients, and few of them are in use at once.
const MODELS: usize = 16;

/// A text up to this length is counted anew each time (bytes): that costs no more than its digest.
const SHORT: usize = 64;

/// A prompt whose beginning was counted.
struct Begun {
    /// Messages of that beginning.
    messages: usize,
    /// What has left it since, by the likeliest vocabulary.
    left: Row,
}

/// The rows of messages, by what they are counted with and what they say.
type Messages = LruCache<(Ground, Digest), Arc<Item<Row>>>;

/// The rows of other texts, by what they are counted with, as what, and what they say.
type Texts = LruCache<(Ground, u8, Digest), Row>;

/// Estimates of all models in use, corrected by what their servers report.
pub struct Estimates {
    models: Mutex<LruCache<String, Arc<Mixture>>>,
    messages: Mutex<Messages>,
    texts: Mutex<Texts>,
}

impl Default for Estimates {
    fn default() -> Self {
        let kept = |n: usize| NonZeroUsize::new(n).expect("not zero");
        Estimates {
            models: Mutex::new(LruCache::new(kept(MODELS))),
            messages: Mutex::new(LruCache::new(kept(REMEMBERED))),
            texts: Mutex::new(LruCache::new(kept(REMEMBERED))),
        }
    }
}

impl Estimates {
    /// The facts of a request, costs alone: what is `known` is exact as a whole, and what is new errs high.
    pub fn facts(&self, model: &str, conversation: &Conversation, view: &View, known: Option<Known>) -> Facts {
        let model = self.model(model);
        let (sample, rows, begun) = self.begun(&model, conversation, view, known);
        let foretold = model.foretell(&sample);
        let by_all = rows.iter().zip(&foretold.weights).map(|(rows, weights)| rows.map(|row| dot(weights, row)));
        let first = &rows[0];
        let least = first.map(|row| model.least(row));
        let new =
            by_all.reduce(|all, by| all.zip(&by, |a, b| a + b)).map_or(least.clone(), |all| all.zip(&least, f64::max));
        match begun {
            None => new.facts(&new, conversation.body.len(), foretold.total, 0.0),
            Some(begun) => {
                let before = f64::from(sample.counted) - model.middle(&begun.left);
                first.map(|row| model.middle(row)).facts(&new, begun.messages, before, foretold.total - before)
            }
        }
    }

    /// What there is to learn from once the server has counted this view.
    pub fn sample(&self, model: &str, conversation: &Conversation, view: &View, known: Option<Known>) -> Sample {
        self.begun(&self.model(model), conversation, view, known).0
    }

    /// What a prompt holds by each vocabulary in question (one at least), the likeliest first; its items; its beginning.
    fn begun<'a>(
        &self,
        model: &Mixture,
        conversation: &Conversation,
        view: &'a View,
        known: Option<Known>,
    ) -> (Sample, Vec<Items<'a, Row>>, Option<Begun>) {
        let known = known.filter(|k| (1..=conversation.body.len()).contains(&k.messages));
        let mut sample = Sample { new: Vec::new(), counted: known.map_or(0, |k| k.tokens) };
        let (mut all, mut first) = (Vec::new(), None);
        for ground in model.grounds() {
            let rows = self.rows(*ground, conversation, view);
            let mut new = rows.total(rows.body.len());
            let begun = known.map(|known| {
                let left = self.left(*ground, conversation, known.messages);
                new = new - rows.total(known.messages) - left;
                Begun { messages: known.messages, left }
            });
            sample.new.push((*ground, new));
            first = first.or(begun);
            all.push(rows);
        }
        (sample, all, first)
    }

    /// The middle costs of each message of the body.
    pub fn costs(&self, model: &str, conversation: &Conversation) -> Vec<Cost> {
        let model = self.model(model);
        let view = View::default();
        let items = self.rows(ground(&model), conversation, &view).map(|row| model.middle(row).round() as Tokens);
        let cost = |item: Item<Tokens>| Cost { text: item.text, calls: item.calls, media: item.media };
        items.body.into_iter().map(cost).collect()
    }

    /// Tokens of a text, erring high.
    pub fn text(&self, model: &str, text: &str) -> Tokens {
        let model = self.model(model);
        model.text(&self.row(ground(&model), Feature::Words, text)).ceil() as Tokens
    }

    /// Tokens of what an edit puts in place, erring high.
    pub fn edit_cost(&self, model: &str, conversation: &Conversation, edit: &Edit) -> Tokens {
        let model = self.model(model);
        model.text(&self.edit(ground(&model), conversation, edit)).ceil() as Tokens
    }

    /// Whether any reply has corrected the estimates of a model.
    pub fn is_corrected(&self, model: &str) -> bool {
        self.models.lock().get(model).is_some_and(|m| m.is_corrected())
    }

    /// Learns what the server counted.
    pub fn learn(&self, model: &str, sample: &Sample, reported: Tokens) {
        let mut models = self.models.lock();
        let known = models.get_or_insert_mut(model.to_owned(), || Arc::new(named(model)));
        let mixture = Arc::make_mut(known);
        mixture.learn(sample, reported);
        if mixture.is_misled() {
            mixture.open(&kinds::of(model, true));
        }
    }

    /// Notes that prompts of a model are counted anyway: its estimates may be rough, and cost next to nothing.
    pub fn counted_anyway(&self, model: &str) {
        let mut models = self.models.lock();
        if models.get(model).is_none_or(|known| ground(known) != Ground::Rough) {
            models.put(model.to_owned(), Arc::new(Mixture::new(&kinds::rough())));
        }
    }

    fn model(&self, name: &str) -> Arc<Mixture> {
        self.models.lock().get_or_insert(name.to_owned(), || Arc::new(named(name))).clone()
    }

    /// The row of a text, remembered.
    fn row(&self, ground: Ground, kind: Feature, text: &str) -> Row {
        if text.len() <= SHORT {
            return ground.text(kind, text);
        }
        let key = (ground, kind as u8, Digest::of(text.as_bytes()));
        if let Some(row) = self.texts.lock().get(&key) {
            return *row;
        }
        let row = ground.text(kind, text);
        self.texts.lock().put(key, row);
        row
    }

    fn rows<'a>(&self, ground: Ground, conversation: &Conversation, view: &'a View) -> Items<'a, Row> {
        let item = |m: &Message| Item::clone(&self.message(ground, m));
        let whole = |m: &Message| {
            let item = self.message(ground, m);
            item.calls.iter().fold(item.text + item.media, |sum, c| sum + *c)
        };
        let own = if conversation.system.is_empty() { Row::of(Feature::NoSystem, 1.0) } else { Row::default() };
        let system = conversation.system.iter().map(whole).fold(own, |sum, row| sum + row);
        let tools = conversation.tools.as_ref().map_or_else(Row::default, |raw| {
            self.row(ground, Feature::Definitions, &String::from_utf8_lossy(raw)).with(Feature::Tools, 1.0)
        });
        let mut body: Vec<Item<Row>> = conversation.body.iter().map(item).collect();
        let last_user = step::last_user(&conversation.body).unwrap_or(0);
        for (item, message) in body.iter_mut().zip(&conversation.body).skip(last_user + 1) {
            item.text = item.text + self.row(ground, Feature::Reasoning, &message.reasoning);
        }
        let edits = view.edits.iter().map(|edit| self.edit(ground, conversation, edit)).collect();
        Items { system: system + Row::of(Feature::Prompt, 1.0), tools, body, view, edits }
    }

    /// The reasoning that was part of the prompt while the conversation had so many messages, and is no more: templates
    /// drop that of the turns before the last.
    fn left(&self, ground: Ground, conversation: &Conversation, messages: usize) -> Row {
        let body = &conversation.body;
        let then = step::last_user(&body[..messages]).unwrap_or(0);
        let now = step::last_user(body).unwrap_or(0).min(messages - 1);
        let dropped = body.get(then + 1..=now).unwrap_or_default();
        dropped.iter().fold(Row::default(), |sum, m| sum + self.row(ground, Feature::Reasoning, &m.reasoning))
    }

    fn message(&self, ground: Ground, message: &Message) -> Arc<Item<Row>> {
        let key = (ground, message.digest);
        if let Some(item) = self.messages.lock().get(&key) {
            return Arc::clone(item);
        }
        let media: Tokens = message.media.iter().map(tokens::media).fold(0, Tokens::saturating_add);
        let call = |name: &str, arguments: &str| {
            ground.text(Feature::Arguments, name)
                + ground.text(Feature::Arguments, arguments)
                + Row::of(Feature::Calls, 1.0)
        };
        let item = Arc::new(Item {
            text: ground.text(words_of(message), &message.text) + around(message.role),
            calls: message.calls.iter().map(|c| call(&c.name, &c.arguments)).collect(),
            media: Row::of(Feature::Media, media as f32),
        });
        self.messages.lock().put(key, Arc::clone(&item));
        item
    }

    /// What an edit put in place.
    fn edit(&self, ground: Ground, conversation: &Conversation, edit: &Edit) -> Row {
        match edit {
            Edit::Text { at, text, .. } => {
                let message = conversation.body.get(*at);
                let kind = message.map_or(Feature::Words, words_of);
                self.row(ground, kind, text) + around(message.map_or(Role::User, |m| m.role))
            }
            Edit::Arguments { at, call, arguments, .. } => {
                let called = conversation.body.get(*at).and_then(|m| m.calls.get(*call));
                let name = called.map_or_else(Row::default, |c| ground.text(Feature::Arguments, &c.name));
                self.row(ground, Feature::Arguments, arguments) + name + Row::of(Feature::Calls, 1.0)
            }
            Edit::Fold { brief, .. } => self.row(ground, Feature::Words, brief),
        }
    }
}

/// A model of which only the name is known.
fn named(name: &str) -> Mixture {
    Mixture::new(&kinds::of(name, false))
}

/// What the texts of a model are counted with first of all.
fn ground(model: &Mixture) -> Ground {
    model.grounds().first().copied().unwrap_or(Ground::Rough)
}

/// Where the text of a message counts.
fn words_of(message: &Message) -> Feature {
    match message.role {
        Role::Tool => Feature::ResultWords,
        Role::Assistant if !message.calls.is_empty() => Feature::Asides,
        _ => Feature::Words,
    }
}

/// What a template puts around a message.
fn around(role: Role) -> Row {
    let kind = match role {
        Role::Tool => Feature::Results,
        Role::Assistant => Feature::Replies,
        Role::User | Role::System | Role::Other => Feature::Messages,
    };
    Row::of(kind, 1.0)
}

#[cfg(test)]
mod tests;
