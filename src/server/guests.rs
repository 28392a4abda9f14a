//! Who comes in with a `[[key]]`: whose record a request reads, what it may ask for, how much, and what is written down of it. Each
//! scope has a record, and so an [`App`], of its own: no path can show what is in another one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::error::reply_in;
use super::gate::{Gate, passes};
use super::inspect::{self, Own};
use super::noted::Asked;
use super::query::Query;
use super::steering::{Steering, asked};
use super::table::{Api, Found, To};
use crate::clock::now_ms;
use crate::config::{DEFAULT_SCOPE, is_name, keys_in, report};
use crate::keys::audit::{self, Audit, Entry};
use crate::keys::quota::Entered;
use crate::keys::{Key, Ring, Sessions};
use crate::proxy::{self, App, Body, Error, json_reply};

/// What a browser's session is called in its cookie.
const COOKIE: &str = "windowsill";

/// How long a browser keeps it (seconds): 30 days.
const COOKIE_AGE: u64 = 30 * 24 * 60 * 60;

/// The folder in the data folder that holds the records of scopes.
const SCOPES: &str = "scopes";

/// Time between two looks at the config file.
const LOOK: Duration = Duration::from_secs(2);

/// What the log says of a request whose client went away before it was answered; nginx has the number.
const CLIENT_GONE: u16 = 499;

/// Most lines of the audit log in one answer.
const LINES: usize = 10_000;

/// Everybody who has a key.
pub(super) struct Guests {
    /// The proxy on the record of [`DEFAULT_SCOPE`].
    root: Arc<App>,
    /// The config file, which is read again.
    file: Option<PathBuf>,
    ring: RwLock<Arc<Ring>>,
    sessions: Sessions,
    /// The proxies on the records of other scopes, as far as somebody asked for them.
    scopes: Mutex<HashMap<String, Arc<App>>>,
    audit: Arc<Audit>,
    stopping: CancellationToken,
}

/// One who was let in.
pub(super) struct Guest {
    /// The proxy on the record of the scope.
    pub(super) app: Arc<App>,
    /// Canceled when what goes on for ever must end.
    pub(super) over: CancellationToken,
    key: Option<Arc<Key>>,
    scope: String,
}

impl Guest {
    /// Anybody, where there are no keys, and who asks for what needs none.
    pub(super) fn anybody(app: &Arc<App>, stopping: &CancellationToken) -> Guest {
        Guest { app: Arc::clone(app), over: stopping.clone(), key: None, scope: DEFAULT_SCOPE.to_owned() }
    }

    /// Lets a request to a model in, as far as its key's quotas go; `None` where nothing is counted.
    ///
    /// # Errors
    /// The answer where there is no room: 429, with the numbers and when to try again.
    pub(super) fn enter(&self, parts: &Parts, found: Option<&Found>) -> Result<Option<Entered>, Box<Response<Body>>> {
        let asks_model = found.is_none_or(|found| matches!(found.route.to, To::Api(_))) && parts.method == Method::POST;
        let Some(key) = self.key.as_ref().filter(|_| asks_model) else { return Ok(None) };
        let meter = self.app.meter(&parts.headers);
        meter.enter(&key.config, Instant::now()).map(Some).map_err(|full| {
            let hint = "wait, or have the quota of the key raised in config.toml";
            let error = Error::client(429, "quota_exceeded", full.told(&key.config), hint);
            let mut response = reply_in(super::routes::dialect(parts.uri.path()), &error);
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(full.again()));
            // Unlike a ceiling, this passes by waiting.
            headers.insert("x-should-retry", HeaderValue::from_static("true"));
            Box::new(response)
        })
    }
}

impl Guest {
    /// The body as it may go on. For how long a model stays loaded concerns everybody, so only an admin says it.
    ///
    /// # Errors
    /// 403 where it only loads or unloads a model, and the key is not an admin's.
    pub(super) fn permitted(&self, found: Option<&Found>, body: Bytes) -> Result<Bytes, Error> {
        let asks = found.is_some_and(|found| matches!(found.route.to, To::Api(_)));
        let Some(key) = self.key.as_ref().filter(|key| asks && !key.config.admin) else { return Ok(body) };
        proxy::without_keep_alive(body).ok_or_else(|| {
            let message = format!("the key `{}` may not unload models: that concerns everybody", key.config.name);
            Error::client(403, "admin_only", message, "ask with a key that has `admin = true`")
        })
    }
}

