//! Tools by index: an agent whose tools pass the window, before a model that looks them up.

mod bars;

use serde_json::{Value, json};

use super::support::script::*;
use super::support::*;

/// The tool of windowsill's that stands for those that are not shown.
pub(crate) const INDEX: &str = "windowsill_tool";

/// Tools as a coding agent brings them, some 20,000 tokens: `Bash` and its like, and many beside them.
pub(crate) fn agent_tools() -> Value {
    let long = "It does this and nothing else, whatever the case may be. ".repeat(45);
    let tool = |name: &str, key: &str| {
        json!({"type": "function", "function": {"name": name, "description": format!("Runs {name} for you. {long}"),
            "parameters": {"type": "object", "additionalProperties": false, "required": [key],
                "properties": {key: {"type": "string", "description": format!("What to do. {long}")}}}}})
    };
    let core = [("Bash", "command"), ("Read", "path"), ("Edit", "path"), ("Write", "path"), ("Grep", "pattern")];
    let mut all: Vec<Value> = core.iter().map(|(name, key)| tool(name, key)).collect();
    all.extend((0..12).map(|n| tool(&format!("mcp__issues__action_{n}"), "id")));
    Value::from(all)
}

pub(crate) fn agent() -> Chat {
    chat().system("You are an agent.").user("Look for the vault.").with("tools", agent_tools())
}

fn calls(name: &str, arguments: Value) -> Says {
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    turn("", vec![("call_1", name.to_owned(), arguments.to_string())])
}

const AUTO: &str = "[context]\ntools = \"auto\"\n";

/// Name and arguments of the calls in a reply.
#[track_caller]
fn called(answer: &Answer, streamed: bool) -> Vec<(String, String)> {
    let said = |v: &Value, p: &str| v.pointer(p).and_then(Value::as_str).unwrap_or("").to_owned();
    if !streamed {
        let value = answer.json();
        let calls = value["choices"][0]["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        assert_eq!(value["choices"][0]["finish_reason"], if calls.is_empty() { "stop" } else { "tool_calls" });
        return calls.iter().map(|c| (said(c, "/function/name"), said(c, "/function/arguments"))).collect();
    }
    let mut out: Vec<(String, String)> = Vec::new();
    let mut finish = String::new();
    for data in answer.text().split("\n\n").filter_map(|b| b.strip_prefix("data: ")).filter(|d| *d != "[DONE]") {
        let value: Value = serde_json::from_str(data).unwrap();
        let choice = &value["choices"][0];
        finish.push_str(choice["finish_reason"].as_str().unwrap_or(""));
        for fragment in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = fragment["index"].as_u64().unwrap() as usize;
            if index == out.len() {
                assert!(!said(fragment, "/id").is_empty(), "{answer:?}");
                out.push((said(fragment, "/function/name"), String::new()));
            }
            out[index].1.push_str(&said(fragment, "/function/arguments"));
        }
    }
    assert_eq!(finish, if out.is_empty() { "stop" } else { "tool_calls" });
    out
}

#[test]
fn a_person_sets_it_for_one_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 32_768);
    let proxy = TestProxy::before(&fake);
    let mut sent = agent();
    let first = proxy.chat(&sent).ok();
    let id = first.header("x-windowsill-conversation").unwrap().to_owned();
    assert_eq!(first.header("x-windowsill-tools"), None);
    let set = |listing: Value| {
        let body = json!({"listing": listing}).to_string();
        proxy.post(&format!("/windowsill/conversations/{id}/tools"), &[], body.as_bytes())
    };
    proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    assert_eq!(set(json!("some")).status, 400);
    assert_eq!(set(json!("index")).ok().json()["tools"], "index");
    let wanted = || proxy.get(&format!("/windowsill/conversations/{id}/pins")).ok().json()["tools"].clone();
    assert_eq!(wanted(), json!("index"));
    // From its next request on, here alone, and after a restart; the client's own word comes first.
    sent = sent.assistant("Done.").user("And now?");
    let listed = |answer: &Answer| answer.header("x-windowsill-tools").is_some_and(|told| told.starts_with("index"));
    assert!(listed(&proxy.chat(&sent).ok()));
    assert!(!listed(&proxy.post("/v1/chat/completions", &[("x-windowsill-tools", "as_sent")], &sent.body()).ok()));
    assert!(!listed(&proxy.chat(&agent().user("Another chat.")).ok()));
    let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
    assert!(listed(&proxy.chat(&sent).ok()));
    let body = json!({"listing": null}).to_string();
    proxy.post(&format!("/windowsill/conversations/{id}/tools"), &[], body.as_bytes()).ok();
    assert!(!listed(&proxy.chat(&sent).ok()), "the settings say nothing");
}

