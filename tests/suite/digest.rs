//! Digests: a small model condenses a large result in the place of its preview; whatever goes wrong, there is the preview.

use serde_json::{Value, json};

use super::proxy::sound;
use super::record::{ids, nothing_is_lost};
use super::support::script::scripted;
use super::support::script::turn;
use super::support::*;

const DIGEST: &str = "The ledger lost 17 of its 412 segments; the first bad one is segment_77, rejected by replica 3.";

/// What digests go by: the second upstream's model.
const TOML: &str =
    "[context]\nbackground = false\nfold_at = \"line\"\ndigest_over = 600\ndigest_model = \"up1/tiny\"\n";

/// A result of about 5,000 tokens that holds what [`DIGEST`] tells of.
fn large(seed: u64) -> String {
    format!("{}\n412 segments\nsegment_77 bad, 17 lost, replica 3\n{}", prose(seed, 10_000), prose(seed + 9, 10_000))
}

fn sent() -> Chat {
    let before = chat().system("Keep this SECRET-RULE.").user("An OLD-REQUEST.").assistant("Yes?");
    before.user("Which segments of the ledger are bad?").tools().step(1, &large(1))
}

/// The main server, the small one, and the proxy before both.
fn start(kind: Kind, window: u32, toml: &str) -> (Fake, Fake, TestProxy) {
    let (main, small) = (Fake::start(Kind::LlamaServer, 8192), Fake::start(kind, window));
    small.set(|s| {
        s.reply = DIGEST.into();
        s.model = "tiny".into();
    });
    let proxy = TestProxy::with(&[main.url(), small.url()], toml);
    (main, small, proxy)
}

/// The result as it was forwarded.
fn shown(fake: &Fake) -> String {
    let all = fake.last().messages();
    text(all.iter().find(|m| m["role"] == "tool").expect("a result"))
}

#[test]
fn a_digest_takes_the_previews_place_and_stays() {
    for (kind, window) in
        [(Kind::LlamaServer, 16_384), (Kind::LlamaServer, 2048), (Kind::Ollama, 2048), (Kind::OpenAi, 4096)]
    {
        let (main, small, proxy) = start(kind, window, TOML);
        let first = sent();
        let answer = proxy.chat(&first).ok();
        assert_eq!((answer.action(), answer.header("x-windowsill-warning")), ("evict", None), "{kind:?} {window}");
        sound(&first, &main.last(), 8192);
        let digest = shown(&main);
        assert!(
            digest.starts_with("[digest of read_file src/part_1.rs by tiny: ") && digest.ends_with(DIGEST),
            "{digest}"
        );
        assert!(tokens(&json!({"messages": [{"role": "tool", "content": digest}]})) < 256);
        assert_eq!(nothing_is_lost(proxy.dir.path(), &first, &main.last().body), 1, "the original is kept");
        // It saw the result, the call and the question, and nothing else.
        let asked = small.mains();
        assert_eq!(asked.len(), 1);
        let all = asked[0].messages();
        let prompt = text(&all[0]);
        assert_eq!((all.len(), &all[0]["role"]), (1, &json!("user")));
        assert!(asked[0].json().get("tools").is_none());
        for seen in ["Which segments of the ledger are bad?", "read_file", "src/part_1.rs", "Part 1:"] {
            assert!(prompt.contains(seen), "{seen} in {prompt}");
        }
        assert!(!prompt.contains("SECRET-RULE") && !prompt.contains("OLD-REQUEST"));
        assert!(tokens(&asked[0].json()) + 100 < window, "it fits: {}", tokens(&asked[0].json()));
        assert_eq!(prompt.contains(&large(1)), window > 8000, "whole where there is room");
        assert!(window > 8000 || prompt.contains("cut to save context"), "what is missing is marked");
        // The same bytes, without another question: sent again, on the next turn, after a restart.
        let forwarded = main.last().body;
        proxy.chat(&first).ok();
        assert_eq!(main.last().body, forwarded);
        let next = first.assistant("Segment 77.").user("Thanks.");
        proxy.chat(&next).ok();
        assert_eq!(shown(&main), digest);
        let events = proxy.eventually("/windowsill/events", |e| e.to_string().contains("\"digest\""));
        let event = events["events"].as_array().unwrap().iter().find(|e| e["data"]["role"] == "digest").unwrap();
        let of = |name: &str| &event["data"][name];
        assert_eq!((of("used"), of("upstream")), (&json!(true), &json!("up1")));
        // An Ollama's names have their tag.
        assert!(matches!(of("model").as_str(), Some("tiny" | "tiny:latest")), "{event}");
        assert!(!event.to_string().contains("segment_77"), "no text in events");
        assert!(
            proxy.get("/metrics").text().contains("windowsill_tokens_total{role=\"digest\",kind=\"completion\"} 8")
        );
        let dir = proxy.stop();
        let proxy = TestProxy::at(dir, &[main.url(), small.url()], TOML);
        proxy.chat(&next.assistant("Well.").user("Go on.")).ok();
        assert_eq!((shown(&main), small.count()), (digest, 1));
    }
}

