//! Names of tools for a server that takes no long ones. OpenAI's API takes 64 letters, digits, `_` and `-`, and so do the servers
//! that check requests as it does (mistral-common, and with it vLLM for Mistral's models); llama-server and Ollama take any name.
//!
//! Pure. A name is shortened in the same way each time, whatever stands around it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

use super::json::{self, Fields};

/// The longest name of OpenAI's API (bytes).
pub const LONGEST: usize = 64;

/// Characters of the digest that a shortened name ends in.
const DIGEST: usize = 8;

/// Fields of a message, or of a request, that name tools.
const NAMING: [&str; 5] = ["tools", "tool_choice", "functions", "function_call", "tool_calls"];

/// A name that ends in a digest of what tells it from others, at most `most` bytes long.
pub fn ending(name: &str, of: &str, most: usize) -> String {
    let end = &blake3::hash(of.as_bytes()).to_hex()[..DIGEST];
    let most = most.saturating_sub(end.len() + 1);
    let kept = name.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= most).last().unwrap_or(0);
    format!("{}_{end}", &name[..kept])
}

/// Whether a server with this limit takes a name.
fn is_taken(name: &str, most: usize) -> bool {
    name.len() <= most && name.chars().all(is_usual)
}

fn is_usual(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// The longest name of a request that a server with this limit does not take (bytes); `None` where it takes them all.
pub fn longest_refused(fields: &Fields<'_>, most: usize) -> Option<usize> {
    all(fields).iter().filter(|name| !is_taken(name, most)).map(String::len).max()
}

/// A request whose names a server with this limit takes, and what they were; `None` where it takes them as they are.
pub fn shortened(body: &str, most: usize) -> Option<(Bytes, Names)> {
    let fields = Fields::read(body).ok()?;
    let known = all(&fields);
    let mut names = Names::default();
    for name in known.iter().filter(|name| !is_taken(name, most)) {
        let usual: String = name.chars().map(|c| if is_usual(c) { c } else { '_' }).collect();
        let mut short = ending(&usual, name, most);
        let mut nth = 2;
        while known.contains(&short) || names.0.values().any(|other| *other == short) {
            short = ending(&usual, &format!("{name}\0{nth}"), most);
            nth += 1;
        }
        names.0.insert(name.clone(), short);
    }
    if names.0.is_empty() {
        return None;
    }
    let mut changes: Vec<(&str, String)> = Vec::new();
    for key in NAMING {
        changes.extend(fields.get(key).and_then(|value| Some((key, names.in_field(key, value)?))));
    }
    changes.extend(fields.get("messages").and_then(|messages| Some(("messages", names.in_messages(messages)?))));
    let changes: Vec<(&str, Option<&str>)> = changes.iter().map(|(key, value)| (*key, Some(value.as_str()))).collect();
    Some((json::with_fields(body, &changes).ok()?, names))
}

/// The names of a request's tools, and of those that its history calls.
fn all(fields: &Fields<'_>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut note = |name: &mut String| {
        found.insert(name.clone());
    };
    for key in NAMING {
        fields.get(key).into_iter().for_each(|raw| drop(visited(key, raw, &mut note)));
    }
    for message in fields.get("messages").into_iter().flat_map(messages) {
        let Ok(message) = Fields::read(message.get()) else { continue };
        for (key, value) in named_in(&message) {
            drop(visited(key, value, &mut note));
        }
    }
    found
}

fn messages(spelled: &str) -> Vec<&RawValue> {
    serde_json::from_str(spelled).unwrap_or_default()
}

/// The fields of a message that name tools. The `name` of a person is none.
fn named_in<'a>(message: &Fields<'a>) -> Vec<(&'static str, &'a str)> {
    let is_result = matches!(message.get("role"), Some("\"tool\"" | "\"function\""));
    let own = ["name"].into_iter().filter(|_| is_result);
    NAMING.into_iter().chain(own).filter_map(|key| Some((key, message.get(key)?))).collect()
}

