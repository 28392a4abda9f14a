//! `windowsill mcp`, driven as an agent's client drives it: JSON-RPC by lines over standard input and output.

mod changes;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::support::*;

/// A client of the server, from `initialize` on.
struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    sent: u64,
}

impl Client {
    fn spawn(dir: &Path, args: &[&str]) -> Client {
        let mut child = Command::new(env!("CARGO_BIN_EXE_windowsill"))
            .args(["mcp", "--data-dir", dir.join("data").to_str().unwrap()])
            .args(args)
            .current_dir(dir)
            .env_clear()
            .env("HOME", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Client { child, stdin, stdout, sent: 0 }
    }

    fn start(dir: &Path, args: &[&str]) -> Client {
        let mut client = Client::spawn(dir, args);
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let hello = client.ask("initialize", &params);
        assert_eq!(hello["result"]["protocolVersion"], "2025-06-18", "{hello}");
        assert_eq!(hello["result"]["serverInfo"]["name"], "windowsill");
        assert!(hello["result"]["capabilities"]["tools"].is_object(), "{hello}");
        client.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
        client
    }

    fn write(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").unwrap();
        stdin.flush().unwrap();
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "it ended before it answered {method}");
            let message: Value =
                serde_json::from_str(&line).unwrap_or_else(|e| panic!("not the protocol: {line}: {e}"));
            assert_eq!(message["jsonrpc"], "2.0", "{message}");
            if message["id"] == id {
                return message;
            }
        }
    }

    /// A tool's answer: whether it is an error, and its text.
    fn call(&mut self, tool: &str, arguments: Value) -> (bool, String) {
        let answer = self.ask("tools/call", &json!({"name": tool, "arguments": arguments}));
        let result = &answer["result"];
        let content = result["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!((content.len(), &content[0]["type"]), (1, &json!("text")), "{answer}");
        (result["isError"] == true, content[0]["text"].as_str().unwrap().to_owned())
    }

    #[track_caller]
    fn well(&mut self, tool: &str, arguments: Value) -> String {
        let (failed, text) = self.call(tool, arguments);
        assert!(!failed, "{text}");
        text
    }

    #[track_caller]
    fn badly(&mut self, tool: &str, arguments: Value, says: &str) {
        let (failed, text) = self.call(tool, arguments.clone());
        assert!(failed && text.contains(says), "{tool} {arguments}: {text}");
    }

    /// Ends standard input; the exit code, and what was still written to stdout and to stderr.
    fn end(mut self) -> (Option<i32>, String, String) {
        drop(self.stdin.take());
        let (mut rest, mut errors) = (String::new(), String::new());
        self.stdout.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code(), rest, errors)
    }
}

const NEEDLE: &str = "the vault opens at quarter past nine";

fn told(seed: u64, secret: &str) -> Chat {
    let long = format!("{}\n{secret}\n{}", prose(seed, 9_000), prose(seed + 50, 9_000));
    chat().system("s").user(&format!("Read number {seed}.")).tools().step(1, &long)
}

