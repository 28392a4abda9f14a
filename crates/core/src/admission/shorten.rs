//! Schemas said shorter. What they accept stays the same: only words for the reader go, the least needed first.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// How short a tool is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it came.
    AsSent,
    /// Descriptions end at a sentence; titles, examples and definitions that nothing refers to are gone.
    Sentences,
    /// Descriptions of a few words, and no defaults.
    Words,
    /// One line on the tool, and the bare types of what it takes.
    Types,
}

impl Level {
    /// Characters of the tool's description, and of each parameter's.
    fn lengths(self) -> (usize, usize) {
        match self {
            Level::AsSent => (usize::MAX, usize::MAX),
            Level::Sentences => (400, 160),
            Level::Words => (160, 60),
            Level::Types => (80, 0),
        }
    }

    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::AsSent => "as sent",
            Level::Sentences => "descriptions cut at a sentence",
            Level::Words => "descriptions of a few words",
            Level::Types => "types only",
        }
    }

    /// From the longest on.
    pub const ALL: [Level; 4] = [Level::AsSent, Level::Sentences, Level::Words, Level::Types];
}

/// Keys that say something to readers alone.
const NOTES: [&str; 6] = ["$schema", "title", "examples", "example", "$comment", "markdownDescription"];

/// Keys that hold schemas by name.
const MAPS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Keys that hold a schema, or a list of schemas.
const SCHEMAS: [&str; 16] = [
    "items",
    "prefixItems",
    "additionalProperties",
    "additionalItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "contentSchema",
    "not",
    "if",
    "then",
    "else",
    "anyOf",
    "oneOf",
    "allOf",
];

/// A tool's `function` object at a level. What is not known stays.
pub fn shorten(function: &Value, level: Level) -> Value {
    let Value::Object(fields) = function else { return function.clone() };
    if level == Level::AsSent {
        return function.clone();
    }
    let (own, _) = level.lengths();
    let short = |(key, value): (&String, &Value)| {
        let value = match (key.as_str(), value) {
            ("description", Value::String(text)) => Value::String(cut(text, own)),
            ("parameters", schema) => schema_at(&without_unused(schema), level),
            _ => value.clone(),
        };
        (key.clone(), value)
    };
    Value::Object(fields.iter().map(short).collect())
}

fn schema_at(schema: &Value, level: Level) -> Value {
    match schema {
        Value::Array(all) => Value::Array(all.iter().map(|s| schema_at(s, level)).collect()),
        Value::Object(fields) => Value::Object(fields.iter().filter_map(|(k, v)| field_at(k, v, level)).collect()),
        other => other.clone(),
    }
}

fn field_at(key: &str, value: &Value, level: Level) -> Option<(String, Value)> {
    let (_, most) = level.lengths();
    let value = match (key, value) {
        ("description", Value::String(_)) if most == 0 => return None,
        ("description", Value::String(text)) => Value::String(cut(text, most)),
        // A default tells the reader what happens without: the schema accepts the same values.
        ("default", _) if level >= Level::Words => return None,
        ("title" | "$schema" | "$comment" | "markdownDescription", Value::String(_)) => return None,
        (note, _) if NOTES[2..4].contains(&note) => return None,
        (map, Value::Object(all)) if MAPS.contains(&map) => {
            Value::Object(all.iter().map(|(name, schema)| (name.clone(), schema_at(schema, level))).collect())
        }
        (holder, schema) if SCHEMAS.contains(&holder) => schema_at(schema, level),
        _ => value.clone(),
    };
    Some((key.to_owned(), value))
}

/// The schema without definitions that nothing in it refers to.
fn without_unused(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let mut out = fields.clone();
    for group in ["$defs", "definitions"] {
        let Some(Value::Object(all)) = fields.get(group) else { continue };
        let prefix = format!("#/{group}/");
        let mut reached: HashSet<&str> = HashSet::new();
        let mut found = Vec::new();
        fields.iter().filter(|(key, _)| *key != group).for_each(|(_, v)| references(v, &mut found));
        let mut inside: HashMap<&str, Vec<&str>> = HashMap::new();
        while let Some(reference) = found.pop() {
            // A pointer that goes deeper, or into another schema: whoever wrote it knows why.
            let Some(name) = reference.strip_prefix(&prefix).filter(|n| !n.contains(['/', '~', '%'])) else {
                if reference.starts_with(&prefix) || !reference.starts_with("#/") {
                    return schema.clone();
                }
                continue;
            };
            if let Some((name, definition)) = all.get_key_value(name).filter(|(n, _)| reached.insert(n.as_str())) {
                let more = inside.entry(name).or_default();
                references(definition, more);
                found.append(more);
            }
        }
        let kept: Map<String, Value> =
            all.iter().filter(|(n, _)| reached.contains(n.as_str())).map(|(n, v)| (n.clone(), v.clone())).collect();
        if kept.is_empty() {
            out.remove(group)
        } else {
            out.insert(group.to_owned(), Value::Object(kept))
        };
    }
    Value::Object(out)
}

/// All references in a value.
fn references<'a>(value: &'a Value, into: &mut Vec<&'a str>) {
    match value {
        Value::Array(all) => all.iter().for_each(|v| references(v, into)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(to) if key == "$ref" || key == "$dynamicRef" => into.push(to),
                    other => references(other, into),
                }
            }
        }
        _ => {}
    }
}

