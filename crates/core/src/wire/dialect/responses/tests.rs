//! Requests: items, tools, settings; what is refused and where; and that no request panics.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::super::WireError;
use super::super::Head;
use super::super::said::Said;

/// The chat completion request of a Responses request.
fn chat(body: Value) -> Value {
    match super::request(body.to_string().as_bytes(), &super::Items::new()) {
        Ok(heard) => serde_json::from_slice(&heard.chat).unwrap(),
        Err(error) => panic!("{error}\n{body}"),
    }
}

fn messages(input: Value) -> Vec<Value> {
    chat(json!({"input": input}))["messages"].as_array().unwrap().clone()
}

/// The field an error names, and its text.
fn refused(body: &Value) -> (String, String) {
    let error: WireError = super::request(body.to_string().as_bytes(), &super::Items::new())
        .err()
        .unwrap_or_else(|| panic!("taken: {body}"));
    (error.param().unwrap_or("-").to_owned(), error.to_string())
}

/// What Codex sends: two texts for developers, the surroundings, the prompt, then the items of a turn.
fn codex() -> Vec<Value> {
    let message = |role: &str, kind: &str, text: &str| json!({"type": "message", "id": "msg_1", "role": role, "content": [{"type": kind, "text": text}]});
    vec![
        message("developer", "input_text", "You are a coding agent running in the Codex CLI…"),
        message("developer", "input_text", "<permissions>"),
        message("user", "input_text", "<environment_context>\n  <cwd>/proj</cwd>…"),
        message("user", "input_text", "Look around"),
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "windowsill:I should look."}),
        json!({"type": "message", "status": "completed", "id": "msg_0001", "role": "assistant",
            "content": [{"type": "output_text", "text": "I'll look at step 1 — café.\n\n", "annotations": []}]}),
        json!({"type": "function_call", "status": "completed", "id": "fc_A", "name": "exec_command",
            "arguments": "{\"cmd\" : \"wc -c notes.txt\"}", "call_id": "call_A"}),
        json!({"type": "function_call_output", "id": "fco_1", "call_id": "call_A", "output": "Chunk ID: 2dc7db\n…"}),
        message("developer", "input_text", "Be quick."),
        message("user", "input_text", "Another language model started to solve this problem"),
    ]
}

#[test]
fn codex_history_becomes_messages() {
    let body = json!({"model": "m", "instructions": "Base.", "input": codex(), "stream": true, "store": false,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "x", "client_metadata": {"a": "b"},
        "tools": [{"type": "function", "name": "exec_command", "description": "Runs.", "strict": false,
                "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}},
            {"type": "web_search", "external_web_access": false}],
        "tool_choice": "auto", "parallel_tool_calls": false, "reasoning": {"effort": "medium", "summary": "auto"},
        "text": {"verbosity": "low"}, "service_tier": null});
    let heard = super::request(body.to_string().as_bytes(), &super::Items::new()).unwrap();
    let expect = json!({"model": "m", "messages": [
        {"role": "system", "content": "Base.\n\nYou are a coding agent running in the Codex CLI…\n\n<permissions>"},
        {"role": "user", "content": "<environment_context>\n  <cwd>/proj</cwd>…"},
        {"role": "user", "content": "Look around"},
        {"role": "assistant", "content": "I'll look at step 1 — café.\n\n", "reasoning_content": "I should look.",
            "tool_calls": [{"id": "call_A", "type": "function",
                "function": {"name": "exec_command", "arguments": "{\"cmd\" : \"wc -c notes.txt\"}"}}]},
        {"role": "tool", "tool_call_id": "call_A", "content": "Chunk ID: 2dc7db\n…"},
        {"role": "user", "content": "<system-reminder>\nBe quick.\n</system-reminder>"},
        {"role": "user", "content": "Another language model started to solve this problem"},
    ], "stream": true, "stream_options": {"include_usage": true},
    "tools": [{"type": "function", "function": {"name": "exec_command", "description": "Runs.",
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}, "strict": false}}],
    "tool_choice": "auto", "parallel_tool_calls": false, "reasoning_effort": "medium"});
    assert_eq!(String::from_utf8(heard.chat.to_vec()).unwrap(), expect.to_string());
}