#[test]
fn tools_are_forwarded_as_sent_unless_it_is_asked_for() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let refused = proxy.chat(&agent());
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("tools = \\\"auto\\\""), "{}", refused.text());
    assert_eq!(fake.count(), 0);
    // One request asks for it.
    let answer = proxy.post("/v1/chat/completions", &[("x-windowsill-tools", "auto")], &agent().body()).ok();
    assert!(answer.header("x-windowsill-tools").unwrap().starts_with("index; tools=17; full="));
    assert_eq!(fake.last().header("x-windowsill-tools"), None);
    // A word that nobody knows changes nothing, and is said.
    let small = chat().user("Hi.").tools();
    let answer = proxy.post("/v1/chat/completions", &[("x-windowsill-tools", "some")], &small.body()).ok();
    assert!(answer.header("x-windowsill-warning").unwrap().contains("x-windowsill-tools must be"));
    assert_eq!(fake.last().body, small.body());
    // Nor is anything changed where there is room for a history.
    let auto = TestProxy::with(&[fake.url()], AUTO);
    auto.chat(&small).ok();
    assert_eq!(fake.last().body, small.body(), "byte for byte");
}

#[test]
fn a_tool_is_looked_up_and_called_within_one_reply() {
    for (write, streamed) in [(1, true), (9, true), (1 << 20, true), (1 << 20, false)] {
        let fake = Fake::start(Kind::LlamaServer, 8192);
        let proxy = TestProxy::with(&[fake.url()], AUTO);
        scripted(&fake, write, |n, _| match n {
            0 => calls(INDEX, json!({"query": "grep a pattern"})),
            _ => calls(INDEX, json!({"name": "Grep", "arguments": {"pattern": "vault"}})),
        });
        let sent = if streamed { agent().stream() } else { agent() };
        let answer = proxy.chat(&sent).ok();
        assert_eq!(called(&answer, streamed), [("Grep".to_owned(), r#"{"pattern":"vault"}"#.to_owned())]);
        assert!(!answer.text().contains(INDEX), "the client never hears of it");
        let rounds = fake.mains();
        assert_eq!(rounds.len(), 2);
        assert_eq!(rounds[0].json()["tools"], rounds[1].json()["tools"]);
        assert!(rounds[0].body.len() * 8 < sent.body().len());
        let told = text(rounds[1].messages().last().unwrap());
        assert!(told.contains(r#"{"name":"Grep","description":"#) && told.contains("\"pattern\""), "{told}");
        // The next turn goes on from there, with the call as the model wrote it; after a restart too.
        let next = sent.call("call_1", "Grep", json!({"pattern": "vault"})).result("call_1", "src/vault.rs:9");
        scripted(&fake, write, |_, _| turn("It is in vault.rs.", vec![]));
        let proxy = TestProxy::at(proxy.stop(), &[fake.url()], AUTO);
        proxy.chat(&next).ok();
        let (before, now) = (rounds[1].json(), fake.last().json());
        assert_eq!(now["tools"], before["tools"], "the same bytes");
        let messages = now["messages"].as_array().unwrap();
        let known = before["messages"].as_array().unwrap();
        assert_eq!(messages[..known.len()], known[..]);
        let call = &messages[known.len()]["tool_calls"][0]["function"];
        assert_eq!(call["name"], INDEX);
        assert_eq!(call["arguments"], r#"{"name": "Grep", "arguments": {"pattern":"vault"}}"#);
    }
}

#[test]
fn a_call_of_a_tool_that_was_not_shown_is_answered_with_it_and_never_lost() {
    for streamed in [true, false] {
        let fake = Fake::start(Kind::LlamaServer, 8192);
        let proxy = TestProxy::with(&[fake.url()], AUTO);
        scripted(&fake, 7, |n, _| match n {
            0 => calls("Grep", json!({"text": "vault"})),
            1 => calls("Grep", json!({"text": "vault"})),
            _ => calls("Grep", json!({"pattern": "vault"})),
        });
        let sent = if streamed { agent().stream() } else { agent() };
        let answer = proxy.chat(&sent).ok();
        assert_eq!(called(&answer, streamed), [("Grep".to_owned(), r#"{"pattern":"vault"}"#.to_owned())]);
        let told: Vec<String> = fake.last().messages().iter().filter(|m| m["role"] == "tool").map(text).collect();
        assert!(told[0].starts_with("[it was not called: its parameters had not been shown"), "{told:?}");
        assert!(told[1].starts_with("[it was not called: `pattern` is missing]"), "{told:?}");
        // A model that never learns: the client gets the call, and says so itself.
        scripted(&fake, 7, |_, _| calls("Grep", json!({"text": "again"})));
        let answer = proxy.chat(&sent.user("Again.")).ok();
        assert_eq!(called(&answer, streamed), [("Grep".to_owned(), r#"{"text":"again"}"#.to_owned())]);
        // One that is shown goes straight on, beside a lookup too.
        fake.clear();
        let both = vec![
            ("call_1", "Bash".to_owned(), r#"{"command":"ls"}"#.to_owned()),
            ("call_2", INDEX.to_owned(), r#"{"name":"mcp__issues__action_3"}"#.to_owned()),
        ];
        scripted(&fake, 7, move |_, _| turn("", both.clone()));
        let sent = if streamed { agent().stream() } else { agent() };
        let answer = proxy.chat(&sent.user("List.")).ok();
        assert_eq!(called(&answer, streamed), [("Bash".to_owned(), r#"{"command":"ls"}"#.to_owned())]);
        assert_eq!(fake.count(), 1);
    }
}

#[test]
fn a_call_that_is_cut_off_reaches_the_client_as_far_as_it_came() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], AUTO);
    let call = json!({"index": 0, "id": "c", "type": "function", "function": {"name": "Grep", "arguments": "{\"patt"}});
    let chunks = [event(json!({"tool_calls": [call]}), Value::Null), event(json!({}), json!("length"))];
    let bytes: String = chunks.iter().map(|c| format!("data: {c}\n\n")).collect();
    let all = vec![sse_head(), chunk(bytes.as_bytes()), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()];
    fake.script(move |seen| if seen.is_main() { Play::Pieces(all.clone()) } else { Play::Usual });
    let answer = proxy.chat(&agent().stream()).ok();
    assert!(answer.text().contains(r#"{\"patt"#) && answer.text().contains("Grep"), "{}", answer.text());
}

#[test]
fn a_choice_of_a_tool_and_strict_schemas_are_kept() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], AUTO);
    proxy.chat(&agent()).ok();
    let before = fake.last().json()["tools"].clone();
    let mut tools = agent_tools();
    tools[7]["function"]["strict"] = json!(true);
    let name = tools[7]["function"]["name"].clone();
    let choice = json!({"type": "function", "function": {"name": name}});
    proxy.chat(&chat().user("Other.").with("tools", tools).with("tool_choice", choice.clone())).ok();
    let body = fake.last().json();
    assert_eq!(body["tool_choice"], choice);
    let shown = body["tools"].as_array().unwrap().iter().find(|t| t["function"]["name"] == name).unwrap();
    assert_eq!(
        (&shown["function"]["strict"], &shown["function"]["parameters"]["required"]),
        (&json!(true), &json!(["id"]))
    );
    // In the middle of a conversation the list grows at its end.
    let later = agent().assistant("Well?").user("Use it.").with("tool_choice", choice);
    proxy.chat(&later).ok();
    let now = fake.last().json()["tools"].as_array().unwrap().clone();
    let before = before.as_array().unwrap();
    assert_eq!(now[..before.len()], before[..]);
    assert_eq!(now[before.len()]["function"]["name"], name);
    proxy.chat(&agent().assistant("Well?").user("Use it.").assistant("Done.").user("Go on.")).ok();
    assert_eq!(fake.last().json()["tools"], Value::from(now), "and stays");
}

#[test]
fn lists_that_make_no_sense_are_forwarded_or_indexed_and_no_tool_is_lost() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "[context]\ntools = \"index\"\n");
    let with = |tools: Value| chat().user("Hi.").with("tools", tools);
    for (what, tools) in [
        ("two of one name", json!([tool("a"), tool("a")])),
        ("the index's own name", json!([tool("a"), tool(INDEX)])),
        ("no objects", json!([1, "x", null])),
    ] {
        let sent = with(tools);
        let answer = proxy.chat(&sent).ok();
        assert_eq!(fake.last().body, sent.body(), "{what}");
        let warned = answer.header("x-windowsill-warning").is_some_and(|w| w.contains("forwarded as sent"));
        assert_eq!(warned, what != "no objects", "{what}");
    }
    let mut odd = agent_tools();
    odd[2]["function"]["parameters"] = json!([1]);
    odd[3] = json!({"type": "web_search"});
    odd[4]["function"]["parameters"]["properties"]["pattern"] = json!({"$ref": "#/properties/pattern"});
    odd[5]["function"]["description"] = json!("word ".repeat(400_000));
    proxy.chat(&with(odd.clone())).ok();
    let sent = String::from_utf8(fake.last().body).unwrap();
    assert!(sent.contains(r#""parameters":[1]"#) && sent.contains("web_search") && sent.len() < 20_000, "{sent}");
    for tool in odd.as_array().unwrap().iter().filter_map(|t| t["function"]["name"].as_str()) {
        assert!(sent.contains(tool), "{tool}");
    }
    // A recursive schema ends, and the longest description is read in parts.
    scripted(&fake, 64, |n, _| match n {
        0 => calls(INDEX, json!({"name": "Grep"})),
        1 => calls(INDEX, json!({"name": "mcp__issues__action_0"})),
        _ => calls("Grep", json!({"pattern": [1]})),
    });
    let answer = proxy.chat(&with(odd)).ok();
    assert_eq!(called(&answer, false), [("Grep".to_owned(), r#"{"pattern":[1]}"#.to_owned())]);
    let many: Vec<Value> = (0..5_000).map(|n| tool(&format!("action_{n}"))).collect();
    scripted(&fake, 64, |n, _| match n {
        0 => calls(INDEX, json!({"query": "action 4711"})),
        _ => calls("action_4711", json!({"path": "x"})),
    });
    let answer = proxy.chat(&with(many.into())).ok();
    assert_eq!(called(&answer, false), [("action_4711".to_owned(), r#"{"path":"x"}"#.to_owned())]);
    assert!(fake.last().body.len() < 20_000);
}

/// Tokens that a server evaluates of prompts in a row: what is not the beginning of the prompt before.
fn evaluated(all: &[Seen]) -> usize {
    let said = |seen: &Seen| {
        let body = seen.json();
        format!("{}{}", body["tools"], body["messages"].to_string().trim_end_matches(']'))
    };
    let texts: Vec<String> = all.iter().map(said).collect();
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let before = std::iter::once("").chain(texts.iter().map(String::as_str));
    before.zip(&texts).map(|(before, now)| now.len() - common(before, now)).sum::<usize>() / 4
}

#[test]
fn ten_tool_turns_cost_no_more_than_with_all_tools_in_an_endless_window() {
    let names = [
        "Grep",
        "Bash",
        "mcp__issues__action_3",
        "Read",
        "Grep",
        "Edit",
        "mcp__issues__action_3",
        "Bash",
        "Write",
        "Read",
    ];
    let keys = ["pattern", "command", "id", "path", "pattern", "path", "id", "command", "path", "path"];
    let session = |window: u32, toml: &str| {
        let fake = Fake::start(Kind::LlamaServer, window);
        let proxy = TestProxy::with(&[fake.url()], toml);
        let mut sent = agent();
        for (n, (name, key)) in names.into_iter().zip(keys).enumerate() {
            let arguments = json!({key: format!("step {n}")});
            let wanted = arguments.clone();
            // It calls what is shown by its name, and all else through the index, once it knows the parameters.
            scripted(&fake, 64, move |_, seen| {
                let body = seen.json();
                if tools_of(seen).iter().any(|t| t == name) {
                    return calls(name, wanted.clone());
                }
                let known = body["messages"].to_string().contains(&format!("{{\\\"name\\\":\\\"{name}\\\",\\\"desc"));
                let call = json!({"name": name, "arguments": wanted});
                calls(INDEX, if known { call } else { json!({"name": name}) })
            });
            let answer = proxy.chat(&sent).ok();
            assert_eq!(called(&answer, false), [(name.to_owned(), arguments.to_string())], "turn {n} at {window}");
            let id = format!("call_{n}");
            sent = sent.call(&id, name, arguments).result(&id, &prose(n as u64, 700));
        }
        evaluated(&fake.mains())
    };
    let ideal = session(1 << 20, "");
    for window in [8192, 16_384] {
        let ours = session(window, AUTO);
        assert!(ours * 100 <= ideal * 115, "{ours} evaluated at {window}, {ideal} with all tools");
    }
}

#[test]
fn system_text_by_index_is_named_wherever_it_is_left_out() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "");
    let reference = format!("## Reference\n\n{}\n\n", prose(7, 12_000));
    let system = format!("You are an agent.\n\n## Rules\n\nNever push to main.\n\n{reference}## Style\n\nBe brief.\n");
    let sent = chat().system(&system).user("Look for the vault.").tools();
    let said = |seen: &Seen| text(&seen.messages()[0]);
    proxy.chat(&sent).ok();
    assert_eq!(said(&fake.last()), system, "never unless it is asked for");
    let proxy = TestProxy::with(&[fake.url()], "[context]\nsystem = \"index\"\n");
    let answer = proxy.chat(&sent).ok();
    let indexed = said(&fake.last());
    assert!(indexed.contains("Never push to main.") && indexed.contains("Be brief."), "{indexed}");
    assert!(!indexed.contains(&prose(7, 12_000)) && indexed.contains("[Reference: "), "{indexed}");
    let header = answer.header("x-windowsill-system").unwrap().to_owned();
    assert!(header.starts_with("index; sections=1; tokens="), "{header}");
    // The line names a record that gives the section back, to the byte; and the event names it, too.
    let record = indexed.split("windowsill recall ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let original = proxy.get(&format!("/windowsill/records/{record}")).ok().text();
    assert!(original.contains(&prose(7, 12_000)), "{original}");
    let events = proxy.eventually("/windowsill/events?kind=system_indexed", |all| {
        all["events"].as_array().is_some_and(|all| !all.is_empty())
    });
    assert_eq!(events["events"][0]["data"]["sections"][0]["record"], json!(record));
    // The next turn, and the same after a restart, have the same bytes.
    let next = sent.assistant("Where?").user("In the cellar.");
    proxy.chat(&next).ok();
    assert_eq!(said(&fake.last()), indexed);
    let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "[context]\nsystem = \"index\"\n");
    proxy.chat(&next).ok();
    assert_eq!(said(&fake.last()), indexed);
    // Where the model has no tool to read the rest with, nothing is left out, and that is said.
    let answer = proxy.chat(&chat().system(&system).user("Look for the vault.")).ok();
    assert_eq!(said(&fake.last()), system);
    assert!(answer.header("x-windowsill-warning").is_some_and(|w| w.contains("forwarded as sent")));
}
