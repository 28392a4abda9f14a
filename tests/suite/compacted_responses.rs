//! Compaction in OpenAI's Responses API: on demand (`compaction_trigger`, `/v1/responses/compact`), within a request
//! (`context_management`), and the items that come back.

use serde_json::{Value, json};

use super::support::*;

const WINDOW: u32 = 8192;

fn ask(proxy: &TestProxy, path: &str, key: &str, body: &Value) -> Answer {
    let key = format!("Bearer {key}");
    proxy.post(path, &[("Authorization", &key)], body.to_string().as_bytes())
}

fn user(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
}

fn system() -> Value {
    json!({"type": "message", "role": "developer", "content": "Be brief."})
}

/// A session with results, most of a window long.
fn session() -> Vec<Value> {
    let mut all = vec![system(), user("Mend the build of the ingest service. The port is 4711.")];
    for n in 0..6 {
        let id = format!("call_{n}");
        let arguments = json!({"path": format!("src/part{n}.rs")}).to_string();
        all.push(json!({"type": "function_call", "call_id": id, "name": "read_file", "arguments": arguments}));
        let output = format!("PART-{n} {}", prose(n, 2400));
        all.push(json!({"type": "function_call_output", "call_id": id, "output": output}));
    }
    all.push(
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "All read."}]}),
    );
    all
}

fn tools() -> Value {
    json!([{"type": "function", "name": "read_file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}])
}

fn body(input: &[Value], more: Value) -> Value {
    let mut body = json!({"model": MODEL, "instructions": "You mend builds.", "tools": tools(), "input": input});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let all = events.iter().map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap());
    all.filter(|kind| !kind.contains("delta") && !kind.contains("part")).collect()
}

/// The response object of a reply, streamed or not.
fn response(answer: &Answer) -> Value {
    match answer.text().starts_with("event:") {
        true => events(answer).last().unwrap()["response"].clone(),
        false => answer.json(),
    }
}

/// What the model was sent last.
fn forwarded(fake: &Fake) -> Vec<Value> {
    fake.last().json()["messages"].as_array().unwrap().clone()
}

fn conversation(answer: &Answer) -> String {
    answer.header("x-windowsill-conversation").unwrap().to_owned()
}

#[test]
fn a_trigger_is_answered_with_one_item_that_stands_for_the_history() {
    for kind in [Kind::LlamaServer, Kind::Ollama, Kind::Vllm] {
        for stream in [false, true] {
            let fake = Fake::start(kind, WINDOW);
            let proxy = TestProxy::before(&fake);
            let mut input = session();
            input.push(json!({"type": "compaction_trigger"}));
            let answer = ask(&proxy, "/v1/responses", "mine", &body(&input, json!({"stream": stream}))).ok();
            assert_eq!(fake.count(), 0, "nothing is sampled");
            let response = response(&answer);
            let output = response["output"].as_array().unwrap().clone();
            assert_eq!((output.len(), &output[0]["type"]), (1, &json!("compaction")), "{response}");
            assert_eq!(response["status"], "completed");
            assert!(response["usage"]["input_tokens"].as_u64().unwrap() > 2000, "{}", response["usage"]);
            if stream {
                let events = events(&answer);
                assert_eq!(
                    kinds(&events),
                    [
                        "created",
                        "in_progress",
                        "output_item.added",
                        "compaction.compacting",
                        "output_item.done",
                        "completed"
                    ]
                );
            }
            // The item alone goes on with the whole, folded.
            let next = [system(), output[0].clone(), user("Run the build.")];
            let after = ask(&proxy, "/v1/responses", "mine", &body(&next, json!({}))).ok();
            let sent = forwarded(&fake);
            let all = json!(sent).to_string();
            assert!(all.contains("[windowsill brief of") && all.contains("MARKER-SUMMARY"), "{kind:?}: {all}");
            assert!(all.contains("4711") && !all.contains("PART-0 "), "{all}");
            assert_eq!(text(sent.last().unwrap()), "Run the build.");
            assert_eq!(text(&sent[0]), "You mend builds.\n\nBe brief.");
            // As much was told by the client that prunes nothing.
            let mut whole = session();
            whole.extend([output[0].clone(), user("Run the build.")]);
            let unpruned = ask(&proxy, "/v1/responses", "mine", &body(&whole, json!({}))).ok();
            assert_eq!((forwarded(&fake), conversation(&unpruned)), (sent.clone(), conversation(&after)));
            // After a restart, too; and another key has nothing of it but the text that it was given.
            let proxy = TestProxy::at(proxy.stop(), &[fake.url()], "");
            ask(&proxy, "/v1/responses", "mine", &body(&next, json!({}))).ok();
            assert_eq!(forwarded(&fake), sent);
            let other = ask(&proxy, "/v1/responses", "yours", &body(&next, json!({}))).ok();
            assert!(other.header("x-windowsill-warning").unwrap().contains("another key"));
            assert_ne!(conversation(&other), conversation(&after));
            assert_eq!(text(&forwarded(&fake)[0]), "You mend builds.\n\nBe brief.");
        }
    }
}

#[test]
fn recall_works_through_an_item() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let mut input = session();
    input.push(json!({"type": "compaction_trigger"}));
    let item = response(&ask(&proxy, "/v1/responses", "mine", &body(&input, json!({}))).ok())["output"][0].clone();
    fake.script(|seen| {
        let asked = seen.json();
        if !seen.is_main() || asked["messages"].to_string().contains("PART-3 ") {
            return Play::Usual;
        }
        let arguments = json!({"query": "PART-3"}).to_string();
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "windowsill_recall", "arguments": arguments}});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
        Play::Json(
            200,
            json!({"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}),
        )
    });
    let next = [system(), item, user("What did part 3 say?")];
    ask(&proxy, "/v1/responses", "mine", &body(&next, json!({}))).ok();
    assert!(json!(forwarded(&fake)).to_string().contains("PART-3 "), "what was folded is found again");
}