#[test]
fn an_agent_reads_searches_and_looks_at_the_window() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[fake.url()], "");
    let chat = |sent: &Chat| {
        let answer = request(served.address, "POST", "/v1/chat/completions", &[], &sent.body()).ok();
        let record = crate::record::ids(&fake.last().body).into_iter().next().unwrap();
        (answer.header("x-windowsill-conversation").unwrap().to_owned(), record)
    };
    let own = told(3, NEEDLE);
    let (id, record) = chat(&own);
    let (other, foreign) = chat(&told(4, "the Secretive vault opens never"));
    // It finds the proxy by its config: the address is the one that was given.
    let config = std::fs::read_to_string(dir.path().join("config.toml")).unwrap();
    std::fs::write(dir.path().join("config.toml"), config.replace("127.0.0.1:0", &served.address.to_string())).unwrap();

    let mut client = Client::start(dir.path(), &[]);
    let tools = client.ask("tools/list", &json!({}))["result"]["tools"].clone();
    let names: Vec<&str> = tools.as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["recall", "search", "ask", "context", "window", "pins", "build", "pin", "unpin", "done"]);
    for tool in tools.as_array().unwrap() {
        let changes = ["pin", "unpin", "done"].contains(&tool["name"].as_str().unwrap());
        assert_eq!(tool["annotations"]["readOnlyHint"], !changes, "{tool}");
        assert_eq!(tool["annotations"]["destructiveHint"], tool["name"] == "unpin", "{tool}");
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert!(!tool["description"].as_str().unwrap().is_empty());
    }

    // A text is read to its end, page by page, and is what the client sent.
    let (mut read, mut offset, mut pages) = (Vec::new(), 1, 0);
    loop {
        let page = client.well("recall", json!({"id": record, "offset": offset, "limit": 40}));
        let mut lines: Vec<&str> = page.lines().collect();
        let head = lines.remove(0);
        assert!(head.starts_with(&format!("[{record}: ")) && head.contains(&format!("lines {offset}-")), "{head}");
        let more =
            lines.last().and_then(|l| l.rsplit_once("offset=")).and_then(|(_, n)| n.trim_end_matches(']').parse().ok());
        if more.is_some() {
            lines.pop();
        }
        read.extend(lines.into_iter().map(str::to_owned));
        pages += 1;
        match more {
            Some(next) => offset = next,
            None => break,
        }
    }
    let original = text(own.messages.last().unwrap());
    assert_eq!(read, original.lines().collect::<Vec<_>>(), "in {pages} pages");
    assert!(
        client.well("recall", json!({"id": format!("windowsill recall {record}"), "offset": "-1"})).contains("lines")
    );
    assert!(client.well("recall", json!({"id": format!("{id}:0")})).contains("Read number 3."));
    assert!(client.well("recall", json!({"id": "0", "conversation": id})).contains("Read number 3."));
    assert!(client.well("recall", json!({"id": id})).contains("## 2 · tool"));

    // A search stays in the conversation that is named, by itself or by a text of it.
    for named in [&id, &record] {
        let found = client.well("search", json!({"query": "vault opens", "conversation": named}));
        assert!(found.contains(&record) && found.contains("quarter past nine"), "{found}");
        assert!(!found.contains("Secretive") && !found.contains(&foreign) && !found.contains(&other), "{found}");
    }
    client.badly("search", json!({"query": "Secretive", "conversation": id}), "nothing matches");
    client.badly("search", json!({"query": "vault"}), "give `conversation`");
    client.badly("search", json!({"query": "  ", "conversation": id}), "give `query`");
    client.badly("search", json!({"query": "::", "conversation": id}), "no word to search for");
    client.badly("search", json!({"query": "vault", "conversation": &id[..8]}), "give the whole id");
    client.badly("search", json!({"query": "vault", "conversation": "nonesuch"}), "no conversation");
    client.badly("recall", json!({"id": foreign, "conversation": id}), "not of this conversation");
    client.badly("recall", json!({"id": format!("{other}:0"), "conversation": id}), "not of this conversation");
    client.badly("recall", json!({"id": "r000000000000"}), "no record");
    client.badly("recall", json!({"id": "../../etc/passwd"}), "no record");
    client.badly("recall", json!({"id": "0"}), "give `conversation`");
    client.badly("recall", json!({"id": &other[..8]}), "no record");
    client.badly("recall", json!({"id": format!("{}:0", &other[..8])}), "no record");
    client.badly("recall", json!({}), "give `id`");
    client.badly("recall", json!({"id": record, "offset": 1_000_000}), "behind its end");
    client.badly("recall", json!({"id": record, "offset": "x"}), "whole number");
    client.badly("recall", json!({"id": {"a": 1}}), "must be a short text");
    client.badly("recall", json!({"id": record, "path": "/etc/passwd"}), "takes no `path`");

    // The window as it is, from the running proxy; the context, from the record.
    let window: Value = serde_json::from_str(&client.well("window", json!({"model": MODEL}))).unwrap();
    assert_eq!((&window["models"][0]["model"], &window["models"][0]["window"]), (&json!(MODEL), &json!(4096)));
    client.badly("window", json!({"model": "nonesuch"}), "no model `nonesuch`");
    let context: Value = serde_json::from_str(&client.well("context", json!({"conversation": record}))).unwrap();
    assert_eq!((&context["id"], &context["state"]["window"]), (&json!(id), &json!(4096)));
    client.badly("context", json!({}), "give `conversation`");

    let unknown = client.ask("tools/call", &json!({"name": "rm", "arguments": {}}));
    assert!(
        unknown["error"]["message"]
            .as_str()
            .unwrap()
            .contains("recall, search, ask, context, window, pins, build, pin, unpin, done"),
        "{unknown}"
    );
    assert_eq!(client.ask("nonesuch/method", &json!({}))["error"]["code"], -32601);
    assert!(client.ask("ping", &json!({}))["result"].is_object());

    // Without the proxy: what the record last saw.
    served.kill();
    let window = client.well("window", json!({}));
    assert!(window.contains("no windowsill answers at") && window.contains("4096"), "{window}");
    assert!(client.well("recall", json!({"id": record})).contains(&record));
    assert_eq!(client.end(), (Some(0), String::new(), String::new()));

    // What was taken by retention is said so.
    crate::record::aged(dir.path(), 8);
    let served = Served::start(dir.path(), &[fake.url()], "retention_days = 7\n");
    let until = std::time::Instant::now() + PATIENCE;
    while !request(served.address, "GET", "/windowsill/events", &[], b"").text().contains("record_pruned") {
        assert!(std::time::Instant::now() < until, "never pruned");
    }
    let mut client = Client::start(dir.path(), &[]);
    for arguments in [json!({"id": record}), json!({"id": format!("{id}:0")}), json!({"id": id})] {
        client.badly("recall", arguments, "by retention_days = 7");
    }
    client.badly("search", json!({"query": "vault", "conversation": record}), "by retention_days = 7");
    client.badly("context", json!({"conversation": id}), "by retention_days = 7");
}

