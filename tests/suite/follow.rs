//! Clients that name an earlier reply instead of sending the history before it: `previous_response_id`, `item_reference` and
//! Anthropic's threads. And what else the suites of others ask for.

use serde_json::{Value, json};

use windowsill::store::{Retention, Store};

use super::support::*;

const WINDOW: u32 = 8192;

fn tools() -> Value {
    json!([{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}])
}

/// Has the model call `f` once, and say "Done." to the result.
fn calls_once(fake: &Fake) {
    fake.script(|seen| {
        let asked = seen.json();
        if !seen.is_main() || asked["stream"] == true || asked["messages"].to_string().contains("RESULT") {
            return Play::Usual;
        }
        let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
        Play::Json(
            200,
            json!({"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}),
        )
    });
}

fn ask(proxy: &TestProxy, path: &str, key: &str, body: &Value) -> Answer {
    let key = format!("Bearer {key}");
    let headers: &[(&str, &str)] = if key == "Bearer " { &[] } else { &[("Authorization", &key)] };
    proxy.post(path, headers, body.to_string().as_bytes())
}

/// The response object of a reply, streamed or not.
fn response(answer: &Answer) -> Value {
    let text = answer.text();
    match text.rsplit("\ndata: ").next().filter(|_| text.starts_with("event:")) {
        Some(last) => serde_json::from_str::<Value>(last.trim()).unwrap()["response"].clone(),
        None => answer.json(),
    }
}

#[test]
fn a_response_is_gone_on_from_by_its_id_also_after_a_restart_and_by_its_own_key_alone() {
    for stream in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, WINDOW);
        let proxy = TestProxy::before(&fake);
        let first = json!({"model": MODEL, "instructions": "One.", "tools": tools(), "stream": stream,
            "input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]});
        let one = response(&ask(&proxy, "/v1/responses", "mine", &first).ok());
        assert_eq!((&one["store"], &one["previous_response_id"]), (&json!(true), &json!(null)));
        let next = json!({"model": MODEL, "instructions": "Two.", "input": "And?", "previous_response_id": one["id"]});
        let two = ask(&proxy, "/v1/responses", "mine", &next).ok();
        assert_eq!(response(&two)["previous_response_id"], one["id"]);
        let expect = fake.last().json()["messages"].clone();
        let said = one["output"][0]["content"][0]["text"].as_str().unwrap();
        let system = |text: &str| json!({"role": "system", "content": text});
        assert_eq!(
            expect,
            json!([system("Two.\n\nBe brief."), {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}])
        );
        // It is the same conversation, and a fork of it is one, too.
        let id = |answer: &Answer| answer.header("x-windowsill-conversation").unwrap().to_owned();
        let third = json!({"model": MODEL, "input": "More.", "previous_response_id": response(&two)["id"]});
        assert_eq!(id(&ask(&proxy, "/v1/responses", "mine", &third).ok()), id(&two));
        let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
        ask(&proxy, "/v1/responses", "mine", &next).ok();
        assert_eq!(fake.last().json()["messages"], expect);
        let before = fake.count();
        for key in ["yours", ""] {
            let other = ask(&proxy, "/v1/responses", key, &next);
            assert_eq!((other.status, other.error().0.as_str()), (404, "previous_response_not_found"));
            assert_eq!(other.json()["error"]["param"], "previous_response_id");
            // The item that it holds is unknown to them alike.
            let reference = json!({"model": MODEL, "input": [{"role": "user", "content": "x"},
                {"type": "item_reference", "id": one["output"][0]["id"]}]});
            ask(&proxy, "/v1/responses", key, &reference).ok();
            assert!(!fake.last().json()["messages"].to_string().contains(said));
        }
        assert_eq!(fake.count(), before + 2);
    }
}

#[test]
fn what_is_not_stored_is_not_gone_on_from() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let first = json!({"model": MODEL, "input": "Hi", "store": false});
    let one = response(&ask(&proxy, "/v1/responses", "", &first).ok());
    assert_eq!(one["store"], false);
    let next = json!({"model": MODEL, "input": "And?", "previous_response_id": one["id"]});
    assert_eq!(ask(&proxy, "/v1/responses", "", &next).status, 404);
}

#[test]
fn what_retention_took_is_told_with_its_date() {
    let fake = Fake::start(Kind::Ollama, WINDOW);
    let proxy = TestProxy::before(&fake);
    let one = response(&ask(&proxy, "/v1/responses", "", &json!({"model": MODEL, "input": "Hi"})).ok());
    let dir = proxy.stop();
    let store = Store::open(&dir.path().join("data")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let later = i64::try_from(now.as_millis()).unwrap() + 10 * 86_400_000;
    let pruned = runtime.block_on(store.prune(Retention { days: 1, bytes: 0 }, later)).unwrap();
    assert_eq!(pruned.conversations, 1);
    drop(store);
    let proxy = TestProxy::at(dir, &[fake.url()], "");
    let next = json!({"model": MODEL, "input": "And?", "previous_response_id": one["id"]});
    // Ours is known to be gone, also where the server would pass over it.
    let gone = ask(&proxy, "/v1/responses", "", &next);
    assert_eq!((gone.status, gone.error().0.as_str()), (410, "previous_response_not_found"));
    assert!(gone.json()["error"]["message"].as_str().unwrap().contains("was pruned on 20"), "{}", gone.text());
}

#[test]
fn a_server_that_passes_over_what_is_kept_elsewhere_is_no_worse_through_windowsill() {
    let fields =
        [("previous_response_id", json!("resp_1")), ("conversation", json!("conv_1")), ("prompt", json!({"id": "p"}))];
    for (kind, expect) in [
        (Kind::Ollama, [200, 200, 200]),
        (Kind::LlamaServer, [404, 200, 200]),
        (Kind::Vllm, [404, 404, 400]),
        (Kind::OpenAi, [404, 404, 400]),
    ] {
        let fake = Fake::start(kind, WINDOW);
        let proxy = TestProxy::before(&fake);
        for ((field, value), status) in fields.iter().zip(expect) {
            for stream in [false, true] {
                let answer = ask(
                    &proxy,
                    "/v1/responses",
                    "",
                    &json!({"model": MODEL, "input": "Hi", *field: value, "stream": stream}),
                );
                assert_eq!(answer.status, status, "{kind:?} {field}: {}", answer.text());
                match status {
                    200 => assert!(answer.header("x-windowsill-warning").unwrap().contains(field)),
                    _ => assert_eq!(answer.json()["error"]["param"], *field),
                }
            }
        }
    }
}

#[test]
fn a_thread_of_anthropics_tool_runner_goes_on() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    calls_once(&fake);
    let create = json!({"model": MODEL, "max_tokens": 99, "system": "Be brief.", "thread": {"type": "create"},
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]});
    let first = ask(&proxy, "/v1/messages", "mine", &create).ok().json();
    let call = first["content"].as_array().unwrap().iter().find(|block| block["type"] == "tool_use").unwrap();
    let on = |id: &Value| {
        json!({"model": MODEL, "max_tokens": 99, "thread": {"type": "continue", "previous_message_id": id},
            "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "RESULT"}]}]})
    };
    let second = ask(&proxy, "/v1/messages", "mine", &on(&first["id"])).ok();
    let sent = fake.last().json();
    let roles: Vec<&str> = sent["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(
        (roles.as_slice(), &sent["messages"][0]["content"]),
        (&["system", "user", "assistant", "tool"][..], &json!("Be brief."))
    );
    assert_eq!((&sent["tools"][0]["function"]["name"], second.header("x-windowsill-warning")), (&json!("f"), None));
    // The thread goes on from the reply to that, streamed or not.
    for stream in [true, false] {
        let mut last = on(&second.json()["id"]);
        last["messages"] = json!([{"role": "user", "content": "Thanks."}]);
        last["stream"] = stream.into();
        ask(&proxy, "/v1/messages", "mine", &last).ok();
        assert_eq!(fake.last().json()["messages"].as_array().unwrap().len(), 6, "{}", fake.last().json());
    }
    for (key, id) in [("yours", &first["id"]), ("mine", &json!("msg_elsewhere"))] {
        let lost = ask(&proxy, "/v1/messages", key, &on(id));
        assert_eq!((lost.status, lost.json()["type"].as_str()), (404, Some("error")));
        assert_eq!(
            lost.json()["error"]["details"]["error_code"],
            "thread_not_found",
            "the SDK sends the whole history then"
        );
    }
}

#[test]
fn input_tokens_are_counted_before_every_server() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::Vllm, Kind::OpenAi] {
        let fake = Fake::start(kind, WINDOW);
        let proxy = TestProxy::before(&fake);
        let one = response(&ask(&proxy, "/v1/responses", "", &json!({"model": MODEL, "input": "Hi there."})).ok());
        let count = |path: &str, body: Value| {
            let answer = ask(&proxy, path, "", &body).ok().json();
            assert_eq!(answer["object"], "response.input_tokens");
            answer["input_tokens"].as_u64().unwrap()
        };
        let mains = fake.mains().len();
        let short = count("/v1/responses/input_tokens", json!({"model": MODEL, "input": "Hi there."}));
        let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi there."}]});
        assert_eq!(count("/v1/chat/completions/input_tokens", chat), short, "{kind:?}");
        let on = json!({"model": MODEL, "input": "And then?", "previous_response_id": one["id"]});
        assert!(count("/v1/responses/input_tokens", on) > short, "{kind:?}");
        assert_eq!(fake.mains().len(), mains, "nothing was generated for it");
        let unknown = json!({"model": MODEL, "input": 3});
        assert_eq!(ask(&proxy, "/v1/responses/input_tokens", "", &unknown).status, 400);
    }
}

