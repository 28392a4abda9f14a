//! `instructions` and `input`: the history, item by item, as messages.

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::super::WireError;
use super::super::super::json::{self as spelling, Fields};
use super::super::spelled::{self, Asked, Chat, Item, Message, Part, each, given, joined};
use super::super::wrong;
use super::{PLAIN, path};

/// Stands in a tool's result for an image: most chat templates take only text there.
const IMAGE: &str = "[image: in the next user message]";

/// Writes the messages of a request. A longer history gives the same messages and further ones; only the calls and texts of
/// one assistant turn come together in one message.
pub(super) fn messages(asked: &Asked<'_>, instructions: Option<&str>, chat: &mut Chat) -> Result<(), WireError> {
    let mut history = History { chat, last: None, system: Vec::new(), reasoning: Vec::new(), images: Vec::new() };
    history.system(instructions.unwrap_or_default().to_owned());
    let input = asked.spelled("input").filter(|input| *input != "null");
    let input = input.ok_or_else(|| wrong("input", "is missing: it must be a string or an array of items"))?;
    if let Some(words) = spelling::string(input) {
        history.push(Message::new("user", words.into()));
    } else if !each(input, |at, item| history.item(&item, &format!("input[{at}]")))? {
        return Err(wrong("input", "must be a string or an array of items"));
    }
    history.finish();
    if chat.is_empty() { Err(wrong("input", "is empty: it must hold at least one message")) } else { Ok(()) }
}

/// Messages, and what waits for its place among them.
struct History<'a> {
    chat: &'a mut Chat,
    /// The last message, which may grow; those before it are written.
    last: Option<Message>,
    /// What goes into the one system message: many chat templates fail on a second one, or on one that is not first.
    system: Vec<String>,
    /// Reasoning that belongs to the assistant's next words or calls.
    reasoning: Vec<String>,
    /// Images of tool results, for the message after the last of these results.
    images: Vec<Part>,
}

