//! `tools` and `tool_choice`: what the model may call, as functions, each under a name of its own.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::super::super::WireError;
use super::super::super::json as spelling;
use super::super::super::names::{LONGEST, ending};
use super::calls::Form;
use super::{given, list_if};

/// What a call must say of its tool besides the name that the model knows, so that the client knows it again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Special {
    pub(super) form: Form,
    /// The group it came in. Codex looks a tool up by both names.
    pub(super) namespace: Option<String>,
    /// The name that the client gave it.
    pub(super) name: String,
}

/// The tools of a request in the words of chat completions.
pub(super) struct Offered {
    pub(super) chat: Vec<Value>,
    pub(super) choice: Option<Value>,
    /// The tools that are not just functions of this name, by the name that the model knows.
    pub(super) special: HashMap<String, Special>,
}

/// The tools that a request offers, in its `tools` and in its history.
#[derive(Default)]
pub(super) struct Tools {
    list: Vec<Tool>,
    /// Where in `list` a tool stands.
    at: HashMap<Special, usize>,
    /// The names that the model knows.
    names: HashSet<String>,
    /// The types of those that run elsewhere and are not offered.
    pub(super) left_out: Vec<String>,
    /// The labels of MCP servers among these.
    mcp: Vec<String>,
}

struct Tool {
    special: Special,
    /// The name that the model knows.
    name: String,
    /// `function` of a tool in chat completions, without the name.
    function: Map<String, Value>,
}

impl Tools {
    /// Reads `tools`, and the tools that the history brought. What has no name is left out: servers pass over it, too.
    pub(super) fn read(fields: &Map<String, Value>, brought: &[Value]) -> Result<Tools, WireError> {
        let mut tools = Tools::default();
        for list in [list_if(fields, "", "tools")?, brought] {
            tools.add(list, None);
        }
        tools.name_all();
        Ok(tools)
    }

    /// Adds the tools of a list. The same one, by its group and its name, counts once: the first time.
    fn add(&mut self, list: &[Value], namespace: Option<&str>) {
        for tool in list {
            let text = |key: &str| tool.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
            let kind = text("type").unwrap_or_default();
            if let ("namespace", None, Some(name)) = (kind, namespace, text("name")) {
                self.add(tool["tools"].as_array().map_or(&[], Vec::as_slice), Some(name));
                continue;
            }
            // In chat completions a function lies one level deeper, and some clients write it so here.
            let tool = tool.get("function").filter(|inner| kind == "function" && inner.is_object()).unwrap_or(tool);
            let form = Form::of_tool(kind).filter(|form| runs_here(*form, tool));
            let name =
                form.and_then(|form| form.name().or_else(|| tool.get("name")?.as_str().filter(|n| !n.is_empty())));
            let (Some(form), Some(name)) = (form, name) else {
                self.mcp.extend(text("server_label").filter(|_| kind == "mcp").map(str::to_owned));
                self.left_out.push(if form.is_some() { "nameless".into() } else { kind.to_owned() });
                continue;
            };
            let function = match form.schema() {
                Some((about, parameters)) => described(Some(about), parameters),
                None if form == Form::Custom => free(tool),
                None => function(tool),
            };
            let special = Special { form, namespace: namespace.map(str::to_owned), name: name.to_owned() };
            if !self.at.contains_key(&special) {
                self.at.insert(special.clone(), self.list.len());
                self.list.push(Tool { special, name: String::new(), function });
            }
        }
    }

    /// Gives each tool a name that no other has: its own where it can be. A chat completion has no namespaces, so the tools
    /// without one come first, and of several in namespaces the first keeps its bare name.
    fn name_all(&mut self) {
        let rank = |tool: &Tool| match (&tool.special.namespace, tool.special.form) {
            (None, Form::Function | Form::Custom) => 0,
            (None, _) => 1,
            (Some(_), _) => 2,
        };
        for turn in 0..3 {
            for tool in self.list.iter_mut().filter(|tool| rank(tool) == turn) {
                let Special { namespace, name, form } = &tool.special;
                let mut named = name.clone();
                if let (true, Some(namespace)) = (self.names.contains(&named), namespace) {
                    named = qualified(namespace, name);
                }
                if self.names.contains(&named) || named.len() > LONGEST {
                    named = ending(&named, &format!("{form:?}\0{namespace:?}\0{name}"), LONGEST);
                }
                let mut nth = 2;
                while !self.names.insert(named.clone()) {
                    named = ending(&named, &nth.to_string(), LONGEST);
                    nth += 1;
                }
                tool.name = named;
            }
        }
    }

    /// The name by which the model knows a tool that the history calls.
    pub(super) fn called(&self, special: &Special) -> String {
        if let Some(at) = self.at.get(special) {
            return self.list[*at].name.clone();
        }
        match &special.namespace {
            // Of another group than the tool that has the name now.
            Some(namespace) if self.names.contains(&special.name) => qualified(namespace, &special.name),
            _ => special.name.clone(),
        }
    }

    /// MCP servers that the client wants connected to, by their labels, but for those that are `told`.
    pub(super) fn unreached(&self, told: &[String]) -> Vec<String> {
        let mut labels: Vec<String> = self.mcp.iter().filter(|label| !told.contains(label)).cloned().collect();
        labels.sort();
        labels.dedup();
        labels
    }

