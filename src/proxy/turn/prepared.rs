//! A request as it is sent, and all that is told and kept of it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::admission::Admitted;
use super::rules::Ruled;
use super::system::Indexed;
use super::titles::title;
use crate::config::{Gauge, Resolved};
use crate::conversation::edit::View;
use crate::conversation::{Digest, Tokens};
use crate::measure::window::Window;
use crate::measure::{self, Known, ModelKey, Sureness, own};
use crate::plan::rewrite::Out;
use crate::plan::{Lines, Regions};
use crate::proxy::state::gauge::UNKNOWN_WINDOW;
use crate::proxy::state::headers;
use crate::proxy::state::live::Switched;
use crate::proxy::state::scope::Scope;
use crate::proxy::state::sent::Prefix;
use crate::proxy::state::standing::{Held, Standing};
use crate::proxy::state::view::Subject;
use crate::recall::missed::Missed;
use crate::store::{Located, Original};
use crate::usage::Reported;
use crate::wire::openai_chat::Request;

/// A request ready to be sent.
pub(in crate::proxy) struct Prepared {
    /// As the client sent it, but for the messages that had to be repaired.
    pub request: Request,
    /// What is believed of its model is kept under this key.
    pub key: ModelKey,
    /// Chain hash of each prefix of the body.
    pub chain: Vec<Digest>,
    /// Where the record knew this history before.
    pub located: Option<Located>,
    /// Whether this history is the beginning of a longer one that the record has: a chat that begins alike, or an earlier
    /// request sent again. The longer one stays as it is.
    pub repeats_a_beginning: bool,
    /// Name of the conversation.
    pub id: String,
    /// Name of the session that the client gave.
    pub session: Option<String>,
    /// The window, and where it is known from.
    pub window: Window,
    /// The policy and where its values come from.
    pub policy: Arc<Resolved>,
    /// The view.
    pub view: View,
    /// Whether the view is new.
    pub view_changed: bool,
    /// Originals that leave the prompt with this view.
    pub originals: Vec<Original>,
    /// The messages of the view.
    pub out: Vec<Out>,
    /// The bytes to forward.
    pub body: Bytes,
    /// Prompt tokens of these.
    pub tokens: Tokens,
    /// How sure that is.
    pub sureness: Sureness,
    /// What was known of the size of its beginning.
    pub known: Option<Known>,
    /// The client's history, with edits made earlier.
    pub before: Regions,
    /// Seconds that making the view took, with what was made ahead of it.
    pub seconds: f64,
    /// The conversation's model until now, where it is another.
    pub switched: Option<Switched>,
    /// The view.
    pub after: Regions,
    /// The lines that were looked at.
    pub lines: Lines,
    /// The layers that acted.
    pub actions: Vec<&'static str>,
    /// Why, in words without message text.
    pub because: Vec<String>,
    /// Why lines that are passed did not lead to anything.
    pub waits: Vec<String>,
    /// Trouble that was downgraded.
    pub warnings: Vec<String>,
    /// The longest reply that the client asked for and the one that was forwarded, where that is shorter.
    pub lowered: Option<(Tokens, Tokens)>,
    /// What tells the messages as the client sent them from others.
    pub client_marks: Vec<u64>,
    /// Known messages that are spelled otherwise than in the record, by index.
    pub respelled: Vec<usize>,
    /// The client's tools with ours behind them, where the model may have it once something left its prompt.
    pub tools: Option<Bytes>,
    /// Whether the model has the tool that says that a task is done.
    pub done: bool,
    /// The client's tools and the list that stands for them, where they are named by index.
    pub admitted: Option<Arc<Admitted>>,
    /// What was left out of the system text, where that is said by index.
    pub indexed: Option<Indexed>,
    /// What the reply recalled: messages of ours behind the prompt.
    pub recalled: Vec<Out>,
    /// Where something was recalled, prompt tokens of the first round as the server counted them.
    pub first_prompt: Option<Tokens>,
    /// What the newest messages read again after it had left the prompt.
    pub missed: Vec<Missed>,
    /// What it has in common with the last prompt of the conversation, once that is known.
    pub prefix: Option<Prefix>,
    /// The vocabulary it was counted with.
    pub own: Option<Arc<own::Model>>,
    /// What people want of the conversation.
    pub standing: Arc<Standing>,
    /// What that is from now on, where it changed.
    pub standing_changed: Option<String>,
    /// Whose rules the conversation gets, where rules are on.
    pub scope: Option<Scope>,
    /// The rules that it begins with.
    pub ruled: Option<Ruled>,
    /// What it means for this history.
    pub wanted: Held,
    /// Counts this request as under way.
    pub flight: Option<crate::proxy::state::live::Flight>,
    /// What it takes of a pool that the slots of its server share.
    pub room: Option<crate::proxy::pool::Room>,
    /// How long it waited for that.
    pub waited: std::time::Duration,
    /// The client is to be told which of its stop sequences ended the reply.
    pub tells_stop: bool,
}

