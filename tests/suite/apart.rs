//! Conversations that have much in common stay apart: no text of one stands in the other, and what a person does to one does
//! nothing to the other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::dialects;
use super::support::script::{TOOL, whole_reply};
use super::support::{Seen as Recorded, *};

const PAIRS: usize = 2000;

/// Pairs that share a proxy with its record.
const TOGETHER: usize = 25;

/// A header in which each side says its name: windowsill takes it for nothing, and hands it on with all that it asks for that side.
const SIDE: &str = "x-side";

/// What two histories have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kin {
    /// The same questions over two documents.
    Questionnaire,
    /// The same examples in front.
    Template,
    /// The same questions, answered otherwise.
    Evaluation,
    /// One went on otherwise than the other.
    Fork,
    /// Nothing but the first words.
    FirstWords,
    /// An answer was made again.
    Regenerated,
    /// A document was changed, and nothing else.
    Edited,
}

const KINDS: [Kin; 7] =
    [Kin::Questionnaire, Kin::Template, Kin::Evaluation, Kin::Fork, Kin::FirstWords, Kin::Regenerated, Kin::Edited];

/// One side of a pair.
struct Side {
    secret: String,
    headers: Vec<(&'static str, String)>,
    /// Its requests, each with the whole history.
    requests: Vec<Chat>,
    ids: BTreeSet<String>,
}

/// The history of one side in whole rounds, each with its secret where the two differ.
fn rounds(kin: Kin, secret: &str, system: &str, seed: u64) -> Vec<Chat> {
    let mut talk = chat().system(system).tools();
    let document = format!("Read this.\nThe clause is {secret} and no other.\n{}", prose(seed, 500));
    let common = format!("Read this.\nThere is no clause.\n{}", prose(seed, 500));
    let mut out = Vec::new();
    if kin == Kin::Template {
        for n in 0..2 {
            talk = talk.user(&format!("Example {n}: {}", prose(seed + n, 80))).assistant("An example of an answer.");
        }
    }
    talk = match kin {
        Kin::Questionnaire | Kin::Edited | Kin::Template => talk.user(&document),
        Kin::Fork | Kin::Regenerated | Kin::Evaluation => talk.user(&common),
        Kin::FirstWords => talk.user("hi"),
    };
    for n in 0..12u64 {
        out.push(talk.clone());
        let plain = format!("Not stated. {}", prose(seed + 20 + n, 500));
        let own = format!("It says {secret}. {}", prose(seed + 20 + n, 500));
        let (answer, ask) = match kin {
            Kin::Questionnaire | Kin::Template if n % 3 == 0 => (own, false),
            Kin::Questionnaire | Kin::Edited | Kin::Template => (plain, false),
            Kin::Evaluation | Kin::FirstWords => (own, n == 0),
            Kin::Fork => (plain, n >= 4),
            Kin::Regenerated => (if n >= 4 { own } else { plain }, false),
        };
        let asked = if ask { format!("Why {n}, given {secret}?") } else { format!("Question {n}?") };
        talk = talk.assistant(&answer).user(&asked);
    }
    out
}

/// Two related histories: of one client, or of two that differ in one thing.
fn pair(seed: u64, dice: &mut Dice) -> (Kin, bool, [Side; 2]) {
    let kin = KINDS[dice.below(KINDS.len())];
    let apart = dice.chance(60).then(|| dice.below(6));
    let base = dice.next() % 500;
    let sides = ["alpha", "omega"].map(|name| {
        let secret = format!("secret{seed}{name}");
        let second = name == "omega";
        let mut headers: Vec<(&'static str, String)> =
            vec![("User-Agent", "asker/1.0".into()), (SIDE, format!("{seed}{name}"))];
        let mut system = "You answer questions. Be brief.\nToday is Friday.".to_owned();
        match apart {
            Some(0) => headers.push(("Authorization", format!("Bearer {name}-{seed}"))),
            Some(1) => headers.push(("x-api-key", format!("{name}-{seed}"))),
            Some(2) => headers.push(("session_id", format!("{name}-{seed}"))),
            Some(3) if second => headers[0].1 = "other/1.0".into(),
            Some(4) => system += &format!("\nYou work for {secret}."),
            _ => {}
        }
        let mut requests = rounds(kin, &secret, &system, base);
        if apart == Some(5) {
            let named = |chat: Chat| chat.with("prompt_cache_key", json!(format!("{name}-{seed}")));
            requests = requests.into_iter().map(named).collect();
        }
        // Whole in one request, or turn by turn.
        let first = if second && dice.chance(60) || dice.chance(10) { 6 + dice.below(4) } else { 0 };
        let last = 9 + dice.below(3);
        let requests = requests.into_iter().take(last + 1).skip(first).collect();
        Side { secret, headers, requests, ids: BTreeSet::new() }
    });
    (kin, apart.is_some(), sides)
}

/// What is secret in a text. One that stands there whole may be cut off elsewhere in it.
fn secrets(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let all: BTreeSet<&str> = words.filter(|word| word.starts_with("secret")).collect();
    let is_cut = |word: &&str| all.iter().any(|whole| whole != word && whole.starts_with(*word));
    all.iter().copied().filter(|word| !is_cut(word)).collect()
}

/// What a request says of another side than the one that it is made for. A count says for nobody: it may not have what two say, and
/// the prompt that was counted says for whom it is.
fn leak(seen: &Recorded) -> Option<String> {
    let body = String::from_utf8_lossy(&seen.body);
    let all = secrets(&body);
    let wrong = match seen.header(SIDE) {
        Some(side) => all.iter().any(|word| word.strip_prefix("secret") != Some(side)),
        None => all.len() > usize::from(seen.path().ends_with("/input_tokens")),
    };
    wrong.then(|| format!("{} for {:?} has {all:?}: {body}", seen.path(), seen.header(SIDE)))
}

/// A server whose model repeats whatever is secret in what it reads, and looks for more with the tool that it is offered.
fn curious(asks: &Arc<Mutex<Option<String>>>) -> Fake {
    let fake = Fake::start(Kind::LlamaServer, 2048);
    let asks = Arc::clone(asks);
    fake.script(move |seen| {
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        if seen.is_summary() {
            let found = secrets(&body).into_iter().collect::<Vec<_>>().join(", ");
            let said = format!("{SUMMARY}\nWhat matters: {found}.");
            let message = json!({"role": "assistant", "content": said});
            let prompt = tokens(&seen.json());
            return Play::Json(
                200,
                json!({"id": "s", "object": "chat.completion", "created": 1, "model": MODEL,
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                    "usage": {"prompt_tokens": prompt, "completion_tokens": 9, "total_tokens": prompt + 9}}),
            );
        }
        let offered = seen.is_main() && body.contains(&format!("\"name\":\"{TOOL}\""));
        // What is counted before, or asked of the server beside it, does not take the question away.
        let asks = asks.lock().unwrap().take_if(|_| offered && has_room(Kind::LlamaServer, 2048, &seen.json()));
        match asks {
            Some(arguments) => Play::Json(200, whole_reply(seen, 0, "", &[("call_r", TOOL.into(), arguments)])),
            None => Play::Usual,
        }
    });
    fake
}

/// What happened, so that nobody takes a test for one that looked at nothing.
#[derive(Default)]
struct Seen {
    folds: AtomicUsize,
    recalled: AtomicUsize,
    looked_at: AtomicUsize,
}

struct Table {
    fake: Fake,
    proxy: TestProxy,
    asks: Arc<Mutex<Option<String>>>,
}

impl Table {
    /// `background`: with briefs that are made between requests.
    fn new(background: bool) -> Table {
        let asks = Arc::default();
        let fake = curious(&asks);
        let toml = format!("[context]\nbackground = {background}\nfold_at = \"line\"\n");
        let proxy = TestProxy::with(&[fake.url()], &toml);
        Table { fake, proxy, asks }
    }

    /// One request, and whether anything of it has words of the other side.
    fn ask(&self, side: &mut Side, other: &Side, n: usize, dice: &mut Dice, seen: &Seen) -> Result<(), String> {
        let before = self.fake.total();
        let theirs = other.ids.first().cloned().unwrap_or_default();
        let calls = [
            json!({"query": "the clause is"}),
            json!({"query": "it says"}),
            json!({"query": "question given"}),
            json!({"id": format!("{theirs}:0")}),
            json!({"id": format!("m{}", dice.below(8))}),
            json!({"id": "0-9"}),
        ];
        *self.asks.lock().unwrap() = dice.chance(60).then(|| calls[dice.below(calls.len())].to_string());
        let headers: Vec<(&str, &str)> = side.headers.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let answer = self.proxy.post("/v1/chat/completions", &headers, &side.requests[n].body());
        if answer.status != 200 {
            return Err(format!("status {}: {}", answer.status, answer.text()));
        }
        seen.folds.fetch_add(usize::from(answer.action().contains("summarize")), Ordering::Relaxed);
        side.ids.insert(answer.header("x-windowsill-conversation").unwrap_or_default().to_owned());
        let new = self.fake.after(before);
        seen.recalled.fetch_add(new.iter().filter(|s| s.is_main()).count() - 1, Ordering::Relaxed);
        // What is made behind the other side's replies may come at any time; it says for whom it is.
        new.iter().find_map(leak).map_or(Ok(()), Err)
    }

    /// Whether anything that is shown of a side's conversations has words of the other side.
    fn look(&self, side: &Side, other: &Side, seen: &Seen) -> Result<(), String> {
        for id in side.ids.difference(&other.ids) {
            let at = |what: &str| format!("/windowsill/conversations/{id}{what}");
            let mut paths = vec![
                at(""),
                at("/view"),
                at("/messages?limit=50"),
                at("/segments"),
                at(&format!("/search?query={}", other.secret)),
                format!("/windowsill/events?conversation={id}"),
                format!("/windowsill/records/{id}"),
            ];
            paths.extend((0..12).map(|n| format!("/windowsill/records/{id}:{n}")));
            for path in paths {
                seen.looked_at.fetch_add(1, Ordering::Relaxed);
                let answer = self.proxy.get(&path);
                if answer.text().contains(&other.secret) {
                    return Err(format!("{path} has the other's secret: {}", answer.text()));
                }
            }
        }
        Ok(())
    }

    fn play(&self, seed: u64, seen: &Seen) -> Result<(), String> {
        let mut dice = Dice(seed);
        let (kin, apart, [mut one, mut two]) = pair(seed, &mut dice);
        let mixed = dice.chance(50);
        let tell = |e: String| format!("pair {seed}, {kin:?}, apart {apart}, mixed {mixed}: {e}");
        let (mut a, mut b) = (0, 0);
        while a < one.requests.len() || b < two.requests.len() {
            let first = a < one.requests.len() && (b == two.requests.len() || !mixed || dice.chance(50));
            if first {
                self.ask(&mut one, &two, a, &mut dice, seen).map_err(tell)?;
                a += 1;
            } else {
                self.ask(&mut two, &one, b, &mut dice, seen).map_err(tell)?;
                b += 1;
            }
        }
        // A person who words the last request otherwise, or a client that changes a document, goes on with the same conversation.
        let may_be_one = !apart && matches!(kin, Kin::Fork | Kin::Regenerated | Kin::Edited);
        if !may_be_one && !one.ids.is_disjoint(&two.ids) {
            return Err(tell(format!("one conversation: {:?} {:?}", one.ids, two.ids)));
        }
        if seed.is_multiple_of(8) {
            self.look(&one, &two, seen).and_then(|()| self.look(&two, &one, seen)).map_err(tell)?;
        }
        Ok(())
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var_os(name)?.to_str()?.parse().ok()
}

#[test]
fn related_histories_share_nothing_but_what_both_say() {
    let seeds: Vec<u64> = match number("WINDOWSILL_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("WINDOWSILL_PAIRS").unwrap_or(PAIRS as u64)).collect(),
    };
    let tables: Vec<&[u64]> = seeds.chunks(TOGETHER).collect();
    let (next, seen, wrong) = (AtomicUsize::new(0), Seen::default(), Mutex::new(Vec::new()));
    let worker = || {
        while let Some(seeds) = tables.get(next.fetch_add(1, Ordering::Relaxed)) {
            let table = Table::new(seeds[0] / TOGETHER as u64 % 2 == 1);
            let mut broken = seeds.iter().filter_map(|seed| table.play(*seed, &seen).err()).collect::<Vec<_>>();
            // Also what came behind the last replies.
            let Table { fake, proxy, .. } = table;
            proxy.stop();
            broken.extend(fake.all().iter().find_map(leak));
            wrong.lock().unwrap().extend(broken);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 * std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(worker);
        }
    });
    let [folds, recalled, looked_at] =
        [&seen.folds, &seen.recalled, &seen.looked_at].map(|count| count.load(Ordering::Relaxed));
    eprintln!("{} pairs: {folds} folds, {recalled} recalls, {looked_at} pages", seeds.len());
    let wrong = wrong.into_inner().unwrap();
    for wrong in &wrong {
        eprintln!("{wrong:.300}");
    }
    assert!(wrong.is_empty(), "{} of {} pairs; the first: {}", wrong.len(), seeds.len(), wrong[0]);
    if seeds.len() >= PAIRS {
        assert!(folds >= PAIRS && recalled >= 2 * PAIRS && looked_at >= PAIRS / 2, "{folds} {recalled} {looked_at}");
    }
}

fn id_of(answer: &Answer) -> String {
    answer.header("x-windowsill-conversation").unwrap().to_owned()
}

/// New chats that say the same first words, each by another client, session, key or system prompt, or the same.
fn six() -> [(Chat, Vec<(&'static str, &'static str)>); 6] {
    let hi = |system: &str| chat().system(system).user("hi").tools();
    [
        (hi("You are a cook."), vec![]),
        (hi("You are a baker."), vec![]),
        (hi("You are a cook."), vec![("Authorization", "Bearer one")]),
        (hi("You are a cook."), vec![("User-Agent", "agent/1.0")]),
        (hi("You are a cook."), vec![("session_id", "s-1")]),
        (hi("You are a cook."), vec![]),
    ]
}

#[test]
fn new_chats_with_the_same_first_words_have_books_of_their_own() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"] {
        let toml = "[ceiling]\nsession_requests = 3\naction = 'refuse'\n";
        let mut proxy = TestProxy::with(&[fake.url()], toml);
        let send = |proxy: &TestProxy, chat: &Chat, headers: &[(&str, &str)]| {
            let body = match path {
                "/v1/messages" => dialects::anthropic(chat),
                "/v1/responses" => dialects::responses(chat),
                "/api/chat" => dialects::ollama(chat),
                _ => chat.value(),
            };
            proxy.post(path, headers, body.to_string().as_bytes())
        };
        let mut talks = six();
        let first: Vec<String> = talks.iter().map(|(chat, headers)| id_of(&send(&proxy, chat, headers).ok())).collect();
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 6, "{path}: {first:?}");
        // What a person does to one does nothing to the others.
        proxy.post(&format!("/windowsill/conversations/{}/rewriting", first[0]), &[], br#"{"on": false}"#).ok();
        let pin = json!({"text": "The gate is green."}).to_string();
        proxy.post(&format!("/windowsill/conversations/{}/pins", first[0]), &[], pin.as_bytes()).ok();
        for turn in 0..2 {
            if turn == 1 {
                proxy = TestProxy::at(proxy.stop(), &[fake.url()], toml);
            }
            // Two of them are the same in all that they say: these two go on one after the other.
            for n in [1, 2, 3, 4, 5] {
                let (chat, headers) = &mut talks[n];
                *chat = chat.clone().assistant(&format!("Hello {n}.")).user(&format!("Go on {turn}."));
                let answer = send(&proxy, chat, headers).ok();
                assert!(!String::from_utf8_lossy(&fake.last().body).contains("green"), "{path}, {n}");
                if n < 5 {
                    assert_eq!(id_of(&answer), first[n], "{path}: {n} goes on under its first id");
                } else {
                    assert_ne!(id_of(&answer), first[0], "{path}");
                }
            }
        }
        // Each has three requests of its own.
        for n in [1, 2, 3, 4] {
            let (chat, headers) = &mut talks[n];
            let chat = chat.clone().assistant("Yes.").user("And then?");
            let refused = send(&proxy, &chat, headers);
            assert_eq!(refused.status, 429, "{path}, {n}: {}", refused.text());
        }
        let events = proxy.get(&format!("/windowsill/events?kind=ceiling&conversation={}", first[0])).ok().json();
        assert_eq!(events["events"], json!([]), "{path}: {events}");
    }
}

