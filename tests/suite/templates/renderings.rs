//! Small templates of what real ones use, rendered as a real llama.cpp server rendered them (`renderings.json` and
//! `continued.json`, written by `renderings.py`).

use serde_json::Value;
use windowsill::engine::ChatTemplate;

#[test]
fn every_prompt_is_llama_cpps_own() {
    compare(include_str!("renderings.json"), 140);
}

#[test]
fn what_a_reply_continues_is_put_as_llama_cpp_puts_it() {
    compare(include_str!("continued.json"), 280);
}

/// Renders what `pinned` has, which is at least this many prompts.
fn compare(pinned: &str, least: usize) {
    let all: Value = serde_json::from_str(pinned).unwrap();
    let conversations = all["conversations"].as_object().unwrap();
    // Those of the model that the server had loaded.
    let ends = ("<|im_start|>", "<|im_end|>");
    let (mut equal, mut wrong) = (0, Vec::new());
    for template in all["templates"].as_array().unwrap() {
        let name = template["name"].as_str().unwrap();
        let read =
            ChatTemplate::read(template["source"].as_str().unwrap(), ends).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (conversation, prompt) in template["renderings"].as_object().unwrap() {
            let request = &conversations[conversation];
            match read.render(request) {
                Ok(text) if text == *prompt => equal += 1,
                other => wrong.push(format!("{name}, {conversation}: {other:?}\n  instead of Ok({prompt})")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong, {equal} equal:\n{}", wrong.len(), wrong.join("\n"));
    assert!(equal > least, "{equal}");
}
