//! Several windowsills over one record in a real PostgreSQL, before two real llama.cpp servers: whichever of them a turn reaches, it is
//! answered as one alone would answer it, from a prompt cache that is as warm; and whatever is killed, nothing is lost.

use std::time::Instant;

use serde_json::{Value, json};

use crate::fakes::postgres;
use crate::support::http::{self, Reply};
use crate::support::relay::Relay;
use crate::support::servers::{Llama, Windowsill};
use crate::support::session::{Session, Turn};
use crate::support::{check, say};

/// Tokens of a slot. Each server has two slots.
const WINDOW: u32 = 2048;

/// Turns of each session, and how many of them come before anything is killed.
const TURNS: usize = 12;
const QUIET: usize = 7;

const SETTINGS: [(&str, &str); 3] =
    [("CONTEXT_BACKGROUND", "false"), ("CONTEXT_STRATEGY", "truncate"), ("LIMITS_HEAD_SECONDS", "300")];

/// Recorded sessions, of two agents and a chat, from the excerpts in the repository.
fn sessions() -> Vec<Session> {
    let mut all = vec![Session::demo()];
    all.extend(["sweagent-marshmallow-fc", "memorybank-cn-2"].into_iter().filter_map(Session::shared));
    assert_eq!(all.len(), 3);
    all
}

/// Two servers, each behind a relay.
struct Servers {
    llamas: [Llama; 2],
    relays: [Relay; 2],
}

impl Servers {
    fn start() -> Servers {
        let llamas = [(); 2].map(|()| Llama::start_with(WINDOW * 2, &["--parallel", "2"]));
        let relays = [0, 1].map(|at| Relay::before(&llamas[at].url()));
        Servers { llamas, relays }
    }

    fn restart(&mut self, at: usize) {
        self.llamas[at].restart_with(WINDOW * 2, &["--parallel", "2"]);
    }

    /// A windowsill before both, over this record.
    fn windowsill(&self, record: Option<&str>) -> Windowsill {
        let record = record.map(|url| ("RECORD", url));
        let settings: Vec<(&str, &str)> = SETTINGS.into_iter().chain(record).collect();
        Windowsill::with(&self.relays[0].url(), &settings, &["--upstream", &self.relays[1].url()])
    }

    /// The body that a server got last, and which one it was.
    fn forwarded(&self) -> (usize, String) {
        let mut all =
            self.relays.iter().enumerate().flat_map(|(at, relay)| relay.take().into_iter().map(move |body| (at, body)));
        let found = all.next().expect("one was forwarded");
        all.last().unwrap_or(found)
    }
}

fn figure(reply: &Reply, pointer: &str) -> u32 {
    reply.json().pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer}: {}", reply.text)) as u32
}

/// One turn by one windowsill.
fn turn(servers: &Servers, by: &Windowsill, session: &Session, end: usize) -> (usize, Turn) {
    servers.forwarded_before();
    let started = Instant::now();
    let sent = session.request(end, 8, false);
    let reply = http::post(&by.chat_url(), &sent);
    assert_eq!(reply.status, 200, "{}, message {end}: {}", session.name, reply.text);
    let (at, forwarded) = servers.forwarded();
    let asked = sent.to_string();
    let rewritten = forwarded != asked;
    let turn = Turn {
        end,
        action: reply.ours("action").to_owned(),
        conversation: reply.ours("conversation").to_owned(),
        window: reply.ours("window").parse().unwrap(),
        prompt: figure(&reply, "/usage/prompt_tokens"),
        cached: figure(&reply, "/timings/cache_n"),
        evaluated: figure(&reply, "/timings/prompt_n"),
        forwarded,
        rewritten,
        summaries: Vec::new(),
        first: started.elapsed(),
    };
    (at, turn)
}

impl Servers {
    /// Forgets what was forwarded before.
    fn forwarded_before(&self) {
        self.relays.iter().for_each(|relay| drop(relay.take()));
    }
}

/// A forwarded body without the slot that its server is asked to use, which each windowsill knows by itself, and without the folders of
/// those who may have made previews: these name files in them.
fn said(forwarded: &str, by: &[&Windowsill]) -> String {
    let mut body: Value = serde_json::from_str(forwarded).unwrap();
    body.as_object_mut().expect("an object").remove("id_slot");
    by.iter().fold(body.to_string(), |text, one| {
        let folder = one.data().display().to_string();
        text.replace(&folder, &"-".repeat(folder.len()))
    })
}

/// What several turns took from caches, of their prompts.
fn share(turns: &[(usize, Turn)]) -> f64 {
    let sum = |of: fn(&Turn) -> u32| turns.iter().map(|(_, turn)| u64::from(of(turn))).sum::<u64>() as f64;
    sum(|turn| turn.cached) / sum(|turn| turn.prompt)
}

/// Sessions, their turns each, in which they come: one of each in turn.
fn order(sessions: &[Session], from: usize, to: usize) -> Vec<(usize, usize)> {
    let ends: Vec<Vec<usize>> = sessions.iter().map(Session::turns).collect();
    (from..to).flat_map(|n| ends.iter().enumerate().filter_map(move |(who, ends)| Some((who, *ends.get(n)?)))).collect()
}

