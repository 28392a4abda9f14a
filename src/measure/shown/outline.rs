//! Pure: a GGUF header without a table of tensors to go by. What `/api/show` says in short tells layers, heads and widths, and
//! `/api/tags` how large the file is: its bytes are put on the blocks in equal parts, so that what a context costs is known and
//! what the weights take is, too.

use std::collections::BTreeMap;

use serde_json::Value;

use super::header;
use crate::gguf::Kind;
use crate::upstream::Described;

/// The type of the tensors that stand for the file's bytes: one byte an element.
const BYTES: &str = "i8";

/// Tokens of a vocabulary whose size nobody tells: about the largest there is, so that logits are not counted too low.
const VOCABULARY: u64 = 262_144;

/// The least that a model's file has (bytes). What is less is no model: Ollama's entry of one that runs elsewhere.
const LEAST: u64 = 1 << 20;

/// The header's bytes; `None` where an answer says too little.
pub(super) fn file(show: &[u8], size: u64) -> Option<Vec<u8>> {
    let said: BTreeMap<String, Value> = serde_json::from_slice(show).ok()?;
    let elsewhere = said.get("remote_host").and_then(Value::as_str).is_some_and(|host| !host.is_empty());
    if elsewhere || size < LEAST {
        return None;
    }
    let info = said.get("model_info")?;
    let arch = info["general.architecture"].as_str()?;
    let blocks = info[format!("{arch}.block_count")].as_u64().filter(|n| (1..=1024).contains(n))?;
    let described = Described::read(show).ok()?;
    let mut out = header::metadata(&described)?;
    let key = format!("{arch}.vocab_size");
    if info[&key].as_u64().is_none() {
        out = header::number(out, &key, VOCABULARY);
    }
    let kind = Kind::named(BYTES)?.id;
    for block in 0..blocks {
        // To the last byte.
        let bytes = size * (block + 1) / blocks - size * block / blocks;
        out = out.tensor(&format!("blk.{block}.file.weight"), &[bytes], kind);
    }
    Some(out.bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gguf::Gguf;
    use crate::measure::memory::{Model, Settings, cost};

    fn show() -> Value {
        json!({
            "details": {"parameter_size": "8.0B"},
            "model_info": {
                "general.architecture": "llama", "llama.block_count": 32, "llama.context_length": 131_072,
                "llama.embedding_length": 4096, "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
                "llama.feed_forward_length": 14_336, "tokenizer.ggml.tokens": null,
            },
        })
    }

    #[test]
    fn layers_heads_and_a_size_are_enough_to_reckon_with() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("outline.header");
        let size = 4_920_000_007_u64;
        std::fs::write(&path, file(show().to_string().as_bytes(), size).unwrap()).unwrap();
        let model = Model::of(&Gguf::open(&path).unwrap()).unwrap();
        let cost = cost(&model, &Settings::ollama(8192, 1)).unwrap();
        // 128 KiB a token, as of this model's own file.
        assert_eq!(cost.kv.total(), 8192 * 128 * 1024);
        let weights = cost.weights.total();
        assert!((size..size + 32 * 32).contains(&weights), "{weights}");
        assert_eq!(model.trained, 131_072);
    }

    #[test]
    fn what_says_too_little_gives_nothing() {
        let mut away = show();
        away["remote_host"] = json!("https://ollama.com:443");
        assert!(file(away.to_string().as_bytes(), 5 << 30).is_none());
        assert!(file(show().to_string().as_bytes(), 384).is_none());
        for broken in [
            "",
            "null",
            "{}",
            r#"{"model_info":{}}"#,
            r#"{"model_info":{"general.architecture":"x","x.block_count":-1}}"#,
        ] {
            assert!(file(broken.as_bytes(), 5 << 30).is_none(), "{broken}");
        }
    }
}
