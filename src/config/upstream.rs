//! The upstreams a user named: their addresses, kinds and keys.
//!
//! It does not look for servers and talks to none.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Secret;
use super::file::Layer;
use super::problem::Problem;
use super::written::{self as read, Value, Written};
use crate::gguf::CacheTypes;

/// The keys of `[[upstream]]`.
pub(crate) const KEYS: &[&str] =
    &["name", "url", "kind", "model", "chat_template_file", "kv_type", "gpu_layers", "api_key", "session_header"];

/// Those of them that are for a model that windowsill serves itself.
const OF_MODELS: [&str; 4] = ["model", "chat_template_file", "kv_type", "gpu_layers"];

/// Those that are for a server.
const OF_SERVERS: [&str; 2] = ["api_key", "session_header"];

/// What kind of server an upstream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamKind {
    /// Find out by asking it.
    Auto,
    /// Ollama.
    Ollama,
    /// llama.cpp's `llama-server`.
    LlamaServer,
    /// Any other server with an OpenAI-compatible API.
    OpenAi,
    /// None: windowsill serves a model's file itself.
    Embedded,
}

/// A model that windowsill serves itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelConfig {
    /// Its GGUF file.
    pub file: PathBuf,
    /// A chat template (Jinja) to render with instead of the file's own.
    pub chat_template_file: Option<PathBuf>,
    /// The types of its KV cache; `None` for f16.
    pub kv_type: Option<CacheTypes>,
    /// Its layers on GPUs, from the last, the output layer counted as one; `u32::MAX` for all, `None` for as many as fit.
    pub gpu_layers: Option<u32>,
}

/// One inference server, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Its name, unique among the upstreams.
    pub name: String,
    /// Its address, `http://` or `https://`, without a slash at the end; a path is kept as written. Empty where windowsill
    /// serves a model itself.
    pub url: String,
    /// What windowsill serves itself; `None` for servers.
    pub model: Option<ModelConfig>,
    /// What kind of server it is.
    pub kind: UpstreamKind,
    /// Sent to it as a bearer token where the client sends no authorization of its own.
    pub api_key: Option<Secret>,
    /// The header in which it is told the conversation's id, so that a router sends all of one to the same server; in lower case.
    pub session_header: Option<String>,
    /// Where it comes from: `config.toml:9:1`, `--upstream`, `environment`.
    pub place: String,
}

/// Values of one upstream by key, and where it stands.
type Table = (String, BTreeMap<String, Written>);

/// The upstreams, from the flags if there are any, else the environment, else the file. An upstream of a flag or the
/// environment that the file names too keeps what the file says of it.
pub(crate) fn resolve(
    flags: &Layer,
    env: &Layer,
    file: &Layer,
    path: &dyn Fn(&Written) -> PathBuf,
    problems: &mut Vec<Problem>,
) -> Vec<UpstreamConfig> {
    let in_file = file.repeated.clone();
    let mut tables = if !flags.repeated.is_empty() {
        flags.repeated.iter().map(|table| with_file(table, &in_file)).collect()
    } else if let Some(url) = env.values.get("upstream.url") {
        let table = ("environment".to_owned(), BTreeMap::from([("url".to_owned(), url.clone())]));
        vec![with_file(&table, &in_file)]
    } else if let (Some(model), []) = (env.values.get("upstream.model"), in_file.as_slice()) {
        vec![("environment".to_owned(), BTreeMap::from([("model".to_owned(), model.clone())]))]
    } else {
        in_file
    };
    overlay(&mut tables, env, problems);
    let several = tables.len() > 1;
    let found: Vec<UpstreamConfig> = tables
        .iter()
        .enumerate()
        .filter_map(|(index, table)| upstream(table, if several { index + 1 } else { 0 }, path, problems))
        .collect();
    for (index, upstream) in found.iter().enumerate() {
        if let Some(first) = found[..index].iter().find(|other| other.name == upstream.name) {
            let message = format!("upstream name `{}` is taken by {}", upstream.name, first.place);
            problems.push(Problem::new(&upstream.place, message).hint("give each upstream its own name"));
        }
    }
    found
}

