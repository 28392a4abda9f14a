//! OpenAI chat completions: a request body ⇄ a conversation.
//!
//! The body is kept as it came; a message is a slice of it. Only messages and fields that a plan changed are written
//! anew.

use std::borrow::Cow;
use std::cell::LazyCell;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::json::{self, Fields};
use super::{WireError, legacy, parts};
use crate::conversation::{Conversation, Digest, Media, MediaKind, Message, Role, Tokens, ToolCall, chain};
use crate::settings::Settings;

/// A chat completion request: the conversation, and what else of the request matters here.
#[derive(Debug, Clone)]
pub struct Request {
    /// The whole body as it came.
    pub body: Bytes,
    /// The messages, the tools.
    pub conversation: Conversation,
    /// `model`, empty when absent.
    pub model: String,
    /// `max_completion_tokens`, else `max_tokens`, else `n_predict`; negative and zero count as absent.
    pub max_tokens: Option<Tokens>,
    /// `n`, at least 1.
    pub choices: u32,
    /// `stream`: the reply is to come in pieces.
    pub stream: bool,
    /// `options.num_ctx`: the window that clients of Ollama's ask it to load the model with.
    pub num_ctx: Option<Tokens>,
    /// What the client calls its session, if it does; see [`super::session`].
    pub session: Option<String>,
    /// The client's own `tools`, where [`Conversation::tools`] holds others.
    pub client_tools: Option<Bytes>,
    /// What the conversation is for, where somebody said so; never in the body.
    pub task: Option<String>,
    /// `keep_alive` as it is spelled: how long an Ollama is to hold the model after the reply.
    pub keep_alive: Option<String>,
    /// The list that stands for the client's tools, where they are named by index.
    pub listed_tools: Option<Bytes>,
    /// What makes the chain of its history, once that is known: a second try of the same request has the same one. Never in the
    /// body.
    pub seed: Option<Arc<str>>,
}

impl Request {
    /// Has a list stand for the client's tools.
    pub fn list(&mut self, tools: Bytes) {
        self.withdraw_all();
        self.client_tools = self.conversation.tools.replace(tools.clone());
        self.listed_tools = Some(tools);
    }

    /// Has these tools, which are more by one of ours, stand for those that it has without [`Request::offer`].
    pub fn list_more(&mut self, tools: Bytes) {
        let before = self.conversation.tools.replace(tools.clone());
        self.client_tools = self.client_tools.take().or(before);
        self.listed_tools = Some(tools);
    }

    /// Has its `functions` be its tools, for a server that is told them so. They stand in the body as they came.
    pub fn takes_functions_for_tools(&mut self) {
        if self.conversation.tools.is_none() && self.client_tools.is_none() {
            self.conversation.tools = legacy::tools(&self.body).map(Bytes::from);
        }
    }

    /// Has the request offer other tools than before: these and one more.
    pub fn offer(&mut self, tools: Bytes) {
        if !self.offers() {
            let before = self.conversation.tools.replace(tools);
            self.client_tools = self.client_tools.take().or(before);
        }
    }

    /// Takes [`Request::offer`] back.
    pub fn withdraw(&mut self) {
        match &self.listed_tools {
            Some(listed) => self.conversation.tools = Some(listed.clone()),
            None => self.withdraw_all(),
        }
    }

    /// Takes [`Request::offer`] and [`Request::list`] back.
    pub fn withdraw_all(&mut self) {
        self.listed_tools = None;
        self.conversation.hidden = Arc::default();
        if let Some(own) = self.client_tools.take() {
            self.conversation.tools = Some(own);
        }
    }

    /// The same request as far as its other fields go: [`write()`] takes messages from elsewhere.
    pub fn without_messages(&self) -> Request {
        let tools = self.conversation.tools.clone();
        Request {
            body: self.body.clone(),
            conversation: Conversation { tools, ..Conversation::default() },
            model: self.model.clone(),
            client_tools: self.client_tools.clone(),
            session: self.session.clone(),
            task: self.task.clone(),
            listed_tools: self.listed_tools.clone(),
            seed: self.seed.clone(),
            keep_alive: self.keep_alive.clone(),
            ..*self
        }
    }

