//! The brief: the one text that stands for all folded messages. It has a part written by a model, if there was an answer
//! worth keeping, and facts taken from the messages without a model: the user's own words, conclusions, findings,
//! errors, files, commands, ids of the originals.
//!
//! Pure. It never asks a model ([`instruction`] and [`transcript`] are what to ask with, [`judge()`] says whether the
//! answer is any good), and it never paraphrases: facts are copied.

mod collect;
pub mod done;
mod edited;
mod judge;
mod language;
mod prompt;
mod render;
mod results;
mod safe;
mod said;
mod section;
mod state;
mod statements;
mod talk;
mod words;
mod work;
mod worth;

use crate::conversation::Message;
use crate::conversation::task::Keep;

pub use self::collect::{facts, restate};
pub use self::edited::{edited, still_struck, strike, struck};
pub use self::judge::{Fault, judge};
pub use self::prompt::{instruction, transcript};
pub use self::render::{parse, render};
pub use self::results::findings;
pub use self::said::{said_by, said_in, unpin, with_words, without_words};
pub use self::section::{Item, Part, Section};
pub use self::state::{goes_to, told};
pub use self::talk::retell;
pub use self::work::{Work, of_text as quotes_of};

/// What a brief is made from.
#[derive(Debug, Clone, Copy)]
pub struct Material<'a> {
    /// The messages that are folded now, in order.
    pub messages: &'a [&'a Message],
    /// The numbers by which these messages are known, where they have any.
    pub numbers: &'a [usize],
    /// The last brief, as this module rendered it (or a text that holds it), if there is one: it is folded in.
    pub previous: Option<&'a str>,
    /// The file that holds the originals.
    pub history_path: &'a str,
    /// Id of the conversation and the numbers of its folded messages, for whoever wants them back; empty if it has none.
    pub conversation: &'a str,
    /// The originals in the record: id, and in a few words what it is.
    pub records: &'a [(String, String)],
}

/// What is known of the folded messages without a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// How many messages were folded so far, all briefs together.
    pub folded: u32,
    /// The file that holds the originals.
    pub history: String,
    /// Id of the conversation and the numbers of its folded messages; may be empty.
    pub conversation: String,
    /// The last part that a model wrote; shown again if the next summary fails.
    pub summary: Option<String>,
    /// One past the last message that this part was made from, by the numbers of the messages, where it is older than the
    /// brief; `None` where it goes as far as the brief does.
    pub told: Option<usize>,
    /// The sections, in the order of [`Part::ALL`].
    pub sections: [Section; 10],
    /// In which message each of the newer user's items was said, by the item's key.
    said: Vec<(u64, usize)>,
    /// What is quoted of the work itself. It is not read back from a brief: it comes from the messages each time.
    pub work: Work,
    /// The kind of content that the task keeps longest. Its sections get more room. Not parsed from a brief.
    pub keep: Option<Keep>,
}

impl Facts {
    /// One section.
    pub fn part(&self, part: Part) -> &Section {
        &self.sections[part as usize]
    }

    /// Joins what was known with what is new: nothing twice, the newer outcome of the same command, file or record.
    pub fn merge(mut self, newer: Facts) -> Facts {
        self.folded = self.folded.saturating_add(newer.folded);
        if !newer.history.is_empty() {
            self.history = newer.history;
        }
        if !newer.conversation.is_empty() {
            self.conversation = newer.conversation;
        }
        if newer.summary.is_some() {
            (self.summary, self.told) = (newer.summary, newer.told);
        }
        self.work = newer.work;
        for (part, section) in Part::ALL.into_iter().zip(newer.sections) {
            let own = &mut self.sections[part as usize];
            own.dropped = own.dropped.saturating_add(section.dropped);
            for item in section.items {
                let said = newer.said.iter().find(|(key, _)| *key == item.key).map(|(_, number)| *number);
                let item = if part == Part::User { statements::supersede(own, item, said) } else { item };
                section::add(own, part, item);
            }
            section::cap(own, part);
        }
        self
    }
}

#[cfg(test)]
mod tests;
