//! What stands between requests, under all that works with it: conversations in memory, what people want of them, whose they are,
//! what their prompts take, and the headers that both sides speak in. Imports nothing of `turn`, `ahead` or `desk`.

pub(super) mod fresh;
pub(super) mod gauge;
pub(super) mod headers;
pub(super) mod live;
pub(super) mod notes;
pub(super) mod scope;
pub(super) mod sent;
pub(super) mod sizes;
pub(super) mod standing;
pub(super) mod steer;
pub(super) mod view;
pub(super) mod walls;
pub(super) mod whose;