#[test]
fn who_sets_it_up_says_what_is_open() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let name = |a: Answer| a.header("x-windowsill-conversation").unwrap().to_owned();
    let one = name(proxy.chat(&told(3, NEEDLE)).ok());
    let two = name(proxy.chat(&told(4, "the Secretive vault opens never")).ok());
    let foreign = crate::record::ids(&fake.last().body).into_iter().next().unwrap();
    let dir = proxy.dir.path();

    let mut client = Client::start(dir, &["--conversation", &one[..8]]);
    let found = client.well("search", json!({"query": "vault opens"}));
    assert!(found.contains("quarter past nine") && !found.contains("Secretive"), "{found}");
    assert!(client.well("context", json!({})).contains(&one));
    client.badly("context", json!({"conversation": two}), "only one conversation is open");
    client.badly("recall", json!({"id": foreign}), "not of this conversation");
    client.badly("recall", json!({"id": two}), "not of this conversation");
    client.badly("recall", json!({"id": format!("{two}:1")}), "not of this conversation");
    let listed = client.ask("tools/list", &json!({}))["result"].to_string();
    assert!(!listed.contains("\"conversation\":{"), "{listed}");

    let mut client = Client::start(dir, &["--all-conversations"]);
    let found = client.well("search", json!({"query": "vault opens"}));
    assert!(found.contains("quarter past nine") && found.contains("Secretive") && found.contains(&two), "{found}");
    assert!(client.well("context", json!({})).contains(&two));
    assert!(!client.well("search", json!({"query": "vault opens", "conversation": &one[..8]})).contains("Secretive"));
    let out = proxy.cli(&["mcp", "--all-conversations", "--conversation", "x"]);
    assert_eq!(out.status.code(), Some(2));
}

