//! Briefs made between requests: ahead of need, never in anybody's way, used once they are there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::proxy::sound;
use super::record::nothing_is_lost;
use super::support::*;

/// Talk whose prompt is past `summarize_at` (2,457 of 4,096 tokens) and short of the wall (3,056).
pub(crate) fn pressed() -> Chat {
    let mut out = chat().system("You are a helpful assistant.").user("Let us plan the garden.");
    for n in 0..8 {
        out = out.assistant(&prose(n, 1_300)).user(&format!("And what about item {n}?"));
    }
    let size = tokens(&out.value());
    assert!((2_500..2_950).contains(&size), "{size}");
    out
}

/// The next turn of it, past the wall.
pub(crate) fn past_the_wall(chat: Chat) -> Chat {
    chat.assistant("Done; what is next?").user(&format!("This: {}", prose(99, 2_500)))
}

/// Has a server answer no summary before the gate opens.
pub(crate) fn held_summaries(fake: &Fake) -> Gate {
    let gate = Gate::default();
    let held = gate.clone();
    fake.script(
        move |seen| {
            if seen.is_summary() { Play::Wait(held.clone(), Box::new(Play::Usual)) } else { Play::Usual }
        },
    );
    gate
}

pub(crate) fn summary_is_in(forwarded: &serde_json::Value) -> bool {
    text(&forwarded["messages"][1]).contains("MARKER-SUMMARY")
}

#[test]
fn a_brief_is_made_behind_a_reply_and_used_at_the_fold() {
    for streamed in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        let proxy = TestProxy::before(&fake);
        let mut sent = pressed();
        if streamed {
            sent = sent.stream();
        }
        assert_eq!(proxy.chat(&sent).ok().action(), "none", "nobody waits for a brief short of the wall");
        assert_eq!(fake.last().body, sent.body());
        fake.wait("a summary", |seen| seen.iter().any(Seen::is_summary));
        // It continues the very prompt that the server holds, reply included.
        let asked = fake.summaries()[0].messages();
        assert_eq!(asked[..sent.messages.len()], sent.messages[..]);
        assert_eq!(text(&asked[sent.messages.len()]), "Done; what is next?");
        let next = past_the_wall(sent);
        assert_eq!(proxy.chat(&next).ok().action(), "summarize");
        let forwarded = sound(&next, &fake.last(), 4096);
        assert!(summary_is_in(&forwarded));
        assert_eq!(fake.summaries().len(), 1, "no second summary was asked for");
    }
}

/// Where the next turn would pass the wall, the history is folded behind the reply and the new prompt is evaluated before
/// it is needed.
#[test]
fn the_fold_is_evaluated_before_it_is_needed() {
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::before(&fake);
        let mut sent = chat().system("You are a helpful assistant.").user("Let us plan the garden.");
        let ahead = |seen: &Seen| {
            let body = seen.json();
            body["stream"] == false && (body["max_tokens"] == 1 || body["options"]["num_predict"] == 1)
        };
        for n in 0.. {
            assert!(n < 12, "{kind:?}: nothing was evaluated ahead");
            sent = sent.assistant(&prose(n, 1_300)).user(&format!("And what about item {n}?"));
            let answer = proxy.chat(&sent).ok();
            assert_eq!(answer.action(), "none", "{kind:?}: turn {n}");
            proxy.eventually("/windowsill/events", |events| {
                let all = events["events"].as_array().unwrap();
                all.iter().filter(|e| e["data"]["role"] == "main").count() == n as usize + 1
            });
            // Where the prompt is only estimated, a step is taken for longer.
            if tokens(&sent.value()) > if kind == Kind::Ollama { 2_350 } else { 2_650 } {
                fake.wait("a prompt sent ahead", |seen| seen.iter().any(ahead));
                break;
            }
        }
        let evaluated = fake.all().into_iter().find(ahead).unwrap().json();
        assert!(tokens(&evaluated) < 2_000, "{kind:?}: {}", tokens(&evaluated));
        let prefilled = proxy.eventually("/windowsill/events", |events| events.to_string().contains("\"prefill\""));
        assert!(prefilled.to_string().contains("\"prefill\""));
        // The same history again is the same request again.
        let before = fake.last();
        assert_eq!(proxy.chat(&sent).ok().action(), "none");
        assert_eq!(fake.last().json()["messages"], before.json()["messages"]);
        // The next one begins with what was evaluated.
        let next = sent.assistant("Done; what is next?").user("The roses.");
        let answer = proxy.chat(&next).ok();
        assert_eq!(answer.action(), "summarize", "{kind:?}");
        let (mine, held) = (fake.last().messages(), evaluated["messages"].as_array().unwrap().clone());
        assert_eq!(mine[..held.len()], held[..], "{kind:?}");
        assert_eq!(mine.len(), held.len() + 2);
        assert!(nothing_is_lost(proxy.dir.path(), &next, &fake.last().body) < 100);
        let again = proxy.chat(&next.assistant("Roses.").user("Red ones.")).ok();
        assert_eq!(again.action(), "none", "{kind:?}: it is folded once");
    }
}

