//! The page at `/` and what it asks for: who gets what, and that what it shows is what is there.

use serde_json::{Value, json};

use super::record::rewritten;
use super::support::*;

#[test]
fn the_page_is_there_without_a_key_and_what_it_shows_is_not() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "api_key = \"sesame\"\n");
    let page = request(proxy.address, "GET", "/", &[("Accept", "text/html,*/*;q=0.8")], b"").ok();
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for link in page.text().split("\"/windowsill/page/").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned())
    {
        let file = proxy.get(&format!("/windowsill/page/{link}")).ok();
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"), "{link}");
    }
    for path in ["/windowsill/conversations", "/windowsill/events?follow", "/windowsill/page/nonesuch.js"] {
        assert_eq!(proxy.get(path).status, 401, "{path}");
    }
    let with_key = |path: &str| request(proxy.address, "GET", path, &[("Authorization", "Bearer sesame")], b"");
    assert_eq!(with_key("/windowsill/conversations").status, 200);
    assert_eq!(with_key("/windowsill/page/nonesuch.js").status, 404);
    // A page of another site gets neither.
    let elsewhere = [("Origin", "https://evil.test"), ("Authorization", "Bearer sesame")];
    assert_eq!(request(proxy.address, "GET", "/", &elsewhere, b"").status, 403);
    assert_eq!(request(proxy.address, "HEAD", "/", &[("Authorization", "Bearer sesame")], b"").status, 200);
    // Ollama's clients look for Ollama's own words at the same place.
    for accept in [&[][..], &[("Accept", "*/*")], &[("Accept", "application/json")]] {
        let asked = request(proxy.address, "GET", "/", accept, b"").ok();
        assert_eq!(
            (asked.text(), asked.header("content-type")),
            ("Ollama is running".to_owned(), Some("text/plain; charset=utf-8"))
        );
    }
}

#[test]
fn a_history_is_told_message_by_message_beside_the_view() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let sent = rewritten();
    let answer = proxy.chat(&sent).ok();
    let id = answer.header("x-windowsill-conversation").unwrap();
    let base = format!("/windowsill/conversations/{id}");
    let list = proxy.get(&format!("{base}/messages?from=2&limit=3")).ok().json();
    let at: Vec<u64> = list["messages"].as_array().unwrap().iter().map(|m| m["at"].as_u64().unwrap()).collect();
    assert_eq!((at, &list["total"]), (vec![2, 3, 4], &json!(8)), "seven that were sent, and the reply");
    let all = proxy.get(&format!("{base}/messages?from=0")).ok().json()["messages"].as_array().unwrap().clone();
    let preview = all.iter().find(|m| m["became"] == "preview").expect("one was evicted");
    assert!(preview["view_tokens"].as_u64() < preview["tokens"].as_u64());
    let one = proxy.get(&format!("{base}/messages/{}", preview["at"])).ok().json();
    let original = &sent.messages[usize::try_from(preview["at"].as_u64().unwrap()).unwrap() + 1];
    assert_eq!(one["text"].as_str().unwrap(), text(original), "word for word");
    let record = one["edits"][0]["record"].as_str().unwrap();
    assert_eq!(proxy.get(&format!("/windowsill/records/{record}")).ok().text(), text(original));
    assert!(fake.last().messages().iter().any(|m| text(m) == one["edits"][0]["text"].as_str().unwrap()));
    assert!(one["edits"][0]["why"].as_str().unwrap().contains("larger than"));
    for (path, status) in
        [("/messages/8", 404), ("/messages/x", 404), ("/messages?from=x", 400), ("/messages?form=1", 400)]
    {
        assert_eq!(proxy.get(&format!("{base}{path}")).status, status, "{path}");
    }
    assert_eq!(proxy.get(&format!("{base}/messages?from=99")).ok().json()["messages"], json!([]));
    // By what they are: what a filter takes is what stands in the whole list so.
    let at = |list: &[Value]| list.iter().map(|m| m["at"].clone()).collect::<Vec<_>>();
    for (query, fits) in [
        ("role=user", (|m| m["role"] == "user") as fn(&Value) -> bool),
        ("role=tool", |m| m["role"] == "tool"),
        ("changed", |m| m["became"] != "same"),
        ("changed=true&role=assistant", |m| m["became"] != "same" && m["role"] == "assistant"),
        ("changed=false&role=&text=", |_| true),
    ] {
        let found = proxy.get(&format!("{base}/messages?{query}&from=0")).ok().json();
        let wanted: Vec<Value> = all.iter().filter(|m| fits(m)).cloned().collect();
        assert_eq!(at(found["messages"].as_array().unwrap()), at(&wanted), "{query}");
    }
    assert_eq!(proxy.get(&format!("{base}/messages?role=nobody")).status, 400);
    assert_eq!(proxy.get(&format!("{base}/messages?changed=maybe")).status, 400);
}

