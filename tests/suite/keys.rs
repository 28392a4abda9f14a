//! Several people before one windowsill: nothing that one scope holds is told to another, by any path there is; quotas, sessions of
//! browsers, keys that are replaced while it runs, and the audit log.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};
use windowsill::config::TokenHash;

use super::openapi::document;
use super::support::*;

/// Who has a key: name, scope, whether an admin.
const PEOPLE: [(&str, &str, bool); 5] = [
    ("ann", "ann", false),
    ("bob", "team", false),
    ("cid", "team", false),
    ("dan", "dan", false),
    ("root", "default", true),
];

pub(super) fn token(name: &str) -> String {
    format!("wsk_token-of-{name}")
}

fn table(name: &str, scope: &str, admin: bool, more: &str) -> String {
    let hash = TokenHash::of(&token(name));
    format!("[[key]]\nname = \"{name}\"\nhash = \"{hash}\"\nscope = \"{scope}\"\nadmin = {admin}\n{more}")
}

pub(super) fn tables() -> String {
    let keys: String = PEOPLE.iter().map(|(name, scope, admin)| table(name, scope, *admin, "")).collect();
    format!("[context]\nrules = true\nbackground = false\n{keys}")
}

/// What only the scope of a person holds.
fn secret(scope: &str) -> String {
    format!("{}SECRET41", scope.to_uppercase())
}

fn ask(proxy: &TestProxy, name: &str, method: &str, path: &str, body: &Value, more: &[(&str, &str)]) -> Answer {
    let bearer = format!("Bearer {}", token(name));
    let mut headers = vec![("Authorization", bearer.as_str())];
    if !body.is_null() {
        headers.push(("Content-Type", "application/json"));
    }
    headers.extend_from_slice(more);
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    request(proxy.address, method, path, &headers, &body)
}

fn get(proxy: &TestProxy, name: &str, path: &str) -> Answer {
    ask(proxy, name, "GET", path, &Value::Null, &[])
}

/// What a person has left behind: the ids that lead to it.
struct Left {
    ids: Vec<String>,
    conversation: String,
    item: String,
    response: String,
}

/// Has a person talk, store, keep, pin and rule; every text of it holds the scope's secret.
fn leave(proxy: &TestProxy, fake: &Fake, name: &str, scope: &str) -> Left {
    let secret = secret(scope);
    let post = |path: &str, body: Value| ask(proxy, name, "POST", path, &body, &[]).ok();
    let large = format!("{}\nthe kumquat is {secret}\n{}", prose(3, 9_000), prose(53, 9_000));
    let talk = chat().system("s").user(&format!("The kumquat is {secret}.")).tools().step(1, &large);
    let answer = post("/v1/chat/completions", talk.value());
    let conversation = answer.header("x-windowsill-conversation").unwrap().to_owned();
    let original = script::id_in(&fake.last());
    let steer = |what: &str, body: Value| {
        ask(proxy, name, "POST", &format!("/windowsill/conversations/{conversation}/{what}"), &body, &[]).ok()
    };
    steer("pins", json!({"text": format!("pinned kumquat {secret}")}));
    let path = format!("/windowsill/conversations/{conversation}/title");
    ask(proxy, name, "PUT", &path, &json!({"title": format!("title {secret}")}), &[]).ok();
    post("/windowsill/rules", json!({"conversation": conversation, "text": format!("ruled kumquat {secret}")}));
    let stored = json!({"model": MODEL, "input": format!("stored kumquat {secret}"), "metadata": {"m": secret}});
    let response = post("/v1/responses", stored).json()["id"].as_str().unwrap().to_owned();
    let said = json!([{"type": "message", "role": "user", "content": format!("kept kumquat {secret}")}]);
    let kept = post("/v1/conversations", json!({"items": said, "metadata": {"m": secret}})).json();
    let kept = kept["id"].as_str().unwrap().to_owned();
    let items = get(proxy, name, &format!("/v1/conversations/{kept}/items")).ok().json();
    let item = items["data"][0]["id"].as_str().unwrap().to_owned();
    let ids = vec![conversation.clone(), original, response.clone(), kept];
    Left { ids, conversation, item, response }
}

