//! Streams and replies as servers write them.

use super::*;
use crate::recall;

fn chunk(delta: Value, finish: Value) -> Value {
    json!({"id": "c", "created": 1, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn part(index: usize, id: &str, name: &str, arguments: &str) -> Value {
    let mut out = json!({"index": index, "function": {"arguments": arguments}});
    if !id.is_empty() {
        out["id"] = json!(id);
    }
    if !name.is_empty() {
        out["function"]["name"] = json!(name);
    }
    out
}

/// What the client gets of some chunks: deltas and reasons to stop.
fn run(filter: &mut Filter, chunks: &[(Value, Value)]) -> Vec<Value> {
    let seen = chunks.iter().filter_map(|(delta, finish)| filter.chunk(chunk(delta.clone(), finish.clone())));
    seen.map(|(mut v, _)| {
        let mut choice = v["choices"][0].take();
        let (delta, finish) = (choice["delta"].take(), choice["finish_reason"].take());
        if finish.is_null() { delta } else { json!([delta, finish]) }
    })
    .collect()
}

const OURS: &str = recall::NAME;

/// Bytes of a reply that are kept here.
const MOST: usize = 1 << 20;

#[test]
fn streams_as_servers_write_them() {
    let calls = |all: &[Value]| json!({"tool_calls": all});
    let none = Value::Null;
    type Case = (&'static str, Vec<(Value, Value)>, Vec<Value>, usize, bool);
    let cases: Vec<Case> = vec![
        (
            "all in one chunk with the role",
            vec![
                (json!({"role": "assistant", "tool_calls": [part(0, "a", OURS, "{}")]}), none.clone()),
                (json!({}), json!("tool_calls")),
            ],
            vec![json!({"role": "assistant"})],
            1,
            true,
        ),
        (
            "another reason to stop, and text in the last chunk",
            vec![(calls(&[part(0, "a", OURS, "{}")]), none.clone()), (json!({"content": "x"}), json!("stop"))],
            vec![json!({"content": "x"})],
            1,
            true,
        ),
        (
            "every call is number 0",
            vec![
                (calls(&[part(0, "a", OURS, "{}")]), none.clone()),
                (calls(&[part(0, "b", "run", "{}")]), none.clone()),
                (calls(&[part(0, "", "", "}")]), none.clone()),
                (json!({}), json!("tool_calls")),
            ],
            vec![calls(&[part(0, "b", "run", "{}")]), calls(&[part(0, "", "", "}")]), json!([{}, "tool_calls"])],
            1,
            false,
        ),
        (
            "names in pieces, calls interleaved",
            vec![
                (calls(&[part(0, "a", "windowsill_", ""), part(1, "b", "window", "")]), none.clone()),
                (calls(&[part(1, "", "_size", "{"), part(0, "", "recall", "{}")]), none.clone()),
                (calls(&[part(1, "", "", "}")]), none.clone()),
                (json!({}), json!("tool_calls")),
            ],
            vec![
                calls(&[part(0, "b", "window", ""), part(0, "", "_size", "{")]),
                calls(&[part(0, "", "", "}")]),
                json!([{}, "tool_calls"]),
            ],
            1,
            false,
        ),
        (
            "cut off in the middle of our call",
            vec![(calls(&[part(0, "a", OURS, "{\"id")]), none.clone()), (json!({}), json!("length"))],
            vec![json!([{}, "length"])],
            0,
            false,
        ),
        (
            "a name that never comes",
            vec![(calls(&[part(3, "a", "", "{}")]), none.clone()), (json!({}), json!("tool_calls"))],
            vec![json!([{"tool_calls": [part(0, "a", "", "{}")]}, "tool_calls"])],
            0,
            false,
        ),
    ];
    for (what, chunks, expect, ours, goes_on) in cases {
        let mut filter = Filter::new(true, vec![crate::recall::NAME], MOST, Answered::default());
        assert_eq!(run(&mut filter, &chunks), expect, "{what}");
        assert_eq!((filter.ours().len(), filter.goes_on()), (ours, goes_on), "{what}");
    }
}

#[test]
fn rounds_read_as_one_reply() {
    let mut filter = Filter::new(true, vec![crate::recall::NAME], MOST, Answered::default());
    let none = Value::Null;
    run(&mut filter, &[(json!({"role": "assistant", "content": "Look."}), none.clone())]);
    run(&mut filter, &[(json!({"tool_calls": [part(0, "a", OURS, "{}")]}), json!("tool_calls"))]);
    assert!(filter.goes_on());
    filter.next_round(12, false);
    let second = [(json!({"role": "assistant", "content": ""}), none.clone()), (json!({"content": "42"}), none)];
    assert_eq!(run(&mut filter, &second), [json!({"content": "\n\n42"})]);
    let (last, changed) = filter
        .chunk(json!({"id": "d", "created": 9, "choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 3, "total_tokens": 93}}))
        .unwrap();
    assert!(changed);
    assert_eq!(last["id"], "c");
    assert_eq!(last["usage"], json!({"prompt_tokens": 90, "completion_tokens": 15, "total_tokens": 105}));
    assert_eq!(filter.message(), json!({"role": "assistant", "content": "Look.\n\n42"}));
    // Where each token counts, nothing is put between.
    let mut exact = Filter::new(false, vec![crate::recall::NAME], MOST, Answered::default());
    run(&mut exact, &[(json!({"content": "a"}), Value::Null)]);
    exact.next_round(1, false);
    assert_eq!(run(&mut exact, &[(json!({"content": "b"}), Value::Null)]), [json!({"content": "b"})]);
}

#[test]
fn whole_replies_that_are_none_pass() {
    for odd in [json!([]), json!({}), json!({"choices": []}), json!({"choices": [{"text": "x"}]}), json!(7)] {
        assert!(
            Filter::new(true, vec![crate::recall::NAME], MOST, Answered::default()).whole(odd.clone()).is_none(),
            "{odd}"
        );
    }
    let plain =
        json!({"id": "c", "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}]});
    assert_eq!(
        Filter::new(true, vec![crate::recall::NAME], MOST, Answered::default()).whole(plain.clone()),
        Some((plain, false))
    );
}

/// What a reply without end leaves in memory, whatever it is made of.
fn kept(filter: &Filter) -> usize {
    let held = |p: &Partial| p.call.arguments.capacity() + p.call.name.capacity() + p.held.len() * FRAGMENT;
    let texts = [&filter.text, &filter.reasoning, &filter.earlier.text, &filter.spoken.held].map(String::capacity);
    texts.iter().sum::<usize>() + filter.calls.all.iter().map(held).sum::<usize>()
}

#[test]
fn a_reply_without_end_passes_on_and_is_not_kept() {
    let words = "word ".repeat(1000);
    let deltas = [
        json!({"content": words}),
        json!({"reasoning_content": words}),
        json!({"tool_calls": [part(0, "a", "theirs", &words)]}),
        json!({"tool_calls": [part(0, "a", OURS, &words)]}),
        // A call that never gets its name.
        json!({"tool_calls": [part(0, "", "", &words)]}),
        // Text that may become a call of ours for as long as it goes on.
        json!({"content": " ".repeat(5000)}),
    ];
    for delta in deltas {
        let mut filter = Filter::new(true, vec![crate::recall::NAME], 64 * 1024, Answered::default());
        let mut passed = 0;
        for _ in 0..400 {
            if let Some((chunk, _)) = filter.chunk(chunk(delta.clone(), Value::Null)) {
                passed += chunk.to_string().len();
            }
            assert!(kept(&filter) < 256 * 1024, "{} bytes of {delta:.60}", kept(&filter));
        }
        assert!(filter.is_endless(), "{delta:.60}");
        let ours = delta.pointer("/tool_calls/0/function/name") == Some(&json!(OURS));
        assert!(ours || passed > 1_900_000, "{passed} of {delta:.60}");
        filter.chunk(chunk(json!({}), json!("stop")));
        assert!(filter.ours().is_empty() && !filter.goes_on());
    }
}

/// What a client puts together of deltas: name and arguments of each of its calls.
fn put_together(deltas: &[Value]) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let deltas = deltas.iter().map(|delta| delta.as_array().map_or(delta, |with_finish| &with_finish[0]));
    for part in deltas.filter_map(|delta| delta["tool_calls"].as_array()).flatten() {
        let at = part["index"].as_u64().unwrap() as usize;
        assert!(at <= all.len(), "{at} of {}: {part}", all.len());
        if at == all.len() {
            all.push((String::new(), String::new()));
        }
        all[at].0.push_str(part["function"]["name"].as_str().unwrap_or(""));
        all[at].1.push_str(part["function"]["arguments"].as_str().unwrap_or(""));
    }
    all
}

/// A part of call `n` as a server numbers it.
type Numbered = fn(usize) -> usize;

#[test]
fn of_very_many_calls_all_go_to_the_client_in_order() {
    let ends = (json!({}), json!("tool_calls"));
    for number in [(|n| n) as Numbered, |_| 0] {
        let mut filter = Filter::new(true, vec![OURS], MOST, Answered::default());
        let names = ["run", "windowsill_recall_all", "window"];
        let of = |n: usize| (names[n % 3].to_owned(), format!("{{\"n\":{n}}}"));
        let mut chunks = Vec::new();
        for n in 0..3 * LOOKED_AT {
            let (name, arguments) = of(n);
            let (begin, end) = arguments.split_at(3);
            chunks.push((json!({"tool_calls": [part(number(n), &format!("c{n}"), &name, begin)]}), Value::Null));
            chunks.push((json!({"tool_calls": [part(number(n), "", "", end)]}), Value::Null));
        }
        chunks.push(ends.clone());
        let seen = run(&mut filter, &chunks);
        assert_eq!(put_together(&seen), (0..3 * LOOKED_AT).map(of).collect::<Vec<_>>());
        assert!(filter.calls_client() && !filter.goes_on() && filter.is_endless());
        assert_eq!(seen.last(), Some(&json!([{}, "tool_calls"])));
    }
    // Of the first ones, ours stay here, whatever follows.
    let mut filter = Filter::new(true, vec![OURS], MOST, Answered::default());
    let name = |n: usize| if (4..=LOOKED_AT).contains(&n) { "run" } else { OURS };
    let chunks =
        (0..LOOKED_AT + 9).map(|n| (json!({"tool_calls": [part(n, &format!("c{n}"), name(n), "{}")]}), Value::Null));
    let seen = run(&mut filter, &chunks.chain([ends]).collect::<Vec<_>>());
    let names: Vec<String> = put_together(&seen).into_iter().map(|(name, _)| name).collect();
    assert_eq!((names.len(), names.iter().filter(|name| *name == OURS).count()), (LOOKED_AT + 5, 8));
    assert!(filter.ours().is_empty() && !filter.goes_on());
}

#[test]
fn a_whole_reply_of_very_many_calls_is_the_clients_with_its_text() {
    let reply = |calls: usize, name: &str| {
        let calls: Vec<Value> =
            (0..calls).map(|n| part(n, &format!("c{n}"), if n == 1 { name } else { "run" }, "{}")).collect();
        json!({"id": "c", "choices": [{"finish_reason": "tool_calls", "message": {"content": "Look.", "reasoning_content": "So.", "tool_calls": calls}}]})
    };
    let mut filter = Filter::new(true, vec![OURS], MOST, Answered::default());
    let many = reply(2_000, "run");
    assert!(filter.whole(many.clone()) == Some((many, false)), "it passes as it is");
    assert!(filter.calls_client() && !filter.goes_on());
    let mut filter = Filter::new(true, vec![OURS], MOST, Answered::default());
    let (seen, changed) = filter.whole(reply(2_000, OURS)).unwrap();
    let message = &seen["choices"][0]["message"];
    assert_eq!((message["content"].as_str(), message["reasoning_content"].as_str()), (Some("Look."), Some("So.")));
    assert_eq!((message["tool_calls"].as_array().unwrap().len(), changed), (1_999, true));
    assert_eq!(seen["choices"][0]["finish_reason"], "tool_calls");
    assert!(filter.ours().is_empty() && !filter.goes_on());
}

/// Some systems count what a thread computed in ticks of 4 ms: less than a few of them says nothing. What grew with the square of
/// the calls took seconds.
const TICKS: u64 = 20_000_000;

/// Nanoseconds that this thread has computed, where the system tells it: what else runs is not in it.
fn computed() -> u64 {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let told = told.and_then(|told| told.split(' ').next()?.parse().ok());
    told.unwrap_or_else(|| START.elapsed().as_nanos() as u64)
}

#[test]
fn a_call_costs_the_same_however_many_came_before_it() {
    let stream = |calls: usize, finish: &Value| {
        let mut filter = Filter::new(true, vec![OURS], 1 << 30, Answered::default());
        let started = computed();
        for n in 0..calls {
            let delta = json!({"tool_calls": [part(n, &format!("c{n}"), "run", "{\"a\": 1}")]});
            assert!(filter.chunk(chunk(delta, finish.clone())).is_some());
        }
        computed() - started
    };
    let whole = |calls: usize| {
        let calls: Vec<Value> = (0..calls).map(|n| part(n, &format!("c{n}"), "run", "{\"a\": 1}")).collect();
        let reply = json!({"id": "c", "choices": [{"message": {"content": "", "tool_calls": calls}}]});
        let mut filter = Filter::new(true, vec![OURS], 1 << 30, Answered::default());
        let started = computed();
        assert!(filter.whole(reply).is_some_and(|(_, changed)| !changed));
        computed() - started
    };
    let by_stream = |calls| stream(calls, &Value::Null);
    // Some servers say with each chunk why they stop.
    let by_finished_stream = |calls| stream(calls, &json!("tool_calls"));
    for (what, cost) in
        [("streamed", &by_stream as &dyn Fn(usize) -> u64), ("finished", &by_finished_stream), ("whole", &whole)]
    {
        // The square of four is sixteen.
        let least = |calls: usize| (0..3).map(|_| cost(calls)).min().unwrap_or(0).max(1);
        let (few, many) = (least(4_000), least(16_000));
        assert!(many < 9 * few.max(TICKS), "{what}: {few} ns for 4,000 calls, {many} for 16,000");
    }
}

#[test]
fn what_a_server_must_hear_again_stays_with_a_call() {
    let extra = json!({"google": {"thought_signature": "Ab+/c=="}});
    let mut head = part(0, "a", OURS, "");
    head["extra_content"] = extra.clone();
    let mut filter = Filter::new(true, vec![OURS], MOST, Answered::default());
    let chunks = [
        (json!({"role": "assistant", "tool_calls": [head]}), Value::Null),
        (json!({"tool_calls": [part(0, "", "", "{}")]}), json!("tool_calls")),
    ];
    run(&mut filter, &chunks);
    let calls = filter.ours();
    assert_eq!((calls.len(), &call_json(&calls[0])["extra_content"]), (1, &extra));
    assert!(call_json(&Call::default()).get("extra_content").is_none());
}
