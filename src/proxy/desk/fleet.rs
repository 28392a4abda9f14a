//! The servers behind the proxy, for people: which of them get requests, and what is known of them.

use serde_json::{Value, json};
use tracing::info;

use crate::proxy::lookout::servers;
use crate::proxy::{App, Error};
use crate::upstream::{Kind, Upstream};

/// `GET /windowsill/upstreams`: every server, whether it gets requests, and what was measured of it.
pub fn upstreams(app: &App) -> Value {
    let all: Vec<Value> = servers(app).map(|(at, upstream)| told(app, at, upstream)).collect();
    json!({"upstreams": all})
}

fn told(app: &App, at: usize, upstream: &Upstream) -> Value {
    let mut told = json!({
        "upstream": upstream.name(),
        "url": upstream.url(),
        "kind": upstream.kind().map(Kind::as_str),
    });
    if let (Some(to), Value::Object(known)) = (told.as_object_mut(), app.servers.routing.told(at)) {
        to.extend(known);
    }
    told
}

/// Has a server get no more requests; those that are open end. Or takes that back. It holds until windowsill is started again.
///
/// # Errors
/// 404 where no server is called so.
pub fn drain(app: &App, name: &str, on: bool) -> Result<Value, Error> {
    let at = app.servers.index_of(name).ok_or_else(|| {
        let names: Vec<&str> = servers(app).map(|(_, upstream)| upstream.name()).collect();
        let message = format!("no server is called `{}`", crate::plain::line(name));
        Error::client(404, "unknown_upstream", message, &format!("there are {}", names.join(", ")))
    })?;
    app.servers.routing.drain(at, on);
    info!(upstream = name, draining = on, "told to drain a server");
    Ok(told(app, at, &app.servers.all[at]))
}
