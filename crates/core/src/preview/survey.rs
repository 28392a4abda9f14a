//! Tests of the whole: budgets, markers, speed, and what is kept of the tool outputs in the shared data.

use std::collections::BTreeSet;
use std::path::PathBuf;

use proptest::prelude::*;

#[path = "../../../../benches/support/outputs.rs"]
mod outputs;

use super::place::{gist, place};
use super::signal::{Grade, grade};
use super::{Call, Kind, Pointer, clean, preview};

const AT: Pointer<'static> = Pointer { id: "r3f9a0c", path: "/home/dev/.local/share/windowsill/r3f9a0c.txt" };

/// About what BPE vocabularies make of code and English; every CJK character one token.
fn tokens(text: &str) -> u32 {
    let wide = text.chars().filter(|c| *c as u32 > 0x2e00).count();
    let narrow: usize = text.chars().filter(|c| *c as u32 <= 0x2e00).map(char::len_utf8).sum();
    u32::try_from(wide + narrow.div_ceil(3)).unwrap_or(u32::MAX)
}

/// Outputs of tools: the data set's, where it lies beside this checkout, else the excerpt that is in the repository.
fn shared() -> PathBuf {
    // For a look at other outputs: a folder of files.
    if let Some(folder) = option_env!("WINDOWSILL_OUTPUTS") {
        return PathBuf::from(folder);
    }
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let places = ["../../../shared/data", "../../../../shared/data", "../../tests/data/excerpts"];
    let found = places.iter().map(|p| here.join(p).join("tool_outputs")).find(|p| p.is_dir());
    found.expect("tests/data/excerpts/tool_outputs is in the repository")
}

