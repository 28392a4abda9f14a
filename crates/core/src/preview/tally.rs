//! What many errors have in common: their codes, and the files that they are in.

use std::collections::HashMap;

use super::clean::shorten;
use super::fit::{Draft, rank};
use super::message;
use super::paths::{by_folder, common_folder, grouped};
use super::signal::{Grade, Graded};

/// So many distinct messages come before everything else.
pub(super) const FIRST: usize = 8;

/// A log with errors in more files than this names the files before it tells more than a few messages.
pub(super) const MANY_FILES: usize = 16;

/// How often each code of an error came (`TS2307`, `E0599`), with one of its messages.
pub(super) fn codes(draft: &mut Draft, graded: &Graded<'_>) {
    let mut codes: Vec<(&str, usize, &str)> = Vec::new();
    for (line, _) in graded.lines.iter().zip(&graded.grades).filter(|(_, g)| **g == Grade::Error) {
        let Some((code, said)) = code(line) else { continue };
        if let Some((_, times, _)) = codes.iter_mut().find(|(known, ..)| *known == code) {
            *times += 1;
        } else if codes.len() < 100 {
            codes.push((code, 1, said));
        }
    }
    codes.sort_by_key(|(code, times, _)| (std::cmp::Reverse(*times), *code));
    if codes.len() > 1 {
        for (code, times, said) in codes.into_iter().take(FIRST - 2) {
            draft.top(rank::FILES + 2, format!("{code}: {} (×{times})", shorten(said, 70)));
        }
    }
}

/// Bytes of a list of rules, about.
const RULES: usize = 180;

/// How often errors break each rule that has a name: `by rule: no-undef 12, eqeqeq 3 and 4 more rules`; empty where few do, or
/// where codes tell it.
pub(super) fn rules(graded: &Graded<'_>) -> String {
    let mut rules: HashMap<&str, usize> = HashMap::new();
    for (at, line) in graded.lines.iter().enumerate().filter(|(at, _)| graded.grades[*at] == Grade::Error) {
        let told = graded.named_at.contains_key(&at) || message::message(line).is_some();
        if let Some(rule) = message::rule(line).filter(|rule| told && !message::is_code(rule)) {
            *rules.entry(rule).or_default() += 1;
        }
    }
    let mut rules: Vec<(&str, usize)> = rules.into_iter().collect();
    rules.sort_by_key(|(rule, times)| (std::cmp::Reverse(*times), *rule));
    if rules.len() < 2 {
        return String::new();
    }
    let mut out = "by rule:".to_owned();
    for (at, (rule, times)) in rules.iter().enumerate() {
        if out.len() > RULES {
            return format!("{out} and {} more rules", rules.len() - at);
        }
        out.push_str(&format!("{} {} {times}", if at == 0 { "" } else { "," }, shorten(rule, 60)));
    }
    out
}

/// The code of an error and what is said behind it: `error TS2307: x`, `error[E0599]: x`, `fatal error C1083: x`.
fn code(line: &str) -> Option<(&str, &str)> {
    let rest = &line[line.find("error")? + 5..];
    let (code, said) = rest.trim_start_matches([' ', '[']).split_once(':')?;
    let code = code.trim_end_matches(']');
    let letters = code.bytes().take_while(u8::is_ascii_uppercase).count();
    let digits = code.bytes().skip(letters).take_while(u8::is_ascii_digit).count();
    ((1..=8).contains(&letters) && digits > 1 && letters + digits == code.len()).then_some((code, said.trim()))
}

/// The files that errors were found in.
pub(super) fn files(draft: &mut Draft, files: HashMap<String, usize>, rank: u16) {
    let mut files: Vec<(String, usize)> = files.into_iter().collect();
    if files.len() < 2 {
        return;
    }
    files.sort();
    let above = common_folder(files.iter().map(|(path, _)| path.as_str())).to_owned();
    if files.len() <= 4 || above.len() < 3 {
        return grouped(&files).into_iter().for_each(|group| draft.top(rank, format!("errors in {group}")));
    }
    // What they have in common is said once.
    let below: Vec<(String, usize)> = files.iter().map(|(path, n)| (path[above.len()..].to_owned(), *n)).collect();
    if files.len() > MANY_FILES {
        let folders: Vec<(String, usize)> = by_folder(&below).into_iter().collect();
        // Where each file has a folder of its own, the files say it.
        if folders.len() * 2 <= files.len() {
            draft.top(rank + 2, format!("errors by folder, in {above}: {}", grouped(&folders).join(", ")));
        }
    }
    draft.top(rank + 1, format!("errors by file, in {above}"));
    grouped(&below).into_iter().for_each(|group| draft.top(rank, group));
}

#[cfg(test)]
mod tests {
    use crate::preview::{Call, Pointer, preview};

    /// ESLint's output of `files` files with `errors` errors each, of four rules, and warnings between them.
    fn eslint(files: usize, errors: usize) -> String {
        let mut out = String::new();
        for file in 0..files {
            out.push_str(&format!("\n/home/ann/shop/src/part_{file}.js\n"));
            for n in 0..errors {
                let (said, rule) = match (file + n) % 4 {
                    0 => (format!("'total{file}{n}' is not defined"), "no-undef"),
                    1 => (format!("'cart{n}{file}' is assigned a value but never used"), "no-unused-vars"),
                    2 => ("Expected '===' and instead saw '=='".to_owned(), "eqeqeq"),
                    _ => (format!("Duplicate key 'price{n}{file}'"), "no-dupe-keys"),
                };
                out.push_str(&format!("  {}:{}  error    {said:52}  {rule}\n", n * 7 + 3, n + 2));
                out.push_str(&format!(
                    "  {}:5  warning  {:52}  no-console\n",
                    n * 7 + 5,
                    "Unexpected console statement"
                ));
            }
        }
        let all = files * errors;
        out + &format!(
            "\n✖ {} problems ({all} errors, {all} warnings)\n  0 errors and 9 warnings potentially fixable with the `--fix` option.\n",
            2 * all
        )
    }

