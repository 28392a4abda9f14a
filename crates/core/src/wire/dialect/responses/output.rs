//! The items of a reply's output.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::said::{CallPart, Compaction};
use super::super::whole::Whole;
use super::PLAIN;
use super::calls::Form;
use super::tools::Special;
use crate::wire::reply::grow_name;

/// Why an MCP server has no tools here.
const UNREACHED: &str =
    "MCP servers are not connected to from here: connect to it in the client, and offer its tools as functions";

/// The output, as far as it was heard and told.
#[derive(Default)]
pub(super) struct Output {
    pub(super) items: Vec<Item>,
    /// How many of them there are of each kind: reasoning, messages, calls, compactions, MCP servers.
    kinds: [usize; 5],
    /// The last call of each number.
    latest: HashMap<u64, usize>,
    /// The item that is told now.
    pub(super) front: usize,
    /// MCP servers that the client wants, and that nobody here connects to: told before the model's first word.
    pub(super) unreached: Vec<String>,
}

/// An item of the output, as far as it was heard and told.
pub(super) struct Item {
    /// How many items of its kind came before it.
    pub(super) nth: usize,
    /// It was announced.
    pub(super) open: bool,
    /// The part that is told now, whether it was announced, and how much of it was told (bytes).
    pub(super) part: usize,
    pub(super) part_open: bool,
    pub(super) told: usize,
    /// Of the part that is told now, how many `logprobs` were told.
    pub(super) told_logprobs: usize,
    pub(super) body: Body,
    /// Of a call.
    whole: Whole,
}

/// What an item holds.
pub(super) enum Body {
    Reasoning(Vec<Part>),
    Message(Vec<Part>),
    Call(CallPart),
    /// What the client brings back for the history before it; `None` while it is made.
    Compaction(Option<String>),
    /// An MCP server that nobody here connects to, by its label.
    Unreached(String),
}

/// A part of an item's content.
pub(super) struct Part {
    pub(super) kind: Kind,
    pub(super) text: String,
    /// How likely its tokens were, where the client asked for that.
    pub(super) logprobs: Vec<Value>,
}

/// The kinds of text in a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Text,
    Refusal,
}

impl Kind {
    /// The name in events.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Reasoning => "reasoning_text",
            Kind::Text => "output_text",
            Kind::Refusal => "refusal",
        }
    }

    /// The part as it stands in an item.
    pub(super) fn part(self, text: &str, logprobs: &[Value]) -> Value {
        match self {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": text}),
            Kind::Text => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}),
            Kind::Refusal => json!({"type": "refusal", "refusal": text}),
        }
    }
}

/// What an item is called, and how it looks to the client.
pub(super) struct Names {
    /// The id of the reply.
    pub(super) reply: String,
    /// Tools that are not just functions.
    pub(super) special: HashMap<String, Special>,
    /// The client asked for reasoning it can bring back.
    pub(super) carried: bool,
}

impl Names {
    fn special(&self, item: &Item) -> Option<&Special> {
        let Body::Call(call) = &item.body else { return None };
        self.special.get(call.name.as_deref()?)
    }

    /// How a call's item is written.
    pub(super) fn form(&self, item: &Item) -> Form {
        self.special(item).map_or(Form::Function, |special| special.form)
    }

    /// The name that the client gave the tool of a call.
    pub(super) fn name<'a>(&'a self, item: &'a Item) -> &'a str {
        match (&item.body, self.special(item)) {
            (_, Some(special)) => &special.name,
            (Body::Call(call), None) => call.name.as_deref().unwrap_or_default(),
            _ => "",
        }
    }

    /// The id of an item.
    pub(super) fn id(&self, item: &Item) -> String {
        let (id, nth) = (&self.reply, item.nth);
        match (&item.body, nth) {
            (Body::Reasoning(_), 0) => format!("rs_{id}"),
            (Body::Reasoning(_), _) => format!("rs_{id}_{nth}"),
            (Body::Message(_), 0) => format!("msg_{id}"),
            (Body::Message(_), _) => format!("msg_{id}_{nth}"),
            (Body::Call(_), _) => format!("{}_{id}_{nth}", self.form(item).item().1),
            (Body::Compaction(_), _) => format!("cmp_{id}"),
            (Body::Unreached(_), _) => format!("mcpl_{id}_{nth}"),
        }
    }

