//! Real vocabularies: a prompt that is counted in segments has the tokens of the
//! whole, and each stands where its text does.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a panic is how they fail")]

use std::path::PathBuf;

use serde_json::json;

use super::{ChatTemplate, TemplateError, Vocabulary};
use crate::measure::count::tests::{at_least, data, requests};

fn vocabularies() -> Vec<(String, Vocabulary)> {
    let files = std::fs::read_dir(data().join("vocab")).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    files.sort();
    let name = |file: &PathBuf| file.file_stem().unwrap().to_string_lossy().into_owned();
    files.iter().map(|file| (name(file), Vocabulary::load(file).unwrap())).collect()
}

#[test]
fn segments_add_up_to_the_whole() {
    let requests = requests(8_000, 12);
    let mut seen = 0;
    for (at, (name, v)) in vocabularies().iter().enumerate() {
        let mut texts: Vec<String> = ["", " ", "a", "<s>a</s> b", "</s>", " </s> </s>\n", "<|im_end|><|endoftext|> x"]
            .map(str::to_owned)
            .to_vec();
        let enders: Vec<&String> = v.enders().iter().collect();
        for (i, (_, request)) in requests.iter().enumerate().skip(at % 3).step_by(3) {
            let said: Vec<&str> =
                request["messages"].as_array().unwrap().iter().filter_map(|m| m["content"].as_str()).collect();
            let ender = enders.get(i % enders.len().max(1)).map_or("", |text| text.as_str());
            texts.push(said.join(ender));
            texts.push(said.join(&format!(" {ender} \n")));
        }
        for text in &texts {
            let whole = v.tokenize(text).len();
            assert_eq!(v.count(text) as usize, whole, "{name}: {text:?}");
            let places = v.places(text);
            assert_eq!(places.ends.len(), whole, "{name}: {text:?}");
            assert!(places.ends.is_sorted() && places.specials.is_sorted(), "{name}");
            assert!(places.ends.last().is_none_or(|end| *end <= text.len()), "{name}");
            assert!(places.specials.iter().all(|end| text.is_char_boundary(*end)), "{name}");
            seen += 1;
        }
    }
    eprintln!("{seen} texts");
    assert!(seen > at_least(&data(), 100, 10), "{seen}");
}

#[test]
fn special_tokens_stand_where_their_texts_do() {
    for (name, v) in vocabularies() {
        let Some(ender) = v.enders().first().filter(|text| v.tokenize(text).len() <= v.tokenize("").len() + 1) else {
            continue;
        };
        let text = format!("How are you?{ender}\nI am well, été.{ender}\nGood");
        let places = v.places(&text);
        let ends: Vec<usize> = text.match_indices(ender.as_str()).map(|(at, found)| at + found.len()).collect();
        // Of BERT's kind, a text has other bytes than its tokens, and in Phi-3 such a token takes the line break, too.
        if !name.contains("bert") && !name.contains("phi-3") {
            assert!(ends.iter().all(|end| places.specials.contains(end)), "{name}: {ends:?}, {places:?}");
        }
    }
}

#[test]
fn a_template_that_refuses_or_cannot_be_read_says_why() {
    let read = |source: &str| ChatTemplate::read(source, ("<s>", "</s>"));
    let request = json!({"messages": [{"role": "user", "content": "é\u{1f600} <b>"}]});
    let plain = read("{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{% endfor %}").unwrap();
    assert_eq!(plain.render(&request).unwrap(), "<s>user: é\u{1f600} <b>");
    assert!(matches!(read("{% for %}"), Err(TemplateError::Syntax(why)) if !why.is_empty()));
    let raises = read("{{ raise_exception('no ' + messages[0].role) }}").unwrap();
    assert_eq!(raises.render(&request), Err(TemplateError::Raised("no user".into())));
    // A letter cut in pieces is told as one that cannot be read.
    let cut = read("{{ messages[0].content[:1] }}").unwrap();
    assert_eq!(cut.render(&request).unwrap(), "\u{fffd}");
    assert_eq!(read("").unwrap().render(&request).unwrap(), "");
}
