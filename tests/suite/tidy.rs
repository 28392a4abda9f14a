//! The house rules as tests: who may import whom, one door a library, what the pure rooms never touch, and that every
//! setting is documented. Each message says what to do instead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use windowsill::config;

use crate::config::root;

/// The import table of architecture.md: a room, and the rooms it may import.
const ROOMS: &[(&str, &[&str])] = &[
    // The pure crate, `crates/core`.
    ("conversation", &["preview", "wire"]),
    ("wire", &["conversation", "settings"]),
    ("settings", &[]),
    ("admission", &["conversation", "wire"]),
    ("plan", &["admission", "conversation", "preview", "wire"]),
    ("preview", &["conversation", "unwrap"]),
    ("unwrap", &["preview"]),
    ("salience", &["conversation", "preview"]),
    ("brief", &["conversation", "passage", "pinned", "preview", "salience", "unwrap", "wire"]),
    ("pinned", &[]),
    ("recall", &["conversation", "preview", "wire"]),
    ("passage", &["conversation", "preview", "wire"]),
    ("completion", &["brief", "conversation", "preview", "unwrap"]),
    ("remind", &["conversation", "passage", "plan", "preview", "salience", "wire"]),
    ("export", &["conversation"]),
    ("route", &["conversation"]),
    ("question", &["conversation", "preview", "recall"]),
    ("apply", &["conversation", "plan", "preview", "brief", "pinned", "salience", "wire"]),
    // The record, `crates/record`; it has no room of the program to import.
    ("store", &["apply", "conversation", "export", "passage"]),
    // Leaves: how files are opened, and how text is made harmless.
    ("clock", &[]),
    ("files", &[]),
    ("plain", &[]),
    ("gguf", &["files"]),
    ("config", &["admission", "plan", "conversation", "gguf", "files", "settings"]),
    ("engine", &["conversation", "gguf", "files"]),
    // `engine` and `gguf` only in embedded/, see EXCEPTIONS.
    ("upstream", &["clock", "conversation", "wire", "config"]),
    (
        "measure",
        &["brief", "plan", "conversation", "wire", "gguf", "engine", "upstream", "store", "config", "files", "plain"],
    ),
    ("summarizer", &["brief", "conversation", "plan", "preview", "upstream", "wire"]),
    ("telemetry", &["config", "upstream"]),
    ("usage", &["config", "plan", "conversation", "store", "telemetry", "upstream", "wire"]),
    (
        "proxy",
        &[
            "clock",
            "admission",
            "apply",
            "brief",
            "completion",
            "conversation",
            "export",
            "guard",
            "passage",
            "pinned",
            "plan",
            "preview",
            "question",
            "recall",
            "remind",
            "route",
            "unwrap",
            "wire",
            "config",
            "engine",
            "upstream",
            "store",
            "measure",
            "summarizer",
            "telemetry",
            "usage",
            "files",
            "plain",
            "keys",
        ],
    ),
    // Who may come in: asked by the front door, and told by `proxy` what a reply took.
    ("keys", &["config", "files"]),
    ("guard", &["config", "conversation", "plan"]),
    ("server", &["proxy", "config", "plain", "keys", "clock"]),
    ("main", &["clock", "config", "gguf", "proxy", "server", "measure", "plain", "files"]),
    // `main.rs` in more files.
    ("cli", &["clock", "config", "gguf", "keys", "proxy", "server", "measure", "plain", "files"]),
];

/// The crates below the program: the folder of each.
const CRATES: &[&str] = &["crates/core/src/", "crates/record/src/"];

/// Files, or folders, that may import one room more.
const EXCEPTIONS: &[(&str, &str)] = &[("src/upstream/embedded/", "engine"), ("src/upstream/embedded/", "gguf")];

/// A library, or a part of one, and the files or folders that may use it.
const DOORS: &[(&[&str], &[&str])] = &[
    (&["hyper"], &["src/server/", "src/proxy/turn/relay.rs"]),
    (&["hyper_util"], &["src/server/"]),
    (&["reqwest"], &["src/upstream/"]),
    (&["rusqlite"], &["crates/record/src/"]),
    (&["ratatui"], &["src/cli/top/", "src/cli/paint.rs"]),
    (&["toml"], &["src/config/"]),
    (&["toml_edit"], &["src/cli/wrap/"]),
    (&["jsonc_parser"], &["src/cli/wrap/"]),
    (&["std", "env"], &["src/config/"]),
    (&["llama_cpp_sys_2"], &["src/engine/"]),
    (&["tempfile"], &["src/measure/afford/dry_run.rs", "src/measure/shown/", "src/files.rs", "src/cli/launch.rs"]),
    (&["sysinfo"], &["src/measure/hardware.rs", "src/measure/hardware/"]),
    (&["nvml_wrapper"], &["src/measure/hardware.rs", "src/measure/hardware/"]),
];

