//! Odd but legal requests of four dialects, the same for the same seed: every field and every kind of message, block and item
//! that the SDKs know, in histories with holes, halves, doubles and orphans.

use serde_json::{Map, Value, json};

use super::kinds;
use crate::fakes::Dice;

/// A dialect, by where it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
    /// Ollama's chat.
    Ollama,
    /// Ollama's generate.
    Generate,
}

impl Dialect {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Dialect::Chat => "/v1/chat/completions",
            Dialect::Responses => "/v1/responses",
            Dialect::Messages => "/v1/messages",
            Dialect::Ollama => "/api/chat",
            Dialect::Generate => "/api/generate",
        }
    }

    /// Where its messages stand in a request, if it has any.
    fn list(self) -> Option<&'static str> {
        match self {
            Dialect::Chat | Dialect::Messages | Dialect::Ollama => Some("messages"),
            Dialect::Responses => Some("input"),
            Dialect::Generate => None,
        }
    }
}

/// A picture of one pixel.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

/// What people say. Some have edges, lines, odd letters or nothing in them.
const SAID: [&str; 14] = [
    "Say hello.",
    "Count to three",
    "  Two spaces stand in front of this.",
    "This ends with a line break.\n",
    "\n\nIndented:\n    def f():\n        return 1\n",
    "Ünïcode: 世界 🌍 e\u{301} \u{200b}.",
    "<|im_end|> is no token of mine",
    "{\"a\": 1.10, \"b\": 12345678901234567890}",
    "What is 7 times 8?",
    "a",
    " ",
    "A tab\tand a quote \" and a \\ backslash.",
    "Reply with one word: which city is the capital of France?",
    "<system-reminder>\nThis is no instruction.\n</system-reminder>",
];

fn said(dice: &mut Dice) -> &'static str {
    SAID[dice.below(SAID.len())]
}

pub(crate) fn pick(dice: &mut Dice, from: &[Value]) -> Value {
    from[dice.below(from.len())].clone()
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}, "required": ["path"]})
}

/// One request of a dialect: short, near no line, with few tokens to generate.
pub(crate) fn request(dialect: Dialect, dice: &mut Dice) -> Value {
    let mut body = match dialect {
        Dialect::Chat => chat(dice),
        Dialect::Responses => responses(dice),
        Dialect::Messages => messages(dice),
        Dialect::Ollama => ollama(dice),
        Dialect::Generate => generate(dice),
    };
    body.insert("model".to_owned(), json!("smollm2"));
    let stream = dice.chance(35);
    // Ollama streams unless it is told not to.
    if stream || matches!(dialect, Dialect::Ollama | Dialect::Generate) {
        body.insert("stream".to_owned(), json!(stream));
    }
    Value::Object(body)
}

/// The same request with one thing changed, as a client changes it in its next request or another client has it; or longer by
/// a turn.
pub(crate) fn again(dialect: Dialect, before: &Value, dice: &mut Dice) -> Value {
    let mut body = before.clone();
    let Some(list) = dialect.list().and_then(|key| body.get_mut(key)).and_then(Value::as_array_mut) else {
        return body;
    };
    if list.is_empty() {
        list.push(json!({"role": "user", "content": said(dice)}));
    }
    let at = dice.below(list.len());
    match dice.below(9) {
        0 => edge(&mut list[at], dice),
        1 if dialect == Dialect::Chat => list[at]["name"] = pick(dice, &[json!("alice"), json!("bob")]),
        2 => list[at]["x_unknown"] = pick(dice, &[json!(1), json!("yes"), Value::Null]),
        3 if dialect == Dialect::Chat => list[at]["reasoning_content"] = json!(said(dice)),
        4 => list.push(json!({"role": "assistant", "content": said(dice).trim_end()})),
        5 if list.len() > 1 => drop(list.remove(at)),
        6 => {
            let double = list[at].clone();
            list.insert(at, double);
        }
        7 if list.len() > 1 => {
            let other = dice.below(list.len());
            list.swap(at, other);
        }
        _ => {
            list.push(json!({"role": "assistant", "content": "Well."}));
            list.push(json!({"role": "user", "content": said(dice)}));
        }
    }
    body
}

