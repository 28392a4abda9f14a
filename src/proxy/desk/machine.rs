//! The machine, asked on behalf of people and requests: the window of a model and what happened to it, what a model may
//! have, and `windowsill fit`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::{Config, NumCtx};
use crate::measure::Counting;
use crate::measure::afford::report::{Report, Wish};
use crate::measure::afford::{Afforded, Machine, UNSEEN};
use crate::measure::own::Counters;
use crate::measure::shown::{self, Shown};
use crate::proxy::ahead::background::Tasks;
use crate::proxy::find::find;
use crate::proxy::lookout::servers;
use crate::proxy::{App, Error};
use crate::upstream::{Kind, Loaded, ModelInfo, Upstream};

/// The folder in the data directory of what servers tell of models that are not here.
pub(in crate::proxy) const VOCABULARIES: &str = "vocabularies";

/// Time between two looks at the processes that count.
const LOOK: Duration = Duration::from_secs(60);

/// Has processes that count end where nobody asks them.
pub(in crate::proxy) fn rest_counters(app: &App) {
    let counters = Arc::clone(&app.measure.counters);
    app.tasks.spawn(async move {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let counters = Arc::clone(&counters);
            // To end a process is to wait for it.
            let _ = tokio::task::spawn_blocking(move || counters.rest()).await;
        }
    });
}

/// `GET /windowsill/models`: every model's window, where each number came from, and its memory budget.
///
/// # Errors
/// None today: what cannot be had is said in its place.
pub async fn windows(app: &App) -> Result<Value, Error> {
    let mut out = Vec::new();
    for (_, upstream) in servers(app) {
        let models = match upstream.models().await {
            Ok(models) => models,
            Err(e) => {
                out.push(json!({"upstream": upstream.name(), "url": upstream.url(), "error": e.to_string()}));
                continue;
            }
        };
        for model in models {
            out.push(window_report(app, upstream, &model).await);
        }
    }
    Ok(json!({"models": out}))
}

async fn window_report(app: &App, upstream: &Upstream, model: &ModelInfo) -> Value {
    let machine = app.measure.windows.machine();
    let seen = Seen::of(machine, &app.measure.counters, upstream, model).await;
    let mut out = seen.json(upstream, model);
    out["url"] = json!(upstream.url());
    let decision = app.measure.windows.decision(upstream, &model.id);
    let file = seen.loaded.as_ref().and_then(|l| l.model_path.as_deref());
    let mismatch = file.and_then(|file| app.measure.counters.mismatch(upstream.name(), Path::new(file)));
    if let Some((own, theirs)) = mismatch {
        out["count_mismatch"] = json!({"own_tokens": own, "server_tokens": theirs});
    }
    out["num_ctx"] = match (app.config.window.num_ctx, decision) {
        (NumCtx::Loaded, _) => json!({"asked": "loaded"}),
        (NumCtx::Fixed(n), _) => json!({"asked": n}),
        (NumCtx::Fit, None) => json!({"asked": "fit", "decided": null}),
        (NumCtx::Fit, Some(d)) => json!({"asked": "fit", "decided": d.num_ctx, "because": d.because}),
    };
    out
}

/// What can be seen of a model: what its server says, and what the machine affords.
pub(in crate::proxy) struct Seen {
    /// What the server says; `None` where it does not answer for this model.
    pub(in crate::proxy) loaded: Option<Loaded>,
    /// What the machine affords, or why that cannot be said.
    pub(in crate::proxy) afforded: Result<Afforded, String>,
    /// How its prompts are counted.
    pub(in crate::proxy) counting: Counting,
}

impl Seen {
    pub(in crate::proxy) async fn of(
        machine: &Machine,
        counters: &Counters,
        upstream: &Upstream,
        model: &ModelInfo,
    ) -> Seen {
        match upstream.loaded(&model.id).await {
            Ok(loaded) => {
                let afforded = machine.afford(upstream, &model.id, &loaded, Duration::ZERO).await;
                let counting = counters.counting(upstream, loaded.model_path.as_deref());
                Seen { loaded: Some(loaded), afforded, counting }
            }
            Err(e) => Seen {
                loaded: None,
                afforded: Err(format!("the server does not describe it: {e}")),
                counting: counters.counting(upstream, None),
            },
        }
    }

    /// The trained length, and who says so.
    pub(in crate::proxy) fn trained(&self, model: &ModelInfo) -> (Option<u32>, &'static str) {
        match (self.loaded.as_ref().and_then(|l| l.trained).or(model.trained), &self.afforded) {
            (Some(n), _) => (Some(n), "the server"),
            (None, Ok(afforded)) => (Some(afforded.trained), "the model's file"),
            (None, Err(_)) => (None, "unknown"),
        }
    }

    /// The window it has now, or will have as far as can be foretold.
    pub(in crate::proxy) fn window(&self, model: &ModelInfo) -> Option<u32> {
        self.loaded.as_ref().and_then(|l| l.window).or(model.window)
    }

