//! What is believed of one model: the tokens that each number of a row costs, and how sure that is. Bayesian linear
//! regression with Gaussian weights; each reply's reported prompt is one observation (Bishop, Pattern Recognition and
//! Machine Learning, 3.3).

use super::prior::Prior;
use super::row::{FEATURES, Feature, Row};
use crate::conversation::Tokens;

/// An estimate may be more than [`LOW`] below the truth with a probability of 0.005: the quantile of the normal distribution
/// above which that much lies.
const QUANTILE: f64 = 2.576;

/// Share of the truth by which an estimate may be low without being counted as low.
const LOW: f64 = 0.01;

/// By how much the variance of every weight grows with each reply, as a share of what it was at first: texts change.
const DRIFT: f64 = 0.001;

/// A report is a surprise from so many standard deviations on: the belief was too sure of itself, and is made less so.
const SURPRISE: f64 = 4.0;

/// How much larger a variance may become than it was at first.
const DOUBT: f64 = 25.0;

/// A server speaks of something else, of what it evaluated or of all slots, if what it reports is less than this share of the
/// beginning that it counted before.
const PLAUSIBLE: f64 = 0.5;

/// Tokens that the server may make of one near token, of one message or call, and add to a prompt of any length, at most.
const MOST_A_TOKEN: f64 = 5.0;
/// As above, of one message or call.
const MOST_A_PART: f64 = 64.0;
/// As above, whatever the length.
const PREAMBLE: f64 = 2048.0;

/// The least that a part of a prompt costs, as a share of what was believed at first.
const LEAST: f64 = 0.1;

type Weights = [f64; FEATURES];

/// A belief.
#[derive(Debug, Clone)]
pub(super) struct Belief {
    prior: &'static Prior,
    mean: Weights,
    covariance: Box<[Weights; FEATURES]>,
    replies: u32,
}

/// What a prompt holds, and what the server counted of its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// What is not part of the beginning that was counted.
    pub(super) new: Row,
    /// Tokens of that beginning.
    pub(super) counted: Tokens,
}

impl Belief {
    /// What is believed before any reply.
    pub(super) fn new(prior: &'static Prior) -> Belief {
        let mut covariance = Box::new([[0.0; FEATURES]; FEATURES]);
        for (at, sd) in prior.deviations.iter().enumerate() {
            covariance[at][at] = sd * sd;
        }
        Belief { prior, mean: prior.means, covariance, replies: 0 }
    }

    /// Whether any reply was learnt from.
    pub(super) fn is_corrected(&self) -> bool {
        self.replies > 0
    }

    /// What a row costs in the middle; never less than a part of what was believed at first, so that nothing seems free.
    pub(super) fn middle(&self, row: &Row) -> f64 {
        dot(&self.mean, row).max(LEAST * dot(&self.prior.means, row)).max(0.0)
    }

    /// What a text costs, erring high. Previews and briefs ask for thousands of texts, so this looks at the weight of
    /// words alone for how sure it is.
    pub(super) fn text(&self, row: &Row) -> f64 {
        let weight = self.covariance[Feature::Words as usize][Feature::Words as usize];
        let deviation = (weight + self.prior.noise * self.prior.noise).sqrt() * row.words();
        self.middle(row) + QUANTILE * deviation
    }

    /// The tokens of a prompt, erring high: seldom more than [`LOW`] below.
    pub(super) fn total(&self, sample: &Sample) -> f64 {
        let middle = (f64::from(sample.counted) + dot(&self.mean, &sample.new)).max(0.0);
        let (_, spread) = self.spread(&sample.new);
        let deviation = (spread + self.noise(&sample.new)).sqrt();
        middle.max((1.0 - LOW) * (middle + QUANTILE * deviation))
    }

    /// Learns what the server counted. What cannot be is passed over.
    pub(super) fn learn(&mut self, sample: &Sample, reported: Tokens) {
        let (counted, reported) = (f64::from(sample.counted), f64::from(reported));
        let most = counted + MOST_A_TOKEN * sample.new.words() + MOST_A_PART * sample.new.parts() + PREAMBLE;
        if reported < 1.0 || reported < counted * PLAUSIBLE || reported > most {
            return;
        }
        let surprise = reported - counted - dot(&self.mean, &sample.new);
        let noise = self.noise(&sample.new);
        let (mut gain, mut spread) = self.spread(&sample.new);
        let doubt = (surprise * surprise / (SURPRISE * SURPRISE) - noise) / spread.max(f64::MIN_POSITIVE);
        if doubt > 1.0 {
            let doubt = doubt.min(DOUBT);
            self.covariance.iter_mut().flatten().for_each(|c| *c *= doubt);
            gain.iter_mut().for_each(|g| *g *= doubt);
            spread *= doubt;
        }
        for at in 0..FEATURES {
            self.mean[at] += gain[at] / (spread + noise) * surprise;
            for other in 0..FEATURES {
                self.covariance[at][other] -= gain[at] * gain[other] / (spread + noise);
            }
        }
        self.bound();
        self.replies = self.replies.saturating_add(1);
    }

    /// Lets every variance drift, and keeps it within [`DOUBT`]: rows and columns alike, so that the matrix stays one of
    /// covariances.
    fn bound(&mut self) {
        let mut shrink = [1.0; FEATURES];
        for (at, first) in self.prior.deviations.iter().enumerate() {
            let variance = &mut self.covariance[at][at];
            *variance = variance.max(0.0) + DRIFT * first * first;
            shrink[at] = (DOUBT * first * first / variance.max(f64::MIN_POSITIVE)).min(1.0).sqrt();
        }
        for (at, row) in self.covariance.iter_mut().enumerate() {
            row.iter_mut().zip(shrink).for_each(|(c, other)| *c *= shrink[at] * other);
        }
    }

    /// Covariance times row, and the variance of what the row costs.
    fn spread(&self, row: &Row) -> (Weights, f64) {
        let gain: Weights = std::array::from_fn(|at| dot(&self.covariance[at], row));
        let variance = dot(&gain, row).max(0.0);
        (gain, variance)
    }

    /// The variance of what no weight explains: a share of the texts.
    fn noise(&self, row: &Row) -> f64 {
        let pictures = f64::from(row.get(Feature::Media));
        let texts = self.prior.noise * row.words();
        self.prior.unsure * self.prior.unsure + texts * texts + pictures * pictures * 1e-4
    }
}

fn dot(weights: &Weights, row: &Row) -> f64 {
    weights.iter().zip(row.0).map(|(w, n)| w * f64::from(n)).sum()
}
