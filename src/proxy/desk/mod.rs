//! What people and agents ask, beside requests: what is recorded, what fills a window, what a change would cost, what is wrong; and
//! what they want changed.

pub(super) mod again;
pub(super) mod agent;
pub(super) mod ask;
pub(super) mod checkpoint;
pub(super) mod compact;
pub(super) mod curate;
pub(super) mod doctor;
pub(super) mod fleet;
pub(super) mod house;
pub(super) mod machine;
pub(super) mod models;
pub(super) mod pins;
pub(super) mod price;
pub(super) mod protocol;
pub(super) mod receipt;
pub(super) mod record;
pub(super) mod report;
pub(super) mod resume;
pub(super) mod rewrites;
pub(super) mod rows;
pub(super) mod rules;
pub(super) mod running;
pub(super) mod search;
pub(super) mod shared;
pub(super) mod sides;
pub(super) mod sight;
pub(super) mod steer;
pub(super) mod timeline;
pub(super) mod trace;
pub(super) mod warm;
