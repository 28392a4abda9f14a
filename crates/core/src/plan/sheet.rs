//! The sheet the rules write on: what each message costs in the view so far, and what was decided.

use std::cell::OnceCell;

use super::budget::{self, Lines};
use super::facts::{Facts, Regions};
use super::policy::Policy;
use super::rewrite;
use super::{Action, Because, FoldAt, Waiting};
use crate::conversation::edit::{Edit, Rule};
use crate::conversation::files::Superseded;
use crate::conversation::step::{self, Unit};
use crate::conversation::{Conversation, Role, Tokens, person};

/// An opening with rules is held while it leaves at least one part in this many of the room after system prompt and tools.
const HELD: Tokens = 4;

/// Steps that a rewrite leaves room for; they differ in size, so that it is about one in four requests that is rewritten.
pub(super) const STEPS_AHEAD: Tokens = 5;

/// Steps with results that are never cleared stay inside a fold while they take at most one part in this many of the window.
const PROTECTED: Tokens = 4;

/// A fold in force: an edit made earlier, or an action decided now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fold {
    pub from: usize,
    pub to: usize,
    pub keep: Vec<usize>,
    pub brief: Tokens,
}

impl Regions {
    /// What a prompt takes as it stands, region by region: the client's history with the edits of `facts.view`.
    pub fn of(conversation: &Conversation, facts: &Facts, policy: &Policy) -> Regions {
        Sheet::laid_out(conversation, facts, policy).regions()
    }
}

/// What each message takes in the view, in tokens, were it not folded.
#[derive(Clone)]
pub(super) struct Sizes {
    /// All of it.
    pub whole: Vec<Tokens>,
    /// Of these, the arguments of each call.
    pub calls: Vec<Vec<Tokens>>,
    /// And what [`rewrite`] adds to give it the shape that the template wants.
    pub extra: Vec<Tokens>,
    /// And what was recalled behind it.
    pub behind: Vec<Tokens>,
}

/// What a person or the policy holds on to.
pub(super) struct Held {
    /// Whether each message is pinned by a person.
    pinned: Vec<bool>,
    /// Whether each message is pinned, or a result of a tool in `never_clear`.
    protected: Vec<bool>,
    /// Messages that stay where they are inside a fold: whole steps with something protected in them, in order.
    pub kept: Vec<usize>,
    /// Tokens of the pinned texts that stand in front of a brief.
    pub pins: Tokens,
}

/// Places in the history that rules look at.
pub(super) struct Marks {
    /// The message with what a person asked last; see [`step::request`].
    pub request: Option<usize>,
    /// One past the user messages that the session begins with.
    pub opening: usize,
    /// Whether the opening is held as the system prompt is: it carries the client's rules, and leaves room for work.
    pub holds_opening: bool,
    /// Messages of the body that were forwarded before.
    pub forwarded: usize,
}

/// What is worked out of the texts where a rule asks for it.
struct Seen {
    /// Whether each message holds words of a person.
    persons: Vec<OnceCell<bool>>,
    /// Whether each message is a user message with tool output or nothing but reminders.
    asides: Vec<OnceCell<bool>>,
    /// Which texts of files were replaced since.
    superseded: OnceCell<Superseded>,
}

/// What was decided so far.
#[derive(Default)]
pub(super) struct Decided {
    pub actions: Vec<Action>,
    pub because: Vec<Because>,
    pub waits: Vec<Waiting>,
    /// Whether something of a person's or of the newest step had to go.
    pub hard: bool,
}

/// Working state of one planning.
pub(super) struct Sheet<'a> {
    pub conversation: &'a Conversation,
    pub facts: &'a Facts,
    pub policy: &'a Policy,
    pub lines: Lines,
    pub units: Vec<Unit>,
    pub held: Held,
    pub marks: Marks,
    pub sizes: Sizes,
    /// The rule that last touched the text of a message.
    pub touched: Vec<Option<Rule>>,
    pub fold: Option<Fold>,
    pub decided: Decided,
    seen: Seen,
}

