//! Replies, whole and in lines: any split of a stream says the same.

use proptest::prelude::*;

use super::super::super::Head;
use super::super::super::said::{CallPart, Said, Usage};
use super::super::reply::timestamp;
use super::*;

fn head() -> Head {
    Head { id: "x".into(), created: 1_788_288_502, prompt_tokens: Some(40), window: None }
}

const WHEN: &str = "2026-09-01T18:48:22Z";

fn heard(api: &str) -> Heard {
    let request = br#"{"model":"Qwen3:8b","messages":[{"role":"user","content":"hi"}],"prompt":"hi"}"#;
    let heard = if api == "chat" { chat(request) } else { generate(request) };
    heard.unwrap().unwrap()
}

fn whole(api: &str, said: &Said) -> Value {
    without_context(api, heard(api).encoder.whole(&head(), said))
}

/// Takes out what a client goes on with, which only the end of a prompt's reply has.
fn without_context(api: &str, mut line: Value) -> Value {
    let ends = api == "generate" && line["done"] == true;
    let context = line.as_object_mut().and_then(|line| line.shift_remove("context"));
    assert_eq!(context.is_some_and(|context| context.is_array()), ends, "{line}");
    line
}

/// The lines of a stream; each is one object.
fn stream(api: &str, chunks: &[Said]) -> Vec<Value> {
    let mut encoder = heard(api).encoder;
    assert_eq!(encoder.stream_type(), "application/x-ndjson");
    let mut out = encoder.start(&head());
    assert_eq!(out, "");
    chunks.iter().for_each(|chunk| out.push_str(&encoder.chunk(chunk)));
    out.push_str(&encoder.end());
    assert_eq!((encoder.end(), encoder.chunk(&text("late"))), (String::new(), String::new()));
    assert!(out.ends_with('\n'));
    out.lines().map(|line| without_context(api, serde_json::from_str(line).unwrap())).collect()
}

fn text(text: &str) -> Said {
    Said { text: text.into(), ..Said::default() }
}

fn thought(text: &str) -> Said {
    Said { reasoning: text.into(), ..Said::default() }
}

fn part(index: u64, id: Option<&str>, name: Option<&str>, arguments: &str) -> CallPart {
    CallPart { index, id: id.map(Into::into), name: name.map(Into::into), arguments: arguments.into() }
}

fn called(part: CallPart) -> Said {
    Said { calls: vec![part], ..Said::default() }
}

fn last(finish: &str) -> Said {
    let usage = Usage { prompt: Some(26), completion: Some(282), ..Usage::default() };
    let usage = Usage { prompt_ms: Some(342.546), completion_ms: Some(4535.599), ..usage };
    Said { finish: Some(finish.into()), usage, ..Said::default() }
}

const FIGURES: &str = r#""done":true,"done_reason":"stop","total_duration":4878145000,"load_duration":0,
    "prompt_eval_count":26,"prompt_eval_duration":342546000,"eval_count":282,"eval_duration":4535599000"#;

/// An object with the figures behind it.
fn done(fields: Value) -> Value {
    let mut out: Value = serde_json::from_str(&format!("{{{FIGURES}}}")).unwrap();
    out.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    out
}

