//! The lines act where they say: by the size of the model, not on a guess, across a switch of models; and the trace says what
//! was done.

use serde_json::{Value, json};

use super::proxy::sound;
use super::support::*;

/// Talk that grows turn by turn, each turn by about `bytes` / 4 tokens.
fn turn(talk: Chat, n: u64, bytes: usize) -> Chat {
    talk.assistant(&prose(n, bytes)).user(&format!("And what about item {n}?"))
}

fn opening() -> Chat {
    chat().system("You are a helpful assistant.").user("Let us plan the garden FIRST-WISH.")
}

fn header(answer: &Answer, name: &str) -> u32 {
    answer.header(name).unwrap().parse().unwrap()
}

/// Sends longer and longer talk, and waits each time until what is done behind a reply is done. Returns the tokens that the
/// client's history had when something was folded first, and what the fold left.
fn first_fold(fake: &Fake, proxy: &TestProxy, model: &str, most: u32) -> Option<(u32, u32)> {
    let mut talk = opening().with("model", json!(model));
    for n in 0.. {
        talk = turn(talk, n, 700);
        let size = tokens(&talk.value());
        if size > most {
            return None;
        }
        let answer = proxy.chat(&talk).ok();
        sound(&talk, &fake.last(), 8192);
        if answer.action().contains("summarize") {
            return Some((size, header(&answer, "x-windowsill-prompt-tokens")));
        }
        proxy.eventually("/windowsill/events?kind=model_usage", |events| {
            events["events"].as_array().unwrap().iter().filter(|e| e["data"]["role"] == "main").count()
                == n as usize + 1
        });
    }
    None
}

/// A server that drops messages reports what it kept. That is said, and the next prompt is not taken for that short.
#[test]
fn what_a_server_counts_after_it_dropped_messages_is_no_count_of_the_history() {
    let fake = Fake::start(Kind::OpenAi, 100_000);
    fake.script(|seen| match tokens(&seen.json()) {
        sent if !seen.is_main() || sent < 2_000 => Play::Usual,
        _ => Play::Json(
            200,
            json!({"id": "c", "object": "chat.completion", "created": 1, "model": "test-model",
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}],
                "usage": {"prompt_tokens": 500, "completion_tokens": 2, "total_tokens": 502}}),
        ),
    });
    let proxy = TestProxy::with(&[fake.url()], "[window]\nnum_ctx = 16384\n");
    let told = |events: &Value, kind: &str| {
        events["events"].as_array().unwrap().iter().filter(|e| e["kind"] == kind).cloned().collect::<Vec<_>>()
    };
    let mut talk = opening();
    for n in 0..6_u64 {
        talk = turn(talk, n, 2_800);
        let planned = header(&proxy.chat(&talk).ok(), "x-windowsill-prompt-tokens");
        let sent = tokens(&fake.last().json());
        assert!(planned >= sent * 9 / 10, "turn {n}: {planned} planned of {sent} sent");
        let events = proxy.eventually("/windowsill/events", |e| told(e, "model_usage").len() as u64 == n + 1);
        let dropped = told(&events, "silent_truncation");
        assert_eq!(dropped.len(), (n as usize + 1).saturating_sub(2), "turn {n}, {sent} tokens sent: {events}");
        assert!(dropped.iter().all(|e| e["data"]["prompt_tokens"] == 500), "{events}");
    }
}

/// llama-server tells how many parameters a model has, Ollama too; a name may tell it where the server does not. At 8,192
/// tokens with 1,024 kept for the reply, a small model's line is at 3,072 tokens, a medium one's at 4,301, and the wall at
/// 7,152.
#[test]
fn folds_come_at_the_line_that_belongs_to_the_models_size() {
    let cases = [
        (Kind::LlamaServer, "test-model", Some(600_000_000), "", 3_072, 3_900),
        (Kind::Ollama, "test-model", Some(8_200_000_000), "", 4_301, 5_400),
        (Kind::LlamaServer, "Test-3B.Q4_K_M", None, "", 4_301, 5_400),
        (Kind::LlamaServer, "test-model", Some(70_000_000_000), "", 6_500, 7_400),
        (Kind::LlamaServer, "test-model", None, "", 6_500, 7_400),
        (Kind::LlamaServer, "test-model", None, "[context]\nfold_at = \"line\"\nsummarize_at = 0.6\n", 3_891, 4_900),
        (Kind::LlamaServer, "test-model", Some(600_000_000), "[size.small]\nfold_at = \"wall\"\n", 6_500, 7_400),
    ];
    for (kind, model, parameters, toml, from, to) in cases {
        let fake = Fake::start(kind, 8192);
        fake.set(|s| (s.model, s.parameters) = (model.into(), parameters));
        let proxy = TestProxy::with(&[fake.url()], toml);
        let (at, left) = first_fold(&fake, &proxy, model, 7_800).expect("a fold");
        // A step is some 200 tokens long; the line is passed by less than two of them, or when it was foreseen.
        assert!((from - 300..to).contains(&at), "{kind:?} {model} {parameters:?} {toml:?}: folded at {at} tokens");
        assert!(left < at * 9 / 10, "{kind:?} {model}: {at} -> {left}");
        // At a small model's line a fold takes in so little that a model is asked only if there was time ahead of it.
        assert!(at < 4_000 || !fake.summaries().is_empty(), "{kind:?} {model}: a model wrote the brief");
    }
}

