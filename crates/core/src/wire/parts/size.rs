//! Sizes of payloads, in words.

/// Bytes that a base64 text stands for, as it is spelled or read.
pub fn of_base64(data: &str) -> usize {
    data.bytes().filter(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'-' | b'_')).count() * 3 / 4
}

/// A number of bytes in words: `70 bytes`, `0.1 kB`, `2.4 MB`.
pub fn size(bytes: usize) -> String {
    match bytes {
        1 => "1 byte".into(),
        0..100 => format!("{bytes} bytes"),
        100..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
