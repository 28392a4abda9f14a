//! What is fuzzed: one function a format, which says whether it understood its input and fails where something does not hold.

use std::cell::RefCell;
use std::io::Cursor;

use bytes::Bytes;
use serde_json::Value;
use tempfile::TempDir;
use windowsill::config::{self, Environment, Flags};
use windowsill::conversation::{Message, repair};
use windowsill::gguf::Gguf;
use windowsill::upstream::ndjson::Lines;
use windowsill::upstream::overflow::overflow;
use windowsill::upstream::sse::{Block, Parser};
use windowsill::wire::WireError;
use windowsill::wire::dialect::{Heard, anthropic, ollama, responses};
use windowsill::wire::openai_chat;

pub(super) struct Target {
    /// Its folder in `fuzz/corpus`.
    pub(super) name: &'static str,
    /// Whether it understood the input.
    pub(super) read: fn(&[u8]) -> bool,
    /// What is put in here and there.
    pub(super) words: &'static [&'static str],
}

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "null",
    "true",
    "[[",
    "{\"a\":",
    "\\u0000",
    "\\ud800",
    "\\\"",
    "\u{1f600}",
    "<|im_end|>",
    "\"role\":\"tool\"",
    "\"role\":\"assistant\"",
    "\"content\":",
    "\"tool_calls\":[",
    "\"tool_call_id\":",
    "\"type\":\"text\"",
    "\"type\":\"tool_use\"",
    "\"type\":\"tool_result\"",
    "\"type\":\"function_call\"",
    "\"image_url\"",
    "\"arguments\":",
    "\"id\":",
    "\"input\":",
    "\"system\":",
    "\"messages\":",
    "\"max_tokens\":",
];

pub(super) const CHAT: Target = Target { name: "chat", read: chat, words: JSON };
pub(super) const MESSAGES: Target =
    Target { name: "messages", read: |b| heard(anthropic::request(b).map(Some)), words: JSON };
pub(super) const RESPONSES: Target = Target {
    name: "responses",
    read: |b| heard(responses::request(b, &responses::Items::new()).map(Some)),
    words: JSON,
};
pub(super) const OLLAMA: Target = Target {
    name: "ollama",
    read: |b| {
        let _ = (ollama::unsayable(b, false), ollama::unsayable(b, true));
        // Both, whatever comes of the first.
        heard(ollama::chat(b)) | heard(ollama::generate(b))
    },
    words: JSON,
};
pub(super) const EVENTS: Target = Target {
    name: "events",
    read: events,
    words: &[
        "data:",
        "data: ",
        "event:",
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        ":",
        "\u{feff}",
        "data: [DONE]\n\n",
        "{\"choices\":[]}",
    ],
};
pub(super) const LINES: Target =
    Target { name: "lines", read: lines, words: &["{", "}", "\n", "\r\n", "\r", "\"done\":true"] };
pub(super) const GGUF: Target = Target {
    name: "gguf",
    read: gguf,
    words: &[
        "GGUF",
        "\u{0}\u{0}\u{0}\u{0}",
        "\u{1}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}",
        "general.architecture",
        "general.alignment",
    ],
};
pub(super) const OVERFLOW: Target = Target {
    name: "overflow",
    read: |b| [400, 413, 500].into_iter().fold(false, |found, status| found | overflow(status, b).is_some()),
    words: &[
        "tokens",
        "context",
        "maximum context length is ",
        "exceeds",
        "4096",
        "{\"error\":",
        "\"message\":\"",
        "\"n_ctx\":",
        "(",
        ")",
        ",",
    ],
};
pub(super) const CONFIG: Target = Target {
    name: "config",
    read: settings,
    words: &[
        "[context]\n",
        "[size.small]\n",
        "[[upstream]]\n",
        " = ",
        "\"",
        "[",
        "]",
        "\n",
        "#",
        "'''",
        "clear_at",
        "fold_at",
        "0.5",
        "nan",
        "inf",
        "1979-05-27",
    ],
};

/// A chat completion request: read, repaired, and written again as it was.
fn chat(body: &[u8]) -> bool {
    let Ok(request) = openai_chat::parse(&Bytes::copy_from_slice(body)) else { return false };
    let conversation = &request.conversation;
    let all = || conversation.system.iter().chain(&conversation.body);
    let messages: Vec<Bytes> = all().map(|message| message.bytes().clone()).collect();
    let written = openai_chat::write(&request, &messages, &[]);
    let again = openai_chat::parse(&written).expect("what was written can be read").conversation;
    let said = |message: &Message| message.digest;
    let (before, after): (Vec<_>, Vec<_>) =
        (all().map(said).collect(), again.system.iter().chain(&again.body).map(said).collect());
    assert_eq!(before, after, "it says what it said");
    for length in [None, Some(9)] {
        if let Ok(repaired) = repair::repair(conversation.body.clone(), length) {
            let twice = repair::repair(repaired.body.clone(), length).expect("what was repaired is in order").body;
            let texts = |body: &[Message]| body.iter().map(|m| m.bytes().clone()).collect::<Vec<_>>();
            assert_eq!(texts(&repaired.body), texts(&twice), "nothing is left to repair");
        }
    }
    let _ = all().map(|message| openai_chat::without_reasoning(message.bytes()).len()).sum::<usize>();
    true
}

