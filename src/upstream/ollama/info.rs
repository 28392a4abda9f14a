//! Pure: what `/api/ps`, `/api/tags` and `/api/show` say of a model.

use serde_json::Value;

use crate::config::parameters_in_name;
use crate::upstream::{Held, Loaded, ModelInfo, Template, tokens};
use crate::wire::parts::Takes;

/// The window Ollama gives any model that sees images, at least (tokens).
const VISION_FLOOR: u32 = 2048;

/// The models on disk, and those of them that are loaded.
pub(super) fn models(tags: &Value, ps: &Value) -> Vec<ModelInfo> {
    let read = |tag: &Value| {
        let id = tag["name"].as_str().or_else(|| tag["model"].as_str())?;
        let running = listed(ps, id);
        Some(ModelInfo {
            id: id.to_owned(),
            trained: tokens(&tag["details"]["context_length"]),
            window: running.and_then(|running| tokens(&running["context_length"])),
            loaded: (!ps.is_null()).then_some(running.is_some()),
        })
    };
    tags["models"].as_array().into_iter().flatten().filter_map(read).collect()
}

/// The size of a model's file (bytes), by the list of models.
pub(super) fn size(tags: &Value, model: &str) -> Option<u64> {
    listed(tags, model)?["size"].as_u64()
}

/// How a model is spelled in the list of models.
pub(super) fn name(tags: &Value, model: &str) -> Option<String> {
    let entry = listed(tags, model)?;
    entry["model"].as_str().or_else(|| entry["name"].as_str()).map(str::to_owned)
}

pub(super) fn is_listed(ps: &Value, model: &str) -> bool {
    listed(ps, model).is_some()
}

/// What a model takes, by its capabilities. A server that lists none says nothing of it; one that lists them may not know the word
/// for sounds yet. It fetches no pictures, and has no word for files.
fn takes(capabilities: &Value) -> Takes {
    let all = capabilities.as_array().filter(|all| !all.is_empty());
    let can = |name: &str| all.map(|all| all.iter().any(|c| c == name));
    let pictures = can("vision");
    let sounds = if pictures == Some(true) { can("audio").filter(|hears| *hears) } else { can("audio") };
    Takes { pictures, sounds, videos: Some(false), others: Some(false), links: Some(false) }
}

/// Whether a model thinks, by its capabilities. Servers of before 2025 do not know the word, nor any level of it.
fn thinks(capabilities: &Value) -> Option<bool> {
    let all = capabilities.as_array().filter(|all| !all.is_empty())?;
    Some(all.iter().any(|c| c == "thinking"))
}

/// What is loaded; for a model that is not, what its description says it will be loaded with.
pub(super) fn loaded(ps: &Value, show: &Value, model: &str) -> Loaded {
    let running = listed(ps, model);
    let trained = trained(show);
    let vision = show["capabilities"].as_array().is_some_and(|all| all.iter().any(|c| c == "vision"));
    let asked = running.and_then(|running| tokens(&running["context_length"]));
    let planned = || {
        let num_ctx = parameter(show["parameters"].as_str()?, "num_ctx")?.parse().ok()?;
        let floored = if vision { VISION_FLOOR.max(num_ctx) } else { num_ctx };
        Some(trained.map_or(floored, |trained| floored.min(trained))).filter(|n| *n > 0)
    };
    // A model of ollama.com: nothing local holds for it.
    let remote = show["remote_host"].as_str().is_some_and(|host| !host.is_empty());
    let (window, asked_of, provisional) = match asked {
        _ if remote => (None, "/api/show remote_host", true),
        // Ollama 0.13 lists the window it was asked for and loads no more than the trained length.
        Some(window) if trained.is_some_and(|trained| trained < window) => (trained, "/api/show context_length", false),
        Some(window) => (Some(window), "/api/ps", false),
        None => match planned() {
            Some(window) => (Some(window), "/api/show parameters num_ctx", true),
            None => (None, "/api/ps", true),
        },
    };
    let template = show["template"].as_str().filter(|template| template.contains("{%"));
    Loaded {
        window,
        asked_of,
        provisional,
        trained,
        parameters: parameters(show),
        identity: identity(ps, model),
        slots: None,
        // Each of Ollama's slots has the whole num_ctx.
        unified: Some(false),
        template: Template { text: template.map(str::to_owned), caps: None },
        model_path: show["modelfile"].as_str().filter(|_| !remote).and_then(blob_path),
        takes: takes(&show["capabilities"]),
        thinks: thinks(&show["capabilities"]),
        held: running.and_then(held),
        others: others(ps, model),
    }
}