/// What a client wants of its own replies says nothing of ours.
#[test]
fn summaries_have_a_temperature_of_their_own() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::Vllm] {
        for (toml, own) in [("", json!(0)), ("[context]\nsummary_temperature = 0.4\n", json!(0.4))] {
            let fake = Fake::start(kind, 4096);
            let proxy = TestProxy::with(&[fake.url()], toml);
            let hot =
                pressed().with("temperature", json!(1.1)).with("top_p", json!(0.5)).with("presence_penalty", json!(1));
            proxy.chat(&hot).ok();
            fake.wait("a summary", |seen| seen.iter().any(Seen::is_summary));
            let of = |seen: &Seen, key: &str| {
                let body = seen.json();
                if kind == Kind::Ollama { body["options"][key].clone() } else { body[key].clone() }
            };
            let (asked, main) = (&fake.summaries()[0], &fake.mains()[0]);
            assert_eq!(of(asked, "temperature"), own, "{kind:?}");
            assert_eq!([of(asked, "top_p"), of(asked, "presence_penalty")], [json!(null), json!(null)], "{kind:?}");
            assert_eq!([of(main, "temperature"), of(main, "top_p")], [json!(1.1), json!(0.5)], "{kind:?}");
        }
    }
}

#[test]
fn a_request_that_comes_meanwhile_goes_first() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    held_summaries(&fake);
    let proxy = TestProxy::before(&fake);
    let sent = pressed();
    proxy.chat(&sent).ok();
    fake.wait("a summary", |seen| seen.iter().any(Seen::is_summary));
    let next = sent.assistant("Done; what is next?").user("Wait, first this.");
    let answer = proxy.chat(&next).ok();
    assert_eq!(answer.action(), "none");
    fake.wait_hung_up(1);
    assert_eq!(fake.last().body, next.body());
    // The server worked for it, and did not tell how much.
    let is_broken_off =
        |event: &Value| event["data"]["role"] == "summary" && event["data"]["how"] == "it was broken off";
    let events = proxy.eventually("/windowsill/events?kind=model_usage", |all| {
        all["events"].as_array().is_some_and(|all| all.iter().any(is_broken_off))
    });
    let told = events["events"].as_array().unwrap().iter().find(|event| is_broken_off(event)).unwrap();
    assert_eq!((&told["data"]["used"], &told["data"]["prompt_tokens"]), (&json!(false), &Value::Null), "{told}");
    assert_eq!(proxy.get("/windowsill/report").ok().json()["upkeep_is_at_least"], true);
    // It is begun again behind that reply.
    fake.wait("another summary", |seen| seen.iter().filter(|s| s.is_summary()).count() == 2);
}

