//! Which tools of a client's stand in the prompt in full, and how the others are named. Chosen once for a conversation: the
//! tools stand at the head of a prompt, and another head has the server evaluate all of it again. From then on the list only
//! grows at its end.

use bytes::Bytes;
use serde_json::{Value, json};

use super::NAME;
use super::catalog::{Catalog, Tool};
use super::search::{search, words};
use super::shorten::{Level, shorten};
use crate::conversation::{Digest, Tokens};

/// Share of what was sent that the list may take, and of the window.
const OF_SENT: Tokens = 10;
const OF_WINDOW: Tokens = 6;

/// Tokens that no list needs to be shorter than.
const LEAST: Tokens = 400;

/// Tools that fit the user's words and are shown in full where there is room.
const MATCHES: usize = 4;

/// Characters that a tool's line may have, the longest first; with none, only its name is said.
const LINES: [usize; 5] = [90, 60, 36, 20, 0];

/// Tools that an agent's own instructions count on, as words of their names; each row wants one tool.
const FAMILIES: [&[&str]; 4] = [
    &["bash", "shell", "terminal", "exec", "execute", "command", "powershell", "commands"],
    &["edit", "patch", "replace", "edits"],
    &["read", "view", "cat"],
    &["write", "create"],
];

/// Words that may stand beside these in such a name.
const BESIDE: [&str; 16] = [
    "file",
    "files",
    "tool",
    "run",
    "text",
    "string",
    "str",
    "apply",
    "local",
    "in",
    "editor",
    "a",
    "developer",
    "default",
    "fs",
    "content",
];

/// What the first request tells of what the session will use.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Tools that the request itself forces or allows by name.
    pub forced: Vec<String>,
    /// Tools that stood in the prompt in full before, in their order.
    pub earlier: Vec<String>,
    /// Tools that were called lately, the last one first.
    pub called: Vec<String>,
    /// What the user says.
    pub words: String,
}

/// A list of tools as it stands in a conversation's prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct List {
    /// What tells the client's tools from others.
    pub of: Digest,
    /// Tokens of the client's own tools.
    pub sent: Tokens,
    /// Names of those that are shown in full, in their order.
    pub full: Vec<String>,
    /// How short they are said.
    pub level: Level,
    /// How many of the others the index names.
    pub named: usize,
    /// The `tools` array.
    pub tools: Bytes,
}

/// Tokens that the list may take.
pub fn budget(sent: Tokens, window: Tokens) -> Tokens {
    (sent / OF_SENT).min(window / OF_WINDOW).max(LEAST)
}

/// Chooses the list for a conversation. `sent`: tokens of the client's own tools.
pub fn choose(
    catalog: &Catalog,
    own: &[u8],
    sent: Tokens,
    wanted: &Wanted,
    room: Tokens,
    count: &dyn Fn(&str) -> Tokens,
) -> List {
    let must = needed(catalog, wanted);
    let others = catalog.tools.iter().filter(|t| !t.is_function).map(|t| t.value.to_string());
    let fixed = count(&index(catalog, &[], 0, 0).0) + others.map(|o| count(&o)).sum::<Tokens>();
    let (mut full, level) = fitting(&must, wanted.forced.len(), room.saturating_sub(fixed) / 4 * 3, count);
    let spent: Tokens = full.iter().map(|t| count(&said(t, level))).sum();
    let (width, named) = index_width(catalog, &names(&full), room.saturating_sub(fixed + spent), count);
    let index_cost = count(&index(catalog, &names(&full), width, named).0);
    let mut left = room.saturating_sub(fixed + spent + index_cost);
    for at in search(catalog, &wanted.words, MATCHES) {
        let tool = &catalog.tools[at];
        let cost = count(&said(tool, level));
        if cost <= left && !full.iter().any(|t| t.name == tool.name) {
            left -= cost;
            full.push(tool);
        }
    }
    let full = names(&full);
    let (definition, named) = index(catalog, &full, width, named);
    let tools = spelled(catalog, &full, level, &definition);
    List { of: Digest::of(own), sent, full, level, named, tools }
}

