//! A process of this program that llama.cpp works in: started with its input and output in our hands, and asked for its last
//! words when it is gone. llama.cpp ends the process on some files and when memory runs out; this one must not go with it.

use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

/// Bytes of complaints that are kept, from the first.
const COMPLAINTS: u64 = 64 << 10;

/// Characters of its last words that are told.
const WORDS: usize = 300;

/// A process that was started. It is ended with this.
#[derive(Debug)]
pub(super) struct Started {
    child: Child,
    complaints: Option<JoinHandle<String>>,
}

/// A process's input, and its output.
pub(super) type Pipes = (ChildStdin, ChildStdout);

impl Started {
    /// Starts this program with one of its hidden commands.
    ///
    /// # Errors
    /// Why it does not start, in words.
    pub(super) fn new(program: &Path, arguments: impl FnOnce(&mut Command)) -> Result<(Started, Pipes), String> {
        let mut command = Command::new(program);
        arguments(&mut command);
        // Ctrl-C in a terminal goes to all of its group: what is under way is to end first.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command
            // Else ggml has a debugger look at it before it gives up.
            .env("GGML_NO_BACKTRACE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{} cannot be run: {e}", program.display()))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut started = Started { child, complaints: None };
        let (Some(input), Some(output), Some(complaints)) = pipes else {
            return Err("its input and output cannot be had".into());
        };
        // Read as they come: a pipe that is full would stop the process.
        started.complaints = Some(std::thread::spawn(move || listen(complaints)));
        Ok((started, (input, output)))
    }

    /// Why the process ended, by what it wrote to standard error, after `what` of it. Ends it if it has not.
    pub(super) fn last_words(&mut self, what: &str, otherwise: &str) -> String {
        self.end();
        let said = self.complaints.take().and_then(|listener| listener.join().ok()).unwrap_or_default();
        match told(&said) {
            words if words.is_empty() => format!("{what}{otherwise}"),
            words => format!("{what}: {words}"),
        }
    }

    /// Ends it, if it has not ended.
    pub(super) fn end(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.end();
    }
}

fn listen(mut complaints: ChildStderr) -> String {
    let mut said = Vec::new();
    let _ = complaints.by_ref().take(COMPLAINTS).read_to_end(&mut said);
    // The rest must go somewhere.
    let _ = std::io::copy(&mut complaints, &mut std::io::sink());
    String::from_utf8_lossy(&said).into_owned()
}

/// The line that says most: llama.cpp writes why before it gives up.
fn told(said: &str) -> String {
    let line = said.lines().find(|line| line.contains("GGML_ASSERT") || line.contains("what():"));
    let line = line.or_else(|| said.lines().rfind(|line| !line.trim().is_empty())).unwrap_or_default();
    // Not where its source lay when it was built.
    let line = match line.find("GGML_ASSERT").and_then(|at| line[..at].rfind('/')) {
        Some(slash) => &line[slash + 1..],
        None => line,
    };
    let line: String = line.chars().filter(|c| !c.is_control()).take(WORDS).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_says_most_is_told_without_where_it_was_built() {
        let cases = [
            ("", ""),
            ("\n  \n", ""),
            ("loading\nno memory\n\n", "no memory"),
            (
                "one\n/home/a/llama.cpp/ggml.c:12: GGML_ASSERT(a == b) failed\nlast",
                "ggml.c:12: GGML_ASSERT(a == b) failed",
            ),
            ("GGML_ASSERT(x) failed", "GGML_ASSERT(x) failed"),
            ("terminate called\n  what():  vector::at\nAborted", "what():  vector::at"),
            ("a\u{1b}[0mb", "a[0mb"),
        ];
        for (said, want) in cases {
            assert_eq!(told(said), want, "{said:?}");
        }
        assert_eq!(told(&"é".repeat(1000)).chars().count(), WORDS);
    }

    #[cfg(unix)]
    #[test]
    fn a_process_is_missed_and_its_last_words_are_told() {
        let shell = |script: &'static str| {
            Started::new(Path::new("/bin/sh"), |command| {
                command.args(["-c", script]);
            })
        };
        // More complaints than a pipe holds.
        let (mut loud, (_, mut output)) = shell("head -c 300000 /dev/zero >&2; echo done").unwrap();
        let mut said = String::new();
        output.read_to_string(&mut said).unwrap();
        assert_eq!(said, "done\n");
        assert_eq!(loud.last_words("it ended", ", unheard"), "it ended, unheard");
        let (mut short, _) = shell("echo why >&2; exec sleep 100").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(short.last_words("it ended", ""), "it ended: why");
        let why = Started::new(Path::new("/nonexistent"), |_| {}).unwrap_err();
        assert!(why.starts_with("/nonexistent cannot be run: "), "{why}");
    }
}
