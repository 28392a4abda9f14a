//! What Ollama's clients ask before they chat: lists of models, and what one can do. For servers that are no Ollama; what
//! these do not tell is left empty.

use serde_json::{Map, Value, json};

/// The version of Ollama whose API is spoken here.
pub const VERSION: &str = "0.13.0";

/// Nobody here knows when a model was made.
const UNKNOWN: &str = "1970-01-01T00:00:00Z";

/// `GET /api/tags`, from the `data` of `GET /v1/models`.
pub fn tags(data: &[Value]) -> Value {
    json!({"models": data.iter().map(entry).collect::<Vec<_>>()})
}

/// `GET /api/ps`: those that are known to be loaded, each with its window.
pub fn ps(data: &[Value]) -> Value {
    let loaded = data.iter().filter_map(|model| {
        let window = model.get("loaded_context").filter(|w| w.is_u64())?;
        let mut out = entry(model);
        out["context_length"] = window.clone();
        Some(out)
    });
    json!({"models": loaded.collect::<Vec<_>>()})
}

/// `POST /api/show`, from an entry of `GET /v1/models`. `tools` and `vision`: what the model takes, as far as its server
/// says.
pub fn show(model: &Value, tools: bool, vision: bool) -> Value {
    let mut info = Map::new();
    info.insert("general.architecture".into(), "unknown".into());
    let trained = ["trained_context", "context_length"].iter().find_map(|key| model.get(*key).filter(|n| n.is_u64()));
    if let Some(trained) = trained {
        info.insert("unknown.context_length".into(), trained.clone());
    }
    let window = model.get("loaded_context").and_then(Value::as_u64);
    let can = [("completion", true), ("tools", tools), ("vision", vision)];
    json!({
        "modelfile": "", "template": "", "modified_at": UNKNOWN, "model_info": info, "details": details(),
        "parameters": window.map_or_else(String::new, |n| format!("num_ctx {n}")),
        "capabilities": can.iter().filter(|(_, can)| *can).map(|(what, _)| *what).collect::<Vec<_>>(),
    })
}

/// What is answered to a request that only loads a model, or `unloads` it: windowsill's own is loaded, other servers see to that
/// themselves. `created_at` is RFC 3339.
pub fn loaded(model: &str, created_at: &str, unloads: bool) -> Value {
    let reason = if unloads { "unload" } else { "load" };
    json!({"model": model, "created_at": created_at, "message": {"role": "assistant", "content": ""}, "response": "",
        "done": true, "done_reason": reason})
}

fn entry(model: &Value) -> Value {
    let id = model.get("id").cloned().unwrap_or_default();
    let size = model.pointer("/meta/size").and_then(Value::as_u64).unwrap_or(0);
    // Ollama's command line shows the first twelve digits, and panics where there are fewer.
    let digest = "0".repeat(64);
    json!({"name": id, "model": id, "modified_at": UNKNOWN, "size": size, "digest": digest, "details": details()})
}

fn details() -> Value {
    json!({"parent_model": "", "format": "gguf", "family": "", "families": [], "parameter_size": "", "quantization_level": ""})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_in_ollamas_words() {
        let data = [
            json!({"id": "a", "context_length": 8192, "loaded_context": 4096, "meta": {"size": 7}}),
            json!({"id": "b", "context_length": null, "loaded_context": null}),
        ];
        let tags = tags(&data);
        assert_eq!((&tags["models"][0]["name"], &tags["models"][0]["size"]), (&json!("a"), &json!(7)));
        assert_eq!(tags["models"][1]["model"], "b");
        let ps = ps(&data);
        assert_eq!(ps["models"].as_array().unwrap().len(), 1, "{ps}");
        assert_eq!(ps["models"][0]["context_length"], 4096);
        let shown = show(&data[0], true, false);
        assert_eq!(shown["model_info"]["unknown.context_length"], 8192);
        assert_eq!(
            (&shown["parameters"], &shown["capabilities"]),
            (&json!("num_ctx 4096"), &json!(["completion", "tools"]))
        );
        let shown = show(&data[1], false, true);
        assert_eq!((&shown["parameters"], &shown["capabilities"]), (&json!(""), &json!(["completion", "vision"])));
        assert!(shown["model_info"].get("unknown.context_length").is_none());
    }
}
