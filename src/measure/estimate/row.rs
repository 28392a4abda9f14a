//! What a prompt, or a part of it, holds that costs tokens, as a row of numbers that add up: the near counts of its texts,
//! how many messages and calls there are, and what vocabularies and templates treat in different ways.

use std::ops::{Add, Sub};

use super::super::near::Near;
use super::super::tokens;

/// A number of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    /// One for the prompt itself.
    Prompt,
    /// One where no system message leads: many templates put in one of their own.
    NoSystem,
    /// Messages of users and systems.
    Messages,
    /// Messages of the assistant.
    Replies,
    /// Tool results.
    Results,
    /// Tool calls.
    Calls,
    /// One where tools are offered.
    Tools,
    /// Tokens of what is said.
    Words,
    /// Tokens of what the assistant says beside its calls: some templates drop that.
    Asides,
    /// Tokens of tool results.
    ResultWords,
    /// Tokens of the names and arguments of calls.
    Arguments,
    /// Tokens of reasoning that templates keep.
    Reasoning,
    /// Tokens of tool definitions, as the client spells them.
    Definitions,
    /// Tokens of images and the like, by the rule or flat figure for them.
    Media,
    /// Characters of tool results that JSON would escape.
    ResultEscapes,
    /// Characters of arguments that are escaped there.
    ArgumentEscapes,
    /// ASCII digits.
    Digits,
    /// Letters of two bytes.
    TwoBytes,
    /// Letters of three bytes and more.
    ThreeBytes,
    /// White space behind white space, up to [`BLANKS`] in a run.
    Blanks,
    /// Line breaks.
    Breaks,
    /// ASCII marks.
    Marks,
}

/// White space of one run that is counted: what vocabularies make of more is much the same.
const BLANKS: u32 = 64;

/// How many numbers a row has.
pub(super) const FEATURES: usize = Feature::Marks as usize + 1;

/// The numbers, in the order of [`Feature`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row(pub(super) [f32; FEATURES]);

impl Default for Row {
    fn default() -> Row {
        Row([0.0; FEATURES])
    }
}

impl Add for Row {
    type Output = Row;
    fn add(mut self, other: Row) -> Row {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
        self
    }
}

impl Sub for Row {
    type Output = Row;
    fn sub(mut self, other: Row) -> Row {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a -= b);
        self
    }
}

impl Row {
    /// A row with one number.
    pub(super) fn of(feature: Feature, n: f32) -> Row {
        Row::default().with(feature, n)
    }

    /// With a number set.
    pub(super) fn with(mut self, feature: Feature, n: f32) -> Row {
        self.0[feature as usize] = n;
        self
    }

    /// A number.
    pub(super) fn get(&self, feature: Feature) -> f32 {
        self.0[feature as usize]
    }

    /// Near tokens of all its texts.
    pub(super) fn words(&self) -> f64 {
        let texts = [
            Feature::Words,
            Feature::Asides,
            Feature::ResultWords,
            Feature::Arguments,
            Feature::Reasoning,
            Feature::Definitions,
        ];
        texts.into_iter().map(|f| f64::from(self.get(f))).sum()
    }

    /// Messages and calls.
    pub(super) fn parts(&self) -> f64 {
        let parts = [Feature::Messages, Feature::Replies, Feature::Results, Feature::Calls];
        parts.into_iter().map(|f| f64::from(self.get(f))).sum()
    }
}

/// What texts are counted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Ground {
    /// A near vocabulary; `escaped`: tool results as JSON would spell them.
    Near {
        /// The vocabulary.
        near: Near,
        /// Tool results are counted as a JSON string.
        escaped: bool,
    },
    /// By rule of thumb: whoever asks counts with the model's own vocabulary anyway.
    Rough,
}

impl Ground {
    fn count(self, text: &str) -> f32 {
        (match self {
            Ground::Near { near, .. } => near.count(text),
            Ground::Rough => tokens::estimate(text),
        }) as f32
    }

    /// The row of a text of this kind.
    pub(super) fn text(self, kind: Feature, text: &str) -> Row {
        let (mut row, escapes) = looks(text);
        let spelled = (kind == Feature::ResultWords && matches!(self, Ground::Near { escaped: true, .. }))
            .then(|| serde_json::to_string(text).ok())
            .flatten();
        row = row.with(kind, self.count(spelled.as_deref().unwrap_or(text)));
        match kind {
            Feature::ResultWords => row.with(Feature::ResultEscapes, escapes),
            Feature::Arguments => row.with(Feature::ArgumentEscapes, escapes),
            _ => row,
        }
    }
}

/// What vocabularies treat in different ways, and how many characters a JSON string would escape.
fn looks(text: &str) -> (Row, f32) {
    let [mut digits, mut two, mut three, mut blanks, mut breaks, mut marks, mut escapes] = [0u32; 7];
    let mut run = 0;
    for b in text.bytes() {
        match b {
            b'0'..=b'9' => digits += 1,
            b'a'..=b'z' | b'A'..=b'Z' | 0x80..=0xBF | 0x7F => {}
            0xC0..0xE0 => two += 1,
            0xE0.. => three += 1,
            b' ' | b'\t' => blanks += u32::from((1..=BLANKS).contains(&run)),
            b'\n' => breaks += 1,
            0x21..=0x7E => marks += 1,
            _ => {}
        }
        escapes += u32::from(matches!(b, b'"' | b'\\' | 0..0x20));
        run = if matches!(b, b' ' | b'\t' | b'\n') { run + 1 } else { 0 };
    }
    let row = [
        (Feature::Digits, digits),
        (Feature::TwoBytes, two),
        (Feature::ThreeBytes, three),
        (Feature::Blanks, blanks),
        (Feature::Breaks, breaks),
        (Feature::Marks, marks),
    ];
    (row.into_iter().fold(Row::default(), |all, (feature, n)| all.with(feature, n as f32)), escapes as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_looked_through_once() {
        let rough = Ground::Rough;
        let row = rough.text(Feature::ResultWords, "a  1\u{e9}\u{4e2d}\n\t\"\\");
        let seen = [
            (Feature::Digits, 1.0),
            (Feature::TwoBytes, 1.0),
            (Feature::ThreeBytes, 1.0),
            (Feature::Blanks, 2.0),
            (Feature::Breaks, 1.0),
            (Feature::Marks, 2.0),
            (Feature::ResultEscapes, 4.0),
            (Feature::ArgumentEscapes, 0.0),
        ];
        for (feature, n) in seen {
            assert_eq!(row.get(feature), n, "{feature:?}");
        }
        assert_eq!(row.words(), f64::from(row.get(Feature::ResultWords)));
        assert_eq!(row + row - row, row);
    }

    #[test]
    fn results_are_counted_as_the_template_spells_them() {
        let text = "{\"a\": \"x\"}\n".repeat(9);
        let [plain, escaped] =
            [false, true].map(|escaped| Ground::Near { near: Near::Cl100k, escaped }.text(Feature::ResultWords, &text));
        assert!(escaped.words() > plain.words());
        let user = Ground::Near { near: Near::Cl100k, escaped: true }.text(Feature::Words, &text);
        assert_eq!(user.words(), plain.words());
    }
}