#[test]
fn what_codex_reports_without_a_call_is_a_reminder() {
    let call = json!({"type": "function_call", "call_id": "a", "name": "create_goal", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "a", "output": "set"});
    let report = json!({"type": "function_call_output", "id": "fco_1", "name": "goal_objective", "namespace": "agent",
        "output": "Find it."});
    let all = messages(json!([{"role": "user", "content": "go"}, call, output, report]));
    assert_eq!(all[2], json!({"role": "tool", "tool_call_id": "a", "content": "set"}));
    let words = "<system-reminder>\ngoal_objective: Find it.\n</system-reminder>";
    assert_eq!(all[3..], [json!({"role": "user", "content": words})]);
}

#[test]
fn an_assistant_turn_is_one_message() {
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": ""});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "ok"});
    let reasoning = |text: &str| {
        json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}],
        "summary": [{"type": "summary_text", "text": "no"}]})
    };
    let said = json!({"role": "assistant", "content": "Text."});
    let chat_call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let user = json!({"role": "user", "content": "go"});
    let turn = |items: &[Value]| messages([std::slice::from_ref(&user), items].concat().into())[1..].to_vec();
    let both = json!([chat_call("a"), chat_call("b")]);
    assert_eq!(turn(&[call("a"), call("b")]), [json!({"role": "assistant", "content": null, "tool_calls": both})]);
    let expect =
        json!({"role": "assistant", "content": "Text.", "reasoning_content": "one\n\ntwo", "tool_calls": both});
    assert_eq!(turn(&[reasoning("one"), said.clone(), call("a"), reasoning("two"), call("b")]), [expect]);
    // Text between a call and its result stays in the message of the call.
    let late = turn(&[call("a"), said.clone(), output("a"), call("b"), output("b")]);
    assert_eq!(late.len(), 4);
    assert_eq!(late[0], json!({"role": "assistant", "content": "Text.", "tool_calls": [chat_call("a")]}));
    assert_eq!(late[2]["tool_calls"], json!([chat_call("b")]));
    // Two answers are one, for servers refuse two in a row; reasoning that nothing follows is dropped, and so is what others
    // encrypted.
    assert_eq!(turn(&[said.clone(), said.clone()]), [json!({"role": "assistant", "content": "Text.\n\nText."})]);
    assert_eq!(turn(&[reasoning("x"), user.clone(), said.clone()]), [user.clone(), said.clone()]);
    assert_eq!(turn(&[said.clone(), reasoning("x")]), std::slice::from_ref(&said));
    let opaque = json!({"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"});
    assert_eq!(turn(&[opaque, said.clone()]), std::slice::from_ref(&said));
    let summary = json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "A"}, {"type": "summary_text", "text": "B"}]});
    assert_eq!(turn(&[summary, said.clone()])[0]["reasoning_content"], "A\n\nB");
    let searched = json!({"role": "assistant", "content": "[web_search_call]\nText."});
    assert_eq!(turn(&[json!({"type": "web_search_call", "id": "ws_1"}), said]), [searched]);
}

