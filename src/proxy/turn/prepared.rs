//! A request as it is sent, and all that is told and kept of it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::head::Head;
use super::history::Seen;
use super::rules::Ruled;
use super::titles::title;
use super::wished::Outcome;
use crate::config::{Gauge, Resolved};
use crate::conversation::edit::View;
use crate::conversation::{Conversation, Digest, Tokens};
use crate::measure::window::Window;
use crate::measure::{self, Known, ModelKey, Sureness, own};
use crate::plan::rewrite::Out;
use crate::plan::{Counting, Lines, Regions};
use crate::proxy::state::gauge::UNKNOWN_WINDOW;
use crate::proxy::state::headers;
use crate::proxy::state::live::Switched;
use crate::proxy::state::scope::Scope;
use crate::proxy::state::sent::Prefix;
use crate::proxy::state::standing::{Held, Standing};
use crate::proxy::state::view::Subject;
use crate::recall::missed::Missed;
use crate::store::{Located, Original};
use crate::wire::openai_chat::Request;

/// A request ready to be sent. But for [`Sending`], it stays as it was born: what says it in other words makes another one.
pub(in crate::proxy) struct Prepared {
    /// As the client sent it, but for the messages that had to be repaired.
    pub(in crate::proxy) request: Request,
    /// Name of the conversation.
    pub(in crate::proxy) id: String,
    /// What is believed of its model is kept under this key.
    pub(in crate::proxy) key: ModelKey,
    /// The vocabulary it was counted with.
    pub(in crate::proxy) own: Option<Arc<own::Model>>,
    /// The window, and where it is known from.
    pub(in crate::proxy) window: Window,
    /// The policy and where its values come from.
    pub(in crate::proxy) policy: Arc<Resolved>,
    /// What the record knew of its history, and what the client made of that.
    pub(in crate::proxy) history: Past,
    /// What is forwarded, and what it weighs.
    pub(in crate::proxy) made: Made,
    /// What is told of it.
    pub(in crate::proxy) told: Told,
    /// What stands before its messages.
    pub(in crate::proxy) head: Head,
    /// What people want of the conversation.
    pub(in crate::proxy) wishes: Wanted,
    /// How it is sent.
    pub(in crate::proxy) sending: Sending,
}

/// What the record knew of its history, and what the client made of that.
pub(in crate::proxy) struct Past {
    /// What stood when the history was looked up.
    pub(in crate::proxy) seen: Seen,
    /// Chain hash of each prefix of the body.
    pub(in crate::proxy) chain: Vec<Digest>,
    /// Where the record knew this history before.
    pub(in crate::proxy) located: Option<Located>,
    /// Whether this history is the beginning of a longer one that the record has: a chat that begins alike, or an earlier
    /// request sent again. The longer one stays as it is.
    pub(in crate::proxy) repeats_a_beginning: bool,
    /// Name of the session that the client gave.
    pub(in crate::proxy) session: Option<String>,
    /// The conversation's model until now, where it is another.
    pub(in crate::proxy) switched: Option<Switched>,
    /// What tells the messages as the client sent them from others.
    pub(in crate::proxy) client_marks: Vec<u64>,
    /// Known messages that are spelled otherwise than in the record, by index.
    pub(in crate::proxy) respelled: Vec<usize>,
    /// What was known of the size of its beginning.
    pub(in crate::proxy) known: Option<Known>,
    /// What the newest messages read again after it had left the prompt.
    pub(in crate::proxy) missed: Vec<Missed>,
}

/// What is forwarded, and what it weighs.
pub(in crate::proxy) struct Made {
    /// The view.
    pub(in crate::proxy) view: View,
    /// Whether the view is new.
    pub(in crate::proxy) view_changed: bool,
    /// The mark of the view before, where it is another.
    pub(in crate::proxy) was: Option<Digest>,
    /// Originals that leave the prompt with this view.
    pub(in crate::proxy) originals: Vec<Original>,
    /// The messages of the view.
    pub(in crate::proxy) out: Vec<Out>,
    /// The bytes to forward.
    pub(in crate::proxy) body: Bytes,
    /// Prompt tokens of these.
    pub(in crate::proxy) tokens: Tokens,
    /// How sure that is.
    pub(in crate::proxy) sureness: Sureness,
    /// The longest reply that the client asked for and the one that was forwarded, where that is shorter.
    pub(in crate::proxy) lowered: Option<(Tokens, Tokens)>,
    /// The client's history, with edits made earlier, by region, and how sure the size of all is.
    pub(in crate::proxy) before: (Regions, Sureness),
    /// What the client's history takes, had nothing ever been rewritten.
    pub(in crate::proxy) client: Client,
    /// The view, by region.
    pub(in crate::proxy) after: Regions,
    /// The lines that were looked at.
    pub(in crate::proxy) lines: Lines,
    /// Seconds that making the view took, with what was made ahead of it.
    pub(in crate::proxy) seconds: f64,
}

