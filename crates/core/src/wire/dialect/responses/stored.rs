//! What a client has stored here, as it gets to see it again: responses, conversations, and pages of their items.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::super::super::WireError;
use super::super::super::json::{Fields, mended};
use super::super::wrong;
use super::head::Head;

/// Items that one request may add to a conversation.
pub const MOST_ITEMS: usize = 20;
/// Metadata: pairs, and characters of a name and of a value.
const PAIRS: usize = 16;
const NAME: usize = 64;
const VALUE: usize = 512;

/// A response as it was answered, from what was kept with it: see [`super::super::Answered`].
pub fn response(id: &str, head: &str, output: &str) -> Value {
    let mut response = Head::read(head).response;
    if !response.is_object() {
        // Older versions kept none of this.
        response = json!({"object": "response", "created_at": 0, "status": "completed", "error": null,
            "incomplete_details": null, "instructions": null, "metadata": {}, "model": "", "parallel_tool_calls": true,
            "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0, "usage": null});
    }
    response["id"] = id.into();
    response["output"] = serde_json::from_str(output).unwrap_or_else(|_| json!([]));
    response
}

/// What stood in the input of a response before anybody said anything, as items.
pub fn opening(id: &str, head: &str) -> Vec<Value> {
    let one = |(at, words): (usize, String)| {
        json!({"id": format!("msg_{id}_s{at}"), "type": "message", "status": "completed", "role": "developer",
            "content": [{"type": "input_text", "text": words}]})
    };
    Head::read(head).system.into_iter().enumerate().map(one).collect()
}

/// Writes the body of a request anew: with these items before its own, and as a stream where that is asked.
///
/// # Errors
/// When it is no JSON object, or its `input` is neither a text nor a list.
pub fn rewritten(body: &[u8], before: Option<&[String]>, stream: bool) -> Result<Vec<u8>, WireError> {
    let text = mended(body);
    let fields = Fields::read(&text).map_err(|e| WireError::NotJson(e.to_string()))?;
    let mut out =
        String::with_capacity(text.len() + before.iter().flat_map(|all| *all).map(String::len).sum::<usize>());
    let mut put = |key: &str, value: &str| {
        out.push(if out.is_empty() { '{' } else { ',' });
        let _ = write!(out, "{}:{value}", Value::from(key));
    };
    for (key, value) in &fields.0 {
        match key.as_ref() {
            "input" if before.is_some() => {}
            "stream" if stream => {}
            key => put(key, value.get()),
        }
    }
    if let Some(before) = before {
        let own: Vec<Value> = given(fields.get("input").unwrap_or("null"))?;
        let all: Vec<String> = before.iter().cloned().chain(own.iter().map(Value::to_string)).collect();
        put("input", &format!("[{}]", all.join(",")));
    }
    if stream {
        put("stream", "true");
    }
    out.push('}');
    Ok(out.into_bytes())
}

/// The items of an `input`, as they stand in it; a text is a message.
fn given(input: &str) -> Result<Vec<Value>, WireError> {
    match serde_json::from_str(input).unwrap_or(Value::Null) {
        Value::Null => Ok(Vec::new()),
        Value::String(words) => Ok(vec![json!({"type": "message", "role": "user", "content": words})]),
        Value::Array(all) => Ok(all),
        _ => Err(wrong("input", "must be a string or an array of items")),
    }
}

/// The items that a request brings, each with an id. `id` is what ids are made of.
///
/// # Errors
/// When the body is no JSON object, or what it has at `key` is neither a text nor a list of objects.
pub fn brought(body: &[u8], key: &str, id: &str) -> Result<Vec<(String, String)>, WireError> {
    let text = mended(body);
    let fields = Fields::read(&text).map_err(|e| WireError::NotJson(e.to_string()))?;
    let all = given(fields.get(key).unwrap_or("null")).map_err(|_| wrong(key, "must be an array of items"))?;
    let one = |(at, mut item): (usize, Value)| {
        let Some(fields) = item.as_object_mut() else { return Err(wrong(format!("{key}[{at}]"), "must be an object")) };
        whole(fields);
        let kind = fields.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
        let named = fields.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()).map(str::to_owned);
        let name = named.unwrap_or_else(|| format!("{}_{id}{at:02}", prefix(&kind)));
        fields.insert("id".into(), name.as_str().into());
        Ok((name, item.to_string()))
    };
    all.into_iter().enumerate().map(one).collect()
}

/// What SDKs read of a message that clients may leave out.
fn whole(item: &mut Map<String, Value>) {
    let is_message = item.get("type").is_none_or(|kind| kind.is_null() || kind == "message");
    if !is_message || !item.contains_key("role") {
        return;
    }
    item.insert("type".into(), "message".into());
    item.entry("status").or_insert_with(|| "completed".into());
    let kind = if item["role"] == "assistant" { "output_text" } else { "input_text" };
    if let Some(Value::String(words)) = item.get("content") {
        let mut part = json!({"type": kind, "text": words});
        if kind == "output_text" {
            part["annotations"] = json!([]);
        }
        item.insert("content".into(), json!([part]));
    }
}

/// How the ids of a kind of item begin.
fn prefix(kind: &str) -> &'static str {
    match kind {
        "message" => "msg",
        "reasoning" => "rs",
        "function_call" => "fc",
        "function_call_output" => "fco",
        "custom_tool_call" => "ctc",
        "custom_tool_call_output" => "ctco",
        "compaction" => "cmp",
        _ => "item",
    }
}

