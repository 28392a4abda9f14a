//! The back door: talks to inference servers. It reports what they say and does not judge it: no window is chosen, no
//! message changed here. One file a kind of server; [`sse`], [`ndjson`], [`overflow`] and the Ollama translation are
//! pure.
//!
//! A chat goes out as an OpenAI chat request and comes back as an OpenAI reply, whatever the server. Ollama's own
//! OpenAI layer can neither set the window nor be told not to drop messages, so there the request is translated to its
//! native API.

mod collector;
mod embedded;
mod error;
pub mod event;
mod link;
mod llama_server;
mod llama_swap;
mod names;
pub mod ndjson;
mod ollama;
mod openai;
mod order;
pub mod overflow;
mod place;
mod probe;
mod settings;
pub mod sse;
pub(crate) mod turn;
pub mod unique;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header;
use http::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;

pub use collector::{Collector, Delivered};
pub use embedded::{Embedded, FreeRam, Serving, Threads};
pub use error::{Error, Server};
pub use link::{Reply, client};
pub use ollama::{Described, DescribedTensor, SMALLEST_DEFAULT_WINDOW};
pub use place::Place;

use crate::wire::parts::Takes;
use link::Link;

/// The limit on each question asked to recognize a server.
pub const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// A server that did not answer a probe is taken to be silent for so long at most.
const SILENT_FOR: Duration = Duration::from_secs(2);
/// The limit on each question about models and windows: a busy server may take its time.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// The limit on counting the tokens of a prompt, which may be megabytes.
const COUNT_LIMIT: Duration = Duration::from_secs(60);
/// The limit on writing a slot to a file, and on reading it back: gigabytes, at times.
const SLOT_LIMIT: Duration = Duration::from_secs(30);
/// The limit on describing a model's file, vocabulary included: up to 20 MB, over whatever network.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(120);
/// The limit on loading a model. Ollama itself gives up after 5 minutes without progress.
const LOAD_LIMIT: Duration = Duration::from_secs(900);

/// What kind of server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Ollama.
    Ollama,
    /// llama.cpp's llama-server.
    LlamaServer {
        /// Started without a model: it starts one child a model, on demand.
        router: bool,
    },
    /// This program itself, with a model's file.
    Embedded,
    /// Any other server with OpenAI's API.
    OpenAi(Flavor),
}

/// Which of the servers with OpenAI's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// vLLM.
    Vllm,
    /// LM Studio.
    LmStudio,
    /// SGLang.
    SgLang,
    /// TabbyAPI.
    TabbyApi,
    /// koboldcpp.
    KoboldCpp,
    /// llama-swap: starts a server for the model that a request names, and ends another one for it.
    LlamaSwap,
    /// None of those.
    Other,
}

impl Kind {
    /// Whether it loads a model with the window that a client asks for.
    pub fn takes_num_ctx(self) -> bool {
        matches!(self, Kind::Ollama | Kind::Embedded)
    }

    /// Whether a request may load the model that it names, and push another one out of memory for it.
    pub fn loads_by_request(self) -> bool {
        matches!(
            self,
            Kind::Ollama
                | Kind::LlamaServer { router: true }
                | Kind::OpenAi(Flavor::LmStudio | Flavor::LlamaSwap | Flavor::Other)
        )
    }

    /// Whether it can be told to take a model into memory, and to give it up: [`Upstream::bring`], [`Upstream::drop_model`].
    pub fn can_be_told(self) -> bool {
        let flavored = matches!(self, Kind::OpenAi(Flavor::LlamaSwap | Flavor::LmStudio));
        flavored || matches!(self, Kind::Ollama | Kind::LlamaServer { router: true })
    }

    /// Whether it can be told the window with which it takes a model into memory.
    pub fn takes_window(self) -> bool {
        self.takes_num_ctx() || matches!(self, Kind::OpenAi(Flavor::LmStudio))
    }

    /// Whether it answers a request of the Responses API as if a field were not there that refers to what is stored at OpenAI.
    /// Ollama reads none of them (openai/responses.go); llama-server refuses `previous_response_id` alone (seen on build 11549).
    pub fn passes_over(self, field: &str) -> bool {
        match self {
            Kind::Ollama => true,
            Kind::LlamaServer { .. } | Kind::Embedded => field != "previous_response_id",
            Kind::OpenAi(_) => false,
        }
    }

