//! A small HTTP client for tests that read top to bottom: each call blocks until the reply is whole, or is read piece by
//! piece where a test does something in the middle.

use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Runtime;

/// The longest that any reply takes here: a full window on a busy core, and a brief before it.
const LIMIT: Duration = Duration::from_secs(400);

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap())
}

fn client() -> &'static reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    CLIENT.get_or_init(|| reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap())
}

/// A whole reply.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.text))
    }

    /// A header of ours: `window` for `x-windowsill-window`; empty when it is not there.
    pub(crate) fn ours(&self, name: &str) -> &str {
        self.headers.get(format!("x-windowsill-{name}")).map_or("", |v| v.to_str().unwrap())
    }

    /// The data of each event, `[DONE]` aside.
    pub(crate) fn events(&self) -> Vec<Value> {
        data(&self.text).filter(|d| *d != "[DONE]").map(|d| serde_json::from_str(d).unwrap()).collect()
    }

    /// Whether the stream said that it is complete.
    pub(crate) fn is_done(&self) -> bool {
        data(&self.text).any(|d| d == "[DONE]")
    }
}

fn data(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|l| l.strip_prefix("data:")).map(str::trim)
}

/// `POST url` with a JSON body. Panics when there is no whole reply.
pub(crate) fn post(url: &str, body: impl ToString) -> Reply {
    post_with(url, &[], body)
}

/// As [`post`], with headers.
pub(crate) fn post_with(url: &str, headers: &[(&str, &str)], body: impl ToString) -> Reply {
    open(url, headers, body).whole()
}

/// `POST url` with bytes as they are.
pub(crate) fn post_bytes(url: &str, body: Vec<u8>) {
    let sent = runtime().block_on(async { client().post(url).body(body).send().await });
    let status = sent.unwrap_or_else(|e| panic!("POST {url}: {e:?}")).status();
    assert!(status.is_success(), "{url}: {status}");
}

/// `GET url`.
pub(crate) fn get(url: &str) -> Reply {
    runtime().block_on(async {
        let reply = client().get(url).send().await.unwrap_or_else(|e| panic!("GET {url}: {e:?}"));
        let (status, headers) = (reply.status().as_u16(), reply.headers().clone());
        Reply { status, headers, text: reply.text().await.unwrap() }
    })
}

/// A reply that is still coming in. Dropping it closes the connection.
pub(crate) struct Live {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    /// What has come so far.
    pub(crate) text: String,
    bytes: Vec<u8>,
    response: reqwest::Response,
}

/// Sends a request and returns with the head of the reply.
pub(crate) fn open(url: &str, headers: &[(&str, &str)], body: impl ToString) -> Live {
    try_open(url, headers, body).unwrap_or_else(|e| panic!("POST {url}: {e:?}"))
}

/// As [`open`], where the server may be gone.
pub(crate) fn try_open(url: &str, headers: &[(&str, &str)], body: impl ToString) -> reqwest::Result<Live> {
    runtime().block_on(async {
        let mut request = client().post(url).header("content-type", "application/json").body(body.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Live { status, headers, text: String::new(), bytes: Vec::new(), response })
    })
}

impl Live {
    /// Reads one more piece; false at the end, or when the connection broke.
    pub(crate) fn more(&mut self) -> bool {
        let chunk = runtime().block_on(self.response.chunk());
        let Ok(Some(chunk)) = chunk else { return false };
        self.bytes.extend_from_slice(&chunk);
        self.text = String::from_utf8_lossy(&self.bytes).into_owned();
        true
    }

    /// Reads on until the text holds `what`. Panics when the reply ends before.
    pub(crate) fn until(&mut self, what: &str) {
        while !self.text.contains(what) {
            assert!(self.more(), "the reply ended before {what:?}: {}", self.text);
        }
    }

    /// The reply, read to its end.
    pub(crate) fn whole(mut self) -> Reply {
        self.finish();
        Reply { status: self.status, headers: self.headers, text: self.text }
    }

    /// Reads all that comes.
    pub(crate) fn finish(&mut self) {
        // Collected first: the text is made once, not once a piece.
        while let Ok(Some(chunk)) = runtime().block_on(self.response.chunk()) {
            self.bytes.extend_from_slice(&chunk);
        }
        self.text = String::from_utf8_lossy(&self.bytes).into_owned();
    }
}
