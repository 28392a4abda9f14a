//! The reference of `docs/configuration.md` is made from `config.toml`: its comments, keys and defaults. With `BLESS=1` in the
//! environment, it is written anew.

use std::fmt::Write as _;
use std::path::PathBuf;

/// Where the reference begins; what stands above is written by hand.
const MARK: &str =
    "<!-- Made from config.toml. To renew it: BLESS=1 cargo test --features live --test suite reference:: -->";

/// Pages that say more about a table or a key.
const MORE: &[(&str, &str)] = &[
    ("record", "[Several windowsills, one record](fleet.md)"),
    ("retention_days", "[How long things are kept](getting-things-back.md#how-long-things-are-kept)"),
    ("retention_bytes", "[How long things are kept](getting-things-back.md#how-long-things-are-kept)"),
    ("shadow", "[See before you trust](shadow.md)"),
    ("api_key", "[Security](security.md)"),
    ("allowed_hosts", "[Security](security.md)"),
    ("allowed_origins", "[Security](security.md)"),
    ("task", "[Tasks](guardrails.md#tasks)"),
    ("upstream.gpu_layers", "[The embedded engine](engine.md)"),
    ("upstream.kv_type", "[How large a context can I run?](fit.md)"),
    ("key", "[Several people](security.md#several-people)"),
    ("pin", "[Pins](page.md#pins)"),
    ("window.num_ctx", "[How large a context can I run?](fit.md), [Ollama and num_ctx](ollama.md)"),
    ("context", "[What happens to a conversation](how-it-works.md)"),
    ("context.digest_over", "[Digests](digests.md)"),
    ("context.digest_model", "[Digests](digests.md)"),
    ("context.fold_every_turns", "[Folds at a pace of your own](guardrails.md#folds-at-a-pace-of-your-own)"),
    ("context.recall", "[The model can read back](recall.md)"),
    ("context.recall_ahead", "[What comes back by itself](recall.md#what-comes-back-by-itself)"),
    ("context.done_tool", "[Checkpoints](guardrails.md#checkpoints)"),
    ("context.rules", "[Rules](guardrails.md#rules)"),
    ("context.tools", "[Many tools in a small window](tools.md)"),
    ("context.system", "[System text by index](tools.md#system-text-by-index)"),
    ("memory", "[A memory that stays](recall.md#a-memory-that-stays)"),
    ("telemetry", "[Metrics and traces](telemetry.md)"),
    ("ceiling", "[Ceilings](guardrails.md#ceilings)"),
    ("watch", "[Loops](guardrails.md#loops), [small models](guardrails.md#small-models)"),
];

/// A table of `config.toml`, with what its comment says.
struct Table {
    path: String,
    repeated: bool,
    about: String,
    keys: Vec<Key>,
}

