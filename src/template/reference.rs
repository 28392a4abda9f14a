//! Another engine for the same templates, whose word counts more than ours: llama.cpp's own. What it finds that a template
//! understands is taken, and each template is tried with both. Requests like those that came out otherwise are rendered by
//! it from then on, which takes longer.
//!
//! It knows no limits, and a template may come from anyone. So it gets nothing that has not come to an end here first.

use std::fmt::Debug;
use std::sync::Arc;

use minijinja::Error;
use minijinja::value::ValueKind;
use serde_json::{Map, Value, json};

use super::{
    Caps, Jinja, Options, TRIAL_FUEL, Template, TemplateError, carried, compiled, failure, jinja, limits, shape,
};

/// A template as another engine has it.
pub trait Reference: Debug + Send + Sync {
    /// What it found that the template understands.
    fn caps(&self) -> Caps;

    /// The prompt, with these variables (an object) when a clock on the wall shows this (seconds since 1970).
    ///
    /// # Errors
    /// What the template or the engine says.
    fn render(&self, variables: &Value, now: i64) -> Result<String, TemplateError>;
}

/// How the other engine reads a template; `None` where it does not.
pub type ReadReference<'a> = dyn Fn(&str) -> Option<Arc<dyn Reference>> + 'a;

/// The variables of a rendering for the other engine.
pub(super) fn variables(context: &[(String, Jinja)]) -> Value {
    let mut out = Map::new();
    for (name, value) in context {
        // Both are ours alone.
        if name == jinja::NOW || (name == "functions" && value.as_str() == Some("")) {
            continue;
        }
        out.insert(name.clone(), serde_json::to_value(value).unwrap_or_default());
    }
    Value::Object(out)
}

/// A template in another engine.
#[derive(Debug)]
pub(super) struct Elsewhere {
    pub(super) reference: Arc<dyn Reference>,
    /// What those requests have in them that came out otherwise.
    on: Vec<Parts>,
}

impl Elsewhere {
    /// Whether a rendering with these variables may come out otherwise.
    pub(super) fn differs(&self, context: &[(String, Jinja)]) -> bool {
        !self.on.is_empty() && {
            let has = Parts::of(context);
            self.on.iter().any(|parts| parts.are_in(has))
        }
    }
}

impl Template {
    /// Holds the template against the other engine's reading of it. `rewritten` is what becomes of a source that is
    /// prepared.
    pub(super) fn held_against(mut self, read: &ReadReference<'_>, rewritten: &dyn Fn(&str) -> String) -> Template {
        self.env.set_fuel(Some(TRIAL_FUEL));
        let trials = trials();
        let Some(mut tried) = self.tried(&trials) else { return self };
        let Some(reference) = read(&self.source) else { return self };
        let own = std::mem::replace(&mut self.caps, reference.caps());
        if own != self.caps {
            match self.tried(&trials) {
                Some(again) => tried = again,
                None => {
                    self.caps = own;
                    return self;
                }
            }
        }
        let mut on = differing(&trials, tried, &*reference);
        if !on.is_empty()
            && let Some(less) = self.carries(&trials, &*reference, rewritten, on.len())
        {
            on = less;
        }
        self.elsewhere = Some(Elsewhere { reference, on });
        self
    }

    /// Has the template's loops keep what is set in them, if less than so many trials then come out otherwise; says which.
    fn carries(
        &mut self,
        trials: &[Trial],
        reference: &dyn Reference,
        rewritten: &dyn Fn(&str) -> String,
        most: usize,
    ) -> Option<Vec<Parts>> {
        let source = carried::carried(&self.source, jinja::WHITESPACE);
        let mut env = compiled(rewritten(&jinja::prepared(&source))).ok().filter(|_| source != self.source)?;
        env.set_fuel(Some(TRIAL_FUEL));
        let plain = std::mem::replace(&mut self.env, env);
        let on = self.tried(trials).map(|tried| differing(trials, tried, reference));
        let better = on.filter(|on| on.len() < most);
        if better.is_none() {
            self.env = plain;
        }
        better
    }