/// Changes the edges of what a message says.
fn edge(message: &mut Value, dice: &mut Dice) {
    let more = |text: &str, dice: &mut Dice| match dice.below(4) {
        0 => format!(" {text}"),
        1 => format!("{text}\n"),
        2 => format!("{text}    "),
        _ => text.trim().to_owned(),
    };
    for key in ["content", "output"] {
        if let Some(Value::String(text)) = message.get_mut(key) {
            *text = more(text, dice);
        }
    }
}

/// A few of these fields.
fn some(dice: &mut Dice, fields: &[(&str, Value)]) -> Map<String, Value> {
    let mut out = Map::new();
    for _ in 0..dice.below(4) {
        let (key, value) = &fields[dice.below(fields.len())];
        out.insert((*key).to_owned(), value.clone());
    }
    out
}

/// A history: what someone asks, what came before it, and sometimes a piece too few or too many.
fn history(dice: &mut Dice, first: fn(&mut Dice) -> Vec<Value>, turn: fn(&mut Dice) -> Vec<Value>) -> Vec<Value> {
    let mut all = first(dice);
    for _ in 0..dice.below(4) {
        all.extend(turn(dice));
    }
    if dice.chance(15) && all.len() > 1 {
        all.remove(dice.below(all.len()));
    }
    if dice.chance(10) && !all.is_empty() {
        let double = all[dice.below(all.len())].clone();
        all.push(double);
    }
    if dice.chance(70) {
        all.push(json!({"role": "user", "content": said(dice)}));
    }
    all
}

fn chat(dice: &mut Dice) -> Map<String, Value> {
    let fields = [
        ("temperature", json!(0)),
        ("top_p", json!(0.9)),
        ("n", pick(dice, &[json!(1), Value::Null])),
        (
            "stop",
            pick(
                dice,
                &[
                    json!("zzz"),
                    json!(["zzz", "yyy"]),
                    Value::Null,
                    json!([]),
                    json!(""),
                    json!([""]),
                    json!([1]),
                    json!(["a", null]),
                ],
            ),
        ),
        ("presence_penalty", json!(0)),
        ("frequency_penalty", json!(0.0)),
        ("logit_bias", pick(dice, &[json!({}), Value::Null])),
        ("logprobs", pick(dice, &[json!(false), Value::Null])),
        ("top_logprobs", Value::Null),
        ("user", json!("someone")),
        ("metadata", pick(dice, &[json!({"k": "v"}), json!({}), Value::Null])),
        ("store", json!(false)),
        ("parallel_tool_calls", pick(dice, &[json!(true), json!(false), Value::Null])),
        (
            "tool_choice",
            pick(
                dice,
                &[
                    json!("auto"),
                    json!("none"),
                    json!({"type": "function", "function": {"name": "gone"}}),
                    json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
                    Value::Null,
                ],
            ),
        ),
        (
            "response_format",
            pick(dice, &[json!({"type": "text"}), json!({"type": "json_object"}), json!({}), Value::Null]),
        ),
        ("stream_options", pick(dice, &[json!({"include_usage": true}), json!({}), Value::Null])),
        ("reasoning_effort", pick(dice, &[json!("low"), json!("high"), json!("none"), json!("xhigh"), Value::Null])),
        ("moderation", json!({"model": "omni-moderation-latest"})),
        ("prompt_cache_options", json!({"mode": "implicit", "ttl": "30m"})),
        ("verbosity", json!("low")),
        ("service_tier", json!("auto")),
        ("modalities", json!(["text"])),
        ("prediction", Value::Null),
        ("safety_identifier", json!("s")),
        ("prompt_cache_key", json!("p")),
        ("prompt_cache_retention", json!("24h")),
        ("top_k", json!(40)),
        ("min_p", json!(0.05)),
        ("chat_template_kwargs", json!({"enable_thinking": false})),
        ("x_unknown", json!({"deep": [1, 2.50, null]})),
        ("audio", Value::Null),
        ("functions", Value::Null),
        ("web_search_options", Value::Null),
    ];
    let mut body = some(dice, &fields);
    body.insert("temperature".to_owned(), json!(0));
    body.insert("seed".to_owned(), json!(1));
    // Not `max_completion_tokens`, which Ollama's own endpoint overlooks: windowsill keeps to it.
    body.insert("max_tokens".to_owned(), json!(1 + dice.below(6)));
    if dice.chance(40) {
        body.insert("tools".to_owned(), json!([{"type": "function", "function": {"name": "read_file", "description": "Reads.", "parameters": schema()}}]));
    }
    body.insert("messages".to_owned(), json!(history(dice, chat_first, chat_turn)));
    body
}

