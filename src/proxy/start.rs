//! Puts an [`App`] together from the settings: the record, the upstreams, looked for where none is named.

use std::path::Path;

use tracing::{info, warn};

use super::find::{Found, find};
use super::{App, Error};
use crate::config::{Config, DEFAULT_SCOPE};
use crate::files;
use crate::measure::hardware::room::size;
use crate::proxy::ahead::retention::keep_house;
use crate::proxy::desk::machine::rest_counters;
use crate::proxy::lookout::{keep_asking, keep_looking};
use crate::proxy::servers::window_of;
use crate::proxy::state::fresh::know_served;
use crate::store::{Copied, Progress, Shared, Store, copy};
use crate::upstream::{Embedded, Held, Upstream};
use crate::usage::Metrics;

impl App {
    /// Opens the record, keeps it within its limits from here on, and finds the upstreams. A named upstream that does not answer yet is kept: it may come.
    ///
    /// # Errors
    /// When the record cannot be opened, or an upstream's URL cannot be used.
    pub async fn start(config: Config) -> Result<(App, Found), Error> {
        let store = open_record(&config)?;
        Self::start_on(config, store).await
    }

    /// As [`App::start`], on a record that is open already.
    ///
    /// # Errors
    /// As [`App::start`].
    pub async fn start_on(config: Config, store: Store) -> Result<(App, Found), Error> {
        if let Some(why) = files::open_to_others(&config.data_dir) {
            let data_dir = config.data_dir.display();
            warn!(%data_dir, "data_dir {why}: they could replace or remove the record; `windowsill doctor` says how to mend it");
        }
        let (mut app, found) = Self::with_store(config, store).await?;
        if let Some(target) = app.config.log.telemetry.clone() {
            app.metrics = std::sync::Arc::new(Metrics::telling(target)?);
        }
        keep_telling(&app);
        know_served(&app);
        keep_house(&app);
        rest_counters(&app);
        keep_looking(&app);
        keep_asking(&app);
        Ok((app, found))
    }

    /// As [`App::start`], with a record that is thrown away: for dry runs.
    ///
    /// # Errors
    /// As [`App::start`].
    pub async fn start_dry(config: Config, scratch: &std::path::Path) -> Result<App, Error> {
        let store = Store::open(scratch)?;
        Ok(Self::with_store(config, store).await?.0)
    }

    /// Loads the models that this program serves itself.
    ///
    /// # Errors
    /// When one cannot be loaded.
    pub async fn load_embedded(&self) -> Result<(), Error> {
        for upstream in &self.servers.all {
            let Some(model) = upstream.embedded_model() else { continue };
            upstream.let_load();
            info!(model, "loading it");
            let window = window_of(self, upstream, model).await;
            let loaded = upstream.loaded(model).await.ok().filter(|loaded| !loaded.provisional);
            if let Some(loaded) = loaded {
                let memory = loaded.held.map_or_else(String::new, |held| held_in(held, upstream));
                info!(model, window = window.tokens, source = window.source, memory, "serving it");
            } else {
                let failed = upstream.embedded_engine().and_then(Embedded::why_not);
                let why = format!("{} cannot be served: {}", upstream.url(), failed.unwrap_or(window.source));
                return Err(Error::client(422, "cannot_serve", why, "see what fits: windowsill fit FILE.gguf"));
            }
        }
        Ok(())
    }

    async fn with_store(config: Config, store: Store) -> Result<(App, Found), Error> {
        let (upstreams, found) = find(&config).await?;
        Ok((App::new(config, store, upstreams), found))
    }
}

/// Opens the record that the settings name.
///
/// # Errors
/// When it cannot be opened, or the folder and the database do not fit.
pub fn open_record(config: &Config) -> Result<Store, Error> {
    let Some(url) = &config.record else { return Ok(Store::open(&config.data_dir)?) };
    let unfit = |why| Error::client(422, "cannot_start", format!("`record` cannot be used: {why}"), "");
    let shared = Shared::postgres(url.expose(), DEFAULT_SCOPE).map_err(unfit)?;
    Ok(Store::open_shared(&config.data_dir, &shared)?)
}

/// Copies the record in a folder into the database that a URL names, under the name of a scope, and verifies it. Not to be called from
/// async code.
///
/// # Errors
/// When it cannot be read or written, or is not what it was; in words, without the URL.
pub fn copy_record(from: &Path, url: &str, scope: &str, told: &mut dyn FnMut(Progress)) -> Result<Copied, String> {
    let to = Shared::postgres(url, scope).map_err(|why| format!("the database's URL cannot be used: {why}"))?;
    // Beside the record: it takes as much room as that once more, for a while.
    let scratch = files::scratch_in(from).map_err(|e| format!("`{}`: {e}", from.display()))?;
    copy(from, &to, scratch.path(), told).map_err(|e| e.to_string())
}

/// Has the spans of requests delivered, where they are wanted.
fn keep_telling(app: &App) {
    if let Some(spans) = app.metrics.spans().cloned() {
        app.tasks.spawn(async move { spans.deliver().await });
    }
}

/// Where a model is that this program serves itself, in words.
fn held_in(held: Held, upstream: &Upstream) -> String {
    let in_ram = size(held.total.saturating_sub(held.device));
    let gpus = upstream.embedded_engine().map(Embedded::gpus).unwrap_or_default();
    if held.device == 0 {
        format!("{in_ram} in RAM")
    } else {
        format!("{} on {}, {in_ram} in RAM", size(held.device), gpus.join(" and "))
    }
}
