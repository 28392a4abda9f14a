//! One proxy with its record, one server, a few clients at a time. All that happens follows from the seed; crashes leave the
//! record as a killed process would.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;
use windowsill::store::Store;

use super::check::{self, Asked};
use super::faults::{Fault, Turn};
use super::session::{Session, Tongue};
use super::trap::Trap;
use crate::support::script::{TOOL, ids};
use crate::support::*;

/// Clients of one world.
pub(super) const SESSIONS: usize = 5;

pub(super) struct World {
    seed: u64,
    fake: Fake,
    kind: Kind,
    /// The smallest window that the server ever claimed to have.
    window: u32,
    proxy: Option<TestProxy>,
    /// Where the record's writer may die.
    trap: Trap,
    toml: String,
    dice: Dice,
    /// For what the machine does: the rest of a world stays as it was before there was that.
    machine: Dice,
    sessions: Vec<Session>,
    marks: Vec<String>,
    turn: Arc<Mutex<Turn>>,
    /// What was forwarded for each request that the server took.
    given: HashMap<Vec<u8>, Given>,
    /// Ids of originals that prompts pointed at.
    pointers: Vec<String>,
    /// Whether sizes are estimated from one that was made up.
    misled: bool,
    /// Clients of which the server once did not count a prompt.
    uncounted: HashSet<usize>,
    /// How many requests at the server were looked at.
    looked_at: usize,
    /// The step that runs, in words.
    pub(super) step: String,
    pub(super) log: Vec<String>,
}

/// What was forwarded for a history.
struct Given {
    who: usize,
    messages: usize,
    bytes: Vec<u8>,
}

