//! What a collector is told of a request, where somebody wants that: its figures, as the record has them, never its text.

use http::HeaderMap;
use serde_json::Value;

use crate::clock;
use crate::proxy::App;
use crate::telemetry::{Server, Told};
use crate::upstream::{Kind, Upstream};

/// Tells of a request whose reply ended. `data` is that of its event; `headers` are the client's.
pub(super) fn ended(app: &App, headers: &HeaderMap, upstream: &Upstream, id: &str, data: &Value) {
    let Some(spans) = app.metrics.spans() else { return };
    spans.tell(headers, |parent| {
        let (host, port) = upstream.authority();
        let kind = upstream.kind().map_or("unknown", Kind::as_str);
        let server = Some(Server { kind, host, port });
        Told { data: data.clone(), conversation: Some(id.to_owned()), server, ended: clock::now(), parent }
    });
}

/// Tells of a request that failed before there was a reply of the server's to pass on.
pub(in crate::proxy) fn failed(app: &App, headers: &HeaderMap, conversation: Option<&str>, data: &Value) {
    let Some(spans) = app.metrics.spans() else { return };
    spans.tell(headers, |parent| {
        let conversation = conversation.map(str::to_owned);
        Told { data: data.clone(), conversation, server: None, ended: clock::now(), parent }
    });
}
