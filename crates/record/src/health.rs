//! Whether the record can be written: what the last write said.

use std::time::{SystemTime, UNIX_EPOCH};

use super::recent::Recent;
use super::types::{Error, Trouble};

/// Notes that a batch was written.
pub(super) fn written(recent: &mut Recent) {
    if recent.trouble.take().is_some() {
        tracing::info!("the record can be written again");
    }
}

/// Notes that a batch was not. A batch that contradicts the record is no trouble of the disk's, and is logged only where
/// nobody waits for it.
pub(super) fn failed(recent: &mut Recent, error: &Error, nobody_waits: bool) {
    if !error.is_unwritable() {
        if nobody_waits {
            tracing::warn!(%error, "a batch was not written to the record");
        }
        return;
    }
    recent.failures += 1;
    let since_ms = recent.trouble.as_ref().map_or_else(unix_ms, |t| t.since_ms);
    if recent.trouble.is_none() {
        tracing::error!(%error, "the record cannot be written");
    }
    recent.trouble = Some(Trouble { since_ms, error: error.clone() });
}

/// What is said while the database of a shared record is away.
pub(super) fn away(recent: &Recent) -> Error {
    let known = recent.trouble.as_ref().map(|trouble| trouble.error.clone());
    known.filter(Error::is_away).unwrap_or_else(|| Error::Away { why: "it cannot be reached".into() })
}

/// For the few rows that come without a time.
pub(super) fn unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
