//! Chat template + messages → prompt text, as llama.cpp's server renders it: for counting. Jinja as its own engine runs
//! it, with its repairs of the messages before; 71 real templates are compared with it.
//!
//! Never reads a clock (a template that asks for the date gets [`Options::now`]) and never runs away: a template that
//! loops is stopped and is an error.

mod date;
mod jinja;
mod loops;
mod rope;
mod shape;

use minijinja::value::Value as Jinja;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value, json};

use date::strftime;
use jinja::Raise;
use shape::Shaped;

/// Instructions that one rendering may take. A long session in the most laborious of the known templates takes some
/// millions; this many take a second or two.
const FUEL: u64 = 40_000_000;

/// Instructions that a trial rendering may take.
const TRIAL_FUEL: u64 = 1_000_000;

/// Name of the one template in its environment.
const NAME: &str = "chat_template";

/// What llama.cpp renders with where a model has no template of its own.
pub const CHATML: &str = "{%- for message in messages -%}\n  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n  {{- '<|im_start|>assistant\n' -}}\n{%- endif -%}";

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
    /// The tokenizer adds the first token itself: it is taken off the text.
    pub adds_bos: bool,
    /// The tokenizer adds the last token itself: it is taken off the text.
    pub adds_eos: bool,
    /// `chat_template_kwargs` of the request: further variables, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
    /// What `strftime_now` tells, in seconds since 1970.
    pub now: i64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            add_generation_prompt: true,
            bos_token: String::new(),
            eos_token: String::new(),
            adds_bos: false,
            adds_eos: false,
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
    source: String,
    caps: Caps,
}

impl Template {
    /// Compiles a template and finds out what it understands.
    pub fn new(source: &str) -> Result<Template, TemplateError> {
        let source = shape::source(source);
        let mut env = jinja::environment();
        env.add_template_owned(NAME, jinja::prepared(&source)).map_err(|e| TemplateError::Syntax(say(&e)))?;
        let caps = Caps { string_content: true, typed_content: false, system_role: true, object_arguments: true };
        let mut template = Template { env, source, caps };
        template.env.set_fuel(Some(TRIAL_FUEL));
        template.caps = template.probe();
        template.env.set_fuel(Some(FUEL));
        Ok(template)
    }

    /// What the template understands.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Renders a whole chat request (OpenAI's shape) as llama-server does: messages, tools, and what else of it the
    /// template sees.
    pub fn render_request(&self, request: &Value, options: &Options) -> Result<String, TemplateError> {
        let messages = request["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let mut options = options.clone();
        if let Some(kwargs) = request["chat_template_kwargs"].as_object() {
            options.kwargs.extend(kwargs.clone());
        }
        match request["reasoning_effort"].as_str() {
            Some("none") => {
                options.kwargs.insert("enable_thinking".into(), json!(false));
                options.kwargs.shift_remove("reasoning_effort");
            }
            Some(effort) if !effort.is_empty() => {
                options.kwargs.insert("reasoning_effort".into(), json!(effort));
            }
            _ => {}
        }
        if let Some(generate) = request["add_generation_prompt"].as_bool() {
            options.add_generation_prompt = generate;
        }
        if let Some(schema) = request.pointer("/response_format/json_schema/schema")
            && self.source.contains("dsml_token")
            && !self.source.contains("function_calls")
        {
            options.kwargs.insert("response_format".into(), schema.clone());
        }
        self.render(messages, request.get("tools"), &options)
    }

    /// Renders messages (in OpenAI's chat shape) and tool definitions into the prompt.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        options: &Options,
    ) -> Result<String, TemplateError> {
        let shaped = shape::shape(&self.source, self.caps, messages, tools);
        let context = self.context(&shaped, options);
        let generate = options.add_generation_prompt && shaped.continued.is_none();
        let mut text = self.run(&context, generate)?;
        if let Some(continued) = &shaped.continued {
            let opened = self.run(&context, true)?;
            let same = text.bytes().zip(opened.bytes()).take_while(|(a, b)| a == b).count();
            let same = (0..=same).rev().find(|at| opened.is_char_boundary(*at)).unwrap_or(0);
            text.push_str(&self.continuation(&opened[same..], continued, options));
        }
        if generate && shape::is_gemma_4(&self.source) && text.ends_with("<turn|>\n") {
            text.push_str("<|turn>model\n");
        }
        let cut = |text: &str| text.to_owned();
        if options.adds_bos && !options.bos_token.is_empty() {
            text = text.strip_prefix(&options.bos_token).map_or(text.clone(), cut);
        }
        if options.adds_eos && !options.eos_token.is_empty() {
            text = text.strip_suffix(&options.eos_token).map_or(text.clone(), cut);
        }
        Ok(text)
    }