/// A body with every field that a description names, about what somebody left.
fn body_of(document: &Value, operation: &Value, left: &Left) -> Value {
    let resolve = |value: &Value| match value["$ref"].as_str() {
        Some(to) => document.pointer(to.trim_start_matches('#')).cloned().unwrap(),
        None => value.clone(),
    };
    let schema = resolve(&operation["requestBody"]["content"]["application/json"]["schema"]);
    let known: BTreeMap<&str, Value> = BTreeMap::from([
        ("conversation", json!(left.conversation)),
        ("text", json!("kumquat")),
        ("question", json!("Which kumquat?")),
        ("message", json!(0)),
        ("messages", json!([{"role": "user", "content": "Which kumquat?"}])),
        ("model", json!(MODEL)),
        ("input", json!("Which kumquat?")),
        ("prompt", json!("Which kumquat?")),
        ("previous_response_id", json!(left.response)),
        ("items", json!([{"type": "message", "role": "user", "content": "kumquat"}])),
        ("max_tokens", json!(16)),
        ("turns", json!([1])),
        ("title", json!("kumquat")),
        ("on", json!(true)),
        ("note", json!("kumquat")),
    ]);
    let fields = schema["properties"].as_object().cloned().unwrap_or_default();
    let told = fields.keys().filter_map(|name| Some((name.clone(), known.get(name.as_str())?.clone())));
    let mut body: serde_json::Map<String, Value> = told.collect();
    // A fold names no single message, and one that replays names how many.
    if operation["operationId"] == "again" {
        body.insert("messages".into(), json!(1));
    }
    Value::Object(body)
}

/// The paths of an operation about what somebody left, each `{…}` filled with all that fits.
fn paths_of(document: &Value, path: &str, operation: &Value, left: &Left) -> Vec<String> {
    let mut paths = vec![path.to_owned()];
    if path.contains("{id}") {
        paths = left.ids.iter().map(|id| path.replace("{id}", id)).collect();
    }
    let filled = paths.into_iter().map(|path| {
        // A rule's number is one of the asker's own, too.
        let number = if path.starts_with("/windowsill/rules") { "77" } else { "1" };
        let numbered = path.replace("{index}", "0").replace("{number}", number).replace("{file}", "app.js");
        numbered.replace("{item}", &left.item).replace("{model}", MODEL)
    });
    let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
    let named = parameters.iter().filter_map(|parameter| {
        let parameter = match parameter["$ref"].as_str() {
            Some(to) => document.pointer(to.trim_start_matches('#')).unwrap(),
            None => parameter,
        };
        (parameter["in"] == "query").then(|| parameter["name"].as_str().unwrap().to_owned())
    });
    let values: Vec<String> = named
        .filter_map(|name| match name.as_str() {
            "query" | "text" => Some(format!("{name}=kumquat")),
            "conversation" => Some(format!("conversation={}", left.conversation)),
            "all" => Some("all".to_owned()),
            "limit" => Some("limit=100".to_owned()),
            // It would never end.
            "follow" => Some("follow=false".to_owned()),
            _ => None,
        })
        .collect();
    filled.flat_map(|path| [path.clone(), format!("{path}?{}", values.join("&"))]).collect()
}

