//! Commands too long for `main.rs`, one file each. They print and exit; what they show is worked out elsewhere.

pub(crate) mod build;
mod clients;
pub(crate) mod context;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod engine;
mod events;
pub(crate) mod fit;
pub(crate) mod guard;
pub(crate) mod key;
pub(crate) mod launch;
pub(crate) mod log;
pub(crate) mod mcp;
pub(crate) mod pages;
mod paint;
pub(crate) mod pin;
pub(crate) mod plan;
pub(crate) mod profile;
pub(crate) mod recall;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod rules;
pub(crate) mod service;
pub(crate) mod steer;
pub(crate) mod top;
pub(crate) mod wrap;