    /// An item of the output, with what it holds or as it is announced: empty.
    pub(super) fn item(&self, item: &Item, status: &str, filled: bool) -> Value {
        let id = self.id(item);
        let list = |parts: &[Part]| -> Vec<Value> {
            parts.iter().filter(|_| filled).map(|part| part.kind.part(&part.text, &part.logprobs)).collect()
        };
        match &item.body {
            Body::Compaction(content) => {
                let content = content.as_deref().filter(|_| filled).unwrap_or_default();
                json!({"id": id, "type": "compaction", "encrypted_content": content})
            }
            Body::Unreached(label) => {
                json!({"id": id, "type": "mcp_list_tools", "server_label": label, "tools": [], "error": UNREACHED})
            }
            Body::Reasoning(parts) => {
                let mut out = json!({"id": id, "type": "reasoning", "summary": [], "content": list(parts)});
                if self.carried && filled {
                    let text: String = parts.iter().map(|part| part.text.as_str()).collect();
                    out["encrypted_content"] = format!("{PLAIN}{text}").into();
                }
                out
            }
            Body::Message(parts) => {
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": list(parts)})
            }
            Body::Call(call) => {
                let (special, form) = (self.special(item), self.form(item));
                let mut out = json!({"id": id, "type": form.item().0, "status": status, "call_id": call.id});
                if form.name().is_none() {
                    out["name"] = self.name(item).into();
                }
                if let Some(namespace) = special.and_then(|special| special.namespace.as_ref()) {
                    out["namespace"] = namespace.as_str().into();
                }
                if let Some(out) = out.as_object_mut() {
                    out.extend(form.fields(&call.arguments, filled));
                }
                out
            }
        }
    }
}

impl Output {
    /// Another item.
    pub(super) fn add(&mut self, body: Body) {
        let kind = match &body {
            Body::Reasoning(_) => 0,
            Body::Message(_) => 1,
            Body::Call(call) => {
                self.latest.insert(call.index, self.items.len());
                2
            }
            Body::Compaction(_) => 3,
            Body::Unreached(_) => 4,
        };
        self.items.push(Item::new(self.kinds[kind], body));
        self.kinds[kind] += 1;
    }

    /// The model's first word comes: what stands before it.
    pub(super) fn tell_unreached(&mut self) {
        std::mem::take(&mut self.unreached).into_iter().for_each(|label| self.add(Body::Unreached(label)));
    }

    /// A compaction begins, or is there whole.
    pub(super) fn compaction(&mut self, told: &Compaction) {
        let content = match told {
            Compaction::Begun => None,
            Compaction::Done(content) => Some(content.clone()),
        };
        match self.items.last_mut().map(|item| &mut item.body) {
            Some(Body::Compaction(open @ None)) => *open = content,
            _ => self.add(Body::Compaction(content)),
        }
    }

    /// More text of a kind.
    pub(super) fn text(&mut self, kind: Kind, text: &str, logprobs: &[Value]) {
        if text.is_empty() {
            return;
        }
        let parts = match (self.items.last_mut().map(|item| &mut item.body), kind) {
            (Some(Body::Reasoning(parts)), Kind::Reasoning) => Some(parts),
            (Some(Body::Message(parts)), Kind::Text | Kind::Refusal) => Some(parts),
            _ => None,
        };
        let Some(parts) = parts else {
            let parts = vec![Part { kind, text: text.to_owned(), logprobs: logprobs.to_vec() }];
            self.add(if kind == Kind::Reasoning { Body::Reasoning(parts) } else { Body::Message(parts) });
            return;
        };
        match parts.last_mut().filter(|part| part.kind == kind) {
            Some(part) => {
                part.text.push_str(text);
                part.logprobs.extend_from_slice(logprobs);
            }
            None => parts.push(Part { kind, text: text.to_owned(), logprobs: logprobs.to_vec() }),
        }
    }

    /// A part of a call.
    pub(super) fn call(&mut self, part: &CallPart) {
        let at = self.latest.get(&part.index).copied();
        // Some servers give every call the index 0: an id and a name of its own make it another call, and so does
        // anything more after JSON that is whole.
        let found = at.filter(|at| !self.items.get_mut(*at).is_none_or(|item| item.is_another(part)));
        let Some((at, Body::Call(call))) = found.and_then(|at| Some((at, &mut self.items.get_mut(at)?.body))) else {
            self.add(Body::Call(part.clone()));
            return;
        };
        // A call that was told to its end is whole: what still comes is white space or nonsense.
        if at >= self.front {
            call.id = call.id.take().or_else(|| part.id.clone());
            if let Some(piece) = &part.name {
                grow_name(call.name.get_or_insert_default(), piece, !call.arguments.is_empty());
            }
            call.arguments.push_str(&part.arguments);
        }
    }
}

impl Item {
    pub(super) fn new(nth: usize, body: Body) -> Item {
        Item { nth, open: false, part: 0, part_open: false, told: 0, told_logprobs: 0, body, whole: Whole::default() }
    }

    /// Whether it is told to its end once it is complete, whatever follows.
    pub(super) fn is_apart(&self) -> bool {
        matches!(self.body, Body::Compaction(_) | Body::Unreached(_))
    }

    /// Nothing can follow in it once another item has begun.
    pub(super) fn complete(&mut self) -> bool {
        match &self.body {
            Body::Reasoning(_) | Body::Message(_) | Body::Unreached(_) => true,
            Body::Compaction(content) => content.is_some(),
            Body::Call(call) => call.name.is_some() && self.whole.is(&call.arguments),
        }
    }

    /// Whether a part is of another call than this one, though it has its number.
    pub(super) fn is_another(&mut self, part: &CallPart) -> bool {
        let Body::Call(call) = &self.body else { return true };
        if part.name.is_none() || call.name.is_none() {
            return false;
        }
        let other = part.id.is_some() && call.id.is_some() && part.id != call.id;
        other || !part.arguments.trim().is_empty() && self.whole.is(&call.arguments)
    }
}
