//! The one clock: what is written of a time anywhere in the program is read here.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    u64::try_from(now_ms() / 1000).unwrap_or(0)
}
