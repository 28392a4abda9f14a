//! Histories with parts that a server cannot take: documents, pictures, sounds, blocks that a cloud's servers wrote. None is ever
//! refused for what stands in its history, before either kind of server. The block types are those of the Python packages
//! `anthropic` 2.14 (`types/beta/*_block_param.py`) and `openai` 3.57 (`types/chat/*_param.py`).

use serde_json::{Value, json};

use super::support::*;

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// Whether a content is what a server that takes text alone takes.
fn is_text(content: &Value) -> bool {
    match content {
        Value::String(_) | Value::Null => true,
        Value::Array(parts) => parts.iter().all(|part| part["type"] == "text" && part["text"].is_string()),
        _ => false,
    }
}

/// A server whose model takes text alone, and which refuses all else, as the real ones do.
fn blind(kind: Kind) -> Fake {
    let fake = Fake::start(kind, 16_384);
    fake.script(move |seen| match (kind, seen.path()) {
        (Kind::LlamaServer, "/props") => Play::Json(
            200,
            json!({"default_generation_settings": {"n_ctx": 16_384}, "total_slots": 1, "build_info": "b1-fake",
                "model_path": "/models/fake.gguf", "chat_template": "", "modalities": {"vision": false, "audio": false}}),
        ),
        (Kind::Ollama, "/api/show") => Play::Json(
            200,
            json!({"model_info": {"general.architecture": "llama", "llama.context_length": 131_072}, "parameters": "", "template": "",
                "details": {}, "capabilities": ["completion", "tools"]}),
        ),
        _ if !seen.is_main() => Play::Usual,
        _ => {
            let messages = seen.messages();
            let strict = kind == Kind::Ollama;
            let takes = |m: &Value| is_text(&m["content"]) && m.get("images").is_none() && !(strict && m["content"].is_array());
            match messages.iter().find(|m| !takes(m)) {
                None => Play::Usual,
                Some(refused) => Play::Json(500, json!({"error": {"message": format!("refused: {refused}"), "code": 500}})),
            }
        }
    });
    fake
}

