//! What is believed of one model: the tokens that each number of a row costs, and how sure that is. Bayesian linear
//! regression with Gaussian weights; each reply's reported prompt is one observation (Bishop, Pattern Recognition and
//! Machine Learning, 3.3).

use std::ops::{Add, Sub};

use super::super::tokens::Size;
use crate::conversation::Tokens;

/// How many numbers of a row have a weight.
const WEIGHTS: usize = 5;

/// What is believed before any reply, of each number of a row: the tokens it costs, how far that may be off (a standard
/// deviation), and the least and the most that is ever believed. Fitted to recorded sessions in 18 pairs of a real template and
/// a real vocabulary.
const PRIOR: [[f64; 4]; WEIGHTS] = [
    [1.0, 0.15, 0.5, 2.0],
    // Small vocabularies spell letters beyond ASCII in bytes.
    [1.2, 0.4, 0.3, 4.0],
    [6.0, 5.0, 0.0, 40.0],
    [30.0, 50.0, -20.0, 400.0],
    [1.0, 0.3, 0.05, 4.0],
];

/// What no weight explains of one text, as a share of it: a standard deviation.
const NOISE: f64 = 0.1;

/// Tokens that nothing explains, whatever the prompt holds: trimmed ends, joined messages.
const UNSURE: f64 = 3.0;

/// By how much the variance of every weight grows with each reply, as a share of what it was at first: texts change.
const DRIFT: f64 = 0.1;

/// A reply's report counts for at most so many standard deviations: one odd report does not decide alone.
const SURPRISE: f64 = 3.0;

/// A server speaks of something else, of what it evaluated or of all slots, if what it reports is less than this share of the
/// beginning that it counted before.
const PLAUSIBLE: f64 = 0.5;

/// Tokens that a server may make of one token of ours, of one message or call, and add to a prompt of any length, at most.
const MOST_A_TOKEN: f64 = 5.0;
/// As above, of one message or call.
const MOST_A_PART: f64 = 64.0;
/// As above, whatever the length.
const PREAMBLE: f64 = 2048.0;

/// What a prompt, or a part of it, holds that costs tokens. Rows add up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Row {
    weighed: [f64; WEIGHTS],
    /// The sum of the squares of its texts: one long text is less sure than many short ones.
    squares: f64,
}

impl Row {
    /// A text.
    pub(super) fn text(size: Size) -> Row {
        let (plain, wide) = (size.plain_tokens(), size.wide_tokens());
        Row { weighed: [plain, wide, 0.0, 0.0, 0.0], squares: (plain + wide) * (plain + wide) }
    }

    /// The same, costing this share of it, where no more than `doubt` times that is known of how much it costs.
    pub(super) fn at(self, share: f64, doubt: f64) -> Row {
        Row { weighed: self.weighed.map(|n| n * share), squares: self.squares * doubt * doubt }
    }

    /// A message, or a call.
    pub(super) fn part() -> Row {
        Row { weighed: [0.0, 0.0, 1.0, 0.0, 0.0], squares: 0.0 }
    }

    /// What a template adds to a prompt, so many times.
    pub(super) fn preamble(times: f64) -> Row {
        Row { weighed: [0.0, 0.0, 0.0, times, 0.0], squares: 0.0 }
    }

    /// Images and the like, by the rule or flat figure for them.
    pub(super) fn media(tokens: Tokens) -> Row {
        Row { weighed: [0.0, 0.0, 0.0, 0.0, f64::from(tokens)], squares: 0.0 }
    }

    /// This row less what left the prompt: both are in doubt.
    pub(super) fn without(self, left: Row) -> Row {
        Row { squares: self.squares + left.squares, ..self - left }
    }

    /// Tokens of its texts by the rule of thumb.
    pub(super) fn texts(&self) -> f64 {
        self.weighed[0] + self.weighed[1] + self.weighed[4]
    }
}

impl Add for Row {
    type Output = Row;
    fn add(self, other: Row) -> Row {
        let weighed = std::array::from_fn(|at| self.weighed[at] + other.weighed[at]);
        Row { weighed, squares: self.squares + other.squares }
    }
}

impl Sub for Row {
    type Output = Row;
    fn sub(self, other: Row) -> Row {
        let weighed = std::array::from_fn(|at| self.weighed[at] - other.weighed[at]);
        Row { weighed, squares: (self.squares - other.squares).max(0.0) }
    }
}

/// What a prompt holds that its server had not counted before, and what it had counted of its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    pub(super) new: Row,
    /// Tokens of the beginning; nothing where none was counted.
    pub(super) counted: Tokens,
}

