//! llama.cpp's llama-server, plain or as a router. The window it reports is that of one slot, everywhere the same.

use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::error::Error;
use super::link::Link;
use super::names::Names;
use super::{
    ASK_LIMIT, COUNT_LIMIT, Held, Loaded, ModelInfo, SLOT_LIMIT, Slot, SlotFile, Template, query_component, tokens,
};
use crate::wire::json;
use crate::wire::parts::Takes;

pub(super) async fn models(link: &Link, router: bool, names: &Names) -> Result<Vec<ModelInfo>, Error> {
    let listed = list(link, router).await?;
    names.note(entries(&listed), !router);
    Ok(entries(&listed).iter().filter_map(|entry| model_info(entry, router)).collect())
}

/// The window a request for `model` gets. A router is asked without making it load the model.
pub(super) async fn loaded(link: &Link, router: bool, model: &str, names: &Names) -> Result<Loaded, Error> {
    let path =
        if router { format!("/props?model={}&autoload=false", query_component(model)) } else { "/props".to_owned() };
    let (props, listed) = tokio::join!(link.get(&path, ASK_LIMIT), list(link, router));
    listed.iter().for_each(|listed| names.note(entries(listed), !router));
    let entry = listed.as_ref().ok().and_then(|listed| find(entries(listed), model, router)).unwrap_or(&Value::Null);
    let props = match props {
        Ok(props) => props,
        // A router says 400 for a model that it has not loaded: what is known is in its list.
        Err(Error::Status { .. }) if router && !entry.is_null() => Value::Null,
        Err(error) => return Err(error),
    };
    let mut loaded = read(&props, entry);
    if loaded.window.is_none() && !router {
        let slots = link.get("/slots", ASK_LIMIT).await;
        loaded.window = slots.ok().and_then(|slots| tokens(&slots[0]["n_ctx"]));
        loaded.asked_of = "/slots";
        loaded.provisional = loaded.window.is_none();
        loaded.identity = identity(&props, entry, loaded.window);
    }
    Ok(loaded)
}

/// Prompt tokens with template, tools and images, as the server would evaluate them. Uses no slot. Another windowsill there tells
/// what it would forward, and beside it what was asked about.
pub(super) async fn count(link: &Link, router: bool, body: &Bytes) -> Result<u32, Error> {
    let path =
        if router { "/v1/chat/completions/input_tokens?autoload=false" } else { "/v1/chat/completions/input_tokens" };
    let answer = link.post(path, body.clone(), COUNT_LIMIT).await?;
    let told = tokens(&answer["original_input_tokens"]).or_else(|| tokens(&answer["input_tokens"]));
    told.ok_or_else(|| link.protocol("the token count has no input_tokens"))
}

/// Tells a router to `load` or to `unload` a model (tools/server/README.md, "POST /models/load"). It answers at once, and goes on.
pub(super) async fn tell_router(link: &Link, what: &str, model: &str, limit: std::time::Duration) -> Result<(), Error> {
    let answer =
        link.post(&format!("/models/{what}"), serde_json::json!({ "model": model }).to_string(), limit).await?;
    match answer["success"] == false {
        true => Err(link.protocol(format!("does not {what} the model"))),
        false => Ok(()),
    }
}

/// The slots, as far as the server shows them (`--no-slots` hides them).
pub(super) async fn slots(link: &Link, router: bool, model: &str) -> Vec<Slot> {
    let path =
        if router { format!("/slots?model={}&autoload=false", query_component(model)) } else { "/slots".to_owned() };
    let Ok(answer) = link.get(&path, ASK_LIMIT).await else { return Vec::new() };
    let read = |slot: &Value| {
        Some(Slot {
            id: u32::try_from(slot["id"].as_u64()?).ok()?,
            busy: slot["is_processing"] == true,
            task: slot["id_task"].as_u64(),
            held: tokens(&slot["n_prompt_tokens"]),
        })
    };
    answer.as_array().into_iter().flatten().filter_map(read).collect()
}

