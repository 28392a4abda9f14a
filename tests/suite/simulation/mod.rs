//! Simulated sessions: one seed makes a world of a proxy, its record, a server that misbehaves, and five clients, two of which have
//! much in common in every second world. Each step is a request, a crash (at a single write of the record, too) or a restart, and
//! after each the invariants are checked. The machine sleeps in the middle of a question about the server, and its clock jumps by
//! years while no proxy runs.
//!
//! The harness is ours. turmoil and madsim simulate a network of their own, and need everything to be built on it: reqwest,
//! hyper and tokio's timers here are the real ones, and the record's writer is a thread with SQLite. What they would add is
//! control over time; here no time passes at all: a server that says nothing says nothing until its client gives up.
//!
//! A violation is printed with its seed and the steps that led to it; the requests are left in `target/simulation`.
//! `WINDOWSILL_SEED=7` plays that world alone, `WINDOWSILL_SESSIONS=100000` plays that many sessions, and
//! `WINDOWSILL_KEEP_GOING=1` plays on after a violation. Threads make the order of background work differ between runs.

mod check;
mod faults;
mod session;
mod trap;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use world::{SESSIONS, World};

/// Sessions of a run that is told nothing else: a fifth of a second of one slow core each.
const USUAL: u64 = 1000;

fn number(name: &str) -> Option<u64> {
    std::env::var_os(name)
        .map(|n| n.to_str().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{name} is a number")))
}

/// Plays one world; says what was wrong, and how it came to it.
fn play(seed: u64) -> Result<usize, String> {
    let mut world = World::new(seed);
    let played = catch_unwind(AssertUnwindSafe(|| world.play()));
    let wrong = match played {
        Ok(Ok(steps)) => return Ok(steps),
        Ok(Err(wrong)) => wrong,
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
        }
    };
    Err(format!("WINDOWSILL_SEED={seed}\n  {}\n  {}: {wrong}", world.log.join("\n  "), world.step))
}

#[test]
fn no_session_breaks_an_invariant() {
    let seeds = match (number("WINDOWSILL_SEED"), number("WINDOWSILL_SESSIONS")) {
        (Some(seed), None) => seed..seed + 1,
        (first, count) => {
            let first = first.unwrap_or(1);
            first..first + count.unwrap_or(USUAL).div_ceil(SESSIONS as u64)
        }
    };
    let keeps_going = std::env::var_os("WINDOWSILL_KEEP_GOING").is_some();
    let (next, steps, stopped) = (AtomicU64::new(seeds.start), AtomicUsize::new(0), AtomicBool::new(false));
    let wrong = Mutex::new(Vec::new());
    let worker = || {
        while !stopped.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match play(seed) {
                Ok(played) => drop(steps.fetch_add(played, Ordering::Relaxed)),
                Err(violation) => {
                    eprintln!("{violation}");
                    stopped.store(!keeps_going, Ordering::Relaxed);
                    wrong.lock().unwrap().push(violation);
                }
            }
        }
    };
    let workers = 2 * std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(worker);
        }
    });
    let worlds = seeds.end - seeds.start;
    eprintln!("{} sessions, {} steps", worlds * SESSIONS as u64, steps.load(Ordering::Relaxed));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {worlds} worlds broke an invariant; the first:\n{}", wrong.len(), wrong[0]);
}

#[test]
fn worlds_that_broke_an_invariant_once_no_longer_do() {
    // A prompt without room for the recall tool got it when it was sent again; words that were cut uncounted stay cut; a
    // client that went back asked for what had been folded since, and was refused; a window had no room for a call of the recall
    // tool; a prompt that went without the tool got it when it was sent again, and what was asked last was cut for it; after a
    // refusal, what was asked last was to be cut to a size by other counts than the plan's, and was sent whole.
    for seed in [2129, 5208, 928572, 2003640, 5007901, 5010145, 7700009] {
        play(seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}
