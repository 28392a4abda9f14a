//! What a conversation is for, and folds at a pace of the user's.

use serde_json::{Value, json};

use super::support::*;

/// A long talk: `turns` questions and answers of some 900 tokens together.
fn talk(turns: usize) -> Chat {
    let begin = chat().system("s").user(&prose(1, 600));
    (1..turns).fold(begin, |chat, n| {
        let n = n as u64;
        chat.assistant(&prose(100 + n, 2_400)).user(&prose(200 + n, 1_200))
    })
}

fn rewrites(proxy: &TestProxy) -> Vec<Value> {
    let all = proxy.get("/windowsill/events?kind=context_compaction").ok().json();
    all["events"].as_array().unwrap().clone()
}

#[test]
fn a_task_is_named_by_header_and_model_and_lies_over_the_profile() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let asked = chat().system("s").user("Hello.");
    let state = |answer: &Answer| {
        let id = answer.header("x-windowsill-conversation").unwrap();
        proxy.eventually(&format!("/windowsill/conversations/{id}"), |v| !v["state"]["task"].is_null())["state"].clone()
    };
    let lines =
        |state: &Value| (state["lines"]["clear_at"].as_u64().unwrap(), state["lines"]["clear_to"].as_u64().unwrap());
    let headers = [("x-windowsill-task", "review")];
    let named = proxy.post("/v1/chat/completions", &headers, &asked.body()).ok();
    let review = state(&named);
    assert_eq!(review["task"], "review");
    assert_eq!(fake.last().body, asked.body(), "and nothing else of the request changes");
    assert!(fake.last().header("x-windowsill-task").is_none(), "the header goes no further");
    // The same by the model's name, which the server never sees.
    let alias = chat().system("s").user("Good morning.").with("model", json!(format!("{MODEL}#debug")));
    let debug = state(&proxy.chat(&alias).ok());
    assert_eq!((&debug["task"], &fake.last().json()["model"]), (&json!("debug"), &json!(MODEL)));
    let (at, to) = lines(&review);
    assert!(at > to && at > lines(&debug).0, "{review} {debug}");
}

#[test]
fn what_is_no_task_is_refused_with_the_names_that_there_are() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "task = 'review'\n");
    let asked = chat().user("Good morning.");
    let other = chat().user("Hi.").with("model", json!(format!("{MODEL}#nothing")));
    for (path, headers, body) in [
        ("/v1/chat/completions", vec![("x-windowsill-task", "nope")], asked.body()),
        ("/v1/chat/completions", vec![], other.body()),
        ("/v1/messages", vec![("x-windowsill-task", "nope")], asked.body()),
        ("/api/chat", vec![("x-windowsill-task", "nope")], asked.body()),
    ] {
        let refused = proxy.post(path, &headers, &body);
        let said = refused.text();
        assert!(refused.status == 400 && said.contains("there is no task"), "{path}: {said}");
        assert!(["debug", "implement", "review"].iter().all(|name| said.contains(name)), "{said}");
    }
    assert_eq!(fake.count(), 0, "nothing was forwarded");
    // A model may be called so.
    fake.set(|settings| settings.model = format!("{MODEL}#nothing"));
    let answer = proxy.chat(&other).ok();
    assert_eq!(fake.last().json()["model"], format!("{MODEL}#nothing"));
    // The task of the config is that of all others.
    let id = answer.header("x-windowsill-conversation").unwrap();
    let state = proxy.get(&format!("/windowsill/conversations/{id}")).ok().json()["state"].clone();
    assert_eq!(state["task"], "review");
}