impl<'a> Sheet<'a> {
    pub(super) fn new(conversation: &'a Conversation, facts: &'a Facts, policy: &'a Policy) -> Sheet<'a> {
        let mut sheet = Sheet::laid_out(conversation, facts, policy);
        sheet.hold_opening();
        sheet.protect();
        sheet
    }

    /// What stands there, before anything is known of what may be touched.
    fn laid_out(conversation: &'a Conversation, facts: &'a Facts, policy: &'a Policy) -> Sheet<'a> {
        let request = conversation.body.iter().rposition(step::is_persons);
        let request = request.or_else(|| step::last_user(&conversation.body));
        let messages = conversation.body.len();
        let mut sheet = Sheet {
            conversation,
            facts,
            policy,
            lines: Lines::of(facts, policy),
            units: step::units(&conversation.body),
            held: Held {
                pinned: vec![false; messages],
                protected: vec![false; messages],
                kept: Vec::new(),
                pins: facts.pins.tokens,
            },
            marks: Marks {
                request,
                opening: step::opening(&conversation.body),
                holds_opening: false,
                forwarded: facts.forwarded.min(messages),
            },
            sizes: Sizes {
                whole: facts.costs.iter().map(super::facts::Cost::total).collect(),
                calls: facts.costs.iter().map(|c| c.calls.clone()).collect(),
                extra: vec![0; messages],
                behind: vec![0; messages],
            },
            touched: vec![None; messages],
            fold: None,
            decided: Decided::default(),
            seen: Seen {
                persons: vec![OnceCell::new(); messages],
                asides: vec![OnceCell::new(); messages],
                superseded: OnceCell::new(),
            },
        };
        for (at, tokens) in rewrite::extra(&conversation.body, &policy.template) {
            sheet.sizes.whole[at] += tokens;
            sheet.sizes.extra[at] += tokens;
        }
        for (edit, tokens) in facts.view.edits.iter().zip(&facts.edit_costs) {
            match edit {
                Edit::Text { at, rule, .. } if *at < sheet.sizes.whole.len() => {
                    sheet.set_text(*at, *tokens);
                    sheet.touched[*at] = Some(*rule);
                }
                Edit::Arguments { at, call, .. } if sheet.sizes.calls.get(*at).is_some_and(|c| *call < c.len()) => {
                    sheet.set_call(*at, *call, *tokens);
                }
                Edit::Recalled { at, .. } if *at < sheet.sizes.whole.len() => {
                    sheet.sizes.behind[*at] = *tokens;
                    sheet.sizes.whole[*at] += tokens;
                }
                Edit::Fold { from, to, keep, .. } if from <= to && *to <= sheet.sizes.whole.len() => {
                    sheet.fold = Some(Fold { from: *from, to: *to, keep: keep.clone(), brief: *tokens });
                }
                _ => {}
            }
        }
        sheet
    }

    /// Works out what is protected, and which steps stay inside a fold for it: those with a pin always; what the client is likely to
    /// replace, and those with a result that is never cleared, the newest first, while there is room for them.
    fn protect(&mut self) {
        for at in &self.facts.pins.messages {
            if let (Some(pinned), Some(protected)) = (self.held.pinned.get_mut(*at), self.held.protected.get_mut(*at)) {
                (*pinned, *protected) = (true, true);
            }
        }
        if !self.policy.results.never_clear.is_empty() {
            (0..self.held.protected.len()).for_each(|at| self.held.protected[at] |= self.is_never_cleared(at));
        }
        let mut room = self.facts.window / PROTECTED;
        let mut kept = Vec::new();
        let unread = self.facts.view.unread();
        let is_changing = |at: usize| !self.folded(at) && unread.binary_search(&at).is_ok();
        let changing: Vec<bool> = (0..self.held.pinned.len()).map(is_changing).collect();
        for (wanted, always) in [(&self.held.pinned, true), (&changing, false), (&self.held.protected, false)] {
            for unit in self.units.iter().rev().filter(|unit| wanted[unit.start..unit.end].contains(&true)) {
                let tokens = (unit.start..unit.end).map(|at| self.sizes.whole[at]).fold(0, Tokens::saturating_add);
                if !kept.contains(&unit.start) && (always || tokens <= room) {
                    room = room.saturating_sub(tokens);
                    kept.extend(unit.start..unit.end);
                }
            }
        }
        kept.sort_unstable();
        self.held.kept = kept;
    }

    /// Whether the policy forbids touching a result, by the name of its tool.
    fn is_never_cleared(&self, at: usize) -> bool {
        let body = &self.conversation.body;
        let listed = |name: &str| self.policy.results.never_clear.iter().any(|n| n == name);
        let called = || step::call_of(body, at).map(|(m, c)| body[m].calls[c].name.as_str());
        body[at].role == Role::Tool && (body[at].name.as_deref().is_some_and(listed) || called().is_some_and(listed))
    }

    /// Gives up what is protected, where nothing else is left: false where there is nothing to give up.
    pub(super) fn let_go(&mut self) -> bool {
        let had = self.holds_pins();
        self.held.pinned.fill(false);
        self.held.protected.fill(false);
        self.held.kept.clear();
        self.held.pins = 0;
        had
    }

    /// Whether anything is pinned or protected.
    pub(super) fn holds_pins(&self) -> bool {
        self.held.pins > 0 || self.held.protected.contains(&true)
    }

    /// Decides whether the opening is held, and draws the lines above it then: they are shares of what can be worked with.
    fn hold_opening(&mut self) {
        let opening = self.span(0..self.marks.opening);
        let room = self.lines.limit.saturating_sub(self.facts.head());
        let has_rules = self.conversation.body[..self.marks.opening].iter().any(person::has_context);
        self.marks.holds_opening = has_rules && opening <= room / HELD * (HELD - 1);
        if self.marks.holds_opening {
            self.lines = Lines::above(self.facts, self.policy, self.facts.head() + opening);
        }
    }

    /// Tokens of the brief in force and of what [`rewrite`] puts around it.
    fn brief(&self) -> Tokens {
        // A fold without a brief leaves nothing.
        let fold = self.fold.as_ref().filter(|fold| fold.brief > 0);
        fold.map_or(0, |f| f.brief + self.fold_frame(f.to, &f.keep))
    }

    /// Tokens that [`rewrite`] adds to a brief for a fold up to `to`.
    pub(super) fn fold_frame(&self, to: usize, keep: &[usize]) -> Tokens {
        let next = keep.first().copied().or((to < self.sizes.whole.len()).then_some(to));
        let user_next = next.is_some_and(|at| self.conversation.body[at].role == Role::User);
        rewrite::fold_frame(user_next, &self.policy.template)
    }

    /// Whether a message is folded away.
    pub(super) fn folded(&self, at: usize) -> bool {
        self.fold.as_ref().is_some_and(|f| (f.from..f.to).contains(&at) && !f.keep.contains(&at))
    }

    /// Tokens of a run of messages in the view.
    pub(super) fn span(&self, range: std::ops::Range<usize>) -> Tokens {
        range.filter(|i| !self.folded(*i)).map(|i| self.sizes.whole[i]).sum()
    }

    /// Prompt tokens of the view so far, with those that the next step is expected to add.
    pub(super) fn total(&self) -> Tokens {
        self.prompt() + self.facts.foreseen
    }

    /// Prompt tokens of the view so far.
    pub(super) fn prompt(&self) -> Tokens {
        self.facts.head() + self.span(0..self.sizes.whole.len()) + self.brief()
    }

    /// The view's tokens by region.
    pub(super) fn regions(&self) -> Regions {
        let media: Tokens = (0..self.sizes.whole.len())
            .filter(|i| !self.folded(*i) && self.touched[*i].is_none())
            .map(|i| self.facts.costs[i].media)
            .sum();
        Regions {
            system: self.facts.system,
            tools: self.facts.tools,
            brief: self.brief(),
            history: self.span(0..self.sizes.whole.len()).saturating_sub(media),
            media,
            output_reserved: self.facts.output_reserved,
        }
    }

    /// Whether a message is tool output: a tool result, a system message further down, or a user message after the
    /// opening that a client put output or a reminder into.
    pub(super) fn is_output(&self, at: usize) -> bool {
        match self.conversation.body[at].role {
            Role::Tool | Role::System => true,
            Role::User => at >= self.marks.opening && Some(at) != self.marks.request && self.is_aside(at),
            _ => false,
        }
    }

    fn is_aside(&self, at: usize) -> bool {
        *self.seen.asides[at].get_or_init(|| person::is_aside(&self.conversation.body[at]))
    }

    /// Whether a message holds words that a person wrote.
    pub(super) fn is_persons(&self, at: usize) -> bool {
        *self.seen.persons[at].get_or_init(|| step::is_persons(&self.conversation.body[at]))
    }

    /// Whether a message stands where nothing may be taken: the request, what is pinned, or the opening while it is held.
    pub(super) fn is_held(&self, at: usize) -> bool {
        Some(at) == self.marks.request || self.held.pinned[at] || self.marks.holds_opening && at < self.marks.opening
    }

    /// Tokens that folding goes down to: the policy's line, and at the wall no deeper than to a third of the window left
    /// empty, since what is kept saves the model from reading it again. Where folds come at the line, there is room below it.
    pub(super) fn fold_target(&self) -> Tokens {
        if self.total() > self.lines.limit { self.fold_depth() } else { self.lines.summarize_to }
    }

    /// How deep a rewrite at the wall goes, in tokens.
    pub(super) fn fold_depth(&self) -> Tokens {
        let lines = &self.lines;
        let sparse = budget::sparse(lines.limit, self.facts.window);
        let least = if self.policy.fold_at != FoldAt::Wall { sparse.min(lines.half_way()) } else { sparse };
        lines.summarize_to.max(least)
    }

    /// Records why a rule does not act though its line was passed.
    pub(super) fn wait(&mut self, rule: &'static str, line: Tokens, why: impl Into<String>) {
        self.decided.waits.retain(|waiting| waiting.rule != rule);
        self.decided.waits.push(Waiting { rule, line, why: why.into() });
    }

    /// Tokens that a rewrite leaves free for the next steps where system prompt and tools take most of the window: as many
    /// as [`STEPS_AHEAD`] steps like the last ones need, and at most half of the room, or three quarters where they take more
    /// than half of the window: a brief has the rest. A little at a time would be done again every turn there, and each time
    /// the person waits for it.
    pub(super) fn ahead(&self) -> Tokens {
        if !self.lines.tight {
            return 0;
        }
        let opening = if self.marks.holds_opening { self.span(0..self.marks.opening) } else { 0 };
        let head = self.facts.head() + opening;
        let room = self.lines.limit.saturating_sub(head);
        let most = if self.lines.crowded { room / 4 * 3 } else { room / 2 };
        self.next_steps().min(most)
    }

    /// Tokens that the next [`STEPS_AHEAD`] steps will take, if they are like the last ones. What clients send as a user message
    /// of tool output belongs to the step before it.
    pub(super) fn next_steps(&self) -> Tokens {
        let came = |at: usize| self.facts.costs[at].total().min(self.lines.evict_over);
        let (mut sizes, mut after) = (Vec::new(), 0);
        for unit in self.units.iter().rev() {
            let tokens = (unit.start..unit.end).map(came).sum::<Tokens>();
            match unit.role {
                Role::Assistant => sizes.push(tokens + std::mem::take(&mut after)),
                _ if self.is_output(unit.start) => after += tokens,
                _ => after = 0,
            }
            if sizes.len() == 2 * STEPS_AHEAD as usize {
                break;
            }
        }
        sizes.iter().sum::<Tokens>() * STEPS_AHEAD / sizes.len().max(1) as Tokens
    }

    /// Which texts of files were replaced since.
    pub(super) fn superseded(&self) -> &Superseded {
        self.seen.superseded.get_or_init(|| Superseded::of(&self.conversation.body))
    }

    /// First message of what the next reply answers: the newest step or what a person said last, with the reminders and
    /// the tool output that stand after it as messages of their own.
    pub(super) fn newest(&self) -> usize {
        let is_after = |unit: &&Unit| unit.end - unit.start == 1 && self.is_output(unit.start);
        let after = self.units.iter().rev().take_while(is_after).count();
        let newest = self.units.len().saturating_sub(after + 1);
        self.units.get(newest).map_or(0, |unit| unit.start)
    }

    /// Whether a message may not be touched: it is pinned, or the policy never clears the results of its tool.
    pub(super) fn is_protected(&self, at: usize) -> bool {
        self.held.protected[at]
    }

    /// How many of the newest messages the policy keeps.
    pub(super) fn keep_recent(&self) -> usize {
        let kept = self.policy.keep_recent.messages(self.facts.window);
        // Of a step to come, a reply and what answers it will be among them.
        if self.facts.foreseen > 0 { kept.saturating_sub(2).max(1) } else { kept }
    }

    /// First message of the newest `messages` messages, moved back to the border of a unit; at least the newest step, for
    /// what nobody has seen yet is no history.
    pub(super) fn recent(&self, messages: usize) -> usize {
        let from = self.sizes.whole.len().saturating_sub(messages.max(1));
        self.units.iter().find(|u| u.end > from).map_or(0, |u| u.start).min(self.newest())
    }

    /// Tokens that the server must evaluate again if the view changes from message `at` on: what it may hold in its
    /// cache behind that place, as it will stand in the new view.
    pub(super) fn evaluated_again(&self, at: usize) -> Tokens {
        self.span(at.min(self.marks.forwarded)..self.marks.forwarded)
    }

    /// Tokens of the text of a message, without its calls.
    pub(super) fn text(&self, at: usize) -> Tokens {
        self.sizes.whole[at]
            - self.sizes.extra[at]
            - self.sizes.behind[at]
            - self.sizes.calls[at].iter().sum::<Tokens>()
    }

    pub(super) fn set_text(&mut self, at: usize, tokens: Tokens) {
        self.sizes.whole[at] =
            tokens + self.sizes.extra[at] + self.sizes.behind[at] + self.sizes.calls[at].iter().sum::<Tokens>();
    }

    /// Sets what the arguments of a call cost.
    pub(super) fn set_call(&mut self, at: usize, call: usize, tokens: Tokens) {
        self.sizes.whole[at] = self.sizes.whole[at] - self.sizes.calls[at][call] + tokens;
        self.sizes.calls[at][call] = tokens;
    }

    /// The first message that this plan changes so far; the length of the body when it changes none.
    pub(super) fn first_change(&self) -> usize {
        self.decided.actions.iter().map(Action::first).min().unwrap_or(self.sizes.whole.len())
    }

    /// Takes back that the text of a message is replaced.
    pub(super) fn take_back(&mut self, at: usize) {
        self.set_text(at, self.facts.costs[at].text + self.facts.costs[at].media);
        self.touched[at] = None;
    }

    /// Takes back what was recalled behind a message.
    pub(super) fn forget(&mut self, at: usize) {
        self.sizes.whole[at] -= std::mem::take(&mut self.sizes.behind[at]);
        self.decided.actions.push(Action::Forget { at });
    }

    /// Records that the text of a message is replaced by something of `tokens` tokens. What was recalled behind it goes with it.
    pub(super) fn replace(&mut self, at: usize, rule: Rule, tokens: Tokens, action: Action) {
        self.sizes.behind[at] = 0;
        self.set_text(at, tokens);
        // A text that no rule has touched is in no action: a long history has very many of them.
        if self.touched[at].replace(rule).is_some() {
            self.decided.actions.retain(|a| !a.replaces_text_of(at));
        }
        self.decided.actions.push(action);
    }
}
