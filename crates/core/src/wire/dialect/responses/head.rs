//! What of a request holds on beside its messages.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::spelled;

/// What of a request holds on beside its messages, for those that go on from its reply. `instructions` do not.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Head {
    /// What stood in `input` before anybody said anything.
    pub(super) system: Vec<String>,
    /// The tools that the history brought.
    pub(super) tools: Vec<Value>,
    /// MCP servers that could not be connected to, by their labels: it is told once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unreached: Vec<String>,
    /// The response itself without its output, for whoever asks for it by its id.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) response: Value,
}

impl Head {
    pub(super) fn read(json: &str) -> Head {
        spelled::value(json).ok().and_then(|value| Head::deserialize(value).ok()).unwrap_or_default()
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}