/// A table with the URL alone, filled from the file's table of the same URL.
fn with_file((place, values): &Table, in_file: &[Table]) -> Table {
    let url = |values: &BTreeMap<String, Written>| {
        let text = values.get("url")?.value.text()?;
        Some(text.trim().trim_end_matches('/').to_owned())
    };
    let same = in_file.iter().find(|(_, other)| url(other).is_some() && url(other) == url(values));
    let mut filled = same.map(|(_, other)| other.clone()).unwrap_or_default();
    filled.extend(values.clone());
    (place.clone(), filled)
}

/// Lays `WINDOWSILL_UPSTREAM_NAME` and the like over the upstream, if there is just one.
fn overlay(tables: &mut [Table], env: &Layer, problems: &mut Vec<Problem>) {
    // The address has made an upstream already.
    let given: Vec<(&str, &Written)> = KEYS
        .iter()
        .filter(|key| **key != "url")
        .filter_map(|key| env.values.get(&format!("upstream.{key}")).map(|written| (*key, written)))
        .collect();
    match tables {
        [(_, values)] => values.extend(given.into_iter().map(|(key, written)| (key.to_owned(), written.clone()))),
        _ => problems.extend(given.into_iter().map(|(_, written)| {
            let count = tables.len();
            Problem::new(&written.place, format!("`{}` is for a single upstream, and there are {count}", written.name))
                .hint("name one with --upstream or WINDOWSILL_UPSTREAM_URL, or use [[upstream]] in config.toml")
        })),
    }
}

/// Reads one upstream; `number` counts from 1 where there are several, for those without a name.
fn upstream(
    (place, values): &Table,
    number: usize,
    path: &dyn Fn(&Written) -> PathBuf,
    problems: &mut Vec<Problem>,
) -> Option<UpstreamConfig> {
    let before = problems.len();
    let name = match values.get("name") {
        Some(written) => written.read(name, problems).map(|name| name.value),
        None if number <= 1 => Some("local".to_owned()),
        None => Some(format!("local-{number}")),
    };
    let kind = match values.get("kind") {
        Some(written) => written.read(kind, problems).map(|kind| kind.value),
        None if values.contains_key("model") => Some(UpstreamKind::Embedded),
        None => Some(UpstreamKind::Auto),
    };
    let embedded = kind == Some(UpstreamKind::Embedded);
    if kind.is_some() {
        misplaced(values, embedded, problems);
    }
    let mut file = |key: &str| {
        let written = values.get(key)?;
        written.read(read::text, problems)?;
        Some(path(written))
    };
    let (model, chat_template_file) = (file("model"), file("chat_template_file"));
    let kv_type = values.get("kv_type").and_then(|written| written.read(cache_types, problems));
    let gpu_layers = values.get("gpu_layers").and_then(|written| written.read(gpu_layers, problems));
    let url = match values.get("url") {
        Some(written) if embedded => {
            let message = "`url` is the address of a server, and this is a model that windowsill serves itself";
            problems.push(Problem::new(&written.place, message).hint("leave `url` out, and name the file in `model`"));
            None
        }
        Some(written) => written.read(url, problems).map(|url| url.value),
        None if embedded => {
            if !values.contains_key("model") {
                let problem = Problem::new(place, "this upstream is to serve a model, and has no `model`");
                problems.push(problem.hint("for instance, model = \"~/models/qwen3-8b-q4_k_m.gguf\""));
            }
            Some(String::new())
        }
        None => {
            let problem = Problem::new(place, "this upstream has no `url`");
            problems.push(problem.hint("for instance, url = \"http://127.0.0.1:11434\""));
            None
        }
    };
    let api_key = values.get("api_key").and_then(|written| written.read(read::text, problems));
    let session_header = values.get("session_header").and_then(|written| written.read(session_header, problems));
    if problems.len() > before {
        return None;
    }
    Some(UpstreamConfig {
        name: name?,
        url: url?,
        model: model.map(|file| ModelConfig {
            file,
            chat_template_file,
            kv_type: kv_type.map(|types| types.value),
            gpu_layers: gpu_layers.and_then(|layers| layers.value),
        }),
        kind: kind?,
        api_key: api_key.map(|key| Secret::new(key.value)),
        session_header: session_header.map(|name| name.value),
        place: place.clone(),
    })
}

