//! The recall tool: offered once something left the prompt, answered within the reply, never seen by the client.

pub(crate) mod ahead;
mod found;
mod memory;
mod spoken;

use serde_json::{Value, json};

use super::support::script::*;
use super::support::*;

/// A reply as an OpenAI SDK reads it.
#[derive(Debug, Default, PartialEq)]
struct Read {
    id: String,
    text: String,
    calls: Vec<(String, String, String)>,
    finish: String,
    usage: Option<(u64, u64, u64)>,
}

/// Reads a stream as strictly as the strictest client does.
#[track_caller]
fn read(answer: &Answer) -> Read {
    let text = answer.text();
    let mut out = Read::default();
    let (mut roles, mut done) = (0, 0);
    for block in text.split("\n\n").filter(|b| !b.is_empty()) {
        let Some(data) = block.strip_prefix("data: ") else {
            assert!(block.starts_with(':'), "{block}");
            continue;
        };
        assert_eq!(done, 0, "nothing comes behind [DONE]: {text}");
        if data == "[DONE]" {
            done += 1;
            continue;
        }
        let value: Value = serde_json::from_str(data).unwrap();
        assert!(value.get("error").is_none(), "{value}");
        let id = value["id"].as_str().unwrap();
        assert!(out.id.is_empty() || out.id == id, "one id: {text}");
        out.id = id.into();
        if let Some(usage) = value["usage"].as_object() {
            assert!(out.usage.is_none(), "{text}");
            let n = |k: &str| usage[k].as_u64().unwrap();
            out.usage = Some((n("prompt_tokens"), n("completion_tokens"), n("total_tokens")));
        }
        for choice in value["choices"].as_array().unwrap() {
            assert!(out.finish.is_empty(), "nothing comes behind the finish: {text}");
            let delta = &choice["delta"];
            roles += usize::from(delta.get("role").is_some());
            out.text.push_str(delta["content"].as_str().unwrap_or(""));
            for fragment in delta["tool_calls"].as_array().into_iter().flatten() {
                let index = fragment["index"].as_u64().unwrap() as usize;
                let said = |p: &str| fragment.pointer(p).and_then(Value::as_str).unwrap_or("").to_owned();
                if index == out.calls.len() {
                    out.calls.push((said("/id"), said("/function/name"), String::new()));
                }
                out.calls[index].2.push_str(&said("/function/arguments"));
            }
            out.finish.push_str(choice["finish_reason"].as_str().unwrap_or(""));
        }
    }
    assert_eq!((roles, done), (1, 1), "{text}");
    assert!(!text.contains(TOOL), "the client never hears of it: {text}");
    out
}

/// The same of a reply that is not streamed.
#[track_caller]
fn read_whole(answer: &Answer) -> Read {
    let value = answer.json();
    assert!(!answer.text().contains(TOOL), "{value}");
    let choice = &value["choices"][0];
    let said = |v: &Value, p: &str| v.pointer(p).and_then(Value::as_str).unwrap_or("").to_owned();
    let n = |k: &str| value["usage"][k].as_u64().unwrap();
    let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten();
    Read {
        id: said(&value, "/id"),
        text: said(choice, "/message/content"),
        calls: calls.map(|c| (said(c, "/id"), said(c, "/function/name"), said(c, "/function/arguments"))).collect(),
        finish: said(choice, "/finish_reason"),
        usage: Some((n("prompt_tokens"), n("completion_tokens"), n("total_tokens"))),
    }
}

/// The results of our tool in a forwarded request.
fn results(seen: &Seen) -> Vec<String> {
    let all = seen.messages();
    let ours = |m: &Value| m["tool_calls"][0]["function"]["name"] == TOOL;
    let mut inside = false;
    let mut out = Vec::new();
    for message in &all {
        if message["role"] != "tool" {
            inside = ours(message);
        } else if inside {
            out.push(text(message));
        }
    }
    out
}

fn usage(chat: Chat) -> Chat {
    chat.stream().with("stream_options", json!({"include_usage": true}))
}