/// The value of a field with each name of a tool in it visited.
fn visited(key: &str, raw: &str, visit: &mut dyn FnMut(&mut String)) -> Option<Value> {
    let mut value = json::value(raw).ok()?;
    match key {
        "name" => visit_text(Some(&mut value), visit),
        // Here the name lies one level higher than elsewhere.
        "function_call" => visit_text(value.get_mut("name"), visit),
        "functions" => {
            let all = value.as_array_mut().into_iter().flatten();
            all.for_each(|function| visit_text(function.get_mut("name"), visit));
        }
        _ => visit_tools(&mut value, visit),
    }
    Some(value)
}

fn visit_tools(value: &mut Value, visit: &mut dyn FnMut(&mut String)) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|tool| visit_tools(tool, visit)),
        Value::Object(fields) => {
            for key in ["function", "custom"] {
                visit_text(fields.get_mut(key).and_then(|tool| tool.get_mut("name")), visit);
            }
            for key in ["tools", "allowed_tools"] {
                fields.get_mut(key).into_iter().for_each(|tools| visit_tools(tools, visit));
            }
        }
        _ => {}
    }
}

fn visit_text(value: Option<&mut Value>, visit: &mut dyn FnMut(&mut String)) {
    if let Some(Value::String(name)) = value {
        visit(name);
    }
}

/// Shortened names, by what they were.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    /// The field under shortened names; `None` where it has none of them.
    fn in_field(&self, key: &str, raw: &str) -> Option<String> {
        let mut changed = false;
        let value = visited(key, raw, &mut |name| {
            if let Some(short) = self.0.get(name) {
                name.clone_from(short);
                changed = true;
            }
        })?;
        changed.then(|| value.to_string())
    }

    fn in_messages(&self, spelled: &str) -> Option<String> {
        let mut changed = false;
        let mut out = String::with_capacity(spelled.len());
        for raw in messages(spelled) {
            out.push(if out.is_empty() { '[' } else { ',' });
            match self.in_message(raw.get()) {
                Some(message) => {
                    changed = true;
                    out.push_str(&String::from_utf8_lossy(&message));
                }
                None => out.push_str(raw.get()),
            }
        }
        out.push(']');
        changed.then_some(out)
    }

    fn in_message(&self, raw: &str) -> Option<Bytes> {
        let fields = Fields::read(raw).ok()?;
        let all = named_in(&fields).into_iter();
        let changes: Vec<(&str, String)> =
            all.filter_map(|(key, value)| Some((key, self.in_field(key, value)?))).collect();
        if changes.is_empty() {
            return None;
        }
        let changes: Vec<(&str, Option<&str>)> =
            changes.iter().map(|(key, value)| (*key, Some(value.as_str()))).collect();
        json::with_fields(raw, &changes).ok()
    }

    /// Puts the client's names back into a reply, as its bytes come.
    pub fn restorer(&self) -> Restorer {
        let pair =
            |(name, short): (&String, &String)| (json::quote(short).into_bytes(), json::quote(name).into_bytes());
        Restorer { pairs: self.0.iter().map(pair).collect(), held: Vec::new() }
    }
}

/// A reply whose names are put back. Within a text of a reply quotes are escaped, so that a name between quotes is one.
#[derive(Debug)]
pub struct Restorer {
    /// A shortened name as it is spelled, and what it was.
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The end of what came, where a shortened name may begin in it.
    held: Vec<u8>,
}

impl Restorer {
    /// What can be said of the reply once these bytes came.
    pub fn push(&mut self, bytes: &[u8]) -> Bytes {
        self.held.extend_from_slice(bytes);
        let mut out = Vec::with_capacity(self.held.len());
        let mut at = 0;
        while let Some(next) = memchr::memchr(b'"', &self.held[at..]).map(|next| at + next) {
            out.extend_from_slice(&self.held[at..next]);
            let rest = &self.held[next..];
            match self.pairs.iter().find(|(short, _)| rest.starts_with(short)) {
                Some((short, name)) => {
                    out.extend_from_slice(name);
                    at = next + short.len();
                }
                None if self.pairs.iter().any(|(short, _)| short.starts_with(rest)) => {
                    self.held.drain(..next);
                    return out.into();
                }
                None => {
                    out.push(b'"');
                    at = next + 1;
                }
            }
        }
        out.extend_from_slice(&self.held[at..]);
        self.held.clear();
        out.into()
    }

