//! Many people, many servers of one model: which way of choosing a server reuses the most of what was read, and has people wait least.
//! A simulation, the same for the same seed: recorded sessions are played by any number of people, before servers with a cache, a queue
//! and a speed each. Every tenth server goes away for a while, half-way through.
//!
//! `cargo run --release -p windowsill-core --example fleet -- [SESSION.json …]`
#![allow(clippy::print_stdout, reason = "it prints a table")]
#![allow(clippy::unwrap_used, reason = "an example that cannot read its data has nothing to say")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Instant;

use serde_json::Value;
use windowsill_core::conversation::Tokens;
use windowsill_core::route::{Cache, Server as Seen, Standing, choose};

/// People and servers of a round, and the turns that each person takes at most.
const ROUNDS: [(usize, usize, usize); 4] = [(100, 8, 40), (1_000, 60, 30), (3_000, 160, 20), (10_000, 500, 12)];

/// Requests that a server works on at once.
const SLOTS: usize = 8;

/// Prompt tokens that a server reads in a second, and tokens that it writes for one request in a second.
const READS: f64 = 2_500.0;
const WRITES: f64 = 40.0;

/// Tokens of prompts that a server's cache holds.
const CACHE: u64 = 400_000;

/// Tokens of a window: what is longer was folded to half of that by windowsill, as far as a server can see.
const WINDOW: Tokens = 32_768;

/// Seconds that a person thinks, and an agent takes for its tools, in the mean.
const THINKS: f64 = 40.0;
const WORKS: f64 = 4.0;

/// Commits of the record for one request: the request with its view, and the reply with what it cost.
const COMMITS: f64 = 2.0;

/// What of a prompt a server is trusted to hold that it most likely lost.
const TRUSTED: f64 = 0.2;

/// Characters a token.
const CHARACTERS: usize = 4;

/// Tokens of a block of a prefix, as llm-d's scorer counts them.
const BLOCK: Tokens = 64;

/// One request of a session.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Tokens of its prompt, and how many of them the last one and its reply had.
    prompt: Tokens,
    shared: Tokens,
    reply: Tokens,
    /// A person asks, and not an agent that goes on.
    asked: bool,
}

/// A session as its client sends it: what is common to all of its conversations, and its requests.
struct Session {
    head: Tokens,
    steps: Vec<Step>,
}

impl Session {
    fn read(text: &str) -> Session {
        let told: Value = serde_json::from_str(text).unwrap();
        let tokens = |value: &Value| Tokens::try_from(value.to_string().len() / CHARACTERS).unwrap();
        let messages = told["messages"].as_array().unwrap();
        let head = tokens(&told["tools"]) + 1_500;
        let (mut steps, mut prompt, mut shared, mut asked) = (Vec::new(), head, 0, true);
        for message in messages {
            if message["role"] == "assistant" {
                let reply = tokens(message).max(1);
                steps.push(Step { prompt, shared, reply, asked });
                (prompt, asked) = (prompt + reply, false);
                shared = prompt;
                if prompt > WINDOW * 7 / 8 {
                    // It was folded: the head alone is as it was.
                    (prompt, shared) = (WINDOW / 2, head);
                }
            } else {
                prompt += tokens(message);
                asked |= message["role"] == "user";
            }
        }
        Session { head, steps }
    }
}

/// Numbers that look random, the same for the same seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn about(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.next()).ln()
    }
}

/// How a server is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    RoundRobin,
    /// A person stays with one server, whatever it does.
    Sticky,
    /// As llm-d's approximate scorer: what was sent where is guessed from the prompts, and weighed against the queue.
    Prefix,
    /// As windowsill does.
    Windowsill,
}

/// One request on its way.
#[derive(Debug, Clone, Copy)]
struct Asked {
    person: usize,
    at: f64,
}

#[derive(Default)]
struct Server {
    down: bool,
    open: usize,
    had: u64,
    line: VecDeque<Asked>,
    /// What its cache holds of whom, with when it was used; and of which client's head.
    cache: HashMap<usize, (Tokens, u64)>,
    heads: HashMap<usize, u64>,
    filled: u64,
    used: u64,
    /// Seconds that a request took lately.
    took: f64,
    /// What it holds, as replies tell windowsill: names are those of people.
    told: Cache<usize>,
    /// What was sent there lately, as a router guesses it.
    guessed: HashMap<usize, Tokens>,
}

impl Server {
    /// Tokens of a prompt that its cache has; then it has all of it.
    fn takes(&mut self, (person, session): (usize, usize), head: Tokens, step: &Step) -> Tokens {
        self.used += 1;
        let own = self.cache.get(&person).map_or(0, |(held, _)| (*held).min(step.shared));
        let common = if self.heads.contains_key(&session) { head } else { 0 };
        self.heads.insert(session, self.used);
        let held = step.prompt + step.reply;
        let before = self.cache.insert(person, (held, self.used)).map_or(0, |(held, _)| u64::from(held));
        self.filled = self.filled + u64::from(held) - before;
        while self.filled > CACHE && self.cache.len() > 1 {
            let oldest = self.cache.iter().min_by_key(|(_, (_, used))| *used).map(|(who, _)| *who).unwrap();
            self.filled -= u64::from(self.cache.remove(&oldest).unwrap().0);
        }
        own.max(common).min(step.prompt.saturating_sub(1))
    }

