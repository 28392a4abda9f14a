//! Blocks that a history brings along: none is refused, and each is said in its place. Tools of Anthropic's own.

use bytes::Bytes;
use serde_json::{Value, json};

use super::request;
use crate::conversation::Message;
use crate::wire::openai_chat;

fn asked(messages: Value) -> Value {
    json!({"model": "m", "max_tokens": 100, "messages": messages})
}

/// The request in the words of chat completions, and what is told of it.
fn heard(body: &Value) -> (Value, Vec<String>) {
    let heard = request(body.to_string().as_bytes()).unwrap_or_else(|e| panic!("{e}: {body}"));
    (serde_json::from_slice(&heard.chat).unwrap(), heard.encoder.warnings().to_vec())
}

fn messages(of: Value) -> Vec<Value> {
    heard(&asked(of)).0["messages"].as_array().unwrap().clone()
}

/// As the conversation has them, and as they are forwarded.
fn read(of: Value) -> Vec<(Message, Value)> {
    let read = |message: &Value| {
        let message = openai_chat::message(Bytes::from(message.to_string())).unwrap();
        let bytes = serde_json::from_slice(message.bytes()).unwrap();
        (message, bytes)
    };
    messages(of).iter().map(read).collect()
}

#[test]
fn a_turn_of_a_cloud_is_told_in_its_place() {
    let out = read(json!([
        {"role": "user", "content": "Which crate parses TOML?"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "I will look."},
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "rust toml crate"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "title": "toml",
                "url": "https://crates.example/toml", "encrypted_content": "EqgfCioIARgB", "page_age": null}]},
            {"type": "text", "text": "The toml"}, {"type": "text", "text": " crate.", "citations": []}]},
        {"role": "user", "content": "Go on with it."},
    ]));
    let said = "I will look.\n[web_search: rust toml crate]\n[web_search result]\ntoml: https://crates.example/toml\nThe toml crate.";
    assert_eq!(out[1].1, json!({"role": "assistant", "content": said}));
    assert!(String::from_utf8_lossy(&out[1].0.raw).contains("EqgfCioIARgB"), "the original is kept");
    // The mark of Anthropic's cache moves each turn; it makes no other message.
    let block = |mark: Value| {
        let mut block = json!({"type": "container_upload", "file_id": "file_1"});
        block.as_object_mut().unwrap().extend(mark.as_object().unwrap().clone());
        read(json!([{"role": "user", "content": [block]}]))[0].0.digest
    };
    assert_eq!(block(json!({})), block(json!({"cache_control": {"type": "ephemeral"}})));
}

#[test]
fn a_result_says_that_its_call_failed_and_keeps_its_document() {
    let out = read(json!([
        {"role": "user", "content": "Deploy."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "deploy", "input": {}}, {"type": "tool_use", "id": "t2", "name": "Read", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": "release 41"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "PDF file read"},
                {"type": "document", "title": "a.pdf", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}]}]},
    ]));
    assert_eq!(out[2].1["content"], "Error: release 41");
    assert_eq!(
        out[3].1["content"],
        "PDF file read\n[document a.pdf, 5 bytes: this server reads no PDFs; in the record]"
    );
    assert_eq!(out[3].0.text, out[3].1["content"].as_str().unwrap());
    assert!(String::from_utf8_lossy(&out[3].0.raw).contains("JVBERi0="));
    assert_eq!(out.len(), 4, "no message more");
}

#[test]
fn odd_shapes_are_read() {
    for content in [
        json!(null),
        json!([]),
        json!([{"type": "text", "text": ""}]),
        json!(["bare", null, 3]),
        json!({"type": "text", "text": "one"}),
        json!([{}]),
    ] {
        for role in ["user", "assistant", "system", "developer", "tool"] {
            let out = messages(
                json!([{"role": "user", "content": "a"}, {"role": role, "content": content}, {"role": "user", "content": "z"}]),
            );
            assert!(!out.is_empty(), "{role} {content}");
        }
    }
    // Two turns of the assistant in a row are one.
    let out = messages(json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": [{"type": "text", "text": "y"}, {"type": "mcp_tool_use", "id": "m", "server_name": "s", "name": "n", "input": {}}]},
        {"role": "assistant", "content": "z"}]));
    assert_eq!(out.len(), 2);
    assert_eq!(
        read(json!([{"role": "assistant", "content": "x"}, {"role": "assistant", "content": "z"}]))[0].1["content"],
        "x\n\nz"
    );
    // A system text of blocks that are none.
    let mut body = asked(json!([{"role": "user", "content": "a"}]));
    body["system"] = json!([{"type": "text", "text": "S"}, {"type": "odd"}, null]);
    assert!(heard(&body).0["messages"][0]["content"].as_str().unwrap().starts_with("S\n[a part of type odd"));
    // Half of a surrogate pair in a block that is carried.
    let cut = br#"{"model":"m","messages":[{"role":"user","content":[{"type":"odd","x":"\ud83d"}]}]}"#;
    let chat: Value = serde_json::from_slice(&request(cut).unwrap().chat).unwrap();
    assert_eq!(chat["messages"][0]["content"][0]["block"]["x"], "\u{fffd}");
    // A call whose input was cut is wrapped further on, and not refused.
    let out = messages(
        json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "{\"a\": 1"}]}]),
    );
    assert_eq!(out[0]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1");
}

