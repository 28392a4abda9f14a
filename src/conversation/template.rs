//! Chat template + messages → prompt text, as the inference server would render it: for counting, and for the embedded
//! engine. Jinja as Hugging Face's `apply_chat_template` runs it, with llama.cpp's repairs of the messages before.
//!
//! Never reads a clock (a template that asks for the date gets [`Options::now`]) and never runs away: a template that
//! loops is stopped and is an error.

use std::sync::LazyLock;

use minijinja::value::{Kwargs, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use regex::Regex;
use serde_json::{Map, Value, json};

/// Instructions that one rendering may take. A long session in the most laborious of the known templates takes some
/// millions; this many take a second or two.
const FUEL: u64 = 40_000_000;

/// Instructions that a trial rendering may take.
const TRIAL_FUEL: u64 = 1_000_000;

/// Name of the one template in its environment.
const NAME: &str = "chat_template";

/// Why a template gave no prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template is not Jinja, or uses what we do not know.
    #[error("the chat template cannot be read: {0}")]
    Syntax(String),
    /// The template itself refused the messages, with `raise_exception`.
    #[error("the chat template refuses the messages: {0}")]
    Raised(String),
    /// Rendering went wrong.
    #[error("the chat template failed: {0}")]
    Render(String),
    /// Rendering took too long and was stopped.
    #[error("the chat template did not come to an end")]
    Endless,
}

/// What a rendering depends on besides messages and tools.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Whether the prompt ends with the words that begin the assistant's reply.
    pub add_generation_prompt: bool,
    /// Text of the token that begins a prompt.
    pub bos_token: String,
    /// Text of the token that ends a turn.
    pub eos_token: String,
    /// `chat_template_kwargs` of the request: further variables, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
    /// What `strftime_now` tells, in seconds since 1970, UTC.
    pub now: i64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            add_generation_prompt: true,
            bos_token: String::new(),
            eos_token: String::new(),
            kwargs: Map::new(),
            now: 0,
        }
    }
}

/// What shape of messages a template understands, found by trying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// A plain string as content is rendered.
    pub string_content: bool,
    /// Content as an array of parts is rendered.
    pub typed_content: bool,
    /// A leading system message is rendered.
    pub system_role: bool,
    /// Arguments of calls must be objects; otherwise they are passed as the client spelled them.
    pub object_arguments: bool,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct Template {
    env: Environment<'static>,
    caps: Caps,
}

impl Template {
    /// Compiles a template and finds out what it understands.
    pub fn new(source: &str) -> Result<Template, TemplateError> {
        let mut env = environment();
        env.add_template_owned(NAME, prepared(source)).map_err(|e| TemplateError::Syntax(say(&e)))?;
        let caps = Caps { string_content: true, typed_content: false, system_role: true, object_arguments: true };
        let mut template = Template { env, caps };
        template.env.set_fuel(Some(TRIAL_FUEL));
        template.caps = template.probe();
        template.env.set_fuel(Some(FUEL));
        Ok(template)
    }

