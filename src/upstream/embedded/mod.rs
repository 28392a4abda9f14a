//! A GGUF file that this program serves itself: llama-server's paths and words, answered in this process by the engine. To
//! all else it is a llama-server, except that it loads its model with the window it is told.

mod nested;
mod reply;
mod request;
mod sending;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::engine::generate::{Answers, Event, Facts, Generator, Refused, Request, Setup, Wants};
use crate::gguf::CacheTypes;
use reply::{Reply, Said};
use request::{Asked, Form};
use sending::{at_once, failed, not_loaded, streamed, whole};

/// The window where nobody named one and none could be fitted (tokens): what fits almost anywhere.
const LEAST_WINDOW: u32 = 4096;

/// How many tokens are handed to llama.cpp at once, and evaluated at once: llama-server's own.
const BATCHES: (u32, u32) = (2048, 512);

/// From this size on, a request is read on a blocking thread (bytes).
const LARGE: usize = 256 * 1024;

/// What is served, and how.
#[derive(Debug, Clone)]
pub struct Serving {
    /// The model's file.
    pub file: PathBuf,
    /// This program, which the model runs in another process of.
    pub program: PathBuf,
    /// Threads to work with.
    pub threads: Threads,
    /// The types of the KV cache; `None` for f16.
    pub kv_type: Option<CacheTypes>,
    /// Layers on GPUs, from the last; more than there are for all, `None` for as many as fit.
    pub gpu_layers: Option<u32>,
    /// The share of each GPU's memory to leave free where as many as fit go there.
    pub headroom: f64,
    /// The chat template in the file.
    pub template: Option<String>,
    /// A chat template that takes its place.
    pub own_template: Option<String>,
    /// RAM that is free now (bytes).
    pub free_ram: FreeRam,
}

/// Tells how much RAM is free now (bytes).
#[derive(Clone)]
pub struct FreeRam(Arc<dyn Fn() -> u64 + Send + Sync>);

impl FreeRam {
    /// By this function.
    pub fn by(tell: impl Fn() -> u64 + Send + Sync + 'static) -> FreeRam {
        FreeRam(Arc::new(tell))
    }
}

impl std::fmt::Debug for FreeRam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FreeRam").finish_non_exhaustive()
    }
}

/// A model's file, and the process that answers with it once it is loaded.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    serving: Serving,
    id: String,
    /// It may load: not in dry runs.
    loads: AtomicBool,
    running: Mutex<Option<Running>>,
    /// Why it could not be loaded, when it was tried last.
    failed: Mutex<Option<String>>,
    /// The window it was last loaded with (tokens).
    asked: Mutex<Option<u32>>,
    /// One at a time loads; those who want the same find it done.
    loading: tokio::sync::Mutex<()>,
    slot: Mutex<Slot>,
    replies: AtomicU64,
}

/// Threads to work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// For one token after the other: as many as there are cores.
    pub one: u32,
    /// For prompts: as many as the machine runs at once.
    pub batch: u32,
}

#[derive(Clone)]
struct Running {
    /// The window that was asked for (tokens).
    asked: u32,
    generator: Generator,
}

/// What llama-server tells of its slot.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    busy: u32,
    task: u64,
    held: u32,
}

