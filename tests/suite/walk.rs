//! Requests walked from their first stage to their last, as the program's own log tells it: no stage goes back to an earlier one.

use serde_json::{Value, json};

use super::support::script::{call, evicted, id_in, scripted, turn};
use super::support::*;

/// The stages, in their order.
const STAGES: [&str; 4] = ["Ready", "Sent", "Relayed", "Accounted"];

/// The steps in which a request is prepared, in their order.
const STEPS: [&str; 5] = ["Situation", "Head", "Measured", "Planned", "Saved"];

/// Asks the program itself, and returns the stages and steps that its log names, in the order in which they began.
fn walked(fake: &Fake, sent: &Chat) -> (Answer, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::logging_lines(dir.path(), &[fake.url()], "json", "windowsill=debug");
    let answer =
        request(served.address, "POST", "/v1/chat/completions", &[("content-type", "application/json")], &sent.body());
    let log = served.log_at_end(dir.path());
    let stage = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["fields"]["stage"].as_str().map(str::to_owned)
    };
    (answer, log.lines().filter_map(stage).collect())
}

/// Asserts that the walk goes through all stages in their order, each once, and through the steps in theirs, so often in each
/// stage as `prepared` says.
#[track_caller]
fn goes_forward(walk: &[String], prepared: &[(&str, usize)]) {
    let stages: Vec<&str> = walk.iter().map(String::as_str).filter(|name| STAGES.contains(name)).collect();
    assert_eq!(stages, STAGES, "{walk:?}");
    let mut stage = "";
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for name in walk {
        match STAGES.iter().find(|known| *known == name) {
            Some(known) => stage = known,
            None if steps.last().is_some_and(|(of, _)| *of == stage) => steps.last_mut().unwrap().1.push(name),
            None => steps.push((stage, vec![name])),
        }
    }
    let expected: Vec<(&str, Vec<&str>)> = prepared.iter().map(|(of, times)| (*of, STEPS.repeat(*times))).collect();
    assert_eq!(steps, expected, "{walk:?}");
}

/// A session that passes the window: it is folded.
fn long() -> Chat {
    let start = chat().system("s").user("Repair the ingest service.").tools();
    (0..16).fold(start, |sent, n| sent.step(n, &prose(n as u64 + 1, 1_300)))
}

#[test]
fn a_request_goes_through_its_stages_once_and_in_their_order() {
    for (sent, acts) in [(chat().user("Hi."), false), (long(), true)] {
        for stream in [false, true] {
            let sent = if stream { sent.clone().stream() } else { sent.clone() };
            let fake = Fake::start(Kind::LlamaServer, 4096);
            let (answer, walk) = walked(&fake, &sent);
            assert_eq!(answer.ok().action() != "none", acts, "one is near a line, and the other is not");
            goes_forward(&walk, &[("Ready", 1)]);
        }
    }
}

#[test]
fn what_a_server_refuses_is_prepared_once_more_where_it_is_sent() {
    for stream in [false, true] {
        let fake = Fake::start(Kind::OpenAi, 4096);
        fake.script(|seen| match tokens(&seen.json()) {
            prompt if seen.is_main() && prompt >= 4096 => Play::Json(400, too_long(prompt, 4096)),
            _ => Play::Usual,
        });
        let sent = if stream { long().stream() } else { long() };
        let (answer, walk) = walked(&fake, &sent);
        assert!(answer.ok().action().contains("emergency"));
        goes_forward(&walk, &[("Ready", 1), ("Sent", 1)]);
    }
}

#[test]
fn a_reply_that_recalls_is_answered_in_between_and_accounted_for_once() {
    for stream in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, 4096);
        scripted(&fake, 64, |round, seen| match round {
            0 => turn("", vec![call(json!({"id": id_in(seen)}))]),
            _ => turn("It opens at nine.", Vec::new()),
        });
        let sent = if stream { evicted().stream() } else { evicted() };
        let (answer, walk) = walked(&fake, &sent);
        assert!(answer.ok().text().contains("nine"));
        assert_eq!(fake.mains().len(), 2, "the model was asked again in between");
        goes_forward(&walk, &[("Ready", 1)]);
    }
}
