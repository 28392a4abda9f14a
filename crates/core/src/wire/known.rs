//! A request that goes on from one that was read before: what both begin with is not read again. Nearly all of a long
//! conversation's requests is the request before them, byte for byte.
//!
//! What is read this way is the same as what [`openai_chat::parse`] reads: the end of the last message that both have is a place
//! where every parser stands alike. Whatever is odd behind it is left to that function.

use std::collections::VecDeque;

use bytes::Bytes;

use super::openai_chat::{self, Messages, Request, Top};
use super::{WireError, json};
use crate::conversation::{Conversation, Message, Role};

/// Bytes that are compared at once.
const CHUNK: usize = 4096;

/// About what a message takes in memory beside its bytes and its text.
const MESSAGE: usize = 320;

/// Bytes from which on a request is kept: fewer are read in no time.
const LEAST: usize = 16 << 10;

/// Memory that all take together (bytes). One that would take more by itself is not kept.
const MOST: usize = 16 << 20;

/// The messages of a request that was read, for the next one that begins with the same bytes.
#[derive(Debug, Default)]
pub struct Known {
    body: Bytes,
    /// Where the first message may stand: behind the bracket.
    array: usize,
    /// Where each message begins and ends.
    spans: Vec<(usize, usize)>,
    /// Each without its bytes, which stand in the body.
    messages: Vec<Message>,
}

impl Known {
    /// Takes in a request, right after it was read: its messages behind the first `shared`, which it knows.
    fn go_on(&mut self, request: &Request, shared: usize) {
        let Conversation { system, body: rest, .. } = &request.conversation;
        if weight(&request.body, system.len() + rest.len()) > MOST {
            *self = Known::default();
            return;
        }
        self.spans.truncate(shared);
        self.messages.truncate(shared);
        for message in system.iter().chain(rest).skip(self.messages.len()) {
            // Of one that could not be read, what it says depends on where it stands.
            let start = Some(message).filter(|m| m.repaired.is_none() && m.raw.starts_with(b"{"));
            let Some(start) = start.and_then(|m| offset(&request.body, &m.raw)) else { break };
            self.spans.push((start, start + message.raw.len()));
            self.messages.push(Message { raw: Bytes::new(), ..message.clone() });
        }
        let before = self.spans.first().and_then(|(start, _)| request.body.get(..*start)).unwrap_or_default();
        match before.iter().rposition(|b| !b.is_ascii_whitespace()) {
            Some(at) if before[at] == b'[' => self.array = at + 1,
            _ => *self = Known::default(),
        }
        self.body = request.body.clone();
    }

    fn bytes(&self) -> usize {
        weight(&self.body, self.messages.len())
    }

    /// How many of its messages a body begins with.
    fn shared(&self, body: &[u8]) -> usize {
        let same = common(&self.body, body);
        self.spans.partition_point(|(_, end)| *end <= same)
    }
}

/// The long requests that were read last, one of each conversation.
#[derive(Debug, Default)]
pub struct Kept {
    all: VecDeque<Known>,
}

impl Kept {
    /// Takes out the request that a body goes on from furthest, with the number of messages that both have.
    pub fn take(&mut self, body: &[u8]) -> Option<(Known, usize)> {
        let best = self.all.iter().enumerate().map(|(at, known)| (known.shared(body), at)).max()?;
        let (shared, at) = Some(best).filter(|(shared, _)| *shared > 0)?;
        self.all.remove(at).map(|known| (known, shared))
    }

    /// Puts one in, and lets those go that were used before, where all are too large. A small one is not kept.
    pub fn put(&mut self, known: Known) {
        if known.messages.is_empty() || known.body.len() < LEAST {
            return;
        }
        self.all.push_back(known);
        while self.all.iter().map(Known::bytes).sum::<usize>() > MOST {
            self.all.pop_front();
        }
    }
}

/// Bytes of memory that a request takes while it is kept, about.
fn weight(body: &[u8], messages: usize) -> usize {
    2 * body.len() + MESSAGE * messages
}