    /// Whether it offers one tool more than it came with, or than the list has.
    pub fn offers(&self) -> bool {
        self.client_tools.is_some() && self.conversation.tools != self.listed_tools
    }

    /// Whether the model is to leave the memory with the reply: `keep_alive` 0, as a number of seconds or as a duration of
    /// Go's such as `"0s"` (Ollama, `api/types.go`).
    pub fn unloads(&self) -> bool {
        let Some(written) = &self.keep_alive else { return false };
        match json::string(written) {
            Some(text) => text.contains('0') && !text.contains(|c: char| matches!(c, '1'..='9')),
            None => written.parse::<f64>().is_ok_and(|seconds| seconds == 0.0),
        }
    }

    /// Has these settings, whatever the client said of them.
    pub fn settle(&mut self, settings: &Settings) {
        let Some(body) = std::str::from_utf8(&self.body).ok().and_then(|body| settings.applied(body)) else { return };
        let text = String::from_utf8_lossy(&body).into_owned();
        if let Ok(fields) = Fields::read(&text) {
            let field = |key: &str| fields.get(key);
            self.max_tokens = max_tokens(field);
            self.num_ctx = num_ctx(field);
            self.keep_alive = keep_alive(field);
        }
        self.body = body;
    }

    /// Whether its tools are other than those the client sent.
    pub fn changes_tools(&self) -> bool {
        self.client_tools.is_some()
    }

    /// The tools that it has without [`Request::offer`]: the client's own, or the list that stands for them.
    pub fn own_tools(&self) -> Option<&Bytes> {
        self.listed_tools.as_ref().or(self.client_tools.as_ref()).or(self.conversation.tools.as_ref())
    }
}

/// Reads a request body. What is no Unicode in it becomes U+FFFD, see [`json::mended`]; a message of the history that cannot be
/// read is said in a line, see `said`.
pub fn parse(body: &Bytes) -> Result<Request, WireError> {
    let body = &match json::mended(body) {
        Cow::Borrowed(text) => body.slice_ref(text.as_bytes()),
        Cow::Owned(text) => Bytes::from(text),
    };
    let text = std::str::from_utf8(body).map_err(|e| WireError::NotJson(e.to_string()))?;
    let top: Top<'_> = serde_json::from_str(text).map_err(|e| WireError::NotJson(e.to_string()))?;
    let field = |key: &str| top.fields.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.get());
    let raws = match &top.messages {
        Messages::Array(raws) => raws,
        Messages::Missing => return Err(wrong("messages", "`messages` is missing; it must be an array of messages")),
        Messages::NotArray => return Err(wrong("messages", "`messages` must be an array of message objects")),
    };
    let mut conversation = Conversation {
        body: Vec::with_capacity(raws.len()),
        tools: field("tools").map(|t| body.slice_ref(t.as_bytes())),
        ..Default::default()
    };
    // What the client asks now may be refused, and never what stands in its history.
    let is_users = |raw: &&RawValue| Fields::read(raw.get()).is_ok_and(|f| f.get("role") == Some("\"user\""));
    let asked = LazyCell::new(|| raws.iter().rposition(is_users));
    for (i, raw) in raws.iter().enumerate() {
        let bytes = body.slice_ref(raw.get().as_bytes());
        let message = match message(bytes.clone()) {
            Err(_) if i + 1 < raws.len() && *asked != Some(i) => said(bytes),
            Err(what) => {
                let param = format!("messages[{i}]{}", what.0);
                return Err(WireError::Field { message: format!("`{param}` {}", what.1), param });
            }
            Ok(message) => message,
        };
        if message.role == Role::System && conversation.body.is_empty() {
            conversation.system.push(message);
        } else {
            conversation.body.push(message);
        }
    }
    Ok(request(body.clone(), conversation, &field))
}

