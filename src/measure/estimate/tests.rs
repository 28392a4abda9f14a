//! Estimates learn, err high, add up, and bear whatever a server reports.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::wire::openai_chat;

fn talk(messages: &[Value]) -> Conversation {
    let body = Bytes::from(json!({"model": "m", "messages": messages}).to_string());
    openai_chat::parse(&body).unwrap().conversation
}

/// A session of an agent that reads files: a system prompt, then a question, calls and results.
fn session(steps: usize) -> Vec<Value> {
    let mut out = vec![
        json!({"role": "system", "content": "You are a careful engineer. Read before you write."}),
        json!({"role": "user", "content": "Why does the parser loop on an empty line?"}),
    ];
    for i in 0..steps {
        let arguments = json!({"path": format!("src/part_{i}.rs"), "from": i * 40}).to_string();
        let call =
            json!({"id": format!("c{i}"), "type": "function", "function": {"name": "read", "arguments": arguments}});
        out.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        let text = format!("    let next = self.cursor.take({i})?;\n    if next.is_empty() {{ return Ok(None); }}\n");
        out.push(json!({"role": "tool", "tool_call_id": format!("c{i}"), "content": text.repeat(6 + i % 5)}));
    }
    out
}

fn total(facts: &Facts) -> Tokens {
    facts.head() + facts.costs.iter().map(Cost::total).sum::<Tokens>()
}

/// A server whose vocabulary makes `ratio` of each token by the rule of thumb and whose template adds `around` to each message.
fn truth(conversation: &Conversation, ratio: f64, around: f64) -> Tokens {
    let all = conversation.system.iter().chain(&conversation.body);
    let text = |m: &Message| {
        let calls = m.calls.iter().map(|c| tokens::estimate(&c.name) + tokens::estimate(&c.arguments));
        tokens::estimate(&m.text) + calls.sum::<Tokens>()
    };
    all.map(|m| f64::from(text(m)) * ratio + around).sum::<f64>() as Tokens
}

/// Sends a session prompt by prompt; the errors as shares of the truth.
fn replay(model: &str, ratio: f64, around: f64) -> Vec<f64> {
    let estimates = Estimates::default();
    let messages = session(24);
    let mut known = None;
    let mut out = Vec::new();
    for end in (2..=messages.len()).step_by(2) {
        let conversation = talk(&messages[..end]);
        let truth = truth(&conversation, ratio, around);
        let estimate = total(&estimates.facts(model, &conversation, &View::default(), known));
        out.push(f64::from(estimate) / f64::from(truth) - 1.0);
        let sample = estimates.sample(model, &conversation, &View::default(), known);
        estimates.learn(model, &sample, truth);
        known = Some(Known { messages: conversation.body.len(), tokens: truth });
    }
    out
}

