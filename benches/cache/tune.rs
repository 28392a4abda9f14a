//! A sweep of the thresholds: one after the other is varied, each time from the best so far, until nothing gets better. What
//! counts is the tokens evaluated in all kinds of session alike, as long as as much is known at the end.

use windowsill::conversation::Tokens;
use windowsill::plan::{FoldAt, KeepRecent, Policy, ResultRules};
use windowsill::store::Store;

use super::policy;
use super::replay::{Setting, Writer, replay};
use super::sessions::Session;
use super::tally::Tally;

/// How much less may be known at the end, in shares of what is worth knowing.
const LESS_KNOWN: f64 = 0.015;

/// Settings that are printed.
const SHOWN: usize = 6;

/// Rounds of varying each threshold.
const ROUNDS: usize = 2;

/// A threshold: its name, the values that are tried, and how it is set.
type Threshold = (&'static str, &'static [f64], fn(&mut Policy, f64));

const THRESHOLDS: [Threshold; 5] = [
    ("clear_at", &[0.45, 0.6, 0.7, 0.8, 1.0], |p, v| p.clear_at = v),
    ("clear_to", &[0.2, 0.3, 0.4, 0.5], |p, v| p.clear_to = v),
    ("summarize_at", &[0.65, 0.75, 0.85, 0.95], |p, v| p.summarize_at = v),
    ("summarize_to", &[0.2, 0.3, 0.4, 0.45, 0.55], |p, v| p.summarize_to = v),
    ("keep_recent", &[2.0, 4.0, 6.0, 8.0], |p, v| p.keep_recent = KeepRecent::Messages(v as usize)),
];

/// A policy with some thresholds set, as in `clear_at=0.7,keep_recent=4`.
pub(crate) fn with(policy: &Policy, changes: &str) -> Policy {
    let mut policy = policy.clone();
    for (name, value) in changes.split(',').filter_map(|change| change.split_once('=')) {
        let value = value.parse().expect("a number");
        let (_, _, set) = THRESHOLDS.iter().find(|t| t.0 == name).expect("the name of a threshold");
        set(&mut policy, value);
    }
    policy
}

/// What a setting came to.
struct Tried {
    policy: Policy,
    /// Tokens evaluated over the ideal, for each kind of session.
    kinds: Vec<f64>,
    /// Tokens evaluated over those with the defaults, all kinds alike.
    cost: f64,
    /// Share of what is worth knowing that stands in plain view at the end.
    known: f64,
    answered: usize,
}

struct Sweep<'a> {
    window: Tokens,
    background: bool,
    kinds: Vec<(&'static str, Vec<&'a Session>)>,
    store: &'a Store,
    tried: Vec<Tried>,
}