#[test]
fn a_reminder_ends_with_the_users_next_message() {
    let call = |id: &str| json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "Read", "input": {}}]});
    let result = |id: &str, text: &str| json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]});
    let reminder = |left: u32| json!({"role": "system", "clear_at": "next_user_message", "content": format!("Tokens left: {left}")});
    let first = messages(json!([{"role": "user", "content": "Read"}, call("a"), result("a", "alpha"), reminder(9)]));
    let then = messages(
        json!([{"role": "user", "content": "Read"}, call("a"), result("a", "alpha"), reminder(9), call("b"), result("b", "beta"), reminder(5)]),
    );
    assert_eq!(first[3], json!({"role": "user", "content": "<system-reminder>\nTokens left: 9\n</system-reminder>"}));
    assert_eq!(then[..3], first[..3], "the prompt begins as it did, up to the reminder");
    assert_eq!(then[5]["content"], "<system-reminder>\nTokens left: 5\n</system-reminder>");
    assert_eq!(then.len(), 6);
    // One that holds for good stays.
    let mut stays = reminder(9);
    stays["clear_at"] = "never".into();
    let out = messages(json!([{"role": "user", "content": "Read"}, stays, {"role": "user", "content": "on"}]));
    assert!(out[0]["content"].as_str().unwrap().contains("Tokens left: 9"));
}

#[test]
fn tools_of_anthropics_own() {
    let mut body = asked(json!([{"role": "user", "content": "List files."}]));
    body["tools"] = json!([{"type": "bash_20250124", "name": "bash"}, {"type": "memory_20250818", "name": "memory"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10000},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768},
        {"type": "web_search_20250305", "name": "web_search"}, {"type": "mcp_toolset", "mcp_server_name": "git"},
        {"type": "browser_toolset_20260801"}, {"name": "own", "input_schema": {"type": "object"}}]);
    body["tool_choice"] = json!({"type": "tool", "name": "web_search"});
    body["mcp_servers"] = json!([{"type": "url", "url": "https://x.example", "name": "git"}]);
    let (chat, warnings) = heard(&body);
    let names: Vec<&str> =
        chat["tools"].as_array().unwrap().iter().map(|t| t["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bash", "memory", "str_replace_based_edit_tool", "computer", "own"]);
    let parameters = |at: usize| &chat["tools"][at]["function"]["parameters"];
    assert_eq!(parameters(0)["properties"]["command"]["type"], "string");
    assert_eq!(parameters(2)["required"], json!(["command", "path"]));
    assert!(parameters(2)["properties"]["command"]["enum"].as_array().unwrap().iter().all(|c| c != "undo_edit"));
    assert!(parameters(3)["properties"]["action"]["enum"].as_array().unwrap().iter().any(|a| a == "scroll"));
    assert!(chat["tools"][3]["function"]["description"].as_str().unwrap().contains("1024 × 768"));
    assert_eq!(chat["tool_choice"], "auto");
    for what in ["mcp_servers", "`web_search`", "`git`", "browser_toolset", "tool_choice"] {
        assert!(warnings.iter().any(|w| w.contains(what)), "{what}: {warnings:?}");
    }
    // A call of one of them that stands in the history is a call.
    let out = messages(
        json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "bash", "input": {"command": "ls"}}]}]),
    );
    assert_eq!(out[0]["tool_calls"][0]["function"]["arguments"], r#"{"command":"ls"}"#);
}

#[test]
fn tools_that_come_and_go() {
    let change = |kind: &str, tool: Value| json!({"type": kind, "tool": tool});
    let named = |name: &str| json!({"type": "tool_reference", "name": name});
    let defined = json!({"type": "tool_definition", "definition": {"name": "new", "input_schema": {"type": "object"}}});
    let mut body = asked(json!([
        {"role": "user", "content": "a"},
        {"role": "system", "content": [change("tool_removal", named("old")), change("tool_addition", defined), {"type": "text", "text": "Go on."}]},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": [change("tool_removal", named("kept")), change("tool_addition", named("kept"))]},
        {"role": "user", "content": "c"},
    ]));
    let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    body["tools"] = json!([tool("old"), tool("kept")]);
    let (chat, _) = heard(&body);
    let names: Vec<&str> =
        chat["tools"].as_array().unwrap().iter().map(|t| t["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["kept", "new"]);
    let text = chat["messages"][0]["content"].as_str().unwrap();
    assert!(
        text.contains("[the tool old is not available from here on]\n[the tool new is available from here on]\nGo on."),
        "{text}"
    );
    // All of them may go.
    body["tools"] = json!([tool("old")]);
    body["messages"] = json!([{"role": "user", "content": [change("tool_removal", named("old"))]}]);
    assert_eq!(heard(&body).0.get("tools"), None);
}