fn chat_first(dice: &mut Dice) -> Vec<Value> {
    let words = said(dice);
    match dice.below(6) {
        0 => vec![],
        1 => vec![json!({"role": "developer", "content": "Be brief."})],
        2 => vec![json!({"role": "system", "content": [{"type": "text", "text": "Be brief."}]})],
        3 => vec![
            json!({"role": "system", "content": "Be brief.", "name": "boss"}),
            json!({"role": "user", "content": words}),
        ],
        _ => vec![json!({"role": "system", "content": "Be brief."})],
    }
}

fn chat_turn(dice: &mut Dice) -> Vec<Value> {
    let words = said(dice);
    let user = json!({"role": "user", "content": words});
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "read_file", "arguments": arguments}});
    match dice.below(20) {
        0 => vec![
            json!({"role": "user", "content": [{"type": "text", "text": words}, {"type": "text", "text": "and more"}]}),
        ],
        1 => vec![json!({"role": "user", "name": "alice", "content": words})],
        2 => vec![user, json!({"role": "assistant", "content": [{"type": "text", "text": "Well."}]})],
        3 => vec![
            user,
            json!({"role": "assistant", "content": "Well.", "refusal": null, "annotations": [], "audio": null}),
        ],
        4 => vec![user, json!({"role": "assistant", "content": null, "refusal": "No."})],
        5 => vec![user, json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})],
        6 => vec![user, json!({"role": "assistant", "content": "Well.", "reasoning_content": "It is a question."})],
        7 => vec![user, json!({"role": "assistant", "content": null, "reasoning_content": "Cut while it thought"})],
        8 => vec![user, json!({"role": "assistant", "content": ""})],
        9 => {
            vec![user, json!({"role": "assistant", "content": "One."}), json!({"role": "assistant", "content": "Two."})]
        }
        10 => vec![
            json!({"role": "assistant", "content": null, "tool_calls": [call("c1", "{\"path\":\"a\",\"n\":1.10}")]}),
            json!({"role": "tool", "tool_call_id": "c1", "content": words}),
        ],
        11 => vec![
            json!({"role": "assistant", "content": "I look.", "tool_calls": [call("c1", "{\"path\":\"a\"}"), call("c2", "{}")]}),
            json!({"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": words}]}),
            json!({"role": "tool", "tool_call_id": "c1", "name": "read_file", "content": ""}),
        ],
        12 => vec![
            json!({"role": "assistant", "tool_calls": [call("c3", "")]}),
            json!({"role": "tool", "tool_call_id": "c3", "content": "x"}),
        ],
        13 => vec![
            json!({"role": "assistant", "content": null, "tool_calls": [call("c4", "{\"path\":\"never answered\"}")]}),
        ],
        14 => vec![json!({"role": "tool", "tool_call_id": "gone", "content": words})],
        15 => vec![json!({"role": "system", "content": "A note in the middle."})],
        16 => vec![json!({"role": "user", "content": ""})],
        17 => vec![user, json!({"role": "assistant", "content": "Well.", "tool_calls": []})],
        18 => vec![
            json!({"role": "assistant", "content": null, "function_call": {"name": "read_file", "arguments": "{}"}}),
            json!({"role": "function", "name": "read_file", "content": words}),
        ],
        _ => vec![user, json!({"role": "assistant", "content": "Well."})],
    }
}

