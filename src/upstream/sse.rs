//! Server-sent events (WHATWG HTML, 9.2), cut into blocks. Pure: bytes in at any split, whole blocks out.
//!
//! Every block keeps its raw bytes, and the raw bytes of all blocks, put together, are the stream: a relay may drop or
//! hold back one event and forward the others untouched.

use bytes::{Bytes, BytesMut};
use memchr::{memchr, memchr2};

pub use super::ndjson::TooLong;

/// The longest block held by default (bytes).
pub const BLOCK_LIMIT: usize = super::ndjson::LINE_LIMIT;

/// What stands between two blank lines: an event, or comments alone (a ping).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The `event:` field, where there is one.
    pub event: Option<Bytes>,
    /// The `data:` lines joined by `\n`; `None` for comments and other blocks without data.
    pub data: Option<Bytes>,
    /// Lines that are JSON objects by themselves, without any field's name: some servers say their errors so.
    pub bare: Vec<Bytes>,
    /// The bytes as they came, with the blank line that ends them.
    pub raw: Bytes,
}

/// Collects bytes until they are blocks.
#[derive(Debug)]
pub struct Parser {
    /// Bytes of the unfinished block.
    held: BytesMut,
    /// How many of them are known to hold no line end (all of them are before the unfinished line's end).
    scanned: usize,
    /// Where the unfinished line starts in `held`.
    line: usize,
    /// The last byte was `\r`: a `\n` now belongs to it.
    after_cr: bool,
    limit: usize,
}

impl Default for Parser {
    fn default() -> Self {
        Parser::new(BLOCK_LIMIT)
    }
}

impl Parser {
    /// Nothing held yet; blocks of more than `limit` bytes are refused.
    pub fn new(limit: usize) -> Parser {
        Parser { held: BytesMut::new(), scanned: 0, line: 0, after_cr: false, limit }
    }

    /// The blocks completed by these bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Block>, TooLong> {
        self.held.extend_from_slice(bytes);
        let mut blocks = Vec::new();
        while let Some(end) = self.next_line_end() {
            let blank = end.start == self.line;
            self.line = end.next;
            self.scanned = end.next;
            if blank {
                let raw = self.held.split_to(end.next).freeze();
                (self.line, self.scanned) = (0, 0);
                blocks.push(Block::read(raw));
            }
        }
        if self.held.len() > self.limit {
            *self = Parser { after_cr: self.after_cr, ..Parser::new(self.limit) };
            return Err(TooLong { limit: self.limit });
        }
        Ok(blocks)
    }

    /// What is left when the stream has ended. The standard drops such a block; servers that forget the last blank
    /// line exist, and it is for the caller to say whether it counts.
    pub fn finish(&mut self) -> Option<Block> {
        let raw = self.held.split().freeze();
        (self.line, self.scanned) = (0, 0);
        (!raw.is_empty()).then(|| Block::read(raw))
    }

    fn next_line_end(&mut self) -> Option<LineEnd> {
        if self.after_cr && self.scanned < self.held.len() {
            self.after_cr = false;
            if self.held[self.scanned] == b'\n' {
                // The second half of a `\r\n` whose first half has already ended its line.
                self.scanned += 1;
                self.line = self.scanned;
            }
        }
        let found = memchr2(b'\n', b'\r', &self.held[self.scanned..]).map(|at| self.scanned + at);
        let Some(start) = found else {
            self.scanned = self.held.len();
            return None;
        };
        if self.held[start] == b'\n' {
            return Some(LineEnd { start, next: start + 1 });
        }
        match self.held.get(start + 1) {
            Some(b'\n') => Some(LineEnd { start, next: start + 2 }),
            Some(_) => Some(LineEnd { start, next: start + 1 }),
            None => {
                self.after_cr = true;
                Some(LineEnd { start, next: start + 1 })
            }
        }
    }
}

struct LineEnd {
    start: usize,
    next: usize,
}