#[test]
fn a_pin_by_the_id_of_the_first_reply_acts_on_that_chat_alone() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    fake.script(|seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let said = text(&seen.messages()[0]);
        let message = json!({"role": "assistant", "content": format!("I see: {said}")});
        let choices = json!([{"index": 0, "finish_reason": "stop", "message": message}]);
        Play::Json(
            200,
            json!({"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": choices}),
        )
    });
    let proxy = TestProxy::before(&fake);
    let begin = |day: &str| chat().system(&format!("Be brief. Today is {day}.")).user("hi");
    let goes_on = |day: &str| begin(day).assistant(&format!("I see: Be brief. Today is {day}.")).user("And?");
    // The same person on three days, in three chats that nothing else tells apart.
    let days = ["Monday", "Tuesday", "Friday"];
    let ids = days.map(|day| id_of(&proxy.chat(&begin(day)).ok()));
    for (day, id) in days.iter().zip(&ids) {
        proxy.eventually(&format!("/windowsill/events?kind=model_usage&conversation={id}"), |v| {
            v["events"][0].is_object()
        });
        let pin = json!({"text": format!("Pinned on {day}.")}).to_string();
        proxy.post(&format!("/windowsill/conversations/{id}/pins"), &[], pin.as_bytes()).ok();
    }
    for (day, id) in days.iter().zip(&ids) {
        assert_eq!(id_of(&proxy.chat(&goes_on(day)).ok()), *id, "told by its reply");
        let body = String::from_utf8_lossy(&fake.last().body).into_owned();
        let pinned: Vec<&&str> = days.iter().filter(|day| body.contains(&format!("Pinned on {day}."))).collect();
        assert_eq!(pinned, [day], "{body}");
    }
}

