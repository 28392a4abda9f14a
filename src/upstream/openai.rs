//! Servers with OpenAI's API. The API itself says nothing of windows: each server has its own place for them.

use std::collections::HashMap;

use bytes::Bytes;
use http::Method;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::error::Error;
use super::link::Link;
use super::place::{self, Place, Stage};
use super::{ASK_LIMIT, COUNT_LIMIT, Flavor, LOAD_LIMIT, Loaded, ModelInfo, tokens};
use crate::wire::parts::Takes;

pub(super) async fn models(link: &Link, flavor: Flavor) -> Result<Vec<ModelInfo>, Error> {
    if flavor == Flavor::LmStudio
        && let Ok(list) = lm_studio(link).await
    {
        return Ok(list.iter().map(Instance::info).collect());
    }
    let list = link.get("/v1/models", ASK_LIMIT).await?;
    let entries = list["data"].as_array().ok_or_else(|| link.protocol("the list of models has no data"))?;
    Ok(entries.iter().filter_map(model_info).collect())
}

fn model_info(entry: &Value) -> Option<ModelInfo> {
    let (window, _, provisional) = listed_window(entry);
    Some(ModelInfo {
        id: entry["id"].as_str()?.to_owned(),
        trained: tokens(&entry["meta"]["n_ctx_train"]).or(window.filter(|_| provisional)),
        window: window.filter(|_| !provisional),
        loaded: entry["status"]["value"].as_str().map(|status| status == "loaded"),
    })
}

pub(super) async fn loaded(link: &Link, flavor: Flavor, model: &str) -> Result<Loaded, Error> {
    match flavor {
        Flavor::LmStudio => {
            let list = lm_studio(link).await?;
            Ok(Instance::choose(&list, model))
        }
        Flavor::TabbyApi => {
            let card = link.get("/v1/model", ASK_LIMIT).await?;
            let window = tokens(&card["parameters"]["max_seq_len"]);
            Ok(only_window(window, "/v1/model parameters.max_seq_len", card["id"].as_str().unwrap_or(model)))
        }
        Flavor::KoboldCpp => {
            let answer = link.get("/api/extra/true_max_context_length", ASK_LIMIT).await?;
            Ok(only_window(tokens(&answer["value"]), "/api/extra/true_max_context_length", "koboldcpp"))
        }
        Flavor::Vllm | Flavor::SgLang | Flavor::LlamaSwap | Flavor::Other => {
            let list = link.get("/v1/models", ASK_LIMIT).await?;
            Ok(from_list(list["data"].as_array().map_or(&[], Vec::as_slice), model))
        }
    }
}

/// Where LM Studio has a model: its name or that of a copy.
pub(super) async fn place(link: &Link, model: &str) -> Place {
    let Ok(list) = lm_studio(link).await else { return Place::Unreached };
    let is_it = |i: &Instance| i.key == model || i.id.as_deref() == Some(model);
    place::place(list.iter().map(|i| (is_it(i), if i.loaded { Stage::There } else { Stage::Absent })))
}

fn only_window(window: Option<u32>, asked_of: &'static str, model: &str) -> Loaded {
    let identity = format!("{model} {}", window.unwrap_or(0));
    Loaded { window, asked_of, provisional: window.is_none(), identity, ..Loaded::default() }
}

/// The model's entry, else any with a window: the adapters that vLLM lists may lack what their base has.
pub(super) fn from_list(entries: &[Value], model: &str) -> Loaded {
    let named = entries.iter().find(|entry| entry["id"] == model);
    let has_limit = |entry: &&Value| !entry["max_model_len"].is_null();
    let entry = match named {
        Some(entry) if listed_window(entry).0.is_some() => entry,
        _ => entries.iter().find(has_limit).or(named).unwrap_or(&Value::Null),
    };
    let (window, asked_of, provisional) = listed_window(entry);
    Loaded {
        window,
        asked_of,
        provisional,
        trained: tokens(&entry["meta"]["n_ctx_train"]),
        parameters: entry["meta"]["n_params"].as_u64().filter(|n| *n > 0),
        identity: format!("{} {} {}", entry["id"].as_str().unwrap_or(model), entry["created"], window.unwrap_or(0)),
        ..Loaded::default()
    }
}

