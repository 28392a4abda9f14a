//! windowsill's own binary in front of the stub, and what the system says of it (Linux only; elsewhere nothing).

use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::client::Client;

/// A running proxy with a record of its own; both go when it is dropped.
pub(crate) struct Proxy {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    dir: tempfile::TempDir,
}

impl Proxy {
    /// Starts the proxy and waits until it listens.
    pub(crate) fn start(upstream: SocketAddr) -> io::Result<Proxy> {
        let dir = tempfile::tempdir()?;
        let mut child = Command::new(env!("CARGO_BIN_EXE_windowsill"))
            .args(["serve", "--listen", "127.0.0.1:0", "--upstream", &format!("http://{upstream}"), "--data-dir"])
            .arg(dir.path().join("state"))
            .env_clear()
            .env("HOME", dir.path())
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?)
            .read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://").and_then(|a| a.parse().ok());
        match address {
            Some(address) => Ok(Proxy { child, address, dir }),
            None => {
                child.kill()?;
                child.wait()?;
                Err(io::Error::other(format!("it said `{}` instead of where it listens", line.trim())))
            }
        }
    }

    /// Starts the proxy and has it answer a request: the proxy, and how long both took together.
    pub(crate) fn first_answer(upstream: SocketAddr, body: &[u8]) -> io::Result<(Proxy, Duration)> {
        let started = Instant::now();
        let proxy = Proxy::start(upstream)?;
        Client::new(proxy.address, false).chat(body)?;
        Ok((proxy, started.elapsed()))
    }

    /// Resident memory now, in MB.
    pub(crate) fn resident(&self) -> Option<f64> {
        self.status("VmRSS:")
    }

    /// The most resident memory so far, in MB.
    pub(crate) fn peak(&self) -> Option<f64> {
        self.status("VmHWM:")
    }

    fn status(&self, key: &str) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib * 1024.0 / 1e6)
    }

    /// Processor time of all threads so far: what other load on the machine changes little.
    pub(crate) fn processor(&self) -> Option<Duration> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
        let on_cpu = |entry: io::Result<fs::DirEntry>| {
            let text = fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        Some(Duration::from_nanos(tasks.filter_map(on_cpu).sum()))
    }

    /// Waits until it has nothing to do: its processor time stands still.
    pub(crate) fn rest(&self) {
        let mut before = None;
        for _ in 0..100 {
            let now = self.processor();
            if now == before {
                return;
            }
            before = now;
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Bytes of its data folder.
    pub(crate) fn record(&self) -> u64 {
        fn size(path: &std::path::Path) -> u64 {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|e| if e.path().is_dir() { size(&e.path()) } else { e.metadata().map_or(0, |m| m.len()) }).sum()
        }
        size(self.dir.path())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Neither matters: it is gone, or the system ends it with us.
        let _ = (self.child.kill(), self.child.wait());
    }
}