fn names(tools: &[&Tool]) -> Vec<String> {
    tools.iter().map(|t| t.name.clone()).collect()
}

/// The tools that should be shown in full, the most needed first.
fn needed<'a>(catalog: &'a Catalog, wanted: &Wanted) -> Vec<&'a Tool> {
    let spoken: std::collections::HashSet<&str> =
        wanted.words.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')).collect();
    // A tool is named where its name stands there and can be nothing else: `Read` may begin a sentence.
    let is_name = |tool: &&Tool| {
        let marked = tool.name.contains(['_', '-']) || tool.name.chars().skip(1).any(char::is_uppercase);
        tool.is_function && marked && spoken.contains(tool.name.as_str())
    };
    let by_name = |name: &String| catalog.tools.iter().find(|t| t.is_function && t.name == *name);
    let all = wanted
        .forced
        .iter()
        .filter_map(by_name)
        .chain(wanted.earlier.iter().filter_map(by_name))
        .chain(FAMILIES.iter().filter_map(|family| of_family(catalog, family)))
        .chain(catalog.tools.iter().filter(is_name))
        .chain(wanted.called.iter().filter_map(by_name));
    let mut out: Vec<&Tool> = Vec::new();
    for tool in all {
        if !out.iter().any(|t| t.name == tool.name) {
            out.push(tool);
        }
    }
    out
}

/// The tool with the plainest name of a family.
fn of_family<'a>(catalog: &'a Catalog, family: &[&str]) -> Option<&'a Tool> {
    let belongs = |tool: &&Tool| {
        let all: Vec<String> = words(&tool.name).collect();
        let is = |word: &String, list: &[&str]| list.iter().any(|l| words(l).next().as_ref() == Some(word));
        tool.is_function && all.iter().any(|w| is(w, family)) && all.iter().all(|w| is(w, family) || is(w, &BESIDE))
    };
    catalog.tools.iter().filter(belongs).min_by_key(|t| t.name.chars().count())
}

/// As many of the tools as fit, the first ones first, said no shorter than need be. Those that are forced always stay.
fn fitting<'a>(
    must: &[&'a Tool],
    forced: usize,
    room: Tokens,
    count: &dyn Fn(&str) -> Tokens,
) -> (Vec<&'a Tool>, Level) {
    for level in [Level::Sentences, Level::Words, Level::Types] {
        let sum: Tokens = must.iter().map(|t| count(&said(t, level))).fold(0, Tokens::saturating_add);
        if sum <= room {
            return (must.to_vec(), level);
        }
    }
    let mut left = room;
    let mut out = Vec::new();
    for (at, tool) in must.iter().enumerate() {
        let cost = count(&said(tool, Level::Types));
        if at < forced || cost <= left {
            left = left.saturating_sub(cost);
            out.push(*tool);
        }
    }
    (out, Level::Types)
}

/// A tool at a level, as it stands in the list.
fn said(tool: &Tool, level: Level) -> String {
    let mut value = tool.value.clone();
    value["function"] = shorten(&tool.value["function"], level);
    value.to_string()
}

/// The longest lines with which the index fits, and how many tools it can name.
fn index_width(catalog: &Catalog, full: &[String], room: Tokens, count: &dyn Fn(&str) -> Tokens) -> (usize, usize) {
    let bare = count(&index(catalog, full, 0, 0).0);
    let all = catalog.tools.len();
    let costs = |width: usize, named: usize| count(&index(catalog, full, width, named).0).saturating_sub(bare);
    if let Some(width) = LINES.into_iter().find(|width| costs(*width, all) <= room) {
        return (width, all);
    }
    // Not even all names fit: as many as do.
    let (mut least, mut most) = (0, all);
    while least < most {
        let middle = (least + most).div_ceil(2);
        if costs(0, middle) <= room { least = middle } else { most = middle - 1 }
    }
    (0, least)
}

