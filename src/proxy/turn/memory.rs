//! What the stages of requests remember of earlier ones. All of it is bounded, and none of it is missed after a restart.

use std::collections::HashMap;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use super::brief::Trial;
use super::digest::{Begun, FOUND_AGAIN};
use super::heads::Heads;
use super::parked::Parking;
use super::slots::{Lent, NAMES};
use crate::config::Resolved;
use crate::keys::quota::Meters;
use crate::proxy::pool::Pools;
use crate::wire::known;

/// Policies by model, profile header, what the server has loaded, and task.
type Policies = HashMap<(String, Option<String>, String, Option<String>), Arc<Resolved>>;

/// What the stages of requests remember of earlier ones.
pub(in crate::proxy) struct Memory {
    /// What is in flight at servers whose slots share a pool.
    pub(in crate::proxy) pools: Arc<Pools>,
    pub(super) lent: Arc<Lent>,
    /// Prompts in files of servers.
    pub(super) parking: Parking,
    pub(in crate::proxy) heads: Heads,
    /// How summarizers did lately, by upstream and model.
    pub(super) summarizers: Mutex<LruCache<String, Trial>>,
    /// Digests that clients wait for, or waited for.
    pub(super) digests: Begun,
    pub(super) policies: Mutex<Policies>,
    /// Long requests that the next ones go on from.
    pub(super) read: Mutex<known::Kept>,
    /// What each `[[key]]` has taken of its quotas.
    pub(in crate::proxy) meters: Arc<Meters>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            pools: Arc::default(),
            lent: Arc::default(),
            parking: Parking::default(),
            heads: Heads::default(),
            summarizers: Mutex::new(LruCache::new(NAMES)),
            digests: Mutex::new(LruCache::new(FOUND_AGAIN)),
            policies: Mutex::default(),
            read: Mutex::default(),
            meters: Arc::default(),
        }
    }
}

impl Memory {
    /// That of another record before the same servers: what is in flight at them and what keys took is shared, and no text is.
    pub(in crate::proxy) fn beside(&self) -> Memory {
        let (pools, lent) = (Arc::clone(&self.pools), Arc::clone(&self.lent));
        Memory { pools, lent, meters: Arc::clone(&self.meters), ..Memory::default() }
    }
}
