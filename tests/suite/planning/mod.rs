//! The pure rooms as a whole: conversation -> repair -> facts -> plan -> view -> rewrite, without any I/O.
//!
//! `pictures` are single cases with the expected plan, `properties` hold for any conversation, `oracle` knows by brute
//! force what can fit, `sessions` replays recorded sessions turn by turn.

pub(crate) mod harness;
mod oracle;
mod picture;
mod pictures;
mod properties;
pub(crate) mod sessions;
mod tight;
