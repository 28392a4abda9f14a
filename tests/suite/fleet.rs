//! Several windowsills over one record in PostgreSQL: whichever answers, the model gets what it would have got from one alone.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::record::{session, turns};
use super::support::postgres::{PASSWORD, Server};
use super::support::*;

const TOML: &str = "[window]\nnum_ctx = 4096\n[context]\nbackground = false\nfold_at = \"line\"\n";

/// A windowsill over the record of a server, with a folder of its own.
fn over(server: &Server, fake: &Fake) -> TestProxy {
    TestProxy::with(&[fake.url()], &format!("record = \"{}\"\n{TOML}", server.url()))
}

/// What was forwarded last, with the folders of those who may have made previews left out: these name files in them.
fn forwarded(fake: &Fake, by: &[&TestProxy]) -> String {
    let mut body = String::from_utf8(fake.last().body).unwrap();
    for one in by {
        let folder = one.dir.path().to_str().unwrap();
        body = body.replace(folder, &"-".repeat(folder.len()));
    }
    body
}

fn folder(base: &TempDir, name: &str) -> Arc<TempDir> {
    Arc::new(tempfile::Builder::new().prefix(name).rand_bytes(0).tempdir_in(base).unwrap())
}

/// A reply that says nothing of tokens: each windowsill measures by itself how many a server makes of a text, and how much a new
/// preview shows depends on that.
fn without_usage(fake: &Fake) {
    let message = json!({"role": "assistant", "content": "Done; what is next?"});
    let whole = json!({"id": "x", "object": "chat.completion", "created": 1, "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    fake.script(move |seen| if seen.is_main() { Play::Json(200, whole.clone()) } else { Play::Usual });
}

#[test]
fn two_in_turn_forward_what_one_alone_does() {
    let Some(server) = Server::start() else { return };
    // Before the first, they measure alike; before the second, they do not, and all forward the same all the same.
    for (kind, is_measured) in [(Kind::OpenAi, false), (Kind::LlamaServer, true)] {
        let (fake, others) = (Fake::start(kind, 4096), Fake::start(kind, 4096));
        if !is_measured {
            without_usage(&fake);
            without_usage(&others);
        }
        // Folders whose names count alike: previews name files in them.
        let base = tempfile::tempdir().unwrap();
        let alone = TestProxy::at(folder(&base, "a"), &[fake.url()], TOML);
        // A database a kind: the same history is another conversation.
        let name = format!("of_{kind:?}").to_lowercase();
        server.ask(&format!("CREATE DATABASE {name}"));
        let toml = format!("record = \"{}\"\n{TOML}", server.url_of(&name));
        let two = ["b", "c"].map(|name| TestProxy::at(folder(&base, name), &[others.url()], &toml));
        let mut rewritten = 0;
        let all = turns(&session(24));
        let mut first = Vec::new();
        for (n, turn) in all.iter().enumerate() {
            let action = alone.chat(turn).ok().action().to_owned();
            let by = &two[n % 2];
            let answer = by.chat(turn).ok();
            let (one, other) = (forwarded(&fake, &[&alone]), forwarded(&others, &[&two[0], &two[1]]));
            if !is_measured {
                assert_eq!(answer.action(), action, "turn {n}");
                assert_eq!(other, one, "turn {n}");
            }
            rewritten += usize::from(action != "none");
            first.push(other);
        }
        assert!(rewritten > 5, "much was rewritten: {rewritten}");
        // Sent again to the other one, and to one that has just come, each gets what it was sent in.
        let third = TestProxy::at(folder(&base, "d"), &[others.url()], &toml);
        for (n, turn) in all.iter().enumerate().step_by(3) {
            for by in [&two[(n + 1) % 2], &third] {
                assert_eq!(by.chat(turn).ok().action(), "none");
                assert_eq!(forwarded(&others, &[&two[0], &two[1]]), first[n], "turn {n}, {kind:?}");
            }
        }
    }
}

#[test]
fn replies_and_conversations_are_gone_on_from_wherever_they_were_answered() {
    let Some(server) = Server::start() else { return };
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let (one, other) = (over(&server, &fake), over(&server, &fake));
    let ask = |by: &TestProxy, body: Value| {
        by.post("/v1/responses", &[], body.to_string().as_bytes()).ok().json()["id"].as_str().unwrap().to_owned()
    };
    let mut last = ask(&one, json!({"model": MODEL, "input": "My word is plover."}));
    for n in 0..6 {
        let by = if n % 2 == 0 { &other } else { &one };
        last = ask(by, json!({"model": MODEL, "input": format!("And {n}?"), "previous_response_id": last}));
        let said = fake.last().messages();
        assert!(text(&said[0]).contains("plover"), "{said:?}");
        assert_eq!(said.len(), 2 * n + 3);
    }
    let listed = |by: &TestProxy| by.get("/windowsill/conversations").ok().json();
    let ids = |list: Value| {
        let all = list["conversations"].as_array().cloned().unwrap_or_default();
        all.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (of_one, of_other) = (ids(listed(&one)), ids(listed(&other)));
    assert_eq!(of_one, of_other);
    assert_eq!(of_one.len(), 1);
}

#[test]
fn of_many_who_rewrite_one_history_at_once_all_forward_one_view() {
    let Some(server) = Server::start() else { return };
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let two = [over(&server, &fake), over(&server, &fake)];
    for round in 0..8u64 {
        let mut chat = chat().system("You are a coding agent.").user(&format!("Round {round} of it.")).tools();
        for n in 0..9 {
            chat = chat.step(n, &prose(round * 100 + n as u64, 2_500));
        }
        let before = fake.count();
        thread::scope(|scope| {
            for n in 0..12 {
                let (by, chat) = (&two[n % 2], &chat);
                scope.spawn(move || by.chat(chat).ok());
            }
        });
        let sent: Vec<String> =
            fake.since(before).into_iter().map(|seen| String::from_utf8(seen.body).unwrap()).collect();
        assert_eq!(sent.len(), 12);
        assert!(sent.iter().all(|body| *body == sent[0]), "round {round}");
        assert_ne!(sent[0].as_bytes(), chat.body(), "it was rewritten");
    }
}

#[test]
fn nothing_is_lost_with_one_that_is_killed() {
    let Some(server) = Server::start() else { return };
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let other = over(&server, &fake);
    let dir = tempfile::tempdir().unwrap();
    let toml = format!("record = \"{}\"\n{TOML}", server.url());
    for (n, turn) in turns(&session(10)).iter().enumerate() {
        // Killed at once behind its reply.
        let served = Served::start(dir.path(), &[fake.url()], &toml);
        let answer = request(
            served.address,
            "POST",
            "/v1/chat/completions",
            &[("Content-Type", "application/json")],
            &turn.body(),
        );
        assert_eq!(answer.status, 200);
        let sent = fake.last().body;
        served.kill();
        let sent = String::from_utf8(sent).unwrap();
        // The other one answers the same with the same.
        other.chat(turn).ok();
        assert_eq!(String::from_utf8(fake.last().body).unwrap(), sent, "turn {n}");
    }
}

/// Each turn of a conversation reaches another windowsill than the last, and all go to the server that holds it; new conversations
/// spread over the servers, whichever windowsill begins them.
#[test]
fn a_conversation_stays_with_its_server_whichever_windowsill_it_reaches() {
    let Some(server) = Server::start() else { return };
    let fakes = [Fake::start(Kind::LlamaServer, 8192), Fake::start(Kind::LlamaServer, 8192)];
    let toml = format!("record = \"{}\"\n[context]\nbackground = false\n", server.url());
    let two = [(); 2].map(|()| TestProxy::with(&fakes.each_ref().map(Fake::url), &toml));
    let mut talks: Vec<Chat> =
        (0..6).map(|who| chat().system("s").user(&format!("I am {who}: {}", prose(who, 400)))).collect();
    let mut first = Vec::new();
    for turn in 0..4 {
        for (who, talk) in talks.iter_mut().enumerate() {
            let answer = two[(turn + who) % 2].chat(talk).ok();
            let told = answer.header("x-windowsill-upstream").unwrap().to_owned();
            let name = told.split(';').next().unwrap().to_owned();
            if turn == 0 {
                first.push(name);
            } else {
                assert_eq!(name, first[who], "turn {turn} of {who}: {told}");
                assert!(told.contains("because=warm"), "turn {turn} of {who}: {told}");
            }
            *talk = talk.clone().assistant("Done; what is next?").user(&format!("And {turn}?"));
        }
    }
    let of = |name: &str| first.iter().filter(|first| *first == name).count();
    assert_eq!((of("up0"), of("up1")), (3, 3), "{first:?}");
    // What is open there by another one is waited for.
    let gate = Gate::default();
    let held = gate.clone();
    fakes[0]
        .script(move |seen| if seen.is_main() { Play::Wait(held.clone(), Box::new(Play::Usual)) } else { Play::Usual });
    let before = fakes[0].count();
    let mut begun = two[0].begin(&chat().user("Take your time."));
    fakes[0].wait("the request", |seen| seen.iter().filter(|seen| seen.is_main()).count() > before);
    // What it adds to the record is written behind it.
    thread::sleep(Duration::from_millis(500));
    for n in 0..3 {
        let answer = two[1].chat(&chat().user(&format!("And I, {n}?"))).ok();
        assert!(answer.header("x-windowsill-upstream").unwrap().starts_with("up1;"), "it is busy");
    }
    gate.open();
    assert_eq!(begun.answer().status, 200);
}

/// What was answered while the database was away is kept on this machine: a kill takes nothing of it, and it is in the record once.
#[test]
fn what_was_answered_while_the_database_was_away_outlives_kills() {
    let Some(server) = Server::start() else { return };
    let fake = Fake::start(Kind::LlamaServer, 32_768);
    let dir = tempfile::tempdir().unwrap();
    let toml = format!("record = \"{}\"\n[window]\nnum_ctx = 32768\n[context]\nbackground = false\n", server.url());
    let mut talk = chat().user("I am the first.");
    let turns = 6;
    for turn in 0..turns {
        let served = Served::start(dir.path(), &[fake.url()], &toml);
        if turn == 1 {
            server.down();
        }
        let began = Instant::now();
        let json = &[("Content-Type", "application/json")];
        let answer = request(served.address, "POST", "/v1/chat/completions", json, &talk.body());
        assert_eq!(answer.status, 200, "{}", answer.text());
        if turn > 1 {
            assert_eq!(answer.header("x-windowsill-record"), Some("waiting"));
            assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        }
        served.kill();
        talk = talk
            .assistant(&text(&answer.json()["choices"][0]["message"]))
            .user(&format!("Turn {turn}, my word is ibis{turn}."));
    }
    server.up();
    // The folder is opened again, and what waits there goes into the database.
    let back = Served::start(dir.path(), &[fake.url()], &toml);
    let until = Instant::now() + PATIENCE;
    let usages = || {
        let sql = "SELECT count(*) FROM windowsill.entry WHERE position('model_usage' IN body) > 0";
        server.ask(sql).parse::<usize>().unwrap()
    };
    while usages() < turns {
        assert!(Instant::now() < until, "{} of {turns}", usages());
        thread::sleep(Duration::from_millis(100));
    }
    drop(back);
    let fresh = TestProxy::with(&[fake.url()], &toml);
    let listed = fresh.get("/windowsill/conversations").ok().json();
    assert_eq!(listed["conversations"].as_array().unwrap().len(), 1, "{listed}");
    let events = fresh.get("/windowsill/events?kind=model_usage").ok().json();
    assert_eq!(events["events"].as_array().unwrap().len(), turns, "each once: {events}");
    for turn in 0..turns - 1 {
        let found = fresh.get(&format!("/windowsill/search?query=ibis{turn}")).ok().text();
        assert!(found.contains(&format!("Turn {turn}, my word")), "{found}");
    }
}

#[test]
fn the_database_is_restarted_under_load_and_nothing_is_lost() {
    let Some(server) = Server::start() else { return };
    let fake = Fake::start(Kind::LlamaServer, 32_768);
    let toml = format!("record = \"{}\"\n[window]\nnum_ctx = 32768\n[context]\nbackground = false\n", server.url());
    let two = [(); 2].map(|()| TestProxy::with(&[fake.url()], &toml));
    let until = Instant::now() + Duration::from_secs(6);
    let talked: Vec<(usize, Chat)> = thread::scope(|scope| {
        let talks: Vec<_> = (0..4)
            .map(|who| {
                let two = &two;
                scope.spawn(move || {
                    let mut chat = chat().user(&format!("I am number {who}."));
                    let mut turns = 0;
                    // What needs no rewriting is answered all the while.
                    while Instant::now() < until {
                        let reply = two[who % 2].chat(&chat).ok().json();
                        turns += 1;
                        chat = chat
                            .assistant(text(&reply["choices"][0]["message"]).as_str())
                            .user(&format!("Turn {turns} of {who}."));
                    }
                    (turns, chat)
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(500));
        server.down();
        thread::sleep(Duration::from_secs(2));
        let ready = two[0].get("/readyz");
        assert_eq!(ready.status, 503, "{}", ready.text());
        assert!(!ready.text().contains(PASSWORD));
        server.up();
        talks.into_iter().map(|talk| talk.join().unwrap()).collect()
    });
    let ready = Instant::now() + PATIENCE;
    while two.iter().any(|by| by.get("/readyz").status != 200) {
        assert!(Instant::now() < ready);
        thread::sleep(Duration::from_millis(100));
    }
    let fresh = TestProxy::with(&[fake.url()], &toml);
    for (turns, chat) in &talked {
        assert!(*turns > 3, "{turns} turns");
        // All that was said is in the record: the next turn adds its own words alone.
        let needle = chat.messages[chat.messages.len() - 3]["content"].as_str().unwrap();
        let found = fresh.get(&format!("/windowsill/search?query={}", needle.replace(' ', "%20"))).ok().text();
        assert!(found.contains(needle), "{needle}: {found}");
    }
}

#[test]
fn what_needs_a_rewrite_is_refused_clearly_while_the_database_is_away() {
    let Some(server) = Server::start() else { return };
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let by = over(&server, &fake);
    let all = turns(&session(10));
    by.chat(&all[0]).ok();
    server.down();
    let refused = all.iter().skip(1).map(|turn| by.chat(turn)).find(|answer| answer.status != 200).unwrap();
    assert_eq!(refused.status, 503);
    let (code, message) = refused.error();
    assert_eq!(code, "record_unwritable");
    assert!(message.contains("its original is safe") && !refused.text().contains(PASSWORD), "{message}");
    server.up();
    let until = Instant::now() + PATIENCE;
    while by.get("/readyz").status != 200 {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(100));
    }
    for turn in &all {
        by.chat(turn).ok();
    }
}

#[test]
fn the_password_is_shown_nowhere() {
    let Some(server) = Server::start() else { return };
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let by = over(&server, &fake);
    let pages = ["/", "/metrics", "/readyz", "/windowsill/conversations"].map(|path| by.get(path).text());
    let said = ["doctor", "profile"].map(|command| {
        let args: &[&str] = if command == "profile" { &["profile", "show", MODEL] } else { &["doctor"] };
        let done = by.cli(args);
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    });
    assert!(pages.iter().chain(&said).all(|text| !text.contains(PASSWORD)));
    assert!(said[1].contains("(set)") || !said[1].contains("record"), "{}", said[1]);
    // A folder with a record of its own is not taken over unseen.
    let dir = Arc::new(tempfile::tempdir().unwrap());
    TestProxy::at(Arc::clone(&dir), &[fake.url()], TOML).chat(&turns(&session(2))[0]).ok();
    std::fs::write(dir.path().join("config.toml"), format!("record = \"{}\"\n", server.url())).unwrap();
    let refused = cli(dir.path(), &["serve", "--listen", "127.0.0.1:0"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("record copy --from") && !said.contains(PASSWORD), "{said}");
}

#[test]
fn an_existing_record_is_copied_and_gone_on_with() {
    let Some(server) = Server::start() else { return };
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let alone = TestProxy::with(&[fake.url()], TOML);
    let all = turns(&session(12));
    let (last, before) = all.split_last().unwrap();
    before.iter().for_each(|turn| drop(alone.chat(turn).ok()));
    let sent = fake.last().body;
    let dir = alone.stop();
    let copied = cli(dir.path(), &["record", "copy", "--to", &server.url()]);
    let said = String::from_utf8_lossy(&copied.stderr).into_owned();
    assert!(copied.status.success(), "{said}");
    let page = String::from_utf8_lossy(&copied.stdout).into_owned();
    assert!(page.contains("the same in both") && page.contains("node"), "{page}");
    assert!(!(said + &page).contains(PASSWORD));
    let left = std::fs::read_dir(dir.path().join("data")).unwrap().flatten();
    assert!(left.map(|entry| entry.file_name()).all(|name| !name.to_string_lossy().starts_with("scratch-")));
    let two = [over(&server, &fake), over(&server, &fake)];
    for by in &two {
        assert_eq!(by.chat(before.last().unwrap()).ok().action(), "none");
        assert_eq!(fake.last().body, sent, "the old record's views stand");
    }
    two[1].chat(last).ok();
    let again = cli(dir.path(), &["record", "copy", "--to", &server.url()]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("another record already"));
}
