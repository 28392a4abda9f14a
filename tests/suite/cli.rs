//! The command line, by the real binary: what it prints where, and how it exits.

use std::process::Output;

use serde_json::Value;

use super::record::ids;
use super::support::*;

fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[track_caller]
fn code(out: &Output, expected: i32) {
    assert_eq!(out.status.code(), Some(expected), "{}\n{}", stdout(out), String::from_utf8_lossy(&out.stderr));
}

/// Exactly one JSON document and nothing else on stdout.
#[track_caller]
fn document(out: &Output) -> Value {
    code(out, 0);
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", stdout(out)))
}

fn long() -> Chat {
    let mut out = chat().system("You are a helpful assistant.").user("Let us plan the garden.").tools();
    out = out.step(1, &prose(1, 9_000));
    for n in 0..3 {
        out = out.assistant(&prose(n, 1_000)).user(&format!("And what about item {n}?"));
    }
    out
}

#[test]
fn plan_and_count_say_what_the_proxy_would_do_and_send_nothing() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let file = proxy.dir.path().join("chat.json");
    let sent = long();
    std::fs::write(&file, sent.body()).unwrap();
    let name = file.to_str().unwrap();

    let plan = document(&proxy.cli(&["plan", name, "--json"]));
    assert_eq!((plan["window"].as_u64(), plan["action"].as_str()), (Some(4096), Some("evict")), "{plan}");
    assert_eq!(plan["window_source"], "asked of /props");
    assert!(plan["after"]["prompt"].as_u64().unwrap() < plan["before"]["prompt"].as_u64().unwrap());
    assert_eq!(plan["because"].as_array().unwrap().len(), 1);
    assert!(fake.mains().is_empty() && fake.summaries().is_empty());
    let page = proxy.cli(&["plan", name]);
    code(&page, 0);
    assert!(stdout(&page).contains("evict") && stdout(&page).contains("4,096"), "{}", stdout(&page));
    // As announced.
    assert_eq!(proxy.chat(&sent).ok().action(), "evict");
    // But for the path of the original, which is that of the folder.
    assert!(u64::from(tokens(&fake.last().json())).abs_diff(plan["prompt_tokens"].as_u64().unwrap()) < 20);

    let count = document(&proxy.cli(&["count", name, "--json"]));
    assert_eq!(count["source"], "counted by the server");
    let regions = count["regions"].as_object().unwrap();
    let mut names: Vec<_> = regions.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["brief", "history", "media", "system", "tools"]);
    let total = count["total"].as_u64().unwrap();
    assert_eq!(regions.values().map(|v| v.as_u64().unwrap()).sum::<u64>(), total);
    let real = u64::from(tokens(&sent.value()));
    assert!(total.abs_diff(real) <= real / 50, "{total} against {real}");

    // A bare array, and another model, and no window to be had.
    std::fs::write(&file, serde_json::to_vec(&sent.messages).unwrap()).unwrap();
    document(&proxy.cli(&["plan", name, "--json", "--model", "qwen3:8b", "--num-ctx", "2048"]));
    let lonely = tempfile::tempdir().unwrap();
    let out = cli(
        lonely.path(),
        &["plan", name, "--json", "--upstream", &format!("http://{}", Fake::absent()), "--num-ctx", "2048"],
    );
    assert_eq!(document(&out)["window"], 2048, "a configured window needs no server");
}

#[test]
fn bad_input_is_told_from_a_bad_command_line() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let dir = proxy.dir.path();
    let file = dir.join("x.json");
    let name = file.to_str().unwrap();
    std::fs::write(&file, "not json").unwrap();
    code(&proxy.cli(&["plan", name]), 1);
    std::fs::write(&file, chat().system(&prose(1, 40_000)).user("hi").body()).unwrap();
    let out = proxy.cli(&["plan", name, "--json"]);
    code(&out, 1);
    assert!(out.stdout.is_empty() && String::from_utf8_lossy(&out.stderr).contains("maximum context length"));
    let count = document(&proxy.cli(&["count", name, "--json"]));
    assert!(count["total"].as_u64().unwrap() > 8_000 && count["source"] == "counted by the server", "{count}");
    code(&proxy.cli(&["plan", "/nonexistent/file.json"]), 2);
    code(&proxy.cli(&["plan"]), 2);
    code(&proxy.cli(&["no-such-command"]), 2);
    code(&proxy.cli(&["count", name, "--num-ctx", "many"]), 2);
    let out = proxy.cli(&["count", name, "--num-ctx", "16k"]);
    code(&out, 2);
    assert!(String::from_utf8_lossy(&out.stderr).contains("did you mean 16384?"), "{out:?}");
    code(&proxy.cli(&["--help"]), 0);
    code(&proxy.cli(&["--version"]), 0);
    std::fs::write(dir.join("config.toml"), "[context]\nclear_att = 0.5\n").unwrap();
    let out = proxy.cli(&["context"]);
    code(&out, 2);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("config.toml:2") && said.contains("clear_att") && said.contains("clear_at"), "{said}");
    assert!(out.stdout.is_empty());
    let out = proxy.cli(&["serve"]);
    code(&out, 2);
}

