//! Keeps the record within its limits: at the start, and from time to time.

use std::time::Duration;

use tracing::{debug, info, warn};

use super::App;
use super::save::now_ms;
use crate::store::{Retention, Store};

/// Time between two passes: limits are in days.
const EVERY: Duration = Duration::from_secs(60 * 60);

impl App {
    /// Starts the passes. The first also clears away what a killed one left.
    pub(super) fn keep_house(&self) {
        let retention = Retention { days: self.config.retention_days, bytes: self.config.retention_bytes };
        let store = self.store.clone();
        self.tasks.spawn(async move {
            let mut passes = tokio::time::interval(EVERY);
            passes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                passes.tick().await;
                pass(&store, retention).await;
                if retention == Retention::default() {
                    return;
                }
            }
        });
    }
}

async fn pass(store: &Store, retention: Retention) {
    match store.prune(retention, now_ms()).await {
        Ok(done) => {
            let (before, after) = (done.bytes_before, done.bytes_after);
            if done.conversations > 0 {
                info!(
                    conversations = done.conversations,
                    originals = done.originals,
                    bytes_before = before,
                    bytes_after = after,
                    "pruned the record"
                );
            }
            if done.over {
                warn!(
                    bytes = after,
                    retention_bytes = retention.bytes,
                    "the record is larger than it may be: the rest is in use"
                );
            }
            if done.shared && retention != Retention::default() {
                warn!("another windowsill writes the same `data_dir`: nothing is pruned until it has ended");
            }
            debug!(bytes = after, "retention looked at the record");
        }
        Err(e) => warn!(error = %e, "the record could not be pruned"),
    }
}
