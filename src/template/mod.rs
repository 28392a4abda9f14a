//! Chat template + messages → prompt text, as llama.cpp's server renders it: for counting. Jinja as its own engine runs
//! it, with its repairs of the messages before; 71 real templates are compared with it.
//!
//! Never reads a clock (a template that asks for the date gets [`Options::now`]) and never runs away: a template that
//! loops is stopped and is an error.

mod carried;
mod continued;
mod date;
mod dumps;
mod family;
mod jinja;
mod limits;
mod loops;
mod macros;
mod numbers;
mod ready;
mod reasoning;
mod reference;
mod rope;
mod scans;
mod shape;
mod sums;
mod values;
mod walk;

use minijinja::value::Value as Jinja;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value, json};

use continued::Continued;
use date::strftime;
use family::Family;
use jinja::Raise;
use reasoning::{Around, Trial};
use reference::Elsewhere;
use shape::Shaped;

pub use continued::Continue;
pub use ready::Ready;
pub use reference::{ReadReference, Reference};

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
    /// What `strftime_now` tells: what a clock on the wall shows, in seconds since 1970.
    pub now: i64,
    /// Which message the reply goes on with.
    pub continues: Continue,
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
            continues: Continue::default(),
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
    family: Family,
    reads: shape::Reads,
    caps: Caps,
    around: Around,
    /// The same template in another engine.
    elsewhere: Option<Elsewhere>,
}

impl Template {
    /// Compiles a template and finds out what it understands.
    pub fn new(source: &str) -> Result<Template, TemplateError> {
        Template::read(source, jinja::quickened, &|_| None)
    }

    /// As [`Template::new`], held against another engine's reading.
    pub fn checked(source: &str, reference: &ReadReference<'_>) -> Result<Template, TemplateError> {
        Template::read(source, jinja::quickened, reference)
    }

    /// Compiles what is made of a template that is prepared.
    fn read(
        source: &str,
        rewritten: impl Fn(&str) -> String,
        reference: &ReadReference<'_>,
    ) -> Result<Template, TemplateError> {
        if let Some(passed) = limits::passed(source, jinja::WHITESPACE) {
            return Err(TemplateError::Syntax(passed));
        }
        let source = shape::source(source);
        let env = compiled(rewritten(&jinja::prepared(&source))).map_err(|e| TemplateError::Syntax(say(&e)))?;
        let caps = Caps { string_content: true, typed_content: false, system_role: true, object_arguments: true };
        let family = Family::of(&source);
        let reads = shape::Reads::of(&source);
        let around = Around { thinks: true, ..Around::default() };
        let mut template = Template { env, source, family, reads, caps, around, elsewhere: None };
        template.env.set_fuel(Some(TRIAL_FUEL));
        template.caps = template.probe();
        template = template.held_against(reference, &rewritten);
        template.around = template.around();
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
        self.render(messages, request.get("tools"), &Template::asked(request, options, self.family))
    }

    /// The options with what a request asks for.
    fn asked(request: &Value, options: &Options, family: Family) -> Options {
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
        options.continues = Continue::read(&request["continue_final_message"]);
        if let Some(schema) = request.pointer("/response_format/json_schema/schema")
            && family == Family::DeepSeek4
        {
            options.kwargs.insert("response_format".into(), schema.clone());
        }
        options
    }

