//! Headers written by hand, real ones, and real ones broken at random.

use std::cell::Cell;
use std::io::{Cursor as Bytes, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The bytes of all tensors, where every type is known.
fn total(gguf: &Gguf) -> Option<u64> {
    gguf.tensors.iter().try_fold(0, |sum: u64, tensor| Some(sum.saturating_add(tensor.bytes?)))
}

fn read(bytes: &[u8]) -> Result<Gguf, Error> {
    Gguf::read(Bytes::new(bytes))
}

fn headers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/memory/headers")
}

#[test]
fn a_header_gives_what_was_written() {
    let writer = Writer::default()
        .number("a.number", 7)
        .entry("a.text", 8, &text("hé"))
        .entry("a.flag", 7, &[1])
        .entry("a.signed", 5, &(-3_i32).to_le_bytes())
        .entry(
            "a.list",
            9,
            &[&4_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &5_u32.to_le_bytes(), &6_u32.to_le_bytes()].concat(),
        )
        .tensor("blk.0.x", &[64, 3], 8)
        .tensor("blk.0.experts", &[32, 2, 5], 39);
    let gguf = read(&writer.bytes()).unwrap();
    assert_eq!((gguf.number("a.number"), gguf.text("a.text"), gguf.number("a.flag")), (Some(7), Some("hé"), Some(1)));
    assert_eq!((gguf.number("a.signed"), gguf.number("a.missing")), (None, None));
    assert_eq!(gguf.per_layer("a.list", 3), Some(vec![5, 6, 0]));
    assert_eq!(gguf.per_layer("a.number", 2), Some(vec![7, 7]));
    assert_eq!(gguf.tensor("blk.0.x").unwrap().bytes, Some(3 * 2 * 34));
    assert_eq!(total(&gguf), Some(204 + 10 * 17));
    assert_eq!(gguf.data_offset % 32, 0);
}

#[test]
fn broken_headers_say_what_and_where() {
    let good = Writer::default().number("a", 1).bytes();
    let patched = |at: usize, with: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let list = |kind: u32, length: u64| [&kind.to_le_bytes()[..], &length.to_le_bytes()].concat();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing", vec![], "not a GGUF file"),
        ("other magic", patched(0, b"PK\x03\x04"), "starts with \"PK\\\\x03\\\\x04\""),
        ("version 1", patched(4, &1_u32.to_le_bytes()), "GGUF version 1"),
        ("version 4", patched(4, &4_u32.to_le_bytes()), "GGUF version 4"),
        ("big endian", patched(4, &3_u32.to_be_bytes()), "big-endian GGUF file (version 3)"),
        ("many tensors", patched(8, &u64::MAX.to_le_bytes()), "at byte 8: the number of tensors"),
        ("many keys", patched(16, &u64::MAX.to_le_bytes()), "at byte 16: the number of metadata keys"),
        ("more keys than bytes", patched(16, &60_000_u64.to_le_bytes()), "60000 of them"),
        ("cut short", good[..good.len() - 1].to_vec(), "the file ends at byte"),
        ("long key", patched(24, &(1_u64 << 40).to_le_bytes()), "of 1099511627776 bytes"),
        ("unknown value", Writer::default().entry("a", 13, &[0; 8]).bytes(), "`a` has a value of type 13"),
        ("nested", Writer::default().entry("a", 9, &list(9, 1)).bytes(), "array of arrays"),
        ("unknown list", Writer::default().entry("a", 9, &list(99, 1)).bytes(), "array of type 99"),
        ("long list", Writer::default().entry("a", 9, &list(10, u64::MAX)).bytes(), "an array of 18446744073709551615"),
        ("long texts", Writer::default().entry("a", 9, &list(8, 1 << 60)).bytes(), "texts"),
        ("twice", Writer::default().number("a", 1).number("a", 2).bytes(), "the key `a` stands twice"),
        ("tensor twice", Writer::default().tensor("t", &[1], 0).tensor("t", &[1], 0).bytes(), "`t` stands twice"),
        ("dims", Writer::default().tensor("t", &[1; 5], 0).bytes(), "has 5 dimensions"),
        ("overflow", Writer::default().tensor("t", &[1 << 40, 1 << 40], 0).bytes(), "more than 2^63 elements"),
        ("blocks", Writer::default().tensor("t", &[33], 8).bytes(), "not whole blocks of 32"),
        ("alignment", Writer::default().number("general.alignment", 33).bytes(), "a power of two was expected"),
    ];
    for (name, bytes, expected) in cases {
        let error = read(&bytes).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn a_tensor_of_unknown_type_leaves_the_metadata_usable() {
    let gguf = read(&Writer::default().number("a", 1).tensor("t", &[8], 200).bytes()).unwrap();
    assert_eq!(gguf.number("a"), Some(1));
    assert_eq!((total(&gguf), gguf.tensors[0].id), (None, 200));
}

/// Counts what is read of a file.
struct Counting<'a> {
    inner: Bytes<Vec<u8>>,
    read: &'a Cell<u64>,
}