/// The token with which a browser's session begins.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Login {
    key: String,
}

/// What takes no fields.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Nothing {}

/// Answers what is asked of the door where there are no keys.
///
/// # Errors
/// 400 for a body that cannot be read; 404 for a session to end and for the audit log, since there is neither.
pub(super) fn without_keys(gate: Gate, body: &Bytes) -> Result<Response<Body>, Error> {
    match gate {
        Gate::WhoAmI => {
            let nobody = json!({"key": null, "scope": null, "admin": false, "scopes": []});
            return Ok(json_reply(StatusCode::OK, &nobody));
        }
        // The page keeps the key itself where no session begins.
        Gate::Login => {
            let Login { .. } = asked(body)?;
            return Ok(json_reply(StatusCode::OK, &json!({"key": null, "scope": null, "admin": false})));
        }
        Gate::Logout => asked::<Nothing>(body).map(|_| ())?,
        Gate::Audit => {}
    }
    let message = "this windowsill has no [[key]]: nobody logs in, and nothing is written down of who reads";
    Err(Error::client(404, "no_keys", message, "`windowsill key new NAME` makes one"))
}

/// Whether nobody but the reply itself tells how many tokens a request took.
pub(super) fn is_unread(app: &App, parts: &Parts, found: Option<&Found>) -> bool {
    let off = parts.headers.get("x-windowsill").is_some_and(|v| v.as_bytes().trim_ascii().eq_ignore_ascii_case(b"off"));
    off || app.config.shadow || found.is_none_or(|found| matches!(found.route.to, To::Api(Api::OllamaEmbeds(_))))
}

impl Guests {
    /// Those of a config; `None` where it names no keys.
    pub(super) fn of(root: &Arc<App>, stopping: &CancellationToken) -> Option<Arc<Guests>> {
        if root.config.keys.is_empty() {
            return None;
        }
        let ring = Ring::renewed(&Ring::default(), root.config.keys.clone(), stopping);
        let own = root.config.api_key.as_ref();
        if own.is_some_and(|own| ring.of_token(own.expose()).is_none()) {
            warn!("`api_key` is the token of no [[key]]: it lets nobody in");
        }
        let guests = Arc::new(Guests {
            root: Arc::clone(root),
            file: root.config.file.clone(),
            ring: RwLock::new(Arc::new(ring)),
            sessions: Sessions::default(),
            scopes: Mutex::default(),
            audit: Arc::new(Audit::of(&root.config.data_dir)),
            stopping: stopping.clone(),
        });
        guests.keep_reading();
        Some(guests)
    }

    /// Lets in who may come in. The token goes no further: the key's name stands in its place.
    ///
    /// # Errors
    /// 401 for whoever has no known key, 403 for what this key may not do; and when the record cannot be opened.
    pub(super) async fn admit(&self, parts: &mut Parts, found: Option<&Found>, open: bool) -> Result<Guest, Error> {
        let key = self.key_of(parts);
        self.hide_tokens(&mut parts.headers);
        let Some(key) = key else {
            proxy::put_key_name(&mut parts.headers, "");
            return match open {
                true => Ok(Guest::anybody(&self.root, &self.stopping)),
                false => Err(Error::client(
                    401,
                    "invalid_api_key",
                    "the API key is missing or wrong",
                    "send a token of a [[key]] as `Authorization: Bearer TOKEN`; `windowsill key new NAME` makes one",
                )),
            };
        };
        proxy::put_key_name(&mut parts.headers, &key.config.name);
        if !key.config.admin && !is_for_all(found, parts) {
            let message = format!(
                "the key `{}` may not ask for {} {}: that concerns everybody",
                key.config.name,
                parts.method,
                parts.uri.path()
            );
            return Err(Error::client(403, "admin_only", message, "ask with a key that has `admin = true`"));
        }
        let scope = self.scope_of(&key, &parts.headers)?;
        let app = self.app_of(&scope).await?;
        Ok(Guest { app, over: key.over.clone(), key: Some(key), scope })
    }

