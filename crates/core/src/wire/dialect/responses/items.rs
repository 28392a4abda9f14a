//! `instructions` and `input`: the history, item by item, as messages.

use serde_json::{Map, Value, json};

use super::super::super::WireError;
use super::super::wrong;
use super::{PLAIN, given, list_if, path, text, text_if};

/// Stands in a tool's result for an image: most chat templates take only text there.
const IMAGE: &str = "[image: in the next user message]";

/// The messages of a request. A longer history gives the same messages and further ones; only the calls and texts of
/// one assistant turn come together in one message.
pub(super) fn messages(fields: &Map<String, Value>) -> Result<Vec<Value>, WireError> {
    let mut history = History::default();
    if let Some(instructions) = text_if(fields, "", "instructions")? {
        history.system(instructions.to_owned());
    }
    match given(fields, "input") {
        Some(Value::String(words)) => history.push(json!({"role": "user", "content": words})),
        Some(Value::Array(items)) => {
            for (at, item) in items.iter().enumerate() {
                history.item(item, &format!("input[{at}]"))?;
            }
        }
        None => return Err(wrong("input", "is missing: it must be a string or an array of items")),
        Some(_) => return Err(wrong("input", "must be a string or an array of items")),
    }
    let messages = history.messages();
    if messages.is_empty() {
        return Err(wrong("input", "is empty: it must hold at least one message"));
    }
    Ok(messages)
}

/// Messages, and what waits for its place among them.
#[derive(Default)]
struct History {
    /// What goes into the one system message: many chat templates fail on a second one, or on one that is not first.
    system: Vec<String>,
    messages: Vec<Value>,
    /// Reasoning that belongs to the assistant's next words or calls.
    reasoning: Vec<String>,
    /// Images of tool results, for the message after the last of these results.
    images: Vec<Value>,
}

impl History {
    fn item(&mut self, item: &Value, at: &str) -> Result<(), WireError> {
        let Value::Object(item) = item else { return Err(wrong(at, "must be an object")) };
        match text_if(item, at, "type")? {
            Some("message") => self.message(item, at),
            None if given(item, "role").is_some() => self.message(item, at),
            None => Err(wrong(path(at, "type"), "is missing: an item has a `type`, or a `role` where it is a message")),
            Some("function_call") => {
                let arguments = text(item, at, "arguments")?;
                // Servers read the arguments as JSON, and some fail on nothing at all.
                let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
                self.call(item, at, arguments)
            }
            Some("custom_tool_call") => {
                let arguments = json!({"input": text(item, at, "input")?}).to_string();
                self.call(item, at, &arguments)
            }
            Some("function_call_output" | "custom_tool_call_output") => self.output(item, at),
            Some("reasoning") => {
                let thought = reasoning(item, at)?;
                self.reasoning.extend(Some(thought).filter(|t| !t.is_empty()));
                Ok(())
            }
            // Says that there was a search, not what it found: the answer after it has that.
            Some("web_search_call") => Ok(()),
            Some("item_reference") => {
                Err(wrong(at, "cannot be followed: windowsill keeps no items. Send the item itself"))
            }
            Some(_) => {
                let what = "is not known here; an item is a `message`, `function_call`, `function_call_output`, \
                            `custom_tool_call`, `custom_tool_call_output`, `reasoning` or `web_search_call`";
                Err(wrong(path(at, "type"), what))
            }
        }
    }

    fn message(&mut self, item: &Map<String, Value>, at: &str) -> Result<(), WireError> {
        let role = text(item, at, "role")?;
        let parts = parts(item.get("content"), &path(at, "content"))?;
        match role {
            "user" => self.push(json!({"role": "user", "content": content(parts)})),
            "assistant" => self.assistant(content(parts)),
            "system" | "developer" => {
                let words = only_text(parts, &path(at, "content"))?;
                if self.messages.is_empty() {
                    self.system(words);
                } else {
                    let words = format!("<system-reminder>\n{words}\n</system-reminder>");
                    self.push(json!({"role": "user", "content": words}));
                }
            }
            _ => return Err(wrong(path(at, "role"), "must be `user`, `assistant`, `system` or `developer`")),
        }
        Ok(())
    }

