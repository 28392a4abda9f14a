//! Starts the real servers and windowsill's real binary, and ends them when a test ends, however it ends.

use std::fs::{File, read_to_string};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tempfile::TempDir;

use super::say;

/// What `scripts/test` says of where things are.
pub(crate) fn place(variable: &str) -> String {
    match std::env::var_os(variable) {
        Some(value) if !value.is_empty() => value.into_string().expect("UTF-8"),
        _ => panic!(
            "{variable} is not set: live tests need real servers. Run scripts/test, or\n  \
             eval \"$(scripts/servers/install --env)\" && cargo test --features live --test live -- --test-threads 1"
        ),
    }
}

/// A process that says `… http://…` on a line of stdout when it is ready.
struct Server {
    child: Child,
    url: String,
    log: PathBuf,
    name: &'static str,
}

impl Server {
    fn start(name: &'static str, mut command: Command, log: PathBuf) -> Server {
        let stderr = File::options().create(true).append(true).open(&log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name}: {e}: {command:?}"));
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut server = Server { child, url: String::new(), log, name };
        let mut line = String::new();
        while server.url.is_empty() {
            line.clear();
            let n = stdout.read_line(&mut line).unwrap();
            assert!(n > 0, "{name} ended before it was ready");
            if let Some(at) = line.find("http://").filter(|_| line.starts_with("listening")) {
                server.url = line[at..].trim().to_owned();
            }
        }
        // Nothing more is expected there, but a full pipe would stop the server.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        server
    }

