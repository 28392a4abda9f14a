//! `shadow = true`: nothing that is forwarded differs, and what would have been done is said.

use serde_json::{Value, json};

use super::support::*;

fn long(steps: usize) -> Chat {
    let words = "The flush path of the ingest service writes its parts one after another. ".repeat(40);
    (0..steps).fold(chat().system("Be terse.").user("Repair the build."), |chat, n| chat.step(n, &words)).tools()
}

#[test]
fn in_shadow_nothing_is_changed_and_what_would_have_been_is_said() {
    for kind in [Kind::LlamaServer, Kind::OpenAi] {
        let fake = Fake::start(kind, 4096);
        // It takes what is too long, as a server that cuts silently does.
        fake.set(|settings| settings.window = 100_000);
        let proxy = TestProxy::with(&[fake.url()], "shadow = true\n[window]\nnum_ctx = 4096\n");
        let mut ids = std::collections::BTreeSet::new();
        let mut would = 0;
        for steps in 1..12 {
            let body = long(steps).body();
            let answer = proxy.post("/v1/chat/completions", &[], &body).ok();
            assert_eq!(fake.last().body, body, "{kind:?}: {steps}");
            assert_eq!(answer.action(), "none");
            ids.insert(answer.header("x-windowsill-conversation").unwrap().to_owned());
            let said = answer.header("x-windowsill-shadow").unwrap().to_owned();
            let sent: u32 = answer.header("x-windowsill-prompt-tokens").unwrap().parse().unwrap();
            let then: u32 = said.split("prompt-tokens=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
            let source = answer.header("x-windowsill-prompt-tokens-source").unwrap();
            let exact = kind == Kind::LlamaServer && !said.starts_with("action=none");
            assert!(
                !exact || (source, sent) == ("counted by the server", tokens(&fake.last().json())),
                "{source}, {sent}"
            );
            assert!(kind == Kind::LlamaServer || source.starts_with("estimated"), "{kind:?}: {source}");
            assert!(then <= sent && then < 4096, "{kind:?}: {said}, {sent} sent");
            assert_eq!(said.ends_with("fits=false"), sent + 1024 > 4096, "{kind:?}: {said}, {sent} sent");
            would += u32::from(!said.starts_with("action=none"));
        }
        assert_eq!(ids.len(), 1, "{ids:?}");
        assert!((1..11).contains(&would), "{kind:?}: rewritten in {would} of 11");
        assert!(fake.summaries().is_empty(), "no model is asked for anything");
        let report: Value = serde_json::from_slice(&proxy.cli(&["report", "--json"]).stdout).unwrap();
        let shadow = &report["shadow"];
        assert_eq!(shadow["requests"], 11, "{report}");
        assert!(shadow["too_long"].as_u64() > Some(0), "{report}");
        assert!(shadow["sent_tokens"].as_u64() > shadow["would_send_tokens"].as_u64(), "{report}");
        assert!(proxy.data().join("shadow/windowsill.sqlite").exists(), "kept apart");
        assert!(!proxy.data().join("windowsill.sqlite").exists(), "the real record is not touched");
    }
}

#[test]
fn in_shadow_other_dialects_and_refusals_go_through_too() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::with(&[fake.url()], "shadow = true\n");
    let asked =
        json!({"model": "test-model", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}).to_string();
    for path in ["/v1/messages?beta=true", "/v1/responses", "/api/chat", "/v1/messages/count_tokens"] {
        proxy.post(path, &[], asked.as_bytes());
        // windowsill asks the server questions of its own, to say what it would have done.
        let seen = fake.all().into_iter().rev().find(|seen| seen.target == path).expect("it was passed on");
        assert_eq!((seen.target.as_str(), seen.body.as_slice()), (path, asked.as_bytes()));
    }
    // What windowsill cannot read is the server's to refuse.
    let answer = proxy.post("/v1/chat/completions", &[], b"{\"messages\": 3}");
    assert_eq!(fake.all().pop().unwrap().body, b"{\"messages\": 3}");
    assert!(answer.header("x-windowsill-shadow").unwrap().starts_with("error; "), "{answer:?}");
    // So is a prompt that is too long: the client gets the server's own words.
    let answer = proxy.post("/v1/chat/completions", &[], &long(12).body());
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.text().contains("exceed_context_size_error"), "{}", answer.text());
    assert!(answer.header("x-windowsill-shadow").unwrap().ends_with("fits=false"), "{answer:?}");
}
