//! Settings that a server does not take: an effort that it does not have, fields that it forbids. It says so in what it tells of
//! a model, or by refusing a request; then the same request is sent without them, and so is each one after it.

mod known;

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::future::ready;
use futures_util::{StreamExt as _, stream};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use lru::LruCache;
use parking_lot::Mutex;
use tracing::info;

use super::error::Error;
use super::event::Content;
use super::link::{ERROR_BODY, Reply};
use super::overflow::overflow;
use super::{ChatOptions, Kind, Upstream, llama_server};
use crate::wire::json::Fields;
use crate::wire::names::Names;
use known::Spoken;
pub(super) use known::{Effort, Known, Say};

/// From this size on, a request is read and written on a blocking thread (bytes).
const LARGE: usize = 256 * 1024;

/// So many models of a server are remembered: clients choose the names.
const MODELS: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// How long a refusal counts. Another model may be behind the same name by then.
const LASTS: Duration = Duration::from_secs(600);

/// A request is sent so many times at most. Servers tend to name one field at a time.
const TRIES: usize = 6;

/// Where a client is told what became of its settings.
const WARNING: HeaderName = HeaderName::from_static("x-windowsill-warning");

/// What is known of the settings that a server takes, by model.
pub(super) struct Settings(Mutex<LruCache<String, (Instant, Known)>>);

impl Default for Settings {
    fn default() -> Settings {
        Settings(Mutex::new(LruCache::new(MODELS)))
    }
}

impl Settings {
    /// What is known of a model.
    pub(super) fn of(&self, model: &str) -> Known {
        let mut all = self.0.lock();
        let known = all.get(model).filter(|(at, _)| at.elapsed() < LASTS);
        known.map(|(_, known)| known.clone()).unwrap_or_default()
    }

    /// Remembers what is known of a model.
    pub(super) fn note(&self, model: &str, known: Known) {
        self.0.lock().put(model.to_owned(), (Instant::now(), known));
    }

    /// Remembers whether a model thinks, by the server's own word.
    pub(super) fn thinks(&self, model: &str, thinks: bool) {
        let known = self.of(model);
        match (thinks, &known.effort) {
            (false, _) => self.note(model, known.with_effort(Effort::Unsaid)),
            (true, Effort::Unsaid) => self.note(model, known.with_effort(Effort::Any)),
            (true, _) => {}
        }
    }

    /// Forgets everything: it is another server.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// A header that tells a client what became of its settings.
pub(super) fn tell(headers: &mut HeaderMap, told: &[String]) {
    if let Some(value) = HeaderValue::from_str(&told.join("; ")).ok().filter(|_| !told.is_empty()) {
        headers.insert(WARNING, value);
    }
}

/// Whether a refusal may be about a setting: servers say so with 400 and 422, and llama-server with 500 where a template fails.
fn may_be_a_setting(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::INTERNAL_SERVER_ERROR)
}

/// Reads or writes a request: aside, where it is large.
async fn aside<T: Send + 'static>(size: usize, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if size < LARGE { Some(work()) } else { tokio::task::spawn_blocking(work).await.ok() }
}

/// The model that a request names.
pub(super) async fn model_of(body: &Bytes) -> String {
    let read = body.clone();
    let model = move || {
        let fields = Fields::read(std::str::from_utf8(&read).ok()?).ok()?;
        fields.string("model")
    };
    aside(body.len(), model).await.flatten().unwrap_or_default()
}

