//! The Model Context Protocol for the tools of an agent: a message in, its answer out, whatever carries them. It serves clients
//! that declare the protocol's version with each request (2026-07-28,
//! <https://modelcontextprotocol.io/specification/2026-07-28>) and those that begin with `initialize` (2025-11-25 and earlier). It
//! keeps nothing between two messages.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::agent::{Agent, Effect, Tool};

/// The version whose requests declare it themselves.
pub const MODERN: &str = "2026-07-28";

/// Versions that begin with `initialize`, the newest first.
const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// How often a client that asks for progress hears of it: below the shortest patience that clients are known to have.
pub const PROGRESS: Duration = Duration::from_secs(5);

/// Where a request declares its version, and what its client can do.
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// Codes of errors: of JSON-RPC, and of the protocol.
pub const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
/// There is no such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters of a request are not what its method takes.
pub const INVALID_PARAMS: i64 = -32602;
/// Headers and body of a request disagree.
pub const HEADER_MISMATCH: i64 = -32020;
/// The version is none of those served.
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// What a model is told of the server as a whole.
const INSTRUCTIONS: &str = "windowsill keeps long conversations within a local model's context window. What it took out of the \
    prompt stands there as a marker with an id (windowsill recall r…): `recall` reads it back whole, `search` finds what was \
    said or taken out, `context` says how full the window is, `window` how large it is. `pin` has a text stay in the prompt, \
    `done` says that a task is done, `build` begins another conversation with turns of this one.";

/// How an original is called as a resource.
const RECORDS: &str = "windowsill://record/";
const CONVERSATIONS: &str = "windowsill://conversation/";

/// An agent's tools, as the protocol offers them.
pub struct Protocol {
    agent: Agent,
    tools: Vec<Value>,
}

/// An answer that is an error: its code, in words, and what goes with it.
struct Refusal(i64, String, Option<Value>);

impl Protocol {
    /// Over an agent.
    pub fn new(agent: Agent) -> Protocol {
        let tools = agent.tools().into_iter().map(offered).collect();
        Protocol { agent, tools }
    }

    /// Answers a message; `None` where it wants no answer.
    pub async fn answer(&self, message: &Value) -> Option<Value> {
        let id = &message["id"];
        let is_request = id.is_string() || id.is_number();
        let Some(method) = message["method"].as_str().filter(|_| message["jsonrpc"] == "2.0") else {
            // A response is to nothing that was asked.
            let is_response = message.get("result").is_some() || message.get("error").is_some();
            let words = "the message is no request of JSON-RPC 2.0".to_owned();
            return (!is_response)
                .then(|| error(if is_request { id } else { &Value::Null }, Refusal(INVALID_REQUEST, words, None)));
        };
        // A notification wants no answer.
        message.get("id")?;
        if !is_request {
            return Some(error(
                &Value::Null,
                Refusal(INVALID_REQUEST, "`id` must be a text or a number".to_owned(), None),
            ));
        }
        let answered = match era(message) {
            Ok(modern) => self.request(method, &message["params"], modern).await,
            Err(refusal) => Err(refusal),
        };
        Some(match answered {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(refusal) => error(id, refusal),
        })
    }

    async fn request(&self, method: &str, params: &Value, modern: bool) -> Result<Value, Refusal> {
        let mut result = match method {
            "initialize" if !modern => return Ok(self.initialized(params)),
            "ping" if !modern => return Ok(json!({})),
            "server/discover" => self.discovered(),
            "tools/list" => cacheable(json!({"tools": self.tools}), modern),
            "tools/call" => self.called(params, modern).await?,
            "resources/list" => cacheable(json!({"resources": self.resources().await}), modern),
            "resources/templates/list" => cacheable(json!({"resourceTemplates": templates()}), modern),
            "resources/read" => cacheable(self.read(params, modern).await?, modern),
            _ => return Err(Refusal(METHOD_NOT_FOUND, format!("there is no method `{}`", short(method)), None)),
        };
        if modern {
            result["resultType"] = json!("complete");
            result["_meta"] = json!({SERVER: us()});
        }
        Ok(result)
    }

    fn initialized(&self, params: &Value) -> Value {
        let asked = params["protocolVersion"].as_str();
        let version = LEGACY.into_iter().find(|known| asked == Some(*known)).unwrap_or(LEGACY[0]);
        json!({"protocolVersion": version, "capabilities": capabilities(), "serverInfo": us(), "instructions": INSTRUCTIONS})
    }

