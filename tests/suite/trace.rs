//! The trace as it happens: server-sent events, filters, and `windowsill context --follow`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::Value;

use super::support::*;

fn usual() -> Chat {
    chat().system("You are terse.").user("What is a fence?")
}

/// Opens a stream and reads its beginning.
fn stream(proxy: &TestProxy, path: &str, headers: &[(&str, &str)]) -> Conn {
    let mut conn = Conn::open(proxy.address);
    conn.send("GET", path, headers, b"");
    let head = conn.head().unwrap();
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    conn.until(": following\n\n");
    conn
}

/// The events of a piece of a stream: id, kind, data.
fn events(text: &str) -> Vec<(i64, String, Value)> {
    let block = |block: &str| {
        let field = |name: &str| block.lines().find_map(|l| l.strip_prefix(name)).map(str::to_owned);
        let data = serde_json::from_str(&field("data: ")?).unwrap();
        Some((field("id: ")?.parse().unwrap(), field("event: ")?, data))
    };
    text.split("\n\n").filter_map(block).collect()
}

#[test]
fn events_arrive_as_they_happen_and_go_on_where_a_client_stood() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    proxy.chat(&usual()).ok();
    proxy.eventually("/windowsill/events", |e| e.to_string().contains("model_usage"));
    // Nothing of the past, unless it is asked for.
    let mut live = stream(&proxy, "/windowsill/events", &[("Accept", "text/event-stream")]);
    let id = proxy.chat(&usual().assistant("A barrier.").user("And a lease?")).ok();
    let id = id.header("x-windowsill-conversation").unwrap().to_owned();
    let seen = events(&live.until("event: model_usage"));
    let (first, kind, data) = seen.first().unwrap();
    assert_eq!((kind.as_str(), data["conversation"].as_str()), ("model_usage", Some(id.as_str())));
    assert_eq!(data["id"], *first);
    // Who lost the connection gets what happened meanwhile, and only that.
    let before = (first - 1).to_string();
    let mut again = stream(&proxy, "/windowsill/events?follow", &[("Last-Event-ID", &before)]);
    assert_eq!(events(&again.until("event: model_usage"))[0].0, *first);
    let mut last = stream(&proxy, "/windowsill/events?follow&last=1", &[]);
    assert_eq!(events(&last.until("event: model_usage")).len(), 1);
}

#[test]
fn a_stream_ends_when_the_proxy_stops() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut live = stream(&proxy, "/windowsill/events?follow", &[]);
    proxy.stop();
    assert_eq!(live.piece(), Some(Vec::new()), "it ends as HTTP says, and is not waited for");
}

#[test]
fn events_are_filtered_by_conversation_and_kind() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let one = proxy.chat(&usual()).ok().header("x-windowsill-conversation").unwrap().to_owned();
    proxy.chat(&chat().user("Another matter.")).ok();
    let both = |e: &Value| e.to_string().matches("model_usage").count() == 2;
    proxy.eventually("/windowsill/events", both);
    let list = |path: &str| proxy.get(path).ok().json()["events"].as_array().unwrap().clone();
    let of_one = list(&format!("/windowsill/events?conversation={one}"));
    assert!(!of_one.is_empty() && of_one.iter().all(|e| e["conversation"] == one.as_str()), "{of_one:?}");
    assert_eq!(list("/windowsill/events?kind=model_usage").len(), 2);
    assert_eq!(list("/windowsill/events?kind=window_changed,model_usage").len(), 2);
    assert_eq!(list("/windowsill/events?kind=window_changed").len(), 0);
    assert_eq!(list(&format!("/windowsill/events?kind=model_usage&conversation={}&last=1", &one[..8])).len(), 1);
    for (path, status, code) in [
        ("/windowsill/events?knd=x", 400, "unknown_parameter"),
        ("/windowsill/events?since=soon", 400, "bad_parameter"),
        ("/windowsill/events?follow&last=-1", 400, "bad_parameter"),
        ("/windowsill/events?follow&conversation=nonesuch", 404, "not_found"),
    ] {
        let answer = proxy.get(path);
        assert_eq!((answer.status, answer.error().0.as_str()), (status, code), "{path}");
    }
}

#[test]
fn the_terminal_follows() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let id = proxy.chat(&usual()).ok().header("x-windowsill-conversation").unwrap().to_owned();
    proxy.eventually("/windowsill/events", |e| e.to_string().contains("model_usage"));
    let listen = proxy.address.to_string();
    let follow = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_windowsill"));
        command.current_dir(proxy.dir.path()).env("WINDOWSILL_LISTEN", &listen).args(["context", "--follow"]);
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        line
    };
    let line = follow(&[&id, "--kind", "model_usage"]);
    assert!(line.contains(&id) && line.contains("reply: ") && line.contains(" tokens in"), "{line}");
    let json: Value = serde_json::from_str(&follow(&["--json"])).unwrap();
    assert_eq!(json["kind"], "model_usage");
    // Without a proxy it says so.
    let out = cli(tempfile::tempdir().unwrap().path(), &["context", "-f", "--config", "nonesuch.toml"]);
    assert_eq!(out.status.code(), Some(2));
}
