//! Diffs and commit histories: which files changed and by how much, where the hunks are, who committed what.

use super::fit::Draft;
use super::signal::{Grade, Graded};

/// One file of a diff.
#[derive(Default)]
struct Changed {
    line: usize,
    path: String,
    what: &'static str,
    plus: usize,
    minus: usize,
    hunks: Vec<(usize, String, usize, usize)>,
}

/// Drafts a unified diff: each file with +/− counts, hunk heads, then the changed lines themselves.
pub(super) fn diff(graded: &Graded<'_>) -> Draft {
    let mut draft = Draft::default();
    let files = read(graded, &mut draft);
    let (plus, minus) = files.iter().fold((0, 0), |(p, m), f| (p + f.plus, m + f.minus));
    draft.summary = format!("{} files changed, +{plus} −{minus}", files.len());
    // With many files the list of them is grouped by folder; with few, each has a line with its hunks below.
    if files.len() > 24 {
        let list: Vec<(String, usize)> =
            files.iter().map(|f| (format!("{}{} +{} −{}", f.path, f.what, f.plus, f.minus), 0)).collect();
        for group in super::paths::grouped(&list) {
            draft.top(95, group);
        }
    }
    let many = files.len() > 24;
    for file in &files {
        if !many {
            draft.remark(file.line, 95, format!("{}{} +{} −{}", file.path, file.what, file.plus, file.minus));
        }
        for (line, head, plus, minus) in &file.hunks {
            let of = if many { file.path.as_str() } else { " " };
            draft.remark(*line, 74, format!("{of} {head} (+{plus} −{minus})"));
        }
    }
    draft
}

fn read(graded: &Graded<'_>, draft: &mut Draft) -> Vec<Changed> {
    let mut files: Vec<Changed> = Vec::new();
    let mut in_hunk = false;
    let mut changes = 0;
    for (i, line) in graded.lines.iter().enumerate() {
        if let Some(rest) = line.strip_prefix("diff --git ") {
            let path = rest.rsplit(" b/").next().unwrap_or(rest);
            files.push(Changed { line: i, path: path.to_owned(), ..Changed::default() });
            in_hunk = false;
        } else if !in_hunk && line.starts_with("--- ") && graded.lines.get(i + 1).is_some_and(|l| l.starts_with("+++ "))
        {
            if files.last().is_none_or(|f| !f.hunks.is_empty()) {
                files.push(Changed { line: i, ..Changed::default() });
            }
        } else if !in_hunk && line.starts_with("+++ ") {
            let name = line[4..].split('\t').next().unwrap_or("");
            if let Some(file) = files.last_mut().filter(|_| name != "/dev/null") {
                file.path = name.strip_prefix("b/").unwrap_or(name).to_owned();
            }
        } else if line.starts_with("new file") || line.starts_with("deleted file") || line.starts_with("rename to") {
            if let Some(file) = files.last_mut() {
                file.what = if line.starts_with('n') {
                    " (new)"
                } else if line.starts_with('d') {
                    " (deleted)"
                } else {
                    " (renamed)"
                };
            }
        } else if line.starts_with("@@ ") {
            in_hunk = true;
            if let Some(file) = files.last_mut() {
                file.hunks.push((i, super::clean::shorten(line, 120).into_owned(), 0, 0));
            }
        } else if in_hunk && line.starts_with(['+', '-']) {
            // A new file of a plain `diff -u` looks like a removed line followed by an added one.
            if line.starts_with("--- ") && graded.lines.get(i + 1).is_some_and(|l| l.starts_with("+++ ")) {
                files.push(Changed { line: i, ..Changed::default() });
                in_hunk = false;
                continue;
            }
            let Some(file) = files.last_mut() else { continue };
            let added = line.starts_with('+');
            file.plus += usize::from(added);
            file.minus += usize::from(!added);
            if let Some(hunk) = file.hunks.last_mut() {
                hunk.2 += usize::from(added);
                hunk.3 += usize::from(!added);
            }
            changes += 1;
            if graded.grades[i] == Grade::Mark && added {
                draft.line(i, 85, line);
            } else if changes < 2000 {
                draft.line(i, if super::code::definition(&line[1..]).is_some() { 60 } else { 50 }, line);
            }
        } else if !in_hunk && !line.is_empty() && files.is_empty() {
            draft.line(i, 88, line);
        }
    }
    files
}