/// The brief is made ahead of the line, too, where a client leaves time for it.
#[test]
fn the_brief_is_made_ahead_of_the_line() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    fake.set(|s| s.parameters = Some(8_200_000_000));
    let proxy = TestProxy::before(&fake);
    let mut talk = opening();
    for n in 0.. {
        talk = turn(talk, n, 700);
        let size = tokens(&talk.value());
        assert!(size < 5_400, "nothing was folded");
        if proxy.chat(&talk).ok().action().contains("summarize") {
            break;
        }
        if size > 4_150 {
            fake.wait("a summary", |seen| seen.iter().any(Seen::is_summary));
        }
    }
    // It goes on behind a reply: one that a request waits for would know nothing of that.
    let asked = fake.summaries()[0].messages();
    assert_eq!(text(&asked[asked.len() - 2]), "Done; what is next?");
}

#[test]
fn context_says_why_a_line_was_passed() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let mut talk = opening();
    for n in 0..32 {
        talk = turn(talk, n, 700);
    }
    assert!(tokens(&talk.value()) > 5_939 && tokens(&talk.value()) < 7_000, "{}", tokens(&talk.value()));
    let id = proxy.chat(&talk).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let seen = proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    let waits = seen["state"]["waits"].to_string();
    assert!(
        waits.contains("Not folded yet, though the prompt has passed 5,939 tokens: `fold_at = \\\"wall\\\"`"),
        "{waits}"
    );
    assert!(waits.contains("Old results are not cleared yet, though the prompt has passed 5,120 tokens: no old result is left to clear."), "{waits}");
    let page = String::from_utf8(proxy.cli(&["context", &id]).stdout).unwrap();
    assert!(page.contains("fold_at = \"wall\""), "{page}");
    // Nothing is said where nothing is passed.
    let short = proxy.chat(&chat().user("Hello.")).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let seen = proxy.eventually(&format!("/windowsill/conversations/{short}"), |_| true);
    assert_eq!(seen["state"]["waits"], json!([]));
}

/// Before a server that cannot count, a first prompt is only estimated: it is left alone while it may well fit, and the next
/// one, once a reply told the truth, is not.
#[test]
fn nothing_is_folded_on_a_guess() {
    let fake = Fake::start(Kind::OpenAi, 8192);
    let proxy = TestProxy::with(
        &[fake.url()],
        "[window]\nnum_ctx = 8192\n[context]\nbackground = false\nfold_at = \"line\"\nsummarize_at = 0.5\nsummarize_to = 0.3\nclear_at = 0.4\nclear_to = 0.2\n",
    );
    let mut talk = opening().tools();
    for n in 0..12 {
        talk = talk.step(n, &prose(n as u64, 1_200));
    }
    let size = tokens(&talk.value());
    assert!((3_300..5_500).contains(&size), "{size}");
    let answer = proxy.chat(&talk).ok();
    assert_eq!(answer.action(), "none", "estimated at {:?}", answer.header("x-windowsill-prompt-tokens"));
    assert_eq!(answer.header("x-windowsill-prompt-tokens-source"), Some("estimated"));
    let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
    let seen = proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    assert!(seen["state"]["waits"].to_string().contains("only estimated"), "{seen}");
    proxy.eventually("/windowsill/events?kind=model_usage", |events| events["events"][0].is_object());
    let next = talk.step(99, &prose(99, 1_200));
    assert_ne!(proxy.chat(&next).ok().action(), "none", "the reply told how long it is");
}

