//! Pure: an OpenAI chat request in the words of Ollama's `POST /api/chat`.
//!
//! What has no word there is left out: `n` above 1, `logit_bias`, a `tool_choice` other than `none`,
//! `parallel_tool_calls`, message names. Numbers keep their spelling; what the client leaves out stays out, so that
//! the Modelfile's values hold. `shift` is never sent: it would make Ollama reload the model.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::super::settings::{Effort, Say};
use pieces::Pieces;

mod message;
mod pieces;

/// Fields of a JSON object by name, each as it is spelled. The last of several with one name counts.
type Fields<'a> = HashMap<Cow<'a, str>, &'a RawValue>;

/// Fields to be written, in this order.
type Pairs<'a> = Vec<(Cow<'a, str>, Cow<'a, RawValue>)>;

/// A request in Ollama's words, and what its reply must be like.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) body: Pieces,
    /// It asks for thoughts.
    pub(super) thinks: bool,
    /// The level of effort that it asks for.
    pub(super) level: Option<String>,
    /// An effort is said otherwise than the client asked for.
    pub(super) changed: bool,
    pub(super) reply: Wanted,
}

/// What a reply must be like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) stream: bool,
    /// The client wants a last chunk with the usage.
    pub(super) include_usage: bool,
}

/// A request that cannot be said in Ollama's words; the text is for the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) String);

impl Refused {
    /// The error in OpenAI's shape, for a 400.
    pub(super) fn body(&self) -> String {
        json!({"error": {"message": self.0, "type": "invalid_request_error", "param": null, "code": null}}).to_string()
    }
}

/// All but the model and the messages.
#[derive(Serialize)]
struct Rest<'a> {
    stream: bool,
    /// Nothing may be dropped in silence: a prompt that is too long is refused, with both numbers.
    truncate: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    think: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_alive: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_object")]
    options: Pairs<'a>,
}

/// The request in Ollama's words, with this window if one is given, and no more effort than the model may be asked for.
pub(super) fn translate(body: &Bytes, num_ctx: Option<u32>, effort: &Effort) -> Result<Asked, Refused> {
    let fields: Fields<'_> =
        serde_json::from_slice(body).map_err(|e| Refused(format!("the request is not a JSON object: {e}")))?;
    let get = |name: &str| fields.get(name).copied().filter(|value| value.get() != "null");
    let flag = |value: Option<&RawValue>| value.is_some_and(|value| value.get() == "true");
    let stream = flag(get("stream"));
    let stream_options: Fields<'_> = get("stream_options").and_then(object).unwrap_or_default();
    let model = get("model").ok_or_else(|| Refused("the request names no model".into()))?;
    let mut out = Pieces::default();
    out.written.extend_from_slice(b"{\"model\":");
    write(&mut out.written, model)?;
    out.written.extend_from_slice(b",\"messages\":");
    if get("messages").is_some_and(|messages| is_empty_list(messages.get())) {
        // To Ollama it would only load the model, and a client that reads an empty reply takes it for an answer.
        return Err(Refused("`messages` is empty: it must hold at least one message".into()));
    }
    message::translate(body, get("messages"), &mut out)?;
    let wanted = think(&get);
    let think = wanted.clone().and_then(|think| thoughts(think, effort));
    let changed = wanted.as_ref().map(|think| think.get()) != think.as_ref().map(|think| think.get());
    let (thinks, level) = (think.as_ref().is_some_and(|t| t.get() != "false"), think.as_deref().and_then(string));
    let rest = Rest {
        stream,
        truncate: false,
        tools: tools(&get)?,
        format: format(&get),
        think,
        keep_alive: get("keep_alive"),
        logprobs: get("logprobs"),
        top_logprobs: get("top_logprobs"),
        options: options(&get, num_ctx)?,
    };
    write_on(&mut out.written, &rest)?;
    let include_usage = flag(stream_options.get("include_usage").copied());
    Ok(Asked { body: out, thinks, level, changed, reply: Wanted { stream, include_usage } })
}

/// Writes the other fields of an object that was begun and has some: a comma in the place of the brace.
fn write_on(out: &mut Vec<u8>, rest: &impl Serialize) -> Result<(), Refused> {
    let brace = out.len();
    write(out, rest)?;
    match out.get(brace + 1) {
        Some(b'}') => drop(out.remove(brace)),
        _ => out[brace] = b',',
    }
    Ok(())
}

fn write(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) -> Result<(), Refused> {
    serde_json::to_writer(out, value).map_err(|e| Refused(format!("the request cannot be written: {e}")))
}

fn is_empty_list(json: &str) -> bool {
    json.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(|inner| inner.trim().is_empty())
}

fn object(value: &RawValue) -> Option<Fields<'_>> {
    serde_json::from_str(value.get()).ok()
}

fn string(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

fn raw<T: Serialize + ?Sized>(value: &T) -> Option<Cow<'static, RawValue>> {
    to_raw_value(value).ok().map(Cow::Owned)
}

