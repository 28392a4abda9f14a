//! What stands around the name of a failed test: why it failed. Knows how test runners lay out a failure (a name, then what
//! was expected and what came, or the other way round), not any one runner's format.

use super::place::place;

/// Lines below a name that are looked at.
const BELOW: usize = 24;

/// Lines above a name that are looked at, where the reason comes first (Go).
const ABOVE: usize = 12;

/// A line that says why, and how much it matters: 0 most.
pub(super) type Reason = (usize, u16);

/// The reasons of the failure that a line names; none where it names none.
pub(super) fn reasons(lines: &[&str], at: usize) -> Vec<Reason> {
    let line = lines[at].trim_start();
    if line.contains("panicked at ") {
        return below(lines, at, |l| {
            l.trim().is_empty() || l.starts_with("note: ") || l.starts_with("stack backtrace")
        });
    }
    if line.starts_with("--- FAIL") {
        let above = (at.saturating_sub(ABOVE)..at).rev().take_while(|&i| is_indented(lines[i]));
        let mut found: Vec<usize> = above.filter(|&i| !lines[i].trim_start().starts_with("--- ")).collect();
        found.reverse();
        found.extend(
            (at + 1..lines.len().min(at + BELOW))
                .take_while(|&i| is_indented(lines[i]) && !lines[i].trim_start().starts_with("--- ")),
        );
        return weighed(lines, found);
    }
    if line.starts_with(['●', '✕', '✗', '✖', '×']) {
        return below(lines, at, |l| {
            l.trim_start().starts_with(['●', '✕', '✗', '✖', '×', '✓', '✔']) || !l.trim().is_empty() && !is_indented(l)
        });
    }
    if line.starts_with("not ok ") {
        return below(lines, at, |l| l.trim() == "..." || !is_indented(l));
    }
    Vec::new()
}

fn is_indented(line: &str) -> bool {
    line.starts_with([' ', '\t'])
}

fn below(lines: &[&str], at: usize, ends: impl Fn(&str) -> bool) -> Vec<Reason> {
    let block = (at + 1..lines.len().min(at + BELOW)).take_while(|&i| !ends(lines[i]));
    weighed(lines, block.collect())
}

/// The first line, and those that say what was expected and what came, before the others.
fn weighed(lines: &[&str], found: Vec<usize>) -> Vec<Reason> {
    const TELLING: [&str; 17] = [
        "expected",
        "received",
        "actual",
        "got",
        "want",
        "left:",
        "right:",
        "left =",
        "right =",
        "have",
        "message:",
        "error:",
        "assert",
        "- expected",
        "+ received",
        "reason",
        "caused by",
    ];
    let mut first = true;
    let mut placed = false;
    let full = found.into_iter().filter(|&i| {
        let line = lines[i].trim();
        !line.is_empty() && !line.chars().all(|c| matches!(c, '-' | '=' | '|' | '^' | '~' | ' '))
    });
    full.map(|i| {
        let line = lines[i].trim();
        let lower: String = line.chars().take(12).flat_map(char::to_lowercase).collect();
        let located = place(line).is_some();
        let weight = match () {
            () if TELLING.iter().any(|w| lower.starts_with(w)) => 0,
            () if std::mem::take(&mut first) => 0,
            () if located && !placed => 1,
            () if located && !line.starts_with("at ") => 1,
            () => 3,
        };
        placed |= located;
        (i, weight)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_by_runner() {
        for (text, name, best) in [
            (
                "thread 'a' panicked at src/a.rs:3:9:\nassertion `left == right` failed\n  left: 1\n right: 2\nnote: run with\nx",
                "panicked",
                &["assertion `left == right` failed", "  left: 1", " right: 2"][..],
            ),
            (
                "=== RUN A\n    a_test.go:5: got 1, want 2\n--- FAIL: A (0.1s)\n--- PASS: B",
                "--- FAIL",
                &["    a_test.go:5: got 1, want 2"],
            ),
            (
                "--- FAIL: A (0.1s)\n    a_test.go:5: it is late\n=== RUN B\n    b_test.go:1: fine",
                "--- FAIL",
                &["    a_test.go:5: it is late"],
            ),
            (
                "  ● suite › a\n\n    expect(received).toBe(expected)\n\n    Expected: 3\n    Received: 4\n\n      at x (a.ts:1:2)\n\nPASS b",
                "●",
                &["    expect(received).toBe(expected)", "    Expected: 3", "    Received: 4"],
            ),
            ("not ok 3 - a\n  ---\n  message: 'no'\n  ...\nok 4", "not ok", &["  message: 'no'"]),
            ("test a ... ok\n    x", "test a", &[]),
        ] {
            let lines: Vec<&str> = text.lines().collect();
            let at = lines.iter().position(|l| l.contains(name)).expect("named");
            let found = reasons(&lines, at);
            let told: Vec<&str> = found.iter().filter(|(_, w)| *w == 0).map(|(i, _)| lines[*i]).collect();
            assert_eq!(told.iter().filter(|l| best.contains(l)).count(), best.len(), "{text}: {told:?}");
            assert!(!found.iter().any(|(i, _)| lines[*i].contains("fine") || lines[*i].contains("PASS")), "{text}");
        }
    }
}
