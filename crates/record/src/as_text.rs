//! How values are said as JSON that have no words in it of their own: bytes, shared texts, and trees, each as one string.

use ::bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Bytes that are a text nearly always; where they are none, a list of numbers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Said {
    Text(String),
    Bytes(Vec<u8>),
}

impl Said {
    pub(super) fn of(bytes: &[u8]) -> Said {
        match std::str::from_utf8(bytes) {
            Ok(text) => Said::Text(text.to_owned()),
            Err(_) => Said::Bytes(bytes.to_vec()),
        }
    }

    pub(super) fn bytes(self) -> Bytes {
        match self {
            Said::Text(text) => Bytes::from(text),
            Said::Bytes(bytes) => Bytes::from(bytes),
        }
    }
}

pub(super) mod bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        Said::of(bytes).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        Said::deserialize(from).map(Said::bytes)
    }
}

pub(super) mod all {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(all: &[Bytes], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(|bytes| Said::of(bytes)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Bytes>, D::Error> {
        Ok(Vec::<Said>::deserialize(from)?.into_iter().map(Said::bytes).collect())
    }
}

pub(super) mod text {
    use super::*;
    use windowsill_core::conversation::Text;

    pub(crate) fn serialize<S: Serializer>(text: &Text, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
        String::deserialize(from).map(Text::from)
    }
}

pub(super) mod json {
    use super::*;
    use serde_json::Value;

    pub(crate) fn serialize<S: Serializer>(tree: &Value, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&tree.to_string())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
        let text = String::deserialize(from)?;
        serde_json::from_str(&text).map_err(D::Error::custom)
    }
}
