//! The trace: what happened to conversations, page by page or as it happens. Counts and ids alone, never message text.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::record;
use super::rows::event_json;
use super::running::{encode, proxy_at, why_not};
use crate::proxy::turn::relay::Body;
use crate::proxy::{App, Error};
use crate::store::{EventFilter, EventRow, Store};
use crate::upstream::sse;

/// How long a stream of events is silent before it says that it is still there. Proxies and browsers drop what says
/// nothing for a minute.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Events that are read from the record at once.
const PAGE: usize = 1000;

/// What of the trace is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceQuery {
    /// Only events after the one with this id.
    pub since: Option<i64>,
    /// Or: the newest so many, and what comes after them.
    pub last: Option<usize>,
    /// Only those of this conversation: its id, or the beginning of one.
    pub conversation: Option<String>,
    /// Only those of these kinds; none stands for all.
    pub kinds: Vec<String>,
}

/// `GET /windowsill/events?since=…`: a page of the trace, the oldest first.
///
/// # Errors
/// 404 for an unknown conversation; or when the record cannot be read.
pub fn events(app: &App, asked: &TraceQuery, limit: usize) -> Result<Value, Error> {
    let of = filter(app, asked)?;
    let since = match (asked.since, asked.last) {
        (Some(since), _) => since,
        (None, Some(newest)) => app.store.trace().before(newest, &of)?,
        (None, None) => 0,
    };
    let rows = app.store.trace().since(since, limit, &of)?;
    let last = rows.last().map_or(since, |e| e.id);
    Ok(json!({"events": rows.iter().map(event_json).collect::<Vec<_>>(), "next": last}))
}

/// `GET /windowsill/events` as server-sent events: what was asked for of the past, and then what happens, until the
/// client goes away or `stopping` is canceled. Without `since` and `last` it begins now.
///
/// # Errors
/// 404 for an unknown conversation; or when the record cannot be read.
pub fn follow(app: &App, asked: &TraceQuery, stopping: CancellationToken) -> Result<Body, Error> {
    let of = filter(app, asked)?;
    // Subscribed to before the record is read, so that no commit falls in between.
    let commits = app.store.commits();
    let since = match asked.since {
        Some(since) => since,
        None => app.store.trace().before(asked.last.unwrap_or(0), &of)?,
    };
    let following =
        Following { store: app.store.clone(), of, since, commits, stopping, beat: Instant::now() + HEARTBEAT };
    // A client that lost the connection waits two seconds before it asks again.
    let hello = futures_util::stream::iter([Bytes::from_static(b"retry: 2000\n: following\n\n")]);
    let frames = hello.chain(futures_util::stream::unfold(following, Following::next));
    Ok(StreamBody::new(frames.map(|bytes| Ok::<_, io::Error>(Frame::data(bytes)))).boxed_unsync())
}

fn filter(app: &App, asked: &TraceQuery) -> Result<EventFilter, Error> {
    let hint = "`windowsill context` and the page list them";
    let whole = |id: &String| record::row(&app.store, id, hint).map(|row| row.id);
    Ok(EventFilter { conversation: asked.conversation.as_ref().map(whole).transpose()?, kinds: asked.kinds.clone() })
}

/// A client that follows the trace.
struct Following {
    store: Store,
    of: EventFilter,
    /// The last event that it was told of.
    since: i64,
    commits: watch::Receiver<u64>,
    stopping: CancellationToken,
    /// When something is said at the latest.
    beat: Instant,
}

impl Following {
    /// The events since the last look that the client asked for. Where there are none, the next look begins behind all that are
    /// there now: nobody goes through the whole trace at each commit for a filter that matches nothing.
    fn news(&mut self) -> Result<Vec<EventRow>, crate::store::Error> {
        // Where all are asked for, what is not there yet is behind the last one that was seen.
        let newest = match self.of == EventFilter::default() {
            true => self.since,
            false => self.store.trace().before(0, &EventFilter::default())?,
        };
        let rows = self.store.trace().since(self.since, PAGE, &self.of)?;
        if rows.is_empty() {
            self.since = self.since.max(newest);
        }
        Ok(rows)
    }

