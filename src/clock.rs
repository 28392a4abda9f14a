//! The one clock: what is written of a time anywhere in the program is read here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since the beginning of 1970.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Milliseconds since the beginning of 1970.
pub fn now_ms() -> i64 {
    i64::try_from(now().as_millis()).unwrap_or(i64::MAX)
}
