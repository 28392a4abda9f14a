//! A PostgreSQL server of a test's own: in a folder of its own, on a free port, as a user that is not root.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The password of its user; nothing of it may be seen anywhere.
pub(crate) const PASSWORD: &str = "s3cret-of-the-database";

/// A running server, stopped when it is dropped.
pub(crate) struct Server {
    bin: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
    /// Settings beside those of every test.
    settings: Mutex<String>,
}

/// The folder of PostgreSQL's programs, the newest of those that are installed.
fn programs() -> Option<PathBuf> {
    let named = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|e| e.path().join("bin"));
    let mut all: Vec<PathBuf> = named.chain([PathBuf::from("/usr/bin"), PathBuf::from("/usr/local/bin")]).collect();
    all.retain(|bin| ["initdb", "postgres", "pg_ctl", "psql"].iter().all(|program| bin.join(program).exists()));
    all.sort();
    all.into_iter().next_back()
}

impl Server {
    /// Starts one; `None`, with a word of it, where PostgreSQL is not installed.
    #[allow(clippy::print_stderr, reason = "whoever reads the tests must see what was left out")]
    pub(crate) fn start() -> Option<Server> {
        let Some(bin) = programs() else {
            eprintln!("left out: PostgreSQL is not installed (apt-get install postgresql)");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("windowsill-postgres-").tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Server { bin, dir, port, settings: Mutex::default() };
        let password = server.path().join("password");
        fs::write(&password, PASSWORD).unwrap();
        if is_root() {
            let (user, group) = nobody();
            for path in [server.path(), &password] {
                std::os::unix::fs::chown(path, Some(user), Some(group)).unwrap();
            }
        }
        let data = server.data();
        let made = server
            .command("initdb")
            .args([
                "--no-sync",
                "--auth",
                "scram-sha-256",
                "--username",
                "windowsill",
                "--encoding",
                "UTF8",
                "--locale",
                "C",
            ])
            .arg("--pwfile")
            .arg(&password)
            .arg("--pgdata")
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.up();
        Some(server)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// One of its programs, run as a user that is not root.
    fn command(&self, program: &str) -> Command {
        let program = self.bin.join(program);
        let mut command = if is_root() {
            let (user, group) = nobody();
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={user}"), &format!("--regid={group}"), "--clear-groups", "--"]);
            command.arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.path()).stdin(Stdio::null()).env_remove("PGHOST");
        command
    }

    fn control(&self, words: &[&str]) {
        let output = fs::File::create(self.path().join("control")).unwrap();
        let mut command = self.command("pg_ctl");
        command.arg("--pgdata").arg(self.data()).args(words).stdout(output.try_clone().unwrap()).stderr(output);
        let done = command.status().unwrap();
        assert!(done.success(), "{words:?}: {}", fs::read_to_string(self.path().join("control")).unwrap_or_default());
    }

    /// Starts it, on the same port as before.
    pub(crate) fn up(&self) {
        let sockets = self.path().display();
        let options = format!(
            "-c listen_addresses=127.0.0.1 -c port={} -c unix_socket_directories={sockets} -c fsync=off -c shared_buffers=16MB \
             -c max_connections=60 {}",
            self.port,
            self.settings.lock().unwrap()
        );
        let log = self.path().join("log");
        self.control(&["--wait", "--timeout", "60", "--log", log.to_str().unwrap(), "--options", &options, "start"]);
    }

    /// Stops it at once, as a crash does.
    pub(crate) fn down(&self) {
        self.control(&["--wait", "--mode", "immediate", "stop"]);
    }

    /// Starts it again with other settings, such as `-c ssl=on`.
    #[allow(dead_code, reason = "other tests that read this file have no use for it")]
    pub(crate) fn set(&self, settings: &str) {
        self.down();
        settings.clone_into(&mut self.settings.lock().unwrap());
        self.up();
    }

    /// A file of its own, which nobody else may read.
    #[allow(dead_code, reason = "other tests that read this file have no use for it")]
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        let path = self.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if is_root() {
            let (user, group) = nobody();
            chown(&path, Some(user), Some(group)).unwrap();
        }
        path
    }

    /// The URL of its first database.
    pub(crate) fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The URL of one of its databases.
    pub(crate) fn url_of(&self, database: &str) -> String {
        format!("postgres://windowsill:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// The only value that a question is answered with.
    pub(crate) fn ask(&self, sql: &str) -> String {
        let mut command = self.command("psql");
        command.args(["--no-psqlrc", "--tuples-only", "--no-align", "--command", sql, &self.url()]);
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let done = command.output().unwrap();
            if done.status.success() {
                return String::from_utf8(done.stdout).unwrap().trim().to_owned();
            }
            assert!(Instant::now() < until, "{}", String::from_utf8_lossy(&done.stderr));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut command = self.command("pg_ctl");
        let _ = command.arg("--pgdata").arg(self.data()).args(["--mode", "immediate", "stop"]).output();
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// User and group of `nobody`.
fn nobody() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("nobody:")).unwrap();
    let fields: Vec<&str> = line.split(':').collect();
    (fields[2].parse().unwrap(), fields[3].parse().unwrap())
}
