//! A plan until it fits. What a plan makes is counted, and planned again from the same start where it came out longer than
//! planned; less is kept for the reply before the request is refused; and no request is refused for a tool of ours.
//!
//! Pure. [`Fitting`] says what to make next and is told what it came to; [`fit`] drives it where counting needs no waiting.

use super::{Action, Facts, Plan, Policy, Regions, Strategy, gives_way, least_reserve, plan};
use crate::conversation::{Conversation, Tokens};

/// How often a plan is made again because a count was higher than estimated.
const PLANS: usize = 4;

/// The share of what fits that may stay unused where what is asked now was cut (one part of so many).
const UNUSED: Tokens = 16;

/// The tools of ours that a request may have: what they take, and which of them are there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ours {
    /// Tokens of the tool that reads back what left the prompt.
    pub recall: Tokens,
    /// Whether that tool is there.
    pub offered: bool,
    /// Whether it comes with the first rewrite, where it is not there yet.
    pub may_come: bool,
    /// Tokens of those that are there from the first prompt on; 0 where none is.
    pub at_head: Tokens,
}

impl Ours {
    /// Tokens that those which are there take.
    pub fn tokens(&self) -> Tokens {
        if self.offered { self.recall.saturating_add(self.at_head) } else { self.at_head }
    }

    fn any(&self) -> bool {
        self.offered || self.at_head > 0
    }
}

/// A view that was made and counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made<M> {
    /// The plan that it was made by.
    pub plan: Plan,
    /// Its size.
    pub tokens: Tokens,
    /// What the caller made of the plan.
    pub what: M,
}

/// Nothing fits: the smallest view that was found, and what it had to fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CannotFit {
    /// By region.
    pub after: Regions,
    /// Prompt tokens that fit.
    pub limit: Tokens,
}

/// One request on the way to a prompt that fits.
pub struct Fitting<'a, M> {
    conversation: &'a Conversation,
    policy: &'a Policy,
    /// Tokens that are configured to be kept for a reply.
    reserve: Tokens,
    /// What it is planned by at first, tools of ours and all.
    start: Facts,
    /// What it is planned by now.
    facts: Facts,
    ours: Ours,
    so_far: SoFar,
    shortest: Option<Made<M>>,
    refused: Option<CannotFit>,
    /// Whether whatever is made is taken.
    takes_all: bool,
    /// The margin where the last view was too long by the history's share alone: for where the usual one leaves nothing to plan.
    milder: Option<Tokens>,
    doubt: Doubt<M>,
    /// One that fits, while another one is made that cuts less of what is asked now.
    fits: Option<Made<M>>,
    /// The planned size of a view that was counted as too long, less the tokens that were too many.
    too_long: Option<Tokens>,
}

/// How far it came.
#[derive(Default)]
struct SoFar {
    begun: bool,
    /// The first plan, where it was looked at before it is made.
    first: Option<Plan>,
    /// Plans that were made, and those that were counted.
    plans: usize,
    counted: usize,
    /// Whether the smallest view was planned, though it does not fit by its estimate.
    at_least: bool,
}

/// The tokens by which a count may be too high.
struct Doubt<M> {
    /// Tokens of the counts that may not be there.
    tokens: Tokens,
    /// Whether the sizes are estimates, not counts.
    estimates: bool,
    /// The shortest view that fits the window without them: for where nothing fits with them.
    fits_without: Option<Made<M>>,
}

