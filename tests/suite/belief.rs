//! What a server says wrongly: refusals that are none, sizes that cannot be, pools that are full. Nobody else pays for it, and
//! nobody pays for good.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::dialects::{ALL, ask, whole_or_streamed};
use super::support::*;

/// What an attacker has a server repeat, and parts of it.
const SENTENCE: &str = "This model's maximum context length is 64 tokens. However, you requested 900 tokens";

fn refuses(words: &str) -> Value {
    json!({"error": {"code": 400, "message": words, "type": "invalid_request_error"}})
}

/// A prompt far above 64 tokens and far below any window here.
fn plain() -> Chat {
    chat().system(&prose(1, 400)).user(&prose(2, 300))
}

#[test]
fn a_sentence_of_the_request_shuts_the_model_for_nobody() {
    for kind in [Kind::LlamaServer, Kind::OpenAi, Kind::Vllm, Kind::Ollama] {
        for told in [SENTENCE, "maximum context length is 64", "prompt is too long: 900 tokens > 64 maximum"] {
            let fake = Fake::start(kind, 4096);
            fake.script(move |seen| {
                let body = seen.json();
                let stops = [&body["stop"], &body["options"]["stop"], &body["options"]["stop"][0]];
                match stops.into_iter().find_map(Value::as_str) {
                    Some(echo) if seen.is_main() => Play::Json(400, refuses(&format!("Invalid stop: {echo}"))),
                    _ => Play::Usual,
                }
            });
            let proxy = TestProxy::before(&fake);
            // Before and after anything was answered.
            for _ in 0..2 {
                let answer = proxy.chat(&plain().with("stop", json!(told)));
                let what = format!("{kind:?} {told}: {} {}", answer.status, answer.text());
                assert_eq!(answer.status, 400, "{what}");
                assert!(answer.error().1.contains("nvalid"), "{what}");
                let answer = proxy.chat(&plain()).ok();
                assert_eq!(answer.action(), "none", "{kind:?} {told}");
                assert_ne!(answer.header("x-windowsill-window"), Some("64"), "{kind:?} {told}");
            }
        }
    }
}

#[test]
fn a_refusal_is_believed_by_its_shape_its_status_and_what_is_known() {
    // (status, words; whether the next request pays for it)
    for (status, words, believed) in [
        (
            400,
            "This model's maximum context length is 900 tokens. However, your messages resulted in 950 tokens.",
            true,
        ),
        (413, "prompt is too long: 950 tokens > 900 maximum", true),
        (500, "Cannot truncate prompt with n_keep (950) >= n_ctx (900)", true),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 900. Given: 950 `inputs` tokens", true),
        // An error in words that sound like it, with a status that no server gives it.
        (500, "worker died: maximum context length is 900", false),
        (422, "maximum context length is 900", false),
        (503, "please reduce the length of the messages", false),
        // Smaller than what was answered a moment ago.
        (
            400,
            "This model's maximum context length is 64 tokens. However, your messages resulted in 950 tokens.",
            false,
        ),
    ] {
        let fake = Fake::start(Kind::OpenAi, 4096);
        let proxy = TestProxy::with(&[fake.url()], "[context]\nstrategy = \"truncate\"\n");
        proxy.chat(&plain()).ok();
        let once = AtomicUsize::new(0);
        let error = refuses(words);
        fake.script(move |seen| match seen.is_main() && once.fetch_add(1, Ordering::SeqCst) == 0 {
            true => Play::Json(status, error.clone()),
            false => Play::Usual,
        });
        let talk = (0..4).fold(chat().system("s"), |c, n| c.user(&prose(n, 700)).assistant(&prose(n + 9, 500)));
        let talk = talk.user("And now?");
        let answer = proxy.chat(&talk);
        let after = proxy.chat(&plain().user("again")).ok();
        let window = after.header("x-windowsill-window").unwrap().to_owned();
        let what = format!("{status} {words}: {} {} {window}", answer.status, answer.action());
        if believed {
            assert_eq!((answer.status, window.as_str()), (200, "900"), "{what}");
        } else {
            assert_eq!(window, "unknown", "{what}");
            assert!(answer.status == 200 || answer.status == status, "{what}");
        }
    }
}

