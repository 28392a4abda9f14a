//! Vocabularies of models whose files are not here: an Ollama on another machine or in a container tells them by
//! `/api/show`. Each is asked for once, behind the request that needs it first, and kept as a GGUF file under the digest of
//! the model's own, so that a restart asks nothing and a model that is replaced is asked for anew. Beside it the rest of the
//! header is kept, by which the memory of a context is reckoned.

mod folder;
mod header;
mod outline;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::count::CountWorker;
use crate::conversation::Digest;
use crate::engine::BUILT;
use crate::upstream::{Described, Error, Kind, Upstream};

/// How prompts are laid out where the server renders by a Go template, which is not read here: the vocabulary's own token
/// for the end of a turn around each message, and tools and calls as JSON. What the server makes of them differs by so much
/// a message and so much for the whole, which its replies tell.
pub const STAND_IN: &str = "\
{%- if tools %}{{- tools | tojson ~ '\\n' -}}{% endif -%}
{%- for message in messages -%}
  {{- eos_token ~ message.role ~ '\\n' -}}
  {%- if message.content is string -%}{{- message.content -}}
  {%- else -%}{%- for part in message.content or [] -%}{{- part.text or '' -}}{%- endfor -%}
  {%- endif -%}
  {%- for call in message.tool_calls or [] -%}{{- call | tojson -}}{%- endfor -%}
  {{- eos_token ~ '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- eos_token ~ 'assistant\\n' -}}{%- endif -%}";

/// How long a request waits for a vocabulary. The largest (16 MB) take about that in a local network. One that takes longer is
/// waited for by no request: the estimate serves, and evaluating a prompt takes seconds anyway.
pub const REQUEST_WAITS: Duration = Duration::from_secs(2);

/// How long a question of the user's, such as `windowsill count`, waits for one: there a count is all that is wanted.
pub const QUESTION_WAITS: Duration = Duration::from_secs(130);

/// A server that could not be asked is asked again after this.
const AGAIN: Duration = Duration::from_secs(60);

/// How headers are told from vocabularies, by their names.
const HEADER: &str = "header";

/// Headers in outline that are remembered.
const OUTLINES: usize = 64;

/// How often one file is asked for while this process runs, if it does not stay there or turns out broken.
const MOST_TIMES: u32 = 2;

/// What became of a question for a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Its file was written.
    Kept,
    /// There is none to be had, or none that can be used: it is not asked for again.
    Refused,
    /// The server could not be asked.
    Failed,
}

/// What is known of a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// Its file is here.
    pub is_here: bool,
    /// There is none to be had.
    pub is_refused: bool,
}

struct Asked {
    outcome: Shared<BoxFuture<'static, Outcome>>,
    at: Instant,
    times: u32,
}

/// Runs a task behind the request that began it.
pub type Run = Box<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

/// The vocabularies that were told.
#[derive(Default)]
pub struct Shown {
    /// Where their files are.
    folder: Option<PathBuf>,
    /// This program, which tries each in a process of its own.
    program: Option<PathBuf>,
    /// By whom more are asked for; `None` asks for none.
    run: Option<Run>,
    /// By digest.
    asked: Mutex<HashMap<String, Asked>>,
    /// Headers in outline, by server and model.
    outlines: Mutex<HashMap<(String, String), PathBuf>>,
}

impl Shown {
    /// Those that are in this folder, which need not be there. Never asks for more.
    pub fn within(folder: PathBuf, program: Option<PathBuf>) -> Shown {
        Shown { folder: Some(folder), program, ..Shown::default() }
    }

    /// As [`Shown::within`], and asks for more by tasks that `run` runs.
    pub fn asking(folder: PathBuf, program: Option<PathBuf>, run: Run) -> Shown {
        Shown { run: Some(run), ..Shown::within(folder, program) }
    }

