//! CSV, TSV and tables drawn with bars: header, first and last rows, row count, what the columns hold.

use std::collections::BTreeMap;

use super::fit::Draft;
use super::signal::{Grade, Graded};

/// The delimiter of a table, if the first lines agree on one.
pub(super) fn delimiter(lines: &[&str]) -> Option<char> {
    let sample: Vec<&&str> = lines.iter().filter(|l| !l.trim().is_empty() && !is_rule(l)).take(24).collect();
    if sample.len() < 4 {
        return None;
    }
    ['\t', '|', ',', ';'].into_iter().find(|&mark| {
        let widths: Vec<usize> = sample.iter().map(|l| cells(l, mark).len()).collect();
        let width = widths[0];
        let agree = widths.iter().filter(|&&w| w == width).count();
        // Cells with line breaks (quoted) spoil some lines of a sample; prose with commas agrees far less often.
        let strict =
            if matches!(mark, ',' | ';') { agree * 10 >= sample.len() * 8 } else { agree * 10 >= sample.len() * 7 };
        let head = cells(sample[0], mark);
        width >= if mark == ';' { 3 } else { 2 }
            && strict
            && head.iter().all(|c| c.len() < 80 && !c.ends_with(['{', ';', '(']))
    })
}

/// A line that only draws: `+-----+`, `|---|---|`.
fn is_rule(line: &str) -> bool {
    line.len() > 2 && line.chars().all(|c| matches!(c, '-' | '+' | '|' | ':' | '=' | ' ' | '─' | '┼'))
}

/// The cells of a row; quotes keep delimiters inside.
fn cells(line: &str, mark: char) -> Vec<&str> {
    let line = if mark == '|' { line.trim().trim_matches('|') } else { line };
    let mut out = Vec::new();
    let (mut start, mut quoted) = (0, false);
    for (i, c) in line.char_indices() {
        if c == '"' {
            quoted = !quoted;
        } else if c == mark && !quoted {
            out.push(line[start..i].trim());
            start = i + c.len_utf8();
        }
    }
    out.push(line[start..].trim());
    out
}

/// Drafts a table with the given delimiter.
pub(super) fn draft(graded: &Graded<'_>, mark: char) -> Draft {
    let mut draft = Draft::default();
    let lines = &graded.lines;
    let Some(head) = lines.iter().position(|l| !l.trim().is_empty() && !is_rule(l)) else { return draft };
    let names = cells(lines[head], mark);
    // A quoted cell may hold line breaks: a row ends where its quotes are closed.
    let (mut rows, mut open) = (Vec::new(), false);
    for (i, line) in lines.iter().enumerate().skip(head + 1) {
        if line.trim().is_empty() || !open && is_rule(line) {
            continue;
        }
        if !open {
            rows.push(i);
        }
        open ^= mark != '|' && line.bytes().filter(|&b| b == b'"').count() % 2 == 1;
    }
    draft.summary = format!("table: {} rows × {} columns", rows.len(), names.len());
    draft.line(head, 98, lines[head]);
    for (n, &i) in rows.iter().enumerate().take(400) {
        draft.line(i, [94, 82, 74].get(n).copied().unwrap_or(48u16.saturating_sub(n as u16 / 8).max(1)), lines[i]);
    }
    for (n, &i) in
        rows.iter().rev().take(3).enumerate().filter(|(_, i)| rows.binary_search(i).is_ok_and(|at| at >= 400))
    {
        draft.line(i, [86, 66, 60][n], lines[i]);
    }
    for (n, &i) in rows.iter().filter(|i| graded.grades[**i] >= Grade::Error).take(40).enumerate() {
        if rows.binary_search(&i).is_ok_and(|at| (400..rows.len().saturating_sub(3)).contains(&at)) {
            draft.line(i, 62 - (n as u16).min(20), lines[i]);
        }
    }
    columns(&mut draft, lines, &rows, &names, mark);
    draft
}

/// What each column holds: a range of numbers, or its few values.
fn columns(draft: &mut Draft, lines: &[&str], rows: &[usize], names: &[&str], mark: char) {
    let mut ranges: Vec<Option<(f64, f64)>> = vec![None; names.len()];
    let mut numeric = vec![true; names.len()];
    let mut values: Vec<BTreeMap<&str, usize>> = vec![BTreeMap::new(); names.len()];
    for &i in rows.iter().take(20_000) {
        for (column, cell) in cells(lines[i], mark).into_iter().enumerate().take(names.len()) {
            if values[column].len() <= 6 && cell.len() <= 24 {
                *values[column].entry(cell).or_default() += 1;
            } else if cell.len() > 24 {
                values[column].clear();
            }
            match cell.parse::<f64>() {
                Ok(x) if x.is_finite() => {
                    let (low, high) = ranges[column].unwrap_or((x, x));
                    ranges[column] = Some((low.min(x), high.max(x)));
                }
                _ if cell.is_empty() => {}
                _ => numeric[column] = false,
            }
        }
    }
    let mut said = Vec::new();
    for (column, name) in names.iter().enumerate().take(40) {
        let few: usize = values[column].values().sum();
        if values[column].len() <= 6 && few * 10 > rows.len().min(20_000) * 9 && rows.len() > 6 {
            let list: Vec<String> = values[column].iter().map(|(v, n)| format!("{v} ×{n}")).collect();
            said.push(format!("{name}: {}", list.join(", ")));
        } else if let (true, Some((low, high))) = (numeric[column], ranges[column]) {
            said.push(format!("{name}: {low}…{high}"));
        }
    }
    if !said.is_empty() {
        draft.top(90, format!("columns: {}", said.join("; ")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::signal::grade;
    use super::*;

    #[test]
    fn tables_are_told_from_prose() {
        for (text, mark) in [
            ("a,b,c\n1,\"x,y\",3\n2,z,4\n3,w,5", Some(',')),
            ("id\tname\n1\tx\n2\ty\n3\tz", Some('\t')),
            ("| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n| 5 | 6 |", Some('|')),
            ("Well, this is prose.\nNo table, is it, or?\nAnd more of it\nHere, too, and here, yes.", None),
            ("fn a(x: u8, y: u8) {\n let z = f(x, y);\n}\nfn b() {}", None),
        ] {
            assert_eq!(delimiter(&text.lines().collect::<Vec<_>>()), mark, "{text}");
        }
    }

    #[test]
    fn head_ends_counts_columns() {
        let mut text = String::from("id,state,note\n");
        for i in 0..900 {
            text.push_str(&format!("{i},{},\"line\nbreak {i}\"\n", if i % 9 == 0 { "bad" } else { "good" }));
        }
        let draft = draft(&grade(&text), ',');
        let (shown, _) = draft.render(&draft.order(), 3000);
        for want in ["900 rows × 3 columns", "id,state,note", "id: 0…899", "bad ×100, good ×800", "899,good"] {
            assert!(shown.contains(want), "{want} in {shown}");
        }
    }
}
