//! Real vocabularies where they are at hand (`shared/data/vocab`), and files that are broken or made to harm.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests: a panic is how they fail")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

mod expressions;
mod made;
mod random;

use proptest::prelude::*;

use super::{Vocabulary, VocabularyError};
use made::{Value, gguf, load, made, named_bytes, rwkv, tiny};

/// The data set, where this checkout has it beside it.
fn data() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = ["../shared/data", "../../shared/data"].iter().map(|p| here.join(p)).find(|p| p.is_dir());
    if found.is_none() {
        eprintln!("no shared/data here: real vocabularies are not tried");
    }
    found
}

fn vocabularies() -> Vec<PathBuf> {
    let Some(data) = data() else { return Vec::new() };
    let files = std::fs::read_dir(data.join("vocab")).unwrap().map(|e| e.unwrap().path());
    let mut out: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    out.sort();
    out
}

/// All of them, read once for all tests.
static ALL: LazyLock<Vec<Vocabulary>> =
    LazyLock::new(|| vocabularies().iter().map(|f| Vocabulary::load(f).unwrap()).collect());

#[test]
fn a_tiny_vocabulary_counts_and_brings_its_template() {
    let v = load(&tiny("{{ messages }}")).unwrap();
    assert_eq!((v.chat_template(), v.bos(), v.eos()), (Some("{{ messages }}"), "<s>", "</s>"));
    assert_eq!(v.tokenize("<|a|>hi"), [1, 3, 265]);
    for (text, tokens) in [("", 1), ("hi", 2), ("<|a|>hi<|b|>", 4), ("hi\nhi", 4), ("é", 4)] {
        assert_eq!((v.count(text), v.tokenize(text).len() as u32), (tokens, tokens), "{text}");
    }
}

#[test]
fn vocabularies_of_rarer_kinds_are_counted_as_well() {
    let bytes: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
    let world = rwkv(&["ab", "abc", r"\n\n", "User", r"\xe4\xb8\xad", "d\u{fc}"]);
    let unigram = made(
        "t5",
        &[
            ("<pad>", 3, 0.0),
            ("</s>", 3, 0.0),
            ("<unk>", 2, 0.0),
            ("\u{2581}", 1, -2.0),
            ("a", 1, -3.0),
            ("b", 1, -3.0),
            ("\u{2581}ab", 1, -4.0),
            ("<sep>", 4, 0.0),
        ],
        vec![("tokenizer.ggml.remove_extra_whitespaces", Value::Flag(true))],
    );
    let plamo = named_bytes(
        &[("<unk>", 2, 0.0), ("<bos>", 3, 0.0), ("<eos>", 3, 0.0), ("<pad>", 3, 0.0)],
        &bytes,
        &[("a", -3.0), ("b", -3.0), ("ab", -4.0), ("\u{65e5}", -5.0)],
    );
    let plamo = made("plamo2", &plamo, vec![("tokenizer.ggml.add_bos_token", Value::Flag(true))]);
    let merges: &[&[u8]] = &[b"a b"];
    let words = [("a", 1, 0.0), ("b", 1, 0.0), ("ab", 1, 0.0), ("<x>", 3, 0.0)];
    let spaced = made("whitespace", &words, vec![("tokenizer.ggml.merges", Value::Words(merges))]);
    let kimi = made("gpt2", &words, vec![("tokenizer.ggml.pre", Value::Text("kimi-k2"))]);
    for (file, text, tokens) in [
        (&world, "abcab\n\n\n", &[258, 257, 259, 11][..]),
        (&world, "User: \u{4e2d}\u{fc}", &[260, 59, 33, 261, 196, 189]),
        (&world, "<s>d\u{fc}", &[0, 262]),
        (&unigram, "ab  ab", &[6, 6, 1]),
        (&unigram, "ab<sep>zz", &[6, 7, 3, 2, 1]),
        (&unigram, "", &[1]),
        (&plamo, "ab\u{65e5}\u{e9}", &[1, 262, 263, 199, 173]),
        (&plamo, "<pad>b", &[1, 3, 261]),
        (&spaced, "ab a\nb<x>ab", &[2, 0, 1, 3, 2]),
        (&kimi, "a<x>b", &[0, 3, 1]),
    ] {
        let v = load(file).unwrap();
        assert_eq!(v.tokenize(text), tokens, "{v:?}: {text:?}");
        let long = format!("{text} {}", format!("{text}, ").repeat(500));
        for text in [text, &long, &long] {
            assert_eq!(v.count(text) as usize, v.tokenize(text).len(), "{v:?}: {text:?}");
        }
    }
    // Texts grow at their ends, and only the new part is counted.
    let v = load(&world).unwrap();
    assert!(v.pieces(&"User: abc.\n\n".repeat(1000)).len() > 3);
}

