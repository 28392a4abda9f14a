//! Puts settings into the text of a config file and leaves the rest of it as it is, comments too.
//!
//! The settings are a JSON object. Objects go into those that are there; of a list of tables, those of the same `name` or `id`
//! are replaced and the rest stays; anything else is set. A name that ends in `?` is set only where it is missing.

use serde_json::{Map, Value};

use super::super::clients::Format;
use super::setting::name_of;
use super::{in_json, in_toml};

/// Brackets within each other, beyond which a file is no config of anybody's.
const DEEPEST: usize = 100;

/// The text with the settings in it.
///
/// # Errors
/// What is wrong with the text, for people.
pub(super) fn patched(format: Format, text: &str, settings: &Map<String, Value>) -> Result<String, String> {
    let mut depth = 0usize;
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return Err("it is nested too deeply".to_owned());
        }
    }
    match format {
        Format::Json => in_json::patched(text, settings),
        Format::Toml => in_toml::patched(text, settings),
        Format::Yaml => yaml(text, settings),
        Format::Dotenv => Ok(dotenv(text, settings)),
    }
}

/// Replaces or adds whole keys of the top level. The text is looked at line by line, and has to be so plain that this is
/// right: a mapping in block style.
fn yaml(text: &str, settings: &Map<String, Value>) -> Result<String, String> {
    let mut blocks: Vec<(Option<String>, Vec<&str>)> = vec![(None, Vec::new())];
    for (at, line) in text.split_inclusive('\n').enumerate() {
        if let Some(key) = top_key(line).map_err(|why| format!("line {}: {why}", at + 1))? {
            if blocks.iter().any(|(other, _)| other.as_ref() == Some(&key)) {
                return Err(format!("line {}: `{}` is there twice", at + 1, key.escape_debug()));
            }
            blocks.push((Some(key), Vec::new()));
        }
        if let Some((_, lines)) = blocks.last_mut() {
            lines.push(line);
        }
    }
    let mut blocks: Vec<(Option<String>, String)> =
        blocks.into_iter().map(|(key, lines)| (key, lines.concat())).collect();
    for (key, value) in settings {
        let (name, only_missing) = name_of(key);
        let line = format!("{name}: {value}\n");
        match blocks.iter_mut().find(|(key, _)| key.as_deref() == Some(name)) {
            Some(_) if only_missing => {}
            Some((_, block)) => {
                if block.split_whitespace().any(|word| word.len() > 1 && word.starts_with('&')) {
                    return Err(format!("`{name}` holds an anchor that other parts may use"));
                }
                // Comments at its end are about what comes next.
                let is_between = |l: &&str| l.trim().is_empty() || l.starts_with('#');
                let lines: Vec<&str> = block.split_inclusive('\n').skip(1).collect();
                let kept = lines.iter().rev().take_while(|l| is_between(l)).count();
                *block = line + &lines[lines.len() - kept..].concat();
            }
            None => {
                if let Some((_, last)) = blocks.last_mut().filter(|(_, last)| !last.is_empty() && !last.ends_with('\n'))
                {
                    last.push('\n');
                }
                blocks.push((Some(name.to_owned()), line));
            }
        }
    }
    Ok(blocks.into_iter().map(|(_, block)| block).collect())
}

/// The key that a line begins at the top level; `None` where it goes on with what is before.
fn top_key(line: &str) -> Result<Option<String>, &'static str> {
    let bare = line.trim_end();
    let first = bare.chars().next();
    if bare.is_empty() || matches!(first, Some(' ' | '#')) || bare == "---" || bare == "-" || bare.starts_with("- ") {
        return Ok(None);
    }
    let (key, rest) = bare.split_once(':').ok_or("it is no plain YAML mapping")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if key.is_empty() || !key.chars().all(plain) || !(rest.is_empty() || rest.starts_with(' ')) {
        return Err("it is no plain YAML mapping");
    }
    Ok(Some(key.to_owned()))
}