    /// The kind as one word, for logs and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Ollama => "ollama",
            Kind::LlamaServer { router: false } => "llama-server",
            Kind::LlamaServer { router: true } => "llama-server-router",
            Kind::Embedded => "embedded",
            Kind::OpenAi(Flavor::Vllm) => "vllm",
            Kind::OpenAi(Flavor::LmStudio) => "lm-studio",
            Kind::OpenAi(Flavor::SgLang) => "sglang",
            Kind::OpenAi(Flavor::TabbyApi) => "tabbyapi",
            Kind::OpenAi(Flavor::KoboldCpp) => "koboldcpp",
            Kind::OpenAi(Flavor::LlamaSwap) => "llama-swap",
            Kind::OpenAi(Flavor::Other) => "openai",
        }
    }
}

/// What the user said the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KindHint {
    /// Nothing: ask it.
    #[default]
    Auto,
    /// Ollama.
    Ollama,
    /// llama-server; whether it is a router is asked.
    LlamaServer,
    /// OpenAI's API; which server is asked.
    OpenAi,
}

/// A model as a server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// The name by which requests ask for it.
    pub id: String,
    /// The context length it was trained for (tokens), where listed.
    pub trained: Option<u32>,
    /// The window it is loaded with (tokens), where listed.
    pub window: Option<u32>,
    /// Whether it is loaded now; `None` where the server does not say.
    pub loaded: Option<bool>,
}

/// What a server says about the one model that a request would be answered by, now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Loaded {
    /// The window of one request (tokens, prompt and reply together); `None` where the server does not say.
    pub window: Option<u32>,
    /// What was asked to learn `window`, such as `/props` or `/api/ps`.
    pub asked_of: &'static str,
    /// The window may be another once the model is really loaded (or was never said to be the loaded one).
    pub provisional: bool,
    /// The context length the model was trained for (tokens).
    pub trained: Option<u32>,
    /// How many parameters the model has.
    pub parameters: Option<u64>,
    /// Changes when the model was reloaded or replaced; equal identities mean that all else here still holds.
    pub identity: String,
    /// How many requests it works on at once.
    pub slots: Option<u32>,
    /// The slots share one window (`true`), or each has its own; `None` where the server does not say.
    pub unified: Option<bool>,
    /// The chat template that the server renders with.
    pub template: Template,
    /// Where the model's file lies on the server's machine.
    pub model_path: Option<String>,
    /// What it takes beside text.
    pub takes: Takes,
    /// Whether it thinks before it answers, where the server says.
    pub thinks: Option<bool>,
    /// What it takes of the machine's memory now, where the server says; `None` also while it is not loaded.
    pub held: Option<Held>,
    /// What the other models that the server has loaded take, where it says.
    pub others: Held,
}

/// The chat template that a server renders with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Template {
    /// Its text (Jinja). A Go template is not reported.
    pub text: Option<String>,
    /// llama-server's `chat_template_caps`.
    pub caps: Option<Value>,
}

/// What a loaded model takes of the server's machine, by the server's own word (bytes).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// On GPUs and in RAM together.
    pub total: u64,
    /// On GPUs.
    pub device: u64,
}

/// What a chat request asks of the server beyond its body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChatOptions {
    /// The window to load the model with (tokens). Only Ollama can be asked; a value other than the loaded one makes
    /// it reload the model.
    pub num_ctx: Option<u32>,
    /// The slot to answer it in. Only llama-server has slots to choose; for calls of our own, since it changes the bytes
    /// of a request.
    pub id_slot: Option<u32>,
    /// Have it say which stop sequence ended the reply. Only llama-server has to be asked.
    pub tells_stop: bool,
    /// The request was said in other words by its client: what the server forbids of it is left out.
    pub translated: bool,
}

