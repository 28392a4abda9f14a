//! Vocabulary files made for tests: nothing but metadata.

use super::super::{Vocabulary, VocabularyError};

/// One value of metadata.
pub(super) enum Value<'a> {
    Text(&'a str),
    Number(u32),
    Flag(bool),
    Words(&'a [&'a [u8]]),
    Kinds(&'a [i32]),
    Scores(&'a [f32]),
    Bytes(&'a [u8]),
}

/// A GGUF file of nothing but metadata.
pub(super) fn gguf(entries: &[(&str, Value<'_>)]) -> Vec<u8> {
    let text = |out: &mut Vec<u8>, text: &[u8]| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text);
    };
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        text(&mut out, key.as_bytes());
        match value {
            Value::Text(value) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, value.as_bytes());
            }
            Value::Number(n) => {
                out.extend(4u32.to_le_bytes());
                out.extend(n.to_le_bytes());
            }
            Value::Flag(flag) => {
                out.extend(7u32.to_le_bytes());
                out.push(u8::from(*flag));
            }
            Value::Words(words) => {
                out.extend([9u32.to_le_bytes(), 8u32.to_le_bytes()].concat());
                out.extend((words.len() as u64).to_le_bytes());
                words.iter().for_each(|w| text(&mut out, w));
            }
            Value::Kinds(kinds) => {
                out.extend([9u32.to_le_bytes(), 5u32.to_le_bytes()].concat());
                out.extend((kinds.len() as u64).to_le_bytes());
                kinds.iter().for_each(|k| out.extend(k.to_le_bytes()));
            }
            Value::Scores(scores) => {
                out.extend([9u32.to_le_bytes(), 6u32.to_le_bytes()].concat());
                out.extend((scores.len() as u64).to_le_bytes());
                scores.iter().for_each(|s| out.extend(s.to_le_bytes()));
            }
            Value::Bytes(bytes) => {
                out.extend([9u32.to_le_bytes(), 0u32.to_le_bytes()].concat());
                out.extend((bytes.len() as u64).to_le_bytes());
                out.extend(*bytes);
            }
        }
    }
    out
}

/// A tiny SentencePiece vocabulary: special tokens, all bytes, a few words.
pub(super) fn tiny(template: &str) -> Vec<u8> {
    let mut words: Vec<Vec<u8>> = ["<unk>", "<s>", "</s>", "<|a|>", "<|b|>"].map(|w| w.as_bytes().to_vec()).to_vec();
    words.extend((0..=255).map(|b| format!("<0x{b:02X}>").into_bytes()));
    words.extend(["\u{2581}", "h", "i", "hi", "\u{2581}hi"].map(|w| w.as_bytes().to_vec()));
    let mut kinds = vec![2, 3, 3, 3, 3];
    kinds.extend([6; 256]);
    kinds.extend([1; 5]);
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    gguf(&[
        ("general.architecture", Value::Text("llama")),
        ("tokenizer.ggml.model", Value::Text("llama")),
        ("tokenizer.ggml.tokens", Value::Words(&words)),
        ("tokenizer.ggml.token_type", Value::Kinds(&kinds)),
        ("tokenizer.chat_template", Value::Text(template)),
    ])
}

/// A vocabulary of such a file.
pub(super) fn load(bytes: &[u8]) -> Result<Vocabulary, VocabularyError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    std::fs::write(&file, bytes).unwrap();
    Vocabulary::load(&file)
}

/// A vocabulary of any kind: words with their kinds and scores, and what else its file says.
pub(super) fn made(tokenizer: &str, words: &[(&str, i32, f32)], more: Vec<(&str, Value<'_>)>) -> Vec<u8> {
    let texts: Vec<&[u8]> = words.iter().map(|w| w.0.as_bytes()).collect();
    let kinds: Vec<i32> = words.iter().map(|w| w.1).collect();
    let scores: Vec<f32> = words.iter().map(|w| w.2).collect();
    let mut entries = vec![
        ("general.architecture", Value::Text("llama")),
        ("tokenizer.ggml.model", Value::Text(tokenizer)),
        ("tokenizer.ggml.tokens", Value::Words(&texts)),
        ("tokenizer.ggml.token_type", Value::Kinds(&kinds)),
        ("tokenizer.ggml.scores", Value::Scores(&scores)),
    ];
    entries.extend(more);
    gguf(&entries)
}

/// All bytes as RWKV's vocabulary has them, behind the token that ends a text; and some words.
pub(super) fn rwkv(words: &[&'static str]) -> Vec<u8> {
    let bytes: Vec<String> = (0..=255u8)
        .map(|b| match b {
            b'\t' => r"\t".into(),
            b'\n' => r"\n".into(),
            b'\r' => r"\r".into(),
            b'\\' => r"\\".into(),
            b if b.is_ascii_graphic() || b == b' ' => char::from(b).to_string(),
            b => format!(r"\x{b:02x}"),
        })
        .collect();
    let mut all = vec![("<s>", 3, 0.0)];
    all.extend(bytes.iter().map(|b| (b.as_str(), 1, 0.0)));
    all.extend(words.iter().map(|w| (*w, 1, 0.0)));
    made("rwkv", &all, vec![])
}

/// Bytes by their names, then some words.
pub(super) fn named_bytes<'a>(
    first: &[(&'a str, i32, f32)],
    bytes: &'a [String],
    words: &[(&'a str, f32)],
) -> Vec<(&'a str, i32, f32)> {
    let mut all = first.to_vec();
    all.extend(bytes.iter().map(|b| (b.as_str(), 6, 0.0)));
    all.extend(words.iter().map(|(word, score)| (*word, 1, *score)));
    all
}