    /// The tools as the request wants them, with its `tool_choice`. A call that cannot be had here is no reason to refuse the
    /// request: servers that speak this dialect themselves pass over such a choice, too. It is told.
    pub(super) fn offered(mut self, fields: &Map<String, Value>, warnings: &mut Vec<String>) -> Offered {
        let choice = match given(fields, "tool_choice") {
            None => None,
            // A word that nobody here knows is the server's to judge.
            Some(Value::String(mode)) => Some(Value::from(mode.as_str())),
            Some(choice) if choice["type"] == "allowed_tools" => {
                let tools = choice["tools"].as_array().map_or(&[][..], Vec::as_slice);
                let allowed: HashSet<String> = tools.iter().flat_map(|tool| self.chosen(tool)).collect();
                self.list.retain(|tool| allowed.contains(&tool.name));
                Some(if choice["mode"] == "required" { "required" } else { "auto" }.into())
            }
            Some(choice) => match self.chosen(choice).into_iter().next() {
                Some(name) => Some(json!({"type": "function", "function": {"name": name}})),
                None => {
                    warnings.push("tool_choice asks for a tool that is not offered here: it is left out".into());
                    None
                }
            },
        };
        let none_to_call = self.list.is_empty() && choice.as_ref().is_some_and(|choice| choice == "required");
        if none_to_call {
            warnings.push("tool_choice asks for a call, and no tool is offered here: it is left out".into());
        }
        self.into_offered(choice.filter(|_| !none_to_call))
    }

    fn into_offered(self, choice: Option<Value>) -> Offered {
        let mut out = Offered { chat: Vec::new(), choice, special: HashMap::new() };
        for Tool { special, name, function } in self.list {
            let mut named = Map::from_iter([("name".to_owned(), name.as_str().into())]);
            named.extend(function);
            out.chat.push(spelling::object([("type", "function".into()), ("function", named.into())]));
            let plain = Special { name: name.clone(), ..Special::default() };
            if special != plain {
                out.special.insert(name, special);
            }
        }
        out
    }

    /// The names of the tools that a reference means: one, or those of a namespace. None of what runs elsewhere.
    fn chosen(&self, choice: &Value) -> Vec<String> {
        let text = |key: &str| choice.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let (kind, group) = (text("type").unwrap_or_default(), text("namespace"));
        // In chat completions the name lies one level deeper, and some clients write it so here.
        let named = text("name").or_else(|| choice.get("function")?.get("name")?.as_str());
        let form = Form::of_tool(kind);
        let own = match form {
            Some(form) => form.name().or(named),
            None => named.filter(|_| kind == "namespace"),
        };
        let Some(own) = own else { return Vec::new() };
        let means = |tool: &&Tool| match form {
            None => tool.special.namespace.as_deref() == Some(own),
            Some(form) if form.name().is_some() => tool.special.form.name() == Some(own),
            Some(_) => {
                tool.special.name == own && (group.is_none() || tool.special.namespace.as_deref() == group)
                    || tool.name == own && group.is_none()
            }
        };
        let mut found: Vec<&Tool> = self.list.iter().filter(means).collect();
        // A bare name is first of all that of the tool which the model knows by it.
        found.sort_by_key(|tool| tool.name != own);
        if form.is_some() {
            found.truncate(1);
        }
        found.into_iter().map(|tool| tool.name.clone()).collect()
    }
}

/// Whether a tool of this form is run by the client. A search for tools, and a shell in a container, may be OpenAI's.
fn runs_here(form: Form, tool: &Value) -> bool {
    match form {
        Form::ToolSearch => tool.get("execution").is_some_and(|by| by == "client"),
        Form::Shell => {
            let environment = tool.get("environment").and_then(|at| at.get("type")).and_then(Value::as_str);
            environment.is_none_or(|kind| kind == "local")
        }
        _ => true,
    }
}

/// A name that says the group, too.
fn qualified(namespace: &str, name: &str) -> String {
    let usual = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let whole: String = format!("{namespace}__{name}").chars().map(usual).collect();
    if whole.len() <= LONGEST { whole } else { ending(&whole, &format!("{namespace}\0{name}"), LONGEST) }
}

fn described(about: Option<&str>, parameters: Value) -> Map<String, Value> {
    let mut out = Map::new();
    if let Some(about) = about {
        out.insert("description".into(), about.into());
    }
    out.insert("parameters".into(), parameters);
    out
}

fn function(tool: &Value) -> Map<String, Value> {
    // Many templates look into the parameters without asking whether there are any.
    let parameters = tool.get("parameters").filter(|schema| schema.is_object()).cloned();
    let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    let mut out = described(tool.get("description").and_then(Value::as_str), parameters);
    if let Some(strict) = tool.get("strict").filter(|strict| !strict.is_null()) {
        out.insert("strict".into(), strict.clone());
    }
    out
}

/// A tool that takes free text, as a function of one string. A grammar cannot be enforced; the model can read it.
fn free(tool: &Value) -> Map<String, Value> {
    let mut input = json!({"type": "string"});
    let format = |key: &str| tool.get("format")?.get(key)?.as_str();
    if let Some(grammar) = format("definition") {
        let syntax = format("syntax").unwrap_or("the");
        input["description"] = format!("Text of this {syntax} grammar:\n{grammar}").into();
    }
    let parameters = json!({"type": "object", "properties": {"input": input}, "required": ["input"]});
    described(tool.get("description").and_then(Value::as_str), parameters)
}
