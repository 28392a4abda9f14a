//! Near counts: fast on whatever comes, the same every time, and those of llama.cpp where the vocabulary is at hand.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn families_by_name() {
    for (model, near, kinship) in [
        ("llama3.1:8b", Near::Llama3, Kinship::Own),
        ("meta-llama/Llama-4-Scout", Near::O200k, Kinship::Kin),
        ("ollama/Qwen2.5-Coder-7B-Instruct", Near::Qwen, Kinship::Own),
        ("qwen3.5:4b", Near::Qwen, Kinship::Kin),
        ("deepseek-r1-distill-llama-8b", Near::Llama3, Kinship::Own),
        ("DeepSeek-R1-Distill-Qwen-32B", Near::Qwen, Kinship::Own),
        ("deepseek-r1:14b", Near::Qwen, Kinship::Own),
        ("deepseek-v3", Near::Llama3, Kinship::Kin),
        ("deepseek-coder-v2:16b", Near::DeepSeek, Kinship::Own),
        ("gemma3:27b", Near::Gemma, Kinship::Own),
        ("google/gemma-2-9b-it", Near::Gemma, Kinship::Kin),
        ("medgemma:27b", Near::Gemma, Kinship::Own),
        ("tinyllama", Near::Spm, Kinship::Own),
        ("gpt-oss:20b", Near::O200k, Kinship::Own),
        ("phi4-mini", Near::O200k, Kinship::Own),
        ("microsoft/phi-4", Near::Cl100k, Kinship::Own),
        ("granite4:micro-h", Near::Cl100k, Kinship::Own),
        ("granite-code", Near::StarCoder, Kinship::Own),
        ("devstral", Near::Tekken, Kinship::Own),
        ("mistral-small3.2:24b", Near::Tekken, Kinship::Own),
        ("mistralai/mistral-nemo-instruct-2407", Near::Tekken, Kinship::Own),
        ("NemoMix-Unleashed-12B", Near::Tekken, Kinship::Own),
        ("mistral-small:22b", Near::Mistral, Kinship::Own),
        ("mistral:latest", Near::Mistral, Kinship::Own),
        ("codestral:22b", Near::Mistral, Kinship::Own),
        ("llama-3.1-nemotron-nano-8b", Near::Llama3, Kinship::Own),
        ("nemotron-3-nano:30b", Near::Tekken, Kinship::Kin),
        ("falcon3:7b", Near::Llama3, Kinship::Kin),
        ("my-model", Near::Qwen, Kinship::Unknown),
    ] {
        assert_eq!(Near::of(model), (near, kinship), "{model}");
    }
}

#[test]
fn every_vocabulary_is_whole() {
    let words = [99_156, 148_636, 199_998, 130_072, 151_643, 255_566, 31_741, 31_741, 100_013, 49_127, 65_040, 50_256];
    for (near, words) in Near::ALL.into_iter().zip(words) {
        assert_eq!(near.vocabulary().words(), words, "{near:?}");
        assert_eq!((near.count(""), near.count("the")), (0, 1), "{near:?}");
    }
}

#[test]
fn counts_are_those_of_the_makers_tokenizers() {
    // What tiktoken 0.14 makes of each with o200k_base, tekken_240718 and cl100k_base.
    let blank = format!("{}x{}", " ".repeat(100), "=".repeat(80));
    for (text, counts) in [
        ("getElementById(HTTPServer2XML), SCREAMING_SNAKE_CASE: don't I'LL", [21, 23, 20]),
        ("x = 1234567;\n\n\n    if (a) {\r\n\t\treturn \"/\";\n//\n}   ", [19, 26, 19]),
        ("Ça coûte 12,50 €, naïve Äpfel cafe\u{301}s", [14, 19, 19]),
        ("Привет, мир! ΑΒΓδε İstanbul Ⅳ ² ٣", [17, 17, 25]),
        ("我想在apple工作1314151天～ 日本語のテキスト 안녕하세요", [18, 23, 24]),
        ("हिन्दी में कुछ पाठ, ภาษาไทย, שלום עולם, مرحبا", [15, 20, 44]),
        ("🚀 (normal) 😶\u{200d}🌫️ ✅ ═══════ ▁▂▃", [21, 41, 27]),
        (&blank, [4, 6, 4]),
    ] {
        let near = [Near::O200k, Near::Tekken, Near::Cl100k];
        assert_eq!(near.map(|near| near.count(text)), counts, "{text}");
    }
    // What sentencepiece 0.2 makes of them with tokenizer.model.v1 of mistral-common; it puts a space before every text.
    for (text, count) in [
        (" getElementById(HTTPServer2XML): don't", 12),
        (" x = 1234567;\n\n    return \"/\";\n", 18),
        (" Ça coûte 12,50 €, naïve Äpfel", 20),
        (" 我想在apple工作 안녕하세요", 15),
    ] {
        assert_eq!(Near::Mistral.count(text), count, "{text}");
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
        (Near::Llama3, "llama-bpe", 0.001),
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
        for text in texts.iter().filter(|t| near != Near::Llama3 || t.is_ascii()) {
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
