//! The clients that windowsill knows: how each is started for one run, and what its config needs for good. One row a client.

use std::path::PathBuf;

use windowsill::config::{Config, Environment};
use windowsill::plain;
use windowsill::proxy::running_models;

use crate::Failure;

/// How a client is pointed at windowsill. In the texts, `{root}` and `{base}` are the address without and with `/v1`,
/// `{model}` and `{key}` are as they are, `{model!}` and `{key!}` are JSON strings, `{ours!}` and `{openai!}` are the model's
/// name with `windowsill/` or `openai/` before it as JSON strings, and `{file}` is the temporary file.
pub(crate) struct Client {
    pub(crate) name: &'static str,
    pub(crate) program: &'static str,
    /// Variables that are set for one run.
    pub(crate) set: &'static [(&'static str, &'static str)],
    /// Variables that would point it elsewhere.
    pub(crate) unset: &'static [&'static str],
    pub(crate) arguments: &'static [&'static str],
    /// Ending and text of a file that it reads for one run.
    pub(crate) file: Option<(&'static str, &'static str)>,
    /// What `wrap` writes.
    pub(crate) configs: &'static [Written],
    /// What a person still has to do once it is wrapped.
    pub(crate) then: &'static str,
}

/// A config file of a client, and what it holds once the client is wrapped.
pub(crate) struct Written {
    /// A variable that names its folder.
    pub(crate) variable: &'static str,
    /// The folder below the home where the variable is not set.
    pub(crate) folder: &'static str,
    /// Names that it may have there: the first that exists, else the last.
    pub(crate) names: &'static [&'static str],
    pub(crate) format: Format,
    /// The settings, as JSON. A name that ends in `?` is set only where it is missing.
    pub(crate) settings: &'static str,
    /// Whether the client has to have made it: windowsill does not know all that must stand in it.
    pub(crate) made_by_client: bool,
}

/// How a config file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON, perhaps with comments.
    Json,
    Toml,
    Yaml,
    /// `NAME=value`, a line each.
    Dotenv,
}

impl Written {
    const fn new(
        place: (&'static str, &'static str),
        names: &'static [&'static str],
        format: Format,
        settings: &'static str,
    ) -> Written {
        Written { variable: place.0, folder: place.1, names, format, settings, made_by_client: false }
    }

    /// Where it is, or would be.
    pub(crate) fn path(&self, environment: &Environment) -> Result<PathBuf, Failure> {
        let folder = environment
            .xdg(self.variable, self.folder)
            .ok_or_else(|| Failure::Usage("your home folder is unknown\n  hint: set HOME".into()))?;
        let mut paths = self.names.iter().map(|name| folder.join(name));
        let exists = paths.clone().find(|path| path.symlink_metadata().is_ok());
        Ok(exists.or_else(|| paths.next_back()).unwrap_or(folder))
    }
}

/// The variables of clients that speak OpenAI's API.
const OPENAI: &[(&str, &str)] = &[("OPENAI_API_BASE", "{base}"), ("OPENAI_API_KEY", "{key}")];

/// Where mini-swe-agent keeps its settings.
const MINI: &str =
    if cfg!(target_os = "macos") { "Library/Application Support/mini-swe-agent" } else { ".config/mini-swe-agent" };

/// A client that needs nothing of all this.
const PLAIN: Client =
    Client { name: "", program: "", set: &[], unset: &[], arguments: &[], file: None, configs: &[], then: "" };

