//! What is written to the record and what comes back: plain data.
//!
//! Two ways of counting, everywhere in this room: an *index* (`at`) counts from 0 and names one message of the body; a
//! *depth* counts messages, so the message at index `i` is the last of the prefix of depth `i + 1`.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use windowsill_core::apply::Original;
use windowsill_core::conversation::edit::View;
use windowsill_core::conversation::{Digest, Text};
use windowsill_core::passage::Rank;

use super::as_text;

/// What can go wrong with the record. Cheap to clone: one failed commit may answer several callers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// SQLite refused; disk full and read-only folders end here.
    #[error("record `{}`: {source}", path.display())]
    Sqlite {
        /// The database file.
        path: PathBuf,
        /// What SQLite said.
        source: Arc<rusqlite::Error>,
    },
    /// A file or folder could not be read or written.
    #[error("record `{}`: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// The file is a database of another program.
    #[error(
        "`{}` is a database of another program: name another folder with `data_dir` or --data-dir", path.display()
    )]
    Foreign {
        /// The database file.
        path: PathBuf,
    },
    /// The database was written by a newer windowsill.
    #[error(
        "record `{}` has schema {found}, and this windowsill knows schemas up to {known}: use the newer windowsill, or \
         another `data_dir`", path.display()
    )]
    NewerSchema {
        /// The database file.
        path: PathBuf,
        /// Schema found in the file.
        found: i64,
        /// Newest schema this program knows.
        known: i64,
    },
    /// The database was written by an older windowsill and cannot be upgraded by a reader.
    #[error(
        "record `{}` has schema {found}, older than {known}: start `windowsill serve` once to upgrade it", path.display()
    )]
    OlderSchema {
        /// The database file.
        path: PathBuf,
        /// Schema found in the file.
        found: i64,
        /// Schema needed.
        known: i64,
    },
    /// There is no record in this folder yet.
    #[error("no record at `{}` yet", path.display())]
    Missing {
        /// The database file that is not there.
        path: PathBuf,
    },
    /// Something stored does not read back; the row is named.
    #[error("record `{}`: {what} does not read back: {why}", path.display())]
    Corrupt {
        /// The database file.
        path: PathBuf,
        /// The row.
        what: String,
        /// What the reader said.
        why: String,
    },
    /// The queue of batches waiting to be written is full: await [`super::Store::record`] instead.
    #[error("the record's queue is full")]
    Busy,
    /// The writer has stopped.
    #[error("the record's writer has stopped")]
    Closed,
    /// The record was opened for reading.
    #[error("the record was opened for reading only")]
    ReadOnly,
    /// The batch contradicts itself or what is recorded.
    #[error("batch refused: {0}")]
    Invalid(String),
    /// A message came without those before it: an earlier batch failed, or was never given. Locate, and record from
    /// there.
    #[error("the message before depth {depth} is not recorded")]
    Gap {
        /// Depth of the message that could not be recorded.
        depth: usize,
    },
    /// Another process writes the record too, and remembers things of it that would be gone.
    #[error("another windowsill uses this record, so nothing can be deleted from it: stop that one first")]
    Shared,
    /// The database that several windowsills share cannot be reached, or not used.
    #[error("the database of the record: {why}")]
    Away {
        /// What it said, or what the connection did.
        why: String,
    },
    /// Another request made a view of the same messages first. That one stands.
    #[error("another request rewrote the same history a moment before")]
    Overtaken,
    /// The folder does not fit the database that the record is to be in.
    #[error("{0}")]
    Unfit(String),
    /// A prefix names more than one conversation.
    #[error("{count} conversations have ids that begin with `{prefix}`; the newest are {}", examples.join(", "))]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// How many conversations start so.
        count: usize,
        /// Some of them, the last active first.
        examples: Vec<String>,
    },
}

impl Error {
    /// Whether the disk is at fault: nothing can be written until somebody mends that.
    pub fn is_unwritable(&self) -> bool {
        matches!(self, Error::Sqlite { .. } | Error::File { .. } | Error::Closed | Error::Away { .. })
    }

