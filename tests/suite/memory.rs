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
    Client::new(proxy.address, false).chat(&body).unwrap();
    // The record is written after the answer where nothing left the prompt.
    proxy.rest();
    let times = (proxy.peak().unwrap() - before) * 1e6 / body.len() as f64;
    eprintln!("results of {result} bytes, a window of {window}: {times:.2} times the body");
    times
}

#[test]
fn a_body_of_one_huge_result_takes_at_most_four_times_its_size() {
    assert!(taken(SMALL, BODY) <= MOST);
}

#[test]
fn a_body_of_many_results_takes_at_most_four_times_its_size() {
    assert!(taken(SMALL, 100_000) <= MOST);
}

/// Nothing leaves the prompt here: all of them go to the server and into the record.
#[test]
fn a_body_of_many_small_messages_takes_at_most_four_times_its_size() {
    assert!(taken(ENDLESS, 1_000) <= MOST);
}
