//! Whether the arguments of a call are what a client's schema asks for. Only what is certainly wrong is wrong: a keyword that
//! is not known here, or a schema that makes no sense, accepts everything.

use serde_json::{Map, Value};

/// How deep references and nested schemas are followed.
const DEEPEST: usize = 48;

/// Schemas that are looked at for one call at most: `anyOf` within `anyOf` multiplies.
const MOST: usize = 20_000;

/// What is wrong with the arguments, for the model; `None` where nothing is.
pub fn problem(arguments: &Value, schema: &Value) -> Option<String> {
    let mut check = Check { root: schema, left: MOST };
    check.at(arguments, schema, "", 0)
}

struct Check<'a> {
    root: &'a Value,
    left: usize,
}

impl Check<'_> {
    fn at(&mut self, value: &Value, schema: &Value, path: &str, depth: usize) -> Option<String> {
        self.left = self.left.saturating_sub(1);
        if depth > DEEPEST || self.left == 0 {
            return None;
        }
        let fields = match schema {
            Value::Bool(false) => return Some(format!("{} is not allowed", named(path))),
            Value::Object(fields) => fields,
            _ => return None,
        };
        if let Some(Value::String(to)) = fields.get("$ref")
            && let Some(schema) = self.resolve(to)
            && let Some(wrong) = self.at(value, &schema, path, depth + 1)
        {
            return Some(wrong);
        }
        wrong_kind(value, fields, path)
            .or_else(|| self.object(value, fields, path, depth))
            .or_else(|| self.items(value, fields, path, depth))
            .or_else(|| self.combined(value, fields, path, depth))
    }

    fn resolve(&self, to: &str) -> Option<Value> {
        let pointer = to.strip_prefix('#')?;
        self.root.pointer(pointer).cloned()
    }

    fn object(&mut self, value: &Value, fields: &Map<String, Value>, path: &str, depth: usize) -> Option<String> {
        let given = value.as_object()?;
        for key in fields.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !given.contains_key(key) {
                return Some(format!("{} is missing", named(&join(path, key))));
            }
        }
        let known = fields.get("properties").and_then(Value::as_object);
        for (key, inner) in given {
            let at = join(path, key);
            if let Some(schema) = known.and_then(|k| k.get(key)) {
                if let Some(wrong) = self.at(inner, schema, &at, depth + 1) {
                    return Some(wrong);
                }
            } else if fields.get("patternProperties").is_none()
                && let Some(schema) = fields.get("additionalProperties")
            {
                if *schema == Value::Bool(false) {
                    let all: Vec<&str> = known.into_iter().flat_map(Map::keys).map(String::as_str).take(20).collect();
                    return Some(format!("{} is not known; there are: {}", named(&at), all.join(", ")));
                }
                if let Some(wrong) = self.at(inner, schema, &at, depth + 1) {
                    return Some(wrong);
                }
            }
        }
        None
    }

    fn items(&mut self, value: &Value, fields: &Map<String, Value>, path: &str, depth: usize) -> Option<String> {
        let all = value.as_array()?;
        // In older drafts a list of schemas stands there, one for each place.
        let schema = fields.get("items").filter(|s| !s.is_array() && fields.get("prefixItems").is_none())?;
        all.iter().enumerate().find_map(|(n, inner)| self.at(inner, schema, &format!("{path}[{n}]"), depth + 1))
    }

    fn combined(&mut self, value: &Value, fields: &Map<String, Value>, path: &str, depth: usize) -> Option<String> {
        let list = |key: &str| fields.get(key).and_then(Value::as_array);
        if let Some(wrong) = list("allOf").into_iter().flatten().find_map(|s| self.at(value, s, path, depth + 1)) {
            return Some(wrong);
        }
        for key in ["anyOf", "oneOf"] {
            let Some(all) = list(key).filter(|all| !all.is_empty()) else { continue };
            let mut first = None;
            let mut fits = false;
            for schema in all {
                match self.at(value, schema, path, depth + 1) {
                    None => fits = true,
                    Some(wrong) => first = first.or(Some(wrong)),
                }
            }
            // `oneOf` of schemas that overlap is a mistake of its author's: any that fits will do.
            if !fits {
                return first.map(|wrong| format!("{wrong} (and no other form of it fits)"));
            }
        }
        None
    }
}

