//! Windows that system prompt and tools nearly fill, before servers whose tokens are not those of an estimate.

use serde_json::json;

use crate::support::{Chat, Dice, Fake, Kind, Seen, TestProxy, chat, prose, text, tokens};

/// A client whose tools take half as many tokens again as they look like (their text is indented widely, which most vocabularies
/// have tokens for, and this server has not), in a window half as large again as what it brings: each step is answered, and the
/// prompt is rewritten for one step in four at most. Without the server's own count of the tools, the room beside them looks
/// three times as large as it is.
#[test]
fn tools_that_are_longer_than_they_look_are_counted() {
    let tool = |n: usize| {
        let about: String =
            prose(900 + n as u64, 700).split_inclusive(". ").map(|s| format!("{:>24}{s}\n", "")).collect();
        json!({"type": "function", "function": {"name": format!("tool_{n}"), "description": about, "parameters": {
            "type": "object", "properties": {"path": {"type": "string", "description": prose(n as u64, 300)}}}}})
    };
    let tools: Vec<_> = (0..24).map(tool).collect();
    let mut sent = chat()
        .system(&prose(77, 2_000))
        .user("Repair the ledger, module by module, and run its tests.")
        .with("tools", json!(tools));
    let window = tokens(&serde_json::from_slice(&sent.body()).unwrap()) * 3 / 2;
    let fake = Fake::start(Kind::LlamaServer, window);
    let proxy = TestProxy::with(&[fake.url()], "");
    let (mut dice, mut rewrites, steps) = (Dice(11), 0, 40);
    for n in 0..steps {
        sent = sent.step(n, &prose(n as u64 + 1, 900 + dice.below(1_600)));
        let answer = proxy.chat(&sent).ok();
        assert!(tokens(&fake.last().json()) <= window, "step {n} fits");
        rewrites += usize::from(!matches!(answer.action(), "none" | "evict"));
    }
    assert_eq!(fake.count(), steps, "nothing was sent twice");
    assert!(rewrites * 4 <= steps, "{rewrites} of {steps} steps were rewritten");
    // Each part of the head was asked about once.
    let heads = |seen: &&Seen| {
        let body = seen.json();
        seen.path().ends_with("/input_tokens") && body["messages"].as_array().is_some_and(|m| m.len() == 2)
    };
    let asked = fake.all();
    let asked: Vec<_> = asked.iter().filter(heads).filter(|s| s.messages()[1]["content"] == ".").collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
}

/// The newest message alone is longer than the smallest window, behind a history of any length: its end reaches the model, as an
/// Ollama alone has it.
#[test]
fn the_end_of_what_is_asked_stands_in_the_smallest_window() {
    let long = (0..300).fold("First words.".to_owned(), |text, n| format!("{text} word{n}")) + " What is the password?";
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::OpenAi] {
        for window in [128, 256] {
            for before in [0, 1, 6, 20] {
                let fake = Fake::start(kind, window);
                let proxy = TestProxy::with(&[fake.url()], &format!("[window]\nnum_ctx = {window}\n"));
                let told =
                    |c: Chat, n| c.user(&format!("Question {n} about the weather?")).assistant(&format!("Fine, {n}."));
                let sent = (0..before).fold(chat().system("Be brief."), told).user(&long);
                let answer = proxy.chat(&sent);
                let what = format!("{kind:?} {window} {before}: {}", answer.text());
                assert_eq!(answer.status, 200, "{what}");
                let got = fake.last().messages();
                assert!(text(got.last().unwrap()).ends_with("What is the password?"), "{what}: {got:?}");
                assert!(tokens(&fake.last().json()) <= window, "{what}");
            }
        }
    }
}
