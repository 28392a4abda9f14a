//! The pages that people read: short where they promise it, and every link and command in them is there.

use std::path::{Path, PathBuf};

use super::support::*;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// README, CONTRIBUTING, CHANGELOG and all of `docs`.
fn pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let top = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name));
    docs.filter(|path| path.extension().is_some_and(|e| e == "md")).chain(top).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The name that a heading is linked by.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

fn anchors(page: &str) -> Vec<String> {
    page.lines().filter(|l| l.starts_with('#')).map(|l| anchor(l.trim_start_matches('#'))).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut looked_at = 0;
    for page in pages() {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let (file, part) = link.split_once('#').map_or((link, None), |(file, part)| (file, Some(part)));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: ({link}) leads nowhere", page.display());
            if let Some(part) = part {
                assert!(anchors(&read(&target)).iter().any(|a| a == part), "{}: no heading ({link})", page.display());
            }
            looked_at += 1;
        }
    }
    assert!(looked_at > 40, "{looked_at}");
}

#[test]
fn the_front_page_is_short_and_the_book_has_every_page() {
    let front = read(&root().join("README.md"));
    assert!(front.lines().count() <= 150, "README.md has {} lines", front.lines().count());
    let widest = front.lines().max_by_key(|line| line.chars().count()).unwrap();
    assert!(widest.chars().count() <= 130, "{widest}");
    let summary = read(&root().join("docs/SUMMARY.md"));
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        let in_book = page.parent().unwrap().ends_with("docs") && name != "SUMMARY.md";
        assert!(!in_book || summary.contains(&format!("({name})")), "docs/SUMMARY.md lacks {name}");
    }
}

#[test]
fn every_setting_and_command_is_in_the_pages_and_every_command_there_exists() {
    let page = read(&root().join("docs/configuration.md"));
    let keys = read(&root().join("config.toml"));
    let named = keys.lines().filter_map(|line| line.trim_start_matches("# ").split_once(" = ")).map(|(key, _)| key);
    for key in named.filter(|key| key.chars().all(|c| c.is_ascii_lowercase() || c == '_')) {
        assert!(page.contains(key), "docs/configuration.md lacks `{key}`");
    }
    let dir = tempfile::tempdir().unwrap();
    let help = String::from_utf8(cli(dir.path(), &["--help"]).stdout).unwrap();
    let list = help.split("\nRun:\n").nth(1).unwrap().split("Options:").next().unwrap();
    let commands: Vec<&str> = list.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert!(commands.contains(&"serve") && commands.contains(&"recall"), "{help}");
    for page in pages().iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = read(page);
        for said in text.split("`windowsill ").skip(1) {
            let word: String = said.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            let known = word.is_empty() || word.starts_with('-') || commands.contains(&word.as_str());
            assert!(known, "{}: `windowsill {word}` is no command", page.display());
        }
    }
}

#[test]
fn the_bars_of_sizes_are_those_of_the_release_script() {
    let script = read(&root().join("scripts/release"));
    let bar = |name: &str| {
        let (_, rest) = script.split_once(&format!("{name}=${{WINDOWSILL_LARGEST:-")).expect(name);
        rest.split('}').next().unwrap().to_owned()
    };
    let page = read(&root().join("docs/install.md"));
    let rows: Vec<&str> = page.lines().filter(|l| l.starts_with("| x86-64,") || l.starts_with("| arm64,")).collect();
    assert!(rows.len() > 1, "{rows:?}");
    for row in rows {
        let most = bar(if row.contains(" with the engine ") { "LARGEST_WITH_ENGINE" } else { "LARGEST" });
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[3], format!("{most} MB"), "{row}");
        let size: f32 = cells[2].trim_end_matches(" MB").parse().expect(row);
        assert!(size <= most.parse().unwrap(), "{row}");
    }
}