impl Upstream {
    /// Sends a chat request to a server with OpenAI's API, without what it does not take. Where it refuses a setting, the request
    /// is sent once more without that.
    pub(super) async fn ask(
        &self,
        kind: Kind,
        path: &str,
        headers: &HeaderMap,
        body: &Bytes,
        options: ChatOptions,
    ) -> Result<Reply, Error> {
        let mut known = Known::default();
        if !self.settings.is_empty() {
            known = self.settings.of(&model_of(body).await);
        }
        let mut last: Option<Bytes> = None;
        for _ in 0..TRIES {
            let Spoken { body: sent, told, names } = spoken(&known, body).await;
            let mut reply = self.forward(Method::POST, path, headers.clone(), dressed(kind, &sent, options)).await?;
            tell(&mut reply.headers, &told);
            if reply.status.is_success() {
                reply = restored(reply, &names);
            }
            let refusal = match may_be_a_setting(reply.status) {
                true => refusal(&mut reply).await,
                false => None,
            };
            // What only made it refuse something else was refused, too.
            let better = last.as_ref().is_some_and(|last| refusal.as_ref() != Some(last));
            if better && (refusal.is_some() || reply.status.is_success()) {
                info!(upstream = self.name(), ?told, "the server does not take all settings of a request");
                self.settings.note(&model_of(body).await, known.clone());
            }
            let Some(refusal) = refusal else { return Ok(reply) };
            let too_long = overflow(reply.status.as_u16(), &refusal).is_some();
            let (before, said) = (known.clone(), refusal.clone());
            let learn = move || {
                let sent = std::str::from_utf8(&sent).ok()?;
                let others = || before.after(&said, sent, options.translated).filter(|_| !too_long);
                before.after_names(&said, sent).or_else(others)
            };
            match aside(body.len(), learn).await.flatten() {
                Some(more) => known = more,
                None => return Ok(reply),
            }
            last = Some(refusal);
        }
        let Spoken { body: sent, names, .. } = spoken(&known, body).await;
        let reply = self.forward(Method::POST, path, headers.clone(), dressed(kind, &sent, options)).await?;
        Ok(restored(reply, &names))
    }
}

/// The request as the server takes it.
async fn spoken(known: &Known, body: &Bytes) -> Spoken {
    if *known != Known::default() {
        let (known, read) = (known.clone(), body.clone());
        let write = move || known.spoken(std::str::from_utf8(&read).ok()?);
        if let Some(spoken) = aside(body.len(), write).await.flatten() {
            return spoken;
        }
    }
    Spoken { body: body.clone(), told: Vec::new(), names: Names::default() }
}

/// The reply with the client's names of tools in it.
fn restored(mut reply: Reply, names: &Names) -> Reply {
    if *names == Names::default() {
        return reply;
    }
    reply.headers.remove(CONTENT_LENGTH);
    let body = std::mem::replace(&mut reply.body, Content::empty());
    let pieces = stream::unfold(Some((body, names.restorer())), async |state| {
        let (mut body, mut restorer) = state?;
        Some(match body.next().await {
            Some(Ok(bytes)) => (Ok(restorer.push(&bytes)), Some((body, restorer))),
            Some(Err(error)) => (Err(error), None),
            None => (Ok(restorer.finish()), None),
        })
    });
    reply.body =
        Content::Bytes(pieces.filter(|piece| ready(piece.as_ref().map_or(true, |bytes| !bytes.is_empty()))).boxed());
    reply
}

/// The request with what only llama-server is asked.
fn dressed(kind: Kind, body: &Bytes, options: ChatOptions) -> reqwest::Body {
    if !matches!(kind, Kind::LlamaServer { .. }) {
        return body.clone().into();
    }
    let body = options.id_slot.map_or_else(|| body.clone(), |slot| llama_server::in_slot(body, slot));
    if options.tells_stop { llama_server::telling_stop(&body).into() } else { body.into() }
}

/// The words of a refusal, which are put back.
async fn refusal(reply: &mut Reply) -> Option<Bytes> {
    let mut body = std::mem::replace(&mut reply.body, Content::empty());
    let mut out = BytesMut::new();
    while out.len() <= ERROR_BODY {
        match body.next().await {
            Some(Ok(chunk)) => out.extend_from_slice(&chunk),
            None => {
                reply.body = Content::whole(out.clone().freeze());
                return Some(out.freeze());
            }
            Some(Err(error)) => {
                let said = futures_util::stream::iter([Ok(out.freeze()), Err(error)]);
                reply.body = Content::Bytes(said.boxed());
                return None;
            }
        }
    }
    let begun = futures_util::stream::iter([Ok(out.freeze())]);
    reply.body = Content::Bytes(begun.chain(body).boxed());
    None
}