/// One of llama-server's slots, as `GET /slots` tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot {
    /// Its number, as requests name it.
    pub id: u32,
    /// It works on a request now.
    pub busy: bool,
    /// The number of the task it worked on last, which grows; `None` where it was never used.
    pub task: Option<u64>,
    /// Tokens that it holds: the last prompt, and the reply but for its last token.
    pub held: Option<u32>,
}

/// What was written to a file of a slot, or read from there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotFile {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// How long it took, where the server says.
    pub milliseconds: Option<f64>,
}

/// One inference server.
pub struct Upstream {
    link: Link,
    hint: KindHint,
    known: Mutex<Option<Kind>>,
    /// One probe at a time: those who wait use what it finds.
    probing: turn::Turn<Result<Kind, Error>>,
    /// The server was gone since it was recognized: something else may listen there now.
    stale: AtomicBool,
    /// It has no such endpoint (an older llama-server): do not ask again.
    cannot_count: AtomicBool,
    /// The settings that it takes, by model.
    settings: settings::Settings,
    /// Nobody named it: it is looked for where its like usually are.
    looked_for: bool,
    /// What llama-swap ended.
    swaps: llama_swap::Swaps,
    /// What it calls its models.
    names: names::Names,
    /// How often it was recognized.
    recognized: AtomicU64,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("server", &self.link.server)
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

impl Upstream {
    /// A server by the base URL users write: with or without scheme, trailing `/`, or `/v1`. Nothing is sent yet.
    pub fn new(client: reqwest::Client, name: String, url: &str, hint: KindHint) -> Result<Upstream, Error> {
        Ok(Upstream {
            link: Link::new(client, &name, url)?,
            hint,
            known: Mutex::new(None),
            probing: turn::Turn::default(),
            stale: AtomicBool::new(false),
            cannot_count: AtomicBool::new(false),
            settings: settings::Settings::default(),
            looked_for: false,
            swaps: llama_swap::Swaps::default(),
            names: names::Names::default(),
            recognized: AtomicU64::new(0),
        })
    }

    /// A model's file that this program serves itself. Nothing is loaded until [`Upstream::load`].
    pub fn embedded(client: reqwest::Client, name: &str, embedded: Embedded) -> Result<Upstream, Error> {
        Ok(Upstream {
            link: Link::within(client, name, embedded)?,
            hint: KindHint::Auto,
            known: Mutex::new(Some(Kind::Embedded)),
            probing: turn::Turn::default(),
            stale: AtomicBool::new(false),
            cannot_count: AtomicBool::new(false),
            settings: settings::Settings::default(),
            looked_for: false,
            swaps: llama_swap::Swaps::default(),
            names: names::Names::default(),
            recognized: AtomicU64::new(0),
        })
    }

    /// The same, where nobody named it: it is one of this proxy's servers only while it is there.
    pub fn looked_for(self) -> Upstream {
        Upstream { looked_for: true, ..self }
    }

    /// Whether it is one of this proxy's servers: it was named, or it was found and has not gone away since.
    pub fn is_there(&self) -> bool {
        !self.looked_for || self.fresh().is_some()
    }

    /// Whether [`Upstream::load`] loads a model where a request needs it: the embedded engine does so in `serve` alone.
    pub fn loads(&self) -> bool {
        self.link.embedded.as_ref().is_none_or(Embedded::loads)
    }

    /// Has the embedded engine load its model where a request needs it.
    pub fn let_load(&self) {
        self.link.embedded.iter().for_each(Embedded::let_load);
    }

    /// The key for requests that come without an `Authorization` of their own, and for our own questions.
    pub fn with_api_key(mut self, key: Option<String>) -> Result<Upstream, Error> {
        self.link.set_key(key.as_deref())?;
        Ok(self)
    }

    /// The header in which the server, a router, is told of conversations; see [`Upstream::tell_session`].
    pub fn with_session_header(mut self, name: Option<&str>) -> Result<Upstream, Error> {
        self.link.set_session_header(name)?;
        Ok(self)
    }

    /// Adds the header by which a router sends all of a conversation to one server, where one is configured. `conversation`: its id.
    pub fn tell_session(&self, headers: &mut HeaderMap, conversation: &str) {
        self.link.tell_session(headers, conversation);
    }

