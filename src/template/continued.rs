//! Requests whose last message the reply goes on with (an assistant's, or what `continue_final_message` says): the prompt
//! is that of the messages before it, the beginning of a reply, and what was said so far.
//!
//! llama.cpp builds that beginning itself: in the families it knows as it is written down for them (`common/parsers`), in
//! others from what the template puts around reasoning. What it refuses (calls in such a message, two assistant messages at
//! the end) is rendered here all the same: no server evaluates it.

use serde_json::Value;

use super::family::Family;
use super::reasoning::Around;

/// What of its last message a request wants continued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Continue {
    /// The last message, if it is the assistant's: its words, or its reasoning where it has nothing else.
    #[default]
    Reply,
    /// The last message, whosever it is.
    Message,
    /// What the last message says.
    Content,
    /// The reasoning of the last message.
    Reasoning,
}

impl Continue {
    /// Reads `continue_final_message`.
    pub(super) fn read(value: &Value) -> Continue {
        match value {
            Value::Bool(true) => Continue::Message,
            Value::String(what) if what == "content" => Continue::Content,
            Value::String(what) if what == "reasoning_content" => Continue::Reasoning,
            _ => Continue::Reply,
        }
    }
}

/// A message that the reply continues: not rendered by the template.
#[derive(Debug, Default)]
pub(super) struct Continued {
    content: String,
    reasoning: String,
    /// Its reasoning goes on, not what it says.
    thinks: bool,
    /// There is nothing in it at all: the prompt ends before the reply.
    empty: bool,
}

impl Continued {
    /// The last of these messages, if the reply goes on with it. `read`: what llama.cpp reads of a message.
    pub(super) fn of(messages: &[Value], what: Continue, read: impl Fn(&Value) -> Value) -> Option<Continued> {
        let last = messages.last()?;
        let calls = last["tool_calls"].as_array().is_some_and(|c| !c.is_empty());
        if calls || what == Continue::Reply && last["role"] != "assistant" {
            return None;
        }
        let last = read(last);
        let content = said(&last["content"]);
        let parts = last["content"].as_array().is_some_and(|p| !p.is_empty());
        let reasoning = last["reasoning_content"].as_str().unwrap_or_default().to_owned();
        let silent = content.is_empty() && !parts;
        let named = last.get("name").is_some() || last.get("tool_call_id").is_some();
        let thinks = match what {
            Continue::Reply | Continue::Message => silent && !reasoning.is_empty(),
            Continue::Content => false,
            Continue::Reasoning => true,
        };
        let empty = silent && reasoning.is_empty() && !named;
        Some(Continued { content, reasoning, thinks, empty })
    }

    /// What stands behind the prompt of the messages before.
    ///
    /// `opening`: what the template begins a reply with; `around`: what it puts around reasoning.
    pub(super) fn behind(&self, prompt: &str, family: Family, opening: &str, around: &Around) -> String {
        if self.empty {
            return String::new();
        }
        let said = if self.thinks { "" } else { &*self.content };
        // These have no reasoning; the first two go on with the words whatever was asked for.
        match family {
            Family::Functionary => {
                return format!("<|start_header_id|>assistant<|end_header_id|>\n\n>>>all\n{}", self.content);
            }
            Family::GigaChat => return format!("assistant<|role_sep|>\n{}", self.content),
            Family::Qwen3Coder => return format!("<|im_start|>assistant\n{said}"),
            _ => {}
        }
        let (start, end) = match family {
            Family::Other => (&*around.start, &*around.end),
            family => written(family, self.reasoning.is_empty()),
        };
        let begun = match family {
            Family::MiniMaxM3 => opening,
            Family::Other => opening.find(start).filter(|_| !start.is_empty()).map_or(opening, |at| &opening[..at]),
            family if family.is_gemma_4() && prompt.ends_with("<turn|>\n") => "<|turn>model\n",
            _ => "",
        };
        match (start.is_empty(), self.thinks) {
            (true, _) => format!("{begun}{said}"),
            (false, true) => format!("{begun}{start}{}", self.reasoning),
            (false, false) => format!("{begun}{start}{}{end}{said}", self.reasoning),
        }
    }
}

/// What a message says: a string, or its parts with an empty line between them.
fn said(content: &Value) -> String {
    let parts = content.as_array().into_iter().flatten().filter_map(|p| p["text"].as_str());
    content.as_str().map_or_else(|| parts.collect::<Vec<_>>().join("\n\n"), str::to_owned)
}

/// What stands before and behind the reasoning of a reply, as llama.cpp has it written down.
///
/// `silent`: there is no reasoning.
fn written(family: Family, silent: bool) -> (&'static str, &'static str) {
    match family {
        Family::Ministral => ("[THINK]", "[/THINK]"),
        Family::Harmony => {
            ("<|start|>assistant<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
        }
        Family::MuseGlimmer => {
            ("<|start|>assistant to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>")
        }
        Family::KimiK2 => ("<|im_assistant|>assistant<|im_middle|><think>", "</think>"),
        Family::KimiK3 => (
            "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>",
            "<|close|>think<|sep|><|open|>response<|sep|>",
        ),
        Family::Ling => ("<role>ASSISTANT</role>\n<think>", "</think>"),
        Family::Cohere2 => {
            ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>", "<|END_THINKING|><|START_TEXT|>")
        }
        Family::Lfm2 => ("<|im_start|>assistant\n<think>", "</think>"),
        Family::MiniMaxM3 => ("<mm:think>", "</mm:think>"),
        Family::DeepSeek4 if silent => ("<｜Assistant｜></think>", ""),
        Family::DeepSeek3 | Family::DeepSeek4 => ("<｜Assistant｜><think>", "</think>"),
        Family::Gemma4 | Family::Gemma4Outdated => ("<|channel>thought\n", "<channel|>"),
        Family::MiniCpm5 | Family::Qwen3Thinking => ("<|im_start|>assistant\n<think>\n", "\n</think>\n\n"),
        Family::Functionary | Family::GigaChat | Family::Qwen3Coder | Family::Other => ("", ""),
    }
}