/// A folder in memory where there is one: what is on the disk when a process dies is the same there.
pub(super) fn folder() -> Arc<TempDir> {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    Arc::new(made.unwrap())
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut dice = Dice(seed.wrapping_mul(0x1000));
        let kind = [Kind::LlamaServer, Kind::LlamaServer, Kind::Vllm, Kind::OpenAi, Kind::Ollama][dice.below(5)];
        let window = [1024, 1536, 2048, 2048, 4096, 4096, 8192, 16384][dice.below(8)];
        // Nothing here is so old, whatever the clock says.
        let mut toml = "retention_days = 30\n".to_owned();
        if kind == Kind::OpenAi && dice.chance(70) {
            toml += &format!("[window]\nnum_ctx = {window}\n");
        }
        toml += "[context]\n";
        if dice.chance(70) {
            toml += "background = false\nfold_at = \"line\"\n";
        }
        toml += ["", "", "keep_recent = 2\n", "strategy = \"truncate\"\n", "recall = false\n"][dice.below(5)];
        let fake = Fake::start(kind, window);
        let turn = Arc::new(Mutex::new(Turn::default()));
        let playing = Arc::clone(&turn);
        fake.script(move |seen| playing.lock().unwrap().play(kind, window, seen));
        let marks: Vec<String> = (0..SESSIONS).map(|n| format!("owner-{seed}-{n}-x")).collect();
        let mut sessions: Vec<Session> = marks.iter().map(|mark| Session::new(mark.clone(), &mut dice)).collect();
        if seed % 4 > 1 {
            // Two clients have much in common. The dice are others, so that all other worlds stay as they were.
            let [one, two, ..] = &mut sessions[..] else { unreachable!("there are five") };
            Session::relate(one, two, &mut Dice(seed.wrapping_mul(0x2001)));
        }
        let trap = Trap::default();
        let proxy = Some(TestProxy::watched(folder(), &[fake.url()], &toml, trap.watcher()));
        let log = vec![format!("{kind:?}, window {window}, {toml:?}")];
        World {
            seed,
            fake,
            kind,
            window,
            proxy,
            trap,
            toml,
            dice,
            machine: Dice(!seed),
            sessions,
            marks,
            turn,
            given: HashMap::new(),
            pointers: Vec::new(),
            misled: false,
            uncounted: HashSet::new(),
            looked_at: 0,
            step: String::new(),
            log,
        }
    }

    fn proxy(&self) -> &TestProxy {
        self.proxy.as_ref().expect("it runs between steps")
    }

    /// Plays it to its end, or to the first thing that is wrong.
    pub(super) fn play(&mut self) -> Result<usize, String> {
        let steps = SESSIONS * (3 + self.dice.below(5));
        for n in 0..steps {
            let who = self.dice.below(SESSIONS);
            self.step = format!("step {n}, client {who} ({:?})", self.sessions[who].tongue);
            match self.dice.below(30) {
                0 => self.restart(),
                1 => self.kill(),
                2 => self.kill_in_flight(who)?,
                3 | 4 => self.kill_at_a_write(who)?,
                _ => self.ask(who)?,
            }
            self.log.push(std::mem::take(&mut self.step));
            self.nobody_elses()?;
        }
        self.step = "the end".into();
        self.all_is_kept()?;
        Ok(steps)
    }

    /// Stops the proxy as it should be, and starts it again.
    fn restart(&mut self) {
        self.step += ", restart";
        if let Some(proxy) = self.proxy.take() {
            let dir = proxy.stop();
            self.start(dir);
        }
    }

    /// Starts a new proxy on what the old one had on disk at this moment.
    fn kill(&mut self) {
        self.step += ", kill";
        if let Some(proxy) = self.proxy.take() {
            let left = folder();
            snapshot(&proxy.data(), &left.path().join("data"));
            proxy.crash();
            self.start(left);
        }
    }

    fn start(&mut self, on: Arc<TempDir>) {
        if self.machine.chance(30) {
            self.jump(on.path());
        }
        self.proxy = Some(TestProxy::watched(on, &[self.fake.url()], &self.toml, self.trap.watcher()));
    }

    /// Sets the clock by years while no proxy runs: to what it says then, all that is recorded is years older. Or it had been years
    /// ahead for one conversation.
    fn jump(&mut self, on: &Path) {
        let ahead = self.machine.chance(30);
        self.step += if ahead { ", a conversation of the future" } else { ", the clock jumps" };
        let all = ["UPDATE conversation SET updated_ms = updated_ms - ?1", "UPDATE event SET now_ms = now_ms - ?1"];
        let one = ["UPDATE conversation SET updated_ms = updated_ms + ?1 WHERE id = 1"];
        let conn = rusqlite::Connection::open(on.join("data/windowsill.sqlite")).unwrap();
        for sql in if ahead { &one[..] } else { &all[..] } {
            conn.execute(sql, [900 * 86_400_000_i64]).unwrap();
        }
    }

    /// Kills the proxy at one of the writes that a request brings: what left the prompt was on disk before.
    fn kill_at_a_write(&mut self, who: usize) -> Result<(), String> {
        let chat = self.sessions[who].next(self.window, &mut self.dice);
        let (body, tongue) = (self.sessions[who].body(&chat), self.sessions[who].tongue);
        let before = self.fake.count();
        self.sessions[who].asks(&chat);
        self.begin(Turn::default());
        self.trap.set(&self.proxy().data(), self.dice.below(40));
        let mut conn = self.send(who, tongue, &body);
        // An answer that begins is not read: what it waits for may never be written.
        while !self.trap.is_sprung() && !conn.is_readable() {}
        let seen = self.forwarded(who, before);
        match self.trap.take() {
            Some((at, left)) => {
                self.step += &format!(", killed at \"{at}\"");
                if let Some(proxy) = self.proxy.take() {
                    proxy.crash();
                }
                self.start(left);
            }
            None => self.kill(),
        }
        drop(conn);
        self.may_replace(who, &chat);
        self.replied(who, &chat);
        self.forwarded_in_vain(who, (&chat, &body), &seen);
        for one in &seen {
            self.sessions[who].edited |= one.body != body;
            self.can_be_read(&chat, one)?;
            self.stands_in_the_record(&chat, one)?;
        }
        Ok(())
    }

    /// What was forwarded before a kill and never answered is the same again afterwards.
    fn forwarded_in_vain(&mut self, who: usize, (chat, body): (&Chat, &[u8]), seen: &[Seen]) {
        let fits = |seen: &&Seen| seen.is_main() && tokens(&seen.json()) < self.fake.window();
        let Some(first) = seen.iter().find(fits) else { return };
        let key = self.key(who, self.sessions[who].tongue, body);
        let given = Given { who, messages: chat.messages.len(), bytes: comparable(first) };
        self.given.entry(key).or_insert(given);
    }

    /// Takes note of a request that no answer tells the conversation of: behind one key, it may hold other last words of one that
    /// began as it does, and then these are the conversation's.
    fn may_replace(&mut self, who: usize, chat: &Chat) {
        let begins_alike =
            |known: &Chat| known.messages.iter().zip(&chat.messages).take_while(|(a, b)| a == b).count() > 2;
        for (_, session) in self.sessions.iter_mut().enumerate().filter(|(n, _)| *n != who) {
            session.known_as.take_if(|(_, known)| begins_alike(known));
        }
    }

    /// Another reply, or what there was of it before a kill, takes the place of one that recalled something.
    fn replied(&mut self, who: usize, chat: &Chat) {
        if self.sessions[who].recalled {
            let messages = chat.messages.len();
            self.given.retain(|_, given| given.who != who || given.messages <= messages);
        }
    }

    /// Kills the proxy while a server works on a request: what left the prompt was on disk before.
    fn kill_in_flight(&mut self, who: usize) -> Result<(), String> {
        let chat = self.sessions[who].next(self.window, &mut self.dice);
        let (body, tongue) = (self.sessions[who].body(&chat), self.sessions[who].tongue);
        let before = self.fake.count();
        self.sessions[who].asks(&chat);
        self.begin(Turn { fault: Some(Fault::Silent(Vec::new())), ..Turn::default() });
        let mut conn = self.send(who, tongue, &body);
        // Sometimes before anything is forwarded; a request that is refused is answered.
        let waits = self.dice.chance(75);
        let mut seen = Vec::new();
        if waits {
            seen = self.forwarded_or_answered(who, before, &mut conn);
        }
        self.kill();
        drop(conn);
        self.may_replace(who, &chat);
        self.replied(who, &chat);
        self.forwarded_in_vain(who, (&chat, &body), &seen);
        for one in &seen {
            self.sessions[who].edited |= one.body != body;
            self.can_be_read(&chat, one)?;
            self.stands_in_the_record(&chat, one)?;
        }
        Ok(())
    }

    fn begin(&mut self, turn: Turn) {
        let sleeps = self.machine.chance(10);
        *self.turn.lock().unwrap() = Turn { sleeps, ..turn };
    }

    fn send(&self, who: usize, tongue: Tongue, body: &[u8]) -> Conn {
        let mut conn = Conn::open(self.proxy().address);
        let mut headers = vec![("Content-Type", "application/json")];
        headers.extend(self.sessions[who].key.as_deref().map(|key| ("Authorization", key)));
        conn.send("POST", tongue.path(), &headers, body);
        conn
    }

    /// Waits until the server has the prompt, or the client an answer instead.
    fn forwarded_or_answered(&self, who: usize, before: usize, conn: &mut Conn) -> Vec<Seen> {
        while !conn.is_readable() {
            let seen = self.forwarded(who, before);
            if !seen.is_empty() {
                return seen;
            }
        }
        self.forwarded(who, before)
    }

    /// What the server got for a client since then. What a proxy sent for another one right before it was killed may arrive late.
    fn forwarded(&self, who: usize, before: usize) -> Vec<Seen> {
        let mut seen = self.fake.since(before);
        seen.retain(|seen| {
            let whose = check::marks(&seen.body, &self.marks);
            whose.is_empty() || whose.contains(self.marks[who].as_str())
        });
        seen
    }

    /// One request, with or without something going wrong.
    fn ask(&mut self, who: usize) -> Result<(), String> {
        let chat = self.sessions[who].next(self.window, &mut self.dice);
        let (body, tongue) = (self.sessions[who].body(&chat), self.sessions[who].tongue);
        let fault = self.dice.chance(20).then(|| Fault::any(self.kind, self.window, &mut self.dice));
        let recalls = self.dice.chance(25).then(|| self.recalls());
        self.step += &format!(", {} messages, {} tokens, {fault:?}", chat.messages.len(), tokens(&chat.value()));
        let before = self.fake.count();
        self.sessions[who].asks(&chat);
        let turn = Turn { fault: fault.clone(), recalls, ..Turn::default() };
        self.begin(turn);
        let mut conn = self.send(who, tongue, &body);
        if let Some(Fault::Silent(_)) = fault {
            self.may_replace(who, &chat);
            return self.give_up(who, conn, before);
        }
        let Some(head) = conn.head() else {
            let closed = conn.is_readable();
            return Err(if closed { "closed without an answer".into() } else { format!("no answer in {PATIENCE:?}") });
        };
        let answer = conn.rest(head);
        self.begin(Turn::default());
        let forwarded = self.forwarded(who, before);
        let id = answer.header("x-windowsill-conversation").unwrap_or("-");
        self.step += &format!(" -> {} {} {id}", answer.status, answer.action());
        if matches!(fault, Some(Fault::CountsNothing)) {
            self.uncounted.insert(who);
            // What was counted before was planned by other figures.
            self.given.retain(|_, given| given.who != who);
        }
        // What was cut on an estimate stays cut: the same history gives the same bytes.
        let uncounted = self.uncounted.contains(&who);
        let asked = Asked {
            tongue,
            chat: &chat,
            body: &body,
            kind: self.kind,
            window: self.window,
            uncounted,
            told: answer.header("x-windowsill-prompt-tokens").and_then(|n| n.parse().ok()),
            forwarded: &forwarded,
        };
        self.answered(who, &asked, &answer, fault.as_ref())?;
        self.learned(fault.as_ref(), &forwarded);
        Ok(())
    }

    /// The client hangs up on a server that says nothing; the proxy must, too.
    fn give_up(&mut self, who: usize, mut conn: Conn, before: usize) -> Result<(), String> {
        let was = self.fake.hung_up();
        let seen = self.forwarded_or_answered(who, before, &mut conn);
        drop(conn);
        if !seen.is_empty() {
            self.fake.wait_hung_up(was + 1);
        }
        self.begin(Turn::default());
        Ok(())
    }

    /// Arguments of a call of the recall tool: an id of this client's or of another's, a message, or words.
    fn recalls(&mut self) -> String {
        if self.pointers.is_empty() || self.dice.chance(40) {
            return json!({"query": "lease cursor flush ledger"}).to_string();
        }
        if self.dice.chance(20) {
            return json!({"id": format!("m{}", self.dice.below(9))}).to_string();
        }
        json!({"id": self.pointers[self.dice.below(self.pointers.len())]}).to_string()
    }

    /// What the server said of its window holds from now on, and with it other views.
    fn learned(&mut self, fault: Option<&Fault>, forwarded: &[Seen]) {
        if let Some(Fault::Refuses(..)) = fault
            && !forwarded.is_empty()
        {
            self.window = self.window / 4 * 3;
            // A server that cannot count is believed when it names a size.
            self.misled |= matches!(self.kind, Kind::OpenAi | Kind::Ollama);
            self.given.clear();
        }
    }

    /// Everything that must hold of one request.
    fn answered(
        &mut self,
        who: usize,
        asked: &Asked<'_>,
        answer: &Answer,
        fault: Option<&Fault>,
    ) -> Result<(), String> {
        let clean = fault.is_none_or(Fault::is_aside);
        self.sessions[who].refused |= matches!(fault, Some(Fault::Refuses(..)));
        if matches!(fault, Some(Fault::Lies(..))) && matches!(self.kind, Kind::OpenAi | Kind::Ollama) {
            // A size that may be is believed where nobody counts.
            (self.misled, self.sessions[who].edited) = (true, true);
            self.given.clear();
        }
        let mut wrong = asked.wrong(self.misled || self.sessions[who].refused);
        if matches!(fault, Some(Fault::Pretends(..))) && answer.status == 200 && !asked.forwarded.is_empty() {
            wrong.push(format!("an error behind a status of 200 looks like a reply: {:.200}", answer.text()));
        }
        if !answer.whole {
            wrong.push("the reply has no proper end".into());
        }
        match answer.status {
            200 if asked.forwarded.is_empty() => wrong.push("answered without a server".into()),
            200 => {}
            400 if clean => {
                wrong.extend(check::says_why(asked.tongue, answer));
                // A server that named a size of its own is believed, and then more has to go.
                let guesses = self.kind == Kind::OpenAi || self.misled;
                if !guesses && asked.least() < self.window / 3 && fault.is_none() {
                    wrong.push(format!("refused, although {} tokens would do: {}", asked.least(), answer.text()));
                }
            }
            other if clean => wrong.push(format!("status {other}: {:.300}", answer.text())),
            _ if asked.tongue != Tongue::Chat => wrong.extend(check::says_why(asked.tongue, answer)),
            _ => {}
        }
        if let Some(first) = asked.forwarded.first() {
            wrong.extend(self.same_again(who, asked, first, answer, fault));
            // What a reply recalls stands in what comes after it, and another reply to the same history takes its place: what was
            // sent after the first one is another history then.
            self.sessions[who].recalled |= asked.forwarded.len() > 1;
            self.replied(who, asked.chat);
            let is_edited = |seen: &Seen| seen.body != asked.body && !check::says_the_same(asked.body, &seen.body);
            let edited = is_edited(first);
            self.sessions[who].edited |= asked.forwarded.len() > 1 && asked.forwarded.iter().any(is_edited) && !edited;
            if edited && self.kind != Kind::Ollama && asked.tongue == Tongue::Chat {
                if !self.sessions[who].edited && asked.fits_easily() && fault.is_none() {
                    wrong.push("edited, although it fits easily".into());
                }
                self.sessions[who].edited = true;
            }
            self.can_be_read(asked.chat, first)?;
        }
        if let (200, true, Some(id)) = (answer.status, clean, answer.header("x-windowsill-conversation")) {
            // Behind one key, who only words the last request otherwise has the same conversation.
            let replaced = |known: &str, chat: &Chat| known == id && !asked.chat.messages.starts_with(&chat.messages);
            for session in &mut self.sessions {
                session.known_as.take_if(|(known, chat)| replaced(known, chat));
            }
            self.sessions[who].known_as = Some((id.to_owned(), asked.chat.clone()));
        } else {
            self.may_replace(who, asked.chat);
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let told = self.keep(who, asked);
        Err(format!("{}; {told}", wrong.join("; ")))
    }

    /// What tells a client's request from others.
    fn key(&self, who: usize, tongue: Tongue, body: &[u8]) -> Vec<u8> {
        [self.marks[who].as_bytes(), tongue.path().as_bytes(), body].concat()
    }

    /// Leaves what was sent and forwarded in `target/simulation`.
    fn keep(&self, who: usize, asked: &Asked<'_>) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/simulation").join(self.seed.to_string());
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("client.json"), asked.body).unwrap();
        let key = self.key(who, asked.tongue, asked.body);
        if let Some(then) = self.given.get(&key) {
            std::fs::write(folder.join("forwarded-then.json"), &then.bytes).unwrap();
        }
        for (n, seen) in asked.forwarded.iter().enumerate() {
            std::fs::write(folder.join(format!("forwarded-{n}.json")), &seen.body).unwrap();
        }
        format!("see {}", folder.display())
    }

    /// Invariants 5 and 6: the same history gives the same bytes; and 1: no prompt that is known to be too long is sent.
    fn same_again(
        &mut self,
        who: usize,
        asked: &Asked<'_>,
        first: &Seen,
        answer: &Answer,
        fault: Option<&Fault>,
    ) -> Option<String> {
        let counted = matches!(self.kind, Kind::LlamaServer | Kind::Vllm | Kind::Ollama);
        let size = tokens(&first.json());
        if counted && fault.is_none() && self.kind != Kind::Ollama && size >= self.fake.window() {
            return Some(format!("{size} tokens were sent to a window of {}", self.fake.window()));
        }
        if fault.is_some() || answer.status != 200 {
            return None;
        }
        let key = self.key(who, asked.tongue, asked.body);
        // A server of an unknown window may have refused the first.
        let taken = asked.forwarded.iter().find(|seen| tokens(&seen.json()) < self.fake.window())?;
        let now = comparable(taken);
        match self.given.get(&key) {
            Some(then) if then.bytes != now => Some("the same history gave other bytes".into()),
            Some(_) => None,
            None => {
                self.given.insert(key, Given { who, messages: asked.chat.messages.len(), bytes: now });
                None
            }
        }
    }

    /// Every original that a prompt points at can be read back, word for word.
    fn can_be_read(&mut self, chat: &Chat, seen: &Seen) -> Result<(), String> {
        let texts: Vec<String> = chat.messages.iter().map(text).collect();
        let spoken = seen.messages();
        for id in ids(&seen.body) {
            // What the recall tool answered may leave the prompt as any result does; its marker names what was asked for.
            let is_of_recall = |m: &Value| m["role"] == "tool" && text(m).starts_with(&format!("[{TOOL} "));
            if spoken.iter().filter(|m| text(m).contains(&id)).all(is_of_recall) {
                continue;
            }
            let kept = self.proxy().get(&format!("/windowsill/records/{id}"));
            if kept.status != 200 {
                return Err(format!("{id} stands in the prompt, and in no record: {}", kept.text()));
            }
            let kept = check::said_in(&kept.text());
            // What the recall tool answered stands in the history too, and may leave the prompt as any result does.
            let is_its_own = texts.iter().any(|t| t.trim() == kept.trim());
            if !is_its_own && !self.was_recalled(&kept) && !self.was_asked_for(&id) {
                return Err(format!("{id} is not what the client sent: {kept:.80}"));
            }
            self.pointers.push(id);
        }
        Ok(())
    }

    /// Whether a model asked for an original by this id, of whatever conversation: then a brief may name it.
    fn was_asked_for(&self, id: &str) -> bool {
        let asks = |m: &Value| m["tool_calls"].to_string().contains(id);
        self.fake.mains().iter().any(|seen| seen.messages().iter().any(asks))
    }

    fn was_recalled(&self, kept: &str) -> bool {
        let is_it = |m: &Value| m["role"] == "tool" && text(m).trim() == kept.trim();
        self.fake.mains().iter().any(|seen| seen.messages().iter().any(is_it))
    }

    /// Whatever is not in the prompt is in the record.
    fn stands_in_the_record(&self, chat: &Chat, seen: &Seen) -> Result<(), String> {
        let there: Vec<String> = seen.messages().iter().map(text).collect();
        let gone = chat.messages.iter().map(text).filter(|t| !there.iter().any(|s| s.contains(t.trim())));
        let gone: Vec<String> = gone.collect();
        if gone.is_empty() {
            return Ok(());
        }
        let store = Store::open_readonly(&self.proxy().data()).map_err(|e| e.to_string())?;
        let rows = store.conversations(1_000).map_err(|e| e.to_string())?;
        let mut kept = Vec::new();
        for row in rows {
            kept.extend(texts_of(&store, &row.id)?);
        }
        // Messages of a history that the client left and came back to are none of its conversation's, but their originals are.
        let originals = ids(&seen.body).into_iter().filter_map(|id| store.original(&id).ok().flatten());
        kept.extend(originals.map(|original| original.text.to_string()));
        match gone.iter().find(|text| !kept.iter().any(|k| k.trim() == text.trim())) {
            Some(lost) => Err(format!("sent without it, killed, and lost: {lost:.80}")),
            None => Ok(()),
        }
    }

    /// No prompt, no question for a brief, no count has what two clients said.
    fn nobody_elses(&mut self) -> Result<(), String> {
        let new = self.fake.after(self.looked_at);
        self.looked_at += new.len();
        for seen in &new {
            let whose = check::marks(&seen.body, &self.marks);
            if whose.len() > 1 {
                return Err(format!("{} has words of {whose:?}", seen.path()));
            }
        }
        Ok(())
    }

    /// The whole history of each client can be read back from the record.
    fn all_is_kept(&mut self) -> Result<(), String> {
        let Some(proxy) = self.proxy.take() else { return Ok(()) };
        let dir = proxy.stop();
        let store = Store::open_readonly(&dir.path().join("data")).map_err(|e| e.to_string())?;
        for session in &self.sessions {
            let Some((id, chat)) = &session.known_as else { continue };
            let kept = texts_of(&store, id)?;
            let body = chat.messages.iter().skip_while(|m| m["role"] == "system");
            if let Some(lost) = body.map(text).find(|t| !kept.iter().any(|k| k.trim() == t.trim())) {
                return Err(format!("{} lacks {lost:.80}", session.mark));
            }
        }
        Ok(())
    }
}

