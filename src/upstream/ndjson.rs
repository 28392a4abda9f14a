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
    fn a_line_over_the_limit_is_refused_and_let_go() {
        let mut lines = Lines::new(4);
        assert_eq!(lines.push(b"abcd\nab").unwrap(), ["abcd"]);
        assert_eq!(lines.push(b"cde"), Err(TooLong { limit: 4 }));
        assert_eq!(lines.push(b"xy\n").unwrap(), ["xy"]);
    }
}
