//! One server's wire: URLs, headers, one retry of a question on a dead pooled connection, bounded reads. Knows nothing of
//! chats.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde_json::Value;

use super::embedded::Embedded;
use super::error::{Error, Server};
use super::event::Content;

/// The longest error body that is read (bytes).
pub(super) const ERROR_BODY: usize = 1 << 20;
/// The longest answer to a GET, which asks about the server, that is read (bytes).
const ANSWER_BODY: usize = 4 << 20;
/// The longest answer to a POST (bytes): to count a prompt, vLLM lists its tokens.
const POSTED_BODY: usize = 64 << 20;
/// Pooled connections are dropped before the 5 s after which cpp-httplib and uvicorn close theirs.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// llama-server gives each open connection one of a handful of threads, busy or not: leave it some for others.
const POOL_MAX_IDLE: usize = 4;
const CONNECT: Duration = Duration::from_secs(5);
/// A request that failed later than this was being worked on: it is not sent again.
const RETRY_WITHIN: Duration = Duration::from_secs(2);

/// The reply of a server, as it arrives.
pub struct Reply {
    /// The HTTP status.
    pub status: StatusCode,
    /// Its headers without the hop-by-hop ones.
    pub headers: HeaderMap,
    /// Its body. Dropping it cancels the request at the server.
    pub body: Content,
}

impl Reply {
    /// JSON of our own with its length, under the headers of the server's reply, where there was one.
    pub(super) fn json(status: StatusCode, mut headers: HeaderMap, body: impl Into<Bytes>) -> Reply {
        let body = body.into();
        strip_for_client(&mut headers);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        Reply { status, headers, body: Content::whole(body) }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("status", &self.status).field("headers", &self.headers).finish_non_exhaustive()
    }
}

/// The HTTP client, one for the process: HTTP/1.1 alone (what local servers speak), no proxy from the environment, no
/// redirects, and no limit on how long a reply may take, since prompts are evaluated for minutes.
pub fn client() -> Result<reqwest::Client, Error> {
    built(POOL_MAX_IDLE)
}

/// [`client`], but each request has a connection of its own.
fn unpooled() -> Result<&'static reqwest::Client, Error> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    match CLIENT.get() {
        Some(client) => Ok(client),
        None => {
            let client = built(0)?;
            Ok(CLIENT.get_or_init(|| client))
        }
    }
}

fn built(max_idle: usize) -> Result<reqwest::Client, Error> {
    reqwest::Client::builder()
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(30))
        .connect_timeout(CONNECT)
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(max_idle)
        .build()
        .map_err(|e| Error::Client(Arc::new(e.without_url())))
}

/// A whole answer, read within limits.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    /// The body as JSON, whatever the status.
    pub(super) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// How to reach one server.
#[derive(Clone)]
pub(super) struct Link {
    client: reqwest::Client,
    /// Who answers instead of a server.
    pub(super) embedded: Option<Embedded>,
    pub(super) server: Server,
    /// With credentials if the user wrote some; without a trailing `/`, `/v1` or `/api`.
    base: reqwest::Url,
    key: Option<HeaderValue>,
    /// Where a router wants to be told of the conversation.
    session: Option<HeaderName>,
}

