//! What is believed of one model as a whole: hypotheses, each a vocabulary with a belief, weighed by how well they foretold
//! what its server counted (Bayesian model averaging: Hoeting et al., Statistical Science 14, 1999). What is given out is
//! a quantile of all of them together, so an estimate errs high only as long as they disagree.

use super::belief::{Belief, Weights, dot};
use super::kinds::Candidate;
use super::row::{FEATURES, Feature, Ground, Row};
use crate::conversation::Tokens;

/// An estimate may be more than [`LOW`] below the truth with this probability.
const RISK: f64 = 0.005;

/// Share of the truth by which an estimate may be low without being counted as low.
const LOW: f64 = 0.01;

/// Hypotheses of less weight than this are given up.
const UNLIKELY: f64 = 1e-6;

/// Vocabularies whose hypotheses together have less weight than this are given up: each costs a count of every text.
const UNLIKELY_GROUND: f64 = 1e-3;

/// Degrees of freedom of Student's distribution, by which surprises are weighed: its tails are long, so that one odd reply
/// does not decide alone.
const FREEDOM: f64 = 4.0;

/// A reply surprises a hypothesis from so many standard deviations on.
const SURPRISE: f64 = 3.0;

/// Odds of another vocabulary than the name's where no known template explains the replies: more often it is the template
/// that is not known.
const OPENED: f64 = 0.15;

/// The least that a part of a prompt costs, as a share of what was believed at first.
const LEAST: f64 = 0.1;

/// A server speaks of something else, of what it evaluated or of all slots, if what it reports is less than this share of the
/// beginning that it counted before.
const PLAUSIBLE: f64 = 0.5;

/// Tokens that the server may make of one near token, of one message or call, and add to a prompt of any length, at most.
const MOST_A_TOKEN: f64 = 5.0;
/// As above, of one message or call.
const MOST_A_PART: f64 = 64.0;
/// As above, whatever the length.
const PREAMBLE: f64 = 2048.0;

/// What a prompt holds, and what the server counted of its beginning.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// What is not part of the beginning that was counted, by each vocabulary that is in question; the likeliest first.
    pub(super) new: Vec<(Ground, Row)>,
    /// Tokens of that beginning.
    pub(super) counted: Tokens,
}

impl Sample {
    /// As the likeliest vocabulary has it.
    pub(super) fn first(&self) -> Row {
        self.new.first().map_or_else(Row::default, |(_, row)| *row)
    }

    fn of(&self, ground: Ground) -> Option<&Row> {
        self.new.iter().find(|(of, _)| *of == ground).map(|(_, row)| row)
    }
}

/// A hypothesis, and how likely it is.
#[derive(Debug, Clone)]
struct Hypothesis {
    ground: Ground,
    belief: Belief,
    weight: f64,
}

impl Hypothesis {
    fn new((ground, prior, weight): &Candidate) -> Hypothesis {
        Hypothesis { ground: *ground, belief: Belief::new(prior), weight: *weight }
    }
}

/// All that is believed of a model.
#[derive(Debug, Clone)]
pub(super) struct Mixture {
    hypotheses: Vec<Hypothesis>,
    /// The vocabularies in question, the likeliest first.
    grounds: Vec<Ground>,
    /// What the likeliest vocabulary's rows cost in the middle, and the least of it.
    middle: Weights,
    least: Weights,
    /// How sure the cost of words is: a standard deviation, as a share.
    unsure: f64,
    replies: u32,
    /// A reply surprised every hypothesis.
    surprised: bool,
    /// Other vocabularies than the name's were looked at.
    opened: bool,
}

impl Mixture {
    /// What is believed before any reply.
    pub(super) fn new(candidates: &[Candidate]) -> Mixture {
        let mut out = Mixture {
            hypotheses: candidates.iter().map(Hypothesis::new).collect(),
            grounds: Vec::new(),
            middle: [0.0; FEATURES],
            least: [0.0; FEATURES],
            unsure: 0.0,
            replies: 0,
            surprised: false,
            opened: false,
        };
        out.settle();
        out
    }

    /// Whether no known template explains the replies by the vocabulary that the name told of, and no other was looked at.
    pub(super) fn is_misled(&self) -> bool {
        let known: f64 = self.hypotheses.iter().filter(|h| h.belief.is_known()).map(|h| h.weight).sum();
        let only = self.grounds.len() == 1 && self.grounds[0] != Ground::Rough;
        only && !self.opened && self.replies > 0 && (self.surprised || known < 0.5)
    }

