//! Chat templates of real models: what renders before rewriting renders after it, and nothing that was kept is lost.

mod renderings;

use std::path::PathBuf;

use serde_json::{Value, json};
use windowsill::engine::{ChatTemplate, TemplateError};
use windowsill::plan::{Policy, Strategy, TemplateFacts};

use crate::planning::harness::{self, BRIEF_MARK};
use crate::planning::sessions;

/// Names and sources.
fn templates() -> Vec<(String, String)> {
    let dir = sessions::shared("templates");
    let least = sessions::at_least(&dir, 71, 17);
    let out = read_dir(dir);
    assert!(out.len() >= least, "only {} templates", out.len());
    out
}

fn read_dir(dir: PathBuf) -> Vec<(String, String)> {
    let paths = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut out: Vec<_> = paths
        .filter(|p| p.extension().is_some_and(|e| e == "jinja"))
        .map(|p| (p.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(&p).unwrap()))
        .collect();
    out.sort();
    out
}

/// What a profile would say of a model's template.
fn facts(name: &str) -> TemplateFacts {
    let one_of = |names: &[&str]| names.iter().any(|n| name.contains(n));
    TemplateFacts {
        strict_alternation: one_of(&["Mistral-Nemo", "Mistral-Small-3.2", "Ministral-3", "gemma-2"]),
        later_system: !one_of(&[
            "Mistral-Nemo",
            "Mistral-Small-3.2",
            "Ministral-3",
            "gemma-2",
            "Qwen3.5",
            "Apertus",
            "gpt-oss",
            "MiniMax",
            "SmolLM3",
            "Nemotron-Nano-v2",
            "Reka",
            "Bielik",
            "llm-jp",
            "DeepSeek-R1",
            "deepseek-r1",
            "rwkv",
        ]),
        tool_role: !one_of(&["gemma-2", "rwkv", "Phi-3.5"]),
        tool_call_id_length: one_of(&["Mistral-Nemo", "Mistral-Small-3.2"]).then_some(9),
    }
}

/// The prompt of these messages, with or without tools.
fn render(template: &ChatTemplate, messages: &[Value], tools: Option<Value>) -> Result<String, TemplateError> {
    template.render(&json!({"messages": messages, "tools": tools}))
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "read", "description": "reads", "parameters":
        {"type": "object", "properties": {"path": {"type": "string", "description": "where"}}, "required": ["path"]}}}])
}

fn parsed() -> Vec<(String, ChatTemplate)> {
    let parse = |(name, source): (String, String)| match ChatTemplate::read(&source, ("<s>", "</s>")) {
        Ok(template) => (name, template),
        Err(e) => panic!("{name}: {e}"),
    };
    templates().into_iter().map(parse).collect()
}