impl Link {
    pub(super) fn new(client: reqwest::Client, name: &str, url: &str) -> Result<Link, Error> {
        let bad = |what: String| Error::Config { server: Server { name: name.into(), url: url.into() }, what };
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let mut base = reqwest::Url::parse(&full).map_err(|e| bad(format!("not a URL: {e}")))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(bad("the URL must be http:// or https:// and name a host".into()));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(bad("the URL must end before any `?` or `#`".into()));
        }
        let path = base.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").or_else(|| path.strip_suffix("/api")).unwrap_or(path).to_owned();
        base.set_path(path.trim_end_matches('/'));
        let mut shown = base.clone();
        // Neither can fail: the URL has a host.
        let _ = (shown.set_username(""), shown.set_password(None));
        let shown = shown.as_str().trim_end_matches('/');
        Ok(Link {
            client,
            embedded: None,
            server: Server { name: name.into(), url: shown.into() },
            base,
            key: None,
            session: None,
        })
    }

    /// To a model that this program serves itself: nothing goes over the network.
    pub(super) fn within(client: reqwest::Client, name: &str, embedded: Embedded) -> Result<Link, Error> {
        let shown = format!("embedded:{}", embedded.file().display());
        let link = Link::new(client, name, "http://embedded")?;
        Ok(Link { embedded: Some(embedded), server: Server { name: name.into(), url: shown.into() }, ..link })
    }

    /// The same server, with this path before each that is asked.
    pub(super) fn below(&self, path: &str) -> Link {
        let mut link = self.clone();
        link.base.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        link
    }

    pub(super) fn set_key(&mut self, key: Option<&str>) -> Result<(), Error> {
        self.key = match key {
            None => None,
            Some(key) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| Error::Config {
                    server: self.server.clone(),
                    what: "the api key holds characters that no header may hold".into(),
                })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(())
    }

    pub(super) fn set_session_header(&mut self, name: Option<&str>) -> Result<(), Error> {
        let what = || "the session header has a name that no header may have".to_owned();
        let read =
            |name| HeaderName::try_from(name).map_err(|_| Error::Config { server: self.server.clone(), what: what() });
        self.session = name.map(read).transpose()?;
        Ok(())
    }

    /// Tells a router of the conversation that a request belongs to, where one is configured that wants to know.
    pub(super) fn tell_session(&self, headers: &mut HeaderMap, conversation: &str) {
        if let (Some(name), Ok(value)) = (&self.session, HeaderValue::from_str(conversation)) {
            headers.insert(name, value);
        }
    }

    /// A request below the base URL, with our key unless the client brought its own.
    pub(super) fn request(
        &self,
        method: Method,
        path_and_query: &str,
        mut headers: HeaderMap,
    ) -> Result<reqwest::RequestBuilder, Error> {
        let url = self.join(path_and_query)?;
        if let Some(key) = &self.key
            && !headers.contains_key(header::AUTHORIZATION)
        {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        Ok(self.client.request(method, url).headers(headers))
    }

    fn join(&self, path_and_query: &str) -> Result<reqwest::Url, Error> {
        let outside =
            || Error::Config { server: self.server.clone(), what: "the path leads outside the base URL".into() };
        let base = self.base.path().trim_end_matches('/');
        let (path, query) = match path_and_query.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (path_and_query, None),
        };
        let mut url = self.base.clone();
        url.set_path(&format!("{base}/{}", path.trim_start_matches('/')));
        url.set_query(query);
        // `..` is resolved by the URL type: what it resolves to must still be below the base.
        let below = url.path().strip_prefix(base).is_some_and(|rest| rest.starts_with('/'));
        if below { Ok(url) } else { Err(outside()) }
    }

    /// Sends a client's request. What may change something, or end the server, goes over a connection of its own and is sent
    /// once: a prompt that crashes a server must not crash its restart, too.
    pub(super) async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, Error> {
        let request = request.build().map_err(|e| self.broken(e))?;
        if let Some(embedded) = &self.embedded {
            return Ok(embedded.answer(request).await);
        }
        let response = match request.method().is_safe() {
            true => self.question(request).await?,
            false => unpooled()?.execute(request).await.map_err(|e| self.broken(e))?,
        };
        match response.status() {
            // What follows is no HTTP any more, and nobody asked for it.
            status if status.is_informational() => Err(self.protocol(format!("an answer with status {status}"))),
            _ => Ok(response),
        }
    }

    /// Sends what only asks, and sends it once more if a pooled connection turned out to be dead and the body can be sent
    /// again.
    async fn question(&self, request: reqwest::Request) -> Result<reqwest::Response, Error> {
        if let Some(embedded) = &self.embedded {
            return Ok(embedded.answer(request).await);
        }
        let again = request.try_clone();
        let started = Instant::now();
        let error = match self.client.execute(request).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        match again {
            Some(again) if is_dead_connection(&error) && started.elapsed() < RETRY_WITHIN => {
                self.client.execute(again).await.map_err(|e| self.broken(e))
            }
            _ => Err(self.broken(error)),
        }
    }

    /// A question to the server: answered whole within `limit`, whatever its status.
    pub(super) async fn ask(
        &self,
        method: Method,
        path_and_query: &str,
        body: Option<Bytes>,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let mut headers = HeaderMap::new();
        if body.is_some() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        self.answer(self.request(method, path_and_query, headers)?, path_and_query, body, limit).await
    }

    /// [`Link::ask`] with GET, on a connection that is not kept: for questions asked once and many together.
    pub(super) async fn ask_once(&self, path: &str, limit: Duration) -> Result<Answer, Error> {
        let close = HeaderMap::from_iter([(header::CONNECTION, HeaderValue::from_static("close"))]);
        self.answer(self.request(Method::GET, path, close)?, path, None, limit).await
    }

    async fn answer(
        &self,
        request: reqwest::RequestBuilder,
        path_and_query: &str,
        body: Option<Bytes>,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let longest = if body.is_some() { POSTED_BODY } else { ANSWER_BODY };
        let mut request = request.header(header::ACCEPT, "application/json").timeout(limit);
        if let Some(body) = body {
            request = request.body(body);
        }
        let timed = |error: Error| match error {
            Error::Broken { source, .. } | Error::Connect { source, .. } if source.is_timeout() => {
                Error::Timeout { server: self.server.clone(), path: path_only(path_and_query).to_owned(), limit }
            }
            other => other,
        };
        let request = request.build().map_err(|e| self.broken(e))?;
        let response = self.question(request).await.map_err(timed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = if status.as_u16() >= 400 {
            self.read_start(response, ERROR_BODY).await
        } else {
            self.read(response, longest).await
        };
        Ok(Answer { status, headers, body: body.map_err(timed)? })
    }

    /// [`Link::ask`] with GET, where only a JSON answer below status 400 will do.
    pub(super) async fn get(&self, path_and_query: &str, limit: Duration) -> Result<Value, Error> {
        let answer = self.ask(Method::GET, path_and_query, None, limit).await?;
        self.good(path_and_query, answer)
    }

    /// [`Link::ask`] with POST, where only a JSON answer below status 400 will do.
    pub(super) async fn post(&self, path: &str, body: impl Into<Bytes>, limit: Duration) -> Result<Value, Error> {
        let answer = self.ask(Method::POST, path, Some(body.into()), limit).await?;
        self.good(path, answer)
    }

    /// [`Link::ask`] with POST, where only an answer below status 400 will do: its body, not looked into.
    pub(super) async fn post_whole(&self, path: &str, body: impl Into<Bytes>, limit: Duration) -> Result<Bytes, Error> {
        let answer = self.ask(Method::POST, path, Some(body.into()), limit).await?;
        Ok(self.below_400(path, answer)?.body)
    }

    fn good(&self, path_and_query: &str, answer: Answer) -> Result<Value, Error> {
        let answer = self.below_400(path_and_query, answer)?;
        answer.json().ok_or_else(|| self.protocol(format!("{} is not JSON", path_only(path_and_query))))
    }

    fn below_400(&self, path_and_query: &str, answer: Answer) -> Result<Answer, Error> {
        if answer.status.as_u16() >= 400 {
            return Err(Error::Status {
                server: self.server.clone(),
                path: path_only(path_and_query).to_owned(),
                status: answer.status,
                body: answer.body,
            });
        }
        Ok(answer)
    }

    /// The whole body, or an error where it is longer than `limit` bytes.
    pub(super) async fn read(&self, mut response: reqwest::Response, limit: usize) -> Result<Bytes, Error> {
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.broken(e))? {
            if body.len() + chunk.len() > limit {
                return Err(self.protocol(format!("an answer of more than {} MiB", limit >> 20)));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// The first `limit` bytes of the body.
    pub(super) async fn read_start(&self, mut response: reqwest::Response, limit: usize) -> Result<Bytes, Error> {
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.broken(e))? {
            let room = limit - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == limit {
                break;
            }
        }
        Ok(body.freeze())
    }

    /// The response as it arrives.
    pub(super) fn reply(&self, response: reqwest::Response) -> Reply {
        let mut headers = response.headers().clone();
        let leads = headers.get(header::LOCATION).and_then(|to| self.here(response.url(), to));
        strip_for_client(&mut headers);
        headers.extend(leads.map(|to| (header::LOCATION, to)));
        Reply { status: response.status(), headers, body: Content::Bytes(self.stream(response)) }
    }

    /// Where a reply to `from` leads, as a path of ours; `None` where that is not below the base URL.
    fn here(&self, from: &reqwest::Url, to: &HeaderValue) -> Option<HeaderValue> {
        let to = from.join(to.to_str().ok()?).ok().filter(|to| to.origin() == self.base.origin())?;
        let path = to.path().strip_prefix(self.base.path().trim_end_matches('/'))?;
        // Two slashes would name a host.
        if !path.starts_with('/') || path.starts_with("//") {
            return None;
        }
        let query = to.query().map_or_else(String::new, |query| format!("?{query}"));
        HeaderValue::from_str(&format!("{path}{query}")).ok()
    }

    pub(super) fn stream(&self, response: reqwest::Response) -> BoxStream<'static, Result<Bytes, Error>> {
        let server = self.server.clone();
        response.bytes_stream().map(move |chunk| chunk.map_err(|e| failed(server.clone(), e))).boxed()
    }

    pub(super) fn broken(&self, error: reqwest::Error) -> Error {
        failed(self.server.clone(), error)
    }

    /// The model could not be loaded, and why.
    pub(super) fn unloadable(&self, what: String) -> Error {
        Error::Unloadable { server: self.server.clone(), what }
    }

    pub(super) fn protocol(&self, what: impl Into<String>) -> Error {
        Error::Protocol { server: self.server.clone(), what: what.into() }
    }
}

