//! Where a model is, for servers that load one where a request names it. Pure, but for the questions; none of them loads a
//! model or wakes one.

use serde_json::Value;

use super::link::Link;
use super::{ASK_LIMIT, ollama};

/// Where a model is, as its server says at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// No request loads anything: the server has what it has from its start.
    Fixed,
    /// In memory, and no other model is on its way there.
    Loaded,
    /// Not in memory, or about to leave it. `alone`: nor is any other model in memory.
    Away {
        /// Nothing else is in memory.
        alone: bool,
    },
    /// The server does not say.
    Untold,
    /// The server does not answer.
    Unreached,
}

/// How far a model is on its way into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Absent,
    Coming,
    There,
}

impl Stage {
    /// `status.value` of a llama-server router's list. One that sleeps is loaded anew by a request.
    fn of_status(status: &str) -> Stage {
        match status {
            "loaded" => Stage::There,
            "loading" => Stage::Coming,
            _ => Stage::Absent,
        }
    }

    /// `state` in llama-swap's `/running`.
    fn of_state(state: &str) -> Stage {
        match state {
            "ready" => Stage::There,
            "starting" => Stage::Coming,
            _ => Stage::Absent,
        }
    }
}

/// The place of one of several models: of each, whether it is that one, and how far it is.
pub(super) fn place(models: impl IntoIterator<Item = (bool, Stage)>) -> Place {
    let (mut here, mut coming, mut alone) = (false, false, true);
    for (mine, stage) in models {
        here |= mine && stage == Stage::There;
        coming |= !mine && stage == Stage::Coming;
        alone &= stage == Stage::Absent;
    }
    if here && !coming { Place::Loaded } else { Place::Away { alone } }
}

/// Asks an Ollama.
pub(super) async fn of_ollama(link: &Link, model: &str) -> Place {
    let Ok(ps) = link.get("/api/ps", ASK_LIMIT).await else { return Place::Unreached };
    let wanted = ollama::canonical(model);
    let is_it = |name: &Value| name.as_str().is_some_and(|name| ollama::canonical(name) == wanted);
    let running = ps["models"].as_array().into_iter().flatten();
    place(running.map(|m| (is_it(&m["name"]) || is_it(&m["model"]), Stage::There)))
}

/// Asks a llama-server router.
pub(super) async fn of_router(link: &Link, model: &str) -> Place {
    match link.get("/models", ASK_LIMIT).await {
        Ok(list) => listed(&list, model).unwrap_or(Place::Away { alone: false }),
        Err(_) => Place::Unreached,
    }
}

/// Asks a server of which only the API is known: llama-swap tells what runs, and some say it in their list of models.
pub(super) async fn of_another(link: &Link, model: &str) -> Place {
    if let Ok(answer) = link.get("/running", ASK_LIMIT).await
        && let Some(place) = running(&answer, model)
    {
        return place;
    }
    match link.get("/v1/models", ASK_LIMIT).await {
        Ok(list) if entries(&list).len() == 1 => Place::Fixed,
        Ok(list) => listed(&list, model).unwrap_or(Place::Untold),
        Err(_) => Place::Unreached,
    }
}

/// What llama-swap's `/running` says.
fn running(answer: &Value, model: &str) -> Option<Place> {
    let all = answer["running"].as_array()?;
    Some(place(all.iter().map(|m| (m["model"] == model, Stage::of_state(m["state"].as_str().unwrap_or("ready"))))))
}

/// What a list says whose entries have a `status`.
fn listed(list: &Value, model: &str) -> Option<Place> {
    let is_it = |entry: &Value| {
        let aliases = entry["aliases"].as_array().map_or(&[][..], Vec::as_slice);
        entry["id"] == model || aliases.iter().any(|alias| alias == model)
    };
    let stages: Vec<(bool, Stage)> = entries(list)
        .iter()
        .filter_map(|entry| Some((is_it(entry), Stage::of_status(entry["status"]["value"].as_str()?))))
        .collect();
    (!stages.is_empty()).then(|| place(stages))
}

fn entries(list: &Value) -> &[Value] {
    list["data"].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_is_where_its_server_says() {
        let entry = |id: &str, status: &str| json!({"id": id, "aliases": ["alias"], "status": {"value": status}});
        let cases = [
            (vec![entry("a", "loaded"), entry("b", "unloaded")], Place::Loaded),
            (vec![entry("b", "unloaded"), entry("a", "sleeping")], Place::Away { alone: true }),
            (vec![entry("a", "unloaded"), entry("b", "loaded")], Place::Away { alone: false }),
            // Somebody waits for the other one.
            (vec![entry("a", "loaded"), entry("b", "loading")], Place::Away { alone: false }),
            (vec![entry("a", "loaded"), entry("b", "loaded")], Place::Loaded),
        ];
        for (entries, expect) in cases {
            assert_eq!(listed(&json!({"data": entries}), "a"), Some(expect), "{entries:?}");
        }
        assert_eq!(listed(&json!({"data": [entry("b", "loaded")]}), "alias"), Some(Place::Loaded));
        assert_eq!(listed(&json!({"data": [{"id": "a"}, {"id": "b"}]}), "a"), None);
    }

    #[test]
    fn llama_swap_tells_what_runs() {
        let swap = |running: Value| super::running(&json!({"running": running}), "a");
        assert_eq!(swap(json!([])), Some(Place::Away { alone: true }));
        assert_eq!(swap(json!([{"model": "a", "state": "ready"}])), Some(Place::Loaded));
        assert_eq!(swap(json!([{"model": "a", "state": "stopping"}])), Some(Place::Away { alone: true }));
        assert_eq!(swap(json!([{"model": "b", "state": "starting"}])), Some(Place::Away { alone: false }));
        assert_eq!(super::running(&json!({"error": "not found"}), "a"), None);
    }
}