/// Sets variables: a line that sets one already is replaced, others are added.
fn dotenv(text: &str, settings: &Map<String, Value>) -> String {
    let name_in = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix("export ").unwrap_or(line);
        line.split_once('=').map(|(name, _)| name.trim().to_owned())
    };
    let ours = |line: &&str| name_in(line).is_none_or(|name| !settings.contains_key(&name));
    let mut out: String = text.split_inclusive('\n').filter(ours).collect();
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    for (name, value) in settings {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:".contains(c);
        let value = if value.chars().all(plain) { value } else { Value::from(value).to_string() };
        out += &format!("{name}={value}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn json_keeps_comments_and_order_and_lists_of_others() {
        let text = "{\n  // mine\n  \"theme\": \"dark\",\n  \"env\": {\"A\": \"1\"},\n  \"p\": [{\"id\": \"x\"}, {\"id\": \"m\", \"old\": 1}], // end\n}\n";
        let new = patched(
            Format::Json,
            text,
            &settings(r#"{"env": {"B": "2"}, "p": [{"id": "m", "url": "u"}], "n": {"a": {"b": 3}}, "theme?": "no"}"#),
        );
        let new = new.unwrap();
        assert!(new.contains("// mine\n  \"theme\": \"dark\"") && new.contains("// end"), "{new}");
        let value: Value = jsonc_parser::parse_to_serde_value(&new, &Default::default()).unwrap();
        assert_eq!(value["env"], serde_json::json!({"A": "1", "B": "2"}));
        assert_eq!(value["p"], serde_json::json!([{"id": "x"}, {"id": "m", "url": "u"}]));
        assert_eq!(value["n"]["a"]["b"], 3);
        let strict: Value =
            serde_json::from_str(&patched(Format::Json, "", &settings(r#"{"a": {"b": [1]}}"#)).unwrap()).unwrap();
        assert_eq!(strict, serde_json::json!({"a": {"b": [1]}}));
    }

    #[test]
    fn toml_keeps_comments_and_tables_of_others() {
        let text = "# mine\nmodel = \"gpt\" # old\n\n[model_providers.other]\nname = \"o\"\n\n[[providers]]\nname = \"a\"\n\n[[providers]]\nname = \"b\"\nx = 1\n";
        let wanted = r#"{"model": "m", "n": 7, "model_providers": {"ours": {"url": "u", "h": {"A": "B"}}}, "providers": [{"name": "b", "y": true}], "prompt?": {}}"#;
        let new = patched(Format::Toml, text, &settings(wanted)).unwrap();
        assert!(new.starts_with("# mine\nmodel = \"m\""), "{new}");
        let value: toml_edit::DocumentMut = new.parse().unwrap();
        assert_eq!(value["model_providers"]["other"]["name"].as_str(), Some("o"));
        assert_eq!(value["model_providers"]["ours"]["h"]["A"].as_str(), Some("B"));
        assert_eq!(value["n"].as_integer(), Some(7));
        let list = value["providers"].as_array_of_tables().unwrap();
        assert_eq!(
            (list.len(), list.get(1).unwrap()["y"].as_bool(), list.get(1).unwrap().get("x").is_none()),
            (2, Some(true), true)
        );
        let inline = patched(
            Format::Toml,
            "providers = [{name = \"a\"}]\nt = {a = 1}\n",
            &settings(r#"{"providers": [{"name": "a", "u": 1}], "t": {"b": {"c": 2}}}"#),
        )
        .unwrap();
        let value: toml_edit::DocumentMut = inline.parse().unwrap();
        assert_eq!(value["providers"].as_array().unwrap().len(), 1, "{inline}");
        assert_eq!(value["t"]["b"]["c"].as_integer(), Some(2), "{inline}");
    }

    #[test]
    fn yaml_changes_whole_keys_of_the_top_level_alone() {
        let text = "# mine\nname: x\nmodels:\n- name: a\n  apiBase: b\n# about rules\nrules: [r]\n";
        let new =
            patched(Format::Yaml, text, &settings(r#"{"name?": "local", "models": [{"name": "m"}], "schema?": "v1"}"#))
                .unwrap();
        assert_eq!(new, "# mine\nname: x\nmodels: [{\"name\":\"m\"}]\n# about rules\nrules: [r]\nschema: \"v1\"\n");
        for odd in ["{a: 1}\n", "a: 1\na: 2\n", "\"a\": 1\n", "a\n", "\tb: 1\n", "models: &x\n  - 1\n"] {
            assert!(patched(Format::Yaml, odd, &settings(r#"{"models": 1}"#)).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn variables_are_replaced_or_added() {
        let new =
            patched(Format::Dotenv, "A=1\nexport B='x y'\n# B=3", &settings(r#"{"B": "z", "C": "a \"b\""}"#)).unwrap();
        assert_eq!(new, "A=1\n# B=3\nB=z\nC=\"a \\\"b\\\"\"\n");
    }

    #[test]
    fn what_is_no_config_is_left_alone() {
        let wanted = settings(r#"{"a": {"b": 1}, "l": [{"name": "n"}]}"#);
        let deep = "[".repeat(1 << 20);
        for text in
            ["{", "[]", "nonsense", "{\"a\": 3}", "{\"l\": {}}", "{\"a\": {}, \"a\": {}}", deep.as_str(), "{'a': {}}"]
        {
            assert!(patched(Format::Json, text, &wanted).is_err(), "{:?}", &text[..text.len().min(20)]);
        }
        for text in ["a", "a = 3\n", "l = 3\n", "[a\n", "[[a]]\n", "a = 1\na = 2\n", deep.as_str()] {
            assert!(patched(Format::Toml, text, &wanted).is_err(), "{:?}", &text[..text.len().min(20)]);
        }
    }
}
