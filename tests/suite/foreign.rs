//! Histories that began elsewhere, in the Responses API: nothing in one is a reason to refuse a request, before whichever server.

use serde_json::{Value, json};
use windowsill::store::Store;

use super::support::*;

const WINDOW: u32 = 32_768;

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn ask(proxy: &TestProxy, body: &Value) -> Answer {
    proxy.post("/v1/responses", &[], body.to_string().as_bytes())
}

fn with(fields: Value) -> Value {
    let mut body = json!({"model": MODEL, "store": false});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// The items of the output, as an SDK puts them together.
fn output(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    if !text.starts_with("event: ") {
        return answer.json()["output"].as_array().unwrap().clone();
    }
    let data = text.split("\n\n").filter_map(|event| event.split_once("\ndata: "));
    let events = data.map(|(_, data)| serde_json::from_str::<Value>(data).unwrap());
    events.filter(|event| event["type"] == "response.output_item.done").map(|event| event["item"].clone()).collect()
}

/// Has a server answer with calls, each a name and arguments.
fn calling(fake: &Fake, calls: &[(&str, &str)]) {
    let calls: Vec<Value> = calls
        .iter()
        .enumerate()
        .map(|(at, (name, arguments))| json!({"index": at, "id": format!("m{at}"), "type": "function", "function": {"name": name, "arguments": arguments}}))
        .collect();
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let key = if seen.json()["stream"] == true { "delta" } else { "message" };
        let said = json!({"role": "assistant", "content": null, "tool_calls": calls});
        let reply = json!({"id": "c", "object": "x", "created": 1, "model": MODEL,
            "choices": [{"index": 0, key: said, "finish_reason": "tool_calls"}]});
        if key == "message" {
            return Play::Json(200, reply);
        }
        let ends = chunk(b"data: [DONE]\n\n");
        Play::Pieces(vec![sse_head(), chunk(format!("data: {reply}\n\n").as_bytes()), ends, b"0\r\n\r\n".to_vec()])
    });
}

