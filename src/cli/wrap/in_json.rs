//! JSON with comments, changed in place.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstNode, CstObject, CstRootNode};
use serde_json::{Map, Value};

use super::setting::{NAMES, is_tables, name_of};

/// What clients read: comments and commas at the end are fine, other liberties are not.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_loose_object_property_names: false,
    allow_trailing_commas: true,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
};

pub(super) fn patched(text: &str, settings: &Map<String, Value>) -> Result<String, String> {
    let text = if text.trim().is_empty() { "{\n}\n" } else { text };
    let root = CstRootNode::parse(text, &OPTIONS).map_err(|e| format!("it is no JSON: {e}"))?;
    let object = root.object_value().ok_or("it holds no JSON object")?;
    put(&object, settings, "")?;
    let new = root.to_string();
    // Of a name that is there twice, clients read the last.
    let read: Value = jsonc_parser::parse_to_serde_value(&new, &OPTIONS).map_err(|e| format!("it is no JSON: {e}"))?;
    if holds(&read, settings) { Ok(new) } else { Err("a name is there twice".to_owned()) }
}

fn put(into: &CstObject, settings: &Map<String, Value>, path: &str) -> Result<(), String> {
    for (key, value) in settings {
        let (name, only_missing) = name_of(key);
        let place = format!("{path}{name}");
        let Some(there) = into.get(name) else {
            into.append(name, input(value));
            continue;
        };
        match value {
            _ if only_missing => {}
            Value::Object(settings) => {
                let inner = there.object_value().ok_or_else(|| format!("`{place}` is no object"))?;
                put(&inner, settings, &format!("{place}."))?;
            }
            Value::Array(list) if is_tables(value) => {
                let array = there.array_value().ok_or_else(|| format!("`{place}` is no list"))?;
                for entry in list {
                    array.elements().into_iter().filter(|old| is_same(old, entry)).for_each(CstNode::remove);
                    array.append(input(entry));
                }
            }
            _ => there.set_value(input(value)),
        }
    }
    Ok(())
}

fn is_same(old: &CstNode, new: &Value) -> bool {
    let Some(old) = old.as_object() else { return false };
    let text = |name: &str| old.get(name)?.value()?.as_string_lit()?.decoded_value().ok();
    NAMES.iter().any(|name| new[*name].as_str().is_some_and(|new| text(name).as_deref() == Some(new)))
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(b) => CstInputValue::Bool(*b),
        Value::Number(n) => CstInputValue::Number(n.to_string()),
        Value::String(s) => CstInputValue::String(s.clone()),
        Value::Array(list) => CstInputValue::Array(list.iter().map(input).collect()),
        Value::Object(map) => {
            CstInputValue::Object(map.iter().map(|(key, value)| (name_of(key).0.to_owned(), input(value))).collect())
        }
    }
}

/// Whether what was read says what was wanted.
fn holds(read: &Value, settings: &Map<String, Value>) -> bool {
    settings.iter().all(|(key, value)| {
        let (name, only_missing) = name_of(key);
        match (&read[name], value) {
            (found, _) if only_missing => !found.is_null(),
            (found, Value::Object(settings)) => holds(found, settings),
            (Value::Array(found), Value::Array(list)) if is_tables(value) => list.iter().all(|e| found.contains(e)),
            (found, value) => found == value,
        }
    })
}
