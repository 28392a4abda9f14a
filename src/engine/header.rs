//! What a GGUF file says of its vocabulary, read without llama.cpp: llama.cpp ends the process on some files that are
//! broken or made to harm, so a file is looked through here before it is handed over.
//!
//! Never trusts a number of the file: every length is checked against what is left of the file and against a limit.

use std::collections::HashMap;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::soft::{Rule, SPACE};
use super::sound::{self, Lists};

/// Entries of metadata a file may have.
const MOST_KEYS: u64 = 1 << 16;
/// Bytes of metadata a file may have: the largest known vocabularies take about 16 MB.
const MOST_BYTES: u64 = 256 << 20;
/// Words a vocabulary may have; the largest known has about 262,000.
const MOST_WORDS: u64 = 4 << 20;

/// The rules by which SentencePiece makes a text plain, as its own format has them.
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// Why a file is not a vocabulary that may be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeaderError {
    /// It cannot be read, or it ends too early.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What it says cannot be.
    #[error("{0}")]
    Bad(String),
}

/// What is read of a file.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// `general.architecture`.
    pub(super) architecture: String,
    /// `tokenizer.ggml.model`: the kind of tokenizer.
    pub(super) tokenizer: String,
    /// `tokenizer.ggml.pre`: the expression that divides texts into words.
    pub(super) pre: String,
    /// `tokenizer.ggml.add_space_prefix`: SentencePiece puts a space before a text, unless told not to.
    pub(super) space_prefix: bool,
    /// `tokenizer.ggml.merges`: the ASCII characters that meet where two words are joined, [`SPACE`] being a space. None where
    /// texts are not cut by them ([`Rule::Words`]).
    pub(super) joints: HashSet<(u8, u8)>,
    /// `tokenizer.chat_template`.
    pub(super) template: Option<String>,
    /// `tokenizer.chat_template.tool_use`.
    pub(super) tool_template: Option<String>,
}

/// Reads and checks the metadata of a file.
pub(super) fn read(path: &Path) -> Result<Header, HeaderError> {
    let file = crate::files::open(path)?;
    let meta = file.metadata()?;
    let mut r = Reader { inner: BufReader::with_capacity(1 << 16, file), left: meta.len().min(MOST_BYTES) };
    let metadata = metadata(&mut r)?;
    checked(metadata)
}

/// One value of the metadata; arrays only of what is needed.
#[derive(Debug)]
enum Value {
    Number(i64),
    Text(String),
    Words(Vec<Vec<u8>>),
    Numbers(Vec<i64>),
    Other,
}

fn metadata(r: &mut Reader) -> Result<HashMap<String, Value>, HeaderError> {
    if r.bytes(4)? != b"GGUF" {
        return Err(HeaderError::Bad("not a GGUF file".into()));
    }
    let version = r.u32()?;
    if !(2..=3).contains(&version) {
        return Err(HeaderError::Bad(format!("GGUF version {version}, which is not known")));
    }
    let _tensors = r.u64()?;
    let keys = r.u64()?;
    if keys > MOST_KEYS {
        return Err(HeaderError::Bad(format!("{keys} entries of metadata")));
    }
    let mut out = HashMap::new();
    for _ in 0..keys {
        let key = String::from_utf8_lossy(&r.string()?).into_owned();
        if key.is_empty() {
            return Err(HeaderError::Bad("an entry of its metadata has no name".into()));
        }
        let kind = r.u32()?;
        let value = value(r, &key, kind)?;
        if out.insert(key.clone(), value).is_some() {
            return Err(HeaderError::Bad(format!("the key {key} stands there twice")));
        }
    }
    Ok(out)
}

fn value(r: &mut Reader, key: &str, kind: u32) -> Result<Value, HeaderError> {
    Ok(match kind {
        8 => Value::Text(String::from_utf8_lossy(&r.string()?).into_owned()),
        9 => array(r, key)?,
        kind => match r.number(kind)? {
            Some(n) => Value::Number(n),
            None => Value::Other,
        },
    })
}

