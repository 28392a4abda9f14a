//! Requests of Ollama's clients, and what they become; replies, and what those become.

use serde_json::{Value, json};

use super::super::super::WireError;
use super::super::Heard;
use super::*;

mod messages;
mod replies;
mod requests;

/// The chat completion request for one to `/api/chat`.
fn asked(request: Value) -> Value {
    said(chat(request.to_string().as_bytes()))
}

/// The chat completion request for one to `/api/generate`.
fn generated(request: Value) -> Value {
    said(generate(request.to_string().as_bytes()))
}

fn said(heard: Result<Option<Heard>, WireError>) -> Value {
    serde_json::from_slice(&heard.unwrap().expect("it is a chat").chat).unwrap()
}

/// The messages for those of a chat.
fn spoken(messages: Value) -> Value {
    asked(json!({"model": "m", "messages": messages}))["messages"].take()
}

/// What of a chat request does not depend on its messages.
fn rest(fields: Value) -> Value {
    let mut request = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": false});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut out = asked(request);
    let out_fields = out.as_object_mut().unwrap();
    ["model", "messages", "stream"].iter().for_each(|name| drop(out_fields.shift_remove(*name).unwrap()));
    out
}
