//! llama.cpp's own engine for chat templates, of the llama.cpp that is built in: what its renderings of a template are
//! held against. `None` in a build without the feature `engine`.
//!
//! It takes what it is given: a template that has not ended elsewhere, or was not seen to, is none for it.

#[cfg(feature = "engine")]
mod native;

use std::sync::Arc;
use std::time::Duration;

use crate::template::Reference;

/// A template as llama.cpp reads it; `None` where it does not.
#[cfg(feature = "engine")]
pub fn read(source: &str) -> Option<Arc<dyn Reference>> {
    Some(Arc::new(native::ChatTemplate::read(source).ok()?))
}

/// A template as llama.cpp reads it; there is none in this build.
#[cfg(not(feature = "engine"))]
pub fn read(_source: &str) -> Option<Arc<dyn Reference>> {
    None
}

/// Why llama.cpp does not read a template, in its words; `None` where it does.
#[cfg(feature = "engine")]
pub fn fault(source: &str) -> Option<String> {
    native::ChatTemplate::read(source).err().map(|e| e.to_string())
}

/// As [`fault`], within a time. A template that has not been tried by then is still being tried, in a thread that ends with
/// the process.
///
/// # Errors
/// That it does not end, in words.
pub fn fault_within(source: &str, limit: Duration) -> Result<Option<String>, String> {
    let (send, receive) = std::sync::mpsc::channel();
    let template = source.to_owned();
    std::thread::spawn(move || send.send(fault(&template)));
    receive.recv_timeout(limit).map_err(|_| {
        format!("the chat template does not end: llama.cpp tried it for {} s. Name another", limit.as_secs())
    })
}

/// In this build nobody knows.
#[cfg(not(feature = "engine"))]
pub fn fault(_source: &str) -> Option<String> {
    None
}

/// What a clock on the wall shows at a time, both in seconds since 1970: templates that ask for the date get that of the
/// machine's time zone, which llama.cpp goes by.
#[cfg(feature = "engine")]
pub fn wall_clock(now: i64) -> i64 {
    native::wall_clock(now)
}

/// In this build the time in Greenwich.
#[cfg(not(feature = "engine"))]
pub fn wall_clock(now: i64) -> i64 {
    now
}

#[cfg(all(test, feature = "engine"))]
mod tests;