#[test]
fn indented_tools_are_as_long_as_others() {
    let tools = json!([{"type": "function", "function": {"name": "read", "description": "Reads a file.\nAll of it.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "from": {"type": "integer"}}}}}]);
    let body = json!({"model": "m", "messages": session(1), "tools": tools});
    let size = |body: String| {
        let conversation = openai_chat::parse(&Bytes::from(body)).unwrap().conversation;
        Estimates::default().facts("m", &conversation, &View::default(), None).tools
    };
    assert_eq!(size(format!("{body:#}")), size(body.to_string()));
}

#[test]
fn three_replies_teach_another_vocabulary_and_template() {
    for (model, ratio, around) in [
        ("qwen3:8b", 1.0, 5.0),
        ("qwen3:8b", 1.0, 20.0),
        ("my-model", 1.0, 4.0),
        ("my-model", 1.25, 9.0),
        ("my-model", 0.8, 2.0),
    ] {
        let errors = replay(model, ratio, around);
        // The first prompts are short: a margin of a few tokens is a large share of them.
        let after = &errors[3..];
        assert!(after.iter().all(|e| (-0.01..0.2).contains(e)), "{model}, {ratio}, {around}: {errors:?}");
        let mean = after.iter().map(|e| e.abs()).sum::<f64>() / after.len() as f64;
        assert!(mean < 0.05, "{model}, {ratio}, {around}: {mean}");
    }
}

#[test]
fn the_beginning_is_exact_and_shares_add_up() {
    let estimates = Estimates::default();
    let messages = session(40);
    let conversation = talk(&messages);
    let known = Known { messages: conversation.body.len(), tokens: 7919 };
    let facts = estimates.facts("my-model", &conversation, &View::default(), Some(known));
    assert!(total(&facts).abs_diff(7919) <= 1, "{}", total(&facts));
    let part = Known { messages: 21, tokens: 3001 };
    let facts = estimates.facts("my-model", &conversation, &View::default(), Some(part));
    let first = facts.head() + facts.costs[..21].iter().map(Cost::total).sum::<Tokens>();
    assert!(first.abs_diff(3001) <= 1, "{first}");
    assert_eq!(estimates.facts("my-model", &conversation, &View::default(), Some(part)).costs, facts.costs);
}

#[test]
fn a_longer_conversation_is_never_less() {
    let estimates = Estimates::default();
    let messages = session(20);
    for known in [None, Some(Known { messages: 1, tokens: 60 })] {
        let mut before = 0;
        for end in 2..=messages.len() {
            let now = total(&estimates.facts("llama3.1", &talk(&messages[..end]), &View::default(), known));
            assert!(now > before, "{now} behind {before} at {end}");
            before = now;
        }
    }
}

#[test]
fn absurd_reports_do_no_harm() {
    let conversation = talk(&session(10));
    let plain = Estimates::default();
    let expected = total(&plain.facts("my-model", &conversation, &View::default(), None));
    let absurd = Estimates::default();
    let known = Some(Known { messages: 3, tokens: 200 });
    for (known, reported) in [(None, 0), (None, Tokens::MAX), (known, 7), (known, 1_000_000)] {
        let sample = absurd.sample("my-model", &conversation, &View::default(), known);
        absurd.learn("my-model", &sample, reported);
    }
    assert!(!absurd.is_corrected("my-model"));
    assert_eq!(total(&absurd.facts("my-model", &conversation, &View::default(), None)), expected);
    // What is only wrong is forgotten again.
    let truth = truth(&conversation, 1.0, 6.0);
    for reported in [truth * 3, 40, truth, truth, truth] {
        let sample = absurd.sample("my-model", &conversation, &View::default(), None);
        absurd.learn("my-model", &sample, reported);
    }
    let now = total(&absurd.facts("my-model", &conversation, &View::default(), None));
    assert!(now >= truth - truth / 100 && now <= truth + truth / 4, "{now} of {truth}");
}

#[test]
fn what_an_edit_puts_in_place_is_what_counts() {
    let estimates = Estimates::default();
    let conversation = talk(&session(12));
    let text = |at: usize, text: &str| Edit::Text {
        at,
        digest: conversation.body[at].digest,
        rule: crate::conversation::edit::Rule::Clear,
        text: text.into(),
        record: String::new(),
    };
    let view = View {
        messages: conversation.body.len(),
        edits: vec![text(2, "[cleared]"), text(4, "[cleared]")],
        ..View::default()
    };
    let sample = |view| estimates.sample("qwen3", &conversation, view, None);
    let [before, after] = [sample(&View::default()), sample(&view)].map(|s: Sample| s.new.texts());
    let gone = [2, 4].map(|at| f64::from(tokens::estimate(&conversation.body[at].text)));
    let put = 2.0 * f64::from(tokens::estimate("[cleared]"));
    assert!((before - after - gone.iter().sum::<f64>() + put).abs() < 4.0, "{before} {after}");
    let facts = estimates.facts("qwen3", &conversation, &view, None);
    assert_eq!(facts.edit_costs.len(), 2);
    assert!(facts.edit_costs.iter().all(|t| (4..60).contains(t)), "{:?}", facts.edit_costs);
}

#[test]
fn reasoning_of_earlier_turns_leaves_the_beginning() {
    let estimates = Estimates::default();
    let mut messages = session(1);
    messages.push(json!({"role": "assistant", "content": "Found it.", "reasoning_content": "hm ".repeat(400)}));
    let known = |tokens| Some(Known { messages: 4, tokens });
    let tokens = 900;
    let alone = estimates.sample("m", &talk(&messages), &View::default(), known(tokens));
    assert!(alone.new.texts() < 1.0, "nothing is new");
    messages.push(json!({"role": "user", "content": "Go on."}));
    let next = estimates.sample("m", &talk(&messages), &View::default(), known(tokens));
    assert!(next.new.texts() < -150.0, "{}", next.new.texts());
}

#[test]
fn doubt_of_one_message_is_not_laid_on_the_others() {
    // A template may drop what is called; vocabularies make very different numbers of tokens of blanks.
    for arguments in ["x  y ".repeat(20_000), format!("{{\"path\": \"{}", " ".repeat(300_000))] {
        for (model, known) in
            [("smollm2", None), ("my-model", None), ("my-model", Some(Known { messages: 3, tokens: 500 }))]
        {
            let estimates = Estimates::default();
            let mut messages = session(1);
            let others = total(&estimates.facts(model, &talk(&messages), &View::default(), known));
            let call = json!({"id": "c", "type": "function", "function": {"name": "w", "arguments": arguments}});
            messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
            let all = estimates.facts(model, &talk(&messages), &View::default(), known);
            assert!(total(&all) > 10 * others, "{model}: {} of {others}", total(&all));
            let before = total(&all) - all.costs.last().unwrap().total();
            assert!(before < 2 * others, "{model}: {before} and {others}");
        }
    }
}

/// SmolLM2's template writes what messages say and no calls.
#[test]
fn calls_that_a_template_leaves_out_cost_nothing() {
    let estimates = Estimates::default();
    let view = View::default();
    let mut messages = session(1);
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "w", "arguments": "{\"path\": \"a/b/c.rs\"}"}});
    messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
    messages.push(json!({"role": "assistant", "content": ""}));
    let conversation = talk(&messages);
    let at = conversation.body.len() - 2;
    let arguments = Edit::Arguments {
        at,
        digest: conversation.body[at].digest,
        call: 0,
        rule: crate::conversation::edit::Rule::Clear,
        arguments: "{}".into(),
        record: String::new(),
    };
    let edited = View { messages: at + 2, edits: vec![arguments.clone()], ..View::default() };
    let told = || {
        let costs = estimates.facts("m", &conversation, &view, None).costs;
        let [.., with, without] = &costs[..] else { panic!("two messages") };
        (with.total(), without.total(), estimates.sample("m", &conversation, &view, None).new.texts())
    };
    let (with, without, texts) = told();
    assert!(with > without + 5, "{with} {without}");
    assert_eq!(estimates.writes_calls("m"), None);
    estimates.note_calls("m", (false, 1));
    let silent = told();
    assert_eq!(silent.0, silent.1);
    assert!(silent.2 < texts - 5.0, "{} {texts}", silent.2);
    let costs = estimates.costs("m", &conversation);
    assert_eq!(costs[at].total(), costs[at + 1].total());
    assert_eq!(estimates.edit_cost("m", &conversation, &arguments), 0);
    assert_eq!(estimates.facts("m", &conversation, &edited, None).edit_costs, [0]);
    assert_eq!(estimates.writes_calls("another"), None);
    estimates.note_calls("m", (true, 1));
    assert_eq!(told(), (with, without, texts));
}

/// A server whose template adds less than messages are taken to cost: a short prompt is still no prompt of nothing.
#[test]
fn a_short_prompt_has_tokens() {
    let estimates = Estimates::default();
    let view = View::default();
    for n in 1..12 {
        let conversation = talk(&session(n));
        let sample = estimates.sample("m", &conversation, &view, None);
        let truth = truth(&conversation, 1.0, 0.0).saturating_sub(40);
        estimates.learn("m", &sample, truth);
    }
    for words in ["Hi.", "Hello there!", ""] {
        let told = total(&estimates.facts("m", &talk(&[json!({"role": "user", "content": words})]), &view, None));
        assert!(told > tokens::estimate(words) / 2, "{words}: {told}");
    }
}
