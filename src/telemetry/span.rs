//! The spans of one request as JSON of OTLP (the JSON mapping of
//! <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>: ids in hexadecimal, 64-bit numbers as text), named by the
//! conventions for generative AI. Pure, and without any text of messages.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Ids, Told};

/// What a request does before it goes to the server, in this order.
const BEFORE: [&str; 4] = ["queued", "counted", "planned", "brief"];

/// What happens from then on to the end of its reply.
const AFTER: [&str; 4] = ["prefill", "waiting", "thinking", "answer"];

/// Kinds of spans: work within the program, and a call of another one.
const INTERNAL: u8 = 1;
const CLIENT: u8 = 3;

/// The status of a span that ended with an error.
const ERROR: u8 = 2;

/// A span for the request, and one for each of its phases below it.
pub(super) fn spans(told: &Told, ids: Ids) -> Vec<Value> {
    let milliseconds = |value: &Value| Duration::from_millis(value.as_u64().unwrap_or(0));
    let ended = told.ended;
    let started = ended.saturating_sub(milliseconds(&told.data["milliseconds"]));
    let mut out = vec![request(told, ids, (started, ended))];
    let phases = &told.data["phases"];
    let took = |names: &'static [&'static str]| {
        names.iter().filter_map(|name| Some((*name, milliseconds(phases.get(*name)?)))).collect::<Vec<_>>()
    };
    let (before, after) = (took(&BEFORE), took(&AFTER));
    // What came before the request was sent begins with it, and what came after ends with it.
    let sent = ended.saturating_sub(after.iter().map(|(_, took)| *took).sum());
    for (from, phases) in [(started, before), (sent, after)] {
        let mut at = from;
        for (name, took) in phases {
            let until = (at + took).min(ended);
            out.push(json!({
                "traceId": ids.trace(), "spanId": ids.span(out.len()), "parentSpanId": ids.span(0),
                "name": name, "kind": INTERNAL,
                "startTimeUnixNano": nanoseconds(at.min(until)), "endTimeUnixNano": nanoseconds(until),
            }));
            at = until;
        }
    }
    out
}

/// The span of the request itself.
fn request(told: &Told, ids: Ids, (started, ended): (Duration, Duration)) -> Value {
    let data = &told.data;
    let model = data["model"].as_str();
    let name = model.map_or_else(|| "chat".to_owned(), |model| format!("chat {model}"));
    let failed = error_of(data);
    let kind = if told.server.as_ref().is_some_and(|server| server.kind == "embedded") { INTERNAL } else { CLIENT };
    let mut span = json!({
        "traceId": ids.trace(), "spanId": ids.span(0), "name": name, "kind": kind,
        "startTimeUnixNano": nanoseconds(started), "endTimeUnixNano": nanoseconds(ended),
        "attributes": attributes(told, failed.as_deref()),
    });
    if let Some(parent) = told.parent {
        span["parentSpanId"] = json!(format!("{:016x}", parent.span));
    }
    if failed.is_some() {
        span["status"] = json!({"code": ERROR});
    }
    span
}

/// The class of the error that a request ended with: a code of ours, or the status that the client got.
fn error_of(data: &Value) -> Option<String> {
    if let Some(status) = data["status"].as_u64() {
        return Some(data["code"].as_str().map_or_else(|| status.to_string(), str::to_owned));
    }
    (data["end"] == "failed").then(|| "reply_failed".to_owned())
}

