//! TOML, changed in place.

use serde_json::{Map, Value};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike};

use super::setting::{NAMES, is_tables, name_of};

pub(super) fn patched(text: &str, settings: &Map<String, Value>) -> Result<String, String> {
    let mut document: DocumentMut =
        text.parse().map_err(|e: toml_edit::TomlError| format!("it is no TOML: {}", e.message()))?;
    put(document.as_table_mut(), settings, "", false)?;
    Ok(document.to_string())
}

/// `inline`: within a table that stands on one line, as everything in it has to.
fn put(into: &mut dyn TableLike, settings: &Map<String, Value>, path: &str, inline: bool) -> Result<(), String> {
    for (key, value) in settings {
        let (name, only_missing) = name_of(key);
        let place = format!("{path}{name}");
        let Some(there) = into.get_mut(name).filter(|item| !item.is_none()) else {
            into.insert(name, if inline { Item::Value(one_line(value)) } else { item(value) });
            continue;
        };
        match value {
            _ if only_missing => {}
            Value::Object(settings) => {
                let inline = there.is_inline_table();
                let inner = there.as_table_like_mut().ok_or_else(|| format!("`{place}` is no table"))?;
                put(inner, settings, &format!("{place}."), inline)?;
            }
            Value::Array(list) if is_tables(value) => {
                entries(there, list).ok_or_else(|| format!("`{place}` is no list"))?
            }
            _ => {
                // What stands behind it on its line stays.
                let decor = there.as_value().map(|old| old.decor().clone());
                let mut new = one_line(value);
                if let Some(decor) = decor {
                    *new.decor_mut() = decor;
                }
                *there = Item::Value(new);
            }
        }
    }
    Ok(())
}

/// Replaces and adds entries of a list of tables.
fn entries(there: &mut Item, list: &[Value]) -> Option<()> {
    if let Some(tables) = there.as_array_of_tables_mut() {
        for entry in list {
            tables.retain(|old| !is_same(old, entry));
            tables.push(table(entry));
        }
        return Some(());
    }
    let array = there.as_array_mut()?;
    for entry in list {
        array.retain(|old| !old.as_inline_table().is_some_and(|old| is_same(old, entry)));
        array.push(one_line(entry));
    }
    Some(())
}

fn is_same(old: &dyn TableLike, new: &Value) -> bool {
    let text = |name: &str| old.get(name).and_then(Item::as_str);
    NAMES.iter().any(|name| new[*name].as_str().is_some_and(|new| text(name) == Some(new)))
}

fn item(value: &Value) -> Item {
    match value {
        Value::Object(map) => {
            let mut table = table(value);
            // `[a.b]` says it all.
            table.set_implicit(!map.is_empty() && map.values().all(Value::is_object));
            Item::Table(table)
        }
        Value::Array(list) if is_tables(value) => {
            let mut tables = ArrayOfTables::new();
            list.iter().for_each(|entry| tables.push(table(entry)));
            Item::ArrayOfTables(tables)
        }
        _ => Item::Value(one_line(value)),
    }
}

fn table(value: &Value) -> Table {
    let mut table = Table::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        table.insert(name_of(key).0, item(value));
    }
    table
}

fn one_line(value: &Value) -> toml_edit::Value {
    match value {
        Value::Bool(b) => (*b).into(),
        Value::Number(n) => n.as_i64().map_or_else(|| n.as_f64().unwrap_or_default().into(), Into::into),
        Value::String(s) => s.as_str().into(),
        Value::Array(list) => toml_edit::Value::Array(list.iter().map(one_line).collect::<Array>()),
        Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| (name_of(key).0, one_line(value)));
            toml_edit::Value::InlineTable(pairs.collect::<InlineTable>())
        }
        // TOML has no null, and no setting is one.
        Value::Null => "".into(),
    }
}
