//! What is asked of a proxy that runs already, by another process of windowsill.

use bytes::Bytes;
use http::HeaderMap;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::proxy::Error;
use crate::upstream::{KindHint, Upstream, client};

/// Has the running proxy ask a model what an original says.
///
/// # Errors
/// When none answers at `address`, or it says why not.
pub async fn ask_original_running(
    address: &str,
    key: Option<&str>,
    id: &str,
    conversation: Option<&str>,
    question: &str,
) -> Result<Value, Error> {
    let path = format!("/windowsill/records/{}/ask", encode(id));
    let body = json!({"question": question, "conversation": conversation});
    ask(address, key, http::Method::POST, &path, Some(&body)).await
}

/// Has the running proxy steer a conversation: `…/{id}/WHAT`.
///
/// # Errors
/// When no proxy answers at `address`, or it says why not.
pub async fn steer_running(
    address: &str,
    key: Option<&str>,
    method: http::Method,
    (id, what): (&str, &str),
    body: Option<&Value>,
) -> Result<Value, Error> {
    let path = format!("/windowsill/conversations/{}/{what}", encode(id));
    ask(address, key, method, path.trim_end_matches('/'), body).await
}

/// Has the running proxy list the rules, or change one: `…/rules`, `…/rules/{n}`.
///
/// # Errors
/// When no proxy answers at `address`, or it says why not.
pub async fn rules_running(
    address: &str,
    key: Option<&str>,
    method: http::Method,
    number: Option<i64>,
    body: Option<&Value>,
) -> Result<Value, Error> {
    let path = number.map_or_else(|| "/windowsill/rules".to_owned(), |n| format!("/windowsill/rules/{n}"));
    ask(address, key, method, &path, body).await
}

/// Has the running proxy list its servers, or drain one: `…/upstreams`, `…/upstreams/{name}/drain`.
///
/// # Errors
/// When no proxy answers at `address`, or it says why not.
pub async fn drain_running(
    address: &str,
    key: Option<&str>,
    method: http::Method,
    name: Option<&str>,
    body: Option<&Value>,
) -> Result<Value, Error> {
    let all = "/windowsill/upstreams".to_owned();
    let path = name.map_or(all, |name| format!("/windowsill/upstreams/{}/drain", encode(name)));
    ask(address, key, method, &path, body).await
}

/// The models that a running proxy lists, by id.
///
/// # Errors
/// When none answers, or it refuses.
pub async fn running_models(address: &str, key: Option<&str>) -> Result<Vec<String>, Error> {
    let list = ask(address, key, http::Method::GET, "/v1/models", None).await?;
    let ids = list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str());
    Ok(ids.map(str::to_owned).collect())
}

/// Asks the running proxy something of its own. What is no JSON is `Null`.
///
/// # Errors
/// When no proxy answers at `address`, or it says why not.
pub async fn ask(
    address: &str,
    key: Option<&str>,
    method: http::Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Error> {
    let (proxy, absent) = proxy_at(address, key)?;
    let body = Bytes::from(body.map(Value::to_string).unwrap_or_default());
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    let reply = proxy.pass(method, path, &headers, body.into()).await.map_err(absent)?;
    if !reply.status.is_success() {
        return Err(why_not(reply).await);
    }
    let (bytes, _) = crate::proxy::turn::read_up_to(reply.body, 16 << 20).await?;
    Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// The running proxy, and what is said when it does not answer.
pub(in crate::proxy) fn proxy_at(
    address: &str,
    key: Option<&str>,
) -> Result<(Upstream, impl FnOnce(crate::upstream::Error) -> Error), Error> {
    let url = format!("http://{address}");
    let proxy =
        Upstream::new(client()?, "windowsill".into(), &url, KindHint::OpenAi)?.with_api_key(key.map(str::to_owned))?;
    let absent = move |e| {
        // That nobody is there is said; anything else is more.
        let message = match e {
            crate::upstream::Error::Connect { .. } => format!("no windowsill answers at {url}"),
            e => format!("no windowsill answers at {url}: {e}"),
        };
        Error::client(503, "not_running", message, "start it with `windowsill serve`, or name its config with --config")
    };
    Ok((proxy, absent))
}

/// What the running proxy says of why it refused.
pub(in crate::proxy) async fn why_not(reply: crate::upstream::Reply) -> Error {
    let status = reply.status.as_u16();
    let bytes = crate::proxy::turn::read_up_to(reply.body, 1 << 20).await.map(|(bytes, _)| bytes).unwrap_or_default();
    let value: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let message = value.pointer("/error/message").and_then(Value::as_str).unwrap_or("it gave no reason");
    // The next step stands behind it, as `Error::openai` writes it.
    let (message, hint) = message.split_once(". Hint: ").unwrap_or((message, ""));
    Error::client(status, "refused", message, hint.trim_end_matches('.'))
}

/// What stands as it is in a path segment or a value of a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Percent-encodes a path segment or a value of a query.
pub(in crate::proxy) fn encode(segment: &str) -> String {
    utf8_percent_encode(segment, PLAIN).to_string()
}
