//! stub
/// x
pub struct Overflow {}