    /// Of two kinds of errors that do not all fit, the rarer one is told whole: what is not defined, and not the thirty-six variables that
    /// are not used.
    #[test]
    fn the_rarer_kind_of_error_comes_first() {
        let tokens = |text: &str| u32::try_from(text.len().div_ceil(3)).unwrap_or(u32::MAX);
        let mut text = String::new();
        for file in 0..36 {
            text.push_str(&format!("\n/home/ann/shop/src/part_{file:02}/mod_{file}.js\n"));
            text.push_str(&format!(
                "  24:9  error  'unused{file}' is assigned a value but never used  no-unused-vars\n"
            ));
            if file % 2 == 0 {
                text.push_str(&format!("  40:3  error  'missing{file}' is not defined  no-undef\n"));
            }
            for line in 41..50 {
                text.push_str(&format!(
                    "  {line}:7  warning  'z' is never reassigned. Use 'const' instead  prefer-const\n"
                ));
            }
        }
        text.push_str("\n✖ 378 problems (54 errors, 324 warnings)\n");
        let at = Pointer { id: "r3f9a0c", path: "/data/r3f9a0c.txt" };
        let call = Call { tool: "bash", arguments: r#"{"command":"npx eslint ."}"# };
        let shown = |budget: u32| {
            let got = preview(&text, &call, &at, budget, &tokens).text;
            let told = |file: &usize| got.contains(&format!("mod_{file}.js:40:3: 'missing{file}' is not defined"));
            (0..36).step_by(2).filter(told).count()
        };
        assert_eq!(shown(1024), 18);
        assert!(shown(512) >= 9, "messages say more than a list of files: {}", shown(512));
    }

    /// A line that a runner says twice is told once: `E   KeyError: 'a'` above its place, and a file above its failures.
    #[test]
    fn what_is_told_with_its_place_is_not_told_before_it() {
        let tokens = |text: &str| u32::try_from(text.len().div_ceil(3)).unwrap_or(u32::MAX);
        let at = Pointer { id: "r3f9a0c", path: "/data/r3f9a0c.txt" };
        let shown = |command: &str, text: &str| {
            let arguments = serde_json::json!({ "command": command }).to_string();
            preview(text, &Call { tool: "bash", arguments: &arguments }, &at, 400, &tokens).text
        };
        let mut text = format!("{}\n=== FAILURES ===\n", "tests/unit/test_a.py ......   [ 9%]\n".repeat(60));
        (0..3).for_each(|n| {
            text.push_str(&format!("E   KeyError: 'key_{n}'\n/home/ann/shop/a_{n}.py:{n}: KeyError: 'key_{n}'\n"))
        });
        text.push_str("=== 3 failed, 300 passed in 1.10s ===\n");
        let got = shown("pytest --tb=line", &text);
        assert_eq!(got.matches("KeyError: 'key_1'").count(), 1, "{got}");
        assert!(got.contains("a_1.py:1: KeyError: 'key_1'"), "{got}");
        let listed = |line: &str| crate::preview::log::file_of_failures(line).map(str::to_owned);
        assert_eq!(listed("❯ src/cart/a.test.js (16 tests | 1 failed) 9ms").as_deref(), Some("src/cart/a.test.js"));
        assert_eq!(listed("FAIL src/a.test.js").as_deref(), Some("src/a.test.js"));
        assert_eq!(listed("❯ src/cart/a.test.js:13:18"), None);
    }

    /// More errors than there is room for: the first with their places, how many there are by rule, and the tool's own total.
    #[test]
    fn of_more_errors_than_fit_it_says_how_many_there_are_of_each_rule() {
        let tokens = |text: &str| u32::try_from(text.len().div_ceil(3)).unwrap_or(u32::MAX);
        let at = Pointer { id: "r3f9a0c", path: "/data/r3f9a0c.txt" };
        let call = Call { tool: "bash", arguments: r#"{"command":"npx eslint src"}"# };
        for (files, errors) in [(5, 13), (30, 4), (13, 20)] {
            let text = eslint(files, errors);
            for budget in [512, 1024] {
                let got = preview(&text, &call, &at, budget, &tokens).text;
                let all = files * errors;
                assert!(tokens(&got) <= budget);
                assert!(got.contains(&format!("error lines: {all} (")), "{got}");
                assert!(got.contains(&format!("✖ {} problems ({all} errors", 2 * all)), "{got}");
                assert!(got.contains("part_0.js:3:2: 'total00' is not defined"), "{got}");
                let shown = (0..all).filter(|n| got.contains(&format!("'total{}{}'", n / errors, n % errors))).count();
                let of_one = (0..all).filter(|n| (n / errors + n % errors) % 4 == 0).count();
                if shown < of_one {
                    assert!(got.contains("by rule: ") && got.contains(&format!("no-undef {of_one}")), "{got}");
                    let eqeqeq = (0..all).filter(|n| (n / errors + n % errors) % 4 == 2).count();
                    assert!(got.contains(&format!("eqeqeq {eqeqeq}")), "{got}");
                }
            }
        }
    }
}