/// A request of these messages and fields.
pub(super) fn request<'a>(body: Bytes, conversation: Conversation, field: &dyn Fn(&str) -> Option<&'a str>) -> Request {
    Request {
        model: field("model").and_then(json::string).unwrap_or_default(),
        max_tokens: max_tokens(field),
        choices: number(field("n")).map_or(1, |n| n.min(128)),
        stream: field("stream") == Some("true"),
        num_ctx: num_ctx(field),
        session: session(field),
        client_tools: None,
        task: None,
        keep_alive: keep_alive(field),
        listed_tools: None,
        seed: None,
        conversation,
        body,
    }
}

/// A number of tokens or the like, at least 1.
fn number(value: Option<&str>) -> Option<u32> {
    let number = value?.parse::<f64>().ok().filter(|n| *n >= 1.0)?;
    Some(number.min(f64::from(u32::MAX)) as u32)
}

fn max_tokens<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<Tokens> {
    ["n_predict", "max_completion_tokens", "max_tokens"].iter().find_map(|key| number(field(key)))
}

fn num_ctx<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<Tokens> {
    number(Fields::read(field("options")?).ok()?.get("num_ctx"))
}

fn keep_alive<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    field("keep_alive").filter(|value| *value != "null").map(str::to_owned)
}

fn session<'a>(field: &dyn Fn(&str) -> Option<&'a str>) -> Option<String> {
    let read = |key: &str| Some((key.to_owned(), serde_json::from_str(field(key)?).ok()?));
    super::session::session(&["prompt_cache_key", "metadata"].into_iter().filter_map(read).collect())
}

/// Writes a request with other messages (each the bytes of one message object), the tools it offers and, where given, other
/// fields.
pub fn write(request: &Request, messages: &[Bytes], changes: &[(&str, Option<&str>)]) -> Bytes {
    let messages: Vec<Cow<'_, str>> = messages.iter().map(|m| String::from_utf8_lossy(m)).collect();
    let mut array: Vec<&str> = Vec::with_capacity(2 * messages.len() + 2);
    for message in &messages {
        array.extend([if array.is_empty() { "[" } else { "," }, message]);
    }
    if array.is_empty() {
        array.push("[");
    }
    array.push("]");
    let tools = request.conversation.tools.as_deref().filter(|_| request.changes_tools()).map(String::from_utf8_lossy);
    let tools = tools.as_deref().filter(|_| changes.iter().all(|(key, _)| *key != "tools"));
    let tools = tools.as_ref().map(|tools| ("tools", Some(std::slice::from_ref(tools))));
    let changes = changes.iter().map(|(key, value)| (*key, value.as_ref().map(std::slice::from_ref)));
    let all: Vec<(&str, Option<&[&str]>)> =
        std::iter::once(("messages", Some(array.as_slice()))).chain(tools).chain(changes).collect();
    let text = String::from_utf8_lossy(&request.body);
    json::with_pieces(&text, &all).expect("the body was read as an object before")
}

/// The same body with other messages (each the bytes of one message object).
pub fn with_messages(body: &Bytes, messages: &[Bytes]) -> Bytes {
    let all: Vec<Cow<'_, str>> = messages.iter().map(|m| String::from_utf8_lossy(m)).collect();
    let array = format!("[{}]", all.join(","));
    patch(body, "messages", &array)
}

/// Where servers and clients put what a model thought.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// The message without what the model thought.
pub fn without_reasoning(message: &Bytes) -> Bytes {
    let changes: Vec<(&str, Option<&str>)> = REASONING.iter().map(|k| (*k, None)).collect();
    json::with_fields(&String::from_utf8_lossy(message), &changes).unwrap_or_else(|_| message.clone())
}

