//! What people and tools may look at: conversations, views, events, records, windows; and the dry run of a request.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};

use super::record::{self, Record, Text, row_of};
use super::rewrites;
use super::rows::{self, edit_json, row_json};
use crate::config::Severity;
use crate::conversation::Tokens;
use crate::proxy::servers::upstream_of;
use crate::proxy::state::gauge::regions;
use crate::proxy::turn::attempt::Attempt;
use crate::proxy::turn::prepare::prepare;
use crate::proxy::turn::task::take_task;
use crate::proxy::{App, Error};
use crate::store::ConversationRow;
use crate::upstream::{KindHint, Upstream, client};
use crate::wire::openai_chat;

/// Conversations whose first counts a dry run knows, the last active first.
const COUNTED: usize = 1_000;

/// `GET /windowsill/conversations`.
///
/// # Errors
/// When the record cannot be read.
pub fn conversations(app: &App, limit: usize) -> Result<Value, Error> {
    let rows = app.store.conversations(limit)?;
    let under_way = app.lives.under_way();
    let rewrites = rewrites::counts(&app.store)?;
    let judged = |row: &ConversationRow| {
        let mut out = row_json(row);
        out["under_way"] = json!(under_way.get(&row.id));
        out["rewrites"] = json!(rewrites.get(&row.id).copied().unwrap_or(0));
        out["severity"] = json!(rows::severity(row, &app.config.gauge).map(Severity::as_str));
        out
    };
    Ok(json!({"conversations": rows.iter().map(judged).collect::<Vec<_>>()}))
}

/// `GET /windowsill/conversations/{id}`.
///
/// # Errors
/// 404 for an unknown one.
pub fn conversation(app: &App, id: &str) -> Result<Value, Error> {
    let row = row_of(app, id)?;
    record::context(&app.store, &row)
}

/// `GET /windowsill/records/{id}`: an original, or a message as `CONVERSATION:MESSAGE`, exactly as it came; of one
/// conversation (and what it forked from) or of any.
///
/// # Errors
/// 404 for an unknown one.
pub fn record(app: &App, id: &str, conversation: Option<&str>) -> Result<Text, Error> {
    let scope = conversation.map(|c| row_of(app, c)).transpose()?.map(|row| row.id);
    record::whole(&app.store, id, scope.as_deref())?.ok_or_else(|| record::unknown(id))
}

/// Whether an upstream answers and the record can be written.
///
/// # Errors
/// What is missing, and how to mend it.
pub async fn ready(app: &App) -> Result<(), Error> {
    if let Err(e) = app.store.writable().await {
        let message = format!("the record cannot be written: {e}");
        return Err(Error::client(503, "record_unwritable", message, e.hint()));
    }
    for upstream in &app.servers.all {
        if upstream.alive().await.is_ok() {
            return Ok(());
        }
    }
    if app.config.upstreams.is_empty() {
        let hint = "start one, or name it with --upstream URL";
        return Err(Error::client(503, "not_ready", "no inference server answers yet", hint));
    }
    let named: Vec<String> =
        app.servers.all.iter().map(|server| format!("{} at {}", server.name(), server.url())).collect();
    let message = format!("no inference server answers: {}", named.join(", "));
    Err(Error::client(503, "not_ready", message, "start it, or name another one with --upstream URL"))
}

/// `GET /metrics`, in Prometheus' text format.
pub fn metrics_text(app: &App) -> String {
    app.metrics.record(app.store.trouble().is_none(), app.store.failures());
    app.metrics.text()
}

/// Dry run: what would be rewritten of a request, and why. Asks a server for the window and for counts where there is
/// one, and sends nothing else.
///
/// # Errors
/// As the request itself would get.
pub async fn dry_run(app: &Arc<App>, body: Bytes, model: Option<&str>) -> Result<Value, Error> {
    dry(app, body, model, Attempt::DryRun).await
}

