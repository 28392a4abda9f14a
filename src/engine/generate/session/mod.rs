//! One context and the requests answered in it: what is evaluated anew of a prompt, what is told of the reply, when it ends.
//! llama.cpp is behind [`Machine`].

mod prompt_cache;

use std::rc::Rc;
use std::time::Instant;

use serde_json::Value;

use super::text::Text;
use super::{CACHE_RAM, Ended, Event, Facts, Refused, Request, SNAPSHOTS, Wants};
use prompt_cache::{CachedPrompt, PromptCache, WORTH, beside, usable};

/// A model with one context.
pub(super) trait Machine {
    /// A request in it.
    type Job: Reply;

    /// Has the prompt written and what chooses tokens set up; else why that cannot be.
    fn begin(&mut self, request: &Value) -> Result<Self::Job, String>;
    /// What is known of a text, of tokens, or of messages without evaluating anything; else why that cannot be told.
    fn tell(&mut self, request: &Value) -> Result<Value, String>;
    /// Forgets all tokens from the nth on; `false` where that cannot be.
    fn keep(&mut self, n: usize) -> bool;
    /// Forgets all tokens.
    fn forget(&mut self);
    /// Evaluates tokens, the first at this place.
    fn evaluate(&mut self, tokens: &[i32], at: usize) -> Evaluated;
    /// What cannot be cut back of the state as it is now.
    fn snapshot(&mut self) -> Option<Vec<u8>>;
    /// Puts that back.
    fn restore(&mut self, snapshot: &[u8]) -> bool;
    /// What the whole state takes as it is now (bytes).
    fn size(&mut self) -> u64;
    /// The whole state as it is now.
    fn save(&mut self) -> Option<Vec<u8>>;
    /// Puts that in the place of what there is; `false` where that cannot be, and nothing is held then.
    fn load(&mut self, state: &[u8]) -> bool;
    /// Chooses the token behind what was evaluated last; else why llama.cpp gave up.
    fn next(&mut self, job: &mut Self::Job) -> Result<Chosen, String>;
}

/// A request that is being answered.
pub(super) trait Reply {
    /// The tokens of the prompt.
    fn prompt(&self) -> &[i32];
    /// How many tokens at its end only ask for the reply.
    fn asking(&self) -> usize;
    /// Texts that end replies of this model.
    fn stops(&self) -> &[String];
    /// Reads a chat's reply so far; what is new in it, as OpenAI's deltas.
    fn read(&mut self, text: &str, partial: bool) -> Result<Vec<Value>, String>;
}

/// What became of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evaluated {
    /// It is done.
    Done,
    /// The window is full.
    NoRoom,
    /// It was given up, as it was told.
    Stopped,
    /// llama.cpp gave up.
    Failed,
}

/// The next token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chosen {
    /// One that goes on.
    Token {
        /// Its number.
        token: i32,
        /// Its bytes.
        piece: Vec<u8>,
        /// Its odds and those of the likeliest, where they were asked for.
        odds: Option<Value>,
    },
    /// One that ends the reply.
    End,
}

/// A copy of what cannot be cut back of the state, behind so many of the tokens held.
#[derive(Clone)]
struct Snapshot {
    tokens: usize,
    bytes: Rc<[u8]>,
}

/// A context, and what it holds.
pub(super) struct Session<M> {
    machine: M,
    facts: Facts,
    /// The tokens that were evaluated and are kept.
    held: Vec<i32>,
    /// By their tokens, fewest first.
    snapshots: Vec<Snapshot>,
    /// Prompts that were held before.
    cache: PromptCache,
}

/// Nobody wants the reply any more.
struct Gone;

/// Why a reply ends before its end.
enum Broken {
    Gone,
    Refused(Refused),
}

impl From<Gone> for Broken {
    fn from(_: Gone) -> Broken {
        Broken::Gone
    }
}

impl<M: Machine> Session<M> {
    /// An empty one.
    pub(super) fn new(machine: M, facts: Facts) -> Session<M> {
        Session { machine, facts, held: Vec::new(), snapshots: Vec::new(), cache: PromptCache::default() }
    }

    /// Answers a request. `say` returns `false` when nobody wants the rest.
    pub(super) fn answer(&mut self, request: &Request, say: &mut dyn FnMut(Event) -> bool) {
        let mut say = |event| if say(event) { Ok(()) } else { Err(Gone) };
        match self.reply(request, &mut say) {
            Ok(()) => {}
            Err(Broken::Refused(why)) => {
                let _ = say(Event::Refused(why));
            }
            Err(Broken::Gone) => {}
        }
    }

