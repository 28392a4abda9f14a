//! What each kind of part becomes before each kind of server; and that a message stays the same message.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::conversation::Role;

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn read(message: &Value) -> Message {
    openai_chat::message(Bytes::from(message.to_string())).unwrap()
}

fn user(parts: Value) -> Message {
    read(&json!({"role": "user", "content": parts}))
}

fn forwarded(message: &Message) -> Value {
    serde_json::from_slice::<Value>(message.bytes()).unwrap()["content"].clone()
}

fn png() -> Value {
    json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{PNG}")}})
}

/// A server that sees, and takes nothing else.
fn sees() -> Takes {
    Takes { pictures: Some(true), ..Takes::TEXT }
}

#[test]
fn each_kind_of_part_before_a_server_that_takes_text_alone() {
    let text = |text: &str| json!({"type": "text", "text": text});
    for (part, line) in [
        (png(), "[image, 70 bytes: this model reads no pictures; in the record]"),
        (
            json!({"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}),
            "[image https://x.example/a.png: this model reads no pictures; in the record]",
        ),
        (
            json!({"type": "input_image", "image_url": format!("data:image/png;base64,{PNG}")}),
            "[image, 70 bytes: this model reads no pictures; in the record]",
        ),
        (
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}),
            "[image, 70 bytes: this model reads no pictures; in the record]",
        ),
        (json!({"type": "image_url"}), "[image: it is kept elsewhere, and cannot be read here; in the record]"),
        (
            json!({"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}}),
            "[sound, 12 bytes: this model hears nothing; in the record]",
        ),
        (
            json!({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjE="}}),
            "[document a.pdf, 8 bytes: this server reads no PDFs; in the record]",
        ),
        (
            json!({"type": "file", "file": {"file_id": "file_7"}}),
            "[document file_7: this server reads no such files; in the record]",
        ),
        // What is text is told as text.
        (
            json!({"type": "file", "file": {"filename": "a.md", "file_data": "data:text/markdown;base64,IyBIaQ=="}}),
            "a.md\n# Hi",
        ),
        (json!({"type": "refusal", "refusal": "no"}), "no"),
        (json!({"type": "input_text", "text": "in"}), "in"),
        (json!("bare"), "bare"),
        (
            json!({"type": "hologram", "x": 1}),
            "[a part of type hologram, 25 bytes: this server cannot read it; in the record]",
        ),
    ] {
        let mut message = user(json!([text("a"), part, text("z")]));
        let (raw, digest) = (message.raw.clone(), message.digest);
        tell(&mut message, &Takes::TEXT);
        let want = format!("a\n{line}\nz");
        assert_eq!(forwarded(&message), json!(want), "{part}");
        assert_eq!((message.text.as_str(), message.media.len()), (want.as_str(), 0), "{part}");
        // It is the same message, and its own bytes are those that it came with.
        assert_eq!((&message.raw, message.digest), (&raw, digest));
        // Said once more, it is the same.
        let once = message.bytes().clone();
        tell(&mut message, &Takes::TEXT);
        assert_eq!(*message.bytes(), once);
    }
}

#[test]
fn what_a_server_takes_or_may_take_goes_out_as_it_came() {
    let parts = json!([
        {"type": "text", "text": "see"}, png(), {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}}, {"type": "hologram"}, {"type": "refusal", "refusal": "no"}, "bare",
    ]);
    let mut message = user(parts.clone());
    tell(&mut message, &Takes::default());
    assert_eq!((message.repaired, message.media.len(), message.lines.len()), (None, 5, 0));
    // One that sees and fetches nothing keeps the picture that is here.
    let mut message = user(json!([png(), {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}]));
    tell(&mut message, &sees());
    let line = "[image https://x.example/a.png: this server fetches no pictures; in the record]";
    assert_eq!(forwarded(&message), json!([png(), {"type": "text", "text": line}]));
    assert_eq!((message.media.len(), message.media[0].pixels, message.lines.len()), (1, Some((1, 1)), 1));
    // Other spellings of a picture become the one that servers know.
    let mut message = user(json!([{"type": "input_image", "image_url": format!("data:image/png;base64,{PNG}")}]));
    tell(&mut message, &sees());
    assert_eq!(forwarded(&message), json!([png()]));
    // Plain messages are not looked at.
    let mut plain = user(json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]));
    tell(&mut plain, &Takes::TEXT);
    assert_eq!(plain.repaired, None);
}

#[test]
fn a_picture_comes_back_for_a_model_that_sees() {
    let raw = json!({"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "shot"}, png()]});
    let mut blind = read(&raw);
    tell(&mut blind, &Takes::TEXT);
    assert_eq!((blind.role, blind.call_id.as_deref()), (Role::Tool, Some("c")));
    // The record holds what came; another model starts from there.
    let mut seeing = openai_chat::message(blind.raw.clone()).unwrap();
    tell(&mut seeing, &sees());
    assert_eq!((seeing.digest, forwarded(&seeing)), (blind.digest, raw["content"].clone()));
    assert_eq!(bytes(&blind.raw, &sees()), None);
    assert_eq!(bytes(&blind.raw, &Takes::TEXT).as_ref(), Some(blind.bytes()));
}

#[test]
fn carried_blocks_are_text_on_every_server() {
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "s1", "content": [
        {"type": "web_search_result", "title": "toml", "url": "https://crates.example/toml", "encrypted_content": "Eqg", "page_age": null}]});
    let block = |block: Value| json!({"type": "block", "block": block});
    let parts = json!([
        {"type": "text", "text": "I look."},
        block(json!({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "rust toml crate"}})),
        block(found),
        {"type": "text", "text": "The toml crate."},
    ]);
    let message = read(&json!({"role": "assistant", "content": parts}));
    let want = "I look.\n[web_search: rust toml crate]\n[web_search result]\ntoml: https://crates.example/toml\nThe toml crate.";
    assert_eq!((forwarded(&message), message.text.as_str()), (json!(want), want));
    assert_eq!((message.lines.len(), message.media.len()), (2, 0));
    assert!(String::from_utf8_lossy(&message.raw).contains("Eqg"), "the record has all of it");
    let warned = warning([&message].into_iter()).unwrap();
    assert!(warned.starts_with("2 blocks of a cloud's server said as text"), "{warned}");
}

