//! Two real llama.cpp servers of one model: a conversation stays where it is warm, and goes on at the other one when its server is
//! killed.

use serde_json::{Value, json};

use crate::support::http::{get, post};
use crate::support::servers::{Llama, Windowsill};

fn by(reply: &crate::support::http::Reply) -> (String, String) {
    let told = reply.ours("upstream").to_owned();
    let (name, rest) = told.split_once("; because=").expect(&told);
    (name.to_owned(), rest.split(';').next().unwrap_or_default().to_owned())
}

#[test]
fn a_conversation_stays_warm_and_outlives_its_server() {
    let mut servers = [Llama::start(4096), Llama::start(4096)];
    let second = servers[1].url();
    let windowsill = Windowsill::with(&servers[0].url(), &[("CONTEXT_BACKGROUND", "false")], &["--upstream", &second]);
    let chat = format!("{}/v1/chat/completions", windowsill.url());
    let words = "The lighthouse keeper counted the ships of the evening, one by one. ".repeat(60);
    let mut talks: Vec<Vec<Value>> = ["Ann", "Bob"]
        .iter()
        .map(|name| vec![json!({"role": "user", "content": format!("{name}: {words}")})])
        .collect();
    let mut first = Vec::new();
    for turn in 0..4 {
        for (n, talk) in talks.iter_mut().enumerate() {
            let reply = post(&chat, json!({"model": "smollm2", "messages": talk, "max_tokens": 8, "temperature": 0}));
            assert_eq!(reply.status, 200);
            let body = reply.json();
            let (name, because) = by(&reply);
            let (prompt, cached) =
                (&body["usage"]["prompt_tokens"], &body["usage"]["prompt_tokens_details"]["cached_tokens"]);
            crate::support::say(&format!("talk {n}, turn {turn}: {name} ({because}), {cached} of {prompt} cached"));
            if turn == 0 {
                first.push(name);
            } else {
                assert_eq!((&name, because.as_str()), (&first[n], "warm"), "talk {n}, turn {turn}");
            }
            talk.push(body["choices"][0]["message"].clone());
            talk.push(json!({"role": "user", "content": format!("And then, {turn}?")}));
        }
    }
    // The server of the first one is killed: the next request is answered all the same, by the other one.
    let gone = usize::from(first[0] != "local");
    servers[gone].kill();
    let reply = post(&chat, json!({"model": "smollm2", "messages": talks[0], "max_tokens": 8, "temperature": 0}));
    assert_eq!(reply.status, 200);
    assert_ne!(by(&reply).0, first[0]);
    let all = get(&format!("{}/windowsill/upstreams", windowsill.url())).json();
    assert_eq!(all["upstreams"][gone]["standing"], "down", "{all}");
    assert!(all["upstreams"][1 - gone]["prompt_tokens_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{all}");
}