impl Embedded {
    /// A file to be served by this program. Nothing is loaded yet.
    pub fn new(serving: Serving) -> Embedded {
        let id =
            serving.file.file_stem().map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned());
        Embedded {
            inner: Arc::new(Inner {
                serving,
                id,
                loads: AtomicBool::new(false),
                running: Mutex::default(),
                failed: Mutex::default(),
                asked: Mutex::default(),
                loading: tokio::sync::Mutex::default(),
                slot: Mutex::default(),
                replies: AtomicU64::new(0),
            }),
        }
    }

    /// Why the model could not be loaded, when that was tried last.
    pub fn why_not(&self) -> Option<String> {
        self.inner.failed.lock().clone()
    }

    /// The model's name: its file's, without the ending.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// The model's file.
    pub fn file(&self) -> &Path {
        &self.inner.serving.file
    }

    /// The types of its KV cache, where they were named.
    pub fn kv_type(&self) -> Option<CacheTypes> {
        self.inner.serving.kv_type
    }

    /// Its layers on GPUs; `None` for as many as fit.
    pub fn gpu_layers(&self) -> Option<u32> {
        self.inner.serving.gpu_layers
    }

    /// The GPUs that hold some of it, by name, once it is loaded.
    pub fn gpus(&self) -> Vec<String> {
        self.running().map(|running| running.generator.facts().gpus.clone()).unwrap_or_default()
    }

    /// Prompts are rendered by the templates in the file, and no other.
    pub fn renders_by_file(&self) -> bool {
        self.inner.serving.own_template.is_none()
    }

    pub(super) fn loads(&self) -> bool {
        self.inner.loads.load(Ordering::Acquire)
    }

    pub(super) fn let_load(&self) {
        self.inner.loads.store(true, Ordering::Release);
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.running().is_some()
    }

    /// Loads the model with this window (tokens), unless it is; without one, as it is, or with a small one.
    ///
    /// # Errors
    /// Why it cannot be loaded, in words.
    pub(super) async fn load(&self, num_ctx: Option<u32>) -> Result<(), String> {
        let _one_at_a_time = self.inner.loading.lock().await;
        let there = self.running().map(|running| running.asked);
        if there.is_some() && (num_ctx.is_none() || num_ctx == there) {
            return Ok(());
        }
        let before = *self.inner.asked.lock();
        let asked = num_ctx.or(before).unwrap_or(LEAST_WINDOW);
        // The memory of the one is wanted for the other.
        *self.inner.running.lock() = None;
        let inner = Arc::clone(&self.inner);
        let (n_batch, n_ubatch) = (BATCHES.0.min(asked), BATCHES.1.min(asked));
        let start = move || {
            let Serving { file, program, threads: Threads { one, batch }, own_template, .. } = &inner.serving;
            let Serving { kv_type, gpu_layers, headroom, .. } = inner.serving;
            let kv_type = kv_type.unwrap_or_default();
            let (threads, threads_batch) = (*one, *batch);
            let setup =
                Setup { n_ctx: asked, n_batch, n_ubatch, threads, threads_batch, kv_type, gpu_layers, headroom };
            Generator::start(program, file, &setup, own_template.as_deref())
        };
        let started = tokio::task::spawn_blocking(start).await.map_err(|e| e.to_string())?;
        let started = started.map_err(|why| format!("{}: {why}", self.file().display()));
        *self.inner.failed.lock() = started.as_ref().err().cloned();
        let generator = started?;
        *self.inner.running.lock() = Some(Running { asked, generator });
        *self.inner.asked.lock() = Some(asked);
        Ok(())
    }

    /// What is loaded, if it is still there.
    fn running(&self) -> Option<Running> {
        self.inner.running.lock().clone().filter(|running| !running.generator.gone())
    }

    /// Answers a request as llama-server would.
    pub(super) async fn answer(&self, request: reqwest::Request) -> reqwest::Response {
        let path = request.url().path().to_owned();
        let body = request.body().and_then(reqwest::Body::as_bytes).map(Bytes::copy_from_slice).unwrap_or_default();
        let running = self.running();
        let response = match (request.method(), path.as_str(), running) {
            (&Method::GET, "/health" | "/v1/health", Some(_)) => whole(StatusCode::OK, &json!({"status": "ok"})),
            (&Method::GET, "/props", running) => whole(StatusCode::OK, &self.props(running.as_ref())),
            (&Method::GET, "/v1/models" | "/models", running) => whole(StatusCode::OK, &self.models(running.as_ref())),
            (&Method::GET, "/slots", Some(running)) => whole(StatusCode::OK, &self.slots(&running)),
            (&Method::POST, "/v1/chat/completions" | "/chat/completions", running) => {
                self.reply(body, Form::Chat, running).await
            }
            (&Method::POST, "/v1/chat/completions/input_tokens" | "/chat/completions/input_tokens", running) => {
                self.counted(body, running).await
            }
            (&Method::POST, "/v1/completions", running) => self.reply(body, Form::Text, running).await,
            (&Method::POST, "/completion" | "/completions", running) => self.reply(body, Form::Native, running).await,
            (&Method::POST, "/tokenize" | "/detokenize" | "/apply-template", running) => {
                self.words(&path, &body, running).await
            }
            (_, "/health" | "/v1/health" | "/slots", None) => not_loaded(),
            (method, path, _) => {
                let what = format!("the embedded engine has no {method} {path}: it chats, and continues texts");
                failed(reply::error(404, "not_found_error", &what))
            }
        };
        reqwest::Response::from(response)
    }

    fn props(&self, running: Option<&Running>) -> Value {
        let serving = &self.inner.serving;
        json!({
            "default_generation_settings": {"n_ctx": running.map_or(0, |r| r.generator.facts().n_ctx)},
            "total_slots": 1, "model_path": serving.file, "modalities": {"vision": false, "audio": false},
            "chat_template": serving.own_template.as_ref().or(serving.template.as_ref()),
            "build_info": reply::BUILD,
            "held": running.map(|r| r.generator.facts()).map(|f| json!({"gpu_bytes": f.on_gpus, "ram_bytes": f.in_ram})),
        })
    }

    fn models(&self, running: Option<&Running>) -> Value {
        let meta = |Facts { n_ctx, trained, n_vocab, bytes, parameters, .. }: &Facts| json!({"n_ctx": n_ctx, "n_ctx_train": trained, "n_vocab": n_vocab, "size": bytes, "n_params": parameters});
        let meta = running.map_or(Value::Null, |running| meta(running.generator.facts()));
        let entry = json!({"id": self.inner.id, "object": "model", "owned_by": "windowsill", "meta": meta});
        json!({"object": "list", "data": [entry]})
    }

    fn slots(&self, running: &Running) -> Value {
        let slot = *self.inner.slot.lock();
        let mut out = json!({"id": 0, "n_ctx": running.generator.facts().n_ctx, "is_processing": slot.busy > 0});
        if slot.task > 0 {
            (out["id_task"], out["n_prompt_tokens"]) = (slot.task.into(), slot.held.into());
        }
        json!([out])
    }

    /// The prompt tokens of a chat, as llama-server tells them.
    async fn counted(&self, body: Bytes, running: Option<Running>) -> Response<reqwest::Body> {
        let request = match read(body, Form::Chat).await {
            Ok(asked) => Request { wants: Wants::Count, ..asked.request },
            Err(why) => return failed(reply::error(400, "invalid_request_error", &why)),
        };
        let Some(running) = running else { return not_loaded() };
        match Told::of(self, &running, request).next().await {
            Event::Counted(tokens) => whole(StatusCode::OK, &json!({"input_tokens": tokens})),
            Event::Refused(why) => failed(reply::refusal(&why)),
            _ => failed(reply::error(500, "server_error", "the process that generates answered something else")),
        }
    }

    /// What llama-server tells of texts, tokens and prompts.
    async fn words(&self, path: &str, body: &[u8], running: Option<Running>) -> Response<reqwest::Body> {
        let asked = match request::words(path, body) {
            Ok(asked) => asked,
            Err(why) => return failed(reply::error(400, "invalid_request_error", &why)),
        };
        let Some(running) = running else { return not_loaded() };
        let request = Request { body: asked, wants: Wants::Words, ..Request::default() };
        match Told::of(self, &running, request).next().await {
            Event::Words(told) => whole(StatusCode::OK, &told),
            Event::Refused(why) => failed(reply::refusal(&why)),
            _ => failed(reply::error(500, "server_error", "the process that generates answered something else")),
        }
    }

    async fn reply(&self, body: Bytes, form: Form, running: Option<Running>) -> Response<reqwest::Body> {
        let asked = match read(body, form).await {
            Ok(asked) => asked,
            Err(why) => return failed(reply::error(400, "invalid_request_error", &why)),
        };
        // The process may be gone since: what was loaded once is loaded again.
        let again = running.is_none() && self.inner.asked.lock().is_some();
        if again && let Err(why) = self.load(None).await {
            return failed(reply::error(500, "server_error", &why));
        }
        let Some(running) = running.or_else(|| self.running()) else { return not_loaded() };
        let number = self.inner.replies.fetch_add(1, Ordering::Relaxed);
        let now = crate::clock::now();
        let kind = if form == Form::Chat { "chatcmpl" } else { "cmpl" };
        let (usage, model, mut each) = (asked.usage, asked.model.clone(), asked.each());
        let shape = Reply {
            id: format!("{kind}-{:x}-{number:x}", now.as_nanos()),
            created: now.as_secs(),
            model: model.unwrap_or_else(|| self.inner.id.clone()),
            form,
            asked: asked.again(),
            choices: asked.choices,
            tokens: asked.tokens,
            fields: asked.fields,
            n_ctx: running.generator.facts().n_ctx,
            index: 0,
        };
        let request = each.next().unwrap_or_default();
        let stream = request.stream;
        let mut told = Told::of(self, &running, request.clone());
        let mut first = told.next().await;
        // The process may have ended before it took this request up, which is then not to blame. One that ends the process is
        // never put to the next.
        if matches!(first, Event::Refused(Refused::Failed(_))) && running.generator.gone() && !told.taken {
            if let Err(why) = self.load(None).await {
                return failed(reply::error(500, "server_error", &why));
            }
            let Some(running) = self.running() else { return not_loaded() };
            told = Told::of(self, &running, request);
            first = told.next().await;
        }
        let owned = self.clone();
        // The others are asked for in turn; a process that ends meanwhile says so itself.
        let more = each.map(move |request| Told::of(&owned, &running, request));
        match first {
            Event::Refused(why) => told.refused(&why),
            _ if stream => streamed(told, more, shape, usage),
            _ => at_once(told, more, shape).await,
        }
    }
}