impl Read for Counting<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(into)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

impl Seek for Counting<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.inner.seek(to)
    }
}

#[test]
fn a_large_vocabulary_is_passed_over_and_kept_only_if_asked_for() {
    let tokens: Vec<u8> = (0..128_000_u64).flat_map(|id| text(&format!("token{id}"))).collect();
    let list = [&8_u32.to_le_bytes()[..], &128_000_u64.to_le_bytes(), &tokens].concat();
    let scores = [&6_u32.to_le_bytes()[..], &1_000_000_u64.to_le_bytes(), &vec![0; 4_000_000]].concat();
    let writer = Writer::default().entry("tokenizer.ggml.tokens", 9, &list).entry("tokenizer.ggml.scores", 9, &scores);
    let bytes = writer.number("a", 1).bytes();
    let read = Cell::new(0);
    // Weights behind the header are never touched.
    let file = [&bytes[..], &vec![0; 8_000_000]].concat();
    let gguf = Gguf::read(Counting { inner: Bytes::new(file), read: &read }).unwrap();
    assert_eq!(gguf.array("tokenizer.ggml.tokens").unwrap(), &Array { length: 128_000, items: None });
    assert_eq!(gguf.number("a"), Some(1));
    assert!(read.get() < tokens.len() as u64 + 500_000, "{} bytes were read", read.get());
    let options = Options { keep: &["tokenizer.ggml.tokens"] };
    let kept = Gguf::read_with(Bytes::new(&bytes), options).unwrap();
    let items = kept.array("tokenizer.ggml.tokens").unwrap().items.as_ref().unwrap();
    assert_eq!((items.len(), &items[127_999]), (128_000, &Value::Text("token127999".to_owned())));
}

#[test]
fn a_split_model_adds_up() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u16, tensor: &str| {
        Writer::default()
            .entry("split.no", 2, &number.to_le_bytes())
            .entry("split.count", 2, &2_u16.to_le_bytes())
            .number("split.tensors.count", 2)
            .tensor(tensor, &[32], 0)
            .bytes()
    };
    let path = |number: u64| folder.path().join(format!("m-{number:05}-of-00002.gguf"));
    std::fs::write(path(2), part(1, "second")).unwrap();
    let error = Gguf::open(&path(2)).unwrap_err().to_string();
    assert!(error.contains("part 1 of 2") && error.contains("not there"), "{error}");
    std::fs::write(path(1), part(0, "first")).unwrap();
    let whole = Gguf::open(&path(2)).unwrap();
    let names: Vec<(&str, u32)> = whole.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.part)).collect();
    assert_eq!((names, whole.parts), (vec![("first", 0), ("second", 1)], 2));
    std::fs::write(path(1), part(1, "first")).unwrap();
    assert!(Gguf::open(&path(2)).unwrap_err().to_string().contains("inside, it is part 2 of 2"));
    std::fs::copy(path(2), folder.path().join("other.gguf")).unwrap();
    assert!(Gguf::open(&folder.path().join("other.gguf")).unwrap_err().to_string().contains("-00002-of-00002.gguf"));
}

#[test]
fn a_folder_and_a_missing_file_are_errors() {
    assert!(matches!(Gguf::open(&headers()), Err(Error::File { .. })));
    assert!(matches!(Gguf::open(&headers().join("none.gguf")), Err(Error::File { .. })));
}

#[test]
fn real_headers() {
    let files = std::fs::read_dir(headers()).unwrap();
    for file in files.map(|file| file.unwrap().path()) {
        let gguf = Gguf::open(&file).unwrap();
        assert!(gguf.text("general.architecture").is_some() && gguf.tensors.len() > 100, "{}", file.display());
        assert!(total(&gguf).is_some_and(|bytes| bytes > 10_000_000), "{}", file.display());
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
        let _ = read(&[b"GGUF\x03\0\0\0", &bytes[..]].concat());
    }

    #[test]
    fn broken_real_headers_never_panic(
        changes in prop::collection::vec((0_usize..16_000, any::<u8>()), 1..6),
        cut in 0_usize..17_000,
    ) {
        let mut bytes = std::fs::read(headers().join("smollm2-135m-instruct.gguf")).unwrap();
        for (at, with) in changes {
            let length = bytes.len();
            bytes[at % length] = with;
        }
        bytes.truncate(cut.max(24));
        if let Ok(gguf) = read(&bytes) {
            let _ = total(&gguf);
        }
    }
}
