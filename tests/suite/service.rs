//! `service`, by the real binary with a `systemctl` of its own: what is written and asked for, and what is refused.

#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

struct Machine {
    home: tempfile::TempDir,
    bin: tempfile::TempDir,
}

impl Machine {
    /// With a `systemctl` that writes down what it is told, and fails where `failing` is among its words.
    fn new(failing: &str) -> Machine {
        let machine = Machine { home: tempfile::tempdir().unwrap(), bin: tempfile::tempdir().unwrap() };
        machine.fail_at(failing);
        machine
    }

    fn fail_at(&self, failing: &str) {
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> {}\ncase \" $* \" in *\" {failing} \"*) echo 'no bus' >&2; exit 1;; *is-active*) echo active;; esac\n",
            self.log().display()
        );
        let program = self.bin.path().join("systemctl");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn log(&self) -> PathBuf {
        self.bin.path().join("told")
    }

    fn unit(&self) -> PathBuf {
        self.home.path().join(".config/systemd/user/windowsill.service")
    }

    fn told(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_windowsill"))
            .current_dir(self.home.path())
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", format!("{}:/usr/bin:/bin", self.bin.path().display()))
            .env("WINDOWSILL_LISTEN", "127.0.0.1:1")
            .args(arguments)
            .output()
            .unwrap()
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_service_is_installed_started_asked_for_and_removed() {
    let machine = Machine::new("nothing");
    std::fs::write(machine.home.path().join("config.toml"), "retention_days = 7\n").unwrap();
    let install =
        ["service", "install", "--upstream", "http://127.0.0.1:9", "--num-ctx", "fit", "--data-dir", "my record"];
    let done = machine.run(&install);
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    assert!(said(&done).contains("`listen` is from the environment WINDOWSILL_LISTEN"), "{}", said(&done));
    let unit = std::fs::read_to_string(machine.unit()).unwrap();
    let home = std::fs::canonicalize(machine.home.path()).unwrap();
    let line = format!(
        "ExecStart=\"{}\" \"serve\" \"--config\" \"{}\" \"--data-dir\" \"{}\" \"--upstream\" \"http://127.0.0.1:9\" \"--num-ctx\" \"fit\"\n",
        std::fs::canonicalize(env!("CARGO_BIN_EXE_windowsill")).unwrap().display(),
        home.join("config.toml").display(),
        home.join("my record").display()
    );
    assert!(unit.contains(&line), "{unit}\n{line}");
    assert!(
        machine
            .told()
            .ends_with("daemon-reload\n--user enable windowsill.service\n--user restart windowsill.service\n"),
        "{}",
        machine.told()
    );
    let again = machine.run(&install);
    assert!(again.status.success() && machine.told().ends_with("restart windowsill.service\n"), "{}", said(&again));
    let status = machine.run(&["service", "status"]);
    assert_eq!(status.status.code(), Some(0), "{}", said(&status));
    assert!(
        said(&status).contains("service    active") && said(&status).contains("answers    no: "),
        "{}",
        said(&status)
    );
    let removed = machine.run(&["service", "uninstall"]);
    assert!(removed.status.success() && !machine.home.path().join(".config/systemd").exists(), "{}", said(&removed));
    assert!(machine.told().contains("--user disable --now windowsill.service\n"));
    assert!(said(&machine.run(&["service", "uninstall"])).contains("not installed"));
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason_and_leaves_nothing() {
    let machine = Machine::new("show-environment");
    let refused = machine.run(&["service", "install"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("cannot be reached: no bus"), "{}", said(&refused));
    assert!(!machine.unit().exists());
    let machine = Machine::new("restart");
    let refused = machine.run(&["service", "install"]);
    assert!(said(&refused).contains("restart windowsill.service` failed: no bus"), "{}", said(&refused));
    assert!(said(&refused).contains("hint: `windowsill serve` with the same flags says why"), "{}", said(&refused));
    assert!(!machine.home.path().join(".config/systemd").exists(), "a service that does not start is not left behind");
    assert!(machine.told().contains("--user disable --now windowsill.service\n"), "nor is it tried for ever");
    std::fs::remove_file(machine.bin.path().join("systemctl")).unwrap();
    let none = machine.run(&["service", "status"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(said(&none).contains("installed  no"), "{}", said(&none));
    // A unit that a person wrote is theirs.
    let machine = Machine::new("nothing");
    std::fs::create_dir_all(machine.unit().parent().unwrap()).unwrap();
    std::fs::write(machine.unit(), "[Service]\nExecStart=/mine\n").unwrap();
    for command in ["install", "uninstall"] {
        let refused = machine.run(&["service", command]);
        assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
        assert!(said(&refused).contains("was not written by windowsill"), "{}", said(&refused));
    }
    assert_eq!(std::fs::read_to_string(machine.unit()).unwrap(), "[Service]\nExecStart=/mine\n");
    let shown = machine.run(&["service", "install", "--dry-run"]);
    assert!(shown.status.success() && said(&shown).contains("NoNewPrivileges=yes"), "{}", said(&shown));
}

#[test]
fn a_service_that_was_there_is_put_back_where_the_new_one_does_not_start() {
    let machine = Machine::new("nothing");
    assert!(machine.run(&["service", "install", "--num-ctx", "fit"]).status.success());
    let was = std::fs::read_to_string(machine.unit()).unwrap();
    machine.fail_at("restart");
    let refused = machine.run(&["service", "install", "--num-ctx", "8192"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert_eq!(std::fs::read_to_string(machine.unit()).unwrap(), was);
    assert_eq!(
        machine.told().matches("--user restart windowsill.service\n").count(),
        3,
        "the old one is started again"
    );
}

#[test]
fn systemd_is_told_once_it_listens_by_a_path_and_by_a_name() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let name = format!("windowsill-{}", std::process::id());
    let by_name = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let sockets = [
        (path.display().to_string(), UnixDatagram::bind(&path).unwrap()),
        (format!("@{name}"), UnixDatagram::bind_addr(&by_name).unwrap()),
    ];
    for (named, socket) in sockets {
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut served = Command::new(env!("CARGO_BIN_EXE_windowsill"))
            .args(["serve", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"])
            .current_dir(home.path())
            .env("HOME", home.path())
            .env("NOTIFY_SOCKET", &named)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut told = [0; 64];
        let length = socket.recv(&mut told);
        let mut line = String::new();
        BufReader::new(served.stdout.take().unwrap()).read_line(&mut line).unwrap();
        served.kill().unwrap();
        served.wait().unwrap();
        assert_eq!(&told[..length.unwrap()], b"READY=1", "{named}");
        assert!(line.starts_with("listening on http://127.0.0.1:"), "{line}");
    }
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let verify = std::process::Command::new("systemd-analyze").arg("--version").output();
    if !verify.is_ok_and(|done| done.status.success()) {
        eprintln!("systemd-analyze is not here: the unit was not verified");
        return;
    }
    let machine = Machine::new("nothing");
    assert!(machine.run(&["service", "install"]).status.success());
    let done =
        Command::new("systemd-analyze").args(["verify", "--user", "--man=no"]).arg(machine.unit()).output().unwrap();
    assert!(!said(&done).contains("windowsill.service:"), "{}", said(&done));
}