#[test]
fn it_ends_with_its_input_and_says_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let silent = Client::spawn(dir.path(), &[]);
    assert_eq!(silent.end(), (Some(0), String::new(), String::new()));

    // There is no record yet: a tool's error, and not the end of the server. One comes while it runs.
    let mut client = Client::start(dir.path(), &[]);
    client.badly("recall", json!({"id": "r000000000000"}), "no record at");
    client.badly("window", json!({}), "no windowsill answers");
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let served = Served::start(dir.path(), &[fake.url()], "");
    request(served.address, "POST", "/v1/chat/completions", &[], &told(3, NEEDLE).body()).ok();
    let record = crate::record::ids(&fake.last().body).into_iter().next().unwrap();
    assert!(client.well("recall", json!({"id": record})).contains("lines 1-"));
    // Noise on the line is no end either.
    client.write("this is not JSON");
    client.write("");
    client.write("{\"jsonrpc\": \"2.0\"}");
    assert!(client.well("recall", json!({"id": record})).contains("lines 1-"));
    let (code, rest, _) = client.end();
    // Requests are answered as they are done: that to the last noise may come behind the other answer, and nothing else does.
    let noise = |line: &str| serde_json::from_str::<Value>(line).unwrap()["error"]["code"] == -32600;
    assert!(code == Some(0) && rest.lines().count() <= 1 && rest.lines().all(noise), "{code:?} {rest}");
}

/// A message over HTTP.
fn post(proxy: &TestProxy, path: &str, headers: &[(&str, &str)], message: &Value) -> Answer {
    let headers = [&[("Content-Type", "application/json")], headers].concat();
    proxy.post(path, &headers, message.to_string().as_bytes())
}

fn message(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

/// The headers and the message of a request that declares its version itself.
fn modern(method: &'static str, mut params: Value) -> (Vec<(&'static str, String)>, Value) {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    params["_meta"]
        .as_object_mut()
        .map(|more| more.extend(meta.as_object().unwrap().clone()))
        .unwrap_or_else(|| params["_meta"] = meta);
    let name = ["name", "uri"].iter().find_map(|key| params[*key].as_str()).unwrap_or_default().to_owned();
    let headers =
        [("MCP-Protocol-Version", "2026-07-28".to_owned()), ("Mcp-Method", method.to_owned()), ("Mcp-Name", name)];
    (headers.into_iter().filter(|(_, value)| !value.is_empty()).collect(), message(method, params))
}

fn ask_modern(proxy: &TestProxy, path: &str, method: &'static str, params: Value) -> Answer {
    let (headers, message) = modern(method, params);
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    post(proxy, path, &headers, &message)
}