#[test]
fn what_is_of_no_use_is_a_preview() {
    let reply = |content: Value, finish: &str| {
        json!({"id": "d", "object": "chat.completion", "created": 1, "model": "tiny",
            "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content}}],
            "usage": {"prompt_tokens": 900, "completion_tokens": 20, "total_tokens": 920}})
    };
    let result = large(1);
    let copied = &result[2_000..2_400];
    let long = prose(99, 9_000);
    let invented =
        "The ledger lost 99 of 8123 segments in src/ledger/lost.rs:55 and src/ledger/found.rs:77, build 5521.";
    let cases: Vec<(&str, Play)> = vec![
        ("nothing", Play::Json(200, reply(json!(""), "stop"))),
        ("null", Play::Json(200, reply(Value::Null, "stop"))),
        ("only thoughts", Play::Json(200, reply(json!("<think>Let me see what the ledger lost here</think>"), "stop"))),
        ("cut off in its first line", Play::Json(200, reply(json!(DIGEST), "length"))),
        ("far too long", Play::Json(200, reply(json!(long.replace('\n', " ")), "stop"))),
        ("a copy", Play::Json(200, reply(json!(copied), "stop"))),
        ("invented", Play::Json(200, reply(json!(invented), "stop"))),
        ("declined", Play::Json(200, reply(json!("I'm sorry, but I cannot help with that request."), "stop"))),
        ("over and over", Play::Json(200, reply(json!("the segment is bad, ".repeat(200)), "stop"))),
        (
            "an error",
            Play::Json(500, json!({"error": {"message": "out of memory", "type": "server_error", "code": 500}})),
        ),
        ("no JSON", Play::Pieces(vec![whole(200, "text/plain", b"hello")])),
        ("broken off", Play::Cut(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{\"id\"".to_vec())),
    ];
    for (what, play) in cases {
        let (main, small, proxy) = start(Kind::LlamaServer, 16_384, TOML);
        small.script(move |seen| if seen.is_main() { play.clone() } else { Play::Usual });
        let answer = proxy.chat(&sent()).ok();
        assert!(shown(&main).starts_with("[preview of read_file"), "{what}: {}", shown(&main));
        assert!(answer.header("x-windowsill-warning").is_some_and(|w| w.contains("preview")), "{what}");
        assert_eq!(ids(&main.last().body).len(), 1, "{what}");
        assert_eq!(small.count(), 1, "{what}");
    }
    // Nobody there.
    let main = Fake::start(Kind::LlamaServer, 8192);
    let absent = format!("http://{}", Fake::absent());
    let proxy = TestProxy::with(&[main.url(), absent], TOML);
    proxy.chat(&sent()).ok();
    assert!(shown(&main).starts_with("[preview of read_file"), "{}", shown(&main));
}

#[test]
fn one_that_is_cut_off_is_kept_up_to_its_last_whole_line() {
    let (main, small, proxy) = start(Kind::LlamaServer, 16_384, TOML);
    let said = format!("{DIGEST}\nThe log ends with segm");
    let reply = json!({"id": "d", "object": "chat.completion", "created": 1, "model": "tiny",
        "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": said}}]});
    small.script(move |seen| if seen.is_main() { Play::Json(200, reply.clone()) } else { Play::Usual });
    proxy.chat(&sent()).ok();
    let digest = shown(&main);
    assert!(digest.ends_with(&format!("{DIGEST}\n[the digest was cut off here]")), "{digest}");
    assert!(tokens(&json!({"messages": [{"role": "tool", "content": digest}]})) < 256);
}

