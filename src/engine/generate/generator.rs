//! The process that generates, as seen from the proxy: started, asked, and missed when it is gone.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::worker::{News, Opening, Order};
use super::{COMMAND, Event, Facts, Refused, Request, Setup};
use crate::engine::child::Started;

/// How long a model may take to be loaded: as long as Ollama is given.
const LOADED_WITHIN: Duration = Duration::from_secs(900);

/// A model that is loaded and answers, in a process that ends with this.
#[derive(Clone)]
pub struct Generator {
    process: Arc<Process>,
    facts: Arc<Facts>,
}

struct Process {
    started: Mutex<Started>,
    /// What is to be written to it: it may be slow to read.
    orders: Sender<Order>,
    waiting: Mutex<HashMap<u64, UnboundedSender<Event>>>,
    next: AtomicU64,
    gone: AtomicBool,
}

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generator").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Generator {
    /// Starts the process and waits until the model is loaded, which may take minutes. `program` is this program;
    /// `chat_template` takes the place of the file's own.
    ///
    /// # Errors
    /// Why it does not start or the model cannot be loaded, in words.
    pub fn start(program: &Path, file: &Path, setup: &Setup, chat_template: Option<&str>) -> Result<Generator, String> {
        let (mut started, (mut orders, news)) = Started::new(program, |command| {
            let Setup { n_ctx, n_batch, n_ubatch, threads, threads_batch, kv_type, gpu_layers, headroom } = *setup;
            command
                .arg(COMMAND)
                .arg("--model")
                .arg(file)
                .args(["--ctx-size", &n_ctx.to_string()])
                .args(["--batch-size", &n_batch.to_string(), "--ubatch-size", &n_ubatch.to_string()])
                .args(["--kv-type", &kv_type.to_string()])
                .args(["--memory-headroom", &headroom.to_string()])
                .args(["--threads", &threads.to_string(), "--threads-batch", &threads_batch.to_string()]);
            if let Some(layers) = gpu_layers {
                command.args(["--gpu-layers", &layers.to_string()]);
            }
        })?;
        let opening = Opening { chat_template: chat_template.map(str::to_owned) };
        // If it is gone, its last words tell.
        let _ = send(&mut orders, &opening);
        let (ready, news) = first_line(news, LOADED_WITHIN)?;
        let ready = ready.and_then(|line| serde_json::from_str(&line).ok());
        let facts = match ready {
            Some(News::Ready(facts)) => facts,
            Some(News::Failed(why)) => return Err(why),
            _ => return Err(last_words(&mut started)),
        };
        let process = Arc::new(Process {
            started: Mutex::new(started),
            orders: write_from(orders),
            waiting: Mutex::default(),
            next: AtomicU64::new(1),
            gone: AtomicBool::new(false),
        });
        let ears = Arc::downgrade(&process);
        // Ends with the process, whose output it reads.
        std::thread::spawn(move || {
            for line in news.map_while(Result::ok) {
                let Some(process) = ears.upgrade() else { return };
                if let Ok(News::Event { id, event }) = serde_json::from_str(&line) {
                    process.hand_on(id, event);
                }
            }
            let Some(process) = ears.upgrade() else { return };
            process.gone.store(true, Ordering::Release);
            let why = last_words(&mut process.started.lock());
            for (_, waiting) in process.waiting.lock().drain() {
                let _ = waiting.send(Event::Refused(Refused::Failed(why.clone())));
            }
        });
        Ok(Generator { process, facts: Arc::new(facts) })
    }

    /// What is known of the model.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether the process is gone: another has to be started.
    pub fn gone(&self) -> bool {
        self.process.gone.load(Ordering::Acquire)
    }

    /// Puts a request in line. It is taken back when the answers are dropped.
    pub fn ask(&self, request: Request) -> Answers {
        let id = self.process.next.fetch_add(1, Ordering::Relaxed);
        let (send, events) = unbounded_channel();
        self.process.waiting.lock().insert(id, send);
        self.process.order(Order::Answer { id, request: Box::new(request) });
        // It may have gone before it was waited for.
        if self.gone() {
            let gone = Event::Refused(Refused::Failed("the process that generates is gone".into()));
            self.process.hand_on(id, gone);
        }
        Answers { id, events, process: Arc::clone(&self.process) }
    }
}

impl Process {
    fn hand_on(&self, id: u64, event: Event) {
        let last = matches!(event, Event::Counted(_) | Event::Words(_) | Event::Ended(_) | Event::Refused(_));
        let mut waiting = self.waiting.lock();
        if let Some(send) = waiting.get(&id) {
            // Nobody listens any more: it is being cancelled.
            let _ = send.send(event);
        }
        if last {
            waiting.remove(&id);
        }
    }

    fn order(&self, order: Order) {
        // Nobody writes any more: it is gone, and its last words tell.
        let _ = self.orders.send(order);
    }
}

type Lines = std::io::Lines<BufReader<ChildStdout>>;

/// The first line that the process writes, and those that will follow.
///
/// # Errors
/// When none comes in time. The reading goes on in a thread that ends with the process.
fn first_line(output: ChildStdout, limit: Duration) -> Result<(Option<String>, Lines), String> {
    let (send, first) = channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines();
        let line = lines.next().and_then(Result::ok);
        send.send((line, lines))
    });
    first.recv_timeout(limit).map_err(|_| format!("it was not loaded within {} s", limit.as_secs()))
}

/// Writes orders from a thread of its own, which ends with their sender or with the process.
fn write_from(mut input: ChildStdin) -> Sender<Order> {
    let (send_order, orders) = channel::<Order>();
    std::thread::spawn(move || {
        for order in orders {
            if send(&mut input, &order).is_err() {
                return;
            }
        }
    });
    send_order
}

fn send(input: &mut ChildStdin, what: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    input.write_all(&line)?;
    input.flush()
}

fn last_words(started: &mut Started) -> String {
    started.last_words("the process that generates ended", ", perhaps for want of memory")
}

/// What becomes of a request. Dropped before its end, the request is taken back.
pub struct Answers {
    id: u64,
    events: UnboundedReceiver<Event>,
    process: Arc<Process>,
}

impl Answers {
    /// What happens next; `None` after the end.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if self.process.waiting.lock().remove(&self.id).is_some() {
            self.process.order(Order::Cancel { id: self.id });
        }
    }
}