/// What a request takes, and how that is known. One that fits no window is counted, too.
///
/// # Errors
/// When it cannot be read, or no server is there to ask.
pub async fn count(app: &Arc<App>, body: Bytes, model: Option<&str>) -> Result<Value, Error> {
    let told = dry(app, body, model, Attempt::Count).await?;
    Ok(json!({"regions": told["before"], "source": told["source"]}))
}

async fn dry(app: &Arc<App>, body: Bytes, model: Option<&str>, attempt: Attempt) -> Result<Value, Error> {
    let mut request = openai_chat::parse(&body)?;
    if let Some(model) = model {
        model.clone_into(&mut request.model);
    }
    let upstream = match model.map(std::path::Path::new).filter(|m| m.extension().is_some_and(|e| e == "gguf")) {
        Some(file) => without_server(app, file)?,
        None => upstream_of(app, &request.model).await?,
    };
    let prepared = prepare(app, &upstream, request, &HeaderMap::new(), attempt).await?;
    Ok(json!({
        "model": prepared.request.model,
        "window": prepared.window.tokens, "window_source": prepared.window.source,
        "profile": prepared.policy.profile,
        "action": prepared.action(), "because": prepared.told.because, "waits": prepared.told.waits,
        "before": regions(&prepared.made.before.0), "after": regions(&prepared.made.after),
        "prompt_tokens": prepared.made.tokens, "source": prepared.made.sureness.as_str(),
        "edits": prepared.made.view.edits.iter().map(edit_json).collect::<Vec<_>>(),
        "messages_forwarded": prepared.made.out.len(),
    }))
}

/// Has a dry run tell a system prompt and tools by the counts that they got first, as the record of a data directory keeps them with
/// its conversations. Without a record, nothing is known.
pub fn know_counts(app: &App, data_dir: &std::path::Path) {
    let Ok(record) = Record::open(data_dir) else { return };
    for row in record.store.conversations(COUNTED).unwrap_or_default() {
        app.measure.firsts.take(&row.state["counts"]);
    }
}

/// Prompt tokens of a request as it would be forwarded, and as the client sent it; `from_client` says what it asks to be done with
/// its history, and whose it is.
pub(in crate::proxy) async fn weighed(
    app: &Arc<App>,
    mut request: openai_chat::Request,
    from_client: &HeaderMap,
) -> Result<(Tokens, Tokens), Error> {
    take_task(app, &mut request, from_client).await?;
    let upstream = upstream_of(app, &request.model).await?;
    let prepared = prepare(app, &upstream, request, from_client, Attempt::DryRun).await?;
    let forwarded = prepared.made.tokens;
    let original = prepared.told.client.map_or(forwarded, |outcome| outcome.original);
    Ok((forwarded, original))
}

/// Counts with a model's own file; no server is there to ask.
fn without_server(app: &App, file: &std::path::Path) -> Result<Arc<Upstream>, Error> {
    app.measure.counters.name(file).map_err(|e| {
        Error::client(
            400,
            "model_file",
            e.to_string(),
            "name a GGUF file with a vocabulary, or a model that a server has",
        )
    })?;
    // Port 9 discards what it gets, where anything listens there at all.
    Ok(Arc::new(Upstream::new(client()?, "file".to_owned(), "http://127.0.0.1:9", KindHint::OpenAi)?))
}

/// The request of a file for `plan` and `count`: a chat request, or `{"messages": […]}`, or a bare array of messages.
///
/// # Errors
/// When it is none of these.
pub fn plan_file(bytes: Bytes) -> Result<Bytes, Error> {
    if bytes.trim_ascii_start().starts_with(b"[") {
        let mut out = b"{\"messages\":".to_vec();
        out.extend_from_slice(&bytes);
        out.push(b'}');
        let out = Bytes::from(out);
        openai_chat::parse(&out)?;
        return Ok(out);
    }
    openai_chat::parse(&bytes)?;
    Ok(bytes)
}
