//! Compaction: what a request asks of it, and what its items stand for when they come back.
//!
//! An item of ours names messages of the record and holds the text that stands for them, see [`super::super::super::compacted`].
//! By contract, what stands before the newest item is gone. What was said there by the client anew stays: Codex puts its
//! instructions and what it says of the project in front of the item again.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::super::WireError;
use super::super::super::compacted::{parted, told};
use super::super::super::json::Fields;
use super::super::spelled::{self, Asked, Item, Message, each, given};
use super::super::{Before, wrong};
use super::content::plain;
use super::head::Head;

/// What a request asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// A `compaction_trigger` ends `input`: it is compacted now, and nothing else is answered.
    pub now: bool,
    /// `context_management` asks for compaction within the request: at so many tokens of the prompt, or where the server likes.
    pub within: Option<Option<u64>>,
    /// The newest item of ours in `input`: its mark, and the text that it was made for.
    pub newest: Option<(String, String)>,
    /// The reply is to be made in the background, and stored.
    pub background: bool,
    /// The conversation that the request is part of.
    pub conversation: Option<String>,
}

/// Reads what a request of the Responses API asks for beside a reply.
///
/// # Errors
/// Where `context_management` is not what the API takes. Nothing in `input` is such an error.
pub fn wanted(body: &[u8]) -> Result<Wanted, WireError> {
    spelled::reading(body, &["input"], |asked| {
        let found = found(&asked)?;
        let within = within(&asked.fields)?;
        let newest = found.newest.and_then(|(_, item)| match item {
            Stands::Marked { mark, text } => Some((mark, text)),
            Stands::Plain(_) => None,
        });
        let is = |key: &str| asked.fields.get(key).and_then(Value::as_bool);
        let background = is("background") == Some(true) && is("store") != Some(false);
        let conversation = conversation(&asked.fields).map(str::to_owned);
        Ok(Wanted { now: found.trigger, within, newest, background, conversation })
    })
}

/// Whether a body may hold anything of this; most do not, and are not read twice for it.
pub fn may_want(body: &[u8]) -> bool {
    let names: [&[u8]; 4] = [b"compac", b"context_management", b"background", b"conversation"];
    names.iter().any(|name| body.windows(name.len()).any(|part| part == *name))
}

/// `context_management`: the lowest threshold of its entries.
fn within(fields: &Map<String, Value>) -> Result<Option<Option<u64>>, WireError> {
    let name = "context_management";
    let mut found: Option<Option<u64>> = None;
    for (at, entry) in super::list_if(fields, "", name)?.iter().enumerate() {
        if entry["type"] != "compaction" {
            return Err(wrong(format!("{name}[{at}].type"), "must be \"compaction\""));
        }
        let threshold = match &entry["compact_threshold"] {
            Value::Null => None,
            Value::Number(n) if n.as_u64().is_some_and(|n| n > 0) => n.as_u64(),
            _ => return Err(wrong(format!("{name}[{at}].compact_threshold"), "must be a positive number of tokens")),
        };
        found = Some(match found {
            Some(before) => before.into_iter().chain(threshold).min(),
            None => threshold,
        });
    }
    Ok(found)
}

/// The id of the conversation that a request is part of.
pub(super) fn conversation(fields: &Map<String, Value>) -> Option<&str> {
    let named = super::given(fields, "conversation")?;
    named.as_str().or_else(|| named.get("id")?.as_str()).filter(|id| !id.is_empty())
}

/// What an item stands for.
#[derive(Debug, Clone)]
pub(super) enum Stands {
    /// The text with its mark, which may be forged.
    Marked {
        /// The mark.
        mark: String,
        /// The text: [`Text`] as JSON.
        text: String,
    },
    /// A summary that another version wrote without a mark.
    Plain(String),
}

/// The text of an item of ours.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Text {
    /// The summary.
    brief: String,
    /// What holds on beside the messages.
    pub(super) head: Head,
}

impl Text {
    /// As it stands in an item.
    pub(super) fn written(brief: &str, head: &Head) -> String {
        serde_json::to_string(&Text { brief: brief.into(), head: head.clone() }).unwrap_or_default()
    }
}

