//! llama.cpp in this process: the vocabulary of a model's own GGUF, for counting tokens exactly. The only room that
//! knows llama-cpp-2. Built without the feature `engine`, every file is refused with [`VocabularyError::NotBuilt`], and
//! whoever asks goes on without.
//!
//! Never loads weights into this process ([`generate`] has one of its own for that), and never hands llama.cpp a file that
//! has not been looked through here first: it ends the process on some of them.

pub mod chat_template;
mod child;
pub mod devices;
pub mod dry_run;
#[cfg(feature = "engine")]
mod ffi;
pub mod generate;
#[cfg(feature = "engine")]
mod header;
#[cfg(feature = "engine")]
mod native;
#[cfg(not(feature = "engine"))]
#[path = "absent.rs"]
mod native;
#[cfg(feature = "engine")]
mod pieces;
#[cfg(feature = "engine")]
mod soft;
#[cfg(feature = "engine")]
mod sound;
#[cfg(feature = "engine")]
mod tally;
#[cfg(feature = "engine")]
mod words;

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use native::Vocabulary;

/// Whether this binary can read vocabularies.
pub const BUILT: bool = cfg!(feature = "engine");

/// Why a vocabulary cannot be had from a file.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// The file is not there, or cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is no GGUF, is cut short, or says what cannot be.
    #[error("{} cannot be used: {what}", .path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// This binary was built without llama.cpp.
    #[error("this build has no tokenizer of its own (feature `engine`)")]
    NotBuilt,
}

/// Tells one state of a file from another: a model that was replaced or written on has another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileId {
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl FileId {
    /// The present state of a file.
    ///
    /// # Errors
    /// When it is not there.
    pub fn of(path: &Path) -> Result<FileId, VocabularyError> {
        let meta =
            std::fs::metadata(path).map_err(|error| VocabularyError::Unreadable { path: path.to_owned(), error })?;
        Ok(FileId { path: path.to_owned(), bytes: meta.len(), modified: meta.modified().ok() })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(all(test, feature = "engine"))]
mod tests;
