//! A chat completion as servers send it, whole or a chunk of a stream, with what a dialect needs to say it again.

use serde_json::Value;

use crate::wire::{extra, json, reply};

/// What a reply, or one chunk of it, says. All of it may be absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    /// `model`.
    pub model: Option<String>,
    /// `content`.
    pub text: String,
    /// `reasoning_content`, `reasoning` or `thinking`.
    pub reasoning: String,
    /// `refusal`.
    pub refusal: String,
    /// `tool_calls`, or the one `function_call` of OpenAI's older form; in a chunk, parts of them.
    pub calls: Vec<CallPart>,
    /// `finish_reason`: `stop`, `length`, `tool_calls` (also for `function_call`), `content_filter`; [`reply::BROKEN_OFF`] for a whole reply without one.
    pub finish: Option<String>,
    /// The stop sequence that ended the reply, where the server says which: vLLM's `stop_reason`, SGLang's `matched_stop`,
    /// llama-server's `__verbose.stopping_word`.
    pub stop: Option<String>,
    /// `usage`, and llama.cpp's `timings`.
    pub usage: Usage,
    /// How likely each token was, as the server says it (`logprobs.content`).
    pub logprobs: Vec<Value>,
    /// llama-server's `timings`, and its `prompt_progress` while it reads a prompt.
    pub telemetry: Telemetry,
    /// An error that came inside a stream.
    pub error: Option<Value>,
    /// How the history before the reply is compacted: no server says this, windowsill does.
    pub compaction: Option<Compaction>,
}

/// A compaction within a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compaction {
    /// The summary is being written.
    Begun,
    /// It is done: what the client brings back.
    Done(String),
}

/// What llama-server tells of its work to clients that ask for it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Telemetry {
    /// `timings`.
    pub timings: Option<Value>,
    /// `prompt_progress`.
    pub progress: Option<Value>,
}

/// A tool call, or a part of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallPart {
    /// Which call of the reply, from 0.
    pub index: u64,
    /// `id`, in the first part, with what the client has to bring back with it: see [`extra`].
    pub id: Option<String>,
    /// `function.name`, in the first part.
    pub name: Option<String>,
    /// `function.arguments`: JSON text; in a stream, a piece of it.
    pub arguments: String,
}

/// What a reply cost, as far as the server says so.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the whole prompt.
    pub prompt: Option<u64>,
    /// Of these, taken from the server's cache.
    pub cached: Option<u64>,
    /// Tokens written.
    pub completion: Option<u64>,
    /// Of these, thought.
    pub reasoning: Option<u64>,
    /// Milliseconds of prompt evaluation.
    pub prompt_ms: Option<f64>,
    /// Milliseconds of generation.
    pub completion_ms: Option<f64>,
    /// Milliseconds that loading the model took.
    pub load_ms: Option<f64>,
}

impl Usage {
    /// Takes over what a later chunk says.
    pub fn and(self, later: Usage) -> Usage {
        Usage {
            prompt: later.prompt.or(self.prompt),
            cached: later.cached.or(self.cached),
            completion: later.completion.or(self.completion),
            reasoning: later.reasoning.or(self.reasoning),
            prompt_ms: later.prompt_ms.or(self.prompt_ms),
            completion_ms: later.completion_ms.or(self.completion_ms),
            load_ms: later.load_ms.or(self.load_ms),
        }
    }
}

impl Said {
    /// Reads a chat completion. `None` for what is not a JSON object.
    pub fn read(data: &str) -> Option<Said> {
        Said::of(&json::lenient(data)?)
    }

    /// What a chat completion says, or one event of a stream. Only the first choice counts: no dialect here has several.
    /// `None` for what is not an object.
    pub fn of(value: &Value) -> Option<Said> {
        let fields = value.as_object()?;
        let mut out = Said {
            model: fields.get("model").and_then(Value::as_str).map(str::to_owned),
            usage: usage(fields.get("usage"), fields.get("timings")),
            error: reply::error_in(value),
            ..Said::default()
        };
        out.stop = value.pointer("/__verbose/stopping_word").and_then(text_of);
        let told = |key: &str| fields.get(key).filter(|told| told.is_object()).cloned();
        out.telemetry = Telemetry { timings: told("timings"), progress: told("prompt_progress") };
        let choices = fields.get("choices").and_then(Value::as_array).into_iter().flatten();
        let mut first = choices.filter(|c| c.get("index").and_then(Value::as_u64).unwrap_or(0) == 0);
        let Some(choice) = first.next() else { return Some(out) };
        out.finish = match reply::came_whole(choice) {
            true => Some(
                reply::end_of(choice).filter(|end| !reply::is_failure(end)).unwrap_or(reply::BROKEN_OFF).to_owned(),
            ),
            false => reply::finish_of(choice).map(str::to_owned),
        };
        // No dialect here has another word for a call in the older form.
        if out.finish.as_deref() == Some("function_call") {
            out.finish = Some("tool_calls".to_owned());
        }
        let logprobs = choice.pointer("/logprobs/content").and_then(Value::as_array);
        out.logprobs = logprobs.cloned().unwrap_or_default();
        // A number there is a token, such as the model's own end.
        let stops = ["stop_reason", "matched_stop"].iter().find_map(|key| text_of(choice.get(*key)?));
        out.stop = out.stop.or(stops);
        let Some(message) = choice.get("delta").or(choice.get("message")) else { return Some(out) };
        let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        out.text = text("content");
        out.refusal = text("refusal");
        let thought = ["reasoning_content", "reasoning", "thinking"];
        out.reasoning = thought.iter().map(|k| texts(message.get(*k))).find(|t| !t.is_empty()).unwrap_or_default();
        if let Some(Value::Array(parts)) = message.get("content") {
            out.parts(parts);
        }
        // OpenRouter's form, alone.
        if let (true, Some(Value::Array(details))) = (out.reasoning.is_empty(), message.get("reasoning_details")) {
            out.reasoning = details.iter().map(|detail| texts(detail.get("text").or(detail.get("summary")))).collect();
        }
        out.calls = reply::calls(message).iter().enumerate().map(|(at, call)| part(at as u64, call)).collect();
        Some(out)
    }