    fn system(&mut self, words: String) {
        if !words.is_empty() {
            self.system.push(words);
        }
    }

    /// The assistant's turn that is not over yet: nothing came after its last item.
    fn turn(&mut self) -> Option<&mut Map<String, Value>> {
        let last = self.messages.last_mut()?.as_object_mut()?;
        (last.get("role")? == "assistant").then_some(last)
    }

    fn assistant(&mut self, content: Value) {
        let thought = std::mem::take(&mut self.reasoning);
        // Text after calls whose results are still to come: a message of its own would part the calls from them.
        if let Some(turn) = self.turn().filter(|turn| turn.contains_key("tool_calls")) {
            let joined = match (turn.get("content"), &content) {
                (None | Some(Value::Null), _) => Some(content.clone()),
                (Some(Value::String(old)), Value::String(new)) => Some(join([old.as_str(), new], "\n\n").into()),
                _ => None,
            };
            if let Some(joined) = joined {
                turn.insert("content".into(), joined);
                add_reasoning(turn, &thought);
                return;
            }
        }
        self.push_images();
        let mut turn = Map::new();
        turn.insert("role".into(), "assistant".into());
        turn.insert("content".into(), content);
        add_reasoning(&mut turn, &thought);
        self.messages.push(turn.into());
    }

    fn call(&mut self, item: &Map<String, Value>, at: &str, arguments: &str) -> Result<(), WireError> {
        let (id, name) = (text(item, at, "call_id")?, text(item, at, "name")?);
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        if self.turn().is_none() {
            self.push_images();
            self.messages.push(json!({"role": "assistant", "content": null}));
        }
        let thought = std::mem::take(&mut self.reasoning);
        let Some(turn) = self.turn() else { return Ok(()) };
        add_reasoning(turn, &thought);
        match turn.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => _ = turn.insert("tool_calls".into(), json!([call])),
        }
        Ok(())
    }

    fn output(&mut self, item: &Map<String, Value>, at: &str) -> Result<(), WireError> {
        let place = path(at, "output");
        // Codex reports what no model called, such as a goal that was set: an output with a name and no call.
        if let (None, Some(name)) = (text_if(item, at, "call_id")?, text_if(item, at, "name")?) {
            let words = only_text(parts(item.get("output"), &place)?, &place)?;
            self.push(
                json!({"role": "user", "content": format!("<system-reminder>\n{name}: {words}\n</system-reminder>")}),
            );
            return Ok(());
        }
        let id = text(item, at, "call_id")?;
        let mut words = Vec::new();
        let mut images = Vec::new();
        for (nth, part) in parts(item.get("output"), &place)?.into_iter().enumerate() {
            match part {
                Part::Text(text) => words.push(text),
                Part::Image(image) => {
                    images.push(image);
                    words.push(IMAGE.to_owned());
                }
                Part::Audio(_) => return Err(wrong(format!("{place}[{nth}]"), "must be text or an image")),
            }
        }
        self.reasoning.clear();
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": words.join("\n")}));
        self.images.append(&mut images);
        Ok(())
    }

    /// Adds a message that is neither the assistant's nor a tool's.
    fn push(&mut self, message: Value) {
        self.reasoning.clear();
        self.push_images();
        self.messages.push(message);
    }

    fn push_images(&mut self) {
        if !self.images.is_empty() {
            let images = std::mem::take(&mut self.images);
            self.messages.push(json!({"role": "user", "content": images}));
        }
    }

    fn messages(mut self) -> Vec<Value> {
        self.push_images();
        if !self.system.is_empty() {
            self.messages.insert(0, json!({"role": "system", "content": self.system.join("\n\n")}));
        }
        self.messages
    }
}

fn add_reasoning(turn: &mut Map<String, Value>, thought: &[String]) {
    if !thought.is_empty() {
        let earlier = turn.get("reasoning_content").and_then(Value::as_str);
        let all: Vec<&str> = earlier.into_iter().chain(thought.iter().map(String::as_str)).collect();
        let all = all.join("\n\n");
        turn.insert("reasoning_content".into(), all.into());
    }
}

