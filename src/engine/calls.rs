//! Questions to a process of this program, many at a time, and their answers: both sides. A question is a line of JSON, and the
//! bytes that belong to it; an answer is a line of JSON. The process ends when its input does, whatever it works on.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::child::Started;

/// Bytes that belong to one question, at most: more than any request that is taken.
const MOST_BYTES: u64 = 1 << 30;

/// The stack of a thread that works on a question (bytes). It is reserved, not filled.
const STACK: usize = 64 << 20;

/// A question as it is written, without its bytes.
#[derive(Debug, Serialize, Deserialize)]
struct Question<Q> {
    id: u64,
    ask: Q,
    /// The lengths of what follows the line.
    parts: Vec<u64>,
}

/// An answer as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Answer<A> {
    id: u64,
    answer: A,
}

/// What the answer to the opening is told by.
const OPENING: u64 = 0;

/// A process that answers. It is ended with this.
#[derive(Debug)]
pub struct Calls {
    started: Mutex<Started>,
    /// What is to be written to it: it may be slow to read.
    input: Sender<Vec<u8>>,
    waiting: Arc<Waiting>,
    next: AtomicU64,
    /// What it works on, for words on its end: ` on this file`.
    on: &'static str,
}

/// Who waits for what.
#[derive(Debug, Default)]
struct Waiting {
    by_id: Mutex<HashMap<u64, Sender<String>>>,
    gone: AtomicBool,
    /// An answer did not come in time.
    late: AtomicBool,
}

impl Calls {
    /// Starts the process and waits for its first words. `program` is this program; `on` says what it works on, after "llama.cpp
    /// gave up".
    ///
    /// # Errors
    /// Why it does not start, or has no first words, in words.
    pub fn start<A: DeserializeOwned>(
        program: &Path,
        arguments: impl FnOnce(&mut Command),
        within: Duration,
        on: &'static str,
    ) -> Result<(Calls, A), String> {
        let (started, (input, output)) = Started::new(program, arguments)?;
        let (waiting, (send, first)) = (Arc::new(Waiting::default()), channel());
        waiting.by_id.lock().insert(OPENING, send);
        let ears = Arc::clone(&waiting);
        // Ends with the process, whose output it reads.
        std::thread::spawn(move || ears.listen(output));
        let (started, input, next) = (Mutex::new(started), write_to(input), AtomicU64::new(OPENING + 1));
        let out = Calls { started, input, waiting, next, on };
        let first = out.wait(OPENING, &first, within)?;
        Ok((out, first))
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// That none came in time, or why the process ended, in words. In both cases it is gone.
    pub fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        ask: Q,
        parts: &[&[u8]],
        within: Duration,
    ) -> Result<A, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let lengths = parts.iter().map(|part| part.len() as u64).collect();
        let mut bytes = line(&Question { id, ask, parts: lengths }).map_err(|e| e.to_string())?;
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let (send, answer) = channel();
        self.waiting.by_id.lock().insert(id, send);
        // If it is gone, its last words tell.
        let _ = self.input.send(bytes);
        self.wait(id, &answer, within)
    }

    /// Whether the process is gone: another has to be started.
    pub fn gone(&self) -> bool {
        self.waiting.gone.load(Ordering::Acquire)
    }

    /// Whether the process was ended because an answer did not come in time.
    pub fn timed_out(&self) -> bool {
        self.waiting.late.load(Ordering::Acquire)
    }

    fn wait<A: DeserializeOwned>(&self, id: u64, answer: &Receiver<String>, within: Duration) -> Result<A, String> {
        if self.gone() {
            self.waiting.by_id.lock().remove(&id);
        }
        match answer.recv_timeout(within) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Answer { answer, .. }) => Ok(answer),
                Err(_) => Err("it answers what cannot be read".into()),
            },
            Err(RecvTimeoutError::Timeout) => {
                self.waiting.late.store(true, Ordering::Release);
                self.end();
                Err(format!("llama.cpp did not answer{} in {} s", self.on, within.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(self.started.lock().last_words(&format!("llama.cpp gave up{}", self.on), ""))
            }
        }
    }

    /// Ends the process, whatever it works on.
    fn end(&self) {
        self.waiting.gone.store(true, Ordering::Release);
        self.started.lock().end();
    }
}

impl Waiting {
    fn listen(&self, output: ChildStdout) {
        #[derive(Deserialize)]
        struct Id {
            id: u64,
        }
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let waits = serde_json::from_str::<Id>(&line).ok().and_then(|of| self.by_id.lock().remove(&of.id));
            if let Some(waits) = waits {
                // Nobody may wait any more.
                let _ = waits.send(line);
            }
        }
        self.gone.store(true, Ordering::Release);
        self.by_id.lock().clear();
    }
}

/// Writes from a thread of its own, which ends with the sender or with the process.
fn write_to(mut input: ChildStdin) -> Sender<Vec<u8>> {
    let (send, questions) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        for question in questions {
            if input.write_all(&question).and_then(|()| input.flush()).is_err() {
                return;
            }
        }
    });
    send
}