/// One row a client; see `docs/clients.md` for where these settings are from.
pub(crate) const CLIENTS: &[Client] = &[
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
            // Both change with each request: a count of the tokens left, and a checksum before the system prompt. `ollama launch
            // claude` switches them off, too.
            ("CLAUDE_CODE_TOTAL_TOKENS_REMINDER", "off"),
            ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0"),
        ],
        unset: &["ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"],
        configs: &[Written::new(
            ("CLAUDE_CONFIG_DIR", ".claude"),
            &["settings.json"],
            Format::Json,
            r#"{"env": {"ANTHROPIC_BASE_URL": "{root}", "ANTHROPIC_AUTH_TOKEN": {key!}, "ANTHROPIC_MODEL": {model!}, "ANTHROPIC_DEFAULT_HAIKU_MODEL": {model!}, "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4096", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off", "CLAUDE_CODE_ATTRIBUTION_HEADER": "0"}}"#,
        )],
        ..PLAIN
    },
    Client {
        name: "codex",
        program: "codex",
        set: &[("WINDOWSILL_KEY", "{key}")],
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
        configs: &[Written::new(
            ("CODEX_HOME", ".codex"),
            &["config.toml"],
            Format::Toml,
            r#"{"model": {model!}, "model_provider": "windowsill", "model_context_window": 131072, "model_providers": {"windowsill": {"name": "windowsill", "base_url": "{base}", "wire_api": "responses", "http_headers": {"Authorization": {bearer!}}}}}"#,
        )],
        ..PLAIN
    },
    Client {
        name: "opencode",
        program: "opencode",
        set: &[(
            "OPENCODE_CONFIG_CONTENT",
            r#"{"model":{ours!},"provider":{"windowsill":{"npm":"@ai-sdk/openai-compatible","name":"windowsill","options":{"baseURL":"{base}","apiKey":{key!}},"models":{{model!}:{"tool_call":true,"limit":{"context":131072,"output":4096}}}}}}"#,
        )],
        configs: &[Written::new(
            ("XDG_CONFIG_HOME", ".config"),
            &["opencode/opencode.jsonc", "opencode/opencode.json"],
            Format::Json,
            r#"{"model": {ours!}, "provider": {"windowsill": {"npm": "@ai-sdk/openai-compatible", "name": "windowsill", "options": {"baseURL": "{base}", "apiKey": {key!}}, "models": {{model!}: {"tool_call": true, "limit": {"context": 131072, "output": 4096}}}}}}"#,
        )],
        ..PLAIN
    },
    Client {
        name: "aider",
        program: "aider",
        set: OPENAI,
        // It summarizes by itself what is older than so many tokens.
        arguments: &["--model", "openai/{model}", "--max-chat-history-tokens", "100000"],
        configs: &[Written::new(
            ("", ""),
            &[".aider.conf.yml"],
            Format::Yaml,
            r#"{"model": {openai!}, "openai-api-base": "{base}", "openai-api-key": {key!}, "max-chat-history-tokens": 100000}"#,
        )],
        ..PLAIN
    },
    Client {
        name: "continue",
        program: "cn",
        arguments: &["--config", "{file}"],
        file: Some((
            ".yaml",
            "name: local\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: local\n    provider: openai\n    model: {model!}\n    \
             apiBase: {base}\n    apiKey: {key!}\n    roles: [chat]\n    capabilities: [tool_use]\n    \
             defaultCompletionOptions: {contextLength: 131072, maxTokens: 4096}\n",
        )),
        configs: &[Written::new(
            ("CONTINUE_GLOBAL_DIR", ".continue"),
            &["config.yaml"],
            Format::Yaml,
            r#"{"name?": "local", "version?": "1.0.0", "schema?": "v1", "models": [{"name": "windowsill", "provider": "openai", "model": {model!}, "apiBase": "{base}", "apiKey": {key!}, "roles": ["chat"], "capabilities": ["tool_use"], "defaultCompletionOptions": {"contextLength": 131072, "maxTokens": 4096}}]}"#,
        )],
        ..PLAIN
    },
    Client {
        name: "qwen",
        program: "qwen",
        set: &[("OPENAI_BASE_URL", "{base}"), ("OPENAI_API_KEY", "{key}"), ("OPENAI_MODEL", "{model}")],
        arguments: &["--auth-type", "openai"],
        configs: &[Written::new(
            ("", ".qwen"),
            &["settings.json"],
            Format::Json,
            r#"{"modelProviders": {"openai": [{"id": {model!}, "name": "windowsill", "baseUrl": "{base}", "envKey": "WINDOWSILL_KEY", "generationConfig": {"contextWindowSize": 131072}}]}, "env": {"WINDOWSILL_KEY": {key!}}, "security": {"auth": {"selectedType": "openai"}}, "model": {"name": {model!}}}"#,
        )],
        ..PLAIN
    },
    Client {
        name: "mini",
        program: "mini",
        set: &[("OPENAI_API_BASE", "{base}"), ("OPENAI_API_KEY", "{key}"), ("MSWEA_COST_TRACKING", "ignore_errors")],
        arguments: &["-m", "openai/{model}"],
        configs: &[Written::new(
            ("MSWEA_GLOBAL_CONFIG_DIR", MINI),
            &[".env"],
            Format::Dotenv,
            r#"{"MSWEA_CONFIGURED": "true", "MSWEA_MODEL_NAME": {openai!}, "OPENAI_API_BASE": "{base}", "OPENAI_API_KEY": {key!}, "MSWEA_COST_TRACKING": "ignore_errors"}"#,
        )],
        ..PLAIN
    },
    Client {
        name: "cline",
        program: "cline",
        set: &[("CLINE_PROVIDER_SETTINGS_PATH", "{file}")],
        file: Some((".json", CLINE)),
        configs: &[Written::new(("CLINE_DIR", ".cline"), &["data/settings/providers.json"], Format::Json, CLINE)],
        ..PLAIN
    },
    Client {
        name: "kimi",
        program: "kimi",
        set: &[
            ("KIMI_MODEL_NAME", "{model}"),
            ("KIMI_MODEL_PROVIDER_TYPE", "openai"),
            ("KIMI_MODEL_BASE_URL", "{base}"),
            ("KIMI_MODEL_API_KEY", "{key}"),
            ("KIMI_MODEL_MAX_CONTEXT_SIZE", "131072"),
        ],
        configs: &[Written::new(
            ("KIMI_CODE_HOME", ".kimi-code"),
            &["config.toml"],
            Format::Toml,
            r#"{"default_model": "windowsill", "models": {"windowsill": {"provider": "windowsill", "model": {model!}, "max_context_size": 131072}}, "providers": {"windowsill": {"type": "openai", "base_url": "{base}", "api_key": {key!}}}}"#,
        )],
        ..PLAIN
    },
    Client {
        name: "pi",
        program: "pi",
        arguments: &["--extension", "{file}", "--provider", "windowsill", "--model", "{model}"],
        file: Some((
            ".ts",
            r#"export default function (pi) { pi.registerProvider("windowsill", {"baseUrl": "{base}", "apiKey": {key!}, "api": "openai-completions", "models": [{"id": {model!}, "name": {model!}, "reasoning": false, "input": ["text"], "contextWindow": 131072, "maxTokens": 4096, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}]}); }"#,
        )),
        configs: &[
            Written::new(
                ("PI_CODING_AGENT_DIR", ".pi/agent"),
                &["models.json"],
                Format::Json,
                r#"{"providers": {"windowsill": {"baseUrl": "{base}", "apiKey": {key!}, "api": "openai-completions", "models": [{"id": {model!}, "name": {model!}, "reasoning": false, "input": ["text"], "contextWindow": 131072, "maxTokens": 4096, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}]}}}"#,
            ),
            Written::new(
                ("PI_CODING_AGENT_DIR", ".pi/agent"),
                &["settings.json"],
                Format::Json,
                r#"{"defaultProvider": "windowsill", "defaultModel": {model!}}"#,
            ),
        ],
        ..PLAIN
    },
    Client {
        name: "hermes",
        program: "hermes",
        set: &[("CUSTOM_BASE_URL", "{base}"), ("OPENAI_API_KEY", "{key}")],
        arguments: &["--provider", "custom", "--model", "{model}"],
        configs: &[Written::new(
            ("HERMES_HOME", ".hermes"),
            &["config.yaml"],
            Format::Yaml,
            r#"{"model": {"default": {model!}, "provider": "custom", "base_url": "{base}", "api_key": {key!}}}"#,
        )],
        ..PLAIN
    },
    Client {
        name: "goose",
        program: "goose",
        set: &[
            ("GOOSE_PROVIDER", "openai"),
            ("GOOSE_MODEL", "{model}"),
            ("OPENAI_HOST", "{root}"),
            ("OPENAI_BASE_PATH", "v1/chat/completions"),
            ("OPENAI_API_KEY", "{key}"),
        ],
        configs: &[Written::new(
            ("XDG_CONFIG_HOME", ".config"),
            &["goose/config.yaml"],
            Format::Yaml,
            r#"{"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": {model!}, "OPENAI_HOST": "{root}", "OPENAI_BASE_PATH": "v1/chat/completions"}"#,
        )],
        then: "goose takes its key from the environment: OPENAI_API_KEY=none goose",
        ..PLAIN
    },
    Client {
        name: "openhands",
        program: "openhands",
        set: &[("LLM_MODEL", "openai/{model}"), ("LLM_BASE_URL", "{base}"), ("LLM_API_KEY", "{key}")],
        arguments: &["--override-with-envs"],
        configs: &[Written {
            made_by_client: true,
            ..Written::new(
                ("OPENHANDS_PERSISTENCE_DIR", ".openhands"),
                &["agent_settings.json"],
                Format::Json,
                r#"{"llm": {"model": {openai!}, "base_url": "{base}", "api_key": {key!}}}"#,
            )
        }],
        ..PLAIN
    },
    Client {
        name: "vibe",
        program: "vibe",
        set: &[
            ("WINDOWSILL_KEY", "{key}"),
            ("VIBE_ACTIVE_MODEL", "windowsill"),
            (
                "VIBE_PROVIDERS",
                r#"[{"name": "windowsill", "api_base": "{base}", "api_key_env_var": "WINDOWSILL_KEY", "api_style": "openai", "backend": "generic"}]"#,
            ),
            ("VIBE_MODELS", r#"[{"name": {model!}, "provider": "windowsill", "alias": "windowsill"}]"#),
        ],
        configs: &[
            Written::new(
                ("VIBE_HOME", ".vibe"),
                &["config.toml"],
                Format::Toml,
                r#"{"active_model": "windowsill", "providers": [{"name": "windowsill", "api_base": "{base}", "api_key_env_var": "WINDOWSILL_KEY", "api_style": "openai", "backend": "generic"}], "models": [{"name": {model!}, "provider": "windowsill", "alias": "windowsill"}]}"#,
            ),
            Written::new(("VIBE_HOME", ".vibe"), &[".env"], Format::Dotenv, r#"{"WINDOWSILL_KEY": {key!}}"#),
        ],
        ..PLAIN
    },
    Client {
        name: "gptme",
        program: "gptme",
        set: &[("OPENAI_BASE_URL", "{base}"), ("OPENAI_API_KEY", "{key}")],
        unset: &["OPENAI_API_BASE"],
        arguments: &["--model", "local/{model}"],
        configs: &[Written::new(
            ("XDG_CONFIG_HOME", ".config"),
            &["gptme/config.toml"],
            Format::Toml,
            r#"{"prompt?": {}, "env": {"MODEL": {ours!}}, "providers": [{"name": "windowsill", "base_url": "{base}", "api_key": {key!}, "default_model": {model!}}]}"#,
        )],
        ..PLAIN
    },
];

/// Cline's providers.
const CLINE: &str = r#"{"version": 1, "lastUsedProvider": "openai-compatible", "modes": {}, "providers": {"openai-compatible": {"settings": {"provider": "openai-compatible", "apiKey": {key!}, "model": {model!}, "baseUrl": "{base}"}, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}}}"#;

/// What the places in a client's texts stand for.
#[derive(Clone)]
pub(crate) struct Places {
    pub(crate) root: String,
    pub(crate) model: String,
    pub(crate) key: String,
    pub(crate) file: String,
}

impl Places {
    /// Those of this proxy, with a model that is named or the first that the running proxy lists. `None` stands for a proxy
    /// that does not run: then the model has to be named.
    pub(crate) fn of(config: &Config, model: Option<&str>, listed: Option<Vec<String>>) -> Result<Places, Failure> {
        let listed = listed.unwrap_or_default();
        let model = model.or(listed.first().map(String::as_str)).ok_or_else(|| {
            Failure::Bad("the server lists no model\n  hint: load or pull one, or name it with --model".into())
        })?;
        if listed.iter().any(|name| name == model) {
            is_plain(model)?;
        }
        let model = model.to_owned();
        let key = config.api_key.as_ref().map_or_else(|| "none".to_owned(), |key| key.expose().to_owned());
        Ok(Places { root: format!("http://{}", reachable(config)), model, key, file: String::new() })
    }

    /// Fills a text in one pass: what is put in is not looked at again.
    pub(crate) fn fill(&self, text: &str) -> String {
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
            "{openai!}" => quoted(&format!("openai/{}", self.model)),
            "{key}" => self.key.clone(),
            "{key!}" => quoted(&self.key),
            "{bearer!}" => quoted(&format!("Bearer {}", self.key)),
            "{file}" => self.file.clone(),
            _ => return None,
        })
    }
}