    /// The name of the model that this program serves itself; `None` for servers.
    pub fn embedded_model(&self) -> Option<&str> {
        self.link.embedded.as_ref().map(Embedded::id)
    }

    /// The model that this program serves itself; `None` for servers.
    pub fn embedded_engine(&self) -> Option<&Embedded> {
        self.link.embedded.as_ref()
    }

    /// The configured name.
    pub fn name(&self) -> &str {
        &self.link.server.name
    }

    /// The base URL, without credentials, `/v1` or a trailing `/`.
    pub fn url(&self) -> &str {
        &self.link.server.url
    }

    /// The kind last recognized; `None` before the first probe.
    pub fn kind(&self) -> Option<Kind> {
        *self.known.lock()
    }

    /// Asks the server what it is, and remembers it. Each question is limited to [`PROBE_LIMIT`]; all but the first are
    /// asked together, so the whole takes at most twice that, and 12 s more where some were answered and some not in time.
    pub async fn probe(&self) -> Result<Kind, Error> {
        if self.link.embedded.is_some() {
            return Ok(Kind::Embedded);
        }
        // Boxed: all of its questions together are large, and most of what is asked of a server may begin with them.
        let find = Box::pin(async {
            let kind = probe::recognize(&self.link, self.hint).await?;
            self.remember(kind);
            Ok(kind)
        });
        self.probing.find_lasting(of_use, find).await.0
    }

    /// Whether it answers. Of a server that is known, only what does not wake a model that sleeps is asked: `/props`, `/slots`
    /// and `/tokenize` wake one of ik_llama.
    ///
    /// # Errors
    /// When it does not.
    pub async fn alive(&self) -> Result<(), Error> {
        let path = match self.fresh() {
            Some(Kind::LlamaServer { .. } | Kind::OpenAi(Flavor::LlamaSwap)) => "/health",
            Some(Kind::Ollama) => "/api/version",
            Some(Kind::OpenAi(_)) => "/v1/models",
            Some(Kind::Embedded) => return Ok(()),
            None => return self.probe().await.map(|_| ()),
        };
        // One that is loading answers with 503.
        self.noting(self.link.ask_once(path, PROBE_LIMIT).await).map(|_| ())
    }

    /// What was recognized before, unless the server was gone since.
    async fn known(&self) -> Result<Kind, Error> {
        if let Some(kind) = self.fresh() {
            return Ok(kind);
        }
        self.probe().await
    }

    fn fresh(&self) -> Option<Kind> {
        if self.stale.load(Ordering::Acquire) { None } else { self.kind() }
    }

    fn remember(&self, kind: Kind) {
        *self.known.lock() = Some(kind);
        self.settings.forget();
        self.names.forget();
        self.cannot_count.store(false, Ordering::Release);
        self.stale.store(false, Ordering::Release);
        self.recognized.fetch_add(1, Ordering::AcqRel);
    }

    /// How often it was recognized: at the start, and whenever it came back. What is known of its templates may not hold any more.
    pub fn recognized(&self) -> u64 {
        self.recognized.load(Ordering::Acquire)
    }

    /// Notes that the server was gone, so that it is recognized anew when it is next needed.
    fn noting<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if result.as_ref().is_err_and(Error::is_gone) {
            self.stale.store(true, Ordering::Release);
        }
        result
    }

    /// The models the server lists.
    pub async fn models(&self) -> Result<Vec<ModelInfo>, Error> {
        let result = match self.known().await? {
            Kind::Ollama => ollama::models(&self.link).await,
            Kind::LlamaServer { router } => llama_server::models(&self.link, router, &self.names).await,
            Kind::Embedded => llama_server::models(&self.link, false, &self.names).await,
            Kind::OpenAi(Flavor::LlamaSwap) => llama_swap::models(&self.link, &self.swaps, &self.names).await,
            Kind::OpenAi(flavor) => openai::models(&self.link, flavor).await,
        };
        self.noting(result)
    }