    /// What to do about a record that cannot be written.
    pub fn hint(&self) -> &'static str {
        if self.is_away() {
            "start the database, or mend the way to it (`record` in config.toml); windowsill goes on by itself then"
        } else if self.is_full() {
            "free some space on its disk, or name another folder with `data_dir`; windowsill goes on by itself then"
        } else {
            "mend the folder or its permissions, or name another one with `data_dir`; windowsill goes on by itself then"
        }
    }

    /// Whether the database that several windowsills share is what cannot be reached.
    pub fn is_away(&self) -> bool {
        matches!(self, Error::Away { .. })
    }

    /// Whether this machine is at fault, and not what was to be written: the same may be written later, or elsewhere.
    pub(super) fn is_ours(&self) -> bool {
        match self {
            Error::Sqlite { source, .. } => !matches!(
                source.sqlite_error_code(),
                Some(
                    rusqlite::ErrorCode::ConstraintViolation
                        | rusqlite::ErrorCode::TypeMismatch
                        | rusqlite::ErrorCode::TooBig
                )
            ),
            other => other.is_unwritable(),
        }
    }

    /// Whether a row was looked for that is not there.
    pub(super) fn is_no_row(&self) -> bool {
        matches!(self, Error::Sqlite { source, .. } if matches!(**source, rusqlite::Error::QueryReturnedNoRows))
    }

    fn is_full(&self) -> bool {
        match self {
            Error::Sqlite { source, .. } => source.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            Error::File { source, .. } => {
                matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }
}

/// Why the record cannot be written at present.
#[derive(Debug, Clone)]
pub struct Trouble {
    /// Since when, in Unix milliseconds.
    pub since_ms: i64,
    /// What the last write said.
    pub error: Error,
}

/// The size of a prompt, as a server counted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Chain digest of the history's last message.
    pub chain: Digest,
    /// Fingerprint of the view that was sent.
    pub view: Digest,
    /// Tokens of the prompt.
    pub tokens: u32,
}

/// How long and how much is kept. 0 sets no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Days that a conversation is kept after it was last used.
    pub days: u32,
    /// Bytes of database and files; past them, what was not used for longest goes first.
    pub bytes: u64,
}

/// What a pass of retention removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Conversations, whole.
    pub conversations: usize,
    /// Originals, with their files.
    pub originals: usize,
    /// Messages.
    pub messages: usize,
    /// Messages of a conversation that was deleted, which stay since others forked from it behind them.
    pub left: usize,
    /// Bytes of the record before.
    pub bytes_before: u64,
    /// Bytes of the record after.
    pub bytes_after: u64,
    /// Whether it is still larger than it should be, for what is left is in use.
    pub over: bool,
    /// Whether the pass ended early, since another process writes the record too.
    pub shared: bool,
}

/// What was deleted with a conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Messages that only it had.
    pub messages: usize,
    /// Messages that conversations which forked from it have, too: they stay, as theirs.
    pub left: usize,
    /// Originals that only it had, with their files.
    pub originals: usize,
}

/// Word of something that was pruned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// When, as a date (UTC).
    pub date: String,
    /// By which setting.
    pub why: String,
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "was pruned on {} by {}", self.date, self.why)
    }
}

