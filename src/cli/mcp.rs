//! `windowsill mcp`: the agent's tools as a server of the Model Context Protocol over standard input and output, a message a line.
//! Only the protocol's messages are written to stdout; it ends when stdin does.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use windowsill::config::{Config, LogConfig, LogFormat};
use windowsill::proxy::mcp::{self, Agent, Protocol};

use crate::{Failure, runtime};

/// The longest line that is read (bytes).
const LONGEST: u64 = 16 << 20;

#[derive(Args)]
pub(crate) struct Mcp {
    /// Open this conversation and no other.
    #[arg(long, value_name = "ID", conflicts_with = "all_conversations")]
    conversation: Option<String>,
    /// Let the agent list and search all conversations, not only those that it can name.
    #[arg(long)]
    all_conversations: bool,
}

/// Serves until stdin ends.
pub(crate) fn run(config: &Config, of: Mcp) -> Result<ExitCode, Failure> {
    // Quiet unless asked: clients show what a server writes to stderr.
    let filter = if config.log.filter == "info" { "warn" } else { &config.log.filter };
    super::log::begin(&LogConfig { format: LogFormat::Text, filter: filter.to_owned(), telemetry: None })?;
    let protocol = Protocol::new(Agent::new(config, of.conversation, of.all_conversations));
    runtime()?.block_on(serve(protocol, BufReader::new(tokio::io::stdin()), tokio::io::stdout()));
    Ok(ExitCode::SUCCESS)
}

/// Answers each line, several at once, until there are no more.
async fn serve(
    protocol: Protocol,
    mut input: impl AsyncBufRead + Unpin,
    output: impl AsyncWrite + Send + Unpin + 'static,
) {
    let protocol = Arc::new(protocol);
    let output = Arc::new(tokio::sync::Mutex::new(output));
    // Requests under way, by their id as it is written.
    let under_way: Arc<Mutex<HashMap<String, AbortHandle>>> = Arc::default();
    let mut tasks = JoinSet::new();
    let mut line = Vec::new();
    // A line that is too long is not whole, and so no JSON.
    while matches!((&mut input).take(LONGEST).read_until(b'\n', &mut line).await, Ok(n) if n > 0) {
        let said = std::mem::take(&mut line);
        let said = said.trim_ascii();
        if said.is_empty() {
            continue;
        }
        let Ok(message) = serde_json::from_slice::<Value>(said) else {
            let refusal = mcp::refused(&Value::Null, mcp::PARSE_ERROR, "Parse error: the line is no JSON", None);
            if !put(&output, &refusal).await {
                break;
            }
            continue;
        };
        if message["method"] == "notifications/cancelled" {
            // No answer is sent for what is canceled.
            if let Some(request) = under_way.lock().remove(&message["params"]["requestId"].to_string()) {
                request.abort();
            }
            continue;
        }
        let (protocol, output, known, id) =
            (Arc::clone(&protocol), Arc::clone(&output), Arc::clone(&under_way), message["id"].to_string());
        let begun = under_way.lock();
        let task = {
            let id = id.clone();
            tasks.spawn(async move {
                let answer = answered(&protocol, &message, &output).await;
                known.lock().remove(&id);
                if let Some(answer) = answer {
                    put(&output, &answer).await;
                }
            })
        };
        { begun }.insert(id, task);
        while tasks.try_join_next().is_some() {}
    }
    // What was asked is answered before the program ends.
    while tasks.join_next().await.is_some() {}
}

/// The answer to a message; a client that wants to hear of progress does until then.
async fn answered<W: AsyncWrite + Unpin>(
    protocol: &Protocol,
    message: &Value,
    output: &tokio::sync::Mutex<W>,
) -> Option<Value> {
    let Some(token) = mcp::progress_token(message) else { return protocol.answer(message).await };
    let (started, mut ticks) = (Instant::now(), tokio::time::interval(mcp::PROGRESS));
    let mut work = std::pin::pin!(protocol.answer(message));
    loop {
        tokio::select! {
            answer = &mut work => return answer,
            at = ticks.tick() => {
                put(output, &mcp::progress(token, at.saturating_duration_since(started).as_secs_f64())).await;
            }
        }
    }
}

/// Writes a message as one line, whole; false where nobody reads any more.
async fn put<W: AsyncWrite + Unpin>(output: &tokio::sync::Mutex<W>, message: &Value) -> bool {
    let line = format!("{message}\n");
    let mut output = output.lock().await;
    output.write_all(line.as_bytes()).await.is_ok() && output.flush().await.is_ok()
}
