//! What comes back by itself, behind the last message's words.

use serde_json::{Value, json};

use crate::dialects::{ALL, Dialect};
use crate::support::*;

const BEGINS: &str = "[from earlier in this conversation, found by windowsill";
const FACT: &str = "The boathouse key lies under the cobalt pot.";
pub(crate) const ASKED: &str = "Where does the boathouse key lie?";

/// So many turns that the prompt was just folded, and has room.
const TURNS: usize = 19;

/// A chat of so many turns, one of which told where the key is.
fn told(turns: usize) -> Chat {
    (0..turns).fold(chat().system("Be brief."), |chat, turn| {
        let seed = turn as u64;
        let fact = if turn == 3 { FACT } else { "" };
        let reply = format!("{} {fact} {}", prose(seed + 900, 300), prose(seed + 500, 300));
        chat.user(&prose(seed, 120)).assistant(&reply)
    })
}

/// A fake, and a proxy that had the chat up to where its first part was folded.
pub(crate) fn folded(toml: &str) -> (Fake, TestProxy, Chat) {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], toml);
    for turns in [8, 16, TURNS] {
        proxy.chat(&told(turns).user("Tell me more.")).ok();
    }
    (fake, proxy, told(TURNS))
}

fn last_words(seen: &Seen) -> String {
    text(seen.messages().last().unwrap())
}

fn events(proxy: &TestProxy) -> Vec<Value> {
    let all = proxy.get("/windowsill/events?kind=recalled_ahead").json();
    all["events"].as_array().cloned().unwrap_or_default()
}

#[test]
fn what_was_asked_for_stands_behind_the_question() {
    let (fake, proxy, chat) = folded("");
    let before = chat.clone().user("Tell me more.");
    proxy.chat(&before).ok();
    assert!(!last_words(&fake.last()).contains(BEGINS));
    let asked = chat.clone().user(ASKED);
    proxy.chat(&asked).ok();
    let seen = fake.last();
    let words = last_words(&seen);
    assert!(words.starts_with(&format!("{ASKED}\n\n{BEGINS}")) && words.contains(FACT), "{words}");
    let rest = seen.messages();
    assert!(rest[..rest.len() - 1].iter().all(|m| !text(m).contains(FACT)), "it had left the prompt");
    // The same history gives the same bytes, also after a restart.
    proxy.chat(&asked).ok();
    assert_eq!(fake.last().body, seen.body);
    let told = events(&proxy);
    assert_eq!((told.len(), &told[0]["data"]["why"]), (1, &"words".into()), "{told:?}");
    assert!(!told[0].to_string().contains("cobalt"), "no words in the trace");
    let dir = proxy.stop();
    let proxy = TestProxy::at(dir, &[fake.url()], "");
    proxy.chat(&asked).ok();
    assert_eq!(fake.last().body, seen.body);
    // It stays behind the question while the conversation goes on.
    proxy.chat(&asked.clone().assistant("Under the pot.").user("Thanks.")).ok();
    let all = fake.last().messages();
    assert_eq!(text(&all[all.len() - 3]), words);
    assert_eq!(all[..rest.len()], rest[..]);
}

/// Where the prompt is nearly full, a fold comes before its time, so that what answers has room.
#[test]
fn it_comes_however_full_the_prompt_is() {
    let (fake, proxy, _) = folded("");
    for long in 1..60 {
        let full = told(TURNS).user("Tell me more.").assistant(&prose(long, long as usize * 100));
        proxy.chat(&full.user(ASKED)).ok();
        let sent: String = fake.last().messages().iter().map(text).collect();
        assert!(sent.contains(FACT), "{long}: {}", last_words(&fake.last()));
    }
}

