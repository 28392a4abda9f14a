//! Every expression that llama.cpp divides texts by before it merges (`tokenizer.ggml.pre`): what is counted word by word
//! must come to what its own tokenizer makes of the whole.

use super::super::soft::{ENDING, Rule};
use super::made::{Value, load, made};

/// Expressions that have no rule, or one of their own.
const OTHERS: [&str; 14] = [
    "bloom",
    "chameleon",
    "cohere2moe",
    "exaone-moe",
    "gpt3-finnish",
    "jina-v2-code",
    "modern-bert",
    "poro-chat",
    "roberta-bpe",
    "sarvam-moe",
    "superbpe",
    "tiny_aya",
    "viking",
    "gemma4",
];

/// What texts are put together from: letters of three scripts, a mark that belongs to the letter before it, digits in groups
/// of one to four, and marks and spaces of the kinds that expressions tell apart.
const BITS: [&str; 23] = [
    "a", "Z", "aZa", "1", "19", "191", "1911", " ", "  ", ".", ",", "'s", "'", "/", "\n", "\n\n", "\t", "(", "_", "-",
    "é", "日", "\u{301}",
];

/// Texts for each expression.
const TEXTS: usize = 60;

/// A letter for each byte, as vocabularies of the kind `gpt2` spell them (`unicode_byte_to_utf8` in llama.cpp).
fn letters() -> Vec<char> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    (0..256).filter_map(|b| char::from_u32(if printable(b) { b } else { others.next()? })).collect()
}

#[test]
fn each_expression_divides_texts_as_llama_cpp_does() {
    let letters = letters();
    // All pairs are merged, so that a count tells of any two neighbors whether the expression parts them.
    let some: Vec<char> = b"aZ19 .,'/\n\t(_-".iter().map(|b| letters[usize::from(*b)]).collect();
    let pairs: Vec<(char, char)> = some.iter().flat_map(|a| some.iter().map(move |b| (*a, *b))).collect();
    let words: Vec<String> =
        letters.iter().map(char::to_string).chain(pairs.iter().map(|(a, b)| format!("{a}{b}"))).collect();
    let words: Vec<(&str, i32, f32)> = words.iter().map(|w| (w.as_str(), 1, 0.0)).collect();
    let merges: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} {b}")).collect();
    let merges: Vec<&[u8]> = merges.iter().map(|m| m.as_bytes()).collect();

    let mut by_words = 0;
    for pre in ENDING.iter().chain(&OTHERS) {
        let more = vec![("tokenizer.ggml.merges", Value::Words(&merges)), ("tokenizer.ggml.pre", Value::Text(pre))];
        let v = load(&made("gpt2", &words, more)).unwrap();
        // The same texts each time (xorshift).
        let mut state = 7u64;
        let mut any = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % n
        };
        for _ in 0..TEXTS {
            let text: String = (0..any(40)).map(|_| BITS[any(BITS.len())]).collect();
            assert_eq!(v.count(&text) as usize, v.tokenize(&text).len(), "{pre}: {text:?}");
            // A token that reached over a cut would be seen, and all be counted whole from there on.
            let holds = v.lexicon.as_ref().is_some_and(|l| l.holds());
            assert_eq!(holds, Rule::of("gpt2", pre).is_some(), "{pre}: {text:?}");
        }
        by_words += usize::from(v.lexicon.is_some());
    }
    assert!(by_words > ENDING.len(), "{by_words} of {}", ENDING.len() + OTHERS.len());
}