    /// The variables of each trial and its prompt, if any; `None` where one might go on for ever.
    fn tried(&self, trials: &[Trial]) -> Option<Vec<(Variables, Option<String>)>> {
        let tried = |trial: &Trial| {
            let shaped = shape::shape(self, &trial.messages, trial.tools.as_ref());
            let mut context = self.seen(&shaped, &trial.options);
            context.push(("add_generation_prompt".into(), Jinja::from(true)));
            let rendered = self.rendered(&context);
            self.came_to_an_end(&rendered).then(|| (context, rendered.ok()))
        };
        trials.iter().map(tried).collect()
    }

    /// Whether the other engine will end, too: this one did, or failed where nothing could have gone on for ever.
    pub(super) fn came_to_an_end(&self, rendered: &Result<String, Option<Error>>) -> bool {
        let simple = || limits::must_end(&self.source, jinja::WHITESPACE);
        match rendered {
            Ok(_) => true,
            Err(None) => false,
            Err(Some(error)) => match failure(error) {
                TemplateError::Raised(_) => true,
                TemplateError::Endless => false,
                _ => simple(),
            },
        }
    }

    /// Whether there are requests whose prompts are the other engine's.
    pub fn is_rendered_elsewhere(&self) -> bool {
        self.elsewhere.as_ref().is_some_and(|e| !e.on.is_empty())
    }
}

/// What those trials have in them that the other engine renders otherwise.
fn differing(trials: &[Trial], tried: Vec<(Variables, Option<String>)>, reference: &dyn Reference) -> Vec<Parts> {
    let differs = |(trial, (context, ours)): (&Trial, (Variables, Option<String>))| {
        let theirs = reference.render(&variables(&context), trial.options.now);
        (ours != theirs.ok()).then(|| Parts::of(&context))
    };
    trials.iter().zip(tried).filter_map(differs).collect()
}

/// What of a request templates treat in ways of their own, a bit for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts(u8);

impl Parts {
    const CONTENT_PARTS: u8 = 1;
    const CALLS: u8 = 2;
    const REASONING: u8 = 4;
    const LATE_SYSTEM: u8 = 8;
    const TOOLS: u8 = 16;
    /// A schema that allows of several types, or of one of several schemas.
    const UNIONS: u8 = 32;

    fn of(context: &[(String, Jinja)]) -> Parts {
        let find = |name: &str| context.iter().rfind(|(n, _)| n == name).map(|(_, value)| value);
        let mut out = 0;
        for (at, message) in find("messages").and_then(|m| m.try_iter().ok()).into_iter().flatten().enumerate() {
            let get = |name: &str| message.get_attr(name).unwrap_or_default();
            let mut found = |is: bool, part: u8| out |= if is { part } else { 0 };
            found(!matches!(get("content").kind(), ValueKind::String | ValueKind::Undefined), Parts::CONTENT_PARTS);
            found(!get("tool_calls").is_undefined() || get("role").as_str() == Some("tool"), Parts::CALLS);
            found(!get("reasoning_content").is_undefined() || !get("thinking").is_undefined(), Parts::REASONING);
            found(at > 0 && get("role").as_str() == Some("system"), Parts::LATE_SYSTEM);
        }
        if let Some(tools) = find("tools") {
            out |= Parts::TOOLS;
            let spelled = serde_json::to_value(tools).unwrap_or_default();
            out |= if unites(&spelled) { Parts::UNIONS } else { 0 };
        }
        Parts(out)
    }

    fn are_in(self, others: Parts) -> bool {
        self.0 & others.0 == self.0
    }
}

/// Whether a schema allows of several types.
fn unites(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let union = |(key, value): (&String, &Value)| {
                value.is_array() && matches!(key.as_str(), "type" | "anyOf" | "oneOf" | "allOf")
            };
            fields.iter().any(union) || fields.values().any(unites)
        }
        Value::Array(items) => items.iter().any(unites),
        _ => false,
    }
}

/// The variables of a rendering.
type Variables = Vec<(String, Jinja)>;

/// A request that both engines render.
struct Trial {
    messages: Vec<Value>,
    tools: Option<Value>,
    options: Options,
}