    /// What is left when no more bytes come.
    pub fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn long(end: &str) -> String {
        format!("mcp__{}__{end}", "server".repeat(12))
    }

    fn request() -> String {
        let tool =
            |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"name": long("a")}}});
        json!({"model": "m", "temperature": 0.70, "tool_choice": {"type": "function", "function": {"name": long("b")}},
            "tools": [tool(&long("a")), tool(&long("b")), tool("sh"), tool("a.dotted/name")],
            "messages": [{"role": "user", "name": long("a"), "content": long("a")},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": long("a"), "arguments": "{\"n\": 1E5}"}}]},
                {"role": "tool", "tool_call_id": "c", "name": long("a"), "content": "r"},
                {"role": "assistant", "content": null, "function_call": {"name": long("gone"), "arguments": "{}"}}]})
        .to_string()
    }

    #[test]
    fn each_name_gets_one_that_is_taken_and_comes_back() {
        let request = request();
        let (body, names) = shortened(&request, LONGEST).unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let fields = Fields::read(&text).unwrap();
        assert_eq!(longest_refused(&fields, LONGEST), None, "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        let shorts: BTreeSet<&str> =
            value["tools"].as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!((shorts.len(), shorts.contains("sh")), (4, true), "{shorts:?}");
        let of = |at: usize| value["tools"][at]["function"]["name"].clone();
        assert_eq!(value["tool_choice"]["function"]["name"], of(1));
        assert_eq!(value["messages"][1]["tool_calls"][0]["function"]["name"], of(0));
        assert_eq!(value["messages"][2]["name"], of(0));
        // A person's name and a schema are no tool's.
        assert_eq!(value["messages"][0]["name"], long("a").as_str());
        assert_eq!(value["tools"][0]["function"]["parameters"]["name"], long("a").as_str());
        assert!(text.contains("\"temperature\":0.7"), "{text}");
        // Whatever stands beside it, a name is shortened in the same way.
        let alone = json!({"messages": [], "tools": [{"function": {"name": long("a")}}]}).to_string();
        let alone: Value = serde_json::from_slice(&shortened(&alone, LONGEST).unwrap().0).unwrap();
        assert_eq!(alone["tools"][0]["function"]["name"], of(0));
        let back = names.restorer().push(&body);
        assert_eq!(serde_json::from_slice::<Value>(&back).unwrap(), serde_json::from_str::<Value>(&request).unwrap());
    }

    #[test]
    fn names_come_back_at_every_split_and_nothing_else_waits() {
        let (_, names) = shortened(&request(), LONGEST).unwrap();
        let short = names.0[&long("a")].clone();
        let reply = format!("data: {{\"name\":\"{short}\",\"text\":\"\\\"{short}\\\" {short}\"}}\n\n");
        let expect = reply.replacen(&short, &long("a"), 1);
        for at in 0..reply.len() {
            let mut restorer = names.restorer();
            let mut out = restorer.push(&reply.as_bytes()[..at]).to_vec();
            out.extend_from_slice(&restorer.push(&reply.as_bytes()[at..]));
            assert_eq!(String::from_utf8_lossy(&out), expect, "{at}");
            assert!(restorer.finish().is_empty());
        }
        let mut restorer = names.restorer();
        assert_eq!(restorer.push(b"data: {\"content\":\"so far\"}\n\n").len(), 28);
        assert_eq!((&restorer.push(b"a \"mcp")[..], &restorer.finish()[..]), (&b"a "[..], &b"\"mcp"[..]));
    }

    #[test]
    fn a_shortened_name_is_never_that_of_another_tool() {
        let first = shortened(&json!({"tools": [{"function": {"name": long("a")}}]}).to_string(), LONGEST).unwrap();
        let taken = first.1.0[&long("a")].clone();
        let both = json!({"tools": [{"function": {"name": long("a")}}, {"function": {"name": taken}}]}).to_string();
        let (body, names) = shortened(&both, LONGEST).unwrap();
        assert_ne!(names.0[&long("a")], taken);
        assert!(String::from_utf8_lossy(&body).contains(&taken));
        assert_eq!(shortened(r#"{"tools":[{"function":{"name":"sh"}}],"messages":[]}"#, LONGEST), None);
    }
}