/// Refuses a name of the server's that a client would read as more than a name: clients put in for such characters what files and
/// variables of the user hold, and send it along.
fn is_plain(model: &str) -> Result<(), Failure> {
    let odd = |c: &char| !plain::is_harmless(*c) || r#"{}$%"'`\"#.contains(*c);
    let what = match model.chars().find(odd) {
        Some(odd) => format!("the character `{}`", odd.escape_debug()),
        // Else it would be an option of the client's.
        None if model.starts_with('-') => "a `-` at its beginning".to_owned(),
        None => return Ok(()),
    };
    Err(Failure::Bad(format!(
        "the server calls a model `{}`: {what} may mean more to a client than a name does\n  hint: give the model a plain name (Ollama: \
         `ollama cp`; llama-server: `--alias`), or name another with --model",
        plain::line(model)
    )))
}

/// A client by its name or its program's.
pub(crate) fn find(name: &str) -> Result<&'static Client, Failure> {
    CLIENTS.iter().find(|client| client.name == name || client.program == name).ok_or_else(|| {
        let names: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
        Failure::Usage(format!(
            "`{}` is no client that windowsill knows; there are {}\n  hint: point others at http://127.0.0.1:8484/v1 (or where `listen` says), those that speak Anthropic's or Ollama's API at the same \
             without /v1; the key is the config's `api_key`, or any word where it has none",
            name.escape_debug(),
            names.join(", ")
        ))
    })
}

