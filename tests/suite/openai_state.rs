//! State in OpenAI's APIs: responses that are read again, listed, deleted, made in the background and canceled; conversations.

use serde_json::{Value, json};

use windowsill::store::{Retention, Store};

use super::support::*;

const WINDOW: u32 = 8192;

fn send(proxy: &TestProxy, method: &str, path: &str, key: &str, body: &Value) -> Answer {
    let key = format!("Bearer {key}");
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    request(proxy.address, method, path, &[("Authorization", &key), ("Content-Type", "application/json")], &body)
}

fn get(proxy: &TestProxy, path: &str) -> Answer {
    send(proxy, "GET", path, "mine", &Value::Null)
}

fn post(proxy: &TestProxy, path: &str, body: &Value) -> Answer {
    send(proxy, "POST", path, "mine", body)
}

fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[track_caller]
fn fails(answer: &Answer, status: u16, code: &str, param: &str) {
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["code"], &error["param"]), (status, &json!(code), &json!(param)), "{error}");
    assert_eq!(error["type"], "invalid_request_error");
}

fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

fn forwarded(fake: &Fake) -> Vec<String> {
    fake.last().json()["messages"].as_array().unwrap().iter().map(|message| text(message).to_owned()).collect()
}

#[test]
fn a_response_is_read_again_listed_and_deleted() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::Vllm] {
        let fake = Fake::start(kind, WINDOW);
        let proxy = TestProxy::before(&fake);
        let first = json!({"model": MODEL, "instructions": "One.", "metadata": {"a": "b"},
            "input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]});
        let one = post(&proxy, "/v1/responses", &first).ok().json();
        let path = format!("/v1/responses/{}", one["id"].as_str().unwrap());
        let next = json!({"model": MODEL, "input": "And?", "previous_response_id": one["id"]});
        let two = post(&proxy, "/v1/responses", &next).ok().json();
        assert_eq!(get(&proxy, &path).ok().json(), one, "{kind:?}");
        let list =
            get(&proxy, &format!("/v1/responses/{}/input_items?order=asc", two["id"].as_str().unwrap())).ok().json();
        let said: Vec<&str> =
            list["data"].as_array().unwrap().iter().map(|item| item["content"][0]["text"].as_str().unwrap()).collect();
        let answered = one["output"][0]["content"][0]["text"].as_str().unwrap();
        assert_eq!(said, ["Be brief.", "Hi", answered, "And?"]);
        // From the newest, page by page.
        let items = format!("/v1/responses/{}/input_items", two["id"].as_str().unwrap());
        let page = get(&proxy, &format!("{items}?limit=3")).ok().json();
        assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (3, &json!(true)));
        let rest = get(&proxy, &format!("{items}?limit=3&after={}", page["last_id"].as_str().unwrap())).ok().json();
        assert_eq!((ids(&rest), &rest["has_more"]), (vec![ids(&list)[0]], &json!(false)));
        fails(&get(&proxy, &format!("{items}?limit=0")), 400, "invalid_value", "limit");
        fails(&get(&proxy, &format!("{items}?order=up")), 400, "invalid_value", "order");
        fails(&get(&proxy, &format!("{items}?after=none")), 400, "invalid_value", "after");
        // Nobody else sees it; and it is there after a restart.
        let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
        for key in ["yours", ""] {
            for path in [path.clone(), format!("{path}/input_items")] {
                fails(&send(&proxy, "GET", &path, key, &Value::Null), 404, "response_not_found", "response_id");
            }
            assert_eq!(send(&proxy, "DELETE", &path, key, &Value::Null).status, 404);
        }
        assert_eq!(get(&proxy, &path).ok().json(), one);
        fails(&post(&proxy, &format!("{path}/cancel"), &json!({})), 400, "not_in_background", "response_id");
        fails(&get(&proxy, &format!("{path}?stream=true")), 400, "events_not_kept", "stream");
        let deleted = send(&proxy, "DELETE", &path, "mine", &Value::Null).ok().json();
        assert_eq!(deleted, json!({"id": one["id"], "object": "response", "deleted": true}));
        fails(&get(&proxy, &path), 404, "response_not_found", "response_id");
        // Its own path is a fork of its own: the other stays.
        get(&proxy, &format!("/v1/responses/{}", two["id"].as_str().unwrap())).ok();
    }
}

