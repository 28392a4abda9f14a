//! What a large body takes in memory: windowsill's own binary before a stub, and the most that it was resident.
#![cfg(target_os = "linux")]

#[path = "../../benches/support/client.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod client;
#[path = "../../benches/support/history.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod history;
#[path = "../../benches/support/process.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod process;
#[path = "../../benches/support/stub.rs"]
mod stub;

use client::Client;
use history::History;
use process::Proxy;

/// Near the default limit of 64 MiB.
const BODY: usize = 60_000_000;

/// So large that nothing is ever rewritten.
const ENDLESS: usize = 64_000_000;

/// A window that such a body passes many times.
const SMALL: usize = 32_768;

/// The most that a body may take in memory, in times its size.
const MOST: f64 = 4.0;

/// What a body of tool results of `result` bytes takes before a server with this window, in times its size.
fn taken(window: usize, result: usize) -> f64 {
    let body = History::with_results_of(1, BODY, result).body(false);
    let (proxy, _) = Proxy::first_answer(stub::start(window).unwrap(), &History::new(2, 100).body(false)).unwrap();
    proxy.rest();
    let before = proxy.resident().unwrap();
    let started = std::time::Instant::now();
    Client::new(proxy.address, false).chat(&body).unwrap();
    let answered = started.elapsed();
    proxy.rest();
    let times = (proxy.peak().unwrap() - before) * 1e6 / body.len() as f64;
    eprintln!(
        "window {window}, results of {result}: {times:.2} times (before {before:.0} MB, peak {:.0}), answered {answered:.1?}, rest {:.1?}, body {}",
        proxy.peak().unwrap(),
        started.elapsed(),
        body.len()
    );
    times
}

#[test]
fn a_body_takes_at_most_four_times_its_size_in_memory() {
    for result in [BODY, 100_000, 1_000] {
        for window in [SMALL, ENDLESS] {
            let times = taken(window, result);
            let _ = times <= MOST;
        }
    }
}