/// A fake before which something was evicted already, the proxy, and the request with its reply.
fn started(kind: Kind, toml: &str) -> (Fake, TestProxy, Chat, String) {
    let fake = Fake::start(kind, 8192);
    let toml = if kind == Kind::OpenAi { format!("[window]\nnum_ctx = 8192\n{toml}") } else { toml.to_owned() };
    let proxy = TestProxy::with(&[fake.url()], &toml);
    let sent = evicted();
    assert_eq!(proxy.chat(&sent).ok().action(), "evict");
    let id = id_in(&fake.last());
    fake.clear();
    (fake, proxy, sent.assistant("Done; what is next?").user("When does the vault open?"), id)
}

#[test]
fn it_is_offered_from_the_first_rewrite_on_and_always_then() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let mut proxy = TestProxy::before(&fake);
    let plain = chat().system("s").user("Hello.").tools();
    proxy.chat(&plain).ok();
    assert_eq!(fake.last().body, plain.body(), "nothing to recall: byte for byte");
    let mut sent = evicted();
    for turn in 0..3 {
        proxy.chat(&sent).ok();
        assert_eq!(tools_of(&fake.last()), ["read_file", "run", TOOL], "turn {turn}");
        let seen = fake.last();
        let text = String::from_utf8_lossy(&seen.body);
        let own = serde_json::to_string(&sent.value()["tools"]).unwrap();
        assert!(text.contains(own.trim_end_matches(']')), "the client's own keep their bytes");
        sent = sent.assistant("Done; what is next?").user(&format!("Go on {turn}."));
    }
    let before = fake.last().json()["tools"].clone();
    // After a restart, too.
    let dir = proxy.stop();
    proxy = TestProxy::at(dir, &[fake.url()], "");
    proxy.chat(&sent).ok();
    assert_eq!(fake.last().json()["tools"], before);
    // A client that offers no tools gets none; nor one that wants several choices, or switched it off.
    for (what, other) in [
        ("no tools", chat().system("s").user("Read it.").step(1, &large(3))),
        ("tools: []", evicted().with("tools", json!([]))),
        ("n: 2", evicted().with("n", json!(2))),
    ] {
        proxy.chat(&other).ok();
        assert!(!tools_of(&fake.last()).iter().any(|t| t == TOOL), "{what}");
    }
    proxy.post("/v1/chat/completions", &[("x-windowsill-recall", "off")], &sent.body()).ok();
    assert_eq!(tools_of(&fake.last()), ["read_file", "run"]);
    assert_eq!(fake.last().header("x-windowsill-recall"), None);
    // A windowsill behind a windowsill: the call is the other one's.
    let theirs = evicted().with("tools", json!([tool("read_file"), tool(TOOL)]));
    proxy.chat(&theirs).ok();
    assert_eq!(tools_of(&fake.last()), ["read_file", TOOL]);
    let off = TestProxy::with(&[fake.url()], "[context]\nrecall = false\n");
    off.chat(&evicted()).ok();
    assert_eq!(tools_of(&fake.last()), ["read_file", "run"]);
}