/// A person says that what came back does not help: it comes no more in this conversation, until they take that back. What was sent
/// stays, byte for byte.
#[test]
fn what_does_not_help_comes_back_no_more() {
    let (fake, proxy, chat) = folded("");
    let asked = chat.user(ASKED);
    let id = proxy.chat(&asked).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let before = fake.last();
    let at = asked.messages.len() - 1 - asked.messages.iter().filter(|m| m["role"] == "system").count();
    let base = format!("/windowsill/conversations/{id}");
    let useful = || proxy.get(&format!("{base}/messages/{at}")).ok().json()["edits"][0]["useful"].clone();
    assert_eq!(useful(), true);
    let say = |body: Value| proxy.post(&format!("{base}/recalled"), &[], body.to_string().as_bytes());
    let said = say(json!({"message": at})).ok().json();
    assert!(said["useful"] == false && !said["of"].as_array().unwrap().is_empty(), "{said}");
    assert_eq!(useful(), false);
    proxy.chat(&asked).ok();
    assert_eq!(fake.last().body, before.body, "what was sent stays");
    let again = asked.clone().assistant("Under the pot.").user("Thanks.").assistant("Fine.").user(ASKED);
    proxy.chat(&again).ok();
    let words = last_words(&fake.last());
    assert!(!words.contains(FACT), "{words}");
    say(json!({"message": at, "useful": true})).ok();
    assert_eq!(useful(), true);
    assert_eq!(say(json!({"message": 0})).error().0, "nothing_to_do");
    assert_eq!(say(json!({})).status, 400);
    assert_eq!(say(json!({"message": at, "helps": false})).status, 400);
}

/// An undo behind it takes back what came back, and nothing else: the fold stands, is booked, and is not marked as undone. It does not
/// come back behind the same message, however often that is sent.
#[test]
fn what_came_back_is_taken_back_by_itself() {
    let (fake, proxy, chat) = folded("");
    let asked = chat.user(ASKED);
    let id = proxy.chat(&asked).ok().header("x-windowsill-conversation").unwrap().to_owned();
    assert!(last_words(&fake.last()).contains(FACT));
    let base = format!("/windowsill/conversations/{id}");
    let undo = |body: &[u8]| proxy.post(&format!("{base}/undo"), &[], body);
    let did = || {
        let seen = proxy.get(&format!("{base}/insight")).ok().json();
        let undone = seen["rewrites"].as_array().unwrap().iter().filter(|event| event["undone"] == true).count();
        (seen["did"]["compactions"].clone(), seen["did"]["freed_tokens"].clone(), seen["client_tokens"].clone(), undone)
    };
    let before = did();
    let at = asked.messages.len() - 2;
    let price = undo(b"{\"dry_run\": true}").ok().json();
    assert_eq!(price["takes_back"], format!("what came back by itself with message {at}"));
    assert!(price["after"].as_u64() < price["before"].as_u64(), "{price}");
    undo(b"{}").ok();
    assert_eq!(did(), before);
    let bare = |sent: &Chat| {
        proxy.chat(sent).ok();
        fake.last().messages().iter().all(|message| !text(message).contains(FACT))
    };
    assert!(bare(&asked) && bare(&asked), "it stays away: {}", last_words(&fake.last()));
    let prompt = proxy.eventually(&base, |row| row["state"]["prompt_tokens"] == price["after"]);
    assert_eq!(prompt["state"]["prompt_tokens_source"], "counted by the server");
    assert!(bare(&asked.clone().assistant("Somewhere.").user("Thanks.")));
    let next = undo(b"{\"dry_run\": true}").ok().json();
    assert!(next["takes_back"].as_str().unwrap().starts_with("the rewrite that folded "), "{next}");
    let told = proxy.get(&format!("{base}/insight")).ok().json()["rewrites"].clone();
    let last = told.as_array().unwrap().last().unwrap()["told"].as_str().unwrap();
    assert!(last.starts_with("Took back what came back by itself with message "), "{last}");
    // Nor does it before another server, to which all of it is new.
    let other = format!("[[upstream]]\nname = \"other\"\nurl = \"{}\"\n", fake.url());
    let proxy = TestProxy::at(proxy.stop(), &[], &other);
    assert_eq!(proxy.chat(&asked).ok().header("x-windowsill-conversation").unwrap(), id);
    assert!(!last_words(&fake.last()).contains(FACT), "{}", last_words(&fake.last()));
}

