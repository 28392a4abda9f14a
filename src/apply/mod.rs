//! (room being built)

pub mod brief;
pub mod preview;