/// What asks the planner, and the one file outside the core that may. Whoever else wants a view says what for.
const PLANNERS: &[(&str, &str)] = &[
    ("crate::plan::plan(", "none: `plan::fit` plans until a prompt fits"),
    ("Fitting::new(", "src/proxy/turn/draft.rs"),
    ("asked::breaks(", "src/proxy/turn/measured.rs"),
    ("asked::fold(", "src/proxy/state/view.rs"),
    ("asked::at_line(", "src/proxy/state/view.rs"),
    ("asked::foreseen(", "src/proxy/state/view.rs"),
];

/// What the pure crate never touches: the rest is kept out by its Cargo.toml.
const IMPURE: &[&[&str]] =
    &[&["std", "time"], &["std", "fs"], &["std", "env"], &["std", "net"], &["std", "process"], &["std", "thread"]];

/// Libraries that the pure crate never depends on.
const IMPURE_LIBRARIES: &[&str] = &["tokio", "tracing", "hyper", "reqwest", "rusqlite", "sysinfo", "rand", "futures"];

/// A path such as `crate::plan::Policy` in a file, with its line.
#[derive(Debug, PartialEq)]
struct Use {
    line: usize,
    path: Vec<String>,
}

#[test]
fn rooms_import_only_what_the_table_allows() {
    let files = sources();
    assert!(files.len() >= 20, "only {} files were read", files.len());
    let wrong: Vec<String> = files.iter().flat_map(|(file, text)| imports(file, text)).collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

/// The rooms of `src/proxy`, each above those before it. What stands beside them is under all of them, but for `start.rs`, which
/// puts the program together.
const STORIES: [&str; 5] = ["state", "turn", "ahead", "desk", "doors"];

/// Files of `src/proxy` that may import each other in a circle, at most.
const CIRCLE: usize = 3;

/// Fields that a struct has at most.
const FIELDS: usize = 14;

/// What each file of `src/proxy` imports of the others: the names of its module and of theirs, by `::`, and the line.
fn inside_the_proxy() -> Vec<(String, Vec<(String, usize)>)> {
    let files: Vec<(String, String)> = sources()
        .into_iter()
        .filter(|(file, _)| !is_test(file))
        .filter_map(|(file, text)| Some((file.strip_prefix("src/proxy/")?.to_owned(), text)))
        .filter(|(inside, _)| inside != "mod.rs")
        .map(|(inside, text)| (inside.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::"), text))
        .collect();
    let modules: BTreeSet<&str> = files.iter().map(|(module, _)| module.as_str()).collect();
    let imports = |(module, text): &(String, String)| {
        let here: Vec<&str> = module.split("::").collect();
        let found = uses(text).into_iter().filter_map(|found| {
            let path: Vec<&str> = found.path.iter().map(String::as_str).collect();
            let supers = path.iter().take_while(|part| **part == "super").count();
            let absolute = match path.as_slice() {
                ["crate", "proxy", rest @ ..] => rest.to_vec(),
                _ if (1..=here.len()).contains(&supers) => [&here[..here.len() - supers], &path[supers..]].concat(),
                _ => return None,
            };
            let known = (1..=absolute.len()).rev().map(|n| absolute[..n].join("::"));
            let other = known.into_iter().find(|name| modules.contains(name.as_str()))?;
            // A file may use what it is a part of.
            (other != *module && !module.starts_with(&format!("{other}::"))).then_some((other, found.line))
        });
        (module.clone(), found.collect())
    };
    files.iter().map(imports).collect()
}

#[test]
fn a_request_never_goes_back_up() {
    let story = |module: &str| {
        let room = module.split("::").next().unwrap_or_default();
        if module == "start" { STORIES.len() } else { STORIES.iter().position(|s| *s == room).map_or(0, |at| at + 1) }
    };
    let all = inside_the_proxy();
    let wrong: Vec<String> = all
        .iter()
        .flat_map(|(module, imports)| imports.iter().map(move |(other, line)| (module, other, line)))
        .filter(|(module, other, _)| story(other) > story(module))
        .map(|(module, other, line)| format!("proxy::{module}, line {line}: {other} stands above: pass what it needs"))
        .collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    let imports: usize = all.iter().map(|(_, imports)| imports.len()).sum();
    assert!(all.len() > 60 && imports > 200, "{imports} imports in {} files", all.len());
}

#[test]
fn no_more_than_three_files_of_the_proxy_import_each_other() {
    let all: BTreeMap<String, BTreeSet<String>> = inside_the_proxy()
        .into_iter()
        .map(|(module, imports)| (module, imports.into_iter().map(|(other, _)| other).collect()))
        .collect();
    let reached = |from: &str| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(module) = todo.pop() {
            for other in &all[&module] {
                if seen.insert(other.clone()) {
                    todo.push(other.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = all.keys().map(|module| (module, reached(module))).collect();
    for (module, seen) in &reached {
        let circle: Vec<&String> = seen.iter().filter(|other| reached[other].contains(*module)).collect();
        assert!(circle.len() <= CIRCLE, "these import each other in a circle: {circle:?}");
    }
}

#[test]
fn every_library_has_one_door() {
    let wrong: Vec<String> = sources().iter().flat_map(|(file, text)| doors(file, text)).collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn unsafe_code_is_at_the_edges() {
    let edges =
        ["devices/native", "dry_run/native", "vocabulary/native", "generate/native", "processor/native", "ffi/mod"];
    let edges = edges.map(|edge| format!("src/engine/{edge}.rs"));
    let wrong: Vec<String> = sources()
        .into_iter()
        .filter(|(file, text)| !edges.contains(file) && blanked(text).contains("unsafe_code"))
        .map(|(file, _)| format!("{file}: unsafe code is allowed in {edges:?} alone: go through them"))
        .collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    for edge in edges {
        let text = std::fs::read_to_string(root().join(&edge)).unwrap();
        let places = text.matches("unsafe {").count() + text.matches("unsafe impl").count();
        assert!(places > 0 && text.matches("// SAFETY: ").count() == places, "{edge}: each says why it is sound");
    }
}

#[test]
fn no_struct_is_wide() {
    let head = regex::Regex::new(r"(?m)^\s*(?:pub(?:\([^)]*\))? )?struct (\w+)[^{;(]*\{").unwrap();
    // The settings and the flags of the command line are lists by nature.
    let of_others =
        |file: &str| file.starts_with("src/config/") || file.starts_with("src/cli/") || file == "src/main.rs";
    let mut seen = 0;
    let mut wide = Vec::new();
    for (file, text) in sources().iter().filter(|(file, _)| !is_test(file) && !of_others(file)) {
        let code = without_tests(&blanked(text));
        for found in head.captures_iter(&code) {
            let fields = fields(&code[found.get(0).unwrap().end()..]);
            seen += 1;
            if fields > FIELDS {
                let name = &found[1];
                wide.push(format!(
                    "{file}: `{name}` has {fields} fields, at most {FIELDS}: group those that go together"
                ));
            }
        }
    }
    assert!(wide.is_empty(), "\n{}\n", wide.join("\n"));
    assert!(seen > 500, "only {seen} structs were read");
    assert_eq!(fields(" a: u8, pub b: Vec<(u8, [u64; 4])>,\n #[x(y, z)] c: fn(&u8, u8) -> u8 }, d: u8"), 3);
}

/// How many fields a struct has, by its code behind the bracket that opens it: a colon at its own level is a field's.
fn fields(code: &str) -> usize {
    let mut depth = 0_i32;
    let mut found = 0;
    let bytes = code.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'}' if depth == 0 => break,
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth -= 1,
            b':' if depth == 0 && bytes.get(at + 1) != Some(&b':') && bytes[at - 1] != b':' => found += 1,
            _ => {}
        }
    }
    found
}

#[test]
fn the_core_stays_pure() {
    let wrong: Vec<String> = sources().iter().flat_map(|(file, text)| purity(file, text)).collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    let manifest = std::fs::read_to_string(root().join("crates/core/Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
    let (dependencies, _) = dependencies.split_once("[dev-dependencies]").unwrap();
    let found: Vec<&&str> = IMPURE_LIBRARIES.iter().filter(|name| dependencies.contains(**name)).collect();
    assert!(found.is_empty(), "crates/core/Cargo.toml depends on {found:?}: the core is pure");
}

#[test]
fn every_file_says_what_it_is() {
    let silent: Vec<String> = sources()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(file, _)| format!("{file}: open it with `//!`: what it is, and what it never does"))
        .collect();
    assert!(silent.is_empty(), "\n{}\n", silent.join("\n"));
}

#[test]
fn the_map_names_each_room() {
    let lib = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let code = without_tests(&blanked(&lib));
    let named: BTreeSet<String> = code
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'))
        .map(str::to_owned)
        .collect();
    let entries = std::fs::read_dir(root().join("src")).unwrap();
    let there: BTreeSet<String> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir() || path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|name| !matches!(name.as_str(), "lib" | "main" | "bin" | "cli"))
        .collect();
    assert_eq!(named, there, "lib.rs names one set of rooms, src/ holds another");
    let tabled: BTreeSet<String> = ROOMS.iter().map(|(room, _)| (*room).to_owned()).collect();
    let missing: Vec<&String> = named.difference(&tabled).collect();
    assert!(missing.is_empty(), "no row in the import table (architecture.md and tidy.rs) for {missing:?}");
}

#[test]
fn every_setting_is_documented_and_every_documented_setting_exists() {
    let text = config::DEFAULT_FILE;
    let (mut table, mut found) = (String::new(), BTreeSet::new());
    let mut above = "";
    for line in text.lines() {
        let bare = line.trim_start_matches("# ");
        if let Some(heading) = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = heading.trim_matches(['[', ']']).to_owned();
        } else if table.starts_with("size.") {
            // The keys of [context] again, explained there.
            let is_known = |key: &str| config::known_keys().contains(&("context", key));
            assert!(setting(bare).is_none_or(is_known), "config.toml: {line:?} in [{table}]");
        } else if let Some(key) = setting(bare) {
            let explained = above.starts_with('#') && setting(above.trim_start_matches("# ")).is_none();
            assert!(explained, "config.toml: say above `{key}` what it does, its unit and its default");
            assert!(found.insert((table.clone(), key.to_owned())), "config.toml: `{key}` stands twice in [{table}]");
        }
        above = line;
    }
    let known: BTreeSet<(String, String)> =
        config::known_keys().into_iter().map(|(table, key)| (table.to_owned(), key.to_owned())).collect();
    let known: BTreeSet<_> = known.into_iter().filter(|(table, _)| !table.starts_with("size.")).collect();
    let missing: Vec<_> = known.difference(&found).collect();
    assert!(missing.is_empty(), "config.toml lacks {missing:?}: add each with a comment above it");
    let unknown: Vec<_> = found.difference(&known).collect();
    assert!(unknown.is_empty(), "config.toml has {unknown:?}, which no code reads: take them out");
    assert!(known.len() >= 26, "{}", known.len());
}

/// The key of a line `key = value`.
fn setting(line: &str) -> Option<&str> {
    let (key, _) = line.split_once(" = ")?;
    let key = key.trim_end();
    (!key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')).then_some(key)
}

/// All of `src/` and the crates: the path from the crate's folder, with `/`, and the text.
fn sources() -> Vec<(String, String)> {
    fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }
    let mut paths = Vec::new();
    for folder in ["src"].iter().chain(CRATES) {
        walk(&root().join(folder), &mut paths);
    }
    paths.sort();
    let name = |path: &Path| path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
    paths.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// The room a file belongs to; `None` for lib.rs.
fn room(file: &str) -> Option<&str> {
    if file.starts_with("crates/record/src/") {
        return Some("store");
    }
    let inside = file.strip_prefix("src/").or_else(|| file.strip_prefix("crates/core/src/"))?;
    let name = inside.split('/').next()?.trim_end_matches(".rs");
    (name != "lib").then_some(name)
}

/// A file of tests may use what it likes.
fn is_test(file: &str) -> bool {
    file.ends_with("/tests.rs") || file.contains("/tests/") || file.ends_with("/survey.rs")
}

/// How many `super`s lead from the module of a file to the crate.
fn depth(file: &str) -> usize {
    let inside = CRATES.iter().find_map(|folder| file.strip_prefix(folder)).unwrap_or(file);
    let inside = inside.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    inside.split('/').count()
}

fn imports(file: &str, text: &str) -> Vec<String> {
    let Some(room) = room(file).filter(|_| !is_test(file)) else { return Vec::new() };
    let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        return vec![format!("{file}: room `{room}` has no row in the import table (architecture.md and tidy.rs)")];
    };
    let excepted = |other: &str| EXCEPTIONS.iter().any(|(path, extra)| file.starts_with(path) && *extra == other);
    let mut wrong = Vec::new();
    for found in uses(text) {
        let Some(other) = imported(file, &found.path).filter(|other| *other != room) else { continue };
        let is_room = ROOMS.iter().any(|(name, _)| *name == other);
        if is_room && !allowed.contains(&other) && !excepted(other) {
            let line = found.line;
            wrong.push(format!(
                "{file}:{line}: `{room}` may not import `{other}`, only {allowed:?}: pass what it needs as an argument"
            ));
        }
    }
    wrong
}

/// The room that a path leads to, if it leaves its own through the crate's root.
fn imported<'a>(file: &str, path: &'a [String]) -> Option<&'a str> {
    // The record's crate has one room, whose files are not those of the program.
    if file.starts_with("crates/record/") {
        return path.first().filter(|name| *name == "windowsill_core").and(path.get(1)).map(String::as_str);
    }
    let supers = path.iter().take_while(|part| *part == "super").count();
    match path.first()?.as_str() {
        "crate" | "windowsill" | "windowsill_core" => path.get(1).map(String::as_str),
        "super" if supers >= depth(file) => path.get(supers).map(String::as_str),
        _ => None,
    }
}

fn doors(file: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for found in uses(text).into_iter().filter(|_| !is_test(file)) {
        for (library, homes) in DOORS.iter().filter(|(library, _)| starts_with(&found.path, library)) {
            if !homes.iter().any(|home| file.starts_with(home)) {
                let (line, library) = (found.line, library.join("::"));
                wrong.push(format!("{file}:{line}: `{library}` is used only in {homes:?}: go through that room"));
            }
        }
    }
    wrong
}

fn purity(file: &str, text: &str) -> Vec<String> {
    if !file.starts_with("crates/core/") || is_test(file) {
        return Vec::new();
    }
    let touches = |found: &Use| IMPURE.iter().find(|library| starts_with(&found.path, library)).copied();
    let found = uses(text);
    let wrong = found.iter().filter_map(|found| Some((found.line, touches(found)?)));
    wrong
        .map(|(line, library)| {
            let library = library.join("::");
            format!(
                "{file}:{line}: the core never touches `{library}`: take it as an argument, and return what was found"
            )
        })
        .collect()
}

fn starts_with(path: &[String], prefix: &[&str]) -> bool {
    path.len() >= prefix.len() && path.iter().zip(prefix).all(|(a, b)| a == b)
}

/// Every path of two parts or more outside comments, strings and `#[cfg(test)]` modules, groups taken apart, and every
/// `use` of a single name.
fn uses(text: &str) -> Vec<Use> {
    let code = without_tests(&blanked(text));
    let tokens = tokens(&code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let continues = at > 0 && tokens[at - 1].1 == "::" && at > 1 && is_name(&tokens[at - 2].1);
        if is_name(&tokens[at].1) && !continues {
            let single = at > 0 && tokens[at - 1].1 == "use";
            let mut paths = Vec::new();
            let next = path(&tokens, at, &[], &mut paths);
            found.extend(paths.into_iter().filter(|found| single || found.path.len() > 1));
            at = next.max(at + 1);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads the path that starts at a token, taking groups apart; returns where it ends.
fn path(tokens: &[(usize, String)], mut at: usize, before: &[String], found: &mut Vec<Use>) -> usize {
    let mut parts = before.to_vec();
    let line = tokens[at].0;
    while let Some((_, token)) = tokens.get(at) {
        if token == "{" {
            at += 1;
            while tokens.get(at).is_some_and(|(_, token)| token != "}") {
                at = if is_name(&tokens[at].1) { path(tokens, at, &parts, found) } else { at + 1 };
            }
            return at + 1;
        }
        if !is_name(token) && token != "*" {
            break;
        }
        parts.push(token.clone());
        at += 1;
        if tokens.get(at).is_none_or(|(_, token)| token != "::") {
            break;
        }
        at += 1;
    }
    found.push(Use { line, path: parts });
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::` and single other characters, each with its line.
fn tokens(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let length = if name > 0 {
                name
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            found.push((index + 1, rest[..length].to_owned()));
            rest = rest[length..].trim_start();
        }
    }
    found
}

/// The text with comments and the insides of strings and characters replaced by spaces, line breaks kept.
fn blanked(text: &str) -> String {
    let literal = regex::Regex::new(
        r##"(?sx)
        //[^\n]* | /\*.*?\*/
        | r\#\#"(?:.*?)"\#\# | r\#"(?:.*?)"\# | \br"[^"]*"
        | "(?:\\.|[^"\\])*"
        | '(?:\\[^\n]{1,9}?|[^'\\\n])'
        "##,
    )
    .unwrap();
    let spaces =
        |found: &regex::Captures| found[0].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect::<String>();
    literal.replace_all(text, spaces).into_owned()
}

/// Blanked code without its `#[cfg(test)]` modules, line breaks kept.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(start) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..start]);
        let tail = &rest[start..];
        let open = tail.find(['{', ';']).unwrap_or(tail.len());
        let mut nesting = 0;
        let end = tail[open..]
            .char_indices()
            .find(|(_, c)| {
                nesting += i32::from(*c == '{') - i32::from(*c == '}');
                nesting == 0
            })
            .map_or(tail.len(), |(at, c)| open + at + c.len_utf8());
        kept.extend(tail[..end].chars().filter(|c| *c == '\n'));
        rest = &tail[end..];
    }
    kept + rest
}

#[test]
fn the_planner_is_asked_in_one_place_for_each_purpose() {
    let files = sources();
    let outside = || files.iter().filter(|(file, _)| file.starts_with("src/") && !is_test(file));
    for (call, home) in PLANNERS {
        for (file, text) in outside() {
            let found = text.contains(call);
            assert_eq!(found, file == home, "{file}: `{call}` is called only in {home}: see `state::view::Intent`");
        }
    }
}

#[test]
fn the_rules_see_what_they_forbid() {
    let cases = [
        ("crates/core/src/plan/clear.rs", "use crate::store::Store;", 1),
        ("crates/core/src/plan/clear.rs", "use crate::{conversation::Tokens, store};", 1),
        ("crates/core/src/plan/clear.rs", "fn f() { crate::upstream::send() }", 1),
        ("crates/core/src/plan/clear.rs", "use super::super::store::Store;", 1),
        ("crates/core/src/plan/mod.rs", "use super::{apply, conversation};", 1),
        ("src/usage.rs", "use super::measure::X;", 1),
        ("crates/core/src/plan/clear.rs", "use super::store;", 0),
        ("crates/core/src/plan/clear.rs", "use crate::conversation::{Message, Role};\nuse crate::plan::Policy;", 0),
        ("crates/core/src/plan/clear.rs", "// crate::store\nlet x = \"crate::store::x\";", 0),
        ("crates/core/src/plan/clear.rs", "#[cfg(test)]\nmod tests { use crate::store::X; fn f() {} }", 0),
        ("crates/core/src/plan/clear.rs", "#[cfg(test)]\nmod tests { fn f() {} }\nuse crate::store::X;", 1),
        ("src/upstream/embedded/mod.rs", "use crate::engine::Engine;", 0),
        ("src/upstream/ollama.rs", "use crate::engine::Engine;", 1),
        ("src/main.rs", "use windowsill::store::X;", 1),
        ("src/proxy/turn/relay.rs", "use hyper::body::Body;", 0),
        ("src/proxy/mod.rs", "use hyper::body::Body;", 1),
        ("src/measure/mod.rs", "let x = std::env::var(\"X\");", 1),
        ("src/measure/mod.rs", "use std::{env, fs};", 1),
        ("src/measure/mod.rs", "use toml;", 1),
        ("src/measure/mod.rs", "let toml = 1; let c = '\"'; let x = env!(\"X\"); // \"", 0),
        ("crates/core/src/conversation/step.rs", "use std::fs::File;", 1),
        ("crates/core/src/conversation/step.rs", "fn f(x: &'static str, y: std::time::Instant) {}", 1),
        ("crates/core/src/plan/tests.rs", "use crate::store::X; use std::fs;", 0),
        ("src/nowhere/mod.rs", "", 1),
    ];
    for (file, text, count) in cases {
        let found: Vec<String> =
            [imports(file, text), doors(file, text), purity(file, text)].into_iter().flatten().collect();
        assert_eq!(found.len(), count, "{file}: {text}\n{found:?}");
    }
    let found = imports("crates/core/src/plan/x.rs", "//! a\n\n/* b\n */ use crate::store;");
    assert!(found[0].starts_with("crates/core/src/plan/x.rs:4: `plan` may not import `store`"), "{found:?}");
}