/// How many bytes two texts have in common from their beginning.
fn common(a: &[u8], b: &[u8]) -> usize {
    let chunks = a.chunks(CHUNK).zip(b.chunks(CHUNK)).take_while(|(a, b)| a == b);
    let at: usize = chunks.map(|(chunk, _)| chunk.len()).sum();
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

/// Reads a request body as [`openai_chat::parse`] does, with what was known of the one that it goes on from. Returns what is known
/// of this one, too.
///
/// # Errors
/// As [`openai_chat::parse`].
pub fn parse(body: &Bytes, known: Option<(Known, usize)>) -> Result<(Request, Known), WireError> {
    let (mut known, mut shared) = known.unwrap_or_default();
    let request = match goes_on(body, &known, shared) {
        Some(request) => request,
        None => {
            shared = 0;
            openai_chat::parse(body)?
        }
    };
    known.go_on(&request, shared);
    Ok((request, known))
}

/// A request that begins with the first `shared` messages of a known one; `None` where anything behind them is odd.
fn goes_on(body: &Bytes, known: &Known, shared: usize) -> Option<Request> {
    let (_, from) = *known.spans.get(shared.checked_sub(1)?)?;
    let tail = std::str::from_utf8(&body[from..]).ok().filter(|tail| !json::may_be_cut(tail))?;
    let tail = tail.trim_start_matches(is_space);
    let rest = match tail.strip_prefix(',') {
        Some(more) => Some(more).filter(|more| !more.trim_start_matches(is_space).starts_with(']'))?,
        None => Some(tail).filter(|tail| tail.starts_with(']'))?,
    };
    let behind = format!("{{\"messages\":[{rest}");
    let end: Top<'_> = serde_json::from_str(&behind).ok()?;
    let before = format!("{}]}}", std::str::from_utf8(&body[..known.array]).ok()?);
    let head: Top<'_> = serde_json::from_str(&before).ok()?;
    let Messages::Array(raws) = &end.messages else { return None };
    if end.times != 1 {
        return None;
    }
    // The body ends as `behind` does, and begins as `before` does.
    let in_end = |part: &str| {
        let start = body.len().checked_sub(behind.len() - offset(behind.as_bytes(), part.as_bytes())?)?;
        (start + part.len() <= body.len()).then(|| body.slice(start..start + part.len()))
    };
    let in_head =
        |part: &str| offset(before.as_bytes(), part.as_bytes()).map(|start| body.slice(start..start + part.len()));
    let new: Option<Vec<Message>> = raws.iter().map(|raw| openai_chat::message(in_end(raw.get())?).ok()).collect();
    let known = known.messages.iter().zip(&known.spans).take(shared);
    let known = known.map(|(message, (start, end))| Message { raw: body.slice(*start..*end), ..message.clone() });
    let mut conversation = Conversation::default();
    conversation.body.reserve(shared + raws.len());
    for message in known.chain(new?) {
        if message.role == Role::System && conversation.body.is_empty() {
            conversation.system.push(message);
        } else {
            conversation.body.push(message);
        }
    }
    let last = |top: &Top<'_>, key: &str| top.fields.iter().rposition(|(k, _)| k == key);
    conversation.tools = match (last(&end, "tools"), last(&head, "tools")) {
        (Some(at), _) => Some(in_end(end.fields[at].1.get())?),
        (None, Some(at)) => Some(in_head(head.fields[at].1.get())?),
        (None, None) => None,
    };
    let field = |key: &str| {
        let fields = head.fields.iter().chain(&end.fields);
        fields.rev().find(|(k, _)| k == key).map(|(_, v)| v.get())
    };
    Some(openai_chat::request(body.clone(), conversation, &field))
}

/// Where a part of a text begins in it.
fn offset(text: &[u8], part: &[u8]) -> Option<usize> {
    let at = (part.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    (at + part.len() <= text.len()).then_some(at)
}

/// White space between the parts of JSON (RFC 8259, section 2).
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(body: &str) -> Result<Request, String> {
        openai_chat::parse(&body.to_owned().into()).map_err(|e| e.to_string())
    }

    fn known(body: &str) -> Known {
        parse(&body.to_owned().into(), None).unwrap().1
    }

    /// Whether both ways of reading give the same, and how much of the body was known.
    fn is_same(body: &str, first: &str) -> usize {
        let bytes = Bytes::from(body.to_owned());
        let known = known(first);
        let shared = known.shared(&bytes);
        let shared = if goes_on(&bytes, &known, shared).is_some() { shared } else { 0 };
        let ours = parse(&bytes, Some((known, shared))).map_err(|e| e.to_string());
        let plain = read(body);
        let request = ours.as_ref().map(|(request, _)| request);
        assert_eq!(format!("{request:?}"), format!("{:?}", plain.as_ref()), "{body}");
        if let Ok((request, next)) = &ours {
            let all = request.conversation.system.iter().chain(&request.conversation.body);
            assert!(all.zip(&next.spans).all(|(m, (start, end))| m.raw == request.body[*start..*end]));
            // Known this way or that, it is the same.
            assert_eq!(format!("{next:?}"), format!("{:?}", self::known(body)), "{body}");
        }
        shared
    }

    const FIRST: &str = r#"{"model":"m","tools":[{"a":1}],"messages": [{"role":"system","content":"s"},
        {"role":"user","content":"a"} , {"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"1","content":"r"}],"stream":true,"max_tokens":5}"#;

    #[test]
    fn what_goes_on_is_read_from_where_it_goes_on() {
        let (all, rest) = FIRST.split_once(r#"],"stream""#).unwrap();
        let more = r#"{"role":"user","content":[{"type":"text","text":"b"}]}"#;
        for (body, shared) in [
            (FIRST.to_owned(), 4),
            (format!(r#"{all},{more}],"stream"{rest}"#), 4),
            (format!("{all} ,\n{more} , {more}]}}"), 4),
            (format!(r#"{all}],"model":"n","tools":[],"seed":1}}"#), 4),
            (FIRST.replace(r#""content":"r""#, r#""content":"q""#), 3),
            (FIRST.replace(r#""role":"system""#, r#""role":"user""#), 0),
            (FIRST.replace(r#""model":"m""#, r#""model":"n""#), 0),
            // What is odd is left to the other way.
            (format!("{all},]}}"), 0),
            (format!("{all}{more}]}}"), 0),
            (format!("{all},{more}"), 0),
            (format!("{all},{more}]}} x"), 0),
            // Of this, the other way has to find out that it is one object.
            (format!(r#"{all},{{"role":"user","content":"}}{{"}}]}} "#), 4),
            (format!("{all},7]}}"), 0),
            (format!(r#"{all}],"messages":[{more}]}}"#), 0),
            (format!(r#"{all},{{"role":"user","content":"\ud800"}}]}}"#), 0),
            (format!(r#"{all},{{"content":"x"}},{more}]}}"#), 0),
            (String::new(), 0),
        ] {
            assert_eq!(is_same(&body, FIRST), shared, "{body}");
        }
    }

    #[test]
    fn what_could_not_be_read_is_not_known() {
        let body = r#"{"messages":[{"role":"user","content":"a"},{"content":"b"},{"role":"user","content":"c"}]}"#;
        assert_eq!(known(body).messages.len(), 1);
        assert_eq!(known(r#"{"messages":[]}"#).messages.len(), 0);
        let twice = r#"{"messages":[{"role":"user","content":"a"}],"messages": [ {"role":"user","content":"b"}]}"#;
        assert_eq!(is_same(&twice.replace("]}", r#",{"role":"user","content":"c"}]}"#), twice), 1);
    }

    #[test]
    fn only_long_requests_are_kept_and_not_too_many() {
        let body = |seed: usize, messages: usize, size: usize| {
            let text = format!("{seed} {}", "x".repeat(size));
            let all: Vec<String> = (0..messages)
                .map(|n| serde_json::json!({"role": "user", "content": format!("{n} {text}")}).to_string())
                .collect();
            format!("{{\"messages\":[{}]}}", all.join(","))
        };
        let mut kept = Kept::default();
        // Few and long messages are as long as many short ones.
        for (seed, messages, size) in [(1, 64, 10), (2, 64, LEAST / 64), (3, 64, MOST / 64), (4, 2, LEAST)] {
            kept.put(known(&body(seed, messages, size)));
        }
        let mut shared =
            |seed, messages, size| kept.take(body(seed, messages, size).as_bytes()).map(|(_, shared)| shared);
        assert_eq!((shared(1, 99, 10), shared(3, 99, MOST / 64), shared(4, 9, LEAST)), (None, None, Some(2)));
        assert_eq!((shared(2, 99, LEAST / 64), shared(2, 99, LEAST / 64)), (Some(64), None), "it is taken out");
        for seed in 0..40 {
            kept.put(known(&body(seed, 64, 8_000)));
        }
        assert!(kept.all.len() > 10 && kept.all.iter().map(Known::bytes).sum::<usize>() <= MOST);
        assert_eq!(kept.take(body(39, 99, 8_000).as_bytes()).map(|(_, shared)| shared), Some(64));
        assert!(kept.take(body(0, 99, 8_000).as_bytes()).is_none(), "the one that was used longest ago went");
    }

    proptest! {
        #[test]
        fn both_ways_read_the_same(
            said in proptest::collection::vec("[a-z\"\\\\{}\\[\\], é]{0,12}", 1..8),
            cut in 0usize..600,
            put in "[\\[\\]{},: \"a]{0,6}",
            gap in "[ \n]{0,2}",
            behind in "[ \n]{0,2}",
        ) {
            let message = |text: &String| serde_json::json!({"role": "user", "content": text}).to_string();
            let all: Vec<String> = said.iter().map(message).collect();
            let body = format!("{{\"messages\":{gap}[{gap}{}{gap}],\"n\":2}}{behind}", all.join(&format!("{gap},")));
            let first = format!("{{\"messages\":{gap}[{gap}{}]}}", all[..all.len().div_ceil(2)].join(&format!("{gap},")));
            prop_assert!(is_same(&body, &first) >= all.len().div_ceil(2));
            let mut at = cut.min(body.len());
            while !body.is_char_boundary(at) { at -= 1; }
            is_same(&format!("{}{put}{}", &body[..at], &body[at..]), &first);
            is_same(&body[..at], &first);
        }
    }
}
