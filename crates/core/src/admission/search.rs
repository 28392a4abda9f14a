//! Finds tools by words: BM25 over names, descriptions and parameters. No model is asked.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::catalog::{Catalog, Tool};

/// How often a word of the name counts, and of a parameter's name.
const IN_NAME: f64 = 4.0;
const IN_PARAMETER: f64 = 1.5;

/// BM25's usual constants: how soon a repeated word counts no more, and how much length matters. Descriptions of tools are
/// long because they are careful, not because they speak of more: less than usual.
const REPEATED: f64 = 1.2;
const LENGTH: f64 = 0.4;

/// Characters of one tool's words that are read.
const READ: usize = 6_000;

/// Words of a query that are looked for.
const WORDS: usize = 200;

/// Words that stand everywhere.
const COMMON: [&str; 36] = [
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "have", "how", "i", "if", "in", "is",
    "it", "me", "my", "need", "of", "on", "or", "please", "tool", "that", "the", "this", "to", "want", "what", "with",
    "you", "your",
];

/// The functions that these words fit, the best first, as indexes into the catalog.
pub fn search(catalog: &Catalog, query: &str, most: usize) -> Vec<usize> {
    let asked: HashSet<String> = words(query).take(WORDS).filter(|w| !COMMON.contains(&w.as_str())).collect();
    if asked.is_empty() {
        return Vec::new();
    }
    let functions: Vec<usize> = (0..catalog.tools.len()).filter(|at| catalog.tools[*at].is_function).collect();
    let texts: Vec<(HashMap<String, f64>, f64)> =
        functions.iter().map(|at| weighed(&catalog.tools[*at], &asked)).collect();
    let average = texts.iter().map(|(_, length)| length).sum::<f64>() / texts.len().max(1) as f64;
    let count = texts.len() as f64;
    let rarity = |word: &str| {
        let with = texts.iter().filter(|(found, _)| found.contains_key(word)).count() as f64;
        ((count - with + 0.5) / (with + 0.5)).ln_1p()
    };
    let rarities: HashMap<&str, f64> = asked.iter().map(|w| (w.as_str(), rarity(w))).collect();
    let mut scored: Vec<(f64, usize)> = texts
        .iter()
        .zip(&functions)
        .map(|((found, length), at)| {
            let long = 1.0 - LENGTH + LENGTH * length / average.max(1.0);
            // In the order of the text, not of the map: sums of floats must not differ from run to run.
            let mut terms: Vec<(&String, &f64)> = found.iter().collect();
            terms.sort_by(|a, b| a.0.cmp(b.0));
            let score = terms
                .iter()
                .map(|(w, n)| rarities[w.as_str()] * **n * (REPEATED + 1.0) / (**n + REPEATED * long))
                .sum();
            (score, *at)
        })
        .filter(|(score, _): &(f64, usize)| *score > 0.0)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    scored.into_iter().take(most).map(|(_, at)| at).collect()
}

/// How often the words that are asked for stand in a tool, weighed by where; and how many words it has.
fn weighed(tool: &Tool, asked: &HashSet<String>) -> (HashMap<String, f64>, f64) {
    let mut found: HashMap<String, f64> = HashMap::new();
    let mut length = 0.0;
    let mut add = |text: &str, weight: f64| {
        for word in words(text) {
            length += 1.0;
            if asked.contains(&word) {
                *found.entry(word).or_default() += weight;
            }
        }
    };
    add(&tool.name, IN_NAME);
    add(&start(tool.description(), READ), 1.0);
    let mut room = READ;
    parameters(tool.parameters(), 0, &mut |name, about| {
        if room > 0 {
            room = room.saturating_sub(name.len() + about.len());
            add(name, IN_PARAMETER);
            add(&start(about, room), 0.5);
        }
    });
    (found, length)
}

fn start(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// Calls `each` with the name and description of every parameter, the nested ones too.
fn parameters(schema: &Value, depth: usize, each: &mut impl FnMut(&str, &str)) {
    if depth > 4 {
        return;
    }
    if let Some(all) = schema.get("properties").and_then(Value::as_object) {
        for (name, inner) in all {
            each(name, inner["description"].as_str().unwrap_or_default());
            parameters(inner, depth + 1, each);
        }
    }
    if let Some(items) = schema.get("items").filter(|i| i.is_object()) {
        parameters(items, depth + 1, each);
    }
}

/// The words of a text in lower case and without their usual endings; `camelCase` and `snake_case` are several. A character
/// of a script without spaces is a word.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> {
    let mut out = Vec::new();
    let mut word = String::new();
    let mut before = ' ';
    let mut end = |word: &mut String| {
        if !word.is_empty() {
            out.push(stem(&std::mem::take(word)));
        }
    };
    for c in text.chars() {
        let alone = ('\u{2e80}'..='\u{d7af}').contains(&c);
        if !c.is_alphanumeric() || alone || c.is_uppercase() && before.is_lowercase() {
            end(&mut word);
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        if alone {
            end(&mut word);
        }
        before = c;
    }
    end(&mut word);
    out.into_iter()
}

/// A word without the endings that English puts to it.
fn stem(word: &str) -> String {
    for (ending, instead, least) in [("ies", "y", 5), ("ing", "", 6), ("ed", "", 5), ("es", "", 5), ("s", "", 4)] {
        if word.len() >= least && word.ends_with(ending) && !word.ends_with("ss") {
            let bare = format!("{}{instead}", &word[..word.len() - ending.len()]);
            return bare.trim_end_matches('e').to_owned();
        }
    }
    if word.len() > 3 { word.trim_end_matches('e').to_owned() } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn catalog() -> Catalog {
        let tool = |name: &str, about: &str, parameters: Value| {
            json!({"type": "function", "function": {"name": name,
            "description": about, "parameters": {"type": "object", "properties": parameters}}})
        };
        let all = json!([
            tool("create_calendar_event", "Adds an event to a calendar.", json!({"start_time": {"type": "string"}})),
            tool(
                "sendEmail",
                "Sends a message to somebody.",
                json!({"recipient": {"description": "an email address"}})
            ),
            tool("get_weather", "Tells the weather of a city.", json!({"city": {}})),
            tool("查询天气", "查询一个城市的天气", json!({})),
        ]);
        Catalog::read(all.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn words_find_the_tool_that_is_meant() {
        let all = catalog();
        for (query, best) in [
            ("What will the weather be in Paris?", Some(2)),
            ("adding events to calendars", Some(0)),
            ("send an email", Some(1)),
            ("recipients", Some(1)),
            ("天气", Some(3)),
            ("CREATE_CALENDAR_EVENT", Some(0)),
            ("please the of", None),
            ("", None),
            ("zzz", None),
        ] {
            assert_eq!(search(&all, query, 5).first().copied(), best, "{query}");
        }
    }

    #[test]
    fn thousands_of_tools_and_long_texts_are_searched() {
        let many: Vec<Value> = (0..5_000)
            .map(|n| json!({"function": {"name": format!("tool_{n}"), "description": format!("Does number {n}.")}}))
            .collect();
        let many = Catalog::read(Value::from(many).to_string().as_bytes()).unwrap();
        assert_eq!(search(&many, "number 4711", 1), [4711]);
        let long = json!([{"function": {"name": "f", "description": "word ".repeat(400_000)}}]);
        let long = Catalog::read(long.to_string().as_bytes()).unwrap();
        assert_eq!(search(&long, &"word ".repeat(100_000), 1), [0]);
    }
}