#[test]
fn a_task_is_told_from_what_is_said_first_only_where_that_is_wanted() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let asked = chat().user("The build fails with a traceback. Find the bug, please.");
    let usual = TestProxy::before(&fake);
    usual.chat(&asked).ok();
    assert!(usual.get("/windowsill/events?kind=task").ok().json()["events"].as_array().unwrap().is_empty());
    let proxy = TestProxy::with(&[fake.url()], "task = 'auto'\n");
    proxy.chat(&asked).ok();
    proxy.chat(&asked.clone().assistant("It is this line.").user("Thank you.")).ok();
    let enough = |v: &Value| v["events"].as_array().is_some_and(|e| !e.is_empty());
    let events = proxy.eventually("/windowsill/events?kind=task", enough);
    let all = events["events"].as_array().unwrap();
    assert_eq!(all.len(), 1, "told once");
    assert_eq!((&all[0]["data"]["task"], &all[0]["data"]["next"]), (&json!("debug"), &json!(1)));
    assert!(all[0]["data"]["cues"].as_u64() >= Some(2));
}

#[test]
fn a_named_task_is_told_once_and_again_when_it_changes() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    let first = chat().system("s").user("Hello.");
    let second = first.clone().assistant("Hello.").user("Go on.");
    let third = second.clone().assistant("I do.").user("And now look for the bug.");
    let ask = |proxy: &TestProxy, chat: &Chat, task: &str| {
        let headers = [("x-windowsill-task", task)];
        proxy
            .post("/v1/chat/completions", &headers, &chat.body())
            .ok()
            .header("x-windowsill-conversation")
            .unwrap()
            .to_owned()
    };
    ask(&proxy, &first, "review");
    ask(&proxy, &second, "review");
    let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
    ask(&proxy, &second, "review");
    let id = ask(&proxy, &third, "debug");
    let enough = |v: &Value| v["events"].as_array().is_some_and(|e| e.len() == 2);
    let events = proxy.eventually("/windowsill/events?kind=task", enough);
    let data: Vec<&Value> = events["events"].as_array().unwrap().iter().map(|e| &e["data"]).collect();
    assert_eq!(*data[0], json!({"task": "review", "how": "named", "before": null}));
    assert_eq!(*data[1], json!({"task": "debug", "how": "named", "before": "review"}));
    let shown = String::from_utf8(proxy.cli(&["context", &id]).stdout).unwrap();
    assert!(shown.contains("task debug, named by the request; it was review"), "{shown}");
}

#[test]
fn a_brief_keeps_what_the_task_is_about() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::with(&[fake.url()], "task = 'research'\n[context]\nbackground = false\n");
    for turns in 1..=14 {
        proxy.chat(&talk(turns)).ok();
    }
    let asked = fake.summaries();
    let first = asked.first().expect("a model was asked for a brief");
    assert!(String::from_utf8_lossy(&first.body).contains("Keep above all: sources with title and address"));
    assert!(rewrites(&proxy).iter().all(|e| e["data"]["task"] == "research"));
}

#[test]
fn a_brief_has_more_of_what_its_task_keeps_longest() {
    // The same session, folded without a model: only the task differs.
    let errors = |task: &str| {
        let fake = Fake::start(Kind::LlamaServer, 8192);
        let toml =
            format!("task = '{task}'\n[context]\nbackground = false\nstrategy = 'truncate'\nfold_every_calls = 30\n");
        let proxy = TestProxy::with(&[fake.url()], &toml);
        let begin = chat().system("s").user("Please build all parts.").tools();
        let sent = (0..32).fold(begin, |chat, n| {
            let id = format!("call_{n}");
            let said = format!("error[E0{n:03}]: cannot find part{n} in src/part{n}.rs:{n}\n{}", prose(n, 120));
            chat.call(&id, "run", json!({"command": format!("make part{n}")})).result(&id, &said)
        });
        assert_eq!(proxy.chat(&sent).ok().action(), "truncate", "{task}");
        let all = fake.last().messages();
        let brief = all.iter().map(text).find(|t| t.contains("[windowsill brief of")).unwrap();
        brief.matches("cannot find part").count()
    };
    let (debug, chat) = (errors("debug"), errors("chat"));
    assert!(debug >= chat && debug > 0, "{debug} errors in the brief for debug, {chat} for chat");
}

