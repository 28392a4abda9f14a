//! `windowsill plan` and `count`: what would be done to a request, and what its prompt costs. Nothing is sent.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};
use windowsill::config::{self, Config, UpstreamConfig, UpstreamKind};
use windowsill::plain;
use windowsill::proxy::{self, App, ask_running, know_counts, plan_file};

use super::paint::{grouped_in, tokens};
use crate::{Failure, out, out_json, runtime};

/// How long a running proxy may take to say what it serves.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(crate) struct OfFile {
    /// A chat request, {"messages": …} or an array of messages; - for standard input.
    file: PathBuf,
    /// The model, where the file names none or another is meant.
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The running proxy as the server of a dry run, where the config names none: it passes questions on to the servers that it found,
/// or was started with. `None` where no proxy runs, or it serves nothing.
async fn behind_the_proxy(config: &Config, model: &str) -> Option<UpstreamConfig> {
    if config.listen.port() == 0 {
        return None;
    }
    let address = config.listen.to_string();
    let key = config.api_key.as_ref().map(|key| key.expose());
    let asked = ask_running(&address, key, http::Method::GET, "/windowsill/models", None);
    let answer = tokio::time::timeout(PATIENCE, asked).await.ok()?.ok()?;
    let served: Vec<&Value> = answer["models"].as_array()?.iter().filter(|entry| entry["kind"].is_string()).collect();
    let entry = served.iter().find(|entry| entry["model"] == model).or(served.first())?;
    let kind = match entry["kind"].as_str()? {
        "ollama" => UpstreamKind::Ollama,
        "llama-server" | "llama-server-router" | "embedded" => UpstreamKind::LlamaServer,
        _ => UpstreamKind::OpenAi,
    };
    Some(UpstreamConfig {
        // What was counted there is known by this name.
        name: entry["upstream"].as_str().unwrap_or("windowsill").to_owned(),
        url: format!("http://{address}"),
        model: None,
        kind,
        api_key: config.api_key.clone(),
        session_header: None,
        place: "the running windowsill".to_owned(),
    })
}

/// What is asked of a request that is not sent.
#[derive(Clone, Copy)]
enum About {
    Plan,
    Counts,
}

fn dry_run(mut config: Config, of: &OfFile, about: About) -> Result<Value, Failure> {
    let bytes = if of.file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes)?;
        bytes
    } else {
        std::fs::read(&of.file).map_err(|e| Failure::Usage(format!("failed to read {}: {e}", of.file.display())))?
    };
    let body = plan_file(Bytes::from(bytes))?;
    let scratch = config::scratch_dir();
    let report = runtime()?.block_on(async {
        if config.upstreams.is_empty() {
            let named =
                serde_json::from_slice::<Value>(&body).ok().and_then(|body| body["model"].as_str().map(str::to_owned));
            let model = of.model.clone().or(named).unwrap_or_default();
            config.upstreams.extend(behind_the_proxy(&config, &model).await);
        }
        let data_dir = config.data_dir.clone();
        let app = Arc::new(App::start_dry(config, &scratch).await?);
        know_counts(&app, &data_dir);
        let report = match about {
            About::Plan => proxy::dry_run(&app, body, of.model.as_deref()).await,
            About::Counts => proxy::count(&app, body, of.model.as_deref()).await,
        };
        app.close().await;
        report
    });
    let _ = std::fs::remove_dir_all(&scratch);
    Ok(report?)
}

/// Prints what would be done to a request, and why.
pub(crate) fn show_plan(config: Config, of: &OfFile) -> Result<ExitCode, Failure> {
    let report = dry_run(config, of, About::Plan)?;
    if of.json {
        out_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text =
        |key: &str| plain::line(report[key].as_str().filter(|s| !s.is_empty()).unwrap_or("not named")).into_owned();
    let number = |value: &Value| if value.is_u64() { tokens(value) } else { "unknown".to_owned() };
    let mut page = format!(
        "model    {}\nwindow   {} ({})\nprofile  {}\naction   {}\n\n{:<16}{:>12}{:>12}\n",
        text("model"),
        number(&report["window"]),
        text("window_source"),
        text("profile"),
        text("action"),
        "region",
        "before",
        "after"
    );
    for region in ["system", "tools", "brief", "history", "media", "prompt", "output_reserved"] {
        page +=
            &format!("{region:<16}{:>12}{:>12}\n", number(&report["before"][region]), number(&report["after"][region]));
    }
    page += &format!("\nprompt tokens as forwarded: {} ({})\n", number(&report["prompt_tokens"]), text("source"));
    for why in report["because"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        page += &format!("- {}\n", grouped_in(&plain::line(why)));
    }
    for why in report["waits"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        page += &format!("- {}\n", grouped_in(&plain::line(why)));
    }
    out(&page)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what a request takes, by region.
pub(crate) fn show_counts(config: Config, of: &OfFile) -> Result<ExitCode, Failure> {
    let report = dry_run(config, of, About::Counts)?;
    let regions = &report["regions"];
    if of.json {
        let mut shown = regions.clone();
        if let Some(map) = shown.as_object_mut() {
            map.remove("prompt");
            map.remove("output_reserved");
        }
        out_json(&json!({"total": regions["prompt"], "regions": shown, "source": report["source"]}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let number = |value: &Value| if value.is_u64() { tokens(value) } else { "0".to_owned() };
    let mut page = String::new();
    for region in ["system", "tools", "brief", "history", "media"] {
        page += &format!("{region:<10}{:>12}\n", number(&regions[region]));
    }
    page +=
        &format!("{:<10}{:>12}  ({})\n", "total", number(&regions["prompt"]), report["source"].as_str().unwrap_or(""));
    out(&page)?;
    Ok(ExitCode::SUCCESS)
}