    /// What the template understands.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Renders messages (in OpenAI's chat shape) and tool definitions into the prompt.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        options: &Options,
    ) -> Result<String, TemplateError> {
        self.render_as_is(&self.normalized(messages), tools, options)
    }

    /// Renders a whole chat request (OpenAI's shape) as llama-server does: messages, tools, and what else of it the template sees.
    pub fn render_request(&self, request: &Value, options: &Options) -> Result<String, TemplateError> {
        let messages = request["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let mut options = options.clone();
        if let Some(kwargs) = request["chat_template_kwargs"].as_object() {
            options.kwargs.extend(kwargs.clone());
        }
        self.render(messages, request.get("tools"), &options)
    }

    fn render_as_is(&self, messages: &[Value], tools: Option<&Value>, o: &Options) -> Result<String, TemplateError> {
        let mut context: Map<String, Value> = Map::new();
        let tools = tools.filter(|t| t.as_array().is_none_or(|a| !a.is_empty()));
        // What llama.cpp gives Firefunction's template.
        context.insert("datetime".into(), Value::String(strftime(o.now, "%b %d %Y %H:%M:%S GMT")));
        context.insert("functions".into(), Value::String(tools.map(spell).unwrap_or_default()));
        context.extend(o.kwargs.clone());
        context.insert("messages".into(), Value::Array(messages.to_vec()));
        context.insert("tools".into(), tools.cloned().unwrap_or(Value::Null));
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), Value::Bool(o.add_generation_prompt));
        context.insert("bos_token".into(), Value::String(o.bos_token.clone()));
        context.insert("eos_token".into(), Value::String(o.eos_token.clone()));
        context.insert(NOW.into(), Value::from(o.now));
        let template = self.env.get_template(NAME).map_err(|e| TemplateError::Syntax(say(&e)))?;
        template.render(Jinja::from_serialize(&context)).map_err(|e| failure(&e))
    }

    /// Tries which shapes of messages come out again.
    fn probe(&self) -> Caps {
        const NEEDLE: &str = "<needle>";
        let has = |messages: Value, needle: &str| {
            let messages = messages.as_array().cloned().unwrap_or_default();
            self.render_as_is(&messages, None, &Options::default()).is_ok_and(|text| text.contains(needle))
        };
        let user = |content: Value| json!({"role": "user", "content": content});
        let string_content = has(json!([user(NEEDLE.into())]), NEEDLE);
        let typed_content = has(json!([user(json!([{"type": "text", "text": NEEDLE}]))]), NEEDLE);
        let text = |text: &str| match (string_content, typed_content) {
            (false, true) => json!([{"type": "text", "text": text}]),
            _ => json!(text),
        };
        let call = |arguments: Value| {
            let function = json!({"name": "f", "arguments": arguments});
            json!([
                user(text("u")),
                {"role": "assistant", "content": text(""), "tool_calls": [{"id": "call00001", "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": "call00001", "name": "f", "content": text("r")},
                {"role": "assistant", "content": text("a")},
                user(text("u")),
            ])
        };
        // A string that is quoted once more on its way was taken for something else than JSON.
        let as_string = has(call(json!(r#"{"needle_key": "needle_value"}"#)), r#""needle_key""#);
        let as_object = has(call(json!({"needle_key": "needle_value"})), "needle_value");
        Caps {
            // A template in which neither is found prints no user message alone; strings are the common shape.
            string_content: string_content || !typed_content,
            typed_content,
            system_role: has(json!([{"role": "system", "content": text(NEEDLE)}, user(text("u"))]), NEEDLE),
            object_arguments: as_object || !as_string,
        }
    }

    /// The messages in the shape the template understands.
    fn normalized(&self, messages: &[Value]) -> Vec<Value> {
        let mut out: Vec<Value> = messages.iter().map(|m| self.one(m)).collect();
        if !self.caps.system_role && out.len() > 1 && out[0]["role"] == "system" {
            let system = out.remove(0);
            let joined = format!("{}\n\n{}", text_of(&system["content"]), text_of(&out[0]["content"]));
            out[0]["content"] = self.content(&Value::String(joined));
        }
        out
    }

    fn one(&self, message: &Value) -> Value {
        let mut message = message.clone();
        let Some(fields) = message.as_object_mut() else { return message };
        match fields.get("role").and_then(Value::as_str) {
            Some("developer") => fields.insert("role".into(), json!("system")),
            Some("function") => fields.insert("role".into(), json!("tool")),
            _ => None,
        };
        let content = fields.get("content").unwrap_or(&Value::Null);
        let content = self.content(content);
        fields.insert("content".into(), content);
        if !fields.contains_key("reasoning_content") {
            let other =
                ["reasoning", "thinking"].iter().find_map(|k| fields.get(*k).filter(|v| v.is_string()).cloned());
            fields.extend(other.map(|text| ("reasoning_content".to_owned(), text)));
        }
        if fields.get("tool_calls").is_some_and(|c| c.as_array().is_none_or(Vec::is_empty)) {
            fields.remove("tool_calls");
        }
        for call in fields.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(arguments) = call.get_mut("function").and_then(|f| f.get_mut("arguments")) else { continue };
            let read = arguments.as_str().and_then(|a| serde_json::from_str::<Value>(a).ok());
            match (self.caps.object_arguments, read) {
                (true, Some(object)) => *arguments = object,
                (false, None) if !arguments.is_string() => *arguments = Value::String(spell(arguments)),
                _ => {}
            }
        }
        message
    }

    /// Content as the template wants it: text parts are joined where it wants a string, a string becomes a part where it
    /// wants parts. Media stay where there is a place for them.
    fn content(&self, content: &Value) -> Value {
        let parts = content.as_array();
        let media = parts.is_some_and(|p| p.iter().any(|part| part.get("text").is_none() && !part.is_string()));
        if media && self.caps.typed_content {
            return content.clone();
        }
        let text = text_of(content);
        if self.caps.string_content { json!(text) } else { json!([{"type": "text", "text": text}]) }
    }
}

/// The text of a content: a string, or its text parts joined by line breaks.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let text = |p: &Value| p.as_str().or_else(|| p.get("text").and_then(Value::as_str)).map(str::to_owned);
            parts.iter().filter_map(text).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// The variable that tells `strftime_now` the time.
const NOW: &str = "__now";

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(python_words);
    env.add_filter("tojson", tojson);
    // Nothing is not iterable in Python.
    env.add_test("iterable", |value: &Jinja| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined
        )
    });
    env.add_filter("from_json", |text: &str| {
        let read = serde_json::from_str::<Value>(text);
        read.map(Jinja::from_serialize).map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))
    });
    env.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raise(message)))
    });
    env.add_function("strftime_now", |state: &State<'_, '_>, format: &str| {
        strftime(state.lookup(NOW).and_then(|n| i64::try_from(n).ok()).unwrap_or(0), format)
    });
    env
}

