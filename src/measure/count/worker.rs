//! The process that counts for one model: reads the vocabulary of its file and a chat template, then answers until its input
//! ends. A file or a template that is made to harm ends it, or keeps it busy until it is ended, and nothing else.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::{CountError, Counted, Counter};
use crate::conversation::Tokens;
use crate::engine::calls::{self, Desk};
use crate::engine::vocabulary::Vocabulary;
use crate::wire::openai_chat;

/// The hidden command of this program that [`work`]s.
pub const COMMAND: &str = "count-worker";

/// The first words: the chat template of the file, or why its vocabulary cannot be had.
pub(super) type Opening = Result<Option<String>, String>;

/// A question. Requests are the bytes that belong to it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// Render with this template from now on; without one, with the file's.
    Template(Option<String>),
    /// As [`Counter::total`].
    Total,
    /// As [`Counter::at_least`].
    AtLeast,
    /// As [`Counter::counted`].
    Counted {
        /// The server renders in a way of its own.
        foreign: bool,
    },
    /// As [`Counter::shared`].
    Shared,
    /// As [`Counter::text`].
    Text,
}

/// What is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// The template is read.
    Ready,
    /// Tokens, and where it was a request its messages.
    Tokens(Tokens, usize),
    /// The shares of messages.
    Counted(Counted),
}

/// What is known of the model.
enum State {
    Nothing,
    Words(Box<Vocabulary>),
    Counter(Box<Counter>),
}

struct Model {
    file: PathBuf,
    state: RwLock<State>,
}

/// The process's side.
///
/// # Errors
/// When the input cannot be read.
pub fn work(file: &Path, input: impl BufRead, output: impl Write + Send + 'static) -> std::io::Result<()> {
    calls::serve(Model { file: file.to_owned(), state: RwLock::new(State::Nothing) }, input, output)
}

impl Desk for Model {
    type Ask = Ask;
    type Answer = Result<Told, String>;
    type Opening = Opening;

    fn open(&self) -> Opening {
        let vocabulary = Vocabulary::load(&self.file).map_err(|e| e.to_string())?;
        let template = vocabulary.chat_template().map(str::to_owned);
        *self.state.write() = State::Words(Box::new(vocabulary));
        Ok(template)
    }

    fn answer(&self, ask: Ask, parts: &[Vec<u8>]) -> Result<Told, String> {
        if let Ask::Template(template) = &ask {
            return self.take(template.as_deref()).map(|()| Told::Ready);
        }
        let state = self.state.read();
        match &*state {
            State::Counter(counter) => told(counter, &ask, parts).map_err(|e| e.to_string()),
            State::Nothing | State::Words(_) => Err("no template was named yet".into()),
        }
    }
}

impl Model {
    fn take(&self, template: Option<&str>) -> Result<(), String> {
        let State::Words(vocabulary) = std::mem::replace(&mut *self.state.write(), State::Nothing) else {
            return Err("a template was named before".into());
        };
        let counter = Counter::with(*vocabulary, template).map_err(|e| e.to_string())?;
        *self.state.write() = State::Counter(Box::new(counter));
        Ok(())
    }
}

fn told(counter: &Counter, ask: &Ask, parts: &[Vec<u8>]) -> Result<Told, CountError> {
    let part = |at: usize| parts.get(at).map_or(&[][..], Vec::as_slice);
    Ok(match ask {
        Ask::Template(_) => Told::Ready,
        Ask::Total => counter.total(part(0)).map(|(tokens, n)| Told::Tokens(tokens, n))?,
        Ask::AtLeast => counter.at_least(part(0)).map(|(tokens, n)| Told::Tokens(tokens, n))?,
        Ask::Shared => Told::Tokens(counter.shared(part(0), part(1))?, 0),
        Ask::Text => Told::Tokens(counter.text(&String::from_utf8_lossy(part(0))), 0),
        Ask::Counted { foreign } => {
            let body = bytes::Bytes::copy_from_slice(part(0));
            let conversation = openai_chat::parse(&body).map_err(|e| CountError::Worker(e.to_string()))?.conversation;
            Told::Counted(counter.counted(&body, &conversation, *foreign)?)
        }
    })
}