#[test]
fn blocks_in_words() {
    for (block, want) in [
        (
            json!({"type": "server_tool_use", "id": "s", "name": "text_editor_code_execution", "input": {"command": "view", "path": "a"}}),
            r#"[text_editor_code_execution: {"command":"view","path":"a"}]"#,
        ),
        (json!({"type": "mcp_tool_use", "id": "m", "server_name": "git", "name": "log", "input": {}}), "[git/log]"),
        (
            json!({"type": "mcp_tool_result", "tool_use_id": "m", "is_error": true, "content": [{"type": "text", "text": "gone"}]}),
            "[mcp result]\nError: gone",
        ),
        (
            json!({"type": "bash_code_execution_tool_result", "tool_use_id": "s", "content": {"type": "bash_code_execution_result",
                "stdout": "1\n", "stderr": "w", "return_code": 0, "content": [{"type": "bash_code_execution_output", "file_id": "file_1"}]}}),
            "[bash_code_execution result]\n1\n\nw\nreturn_code: 0\nfile_id: file_1",
        ),
        (
            json!({"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}}),
            "[web_search result]\nerror_code: unavailable",
        ),
        (
            json!({"type": "web_fetch_tool_result", "tool_use_id": "s", "content": {"type": "web_fetch_result", "url": "https://x.example", "retrieved_at": null,
                "content": {"type": "document", "title": "X", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}}}),
            "[web_fetch result]\nhttps://x.example\nX\nwords",
        ),
        (
            json!({"type": "tool_search_tool_result", "tool_use_id": "s", "content": {"type": "tool_search_tool_search_result",
                "tool_references": [{"type": "tool_reference", "tool_name": "a"}, {"type": "tool_reference", "tool_name": "b"}]}}),
            "[tool_search result]\na\nb",
        ),
        (
            json!({"type": "document", "title": "report.pdf", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE".repeat(40)}}),
            "[document report.pdf, 0.1 kB: this server reads no PDFs; in the record]",
        ),
        (
            json!({"type": "document", "source": {"type": "url", "url": "https://x.example/a.pdf"}}),
            "[document https://x.example/a.pdf: this server fetches no documents; in the record]",
        ),
        (
            json!({"type": "document", "title": "T", "context": "C", "source": {"type": "content", "content": [{"type": "text", "text": "words"},
                {"type": "image", "source": {"type": "file", "file_id": "file_2"}}]}}),
            "T\nC\nwords\n[image file_2: it is kept elsewhere, and cannot be read here; in the record]",
        ),
        (json!({"type": "compaction", "content": "Earlier: Rust."}), "Earlier: Rust."),
        (json!({"type": "compaction", "content": null}), ""),
        (
            json!({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "deploy"}}),
            "[the tool deploy is available from here on]",
        ),
        (json!({"type": "redacted_thinking", "data": "x"}), ""),
        (
            json!({"type": "next_year's", "x": 1}),
            "[a part of type next_years, 28 bytes: this server cannot read it; in the record]",
        ),
    ] {
        assert_eq!(blocks::told(&block.to_string()).1, want, "{block}");
    }
}

#[test]
fn that_a_call_failed_is_said_once() {
    for (text, want) in [
        ("release 41", "Error: release 41"),
        ("Error: release 41", "Error: release 41"),
        ("  ERROR 7", "  ERROR 7"),
        ("error", "error"),
        ("Errors were found", "Error: Errors were found"),
        ("<tool_use_error>no</tool_use_error>", "<tool_use_error>no</tool_use_error>"),
        ("", "Error: the call failed and said nothing."),
    ] {
        assert_eq!(blocks::failed(text.into(), true), want);
        assert_eq!(blocks::failed(text.into(), false), text);
    }
}