/// Drafts `git log`: one line a commit, the newest and oldest first in worth.
pub(super) fn history(graded: &Graded<'_>) -> Draft {
    let mut draft = Draft::default();
    let mut commits: Vec<(usize, String, String, String)> = Vec::new();
    let mut authors: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for (i, line) in graded.lines.iter().enumerate() {
        if let Some(hash) = line.strip_prefix("commit ").filter(|h| is_hash(h)) {
            commits.push((i, hash[..10.min(hash.len())].to_owned(), String::new(), String::new()));
        } else if let Some(who) = line.strip_prefix("Author:") {
            *authors.entry(who.split('<').next().unwrap_or(who).trim().to_owned()).or_default() += 1;
        } else if let Some(when) = line.strip_prefix("Date:") {
            if let Some(commit) = commits.last_mut() {
                commit.2 = when.trim().to_owned();
            }
        } else if let Some(subject) = line.strip_prefix("    ").filter(|s| !s.trim().is_empty()) {
            if let Some(commit) = commits.last_mut().filter(|c| c.3.is_empty()) {
                commit.3 = subject.trim().to_owned();
            }
        } else if line.contains(" changed, ") {
            draft.line(i, 40, line);
        } else if line.contains(" | ") && line.starts_with(' ') {
            draft.line(i, 30, line);
        }
    }
    let dates = match (commits.first(), commits.last()) {
        (Some(first), Some(last)) => format!(", {} … {}", last.2, first.2),
        _ => String::new(),
    };
    let mut authors: Vec<(String, usize)> = authors.into_iter().collect();
    authors.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), name.clone()));
    let named: Vec<String> = authors.iter().take(4).map(|(name, n)| format!("{name} {n}")).collect();
    draft.summary = format!("{} commits{dates}; authors: {}", commits.len(), named.join(", "));
    let total = commits.len();
    for (n, (line, hash, _, subject)) in commits.into_iter().enumerate() {
        let near_end = n.min(total - 1 - n).min(30) as u16;
        draft.remark(line, 90 - near_end, format!("{hash} {subject}"));
    }
    draft
}

/// Whether a word can be a commit's hash.
pub(super) fn is_hash(text: &str) -> bool {
    let word = text.split_ascii_whitespace().next().unwrap_or("");
    (7..=64).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::super::signal::grade;
    use super::*;

    #[test]
    fn files_hunks_and_counts() {
        let text = "diff --git a/x/a.rs b/x/a.rs\nindex 1..2 100644\n--- a/x/a.rs\n+++ b/x/a.rs\n@@ -1,2 +1,3 @@ fn main\n a\n-b\n+c\n+d\n\
                    diff --git a/n.rs b/n.rs\nnew file mode 100644\n--- /dev/null\n+++ b/n.rs\n@@ -0,0 +1 @@\n+++x\n";
        let draft = diff(&grade(text));
        let (shown, _) = draft.render(&draft.order(), 4000);
        for want in ["2 files changed, +3 −1", "x/a.rs +2 −1", "n.rs (new) +1 −0", "@@ -1,2 +1,3 @@ fn main (+2 −1)"]
        {
            assert!(shown.contains(want), "{want} in {shown}");
        }
    }

    #[test]
    fn plain_diffs_too() {
        let text =
            "--- old/a.c\t2020\n+++ new/a.c\t2021\n@@ -1 +1 @@\n-x\n+y\n--- old/b.c\n+++ new/b.c\n@@ -1 +1,2 @@\n+z\n";
        let draft = diff(&grade(text));
        let (shown, _) = draft.render(&draft.order(), 4000);
        assert!(shown.contains("new/a.c +1 −1") && shown.contains("new/b.c +1 −0"), "{shown}");
    }
}