#[test]
fn a_history_with_another_key_is_never_the_same_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 2048);
    let dir = {
        let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
        let talk = (0..8).fold(chat().system("s").user("Plan it.").tools(), |chat, n| {
            chat.assistant(&prose(n, 900)).user(&format!("Item {n}?"))
        });
        let ask = |key: &str| proxy.post("/v1/chat/completions", &[("Authorization", key)], &talk.body()).ok();
        let mine = ask("Bearer sk-very-private-one");
        assert!(mine.action().contains("summarize"), "{}", mine.action());
        let theirs = ask("Bearer sk-very-private-two");
        assert_ne!(id_of(&mine), id_of(&theirs));
        assert!(theirs.action().contains("summarize"), "it has a brief of its own: {}", theirs.action());
        let again = ask("Bearer sk-very-private-one");
        assert_eq!((id_of(&again), again.action()), (id_of(&mine), "none"));
        proxy.stop()
    };
    // No key is on the disk.
    let mut folders = vec![dir.path().join("data")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                assert!(!bytes.windows(12).any(|w| w == b"very-private"), "{}", path.display());
            }
        }
    }
}

/// Records of before it was kept whose a conversation is have no mark of a key in their chains.
#[test]
fn an_older_record_goes_to_the_first_client_that_has_its_history() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let talk = chat().system("s").user("Plan it.").assistant("Gladly.").user("Begin.");
    let id = id_of(&proxy.chat(&talk).ok());
    let dir = proxy.stop();
    let database = rusqlite::Connection::open(dir.path().join("data/windowsill.sqlite")).unwrap();
    database.execute("UPDATE conversation SET state = json_remove(state, '$.whose')", []).unwrap();
    drop(database);
    let proxy = TestProxy::at(dir, &[fake.url()], "");
    let more = talk.assistant("Done.").user("And now?");
    let ask = |key: &str, chat: &Chat| {
        id_of(&proxy.post("/v1/chat/completions", &[("Authorization", key)], &chat.body()).ok())
    };
    assert_eq!(ask("Bearer one", &more), id);
    assert_ne!(ask("Bearer two", &more), id);
    assert_eq!(ask("Bearer one", &more.assistant("Now this.").user("Go on.")), id);
}

