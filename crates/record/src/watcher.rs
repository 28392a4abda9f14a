//! A hook that is called before and after every write to the disk. Tests use it to copy what a process would leave that dies at
//! that moment.

use std::fmt;
use std::sync::Arc;

/// Called on the writing thread before and after each write, with a few words about the step.
pub type Watcher = Arc<dyn Fn(&'static str) + Send + Sync>;

/// The hook, if there is one. Outside of tests there is none.
#[derive(Clone, Default)]
pub(super) struct Watch(Option<Watcher>);

impl Watch {
    /// A watch that calls this hook.
    pub(super) fn by(watcher: Watcher) -> Watch {
        Watch(Some(watcher))
    }

    /// Calls the hook with the step that the writer is at.
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