/// A block of each type that a message of Anthropic's may hold.
fn blocks() -> Vec<Value> {
    let result = |kind: &str, content: Value| json!({"type": kind, "tool_use_id": "srvtoolu_1", "content": content});
    let document = |source: Value| json!({"type": "document", "title": "report.pdf", "source": source, "citations": {"enabled": true}});
    let image = |source: Value| json!({"type": "image", "source": source, "cache_control": {"type": "ephemeral"}});
    let mut all = vec![
        json!({"type": "text", "text": "plain", "citations": null}),
        json!({"type": "text", "text": ""}),
        image(json!({"type": "base64", "media_type": "image/webp", "data": PNG})),
        image(json!({"type": "url", "url": "https://x.example/a.png"})),
        image(json!({"type": "file", "file_id": "file_011"})),
        document(json!({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjE="})),
        document(json!({"type": "text", "media_type": "text/plain", "data": "words of the document"})),
        document(
            json!({"type": "content", "content": [{"type": "text", "text": "words"}, image(json!({"type": "url", "url": "https://x.example/b.png"}))]}),
        ),
        document(json!({"type": "content", "content": "words"})),
        document(json!({"type": "url", "url": "https://x.example/a.pdf"})),
        document(json!({"type": "file", "file_id": "file_012"})),
        json!({"type": "search_result", "source": "https://x.example", "title": "X", "content": [{"type": "text", "text": "said"}], "citations": {"enabled": true}}),
        json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"}),
        json!({"type": "redacted_thinking", "data": "zzz"}),
        json!({"type": "container_upload", "file_id": "file_013"}),
        json!({"type": "compaction", "content": "Earlier: Rust.", "encrypted_content": "x", "tool_changes": [
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "late", "input_schema": {"type": "object"}}}}]}),
        json!({"type": "compaction", "content": null}),
        json!({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": null}),
        json!({"type": "mcp_tool_use", "id": "m1", "server_name": "git", "name": "log", "input": {"n": 3}}),
        json!({"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": true, "content": "gone"}),
        json!({"type": "mcp_tool_listing", "mcp_server_name": "git", "tools": [{"name": "log", "input_schema": {}}]}),
        json!({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "Read"}}),
        json!({"type": "tool_removal", "tool": {"type": "mcp_toolset_reference", "server_name": "git"}}),
        json!({"type": "tool_reference", "tool_name": "Read"}),
        json!({"type": "browser_state", "tabs": [{"tab_id": "1", "title": "T", "url": "https://x.example", "active": true}]}),
        json!({"type": "of_next_year", "payload": {"x": [1, 2.50, null]}}),
        json!({"payload": "without a type"}),
        result("advisor_tool_result", json!({"type": "advisor_result", "text": "do it"})),
        result("advisor_tool_result", json!({"type": "advisor_redacted_result", "encrypted_content": "x"})),
        result("advisor_tool_result", json!({"type": "advisor_tool_result_error", "error_code": "overloaded"})),
        result(
            "web_search_tool_result",
            json!([{"type": "web_search_result", "title": "toml", "url": "https://crates.example/toml", "encrypted_content": "E", "page_age": null}]),
        ),
        result("web_search_tool_result", json!({"type": "web_search_tool_result_error", "error_code": "unavailable"})),
        result(
            "web_fetch_tool_result",
            json!({"type": "web_fetch_result", "url": "https://x.example", "content": document(json!({"type": "base64", "media_type": "application/pdf", "data": "JVBE"}))}),
        ),
        result(
            "web_fetch_tool_result",
            json!({"type": "web_fetch_tool_result_error", "error_code": "url_not_accessible"}),
        ),
        result(
            "code_execution_tool_result",
            json!({"type": "code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": []}),
        ),
        result(
            "code_execution_tool_result",
            json!({"type": "encrypted_code_execution_result", "encrypted_stdout": "x", "stderr": "", "return_code": 0, "content": []}),
        ),
        result(
            "bash_code_execution_tool_result",
            json!({"type": "bash_code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": [{"type": "bash_code_execution_output", "file_id": "f"}]}),
        ),
        result(
            "text_editor_code_execution_tool_result",
            json!({"type": "text_editor_code_execution_view_result", "content": "fn main", "file_type": "text", "num_lines": 1}),
        ),
        result(
            "text_editor_code_execution_tool_result",
            json!({"type": "text_editor_code_execution_str_replace_result", "lines": ["-a", "+b"], "old_start": 1}),
        ),
        result(
            "tool_search_tool_result",
            json!({"type": "tool_search_tool_search_result", "tool_references": [{"type": "tool_reference", "tool_name": "Read"}]}),
        ),
        result(
            "tool_search_tool_result",
            json!({"type": "tool_search_tool_result_error", "error_code": "unavailable", "error_message": "down"}),
        ),
    ];
    for name in [
        "advisor",
        "web_search",
        "web_fetch",
        "code_execution",
        "bash_code_execution",
        "text_editor_code_execution",
        "tool_search_tool_regex",
    ] {
        all.push(json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": name, "input": {"query": "q"}, "caller": {"type": "direct"}}));
    }
    all
}

/// Where a block may stand: each a history that ends with a plain question, but for the last.
fn places(block: &Value) -> Vec<(&'static str, Value)> {
    let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}}]});
    let result = |content: Value| json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": content}]});
    let (hi, on) = (json!({"role": "user", "content": "hi"}), json!({"role": "user", "content": "go on"}));
    let said = json!({"role": "assistant", "content": "so"});
    vec![
        ("user", json!([{"role": "user", "content": [block]}, said, on])),
        (
            "assistant",
            json!([hi, {"role": "assistant", "content": [{"type": "text", "text": "a"}, block, {"type": "text", "text": "b"}]}, on]),
        ),
        ("assistant alone", json!([hi, {"role": "assistant", "content": [block]}, on])),
        ("result", json!([hi, call, result(json!([{"type": "text", "text": "read"}, block])), said, on])),
        ("result alone", json!([hi, call, result(json!([block])), said, on])),
        ("system", json!([hi, said, on, {"role": "system", "content": [block]}])),
        (
            "beside a result",
            json!([hi, call, {"role": "user", "content": [result(json!("r"))["content"][0], block]}, said, on]),
        ),
        ("last", json!([hi, said, {"role": "user", "content": [{"type": "text", "text": "look"}, block]}])),
    ]
}

/// Blocks that say nothing to a model.
const SILENT: [&str; 5] = ["thinking", "redacted_thinking", "fallback", "mcp_tool_listing", "compaction"];