/// The call that an agent would have made for a file of the data.
fn call_for(file: &str) -> Call<'static> {
    match file {
        f if f.starts_with("grep") => Call { tool: "bash", arguments: r#"{"command":"grep -rn 'fn ' ."}"# },
        f if f.starts_with("ls") => Call { tool: "bash", arguments: r#"{"command":"ls -laR"}"# },
        f if f.ends_with(".js") || f.ends_with(".csv") => {
            Call { tool: "read_file", arguments: r#"{"path":"data/file"}"# }
        }
        _ => Call { tool: "bash", arguments: r#"{"command":"./run.sh"}"# },
    }
}

#[test]
fn the_shared_outputs_keep_what_matters() {
    let folder = shared();
    let least = if folder.ends_with("excerpts/tool_outputs") { 9 } else { 30 };
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("readable")
        .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.retain(|n| n != "INDEX.json");
    names.sort();
    assert!(names.len() >= least || option_env!("WINDOWSILL_OUTPUTS").is_some(), "{}", names.len());
    eprintln!(
        "{:34} {:16} {:>7} {:>6} {:>6} | errors kept, files kept at 300, 600, 1200 tokens",
        "file", "kind", "ms", "errors", "files"
    );
    for name in &names {
        let bytes = std::fs::read(folder.join(name)).expect("readable");
        let text = String::from_utf8_lossy(&bytes);
        let plain = clean(&text);
        let graded = grade(&plain);
        let mut errors = BTreeSet::new();
        let mut files = BTreeSet::new();
        for (line, _) in graded.lines.iter().zip(&graded.grades).filter(|(_, g)| **g == Grade::Error) {
            // What is said after the place is what counts.
            let said = place(line)
                .map_or(*line, |p| &line[p.whole.as_ptr() as usize - line.as_ptr() as usize + p.whole.len()..]);
            errors.insert((gist(line), said.trim().chars().take(40).collect::<String>().trim().to_owned()));
            if let Some(found) = place(line) {
                files.insert(found.file.rsplit(['/', '\\']).next().unwrap_or(found.file).to_owned());
            }
        }
        let mut seen = BTreeSet::new();
        errors.retain(|(gist, _)| seen.insert(*gist));
        let mut row = String::new();
        let mut kind = Kind::Text;
        let started = std::time::Instant::now();
        for budget in [300, 600, 1200] {
            let got = preview(&text, &call_for(name), &AT, budget, &tokens);
            kind = got.kind;
            assert!(tokens(&got.text) <= budget, "{name} at {budget}: {}", tokens(&got.text));
            assert!(got.text.contains(AT.id) && got.text.contains("windowsill recall"), "{name}: {}", got.text);
            let share = |kept: usize, all: usize| {
                (kept * 100).checked_div(all).map_or("  - ".to_owned(), |p| format!("{p:3}%"))
            };
            let lost: Vec<&String> = errors.iter().map(|(_, l)| l).filter(|l| !got.text.contains(l.as_str())).collect();
            let e = errors.len() - lost.len();
            let f = files.iter().filter(|f| got.text.contains(f.as_str())).count();
            row.push_str(&format!(" {} {} ({})", share(e, errors.len()), share(f, files.len()), tokens(&got.text)));
            if budget == 1200 && errors.len() <= 12 && matches!(kind, Kind::Log | Kind::Text) {
                assert!(e * 10 >= errors.len() * 8, "{name}: lost {lost:?}\n{}", got.text);
            }
        }
        let ms = started.elapsed().as_secs_f64() * 1000.0 / 3.0;
        eprintln!("{name:34} {:16} {ms:7.1} {:6} {:6} |{row}", kind.name(), errors.len(), files.len());
        if let Some(to) = option_env!("WINDOWSILL_SURVEY") {
            let got = preview(&text, &call_for(name), &AT, 600, &tokens);
            std::fs::write(PathBuf::from(to).join(name), got.text).expect("writable");
        }
    }
}

/// What is wanted of an output: errors, names of failed tests, names of files.
fn wanted(output: &outputs::Output) -> [&BTreeSet<String>; 3] {
    [&output.errors, &output.tests, &output.files]
}

#[test]
fn what_was_planted_is_kept() {
    for output in outputs::made(100_000) {
        let call = Call { tool: output.tool, arguments: output.arguments };
        for (budget, least) in [(512, 85), (2048, 100)] {
            let got = preview(&output.text, &call, &AT, budget, &tokens);
            assert!(tokens(&got.text) <= budget);
            for wanted in wanted(&output) {
                let (kept, total) = outputs::share(wanted, &got.text).unwrap_or_default();
                assert!(kept * 100 >= total * least, "{} in {budget}: {kept} of {wanted:?}\n{}", output.name, got.text);
            }
        }
    }
}

#[test]
fn of_real_outputs_all_errors_and_files_are_kept_where_there_is_room() {
    let folder = shared();
    for output in outputs::real(&folder).expect("readable") {
        // A hundred messages are more than 2,048 tokens hold; the tests of a test tool fail on purpose, within tests that
        // pass; a diff within a log is not a list of files.
        if ["tsc-errors.txt", "pytest-long.txt", "swe-test-output.txt"].contains(&output.name.as_str()) {
            continue;
        }
        let call = Call { tool: output.tool, arguments: output.arguments };
        let got = preview(&output.text, &call, &AT, 2048, &tokens);
        for wanted in wanted(&output) {
            let (kept, total) = outputs::share(wanted, &got.text).unwrap_or_default();
            assert_eq!(kept, total, "{}: {wanted:?}\n{}", output.name, got.text);
        }
    }
}

proptest! {
    #[test]
    fn never_over_the_budget(text in "(?s).{0,2000}", budget in 0u32..260, tool in "[a-z_]{0,12}") {
        let got = preview(&text, &Call { tool: &tool, arguments: "" }, &AT, budget, &tokens);
        prop_assert!(tokens(&got.text) <= budget);
    }

    #[test]
    fn lines_of_any_kind(lines in proptest::collection::vec("[ -~\t\r]{0,90}|error: .{0,30}|src/[a-z]{1,6}.rs:[0-9]{1,3}:.{0,20}|\\{\"a\":[0-9]\\}|<p>x|[+-]{1,3} b/x|@@ -1 \\+2 @@", 0..60), budget in 0u32..400) {
        let text = lines.join("\n");
        let got = preview(&text, &Call { tool: "bash", arguments: "{\"command\":\"make\"}" }, &AT, budget, &tokens);
        prop_assert!(tokens(&got.text) <= budget);
        let again = preview(&text, &Call { tool: "bash", arguments: "{\"command\":\"make\"}" }, &AT, budget, &tokens);
        prop_assert_eq!(got, again);
    }
}

#[test]
fn any_input_is_survived() {
    let texts = [
        "\0".repeat(5000),
        "\r".repeat(5000),
        "x".repeat(400_000),
        format!("{}\u{1b}[", "\u{1b}[31m".repeat(1000)),
        "[".repeat(100_000),
        "{\"a\":".repeat(50_000),
        "<".repeat(100_000),
        "\"".repeat(9999),
        "a,\"b\n".repeat(3000),
        "\u{fffd}\u{200b}文字".repeat(3000),
        "diff --git \n@@ \n+\n".repeat(500),
        "commit abcdef1\nAuthor:\nDate:\n".repeat(500),
        "1\t\n".repeat(5000),
        " \n\n\t\n".repeat(3000),
    ];
    for text in &texts {
        for budget in [0, 1, 7, 30, 90, 500] {
            let got = preview(text, &Call { tool: "", arguments: "{" }, &Pointer { id: "", path: "" }, budget, &tokens);
            assert!(tokens(&got.text) <= budget);
            let got = preview(text, &Call { tool: "bash", arguments: "{\"command\":[1,\"a\"]}" }, &AT, budget, &tokens);
            assert!(tokens(&got.text) <= budget, "{budget}: {}", got.text);
            assert!(budget < 30 || got.text.contains(AT.id), "{budget}: {}", got.text);
            assert!(!got.text.contains("<|"));
        }
    }
}
