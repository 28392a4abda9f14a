//! A body in pieces. Most of a long history is text that the client spelled as Ollama wants it: such texts stay where they are,
//! in the client's request, and only what stands between them is written.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Shorter texts are copied: a piece costs more.
const SHORT: usize = 512;

/// A body that is being written.
#[derive(Debug, Default)]
pub(in crate::upstream::ollama) struct Pieces {
    /// All that is written here.
    pub(super) written: Vec<u8>,
    /// Texts of the request, each with the length of what was written before it.
    texts: Vec<(usize, Bytes)>,
}

impl Pieces {
    /// Adds a text that is a part of the request.
    pub(super) fn add(&mut self, request: &Bytes, text: &str) {
        if text.len() < SHORT {
            self.written.extend_from_slice(text.as_bytes());
        } else {
            self.texts.push((self.written.len(), request.slice_ref(text.as_bytes())));
        }
    }

    pub(in crate::upstream::ollama) fn body(self) -> reqwest::Body {
        if self.texts.is_empty() { self.written.into() } else { reqwest::Body::wrap(self.sending()) }
    }

    pub(super) fn sending(self) -> Sending {
        let left = self.texts.iter().map(|(_, text)| text.len()).sum::<usize>() + self.written.len();
        Sending { written: self.written.into(), cut: 0, texts: self.texts.into_iter(), next: None, left: left as u64 }
    }
}

/// The pieces as they are sent. Their length is known: not every server reads chunked requests.
pub(super) struct Sending {
    /// What was written and is not sent yet.
    written: Bytes,
    /// How much of it was sent.
    cut: usize,
    texts: vec::IntoIter<(usize, Bytes)>,
    /// The text whose turn it is.
    next: Option<Bytes>,
    left: u64,
}

impl Iterator for Sending {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let piece = self.next.take().unwrap_or_else(|| match self.texts.next() {
            Some((at, text)) => {
                self.next = Some(text);
                self.written.split_to(at - std::mem::replace(&mut self.cut, at))
            }
            None => std::mem::take(&mut self.written),
        });
        self.left -= piece.len() as u64;
        Some(piece).filter(|piece| !piece.is_empty())
    }
}

impl http_body::Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next().map(Frame::data).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