/// Prompt tokens of a client's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) struct Client {
    /// All of them.
    pub(in crate::proxy) tokens: Tokens,
    /// What its system prompt and tools were planned with.
    pub(in crate::proxy) head: Tokens,
    /// Whether they go on from what was said of the last request, and not from the prompt that is forwarded now.
    pub(in crate::proxy) goes_on: bool,
}

/// What is told of it.
pub(in crate::proxy) struct Told {
    /// The layers that acted.
    pub(in crate::proxy) actions: Vec<&'static str>,
    /// Why, in words without message text.
    pub(in crate::proxy) because: Vec<String>,
    /// Why lines that are passed did not lead to anything.
    pub(in crate::proxy) waits: Vec<String>,
    /// Trouble that was downgraded.
    pub(in crate::proxy) warnings: Vec<String>,
    /// What was done of what the client asks for.
    pub(in crate::proxy) client: Option<Outcome>,
}

/// What people want of the conversation.
pub(in crate::proxy) struct Wanted {
    /// What people want of the conversation.
    pub(in crate::proxy) standing: Arc<Standing>,
    /// What that is from now on, where it changed.
    pub(in crate::proxy) standing_changed: Option<String>,
    /// Whose rules the conversation gets, where rules are on.
    pub(in crate::proxy) scope: Option<Scope>,
    /// The rules that it begins with.
    pub(in crate::proxy) ruled: Option<Ruled>,
    /// What it means for this history.
    pub(in crate::proxy) wanted: Held,
}

/// How it is sent. These are resources, held while the request is under way: each is taken when it is there to be had, and given
/// back by being dropped. So this alone of a request changes after its birth.
#[derive(Default)]
pub(in crate::proxy) struct Sending {
    /// Counts this request as under way.
    pub(in crate::proxy) flight: Option<crate::proxy::state::live::Flight>,
    /// Counts it as under way until then.
    pub(in crate::proxy) preparing: Option<crate::proxy::state::live::Preparing>,
    /// What it takes of a pool that the slots of its server share.
    pub(in crate::proxy) room: Option<crate::proxy::pool::Room>,
    /// Its way to one of several servers, open until it is given back.
    pub(in crate::proxy) route: Option<crate::proxy::routing::Route>,
    /// What other windowsills and the next start are told of its reply.
    pub(in crate::proxy) told: crate::proxy::state::fresh::Told,
    /// Its server refused it as too long, and another one has a larger window.
    pub(in crate::proxy) outgrew: bool,
    /// How long it waited for that.
    pub(in crate::proxy) waited: std::time::Duration,
    /// Where its time went.
    pub(in crate::proxy) phases: super::phases::Phases,
    /// The client is to be told which of its stop sequences ended the reply.
    pub(in crate::proxy) tells_stop: bool,
    /// What it has in common with the last prompt of the conversation, once that is known.
    pub(in crate::proxy) prefix: Option<Prefix>,
}

/// The words in which a view is said: another telling of the same messages, where a server does not take the first.
#[derive(Clone)]
pub(in crate::proxy) struct Wording {
    pub(in crate::proxy) conversation: Conversation,
    /// The messages of the view.
    pub(in crate::proxy) out: Vec<Out>,
    /// The bytes to forward.
    pub(in crate::proxy) body: Bytes,
    /// Prompt tokens of these.
    pub(in crate::proxy) tokens: Tokens,
}

/// An estimate that is as far off as another one, of which it is known how many tokens it has.
pub(super) fn in_proportion(estimate: Tokens, known: Tokens, estimated: Tokens) -> Tokens {
    let scaled = u64::from(estimate) * u64::from(known) / u64::from(estimated.max(1));
    Tokens::try_from(scaled).unwrap_or(Tokens::MAX)
}