fn texts_of(store: &Store, conversation: &str) -> Result<Vec<String>, String> {
    let rows = store.messages(conversation).map_err(|e| e.to_string())?;
    let said = |raw: &[u8]| serde_json::from_slice::<Value>(raw).map(|m| text(&m)).unwrap_or_default();
    Ok(rows.iter().map(|row| said(&row.raw)).collect())
}

/// What must be the same each time: the prompt. The room that `max_tokens` is lowered to is an estimate until a prompt was
/// counted, which gets better with each reply; where a server named a smaller window, that is another one after a restart.
fn comparable(seen: &Seen) -> Vec<u8> {
    let mut body = seen.json();
    if let Some(map) = body.as_object_mut() {
        map.shift_remove("max_tokens");
        map.get_mut("options").and_then(Value::as_object_mut).map(|o| o.shift_remove("num_predict"));
    }
    body.to_string().into_bytes()
}

/// Copies a record as it is on disk at one moment. The lock keeps others from writing meanwhile.
fn snapshot(from: &Path, to: &Path) {
    let lock = from.join("windowsill.sqlite");
    let database = rusqlite::Connection::open(&lock).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    copy(from, to);
    database.execute_batch("ROLLBACK").unwrap();
}

pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        // The index of the log in shared memory dies with its process.
        if path.extension().is_some_and(|e| e == "sqlite-shm") {
            continue;
        }
        if path.is_dir() {
            copy(&path, &target);
        } else if std::fs::copy(&path, &target).is_err() {
            assert!(!path.exists(), "{} cannot be copied", path.display());
        }
    }
}
