//! Every status that `docs/openapi.json` names for a path of windowsill's own is answered by a real request, and what is
//! answered is described.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use windowsill::server::ROUTES;

use super::openapi::{document, held, operation};
use super::recall::ahead;
use super::record::{aged, rewritten};
use super::support::script::{id_in, ids};
use super::support::*;

const CONVERSATION: &str = "/windowsill/conversations/{id}";
const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];
/// What no conversation and no original is called.
const UNKNOWN: &str = "r000000000000";

/// A method, a path as it is described, and a status.
type Status = (String, String, u16);

/// Asks, holds each answer against its description, and notes its status.
struct Asker {
    document: Value,
    seen: BTreeSet<Status>,
    to: SocketAddr,
    /// The conversation, or the original, that a path is about.
    id: String,
}

impl Asker {
    /// Sends a request to a path as it is described: `{id}` is the asker's, other parts are written as `{name=value}`.
    #[track_caller]
    fn send(&mut self, status: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let (path, query) = path.split_once('?').map_or((path, String::new()), |(p, q)| (p, format!("?{q}")));
        let parts = path.split('/').map(|part| {
            let named = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            match named.map(|named| named.split_once('=').unwrap_or((named, self.id.as_str()))) {
                Some((name, value)) => (format!("{{{name}}}"), value.to_owned()),
                None => (part.to_owned(), part.to_owned()),
            }
        });
        let (described, real): (Vec<String>, Vec<String>) = parts.unzip();
        let (described, real) = (described.join("/"), real.join("/") + &query);
        let answer = request(self.to, method, &real, headers, body.as_bytes());
        assert_eq!(answer.status, status, "{method} {real} {body}: {}", answer.text());
        held(&self.document, method, &described, &answer);
        self.seen.insert((method.to_owned(), described, status));
        answer
    }

    #[track_caller]
    fn get(&mut self, status: u16, path: &str) -> Answer {
        self.send(status, "GET", path, &[], "")
    }

    #[track_caller]
    fn ask(&mut self, status: u16, method: &str, path: &str, body: &Value) -> Answer {
        self.send(status, method, path, JSON, &body.to_string())
    }

    /// A steering path of the conversation.
    #[track_caller]
    fn steer(&mut self, status: u16, what: &str, body: &Value) -> Answer {
        self.ask(status, "POST", &format!("{CONVERSATION}/{what}"), body)
    }

    /// The same as another conversation or original.
    fn about<T>(&mut self, id: &str, asks: impl FnOnce(&mut Asker) -> T) -> T {
        let mine = std::mem::replace(&mut self.id, id.to_owned());
        let out = asks(self);
        self.id = mine;
        out
    }
}

fn conversation_of(answer: Answer) -> String {
    answer.ok().header("x-windowsill-conversation").unwrap().to_owned()
}

/// What all paths answer that look at a conversation: it, nothing, too many, and one that is gone.
fn looks(asker: &mut Asker, ambiguous: &str, pruned: &str) {
    for what in [
        "",
        "/view",
        "/view?client&messages=1",
        "/request?replaced",
        "/insight",
        "/messages",
        "/messages?changed&role=user",
        "/messages/{index=0}",
        "/pins",
        "/segments",
        "/search?query=x",
        "/export",
    ] {
        let path = format!("{CONVERSATION}{what}");
        asker.get(200, &path);
        asker.about(UNKNOWN, |asker| asker.get(404, &path));
        asker.about(ambiguous, |asker| asker.get(400, &path));
        asker.about(pruned, |asker| asker.get(410, &path));
    }
}

/// What all paths answer that change a conversation: it is not there, the body makes no sense, or is not said to be JSON.
fn refuses(asker: &mut Asker, ambiguous: &str) {
    let changes = ROUTES.iter().filter(|route| route.path.starts_with(CONVERSATION) && route.method != "GET");
    for route in changes {
        let path = route.path.replace("{number}", "{number=1}");
        let body = match route.path.rsplit('/').next() {
            Some("restore" | "clear" | "evict" | "recalled") => json!({"message": 0}),
            Some("brief" | "pins") => json!({"text": "Go on."}),
            Some("rewriting") => json!({"on": true}),
            Some("build") => json!({"turns": [1]}),
            Some("again") => json!({"line": 0.5}),
            _ => json!({}),
        };
        asker.about(UNKNOWN, |asker| asker.ask(404, route.method, &path, &body));
        asker.about(ambiguous, |asker| asker.ask(400, route.method, &path, &body));
        asker.send(415, route.method, &path, &[("Content-Type", "text/plain")], "{}");
    }
}

