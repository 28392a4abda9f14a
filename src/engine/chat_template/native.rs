//! The edge to C++: the functions of `edge.cpp`, and a template read by them.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::ptr::NonNull;

use serde_json::Value;

use crate::engine::ffi::{RawText, Text};
use crate::template::{Caps, Reference, TemplateError};

/// A template on the other side.
#[repr(C)]
struct RawTemplate {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn sill_wall_clock(now: i64) -> i64;
    fn sill_chat_template_read(source: *const c_char, length: usize, why: *mut RawText) -> *mut RawTemplate;
    fn sill_chat_template_free(template: *mut RawTemplate);
    fn sill_chat_template_caps(template: *mut RawTemplate, out: *mut u32) -> bool;
    fn sill_chat_template_render(
        template: *const RawTemplate,
        variables: *const c_char,
        length: usize,
        shown: i64,
        out: *mut RawText,
    ) -> bool;
}

/// What a clock on the wall shows at a time, both in seconds since 1970.
pub(super) fn wall_clock(now: i64) -> i64 {
    // SAFETY: it takes and returns a number.
    unsafe { sill_wall_clock(now) }
}

/// A chat template that llama.cpp read.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    template: NonNull<RawTemplate>,
    caps: Caps,
}

// SAFETY: nothing of it is bound to a thread.
unsafe impl Send for ChatTemplate {}
// SAFETY: after `read` it is only rendered, which does not change it: llama.cpp's server shares it between threads, too
// (common/jinja/runtime.h: "The AST is shared between threads, so visit and execute must be const").
unsafe impl Sync for ChatTemplate {}

impl ChatTemplate {
    /// Has llama.cpp read a template and try what it understands.
    pub(super) fn read(source: &str) -> Result<ChatTemplate, TemplateError> {
        let mut why = Text::new();
        // SAFETY: the source is read within its length and not kept; `why` is a struct as on the other side. What is
        // returned is null or a template that nobody else has.
        let template = unsafe { sill_chat_template_read(source.as_ptr().cast(), source.len(), why.raw()) };
        let template = NonNull::new(template).ok_or_else(|| TemplateError::Syntax(why.words()))?;
        let caps = Caps { string_content: true, typed_content: false, system_role: true, object_arguments: false };
        let mut out = ChatTemplate { template, caps };
        let mut bits = 0;
        // SAFETY: the template is valid until `out` is dropped, and nobody else has it yet.
        if !unsafe { sill_chat_template_caps(out.template.as_ptr(), &mut bits) } {
            return Err(TemplateError::Render("llama.cpp cannot try it".into()));
        }
        let has = |bit: u32| bits & (1 << bit) != 0;
        out.caps =
            Caps { string_content: has(0), typed_content: has(1), system_role: has(2), object_arguments: has(3) };
        Ok(out)
    }
}

impl Reference for ChatTemplate {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn render(&self, variables: &Value, now: i64) -> Result<String, TemplateError> {
        let variables = variables.to_string();
        let mut text = Text::new();
        // SAFETY: the template is valid until `self` is dropped, and rendering does not change it; the variables are read
        // within their length and not kept; `text` is a struct as on the other side.
        let rendered = unsafe {
            sill_chat_template_render(
                self.template.as_ptr(),
                variables.as_ptr().cast(),
                variables.len(),
                now,
                text.raw(),
            )
        };
        let text = text.words();
        match (rendered, text.split_once("Jinja Exception: ")) {
            (true, _) => Ok(text),
            (false, Some((_, message))) => Err(TemplateError::Raised(message.to_owned())),
            (false, None) => Err(TemplateError::Render(text)),
        }
    }
}

impl Drop for ChatTemplate {
    fn drop(&mut self) {
        // SAFETY: it is valid until here, and freed once.
        unsafe { sill_chat_template_free(self.template.as_ptr()) };
    }
}
