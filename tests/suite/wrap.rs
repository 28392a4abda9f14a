//! `wrap` and `unwrap`, by the real binary in a home of its own: what is written, and that nothing is left of it.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::support::*;

/// A home, and a windowsill that runs.
struct House {
    home: tempfile::TempDir,
    dir: tempfile::TempDir,
    served: Served,
    _fake: Fake,
}

impl House {
    fn new() -> House {
        House::with("")
    }

    fn with(config: &str) -> House {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path(), &[fake.url()], config);
        House { home: tempfile::tempdir().unwrap(), dir, served, _fake: fake }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.run_at(&self.served.address.to_string(), arguments)
    }

    fn run_at(&self, address: &str, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_windowsill"))
            .current_dir(self.dir.path())
            .env_clear()
            .env("HOME", self.home.path())
            .env("WINDOWSILL_LISTEN", address)
            .args(arguments)
            .output()
            .unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn put(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Everything below the home: kind and mode, and what files hold.
    fn all(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        let mut found = BTreeMap::new();
        let mut open = vec![self.home.path().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let meta = path.symlink_metadata().unwrap();
                let held = if meta.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
                found.insert(path.clone(), (meta.permissions().mode(), held));
                if meta.is_dir() {
                    open.push(path);
                }
            }
        }
        found
    }

    /// All but what windowsill keeps for itself.
    fn of_clients(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        let ours = self.path(".local");
        self.all().into_iter().filter(|(path, _)| !path.starts_with(&ours)).collect()
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
fn ok(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
    said(output)
}

/// Each client, and its config in a home where nothing is set.
const CLIENTS: &[(&str, &[&str])] = &[
    ("claude", &[".claude/settings.json"]),
    ("codex", &[".codex/config.toml"]),
    ("opencode", &[".config/opencode/opencode.json"]),
    ("aider", &[".aider.conf.yml"]),
    ("continue", &[".continue/config.yaml"]),
    ("qwen", &[".qwen/settings.json"]),
    #[cfg(not(target_os = "macos"))]
    ("mini", &[".config/mini-swe-agent/.env"]),
    ("cline", &[".cline/data/settings/providers.json"]),
    ("kimi", &[".kimi-code/config.toml"]),
    ("pi", &[".pi/agent/models.json", ".pi/agent/settings.json"]),
    ("hermes", &[".hermes/config.yaml"]),
    ("goose", &[".config/goose/config.yaml"]),
    ("openhands", &[".openhands/agent_settings.json"]),
    ("vibe", &[".vibe/config.toml", ".vibe/.env"]),
    ("gptme", &[".config/gptme/config.toml"]),
];

#[test]
fn every_client_is_wrapped_and_nothing_is_left_of_it() {
    let house = House::new();
    house.put(".openhands/agent_settings.json", "{\"llm\": {\"model\": \"x\", \"top_p\": 1.0}, \"tools\": []}");
    let before = house.of_clients();
    for (client, files) in CLIENTS {
        let shown = ok(&house.run(&["wrap", client]));
        let text: String = files.iter().map(|file| std::fs::read_to_string(house.path(file)).unwrap()).collect();
        let address = house.served.address.to_string();
        assert!(text.contains(&address) && text.contains("test-model"), "{client}: {text}");
        assert!(shown.contains(&format!("+++ {}", house.path(files[0]).display())), "{client}: {shown}");
        assert!(shown.contains(&format!("unwrap {client}")) && !text.contains("!}"), "{client}: {text}");
        ok(&house.run(&["unwrap", client]));
        assert_eq!(house.of_clients(), before, "{client}");
    }
}

#[test]
fn settings_of_others_stay_and_come_back_byte_for_byte() {
    let house = House::new();
    let old = "# my own\r\nmodel = \"gpt-5\"   # a good one\n\n[projects.\"/x\"]\ntrust_level = \"trusted\"";
    let path = house.put(".codex/config.toml", old);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = house.of_clients();
    ok(&house.run(&["wrap", "codex", "--model", "a \"b\""]));
    let now = std::fs::read_to_string(&path).unwrap();
    assert!(now.contains("model = 'a \"b\"'") && now.contains("# a good one") && now.contains("trust_level"), "{now}");
    // The client writes to it, as it does.
    std::fs::write(&path, format!("{now}\n[tui]\nseen = true\n")).unwrap();
    let told = ok(&house.run(&["unwrap", "codex"]));
    assert_eq!(house.of_clients(), before);
    let aside = house.path(".local/state/windowsill/unwrapped/codex/1-config.toml");
    assert!(told.contains(&aside.display().to_string()), "{told}");
    assert!(std::fs::read_to_string(aside).unwrap().ends_with("seen = true\n"));
    assert!(ok(&house.run(&["unwrap", "codex"])).contains("not wrapped"));
}

/// Both change the head of the prompt with each request, so that all of it would be evaluated anew (`ollama launch claude` switches them
/// off, too).
#[test]
fn claude_code_is_told_to_leave_out_what_changes_with_each_request() {
    let house = House::new();
    let path = house.put(".claude/settings.json", "{}");
    ok(&house.run(&["wrap", "claude"]));
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(written["env"]["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"], "off");
    assert_eq!(written["env"]["CLAUDE_CODE_ATTRIBUTION_HEADER"], "0");
}

#[test]
fn whatever_happens_in_between_the_original_comes_back() {
    let house = House::new();
    let path = house.put(".claude/settings.json", "{\"env\": {\"A\": \"1\"}, \"theme\": \"dark\"}");
    let before = house.of_clients();
    let elsewhere = house.dir.path().join("elsewhere");
    std::fs::write(&elsewhere, "mine").unwrap();
    let happenings: [&dyn Fn(); 5] = [
        &|| std::fs::remove_file(&path).unwrap(),
        &|| std::fs::remove_dir_all(path.parent().unwrap()).unwrap(),
        &|| std::fs::write(&path, [0xff, 0]).unwrap(),
        &|| {
            std::fs::remove_file(&path).unwrap();
            symlink(&elsewhere, &path).unwrap();
        },
        &|| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap(),
    ];
    let folder = path.parent().unwrap();
    let mode = std::fs::metadata(folder).unwrap().permissions();
    for happening in happenings {
        ok(&house.run(&["wrap", "claude"]));
        happening();
        ok(&house.run(&["unwrap", "claude"]));
        std::fs::set_permissions(folder, mode.clone()).unwrap();
        assert_eq!(house.of_clients(), before);
    }
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "mine");
    // A folder cannot be replaced: the original is kept until it can.
    ok(&house.run(&["wrap", "claude"]));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let refused = house.run(&["unwrap", "claude"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("the originals are in"), "{}", said(&refused));
    std::fs::remove_dir(&path).unwrap();
    ok(&house.run(&["unwrap", "claude"]));
    assert_eq!(house.of_clients(), before);
    // A client that had no config and wrote more than its config meanwhile.
    ok(&house.run(&["wrap", "pi"]));
    house.put(".pi/agent/sessions/1.json", "{}");
    ok(&house.run(&["unwrap", "pi"]));
    assert!(!house.path(".pi/agent/models.json").exists() && house.path(".pi/agent/sessions/1.json").exists());
}

#[test]
fn odd_configs_are_left_alone() {
    let house = House::new();
    let path = house.path(".qwen/settings.json");
    let real = house.put("dotfiles/settings.json", "{}");
    let cases: [(&dyn Fn(), &str); 9] = [
        (&|| std::fs::write(&path, "{\"a\": ").unwrap(), "it is no JSON"),
        (&|| std::fs::write(&path, "[1]").unwrap(), "no JSON object"),
        (&|| std::fs::write(&path, "{\"env\": 3}").unwrap(), "`env` is no object"),
        (&|| std::fs::write(&path, [b'{', 0xff]).unwrap(), "UTF-8"),
        (&|| std::fs::write(&path, "[".repeat(100_000)).unwrap(), "nested"),
        (&|| std::fs::write(&path, format!("{{}}{}", " ".repeat(2 << 20))).unwrap(), "too large"),
        (&|| symlink(&real, &path).unwrap(), "symbolic link"),
        (&|| std::fs::create_dir(&path).unwrap(), "directory"),
        (
            &|| {
                std::fs::write(&path, "{}").unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
            },
            "read-only",
        ),
    ];
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    for (make, expected) in cases {
        make();
        let before = house.all();
        let refused = house.run(&["wrap", "qwen"]);
        assert_eq!(refused.status.code(), Some(1), "{expected}: {}", said(&refused));
        let told = said(&refused);
        assert!(told.contains(expected) && told.contains("nothing was changed"), "{expected}: {told}");
        assert_eq!(house.all(), before, "{expected}");
        if path.is_dir() { std::fs::remove_dir(&path).unwrap() } else { std::fs::remove_file(&path).unwrap() }
    }
    // The second of two files is odd: the first is not written either.
    house.put(".pi/agent/settings.json", "{,}");
    let before = house.all();
    assert_eq!(house.run(&["wrap", "pi"]).status.code(), Some(1));
    assert_eq!(house.all(), before);
    let missing = house.run(&["wrap", "openhands"]);
    assert!(said(&missing).contains("start openhands once"), "{}", said(&missing));
    assert_eq!(house.run(&["wrap", "emacs"]).status.code(), Some(2));
}

#[test]
fn wrap_says_when_windowsill_does_not_run_and_what_is_wrapped_already() {
    let house = House::new();
    let nowhere = "127.0.0.1:1";
    let before = house.all();
    let refused = house.run_at(nowhere, &["wrap", "codex"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("windowsill serve"), "{}", said(&refused));
    assert!(ok(&house.run(&["wrap", "codex", "--dry-run"])).contains("+model = \"test-model\""));
    assert_eq!(house.all(), before);
    let noted = ok(&house.run_at(nowhere, &["wrap", "codex", "--model", "m"]));
    assert!(noted.contains("no windowsill answers at http://127.0.0.1:1; start it with"), "{noted}");
    let once = house.all();
    let twice = house.run(&["wrap", "codex"]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(said(&twice).contains("wrapped already"), "{}", said(&twice));
    assert_eq!(house.all(), once);
    // Undoing asks for nothing: not for a proxy, and not for a config that can be read.
    std::fs::write(house.dir.path().join("config.toml"), "nonsense").unwrap();
    ok(&house.run_at(nowhere, &["unwrap", "codex"]));
    assert_eq!(house.of_clients(), before);
}

#[test]
fn a_key_is_written_and_not_shown() {
    let house = House::new();
    let run = Command::new(env!("CARGO_BIN_EXE_windowsill"))
        .current_dir(house.dir.path())
        .env_clear()
        .env("HOME", house.home.path())
        .env("WINDOWSILL_LISTEN", "127.0.0.1:1")
        .env("WINDOWSILL_API_KEY", "opensesame")
        .args(["wrap", "codex", "--model", "m"])
        .output()
        .unwrap();
    assert!(!ok(&run).contains("opensesame"), "{}", said(&run));
    let path = house.path(".codex/config.toml");
    assert!(std::fs::read_to_string(&path).unwrap().contains("Bearer opensesame"));
    assert_eq!(Path::new(&path).metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

/// The user and group of a file, and its mode.
fn rights(path: &Path) -> (u32, u32, u32) {
    use std::os::unix::fs::MetadataExt as _;
    let meta = path.metadata().unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    tempfile::tempdir().unwrap().path().metadata().unwrap().uid() == 0
}

#[test]
fn modes_stay_for_the_group_and_all_others() {
    let house = House::new();
    for mode in [0o600, 0o640, 0o644, 0o660, 0o664, 0o666, 0o750] {
        let path = house.put(".codex/config.toml", "model = \"gpt-5\"\n");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let before = rights(&path);
        ok(&house.run(&["wrap", "codex"]));
        assert_eq!(rights(&path), before, "{mode:o} while it is wrapped");
        // The client writes a file of its own, as it likes.
        std::fs::remove_file(&path).unwrap();
        house.put(".codex/config.toml", "model = \"gpt-6\"\n");
        ok(&house.run(&["unwrap", "codex"]));
        assert_eq!(rights(&path), before, "{mode:o} afterwards");
    }
}

#[test]
fn files_of_others_stay_theirs() {
    use std::os::unix::fs::chown;
    if !is_root() {
        eprintln!("skipped: only root gives files to others");
        return;
    }
    let house = House::new();
    let path = house.put(".codex/config.toml", "model = \"gpt-5\"\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    chown(&path, Some(12_345), Some(23_456)).unwrap();
    ok(&house.run(&["wrap", "codex"]));
    assert_eq!(rights(&path), (12_345, 23_456, 0o640), "while it is wrapped");
    std::fs::remove_file(&path).unwrap();
    ok(&house.run(&["unwrap", "codex"]));
    assert_eq!(rights(&path), (12_345, 23_456, 0o640), "afterwards, although it was gone");
}

#[test]
fn a_group_that_cannot_be_kept_leaves_its_rights_to_no_other() {
    use std::os::unix::fs::chown;
    use std::os::unix::process::CommandExt as _;
    if !is_root() {
        eprintln!("skipped: only root makes files of another group");
        return;
    }
    let house = House::new();
    let path = house.put(".codex/config.toml", "model = \"gpt-5\"\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
    for mine in [house.home.path(), path.parent().unwrap(), house.dir.path()] {
        chown(mine, Some(12_345), Some(12_345)).unwrap();
    }
    chown(&path, Some(12_345), Some(23_456)).unwrap();
    // A user who is in no group but its own, and may run a copy of the program.
    let program = house.dir.path().join("windowsill");
    std::fs::hard_link(env!("CARGO_BIN_EXE_windowsill"), &program)
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_windowsill"), &program).map(drop))
        .unwrap();
    let run = |what: &str| {
        let mut command = Command::new(&program);
        command.current_dir(house.dir.path()).env_clear().env("HOME", house.home.path()).uid(12_345).gid(12_345);
        ok(&command.env("WINDOWSILL_LISTEN", house.served.address.to_string()).args([what, "codex"]).output().unwrap());
    };
    run("wrap");
    assert_eq!(rights(&path), (12_345, 12_345, 0o604), "while it is wrapped");
    run("unwrap");
    assert_eq!(rights(&path), (12_345, 12_345, 0o604), "afterwards");
}

#[test]
fn a_name_that_a_client_would_read_as_more_is_written_nowhere() {
    let house = House::new();
    let before = house.of_clients();
    for name in ["{file:~/.ssh/id_test}", "${SECRET}", "a`id`", "a\"b", "a\\b", "a\nb", "a\u{202e}b", "-x"] {
        house._fake.set(|s| s.model = name.into());
        for (client, _) in CLIENTS {
            for how in ["wrap", "launch"] {
                let refused = house.run(&[how, client]);
                assert_eq!(refused.status.code(), Some(1), "{name} {how} {client}: {}", said(&refused));
                assert!(said(&refused).contains("--alias"), "{}", said(&refused));
            }
        }
    }
    assert_eq!(house.of_clients(), before);
}

#[test]
fn a_config_with_the_key_is_for_its_owner_alone_while_it_is_wrapped() {
    let house = House::with("api_key = \"secret-key-7\"\n");
    let path = house.put(".claude/settings.json", "{}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let before = house.of_clients();
    let told = ok(&house.run(&["wrap", "claude"]));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert!(std::fs::read_to_string(&path).unwrap().contains("secret-key-7") && mode(&path) == 0o600);
    assert!(told.contains("settings.json holds the key now") && !told.contains("secret-key-7"), "{told}");
    ok(&house.run(&["unwrap", "claude"]));
    assert_eq!(house.of_clients(), before);
    // Without a key there is nothing to hide.
    let house = House::new();
    let path = house.put(".claude/settings.json", "{}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let told = ok(&house.run(&["wrap", "claude"]));
    assert!(mode(&path) == 0o644 && !told.contains("the key now"), "{told}");
}

#[test]
fn what_a_killed_wrap_left_is_cleared_away() {
    let house = House::new();
    let old = "{\"theme\": \"dark\"}";
    let path = house.put(".claude/settings.json", old);
    let before = house.of_clients();
    ok(&house.run(&["wrap", "claude"]));
    // As if it had been killed before the new config took the place of the old one.
    std::fs::write(&path, old).unwrap();
    house.put(".claude/settings.json.windowsill-new", "{\"key\": 1}");
    ok(&house.run(&["unwrap", "claude"]));
    assert_eq!(house.of_clients(), before);
    let kept = ".local/state/windowsill/wrapped";
    for left in ["claude.4194304/0.original", "claude.4194304/lock", "claude/0.original", "claude.md/mine"] {
        house.put(&format!("{kept}/{left}"), "x");
    }
    // One that is still at it has its lock.
    let lock = house.put(&format!("{kept}/claude.17/lock"), "");
    let held = std::fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    ok(&house.run(&["unwrap", "claude"]));
    let there = |name: &str| house.path(&format!("{kept}/{name}")).exists();
    assert!(!there("claude.4194304") && !there("claude") && there("claude.17") && there("claude.md/mine"));
    drop(held);
    ok(&house.run(&["wrap", "claude"]));
    assert!(!there("claude.17") && there("claude/list.json"));
    ok(&house.run(&["unwrap", "claude"]));
    assert_eq!(house.of_clients(), before);
}

#[test]
fn a_name_of_the_servers_stays_in_its_line_wherever_it_is_told() {
    let house = House::new();
    let name = "m\nPROBLEMS none\u{1b}[2J\u{202e}x";
    house._fake.set(|s| s.model = name.into());
    let asked = serde_json::json!({"model": name, "messages": [{"role": "user", "content": "Hello."}]}).to_string();
    std::fs::write(house.dir.path().join("asked.json"), asked).unwrap();
    for arguments in
        [&["doctor"][..], &["plan", "asked.json"], &["fit", name], &["launch", "aider"], &["wrap", "aider"]]
    {
        let told = said(&house.run(arguments));
        assert!(told.contains("m\\u{a}PROBLEMS none\\u{1b}[2J\\u{202e}x"), "{arguments:?}: {told}");
        assert!(told.chars().all(|c| c == '\n' || windowsill::plain::is_harmless(c)), "{arguments:?}: {told:?}");
        assert!(told.lines().all(|line| !line.starts_with("PROBLEMS")), "{arguments:?}: {told}");
    }
    let told = said(&house.run(&["wrap", "aider", "--model", "mine\u{1b}[2J", "--dry-run"]));
    assert!(told.chars().all(|c| c == '\n' || windowsill::plain::is_harmless(c)), "{told:?}");
}