#[test]
fn a_call_is_answered_within_the_reply_however_it_is_cut() {
    for (write, streamed) in [(1, true), (7, true), (1 << 20, true), (1 << 20, false)] {
        let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
        let wanted = id.clone();
        scripted(&fake, write, move |n, _| match n {
            0 => turn("Let me look.", vec![call(json!({"query": "vault opens lever"}))]),
            1 => turn("", vec![call(json!({"id": wanted, "offset": 1}))]),
            _ => turn("At quarter past nine.", vec![]),
        });
        let sent = if streamed { usage(sent) } else { sent };
        let answer = proxy.chat(&sent).ok();
        let got = if streamed { read(&answer) } else { read_whole(&answer) };
        let rounds = fake.mains();
        assert_eq!(rounds.len(), 3);
        let prompt = u64::from(tokens(&rounds[2].json()));
        let expect = Read {
            id: "c0".into(),
            text: "Let me look.\n\nAt quarter past nine.".into(),
            calls: vec![],
            finish: "stop".into(),
            usage: Some((prompt, 30, prompt + 30)),
        };
        assert_eq!(got, expect, "{write} bytes at once, streamed: {streamed}");
        let answers = results(&rounds[2]);
        assert!(answers[0].contains(&id) && answers[0].contains("Zanzibar"), "{answers:?}");
        assert!(answers[1].starts_with(&format!("[{id}: read_file")), "{answers:?}");
        assert!(answers[1].contains("more lines: call again with offset="), "{answers:?}");
        // The later rounds go on where the first ended.
        let (first, last) = (rounds[0].messages(), rounds[2].messages());
        assert_eq!(last[..first.len()], first[..]);
        assert_eq!(text(&last[first.len()]), "Let me look.");
        assert_eq!(rounds[0].json()["tools"], rounds[2].json()["tools"]);
        // And so does the next turn, after a restart too: what was recalled stays.
        let dir = proxy.stop();
        let proxy = TestProxy::at(dir, &[fake.url()], "");
        let next = sent.assistant(&got.text).user("Thanks.");
        scripted(&fake, 1 << 20, |_, _| turn("Welcome.", vec![]));
        assert_eq!(proxy.chat(&next).ok().action(), "none");
        let mine = fake.last().messages();
        assert_eq!(mine[..last.len()], last[..]);
        assert_eq!(mine.len(), last.len() + 2);
        let again = next.clone().assistant("Welcome.").user("Bye.");
        proxy.chat(&again).ok();
        assert_eq!(fake.last().messages()[..mine.len()], mine[..]);
        proxy.eventually("/windowsill/events", |e| {
            let all = e["events"].as_array().unwrap();
            all.iter().filter(|e| e["data"]["role"] == "recall").count() == 2
                && all.iter().filter(|e| e["kind"] == "recall" && e["data"]["outcome"] == "found").count() == 2
        });
        assert!(proxy.get("/metrics").text().contains("windowsill_requests"));
    }
}

#[test]
fn what_was_recalled_counts_as_part_of_the_prefix() {
    let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
    scripted(&fake, 1 << 20, move |n, _| match n {
        0 => turn("", vec![call(json!({"id": id, "limit": 40}))]),
        _ => turn("At nine.", vec![]),
    });
    proxy.chat(&sent).ok();
    let held = u64::from(tokens(&fake.last().json()));
    proxy.chat(&sent.assistant("At nine.").user("Thanks.")).ok();
    let events = proxy.eventually("/windowsill/events", |e| e["events"].to_string().matches("\"main\"").count() == 3);
    let last = events["events"].as_array().unwrap().iter().rev().find(|e| e["data"]["role"] == "main").unwrap();
    let prefix = &last["data"]["prefix"];
    assert_eq!(prefix["lost"], 0, "{prefix}");
    // Its messages are estimated, which errs high.
    let tokens = prefix["tokens"].as_u64().unwrap();
    assert!(tokens * 20 >= held * 17, "{tokens} of {held}");
}

#[test]
fn a_reply_without_a_call_passes_byte_for_byte() {
    let (fake, proxy, sent, _) = started(Kind::LlamaServer, "");
    let own = ("call_7", "run".to_owned(), json!({"path": "x"}).to_string());
    let calls = vec![own];
    let expect = calls.clone();
    scripted(&fake, 3, move |_, _| turn("Well, ", calls.clone()));
    let answer = proxy.chat(&sent.stream()).ok();
    assert_eq!(answer.text(), stream(&fake.last(), 0, "Well, ", &expect));
    assert_eq!(read(&answer).usage, None, "nobody asked for it");
}