/// Clients put what they found for a request into the system prompt.
#[test]
fn a_system_prompt_that_is_another_one_with_each_request_ends_no_conversation() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut ids = Vec::new();
    let mut talk = chat().user("Begin.");
    for n in 0..6 {
        let mut sent = chat().system(&format!("Be brief.\nUse what was found:\nText {n}: {}", prose(n, 200)));
        sent.messages.extend(talk.messages.clone());
        ids.push(id_of(&proxy.chat(&sent).ok()));
        talk = talk.assistant(&format!("Reply {n}.")).user(&format!("Next {n}?"));
    }
    assert!(ids[1..].iter().all(|id| *id == ids[1]), "{ids:?}");
}

/// What a client rebuilt is the same conversation, and the brief goes where what it was made from is gone.
#[test]
fn a_brief_is_carried_over_only_where_all_that_it_was_made_from_is_there() {
    let fake = Fake::start(Kind::LlamaServer, 2048);
    let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
    let talk = |document: &str| {
        (0..8).fold(chat().system("s").user(document).tools(), |chat, n| {
            chat.assistant(&prose(n, 900)).user(&format!("Item {n}?"))
        })
    };
    fake.set(|s| s.summary = format!("{SUMMARY}\nThe rule is plum."));
    let first = proxy.chat(&talk("The rule is plum.")).ok();
    assert!(first.action().contains("summarize") && fake.last().body.windows(4).any(|w| w == b"plum"));
    fake.set(|s| s.summary = SUMMARY.to_owned());
    let second = proxy.chat(&talk("The rule is pear.").assistant("Well.").user("And?")).ok();
    assert_eq!(id_of(&second), id_of(&first));
    assert!(second.action().contains("summarize"), "a new brief: {}", second.action());
    assert!(!String::from_utf8_lossy(&fake.last().body).contains("plum"));
    // What was recorded under a number stays that.
    let kept = |at: usize| proxy.get(&format!("/windowsill/records/{}:{at}", id_of(&first))).ok().text();
    assert!(kept(0).contains("plum"), "{}", kept(0));
}
