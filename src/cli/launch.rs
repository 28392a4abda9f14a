//! `windowsill launch`: starts a client that is pointed at the running windowsill, for this run alone. Nothing of the
//! client's own settings is changed: all it needs goes by environment, arguments and, for some, a temporary file.

use std::io::Write as _;
use std::process::{Command, ExitCode};

use clap::Args;
use windowsill::config::Config;
use windowsill::proxy::running_models;

use crate::{Failure, note, runtime};

#[derive(Args)]
pub(crate) struct Launch {
    /// The client: claude, codex, opencode, aider, continue, qwen or mini.
    client: String,
    /// The model, as `GET /v1/models` lists it. Default: the first one.
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// Arguments for the client.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// How a client is pointed at windowsill. In the texts, `{root}` and `{base}` are the address without and with `/v1`,
/// `{model}` and `{key}` are as they are, `{model!}` and `{key!}` are JSON strings, `{ours!}` is the model's name with
/// `windowsill/` before it as a JSON string, and `{file}` is the temporary file.
struct Client {
    name: &'static str,
    program: &'static str,
    /// Variables that are set.
    set: &'static [(&'static str, &'static str)],
    /// Variables that would point it elsewhere.
    unset: &'static [&'static str],
    arguments: &'static [&'static str],
    /// Ending and text of a file that it reads.
    file: Option<(&'static str, &'static str)>,
}

/// The variables of clients that speak OpenAI's API.
const OPENAI: &[(&str, &str)] = &[("OPENAI_API_BASE", "{base}"), ("OPENAI_API_KEY", "{key}")];

/// One entry a client; see `docs/clients.md` for where these settings are from.
const CLIENTS: &[Client] = &[
    Client {
        name: "claude",
        program: "claude",
        set: &[
            ("ANTHROPIC_BASE_URL", "{root}"),
            ("ANTHROPIC_AUTH_TOKEN", "{key}"),
            ("ANTHROPIC_MODEL", "{model}"),
            ("ANTHROPIC_DEFAULT_HAIKU_MODEL", "{model}"),
            // It asks for 32,000 tokens of reply otherwise, more than most local windows hold.
            ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "4096"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ],
        unset: &["ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"],
        arguments: &[],
        file: None,
    },
    Client {
        name: "codex",
        program: "codex",
        set: &[("WINDOWSILL_KEY", "{key}")],
        unset: &[],
        arguments: &[
            "-c",
            "model_provider=\"windowsill\"",
            "-c",
            "model_providers.windowsill={name=\"windowsill\",base_url=\"{base}\",wire_api=\"responses\",env_key=\"WINDOWSILL_KEY\"}",
            "-c",
            "model_context_window=131072",
            "-c",
            "model={model!}",
        ],
        file: None,
    },
    Client {
        name: "opencode",
        program: "opencode",
        set: &[(
            "OPENCODE_CONFIG_CONTENT",
            r#"{"model":{ours!},"provider":{"windowsill":{"npm":"@ai-sdk/openai-compatible","name":"windowsill","options":{"baseURL":"{base}","apiKey":{key!}},"models":{{model!}:{"tool_call":true,"limit":{"context":131072,"output":4096}}}}}}"#,
        )],
        unset: &[],
        arguments: &[],
        file: None,
    },
    Client {
        name: "aider",
        program: "aider",
        set: OPENAI,
        unset: &[],
        // It summarizes by itself what is older than so many tokens.
        arguments: &["--model", "openai/{model}", "--max-chat-history-tokens", "100000"],
        file: None,
    },
    Client {
        name: "continue",
        program: "cn",
        set: &[],
        unset: &[],
        arguments: &["--config", "{file}"],
        file: Some((
            ".yaml",
            "name: local\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: local\n    provider: openai\n    model: {model!}\n    \
             apiBase: {base}\n    apiKey: {key!}\n    roles: [chat]\n    capabilities: [tool_use]\n    \
             defaultCompletionOptions: {contextLength: 131072, maxTokens: 4096}\n",
        )),
    },
    Client {
        name: "qwen",
        program: "qwen",
        set: &[("OPENAI_BASE_URL", "{base}"), ("OPENAI_API_KEY", "{key}"), ("OPENAI_MODEL", "{model}")],
        unset: &[],
        arguments: &["--auth-type", "openai"],
        file: None,
    },
    Client {
        name: "mini",
        program: "mini",
        set: &[("OPENAI_API_BASE", "{base}"), ("OPENAI_API_KEY", "{key}"), ("MSWEA_COST_TRACKING", "ignore_errors")],
        unset: &[],
        arguments: &["-m", "openai/{model}"],
        file: None,
    },
];

/// What the places in a client's texts stand for.
struct Places {
    root: String,
    model: String,
    key: String,
    file: String,
}