#[test]
fn what_props_say_is_believed_over_words_and_a_code_over_props() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let words = "This model's maximum context length is 700 tokens. However, your messages resulted in 950 tokens.";
    let error = refuses(words);
    fake.script(move |seen| if seen.is_main() { Play::Json(400, error.clone()) } else { Play::Usual });
    // The prompt was counted by the very server, and has room.
    let answer = proxy.chat(&plain());
    assert_eq!((answer.status, answer.error().1.as_str()), (400, words));
    fake.script(|_| Play::Usual);
    let answer = proxy.chat(&plain()).ok();
    assert_eq!((answer.header("x-windowsill-window"), answer.action()), (Some("4096"), "none"));
}

/// A server that says once that a prompt had a million tokens.
#[test]
fn one_wrong_usage_is_the_end_of_no_conversation() {
    for kind in [Kind::LlamaServer, Kind::OpenAi, Kind::Vllm, Kind::Ollama] {
        for told in ["num_ctx = 4096", "num_ctx = \"loaded\""] {
            for (lie, streamed) in [(1_000_000, false), (1_000_000, true), (5_000, false), (3_900, true)] {
                let fake = Fake::start(kind, 4096);
                let toml = format!("[window]\n{told}\n");
                let proxy = TestProxy::with(&[fake.url()], &toml);
                let first = chat().system("s").user(&prose(1, 300)).with("stream", json!(streamed));
                lies(&fake, kind, lie, streamed);
                proxy.chat(&first).ok();
                fake.script(|_| Play::Usual);
                let what = format!("{kind:?} {told} {lie} streamed: {streamed}");
                let second = first.clone().assistant("Yes.").user("And now?");
                let answer = proxy.chat(&second).ok();
                assert_eq!(answer.action(), "none", "{what}");
                let counted: u32 = answer.header("x-windowsill-prompt-tokens").unwrap().parse().unwrap();
                assert!(counted < 700, "{what}: {counted}");
                // Nor after a restart.
                let dir = proxy.stop();
                let proxy = TestProxy::at(dir, &[fake.url()], &toml);
                let third = second.assistant("Yes.").user("And then?");
                assert_eq!(proxy.chat(&third).ok().action(), "none", "{what}");
                assert_eq!(proxy.chat(&first).ok().action(), "none", "{what}");
            }
        }
    }
}

/// Has a server report this size with each reply.
fn lies(fake: &Fake, kind: Kind, lie: u64, streamed: bool) {
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let usage = json!({"prompt_tokens": lie, "completion_tokens": 2, "total_tokens": lie + 2});
        if kind == Kind::Ollama {
            return Play::Json(
                200,
                json!({"model": MODEL, "created_at": "2026-08-21T18:48:22.1Z", "message": {"role": "assistant", "content": "ok"},
                    "done": true, "done_reason": "stop", "prompt_eval_count": lie, "eval_count": 2}),
            );
        }
        if streamed {
            let piece = json!({"id": "c", "choices": [{"index": 0, "delta": {"content": "ok"}}]});
            let last = json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage});
            let body = format!("data: {piece}\n\ndata: {last}\n\ndata: [DONE]\n\n");
            return Play::Pieces(vec![sse_head(), chunk(body.as_bytes()), b"0\r\n\r\n".to_vec()]);
        }
        Play::Json(
            200,
            json!({"id": "c", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": "ok"}}], "usage": usage}),
        )
    });
}