    /// Takes more into consideration, with odds of [`OPENED`] against all that is believed.
    pub(super) fn open(&mut self, candidates: &[Candidate]) {
        self.opened = true;
        self.hypotheses.extend(candidates.iter().map(|(ground, prior, weight)| {
            // The others add up to one.
            Hypothesis::new(&(*ground, prior, weight * OPENED))
        }));
        self.settle();
    }

    /// The vocabularies that texts are to be counted with, the likeliest first.
    pub(super) fn grounds(&self) -> &[Ground] {
        &self.grounds
    }

    /// Whether any reply was learnt from.
    pub(super) fn is_corrected(&self) -> bool {
        self.replies > 0
    }

    /// What a row of the likeliest vocabulary costs in the middle; never less than a part of what was believed at first, so
    /// that nothing seems free.
    pub(super) fn middle(&self, row: &Row) -> f64 {
        dot(&self.middle, row).max(self.least(row))
    }

    /// What a text costs, erring high. Previews and briefs ask for thousands of texts, so this looks at the weight of
    /// words alone for how sure it is.
    pub(super) fn text(&self, row: &Row) -> f64 {
        // The quantile of the normal distribution above which RISK lies.
        const QUANTILE: f64 = 2.576;
        self.middle(row) + QUANTILE * self.unsure * row.words()
    }

    /// The tokens of a prompt, erring high: seldom more than [`LOW`] below.
    pub(super) fn foretell(&self, sample: &Sample) -> Foretold {
        let with = |h: &Hypothesis| {
            let (mean, variance) = h.belief.foretell(sample.of(h.ground)?);
            Some((mean, variance.sqrt(), h.weight))
        };
        let foretold: Vec<(f64, f64, f64)> = self.hypotheses.iter().map(|h| with(h).unwrap_or_default()).collect();
        let sum: f64 = foretold.iter().map(|(.., weight)| weight).sum();
        let counted = f64::from(sample.counted);
        if sum <= 0.0 {
            return Foretold { total: counted, weights: vec![[0.0; FEATURES]; sample.new.len()] };
        }
        let middle = foretold.iter().map(|(mean, _, weight)| mean * weight).sum::<f64>() / sum;
        let known: Vec<(f64, f64, f64)> = foretold.iter().copied().filter(|(.., weight)| *weight > 0.0).collect();
        let high = quantile(&known, RISK * sum);
        let low = (1.0 - LOW) * (counted + high);
        if low <= counted + middle {
            let shares = foretold.iter().map(|(.., weight)| weight / sum).collect();
            return Foretold { total: (counted + middle).max(0.0), weights: self.weights(sample, shares, None) };
        }
        Foretold { total: low.max(0.0), weights: self.weights(sample, blame(&foretold, high), Some(high)) }
    }

    /// What the numbers of a sample's rows cost by all hypotheses together, each with its share; where the sample is said to
    /// cost `tokens`, by what they make of that.
    fn weights(&self, sample: &Sample, shares: Vec<f64>, tokens: Option<f64>) -> Vec<Weights> {
        let mut out = vec![[0.0; FEATURES]; sample.new.len()];
        for (Hypothesis { ground, belief, .. }, share) in self.hypotheses.iter().zip(shares) {
            let Some(at) = sample.new.iter().position(|(of, _)| of == ground).filter(|_| share >= UNLIKELY) else {
                continue;
            };
            let given = tokens.map_or_else(|| *belief.means(), |tokens| belief.given(&sample.new[at].1, tokens));
            out[at].iter_mut().zip(given).for_each(|(sum, n)| *sum += share * n);
        }
        out
    }

    /// The least that a row of the likeliest vocabulary costs.
    pub(super) fn least(&self, row: &Row) -> f64 {
        dot(&self.least, row).max(0.0)
    }