/// `tool_choice: "none"` is said by leaving the tools out. Legacy `functions` become tools.
fn tools<'a>(get: &impl Fn(&str) -> Option<&'a RawValue>) -> Result<Option<Cow<'a, RawValue>>, Refused> {
    let choice = get("tool_choice").or_else(|| get("function_call"));
    if choice.is_some_and(|choice| choice.get() == "\"none\"") {
        return Ok(None);
    }
    if let Some(tools) = get("tools") {
        return Ok(Some(Cow::Borrowed(tools)));
    }
    let Some(functions) = get("functions") else { return Ok(None) };
    let functions: Vec<&RawValue> =
        serde_json::from_str(functions.get()).map_err(|_| Refused("`functions` is not an array".into()))?;
    #[derive(Serialize)]
    struct Tool<'a> {
        r#type: &'static str,
        function: &'a RawValue,
    }
    let tools: Vec<Tool<'_>> = functions.into_iter().map(|function| Tool { r#type: "function", function }).collect();
    Ok(raw(&tools))
}

fn format<'a>(get: &impl Fn(&str) -> Option<&'a RawValue>) -> Option<Cow<'a, RawValue>> {
    let Some(response_format) = get("response_format").and_then(object) else {
        return get("format").map(Cow::Borrowed);
    };
    match string(response_format.get("type")?)?.as_str() {
        "json_object" => raw("json"),
        "json_schema" => object(response_format.get("json_schema")?)?.get("schema").copied().map(Cow::Borrowed),
        _ => None,
    }
}

/// The client's own `think`, else the reasoning effort in the levels Ollama has.
fn think<'a>(get: &impl Fn(&str) -> Option<&'a RawValue>) -> Option<Cow<'a, RawValue>> {
    if let Some(think) = get("think") {
        return Some(Cow::Borrowed(think));
    }
    let nested = || get("reasoning").and_then(object)?.get("effort").copied();
    let effort = string(get("reasoning_effort").or_else(nested)?)?;
    match effort.as_str() {
        "none" => raw(&false),
        "minimal" => raw("low"),
        "xhigh" | "ultra" => raw("max"),
        level => raw(level),
    }
}

/// What is said where a client asks for thoughts. That it wants none is always said.
fn thoughts<'a>(think: Cow<'a, RawValue>, effort: &Effort) -> Option<Cow<'a, RawValue>> {
    match (think.get(), string(&think)) {
        ("true", _) if *effort == Effort::Unsaid => None,
        (_, Some(level)) => match effort.say(&level) {
            Say::Asked => Some(think),
            Say::Level(level) => raw(level),
            Say::On => raw(&true),
            Say::Nothing => None,
        },
        _ => Some(think),
    }
}

/// OpenAI's names for what Ollama takes in `options`, weakest first.
const OPTIONS: [(&str, &str); 11] = [
    ("max_tokens", "num_predict"),
    ("max_completion_tokens", "num_predict"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("seed", "seed"),
    ("frequency_penalty", "frequency_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repeat_penalty", "repeat_penalty"),
    ("repetition_penalty", "repeat_penalty"),
];

/// The client's own `options`, overruled by the request's OpenAI fields (the proxy may have lowered `max_tokens`), and
/// those by the window we ask for.
fn options<'a>(get: &impl Fn(&str) -> Option<&'a RawValue>, num_ctx: Option<u32>) -> Result<Pairs<'a>, Refused> {
    let mut options: Pairs<'a> = Vec::new();
    let mut set = |name: Cow<'a, str>, value: Cow<'a, RawValue>| match options.iter_mut().find(|(n, _)| *n == name) {
        Some((_, before)) => *before = value,
        None => options.push((name, value)),
    };
    if let Some(own) = get("options") {
        let own = object(own).ok_or_else(|| Refused("`options` is not an object".into()))?;
        let mut own: Vec<_> = own.into_iter().collect();
        own.sort_by(|a, b| a.0.cmp(&b.0));
        own.into_iter().for_each(|(name, value)| set(name, Cow::Borrowed(value)));
    }
    for (theirs, ours) in OPTIONS {
        if let Some(value) = get(theirs) {
            set(ours.into(), Cow::Borrowed(value));
        }
    }
    if let Some(stop) = get("stop") {
        // Ollama takes a list of texts alone; its own endpoint for OpenAI's clients passes over all else (openai/openai.go).
        let all: Vec<&RawValue> = match stop.get().starts_with('[') {
            true => serde_json::from_str(stop.get()).unwrap_or_default(),
            false => vec![stop],
        };
        let texts: Vec<&RawValue> = all.into_iter().filter(|text| text.get().starts_with('"')).collect();
        raw(&texts).into_iter().for_each(|list| set("stop".into(), list));
    }
    if let Some(num_ctx) = num_ctx.and_then(|n| raw(&n)) {
        set("num_ctx".into(), num_ctx);
    }
    Ok(options)
}

fn as_object<S: serde::Serializer>(
    pairs: &[(Cow<'_, str>, Cow<'_, RawValue>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

#[cfg(test)]
mod tests;
