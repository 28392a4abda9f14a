//! What a server calls its models. Clients know one under several names: an alias, or, before a llama-server with one model, any name
//! at all. What is kept of a model is kept under its one name.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde_json::Value;

/// So many other names are noted one by one: clients choose them.
const MOST: usize = 256;

/// The names of a server's models, as far as its lists told them.
#[derive(Default)]
pub(super) struct Names(Mutex<Told>);

#[derive(Default)]
struct Told {
    /// The one model, where the server has no other.
    only: Option<String>,
    /// The name of a model by its other names.
    others: HashMap<String, String>,
}

impl Names {
    /// Takes in a list of models, `data` of `/v1/models`. `one`: the server answers every name with the first.
    pub(super) fn note(&self, entries: &[Value], one: bool) {
        let only = entries.first().filter(|_| one).and_then(|entry| entry["id"].as_str()).map(str::to_owned);
        let others = entries.iter().flat_map(other_names).collect();
        *self.0.lock() = Told { only, others };
    }

    /// Notes another name of a model.
    pub(super) fn add(&self, other: &str, name: &str) {
        let mut told = self.0.lock();
        if told.others.len() >= MOST {
            told.others.clear();
        }
        told.others.insert(other.to_owned(), name.to_owned());
    }

    /// The name of a model that a client calls so.
    pub(super) fn of(&self, model: &str) -> String {
        let told = self.0.lock();
        let name = told.only.as_ref().or_else(|| told.others.get(model));
        name.map_or_else(|| model.to_owned(), String::clone)
    }

    /// Forgets everything: it is another server.
    pub(super) fn forget(&self) {
        *self.0.lock() = Told::default();
    }
}

/// The other names of a listed model, each with its own: llama-server's `aliases`, and llama-swap's, which lists some of them by
/// themselves.
fn other_names(entry: &Value) -> Vec<(String, String)> {
    let Some(id) = entry["id"].as_str() else { return Vec::new() };
    let swap = &entry["meta"]["llamaswap"];
    let aliases = [&entry["aliases"], &swap["aliases"]].into_iter().filter_map(Value::as_array).flatten();
    let mut all: Vec<(String, String)> =
        aliases.filter_map(Value::as_str).map(|alias| (alias.to_owned(), id.to_owned())).collect();
    all.extend(swap["modelID"].as_str().map(|model| (id.to_owned(), model.to_owned())));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_has_one_name() {
        let names = Names::default();
        assert_eq!(names.of("x"), "x");
        let list = [
            json!({"id": "a", "aliases": ["short", "a-1"]}),
            json!({"id": "b/c", "meta": {"llamaswap": {"aliases": ["bc"]}}}),
            json!({"id": "listed", "meta": {"llamaswap": {"type": "alias", "modelID": "b/c"}}}),
            json!({"aliases": ["of nothing"]}),
        ];
        names.note(&list, false);
        for (name, expect) in [("a", "a"), ("short", "a"), ("a-1", "a"), ("bc", "b/c"), ("listed", "b/c"), ("x", "x")] {
            assert_eq!(names.of(name), expect);
        }
        names.note(&list, true);
        assert_eq!((names.of("short"), names.of("whatever")), ("a".to_owned(), "a".to_owned()));
        names.note(&[], true);
        assert_eq!(names.of("whatever"), "whatever");
    }
}