    /// The key of a request: by a token in a header, else by the session of a browser that shows our own page.
    fn key_of(&self, parts: &Parts) -> Option<Arc<Key>> {
        let ring = Arc::clone(&self.ring.read());
        let by_token = tokens(&parts.headers).into_iter().find_map(|token| ring.of_token(token));
        by_token.or_else(|| {
            let session = session(&parts.headers).filter(|_| is_of_own_page(parts))?;
            ring.of_hash(self.sessions.key_of(session, Instant::now())?)
        })
    }

    /// Takes out every header that shows a known token, whatever it is called: no server is to see it.
    fn hide_tokens(&self, headers: &mut HeaderMap) {
        let ring = Arc::clone(&self.ring.read());
        let shows = |value: &HeaderValue| {
            let text = value.to_str().unwrap_or("").trim();
            let last = text.rsplit(' ').next().unwrap_or("");
            [text, last].into_iter().any(|token| !token.is_empty() && ring.of_token(token).is_some())
        };
        let named: Vec<_> = headers.iter().filter(|(_, value)| shows(value)).map(|(name, _)| name.clone()).collect();
        for name in named {
            headers.remove(name);
        }
    }

    /// Which scope's record a request is about.
    fn scope_of(&self, key: &Key, headers: &HeaderMap) -> Result<String, Error> {
        let own = &key.config.scope;
        let Some(asked) = proxy::scope_asked(headers).filter(|asked| asked != own) else { return Ok(own.clone()) };
        if !key.config.admin {
            let message = format!("the key `{}` may look into the scope `{own}` alone", key.config.name);
            return Err(Error::client(403, "other_scope", message, "ask with a key that has `admin = true`"));
        }
        let known = self.all_scopes();
        if known.contains(&asked) {
            return Ok(asked);
        }
        let hint = format!("there are {}", known.join(", "));
        Err(Error::client(404, "unknown_scope", "there is no such scope".to_owned(), &hint))
    }

    /// Every scope: those that keys name, and those of earlier keys whose records are still there.
    fn all_scopes(&self) -> Vec<String> {
        let mut all = self.ring.read().scopes();
        let folders = std::fs::read_dir(self.root.config.data_dir.join(SCOPES)).into_iter().flatten().flatten();
        all.extend(folders.filter_map(|folder| folder.file_name().into_string().ok()).filter(|name| is_name(name)));
        all.push(DEFAULT_SCOPE.to_owned());
        all.sort();
        all.dedup();
        all
    }

    /// The proxy on the record of a scope.
    async fn app_of(&self, scope: &str) -> Result<Arc<App>, Error> {
        if scope == DEFAULT_SCOPE {
            return Ok(Arc::clone(&self.root));
        }
        let mut scopes = self.scopes.lock().await;
        if let Some(app) = scopes.get(scope) {
            return Ok(Arc::clone(app));
        }
        // Names come out of the config and out of names of folders: they lead nowhere else.
        let (root, folder) = (Arc::clone(&self.root), self.root.config.data_dir.join(SCOPES).join(scope));
        let opened = tokio::task::spawn_blocking(move || root.beside(folder)).await;
        let app = Arc::new(opened.map_err(|e| Error::Internal { doing: "open a record", source: e.into() })??);
        scopes.insert(scope.to_owned(), Arc::clone(&app));
        Ok(app)
    }

    /// Reads the keys again when the config file changes, and at SIGHUP.
    fn keep_reading(self: &Arc<Guests>) {
        let Some(file) = self.file.clone() else { return };
        let guests = Arc::downgrade(self);
        self.root.tasks.spawn(async move {
            let mut known = written(&file).await;
            let mut looks = tokio::time::interval(LOOK);
            looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut hangups = Hangups::listen();
            loop {
                let told = tokio::select! {
                    _ = looks.tick() => false,
                    () = hangups.next() => true,
                };
                let Some(guests) = guests.upgrade() else { return };
                let now = written(&file).await;
                if told || now != known {
                    guests.read_again(&file);
                    known = now;
                }
            }
        });
    }