#[test]
fn a_reply_comes_back_as_it_was_said() {
    let body =
        json!({"input": "go", "include": ["reasoning.encrypted_content"], "tools": [{"type": "custom", "name": "c"}]});
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let calls = json!([call("x", "c", r#"{"input":"p\n"}"#), call("y", "f", r#"{"a" : 1}"#)]);
    let message = json!({"role": "assistant", "content": "Text.", "reasoning_content": "Hm.", "tool_calls": calls});
    let said = Said::read(&json!({"choices": [{"message": message}]}).to_string()).unwrap();
    let head = Head { id: "1".into(), created: 1, prompt_tokens: None, window: None };
    let reply = super::request(body.to_string().as_bytes(), &super::Items::new()).unwrap().encoder.whole(&head, &said);
    let mut output = reply["output"].as_array().unwrap().clone();
    assert_eq!(messages(output.clone().into()), std::slice::from_ref(&message));
    // Codex leaves out the reasoning's `content`.
    output[0].as_object_mut().unwrap().remove("content");
    assert_eq!(messages(output.into()), [message]);
}

#[test]
fn contents_and_images() {
    let image = json!({"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"});
    let chat_image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}});
    let plain = json!({"type": "input_image", "image_url": "http://x/y.png", "detail": null, "file_id": null});
    let text = |t: &str| json!({"type": "input_text", "text": t});
    assert_eq!(messages(json!("hi")), [json!({"role": "user", "content": "hi"})]);
    assert_eq!(messages(json!([{"role": "user", "content": [text("a"), text("b")]}]))[0]["content"], "a\nb");
    let refusal = json!([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]);
    assert_eq!(messages(refusal)[0]["content"], "No.");
    let audio = json!({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}});
    let mixed = messages(json!([{"role": "user", "content": [text("see"), image, plain, audio]}]));
    let expect = json!([{"type": "text", "text": "see"}, chat_image,
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}}, audio]);
    assert_eq!(mixed[0]["content"], expect);
    // Images of results come after the last result of the run, whatever follows.
    let call = |id: &str| json!({"type": "custom_tool_call", "call_id": id, "name": "view", "input": "a \"b\""});
    let output = |id: &str| json!({"type": "custom_tool_call_output", "call_id": id, "output": [text("it is"), image]});
    for (next, role) in [
        (json!({"role": "user", "content": "?"}), "user"),
        (json!({"role": "assistant", "content": "!"}), "assistant"),
        (call("c"), "assistant"),
    ] {
        let items = json!([{"role": "user", "content": "go"}, call("a"), call("b"), output("a"), output("b"), next]);
        let got = messages(items);
        let roles: Vec<&str> = got.iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "user", role]);
        assert_eq!(got[1]["tool_calls"][0]["function"]["arguments"], r#"{"input":"a \"b\""}"#);
        assert_eq!(got[2]["content"], "it is\n[image: in the next user message]");
        assert_eq!(got[4]["content"], json!([chat_image, chat_image]));
    }
    let end = messages(json!([{"role": "user", "content": "go"}, call("a"), output("a")]));
    assert_eq!(end[3]["content"], json!([chat_image]));
}