/// What Codex and the SDKs carry along, and what the server must read of it; nothing for what no model reads.
fn items() -> Vec<(Value, &'static str)> {
    let part = |part: Value| json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}, part]});
    vec![
        (part(json!({"type": "input_file", "file_id": "file-77"})), "file-77"),
        (
            part(json!({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"})),
            "a.pdf",
        ),
        (part(json!({"type": "input_image", "file_id": "file-77", "detail": "auto"})), "file-77"),
        (part(json!({"type": "hologram", "shape": "SPHERE"})), "SPHERE"),
        (
            json!({"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "QUERY"}}),
            "QUERY",
        ),
        (
            json!({"type": "file_search_call", "id": "fs", "status": "completed", "queries": ["QUERY"], "results": null}),
            "QUERY",
        ),
        (
            json!({"type": "code_interpreter_call", "id": "ci", "status": "completed", "container_id": "c", "code": "CODE", "outputs": null}),
            "CODE",
        ),
        (
            json!({"type": "image_generation_call", "id": "ig", "status": "completed", "revised_prompt": "FOX", "result": "A".repeat(5000)}),
            "FOX",
        ),
        (
            json!({"type": "mcp_list_tools", "id": "ml", "server_label": "wiki", "tools": [{"name": "LOOKUP", "input_schema": {}}]}),
            "LOOKUP",
        ),
        (
            json!({"type": "mcp_call", "id": "mc", "server_label": "wiki", "name": "l", "arguments": "{}", "output": "ANSWER"}),
            "ANSWER",
        ),
        (
            json!({"type": "mcp_approval_request", "id": "ma", "server_label": "wiki", "name": "LOOKUP", "arguments": "{}"}),
            "LOOKUP",
        ),
        (json!({"type": "mcp_approval_response", "approval_request_id": "ma", "approve": true}), "approve"),
        (json!({"type": "function_call", "name": "LOOKUP"}), "LOOKUP"),
        (json!({"type": "function_call_output", "call_id": "gone", "output": "LATE"}), "LATE"),
        (json!({"type": "custom_tool_call", "call_id": "x", "name": "PATCH", "input": "i"}), "PATCH"),
        (
            json!({"type": "local_shell_call", "id": "l", "call_id": "x", "status": "completed", "action": {"type": "exec", "command": ["WHOAMI"], "env": {}}}),
            "WHOAMI",
        ),
        (json!({"type": "local_shell_call_output", "id": "gone", "output": "ROOT"}), "ROOT"),
        (json!({"type": "shell_call", "call_id": "x", "action": {"commands": ["WHOAMI"]}}), "WHOAMI"),
        (
            json!({"type": "shell_call_output", "call_id": "x", "output": [{"stdout": "ROOT", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}),
            "ROOT",
        ),
        (
            json!({"type": "apply_patch_call", "call_id": "x", "operation": {"type": "delete_file", "path": "OLD"}}),
            "OLD",
        ),
        (
            json!({"type": "apply_patch_call_output", "call_id": "x", "status": "failed", "output": "NO FILE"}),
            "Error: NO FILE",
        ),
        (
            json!({"type": "computer_call", "call_id": "x", "pending_safety_checks": [], "action": {"type": "keypress", "keys": ["F12"]}}),
            "F12",
        ),
        (
            json!({"type": "computer_call_output", "call_id": "x", "output": {"type": "computer_screenshot", "file_id": "file-77"}}),
            "file-77",
        ),
        (
            json!({"type": "tool_search_call", "call_id": "x", "execution": "client", "arguments": {"query": "ISSUES"}}),
            "ISSUES",
        ),
        (
            json!({"type": "tool_search_output", "call_id": "x", "tools": [{"type": "function", "name": "LOOKUP"}]}),
            "LOOKUP",
        ),
        (json!({"type": "program", "id": "p", "call_id": "x", "code": "RUN()", "fingerprint": "f"}), "RUN()"),
        (json!({"type": "program_output", "id": "p", "call_id": "x", "result": "RAN", "status": "completed"}), "RAN"),
        (json!({"type": "hologram_call", "shape": "SPHERE"}), "SPHERE"),
        (json!({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAAA"}), ""),
        (json!({"type": "compaction", "encrypted_content": "gAAAA"}), ""),
        (json!({"type": "compaction_summary", "encrypted_content": "gAAAA"}), ""),
        (json!({"type": "compaction_trigger"}), ""),
        (json!({"type": "ghost_snapshot", "ghost_commit": {}}), ""),
        (json!({"type": "item_reference", "id": "msg_elsewhere"}), ""),
        (json!({"type": "additional_tools", "role": "developer", "tools": []}), ""),
        (json!({"type": "configuration_update", "reasoning": {"effort": "low"}}), ""),
    ]
}

/// Every item, in the history and as the last one, streamed and not, before both kinds of servers.
#[test]
fn no_item_of_a_history_ends_a_session() {
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let fake = Fake::start(kind, WINDOW);
        let proxy = TestProxy::before(&fake);
        for (nth, (item, says)) in items().into_iter().enumerate() {
            for (is_last, stream) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut input = vec![user(&format!("{kind:?} {nth} {is_last} {stream}")), item.clone()];
                input.extend((!is_last).then(|| user("and now?")));
                let answer = ask(&proxy, &with(json!({"input": input, "stream": stream})));
                assert_eq!(answer.status, 200, "{item}: {}", answer.text());
                assert!(!output(&answer).is_empty(), "{item}: {}", answer.text());
                let sent = fake.last().json()["messages"].to_string();
                assert!(sent.contains(says) && !sent.contains("gAAAA") && !sent.contains("AAAAAAAA"), "{item}: {sent}");
            }
        }
    }
}

#[test]
fn what_is_said_as_a_line_is_in_the_record_and_in_a_header() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let call = json!({"type": "mcp_call", "id": "mc", "server_label": "wiki", "name": "l", "arguments": "{}", "output": "x".repeat(3000) + " zebra crossing"});
    let items = json!([user("go"), call, {"type": "compaction", "encrypted_content": "opaque"}, user("on")]);
    let body = with(json!({"input": items, "tools": [{"type": "web_search"}]}));
    for _ in 0..2 {
        let answer = ask(&proxy, &body).ok();
        let warning = answer.header("x-windowsill-warning").unwrap();
        assert!(
            warning.contains("takes: mcp_call")
                && warning.contains("prompt: compaction")
                && warning.contains("run them: web_search"),
            "{warning}"
        );
        assert!(!fake.last().json().to_string().contains("zebra"), "the line is short");
    }
    let data = proxy.data();
    let _stopped = proxy.stop();
    let found = Store::open_readonly(&data).unwrap().search("zebra crossing", None, 9).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
}

/// What @ai-sdk/openai sends in the second step of a tool loop: references to what the reply before held.
#[test]
fn a_reference_to_an_item_of_ours_is_followed_also_after_a_restart() {
    for stream in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, WINDOW);
        let proxy = TestProxy::before(&fake);
        calling(&fake, &[("f", r#"{"a":1}"#)]);
        let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]);
        let first = json!({"model": MODEL, "input": [user("Hi")], "stream": stream, "tools": tools});
        let call = output(&ask(&proxy, &first).ok()).pop().unwrap();
        let again = |reference: Value| {
            let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "RESULT"});
            json!({"model": MODEL, "input": [user("Hi"), reference, output], "tools": tools})
        };
        let direct = ask(&proxy, &again(call.clone())).ok();
        let expect = fake.last().json()["messages"].clone();
        assert_eq!(
            (&expect[1]["tool_calls"][0]["function"]["name"], &expect[2]["role"]),
            (&json!("f"), &json!("tool"))
        );
        assert_eq!(direct.header("x-windowsill-warning"), None);
        let reference = json!({"type": "item_reference", "id": call["id"]});
        let followed = ask(&proxy, &again(reference.clone())).ok();
        assert_eq!((&fake.last().json()["messages"], followed.header("x-windowsill-warning")), (&expect, None));
        let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
        ask(&proxy, &again(reference)).ok();
        assert_eq!(fake.last().json()["messages"], expect);
        // One that nobody knows is left out, and the result is still read.
        let lost = ask(&proxy, &again(json!({"type": "item_reference", "id": "fc_elsewhere"}))).ok();
        assert!(lost.header("x-windowsill-warning").unwrap().contains("item_reference"));
        assert!(fake.last().json()["messages"].to_string().contains("RESULT"));
    }
}

/// Codex: tools in groups, tools found by a search, and the client's own.
#[test]
fn calls_go_back_to_the_tool_that_was_meant() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let tool =
        |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}});
    let group = |name: &str| json!({"type": "namespace", "name": name, "description": "", "tools": [tool("search")]});
    let found =
        json!({"type": "tool_search_output", "call_id": "t", "execution": "client", "tools": [group("mcp__late")]});
    let search =
        json!({"type": "tool_search_call", "call_id": "t", "execution": "client", "arguments": {"query": "x"}});
    let call = |group: &str, id: &str| json!({"type": "function_call", "call_id": id, "namespace": group, "name": "search", "arguments": "{}"});
    let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "none"});
    let input = [
        user("go"),
        search,
        found,
        call("mcp__issues", "a"),
        call("mcp__late", "b"),
        result("a"),
        result("b"),
        user("on"),
    ];
    let tools = json!([group("mcp__wiki"), group("mcp__issues"), tool("search"), {"type": "local_shell"},
        {"type": "tool_search", "execution": "client", "parameters": {"type": "object", "properties": {}}}]);
    ask(&proxy, &with(json!({"input": input, "tools": tools}))).ok();
    let sent = fake.last().json();
    let names: Vec<&str> =
        sent["tools"].as_array().unwrap().iter().map(|t| t["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["mcp__wiki__search", "mcp__issues__search", "search", "local_shell", "tool_search", "mcp__late__search"]
    );
    let calls: Vec<&str> = sent["messages"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|m| m["tool_calls"].as_array().into_iter().flatten())
        .map(|c| c["function"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(calls, ["tool_search", "mcp__issues__search", "mcp__late__search"]);
    let made = [
        ("mcp__wiki__search", "{}"),
        ("search", "{}"),
        ("mcp__late__search", "{}"),
        ("local_shell", r#"{"command":["ls"]}"#),
        ("tool_search", r#"{"q":1}"#),
    ];
    calling(&fake, &made);
    for stream in [false, true] {
        let items = output(&ask(&proxy, &with(json!({"input": input, "tools": tools, "stream": stream}))).ok());
        let said: Vec<(&str, Option<&str>, Option<&str>)> =
            items.iter().map(|i| (i["type"].as_str().unwrap(), i["namespace"].as_str(), i["name"].as_str())).collect();
        assert_eq!(
            said,
            [
                ("function_call", Some("mcp__wiki"), Some("search")),
                ("function_call", None, Some("search")),
                ("function_call", Some("mcp__late"), Some("search")),
                ("local_shell_call", None, None),
                ("tool_search_call", None, None)
            ]
        );
        assert_eq!((&items[3]["action"]["command"], &items[4]["arguments"]), (&json!(["ls"]), &json!({"q": 1})));
    }
}

/// A value of another type is the client's mistake in every dialect, and no failure that a client tries again.
#[test]
fn a_value_of_another_type_is_a_400_before_an_ollama() {
    let fake = Fake::start(Kind::Ollama, WINDOW);
    fake.script(|seen| {
        let option = seen.json()["options"]
            .as_object()
            .and_then(|all| all.iter().find(|(_, value)| value.is_string()).map(|(key, _)| key.clone()));
        match option {
            Some(key) => Play::Json(500, json!({"error": format!("option \"{key}\" must be of type float32")})),
            None => Play::Usual,
        }
    });
    let proxy = TestProxy::before(&fake);
    let messages = json!([user("Hi")]);
    for stream in [false, true] {
        for (path, body) in [
            ("/v1/chat/completions", json!({"temperature": "hot", "messages": messages})),
            ("/v1/responses", json!({"temperature": "hot", "input": "Hi"})),
            ("/v1/responses", json!({"max_output_tokens": "many", "input": "Hi"})),
            ("/v1/messages", json!({"temperature": "hot", "max_tokens": 5, "messages": messages})),
            ("/api/chat", json!({"options": {"temperature": "hot"}, "messages": messages})),
            ("/api/chat", json!({"options": {"num_keep": "some"}, "messages": messages})),
            ("/api/generate", json!({"options": {"num_keep": "some"}, "prompt": "Hi"})),
        ] {
            let mut body = body;
            body["model"] = MODEL.into();
            body["stream"] = stream.into();
            let answer = proxy.post(path, &[], body.to_string().as_bytes());
            assert_eq!(answer.status, 400, "{path} {body}: {}", answer.text());
            let error = &answer.json()["error"];
            let kind = error["type"].as_str();
            assert!(
                path.starts_with("/api") && error.is_string() || kind == Some("invalid_request_error"),
                "{path}: {error}"
            );
        }
    }
}

/// Names over 64 characters are shortened, no two to one, and a call goes back under the name that the client gave.
#[test]
fn long_names_are_shortened_and_come_back() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let names = ["a", "b"].map(|end| format!("mcp__{}__{end}", "x".repeat(80)));
    let tools: Vec<Value> =
        names.iter().map(|name| json!({"type": "function", "name": name, "parameters": {"type": "object"}})).collect();
    let call = json!({"type": "function_call", "call_id": "c", "name": names[1], "arguments": "{}"});
    let result = json!({"type": "function_call_output", "call_id": "c", "output": "none"});
    let asked = with(json!({"input": [user("go"), call, result, user("on")], "tools": tools}));
    ask(&proxy, &asked).ok();
    let sent = fake.last().json();
    let short = |at: usize| sent["tools"][at]["function"]["name"].as_str().unwrap().to_owned();
    assert!(short(0) != short(1) && short(0).len() == 64 && short(1).len() == 64, "{}", sent["tools"]);
    assert_eq!(sent["messages"][1]["tool_calls"][0]["function"]["name"], short(1));
    calling(&fake, &[(short(1).as_str(), "{}")]);
    for stream in [false, true] {
        let mut asked = asked.clone();
        asked["stream"] = stream.into();
        let items = output(&ask(&proxy, &asked).ok());
        assert_eq!(items[0]["name"], names[1], "streamed {stream}");
    }
}