/// What the other models take.
fn others(ps: &Value, model: &str) -> Held {
    let mine = listed(ps, model);
    let all = ps["models"].as_array().into_iter().flatten();
    all.filter(|running| mine.is_none_or(|mine| !std::ptr::eq(mine, *running))).filter_map(held).fold(
        Held::default(),
        |sum, one| Held { total: sum.total.saturating_add(one.total), device: sum.device.saturating_add(one.device) },
    )
}

/// Changes when another model, or the same with another window, is loaded under the name, and when it is unloaded.
pub(super) fn identity(ps: &Value, model: &str) -> String {
    let running = listed(ps, model);
    let digest = running.map_or("not loaded", |running| running["digest"].as_str().unwrap_or("-"));
    let window = running.and_then(|running| tokens(&running["context_length"])).unwrap_or(0);
    format!("ollama {} {digest} {window}", canonical(model))
}

fn held(running: &Value) -> Option<Held> {
    let total = running["size"].as_u64().filter(|size| *size > 0)?;
    Some(Held { total, device: running["size_vram"].as_u64().unwrap_or(0).min(total) })
}

fn listed<'a>(ps: &'a Value, model: &str) -> Option<&'a Value> {
    let wanted = canonical(model);
    let names = |running: &Value| {
        [&running["name"], &running["model"]].iter().any(|name| name.as_str().is_some_and(|n| canonical(n) == wanted))
    };
    ps["models"].as_array()?.iter().find(|running| names(running))
}

/// The one spelling of a name: lower case, without the default registry and namespace, with a tag.
pub(in crate::upstream) fn canonical(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase();
    let name = name.strip_prefix("https://").unwrap_or(&name);
    let name = name.strip_prefix("registry.ollama.ai/").unwrap_or(name);
    let name = name.strip_prefix("library/").unwrap_or(name);
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') { name.to_owned() } else { format!("{name}:latest") }
}

fn trained(show: &Value) -> Option<u32> {
    let info = &show["model_info"];
    let by_arch =
        info["general.architecture"].as_str().and_then(|arch| tokens(&info[format!("{arch}.context_length")]));
    by_arch.or_else(|| tokens(&show["details"]["context_length"]))
}

/// The exact number, else the rounded one: `8.2B`.
fn parameters(show: &Value) -> Option<u64> {
    let exact = show["model_info"]["general.parameter_count"].as_u64().filter(|n| *n > 0);
    exact.or_else(|| parameters_in_name(show["details"]["parameter_size"].as_str()?))
}

/// One value of `parameters`, which is text: `num_ctx                        8192`, a line each.
fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    parameters.lines().find_map(|line| {
        let (key, value) = line.trim().split_once(char::is_whitespace)?;
        (key == name).then_some(value.trim())
    })
}

