//! Sizes of messages and texts as people are told of them. One rule makes them all, with and without a server at hand: the rule of
//! thumb, times what the last count of the conversation's prompt says of it. That factor is kept with the conversation, and stays
//! while it is right within a few percent: a message must not get another size each time that somebody looks.

use serde::Serialize;
use serde_json::Value;

use crate::conversation::edit::{Edit, View};
use crate::conversation::{Message, Tokens};
use crate::measure::tokens;

/// How far the factor may be off before there is another one.
const TOLERATED: f64 = 0.03;

/// A history of fewer tokens says little: most of it is what the template puts around its messages.
const TELLING: Tokens = 64;

/// In a history of more messages, what is known of their sizes stays: to look at all of them with every reply takes its time.
const LONG: usize = 2_000;

/// A factor outside of these is that of something else than the history.
const LEAST: f64 = 0.25;
/// As above.
const MOST: f64 = 4.0;

/// How the sizes of a conversation's messages are told.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(in crate::proxy) struct Sizes {
    /// What a token by the rule of thumb is, in tokens.
    #[serde(rename = "size_factor")]
    by: f64,
    /// Whether the calls of tools are part of the prompt: some templates leave them out.
    #[serde(rename = "writes_calls")]
    calls: bool,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { by: 1.0, calls: true }
    }
}

impl Sizes {
    /// As they are kept with a conversation.
    pub(in crate::proxy) fn of(state: &Value) -> Sizes {
        let by = state["size_factor"].as_f64().filter(|by| (LEAST..=MOST).contains(by)).unwrap_or(1.0);
        Sizes { by, calls: state["writes_calls"].as_bool().unwrap_or(true) }
    }

    /// The rule of thumb, for the same parts of messages.
    pub(in crate::proxy) fn rule(self) -> Sizes {
        Sizes { by: 1.0, ..self }
    }

    /// With which messages of so many tokens by the rule add up to what they take together, where that is known; else as they are.
    pub(in crate::proxy) fn adding_up(self, rule: u64, together: u64) -> Sizes {
        let by = together as f64 / rule.max(1) as f64;
        if (LEAST..=MOST).contains(&by) { Sizes { by, ..self } } else { self }
    }

    /// What is known of them once the messages of a history, had nothing been rewritten in it, are known to take so many tokens
    /// together: what is told of each of them adds up to what is told of all. `calls`: whether the template writes those of tools,
    /// where that is known.
    pub(in crate::proxy) fn learned(self, body: &[Message], history: Tokens, calls: Option<bool>) -> Sizes {
        let was = self.calls;
        let sizes = Sizes { calls: calls.unwrap_or(was), ..self };
        let rule = sizes.rule();
        if body.len() > LONG && sizes != rule && sizes.calls == was {
            return sizes;
        }
        let sum: u64 = body.iter().map(|message| u64::from(rule.message(message))).sum();
        let by = f64::from(history) / sum.max(1) as f64;
        let is_right = (sizes.by / by - 1.0).abs() <= TOLERATED;
        if is_right || history < TELLING || !(LEAST..=MOST).contains(&by) { sizes } else { Sizes { by, ..sizes } }
    }

    /// A text by itself.
    pub(in crate::proxy) fn text(self, text: &str) -> Tokens {
        self.scaled(tokens::estimate(text))
    }

    /// A message as the client has it.
    pub(in crate::proxy) fn message(self, message: &Message) -> Tokens {
        let calls = message.calls.iter().filter(|_| self.calls);
        let calls = calls.map(|call| tokens::estimate(&call.name) + tokens::estimate(&call.arguments));
        self.scaled(calls.fold(tokens::message(&message.text), Tokens::saturating_add))
    }

    /// What an edit puts in place.
    pub(in crate::proxy) fn edit(self, edit: &Edit) -> Tokens {
        match edit {
            Edit::Arguments { .. } if !self.calls => 0,
            edit => self.scaled(tokens::edit(edit)),
        }
    }