#[test]
fn a_chat_is_told_in_lines() {
    let first = part(0, Some("c1"), Some("f"), "");
    let second = part(1, None, Some("g"), "");
    let chunks = [
        Said::default(),
        thought("Let me"),
        text("Hi"),
        text(""),
        called(first),
        called(part(0, None, None, "{\"z\":1,")),
        called(second),
        called(part(1, None, None, "no json")),
        called(part(0, None, None, "\"a\":2}")),
        Said { finish: Some("tool_calls".into()), ..Said::default() },
        Said { finish: None, ..last("") },
    ];
    let line = |message: Value| json!({"model": "Qwen3:8b", "created_at": WHEN, "message": message, "done": false});
    let lines = stream("chat", &chunks);
    assert_eq!(
        lines,
        [
            line(json!({"role": "assistant", "content": "", "thinking": "Let me"})),
            line(json!({"role": "assistant", "content": "Hi"})),
            line(json!({"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"z": 1, "a": 2}}},
                {"function": {"index": 1, "name": "g", "arguments": {"_unparsed": "no json"}}},
            ]})),
            done(json!({"model": "Qwen3:8b", "created_at": WHEN, "message": {"role": "assistant", "content": ""}})),
        ]
    );
    // The order of keys is what people see who read the stream.
    assert!(lines[1].to_string().starts_with(r#"{"model":"Qwen3:8b","created_at":"#));
    assert_eq!(lines[2]["message"]["tool_calls"][0]["function"]["arguments"].to_string(), r#"{"z":1,"a":2}"#);
}

#[test]
fn a_prompt_is_answered_in_lines() {
    let lines = stream("generate", &[thought("hm"), text("Hi"), last("stop")]);
    assert_eq!(
        lines,
        [
            json!({"model": "Qwen3:8b", "created_at": WHEN, "response": "", "thinking": "hm", "done": false}),
            json!({"model": "Qwen3:8b", "created_at": WHEN, "response": "Hi", "done": false}),
            done(json!({"model": "Qwen3:8b", "created_at": WHEN, "response": ""})),
        ]
    );
}

#[test]
fn a_whole_reply_is_one_object() {
    let calls = vec![part(0, Some("c1"), Some("f"), r#"{"a":"\ud83d"}"#), part(1, None, Some("g"), " ")];
    let said =
        Said { text: "Hi".into(), reasoning: "hm".into(), calls, model: Some("other".into()), ..last("tool_calls") };
    let calls = json!([
        {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"a": "\u{fffd}"}}},
        {"function": {"index": 1, "name": "g", "arguments": {}}},
    ]);
    let message = json!({"role": "assistant", "content": "Hi", "thinking": "hm", "tool_calls": calls});
    assert_eq!(whole("chat", &said), done(json!({"model": "Qwen3:8b", "created_at": WHEN, "message": message})),);
    let said = Said { calls: Vec::new(), ..said };
    assert_eq!(
        whole("generate", &said),
        done(json!({"model": "Qwen3:8b", "created_at": WHEN, "response": "Hi", "thinking": "hm"})),
    );
    assert_eq!(whole("chat", &Said { refusal: "No.".into(), ..text("") })["message"]["content"], "No.");
    let failed = Said { error: Some(json!("gone")), ..text("Hi") };
    assert_eq!(whole("chat", &failed), json!({"error": "gone"}));
}

#[test]
fn done_reasons_and_missing_figures() {
    for (finish, reason) in
        [("stop", "stop"), ("length", "length"), ("tool_calls", "stop"), ("content_filter", "stop"), ("odd", "stop")]
    {
        assert_eq!(whole("chat", &last(finish))["done_reason"], reason);
        assert_eq!(stream("generate", &[last(finish)])[0]["done_reason"], reason);
    }
    // What the server does not say: the prompt as it was counted before, and no times.
    let bare = whole("generate", &text("Hi"));
    let expected = json!({"model": "Qwen3:8b", "created_at": WHEN, "response": "Hi", "done": true, "done_reason": "stop",
        "total_duration": 0, "load_duration": 0, "prompt_eval_count": 40, "prompt_eval_duration": 0, "eval_duration": 0});
    assert_eq!(bare, expected);
    let uncounted = Usage { prompt: Some(0), completion: Some(0), ..Usage::default() };
    let uncounted = whole("chat", &Said { usage: uncounted, ..text("Hi") });
    assert_eq!((&uncounted["prompt_eval_count"], &uncounted["eval_count"]), (&json!(40), &json!(0)));
    let unknown = heard("chat").encoder.whole(&Head { prompt_tokens: None, ..head() }, &text("Hi"));
    assert_eq!(unknown.get("prompt_eval_count"), None);
    for odd in [f64::NAN, f64::INFINITY, -1.0] {
        let usage = Usage { prompt_ms: Some(odd), completion_ms: Some(odd), ..Usage::default() };
        let out = whole("chat", &Said { usage, ..Said::default() });
        let expected = if odd == f64::INFINITY { u64::MAX } else { 0 };
        assert_eq!(out["total_duration"], expected);
    }
}

#[test]
fn an_error_ends_the_stream() {
    for (error, message) in [
        (json!({"message": "gone", "code": 1}), "gone"),
        (json!("gone"), "gone"),
        (json!({"code": 1}), r#"{"code":1}"#),
        (json!({"message": null}), r#"{"message":null}"#),
        (json!([1]), "[1]"),
    ] {
        let call = called(part(0, None, Some("f"), "{}"));
        let failed = Said { error: Some(error), ..Said::default() };
        let lines = stream("chat", &[text("Hi"), call, failed, text("more"), last("stop")]);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["message"]["content"], "Hi");
        assert_eq!(lines[1], json!({"error": message}));
    }
    assert_eq!(error_line("a\nb"), "{\"error\":\"a\\nb\"}\n");
}

#[test]
fn calls_of_one_number_and_several_ids_are_several() {
    let chunks = [
        called(part(0, Some("a"), Some("f"), "{}")),
        called(part(0, Some("b"), Some("g"), "{")),
        called(part(0, Some("b"), None, "}")),
        called(part(0, None, None, "")),
    ];
    let calls = &stream("chat", &chunks)[0]["message"]["tool_calls"];
    assert_eq!(
        calls,
        &json!([
            {"id": "a", "function": {"index": 0, "name": "f", "arguments": {}}},
            {"id": "b", "function": {"index": 1, "name": "g", "arguments": {}}},
        ])
    );
}

#[test]
fn times_are_said_as_rfc_3339() {
    for (unix, expected) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (951_868_800, "2000-03-01T00:00:00Z"),
        (1_709_164_800, "2024-02-29T00:00:00Z"),
        (1_735_689_599, "2024-12-31T23:59:59Z"),
        (1_735_689_600, "2025-01-01T00:00:00Z"),
        (1_740_787_199, "2025-02-28T23:59:59Z"),
        (1_740_787_200, "2025-03-01T00:00:00Z"),
        (4_107_542_399, "2100-02-28T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
        (253_402_300_799, "9999-12-31T23:59:59Z"),
    ] {
        assert_eq!(timestamp(unix), expected);
    }
    assert!(timestamp(u64::MAX).ends_with('Z'));
    // Every day for 500 years, against a count by hand.
    let (mut year, mut month, mut day) = (1970, 1, 1);
    for days in 0..182_621 {
        assert_eq!(timestamp(days * 86_400 + 1), format!("{year}-{month:02}-{day:02}T00:00:01Z"));
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 => 28 + u64::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        day += 1;
        if day > length {
            (month, day) = (month + 1, 1);
        }
        if month > 12 {
            (year, month) = (year + 1, 1);
        }
    }
}

/// What a stream says in all, as one reply.
fn joined(lines: &[Value]) -> Value {
    let mut out = lines.last().unwrap().clone();
    for line in &lines[..lines.len() - 1] {
        assert_eq!(line["done"], false);
        for key in ["content", "thinking"] {
            let Some(piece) = line["message"][key].as_str() else { continue };
            let before = out["message"][key].as_str().unwrap_or_default();
            out["message"][key] = format!("{before}{piece}").into();
        }
        if let Some(calls) = line["message"].get("tool_calls") {
            assert_eq!(out["message"].get("tool_calls"), None);
            out["message"]["tool_calls"] = calls.clone();
        }
    }
    out
}

/// A text in pieces.
fn pieces(text: &str, cuts: &[prop::sample::Index]) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len() + 1)).collect();
    at.extend([0, all.len()]);
    at.sort_unstable();
    at.windows(2).map(|w| all[w[0]..w[1]].iter().collect()).collect()
}