    /// The file with the vocabulary of the model that a server has in `model_path`: asked for, if it is not here yet, and
    /// waited for this long.
    pub async fn file(
        &self,
        upstream: &Upstream,
        model: &str,
        model_path: &str,
        patience: Duration,
    ) -> Option<PathBuf> {
        let file = self.place(upstream, model_path).filter(|_| BUILT)?;
        if file.is_file() {
            return Some(file);
        }
        let outcome = self.asked(upstream, model, &file)?;
        let kept = tokio::time::timeout(patience, outcome).await == Ok(Outcome::Kept);
        (kept && file.is_file()).then_some(file)
    }

    /// The file with the header of such a model, but for its vocabulary, as [`Shown::file`]. Without patience, only one that
    /// is here: nothing is asked.
    pub async fn header(
        &self,
        upstream: &Upstream,
        model: &str,
        model_path: &str,
        patience: Duration,
    ) -> Option<PathBuf> {
        let vocabulary = self.place(upstream, model_path)?;
        let header = vocabulary.with_extension(HEADER);
        if !header.is_file() && !patience.is_zero() {
            let outcome = self.asked(upstream, model, &vocabulary)?;
            // One may be there for a model whose vocabulary is of no use.
            let _ = tokio::time::timeout(patience, outcome).await;
        }
        header.is_file().then_some(header)
    }

    /// The header of a model in outline: by what its server says of it in short, and how large its file is. For where nobody
    /// tells more. Without patience, only one that is here: nothing is asked.
    pub async fn outline(&self, upstream: &Upstream, model: &str, patience: Duration) -> Option<PathBuf> {
        let folder = self.folder.as_ref().filter(|_| upstream.kind() == Some(Kind::Ollama))?;
        let key = (upstream.url().to_owned(), upstream.canonical(model));
        if patience.is_zero() {
            return self.outlines.lock().get(&key).filter(|file| file.is_file()).cloned();
        }
        let (show, size) = tokio::time::timeout(patience, upstream.described_in_short(model)).await.ok()?.ok()?;
        let bytes = outline::file(&show, size)?;
        let file = folder.join(format!("outline-{}.{HEADER}", Digest::of(&bytes).hex()));
        let kept = file.clone();
        let write = move || {
            folder::make(&kept).and_then(|()| folder::Draft::write(&kept, &bytes)).and_then(folder::Draft::keep)
        };
        if !file.is_file()
            && let Err(e) = tokio::task::spawn_blocking(write).await.ok()?
        {
            warn!(upstream = upstream.name(), model, error = %e, "there is no room for the model's header");
            return None;
        }
        let mut all = self.outlines.lock();
        if all.len() >= OUTLINES {
            all.clear();
        }
        all.insert(key, file.clone());
        Some(file)
    }

    /// What is known of the vocabulary of the model that a server has in `model_path`; `None` where none can be told. Asks
    /// nothing.
    pub fn known(&self, upstream: &Upstream, model_path: &str) -> Option<Told> {
        let file = self.place(upstream, model_path).filter(|_| BUILT)?;
        let asked = self.asked.lock();
        let outcome = asked.get(&file.display().to_string()).and_then(|asked| asked.outcome.peek());
        Some(Told { is_here: file.is_file(), is_refused: outcome == Some(&Outcome::Refused) })
    }

    /// Deletes a file that turned out broken, so that it is asked for again, if it is one of these.
    pub fn spoiled(&self, file: &Path) {
        if self.folder.as_deref().is_some_and(|folder| file.parent() == Some(folder)) {
            let _ = std::fs::remove_file(file);
        }
    }

    /// Where the vocabulary of a model is or would be kept.
    fn place(&self, upstream: &Upstream, model_path: &str) -> Option<PathBuf> {
        let folder = self.folder.as_ref().filter(|_| upstream.kind() == Some(Kind::Ollama))?;
        Some(folder.join(format!("{}.gguf", digest(model_path)?)))
    }

