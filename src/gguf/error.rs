//! Why a GGUF header could not be read: where in the file, and what stood there instead of what was expected.

use std::path::PathBuf;

/// Why a header could not be read. Offsets count bytes from the start of the (part of the) file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system could not open or read the file.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's account.
        #[source]
        source: std::io::Error,
    },
    /// The reader failed for another reason than its end.
    #[error("cannot read at byte {offset}")]
    Io {
        /// Where.
        offset: u64,
        /// The system's account.
        #[source]
        source: std::io::Error,
    },
    /// Not a GGUF file at all.
    #[error("not a GGUF file: it starts with {found:?} where \"GGUF\" was expected")]
    Magic {
        /// The first four bytes (fewer in a shorter file), unprintable ones escaped.
        found: String,
    },
    /// A big-endian file; every common server reads little-endian ones only.
    #[error("a big-endian GGUF file (version {version}): only little-endian files are read; convert it")]
    BigEndian {
        /// Its version.
        version: u32,
    },
    /// A version that is too old (1) or not known yet.
    #[error("GGUF version {found}: versions 2 and 3 are read")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The file ends within its header.
    #[error("the file ends at byte {end}, where {what} was expected from byte {offset} on")]
    Truncated {
        /// Where the missing thing starts.
        offset: u64,
        /// The file's length.
        end: u64,
        /// What was expected there.
        what: String,
    },
    /// Something in the header cannot be right.
    #[error("at byte {offset}: {what}")]
    Broken {
        /// Where.
        offset: u64,
        /// What was found and what was expected.
        what: String,
    },
    /// One part of a split model is missing, or is not what its name says.
    #[error("part {number} of {count} of a split model, {}: {what}", path.display())]
    Part {
        /// The part's number, from 1.
        number: u64,
        /// How many parts there are.
        count: u64,
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}