#[test]
fn serve_says_where_it_listens_and_why_it_cannot() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[fake.url()], "");
    assert_eq!(request(served.address, "GET", "/readyz", &[], b"").status, 200);
    let other = tempfile::tempdir().unwrap();
    let out = cli(other.path(), &["serve", "--listen", &served.address.to_string(), "--upstream", &fake.url()]);
    code(&out, 1);
    assert!(String::from_utf8_lossy(&out.stderr).contains("hint"), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.stdout.is_empty());
}

#[test]
fn context_and_recall_read_the_record_while_it_is_written() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let empty = tempfile::tempdir().unwrap();
    let out = cli(empty.path(), &["context"]);
    code(&out, 1);
    assert!(String::from_utf8_lossy(&out.stderr).contains("no conversations yet in "));

    let sent = long();
    let answer = proxy.chat(&sent).ok();
    let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
    let listed = document(&proxy.cli(&["context", "--json"]));
    assert_eq!(listed["conversations"][0]["id"], id.as_str());
    let one = document(&proxy.cli(&["context", &id[..8], "--json"]));
    assert_eq!((one["id"].as_str(), one["state"]["window"].as_u64()), (Some(id.as_str()), Some(4096)));
    let table = stdout(&proxy.cli(&["context"]));
    let row = table.lines().find(|line| line.starts_with(&id)).unwrap();
    let head = table.lines().next().unwrap();
    assert_eq!(
        row.find('%').unwrap() + 1,
        head.find("PRESSURE").unwrap() + "PRESSURE".len(),
        "columns stand in line:\n{table}"
    );
    assert!(stdout(&proxy.cli(&["context", &id])).contains("Put a preview in the place of"));
    code(&proxy.cli(&["context", "nonesuch"]), 1);

    let record = ids(&fake.last().body).into_iter().next().unwrap();
    let original = text(&sent.messages[3]);
    assert_eq!(proxy.cli(&["recall", &record]).stdout, original.as_bytes());
    let part = proxy.cli(&["recall", &record, "--range", "2..5"]);
    assert_eq!(stdout(&part), original.split_inclusive('\n').skip(1).take(4).collect::<String>());
    assert_eq!(
        stdout(&proxy.cli(&["recall", &record, "--range", "3.."])),
        original.split_inclusive('\n').skip(2).collect::<String>()
    );
    assert_eq!(proxy.cli(&["recall", &record, "--range", "2-5"]).stdout, part.stdout);
    assert_eq!(proxy.cli(&["recall", &record[..7]]).stdout, original.as_bytes(), "ids may be shortened");
    code(&proxy.cli(&["recall", "r00000"]), 1);
    code(&proxy.cli(&["recall", &record, "--range", "5..2"]), 2);
    code(&proxy.cli(&["recall", &record, "--range", "x"]), 2);
    let whole = document(&proxy.cli(&["recall", &record, "--json"]));
    assert_eq!((whole["text"].as_str(), whole["id"].as_str()), (Some(original.as_str()), Some(record.as_str())));
    assert_eq!(whole["conversation"], id.as_str());
    // A term finds it, and the messages that never left the prompt.
    let term = original.split_whitespace().find(|w| w.contains('_')).unwrap().to_owned();
    let hits = document(&proxy.cli(&["recall", &term, "--json"]));
    assert!(hits["hits"].as_array().unwrap().iter().any(|h| h["id"] == record.as_str()), "{term}: {hits}");
    let hits = document(&proxy.cli(&["recall", "garden", "--json"]));
    assert_eq!(hits["hits"][0]["conversation"], id.as_str());
    let at = format!("{id}:0");
    assert_eq!(serde_json::from_slice::<Value>(&proxy.cli(&["recall", &at]).stdout).unwrap(), sent.messages[1]);
    // Some messages in a row, by command line and HTTP alike; numbers that are not there are told.
    let range = format!("{id}:0-2");
    let said = stdout(&proxy.cli(&["recall", &range]));
    assert!(said.contains("Let us plan the garden.") && said.contains(original.trim()), "{said}");
    assert!(!said.contains("And what about item 0?"), "no message more: {said}");
    assert_eq!(proxy.get(&format!("/windowsill/records/{range}")).ok().text().trim(), said.trim());
    let out = proxy.cli(&["recall", &format!("{id}:900-905")]);
    code(&out, 1);
    assert!(String::from_utf8_lossy(&out.stderr).contains("has messages 0 to"), "{out:?}");
    let out = proxy.cli(&["recall", "zzz-nowhere-zzz"]);
    code(&out, 1);
    let json = proxy.cli(&["recall", "zzz-nowhere-zzz", "--json"]);
    code(&json, 1);
    assert_eq!(serde_json::from_slice::<Value>(&json.stdout).unwrap()["hits"], serde_json::json!([]));
}