impl Sample {
    /// Its numbers, from which [`Sample::of_numbers`] makes the same to the bit: those who learn the same must believe the same.
    pub fn numbers(&self) -> [u64; WEIGHTS + 2] {
        let mut numbers = [0; WEIGHTS + 2];
        let weighed = self.new.weighed.iter().chain([&self.new.squares]);
        numbers.iter_mut().zip(weighed).for_each(|(to, of)| *to = of.to_bits());
        numbers[WEIGHTS + 1] = u64::from(self.counted);
        numbers
    }

    /// What these numbers say; `None` where that cannot be.
    pub fn of_numbers(numbers: &[u64; WEIGHTS + 2]) -> Option<Sample> {
        let weighed: [f64; WEIGHTS] = std::array::from_fn(|at| f64::from_bits(numbers[at]));
        let new = Row { weighed, squares: f64::from_bits(numbers[WEIGHTS]) };
        let counted = Tokens::try_from(numbers[WEIGHTS + 1]).ok()?;
        new.weighed.iter().chain([&new.squares]).all(|n| n.is_finite()).then_some(Sample { new, counted })
    }
}

/// A belief.
#[derive(Debug, Clone)]
pub(super) struct Belief {
    mean: [f64; WEIGHTS],
    covariance: [[f64; WEIGHTS]; WEIGHTS],
    corrected: bool,
    /// Whether the model's template writes tool calls, where that is known. The number says how often the server had been recognized by
    /// then.
    pub(super) calls: Option<(bool, u64)>,
}

impl Default for Belief {
    fn default() -> Belief {
        let mut covariance = [[0.0; WEIGHTS]; WEIGHTS];
        for (at, [_, deviation, ..]) in PRIOR.into_iter().enumerate() {
            covariance[at][at] = deviation * deviation;
        }
        Belief { mean: PRIOR.map(|[mean, ..]| mean), covariance, corrected: false, calls: None }
    }
}

impl Belief {
    /// Whether any reply was learned from.
    pub(super) fn is_corrected(&self) -> bool {
        self.corrected
    }

    /// Whether calls are part of a prompt: nearly all templates write them.
    pub(super) fn writes_calls(&self) -> bool {
        self.calls.is_none_or(|(written, _)| written)
    }

    /// What a row most likely costs.
    pub(super) fn middle(&self, row: &Row) -> f64 {
        dot(&self.mean, &row.weighed)
    }

    /// The least that a row costs: its texts, and a token for each message or call. What templates are believed to add may be
    /// less than nothing, since trimmed ends and joined messages are; a prompt is not.
    pub(super) fn least(&self, row: &Row) -> f64 {
        let [plain, wide, parts, _, media] = row.weighed;
        self.mean[0] * plain + self.mean[1] * wide + parts.max(0.0) + self.mean[4] * media
    }

    /// What a row costs: the mean and the standard deviation.
    pub(super) fn foretell(&self, row: &Row) -> (f64, f64) {
        (self.middle(row), self.variance(row, &self.gain(row)).sqrt())
    }

    /// Learns what the server counted. What cannot be is passed over.
    pub(super) fn learn(&mut self, sample: &Sample, reported: Tokens) {
        let Sample { new, counted } = sample;
        let (counted, reported) = (f64::from(*counted), f64::from(reported));
        let most = counted + MOST_A_TOKEN * new.texts() + MOST_A_PART * new.weighed[2] + PREAMBLE;
        if reported < 1.0 || reported < counted * PLAUSIBLE || reported > most {
            return;
        }
        let gain = self.gain(new);
        let variance = self.variance(new, &gain);
        let most = SURPRISE * variance.sqrt();
        let off = (reported - counted - self.middle(new)).clamp(-most, most);
        for (at, [_, deviation, least, highest]) in PRIOR.into_iter().enumerate() {
            self.mean[at] = (self.mean[at] + gain[at] / variance * off).clamp(least, highest);
            for (other, gain_of_other) in gain.iter().enumerate() {
                self.covariance[at][other] -= gain[at] * gain_of_other / variance;
            }
            let first = deviation * deviation;
            self.covariance[at][at] = (self.covariance[at][at].max(0.0) + DRIFT * first).min(first);
        }
        self.corrected = true;
    }

    /// Covariance times row.
    fn gain(&self, row: &Row) -> [f64; WEIGHTS] {
        self.covariance.map(|of| dot(&of, &row.weighed))
    }

    fn variance(&self, row: &Row, gain: &[f64; WEIGHTS]) -> f64 {
        dot(gain, &row.weighed).max(0.0) + NOISE * NOISE * row.squares + UNSURE * UNSURE
    }
}

fn dot(a: &[f64; WEIGHTS], b: &[f64; WEIGHTS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