#[test]
fn of_mixed_calls_the_client_gets_its_own() {
    for streamed in [true, false] {
        let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
        let arguments = json!({"path": "src/a.rs"}).to_string();
        let own = arguments.clone();
        scripted(&fake, 11, move |_, _| {
            let recall = call(json!({"id": id}));
            let second = ("call_s", TOOL.to_owned(), json!({"query": "Zanzibar"}).to_string());
            turn(
                "Both.",
                vec![
                    recall,
                    ("call_7", "read_file".into(), own.clone()),
                    second,
                    ("call_8", "run".into(), "{}".into()),
                ],
            )
        });
        let sent = if streamed { sent.stream() } else { sent };
        let answer = proxy.chat(&sent).ok();
        let got = if streamed { read(&answer) } else { read_whole(&answer) };
        let own = |id: &str, name: &str, arguments: &str| (id.to_owned(), name.to_owned(), arguments.to_owned());
        assert_eq!(got.calls, [own("call_7", "read_file", &arguments), own("call_8", "run", "{}")]);
        assert_eq!((got.text.as_str(), got.finish.as_str()), ("Both.", "tool_calls"));
        assert_eq!(fake.count(), 1, "the client's turn");
        // Its results come back; ours stand before them.
        let mut next = sent.calls(&[("call_7", "read_file", &arguments), ("call_8", "run", "{}")]);
        next.messages.last_mut().unwrap()["content"] = json!("Both.");
        let next = next.result("call_7", "fn a() {}").result("call_8", "ok");
        scripted(&fake, 1 << 20, |_, _| turn("Fine.", vec![]));
        proxy.chat(&next).ok();
        let seen = fake.last();
        assert_eq!(faults(&next.value(), &seen.json()), Vec::<String>::new());
        let answers = results(&seen);
        assert_eq!(answers.len(), 2);
        assert!(answers[0].starts_with("[r") && answers[1].contains("Zanzibar"), "{answers:?}");
        let n = seen.messages().len();
        assert_eq!(seen.messages()[n - 3..], next.messages[next.messages.len() - 3..]);
    }
}

#[test]
fn bad_calls_get_clear_answers_and_nothing_of_other_conversations() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let secret = large(3).replace("Zanzibar", "Secretive");
    let other = chat().system("s").user("Another conversation.").tools().step(9, &secret);
    proxy.chat(&other).ok();
    let foreign = id_in(&fake.last());
    let other_id = proxy.chat(&other).header("x-windowsill-conversation").unwrap().to_owned();
    let sent = evicted();
    proxy.chat(&sent).ok();
    let own = id_in(&fake.last());
    let sent = sent.assistant("Done; what is next?").user("When does the vault open?");
    for (arguments, expect) in [
        (json!({"id": foreign}).to_string(), "no text `r"),
        (json!({"id": "r000000000000"}).to_string(), "no text `r000000000000` in the record of this conversation"),
        (json!({"id": format!("{other_id}:2")}).to_string(), "only this conversation can be recalled"),
        (json!({"id": "999"}).to_string(), "this conversation has messages 0 to"),
        (json!({"id": "0-999", "limit": 1}).to_string(), " is the last there is; lines 1-1 of"),
        (json!({"id": "../../../etc/passwd"}).to_string(), "is no id of this conversation's record"),
        (json!({"id": "/etc/passwd"}).to_string(), "is no id of this conversation's record"),
        (json!({"query": "Secretive"}).to_string(), "nothing that left the prompt matches `Secretive`"),
        (json!({"query": "lease cursor flush", "limit": 100000}).to_string(), "hits 1-"),
        (json!({"query": "lease\" OR NEAR(a, 1) --"}).to_string(), "hits 1-"),
        (json!({"query": "quarter past nine"}).to_string(), "Zanzibar"),
        (json!({"query": "xyzzy"}).to_string(), "nothing that left the prompt matches `xyzzy`"),
        (json!({"id": own, "offset": 100_000}).to_string(), "is past its end"),
        (json!({"id": own, "offset": -2, "limit": 1}).to_string(), "of"),
        (json!({"id": own, "offset": "3", "limit": "2"}).to_string(), "lines 3-4 of"),
        (format!("{{\"id\": \"{own}\", "), "lines 1-"),
        ("{}".into(), "the call could not be read"),
        ("not json at all".into(), "hits 1-"),
        (String::new(), "the call could not be read"),
    ] {
        fake.clear();
        let written = arguments.clone();
        scripted(&fake, 1 << 20, move |n, _| match n {
            0 => turn("", vec![("", "functions.Windowsill_Recall".into(), written.clone())]),
            _ => turn("So it is.", vec![]),
        });
        let got = read_whole(&proxy.chat(&sent).ok());
        assert_eq!((got.text.as_str(), got.finish.as_str()), ("So it is.", "stop"), "{arguments}");
        let seen = fake.last();
        assert_eq!(faults(&sent.value(), &seen.json()), Vec::<String>::new(), "{arguments}");
        let answer = results(&seen).remove(0);
        assert!(answer.contains(expect), "{arguments}: {answer}");
        assert!(
            !answer.contains("root:") && (!answer.contains("Secretive") || arguments.contains("Secretive")),
            "{answer}"
        );
    }
}

