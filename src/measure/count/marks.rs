//! Where the words of each message stand in a rendered prompt, told and not guessed: the request is rendered once more with
//! marks put into its strings, characters that no text has. A rendering that is the true one but for its marks tells the
//! place of each; one that is not tells which string it was that the template looks into, and is made again without.
//!
//! Never changes what is counted: the true rendering is made of the request as it is.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

/// The first mark: the private use planes, from the rarer one on (plane 15 has icons of terminal fonts).
const FIRST: u32 = 0x10_0000;

/// Marks in one plane.
const PLANE: u32 = 0xFFFE;

/// Marks in one rendering, about.
const MARKS: usize = 100_000;

/// Most marks in one string: templates may sort what they read of it.
const MOST: usize = 32;

/// Bytes from the ends of a text in which a place for a mark is looked for.
const NEAR: usize = 64;

/// Bytes of a tag, such as `</think>`, which templates look for.
const TAG: usize = 24;

/// What a string of the request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// The tool definitions.
    Tools,
    /// What a message says, by its place in the request.
    Words(usize),
    /// A call of a message.
    Call(usize, usize),
}

impl Owner {
    /// The message.
    pub(super) fn message(self) -> Option<usize> {
        match self {
            Owner::Tools => None,
            Owner::Words(at) | Owner::Call(at, _) => Some(at),
        }
    }
}

/// Kinds of strings, which templates treat alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Arguments,
    Result,
    Reasoning,
    Name,
    Tools,
    System,
    Assistant,
    User,
}

impl Kind {
    /// In the order in which they are suspected of what makes a template fail.
    pub(super) const ALL: [Kind; 8] = [
        Kind::Arguments,
        Kind::Result,
        Kind::Reasoning,
        Kind::Name,
        Kind::Tools,
        Kind::System,
        Kind::Assistant,
        Kind::User,
    ];

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// What is not marked.
#[derive(Debug, Clone, Default)]
pub(super) struct Without {
    kinds: u16,
    strings: HashSet<(Owner, Kind)>,
}

impl Without {
    /// Without these kinds, as [`Without::kinds`] gave them.
    pub(super) fn of(kinds: u16) -> Without {
        Without { kinds, strings: HashSet::new() }
    }

    /// The kinds that are left out.
    pub(super) fn kinds(&self) -> u16 {
        self.kinds
    }

    /// Leaves out one string.
    pub(super) fn string(&mut self, spot: &Spot<'_>) {
        self.strings.insert((spot.owner, spot.kind));
    }

    /// Leaves out a kind.
    pub(super) fn kind(&mut self, kind: Kind) {
        self.kinds |= kind.bit();
    }

    /// Leaves out the next of those that are suspected.
    pub(super) fn next_kind(&mut self) {
        if let Some(kind) = Kind::ALL.into_iter().find(|k| self.kinds & k.bit() == 0) {
            self.kind(kind);
        }
    }

    /// Whether a kind is marked.
    pub(super) fn marks(&self, kind: Kind) -> bool {
        self.kinds & kind.bit() == 0
    }

    fn has(&self, owner: Owner, kind: Kind) -> bool {
        !self.marks(kind) || self.strings.contains(&(owner, kind))
    }
}

/// A mark: in which string it stands, and where.
#[derive(Debug)]
pub(super) struct Spot<'a> {
    pub(super) owner: Owner,
    pub(super) kind: Kind,
    /// The string without marks.
    pub(super) text: Cow<'a, str>,
    /// The byte of it before which the mark stands.
    pub(super) at: usize,
}

/// A request with marks in its strings.
pub(super) struct Marked<'a> {
    pub(super) request: Value,
    pub(super) spots: Vec<Spot<'a>>,
    /// Most marks in one string.
    most: usize,
}

/// Puts marks into the strings of a request.
pub(super) fn mark<'a>(request: &'a Value, without: &Without) -> Marked<'a> {
    let tools = request["tools"].as_array().map_or(&[][..], Vec::as_slice);
    let messages = request["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let most = (MARKS / (messages.len() + 1)).clamp(2, MOST);
    let mut out = Marked { request: request.clone(), spots: Vec::new(), most };
    for (i, tool) in tools.iter().enumerate() {
        for key in ["name", "description"] {
            out.put(&tool["function"][key], Owner::Tools, Kind::Tools, without, |r| {
                r.get_mut("tools")?.get_mut(i)?.get_mut("function")?.get_mut(key)
            });
        }
    }
    for (at, message) in messages.iter().enumerate() {
        out.message(message, at, without);
    }
    out
}