/// Says which keys belong to the other sort of upstream: to a server, or to a model that windowsill serves itself. `url` has words of
/// its own.
fn misplaced(values: &BTreeMap<String, Written>, embedded: bool, problems: &mut Vec<Problem>) {
    let keys: &[&str] = if embedded { &OF_SERVERS } else { &OF_MODELS };
    for (key, written) in keys.iter().filter_map(|key| Some((key, values.get(*key)?))) {
        let (message, hint) = match embedded {
            true => {
                ("is for a server, and this is a model that windowsill serves itself", format!("leave `{key}` out"))
            }
            false => (
                "is for what windowsill serves itself, and this is a server",
                "say kind = \"embedded\", or leave it out".into(),
            ),
        };
        problems.push(Problem::new(&written.place, format!("`{key}` {message}")).hint(hint));
    }
}

/// A name without a slash, so that `UPSTREAM/MODEL` is never in doubt.
fn name(value: &Value) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match read::text(value) {
        Ok(name) if name.chars().all(allowed) => Ok(name),
        _ => Err("must be a name of letters, digits, `-`, `_` and `.`".to_owned()),
    }
}

/// Headers that mean something else to every server.
const TAKEN: [&str; 9] = [
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "transfer-encoding",
    "x-api-key",
];

/// The name of a header that a conversation's id may stand in.
fn session_header(value: &Value) -> Result<String, String> {
    let wanted = "must be the name of a header, as in \"x-smg-routing-key\"";
    let name = read::text(value).map_err(|_| wanted.to_owned())?;
    let name = http::HeaderName::try_from(name.trim()).map_err(|_| wanted.to_owned())?;
    match TAKEN.contains(&name.as_str()) {
        true => Err(format!("{wanted}; `{name}` means something else to a server")),
        false => Ok(name.as_str().to_owned()),
    }
}

fn kind(value: &Value) -> Result<UpstreamKind, String> {
    Ok(match read::choice(value, &["auto", "ollama", "llama-server", "openai", "embedded"])? {
        "auto" => UpstreamKind::Auto,
        "ollama" => UpstreamKind::Ollama,
        "llama-server" => UpstreamKind::LlamaServer,
        "embedded" => UpstreamKind::Embedded,
        _ => UpstreamKind::OpenAi,
    })
}

fn cache_types(value: &Value) -> Result<CacheTypes, String> {
    let known = CacheTypes::KNOWN.join(", ");
    let wanted = format!("must be a type of a KV cache, or two of them, as in \"q8_0,q4_0\"; there are {known}");
    CacheTypes::named(&read::text(value).map_err(|_| wanted.clone())?).map_err(|_| wanted)
}

/// llama-server's words for `--gpu-layers`; a number may be a word, as of a flag.
fn gpu_layers(value: &Value) -> Result<Option<u32>, String> {
    let wanted = || "must be \"auto\", \"all\" or a number of layers".to_owned();
    match read::text(value).as_deref() {
        Ok("auto") => Ok(None),
        Ok("all") => Ok(Some(u32::MAX)),
        _ => value.whole().and_then(|n| u32::try_from(n).ok()).map(Some).ok_or_else(wanted),
    }
}

/// An `http` or `https` address.
pub(super) fn url(value: &Value) -> Result<String, String> {
    let wanted = "must be an address such as \"http://127.0.0.1:11434\"";
    let text = read::text(value).map_err(|_| wanted.to_owned())?;
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    if scheme.is_none() {
        return Err(format!("{wanted}\ndid you mean \"http://{text}\"?"));
    }
    let uri: http::Uri = text.parse().map_err(|error| format!("{wanted} ({error})"))?;
    let authority = uri.authority().ok_or_else(|| wanted.to_owned())?;
    if !matches!(scheme.as_deref(), Some("http" | "https")) {
        return Err(format!("{wanted}; only http and https are spoken"));
    }
    if authority.as_str().contains('@') {
        return Err("must not hold a user or password\nput the key in `api_key`".to_owned());
    }
    let bad_port = authority.port().is_some_and(|port| port.as_u16() == 0) || authority.as_str().ends_with(':');
    let unread_port =
        authority.port().is_none() && authority.as_str().rsplit(']').next().is_some_and(|rest| rest.contains(':'));
    if authority.host().is_empty() || bad_port || unread_port {
        return Err(wanted.to_owned());
    }
    if uri.query().is_some() || text.contains('#') {
        return Err("must end with its host, port and path".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}