/// What a value itself is: its type, one of a few, its bounds.
fn wrong_kind(value: &Value, fields: &Map<String, Value>, path: &str) -> Option<String> {
    let is = |kind: &str| match kind {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    };
    let nullable = value.is_null() && fields.get("nullable") == Some(&Value::Bool(true));
    let kinds: Vec<&str> = match fields.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !kinds.is_empty() && !nullable && !kinds.iter().any(|k| is(k)) {
        return Some(format!("{} must be of type {}", named(path), kinds.join(" or ")));
    }
    if let Some(Value::Array(all)) = fields.get("enum")
        && !nullable
        && !all.iter().any(|one| same(one, value))
    {
        let shown: Vec<String> = all.iter().take(20).map(Value::to_string).collect();
        return Some(format!("{} must be one of {}", named(path), shown.join(", ")));
    }
    if let Some(only) = fields.get("const").filter(|only| !same(only, value)) {
        return Some(format!("{} must be {only}", named(path)));
    }
    let bound = |key: &str| fields.get(key).and_then(Value::as_f64);
    let number = value.as_f64();
    let length = value.as_str().map(|s| s.chars().count()).or_else(|| value.as_array().map(Vec::len)).map(|n| n as f64);
    let (low, high) = if value.is_array() { ("minItems", "maxItems") } else { ("minLength", "maxLength") };
    let beyond = |n: Option<f64>, low: &str, high: &str| {
        n.is_some_and(|n| bound(low).is_some_and(|least| n < least) || bound(high).is_some_and(|most| n > most))
    };
    if beyond(number, "minimum", "maximum") {
        return Some(format!("{} is out of its range", named(path)));
    }
    beyond(length, low, high).then(|| format!("{} is too short or too long", named(path)))
}

/// Whether two values are the same; `1` and `1.0` are.
fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| a == b)
}

fn join(path: &str, key: &str) -> String {
    let key: String = key.chars().take(80).collect();
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

fn named(path: &str) -> String {
    if path.is_empty() { "the object of arguments".to_owned() } else { format!("`{path}`") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let schema = json!({"type": "object", "required": ["path"], "additionalProperties": false, "properties": {
            "path": {"type": "string", "minLength": 1}, "mode": {"enum": ["r", "w"]},
            "lines": {"type": ["integer", "null"], "minimum": 1},
            "edits": {"type": "array", "items": {"$ref": "#/$defs/edit"}, "maxItems": 2},
            "who": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["id"]}]}},
            "$defs": {"edit": {"type": "object", "required": ["old"], "properties": {"next": {"$ref": "#/$defs/edit"}}}}});
        for (arguments, wrong) in [
            (json!({"path": "a", "mode": "r", "lines": 3.0, "edits": [{"old": 1}], "who": {"id": 1}}), None),
            (json!({"path": "a", "lines": null}), None),
            (json!({}), Some("`path` is missing")),
            (json!([]), Some("the object of arguments must be of type object")),
            (json!({"path": 3}), Some("`path` must be of type string")),
            (json!({"path": ""}), Some("`path` is too short or too long")),
            (json!({"path": "a", "mode": "x"}), Some("`mode` must be one of \"r\", \"w\"")),
            (json!({"path": "a", "lines": 1.5}), Some("`lines` must be of type integer or null")),
            (json!({"path": "a", "lines": 0}), Some("`lines` is out of its range")),
            (json!({"path": "a", "edits": [{"old": 1, "next": {}}]}), Some("`edits[0].next.old` is missing")),
            (json!({"path": "a", "who": 3}), Some("`who` must be of type string (and no other form of it fits)")),
            (json!({"path": "a", "other": 3}), Some("`other` is not known; there are: path, mode, lines, edits, who")),
        ] {
            assert_eq!(problem(&arguments, &schema).as_deref(), wrong, "{arguments}");
        }
    }

    #[test]
    fn schemas_that_make_no_sense_accept_everything_and_end() {
        let endless =
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}});
        assert_eq!(problem(&json!({"x": 1}), &endless), None);
        for odd in [
            json!(null),
            json!(7),
            json!("x"),
            json!({"type": 3, "required": "a", "properties": [], "items": 4}),
            json!({"$ref": "#/nowhere"}),
            json!({"$ref": "https://example.org"}),
            json!({"anyOf": []}),
        ] {
            assert_eq!(problem(&json!({"x": [1]}), &odd), None, "{odd}");
        }
    }
}
