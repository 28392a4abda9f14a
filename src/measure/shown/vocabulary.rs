//! Pure: a GGUF file of nothing but the vocabulary, from what Ollama says of the model's file.
//!
//! Written is what llama.cpp reads of a file with `vocab_only` (llama-vocab.cpp, `llama_vocab::impl::load`), in the widths
//! that it asks for. Two things that it reads are not told: `general.name`, by which Phi-3's special tokens swallow white
//! space behind them (without it, its prompts count higher), and whatever bytes of a word are no UTF-8.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::gguf::Writer;
use crate::upstream::Described;

/// Elements an array may have: twice those of the largest vocabularies' merges, which are about 500,000.
const MOST: usize = 1 << 20;

/// Why no vocabulary can be made of a description.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// The server does not give the words: an older one, or no GGUF file.
    #[error("/api/show gives no vocabulary: Ollama is too old for that, or the model has none")]
    NoWords,
    /// A value is not what it should be.
    #[error("/api/show gives a `{key}` that cannot be used: {error}")]
    Value { key: String, error: serde_json::Error },
    /// A number that no id can be.
    #[error("/api/show gives a `{key}` that is no id of a token")]
    Id { key: String },
}

/// The file's bytes. `architecture` stands in for the model's own, which a llama.cpp may not know.
///
/// # Errors
/// What is missing or wrong.
pub(super) fn file(described: &Described<'_>, architecture: Option<&str>) -> Result<Vec<u8>, Unusable> {
    let mut out = Writer::default();
    let mut words = false;
    for (key, value) in described.info().filter(|(_, value)| value.get() != "null") {
        if key == "general.architecture" {
            let own: String = read(key, value)?;
            out = out.text(key, architecture.unwrap_or(&own));
        }
        let Some(name) = key.strip_prefix("tokenizer.ggml.") else { continue };
        out = match name {
            "model" | "pre" => out.text(key, &read::<String>(key, value)?),
            "tokens" | "merges" => {
                let Few(texts) = read::<Few<String>>(key, value)?;
                words |= name == "tokens" && !texts.is_empty();
                out.texts(key, &texts)
            }
            "token_type" => out.integers(key, &read::<Few<i32>>(key, value)?.0),
            "scores" => out.floats(key, &read::<Few<f32>>(key, value)?.0),
            "token_type_count" => out.number(key, read(key, value)?),
            "remove_extra_whitespaces" | "normalizer.lowercase" | "normalizer.strip_accents" => {
                out.flag(key, read(key, value)?)
            }
            _ if name.starts_with("add_") => out.flag(key, read(key, value)?),
            _ if name.ends_with("_token_id") => out.number(key, id(key, value)?),
            // What no kind of tokenizer that is counted with here asks for.
            _ => out,
        };
    }
    if words { Ok(out.bytes()) } else { Err(Unusable::NoWords) }
}

fn read<'a, T: Deserialize<'a>>(key: &str, value: &'a RawValue) -> Result<T, Unusable> {
    serde_json::from_str(value.get()).map_err(|error| Unusable::Value { key: key.to_owned(), error })
}

/// The id of a token; -1, in either spelling, means none.
fn id(key: &str, value: &RawValue) -> Result<u32, Unusable> {
    let id: i64 = read(key, value)?;
    let unsigned = if id == -1 { Ok(u32::MAX) } else { u32::try_from(id) };
    unsigned.map_err(|_| Unusable::Id { key: key.to_owned() })
}

/// An array of at most [`MOST`] elements.
struct Few<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Elements<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {MOST} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
                let mut out = Vec::new();
                while let Some(element) = elements.next_element()? {
                    if out.len() == MOST {
                        return Err(A::Error::invalid_length(MOST + 1, &self));
                    }
                    out.push(element);
                }
                Ok(out)
            }
        }
        from.deserialize_seq(Elements(PhantomData)).map(Few)
    }
}