/// The metadata of a request.
///
/// # Errors
/// Where it is none, or larger than OpenAI takes.
pub fn metadata(fields: &Map<String, Value>) -> Result<Map<String, Value>, WireError> {
    let pairs = match super::given(fields, "metadata") {
        None => return Ok(Map::new()),
        Some(Value::Object(pairs)) => pairs,
        Some(_) => return Err(wrong("metadata", "must be an object")),
    };
    if pairs.len() > PAIRS {
        return Err(wrong("metadata", &format!("may have {PAIRS} pairs, and has {}", pairs.len())));
    }
    for (key, value) in pairs {
        let Some(value) = value.as_str() else { return Err(wrong(format!("metadata.{key}"), "must be a string")) };
        if key.chars().count() > NAME || value.chars().count() > VALUE {
            let most = format!("may have {NAME} characters in its name and {VALUE} in its value");
            return Err(wrong(format!("metadata.{}", key.chars().take(NAME).collect::<String>()), &most));
        }
    }
    Ok(pairs.clone())
}

/// Which items a client wants to see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The id of the last item that it has.
    pub after: Option<String>,
    /// How many, 1 to 100; 20 where it does not say.
    pub limit: Option<String>,
    /// `asc` or `desc`, which is usual.
    pub order: Option<String>,
}