impl<'a, M> Fitting<'a, M> {
    /// `facts`: with the tools of ours that are there. `reserve`: tokens that are configured to be kept for a reply.
    pub fn new(
        conversation: &'a Conversation,
        facts: Facts,
        policy: &'a Policy,
        reserve: Tokens,
        ours: Ours,
    ) -> Fitting<'a, M> {
        Fitting {
            conversation,
            policy,
            reserve,
            start: facts.clone(),
            facts,
            ours,
            so_far: SoFar::default(),
            shortest: None,
            refused: None,
            takes_all: false,
            milder: None,
            doubt: Doubt { tokens: 0, estimates: true, fits_without: None },
            fits: None,
            too_long: None,
        }
    }

    /// Tells how many tokens of the next sizes may not be there, and whether these are estimates. No request is refused for those
    /// tokens: its server knows.
    pub fn doubts(&mut self, tokens: Tokens, estimates: bool) {
        (self.doubt.tokens, self.doubt.estimates) = (tokens, estimates);
    }

    /// What the last plan was made by.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// How often it was planned: each is work in proportion to the history.
    pub fn plans(&self) -> usize {
        self.so_far.plans
    }

    /// The tools of ours that the last plan goes with.
    pub fn ours(&self) -> Ours {
        self.ours
    }

    /// Prompt tokens that fit. What is planned with a margin need not keep it.
    pub fn limit(&self) -> Tokens {
        let Facts { window, output_reserved, .. } = self.facts;
        window.saturating_sub(output_reserved).saturating_sub(self.start.slack)
    }

    /// The plan that [`Fitting::next_plan`] will return, before any was asked for.
    pub fn first_plan(&mut self) -> Option<&Plan> {
        self.so_far.first = self.next_plan();
        self.so_far.first.as_ref()
    }

    /// The plan to make next; `None` where there is none left: then [`Fitting::end`] tells how it ended.
    pub fn next_plan(&mut self) -> Option<Plan> {
        if let Some(first) = self.so_far.first.take() {
            return Some(first);
        }
        if !std::mem::replace(&mut self.so_far.begun, true)
            && let Some(bare) = self.stays_bare()
        {
            return Some(bare);
        }
        loop {
            let mut least = None;
            if self.so_far.counted < PLANS {
                let plan = self.giving_way();
                if self.ours.may_come && !self.ours.offered && !plan.actions.is_empty() {
                    // Something is about to leave the prompt for the first time: now the model needs a way back to it.
                    self.ours.offered = true;
                    self.start.tools = self.start.tools.saturating_add(self.ours.recall);
                    // Where less had to be kept for the reply without the tool, no more can be with it.
                    let Facts { slack, output_reserved, .. } = self.facts;
                    self.facts = Facts { slack, output_reserved, ..self.start.clone() };
                    continue;
                }
                if plan.fits {
                    return Some(plan);
                }
                if let Some(slack) = self.milder.take() {
                    self.facts.slack = slack;
                    continue;
                }
                self.refused.get_or_insert(CannotFit { after: plan.after, limit: plan.lines.limit });
                least = Some(plan);
            }
            if self.shortest.is_some() {
                return None;
            }
            if !self.ours.any() {
                return self.smallest(least?);
            }
            self.without_ours();
        }
    }

    /// No request is refused for an estimate alone: the smallest view that there is gets made and counted, once. No model is asked
    /// for a part of it.
    fn smallest(&mut self, mut plan: Plan) -> Option<Plan> {
        let is_too_long = plan.after.prompt() > plan.lines.limit;
        if !is_too_long || plan.actions.is_empty() || std::mem::replace(&mut self.so_far.at_least, true) {
            return None;
        }
        for action in &mut plan.actions {
            if let Action::Fold { ask_model, .. } = action {
                *ask_model = false;
            }
        }
        Some(plan)
    }

    /// The plan of a view that had no room for the tool that reads things back: it goes without it while it stays as it is.
    fn stays_bare(&mut self) -> Option<Plan> {
        if !self.ours.offered || !self.facts.view.bare {
            return None;
        }
        let (facts, ours) = (self.facts.clone(), self.ours);
        self.without_ours();
        let plan = self.giving_way();
        if plan.fits && plan.actions.is_empty() {
            return Some(plan);
        }
        (self.facts, self.ours, self.start) = (facts.clone(), ours, facts);
        None
    }

    fn without_ours(&mut self) {
        self.start.tools = self.start.tools.saturating_sub(self.ours.tokens());
        self.ours = Ours { offered: false, may_come: false, at_head: 0, ..self.ours };
        self.facts = self.start.clone();
        (self.so_far.counted, self.refused, self.milder) = (0, None, None);
        // It goes with those tools.
        self.doubt.fits_without = None;
    }

    /// Plans, with less kept for the reply where nothing else gives way.
    fn giving_way(&mut self) -> Plan {
        loop {
            self.so_far.plans += 1;
            let plan = plan(self.conversation, &self.facts, self.policy);
            if !gives_way(&mut self.facts, &plan, self.reserve) {
                return plan;
            }
        }
    }

    /// Tells what the last plan came to. Returns it where it fits; else the next plan aims lower.
    pub fn made(&mut self, plan: Plan, tokens: Tokens, what: M) -> Option<Made<M>> {
        let limit = self.limit();
        let made = Made { plan, tokens, what };
        if let Some(shorter) = self.fits.take() {
            let is_better = made.tokens <= limit && made.tokens > shorter.tokens;
            return Some(if is_better { made } else { shorter });
        }
        if tokens <= limit || self.takes_all {
            let Some(fuller) = self.fuller(&made, limit) else { return Some(made) };
            (self.so_far.first, self.fits) = (Some(fuller), Some(made));
            return None;
        }
        let facts = &mut self.facts;
        self.so_far.counted += 1;
        // What a refusal tells is the smallest view, against what the first one had to fit.
        let told = self.refused.filter(|so_far| so_far.after.prompt() <= tokens);
        self.refused = Some(told.unwrap_or(CannotFit { after: made.plan.after.of_prompt(tokens), limit }));
        // Before a request is refused, as little as can be is kept for its reply.
        let most = facts.window.saturating_sub(least_reserve(facts.window)).saturating_sub(self.start.slack);
        // It is longer than it may be by so much: the next plan comes to less than this one by that, and a little more.
        let over = tokens.saturating_sub(limit);
        self.too_long = Some(made.plan.after.prompt().saturating_sub(over)).into_iter().chain(self.too_long).min();
        let aim = made.plan.after.prompt().saturating_sub(over + over / 8 + 8);
        let least = facts.slack.saturating_add(8);
        // Or the history was estimated too low, all of it alike: then as much less of it fits as it came out longer.
        let head = facts.head();
        let [room, came, planned] =
            [limit, tokens, made.plan.after.prompt()].map(|all| u64::from(all.saturating_sub(head)));
        let share = head.saturating_add(u32::try_from(planned * room / came.max(1)).unwrap_or(Tokens::MAX));
        let left = facts.window.saturating_sub(facts.output_reserved);
        facts.slack = left.saturating_sub(aim).max(least);
        self.milder = Some(left.saturating_sub(share - share / 20).max(least)).filter(|milder| *milder < facts.slack);
        if tokens <= most && self.shortest.as_ref().is_none_or(|other| tokens < other.tokens) {
            self.shortest = Some(made);
        } else if tokens.saturating_sub(self.doubt.tokens) <= most
            && self.doubt.fits_without.as_ref().is_none_or(|other| tokens < other.tokens)
        {
            self.doubt.fits_without = Some(made);
        }
        None
    }

    /// A plan that cuts less of what is asked now than this one, which left much of the window unused: what is cut for an estimate
    /// that came out too high is missing in the answer.
    fn fuller(&mut self, made: &Made<M>, limit: Tokens) -> Option<Plan> {
        let newest = self.conversation.body.len().checked_sub(1)?;
        let cuts = made.plan.actions.iter().any(|action| matches!(action, Action::Cut { at, .. } if *at == newest));
        let unused = limit.saturating_sub(made.tokens);
        if !cuts || self.doubt.estimates || self.takes_all || unused <= limit / UNUSED {
            return None;
        }
        let planned = made.plan.after.prompt();
        let more = u64::from(unused - unused / 8) * u64::from(planned) / u64::from(made.tokens.max(1));
        let aim = planned.saturating_add(u32::try_from(more).unwrap_or(Tokens::MAX));
        // One token more than fits is too much: what is cut at the ends of lines and words grows in steps.
        let aim = self.too_long.map_or(aim, |too_long| aim.min(too_long.saturating_sub(2)));
        let facts = self.facts.clone();
        self.facts.slack = facts.window.saturating_sub(facts.output_reserved).saturating_sub(aim);
        let plan = self.giving_way();
        if plan.fits && plan.after.prompt() > planned {
            return Some(plan);
        }
        self.facts = facts;
        None
    }

    /// How it ended, once no plan is left.
    ///
    /// # Errors
    /// When nothing fits.
    pub fn end(self) -> Result<Made<M>, CannotFit> {
        let nothing = CannotFit { after: Regions::default(), limit: 0 };
        self.shortest.or(self.doubt.fits_without).ok_or(self.refused.unwrap_or(nothing))
    }

    /// A plan that changes nothing and is taken whatever it comes to: for a request that could not be planned.
    pub fn unchanged(&mut self) -> Plan {
        self.takes_all = true;
        let facts = Facts { window: Tokens::MAX / 2, ..Facts::default() };
        plan(&Conversation::default(), &facts, &Policy { strategy: Strategy::Off, ..Policy::default() })
    }
}

