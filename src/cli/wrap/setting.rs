//! How the settings of a client's config are spelled in this program.

use serde_json::Value;

/// A setting's name, and whether it is set only where it is missing.
pub(super) fn name_of(key: &str) -> (&str, bool) {
    key.strip_suffix('?').map_or((key, false), |name| (name, true))
}

/// What tells an entry of a list of tables from others.
pub(super) const NAMES: [&str; 2] = ["name", "id"];

/// Whether a setting is a list of tables.
pub(super) fn is_tables(value: &Value) -> bool {
    value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_object))
}