impl<'a> Marked<'a> {
    fn message(&mut self, message: &'a Value, at: usize, without: &Without) {
        let kind = match message["role"].as_str() {
            Some("system" | "developer") => Kind::System,
            Some("assistant") => Kind::Assistant,
            Some("tool" | "function") => Kind::Result,
            _ => Kind::User,
        };
        let owner = Owner::Words(at);
        self.put(&message["reasoning_content"], owner, Kind::Reasoning, without, |r| {
            r.get_mut("messages")?.get_mut(at)?.get_mut("reasoning_content")
        });
        self.put(&message["content"], owner, kind, without, |r| r.get_mut("messages")?.get_mut(at)?.get_mut("content"));
        for (i, part) in message["content"].as_array().into_iter().flatten().enumerate() {
            self.put(&part["text"], owner, kind, without, |r| {
                r.get_mut("messages")?.get_mut(at)?.get_mut("content")?.get_mut(i)?.get_mut("text")
            });
        }
        for (i, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let owner = Owner::Call(at, i);
            for (key, kind) in [("name", Kind::Name), ("arguments", Kind::Arguments)] {
                self.put(&call["function"][key], owner, kind, without, |r| {
                    r.get_mut("messages")?
                        .get_mut(at)?
                        .get_mut("tool_calls")?
                        .get_mut(i)?
                        .get_mut("function")?
                        .get_mut(key)
                });
            }
        }
    }

    /// Puts marks into one string. `place` finds it in the copy.
    fn put(
        &mut self,
        value: &'a Value,
        owner: Owner,
        kind: Kind,
        without: &Without,
        place: impl Fn(&mut Value) -> Option<&mut Value>,
    ) {
        let text: Cow<'a, str> = match value {
            Value::String(text) => Cow::Borrowed(text),
            // It is spelled out as text for the template, too.
            Value::Object(_) if kind == Kind::Arguments => Cow::Owned(value.to_string()),
            _ => return,
        };
        if without.has(owner, kind) {
            return;
        }
        let places = places(&text, self.most);
        let mut marked = String::with_capacity(text.len() + 4 * places.len());
        let mut from = 0;
        let before = self.spots.len();
        for at in places {
            let Some(mark) = character(self.spots.len()) else { break };
            marked.push_str(&text[from..at]);
            marked.push(mark);
            from = at;
            self.spots.push(Spot { owner, kind, text: text.clone(), at });
        }
        if self.spots.len() > before {
            marked.push_str(&text[from..]);
            if let Some(at) = place(&mut self.request) {
                *at = Value::String(marked);
            }
        }
    }
}

/// The mark of a number, while there are any.
fn character(n: usize) -> Option<char> {
    let n = u32::try_from(n).ok().filter(|n| *n < 2 * PLANE)?;
    char::from_u32(if n < PLANE { FIRST + n } else { FIRST - 0x1_0000 + (n - PLANE) })
}

fn number(c: char) -> Option<usize> {
    let c = u32::from(c);
    let n = if c >= FIRST { c - FIRST } else { (c.checked_sub(FIRST - 0x1_0000)?) + PLANE };
    usize::try_from(n).ok()
}

/// Where marks are put into a string: near its beginning and near its end, where no template looks. Between two words,
/// since templates look for tags and trim at ends; in JSON at the ends of strings, since templates read it.
fn places(text: &str, most: usize) -> Vec<usize> {
    let from = text.len() - text.trim_start().len();
    let to = from + text.trim().len();
    if from == to {
        return Vec::new();
    }
    let bytes = text.as_bytes();
    if matches!(bytes[from], b'{' | b'[' | b'"') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
        return in_json(bytes, most);
    }
    // What lies beyond a mark is taken for the string's own as far as it is printed as it is: a line break may not be.
    let near = (to - from).min(NEAR);
    let gap =
        |i: &usize| bytes[*i] == b' ' && bytes[i - 1].is_ascii_alphanumeric() && bytes[i + 1].is_ascii_alphanumeric();
    let word = |b: u8| b.is_ascii_alphanumeric() || b >= 0x80;
    let tag =
        |at: usize| bytes[at.saturating_sub(TAG)..at].iter().rev().find(|b| matches!(b, b'<' | b'[' | b'>' | b']'));
    let within = |at: &usize| {
        text.is_char_boundary(*at) && word(bytes[*at]) && word(bytes[at - 1]) && !matches!(tag(*at), Some(b'<' | b'['))
    };
    let (low, high) = (from + 1, to - 1);
    let first = (low..(from + near).min(high)).find(gap).or_else(|| (low..from + near).find(within)).unwrap_or(to);
    let last = (low.max(to - near)..high).rev().find(gap).or_else(|| (low.max(to - near)..to).rev().find(within));
    let last = last.unwrap_or(to);
    if last > first { vec![first, last] } else { vec![first] }
}

