//! Prompts that a llama-server is about to give up are parked in a file of its own and taken back from there: reading a long prompt
//! again takes minutes where its file takes a moment.
//!
//! The server does that only if it was started with `--slot-save-path`, and it says so by refusing otherwise. Newer builds keep prompts in
//! RAM by themselves (`--cache-ram`), which they do not tell: nothing is parked before a prompt was seen to be lost. Files are few and are
//! written again and again, so they take no more room on the server's disk than the longest prompts.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use tracing::{debug, info};

use super::prepared::Prepared;
use super::slots::{NAMES, Shown, holds, shown};
use crate::conversation::Tokens;
use crate::proxy::App;
use crate::proxy::state::live::Switched;
use crate::upstream::{Error, Kind, Slot, SlotFile, Upstream};
use crate::usage::Reported;

/// Files that a server keeps for us.
const FILES: usize = 8;

/// Less is read again in no time (tokens).
const LEAST: Tokens = 512;

/// A file is worth it where it takes this share of the reading at most.
const SHARE: f64 = 0.25;

/// Requests for which a server that kept a prompt by itself is not asked again.
const RESTS: u32 = 32;

/// Longest that a request waits to learn what slots hold.
const PATIENCE: Duration = Duration::from_secs(1);

/// Share of a new figure in a running mean.
const NEWEST: f64 = 0.3;

/// Fewer evaluated tokens tell nothing of a server's speed.
const TELLING: Tokens = 64;

/// What a server was left with by a conversation: tokens of its prompt, and of the reply.
type Left = (Tokens, Option<Tokens>);

/// A prompt in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parked {
    conversation: String,
    left: Left,
    file: usize,
}

/// What is known of one model of one server.
#[derive(Debug, Default)]
struct Server {
    /// The load that this is known of.
    identity: String,
    /// It was started without `--slot-save-path`, or is too old.
    cannot: bool,
    /// A prompt that no slot held any more had to be read again.
    loses: bool,
    /// Requests until it is looked again whether it loses prompts: it kept the last one.
    rests: u32,
    /// The conversation that was sent there last.
    last: Option<String>,
    /// Prompt tokens that it evaluates in a second.
    speed: Option<f64>,
    /// Tokens that it writes to a file and reads from there in a second.
    files: Option<f64>,
    /// The one written last comes last.
    parked: VecDeque<Parked>,
    /// Conversations that were sent while no slot held their prompt: whether it is lost shows in the reply.
    watched: HashMap<String, Tokens>,
}

/// What is known of all servers.
#[derive(Debug)]
pub(in crate::proxy) struct Parking(Mutex<LruCache<String, Server>>);

impl Default for Parking {
    fn default() -> Parking {
        Parking(Mutex::new(LruCache::new(NAMES)))
    }
}

impl Server {
    /// Forgets what another load of the model was like.
    fn is_of(&mut self, identity: &str) {
        if self.identity != identity {
            *self = Server { identity: identity.to_owned(), ..Server::default() };
        }
    }

    /// Whether a prompt of so many tokens is sooner taken from a file than read.
    fn pays(&self, tokens: Tokens) -> bool {
        let (Some(speed), true) = (self.speed, self.loses && !self.cannot && tokens >= LEAST) else { return false };
        // How fast its files are shows with the first one.
        self.files.is_none_or(|files| speed <= files * SHARE)
    }

    /// What is parked of a conversation, if that is what its server was left with.
    fn parked(&self, conversation: &str, left: Left) -> Option<usize> {
        let found = self.parked.iter().find(|parked| parked.conversation == conversation && parked.left == left);
        found.map(|parked| parked.file)
    }

    /// The slot that the server takes for a prompt that none holds: one never used, or else the one used longest ago.
    fn victim<'a>(&self, all: &'a [Slot]) -> Option<&'a Slot> {
        all.iter().filter(|slot| !slot.busy).min_by_key(|slot| slot.task)
    }

    /// Whose prompt a slot holds, where that is one conversation's alone, it is worth a file, and is not in one.
    fn to_park(&self, slot: &Slot, lefts: &[(String, Left)]) -> Option<(String, Left)> {
        let mut theirs = lefts.iter().filter(|(_, left)| holds(slot, *left));
        let (conversation, left) = theirs.next()?;
        let alone = theirs.next().is_none();
        (alone && self.pays(left.0) && self.parked(conversation, *left).is_none())
            .then(|| (conversation.clone(), *left))
    }

    /// The file for a conversation: the one that it has, a new one, or that of the prompt that was parked longest ago.
    fn file_for(&mut self, conversation: &str) -> usize {
        let old = self.parked.iter().position(|parked| parked.conversation == conversation);
        if let Some(parked) = old.and_then(|at| self.parked.remove(at)) {
            return parked.file;
        }
        match self.parked.len() {
            n if n < FILES => (0..FILES).find(|file| self.parked.iter().all(|p| p.file != *file)).unwrap_or(n),
            _ => self.parked.pop_front().map_or(0, |parked| parked.file),
        }
    }

    fn note_file(&mut self, told: &SlotFile) {
        let speed = told.milliseconds.filter(|ms| *ms > 0.0).map(|ms| f64::from(told.tokens) * 1000.0 / ms);
        // Of writing and reading, the slower one counts.
        self.files = speed.map(|speed| self.files.map_or(speed, |before| before.min(speed))).or(self.files);
    }
}