/// Reads one message object. The error is the path below the message, and what is wrong there.
pub fn message(raw: Bytes) -> Result<Message, (String, &'static str)> {
    let text = std::str::from_utf8(&raw).map_err(|_| (String::new(), "is not UTF-8"))?;
    let fields = Fields::read(text).map_err(|_| (String::new(), "must be an object with `role` and `content`"))?;
    let role = match fields.string("role").as_deref() {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool" | "function") => Role::Tool,
        Some(_) => Role::Other,
        None => return Err((".role".into(), "is missing; it must be a string such as \"user\"")),
    };
    let mut content = content(fields.get("content"))?;
    if let (true, Some(refusal)) = (content.text.is_empty(), fields.string("refusal")) {
        content.text = refusal;
    }
    let mut out = Message {
        role,
        text: content.text.into(),
        reasoning: REASONING.iter().find_map(|k| fields.string(k)).unwrap_or_default(),
        calls: calls(&fields)?,
        call_id: fields.string("tool_call_id"),
        name: fields.string("name"),
        media: content.media,
        digest: Digest::default(),
        raw: raw.clone(),
        repaired: None,
        mixed: content.mixed,
        failed: role == Role::Tool && ["is_error", "isError"].iter().any(|key| fields.get(key) == Some("true")),
        lines: Vec::new(),
    };
    out.digest = chain::digest(&out, &content.payloads);
    if content.carried {
        parts::tell(&mut out, &parts::Takes::default());
    }
    Ok(out)
}

/// A message of the record, or of a history, whatever it is.
pub fn recorded(raw: Bytes) -> Message {
    message(raw.clone()).unwrap_or_else(|_| said(raw))
}

/// What stands in the place of a message of the history that no server can read: one of the same speaker that says in words
/// what stood there, and makes no calls.
fn said(raw: Bytes) -> Message {
    let text = String::from_utf8_lossy(&raw);
    let fields = Fields::read(&text).unwrap_or(Fields(Vec::new()));
    let spoken = |key: &str| fields.get(key).filter(|v| *v != "null").map(|v| json::string(v).unwrap_or(v.to_owned()));
    let words: Vec<String> = ["content", "tool_calls"].into_iter().filter_map(spoken).collect();
    let words = if words.is_empty() { text.clone().into_owned() } else { words.join("\n") };
    let role = fields.string("role").filter(|r| matches!(r.as_str(), "system" | "developer" | "assistant" | "tool"));
    let mended = match (role.as_deref().unwrap_or("user"), fields.string("tool_call_id")) {
        ("tool", Some(id)) => new_result(&id, &words),
        (role, _) => new_message(role, &words),
    };
    let message = message(mended.clone()).expect("a message of a role and a text can be read");
    Message { raw, repaired: Some(mended), ..message }
}

#[derive(Default)]
struct Content {
    text: String,
    media: Vec<Media>,
    /// Digests of the media payloads, since those are what the message says too.
    payloads: Vec<Digest>,
    /// Whether some of it is no plain text.
    mixed: bool,
    /// Whether some of it is said as text on every server.
    carried: bool,
}

fn content(raw: Option<&str>) -> Result<Content, (String, &'static str)> {
    let mut out = Content::default();
    let Some(raw) = raw.filter(|r| *r != "null") else { return Ok(out) };
    if let Some(text) = json::string(raw) {
        out.text = text;
        return Ok(out);
    }
    let bad = || (".content".to_string(), "must be a string, null or an array of content parts");
    let parts: Vec<&RawValue> = serde_json::from_str(raw).map_err(|_| bad())?;
    let mut texts = Vec::new();
    for part in parts {
        // Some clients send bare strings inside the array.
        if let Some(text) = json::string(part.get()) {
            out.mixed = true;
            texts.push(text);
            continue;
        }
        let fields = Fields::read(part.get()).map_err(|_| bad())?;
        let kind = fields.string("type").unwrap_or_default();
        out.mixed |= kind != "text";
        match kind.as_str() {
            "text" | "input_text" | "output_text" => texts.push(fields.string("text").unwrap_or_default()),
            "refusal" => texts.push(fields.string("refusal").unwrap_or_default()),
            _ => {
                out.payloads.push(Digest::of(part.get().as_bytes()));
                if let Some(text) = parts::of_carried(&kind, &fields) {
                    out.carried = true;
                    texts.extend(Some(text).filter(|text| !text.is_empty()));
                } else {
                    out.media.push(media(&kind, &fields, part.get().len()));
                }
            }
        }
    }
    out.text = texts.join("\n");
    Ok(out)
}

