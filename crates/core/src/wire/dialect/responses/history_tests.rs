//! Histories of clouds and of other clients: nothing in one is refused, what it was is said, and calls find their tools.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{Heard, Unsaid};
use super::listener::{finish, head, part, stream, told, types};
use super::tests::collect;
use super::{Items, request};

fn heard(body: &Value, known: &Items) -> Heard {
    request(body.to_string().as_bytes(), known).unwrap_or_else(|error| panic!("{error}\n{body}"))
}

fn chat(heard: &Heard) -> Value {
    serde_json::from_slice(&heard.chat).unwrap()
}

fn messages(input: Value) -> (Vec<Value>, Unsaid) {
    let heard = heard(&json!({"input": input}), &Items::new());
    (chat(&heard)["messages"].as_array().unwrap().clone(), heard.unsaid)
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// Items of every type that OpenAI's SDK 3.57 and Codex have: what must be read of each, and whether the client is warned.
pub(super) fn kinds() -> Vec<(Value, &'static str, bool)> {
    let env = json!({});
    vec![
        (
            json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "HELLO"}]}),
            "HELLO",
            false,
        ),
        (json!({"role": "assistant", "content": "HELLO"}), "HELLO", false),
        (
            json!({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "phase": "commentary",
            "content": [{"type": "output_text", "text": "HELLO", "logprobs": [],
                "annotations": [{"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}]}]}),
            "HELLO",
            false,
        ),
        (
            json!({"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "NEVER"}]}),
            "NEVER",
            false,
        ),
        (json!({"type": "message", "role": "critic", "content": "HELLO"}), "HELLO", true),
        (
            json!({"type": "message", "role": "user", "content": [{"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}]}),
            "[file of 24 bytes a.pdf",
            true,
        ),
        (
            json!({"type": "message", "role": "user", "content": [{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="}]}),
            "[file a.txt]\nhello",
            true,
        ),
        (
            json!({"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}),
            "file-1",
            true,
        ),
        (
            json!({"type": "message", "role": "user", "content": [{"type": "input_file", "file_url": "https://x/y.pdf"}]}),
            "https://x/y.pdf",
            true,
        ),
        (
            json!({"type": "message", "role": "user", "content": [{"type": "input_image", "file_id": "file-1", "detail": "auto"}]}),
            "[image, kept elsewhere as file-1",
            true,
        ),
        (json!({"type": "message", "role": "user", "content": [{"type": "input_audio"}]}), "[audio: ", true),
        (
            json!({"type": "message", "role": "user", "content": [{"type": "hologram", "shape": "SPHERE"}]}),
            "[hologram: {\"shape\":\"SPHERE\"}]",
            true,
        ),
        (
            json!({"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["QUERY"],
            "results": [{"file_id": "f", "filename": "a.md", "score": 0.5, "text": "FOUND"}]}),
            "FOUND",
            true,
        ),
        (
            json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "QUERY"}}),
            "QUERY",
            true,
        ),
        (
            json!({"type": "code_interpreter_call", "id": "ci_1", "status": "failed", "container_id": "c", "code": "print(1)",
            "outputs": [{"type": "logs", "logs": "PRINTED"}]}),
            "[code_interpreter_call failed: ",
            true,
        ),
        (
            json!({"type": "image_generation_call", "id": "ig_1", "status": "completed", "revised_prompt": "A FOX", "result": "A".repeat(4000)}),
            "A FOX",
            true,
        ),
        (
            json!({"type": "mcp_list_tools", "id": "ml_1", "server_label": "wiki", "tools": [{"name": "LOOKUP", "input_schema": {}}]}),
            "LOOKUP",
            true,
        ),
        (
            json!({"type": "mcp_call", "id": "mc_1", "server_label": "wiki", "name": "lookup", "arguments": "{}", "output": "ANSWER"}),
            "ANSWER",
            true,
        ),
        (
            json!({"type": "mcp_approval_request", "id": "ma_1", "server_label": "wiki", "name": "LOOKUP", "arguments": "{}"}),
            "LOOKUP",
            true,
        ),
        (
            json!({"type": "mcp_approval_response", "approval_request_id": "ma_1", "approve": false, "reason": "TOO RISKY"}),
            "TOO RISKY",
            true,
        ),
        (
            json!({"type": "function_call", "call_id": "x", "name": "LOOKUP", "arguments": "{\"q\": 1}"}),
            "LOOKUP",
            false,
        ),
        (
            json!({"type": "function_call", "id": "fc_1", "arguments": {"q": 12345678901234567890_u64}}),
            "12345678901234567890",
            false,
        ),
        (
            json!({"type": "custom_tool_call", "call_id": "x", "name": "PATCH", "input": "*** Begin"}),
            "*** Begin",
            false,
        ),
        (
            json!({"type": "local_shell_call", "id": "lsh_1", "call_id": "x", "status": "completed", "action": {"type": "exec", "command": ["WHOAMI"], "env": env}}),
            "WHOAMI",
            false,
        ),
        (
            json!({"type": "shell_call", "call_id": "x", "action": {"commands": ["WHOAMI"], "timeout_ms": null}}),
            "WHOAMI",
            false,
        ),
        (
            json!({"type": "apply_patch_call", "call_id": "x", "status": "completed", "operation": {"type": "delete_file", "path": "OLD.md"}}),
            "OLD.md",
            false,
        ),
        (
            json!({"type": "computer_call", "id": "cu_1", "call_id": "x", "status": "completed", "pending_safety_checks": [], "action": {"type": "click", "x": 77, "y": 1, "button": "left"}}),
            "77",
            false,
        ),
        (
            json!({"type": "tool_search_call", "call_id": "x", "execution": "client", "arguments": {"query": "ISSUES"}}),
            "ISSUES",
            false,
        ),
        (
            json!({"type": "tool_search_call", "id": "ts_1", "execution": "server", "arguments": {"query": "ISSUES"}}),
            "ISSUES",
            true,
        ),
        (
            json!({"type": "tool_search_output", "execution": "server", "tools": [{"type": "function", "name": "LOOKUP", "parameters": {}}]}),
            "LOOKUP",
            false,
        ),
        (json!({"type": "function_call_output", "call_id": "gone", "output": "LATE"}), "LATE", false),
        (json!({"type": "function_call_output", "output": [{"type": "input_text", "text": "LATE"}]}), "LATE", false),
        (json!({"type": "program", "id": "p", "call_id": "x", "code": "await RUN()", "fingerprint": "f"}), "RUN", true),
        (
            json!({"type": "program_output", "id": "p", "call_id": "x", "result": "RAN", "status": "completed"}),
            "RAN",
            true,
        ),
        (json!({"type": "compaction", "encrypted_content": "windowsill:SUMMARY"}), "SUMMARY", false),
        (
            json!({"type": "hologram_call", "id": "h", "shape": "SPHERE"}),
            "[hologram_call: {\"shape\":\"SPHERE\"}]",
            true,
        ),
        (json!("HELLO"), "HELLO", false),
        // What no model reads.
        (json!({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAAA"}), "", false),
        (json!({"type": "additional_tools", "role": "developer", "tools": []}), "", false),
        (json!({"type": "configuration_update", "reasoning": {"effort": "low"}}), "", false),
        (json!({"type": "compaction", "id": "cmp_1", "encrypted_content": "opaque"}), "", true),
        (json!({"type": "compaction_summary", "encrypted_content": "opaque"}), "", true),
        (json!({"type": "compaction_trigger"}), "", false),
        (json!({"type": "ghost_snapshot", "ghost_commit": {"id": "abc"}}), "", true),
        (json!({"type": "item_reference", "id": "msg_elsewhere"}), "", true),
        (json!({"id": "msg_elsewhere"}), "", true),
        (json!(7), "", true),
    ]
}

#[test]
fn every_kind_of_item_is_taken_and_says_what_it_was() {
    for (item, says, warned) in kinds() {
        let history = json!([user("BEFORE"), item, user("AFTER")]);
        for input in [history, json!([user("BEFORE"), item])] {
            let (got, unsaid) = messages(input);
            let text = Value::from(got.clone()).to_string();
            let quoted = json!(says).to_string();
            // Arguments are JSON in a string, and spelled so twice.
            assert!(says.is_empty() || text.contains(quoted.trim_matches('"')), "{item}: {text}");
            assert!(
                !says.is_empty() || got.iter().all(|m| ["BEFORE", "AFTER"].contains(&m["content"].as_str().unwrap())),
                "{item}: {text}"
            );
            assert_eq!(!unsaid.warnings.is_empty(), warned, "{item}: {unsaid:?}");
            assert!(
                unsaid.warnings.iter().all(|w| w.is_ascii() && !w.contains("SPHERE") && !w.contains('\n')),
                "{unsaid:?}"
            );
            let kept = item.is_object()
                && warned
                && !text.contains("elsewhere\"")
                && item.get("id") != Some(&json!("msg_elsewhere"));
            assert_eq!(unsaid.originals.len(), usize::from(kept), "{item}: {unsaid:?}");
            assert!(!text.contains("AAAAAAAA") && !text.contains("opaque"), "{text}");
        }
    }
}

#[test]
fn the_client_is_told_what_was_not_said_in_few_words() {
    let search = json!({"type": "web_search_call", "id": "w"});
    let odd = |n: usize| json!({"type": format!("odd {n}\r\nx-evil: 1"), "v": n});
    let items: Vec<Value> = [search.clone(), search, user("x")].into_iter().chain((0..20).map(odd)).collect();
    let body = json!({"input": items, "tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}, {"type": "web_search"}]});
    let unsaid = heard(&body, &Items::new()).unsaid;
    assert_eq!(unsaid.warnings.len(), 2, "{unsaid:?}");
    assert!(unsaid.warnings[0].contains("odd0x-evil1") && unsaid.warnings[0].contains("other kinds"), "{unsaid:?}");
    assert!(unsaid.warnings[0].len() < 600);
    assert!(unsaid.warnings[1].ends_with(": mcp, web_search (2)"), "{unsaid:?}");
    assert_eq!(unsaid.originals.len(), 22);
}

#[test]
fn results_find_their_calls_and_say_that_they_failed() {
    let turn = |call: Value, output: Value| messages(json!([user("go"), call, output, user("on")])).0;
    let function = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let cases = [
        (
            function("a"),
            json!({"type": "function_call_output", "call_id": "a", "output": "no", "status": "incomplete"}),
            "Error: no",
        ),
        (
            function("a"),
            json!({"type": "function_call_output", "call_id": "a", "output": {"content": "no", "success": false}}),
            "Error: no",
        ),
        (function("a"), json!({"type": "function_call_output", "output": "fine"}), "fine"),
        (function("a"), json!({"type": "function_call_output", "call_id": "a"}), ""),
        (function("a"), json!({"type": "function_call_output", "call_id": "a", "output": 5}), "5"),
        (
            json!({"type": "function_call", "name": "f"}),
            json!({"type": "function_call_output", "output": "fine"}),
            "fine",
        ),
        (
            json!({"type": "local_shell_call", "id": "lsh", "call_id": "a", "action": {"command": ["ls"]}}),
            json!({"type": "local_shell_call_output", "id": "lsh", "output": "README.md"}),
            "README.md",
        ),
        (
            json!({"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}}),
            json!({"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "x\n", "stderr": "bad", "outcome": {"type": "exit", "exit_code": 2}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}]}),
            "x\n\nstderr: bad\n[exit code 2]\n[it took too long and was stopped]",
        ),
        (
            json!({"type": "apply_patch_call", "call_id": "a", "operation": {"type": "delete_file", "path": "p"}}),
            json!({"type": "apply_patch_call_output", "call_id": "a", "status": "failed", "output": "no file"}),
            "Error: no file",
        ),
        (
            json!({"type": "apply_patch_call", "call_id": "a", "operation": {"type": "delete_file", "path": "p"}}),
            json!({"type": "apply_patch_call_output", "call_id": "a", "status": "failed"}),
            "Error: it did not succeed",
        ),
        (
            json!({"type": "computer_call", "call_id": "a", "actions": [{"type": "wait"}]}),
            json!({"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot", "file_id": "file-9"}}),
            "[image, kept elsewhere as file-9: it cannot be read here]",
        ),
    ];
    for (call, output, expect) in cases {
        let got = turn(call, output.clone());
        assert_eq!(got.len(), 4, "{got:?}");
        assert_eq!((&got[2]["role"], &got[2]["content"]), (&json!("tool"), &json!(expect)), "{output}");
        assert_eq!(got[2]["tool_call_id"], got[1]["tool_calls"][0]["id"]);
        assert!(
            serde_json::from_str::<Value>(got[1]["tool_calls"][0]["function"]["arguments"].as_str().unwrap())
                .unwrap()
                .is_object()
        );
    }
    let shot = json!({"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"}});
    let got = turn(json!({"type": "computer_call", "call_id": "a", "actions": [{"type": "wait"}]}), shot);
    assert_eq!(got[3]["content"][0]["image_url"]["url"], "data:image/png;base64,AA");
    // A second result after another message is nobody's any more: servers and the repair of histories know no such thing.
    let twice = json!({"type": "function_call_output", "call_id": "a", "output": "x"});
    let got = messages(json!([user("go"), function("a"), twice, user("on"), twice])).0;
    assert_eq!((got.len(), &got[4]["role"]), (5, &json!("user")));
    let got = messages(json!([user("go"), function("a"), user("on"), twice])).0;
    assert_eq!(got[3]["role"], "tool");
}

#[test]
fn lines_stand_in_the_assistants_turn() {
    let search = json!({"type": "web_search_call", "action": {"query": "q"}});
    let line = "[web_search_call: {\"action\":{\"query\":\"q\"}}]";
    let call = json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "a", "output": "ok"});
    let said = json!({"role": "assistant", "content": "Text."});
    let contents = |items: &[Value]| -> Vec<(String, String)> {
        let all = [&[user("go")], items].concat();
        let text = |m: &Value, key: &str| m[key].as_str().unwrap_or_default().to_owned();
        messages(all.into()).0[1..].iter().map(|m| (text(m, "role"), text(m, "content"))).collect()
    };
    let pair = |role: &str, content: &str| (role.to_owned(), content.to_owned());
    let both = format!("{line}\nText.");
    assert_eq!(contents(&[search.clone(), said.clone(), user("on")]), [pair("assistant", &both), pair("user", "on")]);
    let after = format!("Text.\n\n{line}");
    assert_eq!(contents(&[said.clone(), search.clone(), user("on")]), [pair("assistant", &after), pair("user", "on")]);
    // Neither before a result, nor as the assistant's last word, which a model would go on with.
    let parted = contents(&[call.clone(), search.clone(), output.clone(), said.clone()]);
    assert_eq!(parted, [pair("assistant", ""), pair("tool", "ok"), pair("assistant", &both)]);
    assert_eq!(contents(&[search.clone(), call.clone(), output.clone()])[0], pair("assistant", line));
    let last = format!("<system-reminder>\n{line}\n</system-reminder>");
    assert_eq!(contents(&[call, output, search.clone()])[2], pair("user", &last));
    assert_eq!(contents(&[said, search])[1], pair("user", &last));
}

#[test]
fn a_reference_is_followed_to_the_item_itself() {
    let item = json!({"id": "msg_x", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "I will look.", "annotations": []}]});
    let call = json!({"id": "fc_x_0", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"});
    let known: Items = [
        ("msg_x".to_owned(), item.to_string()),
        ("fc_x_0".to_owned(), call.to_string()),
        ("loop".to_owned(), json!({"type": "item_reference", "id": "loop"}).to_string()),
    ]
    .into();
    let output = json!({"type": "function_call_output", "call_id": "c1", "output": "x"});
    let input = json!([user("Hi"), {"type": "item_reference", "id": "msg_x"}, {"id": "fc_x_0"}, output]);
    let told = heard(&json!({"input": input}), &known);
    assert_eq!(told.unsaid, Unsaid::default());
    assert_eq!(
        chat(&told)["messages"],
        chat(&heard(&json!({"input": [user("Hi"), item, call, output]}), &known))["messages"]
    );
    let blind = heard(&json!({"input": input}), &Items::new());
    assert_eq!(blind.unsaid.references, ["msg_x", "fc_x_0"]);
    assert!(chat(&blind)["messages"][1]["content"].as_str().unwrap().contains("not in this conversation"));
    heard(&json!({"input": [user("Hi"), {"type": "item_reference", "id": "loop"}]}), &known);
}

#[test]
fn tools_of_the_clients_own_are_functions_and_their_calls_come_back_as_items() {
    let body = json!({"input": "x", "tools": [{"type": "local_shell"}, {"type": "shell", "environment": {"type": "local"}},
        {"type": "apply_patch"}, {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
        {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
        {"type": "custom", "name": "free"}, {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}},
        {"type": "tool_search"}, {"type": "shell", "environment": {"type": "container_auto"}}]});
    let heard = heard(&body, &Items::new());
    let tools = chat(&heard)["tools"].as_array().unwrap().clone();
    let names: Vec<&str> = tools.iter().map(|t| t["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(
        (names.len(), names[0], &names[2..6], names[6]),
        (7, "local_shell", &["apply_patch", "computer", "tool_search", "free"][..], "shell")
    );
    assert!(names[1].starts_with("shell_"), "{names:?}");
    assert!(tools.iter().all(|t| t["function"]["parameters"]["type"] == "object"));
    assert_eq!(heard.unsaid.warnings.len(), 1);
    let calls = [
        (
            "local_shell",
            r#"{"command":["ls","-l"],"timeout_ms":5,"odd":1}"#,
            json!({"type": "local_shell_call", "action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5}}),
        ),
        (
            "local_shell",
            r#"{"action":{"command":"ls | wc"}}"#,
            json!({"type": "local_shell_call", "action": {"type": "exec", "command": ["bash", "-lc", "ls | wc"], "env": {}}}),
        ),
        (
            names[1],
            r#"{"commands":["ls","id"]}"#,
            json!({"type": "shell_call", "action": {"commands": ["ls", "id"], "max_output_length": null, "timeout_ms": null}}),
        ),
        // Half a command is not run.
        (
            names[1],
            r#"{"commands":["rm -rf /tmp/x"#,
            json!({"type": "shell_call", "action": {"commands": [], "max_output_length": null, "timeout_ms": null}}),
        ),
        (
            "apply_patch",
            r#"{"operation":{"type":"create_file","path":"a","diff":"+x"}}"#,
            json!({"type": "apply_patch_call", "operation": {"type": "create_file", "path": "a", "diff": "+x"}}),
        ),
        (
            "apply_patch",
            r#"{"type":"delete_file","path":"a"}"#,
            json!({"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}}),
        ),
        (
            "computer",
            r#"{"action":{"type":"wait"}}"#,
            json!({"type": "computer_call", "action": {"type": "wait"}, "pending_safety_checks": []}),
        ),
        (
            "tool_search",
            r#"{"query":"x"}"#,
            json!({"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}}),
        ),
        ("free", r#"{"input":"t"}"#, json!({"type": "custom_tool_call", "name": "free", "input": "t"})),
        ("shell", r#"{"a": 1}"#, json!({"type": "function_call", "name": "shell", "arguments": "{\"a\": 1}"})),
    ];
    for (name, arguments, expect) in calls {
        let chunks = [part(0, Some("c"), Some(name), ""), part(0, None, None, arguments), finish("tool_calls")];
        let events = stream(&mut *super::listener::encoder(body.clone()), &chunks);
        let mut item = told(&events)["output"][0].clone();
        let id = item["id"].as_str().unwrap().to_owned();
        for (key, value) in [("call_id", json!("c")), ("status", json!("completed")), ("id", json!(id))] {
            assert_eq!(item.as_object_mut().unwrap().shift_remove(key), Some(value), "{item}");
        }
        assert_eq!(item, expect);
        assert!(types(&events).contains(&"output_item.added") && types(&events).contains(&"output_item.done"));
        // It comes back as the call that the model made.
        let whole = super::listener::encoder(body.clone()).whole(
            &head(),
            &chunks.iter().fold(Default::default(), |mut all: super::super::said::Said, one| {
                one.calls.iter().for_each(|part| match all.calls.first_mut() {
                    Some(call) => call.arguments.push_str(&part.arguments),
                    None => all.calls.push(part.clone()),
                });
                all.finish = one.finish.clone().or(all.finish);
                all
            }),
        );
        let mut again = body.clone();
        again["input"] = json!([user("x"), whole["output"][0]]);
        let back = chat(&self::heard(&again, &Items::new()))["messages"][1]["tool_calls"][0].clone();
        assert_eq!(back["function"]["name"], name);
        if serde_json::from_str::<Value>(arguments)
            .is_ok_and(|a| a.get("action").or(a.get("operation")).is_none() && a.get("odd").is_none())
        {
            assert_eq!(back["function"]["arguments"], arguments);
        }
    }
    for (choice, name) in [("apply_patch", "apply_patch"), ("shell", names[1]), ("computer_use_preview", "computer")] {
        let mut forced = body.clone();
        forced["tool_choice"] = json!({"type": choice});
        assert_eq!(chat(&self::heard(&forced, &Items::new()))["tool_choice"]["function"]["name"], name);
    }
}

#[test]
fn namespaces_with_one_tool_name_keep_their_calls_apart() {
    let tool =
        |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}});
    let group =
        |name: &str, tools: Value| json!({"type": "namespace", "name": name, "description": "", "tools": tools});
    let long = format!("mcp__{}", "x".repeat(70));
    let other = format!("mcp__{}", "x".repeat(71));
    let call = |group: &str, id: &str| json!({"type": "function_call", "call_id": id, "namespace": group, "name": "search", "arguments": "{}"});
    let groups = ["mcp__wiki", "mcp__issues", "a.b", "a_b", &long, &other];
    let mut tools: Vec<Value> =
        groups.iter().map(|name| group(name, json!([tool("search"), tool(&format!("own_{}", name.len()))]))).collect();
    tools.push(tool("search"));
    tools.push(group("mcp__wiki", json!([tool("search")])));
    let found = json!({"type": "tool_search_output", "call_id": "t", "tools": [group("mcp__late", json!([tool("search")])), group("mcp__wiki", json!([tool("search")]))]});
    let mut input = vec![
        user("x"),
        json!({"type": "tool_search_call", "call_id": "t", "execution": "client", "arguments": {}}),
        found.clone(),
        found,
    ];
    let all: Vec<&str> = groups.iter().copied().chain(["mcp__late"]).collect();
    input.extend(all.iter().enumerate().map(|(at, name)| call(name, &format!("c{at}"))));
    let body = json!({"input": input, "tools": tools});
    let heard = heard(&body, &Items::new());
    let chat = chat(&heard);
    let names: Vec<&str> =
        chat["tools"].as_array().unwrap().iter().map(|t| t["function"]["name"].as_str().unwrap()).collect();
    let distinct: std::collections::HashSet<&&str> = names.iter().collect();
    assert_eq!((names.len(), distinct.len()), (14, 14), "{names:?}");
    assert!(
        names.iter().all(|n| n.len() <= 64 && n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')),
        "{names:?}"
    );
    assert!(
        names.contains(&"search") && names.contains(&"mcp__wiki__search") && names.contains(&"mcp__issues__search"),
        "{names:?}"
    );
    // Calls of the history have the names of their tools, and calls of the model come back with their groups.
    let last = chat["messages"].as_array().unwrap().last().unwrap()["tool_calls"].as_array().unwrap().clone();
    let mut encoder = super::listener::encoder(body);
    let mut chunks = Vec::new();
    for (at, call) in last.iter().enumerate() {
        let name = call["function"]["name"].as_str().unwrap();
        assert!(names.contains(&name) && name != "search", "{name}");
        chunks.push(part(at as u64, Some(&format!("m{at}")), Some(name), "{}"));
    }
    chunks.push(part(99, Some("plain"), Some("search"), "{}"));
    let output = told(&stream(&mut *encoder, &chunks))["output"].clone();
    let said: Vec<(Option<&str>, &str)> =
        output.as_array().unwrap().iter().map(|i| (i["namespace"].as_str(), i["name"].as_str().unwrap())).collect();
    let expect: Vec<(Option<&str>, &str)> =
        all.iter().map(|name| (Some(*name), "search")).chain([(None, "search")]).collect();
    assert_eq!(said, expect);
}

#[test]
fn an_update_of_the_settings_holds() {
    let update = json!({"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}});
    let odd = json!({"type": "configuration_update", "reasoning": {"effort": 7}, "text": 1});
    let got = chat(&heard(&json!({"input": [update, odd, user("x")], "reasoning": {"effort": "high"}}), &Items::new()));
    assert_eq!(
        (&got["response_format"]["type"], got.get("reasoning_effort")),
        (&json!("json_schema"), Some(&json!("high")))
    );
    let got = chat(&heard(&json!({"input": [update, user("x")], "reasoning": {"effort": "high"}}), &Items::new()));
    assert_eq!(got["reasoning_effort"], "low");
}

proptest! {
    #[test]
    fn no_item_is_refused_whatever_its_shape(seed in prop::collection::vec((any::<prop::sample::Index>(), 0u8..10), 1..6)) {
        let items: Vec<Value> = kinds().into_iter().map(|(item, ..)| item).collect();
        let mut input = Value::from(items);
        for (at, kind) in seed {
            let mut places = Vec::new();
            collect(&input, String::new(), &mut places);
            places.retain(|place| !place.is_empty());
            let new = [json!(null), json!(1), json!(""), json!([]), json!({}), json!("function_call"), json!([[]]),
                json!({"type": 1}), json!("é\u{0}"), json!([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}])];
            if let Some(value) = input.pointer_mut(at.get(places.as_slice()).as_str()) {
                *value = new[usize::from(kind)].clone();
            }
        }
        let text = json!({"input": input}).to_string();
        prop_assert!(request(text.as_bytes(), &Items::new()).is_ok());
        // Half of a surrogate pair, as JavaScript cuts texts.
        prop_assert!(request(text.replace('é', "\\ud83d").as_bytes(), &Items::new()).is_ok());
    }
}