#[test]
fn compact_asks_the_running_proxy() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[fake.url()], "");
    let mut sent = chat().system("s").user("Let us plan the garden.");
    for n in 0..9 {
        sent = sent.assistant(&prose(n, 1_000)).user(&format!("And item {n}?"));
    }
    let answer = request(served.address, "POST", "/v1/chat/completions", &[], &sent.body()).ok();
    let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
    let until = std::time::Instant::now() + PATIENCE;
    while request(served.address, "GET", &format!("/windowsill/conversations/{id}"), &[], b"").status != 200 {
        assert!(std::time::Instant::now() < until, "never recorded");
    }
    // The command line finds it by its config: the address is the one that was given.
    let config = std::fs::read_to_string(dir.path().join("config.toml")).unwrap();
    std::fs::write(dir.path().join("config.toml"), config.replace("127.0.0.1:0", &served.address.to_string())).unwrap();
    // A focus may wait for the fold that comes by itself.
    let waits = cli(dir.path(), &["compact", &id, "--focus", "KEEP-TULIPS", "--next-break"]);
    code(&waits, 0);
    assert!(String::from_utf8_lossy(&waits.stdout).contains("waits for the next fold"), "{waits:?}");
    assert!(fake.summaries().is_empty());
    code(&cli(dir.path(), &["compact", &id, "--next-break"]), 2);
    // A person may type the beginning of the id.
    let done = document(&cli(dir.path(), &["compact", &id[..6], "--focus", "KEEP-ROSES", "--json"]));
    assert_eq!(done["conversation"], id.as_str());
    assert!(done["after"].as_u64() < done["before"].as_u64());
    assert!(text(fake.summaries()[0].messages().last().unwrap()).contains("KEEP-ROSES"));
    let out = cli(dir.path(), &["compact", "nonesuch"]);
    code(&out, 1);
    assert!(String::from_utf8_lossy(&out.stderr).contains("nonesuch"));
    served.kill();
    let out = cli(dir.path(), &["compact", &id]);
    code(&out, 1);
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("windowsill serve"),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn profiles_are_shown_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let listed = document(&cli(dir.path(), &["profile", "list", "--json"]));
    assert!(listed.to_string().contains("qwen3"));
    code(&cli(dir.path(), &["profile", "list"]), 0);
    let shown = document(&cli(dir.path(), &["profile", "show", "qwen3:8b", "--json"]));
    assert!(shown.to_string().contains("\"qwen3\""), "{shown}");
    let page = cli(dir.path(), &["profile", "show", "mistral-7b"]);
    assert!(stdout(&page).contains("strict_alternation"), "{}", stdout(&page));
    document(&cli(dir.path(), &["profile", "check", "--json"]));
    let bad = dir.path().join("bad.toml");
    std::fs::write(&bad, "[match]\nnames = [\"x\"]\n[context]\nclear_at = 7\n").unwrap();
    let out = cli(dir.path(), &["profile", "check", bad.to_str().unwrap(), "--json"]);
    code(&out, 2);
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(said.to_string().contains("clear_at"), "{said}");
}