fn media(kind: &str, fields: &Fields<'_>, encoded_bytes: usize) -> Media {
    let kind = match kind {
        "image_url" | "input_image" | "image" => MediaKind::Image,
        "input_audio" => MediaKind::Audio,
        _ => MediaKind::Other,
    };
    let url = fields.get("image_url").filter(|_| kind == MediaKind::Image);
    let pixels = url.and_then(|v| match Fields::read(v) {
        Ok(inner) => inner.get("url").and_then(pixels_of_data_url),
        Err(_) => pixels_of_data_url(v),
    });
    Media { kind, encoded_bytes, pixels }
}

/// Width and height out of the head of a base64 data URL (spelled as JSON). 64 KiB hold every format's header.
fn pixels_of_data_url(spelled: &str) -> Option<(u32, u32)> {
    use base64::Engine as _;
    let spelled = spelled.strip_prefix('"')?;
    let head = spelled.get(..spelled.len().min(256)).unwrap_or("");
    let start = head.find(";base64,")? + ";base64,".len();
    let payload = &spelled.as_bytes()[start..];
    let mut head: Vec<u8> = payload.iter().copied().take(96 * 1024).filter(|b| !matches!(b, b'\\' | b'"')).collect();
    head.truncate(head.len() / 4 * 4);
    let bytes = base64::engine::general_purpose::STANDARD.decode(&head).ok()?;
    let size = imagesize::blob_size(&bytes).ok()?;
    Some((u32::try_from(size.width).ok()?, u32::try_from(size.height).ok()?))
}

fn calls(fields: &Fields<'_>) -> Result<Vec<ToolCall>, (String, &'static str)> {
    let call = |id: String, function: &Fields<'_>| ToolCall {
        id,
        name: function.string("name").unwrap_or_default(),
        // A few clients send the object itself instead of a string that holds it.
        arguments: function
            .get("arguments")
            .map_or_else(String::new, |a| json::string(a).unwrap_or_else(|| a.to_owned())),
    };
    let mut out = Vec::new();
    if let Some(raw) = fields.get("tool_calls").filter(|r| *r != "null") {
        let bad = || (".tool_calls".to_string(), "must be an array of tool calls");
        let list: Vec<Fields<'_>> = serde_json::from_str(raw).map_err(|_| bad())?;
        // A long history has very many calls, one a message as a rule.
        out.reserve_exact(list.len());
        for one in &list {
            let id = one.string("id").unwrap_or_default();
            // `custom` tools carry `custom: {name, input}` in place of `function`.
            let function = one.get("function").or(one.get("custom")).and_then(|f| Fields::read(f).ok());
            out.push(match function {
                Some(f) => call(id, &f),
                None => ToolCall { id, name: String::new(), arguments: "{}".into() },
            });
        }
    } else if let Some(function) = fields.get("function_call").and_then(|f| Fields::read(f).ok()) {
        out.push(call(String::new(), &function));
    }
    Ok(out)
}

fn wrong(param: &str, message: &str) -> WireError {
    WireError::Field { param: param.into(), message: message.into() }
}

/// Top-level fields; the messages are split on the way, so that a body of megabytes is scanned once.
pub(super) struct Top<'a> {
    pub(super) fields: Vec<(String, &'a RawValue)>,
    pub(super) messages: Messages<'a>,
    /// How often there are messages; the last ones count.
    pub(super) times: usize,
}

pub(super) enum Messages<'a> {
    Missing,
    NotArray,
    Array(Vec<&'a RawValue>),
}