fn responses(dice: &mut Dice) -> Map<String, Value> {
    let fields = [
        ("instructions", pick(dice, &[json!("Be brief."), Value::Null, json!("")])),
        ("top_p", json!(0.9)),
        ("metadata", json!({"k": "v"})),
        ("store", json!(false)),
        ("include", json!(["reasoning.encrypted_content"])),
        ("parallel_tool_calls", json!(true)),
        (
            "tool_choice",
            pick(
                dice,
                &[
                    json!("auto"),
                    json!("none"),
                    json!({"type": "web_search"}),
                    json!({"type": "mcp", "server_label": "s"}),
                    json!({"type": "function", "name": "gone"}),
                    json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "read_file"}, {"type": "image_generation"}]}),
                    Value::Null,
                ],
            ),
        ),
        ("truncation", pick(dice, &[json!("disabled"), json!("auto")])),
        ("context_management", json!([{"type": "compaction", "compact_threshold": 100000}])),
        ("prompt", json!({"id": "pmpt_1"})),
        ("stream_options", json!({"include_obfuscation": false})),
        ("moderation", json!({"model": "omni-moderation-latest"})),
        (
            "reasoning",
            pick(dice, &[json!({"effort": "low"}), json!({"effort": "medium", "summary": "auto"}), Value::Null]),
        ),
        (
            "text",
            pick(dice, &[json!({"format": {"type": "text"}}), json!({"verbosity": "low"}), json!({}), Value::Null]),
        ),
        ("user", json!("someone")),
        ("prompt_cache_key", json!("p")),
        ("safety_identifier", json!("s")),
        ("service_tier", json!("auto")),
        ("max_tool_calls", json!(3)),
        ("background", json!(false)),
        ("top_logprobs", json!(0)),
        ("x_unknown", json!([1])),
        ("previous_response_id", Value::Null),
    ];
    let mut body = some(dice, &fields);
    body.insert("temperature".to_owned(), json!(0));
    body.insert("max_output_tokens".to_owned(), json!(1 + dice.below(6)));
    if dice.chance(40) {
        body.insert("tools".to_owned(), json!([{"type": "function", "name": "read_file", "description": "Reads.", "parameters": schema(), "strict": false}]));
    }
    let input = if dice.chance(15) { json!(said(dice)) } else { json!(history(dice, responses_first, responses_turn)) };
    body.insert("input".to_owned(), input);
    body
}

fn responses_first(dice: &mut Dice) -> Vec<Value> {
    match dice.below(4) {
        0 => vec![json!({"role": "developer", "content": "Be brief."})],
        1 => {
            vec![json!({"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be brief."}]})]
        }
        _ => vec![],
    }
}

fn responses_turn(dice: &mut Dice) -> Vec<Value> {
    let words = said(dice);
    let user = json!({"role": "user", "content": words});
    let output = |parts: Value| json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts});
    let text = json!({"type": "output_text", "text": "Well.", "annotations": []});
    match dice.below(20) {
        0 => vec![json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]})],
        1 => vec![user, output(json!([text]))],
        2 => vec![user, output(json!([{"type": "refusal", "refusal": "No."}]))],
        3 => vec![
            user,
            json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Thinking."}]}),
            output(json!([text])),
        ],
        4 => vec![user, json!({"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAA"})],
        5 | 6 => vec![
            json!({"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read_file", "arguments": "{\"path\":\"a\"}", "status": "completed"}),
            json!({"type": "function_call_output", "call_id": "c1", "output": words}),
        ],
        7 => vec![
            json!({"type": "function_call", "call_id": "c2", "name": "read_file", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": words}]}),
        ],
        8 => vec![json!({"type": "function_call_output", "call_id": "gone", "output": words})],
        9 => vec![json!({"type": "function_call", "call_id": "c3", "name": "read_file", "arguments": "{}"})],
        10 => vec![json!({"type": "item_reference", "id": "msg_gone"})],
        11 => vec![
            json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "weather"}}),
        ],
        12 => vec![
            json!({"type": "local_shell_call", "id": "lsh_1", "call_id": "c4", "status": "completed", "action": {"type": "exec", "command": ["ls"], "env": {}}}),
            json!({"type": "local_shell_call_output", "id": "lsh_1", "output": "{\"output\":\"a.txt\"}"}),
        ],
        13 => vec![
            json!({"type": "custom_tool_call", "call_id": "c5", "name": "apply_patch", "input": "*** Begin Patch"}),
            json!({"type": "custom_tool_call_output", "call_id": "c5", "output": words}),
        ],
        14 => vec![json!({"type": "compaction", "encrypted_content": "gAAAA"})],
        15 => vec![json!({"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []})],
        16 => vec![json!({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PIXEL})],
        17 => vec![
            json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}, {"type": "input_image", "detail": "auto", "image_url": format!("data:image/png;base64,{PIXEL}")}]}),
        ],
        18 => vec![kinds::item(dice, words, PIXEL)],
        _ => vec![user, json!({"role": "assistant", "content": "Well."})],
    }
}

