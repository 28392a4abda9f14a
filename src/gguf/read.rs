//! The bytes of a header: a buffered reader that never takes a claimed length for granted. Nothing is allocated by what
//! the file claims, only by what was really read; what is not kept is passed over inside the buffer or by seeking.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use super::{Array, Error, Kind, Tensor, Value};

/// How much is read at once. Small, as metadata before a vocabulary is a few kilobytes; large enough that walking
/// 128k token strings (about 3 MB) takes some dozen reads.
const BUFFER: usize = 128 * 1024;
/// The longest header walked: the largest known (262k tokens and their merges) are under 20 MB.
const MAX_HEADER: u64 = 512 * 1024 * 1024;
/// The most metadata keys and the most tensors in one file; the largest known have about 100 and 20,000.
const MAX_KEYS: u64 = 65_536;
const MAX_TENSORS: u64 = 262_144;
/// The longest key or tensor name.
const MAX_NAME: u64 = 4_096;
/// The longest text kept: chat templates reach 100 kB. A longer one is passed over and kept as empty.
const MAX_TEXT: u64 = 4 * 1024 * 1024;
/// Elements of an array kept without being asked for: all per-layer arrays, no vocabulary.
const MAX_SMALL: u64 = 2_048;
/// Bytes of texts in one array kept without being asked for.
const MAX_SMALL_TEXT: u64 = 64 * 1024;
/// Bytes of metadata kept in all, arrays asked for included.
const MAX_KEPT: u64 = 256 * 1024 * 1024;

/// Reads forward, knows where it is and where the file ends.
pub(super) struct Cursor<R> {
    inner: BufReader<R>,
    offset: u64,
    end: u64,
    kept: u64,
}

type Result<T> = std::result::Result<T, Error>;

impl<R: Read + Seek> Cursor<R> {
    /// Starts at byte 0, wherever the reader stands.
    pub(super) fn new(mut reader: R) -> Result<Cursor<R>> {
        let io = |source| Error::Io { offset: 0, source };
        let end = reader.seek(SeekFrom::End(0)).map_err(io)?;
        reader.seek(SeekFrom::Start(0)).map_err(io)?;
        Ok(Cursor { inner: BufReader::with_capacity(BUFFER, reader), offset: 0, end, kept: 0 })
    }

