//! What the audit log says of a request: which path, about what, and whether it is written down at all.

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;
use serde_json::Value;

use super::gate::{Gate, passes};
use super::inspect::{self, Own};
use super::query::decode;
use super::table::{Api, Found, To};

/// Longest name of what a line is about (characters).
const LONGEST: usize = 200;

/// What a line of the audit log says of a request, before it is answered.
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) of: Option<String>,
    /// Whose request it was, where that is known though it was refused.
    pub(super) name: Option<String>,
    /// Whether it reads or changes what is on record, so that it is written down also where it succeeds.
    pub(super) told: bool,
}

impl Asked {
    /// Of a request.
    pub(super) fn of(parts: &Parts, found: Option<&Found>, body: &Bytes) -> Asked {
        let path = parts.uri.path();
        let named = found.and_then(|found| Some((found.route, found.first()?)));
        let in_query = || {
            let pairs = parts.uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
            let found = pairs.into_iter().find(|(name, _)| *name == "conversation");
            found.map(|(_, value)| decode(value))
        };
        let of = named.filter(|(route, _)| ["{id}", "{number}", "{name}"].iter().any(|name| route.path.contains(name)));
        let of = of.map(|(_, name)| name.to_owned()).or_else(in_query);
        let mut asked = Asked {
            method: parts.method.to_string(),
            path: cut(found.map_or(path, |found| found.route.path)),
            of: of.as_deref().map(cut),
            name: None,
            told: is_told(found, parts),
        };
        if found.is_some_and(|found| matches!(found.route.to, To::Own(Own::Mcp))) {
            asked.of_agent(body);
        }
        asked
    }

    /// Of an agent's message: the tool, and what it is about. What only asks for lists is not written down.
    fn of_agent(&mut self, body: &Bytes) {
        let message: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |value: &Value| value.as_str().map(cut);
        let (method, params) = (text(&message["method"]).unwrap_or_default(), &message["params"]);
        self.told = matches!(method.as_str(), "tools/call" | "resources/read");
        self.path = format!("/mcp {method} {}", text(&params["name"]).unwrap_or_default()).trim_end().to_owned();
        let arguments = &params["arguments"];
        let about = [&arguments["conversation"], &arguments["id"], &params["uri"]].into_iter().find_map(text);
        self.of = about.or_else(|| self.of.take());
    }

    /// The same, once it is known whose key it came with.
    pub(super) fn by(mut self, headers: &HeaderMap, found: Option<&Found>) -> Asked {
        let name = headers.get("x-windowsill-key").and_then(|name| name.to_str().ok());
        self.name = name.filter(|name| !name.is_empty()).map(str::to_owned);
        if self.name.is_none() {
            // Nothing that somebody without a key may choose, or each of their requests would be a line of its own.
            self.of = None;
            if found.is_none() {
                (self.method, self.path) = ("-".to_owned(), "(another path)".to_owned());
            }
        }
        self
    }
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// Whether a request reads or changes what is on record, or a server.
fn is_told(found: Option<&Found>, parts: &Parts) -> bool {
    let Some(found) = found else { return !inspect::is_ours(parts.uri.path()) && !passes(parts) };
    match found.route.to {
        To::Page => false,
        To::Steering(_) => true,
        To::Gate(gate) => !matches!(gate, Gate::WhoAmI),
        To::Own(own) => {
            !matches!(own, Own::Description | Own::Health | Own::Ready | Own::NoMcp | Own::Windows | Own::Upstreams)
        }
        To::Api(api) => matches!(
            api,
            Api::Response
                | Api::InputItems
                | Api::Cancel
                | Api::Conversation
                | Api::ConversationItems
                | Api::ConversationItem
        ),
    }
}