/// A client of this name that says what it was started with.
#[cfg(unix)]
fn telling(dir: &std::path::Path, name: &str) {
    use std::os::unix::fs::PermissionsExt;
    let program = dir.join(name);
    let script = "#!/bin/sh\nenv\ncat ${CLINE_PROVIDER_SETTINGS_PATH:+\"$CLINE_PROVIDER_SETTINGS_PATH\"} < /dev/null; echo\nfor a in \"$@\"; do echo \"argument $a\"; [ ! -f \"$a\" ] || cat \"$a\"; done\nexit 7\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(unix)]
#[test]
fn a_client_is_launched_with_what_it_needs_for_this_run_alone() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[fake.url()], "");
    let bin = tempfile::tempdir().unwrap();
    let address = served.address.to_string();
    let launch = |client: &str, arguments: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_windowsill"))
            .current_dir(dir.path())
            .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.path().display()))
            .env("WINDOWSILL_LISTEN", &address)
            .env("ANTHROPIC_API_KEY", "of somebody else")
            .args(["launch", client])
            .args(arguments)
            .output()
            .unwrap()
    };
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    for program in [
        "claude",
        "codex",
        "opencode",
        "aider",
        "cn",
        "qwen",
        "mini",
        "cline",
        "kimi",
        "pi",
        "hermes",
        "goose",
        "openhands",
        "vibe",
        "gptme",
    ] {
        telling(bin.path(), program);
        let output = launch(program, &["--", "-p", "do it"]);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(7), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains(&address) && text.contains("test-model"), "{program}: {text}");
        assert!(text.ends_with("argument -p\nargument do it\n"), "{program}: {text}");
        assert!(!text.contains('{') || !text.contains("{model") && !text.contains("{base}"), "{program}: {text}");
        assert!(program != "claude" || !text.contains("of somebody else"), "{text}");
        for off in ["CLAUDE_CODE_TOTAL_TOKENS_REMINDER=off\n", "CLAUDE_CODE_ATTRIBUTION_HEADER=0\n"] {
            assert!(program != "claude" || text.contains(off), "{text}");
        }
    }
    assert!(said(&launch("aider", &["--model", "other"])).contains("argument openai/other\n"));
    let unknown = launch("emacs", &[]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("claude, codex, opencode"));
    std::fs::remove_file(bin.path().join("mini")).unwrap();
    let missing = launch("mini", &["--model", "m"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("install mini first"), "{missing:?}");
    served.kill();
    for arguments in [&[][..], &["--model", "m"]] {
        let alone = launch("aider", arguments);
        assert_eq!(alone.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&alone.stderr).contains("windowsill serve"), "{alone:?}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_is_the_clients_and_launch_waits_for_it() {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt as _;
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[fake.url()], "");
    let bin = tempfile::tempdir().unwrap();
    let program = bin.path().join("cn");
    let script = "#!/bin/sh\ntrap 'echo caught; exit 3' INT\necho \"$2\"\nwhile :; do sleep 0.05; done\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    // As a terminal does it: the signal goes to the whole group.
    let mut launched = std::process::Command::new(env!("CARGO_BIN_EXE_windowsill"))
        .current_dir(dir.path())
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.path().display()))
        .env("WINDOWSILL_LISTEN", served.address.to_string())
        .args(["launch", "cn"])
        .stdout(std::process::Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(launched.stdout.take().unwrap()).lines();
    let file = said.next().unwrap().unwrap();
    assert!(std::path::Path::new(&file).exists(), "{file}");
    let group = format!("-{}", launched.id());
    assert!(std::process::Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    assert_eq!(said.next().unwrap().unwrap(), "caught");
    assert_eq!(launched.wait().unwrap().code(), Some(3));
    assert!(!std::path::Path::new(&file).exists(), "the file holds the key");
}

/// The running proxy knows the servers that it was started with, and the config of a command does not.
#[test]
fn plan_and_count_take_the_servers_of_the_running_proxy() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::Vllm] {
        let fake = Fake::start(kind, 4096);
        let dir = tempfile::tempdir().unwrap();
        // Named on the command line of the proxy alone.
        let served = Served::start(dir.path(), &[fake.url()], "");
        let other = tempfile::tempdir().unwrap();
        let file = other.path().join("chat.json");
        std::fs::write(&file, long().body()).unwrap();
        let name = file.to_str().unwrap();
        let ask = |what: &str| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_windowsill"));
            command.arg("--data-dir").arg(other.path().join("data")).args([what, name, "--json"]);
            document(&command.env("WINDOWSILL_LISTEN", served.address.to_string()).output().unwrap())
        };
        let plan = ask("plan");
        assert_eq!((plan["window"].as_u64(), plan["action"].as_str()), (Some(4096), Some("evict")), "{kind:?}: {plan}");
        let total = ask("count")["total"].as_u64().unwrap();
        let real = u64::from(tokens(&long().value()));
        // Ollama cannot count.
        assert!(kind == Kind::Ollama || total.abs_diff(real) <= real / 50, "{kind:?}: {total} against {real}");
        assert!(fake.mains().is_empty(), "{kind:?}: nothing is sent");
    }
}

