//! What is remembered: the same history gives the same bytes, whatever happened in between, and no original is lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

pub(crate) use super::support::script::ids;
use super::support::*;

/// A session of steps whose results are large enough to be rewritten at a window of 4,096.
pub(crate) fn session(steps: usize) -> Chat {
    let mut out = chat().system("You are a coding agent.").user("Repair the ingest service.").tools();
    for n in 0..steps {
        let bytes = if n % 5 == 3 { 9_000 } else { 1_200 };
        out = out.step(n, &prose(n as u64, bytes));
    }
    out
}

/// The first `n` messages of a request.
fn cut(chat: &Chat, n: usize) -> Chat {
    Chat { messages: chat.messages[..n].to_vec(), fields: chat.fields.clone() }
}

/// Where turns end: behind each result.
pub(crate) fn turns(chat: &Chat) -> Vec<Chat> {
    (1..=chat.messages.len()).filter(|n| chat.messages[n - 1]["role"] == "tool").map(|n| cut(chat, n)).collect()
}

/// Every original that the request points at is on disk, in the record, and was in the history word for word.
#[track_caller]
pub(crate) fn nothing_is_lost(dir: &std::path::Path, history: &Chat, body: &[u8]) -> usize {
    let texts: BTreeSet<String> = history.messages.iter().map(text).collect();
    let found = ids(body);
    for id in &found {
        let file = std::fs::read_to_string(dir.join(format!("data/large_tool_results/{id}.txt"))).unwrap();
        let printed = cli(dir, &["recall", id]);
        assert!(printed.status.success(), "{id}: {}", String::from_utf8_lossy(&printed.stderr));
        assert!(texts.contains(&file), "{id} is not what the client sent");
        assert_eq!(printed.stdout, file.as_bytes(), "{id}");
    }
    found.len()
}

#[test]
fn the_same_history_gives_the_same_bytes_before_and_after_a_restart() {
    for kind in [Kind::LlamaServer, Kind::OpenAi] {
        let fake = Fake::start(kind, 4096);
        let toml = "[window]\nnum_ctx = 4096\n[context]\nbackground = false\nfold_at = \"line\"\n";
        let mut proxy = TestProxy::with(&[fake.url()], toml);
        let all = session(24);
        let mut sent = Vec::new();
        for turn in turns(&all) {
            proxy.chat(&turn).ok();
            let first = fake.last().body;
            proxy.chat(&turn).ok();
            assert_eq!(fake.last().body, first, "sent again, {kind:?}");
            sent.push((turn, first));
        }
        assert!(sent.iter().filter(|(turn, body)| *body != turn.body()).count() > 5, "much was rewritten");
        let dir = proxy.stop();
        proxy = TestProxy::at(Arc::clone(&dir), &[fake.url()], toml);
        // In any order: an older prefix too keeps the view it had.
        for (turn, before) in sent.iter().rev().step_by(3).chain(&sent) {
            let answer = proxy.chat(turn).ok();
            assert_eq!(String::from_utf8_lossy(&fake.last().body), String::from_utf8_lossy(before), "{kind:?}");
            assert_eq!(answer.action(), "none");
        }
        let (last, body) = sent.last().unwrap();
        assert!(nothing_is_lost(dir.path(), last, body) >= 1);
    }
}

#[test]
fn a_history_that_is_spelled_otherwise_is_forwarded_alike_each_time_and_after_a_restart() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let toml = "[context]\nbackground = false\nfold_at = \"line\"\n";
    let proxy = TestProxy::with(&[fake.url()], toml);
    let trunk = session(4);
    assert_eq!(proxy.chat(&trunk).ok().action(), "evict");
    let first = fake.last().body;
    let mut padded = trunk.clone();
    // What no model sees.
    let marked = |m: &Value| json!([{"type": "text", "text": text(m), "cache_control": {"type": "ephemeral"}}]);
    padded.messages[1]["content"] = marked(&padded.messages[1]);
    for again in 0..2 {
        proxy.chat(&padded).ok();
        assert_eq!(String::from_utf8_lossy(&fake.last().body), String::from_utf8_lossy(&first), "time {again}");
    }
    // An older state is sent in between, and says nothing of what stands after it.
    proxy.chat(&cut(&trunk, 2)).ok();
    padded.messages[3]["content"] = marked(&padded.messages[3]);
    proxy.chat(&padded).ok();
    assert_eq!(String::from_utf8_lossy(&fake.last().body), String::from_utf8_lossy(&first), "after an older state");
    let proxy = TestProxy::at(proxy.stop(), &[fake.url()], toml);
    proxy.chat(&padded).ok();
    assert_eq!(String::from_utf8_lossy(&fake.last().body), String::from_utf8_lossy(&first), "after a restart");
    // What a model may see is as the client sends it now.
    padded.messages[1]["content"] = "Repair the ingest service.\n ".into();
    proxy.chat(&padded).ok();
    assert!(
        fake.last().messages()[1]["content"].as_str().is_some_and(|c| c.starts_with("Repair the ingest service.\n "))
    );
}