    /// Learns what the server counted. What cannot be is passed over.
    pub(super) fn learn(&mut self, sample: &Sample, reported: Tokens) {
        let (counted, reported) = (f64::from(sample.counted), f64::from(reported));
        let row = sample.first();
        let most = counted + MOST_A_TOKEN * row.words() + MOST_A_PART * row.parts() + PREAMBLE;
        if reported < 1.0 || reported < counted * PLAUSIBLE || reported > most {
            return;
        }
        let log = |hypothesis: &Hypothesis| {
            let (mean, variance) = hypothesis.belief.foretell(sample.of(hypothesis.ground)?);
            let surprise = (reported - counted - mean).powi(2) / variance;
            let tails = (FREEDOM + 1.0) / 2.0 * (surprise / FREEDOM).ln_1p();
            let log = hypothesis.weight.ln() - 0.5 * variance.ln() - tails;
            log.is_finite().then_some((log, surprise))
        };
        let logs: Vec<Option<(f64, f64)>> = self.hypotheses.iter().map(log).collect();
        let Some(likeliest) = logs.iter().flatten().copied().max_by(|a, b| a.0.total_cmp(&b.0)) else { return };
        for (hypothesis, log) in self.hypotheses.iter_mut().zip(logs) {
            hypothesis.weight = log.map_or(0.0, |(log, _)| (log - likeliest.0).exp());
        }
        self.surprised |= likeliest.1 > SURPRISE * SURPRISE;
        self.replies = self.replies.saturating_add(1);
        self.settle();
        for hypothesis in &mut self.hypotheses {
            if let Some(row) = sample.of(hypothesis.ground) {
                hypothesis.belief.learn(row, reported - counted);
            }
        }
        self.sum_up();
    }

    /// Gives up what is unlikely, and sums up what is left.
    fn settle(&mut self) {
        let sum = |all: &[Hypothesis], of: &dyn Fn(&Hypothesis) -> bool| {
            all.iter().filter(|h| of(h)).map(|h| h.weight).sum::<f64>()
        };
        let total = sum(&self.hypotheses, &|_| true);
        self.hypotheses.iter_mut().for_each(|h| h.weight /= total);
        let mut grounds: Vec<(Ground, f64)> = Vec::new();
        for hypothesis in &self.hypotheses {
            match grounds.iter_mut().find(|(ground, _)| *ground == hypothesis.ground) {
                Some((_, weight)) => *weight += hypothesis.weight,
                None => grounds.push((hypothesis.ground, hypothesis.weight)),
            }
        }
        grounds.sort_by(|a, b| b.1.total_cmp(&a.1));
        if self.replies > 0 {
            grounds.retain(|(_, weight)| *weight >= UNLIKELY_GROUND);
            let grounds = &grounds;
            self.hypotheses.retain(|h| h.weight >= UNLIKELY && grounds.iter().any(|(ground, _)| *ground == h.ground));
            let total = sum(&self.hypotheses, &|_| true);
            self.hypotheses.iter_mut().for_each(|h| h.weight /= total);
        }
        self.grounds = grounds.into_iter().map(|(ground, _)| ground).collect();
        self.sum_up();
    }

    fn sum_up(&mut self) {
        let Some(first) = self.grounds.first().copied() else { return };
        let all: Vec<&Hypothesis> = self.hypotheses.iter().filter(|h| h.ground == first).collect();
        let total: f64 = all.iter().map(|h| h.weight).sum();
        let mean = |of: &dyn Fn(&Hypothesis) -> f64| all.iter().map(|h| h.weight / total * of(h)).sum::<f64>();
        let middle: Weights = std::array::from_fn(|at| mean(&|h| h.belief.means()[at]));
        let least: Weights = std::array::from_fn(|at| LEAST * mean(&|h| h.belief.first(at)));
        let words = middle[Feature::Words as usize];
        let variance =
            mean(&|h| h.belief.words_variance() + (h.belief.means()[Feature::Words as usize] - words).powi(2));
        (self.middle, self.least, self.unsure) = (middle, least, variance.sqrt());
    }
}

/// What was foretold of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Foretold {
    /// Its tokens, erring high.
    pub(super) total: f64,
    /// What each number of the sample's rows costs, one vocabulary after the other, if all that is new costs what is given
    /// out: summed over the vocabularies, the part of any item in that.
    pub(super) weights: Vec<Weights>,
}