    /// The opening of a reply that continues what the assistant said already: its reasoning, empty or not, is closed
    /// before what it says.
    fn continuation(&self, opening: &str, continued: &shape::Continued, options: &Options) -> String {
        let (mut start, mut end) = self.reasoning(opening, options, !continued.reasoning.is_empty());
        if shape::bare_reasoning(&self.source) {
            (start, end) = (start.trim().to_owned(), end.trim().to_owned());
        }
        let mut out = opening.to_owned();
        if !start.is_empty() || !end.is_empty() {
            let start = &*start;
            let opens = if start.is_empty() { "<think>" } else { start };
            let at = opening.find(opens).or_else(|| opening.find(opens.trim_end()));
            out.truncate(at.unwrap_or(opening.len()));
            out.push_str(start);
            if !shape::drops_reasoning(&self.source) {
                out.push_str(&continued.reasoning);
            }
            if !continued.content.is_empty() || continued.reasoning.is_empty() {
                out.push_str(&end);
            }
        }
        out.push_str(&continued.content);
        out
    }

    /// What stands before and behind the reasoning of a reply, found by rendering one.
    fn reasoning(&self, opening: &str, options: &Options, thought: bool) -> (String, String) {
        if let Some((start, end)) = shape::reasoning(&self.source, thought) {
            return (start.to_owned(), end.to_owned());
        }
        const REASONING: &str = "reasoning-needle";
        const CONTENT: &str = "content-needle";
        let user = json!({"role": "user", "content": "u"});
        let reply = json!({"role": "assistant", "content": CONTENT, "reasoning_content": REASONING});
        let known = |messages: &[Value]| {
            let mut shaped = shape::shape(&self.source, self.caps, messages, None);
            if let Some(last) = shaped.continued.take() {
                let mut more = messages.to_vec();
                more.push(user.clone());
                shaped = shape::shape(&self.source, self.caps, &more, None);
                shaped.messages.pop();
                debug_assert_eq!(last.content, CONTENT);
            }
            self.run(&self.context(&shaped, options), false).ok()
        };
        // Where nothing opens a reply, what opens it in a conversation is none of the reasoning.
        let before = match opening.is_empty() {
            true => known(&[user.clone(), json!({"role": "assistant", "content": CONTENT})]),
            false => known(std::slice::from_ref(&user)),
        };
        let without = before.unwrap_or_default();
        let found = known(&[user.clone(), reply]).and_then(|text| {
            let at = text.find(REASONING)?;
            let end = text[at..].find(CONTENT)? + at;
            let same = |a: &str, b: &str| {
                let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
                (0..=same).rev().find(|at| b.is_char_boundary(*at)).unwrap_or(0)
            };
            let before = text[same(&without, &text)..].find(REASONING).map(|_| &text[same(&without, &text)..at])?;
            let start = &before[same(opening, before).min(before.len())..];
            // Where the opening goes into the reasoning itself, the tag is the last of it.
            let start =
                if start.trim().is_empty() { before.rfind('<').map_or(before, |i| &before[i..]) } else { start };
            Some((start.trim_start_matches('\n').to_owned(), text[at + REASONING.len()..end].to_owned()))
        });
        match found.or_else(|| self.switched(&user, options)) {
            Some(found) => found,
            None if opening.contains("<think>") || self.source.contains("</think>") => {
                ("<think>".into(), "</think>".into())
            }
            None => (String::new(), String::new()),
        }
    }