#[test]
fn kill_nine_at_any_point_loses_nothing() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let mut dice = Dice(20_261_121);
    let all = session(20);
    let turns = turns(&all);
    let mut forwarded: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut next = 0;
    let mut kills = 0;
    while next < turns.len() {
        let served = Served::start(dir.path(), &[fake.url()], "");
        // What was sent before is sent again as it was.
        let again: Vec<_> = forwarded.iter().rev().take(2).chain(forwarded.first()).cloned().collect();
        for (n, body) in again {
            request(served.address, "POST", "/v1/chat/completions", &[], &turns[n].body()).ok();
            assert_eq!(String::from_utf8_lossy(&fake.last().body), String::from_utf8_lossy(&body), "turn {n}");
        }
        let goes_on = 1 + dice.below(4);
        for _ in 0..goes_on {
            if next < turns.len() {
                request(served.address, "POST", "/v1/chat/completions", &[], &turns[next].body()).ok();
                forwarded.push((next, fake.last().body));
                next += 1;
            }
        }
        if next >= turns.len() {
            break;
        }
        // Killed in the middle of a request: as it comes, while it is worked on, or when the server has it.
        let before = fake.count();
        let mut conn = Conn::open(served.address);
        let body = turns[next].body();
        conn.send("POST", "/v1/chat/completions", &[], &body);
        match dice.below(3) {
            0 => {}
            1 => (0..dice.below(3_000_000)).for_each(|n| {
                std::hint::black_box(n);
            }),
            _ => fake.wait("the request", |seen| seen.iter().filter(|s| s.is_main()).count() > before),
        }
        served.kill();
        kills += 1;
        drop(conn);
        if fake.count() > before {
            let seen = fake.last();
            assert!(nothing_is_lost(dir.path(), &turns[next], &seen.body) <= 100);
            forwarded.push((next, seen.body));
            next += 1;
        }
    }
    assert!(kills >= 4, "{kills}");
    let (n, body) = forwarded.last().unwrap();
    assert!(nothing_is_lost(dir.path(), &turns[*n], body) >= 1);
    for seen in fake.mains() {
        assert!(tokens(&seen.json()) < 4096);
    }
}

#[test]
fn a_fork_keeps_what_depends_on_the_common_part() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut trunk = chat().system("s").user("Look at this.").tools();
    trunk = trunk.step(1, &prose(1, 12_000));
    assert_eq!(proxy.chat(&trunk).ok().action(), "evict");
    trunk = trunk.assistant("I have read it.");
    let one = proxy.chat(&trunk.clone().user("Then do the first thing.")).ok();
    let first = fake.last().messages();
    let two = proxy.chat(&trunk.clone().user("Then do the second thing instead.")).ok();
    let second = fake.last().messages();
    let common = trunk.messages.len();
    assert_eq!(first[..common], second[..common], "the preview is the same in both");
    assert_eq!(text(second.last().unwrap()), "Then do the second thing instead.");
    assert_eq!((one.action(), two.action()), ("none", "none"));
    let name = |a: &Answer| a.header("x-windowsill-conversation").unwrap().to_owned();
    assert_ne!(name(&one), name(&two));
    let fork = proxy.eventually(&format!("/windowsill/conversations/{}", name(&two)), |_| true);
    assert_eq!(fork["parent"]["conversation"], name(&one));
    assert_eq!(fork["parent"]["messages"], 4);
    // A message is found by its number in either, whoever recorded it first.
    let said = |id: &str, at: usize| {
        let out = proxy.cli(&["recall", &format!("{id}:{at}")]);
        assert!(out.status.success(), "{id}:{at}: {}", String::from_utf8_lossy(&out.stderr));
        text(&serde_json::from_slice::<Value>(&out.stdout).unwrap())
    };
    for (id, last) in [(name(&one), "Then do the first thing."), (name(&two), "Then do the second thing instead.")] {
        let whole = trunk.messages.iter().skip(1).map(text).chain([last.to_owned()]);
        for (at, expect) in whole.enumerate() {
            assert_eq!(said(&id, at), expect, "{id}:{at}");
        }
        assert_eq!(said(&id, 5), "Done; what is next?", "the last reply");
        let out = proxy.cli(&["recall", &format!("{id}:6")]);
        assert!(String::from_utf8_lossy(&out.stderr).contains("has messages 0 to 5"), "{out:?}");
        let history = String::from_utf8(proxy.cli(&["recall", &id]).stdout).unwrap();
        assert!(history.contains("## 4 · user") && history.contains(last), "{history}");
    }
    // The trunk goes on under its own name.
    let on = proxy.chat(&trunk.user("Then do the first thing.").assistant("Done.").user("Thanks.")).ok();
    assert_eq!(name(&on), name(&one));
}