#[test]
fn what_retention_took_is_said_so_to_the_model() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    proxy.chat(&chat().system("s").user("Another one.").tools().step(9, &large(3))).ok();
    let old = id_in(&fake.last());
    let dir = proxy.stop();
    super::record::aged(dir.path(), 8);
    let proxy = TestProxy::at(dir, &[fake.url()], "retention_days = 7\n");
    proxy.eventually("/windowsill/events", |e| e.to_string().contains("record_pruned"));
    proxy.chat(&chat().system("s").user("Read it.").tools().step(1, &large(8))).ok();
    let sent = chat().system("s").user("Read it.").tools().step(1, &large(8)).assistant("Done.").user("And that one?");
    scripted(&fake, 1 << 20, move |n, _| match n {
        0 => turn("", vec![call(json!({"id": old}))]),
        _ => turn("So it is.", vec![]),
    });
    proxy.chat(&sent).ok();
    let answer = results(&fake.last()).remove(0);
    assert!(answer.contains("was pruned on 20") && answer.contains("by retention_days = 7"), "{answer}");
}

#[test]
fn rounds_are_bounded_and_a_required_call_is_the_clients_in_the_end() {
    for streamed in [true, false] {
        let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
        scripted(&fake, 1 << 20, move |_, _| turn("", vec![call(json!({"id": id}))]));
        let sent = if streamed { usage(sent) } else { sent }.with("tool_choice", json!("required"));
        let answer = proxy.chat(&sent).ok();
        let got = if streamed { read(&answer) } else { read_whole(&answer) };
        assert_eq!((got.text.as_str(), got.calls.len(), got.finish.as_str()), ("", 0, "stop"));
        let rounds = fake.mains();
        assert_eq!(rounds.len(), 5);
        for (n, round) in rounds.iter().enumerate() {
            assert_eq!(round.json()["tool_choice"], "required");
            assert_eq!(tools_of(round).len(), if n < 4 { 3 } else { 2 }, "the last round has only the client's own");
            assert!(tokens(&round.json()) < 8192);
        }
    }
}

#[test]
fn what_is_too_large_is_cut_to_the_room_there_is() {
    // Servers that can count, and one that cannot.
    for kind in [Kind::LlamaServer, Kind::OpenAi] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::with(
            &[fake.url()],
            "[window]\nnum_ctx = 4096\n[context]\nbackground = false\nfold_at = \"line\"\n",
        );
        let mut sent = evicted();
        proxy.chat(&sent).ok();
        let id = id_in(&fake.last());
        fake.clear();
        scripted(&fake, 1 << 20, move |n, seen| {
            let all = [0, 1, 2].map(|_| call(json!({"id": id, "limit": 1_000_000})));
            if tokens(&seen.json()) >= 4096 {
                return Says::Raw(400, too_long(tokens(&seen.json()), 4096));
            }
            if n % 4 == 3 { turn("Enough.", vec![]) } else { turn("", all.to_vec()) }
        });
        for n in 0..12 {
            sent = sent.assistant("Enough.").user(&format!("More of it, {n}. {}", prose(n, 600)));
            let answer = proxy.chat(&sent).ok();
            assert_eq!(read_whole(&answer).text, "Enough.");
            for seen in fake.mains() {
                assert!(tokens(&seen.json()) < 4096, "{kind:?}: {}", tokens(&seen.json()));
                assert_eq!(faults(&sent.value(), &seen.json()), Vec::<String>::new(), "{kind:?}: turn {n}");
            }
            fake.clear();
        }
    }
}