/// Where servers put a window in their lists; the last ones mean the model's maximum at some, so they are provisional.
fn listed_window(entry: &Value) -> (Option<u32>, &'static str, bool) {
    let places: [(&Value, &'static str, bool); 6] = [
        (&entry["max_model_len"], "/v1/models max_model_len", false),
        (&entry["meta"]["n_ctx"], "/v1/models meta.n_ctx", false),
        (&entry["loaded_context_length"], "/v1/models loaded_context_length", false),
        (&entry["context_window"], "/v1/models context_window", true),
        (&entry["context_length"], "/v1/models context_length", true),
        (&entry["max_context_length"], "/v1/models max_context_length", true),
    ];
    for (value, asked_of, provisional) in places {
        if let Some(window) = tokens(value) {
            return (Some(window), asked_of, provisional);
        }
    }
    (None, "/v1/models", true)
}

/// One model of LM Studio, or one of several copies of it that are loaded.
#[derive(Debug, Clone, PartialEq)]
struct Instance {
    key: String,
    id: Option<String>,
    window: Option<u32>,
    max: Option<u32>,
    loaded: bool,
    vision: Option<bool>,
    asked_of: &'static str,
}

async fn lm_studio(link: &Link) -> Result<Vec<Instance>, Error> {
    let v1 = link.ask(Method::GET, "/api/v1/models", None, ASK_LIMIT).await?.json().unwrap_or(Value::Null);
    if let Some(models) = v1["models"].as_array() {
        return Ok(models.iter().flat_map(Instance::read_v1).collect());
    }
    let v0 = link.get("/api/v0/models", ASK_LIMIT).await?;
    let models = v0["data"].as_array().ok_or_else(|| link.protocol("neither /api/v1/models nor /api/v0/models"))?;
    Ok(models.iter().filter_map(Instance::read_v0).collect())
}

/// Has LM Studio take a model into memory, with this window (`POST /api/v1/models/load`). That always makes one more copy: those that
/// are loaded with another window are given up first, and one that will do is left alone.
pub(super) async fn bring(link: &Link, model: &str, window: Option<u32>) -> Result<(), Error> {
    let list = lm_studio(link).await?;
    let copies = Instance::copies(&list, model);
    if copies.iter().any(|copy| window.is_none() || copy.window == window) {
        return Ok(());
    }
    for copy in &copies {
        unload(link, copy).await?;
    }
    let key = copies.first().map_or(model, |copy| &copy.key);
    let mut ask = json!({"model": key});
    if let Some(window) = window {
        ask["context_length"] = window.into();
    }
    link.post("/api/v1/models/load", ask.to_string(), LOAD_LIMIT).await.map(drop)
}

/// Has LM Studio give up every copy of a model, or the one that is named.
pub(super) async fn give_up(link: &Link, model: &str) -> Result<(), Error> {
    for copy in Instance::copies(&lm_studio(link).await?, model) {
        unload(link, copy).await?;
    }
    Ok(())
}

/// Gives up one copy (`POST /api/v1/models/unload`); it goes by its own id.
async fn unload(link: &Link, copy: &Instance) -> Result<(), Error> {
    let ask = json!({"instance_id": copy.id.as_deref().unwrap_or(&copy.key)});
    link.post("/api/v1/models/unload", ask.to_string(), ASK_LIMIT).await.map(drop)
}

impl Instance {
    /// The copies of a model that are loaded; of a name that is a copy's, that one.
    fn copies<'a>(all: &'a [Instance], model: &str) -> Vec<&'a Instance> {
        let named: Vec<&Instance> = all.iter().filter(|i| i.loaded && i.id.as_deref() == Some(model)).collect();
        let of_key = || all.iter().filter(|i| i.loaded && i.key == model).collect();
        // The first copy of a model is called like the model itself.
        if named.iter().any(|copy| copy.key != model) { named } else { of_key() }
    }

    fn read_v1(model: &Value) -> Vec<Instance> {
        let Some(key) = model["key"].as_str() else { return Vec::new() };
        let none = Instance {
            key: key.to_owned(),
            id: None,
            window: None,
            max: tokens(&model["max_context_length"]),
            loaded: false,
            vision: model["capabilities"]["vision"].as_bool(),
            asked_of: "/api/v1/models loaded_instances",
        };
        let instances = model["loaded_instances"].as_array().map_or(&[][..], Vec::as_slice);
        if instances.is_empty() {
            return vec![none];
        }
        let read = |instance: &Value| Instance {
            id: instance["id"].as_str().map(str::to_owned),
            window: tokens(&instance["config"]["context_length"]),
            loaded: true,
            ..none.clone()
        };
        instances.iter().map(read).collect()
    }

    fn read_v0(model: &Value) -> Option<Instance> {
        let loaded = model["state"] == "loaded";
        Some(Instance {
            key: model["id"].as_str()?.to_owned(),
            id: None,
            window: tokens(&model["loaded_context_length"]).filter(|_| loaded),
            max: tokens(&model["max_context_length"]),
            loaded,
            vision: model["type"].as_str().map(|kind| kind == "vlm"),
            asked_of: "/api/v0/models loaded_context_length",
        })
    }

    fn info(&self) -> ModelInfo {
        let id = self.id.as_ref().unwrap_or(&self.key).clone();
        ModelInfo { id, trained: self.max, window: self.window, loaded: Some(self.loaded) }
    }

    /// A request may name a loaded copy or the model; of several copies it may get any, so the smallest window holds.
    fn choose(all: &[Instance], model: &str) -> Loaded {
        let by_id = all.iter().find(|i| i.id.as_deref() == Some(model));
        let by_key = || all.iter().filter(|i| i.key == model).min_by_key(|i| i.window.unwrap_or(u32::MAX));
        let Some(found) = by_id.or_else(by_key) else {
            return only_window(None, "/api/v1/models loaded_instances", model);
        };
        Loaded {
            trained: found.max,
            takes: Takes { pictures: found.vision, ..Takes::default() },
            ..only_window(found.window, found.asked_of, found.id.as_deref().unwrap_or(&found.key))
        }
    }
}