/// A history that comes whole in its first request is edited at its end: the common part has no request of its own, and
/// still keeps its edits.
#[test]
fn an_edited_last_message_keeps_the_edits_of_a_first_request() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let trunk =
        chat().system("s").user("Look at this.").tools().step(1, &prose(1, 12_000)).assistant("I have read it.");
    assert_eq!(proxy.chat(&trunk.clone().user("Do the first thing.")).ok().action(), "evict");
    let first = fake.last().messages();
    let two = proxy.chat(&trunk.clone().user("Do the second thing instead.")).ok();
    let second = fake.last().messages();
    let common = trunk.messages.len();
    assert_eq!(first[..common], second[..common], "the preview is the same in both");
    assert_eq!(two.action(), "none");
}

/// A history with an evicted result in a parallel step, and a fold far behind it.
pub(crate) fn rewritten() -> Chat {
    chat()
        .system("s")
        .user("  Look at these three files.")
        .calls(&[
            ("a", "read_file", r#"{"path":"a.rs","lines":[1,2]}"#),
            ("b", "read_file", r#"{"path":"b.rs"}"#),
            ("c", "run", "{}"),
        ])
        .result("a", &prose(1, 9_000))
        .result("b", &prose(2, 300))
        .result("c", &prose(3, 8_000))
        .assistant("I have read them.\n")
        .user("Go on.")
        .tools()
}

#[test]
fn what_clients_change_without_saying_anything_keeps_the_view() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let plain = rewritten();
    let first = proxy.chat(&plain).ok();
    assert_eq!(first.action(), "evict");
    let conversation = first.header("x-windowsill-conversation").unwrap().to_owned();
    let reference = fake.last();
    let shown = |seen: &Seen, id: &str| {
        let all = seen.messages();
        text(all.iter().find(|m| m["tool_call_id"] == id).unwrap())
    };
    let change = |act: &dyn Fn(&mut Vec<Value>)| {
        let mut changed = plain.clone();
        act(&mut changed.messages);
        changed
    };
    let cases: [(&str, Chat); 6] = [
        ("parallel results in another order", change(&|m| m.swap(3, 5))),
        (
            "a cache marker moved",
            change(&|m| {
                let said = text(&m[7]);
                m[7] = json!({"role": "user", "content": [{"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}]});
            }),
        ),
        (
            "text trimmed",
            change(&|m| {
                m[1]["content"] = json!("Look at these three files.");
                m[6]["content"] = json!("I have read them.");
            }),
        ),
        (
            "arguments written anew",
            change(&|m| {
                m[2]["tool_calls"][0]["function"]["arguments"] = json!("{ \"lines\": [ 1, 2 ], \"path\": \"a.rs\" }")
            }),
        ),
        ("content empty instead of null", change(&|m| m[2]["content"] = json!(""))),
        ("the date in the system prompt", change(&|m| m[0]["content"] = json!("s; today is Friday"))),
    ];
    for (what, changed) in cases {
        let answer = proxy.chat(&changed).ok();
        let seen = fake.last();
        assert_eq!(answer.action(), "none", "{what}");
        assert_eq!(answer.header("x-windowsill-conversation"), Some(conversation.as_str()), "{what}");
        for id in ["a", "b", "c"] {
            assert_eq!(shown(&seen, id), shown(&reference, id), "{what}: {id}");
        }
        assert_eq!(faults(&changed.value(), &seen.json()), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_session_named_by_the_client_stands_apart() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let body = rewritten().body();
    let one = proxy.post("/v1/chat/completions", &[("x-windowsill-session", "alpha")], &body).ok();
    let two = proxy.post("/v1/chat/completions", &[("x-windowsill-session", "beta")], &body).ok();
    let again = proxy.post("/v1/chat/completions", &[("x-windowsill-session", "alpha")], &body).ok();
    let name = |a: &Answer| a.header("x-windowsill-conversation").unwrap().to_owned();
    assert_eq!((name(&one).as_str(), name(&two).as_str(), name(&again).as_str()), ("alpha", "beta", "alpha"));
    assert_eq!((one.action(), two.action(), again.action()), ("evict", "evict", "none"));
    let listed = proxy.get("/windowsill/conversations").ok().json();
    assert_eq!(listed["conversations"].as_array().unwrap().len(), 2);
}

#[test]
fn the_record_can_be_looked_at() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let request = rewritten();
    let answer = proxy.chat(&request).ok();
    let id = answer.header("x-windowsill-conversation").unwrap();
    let seen = fake.last();
    // What the reply adds does not undo what the request wrote.
    proxy.eventually("/windowsill/events", |e| e.to_string().contains("model_usage"));
    let one = proxy.get(&format!("/windowsill/conversations/{id}")).ok().json();
    assert_eq!(one["id"], id);
    assert_eq!(one["model"], MODEL);
    assert_eq!(one["title"], "Look at these three files.");
    // Seven that were sent, and the reply.
    assert_eq!((&one["state"]["window"], &one["messages"]), (&json!(4096), &json!(8)));
    assert_eq!(one["state"]["window_source"], "asked of /props");
    let regions = &one["state"]["regions"];
    let sum: u64 = ["system", "tools", "brief", "history", "media"].iter().map(|r| regions[r].as_u64().unwrap()).sum();
    assert_eq!(regions["prompt"], sum);
    assert_eq!(one["compactions"][0]["data"]["action"], "evict");
    // The view is what was forwarded, system messages aside.
    let view = proxy.get(&format!("/windowsill/conversations/{id}/view")).ok().json();
    assert_eq!(view["messages"].as_array().unwrap()[..], seen.messages()[1..]);
    let record = ids(&seen.body).into_iter().next().unwrap();
    let whole = proxy.get(&format!("/windowsill/records/{record}")).ok().text();
    assert!(request.messages.iter().any(|m| text(m) == whole));
    let part = proxy.get(&format!("/windowsill/records/{record}?range=2..4")).ok().text();
    assert_eq!(part, whole.split_inclusive('\n').skip(1).take(3).collect::<String>());
    assert_eq!(proxy.get(&format!("/windowsill/records/{record}?range=b..a")).status, 400);
    a_record_is_served_in_parts(&proxy, id, &record, &whole);
    let events = proxy.get("/windowsill/events").ok().json();
    let kinds: Vec<_> = events["events"].as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"context_compaction"), "{kinds:?}");
    let next = events["next"].as_i64().unwrap();
    // No message text in events (invariant 7).
    assert!(!events.to_string().contains("Look at these") && !events.to_string().contains("Part 1:"));
    let later = proxy.get(&format!("/windowsill/events?since={next}")).ok().json();
    assert!(later["events"].as_array().unwrap().iter().all(|e| e["id"].as_i64().unwrap() > next));
    let metrics = proxy.get("/metrics").ok();
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain"));
    let text = metrics.text();
    let names: Vec<_> = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).collect();
    assert!(!names.is_empty() && names.iter().all(|l| l.starts_with("windowsill_")), "{text}");
    let counted =
        names.iter().any(|l| l.starts_with("windowsill_requests_total") && l.contains("evict") && l.ends_with(" 1"));
    assert!(counted, "{text}");
    assert!(!text.contains("Look at"));
    let windows = proxy.get("/windowsill/models").ok().json();
    assert_eq!((&windows["models"][0]["window"], &windows["models"][0]["source"]), (&json!(4096), &json!("/props")));
}

/// Lines, as people and as models ask for them; bytes, as HTTP clients do; and what is no id or no range.
fn a_record_is_served_in_parts(proxy: &TestProxy, conversation: &str, record: &str, whole: &str) {
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let of = |query: &str| proxy.get(&format!("/windowsill/records/{record}{query}"));
    assert_eq!(of("?offset=3&limit=2").ok().text(), lines[2..4].concat());
    assert_eq!(of("?offset=-2").ok().text(), lines[lines.len() - 2..].concat());
    assert_eq!(of(&format!("?conversation={conversation}")).ok().text(), whole);
    let bytes = |range: &str| {
        let path = format!("/windowsill/records/{record}");
        request(proxy.address, "GET", &path, &[("range", range)], b"")
    };
    let part = bytes("bytes=5-11");
    assert_eq!((part.status, part.body.as_slice()), (206, &whole.as_bytes()[5..12]));
    assert_eq!(part.header("content-range").unwrap(), format!("bytes 5-11/{}", whole.len()));
    assert_eq!(bytes("bytes=-3").body, &whole.as_bytes()[whole.len() - 3..]);
    assert_eq!((bytes("bytes=x-y").status, bytes("bytes=0-1,3-4").status), (200, 200));
    let behind = bytes("bytes=99999999-");
    assert_eq!(behind.status, 416);
    assert_eq!(behind.header("content-range").unwrap(), format!("bytes */{}", whole.len()));
    assert_eq!(behind.error().0, "bad_range");
    for (query, status) in [
        ("?range=9..2", 400),
        ("?range=0..2", 400),
        ("?offset=x", 400),
        ("?range=9999999..", 416),
        ("?offset=9999999", 416),
        ("?conversation=nonesuch", 404),
    ] {
        let answer = of(query);
        assert_eq!(answer.status, status, "{query}");
        assert!(!answer.error().0.is_empty(), "{query}");
    }
    let message = proxy.get(&format!("/windowsill/records/{conversation}:0")).ok().json();
    assert_eq!(text(&message), "  Look at these three files.");
    for id in [
        "r000000000000",
        "..%2F..%2Fetc%2Fpasswd",
        "%2Fetc%2Fpasswd",
        "..%2Fwindowsill.sqlite",
        "r000000000000%00.txt",
        "%F0%28%8C",
        &format!("{conversation}:99"),
        &format!("{conversation}:9223372036854775807"),
        &format!("{conversation}:9999999999999999999"),
        &format!("{conversation}:99999999999999999999"),
        "nonesuch:0",
        "12",
    ] {
        let answer = proxy.get(&format!("/windowsill/records/{id}"));
        assert_eq!((answer.status, answer.error().0.as_str()), (404, "not_found"), "{id}: {}", answer.text());
    }
    for at in ["9223372036854775807", "18446744073709551615", "99999999999999999999"] {
        let answer = proxy.get(&format!("/windowsill/conversations/{conversation}/messages/{at}"));
        assert_eq!((answer.status, answer.error().0.as_str()), (404, "not_found"), "{at}: {}", answer.text());
        let from = proxy.get(&format!("/windowsill/conversations/{conversation}/messages?from={at}"));
        assert!(matches!(from.status, 200 | 400), "{at}: {}", from.text());
    }
    assert_eq!(proxy.get(&format!("/windowsill/records/../records/{record}")).status, 404);
    for (args, code, says) in [
        (&["recall", "   "][..], 2, "no word to search for"),
        (&["recall", "::"], 2, "no word to search for"),
        (&["recall", "r000000000000"], 1, "no record"),
        (&["recall", "files", "--conversation", "nonesuch"], 1, "no conversation"),
        (&["recall", "zzz", "--conversation", &conversation[..8]], 1, "in conversation"),
        (&["recall", record, "--range", "0..1"], 2, "not a range"),
        (&["recall", record, "--range", "999999.."], 1, "behind its end"),
    ] {
        let out = proxy.cli(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(says) && out.stdout.is_empty(), "{args:?}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read_the_record() {
    use std::os::unix::fs::PermissionsExt as _;
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    proxy.chat(&rewritten()).ok();
    let mode = |path: std::path::PathBuf| std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(proxy.data()), 0o700);
    assert_eq!(mode(proxy.data().join("windowsill.sqlite")), 0o600);
    let results = proxy.data().join("large_tool_results");
    assert_eq!(mode(results.clone()), 0o700);
    for file in std::fs::read_dir(results).unwrap() {
        assert_eq!(mode(file.unwrap().path()), 0o600);
    }
}

/// Makes a record look as if nobody had used it for some days.
pub(crate) fn aged(dir: &std::path::Path, days: u32) {
    let conn = rusqlite::Connection::open(dir.join("data/windowsill.sqlite")).unwrap();
    let sql = "UPDATE conversation SET updated_ms = updated_ms - ?1";
    assert!(conn.execute(sql, [i64::from(days) * 86_400_000]).unwrap() > 0);
}

#[test]
fn what_retention_took_is_said_so_to_everyone() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let old = rewritten();
    let id = proxy.chat(&old).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let record = ids(&fake.last().body).into_iter().next().unwrap();
    let dir = proxy.stop();
    aged(dir.path(), 8);
    let proxy = TestProxy::at(Arc::clone(&dir), &[fake.url()], "retention_days = 9\n");
    proxy.chat(&chat().user("Something else.")).ok();
    assert_eq!(proxy.get(&format!("/windowsill/records/{record}")).status, 200, "not yet");
    let dir = proxy.stop();
    let proxy = TestProxy::at(Arc::clone(&dir), &[fake.url()], "retention_days = 7\n");
    let events = proxy.eventually("/windowsill/events", |e| e.to_string().contains("record_pruned"));
    let told = events["events"].as_array().unwrap().iter().find(|e| e["kind"] == "record_pruned").unwrap();
    assert_eq!(
        (&told["data"]["conversations"], &told["data"]["messages"]),
        (&json!(1), &json!(8)),
        "the reply goes, too"
    );
    let words = "by retention_days = 7";
    for what in [&record, &format!("{id}:0")] {
        let answer = proxy.get(&format!("/windowsill/records/{what}"));
        let (code, message) = answer.error();
        assert_eq!((answer.status, code.as_str()), (410, "pruned"), "{message}");
        assert!(message.contains("was pruned on 20") && message.contains(words), "{message}");
        let out = proxy.cli(&["recall", what]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(1) && said.contains(words) && out.stdout.is_empty(), "{said}");
    }
    let answer = proxy.get(&format!("/windowsill/conversations/{id}"));
    assert!(answer.status == 410 && answer.error().1.contains(words), "{}", answer.text());
    assert!(!dir.path().join(format!("data/large_tool_results/{record}.txt")).exists());
    let listed = proxy.get("/windowsill/conversations").ok().json();
    assert_eq!(listed["conversations"].as_array().unwrap().len(), 1, "the young one stays");
    // The client goes on with the old one: it is rewritten anew, and its record is back under the same id.
    let again = proxy.chat(&old.clone().assistant("Done.").user("And now?")).ok();
    assert_eq!(again.action(), "evict");
    let body = fake.last().body;
    assert!(ids(&body).contains(&record));
    assert_eq!(proxy.get(&format!("/windowsill/records/{record}")).status, 200);
    assert!(nothing_is_lost(dir.path(), &old, &body) >= 1);
}

#[test]
fn lines_of_a_result_in_json_are_those_inside_and_the_whole_is_as_it_came() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let lines: String = (1..=900).map(|n| format!("row {n} of the table\n")).collect();
    let wrapped = json!({"output": lines, "exit_code": 1, "error": null}).to_string();
    let sent = chat().user("Count.").tools().step(1, &wrapped).assistant("Done.").user("And now?");
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let record = ids(&fake.last().body).into_iter().next().unwrap();
    let shown = text(&fake.last().messages()[2]);
    assert!(shown.contains("900 lines") && shown.contains("exit_code = 1"), "{shown}");

    let out = proxy.cli(&["recall", &record]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), wrapped, "exactly as it came");
    assert!(out.stderr.is_empty());
    let out = proxy.cli(&["recall", &record, "--range", "700..701"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "row 700 of the table\nrow 701 of the table\n");
    assert!(String::from_utf8_lossy(&out.stderr).contains("text inside its JSON"));
    let part = proxy.get(&format!("/windowsill/records/{record}?conversation={id}&offset=-1")).ok();
    assert_eq!(part.text(), "row 900 of the table\n");
    assert!(part.header("x-windowsill-lines").is_some());
    let whole = proxy.get(&format!("/windowsill/records/{record}")).ok();
    assert_eq!((whole.text(), whole.header("x-windowsill-lines")), (wrapped, None));
}

#[test]
fn a_title_is_what_a_person_wrote() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let reminder = "<environment_context>\n  <cwd>/proj</cwd>\n</environment_context>";
    let sent =
        chat().system("s").user(reminder).user("<system-reminder>Be brief.</system-reminder>\nCount the\n rows.");
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let shown = proxy.eventually(&format!("/windowsill/conversations/{id}"), |row| row["title"].is_string());
    assert_eq!(shown["title"], "Count the rows.");
}

/// A session header is a wish: it opens no other conversation's record, and takes nobody's name.
#[test]
fn a_session_takes_over_no_other_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let first = chat().system("s").user("Let us plan the garden.");
    let garden = proxy.chat(&first).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let name = |session: &str, text: &str| {
        let headers = [("x-windowsill-session", session), ("Content-Type", "application/json")];
        let body = chat().system("s").user(text).body();
        let answer = request(proxy.address, "POST", "/v1/chat/completions", &headers, &body).ok();
        answer.header("x-windowsill-conversation").unwrap().to_owned()
    };
    assert_ne!(name(&garden, "Tell me all of it."), garden);
    let (one, two) = (name("constant", "The first chat."), name("constant", "The second chat."));
    assert_eq!(one, "constant");
    assert_ne!(one, two);
    assert_eq!(name("constant", "The first chat."), one, "sent again, it is the same");
    let listed =
        proxy.eventually("/windowsill/conversations", |v| v["conversations"].as_array().is_some_and(|c| c.len() == 4));
    let title =
        |id: &str| listed["conversations"].as_array().unwrap().iter().find(|c| c["id"] == id).unwrap()["title"].clone();
    assert_eq!((title(&garden), title(&one)), ("Let us plan the garden.".into(), "The first chat.".into()));
}

