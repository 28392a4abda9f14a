//! Facts: what was measured about one request. Plain data, filled by `measure`, read by the rules.

use crate::conversation::edit::View;
use crate::conversation::{Conversation, Tokens};

/// What one message of the body costs, in tokens, as the client sent it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cost {
    /// Its text, reasoning that counts, and the template's words around it.
    pub text: Tokens,
    /// The arguments of each of its calls, names included.
    pub calls: Vec<Tokens>,
    /// Its images, audio and other media.
    pub media: Tokens,
}

impl Cost {
    /// The whole message.
    pub fn total(&self) -> Tokens {
        self.text + self.media + self.calls.iter().sum::<Tokens>()
    }
}

/// Everything the planner needs to know about the request at hand.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Tokens the server has loaded for this model.
    pub window: Tokens,
    /// Tokens kept for the reply.
    pub output_reserved: Tokens,
    /// Tokens left unused because a server refuses a prompt that fills the window exactly, and more where counts are
    /// estimates.
    pub slack: Tokens,
    /// Leading system messages.
    pub system: Tokens,
    /// Tool definitions.
    pub tools: Tokens,
    /// Each message of the body.
    pub costs: Vec<Cost>,
    /// Edits made already for a prefix of this body.
    pub view: View,
    /// Tokens that each edit of `view` put in place, in the same order: of a text edit, the whole message but for its
    /// calls; of an arguments edit, that call; of a fold, the brief alone.
    pub edit_costs: Vec<Tokens>,
    /// One past the last message that the model's part of the view's brief was made from; `None` where it has no such part.
    pub told: Option<usize>,
    /// Messages of the body that were forwarded before: the server may hold them in its prompt cache.
    pub forwarded: usize,
    /// Pins of people.
    pub pins: Pins,
    /// A person stopped the rewriting of this conversation: nothing changes, and what no longer fits is refused.
    pub paused: bool,
    /// How the tokens were counted.
    pub counting: Counting,
    /// Tokens that the next step is expected to add, where a plan is made ahead of it.
    pub foreseen: Tokens,
}

/// How the tokens of facts were counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counting {
    /// They are only estimated, and no reply has told yet how far off that is.
    pub guessed: bool,
    /// Tokens of these facts that an estimated token of a text is: more than one where a server refused what was estimated to fit.
    /// What is made to a size of these facts is measured by it.
    pub scale: f64,
}

impl Default for Counting {
    fn default() -> Counting {
        Counting { guessed: false, scale: 1.0 }
    }
}

impl Counting {
    /// Tokens of these facts for so many estimated ones.
    pub fn scaled(&self, estimated: Tokens) -> Tokens {
        (f64::from(estimated) * self.scale).ceil() as Tokens
    }
}

/// Pins of people, as far as the planner has to know them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    /// Pinned messages, by index: they are not cleared or cut, and their steps stay inside a fold.
    pub messages: Vec<usize>,
    /// Tokens of the pinned texts that stand in front of a brief.
    pub tokens: Tokens,
}

impl Facts {
    /// Tokens that come before the body and are never touched.
    pub fn head(&self) -> Tokens {
        self.system + self.tools
    }
}

/// Tokens by region, as they are reported to people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Regions {
    /// Leading system messages.
    pub system: Tokens,
    /// Tool definitions.
    pub tools: Tokens,
    /// The brief.
    pub brief: Tokens,
    /// All other messages.
    pub history: Tokens,
    /// Images, audio and other media.
    pub media: Tokens,
    /// Kept for the reply.
    pub output_reserved: Tokens,
}

impl Regions {
    /// Prompt tokens: all regions but the reply's.
    pub fn prompt(&self) -> Tokens {
        self.system + self.tools + self.brief + self.history + self.media
    }

