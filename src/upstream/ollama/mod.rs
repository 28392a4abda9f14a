//! Ollama, by its native API: the only one that can set the window, and be told not to drop messages in silence.

mod describe;
mod info;
mod request;
mod response;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};

use super::error::Error;
use super::event::{Content, Event};
use super::link::{ERROR_BODY, Link, Reply, strip_for_client};
use super::names::Names;
use super::ndjson::{Documents, LINE_LIMIT, Lines};
use super::overflow::status_behind_200;
use super::settings::{self, Effort, Settings};
use super::unique::{unique, unix_seconds};
use super::{ASK_LIMIT, ChatOptions, DESCRIBE_LIMIT, LOAD_LIMIT, Loaded, ModelInfo};
use crate::wire::json as spelling;

pub use describe::{Described, DescribedTensor};
pub(super) use info::canonical;
use request::{Asked, Refused};
use response::{Completion, Head};

/// From this size on, a request is translated on a blocking thread (bytes).
const LARGE: usize = 256 * 1024;

/// The window Ollama gives a model on a machine with less than 23 GiB of video memory, if nobody asked for another
/// (tokens): the least to reckon with while a model is not loaded and its Modelfile says nothing.
pub const SMALLEST_DEFAULT_WINDOW: u32 = 4096;

/// What a client is told whose effort is said otherwise.
const TOLD: &str = "the model does not have the effort that is asked for: it got the nearest that it has, or none";

pub(super) async fn models(link: &Link) -> Result<Vec<ModelInfo>, Error> {
    let (tags, ps) = tokio::join!(link.get("/api/tags", ASK_LIMIT), link.get("/api/ps", ASK_LIMIT));
    Ok(info::models(&tags?, &ps.unwrap_or(Value::Null)))
}

/// What is loaded, or else what will be, as far as it can be foretold. Loads nothing.
pub(super) async fn loaded(link: &Link, model: &str) -> Result<Loaded, Error> {
    let ask = json!({ "model": model }).to_string();
    let (ps, show) = tokio::join!(link.get("/api/ps", ASK_LIMIT), link.post("/api/show", ask, ASK_LIMIT));
    let ps = ps?;
    match show {
        Ok(show) => Ok(info::loaded(&ps, &show, model)),
        // What is loaded counts even where its description cannot be had.
        Err(_) if info::is_listed(&ps, model) => Ok(info::loaded(&ps, &Value::Null, model)),
        Err(error) => Err(error),
    }
}

/// What is loaded under a name, told by the list of loaded models alone.
pub(super) async fn identity(link: &Link, model: &str) -> Result<String, Error> {
    Ok(info::identity(&link.get("/api/ps", ASK_LIMIT).await?, model))
}

/// The answer of `/api/show` in full, which [`Described::read`] reads. Loads nothing.
pub(super) async fn describe(link: &Link, model: &str) -> Result<Bytes, Error> {
    let ask = json!({ "model": model, "verbose": true }).to_string();
    link.post_whole("/api/show", ask, DESCRIBE_LIMIT).await
}

/// The answer of `/api/show` in short, and the size of the model's file by `/api/tags` (`size`, bytes). Loads nothing.
pub(super) async fn described_in_short(link: &Link, model: &str) -> Result<(Bytes, u64), Error> {
    let ask = json!({ "model": model }).to_string();
    let (show, tags) = tokio::join!(link.post_whole("/api/show", ask, ASK_LIMIT), link.get("/api/tags", ASK_LIMIT));
    let size = info::size(&tags?, model).ok_or_else(|| link.protocol("lists no size for the model"))?;
    Ok((show?, size))
}

pub(super) async fn load(link: &Link, model: &str, num_ctx: Option<u32>, names: &Names) -> Result<(), Error> {
    let mut ask = json!({ "model": names.of(model), "messages": [], "stream": false });
    if let Some(num_ctx) = num_ctx {
        ask["options"] = json!({ "num_ctx": num_ctx });
    }
    let answer = match link.post("/api/chat", ask.to_string(), LOAD_LIMIT).await {
        Err(Error::Status { status: StatusCode::NOT_FOUND, .. }) if spelled(link, model, names).await => {
            ask["model"] = names.of(model).into();
            link.post("/api/chat", ask.to_string(), LOAD_LIMIT).await?
        }
        answer => answer?,
    };
    match answer["error"].as_str() {
        Some(_) => Err(link.protocol("said 200 to loading a model, and then an error")),
        None => Ok(()),
    }
}

/// Looks up how a model is spelled that a chat did not find, and notes it; whether that is another spelling. An Ollama of before
/// 2026 takes any case of a name in `/api/generate` and `/api/show`, and its own alone in `/api/chat` (seen on 0.13.5).
async fn spelled(link: &Link, model: &str, names: &Names) -> bool {
    let Ok(tags) = link.get("/api/tags", ASK_LIMIT).await else { return false };
    let Some(name) = info::name(&tags, model).filter(|name| *name != names.of(model)) else { return false };
    names.add(model, &name);
    true
}

/// A request for a model as its server spells it.
fn renamed(body: &Bytes, model: &str, names: &Names) -> Bytes {
    let name = names.of(model);
    if name == model {
        return body.clone();
    }
    let text = String::from_utf8_lossy(body);
    spelling::with_fields(&text, &[("model", Some(&spelling::quote(&name)))]).unwrap_or_else(|_| body.clone())
}

