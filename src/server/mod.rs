//! The front door: HTTP only. Accepts, limits, answers, drains; knows nothing of prompts.

mod body;
mod cors;
mod door;
mod error;
mod inspect;
mod page;
mod peers;
mod query;
mod routes;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::proxy::App;
use peers::Peers;

/// How long a client may take to send the head of a request.
const HEAD_WITHIN: Duration = Duration::from_secs(30);

/// How long to wait after the system refuses a connection (out of files, mostly) before asking again.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is done; then accepts nothing more and lets what is under way end, within `drain_seconds`.
pub async fn run(listener: TcpListener, app: Arc<App>, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let limits = app.config.limits;
    let places = Arc::new(Semaphore::new(limits.max_connections));
    let stopping = CancellationToken::new();
    let front = Arc::new(routes::Front::new(Arc::clone(&app), stopping.clone()));
    let peers = Peers::new(limits.max_connections_per_peer);
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    // hyper's buffer bounds the head; it must be at least 8 KiB.
    http.max_buf_size(limits.max_header_bytes.max(8192)).timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
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
            debug!(%peer, "this address has too many connections open");
            continue;
        };
        // A reply's small pieces must not wait for acknowledgements.
        if let Err(e) = stream.set_nodelay(true) {
            debug!(%peer, error = %e, "TCP_NODELAY could not be set");
        }
        let service = {
            let front = Arc::clone(&front);
            service_fn(move |request: hyper::Request<Incoming>| {
                let front = Arc::clone(&front);
                async move { Ok::<_, Infallible>(front.answer(request).await) }
            })
        };
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        // Ended by force only when the tasks are closed, after the drain below.
        app.tasks.spawn(async move {
            if let Err(e) = connection.await {
                debug!(%peer, error = %e, "connection ended");
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
    Ok(())
}
