//! The process that generates, as seen from the proxy: started, asked, and missed when it is gone.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::worker::{News, Order};
use super::{COMMAND, Event, Facts, Refused, Request, SNAPSHOTS, Setup};

/// Bytes of complaints that are kept, from the first.
const COMPLAINTS: u64 = 64 << 10;

/// A model that is loaded and answers, in a process that ends with this.
#[derive(Clone)]
pub struct Generator {
    process: Arc<Process>,
    facts: Arc<Facts>,
}

struct Process {
    child: Mutex<Child>,
    orders: Mutex<ChildStdin>,
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
    /// Starts the process and waits until the model is loaded, which may take minutes. `program` is this program.
    ///
    /// # Errors
    /// Why it does not start or the model cannot be loaded, in words.
    pub fn start(program: &Path, file: &Path, setup: &Setup) -> Result<Generator, String> {
        let mut command = Command::new(program);
        // Ctrl-C in a terminal goes to all of its group: replies under way are to end first.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command
            .arg(COMMAND)
            .arg("--model")
            .arg(file)
            // In llama-server's words, by which what it holds of the machine is reckoned.
            .args(["--ctx-size", &setup.n_ctx.to_string(), "--parallel", "1", "--cache-ram", "0"])
            .args(["--batch-size", &setup.n_batch.to_string(), "--ubatch-size", &setup.n_ubatch.to_string()])
            .args(["--ctx-checkpoints", &SNAPSHOTS.to_string()])
            .args(["--threads", &setup.threads.to_string(), "--threads-batch", &setup.threads_batch.to_string()])
            // Else ggml has a debugger look at it before it gives up.
            .env("GGML_NO_BACKTRACE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{} cannot be run: {e}", program.display()))?;
        let (Some(orders), Some(news), Some(complaints)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err("its input and output cannot be had".into());
        };
        let complaints = std::thread::spawn(move || listen(complaints));
        let mut news = BufReader::new(news).lines();
        let ready = news.next().and_then(Result::ok).and_then(|line| serde_json::from_str(&line).ok());
        let facts = match ready {
            Some(News::Ready(facts)) => facts,
            failed => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(match failed {
                    Some(News::Failed(why)) => why,
                    _ => last_words(&complaints.join().unwrap_or_default()),
                });
            }
        };
        let process = Arc::new(Process {
            child: Mutex::new(child),
            orders: Mutex::new(orders),
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
            let why = last_words(&complaints.join().unwrap_or_default());
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
        self.process.order(&Order::Answer { id, request: Box::new(request) });
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
        let last = matches!(event, Event::Counted(_) | Event::Ended(_) | Event::Refused(_));
        let mut waiting = self.waiting.lock();
        if let Some(send) = waiting.get(&id) {
            // Nobody listens any more: it is being cancelled.
            let _ = send.send(event);
        }
        if last {
            waiting.remove(&id);
        }
    }

    fn order(&self, order: &Order) {
        let Ok(mut line) = serde_json::to_vec(order) else { return };
        line.push(b'\n');
        let mut orders = self.orders.lock();
        // If it is gone, its last words tell.
        let _ = orders.write_all(&line).and_then(|()| orders.flush());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        // It may be gone already.
        let _ = child.kill();
        let _ = child.wait();
    }
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
            self.process.order(&Order::Cancel { id: self.id });
        }
    }
}

fn listen(mut complaints: ChildStderr) -> String {
    let mut said = Vec::new();
    let _ = complaints.by_ref().take(COMPLAINTS).read_to_end(&mut said);
    // The rest must go somewhere.
    let _ = std::io::copy(&mut complaints, &mut std::io::sink());
    String::from_utf8_lossy(&said).into_owned()
}

/// Why the process ended: llama.cpp says so on standard error before it gives up.
fn last_words(said: &str) -> String {
    let line = said.lines().find(|line| line.contains("GGML_ASSERT") || line.contains("what():"));
    let line = line.or_else(|| said.lines().rfind(|line| !line.trim().is_empty())).unwrap_or_default();
    // Not where its source lay when it was built.
    let line = match line.find("GGML_ASSERT").and_then(|at| line[..at].rfind('/')) {
        Some(slash) => &line[slash + 1..],
        None => line,
    };
    let line: String = line.chars().filter(|c| !c.is_control()).take(300).collect();
    match line.trim() {
        "" => "the process that generates ended, perhaps for want of memory".to_owned(),
        line => format!("the process that generates ended: {line}"),
    }
}