/// What the process's side knows how to do.
pub trait Desk: Send + Sync + Sized + 'static {
    /// A question.
    type Ask: DeserializeOwned + Send;
    /// An answer.
    type Answer: Serialize;
    /// The first words.
    type Opening: Serialize;

    /// Gets ready; the first words tell how that went.
    fn open(&self) -> Self::Opening;

    /// Answers a question with its bytes.
    fn answer(&self, ask: Self::Ask, parts: &[Vec<u8>]) -> Self::Answer;
}

/// The process's side: answers until its input ends, all questions at once. Threads that still work then end with the process.
///
/// # Errors
/// When the input cannot be read.
pub fn serve<D: Desk>(desk: D, mut input: impl BufRead, output: impl Write + Send + 'static) -> io::Result<()> {
    let (desk, output) = (Arc::new(desk), Arc::new(Mutex::new(output)));
    {
        let (desk, output) = (Arc::clone(&desk), Arc::clone(&output));
        work_on(move || say(&output, &Answer { id: OPENING, answer: desk.open() }))?;
    }
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let Question { id, ask, parts } = serde_json::from_str::<Question<D::Ask>>(&line)?;
        let parts = parts.iter().map(|length| read_part(&mut input, *length)).collect::<io::Result<Vec<_>>>()?;
        let (desk, output) = (Arc::clone(&desk), Arc::clone(&output));
        work_on(move || say(&output, &Answer { id, answer: desk.answer(ask, &parts) }))?;
    }
}

/// The process's side of one that has nothing to say but its first words.
///
/// # Errors
/// When nobody takes them.
pub fn tell(mut output: impl Write, words: &impl Serialize) -> io::Result<()> {
    output.write_all(&line(&Answer { id: OPENING, answer: words })?)?;
    output.flush()
}

fn read_part(input: &mut impl BufRead, length: u64) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let read = input.take(length.min(MOST_BYTES)).read_to_end(&mut out)?;
    if read as u64 == length { Ok(out) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn work_on(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().stack_size(STACK).spawn(work).map(drop)
}

fn say(output: &Mutex<impl Write>, answer: &impl Serialize) {
    let Ok(line) = line(answer) else { return };
    let mut output = output.lock();
    // Who asked is gone, and so will this process be.
    let _ = output.write_all(&line).and_then(|()| output.flush());
}

fn line(said: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &'static str) -> Result<(Calls, String), String> {
        Calls::start(
            Path::new("/bin/sh"),
            |command| _ = command.args(["-c", script]),
            Duration::from_secs(20),
            " on it",
        )
    }

    #[test]
    fn answers_find_who_asked_and_a_process_that_gives_none_is_ended() {
        // Answers the second question before the first, and the third never.
        let (calls, first) = shell(
            r#"echo '{"id":0,"answer":"hi"}'; read a; read b; echo '{"id":2,"answer":"b"}'; echo '{"id":1,"answer":"a"}'; exec sleep 100"#,
        )
        .unwrap();
        assert_eq!(first, "hi");
        let ask = |within| calls.ask::<_, String>("?", &[], Duration::from_secs(within));
        std::thread::scope(|scope| {
            let both = [scope.spawn(|| ask(20)), scope.spawn(|| ask(20))].map(|asked| asked.join().unwrap().unwrap());
            assert!(both == ["a", "b"] || both == ["b", "a"], "{both:?}");
        });
        assert!(!calls.gone());
        let why = calls.ask::<_, String>("?", &[b"bytes"], Duration::from_millis(50)).unwrap_err();
        assert!(why.contains("did not answer on it") && calls.gone() && calls.timed_out(), "{why}");
        assert!(ask(20).is_err(), "it is gone");
    }

    #[test]
    fn a_process_that_ends_says_why() {
        let why = shell("echo 'GGML_ASSERT(words) failed' >&2").unwrap_err();
        assert_eq!(why, "llama.cpp gave up on it: GGML_ASSERT(words) failed");
        let (calls, _) = shell(r#"echo '{"id":0,"answer":""}'; read a; echo why >&2"#).unwrap();
        let why = calls.ask::<_, String>("?", &[], Duration::from_secs(20)).unwrap_err();
        assert!(why.contains("why") && calls.gone() && !calls.timed_out(), "{why}");
    }

    struct Echo;

    impl Desk for Echo {
        type Ask = String;
        type Answer = String;
        type Opening = ();

        fn open(&self) {}

        fn answer(&self, ask: String, parts: &[Vec<u8>]) -> String {
            format!("{ask}{}", parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<String>())
        }
    }

    #[test]
    fn the_other_side_reads_lines_and_bytes() {
        let (send, told) = channel();
        struct Out(Sender<Vec<u8>>);
        impl Write for Out {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let _ = self.0.send(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let input = b"{\"id\":7,\"ask\":\"a\",\"parts\":[2,1]}\nb\nc{\"id\":8,\"ask\":\"\",\"parts\":[]}\n";
        serve(Echo, &input[..], Out(send)).unwrap();
        let mut lines: Vec<String> = told.iter().map(|line| String::from_utf8(line).unwrap()).collect();
        lines.sort();
        let all =
            ["{\"id\":0,\"answer\":null}\n", "{\"id\":7,\"answer\":\"ab\\nc\"}\n", "{\"id\":8,\"answer\":\"\"}\n"];
        assert_eq!(lines, all);
        assert!(serve(Echo, &b"{\"id\":7,\"ask\":\"a\",\"parts\":[2]}\nb"[..], io::sink()).is_err());
    }
}