/// A request that the slot works on, or will.
struct Work(Embedded);

impl Work {
    fn begin(embedded: &Embedded) -> Work {
        embedded.inner.slot.lock().busy += 1;
        Work(embedded.clone())
    }

    fn holds(&self, tokens: u32) {
        let mut slot = self.0.inner.slot.lock();
        slot.task += 1;
        slot.held = tokens;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut slot = self.0.inner.slot.lock();
        slot.busy = slot.busy.saturating_sub(1);
    }
}

/// What the engine tells of a reply. Dropped, the request is taken back.
struct Told {
    events: Answers,
    work: Work,
    said: Said,
    /// The process has begun to work on it.
    taken: bool,
}

impl Told {
    fn of(embedded: &Embedded, running: &Running, request: Request) -> Told {
        let request = Request { spare: (embedded.inner.serving.free_ram.0)(), ..request };
        Told {
            events: running.generator.ask(request),
            work: Work::begin(embedded),
            said: Said::default(),
            taken: false,
        }
    }

    /// What happens next. An engine that falls silent is gone.
    async fn next(&mut self) -> Event {
        let gone = || Event::Refused(Refused::Failed("the process that generates ended".into()));
        let mut event = self.events.next().await.unwrap_or_else(gone);
        while event == Event::Taken {
            self.taken = true;
            event = self.events.next().await.unwrap_or_else(gone);
        }
        match &event {
            Event::Said(deltas) => deltas.iter().for_each(|delta| self.said.take(delta)),
            Event::Text(text) => self.said.content.push_str(text),
            Event::Token(token) => self.said.tokens.push(*token),
            Event::Began { prompt_tokens, .. } => self.said.prompt = *prompt_tokens,
            Event::Odds(odds) => self.said.odds.push(odds.clone()),
            // The reply's last token is not in the context.
            Event::Ended(ended) => {
                self.work.holds(ended.prompt_tokens.saturating_add(ended.completion_tokens.saturating_sub(1)));
            }
            Event::Taken | Event::Counted(_) | Event::Words(_) | Event::Refused(_) => {}
        }
        event
    }

    /// The refusal as a response. A request that the process ended over is not to be sent again: clients' libraries do that
    /// with errors of a server, and each time all that is cached would be lost.
    fn refused(&self, why: &Refused) -> Response<reqwest::Body> {
        let mut response = failed(reply::refusal(why));
        if self.taken && matches!(why, Refused::Failed(_)) {
            response.headers_mut().insert("x-should-retry", header::HeaderValue::from_static("false"));
        }
        response
    }
}

/// Reads a request: a large one on a blocking thread.
async fn read(body: Bytes, form: Form) -> Result<Asked, String> {
    if body.len() < LARGE {
        return request::read(&body, form);
    }
    tokio::task::spawn_blocking(move || request::read(&body, form)).await.map_err(|e| e.to_string())?
}
