//! The window a model is to have on a server that lets a client set it, and when to insist.
//!
//! It is decided once per load. What it is worth sticking to: the same number goes out with every request, since Ollama
//! loads a model anew for another. While the model is loaded, memory may come and go; only when it has to be loaded anyway
//! is the number looked at again, and then a little more or less room changes nothing.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::config::NumCtx;
use crate::conversation::Tokens;
use crate::measure::afford::fits::WORTH_RAM;
use crate::measure::afford::{Afforded, DECISION_WAITS, Machine, OnGpu};
use crate::measure::hardware::room::size;
use crate::upstream::{Kind, Loaded, Upstream};

/// A decision stands as long as what fits now is at least this share of it …
const STANDS_FROM: f64 = 0.9;
/// … and at most this many times as much.
const STANDS_TO: f64 = 1.25;
/// A window that a model is loaded with already is taken over from this share of what fits on: loading takes time too.
const TAKEN_OVER_FROM: f64 = 0.75;
/// How often within [`PEACE`] a model is loaded back that another program loads with a window of its own.
const INSISTS: usize = 1;
/// Another program's change that is as old as this is forgotten, and what it was let have taken back.
const PEACE: Duration = Duration::from_secs(600);

/// The window decided for a model, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The `num_ctx` to send (tokens).
    pub num_ctx: Tokens,
    /// Why, in a line.
    pub because: String,
    /// Which file it was decided for.
    pub(super) file: String,
    /// What it is to take, where all of it is to be on the GPU.
    pub(super) on_gpu: Option<OnGpu>,
}

/// A window that was to fit the GPU and did not: from then on none that large is decided for this file, unless clearly more
/// fits than was thought then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ceiling {
    file: String,
    /// What was thought to fit (tokens).
    thought: Tokens,
    /// What is tried since (tokens).
    most: Tokens,
}

/// What the server did not put where it was to be; told once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spill {
    /// The window it was loaded with (tokens).
    pub(super) window: Tokens,
    /// What happened, and what was done about it.
    pub(super) why: String,
}

/// How it is going with the window a model is to have.
#[derive(Debug, Clone, Default)]
pub(super) struct Goal {
    /// The `num_ctx` that requests carry, if any.
    pub(super) set: Option<Tokens>,
    /// What was decided for `num_ctx = "fit"`.
    pub(super) decision: Option<Decision>,
    /// The window another program had the model loaded with, seen at the last look.
    pub(super) found: Option<Tokens>,
    /// Why there is no decision, or it is not insisted on.
    pub(super) excuse: Option<String>,
    /// The identity of what our own load brought about.
    pub(super) settled: Option<String>,
    /// When other programs loaded it otherwise.
    pub(super) disturbed: Vec<Instant>,
    /// The identity that it was given up on, and when.
    pub(super) yielded: Option<(String, Instant)>,
    /// The server could not load what was decided.
    pub(super) gave_up: bool,
    /// What our loads spilled to RAM, remembered.
    pub(super) ceiling: Option<Ceiling>,
    /// What the last load spilled to RAM.
    pub(super) spill: Option<Spill>,
}

impl Goal {
    /// Notes that this server has no such thing as a client setting the window.
    pub(super) fn cannot(&mut self, num_ctx: &NumCtx, upstream: &Upstream) {
        let how = match upstream.kind() {
            Some(Kind::Ollama) => "the request names no model",
            Some(Kind::LlamaServer { router: true }) => {
                "a llama-server takes its window at its start: `ctx-size` of the model in the router's preset"
            }
            Some(Kind::LlamaServer { router: false }) => "a llama-server takes its window at its start: -c",
            _ => "this server lets no client set it",
        };
        match num_ctx {
            NumCtx::Fit => self.excuse_fit(upstream, how.to_owned()),
            _ => self.excuse = None,
        }
    }

    /// Notes, and says once, why `fit` has no effect.
    fn excuse_fit(&mut self, upstream: &Upstream, why: String) {
        if self.excuse.as_deref() != Some(&why) {
            warn!(upstream = upstream.name(), why, "`num_ctx = \"fit\"` has no effect");
        }
        self.excuse = Some(why);
    }

