//! Messages: roles, calls and the results that answer them, pictures; and that a longer history begins with the shorter.

use proptest::prelude::*;

use super::*;

#[test]
fn langchains_results_belong_to_calls_by_their_order() {
    let call = json!({"function": {"name": "read_file", "arguments": {"file_path": "/proj/notes.txt"}}});
    let history = json!([
        {"role": "user", "content": "Look around"},
        {"role": "assistant", "content": "I'll look at step 1 — café.\n\n", "tool_calls": [call, call]},
        {"role": "tool", "content": "Error: File '/proj/notes.txt' not found"},
        {"role": "tool", "content": "second"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "third"},
    ]);
    let said = |id: &str| {
        let function = json!({"name": "read_file", "arguments": r#"{"file_path":"/proj/notes.txt"}"#});
        json!({"id": id, "type": "function", "function": function})
    };
    assert_eq!(
        spoken(history),
        json!([
            {"role": "user", "content": "Look around"},
            {"role": "assistant", "content": "I'll look at step 1 — café.\n\n",
                "tool_calls": [said("call_1_0"), said("call_1_1")]},
            {"role": "tool", "content": "Error: File '/proj/notes.txt' not found", "tool_call_id": "call_1_0"},
            {"role": "tool", "content": "second", "tool_call_id": "call_1_1"},
            {"role": "assistant", "content": "", "tool_calls": [said("call_4_0")]},
            {"role": "tool", "content": "third", "tool_call_id": "call_4_0"},
        ])
    );
}

/// The ids that results get behind these calls.
fn answers(calls: &[(Option<&str>, &str)], results: Value) -> Vec<Value> {
    let calls: Value =
        calls.iter().map(|(id, name)| json!({"id": id, "function": {"name": name, "arguments": {}}})).collect();
    let mut history = vec![json!({"role": "assistant", "tool_calls": calls})];
    history.extend(results.as_array().unwrap().iter().map(|r| {
        let mut result = json!({"role": "TOOL", "content": ""});
        result.as_object_mut().unwrap().extend(r.as_object().unwrap().clone());
        result
    }));
    let out = spoken(history.into());
    out.as_array().unwrap()[1..].iter().map(|m| m.get("tool_call_id").cloned().unwrap_or_default()).collect()
}

#[test]
fn results_find_their_calls_by_name() {
    let (f, g) = ((None, "f"), (None, "g"));
    let both = [f, g, f];
    let by_name = json!([{"tool_name": "g"}, {"name": "f"}, {"tool_name": "f"}]);
    assert_eq!(answers(&both, by_name), ["call_0_1", "call_0_0", "call_0_2"]);
    // A name that none of them has, or that has no call left, leaves the order.
    let odd = json!([{"tool_name": "h"}, {"tool_name": "f"}, {"tool_name": "f"}, {"tool_name": "f"}]);
    assert_eq!(answers(&both, odd), [json!("call_0_0"), json!("call_0_2"), json!("call_0_1"), Value::Null]);
    // Ids that were given count, and what they answer is answered.
    let given = [(Some("a"), "f"), (Some("b"), "f")];
    assert_eq!(answers(&given, json!([{"tool_call_id": "b"}, {}])), ["b", "a"]);
    assert_eq!(answers(&given, json!([{"tool_call_id": "nowhere"}, {}])), ["nowhere", "a"]);
    // The ids of the calls were dropped on the way, those of the results were not.
    assert_eq!(
        answers(&[f, g], json!([{"tool_call_id": "x", "tool_name": "g"}, {"tool_call_id": "y"}])),
        ["call_0_1", "call_0_0"]
    );
    assert_eq!(
        spoken(json!([{"role": "tool", "content": "x", "tool_name": "f"}])),
        json!([
            {"role": "tool", "content": "x", "tool_name": "f"}
        ])
    );
}

#[test]
fn an_id_of_an_earlier_call_stays() {
    let history = json!([
        {"role": "assistant", "tool_calls": [{"id": "old", "function": {"name": "f", "arguments": {}}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "", "tool_call_id": "old"},
        {"role": "tool", "content": ""},
    ]);
    let out = spoken(history);
    assert_eq!((&out[2]["tool_call_id"], &out[3]["tool_call_id"]), (&json!("old"), &json!("call_1_0")));
}

#[test]
fn calls_and_thoughts_are_said_in_openais_words() {
    let own = json!({"id": "call_x", "function": {"index": 0, "name": "f", "arguments": {"z": 1, "a": [1.5, "é"]}}});
    let text = json!({"type": "function", "id": "", "function": {"name": "g", "arguments": "{ \"a\" : 1 }"}});
    let none = json!({"function": {"name": "h"}});
    let history = json!([{"role": "Assistant", "content": null, "thinking": "hm", "images": null,
        "tool_calls": [own, text, none], "mine": true}]);
    assert_eq!(
        spoken(history),
        json!([{"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
            {"id": "call_x", "type": "function", "function": {"name": "f", "arguments": r#"{"z":1,"a":[1.5,"é"]}"#}},
            {"id": "call_0_1", "type": "function", "function": {"name": "g", "arguments": "{ \"a\" : 1 }"}},
            {"id": "call_0_2", "type": "function", "function": {"name": "h", "arguments": "{}"}},
        ], "mine": true}])
    );
    let nothing = json!([{"role": "assistant", "content": "a", "thinking": "", "tool_calls": []}]);
    assert_eq!(spoken(nothing), json!([{"role": "assistant", "content": "a"}]));
}

#[test]
fn images_are_parts_of_their_kind() {
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let sound =
        |data: &str, format: &str| json!({"type": "input_audio", "input_audio": {"data": data, "format": format}});
    for (data, part) in [
        ("iVBORw0KGgoAAAAN", image("data:image/png;base64,iVBORw0KGgoAAAAN")),
        ("/9j/4AAQSkZJRgAB", image("data:image/jpeg;base64,/9j/4AAQSkZJRgAB")),
        ("R0lGODlhAQABAIAA", image("data:image/gif;base64,R0lGODlhAQABAIAA")),
        ("UklGRiQAAABXRUJQVlA4", image("data:image/webp;base64,UklGRiQAAABXRUJQVlA4")),
        ("UklGRiQAAABXQVZFZm10", sound("UklGRiQAAABXQVZFZm10", "wav")),
        ("SUQzBAAAAAAAI1RT", sound("SUQzBAAAAAAAI1RT", "mp3")),
        ("//uQxAAAAAAAAAAA", sound("//uQxAAAAAAAAAAA", "mp3")),
        ("Qk02AwAAAAAAADYA", image("data:image/bmp;base64,Qk02AwAAAAAAADYA")),
        ("AAAA", image("data:image/png;base64,AAAA")),
        ("", image("data:image/png;base64,")),
        ("é, no base64 at all", image("data:image/png;base64,é,nobase64atall")),
        ("\n/9j/4AAQ\r\nSkZJ\n", image("data:image/jpeg;base64,/9j/4AAQSkZJ")),
        ("data:image/x-odd;base64,AAAA", image("data:image/x-odd;base64,AAAA")),
    ] {
        let out = spoken(json!([{"role": "user", "content": "see", "images": [data, "iVBORw0K"]}]));
        let png = image("data:image/png;base64,iVBORw0K");
        assert_eq!(out[0]["content"], json!([{"type": "text", "text": "see"}, part, png]), "{data}");
    }
    let only = spoken(json!([{"role": "user", "content": "", "images": ["AAAA"]}]));
    assert_eq!(only[0]["content"], json!([image("data:image/png;base64,AAAA")]));
    let parts = json!([{"type": "text", "text": "a"}, image("http://x/y.png")]);
    assert_eq!(spoken(json!([{"role": "user", "content": parts}]))[0]["content"], parts);
    let more = spoken(json!([{"role": "user", "content": parts, "images": ["AAAA"]}]));
    assert_eq!(more[0]["content"], json!([parts[0], parts[1], image("data:image/png;base64,AAAA")]));
}

/// An Ollama alone takes most of these, and a session goes on with the rest, too.
#[test]
fn no_odd_message_is_refused() {
    for odd in [
        json!("hi"),
        json!(null),
        json!({}),
        json!({"role": 1, "content": "x"}),
        json!({"role": "user", "content": 1}),
        json!({"role": "user", "content": {}, "images": [null]}),
        json!({"role": "assistant", "thinking": true, "tool_calls": {}}),
        json!({"role": "tool", "tool_name": 1, "tool_call_id": 1, "content": "r"}),
    ] {
        let all = spoken(json!([{"role": "user", "content": "a"}, odd, {"role": "user", "content": "b"}]));
        assert_eq!((all.as_array().unwrap().len(), &all[2]["content"]), (3, &json!("b")), "{odd}");
    }
    let calls = json!([null, {}, {"function": {}}, {"id": 1, "function": {"name": null, "arguments": [1]}}]);
    let all = spoken(json!([{"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "r"}]));
    assert_eq!(all[0]["tool_calls"].as_array().unwrap().len(), 4);
    assert_eq!(all[0]["tool_calls"][3]["function"], json!({"name": "unknown", "arguments": "[1]"}));
    assert_eq!(all[1]["tool_call_id"], all[0]["tool_calls"][0]["id"]);
}

/// A message, by kind.
fn some_message() -> impl Strategy<Value = Value> {
    let call = (any::<bool>(), "[fg]").prop_map(|(own, name)| {
        let mut call = json!({"function": {"name": name, "arguments": {"a": name}}});
        if own {
            call["id"] = format!("own_{name}").into();
        }
        call
    });
    prop_oneof![
        ".{0,4}".prop_map(|text| json!({"role": "user", "content": text, "images": ["iVBORw0K"]})),
        (".{0,4}", proptest::collection::vec(call, 0..4))
            .prop_map(|(text, calls)| json!({"role": "assistant", "content": text, "tool_calls": calls})),
        Just(json!({"role": "tool", "content": "r"})),
        "[fgh]".prop_map(|name| json!({"role": "tool", "content": "r", "tool_name": name})),
        "[fgh]".prop_map(|name| json!({"role": "tool", "content": "r", "tool_call_id": format!("own_{name}")})),
    ]
}

proptest! {
    #[test]
    fn a_longer_history_begins_with_the_shorter(all in proptest::collection::vec(some_message(), 1..12), cut in 1usize..12) {
        let cut = cut.min(all.len());
        let (long, short) = (spoken(all.clone().into()), spoken(all[..cut].to_vec().into()));
        let short = short.as_array().unwrap();
        // A reply that says nothing is left out where it is the last.
        prop_assert!(short.len() == cut || short.len() + 1 == cut && all[cut - 1]["content"] == "");
        prop_assert_eq!(&long.as_array().unwrap()[..short.len()], &short[..]);
    }

    #[test]
    fn no_call_is_answered_twice_where_the_client_gives_no_ids(
        names in proptest::collection::vec("[fg]", 1..5),
        results in proptest::collection::vec(proptest::option::of("[fgh]"), 0..7),
    ) {
        let calls: Vec<_> = names.iter().map(|name| (None, name.as_str())).collect();
        let results: Value = results.iter().map(|name| json!({"tool_name": name})).collect();
        let ids = answers(&calls, results);
        let mut named: Vec<String> = ids.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect();
        prop_assert_eq!(named.len(), ids.len().min(calls.len()));
        named.sort();
        named.dedup();
        prop_assert_eq!(named.len(), ids.len().min(calls.len()));
    }
}