/// A person words the last request otherwise, goes on, and then goes back to the first wording: the conversation stands where
/// the person does, though it has a longer branch.
#[test]
fn a_conversation_follows_a_person_back_to_another_branch() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut shared = chat().system("s");
    for n in 0..3 {
        shared = shared.user(&format!("Part {n}.")).assistant(&format!("Done with {n}."));
    }
    let (first, other) = (shared.clone().user("Plan the garden."), shared.clone().user("Plan the house."));
    let longer = other.clone().assistant("A house.").user("Go on.");
    let ids: Vec<String> = [&first, &other, &longer, &first]
        .map(|c| proxy.chat(c).ok().header("x-windowsill-conversation").unwrap().to_owned())
        .to_vec();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let dir = proxy.stop();
    let store = windowsill::store::Store::open_readonly(&dir.path().join("data")).unwrap();
    let rows = store.messages(&ids[0]).unwrap();
    let last = String::from_utf8_lossy(&rows.last().unwrap().raw).into_owned();
    assert!(rows.len() == 7 && last.contains("Plan the garden."), "{} messages, the last one {last}", rows.len());
}

/// A new chat that begins like an older one, such as the same `claude -p` twice, does not shorten the older one.
#[test]
fn a_chat_that_begins_alike_rewinds_nothing() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let begin = chat().system("s").user("hi");
    let long = begin.clone().assistant("Hello.").user("Plan it.").assistant("Yes.").user("Go on.");
    proxy.chat(&begin).ok();
    let id = proxy.chat(&long).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}");
    proxy.eventually(&path, |v| v["state"]["messages"] == 5);
    proxy.chat(&begin).ok();
    let other = begin.clone().assistant("Good day.").user("Something else.");
    let other = proxy.chat(&other).ok().header("x-windowsill-conversation").unwrap().to_owned();
    assert_ne!(other, id);
    proxy.eventually(&format!("/windowsill/conversations/{other}"), |v| v["state"]["messages"] == 3);
    assert_eq!(proxy.get(&path).ok().json()["state"]["messages"], 5);
    assert!(proxy.get(&format!("/windowsill/records/{id}:4")).ok().text().contains("Go on."));
}

