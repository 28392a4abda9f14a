//! What previews keep of real runs of test runners, compilers and linters: each failure with its message, place and name.
//!
//! `WINDOWSILL_TOOL_RUNS=FOLDER` looks at other runs, made by `python3 scripts/tool-runs`; `WINDOWSILL_SHOW=NAME` says which
//! failures are lost, and shows the previews of files whose names begin so; `WINDOWSILL_ALL=1` also looks at runs with more
//! failures than a preview can hold.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::clean::clean;
use super::{Call, Pointer, preview};

const AT: Pointer<'static> = Pointer { id: "r3f9a0c", path: "/home/dev/.local/share/windowsill/r3f9a0c.txt" };

/// One output of a tool, and the failures that it tells of.
#[derive(Deserialize)]
struct Run {
    file: String,
    command: String,
    failures: Vec<Failure>,
}

/// Strings that the tool printed for one failure.
#[derive(Deserialize)]
struct Failure {
    message: String,
    place: Option<String>,
    name: Option<String>,
}

impl Failure {
    fn tokens(&self) -> u32 {
        [Some(&self.message), self.place.as_ref(), self.name.as_ref()].into_iter().flatten().map(|s| tokens(s)).sum()
    }
}

/// About what BPE vocabularies make of code and English.
fn tokens(text: &str) -> u32 {
    u32::try_from(text.len().div_ceil(3)).unwrap_or(u32::MAX)
}

/// The runs in the repository, or those of a folder that `scripts/tool-runs` filled.
fn folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tool_runs");
    std::env::var_os("WINDOWSILL_TOOL_RUNS").map_or(here, PathBuf::from)
}

/// Whether a preview tells of a failure: its message and its name as they are, its place with the file's last part.
fn told(preview: &str, failure: &Failure) -> bool {
    let base = |place: &str| place.rsplit(['/', '\\']).next().unwrap_or(place).to_owned();
    preview.contains(&failure.message)
        && failure.name.as_ref().is_none_or(|name| preview.contains(name.as_str()))
        && failure.place.as_ref().is_none_or(|place| preview.contains(&base(place)))
}

#[test]
fn failures_survive_with_their_place_and_message() {
    let folder = folder();
    let index = std::fs::read_to_string(folder.join("INDEX.json")).expect("readable");
    let runs: Vec<Run> = serde_json::from_str(&index).expect("an index of runs");
    let show = std::env::var_os("WINDOWSILL_SHOW").and_then(|s| s.into_string().ok()).unwrap_or_default();
    for (budget, least) in [(512, 95), (1024, 99)] {
        let (mut kept, mut total) = (0, 0);
        for run in &runs {
            let bytes = std::fs::read(folder.join(&run.file)).expect("readable");
            let text = String::from_utf8_lossy(&bytes);
            let arguments = serde_json::json!({ "command": run.command }).to_string();
            let call = Call { tool: "bash", arguments: &arguments };
            // What fits stands as it is.
            if tokens(&clean(&text)) <= budget {
                continue;
            }
            // What alone takes most of the budget cannot survive in it.
            let told_in: u32 = run.failures.iter().map(Failure::tokens).sum();
            if told_in > budget / 4 * 3 && std::env::var_os("WINDOWSILL_ALL").is_none() {
                continue;
            }
            let got = preview(&text, &call, &AT, budget, &tokens);
            assert!(tokens(&got.text) <= budget);
            let lost: Vec<&Failure> = run.failures.iter().filter(|f| !told(&got.text, f)).collect();
            kept += run.failures.len() - lost.len();
            total += run.failures.len();
            if !show.is_empty() && !lost.is_empty() {
                eprintln!(
                    "{budget:5} {:40} {:14} lost {} of {}",
                    run.file,
                    got.kind.name(),
                    lost.len(),
                    run.failures.len()
                );
                if run.file.starts_with(&show) {
                    lost.iter().for_each(|f| eprintln!("   {:?} {:?} {:?}", f.message, f.place, f.name));
                    eprintln!("{}\n", got.text);
                }
            }
        }
        eprintln!("{kept} of {total} failures survive in {budget} tokens");
        let elsewhere = std::env::var_os("WINDOWSILL_TOOL_RUNS").is_some();
        assert!(elsewhere || kept * 100 >= total * least, "{kept} of {total} failures survive in {budget} tokens");
    }
}
