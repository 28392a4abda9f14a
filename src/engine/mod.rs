//! llama.cpp: generation, dry runs, devices, vocabularies and chat templates. The only room that knows it. Built without the
//! feature `engine`, every file is refused with [`VocabularyError::NotBuilt`], and the proxy goes on without.
//!
//! llama.cpp ends the process on some files, and some templates never end. So whatever is loaded from a model's file is loaded
//! in a process of its own, which this program starts and asks: the proxy's process loads no file and runs no template.

pub mod calls;
mod child;
pub mod devices;
pub mod dry_run;
#[cfg(feature = "engine")]
mod ffi;
pub mod generate;
pub mod processor;
pub mod vocabulary;

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use vocabulary::{ChatTemplate, TemplateError, Vocabulary};

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
    /// llama.cpp cannot work on this machine's processor.
    #[error("{0}")]
    Processor(String),
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