/// Writes a slot to a file, or reads it from there (tools/server/README.md, "POST /slots/{id_slot}?action=save"). Without
/// `--slot-save-path` that is a 501.
pub(super) async fn slot_file(link: &Link, slot: u32, action: &str, file: &str) -> Result<SlotFile, Error> {
    let body = serde_json::json!({ "filename": file }).to_string();
    let told = link.post(&format!("/slots/{slot}?action={action}"), body, SLOT_LIMIT).await?;
    let done = tokens(&told["n_saved"]).or_else(|| tokens(&told["n_restored"])).filter(|tokens| *tokens > 0);
    let tokens = done.ok_or_else(|| link.protocol(format!("did not {action} the slot")))?;
    let timings = &told["timings"];
    let milliseconds = timings["save_ms"].as_f64().or(timings["restore_ms"].as_f64());
    Ok(SlotFile { tokens, milliseconds })
}

/// A chat request that is to be answered in one slot, unless it names one itself. It is megabytes at times, and is read only where
/// it may name one.
pub(super) fn in_slot(body: &Bytes, slot: u32) -> Bytes {
    with_field(body, "id_slot", &slot.to_string())
}

/// A chat request whose reply tells which stop sequence ended it: with `verbose`, its last chunk has `__verbose.stopping_word`.
pub(super) fn telling_stop(body: &Bytes) -> Bytes {
    with_field(body, "verbose", "true")
}

/// A request with one field more, unless it has that itself.
fn with_field(body: &Bytes, name: &str, value: &str) -> Bytes {
    let may_have_it = memchr::memmem::find(body, format!("\"{name}\"").as_bytes()).is_some();
    let has_it = || json::Fields::read(&String::from_utf8_lossy(body)).is_ok_and(|fields| fields.get(name).is_some());
    match body.trim_ascii_end().strip_suffix(b"}") {
        Some(open) if !may_have_it || !has_it() => [open, format!(",\"{name}\":{value}}}").as_bytes()].concat().into(),
        _ => body.clone(),
    }
}

async fn list(link: &Link, router: bool) -> Result<Value, Error> {
    let answer = link.ask(Method::GET, if router { "/models" } else { "/v1/models" }, None, ASK_LIMIT).await?;
    answer.json().filter(|list| list["data"].is_array()).ok_or_else(|| link.protocol("the list of models has no data"))
}

fn entries(listed: &Value) -> &[Value] {
    listed["data"].as_array().map_or(&[], Vec::as_slice)
}

/// A plain server answers every name with its one model.
fn find<'a>(entries: &'a [Value], model: &str, router: bool) -> Option<&'a Value> {
    let named = |entry: &&Value| {
        let aliases = entry["aliases"].as_array().map_or(&[][..], Vec::as_slice);
        entry["id"] == model || aliases.iter().any(|alias| alias == model)
    };
    entries.iter().find(named).or_else(|| entries.first().filter(|_| !router))
}

fn model_info(entry: &Value, router: bool) -> Option<ModelInfo> {
    let status = entry["status"]["value"].as_str();
    Some(ModelInfo {
        id: entry["id"].as_str()?.to_owned(),
        trained: tokens(&entry["meta"]["n_ctx_train"]),
        window: tokens(&entry["meta"]["n_ctx"]),
        // `meta` is null while a plain server loads its model.
        loaded: if router { status.map(|s| s == "loaded" || s == "sleeping") } else { Some(!entry["meta"].is_null()) },
    })
}