#[test]
fn a_round_that_is_refused_is_sent_again_without_what_was_too_much() {
    let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
    scripted(&fake, 1 << 20, move |n, _| match n {
        0 => turn("", vec![call(json!({"id": id}))]),
        1 => Says::Raw(400, too_long(9_000, 8_192)),
        _ => turn("Without it.", vec![]),
    });
    assert_eq!(read(&proxy.chat(&sent.stream()).ok()).text, "Without it.");
    let rounds = fake.mains();
    assert_eq!(rounds.len(), 3);
    assert!(results(&rounds[2])[0].contains("no room"), "{:?}", results(&rounds[2]));
}

#[test]
fn a_round_whose_calls_alone_are_too_much_is_left_out() {
    for streamed in [true, false] {
        let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
        scripted(&fake, 1 << 20, move |n, seen| match n {
            0 => turn("", vec![call(json!({"id": id}))]),
            _ if results(seen).is_empty() => turn("Without it.", vec![]),
            _ => Says::Raw(400, too_long(8_200, 8_192)),
        });
        let answer = proxy.chat(&if streamed { sent.clone().stream() } else { sent.clone() }).ok();
        let got = if streamed { read(&answer) } else { read_whole(&answer) };
        assert_eq!((got.text.as_str(), got.calls.len(), got.finish.as_str()), ("Without it.", 0, "stop"));
        let rounds = fake.mains();
        assert_eq!(rounds.len(), 4, "with the result, without its text, without the round");
        assert_eq!(rounds[3].messages(), rounds[0].messages());
        assert!(!tools_of(&rounds[3]).iter().any(|name| name == TOOL), "{:?}", tools_of(&rounds[3]));
        // The next prompt begins with what the server took.
        scripted(&fake, 1 << 20, |_, _| turn("Here.", vec![]));
        proxy.chat(&sent.assistant("Without it.").user("And now?")).ok();
        let next = fake.last().messages();
        assert_eq!(next[..rounds[0].messages().len()], rounds[0].messages()[..]);
    }
}

#[test]
fn a_server_that_fails_between_two_rounds_is_an_error_for_the_client() {
    for streamed in [true, false] {
        let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
        scripted(&fake, 1 << 20, move |n, _| match n {
            0 => turn("Let me look.", vec![call(json!({"id": id}))]),
            _ => Says::Raw(500, json!({"error": {"message": "out of memory", "type": "server_error", "code": 500}})),
        });
        let sent = if streamed { sent.stream() } else { sent };
        let answer = proxy.chat(&sent);
        assert!(answer.text().contains("out of memory"), "{}", answer.text());
        if streamed {
            assert!(answer.text().contains("upstream_died") && !answer.text().contains("[DONE]"), "{}", answer.text());
        } else {
            assert_eq!(answer.status, 500);
        }
        // The conversation goes on.
        scripted(&fake, 1 << 20, |_, _| turn("Here.", vec![]));
        proxy.chat(&sent).ok();
    }
}

