//! Near counts: fast on whatever comes, the same every time, and those of llama.cpp where the vocabulary is at hand.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn families_by_name() {
    for (model, near, kinship) in [
        ("llama3.1:8b", Near::Cl100k, Kinship::Own),
        ("ollama/Qwen2.5-Coder-7B-Instruct", Near::Qwen, Kinship::Own),
        ("deepseek-r1-distill-llama-8b", Near::Cl100k, Kinship::Own),
        ("DeepSeek-R1-Distill-Qwen-32B", Near::Qwen, Kinship::Own),
        ("deepseek-v3", Near::DeepSeek, Kinship::Own),
        ("gemma3:27b", Near::Gemma, Kinship::Own),
        ("tinyllama", Near::Spm, Kinship::Own),
        ("gpt-oss:20b", Near::Cl100k, Kinship::Kin),
        ("granite-code", Near::StarCoder, Kinship::Own),
        ("devstral", Near::Cl100k, Kinship::Kin),
        ("my-model", Near::Qwen, Kinship::Unknown),
    ] {
        assert_eq!(Near::of(model), (near, kinship), "{model}");
    }
}

#[test]
fn every_vocabulary_is_whole() {
    let words = [148_629, 151_643, 255_566, 31_741, 100_013, 49_127, 65_040, 50_256];
    for (near, words) in Near::ALL.into_iter().zip(words) {
        assert_eq!(near.vocabulary().words(), words, "{near:?}");
        assert_eq!((near.count(""), near.count("the")), (0, 1), "{near:?}");
    }
}

#[test]
fn texts_of_any_kind_are_counted_in_little_time() {
    let kinds = [
        "a".repeat(1 << 20),
        " ".repeat(1 << 20),
        "\n".repeat(1 << 20),
        "世界".repeat(1 << 15),
        "😀\u{200d}".repeat(1 << 15),
        "\0\u{7}\u{1b}[31m\r".repeat(1 << 14),
        "e\u{301}".repeat(1 << 14),
        "0123456789abcdef".repeat(1 << 14),
    ];
    for near in Near::ALL {
        for text in &kinds {
            let started = Instant::now();
            let counted = near.count(text);
            assert!(counted > 0 && counted as usize <= text.len(), "{near:?}, {:?}: {counted}", &text[..4]);
            assert_eq!(near.count(text), counted, "the same text, the same count");
            assert!(started.elapsed() < Duration::from_secs(5), "{near:?}, {:?}: {:?}", &text[..4], started.elapsed());
        }
    }
}

#[test]
fn more_text_is_never_less() {
    let text = "fn main() {\n    println!(\"héllo, 世界 {}\", 12345);\n}\n\n# Notes\n* one\t* two\r\n".repeat(3);
    for near in Near::ALL {
        let mut before = 0;
        for end in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
            let counted = near.count(&text[..end]);
            // The end of a word may be more than the word.
            assert!(counted + 6 >= before, "{near:?}: {counted} behind {before} at {end}");
            before = before.max(counted);
        }
    }
}

#[cfg(feature = "engine")]
#[test]
fn counts_are_those_of_the_vocabulary_itself() {
    use crate::engine::Vocabulary;
    use crate::measure::count::tests::{data, requests};
    let Some(data) = data() else { return };
    let texts: Vec<String> = requests(16_000, 20)
        .into_iter()
        .flat_map(|(_, r)| r["messages"].as_array().cloned().unwrap_or_default())
        .filter_map(|m| m["content"].as_str().filter(|t| t.len() > 200).map(str::to_owned))
        .collect();
    assert!(texts.len() > 150, "{}", texts.len());
    let mut wrong = Vec::new();
    for (near, file, most) in [
        (Near::Cl100k, "llama-bpe", 0.001),
        (Near::Qwen, "qwen2", 0.001),
        (Near::Gemma, "gemma-4", 0.001),
        (Near::Spm, "phi-3", 0.002),
        (Near::DeepSeek, "deepseek-llm", 0.005),
        (Near::StarCoder, "starcoder", 0.005),
        (Near::Falcon, "falcon", 0.01),
        (Near::Gpt2, "gpt-2", 0.001),
    ] {
        let vocabulary = Vocabulary::load(&data.join(format!("vocab/ggml-vocab-{file}.gguf"))).unwrap();
        let (mut off, mut all) = (0, 0);
        // Llama 3 has other words than Qwen for East Asia.
        for text in texts.iter().filter(|t| near != Near::Cl100k || t.is_ascii()) {
            let truth = vocabulary.part(text);
            off += near.count(text).abs_diff(truth);
            all += truth;
        }
        let share = f64::from(off) / f64::from(all);
        eprintln!("{near:?}: off by {off} of {all}, {:.3}%", 100.0 * share);
        wrong.extend((share > most).then_some((near, share)));
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
