//! JSON objects as they are spelled: ordered fields with raw values, read without copying and written back changed in
//! just the fields that were changed.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Number, Value};

/// The fields of a JSON object in their order, duplicates included, with values as spelled.
pub struct Fields<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// Reads the fields of one object; an error for anything else.
    pub fn read(text: &'a str) -> Result<Fields<'a>, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The spelled value of a field; the last one where a key stands twice, as JSON parsers take it.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.get())
    }

    /// The field as a string, if it is one.
    pub fn string(&self, key: &str) -> Option<String> {
        self.get(key).and_then(string)
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut out = Vec::with_capacity(8);
                while let Some(key) = map.next_key::<Key<'de>>()? {
                    out.push((key.0, map.next_value::<&'de RawValue>()?));
                }
                Ok(Fields(out))
            }
        }
        d.deserialize_map(V)
    }
}

/// A key, borrowed where its spelling has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(v)))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(v.to_owned())))
            }
        }
        d.deserialize_str(V)
    }
}

/// Decodes a spelled JSON string; `None` when the value is not a string. A lone surrogate (legal in JSON, impossible in
/// UTF-8, and sent by clients that cut strings in the middle) becomes U+FFFD.
pub fn string(raw: &str) -> Option<String> {
    let inner = raw.strip_prefix('"')?;
    let usual = inner.strip_suffix('"').and_then(decode);
    usual.or_else(|| serde_json::from_str::<String>(raw).ok()).or_else(|| Some(decode_lossy(raw)))
}

/// What stands between the quotes of a string that was read as JSON before. Most of a request is such text: it is copied
/// in runs, once, into room that is there from the start. `None` leaves pairs of surrogates to the JSON parser.
fn decode(inner: &str) -> Option<String> {
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        let mut length = 2;
        out.push(match rest.as_bytes().get(at + 1)? {
            b'n' => '\n',
            b'"' => '"',
            b'\\' => '\\',
            b't' => '\t',
            b'r' => '\r',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => {
                length = 6;
                char::from_u32(u32::from_str_radix(rest.get(at + 2..at + 6)?, 16).ok()?)?
            }
            _ => return None,
        });
        rest = &rest[at + length..];
    }
    out.push_str(rest);
    Some(out)
}

fn decode_lossy(raw: &str) -> String {
    serde_json::from_str(&paired(raw)).unwrap_or_default()
}

/// Reads a whole value. Lone surrogates become U+FFFD, as in [`string`], and numbers keep their spelling: the parser alone
/// makes `1e+5` of `1E5`.
pub fn value(text: &str) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::from_str(text).or_else(|e| serde_json::from_str(&paired(text)).map_err(|_| e))?;
    if may_be_spelled_otherwise(text) {
        respell(&mut value, &mut Numbers(text));
    }
    Ok(value)
}

/// Reads JSON as servers really send it: behind a byte order mark, before NULs, with lone surrogates, with control characters in
/// strings, and with the numbers that JSON has not (`NaN`, `Infinity`), which become `null`. `None` for anything else.
pub fn lenient(text: &str) -> Option<Value> {
    if let Ok(value) = serde_json::from_str(text) {
        return Some(value);
    }
    let text = text.trim_start_matches('\u{feff}').trim_end_matches('\0');
    value(text).or_else(|_| value(&cleaned(text))).ok()
}

/// A text without what no JSON has; see [`lenient`].
fn cleaned(text: &str) -> String {
    let (mut out, mut in_string, mut escaped, mut rest) = (String::with_capacity(text.len()), false, false, text);
    while let Some(c) = rest.chars().next() {
        let unknown = ["NaN", "Infinity", "-Infinity"].into_iter().find(|word| !in_string && rest.starts_with(word));
        if let Some(word) = unknown {
            out.push_str("null");
            rest = &rest[word.len()..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
        if in_string && c < ' ' {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// An object of values as they are: `json!` would write and read them once more, and spell their numbers in its own way.
pub fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<serde_json::Map<_, _>>().into()
}

/// Whether a number may stand in a text that the parser spells otherwise. Those that say no such thing are most.
fn may_be_spelled_otherwise(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    memchr::memchr2_iter(b'e', b'E', bytes)
        .any(|at| at > 0 && is_digit(at - 1) && (bytes[at] == b'E' || is_digit(at + 1)))
}

/// The numbers of a JSON text, in order.
struct Numbers<'a>(&'a str);

impl<'a> Iterator for Numbers<'a> {
    type Item = &'a str;
    fn next(&mut self) -> Option<&'a str> {
        loop {
            let at = self.0.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit())?;
            let (rest, is_text) = (&self.0[at..], self.0.as_bytes()[at] == b'"');
            let end = match is_text {
                true => end_of_text(rest),
                false => rest.find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c)).unwrap_or(rest.len()),
            };
            self.0 = &rest[end..];
            if !is_text {
                return Some(&rest[..end]);
            }
        }
    }
}

