//! Requests and messages, read without trees of them: a history can be megabytes, and a tree of it takes many times that. What
//! was said is read one by one where it stands, and written behind each other.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::super::WireError;
use super::super::extra;
use super::super::json::{self, Fields};

/// A request: its fields, some of them as they are spelled.
pub(super) struct Asked<'a> {
    spelled: Vec<(&'static str, &'a str)>,
    /// All the others.
    pub(super) fields: Map<String, Value>,
}

impl<'a> Asked<'a> {
    /// A field that was kept as it is spelled.
    pub(super) fn spelled(&self, key: &str) -> Option<&'a str> {
        self.spelled.iter().rev().find(|(k, _)| *k == key).map(|(_, value)| *value)
    }
}

/// Reads a request body, the fields named in `spelled` as they are spelled. What is no Unicode becomes U+FFFD, see
/// [`json::mended`].
pub(super) fn reading<T>(
    body: &[u8],
    spelled: &'static [&'static str],
    read: impl FnOnce(Asked<'_>) -> Result<T, WireError>,
) -> Result<T, WireError> {
    asked(&json::mended(body), spelled).and_then(read)
}

fn asked<'a>(text: &'a str, spelled: &'static [&'static str]) -> Result<Asked<'a>, WireError> {
    let mut from = serde_json::Deserializer::from_str(text);
    let read = Body(spelled).deserialize(&mut from).and_then(|asked| from.end().map(|()| asked));
    read.map_err(|e| match serde_json::from_str::<IgnoredAny>(text) {
        Err(e) => not_json(&e),
        Ok(_) if text.trim_start().starts_with('{') => not_json(&e),
        Ok(_) => WireError::NotJson("it must be an object".into()),
    })
}

fn not_json(e: &serde_json::Error) -> WireError {
    WireError::NotJson(e.to_string())
}

struct Body(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Body {
    type Value = Asked<'de>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Body {
    type Value = Asked<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut asked = Asked { spelled: Vec::new(), fields: Map::new() };
        while let Some(key) = map.next_key::<String>()? {
            if let Some(key) = self.0.iter().find(|name| **name == key) {
                asked.spelled.push((key, map.next_value::<&'de RawValue>()?.get()));
            } else {
                let value = map.next_value::<&'de RawValue>()?.get();
                asked.fields.insert(key, json::value(value).map_err(A::Error::custom)?);
            }
        }
        Ok(asked)
    }
}

/// The fields of an object as it is spelled; `None` for anything else.
pub(super) fn object(raw: &str) -> Result<Option<Fields<'_>>, WireError> {
    if !raw.starts_with('{') {
        return Ok(None);
    }
    Fields::read(raw).map(Some).map_err(|e| not_json(&e))
}

/// Reads a whole value.
pub(super) fn value(raw: &str) -> Result<Value, WireError> {
    json::value(raw).map_err(|e| not_json(&e))
}

/// Reads the elements of an array one after the other, with their numbers. `false` for anything but an array.
pub(super) fn each<'a, T: Deserialize<'a>>(
    raw: &'a str,
    one: impl FnMut(usize, T) -> Result<(), WireError>,
) -> Result<bool, WireError> {
    if !raw.starts_with('[') {
        return Ok(false);
    }
    let mut failed = None;
    let each = Each { one, failed: &mut failed, of: PhantomData };
    let read = serde_json::Deserializer::from_str(raw).deserialize_seq(each);
    match failed {
        Some(e) => Err(e),
        None => read.map(|()| true).map_err(|e| not_json(&e)),
    }
}

struct Each<'f, T, F> {
    one: F,
    failed: &'f mut Option<WireError>,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(usize, T) -> Result<(), WireError>> Visitor<'de> for Each<'_, T, F> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut at = 0;
        while let Some(element) = seq.next_element()? {
            if let Err(e) = (self.one)(at, element) {
                *self.failed = Some(e);
                return Ok(());
            }
            at += 1;
        }
        Ok(())
    }
}

/// An element of a list: an object as it is spelled, or a text.
pub(super) enum Item<'a> {
    Object(Fields<'a>),
    Text(String),
    Other,
}

impl<'de> Deserialize<'de> for Item<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(d)?.get();
        if raw.starts_with('{') {
            return Fields::read(raw).map(Item::Object).map_err(D::Error::custom);
        }
        Ok(json::string(raw).map_or(Item::Other, Item::Text))
    }
}

/// A part of a content.
pub(super) enum Part {
    Text(String),
    /// A picture or a sound as JSON, which takes less room than a tree.
    Media(Box<RawValue>),
}

impl Part {
    pub(super) fn media(value: &Value) -> Part {
        Part::Media(to_raw_value(value).expect("a value is always JSON"))
    }

    /// Its text, if it is one.
    pub(super) fn text(self) -> Option<String> {
        if let Part::Text(text) = self { Some(text) } else { None }
    }

    /// Whether it is a text that says nothing.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Part::Text(text) if text.is_empty())
    }

    /// A picture, by its URL.
    pub(super) fn image(url: &str) -> Part {
        Part::media(&json!({"type": "image_url", "image_url": {"url": url}}))
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let text = match self {
            Part::Text(text) => text,
            Part::Media(value) => return value.serialize(to),
        };
        let mut part = to.serialize_map(Some(2))?;
        part.serialize_entry("type", "text")?;
        part.serialize_entry("text", text)?;
        part.end()
    }
}

/// Texts with something between them. A single one is not copied: it may be megabytes.
pub(super) fn joined(mut texts: Vec<String>, between: &str) -> String {
    if texts.len() == 1 { texts.remove(0) } else { texts.join(between) }
}