#[test]
fn nothing_comes_that_was_not_asked_for() {
    let (fake, proxy, chat) = folded("");
    let quiet = |chat: &Chat| {
        proxy.chat(chat).ok();
        assert!(!last_words(&fake.last()).contains(BEGINS), "{}", last_words(&fake.last()));
    };
    quiet(&chat.clone().user("Which zeppelin crossed Greenland?"));
    quiet(&chat.clone().user("Go on, please."));
    let off = chat.clone().user(ASKED);
    proxy.post("/v1/chat/completions", &[("x-windowsill-recall-ahead", "off")], &off.body()).ok();
    assert!(!last_words(&fake.last()).contains(BEGINS));
    assert_eq!(fake.last().header("x-windowsill-recall-ahead"), None);
    // What this history never said is nothing of it, though the record has it.
    quiet(&told(2).user(ASKED));
    let (fake, proxy, chat) = folded("[context]\nrecall_ahead = \"off\"\n");
    proxy.chat(&chat.user(ASKED)).ok();
    assert!(!last_words(&fake.last()).contains(BEGINS));
}

#[test]
fn results_and_pictures_keep_theirs_in_every_dialect() {
    let trouble = "Error: no such thing as boathouse_key in src/boat/house.rs";
    let begin = || {
        (0..24).fold(chat().system("Be brief.").tools().user("Mend the boathouse."), |chat, turn| {
            let file = if turn == 3 { "src/boat/house.rs\nfn boathouse_key() { cobalt_pot() }\n" } else { "" };
            chat.step(turn, &format!("{}\n{file}{}", prose(turn as u64, 300), prose(turn as u64 + 70, 300)))
        })
    };
    let at = |turns: usize| {
        let mut chat = begin();
        chat.messages.truncate(2 + 2 * turns);
        chat
    };
    let paths = ALL.iter().map(|dialect| (dialect.path, Some(dialect)));
    for (path, dialect) in paths.chain([("/v1/chat/completions", None)]) {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        let proxy = TestProxy::before(&fake);
        let send = |chat: &Chat| {
            let body = dialect.map_or_else(|| chat.body(), |d: &Dialect| (d.ask)(chat).to_string().into_bytes());
            proxy.post(path, &[], &body).ok();
        };
        for turns in [8, 16, 24] {
            send(&at(turns));
        }
        send(&begin().step(24, trouble));
        let words = last_words(&fake.last());
        assert!(words.starts_with(&format!("{trouble}\n\n{BEGINS}")), "{path}: {words}");
        assert!(words.contains("fn boathouse_key() { cobalt_pot() }"), "{path}: {words}");
        send(&begin().step(24, trouble).assistant("I see.").user("Where is boathouse_key in src/boat/house.rs?"));
        let words = last_words(&fake.last());
        assert!(words.starts_with("Where is boathouse_key"), "{path}: {words}");
    }
}

