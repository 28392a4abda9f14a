//! The server's own processes on this machine: what they were started with, and what they hold. Read from `/proc`, where
//! there is one; a process of another user shows its arguments, but not its environment.

use std::collections::BTreeMap;
use std::path::Path;

use super::count;
use crate::engine::generate::COMMAND;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub id: u32,
    /// Its arguments, the program first.
    pub arguments: Vec<String>,
    /// Private memory it has in RAM (bytes); what is mapped from files is not in it.
    pub anonymous: u64,
}

impl Process {
    /// The value after any of these options, or behind its `=`.
    pub fn option(&self, names: &[&str]) -> Option<&str> {
        let behind = |word: &str| names.contains(&word);
        self.arguments.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
            Some((name, value)) if behind(name) => Some(value),
            _ if behind(word) => self.arguments.get(at + 1).map(String::as_str),
            _ => None,
        })
    }

    /// Whether any of these flags was given.
    pub fn has(&self, names: &[&str]) -> bool {
        self.arguments.iter().any(|word| names.contains(&word.as_str()))
    }
}

/// The process that has this model file among its arguments: Ollama's runner, llama-server. Of several, the one that
/// holds most; never one of ours that counts.
pub fn serving(root: &Path, file: &Path) -> Option<Process> {
    let holds = |word: &String| Path::new(word.rsplit_once('=').map_or(word.as_str(), |(_, value)| value)) == file;
    let counts = |process: &Process| process.arguments.get(1).is_some_and(|word| word == count::COMMAND);
    let found = all(root).into_iter().filter(|p| !counts(p) && p.arguments.iter().skip(1).any(holds));
    // A shell that was told to start it has it among its arguments too.
    found.max_by_key(|process| process.anonymous)
}

/// The process of ours that generates with this model file.
pub fn generating(root: &Path, file: &Path) -> Option<Process> {
    let ours = |process: &Process| process.arguments.get(1).is_some_and(|word| word == COMMAND);
    let found = all(root).into_iter().filter(ours);
    found.filter(|p| p.option(&["--model"]).is_some_and(|named| Path::new(named) == file)).max_by_key(|p| p.anonymous)
}

/// The environment of the `ollama serve` that listens on this port, as far as it may be read.
pub fn ollama_environment(root: &Path, port: u16) -> Option<(u32, BTreeMap<String, String>)> {
    let serving =
        |process: &Process| is(process, "ollama") && process.arguments.get(1).is_some_and(|word| word == "serve");
    all(root).into_iter().filter(serving).find_map(|process| {
        let environment = environment(root, process.id)?;
        (port_of(environment.get("OLLAMA_HOST").map(String::as_str)) == port).then_some((process.id, environment))
    })
}

/// The port in an `OLLAMA_HOST`, which may be a URL, `HOST:PORT`, `HOST` or `:PORT`.
fn port_of(host: Option<&str>) -> u16 {
    let host = host.unwrap_or_default().trim().trim_matches(['"', '\'']);
    let (scheme, rest) = host.split_once("://").unwrap_or(("", host));
    let authority = rest.split('/').next().unwrap_or_default();
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => 11434,
    };
    // The last colon of `[::1]` is no port's.
    let port = authority.rsplit_once(':').filter(|(before, _)| !before.contains('[') || before.ends_with(']'));
    port.and_then(|(_, port)| port.parse().ok()).unwrap_or(usual)
}

fn is(process: &Process, program: &str) -> bool {
    let name = process.arguments.first().map(Path::new).and_then(Path::file_stem);
    name.is_some_and(|name| name == program)
}

fn environment(root: &Path, id: u32) -> Option<BTreeMap<String, String>> {
    let bytes = std::fs::read(root.join(format!("proc/{id}/environ"))).ok()?;
    let pairs = bytes.split(|b| *b == 0).filter_map(|pair| {
        let pair = String::from_utf8_lossy(pair);
        pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    });
    Some(pairs.collect())
}