/// What is at no conversation.
fn alone(asker: &mut Asker) {
    for path in ["/healthz", "/readyz", "/"] {
        asker.get(200, path);
        asker.send(200, "HEAD", path, &[], "");
    }
    for path in ["/windowsill/openapi.json", "/metrics", "/windowsill/models", "/windowsill/conversations"] {
        asker.get(200, path);
    }
    asker.get(200, "/windowsill/page/{file=app.js}");
    asker.get(404, "/windowsill/page/{file=no.js}");
    for path in ["/windowsill/report", "/windowsill/events"] {
        asker.get(200, path);
        asker.get(400, &format!("{path}?since=yesterday"));
    }
    asker.get(200, "/windowsill/search?query=x");
    asker.get(400, "/windowsill/search?query=");
}

fn records(asker: &mut Asker, original: &str, pruned: &str) {
    let path = "/windowsill/records/{id}";
    for method in ["GET", "HEAD"] {
        asker.about(original, |asker| {
            asker.send(200, method, path, &[], "");
            asker.send(206, method, path, &[("Range", "bytes=0-9")], "");
            asker.send(416, method, path, &[("Range", "bytes=999999999-")], "");
            asker.send(400, method, &format!("{path}?range=0..1"), &[], "");
        });
        asker.about(UNKNOWN, |asker| asker.send(404, method, path, &[], ""));
        asker.about(pruned, |asker| asker.send(410, method, path, &[], ""));
    }
    let path = "/windowsill/records/{id}/ask";
    let question = json!({"question": "What is it about?"});
    asker.about(original, |asker| {
        asker.ask(200, "POST", path, &question);
        asker.ask(400, "POST", path, &json!({"question": ""}));
        asker.send(415, "POST", path, &[("Content-Type", "text/plain")], "{}");
    });
    asker.about(UNKNOWN, |asker| asker.ask(404, "POST", path, &question));
    asker.about(pruned, |asker| asker.ask(410, "POST", path, &question));
}

fn rules(asker: &mut Asker) {
    let (all, one) = ("/windowsill/rules", "/windowsill/rules/{number=1}");
    asker.get(200, all);
    let rule = json!({"conversation": asker.id, "text": "Ask before you push."});
    asker.ask(200, "POST", all, &rule);
    asker.ask(409, "POST", all, &rule);
    asker.ask(400, "POST", all, &json!({"conversation": asker.id, "text": ""}));
    asker.ask(404, "POST", all, &json!({"conversation": UNKNOWN, "text": "x"}));
    asker.send(415, "POST", all, &[("Content-Type", "text/plain")], "{}");
    asker.ask(200, "PUT", one, &json!({"text": "Ask first."}));
    asker.ask(400, "PUT", one, &json!({"text": ""}));
    asker.ask(404, "PUT", "/windowsill/rules/{number=9}", &json!({"text": "x"}));
    asker.send(415, "PUT", one, &[("Content-Type", "text/plain")], "{}");
    asker.ask(400, "DELETE", one, &json!({"no_such_field": 1}));
    asker.ask(404, "DELETE", "/windowsill/rules/{number=9}", &json!({}));
    asker.send(415, "DELETE", one, &[("Content-Type", "text/plain")], "{}");
    asker.ask(200, "DELETE", one, &json!({}));
}

/// One result was replaced by a preview, at `replaced`: it comes back, leaves again, and is undone.
fn results(asker: &mut Asker, replaced: usize) {
    let message = json!({"message": replaced});
    asker.steer(200, "restore", &message);
    asker.steer(409, "restore", &message);
    asker.steer(200, "evict", &message);
    asker.steer(409, "evict", &message);
    asker.steer(200, "clear", &message);
    asker.steer(409, "clear", &message);
    asker.steer(200, "undo", &json!({}));
}

/// A long talk is folded, and nothing is there to do twice.
fn folds(asker: &mut Asker) {
    asker.steer(409, "undo", &json!({}));
    asker.steer(409, "brief", &json!({"text": "Go on."}));
    asker.steer(200, "compact", &json!({}));
    asker.steer(409, "compact", &json!({}));
    asker.steer(200, "brief", &json!({"text": "The fence is painted."}));
    asker.steer(200, "again", &json!({"brief": "The fence is blue."}));
    asker.steer(409, "again", &json!({"messages": 1, "line": 0.9}));
    asker.steer(200, "pins", &json!({"text": "Keep the gate green."}));
    asker.steer(200, "pins", &json!({"message": 0}));
    asker.steer(409, "pins", &json!({"message": 0}));
    asker.ask(200, "DELETE", &format!("{CONVERSATION}/pins/{{number=1}}"), &json!({}));
    asker.steer(200, "tools", &json!({"listing": "auto"}));
    asker.steer(200, "tools", &json!({"listing": null}));
    asker.steer(400, "tools", &json!({"listing": "some"}));
    asker.steer(409, "rewriting", &json!({"on": true}));
    asker.steer(409, "recalled", &json!({"message": 0}));
    asker.steer(200, "rewriting", &json!({"on": false}));
    asker.ask(200, "DELETE", &format!("{CONVERSATION}/waiting"), &json!({}));
    asker.steer(200, "checkpoint", &json!({"note": "The pond is drawn."}));
    asker.steer(409, "checkpoint", &json!({}));
    asker.steer(200, "resume", &json!({}));
    asker.steer(200, "build", &json!({"turns": [1]}));
}