    /// The same where the whole prompt has this many tokens, and what stood in it before keeps the count that it got then. They
    /// add up to the prompt, to the token.
    #[must_use]
    pub fn settled(self, kept: Kept, prompt: Tokens) -> Regions {
        let Regions { system, tools, brief, history, media, output_reserved } = self;
        let all =
            [kept.system.ok_or(system), kept.tools.ok_or(tools), kept.brief.ok_or(brief), Ok(media), Err(history)];
        let fixed: u64 = all.iter().filter_map(|part| part.ok()).map(u64::from).sum();
        // A count that was told once gives way only where the prompt does not even have so many tokens.
        let rest = u64::from(prompt).checked_sub(fixed);
        let share = |part: &Result<Tokens, Tokens>| match (part, rest) {
            (Ok(fixed), None) => u64::from(*fixed),
            (Err(estimated), Some(_)) => u64::from(*estimated),
            _ => 0,
        };
        let mut weights = all.map(|part| share(&part));
        if weights.iter().all(|weight| *weight == 0) {
            weights[4] = 1;
        }
        let spare = rest.map_or(prompt, |rest| Tokens::try_from(rest).unwrap_or(Tokens::MAX));
        let shares = shared_out(spare, &weights);
        let part = |at: usize| shares[at] + all[at].ok().filter(|_| rest.is_some()).unwrap_or(0);
        Regions { system: part(0), tools: part(1), brief: part(2), media: part(3), history: part(4), output_reserved }
    }

    /// The same where the whole prompt was counted to be this long: what is more or less goes to the history.
    #[must_use]
    pub fn of_prompt(self, tokens: Tokens) -> Regions {
        let others = self.system + self.tools + self.brief + self.media;
        Regions { history: tokens.saturating_sub(others), ..self }
    }
}

/// The counts that parts of a prompt got when they were first counted. `None`: a part that nobody has counted yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Leading system messages.
    pub system: Option<Tokens>,
    /// Tool definitions.
    pub tools: Option<Tokens>,
    /// The brief.
    pub brief: Option<Tokens>,
}

/// Shares out a sum by weights, to the last token.
pub fn shared_out(total: Tokens, weights: &[u64]) -> Vec<Tokens> {
    let whole: u64 = weights.iter().sum();
    let mut given = 0;
    let mut seen = 0;
    let last = weights.len();
    weights
        .iter()
        .enumerate()
        .map(|(i, weight)| {
            seen += weight;
            let upto = match whole {
                0 => u64::from(total) * (i as u64 + 1) / last as u64,
                whole => (u128::from(total) * u128::from(seen) / u128::from(whole)) as u64,
            };
            Tokens::try_from(upto - std::mem::replace(&mut given, upto)).unwrap_or(Tokens::MAX)
        })
        .collect()
}

/// A message is the same size or smaller than this many tokens: not worth an edit, since its placeholder costs as much.
pub(crate) const SMALL: Tokens = 120;

/// What the placeholder of a result of `original` tokens costs at most: its line (`apply::preview::placeholder` aims at
/// 40), and of a larger result the findings that stay.
pub(crate) fn placeholder(original: Tokens) -> Tokens {
    if original < 280 { 60 } else { 90 }
}

/// Asserts in debug builds that facts belong to a conversation.
pub(crate) fn belong(facts: &Facts, conversation: &Conversation) -> bool {
    facts.costs.len() == conversation.body.len() && facts.edit_costs.len() == facts.view.edits.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_add_up_and_what_was_counted_before_keeps_its_count() {
        let some = |n: Tokens| (n < 3_000).then_some(n);
        for n in 0..20_000_u32 {
            // Numbers without a pattern, the same in every run.
            let at = |k: u32| (n.wrapping_mul(2_654_435_761) ^ k.wrapping_mul(40_503)).rotate_left(k) % 4_000;
            let planned =
                Regions { system: at(1), tools: at(2), brief: at(3), history: at(4), media: 0, output_reserved: 9 };
            let kept = Kept { system: some(at(5)), tools: some(at(6)), brief: some(at(7)) };
            let prompt = at(8) * 4;
            let told = planned.settled(kept, prompt);
            assert_eq!((told.prompt(), told.output_reserved), (prompt, 9), "{planned:?} {kept:?}");
            let fixed = [kept.system, kept.tools, kept.brief].into_iter().flatten().sum::<Tokens>();
            if fixed <= prompt {
                let same = |kept: Option<Tokens>, told: Tokens| kept.is_none_or(|kept| kept == told);
                assert!(same(kept.system, told.system) && same(kept.tools, told.tools), "{kept:?} {told:?}");
                assert!(same(kept.brief, told.brief), "{kept:?} {told:?}");
            }
            let again = Kept { system: Some(told.system), tools: Some(told.tools), brief: Some(told.brief) };
            assert_eq!(told.settled(again, prompt), told, "settling twice changes nothing");
        }
    }
}