fn failed(server: Server, error: reqwest::Error) -> Error {
    let source = Arc::new(error.without_url());
    if source.is_connect() { Error::Connect { server, source } } else { Error::Broken { server, source } }
}

fn path_only(path_and_query: &str) -> &str {
    path_and_query.split('?').next().unwrap_or(path_and_query)
}

/// The server closed the connection before the first byte of a reply: what a pooled connection that died unnoticed
/// looks like. hyper's own error type is behind the server's door, so its words are matched; a test guards them.
fn is_dead_connection(error: &reqwest::Error) -> bool {
    if error.is_connect() || error.is_timeout() || error.is_builder() || error.is_body() {
        return false;
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
            return matches!(
                io.kind(),
                BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof
            );
        }
        let words = cause.to_string();
        if words.contains("connection closed before message completed") || words.contains("connection was not ready") {
            return true;
        }
        source = cause.source();
    }
    false
}

/// Removes what belongs to one connection alone (RFC 9110, 7.6.1): `connection` and what it names, and the usual ones.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    const NAMES: [HeaderName; 7] = [
        header::CONNECTION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
    ];
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    for name in named.iter().chain(&NAMES) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// What a server may not say to a client: it would speak of this proxy's address, which is none of its own, or in this proxy's
/// name. Where a reply leads is checked by [`Link::reply`].
const OURS_TO_SAY: [HeaderName; 16] = [
    header::LOCATION,
    header::SET_COOKIE,
    header::REFRESH,
    header::STRICT_TRANSPORT_SECURITY,
    header::ALT_SVC,
    // The front door says it of all that a server sends.
    header::CONTENT_SECURITY_POLICY,
    header::CONTENT_SECURITY_POLICY_REPORT_ONLY,
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("set-login"),
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("report-to"),
    HeaderName::from_static("reporting-endpoints"),
    HeaderName::from_static("nel"),
    // Web servers in front of this one open files for them.
    HeaderName::from_static("x-sendfile"),
    HeaderName::from_static("x-lighttpd-send-file"),
];

/// A server's headers as they go on to the client.
pub(super) fn strip_for_client(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    let ours = |name: &&HeaderName| {
        OURS_TO_SAY.contains(name) || ["x-windowsill", "x-accel-"].iter().any(|start| name.as_str().starts_with(start))
    };
    let ours: Vec<HeaderName> = headers.keys().filter(ours).cloned().collect();
    ours.iter().for_each(|name| drop(headers.remove(name)));
}

/// The client's headers as they go on to the server: without the hop-by-hop ones, and without those that the HTTP
/// client writes itself.
pub(super) fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    strip_hop_by_hop(&mut headers);
    headers.remove(header::HOST);
    headers.remove(header::CONTENT_LENGTH);
    // Answered by the front door already.
    headers.remove(header::EXPECT);
    headers
}
