//! Search by passages: what is indexed, how well a passage fits a query, and which of those found are shown in the room there is.
//! Plain functions over values; the record keeps the index.
//!
//! A passage is a long message's part of about 600 columns, or a short message with its neighbors: an answer often stands one
//! message behind the words that were asked for.

mod cut;
mod fill;
mod query;
mod stamp;
mod stem;
mod words;

pub use cut::{LONG, columns, passages};
pub use fill::{Filled, Found, Said, fill};
pub use query::{Looked, Query, Rank, Rarities, Unit, rarity};
pub use stamp::stamp;
pub use words::indexed;

use bytes::Bytes;

use crate::conversation::{Message, Text};
use crate::wire::openai_chat;

/// Bytes of a message that are searched.
pub const SEARCHED: usize = 256 * 1024;

/// What is found of a message: its text and its calls, as far as [`SEARCHED`] goes.
pub fn searched(message: &Message) -> Text {
    if message.calls.is_empty() && message.text.len() <= SEARCHED {
        return message.text.clone();
    }
    let mut text = start(&message.text, SEARCHED).to_owned();
    for call in &message.calls {
        let room = SEARCHED.saturating_sub(text.len());
        text.push_str(start(&format!("\n{} ", call.name), room));
        text.push_str(start(&call.arguments, SEARCHED.saturating_sub(text.len())));
    }
    text.into()
}

/// What is found of a message, from its JSON; `None` for what is no message.
pub fn said(raw: Bytes) -> Option<Text> {
    openai_chat::message(raw).ok().map(|message| searched(&message))
}

/// The first bytes of a text, whole characters only.
pub fn start(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
