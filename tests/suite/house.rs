//! One conversation is renamed, starred, written down and deleted, over HTTP and from the terminal.

use serde_json::{Value, json};

use super::support::*;

fn put(proxy: &TestProxy, path: &str, body: &Value) -> Answer {
    request(proxy.address, "PUT", path, &[("content-type", "application/json")], body.to_string().as_bytes())
}

fn delete(proxy: &TestProxy, path: &str) -> Answer {
    request(proxy.address, "DELETE", path, &[("content-type", "application/json")], b"{}")
}

fn said(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_name_of_a_person_holds_and_can_be_taken_back() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let sent = chat().user("Mend the harbor.");
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let base = format!("/windowsill/conversations/{id}");
    let title = || proxy.get(&base).ok().json()["title"].as_str().unwrap().to_owned();
    let named =
        put(&proxy, &format!("{base}/title"), &json!({"title": "  My \u{1b}[31m harbor\nproject "})).ok().json();
    let kept = named["title"].as_str().unwrap().to_owned();
    assert!(kept.starts_with("My") && !kept.contains(['\u{1b}', '\n']), "{kept:?}");
    assert_eq!(title(), kept);
    // The next request has a title of its own to offer.
    proxy.chat(&sent.clone().assistant("Done.").user("Now the bridge.")).ok();
    assert_eq!(title(), kept);
    put(&proxy, &format!("{base}/title"), &json!({})).ok();
    assert_eq!(title(), "Mend the harbor.");
    assert_eq!(said(&proxy.command(&["rename", &id, "Bridges"]).output().unwrap()), format!("{id}: Bridges\n"));
    assert_eq!(title(), "Bridges");
    assert_eq!(put(&proxy, "/windowsill/conversations/cffffffffffff/title", &json!({"title": "x"})).status, 404);
    assert_eq!(put(&proxy, &format!("{base}/title"), &json!({"name": "x"})).status, 400);
}

#[test]
fn a_conversation_is_written_down_and_deleted_and_its_fork_stays() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let first = chat().user("Mend the harbor. The key is 4711.").assistant("It is mended.").user("And the bridge?");
    let id = proxy.chat(&first).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let more = first.clone().assistant("The bridge, too.").user("Thank you.");
    proxy.chat(&more).ok();
    let parted = first.clone().assistant("What bridge?").user("The one over the river.");
    let fork = proxy.chat(&parted).ok().header("x-windowsill-conversation").unwrap().to_owned();
    assert_ne!(fork, id);
    let base = format!("/windowsill/conversations/{id}");
    let page = proxy.get(&format!("{base}/export")).ok();
    assert_eq!(page.header("content-disposition"), Some(&*format!("attachment; filename=\"windowsill-{id}.md\"")));
    assert!(page.text().contains("The key is 4711.") && page.text().contains("Thank you."));
    let lines = proxy.get(&format!("{base}/export?format=jsonl")).ok().text();
    let read: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read[..5], more.messages[..]);
    assert_eq!(read[5]["role"], "assistant", "what it was answered last");
    assert_eq!(proxy.get(&format!("{base}/export?format=pdf")).status, 400);
    assert_eq!(said(&proxy.command(&["export", &id, "--jsonl"]).output().unwrap()), lines);
    put(&proxy, &format!("{base}/star"), &json!({"on": true})).ok();
    assert_eq!(put(&proxy, &format!("{base}/star"), &json!({"off": true})).status, 400);
    let refused = proxy.command(&["delete", &id]).output().unwrap();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("--yes"));
    let gone = delete(&proxy, &base).ok().json();
    assert!(gone["messages"].as_u64() > Some(0) && gone["left"].as_u64() >= Some(3), "{gone}");
    assert!([404, 410].contains(&proxy.get(&base).status));
    let kept = proxy.get(&format!("/windowsill/conversations/{fork}/export")).ok().text();
    assert!(kept.contains("The key is 4711.") && !kept.contains("Thank you."), "{kept}");
    // Who goes on with it begins a conversation of the record again.
    proxy.chat(&more.clone().assistant("You are welcome.").user("One more thing.")).ok();
    assert!(said(&proxy.command(&["delete", &fork, "--yes"]).output().unwrap()).starts_with(&fork));
}

#[test]
fn what_is_under_way_is_not_deleted() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let sent = chat().user("Mend the harbor.");
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let gate = Gate::default();
    let waits = gate.clone();
    fake.script(move |seen| match seen.is_main() {
        true => Play::Wait(waits.clone(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let more = sent.assistant("Done.").user("And now?");
    let mut asked = proxy.begin(&more);
    fake.wait("the request is there", |seen| seen.iter().filter(|s| s.is_main()).count() > 1);
    let base = format!("/windowsill/conversations/{id}");
    assert_eq!(delete(&proxy, &base).error().0, "busy");
    gate.open();
    asked.answer().ok();
    delete(&proxy, &base).ok();
}