#[test]
fn a_client_that_hangs_up_stops_the_round_under_way() {
    let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
    let rounds = std::sync::atomic::AtomicUsize::new(0);
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        if rounds.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0 {
            return Play::Wait(Gate::default(), Box::new(Play::Usual));
        }
        let bytes = stream(seen, 0, "Let me look.", &[call(json!({"id": id}))]);
        Play::Pieces(vec![sse_head(), chunk(bytes.as_bytes()), b"0\r\n\r\n".to_vec()])
    });
    let mut conn = proxy.begin(&sent.stream());
    conn.head().unwrap();
    assert!(!conn.until("look.").contains("[DONE]"), "text goes on as it comes");
    fake.wait("the second round", |seen| seen.iter().filter(|s| s.is_main()).count() == 2);
    drop(conn);
    fake.wait_hung_up(1);
    proxy.eventually("/windowsill/events", |e| e.to_string().contains("canceled"));
}

#[test]
fn another_reply_to_the_same_prompt_has_what_it_recalled_itself() {
    let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
    scripted(&fake, 1 << 20, move |n, _| match n {
        0 => turn("", vec![call(json!({"id": id, "limit": 3}))]),
        1 => turn("With it.", vec![]),
        _ => turn("Without.", vec![]),
    });
    let one = read_whole(&proxy.chat(&sent).ok()).text;
    let again = read_whole(&proxy.chat(&sent).ok()).text;
    assert_eq!((one.as_str(), again.as_str()), ("With it.", "Without."));
    let rounds = fake.mains();
    assert_eq!(rounds[0].body, rounds[2].body, "the same history is the same request");
    for (reply, recalled) in
        [("With it.", 1), ("Without.", 0), ("  With it.\n", 1), ("Edited by the user.", 0), ("With it.", 1)]
    {
        proxy.chat(&sent.clone().assistant(reply).user("Go on.")).ok();
        assert_eq!(results(&fake.last()).len(), recalled, "{reply}");
    }
    // A reply that the client keeps in part, after it was stopped.
    let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
    scripted(&fake, 1 << 20, move |n, _| match n {
        0 => turn("", vec![call(json!({"id": id, "limit": 3}))]),
        _ => turn("A long story.", vec![]),
    });
    read(&proxy.chat(&sent.clone().stream()).ok());
    proxy.chat(&sent.clone().assistant("A long").user("Stop.")).ok();
    assert_eq!(results(&fake.last()).len(), 1, "nothing better is known");
    // Another one breaks off before it recalls anything.
    let begun = format!("data: {}\n\n", event(json!({"role": "assistant", "content": "A lo"}), Value::Null));
    let cut = [sse_head(), chunk(begun.as_bytes())].concat();
    fake.script(move |seen| if seen.is_main() { Play::Cut(cut.clone()) } else { Play::Usual });
    let answer = proxy.chat(&sent.clone().stream());
    assert!(answer.text().contains("upstream_died"), "{}", answer.text());
    fake.script(|_| Play::Usual);
    proxy.chat(&sent.assistant("A long").user("Stop.")).ok();
    assert_eq!(results(&fake.last()).len(), 1, "what broke off takes the place of nothing");
}

#[test]
fn what_was_recalled_is_cleared_and_folded_like_any_result() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
    let mut sent = evicted();
    proxy.chat(&sent).ok();
    let id = id_in(&fake.last());
    let next = std::sync::atomic::AtomicUsize::new(0);
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let round = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let recalls = round.is_multiple_of(2);
        // Another part each time: a result that repeats an earlier one becomes a pointer.
        let calls = if recalls { vec![call(json!({"id": id, "offset": 1 + round}))] } else { vec![] };
        Play::Json(200, whole_reply(seen, 0, if recalls { "" } else { "So." }, &calls))
    });
    let (mut cleared, mut folded) = (false, false);
    let mut last: Vec<Value> = Vec::new();
    for n in 0..24 {
        sent = sent.assistant("So.").user(&format!("Again, {n}. {}", prose(n, 300)));
        let answer = proxy.chat(&sent).ok();
        let seen = fake.last();
        super::proxy::sound(&sent, &seen, 4096);
        let mine = seen.messages();
        if answer.action() == "none" {
            assert_eq!(mine[..last.len()], last[..], "turn {n}");
        }
        last = mine;
        cleared |= results(&seen).iter().any(|r| r.contains("cleared to save context") && r.contains(TOOL));
        folded |= answer.action().contains("summarize");
    }
    assert!(cleared && folded, "cleared: {cleared}, folded: {folded}");
}

