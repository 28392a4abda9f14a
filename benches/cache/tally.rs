//! What a replay came to.

use windowsill::conversation::Tokens;
use windowsill::plan::economics;

use super::server::{Prompt, Served, common, size, text};
use super::sessions::Session;

/// One time that a prompt did not begin with the whole prompt before it.
#[derive(Debug, Clone)]
pub(crate) struct Rewrite {
    pub(crate) turn: usize,
    /// Why.
    pub(crate) why: String,
    /// What both prompts begin with.
    pub(crate) head: Tokens,
    /// The prompt before.
    pub(crate) before: Tokens,
    /// Tokens of it that left.
    pub(crate) freed: Tokens,
    /// Tokens evaluated that are not new.
    pub(crate) again: Tokens,
    /// Tokens of the brief, if one was made.
    pub(crate) brief: Option<Tokens>,
}

/// The figures of one replay, or of several together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) sessions: usize,
    pub(crate) turns: usize,
    pub(crate) answered: usize,
    /// Turn of the first refusal.
    pub(crate) refused_at: Option<usize>,
    /// Tokens evaluated with one prompt remembered, and with four; helper calls included.
    pub(crate) one: u64,
    pub(crate) four: u64,
    /// Of these, what helper calls made.
    pub(crate) helper_one: u64,
    pub(crate) helpers: usize,
    /// The same turns with an endless window.
    pub(crate) ideal: u64,
    /// Each message once, as it was first forwarded.
    pub(crate) fresh: u64,
    pub(crate) rewrites: Vec<Rewrite>,
    /// Largest prompt as a share of the window.
    pub(crate) largest: f64,
    /// Sum of what the prompts are of the window.
    pub(crate) filled: f64,
    /// Sums over what is worth knowing: in plain view at the end, or one recall away; and how many there are.
    pub(crate) visible: f64,
    pub(crate) reachable: f64,
    pub(crate) wanted: usize,
    last: Prompt,
    done: usize,
}

impl Tally {
    /// Counts a prompt that was answered. `messages` of the history it stands for; `news` are tokens in it that were in
    /// none before.
    pub(crate) fn answer(&mut self, prompt: &Prompt, served: Served, news: Tokens, messages: usize, window: Tokens) {
        self.one += u64::from(served.one);
        self.four += u64::from(served.four);
        self.fresh += u64::from(news);
        self.answered += 1;
        let share = f64::from(served.tokens) / f64::from(window);
        self.largest = self.largest.max(share);
        self.filled += share;
        let head = common(&self.last, prompt);
        let before = size(&self.last);
        if head < before {
            let again = served.tokens.saturating_sub(head + news);
            let freed = (before + news).saturating_sub(served.tokens);
            let turn = self.turns;
            self.rewrites.push(Rewrite { turn, why: String::new(), head, before, freed, again, brief: None });
        }
        self.last.clone_from(prompt);
        self.done = messages;
    }

    /// Says why the prompt just answered was rewritten, if it was.
    pub(crate) fn because(&mut self, why: String, brief: Option<Tokens>) {
        let turn = self.turns;
        if let Some(last) = self.rewrites.last_mut().filter(|r| r.turn == turn) {
            (last.why, last.brief) = (why, brief);
        }
    }

    pub(crate) fn help(&mut self, served: Served) {
        self.one += u64::from(served.one);
        self.four += u64::from(served.four);
        self.helper_one += u64::from(served.one);
        self.helpers += 1;
    }

    pub(crate) fn refuse(&mut self) {
        self.refused_at = self.refused_at.or(Some(self.turns));
    }

    /// Ends a session. `within_reach` is text that a recall would bring back.
    pub(crate) fn end(&mut self, session: &Session, within_reach: &str) {
        self.sessions = 1;
        self.ideal = u64::from(session.ideal(self.done));
        let visible = text(&self.last);
        let all = format!("{visible}\n{within_reach}");
        // What is known counts at the end of the session alone.
        let ended = self.done == session.body.len();
        for wanted in &session.wanted {
            self.wanted += 1;
            if ended {
                self.visible += wanted.share(&visible);
                self.reachable += wanted.share(&all);
            }
        }
        self.last = Prompt::new();
    }

    /// Adds another replay.
    pub(crate) fn add(&mut self, other: Tally) {
        self.sessions += other.sessions;
        self.turns += other.turns;
        self.answered += other.answered;
        self.refused_at = [self.refused_at, other.refused_at].into_iter().flatten().min();
        self.one += other.one;
        self.four += other.four;
        self.helper_one += other.helper_one;
        self.helpers += other.helpers;
        self.ideal += other.ideal;
        self.fresh += other.fresh;
        self.rewrites.extend(other.rewrites);
        self.largest = self.largest.max(other.largest);
        self.filled += other.filled;
        self.visible += other.visible;
        self.reachable += other.reachable;
        self.wanted += other.wanted;
    }

    /// Tokens evaluated over the ideal.
    pub(crate) fn over_ideal(&self, evaluated: u64) -> f64 {
        evaluated as f64 / self.ideal.max(1) as f64
    }

    /// Tokens evaluated over what was new, as it was first forwarded.
    pub(crate) fn over_fresh(&self) -> f64 {
        self.one as f64 / self.fresh.max(1) as f64
    }

    /// Head, brief, tail and trigger of the formula, as they came out: means over the folds, or, where nothing was folded,
    /// over all rewrites.
    pub(crate) fn sizes(&self) -> Option<[Tokens; 4]> {
        let folds: Vec<&Rewrite> = self.rewrites.iter().filter(|r| r.brief.is_some()).collect();
        let some: Vec<&Rewrite> = if folds.is_empty() { self.rewrites.iter().collect() } else { folds };
        let brief = |r: &Rewrite| r.brief.unwrap_or(0).min(r.again);
        let mean = |of: &dyn Fn(&Rewrite) -> Tokens| {
            let sum: u64 = some.iter().map(|r| u64::from(of(r))).sum();
            (sum / some.len().max(1) as u64) as Tokens
        };
        let all = [mean(&|r| r.head), mean(&brief), mean(&|r| r.again - brief(r)), mean(&|r| r.before)];
        (!some.is_empty()).then_some(all)
    }

    /// The formula with these sizes.
    pub(crate) fn bound(&self) -> Option<f64> {
        self.sizes().map(|[head, brief, tail, trigger]| economics::bound(head, brief, tail, trigger))
    }

    /// Mean tokens evaluated again in a rewrite.
    pub(crate) fn again(&self) -> u64 {
        let sum: u64 = self.rewrites.iter().map(|r| u64::from(r.again)).sum();
        sum / self.rewrites.len().max(1) as u64
    }
}