impl Block {
    fn read(raw: Bytes) -> Block {
        let mut event = None;
        let mut data: Option<Data> = None;
        let mut bare = Vec::new();
        for line in Lines(&raw) {
            let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
            // Older llama-servers said an error in a field of that name.
            let alone = line.strip_prefix(b"error:").map_or(line, <[u8]>::trim_ascii_start);
            if alone.starts_with(b"{") {
                bare.push(raw.slice_ref(alone));
                continue;
            }
            let (field, value) = match memchr(b':', line) {
                Some(colon) => (&line[..colon], &line[colon + 1..]),
                None => (line, &line[line.len()..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match field {
                b"event" => event = Some(raw.slice_ref(value)),
                b"data" => {
                    let value = raw.slice_ref(value);
                    data = Some(data.map_or(Data::One(value.clone()), |before| before.and(&value)));
                }
                _ => {}
            }
        }
        Block { event, data: data.map(Data::bytes), bare, raw }
    }
}

/// Data of one line is a slice of the block; only several lines are copied.
enum Data {
    One(Bytes),
    Joined(BytesMut),
}

impl Data {
    fn and(self, line: &[u8]) -> Data {
        let mut joined = match self {
            Data::One(first) => BytesMut::from(&first[..]),
            Data::Joined(joined) => joined,
        };
        joined.extend_from_slice(b"\n");
        joined.extend_from_slice(line);
        Data::Joined(joined)
    }

    fn bytes(self) -> Bytes {
        match self {
            Data::One(line) => line,
            Data::Joined(joined) => joined.freeze(),
        }
    }
}

/// Lines ended by `\n`, `\r\n` or `\r`; empty ones included.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let end = memchr2(b'\n', b'\r', self.0).unwrap_or(self.0.len());
        let line = &self.0[..end];
        let ends = if self.0[end..].starts_with(b"\r\n") { 2 } else { 1 };
        self.0 = &self.0[(end + ends).min(self.0.len())..];
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(parts: &[&[u8]]) -> Vec<Block> {
        let mut parser = Parser::default();
        let mut out: Vec<Block> = parts.iter().flat_map(|part| parser.push(part).unwrap()).collect();
        out.extend(parser.finish());
        out
    }

    fn seen(blocks: &[Block]) -> Vec<(Option<&str>, Option<&str>)> {
        let text = |bytes: &'_ Bytes| std::str::from_utf8(bytes).unwrap().to_owned().leak() as &str;
        blocks
            .iter()
            .filter(|b| b.event.is_some() || b.data.is_some())
            .map(|b| (b.event.as_ref().map(text), b.data.as_ref().map(text)))
            .collect()
    }

    #[test]
    fn blocks_are_the_same_at_every_split_and_lose_no_byte() {
        let stream = "\u{feff}: ping\n\ndata: {\"a\":\"é\"}\n\nevent: error\r\ndata:one\r\ndata\r\ndata:  two\r\n\r\nid: 3\rdata: x\r\r: bye\n\ndata: [DONE]";
        let want = [
            (None, Some(r#"{"a":"é"}"#)),
            (Some("error"), Some("one\n\n two")),
            (None, Some("x")),
            (None, Some("[DONE]")),
        ];
        let bytes = stream.as_bytes();
        for i in 0..=bytes.len() {
            for j in i..=bytes.len() {
                let blocks = all(&[&bytes[..i], &bytes[i..j], &bytes[j..]]);
                assert_eq!(seen(&blocks), want, "{i} {j}");
                assert_eq!(blocks.iter().flat_map(|b| b.raw.to_vec()).collect::<Vec<_>>(), bytes, "{i} {j}");
            }
        }
    }

    #[test]
    fn an_event_is_out_as_soon_as_its_blank_line_is_in() {
        for end in ["\n\n", "\r\n\r", "\r\r"] {
            let mut parser = Parser::default();
            assert_eq!(parser.push(format!("data: 1{end}").as_bytes()).unwrap().len(), 1, "{end:?}");
        }
    }

    #[test]
    fn lines_of_over_64_kib_and_byte_by_byte() {
        let long = "x".repeat(200_000);
        let stream = format!("data: {long}\n\n");
        let mut parser = Parser::default();
        let blocks: Vec<Block> = stream.as_bytes().chunks(1).flat_map(|c| parser.push(c).unwrap()).collect();
        assert_eq!(blocks[0].data.as_ref().unwrap().len(), 200_000);
    }

    #[test]
    fn a_block_over_the_limit_is_refused() {
        let mut parser = Parser::new(16);
        assert_eq!(parser.push(b"data: 1\n\ndata: 2\n\n").unwrap().len(), 2);
        assert_eq!(parser.push(b"data: 0123456789abcdef"), Err(TooLong { limit: 16 }));
    }
}
