//! Pure: what `/api/show` with `verbose` says of a model's file (server/routes.go and fs/ggml/gguf.go of ollama/ollama).
//!
//! `model_info` is the file's metadata as JSON, by key; `general.name` and `tokenizer.chat_template` are taken out of it. JSON
//! does not tell a width, nor a signed number from an unsigned one; an array of bytes is base64 text; bytes of a text that are
//! no UTF-8 are replaced by U+FFFD. Without `verbose`, and from servers that do not know it, arrays are `null` or empty.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A model's file, as Ollama describes it. Borrows the answer, of which a vocabulary may make 20 MB.
#[derive(Debug, Default, Deserialize)]
pub struct Described<'a> {
    /// The metadata: JSON values by key.
    #[serde(borrow, default, rename = "model_info")]
    info: Option<BTreeMap<String, &'a RawValue>>,
    #[serde(default)]
    tensors: Option<Vec<DescribedTensor>>,
}

/// A row of the file's table of tensors.
#[derive(Debug, Deserialize)]
pub struct DescribedTensor {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// ggml's name of its type, upper case.
    #[serde(rename = "type")]
    pub kind: String,
    /// Elements in each dimension, the contiguous one first.
    pub shape: Vec<u64>,
}

impl<'a> Described<'a> {
    /// Reads an answer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(answer: &'a [u8]) -> Result<Described<'a>, serde_json::Error> {
        serde_json::from_slice(answer)
    }

    /// The metadata in the order of its keys.
    pub fn info(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.info.iter().flatten().map(|(key, value)| (key.as_str(), *value))
    }

    /// The table of tensors.
    pub fn tensors(&self) -> &[DescribedTensor] {
        self.tensors.as_deref().unwrap_or_default()
    }
}
