//! What concerns the door itself where there are keys: what is asked of it, and what passes through for every key.

use http::Method;
use http::request::Parts;

/// Paths that pass through to the server for every key: what they tell is made of the request alone. Others may show what others
/// asked (llama-server's `/slots`), or change the server for all (Ollama's `/api/pull`): they are an admin's.
const PASSED: &[&str] = &[
    "/v1/completions",
    "/completions",
    "/completion",
    "/v1/embeddings",
    "/embeddings",
    "/embedding",
    "/v1/rerank",
    "/v1/reranking",
    "/rerank",
    "/reranking",
    "/infill",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/moderations",
];

/// What is asked of the door itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gate {
    Login,
    Logout,
    WhoAmI,
    Audit,
}

/// Whether a request passes through to the server for every key.
pub(super) fn passes(parts: &Parts) -> bool {
    parts.method == Method::POST && PASSED.contains(&parts.uri.path())
}