    /// As [`Template::reasoning`], found in what an opening has more of where thinking is switched off.
    fn switched(&self, user: &Value, options: &Options) -> Option<(String, String)> {
        let shaped = shape::shape(&self.source, self.caps, std::slice::from_ref(user), None);
        let opened = |thinking: bool| {
            let mut options = options.clone();
            options.kwargs.insert("enable_thinking".into(), json!(thinking));
            self.run(&self.context(&shaped, &options), true).ok()
        };
        let (off, on) = (opened(false)?, opened(true)?);
        let end = off.strip_prefix(on.as_str()).filter(|rest| !rest.trim().is_empty())?;
        let open = on.trim_end().strip_suffix('>').and_then(|_| on.rfind('<'));
        Some((open.map_or_else(String::new, |at| on[at..].trim_end().to_owned()), end.to_owned()))
    }

    /// The variables of a rendering, but for `add_generation_prompt`.
    fn context(&self, shaped: &Shaped, o: &Options) -> Vec<(String, Jinja)> {
        let mut out: Vec<(String, Jinja)> = vec![
            ("messages".into(), jinja::list(shaped.messages.iter().map(jinja::value).collect())),
            ("bos_token".into(), Jinja::from(o.bos_token.as_str())),
            ("eos_token".into(), Jinja::from(o.eos_token.as_str())),
            ("enable_thinking".into(), Jinja::from(!self.source.contains("<|inner_prefix|>"))),
            ("datetime".into(), Jinja::from(strftime(o.now, "%b %d %Y"))),
            ("date_string".into(), Jinja::from(strftime(o.now, "%d %b %Y"))),
            // Firefunction adds it to a text, which llama.cpp takes nothing for where it is not there.
            ("functions".into(), Jinja::from("")),
            (jinja::NOW.into(), Jinja::from(o.now)),
        ];
        out.extend(shaped.tools.iter().map(|t| ("tools".into(), jinja::value(t))));
        out.extend(o.kwargs.iter().map(|(k, v)| (k.clone(), jinja::value(v))));
        if let Some(keep) = o.kwargs.get("preserve_reasoning").and_then(Value::as_bool) {
            out.push(("preserve_thinking".into(), Jinja::from(keep)));
            let others = ["clear_thinking", "truncate_history_thinking", "drop_thinking"];
            out.extend(others.map(|name| (name.into(), Jinja::from(!keep))));
        }
        if let Some(effort) = o.kwargs.get("reasoning_effort").and_then(Value::as_str).filter(|e| !e.is_empty()) {
            out.push(("reasoning_strength".into(), Jinja::from(effort)));
        }
        out
    }

    fn run(&self, context: &[(String, Jinja)], generate: bool) -> Result<String, TemplateError> {
        let mut all: Vec<(String, Jinja)> = context.to_vec();
        if generate {
            all.push(("add_generation_prompt".into(), Jinja::from(true)));
        }
        let template = self.env.get_template(NAME).map_err(|e| TemplateError::Syntax(say(&e)))?;
        // Templates come from strangers, and the engine has panicked on one: it costs the count, never the process.
        let render = std::panic::AssertUnwindSafe(|| template.render(all.into_iter().collect::<Jinja>()));
        let rendered = std::panic::catch_unwind(render);
        rendered.map_err(|_| TemplateError::Render("the template engine gave up".into()))?.map_err(|e| failure(&e))
    }