/// Every path that is described, asked by everybody about what everybody left. A new path is asked, too, and cannot be forgotten.
#[test]
fn no_path_tells_one_scope_what_another_holds() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], &tables());
    let scopes = [("ann", "ann"), ("bob", "team"), ("dan", "dan"), ("root", "default")];
    let left: Vec<Left> = scopes.iter().map(|(name, scope)| leave(&proxy, &fake, name, scope)).collect();
    let document = document();
    let mut asked = 0;
    for (asker, (by, own)) in scopes.iter().enumerate() {
        for (owner, of) in left.iter().enumerate().filter(|(owner, _)| *owner != asker) {
            let other = secret(scopes[owner].1);
            let seen = fake.total();
            for (path, operations) in document["paths"].as_object().unwrap() {
                for (method, operation) in operations.as_object().unwrap() {
                    // An admin takes models out of memory for everybody, and its session would end here.
                    let takes = [
                        "/windowsill/models/load",
                        "/windowsill/models/unload",
                        "/windowsill/upstreams/{name}/drain",
                        "/windowsill/login",
                    ];
                    if takes.contains(&path.as_str()) {
                        continue;
                    }
                    let body = if matches!(method.as_str(), "get" | "head") {
                        Value::Null
                    } else {
                        body_of(&document, operation, of)
                    };
                    for real in paths_of(&document, path, operation, of) {
                        let answer = ask(&proxy, by, &method.to_uppercase(), &real, &body, &[]);
                        let told = format!("{:?} {}", answer.headers, answer.text());
                        assert!(!told.contains(&other), "{by} of {own}: {method} {real}: {told}");
                        asked += 1;
                    }
                }
            }
            for forwarded in fake.after(seen) {
                let sent = String::from_utf8_lossy(&forwarded.body).into_owned();
                assert!(!sent.contains(&other), "{by} of {own} had the model read {sent}");
            }
        }
    }
    assert!(asked > 3_000, "{asked}");
    // All of it is still there, and its owner has it: what was looked for could have been found.
    for ((name, scope), left) in scopes.iter().zip(&left) {
        let path = |what: &str| format!("/windowsill/conversations/{}{what}", left.conversation);
        for path in [
            path("/messages"),
            path("/pins"),
            path("/export"),
            path(""),
            "/windowsill/rules".to_owned(),
            "/windowsill/search?query=kumquat&limit=200".to_owned(),
            format!("/windowsill/records/{}", left.ids[1]),
            format!("/v1/responses/{}", left.response),
            format!("/v1/responses/{}/input_items", left.response),
            format!("/v1/conversations/{}/items", left.ids[3]),
        ] {
            let answer = get(&proxy, name, &path).ok();
            assert!(answer.text().contains(&secret(scope)), "{name}: {path}: {}", answer.text());
        }
    }
}

#[test]
fn an_agent_reads_its_own_scope_alone() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], &tables());
    let left = leave(&proxy, &fake, "ann", "ann");
    let call = |by: &str, path: &str, method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        ask(&proxy, by, "POST", path, &message, &[]).text()
    };
    let list: Value = serde_json::from_str(&call("dan", "/mcp?all", "tools/list", json!({}))).unwrap();
    let tools: Vec<&str> =
        list["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(tools.len() >= 3, "{tools:?}");
    let mut found = 0;
    for tool in &tools {
        for id in left.ids.iter().map(String::as_str).chain(["kumquat"]) {
            let arguments = [
                json!({"id": id}),
                json!({"query": "kumquat"}),
                json!({"conversation": id, "query": "kumquat"}),
                json!({"conversation": id}),
                json!({"conversation": id, "text": secret("dan")}),
                json!({"conversation": id, "pin": 1}),
            ];
            for arguments in arguments {
                let params = json!({"name": tool, "arguments": &arguments});
                for path in ["/mcp?all".to_owned(), format!("/mcp?conversation={}", left.conversation)] {
                    let told = call("dan", &path, "tools/call", params.clone());
                    assert!(!told.contains(&secret("ann")), "{tool}: {told}");
                    let pins = get(&proxy, "ann", &format!("/windowsill/conversations/{}/pins", left.conversation));
                    assert!(!pins.ok().text().contains(&secret("dan")), "{tool}");
                    if arguments["text"].is_null() {
                        found += usize::from(call("ann", &path, "tools/call", params.clone()).contains(&secret("ann")));
                    }
                }
            }
        }
    }
    assert!(found > 0, "its owner finds it");
}