/// How likely it is of each of `foretold` (as [`quantile`] has them) that it is the one that is right, if the truth is `at`.
fn blame(foretold: &[(f64, f64, f64)], at: f64) -> Vec<f64> {
    let log = |(mean, deviation, weight): &(f64, f64, f64)| {
        let off = (at - mean) / deviation;
        weight.ln() - deviation.ln() - 0.5 * off * off
    };
    let logs: Vec<f64> = foretold.iter().map(|of| if of.2 > 0.0 { log(of) } else { f64::NEG_INFINITY }).collect();
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let likely: Vec<f64> = logs.iter().map(|log| (log - most).exp()).collect();
    let sum: f64 = likely.iter().sum();
    likely.iter().map(|n| n / sum).collect()
}

/// The least number that the truth is above of with no more than a weight of `risk`: `foretold` are normal distributions by
/// mean, deviation and weight.
fn quantile(foretold: &[(f64, f64, f64)], risk: f64) -> f64 {
    // No distribution has more than the whole risk beyond six deviations.
    let (mut low, mut high) = (f64::MAX, f64::MIN);
    for (mean, deviation, _) in foretold {
        low = low.min(*mean);
        high = high.max(mean + 6.0 * deviation);
    }
    let above = |at: f64| {
        let tail = |(mean, deviation, weight): &(f64, f64, f64)| {
            weight * 0.5 * libm::erfc((at - mean) / deviation / std::f64::consts::SQRT_2)
        };
        foretold.iter().map(tail).sum::<f64>()
    };
    while high - low > 0.05 {
        let middle = f64::midpoint(low, high);
        if above(middle) > risk { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::estimate::kinds;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_more_than_the_risk_lies_above(
            foretold in prop::collection::vec((-100.0..1e5, 0.5..1e4, 1e-6..1.0f64), 1..40), risk in 0.001..0.2f64
        ) {
            let sum: f64 = foretold.iter().map(|(_, _, weight)| weight).sum();
            let at = quantile(&foretold, risk * sum);
            let above = |at: f64| -> f64 {
                foretold.iter().map(|(m, d, w)| w * 0.5 * libm::erfc((at - m) / d / std::f64::consts::SQRT_2)).sum()
            };
            prop_assert!(above(at) <= risk * sum * 1.001);
            prop_assert!(above(at - 0.1) >= risk * sum * 0.999, "not the least: {}", above(at - 0.1) / sum);
        }
    }

    #[test]
    fn every_name_has_a_whole_belief() {
        for name in ["my-model", "qwen3:8b", "hermes-3-llama-3.1", "gpt-oss:20b", "mistral:7b", ""] {
            for anything in [false, true] {
                let all = kinds::of(name, anything);
                let sum: f64 = all.iter().map(|(_, _, weight)| weight).sum();
                assert!((sum - 1.0).abs() < 1e-9, "{name}: {sum}");
                assert!(all.iter().all(|(_, _, weight)| *weight > UNLIKELY / 100.0), "{name}");
            }
        }
        let likeliest = |name: &str| {
            let all = kinds::of(name, false);
            all.into_iter().max_by(|a, b| a.2.total_cmp(&b.2)).map(|(ground, prior, _)| (ground, prior)).unwrap()
        };
        let escapes = |name: &str| likeliest(name).1.means[Feature::ResultEscapes as usize];
        // What a model is made of does not tell its template.
        assert_eq!((escapes("llama3.1:8b"), escapes("hermes-3-llama-3.1")), (1.0, 0.0));
    }

    #[test]
    fn what_explains_the_replies_is_what_is_left() {
        let mut mixture = Mixture::new(&kinds::of("qwen3:8b", false));
        let ground = mixture.grounds()[0];
        let row = |n: f32| {
            let words = Row::of(Feature::Words, 40.0 * n).with(Feature::Messages, n);
            words.with(Feature::Replies, n).with(Feature::Prompt, 1.0)
        };
        // Two tokens around a message of the user, and five around a reply.
        for n in [1.0f32, 2.0, 3.0] {
            let sample = Sample { new: vec![(ground, row(n))], counted: 0 };
            mixture.learn(&sample, (14.0 + 47.0 * n) as Tokens);
        }
        let more = row(9.0).with(Feature::Replies, 2.0);
        let total = mixture.foretell(&Sample { new: vec![(ground, more)], counted: 0 }).total;
        let truth = 14.0 + 360.0 + 18.0 + 10.0;
        assert!(total >= truth * 0.99 && total <= truth * 1.08, "{total} of {truth}");
    }
}