/// Where a spelled string ends that a text begins with.
fn end_of_text(text: &str) -> usize {
    let mut at = 1;
    while let Some(next) = memchr::memchr2(b'"', b'\\', text.as_bytes().get(at..).unwrap_or_default()) {
        if text.as_bytes()[at + next] == b'"' {
            return at + next + 1;
        }
        at += next + 2;
    }
    text.len()
}

/// Gives the numbers of a value their spelling back. It ends at the first that does not agree: a key that stands twice.
fn respell(value: &mut Value, spelled: &mut Numbers<'_>) -> bool {
    match value {
        Value::Number(number) => {
            let Some(own) = spelled.next() else { return false };
            let agrees = serde_json::from_str::<Number>(own).is_ok_and(|read| read == *number);
            if agrees {
                *number = Number::from_string_unchecked(own.to_owned());
            }
            agrees
        }
        Value::Array(all) => all.iter_mut().all(|value| respell(value, spelled)),
        Value::Object(all) => all.values_mut().all(|value| respell(value, spelled)),
        _ => true,
    }
}

/// A body with U+FFFD in the place of what is no Unicode: halves of surrogate pairs (text that a JavaScript client cut in the
/// middle of an emoji) and bytes that are no UTF-8. Servers refuse the first, and a history that holds one would be refused at
/// every turn. The bytes of all else stay as they are.
pub fn mended(body: &[u8]) -> Cow<'_, str> {
    // A byte order mark, which Windows' editors and .NET write before a text: servers pass over it.
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let body = &body[..end_of_object(body)];
    match std::str::from_utf8(body) {
        Err(_) => Cow::Owned(paired(&String::from_utf8_lossy(body))),
        Ok(text) if may_be_cut(text) => {
            let whole = paired(text);
            if whole == text { Cow::Borrowed(text) } else { Cow::Owned(whole) }
        }
        Ok(text) => Cow::Borrowed(text),
    }
}

/// Where the object ends that a body is: servers pass over what stands behind it, NULs, another object or whatever else.
fn end_of_object(body: &[u8]) -> usize {
    let start = body.trim_ascii_start();
    if !start.starts_with(b"{") || body.trim_ascii_end().ends_with(b"}") && !may_be_several(start) {
        return body.len();
    }
    let mut values = serde_json::Deserializer::from_slice(start).into_iter::<de::IgnoredAny>();
    match values.next() {
        // White space is not cut off: with it, a body has the same bytes however it was read.
        Some(Ok(_)) if !start[values.byte_offset()..].trim_ascii().is_empty() => {
            body.len() - start.len() + values.byte_offset()
        }
        _ => body.len(),
    }
}

/// Whether more than one object may stand in a body that ends with a brace: an object begins where another has just ended, which
/// within one stands in texts alone, or the body ends with two braces, of which one may be too many.
fn may_be_several(body: &[u8]) -> bool {
    let before = body.trim_ascii_end().strip_suffix(b"}").unwrap_or(body);
    before.trim_ascii_end().ends_with(b"}")
        || memchr::memchr_iter(b'{', body).any(|at| body[..at].trim_ascii_end().ends_with(b"}"))
}

/// Whether an escape of a surrogate may stand in a text.
pub(super) fn may_be_cut(text: &str) -> bool {
    ["\\ud", "\\uD"].iter().any(|escape| memchr::memmem::find(text.as_bytes(), escape.as_bytes()).is_some())
}

