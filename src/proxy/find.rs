//! The servers that a config names, and what is behind each; where none is named, those that are at the usual places.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;

use super::Error;
use crate::config::{Config, ModelConfig, UpstreamConfig, UpstreamKind};
use crate::measure::count::CountWorker;
use crate::measure::hardware::{self, Place};
use crate::upstream::{self, Embedded, FreeRam, KindHint, Serving, Upstream};
use crate::{engine, files};

/// Bytes of a chat template that is read; the largest of any model takes 50,000.
const LARGEST_TEMPLATE: u64 = 1 << 20;

/// What was found behind one upstream, in words for people.
pub(super) type Found = Vec<String>;

/// The upstreams of a config, and what was found behind each. Where none is named, they are all those places where one may be.
pub(super) async fn find(config: &Config) -> Result<(Vec<Arc<Upstream>>, Found), Error> {
    let client = upstream::client()?;
    let mut upstreams = Vec::new();
    let mut found = Vec::new();
    for named in &config.upstreams {
        let hint = match named.kind {
            UpstreamKind::Auto => KindHint::Auto,
            UpstreamKind::Ollama => KindHint::Ollama,
            UpstreamKind::LlamaServer => KindHint::LlamaServer,
            UpstreamKind::OpenAi => KindHint::OpenAi,
            UpstreamKind::Embedded => {
                let upstream = Upstream::embedded(client.clone(), &named.name, embedded(config, named)?)?;
                found.push(format!("{} at {}: embedded", upstream.name(), upstream.url()));
                upstreams.push(Arc::new(upstream));
                continue;
            }
        };
        let key = named.api_key.as_ref().map(|k| k.expose().to_owned());
        let upstream = Upstream::new(client.clone(), named.name.clone(), &named.url, hint)?
            .with_api_key(key)?
            .with_session_header(named.session_header.as_deref())?;
        found.push(match upstream.probe().await {
            Ok(kind) => format!("{} at {}: {}", upstream.name(), upstream.url(), kind.as_str()),
            Err(e) => format!("{} at {}: no answer yet ({e})", upstream.name(), upstream.url()),
        });
        upstreams.push(Arc::new(upstream));
    }
    if config.upstreams.is_empty() {
        let usual = &config.machine.usual;
        let usual = usual.iter().map(|(name, url)| Upstream::new(client.clone(), name.clone(), url, KindHint::Auto));
        let usual: Vec<Upstream> = usual.map(|one| one.map(Upstream::looked_for)).collect::<Result<_, _>>()?;
        let kinds = join_all(usual.iter().map(Upstream::probe)).await;
        for (upstream, kind) in usual.into_iter().zip(kinds) {
            let kind = kind.map_or("not there", |kind| kind.as_str());
            found.push(format!("{} at {}: {kind}", upstream.name(), upstream.url()));
            upstreams.push(Arc::new(upstream));
        }
    }
    Ok((upstreams, found))
}

/// A model that this program serves itself. Nothing is loaded yet; that it could be is looked at.
fn embedded(config: &Config, named: &UpstreamConfig) -> Result<Embedded, Error> {
    let bad = |why: String, hint: &str| Error::client(422, "cannot_serve", why, hint);
    let file_hint = "name a GGUF file that llama.cpp reads";
    let Some(ModelConfig { file, chat_template_file, kv_type, gpu_layers }) = &named.model else {
        return Err(bad(format!("{}: no model is named", named.name), file_hint));
    };
    if !engine::BUILT {
        let why = format!("{}: this build has no llama.cpp in it (feature `engine`)", file.display());
        return Err(bad(why, "take the windowsill with the engine, or point this one at a server: --upstream URL"));
    }
    if let Some(why) = engine::processor::lack() {
        return Err(bad(why, ""));
    }
    let program = config.machine.program.clone();
    let program = program.ok_or_else(|| bad("where this program's own file is, is not known".into(), file_hint))?;
    let counter = CountWorker::read(&program, file).map_err(|e| bad(e.to_string(), file_hint))?;
    let template = counter.own_template().map(str::to_owned);
    let own_template = chat_template_file.as_deref().map(|file| chat_template(file, counter)).transpose();
    let own_template = own_template.map_err(|why| bad(why, "name a file with a Jinja chat template"))?;
    Ok(Embedded::new(Serving {
        file: file.clone(),
        program,
        threads: hardware::threads(),
        kv_type: *kv_type,
        gpu_layers: *gpu_layers,
        headroom: config.window.memory_headroom,
        template,
        own_template,
        free_ram: FreeRam::by({
            let (place, headroom) =
                (Place { root: config.machine.root.clone(), process: None }, config.window.memory_headroom);
            move || hardware::free_ram(&place, headroom)
        }),
    }))
}

/// The chat template in a file, if llama.cpp reads it.
fn chat_template(file: &Path, counter: CountWorker) -> Result<String, String> {
    let failed = |why: String| format!("{} cannot be used as a chat template: {why}", file.display());
    let mut text = String::new();
    let read = files::open(file).and_then(|open| open.take(LARGEST_TEMPLATE + 1).read_to_string(&mut text));
    let bytes = read.map_err(|e| failed(e.to_string()))?;
    if bytes as u64 > LARGEST_TEMPLATE {
        return Err(failed(format!("it is larger than {LARGEST_TEMPLATE} bytes")));
    }
    if text.trim().is_empty() {
        return Err(failed("it is empty".into()));
    }
    counter.with_template(Some(&text)).map_err(|e| failed(e.to_string()))?;
    Ok(text)
}
