//! A model's vocabulary and its chat template, as llama.cpp has both: what prompts are counted with.
//!
//! llama.cpp ends the process on some files and never comes back from some templates, so only a process of its own opens
//! either: see `measure/count/worker.rs`.

#[cfg(feature = "engine")]
mod native;
#[cfg(not(feature = "engine"))]
#[path = "absent.rs"]
mod native;
mod request;
mod segments;
#[cfg(all(test, feature = "engine"))]
mod tests;

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::VocabularyError;
use crate::conversation::Tokens;
use segments::{Cuts, Known};

/// llama.cpp's regular expressions recurse once a character on some texts; this is enough for the longest.
const STACK: usize = 1 << 30;

/// Texts from here on are tokenized on a stack of their own (bytes).
const DEEP: usize = 8 * 1024;

/// Why a template gives no prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// llama.cpp does not read the template.
    #[error("the chat template cannot be read: {0}")]
    Syntax(String),
    /// The template itself refuses the messages, with `raise_exception`.
    #[error("the chat template refuses the messages: {0}")]
    Raised(String),
    /// llama.cpp does not come to an end with the template, in words.
    #[error("{0}")]
    Endless(String),
    /// Rendering went wrong.
    #[error("the chat template failed: {0}")]
    Render(String),
}

/// What is known of a vocabulary beside its words.
#[derive(Debug, Default, Deserialize)]
struct Facts {
    /// Tokens that end a turn or a text.
    enders: Vec<Ender>,
    /// The texts of all special tokens.
    specials: Vec<String>,
    bos: String,
    eos: String,
    /// The chat template of its file.
    template: Option<String>,
}

/// A token that ends a turn or a text.
#[derive(Debug, Deserialize)]
struct Ender {
    text: String,
    /// It swallows the white space before it.
    strips: bool,
    /// It is taken out of a text before that is divided into words.
    special: bool,
}

/// The tokens of a prompt, and where they stand in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokenized {
    /// The byte at which each token ends, in order.
    pub ends: Vec<usize>,
    /// Where special tokens end.
    pub specials: Vec<usize>,
}

/// The vocabulary of a model.
pub struct Vocabulary {
    raw: native::Raw,
    facts: Facts,
    enders: Vec<String>,
    /// The bytes that each token stands for; negative for special ones.
    lengths: Vec<i32>,
    cuts: Cuts,
    known: Known,
    /// Tokens that are added to a whole prompt.
    added: usize,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("words", &self.lengths.len()).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Reads the vocabulary of a GGUF file; the weights stay where they are. Takes up to a second, and may end the process.
    ///
    /// # Errors
    /// When the file cannot be read, or is no GGUF with a vocabulary.
    pub fn load(path: &Path) -> Result<Vocabulary, VocabularyError> {
        if !super::BUILT {
            return Err(VocabularyError::NotBuilt);
        }
        if let Some(why) = super::processor::lack() {
            return Err(VocabularyError::Processor(why));
        }
        super::FileId::of(path)?;
        let broken = |what: String| VocabularyError::Broken { path: path.to_owned(), what };
        // A named pipe would be waited for.
        crate::files::open(path).map_err(|error| VocabularyError::Unreadable { path: path.to_owned(), error })?;
        let raw = native::Raw::open(path).map_err(broken)?;
        let facts = raw.facts().map_err(broken)?;
        let enders = facts.enders.iter().map(|ender| ender.text.clone()).collect();
        let (lengths, cuts, added) = (raw.lengths(), Cuts::of(&facts), raw.tokenize("", true).len());
        Ok(Vocabulary { raw, facts, enders, lengths, cuts, known: Known::default(), added })
    }

    /// The tokens of a prompt, as llama-server counts them: special tokens are read as such wherever they stand, and the first
    /// token is added where the model wants it.
    pub fn count(&self, text: &str) -> Tokens {
        tokens(self.added).saturating_add(self.part(text))
    }

    /// The tokens of a part of a prompt, without what is added to a whole one.
    pub fn part(&self, text: &str) -> Tokens {
        self.cuts.of_text(text).fold(0, |sum, segment| sum.saturating_add(tokens(self.segment(segment).len())))
    }