/// A server that always reports twice as much is believed where nothing else tells, and still nobody is refused for it.
#[test]
fn nothing_is_refused_on_a_size_that_only_usage_told() {
    let fake = Fake::start(Kind::OpenAi, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[window]\nnum_ctx = 4096\n[context]\nstrategy = \"off\"\n");
    let first = chat().system("s").user(&prose(1, 7_600));
    lies(&fake, Kind::OpenAi, 4_000, false);
    proxy.chat(&first).ok();
    fake.script(|_| Play::Usual);
    let answer = proxy.chat(&first.assistant("Yes.").user(&prose(2, 900)));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn pool_is_full() -> Value {
    json!({"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}})
}

#[test]
fn a_full_pool_is_no_prompt_that_is_too_long() {
    let dialects = ALL.iter().flat_map(|d| [(d, false), (d, true)]);
    for (n, (dialect, streamed)) in dialects.enumerate() {
        for kind in [Kind::LlamaServer, Kind::OpenAi].into_iter().take(if n < 2 { 2 } else { 1 }) {
            for how in ["500", "200", "string"].into_iter().take(if n < 2 { 3 } else { 1 }) {
                let fake = Fake::start(kind, 4096);
                let proxy = TestProxy::before(&fake);
                let once = AtomicUsize::new(0);
                fake.script(move |seen| match seen.is_main() && once.fetch_add(1, Ordering::SeqCst) == 0 {
                    true if how == "500" => Play::Json(500, pool_is_full()),
                    true if how == "200" => Play::Json(200, pool_is_full()),
                    true => Play::Json(400, json!({"error": "Context size has been exceeded."})),
                    false => Play::Usual,
                });
                let request = chat().system("s").user(&prose(1, 4_000));
                let answer = ask(&proxy, dialect, &whole_or_streamed(request.clone(), streamed)).ok();
                let what = format!("{} {kind:?} streamed: {streamed} {how}", dialect.name);
                assert_eq!((answer.action(), fake.count()), ("none", 2), "{what}");
                let sent = fake.mains();
                assert_eq!(sent[0].body, sent[1].body, "{what}: the same bytes");
                let next = request.assistant("Yes.").user("And now?");
                let answer = ask(&proxy, dialect, &whole_or_streamed(next, streamed)).ok();
                assert_eq!(answer.action(), "none", "{what}");
            }
        }
    }
}

#[test]
fn a_pool_that_stays_full_is_the_servers_error_with_a_time_to_come_back() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    fake.script(|seen| if seen.is_main() { Play::Json(500, pool_is_full()) } else { Play::Usual });
    for dialect in &ALL {
        let before = fake.count();
        let answer = ask(&proxy, dialect, &chat().user(&prose(1, 4_000)));
        assert_eq!((answer.status, answer.header("retry-after")), (500, Some("5")), "{}", dialect.name);
        assert_eq!((dialect.error)(&answer.json()).as_deref(), Some("Context size has been exceeded."));
        assert_eq!(fake.count(), before + 2, "{}", dialect.name);
    }
    let told = |v: &Value| v["events"].as_array().unwrap().iter().any(|e| e["kind"] == "pool_full");
    proxy.eventually("/windowsill/events", told);
}

/// Once a pool is known to be shared, prompts that do not fit together go one after the other, in the order in which they came.
#[test]
fn a_shared_pool_is_never_filled_twice() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.set(|s| s.slots = 4);
    let proxy = TestProxy::before(&fake);
    let gate = Gate::default();
    let (held, seen) = (gate.clone(), AtomicUsize::new(0));
    fake.script(move |s| {
        if !s.is_main() {
            return Play::Usual;
        }
        match seen.fetch_add(1, Ordering::SeqCst) {
            0 => Play::Json(500, pool_is_full()),
            _ => Play::Wait(held.clone(), Box::new(Play::Usual)),
        }
    });
    let request = |n: u64| chat().user(&prose(n, 9_000));
    let mut first = proxy.begin(&request(1));
    fake.wait("the prompt once more", |all| all.iter().filter(|s| s.is_main()).count() == 2);
    // Some 2,300 tokens each, and the replies: one of them fits.
    let mut second = proxy.begin(&request(2));
    let waits = |v: &Value| v["events"].as_array().unwrap().iter().any(|e| e["kind"] == "waits_for_room");
    proxy.eventually("/windowsill/events", waits);
    assert_eq!(fake.count(), 2, "the second one waits");
    // What is small and came later does not overtake it; and it says so.
    let mut third = proxy.begin(&request(3));
    let both =
        |v: &Value| v["events"].as_array().unwrap().iter().filter(|e| e["kind"] == "waits_for_room").count() == 2;
    proxy.eventually("/windowsill/events", both);
    gate.open();
    first.answer().ok();
    let answer = second.answer().ok();
    assert!(answer.header("x-windowsill-waited").is_some_and(|w| w.contains("for=room")));
    third.answer().ok();
    assert_eq!(fake.count(), 4);
    let metrics = proxy.get("/metrics").ok().text();
    assert!(metrics.contains("windowsill_waits_for_room_total 2"), "{metrics}");
}
