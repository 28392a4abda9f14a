//! The tools as they are offered: name, description, and the schemas of arguments and answers.

use serde_json::{Map, Value, json};

/// One tool, as a protocol may offer it.
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// What it does, for the model.
    pub description: &'static str,
    /// JSON schema of its arguments.
    pub schema: Map<String, Value>,
    /// JSON schema of its answer, where that is JSON.
    pub answer: Option<Value>,
    /// What a call of it does beside answering.
    pub effect: Effect,
}

/// What a call of a tool does to a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Reads,
    /// It changes what the model sees, and takes nothing away that cannot be read back.
    Adds,
    /// It takes away something that a person or a model asked for.
    Removes,
}

/// A tool before it is known which conversations are open: its own arguments, and whether it is about one conversation.
struct Known {
    name: &'static str,
    description: &'static str,
    required: &'static [&'static str],
    properties: Value,
    about: About,
    answer: Option<Value>,
    effect: Effect,
}

/// Which conversations a tool is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    /// None.
    Nothing,
    /// The one that is named, or all.
    Any,
    /// The one that is named.
    One,
}

/// The argument that names a conversation.
const CONVERSATION: &str = "conversation";

/// The tools, always in the same order. `one`: one conversation alone is open, so that nobody has to name it; `all`: every one is.
pub(super) fn tools(one: bool, all: bool) -> Vec<Tool> {
    let named = "The conversation: its id, or the id of any text of it (r…)";
    let offered = |mut tool: Known| {
        let mut required = tool.required.to_vec();
        if tool.about != About::Nothing && !one {
            let more = if !all { ", as a marker in your prompt names it" } else { ". Without: all" };
            let more = if tool.about == About::One && all { "" } else { more };
            tool.properties[CONVERSATION] = json!({"type": "string", "description": format!("{named}{more}")});
            required.extend((tool.about == About::One).then_some(CONVERSATION));
        }
        let schema = json!({"type": "object", "properties": tool.properties, "required": required,
            "additionalProperties": false});
        Tool {
            name: tool.name,
            description: tool.description,
            schema: schema.as_object().cloned().unwrap_or_default(),
            answer: tool.answer,
            effect: tool.effect,
        }
    };
    reading().into_iter().chain(changing()).map(offered).collect()
}

/// The arguments that a tool takes; `None` where there is no such tool.
pub(super) fn arguments_of(name: &str) -> Option<Vec<String>> {
    let tool = reading().into_iter().chain(changing()).find(|tool| tool.name == name)?;
    let own = tool.properties.as_object().map(|own| own.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    Some(own.into_iter().chain((tool.about != About::Nothing).then(|| CONVERSATION.to_owned())).collect())
}

fn whole(description: &str) -> Value {
    json!({"type": "integer", "description": description})
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

/// What only reads.
fn reading() -> Vec<Known> {
    let models = json!({"type": "array", "items": {"type": "object", "properties": {
        "model": {"type": "string"}, "window": {"type": ["integer", "null"], "description": "Tokens"}}}});
    let reads = |name, about, description, required, properties, answer| Known {
        name,
        description,
        required,
        properties,
        about,
        answer,
        effect: Effect::Reads,
    };
    vec![
        reads(
            "recall",
            About::Any,
            "Read back text that was cut, cleared or summarized out of the conversation to save context, exactly as it was. The id \
             stands in the marker that took its place.",
            &["id"],
            json!({
                "id": text("A record (r3f9a0c12d4e5), a message (CONVERSATION:12), or a conversation"),
                "offset": whole("First line, from 1; below 0 counted from the end"),
                "limit": whole("Most lines"),
            }),
            None,
        ),
        reads(
            "search",
            About::Any,
            "Search what was said and what was taken out of the prompt. Gives the best passages with their dates, in the order of \
             time, and ids for recall.",
            &["query"],
            json!({
                "query": text("Words or a phrase; nothing in it is syntax"),
                "offset": whole("First hit, from 1"),
                "limit": whole("Most hits"),
            }),
            None,
        ),
        reads(
            "ask",
            About::Any,
            "Have a model read a long text that left the conversation, and answer a question about it with the numbers of the lines \
             that say so: costs you some lines instead of the whole text.",
            &["id", "question"],
            json!({
                "id": text("A record (r3f9a0c12d4e5) or a message (CONVERSATION:12)"),
                "question": text("What you want to know of it"),
            }),
            None,
        ),
        reads(
            "context",
            About::Any,
            "How full the context window of a conversation is, by region, and what was taken out of it and why.",
            &[],
            json!({}),
            Some(json!({"type": "object"})),
        ),
        reads(
            "window",
            About::Nothing,
            "The context window that each model really has now, and where that number comes from.",
            &[],
            json!({"model": text("Only this model")}),
            Some(json!({"type": "object", "properties": {"models": models}, "required": ["models"]})),
        ),
        reads(
            "pins",
            About::One,
            "What is pinned in a conversation, by whom, and how many tokens it takes.",
            &[],
            json!({}),
            Some(json!({"type": "object", "properties": {"pins": {"type": "array"}}, "required": ["pins"]})),
        ),
        reads(
            "build",
            About::One,
            "Messages for a new conversation, out of turns of this one. Without turns and briefs: lists what there is, with numbers.",
            &[],
            json!({
                "turns": {"type": "array", "items": {"type": ["integer", "string"]},
                    "description": "Turns (what a person asked, with all that follows), from 1, and steps of them as text: [3, \"4.2\"]"},
                "briefs": {"type": "array", "items": {"type": "integer"}, "description": "Briefs by their number"},
            }),
            Some(json!({"type": "object"})),
        ),
    ]
}

/// What changes what the model sees. The words are those of `POST /windowsill/conversations/{id}/pins` and its like.
fn changing() -> Vec<Known> {
    let when = json!({"type": "string", "enum": ["now", "next_break"],
        "description": "With the next request (now), or once the prompt is rewritten anyway"});
    let dry_run = json!({"type": "boolean", "description": "Only say what it would cost"});
    let answer = || Some(json!({"type": "object"}));
    let changes = |name, description, required, properties, effect| Known {
        name,
        description,
        required,
        properties,
        about: About::One,
        answer: answer(),
        effect,
    };
    vec![
        changes(
            "pin",
            "Have a short text, or a message, stay in the prompt whatever else is cut, cleared or summarized.",
            &[],
            json!({
                "text": text("What the model should always have, word for word"),
                "message": whole("A message of the history instead, by its number from 0"),
                "when": when, "dry_run": dry_run,
            }),
            Effect::Adds,
        ),
        changes(
            "unpin",
            "Take a pin back.",
            &["pin"],
            json!({"pin": whole("Its number, as `pins` lists it"), "when": when, "dry_run": dry_run}),
            Effect::Removes,
        ),
        changes(
            "done",
            "Say that the task is done. A record of it is kept, and its working steps leave the prompt, from where `recall` reads \
             them back.",
            &[],
            json!({"note": text("The outcome in a few sentences: what was done, how it was checked, what is left")}),
            Effect::Adds,
        ),
    ]
}
