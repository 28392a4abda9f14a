//! A crash at one write of the record: the writer stops there until the process is gone, and what is on the disk at that moment
//! is what is left.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use tempfile::TempDir;
use windowsill::store::Watcher;

use super::world::{copy, folder};

/// Watches the record of one proxy after the other.
#[derive(Clone, Default)]
pub(super) struct Trap(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
enum State {
    #[default]
    Off,
    /// Springs after so many writes.
    Set { data: PathBuf, writes: usize },
    /// The writer stands at this write; a copy of what is left by then.
    Sprung { at: &'static str, left: Arc<TempDir> },
}

impl Trap {
    /// For [`windowsill::store::Store::open_watched`].
    pub(super) fn watcher(&self) -> Watcher {
        let trap = self.clone();
        Arc::new(move |at| trap.passes(at))
    }

    /// Springs after `writes` more writes to this data folder.
    pub(super) fn set(&self, data: &Path, writes: usize) {
        *self.0.0.lock().unwrap() = State::Set { data: data.to_owned(), writes };
    }

    pub(super) fn is_sprung(&self) -> bool {
        matches!(*self.0.0.lock().unwrap(), State::Sprung { .. })
    }

    /// Takes the trap away: at which write the process died and what it left, if it sprang. A writer that stands in it goes on.
    pub(super) fn take(&self) -> Option<(&'static str, Arc<TempDir>)> {
        let state = std::mem::take(&mut *self.0.0.lock().unwrap());
        self.0.1.notify_all();
        match state {
            State::Sprung { at, left } => Some((at, left)),
            State::Off | State::Set { .. } => None,
        }
    }

    fn passes(&self, at: &'static str) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        match &mut *state {
            State::Set { writes: 0, data } => {
                let left = folder();
                copy(data, &left.path().join("data"));
                *state = State::Sprung { at, left };
            }
            State::Set { writes, .. } => *writes -= 1,
            State::Off | State::Sprung { .. } => {}
        }
        while matches!(*state, State::Sprung { .. }) {
            state = changed.wait(state).unwrap();
        }
    }
}
