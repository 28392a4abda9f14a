//! What a call of the index asks for, and what it is answered: a tool's parameters, tools that fit some words, or that the
//! call goes on to the client. Models write arguments in many wrong ways; what can be understood is.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::NAME;
use super::catalog::{Catalog, Tool};
use super::choose::List;
use super::search::search;
use super::shorten::{Level, shorten};
use super::valid::problem;
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Message, Role, Tokens};
use crate::wire::json::{self as spelled, Fields};

/// Longest lookup that is read, in bytes. The arguments of a call may be longer.
const LONGEST: usize = 16 * 1024;

/// Longest part of what a model wrote that is repeated to it, in characters.
const ECHO: usize = 80;

/// Hits of a search that are told in full, and named.
const TOLD: usize = 3;
const NAMED: usize = 8;

/// Characters of a hit's line.
const LINE: usize = 100;

/// What a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// That a tool be called with these arguments, as the model spelled them.
    Call {
        /// The tool's name.
        name: String,
        /// A JSON object, mostly.
        arguments: String,
    },
    /// What a tool takes.
    Read {
        /// The tool's name.
        name: String,
        /// Characters of its description to leave out.
        offset: usize,
    },
    /// Tools that fit these words.
    Search(String),
    /// Nothing that can be understood.
    Unclear,
}

impl Asked {
    /// Reads the arguments of a call as the model wrote them.
    pub fn read(arguments: &str) -> Asked {
        let text = arguments.trim();
        let Ok(fields) = Fields::read(text) else {
            // A string: spelled once too often, or a bare name.
            return match spelled::string(text).filter(|_| text.starts_with('"') && text.len() <= LONGEST) {
                Some(inner) if inner.trim_start().starts_with('{') => Asked::read(&inner),
                Some(inner) if !inner.trim().is_empty() => Asked::Read { name: inner.trim().to_owned(), offset: 0 },
                _ => Asked::Unclear,
            };
        };
        let text_of = |keys: &[&str]| {
            keys.iter().filter_map(|k| fields.string(k)).map(|t| t.trim().to_owned()).find(|t| !t.is_empty())
        };
        let name = text_of(&["name", "tool", "tool_name"]);
        let Some(name) = name else {
            let query = text_of(&["query", "q", "search"]);
            return query.map_or(Asked::Unclear, |q| Asked::Search(q.chars().take(400).collect()));
        };
        let given = ["arguments", "parameters", "args", "input"].iter().find_map(|k| fields.get(k));
        if let Some(given) = given.filter(|g| *g != "null") {
            let arguments = spelled::string(given).unwrap_or_else(|| given.to_owned());
            return Asked::Call { name, arguments };
        }
        let offset = fields.get("offset").and_then(|o| o.parse::<f64>().ok()).unwrap_or(0.0);
        let rest: Vec<String> = fields
            .0
            .iter()
            .filter(|(k, v)| !["name", "tool", "tool_name", "offset", "arguments"].contains(&&**k) && v.get() != "\"\"")
            .map(|(k, v)| format!("{}:{}", spelled::quote(k), v.get()))
            .collect();
        if rest.is_empty() || offset >= 1.0 {
            return Asked::Read { name, offset: offset.clamp(0.0, 1e9) as usize };
        }
        // Some put the tool's arguments beside its name.
        Asked::Call { name, arguments: format!("{{{}}}", rest.join(",")) }
    }
}

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is answered here, and these tools are known from then on.
    Told(String, Vec<String>),
    /// It goes to the client, as a call of this tool with these arguments.
    Goes(String, String),
}

/// What calls are answered from.
pub struct Answers<'a> {
    /// The client's tools.
    pub catalog: &'a Catalog,
    /// The list in the prompt.
    pub list: &'a List,
    /// Names of tools whose parameters stand in the prompt's history.
    pub taught: &'a HashSet<String>,
    /// Tokens that an answer may take.
    pub room: Tokens,
    /// Counts a text.
    pub count: &'a dyn Fn(&str) -> Tokens,
}