#[test]
fn folds_come_at_the_users_pace_and_say_so() {
    let fake = Fake::start(Kind::LlamaServer, 32_768);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nfold_every_turns = 12\nbackground = false\n");
    let mut folded = Vec::new();
    for turns in 1..=26 {
        let answer = proxy.chat(&talk(turns)).ok();
        if answer.action() != "none" {
            folded.push((turns, answer.action().to_owned()));
        }
    }
    assert_eq!(folded, [(12, "summarize".to_owned()), (24, "summarize".to_owned())]);
    let why: Vec<String> =
        rewrites(&proxy).iter().map(|e| e["data"]["because"][0].as_str().unwrap().to_owned()).collect();
    assert_eq!(why[0], "fold_every_turns: 12 turns so far (every 12)");
    assert_eq!(why[1], "fold_every_turns: 12 turns since the last fold (every 12)");
}

#[test]
fn a_fold_at_the_users_pace_is_made_after_the_reply() {
    let fake = Fake::start(Kind::LlamaServer, 32_768);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nfold_every_turns = 12\n");
    for turns in 1..=12 {
        // A brief that is made from a reply holds for a history with that reply alone.
        fake.set(|settings| settings.reply = prose(100 + turns as u64, 2_400));
        assert_eq!(proxy.chat(&talk(turns)).ok().action(), "none");
    }
    // The new prompt is evaluated ahead: a request of ours with no more than a token to write.
    let prefill = |seen: &Seen| seen.path() == "/v1/chat/completions" && seen.json()["max_tokens"] == 1;
    fake.wait("the folded prompt is sent for evaluation", |all| all.iter().any(prefill));
    let next = proxy.chat(&talk(13)).ok();
    assert_eq!(next.action(), "summarize");
    assert!(rewrites(&proxy)[0]["data"]["because"][0].as_str().unwrap().starts_with("fold_every_turns: 12 turns"));
}

/// Whatever the pressure: a tenth of the window is in use. Where there is nothing to fold, that is said with the count.
#[test]
fn a_pace_folds_at_any_pressure_or_says_why_it_waits() {
    for background in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, 65_536);
        let toml = format!("[context]\nfold_every_turns = 3\nbackground = {background}\n");
        let proxy = TestProxy::with(&[fake.url()], &toml);
        let (mut sent, mut folds) = (chat().system("s"), Vec::new());
        for turn in 1..=10 {
            sent = sent.user(&format!("Turn {turn}: {}", prose(turn, 900)));
            let answer = proxy.chat(&sent).ok();
            let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
            match answer.action() {
                "none" if turn >= 3 && !background && folds.is_empty() => {
                    let why = format!("fold_every_turns: {turn} turns so far (every 3) waits: ");
                    let path = format!("/windowsill/conversations/{id}");
                    proxy.eventually(&path, |c| c["state"]["waits"].to_string().contains(&why));
                }
                "none" => {}
                action => folds.push((turn, action.to_owned())),
            }
            sent = sent.assistant(&prose(turn + 50, 900));
        }
        assert!(folds.len() >= 2 && folds.iter().all(|(_, action)| action == "summarize"), "{background}: {folds:?}");
    }
}

/// A clearing is no fold, and the count is that of the request.
#[test]
fn a_pace_of_calls_folds_and_clears_nothing() {
    for background in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, 16_384);
        let toml =
            format!("[context]\nfold_every_calls = 6\nclear_at = 0.3\nclear_to = 0.1\nbackground = {background}\n");
        let proxy = TestProxy::with(&[fake.url()], &toml);
        let mut sent = chat().system("s").user("Read all parts.").tools();
        for step in 0..20 {
            sent = sent.step(step, &prose(step as u64, 1_200));
            proxy.chat(&sent).ok();
        }
        let all = rewrites(&proxy);
        let why = |e: &Value| e["data"]["because"][0].as_str().unwrap_or("").to_owned();
        let paced: Vec<_> = all.iter().filter(|e| why(e).starts_with("fold_every_calls")).collect();
        assert!(paced.len() >= 2, "{background}: {all:?}");
        for event in paced {
            assert_eq!(event["data"]["action"], "summarize", "{event}");
            let said: u64 = why(event).split(' ').nth(1).unwrap().parse().unwrap();
            assert!((6..=8).contains(&said), "{event}");
        }
    }
}