#[test]
fn a_report_begins_with_what_clients_sent() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut sent = long();
    let mut whole = 0;
    for n in 0..3 {
        proxy.chat(&sent).ok();
        whole += u64::from(tokens(&sent.value()));
        sent = sent.assistant("Done.").user(&format!("And {n}?"));
    }
    let report = document(&proxy.cli(&["report", "--json"]));
    let (said, read) = (report["sent_tokens"].as_u64().unwrap(), report["prompt_tokens"].as_u64().unwrap());
    assert!(said > read + read / 2 && said.abs_diff(whole) <= whole / 20, "{said} against {whole}, {read} read");
    let page = stdout(&proxy.cli(&["report"]));
    assert!(page.lines().nth(2).is_some_and(|line| line.starts_with("  Your clients sent about ")), "{page}");
}

#[test]
fn what_is_wrong_is_said_in_terms_of_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let err = |out: &Output| String::from_utf8_lossy(&out.stderr).into_owned();
    let out = cli(dir.path(), &["--shadow"]);
    code(&out, 2);
    assert!(err(&out).contains("--help") && !err(&out).contains("worker"), "{}", err(&out));
    // Where the folder of the record should be, there is a file.
    let taken = tempfile::tempdir().unwrap();
    std::fs::write(taken.path().join("data"), "").unwrap();
    let out = cli(taken.path(), &["serve", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"]);
    code(&out, 1);
    assert!(err(&out).contains("record") && !err(&out).contains("goes on by itself"), "{}", err(&out));
    // Where the memory of models should be, there is a file, too: nobody is offered a memory that is none.
    let no_memory = tempfile::tempdir().unwrap();
    std::fs::write(no_memory.path().join("notes"), "").unwrap();
    let toml = format!("[memory]\ndir = \"{}\"\n", no_memory.path().join("notes").display());
    std::fs::write(no_memory.path().join("config.toml"), toml).unwrap();
    let out = cli(no_memory.path(), &["serve", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"]);
    code(&out, 1);
    assert!(err(&out).contains("[memory]") && err(&out).contains("hint: "), "{}", err(&out));
    let doctor: Value = serde_json::from_slice(&cli(no_memory.path(), &["doctor", "--json"]).stdout).unwrap();
    let told = |p: &&Value| p["severity"] == "broken" && p["message"].as_str().unwrap().contains("[memory]");
    assert_eq!(doctor["problems"].as_array().unwrap().iter().filter(told).count(), 1, "{doctor}");
    // A wrong config hides nothing of the command line.
    let fake = Fake::start(Kind::LlamaServer, 4096);
    std::fs::write(dir.path().join("config.toml"), "[context]\nclear_att = 0.5\n").unwrap();
    let out = cli(dir.path(), &["doctor", "--json", "--upstream", &fake.url()]);
    let seen: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(seen.to_string().contains(&fake.url()) && !seen.to_string().contains("no inference server"), "{seen}");
    // An empty record says what comes next.
    let proxy = TestProxy::before(&fake);
    assert!(stdout(&proxy.cli(&["context"])).starts_with("no conversations yet: point a client at http://"));
    let nothing = tempfile::tempdir().unwrap();
    for args in [&["status"][..], &["context"], &["build", "c1"], &["recall", "vault"], &["report"]] {
        let out = cli(nothing.path(), args);
        code(&out, 1);
        let said = err(&out);
        assert!(
            said.contains("no conversations yet in ") && said.contains("point a client at http://"),
            "{args:?}: {said}"
        );
    }
}