    fn ends(&mut self) {
        (self.cache, self.heads, self.guessed) = (HashMap::new(), HashMap::new(), HashMap::new());
        self.told = Cache::default();
        (self.filled, self.open, self.down) = (0, 0, true);
    }
}

/// What happens, and when (microseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Asks(usize),
    Done(usize, usize, u64),
    Ends(usize),
    Returns(usize),
}

struct World<'a> {
    sessions: &'a [Session],
    way: Way,
    servers: Vec<Server>,
    /// The session and the next step of each person.
    people: Vec<(usize, usize)>,
    turns: usize,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    born: u64,
    random: Random,
    next: usize,
    lives: Vec<u64>,
    sums: Sums,
}

#[derive(Default)]
struct Sums {
    requests: u64,
    prompt: u64,
    cached: u64,
    could: u64,
    first: Vec<f64>,
    moved: u64,
    over: f64,
}

impl World<'_> {
    fn happens(&mut self, at: f64, event: Event) {
        self.born += 1;
        self.events.push(Reverse(((at * 1e6) as u64, self.born, event)));
    }

    fn step(&self, person: usize) -> (usize, Tokens, Step) {
        let (session, step) = self.people[person];
        (session, self.sessions[session].head, self.sessions[session].steps[step])
    }

    fn chosen(&mut self, person: usize) -> usize {
        let count = self.servers.len();
        let up = |servers: &[Server], from: usize| {
            (0..count).map(|n| (from + n) % count).find(|at| !servers[*at].down).unwrap()
        };
        match self.way {
            Way::RoundRobin => {
                self.next = (self.next + 1) % count;
                up(&self.servers, self.next)
            }
            Way::Sticky => up(&self.servers, person * 7919 % count),
            Way::Prefix => self.by_prefix(person),
            Way::Windowsill => self.by_windowsill(person),
        }
    }

    /// Half for the share of the prompt's blocks that are thought to be there, half for a short queue.
    fn by_prefix(&self, person: usize) -> usize {
        let (session, head, step) = self.step(person);
        let deepest = self.servers.iter().map(|s| s.open + s.line.len()).max().unwrap_or(0).max(1) as f64;
        let score = |one: &Server| {
            let own = one.guessed.get(&person).map_or(0, |held| (*held).min(step.shared));
            let common = if one.heads.contains_key(&session) { head } else { 0 };
            let match_ = f64::from(own.max(common) / BLOCK * BLOCK) / f64::from(step.prompt.max(1));
            match_ + 1.0 - (one.open + one.line.len()) as f64 / deepest
        };
        let up = self.servers.iter().enumerate().filter(|(_, one)| !one.down);
        up.max_by(|(a, x), (b, y)| score(x).total_cmp(&score(y)).then(b.cmp(a))).unwrap().0
    }

    fn by_windowsill(&self, person: usize) -> usize {
        let (_, _, step) = self.step(person);
        let seen: Vec<Seen> = self
            .servers
            .iter()
            .map(|one| {
                let open = (one.open + one.line.len()) as f64;
                let before_it = (open + 1.0 - SLOTS as f64).max(0.0) / SLOTS as f64 * one.took * 1000.0;
                let held = one.told.find(|who| (*who == person).then_some(1)).map_or(0, |left| {
                    let held = left.tokens.min(step.shared);
                    if left.is_there { held } else { (f64::from(held) * TRUSTED) as Tokens }
                });
                let standing = if one.down { Standing::Down } else { Standing::Ready };
                let (waiting, busy) = (before_it + open, (open / SLOTS as f64).min(1.0));
                Seen { standing, window: None, held, waiting, busy, speed: Some(READS), had: one.had }
            })
            .collect();
        choose(step.prompt, step.reply, &seen, &[]).unwrap().at
    }

    fn asks(&mut self, person: usize, now: f64) {
        let at = self.chosen(person);
        let asked = Asked { person, at: now };
        self.servers[at].had += 1;
        if self.servers[at].open < SLOTS { self.begins(at, asked, now) } else { self.servers[at].line.push_back(asked) }
    }

    fn begins(&mut self, at: usize, asked: Asked, now: f64) {
        let (session, head, step) = self.step(asked.person);
        let cached = self.servers[at].takes((asked.person, session), head, &step);
        let read = f64::from(step.prompt - cached) / READS;
        let took = read + f64::from(step.reply) / WRITES;
        let one = &mut self.servers[at];
        one.open += 1;
        one.took = one.took * 0.7 + took * 0.3;
        one.guessed.insert(asked.person, step.prompt + step.reply);
        let sums = &mut self.sums;
        sums.requests += 1;
        (sums.prompt, sums.cached) = (sums.prompt + u64::from(step.prompt), sums.cached + u64::from(cached));
        sums.could += u64::from(step.shared.max(head).min(step.prompt));
        sums.first.push(now - asked.at + read);
        let told = &mut self.servers[at].told;
        // What a fold took out was not lost by the cache.
        let before = told.find(|who| (*who == asked.person).then_some(1));
        let before = before.map(|left| (left.name, (step.shared >= left.tokens).then_some(cached)));
        told.takes(asked.person, (step.prompt, step.prompt + step.reply), before);
        self.happens(now + took, Event::Done(at, asked.person, self.lives[at]));
    }

    fn done(&mut self, at: usize, person: usize, now: f64) {
        self.servers[at].open -= 1;
        if let Some(next) = self.servers[at].line.pop_front() {
            self.begins(at, next, now);
        }
        self.sums.over = now;
        let (session, step) = self.people[person];
        let last = self.sessions[session].steps.len().min(self.turns);
        if step + 1 < last {
            self.people[person].1 += 1;
            let asked = self.sessions[session].steps[step + 1].asked;
            let pause = self.random.about(if asked { THINKS } else { WORKS });
            self.happens(now + pause, Event::Asks(person));
        }
    }

    /// A server ends: what it was at goes to another one, and its cache is gone.
    fn ends(&mut self, at: usize, now: f64, under_way: Vec<usize>) {
        self.lives[at] += 1;
        let line: Vec<Asked> = self.servers[at].line.drain(..).collect();
        self.servers[at].ends();
        for person in under_way.into_iter().chain(line.iter().map(|asked| asked.person)) {
            self.sums.moved += 1;
            self.asks(person, now);
        }
    }

    fn plays(mut self) -> Sums {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            let now = at as f64 / 1e6;
            match event {
                Event::Asks(person) => self.asks(person, now),
                Event::Done(server, person, life) if self.lives[server] == life => self.done(server, person, now),
                Event::Done(..) => {}
                Event::Ends(server) => {
                    let pending: Vec<usize> = self
                        .events
                        .iter()
                        .filter_map(|Reverse((_, _, event))| match event {
                            Event::Done(at, person, life) if *at == server && *life == self.lives[server] => {
                                Some(*person)
                            }
                            _ => None,
                        })
                        .collect();
                    self.ends(server, now, pending);
                }
                Event::Returns(server) => self.servers[server].down = false,
            }
        }
        self.sums
    }
}