/// A server that cannot count, and whose tokens are `share` of what is usual.
fn miscounting(share: f64) -> Fake {
    let fake = Fake::start(Kind::OpenAi, 4096);
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let prompt = (f64::from(tokens(&seen.json())) * share) as u32;
        Play::Json(
            200,
            json!({"id": "x", "object": "chat.completion", "created": 1, "model": "test-model",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1}}),
        )
    });
    fake
}

#[test]
fn what_a_server_counted_is_remembered_over_a_restart() {
    for share in [0.35, 0.6, 1.6] {
        let fake = miscounting(share);
        let toml = "[window]\nnum_ctx = 4096\n[context]\nbackground = false\nfold_at = \"line\"\n";
        let mut proxy = TestProxy::with(&[fake.url()], toml);
        for turn in turns(&session(30)) {
            proxy.chat(&turn).ok();
            let first = fake.last().body;
            proxy.chat(&turn).ok();
            assert_eq!(fake.last().body, first, "sent again, {share}");
            let dir = proxy.stop();
            proxy = TestProxy::at(dir, &[fake.url()], toml);
            let answer = proxy.chat(&turn).ok();
            assert_eq!(
                String::from_utf8_lossy(&fake.last().body),
                String::from_utf8_lossy(&first),
                "after a restart, {share}, {} messages",
                turn.messages.len()
            );
            assert_eq!(answer.action(), "none", "{share}");
        }
    }
}

