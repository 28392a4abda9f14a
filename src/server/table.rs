//! Every path that windowsill answers itself. Dispatch reads this table, and a test holds `docs/openapi.json` against it.

use http::Method;

use super::gate::Gate;
use super::inspect::{self, Own};
use super::query::decode;
use super::steering::Steering;
use crate::proxy::Embeds;

/// One method at one path.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The HTTP method, in capitals.
    pub method: &'static str,
    /// The path. `{…}` stands for one segment, `{…*}` for all that are left.
    pub path: &'static str,
    /// Names that its query may hold. A path without names ignores its query.
    pub query: &'static [&'static str],
    /// True if it needs no key.
    pub open: bool,
    pub(super) to: To,
}

/// Who answers.
#[derive(Debug, Clone, Copy)]
pub(super) enum To {
    Api(Api),
    Own(Own),
    Steering(Steering),
    Gate(Gate),
    Page,
}

/// What clients speak to models with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Api {
    Chat,
    Messages,
    CountMessages,
    Responses,
    OllamaChat,
    OllamaGenerate,
    OllamaAsks,
    OllamaEmbeds(Embeds),
    CountChat,
    CountResponses,
    CompactResponses,
    Response,
    InputItems,
    Cancel,
    NewConversation,
    Conversation,
    ConversationItems,
    ConversationItem,
    Alive,
    Models,
}