/// What came and what went out stand beside each other, for the last request and for earlier ones; and an input that gives the same
/// plan again, without its words where that is wanted.
#[test]
fn both_sides_of_a_request_are_told() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let sent = rewritten();
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let went_out = fake.last().messages();
    let base = format!("/windowsill/conversations/{id}");
    let view = proxy.get(&format!("{base}/view?client&messages=7")).ok().json();
    let client = view["client"].as_array().unwrap();
    assert_eq!(client.iter().collect::<Vec<_>>(), sent.messages[1..].iter().collect::<Vec<_>>());
    let forwarded = view["messages"].as_array().unwrap();
    assert_eq!(forwarded.last().map(text), went_out.last().map(text));
    let places = view["places"].as_array().unwrap();
    assert_eq!(places.len(), forwarded.len());
    for (place, message) in places.iter().zip(forwarded).filter(|(place, _)| place.is_u64()) {
        assert_eq!(message["role"], client[usize::try_from(place.as_u64().unwrap()).unwrap()]["role"]);
    }
    let early = proxy.get(&format!("{base}/view?client&messages=1")).ok().json();
    assert_eq!((early["client"].as_array().unwrap().len(), early["places"].as_array().unwrap().len()), (1, 1));
    let whole = proxy.get(&format!("{base}/request")).ok().json();
    assert_eq!(whole["messages"], view["client"]);
    let replaced = proxy.get(&format!("{base}/request?replaced")).ok().json();
    for (message, before) in replaced["messages"].as_array().unwrap().iter().zip(client) {
        assert_eq!(text(message).chars().count(), text(before).chars().count(), "it is as long as before");
        assert!(text(message).chars().all(|c| !c.is_alphanumeric() || matches!(c, 'x' | 'X' | '0')), "{message}");
    }
    assert_eq!(proxy.get(&format!("{base}/request?replaced=maybe")).status, 400);
    let told = proxy.get("/windowsill/events?kind=model_usage").ok().json();
    let data = &told["events"][0]["data"];
    assert_eq!(data["messages"], 7);
    let phases: u64 = data["phases"].as_object().unwrap().values().map(|ms| ms.as_u64().unwrap()).sum();
    assert!(phases <= data["milliseconds"].as_u64().unwrap() + 2, "the phases are parts of the whole: {data}");
}

/// What was said in any conversation is found over HTTP, with the conversation's title, and read where it was said.
#[test]
fn what_was_said_anywhere_is_found() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    proxy.chat(&chat().user("Mend the harbor. The vault opens with 4711.")).ok();
    let other = chat().user("Paint the bridge.").assistant("Which color?").user("The vault of heaven is blue.");
    let id = proxy.chat(&other).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let found = proxy.get("/windowsill/search?query=vault").ok().json();
    let hits = found["hits"].as_array().unwrap();
    let mut titles: Vec<&str> = hits.iter().map(|hit| hit["title"].as_str().unwrap()).collect();
    titles.sort_unstable();
    assert_eq!(titles, ["Mend the harbor. The vault opens with 4711.", "Paint the bridge."]);
    let hit = hits.iter().find(|hit| hit["conversation"] == id).unwrap();
    assert_eq!(hit["message"], 2);
    let said = proxy.get(&format!("/windowsill/conversations/{id}/messages/2")).ok().json();
    assert_eq!(said["text"], "The vault of heaven is blue.");
    assert_eq!(proxy.get("/windowsill/search?query=%21").status, 400);
    assert_eq!(proxy.get("/windowsill/search?query=vault&limit=1").ok().json()["hits"].as_array().unwrap().len(), 1);
}