    /// The `num_ctx` to send.
    pub(super) async fn decide(
        &mut self,
        num_ctx: &NumCtx,
        upstream: &Upstream,
        model: &str,
        loaded: &Loaded,
        machine: &Machine,
    ) -> Option<Tokens> {
        let ours = self.settled.as_deref() == Some(loaded.identity.as_str());
        if !ours && !loaded.provisional && self.settled.is_some() {
            self.found = loaded.window;
        }
        self.set = match num_ctx {
            NumCtx::Loaded => None,
            NumCtx::Fixed(n) => Some(*n),
            NumCtx::Fit if ours && self.decision.is_some() => self.standing(),
            NumCtx::Fit => self.fit(upstream, model, loaded, machine).await,
        };
        self.set
    }

    /// What was decided, for a model that is as it was left. What another program was let have ends after a while.
    fn standing(&mut self) -> Option<Tokens> {
        let over = self.yielded.as_ref().is_some_and(|(_, since)| since.elapsed() >= PEACE);
        if !over {
            return self.set;
        }
        (self.yielded, self.excuse, self.settled) = (None, None, None);
        self.decision.as_ref().map(|decision| decision.num_ctx)
    }

    async fn fit(&mut self, upstream: &Upstream, model: &str, loaded: &Loaded, machine: &Machine) -> Option<Tokens> {
        if self.yielded.as_ref().is_some_and(|(identity, _)| *identity == loaded.identity) {
            return self.set;
        }
        self.gave_up = false;
        if self.found.is_some() && self.decision.is_some() {
            // Somebody else's load: no reason to decide anew, only whether to insist.
            return self.insist(loaded);
        }
        let afforded = machine.decide(upstream, model, loaded, DECISION_WAITS).await;
        match afforded.and_then(|afforded| self.settle_on(&afforded, loaded)) {
            Ok(decision) => {
                self.excuse = None;
                let set = decision.num_ctx;
                self.decision = Some(decision);
                Some(set)
            }
            Err(why) => {
                self.excuse_fit(upstream, why);
                self.decision = None;
                None
            }
        }
    }

    /// The decision for what fits now, in the light of the last one and of what is loaded.
    pub(super) fn settle_on(&self, afforded: &Afforded, loaded: &Loaded) -> Result<Decision, String> {
        let thought = afforded.fits.best.ok_or_else(|| afforded.fits.because.clone())?;
        let ceiling = self.ceiling.as_ref().filter(|ceiling| {
            ceiling.file == afforded.file && f64::from(thought) <= f64::from(ceiling.thought) * STANDS_TO
        });
        let fits = ceiling.map_or(thought, |ceiling| thought.min(ceiling.most));
        let near = |n: Tokens| {
            let ratio = f64::from(fits) / f64::from(n.max(1));
            (STANDS_FROM..=STANDS_TO).contains(&ratio)
        };
        if let Some(last) = self.decision.as_ref().filter(|last| last.file == afforded.file && near(last.num_ctx)) {
            return Ok(last.clone());
        }
        let file = afforded.file.clone();
        let there = loaded.window.filter(|_| !loaded.provisional);
        let over = |n: &Tokens| {
            let ratio = f64::from(*n) / f64::from(fits.max(1));
            (TAKEN_OVER_FROM..=1.0 / STANDS_FROM).contains(&ratio)
        };
        if let Some(num_ctx) = there.filter(over) {
            let because =
                format!("loaded already with {num_ctx}, near enough to the {fits} that fit; {}", afforded.fits.because);
            return Ok(Decision { num_ctx, because, file, on_gpu: afforded.on_gpu.filter(|_| num_ctx <= fits) });
        }
        let because = if fits < thought {
            format!(
                "{thought} were thought to fit, but the server put a part of that in RAM; {}",
                afforded.fits.because
            )
        } else {
            afforded.fits.because.clone()
        };
        Ok(Decision { num_ctx: fits, because, file, on_gpu: afforded.on_gpu })
    }

