//! What should change? (room being built)

pub mod policy;

pub use policy::{Policy, Size, Strategy, TemplateFacts};