#[test]
fn no_block_in_a_history_of_anthropics_is_refused() {
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let fake = blind(kind);
        let proxy = TestProxy::before(&fake);
        for block in blocks() {
            for (place, messages) in places(&block) {
                let ask = |messages: &Value, stream: bool| {
                    let body = json!({"model": MODEL, "max_tokens": 32, "stream": stream, "messages": messages});
                    let answer = proxy.post("/v1/messages", &[], body.to_string().as_bytes());
                    assert_eq!(answer.status, 200, "{kind:?} {place} {block}: {}", answer.text());
                    (answer, fake.last().messages())
                };
                let (answer, first) = ask(&messages, false);
                let is_lost =
                    !["text", "search_result", "tool_reference", "browser_state", "tool_addition", "tool_removal"]
                        .iter()
                        .chain(&SILENT)
                        .any(|kind| block["type"] == *kind);
                let is_lost = is_lost
                    && !(block["type"] == "document"
                        && ["text", "content"].iter().any(|s| block["source"]["type"] == *s));
                let told = answer.header("x-windowsill-warning").is_some_and(|w| w.contains("in the record"));
                // A system text stands outside the conversation.
                if is_lost && place != "system" {
                    assert!(told, "{kind:?} {place} {block}: {first:?}");
                }
                // The same history, a turn later: the same words.
                let mut longer = messages.as_array().unwrap().clone();
                longer.push(json!({"role": "assistant", "content": "well"}));
                longer.push(json!({"role": "user", "content": "and?"}));
                let (_, then) = ask(&longer.into(), true);
                assert_eq!(then[..first.len()], first[..], "{kind:?} {place} {block}");
            }
        }
    }
}