/// What is written together: all of it is committed, or none.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The conversation's new head. Needed when there are nodes or a view with a fold.
    pub conversation: Option<ConversationUpdate>,
    /// New messages, parents before children. Nodes that are known already are left as they are.
    pub nodes: Vec<Node>,
    /// Bytes that take the place of those of a known message: it says the same, spelled as its client does now.
    pub respelled: Vec<(Digest, Bytes)>,
    /// Texts that are about to leave the prompt.
    pub originals: Vec<Original>,
    /// A view and the chain digest of the prefix it was made for. The newest one of a digest counts.
    pub view: Option<(Digest, View)>,
    /// What a reply recalled.
    pub recalled: Option<Recalled>,
    /// What a conversation was answered last.
    pub last_reply: Option<LastReply>,
    /// What a client may refer to by its id from now on.
    pub told: Told,
    /// What a server said of the prompt's size.
    pub counted: Option<Counted>,
    /// What changes of a conversation beside its messages, by its id.
    pub about: Option<(String, About)>,
    /// A rule that is new, other than before, or gone.
    pub rule: Option<RuleChange>,
    /// What changes in what clients keep here under ids.
    pub kept: Option<KeptChange>,
    /// Entries of the trace.
    pub events: Vec<Event>,
    /// Whether it must survive a power cut (fsync) and not only a kill of the process.
    pub durable: bool,
}

/// A change of a conversation beside its messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// Another title.
    Title(String),
    /// The name that a person gives it; `None` takes that back. It stands before any title.
    Named(Option<String>),
    /// Whether a person keeps it among their own. Retention leaves it alone then.
    Starred(bool),
    /// What people want of it, as the text of a JSON object; it replaces what they wanted before.
    Standing(String),
}

/// What was told of a reply that a client may refer to by its id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Items of the reply.
    pub items: Vec<Item>,
    /// The reply itself, which a client may go on from.
    pub reply: Option<Reply>,
}

impl Told {
    /// Whether there is nothing to refer to.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.reply.is_none()
    }
}

/// What a model answered last. It is kept beside the history that it answers until the conversation goes on: then the words of
/// the client count, which may have it in another spelling, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReply {
    /// The conversation.
    pub conversation: String,
    /// Chain digest of the history that it answers.
    pub after: Digest,
    /// Number of messages of that history.
    pub depth: usize,
    /// Digest of what it says.
    pub digest: Digest,
    /// The reply as a JSON message.
    #[serde(with = "as_text::bytes")]
    pub raw: Bytes,
    /// Its text, for search only; not stored.
    #[serde(with = "as_text::text")]
    pub text: Text,
}

/// An item of a reply, as the client got it in the Responses API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Its id, which no other item has.
    pub id: String,
    /// The conversation that it belongs to, and goes with.
    pub conversation: String,
    /// The item, a JSON object.
    pub json: String,
}

/// A reply that a client may go on from by its id alone: it names a conversation, and where in it the reply stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Its id, which no other reply has.
    pub id: String,
    /// The conversation that it belongs to, and goes with.
    pub conversation: String,
    /// Chain digest of the history that it answers.
    pub chain: Digest,
    /// Number of messages in that history.
    pub depth: usize,
    /// What of its request holds on beside the messages, as its dialect keeps it.
    pub head: String,
    /// The reply in its dialect's own words, as JSON.
    pub json: String,
}

/// An entry in the log of a conversation that a client keeps here under a name of its API's form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRow {
    /// The name.
    pub name: String,
    /// A mark of the key that it belongs to; empty without a key.
    pub owner: String,
    /// `begun` and `metadata` (`json` has the metadata), `item` (`json` is one), `removed`, or `answered`.
    pub kind: String,
    /// The id of an item; of `answered`, that of the conversation of the record.
    pub item: String,
    /// When, in milliseconds since 1970.
    pub now_ms: i64,
    /// What was added, as JSON.
    pub json: String,
}

/// A change of what clients keep here under ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptChange {
    /// Entries of kept conversations.
    Add(Vec<KeptRow>),
    /// A kept conversation goes: its client deletes it.
    Delete(String),
    /// A reply is not gone on from any more, nor are these items of it referred to. Its words stay in its conversation.
    ForgetReply(String, Vec<String>),
}

/// What a person wants in every new conversation of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its number, which no other rule ever has.
    pub id: i64,
    /// Whose it is: the client that it was made for, and no other.
    pub client: String,
    /// The project of that client.
    pub project: String,
    /// Its words.
    pub text: String,
    /// The conversation that it was made in.
    pub conversation: String,
    /// When it was made (Unix milliseconds).
    pub created_ms: i64,
    /// When its words were last changed.
    pub updated_ms: i64,
}