#[test]
fn ollamas_clients_get_embeddings_and_errors_of_other_servers_in_their_words() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    fake.script(|seen| match seen.path() {
        "/v1/embeddings" if seen.json()["input"] == "no" => {
            Play::Json(501, json!({"error": {"code": 501, "message": "not here", "type": "not_supported_error"}}))
        }
        "/v1/embeddings" => Play::Json(
            200,
            json!({"object": "list", "data": [{"index": 0, "embedding": [0.5, 1.0]}], "usage": {"prompt_tokens": 3}}),
        ),
        path if path.starts_with("/api/") => {
            Play::Json(404, json!({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}))
        }
        _ => Play::Usual,
    });
    let several = ask(&proxy, "/api/embed", "", &json!({"model": MODEL, "input": "a"})).ok().json();
    assert_eq!((&several["embeddings"], &several["prompt_eval_count"]), (&json!([[0.5, 1.0]]), &json!(3)));
    let one = ask(&proxy, "/api/embeddings", "", &json!({"model": MODEL, "prompt": "a"})).ok().json();
    assert_eq!(one, json!({"embedding": [0.5, 1.0]}));
    let none = ask(&proxy, "/api/embed", "", &json!({"model": MODEL, "input": "no"}));
    assert_eq!((none.status, none.json()), (501, json!({"error": "not here"})));
    let wrong = ask(&proxy, "/api/embed", "", &json!({"model": MODEL, "input": 3}));
    assert_eq!((wrong.status, wrong.json()["error"].is_string()), (400, true));
    for path in ["/api/pull", "/api/nonsense"] {
        let lost = ask(&proxy, path, "", &json!({"model": MODEL}));
        assert_eq!((lost.status, lost.json()), (404, json!({"error": "File Not Found"})), "{path}");
    }
    // An Ollama answers for itself.
    let fake = Fake::start(Kind::Ollama, WINDOW);
    let proxy = TestProxy::before(&fake);
    fake.script(|seen| match seen.path() {
        "/api/embed" => Play::Json(200, json!({"model": MODEL, "embeddings": [[9]]})),
        _ => Play::Usual,
    });
    let own = ask(&proxy, "/api/embed", "", &json!({"model": MODEL, "input": "a"})).ok().json();
    assert_eq!(own["embeddings"], json!([[9]]));
}

