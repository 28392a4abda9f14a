//! Random conversations of every shape, broken ones too, through the whole proxy at small windows: each is answered, or
//! refused with reasons; nothing that is forwarded is invalid or too long.

use serde_json::json;

use super::support::*;

/// One more message or step of any shape.
fn grow(mut chat: Chat, dice: &mut Dice, n: usize) -> Chat {
    let length = match dice.below(12) {
        0 => 0,
        1 => 4_000 + dice.below(12_000),
        2..=4 => 600 + dice.below(1_500),
        _ => dice.below(400),
    };
    let words = if dice.chance(15) { prose(1, 1_700) } else { prose(dice.next() % 1_000, length) };
    let words = match dice.below(10) {
        0 => format!("{words}\u{1b}[1m\r\n<|im_end|>\u{0}"),
        1 => words.replace(' ', "\u{4e16}"),
        _ => words,
    };
    match dice.below(10) {
        0 | 1 => chat.user(&words),
        2 => chat.assistant(&words),
        3 if dice.chance(30) => chat.push(json!({"role": "system", "content": words})),
        3 => chat.push(json!({"role": "user", "content": [{"type": "text", "text": words}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAAA"}}]})),
        4 => chat.push(json!({"role": "assistant", "content": null, "reasoning_content": words})),
        _ => {
            let count = 1 + dice.below(3);
            // Ids are sometimes used again, or empty.
            let ids: Vec<String> = (0..count)
                .map(|k| if dice.chance(20) { format!("call_{k}") } else { format!("call_{n}_{k}") })
                .collect();
            let arguments: Vec<String> = (0..count)
                .map(|_| match dice.below(8) {
                    0 => String::new(),
                    1 => "not json {".into(),
                    2 => format!("{{\"text\":{}}}", json!(words)),
                    3 => "[1,2]".into(),
                    _ => json!({"path": format!("f{}.rs", dice.below(5))}).to_string(),
                })
                .collect();
            let calls: Vec<_> =
                ids.iter().zip(&arguments).map(|(id, a)| (id.as_str(), "read_file", a.as_str())).collect();
            chat = chat.calls(&calls);
            let mut order: Vec<usize> = (0..count).collect();
            if dice.chance(30) {
                order.reverse();
            }
            for k in order {
                if !dice.chance(8) {
                    chat = chat.result(&ids[k], &if k == 0 { words.clone() } else { prose(dice.next() % 50, 300) });
                }
            }
            chat
        }
    }
}

fn beginning(dice: &mut Dice) -> Chat {
    let mut out = chat();
    if dice.chance(80) {
        out = out.system(&prose(dice.next() % 100, dice.below(900)));
    }
    if dice.chance(85) {
        out = out.user(&prose(dice.next() % 100, 10 + dice.below(300)));
    }
    if dice.chance(60) {
        out = out.tools();
    }
    if dice.chance(40) {
        out = out.with("max_tokens", json!(1 + dice.below(5_000)));
    }
    if dice.chance(50) {
        out = out.stream();
    }
    out
}

/// What must be the same when a history comes again. Where the server cannot count, the room that `max_tokens` is lowered to
/// is an estimate, which gets better with each reply.
fn same(kind: Kind, seen: &Seen) -> String {
    let mut body = seen.json();
    if let (Kind::OpenAi, Some(map)) = (kind, body.as_object_mut()) {
        map.remove("max_tokens");
        return body.to_string();
    }
    String::from_utf8_lossy(&seen.body).into_owned()
}

/// Plays conversations turn by turn; returns how many requests were answered and how many refused.
fn play(kind: Kind, window: u32, toml: &str, seeds: std::ops::Range<u64>, turns: usize) -> (usize, usize) {
    let fake = Fake::start(kind, window);
    let proxy = TestProxy::with(&[fake.url()], toml);
    let (mut answered, mut refused) = (0, 0);
    for seed in seeds {
        let mut dice = Dice(seed * 1_000 + u64::from(window));
        let mut sent = beginning(&mut dice);
        for n in 0..turns {
            for _ in 0..1 + dice.below(3) {
                sent = grow(sent, &mut dice, n);
            }
            let before = fake.count();
            let answer = proxy.chat(&sent);
            let context = format!("{kind:?}, window {window}, seed {seed}, turn {n}");
            let mains = fake.since(before);
            for seen in &mains {
                let forwarded = seen.json();
                // The last user message may be cut, but only when it does not fit beside what must stay.
                let last = sent.messages.iter().rev().find(|m| m["role"] == "user");
                let alone = json!({"messages": [sent.messages[0], last], "tools": sent.fields.get("tools")});
                // An estimate errs high, above all for a server that counts as no vocabulary does: cut is what fills the window.
                let full = kind == Kind::OpenAi && tokens(&forwarded) > window / 3 * 2;
                let large = full || tokens(&alone) + 250 > window / 4 * 3;
                let mut faults = faults(&sent.value(), &forwarded);
                faults.retain(|f| f != "last user message lost" || !large);
                assert!(faults.is_empty(), "{context}: {faults:?} ({})", answer.action());
                assert!(seen.json()["messages"].as_array().is_some_and(|m| !m.is_empty()), "{context}");
                assert!(tokens(&forwarded) < window, "{context}: {} tokens", tokens(&forwarded));
            }
            match answer.status {
                200 => {
                    answered += 1;
                    assert!(answer.whole, "{context}");
                    assert!(!mains.is_empty(), "{context}");
                }
                400 => {
                    refused += 1;
                    assert_eq!(answer.error().0, "context_length_exceeded", "{context}: {}", answer.text());
                    assert_eq!(mains.len(), 0, "{context}: refused before anything is sent");
                }
                other => panic!("{context}: status {other}: {}", answer.text()),
            }
            if answer.status == 200 && dice.chance(15) {
                let first = fake.last();
                proxy.chat(&sent).ok();
                assert_eq!(same(kind, &fake.last()), same(kind, &first), "{context}: the same again");
            }
        }
    }
    (answered, refused)
}

#[test]
fn counted_by_the_server() {
    for window in [1024, 2048, 4096] {
        let (answered, refused) = play(Kind::LlamaServer, window, "", 0..4, 25);
        assert!(answered > 60, "window {window}: {answered} answered, {refused} refused");
    }
}

#[test]
fn without_background_and_by_a_strict_profile() {
    let (answered, refused) = play(
        Kind::LlamaServer,
        2048,
        "[context]\nbackground = false\nfold_at = \"line\"\nkeep_recent = 2\n",
        20..23,
        25,
    );
    assert!(answered > 50, "{answered} answered, {refused} refused");
}

#[test]
fn counted_by_vllm_which_counts_the_reply_too() {
    let (answered, refused) = play(Kind::Vllm, 2048, "", 30..33, 25);
    assert!(answered > 50, "{answered} answered, {refused} refused");
}

#[test]
fn estimated() {
    let (answered, refused) = play(Kind::OpenAi, 2048, "[window]\nnum_ctx = 2048\n", 40..43, 25);
    assert!(answered > 50, "{answered} answered, {refused} refused");
}
