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
    let texts = [&filter.text, &filter.reasoning, &filter.earlier_text, &filter.held].map(String::capacity);
    texts.iter().sum::<usize>() + filter.calls.iter().map(held).sum::<usize>()
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