/// Pure: `/props` and the model's entry in the list, either of which may be null.
fn read(props: &Value, entry: &Value) -> Loaded {
    let asked = tokens(&props["default_generation_settings"]["n_ctx"]).map(|n| (n, "/props", false));
    let listed = || tokens(&entry["meta"]["n_ctx"]).map(|n| (n, "/v1/models meta.n_ctx", false));
    let args = Args::read(&entry["status"]["args"]);
    let planned = || args.window().map(|n| (n, "/models status.args", true));
    let found = asked.or_else(listed).or_else(planned);
    let (window, asked_of, provisional) = match found {
        Some((window, asked_of, provisional)) => (Some(window), asked_of, provisional),
        None => (None, "/props", true),
    };
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    Loaded {
        window,
        asked_of,
        provisional,
        trained: tokens(&entry["meta"]["n_ctx_train"]),
        parameters: entry["meta"]["n_params"].as_u64().filter(|n| *n > 0),
        identity: identity(props, entry, window),
        slots: tokens(&props["total_slots"]).or(args.parallel),
        unified: args.unified,
        template: Template {
            text: text(&props["chat_template"]).filter(|template| template.contains('{')),
            caps: props.get("chat_template_caps").filter(|caps| caps.is_object()).cloned(),
        },
        model_path: text(&props["model_path"]).or_else(|| text(&entry["path"])),
        takes: takes(&props["modalities"], &entry["architecture"]["input_modalities"]),
        thinks: None,
        held: held(&props["held"]),
        others: Held::default(),
    }
}

/// `modalities` of `/props` are those of the model that is loaded; servers of before 2025 say nothing. A router lists what a model
/// can do only as far as it knows it. Parts of other kinds are a 400, and pictures are fetched by their address
/// (tools/server/server-common.cpp).
fn takes(modalities: &Value, listed: &Value) -> Takes {
    let takes = |own: &str, name: &str| {
        let can = listed.as_array().is_some_and(|all| all.iter().any(|m| m == name));
        // One that is silent of videos knows none.
        let silent = modalities.is_object().then_some(false);
        if can { Some(true) } else { modalities[own].as_bool().or(silent) }
    };
    Takes {
        pictures: takes("vision", "image"),
        sounds: takes("audio", "audio"),
        videos: takes("video", "video"),
        others: Some(false),
        links: None,
    }
}

/// What the embedded engine tells; a llama-server does not.
fn held(told: &Value) -> Option<Held> {
    let device = told["gpu_bytes"].as_u64()?;
    Some(Held { device, total: device.saturating_add(told["ram_bytes"].as_u64()?) })
}

fn identity(props: &Value, entry: &Value, window: Option<u32>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let id = if props["model_path"].is_string() { text(&props["model_path"]) } else { text(&entry["id"]) };
    let size = entry["meta"]["size"].as_u64().unwrap_or(0);
    format!(
        "llama-server {} {id} {size} n_ctx={} slots={}",
        text(&props["build_info"]),
        window.unwrap_or(0),
        props["total_slots"]
    )
}

/// How a router starts (or started) a model: its command line, in the list of models.
#[derive(Debug, Default, PartialEq)]
struct Args {
    ctx_size: Option<u32>,
    parallel: Option<u32>,
    unified: Option<bool>,
}

impl Args {
    fn read(args: &Value) -> Args {
        let words: Vec<&str> = args.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut read = Args::default();
        for (i, word) in words.iter().enumerate() {
            let number = || words.get(i + 1).and_then(|n| n.parse::<u32>().ok()).filter(|n| *n > 0);
            match *word {
                "-c" | "--ctx-size" => read.ctx_size = number(),
                "-np" | "--parallel" => read.parallel = number(),
                "-kvu" | "--kv-unified" => read.unified = Some(true),
                "-no-kvu" | "--no-kv-unified" => read.unified = Some(false),
                _ => {}
            }
        }
        // Without --parallel there are four slots on one shared window; with it, each has its share.
        if read.parallel.is_none() && !words.is_empty() {
            read.unified = read.unified.or(Some(true));
        }
        read
    }