impl History<'_> {
    fn item(&mut self, item: &Item<'_>, at: &str) -> Result<(), WireError> {
        let Item::Object(item) = item else { return Err(wrong(at, "must be an object")) };
        match text_if(item, at, "type")?.as_deref() {
            Some("message") => self.message(item, at),
            None if given(item, "role").is_some() => self.message(item, at),
            None => Err(wrong(path(at, "type"), "is missing: an item has a `type`, or a `role` where it is a message")),
            Some("function_call") => {
                let arguments = text(item, at, "arguments")?;
                // Servers read the arguments as JSON, and some fail on nothing at all.
                let arguments = if arguments.trim().is_empty() { "{}".into() } else { arguments };
                self.call(item, at, arguments)
            }
            Some("custom_tool_call") => {
                let arguments = json!({"input": text(item, at, "input")?}).to_string();
                self.call(item, at, arguments)
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

    fn message(&mut self, item: &Fields<'_>, at: &str) -> Result<(), WireError> {
        let role = text(item, at, "role")?;
        let parts = parts(item.get("content"), &path(at, "content"))?;
        match role.as_str() {
            "user" => self.push(Message::of("user", parts).plain()),
            "assistant" => self.assistant(Message::of("assistant", parts).plain()),
            "system" | "developer" => {
                let words = only_text(parts, &path(at, "content"))?;
                if self.is_empty() {
                    self.system(words);
                } else {
                    self.push(reminder(&words));
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

    fn is_empty(&self) -> bool {
        self.chat.is_empty() && self.last.is_none()
    }

    /// The assistant's turn that is not over yet: nothing came after its last item.
    fn turn(&mut self) -> Option<&mut Message> {
        self.last.as_mut().filter(|last| last.is_of("assistant"))
    }

    fn assistant(&mut self, mut new: Message) {
        let thought = std::mem::take(&mut self.reasoning);
        // Text after calls whose results are still to come: a message of its own would part the calls from them.
        if let Some(turn) = self.turn().filter(|turn| turn.fields.contains_key("tool_calls"))
            && turn.take_content(&mut new)
        {
            add_reasoning(&mut turn.fields, &thought);
            return;
        }
        add_reasoning(&mut new.fields, &thought);
        self.push_images();
        self.add(new);
    }

    fn call(&mut self, item: &Fields<'_>, at: &str, arguments: String) -> Result<(), WireError> {
        let (id, name) = (text(item, at, "call_id")?, text(item, at, "name")?);
        let call = spelled::call(id, name, arguments);
        if self.turn().is_none() {
            self.push_images();
            self.add(Message::new("assistant", Value::Null));
        }
        let thought = std::mem::take(&mut self.reasoning);
        let Some(Message { fields: turn, .. }) = self.turn() else { return Ok(()) };
        add_reasoning(turn, &thought);
        match turn.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => _ = turn.insert("tool_calls".into(), vec![call].into()),
        }
        Ok(())
    }

    fn output(&mut self, item: &Fields<'_>, at: &str) -> Result<(), WireError> {
        let place = path(at, "output");
        // Codex reports what no model called, such as a goal that was set: an output with a name and no call.
        if let (None, Some(name)) = (text_if(item, at, "call_id")?, text_if(item, at, "name")?) {
            let words = only_text(parts(item.get("output"), &place)?, &place)?;
            self.push(reminder(&format!("{name}: {words}")));
            return Ok(());
        }
        let id = text(item, at, "call_id")?;
        let mut words = Vec::new();
        let mut images = Vec::new();
        for (nth, part) in parts(item.get("output"), &place)?.into_iter().enumerate() {
            match part {
                Part::Text(text) => words.push(text),
                Part::Media(media) if is_audio(&media) => {
                    return Err(wrong(format!("{place}[{nth}]"), "must be text or an image"));
                }
                image @ Part::Media(_) => {
                    images.push(image);
                    words.push(IMAGE.to_owned());
                }
            }
        }
        self.reasoning.clear();
        self.add(Message::result(id, joined(words, "\n")));
        self.images.append(&mut images);
        Ok(())
    }

    /// Adds a message that is neither the assistant's nor a tool's.
    fn push(&mut self, message: Message) {
        self.reasoning.clear();
        self.push_images();
        self.add(message);
    }

    fn push_images(&mut self) {
        if !self.images.is_empty() {
            let images = std::mem::take(&mut self.images);
            self.add(Message::of("user", images));
        }
    }

    fn add(&mut self, message: Message) {
        self.write_last();
        self.last = Some(message);
    }

    fn write_last(&mut self) {
        if !self.system.is_empty() {
            let system = std::mem::take(&mut self.system).join("\n\n");
            self.chat.push(&Message::new("system", system.into()));
        }
        if let Some(last) = self.last.take() {
            self.chat.push(&last);
        }
    }

    fn finish(mut self) {
        self.push_images();
        self.write_last();
    }
}

fn reminder(words: &str) -> Message {
    Message::new("user", format!("<system-reminder>\n{words}\n</system-reminder>").into())
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
fn reasoning(item: &Fields<'_>, at: &str) -> Result<String, WireError> {
    for key in ["content", "summary"] {
        let mut all = Vec::new();
        let is_list = each(given(item, key).unwrap_or("[]"), |_, part| {
            let Item::Object(part) = part else { return Ok(()) };
            all.extend(part.string("text").filter(|text| !text.is_empty()));
            Ok(())
        })?;
        if !is_list {
            return Err(wrong(path(at, key), "must be an array"));
        }
        if !all.is_empty() {
            return Ok(joined(all, "\n\n"));
        }
    }
    let kept = text_if(item, at, "encrypted_content")?;
    Ok(kept.as_deref().and_then(|kept| kept.strip_prefix(PLAIN)).unwrap_or_default().to_owned())
}

fn parts(content: Option<&str>, at: &str) -> Result<Vec<Part>, WireError> {
    let content = content.filter(|content| *content != "null");
    let content = content.ok_or_else(|| wrong(at, "is missing: it must be a string or an array of parts"))?;
    if let Some(text) = spelling::string(content) {
        return Ok(vec![Part::Text(text)]);
    }
    let mut all = Vec::new();
    let is_list = each(content, |nth, one| {
        all.push(part(&one, &format!("{at}[{nth}]"))?);
        Ok(())
    })?;
    if is_list { Ok(all) } else { Err(wrong(at, "must be a string or an array of parts")) }
}

fn part(part: &Item<'_>, at: &str) -> Result<Part, WireError> {
    let Item::Object(part) = part else { return Err(wrong(at, "must be an object")) };
    match text(part, at, "type")?.as_str() {
        "input_text" | "output_text" | "text" => Ok(Part::Text(text(part, at, "text")?)),
        "refusal" => Ok(Part::Text(text(part, at, "refusal")?)),
        "input_image" => image(part, at),
        "input_audio" => {
            let audio = part.get("input_audio").filter(|audio| audio.starts_with('{'));
            let audio = audio.ok_or_else(|| wrong(path(at, "input_audio"), "must be an object with the audio"))?;
            Ok(Part::media(&json!({"type": "input_audio", "input_audio": spelled::value(audio)?})))
        }
        "input_file" => Err(wrong(at, "is a file, and files cannot be given to local models: send its text")),
        _ => {
            let what = "is not known here; a part is `input_text`, `output_text`, `refusal`, `input_image` or \
                        `input_audio`";
            Err(wrong(path(at, "type"), what))
        }
    }
}

fn is_audio(media: &RawValue) -> bool {
    media.get().starts_with(r#"{"type":"input_audio""#)
}

fn image(part: &Fields<'_>, at: &str) -> Result<Part, WireError> {
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
    Ok(Part::media(&json!({"type": "image_url", "image_url": image})))
}

/// The text of a system message, which cannot hold anything else.
fn only_text(parts: Vec<Part>, at: &str) -> Result<String, WireError> {
    let one = |(nth, part)| match part {
        Part::Text(text) => Ok(text),
        Part::Media(_) => Err(wrong(format!("{at}[{nth}]"), "must be text: the message is one of the system")),
    };
    let all: Result<Vec<String>, WireError> = parts.into_iter().enumerate().map(one).collect();
    Ok(joined(all?, "\n"))
}

/// A text that may be absent.
fn text_if(fields: &Fields<'_>, at: &str, key: &str) -> Result<Option<String>, WireError> {
    let text =
        given(fields, key).map(|raw| spelling::string(raw).ok_or_else(|| wrong(path(at, key), "must be a string")));
    text.transpose()
}

/// A text that must be there.
fn text(fields: &Fields<'_>, at: &str, key: &str) -> Result<String, WireError> {
    text_if(fields, at, key)?.ok_or_else(|| wrong(path(at, key), "is missing: it must be a string"))
}