impl Answers<'_> {
    /// Whether a name is one that cannot go on to the client unseen: a tool that the list does not show in full.
    pub fn holds(&self, name: &str) -> bool {
        self.catalog.tools.iter().any(|t| t.is_function && t.name == name) && !self.list.shows(name)
    }

    /// What becomes of a call. `last`: no further round follows, so that a call which could go to the client does.
    pub fn answer(&self, name: &str, arguments: &str, last: bool) -> Answer {
        if self.catalog.find(name).is_some_and(|t| t.name == name) {
            return self.call(name, arguments, last);
        }
        match Asked::read(arguments) {
            Asked::Call { name, arguments } => self.call(&name, &arguments, last),
            Asked::Read { name, offset } => match self.catalog.find(&name) {
                Some(tool) if offset > 0 => Answer::Told(self.description(tool, offset), Vec::new()),
                Some(tool) => self.told(tool, ""),
                None => self.unknown(&name),
            },
            Asked::Search(query) => self.found(&query, ""),
            Asked::Unclear => {
                let text = "[the call could not be read: give {\"name\": \"…\"} to read a tool's parameters, {\"query\": \"…\"} to \
                    search, or {\"name\": \"…\", \"arguments\": {…}} to call one]";
                Answer::Told(text.into(), Vec::new())
            }
        }
    }

    fn call(&self, name: &str, arguments: &str, last: bool) -> Answer {
        let Some(tool) = self.catalog.find(name) else {
            // A call of a tool that nobody has is the client's to refuse, if nobody else can.
            return if last { Answer::Goes(name.into(), arguments.into()) } else { self.unknown(name) };
        };
        let known = self.list.shows(&tool.name) || self.taught.contains(&tool.name) || tool.takes_nothing();
        let goes = || {
            let given = if arguments.trim().is_empty() { "{}" } else { arguments };
            Answer::Goes(tool.name.clone(), given.to_owned())
        };
        if last {
            return goes();
        }
        if !known {
            return self
                .told(tool, "[it was not called: its parameters had not been shown. Call it again with these]\n");
        }
        let read = if arguments.trim().is_empty() { Ok(json!({})) } else { spelled::value(arguments) };
        let wrong = match read {
            Ok(value) => problem(&value, tool.parameters()),
            Err(_) => Some("the arguments are no JSON object".to_owned()),
        };
        match wrong {
            None => goes(),
            Some(wrong) => self.told(tool, &format!("[it was not called: {}]\n", echo(&wrong, 200))),
        }
    }

    /// A tool's parameters, no shorter than need be.
    fn told(&self, tool: &Tool, before: &str) -> Answer {
        let (text, whole) = self.spelled(tool, self.room);
        let more = if whole || tool.description().is_empty() {
            String::new()
        } else {
            format!(
                "\n[its description is longer: {NAME} {{\"name\": {}, \"offset\": 1}} reads it]",
                spelled::quote(&tool.name)
            )
        };
        let text = format!("{before}{text}\n{}{more}", self.how(tool));
        Answer::Told(text, vec![tool.name.clone()])
    }

    /// A tool as one line of JSON that fits, or the shortest; and whether that is the whole of it.
    fn spelled(&self, tool: &Tool, room: Tokens) -> (String, bool) {
        let function = &tool.value["function"];
        let at = |level: Level| {
            let short = shorten(function, level);
            let mut out = Map::new();
            out.insert("name".into(), json!(tool.name));
            for (key, value) in short.as_object().into_iter().flatten().filter(|(k, _)| *k != "name") {
                out.insert(key.clone(), value.clone());
            }
            Value::Object(out).to_string()
        };
        for level in Level::ALL {
            let text = at(level);
            // No token is longer than some bytes: what is far too long is not counted.
            if text.len() / 16 <= room as usize && (self.count)(&text) <= room {
                return (text, level == Level::AsSent);
            }
        }
        (at(Level::Types), false)
    }

    fn how(&self, tool: &Tool) -> String {
        if self.list.shows(&tool.name) {
            return format!("[call {} by its name]", tool.name);
        }
        format!("[to call it: {NAME} {{\"name\": {}, \"arguments\": {{…}}}}]", spelled::quote(&tool.name))
    }

    /// A tool's description from a character on.
    fn description(&self, tool: &Tool, offset: usize) -> String {
        let most = (self.room as usize).saturating_mul(3);
        let mut all = tool.description().chars().skip(offset - 1);
        let text: String = all.by_ref().take(most).collect();
        if text.is_empty() {
            return format!("[the description of {} has {} characters]", tool.name, tool.description().chars().count());
        }
        let more = if all.next().is_some() {
            format!("\n[read on with \"offset\": {}]", offset + most)
        } else {
            String::new()
        };
        format!("{text}{more}")
    }

    fn unknown(&self, name: &str) -> Answer {
        let about = format!("[there is no tool `{}`]\n", echo(name, ECHO));
        match self.found(name, &about) {
            Answer::Told(text, told) if !told.is_empty() => Answer::Told(text, told),
            _ => Answer::Told(about.trim_end().to_owned(), Vec::new()),
        }
    }

    /// The tools that fit some words: the best in full, some more by name.
    fn found(&self, query: &str, before: &str) -> Answer {
        let hits = search(self.catalog, query, NAMED);
        if hits.is_empty() {
            return Answer::Told(format!("{before}[no tool fits `{}`]", echo(query, ECHO)), Vec::new());
        }
        let mut out = before.to_owned();
        let mut told = Vec::new();
        let mut left = self.room;
        for (nth, tool) in hits.iter().map(|at| &self.catalog.tools[*at]).enumerate() {
            let share = left / Tokens::try_from(TOLD.saturating_sub(nth).max(1)).unwrap_or(1);
            let (text, _) = self.spelled(tool, share);
            let cost = (self.count)(&text);
            if nth < TOLD && (cost <= left || nth == 0) {
                left = left.saturating_sub(cost);
                out.push_str(&format!("{text}\n"));
                told.push(tool.name.clone());
                continue;
            }
            let line = format!("- {}: {}\n", tool.name, tool.line(LINE));
            let cost = (self.count)(&line);
            if cost > left {
                break;
            }
            left -= cost;
            out.push_str(&line);
        }
        out.push_str(&format!("[to call one: {NAME} {{\"name\": …, \"arguments\": {{…}}}}]"));
        Answer::Told(out, told)
    }
}

