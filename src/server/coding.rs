//! Content codings of request bodies (RFC 9110, 8.4): Codex sends zstd, other clients gzip or deflate. Pure: bytes in, bytes out, within
//! a size. It never sees a socket, and what it reads comes from anybody.

use std::io::{self, BufRead, Read};

use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, header};
use ruzstd::decoding::errors::{FrameDecoderError, FrameHeaderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// The codings that are read, as a header lists them.
pub(super) const KNOWN: &str = "zstd, gzip, deflate";

/// So many codings in a row are read. Two are in use; each one more is only work.
const MOST: usize = 4;

/// The window that every decoder of zstd has to have room for (bytes; RFC 9659).
const ZSTD_WINDOW: u64 = 8 << 20;

/// One content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Zstd,
}

/// Why a body cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It unpacks to more than may be taken.
    TooLarge,
    /// It is not what its header says, or it does not end.
    Broken(String),
}

/// The codings of a body, in the order in which they were applied. `identity` is none.
///
/// # Errors
/// What is not understood.
pub(super) fn codings(headers: &HeaderMap) -> Result<Vec<Coding>, String> {
    let mut out = Vec::new();
    for value in headers.get_all(header::CONTENT_ENCODING) {
        let value = value.to_str().map_err(|_| "what is not ASCII".to_owned())?;
        for name in value.split(',').map(str::trim) {
            match name.to_ascii_lowercase().as_str() {
                "" | "identity" => {}
                "gzip" | "x-gzip" => out.push(Coding::Gzip),
                "deflate" => out.push(Coding::Deflate),
                "zstd" => out.push(Coding::Zstd),
                _ => return Err(name.chars().take(40).collect()),
            }
        }
    }
    if out.len() > MOST {
        return Err(format!("{} codings in a row", out.len()));
    }
    Ok(out)
}

/// The body that a client meant, of at most `limit` bytes; nothing on the way there is larger, either.
///
/// # Errors
/// When it is larger, or broken.
pub(super) fn decode(body: &[u8], codings: &[Coding], limit: u64) -> Result<Vec<u8>, Failure> {
    let Some((last, before)) = codings.split_last() else { return Ok(body.to_vec()) };
    let mut out = last.decode(body, limit)?;
    for coding in before.iter().rev() {
        out = coding.decode(&out, limit)?;
    }
    Ok(out)
}

impl Coding {
    fn name(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
            Coding::Zstd => "zstd",
        }
    }

    fn decode(self, mut from: &[u8], limit: u64) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::new();
        match self {
            Coding::Gzip => self.read(MultiGzDecoder::new(&mut from), limit, &mut out)?,
            // What the standard calls deflate is in zlib's wrapping; some clients leave that out.
            Coding::Deflate if is_zlib(from) => self.read(ZlibDecoder::new(&mut from), limit, &mut out)?,
            Coding::Deflate => self.read(DeflateDecoder::new(&mut from), limit, &mut out)?,
            Coding::Zstd => {
                self.frame(&mut from, limit, &mut out)?;
                while !from.is_empty() {
                    self.frame(&mut from, limit, &mut out)?;
                }
            }
        }
        if from.is_empty() { Ok(out) } else { Err(self.broken("it has bytes behind its end")) }
    }

    /// Reads what is left of a stream, up to one byte more than there may be.
    fn read(self, stream: impl Read, limit: u64, out: &mut Vec<u8>) -> Result<(), Failure> {
        let left = limit.saturating_sub(out.len() as u64);
        stream.take(left + 1).read_to_end(out).map_err(|e| self.broken(reason(&e)))?;
        if out.len() as u64 > limit { Err(Failure::TooLarge) } else { Ok(()) }
    }

    /// Reads one frame of zstd, which may be one to be skipped.
    fn frame(self, from: &mut &[u8], limit: u64, out: &mut Vec<u8>) -> Result<(), Failure> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(limit.max(ZSTD_WINDOW));
        let mut stream = match StreamingDecoder::new_with_decoder(&mut *from, decoder) {
            Ok(stream) => stream,
            Err(
                FrameDecoderError::WindowSizeTooBig { .. }
                | FrameDecoderError::FrameHeaderError(FrameHeaderError::WindowTooBig { .. }),
            ) => return Err(Failure::TooLarge),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                return match from.len() < length {
                    true => Err(self.broken("it ends within a frame")),
                    false => {
                        from.consume(length);
                        Ok(())
                    }
                };
            }
            Err(_) => return Err(self.broken("no frame begins where one should")),
        };
        self.read(&mut stream, limit, out)?;
        let decoder = stream.into_frame_decoder();
        match decoder.get_checksum_from_data() {
            Some(told) if decoder.get_calculated_checksum() != Some(told) => Err(self.broken("its checksum is wrong")),
            _ => Ok(()),
        }
    }

    fn broken(self, why: &str) -> Failure {
        Failure::Broken(format!("{}: {why}", self.name()))
    }
}

/// Whether a stream begins as zlib's do (RFC 1950, 2.2): deflate, and a check that both bytes together are a multiple of 31.
fn is_zlib(bytes: &[u8]) -> bool {
    matches!(bytes, [first, second, ..] if first & 0x0f == 8 && u16::from_be_bytes([*first, *second]) % 31 == 0)
}

