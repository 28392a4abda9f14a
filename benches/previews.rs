//! Previews of large results: how long one takes, beside copying and validating the same bytes in the same run, and what
//! share of the lines that matter it keeps. `cargo bench --bench previews`.
//!
//! The outputs are made up here (so that it is known what was planted in them), and, where `shared/data` is present, those
//! of real tools. Read the ratios: the times are those of the machine, and of what else runs on it.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

#[path = "support/outputs.rs"]
mod outputs;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outputs::{Output, share};
use windowsill::measure::tokens;
use windowsill::preview::{Call, Pointer, Preview, preview};

/// A preview of 1 MB of log is to take less than this.
const BAR: Duration = Duration::from_millis(20);

/// Tokens of a preview: those of a window of 4,096, 8,192 and 32,768 with the default settings.
const BUDGETS: [u32; 3] = [256, 512, 2048];

const AT: Pointer<'static> = Pointer { id: "r0123456789ab", path: "results/r0123456789ab.txt" };

fn main() -> std::io::Result<()> {
    // `cargo test --benches` only wants to see it build.
    if std::env::args().any(|a| a == "--test") {
        return Ok(());
    }
    let real = match shared() {
        Some(folder) => outputs::real(&folder)?,
        None => Vec::new(),
    };
    times(&real);
    kept("made up, 100 KB each", &outputs::made(100_000));
    if !real.is_empty() {
        kept("of real tools", &real);
    }
    Ok(())
}

fn shared() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    ["../shared/data/tool_outputs", "../../shared/data/tool_outputs"].iter().map(|p| here.join(p)).find(|p| p.is_dir())
}

fn made_of(output: &Output, budget: u32) -> Preview {
    let call = Call { tool: output.tool, arguments: output.arguments };
    preview(&output.text, &call, &AT, budget, &|text| tokens::estimate(text))
}

/// The shortest of some times: what else runs on the machine only ever adds.
fn shortest<T>(mut act: impl FnMut() -> T) -> Duration {
    let begun = Instant::now();
    let mut best = Duration::MAX;
    let mut tries = 0;
    while tries < 5 || begun.elapsed() < Duration::from_millis(400) && tries < 100 {
        let started = Instant::now();
        black_box(act());
        best = best.min(started.elapsed());
        tries += 1;
    }
    best
}

fn times(real: &[Output]) {
    println!(
        "{:<34}{:>16}{:>8}{:>9}{:>10}{:>10}{:>10}",
        "time, shortest of some", "kind", "MB", "ms", "ms/MB", "x copy", "x UTF-8"
    );
    let large = real.iter().filter(|o| o.text.len() > 200_000);
    for output in outputs::made(1_000_000).iter().chain(large) {
        let text = &output.text;
        let time = shortest(|| made_of(output, 1024));
        let copy = shortest(|| text.as_bytes().to_vec());
        let scan = shortest(|| std::str::from_utf8(black_box(text.as_bytes())).map(str::len));
        let mb = text.len() as f64 / 1e6;
        let ratio = |other: Duration| time.as_secs_f64() / other.as_secs_f64().max(1e-9);
        let bar = if time.as_secs_f64() / mb.max(1.0) < BAR.as_secs_f64() { "kept" } else { "MISSED" };
        println!(
            "{:<34}{:>16}{mb:>8.2}{:>9.2}{:>10.2}{:>10.0}{:>10.0}  bar 20 ms: {bar}",
            output.name,
            made_of(output, 1024).kind.name(),
            time.as_secs_f64() * 1e3,
            time.as_secs_f64() * 1e3 / mb,
            ratio(copy),
            ratio(scan),
        );
    }
}

/// Reads one kind of what matters out of an output.
type Wanted = fn(&Output) -> &BTreeSet<String>;

fn kept(what: &str, all: &[Output]) {
    let wanted: [(&str, Wanted); 3] = [("errors", |o| &o.errors), ("tests", |o| &o.tests), ("files", |o| &o.files)];
    print!("\n{what:<34}{:>16}", "kind");
    for (name, _) in wanted {
        print!("{:>12}", format!("{name} of"));
        BUDGETS.iter().for_each(|b| print!("{b:>6}"));
    }
    println!("   (% kept in so many tokens)");
    let mut sums = [[(0, 0); BUDGETS.len()]; 3];
    for output in all {
        let previews = BUDGETS.map(|budget| made_of(output, budget));
        if wanted.iter().all(|(_, of)| of(output).is_empty()) {
            continue;
        }
        print!("{:<34}{:>16}", output.name, previews[0].kind.name());
        for ((_, of), sums) in wanted.iter().zip(&mut sums) {
            print!("{:>12}", of(output).len());
            for (preview, sum) in previews.iter().zip(sums) {
                let (kept, total) = share(of(output), &preview.text).unwrap_or_default();
                *sum = (sum.0 + kept, sum.1 + total);
                print!("{:>6}", percent(kept, total));
            }
        }
        println!();
    }
    print!("{:<50}", "all");
    for sums in sums {
        print!("{:>12}", sums[0].1);
        sums.iter().for_each(|(kept, total)| print!("{:>6}", percent(*kept, *total)));
    }
    println!();
}

fn percent(kept: usize, total: usize) -> String {
    (kept * 100).checked_div(total).map_or("-".to_owned(), |p| p.to_string())
}
