//! What people and tools may look at: conversations, views, events, records, windows; and the dry run of a request.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::record::{self, Text};
use super::sight;
use crate::config::Severity;
use crate::conversation::Tokens;
use crate::conversation::edit::{Edit, View};
use crate::plan::rewrite;
use crate::proxy::turn::prepare::Attempt;
use crate::proxy::turn::save::regions;
use crate::proxy::{App, Error};
use crate::store::{ConversationRow, Store};
use crate::upstream::{KindHint, Upstream, client};
use crate::wire::openai_chat;

impl App {
    /// `GET /windowsill/conversations`.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn conversations(&self, limit: usize) -> Result<Value, Error> {
        let rows = self.store.conversations(limit)?;
        let judged = |row: &ConversationRow| {
            let mut out = row_json(row);
            out["severity"] = json!(sight::severity(row, &self.config.gauge).map(Severity::as_str));
            out
        };
        Ok(json!({"conversations": rows.iter().map(judged).collect::<Vec<_>>()}))
    }

    /// `GET /windowsill/conversations/{id}`.
    ///
    /// # Errors
    /// 404 for an unknown one.
    pub fn conversation(&self, id: &str) -> Result<Value, Error> {
        let row = self.row(id)?;
        record::context(&self.store, &row)
    }

    /// `GET /windowsill/conversations/{id}/view`: the messages as last forwarded, leading system messages aside (they are
    /// outside the record).
    ///
    /// # Errors
    /// 404 for an unknown one.
    pub fn view(&self, id: &str) -> Result<Value, Error> {
        let row = self.row(id)?;
        view_of(&self.store, &row).map_err(Error::from)
    }

    pub(in crate::proxy) fn row(&self, id: &str) -> Result<ConversationRow, Error> {
        record::row(&self.store, id, "GET /windowsill/conversations lists them")
    }

    /// `GET /windowsill/records/{id}`: an original, or a message as `CONVERSATION:MESSAGE`, exactly as it came; of one
    /// conversation (and what it forked from) or of any.
    ///
    /// # Errors
    /// 404 for an unknown one.
    pub fn record(&self, id: &str, conversation: Option<&str>) -> Result<Text, Error> {
        let scope = conversation.map(|c| self.row(c)).transpose()?.map(|row| row.id);
        record::whole(&self.store, id, scope.as_deref())?.ok_or_else(|| record::unknown(id))
    }

    /// Whether an upstream answers and the record can be written.
    ///
    /// # Errors
    /// What is missing, and how to mend it.
    pub async fn ready(&self) -> Result<(), Error> {
        if let Err(e) = self.store.writable().await {
            let message = format!("the record cannot be written: {e}");
            return Err(Error::client(503, "record_unwritable", message, e.hint()));
        }
        for upstream in &self.upstreams {
            if upstream.alive().await.is_ok() {
                return Ok(());
            }
        }
        let hint = "start one, or name it with --upstream URL";
        Err(Error::client(503, "not_ready", "no inference server answers yet", hint))
    }

    /// `GET /metrics`, in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        self.metrics.record(self.store.trouble().is_none(), self.store.failures());
        self.metrics.text()
    }

    /// Dry run: what would be rewritten of a request, and why. Asks a server for the window and for counts where there is
    /// one, and sends nothing else.
    ///
    /// # Errors
    /// As the request itself would get.
    pub async fn dry_run(self: &Arc<Self>, body: Bytes, model: Option<&str>) -> Result<Value, Error> {
        let mut request = openai_chat::parse(&body)?;
        if let Some(model) = model {
            model.clone_into(&mut request.model);
        }
        let upstream = match model.map(std::path::Path::new).filter(|m| m.extension().is_some_and(|e| e == "gguf")) {
            Some(file) => self.without_server(file)?,
            None => self.upstream_of(&request.model).await?,
        };
        let prepared = self.prepare_without_models(&upstream, request).await?;
        Ok(json!({
            "model": prepared.request.model,
            "window": prepared.window.tokens, "window_source": prepared.window.source,
            "profile": prepared.policy.profile,
            "action": prepared.action(), "because": prepared.because, "waits": prepared.waits,
            "before": regions(&prepared.before), "after": regions(&prepared.after),
            "prompt_tokens": prepared.tokens, "source": prepared.sureness.as_str(),
            "edits": prepared.view.edits.iter().map(edit_json).collect::<Vec<_>>(),
            "messages_forwarded": prepared.out.len(),
        }))
    }

    /// Prompt tokens of a request: the history as the client sent it, less what was taken out of it earlier.
    pub(in crate::proxy) async fn counted(self: &Arc<Self>, request: openai_chat::Request) -> Result<Tokens, Error> {
        let upstream = self.upstream_of(&request.model).await?;
        let prepared = self.prepare_without_models(&upstream, request).await?;
        // What is forwarded as it is was counted whole.
        Ok(if prepared.actions.is_empty() { prepared.tokens } else { prepared.before.prompt() })
    }

    /// Counts with a model's own file; no server is there to ask.
    fn without_server(&self, file: &std::path::Path) -> Result<Arc<Upstream>, Error> {
        self.measure.counters.name(file).map_err(|e| {
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

    async fn prepare_without_models(
        self: &Arc<Self>,
        upstream: &Arc<crate::upstream::Upstream>,
        request: openai_chat::Request,
    ) -> Result<crate::proxy::turn::prepare::Prepared, Error> {
        self.prepare(upstream, request, &HeaderMap::new(), Attempt::DryRun).await
    }
}

pub(in crate::proxy) fn row_json(row: &ConversationRow) -> Value {
    json!({
        "id": row.id, "title": row.title, "model": row.model, "upstream": row.upstream, "session": row.session,
        "parent": row.parent.as_ref().map(|(id, depth)| json!({"conversation": id, "messages": depth})),
        "helper": row.state["class"] == "helper", "messages": row.depth, "created_ms": row.created_ms, "updated_ms": row.updated_ms, "state": row.state,
    })
}

fn edit_json(edit: &Edit) -> Value {
    match edit {
        Edit::Text { at, rule, record, text, .. } => {
            json!({"message": at, "rule": rule, "record": record, "text": text.as_ref()})
        }
        Edit::Arguments { at, call, rule, record, .. } => {
            json!({"message": at, "call": call, "rule": rule, "record": record})
        }
        Edit::Recalled { at, text, of, .. } => {
            json!({"message": at, "rule": "recalled", "of": of, "text": text.as_ref()})
        }
        Edit::Fold { from, to, keep, brief, .. } => {
            json!({"from": from, "to": to, "kept": keep, "rule": "fold", "brief": brief.as_ref()})
        }
    }
}

fn view_of(store: &Store, row: &ConversationRow) -> Result<Value, crate::store::Error> {
    let rows = store.messages(&row.id)?;
    let chain: Vec<_> = rows.iter().map(|r| r.chain).collect();
    let view = store.view(&chain)?.map(|(_, v)| View::clone(&v)).unwrap_or_default();
    let body = rows.iter().map(|r| openai_chat::recorded(r.raw.clone())).collect();
    let conversation = crate::conversation::Conversation { body, ..Default::default() };
    let out = rewrite::rewrite(&conversation, &view, &crate::plan::TemplateFacts::default());
    let messages: Vec<Value> = out.iter().filter_map(|m| serde_json::from_slice(&m.bytes).ok()).collect();
    Ok(
        json!({"conversation": row.id, "messages": messages, "edits": view.edits.iter().map(edit_json).collect::<Vec<_>>()}),
    )
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

/// Tokens, with thousands set apart for people.
pub fn grouped(n: Tokens) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Has the running proxy ask a model what an original says.
///
/// # Errors
/// When none answers at `address`, or it says why not.
pub async fn ask_original_running(
    address: &str,
    key: Option<&str>,
    id: &str,
    conversation: Option<&str>,
    question: &str,
) -> Result<Value, Error> {
    let path = format!("/windowsill/records/{}/ask", encode(id));
    let body = json!({"question": question, "conversation": conversation});
    ask(address, key, http::Method::POST, &path, Some(&body)).await
}

/// Has the running proxy steer a conversation: `…/{id}/WHAT`.
///
/// # Errors
/// When no proxy answers at `address`, or it says why not.
pub async fn steer_running(
    address: &str,
    key: Option<&str>,
    method: http::Method,
    (id, what): (&str, &str),
    body: Option<&Value>,
) -> Result<Value, Error> {
    ask(address, key, method, &format!("/windowsill/conversations/{}/{what}", encode(id)), body).await
}

/// Has the running proxy list the rules, or change one: `…/rules`, `…/rules/{n}`.
///
/// # Errors
/// When no proxy answers at `address`, or it says why not.
pub async fn rules_running(
    address: &str,
    key: Option<&str>,
    method: http::Method,
    number: Option<i64>,
    body: Option<&Value>,
) -> Result<Value, Error> {
    let path = number.map_or_else(|| "/windowsill/rules".to_owned(), |n| format!("/windowsill/rules/{n}"));
    ask(address, key, method, &path, body).await
}

/// The models that a running proxy lists, by id.
///
/// # Errors
/// When none answers, or it refuses.
pub async fn running_models(address: &str, key: Option<&str>) -> Result<Vec<String>, Error> {
    let list = ask(address, key, http::Method::GET, "/v1/models", None).await?;
    let ids = list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str());
    Ok(ids.map(str::to_owned).collect())
}

/// Asks the running proxy something of its own.
pub(in crate::proxy) async fn ask(
    address: &str,
    key: Option<&str>,
    method: http::Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Error> {
    let (proxy, absent) = proxy_at(address, key)?;
    let body = Bytes::from(body.map(Value::to_string).unwrap_or_default());
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    let reply = proxy.pass(method, path, &headers, body.into()).await.map_err(absent)?;
    if !reply.status.is_success() {
        return Err(why_not(reply).await);
    }
    let (bytes, _) = crate::proxy::turn::read_up_to(reply.body, 16 << 20).await?;
    Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// The running proxy, and what is said when it does not answer.
pub(in crate::proxy) fn proxy_at(
    address: &str,
    key: Option<&str>,
) -> Result<(Upstream, impl FnOnce(crate::upstream::Error) -> Error), Error> {
    let url = format!("http://{address}");
    let proxy =
        Upstream::new(client()?, "windowsill".into(), &url, KindHint::OpenAi)?.with_api_key(key.map(str::to_owned))?;
    let absent = move |e| {
        // That nobody is there is said; anything else is more.
        let message = match e {
            crate::upstream::Error::Connect { .. } => format!("no windowsill answers at {url}"),
            e => format!("no windowsill answers at {url}: {e}"),
        };
        Error::client(503, "not_running", message, "start it with `windowsill serve`, or name its config with --config")
    };
    Ok((proxy, absent))
}

/// What the running proxy says of why it refused.
pub(in crate::proxy) async fn why_not(reply: crate::upstream::Reply) -> Error {
    let status = reply.status.as_u16();
    let bytes = crate::proxy::turn::read_up_to(reply.body, 1 << 20).await.map(|(bytes, _)| bytes).unwrap_or_default();
    let value: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let message = value.pointer("/error/message").and_then(Value::as_str).unwrap_or("it gave no reason");
    Error::client(status, "refused", message, "")
}

/// What stands as it is in a path segment or a value of a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Percent-encodes a path segment or a value of a query.
pub(in crate::proxy) fn encode(segment: &str) -> String {
    utf8_percent_encode(segment, PLAIN).to_string()
}