impl Parking {
    fn with<T>(&self, app: &App, upstream: &Upstream, model: &str, act: impl FnOnce(&mut Server) -> T) -> T {
        let identity = app.measure.windows.identity(upstream, model);
        let mut all = self.0.lock();
        let server =
            all.get_or_insert_mut(format!("{}/{}", upstream.name(), upstream.canonical(model)), Server::default);
        // While it is gone, nothing is known of it.
        identity.iter().for_each(|identity| server.is_of(identity));
        act(server)
    }
}

/// Parks the prompt that a request is about to push out of its slot, and takes its own back from where it was parked.
pub(super) async fn make_place(app: &App, upstream: &Upstream, prepared: &Prepared) {
    let model = &prepared.request.model;
    if upstream.kind() != Some(Kind::LlamaServer { router: false }) {
        return;
    }
    let with = Switched { model: upstream.canonical(model), upstream: upstream.name().to_owned() };
    let (own, others): (Vec<_>, Vec<_>) = app.lives.prompts(&with).into_iter().partition(|(id, _)| *id == prepared.id);
    let own = own.first().map(|(_, left)| *left).filter(|left| left.0 >= LEAST);
    let parking = &app.turn.parking;
    let (parked, looks) = parking.with(app, upstream, model, |server| {
        let parked = own.and_then(|left| server.parked(&prepared.id, left));
        // Who sent last has lost nothing meanwhile.
        let follows = server.last.replace(prepared.id.clone()).is_some_and(|last| last == prepared.id);
        server.rests = server.rests.saturating_sub(1);
        let pays = others.iter().any(|(_, left)| server.pays(left.0));
        let watches = own.is_some() && !others.is_empty() && server.rests == 0;
        (parked, !server.cannot && (parked.is_some() || !follows && (pays || watches)))
    });
    if !looks {
        return;
    }
    let all = tokio::time::timeout(PATIENCE, upstream.slots(model)).await.unwrap_or_default();
    let there = shown(&all, own);
    if all.is_empty() || there == Shown::Held {
        return;
    }
    let to_park = parking.with(app, upstream, model, |server| {
        let victim = server.victim(&all)?;
        Some((victim.id, server.to_park(victim, &others)))
    });
    let Some((slot, to_park)) = to_park else { return };
    if let Some((conversation, left)) = to_park {
        park(app, upstream, model, (slot, &conversation, left)).await;
    }
    let Some(left) = own.filter(|_| matches!(there, Shown::Others | Shown::Unused)) else { return };
    match parked {
        Some(file) => take_back(app, upstream, prepared, (slot, file)).await,
        // A server that was just started has lost it for another reason.
        None if there == Shown::Others => parking.with(app, upstream, model, |server| {
            server.watched.insert(prepared.id.clone(), left.0);
        }),
        None => {}
    }
}

async fn park(app: &App, upstream: &Upstream, model: &str, (slot, conversation, left): (u32, &str, Left)) {
    let parking = &app.turn.parking;
    let file = parking.with(app, upstream, model, |server| server.file_for(conversation));
    let told = upstream.save_slot(slot, &name_of(app, upstream, file)).await;
    parking.with(app, upstream, model, |server| match &told {
        Ok(told) => {
            server.note_file(told);
            server.parked.push_back(Parked { conversation: conversation.to_owned(), left, file });
        }
        // It has no folder for them, or its disk takes too long.
        Err(e) => server.cannot |= e.status().is_some() || matches!(e, Error::Timeout { .. }),
    });
    match told {
        Ok(told) => info!(conversation, slot, tokens = told.tokens, ms = told.milliseconds, "its prompt is parked"),
        Err(e) => debug!(conversation, slot, error = %e, "its prompt was not parked"),
    }
}