#[test]
fn what_llama_cpp_would_not_survive_is_refused_with_a_reason() {
    let good = tiny("");
    for end in [0, 3, 4, 8, 23, 24, 40, 100, good.len() / 2, good.len() - 1] {
        assert!(load(&good[..end]).is_err(), "cut at {end}");
    }
    let words: &[&[u8]] = &[b"<unk>", b"<s>", b"</s>"];
    let twice: &[&[u8]] = &[b"<unk>", b"<s>", b"</s>", b"<s>"];
    let zero: &[&[u8]] = &[b"<unk>", b"<s>", b"</s>", b"<s>\0x"];
    let base = |model, words| {
        vec![
            ("general.architecture", Value::Text("llama")),
            ("tokenizer.ggml.model", Value::Text(model)),
            ("tokenizer.ggml.tokens", Value::Words(words)),
        ]
    };
    // A vocabulary too small for the number of the token that its kind begins a text with, and which begins one.
    let begun = |kind, flag: bool| {
        let merges: &[&[u8]] = &[b"a b"];
        let mut more = vec![("tokenizer.ggml.merges", Value::Words(merges))];
        more.extend(flag.then_some(("tokenizer.ggml.add_bos_token", Value::Flag(true))));
        made(kind, &[("a", 1, 0.0), ("b", 1, 0.0), ("ab", 1, 0.0)], more)
    };
    let bert = |kind| {
        let names: Vec<String> = (0..200).map(|n| format!("<word {n}>")).collect();
        let words: Vec<(&str, i32, f32)> = names.iter().map(|n| (n.as_str(), kind, 0.0)).collect();
        made("bert", &words, vec![])
    };
    let with = |mut entries: Vec<(&'static str, Value<'static>)>, more| {
        entries.push(more);
        gguf(&entries)
    };
    for (bytes, why) in [
        (b"not a model at all".to_vec(), "not a GGUF file"),
        (gguf(&[("general.architecture", Value::Text("llama"))]), "no vocabulary"),
        (gguf(&[("", Value::Number(1))]), "no name"),
        (gguf(&[("a", Value::Number(1)), ("a", Value::Number(1))]), "twice"),
        (gguf(&base("llama", words)), "no word for the byte 0x00"),
        (gguf(&base("llama", twice)), "twice"),
        (gguf(&base("llama", zero)), "zero byte"),
        (gguf(&base("llama", &[])), "empty"),
        (gguf(&base("no_vocab", words)), "not known"),
        (gguf(&base("gpt2", words)), "no merges"),
        (with(base("gpt2", words), ("tokenizer.ggml.bos_token_id", Value::Number(3))), "number 3 of 3"),
        (with(base("gpt2", words), ("tokenizer.ggml.eos_token_id", Value::Text("x"))), "no number"),
        (with(base("gpt2", words), ("tokenizer.ggml.token_type", Value::Kinds(&[1]))), "differ in number"),
        (with(base("gpt2", words), ("tokenizer.ggml.pre", Value::Text("whitespace"))), "of another: whitespace"),
        (with(base("whitespace", words), ("tokenizer.ggml.scores", Value::Scores(&[]))), "no merges"),
        (made("bert", &[("<0x41>", 6, 0.0)], vec![]), "vocabulary is empty"),
        (bert(6), "is to be a byte and is not"),
        (begun("gpt2", true), "a bos token is to be added"),
        (begun("gemma4", false), "a bos token is to be added"),
        (begun("t5", true), "a bos token is to be added"),
        (made("rwkv", &[("ab", 1, 0.0), ("a", 1, 0.0), ("cd", 1, 0.0)], vec![]), "no word for the byte 0x63"),
        (rwkv(&[Box::leak("x".repeat(100_000).into_boxed_str())]), "has 100000 bytes"),
        (
            with(base("t5", words), ("tokenizer.ggml.precompiled_charsmap", Value::Bytes(&[4, 0, 0, 0, 0, 0, 0, 0]))),
            "its end",
        ),
        (with(base("t5", words), ("tokenizer.ggml.precompiled_charsmap", Value::Number(1))), "no list of bytes"),
        (gguf(&base("plamo2", &[b"a", b"b", b"\xff"])), "not UTF-8"),
        (made("plamo2", &[("a", 1, 0.0), ("b", 1, 0.0), (&"x".repeat(8000), 1, 0.0)], vec![]), "too long"),
    ] {
        let error = load(&bytes).unwrap_err().to_string();
        assert!(error.contains(why), "{error}, not {why}");
    }
    // A length that no file could hold.
    let mut huge = good;
    let at = huge.windows(21).position(|w| w == b"tokenizer.ggml.tokens").unwrap() + 21 + 8;
    huge[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(load(&huge).unwrap_err().to_string().contains("too short"));
    assert!(matches!(Vocabulary::load(Path::new("/no/such.gguf")), Err(VocabularyError::Unreadable { .. })));
    assert!(Vocabulary::load(Path::new("/dev/null")).is_err());
}

/// Files that say of no word what it is, that make special tokens of marks, or join what makes no word.
#[test]
fn bytes_that_say_they_are_words_are_counted_all_the_same() {
    let bytes: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
    let words = |kind: i32, end: i32| -> Vec<(&str, i32, f32)> {
        let odd = [("!", end, 0.0), (if end == 3 { " b" } else { "b" }, 3, 0.0)];
        let head = [
            ("<unk>", 2, 0.0),
            ("<s>", 3, 0.0),
            ("</s>", 3, 0.0),
            ("\n", end, 0.0),
            ("äbcd", kind, 0.0),
            ("a", 1, 0.0),
            odd[0],
            odd[1],
        ];
        head.into_iter().chain(bytes.iter().map(|b| (b.as_str(), kind, 0.0))).collect()
    };
    for (kind, end) in [(1, 1), (6, 3), (6, 1)] {
        for tokenizer in ["llama", "gemma4"] {
            let merges: &[&[u8]] = &[b"a a"];
            let more = vec![
                ("tokenizer.ggml.merges", Value::Words(merges)),
                ("tokenizer.ggml.bos_token_id", Value::Number(1)),
            ];
            let v = load(&made(tokenizer, &words(kind, end), more)).unwrap();
            for text in [
                "n \u{10ffff}",
                ">_",
                "<0x41> a<0x42>",
                "a\n b \n",
                "\u{2581} a",
                &"a b, \u{e9}\n".repeat(400),
                "se",
                "b!e",
                "a aa",
            ] {
                assert_eq!(v.count(text) as usize, v.tokenize(text).len(), "{tokenizer}, {kind}, {end}: {text:?}");
            }
        }
    }
    let world = rwkv(&["a\\x0a"]);
    let text = |v: &Vocabulary| v.tokenize(r"\x0a").len();
    assert_eq!(text(&load(&world).unwrap()), 4);
}

#[test]
fn every_vocabulary_gives_the_expected_tokens() {
    for (file, v) in vocabularies().iter().zip(&*ALL) {
        let read = |end: &str| std::fs::read_to_string(format!("{}.{end}", file.display())).unwrap();
        let added = v.tokenize("").len();
        for (text, expected) in read("inp").split("\n__ggml_vocab_test__\n").zip(read("out").lines()) {
            let expected: Vec<i32> = expected.split_whitespace().map(|n| n.parse().unwrap()).collect();
            let found = v.tokenize(text);
            let begin = usize::from(v.adds_bos() || file.to_string_lossy().contains("bert")).min(added);
            assert_eq!(found[begin..found.len() - (added - begin)], expected, "{}: {text:?}", file.display());
            assert_eq!(v.count(text) as usize, found.len(), "{}: {text:?}", file.display());
        }
    }
}

/// Text as it comes, and as it is made to confuse: special tokens whole and in part, white space, many scripts.
fn confusing() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-zA-Z0-9 .,!?{}\"'/]{0,30}",
        "[ \\n\\t\\r]{1,12}",
        "\\PC{0,8}",
        prop::sample::select(vec![
            "<|im_start|>",
            "<|im_end|>",
            "<|im_",
            "<|eot_id|>",
            "<s>",
            "</s>",
            "<unk>",
            "[INST]",
            "<|end|>",
            "<|user|>\n",
            "<|endoftext|>",
            "<|begin_of_text|>",
            "<bos>",
            "<turn|>",
            "<|turn>",
            "<｜User｜>",
            "<mask>",
            "[CLS]",
            "[SEP]",
            "<fim_prefix>",
            "<start_of_turn>",
            "<",
            "|>",
            ">>",
            "\u{2581}",
            "<0x0A>",
            "<unused1>",
            "<|endoftext|",
            "\n\n\n",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

/// A line break that a special token swallows is no place to cut.
#[test]
fn a_cut_is_never_behind_a_token_that_swallows_what_follows() {
    for v in &*ALL {
        for words in 2020..2060 {
            let text = format!("{}<|user|> \n\n{}", "a ".repeat(words), "b\n".repeat(1100));
            assert_eq!(v.count(&text) as usize, v.tokenize(&text).len(), "{v:?}, {words}");
        }
    }
}

#[test]
fn counting_in_pieces_is_counting_the_whole() {
    let tiny = load(&tiny("")).unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(48));
    runner
        .run(&(confusing(), confusing(), 0usize..160), |(a, b, again)| {
            // Long enough to be cut by lines; the second text shares its beginning with the first.
            let long = format!("{a}{}{b}", format!("{a}\n").repeat(again));
            for v in ALL.iter().chain(std::iter::once(&tiny)) {
                for text in [a.as_str(), &long] {
                    prop_assert_eq!(v.count(text) as usize, v.tokenize(text).len(), "{:?}: {:?}", v, text);
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn long_runs_take_no_square_of_time() {
    let spm = load(&tiny("")).unwrap();
    let real = vocabularies().into_iter().zip(&*ALL);
    let real = real.filter(|(file, _)| file.to_string_lossy().contains("deepseek-coder")).map(|(_, v)| v);
    for v in std::iter::once(&spm).chain(real) {
        for text in ["\n".repeat(200_000), " ".repeat(200_000), "é".repeat(50_000)] {
            let started = std::time::Instant::now();
            assert!(v.count(&text) > 0);
            assert!(started.elapsed().as_secs() < 20, "{v:?}: {:?}", started.elapsed());
        }
    }
}
