//! What windowsill costs: its release binary in front of a server that answers at once, against the same server without it,
//! in the same run and by turns. `cargo bench --bench speed`.
//!
//! Read the ratios and the processor time: the times are those of the machine, and of what else runs on it. Nothing fails
//! here when a bar is missed; the table says so.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

#[path = "support/client.rs"]
mod client;
#[path = "support/history.rs"]
mod history;
#[path = "support/process.rs"]
mod process;
#[path = "support/stub.rs"]
mod stub;

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use client::{Client, Times};
use history::History;
use process::Proxy;

/// So large that nothing is ever rewritten.
const ENDLESS: usize = 16_000_000;

/// A window that long sessions pass many times.
const SMALL: usize = 8_192;

const CONVERSATIONS: u64 = 1_000;

/// Requests of each conversation.
const REQUESTS: usize = 5;

fn main() -> io::Result<()> {
    // `cargo bench` and `cargo test --benches` pass arguments of their harness; the latter only wants to see it build.
    if std::env::args().any(|a| a == "--test") {
        return Ok(());
    }
    let upstream = stub::start(ENDLESS)?;
    starting(upstream)?;
    latency(upstream)?;
    rewriting()?;
    throughput(upstream)?;
    streaming(upstream)?;
    memory("endless window", upstream)?;
    memory("8,192-token window", stub::start(SMALL)?)
}

/// The value below which `share` of all lie.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get(((values.len() as f64 * share) as usize).min(last)).copied().unwrap_or(f64::NAN)
}

fn ms(t: Duration) -> f64 {
    t.as_secs_f64() * 1000.0
}

/// A bar of the project, and whether a figure keeps it.
fn against(figure: f64, bar: f64) -> &'static str {
    if figure < bar { "kept" } else { "MISSED" }
}

fn starting(upstream: SocketAddr) -> io::Result<()> {
    let ping = History::new(1, 100).body(false);
    let mut times = Vec::new();
    for _ in 0..7 {
        let (_proxy, time) = Proxy::first_answer(upstream, &ping)?;
        times.push(ms(time));
    }
    let median = quantile(&mut times, 0.5);
    println!("start to first answered request: {median:.0} ms (bar 300: {})", against(median, 300.0));
    let (proxy, _) = Proxy::first_answer(upstream, &ping)?;
    proxy.rest();
    if let Some(idle) = proxy.resident() {
        println!("resident memory idle: {idle:.1} MB (bar 25: {})", against(idle, 25.0));
    }
    Ok(())
}

/// Times of the same requests sent straight to the server and through the proxy, by turns.
struct Compared {
    name: String,
    direct: Vec<f64>,
    proxied: Vec<f64>,
    /// Processor time of the proxy for each request, its writing of the record included.
    processor: Option<f64>,
    bars: Option<(f64, f64)>,
}

impl Compared {
    fn print_head() {
        println!(
            "\n{:<44}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
            "ms", "direct", "p99", "proxied", "p99", "added", "p99", "cpu"
        );
    }

    fn print(mut self) {
        let [d50, d99] = [0.5, 0.99].map(|q| quantile(&mut self.direct, q));
        let [p50, p99] = [0.5, 0.99].map(|q| quantile(&mut self.proxied, q));
        let (a50, a99) = (p50 - d50, p99 - d99);
        let processor = self.processor.map_or("-".into(), |c| format!("{c:.2}"));
        let name = self.name;
        print!("{name:<44}{d50:>9.2}{d99:>9.2}{p50:>9.2}{p99:>9.2}{a50:>9.2}{a99:>9.2}{processor:>9}");
        match self.bars {
            Some((b50, b99)) => println!("  bar {b50}: {}, {b99}: {}", against(a50, b50), against(a99, b99)),
            None => println!(),
        }
    }
}

