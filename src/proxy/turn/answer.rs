//! A reply on its way to the client: as a stream, whole, or with what our tools answer in between.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::Value;

use super::account::{Outcome, account};
use super::older;
use super::prepared::Prepared;
use super::recall::{self, Answering, Stopped};
use super::refused::path_of;
use super::relay::{self, Answer};
use super::replied::Keeper;
use super::save::{in_record, mark_record};
use super::stage::Stage;
use super::streaming::{Books, Taker, streamed};
use super::whole::{LARGEST_BUFFERED, read_up_to};
use crate::proxy::state::headers;
use crate::proxy::{App, Error, aside};
use crate::upstream::event::{Content, Event};
use crate::upstream::{Reply, Upstream};
use crate::usage::Reported;
use crate::wire::reply::{breaks_off, said};

/// What a client is told of a whole reply that does not say why it ended. Chat completions have no word for it.
const BROKE_OFF: &str = "the server does not say why the reply ended: it may be cut off";

/// Passes a reply on. It is accounted for at its end, however that comes.
pub(super) async fn relay(
    app: &Arc<App>,
    upstream: Arc<Upstream>,
    parts: &Parts,
    prepared: Prepared,
    reply: Reply,
    started: Instant,
) -> Result<Response<Answer>, Error> {
    Stage::Relayed.begins(&prepared.id);
    in_record(app).await;
    let (mut status, mut headers) = (reply.status, reply.headers.clone());
    prepared.mark(&mut headers, &app.config.gauge);
    mark_record(app, &mut headers);
    if let Some(route) = &prepared.sending.route {
        headers::set(&mut headers, "x-windowsill-upstream", &route.header(upstream.name()));
    }
    let (ok, is_stream) = (status.is_success(), headers::is_event_stream(&reply.headers));
    let older = older::is_wanted(&prepared);
    let passed = Passed { app, upstream, parts, prepared, started };
    let answer = if is_stream && ok {
        let events = passed.streamed(reply.body);
        Answer::Events(if older { older::streamed(events) } else { events })
    } else {
        match read_up_to(reply.body, LARGEST_BUFFERED).await? {
            (bytes, Some(rest)) => {
                let whole = futures_util::stream::iter([Ok(bytes)]).chain(rest).boxed();
                Answer::Body(relay::through(whole))
            }
            (bytes, None) => {
                headers.remove(CONTENT_LENGTH);
                let bytes = if ok { passed.whole(bytes, &mut status).await? } else { bytes };
                let bytes = if older { older::whole(bytes) } else { bytes };
                if ok
                    && aside::once(bytes.len(), || serde_json::from_slice(&bytes).is_ok_and(|whole| breaks_off(&whole)))
                {
                    headers::warn(&mut headers, &[BROKE_OFF.to_owned()]);
                }
                Answer::Body(relay::full(bytes))
            }
        }
    };
    if is_stream {
        // A stream that breaks off ends with an event that says so: it may be longer than the server said.
        headers.remove(CONTENT_LENGTH);
    }
    let mut response = Response::new(answer);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    Ok(response)
}

/// Whether an event holds a word of the model, a thought or a call.
fn says_something(event: &Event) -> bool {
    let mut reported = Reported::default();
    reported.hear(&event.says);
    reported.spoke.or(reported.thought).is_some()
}

/// A request whose reply is passed on.
struct Passed<'a> {
    app: &'a Arc<App>,
    upstream: Arc<Upstream>,
    parts: &'a Parts,
    prepared: Prepared,
    started: Instant,
}

impl Passed<'_> {
    /// A stream that is accounted for at its end; or, where tools of ours may be called, answered in between.
    fn streamed(self, body: Content) -> BoxStream<'static, Event> {
        let (lives, id, mut begun) = (Arc::clone(&self.app.lives), self.prepared.id.clone(), false);
        let taken = self.taken(body);
        let seen = taken.inspect(move |event| {
            if !begun && says_something(event) {
                begun = true;
                lives.is_at(&id, "answer");
            }
        });
        seen.boxed()
    }

    /// The same, where nobody looks at how far it is.
    fn taken(self, body: Content) -> BoxStream<'static, Event> {
        if self.prepared.request.changes_tools() {
            return streamed(body.events(), Taker::Answering(Box::new(self.answering())));
        }
        let Passed { app, upstream, parts, prepared, started } = self;
        let (owned, sent) = (Arc::clone(app), app.outgoing_of(&parts.headers, &upstream, &prepared.id));
        let keeper = Keeper::of(&app.store, &prepared);
        let done = move |reported, end, reply| {
            let outcome = Outcome::of_one_round(reported, end);
            Some(account(&owned, upstream, &sent, prepared, (outcome, reply), started))
        };
        streamed(body.events(), Taker::Books(Box::new(Books::new(keeper, done))))
    }

    /// A whole reply, accounted for; or, where tools of ours are called, the last of several.
    async fn whole(self, bytes: Bytes, status: &mut StatusCode) -> Result<Bytes, Error> {
        if self.prepared.request.changes_tools() {
            return match self.answering().whole(bytes).await {
                Ok(bytes) => Ok(bytes),
                Err(Stopped::Gone(e)) => Err(e),
                Err(Stopped::Refused(reply)) => {
                    let (refused, said) = recall::refusal(reply).await?;
                    *status = refused;
                    Ok(said)
                }
            };
        }
        let Passed { app, upstream, parts, prepared, started } = self;
        let keeper = Keeper::of(&app.store, &prepared);
        let mut reported = Reported::default();
        let said = aside::once(bytes.len(), || {
            reported.read(&bytes);
            serde_json::from_slice::<Value>(&bytes).ok().and_then(|whole| said(whole.pointer("/choices/0/message")?))
        });
        let reply = keeper.and_then(|mut keeper| keeper.reply(said));
        let outcome = Outcome::of_one_round(reported, relay::End::Complete);
        let sent = app.outgoing_of(&parts.headers, &upstream, &prepared.id);
        account(app, upstream, &sent, prepared, (outcome, reply), started).now().await;
        Ok(bytes)
    }

    fn answering(self) -> Answering {
        let Passed { app, upstream, parts, prepared, started } = self;
        let sent = app.outgoing_of(&parts.headers, &upstream, &prepared.id);
        Answering::new(Arc::clone(app), upstream, sent, path_of(parts), prepared, started)
    }
}