/// What tells is often a line of the result, word for word.
#[test]
fn lines_of_the_result_are_no_echo() {
    let (main, small, proxy) = start(Kind::LlamaServer, 16_384, TOML);
    let said = "Segment 77 is bad.\nsegment_77 bad, 17 lost, replica 3";
    small.set(|s| s.reply = said.into());
    proxy.chat(&sent()).ok();
    assert!(shown(&main).starts_with("[digest of") && shown(&main).ends_with(said), "{}", shown(&main));
}

#[test]
fn a_model_that_fails_is_left_out_for_a_while() {
    let (main, small, proxy) = start(Kind::LlamaServer, 16_384, TOML);
    small.set(|s| s.reply = String::new());
    let mut all = chat().system("s").user("Read them.").tools();
    for n in 0..8 {
        all = all.step(n, &large(n as u64 * 100));
        proxy.chat(&all).ok();
    }
    assert!((2..6).contains(&small.count()), "{} asked", small.count());
    assert!(!String::from_utf8_lossy(&main.last().body).contains("[digest of"));
}

#[test]
fn only_large_results_and_only_where_it_is_on() {
    // Off, and on for larger ones only.
    for toml in [
        "[context]\nbackground = false\nfold_at = \"line\"\ndigest_model = \"up1/tiny\"\n",
        &TOML.replace("600", "0.9"),
    ] {
        let (main, small, proxy) = start(Kind::LlamaServer, 16_384, toml);
        proxy.chat(&sent()).ok();
        assert!(shown(&main).starts_with("[preview of"), "{toml}");
        assert_eq!(small.count(), 0);
    }
    // Smaller than `evict_over`, larger than `digest_over`; and smaller than both.
    let (main, small, proxy) = start(Kind::LlamaServer, 16_384, TOML);
    let middle = format!("412 segments\nsegment_77 bad, 17 lost, replica 3\n{}", prose(1, 4_000));
    proxy.chat(&chat().user("Read.").tools().step(1, &middle)).ok();
    assert!(shown(&main).starts_with("[digest of"), "{}", shown(&main));
    let little = prose(1, 1_000);
    proxy.chat(&chat().user("Read it.").tools().step(1, &little)).ok();
    assert_eq!((shown(&main), small.count()), (little, 1));
    // Each of several results its own.
    let calls = [("a", "run", "{}"), ("b", "run", "{\"x\":1}")];
    let two = chat().user("Run both.").tools().calls(&calls).result("a", &large(1)).result("b", &large(50));
    let asked = small.count();
    proxy.chat(&two).ok();
    assert_eq!(small.count(), asked + 2);
    assert_eq!(main.last().messages().iter().filter(|m| text(m).starts_with("[digest of run")).count(), 2);
}

#[test]
fn a_client_that_hangs_up_leaves_no_question_behind() {
    let (main, small, proxy) = start(Kind::LlamaServer, 16_384, TOML);
    scripted(&main, 1 << 20, |_, _| turn("Fine.", vec![]));
    small.script(|seen| match seen.is_main() {
        true => Play::Wait(Gate::default(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let conn = proxy.begin(&sent());
    small.wait("the digest", |seen| seen.iter().any(Seen::is_main));
    drop(conn);
    small.wait_hung_up(1);
    assert_eq!(main.count(), 0);
}

/// The digest goes on though its client gave up, and the next try finds it.
#[test]
fn who_comes_again_finds_the_digest_that_was_begun() {
    for made_meanwhile in [false, true] {
        let (main, small, proxy) = start(Kind::LlamaServer, 16_384, TOML);
        let gate = Gate::default();
        let held = gate.clone();
        small.script(move |seen| match seen.is_main() {
            true => Play::Wait(held.clone(), Box::new(Play::Usual)),
            false => Play::Usual,
        });
        for n in 0..3 {
            let conn = proxy.begin(&sent());
            small.wait("a digest", |seen| seen.iter().any(Seen::is_main));
            proxy.eventually("/windowsill/conversations", |_| true);
            drop(conn);
            assert_eq!((small.count(), small.hung_up()), (1, 0), "try {n}");
        }
        if made_meanwhile {
            gate.open();
            proxy.eventually("/windowsill/events", |events| events.to_string().contains("\"role\":\"digest\""));
        }
        let mut conn = proxy.begin(&sent());
        gate.open();
        assert_eq!(conn.answer().ok().action(), "evict");
        assert!(shown(&main).starts_with("[digest of"), "{}", shown(&main));
        assert_eq!((small.count(), small.hung_up(), main.count()), (1, 0, 1));
    }
}
