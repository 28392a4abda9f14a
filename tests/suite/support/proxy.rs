//! The proxy under test: in this process, or as the real binary.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;
use windowsill::config::{Config, Environment, Flags, load_from};
use windowsill::proxy::{App, open_record};
use windowsill::server;
use windowsill::store::{Store, Watcher};

use super::chat::Chat;
use super::fake::Fake;
use super::http::{Answer, Conn, PATIENCE, request};

/// The whole proxy in this process, on a port of its own.
pub(crate) struct TestProxy {
    pub(crate) address: SocketAddr,
    pub(crate) dir: Arc<TempDir>,
    stop: Option<oneshot::Sender<()>>,
    crash: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// `config.toml`: keys at the top, upstreams, tables.
fn config_text(urls: &[String], toml: &str) -> String {
    let begins_line = |at: &usize| *at == 0 || toml.as_bytes()[at - 1] == b'\n';
    let tables = toml.match_indices('[').map(|(at, _)| at).find(begins_line).unwrap_or(toml.len());
    let mut text = format!("listen = \"127.0.0.1:0\"\n{}\n", &toml[..tables]);
    for (n, url) in urls.iter().enumerate() {
        text += &format!("[[upstream]]\nname = \"up{n}\"\nurl = \"{url}\"\n");
    }
    text + &toml[tables..]
}

fn write_config(dir: &Path, urls: &[String], toml: &str) -> PathBuf {
    let file = dir.join("config.toml");
    std::fs::write(&file, config_text(urls, toml)).unwrap();
    file
}

fn config_at(dir: &TempDir, urls: &[String], toml: &str) -> Config {
    let file = write_config(dir.path(), urls, toml);
    let flags = Flags { config: Some(file), data_dir: Some(dir.path().join("data")), ..Flags::default() };
    let environment = Environment { cwd: dir.path().to_owned(), ..Environment::default() };
    load_from(&flags, &environment).unwrap_or_else(|p| panic!("{p:?}"))
}

impl TestProxy {
    /// Before one server, with a fresh record.
    pub(crate) fn before(fake: &Fake) -> TestProxy {
        TestProxy::with(&[fake.url()], "")
    }

    /// With settings of `config.toml` beside the upstreams.
    pub(crate) fn with(urls: &[String], toml: &str) -> TestProxy {
        TestProxy::at(Arc::new(tempfile::tempdir().unwrap()), urls, toml)
    }

    /// On a record that may be there already.
    pub(crate) fn at(dir: Arc<TempDir>, urls: &[String], toml: &str) -> TestProxy {
        let config = config_at(&dir, urls, toml);
        TestProxy::run(dir, config)
    }

    /// As [`TestProxy::at`], with somebody who is told of each write to the record.
    pub(crate) fn watched(dir: Arc<TempDir>, urls: &[String], toml: &str, watcher: Watcher) -> TestProxy {
        let config = config_at(&dir, urls, toml);
        let store = Store::open_watched(&config.data_dir, watcher).unwrap();
        TestProxy::run_on(dir, config, store)
    }

    /// With spans for a collector, which get there at once.
    pub(crate) fn telling(urls: &[String], collector: &str) -> TestProxy {
        TestProxy::telling_after(urls, collector, std::time::Duration::from_millis(10))
    }

    /// With spans for a collector, which are gathered for so long.
    pub(crate) fn telling_after(urls: &[String], collector: &str, delay: std::time::Duration) -> TestProxy {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let toml =
            format!("[telemetry]\ntraces = true\nendpoint = \"{collector}\"\nheaders = \"x-team=my%20garden\"\n");
        let mut config = config_at(&dir, urls, &toml);
        config.log.telemetry.as_mut().unwrap().delay = delay;
        TestProxy::run(dir, config)
    }

    /// On a machine that is a folder: `machine` in the record's.
    pub(crate) fn on_machine(dir: Arc<TempDir>, urls: &[String], toml: &str) -> TestProxy {
        let mut config = config_at(&dir, urls, toml);
        config.machine.root = dir.path().join("machine");
        TestProxy::run(dir, config)
    }

    /// Before no server that is named: they are looked for at these addresses.
    pub(crate) fn looking_at(usual: &[SocketAddr]) -> TestProxy {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let mut config = config_at(&dir, &[], "");
        let usual = usual.iter().enumerate().map(|(n, address)| (format!("usual{n}"), format!("http://{address}")));
        config.machine.usual = usual.collect();
        TestProxy::run(dir, config)
    }

    fn run(dir: Arc<TempDir>, config: Config) -> TestProxy {
        let store = open_record(&config).unwrap();
        TestProxy::run_on(dir, config, store)
    }