    /// Takes in a content of parts, as Mistral's and Databricks' models that think send it.
    fn parts(&mut self, parts: &[Value]) {
        for part in parts {
            let of = |key: &str| texts(part.get(key));
            match part.get("type").and_then(Value::as_str) {
                Some("thinking") => self.reasoning += &of("thinking"),
                Some("reasoning") => self.reasoning += &[of("text"), of("summary")].concat(),
                Some("refusal") => self.refusal += &of("refusal"),
                _ => self.text += &texts(Some(part)),
            }
        }
    }
}

/// A text, or the texts of parts, one behind the other.
fn texts(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().map(|part| texts(Some(part))).collect(),
        Some(Value::Object(part)) => texts(part.get("text").or(part.get("content"))),
        _ => String::new(),
    }
}

/// A text that is not empty.
fn text_of(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn part(at: u64, call: &Value) -> CallPart {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).filter(|t| !t.is_empty()).map(str::to_owned);
    let function = call.get("function");
    let arguments = match function.and_then(|f| f.get("arguments")) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        // Some servers send the object itself.
        Some(other) => other.to_string(),
    };
    CallPart {
        index: call.get("index").and_then(Value::as_u64).unwrap_or(at),
        id: extra::with_extra(call),
        name: text(function.and_then(|f| f.get("name"))),
        arguments,
    }
}

fn usage(usage: Option<&Value>, timings: Option<&Value>) -> Usage {
    let number = |at: &str| usage.and_then(|u| u.pointer(at)).and_then(Value::as_u64);
    let timing = |key: &str| timings.and_then(|t| t.get(key)).and_then(Value::as_f64);
    let count = |key: &str| timing(key).map(|n| n.max(0.0) as u64);
    let evaluated = count("cache_n").zip(count("prompt_n")).map(|(cached, new)| cached + new);
    Usage {
        prompt: number("/prompt_tokens").or(evaluated),
        cached: number("/prompt_tokens_details/cached_tokens").or(count("cache_n")),
        completion: number("/completion_tokens").or(count("predicted_n")),
        reasoning: number("/completion_tokens_details/reasoning_tokens"),
        prompt_ms: timing("prompt_ms"),
        completion_ms: timing("predicted_ms"),
        load_ms: timing("load_ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_whole_replies_are_read_alike() {
        let whole = r#"{"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi","reasoning_content":"hm",
            "tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}],
            "usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let said = Said::read(whole).unwrap();
        let call = CallPart { index: 0, id: Some("c1".into()), name: Some("f".into()), arguments: "{}".into() };
        assert_eq!((said.text.as_str(), said.reasoning.as_str(), said.calls), ("hi", "hm", vec![call]));
        assert_eq!((said.usage.prompt, said.usage.cached, said.usage.completion), (Some(9), Some(4), Some(3)));
        let chunk = r#"{"choices":[{"delta":{"content":null,"tool_calls":[{"index":1,"function":{"arguments":"{\"a"}}]},"finish_reason":null}],
            "timings":{"cache_n":5,"prompt_n":2,"predicted_n":1,"prompt_ms":1.5}}"#;
        let said = Said::read(chunk).unwrap();
        assert_eq!(
            (said.calls[0].index, said.calls[0].id.as_deref(), said.calls[0].arguments.as_str()),
            (1, None, "{\"a")
        );
        assert_eq!((said.usage.prompt, said.usage.cached, said.usage.prompt_ms), (Some(7), Some(5), Some(1.5)));
        assert_eq!(Said::read("[DONE]"), None);
        assert_eq!(Said::read(r#"{"error":{"message":"gone"}}"#).unwrap().error.unwrap()["message"], "gone");
        // A second choice is nobody's.
        let second = r#"{"choices":[{"index":1,"delta":{"content":"no"}}]}"#;
        assert_eq!(Said::read(second), Some(Said::default()));
    }

    #[test]
    fn a_content_of_parts_is_text_and_thought() {
        let message = |message: Value| Said::of(&serde_json::json!({"choices": [{"delta": message}]})).unwrap();
        let text = |text: &str| serde_json::json!({"type": "text", "text": text});
        let said = message(serde_json::json!({"content": [
            {"type": "thinking", "thinking": [text("h"), text("m")]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
            text("Hel"), text("lo"), "!", {"type": "refusal", "refusal": "No."}, {"type": "reference", "reference_ids": [1]},
        ]}));
        assert_eq!((&said.text[..], &said.reasoning[..], &said.refusal[..]), ("Hello!", "hmso", "No."));
        let details =
            serde_json::json!([{"type": "reasoning.text", "text": "hm"}, {"type": "reasoning.encrypted", "data": "x"}]);
        assert_eq!(message(serde_json::json!({"content": "", "reasoning_details": details})).reasoning, "hm");
        assert_eq!(message(serde_json::json!({"reasoning": {"content": [text("a"), "b"]}})).reasoning, "ab");
        assert_eq!(message(serde_json::json!({"reasoning": "once", "reasoning_details": details})).reasoning, "once");
    }
}