/// What a model switch leaves as it is: the conversation's id, its brief, its record.
#[test]
fn a_conversation_goes_on_with_another_model() {
    let (one, two) = (Fake::start(Kind::Ollama, 4096), Fake::start(Kind::Ollama, 8192));
    one.set(|s| s.model = "first:1b".into());
    two.set(|s| s.model = "second:70b".into());
    for session in [None, Some("work")] {
        let proxy = TestProxy::with(&[one.url(), two.url()], "[context]\nbackground = false\nrecall_ahead = \"off\"\n");
        let ask = |talk: &Chat, model: &str| {
            let headers: Vec<(&str, &str)> = session.map(|s| ("x-windowsill-session", s)).into_iter().collect();
            let body = talk.clone().with("model", json!(model)).body();
            proxy.post("/v1/chat/completions", &headers, &body).ok()
        };
        let mut talk = opening();
        for n in 0..9 {
            talk = turn(talk, n, 1_300);
        }
        let first = ask(&talk, "first:1b");
        assert_eq!(first.action(), "summarize");
        let id = first.header("x-windowsill-conversation").unwrap().to_owned();
        let brief = text(&one.last().messages()[1]);
        assert!(brief.contains("MARKER-SUMMARY"), "{brief}");
        // The other model goes on with the brief that there is, though it has more room.
        let talk = turn(talk, 20, 300);
        let second = ask(&talk, "second:70b");
        assert_eq!(second.header("x-windowsill-conversation"), Some(id.as_str()), "{session:?}");
        assert_eq!(second.action(), "none");
        assert_eq!(text(&two.last().messages()[1]), brief);
        let changed = events(&proxy, "model_changed", 1);
        assert_eq!(changed.len(), 1, "{changed:?}");
        let data = &changed[0]["data"];
        assert_eq!((&data["was"], &data["model"]), (&json!("first:1b"), &json!("second:70b")));
        assert_eq!(
            (&data["was_upstream"], &data["upstream"], &data["edits"]),
            (&json!("up0"), &json!("up1"), &json!(1))
        );
        assert_eq!(changed[0]["conversation"], json!(id));
        // And back: nothing more is said of the same model twice.
        let talk = turn(talk, 21, 300);
        assert_eq!(ask(&talk, "second:70b").header("x-windowsill-conversation"), Some(id.as_str()));
        assert_eq!(events(&proxy, "model_changed", 1).len(), 1);
        let talk = turn(talk, 22, 300);
        assert_eq!(ask(&talk, "first:1b").header("x-windowsill-conversation"), Some(id.as_str()));
        assert_eq!(events(&proxy, "model_changed", 2).len(), 2);
        let row = proxy.eventually(&format!("/windowsill/conversations/{id}"), |row| row["model"] == "first:1b");
        assert_eq!(row["state"]["messages"], json!(talk.messages.len() - 1), "{row}");
    }
}

fn events(proxy: &TestProxy, kind: &str, least: usize) -> Vec<Value> {
    let found = proxy.eventually(&format!("/windowsill/events?kind={kind}"), |all| {
        all["events"].as_array().is_some_and(|all| all.len() >= least)
    });
    found["events"].as_array().unwrap().clone()
}