proptest! {
    #[test]
    fn a_stream_says_what_the_whole_reply_says_however_it_is_cut(
        content in ".{0,12}",
        reasoning in ".{0,12}",
        arguments in proptest::collection::vec(prop_oneof![Just(r#"{"a":"é","b":[1]}"#.to_owned()), ".{0,8}"], 0..3),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let name = |n: usize| format!("f{n}");
        let calls = arguments.iter().enumerate().map(|(n, a)| part(n as u64, Some(&name(n)), Some(&name(n)), a));
        let said = Said { text: content, reasoning, calls: calls.collect(), ..last("stop") };
        let mut chunks: Vec<Said> = pieces(&said.reasoning, &cuts).iter().map(|p| thought(p)).collect();
        chunks.extend(pieces(&said.text, &cuts).iter().map(|p| text(p)));
        for (n, call) in said.calls.iter().enumerate() {
            chunks.push(called(CallPart { arguments: String::new(), ..call.clone() }));
            chunks.extend(pieces(&call.arguments, &cuts).iter().map(|p| called(part(n as u64, None, None, p))));
        }
        chunks.push(last("stop"));
        prop_assert_eq!(joined(&stream("chat", &chunks)), whole("chat", &said));
    }
}

#[test]
fn likelihoods_and_the_time_of_a_load_are_told() {
    let token = |text: &str| json!({"token": text, "logprob": -0.5, "bytes": [72], "top_logprobs": [{"token": text, "logprob": -0.5, "bytes": [72]}]});
    // llama-server says the number of the token, too, which Ollama's clients do not know.
    let piece = |text: &str| {
        let mut theirs = token(text);
        theirs["id"] = json!(17);
        Said { text: text.into(), logprobs: vec![theirs], ..Said::default() }
    };
    let usage = Usage { load_ms: Some(2.5), prompt_ms: Some(1.0), completion_ms: Some(0.5), ..Usage::default() };
    let last = Said { finish: Some("stop".into()), usage, ..Said::default() };
    for api in ["chat", "generate"] {
        let lines = stream(api, &[piece("a"), piece("b"), last.clone()]);
        assert_eq!(
            lines.iter().map(|line| line["logprobs"].clone()).collect::<Vec<_>>(),
            [json!([token("a")]), json!([token("b")]), json!(null)]
        );
        assert_eq!((&lines[2]["load_duration"], &lines[2]["total_duration"]), (&json!(2_500_000), &json!(4_000_000)));
        let whole = whole(api, &Said { logprobs: vec![token("a")], usage, ..piece("a") });
        assert_eq!((&whole["logprobs"], &whole["load_duration"]), (&json!([token("a")]), &json!(2_500_000)));
        assert_eq!(self::whole(api, &last).get("logprobs"), None);
    }
}

#[test]
fn the_likeliest_tokens_are_asked_for_beside_the_one_that_is_taken() {
    let sent = |body: Value| -> Value {
        serde_json::from_slice(&chat(body.to_string().as_bytes()).unwrap().unwrap().chat).unwrap()
    };
    let with = |logprobs: Value| json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "logprobs": logprobs, "top_logprobs": 2});
    let both = sent(with(json!(true)));
    assert_eq!((&both["logprobs"], &both["top_logprobs"]), (&json!(true), &json!(2)));
    assert_eq!(sent(with(json!(null))).get("top_logprobs"), None, "llama-server refuses the one without the other");
}