    fn discovered(&self) -> Value {
        let found =
            json!({"supportedVersions": versions(), "capabilities": capabilities(), "instructions": INSTRUCTIONS});
        cacheable(found, true)
    }

    async fn called(&self, params: &Value, modern: bool) -> Result<Value, Refusal> {
        let invalid = |words: String| Refusal(INVALID_PARAMS, words, None);
        let name = params["name"].as_str().ok_or_else(|| invalid("`name` must say which tool".to_owned()))?;
        let none = Map::new();
        let arguments = match &params["arguments"] {
            Value::Null => &none,
            Value::Object(arguments) => arguments,
            _ => return Err(invalid("`arguments` must be an object".to_owned())),
        };
        let Some(answer) = self.agent.call(name, arguments).await else {
            let known: Vec<&str> = self.tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
            return Err(invalid(format!("there is no tool `{}`; there are {}", short(name), known.join(", "))));
        };
        // What went wrong stands in the tool's result, so that the model reads it.
        let (text, failed) = match answer {
            Ok(text) => (text, false),
            Err(why) => (why, true),
        };
        let mut result = json!({"content": [{"type": "text", "text": text}], "isError": failed});
        let is_json = self.tools.iter().any(|tool| tool["name"] == name && tool["outputSchema"].is_object());
        if let Some(value) =
            serde_json::from_str::<Value>(&text).ok().filter(|value| is_json && !failed && value.is_object())
        {
            result["structuredContent"] = value;
        }
        if !modern && !failed {
            result.as_object_mut().and_then(|result| result.remove("isError"));
        }
        Ok(result)
    }

    /// What may be listed. All else is read by its id.
    async fn resources(&self) -> Vec<Value> {
        let listed = self.agent.listed().await;
        let row = |(id, title): (String, String)| json!({"uri": format!("{CONVERSATIONS}{id}"), "name": id, "title": title, "mimeType": "text/plain"});
        listed.into_iter().map(row).collect()
    }