#[test]
fn two_processes_on_one_record_send_the_same_bytes() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let toml = "[window]\nnum_ctx = 4096\n[context]\nbackground = false\nfold_at = \"line\"\n";
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let proxies = [(); 2].map(|()| TestProxy::at(Arc::clone(&dir), &[fake.url()], toml));
    let mut rewritten = 0;
    for (n, turn) in turns(&session(24)).iter().enumerate() {
        let answer = proxies[n % 2].chat(turn).ok();
        let first = fake.last().body;
        rewritten += usize::from(answer.action() != "none");
        let conversation = answer.header("x-windowsill-conversation").unwrap().to_owned();
        let other = proxies[(n + 1) % 2].chat(turn).ok();
        assert_eq!(String::from_utf8_lossy(&fake.last().body), String::from_utf8_lossy(&first), "turn {n}");
        assert_eq!(other.header("x-windowsill-conversation"), Some(conversation.as_str()), "turn {n}");
    }
    assert!(rewritten >= 2, "{rewritten}");
}

#[test]
fn a_record_that_cannot_be_written_is_told_everywhere_and_comes_back() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let turns = turns(&session(24));
    proxy.chat(&turns[0]).ok();
    assert_eq!(proxy.get("/readyz").status, 200);
    // A file where the folder of originals should be: whatever leaves the prompt cannot be kept.
    let folder = proxy.data().join("large_tool_results");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "in the way").unwrap();
    let refused = turns.iter().map(|turn| proxy.chat(turn)).find(|answer| answer.status != 200).unwrap();
    assert_eq!(refused.status, 503);
    let error = refused.json()["error"].clone();
    assert_eq!(error["code"], "record_unwritable", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("large_tool_results") && message.contains("data_dir"), "{message}");
    assert!(proxy.get("/metrics").text().contains("windowsill_record_failures 1"));
    std::fs::remove_file(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    // A database that another program keeps locked: not even messages can be written.
    let lock = rusqlite::Connection::open(proxy.data().join("windowsill.sqlite")).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    proxy.chat(&turns[1]).ok();
    assert_eq!(proxy.get("/windowsill/models").status, 200);
    let until = std::time::Instant::now() + PATIENCE;
    while !proxy.get("/metrics").text().contains("windowsill_record_writable 0") {
        assert!(std::time::Instant::now() < until, "never told");
    }
    let goes_on = proxy.chat(&turns[1]).ok();
    assert_eq!(goes_on.header("x-windowsill-record"), Some("unwritable"));
    assert!(goes_on.header("x-windowsill-warning").unwrap().contains("unrecorded"));
    let not_ready = proxy.get("/readyz");
    assert_eq!((not_ready.status, &not_ready.json()["error"]["code"]), (503, &json!("record_unwritable")));
    lock.execute_batch("ROLLBACK").unwrap();
    assert_eq!(proxy.get("/readyz").status, 200, "it tries again");
    for turn in &turns {
        assert_eq!(proxy.chat(turn).ok().header("x-windowsill-record"), None);
    }
    assert!(proxy.get("/metrics").text().contains("windowsill_record_writable 1"));
    assert!(nothing_is_lost(proxy.stop().path(), turns.last().unwrap(), &fake.last().body) >= 1);
}