/// A request in another dialect, said in the words of chat completions.
fn heard(heard: Result<Option<Heard>, WireError>) -> bool {
    match heard {
        Ok(Some(heard)) => {
            let chat: Value = serde_json::from_slice(&heard.chat).expect("a chat completion request is JSON");
            assert!(chat["messages"].is_array(), "{chat}");
            // It may still be refused, with a reason.
            let _ = openai_chat::parse(&heard.chat);
            true
        }
        Ok(None) => false,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// Where to cut: by the bytes themselves, so that the same input is cut the same way.
fn cuts(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunk_by(|a, b| !(usize::from(*a) + usize::from(*b)).is_multiple_of(5))
}

/// An event stream: the same blocks at any split, and no byte lost.
fn events(bytes: &[u8]) -> bool {
    let read = |parts: &mut dyn Iterator<Item = &[u8]>| -> Vec<Block> {
        let mut parser = Parser::default();
        let mut blocks: Vec<Block> = parts.flat_map(|part| parser.push(part).expect("it is short")).collect();
        blocks.extend(parser.finish());
        blocks
    };
    let whole = read(&mut std::iter::once(bytes));
    let raw: Vec<u8> = whole.iter().flat_map(|block| block.raw.to_vec()).collect();
    assert_eq!(raw, bytes, "no byte is lost");
    let same = |other: Vec<Block>| {
        let data = |blocks: &[Block]| {
            blocks.iter().filter_map(|b| b.data.clone().map(|d| (b.event.clone(), d))).collect::<Vec<_>>()
        };
        assert_eq!(data(&whole), data(&other), "cut elsewhere");
        let raw: Vec<u8> = other.iter().flat_map(|block| block.raw.to_vec()).collect();
        assert_eq!(raw, bytes, "no byte is lost where it is cut");
    };
    same(read(&mut bytes.chunks(1)));
    same(read(&mut cuts(bytes)));
    let mut small = Parser::new(64);
    for part in cuts(bytes) {
        let _ = small.push(part);
    }
    whole.iter().any(|block| block.data.is_some())
}

/// Lines of JSON: the same at any split.
fn lines(bytes: &[u8]) -> bool {
    let read = |parts: &mut dyn Iterator<Item = &[u8]>| {
        let mut lines = Lines::default();
        let mut all: Vec<Bytes> = parts.flat_map(|part| lines.push(part).expect("it is short")).collect();
        all.extend(lines.finish());
        all
    };
    let whole = read(&mut std::iter::once(bytes));
    assert_eq!(whole, read(&mut bytes.chunks(1)));
    assert_eq!(whole, read(&mut cuts(bytes)));
    let mut small = Lines::new(16);
    for part in cuts(bytes) {
        let _ = small.push(part);
    }
    !whole.is_empty()
}

/// The header of a model file.
fn gguf(bytes: &[u8]) -> bool {
    match Gguf::read(Cursor::new(bytes)) {
        Ok(read) => {
            let _ = (
                read.tensors.iter().filter_map(|tensor| tensor.bytes).fold(0, u64::wrapping_add),
                read.per_layer("llama.attention.head_count", 4),
                read.text("general.architecture"),
            );
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// A `config.toml`: settings, or problems that each say where they are.
fn settings(bytes: &[u8]) -> bool {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| tempfile::tempdir().unwrap());
        let file = folder.path().join("config.toml");
        std::fs::write(&file, bytes).unwrap();
        let flags = Flags { config: Some(file), data_dir: Some(folder.path().join("data")), ..Flags::default() };
        let environment = Environment { cwd: folder.path().to_owned(), ..Environment::default() };
        match config::load_from(&flags, &environment) {
            Ok(config) => {
                let of = |model: &str| config.policy(model, &config::ModelHints::default(), None).policy;
                for policy in ["m-1b", "m-8b", "m-70b", "m"].map(of) {
                    assert!(
                        policy.clear_to < policy.clear_at && policy.summarize_to < policy.summarize_at,
                        "{policy:?}"
                    );
                }
                true
            }
            Err(problems) => {
                assert!(!problems.is_empty() && !config::report(&problems, "").is_empty());
                false
            }
        }
    })
}