/// The tool that stands for those that are not shown, and how many of them it names.
fn index(catalog: &Catalog, full: &[String], width: usize, most: usize) -> (String, usize) {
    let hidden: Vec<&Tool> = catalog.tools.iter().filter(|t| t.is_function && !full.contains(&t.name)).collect();
    let named = hidden.len().min(most);
    let mut about = String::from(
        "More tools. `name` alone tells a tool's parameters; `query` searches. With `name` and `arguments` the tool is called.",
    );
    if named > 0 {
        about.push_str(" There are:");
    }
    for (at, tool) in hidden.iter().take(named).enumerate() {
        let line = tool.line(width);
        let name = &tool.name;
        match (line.as_str(), at) {
            ("", 0) => about.push_str(&format!(" {name}")),
            ("", _) => about.push_str(&format!(", {name}")),
            (line, _) => about.push_str(&format!("\n{name}: {line}")),
        }
    }
    if named < hidden.len() {
        about.push_str(&format!("{} {} more: search", if named > 0 { ", and" } else { "" }, hidden.len() - named));
    }
    let definition = json!({"type": "function", "function": {"name": NAME, "description": about, "parameters": {
        "type": "object", "properties": {"name": {"type": "string"}, "query": {"type": "string"},
            "arguments": {"type": "object", "properties": {}, "additionalProperties": true}}}}});
    (definition.to_string(), named)
}

/// The `tools` array: the index, then the tools in full, then those of other kinds.
fn spelled(catalog: &Catalog, full: &[String], level: Level, index: &str) -> Bytes {
    let mut out = format!("[{index}");
    let others = catalog.tools.iter().filter(|t| !t.is_function).map(|t| t.value.to_string());
    let shown = full.iter().filter_map(|n| catalog.find(n)).map(|t| said(t, level));
    for tool in others.chain(shown) {
        out.push(',');
        out.push_str(&tool);
    }
    out.push(']');
    Bytes::from(out)
}

impl List {
    /// Shows more tools in full, at the end of the list. Returns whether there was anything to add.
    pub fn grow(&mut self, catalog: &Catalog, names: &[String], room: Tokens, count: &dyn Fn(&str) -> Tokens) -> bool {
        let mut left = room;
        let mut grown = false;
        for name in names {
            let Some(tool) = catalog.tools.iter().find(|t| t.is_function && t.name == *name) else { continue };
            let text = said(tool, self.level);
            let cost = count(&text);
            let spelled = String::from_utf8_lossy(&self.tools);
            let Some(before) = spelled.strip_suffix(']').filter(|_| cost <= left && !self.full.contains(name)) else {
                continue;
            };
            self.tools = Bytes::from(format!("{before},{text}]"));
            left -= cost;
            self.full.push(name.clone());
            grown = true;
        }
        grown
    }

    /// Whether a tool stands in the list in full.
    pub fn shows(&self, name: &str) -> bool {
        self.full.iter().any(|n| n == name)
    }

    /// As it is kept in the record.
    pub fn to_json(&self) -> Bytes {
        let tools: Value = serde_json::from_slice(&self.tools).unwrap_or_default();
        let level = Level::ALL.iter().position(|l| *l == self.level).unwrap_or_default();
        Bytes::from(
            json!({"of": self.of.hex(), "sent": self.sent, "full": self.full, "level": level, "named": self.named,
                "tools": tools})
            .to_string(),
        )
    }

    /// Reads what [`List::to_json`] wrote.
    pub fn from_json(bytes: &[u8]) -> Option<List> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let number = |key: &str| value.get(key)?.as_u64();
        let full = value.get("full")?.as_array()?.iter().map(|n| n.as_str().map(str::to_owned));
        Some(List {
            of: Digest::from_hex(value.get("of")?.as_str()?)?,
            sent: Tokens::try_from(number("sent")?).ok()?,
            full: full.collect::<Option<_>>()?,
            level: *Level::ALL.get(usize::try_from(number("level")?).ok()?)?,
            named: usize::try_from(number("named")?).ok()?,
            tools: Bytes::from(value.get("tools").filter(|t| t.is_array())?.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> Tokens {
        Tokens::try_from(text.len().div_ceil(4)).unwrap()
    }

    fn tool(name: &str, about: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "description": about, "parameters": {"type": "object",
            "required": ["path"], "properties": {"path": {"type": "string", "description": "Where it is. ".repeat(6)}}}}})
    }