    pub(in crate::proxy) fn json(&self, upstream: &Upstream, model: &ModelInfo) -> Value {
        let loaded = self.loaded.as_ref();
        let (trained, trained_source) = self.trained(model);
        let (affordable, memory) = match &self.afforded {
            Ok(afforded) => (
                json!({
                    "gpu": afforded.fits.gpu, "gpu_and_ram": afforded.fits.gpu_and_ram, "num_ctx": afforded.fits.best,
                    "because": afforded.fits.because,
                }),
                json!({
                    "gpu_bytes": afforded.room.device_bytes(), "ram_bytes": afforded.room.host,
                    "unified": afforded.room.unified, "because": afforded.room.because, "notes": afforded.notes,
                }),
            ),
            Err(why) => (json!({"num_ctx": null, "because": why}), Value::Null),
        };
        json!({
            "upstream": upstream.name(), "kind": upstream.kind().map(|k| k.as_str()), "model": model.id,
            "trained": trained, "trained_source": trained_source,
            "window": self.window(model), "loaded": model.loaded,
            "can_be_told": upstream.kind().is_some_and(Kind::can_be_told), "takes_window": upstream.kind().is_some_and(Kind::takes_window),
            "source": loaded.map(|l| l.asked_of), "provisional": loaded.map(|l| l.provisional),
            "slots": loaded.and_then(|l| l.slots), "slots_share_one_window": loaded.and_then(|l| l.unified),
            "held_bytes": loaded.and_then(|l| l.held).map(|held| held.total),
            "held_gpu_bytes": loaded.and_then(|l| l.held).map(|held| held.device),
            "counted_with": self.counting.as_str(), "affordable": affordable, "memory": memory,
        })
    }
}

/// `windowsill fit MODEL`: a GGUF file, a model that a server serves, or one in Ollama's folders.
///
/// # Errors
/// When there is no such model, or what there is of it cannot be read.
pub async fn fit(config: &Config, name: &str, wish: &Wish) -> Result<Report, Error> {
    let tasks = Tasks::default();
    let machine = Machine::of(config, asking(config, &tasks));
    let path = Path::new(name);
    let bad = |why: String| Error::client(422, "cannot_fit", why, "");
    if path.is_file() {
        let subject = machine.file(path).map_err(bad)?;
        let shown = path.file_name().map_or(name.to_owned(), |name| name.to_string_lossy().into_owned());
        return subject.with(wish).report(&shown, wish).map_err(bad);
    }
    let mut trouble = Vec::new();
    let (upstreams, _) = find(config).await?;
    let mut asked = Vec::new();
    for upstream in upstreams.into_iter().filter(|upstream| upstream.is_there()) {
        asked.push(upstream.url().to_owned());
        match served(&machine, &upstream, name, wish).await {
            Some(Ok(subject)) => return subject.with(wish).report(name, wish).map_err(bad),
            Some(Err(why)) => trouble.push(format!("{}: {why}", upstream.name())),
            None => {}
        }
    }
    match machine.in_ollama_folders(name) {
        Some(Ok(subject)) => return subject.with(wish).report(name, wish).map_err(bad),
        Some(Err(why)) => trouble.push(why),
        None => {}
    }
    let why = match trouble.as_slice() {
        [] if asked.is_empty() => {
            "there is no such file, no server was found to ask, and Ollama's folders do not have it".to_owned()
        }
        [] => format!(
            "there is no such file, {} does not list it, and Ollama's folders do not have it",
            asked.join(" or ")
        ),
        all => all.join("; "),
    };
    Err(Error::client(
        404,
        "model_not_found",
        format!("`{name}` cannot be looked at: {why}"),
        "name a GGUF file, a model as `ollama list` does, or its server with `--upstream URL`",
    ))
}

/// A model of an upstream; `None` where it lists no such model.
async fn served(
    machine: &Machine,
    upstream: &Arc<Upstream>,
    name: &str,
    wish: &Wish,
) -> Option<Result<crate::measure::afford::Subject, String>> {
    let models = upstream.models().await.ok()?;
    let model = models.iter().find(|model| crate::proxy::servers::same_model(&model.id, name))?;
    if !upstream.is_local() && (wish.memory.is_none() || wish.gpu_layers.is_some()) {
        return Some(Err(format!("{UNSEEN}: name all that the model may take with --memory, and no --gpu-layers")));
    }
    let loaded = match upstream.loaded(&model.id).await {
        Ok(loaded) => loaded,
        Err(e) => return Some(Err(e.to_string())),
    };
    Some(machine.served(upstream, &model.id, &loaded, shown::QUESTION_WAITS).await)
}

/// What servers tell of models that are not here, asked for by these tasks.
pub(in crate::proxy) fn asking(config: &Config, tasks: &Tasks) -> Shown {
    let behind = tasks.clone();
    Shown::asking(
        config.data_dir.join(VOCABULARIES),
        config.machine.program.clone(),
        Box::new(move |task| behind.spawn(task)),
    )
}
