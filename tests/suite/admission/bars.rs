//! What naming tools by index saves, and whether the tool that is needed is found: on tools of real clients, and on any file of
//! cases that `WINDOWSILL_TOOL_CASES` names.

use bytes::Bytes;
use serde_json::Value;
use windowsill::admission::{Catalog, List, Wanted, budget, choose, search};
use windowsill::conversation::Tokens;

/// Tools that one lookup tells of or names.
const HITS: usize = 8;

fn count(text: &str) -> Tokens {
    text.len().div_ceil(4) as Tokens
}

struct Case {
    source: String,
    own: Bytes,
    question: String,
    needed: Vec<String>,
}

/// Text in the place of a description whose length is all that was kept.
fn filled(value: &mut Value) {
    let sentence = "This is what it does in so many words as a sentence of its kind has. ";
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                match inner.as_u64().filter(|_| key == "description") {
                    Some(length) => *inner = sentence.chars().cycle().take(length as usize).collect::<String>().into(),
                    None => filled(inner),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(filled),
        _ => {}
    }
}

fn cases(text: &str) -> Vec<Case> {
    let mut all: Vec<Value> = serde_json::from_str(text).unwrap();
    for tool in all.iter_mut().flat_map(|c| c["tools"].as_array_mut().unwrap()) {
        filled(tool);
        if tool.get("function").is_none() {
            *tool = serde_json::json!({"type": "function", "function": tool.take()});
        }
    }
    let string = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    all.iter()
        .map(|c| Case {
            source: string(&c["source"]),
            own: c["tools"].to_string().into(),
            question: string(&c["question"]),
            needed: c["needed"].as_array().unwrap().iter().map(string).collect(),
        })
        .collect()
}

/// Of all cases of a source: tokens sent and left, tools needed, those shown or named, and those a search finds.
#[derive(Default, Clone, Copy)]
struct Sum {
    cases: usize,
    sent: u64,
    left: u64,
    needed: usize,
    shown: usize,
    reached: usize,
}

fn measured(case: &Case, window: Tokens) -> Sum {
    let catalog = Catalog::read(&case.own).unwrap_or_else(|e| panic!("{}: {e}", case.source));
    let sent = count(std::str::from_utf8(&case.own).unwrap());
    let wanted = Wanted { words: case.question.clone(), ..Wanted::default() };
    let list: List = choose(&catalog, &case.own, sent, &wanted, budget(sent, window), &count);
    let text = String::from_utf8_lossy(&list.tools);
    let named = |name: &str| {
        text.contains(&format!("{name}:"))
            || text.contains(&format!(" {name},"))
            || text.contains(&format!(" {name}\""))
    };
    let found: Vec<&str> =
        search(&catalog, &case.question, HITS).into_iter().map(|at| catalog.tools[at].name.as_str()).collect();
    let all = |is: &dyn Fn(&str) -> bool| case.needed.iter().filter(|n| is(n)).count();
    Sum {
        cases: 1,
        sent: u64::from(sent),
        left: u64::from(count(&text)),
        needed: case.needed.len(),
        shown: all(&|n| list.shows(n)),
        reached: all(&|n| list.shows(n) || named(n) || found.contains(&n)),
    }
}

fn sums(cases: &[Case], window: Tokens) -> Vec<(String, Sum)> {
    let mut out: Vec<(String, Sum)> = Vec::new();
    for case in cases {
        let one = measured(case, window);
        let at = out.iter().position(|(s, _)| *s == case.source).unwrap_or_else(|| {
            out.push((case.source.clone(), Sum::default()));
            out.len() - 1
        });
        let sum = &mut out[at].1;
        sum.cases += 1;
        sum.sent += one.sent;
        sum.left += one.left;
        sum.needed += one.needed;
        sum.shown += one.shown;
        sum.reached += one.reached;
    }
    out
}

/// The tools of Claude Code 2.1.197, Codex 0.169.0, Qwen Code 0.15.10, Kimi Code 2.1.0 and hermes-agent 0.19.0 as their first
/// requests had them: names and schemas, and of each description its length.
const CLIENTS: &str = include_str!("clients.json");

#[test]
fn the_tools_of_real_clients_come_down_to_a_tenth() {
    let text = std::env::var_os("WINDOWSILL_TOOL_CASES").map(|file| std::fs::read_to_string(file).unwrap());
    let all = cases(text.as_deref().unwrap_or(CLIENTS));
    let mut missed = Vec::new();
    for window in [8192, 16_384] {
        let sums = sums(&all, window);
        let (mut sent, mut left, mut needed, mut reached) = (0, 0, 0, 0);
        for (source, s) in &sums {
            eprintln!(
                "{window} {source}: {} cases, {} of {} tokens ({:.1} %), shown {} and reached {} of {}",
                s.cases,
                s.left / s.cases as u64,
                s.sent / s.cases as u64,
                100.0 * s.left as f64 / s.sent as f64,
                s.shown,
                s.reached,
                s.needed
            );
            (sent, left) = (sent + s.sent, left + s.left);
            (needed, reached) = (needed + s.needed, reached + s.reached);
        }
        eprintln!("{window}: {left} of {sent} tokens are left, {reached} of {needed} tools are one lookup away");
        if left * 10 > sent || reached * 100 < needed * 97 {
            missed.push(window);
        }
    }
    assert_eq!(missed, [0; 0], "windows at which a bar is missed");
}