impl Places {
    /// Fills a text in one pass: what is put in is not looked at again.
    fn fill(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            let name = rest.find('}').map_or("", |end| &rest[..=end]);
            match self.place(name) {
                Some(value) => {
                    out.push_str(&value);
                    rest = &rest[name.len()..];
                }
                None => {
                    out.push('{');
                    rest = &rest[1..];
                }
            }
        }
        out + rest
    }

    fn place(&self, name: &str) -> Option<String> {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        Some(match name {
            "{root}" => self.root.clone(),
            "{base}" => format!("{}/v1", self.root),
            "{model}" => self.model.clone(),
            "{model!}" => quoted(&self.model),
            "{ours!}" => quoted(&format!("windowsill/{}", self.model)),
            "{key}" => self.key.clone(),
            "{key!}" => quoted(&self.key),
            "{file}" => self.file.clone(),
            _ => return None,
        })
    }
}

/// Starts the client, waits for it, and ends with its exit code.
pub(crate) fn run(config: &Config, of: &Launch) -> Result<ExitCode, Failure> {
    let client = find(&of.client)?;
    let runtime = runtime()?;
    // Asked also where the model is named: a client in front of nothing would fail in its own words.
    let models = models(&runtime, config)?;
    let model = of.model.clone().or_else(|| models.into_iter().next()).ok_or_else(|| {
        Failure::Bad("the server lists no model\n  hint: load or pull one, or name it with --model".into())
    })?;
    let key = config.api_key.as_ref().map_or_else(|| "none".to_owned(), |key| key.expose().to_owned());
    let mut places = Places { root: format!("http://{}", reachable(config)), model, key, file: String::new() };
    // Kept until the client has ended.
    let file = client.file.map(|(ending, text)| temporary(ending, &places.fill(text))).transpose()?;
    if let Some(file) = &file {
        places.file = file.path().display().to_string();
    }
    note(&format!("{} goes through {} with the model {}", client.name, places.root, places.model));
    let mut command = Command::new(client.program);
    for name in client.unset {
        command.env_remove(name);
    }
    command.envs(client.set.iter().map(|(name, text)| (name, places.fill(text))));
    command.args(client.arguments.iter().map(|text| places.fill(text))).args(&of.arguments);
    let _entered = runtime.enter();
    let _signals = signals_are_the_clients()?;
    let status = command.status().map_err(|e| {
        let hint = format!("install {} first, so that `{}` is in your PATH", client.name, client.program);
        Failure::Bad(format!("{} cannot be started: {e}\n  hint: {hint}", client.program))
    })?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn find(name: &str) -> Result<&'static Client, Failure> {
    CLIENTS.iter().find(|client| client.name == name || client.program == name).ok_or_else(|| {
        let names: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
        Failure::Usage(format!(
            "`{}` is no client that can be launched; there are {}\n  hint: docs/clients.md says how to set up others",
            name.escape_debug(),
            names.join(", ")
        ))
    })
}

/// Where a client on this machine reaches the proxy: one that listens everywhere listens on loopback too.
fn reachable(config: &Config) -> std::net::SocketAddr {
    let mut address = config.listen;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

fn models(runtime: &tokio::runtime::Runtime, config: &Config) -> Result<Vec<String>, Failure> {
    let key = config.api_key.as_ref().map(|key| key.expose());
    Ok(runtime.block_on(running_models(&reachable(config).to_string(), key))?)
}

/// While this is kept, Ctrl-C and Ctrl-\\ end the client, if it wants that, and not this process, which waits for it and then
/// removes its file. The client itself starts with the usual reactions.
#[cfg(unix)]
fn signals_are_the_clients() -> Result<[tokio::signal::unix::Signal; 2], Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    Ok([signal(SignalKind::interrupt())?, signal(SignalKind::quit())?])
}

#[cfg(not(unix))]
fn signals_are_the_clients() -> Result<(), Failure> {
    Ok(())
}

fn temporary(ending: &str, text: &str) -> Result<tempfile::NamedTempFile, Failure> {
    let mut file = tempfile::Builder::new().prefix("windowsill-").suffix(ending).tempfile()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_json_stays_json_whatever_the_models_name() {
        let model = "a \"b\" {key} {base} \\ 8b".to_owned();
        let places = Places { root: "http://127.0.0.1:1".into(), model, key: "k".into(), file: String::new() };
        let opencode = find("opencode").ok().unwrap();
        let config: serde_json::Value = serde_json::from_str(&places.fill(opencode.set[0].1)).unwrap();
        assert_eq!(config["provider"]["windowsill"]["options"]["baseURL"], "http://127.0.0.1:1/v1");
        assert_eq!(config["model"], "windowsill/a \"b\" {key} {base} \\ 8b", "what is put in is not filled again");
    }

    #[test]
    fn every_client_is_found_by_its_name_and_its_program() {
        for client in CLIENTS {
            assert_eq!(find(client.name).ok().unwrap().name, client.name);
            assert_eq!(find(client.program).ok().unwrap().program, client.program);
        }
        assert!(matches!(find("emacs"), Err(Failure::Usage(_))));
    }
}