    fn asked(&self, upstream: &Upstream, model: &str, file: &Path) -> Option<Shared<BoxFuture<'static, Outcome>>> {
        let run = self.run.as_ref()?;
        let key = file.display().to_string();
        let mut asked = self.asked.lock();
        let before = asked.get(&key);
        let again = before.is_none_or(|before| match before.outcome.peek() {
            None | Some(Outcome::Refused) => false,
            Some(Outcome::Kept) => before.times < MOST_TIMES,
            Some(Outcome::Failed) => before.at.elapsed() >= AGAIN,
        });
        if let Some(before) = before.filter(|_| !again) {
            return Some(before.outcome.clone());
        }
        let times = 1 + before.filter(|b| b.outcome.peek() == Some(&Outcome::Kept)).map_or(0, |b| b.times);
        let (tell, told) = tokio::sync::oneshot::channel();
        let answer = upstream.describe(model).boxed();
        let question = ask(answer, upstream.name().to_owned(), model.to_owned(), file.to_owned(), self.program.clone());
        run(question.map(|outcome| _ = tell.send(outcome)).boxed());
        // One that shutdown ends tells nothing.
        let outcome = told.map(|outcome| outcome.unwrap_or(Outcome::Failed)).boxed().shared();
        asked.insert(key, Asked { outcome: outcome.clone(), at: Instant::now(), times });
        Some(outcome)
    }
}

/// The digest in the name of one of Ollama's blobs, on whichever system: `…/blobs/sha256-<64 digits>`.
fn digest(model_path: &str) -> Option<&str> {
    let name = model_path.rsplit(['/', '\\']).next()?;
    let hex = name.strip_prefix("sha256-")?;
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then_some(name)
}

async fn ask(
    answer: BoxFuture<'static, Result<Bytes, Error>>,
    upstream: String,
    model: String,
    file: PathBuf,
    program: Option<PathBuf>,
) -> Outcome {
    let unless = "prompts are estimated";
    if let Err(e) = folder::make(&file) {
        warn!(upstream, model, file = %file.display(), error = %e, "there is no room for the model's vocabulary; {unless}");
        return Outcome::Refused;
    }
    let began = Instant::now();
    let answer = match answer.await {
        Ok(answer) => answer,
        Err(e) => {
            warn!(upstream, model, error = %e, "the model's vocabulary cannot be asked for now; {unless}");
            return Outcome::Failed;
        }
    };
    let bytes = answer.len();
    let kept =
        tokio::task::spawn_blocking(move || keep(&answer, &file, &|file| usable(program.as_deref(), file))).await;
    match kept {
        Ok(Ok(())) => {
            let ms = began.elapsed().as_millis();
            info!(upstream, model, bytes, ms, "/api/show gave the model's vocabulary");
            Outcome::Kept
        }
        Ok(Err(why)) => {
            warn!(upstream, model, why, "the model's vocabulary cannot be had; {unless}");
            Outcome::Refused
        }
        Err(_) => Outcome::Refused,
    }
}

/// Whether llama.cpp can use a vocabulary.
fn usable(program: Option<&Path>, file: &Path) -> Result<(), String> {
    let program = program.ok_or("where this program's own file is, is not known")?;
    CountWorker::read(program, file).map(drop).map_err(|e| e.to_string())
}

/// Writes the files that an answer makes: the header, and the vocabulary if it can be used.
fn keep(answer: &Bytes, file: &Path, usable: &dyn Fn(&Path) -> Result<(), String>) -> Result<(), String> {
    let described = Described::read(answer).map_err(|e| format!("/api/show gives no JSON that can be read: {e}"))?;
    if let Some(bytes) = header::file(&described) {
        let written = folder::Draft::write(&file.with_extension(HEADER), &bytes).and_then(folder::Draft::keep);
        written.map_err(|e| format!("{}: {e}", file.display()))?;
    }
    if !BUILT {
        return Err("this build counts with no vocabulary".to_owned());
    }
    // Ollama has names of its own for some architectures, and a newer one has some that are not known here; of these, a
    // vocabulary depends on none.
    let mut why = String::new();
    for architecture in [None, Some("llama")] {
        let bytes = vocabulary::file(&described, architecture).map_err(|e| e.to_string())?;
        let written = folder::Draft::write(file, &bytes).map_err(|e| format!("{}: {e}", file.display()))?;
        match usable(written.path()) {
            Ok(()) => return written.keep().map_err(|e| format!("{}: {e}", file.display())),
            Err(e) => why = e,
        }
    }
    Err(why)
}