    /// The bytes before the next one read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The file's length.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// That `length` more bytes are there and within the limit of a header; else says what was expected.
    fn expect(&self, length: u64, what: impl FnOnce() -> String) -> Result<()> {
        if length > self.end.saturating_sub(self.offset) {
            return Err(Error::Truncated { offset: self.offset, end: self.end, what: what() });
        }
        if self.offset.saturating_add(length) > MAX_HEADER {
            let what = format!("a header of more than {} MiB: {}", MAX_HEADER >> 20, what());
            return Err(Error::Broken { offset: self.offset, what });
        }
        Ok(())
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        self.expect(N as u64, || what.to_owned())?;
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes).map_err(|source| self.failed(source, what))?;
        self.offset += N as u64;
        Ok(bytes)
    }

    fn failed(&self, source: io::Error, what: &str) -> Error {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                Error::Truncated { offset: self.offset, end: self.end, what: what.to_owned() }
            }
            _ => Error::Io { offset: self.offset, source },
        }
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    /// Passes over `length` bytes: inside the buffer where possible.
    fn skip(&mut self, length: u64, what: impl FnOnce() -> String) -> Result<()> {
        self.expect(length, what)?;
        let buffered = self.inner.buffer().len() as u64;
        if length <= buffered {
            self.inner.consume(length as usize);
        } else {
            // `expect` bounds it far below i64::MAX.
            self.inner.seek_relative(length as i64).map_err(|source| Error::Io { offset: self.offset, source })?;
        }
        self.offset += length;
        Ok(())
    }

    /// A text of at most `limit` bytes; a longer one is passed over and gives `None`. Invalid UTF-8 is replaced.
    fn text(&mut self, limit: u64, what: &str) -> Result<Option<String>> {
        let length = self.u64(what)?;
        if length > limit || self.kept.saturating_add(length) > MAX_KEPT {
            self.skip(length, || format!("{what} of {length} bytes"))?;
            return Ok(None);
        }
        self.expect(length, || format!("{what} of {length} bytes"))?;
        self.kept += length;
        // At most `limit`, and the bytes are there.
        let mut bytes = vec![0; length as usize];
        self.inner.read_exact(&mut bytes).map_err(|source| self.failed(source, what))?;
        self.offset += length;
        let text = String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        Ok(Some(text))
    }

    fn name(&mut self, what: &str) -> Result<String> {
        let offset = self.offset;
        match self.text(MAX_NAME, what)? {
            Some(name) => Ok(name),
            None => Err(Error::Broken { offset, what: format!("{what} of more than {MAX_NAME} bytes") }),
        }
    }

    /// Magic, version and the two counts: tensors, keys.
    pub(super) fn head(&mut self) -> Result<(u32, u64, u64)> {
        let start = self.bytes::<4>("the magic number \"GGUF\"").map_err(|error| match error {
            Error::Truncated { .. } => Error::Magic { found: String::new() },
            error => error,
        })?;
        if &start != b"GGUF" {
            return Err(Error::Magic { found: start.escape_ascii().to_string() });
        }
        let version = self.u32("the version")?;
        // The check of ggml/src/gguf.cpp: in a file of the other byte order the low half is empty.
        if version != 0 && version & 0xFFFF == 0 {
            return Err(Error::BigEndian { version: version.swap_bytes() });
        }
        if !(2..=3).contains(&version) {
            return Err(Error::Version { found: version });
        }
        let tensors = self.count("the number of tensors", MAX_TENSORS, 24)?;
        let keys = self.count("the number of metadata keys", MAX_KEYS, 13)?;
        Ok((version, tensors, keys))
    }

    /// A count of things that take at least `least` bytes each.
    fn count(&mut self, what: &str, limit: u64, least: u64) -> Result<u64> {
        let offset = self.offset;
        let count = self.u64(what)?;
        if count > limit {
            return Err(Error::Broken { offset, what: format!("{what} is {count}; at most {limit} are read") });
        }
        self.expect(count.saturating_mul(least), || format!("{what}: {count} of them"))?;
        Ok(count)
    }

    /// One key and its value. `keep` says whether a large array of this key is wanted whole.
    pub(super) fn entry(&mut self, keep: impl Fn(&str) -> bool) -> Result<(String, Value)> {
        let key = self.name("a metadata key")?;
        let id = self.u32(&key)?;
        let value = match id {
            8 => Value::Text(self.text(MAX_TEXT, &key)?.unwrap_or_default()),
            9 => Value::Array(self.array(&key, keep(&key))?),
            id => self.scalar(id, &key)?,
        };
        Ok((key, value))
    }

    /// A value of fixed size.
    fn scalar(&mut self, id: u32, key: &str) -> Result<Value> {
        let offset = self.offset;
        Ok(match id {
            0 => Value::Unsigned(self.bytes::<1>(key)?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.bytes(key)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.bytes(key)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.bytes(key)?).into()),
            4 => Value::Unsigned(self.u32(key)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.bytes(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes(key)?).into()),
            7 => Value::Bool(self.bytes::<1>(key)?[0] != 0),
            10 => Value::Unsigned(self.u64(key)?),
            11 => Value::Signed(i64::from_le_bytes(self.bytes(key)?)),
            12 => Value::Float(f64::from_le_bytes(self.bytes(key)?)),
            id => {
                let what = format!("`{key}` has a value of type {id}: types 0 to 12 are known");
                return Err(Error::Broken { offset, what });
            }
        })
    }

    fn array(&mut self, key: &str, keep: bool) -> Result<Array> {
        let offset = self.offset;
        let id = self.u32(key)?;
        let length = self.u64(key)?;
        match (id, width(id)) {
            (8, _) => self.texts(key, length, keep),
            (_, Some(width)) => self.scalars(key, id, width, length, keep),
            (9, _) => {
                Err(Error::Broken { offset, what: format!("`{key}` is an array of arrays, which no model needs") })
            }
            (id, _) => Err(Error::Broken {
                offset,
                what: format!("`{key}` is an array of type {id}: types 0 to 12 are known"),
            }),
        }
    }

    fn scalars(&mut self, key: &str, id: u32, width: u64, length: u64, keep: bool) -> Result<Array> {
        let bytes = length.saturating_mul(width);
        let what = || format!("`{key}`, an array of {length} elements");
        self.expect(bytes, what)?;
        let kept = length.saturating_mul(std::mem::size_of::<Value>() as u64);
        if (length > MAX_SMALL && !keep) || self.kept.saturating_add(kept) > MAX_KEPT {
            self.skip(bytes, what)?;
            return Ok(Array { length, items: None });
        }
        self.kept += kept;
        let items = (0..length).map(|_| self.scalar(id, key)).collect::<Result<Vec<Value>>>()?;
        Ok(Array { length, items: Some(items) })
    }

    fn texts(&mut self, key: &str, length: u64, keep: bool) -> Result<Array> {
        // Each text has at least its length before it.
        self.expect(length.saturating_mul(8), || format!("`{key}`, an array of {length} texts"))?;
        let mut items = (keep || length <= MAX_SMALL).then(Vec::new);
        let mut budget = if keep { MAX_KEPT } else { MAX_SMALL_TEXT };
        for _ in 0..length {
            let limit = if items.is_some() { budget } else { 0 };
            let text = self.text(limit, key)?;
            let size = text.as_ref().map_or(u64::MAX, |text| text.len() as u64 + 32);
            match (&mut items, text) {
                (Some(kept), Some(text)) if size <= budget => {
                    budget -= size;
                    kept.push(Value::Text(text));
                }
                _ => items = None,
            }
        }
        Ok(Array { length, items })
    }

    /// One row of the tensor table.
    pub(super) fn tensor(&mut self) -> Result<Tensor> {
        let start = self.offset;
        let name = self.name("a tensor's name")?;
        let broken = |what: String| Error::Broken { offset: start, what: format!("tensor `{name}` {what}") };
        let count = self.u32("a tensor's number of dimensions")?;
        if count > 4 {
            return Err(broken(format!("has {count} dimensions: at most 4 are possible")));
        }
        let mut dims = [1; 4];
        for dim in dims.iter_mut().take(count as usize) {
            *dim = self.u64("a tensor's dimension")?;
        }
        let id = self.u32("a tensor's type")?;
        let offset = self.u64("a tensor's offset")?;
        let rows = dims[1..].iter().try_fold(1, |rows: u64, dim| rows.checked_mul(*dim));
        let elements = rows.and_then(|rows| rows.checked_mul(dims[0])).filter(|elements| *elements <= i64::MAX as u64);
        let (Some(rows), Some(_)) = (rows, elements) else {
            return Err(broken(format!("has more than 2^63 elements: {dims:?}")));
        };
        let kind = Kind::of(id);
        let bytes = match kind {
            Some(kind) => {
                let row = kind.row(dims[0]);
                let Some(bytes) = row.and_then(|row| row.checked_mul(rows)) else {
                    let block = kind.block;
                    return Err(broken(format!(
                        "of type {} has rows of {}: not whole blocks of {block}",
                        kind.name, dims[0]
                    )));
                };
                Some(bytes)
            }
            None => None,
        };
        Ok(Tensor { name, id, kind, dims, bytes, offset, part: 0 })
    }
}

/// Bytes of a value of fixed size.
fn width(id: u32) -> Option<u64> {
    match id {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