/// What is in the making when a person changes the view was begun for the view before: it is stopped, and takes the place of nothing.
#[test]
fn what_a_person_changes_meanwhile_stands() {
    for changes in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        let (gate, holds) = (Gate::default(), Arc::new(AtomicBool::new(false)));
        let (held, is_held) = (gate.clone(), Arc::clone(&holds));
        fake.script(move |seen| match seen.is_summary() && is_held.load(Ordering::SeqCst) {
            true => Play::Wait(held.clone(), Box::new(Play::Usual)),
            false => Play::Usual,
        });
        let proxy = TestProxy::before(&fake);
        let grown = |sent: Chat, turns: std::ops::Range<u64>| {
            turns.fold(sent, |sent, n| sent.assistant(&prose(n, 1_300)).user(&format!("And what about item {n}?")))
        };
        let sent = grown(chat().system("You are a helpful assistant.").user("Let us plan the garden."), 0..4);
        let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
        let base = format!("/windowsill/conversations/{id}");
        proxy.post(&format!("{base}/compact"), &[], b"{}").ok();
        holds.store(true, Ordering::SeqCst);
        let sent = grown(sent, 4..11).assistant(&prose(90, 700)).user("Go on.");
        assert_eq!(proxy.chat(&sent).ok().action(), "none");
        fake.wait("a brief ahead of need", |seen| seen.iter().filter(|seen| seen.is_summary()).count() == 2);
        let role = |event: &Value, role: &str| event["data"]["role"] == role;
        let has = |wanted: &'static str, n: usize| {
            move |all: &Value| all["events"].as_array().unwrap().iter().filter(|event| role(event, wanted)).count() == n
        };
        let usage = "/windowsill/events?kind=model_usage";
        if !changes {
            gate.open();
            // It goes on with the fold, whose prompt is read ahead.
            proxy.eventually(usage, has("prefill", 1));
            continue;
        }
        let text = br#"{"text": "The garden is planned. The code word is ZEBRA."}"#;
        proxy.post(&format!("{base}/brief"), &[], text).ok();
        holds.store(false, Ordering::SeqCst);
        gate.open();
        // Whether it was used or broken off, it is in the books.
        proxy.eventually(usage, has("summary", 2));
        std::thread::sleep(std::time::Duration::from_millis(400));
        assert!(has("prefill", 0)(&proxy.get(usage).ok().json()), "it went on with the fold");
        let next = past_the_wall(sent);
        assert_eq!(proxy.chat(&next).ok().action(), "summarize");
        assert!(fake.last().json().to_string().contains("ZEBRA"), "{}", fake.last().json());
    }
}

#[test]
fn a_request_at_the_wall_waits_for_the_brief_in_the_making() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let gate = held_summaries(&fake);
    let proxy = TestProxy::before(&fake);
    let sent = pressed();
    proxy.chat(&sent).ok();
    fake.wait("a summary", |seen| seen.iter().any(Seen::is_summary));
    let next = past_the_wall(sent);
    let counted = |seen: &[Seen]| seen.iter().filter(|s| s.path().ends_with("/input_tokens")).count();
    let before = counted(&fake.all());
    let mut conn = proxy.begin(&next);
    fake.wait("the next request to be looked at", |seen| counted(seen) > before);
    gate.open();
    let answer = conn.answer().ok();
    assert_eq!(answer.action(), "summarize");
    assert!(summary_is_in(&sound(&next, &fake.last(), 4096)));
    assert_eq!(fake.summaries().len(), 1);
}

/// For a client that keeps coming back the pause before a brief grows. A request that needs one does not wait for that: it
/// asks itself.
#[test]
fn nobody_waits_for_the_pause_before_a_brief() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    held_summaries(&fake);
    let proxy = TestProxy::before(&fake);
    let mut sent = pressed();
    // Two that are stopped make the next pause 3 s long.
    for stopped in 1..=2 {
        proxy.chat(&sent).ok();
        fake.wait("a summary", |seen| seen.iter().filter(|s| s.is_summary()).count() == stopped);
        sent = sent.assistant("Done; what is next?").user("Wait, first this.");
    }
    proxy.chat(&sent).ok();
    fake.script(|_| Play::Usual);
    let next = past_the_wall(sent.clone());
    assert_eq!(proxy.chat(&next).ok().action(), "summarize");
    assert!(summary_is_in(&sound(&next, &fake.last(), 4096)));
    // One made behind a reply would begin with all of the prompt, and the reply.
    let asked = fake.summaries();
    assert_eq!(asked.len(), 3);
    assert!(!asked[2].messages().starts_with(&sent.messages));
}