fn all(root: &Path) -> Vec<Process> {
    let Ok(folders) = std::fs::read_dir(root.join("proc")) else { return Vec::new() };
    let mut ids: Vec<u32> = folders.flatten().filter_map(|f| f.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    ids.into_iter().filter_map(|id| read(root, id)).collect()
}

fn read(root: &Path, id: u32) -> Option<Process> {
    let folder = root.join(format!("proc/{id}"));
    let line = std::fs::read(folder.join("cmdline")).ok()?;
    let words = line.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let mut arguments: Vec<String> = words.collect();
    arguments.pop_if(|last| last.is_empty());
    if arguments.is_empty() {
        return None;
    }
    let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
    let anonymous = status.lines().find_map(|line| {
        let mut words = line.strip_prefix("RssAnon:")?.split_whitespace();
        words.next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    Some(Process { id, arguments, anonymous: anonymous.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |id: u32, name: &str, text: &str| {
            let folder = dir.path().join(format!("proc/{id}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), text.replace('|', "\0")).unwrap();
        };
        put(1, "cmdline", "/sbin/init|");
        put(2, "cmdline", "");
        put(10, "cmdline", "/usr/bin/ollama|serve|");
        put(10, "environ", "HOME=/home/a|OLLAMA_HOST=127.0.0.1:9000|");
        put(11, "cmdline", "/usr/bin/ollama|serve|");
        put(11, "environ", "OLLAMA_KV_CACHE_TYPE=q8_0|broken|OLLAMA_MODELS=/m|");
        put(12, "cmdline", "/usr/bin/ollama|runner|--model|/m/blobs/sha256-a|--port|7|");
        put(12, "status", "Name:\tollama\nRssAnon:\t  2048 kB\nRssFile:\t 9 kB\n");
        put(13, "cmdline", "bash|-c|llama-server|/m/x.gguf|");
        put(14, "cmdline", "/opt/llama-server|-m|/m/x.gguf|--port=8080|-np|2|--no-kv-offload|");
        put(14, "status", "RssAnon: 1024 kB\n");
        put(15, "cmdline", "/opt/llama-server|--port|8081|");
        put(16, "cmdline", "/usr/bin/windowsill|count-worker|/m/x.gguf|");
        put(16, "status", "RssAnon: 9999 kB\n");
        std::fs::create_dir_all(dir.path().join("proc/sys")).unwrap();
        dir
    }

    #[test]
    fn servers_are_found_by_model() {
        let machine = machine();
        let root = machine.path();
        let runner = serving(root, Path::new("/m/blobs/sha256-a")).unwrap();
        assert_eq!((runner.id, runner.anonymous), (12, 2 << 20));
        let server = serving(root, Path::new("/m/x.gguf")).unwrap();
        assert_eq!((server.id, server.option(&["-np", "--parallel"])), (14, Some("2")));
        assert!(server.has(&["--no-kv-offload"]) && !server.has(&["-kvu"]));
        assert_eq!(server.option(&["--ctx-size"]), None);
        assert_eq!(serving(root, Path::new("/m/y.gguf")), None);
        assert_eq!(serving(Path::new("/nowhere"), Path::new("/m/y.gguf")), None);
    }

    #[test]
    fn ollama_is_told_by_its_port() {
        let machine = machine();
        let (id, environment) = ollama_environment(machine.path(), 11434).unwrap();
        assert_eq!((id, environment["OLLAMA_KV_CACHE_TYPE"].as_str()), (11, "q8_0"));
        assert_eq!(ollama_environment(machine.path(), 9000).unwrap().0, 10);
        assert_eq!(ollama_environment(machine.path(), 1), None);
        let cases = [
            (None, 11434),
            (Some("0.0.0.0"), 11434),
            (Some(":5"), 5),
            (Some("http://box"), 80),
            (Some("https://box:444/x"), 444),
            (Some("[::1]"), 11434),
            (Some("[::1]:7"), 7),
        ];
        for (host, want) in cases {
            assert_eq!(port_of(host), want, "{host:?}");
        }
    }
}
