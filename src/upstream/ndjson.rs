//! Newline-delimited JSON, cut into lines. Pure: bytes in at any split, whole lines out; it does not look inside them.

use std::fmt;

use bytes::{Bytes, BytesMut};
use memchr::memchr;

/// The longest line held by default (bytes).
pub const LINE_LIMIT: usize = 64 << 20;

/// A line or an event passed the limit: what is held so far is useless and was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong {
    /// The limit that was passed (bytes).
    pub limit: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a line of a stream is longer than {} bytes", self.limit)
    }
}

impl std::error::Error for TooLong {}

/// Collects bytes until they are lines.
#[derive(Debug)]
pub struct Lines {
    held: BytesMut,
    limit: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Lines::new(LINE_LIMIT)
    }
}

impl Lines {
    /// Nothing held yet; lines of more than `limit` bytes are refused.
    pub fn new(limit: usize) -> Lines {
        Lines { held: BytesMut::new(), limit }
    }

    /// The lines completed by these bytes, without their ends (`\n` or `\r\n`); blank lines are left out.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Bytes>, TooLong> {
        let mut lines = Vec::new();
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            self.hold(&rest[..end])?;
            rest = &rest[end + 1..];
            lines.extend(self.take());
        }
        self.hold(rest)?;
        Ok(lines)
    }

    /// What is left when the stream has ended: a last line without its end.
    pub fn finish(&mut self) -> Option<Bytes> {
        self.take()
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.held.len() + bytes.len() > self.limit {
            self.held = BytesMut::new();
            return Err(TooLong { limit: self.limit });
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }

    fn take(&mut self) -> Option<Bytes> {
        let mut line = self.held.split().freeze();
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        (!line.is_empty()).then_some(line)
    }
}

/// Puts lines together to JSON documents: one a line, or one that is spelled over several.
#[derive(Debug, Default)]
pub struct Documents {
    held: BytesMut,
}

impl Documents {
    /// The document that this line ends, or one that is none. A document over several lines ends with a line that begins with
    /// `}`, as everybody indents them.
    pub fn line(&mut self, line: &Bytes) -> Option<Bytes> {
        let is_json = |bytes: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
        if self.held.is_empty() {
            let opens = matches!(line.trim_ascii(), b"{") || line.trim_ascii().ends_with(b"{") || line.ends_with(b",");
            if !opens || is_json(line) {
                return Some(line.clone());
            }
        } else {
            self.held.extend_from_slice(b"\n");
        }
        self.held.extend_from_slice(line);
        if self.held.len() > LINE_LIMIT || line.starts_with(b"}") && is_json(&self.held) {
            return Some(self.held.split().freeze());
        }
        None
    }

    /// What is left when the stream has ended.
    pub fn finish(&mut self) -> Option<Bytes> {
        let left = self.held.split().freeze();
        (!left.is_empty()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = "{\"a\":\"é\"}\n{\"b\":2}\r\n\n\r\n{\"c\":3}".as_bytes();

    fn all(parts: &[&[u8]]) -> Vec<Bytes> {
        let mut lines = Lines::new(64);
        let mut out: Vec<Bytes> = parts.iter().flat_map(|part| lines.push(part).unwrap()).collect();
        out.extend(lines.finish());
        out
    }

    #[test]
    fn lines_are_the_same_at_every_split() {
        let want = [r#"{"a":"é"}"#, r#"{"b":2}"#, r#"{"c":3}"#];
        for i in 0..=STREAM.len() {
            for j in i..=STREAM.len() {
                assert_eq!(all(&[&STREAM[..i], &STREAM[i..j], &STREAM[j..]]), want, "{i} {j}");
            }
        }
    }

    #[test]
    fn a_document_may_take_several_lines() {
        let mut documents = Documents::default();
        let spelled = serde_json::to_string_pretty(&serde_json::json!({"a": {"b": [1, {"c": 2}]}})).unwrap();
        let mut out = Vec::new();
        for line in ["{\"x\": 1}", "no json"].into_iter().chain(spelled.lines()).chain(["{\"y\": 2}", "{"]) {
            out.extend(documents.line(&Bytes::from(line.to_owned())));
        }
        assert_eq!(out, ["{\"x\": 1}", "no json", spelled.as_str(), "{\"y\": 2}"]);
        assert_eq!(documents.finish().unwrap(), "{");
    }

    #[test]
    fn a_line_over_the_limit_is_refused_and_let_go() {
        let mut lines = Lines::new(4);
        assert_eq!(lines.push(b"abcd\nab").unwrap(), ["abcd"]);
        assert_eq!(lines.push(b"cde"), Err(TooLong { limit: 4 }));
        assert_eq!(lines.push(b"xy\n").unwrap(), ["xy"]);
    }
}