/// A change of the rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleChange {
    /// This rule, in place of the one with its number.
    Put(Rule),
    /// None with this number.
    Remove(i64),
}

/// Stands in [`Recalled::reply`] for no reply: what is kept there is the list of tools that prompts with this prefix have.
pub const TOOLS: Digest = Digest(*b"windowsill tools");

/// Messages that stood between a prompt and the reply to it, and that the client never saw: calls of windowsill's own tool,
/// with their results. They belong to the history whenever that reply comes back in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalled {
    /// Chain digest of the prefix that the reply answers.
    pub chain: Digest,
    /// Digest of what the reply says, as the client got it.
    pub reply: Digest,
    /// The messages, each a JSON object; none for a reply of the same prefix that recalled nothing.
    #[serde(with = "as_text::all")]
    pub messages: Vec<Bytes>,
}

/// The head of a conversation; each update replaces the last.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConversationUpdate {
    /// Id of the conversation.
    pub id: String,
    /// Where it forked: the other conversation and the depth they share. Kept from the first update that names it.
    pub parent: Option<(String, usize)>,
    /// The session id that the client sent, if any.
    pub session: Option<String>,
    /// Model name, as requested.
    pub model: String,
    /// Name of the upstream.
    pub upstream: String,
    /// Chain digest of the newest prefix.
    pub tip: Digest,
    /// Number of messages in that prefix.
    pub depth: usize,
    /// Gauge, as JSON: window, prompt tokens, regions, spend…
    pub state: String,
    /// Unix time in milliseconds.
    pub now_ms: i64,
    /// First words of the first user message, at most 80 characters.
    pub title: String,
}

/// One message of a history, known by the chain digest of the prefix that it ends.
#[derive(Debug, Clone)]
pub struct Node {
    /// Chain digest of the prefix up to and with this message.
    pub chain: Digest,
    /// Chain digest of the prefix before it; `None` for the first message.
    pub parent: Option<Digest>,
    /// Number of messages in the prefix: its index in the body plus one.
    pub depth: usize,
    /// Role as the client wrote it.
    pub role: &'static str,
    /// Digest of what the message says.
    pub digest: Digest,
    /// The JSON message as it came.
    pub raw: Bytes,
    /// Its text, for search only; not stored.
    pub text: Text,
}

/// One entry of the trace. Holds no message text unless the user asked for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// Unix time in milliseconds.
    pub now_ms: i64,
    /// The conversation it belongs to.
    pub conversation: Option<String>,
    /// `context_compaction`, `model_usage`, `window_changed`, …
    pub kind: String,
    /// The entry's fields.
    #[serde(with = "as_text::json")]
    pub data: serde_json::Value,
}

/// Where a history stands in the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// How many messages of the history are known.
    pub depth: usize,
    /// The conversation that recorded the last known one first.
    pub conversation: String,
    /// The deepest node that this conversation recorded: more than `depth` when the history is a fork of it.
    pub conversation_depth: usize,
}

/// A conversation as the record has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ConversationRow {
    /// Id of the conversation.
    pub id: String,
    /// Where it forked: the other conversation and the depth they share.
    pub parent: Option<(String, usize)>,
    /// The session id that the client sent, if any.
    pub session: Option<String>,
    /// Model name, as requested.
    pub model: String,
    /// Name of the upstream.
    pub upstream: String,
    /// Chain digest of the newest prefix.
    pub tip: Digest,
    /// Number of messages in that prefix.
    pub depth: usize,
    /// Whether what it was answered last stands behind that prefix, and its client has not come back with it yet.
    pub replied: bool,
    /// Gauge, as last written.
    pub state: serde_json::Value,
    /// What a person calls it; else the title that was found for it: the first words of the first user message at first.
    pub title: String,
    /// Whether a person gave it that title.
    pub is_named: bool,
    /// Whether a person keeps it among their own.
    pub is_starred: bool,
    /// Unix time in milliseconds of the first update.
    pub created_ms: i64,
    /// Unix time in milliseconds of the last update.
    pub updated_ms: i64,
}