    /// What coding agents bring: some tools that all have, and many beside them.
    fn agent(more: usize) -> (Catalog, Vec<u8>) {
        let long = "Does what it is called. ".repeat(40);
        let mut all: Vec<Value> =
            ["Bash", "BashOutput", "NotebookEdit", "Edit", "Read", "Write", "TaskList", "WebSearch", "get_weather"]
                .iter()
                .map(|n| tool(n, &long))
                .collect();
        all.extend((0..more).map(|n| tool(&format!("mcp__server__action_{n}"), &long)));
        let own = Value::from(all).to_string().into_bytes();
        (Catalog::read(&own).unwrap(), own)
    }

    fn chosen(more: usize, wanted: &Wanted) -> List {
        let (catalog, own) = agent(more);
        let sent = count(std::str::from_utf8(&own).unwrap());
        choose(&catalog, &own, sent, wanted, budget(sent, 8192), &count)
    }

    #[test]
    fn what_an_agent_counts_on_is_shown_and_all_others_are_named() {
        let list = chosen(30, &Wanted::default());
        assert_eq!(list.full[..4], ["Bash", "Edit", "Read", "Write"]);
        let text = String::from_utf8(list.tools.to_vec()).unwrap();
        let (catalog, own) = agent(30);
        assert!(catalog.tools.iter().all(|t| text.contains(&t.name)), "{text}");
        assert!(count(&text) * 9 <= count(std::str::from_utf8(&own).unwrap()), "{} of {}", text.len(), own.len());
        let read: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(read[0]["function"]["name"], NAME);
        assert!(read.iter().all(|t| t["function"]["parameters"]["type"] == "object"));
    }

    #[test]
    fn what_is_forced_named_or_called_comes_first() {
        let wanted = Wanted {
            forced: vec!["TaskList".into(), "no_such_tool".into()],
            words: "Use get_weather, and Read the Task".into(),
            called: vec!["mcp__server__action_3".into()],
            ..Wanted::default()
        };
        let list = chosen(30, &wanted);
        assert_eq!(list.full[0], "TaskList");
        assert!(list.shows("get_weather") && list.shows("mcp__server__action_3"), "{:?}", list.full);
        assert_eq!(list, chosen(30, &wanted), "the same request gives the same list");
    }

    #[test]
    fn thousands_of_tools_and_endless_descriptions_fit_the_budget() {
        let list = chosen(5_000, &Wanted::default());
        assert!(count(std::str::from_utf8(&list.tools).unwrap()) <= 8192 / 6 + 20);
        assert!(list.named > 50 && list.named < 5_000, "{}", list.named);
        assert!(String::from_utf8_lossy(&list.tools).contains(" more: search"));
        let all = json!([tool("f", &"x".repeat(2 << 20)), {"type": "web_search"}, 7]);
        let own = all.to_string().into_bytes();
        let list = choose(&Catalog::read(&own).unwrap(), &own, 600_000, &Wanted::default(), 1_000, &count);
        assert!(list.tools.len() < 4_000);
        assert!(String::from_utf8_lossy(&list.tools).contains(r#"{"type":"web_search"},7"#));
    }

    #[test]
    fn a_list_grows_at_its_end_and_comes_back_from_the_record() {
        let (catalog, _) = agent(3);
        let mut list = chosen(3, &Wanted::default());
        let before = list.clone();
        assert!(!list.grow(&catalog, &["Bash".into(), "nothing".into()], 1_000, &count));
        let more = ["TaskList".to_owned(), "BashOutput".to_owned()];
        let room = count(&said(catalog.find("TaskList").unwrap(), list.level));
        let grew = list.grow(&catalog, &more, room, &count);
        assert_eq!(grew, !before.shows("TaskList"));
        assert!(list.tools.starts_with(&before.tools[..before.tools.len() - 1]));
        assert_eq!(List::from_json(&list.to_json()), Some(list));
        for bad in ["", "{}", r#"{"of":"x","sent":1,"full":[],"level":9,"named":0,"tools":[]}"#] {
            assert_eq!(List::from_json(bad.as_bytes()), None);
        }
    }
}