impl Prepared {
    /// How it is said.
    pub(in crate::proxy) fn wording(&self) -> Wording {
        let Made { out, body, tokens, .. } = &self.made;
        let (conversation, out, body) = (self.request.conversation.clone(), out.clone(), body.clone());
        Wording { conversation, out, body, tokens: *tokens }
    }

    /// The same request in these words.
    pub(in crate::proxy) fn said(self, Wording { conversation, out, body, tokens }: Wording) -> Prepared {
        let made = Made { out, body, tokens, ..self.made };
        Prepared { request: Request { conversation, ..self.request }, made, ..self }
    }

    /// The same request, with other words to the client.
    pub(in crate::proxy) fn warning(self, warnings: Vec<String>) -> Prepared {
        Prepared { told: Told { warnings, ..self.told }, ..self }
    }

    /// The history and the forwarded view, from which a new view is made.
    pub(in crate::proxy) fn subject(&self) -> Subject<'_> {
        Subject {
            conversation: &self.request.conversation,
            id: &self.id,
            key: &self.key,
            own: self.own.as_deref(),
            counting: Counting::default(),
            old: &self.made.view,
        }
    }

    /// The layers that acted, as they stand in the header.
    pub(in crate::proxy) fn action(&self) -> String {
        if self.told.actions.is_empty() { "none".into() } else { self.told.actions.join(",") }
    }

    /// What the conversation is called.
    pub(in crate::proxy) fn title(&self) -> String {
        self.wishes.standing.title.clone().unwrap_or_else(|| title(&self.request.conversation))
    }

    /// About the tokens of what the client sent, where its prompt was counted to have so many as it was forwarded.
    pub(in crate::proxy) fn client_tokens(&self, prompt: Tokens) -> Tokens {
        let Made { client: Client { tokens: client, goes_on, .. }, tokens, sureness, .. } = self.made;
        if goes_on {
            return client;
        }
        if !sureness.is_exact() {
            return in_proportion(client, prompt, tokens);
        }
        let found = i64::from(prompt) - i64::from(tokens);
        client.saturating_add_signed(i32::try_from(found).unwrap_or(0))
    }

    /// (prompt + output reserved) / window.
    pub(in crate::proxy) fn pressure(&self) -> f64 {
        let window = self.window.tokens.unwrap_or(UNKNOWN_WINDOW);
        f64::from(self.made.tokens + self.made.after.output_reserved) / f64::from(window.max(1))
    }

    /// Whether the server can have counted so many tokens in this prompt.
    pub(in crate::proxy) fn is_plausible(&self, reported: Tokens) -> bool {
        let sent = measure::Sent {
            planned: self.made.tokens,
            exact: matches!(self.made.sureness, Sureness::Counted | Sureness::Own(_)),
            window: self.window.tokens,
            most: measure::tokens::upper_bound(self.made.body.len(), &self.request.conversation),
        };
        measure::is_plausible(reported, sent)
    }

    /// Sets our headers on a reply.
    pub(in crate::proxy) fn mark(&self, to: &mut HeaderMap<HeaderValue>, gauge: &Gauge) {
        headers::set(to, "x-windowsill-conversation", &self.id);
        headers::set(to, "x-windowsill-window", &self.window.tokens.map_or("unknown".into(), |w| w.to_string()));
        headers::set(to, "x-windowsill-window-source", &self.window.source);
        headers::set(to, "x-windowsill-prompt-tokens", &self.made.tokens.to_string());
        headers::set(to, "x-windowsill-prompt-tokens-source", self.made.sureness.as_str());
        headers::set(to, "x-windowsill-action", &self.action());
        if self.window.tokens.is_some() {
            headers::set(to, "x-windowsill-pressure", &format!("{:.4}", self.pressure()));
            headers::set(to, "x-windowsill-severity", gauge.severity(self.pressure()).as_str());
        }
        if !self.sending.waited.is_zero() {
            headers::set(to, "x-windowsill-waited", &format!("{:.1}; for=room", self.sending.waited.as_secs_f64()));
        }
        if let Some((asked, left)) = self.made.lowered {
            headers::set(to, "x-windowsill-max-tokens", &format!("{left}; asked={asked}"));
        }
        if let Some(indexed) = &self.head.indexed {
            headers::set(to, "x-windowsill-system", &indexed.header());
        }
        if let Some(admitted) = &self.head.admitted {
            headers::set(to, "x-windowsill-tools", &admitted.header(self.made.after.tools));
        }
        headers::warn(to, &self.told.warnings);
    }
}
