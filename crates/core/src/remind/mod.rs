//! Recall ahead: what the last message points at and is missing in the prompt comes back by itself, behind that message's words.
//!
//! [`cue()`] says what a history's end points at; the record searches for it; [`block()`] says what of that comes, if anything;
//! [`put`] sets it behind the message, as an edit like any other. It stays for as long as the message does, goes with the first
//! rewrite that clears what is as old, and is never made again for the same history.

mod block;
mod cue;
mod form;
mod place;

pub use block::{Block, END, HEAD, Standing, block, room};
pub use cue::{About, Cue, Of, cue};

use crate::conversation::Message;
use crate::conversation::edit::{Edit, View};

/// Whether something came behind this message.
pub fn is_behind(view: &View, message: usize) -> bool {
    view.edits.iter().any(|edit| matches!(edit, Edit::Recalled { at, .. } if *at == message))
}

/// Takes back what came behind the last message: the server refused the prompt with it.
pub fn take_back(view: &mut View, body: &[Message]) {
    view.edits.retain(|edit| !matches!(edit, Edit::Recalled { at, .. } if at + 1 == body.len()));
}

/// Sets a block behind the last message.
pub fn put(view: &mut View, body: &[Message], block: Block) {
    let Some((at, message)) = body.iter().enumerate().next_back() else { return };
    view.edits.retain(|edit| !matches!(edit, Edit::Recalled { at: old, .. } if *old == at));
    view.edits.push(Edit::Recalled { at, digest: message.digest, text: block.text.into(), of: block.of });
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::conversation::Conversation;
    use crate::plan::rewrite::rewrite;
    use crate::plan::{Action, Cost, Facts, Policy, TemplateFacts, plan};
    use crate::wire::openai_chat as wire;

    fn conversation(messages: &[String]) -> Conversation {
        wire::parse(&format!(r#"{{"messages":[{}]}}"#, messages.join(",")).into()).unwrap().conversation
    }

    fn block(of: Vec<usize>) -> Block {
        Block { text: format!("{HEAD}\n- 0 (user): \"b\"\n{END}"), of }
    }

    const CALL: &str = r#"{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;

    #[test]
    fn a_block_stands_behind_the_last_words_and_changes_nothing_before() {
        let user = r#"{"role":"user","content":"u"}"#;
        for (last, begins) in [
            (
                r#"{"role":"user","content":"Where was it?"}"#,
                r#"{"role":"user","content":"Where was it?\n\n[from earlier"#,
            ),
            (
                r#"{"role":"user","content":[{"type":"text","text":"q"},{"type":"image_url","image_url":{"url":"x"}}]}"#,
                r#"{"role":"user","content":[{"type":"text","text":"q"},{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"[from earlier"#,
            ),
            (
                r#"{"role":"tool","tool_call_id":"a","content":"error: x"}"#,
                r#"{"role":"tool","tool_call_id":"a","content":"error: x\n\n[from earlier"#,
            ),
        ] {
            let conversation = conversation(&[user, CALL, last].map(str::to_owned));
            let mut view = View::default();
            put(&mut view, &conversation.body, block(vec![0]));
            assert!(is_behind(&view, 2) && !view.lacks());
            // It is on record with the view, and the same bytes come of it.
            let read: View = serde_json::from_str(&serde_json::to_string(&view).unwrap()).unwrap();
            assert_eq!(read, view);
            let bytes = |view: &View| -> Vec<Bytes> {
                rewrite(&conversation, view, &TemplateFacts::default()).into_iter().map(|out| out.bytes).collect()
            };
            let (with, without) = (bytes(&read), bytes(&View::default()));
            assert_eq!(with[..2], without[..2]);
            let said = String::from_utf8_lossy(&with[2]).into_owned();
            assert!(said.starts_with(begins) && said.contains(END), "{said}");
            // A second one takes its place.
            put(&mut view, &conversation.body, block(vec![]));
            assert_eq!(view.edits.len(), 1);
        }
    }

    /// A long session whose second message asked something, with what was recalled behind it.
    fn facts(steps: usize) -> (Conversation, Facts) {
        let mut messages =
            vec![r#"{"role":"user","content":"u"}"#.to_owned(), r#"{"role":"user","content":"v"}"#.to_owned()];
        for step in 0..steps {
            messages.push(CALL.replace("\"a\"", &format!("\"c{step}\"")));
            messages.push(format!(r#"{{"role":"tool","tool_call_id":"c{step}","content":"{step}"}}"#));
        }
        let conversation = conversation(&messages);
        let costs: Vec<Cost> = conversation
            .body
            .iter()
            .map(|m| Cost { text: if m.calls.is_empty() { 400 } else { 10 }, calls: vec![10; m.calls.len()], media: 0 })
            .collect();
        let mut view = View::default();
        put(&mut view, &conversation.body[..2], block(vec![0]));
        let facts =
            Facts { window: 8_192, output_reserved: 512, costs, view, edit_costs: vec![300], ..Facts::default() };
        (conversation, facts)
    }

    #[test]
    fn a_block_counts_and_is_cleared_like_any_result() {
        let (conversation, facts) = facts(5);
        let without = Facts { view: View::default(), edit_costs: vec![], ..facts.clone() };
        let now = plan(&conversation, &facts, &Policy::default());
        let cost = |facts: &Facts| plan(&conversation, facts, &Policy::default()).before.prompt();
        assert_eq!(cost(&facts), cost(&without) + 300);
        assert!(now.actions.is_empty(), "{:?}", now.actions);
        let (conversation, facts) = self::facts(40);
        let later = plan(&conversation, &facts, &Policy::default());
        let goes = |action: &Action| matches!(action, Action::Forget { at: 1 } | Action::Fold { .. });
        assert!(later.actions.iter().any(goes), "{:?}", later.actions);
    }
}
