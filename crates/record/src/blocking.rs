//! Where what blocks a thread is done. Never does anything itself.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does what reads the disk, waits for a process or keeps the processor busy. Where this thread is one of several async
/// workers, its other tasks move to another thread first; anywhere else the work is just done.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    if flavor.is_ok_and(|flavor| flavor == RuntimeFlavor::MultiThread) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::blocking;

    /// The work blocks the only worker until another task of it lets it go on: done on the worker, it would never end.
    #[test]
    fn a_workers_other_tasks_go_on() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let done = runtime.block_on(async {
            let (go, wait) = mpsc::channel();
            let handle = runtime.handle().clone();
            let work = runtime.spawn(async move {
                let other = handle.spawn(async move { go.send(7).unwrap() });
                let told = blocking(|| wait.recv_timeout(Duration::from_secs(20)));
                other.await.unwrap();
                told
            });
            work.await.unwrap()
        });
        assert_eq!(done, Ok(7));
    }

    #[test]
    fn without_other_workers_it_is_just_done() {
        assert_eq!(blocking(|| 1), 1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(async { blocking(|| 2) }), 2);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        assert_eq!(runtime.block_on(runtime.spawn_blocking(|| blocking(|| 3))).unwrap(), 3);
    }
}