fn array(r: &mut Reader, key: &str) -> Result<Value, HeaderError> {
    let (kind, length) = (r.u32()?, r.u64()?);
    let smallest = if kind == 8 { 8 } else { size_of_number(kind)? };
    if length.checked_mul(smallest).is_none_or(|bytes| bytes > r.left) {
        return Err(HeaderError::Bad(format!("{key} says it has {length} entries, which the file is too short for")));
    }
    let wanted =
        matches!(key, "tokenizer.ggml.tokens" | "tokenizer.ggml.token_type" | "tokenizer.ggml.merges" | CHARSMAP);
    if wanted && length > MOST_WORDS {
        return Err(HeaderError::Bad(format!("{key} has {length} entries")));
    }
    if kind == 8 {
        let mut words = Vec::new();
        for _ in 0..length {
            let word = r.string()?;
            if wanted {
                words.push(word);
            }
        }
        return Ok(Value::Words(words));
    }
    if !wanted {
        r.skip(length * smallest)?;
        return Ok(Value::Other);
    }
    let mut numbers = Vec::new();
    for _ in 0..length {
        numbers.push(r.number(kind)?.unwrap_or(0));
    }
    Ok(Value::Numbers(numbers))
}

fn size_of_number(kind: u32) -> Result<u64, HeaderError> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        other => Err(HeaderError::Bad(format!("a value of the unknown kind {other}"))),
    }
}

/// What llama.cpp takes for granted of a vocabulary, and would end the process or never come back without.
fn checked(mut metadata: HashMap<String, Value>) -> Result<Header, HeaderError> {
    let bad = |what: String| Err(HeaderError::Bad(what));
    let space_prefix = !matches!(metadata.get("tokenizer.ggml.add_space_prefix"), Some(Value::Number(0)));
    let mut text = |key: &str| match metadata.remove(key) {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    };
    let mut header = Header {
        architecture: text("general.architecture").unwrap_or_default(),
        tokenizer: text("tokenizer.ggml.model").unwrap_or_default(),
        pre: text("tokenizer.ggml.pre").unwrap_or_default(),
        space_prefix,
        joints: HashSet::new(),
        template: text("tokenizer.chat_template"),
        tool_template: text("tokenizer.chat_template.tool_use"),
    };
    if header.tokenizer.is_empty() {
        return bad("it has no vocabulary (no tokenizer.ggml.model)".into());
    }
    let Some(Value::Words(words)) = metadata.get("tokenizer.ggml.tokens") else {
        return bad("it has no vocabulary (no tokenizer.ggml.tokens)".into());
    };
    let kinds = match metadata.get("tokenizer.ggml.token_type") {
        Some(Value::Numbers(kinds)) if kinds.len() >= words.len() => kinds.as_slice(),
        None => &[],
        _ => return bad("its words and their kinds differ in number".into()),
    };
    let charsmap = match metadata.get(CHARSMAP) {
        Some(Value::Numbers(bytes)) => Some(bytes.iter().map(|b| *b as u8).collect()),
        None => None,
        _ => return bad(format!("{CHARSMAP} is no list of bytes")),
    };
    unique(words)?;
    special(&metadata, words.len())?;
    let merges = match metadata.get("tokenizer.ggml.merges") {
        Some(Value::Words(merges)) => Some(merges),
        _ => None,
    };
    if Rule::of(&header.tokenizer, &header.pre) == Some(Rule::Words) {
        header.joints = merges.into_iter().flatten().filter_map(|merge| joint(merge)).collect();
    }
    let merges = merges.is_some();
    let lists = Lists { tokenizer: &header.tokenizer, pre: &header.pre, words, kinds, merges, charsmap };
    sound::check(&lists).map_err(HeaderError::Bad)?;
    Ok(header)
}

/// The characters that meet in a merge, if both are ASCII. Its two words are parted by the first space that is not its first
/// byte.
fn joint(merge: &[u8]) -> Option<(u8, u8)> {
    let at = 1 + merge.get(1..)?.iter().position(|b| *b == b' ')?;
    let (left, right) = (&merge[..at], &merge[at + 1..]);
    let mut sign = [0; 4];
    let sign = SPACE.encode_utf8(&mut sign).as_bytes();
    let last = if left.ends_with(sign) { b' ' } else { *left.last()? };
    let first = if right.starts_with(sign) { b' ' } else { *right.first()? };
    (last.is_ascii() && first.is_ascii()).then_some((last, first))
}