impl Page {
    /// The list of these items, the oldest first in `all`.
    ///
    /// # Errors
    /// Where a value is none that the API takes.
    pub fn of(&self, mut all: Vec<Value>) -> Result<Value, WireError> {
        let limit = match self.limit.as_deref().map(str::parse) {
            None => 20,
            Some(Ok(limit @ 1..=100)) => limit,
            Some(_) => return Err(wrong("limit", "must be a whole number from 1 to 100")),
        };
        match self.order.as_deref() {
            None | Some("desc") => all.reverse(),
            Some("asc") => {}
            Some(_) => return Err(wrong("order", "must be \"asc\" or \"desc\"")),
        }
        let from = match &self.after {
            None => 0,
            Some(id) => match all.iter().position(|item| item["id"] == id.as_str()) {
                Some(at) => at + 1,
                None => return Err(wrong("after", "names no item of this list")),
            },
        };
        let has_more = all.len() - from > limit;
        let data: Vec<Value> = all.into_iter().skip(from).take(limit).collect();
        let id = |item: Option<&Value>| item.map(|item| item["id"].clone()).unwrap_or_default();
        Ok(json!({"object": "list", "first_id": id(data.first()), "last_id": id(data.last()), "has_more": has_more,
            "data": data}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_written_with_what_stands_before_its_input() {
        let body = br#"{"model": "m", "n": 1.50, "input": "Hi", "stream": false}"#;
        let before = [r#"{"role":"user","content":"Old"}"#.to_owned()];
        let text = String::from_utf8(rewritten(body, Some(&before), true).unwrap()).unwrap();
        let message = r#"{"type":"message","role":"user","content":"Hi"}"#;
        assert_eq!(text, format!(r#"{{"model":"m","n":1.50,"input":[{},{message}],"stream":true}}"#, before[0]));
        let same = rewritten(br#"{"input":[1]}"#, None, false).unwrap();
        assert_eq!(same, br#"{"input":[1]}"#);
        assert!(rewritten(b"[]", None, true).is_err() && rewritten(br#"{"input":7}"#, Some(&[]), false).is_err());
        assert_eq!(rewritten(b"{}", None, true).unwrap(), br#"{"stream":true}"#);
    }

    #[test]
    fn items_that_are_brought_have_ids_and_what_sdks_read() {
        let body = json!({"items": [{"role": "user", "content": "Hi"}, {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "assistant", "content": "Ho"}]});
        let all = brought(body.to_string().as_bytes(), "items", "a").unwrap();
        let ids: Vec<&str> = all.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["msg_a00", "rs_1", "msg_a02"]);
        let first: Value = serde_json::from_str(&all[0].1).unwrap();
        assert_eq!((&first["type"], &first["status"]), (&json!("message"), &json!("completed")));
        assert_eq!(first["content"], json!([{"type": "input_text", "text": "Hi"}]));
        for (wrong, param) in [(json!({"items": 7}), "items"), (json!({"items": [7]}), "items[0]")] {
            let found = brought(wrong.to_string().as_bytes(), "items", "a").unwrap_err();
            assert_eq!(found.param(), Some(param));
        }
    }

    #[test]
    fn pages_go_from_the_newest_unless_asked_otherwise() {
        let all: Vec<Value> = (0..30).map(|n| json!({"id": format!("i{n}")})).collect();
        let page = |after: Option<&str>, limit: Option<&str>, order: Option<&str>| {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            Page { after: owned(after), limit: owned(limit), order: owned(order) }.of(all.clone())
        };
        let first = page(None, None, None).unwrap();
        assert_eq!(
            (&first["first_id"], &first["last_id"], &first["has_more"]),
            (&json!("i29"), &json!("i10"), &json!(true))
        );
        let next = page(Some("i10"), None, None).unwrap();
        assert_eq!((next["data"].as_array().unwrap().len(), &next["has_more"]), (10, &json!(false)));
        assert_eq!(page(None, Some("2"), Some("asc")).unwrap()["last_id"], "i1");
        for (wrong, param) in [
            (page(None, Some("0"), None), "limit"),
            (page(None, Some("101"), None), "limit"),
            (page(None, None, Some("up")), "order"),
            (page(Some("none"), None, None), "after"),
        ] {
            assert_eq!(wrong.unwrap_err().param(), Some(param));
        }
        assert_eq!(Page::default().of(Vec::new()).unwrap()["first_id"], Value::Null);
    }

    #[test]
    fn metadata_is_small() {
        let of = |value: Value| metadata(json!({"metadata": value}).as_object().unwrap());
        assert_eq!(of(json!({"a": "b"})).unwrap().len(), 1);
        assert!(of(json!(null)).unwrap().is_empty());
        let many: Map<String, Value> = (0..17).map(|n| (n.to_string(), json!("x"))).collect();
        for wrong in
            [json!(1), many.into(), json!({"a": 1}), json!({"a": "x".repeat(513)}), json!({"k".repeat(65): ""})]
        {
            assert!(of(wrong).unwrap_err().param().unwrap().starts_with("metadata"));
        }
    }

    #[test]
    fn a_response_is_what_was_kept_of_it() {
        let head = r#"{"system":["Be brief."],"tools":[],"response":{"object":"response","model":"m","output":null}}"#;
        let found = response("resp_1", head, r#"[{"id":"msg_1"}]"#);
        assert_eq!(
            (&found["id"], &found["model"], &found["output"][0]["id"]),
            (&json!("resp_1"), &json!("m"), &json!("msg_1"))
        );
        assert_eq!(response("resp_1", "{}", "[]")["status"], "completed");
        assert_eq!(opening("x", head)[0]["role"], "developer");
    }
}
