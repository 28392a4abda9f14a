//! Who is told of every write to the disk, just before it and just after: tests that have the process die there.

use std::fmt;
use std::sync::Arc;

/// Is called on the thread that writes, before and after each write, with what is being done. What is on the disk then is what
/// a process that dies there leaves.
pub type Watcher = Arc<dyn Fn(&'static str) + Send + Sync>;

/// Who is told, if anyone.
#[derive(Clone, Default)]
pub(super) struct Watch(Option<Watcher>);

impl Watch {
    /// Has this one be told.
    pub(super) fn by(watcher: Watcher) -> Watch {
        Watch(Some(watcher))
    }

    /// Tells where the writer is.
    pub(super) fn at(&self, what: &'static str) {
        if let Some(watcher) = &self.0 {
            watcher(what);
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Watch(on)" } else { "Watch(off)" })
    }
}
