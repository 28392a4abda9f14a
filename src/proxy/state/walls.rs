//! Where the lines of a conversation stand as people see them, and why they moved: as shares of its window, they are others for a
//! request that keeps more for its reply, or whose system prompt and tools take more. Kept with the conversation.

use serde::{Deserialize, Serialize};

use crate::conversation::Tokens;
use crate::plan::{Lines, Regions};
use crate::proxy::grouped;

/// From so many hundredths of the window on, a line is seen to move.
const SEEN: u64 = 2;

/// Where the lines stood for the last request, and why they are not where they were before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::proxy) struct Walls {
    window: Tokens,
    clear_at: Tokens,
    fold_at: Tokens,
    output_reserved: Tokens,
    head: Tokens,
    /// The lines are shares of what system prompt, tools and reply leave of the window.
    tight: bool,
    /// Why they moved the last time that they did, for people.
    pub(in crate::proxy) moved: Option<String>,
}

impl Walls {
    /// Those of a request that was planned.
    pub(in crate::proxy) fn of(window: Tokens, lines: &Lines, regions: &Regions) -> Walls {
        Walls {
            window,
            clear_at: lines.clear_at,
            fold_at: lines.fold_at,
            output_reserved: regions.output_reserved,
            head: regions.system.saturating_add(regions.tools),
            tight: lines.tight,
            moved: None,
        }
    }

    /// These after those of the request before.
    pub(in crate::proxy) fn after(self, before: &Walls) -> Walls {
        let shares = |walls: &Walls| (walls.percent(walls.clear_at), walls.percent(walls.fold_at));
        let ((clear, fold), (was_clear, was_fold)) = (shares(&self), shares(before));
        if before.window == 0 || clear.abs_diff(was_clear) < SEEN && fold.abs_diff(was_fold) < SEEN {
            return Walls { moved: before.moved.clone(), ..self };
        }
        let moved = format!(
            "The lines moved: clear from {was_clear} to {clear} %, fold from {was_fold} to {fold} %, because {}.",
            self.because(before)
        );
        Walls { moved: Some(moved), ..self }
    }

    /// A line as the share of the window that it is told by: with what is kept for the reply.
    fn percent(&self, line: Tokens) -> u64 {
        let full = u64::from(line) + u64::from(self.output_reserved);
        (full * 100 + u64::from(self.window) / 2) / u64::from(self.window.max(1))
    }

    fn because(&self, before: &Walls) -> String {
        let changed = |what: &str, now: Tokens, was: Tokens| {
            (now != was).then(|| format!("{what} {} tokens now, and {} before", grouped(now), grouped(was)))
        };
        if let Some(window) = changed("the window has", self.window, before.window) {
            return window;
        }
        let why: Vec<String> = changed("the reply may take", self.output_reserved, before.output_reserved)
            .into_iter()
            .chain(changed("system prompt and tools take", self.head, before.head))
            .collect();
        if why.is_empty() || !self.tight && !before.tight {
            return "another profile or task holds".to_owned();
        }
        let shares = if self.tight { "; so little is left that the lines are shares of that" } else { "" };
        why.join(", ") + shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Facts, Policy};

    fn walls(window: Tokens, output_reserved: Tokens, system: Tokens, clear_at: f64) -> Walls {
        let facts = Facts { window, output_reserved, system, ..Facts::default() };
        let policy = Policy { clear_at, clear_to: 0.25, summarize_at: 0.5, summarize_to: 0.3, ..Policy::default() };
        let regions = Regions { output_reserved, system, ..Regions::default() };
        Walls::of(window, &Lines::of(&facts, &policy), &regions)
    }

    /// A small model at 4,096 tokens: one request keeps 64 tokens for its reply, the next one the usual 1,024.
    #[test]
    fn lines_that_move_say_why() {
        let short = walls(4096, 64, 300, 0.35).after(&Walls::default());
        assert_eq!(short.moved, None, "there was nothing before");
        let usual = walls(4096, 1024, 300, 0.35).after(&short);
        let why = usual.moved.clone().unwrap();
        assert!(why.starts_with("The lines moved: clear from 35 to 5"), "{why}");
        assert!(why.contains("the reply may take 1,024 tokens now, and 64 before"), "{why}");
        assert!(!why.contains("system prompt"), "{why}");
        // It is said for as long as they stand there.
        assert_eq!(walls(4096, 1024, 310, 0.35).after(&usual).moved, usual.moved);
        let larger = walls(8192, 1024, 310, 0.35).after(&usual).moved.unwrap();
        assert!(larger.contains("the window has 8,192 tokens now, and 4,096 before"), "{larger}");
        let other = walls(4096, 64, 300, 0.45).after(&short).moved.unwrap();
        assert!(other.contains("another profile or task"), "{other}");
    }
}