/// Sends what `next` makes to both, one after the other.
fn compare(
    name: &str,
    clients: (&mut Client, &mut Client),
    proxy: &Proxy,
    rounds: usize,
    mut next: impl FnMut(usize) -> Vec<u8>,
) -> io::Result<Compared> {
    let mut out =
        Compared { name: name.to_owned(), direct: Vec::new(), proxied: Vec::new(), processor: None, bars: None };
    proxy.rest();
    let before = proxy.processor();
    for round in 0..rounds {
        let body = next(round);
        // Each goes first as often as the other: it is the first that finds the caches cold.
        if round % 2 == 0 {
            out.direct.push(ms(clients.0.chat(&body)?.whole));
            out.proxied.push(ms(clients.1.chat(&body)?.whole));
        } else {
            out.proxied.push(ms(clients.1.chat(&body)?.whole));
            out.direct.push(ms(clients.0.chat(&body)?.whole));
        }
    }
    proxy.rest();
    if let (Some(before), Some(after)) = (before, proxy.processor()) {
        out.processor = Some(ms(after.saturating_sub(before)) / rounds as f64);
    }
    Ok(out)
}

fn latency(upstream: SocketAddr) -> io::Result<()> {
    let (proxy, _) = Proxy::first_answer(upstream, &History::new(1, 100).body(false))?;
    Compared::print_head();
    for keep in [true, false] {
        let (mut direct, mut proxied) = (Client::new(upstream, keep), Client::new(proxy.address, keep));
        let both = (&mut direct, &mut proxied);
        let body = History::new(2, 2_000).body(false);
        let name = format!("2 KB, {}", if keep { "keep-alive" } else { "new connections" });
        let mut compared = compare(&name, both, &proxy, 1000, |_| body.clone())?;
        compared.bars = Some((0.3, 1.0));
        compared.print();
    }
    let (mut direct, mut proxied) = (Client::new(upstream, true), Client::new(proxy.address, true));
    for (name, bytes, rounds) in [("200 KB", 200_000, 200), ("2 MB", 2_000_000, 60)] {
        // New text for each request; the direct one profits as much from what the machine has cached.
        let first = compare(&format!("{name} first seen"), (&mut direct, &mut proxied), &proxy, rounds / 5, |round| {
            History::new(1000 + (bytes + round) as u64, bytes).body(false)
        })?;
        first.print();
        let mut history = History::new(3, bytes);
        proxied.chat(&history.body(false))?;
        let name = format!("{name} seen before, one message more");
        let mut again = compare(&name, (&mut direct, &mut proxied), &proxy, rounds, |_| {
            history.say();
            history.body(false)
        })?;
        again.bars = (bytes == 2_000_000).then_some((15.0, f64::INFINITY));
        again.print();
    }
    for turns in [500, 6_000, 10_000] {
        let mut history = History::new(5 + turns as u64, 0);
        (0..turns).for_each(|_| {
            history.say();
            history.reply();
        });
        history.say();
        proxied.chat(&history.body(false))?;
        let mut again = compare(&format!("{turns} turns, one more"), (&mut direct, &mut proxied), &proxy, 60, |_| {
            history.reply();
            history.say();
            history.body(false)
        })?;
        again.bars = Some((15.0, f64::INFINITY));
        again.print();
    }
    if let Some(resident) = proxy.resident() {
        println!("resident memory after these: {resident:.1} MB");
    }
    Ok(())
}

/// A session whose history passes the window: each request is rewritten, and counted by the server.
fn rewriting() -> io::Result<()> {
    let upstream = stub::start(SMALL)?;
    let (proxy, _) = Proxy::first_answer(upstream, &History::new(1, 100).body(false))?;
    let (mut direct, mut proxied) = (Client::new(upstream, true), Client::new(proxy.address, true));
    for (bytes, rounds) in [(200_000, 60), (2_000_000, 30)] {
        let mut history = History::new(4, bytes);
        proxied.chat(&history.body(false))?;
        let name = format!("{} KB in a window of {SMALL}, a step more", bytes / 1000);
        compare(&name, (&mut direct, &mut proxied), &proxy, rounds, |_| {
            history.step();
            history.body(false)
        })?
        .print();
    }
    Ok(())
}