/// The ends of the strings of a JSON text: those of keys keep the key's place among others. Of many, the first and the last.
fn in_json(bytes: &[u8], most: usize) -> Vec<usize> {
    let mut out = Vec::new();
    let mut inside = false;
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'"', b'\\', &bytes[at..]) {
        at += found;
        if bytes[at] == b'\\' {
            at += 1;
        } else {
            inside = !inside;
            if !inside {
                out.push(at);
            }
        }
        at = (at + 1).min(bytes.len());
    }
    if out.len() > most {
        let last = out.split_off(out.len() - most / 2);
        out.truncate(most / 2);
        out.extend(last);
    }
    out
}

/// A mark, where it was found in the true text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// The byte of the true text before which it stands.
    pub(super) at: usize,
    /// Which mark.
    pub(super) spot: usize,
}

/// The rendering differs by more than its marks: the marks before and behind the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Differs {
    pub(super) before: Option<usize>,
    pub(super) behind: Option<usize>,
}

/// Reads the places of the marks off a rendering.
pub(super) fn read(truth: &str, marked: &str, spots: usize) -> Result<Vec<Seen>, Differs> {
    let mut out: Vec<Seen> = Vec::new();
    let (mut i, mut j) = (0, 0);
    let (bytes, true_bytes) = (marked.as_bytes(), truth.as_bytes());
    loop {
        let found = memchr::memchr2(0xF3, 0xF4, &bytes[i..]).map(|n| i + n);
        let upto = found.unwrap_or(bytes.len());
        let run = upto - i;
        let differs = |out: &[Seen]| Differs {
            before: out.last().map(|s| s.spot),
            behind: marked[upto..].chars().filter_map(number).find(|n| *n < spots),
        };
        if true_bytes.get(j..j + run) != Some(&bytes[i..upto]) {
            return Err(differs(&out));
        }
        (i, j) = (upto, j + run);
        let Some(c) = marked.get(i..).and_then(|rest| rest.chars().next()) else {
            return if j == truth.len() { Ok(out) } else { Err(differs(&out)) };
        };
        // A character of the text itself stands in both.
        let same = truth.get(j..).is_some_and(|rest| rest.starts_with(c));
        match number(c).filter(|n| *n < spots && !same) {
            Some(spot) => out.push(Seen { at: j, spot }),
            None if same => j += c.len_utf8(),
            None => return Err(differs(&out)),
        }
        i += c.len_utf8();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn marks_stand_where_no_template_looks() {
        for (text, expect) in [
            ("", vec![]),
            (" \n ", vec![]),
            ("one two three", vec![3, 7]),
            ("<think>\nhm hm\n</think>\n\nHello there", vec![10, 29]),
            ("sunny", vec![1, 4]),
            ("x", vec![1]),
            ("!!", vec![2]),
            ("{\"a\": \"x\\\"y\", \"b\": 1}", vec![3, 11, 16]),
            ("[1, 2]", vec![]),
            ("[INFO] \"no\" quotes here", vec![18]),
            ("\u{e9}\u{e9}", vec![2]),
        ] {
            assert_eq!(places(text, 4), expect, "{text:?}");
        }
        let many = Value::Array((0..100).map(|i| json!(format!("{i:02}"))).collect()).to_string();
        assert_eq!(places(&many, 4), [4, 9, many.len() - 7, many.len() - 2]);
    }

    #[test]
    fn marks_are_read_back_and_a_difference_is_told() {
        let request = json!({"messages": [
            {"role": "user", "content": "\u{100001} an icon of its own"},
            {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "look", "arguments": "{\"at\": \"x\"}"}}]}]});
        let marked = mark(&request, &Without::default());
        let owners: Vec<Owner> = marked.spots.iter().map(|s| s.owner).collect();
        let call = Owner::Call(1, 0);
        assert_eq!(owners, [Owner::Words(0), Owner::Words(0), call, call, call, call]);
        let text = |r: &Value| {
            format!(
                "<{}|{}>",
                r["messages"][0]["content"].as_str().unwrap(),
                r["messages"][1]["tool_calls"][0]["function"]["arguments"].as_str().unwrap()
            )
        };
        let (truth, with) = (text(&request), text(&marked.request));
        let seen = read(&truth, &with, marked.spots.len()).unwrap();
        assert_eq!(seen.iter().map(|s| s.spot).collect::<Vec<_>>(), [0, 1, 4, 5]);
        for s in &seen {
            let spot = &marked.spots[s.spot];
            assert!(truth[..s.at].ends_with(&spot.text[..spot.at]) && truth[s.at..].starts_with(&spot.text[spot.at..]));
        }
        let other = truth.replace("icon", "ikon");
        assert_eq!(read(&other, &with, 6), Err(Differs { before: Some(0), behind: Some(1) }));
    }

    #[test]
    fn every_mark_has_its_number() {
        for n in [0, 1, 65_533, 65_534, 131_067] {
            assert_eq!(character(n).and_then(number), Some(n));
        }
        assert_eq!(character(131_068), None);
        assert_eq!(number('x'), None);
    }
}
