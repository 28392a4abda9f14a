//! Chat APIs other than chat completions: their requests in its words, its replies in theirs. Pure: who asks and when comes
//! in from outside, and the same request is always said in the same words, so that a longer history begins with the
//! shorter one.

pub mod anthropic;
pub mod ollama;
pub mod responses;
pub mod said;
mod spelled;
mod whole;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::WireError;
use super::json;
use crate::conversation::managed::{Edits, Taken};
use said::Said;

/// A chat API, by what its errors look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's, which is that of the other rooms.
    OpenAi,
    /// Anthropic's Messages.
    Anthropic,
    /// Ollama's own.
    Ollama,
}

impl Dialect {
    /// The body of an error reply, from the `error` object of one in OpenAI's shape. `id` is that of the request, which a
    /// header names too.
    pub fn error(self, status: u16, error: &Value, id: &str) -> Value {
        match self {
            Dialect::OpenAi => serde_json::json!({ "error": error }),
            Dialect::Anthropic => anthropic::error(status, error, id),
            Dialect::Ollama => ollama::error(&ollama::message_of(error)),
        }
    }
}

/// A request in the words of chat completions.
pub struct Heard {
    /// The body of the chat completion request. One that is streamed asks for the usage.
    pub chat: Bytes,
    /// Who says the reply in the client's words.
    pub encoder: Box<dyn ReplyEncoder>,
    /// What the client calls its session, if it does; see [`super::session`].
    pub session: Option<String>,
    /// The dialect has a word for the stop sequence that ended a reply, and the client gave some.
    pub tells_stop: bool,
    /// What the translation could not say.
    pub unsaid: Unsaid,
    /// The id of an earlier reply that the request goes on from, where it was read without it; see [`Before`].
    pub follows: Option<String>,
}

/// What a client has a server remember instead of sending it: the history up to a reply that it names by an id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Before {
    /// What holds on beside the messages: [`Answered::head`] of that reply.
    pub head: String,
    /// The messages that the reply answers, in the words of chat completions, without leading system messages.
    pub messages: Vec<Bytes>,
    /// The reply in its dialect's own words: [`Answered::json`].
    pub reply: String,
}

impl Before {
    /// Bytes of the messages and of the reply.
    pub fn bytes(&self) -> usize {
        self.messages.iter().map(Bytes::len).sum::<usize>() + self.reply.len()
    }
}

/// What a client may refer to in later requests, once a reply is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Items of the reply by their ids, each as JSON.
    pub items: Vec<(String, String)>,
    /// The reply, where the client may go on from it.
    pub reply: Option<Answered>,
}

/// A reply that a client may go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// Its id, as the client has it.
    pub id: String,
    /// What of its request holds on beside the messages: JSON that only its dialect reads.
    pub head: String,
    /// The reply in its dialect's own words, as JSON.
    pub json: String,
}

/// What of a request has no words in chat completions. None of it is a reason to refuse what stands in a history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unsaid {
    /// What the client is told, without any text of its messages.
    pub warnings: Vec<String>,
    /// JSON of what stands as a line in the prompt, or not at all.
    pub originals: Vec<String>,
    /// Ids of items that the history refers to and does not hold.
    pub references: Vec<String>,
    /// Fields that refer to what is kept somewhere else, such as `conversation`. Some servers pass over them.
    pub elsewhere: Vec<&'static str>,
    /// What the client asks to be done with its history, where it asks for that at all.
    pub edits: Option<Edits>,
    /// A compaction that stands for what came before it, and may have been made here: where its mark is ours, the request is
    /// to be read again with the messages themselves.
    pub stands_for: Option<Compaction>,
}

/// A text that stands for earlier messages, with the mark that ties it to them: see [`super::compacted`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compaction {
    /// The mark.
    pub mark: String,
    /// The text.
    pub text: String,
}

/// What was done with the history of a request whose client asks for that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Managed {
    /// What was taken out of the prompt: the kind, how many uses of tools or turns, and tokens.
    pub taken: Vec<(Taken, usize, u64)>,
    /// The brief that was made for this request.
    pub compaction: Option<Compaction>,
    /// Tokens that a model read and wrote for it.
    pub spent: (u64, u64),
}

/// What is known of a reply before its first word.
#[derive(Debug, Clone)]
pub struct Head {
    /// Letters and digits that no other reply has; a dialect puts its own prefix before them.
    pub id: String,
    /// Unix time (seconds).
    pub created: u64,
    /// Tokens of the prompt, as counted before it was sent.
    pub prompt_tokens: Option<u64>,
    /// The window, prompt and reply together (tokens).
    pub window: Option<u64>,
}

/// What makes the text of a compaction of a summary.
pub type Summarized = Box<dyn FnOnce(&str) -> String + Send>;

/// Says a reply in a client's words.
pub trait ReplyEncoder: Send {
    /// What was left out of the request, for a header of the reply.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// `Content-Type` of a streamed reply.
    fn stream_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }

    /// A reply that is not streamed.
    fn whole(&mut self, head: &Head, said: &Said) -> Value;

    /// The beginning of a stream; nothing was said yet.
    fn start(&mut self, head: &Head) -> String;

    /// What one chunk adds to the stream. One that carries an error ends it: nothing may look complete after it.
    fn chunk(&mut self, said: &Said) -> String;

    /// Something that means nothing: said while a model reads a long prompt, it keeps clients from giving up. Empty once the
    /// stream is over.
    fn ping(&mut self) -> String;

    /// The end of the stream, after the last chunk. Empty if [`ReplyEncoder::chunk`] already ended it with an error.
    fn end(&mut self) -> String;

    /// Tells what was done with the history, before the first word of the reply.
    fn managed(&mut self, _managed: &Managed) {}

    /// Tells the Unix time (seconds) at which the next words are said.
    fn at(&mut self, _now: u64) {}

    /// Makes the text that stands for the history in a compaction of it: of a summary, and what holds on beside it.
    fn compacted(&self) -> Summarized {
        Box::new(str::to_owned)
    }

    /// What the client may refer to in later requests, once the reply is over.
    fn kept(&self) -> Kept {
        Kept::default()
    }
}

/// Reads a request body: a JSON object. What is no Unicode in it becomes U+FFFD.
fn object(body: &[u8]) -> Result<Map<String, Value>, WireError> {
    match json::value(&json::mended(body)).map_err(|e| WireError::NotJson(e.to_string()))? {
        Value::Object(fields) => Ok(fields),
        _ => Err(WireError::NotJson("it must be an object".into())),
    }
}

/// An error that names the place of a field, such as `messages[3].content`, and says what it must be.
fn wrong(param: impl Into<String>, what: &str) -> WireError {
    let param = param.into();
    WireError::Field { message: format!("`{param}` {what}"), param }
}

/// A server-sent event.
fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}
