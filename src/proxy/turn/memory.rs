//! What the stages of requests remember of earlier ones. All of it is bounded, and none of it is missed after a restart.

use std::collections::HashMap;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use super::brief::Trial;
use super::digest::{Begun, FOUND_AGAIN};
use super::heads::Heads;
use super::slots::{Lent, NAMES};
use crate::config::Resolved;
use crate::proxy::pool::Pools;
use crate::wire::known;

/// Policies by model, profile header, what the server has loaded, and task.
type Policies = HashMap<(String, Option<String>, String, Option<String>), Arc<Resolved>>;

/// What the stages of requests remember of earlier ones.
pub(in crate::proxy) struct Memory {
    /// What is in flight at servers whose slots share a pool.
    pub(super) pools: Pools,
    pub(super) lent: Lent,
    pub(in crate::proxy) heads: Heads,
    /// How summarizers did lately, by upstream and model.
    pub(super) summarizers: Mutex<LruCache<String, Trial>>,
    /// Digests that clients wait for, or waited for.
    pub(super) digests: Begun,
    pub(super) policies: Mutex<Policies>,
    /// Long requests that the next ones go on from.
    pub(super) read: Mutex<known::Kept>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            pools: Pools::default(),
            lent: Lent::default(),
            heads: Heads::default(),
            summarizers: Mutex::new(LruCache::new(NAMES)),
            digests: Mutex::new(LruCache::new(FOUND_AGAIN)),
            policies: Mutex::default(),
            read: Mutex::default(),
        }
    }
}