impl Prepared {
    /// The history and the forwarded view, from which a new view is made.
    pub(in crate::proxy) fn subject(&self) -> Subject<'_> {
        Subject {
            conversation: &self.request.conversation,
            id: &self.id,
            key: &self.key,
            own: self.own.as_deref(),
            old: &self.view,
        }
    }

    /// The layers that acted, as they stand in the header.
    pub(in crate::proxy) fn action(&self) -> String {
        if self.actions.is_empty() { "none".into() } else { self.actions.join(",") }
    }

    /// What the conversation is called.
    pub(in crate::proxy) fn title(&self) -> String {
        self.standing.title.clone().unwrap_or_else(|| title(&self.request.conversation))
    }

    /// (prompt + output reserved) / window.
    pub(in crate::proxy) fn pressure(&self) -> f64 {
        let window = self.window.tokens.unwrap_or(UNKNOWN_WINDOW);
        f64::from(self.tokens + self.after.output_reserved) / f64::from(window.max(1))
    }

    /// Prompt tokens of what was planned, as the server counted them: without what was recalled.
    pub(in crate::proxy) fn counted(&self, reported: &Reported) -> Option<Tokens> {
        if self.recalled.is_empty() { reported.prompt } else { self.first_prompt }
    }

    /// Whether the server can have counted so many tokens in this prompt.
    pub(in crate::proxy) fn is_plausible(&self, reported: Tokens) -> bool {
        let sent = measure::Sent {
            planned: self.tokens,
            exact: matches!(self.sureness, Sureness::Counted | Sureness::Own(_)),
            window: self.window.tokens,
            most: measure::tokens::upper_bound(self.body.len(), &self.request.conversation),
        };
        measure::is_plausible(reported, sent)
    }

    /// Sets our headers on a reply.
    pub(in crate::proxy) fn mark(&self, to: &mut HeaderMap<HeaderValue>, gauge: &Gauge) {
        headers::set(to, "x-windowsill-conversation", &self.id);
        headers::set(to, "x-windowsill-window", &self.window.tokens.map_or("unknown".into(), |w| w.to_string()));
        headers::set(to, "x-windowsill-window-source", &self.window.source);
        headers::set(to, "x-windowsill-prompt-tokens", &self.tokens.to_string());
        headers::set(to, "x-windowsill-prompt-tokens-source", self.sureness.as_str());
        headers::set(to, "x-windowsill-action", &self.action());
        if self.window.tokens.is_some() {
            headers::set(to, "x-windowsill-pressure", &format!("{:.4}", self.pressure()));
            headers::set(to, "x-windowsill-severity", gauge.severity(self.pressure()).as_str());
        }
        if !self.waited.is_zero() {
            headers::set(to, "x-windowsill-waited", &format!("{:.1}; for=room", self.waited.as_secs_f64()));
        }
        if let Some((asked, left)) = self.lowered {
            headers::set(to, "x-windowsill-max-tokens", &format!("{left}; asked={asked}"));
        }
        if let Some(indexed) = &self.indexed {
            headers::set(to, "x-windowsill-system", &indexed.header());
        }
        if let Some(admitted) = &self.admitted {
            headers::set(to, "x-windowsill-tools", &admitted.header(self.after.tools));
        }
        headers::warn(to, &self.warnings);
    }
}
