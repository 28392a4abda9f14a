//! Requests that fail are seen: in the trace, in the metrics, by status and reason. And what needs no server works without one.

use serde_json::{Value, json};

use super::support::*;

/// The newest failure in the trace.
fn failure(proxy: &TestProxy, known: usize) -> Value {
    let failed = |page: &Value| page["events"].as_array().map(Vec::len).unwrap_or_default() > known;
    let page = proxy.eventually("/windowsill/events?kind=request_failed", failed);
    page["events"].as_array().unwrap().last().unwrap().clone()
}

#[test]
fn a_request_that_fails_is_an_event_and_a_counter_with_its_status() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    proxy.chat(&chat().user("Hello.")).ok();
    // The server's own refusal: its words may quote the request, and stand in no event.
    fake.script(|seen| match seen.is_main() {
        true => Play::Json(500, json!({"error": {"message": "cannot say SECRET-WORD", "code": 500}})),
        false => Play::Usual,
    });
    let answer = proxy.chat(&chat().user("Say SECRET-WORD."));
    let told = failure(&proxy, 0);
    assert_eq!((answer.status, &told["data"]["status"]), (500, &json!(500)));
    assert!(told["conversation"].is_string() && told["data"]["model"] == MODEL, "{told}");
    assert!(!told.to_string().contains("SECRET-WORD"), "{told}");
    // A prompt that cannot fit.
    fake.script(|_| Play::Usual);
    let answer = proxy.chat(&chat().system(&prose(1, 60_000)).user("Hello."));
    let told = failure(&proxy, 1);
    assert_eq!((answer.status, &told["data"]["code"]), (400, &json!("context_length_exceeded")));
    assert!(told["data"]["reason"].as_str().unwrap().contains("the window has"), "{told}");
    assert_eq!((&told["data"]["model"], &told["data"]["client"]), (&json!(MODEL), &json!("unnamed")), "{told}");
    assert_eq!(told["conversation"], Value::Null, "of nothing on record");
    // One that goes on with what is on record says with what.
    let first =
        proxy.post("/v1/chat/completions", &[("User-Agent", "mender/1.2")], &chat().user("Mend it.").body()).ok();
    let id = first.header("x-windowsill-conversation").unwrap().to_owned();
    proxy.post(&format!("/windowsill/conversations/{id}/rewriting"), &[], br#"{"on": false}"#).ok();
    let longer = chat().user("Mend it.").assistant("Done.").user(&prose(2, 60_000));
    let answer = proxy.post("/v1/chat/completions", &[("User-Agent", "mender/1.2")], &longer.body());
    let told = failure(&proxy, 2);
    assert_eq!((answer.status, &told["data"]["client"]), (400, &json!("mender")), "{told}");
    assert_eq!(told["conversation"], json!(id), "{told}");
    // A server that is gone.
    let gone = TestProxy::with(&[format!("http://{}", Fake::absent())], "");
    let answer = gone.chat(&chat().user("Hello."));
    let told = failure(&gone, 0);
    assert_eq!((&told["data"]["status"], answer.status >= 502), (&json!(answer.status), true), "{told}");
    assert!(told["data"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{told}");
    let counted = |proxy: &TestProxy, status: u16, times: u32| {
        let metrics = proxy.get("/metrics").ok().text();
        let of = format!("windowsill_requests_total{{action=\"none\",status=\"{status}\"}} {times}");
        assert!(metrics.contains(&of), "no {of} in:\n{metrics}");
    };
    counted(&proxy, 200, 2);
    counted(&proxy, 500, 1);
    counted(&proxy, 400, 2);
    counted(&gone, answer.status, 1);
}

#[test]
fn what_is_pinned_is_listed_without_a_server() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let answer = proxy.chat(&chat().user("Rule: keep the API.").assistant("Yes.").user("Go on.")).ok();
    let id = answer.header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}/pins");
    proxy.post(&path, &[], br#"{"text": "Answer in French."}"#).ok();
    proxy.post(&path, &[], br#"{"message": 0}"#).ok();
    let listed = proxy.get(&path).ok().json();
    let dir = proxy.stop();
    drop(fake);
    let alone = TestProxy::at(dir, &[], "");
    let pins = alone.get(&path).ok().json();
    for field in ["pin", "text", "message", "by"] {
        let of = |all: &Value| all["pins"].as_array().unwrap().iter().map(|p| p[field].clone()).collect::<Vec<_>>();
        assert_eq!(of(&pins), of(&listed), "{field}");
    }
    assert_eq!((&pins["paused"], &pins["window"]), (&json!(false), &json!(4096)));
    alone.get(&format!("/windowsill/conversations/{id}/insight")).ok();
}

/// Closing the dialog of a fold takes it back: the server stops, and nothing was folded.
#[test]
fn a_fold_that_nobody_waits_for_is_not_made() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let mut talk = chat().user("Let us plan the garden.");
    for n in 0..5 {
        talk = talk.assistant(&prose(n, 800)).user(&format!("And item {n}?"));
    }
    let id = proxy.chat(&talk).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let path = format!("/windowsill/conversations/{id}");
    let price = proxy.post(&format!("{path}/compact"), &[], br#"{"dry_run": true}"#).ok().json();
    assert!(price["brief_reads"].as_u64() > Some(0) && price.get("brief_seconds").is_some(), "{price}");
    let gate = Gate::default();
    let held = gate.clone();
    fake.script(move |seen| match seen.is_summary() {
        true => Play::Wait(held.clone(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let mut conn = Conn::open(proxy.address);
    conn.send("POST", &format!("{path}/compact"), &[("Content-Type", "application/json")], b"{}");
    fake.wait("a summary", |seen| seen.iter().any(Seen::is_summary));
    drop(conn);
    fake.wait_hung_up(1);
    gate.open();
    let view = proxy.get(&format!("{path}/view")).ok().json();
    assert_eq!(view["edits"], json!([]), "nothing was folded");
}

/// What the client asks now is never cut without a word.
#[test]
fn a_cut_of_the_newest_message_is_told() {
    for kind in [Kind::LlamaServer, Kind::Ollama] {
        let fake = Fake::start(kind, 4096);
        let proxy = TestProxy::before(&fake);
        let answer = proxy.chat(&chat().user("Hello.").assistant("Hello!").user(&prose(7, 40_000))).ok();
        let warning = answer.header("x-windowsill-warning").unwrap_or_default();
        assert!(warning.contains("message 2 (whole: windowsill recall r"), "{warning:?}");
        let record = warning.split("windowsill recall ").nth(1).unwrap().split(')').next().unwrap();
        assert_eq!(proxy.get(&format!("/windowsill/records/{record}")).ok().text(), prose(7, 40_000));
        let answer = proxy.chat(&chat().user("Hello.")).ok();
        assert_eq!(answer.header("x-windowsill-warning"), None);
    }
}