/// Every route. Where two fit a path, the first counts.
pub const ROUTES: &[Route] = &[
    api("POST", "/v1/chat/completions", Api::Chat),
    api("POST", "/chat/completions", Api::Chat),
    api("POST", "/v1/chat/completions/input_tokens", Api::CountChat),
    api("POST", "/v1/messages", Api::Messages),
    api("POST", "/v1/messages/count_tokens", Api::CountMessages),
    api("POST", "/v1/responses", Api::Responses),
    api("POST", "/responses", Api::Responses),
    api("POST", "/v1/responses/input_tokens", Api::CountResponses),
    api("POST", "/v1/responses/compact", Api::CompactResponses),
    listing("/v1/responses/{id}", &["stream", "starting_after"], Api::Response),
    api("DELETE", "/v1/responses/{id}", Api::Response),
    listing("/v1/responses/{id}/input_items", PAGE, Api::InputItems),
    api("POST", "/v1/responses/{id}/cancel", Api::Cancel),
    api("POST", "/v1/conversations", Api::NewConversation),
    api("GET", "/v1/conversations/{id}", Api::Conversation),
    api("POST", "/v1/conversations/{id}", Api::Conversation),
    api("DELETE", "/v1/conversations/{id}", Api::Conversation),
    listing("/v1/conversations/{id}/items", PAGE, Api::ConversationItems),
    api("POST", "/v1/conversations/{id}/items", Api::ConversationItems),
    api("GET", "/v1/conversations/{id}/items/{item}", Api::ConversationItem),
    api("DELETE", "/v1/conversations/{id}/items/{item}", Api::ConversationItem),
    api("POST", "/api/chat", Api::OllamaChat),
    api("POST", "/api/generate", Api::OllamaGenerate),
    api("GET", "/api/tags", Api::OllamaAsks),
    api("GET", "/api/ps", Api::OllamaAsks),
    api("GET", "/api/version", Api::OllamaAsks),
    api("POST", "/api/show", Api::OllamaAsks),
    api("POST", "/api/embed", Api::OllamaEmbeds(Embeds::Several)),
    api("POST", "/api/embeddings", Api::OllamaEmbeds(Embeds::One)),
    // Claude Code and Ollama's own command line ask so whether anybody is there.
    api("HEAD", "/", Api::Alive),
    api("GET", "/v1/models", Api::Models),
    api("GET", "/v1/models/{model*}", Api::Models),
    page("/"),
    page("/windowsill/page/{file}"),
    open("GET", "/windowsill/openapi.json", Own::Description),
    open("GET", "/healthz", Own::Health),
    open("HEAD", "/healthz", Own::Health),
    open("GET", "/readyz", Own::Ready),
    open("HEAD", "/readyz", Own::Ready),
    Route { method: "POST", path: "/windowsill/login", query: &[], open: true, to: To::Gate(Gate::Login) },
    Route { method: "DELETE", path: "/windowsill/login", query: &[], open: true, to: To::Gate(Gate::Logout) },
    Route { method: "GET", path: "/windowsill/whoami", query: &[], open: false, to: To::Gate(Gate::WhoAmI) },
    Route { method: "GET", path: "/windowsill/audit", query: &["last", "key"], open: false, to: To::Gate(Gate::Audit) },
    own("GET", "/metrics", &[], Own::Metrics),
    own("POST", "/mcp", &["conversation", "all"], Own::Mcp),
    own("GET", "/mcp", &[], Own::NoMcp),
    own("DELETE", "/mcp", &[], Own::NoMcp),
    own("GET", "/windowsill/models", &[], Own::Windows),
    own("GET", "/windowsill/upstreams", &[], Own::Upstreams),
    steering("POST", "/windowsill/upstreams/{name}/drain", Steering::Drain),
    own("GET", "/windowsill/report", &["since"], Own::Report),
    own("GET", "/windowsill/events", &["since", "last", "conversation", "kind", "follow"], Own::Events),
    own("GET", "/windowsill/records/{id}", RECORD, Own::Record),
    own("HEAD", "/windowsill/records/{id}", RECORD, Own::Record),
    own("POST", "/windowsill/records/{id}/ask", &[], Own::Ask),
    own("GET", "/windowsill/search", &["query", "limit"], Own::SearchAll),
    own("GET", "/windowsill/rules", &[], Own::Rules),
    own("POST", "/windowsill/rules", &[], Own::AddRule),
    own("PUT", "/windowsill/rules/{number}", &[], Own::EditRule),
    own("DELETE", "/windowsill/rules/{number}", &[], Own::RemoveRule),
    own("GET", "/windowsill/conversations", &[], Own::Conversations),
    own("GET", "/windowsill/conversations/{id}", &[], Own::Conversation),
    own("GET", "/windowsill/conversations/{id}/view", &["messages", "client"], Own::View),
    own("GET", "/windowsill/conversations/{id}/request", &["messages", "replaced"], Own::Request),
    own("GET", "/windowsill/conversations/{id}/insight", &[], Own::Insight),
    own("GET", "/windowsill/conversations/{id}/messages", MESSAGES, Own::Messages),
    own("GET", "/windowsill/conversations/{id}/messages/{index}", &[], Own::Message),
    own("GET", "/windowsill/conversations/{id}/pins", &[], Own::Pins),
    own("GET", "/windowsill/conversations/{id}/search", &["query", "limit"], Own::Search),
    own("GET", "/windowsill/conversations/{id}/segments", &[], Own::Segments),
    own("GET", "/windowsill/conversations/{id}/export", &["format"], Own::Export),
    steering("POST", "/windowsill/models/load", Steering::Load),
    steering("POST", "/windowsill/models/unload", Steering::Unload),
    steering("PUT", "/windowsill/conversations/{id}/title", Steering::Rename),
    steering("PUT", "/windowsill/conversations/{id}/star", Steering::Star),
    steering("DELETE", "/windowsill/conversations/{id}", Steering::Delete),
    steering("POST", "/windowsill/conversations/{id}/compact", Steering::Compact),
    steering("POST", "/windowsill/conversations/{id}/again", Steering::Again),
    steering("POST", "/windowsill/conversations/{id}/restore", Steering::Restore),
    steering("POST", "/windowsill/conversations/{id}/clear", Steering::Clear),
    steering("POST", "/windowsill/conversations/{id}/evict", Steering::Evict),
    steering("POST", "/windowsill/conversations/{id}/brief", Steering::Brief),
    steering("POST", "/windowsill/conversations/{id}/undo", Steering::Undo),
    steering("POST", "/windowsill/conversations/{id}/pins", Steering::Pin),
    steering("DELETE", "/windowsill/conversations/{id}/pins/{number}", Steering::Unpin),
    steering("POST", "/windowsill/conversations/{id}/rewriting", Steering::Rewriting),
    steering("POST", "/windowsill/conversations/{id}/tools", Steering::Tools),
    steering("DELETE", "/windowsill/conversations/{id}/waiting", Steering::ForgetWaiting),
    steering("POST", "/windowsill/conversations/{id}/recalled", Steering::Recalled),
    steering("POST", "/windowsill/conversations/{id}/checkpoint", Steering::Checkpoint),
    steering("POST", "/windowsill/conversations/{id}/resume", Steering::Resume),
    steering("POST", "/windowsill/conversations/{id}/build", Steering::Build),
];

const PAGE: &[&str] = &["after", "limit", "order"];

const MESSAGES: &[&str] = &["from", "limit", "role", "tool", "changed", "text"];

const RECORD: &[&str] = &["conversation", "range", "offset", "limit"];

const fn api(method: &'static str, path: &'static str, to: Api) -> Route {
    Route { method, path, query: &[], open: false, to: To::Api(to) }
}