#[test]
fn a_team_shares_its_conversations_and_an_admin_looks_into_all() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], &tables());
    let left = leave(&proxy, &fake, "bob", "team");
    let path = format!("/windowsill/conversations/{}/messages", left.conversation);
    assert!(get(&proxy, "cid", &path).ok().text().contains(&secret("team")));
    assert_eq!(get(&proxy, "root", &path).status, 404, "an admin's own record is another one");
    let look = |by: &str, scope: &str, path: &str| {
        ask(&proxy, by, "GET", path, &Value::Null, &[("x-windowsill-scope", scope)])
    };
    assert!(look("root", "team", &path).ok().text().contains(&secret("team")));
    assert_eq!(look("root", "nonesuch", &path).error().0, "unknown_scope");
    assert_eq!(look("root", "../data", &path).error().0, "unknown_scope");
    let refused = look("ann", "team", &path);
    assert_eq!((refused.status, refused.error().0.as_str()), (403, "other_scope"));
    let who = get(&proxy, "root", "/windowsill/whoami").ok().json();
    assert_eq!(
        who,
        json!({"key": "root", "scope": "default", "admin": true, "scopes": ["ann", "dan", "default", "team"]})
    );
    // What concerns everybody, or may show what others asked, is an admin's.
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/windowsill/audit"),
        ("POST", "/windowsill/models/unload"),
        ("POST", "/windowsill/upstreams/up0/drain"),
        ("GET", "/slots"),
        ("POST", "/slots/0?action=erase"),
        ("POST", "/api/pull"),
        ("DELETE", "/api/delete"),
        ("GET", "/props"),
    ] {
        let body = if method == "GET" { Value::Null } else { json!({"model": MODEL}) };
        let seen = fake.total();
        let answer = ask(&proxy, "ann", method, path, &body, &[]);
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
        let asked = fake.after(seen).into_iter().filter(|seen| seen.target == path && path != "/props").count();
        assert_eq!(asked, 0, "{method} {path} reached the server");
    }
    assert_eq!(get(&proxy, "root", "/metrics").status, 200);
    assert_eq!(get(&proxy, "root", "/slots").status, 200);
}

#[test]
fn who_has_no_key_is_told_so_in_words_of_its_own_and_no_token_reaches_the_server() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], &tables());
    let hello = chat().user("hi").with("max_tokens", json!(5)).body();
    for wrong in [None, Some("Bearer wsk_nonesuch"), Some("Bearer "), Some("Basic d3Nr")] {
        let headers: Vec<(&str, &str)> = wrong.iter().map(|value| ("Authorization", *value)).collect();
        let asked = |path: &str| proxy.post(path, &headers, &hello);
        let openai = asked("/v1/chat/completions");
        assert_eq!((openai.status, openai.error().0.as_str()), (401, "invalid_api_key"));
        let anthropic = asked("/v1/messages");
        assert_eq!((anthropic.status, &anthropic.json()["error"]["type"]), (401, &json!("authentication_error")));
        let ollama = asked("/api/chat");
        assert_eq!(ollama.status, 401);
        assert!(ollama.json()["error"].is_string(), "{}", ollama.text());
        assert_eq!(asked("/v1/responses").status, 401);
        assert_eq!(request(proxy.address, "GET", "/windowsill/conversations", &headers, b"").status, 401);
    }
    assert!(fake.mains().is_empty(), "nothing was asked of the server");
    let named = token("ann");
    for (name, value) in
        [("Authorization", format!("bearer {named}")), ("x-api-key", named.clone()), ("api-key", named.clone())]
    {
        let more = [(name, value.as_str()), ("x-windowsill-key", "bob"), ("x-goog-api-key", &named)];
        proxy.post("/v1/chat/completions", &more, &hello).ok();
    }
    proxy.post("/v1/embeddings", &[("x-api-key", &named)], b"{\"input\": \"x\"}");
    for seen in fake.all() {
        let all = format!("{:?} {}", seen.headers, String::from_utf8_lossy(&seen.body));
        assert!(!all.contains("wsk_") && !all.contains("x-windowsill-key") && !all.contains("bob"), "{all}");
    }
}