/// The fields of a chat request that vLLM's `/tokenize` takes.
const TOKENIZED: [&str; 9] = [
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
];

pub(super) async fn count(link: &Link, flavor: Flavor, body: &Bytes) -> Result<u32, Error> {
    let fields: HashMap<String, &RawValue> =
        serde_json::from_slice(body).map_err(|_| link.protocol("the request to count is not a JSON object"))?;
    let (path, ask, answer) = match flavor {
        Flavor::Vllm => {
            let ask: HashMap<&str, &RawValue> =
                TOKENIZED.into_iter().filter_map(|name| Some((name, *fields.get(name)?))).collect();
            ("/tokenize", serde_json::to_vec(&ask), "count")
        }
        Flavor::TabbyApi if has_tools(&fields) => {
            return Err(link.protocol("TabbyAPI counts messages only, and this request has tools"));
        }
        Flavor::TabbyApi => {
            let text = fields.get("messages").ok_or_else(|| link.protocol("the request to count has no messages"))?;
            ("/v1/token/encode", serde_json::to_vec(&HashMap::from([("text", text)])), "length")
        }
        _ => return Err(link.protocol("this server cannot count the tokens of a request")),
    };
    let ask = ask.map_err(|_| link.protocol("the request to count cannot be written"))?;
    let response = link.post(path, ask, COUNT_LIMIT).await?;
    tokens(&response[answer]).ok_or_else(|| link.protocol(format!("{path} gave no {answer}")))
}

fn has_tools(fields: &HashMap<String, &RawValue>) -> bool {
    fields
        .get("tools")
        .is_some_and(|tools| serde_json::from_str::<Vec<&RawValue>>(tools.get()).is_ok_and(|t| !t.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_where_the_server_puts_it() {
        let cases = [
            (json!({"id": "m", "max_model_len": 4096}), Some(4096), false),
            (json!({"id": "m", "meta": {"n_ctx": 2048, "n_ctx_train": 8192}}), Some(2048), false),
            (json!({"id": "m", "context_window": 131072}), Some(131072), true),
            (json!({"id": "m"}), None, true),
        ];
        for (entry, window, provisional) in cases {
            let loaded = from_list(std::slice::from_ref(&entry), "m");
            assert_eq!((loaded.window, loaded.provisional), (window, provisional), "{entry}");
        }
    }

    #[test]
    fn an_adapter_without_a_limit_has_that_of_its_base() {
        let entries = [json!({"id": "lora", "parent": "base"}), json!({"id": "base", "max_model_len": 8192})];
        assert_eq!(from_list(&entries, "lora").window, Some(8192));
    }

    #[test]
    fn lm_studio_copies_and_models_not_loaded() {
        let list = json!([
            {"key": "a", "max_context_length": 32768, "capabilities": {"vision": true}, "loaded_instances": [
                {"id": "a", "config": {"context_length": 8192}}, {"id": "a:2", "config": {"context_length": 4096}}]},
            {"key": "b", "max_context_length": 8192, "loaded_instances": []}]);
        let all: Vec<Instance> = list.as_array().unwrap().iter().flat_map(Instance::read_v1).collect();
        assert_eq!(Instance::choose(&all, "a").window, Some(8192));
        assert_eq!(Instance::choose(&all, "a:2").window, Some(4096));
        let not_loaded = Instance::choose(&all, "b");
        assert_eq!((not_loaded.window, not_loaded.provisional, not_loaded.trained), (None, true, Some(8192)));
        assert!(Instance::choose(&all, "c").provisional);

        let v0 =
            json!({"id": "a", "type": "vlm", "state": "loaded", "max_context_length": 9, "loaded_context_length": 8});
        let read = Instance::read_v0(&v0).unwrap();
        assert_eq!((read.window, read.loaded, read.vision), (Some(8), true, Some(true)));
    }
}