/// Requests of other conversations: more than enough time for a summary that was begun to be seen.
fn others(proxy: &TestProxy) {
    for n in 0..8 {
        proxy.chat(&chat().user(&format!("other {n}"))).ok();
    }
}

#[test]
fn nothing_is_made_ahead_where_it_is_not_wanted() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    for toml in [
        "[context]\nbackground = false\nfold_at = \"line\"\nsummarize_at = 0.99\n",
        "[context]\nstrategy = \"truncate\"\nsummarize_at = 0.99\n",
        "[context]\nstrategy = \"off\"\n",
    ] {
        let proxy = TestProxy::with(&[fake.url()], toml);
        assert_eq!(proxy.chat(&pressed()).ok().action(), "none", "{toml}");
        others(&proxy);
        assert!(fake.summaries().is_empty(), "{toml}");
    }
    // Nor after a reply that broke off.
    fake.script(|seen| {
        let event = b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":2800}}\n\n";
        if seen.is_main() { Play::Cut([sse_head(), chunk(event)].concat()) } else { Play::Usual }
    });
    let proxy = TestProxy::before(&fake);
    proxy.chat(&pressed().stream()).ok();
    fake.script(|_| Play::Usual);
    others(&proxy);
    assert!(fake.summaries().is_empty());
}

#[test]
fn a_brief_of_no_use_is_not_kept() {
    // Continued, then as a transcript: but not where that would take the only slot from the conversation.
    for (slots, tries) in [(4, 2), (1, 1)] {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        fake.set(|s| {
            s.slots = slots;
            s.summary = "I'm sorry, but I can't help with that request.".into();
        });
        let proxy = TestProxy::before(&fake);
        let sent = pressed();
        proxy.chat(&sent).ok();
        fake.wait("all tries", |seen| seen.iter().filter(|s| s.is_summary()).count() == tries);
        proxy.eventually("/windowsill/events", |events| events.to_string().contains("\"summary\""));
        assert_eq!(fake.summaries().len(), tries);
        fake.set(|s| s.summary = SUMMARY.into());
        let next = past_the_wall(sent);
        assert_eq!(proxy.chat(&next).ok().action(), "summarize");
        let forwarded = sound(&next, &fake.last(), 4096);
        assert!(!forwarded.to_string().contains("can't help"));
    }
}

/// A client that always comes back before a brief is done is left more and more time, since what is begun in vain costs
/// the server's.
#[test]
fn a_client_that_never_waits_is_left_in_peace() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let gate = held_summaries(&fake);
    let proxy = TestProxy::with(
        &[fake.url()],
        "[context]\nsummarize_at = 0.2\nclear_at = 0.9\nsummarize_to = 0.15\nsummary_max_tokens = 128\n",
    );
    let mut sent = pressed();
    proxy.chat(&sent).ok();
    fake.wait("a summary", |seen| seen.iter().any(Seen::is_summary));
    for n in 0..3 {
        sent = sent.assistant("Done; what is next?").user(&format!("Then part {n}."));
        proxy.chat(&sent).ok();
    }
    assert_eq!(fake.summaries().len(), 1, "begun once, and then not within the pause");
    gate.open();
    fake.wait("another one, once there is time", |seen| seen.iter().filter(|s| s.is_summary()).count() == 2);
}

#[test]
fn one_conversation_may_ask_many_things_at_once() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let trunk = pressed();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (proxy, trunk) = (&proxy, trunk.clone());
            scope.spawn(move || {
                let mut sent = trunk;
                if n % 2 == 0 {
                    sent = sent.stream();
                }
                for k in 0..4 {
                    sent =
                        sent.assistant("Done.").user(&format!("Question {k} of {}: {}", n / 2, prose(k + n / 2, 900)));
                    let answer = proxy.chat(&sent).ok();
                    assert!(answer.whole);
                }
            });
        }
    });
    for seen in fake.mains() {
        let forwarded = seen.json();
        assert!(tokens(&forwarded) < 4096);
        assert_eq!(faults(&json!({"messages": [forwarded["messages"][0]]}), &forwarded), Vec::<String>::new());
    }
    // Those that part at the same moment may be taken for one whose last words were said otherwise.
    proxy.eventually("/windowsill/conversations", |all| !all["conversations"].as_array().unwrap().is_empty());
}

