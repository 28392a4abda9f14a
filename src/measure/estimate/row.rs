//! What a prompt, or a part of it, holds that costs tokens, as a row of numbers that add up: the near counts of its texts,
//! how many messages and calls there are, and what vocabularies and templates treat in different ways.

use std::io;
use std::ops::{Add, Sub};

use serde::Serialize;

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
    /// Tokens that tool results have more where they are spelled as JSON strings.
    ResultEscapes,
    /// Tokens that arguments have more where they are spelled as a JSON string once more.
    ArgumentEscapes,
    /// Tokens that arguments have more where they are written anew, as Python's `json.dumps` does: with blanks.
    ArgumentBlanks,
    /// Tokens that arguments have more, most often less, where each value stands as it is: tags in place of JSON.
    ArgumentValues,
    /// Arguments of calls, by their number.
    Parameters,
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
    /// Marks.
    Marks,
}

/// White space of one run that is counted: what vocabularies make of more is much the same.
const BLANKS: u32 = 64;

/// How many numbers a row has.
pub(super) const FEATURES: usize = Feature::Marks as usize + 1;

/// Near tokens of all kinds of texts.
pub(super) const TEXTS: [Feature; 6] = [
    Feature::Words,
    Feature::Asides,
    Feature::ResultWords,
    Feature::Arguments,
    Feature::Reasoning,
    Feature::Definitions,
];

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
        TEXTS.into_iter().map(|f| f64::from(self.get(f))).sum()
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
    /// A near vocabulary.
    Near(Near),
    /// By rule of thumb: whoever asks counts with the model's own vocabulary anyway.
    Rough,
}

impl Ground {
    fn count(self, text: &str) -> f32 {
        (match self {
            Ground::Near(near) => near.count(text),
            Ground::Rough => tokens::estimate(text),
        }) as f32
    }

    /// The row of a text of this kind.
    pub(super) fn text(self, kind: Feature, text: &str) -> Row {
        let n = self.count(text);
        let row = looks(text).with(kind, n);
        let more = |text: Option<String>| text.map_or(0.0, |text| self.count(&text) - n);
        match kind {
            Feature::ResultWords => row.with(Feature::ResultEscapes, more(self.escaped(text))),
            Feature::Arguments => {
                let values = values(text);
                row.with(Feature::ArgumentEscapes, more(self.escaped(text)))
                    .with(Feature::ArgumentBlanks, more(spaced(text)))
                    .with(Feature::Parameters, values.as_ref().map_or(0, Vec::len) as f32)
                    .with(Feature::ArgumentValues, more(values.map(|values| values.join("\n"))))
            }
            Feature::Definitions => row.with(kind, n + more(spaced(text))),
            _ => row,
        }
    }

    /// A text as a JSON string spells it; `None` where that is the same.
    fn escaped(self, text: &str) -> Option<String> {
        let same = !text.bytes().any(|b| matches!(b, b'"' | b'\\' | 0..0x20));
        let spelled = (!same && self != Ground::Rough).then(|| serde_json::to_string(text).ok())?;
        spelled.map(|s| s[1..s.len() - 1].to_owned())
    }
}

/// JSON as Python's `json.dumps` writes it, and templates' `tojson`; `None` for a text that is none.
fn spaced(json: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    let mut out = Vec::with_capacity(json.len() + json.len() / 8);
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)).ok()?;
    String::from_utf8(out).ok()
}

/// A blank behind each comma and colon.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The arguments of a call, each with its name, as a template spells them that has tags of its own for them.
fn values(arguments: &str) -> Option<Vec<String>> {
    let all: serde_json::Map<String, serde_json::Value> = serde_json::from_str(arguments).ok()?;
    let value = |(name, value): (String, serde_json::Value)| match value {
        serde_json::Value::String(text) => format!("{name}\n{text}"),
        other => format!("{name}\n{other}"),
    };
    Some(all.into_iter().map(value).collect())
}

/// What vocabularies treat in different ways.
fn looks(text: &str) -> Row {
    let [mut digits, mut two, mut three, mut blanks, mut breaks, mut marks] = [0u32; 6];
    let mut run = 0;
    for b in text.bytes() {
        match b {
            b'0'..=b'9' => digits += 1,
            b'a'..=b'z' | b'A'..=b'Z' | 0x80..=0xBF | 0x7F => {}
            0xC0..0xE0 => two += 1,
            // General punctuation, arrows, box drawings: nobody's letters.
            0xE2 => marks += 1,
            0xE0.. => three += 1,
            b' ' | b'\t' => blanks += u32::from((1..=BLANKS).contains(&run)),
            b'\n' => breaks += 1,
            0x21..=0x7E => marks += 1,
            _ => {}
        }
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
    row.into_iter().fold(Row::default(), |all, (feature, n)| all.with(feature, n as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_looked_through_once() {
        let rough = Ground::Rough;
        let row = rough.text(Feature::ResultWords, "a  1\u{e9}\u{4e2d}\u{2502}\n\t\"\\");
        let seen = [
            (Feature::Digits, 1.0),
            (Feature::TwoBytes, 1.0),
            (Feature::ThreeBytes, 1.0),
            (Feature::Blanks, 2.0),
            (Feature::Breaks, 1.0),
            (Feature::Marks, 3.0),
            (Feature::ResultEscapes, 0.0),
        ];
        for (feature, n) in seen {
            assert_eq!(row.get(feature), n, "{feature:?}");
        }
        assert_eq!(row.words(), f64::from(row.get(Feature::ResultWords)));
        assert_eq!(row + row - row, row);
    }

    #[test]
    fn other_spellings_are_counted_as_what_they_add() {
        let near = Ground::Near(Near::Cl100k);
        let count = |text: &str| Near::Cl100k.count(text) as f32;
        let text = "{\"a\": \"x\"}\n".repeat(9);
        let result = near.text(Feature::ResultWords, &text);
        let escaped = serde_json::to_string(&text).unwrap();
        let spelled = result.get(Feature::ResultWords) + result.get(Feature::ResultEscapes);
        assert_eq!(spelled, count(&escaped[1..escaped.len() - 1]));
        assert!(result.get(Feature::ResultEscapes) > 0.0);
        assert_eq!(near.text(Feature::Words, &text).get(Feature::ResultEscapes), 0.0);

        let call = near.text(Feature::Arguments, r#"{"path":"a.rs","text":"fn a() {\n\t\"b\"\n}\n","n":3}"#);
        let [sent, json, tags] = [
            call.get(Feature::Arguments),
            call.get(Feature::Arguments) + call.get(Feature::ArgumentBlanks),
            call.get(Feature::Arguments) + call.get(Feature::ArgumentValues),
        ];
        assert_eq!(json, count(r#"{"path": "a.rs", "text": "fn a() {\n\t\"b\"\n}\n", "n": 3}"#));
        assert_eq!(tags, count("path\na.rs\ntext\nfn a() {\n\t\"b\"\n}\n\nn\n3"));
        assert!(sent > tags && call.get(Feature::ArgumentEscapes) > 0.0);
        assert_eq!(call.get(Feature::Parameters), 3.0);
        assert_eq!(near.text(Feature::Arguments, "no JSON").get(Feature::Parameters), 0.0);
    }
}
