//! The header of a GGUF file: its metadata and its table of tensors. It never reads a weight, never allocates by what a
//! file claims, and knows nothing of ours: any file gives a header or a clear [`Error`].
//!
//! Large arrays (a vocabulary) are kept only as their length, unless asked for with [`Options::keep`]. [`Writer`] makes
//! headers.
//!
//! Format: ggml/docs/gguf.md of `ggml-org/ggml`; limits are stricter than ggml/src/gguf.cpp's.

mod error;
mod kind;
mod read;
mod split;
mod write;

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::collections::btree_map::Entry;
use std::io::{Read, Seek};
use std::path::Path;

pub use error::Error;
pub use kind::{CacheTypes, Kind};
use read::Cursor;
pub use write::Writer;

/// A header.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// 2 or 3.
    pub version: u32,
    /// Every key with its value. In a split model, those of the first part.
    pub metadata: BTreeMap<String, Value>,
    /// The table of tensors, in the file's order; of all parts, where there are several.
    pub tensors: Vec<Tensor>,
    /// Where the data of the (first part's) tensors starts, in bytes.
    pub data_offset: u64,
    /// The length of the file, or of all parts together, in bytes. A header alone is shorter than its tensors.
    pub file_bytes: u64,
    /// How many files the model is in: 1, unless it was split.
    pub parts: u64,
}

/// A value of the metadata, by kind, not by width.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// A float of either width.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A text; one of more than 4 MiB is left empty.
    Text(String),
    /// An array of the above.
    Array(Array),
}

/// An array of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// How many elements it has in the file.
    pub length: u64,
    /// The elements, if they were kept.
    pub items: Option<Vec<Value>>,
}

/// A row of the table of tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// The number of its type in ggml's list.
    pub id: u32,
    /// Its type, if it is known.
    pub kind: Option<Kind>,
    /// Elements in each dimension, the contiguous one first; 1 where there is none.
    pub dims: [u64; 4],
    /// The bytes it takes, if its type is known.
    pub bytes: Option<u64>,
    /// Where its data starts, in bytes from the start of its part's data.
    pub offset: u64,
    /// Which part of a split model holds it, from 0.
    pub part: u32,
}

/// What to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// Keys whose arrays are kept whole, however large (256 MiB in all).
    pub keep: &'a [&'a str],
}

impl Gguf {
    /// Reads the header of one file. A part of a split model gives that part's table alone: see [`Gguf::open`].
    pub fn read(reader: impl Read + Seek) -> Result<Gguf, Error> {
        Gguf::read_with(reader, Options::default())
    }

    /// [`Gguf::read`] with options.
    pub fn read_with(reader: impl Read + Seek, options: Options<'_>) -> Result<Gguf, Error> {
        let mut cursor = Cursor::new(reader)?;
        let (version, tensor_count, key_count) = cursor.head()?;
        let mut metadata = BTreeMap::new();
        for _ in 0..key_count {
            let offset = cursor.offset();
            let (key, value) = cursor.entry(|key| options.keep.contains(&key))?;
            match metadata.entry(key) {
                Entry::Vacant(free) => _ = free.insert(value),
                Entry::Occupied(taken) => {
                    let what = format!("the key `{}` stands twice", taken.key());
                    return Err(Error::Broken { offset, what });
                }
            }
        }
        let mut tensors = Vec::new();
        let mut names = HashSet::new();
        for _ in 0..tensor_count {
            let offset = cursor.offset();
            let tensor = cursor.tensor()?;
            if !names.insert(tensor.name.clone()) {
                return Err(Error::Broken { offset, what: format!("the tensor `{}` stands twice", tensor.name) });
            }
            tensors.push(tensor);
        }
        let alignment = alignment(&metadata, cursor.offset())?;
        let data_offset = cursor.offset().checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        Ok(Gguf { version, metadata, tensors, data_offset, file_bytes: cursor.end(), parts: 1 })
    }

    /// Reads the header of a model. Of a split one (`NAME-00001-of-00003.gguf`, any part), every part beside it.
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        Gguf::open_with(path, Options::default())
    }

    /// [`Gguf::open`] with options.
    pub fn open_with(path: &Path, options: Options<'_>) -> Result<Gguf, Error> {
        split::open(path, options)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The value of a key, if it is a whole number that is not negative.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.number()
    }

    /// The value of a key, if it is a text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The array of a key, kept or not.
    pub fn array(&self, key: &str) -> Option<&Array> {
        match self.get(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// A whole number per layer: a single one stands for all `layers`, an array for as many as it has, 0 beyond.
    pub fn per_layer(&self, key: &str, layers: usize) -> Option<Vec<u64>> {
        match self.get(key)? {
            Value::Array(array) => {
                let items = array.items.as_ref()?;
                let mut numbers = items.iter().map(Value::number).collect::<Option<Vec<u64>>>()?;
                numbers.resize(layers, 0);
                Some(numbers)
            }
            value => Some(vec![value.number()?; layers]),
        }
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

impl Value {
    /// A whole number that is not negative; a boolean counts as 0 or 1, as llama.cpp reads arrays of either.
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) => u64::try_from(*number).ok(),
            Value::Bool(yes) => Some(u64::from(*yes)),
            _ => None,
        }
    }
}

/// What the data is aligned to: `general.alignment`, 32 unless set.
fn alignment(metadata: &BTreeMap<String, Value>, offset: u64) -> Result<u64, Error> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(32) };
    match value.number() {
        Some(alignment) if alignment.is_power_of_two() && alignment <= 1 << 31 => Ok(alignment),
        _ => {
            let what = format!("`general.alignment` is {value:?}: a power of two was expected");
            Err(Error::Broken { offset, what })
        }
    }
}

#[cfg(test)]
mod tests;
