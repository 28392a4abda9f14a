//! Texts that the C++ edges hand over: the other side of `text.h`.

#![allow(unsafe_code)]

use std::ffi::c_char;

/// As `sill_text` in text.h.
#[repr(C)]
pub(super) struct RawText {
    bytes: *mut c_char,
    length: usize,
}

unsafe extern "C" {
    fn sill_text_free(text: *mut RawText);
}

/// A text that the other side makes: empty until it has.
pub(super) struct Text(RawText);

impl Text {
    pub(super) fn new() -> Text {
        Text(RawText { bytes: std::ptr::null_mut(), length: 0 })
    }

    /// Where the other side puts it, once.
    pub(super) fn raw(&mut self) -> *mut RawText {
        &raw mut self.0
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.0.bytes.is_null() {
            return &[];
        }
        // SAFETY: the other side allocated and wrote `length` bytes there, and nobody frees them before `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.0.bytes.cast::<u8>(), self.0.length) }
    }

    /// The text; where a letter was cut in pieces (templates may index bytes), with U+FFFD in its place.
    pub(super) fn words(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: what stands there is null or was allocated by the other side, and is freed once.
        unsafe { sill_text_free(&raw mut self.0) };
    }
}