/// Where a client on this machine reaches the proxy: one that listens everywhere listens on loopback too.
pub(crate) fn reachable(config: &Config) -> std::net::SocketAddr {
    let mut address = config.listen;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

/// The models that the running proxy lists.
pub(crate) fn models(runtime: &tokio::runtime::Runtime, config: &Config) -> Result<Vec<String>, Failure> {
    let key = config.api_key.as_ref().map(|key| key.expose());
    Ok(runtime.block_on(running_models(&reachable(config).to_string(), key))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        let model = "a \"b\" {key} {base} \\ 8b".to_owned();
        Places { root: "http://127.0.0.1:1".into(), model, key: "k".into(), file: String::new() }
    }

    #[test]
    fn what_is_json_stays_json_whatever_the_models_name() {
        let places = places();
        let opencode = find("opencode").ok().unwrap();
        let config: serde_json::Value = serde_json::from_str(&places.fill(opencode.set[0].1)).unwrap();
        assert_eq!(config["provider"]["windowsill"]["options"]["baseURL"], "http://127.0.0.1:1/v1");
        assert_eq!(config["model"], "windowsill/a \"b\" {key} {base} \\ 8b", "what is put in is not filled again");
        for client in CLIENTS {
            for written in client.configs {
                let settings = serde_json::from_str::<serde_json::Value>(&places.fill(written.settings));
                assert!(settings.is_ok_and(|s| s.is_object()), "{}: {}", client.name, written.settings);
            }
        }
    }

    #[test]
    fn a_name_of_the_servers_that_means_more_to_clients_is_refused() {
        let of = |model: Option<&str>, listed: &[&str]| {
            let listed = listed.iter().map(|name| (*name).to_owned()).collect();
            Places::of(&windowsill::config::defaults(&Default::default()).unwrap(), model, Some(listed))
                .map(|places| places.model)
                .map_err(|failure| match failure {
                    Failure::Bad(why) | Failure::Usage(why) => why,
                })
        };
        for name in ["qwen3:8b", "hf.co/unsloth/Qwen3-8B-GGUF:Q4_K_M", "/models/a b+c~1@v2.gguf", "模型", "é"] {
            assert_eq!(of(None, &[name]).as_deref(), Ok(name));
        }
        for name in [
            "{file:~/.ssh/id_test}",
            "m${SECRET}",
            "$SECRET",
            "%USERPROFILE%",
            "${{ secrets.KEY }}",
            "a\"b",
            "a'b",
            "`id`",
            r"a\b",
            "a\nb",
            "a\u{1b}[31m",
            "a\u{202e}b",
            "a\u{9b}b",
            "--config=/tmp/x",
        ] {
            let why = of(None, &[name]).unwrap_err();
            assert!(
                why.contains("--alias")
                    && why.lines().count() == 2
                    && why.chars().all(|c| c == '\n' || plain::is_harmless(c)),
                "{why}"
            );
            assert_eq!(of(Some(name), &["m", name]).unwrap_err(), why, "also where it is named");
            // What a person calls a model and no server does is that person's.
            assert_eq!(of(Some(name), &["m"]).as_deref(), Ok(name));
        }
    }

    #[test]
    fn every_client_is_found_by_its_name_and_its_program() {
        for client in CLIENTS {
            assert_eq!(find(client.name).ok().unwrap().name, client.name);
            assert_eq!(find(client.program).ok().unwrap().program, client.program);
            assert!(!client.configs.is_empty(), "{} cannot be wrapped", client.name);
        }
        assert!(matches!(find("emacs"), Err(Failure::Usage(_))));
    }
}