/// Names of the tools whose parameters stand in a history as it is forwarded: told in answers that the view leaves alone.
pub fn taught(body: &[Message], view: &View) -> HashSet<String> {
    let gone = |at: usize| {
        view.edits.iter().any(|edit| match edit {
            Edit::Text { at: edited, .. } => *edited == at,
            Edit::Arguments { .. } | Edit::Recalled { .. } => false,
            Edit::Fold { from, to, keep, .. } => (*from..*to).contains(&at) && !keep.contains(&at),
        })
    };
    let mut out = HashSet::new();
    let mut inside = false;
    for (at, message) in body.iter().enumerate() {
        if message.role != Role::Tool {
            inside = message.calls.iter().any(|call| call.name == NAME);
        } else if inside && !gone(at) {
            let lines = message.text.lines().filter(|line| line.starts_with("{\"name\":"));
            let named = lines.filter_map(|line| Fields::read(line).ok()?.string("name"));
            out.extend(named);
        }
    }
    out
}

/// What a model wrote, on one short line.
fn echo(text: &str, most: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() || c == '<' || c == '>' { ' ' } else { c }).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admission::{Wanted, choose};
    use crate::conversation::Digest;
    use crate::conversation::edit::Rule;
    use crate::wire::openai_chat;

    fn count(text: &str) -> Tokens {
        Tokens::try_from(text.len().div_ceil(4)).unwrap()
    }

    fn catalog() -> (Catalog, Vec<u8>) {
        let tool = |name: &str, parameters: Value| {
            json!({"type": "function", "function": {"name": name,
            "description": format!("{name} does its work. {}", "It is long. ".repeat(60)), "parameters": parameters}})
        };
        let own = json!([
            tool(
                "Bash",
                json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]})
            ),
            tool(
                "Grep",
                json!({"type": "object", "properties": {"pattern": {"type": "string"}}, "required": ["pattern"]})
            ),
            tool(
                "WebSearch",
                json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]})
            ),
            tool("TaskList", json!({"type": "object", "properties": {}})),
        ]);
        let own = own.to_string().into_bytes();
        (Catalog::read(&own).unwrap(), own)
    }

    fn answered(taught: &[&str], name: &str, arguments: &str, last: bool) -> Answer {
        let (catalog, own) = catalog();
        let list = choose(&catalog, &own, 2_000, &Wanted::default(), 300, &count);
        assert_eq!(list.full, ["Bash"]);
        let taught = taught.iter().map(|t| (*t).to_owned()).collect();
        Answers { catalog: &catalog, list: &list, taught: &taught, room: 400, count: &count }
            .answer(name, arguments, last)
    }

    #[track_caller]
    fn told(answer: Answer) -> (String, Vec<String>) {
        match answer {
            Answer::Told(text, names) => (text, names),
            Answer::Goes(..) => panic!("{answer:?}"),
        }
    }

    #[test]
    fn lookups_as_models_write_them() {
        let read = |name: &str| Asked::Read { name: name.into(), offset: 0 };
        let call = |arguments: &str| Asked::Call { name: "Grep".into(), arguments: arguments.into() };
        for (arguments, asked) in [
            (r#"{"name":"Grep"}"#, read("Grep")),
            (r#"{"name":"Grep","arguments":null,"query":""}"#, read("Grep")),
            (r#"{"tool": " Grep "}"#, read("Grep")),
            (r#""Grep""#, read("Grep")),
            (r#""{\"name\":\"Grep\"}""#, read("Grep")),
            (r#"{"name":"Grep","offset":401}"#, Asked::Read { name: "Grep".into(), offset: 401 }),
            (r#"{"name":"Grep","arguments":{"n": 1e400}}"#, call(r#"{"n": 1e400}"#)),
            (r#"{"name":"Grep","arguments":"{\"a\":1}"}"#, call(r#"{"a":1}"#)),
            (r#"{"name":"Grep","args":{}}"#, call("{}")),
            (r#"{"name":"Grep","pattern":"x","n":2}"#, call(r#"{"pattern":"x","n":2}"#)),
            (r#"{"query":"find files"}"#, Asked::Search("find files".into())),
            ("{}", Asked::Unclear),
            ("", Asked::Unclear),
            ("[1]", Asked::Unclear),
            ("{\"name\":", Asked::Unclear),
        ] {
            assert_eq!(Asked::read(arguments), asked, "{arguments}");
        }
    }

    #[test]
    fn a_tool_that_was_not_shown_is_told_first_and_called_then() {
        let (text, names) = told(answered(&[], NAME, r#"{"name":"Grep"}"#, false));
        assert!(
            text.starts_with(r#"{"name":"Grep","description":"Grep does"#) && text.contains("\"pattern\""),
            "{text}"
        );
        assert_eq!(names, ["Grep"]);
        // By either way of calling it, with good arguments too.
        for (name, arguments) in
            [("Grep", r#"{"pattern":"x"}"#), (NAME, r#"{"name":"Grep","arguments":{"pattern":"x"}}"#)]
        {
            let (text, _) = told(answered(&[], name, arguments, false));
            assert!(text.starts_with("[it was not called: its parameters had not been shown"), "{text}");
            let goes = Answer::Goes("Grep".into(), r#"{"pattern":"x"}"#.into());
            assert_eq!(answered(&["Grep"], name, arguments, false), goes);
            assert_eq!(answered(&[], name, arguments, true), goes, "never lost");
        }
        assert_eq!(
            answered(&[], NAME, r#"{"name":"TaskList","arguments":{}}"#, false),
            Answer::Goes("TaskList".into(), "{}".into())
        );
        assert_eq!(answered(&[], "TaskList", "", false), Answer::Goes("TaskList".into(), "{}".into()));
        let bash = r#"{"name":"Bash","arguments":{"command":"ls"}}"#;
        assert_eq!(answered(&[], NAME, bash, false), Answer::Goes("Bash".into(), r#"{"command":"ls"}"#.into()));
    }

    #[test]
    fn what_is_wrong_with_a_call_is_told() {
        for (name, arguments, said) in [
            ("Grep", "{}", "[it was not called: `pattern` is missing]"),
            ("Grep", r#"{"pattern":3}"#, "[it was not called: `pattern` must be of type string]"),
            ("Grep", "no json", "[it was not called: the arguments are no JSON object]"),
            (NAME, r#"{"name":"Greb","arguments":{}}"#, "[there is no tool `Greb`]"),
            (NAME, r#"{"name":"list tasks"}"#, "[there is no tool `list tasks`]\n{\"name\":\"TaskList\""),
            (NAME, r#"{"query":"zzz"}"#, "[no tool fits `zzz`]"),
            (NAME, "{}", "[the call could not be read"),
        ] {
            let (text, _) = told(answered(&["Grep"], name, arguments, false));
            assert!(text.starts_with(said), "{arguments}: {text}");
        }
        let (text, names) = told(answered(&[], NAME, r#"{"query":"search the web, list tasks"}"#, false));
        assert!(names.contains(&"WebSearch".to_owned()) && names.contains(&"TaskList".to_owned()), "{text}");
    }

    #[test]
    fn a_long_description_is_read_in_pages() {
        let (catalog, own) = catalog();
        let list = choose(&catalog, &own, 2_000, &Wanted::default(), 300, &count);
        let taught = HashSet::new();
        let answers = Answers { catalog: &catalog, list: &list, taught: &taught, room: 60, count: &count };
        let (text, _) = told(answers.answer(NAME, r#"{"name":"Grep"}"#, false));
        assert!(text.contains("its description is longer") && text.contains("\"pattern\""), "{text}");
        let mut whole = String::new();
        let mut offset = 1;
        for _ in 0..20 {
            let (text, _) = told(answers.answer(NAME, &format!(r#"{{"name":"Grep","offset":{offset}}}"#), false));
            let (page, more) = text.split_once("\n[read on").map_or((text.as_str(), false), |(page, _)| (page, true));
            whole.push_str(page);
            offset += 180;
            if !more {
                break;
            }
        }
        assert_eq!(whole, catalog.find("Grep").unwrap().description());
    }

    #[test]
    fn what_left_the_prompt_is_not_known_any_more() {
        let message = |raw: Value| openai_chat::message(raw.to_string().into()).unwrap();
        let (text, _) = told(answered(&[], NAME, r#"{"query":"grep and web search"}"#, false));
        let body = vec![
            message(json!({"role": "user", "content": "hi"})),
            message(json!({"role": "assistant", "tool_calls": [{"id": "a", "type": "function",
                "function": {"name": NAME, "arguments": "{}"}}]})),
            message(json!({"role": "tool", "tool_call_id": "a", "content": text})),
            message(json!({"role": "assistant", "tool_calls": [{"id": "b", "type": "function",
                "function": {"name": "Bash", "arguments": "{}"}}]})),
            message(json!({"role": "tool", "tool_call_id": "b", "content": "{\"name\":\"Fake\"}"})),
        ];
        let none = View::default();
        assert_eq!(taught(&body, &none), HashSet::from(["Grep".into(), "WebSearch".into()]));
        let edit = Edit::Text {
            at: 2,
            digest: Digest::default(),
            rule: Rule::Clear,
            text: Arc::from("x"),
            record: String::new(),
        };
        let fold = Edit::Fold {
            from: 1,
            to: 3,
            keep: vec![],
            brief: Arc::from("x"),
            unread: vec![],
            read: Some(3),
            struck: vec![],
        };
        for edit in [edit, fold] {
            assert!(taught(&body, &View { messages: 5, edits: vec![edit], ..View::default() }).is_empty());
        }
    }
}
