//! All of a request but its messages.

use serde_json::{Map, Value, json};

use super::{WireError, wrong};

/// Options that chat completions, or llama.cpp's, know by the same name. All are numbers.
const ALIKE: [&str; 10] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
];

/// Fields that were said in other words, or are not for the client to say.
const LEFT_OUT: [&str; 6] = ["model", "stream", "stream_options", "truncate", "shift", super::RENDERS];

/// All but the model and the messages, in the words of chat completions.
pub(super) fn translate(mut asked: Map<String, Value>) -> Result<Map<String, Value>, WireError> {
    let stream = match asked.get("stream") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(stream)) => *stream,
        Some(_) => return Err(wrong("stream", "must be true or false")),
    };
    let mut chat = Map::new();
    let mut take = |name: &str| asked.shift_remove(name).filter(|value| !value.is_null());
    tools(take("tools"), &mut chat)?;
    format(take("format"), &mut chat)?;
    options(take("options"), &mut chat)?;
    think(take("think"), take("chat_template_kwargs"), &mut chat)?;
    // Ollama tells the likeliest tokens only beside the one that was taken; others refuse the one without the other.
    if asked.get("logprobs") != Some(&Value::Bool(true)) {
        asked.shift_remove("top_logprobs");
    }
    // What nobody here knows may be meant for the server.
    for (key, value) in asked {
        if !LEFT_OUT.contains(&key.as_str()) && !value.is_null() {
            chat.entry(key).or_insert(value);
        }
    }
    chat.insert("stream".into(), stream.into());
    if stream {
        chat.insert("stream_options".into(), json!({"include_usage": true}));
    }
    Ok(chat)
}

/// `tools` have OpenAI's shape. An empty list is none: some servers refuse it.
fn tools(tools: Option<Value>, chat: &mut Map<String, Value>) -> Result<(), WireError> {
    let mut tools = match tools {
        None => return Ok(()),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(wrong("tools", "must be an array of tools")),
    };
    // What is nothing, an Ollama passes over.
    tools.retain(Value::is_object);
    for tool in tools.iter_mut().filter_map(Value::as_object_mut) {
        // Ollama does not look at it; the others demand it.
        if tool.contains_key("function") && tool.get("type").is_none_or(|kind| kind.is_null() || kind == "") {
            tool.insert("type".into(), "function".into());
        }
    }
    if !tools.is_empty() {
        chat.insert("tools".into(), tools.into());
    }
    Ok(())
}

fn format(format: Option<Value>, chat: &mut Map<String, Value>) -> Result<(), WireError> {
    let format = match format {
        None => return Ok(()),
        Some(Value::String(name)) if name.is_empty() => return Ok(()),
        Some(Value::String(name)) if name == "json" => json!({"type": "json_object"}),
        Some(Value::Object(schema)) => {
            json!({"type": "json_schema", "json_schema": {"name": "format", "schema": schema}})
        }
        Some(_) => return Err(wrong("format", "must be \"json\" or a JSON schema")),
    };
    chat.insert("response_format".into(), format);
    Ok(())
}

fn options(options: Option<Value>, chat: &mut Map<String, Value>) -> Result<(), WireError> {
    let mut options = match options {
        None => return Ok(()),
        Some(Value::Object(options)) => options,
        Some(_) => return Err(wrong("options", "must be an object")),
    };
    options.retain(|_, value| !value.is_null());
    for name in ALIKE {
        if let Some(value) = options.get(name) {
            chat.insert(name.into(), number(name, value)?.clone());
        }
    }
    if let Some(most) = options.get("num_predict") {
        // Below 1 it means: no limit.
        let most = number("num_predict", most)?.as_f64().unwrap_or_default();
        if most >= 1.0 {
            chat.insert("max_tokens".into(), (most as u64).into());
        }
    }
    match options.get("stop") {
        None => {}
        Some(Value::String(text)) if text.is_empty() => drop(options.shift_remove("stop")),
        Some(Value::Array(list)) if list.is_empty() => {}
        Some(stop) => {
            let texts = stop.is_string() || stop.as_array().is_some_and(|list| list.iter().all(Value::is_string));
            if !texts {
                return Err(wrong("options.stop", "must be a string or an array of strings"));
            }
            chat.insert("stop".into(), stop.clone());
        }
    }
    if !options.is_empty() {
        chat.insert("options".into(), options.into());
    }
    Ok(())
}

fn number<'a>(name: &str, value: &'a Value) -> Result<&'a Value, WireError> {
    if value.is_number() { Ok(value) } else { Err(wrong(format!("options.{name}"), "must be a number")) }
}

/// `think` for Ollama; for llama.cpp, what chat templates go by. The client's own words to the template stand.
fn think(think: Option<Value>, kwargs: Option<Value>, chat: &mut Map<String, Value>) -> Result<(), WireError> {
    let mut kwargs = match kwargs {
        None => Map::new(),
        Some(Value::Object(own)) => own,
        Some(_) => return Err(wrong("chat_template_kwargs", "must be an object")),
    };
    if let Some(think) = think {
        let enable = match &think {
            Value::Bool(enable) => *enable,
            Value::String(level) if matches!(level.as_str(), "low" | "medium" | "high" | "max") => {
                kwargs.entry("reasoning_effort").or_insert(think.clone());
                true
            }
            _ => return Err(wrong("think", "must be true, false, \"low\", \"medium\", \"high\" or \"max\"")),
        };
        kwargs.entry("enable_thinking").or_insert(enable.into());
        chat.insert("think".into(), think);
    }
    if !kwargs.is_empty() {
        chat.insert("chat_template_kwargs".into(), kwargs.into());
    }
    Ok(())
}