fn messages(dice: &mut Dice) -> Map<String, Value> {
    let fields = [
        (
            "system",
            pick(
                dice,
                &[
                    json!("Be brief."),
                    json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]),
                ],
            ),
        ),
        ("stop_sequences", pick(dice, &[json!([]), json!(["zzz"]), json!("zzz"), json!([""]), Value::Null])),
        ("top_k", json!(40)),
        ("top_p", json!(0.9)),
        ("metadata", json!({"user_id": "someone"})),
        ("service_tier", json!("auto")),
        (
            "thinking",
            pick(
                dice,
                &[
                    json!({"type": "disabled"}),
                    json!({"type": "enabled", "budget_tokens": 1024}),
                    json!({"type": "adaptive"}),
                ],
            ),
        ),
        (
            "tool_choice",
            pick(
                dice,
                &[
                    json!({"type": "auto"}),
                    json!({"type": "none"}),
                    json!({"type": "auto", "disable_parallel_tool_use": true}),
                    json!({"type": "tool", "name": "web_search"}),
                    Value::Null,
                ],
            ),
        ),
        ("output_config", pick(dice, &[json!({"effort": "low"}), json!({"format": null}), json!({})])),
        ("context_management", json!({"edits": [{"type": "clear_tool_uses_20250919"}]})),
        ("mcp_servers", json!([{"type": "url", "url": "https://example.org", "name": "m"}])),
        ("container", json!({"id": "c", "skills": []})),
        ("speed", json!("fast")),
        ("fallbacks", json!([{"model": "m"}])),
        ("betas", json!(["x"])),
        ("cache_control", json!({"type": "ephemeral"})),
        ("x_unknown", json!(true)),
    ];
    let mut body = some(dice, &fields);
    body.insert("temperature".to_owned(), json!(0));
    body.insert("max_tokens".to_owned(), json!(1 + dice.below(6)));
    if dice.chance(40) {
        body.insert(
            "tools".to_owned(),
            json!([{"name": "read_file", "description": "Reads.", "input_schema": schema()}]),
        );
    }
    body.insert("messages".to_owned(), json!(history(dice, |_| vec![], messages_turn)));
    body
}

fn messages_turn(dice: &mut Dice) -> Vec<Value> {
    let words = said(dice);
    let user = json!({"role": "user", "content": words});
    let used = |id: &str| json!({"type": "tool_use", "id": id, "name": "read_file", "input": {"path": "a", "n": 1.10}});
    let result = |id: &str, content: Value| json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": content}]});
    match dice.below(20) {
        0 => vec![
            json!({"role": "user", "content": [{"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}]}),
        ],
        1 => {
            vec![user, json!({"role": "assistant", "content": [{"type": "text", "text": "Well.", "citations": null}]})]
        }
        2 => vec![
            user,
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Well."}]}),
        ],
        3 => vec![
            user,
            json!({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "gAAAA"}, {"type": "text", "text": "Well."}]}),
        ],
        4 => vec![
            user,
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "Cut.", "signature": "s"}]}),
        ],
        5 | 6 => vec![
            user,
            json!({"role": "assistant", "content": [{"type": "text", "text": "I look."}, used("t1")]}),
            result("t1", json!(words)),
        ],
        7 => vec![
            user,
            json!({"role": "assistant", "content": [used("t2"), used("t3")]}),
            json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t3", "content": [{"type": "text", "text": words}]},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": "no such file"},
            {"type": "text", "text": "Go on."}]}),
        ],
        8 => vec![result("gone", json!(words))],
        9 => vec![user, json!({"role": "assistant", "content": [used("t4")]})],
        10 => vec![
            user,
            json!({"role": "assistant", "content": [used("t5")]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t5"}]}),
        ],
        11 => vec![user, json!({"role": "assistant", "content": []})],
        12 => vec![
            user,
            json!({"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "weather"}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result", "title": "W", "url": "https://example.org", "encrypted_content": "x"}]},
            {"type": "text", "text": "Rain."}]}),
        ],
        13 => vec![
            json!({"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": words}, "title": "T"}, {"type": "text", "text": "Read it."}]}),
            json!({"role": "assistant", "content": "Read."}),
        ],
        14 => vec![
            json!({"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}, {"type": "text", "text": words}]}),
            json!({"role": "assistant", "content": "Seen."}),
        ],
        15 => vec![
            json!({"role": "user", "content": [{"type": "search_result", "source": "s", "title": "T", "content": [{"type": "text", "text": words}]}]}),
            json!({"role": "assistant", "content": "Found."}),
        ],
        16 => vec![user.clone(), user],
        17 => vec![json!({"role": "system", "content": "A note in the middle."})],
        18 => {
            let role = if dice.chance(50) { "user" } else { "assistant" };
            vec![
                user,
                json!({"role": role, "content": [kinds::block(dice, words), {"type": "text", "text": "And more."}]}),
            ]
        }
        _ => vec![user, json!({"role": "assistant", "content": "Well."})],
    }
}

