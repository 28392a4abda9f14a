//! Settings of a request that hold whatever the client sends: some are set, some are stripped. Pure values; `wire` writes them
//! into a request.

use serde_json::{Map, Value};

/// Fields of a request that are never settings: they are what is asked, or how the reply comes.
pub const NO_SETTINGS: [&str; 10] =
    ["model", "messages", "stream", "stream_options", "tools", "tool_choice", "functions", "n", "input", "prompt"];

/// Names of one setting: where one is set or stripped, the other ones of the client's would speak against it.
const SAME: [&[&str]; 2] =
    [&["max_tokens", "max_completion_tokens", "num_predict", "n_predict"], &["repeat_penalty", "repetition_penalty"]];

/// What is set and stripped.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// Names and values. An object is set field by field within the client's own.
    pub set: Map<String, Value>,
    /// Names of what is left out; `chat_template_kwargs.enable_thinking` is one field of an object.
    pub strip: Vec<String>,
}

impl Settings {
    /// Whether nothing is set or stripped.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.strip.is_empty()
    }

    /// Takes over what another place says, which counts where both say something.
    pub fn add(&mut self, other: &Settings) {
        self.strip.retain(|name| !other.set.contains_key(name));
        for name in &other.strip {
            remove(&mut self.set, name);
            if !self.strip.contains(name) {
                self.strip.push(name.clone());
            }
        }
        merge(&mut self.set, &other.set);
    }

    /// What of a client's does not hold: what is stripped, and the other names of what is set.
    pub(crate) fn gone(&self) -> Vec<&str> {
        // Of an object, what is not set stays.
        let set = self.set.iter().filter(|(_, value)| !value.is_object()).map(|(name, _)| name.as_str());
        let mut out: Vec<&str> = self.strip.iter().map(String::as_str).chain(set).collect();
        let same = SAME.into_iter().filter(|names| names.iter().any(|name| out.contains(name))).flatten();
        let same: Vec<&str> = same.copied().collect();
        out.extend(same);
        out
    }
}

/// The field of a request that a name is about.
pub(crate) fn head(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Puts values over others, objects field by field.
pub(crate) fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            _ => drop(into.insert(name.clone(), value.clone())),
        }
    }
}

/// Takes a field away, and the object that has nothing left without it.
pub(crate) fn remove(from: &mut Map<String, Value>, name: &str) {
    let Some((outer, inner)) = name.split_once('.') else {
        from.shift_remove(name);
        return;
    };
    if let Some(Value::Object(object)) = from.get_mut(outer) {
        remove(object, inner);
        if object.is_empty() {
            from.shift_remove(outer);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(set: Value, strip: &[&str]) -> Settings {
        let Value::Object(set) = set else { panic!() };
        Settings { set, strip: strip.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn a_nearer_place_counts() {
        let mut all = settings(json!({"temperature": 1, "options": {"a": 1, "b": 2}}), &["top_k", "seed"]);
        all.add(&settings(json!({"top_k": 5, "options": {"b": 3}}), &["temperature"]));
        assert_eq!(all, settings(json!({"options": {"a": 1, "b": 3}, "top_k": 5}), &["seed", "temperature"]));
    }
}