#[test]
fn no_messages_are_refused_before_an_ollama_and_an_empty_input_is_answered() {
    let fake = Fake::start(Kind::Ollama, WINDOW);
    let proxy = TestProxy::before(&fake);
    for (path, body) in [
        ("/v1/chat/completions", json!({"model": MODEL, "messages": []})),
        ("/v1/messages", json!({"model": MODEL, "max_tokens": 9, "messages": []})),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = stream.into();
            let answer = ask(&proxy, path, "", &body);
            assert_eq!(answer.status, 400, "{path}: {}", answer.text());
            assert!(answer.json()["error"]["message"].as_str().unwrap().contains("messages"), "{}", answer.text());
        }
    }
    for input in [json!([]), json!(null)] {
        ask(&proxy, "/v1/responses", "", &json!({"model": MODEL, "input": input})).ok();
    }
    // Here an empty list loads a model, as Ollama has it.
    ask(&proxy, "/api/chat", "", &json!({"model": MODEL, "messages": []})).ok();
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    ask(&proxy, "/v1/chat/completions", "", &json!({"model": MODEL, "messages": []})).ok();
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let nameless = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]});
        ask(&proxy, path, "", &nameless).ok();
    }
}

#[test]
fn in_shadow_ids_are_the_servers_to_follow() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::with(&[fake.url()], "shadow = true\n");
    fake.script(|seen| match seen.path() {
        "/v1/responses" | "/v1/messages" | "/api/embed" => Play::Json(200, json!({"own": true})),
        _ => Play::Usual,
    });
    let user = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        ("/v1/responses", json!({"model": MODEL, "input": "Hi", "previous_response_id": "resp_1"})),
        ("/v1/responses", json!({"model": MODEL, "input": "Hi", "conversation": "conv_1"})),
        (
            "/v1/messages",
            json!({"model": MODEL, "max_tokens": 9, "messages": user,
            "thread": {"type": "continue", "previous_message_id": "msg_1"}}),
        ),
        ("/api/embed", json!({"model": MODEL, "input": "Hi"})),
    ] {
        assert_eq!(ask(&proxy, path, "", &body).ok().json(), json!({"own": true}), "{path}");
        assert_eq!(fake.all().iter().rfind(|seen| seen.path() == path).unwrap().json(), body);
    }
}