fn attributes(told: &Told, failed: Option<&str>) -> Vec<Value> {
    let data = &told.data;
    let text = |key: &str, value: Option<&str>| value.map(|value| attribute(key, json!({"stringValue": value})));
    let number = |key: &str, value: &Value| value.as_u64().map(|n| attribute(key, json!({"intValue": n.to_string()})));
    let server = told.server.as_ref();
    let host = server.filter(|server| !server.host.is_empty());
    let finish = data["finish_reason"].as_str().map(|reason| {
        attribute("gen_ai.response.finish_reasons", json!({"arrayValue": {"values": [{"stringValue": reason}]}}))
    });
    [
        text("gen_ai.operation.name", Some("chat")),
        text("gen_ai.provider.name", Some(server.map_or("unknown", |server| server.kind))),
        text("gen_ai.request.model", data["model"].as_str()),
        text("gen_ai.conversation.id", told.conversation.as_deref()),
        finish,
        number("gen_ai.usage.input_tokens", &data["prompt_tokens"]),
        number("gen_ai.usage.output_tokens", &data["completion_tokens"]),
        number("gen_ai.usage.cache_read.input_tokens", &data["cached_tokens"]),
        text("server.address", host.map(|server| server.host.as_str())),
        host.map(|server| attribute("server.port", json!({"intValue": server.port.to_string()}))),
        text("error.type", failed),
        number("http.response.status_code", &data["status"]),
        text("windowsill.action", data["action"].as_str()),
        text("windowsill.end", data["end"].as_str()),
        number("windowsill.window", &data["window"]),
        number("windowsill.output_reserved", &data["output_reserved"]),
        number("windowsill.planned_prompt_tokens", &data["planned_prompt_tokens"]),
        number("windowsill.evaluated_tokens", &data["evaluated_tokens"]),
        number("windowsill.messages", &data["messages"]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn attribute(key: &str, value: Value) -> Value {
    json!({"key": key, "value": value})
}

fn nanoseconds(since_1970: Duration) -> String {
    since_1970.as_nanos().to_string()
}

/// What is delivered: spans of this program, which is described by attributes.
pub(super) fn delivery(resource: &[(String, String)], spans: &[Value]) -> Value {
    let described: Vec<Value> =
        resource.iter().map(|(key, value)| attribute(key, json!({"stringValue": value}))).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": described},
        "scopeSpans": [{"scope": {"name": "windowsill", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]})
}

#[cfg(test)]
mod tests {
    use super::super::{Parent, Server};
    use super::*;

    const IDS: Ids = Ids { trace: 0xabc, first: u64::MAX - 1 };

    fn told(data: Value) -> Told {
        let server = Some(Server { kind: "ollama", host: "127.0.0.1".into(), port: 11434 });
        Told { data, conversation: Some("c1".into()), server, ended: Duration::from_millis(10_000), parent: None }
    }

    fn value<'a>(span: &'a Value, key: &str) -> Option<&'a Value> {
        span["attributes"].as_array()?.iter().find(|a| a["key"] == key)?["value"].as_object()?.values().next()
    }

    #[test]
    fn phases_stand_within_their_request_in_order() {
        let phases =
            json!({"queued": 5, "counted": 1, "planned": 2, "brief": 0, "prefill": 600, "waiting": 20, "answer": 300});
        let made =
            spans(&told(json!({"milliseconds": 1000, "phases": phases, "model": "qwen3:8b", "end": "complete"})), IDS);
        let time = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap() / 1_000_000;
        let rows: Vec<(&str, u64, u64)> = made
            .iter()
            .map(|s| (s["name"].as_str().unwrap(), time(s, "startTimeUnixNano"), time(s, "endTimeUnixNano")))
            .collect();
        assert_eq!(
            rows,
            [
                ("chat qwen3:8b", 9000, 10_000),
                ("queued", 9000, 9005),
                ("counted", 9005, 9006),
                ("planned", 9006, 9008),
                ("brief", 9008, 9008),
                ("prefill", 9080, 9680),
                ("waiting", 9680, 9700),
                ("answer", 9700, 10_000)
            ]
        );
        assert!(made.iter().all(|s| s["traceId"] == "00000000000000000000000000000abc"));
        assert!(made[1..].iter().all(|s| s["parentSpanId"] == made[0]["spanId"]));
        let ids: std::collections::BTreeSet<&str> = made.iter().map(|s| s["spanId"].as_str().unwrap()).collect();
        assert!(ids.len() == made.len() && !ids.contains("0000000000000000"), "{ids:?}");
        assert!(ids.iter().all(|id| id.len() == 16));
    }

    #[test]
    fn figures_are_told_and_what_nobody_knows_is_left_out() {
        let data = json!({"milliseconds": 10, "model": "m", "prompt_tokens": 700, "completion_tokens": 8, "cached_tokens": 600,
            "evaluated_tokens": null, "finish_reason": "stop", "action": "evict", "window": 4096, "end": "complete"});
        let span = &spans(&told(data), IDS)[0];
        for (key, is) in [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "ollama"),
            ("gen_ai.conversation.id", "c1"),
            ("gen_ai.usage.input_tokens", "700"),
            ("gen_ai.usage.output_tokens", "8"),
            ("gen_ai.usage.cache_read.input_tokens", "600"),
            ("server.address", "127.0.0.1"),
            ("server.port", "11434"),
            ("windowsill.action", "evict"),
            ("windowsill.window", "4096"),
        ] {
            assert_eq!(value(span, key), Some(&json!(is)), "{key} of {span}");
        }
        assert_eq!(value(span, "gen_ai.response.finish_reasons").unwrap()["values"][0]["stringValue"], "stop");
        assert!(value(span, "windowsill.evaluated_tokens").is_none() && span["status"].is_null());
        assert_eq!(span["kind"], CLIENT);
    }

    #[test]
    fn a_failure_says_its_class_and_a_parent_is_kept() {
        let mut failure =
            told(json!({"milliseconds": 3, "status": 502, "code": "upstream_unreachable", "reason": "secret"}));
        (failure.server, failure.parent) = (None, Some(Parent { trace: 7, span: 9 }));
        let made = spans(&failure, IDS);
        let [span] = &made[..] else { panic!("no phases are known: {made:?}") };
        assert_eq!((&span["name"], &span["status"]["code"]), (&json!("chat"), &json!(ERROR)));
        assert_eq!(span["parentSpanId"], "0000000000000009");
        assert_eq!(value(span, "error.type"), Some(&json!("upstream_unreachable")));
        assert_eq!(value(span, "http.response.status_code"), Some(&json!("502")));
        assert!(!span.to_string().contains("secret"));
        let plain = spans(&told(json!({"status": 503})), IDS);
        assert_eq!(value(&plain[0], "error.type"), Some(&json!("503")));
        let broken = spans(&told(json!({"end": "failed"})), IDS);
        assert_eq!(value(&broken[0], "error.type"), Some(&json!("reply_failed")));
    }

    /// Phases that do not add up, and clocks that jump, give spans that end no earlier than they begin.
    #[test]
    fn no_figures_make_a_span_that_runs_backward() {
        for (took, phases) in
            [(0, json!({"queued": 50, "answer": 9})), (5, json!({"prefill": u64::MAX})), (u64::MAX, json!(null))]
        {
            for span in spans(&told(json!({"milliseconds": took, "phases": phases})), IDS) {
                let time = |key: &str| span[key].as_str().unwrap().parse::<u128>().unwrap();
                assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"), "{span}");
            }
        }
    }
}