/// Fits a request where counting needs no waiting. `make`: makes what a plan says and counts it.
///
/// # Errors
/// When nothing fits.
pub fn fit<M>(
    mut fitting: Fitting<'_, M>,
    make: &mut dyn FnMut(&Plan, Ours) -> (Tokens, M),
) -> Result<Made<M>, CannotFit> {
    while let Some(plan) = fitting.next_plan() {
        let (tokens, what) = make(&plan, fitting.ours());
        if let Some(made) = fitting.made(plan, tokens, what) {
            return Ok(made);
        }
    }
    fitting.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Cost;
    use crate::wire::openai_chat;

    /// Tools that are estimated at less than two thirds of what they take: what is planned by that comes out much too long. As much as
    /// the estimate was wrong by is not to be had from the history, but what is too much for the window is.
    #[test]
    fn a_head_that_was_estimated_too_low_is_no_reason_to_refuse() {
        let said = |at: usize| {
            let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
            openai_chat::message(format!(r#"{{"role":"{role}","content":"What is said as number {at}."}}"#).into())
                .unwrap()
        };
        let body: Vec<_> = (0..41).map(said).collect();
        let costs = vec![Cost { text: 150, ..Cost::default() }; body.len()];
        let conversation = Conversation { body, ..Conversation::default() };
        for (window, tools, real) in [(8_192, 4_100, 6_600), (12_288, 6_200, 10_000), (24_576, 12_400, 20_100)] {
            let facts =
                Facts { window, output_reserved: 512, slack: 16, tools, costs: costs.clone(), ..Facts::default() };
            let policy = Policy::default();
            let fitting = Fitting::new(&conversation, facts, &policy, 512, Ours::default());
            let mut counted = Vec::new();
            let made = fit(fitting, &mut |plan, _| {
                let history = plan.after.prompt() - tools;
                let tokens = real + history + history / 2;
                counted.push(tokens);
                (tokens, ())
            });
            let made = made.unwrap_or_else(|cannot| panic!("{window}: {cannot:?} after {counted:?}"));
            assert!(made.tokens + 512 + 16 <= window, "{window}: {} of {counted:?}", made.tokens);
        }
    }

    /// Text of which each token was taken for half: in a small window there is room for less of it, and not for none.
    #[test]
    fn a_text_that_was_estimated_too_low_is_cut_further() {
        let text = "word7 ".repeat(400);
        let message = serde_json::json!({"role": "user", "content": text}).to_string();
        let body = vec![openai_chat::message(message.into()).unwrap()];
        for (window, factor) in [(128, 2), (128, 3), (256, 3), (1_024, 2)] {
            let costs = vec![Cost { text: 2_000, ..Cost::default() }];
            let conversation = Conversation { body: body.clone(), ..Conversation::default() };
            let facts = Facts { window, output_reserved: 16, slack: 4, tools: 25, costs, ..Facts::default() };
            let policy = Policy::default();
            let fitting = Fitting::new(&conversation, facts, &policy, 16, Ours::default());
            let mut counted = Vec::new();
            let made = fit(fitting, &mut |plan, _| {
                counted.push(25 + (plan.after.prompt() - 25) * factor);
                (*counted.last().unwrap(), ())
            });
            let made = made.unwrap_or_else(|cannot| panic!("{window}, {factor}: {cannot:?} after {counted:?}"));
            assert!(made.tokens + 16 <= window && made.tokens * 2 > window - 16, "{window}, {factor}: {counted:?}");
        }
    }

    /// Text of which each token was taken for two: less of it is cut once that is seen, and not for an estimate alone.
    #[test]
    fn no_more_of_what_is_asked_is_cut_than_the_window_needs() {
        let message = serde_json::json!({"role": "user", "content": "word7 ".repeat(400)}).to_string();
        let conversation =
            Conversation { body: vec![openai_chat::message(message.into()).unwrap()], ..Conversation::default() };
        let costs = vec![Cost { text: 2_000, ..Cost::default() }];
        let policy = Policy::default();
        for (window, system) in [(128, 0), (128, 25), (1_024, 25)] {
            let facts =
                Facts { window, output_reserved: 16, slack: 16, system, costs: costs.clone(), ..Facts::default() };
            let fits = |estimates, real: &dyn Fn(Tokens) -> Tokens| {
                let mut fitting = Fitting::new(&conversation, facts.clone(), &policy, 16, Ours::default());
                fitting.doubts(0, estimates);
                let mut counted = Vec::new();
                let made = fit(fitting, &mut |plan, _| {
                    counted.push(system + real(plan.after.prompt() - system));
                    (*counted.last().unwrap(), ())
                });
                (made.expect("it fits").tokens, counted)
            };
            let limit = window - 32;
            let (tokens, counted) = fits(false, &|history| history / 2);
            assert!(tokens <= limit && tokens > counted[0], "{tokens} of {limit} after {counted:?}");
            assert_eq!(counted.len(), 2);
            let (tokens, counted) = fits(true, &|history| history / 2);
            assert_eq!((tokens, counted.len()), (counted[0], 1), "an estimate decides nothing");
            let (tokens, counted) = fits(false, &|history| history);
            assert_eq!((tokens, counted.len()), (counted[0], 1), "there is nothing to gain");
            // What grows faster than expected is not taken.
            let (tokens, counted) =
                fits(false, &|history| if history < limit - system + 1 { history / 2 } else { window });
            assert_eq!((tokens, counted.len()), (counted[0], 2), "{counted:?}");
        }
    }

    /// A count may be too high by what nobody knows of another rendering: a request that fits without that is not refused.
    #[test]
    fn what_a_count_may_be_too_high_by_is_no_reason_to_refuse() {
        let message = serde_json::json!({"role": "user", "content": "word7 ".repeat(400)}).to_string();
        let conversation =
            Conversation { body: vec![openai_chat::message(message.into()).unwrap()], ..Conversation::default() };
        let costs = vec![Cost { text: 2_000, ..Cost::default() }];
        let facts = Facts { window: 128, output_reserved: 8, slack: 16, system: 25, costs, ..Facts::default() };
        let policy = Policy::default();
        let fits = |doubt| {
            let mut fitting = Fitting::new(&conversation, facts.clone(), &policy, 8, Ours::default());
            fitting.doubts(doubt, true);
            fit(fitting, &mut |plan, _| (plan.after.prompt().max(60) + 70, ()))
        };
        let cannot = fits(0).expect_err("it is longer than the window");
        assert!(cannot.after.prompt() > cannot.limit, "{cannot:?}");
        assert_eq!(fits(70).expect("it may fit").tokens, 130);
        fits(20).expect_err("it is too long, whatever is in doubt");
    }

    /// Where nothing fits by estimate, the smallest view is counted before the request is refused.
    #[test]
    fn the_smallest_view_is_counted_before_a_refusal() {
        let message = |role: &str, text: &str| {
            openai_chat::message(serde_json::json!({"role": role, "content": text}).to_string().into()).unwrap()
        };
        let body = vec![message("user", "Begin."), message("assistant", "Done."), message("user", "Go on.")];
        let costs = [40, 900, 40].map(|text| Cost { text, ..Cost::default() }).to_vec();
        let conversation = Conversation { body, ..Conversation::default() };
        let facts = Facts { window: 2_048, output_reserved: 256, slack: 16, tools: 2_000, costs, ..Facts::default() };
        let policy = Policy::default();
        let begun = || Fitting::new(&conversation, facts.clone(), &policy, 256, Ours::default());
        // The tools were estimated at twice what they take.
        let made = fit(begun(), &mut |plan, _| (plan.after.prompt() - 1_000, ())).expect("it fits as it is counted");
        assert!(made.plan.actions.iter().all(|a| !matches!(a, Action::Fold { ask_model: true, .. })));
        // What was counted and does not fit is refused with that.
        let cannot = fit(begun(), &mut |plan, _| (plan.after.prompt(), ())).expect_err("it does not fit");
        assert!(cannot.after.prompt() > cannot.limit, "{cannot:?}");
    }
}
