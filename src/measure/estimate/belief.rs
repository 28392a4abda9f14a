//! One hypothesis of a model: the tokens that each number of a row costs, and how sure that is. Bayesian linear
//! regression with Gaussian weights; each reply's reported prompt is one observation (Bishop, Pattern Recognition and
//! Machine Learning, 3.3).

use super::kinds::Prior;
use super::row::{FEATURES, Feature, Row, TEXTS};

/// By how much the variance of every weight grows with each reply, as a share of what it was at first: texts change.
const DRIFT: f64 = 0.001;

/// A report is a surprise from so many standard deviations on: the belief was too sure of itself, and is made less so.
const SURPRISE: f64 = 4.0;

/// How much larger a variance may become than it was at first.
const DOUBT: f64 = 25.0;

/// The variance of what a picture's tokens are off, as a share.
const PICTURES: f64 = 1e-4;

/// A number for each of a row.
pub(super) type Weights = [f64; FEATURES];

/// A belief.
#[derive(Debug, Clone)]
pub(super) struct Belief {
    prior: &'static Prior,
    /// Nothing before the first reply: most hypotheses are given up at that.
    learnt: Option<Box<Learnt>>,
}

#[derive(Debug, Clone)]
struct Learnt {
    mean: Weights,
    covariance: [Weights; FEATURES],
}

impl Belief {
    /// What is believed before any reply.
    pub(super) fn new(prior: &'static Prior) -> Belief {
        Belief { prior, learnt: None }
    }

    /// Whether it is of a known template and the model's own vocabulary.
    pub(super) fn is_known(&self) -> bool {
        self.prior.own && !self.prior.doubts
    }

    /// What one number of a row was believed to cost at first.
    pub(super) fn first(&self, at: usize) -> f64 {
        self.prior.means[at]
    }

    /// The variance of the cost of a word.
    pub(super) fn words_variance(&self) -> f64 {
        let words = Feature::Words as usize;
        let first = self.prior.deviations[words] * self.prior.deviations[words];
        self.learnt.as_ref().map_or(first, |l| l.covariance[words][words]) + self.prior.noise * self.prior.noise
    }

    /// The tokens of a row: mean and variance.
    pub(super) fn foretell(&self, row: &Row) -> (f64, f64) {
        (dot(self.means(), row), self.spread(row).1 + self.noise(row))
    }

    /// What each number of a row costs where the whole of it is said to cost `tokens`: what this is off the mean lies where
    /// it is in doubt (the conditional mean of normal distributions).
    pub(super) fn given(&self, row: &Row, tokens: f64) -> Weights {
        let (mean, variance) = self.foretell(row);
        let (gain, _) = self.spread(row);
        let noise = self.noise_of_each(row);
        let off = (tokens - mean) / variance.max(f64::MIN_POSITIVE);
        std::array::from_fn(|at| self.means()[at] + (gain[at] + noise[at]) * off)
    }

    /// Learns what a row cost.
    pub(super) fn learn(&mut self, row: &Row, cost: f64) {
        let surprise = cost - dot(self.means(), row);
        let noise = self.noise(row);
        let (mut gain, mut spread) = self.spread(row);
        let prior = self.prior;
        let learnt = self.learnt.get_or_insert_with(|| Box::new(Learnt::new(prior)));
        let doubt = (surprise * surprise / (SURPRISE * SURPRISE) - noise) / spread.max(f64::MIN_POSITIVE);
        if prior.doubts && doubt > 1.0 {
            let doubt = doubt.min(DOUBT);
            learnt.covariance.iter_mut().flatten().for_each(|c| *c *= doubt);
            gain.iter_mut().for_each(|g| *g *= doubt);
            spread *= doubt;
        }
        for at in 0..FEATURES {
            learnt.mean[at] += gain[at] / (spread + noise) * surprise;
            for other in 0..FEATURES {
                learnt.covariance[at][other] -= gain[at] * gain[other] / (spread + noise);
            }
        }
        learnt.bound(prior);
    }

    /// What each number of a row costs in the middle.
    pub(super) fn means(&self) -> &Weights {
        self.learnt.as_ref().map_or(&self.prior.means, |l| &l.mean)
    }

    /// Covariance times row, and the variance of what the row costs.
    fn spread(&self, row: &Row) -> (Weights, f64) {
        let gain: Weights = match &self.learnt {
            Some(learnt) => std::array::from_fn(|at| dot(&learnt.covariance[at], row)),
            None => std::array::from_fn(|at| self.prior.deviations[at].powi(2) * f64::from(row.0[at])),
        };
        let variance = dot(&gain, row).max(0.0);
        (gain, variance)
    }

    /// The variance of what no weight explains: a share of the texts.
    fn noise(&self, row: &Row) -> f64 {
        let pictures = f64::from(row.get(Feature::Media));
        let texts = self.prior.noise * row.words();
        let letters = self.prior.letters * f64::from(row.get(Feature::ThreeBytes));
        letters * letters + self.prior.unsure * self.prior.unsure + texts * texts + pictures * pictures * PICTURES
    }

    /// As above, how it varies with each number of the row.
    fn noise_of_each(&self, row: &Row) -> Weights {
        let mut out = [0.0; FEATURES];
        TEXTS.iter().for_each(|text| out[*text as usize] = self.prior.noise.powi(2) * row.words());
        let letters = f64::from(row.get(Feature::ThreeBytes));
        out[Feature::ThreeBytes as usize] = self.prior.letters.powi(2) * letters;
        out[Feature::Media as usize] = PICTURES * f64::from(row.get(Feature::Media));
        out
    }
}

impl Learnt {
    fn new(prior: &Prior) -> Learnt {
        let mut covariance = [[0.0; FEATURES]; FEATURES];
        for (at, deviation) in prior.deviations.iter().enumerate() {
            covariance[at][at] = deviation * deviation;
        }
        Learnt { mean: prior.means, covariance }
    }

    /// Lets every variance drift, and keeps it within [`DOUBT`]: rows and columns alike, so that the matrix stays one of
    /// covariances.
    fn bound(&mut self, prior: &Prior) {
        let mut shrink = [1.0; FEATURES];
        for (at, first) in prior.deviations.iter().enumerate() {
            let variance = &mut self.covariance[at][at];
            *variance = variance.max(0.0) + DRIFT * first * first;
            shrink[at] = (DOUBT * first * first / variance.max(f64::MIN_POSITIVE)).min(1.0).sqrt();
        }
        for (at, row) in self.covariance.iter_mut().enumerate() {
            row.iter_mut().zip(shrink).for_each(|(c, other)| *c *= shrink[at] * other);
        }
    }
}

/// The sum of what each number of a row costs.
pub(super) fn dot(weights: &Weights, row: &Row) -> f64 {
    weights.iter().zip(row.0).map(|(w, n)| w * f64::from(n)).sum()
}