    fn read_again(&self, file: &std::path::Path) {
        match keys_in(file) {
            Ok(keys) => {
                let count = keys.len();
                let mut ring = self.ring.write();
                *ring = Arc::new(Ring::renewed(&ring, keys, &self.stopping));
                self.sessions.keep(|key| ring.of_hash(key).is_some());
                info!(keys = count, "the keys were read again");
            }
            Err(problems) => {
                let why = crate::plain::line(&report(&problems, "the keys stay what they were")).into_owned();
                warn!(error = %why, "the keys could not be read again");
            }
        }
    }

    /// Stops what runs for other scopes, and writes what is queued.
    pub(super) async fn close(&self) {
        for app in self.scopes.lock().await.values() {
            app.close().await;
        }
    }

    /// Answers what is asked of the door itself.
    ///
    /// # Errors
    /// 401 for a wrong token; when the audit log cannot be read.
    pub(super) async fn gate(
        &self,
        gate: Gate,
        guest: &Guest,
        parts: &Parts,
        found: &Found,
        body: &Bytes,
    ) -> Result<Response<Body>, Error> {
        match gate {
            Gate::Login => self.login(parts, body),
            Gate::Logout => {
                let Nothing {} = asked(body)?;
                if let Some(session) = session(&parts.headers) {
                    self.sessions.end(session);
                }
                let mut response = json_reply(StatusCode::OK, &json!({"key": null}));
                set_cookie(&mut response, "", 0, parts);
                Ok(response)
            }
            Gate::WhoAmI => Ok(json_reply(StatusCode::OK, &self.who(guest))),
            Gate::Audit => {
                let query = Query::read(parts.uri.query(), found.route.query)?;
                let most = query.number::<usize>("last")?.unwrap_or(100).min(LINES);
                let (of, data_dir) = (query.get("key").map(str::to_owned), self.root.config.data_dir.clone());
                let read = tokio::task::spawn_blocking(move || audit::last(&data_dir, most, of.as_deref())).await;
                let failed = |source| Error::Internal { doing: "read the audit log", source };
                let entries = read.map_err(|e| failed(e.into()))?.map_err(|e| failed(e.into()))?;
                Ok(json_reply(StatusCode::OK, &json!({"entries": entries})))
            }
        }
    }

    fn who(&self, guest: &Guest) -> Value {
        let key = guest.key.as_ref().map(|key| &key.config);
        let admin = key.is_some_and(|key| key.admin);
        let scopes = if admin { self.all_scopes() } else { Vec::new() };
        json!({"key": key.map(|key| &key.name), "scope": key.map(|_| &guest.scope), "admin": admin, "scopes": scopes})
    }

    /// Begins a session for a browser: the token is sent once, and what the page sends from then on no script can read.
    fn login(&self, parts: &Parts, body: &Bytes) -> Result<Response<Body>, Error> {
        let Login { key } = asked(body)?;
        let ring = Arc::clone(&self.ring.read());
        let Some(key) = ring.of_token(key.trim()) else {
            return Err(Error::client(401, "invalid_api_key", "that is no known key", "send {\"key\": \"TOKEN\"}"));
        };
        let begun = self.sessions.begin(key.config.hash, Instant::now());
        let session = begun.map_err(|e| Error::Internal { doing: "begin a session", source: e.into() })?;
        let told = json!({"key": key.config.name, "scope": key.config.scope, "admin": key.config.admin});
        let mut response = json_reply(StatusCode::OK, &told);
        set_cookie(&mut response, &session, COOKIE_AGE, parts);
        Ok(response)
    }

    /// What is to be written down of a request that is answered now, also where its client goes away meanwhile.
    pub(super) fn noting<'a>(&'a self, asked: Asked, guest: &'a Guest) -> Noting<'a> {
        Noting { guests: self, guest, asked: Some(asked) }
    }

    /// Writes down who read or changed what, where that is written down at all.
    pub(super) async fn note(&self, asked: Asked, status: StatusCode, guest: Option<&Guest>) {
        let Some(entry) = self.entry(asked, status, guest) else { return };
        let audit = Arc::clone(&self.audit);
        if let Ok(Err(e)) = tokio::task::spawn_blocking(move || audit.note(&entry)).await {
            warn!(error = %e, "the audit log cannot be written");
        }
    }