    /// The window and what else the server says of the model that would answer a request for `model` now. Never loads
    /// a model.
    pub async fn loaded(&self, model: &str) -> Result<Loaded, Error> {
        let result = match self.known().await? {
            Kind::Ollama => {
                let loaded = ollama::loaded(&self.link, model).await;
                let thinks = loaded.as_ref().ok().and_then(|loaded| loaded.thinks);
                thinks.into_iter().for_each(|thinks| self.settings.thinks(&ollama::canonical(model), thinks));
                loaded
            }
            Kind::LlamaServer { router } => llama_server::loaded(&self.link, router, model, &self.names).await,
            Kind::Embedded => llama_server::loaded(&self.link, false, model, &self.names).await,
            Kind::OpenAi(Flavor::LlamaSwap) => llama_swap::loaded(&self.link, &self.swaps, model, &self.names).await,
            Kind::OpenAi(flavor) => openai::loaded(&self.link, flavor, model).await,
        };
        self.noting(result)
    }

    /// All that the server says of a model's file, vocabulary included, to be read with [`Described::read`]: asked once the
    /// future runs. Only Ollama can be asked. Never loads a model.
    pub fn describe(&self, model: &str) -> impl Future<Output = Result<Bytes, Error>> + Send + 'static + use<> {
        let (link, kind, model) = (self.link.clone(), self.kind(), model.to_owned());
        async move {
            match kind {
                Some(Kind::Ollama) => ollama::describe(&link, &model).await,
                _ => Err(link.protocol("cannot describe a model's file")),
            }
        }
    }

    /// What Ollama says of a model in short, as [`Described::read`] reads it, and the size of its file (bytes). Loads nothing.
    ///
    /// # Errors
    /// When it is no Ollama, does not answer, or does not list the model.
    pub async fn described_in_short(&self, model: &str) -> Result<(Bytes, u64), Error> {
        match self.known().await? {
            Kind::Ollama => ollama::described_in_short(&self.link, model).await,
            _ => Err(self.link.protocol("cannot describe a model's file")),
        }
    }

    /// Has the model loaded, with this window if one is given, so that [`Upstream::loaded`] is exact. Only Ollama, llama-swap and
    /// the embedded engine are asked; to the others this is nothing.
    pub async fn load(&self, model: &str, num_ctx: Option<u32>) -> Result<(), Error> {
        let result = match self.known().await? {
            Kind::Ollama => ollama::load(&self.link, model, num_ctx, &self.names).await,
            Kind::Embedded => match &self.link.embedded {
                Some(embedded) => embedded.load(num_ctx).await.map_err(|what| self.link.unloadable(what)),
                None => Ok(()),
            },
            Kind::OpenAi(Flavor::LlamaSwap) => llama_swap::load(&self.link, &self.swaps, model).await,
            _ => Ok(()),
        };
        self.noting(result)
    }

    /// Has a model taken into memory because a person asks for it; with this window, where the server takes one. A router begins
    /// it, and goes on by itself.
    ///
    /// # Errors
    /// When the server cannot be told, or does not do it.
    pub async fn bring(&self, model: &str, num_ctx: Option<u32>) -> Result<(), Error> {
        match self.known().await? {
            Kind::LlamaServer { router: true } => {
                self.noting(llama_server::tell_router(&self.link, "load", model, LOAD_LIMIT).await)
            }
            Kind::OpenAi(Flavor::LmStudio) => self.noting(openai::bring(&self.link, model, num_ctx).await),
            kind if kind.can_be_told() => self.load(model, num_ctx).await,
            _ => Err(self.link.protocol("cannot be told to load a model")),
        }
    }

    /// Has a model given up.
    ///
    /// # Errors
    /// When the server cannot be told, or does not do it.
    pub async fn drop_model(&self, model: &str) -> Result<(), Error> {
        let result = match self.known().await? {
            Kind::Ollama => ollama::unload(&self.link, model).await,
            Kind::LlamaServer { router: true } => {
                llama_server::tell_router(&self.link, "unload", model, ASK_LIMIT).await
            }
            Kind::OpenAi(Flavor::LlamaSwap) => llama_swap::unload(&self.link, model).await,
            Kind::OpenAi(Flavor::LmStudio) => openai::give_up(&self.link, model).await,
            _ => Err(self.link.protocol("cannot be told to give up a model")),
        };
        self.noting(result)
    }

    /// The identity of what is loaded under this name now, as [`Loaded::identity`] has it, by one cheap question; `None`
    /// where only [`Upstream::loaded`] can tell.
    pub async fn identity(&self, model: &str) -> Option<String> {
        match self.known().await.ok()? {
            Kind::Ollama => self.noting(ollama::identity(&self.link, model).await).ok(),
            Kind::Embedded | Kind::OpenAi(Flavor::LlamaSwap) => {
                self.loaded(model).await.ok().map(|loaded| loaded.identity)
            }
            _ => None,
        }
    }

    /// Where a model is at this moment. Loads nothing.
    pub async fn place(&self, model: &str) -> Place {
        match self.known().await {
            Ok(kind) if !kind.loads_by_request() => Place::Fixed,
            Ok(Kind::Ollama) => place::of_ollama(&self.link, model).await,
            Ok(Kind::LlamaServer { .. }) => place::of_router(&self.link, model).await,
            Ok(Kind::OpenAi(Flavor::LmStudio)) => openai::place(&self.link, model).await,
            Ok(_) => place::of_another(&self.link, model).await,
            Err(_) => Place::Unreached,
        }
    }

    /// The one name of a model: Ollama takes several spellings of it, llama-server, its router and llama-swap take aliases, and a
    /// llama-server with one model takes any name, as the embedded engine does. What they call it is known once they were asked.
    pub fn canonical(&self, model: &str) -> String {
        match (self.kind(), self.embedded_model()) {
            (_, Some(only)) => only.to_owned(),
            (Some(Kind::Ollama), _) => ollama::canonical(model),
            _ => self.names.of(model),
        }
    }

    /// The server's version, in its own words; `None` where it does not say.
    pub async fn version(&self) -> Option<String> {
        let (path, key) = match self.known().await.ok()? {
            Kind::Ollama => ("/api/version", "version"),
            Kind::LlamaServer { .. } | Kind::Embedded => ("/props", "build_info"),
            Kind::OpenAi(Flavor::Vllm) => ("/version", "version"),
            Kind::OpenAi(Flavor::LlamaSwap) => ("/api/version", "version"),
            Kind::OpenAi(_) => return None,
        };
        let answer = self.link.get(path, PROBE_LIMIT).await.ok()?;
        answer[key].as_str().map(str::to_owned)
    }

    /// The host and port of its address.
    pub fn authority(&self) -> (String, u16) {
        let uri: Option<http::Uri> = self.url().parse().ok();
        let usual = if self.url().starts_with("https") { 443 } else { 80 };
        let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default();
        (host.to_owned(), uri.as_ref().and_then(http::Uri::port_u16).unwrap_or(usual))
    }

    /// Whether it runs on this machine, as far as its address tells.
    pub fn is_local(&self) -> bool {
        if self.link.embedded.is_some() {
            return true;
        }
        let (host, _) = self.authority();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|ip| ip.to_canonical().is_loopback() || ip.is_unspecified())
    }

    /// The slots that work on a model, where the server has such and shows them.
    pub async fn slots(&self, model: &str) -> Vec<Slot> {
        match self.known().await {
            Ok(Kind::LlamaServer { router }) => llama_server::slots(&self.link, router, model).await,
            Ok(Kind::Embedded) => llama_server::slots(&self.link, false, model).await,
            Ok(Kind::OpenAi(Flavor::LlamaSwap)) => llama_swap::slots(&self.link, &self.swaps, model).await,
            _ => Vec::new(),
        }
    }

    /// Has a llama-server write what a slot holds to a file in its `--slot-save-path`. One that works waits until it is done.
    ///
    /// # Errors
    /// Where it was started without such a path, or does not answer.
    pub async fn save_slot(&self, slot: u32, file: &str) -> Result<SlotFile, Error> {
        self.noting(llama_server::slot_file(&self.link, slot, "save", file).await)
    }

    /// Has a llama-server take back into a slot what [`Upstream::save_slot`] wrote.
    ///
    /// # Errors
    /// Where it has no such file, or that is of another model.
    pub async fn restore_slot(&self, slot: u32, file: &str) -> Result<SlotFile, Error> {
        self.noting(llama_server::slot_file(&self.link, slot, "restore", file).await)
    }

    /// Whether [`Upstream::count`] is worth a try: the server can count the tokens of a chat request.
    pub fn can_count(&self) -> bool {
        if let Some(embedded) = &self.link.embedded {
            return embedded.is_loaded();
        }
        let able = matches!(
            self.kind(),
            Some(Kind::LlamaServer { .. } | Kind::OpenAi(Flavor::Vllm | Flavor::TabbyApi | Flavor::LlamaSwap))
        );
        able && !self.cannot_count.load(Ordering::Acquire)
    }

    /// The exact prompt tokens of this OpenAI chat request, as the server itself counts them.
    pub async fn count(&self, body: &Bytes) -> Result<u32, Error> {
        let result = match self.known().await? {
            Kind::LlamaServer { router } => llama_server::count(&self.link, router, body).await,
            Kind::OpenAi(Flavor::LlamaSwap) => llama_swap::count(&self.link, &self.swaps, body).await,
            Kind::OpenAi(flavor) => openai::count(&self.link, flavor, body).await,
            Kind::Embedded => llama_server::count(&self.link, false, body).await,
            Kind::Ollama => Err(self.link.protocol("Ollama cannot count the tokens of a request")),
        };
        if let Err(Error::Status { status, .. }) = &result
            && matches!(*status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED)
        {
            self.cannot_count.store(true, Ordering::Release);
        }
        self.noting(result)
    }

    /// Sends an OpenAI chat request and hands on the reply in OpenAI's shape as it arrives, whatever its status.
    ///
    /// `headers` are the client's; `accept-encoding` is not forwarded, since the reply is read here.
    pub async fn chat(
        &self,
        headers: &HeaderMap,
        path_and_query: &str,
        body: Bytes,
        options: ChatOptions,
    ) -> Result<Reply, Error> {
        let kind = self.known().await?;
        let mut headers = link::forwarded(headers);
        headers.remove(header::ACCEPT_ENCODING);
        let result = match kind {
            Kind::Ollama => ollama::chat(&self.link, headers, body, options, (&self.settings, &self.names)).await,
            _ => self.ask(kind, path_and_query, &headers, &body, options).await,
        };
        self.noting(result)
    }

    /// Sends any request as it is and hands on the reply as it arrives.
    pub async fn pass(
        &self,
        method: Method,
        path_and_query: &str,
        headers: &HeaderMap,
        body: reqwest::Body,
    ) -> Result<Reply, Error> {
        let mut forwarded = link::forwarded(headers);
        // A body that streams through keeps its length: not every server reads chunked requests.
        if body.as_bytes().is_none()
            && !headers.contains_key(header::TRANSFER_ENCODING)
            && let Some(length) = headers.get(header::CONTENT_LENGTH)
        {
            forwarded.insert(header::CONTENT_LENGTH, length.clone());
        }
        let result = self.forward(method, path_and_query, forwarded, body).await;
        self.noting(result)
    }

    async fn forward(
        &self,
        method: Method,
        path_and_query: &str,
        headers: HeaderMap,
        body: reqwest::Body,
    ) -> Result<Reply, Error> {
        let request = self.link.request(method, path_and_query, headers)?.body(body);
        Ok(self.link.reply(self.link.send(request).await?))
    }
}

/// Whether what a probe found is of use to who did not wait for it: that a server is silent, for a moment, since one request
/// asks several times, and each time it would wait as long again.
fn of_use(found: &Result<Kind, Error>, age: Duration, took: Duration) -> bool {
    // Where nobody listens, that shows at once, and is asked anew each time: a server may be starting.
    let silent = found.is_err() && took >= Duration::from_secs(1);
    age.is_zero() || silent && age < SILENT_FOR
}

/// A count of tokens in somebody's JSON; 0 means "not known" wherever servers use it.
fn tokens(value: &Value) -> Option<u32> {
    let n = value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0).map(|n| n as u64))?;
    u32::try_from(n).ok().filter(|n| *n > 0)
}

/// A name as one component of a query string.
fn query_component(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests;