    /// Whether content as parts is taken apart, as llama.cpp finds out: not where it is only spelled out, nor where a
    /// message without any part is refused, nor in the families whose macros hide from it that they can.
    fn reads_parts(&self, has: &dyn Fn(Value, &str) -> bool, needle: &str) -> bool {
        let user = |content: Value| json!([{"role": "user", "content": content}]);
        let parts = json!([{"type": "text", "text": needle}]);
        let spelled =
            ["{'type'", "{\"type\"", "{\n"].iter().any(|s| has(user(parts.clone()), s) && !has(user(json!(needle)), s));
        let hidden = (self.source.contains("List of tools: [") && !self.source.contains("<|tool_list_start|>"))
            || self.source.contains("macro render_content(content)") && self.source.contains("<SPECIAL_");
        has(user(parts), needle) && !spelled && has(user(json!([])), "") && !hidden
    }

    /// Tries which shapes of messages come out again.
    fn probe(&self) -> Caps {
        const NEEDLE: &str = "<needle>";
        let has = |messages: Value, needle: &str| {
            let messages = messages.as_array().cloned().unwrap_or_default();
            let shaped = Shaped { messages, ..Shaped::default() };
            let context = self.context(&shaped, &Options::default());
            self.run(&context, true).is_ok_and(|text| text.contains(needle))
        };
        let user = |content: Value| json!({"role": "user", "content": content});
        let string_content = has(json!([user(NEEDLE.into())]), NEEDLE);
        let typed_content = self.reads_parts(&has, NEEDLE);
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
        let as_object = has(call(json!({"needle_key": "needle_value"})), "needle_value");
        Caps {
            // A template in which neither is found prints no user message alone; strings are the common shape.
            string_content: string_content || !typed_content,
            typed_content,
            system_role: has(json!([{"role": "system", "content": text(NEEDLE)}, user(text("u"))]), NEEDLE),
            object_arguments: as_object,
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: Value) -> Result<String, TemplateError> {
        let options = Options { now: 1_700_000_000, ..Options::default() };
        Template::new(source)?.render(messages.as_array().unwrap(), None, &options)
    }

    /// The messages as they are.
    fn raw(source: &str, messages: Value) -> Result<String, TemplateError> {
        let template = Template::new(source)?;
        let shaped = Shaped { messages: messages.as_array().cloned().unwrap(), ..Shaped::default() };
        template.run(&template.context(&shaped, &Options { now: 1_700_000_000, ..Options::default() }), true)
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
            ("{{ true }} {{ none }} {{ ' a '.strip() }} {{ 'a-b'.split('-')[1] }}", "True  a b"),
            ("{{ none | string }} {{ missing | length }}{% set m = messages[0] %}{{ 'a' + m.missing }}", "None 0a"),
            (
                "{{ messages[0].x }}{{ [1, 'a', [2.50]] }} {{ '' ~ messages[0].x }}",
                "1a2.5 {'b': [1, 2.5, True, None], 'a': {}}",
            ),
            ("{{ [1.0, 0.1, 1e300, 123456789.5, -0.00001] | tojson }}", "[1, 0.1, 1e+300, 1.23457e+08, -1e-05]"),
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
                "{% set q = namespace(ids=[]) %}{% for i in range(3) %}{% set _ = q.ids.append(i) %}{% endfor %}{% set first = q.ids.pop(0) %}{{ first }}{{ q.ids | tojson }}",
                "0[1, 2]",
            ),
            ("{{ strftime_now('%d %b %Y, %A %H:%M:%S') }}", "14 Nov 2023, Tuesday 22:13:20"),
            ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
            ("{% set e = [] %}{% for i in e[::-1] %}{{ i }}{% endfor %}{{ messages[::-1][0].role }}", "user"),
            ("{{ '[1, {\"a\": 2}]' | from_json | tojson }}", "[1, {\"a\": 2}]"),
        ] {
            assert_eq!(raw(source, value.clone()).as_deref(), Ok(expect), "{source}");
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
                "st;;",
            ),
            // Arguments as strings, no system role.
            (
                "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }};{% for c in m.tool_calls %}{{ c.function.arguments + '' }}{% endfor %}{% endfor %}",
                "s\nt\n;{\"a\":1}",
            ),
        ] {
            assert_eq!(render(source, call.clone()).as_deref(), Ok(expect), "{source}");
        }
    }
}
