//! Whether a connection has a request under way: from its head until the last byte of its reply is handed over.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

use crate::proxy::relay::Body;

/// The requests under way on one connection.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<()>);

/// One request under way.
pub(super) struct Begun {
    _counted: UnderWay,
}

impl UnderWay {
    pub(super) fn begin(&self) -> Begun {
        Begun { _counted: self.clone() }
    }

    /// Whether there is none. The connection itself holds two: its task, and its service.
    pub(super) fn is_none(&self) -> bool {
        Arc::strong_count(&self.0) <= 2
    }
}

impl Begun {
    /// The reply, which counts as under way until it is sent or dropped.
    pub(super) fn until_sent(self, response: Response<Body>) -> Response<Body> {
        response.map(|body| Counted { body, _begun: self }.boxed_unsync())
    }
}

struct Counted {
    body: Body,
    _begun: Begun,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;
    use crate::proxy::relay::full;

    #[test]
    fn a_request_is_under_way_until_its_reply_is_gone() {
        let connection = UnderWay::default();
        let service = connection.clone();
        assert!(connection.is_none());
        let reply = service.begin().until_sent(Response::new(full("x")));
        assert!(!connection.is_none());
        assert_eq!(reply.body().size_hint().exact(), Some(1));
        drop(reply);
        assert!(connection.is_none());
    }
}
