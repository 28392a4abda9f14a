//! `docs/openapi.json` says what the program does: its paths are the routes, and what is answered is what it describes.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use windowsill::server::ROUTES;

use super::support::script::{evicted, id_in};
use super::support::*;

pub(super) fn document() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// What a `$ref` leads to.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(to) => document.pointer(to.trim_start_matches('#')).unwrap_or_else(|| panic!("{to} leads nowhere")),
        None => value,
    }
}

/// The operation of a route.
pub(super) fn operation<'a>(document: &'a Value, method: &str, path: &str) -> &'a Value {
    &document["paths"][path.replace("*}", "}")][method.to_lowercase()]
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let document = document();
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, of)| of.as_object().unwrap().keys().map(|method| (path.clone(), method.to_uppercase())))
        .collect();
    let routed: BTreeSet<(String, String)> =
        ROUTES.iter().map(|route| (route.path.replace("*}", "}"), route.method.to_owned())).collect();
    assert_eq!(described, routed);
    let mut names = BTreeSet::new();
    for route in ROUTES {
        let of = operation(&document, route.method, route.path);
        let at = format!("{} {}", route.method, route.path);
        assert!(names.insert(of["operationId"].as_str().unwrap_or_else(|| panic!("{at}: no name")).to_owned()), "{at}");
        assert_eq!(of["security"] == json!([]), route.open, "{at}: whether it needs a key");
        let parameters = of["parameters"].as_array().cloned().unwrap_or_default();
        let of_kind = |kind: &str| -> BTreeSet<String> {
            let all = parameters.iter().map(|p| resolved(&document, p)).filter(|p| p["in"] == kind);
            all.map(|p| p["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(of_kind("query"), route.query.iter().map(|&name| name.to_owned()).collect(), "{at}: its query");
        let in_path = route.path.split('/').filter(|part| part.starts_with('{'));
        assert_eq!(of_kind("path"), in_path.map(|p| p.trim_matches(['{', '}', '*']).to_owned()).collect(), "{at}");
    }
}

/// What is wrong with a value by a schema: types, required and unknown fields, as deep as they are described.
fn wrong(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let schema = resolved(document, schema);
    if let Some(any) = schema["anyOf"].as_array() {
        let each: Vec<Vec<String>> = any.iter().map(|one| wrong(document, one, value, at)).collect();
        return if each.iter().any(Vec::is_empty) { Vec::new() } else { each.concat() };
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        Value::String(one) => vec![one],
        _ => Vec::new(),
    };
    let is = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => value.is_null(),
    };
    let mut out = Vec::new();
    if !types.is_empty() && !types.iter().any(is) {
        out.push(format!("{at}: {value} is no {types:?}"));
    }
    if let Some(fields) = value.as_object() {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        out.extend(required.filter(|name| !fields.contains_key(*name)).map(|name| format!("{at}.{name} is missing")));
        for (name, field) in fields {
            match schema["properties"].get(name) {
                Some(of) => out.extend(wrong(document, of, field, &format!("{at}.{name}"))),
                None if schema["additionalProperties"] == json!(false) => {
                    out.push(format!("{at}.{name} is not described"))
                }
                None => {}
            }
        }
    }
    if let (Some(items), Some(of)) = (value.as_array(), schema.get("items")) {
        out.extend(items.iter().enumerate().flat_map(|(i, item)| wrong(document, of, item, &format!("{at}[{i}]"))));
    }
    out
}

/// Holds an answer against its description; returns its body.
pub(super) fn held(document: &Value, method: &str, path: &str, answer: &Answer) -> Value {
    let of = operation(document, method, path);
    let at = format!("{method} {path} {}", answer.status);
    let described = resolved(document, &of["responses"][answer.status.to_string()]);
    assert!(described.is_object(), "{at} is not described: {}", answer.text());
    let kind = answer.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default().to_owned();
    if method == "HEAD" {
        return Value::Null;
    }
    let content = described["content"].as_object().unwrap_or_else(|| panic!("{at}: no content is described"));
    let schema = content.get(&kind).unwrap_or_else(|| panic!("{at}: {kind} is not described"));
    if kind != "application/json" {
        return Value::Null;
    }
    let body = answer.json();
    let found = wrong(document, &schema["schema"], &body, &at);
    assert!(found.is_empty(), "{}\n{body}", found.join("\n"));
    body
}

#[test]
fn what_is_answered_is_what_is_described() {
    let document = document();
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let config = "[context]\nbackground = false\nrules = true\nfold_at = \"line\"\n";
    let proxy = TestProxy::with(&[fake.url()], config);
    let sent = evicted();
    let original = id_in_after(&proxy, &fake, &sent);
    let long = (0..12).fold(sent, |sent, n| sent.assistant(&prose(n, 900)).user(&format!("And {n}?")));
    let id = proxy.chat(&long).ok().header("x-windowsill-conversation").unwrap().to_owned();
    proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    let values = |path: &str| {
        let item = if path.contains("/records/") { &original } else { &id };
        path.replace("{id}", item).replace("{index}", "0").replace("{file}", "app.js").replace("{model*}", "stub-model")
    };
    let get = |method: &str, path: &str| {
        held(&document, method, path, &request(proxy.address, method, &values(path), &[], b""))
    };
    for route in
        ROUTES.iter().filter(|route| matches!(route.method, "GET" | "HEAD") && !route.path.starts_with("/api/"))
    {
        get(route.method, route.path);
    }
    let ask = |method: &str, path: &str, body: Value| {
        let answer = request(
            proxy.address,
            method,
            &values(path),
            &[("Content-Type", "application/json")],
            body.to_string().as_bytes(),
        );
        held(&document, method, path, &answer)
    };
    let of = "/windowsill/conversations/{id}";
    let steps = [
        ("POST", "/compact", json!({"dry_run": true, "write_brief": true})),
        ("POST", "/compact", json!({})),
        ("POST", "/brief", json!({"text": "Go on.", "dry_run": true})),
        ("POST", "/undo", json!({})),
        ("POST", "/pins", json!({"text": "Keep the gate green.", "always": true})),
        ("POST", "/pins", json!({"message": 9_999})),
        ("GET", "/pins", Value::Null),
        ("POST", "/rewriting", json!({"on": true})),
        ("POST", "/rewriting", json!({})),
        ("DELETE", "/waiting", json!({})),
        ("POST", "/checkpoint", json!({"note": "The pond is drawn."})),
        ("POST", "/resume", json!({})),
        ("POST", "/build", json!({"turns": [1], "briefs": []})),
        ("GET", "/segments", Value::Null),
        ("GET", "/insight", Value::Null),
    ];
    for (method, what, body) in steps {
        ask(method, &format!("{of}{what}"), body);
    }
    for (method, path, body) in [
        ("GET", "/windowsill/rules", Value::Null),
        ("GET", "/windowsill/events", Value::Null),
        ("POST", "/windowsill/rules", json!({"conversation": id, "text": "Ask before you push."})),
        ("POST", "/windowsill/records/{id}/ask", json!({"question": "What is it about?"})),
        (
            "POST",
            "/v1/messages/count_tokens",
            json!({"model": "stub-model", "messages": [{"role": "user", "content": "hi"}]}),
        ),
    ] {
        ask(method, path, body);
    }
    for (method, body) in [("PUT", json!({"text": "Ask first."})), ("DELETE", json!({}))] {
        let answer = request(
            proxy.address,
            method,
            "/windowsill/rules/1",
            &[("Content-Type", "application/json")],
            body.to_string().as_bytes(),
        );
        assert_eq!(held(&document, method, "/windowsill/rules/{number}", &answer)["rule"], 1);
    }
    let answer = request(proxy.address, "DELETE", &values(&format!("{of}/pins/1")), &[], b"");
    held(&document, "DELETE", &format!("{of}/pins/{{number}}"), &answer);
}

/// The id of the original that a request's view points at.
fn id_in_after(proxy: &TestProxy, fake: &Fake, sent: &Chat) -> String {
    proxy.chat(sent).ok();
    id_in(&fake.last())
}

/// The fields that a body may have, as the refusal of another one lists them.
fn taken(refused: &str) -> BTreeSet<String> {
    let listed = refused.split_once("unknown field `no_such_field`, expected ").map_or("", |(_, listed)| listed);
    let listed = listed.split(" at line").next().unwrap_or_default();
    listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A value for a field that only some paths of a kind take.
fn sample(name: &str) -> Value {
    match name {
        "message" => json!(0),
        "text" => json!("Go on."),
        "always" => json!(true),
        "by" => json!("agent"),
        _ => panic!("`{name}` is taken and not described"),
    }
}

#[test]
fn fields_that_are_described_are_taken_and_no_others() {
    let document = document();
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "");
    let (mut seen, mut refused) = (0, 0);
    let ours = ROUTES.iter().filter(|route| route.path.starts_with("/windowsill/"));
    for route in ours.filter(|route| !matches!(route.method, "GET" | "HEAD")) {
        let of = operation(&document, route.method, route.path);
        let schema = resolved(&document, &of["requestBody"]["content"]["application/json"]["schema"]);
        let described: BTreeSet<String> =
            schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect();
        let path = route.path.replace("{id}", "c0").replace("{number}", "1");
        let send = |body: &Value| {
            let json = [("Content-Type", "application/json")];
            request(proxy.address, route.method, &path, &json, body.to_string().as_bytes())
        };
        let taken = taken(&send(&json!({"no_such_field": 1})).text());
        let missing: Vec<&String> = described.difference(&taken).collect();
        assert!(missing.is_empty(), "{path} does not take {missing:?}");
        seen += described.len();
        // What several paths read alike, and this one refuses.
        for name in taken.difference(&described) {
            let mut body = json!({name.as_str(): sample(name)});
            let needed = ["message", "text"].into_iter().find(|needed| described.contains(*needed));
            if let Some(needed) = needed {
                body[needed] = sample(needed);
            }
            let answer = send(&body);
            assert_eq!(answer.status, 400, "{path} takes {name}, which is not described: {}", answer.text());
            refused += 1;
        }
    }
    assert!(seen > 20 && refused > 5, "{seen} fields, {refused} refused");
}