    /// The line of a request, where it gets one.
    fn entry(&self, asked: Asked, status: StatusCode, guest: Option<&Guest>) -> Option<Entry> {
        let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if !refused && !asked.told {
            return None;
        }
        let key = guest.and_then(|guest| guest.key.as_ref());
        let entry = Entry {
            at_ms: now_ms(),
            key: key.map(|key| key.config.name.clone()).or(asked.name),
            scope: key.and(guest).map(|guest| guest.scope.clone()),
            method: asked.method,
            path: asked.path,
            of: asked.of,
            status: status.as_u16(),
        };
        (!self.audit.is_known(&entry)).then_some(entry)
    }
}

/// The config file as it stands.
async fn written(file: &std::path::Path) -> Option<Vec<u8>> {
    let file = file.to_owned();
    tokio::task::spawn_blocking(move || crate::keys::file(&file)).await.ok()?.ok()
}

/// What is written down of a request once it is answered, or is let go.
pub(super) struct Noting<'a> {
    guests: &'a Guests,
    guest: &'a Guest,
    asked: Option<Asked>,
}

impl Noting<'_> {
    /// Writes it down, with the status of the answer.
    pub(super) async fn done(mut self, status: StatusCode) {
        if let Some(asked) = self.asked.take() {
            self.guests.note(asked, status, Some(self.guest)).await;
        }
    }
}

impl Drop for Noting<'_> {
    /// Its client is gone before it was answered. What was read or changed by then is not known, so that it is written down.
    fn drop(&mut self) {
        let Some(asked) = self.asked.take() else { return };
        let gone = StatusCode::from_u16(CLIENT_GONE).unwrap_or(StatusCode::REQUEST_TIMEOUT);
        let Some(entry) = self.guests.entry(asked, gone, Some(self.guest)) else { return };
        if let Err(e) = self.guests.audit.note(&entry) {
            warn!(error = %e, "the audit log cannot be written");
        }
    }
}

/// Whether a request concerns only who makes it.
fn is_for_all(found: Option<&Found>, parts: &Parts) -> bool {
    match found.map(|found| found.route.to) {
        None => inspect::is_ours(parts.uri.path()) || passes(parts),
        Some(
            To::Own(Own::Metrics)
            | To::Steering(Steering::Load | Steering::Unload | Steering::Drain)
            | To::Gate(Gate::Audit),
        ) => false,
        Some(_) => true,
    }
}

/// The tokens that a request shows.
fn tokens(headers: &HeaderMap) -> Vec<&str> {
    let text = |name: &'static str| headers.get_all(name).into_iter().filter_map(|v| v.to_str().ok());
    // The scheme is named in any case (RFC 9110, 11.1).
    let bearer = text("authorization").filter_map(|v| {
        let (scheme, token) = v.trim_start().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    bearer.chain(text("x-api-key")).chain(text("api-key")).map(str::trim).filter(|token| !token.is_empty()).collect()
}

/// The session in a browser's cookie.
fn session(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|v| v.to_str().ok());
    let pairs = cookies.flat_map(|all| all.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// Whether a browser sends a request for our own page. It sends the cookie for every page of the same host, whatever its port.
fn is_of_own_page(parts: &Parts) -> bool {
    let text = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok());
    let site = text("sec-fetch-site");
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return false;
    }
    match (text("origin"), text("host")) {
        (Some(origin), host) => {
            let of_page = origin.split_once("://").map(|(_, authority)| authority);
            host.is_some_and(|host| of_page.is_some_and(|page| page.eq_ignore_ascii_case(host)))
        }
        (None, _) => site == Some("same-origin") || matches!(parts.method, Method::GET | Method::HEAD),
    }
}

fn set_cookie(response: &mut Response<Body>, session: &str, age: u64, parts: &Parts) {
    let origin = parts.headers.get(header::ORIGIN).map_or(&b""[..], HeaderValue::as_bytes);
    let secure = if origin.starts_with(b"https://") { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// SIGHUP, where the system has it.
struct Hangups {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    fn listen() -> Hangups {
        #[cfg(unix)]
        {
            Hangups { signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).ok() }
        }
        #[cfg(not(unix))]
        Hangups {}
    }

    /// Done at the next one.
    async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}