#[test]
fn a_key_takes_no_more_than_its_quota() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let tables =
        table("ann", "ann", false, "tokens_per_minute = 40\n") + &table("bob", "bob", false, "requests_at_once = 1\n");
    let proxy = TestProxy::with(&[fake.url()], &tables);
    let hello = chat().user(&prose(1, 60)).with("max_tokens", json!(9));
    let send = |path: &str| ask(&proxy, "ann", "POST", path, &hello.value(), &[]);
    let until = Instant::now() + PATIENCE;
    // What a reply took is counted behind it.
    let full = loop {
        let answer = send("/v1/chat/completions");
        if answer.status == 429 {
            break answer;
        }
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(Instant::now() < until);
    };
    let (code, message) = full.error();
    assert_eq!(code, "quota_exceeded");
    assert!(message.contains(" of 40 tokens in the last minute"), "{message}");
    let again: u64 = full.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=61).contains(&again));
    assert_eq!(full.header("x-should-retry"), Some("true"));
    assert_eq!(send("/v1/messages").json()["error"]["type"], "rate_limit_error");
    assert!(send("/api/chat").json()["error"].as_str().unwrap().contains("tokens_per_minute"));
    assert_eq!(
        (send("/v1/responses").status, send("/v1/embeddings").status),
        (429, 429),
        "a pass through is no way around"
    );
    assert_eq!(get(&proxy, "ann", "/windowsill/conversations").status, 200, "what asks no model is not counted");
    // One request at once.
    let gate = Gate::default();
    let held = gate.clone();
    fake.script(move |seen| if seen.is_main() { Play::Wait(held.clone(), Box::new(Play::Usual)) } else { Play::Usual });
    let bearer = format!("Bearer {}", token("bob"));
    let before = fake.mains().len();
    let mut first = Conn::open(proxy.address);
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    first.send("POST", "/v1/chat/completions", &headers, &hello.body());
    fake.wait("the first request", |seen| seen.iter().filter(|seen| seen.is_main()).count() > before);
    let second = ask(&proxy, "bob", "POST", "/v1/chat/completions", &hello.value(), &[]);
    assert_eq!(second.status, 429);
    assert!(second.error().1.contains("has 1 requests open, and may have 1"), "{}", second.text());
    gate.open();
    assert_eq!(first.answer().status, 200);
    let until = Instant::now() + PATIENCE;
    while ask(&proxy, "bob", "POST", "/v1/chat/completions", &hello.value(), &[]).status != 200 {
        assert!(Instant::now() < until, "its place is never given back");
    }
}

#[test]
fn a_browser_logs_in_once_and_only_our_own_page_uses_that() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], &tables());
    assert_eq!(
        request(proxy.address, "GET", "/", &[("Accept", "text/html")], b"").status,
        200,
        "the form is for everybody"
    );
    let login = |key: &str| proxy.post("/windowsill/login", &[], json!({"key": key}).to_string().as_bytes());
    assert_eq!(login("wsk_nonesuch").status, 401);
    let begun = login(&token("ann")).ok();
    let cookie = begun.header("set-cookie").unwrap().to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains(&token("ann")),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let host = format!("localhost:{}", proxy.address.port());
    let own = format!("http://{host}");
    let send = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut all = vec![("Host", host.as_str()), ("Cookie", cookie.as_str())];
        all.extend_from_slice(headers);
        request(proxy.address, method, path, &all, b"").status
    };
    let list = "/windowsill/conversations";
    assert_eq!(send("GET", list, &[("Sec-Fetch-Site", "same-origin")]), 200);
    assert_eq!(send("GET", list, &[]), 200);
    let undo = "/windowsill/conversations/c0/undo";
    assert_eq!(send("POST", undo, &[("Origin", &own), ("Sec-Fetch-Site", "same-origin")]), 404);
    assert_eq!(send("POST", undo, &[("Origin", &own)]), 404);
    // Another program's page on this machine is let in at the door; the cookie that its browser sends along is none of its own.
    for headers in [
        &[("Origin", "http://localhost:3000"), ("Sec-Fetch-Site", "same-site")][..],
        &[("Origin", "http://localhost:3000")],
        &[],
    ] {
        assert_eq!(send("POST", undo, headers), 401, "{headers:?}");
    }
    assert_eq!(send("DELETE", "/windowsill/login", &[("Origin", &own)]), 200);
    assert_eq!(send("GET", list, &[]), 401);
}