#[test]
fn what_is_not_stored_and_what_is_gone_says_so() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let unstored = post(&proxy, "/v1/responses", &json!({"model": MODEL, "input": "Hi", "store": false})).ok().json();
    let path = format!("/v1/responses/{}", unstored["id"].as_str().unwrap());
    fails(&get(&proxy, &path), 404, "response_not_found", "response_id");
    fails(&get(&proxy, "/v1/responses/resp_none/input_items"), 404, "response_not_found", "response_id");
    fails(&post(&proxy, "/v1/responses/resp_none/cancel", &json!({})), 404, "response_not_found", "response_id");
    let kept = post(&proxy, "/v1/responses", &json!({"model": MODEL, "input": "Ho"})).ok().json();
    let conversation = post(&proxy, "/v1/conversations", &json!({})).ok().json();
    let dir = proxy.stop();
    let store = Store::open(&dir.path().join("data")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let later = i64::try_from(now.as_millis()).unwrap() + 10 * 86_400_000;
    runtime.block_on(store.prune(Retention { days: 1, bytes: 0 }, later)).unwrap();
    drop(store);
    let proxy = TestProxy::at(dir, &[fake.url()], "");
    for path in ["", "/input_items"] {
        let gone = get(&proxy, &format!("/v1/responses/{}{path}", kept["id"].as_str().unwrap()));
        fails(&gone, 410, "response_not_found", "response_id");
        assert!(gone.json()["error"]["message"].as_str().unwrap().contains("was pruned on 20"));
    }
    let gone = get(&proxy, &format!("/v1/conversations/{}", conversation["id"].as_str().unwrap()));
    fails(&gone, 410, "conversation_not_found", "conversation_id");
    let asked = json!({"model": MODEL, "input": "Hi", "conversation": conversation["id"]});
    fails(&post(&proxy, "/v1/responses", &asked), 410, "conversation_not_found", "conversation");
}

#[test]
fn a_server_that_keeps_responses_itself_answers_for_those() {
    let fake = Fake::start(Kind::Vllm, WINDOW);
    fake.script(|seen| match seen.path() {
        "/v1/responses/resp_theirs" => Play::Json(200, json!({"id": "resp_theirs", "object": "response"})),
        _ => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    assert_eq!(get(&proxy, "/v1/responses/resp_theirs").ok().json()["id"], "resp_theirs");
    fails(&get(&proxy, "/v1/responses/resp_other"), 404, "response_not_found", "response_id");
}

#[test]
fn a_response_is_made_in_the_background_and_read_on_from_any_event() {
    for stream in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, WINDOW);
        let proxy = TestProxy::before(&fake);
        let asked = json!({"model": MODEL, "input": "Hi", "background": true, "stream": stream});
        let answer = post(&proxy, "/v1/responses", &asked).ok();
        let begun = if stream { events(&answer)[0]["response"].clone() } else { answer.json() };
        assert_eq!((&begun["background"], &begun["status"]), (&json!(true), &json!("in_progress")));
        let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
        let done = loop {
            let now = get(&proxy, &path).ok().json();
            if now["status"] != "in_progress" {
                break now;
            }
        };
        assert_eq!((&done["status"], &done["id"]), (&json!("completed"), &begun["id"]));
        assert_eq!(done["output"][0]["content"][0]["text"], "Done; what is next?");
        let all = events(&get(&proxy, &format!("{path}?stream=true")).ok());
        let numbers: Vec<u64> = all.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..all.len() as u64).collect::<Vec<_>>());
        assert_eq!(all.last().unwrap()["response"], done);
        if stream {
            assert_eq!(events(&answer), all);
        }
        let rest = events(&get(&proxy, &format!("{path}?stream=true&starting_after=3&include_obfuscation=false")).ok());
        assert_eq!(rest, all[4..]);
        fails(&get(&proxy, &format!("{path}?stream=true&starting_after=x")), 400, "invalid_value", "starting_after");
        assert_eq!(get(&proxy, &format!("{path}/input_items")).ok().json()["data"][0]["content"][0]["text"], "Hi");
        for path in [path.clone(), format!("{path}?stream=true")] {
            assert_eq!(send(&proxy, "GET", &path, "yours", &Value::Null).status, 404);
        }
        // One that is over is not canceled, and is gone on from like any.
        assert_eq!(post(&proxy, &format!("{path}/cancel"), &json!({})).ok().json()["status"], "completed");
        let next = json!({"model": MODEL, "input": "And?", "previous_response_id": begun["id"]});
        post(&proxy, "/v1/responses", &next).ok();
        assert_eq!(forwarded(&fake), ["Hi", "Done; what is next?", "And?"]);
        let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
        let later = get(&proxy, &path).ok().json();
        assert_eq!((&later["status"], &later["output"]), (&json!("completed"), &done["output"]));
    }
}