impl ConversationRow {
    /// How many messages it has, the last reply among them.
    pub fn messages(&self) -> usize {
        self.depth + usize::from(self.replied)
    }
}

/// A recorded message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    /// Index in the body.
    pub at: usize,
    /// Chain digest of the prefix that it ends.
    pub chain: Digest,
    /// Digest of what it says.
    pub digest: Digest,
    /// Role as the client wrote it.
    pub role: String,
    /// The conversation that recorded it first.
    pub conversation: String,
    /// The JSON message as it came.
    pub raw: Bytes,
}

/// What a recorded message is, without its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathRow {
    /// Chain digest of the prefix that it ends.
    pub chain: Digest,
    /// Digest of what it says.
    pub digest: Digest,
    /// Whether a model said it.
    pub is_reply: bool,
}

/// A passage that a search found, or that stands beside one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hit {
    /// Record id, where an original holds it; a message that never left the prompt has none.
    pub id: Option<String>,
    /// The conversation it was recorded in first.
    pub conversation: String,
    /// Index in the body.
    pub at: usize,
    /// Kind of the original, or role of the message.
    pub kind: String,
    /// The call in one line, for originals.
    pub call: Option<String>,
    /// Role of the message, where it is of one.
    pub role: Option<String>,
    /// When it was said: the client's own stamp, else the day it was recorded (UTC).
    pub date: Option<String>,
    /// The passage, exactly as it is.
    pub text: String,
    /// Where it begins in its text, and ends (bytes).
    pub span: (usize, usize),
    /// Whether its text goes on behind it.
    pub goes_on: bool,
    /// The passage on one line.
    pub snippet: String,
    /// Whether the query stands there as one phrase.
    pub exact: bool,
    /// Digest of what the message says; an original has none.
    pub digest: Option<Digest>,
    /// Digest of what the message before it says.
    pub parent: Option<Digest>,
}

/// What a search found: a passage, and the short messages beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// All of it, in order.
    pub said: Vec<Hit>,
    /// Which of these was found itself.
    pub center: usize,
    /// How well it fits.
    pub rank: Rank,
}

/// Which entries of the trace are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only those of this conversation.
    pub conversation: Option<String>,
    /// Only those of these kinds; none stands for all.
    pub kinds: Vec<String>,
}

impl EventFilter {
    /// All kinds, of one conversation.
    pub fn of(conversation: &str) -> EventFilter {
        EventFilter { conversation: Some(conversation.to_owned()), kinds: Vec::new() }
    }
}

/// One entry of the trace.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// Grows with every event.
    pub id: i64,
    /// Unix time in milliseconds.
    pub now_ms: i64,
    /// The conversation it belongs to.
    pub conversation: Option<String>,
    /// Kind of event.
    pub kind: String,
    /// The entry's fields.
    pub data: serde_json::Value,
}

impl Batch {
    /// The conversation that the texts belong to.
    pub(crate) fn owner(&self) -> &str {
        let from_told = || {
            let reply = self.told.reply.as_ref().map(|reply| &reply.conversation);
            reply.or_else(|| self.told.items.first().map(|item| &item.conversation))
        };
        let named = self.conversation.as_ref().map(|update| &update.id);
        named
            .or_else(|| self.last_reply.as_ref().map(|reply| &reply.conversation))
            .or_else(|| self.originals.first().map(|original| &original.conversation))
            .or_else(from_told)
            .or_else(|| self.about.as_ref().map(|(name, _)| name))
            .or_else(|| self.events.iter().find_map(|event| event.conversation.as_ref()))
            .map_or("", String::as_str)
    }
}
