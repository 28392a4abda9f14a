//! Request bodies: read within a size, a pace, and a bound on all of them together; decoded within the same size; given up at
//! shutdown.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::coding::{self, Coding, Failure};
use crate::config::Limits;
use crate::proxy::Error;

/// The unit that bodies are accounted in (bytes).
const UNIT: usize = 1024;

/// Memory set aside before a body has shown that it comes (bytes).
const FIRST: usize = 1 << 20;

/// How long a request waits for room among the bodies of others.
const BUSY_WAIT: Duration = Duration::from_secs(10);

/// How long the rest of a refused body is still read, and thrown away: a client that is writing reads the refusal only then.
const LINGER: Duration = Duration::from_secs(1);

/// So many bodies are decoded at once at most. What that takes is held against the room only once its size is known.
const DECODERS: usize = 4;

/// Reads bodies. One for all connections.
pub(super) struct Intake {
    idle: Duration,
    most: u64,
    room: Arc<Semaphore>,
    decoders: Arc<Semaphore>,
    stopping: CancellationToken,
}

/// A body, and its share of what all may take together: to be kept until the request is over.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) bytes: Bytes,
    pub(super) share: Share,
}

/// A share of the bytes that all bodies may take together.
#[derive(Default)]
pub(super) struct Share(Option<OwnedSemaphorePermit>);

impl Intake {
    pub(super) fn new(limits: &Limits, stopping: CancellationToken) -> Intake {
        let units = usize::try_from(limits.max_inflight_bytes).unwrap_or(usize::MAX).div_ceil(UNIT);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Intake {
            idle: Duration::from_secs(limits.body_idle_seconds),
            most: limits.max_inflight_bytes,
            room: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            decoders: Arc::new(Semaphore::new(cores.min(DECODERS))),
            stopping,
        }
    }

    /// Reads a body of at most `limit` bytes.
    ///
    /// # Errors
    /// 413 where it is larger, before anything is read if its length says so; 408 where it comes too slowly; 503 where there
    /// is no room for it, or the proxy is shutting down; 400 where it breaks off.
    pub(super) async fn read<B>(&self, mut body: B, limit: u64, hint: &str) -> Result<Arrived, Error>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: std::fmt::Display + Send,
    {
        match self.collect(&mut body, limit, hint).await {
            Err(e @ Error::Client { code: Some("request_too_large" | "overloaded"), .. }) => Err(refuse(body, e)),
            result => result,
        }
    }

    /// Undoes the codings of a body that has arrived. `limit` and `hint` are those that it was read with: what it unpacks to may
    /// take no more.
    ///
    /// # Errors
    /// 413 where it is larger, 400 where it is broken, 503 where there is no room for it.
    pub(super) async fn decode(
        &self,
        arrived: Arrived,
        codings: Vec<Coding>,
        limit: u64,
        hint: &str,
    ) -> Result<Arrived, Error> {
        let Arrived { bytes, mut share } = arrived;
        if codings.is_empty() || bytes.is_empty() {
            return Ok(Arrived { bytes, share });
        }
        let place = timeout(BUSY_WAIT, Arc::clone(&self.decoders).acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Err(self.overloaded()) };
        let work = move || {
            let decoded = coding::decode(&bytes, &codings, limit);
            (decoded, place)
        };
        let done = tokio::task::spawn_blocking(work).await;
        let (decoded, place) =
            done.map_err(|e| Error::Internal { doing: "decode a request body", source: e.into() })?;
        let decoded = decoded.map_err(|failure| match failure {
            Failure::TooLarge => Error::client(
                413,
                "request_too_large",
                format!("the request body unpacks to more than {limit} bytes"),
                hint,
            ),
            Failure::Broken(why) => {
                let message = format!("the request body cannot be decoded as its Content-Encoding says: {why}");
                Error::client(400, "bad_encoding", message, "send it again, or send it plain, without Content-Encoding")
            }
        })?;
        self.hold(&mut share, decoded.len()).await?;
        drop(place);
        Ok(Arrived { bytes: decoded.into(), share })
    }

