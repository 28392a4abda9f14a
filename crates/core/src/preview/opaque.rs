//! Output that no one can read: base64 and bytes that are no text. Says what it is and how large.

use base64::Engine;

use super::clean::floor;
use super::fit::Draft;

/// How many bytes of an encoded payload are decoded to see what it is.
const PEEK: usize = 48 * 1024;

/// Whether a text is one base64 payload (maybe wrapped, maybe a data URL); the payload's beginning if so.
pub(super) fn base64_body(text: &str) -> Option<&str> {
    let body = text.trim();
    let body = match body.strip_prefix("data:") {
        Some(url) => url.split_once("base64,")?.1,
        None => body,
    };
    if body.len() < 256 {
        return None;
    }
    let coded = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'-' | b'_' | b'\n' | b'\r');
    let sample = &body.as_bytes()[..body.len().min(65_536)];
    let digits = sample.iter().filter(|b| b.is_ascii_digit()).count();
    let upper = sample.iter().filter(|b| b.is_ascii_uppercase()).count();
    let mixed = digits * 30 > sample.len() && upper * 8 > sample.len();
    let lines_even = body.lines().take(20).all(|l| l.len() >= 48 || body.lines().count() < 3);
    // Wrapped base64 has long even lines; words separated by line breaks do not.
    (sample.iter().all(|&b| coded(b)) && mixed && lines_even).then_some(body)
}

/// Drafts a base64 payload.
pub(super) fn base64_draft(body: &str) -> Draft {
    let compact: Vec<u8> = body.bytes().filter(|b| !b.is_ascii_whitespace()).take(PEEK).collect();
    let whole = compact.len() / 4 * 4;
    let engine = base64::engine::general_purpose::GeneralPurpose::new(
        if compact.iter().any(|b| matches!(b, b'-' | b'_')) {
            &base64::alphabet::URL_SAFE
        } else {
            &base64::alphabet::STANDARD
        },
        base64::engine::GeneralPurposeConfig::new()
            .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
    );
    let bytes = engine.decode(&compact[..whole]).unwrap_or_default();
    let size = body.bytes().filter(|b| !b.is_ascii_whitespace() && *b != b'=').count() / 4 * 3;
    let mut draft = Draft { summary: format!("base64 of about {size} bytes: {}", kind_of(&bytes)), ..Draft::default() };
    draft.remark(0, 50, format!("begins {}", &body[..floor(body, 48)]));
    draft
}

/// What bytes hold, by their beginning.
fn kind_of(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "unknown content".to_owned();
    }
    if let Some(kind) = infer::get(bytes) {
        let pixels =
            imagesize::blob_size(bytes).map(|s| format!(", {} × {} pixels", s.width, s.height)).unwrap_or_default();
        return format!("{}{pixels}", kind.mime_type());
    }
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(bad) => std::str::from_utf8(&bytes[..bad.valid_up_to()]).unwrap_or(""),
    };
    if valid.len() > 32 {
        return format!("text that begins {:?}", valid.chars().take(120).collect::<String>());
    }
    "binary data".to_owned()
}

/// Whether a text is really bytes: many replacement or control characters near its beginning.
pub(super) fn is_binary(text: &str) -> bool {
    let sample = &text[..floor(text, 8192)];
    let total = sample.chars().count();
    let odd = sample
        .chars()
        .filter(|&c| c == '\u{fffd}' || c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{1b}' | '\u{8}'))
        .count();
    total >= 32 && odd * 12 > total
}

/// Signatures as they look after lossy decoding, when bytes ≥ 0x80 have become U+FFFD.
const SIGNATURES: &[(&str, &str)] = &[
    ("\u{fffd}PNG", "a PNG image"),
    ("\u{fffd}\u{fffd}\u{fffd}\u{fffd}\0\u{10}JFIF", "a JPEG image"),
    ("GIF8", "a GIF image"),
    ("%PDF", "a PDF document"),
    ("PK\u{3}\u{4}", "a ZIP archive (or docx, jar, …)"),
    ("\u{1f}\u{fffd}", "gzip data"),
    ("\u{7f}ELF", "an ELF binary"),
    ("MZ", "a Windows executable"),
    ("SQLite format 3", "an SQLite database"),
    ("RIFF", "RIFF data (WAV, AVI or WebP)"),
    ("\0asm", "a WebAssembly module"),
    ("BZh", "bzip2 data"),
    ("\u{fffd}\u{fffd}\u{fffd}\u{fffd}", "binary data, maybe a Java class, JPEG or Mach-O"),
];

/// Drafts bytes: what they are, and the readable strings in them.
pub(super) fn binary_draft(text: &str) -> Draft {
    let what = SIGNATURES.iter().find(|(sign, _)| text.starts_with(sign)).map_or("binary data", |(_, what)| what);
    let mut draft = Draft { summary: format!("not text: {what}"), ..Draft::default() };
    let sample = &text[..floor(text, 262_144)];
    let strings = sample.split(|c: char| c == '\u{fffd}' || c.is_control()).filter(|s| {
        let letters = s.chars().filter(|c| c.is_ascii_alphanumeric()).count();
        s.len() >= 8 && letters * 10 >= s.len() * 8
    });
    for (n, found) in strings.take(60).enumerate() {
        draft.remark(n, 60 - (n as u16).min(50), found.to_owned());
    }
    draft
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_named() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x01\0\0\0\0\x80\x08\x06\0\0\0".to_vec();
        let bytes: Vec<u8> =
            png.into_iter().chain((0..2000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)).collect();
        let text = base64::engine::general_purpose::STANDARD.encode(&bytes);
        let body = base64_body(&text).expect("base64");
        assert!(base64_draft(body).summary.contains("image/png, 256 × 128 pixels"), "{}", base64_draft(body).summary);
        assert!(base64_body(&"word\n".repeat(200)).is_none());
        assert!(base64_body(&"A".repeat(400)).is_none());
        let lossy = String::from_utf8_lossy(&bytes);
        assert!(is_binary(&lossy) && binary_draft(&lossy).summary.contains("PNG"));
        assert!(!is_binary("naïve 文字 text with accents and enough of it to count"));
    }
}
