//! The edge to C++: the functions of `edge.cpp`, a vocabulary and a chat template read by them.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr::NonNull;

use serde_json::Value;

use super::{Facts, TemplateError};
use crate::engine::ffi::{RawText, Text};

/// A vocabulary on the other side.
#[repr(C)]
struct RawVocabulary {
    _private: [u8; 0],
}

/// A chat template on the other side.
#[repr(C)]
struct RawChat {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn sill_vocabulary_open(path: *const c_char, why: *mut RawText) -> *mut RawVocabulary;
    fn sill_vocabulary_close(vocabulary: *mut RawVocabulary);
    fn sill_vocabulary_lengths(vocabulary: *const RawVocabulary, n: *mut usize) -> *const i32;
    fn sill_vocabulary_facts(vocabulary: *const RawVocabulary, out: *mut RawText) -> bool;
    fn sill_vocabulary_tokenize(
        vocabulary: *const RawVocabulary,
        text: *const c_char,
        length: usize,
        whole: bool,
        out: *mut i32,
        room: usize,
    ) -> i64;
    fn sill_chat_open(
        vocabulary: *const RawVocabulary,
        source: *const c_char,
        length: usize,
        bos: *const c_char,
        eos: *const c_char,
        why: *mut RawText,
    ) -> *mut RawChat;
    fn sill_chat_close(chat: *mut RawChat);
    fn sill_chat_render(chat: *const RawChat, request: *const c_char, length: usize, out: *mut RawText) -> bool;
}

/// A vocabulary that llama.cpp read.
pub(super) struct Raw(NonNull<RawVocabulary>);

// SAFETY: nothing of it is bound to a thread.
unsafe impl Send for Raw {}
// SAFETY: after `open` it is only read: llama.cpp's server tokenizes with one vocabulary on many threads, too.
unsafe impl Sync for Raw {}

impl Raw {
    /// Has llama.cpp read the vocabulary of a file.
    pub(super) fn open(path: &Path) -> Result<Raw, String> {
        let path = path.to_str().ok_or("its name is not UTF-8")?;
        let path = CString::new(path).map_err(|_| "its name has a zero byte")?;
        let mut why = Text::new();
        // SAFETY: the path ends in NUL and outlives the call; `why` is a struct as on the other side. What is returned is null
        // or a vocabulary that nobody else has.
        let raw = unsafe { sill_vocabulary_open(path.as_ptr(), why.raw()) };
        NonNull::new(raw).map(Raw).ok_or_else(|| why.words())
    }

    /// The bytes that each token stands for; negative for special tokens.
    pub(super) fn lengths(&self) -> Vec<i32> {
        let mut n = 0;
        // SAFETY: the vocabulary is valid until `self` is dropped; what is returned are `n` numbers that it owns, copied here.
        unsafe {
            let lengths = sill_vocabulary_lengths(self.0.as_ptr(), &raw mut n);
            if n == 0 { Vec::new() } else { std::slice::from_raw_parts(lengths, n).to_vec() }
        }
    }

    /// What is known of it.
    pub(super) fn facts(&self) -> Result<Facts, String> {
        let mut out = Text::new();
        // SAFETY: the vocabulary is valid until `self` is dropped; `out` is a struct as on the other side.
        match unsafe { sill_vocabulary_facts(self.0.as_ptr(), out.raw()) } {
            true => serde_json::from_slice(out.bytes()).map_err(|e| e.to_string()),
            false => Err(out.words()),
        }
    }

    /// The tokens of a text, special ones as such. `whole`: with what is added to a whole prompt.
    pub(super) fn tokenize(&self, text: &str, whole: bool) -> Vec<i32> {
        // Few texts have more tokens than bytes.
        let mut out = vec![0; text.len() + 16];
        loop {
            // SAFETY: the vocabulary is valid until `self` is dropped; the text is read within its length and not kept, and no
            // more is written than there is room for.
            let n = unsafe {
                let (text, length) = (text.as_ptr().cast(), text.len());
                sill_vocabulary_tokenize(self.0.as_ptr(), text, length, whole, out.as_mut_ptr(), out.len())
            };
            let n = usize::try_from(n).unwrap_or(0);
            if n <= out.len() {
                out.truncate(n);
                return out;
            }
            out.resize(n, 0);
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: it is valid until here, and closed once.
        unsafe { sill_vocabulary_close(self.0.as_ptr()) };
    }
}

/// A chat template that llama.cpp read.
pub(super) struct Chat(NonNull<RawChat>);

// SAFETY: nothing of it is bound to a thread.
unsafe impl Send for Chat {}
// SAFETY: after `open` it is only rendered, which does not change it: llama.cpp's server shares it between threads, too
// (common/jinja/runtime.h: "The AST is shared between threads, so visit and execute must be const").
unsafe impl Sync for Chat {}

impl Chat {
    /// Has llama.cpp read a template, or of an empty one the vocabulary's own. Without a vocabulary, the first and the last token
    /// have these texts.
    pub(super) fn open(vocabulary: Option<&Raw>, source: &str, (bos, eos): (&str, &str)) -> Result<Chat, String> {
        let text = |text: &str| CString::new(text).map_err(|_| "a token has a zero byte");
        let (bos, eos) = (text(bos)?, text(eos)?);
        let vocabulary = vocabulary.map_or(std::ptr::null(), |v| v.0.as_ptr().cast_const());
        let mut why = Text::new();
        // SAFETY: the vocabulary is null or valid, and read only during the call; the source is read within its length, the
        // texts end in NUL, and none is kept; `why` is a struct as on the other side. What is returned is null or a template
        // that nobody else has.
        let raw = unsafe {
            let (source, length) = (source.as_ptr().cast(), source.len());
            sill_chat_open(vocabulary, source, length, bos.as_ptr(), eos.as_ptr(), why.raw())
        };
        NonNull::new(raw).map(Chat).ok_or_else(|| why.words())
    }

    /// The prompt of a request that was made plain.
    pub(super) fn render(&self, request: &Value) -> Result<String, TemplateError> {
        let request = request.to_string();
        let mut out = Text::new();
        // SAFETY: the template is valid until `self` is dropped, and rendering does not change it; the request is read within
        // its length and not kept; `out` is a struct as on the other side.
        let rendered = unsafe { sill_chat_render(self.0.as_ptr(), request.as_ptr().cast(), request.len(), out.raw()) };
        let text = out.words();
        match (rendered, text.split_once("Jinja Exception: ")) {
            (true, _) => Ok(text),
            (false, Some((_, message))) => Err(TemplateError::Raised(message.to_owned())),
            (false, None) => Err(TemplateError::Render(text)),
        }
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        // SAFETY: it is valid until here, and closed once.
        unsafe { sill_chat_close(self.0.as_ptr()) };
    }
}