impl Stands {
    /// What an item of `input` stands for; `None` where it was made elsewhere and cannot be read.
    fn read(item: &Fields<'_>) -> Option<Stands> {
        let whole = item.string("encrypted_content").unwrap_or_default();
        match parted(&whole) {
            Some((mark, text)) => Some(Stands::Marked { mark: mark.into(), text: text.into() }),
            None => plain(item).map(Stands::Plain),
        }
    }

    /// Its text.
    pub(super) fn text(&self) -> Text {
        match self {
            Stands::Plain(words) => Text { brief: words.clone(), ..Text::default() },
            Stands::Marked { text, .. } => spelled::value(text)
                .ok()
                .and_then(|value| Text::deserialize(value).ok())
                // A mark with anything else behind it was put together by somebody else.
                .unwrap_or_else(|| Text { brief: text.clone(), ..Text::default() }),
        }
    }
}

/// What `input` has of compaction.
#[derive(Default)]
pub(super) struct Found {
    /// A trigger is its last item.
    pub(super) trigger: bool,
    /// The newest item that can be read, by its place.
    pub(super) newest: Option<(usize, Stands)>,
}

/// Whether an item is of compaction, by its type.
pub(super) fn is_item(kind: &str) -> bool {
    matches!(kind, "compaction" | "compaction_summary" | "context_compaction")
}

/// Whether an item was made here.
pub(super) fn is_ours(item: &Fields<'_>) -> bool {
    Stands::read(item).is_some()
}

/// Looks for compaction in `input`.
pub(super) fn found(asked: &Asked<'_>) -> Result<Found, WireError> {
    let mut out = Found::default();
    let input = asked.spelled("input").filter(|input| input.contains("compaction"));
    each(input.unwrap_or_default(), |at, item: Item<'_>| {
        out.trigger = false;
        let Item::Object(item) = item else { return Ok(()) };
        let kind = item.string("type").unwrap_or_default();
        out.trigger = kind == "compaction_trigger";
        if is_item(&kind)
            && let Some(stands) = Stands::read(&item)
        {
            out.newest = Some((at, stands));
        }
        Ok(())
    })?;
    Ok(out)
}

/// What takes the place of an item, and of all that stood before it.
pub(super) struct Place {
    text: Text,
    /// What of the client's own stands before the item.
    anew: Vec<Message>,
}

impl Place {
    /// For an item with this text.
    pub(super) fn of(text: Text) -> Place {
        Place { text, anew: Vec::new() }
    }

    /// What stood in `input` before anybody said anything.
    pub(super) fn system(&self) -> Vec<String> {
        self.text.head.system.clone()
    }

    /// Notes a message of the client's that stands before the item.
    pub(super) fn note(&mut self, message: Message) {
        self.anew.push(message);
    }

    /// The messages that take its place: those of the record where it has them, else the summary; then what the client says
    /// anew.
    pub(super) fn messages(self, restored: Option<&Before>) -> (Vec<bytes::Bytes>, Vec<Message>) {
        let Place { text, anew } = self;
        let spelled = restored.map(|before| before.messages.clone()).unwrap_or_default();
        let known: HashSet<String> = spelled.iter().filter_map(|raw| content(raw)).collect();
        let is_told = |message: &Message| match serde_json::to_value(message) {
            _ if restored.is_none() => {
                message.fields["content"].as_str().is_some_and(|words| text.brief.contains(words.trim()))
            }
            Ok(value) => known.contains(&value["content"].to_string()),
            Err(_) => false,
        };
        let anew: Vec<Message> = anew.into_iter().filter(|message| !is_told(message)).collect();
        let brief =
            (restored.is_none() && !text.brief.is_empty()).then(|| Message::new("user", told(&text.brief).into()));
        (spelled, brief.into_iter().chain(anew).collect())
    }
}

/// The content of a recorded message of the user's, as JSON.
fn content(raw: &[u8]) -> Option<String> {
    let fields = Fields::read(std::str::from_utf8(raw).ok()?).ok()?;
    let of_user = fields.string("role").is_some_and(|role| role == "user");
    let content = given(&fields, "content").filter(|_| of_user)?;
    Some(spelled::value(content).ok()?.to_string())
}
