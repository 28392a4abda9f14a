//! Inputs that nobody wrote: whatever comes from clients, servers and files is read without a panic, in bounded time, and what
//! is read is read alike however it was cut. Starts from the corpora in `fuzz/corpus` and changes them at random, the same way
//! for the same seed.
//!
//! Each target runs for some seconds. For hours, with other inputs each time:
//! `WINDOWSILL_FUZZ_SECONDS=3600 WINDOWSILL_FUZZ_SEED=7 cargo test --features live --test suite fuzz`. An input that breaks
//! something is kept in `target/fuzz`; under a name that says what it is about it goes to `fuzz/regressions/TARGET`, where it is
//! read before all others, forever.

mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::support::Dice;
use targets::Target;

/// The longest input (bytes).
const LONGEST: usize = 64 * 1024;

/// Inputs that were understood are kept to be changed further, so many.
const KEPT: usize = 256;

/// The longest that reading one input may take, in a debug build on a busy machine.
const SLOW: Duration = Duration::from_secs(20);

fn setting(name: &str) -> Option<u64> {
    std::env::var_os(name)?.to_str()?.parse().ok()
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
}

/// Reads one input; whether it was understood, or what went wrong.
fn tried(target: &Target, input: &[u8]) -> Result<bool, String> {
    let started = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (target.read)(input)));
    let took = started.elapsed();
    match result {
        Ok(_) if took > SLOW => Err(format!("it took {took:?}")),
        Ok(understood) => Ok(understood),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(said.unwrap_or("a panic").to_owned())
        }
    }
}

/// Runs a target: the regressions, the corpus, and what becomes of it.
fn run(target: &Target) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = |kind: &str| root.join("fuzz").join(kind).join(target.name);
    for (name, input) in files(&folder("regressions")) {
        tried(target, &input).unwrap_or_else(|why| panic!("fuzz/regressions/{}/{name}: {why}", target.name));
    }
    let corpus = files(&folder("corpus"));
    assert!(!corpus.is_empty(), "fuzz/corpus/{} is empty", target.name);
    for (name, input) in &corpus {
        let understood = tried(target, input).unwrap_or_else(|why| panic!("fuzz/corpus/{}/{name}: {why}", target.name));
        assert!(understood, "fuzz/corpus/{}/{name} is not even understood", target.name);
    }
    let mut pool: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    let mine = pool.len();
    let seed = setting("WINDOWSILL_FUZZ_SEED").unwrap_or(1);
    let mut dice = Dice(seed.wrapping_mul(0x1_0001));
    let end = Instant::now() + Duration::from_secs(setting("WINDOWSILL_FUZZ_SECONDS").unwrap_or(6));
    let (mut inputs, mut understood) = (0_u64, 0_u64);
    while Instant::now() < end {
        let input = changed(&mut dice, &pool, target.words);
        inputs += 1;
        match tried(target, &input) {
            Ok(false) => {}
            Ok(true) => {
                understood += 1;
                if pool.len() < mine + KEPT {
                    pool.push(input);
                } else if dice.chance(5) {
                    let at = mine + dice.below(KEPT);
                    pool[at] = input;
                }
            }
            Err(why) => panic!("{}: seed {seed}, input {inputs}, kept in {}: {why}", target.name, keep(target, &input)),
        }
    }
    assert!(inputs > 10 && understood > 0, "{}: {inputs} inputs, {understood} understood", target.name);
}

fn keep(target: &Target, input: &[u8]) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/fuzz");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{}-{}", target.name, blake3::hash(input).to_hex().get(..12).unwrap()));
    std::fs::write(&path, input).unwrap();
    path.display().to_string()
}

/// An input of the pool, changed in a few places.
fn changed(dice: &mut Dice, pool: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut input = pool[dice.below(pool.len())].clone();
    for _ in 0..=dice.below(6) {
        let at = dice.below(input.len() + 1);
        let to = (at + 1 + dice.below(40)).min(input.len());
        match dice.below(10) {
            0 if at < input.len() => input[at] ^= 1 << dice.below(8),
            1 => drop(input.drain(at.min(to)..to)),
            2 => {
                let copy = input[at.min(to)..to].to_vec();
                insert(&mut input, at, &copy);
            }
            3 => {
                let bytes: Vec<u8> = (0..=dice.below(8)).map(|_| dice.next() as u8).collect();
                insert(&mut input, at, &bytes);
            }
            // What a format knows is worth more than noise.
            4 | 5 => insert(&mut input, at, words[dice.below(words.len())].as_bytes()),
            6 => {
                let other = &pool[dice.below(pool.len())];
                let from = dice.below(other.len() + 1);
                let part = other[from..(from + dice.below(400)).min(other.len())].to_vec();
                insert(&mut input, at, &part);
            }
            7 => {
                let number = ["0", "-1", "1e309", "18446744073709551616", "0.1", "4294967296"][dice.below(6)];
                let digits = |byte: &u8| byte.is_ascii_digit();
                let start = input.iter().skip(at).position(digits).map_or(at, |n| at + n);
                let end = start + input[start..].iter().take_while(|byte| digits(byte)).count();
                input.splice(start..end, number.bytes());
            }
            8 => input.truncate(at),
            // Deep nesting, long runs.
            _ => {
                let word = words[dice.below(words.len())].repeat(1 + dice.below(3_000));
                insert(&mut input, at, word.as_bytes());
            }
        }
        input.truncate(LONGEST);
    }
    input
}

fn insert(into: &mut Vec<u8>, at: usize, what: &[u8]) {
    let at = at.min(into.len());
    into.splice(at..at, what.iter().copied());
}

#[test]
fn chat_completions() {
    run(&targets::CHAT);
}

#[test]
fn messages() {
    run(&targets::MESSAGES);
}

#[test]
fn responses() {
    run(&targets::RESPONSES);
}

#[test]
fn ollama() {
    run(&targets::OLLAMA);
}

#[test]
fn event_streams() {
    run(&targets::EVENTS);
}

#[test]
fn lines() {
    run(&targets::LINES);
}

#[test]
fn model_headers() {
    run(&targets::GGUF);
}

#[test]
fn overflows() {
    run(&targets::OVERFLOW);
}

#[test]
fn configs() {
    run(&targets::CONFIG);
}