fn ollama_fields(dice: &mut Dice) -> Map<String, Value> {
    let fields = [
        ("keep_alive", pick(dice, &[json!("5m"), json!(-1), json!(300)])),
        ("format", Value::Null),
        ("think", pick(dice, &[json!(false), Value::Null])),
        ("truncate", json!(true)),
        ("shift", json!(true)),
        ("x_unknown", json!(1)),
    ];
    let mut body = some(dice, &fields);
    body.insert("options".to_owned(), json!({"temperature": 0, "seed": 1, "num_predict": 1 + dice.below(6)}));
    body
}

fn ollama(dice: &mut Dice) -> Map<String, Value> {
    let mut body = ollama_fields(dice);
    if dice.chance(40) {
        body.insert("tools".to_owned(), json!([{"type": "function", "function": {"name": "read_file", "description": "Reads.", "parameters": schema()}}]));
    }
    body.insert("messages".to_owned(), json!(history(dice, chat_first_of_ollama, ollama_turn)));
    body
}

fn chat_first_of_ollama(dice: &mut Dice) -> Vec<Value> {
    if dice.chance(50) { vec![json!({"role": "system", "content": "Be brief."})] } else { vec![] }
}

fn ollama_turn(dice: &mut Dice) -> Vec<Value> {
    let words = said(dice);
    let user = json!({"role": "user", "content": words});
    let call = |arguments: Value| json!({"function": {"name": "read_file", "arguments": arguments}});
    match dice.below(10) {
        0 | 1 => vec![
            json!({"role": "assistant", "content": "", "tool_calls": [call(json!({"path": "a", "n": 1.10}))]}),
            json!({"role": "tool", "tool_name": "read_file", "content": words}),
        ],
        2 => vec![
            json!({"role": "assistant", "content": "", "tool_calls": [call(json!({"path": "a"})), call(json!({}))]}),
            json!({"role": "tool", "content": words}),
            json!({"role": "tool", "content": ""}),
        ],
        3 => vec![user, json!({"role": "assistant", "content": "Well.", "thinking": "Hm."})],
        4 => vec![json!({"role": "tool", "tool_name": "gone", "content": words})],
        5 => vec![user, json!({"role": "assistant", "content": ""})],
        6 => vec![user, json!({"role": "assistant"})],
        7 => vec![
            json!({"role": "user", "content": words, "images": null}),
            json!({"role": "system", "content": "A note in the middle."}),
        ],
        _ => vec![user, json!({"role": "assistant", "content": "Well."})],
    }
}

fn generate(dice: &mut Dice) -> Map<String, Value> {
    let mut body = ollama_fields(dice);
    body.insert("prompt".to_owned(), json!(said(dice)));
    if dice.chance(30) {
        body.insert("system".to_owned(), json!("Be brief."));
    }
    body
}