/// A talk that has room in the window, and something to fold.
fn long() -> Chat {
    (0..10).fold(chat().user("Let us plan the garden."), |chat, n| {
        chat.assistant(&prose(n, 800)).user(&format!("And item {n}?"))
    })
}

/// A letter with which the ids of two conversations begin.
fn ambiguous(proxy: &TestProxy) -> String {
    let mut first = BTreeSet::new();
    // Ids are made of hexadecimal digits: of 17, two begin alike.
    for n in 0..40 {
        let id = conversation_of(proxy.chat(&chat().user(&format!("Talk number {n}."))));
        let letter = id[..1].to_owned();
        if !first.insert(letter.clone()) {
            proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
            return letter;
        }
    }
    panic!("{first:?}")
}

/// A conversation and an original that retention took, in a record that goes on.
fn pruned(fake: &Fake, dir: &Arc<tempfile::TempDir>, toml: &str) -> (String, String) {
    let proxy = TestProxy::at(Arc::clone(dir), &[fake.url()], toml);
    let id = conversation_of(proxy.chat(&rewritten()));
    let original = ids(&fake.last().body).into_iter().next().unwrap();
    proxy.stop();
    aged(dir.path(), 8);
    let proxy = TestProxy::at(Arc::clone(dir), &[fake.url()], &format!("retention_days = 7\n{toml}"));
    proxy.eventually("/windowsill/events", |events| events.to_string().contains("record_pruned"));
    proxy.stop();
    (id, original)
}