impl<'de> Deserialize<'de> for Top<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Top<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut top = Top { fields: Vec::with_capacity(16), messages: Messages::Missing, times: 0 };
                while let Some(key) = map.next_key::<String>()? {
                    if key == "messages" {
                        top.messages = map.next_value_seed(MessagesSeed)?;
                        top.times += 1;
                    } else {
                        top.fields.push((key, map.next_value::<&'de RawValue>()?));
                    }
                }
                Ok(top)
            }
        }
        d.deserialize_map(V)
    }
}

struct MessagesSeed;

impl<'de> DeserializeSeed<'de> for MessagesSeed {
    type Value = Messages<'de>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Messages<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of messages")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut out = Vec::with_capacity(64);
                while let Some(raw) = seq.next_element::<&'de RawValue>()? {
                    out.push(raw);
                }
                Ok(Messages::Array(out))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Messages::NotArray)
            }
            fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
                Ok(Messages::NotArray)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(Messages::NotArray)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(Messages::NotArray)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
                Ok(Messages::NotArray)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
                Ok(Messages::NotArray)
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Messages::NotArray)
            }
        }
        d.deserialize_any(V)
    }
}

/// The bytes of a message with its content replaced by a plain text; every other field keeps its bytes.
pub fn with_text(message: &Bytes, text: &str) -> Bytes {
    patch(message, "content", &json::quote(text))
}

/// The bytes of a message with text added behind its content, which keeps its own spelling as a prefix.
pub fn with_text_appended(message: &Bytes, addition: &str) -> Bytes {
    let source = String::from_utf8_lossy(message);
    let content = Fields::read(&source).ok().and_then(|f| f.get("content").map(str::to_owned));
    let spelled = match content.as_deref() {
        Some(string) if string.starts_with('"') => {
            format!("{}{}", &string[..string.len() - 1], &json::quote(addition)[1..])
        }
        Some(array) if array.starts_with('[') => {
            let inner = array[1..array.len() - 1].trim_end();
            let comma = if inner.trim().is_empty() { "" } else { "," };
            format!("[{inner}{comma}{{\"type\":\"text\",\"text\":{}}}]", json::quote(addition.trim_start()))
        }
        _ => json::quote(addition.trim_start()),
    };
    patch(message, "content", &spelled)
}

/// The bytes of a message with other arguments in some of its calls: `(call, arguments as text of a JSON object)`.
pub fn with_arguments(message: &Bytes, new: &[(usize, &str)]) -> Bytes {
    let source = String::from_utf8_lossy(message);
    let Ok(fields) = Fields::read(&source) else { return message.clone() };
    let replace = |function: &str, arguments: &str| {
        json::with_fields(function, &[("arguments", Some(&json::quote(arguments)))])
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_else(|_| function.to_owned())
    };
    if let (Some(legacy), Some((_, arguments))) = (fields.get("function_call"), new.first()) {
        return patch(message, "function_call", &replace(legacy, arguments));
    }
    let Some(list) = fields.get("tool_calls").and_then(|l| serde_json::from_str::<Vec<&RawValue>>(l).ok()) else {
        return message.clone();
    };
    let mut out = String::from("[");
    for (i, call) in list.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        let change = new.iter().find(|(at, _)| *at == i).map(|(_, a)| *a);
        let function = Fields::read(call.get()).ok().and_then(|f| f.get("function").map(str::to_owned));
        match (change, function) {
            (Some(arguments), Some(function)) => {
                let function = replace(&function, arguments);
                match json::with_fields(call.get(), &[("function", Some(&function))]) {
                    Ok(b) => out.push_str(&String::from_utf8_lossy(&b)),
                    Err(_) => out.push_str(call.get()),
                }
            }
            _ => out.push_str(call.get()),
        }
    }
    out.push(']');
    patch(message, "tool_calls", &out)
}

/// The bytes of a message with one field set to a spelled value.
pub fn patch(message: &Bytes, key: &str, spelled: &str) -> Bytes {
    json::with_fields(&String::from_utf8_lossy(message), &[(key, Some(spelled))]).unwrap_or_else(|_| message.clone())
}