#[test]
fn compact_summarizes_now() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy =
        TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\nsummarize_at = 0.99\n");
    let sent = pressed();
    let answer = proxy.chat(&sent).ok();
    let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}/compact");
    proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    let done = proxy.post(&path, &[], br#"{"focus": "KEEP-THE-ROSES"}"#).ok().json();
    assert!(done["after"].as_u64().unwrap() < done["before"].as_u64().unwrap(), "{done}");
    assert_eq!(done["written_by_a_model"], true);
    let asked = fake.summaries();
    assert!(text(asked[0].messages().last().unwrap()).contains("KEEP-THE-ROSES"));
    // The next request goes by it.
    let next = sent.assistant("Done; what is next?").user("Go on.");
    let answer = proxy.chat(&next).ok();
    let forwarded = sound(&next, &fake.last(), 4096);
    assert!(summary_is_in(&forwarded), "{}", answer.action());
    assert_eq!(proxy.post(&path, &[], b"not json").status, 400);
}

#[test]
fn a_brief_is_read_before_it_is_folded() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy =
        TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\nsummarize_at = 0.99\n");
    let id = proxy.chat(&pressed()).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}/compact");
    proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    let alone = proxy.post(&path, &[], br#"{"dry_run": true}"#).ok().json();
    assert_eq!((&alone["brief"], fake.summaries().len()), (&json!(null), 0), "a price alone asks no model");
    let wanted = br#"{"dry_run": true, "write_brief": true, "focus": "ROSES"}"#;
    let priced = proxy.post(&path, &[], wanted).ok().json();
    assert_eq!((&priced["written_by_a_model"], fake.summaries().len()), (&json!(true), 1), "{priced}");
    assert_eq!(proxy.post(&path, &[], wanted).ok().json()["brief"], priced["brief"]);
    // Another focus is another brief; the one that was read is taken for the fold that was priced.
    let other = proxy.post(&path, &[], br#"{"dry_run": true, "focus": "TULIPS"}"#).ok().json();
    assert_eq!(other["brief"], json!(null));
    let done = proxy.post(&path, &[], br#"{"focus": "ROSES"}"#).ok().json();
    assert_eq!((&done["brief"], fake.summaries().len()), (&priced["brief"], 1), "it was written once");
    assert_eq!(proxy.post(&path, &[], br#"{"write_brief": true}"#).status, 400);
}

/// What a person asks for beside a conversation goes by the profile that its requests name.
#[test]
fn a_fold_on_demand_goes_by_the_profile_of_the_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir(dir.path().join("p")).unwrap();
    let brief = "[match]\nnames = []\n[context]\nsummary_max_tokens = 300\n";
    std::fs::write(dir.path().join("p/brief.toml"), brief).unwrap();
    let settings = "profile_dir = 'p'\n[context]\nbackground = false\nsummarize_at = 0.99\nfold_at = \"line\"\n";
    let proxy = TestProxy::at(dir, &[fake.url()], settings);
    let longest = |headers: &[(&str, &str)], say: &str| {
        let sent = (0..16).fold(chat().system("s").user(say), |chat, n| chat.assistant(&prose(n, 400)).user("And?"));
        let answer = proxy.post("/v1/chat/completions", headers, &sent.body()).ok();
        let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
        proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
        proxy.post(&format!("/windowsill/conversations/{id}/compact"), &[], b"{}").ok();
        fake.summaries().pop().expect("a model was asked").json()["max_tokens"].as_u64().expect("a limit")
    };
    let usual = longest(&[], "One.");
    let short = longest(&[("x-windowsill-profile", "brief")], "Two.");
    assert!(short < usual && short <= 300, "{short} by the profile, {usual} without it");
}
