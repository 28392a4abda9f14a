//! Pure: OpenAI's messages in Ollama's words. Content is one string there, images stand beside it, and the arguments
//! of a call are an object.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use bytes::Bytes;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::pieces::Pieces;
use super::{Fields, Refused, object, string, write, write_on};

/// A message of Ollama's.
#[derive(Debug, Default, Serialize)]
struct Message<'a> {
    #[serde(skip)]
    role: String,
    #[serde(skip)]
    content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Cow<'a, str>>,
    /// Base64 without a data URL around it: pictures, and sound as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_name: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<Cow<'a, str>>,
}

/// A content: the text, or how the client spelled it, where that is how it would be spelled here. Most of a history is such
/// text, and it is not copied.
#[derive(Debug)]
enum Content<'a> {
    Text(Cow<'a, str>),
    Spelled(&'a str),
}

impl Default for Content<'_> {
    fn default() -> Self {
        Content::Text("".into())
    }
}

impl Content<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Content::Text(text) => text.is_empty(),
            Content::Spelled(text) => *text == "\"\"",
        }
    }
}

impl Message<'_> {
    fn write(&self, request: &Bytes, out: &mut Pieces) -> Result<(), Refused> {
        out.written.extend_from_slice(b"{\"role\":");
        write(&mut out.written, &self.role)?;
        out.written.extend_from_slice(b",\"content\":");
        match &self.content {
            Content::Text(text) => write(&mut out.written, text)?,
            Content::Spelled(text) => out.add(request, text),
        }
        write_on(&mut out.written, self)
    }
}

#[derive(Debug, Serialize)]
struct Call<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Cow<'a, str>>,
    function: Function<'a>,
}

#[derive(Debug, Serialize)]
struct Function<'a> {
    index: usize,
    name: Cow<'a, str>,
    arguments: Box<RawValue>,
}

/// Text that borrows from the request where it holds no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Half a surrogate pair (`\ud83d` alone: text cut by a JavaScript client) is JSON, but no Unicode.
struct Lossy(String);

impl<'de> Deserialize<'de> for Lossy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lossy, D::Error> {
        struct AsBytes;
        impl Visitor<'_> for AsBytes {
            type Value = Lossy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Lossy, E> {
                Ok(Lossy(String::from_utf8_lossy(bytes).into_owned()))
            }
        }
        deserializer.deserialize_bytes(AsBytes)
    }
}

fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    let json = value.get();
    if !json.starts_with('"') {
        return None;
    }
    let exact = serde_json::from_str::<Text<'_>>(json).ok().map(|text| text.0);
    exact.or_else(|| serde_json::from_str::<Lossy>(json).ok().map(|text| text.0.into()))
}

/// Writes all messages as an array, one by one: all of them at once take as much as the request again. Each tool result gets
/// the name of the nearest call before it that has its id.
pub(super) fn translate<'a>(request: &Bytes, messages: Option<&'a RawValue>, out: &mut Pieces) -> Result<(), Refused> {
    let messages = messages.ok_or_else(|| Refused("the request has no messages".into()))?;
    let messages: Vec<&'a RawValue> =
        serde_json::from_str(messages.get()).map_err(|_| Refused("`messages` is not an array".into()))?;
    let mut called: HashMap<Cow<'a, str>, Cow<'a, str>> = HashMap::new();
    out.written.push(b'[');
    for (at, message) in messages.into_iter().enumerate() {
        let fields = object(message).ok_or_else(|| Refused(format!("message {at} is not an object")))?;
        let mut message = read(&fields, at)?;
        if message.role == "tool" && message.tool_name.is_none() {
            message.tool_name = message.tool_call_id.as_ref().and_then(|id| called.get(id).cloned());
        }
        if at > 0 {
            out.written.push(b',');
        }
        message.write(request, out)?;
        let named = |call: Call<'a>| Some((call.id?, call.function.name));
        called.extend(message.tool_calls.into_iter().filter_map(named));
    }
    out.written.push(b']');
    Ok(())
}

fn read<'a>(fields: &Fields<'a>, at: usize) -> Result<Message<'a>, Refused> {
    let get = |name: &str| fields.get(name).copied().filter(|value| value.get() != "null");
    let role = get("role").and_then(string).ok_or_else(|| Refused(format!("message {at} has no role")))?;
    // The legacy role of a tool result, and OpenAI's newer name of the system role, which Ollama's templates drop.
    let role = match role.to_lowercase().as_str() {
        "developer" => "system".to_owned(),
        "function" => "tool".to_owned(),
        other => other.to_owned(),
    };
    let is_tool = role == "tool";
    let mut message = Message { role, ..Message::default() };
    if let Some(content) = get("content") {
        read_content(content, &mut message, at)?;
    }
    if message.content.is_empty()
        && let Some(refusal) = get("refusal").and_then(text)
    {
        message.content = Content::Text(refusal);
    }
    message.thinking =
        ["thinking", "reasoning_content", "reasoning"].into_iter().find_map(|name| get(name).and_then(text));
    message.tool_calls = calls(&get, at)?;
    message.tool_call_id = get("tool_call_id").and_then(text);
    message.tool_name = get("tool_name").or_else(|| get("name").filter(|_| is_tool)).and_then(text);
    Ok(message)
}