    fn reply(&mut self, request: &Request, say: &mut dyn FnMut(Event) -> Result<(), Gone>) -> Result<(), Broken> {
        let begun = Instant::now();
        let bad = |why| Broken::Refused(Refused::Bad(why));
        if request.wants == Wants::Words {
            return Ok(say(Event::Words(self.machine.tell(&request.body).map_err(bad)?))?);
        }
        let mut job = self.machine.begin(&request.body).map_err(bad)?;
        let prompt = job.prompt().to_vec();
        if prompt.is_empty() {
            return Err(bad("the prompt has no tokens".into()));
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        if request.wants == Wants::Count {
            return Ok(say(Event::Counted(count(prompt.len())))?);
        }
        // The reply's first token needs a place, too.
        if count(prompt.len()) >= self.facts.n_ctx {
            let too_long = Refused::TooLong { prompt_tokens: count(prompt.len()), n_ctx: self.facts.n_ctx };
            return Err(Broken::Refused(too_long));
        }
        self.switch(&prompt, request.spare);
        let cached = self.rewind(&prompt);
        say(Event::Began { prompt_tokens: count(prompt.len()), cached_tokens: count(cached) })?;
        self.prefill(&prompt, job.asking())?;
        let prompt_ms = millis(begun);

        let begun = Instant::now();
        let stops = request.stop.iter().chain(job.stops()).cloned().collect::<Vec<_>>();
        let mut telling = Telling { text: Text::new(stops), told: 0, chat: request.body.get("messages").is_some() };
        let (cut, tokens) = self.generate(&mut job, request, &mut telling, say)?;
        telling.end(&mut job, say)?;
        say(Event::Ended(Ended {
            cut,
            stopped: telling.text.stopped().map(str::to_owned),
            prompt_tokens: count(prompt.len()),
            cached_tokens: count(cached),
            completion_tokens: tokens,
            prompt_ms,
            completion_ms: millis(begun),
        }))?;
        Ok(())
    }

    /// Caches what is held where most of it would be lost to the prompt, in `spare` bytes of RAM and what the cache takes
    /// already; and takes a cached prompt back where more of the prompt is to be had from it.
    fn switch(&mut self, prompt: &[i32], spare: u64) {
        let rewinds = self.facts.rewinds;
        let own = usable(&self.held, &self.snapshots, prompt, rewinds);
        let back = self.cache.take(prompt, rewinds, own);
        let lost = self.held.len() - own;
        if lost >= WORTH && (back.is_some() || lost > own) {
            self.cache_held(spare);
        }
        let Some(back) = back else { return };
        self.forget();
        if self.machine.load(&back.state) {
            (self.held, self.snapshots) = (back.tokens, back.snapshots);
        }
    }

    /// Caches what is held, where there is room.
    fn cache_held(&mut self, spare: u64) {
        let most = self.cache.bytes().saturating_add(spare).min(CACHE_RAM);
        let bytes = self.machine.size().saturating_add(beside(&self.held, &self.snapshots));
        if !self.cache.make_room(bytes, most) {
            return;
        }
        if let Some(state) = self.machine.save() {
            let (tokens, snapshots) = (self.held.clone(), self.snapshots.clone());
            self.cache.put(CachedPrompt { tokens, state, snapshots });
        }
    }

    /// Goes back to where the prompt parts from what is held. Returns how many of its tokens need no evaluation; the last
    /// one is evaluated in any case, for what comes behind it.
    fn rewind(&mut self, prompt: &[i32]) -> usize {
        let usable = usable(&self.held, &self.snapshots, prompt, self.facts.rewinds);
        if usable == self.held.len() {
            return usable;
        }
        self.snapshots.retain(|snapshot| snapshot.tokens <= usable);
        let kept = if self.facts.rewinds {
            self.machine.keep(usable)
        } else {
            // Of what came behind it, nothing is left in the part of the state that it is a copy of.
            let last = self.snapshots.last().filter(|last| last.tokens == usable);
            last.is_some_and(|last| self.machine.restore(&last.bytes)) && self.machine.keep(usable)
        };
        match kept {
            true => self.held.truncate(usable),
            false => self.forget(),
        }
        self.held.len()
    }

    fn forget(&mut self) {
        self.machine.forget();
        self.held.clear();
        self.snapshots.clear();
    }

    /// Evaluates what is not held of the prompt.
    fn prefill(&mut self, prompt: &[i32], asking: usize) -> Result<(), Broken> {
        let batch = (self.facts.n_batch as usize).max(1);
        let every = (self.facts.n_ctx as usize / SNAPSHOTS).max(batch);
        // The next prompt mostly goes on where this one asks for the reply.
        let before_asking = prompt.len() - asking.min(prompt.len());
        while self.held.len() < prompt.len() {
            let at = self.held.len();
            let mut end = (at + batch).min(prompt.len());
            let copy = if self.facts.rewinds {
                false
            } else {
                let marks = [before_asking, (at / every + 1) * every];
                end = marks.into_iter().filter(|mark| *mark > at).fold(end, usize::min);
                marks.contains(&end)
            };
            self.evaluate(&prompt[at..end])?;
            if copy {
                self.copy();
            }
        }
        Ok(())
    }

    /// Evaluates tokens behind those held.
    fn evaluate(&mut self, tokens: &[i32]) -> Result<(), Broken> {
        let why = match self.machine.evaluate(tokens, self.held.len()) {
            Evaluated::Done => {
                self.held.extend_from_slice(tokens);
                return Ok(());
            }
            Evaluated::Stopped => Broken::Gone,
            Evaluated::NoRoom => Broken::Refused(Refused::Failed("llama.cpp found no room in the window".into())),
            Evaluated::Failed => Broken::Refused(Refused::Failed("llama.cpp could not evaluate the prompt".into())),
        };
        // A part of them may have been.
        if !self.facts.rewinds || !self.machine.keep(self.held.len()) {
            self.forget();
        }
        Err(why)
    }

    /// Keeps a copy of the state; of many, the one goes whose neighbors are the closest.
    fn copy(&mut self) {
        let Some(bytes) = self.machine.snapshot() else { return };
        self.snapshots.push(Snapshot { tokens: self.held.len(), bytes: bytes.into() });
        if self.snapshots.len() > SNAPSHOTS {
            let gap = |i: &usize| self.snapshots[i + 1].tokens - self.snapshots[i - 1].tokens;
            if let Some(least) = (1..self.snapshots.len() - 1).min_by_key(gap) {
                self.snapshots.remove(least);
            }
        }
    }

    /// Chooses tokens until the reply ends: whether it was cut, and its tokens.
    fn generate(
        &mut self,
        job: &mut M::Job,
        request: &Request,
        telling: &mut Telling,
        say: &mut dyn FnMut(Event) -> Result<(), Gone>,
    ) -> Result<(bool, u32), Broken> {
        let most = request.max_tokens.unwrap_or(u32::MAX);
        let mut tokens = 0;
        while tokens < most {
            let chosen = self.machine.next(job).map_err(|why| Broken::Refused(Refused::Failed(why)))?;
            let Chosen::Token { token, piece, odds } = chosen else { return Ok((false, tokens + 1)) };
            tokens += 1;
            if !telling.text.push(&piece) {
                return Ok((false, tokens));
            }
            if let Some(odds) = odds {
                say(Event::Odds(odds))?;
            }
            // Even with nothing new to tell: whether anybody still listens.
            say(if telling.chat { Event::Said(Vec::new()) } else { Event::Token(token) })?;
            if request.stream {
                telling.tell(job, say)?;
            }
            if tokens == most || self.held.len() + 1 >= self.facts.n_ctx as usize {
                break;
            }
            self.evaluate(&[token])?;
        }
        Ok((true, tokens))
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

/// A reply as it is told.
struct Telling {
    text: Text,
    /// Bytes of it that were told.
    told: usize,
    chat: bool,
}

impl Telling {
    fn tell(&mut self, job: &mut impl Reply, say: &mut dyn FnMut(Event) -> Result<(), Gone>) -> Result<(), Gone> {
        let sure = self.text.sure();
        if sure.len() <= self.told {
            return Ok(());
        }
        let event = match self.chat {
            // What cannot be read yet may be later.
            true => job.read(sure, true).ok().filter(|deltas| !deltas.is_empty()).map(Event::Said),
            false => Some(Event::Text(sure[self.told..].to_owned())),
        };
        self.told = sure.len();
        event.map_or(Ok(()), say)
    }

    /// Tells the rest. A reply that is not what its template's replies look like is told as it is.
    fn end(&mut self, job: &mut impl Reply, say: &mut dyn FnMut(Event) -> Result<(), Gone>) -> Result<(), Gone> {
        self.text.end();
        let whole = self.text.whole();
        if !self.chat {
            let rest = whole.get(self.told..).unwrap_or_default();
            return if rest.is_empty() { Ok(()) } else { say(Event::Text(rest.to_owned())) };
        }
        let read = job.read(whole, false).or_else(|_| job.read(whole, true));
        let deltas = match read {
            Ok(deltas) => deltas,
            Err(_) if self.told == 0 => vec![serde_json::json!({"content": whole})],
            Err(_) => Vec::new(),
        };
        if deltas.is_empty() { Ok(()) } else { say(Event::Said(deltas)) }
    }
}

#[cfg(test)]
mod tests;