/// Has a model given up: a request without messages that keeps it for no time (docs/api.md, "Unload a model").
pub(super) async fn unload(link: &Link, model: &str) -> Result<(), Error> {
    let ask = json!({ "model": model, "messages": [], "stream": false, "keep_alive": 0 }).to_string();
    link.post("/api/chat", ask, ASK_LIMIT).await.map(drop)
}

/// An OpenAI chat request, asked in Ollama's words; the reply in OpenAI's. An effort that a model has no word for is no reason
/// to refuse the request: it is asked once more with the nearest, or without, and that is remembered.
pub(super) async fn chat(
    link: &Link,
    mut headers: HeaderMap,
    body: Bytes,
    options: ChatOptions,
    (settings, names): (&Settings, &Names),
) -> Result<Reply, Error> {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let model = settings::model_of(&body).await;
    let known = settings.of(&canonical(&model));
    let mut effort = known.effort.clone();
    let mut body = renamed(&body, &model, names);
    let (wanted, changed, response) = loop {
        let asked = match put(link, &body, options, effort.clone()).await? {
            Ok(asked) => asked,
            Err(refused) => return Ok(Reply::json(StatusCode::BAD_REQUEST, HeaderMap::new(), refused.body())),
        };
        let Asked { body: sent, thinks, level, .. } = asked;
        let request = link.request(Method::POST, "/api/chat", headers.clone())?.body(sent.body());
        let response = link.send(request).await?;
        let (status, said) = (response.status(), response.headers().clone());
        if status.as_u16() < 400 {
            break (asked.reply, asked.changed, response);
        }
        let refusal = link.read_start(response, ERROR_BODY).await?;
        if status == StatusCode::NOT_FOUND && spelled(link, &model, names).await {
            body = renamed(&body, &model, names);
            continue;
        }
        match effort.of_ollama(&refusal, level.as_deref()).filter(|_| thinks) {
            Some(less) => effort = less,
            None => {
                let status = response::blamed(status, &refusal);
                return Ok(Reply::json(status, said, response::error(status.as_u16(), &refusal)));
            }
        }
    };
    if effort != known.effort {
        settings.note(&canonical(&model), known.with_effort(effort));
    }
    let told: Vec<String> = changed.then(|| TOLD.to_owned()).into_iter().collect();
    let mut said = response.headers().clone();
    let status = response.status();
    let head = Head { id: format!("chatcmpl-{}", unique(24)), created: unix_seconds(), call_id: || unique(9) };
    if !wanted.stream {
        let body = link.read(response, LINE_LIMIT).await?;
        return Ok(match response::completion(head, &body) {
            Ok(Completion::Reply(body)) => {
                let mut reply = Reply::json(StatusCode::OK, said, body);
                settings::tell(&mut reply.headers, &told);
                reply
            }
            Ok(Completion::Error(body)) => Reply::json(status_behind_200(body.as_bytes()), said, body),
            Err(what) => return Err(link.protocol(what)),
        });
    }
    strip_for_client(&mut said);
    settings::tell(&mut said, &told);
    said.remove(header::CONTENT_LENGTH);
    said.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    let chunks = response::Chunks::new(head, wanted.include_usage);
    Ok(Reply { status, headers: said, body: Content::Events(events(link.clone(), link.stream(response), chunks)) })
}

/// The request in Ollama's words.
async fn put(link: &Link, body: &Bytes, options: ChatOptions, effort: Effort) -> Result<Result<Asked, Refused>, Error> {
    let (size, body) = (body.len(), body.clone());
    let translate = move || request::translate(&body, options.num_ctx, &effort);
    if size < LARGE {
        return Ok(translate());
    }
    let done = tokio::task::spawn_blocking(translate).await;
    done.map_err(|e| link.protocol(format!("the request cannot be put into its words: {e}")))
}

/// The NDJSON reply as OpenAI's events, each line as it comes. After the last line the reply is still read to its
/// end, so that the connection can be used again.
fn events(
    link: Link,
    body: BoxStream<'static, Result<Bytes, Error>>,
    chunks: response::Chunks,
) -> BoxStream<'static, Result<Event, Error>> {
    let start = Some((body, (Lines::default(), Documents::default()), chunks));
    let pieces = stream::unfold(start, move |state| {
        let link = link.clone();
        async move {
            let (mut body, (mut lines, mut documents), mut chunks) = state?;
            let mut out = Vec::new();
            let complete = match body.next().await {
                Some(Ok(bytes)) => match lines.push(&bytes) {
                    Ok(complete) => complete,
                    Err(error) => return Some((vec![Err(link.protocol(error.to_string()))], None)),
                },
                // A connection that breaks after the last line has broken nothing.
                Some(Err(_)) if chunks.is_over() => return None,
                Some(Err(error)) => return Some((vec![Err(error)], None)),
                None => {
                    let last = lines.finish().and_then(|line| documents.line(&line)).or_else(|| documents.finish());
                    last.iter().for_each(|line| chunks.line(line, &mut out));
                    chunks.end(&mut out);
                    return Some((out.into_iter().map(Ok).collect(), None));
                }
            };
            complete.iter().filter_map(|line| documents.line(line)).for_each(|line| chunks.line(&line, &mut out));
            Some((out.into_iter().map(Ok).collect(), Some((body, (lines, documents), chunks))))
        }
    });
    pieces.flat_map(stream::iter).boxed()
}