    /// Renders messages (in OpenAI's chat shape) and tool definitions into the prompt.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        options: &Options,
    ) -> Result<String, TemplateError> {
        let read = |m: &Value| shape::message(m, false);
        let continued = Continued::of(messages, options.continues, read);
        let messages = &messages[..messages.len() - usize::from(continued.is_some())];
        let context = self.seen(&shape::shape(self, messages, tools), options);
        let Some(continued) = continued else { return self.reply(&context, options) };
        let mut text = self.prompt(&context, options, false)?;
        let opened = self.prompt(&context, options, true)?;
        let same = text.char_indices().zip(opened.chars()).find(|((_, a), b)| a != b);
        let opening = opened.get(same.map_or(text.len(), |((at, _), _)| at)..).unwrap_or_default();
        let more = continued.behind(&text, self.family, opening, &self.around);
        text.push_str(&more);
        Ok(text)
    }

    /// The prompt of a reply that continues nothing.
    fn reply(&self, context: &[(String, Jinja)], options: &Options) -> Result<String, TemplateError> {
        let mut text = self.prompt(context, options, options.add_generation_prompt)?;
        if options.add_generation_prompt && self.family.is_gemma_4() && text.ends_with("<turn|>\n") {
            text.push_str("<|turn>model\n");
        }
        Ok(text)
    }

    /// The prompt as the server has it, with or without what begins a reply.
    fn prompt(&self, context: &[(String, Jinja)], options: &Options, generate: bool) -> Result<String, TemplateError> {
        let mut text = self.run(context, generate)?;
        if options.adds_bos && !options.bos_token.is_empty() && text.starts_with(&options.bos_token) {
            text.drain(..options.bos_token.len());
        }
        if options.adds_eos && !options.eos_token.is_empty() && text.ends_with(&options.eos_token) {
            text.truncate(text.len() - options.eos_token.len());
        }
        // A turn that ended in training has not ended where the model goes on.
        if !generate
            && self.family == Family::Harmony
            && let Some(at) = text.rfind("<|return|>")
        {
            text.replace_range(at..at + "<|return|>".len(), "<|end|>");
        }
        Ok(text)
    }

    /// What the template puts around reasoning.
    fn around(&self) -> Around {
        if self.family != Family::Other {
            let thinks = !matches!(self.family, Family::Functionary | Family::GigaChat | Family::Qwen3Coder);
            return Around { thinks, ..Around::default() };
        }
        reasoning::around(&self.source, &|trial: Trial| {
            let tools = trial.tools.then(reasoning::tools);
            let mut messages = trial.messages;
            messages.iter_mut().for_each(|m| shape::fit_content(m, self.caps));
            let mut options = Options::default();
            options.kwargs.insert("enable_thinking".into(), json!(trial.thinking));
            self.run(&self.seen(&Shaped { messages, tools }, &options), trial.generate).ok()
        })
    }

    /// The variables of a rendering of what was shaped.
    fn seen(&self, shaped: &Shaped, options: &Options) -> Vec<(String, Jinja)> {
        let messages = values::list(shaped.messages.iter().map(values::value).collect());
        self.context(messages, shaped.tools.as_ref(), options)
    }

    /// The variables of a rendering, but for `add_generation_prompt`.
    fn context(&self, messages: Jinja, tools: Option<&Value>, o: &Options) -> Vec<(String, Jinja)> {
        let mut out: Vec<(String, Jinja)> = vec![
            ("messages".into(), messages),
            ("bos_token".into(), Jinja::from(o.bos_token.as_str())),
            ("eos_token".into(), Jinja::from(o.eos_token.as_str())),
            ("enable_thinking".into(), Jinja::from(self.around.thinks)),
            ("datetime".into(), Jinja::from(strftime(o.now, "%b %d %Y"))),
            ("date_string".into(), Jinja::from(strftime(o.now, "%d %b %Y"))),
            // Firefunction adds it to a text, which llama.cpp takes nothing for where it is not there.
            ("functions".into(), Jinja::from("")),
            (jinja::NOW.into(), Jinja::from(o.now)),
        ];
        out.extend(tools.map(|t| ("tools".into(), values::value(t))));
        out.extend(o.kwargs.iter().map(|(k, v)| (k.clone(), values::value(v))));
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
        let rendered = self.rendered(&all);
        if let Some(elsewhere) = self.elsewhere.as_ref().filter(|e| failed(&rendered) || e.differs(&all))
            && self.came_to_an_end(&rendered)
        {
            let now = all.iter().find(|(name, _)| name == jinja::NOW).and_then(|(_, n)| i64::try_from(n.clone()).ok());
            return elsewhere.reference.render(&reference::variables(&all), now.unwrap_or(0));
        }
        let gave_up = || TemplateError::Render("the template engine gave up".into());
        rendered.map_err(|e| e.as_ref().map_or_else(gave_up, failure))
    }

    /// What this engine makes of it; no error where it panicked. Templates come from strangers, and it has panicked on one:
    /// that costs the count, never the process.
    fn rendered(&self, variables: &[(String, Jinja)]) -> Result<String, Option<Error>> {
        let template = self.env.get_template(NAME).map_err(Some)?;
        let all = variables.iter().cloned().collect::<Jinja>();
        let rendered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| template.render(all)));
        rendered.map_err(|_| None)?.map_err(Some)
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
            let context = self.seen(&shaped, &Options::default());
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

/// An environment with a template that is prepared.
fn compiled(source: String) -> Result<Environment<'static>, Error> {
    let mut env = jinja::environment();
    env.add_template_owned(NAME, source)?;
    Ok(env)
}

/// Whether the engine failed, and not the template itself by saying so.
fn failed(rendered: &Result<String, Option<Error>>) -> bool {
    rendered.as_ref().is_err_and(|e| e.as_ref().is_none_or(|e| matches!(failure(e), TemplateError::Render(_))))
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
mod tests;