struct Key {
    name: String,
    value: String,
    /// It is not set, and `value` is an example.
    is_example: bool,
    about: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The key of a line, whether it is commented out or not.
fn key(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(" = ")?;
    name.chars().all(|c| c.is_ascii_lowercase() || c == '_').then_some((name, value))
}

/// The path of a line that begins a table, and whether it may be repeated.
fn table(line: &str) -> Option<(&str, bool)> {
    let inner = line.strip_prefix('[')?.strip_suffix(']')?;
    let repeated = inner.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    let path = repeated.unwrap_or(inner);
    path.chars().all(|c| c.is_ascii_lowercase() || c == '.').then_some((path, repeated.is_some()))
}

/// The tables of `config.toml`, those at the top first.
fn tables(text: &str) -> Vec<Table> {
    let top = Table { path: String::new(), repeated: false, about: String::new(), keys: Vec::new() };
    let (mut tables, mut comment) = (vec![top], Vec::new());
    for line in text.lines() {
        let bare = line.trim_start_matches('#').trim_start();
        if let Some((path, repeated)) = table(bare) {
            let about = std::mem::take(&mut comment).join(" ");
            // A second example of a repeated table goes on with the first.
            if tables.last().is_none_or(|last| last.path != path) {
                tables.push(Table { path: path.to_owned(), repeated, about, keys: Vec::new() });
            }
        } else if let Some((name, value)) = key(bare) {
            let about = std::mem::take(&mut comment).join(" ");
            let is_example = line.starts_with('#');
            let (name, value) = (name.to_owned(), value.to_owned());
            tables.last_mut().unwrap().keys.push(Key { name, value, is_example, about });
        } else if line.is_empty() {
            comment.clear();
        } else {
            comment.push(bare);
        }
    }
    tables
}

/// A comment as Markdown: quoted words are code, and what has a meaning in Markdown loses it.
fn markdown(comment: &str) -> String {
    let mut out = String::new();
    for (at, part) in comment.split('`').enumerate() {
        if at % 2 == 1 {
            write!(out, "`{part}`").unwrap();
        } else {
            let escaped = part.replace('*', "\\*").replace('<', "&lt;").replace("[[", "\\[\\[").replace("](", "]\\(");
            out.push_str(&escaped);
        }
    }
    out
}

fn more(path: &str) -> String {
    let found = MORE.iter().find(|(of, _)| *of == path);
    found.map(|(_, links)| format!("More: {links}.")).unwrap_or_default()
}

fn variable(path: &str) -> String {
    format!("WINDOWSILL_{}", path.to_uppercase().replace('.', "_"))
}

fn write_key(out: &mut String, table: &Table, key: &Key) {
    let path = [table.path.as_str(), &key.name].join(".");
    let path = path.trim_start_matches('.');
    let kind = if key.is_example { "Example" } else { "Default" };
    let mut facts = vec![format!("{kind}: `{}`.", key.value)];
    // Pins and keys stand in files alone.
    if !matches!(table.path.as_str(), "pin" | "key") {
        facts.push(format!("Variable: `{}`.", variable(path)));
    }
    facts.extend(Some(more(path)).filter(|more| !more.is_empty()));
    write!(out, "\n### {}\n\n{}\n\n{}\n", key.name, markdown(&key.about), facts.join(" ")).unwrap();
}

/// What the sizes set, beside what holds where they do not.
fn write_sizes(out: &mut String, tables: &[Table]) {
    let sizes: Vec<&Table> = tables.iter().filter(|table| table.path.starts_with("size.")).collect();
    let context = tables.iter().find(|table| table.path == "context").unwrap();
    let is_sized = |key: &&Key| sizes.iter().any(|size| size.keys.iter().any(|own| own.name == key.name));
    let keys: Vec<&Key> = context.keys.iter().filter(is_sized).collect();
    let names: Vec<String> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
    write!(out, "\n## Defaults by size\n\n").unwrap();
    sizes.iter().for_each(|size| writeln!(out, "- `[{}]`: {}", size.path, markdown(&size.about)).unwrap());
    write!(out, "\n| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(keys.len())).unwrap();
    for table in sizes.into_iter().chain([context]) {
        let own = |key: &Key| table.keys.iter().find(|own| own.name == key.name).map(|own| format!("`{}`", own.value));
        let cells: Vec<String> = keys.iter().map(|key| own(key).unwrap_or_default()).collect();
        writeln!(out, "| `[{}]` | {} |", table.path, cells.join(" | ")).unwrap();
    }
}

fn reference(text: &str) -> String {
    let tables = tables(text);
    let mut out = String::new();
    for table in tables.iter().filter(|table| !table.path.starts_with("size.")) {
        let heading = match (table.path.as_str(), table.repeated) {
            ("", _) => "At the top".to_owned(),
            (path, true) => format!("[[{path}]]"),
            (path, false) => format!("[{path}]"),
        };
        write!(out, "\n## {heading}\n").unwrap();
        for said in [markdown(&table.about), more(&table.path)].iter().filter(|said| !said.is_empty()) {
            write!(out, "\n{said}\n").unwrap();
        }
        table.keys.iter().for_each(|key| write_key(&mut out, table, key));
        if table.path == "context" {
            write_sizes(&mut out, &tables);
        }
    }
    out
}

#[test]
fn the_reference_is_what_the_config_says() {
    let path = root().join("docs/configuration.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (by_hand, now) = page.split_once(MARK).expect("the mark is in docs/configuration.md");
    let text = std::fs::read_to_string(root().join("config.toml")).unwrap();
    let made = format!("\n{}", reference(&text));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{by_hand}{MARK}{made}")).unwrap();
    } else {
        assert_eq!(now, made, "docs/configuration.md is not what config.toml says; run with BLESS=1");
    }
}

#[test]
fn every_setting_has_a_comment_and_its_default() {
    let text = std::fs::read_to_string(root().join("config.toml")).unwrap();
    let tables = tables(&text);
    let mut seen = 0;
    for table in tables.iter().filter(|table| !table.path.starts_with("size.")) {
        assert!(table.path.is_empty() || !table.about.is_empty(), "config.toml: [{}] has no comment", table.path);
        for key in &table.keys {
            assert!(!key.about.is_empty(), "config.toml: {}.{} has no comment", table.path, key.name);
            let is_said = !key.is_example || key.about.contains("Default: ");
            assert!(is_said, "config.toml: the comment of {}.{} does not say the default", table.path, key.name);
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} settings");
    for (path, _) in MORE {
        let is_there = |table: &Table| {
            table.path == *path
                || table.keys.iter().any(|key| [&table.path, ".", &key.name].concat().trim_start_matches('.') == *path)
        };
        assert!(tables.iter().any(is_there), "{path} is no setting");
    }
}
