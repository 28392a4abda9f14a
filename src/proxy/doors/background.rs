//! Replies that are made in the background (`background: true` of the Responses API): the client asks how far they are, or goes on
//! reading their events where it was cut off. They live as long as this process; a reply that is whole is in the record, too.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use http_body::Frame;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::proxy::turn::early::Early;
use crate::proxy::{App, Error};

/// Replies that may be in the making at once; a client may not fill the memory.
const MOST: usize = 64;

/// Replies that are over and whose events are kept.
const MOST_OVER: usize = 64;

/// Bytes of the events of one reply that are kept; what is longer can be asked for when it is over, and not be read on.
const LARGEST: usize = 8 << 20;

/// The replies of this process.
#[derive(Default)]
pub(in crate::proxy) struct Backgrounds(Mutex<VecDeque<Arc<Running>>>);

/// A reply in the making, or one that is over.
pub(super) struct Running {
    id: String,
    /// A mark of the key that asked.
    owner: String,
    /// Where it will stand in the record.
    pub(super) early: Early,
    told: Mutex<Told>,
    changed: watch::Sender<()>,
    cancel: CancellationToken,
}

/// What was said of it so far.
#[derive(Default)]
struct Told {
    /// Its events by their numbers.
    events: Vec<Bytes>,
    bytes: usize,
    /// Some events were not kept.
    cut: bool,
    response: Value,
    over: bool,
}

/// What a stream of a reply yields.
pub(super) type Frames = BoxStream<'static, std::io::Result<Frame<Bytes>>>;

impl Backgrounds {
    /// The reply with an id, for its own key.
    pub(super) fn of(&self, id: &str, owner: &str) -> Option<Arc<Running>> {
        self.0.lock().iter().find(|one| one.id == id && one.owner == owner).cloned()
    }

    /// Forgets a reply.
    pub(super) fn forget(&self, id: &str) {
        self.0.lock().retain(|one| one.id != id);
    }

    fn add(&self, new: Arc<Running>) -> Result<(), Error> {
        let mut all = self.0.lock();
        let running = all.iter().filter(|one| !one.told.lock().over).count();
        if running >= MOST {
            let message = format!("{MOST} responses are being made in the background");
            return Err(Error::client(429, "too_many_background_responses", message, "wait for one, or cancel it"));
        }
        while all.len() - running >= MOST_OVER {
            let Some(oldest) = all.iter().position(|one| one.told.lock().over) else { break };
            all.remove(oldest);
        }
        all.push_back(new);
        Ok(())
    }
}

/// Makes a reply in the background, of the stream that tells it.
///
/// # Errors
/// When too many are in the making.
pub(super) async fn begin<S>(
    app: &Arc<App>,
    (id, owner): (String, String),
    early: Early,
    mut stream: S,
) -> Result<Arc<Running>, Error>
where
    S: Stream<Item = std::io::Result<Frame<Bytes>>> + Send + Unpin + 'static,
{
    let (changed, cancel) = (watch::Sender::new(()), CancellationToken::new());
    let running = Arc::new(Running { id, owner, early, told: Mutex::default(), changed, cancel });
    app.background.add(Arc::clone(&running))?;
    // Its beginning is there already.
    if let Some(Ok(frame)) = stream.next().await {
        running.take(frame);
    }
    let mine = Arc::clone(&running);
    app.tasks.spawn(async move {
        // Also where the process shuts down, whoever reads on is told that there is no more.
        let _over = Over(&mine);
        let read = async {
            while let Some(Ok(frame)) = stream.next().await {
                mine.take(frame);
            }
        };
        tokio::select! {
            () = mine.cancel.cancelled() => {}
            () = read => {}
        }
    });
    Ok(running)
}

/// Ends a reply when it is dropped.
struct Over<'a>(&'a Running);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.end("failed");
    }
}

impl Running {
    /// Takes what was said in between.
    fn take(&self, frame: Frame<Bytes>) {
        let Ok(data) = frame.into_data() else { return };
        let text = String::from_utf8_lossy(&data);
        let mut told = self.told.lock();
        for event in text.split_inclusive("\n\n") {
            let said = event.lines().find_map(|line| line.strip_prefix("data: "));
            let Some(mut said) = said.and_then(|said| serde_json::from_str::<Value>(said).ok()) else { continue };
            if said["response"].is_object() {
                told.response = said["response"].take();
            }
            told.bytes += event.len();
            told.cut |= told.bytes > LARGEST;
            if told.cut {
                told.events.clear();
            } else {
                told.events.push(Bytes::copy_from_slice(event.as_bytes()));
            }
        }
        drop(told);
        self.changed.send_replace(());
    }

    /// Ends it. What is not over yet gets this status.
    fn end(&self, status: &str) {
        let mut told = self.told.lock();
        if !std::mem::replace(&mut told.over, true) && is_open(&told.response) {
            told.response["status"] = status.into();
            if status == "failed" {
                told.response["error"] = json!({"code": "server_error", "message": "windowsill was stopped meanwhile"});
            }
        }
        drop(told);
        self.changed.send_replace(());
    }

    /// Cancels it, unless it is over. Returns the response as it stands then.
    pub(super) fn cancel(&self) -> Value {
        self.end("cancelled");
        self.cancel.cancel();
        self.response()
    }

    /// The response as it stands.
    pub(super) fn response(&self) -> Value {
        self.told.lock().response.clone()
    }

    /// Its events after the one with this number, those that are there and those that come.
    ///
    /// # Errors
    /// When they are no longer kept.
    pub(super) fn events(self: &Arc<Self>, after: Option<usize>) -> Result<Frames, Error> {
        if self.told.lock().cut {
            let message = format!("the events of this response are more than {} MiB, and are not kept", LARGEST >> 20);
            return Err(Error::client(400, "events_not_kept", message, "ask for the response without `stream`"));
        }
        let next = after.map_or(0, |after| after.saturating_add(1));
        let begin = (Arc::clone(self), next, self.changed.subscribe());
        Ok(stream::unfold(begin, |(running, next, mut changed)| async move {
            loop {
                changed.mark_unchanged();
                let (new, upto, over) = {
                    let told = running.told.lock();
                    (told.events.get(next..).unwrap_or_default().concat(), told.events.len(), told.over || told.cut)
                };
                if !new.is_empty() {
                    let next = upto;
                    return Some((Ok(Frame::data(Bytes::from(new))), (running, next, changed)));
                }
                if over || changed.changed().await.is_err() {
                    return None;
                }
            }
        })
        .boxed())
    }
}

/// Whether a response is still in the making.
fn is_open(response: &Value) -> bool {
    matches!(response["status"].as_str(), None | Some("in_progress" | "queued"))
}
