//! What kind of conversation a request belongs to, so that a client's own helpers are not taken for what somebody talks about.

use crate::conversation::person::{self, Said};
use crate::conversation::{Conversation, Role};

/// The kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Class {
    /// A model may call tools.
    Agent,
    /// People and a model talk.
    Chat,
    /// A client asks for something of its own: a title, tags, follow-up questions.
    Helper,
}

impl Class {
    /// The kind of a conversation.
    pub(in crate::proxy) fn of(conversation: &Conversation) -> Class {
        if person::is_errand(&conversation.system) {
            return Class::Helper;
        }
        let mut tasks = false;
        for message in conversation.body.iter().filter(|message| message.role == Role::User) {
            match person::said(&message.text) {
                Said::Task => tasks = true,
                Said::Reminder => {}
                _ => return Class::without_tasks(conversation),
            }
        }
        if tasks { Class::Helper } else { Class::without_tasks(conversation) }
    }

    fn without_tasks(conversation: &Conversation) -> Class {
        let tools = conversation.tools.as_deref().is_some_and(|tools| tools.trim_ascii() != b"[]");
        if tools { Class::Agent } else { Class::Chat }
    }

    /// As it stands in metrics and in the gauge.
    pub(in crate::proxy) fn as_str(self) -> &'static str {
        match self {
            Class::Agent => "agent",
            Class::Chat => "chat",
            Class::Helper => "helper",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::openai_chat;

    #[test]
    fn helpers_are_told_from_what_people_ask() {
        let of = |tools: serde_json::Value, said: &[&str]| {
            let messages: Vec<_> =
                said.iter().map(|text| serde_json::json!({"role": "user", "content": text})).collect();
            let body = serde_json::json!({"model": "m", "tools": tools, "messages": messages}).to_string();
            Class::of(&openai_chat::parse(&body.into()).unwrap().conversation)
        };
        let task = "### Task:\nGenerate a title.\n### Guidelines:\n- Be short.\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>";
        let none = serde_json::json!([]);
        assert_eq!(of(none.clone(), &[task]), Class::Helper);
        assert_eq!(of(none.clone(), &["What is the weather?"]), Class::Chat);
        assert_eq!(of(none, &[task, "And what is it really?"]), Class::Chat);
        assert_eq!(of(serde_json::json!([{"type": "function"}]), &["Fix it."]), Class::Agent);
        for (system, class) in [
            (
                "You are an expert software engineer.\nReview the provided context and diffs which are about to be committed to a git repo.",
                Class::Helper,
            ),
            (
                "*Briefly* summarize this partial conversation about programming.\nInclude less detail about older parts.",
                Class::Helper,
            ),
            ("You are a title generator. You output ONLY a thread title. Nothing else.", Class::Helper),
            ("Act as an expert software developer.", Class::Chat),
        ] {
            let body = serde_json::json!({"model": "m", "messages": [
                {"role": "system", "content": system}, {"role": "user", "content": "diff --git a/x b/x\n+y"}]});
            let request = openai_chat::parse(&body.to_string().into()).unwrap();
            assert_eq!(Class::of(&request.conversation), class, "{system}");
        }
    }
}
