//! Which upstream serves which model, and the list of models with their windows.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::record::short;
use crate::config::ToldWindow;
use crate::conversation::Tokens;
use crate::proxy::lookout::{look, servers};
use crate::proxy::servers::{same_model, upstream_of};
use crate::proxy::{App, Error};
use crate::upstream::{Kind, ModelInfo, Upstream};

/// Of a long list of models, so many are asked about one by one where the list leaves out their windows.
const ASKED_ONE_BY_ONE: usize = 32;

/// The window that no client ever fills (tokens).
const ENDLESS: Tokens = 10_000_000;

/// `GET /v1/models`: the lists of all upstreams, each entry with its windows. `id` picks one. What llama-server says in
/// `models`, beside the entries of OpenAI's list, stays.
///
/// # Errors
/// When no upstream answers, or none knows `id`.
pub async fn models(app: &App, id: Option<&str>) -> Result<Value, Error> {
    let (mut data, mut beside): (Vec<Value>, Vec<Value>) = Default::default();
    let mut failed = None;
    if servers(app).next().is_none() {
        look(app).await;
    }
    for (_, upstream) in servers(app) {
        match models_of(app, upstream).await {
            Ok(mut list) => {
                data.append(&mut list.entries);
                beside.append(&mut list.beside);
            }
            Err(e) => failed = Some(e),
        }
    }
    if data.is_empty() {
        upstream_of(app, "").await?;
        if let Some(e) = failed {
            return Err(e);
        }
    }
    let Some(id) = id else {
        let mut list = json!({"object": "list", "data": data});
        if !beside.is_empty() {
            list["models"] = beside.into();
        }
        return Ok(list);
    };
    let found = data.into_iter().find(|m| m.get("id").and_then(Value::as_str).is_some_and(|m| same_model(m, id)));
    found.ok_or_else(|| {
        Error::client(404, "model_not_found", format!("the model `{id}` does not exist"), "GET /v1/models lists them")
    })
}

async fn models_of(app: &App, upstream: &Upstream) -> Result<Listed, Error> {
    let listed = upstream.models().await?;
    // The server's own entries keep what else they say.
    let own = upstream.pass(http::Method::GET, "/v1/models", &http::HeaderMap::new(), Bytes::new().into()).await;
    let mut own: Value = match own {
        Ok(reply) if reply.status.is_success() => {
            let (bytes, _) = crate::proxy::turn::read_up_to(reply.body, 4 << 20).await?;
            serde_json::from_slice(&bytes).unwrap_or_default()
        }
        _ => Value::Null,
    };
    let mut take = |key: &str| match own.get_mut(key).map(Value::take) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    let (own, beside) = (take("data"), take("models"));
    let mut out = Vec::new();
    for (nth, mut model) in listed.into_iter().enumerate() {
        // Lists often leave out what the server says of a single model.
        if nth < ASKED_ONE_BY_ONE
            && (model.trained.is_none() || model.window.is_none())
            && let Ok(loaded) = upstream.loaded(&model.id).await
        {
            model.trained = model.trained.or(loaded.trained);
            model.window = model.window.or(loaded.window.filter(|_| !loaded.provisional));
        }
        let mut entry = own
            .iter()
            .find(|v| v.get("id").and_then(Value::as_str) == Some(&model.id))
            .cloned()
            .unwrap_or_else(|| json!({"id": model.id, "object": "model", "owned_by": upstream.name()}));
        tell_windows(&mut entry, &model, app);
        out.push(entry);
    }
    Ok(Listed { entries: out, beside })
}

/// Writes the windows of a model where clients look for them: OpenRouter's and LM Studio's name, vLLM's, and llama.cpp's.
fn tell_windows(entry: &mut Value, model: &ModelInfo, app: &App) {
    let told = match app.config.window.told {
        ToldWindow::Loaded => model.window.or(model.trained),
        ToldWindow::Trained => model.trained.or(model.window),
        ToldWindow::Endless => Some(ENDLESS),
    };
    let usable = told.filter(|_| model.window.is_some() || app.config.window.told != ToldWindow::Loaded);
    let usable = usable.map(|w| w.saturating_sub(app.config.window.output_reserved.min(w / 4)));
    entry["context_window"] = json!(usable);
    entry["context_length"] = json!(told);
    entry["max_model_len"] = json!(told);
    if !entry["meta"].is_object() {
        entry["meta"] = json!({});
    }
    entry["meta"]["n_ctx"] = json!(told);
    entry["loaded_context"] = json!(model.window);
    entry["trained_context"] = json!(model.trained);
}

/// The models of one server.
struct Listed {
    entries: Vec<Value>,
    /// What it says of them in a list of another shape.
    beside: Vec<Value>,
}

/// `POST /windowsill/models/load`: takes a model into memory, with this window where its server takes one.
///
/// # Errors
/// 404 for a model that no server lists, 409 where the server cannot be told, or the server's own error.
pub async fn load_model(app: &App, asked: &Told) -> Result<Value, Error> {
    let upstream = told(app, asked).await?;
    if asked.num_ctx.is_some() && !upstream.kind().is_some_and(Kind::takes_window) {
        let hint = "start the server itself with the window that you want";
        return Err(Error::client(409, "not_here", "this server takes no window with a model", hint));
    }
    let done = upstream.bring(&asked.model, asked.num_ctx).await;
    app.measure.windows.forget(upstream);
    done?;
    Ok(json!({"upstream": upstream.name(), "model": asked.model, "loaded": true}))
}

/// `POST /windowsill/models/unload`: has a model given up.
///
/// # Errors
/// As [`load_model`]; 409, too, while a client uses the model.
pub async fn unload_model(app: &App, asked: &Told) -> Result<Value, Error> {
    let upstream = told(app, asked).await?;
    if app.traffic.uses(upstream, &asked.model) {
        let message = format!("a request of `{}` is under way", short(&asked.model));
        return Err(Error::client(409, "busy", message, "try again when it is answered"));
    }
    let done = upstream.drop_model(&asked.model).await;
    app.measure.windows.forget(upstream);
    done?;
    Ok(json!({"upstream": upstream.name(), "model": asked.model, "loaded": false}))
}

/// Which model is to be loaded or given up.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Told {
    /// As its server lists it.
    pub model: String,
    /// The server; without it, the first that lists the model.
    pub upstream: Option<String>,
    /// The window (tokens).
    pub num_ctx: Option<u32>,
}

/// The server of a model that is to be loaded or given up, where it can be told.
async fn told<'a>(app: &'a App, asked: &Told) -> Result<&'a Arc<Upstream>, Error> {
    if asked.model.is_empty() || asked.num_ctx == Some(0) {
        let hint = "send {\"model\": \"NAME\"}, and {\"num_ctx\": N} for a window";
        return Err(Error::client(400, "bad_request", "which model, and with which window, is not said", hint));
    }
    for (_, upstream) in servers(app) {
        if asked.upstream.as_deref().is_some_and(|name| name != upstream.name()) {
            continue;
        }
        let Ok(models) = upstream.models().await else { continue };
        if !models.iter().any(|model| same_model(&model.id, &asked.model)) {
            continue;
        }
        if !upstream.kind().is_some_and(Kind::can_be_told) {
            let hint = "Ollama, LM Studio, llama-swap and llama-server as a router can";
            return Err(Error::client(
                409,
                "not_here",
                "this server cannot be told to load a model or give one up",
                hint,
            ));
        }
        return Ok(upstream);
    }
    let message = format!("no server lists the model `{}`", short(&asked.model));
    Err(Error::client(404, "model_not_found", message, "`windowsill doctor` and the page list them"))
}