/// Marks an error that `raise_exception` made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raise(String);

fn failure(error: &Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::Endless;
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = source {
        if let Some(Raise(message)) = e.downcast_ref::<Raise>() {
            return TemplateError::Raised(message.clone());
        }
        source = e.source();
    }
    TemplateError::Render(say(error))
}

/// An error with its line, without the template's text.
fn say(error: &Error) -> String {
    match (error.detail(), error.line()) {
        (Some(detail), Some(line)) => format!("{}: {detail} (line {line})", error.kind()),
        (None, Some(line)) => format!("{} (line {line})", error.kind()),
        _ => error.to_string(),
    }
}

/// Rewrites what Hugging Face's Jinja knows and minijinja does not: `{% generation %}` marks the assistant's words for
/// training and changes nothing here; lists in a namespace are changed in place by `append` and `pop(0)`.
fn prepared(source: &str) -> String {
    static RULES: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
        let rule = |pattern: &str| Regex::new(pattern).expect("the pattern is a constant and a test runs it");
        [
            (rule(r"\{%(-?)\s*generation\s*(-?)%\}"), "{%${1} if true ${2}%}"),
            (rule(r"\{%(-?)\s*endgeneration\s*(-?)%\}"), "{%${1} endif ${2}%}"),
            (
                rule(r"\{%(-?)\s*set\s+\w+\s*=\s*(\w+\.\w+)\.append\(([^\n]*?)\)\s*(-?)%\}"),
                "{%${1} set ${2} = ${2} + [${3}] ${4}%}",
            ),
            (
                rule(r"\{%(-?)\s*set\s+(\w+)\s*=\s*(\w+\.\w+)\.pop\(0\)\s*(-?)%\}"),
                "{%${1} set ${2} = ${3}[0] -%}{%- set ${3} = ${3}[1:] ${4}%}",
            ),
        ]
    });
    RULES.iter().fold(source.to_owned(), |text, (pattern, by)| pattern.replace_all(&text, *by).into_owned())
}

/// Prints values as Python does: `True`, `False`, `None`.
fn python_words(out: &mut Output<'_>, state: &State<'_, '_>, value: &Jinja) -> Result<(), Error> {
    let word = match value.kind() {
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        ValueKind::None => "None",
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(word).map_err(|e| Error::new(ErrorKind::WriteFailure, e.to_string()))
}

/// `tojson` as Hugging Face spells it: Python's `json.dumps`, with `ensure_ascii=False` unless asked otherwise.
fn tojson(value: &Jinja, args: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = args.get("indent").ok().flatten();
    let ascii = args.get::<Option<bool>>("ensure_ascii").ok().flatten().unwrap_or(false);
    let sort = args.get::<Option<bool>>("sort_keys").ok().flatten().unwrap_or(false);
    let separators: Option<Vec<String>> = args.get("separators").ok().flatten();
    let mut value = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("no JSON can be made of it: {e}")))?;
    if sort {
        value.sort_all_objects();
    }
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.as_str(), key.as_str()),
        _ if indent.is_some() => (",", ": "),
        _ => (", ", ": "),
    };
    let mut out = String::new();
    Dumps { indent, ascii, item, key }.write(&mut out, &value, 0);
    Ok(out)
}

/// A value as Python's `json.dumps` spells it.
fn spell(value: &Value) -> String {
    let mut out = String::new();
    Dumps { indent: None, ascii: false, item: ", ", key: ": " }.write(&mut out, value, 0);
    out
}

struct Dumps<'a> {
    indent: Option<usize>,
    ascii: bool,
    item: &'a str,
    key: &'a str,
}

impl Dumps<'_> {
    fn write(&self, out: &mut String, value: &Value, depth: usize) {
        match value {
            Value::Array(items) if !items.is_empty() => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    self.line(out, i > 0, depth + 1);
                    self.write(out, item, depth + 1);
                }
                self.line(out, false, depth);
                out.push(']');
            }
            Value::Object(map) if !map.is_empty() => {
                out.push('{');
                for (i, (key, item)) in map.iter().enumerate() {
                    self.line(out, i > 0, depth + 1);
                    self.string(out, key);
                    out.push_str(self.key);
                    self.write(out, item, depth + 1);
                }
                self.line(out, false, depth);
                out.push('}');
            }
            Value::String(text) => self.string(out, text),
            other => out.push_str(&other.to_string()),
        }
    }

    fn line(&self, out: &mut String, again: bool, depth: usize) {
        if again {
            out.push_str(self.item);
        }
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', (indent * depth).min(256)));
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        let quoted = serde_json::to_string(text).unwrap_or_default();
        if !self.ascii {
            out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
        }
    }
}