#[test]
fn the_same_is_answered_over_http_in_every_revision() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let id = proxy.chat(&told(3, NEEDLE)).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let record = crate::record::ids(&fake.last().body).into_iter().next().unwrap();

    // Those that begin with `initialize`: nothing is kept of it.
    for version in ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "1999-01-01"] {
        let hello = post(&proxy, "/mcp", &[], &message("initialize", json!({"protocolVersion": version}))).ok();
        let known = if version == "1999-01-01" { "2025-11-25" } else { version };
        assert_eq!(hello.json()["result"]["protocolVersion"], known);
        assert!(hello.header("mcp-session-id").is_none());
    }
    let heard = post(&proxy, "/mcp", &[], &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    assert_eq!((heard.status, heard.body.len()), (202, 0));
    let called = post(
        &proxy,
        "/mcp",
        &[("MCP-Protocol-Version", "2025-06-18")],
        &message("tools/call", json!({"name": "recall", "arguments": {"id": record}})),
    );
    let called = called.ok().json();
    assert!(called["result"]["content"][0]["text"].as_str().unwrap().contains("lines 1-"), "{called}");
    assert!(called["result"].get("resultType").is_none());

    // The one whose requests declare all themselves.
    let found = ask_modern(&proxy, "/mcp", "server/discover", json!({})).ok().json()["result"].clone();
    assert!(found["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")), "{found}");
    assert_eq!(
        (&found["resultType"], &found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"]),
        (&json!("complete"), &json!("windowsill"))
    );
    let tools = ask_modern(&proxy, "/mcp", "tools/list", json!({})).ok().json()["result"].clone();
    assert_eq!(
        (tools["tools"].as_array().unwrap().len(), &tools["ttlMs"], &tools["cacheScope"]),
        (10, &json!(0), &json!("private"))
    );
    let window =
        ask_modern(&proxy, "/mcp", "tools/call", json!({"name": "window", "arguments": {}})).ok().json()["result"]
            .clone();
    assert_eq!(window["structuredContent"]["models"][0]["window"], 4096, "{window}");
    let context = json!({"name": "context", "arguments": {"conversation": id}});
    let context = ask_modern(&proxy, "/mcp", "tools/call", context).ok().json()["result"].clone();
    assert_eq!((&context["structuredContent"]["id"], &context["isError"]), (&json!(id), &json!(false)));
    let gone =
        ask_modern(&proxy, "/mcp", "tools/call", json!({"name": "recall", "arguments": {"id": "r000000000000"}})).ok();
    assert_eq!(gone.json()["result"]["isError"], true);

    // What cannot be taken.
    for (status, code, answer) in [
        (404, -32601, ask_modern(&proxy, "/mcp", "prompts/list", json!({}))),
        (404, -32601, ask_modern(&proxy, "/mcp", "ping", json!({}))),
        (400, -32602, ask_modern(&proxy, "/mcp", "tools/call", json!({"name": "rm"}))),
        (400, -32020, post(&proxy, "/mcp", &[], &modern("tools/list", json!({})).1)),
        (
            400,
            -32022,
            post(&proxy, "/mcp", &[("MCP-Protocol-Version", "1900-01-01")], &message("tools/list", json!({}))),
        ),
        (200, -32601, post(&proxy, "/mcp", &[], &message("nonesuch", json!({})))),
        (400, -32600, post(&proxy, "/mcp", &[], &json!([message("ping", json!({}))]))),
        (400, -32700, proxy.post("/mcp", &[("Content-Type", "application/json")], b"{half")),
    ] {
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (status, &json!(code)), "{}", answer.text());
    }
    assert_eq!(request(proxy.address, "POST", "/mcp", &[("Content-Type", "text/plain")], b"{}").status, 415);
    for method in ["GET", "DELETE"] {
        let none = request(proxy.address, method, "/mcp", &[], b"");
        assert_eq!((none.status, none.header("allow")), (405, Some("POST")));
    }
    let foreign = [("Origin", "https://evil.example")];
    assert_eq!(post(&proxy, "/mcp", &foreign, &message("ping", json!({}))).status, 403);
}

