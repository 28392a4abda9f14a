//! The process that generates: loads the model, then answers requests in turn until its input ends.

use std::io::{BufRead, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Event, Facts, Request, Setup};

/// What the process is told first of all, as a line of JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Opening {
    /// What to render with instead of the file's own chat template.
    pub(super) chat_template: Option<String>,
}

/// What the process is told from then on, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Answer this.
    Answer {
        /// What its events are told by.
        id: u64,
        /// The request.
        request: Box<Request>,
    },
    /// Nobody wants the answer any more.
    Cancel {
        /// As it was ordered.
        id: u64,
    },
}

/// What the process tells, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum News {
    /// The model is loaded: first of all.
    Ready(Facts),
    /// It cannot be: first and last of all.
    Failed(String),
    /// What became of a request.
    Event {
        /// As it was ordered.
        id: u64,
        /// What happened.
        event: Event,
    },
}

fn write(output: &mut impl Write, news: &News) -> std::io::Result<()> {
    serde_json::to_writer(&mut *output, news)?;
    output.write_all(b"\n")?;
    output.flush()
}

/// The process's side: loads the model and answers until its input ends.
///
/// # Errors
/// When nobody takes the answers.
#[cfg(feature = "engine")]
pub fn work(
    file: &Path,
    setup: &Setup,
    mut input: impl BufRead + Send + 'static,
    mut output: impl Write,
) -> std::io::Result<()> {
    use super::native::Engine;
    use super::session::Session;

    let mut line = String::new();
    input.read_line(&mut line)?;
    let opening: Opening = match serde_json::from_str(&line) {
        Ok(opening) => opening,
        Err(why) => return write(&mut output, &News::Failed(format!("what it is told cannot be read: {why}"))),
    };
    let engine = match Engine::open(file, setup, opening.chat_template.as_deref()) {
        Ok(engine) => engine,
        Err(why) => return write(&mut output, &News::Failed(why)),
    };
    let (brake, facts) = (engine.brake(), engine.facts().clone());
    write(&mut output, &News::Ready(facts.clone()))?;
    let mut session = Session::new(engine, facts);
    let desk = std::sync::Arc::new(desk::Desk::default());
    let clerk = std::sync::Arc::clone(&desk);
    let reader = std::thread::spawn(move || {
        for line in input.lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Order::Answer { id, request }) => clerk.put(id, request),
                Ok(Order::Cancel { id }) => clerk.cancel(id, &|| brake.set(true)),
                // Whoever wrote it waits for nothing that could be named.
                Err(_) => {}
            }
        }
        clerk.close(&|| brake.set(true));
    });
    let mut broken = None;
    while let Some((id, request)) = desk.take(&|| brake.set(false)) {
        session.answer(&request, &mut |event| {
            let silent = matches!(&event, Event::Said(deltas) if deltas.is_empty());
            if !silent && let Err(error) = write(&mut output, &News::Event { id, event }) {
                broken = Some(error);
                return false;
            }
            desk.wanted()
        });
        if let Some(error) = broken {
            return Err(error);
        }
    }
    // It ended, which is why there is nothing left to take. The engine must not go before what may still brake it.
    let _ = reader.join();
    Ok(())
}

/// The process's side in a build without llama.cpp.
///
/// # Errors
/// When nobody takes the answer.
#[cfg(not(feature = "engine"))]
pub fn work(
    _file: &Path,
    _setup: &Setup,
    _input: impl BufRead + Send + 'static,
    mut output: impl Write,
) -> std::io::Result<()> {
    write(&mut output, &News::Failed("this build has no llama.cpp in it (feature `engine`)".into()))
}

#[cfg(feature = "engine")]
mod desk {
    //! Where requests wait to be answered, and are cancelled.

    use std::collections::VecDeque;

    use parking_lot::{Condvar, Mutex};

    use super::Request;

    #[derive(Default)]
    struct Papers {
        waiting: VecDeque<(u64, Box<Request>)>,
        current: Option<u64>,
        cancelled: bool,
        closed: bool,
    }

    #[derive(Default)]
    pub(super) struct Desk {
        papers: Mutex<Papers>,
        arrived: Condvar,
    }

    impl Desk {
        pub(super) fn put(&self, id: u64, request: Box<Request>) {
            self.papers.lock().waiting.push_back((id, request));
            self.arrived.notify_one();
        }

        /// Takes a request back, whether it waits or is worked on; `brake` stops the work.
        pub(super) fn cancel(&self, id: u64, brake: &dyn Fn()) {
            let mut papers = self.papers.lock();
            papers.waiting.retain(|(waiting, _)| *waiting != id);
            if papers.current == Some(id) {
                papers.cancelled = true;
                brake();
            }
        }

        /// Nothing comes any more, and nothing is wanted.
        pub(super) fn close(&self, brake: &dyn Fn()) {
            let mut papers = self.papers.lock();
            (papers.closed, papers.cancelled) = (true, true);
            brake();
            self.arrived.notify_one();
        }

        /// The next request, waited for; `None` once it is closed. What was worked on until now is done: `release` takes a
        /// brake back that came too late.
        pub(super) fn take(&self, release: &dyn Fn()) -> Option<(u64, Box<Request>)> {
            let mut papers = self.papers.lock();
            papers.current = None;
            loop {
                if papers.closed {
                    return None;
                }
                if let Some((id, request)) = papers.waiting.pop_front() {
                    papers.current = Some(id);
                    papers.cancelled = false;
                    release();
                    return Some((id, request));
                }
                self.arrived.wait(&mut papers);
            }
        }

        /// Whether what is worked on is still wanted.
        pub(super) fn wanted(&self) -> bool {
            !self.papers.lock().cancelled
        }
    }

    #[cfg(test)]
    mod tests {
        use std::cell::Cell;

        use super::*;

        #[test]
        fn what_waits_is_taken_in_turn_and_what_was_cancelled_is_not() {
            let desk = Desk::default();
            let braked = Cell::new(false);
            let (brake, release) = (|| braked.set(true), || braked.set(false));
            (1..=3).for_each(|id| desk.put(id, Box::default()));
            desk.cancel(2, &brake);
            assert_eq!(desk.take(&release).map(|(id, _)| id), Some(1));
            assert!(desk.wanted() && !braked.get());
            desk.cancel(1, &brake);
            assert!(!desk.wanted() && braked.get());
            assert_eq!(desk.take(&release).map(|(id, _)| id), Some(3));
            assert!(desk.wanted() && !braked.get());
            // Too late: it is done.
            desk.cancel(1, &brake);
            assert!(desk.wanted() && !braked.get());
            desk.close(&brake);
            assert!(!desk.wanted() && braked.get());
            assert!(desk.take(&release).is_none());
        }
    }
}