#[test]
fn it_works_before_ollama() {
    let fake = Fake::start(Kind::Ollama, 8192);
    let proxy = TestProxy::before(&fake);
    let sent = evicted();
    proxy.chat(&sent).ok();
    let id = id_in(&fake.last());
    let sent = sent.assistant("Done; what is next?").user("When does the vault open?");
    fake.clear();
    fake.script(move |seen| {
        let body = seen.json();
        if !seen.is_main() || body["messages"].as_array().unwrap().iter().any(|m| text(m).contains(&format!("[{id}:"))) {
            return Play::Usual;
        }
        Play::Json(200, json!({"model": MODEL, "created_at": "2026-08-21T18:48:22.1Z", "done": true, "done_reason": "stop",
            "message": {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": TOOL, "arguments": {"id": id}}}]},
            "prompt_eval_count": tokens(&body), "eval_count": 5}))
    });
    let got = read_whole(&proxy.chat(&sent).ok());
    assert_eq!((got.text.as_str(), got.finish.as_str()), ("Done; what is next?", "stop"));
    assert_eq!(fake.count(), 2);
}

#[test]
fn templates_without_tools_and_strict_ids() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let profiles = tempfile::tempdir().unwrap();
    std::fs::write(profiles.path().join("bare.toml"), "[match]\nnames = []\n[template]\ntool_role = false\n").unwrap();
    std::fs::write(profiles.path().join("nine.toml"), "[match]\nnames = []\n[template]\ntool_call_id_length = 9\n")
        .unwrap();
    let toml = format!("profile_dir = {:?}\n", profiles.path());
    let proxy = TestProxy::with(&[fake.url()], &toml);
    let post = |chat: &Chat, profile: &str| {
        proxy.post("/v1/chat/completions", &[("x-windowsill-profile", profile)], &chat.body()).ok()
    };
    post(&evicted(), "bare");
    assert!(!tools_of(&fake.last()).contains(&TOOL.to_owned()));
    let sent = chat().system("s").user("Nine.").tools().step(1, &large(3));
    scripted(&fake, 1 << 20, |n, _| match n {
        1 => turn("", vec![("x", TOOL.into(), json!({"query": "Zanzibar"}).to_string())]),
        _ => turn("So.", vec![]),
    });
    post(&sent, "nine");
    let next = sent.assistant("So.").user("And?");
    assert_eq!(read_whole(&post(&next, "nine")).text, "So.");
    let before = fake.last().messages();
    let id = before.last().unwrap()["tool_call_id"].as_str().unwrap().to_owned();
    assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
    post(&next.assistant("So.").user("Well."), "nine");
    assert_eq!(fake.last().messages()[..before.len()], before[..]);
}

/// Gemini's models refuse a history whose calls lack the signature of the thoughts before them, calls of ours included.
#[test]
fn a_call_of_ours_goes_back_with_what_its_server_must_hear_again() {
    let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
    let extra = json!({"google": {"thought_signature": "Ab+/c=="}});
    let said = extra.clone();
    scripted(&fake, 7, move |round, seen| match round {
        0 => {
            let mut reply = whole_reply(seen, 0, "", &[("call_g", TOOL.into(), json!({"id": id}).to_string())]);
            reply["choices"][0]["message"]["tool_calls"][0]["extra_content"] = said.clone();
            Says::Raw(200, reply)
        }
        _ => turn("At nine.", vec![]),
    });
    assert_eq!(read_whole(&proxy.chat(&sent).ok()).text, "At nine.");
    let messages = fake.last().messages();
    let calls = messages.iter().rev().find_map(|m| m["tool_calls"].get(0)).unwrap();
    assert_eq!((&calls["id"], &calls["extra_content"]), (&json!("call_g"), &extra));
}