#[test]
fn no_part_in_a_history_of_chat_completions_or_ollamas_is_refused() {
    let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url, "detail": "low"}});
    let data = format!("data:image/png;base64,{PNG}");
    let parts = [
        url(&data),
        url("https://x.example/a.png"),
        json!({"type": "image_url", "image_url": data}),
        json!({"type": "image_url"}),
        json!({"type": "input_image", "image_url": data}),
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}),
        json!({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
        json!({"type": "input_video", "input_video": {"data": "AAAA"}}),
        json!({"type": "video_url", "video_url": {"url": "https://x.example/a.mp4"}}),
        json!({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"}}),
        json!({"type": "file", "file": {"file_id": "file_1"}}),
        json!({"type": "input_file", "filename": "a.pdf", "file_data": "JVBE"}),
        json!({"type": "refusal", "refusal": "no"}),
        json!({"type": "input_text", "text": "in"}),
        json!({"type": "output_text", "text": "out"}),
        json!({"type": "text", "text": ""}),
        json!({"type": "tool_use", "id": "t", "name": "f", "input": {}}),
        json!({"type": "server_tool_use", "id": "t", "name": "web_search", "input": {"query": "q"}}),
        json!({"type": "thinking", "thinking": "hm"}),
        json!({"type": "hologram"}),
        json!("bare"),
    ];
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let fake = blind(kind);
        let proxy = TestProxy::before(&fake);
        for part in &parts {
            let call = json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
            let text = json!({"type": "text", "text": "see"});
            let (hi, on) = (json!({"role": "user", "content": "hi"}), json!({"role": "user", "content": "go on"}));
            for (place, messages) in [
                (
                    "user",
                    json!([{"role": "user", "content": [text, part]}, {"role": "assistant", "content": "so"}, on]),
                ),
                ("assistant", json!([hi, {"role": "assistant", "content": [text, part]}, on])),
                ("tool", json!([hi, call, {"role": "tool", "tool_call_id": "c1", "content": [text, part]}, on])),
                ("system", json!([{"role": "system", "content": [text, part]}, hi])),
                (
                    "last",
                    json!([hi, {"role": "assistant", "content": "so"}, {"role": "user", "content": [text, part]}]),
                ),
            ] {
                for path in ["/v1/chat/completions", "/api/chat"] {
                    let body = json!({"model": MODEL, "stream": false, "messages": messages});
                    let answer = proxy.post(path, &[], body.to_string().as_bytes());
                    assert_eq!(answer.status, 200, "{kind:?} {path} {place} {part}: {}", answer.text());
                }
            }
        }
        // Ollama's own pictures.
        let body = json!({"model": MODEL, "stream": false, "messages": [{"role": "user", "content": "look", "images": [PNG]},
            {"role": "assistant", "content": "so"}, {"role": "user", "content": "go on"}]});
        let answer = proxy.post("/api/chat", &[], body.to_string().as_bytes()).ok();
        assert!(answer.header("x-windowsill-warning").unwrap().starts_with("1 picture said as text"));
        let seen = fake.last().messages();
        assert_eq!(seen[0]["content"], "look\n[image, 70 bytes: this model reads no pictures; in the record]");
    }
}

/// A conversation with a picture, as chat completions have it.
fn pictured() -> Vec<Value> {
    let picture = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{PNG}")}});
    vec![
        json!({"role": "user", "content": [{"type": "text", "text": "Look"}, picture]}),
        json!({"role": "assistant", "content": "A square."}),
        json!({"role": "user", "content": "Thanks. Now list the files."}),
    ]
}

fn ask(proxy: &TestProxy, model: &str, messages: &[Value]) -> Answer {
    let body = json!({"model": model, "max_tokens": 16, "messages": messages});
    proxy.post("/v1/chat/completions", &[], body.to_string().as_bytes())
}

#[test]
fn a_picture_is_in_the_record_and_goes_out_whole_once_a_model_sees() {
    let (blind, seeing) = (blind(Kind::LlamaServer), Fake::start(Kind::Ollama, 8192));
    seeing.set(|s| s.model = "sees".into());
    let proxy = TestProxy::with(&[blind.url(), seeing.url()], "");
    let first = ask(&proxy, MODEL, &pictured()).ok();
    assert!(first.header("x-windowsill-warning").unwrap().contains("the originals are in the record"));
    assert_eq!(
        blind.last().messages()[0]["content"],
        "Look\n[image, 70 bytes: this model reads no pictures; in the record]"
    );
    let id = first.header("x-windowsill-conversation").unwrap().to_owned();
    let original = proxy.cli(&["recall", &format!("{id}:0")]);
    assert!(String::from_utf8_lossy(&original.stdout).contains(PNG), "{original:?}");
    // Another model: the same conversation, and the picture whole.
    let mut longer = pictured();
    longer.extend([
        json!({"role": "assistant", "content": "a.txt"}),
        json!({"role": "user", "content": "And the picture?"}),
    ]);
    let then = ask(&proxy, "sees", &longer).ok();
    assert_eq!(
        (then.header("x-windowsill-conversation"), then.header("x-windowsill-warning")),
        (Some(id.as_str()), None)
    );
    assert_eq!(seeing.last().messages()[0]["images"], json!([PNG]));
    // And back.
    let back = ask(&proxy, MODEL, &longer).ok();
    assert_eq!(back.header("x-windowsill-conversation"), Some(id.as_str()));
    assert_eq!(
        blind.last().messages()[0]["content"],
        "Look\n[image, 70 bytes: this model reads no pictures; in the record]"
    );
}

#[test]
fn a_server_that_says_nothing_of_itself_is_asked_once() {
    let fake = Fake::start(Kind::OpenAi, 8192);
    let refusal = json!({"error": {"message": "this model does not support image input", "type": "invalid_request_error", "code": 400}});
    fake.script(move |seen| match seen.is_main() && !seen.messages().iter().all(|m| is_text(&m["content"])) {
        true => Play::Json(400, refusal.clone()),
        false => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    let answer = ask(&proxy, MODEL, &pictured()).ok();
    assert!(answer.header("x-windowsill-warning").unwrap().starts_with("1 picture said as text"));
    assert_eq!(fake.count(), 2, "once as it came, once with a line");
    let line = "Look\n[image, 70 bytes: this model reads no pictures; in the record]";
    assert_eq!(fake.last().messages()[0]["content"], line);
    // Now it is known.
    ask(&proxy, MODEL, &pictured()).ok();
    assert_eq!((fake.count(), fake.last().messages()[0]["content"].as_str()), (3, Some(line)));
}

#[test]
fn a_prompt_that_is_too_long_is_still_mended_once_its_pictures_are_lines() {
    let fake = Fake::start(Kind::OpenAi, 2048);
    let refusal = json!({"error": {"message": "this model does not support image input", "type": "invalid_request_error", "code": 400}});
    fake.script(move |seen| match seen.is_main() && !seen.messages().iter().all(|m| is_text(&m["content"])) {
        true => Play::Json(400, refusal.clone()),
        false => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    let mut messages = pictured();
    for n in 0..8 {
        messages.push(json!({"role": "assistant", "content": prose(n, 2_000)}));
        messages.push(json!({"role": "user", "content": format!("And {n}?")}));
    }
    let answer = ask(&proxy, MODEL, &messages).ok();
    assert!(answer.action().contains("emergency"), "{}", answer.action());
    assert!(fake.last().messages().iter().all(|m| is_text(&m["content"])));
}

#[test]
fn a_broken_picture_in_the_history_does_not_end_the_session() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    fake.script(|seen| match seen.is_main() && seen.messages().iter().any(|m| m["content"].to_string().contains("iVBO")) {
        true => Play::Json(400, json!({"error": {"message": "Failed to load image or audio file", "type": "invalid_request_error", "code": 400}})),
        false => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    ask(&proxy, MODEL, &pictured()).ok();
    assert_eq!(fake.count(), 2);
    // Asked about now, it is refused in the server's own words, and the server is not taken to be blind.
    let (_, said) = ask(&proxy, MODEL, &pictured()[..1]).error();
    assert!(said.contains("Failed to load image"), "{said}");
    // Where pictures are not what it minds, its refusal stands, and is asked for no more than twice.
    fake.script(|seen| match seen.is_main() {
        true => Play::Json(
            400,
            json!({"error": {"message": "no such grammar", "type": "invalid_request_error", "code": 400}}),
        ),
        false => Play::Usual,
    });
    let before = fake.count();
    let (_, said) = ask(&proxy, MODEL, &pictured()).error();
    assert_eq!((said.as_str(), fake.count() - before), ("no such grammar", 2));
}

#[test]
fn two_replies_in_a_row_at_the_end_are_one_for_a_server_that_wants_it_so() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    fake.script(|seen| {
        let messages = seen.messages();
        let replies = messages.iter().rev().take_while(|m| m["role"] == "assistant").count();
        match seen.is_main() && replies > 1 {
            true => Play::Json(400, json!({"error": {"message": "Cannot have 2 or more assistant messages at the end of the list.", "type": "invalid_request_error", "code": 400}})),
            false => Play::Usual,
        }
    });
    let proxy = TestProxy::before(&fake);
    let said = |text: &str| json!({"role": "assistant", "content": text});
    ask(&proxy, MODEL, &[json!({"role": "user", "content": "hi"}), said("one"), said("two"), said("three")]).ok();
    assert_eq!(fake.last().messages()[1..], [said("one\n\ntwo\n\nthree")]);
}

#[test]
fn a_call_that_failed_is_told_to_the_model() {
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let fake = Fake::start(kind, 8192);
        let proxy = TestProxy::before(&fake);
        let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "deploy", "input": {"path": id}});
        let result = |id: &str, more: Value| {
            let mut result = json!({"type": "tool_result", "tool_use_id": id, "content": "release 41"});
            result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            result
        };
        let body = json!({"model": MODEL, "max_tokens": 64, "messages": [
            {"role": "user", "content": "Deploy to staging and to prod."},
            {"role": "assistant", "content": [call("a"), call("b")]},
            {"role": "user", "content": [result("a", json!({"is_error": true})), result("b", json!({}))]}]});
        proxy.post("/v1/messages", &[], body.to_string().as_bytes()).ok();
        let seen = fake.last().messages();
        assert_eq!((&seen[2]["content"], &seen[3]["content"]), (&json!("Error: release 41"), &json!("release 41")));
        // The same mark in dialects that have no such field, and what they have themselves.
        let called = json!({"type": "function_call", "call_id": "a", "name": "deploy", "arguments": "{}"});
        for mark in [json!({"is_error": true}), json!({"status": "failed"}), json!({"success": false})] {
            let mut output = json!({"type": "function_call_output", "call_id": "a", "output": "release 41"});
            output.as_object_mut().unwrap().extend(mark.as_object().unwrap().clone());
            let body = json!({"model": MODEL, "input": [{"role": "user", "content": "Deploy."}, called, output]});
            proxy.post("/v1/responses", &[], body.to_string().as_bytes()).ok();
            assert_eq!(fake.last().messages()[2]["content"], "Error: release 41", "{mark}");
        }
        for (content, told) in [
            ("release 41", "Error: release 41"),
            ("", "Error: the call failed and said nothing."),
            ("Error: no", "Error: no"),
        ] {
            let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "Deploy."},
                {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "deploy", "arguments": {}}}]},
                {"role": "tool", "tool_name": "deploy", "content": content, "is_error": true}]});
            proxy.post("/api/chat", &[], body.to_string().as_bytes()).ok();
            assert_eq!(fake.last().messages()[2]["content"], told);
        }
    }
}

#[test]
fn what_is_left_out_of_the_tools_is_told() {
    let fake = Fake::start(Kind::LlamaServer, 8192);
    let proxy = TestProxy::before(&fake);
    for stream in [false, true] {
        let body = json!({"model": MODEL, "max_tokens": 50, "stream": stream, "messages": [{"role": "user", "content": "List files."}],
            "tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "web_search_20260318", "name": "web_search"}]});
        let answer = proxy.post("/v1/messages", &[], body.to_string().as_bytes()).ok();
        assert!(
            answer
                .header("x-windowsill-warning")
                .unwrap()
                .contains("the tool `web_search` (web_search_20260318) is not offered")
        );
        assert_eq!(script::tools_of(&fake.last()), ["bash"]);
    }
}