#[test]
fn tools_and_choices() {
    let custom = json!({"type": "custom", "name": "apply_patch", "description": "Patches.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}});
    let function = |name: &str| json!({"type": "function", "name": name, "description": null});
    let group = json!({"type": "namespace", "name": "mcp__db", "description": "d",
        "tools": [function("query"), function("run"), custom]});
    let tools = json!([function("run"), group, {"type": "mcp", "server_label": "x"}, {"type": "image_generation"}]);
    let with =
        |choice: Value| chat(json!({"input": "x", "tools": tools, "tool_choice": choice, "parallel_tool_calls": true}));
    let names = |chat: &Value| -> Vec<String> {
        let all = chat["tools"].as_array().unwrap().iter();
        all.map(|t| t["function"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = with(Value::Null);
    assert_eq!(names(&all), ["run", "query", "mcp__db__run", "apply_patch"]);
    assert_eq!((all.get("tool_choice"), &all["parallel_tool_calls"]), (None, &json!(true)));
    assert_eq!(all["tools"][0]["function"], json!({"name": "run", "parameters": {"type": "object", "properties": {}}}));
    let input = json!({"type": "string", "description": "Text of this lark grammar:\nstart: x"});
    assert_eq!(
        all["tools"][3]["function"],
        json!({"name": "apply_patch", "description": "Patches.",
            "parameters": {"type": "object", "properties": {"input": input}, "required": ["input"]}})
    );
    for mode in ["auto", "none", "required"] {
        assert_eq!(with(json!(mode))["tool_choice"], mode);
    }
    for kind in ["function", "custom"] {
        let forced = with(json!({"type": kind, "name": "query"}));
        assert_eq!(forced["tool_choice"], json!({"type": "function", "function": {"name": "query"}}));
        assert_eq!(names(&forced).len(), 4);
    }
    let some = json!([{"type": "function", "name": "run"}, {"type": "image_generation"}]);
    let allowed = with(json!({"type": "allowed_tools", "mode": "required", "tools": some}));
    assert_eq!((names(&allowed), &allowed["tool_choice"]), (vec!["run".to_owned()], &json!("required")));
    let group = json!([{"type": "namespace", "name": "mcp__db"}]);
    assert_eq!(
        names(&with(json!({"type": "allowed_tools", "mode": "auto", "tools": group}))),
        ["query", "mcp__db__run", "apply_patch"]
    );
    // With nothing left to call there is nothing to choose.
    let none = chat(
        json!({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": "auto", "parallel_tool_calls": true}),
    );
    assert_eq!(none, json!({"messages": [{"role": "user", "content": "x"}]}));
}

#[test]
fn settings_are_taken_over() {
    let schema = json!({"type": "object"});
    let got = chat(
        json!({"model": "m", "input": "x", "stream": false, "max_output_tokens": 9, "temperature": 0.5, "top_p": 1,
        "top_logprobs": 3, "stop": ["a"], "think": false, "seed": null, "truncation": "auto", "store": true,
        "metadata": {"a": "b"}, "user": "u", "reasoning": {"effort": null}, "previous_response_id": null,
        "grammar": "root ::= \"yes\"", "messages": [], "n": 2, "id_slot": 1,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": true}}}),
    );
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}});
    let expect = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": false, "max_tokens": 9,
        "temperature": 0.5, "top_p": 1, "response_format": format, "stop": ["a"], "think": false,
        "grammar": "root ::= \"yes\"", "id_slot": 1});
    assert_eq!(got, expect);
    let format =
        |kind: &str| chat(json!({"input": "x", "text": {"format": {"type": kind}}})).get("response_format").cloned();
    assert_eq!(format("text"), None);
    assert_eq!(format("json_object"), Some(json!({"type": "json_object"})));
    let only = chat(json!({"instructions": "Be.", "input": []}));
    assert_eq!(only["messages"], json!([{"role": "system", "content": "Be."}]));
}

/// What servers pass over, or refuse in their own words, is theirs to judge.
#[test]
fn values_of_another_type_are_the_servers_to_judge() {
    let odd = json!({"stream": "yes", "instructions": ["a"], "max_output_tokens": "9", "temperature": "hot", "include": "all",
        "reasoning": "high", "text": {"format": {"type": "xml"}}, "metadata": 1, "parallel_tool_calls": "no", "background": true});
    let got = chat(odd);
    assert_eq!(
        got,
        json!({"messages": [{"role": "system", "content": "[\"a\"]"}], "stream": "yes", "max_tokens": "9", "temperature": "hot"})
    );
    for input in [json!([]), json!(null), json!("")] {
        assert_eq!(chat(json!({"input": input}))["messages"], json!([{"role": "user", "content": ""}]));
    }
    let nameless =
        chat(json!({"input": "x", "text": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}));
    assert_eq!(nameless["response_format"]["json_schema"], json!({"name": "format", "schema": {"type": "object"}}));
}

#[test]
fn errors_name_the_place() {
    for (key, value) in [("previous_response_id", json!(3)), ("tools", json!({}))] {
        let body = json!({"input": "x", key: value, "tools": if key == "tools" { value.clone() } else { json!([{"type": "web_search"}]) }});
        assert_eq!(refused(&body).0, key, "{body}");
    }
    for (at, field) in [("input", json!({"input": 3})), ("input", json!({"input": {"role": "user", "content": "x"}}))] {
        let mut body = json!({"input": "x"});
        body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        assert_eq!(refused(&body).0, at, "{body}");
    }
    assert_eq!(
        refused(&json!({"input": "x", "previous_response_id": "r", "conversation": "c"})).0,
        "previous_response_id"
    );
    assert!(matches!(super::request(b"[]", &super::Items::new()), Err(WireError::NotJson(_))));
    assert!(matches!(super::request(b"{", &super::Items::new()), Err(WireError::NotJson(_))));
}

/// llama.cpp's and Ollama's own endpoints answer these, and pass over the choice.
#[test]
fn a_call_that_cannot_be_had_is_no_reason_to_refuse() {
    let function = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let search = json!({"type": "web_search"});
    for (choice, tools) in [
        (json!("required"), json!([])),
        (json!("required"), json!([search])),
        (json!({"type": "web_search"}), json!([search, function])),
        (json!({"type": "mcp", "server_label": "s"}), json!([function])),
        (json!({"type": "function", "name": "g"}), json!([function])),
        (json!({"type": "function"}), json!([function])),
        (json!({"type": "custom", "name": "f"}), json!([])),
        (json!({"type": "allowed_tools", "mode": "required", "tools": [search]}), json!([function, search])),
        (json!({"name": "f"}), json!([function])),
        (json!(5), json!([function])),
        (json!([]), json!([function])),
    ] {
        let body = json!({"input": "x", "tools": tools, "tool_choice": choice}).to_string();
        let heard = super::request(body.as_bytes(), &super::Items::new()).unwrap();
        let chat: Value = serde_json::from_slice(&heard.chat).unwrap();
        assert_eq!(chat.get("tool_choice"), None, "{choice} {tools}");
        assert!(
            heard.unsaid.warnings.iter().any(|w| w.starts_with("tool_choice asks for")),
            "{choice}: {:?}",
            heard.unsaid.warnings
        );
    }
    let nested = chat(
        json!({"input": "x", "tools": [function], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    );
    assert_eq!(nested["tool_choice"]["function"]["name"], "f");
}

/// Items of all kinds that are taken.
fn item() -> impl Strategy<Value = Value> {
    let word = "[a-z]{0,3}";
    prop_oneof![
        (prop_oneof![Just("user"), Just("assistant"), Just("developer"), Just("system")], word)
            .prop_map(|(role, text)| json!({"role": role, "content": text})),
        word.prop_map(|text| json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]})),
        word.prop_map(|id| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"})),
        word.prop_map(|id| json!({"type": "custom_tool_call", "call_id": id, "name": "c", "input": "x"})),
        word.prop_map(|id| json!({"type": "function_call_output", "call_id": id, "output": "x"})),
        word.prop_map(|id| json!({"type": "function_call_output", "call_id": id,
            "output": [{"type": "input_image", "image_url": "data:,"}]})),
        Just(json!({"type": "web_search_call", "id": "w"})),
        word.prop_map(|id| json!({"type": "local_shell_call", "call_id": id, "action": {"command": ["ls"]}})),
        word.prop_map(|id| json!({"type": "shell_call_output", "call_id": id, "output": [{"stdout": "x"}]})),
        word.prop_map(|id| json!({"type": "tool_search_output", "call_id": id, "tools": []})),
        word.prop_map(|id| json!({"type": "item_reference", "id": id})),
        Just(json!({"type": "mcp_approval_response", "approve": true})),
    ]
}

proptest! {
    #[test]
    fn a_longer_history_begins_with_the_shorter_one(items in prop::collection::vec(item(), 1..12), more in prop::collection::vec(item(), 1..6)) {
        let first = json!({"role": "user", "content": "go"});
        // What ends a request: a user's words, or results that are all there.
        let end = json!({"role": "user", "content": "next"});
        let shorter = [vec![first], items, vec![end]].concat();
        let longer = [shorter.clone(), more].concat();
        let (shorter, longer) = (messages(shorter.into()), messages(longer.into()));
        prop_assert_eq!(&longer[..shorter.len()], &shorter[..]);
    }

    #[test]
    fn no_input_breaks_it(seed in prop::collection::vec((any::<prop::sample::Index>(), 0u8..9), 1..5)) {
        let mut body = json!({"model": "m", "instructions": "i", "input": codex(), "stream": true,
            "include": ["reasoning.encrypted_content"], "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "tools": [{"type": "custom", "name": "c", "format": {"definition": "d"}}, {"type": "namespace", "name": "n", "tools": []}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "c"}]}});
        for (at, kind) in seed {
            let mut places = Vec::new();
            collect(&body, String::new(), &mut places);
            let place = at.get(&places).clone();
            let new = [json!(null), json!(1), json!(""), json!([]), json!({}), json!("function_call"), json!([[]]), json!({"type": 1}), json!("é\u{0}")];
            if let Some(value) = body.pointer_mut(&place) {
                *value = new[usize::from(kind)].clone();
            }
        }
        let text = body.to_string();
        if let Ok(heard) = super::request(text.as_bytes(), &super::Items::new()) {
            let chat: Value = serde_json::from_slice(&heard.chat).unwrap();
            prop_assert!(chat["messages"].is_array());
        }
        let half = text.len() / 2;
        prop_assert!(super::request(&text.as_bytes()[..half], &super::Items::new()).is_err());
    }
}

/// The JSON pointers of all values in a value.
pub(super) fn collect(value: &Value, at: String, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, inner)| collect(inner, format!("{at}/{key}"), out)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(nth, inner)| collect(inner, format!("{at}/{nth}"), out))
        }
        _ => {}
    }
    out.push(at);
}
