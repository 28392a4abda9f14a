//! What is being talked about: messages, steps and turns, and the edits that make a view of them.
//!
//! Pure: no I/O, no clock, no logging. Nothing here knows of servers, windows or policies.

pub mod align;
pub mod chain;
pub mod edit;
pub mod files;
pub mod fixed;
pub mod managed;
pub mod person;
pub mod repair;
pub mod spelling;
pub mod step;
pub mod task;
mod text;
pub mod watch;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
pub use text::Text;

/// A count of tokens, as the model's own tokenizer counts them.
pub type Tokens = u32;

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// `system` or OpenAI's newer `developer`.
    System,
    /// `user`.
    User,
    /// `assistant`.
    Assistant,
    /// `tool`, or the legacy `function`.
    Tool,
    /// Anything else: passed through, never rewritten.
    Other,
}

/// A 128-bit digest of what a message says, or of a chain of messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    /// The digest as 32 lower-case hexadecimal digits.
    pub fn hex(&self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = self.0.iter().flat_map(|b| [b >> 4, b & 15]);
        digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
    }

    /// Reads what [`Digest::hex`] wrote; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Digest> {
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        let mut out = [0; 16];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Digest(out))
    }

    /// Digest of raw bytes (BLAKE3, truncated to 128 bits).
    pub fn of(bytes: &[u8]) -> Digest {
        let mut out = [0; 16];
        out.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
        Digest(out)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex()[..12])
    }
}

/// One tool call of an assistant message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The client's id; empty when the client sends none (Ollama clients).
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// The arguments as the client sent them: a string that should hold a JSON object, and sometimes does not.
    pub arguments: String,
}

/// What kind of media a content part holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// `image_url`.
    Image,
    /// `input_audio`.
    Audio,
    /// Any other part that is not text (`file`, `input_video`, …).
    Other,
}

/// A content part that is not text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Media {
    /// Image, audio or something else.
    pub kind: MediaKind,
    /// Size of the encoded payload in bytes, as it stands in the request.
    pub encoded_bytes: usize,
    /// Width and height in pixels, where they could be read from a data URL.
    pub pixels: Option<(u32, u32)>,
}

/// What a part was that stands as a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartKind {
    /// A picture.
    Picture,
    /// A sound.
    Sound,
    /// A video.
    Video,
    /// A document, or another file.
    Document,
    /// A block that only a cloud's own server can read.
    Block,
}

/// One message, as the client sent it and as it is understood.
#[derive(Debug, Clone)]
pub struct Message {
    /// The JSON object as it came, byte for byte; empty for a message that [`repair`] had to add.
    pub raw: Bytes,
    /// The JSON object as it must be forwarded, where that differs from `raw`; see [`repair`].
    pub repaired: Option<Bytes>,
    /// Who speaks.
    pub role: Role,
    /// All text parts joined by a line break; empty when there are none.
    pub text: Text,
    /// Reasoning text that the client echoes (`reasoning_content`, `reasoning`, `thinking`); most templates drop it.
    pub reasoning: String,
    /// Tool calls of an assistant message, in order.
    pub calls: Vec<ToolCall>,
    /// For a tool result: the id of the call it answers.
    pub call_id: Option<String>,
    /// The `name` field, if any.
    pub name: Option<String>,
    /// Images, audio and other parts that are not text.
    pub media: Vec<Media>,
    /// Digest of what the message says; see [`chain`].
    pub digest: Digest,
    /// Whether its content has parts that are no plain text.
    pub mixed: bool,
    /// The client says of a result that its call failed: `is_error`, as Anthropic's API has it, or MCP's `isError`. Other APIs have
    /// no word for it.
    pub failed: bool,
    /// What its parts were that are said as lines, since this server cannot take them.
    pub lines: Vec<PartKind>,
}

impl Message {
    /// The bytes to forward when no edit touches this message.
    pub fn bytes(&self) -> &Bytes {
        self.repaired.as_ref().unwrap_or(&self.raw)
    }
}

/// How plainly a history is said to a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plainness {
    /// As the client says it.
    #[default]
    AsItCame,
    /// With known roles, parts and calls alone, and no result without its call.
    Plain,
    /// And without pictures and sounds.
    Words,
}

/// A conversation as one request carries it: the head that is never touched, and the messages after it.
///
/// Indices in edits and plans count from the first message of `body`.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// Leading system messages, in order.
    pub system: Vec<Message>,
    /// Everything after the leading system messages.
    pub body: Vec<Message>,
    /// The `tools` array as it came, if any.
    pub tools: Option<Bytes>,
    /// Names of the client's tools that the array does not show: they are called through the index; see [`crate::admission`].
    pub hidden: Arc<HashSet<String>>,
    /// How plainly it has to be said to its server.
    pub plainness: Plainness,
}
