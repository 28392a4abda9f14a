//! Admission: which of a client's tools stand in the prompt in full, how the others are named and found there, and how they
//! are called.
//!
//! A long list of tools becomes an index: a few tools in full, and one tool of windowsill's that names all others in a line
//! each, answers with their parameters, and calls them. Nothing is lost: the client gets every call by its own tool's name,
//! checked against its own schema. Pure: it never counts tokens itself, nor decides whether a list is too long.

mod answer;
mod catalog;
mod choose;
mod search;
mod shorten;
mod system;
mod through;
mod valid;

pub use answer::{Answer, Answers, Asked, taught};
pub use catalog::{Catalog, Tool};
pub use choose::{List, Wanted, budget, choose};
pub use search::search;
pub use shorten::{Level, sentence, shorten};
pub use system::{Caps, Left, Why, system};
pub use through::through;
pub use valid::problem;

/// The tool that names, describes and calls the tools that are not shown.
pub const NAME: &str = "windowsill_tool";

/// What is done with a client's tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listing {
    /// They are forwarded as they came.
    #[default]
    AsSent,
    /// By index, where they would leave too little of the window for a history.
    Auto,
    /// By index.
    Index,
}

impl Listing {
    /// Reads the word that a setting or a header says.
    pub fn read(word: &str) -> Option<Listing> {
        match word.trim() {
            "as_sent" => Some(Listing::AsSent),
            "auto" => Some(Listing::Auto),
            "index" => Some(Listing::Index),
            _ => None,
        }
    }

    /// The word for it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Listing::AsSent => "as_sent",
            Listing::Auto => "auto",
            Listing::Index => "index",
        }
    }
}
