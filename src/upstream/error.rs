//! What can go wrong on the way to an inference server. It says what happened; whose fault it is, and what the client
//! is told, is for `proxy` to decide.
//!
//! No variant prints a body: servers quote the request in their errors, and message text stays out of logs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

/// Which server: every [`Error`] carries one. Prints as `NAME at URL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The upstream's configured name.
    pub name: Arc<str>,
    /// Its base URL, without credentials.
    pub url: Arc<str>,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upstream {} at {}", self.name, self.url)
    }
}

/// Why an upstream could not be asked, or its answer not be used.
#[derive(Clone, thiserror::Error)]
pub enum Error {
    /// The HTTP client could not be built, which only happens where TLS or DNS cannot be set up at all.
    #[error("cannot set up the HTTP client")]
    Client(#[source] Arc<reqwest::Error>),
    /// A URL or key that cannot be used, or a path that would leave the upstream's base URL.
    #[error("{server}: {what}")]
    Config {
        /// The server meant.
        server: Server,
        /// What is wrong with it.
        what: String,
    },
    /// No connection: refused, unreachable, no such host, or no TLS. Nothing was sent.
    #[error("cannot connect to {server}")]
    Connect {
        /// The server meant.
        server: Server,
        /// reqwest's own account, without the URL.
        #[source]
        source: Arc<reqwest::Error>,
    },
    /// No complete answer within the limit set on questions to the server (replies to chats have none).
    #[error("{server} did not answer {path} within {limit:?}")]
    Timeout {
        /// The server meant.
        server: Server,
        /// The path asked, without its query.
        path: String,
        /// The limit it passed.
        limit: Duration,
    },
    /// The connection broke after it was made: before the reply, or in the middle of it.
    #[error("the connection to {server} broke off")]
    Broken {
        /// The server meant.
        server: Server,
        /// reqwest's own account, without the URL.
        #[source]
        source: Arc<reqwest::Error>,
    },
    /// A status of 400 or more in answer to a question of ours (the reply to a chat is handed on, not judged).
    #[error("{server} answered {path} with {status}")]
    Status {
        /// The server meant.
        server: Server,
        /// The path asked, without its query.
        path: String,
        /// The HTTP status.
        status: StatusCode,
        /// At most 1 MiB of the body: see [`super::overflow::overflow`].
        body: Bytes,
    },
    /// The model that this program serves itself could not be loaded.
    #[error("{server}: the model cannot be loaded: {what}")]
    Unloadable {
        /// The model meant.
        server: Server,
        /// Why, in llama.cpp's words or ours.
        what: String,
    },
    /// A stream that was read ahead broke off, or cannot be read.
    #[error("{what}")]
    Stream {
        /// What happened.
        what: String,
    },
    /// An answer without the expected shape, or larger than the limit.
    #[error("{server}: {what}")]
    Protocol {
        /// The server meant.
        server: Server,
        /// What was expected and not found.
        what: String,
    },
}

/// As it prints, with its cause: the body of a [`Error::Status`] stays out of logs that print with `{:?}` too.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match std::error::Error::source(self) {
            Some(source) => write!(f, " ({source:?})"),
            None => Ok(()),
        }
    }
}

impl Error {
    /// No connection could be made, so the server has seen nothing.
    pub fn is_connect(&self) -> bool {
        matches!(self, Error::Connect { .. })
    }

    /// The server is not there or went away: its kind and window may be different when it is back.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::Connect { .. } | Error::Broken { .. })
    }

    /// Status and body, where the server did answer.
    pub fn status(&self) -> Option<(StatusCode, &Bytes)> {
        match self {
            Error::Status { status, body, .. } => Some((*status, body)),
            _ => None,
        }
    }
}