#[test]
fn headers_say_how_full_the_window_is() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "[gauge]\nyellow_at = 0.2\nred_at = 0.5\n");
    let severity = |chat: &Chat| {
        let answer = proxy.chat(chat).ok();
        let pressure: f64 = answer.header("x-windowsill-pressure").unwrap().parse().unwrap();
        (pressure, answer.header("x-windowsill-severity").unwrap().to_owned())
    };
    // What is kept for the reply counts: 1,024 of 4,096.
    let (pressure, word) = severity(&chat().user("Hello."));
    assert!((0.25..0.3).contains(&pressure) && word == "yellow", "{pressure} {word}");
    let (pressure, word) = severity(&chat().user(&prose(1, 6_000)));
    assert!(pressure >= 0.5 && word == "red", "{pressure} {word}");
    // Where nobody knows the window, nothing is said of it.
    let open = Fake::start(Kind::OpenAi, 4096);
    let answer = TestProxy::before(&open).chat(&chat().user("Hello.")).ok();
    assert_eq!((answer.header("x-windowsill-pressure"), answer.header("x-windowsill-severity")), (None, None));
}

#[test]
fn insight_adds_up_and_the_terminal_says_the_same() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let sent = rewritten();
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    proxy.chat(&sent.assistant("All three are read.").user("And now \u{1b}[31mred\u{7}?")).ok();
    let path = format!("/windowsill/conversations/{id}/insight");
    let seen = proxy.eventually(&path, |seen| seen["turns"].as_array().is_some_and(|turns| turns.len() == 2));
    let history: u64 =
        ["user", "assistant", "results", "other"].iter().map(|p| seen["history"][p].as_u64().unwrap()).sum();
    let counted = seen["state"]["regions"]["history"].as_u64().unwrap();
    assert_eq!(history, counted);
    assert_eq!(seen["did"]["compactions"], 1);
    assert!(seen["did"]["freed_tokens"].as_u64() > Some(0) && seen["turns"][0]["rewritten"] == true);
    assert_eq!((&seen["turns"][0]["added"], &seen["turns"][1]["rewritten"]), (&Value::Null, &json!(false)));
    let prompts = |n: usize| seen["turns"][n]["prompt_tokens"].as_i64().unwrap();
    assert_eq!(seen["turns"][1]["added"].as_i64().unwrap(), prompts(1) - prompts(0));
    assert_eq!(seen["models"][0]["model"], MODEL);
    let sizes: Vec<u64> =
        seen["largest"].as_array().unwrap().iter().map(|m| m["view_tokens"].as_u64().unwrap()).collect();
    assert!(!sizes.is_empty() && sizes.len() <= 5 && sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    assert!(seen["rewrites"][0]["told"].as_str().unwrap().starts_with("Put a preview in the place of"), "{seen}");
    assert!(
        seen["tools"]["offered"].as_u64() > Some(0) && seen["tools"]["called"][0]["tokens"].as_u64() > Some(0),
        "{}",
        seen["tools"]
    );
    let out = proxy.cli(&["context", &id]);
    let said = String::from_utf8(out.stdout).unwrap();
    for part in [
        "kept for the reply",
        "Largest messages",
        "Requests (2 in all)",
        "1 rewrite freed",
        "Put a preview in the place of",
        "^",
        "Spent",
    ] {
        assert!(said.contains(part), "no {part:?} in:\n{said}");
    }
    assert!(
        !said.contains('\u{1b}') && !said.contains('\u{7}'),
        "no color but on a terminal, and no text that steers one:\n{said}"
    );
    let listed = String::from_utf8(proxy.cli(&["context"]).stdout).unwrap();
    assert!(
        listed.lines().any(|line| line.starts_with(&id) && line.contains("just now") | line.contains(" ago")),
        "{listed}"
    );
}

#[test]
fn a_report_adds_up_and_holds_no_text() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    proxy.chat(&rewritten()).ok();
    let report = proxy.eventually("/windowsill/report", |report| report["turns"] == 1);
    assert_eq!(
        (&report["rewrites"], &report["conversations"], &report["models"][0]["model"]),
        (&json!(1), &json!(1), &json!(MODEL))
    );
    assert!(report["kept_out_tokens"].as_u64() > Some(0) && !report.to_string().contains("three files"), "{report}");
    let later = proxy.get("/windowsill/report?since=99999999999999").ok().json();
    assert_eq!((&later["turns"], &later["models"]), (&json!(0), &json!([])));
    assert_eq!(proxy.get("/windowsill/report?until=3").status, 400);
    let printed: Value = serde_json::from_slice(&proxy.cli(&["report", "--since", "7d", "--json"]).stdout).unwrap();
    assert_eq!(printed["kept_out_tokens"], report["kept_out_tokens"]);
    let page = String::from_utf8(proxy.cli(&["report"]).stdout).unwrap();
    assert!(page.contains("tokens taken out of prompts") && page.contains(MODEL), "{page}");
    assert_eq!(proxy.cli(&["report", "--since", "soon"]).status.code(), Some(2));
}

