//! The tools of one request, each with what it is called and what it takes.

use std::collections::HashSet;

use serde_json::Value;

use super::NAME;
use super::shorten::sentence;
use crate::wire::json;

/// One tool of a client's.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name; empty where it is of a kind that has none.
    pub name: String,
    /// The tool as it came.
    pub value: Value,
    /// Whether it is a function with a schema: anything else stays as it came.
    pub is_function: bool,
}

impl Tool {
    fn read(value: Value) -> Tool {
        let function = &value["function"];
        let name = function["name"].as_str().or_else(|| value["name"].as_str()).unwrap_or_default().to_owned();
        let schema = function.get("parameters").is_none_or(|p| p.is_object() || p.is_null());
        let is_function = function.is_object() && schema && !name.trim().is_empty();
        Tool { name, value, is_function }
    }

    /// What it says it does.
    pub fn description(&self) -> &str {
        self.value["function"]["description"].as_str().unwrap_or_default()
    }

    /// The schema of its arguments.
    pub fn parameters(&self) -> &Value {
        &self.value["function"]["parameters"]
    }

    /// What it does, on one line of at most so many characters.
    pub fn line(&self, most: usize) -> String {
        sentence(self.description(), most)
    }

    /// Whether a call needs no schema: there is nothing to say in it.
    pub fn takes_nothing(&self) -> bool {
        self.parameters().get("properties").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty)
            && ["anyOf", "oneOf", "allOf", "$ref", "patternProperties", "additionalProperties"]
                .iter()
                .all(|key| self.parameters().get(*key).is_none_or(|v| *v == Value::Bool(false)))
    }
}

/// All tools of a request, in the client's order.
#[derive(Debug, Clone, PartialEq)]
pub struct Catalog {
    /// The tools.
    pub tools: Vec<Tool>,
}

impl Catalog {
    /// Reads a `tools` array.
    ///
    /// # Errors
    /// Why these tools can only be forwarded as they are.
    pub fn read(tools: &[u8]) -> Result<Catalog, String> {
        let text = std::str::from_utf8(tools).map_err(|_| "they are not UTF-8".to_owned())?;
        let value = json::value(text).map_err(|_| "they are no list of tools".to_owned())?;
        let Value::Array(all) = value else { return Err("they are no list of tools".to_owned()) };
        let tools: Vec<Tool> = all.into_iter().map(Tool::read).collect();
        let mut names = HashSet::new();
        for tool in tools.iter().filter(|t| !t.name.is_empty()) {
            if tool.name == NAME {
                return Err(format!("one of them is called {NAME}"));
            }
            if !names.insert(tool.name.as_str()) {
                return Err("two of them have the same name".to_owned());
            }
        }
        Ok(Catalog { tools })
    }

    /// The tool of a name: exactly, or the only one that differs in case, namespace or `-` and `_` alone.
    pub fn find(&self, name: &str) -> Option<&Tool> {
        let functions = || self.tools.iter().filter(|t| t.is_function);
        if let Some(tool) = functions().find(|t| t.name == name.trim()) {
            return Some(tool);
        }
        let plain = |name: &str| {
            let bare = name.trim().strip_prefix("functions.").unwrap_or(name.trim());
            bare.to_lowercase().replace(['-', ' '], "_")
        };
        let wanted = plain(name);
        let mut alike = functions().filter(|t| plain(&t.name) == wanted);
        alike.next().filter(|_| alike.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Catalog, String> {
        Catalog::read(text.as_bytes())
    }

    #[test]
    fn what_cannot_be_indexed_is_said() {
        let tool = |name: &str| format!(r#"{{"type":"function","function":{{"name":"{name}"}}}}"#);
        for (tools, why) in [
            (format!("[{},{}]", tool("a"), tool("a")), "two of them have the same name"),
            (format!("[{}]", tool(NAME)), "one of them is called windowsill_tool"),
            ("{}".into(), "they are no list of tools"),
            ("[1".into(), "they are no list of tools"),
            (format!("[{}1{}]", "[".repeat(200), "]".repeat(200)), "they are no list of tools"),
        ] {
            assert_eq!(read(&tools).unwrap_err(), why, "{}", &tools[..tools.len().min(60)]);
        }
        assert_eq!(Catalog::read(b"[\xff]").unwrap_err(), "they are not UTF-8");
    }

    #[test]
    fn tools_of_other_kinds_stay_as_they_are() {
        let all =
            read(r#"[7,{"type":"web_search"},{"function":{"name":"odd","parameters":[1]}},{"function":{"name":"f"}}]"#)
                .unwrap();
        let functions: Vec<bool> = all.tools.iter().map(|t| t.is_function).collect();
        assert_eq!(functions, [false, false, false, true]);
        assert!(all.find("odd").is_none() && all.find("f").is_some());
    }

    #[test]
    fn names_as_models_write_them() {
        let all =
            read(r#"[{"function":{"name":"read-File"}},{"function":{"name":"a"}},{"function":{"name":"A"}}]"#).unwrap();
        for (written, found) in [
            ("read-File", Some("read-File")),
            ("functions.read_file", Some("read-File")),
            (" READ FILE", Some("read-File")),
            ("a", Some("a")),
            ("functions.a", None),
            ("b", None),
        ] {
            assert_eq!(all.find(written).map(|t| t.name.as_str()), found, "{written}");
        }
    }
}