    /// A message as it stands in a view; one that is folded takes nothing of its own. `None`: a message that cannot be read.
    pub(in crate::proxy) fn in_view(self, view: &View, at: usize, message: Option<&Message>) -> Tokens {
        let whole = || message.map_or(0, |message| self.message(message));
        let (mut out, mut behind) = (None, 0);
        for edit in &view.edits {
            match edit {
                Edit::Recalled { at: here, .. } if *here == at => behind += self.edit(edit),
                edit if !edit.touches(at) => {}
                Edit::Fold { .. } => return 0,
                Edit::Recalled { .. } => {}
                Edit::Text { .. } => out = Some(self.edit(edit)),
                Edit::Arguments { call, .. } => {
                    let before = message.filter(|_| self.calls);
                    let before = before.and_then(|m| m.calls.get(*call).map(|c| self.text(&c.arguments)));
                    out = Some(out.unwrap_or_else(whole).saturating_sub(before.unwrap_or(0)) + self.edit(edit));
                }
            }
        }
        out.unwrap_or_else(whole).saturating_add(behind)
    }

    fn scaled(self, tokens: Tokens) -> Tokens {
        (f64::from(tokens) * self.by).round() as Tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::edit::Rule;
    use crate::wire::openai_chat;

    #[test]
    fn a_size_stays_while_it_is_about_right() {
        let body: Vec<Message> = (0..4)
            .map(|n| {
                let text =
                    format!("Message {n} says that the gate stays green, whatever the weather brings to the valley.");
                openai_chat::message(serde_json::json!({"role": "user", "content": text}).to_string().into()).unwrap()
            })
            .collect();
        let rule = Sizes::default();
        let sum: Tokens = body.iter().map(|message| rule.message(message)).sum();
        let first = rule.learned(&body, sum * 5 / 4, None);
        assert_eq!(first.message(&body[0]), (f64::from(rule.message(&body[0])) * 1.25).round() as Tokens);
        // A prompt that was counted a little otherwise changes no size, and one that was counted much otherwise does.
        assert_eq!(first.learned(&body, sum * 5 / 4 + sum / 50, None), first);
        assert_ne!(first.learned(&body, sum * 3 / 2, None), first);
        assert_eq!(first.learned(&body, sum * 50, None), first, "no history takes that much");
        assert_eq!(Sizes::of(&serde_json::json!(first)), first);
        assert_eq!(Sizes::of(&serde_json::json!({"size_factor": 0.0})), rule);
        assert_eq!(first.adding_up(100, 150), Sizes { by: 1.5, calls: true });
        assert_eq!(first.adding_up(100, 0), first, "nothing is known of them");
    }

    #[test]
    fn calls_that_the_template_leaves_out_take_nothing() {
        let call = serde_json::json!({"id": "c", "type": "function", "function": {"name": "read", "arguments": "{\"path\": \"src/gate.rs\"}"}});
        let said =
            "The gate was read, and this is what it says of the valley, of the weather, and of the river behind it. "
                .repeat(3);
        let message = |body: serde_json::Value| openai_chat::message(body.to_string().into()).unwrap();
        let body = [
            message(serde_json::json!({"role": "assistant", "content": "", "tool_calls": [call]})),
            message(serde_json::json!({"role": "user", "content": said})),
        ];
        let rule = Sizes::default();
        let whole = rule.message(&body[1]) + tokens::message("");
        assert!(rule.message(&body[0]) > 2 * tokens::message(""));
        // What is known of their sizes adds up without the calls: nothing else has to make up for them.
        let silent = rule.learned(&body, whole, Some(false));
        assert_eq!((silent.message(&body[0]), silent.message(&body[1])), (tokens::message(""), rule.message(&body[1])));
        assert_eq!(Sizes::of(&serde_json::json!(silent)), silent);
        assert_eq!(silent.learned(&body, whole, None), silent, "nobody asked again");
        let arguments = Edit::Arguments {
            at: 0,
            digest: body[0].digest,
            call: 0,
            rule: Rule::Clear,
            arguments: "{}".into(),
            record: String::new(),
        };
        let view = View { messages: 2, edits: vec![arguments], ..View::default() };
        assert_eq!(silent.in_view(&view, 0, Some(&body[0])), silent.message(&body[0]));
        assert!(rule.in_view(&view, 0, Some(&body[0])) < rule.message(&body[0]));
    }
}