#[test]
fn a_fold_has_a_price_before_it_is_made() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut talk = chat().system("You are terse.").user("Let us plan the garden.");
    for n in 0..5 {
        talk = talk.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    let id = proxy.chat(&talk).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}/compact");
    let price = proxy.post(&path, &[], b"{\"dry_run\": true}").ok().json();
    assert!(price["after"].as_u64() < price["before"].as_u64() && price["brief_reads"].as_u64() > Some(0), "{price}");
    assert!(fake.summaries().is_empty(), "nothing was asked of a model");
    let view = proxy.get(&format!("/windowsill/conversations/{id}/view")).ok().json();
    assert_eq!(view["edits"], json!([]), "nothing was changed");
    assert_eq!(proxy.post(&path, &[], b"{\"dryrun\": true}").status, 400);
    proxy.post(&path, &[], b"{\"focus\": \"roses\"}").ok();
    let view = proxy.get(&format!("/windowsill/conversations/{id}/view")).ok().json();
    assert_eq!(view["edits"][0]["rule"], "fold");
    // The brief has one size: in the gauge, in the history, and where it is opened.
    let state = proxy.get(&format!("/windowsill/conversations/{id}")).ok().json()["state"].clone();
    let history = proxy.get(&format!("/windowsill/conversations/{id}/messages")).ok().json();
    let folded = proxy.get(&format!("/windowsill/conversations/{id}/messages/1")).ok().json();
    let brief = &state["regions"]["brief"];
    assert!(brief.as_u64() > Some(0) && history["fold"]["brief_tokens"] == *brief, "{brief} and {}", history["fold"]);
    let edits = folded["edits"].as_array().unwrap().iter();
    assert!(
        edits.clone().any(|e| e["kind"] == "folded")
            && edits.filter(|e| e["kind"] == "folded").all(|e| e["tokens"] == *brief)
    );
}

#[test]
fn a_small_model_names_a_conversation_once_and_helpers_are_told_apart() {
    let (fake, small) = (Fake::start(Kind::LlamaServer, 8192), Fake::start(Kind::LlamaServer, 4096));
    small.set(|s| s.reply = "\"Repairing the garden gate.\"\nIt is about a gate.".to_owned());
    small.set(|s| s.model = "tiny".to_owned());
    let toml = "[context]\ntitle_model = \"up1/tiny\"\n";
    let proxy = TestProxy::with(&[fake.url(), small.url()], toml);
    let sent = chat().user("<system-reminder>\nBe brief.\n</system-reminder>\nThe gate squeaks. What do I do?");
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let titled = |v: &Value| v["title"] == "Repairing the garden gate";
    let row = proxy.eventually(&format!("/windowsill/conversations/{id}"), titled);
    assert_eq!((row["state"]["class"].as_str(), row["helper"].as_bool()), (Some("chat"), Some(false)), "{row}");
    let asked = || small.mains().len();
    assert_eq!(asked(), 1);
    let asks = text(&small.mains()[0].messages()[0]);
    assert!(asks.contains("The gate squeaks") && !asks.contains("Be brief"), "{asks}");
    // Once: the next request asks for none, and keeps the title.
    proxy.chat(&sent.assistant("Oil it.").user("With what?")).ok();
    proxy.eventually(&format!("/windowsill/conversations/{id}"), |v| titled(v) && v["state"]["messages"] == 3);
    let task = "### Task:\nGenerate a title.\n### Guidelines:\n- Short.\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>";
    proxy.chat(&chat().user(task)).ok();
    let all = proxy.eventually("/windowsill/conversations", |v| v["conversations"].as_array().unwrap().len() == 2);
    let helpers = all["conversations"].as_array().unwrap().iter().filter(|row| row["helper"] == true).count();
    assert_eq!((helpers, asked()), (1, 1), "{all}");
    let metrics = proxy.get("/metrics").ok().text();
    for line in
        ["windowsill_pressure_ratio_count{class=\"chat\"} 2", "windowsill_pressure_ratio_count{class=\"helper\"} 1"]
    {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}