#[test]
fn compact_gives_what_people_said_and_one_item() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let mut input = session();
    input.insert(6, user("Look at the flush path first."));
    // As openai-agents asks: without the instructions and the session that the other requests have.
    let asked = json!({"model": MODEL, "input": input, "prompt_cache_key": "k", "service_tier": "auto"});
    let compacted = ask(&proxy, "/v1/responses/compact", "mine", &asked).ok();
    let compacted = compacted.json();
    assert_eq!(compacted["object"], "response.compaction");
    assert!(compacted["id"].is_string() && compacted["created_at"].is_u64());
    assert!(compacted["usage"]["total_tokens"].as_u64().unwrap() > 0);
    let output = compacted["output"].as_array().unwrap().clone();
    let of: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(of, ["message", "message", "compaction"]);
    assert_eq!(output[1]["content"][0]["text"], "Look at the flush path first.");
    // It is the next input as it is; what the item holds is not said twice.
    let mut next = output.clone();
    next.push(user("Run the build."));
    ask(&proxy, "/v1/responses", "mine", &body(&next, json!({}))).ok();
    let sent = forwarded(&fake);
    let all = json!(sent).to_string();
    assert_eq!(all.matches("Look at the flush path first.").count(), 1, "{all}");
    assert!(all.contains("MARKER-SUMMARY") && text(&sent[0]).ends_with("Be brief."), "{all}");
    // And again, of what was compacted before, and by the id of an earlier reply.
    let again = ask(&proxy, "/v1/responses/compact", "mine", &body(&next, json!({}))).ok().json();
    assert_eq!(again["output"].as_array().unwrap().len(), 4);
    let one = response(&ask(&proxy, "/v1/responses", "mine", &body(&input, json!({}))).ok());
    let previous = json!({"model": MODEL, "previous_response_id": one["id"]});
    let of_id = ask(&proxy, "/v1/responses/compact", "mine", &previous).ok().json();
    assert_eq!(of_id["output"][1]["content"], output[1]["content"]);
    let unknown = json!({"model": MODEL, "previous_response_id": "resp_none"});
    let refused = ask(&proxy, "/v1/responses/compact", "mine", &unknown);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (404, &json!("previous_response_id")));
}

#[test]
fn a_request_is_compacted_in_its_own_stream() {
    let more = |stream: bool, at: u64| json!({"stream": stream, "context_management": [{"type": "compaction", "compact_threshold": at}]});
    for stream in [false, true] {
        let fake = Fake::start(Kind::LlamaServer, WINDOW);
        let proxy = TestProxy::before(&fake);
        let mut input = session();
        input.push(user("Run the build."));
        // Below the threshold, nothing happens.
        let calm = response(&ask(&proxy, "/v1/responses", "mine", &body(&input, more(stream, 7900))).ok());
        assert_eq!((calm["output"].as_array().unwrap().len(), &calm["output"][0]["type"]), (1, &json!("message")));
        input.push(calm["output"][0].clone());
        input.push(user("And the tests."));
        let answer = ask(&proxy, "/v1/responses", "mine", &body(&input, more(stream, 2000))).ok();
        let response = response(&answer);
        let output = response["output"].as_array().unwrap().clone();
        let of: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(of, ["compaction", "message"], "{response}");
        if stream {
            let expect = ["created", "in_progress", "output_item.added", "compaction.compacting", "output_item.done"];
            assert_eq!(kinds(&events(&answer))[..5], expect);
        }
        let sent = forwarded(&fake);
        assert!(json!(sent).to_string().contains("MARKER-SUMMARY") && text(sent.last().unwrap()) == "And the tests.");
        // The next request goes on from the same prompt, whether the client prunes or not, or names the reply.
        input.extend(output.clone());
        let pruned = [output[0].clone(), output[1].clone(), user("Fine.")];
        input.push(user("Fine."));
        let named = json!({"previous_response_id": response["id"], "context_management": more(stream, 2000)["context_management"]});
        for next in [body(&pruned, json!({})), body(&input, more(stream, 7900)), body(&[user("Fine.")], named)] {
            ask(&proxy, "/v1/responses", "mine", &next).ok();
            let next = forwarded(&fake);
            assert_eq!(next[..sent.len()], sent, "one prompt begins with the other");
            assert_eq!(next.len(), sent.len() + 2);
        }
        assert_eq!(fake.summaries().len(), 1);
    }
}

#[test]
fn what_another_server_compacted_is_left_out_with_a_warning() {
    let fake = Fake::start(Kind::LlamaServer, WINDOW);
    let proxy = TestProxy::before(&fake);
    let foreign = json!({"type": "compaction", "id": "cmp_x", "encrypted_content": "gAAAAABopaque"});
    let answer = ask(&proxy, "/v1/responses", "mine", &body(&[user("Hi."), foreign, user("And?")], json!({}))).ok();
    assert!(answer.header("x-windowsill-warning").unwrap().contains("left out of the prompt: compaction"));
    assert_eq!(forwarded(&fake).len(), 3);
    // A setting that is none is named.
    let wrong = body(&[user("Hi.")], json!({"context_management": [{"type": "shrink"}]}));
    let fake = Fake::start(Kind::Ollama, WINDOW);
    let proxy = TestProxy::before(&fake);
    let refused = ask(&proxy, "/v1/responses", "mine", &wrong);
    if refused.status != 200 {
        assert_eq!(refused.json()["error"]["param"], "context_management[0].type");
    }
}