/// A fold that was made ahead is told with what it really did.
#[test]
fn the_books_of_a_view_made_ahead_are_right() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut talk = opening();
    let mut last = 0;
    let answer = loop {
        talk = turn(talk, u64::from(last), 1_300);
        let size = tokens(&talk.value());
        // What was made ahead holds behind the reply that it was made from.
        fake.set(|s| s.reply = prose(u64::from(size), 1_300));
        let answer = proxy.chat(&talk).ok();
        if answer.action().contains("summarize") {
            break answer;
        }
        assert!(size < 4_000, "nothing was folded");
        last = size;
        proxy.eventually("/windowsill/events?kind=model_usage", |events| {
            events["events"]
                .as_array()
                .unwrap()
                .iter()
                .any(|e| e["data"]["role"] == "main" && e["data"]["prompt_tokens"] == json!(size))
        });
        if size > 2_650 {
            // It is folded and evaluated behind this reply.
            proxy.eventually("/windowsill/events?kind=model_usage", |all| all.to_string().contains("\"prefill\""));
        }
    };
    let made = events(&proxy, "context_compaction", 1);
    assert_eq!(made.len(), 1, "{made:?}");
    let data = &made[0]["data"];
    let of = |side: &str| data[side]["prompt"].as_u64().unwrap();
    let size = u64::from(tokens(&talk.value()));
    assert!(of("before").abs_diff(size) < size / 40, "{} tokens came, and it says {data}", size);
    // Nobody counted what would have been sent.
    assert_eq!(data["before_source"], "estimated, calibrated", "{data}");
    let id = answer.header("x-windowsill-conversation").unwrap();
    let seen =
        proxy.eventually(&format!("/windowsill/conversations/{id}/insight"), |seen| seen["rewrites"][0].is_object());
    let told = seen["rewrites"][0]["told"].as_str().unwrap();
    assert!(told.contains(": about ") && !told.contains("→ about"), "{told}");
    assert_eq!(seen["did"]["freed_is_estimated"], true);
    // Its reason tells the same.
    let why = data["because"][0].as_str().unwrap();
    assert!(why.contains(&format!("(about {} -> {} tokens", of("before"), of("after"))), "{why}");
    let forwarded = u64::from(tokens(&fake.last().json()));
    assert!(of("after").abs_diff(forwarded) < forwarded / 6, "{forwarded} tokens were forwarded, and it says {data}");
    assert_eq!(u64::from(header(&answer, "x-windowsill-prompt-tokens")), data["prompt_tokens"].as_u64().unwrap());
    assert!(data["seconds"].as_f64().unwrap() > 0.0 && data["depth"].as_u64().unwrap() > 4, "{data}");
    assert_eq!(data["focus"], Value::Null);
    // What was evaluated ahead is no summary.
    let id = answer.header("x-windowsill-conversation").unwrap();
    let row = proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    let spend = &row["state"]["spend"];
    let prefilled: u64 = events(&proxy, "model_usage", 1)
        .iter()
        .filter(|e| e["data"]["role"] == "prefill")
        .map(|e| e["data"]["prompt_tokens"].as_u64().unwrap())
        .sum();
    let summarized: u64 = events(&proxy, "model_usage", 1)
        .iter()
        .filter(|e| e["data"]["role"] == "summary")
        .map(|e| e["data"]["prompt_tokens"].as_u64().unwrap())
        .sum();
    assert!(prefilled > 0 && summarized > 0);
    assert_eq!(spend["prefill_prompt_tokens"], json!(prefilled), "{spend}");
    assert_eq!(spend["summary_prompt_tokens"], json!(summarized), "{spend}");
}

#[test]
fn a_focus_stands_in_the_trace_and_is_bounded() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut talk = opening();
    for n in 0..5 {
        talk = turn(talk, n, 800);
    }
    let id = proxy.chat(&talk).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}/compact");
    proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    let long = json!({"focus": "f".repeat(100_000)}).to_string();
    let refused = proxy.post(&path, &[], long.as_bytes());
    assert_eq!((refused.status, refused.error().0.as_str()), (400, "bad_focus"));
    proxy.post(&path, &[], br#"{"focus": " the roses "}"#).ok();
    let made = events(&proxy, "context_compaction", 1);
    let data = &made[0]["data"];
    assert_eq!((&data["focus"], &data["asked_by"]), (&json!("the roses"), &json!("user")));
    assert!(data["depth"].as_u64().unwrap() > 4 && data["seconds"].is_number(), "{data}");
}

#[test]
fn what_is_read_again_after_it_left_is_counted_once() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let large = prose(1, 12_000);
    let first = chat().system("s").user("Read it.").tools().step(1, &large);
    let id = proxy.chat(&first).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let again = first.assistant("I have read it.").user("And again?");
    let again = again.call("call_2", "read_file", json!({"path": "src/part_1.rs"})).result("call_2", &large);
    assert_eq!(proxy.chat(&again).ok().header("x-windowsill-conversation").unwrap(), id);
    let path = format!("/windowsill/conversations/{id}");
    let counted = |seen: &Value| seen["state"]["missed"] == json!({"file": 1, "query": 0, "recall": 0});
    proxy.eventually(&path, counted);
    proxy.chat(&again.assistant("It is the same.").user("Thanks.")).ok();
    proxy.eventually(&path, |seen| seen["state"]["messages"] == 9 && counted(seen));
    let missed = events(&proxy, "missed", 1);
    assert_eq!(missed.len(), 1, "{missed:?}");
    assert_eq!(missed[0]["data"], json!({"kind": "file", "message": 5, "of": 2}));
    assert!(proxy.get("/metrics").ok().text().contains("windowsill_missed_total{kind=\"file\"} 1"));
    let page = String::from_utf8(proxy.cli(&["context", &id]).stdout).unwrap();
    assert!(page.contains("read again after it left the prompt: 1 of a file"), "{page}");
}