/// One that reads its query itself: other names are passed over, as its API has it.
const fn listing(path: &'static str, query: &'static [&'static str], to: Api) -> Route {
    Route { method: "GET", path, query, open: false, to: To::Api(to) }
}

const fn page(path: &'static str) -> Route {
    Route { method: "GET", path, query: &[], open: true, to: To::Page }
}

const fn open(method: &'static str, path: &'static str, to: Own) -> Route {
    Route { method, path, query: &[], open: true, to: To::Own(to) }
}

const fn own(method: &'static str, path: &'static str, query: &'static [&'static str], to: Own) -> Route {
    Route { method, path, query, open: false, to: To::Own(to) }
}

const fn steering(method: &'static str, path: &'static str, to: Steering) -> Route {
    Route { method, path, query: &[], open: false, to: To::Steering(to) }
}

/// A route, and what stands in its path for each `{…}`, percent-decoded.
pub(super) struct Found {
    pub(super) route: &'static Route,
    named: Vec<String>,
}

impl Found {
    /// The text that stands for the `{…}` at an index.
    pub(super) fn named(&self, at: usize) -> &str {
        self.named.get(at).map_or("", String::as_str)
    }

    /// The text that stands for the first `{…}`; `None` where the path has none.
    pub(super) fn first(&self) -> Option<&str> {
        self.named.first().map(String::as_str)
    }
}

/// The route of a request; `None` where windowsill has none.
pub(super) fn find(method: &Method, path: &str) -> Option<Found> {
    let mut routes = ROUTES.iter().filter(|route| route.method == method.as_str());
    routes.find_map(|route| Some(Found { route, named: fitting(route.path, path)? }))
}

/// What stands for each `{…}` of a template; `None` if the path is another one.
fn fitting(template: &str, path: &str) -> Option<Vec<String>> {
    // A slash too many is no matter at windowsill's own paths; elsewhere the server decides.
    let path = if inspect::is_ours(path) { path.trim_end_matches('/') } else { path };
    let (mut named, mut rest) = (Vec::new(), path.strip_prefix('/')?);
    let mut parts = template.trim_start_matches('/').split('/').peekable();
    while let Some(part) = parts.next() {
        let takes_all = part.ends_with("*}");
        let (segment, after) = match rest.split_once('/') {
            Some((segment, after)) if !takes_all => (segment, Some(after)),
            _ => (rest, None),
        };
        if part.starts_with('{') {
            // Nothing has no name. An Ollama leads `/v1/models/` to `/v1/models`.
            if segment.is_empty() {
                return None;
            }
            named.push(decode(segment));
        } else if part != decode(segment) {
            return None;
        }
        match (parts.peek(), after) {
            (None, None) => return Some(named),
            (Some(_), Some(after)) => rest = after,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fit_their_templates() {
        let cases: &[(&str, &str, Option<&[&str]>)] = &[
            ("/", "/", Some(&[])),
            ("/healthz", "/healthz", Some(&[])),
            ("/healthz", "/healthz/", None),
            ("/windowsill/report", "/windowsill/report/", Some(&[])),
            ("/healthz", "/healthz/x", None),
            ("/v1/messages", "/v1/messages/", None),
            ("/v1/models/{model*}", "/v1/models/org/a%20b", Some(&["org/a b"])),
            ("/v1/models/{model*}", "/v1/models", None),
            ("/v1/models/{model*}", "/v1/models/", None),
            ("/v1/responses/{id}/input_items", "/v1/responses//input_items", None),
            ("/windowsill/records/{id}", "/windowsill/records/c%3A1/", Some(&["c:1"])),
            ("/windowsill/records/{id}", "/windowsill/records", None),
            ("/windowsill/records/{id}", "/windowsill/records/a/ask", None),
            ("/windowsill/records/{id}", "/windowsill/%72ecords/a", Some(&["a"])),
            ("/windowsill/records/{id}/ask", "/windowsill/records/a/ask", Some(&["a"])),
            ("/", "*", None),
        ];
        for (template, path, expected) in cases {
            let found = fitting(template, path);
            assert_eq!(
                found.as_ref().map(|f| f.iter().map(String::as_str).collect()),
                expected.map(<[&str]>::to_vec),
                "{path}"
            );
        }
    }

    #[test]
    fn each_route_is_found_by_its_own_path() {
        for route in ROUTES {
            let method = Method::from_bytes(route.method.as_bytes()).unwrap();
            let found = find(&method, route.path).unwrap();
            assert_eq!(found.route.path, route.path, "hidden by another one");
        }
    }
}