/// The file after the first `FROM` of a Modelfile, if it is a path.
fn blob_path(modelfile: &str) -> Option<String> {
    let path = modelfile.lines().find_map(|line| line.strip_prefix("FROM "))?.trim().trim_matches('"');
    let absolute = path.starts_with('/') || path.get(1..3).is_some_and(|drive| drive == ":\\");
    absolute.then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn show() -> Value {
        json!({
            "modelfile": "# Modelfile generated by \"ollama show\"\nFROM /m/blobs/sha256-ab\nPARAMETER num_ctx 8192",
            "parameters": "stop                           \"<|im_end|>\"\nnum_ctx                        8192",
            "template": "{%- if tools %}", "capabilities": ["completion"],
            "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960}
        })
    }

    #[test]
    fn a_loaded_model_is_found_by_any_of_its_names() {
        let ps = json!({"models": [{"name": "qwen3:8b", "digest": "500a", "context_length": 32768},
                                   {"name": "llama3.2:latest", "digest": "aa", "context_length": 4096}]});
        let cases = [
            ("qwen3:8b", Some(32768)),
            ("QWEN3:8B", Some(32768)),
            ("registry.ollama.ai/library/qwen3:8b", Some(32768)),
            ("Llama3.2", Some(4096)),
            ("library/llama3.2", Some(4096)),
            ("qwen3", None),
            ("me/llama3.2", None),
        ];
        for (name, window) in cases {
            assert_eq!(loaded(&ps, &Value::Null, name).window, window, "{name}");
        }
        let sized = |show: Value| loaded(&ps, &show, "qwen3:8b").parameters;
        let details = json!({"parameter_size": "8.2B"});
        assert_eq!(sized(json!({"details": details})), Some(8_200_000_000));
        let exact = json!({"general.parameter_count": 8190735360_u64});
        assert_eq!(sized(json!({"details": details, "model_info": exact})), Some(8_190_735_360));
        assert_eq!(sized(show()), None);
        let found = loaded(&ps, &show(), "qwen3:8b");
        assert_eq!((found.asked_of, found.provisional, found.trained), ("/api/ps", false, Some(40960)));
        assert_eq!(found.model_path.as_deref(), Some("/m/blobs/sha256-ab"));
        assert_eq!(found.template.text.as_deref(), Some("{%- if tools %}"));
    }

    #[test]
    fn a_model_not_loaded_is_foretold_and_never_by_its_trained_length() {
        let ps = json!({"models": []});
        let found = loaded(&ps, &show(), "qwen3:8b");
        assert_eq!(
            (found.window, found.asked_of, found.provisional),
            (Some(8192), "/api/show parameters num_ctx", true)
        );

        let with = |change: &dyn Fn(&mut Value)| {
            let mut show = show();
            change(&mut show);
            loaded(&ps, &show, "m")
        };
        assert_eq!(with(&|s| s["parameters"] = json!("")).window, None);
        assert_eq!(with(&|s| s["parameters"] = json!("num_ctx 100000")).window, Some(40960));
        let small = with(&|s| {
            s["parameters"] = json!("num_ctx 512");
            s["capabilities"] = json!(["vision"]);
        });
        assert_eq!((small.window, small.takes.pictures), (Some(2048), Some(true)));
        assert_eq!(with(&|s| s["capabilities"] = json!(["completion"])).takes.pictures, Some(false));
        assert_eq!(with(&|s| s["capabilities"] = Value::Null).takes.pictures, None);
        let cloud = with(&|s| s["remote_host"] = json!("https://ollama.com"));
        assert_eq!((cloud.window, cloud.model_path), (None, None));
        assert_eq!(with(&|s| s["template"] = json!("{{ if .System }}")).template.text, None);
    }

    #[test]
    fn an_old_server_lists_models_without_their_window() {
        let ps = json!({"models": [{"name": "m:latest", "digest": "d"}]});
        let found = loaded(&ps, &show(), "m");
        assert_eq!((found.window, found.provisional), (Some(8192), true));
        let loading = loaded(&json!({"models": []}), &show(), "m");
        assert_ne!(found.identity, loading.identity);
    }

    #[test]
    fn no_window_is_larger_than_the_model_was_trained_for() {
        let ps = json!({"models": [{"name": "m:latest", "digest": "d", "context_length": 100_000}]});
        let found = loaded(&ps, &show(), "m");
        assert_eq!((found.window, found.provisional), (Some(40960), false));
        assert_eq!(loaded(&ps, &Value::Null, "m").window, Some(100_000), "nothing known to the contrary");
    }

    #[test]
    fn the_list_says_what_is_loaded() {
        let tags = json!({"models": [{"name": "a:latest", "details": {}}, {"name": "b:latest"}]});
        let ps = json!({"models": [{"name": "b:latest", "context_length": 4096}]});
        let sizes = json!({"models": [{"name": "b", "size": 300, "size_vram": 200}]});
        assert_eq!(loaded(&sizes, &Value::Null, "b").held, Some(Held { total: 300, device: 200 }));
        assert_eq!(loaded(&sizes, &Value::Null, "b").others, Held::default());
        assert_eq!(loaded(&sizes, &Value::Null, "c").others, Held { total: 300, device: 200 });
        assert_eq!(loaded(&ps, &Value::Null, "b").held, None);
        let list = models(&tags, &ps);
        assert_eq!((list[0].loaded, list[1].loaded, list[1].window), (Some(false), Some(true), Some(4096)));
        assert_eq!(models(&tags, &Value::Null)[0].loaded, None);
    }
}
