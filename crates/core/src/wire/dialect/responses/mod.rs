//! OpenAI's Responses API (`POST /v1/responses`), as Codex and the OpenAI SDKs speak it, in the words of chat
//! completions. What a client has the server remember (`previous_response_id`, `item_reference`) is given from outside.
//!
//! A local server runs no tools of its own. `web_search`, `file_search`, `code_interpreter`, `mcp` and the like are left
//! out of the tools (Codex offers `web_search` in every request); a `tool_choice` that asks for one is left out, too. An MCP server
//! that nobody connects to is told as OpenAI tells one that cannot be reached: by an item `mcp_list_tools` with an `error`.

mod calls;
pub mod compaction;
mod content;
mod head;
mod items;
mod lines;
pub mod listed;
mod output;
mod reply;
mod request;
pub mod stored;
mod tally;
mod tools;

#[cfg(test)]
mod compaction_tests;
#[cfg(test)]
mod follow_tests;
#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod listener;
#[cfg(test)]
mod reply_tests;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::super::WireError;
use super::{Before, Heard, wrong};

/// Before the plain reasoning in `encrypted_content`. Nothing is encrypted here, but some clients (Codex) bring back
/// reasoning in this field only. What begins otherwise was made elsewhere and cannot be read.
const PLAIN: &str = "windowsill:";

pub use items::Items;
pub use request::On;

/// Reads the body of `POST /v1/responses`. Items that `input` only refers to are those in `known`; see
/// [`Unsaid::references`](super::Unsaid::references).
///
/// # Errors
/// Names the field that cannot be taken and says what it must be. Nothing in the items of `input` is such an error.
pub fn request(body: &[u8], known: &Items) -> Result<Heard, WireError> {
    request::read(body, known, On::default())
}

/// Reads the same where `previous_response_id` names a reply that is known.
///
/// # Errors
/// As [`request()`].
pub fn going_on(body: &[u8], known: &Items, before: &Before) -> Result<Heard, WireError> {
    request::read(body, known, On { before: Some(before), ..On::default() })
}

/// Reads the same with all that it stands on.
///
/// # Errors
/// As [`request()`].
pub fn standing_on(body: &[u8], known: &Items, on: On<'_>) -> Result<Heard, WireError> {
    request::read(body, known, on)
}

/// A field that is there; `null` counts as absent.
fn given<'a>(fields: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    fields.get(key).filter(|value| !value.is_null())
}

/// A list that may be absent.
fn list_if<'a>(fields: &'a Map<String, Value>, at: &str, key: &str) -> Result<&'a [Value], WireError> {
    match given(fields, key) {
        None => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(wrong(if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }, "must be an array")),
    }
}