async fn take_back(app: &App, upstream: &Upstream, prepared: &Prepared, (slot, file): (u32, usize)) {
    let told = upstream.restore_slot(slot, &name_of(app, upstream, file)).await;
    app.turn.parking.with(app, upstream, &prepared.request.model, |server| match &told {
        Ok(told) => server.note_file(told),
        // The file is gone, or is of another model.
        Err(_) => server.parked.retain(|parked| parked.conversation != prepared.id),
    });
    match told {
        Ok(told) => {
            info!(conversation = %prepared.id, slot, tokens = told.tokens, ms = told.milliseconds, "its prompt is back")
        }
        Err(e) => debug!(conversation = %prepared.id, slot, error = %e, "its prompt did not come back"),
    }
}

/// The name of a file: other records before the same server have others.
fn name_of(app: &App, upstream: &Upstream, file: usize) -> String {
    let mut whose = DefaultHasher::new();
    (app.store.history_path("-"), upstream.name()).hash(&mut whose);
    format!("windowsill-{:08x}-{file}.bin", whose.finish() as u32)
}

/// Takes in what a reply tells of its server: its speed, and whether it lost a prompt that no slot held.
pub(super) fn learn(app: &App, upstream: &Upstream, prepared: &Prepared, reported: &Reported) {
    if upstream.kind() != Some(Kind::LlamaServer { router: false }) {
        return;
    }
    let rest = || Some(reported.prompt?.saturating_sub(reported.cached?));
    let evaluated = reported.evaluated.or_else(rest).filter(|evaluated| *evaluated >= TELLING);
    let speed = evaluated.zip(reported.prompt_ms.filter(|ms| *ms > 0.0)).map(|(n, ms)| f64::from(n) * 1000.0 / ms);
    app.turn.parking.with(app, upstream, &prepared.request.model, |server| {
        server.speed = speed.map(|now| server.speed.map_or(now, |was| was + (now - was) * NEWEST)).or(server.speed);
        let Some(left) = server.watched.remove(&prepared.id) else { return };
        // A prompt that was rewritten is read again for that.
        if let Some(cached) = reported.cached.filter(|_| !prepared.made.view_changed) {
            server.loses = cached < left / 2;
            server.rests = if server.loses { 0 } else { RESTS };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losing() -> Server {
        Server { loses: true, speed: Some(100.0), ..Server::default() }
    }

    #[test]
    fn a_file_has_to_pay() {
        let server = losing();
        assert!(server.pays(1_000) && !server.pays(500));
        assert!(!Server { loses: false, ..losing() }.pays(9_000), "it may keep prompts in RAM");
        assert!(!Server { cannot: true, ..losing() }.pays(9_000));
        assert!(!Server { files: Some(300.0), ..losing() }.pays(5_000), "its disk is slow");
        assert!(Server { files: Some(900.0), ..losing() }.pays(5_000));
    }

    #[test]
    fn what_is_in_the_way_is_parked_once() {
        let mut server = losing();
        let slot = |id, task, held| Slot { id, busy: false, task, held };
        let lefts = [("a".to_owned(), (900, Some(8))), ("b".to_owned(), (700, Some(8)))];
        let all = [slot(0, Some(4), Some(907)), slot(1, Some(2), Some(705))];
        let victim = server.victim(&all).unwrap();
        assert_eq!(victim.id, 1, "the one used longest ago");
        assert_eq!(server.to_park(victim, &lefts), Some(lefts[1].clone()));
        assert_eq!(server.to_park(&slot(1, Some(2), Some(60)), &lefts), None, "nobody's");
        let alike = [lefts[1].clone(), ("c".to_owned(), (702, Some(9)))];
        assert_eq!(server.to_park(victim, &alike), None, "one of two");
        let file = server.file_for("b");
        server.parked.push_back(Parked { conversation: "b".into(), left: (700, Some(8)), file });
        assert_eq!(server.to_park(victim, &lefts), None, "it is in a file");
        assert_eq!((server.parked("b", (700, Some(8))), server.parked("b", (800, Some(8)))), (Some(0), None));
        let fresh = [all[0], Slot { id: 2, ..Slot::default() }];
        assert_eq!(server.victim(&fresh).map(|slot| slot.id), Some(2), "one never used");
        let busy = [Slot { busy: true, ..all[0] }];
        assert_eq!(server.victim(&busy), None);
    }

    #[test]
    fn files_are_few() {
        let mut server = losing();
        for n in 0..40 {
            let file = server.file_for(&format!("c{n}"));
            assert!(file < FILES, "{n}: {file}");
            server.parked.push_back(Parked { conversation: format!("c{n}"), left: (900, None), file });
        }
        assert_eq!(server.parked.len(), FILES);
        assert_eq!(server.parked("c39", (900, None)), Some(server.file_for("c39")), "its own again");
        assert_eq!(server.parked("c1", (900, None)), None, "written over");
        server.is_of("another load");
        assert!(server.parked.is_empty() && !server.loses);
    }
}
