//! Whether a request's system text is said by index: what is left out of it is in the record before anything is sent, and the
//! prompt, a header and an event name it.

use serde_json::{Value, json};
use tracing::info;

use super::admission::Admitted;
use super::situation::Situation;
use crate::admission::{Left, Listing, Why, system};
use crate::conversation::Tokens;
use crate::proxy::{App, Error};
use crate::store::{Event, Original, original_id};
use crate::wire::openai_chat::{self, Request};

/// What was left out of a request's system text.
#[derive(Debug)]
pub(in crate::proxy) struct Indexed {
    /// The sections, as the record keeps them.
    pub(in crate::proxy) originals: Vec<Original>,
    left: Vec<Left>,
    /// Whether the record did not have them all.
    pub(in crate::proxy) is_new: bool,
}

/// Tokens of a section, about.
fn tokens(left: &Left) -> Tokens {
    Tokens::try_from(left.text.len().div_ceil(4)).unwrap_or(Tokens::MAX)
}

fn why(left: &Left) -> &'static str {
    match left.why {
        Why::Twice => "it says what an earlier section says",
        Why::Tools => "it is about tools that are not shown",
        Why::Long => "it is long",
    }
}

impl Indexed {
    /// Tokens that were left out, about.
    pub(in crate::proxy) fn saved(&self) -> Tokens {
        self.left.iter().map(tokens).fold(0, Tokens::saturating_add)
    }

    /// As it stands in the header.
    pub(in crate::proxy) fn header(&self) -> String {
        format!("index; sections={}; tokens={}", self.left.len(), self.saved())
    }

    /// In words without text of the prompt.
    pub(in crate::proxy) fn because(&self) -> String {
        let count = |why| self.left.iter().filter(|l| l.why == why).count();
        format!(
            "system text by index: {} sections of about {} tokens left out ({} twice, {} about tools that are not shown, {} for \
             their length)",
            self.left.len(),
            self.saved(),
            count(Why::Twice),
            count(Why::Tools),
            count(Why::Long)
        )
    }

    /// What is told when sections are left out for the first time. Names records, not headings: these are text of the prompt.
    pub(in crate::proxy) fn event(&self, conversation: &str, now_ms: i64) -> Event {
        let sections: Vec<Value> = self
            .left
            .iter()
            .zip(&self.originals)
            .map(|(left, original)| json!({"record": original.id, "tokens": tokens(left), "because": why(left)}))
            .collect();
        let data = json!({"sections": sections, "because": self.because()});
        Event { now_ms, conversation: Some(conversation.to_owned()), kind: "system_indexed".into(), data }
    }
}

/// Has index lines stand for parts of the system text, where that is asked for and the model can read them.
pub(in crate::proxy) fn index_system(
    app: &App,
    request: &mut Request,
    situation: &Situation,
    admitted: Option<&Admitted>,
    readable: bool,
    warnings: &mut Vec<String>,
) -> Result<Option<Indexed>, Error> {
    let messages = &mut request.conversation.system;
    for message in messages.iter_mut().filter(|m| m.repaired.is_some()) {
        // A second try begins with what the client sent.
        if let Ok(first) = openai_chat::message(message.raw.clone()) {
            *message = first;
        }
    }
    let (id, policy) = (situation.id(), &situation.policy);
    let Some(window) = situation.window.tokens.filter(|_| policy.system == Listing::Index) else { return Ok(None) };
    let none = std::collections::HashSet::new();
    let (shown, hidden) = admitted.map_or((&[][..], &none), |a| (a.list.full.as_slice(), &a.hidden));
    let texts: Vec<&str> = messages.iter().map(|m| m.text.as_str()).collect();
    let line = |left: &Left| {
        let (tokens, why, record) = (tokens(left), why(left), original_id(&left.text));
        format!("[{}: {tokens} tokens left out here, since {why}; windowsill recall {record} reads it]", left.title)
    };
    let (texts, left) = system(&texts, shown, hidden, policy.system_caps.at(window), &line);
    if left.is_empty() {
        return Ok(None);
    }
    if !readable {
        warnings.push("the system prompt was forwarded as sent: the model has no tool to read the rest of it".into());
        return Ok(None);
    }
    for (message, text) in messages.iter_mut().zip(texts).filter(|(m, text)| m.text != *text) {
        message.repaired = Some(openai_chat::with_text(message.bytes(), &text));
        message.text = text.into();
    }
    let original = |left: &Left| Original {
        id: original_id(&left.text),
        conversation: id.to_owned(),
        at: 0,
        kind: "system".into(),
        tool: None,
        call: Some(left.title.clone()),
        text: left.text.as_str().into(),
        raw: None,
    };
    let originals: Vec<Original> = left.iter().map(original).collect();
    let mut is_new = false;
    for original in &originals {
        is_new |= app.store.original_in(&original.id, id)?.is_none();
    }
    if is_new {
        info!(conversation = id, sections = left.len(), "system text by index");
    }
    Ok(Some(Indexed { originals, left, is_new }))
}