#[test]
fn a_plain_conversation_renders_everywhere() {
    let messages = [
        json!({"role": "system", "content": "MARK-S"}),
        json!({"role": "user", "content": "MARK-U"}),
        json!({"role": "assistant", "content": "MARK-A"}),
        json!({"role": "user", "content": [{"type": "text", "text": "MARK-V"}]}),
    ];
    let mut wrong = Vec::new();
    for (name, template) in parsed() {
        match render(&template, &messages, None) {
            Err(e) => wrong.push(format!("{name}: {e}")),
            Ok(text) => {
                let lost: Vec<_> =
                    ["MARK-S", "MARK-U", "MARK-A", "MARK-V"].iter().filter(|m| !text.contains(**m)).collect();
                if !lost.is_empty() {
                    wrong.push(format!("{name}: {lost:?} lost"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// A shape in letters: s system, u user, a assistant, c a call with its result, p two parallel calls with theirs, n a call
/// that is not answered, o a system message that holds tool output. Every message says its own word.
fn shape(letters: &str, bytes: usize) -> Vec<Value> {
    let mut out = Vec::new();
    for (i, letter) in letters.chars().enumerate() {
        let text = format!("MARK{i:03}{letter} {}", "lorem ipsum ".repeat(bytes / 12));
        let call = |n: usize| {
            json!({"id": format!("call_{i}_{n}"), "type": "function", "function":
                {"name": "read", "arguments": format!("{{\"path\": \"ARGS{i:03}{n}\"}}")}})
        };
        let step = |calls: usize| json!({"role": "assistant", "content": null, "tool_calls": (0..calls).map(call).collect::<Vec<_>>()});
        let result = |n: usize| json!({"role": "tool", "tool_call_id": format!("call_{i}_{n}"), "name": "read", "content": format!("{text}{n}")});
        match letter {
            's' | 'o' => out.push(json!({"role": "system", "content": text})),
            'u' => out.push(json!({"role": "user", "content": text})),
            'a' => out.push(json!({"role": "assistant", "content": text})),
            'c' => out.extend([step(1), result(0)]),
            'p' => out.extend([step(2), result(0), result(1)]),
            'n' => out.push(step(1)),
            other => panic!("{other}?"),
        }
    }
    out
}

/// The conversations that are folded: synthetic ones, and the beginnings of recorded ones.
fn conversations() -> Vec<(String, Vec<Value>)> {
    let shapes = [
        "suauauauau",
        "succcccccccc",
        "succcccau",
        "sucacacacau",
        "suaucccccccc",
        "sucpppcpppau",
        "uauauauauauau",
        "suuuuuuuuuu",
        "saaaaaaaau",
        "sucouaoucau",
        "suncccncccau",
        "saucccccccu",
        "sscucccccau",
        "succcauucccc",
        "suacacacuacacacu",
    ];
    let mut out: Vec<_> = shapes.iter().map(|s| ((*s).to_owned(), shape(s, 360))).collect();
    let names = [
        "taubench-airline-gpt4o-task2",
        "sweagent-marshmallow-fc",
        "openhands-ponylang__ponyc-4588",
        "memorybank-en-0",
        "pi-coding",
        "irc-rust",
        "toolbench-g3_answer-3",
        "qmsum-product-TS3004c",
        "cline-session",
    ];
    for (name, messages, _) in sessions::recorded() {
        if names.iter().any(|n| name.starts_with(n)) {
            // Up to where a client would ask for a reply.
            let end = (1..=messages.len().min(60)).rev().find(|e| sessions::asks(&messages, e - 1)).unwrap_or(0);
            out.push((name, messages[..end].to_vec()));
        }
    }
    out
}

/// The marker words in a text.
fn marks(text: &str) -> Vec<&str> {
    let starts = text.match_indices("MARK").map(|(at, _)| at);
    starts.filter_map(|at| text.get(at..at + 8)).collect()
}

#[test]
fn what_renders_before_rewriting_renders_after() {
    let mut wrong = Vec::new();
    let (mut rewritten, mut rendered, mut folded) = (0, 0, 0);
    let conversations = conversations();
    for (name, template) in parsed() {
        let facts = facts(&name);
        for (shape, messages) in &conversations {
            let conversation = sessions::read(messages, &Value::Null, facts.tool_call_id_length).expect("no orphans");
            let before = render(&template, messages, Some(tools()));
            for (window, strategy) in [(100, Strategy::Summarize), (60, Strategy::Truncate), (30, Strategy::Summarize)]
            {
                let policy = Policy { template: facts.clone(), strategy, ..Policy::default() };
                let whole = harness::facts(&conversation, &Default::default(), 0, 0);
                let total = whole.head() + whole.costs.iter().map(|c| c.total()).sum::<u32>();
                let measured = harness::facts(&conversation, &Default::default(), total * window / 100, total / 50);
                let pass = harness::pass(&conversation, &measured, &policy);
                if !pass.plan.fits {
                    continue;
                }
                let view: Vec<Value> = pass.out.iter().map(|m| serde_json::from_slice(&m.bytes).unwrap()).collect();
                let after = render(&template, &view, Some(tools()));
                rewritten += 1;
                folded += usize::from(view.iter().any(|m| m["content"].to_string().contains(BRIEF_MARK)));
                match (&before, &after) {
                    (Ok(_) | Err(_), Ok(after)) => {
                        rendered += 1;
                        let mut expect: Vec<String> = Vec::new();
                        for (message, out) in view.iter().zip(&pass.out) {
                            let text = message["content"].as_str().unwrap_or_default();
                            let kept = marks(text).into_iter().map(str::to_owned);
                            expect.extend(kept.filter(|m| out.changed || before.as_ref().is_ok_and(|b| b.contains(m))));
                            if text.contains(BRIEF_MARK) {
                                expect.push(BRIEF_MARK.to_owned());
                            }
                        }
                        expect.retain(|m| !after.contains(m));
                        if !expect.is_empty() {
                            wrong.push(format!("{name}, {shape}, {window}%: {expect:?} lost"));
                        }
                    }
                    (Ok(_), Err(e)) => wrong.push(format!("{name}, {shape}, {window}%: {e}")),
                    // It never rendered: parallel calls for Llama 3.x, say.
                    (Err(_), Err(_)) => {}
                }
            }
        }
    }
    eprintln!("{rewritten} views, {folded} with a brief, {rendered} rendered");
    assert!(folded * 2 > rewritten, "only {folded} of {rewritten} have a brief");
    assert!(rendered * 10 > rewritten * 9, "only {rendered} of {rewritten} rendered");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