// It reads some 100,000 tokens with real servers, and takes six minutes on two cores with nothing else to do.
#[test]
#[ignore = "takes six minutes; run by hand with --ignored"]
fn two_windowsills_answer_as_one_and_lose_nothing() {
    let database = postgres::Server::start().expect("PostgreSQL: scripts/servers/install postgres");
    let sessions = sessions();
    let quiet = order(&sessions, 0, QUIET);
    let alone = {
        let servers = Servers::start();
        let one = servers.windowsill(None);
        let played: Vec<(usize, Turn)> =
            quiet.iter().map(|(who, end)| turn(&servers, &one, &sessions[*who], *end)).collect();
        let said: Vec<String> = played.iter().map(|(_, turn)| said(&turn.forwarded, &[&one])).collect();
        (played, said)
    };
    let mut servers = Servers::start();
    let url = database.url();
    let mut two = [(); 2].map(|()| servers.windowsill(Some(&url)));
    let mut played = Vec::new();
    let mut other_views = 0;
    for (n, (who, end)) in quiet.iter().enumerate() {
        // A session's turns come to one and the other in turn.
        let by = &two[(n / sessions.len() + who) % 2];
        let (at, turn) = turn(&servers, by, &sessions[*who], *end);
        let before = &alone.0[n].1;
        say(&format!(
            "{} {end:>3}: server {at}, {:>4} of {:>4} cached, {:<10} alone: server {}, {:>4} of {:>4}, {}",
            sessions[*who].name,
            turn.cached,
            turn.prompt,
            turn.action,
            alone.0[n].0,
            before.cached,
            before.prompt,
            before.action
        ));
        other_views += usize::from(said(&turn.forwarded, &[&two[0], &two[1]]) != alone.1[n]);
        played.push((at, turn));
    }
    let (one, both) = (share(&alone.0), share(&played));
    let rewritten = played.iter().filter(|(_, turn)| turn.rewritten).count();
    say(&format!(
        "{} turns, {rewritten} rewritten, {other_views} in other views: {:.1} % from caches with one windowsill, {:.1} % with two",
        played.len(),
        one * 100.0,
        both * 100.0
    ));
    assert!(rewritten > 5, "there was something to share: {rewritten}");
    assert_eq!(other_views, 0, "the same views");
    assert!(both >= one * 0.95, "{both} of {one}");

    let rest = order(&sessions, QUIET, TURNS);
    let mut last: Vec<(usize, Turn)> = Vec::new();
    for (n, (who, end)) in rest.iter().enumerate() {
        let (session, by) = (&sessions[*who], n % 2);
        match n % 6 {
            // Killed with the request at the server: its client sends it again, to the other one.
            1 => {
                servers.forwarded_before();
                killed_while_asked(&servers, &mut two[by], session, *end);
                let before = servers.forwarded().1;
                let (at, again) = turn(&servers, &two[1 - by], session, *end);
                assert_eq!(said(&again.forwarded, &[]), said(&before, &[]), "{}, message {end}", session.name);
                two[by].start_again();
                last.push((at, again));
                continue;
            }
            // Killed right behind a reply.
            2 => {
                two[1 - by].kill();
                two[1 - by].start_again();
            }
            // A server is killed: the request goes to the other one.
            3 => servers.llamas[n / 6 % 2].kill(),
            4 => servers.restart(n / 6 % 2),
            5 => {
                database.down();
                database.up();
            }
            _ => {}
        }
        last.push(turn(&servers, &two[by], session, *end));
    }
    say(&format!("{} turns with kills: {:.1} % from caches", last.len(), share(&last) * 100.0));
    let all: Vec<((usize, usize), Turn)> =
        quiet.into_iter().chain(rest).zip(played.into_iter().chain(last).map(|(_, turn)| turn)).collect();
    nothing_is_lost(&servers, &two, &sessions, all);
}

/// Kills a windowsill as soon as a server has its request.
fn killed_while_asked(servers: &Servers, by: &mut Windowsill, session: &Session, end: usize) {
    let (url, request) = (by.chat_url(), session.request(end, 8, false));
    std::thread::scope(|scope| {
        scope.spawn(|| http::try_open(&url, &[], &request).map(|mut live| live.finish()));
        while servers.relays.iter().all(|relay| !relay.is_busy()) {
            std::thread::yield_now();
        }
        by.kill();
    });
}

/// Every turn, sent again to whichever windowsill, is forwarded as it was; every original and every message comes back from both; and
/// each turn is one event, once.
fn nothing_is_lost(servers: &Servers, two: &[Windowsill; 2], sessions: &[Session], all: Vec<((usize, usize), Turn)>) {
    for (n, ((who, end), before)) in all.iter().enumerate().filter(|(n, _)| n % 7 == 3) {
        let (_, again) = turn(servers, &two[n % 2], &sessions[*who], *end);
        assert_eq!(said(&again.forwarded, &[]), said(&before.forwarded, &[]), "{}, message {end}", sessions[*who].name);
    }
    let mut recalled = 0;
    for (who, session) in sessions.iter().enumerate() {
        let played: Vec<Turn> = all.iter().filter(|((of, _), _)| *of == who).map(|(_, turn)| copied(turn)).collect();
        let last = turn(servers, &two[who % 2], session, played.last().expect("turns").end).1;
        assert!(played.iter().all(|turn| turn.conversation == last.conversation), "one conversation");
        for by in two {
            recalled += check::originals(session, &played, by).originals;
            assert!(check::messages(session, &last, by) > TURNS);
        }
    }
    say(&format!("recalled {recalled} originals"));
    assert!(recalled > 10, "{recalled}");
    let listed = two.each_ref().map(|by| {
        let list = http::get(&format!("{}/windowsill/conversations", by.url())).json();
        list["conversations"].as_array().expect("conversations").iter().map(|row| row["id"].clone()).collect::<Vec<_>>()
    });
    assert_eq!(listed[0].len(), sessions.len(), "{}", json!(listed));
    assert_eq!(listed[0], listed[1]);
}

fn copied(turn: &Turn) -> Turn {
    Turn {
        action: turn.action.clone(),
        conversation: turn.conversation.clone(),
        forwarded: turn.forwarded.clone(),
        summaries: Vec::new(),
        ..*turn
    }
}