fn round(sessions: &[Session], way: Way, (people, servers, turns): (usize, usize, usize)) -> Sums {
    let mut world = World {
        sessions,
        way,
        servers: (0..servers).map(|_| Server::default()).collect(),
        people: (0..people).map(|person| (person % sessions.len(), 0)).collect(),
        turns,
        events: BinaryHeap::new(),
        born: 0,
        random: Random(7),
        next: 0,
        lives: vec![0; servers],
        sums: Sums::default(),
    };
    for person in 0..people {
        let begins = world.random.about(THINKS * 2.0);
        world.happens(begins, Event::Asks(person));
    }
    for server in (0..servers).step_by(10) {
        world.happens(150.0, Event::Ends(server));
        world.happens(240.0, Event::Returns(server));
    }
    world.plays()
}

fn main() {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/session.json").to_owned();
    let files = if named.is_empty() { vec![demo] } else { named };
    let sessions: Vec<Session> =
        files.iter().map(|file| Session::read(&std::fs::read_to_string(file).unwrap())).collect();
    println!(
        "{} sessions, {} requests; a server reads {READS} and writes {WRITES} tokens a second in each of {SLOTS} slots, and caches {CACHE} tokens\n",
        sessions.len(),
        sessions.iter().map(|s| s.steps.len()).sum::<usize>()
    );
    println!(
        "| people × servers | way | prompt from caches | of what could be | first word, median | 95 % | moved | commits a second | took |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    for size in ROUNDS {
        for way in [Way::RoundRobin, Way::Sticky, Way::Prefix, Way::Windowsill] {
            let begun = Instant::now();
            let mut sums = round(&sessions, way, size);
            sums.first.sort_by(f64::total_cmp);
            let at = |share: f64| sums.first[((sums.first.len() - 1) as f64 * share) as usize];
            println!(
                "| {} × {} | {way:?} | {:.1} % | {:.1} % | {:.2} s | {:.2} s | {} | {:.0} | {:.1} s |",
                size.0,
                size.1,
                sums.cached as f64 * 100.0 / sums.prompt as f64,
                sums.cached as f64 * 100.0 / sums.could as f64,
                at(0.5),
                at(0.95),
                sums.moved,
                sums.requests as f64 * COMMITS / sums.over,
                begun.elapsed().as_secs_f64()
            );
        }
    }
}