/// A new message of a role with a plain text.
pub fn new_message(role: &str, text: &str) -> Bytes {
    Bytes::from(format!("{{\"role\":{},\"content\":{}}}", json::quote(role), json::quote(text)))
}

/// A new tool result.
pub fn new_result(call_id: &str, text: &str) -> Bytes {
    let (id, text) = (json::quote(call_id), json::quote(text));
    Bytes::from(format!("{{\"role\":\"tool\",\"tool_call_id\":{id},\"content\":{text}}}"))
}

/// A new result for a call that has no id, in the shape of its caller: legacy `function_call` wants a `function` message.
pub fn new_result_without_id(caller: &Message, text: &str) -> Bytes {
    let legacy = Fields::read(&String::from_utf8_lossy(caller.bytes())).is_ok_and(|f| f.get("function_call").is_some());
    let name = caller.calls.first().map(|c| json::quote(&c.name)).filter(|_| legacy);
    Bytes::from(match name {
        Some(name) => format!("{{\"role\":\"function\",\"name\":{name},\"content\":{}}}", json::quote(text)),
        None => format!("{{\"role\":\"tool\",\"content\":{}}}", json::quote(text)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Request, WireError> {
        parse(&Bytes::from(body.to_owned()))
    }

    #[test]
    fn a_result_is_known_to_have_failed_where_its_client_says_so() {
        let failed = |fields: &str| {
            let raw = format!(r#"{{"role":"tool","tool_call_id":"a","content":"b"{fields}}}"#);
            message(Bytes::from(raw)).unwrap().failed
        };
        assert!(failed(r#","is_error":true"#) && failed(r#","isError": true"#));
        assert!(!failed("") && !failed(r#","is_error":false"#) && !failed(r#","is_error":"true""#));
        let user = Bytes::from_static(br#"{"role":"user","content":"b","is_error":true}"#);
        assert!(!message(user).unwrap().failed, "only a result can fail");
    }

    #[test]
    fn reads_what_matters_and_keeps_bytes() {
        let body = r#"{"model":"m","messages":[{"role":"developer","content":"s"}, {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]},{"role":"tool","tool_call_id":"c1","content":"r"}],"tools":[ {} ],"stream":true,"max_tokens":12.0,"stream_options":{"include_usage":true}}"#;
        let request = read(body).unwrap();
        let c = &request.conversation;
        assert_eq!((c.system.len(), c.body.len()), (1, 3));
        assert_eq!(c.body[0].text, "a\nb");
        assert_eq!(c.body[1].calls[0].arguments, "{\"x\": 1}");
        assert_eq!(c.body[2].call_id.as_deref(), Some("c1"));
        assert_eq!(c.tools.as_deref(), Some(&b"[ {} ]"[..]));
        assert_eq!(request.max_tokens, Some(12));
        let messages: Vec<Bytes> = c.system.iter().chain(&c.body).map(|m| m.raw.clone()).collect();
        let expect = body.replace("\"s\"}, {", "\"s\"},{");
        assert_eq!(write(&request, &messages, &[]), expect);
    }

    #[test]
    fn errors_name_the_place() {
        for (body, expect) in [
            ("", "the request body is not valid JSON: EOF while parsing a value at line 1 column 0"),
            (
                "[1]",
                "the request body is not valid JSON: invalid type: sequence, expected a JSON object at line 1 column 0",
            ),
            ("{}", "`messages` is missing; it must be an array of messages"),
            (r#"{"messages":{"a":[1,2]}}"#, "`messages` must be an array of message objects"),
            (r#"{"messages":"x"}"#, "`messages` must be an array of message objects"),
            (r#"{"messages":[1]}"#, "`messages[0]` must be an object with `role` and `content`"),
            (r#"{"messages":[{}]}"#, "`messages[0].role` is missing; it must be a string such as \"user\""),
            (
                r#"{"messages":[{"role":"user","content":7}]}"#,
                "`messages[0].content` must be a string, null or an array of content parts",
            ),
        ] {
            assert_eq!(read(body).unwrap_err().to_string(), expect, "{body}");
        }
    }

    /// Only what is asked now may be refused.
    #[test]
    fn a_history_that_cannot_be_read_is_said_in_words() {
        for (raw, role, words) in [
            ("7", "user", "7"),
            ("null", "user", "null"),
            (r#"["a"]"#, "user", r#"["a"]"#),
            ("{}", "user", "{}"),
            (r#"{"content":"a"}"#, "user", "a"),
            (r#"{"role":7,"content":"a"}"#, "user", "a"),
            (r#"{"role":"assistant","content":7}"#, "assistant", "7"),
            (r#"{"role":"user","content":{"text":"a"}}"#, "user", r#"{"text":"a"}"#),
            (r#"{"role":"user","content":[7]}"#, "user", "[7]"),
            (r#"{"role":"assistant","content":"a","tool_calls":"f()"}"#, "assistant", "a\nf()"),
            (r#"{"role":"assistant","content":null,"tool_calls":["f"]}"#, "assistant", r#"["f"]"#),
            (r#"{"role":"tool","tool_call_id":"c","content":true}"#, "tool", "true"),
        ] {
            let request = read(&format!(r#"{{"messages":[{raw},{{"role":"user","content":"b"}}]}}"#)).unwrap();
            let message = &request.conversation.body[0];
            let forwarded: serde_json::Value = serde_json::from_slice(message.bytes()).unwrap();
            assert_eq!((forwarded["role"].as_str(), forwarded["content"].as_str()), (Some(role), Some(words)), "{raw}");
            assert_eq!((&message.raw[..], message.text.as_str()), (raw.as_bytes(), words));
            assert_eq!(recorded(message.raw.clone()).digest, message.digest);
            let asked = read(&format!(r#"{{"messages":[{{"role":"user","content":"b"}},{raw}]}}"#)).unwrap_err();
            assert!(asked.param().is_some_and(|param| param.starts_with("messages[1]")), "{asked}");
        }
    }

    #[test]
    fn what_is_no_unicode_becomes_a_replacement_character() {
        let body = r#"{"model":"m\ud83d","messages":[{"role":"user","content":"a\udc00"}],"tools":[{"x\ud800":1}]}"#;
        let request = read(body).unwrap();
        assert_eq!(
            request.body,
            body.replace("\\ud83d", "\\ufffd").replace("\\udc00", "\\ufffd").replace("\\ud800", "\\ufffd")
        );
        assert_eq!(request.conversation.body[0].text, "a\u{fffd}");
        assert_eq!(
            parse(&Bytes::from_static(b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}"))
                .unwrap()
                .conversation
                .body[0]
                .text,
            "\u{fffd}"
        );
    }

    #[test]
    fn changes_touch_only_their_field() {
        let user = Bytes::from_static(br#"{"role":"user", "x":1.50,"content":"caf\u00e9"}"#);
        assert_eq!(with_text_appended(&user, "\n\nnew"), r#"{"role":"user","x":1.50,"content":"caf\u00e9\n\nnew"}"#);
        let parts = Bytes::from_static(br#"{"role":"user","content":[{"type":"text","text":"a"} ]}"#);
        assert_eq!(
            with_text_appended(&parts, "\n\nnew"),
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"new"}]}"#
        );
        let call = Bytes::from_static(br#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"x"}},{"id":"b","function":{"arguments":"{}"}}]}"#);
        assert_eq!(
            with_arguments(&call, &[(0, "{\"y\":1}")]),
            r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"y\":1}"}},{"id":"b","function":{"arguments":"{}"}}]}"#
        );
    }

    #[test]
    fn reads_pixels_from_a_data_url() {
        // A 1x1 GIF.
        let url = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#
        );
        let media = &read(&body).unwrap().conversation.body[0].media[0];
        assert_eq!((media.kind, media.pixels), (MediaKind::Image, Some((1, 1))));
    }
}