/// A message of a chat completion request in the making.
pub(super) struct Message {
    pub(super) fields: Map<String, Value>,
    /// The parts of `content`, where it has such.
    pub(super) parts: Vec<Part>,
}

impl Message {
    /// A message with its content; more fields may follow.
    pub(super) fn new(role: &str, content: Value) -> Message {
        Message {
            fields: Map::from_iter([("role".into(), role.into()), ("content".into(), content)]),
            parts: Vec::new(),
        }
    }

    /// A message of parts.
    pub(super) fn of(role: &str, parts: Vec<Part>) -> Message {
        Message { parts, ..Message::new(role, Value::Null) }
    }

    /// The result of a tool.
    pub(super) fn result(id: &str, content: String) -> Message {
        let id = extra::without_extra(id).0;
        let fields = [("role", "tool".into()), ("tool_call_id", id.into()), ("content", content.into())];
        Message {
            fields: fields.map(|(key, value): (&str, Value)| (key.into(), value)).into_iter().collect(),
            parts: Vec::new(),
        }
    }

    /// Takes over the content of another message behind its own, where both are text or this one has none.
    pub(super) fn take_content(&mut self, other: &mut Message) -> bool {
        let own = self.fields.get_mut("content");
        match (own, other.fields.get_mut("content")) {
            _ if !self.parts.is_empty() => false,
            (Some(own @ Value::Null), Some(new)) => {
                *own = new.take();
                self.parts = std::mem::take(&mut other.parts);
                true
            }
            (Some(Value::String(own)), Some(Value::String(new))) => {
                if !own.is_empty() && !new.is_empty() {
                    own.push_str("\n\n");
                }
                own.push_str(new);
                true
            }
            _ => false,
        }
    }

    pub(super) fn is_of(&self, role: &str) -> bool {
        self.fields["role"] == role
    }

    /// Texts alone become one string, joined by line ends: chat templates that take no parts exist.
    pub(super) fn plain(mut self) -> Message {
        if self.parts.iter().any(|part| matches!(part, Part::Media(_))) {
            return self;
        }
        let texts = std::mem::take(&mut self.parts).into_iter();
        let texts = texts.filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
        self.fields["content"] = joined(texts.collect(), "\n").into();
        self
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut out = to.serialize_map(Some(self.fields.len()))?;
        for (key, value) in &self.fields {
            match key.as_str() {
                "content" if !self.parts.is_empty() => out.serialize_entry(key, &self.parts)?,
                _ => out.serialize_entry(key, value)?,
            }
        }
        out.end()
    }
}

/// A call of a function, as a message carries it. `id` is the client's.
pub(super) fn call(id: &str, name: String, arguments: String) -> Value {
    let (id, extra) = extra::without_extra(id);
    let object = |fields: [(&str, Value); 2]| Map::from_iter(fields.map(|(key, value)| (key.to_owned(), value)));
    let function = object([("name", name.into()), ("arguments", arguments.into())]);
    let mut call = object([("id", id.into()), ("type", "function".into())]);
    call.insert("function".into(), function.into());
    call.extend(extra.map(|extra| (extra::FIELD.to_owned(), extra)));
    call.into()
}

/// A chat completion request that is being written.
pub(super) struct Chat {
    out: Vec<u8>,
    begun: bool,
    /// Where the last message begins, if it is a reply that says nothing behind others.
    nothing: Option<usize>,
}

/// Replies that say nothing. At the end of a request there is nothing in one to go on from, and servers that take it for the
/// beginning of a reply do not let the model begin its own.
const NOTHING: [&[u8]; 3] = [
    br#"{"role":"assistant","content":""}"#,
    br#"{"role":"assistant","content":null}"#,
    br#"{"role":"assistant","content":[]}"#,
];

impl Chat {
    /// The request for a model; it will be about `size` bytes long.
    pub(super) fn new(model: Option<&str>, size: usize) -> Chat {
        let mut out = Vec::with_capacity(size + size / 16 + 256);
        out.push(b'{');
        if let Some(model) = model {
            out.extend_from_slice(b"\"model\":");
            write(&mut out, model);
            out.push(b',');
        }
        out.extend_from_slice(b"\"messages\":[");
        Chat { out, begun: false, nothing: None }
    }

    /// Whether it has no message yet.
    pub(super) fn is_empty(&self) -> bool {
        !self.begun
    }

    /// Adds a message.
    pub(super) fn push(&mut self, message: &(impl Serialize + ?Sized)) {
        let (start, behind) = (self.out.len(), self.begun);
        if behind {
            self.out.push(b',');
        }
        self.begun = true;
        write(&mut self.out, message);
        let written = &self.out[start + usize::from(behind)..];
        self.nothing = (behind && NOTHING.contains(&written)).then_some(start);
    }

    /// Adds a message as it is spelled. What is no JSON is passed over.
    pub(super) fn push_spelled(&mut self, message: &[u8]) {
        if let Ok(message) = serde_json::from_slice::<&RawValue>(message) {
            self.push(message);
        }
    }

    /// Adds all other fields: the body.
    pub(super) fn end(mut self, rest: &Map<String, Value>) -> Bytes {
        self.out.truncate(self.nothing.unwrap_or(self.out.len()));
        self.out.push(b']');
        for (key, value) in rest {
            self.out.push(b',');
            write(&mut self.out, key);
            self.out.push(b':');
            write(&mut self.out, value);
        }
        self.out.push(b'}');
        self.out.into()
    }
}

fn write(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("it is always JSON, and memory takes it");
}

/// A field that is there; `null` counts as absent.
pub(super) fn given<'a>(fields: &Fields<'a>, key: &str) -> Option<&'a str> {
    fields.get(key).filter(|value| *value != "null")
}