    /// Asks it to end (SIGTERM) and waits.
    fn stop(&mut self) {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        if !asked.is_ok_and(|s| s.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            say(&format!("--- end of the log of {}:", self.name));
            tail.iter().rev().for_each(|line| say(line));
        }
        // llama.cpp keeps nothing, and windowsill must bear it; Ollama's script has children to end.
        if self.name == "ollama" {
            self.stop();
        } else {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A real llama.cpp server.
pub(crate) struct Llama {
    server: Server,
    home: TempDir,
}

impl Llama {
    /// A fresh one with one slot of this window, and a chat template that knows tools.
    pub(crate) fn start(window: u32) -> Llama {
        Self::start_with(window, &[])
    }

    /// As [`Llama::start`], with more arguments for `llama_server.py`.
    pub(crate) fn start_with(window: u32, more: &[&str]) -> Llama {
        let home = tempfile::tempdir().unwrap();
        Llama { server: Self::spawn(home.path(), window, more), home }
    }

    fn spawn(home: &Path, window: u32, more: &[&str]) -> Server {
        let mut command = Command::new(place("WINDOWSILL_PYTHON"));
        let template = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/chat-template.jinja");
        command.args([place("WINDOWSILL_LLAMA_SERVER"), place("WINDOWSILL_MODEL")]);
        command.args(["--alias", "smollm2", "--with-parent", "--chat-template", template]);
        command.args(["--ctx", &window.to_string()]).args(more);
        Server::start("llama.cpp", command, home.join("llama.log"))
    }

    /// Kills it outright.
    pub(crate) fn kill(&mut self) {
        let _ = self.server.child.kill();
        let _ = self.server.child.wait();
    }

    /// Kills it and starts another on the same port.
    pub(crate) fn restart(&mut self, window: u32) {
        self.restart_with(window, &[]);
    }

    /// The same, with more arguments.
    pub(crate) fn restart_with(&mut self, window: u32, more: &[&str]) {
        self.kill();
        let port = self.url().rsplit(':').next().expect("a port").to_owned();
        self.server = Self::spawn(self.home.path(), window, &[more, &["--port", &port]].concat());
    }

    pub(crate) fn url(&self) -> String {
        self.server.url.clone()
    }
}

/// A real Ollama with the model `smollm2`, whose template knows tools.
pub(crate) struct Ollama {
    server: Server,
    _home: TempDir,
}

impl Ollama {
    pub(crate) fn start() -> Ollama {
        place("WINDOWSILL_OLLAMA");
        place("WINDOWSILL_MODEL");
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(place("WINDOWSILL_OLLAMA_SERVER"));
        command.args(["start", "--port", "0", "--home"]).arg(home.path());
        Ollama { server: Server::start("ollama", command, home.path().join("ollama.log")), _home: home }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url.clone()
    }
}

/// A folder of its own. Their names differ in digits alone, each of which is a token: previews name files in it, and one of another
/// length in tokens has room for another line.
fn home() -> TempDir {
    static NUMBER: AtomicU32 = AtomicU32::new(100);
    let name = format!("windowsill-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir().unwrap()
}

/// windowsill, and the folder of its record, which outlives a restart.
pub(crate) struct Windowsill {
    server: Option<Server>,
    arguments: Vec<String>,
    settings: Vec<(String, String)>,
    home: TempDir,
}

impl Windowsill {
    /// Before this server, with settings such as `("CONTEXT_BACKGROUND", "false")`.
    pub(crate) fn before(upstream: &str, settings: &[(&str, &str)]) -> Windowsill {
        Self::with(upstream, settings, &[])
    }

    /// As [`Windowsill::before`], with more flags.
    pub(crate) fn with(upstream: &str, settings: &[(&str, &str)], flags: &[&str]) -> Windowsill {
        Self::serve(vec!["--upstream".to_owned(), upstream.to_owned()], settings, flags)
    }

    /// Without any server: it serves the model itself.
    pub(crate) fn itself(settings: &[(&str, &str)], flags: &[&str]) -> Windowsill {
        Self::serving(Path::new(&place("WINDOWSILL_MODEL")), settings, flags)
    }

    /// As [`Windowsill::itself`], with another model.
    pub(crate) fn serving(model: &Path, settings: &[(&str, &str)], flags: &[&str]) -> Windowsill {
        let model = model.to_str().expect("UTF-8").to_owned();
        Self::serve(vec!["--model".to_owned(), model], settings, flags)
    }

    fn serve(mut arguments: Vec<String>, settings: &[(&str, &str)], flags: &[&str]) -> Windowsill {
        arguments.extend(flags.iter().map(|f| (*f).to_owned()));
        let settings = settings.iter().map(|(k, v)| (format!("WINDOWSILL_{k}"), (*v).to_owned())).collect();
        let mut windowsill = Windowsill { server: None, arguments, settings, home: home() };
        windowsill.start();
        windowsill
    }

    /// The binary with nothing of this machine's own: no config, no variables.
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windowsill"));
        command.env_clear().env("HOME", self.home.path()).env("RUST_LOG", "windowsill=debug");
        // Which GPUs there are, and their drivers.
        let kept = ["GGML_VK_VISIBLE_DEVICES", "VK_DRIVER_FILES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];
        command.envs(kept.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(self.settings.iter().cloned()).current_dir(self.home.path());
        command.arg("--data-dir").arg(self.data());
        command
    }

    fn start(&mut self) {
        let mut command = self.command();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(&self.arguments);
        self.server = Some(Server::start("windowsill", command, self.home.path().join("windowsill.log")));
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> String {
        self.server.as_ref().expect("it runs").child.id().to_string()
    }

    /// The processes it started to generate in, by number.
    pub(crate) fn children(&self) -> Vec<u32> {
        let parent = self.id();
        let found = Command::new("pgrep").args(["-P", &parent, "-f", "engine-worker"]).output().unwrap().stdout;
        String::from_utf8_lossy(&found).lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// The folder of the record.
    pub(crate) fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let mut server = self.server.take().expect("it runs");
        server.child.kill().unwrap();
        server.child.wait().unwrap();
    }

    /// Sends it a signal, such as `INT`.
    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([&format!("-{name}"), &self.id()]).status().unwrap().success());
    }

    /// Waits until it ended by itself: its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let mut server = self.server.take().expect("it runs");
        server.child.wait().unwrap().code()
    }

    /// Starts it again after [`Windowsill::kill`], with the same record.
    pub(crate) fn start_again(&mut self) {
        let started = Instant::now();
        self.start();
        say(&format!("windowsill was back after {:.1} s", started.elapsed().as_secs_f64()));
    }

    pub(crate) fn url(&self) -> String {
        self.server.as_ref().expect("it runs").url.clone()
    }

    /// Where chats go.
    pub(crate) fn chat_url(&self) -> String {
        format!("{}/v1/chat/completions", self.url())
    }

    /// Runs a command of the binary on this record: its stdout when it exits with 0, else its stderr.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Result<String, String> {
        let address = self.server.as_ref().map_or(String::new(), |s| s.url.trim_start_matches("http://").to_owned());
        let mut command = self.command();
        if !address.is_empty() {
            command.env("WINDOWSILL_LISTEN", address);
        }
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let (mut out, mut err) = (Vec::new(), String::new());
        // stderr is short: it fits the pipe while stdout is read.
        child.stdout.take().expect("piped").read_to_end(&mut out).unwrap();
        child.stderr.take().expect("piped").read_to_string(&mut err).unwrap();
        let status = child.wait().unwrap();
        if status.success() {
            Ok(String::from_utf8(out).unwrap())
        } else {
            Err(format!("{arguments:?}: {status}: {err}"))
        }
    }

    /// `windowsill recall WHAT`, which must know it.
    pub(crate) fn recall(&self, what: &str) -> String {
        self.cli(&["recall", what]).unwrap_or_else(|e| panic!("{e}"))
    }
}