/// Where clearing stands: at its line, at the wall, or in between where that pays.
#[test]
fn clearing_comes_at_the_line_that_is_chosen() {
    let pressures = |line: &str| {
        let fake = Fake::start(Kind::LlamaServer, 16_384);
        let toml = format!("[context]\nclear_at = 0.5\nclear_to = 0.3\nclear_line = '{line}'\nbackground = false\n");
        let proxy = TestProxy::with(&[fake.url()], &toml);
        let mut sent = chat().system("s").user("Read all parts.").tools();
        for step in 0..60 {
            sent = sent.step(step, &prose(step as u64, 1_600));
            proxy.chat(&sent).ok();
        }
        let of = |e: &Value| {
            let (prompt, reserve) = (&e["data"]["before"]["prompt"], &e["data"]["before"]["output_reserved"]);
            (prompt.as_f64().unwrap() + reserve.as_f64().unwrap()) / 16_384.0
        };
        let clears = |e: &&Value| e["data"]["action"].as_str().is_some_and(|action| action.contains("clear"));
        rewrites(&proxy).iter().filter(clears).map(of).collect::<Vec<f64>>()
    };
    let line = pressures("line");
    // Later on, what is left of the results passes the line by itself.
    assert!(line.len() > 5 && line[..5].iter().all(|p| (0.5..0.53).contains(p)), "{line:?}");
    let wall = pressures("wall");
    assert!(wall.iter().all(|p| *p > 0.97), "{wall:?}");
}

#[test]
fn after_a_fold_nothing_is_rewritten_for_so_many_turns() {
    let fake = Fake::start(Kind::LlamaServer, 32_768);
    let toml = "[context]\nfold_every_turns = 4\ncooldown_turns = 9\nbackground = false\nkeep_recent = 2\n";
    let proxy = TestProxy::with(&[fake.url()], toml);
    let folded: Vec<usize> = (1..=20).filter(|turns| proxy.chat(&talk(*turns)).ok().action() != "none").collect();
    assert!(folded.len() == 2 && folded[1] - folded[0] >= 9, "{folded:?}");
}

#[test]
fn what_cannot_be_meant_is_said_before_anything_starts() {
    let toml =
        "task = 'debgu'\n[watch]\nrepeated_calls = 2\naction = 'allow'\n[ceiling]\nwatts = -1\nturn_tokens = 'many'\n";
    let problems = super::config::Case::new(toml).try_load().unwrap_err();
    let text = windowsill::config::report(&problems, "nothing was started");
    for said in [
        "`task` is \"debgu\", and there is no such task",
        "did you mean `debug`?",
        "from 3 to 1000, or 0 for none",
        "must be one of \"warn\", \"note\", \"refuse\"",
        "must be a number, and not negative",
        "must be a whole number, or 0 for no limit",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let own = super::config::Case::new("profile_dir = 'mine'\ntask = 'shop'\n");
    let own = own.file("mine/tasks/shop.toml", "focus = \"prices\"\n[context]\nkeep_recent = 12\n").load();
    assert_eq!(own.task("shop").and_then(|task| task.focus.as_deref()), Some("prices"));
    let wrong =
        super::config::Case::new("profile_dir = 'mine'\n").file("mine/tasks/shop.toml", "[contxt]\n").try_load();
    assert!(wrong.is_err());
}
