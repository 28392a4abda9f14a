//! A brief that is made between requests reads more than it stands for: the newest messages, and the reply. Where a client replaces
//! any of that later, no word of it is in a prompt of the new history.

use serde_json::{Value, json};

use super::background::{self, past_the_wall};
use super::dialects::{ALL, whole_or_streamed};
use super::support::*;

const SECRET: &str = "secretplum";

/// A server whose model repeats the secret in a brief if it reads it.
fn repeating() -> Fake {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.script(|seen| {
        if !seen.is_summary() || !has_secret(seen) {
            return Play::Usual;
        }
        let prompt = tokens(&seen.json());
        let message = json!({"role": "assistant", "content": format!("{SUMMARY}\nThe word is {SECRET}.")});
        Play::Json(
            200,
            json!({"id": "s", "object": "chat.completion", "created": 1, "model": MODEL,
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": prompt, "completion_tokens": 9, "total_tokens": prompt + 9}}),
        )
    });
    fake
}

fn has_secret(seen: &Seen) -> bool {
    String::from_utf8_lossy(&seen.body).contains(SECRET)
}

/// A client's API: its path, and a request in its words.
type Api = (&'static str, fn(&Chat) -> Value);

/// Every dialect, streamed and not.
fn each(play: impl Fn(Api, bool)) {
    let others = ALL.into_iter().map(|dialect| (dialect.path, dialect.ask));
    for api in [("/v1/chat/completions", Chat::value as fn(&Chat) -> Value)].into_iter().chain(others) {
        for streamed in [false, true] {
            play(api, streamed);
        }
    }
}

/// Talk that is short of the wall, and for which a brief is made.
fn pressed(streamed: bool) -> Chat {
    whole_or_streamed(background::pressed(), streamed).with("max_tokens", json!(1024))
}

fn ask(proxy: &TestProxy, api: Api, chat: &Chat) -> Answer {
    proxy.post(api.0, &[], api.1(chat).to_string().as_bytes())
}

fn id_of(answer: &Answer) -> String {
    answer.header("x-windowsill-conversation").unwrap().to_owned()
}

#[test]
fn what_is_replaced_behind_a_fold_is_in_no_prompt() {
    each(|api, streamed| {
        let told = format!("{} {streamed}", api.0);
        let fake = repeating();
        let proxy = TestProxy::before(&fake);
        let mut sent = pressed(streamed);
        let last = sent.messages.len() - 1;
        sent.messages[last]["content"] = json!(format!("And what about item 7? The word is {SECRET}."));
        let first = ask(&proxy, api, &sent).ok();
        fake.wait("a summary", |seen| seen.iter().any(|s| s.is_summary() && has_secret(s)));
        let next = past_the_wall(sent);
        assert_eq!(ask(&proxy, api, &next).ok().action(), "summarize", "{told}");
        let brief = text(&fake.last().messages()[1]);
        assert!(brief.contains("MARKER-SUMMARY") && brief.contains(SECRET), "{told}: the brief holds it: {brief}");
        // The folded messages end in front of the one that is replaced.
        assert_eq!(fake.last().messages().iter().filter(|m| text(m).contains(SECRET)).count(), 2, "{told}");
        let mut rebuilt = next;
        rebuilt.messages[last]["content"] = json!("And what about item 7? The word is pear.");
        let rebuilt = rebuilt.assistant("Done; what is next?").user("Go on.");
        let before = fake.count();
        let again = ask(&proxy, api, &rebuilt).ok();
        assert_eq!(id_of(&again), id_of(&first), "{told}: it is rebuilt, and no other conversation");
        assert!(!fake.since(before).iter().any(has_secret), "{told}");
        // Nor once the proxy was started again.
        let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
        ask(&proxy, api, &rebuilt.assistant("Well.").user("And now?")).ok();
        assert!(!fake.since(before).iter().any(has_secret), "{told}");
    });
}

#[test]
fn a_brief_is_of_no_use_behind_another_reply_than_it_read() {
    each(|api, streamed| {
        let told = format!("{} {streamed}", api.0);
        let fake = repeating();
        fake.set(|s| s.reply = format!("The word is {SECRET}."));
        let proxy = TestProxy::before(&fake);
        let sent = pressed(streamed);
        ask(&proxy, api, &sent).ok();
        fake.wait("a summary", |seen| seen.iter().any(|s| s.is_summary() && has_secret(s)));
        fake.set(|s| s.reply = "The word is pear.".into());
        let other = |reply: &str| sent.clone().assistant(reply).user(&format!("This: {}", prose(99, 2_500)));
        let before = fake.count();
        let answer = ask(&proxy, api, &other("The word is pear.")).ok();
        assert_eq!(answer.action(), "summarize", "{told}");
        assert!(!fake.since(before).iter().any(has_secret), "{told}");
        assert!(text(&fake.last().messages()[1]).contains("MARKER-SUMMARY"), "{told}: it has a brief of its own");
    });
}

/// The same where the next prompt was sent ahead, brief and all.
#[test]
fn a_fold_ahead_of_need_is_of_no_use_behind_another_reply() {
    let ahead = |seen: &Seen| seen.json()["stream"] == false && seen.json()["max_tokens"] == 1;
    for reply in [SECRET, "pear"] {
        let fake = repeating();
        fake.set(|s| s.reply = format!("The word is {SECRET}."));
        let proxy = TestProxy::before(&fake);
        let mut sent = chat().system("You are a helpful assistant.").user("Let us plan the garden.");
        for n in 0.. {
            assert!(n < 12, "nothing was evaluated ahead");
            sent = sent.assistant(&prose(n, 1_300)).user(&format!("And what about item {n}?"));
            proxy.chat(&sent).ok();
            proxy.eventually("/windowsill/events", |events| {
                let all = events["events"].as_array().unwrap();
                all.iter().filter(|e| e["data"]["role"] == "main").count() == n as usize + 1
            });
            if tokens(&sent.value()) > 2_650 {
                fake.wait("a prompt sent ahead", |seen| seen.iter().any(ahead));
                break;
            }
        }
        let evaluated = fake.all().into_iter().find(ahead).unwrap();
        assert!(has_secret(&evaluated), "the brief was made from the reply");
        proxy.eventually("/windowsill/events", |events| events.to_string().contains("\"prefill\""));
        let (before, next) = (fake.count(), sent.assistant(&format!("The word is {reply}.")).user("The roses."));
        let answer = proxy.chat(&next).ok();
        let (mine, held) = (fake.last().messages(), evaluated.messages());
        if reply == SECRET {
            assert_eq!(answer.action(), "summarize");
            assert_eq!(mine[..held.len()], held[..]);
        } else {
            assert!(!fake.since(before).iter().any(has_secret), "{}", answer.action());
        }
    }
}

/// aider has another last message each time. A brief that a request waits for has read nothing behind its fold, and holds.
#[test]
fn a_fold_holds_where_the_last_message_is_another_one_each_time() {
    let fake = repeating();
    let proxy = TestProxy::before(&fake);
    let mut talk = chat().system("You are a helpful assistant.").user("Let us plan the garden.");
    let mut folds: Vec<Value> = Vec::new();
    for n in 0..14 {
        let sent = talk.clone().user(&format!("Item {n}? {SECRET} of turn {n}: mind the format."));
        let answer = proxy.chat(&sent).ok();
        if answer.action() == "summarize" {
            folds.push(json!(n));
        }
        talk = talk.user(&format!("Item {n}?")).assistant(&prose(n, 1_300));
    }
    assert!((1..=4).contains(&folds.len()), "it is folded in some turns, not in each one: {folds:?}");
}