#[test]
fn keys_are_replaced_and_taken_back_while_it_runs() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], &tables());
    let left = leave(&proxy, &fake, "ann", "ann");
    let file = proxy.dir.path().join("config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut follower = Conn::open(proxy.address);
    let bearer = format!("Bearer {}", token("ann"));
    follower.send("GET", "/windowsill/events?follow", &[("Authorization", &bearer)], b"");
    assert_eq!(follower.head().unwrap().status, 200);
    // What cannot be read changes nothing.
    std::fs::write(&file, text.replace("[[key]]", "[[key")).unwrap();
    let renewed = TokenHash::of("wsk_ann-anew").to_string();
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until - PATIENCE + std::time::Duration::from_secs(3) {
        assert_eq!(get(&proxy, "ann", "/windowsill/conversations").status, 200);
    }
    std::fs::write(&file, text.replace(&TokenHash::of(&token("ann")).to_string(), &renewed)).unwrap();
    while get(&proxy, "ann", "/windowsill/conversations").status != 401 {
        assert!(Instant::now() < until, "the old token stays");
    }
    while follower.piece().is_some_and(|piece| !piece.is_empty()) {}
    let path = format!("/windowsill/conversations/{}/messages", left.conversation);
    let anew = [("Authorization", "Bearer wsk_ann-anew")];
    assert!(request(proxy.address, "GET", &path, &anew, b"").ok().text().contains(&secret("ann")));
    // The conversation goes on under the new token.
    let talk = chat().user("Hello.");
    let first = request(proxy.address, "POST", "/v1/chat/completions", &anew, &talk.body()).ok();
    assert!(first.header("x-windowsill-conversation").is_some());
    let stored = request(proxy.address, "GET", &format!("/v1/responses/{}", left.response), &anew, b"");
    assert_eq!(stored.status, 200, "what the key stored is the key's, whatever its token");
}

#[test]
fn what_is_read_and_changed_is_written_down() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], &tables());
    let left = leave(&proxy, &fake, "bob", "team");
    let path = format!("/windowsill/conversations/{}", left.conversation);
    for _ in 0..3 {
        get(&proxy, "cid", &format!("{path}/messages")).ok();
    }
    ask(&proxy, "root", "POST", &format!("{path}/undo"), &json!({"dry_run": true}), &[("x-windowsill-scope", "team")]);
    get(&proxy, "ann", "/windowsill/search?query=kumquat").ok();
    get(&proxy, "ann", "/slots");
    request(proxy.address, "GET", &path, &[], b"");
    let all = get(&proxy, "root", "/windowsill/audit?last=1000").ok().json();
    let entries = all["entries"].as_array().unwrap();
    let count = |key: &str, path: &str, of: &str, status: u16| {
        let is = |e: &&Value| e["key"] == key && e["path"] == path && e["of"] == of && e["status"] == status;
        entries.iter().filter(is).count()
    };
    assert_eq!(count("cid", "/windowsill/conversations/{id}/messages", &left.conversation, 200), 1, "{all}");
    assert_eq!(count("bob", "/windowsill/conversations/{id}/pins", &left.conversation, 200), 1, "{all}");
    let looked = |e: &&Value| e["key"] == "root" && e["scope"] == "team" && e["method"] == "POST";
    assert_eq!(entries.iter().filter(looked).count(), 1, "{all}");
    assert!(entries.iter().any(|e| e["key"] == "ann" && e["path"] == "/slots" && e["status"] == 403), "{all}");
    assert!(entries.iter().any(|e| e["key"].is_null() && e["status"] == 401), "{all}");
    assert!(
        !all.to_string().contains("kumquat") && !all.to_string().contains(&secret("team")),
        "no text of anybody: {all}"
    );
    let of_cid = get(&proxy, "root", "/windowsill/audit?key=cid").ok().json();
    assert_eq!(of_cid["entries"].as_array().unwrap().len(), 1);
    let printed = proxy.cli(&["audit", "--last", "1000"]);
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("cid in team") && printed.contains(&left.conversation), "{printed}");
}

