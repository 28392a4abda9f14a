//! Requests as clients write them, text to fill them with, and the check of what was forwarded.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

/// The model that every fake serves unless told otherwise.
pub(crate) const MODEL: &str = "test-model";

/// A chat request under construction.
#[derive(Debug, Clone)]
pub(crate) struct Chat {
    pub(crate) messages: Vec<Value>,
    pub(crate) fields: Map<String, Value>,
}

/// A request with nothing in it but the model.
pub(crate) fn chat() -> Chat {
    let mut fields = Map::new();
    fields.insert("model".into(), json!(MODEL));
    Chat { messages: Vec::new(), fields }
}

impl Chat {
    pub(crate) fn push(mut self, message: Value) -> Chat {
        self.messages.push(message);
        self
    }

    pub(crate) fn system(self, text: &str) -> Chat {
        self.push(json!({"role": "system", "content": text}))
    }

    pub(crate) fn user(self, text: &str) -> Chat {
        self.push(json!({"role": "user", "content": text}))
    }

    pub(crate) fn assistant(self, text: &str) -> Chat {
        self.push(json!({"role": "assistant", "content": text}))
    }

    /// One call of one step.
    pub(crate) fn call(self, id: &str, tool: &str, arguments: Value) -> Chat {
        self.calls(&[(id, tool, &arguments.to_string())])
    }

    /// A step with several calls; arguments as they are spelled.
    pub(crate) fn calls(self, calls: &[(&str, &str, &str)]) -> Chat {
        let calls: Vec<Value> = calls
            .iter()
            .map(|(id, name, arguments)| {
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        self.push(json!({"role": "assistant", "content": null, "tool_calls": calls}))
    }

    pub(crate) fn result(self, id: &str, text: &str) -> Chat {
        self.push(json!({"role": "tool", "tool_call_id": id, "content": text}))
    }

    /// A whole step: one call and its result.
    pub(crate) fn step(self, n: usize, text: &str) -> Chat {
        let id = format!("call_{n}");
        self.call(&id, "read_file", json!({"path": format!("src/part_{n}.rs")})).result(&id, text)
    }

    pub(crate) fn with(mut self, key: &str, value: Value) -> Chat {
        self.fields.insert(key.into(), value);
        self
    }

    pub(crate) fn stream(self) -> Chat {
        self.with("stream", json!(true))
    }

    pub(crate) fn tools(self) -> Chat {
        self.with("tools", json!([tool("read_file"), tool("run")]))
    }

    pub(crate) fn value(&self) -> Value {
        let mut all = self.fields.clone();
        all.insert("messages".into(), json!(self.messages));
        Value::Object(all)
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        self.value().to_string().into_bytes()
    }
}

/// A tool's definition.
pub(crate) fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": format!("Does {name} for the agent."),
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}})
}

/// A generator that is the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

const WORDS: [&str; 32] = [
    "lease", "cursor", "flush", "fence", "shard", "ledger", "quorum", "replay", "segment", "offset", "writer",
    "reader", "the", "a", "of", "to", "and", "is", "was", "not", "server", "window", "token", "history", "value",
    "index", "table", "stream", "error", "build", "module", "test",
];

/// About `bytes` bytes of words in lines, different for each seed.
pub(crate) fn prose(seed: u64, bytes: usize) -> String {
    let mut dice = Dice(seed.wrapping_mul(7919).wrapping_add(13));
    let mut out = format!("Part {seed}:");
    let mut line = 0;
    while out.len() < bytes {
        out.push(if line % 9 == 8 { '\n' } else { ' ' });
        line += 1;
        out.push_str(WORDS[dice.below(WORDS.len())]);
        if line % 7 == 0 {
            out.push_str(&format!("_{}", dice.below(1000)));
        }
    }
    out
}

/// The text of a message, its parts joined.
pub(crate) fn text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

/// Prompt tokens by the fakes' own tokenizer: a quarter of the bytes, and four for each message.
pub(crate) fn tokens(body: &Value) -> u32 {
    let quarter = |bytes: usize| bytes.div_ceil(4);
    let mut total = 0;
    let none = Vec::new();
    let messages = body["messages"].as_array().unwrap_or(&none);
    let last_user = messages.iter().rposition(|m| m["role"] == "user").unwrap_or(0);
    for (at, message) in messages.iter().enumerate() {
        let mut bytes = text(message).len() + message["role"].as_str().map_or(0, str::len);
        if at > last_user {
            // Templates keep the reasoning of the running turn only.
            bytes += message["reasoning_content"].as_str().map_or(0, str::len);
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            let arguments = match &function["arguments"] {
                Value::String(s) => s.len(),
                other => other.to_string().len(),
            };
            bytes += function["name"].as_str().map_or(0, str::len) + arguments + 16;
        }
        let parts = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        let pictures = parts.iter().filter(|p| p["type"] == "image_url").count()
            + message["images"].as_array().map_or(0, Vec::len);
        total += quarter(bytes) + 4 + pictures * 300;
    }
    if let Some(tools) = body.get("tools").filter(|t| !t.is_null()) {
        total += quarter(tools.to_string().len());
    }
    total as u32
}

/// The structural check of `shared/bench/measure.py`, and that arguments are JSON objects: what is wrong with a forwarded
/// request, against what the client sent.
pub(crate) fn faults(client: &Value, forwarded: &Value) -> Vec<String> {
    let mut bad = Vec::new();
    let none = Vec::new();
    let sent = client["messages"].as_array().unwrap_or(&none);
    let messages = forwarded["messages"].as_array().unwrap_or(&none);
    let mut open: HashSet<String> = HashSet::new();
    let mut step: HashSet<String> = HashSet::new();
    let id = |v: &Value| v.as_str().unwrap_or("").to_owned();
    for (at, message) in messages.iter().enumerate() {
        if message["role"] == "tool" {
            if !step.contains(&id(&message["tool_call_id"])) {
                bad.push(format!("orphan tool result at {at}"));
            }
            open.remove(&id(&message["tool_call_id"]));
            continue;
        }
        if !open.is_empty() {
            bad.push(format!("call without result before {at}"));
        }
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        step = calls.iter().map(|c| id(&c["id"])).collect();
        open = step.clone();
        for call in calls {
            let arguments = call["function"]["arguments"].as_str().unwrap_or("");
            if !serde_json::from_str::<Value>(arguments).is_ok_and(|v| v.is_object()) {
                bad.push(format!("arguments at {at} are not an object"));
            }
        }
    }
    if !open.is_empty() {
        bad.push("call without result at the end".into());
    }
    let leading = |all: &[Value]| -> Vec<String> {
        all.iter().take_while(|m| m["role"] == "system" || m["role"] == "developer").map(text).collect()
    };
    if leading(sent) != leading(messages) {
        bad.push("system prompt altered or lost".into());
    }
    if let Some(last) = sent.iter().rev().find(|m| m["role"] == "user") {
        let last = text(last);
        if !messages.iter().any(|m| text(m).contains(&last)) {
            bad.push("last user message lost".into());
        }
    }
    let tools = |body: &Value| body["tools"].as_array().cloned();
    let own = tools(forwarded).map(|mut all| {
        // One of ours may stand behind them.
        if all.last().is_some_and(|t| t["function"]["name"] == "windowsill_recall")
            && tools(client) != Some(all.clone())
        {
            all.pop();
        }
        all
    });
    if tools(client) != own {
        bad.push("tools altered".into());
    }
    bad
}