fn throughput(upstream: SocketAddr) -> io::Result<()> {
    let (proxy, _) = Proxy::first_answer(upstream, &History::new(1, 100).body(false))?;
    println!("\n{:<24}{:>12}{:>12}{:>9}", "requests/s, 2 KB", "direct", "proxied", "ratio");
    for clients in [1, 16, 64] {
        let (mut direct, mut proxied): (f64, f64) = (0.0, 0.0);
        for _ in 0..3 {
            direct = direct.max(load(upstream, clients)?);
            proxied = proxied.max(load(proxy.address, clients)?);
        }
        println!("{:<24}{direct:>12.0}{proxied:>12.0}{:>9.2}", format!("{clients} at a time"), proxied / direct);
    }
    Ok(())
}

/// Requests in a second, each client with a conversation of its own.
fn load(address: SocketAddr, clients: u64) -> io::Result<f64> {
    const EACH: Duration = Duration::from_secs(1);
    let started = Instant::now();
    let run = |seed: u64| -> io::Result<usize> {
        let body = History::new(100 + seed, 2_000).body(false);
        let mut client = Client::new(address, true);
        let mut done = 0;
        while started.elapsed() < EACH {
            client.chat(&body)?;
            done += 1;
        }
        Ok(done)
    };
    let counts: Vec<io::Result<usize>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|seed| scope.spawn(move || run(seed))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(io::Error::other("a client panicked")))).collect()
    });
    let total = counts.into_iter().sum::<io::Result<usize>>()?;
    Ok(total as f64 / started.elapsed().as_secs_f64())
}

fn streaming(upstream: SocketAddr) -> io::Result<()> {
    let (proxy, _) = Proxy::first_answer(upstream, &History::new(1, 100).body(false))?;
    let body = History::new(5, 2_000).body(true);
    let (mut direct, mut proxied) = (Client::new(upstream, true), Client::new(proxy.address, true));
    let (mut to, mut through): (Vec<Times>, Vec<Times>) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        to.push(direct.chat(&body)?);
        through.push(proxied.chat(&body)?);
    }
    println!("\n{:<24}{:>12}{:>12}{:>9}", "stream, ms at p50", "direct", "proxied", "added");
    for (name, read) in [("first byte", (|t| ms(t.first)) as fn(&Times) -> f64), ("whole", |t| ms(t.whole))] {
        let [d, p] = [&to, &through].map(|all| quantile(&mut all.iter().map(read).collect::<Vec<_>>(), 0.5));
        println!("{name:<24}{d:>12.2}{p:>12.2}{:>9.2}", p - d);
    }
    Ok(())
}

fn memory(name: &str, upstream: SocketAddr) -> io::Result<()> {
    let (proxy, _) = Proxy::first_answer(upstream, &History::new(1, 100).body(false))?;
    let mut client = Client::new(proxy.address, true);
    let mut bytes = 0;
    for conversation in 0..CONVERSATIONS {
        let mut history = History::new(10_000 + conversation, 12_000);
        for _ in 0..REQUESTS {
            client.chat(&history.body(false))?;
            history.step();
        }
        bytes += history.bytes();
    }
    proxy.rest();
    let (Some(resident), Some(peak)) = (proxy.resident(), proxy.peak()) else { return Ok(()) };
    println!(
        "\n{CONVERSATIONS} conversations of {REQUESTS} requests, {name}: resident {resident:.1} MB (bar 60: {}), peak {peak:.1} MB, \
         record {:.2} of the {:.0} MB said",
        against(resident, 60.0),
        proxy.record() as f64 / bytes as f64,
        bytes as f64 / 1e6
    );
    Ok(())
}
