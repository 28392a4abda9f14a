//! Small templates of what real ones use, rendered as a real llama.cpp server rendered them (`renderings.json` and
//! `continued.json`, written by `renderings.py`).

use serde_json::Value;
use windowsill::template::{Options, Template, TemplateError};

#[test]
fn every_prompt_is_llama_cpps_own() {
    let one_by_one = compare(include_str!("renderings.json"), 140);
    assert!(one_by_one > 100, "{one_by_one}");
}

#[test]
fn what_a_reply_continues_is_put_as_llama_cpp_puts_it() {
    let one_by_one = compare(include_str!("continued.json"), 280);
    assert_eq!(one_by_one, 0, "the last message is not one of those that the template sees");
}

/// Renders what `pinned` has, which is at least this many prompts. How many of them message by message, too.
fn compare(pinned: &str, least: usize) -> usize {
    let all: Value = serde_json::from_str(pinned).unwrap();
    let conversations = all["conversations"].as_object().unwrap();
    // Those of the model that the server had loaded.
    let options = Options { bos_token: "<|im_start|>".into(), eos_token: "<|im_end|>".into(), ..Options::default() };
    let (mut equal, mut one_by_one, mut wrong) = (0, 0, Vec::new());
    for template in all["templates"].as_array().unwrap() {
        let name = template["name"].as_str().unwrap();
        let read = Template::new(template["source"].as_str().unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (conversation, prompt) in template["renderings"].as_object().unwrap() {
            let request = &conversations[conversation];
            let whole = read.render_request(request, &options);
            if let Some(ready) = by_messages(&read, request, &options) {
                one_by_one += 1;
                assert_eq!(ready, whole, "{name}, {conversation}: message by message");
            }
            match whole {
                Ok(text) if text == *prompt => equal += 1,
                other => wrong.push(format!("{name}, {conversation}: {other:?}\n  instead of Ok({prompt})")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong, {equal} equal:\n{}", wrong.len(), wrong.join("\n"));
    assert!(equal > least, "{equal}");
    one_by_one
}

/// The prompt of messages that were each made ready before, where the template sees them one by one.
pub(super) fn by_messages(
    template: &Template,
    request: &Value,
    options: &Options,
) -> Option<Result<String, TemplateError>> {
    let messages = request["messages"].as_array()?.iter().map(|m| template.ready(m));
    let mut rest = request.clone();
    rest["messages"] = Value::Null;
    template.render_ready(&messages.collect::<Option<Vec<_>>>()?, &rest, options)
}