#[test]
fn originals_are_resources_and_only_what_is_open_is_listed() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let sent = told(3, NEEDLE);
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let record = crate::record::ids(&fake.last().body).into_iter().next().unwrap();
    let other =
        proxy.chat(&told(4, "the Secretive vault")).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let foreign = crate::record::ids(&fake.last().body).into_iter().next().unwrap();
    let list = |path: &str| -> Vec<String> {
        let all = ask_modern(&proxy, path, "resources/list", json!({})).ok().json()["result"]["resources"].clone();
        all.as_array().unwrap().iter().map(|r| r["uri"].as_str().unwrap().to_owned()).collect()
    };
    let one = format!("/mcp?conversation={id}");
    assert_eq!((list("/mcp").len(), list("/mcp?all").len()), (0, 2));
    assert_eq!(list(&one), [format!("windowsill://conversation/{id}")]);
    let read = |path: &str, uri: &str| ask_modern(&proxy, path, "resources/read", json!({"uri": uri}));
    let text = |path: &str, uri: &str| {
        read(path, uri).ok().json()["result"]["contents"][0]["text"].as_str().unwrap().to_owned()
    };
    let original = text_of(&sent);
    assert_eq!(text("/mcp", &format!("windowsill://record/{record}")), original);
    assert!(text(&one, &format!("windowsill://conversation/{id}/message/0")).contains("Read number 3."));
    assert!(text(&one, &format!("windowsill://conversation/{id}")).contains("Read number 3."));
    for (path, uri) in [
        ("/mcp", "windowsill://record/r000000000000".to_owned()),
        ("/mcp", "file:///etc/passwd".to_owned()),
        (one.as_str(), format!("windowsill://record/{foreign}")),
        (one.as_str(), format!("windowsill://conversation/{other}")),
    ] {
        let none = read(path, &uri);
        assert_eq!((none.status, &none.json()["error"]["code"]), (400, &json!(-32602)), "{uri}: {}", none.text());
    }
    let earlier =
        post(&proxy, "/mcp", &[], &message("resources/read", json!({"uri": "windowsill://record/r000000000000"})));
    assert_eq!(earlier.ok().json()["error"]["code"], -32002);
}

/// The text of the last message.
fn text_of(sent: &Chat) -> String {
    text(sent.messages.last().unwrap())
}

#[test]
fn a_call_that_takes_long_tells_its_progress_and_can_be_canceled() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[fake.url()], "");
    request(served.address, "POST", "/v1/chat/completions", &[], &told(3, NEEDLE).body()).ok();
    let record = crate::record::ids(&fake.last().body).into_iter().next().unwrap();
    let config = std::fs::read_to_string(dir.path().join("config.toml")).unwrap();
    std::fs::write(dir.path().join("config.toml"), config.replace("127.0.0.1:0", &served.address.to_string())).unwrap();
    // A model that thinks for ever about the question.
    let gate = Gate::default();
    let held = gate.clone();
    fake.script(move |seen| match seen.path() == "/v1/chat/completions" {
        true => Play::Wait(held.clone(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let ask = json!({"name": "ask", "arguments": {"id": record, "question": "When does it open?"}, "_meta": {"progressToken": "p1"}});
    let mut client = Client::start(dir.path(), &[]);
    client.write(&json!({"jsonrpc": "2.0", "id": "long", "method": "tools/call", "params": ask}).to_string());
    let mut line = String::new();
    client.stdout.read_line(&mut line).unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&told["method"], &told["params"]["progressToken"]), (&json!("notifications/progress"), &json!("p1")));
    // Others are answered meanwhile.
    assert!(client.ask("ping", &json!({}))["result"].is_object());
    client.write(
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "long"}}).to_string(),
    );
    let (code, rest, _) = client.end();
    assert_eq!(code, Some(0));
    assert!(!rest.contains("\"id\":\"long\""), "no answer to what was canceled: {rest}");

    // Over HTTP, progress stands before the answer in a stream.
    gate.open();
    let call = json!({"name": "ask", "arguments": {"id": record, "question": "When?"}, "_meta": {"progressToken": 3}});
    let message = message("tools/call", call);
    let answer = request(
        served.address,
        "POST",
        "/mcp",
        &[("Content-Type", "application/json")],
        message.to_string().as_bytes(),
    )
    .ok();
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let events: Vec<Value> =
        answer.text().lines().filter_map(|l| serde_json::from_str(l.strip_prefix("data: ")?).ok()).collect();
    assert!(events.len() >= 2 && events[0]["params"]["progressToken"] == 3, "{events:?}");
    assert_eq!(
        (&events.last().unwrap()["id"], events.last().unwrap()["result"].is_object()),
        (&json!(7), true),
        "{events:?}"
    );
}