/// Prints the best settings for a window, and where the defaults of each profile stand among all that were tried.
pub(crate) fn table(window: Tokens, kinds: Vec<(&'static str, Vec<&Session>)>, background: bool, store: &Store) {
    let names: Vec<&str> = kinds.iter().map(|k| k.0).collect();
    let mut sweep = Sweep { window, background, kinds, store, tried: Vec::new() };
    let start = sweep.at(&policy("some-model"));
    let profiles =
        [("default", start), ("medium", sweep.at(&policy("qwen2.5:7b"))), ("small", sweep.at(&policy("smollm2:135m")))];
    // What arrives is evicted all the same: a preview instead of a result is another question.
    let small = &sweep.tried[profiles[2].1].policy;
    let usual = &sweep.tried[start].policy;
    let results = ResultRules { evict_over: usual.results.evict_over, ..small.results.clone() };
    let small = Policy { results, summary_max_tokens: usual.summary_max_tokens, ..small.clone() };
    for from in [start, sweep.at(&small)] {
        sweep.descend(from, start);
    }
    let admissible = |t: &Tried| sweep.is_admissible(t, start);
    let mut order: Vec<usize> = (0..sweep.tried.len()).filter(|i| admissible(&sweep.tried[*i])).collect();
    order.sort_by(|a, b| sweep.tried[*a].cost.total_cmp(&sweep.tried[*b].cost));
    let when = if background { "briefs ahead of need" } else { "briefs waited for" };
    println!("\nwindow {window}, {when}: {} settings, {} lose nothing", sweep.tried.len(), order.len());
    print!(
        "{:<9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>8}{:>7}",
        "", "clear_at", "clear_to", "summ_at", "summ_to", "keep", "cost", "known"
    );
    names.iter().for_each(|name| print!("{name:>11}"));
    println!();
    for (rank, at) in order.iter().take(SHOWN).enumerate() {
        sweep.tried[*at].print(&format!("{}", rank + 1), window);
    }
    for (name, at) in profiles {
        let rank = order.iter().position(|i| *i == at).map_or("-".to_owned(), |r| (r + 1).to_string());
        sweep.tried[at].print(&format!("{name} {rank}"), window);
    }
}

impl Sweep<'_> {
    /// The index of a setting, tried now if it was not before.
    fn at(&mut self, policy: &Policy) -> usize {
        if let Some(known) = self.tried.iter().position(|t| t.policy == *policy) {
            return known;
        }
        let fold_at = if self.background { policy.fold_at } else { FoldAt::Line };
        let policy_then = Policy { fold_at, ..policy.clone() };
        let setting = Setting { policy: policy_then, background: self.background, writer: Writer::Blank };
        let (mut kinds, mut all) = (Vec::new(), Tally::default());
        for (_, sessions) in &self.kinds {
            let mut sum = Tally::default();
            sessions.iter().for_each(|s| sum.add(replay(s, self.window, &setting, self.store)));
            kinds.push(sum.over_ideal(sum.one));
            all.add(sum);
        }
        let first = self.tried.first().map_or(&kinds, |t| &t.kinds);
        let logs: f64 = kinds.iter().zip(first).map(|(kind, first)| (kind / first).ln()).sum();
        let cost = (logs / kinds.len().max(1) as f64).exp();
        let known = all.visible / all.wanted.max(1) as f64;
        self.tried.push(Tried { policy: policy.clone(), kinds, cost, known, answered: all.answered });
        self.tried.len() - 1
    }

    fn is_admissible(&self, tried: &Tried, start: usize) -> bool {
        let least = &self.tried[start];
        // Another size for eviction is another question.
        let alike = tried.policy.results.evict_over == least.policy.results.evict_over;
        alike && tried.known >= least.known - LESS_KNOWN && tried.answered >= least.answered
    }

    fn descend(&mut self, from: usize, start: usize) {
        let mut best = from;
        for _ in 0..ROUNDS {
            let before = best;
            for (_, values, set) in THRESHOLDS {
                for value in values {
                    let mut policy = self.tried[best].policy.clone();
                    set(&mut policy, *value);
                    if policy.clear_to >= policy.clear_at || policy.summarize_to >= policy.summarize_at {
                        continue;
                    }
                    let at = self.at(&policy);
                    let (new, old) = (&self.tried[at], &self.tried[best]);
                    let better = new.cost < old.cost || !self.is_admissible(old, start);
                    if better && self.is_admissible(new, start) {
                        best = at;
                    }
                }
            }
            if best == before {
                break;
            }
        }
    }
}

impl Tried {
    fn print(&self, name: &str, window: Tokens) {
        let Policy { clear_at, clear_to, summarize_at, summarize_to, keep_recent, .. } = self.policy;
        let keep_recent = keep_recent.messages(window);
        print!(
            "{name:<9}{clear_at:>9.2}{clear_to:>9.2}{summarize_at:>9.2}{summarize_to:>9.2}{keep_recent:>8}{:>8.3}{:>6.0}%",
            self.cost,
            self.known * 100.0
        );
        self.kinds.iter().for_each(|k| print!("{k:>11.3}"));
        println!();
    }
}
