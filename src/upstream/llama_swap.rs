//! llama-swap: starts a server for the model that a request names, and ends another one for it. What runs is listed in `/running`,
//! and is asked itself below `/upstream/MODEL`. To ask that of a model that does not run would start it, so nothing else is
//! asked there. Source: llama-swap, internal/server/{server,api}.go, August 2026.

use std::collections::HashMap;

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use serde_json::Value;

use super::error::Error;
use super::link::Link;
use super::names::Names;
use super::{ASK_LIMIT, LOAD_LIMIT, Loaded, ModelInfo, Slot, llama_server, openai, settings, tokens};

/// How often each model was ended since it was first seen to run.
#[derive(Default)]
pub(super) struct Swaps(Mutex<HashMap<String, Swap>>);

#[derive(Default, Clone, Copy)]
struct Swap {
    runs: bool,
    ended: u32,
}

impl Swaps {
    /// Notes what runs now.
    fn note(&self, running: &[String]) {
        let mut all = self.0.lock();
        for (name, swap) in all.iter_mut() {
            let runs = running.contains(name);
            swap.ended += u32::from(swap.runs && !runs);
            swap.runs = runs;
        }
        for name in running {
            all.entry(name.clone()).or_default().runs = true;
        }
    }

    fn ended(&self, model: &str) -> u32 {
        self.0.lock().get(model).map_or(0, |swap| swap.ended)
    }
}

/// The models that it has, and which of them run.
pub(super) async fn models(link: &Link, swaps: &Swaps, names: &Names) -> Result<Vec<ModelInfo>, Error> {
    let (list, running) = tokio::join!(link.get("/v1/models", ASK_LIMIT), running(link, swaps));
    let (list, running) = (list?, running?);
    let entries = list["data"].as_array().ok_or_else(|| link.protocol("the list of models has no data"))?;
    names.note(entries, false);
    let info = |entry: &Value| {
        let id = entry["id"].as_str()?.to_owned();
        let loaded = running.contains(&real(&list, &id));
        Some(ModelInfo { id, trained: None, window: tokens(&entry["meta"]["n_ctx"]), loaded: Some(loaded) })
    };
    Ok(entries.iter().filter_map(info).collect())
}

/// What the model's own server says, where it runs; else what the list says of it. Starts nothing.
pub(super) async fn loaded(link: &Link, swaps: &Swaps, model: &str, names: &Names) -> Result<Loaded, Error> {
    let list = link.get("/v1/models", ASK_LIMIT).await?;
    names.note(list["data"].as_array().map_or(&[], Vec::as_slice), false);
    let name = real(&list, model);
    let runs = running(link, swaps).await?.contains(&name);
    let swap = format!("llama-swap {name} {}", swaps.ended(&name));
    if !runs {
        let listed = openai::from_list(list["data"].as_array().map_or(&[], Vec::as_slice), model);
        let window = listed.window.filter(|_| listed.asked_of.ends_with("n_ctx"));
        return Ok(Loaded { window, provisional: true, identity: format!("{swap} not running"), ..listed });
    }
    let below = link.below(&format!("/upstream/{name}"));
    let loaded = match llama_server::loaded(&below, false, &name, &Names::default()).await {
        Ok(loaded) if loaded.window.is_some() => loaded,
        // It may run any other server.
        _ => {
            let list = below.get("/v1/models", ASK_LIMIT).await?;
            openai::from_list(list["data"].as_array().map_or(&[], Vec::as_slice), &name)
        }
    };
    Ok(Loaded { identity: format!("{swap} {}", loaded.identity), ..loaded })
}

/// Has a model started, and waits until it answers: for a request that would start it anyway.
pub(super) async fn load(link: &Link, swaps: &Swaps, model: &str) -> Result<(), Error> {
    if running_as(link, swaps, model).await.is_none() {
        link.ask(Method::GET, &format!("/upstream/{model}/health"), None, LOAD_LIMIT).await?;
    }
    Ok(())
}

