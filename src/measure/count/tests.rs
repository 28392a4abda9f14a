//! Real sessions in real templates, by real vocabularies, where they are at hand (`shared/data`).

#![expect(clippy::unwrap_used, reason = "helpers of tests: a panic is how they fail")]

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::{Value, json};

use super::Counter;
use crate::conversation::Conversation;
use crate::wire::openai_chat;

/// Excerpts of the data set, which are in the repository.
const EXCERPTS: &str = "tests/data/excerpts";

/// The data set, where it lies beside this checkout; else the excerpts of it.
pub(crate) fn data() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut places = ["../shared/data", "../../shared/data", EXCERPTS].iter().map(|p| here.join(p));
    places.find(|p| p.is_dir()).unwrap_or_else(|| panic!("{EXCERPTS} is missing from the repository"))
}

/// How many there must be: of the whole set, or of the excerpts.
pub(crate) fn at_least(data: &Path, whole: usize, excerpts: usize) -> usize {
    if data.ends_with("excerpts") { excerpts } else { whole }
}

/// Those of the pairs of a template and a vocabulary that the data has: all, or what the excerpts have of them.
pub(crate) fn at_hand<P: Copy>(data: &Path, pairs: &[P], names: impl Fn(&P) -> (&str, &str)) -> Vec<P> {
    let there = |pair: &&P| {
        let (template, vocabulary) = names(pair);
        data.join(format!("templates/{template}.jinja")).is_file() && vocabulary_file(data, vocabulary).is_file()
    };
    let found: Vec<P> = pairs.iter().filter(there).copied().collect();
    assert!(found.len() >= at_least(data, pairs.len(), 1), "{} of {}", found.len(), pairs.len());
    found
}

/// A file with a vocabulary.
pub(crate) fn vocabulary_file(data: &Path, name: &str) -> PathBuf {
    data.join(format!("vocab/ggml-vocab-{name}.gguf"))
}

/// Beginnings of the recorded sessions, as requests that end with no assistant message.
pub(crate) fn requests(bytes: usize, most: usize) -> Vec<(String, Value)> {
    let data = data();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(data.join("sessions/dev")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let read = |file: &PathBuf| {
        let session: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let mut size = 0;
        let fits = |m: &&Value| {
            size += m.to_string().len();
            size < bytes
        };
        let mut messages: Vec<Value> =
            session["messages"].as_array().unwrap().iter().take(most).take_while(fits).cloned().collect();
        while messages.last().is_some_and(|m| m["role"] == "assistant") {
            messages.pop();
        }
        let mut request = json!({"model": "m", "messages": messages});
        if session["tools"].as_array().is_some_and(|t| !t.is_empty()) {
            request["tools"] = session["tools"].clone();
        }
        (file.file_stem().unwrap().to_string_lossy().into_owned(), request)
    };
    files.iter().map(read).filter(|(_, r)| r["messages"].as_array().is_some_and(|m| m.len() > 2)).collect()
}

pub(crate) fn counter(data: &Path, template: &str, vocabulary: &str) -> Counter {
    let template = std::fs::read_to_string(data.join(format!("templates/{template}.jinja"))).unwrap();
    Counter::open(&vocabulary_file(data, vocabulary), Some(&template)).unwrap()
}

pub(crate) fn parsed(request: &Value) -> (Bytes, Conversation) {
    let bytes = Bytes::from(request.to_string());
    let conversation = openai_chat::parse(&bytes).unwrap().conversation;
    (bytes, conversation)
}