/// JSON text with U+FFFD in the place of every lone surrogate.
pub(super) fn paired(raw: &str) -> String {
    let mut fixed = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        fixed.push_str(&rest[..at]);
        let escape = &rest[at..];
        let unit = |s: &str| s.get(2..6).and_then(|h| u16::from_str_radix(h, 16).ok());
        let (keep, skip) = match (escape.as_bytes().get(1), unit(escape)) {
            (Some(b'u'), Some(0xD800..=0xDBFF)) => {
                let next = escape.get(6..).filter(|s| s.starts_with("\\u")).and_then(unit);
                if matches!(next, Some(0xDC00..=0xDFFF)) { (escape.get(..12), 12) } else { (Some("\\ufffd"), 6) }
            }
            (Some(b'u'), Some(0xDC00..=0xDFFF)) => (Some("\\ufffd"), 6),
            (Some(b'u'), _) => (escape.get(..6), 6),
            _ => (escape.get(..2), 2),
        };
        fixed.push_str(keep.unwrap_or(""));
        rest = escape.get(skip..).unwrap_or("");
    }
    fixed.push_str(rest);
    fixed
}

/// Spells a string as JSON.
pub fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
}

/// Writes an object anew: the named fields get new spelled values (in their old place, or at the end when new), the
/// others keep their bytes. `None` removes a field.
pub fn with_fields(object: &str, changes: &[(&str, Option<&str>)]) -> Result<Bytes, serde_json::Error> {
    let changes: Vec<(&str, Option<&[&str]>)> =
        changes.iter().map(|(k, v)| (*k, v.as_ref().map(std::slice::from_ref))).collect();
    with_pieces(object, &changes)
}