/// llama.cpp asserts that no word stands there twice; empty words get the names it gives them.
fn unique(words: &[Vec<u8>]) -> Result<(), HeaderError> {
    if words.len() < 3 {
        return Err(HeaderError::Bad("its vocabulary is empty".into()));
    }
    let mut seen: HashSet<&[u8]> = HashSet::with_capacity(words.len());
    for (at, word) in words.iter().enumerate() {
        if word.contains(&0) {
            // llama.cpp reads words up to a zero byte, so that two may become one.
            let until = word.split(|b| *b == 0).next().unwrap_or_default();
            if until.is_empty() || !seen.insert(until) {
                return Err(HeaderError::Bad(format!("word {at} of its vocabulary has a zero byte")));
            }
        } else if !word.is_empty() && !seen.insert(word) {
            return Err(HeaderError::Bad(format!("word {at} of its vocabulary stands there twice")));
        }
    }
    Ok(())
}

/// The ids of tokens with a meaning must be words of the vocabulary. That those which are added exist is seen once
/// llama.cpp has chosen them.
fn special(metadata: &HashMap<String, Value>, words: usize) -> Result<(), HeaderError> {
    for (key, value) in metadata {
        let Some(name) = key.strip_prefix("tokenizer.ggml.").and_then(|k| k.strip_suffix("_token_id")) else {
            continue;
        };
        let Value::Number(id) = value else {
            return Err(HeaderError::Bad(format!("{key} is no number")));
        };
        // -1 (as 32 unsigned bits) means none.
        let none = *id == -1 || *id == i64::from(u32::MAX);
        if !none && usize::try_from(*id).map_or(true, |id| id >= words) {
            return Err(HeaderError::Bad(format!("the {name} token is number {id} of {words}")));
        }
    }
    Ok(())
}

struct Reader {
    inner: BufReader<File>,
    /// Bytes that may still be read.
    left: u64,
}

impl Reader {
    fn take(&mut self, n: u64) -> Result<(), HeaderError> {
        self.left = self.left.checked_sub(n).ok_or_else(|| HeaderError::Bad("it ends within its metadata".into()))?;
        Ok(())
    }

    fn bytes(&mut self, n: u64) -> Result<Vec<u8>, HeaderError> {
        self.take(n)?;
        let mut out = vec![0; usize::try_from(n).map_err(|_| HeaderError::Bad("a length beyond all bounds".into()))?];
        self.inner.read_exact(&mut out)?;
        Ok(out)
    }

    fn skip(&mut self, n: u64) -> Result<(), HeaderError> {
        self.take(n)?;
        let skipped = io::copy(&mut self.inner.by_ref().take(n), &mut io::sink())?;
        if skipped < n { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) } else { Ok(()) }
    }

    fn u32(&mut self) -> Result<u32, HeaderError> {
        self.take(4)?;
        let mut out = [0; 4];
        self.inner.read_exact(&mut out)?;
        Ok(u32::from_le_bytes(out))
    }

    fn u64(&mut self) -> Result<u64, HeaderError> {
        self.take(8)?;
        let mut out = [0; 8];
        self.inner.read_exact(&mut out)?;
        Ok(u64::from_le_bytes(out))
    }

    fn string(&mut self) -> Result<Vec<u8>, HeaderError> {
        let length = self.u64()?;
        self.bytes(length)
    }

    /// A whole number; `None` for a fraction.
    fn number(&mut self, kind: u32) -> Result<Option<i64>, HeaderError> {
        let size = size_of_number(kind)?;
        self.take(size)?;
        let mut b = [0; 8];
        self.inner.read_exact(&mut b[..size as usize])?;
        let unsigned = u64::from_le_bytes(b);
        let shift = 64 - 8 * size as u32;
        Ok(match kind {
            0 | 2 | 4 | 7 | 10 => Some(i64::try_from(unsigned).unwrap_or(i64::MAX)),
            1 | 3 | 5 | 11 => Some(((unsigned << shift) as i64) >> shift),
            _ => None,
        })
    }
}