#[test]
fn a_reply_waits_until_its_request_is_in_the_record() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    proxy.chat(&chat().user("The first one.")).ok();
    let database = rusqlite::Connection::open(proxy.data().join("windowsill.sqlite")).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    // A reply waits a second at most: where this machine took longer to look, it looks again.
    for n in 0.. {
        let asked = chat().user(&format!("Number {n}."));
        let (before, started) = (fake.count(), std::time::Instant::now());
        database.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut conn = Conn::open(proxy.address);
        conn.send("POST", "/v1/chat/completions", &[("Content-Type", "application/json")], &asked.body());
        while fake.since(before).is_empty() {
            std::thread::yield_now();
        }
        let early = (0..30).any(|_| conn.is_readable());
        let in_time = started.elapsed() < std::time::Duration::from_millis(800);
        database.execute_batch("ROLLBACK").unwrap();
        let head = conn.head().unwrap();
        assert_eq!(conn.rest(head).status, 200);
        if in_time {
            assert!(!early, "the reply came before its request was written");
            break;
        }
        assert!(n < 20, "this machine never looked in time");
    }
}

#[test]
fn a_record_deleted_while_it_is_open_is_begun_anew() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let turns = turns(&session(24));
    let half = turns.len() / 2;
    for turn in &turns[..half] {
        proxy.chat(turn).ok();
    }
    // At once: the writer may be at work in it.
    std::fs::rename(proxy.data(), proxy.data().with_extension("gone")).unwrap();
    for turn in &turns[half..] {
        proxy.chat(turn).ok();
    }
    let last = turns.last().unwrap();
    let dir = proxy.stop();
    assert!(nothing_is_lost(dir.path(), last, &fake.last().body) >= 1, "no view of the old record is used");
    let again = TestProxy::at(dir, &[fake.url()], "");
    let before = fake.last().body;
    again.chat(last).ok();
    assert_eq!(fake.last().body, before, "the new record has it all");
}