fn reason(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => "it ends too early",
        _ => "it is damaged, or ends too early",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use http::HeaderValue;
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut to = GzEncoder::new(Vec::new(), Compression::default());
        to.write_all(data).unwrap();
        to.finish().unwrap()
    }

    fn zlib(data: &[u8]) -> Vec<u8> {
        let mut to = ZlibEncoder::new(Vec::new(), Compression::default());
        to.write_all(data).unwrap();
        to.finish().unwrap()
    }

    fn raw(data: &[u8]) -> Vec<u8> {
        let mut to = DeflateEncoder::new(Vec::new(), Compression::default());
        to.write_all(data).unwrap();
        to.finish().unwrap()
    }

    fn zstd(data: &[u8]) -> Vec<u8> {
        compress_to_vec(data, CompressionLevel::Fastest)
    }

    fn named(values: &[&str]) -> Result<Vec<Coding>, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CONTENT_ENCODING, HeaderValue::from_str(value).unwrap());
        }
        codings(&headers)
    }

    fn one(coding: Coding, body: &[u8], limit: u64) -> Result<Vec<u8>, Failure> {
        decode(body, &[coding], limit)
    }

    fn ways(data: &[u8]) -> [(Coding, Vec<u8>); 4] {
        [
            (Coding::Gzip, gzip(data)),
            (Coding::Deflate, zlib(data)),
            (Coding::Deflate, raw(data)),
            (Coding::Zstd, zstd(data)),
        ]
    }

    #[test]
    fn codings_are_named_in_any_case_and_in_a_row() {
        use Coding::{Deflate, Gzip, Zstd};
        assert_eq!(named(&[]), Ok(vec![]));
        assert_eq!(named(&["identity", ""]), Ok(vec![]));
        assert_eq!(named(&["GZip , ZSTD"]), Ok(vec![Gzip, Zstd]));
        assert_eq!(named(&["x-gzip", "deflate"]), Ok(vec![Gzip, Deflate]));
        assert_eq!(named(&["gzip, br"]), Err("br".into()));
        assert_eq!(named(&["gzip,gzip,gzip,gzip,gzip"]), Err("5 codings in a row".into()));
    }

    #[test]
    fn what_was_packed_comes_out_whole_or_not_at_all() {
        let data = "{\"model\": \"m\"} äö ".repeat(40_000).into_bytes();
        let size = data.len() as u64;
        for (coding, packed) in ways(&data) {
            assert_eq!(one(coding, &packed, size).as_ref(), Ok(&data), "{coding:?}");
            assert_eq!(one(coding, &packed, size - 1), Err(Failure::TooLarge), "{coding:?}");
            for cut in [0, 1, 9, packed.len() / 2, packed.len() - 1] {
                let cut = one(coding, &packed[..cut], size);
                assert!(matches!(cut, Err(Failure::Broken(_))), "{coding:?}");
            }
            let more = one(coding, &[&packed[..], b"x"].concat(), size);
            assert!(matches!(more, Err(Failure::Broken(_))), "{coding:?}");
        }
        let twice = [Coding::Gzip, Coding::Zstd];
        assert_eq!(decode(&zstd(&gzip(&data)), &twice, size).as_ref(), Ok(&data));
        assert!(decode(&gzip(&zstd(&data)), &twice, size).is_err(), "the last one is undone first");
    }

    #[test]
    fn streams_of_several_parts_are_one_body() {
        let parts = |pack: fn(&[u8]) -> Vec<u8>| [pack(b"ab"), pack(b""), pack(b"c")].concat();
        assert_eq!(one(Coding::Gzip, &parts(gzip), 9).unwrap(), b"abc");
        assert_eq!(one(Coding::Zstd, &parts(zstd), 9).unwrap(), b"abc");
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(b"abc")].concat();
        assert_eq!(one(Coding::Zstd, &skipped, 9).unwrap(), b"abc");
        assert!(one(Coding::Zstd, &skipped[..10], 9).is_err());
        assert_eq!(one(Coding::Zstd, &parts(zstd), 2), Err(Failure::TooLarge));
    }

    #[test]
    fn a_bomb_is_given_up_at_the_limit() {
        let limit = 1 << 20;
        let large = vec![b'x'; 64 << 20];
        for (coding, packed) in ways(&large) {
            assert!(packed.len() < 200_000, "{coding:?}: {}", packed.len());
            let mut result = None;
            let used = allocation_counter::measure(|| result = Some(one(coding, &packed, limit)));
            assert_eq!(result, Some(Err(Failure::TooLarge)), "{coding:?}");
            assert!(used.bytes_max < 12 << 20, "{coding:?} took {} bytes", used.bytes_max);
        }
        // What is packed twice is as large on the way.
        let twice = gzip(&gzip(&large));
        assert!(twice.len() < 1000, "{}", twice.len());
        assert_eq!(decode(&twice, &[Coding::Gzip, Coding::Gzip], limit), Err(Failure::TooLarge));
        // A frame that asks for a window of 3.75 TB.
        assert_eq!(one(Coding::Zstd, &[0x28, 0xb5, 0x2f, 0xfd, 0, 0xff, 1, 0, 0], limit), Err(Failure::TooLarge));
    }

    proptest! {
        #[test]
        fn nothing_that_is_sent_ends_the_program(
            data in proptest::collection::vec(any::<u8>(), 0..400),
            noise in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6),
        ) {
            for (coding, packed) in ways(&data) {
                let _ = one(coding, &data, 1000);
                let mut packed = packed;
                for (at, byte) in &noise {
                    let at = usize::from(*at) % packed.len();
                    packed[at] ^= byte;
                }
                if let Ok(out) = one(coding, &packed, 1000) {
                    prop_assert!(out.len() <= 1000);
                }
            }
        }
    }
}