/// An edit that was written against a preview, and that the client's tool refuses, gets the true lines with the error, as they are
/// set in; one that was made gets nothing.
#[test]
fn an_edit_written_against_a_preview_gets_the_true_lines() {
    let part =
        |n: usize| format!("fn part_{n}(rows: &[u32]) -> u32 {{\n    rows.iter().map(|row| row * {n}).sum()\n}}\n\n");
    let file: String = (0..300).map(part).collect();
    let old = "fn part_57(rows: &[u32]) -> u32 {\n    rows.iter().sum()\n}";
    let patch = "*** Begin Patch\n*** Update File: src/parts.rs\n@@\n fn part_57(rows: &[u32]) -> u32 {\n-    rows.iter().sum()\n+    0\n*** End Patch";
    let tries = [
        (
            "Edit",
            json!({"file_path": "/work/src/parts.rs", "old_string": old, "new_string": "0"}),
            "<tool_use_error>String to replace not found in file.\nString: fn part_57(rows: &[u32]) -> u32 {</tool_use_error>",
        ),
        (
            "apply_patch",
            json!({"input": patch}),
            "apply_patch verification failed: Failed to find expected lines in /work/src/parts.rs:\n    rows.iter().sum()",
        ),
        (
            "edit",
            json!({"filePath": "/work/src/parts.rs", "oldString": old, "newString": "0"}),
            "Error: Could not find oldString in the file. It must match exactly, including whitespace and indentation.",
        ),
    ];
    let paths = ALL.iter().map(|dialect| (dialect.path, Some(dialect)));
    for (path, dialect) in paths.chain([("/v1/chat/completions", None)]) {
        let fake = Fake::start(Kind::LlamaServer, 8192);
        let proxy = TestProxy::before(&fake);
        let send = |chat: &Chat| {
            let body = dialect.map_or_else(|| chat.body(), |d: &Dialect| (d.ask)(chat).to_string().into_bytes());
            proxy.post(path, &[], &body).ok();
            fake.last()
        };
        let read = chat().system("Be brief.").tools().user("Mend the sums.");
        let read = read.call("c1", "read_file", json!({"path": "src/parts.rs"})).result("c1", &file);
        let seen = send(&read);
        assert!(!last_words(&seen).contains("row * 57)"), "{path}: a preview does not show it: {}", last_words(&seen));
        for (tool, arguments, error) in &tries {
            let asked = read.clone().call("c2", tool, arguments.clone());
            let words = last_words(&send(&asked.clone().result("c2", error)));
            assert!(words.starts_with(&format!("{error}\n\n{BEGINS}")), "{path} {tool}: {words}");
            assert!(words.contains("\n      rows.iter().map(|row| row * 57).sum()\n"), "{path} {tool}: {words}");
            assert!(!words.contains("row * 7)"), "{path} {tool}: {words}");
            let words = last_words(&send(&asked.result("c2", "The file has been updated: fn part_57, error: none.")));
            assert!(!words.contains(BEGINS), "{path} {tool}: {words}");
        }
    }
}

/// What a person may say in a chat of two, in words that nothing else there has.
fn fact(turn: usize) -> String {
    let word = |n: usize| -> String {
        let part = |n: usize| ["ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su"][n % 10];
        [part(n), part(n / 10), part(n / 100), part(n + n / 10)].concat()
    };
    format!("On Sunday I rowed to {} with {} and had {} plums.", word(turn), word(turn + 500), turn + 100)
}

/// A fold of a chat of two never leaves less than a sliding window of the same size would: whatever stands in the newest messages
/// that fill the window stands in the prompt, too, or comes when it is asked for.
#[test]
fn a_folded_chat_never_has_less_than_a_sliding_window() {
    let window = 4096;
    let turns = 110;
    let said = |upto: usize| {
        (0..upto).fold(chat().system("Be brief."), |chat, turn| {
            let words = |n: usize| format!("{} {}", fact(n), prose(n as u64, 60));
            chat.user(&words(2 * turn)).assistant(&words(2 * turn + 1))
        })
    };
    let fake = Fake::start(Kind::LlamaServer, window);
    let proxy = TestProxy::before(&fake);
    for upto in (4..=turns).step_by(6) {
        proxy.chat(&said(upto).user("Good night.")).ok();
        // Of all that a sliding window holds, without marks between the messages and with nothing kept for a reply.
        let mut room = window as usize * 4;
        let holds = |n: &usize| {
            let long = fact(*n).len() + 60;
            room = room.saturating_sub(long);
            room > 0
        };
        let newest: Vec<usize> = (0..2 * upto).rev().take_while(holds).collect();
        for n in newest.iter().step_by(9) {
            let place = fact(*n).split(" to ").nth(1).unwrap().split(" and ").next().unwrap().to_owned();
            proxy.chat(&said(upto).user(&format!("Who rowed to {place}?"))).ok();
            let sent: String = fake.last().messages().iter().map(text).collect();
            assert!(sent.contains(&fact(*n)), "fact {n} of {}: {}", 2 * upto, last_words(&fake.last()));
        }
    }
}