/// A string, or parts: texts are joined by line ends, pictures and sounds go beside.
fn read_content<'a>(content: &'a RawValue, message: &mut Message<'a>, at: usize) -> Result<(), Refused> {
    if is_canonical(content.get()) {
        message.content = Content::Spelled(content.get());
        return Ok(());
    }
    if let Some(content) = text(content) {
        message.content = Content::Text(content);
        return Ok(());
    }
    let parts: Vec<&'a RawValue> = serde_json::from_str(content.get())
        .map_err(|_| Refused(format!("the content of message {at} is neither a string nor an array")))?;
    let mut texts: Vec<Cow<'a, str>> = Vec::new();
    for part in parts {
        if let Some(bare) = text(part) {
            texts.push(bare);
            continue;
        }
        let part = object(part).ok_or_else(|| Refused(format!("a part of message {at} is not an object")))?;
        let kind = part.get("type").copied().and_then(string).unwrap_or_else(|| "text".into());
        let inner = |name: &str| part.get(name).copied().filter(|value| value.get() != "null");
        match kind.as_str() {
            "text" | "input_text" | "output_text" => texts.extend(inner("text").and_then(text)),
            "refusal" => texts.extend(inner("refusal").and_then(text)),
            "image_url" | "input_image" => message.images.push(image(inner("image_url"), at)?),
            "input_audio" => {
                let data = inner("input_audio").and_then(object).and_then(|a| a.get("data").copied()).and_then(text);
                let data = data.ok_or_else(|| Refused(format!("the input_audio of message {at} has no data")))?;
                message.images.push(base64_of(data).unwrap_or_else(|data| data));
            }
            other => {
                return Err(Refused(format!("message {at} has a part of type `{other}`, which Ollama cannot take")));
            }
        }
    }
    message.content = Content::Text(match texts.len() {
        1 => texts.remove(0),
        _ => texts.join("\n").into(),
    });
    Ok(())
}

/// Whether a value is a string without escapes that may be spelled in several ways.
fn is_canonical(json: &str) -> bool {
    let is_usual =
        |at: usize| matches!(json.as_bytes().get(at + 1), Some(b'n' | b'"' | b'\\' | b't' | b'r' | b'b' | b'f'));
    let mut from = 1;
    while let Some(at) = json.as_bytes().get(from..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        if !is_usual(from + at) {
            return false;
        }
        from += at + 2;
    }
    json.starts_with('"')
}

/// `{"url": …}` or the URL alone; it must hold the picture itself.
fn image<'a>(image_url: Option<&'a RawValue>, at: usize) -> Result<Cow<'a, str>, Refused> {
    let image_url = image_url.ok_or_else(|| Refused(format!("an image of message {at} has no image_url")))?;
    let url = text(image_url).or_else(|| object(image_url)?.get("url").copied().and_then(text));
    let url = url.ok_or_else(|| Refused(format!("an image of message {at} has no url")))?;
    base64_of(url).map_err(|_| {
        Refused(format!(
            "the image of message {at} is not base64 data: Ollama fetches no images. Send it as data:image/png;base64,…"
        ))
    })
}

/// What follows `;base64,` in a data URL; else the text as it was.
fn base64_of(url: Cow<'_, str>) -> Result<Cow<'_, str>, Cow<'_, str>> {
    if !url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
        return Err(url);
    }
    // The head of a data URL is short; the rest may be megabytes.
    let Some(comma) = url.bytes().take(256).position(|byte| byte == b',') else { return Err(url) };
    if !url[..comma].ends_with(";base64") {
        return Err(url);
    }
    Ok(match url {
        Cow::Borrowed(url) => Cow::Borrowed(&url[comma + 1..]),
        Cow::Owned(mut url) => {
            url.drain(..=comma);
            Cow::Owned(url)
        }
    })
}

/// `tool_calls`, or the one legacy `function_call`.
fn calls<'a>(get: &impl Fn(&str) -> Option<&'a RawValue>, at: usize) -> Result<Vec<Call<'a>>, Refused> {
    let bad = || Refused(format!("a tool call of message {at} has no name"));
    if let Some(calls) = get("tool_calls") {
        let calls: Vec<&'a RawValue> = serde_json::from_str(calls.get())
            .map_err(|_| Refused(format!("the tool_calls of message {at} are not an array")))?;
        let read = |(index, call): (usize, &'a RawValue)| {
            let call = object(call)?;
            let function = function(call.get("function").copied().and_then(object)?, index)?;
            Some(Call { id: call.get("id").copied().and_then(text), function })
        };
        return calls.into_iter().enumerate().map(|call| read(call).ok_or_else(bad)).collect();
    }
    let Some(legacy) = get("function_call").and_then(object) else { return Ok(Vec::new()) };
    Ok(vec![Call { id: None, function: function(legacy, 0).ok_or_else(bad)? }])
}

fn function<'a>(fields: Fields<'a>, index: usize) -> Option<Function<'a>> {
    let name = fields.get("name").copied().and_then(text)?;
    let arguments = fields.get("arguments").copied().map_or_else(empty_object, arguments);
    Some(Function { index, name, arguments })
}

/// The JSON object that the string holds, order and spelling kept. Models do write calls that are no such thing, and
/// clients send them back: what does not parse is wrapped, since Ollama would refuse the whole conversation.
fn arguments(value: &RawValue) -> Box<RawValue> {
    let Some(text) = text(value) else {
        // Already an object, as Ollama's own clients write it.
        return if value.get().starts_with('{') { value.to_owned() } else { wrapped(value.get()) };
    };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return empty_object();
    }
    match RawValue::from_string(trimmed.to_owned()) {
        Ok(object) if trimmed.starts_with('{') => object,
        _ => wrapped(trimmed),
    }
}

fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".into()).expect("it is JSON")
}

fn wrapped(text: &str) -> Box<RawValue> {
    to_raw_value(&serde_json::json!({ "_unparsed": text })).expect("a string in an object can be written")
}