    async fn read(&self, params: &Value, modern: bool) -> Result<Value, Refusal> {
        let uri =
            params["uri"].as_str().ok_or_else(|| Refusal(INVALID_PARAMS, "`uri` must be a text".to_owned(), None))?;
        let text = match named(uri) {
            Some(id) => self.agent.original(&id).await,
            None => None,
        };
        let Some(text) = text else {
            // Earlier versions have a code of their own for this.
            let code = if modern { INVALID_PARAMS } else { -32002 };
            return Err(Refusal(
                code,
                format!("there is no resource `{}`", short(uri)),
                Some(json!({"uri": short(uri)})),
            ));
        };
        Ok(json!({"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}))
    }
}

/// The progress that a client asks to hear of: its token.
pub fn progress_token(message: &Value) -> Option<&Value> {
    let token = &message["params"]["_meta"]["progressToken"];
    (message["method"] == "tools/call" && (token.is_string() || token.is_number())).then_some(token)
}

/// Progress after so many seconds: nobody knows how long it takes.
pub fn progress(token: &Value, seconds: f64) -> Value {
    let params = json!({"progressToken": token, "progress": seconds, "message": "at work"});
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
}

/// The version that a request declares, where it declares one.
pub fn declared(message: &Value) -> Option<&str> {
    message["params"]["_meta"][VERSION].as_str()
}

/// The answer to a message that has an error, for those who carry messages.
pub fn refused(id: &Value, code: i64, message: impl Into<String>, data: Option<Value>) -> Value {
    error(id, Refusal(code, message.into(), data))
}

/// Every version that is served.
pub fn versions() -> Vec<&'static str> {
    std::iter::once(MODERN).chain(LEGACY).collect()
}

/// What says that a version is none of those served.
pub fn unsupported(id: &Value, requested: &str) -> Value {
    error(id, unserved(requested))
}

fn unserved(requested: &str) -> Refusal {
    let data = json!({"supported": versions(), "requested": short(requested)});
    Refusal(UNSUPPORTED_VERSION, "Unsupported protocol version".to_owned(), Some(data))
}

/// Whether a request declares all that it is about; an earlier one declares nothing.
fn era(message: &Value) -> Result<bool, Refusal> {
    let meta = &message["params"]["_meta"];
    match meta[VERSION].as_str() {
        Some(MODERN) if meta[CAPABILITIES].is_object() => Ok(true),
        Some(MODERN) => Err(Refusal(INVALID_PARAMS, format!("`_meta` must hold `{CAPABILITIES}`"), None)),
        Some(version) if LEGACY.contains(&version) => Ok(false),
        Some(other) => Err(unserved(other)),
        None if message["method"] == "server/discover" || !meta[VERSION].is_null() => {
            Err(Refusal(INVALID_PARAMS, format!("`_meta` must hold `{VERSION}`"), None))
        }
        None => Ok(false),
    }
}

fn error(id: &Value, Refusal(code, message, data): Refusal) -> Value {
    let mut error = json!({"code": code, "message": message});
    if let Some(data) = data {
        error["data"] = data;
    }
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

/// Who answers.
fn us() -> Value {
    json!({"name": "windowsill", "title": "windowsill", "version": env!("CARGO_PKG_VERSION")})
}

fn capabilities() -> Value {
    json!({"tools": {}, "resources": {}})
}

/// That nobody but its client may keep a result, and that it may be another at any time: the record grows.
fn cacheable(mut result: Value, modern: bool) -> Value {
    if modern {
        (result["ttlMs"], result["cacheScope"]) = (json!(0), json!("private"));
    }
    result
}

fn offered(tool: Tool) -> Value {
    let mut out = json!({"name": tool.name, "description": tool.description, "inputSchema": tool.schema,
        "annotations": {"readOnlyHint": tool.effect == Effect::Reads, "destructiveHint": tool.effect == Effect::Removes,
            "openWorldHint": false}});
    if let Some(answer) = tool.answer {
        out["outputSchema"] = answer;
    }
    out
}

fn templates() -> Value {
    json!([
        {"uriTemplate": format!("{RECORDS}{{id}}"), "name": "record", "mimeType": "text/plain",
            "description": "A text that left a prompt, as it came: the id stands in the marker that took its place (r3f9a0c12d4e5)"},
        {"uriTemplate": format!("{CONVERSATIONS}{{conversation}}/message/{{number}}"), "name": "message", "mimeType": "text/plain",
            "description": "A message of a conversation, by its number from 0"},
        {"uriTemplate": format!("{CONVERSATIONS}{{conversation}}"), "name": "conversation", "mimeType": "text/plain",
            "description": "All messages of a conversation"},
    ])
}

/// What a resource's address names, in the words of `recall`.
fn named(uri: &str) -> Option<String> {
    let is_name = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    if let Some(id) = uri.strip_prefix(RECORDS) {
        return (is_name(id) && id.starts_with('r')).then(|| id.to_owned());
    }
    match uri.strip_prefix(CONVERSATIONS)?.split('/').collect::<Vec<_>>()[..] {
        [id] if is_name(id) => Some(id.to_owned()),
        [id, "message", number] if is_name(id) => number.parse::<u32>().ok().map(|number| format!("{id}:{number}")),
        _ => None,
    }
}

/// The beginning of a client's words, for an answer.
fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_what_recall_reads() {
        for (uri, is) in [
            ("windowsill://record/r3f9a0c12d4e5", Some("r3f9a0c12d4e5")),
            ("windowsill://conversation/c1", Some("c1")),
            ("windowsill://conversation/c1/message/12", Some("c1:12")),
            ("windowsill://record/", None),
            ("windowsill://record/../c1", None),
            ("windowsill://record/c1", None),
            ("windowsill://conversation/c1/message/-1", None),
            ("windowsill://conversation/c1/message/1/2", None),
            ("windowsill://conversation/a b", None),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(named(uri).as_deref(), is, "{uri}");
        }
    }

    #[test]
    fn a_request_says_which_era_it_is_of() {
        let of =
            |params: Value| era(&json!({"method": "tools/list", "params": params})).map_err(|Refusal(code, ..)| code);
        let meta = |version: &str| json!({"_meta": {VERSION: version, CAPABILITIES: {}}});
        assert_eq!(of(meta(MODERN)), Ok(true));
        assert_eq!((of(json!({})), of(Value::Null), of(meta("2025-06-18"))), (Ok(false), Ok(false), Ok(false)));
        assert_eq!(of(meta("1900-01-01")), Err(UNSUPPORTED_VERSION));
        assert_eq!(of(json!({"_meta": {VERSION: MODERN}})), Err(INVALID_PARAMS));
        assert_eq!(of(json!({"_meta": {VERSION: 7}})), Err(INVALID_PARAMS));
    }
}