    async fn collect<B>(&self, body: &mut B, limit: u64, hint: &str) -> Result<Arrived, Error>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let said = body.size_hint().lower();
        if said > limit {
            return Err(too_large(limit, hint));
        }
        let limit_here = usize::try_from(limit).unwrap_or(usize::MAX);
        let said = usize::try_from(said).unwrap_or(usize::MAX);
        let mut out = BytesMut::with_capacity(said.min(FIRST));
        let mut share = Share::default();
        let mut started = Instant::now();
        while let Some(data) = self.next(body, started, out.len()).await? {
            let size = out.len() + data.len();
            if size > limit_here {
                return Err(too_large(limit, hint));
            }
            started += self.hold(&mut share, size).await?;
            if out.capacity() < size {
                out.reserve(said.saturating_sub(out.len()).max(data.len()));
            }
            out.extend_from_slice(&data);
        }
        Ok(Arrived { bytes: out.freeze(), share })
    }

    /// The next data of a body; `None` at its end.
    async fn next<B>(&self, body: &mut B, started: Instant, read: usize) -> Result<Option<Bytes>, Error>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        // One byte now and then is no progress: each second beyond the first wait must have brought a unit.
        let pace = started + self.idle + Duration::from_secs((read / UNIT) as u64);
        loop {
            let frame = tokio::select! {
                // What is there is taken, also while shutting down.
                biased;
                frame = timeout_at(pace.min(Instant::now() + self.idle), body.frame()) => frame,
                () = self.stopping.cancelled() => return Err(stopping()),
            };
            match frame.map_err(|_| self.late())? {
                None => return Ok(None),
                Some(Err(e)) => return Err(incomplete(&e.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Takes room for a body that is now `size` bytes long; returns how long that took.
    async fn hold(&self, share: &mut Share, size: usize) -> Result<Duration, Error> {
        let has = share.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = size.div_ceil(UNIT).saturating_sub(has);
        let Ok(more) = u32::try_from(more) else { return Err(self.overloaded()) };
        if more == 0 {
            return Ok(Duration::ZERO);
        }
        let asked = Instant::now();
        let room = timeout(BUSY_WAIT, Arc::clone(&self.room).acquire_many_owned(more));
        let Ok(Ok(permit)) = room.await else { return Err(self.overloaded()) };
        match &mut share.0 {
            Some(held) => held.merge(permit),
            None => share.0 = Some(permit),
        }
        Ok(asked.elapsed())
    }

    fn late(&self) -> Error {
        let message = format!(
            "the request body came too slowly: nothing for {} seconds, or less than 1 KiB a second",
            self.idle.as_secs()
        );
        Error::client(
            408,
            "request_timeout",
            message,
            "send it at once, or raise `body_idle_seconds` in [limits] of config.toml",
        )
    }

    fn overloaded(&self) -> Error {
        let message =
            format!("the bodies of the requests under way take all of the {} bytes there are for them", self.most);
        let hint = "try again, send fewer requests at once, or raise `max_inflight_bytes` in [limits] of config.toml";
        Error::client(503, "overloaded", message, hint)
    }
}

/// Gives up a body that is refused. It is still read for a moment, and thrown away.
pub(super) fn refuse<B, Why>(mut body: B, why: Why) -> Why
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Send,
{
    #[expect(clippy::disallowed_methods, reason = "it throws bytes away for a second: nothing waits for it")]
    tokio::spawn(timeout(LINGER, async move { while let Some(Ok(_)) = body.frame().await {} }));
    why
}

fn too_large(limit: u64, hint: &str) -> Error {
    Error::client(413, "request_too_large", format!("the request body is larger than {limit} bytes"), hint)
}

fn incomplete(why: &str) -> Error {
    Error::client(400, "incomplete_body", format!("the request body did not arrive whole: {why}"), "")
}

fn stopping() -> Error {
    let message = "windowsill is shutting down, and the request body had not arrived";
    Error::client(503, "shutting_down", message, "send it again once windowsill is back")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::StreamExt as _;
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn limits(inflight: u64, idle: u64) -> Limits {
        Limits {
            max_body_bytes: inflight,
            max_inflight_bytes: inflight,
            max_header_bytes: 8192,
            max_connections: 1,
            max_connections_per_peer: 1,
            body_idle_seconds: idle,
            head_seconds: 1,
            ping_seconds: 1,
            drain_seconds: 1,
        }
    }

    /// With the clock stopped: it goes on by itself where everything waits.
    fn run<T>(of: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(of)
    }

    /// A body whose pieces come so many seconds after each other.
    fn dripping(pieces: usize, bytes: usize, seconds: u64) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let pieces = stream::iter(0..pieces).then(move |_| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(Frame::data(Bytes::from(vec![b'x'; bytes])))
        });
        StreamBody::new(pieces.boxed())
    }

    fn code(result: Result<Arrived, Error>) -> Option<&'static str> {
        match result {
            Ok(_) => None,
            Err(Error::Client { code, .. }) => code,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn slow_bodies_are_given_up() {
        run(async {
            let intake = Intake::new(&limits(1 << 20, 30), CancellationToken::new());
            assert_eq!(code(intake.read(dripping(3, 10, 31), 1 << 20, "").await), Some("request_timeout"));
            assert_eq!(code(intake.read(dripping(90, 1, 5), 1 << 20, "").await), Some("request_timeout"), "a trickle");
            assert_eq!(code(intake.read(dripping(90, 8192, 5), 1 << 20, "").await), None, "slow, and going on");
        });
    }

    #[test]
    fn bodies_share_what_there_is() {
        run(async {
            let intake = Intake::new(&limits(8 * UNIT as u64, 30), CancellationToken::new());
            let body = |units: usize| Full::new(Bytes::from(vec![b'x'; units * UNIT]));
            let first = intake.read(body(6), 1 << 20, "").await.unwrap();
            assert_eq!(first.bytes.len(), 6 * UNIT);
            let started = Instant::now();
            assert_eq!(code(intake.read(body(3), 1 << 20, "").await), Some("overloaded"));
            assert_eq!(started.elapsed(), BUSY_WAIT);
            drop(first);
            assert_eq!(code(intake.read(body(8), 1 << 20, "").await), None, "room comes back");
            assert_eq!(code(intake.read(body(8), 8 * UNIT as u64 - 1, "").await), Some("request_too_large"));
        });
    }

    #[test]
    fn what_has_not_arrived_is_dropped_at_shutdown() {
        run(async {
            let stopping = CancellationToken::new();
            let intake = Intake::new(&limits(1 << 20, 30), stopping.clone());
            let waiting = intake.read(dripping(1, 1, 20), 1 << 20, "");
            let stop = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                stopping.cancel();
            };
            assert_eq!(code(tokio::join!(waiting, stop).0), Some("shutting_down"));
            let there = Full::new(Bytes::from_static(b"x"));
            assert_eq!(code(intake.read(there, 1 << 20, "").await), None, "what is there is taken");
        });
    }
}