/// As [`with_fields`], with new values that come in pieces: they are copied once, into room of the size that is needed.
pub fn with_pieces(object: &str, changes: &[(&str, Option<&[&str]>)]) -> Result<Bytes, serde_json::Error> {
    let fields = Fields::read(object)?;
    let kept: Vec<&str> = fields.0.iter().map(|(_, value)| value.get()).collect();
    let mut entries: Vec<(String, &[&str])> = Vec::with_capacity(kept.len() + changes.len());
    for ((key, _), value) in fields.0.iter().zip(&kept) {
        match changes.iter().find(|(k, _)| k == key) {
            None => entries.push((quote(key), std::slice::from_ref(value))),
            Some((_, Some(new))) => entries.push((quote(key), new)),
            Some((_, None)) => {}
        }
    }
    for (key, value) in changes {
        if let (Some(new), false) = (value, fields.0.iter().any(|(k, _)| k == key)) {
            entries.push((quote(key), new));
        }
    }
    // Exactly the room that it takes: what replaces megabytes is small, and is kept for long.
    let size: usize =
        entries.iter().map(|(key, value)| key.len() + 2 + value.iter().map(|v| v.len()).sum::<usize>()).sum();
    let mut out = String::with_capacity(size.max(1) + 1);
    for (key, value) in entries {
        out.push(if out.is_empty() { '{' } else { ',' });
        out.push_str(&key);
        out.push(':');
        value.iter().for_each(|piece| out.push_str(piece));
    }
    if out.is_empty() {
        out.push('{');
    }
    out.push('}');
    Ok(Bytes::from(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untouched_fields_keep_their_spelling() {
        let object = r#"{ "t" : 0.70, "big":1e400,"\u00e9":[ 1 ,2], "content":"a\/b" , "x":null}"#;
        let out = with_fields(object, &[("content", Some("\"new\"")), ("x", None), ("y", Some("1"))]).unwrap();
        assert_eq!(out, r#"{"t":0.70,"big":1e400,"é":[ 1 ,2],"content":"new","y":1}"#);
        assert_eq!(with_fields("{}", &[]).unwrap(), "{}");
        assert_eq!(with_fields(r#"{"a":1}"#, &[("a", None)]).unwrap(), "{}");
    }

    #[test]
    fn strings_are_read_as_the_parser_reads_them() {
        for raw in [
            r#""""#,
            r#""plain""#,
            r#""\n\t\r\b\f\/\"\\""#,
            r#""a\nb \u00e9\u0000\uFFFF end\n""#,
            r#""caf\u00e9 \\u00e9 \ud83d\ude00""#,
            r#""\\""#,
            "\"h\u{e9} \u{1f600}\\n\"",
        ] {
            assert_eq!(string(raw), serde_json::from_str(raw).ok(), "{raw}");
        }
    }

    #[test]
    fn numbers_keep_their_spelling() {
        for text in [
            "1E5",
            "-0",
            r#"{"a":1E5,"b":[1.10,2e3,-0.0E-7],"c":"1E5 \" 2e2 \\","d":{"e":1e+400,"1E9":12345678901234567890}}"#,
            r#"["\ud83d\ude00 9e9",1e5]"#,
        ] {
            let spelled = value(text).unwrap().to_string();
            assert_eq!(spelled.replace("😀", "\\ud83d\\ude00"), text);
        }
        // The second of two keys counts, and what cannot be told apart stays as the parser has it.
        assert_eq!(value(r#"{"a":1E5,"b":7,"a":2E5}"#).unwrap().to_string(), r#"{"a":2e+5,"b":7}"#);
    }

    #[test]
    fn lone_surrogates_are_read_and_pairs_survive() {
        for (raw, expect) in [
            (r#""a\ud800b""#, "a\u{fffd}b"),
            (r#""\udc00\n""#, "\u{fffd}\n"),
            (r#""\ud83d\ude00\ud800""#, "😀\u{fffd}"),
            (r#""\\ud800""#, "\\ud800"),
            (r#""\ud800\u0041""#, "\u{fffd}A"),
        ] {
            assert_eq!(string(raw).as_deref(), Some(expect), "{raw}");
        }
        assert_eq!(string("12"), None);
        let cut = r#"{"a":["\ud83d",{"b\udc00":1}],"c":"\ud83d\ude00"}"#;
        assert_eq!(value(cut).unwrap(), serde_json::json!({"a": ["\u{fffd}", {"b\u{fffd}": 1}], "c": "😀"}));
        assert!(value("{").is_err());
        let whole = mended(cut.as_bytes());
        assert_eq!(whole, r#"{"a":["\ufffd",{"b\ufffd":1}],"c":"\ud83d\ude00"}"#);
        for text in [&*whole, r#"{"a":"\\ud83d","b":"\ud83d\ude00"}"#, "{}", ""] {
            assert!(matches!(mended(text.as_bytes()), Cow::Borrowed(same) if same == text));
        }
        assert_eq!(mended(b"{\"a\":\"\xff\"}"), "{\"a\":\"\u{fffd}\"}");
    }

    #[test]
    fn what_stands_behind_a_body_is_passed_over() {
        for behind in ["", "\0", " x", "\n--boundary", "{\"a\":2}", "\n {\"b\":{}}\n", "{", "}"] {
            assert_eq!(mended(format!(" {{\"a\":1}}{behind}").as_bytes()), " {\"a\":1}", "{behind:?}");
        }
        for other in ["{\"a\":1", "[1] x", "x", "", "{\"a\":\"} {\"}"] {
            assert_eq!(mended(other.as_bytes()), other);
        }
    }

    #[test]
    fn json_as_servers_send_it() {
        let read = |text: &str| lenient(text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(read("\u{feff}{\"a\":1}\0\0"), serde_json::json!({"a": 1}));
        assert_eq!(
            read("{\"a\":[NaN,-Infinity,Infinity,\"NaN\"]}"),
            serde_json::json!({"a": [null, null, null, "NaN"]})
        );
        assert_eq!(read("{\"a\":\"x\ty\nz\\\"\u{1}\"}"), serde_json::json!({"a": "x\ty\nz\"\u{1}"}));
        assert_eq!(read(r#"{"a":"\ud83d"}"#), serde_json::json!({"a": "\u{fffd}"}));
        for nothing in ["", "{", "error: gone", "<html>", "{\"a\":NaNa}", "[DONE]"] {
            assert_eq!(lenient(nothing), None, "{nothing}");
        }
    }
}
