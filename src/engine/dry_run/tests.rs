//! The edge to C by itself; what it says is checked in tests/suite/dry_run.rs.

use std::io::Cursor;
use std::path::Path;

use super::native::{Opened, version};
use super::work;

#[test]
fn what_cannot_be_opened_is_told_in_words() {
    assert!(!version().is_empty());
    for path in ["/nonexistent.gguf", "/", "with\0zero"] {
        let why = Opened::open(Path::new(path), (true, -1, 0)).err().unwrap();
        assert!(!why.is_empty() && !why.contains('\n'), "{path:?}: {why}");
    }
}

#[test]
fn a_worker_answers_every_line() {
    let mut said = Vec::new();
    work(Path::new("/nonexistent.gguf"), Cursor::new("{}\nnot json\n"), &mut said).unwrap();
    let said = String::from_utf8(said).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].contains("\"covers\"") && lines[1..].iter().all(|line| line.contains("refused")), "{said}");
}
