//! The process that generates: loads the model, then answers requests in turn until its input ends.

use std::io::{BufRead, Write};
use std::path::Path;
#[cfg(feature = "engine")]
use std::sync::Arc;
#[cfg(feature = "engine")]
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Event, Facts, Request, Setup};

/// How long llama.cpp may take to try a chat template; real ones take milliseconds.
#[cfg(feature = "engine")]
const TEMPLATE_WITHIN: Duration = Duration::from_secs(10);

/// How long work may go on that nobody waits for any more.
#[cfg(feature = "engine")]
const END_WITHIN: Duration = Duration::from_secs(5);

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

/// The process's side: loads the model and answers until its input ends. `exit` ends the process where it must not go on and
/// cannot stop.
///
/// # Errors
/// When nobody takes the answers.
#[cfg(feature = "engine")]
pub fn work(
    file: &Path,
    setup: &Setup,
    mut input: impl BufRead + Send + 'static,
    mut output: impl Write,
    exit: impl Fn() + Send + Sync + 'static,
) -> std::io::Result<()> {
    use super::native::Engine;
    use super::session::Session;

    let exit = Arc::new(exit);
    let mut line = String::new();
    input.read_line(&mut line)?;
    let opening: Opening = match serde_json::from_str(&line) {
        Ok(opening) => opening,
        Err(why) => return write(&mut output, &News::Failed(format!("what it is told cannot be read: {why}"))),
    };
    if let Some(why) = crate::engine::processor::lack() {
        return write(&mut output, &News::Failed(why));
    }
    let desk = Arc::new(desk::Desk::default());
    let (clerk, gone) = (Arc::clone(&desk), Arc::clone(&exit));
    let (hand_over, brake) = std::sync::mpsc::channel::<super::native::Brake>();
    // From the beginning: whoever started this process may end while the model is being loaded.
    let reader = std::thread::spawn(move || read_orders(input, &clerk, &brake, gone));
    if let Err(why) = tried(file, opening.chat_template.as_deref()) {
        write(&mut output, &News::Failed(why))?;
        // The template may still be running in a thread that nothing else ends.
        exit();
        return Ok(());
    }
    let engine = match Engine::open(file, setup, opening.chat_template.as_deref()) {
        Ok(engine) => engine,
        Err(why) => return write(&mut output, &News::Failed(why)),
    };
    let (brake, facts) = (engine.brake(), engine.facts().clone());
    let _ = hand_over.send(brake);
    write(&mut output, &News::Ready(facts.clone()))?;
    let mut session = Session::new(engine, facts);
    let mut broken = None;
    while let Some((id, request)) = desk.take(&|| brake.set(false)) {
        write(&mut output, &News::Event { id, event: Event::Taken })?;
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

/// Has llama.cpp try the chat template that prompts will be rendered with: one without end must not keep the process from
/// ever answering.
#[cfg(feature = "engine")]
fn tried(file: &Path, own: Option<&str>) -> Result<(), String> {
    let template = match own {
        Some(own) => own.to_owned(),
        // What is wrong with the file shows when it is loaded.
        None => {
            let header = crate::gguf::Gguf::open(file).ok();
            match header.as_ref().and_then(|header| header.text("tokenizer.chat_template")) {
                Some(template) => template.to_owned(),
                None => return Ok(()),
            }
        }
    };
    match crate::engine::vocabulary::fault_within(&template, TEMPLATE_WITHIN) {
        Err(endless) => Err(endless),
        // Why it is not read is told by whoever renders with it.
        Ok(_) => Ok(()),
    }
}

/// Reads orders until nobody gives any more; then the process is to end soon, whatever it works on.
#[cfg(feature = "engine")]
fn read_orders(
    input: impl BufRead,
    clerk: &desk::Desk,
    brakes: &std::sync::mpsc::Receiver<super::native::Brake>,
    exit: Arc<impl Fn() + Send + Sync + 'static>,
) {
    let mut known = None;
    let brake = |known: &mut Option<super::native::Brake>| {
        *known = known.or_else(|| brakes.try_recv().ok());
        known.is_some_and(|brake| {
            brake.set(true);
            true
        })
    };
    for line in input.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Order::Answer { id, request }) => clerk.put(id, request),
            Ok(Order::Cancel { id }) => clerk.cancel(id, &mut || {
                brake(&mut known);
            }),
            // Whoever wrote it waits for nothing that could be named.
            Err(_) => {}
        }
    }
    let mut braked = false;
    clerk.close(&mut || braked = brake(&mut known));
    if !braked {
        // The model is still being loaded, for nobody.
        return exit();
    }
    std::thread::spawn(move || {
        std::thread::sleep(END_WITHIN);
        exit();
    });
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
    _exit: impl Fn() + Send + Sync + 'static,
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
        pub(super) fn cancel(&self, id: u64, brake: &mut dyn FnMut()) {
            let mut papers = self.papers.lock();
            papers.waiting.retain(|(waiting, _)| *waiting != id);
            if papers.current == Some(id) {
                papers.cancelled = true;
                brake();
            }
        }

        /// Nothing comes any more, and nothing is wanted.
        pub(super) fn close(&self, brake: &mut dyn FnMut()) {
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
            let (mut brake, release) = (|| braked.set(true), || braked.set(false));
            (1..=3).for_each(|id| desk.put(id, Box::default()));
            desk.cancel(2, &mut brake);
            assert_eq!(desk.take(&release).map(|(id, _)| id), Some(1));
            assert!(desk.wanted() && !braked.get());
            desk.cancel(1, &mut brake);
            assert!(!desk.wanted() && braked.get());
            assert_eq!(desk.take(&release).map(|(id, _)| id), Some(3));
            assert!(desk.wanted() && !braked.get());
            // Too late: it is done.
            desk.cancel(1, &mut brake);
            assert!(desk.wanted() && !braked.get());
            desk.close(&mut brake);
            assert!(!desk.wanted() && braked.get());
            assert!(desk.take(&release).is_none());
        }
    }
}