/// Has the server of a model ended (internal/server/api.go, `POST /api/models/unload/{model}`).
pub(super) async fn unload(link: &Link, model: &str) -> Result<(), Error> {
    let model = percent_encoding::utf8_percent_encode(model, percent_encoding::NON_ALPHANUMERIC);
    link.post_whole(&format!("/api/models/unload/{model}"), "", ASK_LIMIT).await.map(drop)
}

/// The slots of a model that runs.
pub(super) async fn slots(link: &Link, swaps: &Swaps, model: &str) -> Vec<Slot> {
    match running_as(link, swaps, model).await {
        Some(below) => llama_server::slots(&below, false, model).await,
        None => Vec::new(),
    }
}

/// Prompt tokens as the model's own server counts them, where it runs and is a llama-server.
pub(super) async fn count(link: &Link, swaps: &Swaps, body: &Bytes) -> Result<u32, Error> {
    let model = settings::model_of(body).await;
    let below = running_as(link, swaps, &model).await;
    let below = below.ok_or_else(|| link.protocol("the model does not run, so nobody counts its tokens"))?;
    // That this one cannot count says nothing of the next one.
    let counted = llama_server::count(&below, false, body).await;
    counted.map_err(|e| if e.is_gone() { e } else { link.protocol("the model's own server does not count tokens") })
}

/// The way to the server of a model, where it runs.
async fn running_as(link: &Link, swaps: &Swaps, model: &str) -> Option<Link> {
    let running = running(link, swaps).await.ok()?;
    let name = match running.iter().any(|name| name == model) {
        true => model.to_owned(),
        false => real(&link.get("/v1/models", ASK_LIMIT).await.ok()?, model),
    };
    running.contains(&name).then(|| link.below(&format!("/upstream/{name}")))
}

/// The models that answer now.
async fn running(link: &Link, swaps: &Swaps) -> Result<Vec<String>, Error> {
    let answer = link.get("/running", ASK_LIMIT).await?;
    let all = answer["running"].as_array().ok_or_else(|| link.protocol("/running lists nothing"))?;
    let ready = |entry: &&Value| entry["state"].as_str().is_none_or(|state| state == "ready");
    let running: Vec<String> =
        all.iter().filter(ready).filter_map(|entry| entry["model"].as_str().map(str::to_owned)).collect();
    swaps.note(&running);
    Ok(running)
}

/// The name by which `/running` knows a model, of which clients may know another.
fn real(list: &Value, model: &str) -> String {
    let entries = list["data"].as_array().map_or(&[][..], Vec::as_slice);
    let of = |entry: &Value| {
        let swap = &entry["meta"]["llamaswap"];
        if entry["id"] == model {
            return swap["modelID"].as_str().or(entry["id"].as_str()).map(str::to_owned);
        }
        let aliases = swap["aliases"].as_array().map_or(&[][..], Vec::as_slice);
        aliases.iter().any(|alias| alias == model).then(|| entry["id"].as_str().map(str::to_owned)).flatten()
    };
    entries.iter().find_map(of).unwrap_or_else(|| model.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_that_was_ended_is_another_load() {
        let (swaps, run) =
            (Swaps::default(), |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>());
        swaps.note(&run(&["a"]));
        swaps.note(&run(&["a"]));
        assert_eq!((swaps.ended("a"), swaps.ended("b")), (0, 0));
        swaps.note(&run(&["b"]));
        swaps.note(&run(&["a"]));
        assert_eq!((swaps.ended("a"), swaps.ended("b")), (1, 1));
    }

    #[test]
    fn a_model_has_other_names() {
        let list = json!({"data": [{"id": "a/b", "meta": {"llamaswap": {"type": "model", "aliases": ["short"]}}},
            {"id": "listed", "meta": {"llamaswap": {"type": "alias", "modelID": "a/b"}}}, {"id": "c"}]});
        for (name, expect) in [("a/b", "a/b"), ("short", "a/b"), ("listed", "a/b"), ("c", "c"), ("d", "d")] {
            assert_eq!(real(&list, name), expect);
        }
    }
}
