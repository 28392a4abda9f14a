//! Which calls of a reply are answered within it: those of windowsill's own tools, and those of tools that the model does not
//! know yet.

use std::collections::HashSet;
use std::sync::Arc;

use crate::admission::{self, Answer, Answers};
use crate::conversation::Tokens;
use crate::proxy::turn::admission::Admitted;
use crate::recall::{self, AtHead, done, memory};

/// The tools of windowsill's own that a model may call.
const NAMES: [&str; 4] = [recall::NAME, admission::NAME, done::NAME, memory::NAME];

/// Whether a call is answered here, as far as its name tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy::turn::recall) enum Held {
    /// It is a call of windowsill's own tool.
    Answered,
    /// It is a call of a client's tool that the list does not show.
    Hidden,
    /// The name may still become one of these.
    Perhaps,
    /// It is the client's.
    No,
}

/// What is known of the tools of a reply.
#[derive(Debug, Clone, Default)]
pub(in crate::proxy) struct Answered {
    /// The client's tools and the list that stands for them, where there is one.
    pub(in crate::proxy) admitted: Option<Arc<Admitted>>,
    /// Tools that the prompt's history tells of.
    pub(in crate::proxy) taught: HashSet<String>,
    /// Tools of ours that the model has from the first prompt on.
    pub(in crate::proxy) at_head: AtHead,
}

impl Answered {
    /// Whether a call with this name is held back. `whole`: nothing more of the name follows.
    pub(super) fn held(&self, name: &str, whole: bool) -> Held {
        let hidden = self.admitted.as_ref().map(|a| &a.hidden);
        if self.is_own(name) || self.is_index(name) {
            return Held::Answered;
        }
        let longer = |other: &str| other.len() > name.len() && other.starts_with(name);
        let perhaps = NAMES.iter().any(|n| longer(n)) || hidden.is_some_and(|h| h.iter().any(|n| longer(n)));
        if name.is_empty() || perhaps && !whole {
            return Held::Perhaps;
        }
        if hidden.is_some_and(|h| h.contains(name)) { Held::Hidden } else { Held::No }
    }

    /// Whether a name is that of a tool which is always answered here, whatever its arguments.
    pub(super) fn is_own(&self, name: &str) -> bool {
        recall::is_ours(name) || self.at_head.answers(name)
    }

    /// Whether a name is that of the index: with a namespace before it, or spelled otherwise, too.
    fn is_index(&self, name: &str) -> bool {
        let bare = name.trim().rsplit(['.', ':', '/']).next().unwrap_or("");
        self.admitted.is_some() && bare.replace(['-', ' '], "_").eq_ignore_ascii_case(admission::NAME)
    }

    /// The call that goes to the client for one that was held back; `None` where it is answered here.
    pub(super) fn goes(&self, name: &str, arguments: &str, last: bool) -> Option<(String, String)> {
        // How an answer reads does not matter here.
        match self.answer(name, arguments, last, 0, &|_| 0)? {
            Answer::Goes(name, arguments) => Some((name, arguments)),
            Answer::Told(..) => None,
        }
    }

    /// What becomes of a call, where there is a list of tools.
    pub(in crate::proxy) fn answer(
        &self,
        name: &str,
        arguments: &str,
        last: bool,
        room: Tokens,
        count: &dyn Fn(&str) -> Tokens,
    ) -> Option<Answer> {
        let admitted = self.admitted.as_ref()?;
        let (catalog, list) = (&admitted.catalog, &admitted.list);
        let answers = Answers { catalog, list, taught: &self.taught, room, count };
        Some(answers.answer(name, arguments, last))
    }
}
