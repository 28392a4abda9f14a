//! The front door: HTTP only. Accepts, limits, answers, drains; knows nothing of prompts.

mod body;
mod coding;
mod cors;
mod door;
mod error;
mod gate;
mod guests;
mod inspect;
mod mcp;
mod noted;
mod page;
mod peers;
mod query;
mod routes;
mod steering;
mod table;
mod under_way;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::Limits;
use crate::proxy::App;
use peers::Peers;
pub use table::{ROUTES, Route};
use under_way::UnderWay;

/// How long a client may take to send the head of a request.
const HEAD_WITHIN: Duration = Duration::from_secs(30);

/// How long to wait after the system refuses a connection (out of files, mostly) before asking again.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// At shutdown, how long a connection without a request under way may take to send what is left of its last reply.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// What an address with too many connections is told.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Serves until `shutdown` is done; then accepts nothing more and lets what is under way end, within `drain_seconds`.
/// Requests that have not arrived by then are not waited for.
pub async fn run(listener: TcpListener, app: Arc<App>, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let limits = app.config.limits;
    let places = Arc::new(Semaphore::new(limits.max_connections));
    let stopping = CancellationToken::new();
    let front = Arc::new(routes::Front::new(Arc::clone(&app), stopping.clone()));
    let peers = Peers::new(limits.max_connections_per_peer);
    let graceful = GracefulShutdown::new();
    let http = http(&limits);
    tokio::pin!(shutdown);
    loop {
        let place = tokio::select! {
            () = &mut shutdown => break,
            place = Arc::clone(&places).acquire_owned() => place.map_err(io::Error::other)?,
        };
        let (stream, peer) = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(e) => {
                    warn!(error = %e, "a connection could not be accepted");
                    tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
                    continue;
                }
            },
        };
        let Some(guest) = peers.enter(peer.ip()) else {
            turn_away(stream, peer);
            continue;
        };
        // A reply's small pieces must not wait for acknowledgements.
        if let Err(e) = stream.set_nodelay(true) {
            debug!(%peer, error = %e, "TCP_NODELAY could not be set");
        }
        let under_way = UnderWay::default();
        let service = {
            let (front, under_way) = (Arc::clone(&front), under_way.clone());
            service_fn(move |request: hyper::Request<Incoming>| {
                let (front, begun) = (Arc::clone(&front), under_way.begin());
                async move { Ok::<_, Infallible>(begun.until_sent(front.answer(request).await)) }
            })
        };
        let stopping = stopping.clone();
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        // Ended by force only when the tasks are closed, after the drain below.
        app.tasks.spawn(async move {
            tokio::select! {
                ended = connection => if let Err(e) = ended {
                    debug!(%peer, error = %e, "connection ended");
                },
                () = idle_at_stop(&stopping, &under_way) => debug!(%peer, "dropped: no request had arrived"),
            }
            drop((place, guest));
        });
    }
    drop(listener);
    // Requests whose bodies have not arrived would hold the others up.
    stopping.cancel();
    info!("shutting down: requests under way may end");
    let drained = tokio::time::timeout(Duration::from_secs(limits.drain_seconds), graceful.shutdown()).await;
    if drained.is_err() {
        warn!(seconds = limits.drain_seconds, "some requests did not end in time");
    }
    front.close().await;
    Ok(())
}

fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // hyper's buffer bounds a head that does not end, and must be at least 8 KiB. A head that comes in one piece may pass it,
    // so `routes` looks at the size again. Headers are counted too: room for many small ones within the bytes.
    http.max_buf_size(limits.max_header_bytes.max(8192)).max_headers((limits.max_header_bytes / 32).clamp(100, 4096));
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    http
}

/// Says why, as far as that can be said without waiting, and hangs up.
fn turn_away(stream: TcpStream, peer: SocketAddr) {
    warn!(%peer, "it has `max_connections_per_peer` connections already: one more is not taken");
    if let Ok(mut stream) = stream.into_std() {
        let _ = io::Write::write(&mut stream, TOO_MANY);
    }
}

/// Done once the proxy stops and the connection has no request under way.
async fn idle_at_stop(stopping: &CancellationToken, under_way: &UnderWay) {
    stopping.cancelled().await;
    loop {
        tokio::time::sleep(LAST_BYTES).await;
        if under_way.is_none() {
            return;
        }
    }
}