/// The few conversions of `strftime` that templates use; others stay as they are.
fn strftime(now: i64, format: &str) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, seconds) = (now.div_euclid(86_400), now.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let name = MONTHS[month - 1];
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('B') => out.push_str(name),
            Some('b') => out.push_str(&name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('H') => out.push_str(&format!("{:02}", seconds / 3600)),
            Some('M') => out.push_str(&format!("{:02}", seconds / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", seconds % 60)),
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(other);
            }
        }
    }
    out
}

/// Year, month and day of a number of days since 1970 (Howard Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, usize, i64) {
    let days = days.clamp(-100_000_000, 100_000_000) + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + i64::from(month <= 2), month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: Value) -> Result<String, TemplateError> {
        let options = Options { now: 1_700_000_000, ..Options::default() };
        Template::new(source)?.render(messages.as_array().unwrap(), None, &options)
    }

    #[test]
    fn what_templates_use() {
        let value = json!([{"role": "user", "content": "é <b> 'q'", "x": {"b": [1, 2.5, true, null], "a": {}}}]);
        for (source, expect) in [
            ("{{ messages[0].x | tojson }}", r#"{"b": [1, 2.5, true, null], "a": {}}"#),
            ("{{ messages[0].content | tojson }}", r#""é <b> 'q'""#),
            ("{{ messages[0].content | tojson(ensure_ascii=True) }}", r#""\u00e9 <b> 'q'""#),
            (
                "{{ {'a': [1, {'b': 2}]} | tojson(indent=2) }}",
                "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ]\n}",
            ),
            ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
            ("{{ true }} {{ none }} {{ ' a '.strip() }} {{ 'a-b'.split('-')[1] }}", "True None a b"),
            (
                "{% set ns = namespace(a=0) %}{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
                "3",
            ),
            (
                "{% for k, v in messages[0].x.items() %}{{ k }}{{ v is mapping }} {% endfor %}{{ messages[::-1][0].role }}",
                "bFalse aTrue user",
            ),
            ("{% generation %}{{ messages[0].get('none', 7) }}{%- endgeneration %}", "7"),
            (
                "{% set q = namespace(ids=[]) %}{% for i in range(3) %}{% set _ = q.ids.append(i) %}{% endfor %}{% set first = q.ids.pop(0) %}{{ first }}{{ q.ids }}",
                "0[1, 2]",
            ),
            ("{{ strftime_now('%d %b %Y, %A %H:%M:%S') }}", "14 Nov 2023, Tuesday 22:13:20"),
            ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
            ("{{ '[1, {\"a\": 2}]' | from_json | tojson }}", "[1, {\"a\": 2}]"),
        ] {
            assert_eq!(render(source, value.clone()).as_deref(), Ok(expect), "{source}");
        }
    }

    #[test]
    fn trouble_is_a_value() {
        let hi = json!([{"role": "user", "content": "hi"}]);
        let raised = TemplateError::Raised("roles must alternate".into());
        assert_eq!(render("{{ raise_exception('roles must alternate') }}", hi.clone()), Err(raised));
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        assert_eq!(render(endless, hi.clone()), Err(TemplateError::Endless));
        let syntax = Template::new("{% if %}").unwrap_err();
        assert!(matches!(&syntax, TemplateError::Syntax(e) if e.contains("line 1")), "{syntax}");
        let wrong = render("{{ messages[0].content.no_such_method() }}", hi).unwrap_err();
        assert!(matches!(&wrong, TemplateError::Render(e) if e.contains("no_such_method")), "{wrong}");
    }

    #[test]
    fn messages_get_the_shape_the_template_wants() {
        let call = json!([{"role": "developer", "content": [{"type": "text", "text": "s"}, {"type": "text", "text": "t"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\":1}"}}]}]);
        for (source, expect) in [
            // Strings, objects.
            (
                "{% for m in messages %}{{ m.role }}={{ m.content }};{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
                "system=s\nt;assistant=;{\"a\": 1}",
            ),
            // Parts.
            (
                "{% for m in messages %}{% for p in m.content %}{% if p is mapping %}{{ p.text }}{% endif %}{% endfor %};{% endfor %}",
                "s\nt;;",
            ),
            // Arguments as strings, no system role.
            (
                "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }};{% for c in m.tool_calls %}{{ c.function.arguments + '' }}{% endfor %}{% endfor %}",
                "s\nt\n\n;{\"a\":1}",
            ),
        ] {
            assert_eq!(render(source, call.clone()).as_deref(), Ok(expect), "{source}");
        }
    }
}