    /// Looks at what our load came to. A window that was to be on the GPU whole and is not is lowered by what is too much:
    /// the one to load instead, once for a file; `None` where all is as it was to be, or nothing can be done.
    pub(super) fn spilled(&mut self, loaded: &Loaded) -> Option<Tokens> {
        let decision = self.decision.as_mut().filter(|decision| self.set == Some(decision.num_ctx))?;
        let (window, expected) = (decision.num_ctx, decision.on_gpu?);
        let held = loaded.held.filter(|_| !loaded.provisional && loaded.window == Some(window))?;
        let in_ram = held.total.saturating_sub(held.device);
        // The server may count what stays in RAM anyway, or not; the least it moves there is a block.
        if in_ram <= expected.host.saturating_add(expected.block / 2) {
            return None;
        }
        let over = in_ram.saturating_sub(expected.host);
        let fewer = u32::try_from(over.div_ceil(expected.per_token)).unwrap_or(Tokens::MAX);
        let lower = window.saturating_sub(fewer) / 256 * 256;
        let worth = loaded.trained.unwrap_or(WORTH_RAM).min(WORTH_RAM);
        let again = self.ceiling.as_ref().is_some_and(|ceiling| ceiling.file == decision.file);
        let told = format!(
            "{window} tokens were to fit the GPU, but the server put {} of {} in RAM ({})",
            size(in_ram),
            size(held.total),
            if loaded.asked_of == "/api/ps" { "/api/ps size and size_vram" } else { loaded.asked_of }
        );
        let (lower, then) = match (again, lower >= worth) {
            (true, _) => (None, "it stays so, for it was lowered before".to_owned()),
            (_, false) => (None, format!("it stays so, for what would fit is less than {worth}")),
            _ => (Some(lower), format!("it is loaded with {lower} instead")),
        };
        self.spill = Some(match self.spill.take() {
            // It was lowered a moment ago.
            Some(first) => {
                Spill { why: format!("{}; {} of that are in RAM all the same", first.why, size(in_ram)), ..first }
            }
            None => Spill { window, why: format!("{told}; {then}") },
        });
        // Whatever became of it, it was looked at once.
        decision.on_gpu = None;
        let lower = lower?;
        self.ceiling = Some(Ceiling { file: decision.file.clone(), thought: window, most: lower });
        (decision.num_ctx, decision.because, self.set) = (lower, told, Some(lower));
        decision.on_gpu = Some(expected);
        Some(lower)
    }

    /// Another program loaded it otherwise: once it is loaded back, then the other has its way until it is unloaded.
    pub(super) fn insist(&mut self, loaded: &Loaded) -> Option<Tokens> {
        self.disturbed.retain(|at| at.elapsed() < PEACE);
        self.disturbed.push(Instant::now());
        let decided = self.decision.as_ref().map(|decision| decision.num_ctx);
        if self.disturbed.len() <= INSISTS {
            return decided;
        }
        self.yielded = Some((loaded.identity.clone(), Instant::now()));
        self.excuse = Some("another program keeps loading the model with its own window, so it stays as that".into());
        // The same number as is loaded: Ollama loads nothing anew for it.
        loaded.window.or(decided)
    }

    /// Whether the model is loaded as it is to be: nothing needs loading.
    pub(super) fn holds(&self, loaded: &Loaded) -> bool {
        if loaded.provisional {
            return false;
        }
        if self.settled.as_deref() == Some(loaded.identity.as_str()) {
            return true;
        }
        // A request that names no window has Ollama load the model anew with its own, if another program named one.
        let Some(set) = self.set else { return false };
        let most = loaded.trained.unwrap_or(set);
        loaded.window == Some(set.min(most))
    }

    /// Remembers what our load brought about.
    pub(super) fn settle(&mut self, loaded: &Loaded) {
        self.settled = Some(loaded.identity.clone());
        if self.gave_up {
            self.yielded = self.settled.clone().map(|identity| (identity, Instant::now()));
        }
    }

    /// Goes on with what the server does by itself.
    pub(super) fn give_up(&mut self, why: &str) {
        self.set = None;
        self.decision = None;
        self.gave_up = true;
        self.excuse = Some(why.to_owned());
    }

    /// Where the number that was set comes from.
    pub(super) fn because(&self) -> String {
        match (&self.decision, &self.excuse) {
            (Some(_), Some(excuse)) => excuse.clone(),
            (Some(decision), None) => format!("fit: {}", decision.because),
            (None, _) => "set by us".to_owned(),
        }
    }

    /// Why `fit` is not done, as the end of a sentence; empty where there is nothing to excuse.
    pub(super) fn excuse(&self) -> String {
        self.excuse.as_ref().map_or_else(String::new, |why| format!("; `fit` has no effect: {why}"))
    }
}