#[test]
fn nobody_writes_lines_of_their_own_into_the_log() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], &tables());
    for n in 0..20 {
        request(proxy.address, "GET", &format!("/nokey/{n}"), &[], b"");
        request(proxy.address, &format!("M{n}"), "/windowsill/conversations", &[], b"");
        request(proxy.address, "GET", &format!("/windowsill/conversations/x{n}?conversation=y{n}"), &[], b"");
    }
    let forged = "/windowsill/conversations/x%0a2026-11-28%2005:00:52Z%20root%20200";
    get(&proxy, "ann", forged);
    let all = get(&proxy, "root", "/windowsill/audit?last=1000").ok().json();
    let nameless = all["entries"].as_array().unwrap().iter().filter(|e| e["key"].is_null()).count();
    assert!((1..=4).contains(&nameless), "{all}");
    let printed = String::from_utf8(proxy.cli(&["audit"]).stdout).unwrap();
    assert_eq!(printed.lines().filter(|line| line.starts_with("2026-11-28 05:00:52Z root")).count(), 0, "{printed}");
    assert!(printed.contains("05:00:52Z root 200"), "{printed}");
    // Who goes away before the answer is there has read it nonetheless.
    let gate = Gate::default();
    let held = gate.clone();
    let left = leave(&proxy, &fake, "ann", "ann");
    let asks = |seen: &Seen| String::from_utf8_lossy(&seen.body).contains("Who painted it?");
    fake.script(move |seen| if asks(seen) { Play::Wait(held.clone(), Box::new(Play::Usual)) } else { Play::Usual });
    let bearer = format!("Bearer {}", token("ann"));
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let mut gone = Conn::open(proxy.address);
    let path = format!("/windowsill/records/{}:0/ask", left.conversation);
    gone.send("POST", &path, &headers, b"{\"question\": \"Who painted it?\"}");
    fake.wait("the question", |seen| seen.iter().any(asks));
    drop(gone);
    let until = Instant::now() + PATIENCE;
    let told = || get(&proxy, "root", "/windowsill/audit?last=1000").ok().text().contains("/ask");
    while !told() {
        assert!(Instant::now() < until, "the question is not in the log");
    }
    gate.open();
}

#[test]
fn work_in_the_background_holds_its_place_and_no_key_unloads_a_model_for_all() {
    let fake = Fake::start(Kind::Ollama, 4096);
    let tables = table("ann", "ann", false, "requests_at_once = 1\n");
    let proxy = TestProxy::with(&[fake.url()], &tables);
    let gate = Gate::default();
    let held = gate.clone();
    fake.script(move |seen| if seen.is_main() { Play::Wait(held.clone(), Box::new(Play::Usual)) } else { Play::Usual });
    let background = json!({"model": MODEL, "input": "Hello.", "background": true, "store": true});
    let send = |path: &str, body: &Value| ask(&proxy, "ann", "POST", path, body, &[]);
    send("/v1/responses", &background).ok();
    assert_eq!(send("/v1/responses", &background).status, 429);
    gate.open();
    let until = Instant::now() + PATIENCE;
    while send("/v1/responses", &background).status == 429 {
        assert!(Instant::now() < until, "its place is never given back");
    }
    fake.script(|_| Play::Usual);
    let hello =
        json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi."}], "stream": false, "keep_alive": 0});
    let until = Instant::now() + PATIENCE;
    while send("/api/chat", &hello).status != 200 {
        assert!(Instant::now() < until, "it stays full");
    }
    assert!(fake.mains().iter().all(|seen| seen.json()["keep_alive"] != json!(0)));
    let before = fake.count();
    for path in ["/api/generate", "/api/chat", "/api/embed"] {
        let answer = send(path, &json!({"model": MODEL, "keep_alive": 0}));
        assert!(matches!(answer.status, 403 | 429), "{path}: {} {}", answer.status, answer.text());
    }
    assert!(fake.since(before).iter().all(|seen| seen.json()["keep_alive"] != json!(0)), "nothing was unloaded");
}

#[test]
fn a_new_key_is_printed_once_with_its_lines() {
    let dir = tempfile::tempdir().unwrap();
    let made = cli(dir.path(), &["key", "new", "ann", "--scope", "team"]);
    assert!(made.status.success(), "{made:?}");
    let printed = String::from_utf8(made.stdout).unwrap();
    let token = printed.split_whitespace().find(|word| word.starts_with("wsk_")).unwrap();
    assert!(printed.contains(&TokenHash::of(token).to_string()), "{printed}");
    let lines = &printed[printed.find("[[key]]").unwrap()..];
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], lines);
    let bearer = format!("Bearer {token}");
    let who = request(proxy.address, "GET", "/windowsill/whoami", &[("Authorization", &bearer)], b"").ok().json();
    assert_eq!((&who["key"], &who["scope"]), (&json!("ann"), &json!("team")));
    for wrong in ["Ann", "../x", ""] {
        assert!(!cli(dir.path(), &["key", "new", wrong]).status.success(), "{wrong}");
    }
}