    /// What is sent next; `None` ends the stream.
    async fn next(mut self) -> Option<(Bytes, Following)> {
        loop {
            self.commits.borrow_and_update();
            let rows = match self.news() {
                Ok(rows) => rows,
                Err(e) => {
                    warn!(error = %e, "a client that follows the events is sent away: the record cannot be read");
                    return None;
                }
            };
            if let Some(last) = rows.last() {
                self.since = last.id;
                self.beat = Instant::now() + HEARTBEAT;
                return Some((rows.iter().map(block).collect::<String>().into(), self));
            }
            tokio::select! {
                () = self.stopping.cancelled() => return None,
                // Without a writer nothing more will come.
                changed = self.commits.changed() => changed.ok()?,
                () = tokio::time::sleep_until(self.beat) => {
                    self.beat = Instant::now() + HEARTBEAT;
                    return Some((Bytes::from_static(b": still here\n\n"), self));
                }
            }
        }
    }
}

/// An event as a server-sent one. JSON holds no line breaks, so its data is one line.
fn block(event: &EventRow) -> String {
    let kind: String = event.kind.chars().filter(|c| !c.is_control()).collect();
    format!("id: {}\nevent: {kind}\ndata: {}\n\n", event.id, event_json(event))
}

/// Follows the trace of the running proxy at `address`: `tell` gets each event as it happens, and ends it by returning
/// false. Returns when it did, or when the proxy stops.
///
/// # Errors
/// When no proxy answers at `address`, or it says why not.
pub async fn follow_running(
    address: &str,
    key: Option<&str>,
    asked: &TraceQuery,
    mut tell: impl FnMut(Value) -> bool,
) -> Result<(), Error> {
    let mut path = format!("/windowsill/events?follow&last={}", asked.last.unwrap_or(0));
    for (name, value) in
        asked.conversation.iter().map(|id| ("conversation", id)).chain(asked.kinds.iter().map(|k| ("kind", k)))
    {
        path += &format!("&{name}={}", encode(value));
    }
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    let (proxy, absent) = proxy_at(address, key)?;
    let reply = proxy.pass(http::Method::GET, &path, &headers, Bytes::new().into()).await.map_err(absent)?;
    if !reply.status.is_success() {
        return Err(why_not(reply).await);
    }
    let (mut body, mut parser) = (reply.body, sse::Parser::default());
    while let Some(chunk) = body.next().await {
        let too_long = |_| Error::client(502, "bad_stream", "the proxy sent an event that is too long", "");
        for data in parser.push(&chunk?).map_err(too_long)?.into_iter().filter_map(|block| block.data) {
            if !serde_json::from_slice(&data).is_ok_and(&mut tell) {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Batch, Event};

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_says_that_it_is_there_and_ends_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let (commits, stopping) = (store.commits(), CancellationToken::new());
        let begun = Instant::now();
        let following = Following {
            store,
            of: EventFilter::default(),
            since: 0,
            commits,
            stopping: stopping.clone(),
            beat: begun + HEARTBEAT,
        };
        let (bytes, following) = following.next().await.unwrap();
        assert_eq!((&bytes[..], begun.elapsed()), (&b": still here\n\n"[..], HEARTBEAT));
        let (_, following) = following.next().await.unwrap();
        assert_eq!(begun.elapsed(), HEARTBEAT * 2);
        stopping.cancel();
        assert!(following.next().await.is_none());
    }

    /// What was looked at once and is not asked for is not looked at again.
    #[tokio::test]
    async fn a_filter_that_matches_nothing_begins_behind_what_it_has_seen() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let told = |kind: &str| Event { now_ms: 1, conversation: None, kind: kind.into(), data: json!({}) };
        let of = EventFilter { kinds: vec!["rare".into()], ..EventFilter::default() };
        let mut following = Following {
            store: store.clone(),
            of,
            since: 0,
            commits: store.commits(),
            stopping: CancellationToken::new(),
            beat: Instant::now() + HEARTBEAT,
        };
        let events = (0..50).map(|_| told("common")).collect();
        store.record(Batch { events, ..Batch::default() }).await.unwrap();
        assert_eq!((following.news().unwrap().len(), following.since), (0, 50));
        let events = vec![told("common"), told("rare"), told("common")];
        store.record(Batch { events, ..Batch::default() }).await.unwrap();
        let rows = following.news().unwrap();
        assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [52]);
    }

    #[test]
    fn an_event_is_one_block_whatever_its_kind_says() {
        let event =
            EventRow { id: 7, now_ms: 1, conversation: None, kind: "a\nid: 9".into(), data: json!({"x": "a\nb"}) };
        let text = block(&event);
        assert!(text.starts_with("id: 7\nevent: aid: 9\ndata: {") && text.ends_with("}\n\n"), "{text}");
        assert_eq!(text.matches('\n').count(), 4);
    }
}
