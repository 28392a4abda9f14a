//! What windowsill does to a history, as pure functions over values: it knows no clock, no disk, no network and no log.
//!
//! - [`conversation`]: messages, steps and turns, chain hashes, edits; [`wire`]: bytes to a conversation and back, a
//!   folder a dialect.
//! - [`plan`]: what should change, one file a rule; it returns a [`plan::Plan`] with its reasons.
//! - [`apply`]: makes a plan into the edits of a new view, with [`preview`], [`brief`], [`pinned`] and [`unwrap`].
//! - [`recall`]: the tool by which a model gets an original back: its definition, arguments and pages.

pub mod apply;
pub mod brief;
pub mod conversation;
pub mod pinned;
pub mod plan;
pub mod preview;
pub mod recall;
pub mod unwrap;
pub mod wire;