/// Conversations of the kinds that clients send, and texts that engines spell in ways of their own.
fn trials() -> Vec<Trial> {
    let user = json!({"role": "user", "content": "One two "});
    let system = json!({"role": "system", "content": " You are\n"});
    let parts = json!({"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two "}]});
    let says = |text: &str| json!({"role": "assistant", "content": text});
    let calls = |calls: &[(&str, &str, &str)]| {
        let call = |(id, name, arguments): &(&str, &str, &str)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        json!({"role": "assistant", "content": "", "tool_calls": calls.iter().map(call).collect::<Vec<_>>()})
    };
    let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    let first = (
        "call00001",
        "look",
        r#"{"at": [1, 2.50, null, 1e20], "é": true, "s": "a\"b<>&'/\n\u00e9", "o": {"x": {}, "y": []}}"#,
    );
    let (second, third) = (("call00002", "stop", "{}"), ("call00003", "look", r#"{"b": "plain", "a": 3}"#));
    let mut thinks = calls(&[first]);
    thinks["reasoning_content"] = json!("must look");
    let thought = json!({"role": "assistant", "content": "A.", "reasoning_content": "\nhm hm\n"});
    let talks = [
        json!([user]),
        json!([system, user]),
        json!([{"role": "system", "content": "Écoute où"}, {"role": "user", "content": "été\u{1f600} où"}]),
        json!([system, parts]),
        json!([user, says(" It is. "), parts]),
        json!([system, user, calls(&[first]), result("call00001", "<|im_start|> {\"a\": 1}")]),
        json!([user, calls(&[third]), result("call00003", "r\n"), says("Done."), user]),
        json!([system, user, calls(&[second, third]), result("call00002", "r2"), result("call00003", "r3"), user]),
        json!([user, calls(&[second]), result("call00002", ""), calls(&[third]), result("call00003", "[1]")]),
        json!([user, thought, user, thinks, result("call00001", "r")]),
        json!([user, says("<think>\nhm\n</think>\n\nA."), user, says("<think>x</think>B"), user]),
        json!([user, thought, user, says("B"), user]),
        // To it, what is set in one round of a loop is still there in the next.
        json!([user, thinks, result("call00001", "r"), calls(&[third]), result("call00003", "r")]),
        json!([user, calls(&[third]), result("call00003", "r"), parts, says("B"), user, says("C"), user]),
        json!([
            user,
            says("<think>x</think>C"),
            parts,
            says("D"),
            user,
            thinks,
            result("call00001", "r"),
            says("E"),
            user
        ]),
        json!([system, user, says("A"), system, user]),
        json!([user, user, says("x"), says("y"), user]),
        json!([{"role": "user", "content": ""}, says("  \n"), {"role": "user", "content": " \n\t\u{a0}x \u{3000}"}]),
    ];
    let tools = json!([
        {"type": "function", "function": {"name": "look", "description": "Looks \"there\"\nnow <b>&amp;", "parameters": {"type": "object", "properties": {
            "at": {"type": "array", "items": {"type": "number"}, "description": "where"}, "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
            "n": {"type": "integer", "minimum": 1, "maximum": 2.5}, "deep": {"type": "object", "properties": {"é": {"type": "boolean"}}}},
            "required": ["at"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}
    ]);
    let trial = |messages: &Value, tools: Option<&Value>, kwargs: Value| Trial {
        messages: messages.as_array().cloned().unwrap_or_default(),
        tools: tools.cloned(),
        options: Options {
            bos_token: "<s>".into(),
            eos_token: "</s>".into(),
            kwargs: kwargs.as_object().cloned().unwrap_or_default(),
            now: 1_700_000_000,
            ..Options::default()
        },
    };
    let mut out: Vec<Trial> =
        talks.iter().flat_map(|t| [trial(t, None, json!({})), trial(t, Some(&tools), json!({}))]).collect();
    let unions = json!([{"type": "function", "function": {"name": "look", "description": "Looks", "parameters": {"type": "object", "properties": {
        "n": {"type": ["integer", "string"]}, "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}}}]);
    out.push(trial(&talks[0], Some(&unions), json!({})));
    for kwargs in
        [json!({"enable_thinking": false}), json!({"reasoning_effort": "high"}), json!({"preserve_reasoning": true})]
    {
        out.push(trial(&talks[9], Some(&tools), kwargs));
    }
    out
}