    fn run_on(dir: Arc<TempDir>, mut config: Config, store: Store) -> TestProxy {
        config.machine.program = Some(env!("CARGO_BIN_EXE_windowsill").into());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (crash, crashed) = oneshot::channel::<()>();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let app = Arc::new(runtime.block_on(App::start_on(config, store)).unwrap().0);
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                let shutdown = async {
                    let _ = stopped.await;
                };
                let serving = async move {
                    server::run(listener, Arc::clone(&app), shutdown).await.unwrap();
                    app.close().await;
                };
                tokio::select! {
                    () = serving => {}
                    Ok(()) = crashed => {}
                }
            });
        });
        TestProxy { address, dir, stop: Some(stop), crash: Some(crash), thread: Some(thread) }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        request(self.address, "GET", path, &[], b"")
    }

    /// Asks until the answer is as it will be: what need not be durable at once is written behind the reply.
    #[track_caller]
    pub(crate) fn eventually(&self, path: &str, enough: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = self.get(path);
            if answer.status == 200 && enough(&answer.json()) {
                return answer.json();
            }
            assert!(Instant::now() < until, "{path} stays {}", answer.text());
            std::thread::yield_now();
        }
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut all = vec![("Content-Type", "application/json")];
        all.extend_from_slice(headers);
        request(self.address, "POST", path, &all, body)
    }

    /// Sends a chat request.
    #[track_caller]
    pub(crate) fn chat(&self, chat: &Chat) -> Answer {
        self.post("/v1/chat/completions", &[], &chat.body())
    }

    /// Begins a chat request; its reply is read by the test.
    pub(crate) fn begin(&self, chat: &Chat) -> Conn {
        let mut conn = Conn::open(self.address);
        conn.send("POST", "/v1/chat/completions", &[("Content-Type", "application/json")], &chat.body());
        conn
    }

    /// Tells it to stop; it may still be draining.
    pub(crate) fn tell_to_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Ends it where it stands: nothing is drained, no request under way is answered.
    pub(crate) fn crash(mut self) {
        if let Some(crash) = self.crash.take() {
            let _ = crash.send(());
        }
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Stops it properly and leaves its folder.
    pub(crate) fn stop(mut self) -> Arc<TempDir> {
        self.tell_to_stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        Arc::clone(&self.dir)
    }

    /// What `windowsill ARGS` prints on this proxy's record, and of this proxy where it asks the running one.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The same, not started yet.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = command(self.dir.path());
        command.env("WINDOWSILL_LISTEN", self.address.to_string()).args(args);
        command
    }
}

impl Drop for TestProxy {
    fn drop(&mut self) {
        self.tell_to_stop();
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            thread.join().unwrap();
        }
    }
}

/// Runs the real command line on the record and config of a folder.
pub(crate) fn cli(dir: &Path, args: &[&str]) -> Output {
    command(dir).args(args).output().unwrap()
}

/// [`cli`] on a machine that is a folder: `machine` in this one.
pub(crate) fn cli_on_machine(dir: &Path, args: &[&str]) -> Output {
    command(dir).env("WINDOWSILL_MACHINE_ROOT", dir.join("machine")).args(args).output().unwrap()
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windowsill"));
    let ours = std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("WINDOWSILL_"));
    ours.for_each(|(k, _)| {
        command.env_remove(k);
    });
    command.current_dir(dir).arg("--data-dir").arg(dir.join("data"));
    if dir.join("config.toml").is_file() {
        command.arg("--config").arg(dir.join("config.toml"));
    }
    command
}

/// The real binary, serving.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) child: Child,
}

impl Served {
    pub(crate) fn start(dir: &Path, urls: &[String], toml: &str) -> Served {
        write_config(dir, urls, toml);
        let mut child = command(dir).arg("serve").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect(&line).parse().unwrap();
        // The pipe must not break.
        std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        Served { address, child }
    }

    /// With its log kept in a file of the folder, in a format.
    pub(crate) fn logging(dir: &Path, urls: &[String], format: &str) -> Served {
        Served::logging_lines(dir, urls, format, "info")
    }

    /// The same with the lines that a filter lets through.
    pub(crate) fn logging_lines(dir: &Path, urls: &[String], format: &str, filter: &str) -> Served {
        write_config(dir, urls, "");
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let mut serve = command(dir);
        serve.args(["serve", "--log", format]).env("RUST_LOG", filter);
        let mut child = serve.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect(&line).parse().unwrap();
        Served { address, child }
    }

    /// Ends it, and returns its log, which [`Served::logging`] keeps.
    pub(crate) fn log_at_end(mut self, dir: &Path) -> String {
        self.terminate();
        self.child.wait().unwrap();
        std::fs::read_to_string(dir.join("log")).unwrap()
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        let done = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