/// A text on one line of at most so many characters: its first sentence, or as many words of it as there is room for.
pub fn sentence(text: &str, most: usize) -> String {
    if most == 0 {
        return String::new();
    }
    // What comes far behind the end is never looked at: a description may be megabytes.
    let near: String = text.chars().take(most.saturating_mul(2).saturating_add(200)).collect();
    let words: Vec<&str> = near.split_whitespace().collect();
    let mut out = String::new();
    for (at, word) in words.iter().enumerate() {
        if out.chars().count() + word.chars().count() + 1 > most {
            if out.is_empty() {
                out = word.chars().take(most.saturating_sub(1)).collect();
            }
            out.push('…');
            break;
        }
        if at > 0 {
            out.push(' ');
        }
        out.push_str(word);
        if word.ends_with(['.', '!', '?', '。'])
            && word.chars().count() > 3
            && !word.ends_with("e.g.")
            && !word.ends_with("i.e.")
        {
            break;
        }
    }
    out
}

/// A text cut behind its last whole sentence within so many characters; a text without one behind its last word.
fn cut(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    let near: String = text.chars().take(most).collect();
    let ends = [". ", ".\n", "! ", "? ", "。", "\n\n"];
    match ends.iter().filter_map(|end| near.rfind(end).map(|at| at + end.trim_end().len())).max().filter(|at| *at > 0) {
        Some(at) => near[..at].trim_end().to_owned(),
        None => sentence(&near, most),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::valid::problem;
    use super::*;

    #[test]
    fn sentences_end_where_they_end() {
        for (text, most, short) in [
            ("Reads a file. Then more.", 80, "Reads a file."),
            ("Use e.g. this one. No.", 80, "Use e.g. this one."),
            ("Searches\n  all   files", 80, "Searches all files"),
            ("Searches all files of a project", 16, "Searches all…"),
            ("Donaudampfschifffahrt", 8, "Donauda…"),
            ("", 8, ""),
            ("x", 0, ""),
        ] {
            assert_eq!(sentence(text, most), short, "{text}");
        }
        assert_eq!(cut("One. Two. Three is long.", 12), "One. Two.");
        assert_eq!(cut("One. Two.", 40), "One. Two.");
        assert!(sentence(&"word ".repeat(500_000), 80).chars().count() <= 81);
    }

    #[test]
    fn each_level_is_shorter_and_keeps_what_is_accepted() {
        let function = json!({"name": "f", "strict": true, "description": "Does it. ".repeat(90), "parameters": {
            "$schema": "x", "type": "object", "title": "F", "required": ["title"],
            "properties": {
                "title": {"type": "string", "title": "Title", "description": "The title. It is long. ".repeat(20),
                    "examples": ["a"], "default": "b"},
                "examples": {"$ref": "#/$defs/used"}, "default": {"const": {"title": "kept", "description": "kept"}},
            },
            "$defs": {"used": {"type": "array", "items": {"$ref": "#/$defs/inner"}}, "inner": {"enum": ["title"]},
                "unused": {"type": "string"}},
        }});
        let sizes: Vec<usize> = Level::ALL.iter().map(|l| shorten(&function, *l).to_string().len()).collect();
        assert!(sizes.windows(2).all(|w| w[0] > w[1]), "{sizes:?}");
        let least = shorten(&function, Level::Types);
        assert_eq!(
            least["parameters"],
            json!({"type": "object", "required": ["title"],
                "properties": {"title": {"type": "string"}, "examples": {"$ref": "#/$defs/used"},
                    "default": {"const": {"title": "kept", "description": "kept"}}},
                "$defs": {"used": {"type": "array", "items": {"$ref": "#/$defs/inner"}}, "inner": {"enum": ["title"]}}})
        );
        assert_eq!(least["strict"], json!(true));
    }

    #[test]
    fn recursive_and_foreign_references_stay() {
        let tree = json!({"type": "object", "properties": {"root": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}});
        assert_eq!(without_unused(&tree), tree);
        let foreign = json!({"properties": {"a": {"$ref": "https://example.org/x#/$defs/b"}}, "$defs": {"b": {}}});
        assert_eq!(without_unused(&foreign), foreign);
        for odd in [json!(7), json!([]), json!({"$defs": []}), json!({"properties": 3, "items": [1]})] {
            let _ = shorten(&json!({"name": "f", "parameters": odd}), Level::Types);
        }
    }

    fn schema() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!({"type": "string", "description": "A text. And more of it.", "title": "T", "examples": [1]})),
            Just(json!({"type": "integer", "default": 3, "minimum": 1})),
            Just(json!({"enum": ["a", 1, null]})),
            Just(json!({"$ref": "#/$defs/d"})),
            Just(json!(true)),
        ];
        leaf.prop_recursive(3, 20, 3, |inner| {
            prop_oneof![
                (prop::collection::btree_map("title|a|default|examples", inner.clone(), 0..3), any::<bool>())
                    .prop_map(|(all, closed)| json!({"type": "object", "properties": all, "required": ["a"],
                        "additionalProperties": !closed})),
                inner.clone().prop_map(|s| json!({"type": "array", "items": s})),
                prop::collection::vec(inner, 1..3).prop_map(|all| json!({"anyOf": all})),
            ]
        })
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(json!("a")), Just(json!(1)), Just(json!(null)), Just(json!(0)), Just(json!(true))];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("title|a|default|x", inner, 0..3).prop_map(|m| json!(m)),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_shortened_schema_accepts_the_same_values(schema in schema(), values in prop::collection::vec(value(), 8)) {
            let whole = json!({"properties": {"v": schema}, "$defs": {"d": {"type": "string"}, "e": {}}});
            for level in Level::ALL {
                let short = shorten(&json!({"name": "f", "parameters": whole}), level);
                for value in &values {
                    let arguments = json!({"v": value});
                    prop_assert_eq!(
                        problem(&arguments, &whole).is_none(),
                        problem(&arguments, &short["parameters"]).is_none()
                    );
                }
            }
        }
    }
}
