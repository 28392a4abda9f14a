//! The edge to C by itself; what it says is checked in tests/suite/dry_run.rs.

use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use super::native::{Opened, version};
use super::{Ask, Cache, FlashAttn, work};

#[test]
fn what_cannot_be_opened_is_told_in_words() {
    assert!(!version().is_empty());
    for path in ["/nonexistent.gguf", "/", "with\0zero"] {
        let why = Opened::open(Path::new(path), (true, -1, 0)).err().unwrap();
        assert!(!why.is_empty() && !why.contains('\n'), "{path:?}: {why}");
    }
}

/// Hands on what is written.
struct Out(Sender<Vec<u8>>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_worker_says_what_it_covers_and_why_it_refuses() {
    let ask = Ask {
        gpu: false,
        layers: 0,
        cpu_moe: 0,
        n_ctx: 512,
        n_batch: 512,
        n_ubatch: 512,
        sequences: 1,
        outputs: 1,
        rollback: 0,
        cache: Cache { type_k: 1, type_v: 1, swa_full: false, unified: false, kv_offload: true },
        flash_attn: FlashAttn::On,
        op_offload: false,
    };
    let question = serde_json::json!({"id": 7, "ask": ask, "parts": []}).to_string();
    let (send, told) = channel();
    work(Path::new("/nonexistent.gguf"), Cursor::new(question + "\n"), Out(send)).unwrap();
    let mut lines: Vec<String> = told.iter().map(|line| String::from_utf8(line).unwrap()).collect();
    lines.sort();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with(r#"{"id":0,"answer":{"Ok":{"version""#), "{lines:?}");
    assert!(lines[1].starts_with(r#"{"id":7,"answer":{"Err":""#), "{lines:?}");
}