    /// The tokens of a prompt with their places. What is added to it stands at its beginning.
    pub fn places(&self, text: &str) -> Tokenized {
        let mut out = Tokenized { ends: vec![0; self.added], specials: Vec::new() };
        let mut from = 0;
        for segment in self.cuts.of_text(text) {
            segments::place(&self.segment(segment), segment, from, &mut out);
            from += segment.len();
        }
        out
    }

    /// The lengths of a segment's tokens.
    fn segment(&self, text: &str) -> std::sync::Arc<[i32]> {
        self.known.get(text, || {
            let length = |token: &i32| usize::try_from(*token).ok().and_then(|at| self.lengths.get(at)).copied();
            self.deeply(text, false).iter().map(|token| length(token).unwrap_or(0)).collect()
        })
    }

    /// The tokens of a prompt, the whole in one go: what [`Vocabulary::count`] must come to.
    pub fn tokenize(&self, text: &str) -> Vec<i32> {
        self.deeply(text, true)
    }

    fn deeply(&self, text: &str, whole: bool) -> Vec<i32> {
        let work = || self.raw.tokenize(text, whole);
        if text.len() < DEEP {
            return work();
        }
        // The stack is reserved, not filled: it costs what is used of it.
        std::thread::scope(|scope| match std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_default(),
            Err(_) => work(),
        })
    }

    /// The texts of the tokens that end a turn or a text.
    pub fn enders(&self) -> &[String] {
        &self.enders
    }

    /// The texts of the tokens that begin and that end a prompt.
    pub fn ends(&self) -> (&str, &str) {
        (&self.facts.bos, &self.facts.eos)
    }

    /// The chat template of its file.
    pub fn chat_template(&self) -> Option<&str> {
        self.facts.template.as_deref()
    }

    /// This chat template with the vocabulary's tokens; without one, that of its file, and its other one for requests with
    /// tools.
    ///
    /// # Errors
    /// Why llama.cpp does not read it.
    pub fn chat(&self, template: Option<&str>) -> Result<ChatTemplate, TemplateError> {
        let chat = native::Chat::open(Some(&self.raw), template.unwrap_or_default(), ("", ""));
        chat.map(ChatTemplate).map_err(TemplateError::Syntax)
    }
}

/// A chat template, as llama.cpp's server applies it.
pub struct ChatTemplate(native::Chat);

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ChatTemplate").finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// A template for a model whose prompts begin and end with these tokens.
    ///
    /// # Errors
    /// Why llama.cpp does not read it.
    pub fn read(source: &str, ends: (&str, &str)) -> Result<ChatTemplate, TemplateError> {
        // An empty one would be the model's own, and there is none.
        let source = if source.is_empty() { "{{ '' }}" } else { source };
        native::Chat::open(None, source, ends).map(ChatTemplate).map_err(TemplateError::Syntax)
    }

    /// The prompt of a chat request (OpenAI's shape), as llama-server has it.
    ///
    /// # Errors
    /// When the template refuses it.
    pub fn render(&self, request: &Value) -> Result<String, TemplateError> {
        self.0.render(&request::plain(request))
    }
}

/// Why llama.cpp does not read a template; `None` where it does. A template that has not been tried within this time is still
/// being tried, in a thread that ends with the process.
///
/// # Errors
/// That it does not end, in words.
pub fn fault_within(source: &str, limit: Duration) -> Result<Option<String>, String> {
    let (send, receive) = std::sync::mpsc::channel();
    let template = source.to_owned();
    std::thread::spawn(move || send.send(ChatTemplate::read(&template, ("", "")).err().map(|e| e.to_string())));
    receive.recv_timeout(limit).map_err(|_| endless(limit))
}

/// What is said of a template that was tried for so long.
pub fn endless(limit: Duration) -> String {
    format!("the chat template does not end: llama.cpp tried it for {} s. Name another", limit.as_secs())
}

fn tokens(n: usize) -> Tokens {
    Tokens::try_from(n).unwrap_or(Tokens::MAX)
}
