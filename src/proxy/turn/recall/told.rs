//! What a reply is told of the client's tools where these are named by index.

use std::collections::HashSet;

use serde_json::json;
use tracing::debug;

use crate::admission::{Answer, taught};
use crate::clock::now_ms;
use crate::conversation::Tokens;
use crate::proxy::App;
use crate::proxy::turn::prepared::Prepared;
use crate::proxy::turn::recall::Answered;
use crate::store::{Batch, Event};

/// The answer to a call that is answered here, and the tools that it tells of.
pub(in crate::proxy) fn told_of_tools(
    app: &App,
    prepared: &Prepared,
    answered: &Answered,
    (name, arguments): (&str, &str),
    room: Tokens,
) -> (String, Vec<String>) {
    let count = |text: &str| app.measure.count(&prepared.key, text);
    let (text, names) = match answered.answer(name, arguments, false, room, &count) {
        Some(Answer::Told(text, names)) => (text, names),
        // It could have gone to the client, had the reply ended in time.
        _ => ("[it was not called: the reply ended too early. Call it again]".to_owned(), Vec::new()),
    };
    let data = json!({"tools": names, "tokens": count(&text)});
    let event = Event { now_ms: now_ms(), conversation: Some(prepared.id.clone()), kind: "tools_told".into(), data };
    if let Err(e) = app.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
        debug!(error = %e, "an event was not recorded");
    }
    (text, names)
}

impl Prepared {
    /// What is known of the tools when the reply begins.
    pub(in crate::proxy) fn answered(&self) -> Answered {
        let taught = match &self.head.admitted {
            Some(_) => taught(&self.request.conversation.body, &self.made.view),
            None => HashSet::new(),
        };
        Answered { admitted: self.head.admitted.clone(), taught, at_head: self.head.at_head }
    }
}
