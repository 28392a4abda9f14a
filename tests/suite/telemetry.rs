//! Spans of requests before a collector: what they tell, that they tell no text, and that a collector that is slow, dead or unwilling
//! holds up nobody. And the board for Grafana names figures that there are.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windowsill::config::Telemetry;
use windowsill::usage::{Metrics, Reported};

use super::support::*;

/// The spans that a collector got, of all deliveries.
fn spans(collector: &Fake) -> Vec<Value> {
    let deliveries = collector.all().into_iter().filter(|seen| seen.path() == "/v1/traces");
    deliveries
        .flat_map(|seen| seen.json()["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().cloned().unwrap())
        .collect()
}

/// Those of requests, without their phases.
fn requests(collector: &Fake) -> Vec<Value> {
    let all = spans(collector);
    let ids: Vec<&Value> = all.iter().map(|span| &span["spanId"]).collect();
    all.iter().filter(|span| !ids.contains(&&span["parentSpanId"])).cloned().collect()
}

/// The value of an attribute.
fn attribute(span: &Value, key: &str) -> Option<String> {
    let all = span["attributes"].as_array()?;
    let value = all.iter().find(|a| a["key"] == key)?["value"].as_object()?.values().next()?.clone();
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// A collector that answers as they do.
fn collector() -> Fake {
    let collector = Fake::start(Kind::OpenAi, 4096);
    collector.script(|_| Play::Json(200, json!({"partialSuccess": {}})));
    collector
}

/// Waits until a collector has the spans of so many requests.
fn wait_for(collector: &Fake, requests: usize) {
    let count = |seen: &[Seen]| -> usize {
        let texts =
            seen.iter().filter(|s| s.path() == "/v1/traces").map(|s| String::from_utf8_lossy(&s.body).into_owned());
        texts.map(|text| text.matches("gen_ai.operation.name").count()).sum()
    };
    collector.wait("spans", move |seen| count(seen) >= requests);
}

/// Waits until a line stands in the metrics: a delivery is counted once the collector's answer is read.
fn counted(proxy: &TestProxy, line: &str) {
    let started = Instant::now();
    while !proxy.get("/metrics").ok().text().contains(line) {
        assert!(started.elapsed() < PATIENCE, "no {line} in {}", proxy.get("/metrics").text());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_request_is_a_span_with_its_phases_and_without_its_text() {
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let (fake, collector) = (Fake::start(kind, 4096), collector());
        let proxy = TestProxy::telling(&[fake.url()], &collector.url());
        for stream in [true, false] {
            let body = chat().user("Where is the SECRET-WORD?");
            proxy.chat(&if stream { body.stream() } else { body }).ok();
        }
        wait_for(&collector, 2);
        let seen = collector.all().into_iter().find(|seen| seen.path() == "/v1/traces").unwrap();
        assert_eq!((seen.method.as_str(), seen.header("content-type")), ("POST", Some("application/json")));
        assert_eq!(seen.header("x-team"), Some("my garden"));
        let body = seen.json();
        let of_program = &body["resourceSpans"][0]["resource"]["attributes"];
        assert!(
            of_program
                .as_array()
                .unwrap()
                .contains(&json!({"key": "service.name", "value": {"stringValue": "windowsill"}}))
        );
        assert_eq!(body["resourceSpans"][0]["scopeSpans"][0]["scope"]["name"], "windowsill");
        let (all, own) = (spans(&collector), requests(&collector));
        assert!(own.len() == 2 && !json!(all).to_string().contains("SECRET-WORD"), "{all:?}");
        for span in own {
            assert_eq!(span["name"], format!("chat {}", attribute(&span, "gen_ai.request.model").unwrap()));
            assert!(attribute(&span, "gen_ai.conversation.id").is_some_and(|id| !id.is_empty()), "{span}");
            let provider = if kind == Kind::Ollama { "ollama" } else { "llama-server" };
            assert_eq!(attribute(&span, "gen_ai.provider.name").as_deref(), Some(provider));
            if kind == Kind::LlamaServer {
                assert!(attribute(&span, "gen_ai.usage.input_tokens").is_some_and(|n| n != "0"), "{span}");
            }
            assert_eq!(attribute(&span, "server.port"), fake.url().rsplit(':').next().map(str::to_owned));
            assert_eq!(attribute(&span, "windowsill.end").as_deref(), Some("complete"));
            assert_eq!(span["status"], Value::Null);
            let phases: Vec<&str> = all
                .iter()
                .filter(|s| s["parentSpanId"] == span["spanId"] && s["traceId"] == span["traceId"])
                .map(|s| s["name"].as_str().unwrap())
                .collect();
            assert!(phases.starts_with(&["queued", "counted", "planned", "brief"]) && phases.len() > 4, "{phases:?}");
        }
        counted(&proxy, "windowsill_traced_requests_total{outcome=\"sent\"} 2");
    }
}

#[test]
fn a_request_belongs_to_its_clients_trace() {
    let (fake, collector) = (Fake::start(Kind::LlamaServer, 4096), collector());
    let proxy = TestProxy::telling(&[fake.url()], &collector.url());
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let ask = |parent: &str| {
        proxy.post("/v1/chat/completions", &[("traceparent", parent)], &chat().user("Hello.").body()).ok();
    };
    // Nobody keeps this one; the next one is kept.
    ask(&format!("00-{trace}-00f067aa0ba902b7-00"));
    ask(&format!("00-{trace}-b7ad6b7169203331-01"));
    wait_for(&collector, 1);
    let all = requests(&collector);
    let [span] = &all[..] else { panic!("one is kept: {all:?}") };
    assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(trace), &json!("b7ad6b7169203331")));
    assert!(spans(&collector).iter().all(|span| span["traceId"] == trace));
}

#[test]
fn a_failure_is_a_span_and_is_counted_by_status_and_code() {
    let (fake, collector) = (Fake::start(Kind::LlamaServer, 4096), collector());
    let proxy = TestProxy::telling(&[fake.url()], &collector.url());
    fake.script(|seen| match seen.is_main() {
        true => Play::Json(500, json!({"error": {"message": "cannot say SECRET-WORD", "code": 500}})),
        false => Play::Usual,
    });
    assert_eq!(proxy.chat(&chat().user("Say SECRET-WORD.")).status, 500);
    fake.script(|_| Play::Usual);
    assert_eq!(proxy.chat(&chat().system(&prose(1, 60_000)).user("Hello.")).status, 400);
    // A reply that breaks off.
    fake.script(|seen| match seen.is_main() {
        true => Play::Cut(
            [sse_head(), chunk(b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"One\"}}]}\n\n")].concat(),
        ),
        false => Play::Usual,
    });
    proxy.chat(&chat().user("Count.").stream()).ok();
    wait_for(&collector, 3);
    let told: Vec<(Option<String>, Option<String>)> = requests(&collector)
        .iter()
        .map(|span| {
            assert_eq!(span["status"]["code"], 2, "{span}");
            (attribute(span, "error.type"), attribute(span, "http.response.status_code"))
        })
        .collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        told,
        [(some("500"), some("500")), (some("context_length_exceeded"), some("400")), (some("reply_failed"), None)]
    );
    assert!(!json!(spans(&collector)).to_string().contains("SECRET-WORD"));
    let metrics = proxy.get("/metrics").ok().text();
    for (status, code) in [(500, "server"), (400, "context_length_exceeded"), (200, "reply_failed")] {
        let line = format!("windowsill_failures_total{{status=\"{status}\",code=\"{code}\"}} 1");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
}

/// While a collector hangs, every request is answered; once it answers, it gets all of them, each once.
#[test]
fn a_collector_that_hangs_holds_up_nobody() {
    let (fake, collector) = (Fake::start(Kind::LlamaServer, 4096), collector());
    let proxy = TestProxy::telling(&[fake.url()], &collector.url());
    let gate = Gate::default();
    let held = gate.clone();
    collector.script(move |_| Play::Wait(held.clone(), Box::new(Play::Json(200, json!({})))));
    proxy.chat(&chat().user("The first.")).ok();
    wait_for(&collector, 1);
    for n in 0..5 {
        proxy.chat(&chat().user(&format!("Number {n}."))).ok();
    }
    assert_eq!(collector.all().len(), 1, "one delivery at a time");
    gate.open();
    wait_for(&collector, 6);
    assert_eq!(requests(&collector).len(), 6);
}

#[test]
fn a_collector_that_is_away_or_unwilling_holds_up_nobody() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let away = TestProxy::telling(&[fake.url()], &format!("http://{}", Fake::absent()));
    away.chat(&chat().user("Hello.")).ok();
    away.chat(&chat().user("Hello again.")).ok();

    let unwilling = collector();
    unwilling.script(|_| Play::Json(400, json!({"message": "no JSON here"})));
    let proxy = TestProxy::telling(&[fake.url()], &unwilling.url());
    proxy.chat(&chat().user("Hello.")).ok();
    counted(&proxy, "windowsill_traced_requests_total{outcome=\"dropped\"} 1");
    // It is not asked again.
    assert_eq!(unwilling.all().len(), 1);

    // One that is busy is asked again when it says so.
    let busy = collector();
    let asked = std::sync::atomic::AtomicUsize::new(0);
    busy.script(move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => Play::Pieces(vec![b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n".to_vec()]),
        _ => Play::Json(200, json!({})),
    });
    let proxy = TestProxy::telling(&[fake.url()], &busy.url());
    proxy.chat(&chat().user("Hello.")).ok();
    wait_for(&busy, 2);
    let twice = requests(&busy);
    assert_eq!(twice[0]["spanId"], twice[1]["spanId"], "the same spans");
}

/// What is left when the program ends is delivered.
#[test]
fn the_last_spans_are_delivered_at_the_end() {
    let (fake, collector) = (Fake::start(Kind::LlamaServer, 4096), collector());
    let proxy = TestProxy::telling_after(&[fake.url()], &collector.url(), Duration::from_secs(3600));
    proxy.chat(&chat().user("Hello.")).ok();
    assert_eq!(collector.all().len(), 0);
    drop(proxy);
    assert_eq!(requests(&collector).len(), 1);
}

#[test]
fn the_board_for_grafana_names_figures_that_there_are() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/grafana/windowsill.json");
    let board: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let target = Telemetry {
        url: "http://127.0.0.1:1/v1/traces".into(),
        headers: Default::default(),
        timeout: Duration::from_secs(1),
        delay: Duration::from_secs(1),
        resource: Vec::new(),
    };
    let all = Metrics::telling(target).unwrap();
    all.request("evict", 200, 0.001);
    all.failure(500, "server");
    all.spend("main", &Reported { prompt: Some(1), ..Reported::default() });
    all.pressure("agent", 0.5);
    all.prefix(1, Some(("client", 1)));
    all.recalled("found");
    all.missed("file");
    let metrics = all.text();
    let known: Vec<(&str, &str)> = metrics.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let mut named = std::collections::BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let names: Vec<&str> = expression.split(|c| !word(c)).filter(|w| w.starts_with("windowsill_")).collect();
            assert!(!names.is_empty(), "{expression}");
            named.extend(names);
        }
    }
    assert!(named.len() > 10, "{named:?}");
    for name in named {
        let is = |(of, kind): &(&str, &str)| match *kind {
            "counter" => name == format!("{of}_total") || name == *of && of.ends_with("_total"),
            "histogram" => name == format!("{of}_bucket"),
            _ => name == *of,
        };
        assert!(known.iter().any(is), "no {name} in {known:?}");
    }
}