#[test]
fn a_response_in_the_background_is_canceled() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let gate = Gate::default();
    fake.script(move |seen| match seen.is_main() {
        true => Play::Wait(gate.clone(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let proxy = TestProxy::before(&fake);
    let begun = post(&proxy, "/v1/responses", &json!({"model": MODEL, "input": "Hi", "background": true})).ok().json();
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    assert_eq!(send(&proxy, "POST", &format!("{path}/cancel"), "yours", &json!({})).status, 404);
    for _ in 0..2 {
        assert_eq!(post(&proxy, &format!("{path}/cancel"), &json!({})).ok().json()["status"], "cancelled");
    }
    assert_eq!(get(&proxy, &path).ok().json()["status"], "cancelled");
    let seen = events(&get(&proxy, &format!("{path}?stream=true")).ok());
    assert_eq!(seen[0]["type"], "response.created", "it ends");
    // What is not stored cannot be asked for later: it comes on this connection, and says so.
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let asked = json!({"model": MODEL, "input": "Hi", "background": true, "store": false});
    let answer = post(&proxy, "/v1/responses", &asked).ok();
    assert_eq!((&answer.json()["status"], &answer.json()["background"]), (&json!("completed"), &json!(false)));
    assert!(answer.header("x-windowsill-warning").unwrap().contains("not in the background"));
}

#[test]
fn a_conversation_is_kept_with_its_items() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let items = json!([{"type": "message", "role": "user", "content": "My name is Ada."}]);
    let made = post(&proxy, "/v1/conversations", &json!({"items": items, "metadata": {"topic": "names"}})).ok().json();
    assert_eq!((&made["object"], &made["metadata"]["topic"]), (&json!("conversation"), &json!("names")));
    let path = format!("/v1/conversations/{}", made["id"].as_str().unwrap());
    assert!(path.starts_with("/v1/conversations/conv_"));
    assert_eq!(get(&proxy, &path).ok().json(), made);
    let named = post(&proxy, &path, &json!({"metadata": {"topic": "other"}})).ok().json();
    assert_eq!(named["metadata"], json!({"topic": "other"}));
    let more = json!({"items": [{"role": "assistant", "content": "Hello, Ada."},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "18"}]});
    let added = post(&proxy, &format!("{path}/items"), &more).ok().json();
    assert_eq!((ids(&added).len(), &added["has_more"]), (3, &json!(false)));
    let list = get(&proxy, &format!("{path}/items?order=asc&limit=2")).ok().json();
    assert_eq!((ids(&list).len(), &list["has_more"]), (2, &json!(true)));
    assert_eq!(list["data"][0]["content"], json!([{"type": "input_text", "text": "My name is Ada."}]));
    let output = ids(&added)[2].to_owned();
    let one = get(&proxy, &format!("{path}/items/{output}")).ok().json();
    assert_eq!((&one["output"], &one["id"]), (&json!("18"), &json!(output)));
    assert_eq!(
        send(&proxy, "DELETE", &format!("{path}/items/{output}"), "mine", &Value::Null).ok().json()["id"],
        made["id"]
    );
    fails(&get(&proxy, &format!("{path}/items/{output}")), 404, "item_not_found", "item_id");
    // Of another key's there is nothing.
    for (method, path) in
        [("GET", path.clone()), ("POST", path.clone()), ("DELETE", path.clone()), ("GET", format!("{path}/items"))]
    {
        let other = send(&proxy, method, &path, "yours", &json!({"metadata": {}}));
        fails(&other, 404, "conversation_not_found", "conversation_id");
    }
    // What is too much is refused by its name.
    let many: Vec<Value> = (0..21).map(|n| json!({"role": "user", "content": n.to_string()})).collect();
    for path in ["/v1/conversations".to_owned(), format!("{path}/items")] {
        fails(&post(&proxy, &path, &json!({"items": many})), 400, "array_above_max_length", "items");
    }
    fails(&post(&proxy, &path, &json!({"metadata": {"a": 1}})), 400, "invalid_value", "metadata.a");
    fails(&post(&proxy, &format!("{path}/items"), &json!({"items": [1]})), 400, "invalid_value", "items[0]");
    let deleted = send(&proxy, "DELETE", &path, "mine", &Value::Null).ok().json();
    assert_eq!(deleted, json!({"id": made["id"], "object": "conversation.deleted", "deleted": true}));
    fails(&get(&proxy, &path), 404, "conversation_not_found", "conversation_id");
}

#[test]
fn a_response_reads_a_conversation_and_adds_to_it() {
    for stream in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, WINDOW);
        let proxy = TestProxy::before(&fake);
        let items =
            json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "My name is Ada."}]);
        let made = post(&proxy, "/v1/conversations", &json!({"items": items})).ok().json();
        let id = made["id"].as_str().unwrap().to_owned();
        let ask = |proxy: &TestProxy, named: Value, text: &str| {
            let body = json!({"model": MODEL, "instructions": "Help.", "input": text, "conversation": named, "stream": stream});
            let answer = post(proxy, "/v1/responses", &body).ok();
            let response = if stream { events(&answer).last().unwrap()["response"].clone() } else { answer.json() };
            (response, answer.header("x-windowsill-conversation").unwrap().to_owned())
        };
        let (one, first) = ask(&proxy, json!(id), "Who am I?");
        assert_eq!(one["conversation"], json!({"id": id}));
        assert_eq!(forwarded(&fake), ["Help.\n\nBe brief.", "My name is Ada.", "Who am I?"]);
        let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
        let (_, second) = ask(&proxy, json!({"id": id}), "And now?");
        let expect = ["Help.\n\nBe brief.", "My name is Ada.", "Who am I?", "Done; what is next?", "And now?"];
        assert_eq!((forwarded(&fake), first), (expect.map(str::to_owned).to_vec(), second), "it is one conversation");
        let list = get(&proxy, &format!("/v1/conversations/{id}/items?order=asc")).ok().json();
        assert_eq!(ids(&list).len(), 6);
        assert_eq!(list["data"][3]["id"], one["output"][0]["id"]);
        // An id of both is a contradiction; an unknown one is not answered as another question.
        let both = json!({"model": MODEL, "input": "x", "conversation": id, "previous_response_id": one["id"]});
        assert_eq!(post(&proxy, "/v1/responses", &both).json()["error"]["param"], "previous_response_id");
        let vllm = Fake::start(Kind::Vllm, WINDOW);
        let proxy = TestProxy::before(&vllm);
        let unknown = json!({"model": MODEL, "input": "x", "conversation": "conv_none", "stream": stream});
        fails(&post(&proxy, "/v1/responses", &unknown), 404, "conversation_not_found", "conversation");
    }
}

#[test]
fn a_long_conversation_is_compacted_where_it_is_kept() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let made = post(&proxy, "/v1/conversations", &json!({})).ok().json();
    let mut compacted = 0;
    for n in 0..12 {
        let asked = json!({"model": MODEL, "conversation": made["id"], "input": format!("PART-{n} {}", prose(n, 2000)),
            "context_management": [{"type": "compaction", "compact_threshold": 3000}]});
        let response = post(&proxy, "/v1/responses", &asked).ok().json();
        compacted += response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "compaction").count();
        assert!(tokens(&fake.last().json()) < WINDOW);
    }
    assert!((2..7).contains(&compacted), "{compacted} compactions");
    assert!(json!(forwarded(&fake)).to_string().contains("[windowsill brief of"));
}