    /// What one slot will have, as far as the command line tells.
    fn window(&self) -> Option<u32> {
        let shares = if self.unified == Some(true) { 1 } else { self.parallel.unwrap_or(1) };
        self.ctx_size.map(|total| total / shares.max(1)).filter(|n| *n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry() -> Value {
        json!({"id": "model.gguf", "aliases": ["alias"], "architecture": {"input_modalities": ["text"]},
               "meta": {"n_ctx": 512, "n_ctx_train": 8192, "n_params": 134515008, "size": 96576768}})
    }

    #[test]
    fn a_slot_is_named_where_the_client_names_none() {
        let slot = |body: &str| String::from_utf8(in_slot(&Bytes::from(body.to_owned()), 3).to_vec()).unwrap();
        assert_eq!(slot(r#"{"model":"m", "x":1.50 }"#), r#"{"model":"m", "x":1.50 ,"id_slot":3}"#);
        assert_eq!(slot("{\"a\":{\"id_slot\":1}}\n"), r#"{"a":{"id_slot":1},"id_slot":3}"#);
        for own in [r#"{"id_slot":-1,"model":"m"}"#, r#"{"model":"m","id_slot":null}"#, "no object"] {
            assert_eq!(slot(own), own);
        }
    }

    #[test]
    fn props_come_first_and_zero_is_never_a_window() {
        let props = json!({"default_generation_settings": {"n_ctx": 1024}, "total_slots": 2, "build_info": "b1-a",
            "model_path": "/m.gguf", "chat_template": "{{ messages }}", "chat_template_caps": {"supports_tools": true},
            "modalities": {"vision": true}});
        let loaded = read(&props, &entry());
        assert_eq!((loaded.window, loaded.asked_of, loaded.provisional), (Some(1024), "/props", false));
        assert_eq!((loaded.trained, loaded.slots), (Some(8192), Some(2)));
        assert_eq!(
            (loaded.takes.pictures, loaded.takes.sounds, loaded.takes.others),
            (Some(true), Some(false), Some(false))
        );
        assert_eq!(loaded.parameters, Some(134_515_008));
        assert_eq!(loaded.template.text.as_deref(), Some("{{ messages }}"));
        assert_eq!(loaded.template.caps, Some(json!({"supports_tools": true})));
        assert_eq!(loaded.model_path.as_deref(), Some("/m.gguf"));

        let router = json!({"role": "router", "default_generation_settings": {"n_ctx": 0}});
        let loaded = read(&router, &entry());
        assert_eq!((loaded.window, loaded.asked_of), (Some(512), "/v1/models meta.n_ctx"));
        assert_eq!(read(&router, &Value::Null).window, None);
        assert!(read(&router, &Value::Null).provisional);
        // What a router has not loaded may turn out to see.
        assert_eq!(loaded.takes.pictures, None);
    }

    #[test]
    fn the_identity_changes_with_build_model_and_window() {
        let of = |build: &str, path: &str, n_ctx: u32| {
            let props =
                json!({"default_generation_settings": {"n_ctx": n_ctx}, "build_info": build, "model_path": path});
            read(&props, &entry()).identity
        };
        let first = of("b1", "/m", 512);
        assert_eq!(first, of("b1", "/m", 512));
        for other in [of("b2", "/m", 512), of("b1", "/n", 512), of("b1", "/m", 1024)] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn a_router_tells_what_a_model_will_be_started_with() {
        let cases = [
            (json!(["--ctx-size", "8192", "-np", "2"]), Some(4096)),
            (json!(["--ctx-size", "8192", "-np", "2", "--kv-unified"]), Some(8192)),
            (json!(["-c", "8192"]), Some(8192)),
            (json!(["-c", "0"]), None),
            (json!(["-c"]), None),
            (Value::Null, None),
        ];
        for (args, want) in cases {
            let loaded = read(&Value::Null, &json!({"id": "m", "status": {"value": "unloaded", "args": args}}));
            assert_eq!((loaded.window, loaded.provisional), (want, true), "{args}");
        }
    }

    #[test]
    fn any_name_means_the_one_model_of_a_plain_server() {
        let entries = [entry()];
        assert!(find(&entries, "whatever", false).is_some());
        assert!(find(&entries, "alias", true).is_some());
        assert!(find(&entries, "whatever", true).is_none());
    }
}