/// The text of a reasoning item: the reasoning itself, else its summary, else what [`PLAIN`] marks as ours.
fn reasoning(item: &Map<String, Value>, at: &str) -> Result<String, WireError> {
    for key in ["content", "summary"] {
        let list = list_if(item, at, key)?;
        let all = list.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
        let all: Vec<&str> = all.filter(|text| !text.is_empty()).collect();
        if !all.is_empty() {
            return Ok(all.join("\n\n"));
        }
    }
    let ours = text_if(item, at, "encrypted_content")?.and_then(|kept| kept.strip_prefix(PLAIN));
    Ok(ours.unwrap_or_default().to_owned())
}

/// A part of a content, in the words of chat completions.
enum Part {
    Text(String),
    Image(Value),
    Audio(Value),
}

fn parts(content: Option<&Value>, at: &str) -> Result<Vec<Part>, WireError> {
    match content {
        Some(Value::String(text)) => Ok(vec![Part::Text(text.clone())]),
        Some(Value::Array(list)) => {
            list.iter().enumerate().map(|(nth, one)| part(one, &format!("{at}[{nth}]"))).collect()
        }
        None | Some(Value::Null) => Err(wrong(at, "is missing: it must be a string or an array of parts")),
        Some(_) => Err(wrong(at, "must be a string or an array of parts")),
    }
}

fn part(part: &Value, at: &str) -> Result<Part, WireError> {
    let Value::Object(part) = part else { return Err(wrong(at, "must be an object")) };
    match text(part, at, "type")? {
        "input_text" | "output_text" | "text" => Ok(Part::Text(text(part, at, "text")?.to_owned())),
        "refusal" => Ok(Part::Text(text(part, at, "refusal")?.to_owned())),
        "input_image" => image(part, at),
        "input_audio" => {
            let audio = given(part, "input_audio").filter(|audio| audio.is_object());
            let audio = audio.ok_or_else(|| wrong(path(at, "input_audio"), "must be an object with the audio"))?;
            Ok(Part::Audio(json!({"type": "input_audio", "input_audio": audio})))
        }
        "input_file" => Err(wrong(at, "is a file, and files cannot be given to local models: send its text")),
        _ => {
            let what = "is not known here; a part is `input_text`, `output_text`, `refusal`, `input_image` or \
                        `input_audio`";
            Err(wrong(path(at, "type"), what))
        }
    }
}

fn image(part: &Map<String, Value>, at: &str) -> Result<Part, WireError> {
    let Some(url) = text_if(part, at, "image_url")? else {
        if given(part, "file_id").is_some() {
            let what = "names a file kept at OpenAI, which cannot be read here: send the image itself, as a data URL \
                        in `image_url`";
            return Err(wrong(at, what));
        }
        return Err(wrong(path(at, "image_url"), "is missing: it must be a data URL or an http URL"));
    };
    let mut image = Map::new();
    image.insert("url".into(), url.into());
    if let Some(detail) = text_if(part, at, "detail")? {
        image.insert("detail".into(), detail.into());
    }
    Ok(Part::Image(json!({"type": "image_url", "image_url": image})))
}

/// A content as a plain string, which every template takes, unless there is more than text in it.
fn content(parts: Vec<Part>) -> Value {
    let plain: Option<Vec<&str>> =
        parts.iter().map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None }).collect();
    if let Some(plain) = plain {
        return plain.join("\n").into();
    }
    let list = parts.into_iter().map(|part| match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(value) | Part::Audio(value) => value,
    });
    list.collect()
}

/// The text of a system message, which cannot hold anything else.
fn only_text(parts: Vec<Part>, at: &str) -> Result<String, WireError> {
    let one = |(nth, part)| match part {
        Part::Text(text) => Ok(text),
        _ => Err(wrong(format!("{at}[{nth}]"), "must be text: the message is one of the system")),
    };
    let all: Result<Vec<String>, WireError> = parts.into_iter().enumerate().map(one).collect();
    Ok(all?.join("\n"))
}

/// Texts with something between them; empty ones are left out.
fn join<'a>(texts: impl IntoIterator<Item = &'a str>, between: &str) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(between)
}