/// While the model is at work, and has no slot to spare, nobody is asked about an original.
fn busy(asker: &mut Asker, fake: &Fake, proxy: &TestProxy, original: &str) {
    let begun = chat().user("Do you take your time?");
    let id = conversation_of(proxy.chat(&begun));
    let gate = Gate::default();
    let held_back = gate.clone();
    fake.script(move |seen| match seen.is_main() {
        true => Play::Wait(held_back.clone(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let mut conn = proxy.begin(&begun.assistant("I do.").user("Take your time."));
    fake.wait("a held request", |all| all.last().is_some_and(|s| s.json().to_string().contains("Take your")));
    asker.about(&id, |asker| asker.ask(409, "DELETE", CONVERSATION, &json!({})));
    asker.about(original, |asker| asker.ask(409, "POST", "/windowsill/records/{id}/ask", &json!({"question": "Why?"})));
    gate.open();
    conn.answer().ok();
    asker.about(&id, |asker| {
        asker.ask(200, "PUT", &format!("{CONVERSATION}/title"), &json!({"title": "Time"}));
        asker.ask(200, "PUT", &format!("{CONVERSATION}/star"), &json!({"on": true}));
        asker.get(400, &format!("{CONVERSATION}/export?format=pdf"));
        asker.ask(200, "DELETE", CONVERSATION, &json!({}));
    });
}

/// What is described for paths of windowsill's own, by name.
fn described(document: &Value) -> BTreeSet<Status> {
    let ours = |path: &str| {
        path == "/" || ["/windowsill/", "/healthz", "/readyz", "/metrics"].iter().any(|p| path.starts_with(p))
    };
    let routes = ROUTES.iter().filter(|route| ours(route.path));
    let of = |method: &str, path: &str| {
        let responses = operation(document, method, path)["responses"].as_object().unwrap();
        responses.keys().filter_map(|status| status.parse().ok()).collect::<Vec<u16>>()
    };
    let statuses = routes.flat_map(|route| {
        of(route.method, route.path).into_iter().map(|status| (route.method.to_owned(), route.path.to_owned(), status))
    });
    statuses.collect()
}

/// What came back by itself, and does not help.
fn recalled(asker: &mut Asker) {
    let (_fake, proxy, chat) = ahead::folded("");
    let asked = chat.user(ahead::ASKED);
    let id = conversation_of(proxy.chat(&asked));
    asker.to = proxy.address;
    asker.about(&id, |asker| asker.steer(200, "recalled", &json!({"message": asked.messages.len() - 2})));
}

/// Models are loaded and given up, where their server can be told to.
fn models(asker: &mut Asker) {
    let (plain, told) = (Fake::start(Kind::LlamaServer, 4096), Fake::start(Kind::Ollama, 4096));
    let (plain, told) = (TestProxy::before(&plain), TestProxy::before(&told));
    for path in ["/windowsill/models/load", "/windowsill/models/unload"] {
        let model = json!({"model": MODEL});
        asker.to = told.address;
        asker.ask(200, "POST", path, &model);
        asker.ask(400, "POST", path, &json!({}));
        asker.ask(404, "POST", path, &json!({"model": "nonesuch"}));
        asker.send(415, "POST", path, &[("Content-Type", "text/plain")], "{}");
        asker.to = plain.address;
        asker.ask(409, "POST", path, &model);
    }
}

/// What is asked of the door itself, with keys and without.
fn gates(asker: &mut Asker) {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let keyed = TestProxy::with(&[fake.url()], &super::keys::tables());
    let plain = TestProxy::before(&fake);
    let token = super::keys::token("root");
    let bearer = format!("Bearer {token}");
    let login = json!({"key": token});
    asker.to = keyed.address;
    asker.ask(200, "POST", "/windowsill/login", &login);
    asker.ask(200, "DELETE", "/windowsill/login", &json!({}));
    for path in ["/windowsill/whoami", "/windowsill/audit?last=5&key=root"] {
        asker.send(200, "GET", path, &[("Authorization", &bearer)], "");
    }
    for method in ["POST", "DELETE"] {
        asker.ask(400, method, "/windowsill/login", &json!({"other": 1}));
        asker.send(415, method, "/windowsill/login", &[("Content-Type", "text/plain")], "{}");
    }
    asker.to = plain.address;
    asker.ask(200, "POST", "/windowsill/login", &login);
    asker.ask(404, "DELETE", "/windowsill/login", &json!({}));
    asker.get(404, "/windowsill/audit");
    asker.get(200, "/windowsill/whoami");
}

#[test]
fn every_status_that_is_described_is_answered() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let toml = "[context]\nbackground = false\nrules = true\nevict_over = 500\n";
    let (gone, gone_original) = pruned(&fake, &dir, toml);
    let proxy = TestProxy::at(Arc::clone(&dir), &[fake.url()], &format!("retention_days = 7\n{toml}"));
    let two = ambiguous(&proxy);
    let read = chat().system("s").user("Read it.").tools().step(1, &prose(7, 9_000)).assistant("Read.").user("And?");
    let id = conversation_of(proxy.chat(&read));
    let original = id_in(&fake.last());
    let talk = conversation_of(proxy.chat(&long()));
    for id in [&id, &talk] {
        proxy.eventually(&format!("/windowsill/conversations/{id}"), |_| true);
    }
    let view = proxy.get(&format!("/windowsill/conversations/{id}/view")).ok().json();
    let replaced = usize::try_from(view["edits"][0]["message"].as_u64().unwrap()).unwrap();

    let mut asker = Asker { document: document(), seen: BTreeSet::new(), to: proxy.address, id };
    alone(&mut asker);
    records(&mut asker, &original, &gone_original);
    looks(&mut asker, &two, &gone);
    refuses(&mut asker, &two);
    rules(&mut asker);
    results(&mut asker, replaced);
    asker.about(&talk, folds);
    busy(&mut asker, &fake, &proxy, &original);
    drop(proxy);
    let spare = TestProxy::before(&fake);
    recalled(&mut asker);
    models(&mut asker);
    gates(&mut asker);
    asker.to = spare.address;
    asker.get(200, "/windowsill/upstreams");
    let drain = "/windowsill/upstreams/{name=up0}/drain";
    asker.ask(200, "POST", drain, &json!({"on": false}));
    asker.ask(400, "POST", drain, &json!({"other": 1}));
    asker.ask(404, "POST", "/windowsill/upstreams/{name=nonesuch}/drain", &json!({}));
    asker.send(415, "POST", drain, &[("Content-Type", "text/plain")], "{}");
    // No server answers.
    let nowhere = TestProxy::with(&[format!("http://{}", Fake::absent())], "");
    asker.to = nowhere.address;
    for method in ["GET", "HEAD"] {
        asker.send(503, method, "/readyz", &[], "");
    }
    let described = described(&asker.document);
    let missing: Vec<&Status> = described.difference(&asker.seen).collect();
    assert!(missing.is_empty(), "described, and answered by no request here: {missing:?}");
}
