//! `instructions` and `input`: the history, item by item, as messages. Nothing in it is refused: what chat completions have no
//! word for becomes a line, or is left out and counted.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

use super::super::super::WireError;
use super::super::super::json::{self as spelling, Fields};
use super::super::spelled::{self, Asked, Chat, Item, Message, Part, each, given, joined};
use super::super::{Before, wrong};
use super::calls::Form;
use super::compaction::{self, Place, Text};
use super::content::{each_tool, is_audio, only_text, parts, reasoning, result};
use super::head::Head;
use super::lines::{line, media};
use super::tally::Tally;
use super::tools::{Special, Tools};

/// Stands in a tool's result for an image: most chat templates take only text there.
const IMAGE: &str = "[image: in the next user message]";

/// Items of an earlier reply by their ids, as JSON.
pub type Items = HashMap<String, String>;

/// What the history is read with.
pub(super) struct With<'a> {
    pub(super) tools: &'a Tools,
    /// What `item_reference` may lead to.
    pub(super) known: &'a Items,
    /// What `previous_response_id` leads to.
    pub(super) before: Option<&'a Before>,
    /// The newest item of a compaction, by its place: nothing before it counts.
    pub(super) compacted: Option<(usize, Text)>,
    /// The messages that it stands for, where the record has them.
    pub(super) restored: Option<&'a Before>,
    /// What holds on for the requests that go on from the reply to this one.
    pub(super) head: &'a mut Head,
    pub(super) tally: &'a mut Tally,
}

/// Writes the messages of a request. A longer history gives the same messages and further ones; only the calls and texts of
/// one assistant turn come together in one message.
pub(super) fn messages(
    asked: &Asked<'_>,
    instructions: Option<String>,
    with: With<'_>,
    chat: &mut Chat,
) -> Result<(), WireError> {
    let mut history = History::new(with, chat);
    history.system(instructions.unwrap_or_default());
    if let Some((at, text)) = history.with.compacted.take() {
        history.replaced = Some((at, Place::of(text)));
    } else if let Some(before) = history.with.before {
        history.go_on(before)?;
    }
    match asked.spelled("input").filter(|input| *input != "null") {
        None => {}
        Some(input) => match spelling::string(input) {
            Some(words) => history.push(Message::new("user", words.into())),
            None if each(input, |at, item| history.placed(at, &item))? => {}
            None => return Err(wrong("input", "must be a string or an array of items")),
        },
    }
    history.finish();
    // An input that is empty, or missing, is as good as an empty text, which servers answer.
    if chat.is_empty() {
        chat.push(&Message::new("user", "".into()));
    }
    Ok(())
}

/// The tools that a history brings: found by a search, or given by the developer on the way.
pub(super) fn brought(asked: &Asked<'_>) -> Result<Vec<Value>, WireError> {
    let mut all = Vec::new();
    let names = ["tool_search_output", "additional_tools"];
    // Most histories have none, and are not read twice for it.
    let input = asked.spelled("input").filter(|input| names.iter().any(|name| input.contains(name)));
    each(input.unwrap_or_default(), |_, item: Item<'_>| {
        let Item::Object(item) = item else { return Ok(()) };
        let kind = item.string("type").unwrap_or_default();
        if let Some(tools) = given(&item, "tools").filter(|_| names.contains(&kind.as_str()))
            && let Value::Array(tools) = spelled::value(tools)?
        {
            all.extend(tools);
        }
        Ok(())
    })?;
    Ok(all)
}

/// Messages, and what waits for its place among them.
struct History<'a> {
    with: With<'a>,
    chat: &'a mut Chat,
    /// The last message, which may grow; those before it are written.
    last: Option<Message>,
    /// What goes into the one system message: many chat templates fail on a second one, or on one that is not first.
    system: Vec<String>,
    /// Reasoning that belongs to the assistant's next words or calls.
    reasoning: Vec<String>,
    /// Lines that belong there, too.
    lines: Vec<String>,
    /// Images of tool results, for the message after the last of these results.
    images: Vec<Part>,
    /// Calls by the ids that a result may name: the id that the call has here, and how many calls came before it.
    calls: HashMap<String, (String, usize)>,
    /// Those that have no result yet.
    open: BTreeMap<usize, String>,
    /// How many calls there were.
    count: usize,
    /// The first call of the step that the last messages belong to.
    step: usize,
    /// The item of a compaction that is still to come, and what takes its place.
    replaced: Option<(usize, Place)>,
}

impl<'a> History<'a> {
    fn new(with: With<'a>, chat: &'a mut Chat) -> History<'a> {
        History {
            with,
            chat,
            last: None,
            system: Vec::new(),
            reasoning: Vec::new(),
            lines: Vec::new(),
            images: Vec::new(),
            calls: HashMap::new(),
            open: BTreeMap::new(),
            count: 0,
            step: 0,
            replaced: None,
        }
    }

    /// Reads the item at a place of `input`. Before the newest compaction, only what the client says of its own counts.
    fn placed(&mut self, at: usize, item: &Item<'_>) -> Result<(), WireError> {
        match self.replaced.take_if(|(place, _)| *place == at) {
            Some((_, place)) => self.compacted(place),
            None if self.replaced.is_some() => return self.said_anew(item),
            None => return self.item(item),
        }
        Ok(())
    }

    /// What the client puts before a compaction.
    fn said_anew(&mut self, item: &Item<'_>) -> Result<(), WireError> {
        let message = match item {
            Item::Text(text) => Message::new("user", text.as_str().into()),
            Item::Object(item) if matches!(item.string("type").as_deref(), Some("message") | None) => {
                match item.string("role").unwrap_or_default().as_str() {
                    "system" | "developer" => return self.message(item),
                    "user" => Message::of("user", parts(item.get("content"), self.with.tally)?).plain(),
                    _ => return Ok(()),
                }
            }
            _ => return Ok(()),
        };
        if let Some((_, place)) = &mut self.replaced {
            place.note(message);
        }
        Ok(())
    }

    /// Writes what a compaction stands for.
    fn compacted(&mut self, place: Place) {
        if self.with.head.system.is_empty() {
            let kept = place.system();
            self.system.extend(kept.iter().cloned());
            self.with.head.system = kept;
        }
        self.write_last();
        let (spelled, messages) = place.messages(self.with.restored);
        spelled.iter().for_each(|message| self.chat.push_spelled(message));
        messages.into_iter().for_each(|message| self.push(message));
    }

    fn item(&mut self, item: &Item<'_>) -> Result<(), WireError> {
        match item {
            Item::Object(item) => self.object(item),
            Item::Text(text) => {
                self.push(Message::new("user", text.as_str().into()));
                Ok(())
            }
            Item::Other => {
                self.with.tally.left_out("item", None);
                Ok(())
            }
        }
    }

    fn object(&mut self, item: &Fields<'_>) -> Result<(), WireError> {
        let kind = item.string("type").unwrap_or_default();
        match kind.as_str() {
            "message" => self.message(item)?,
            "" if given(item, "role").is_some() => self.message(item)?,
            "item_reference" => self.follow(item)?,
            "" if given(item, "id").is_some() && given(item, "content").is_none() => self.follow(item)?,
            "reasoning" => {
                let thought = reasoning(item)?;
                self.reasoning.extend(Some(thought).filter(|t| !t.is_empty()));
            }
            "function_call_output"
            | "custom_tool_call_output"
            | "local_shell_call_output"
            | "shell_call_output"
            | "apply_patch_call_output"
            | "computer_call_output" => {
                let parts = result(item, self.with.tally)?;
                self.output(item, parts);
            }
            "tool_search_output" => self.found(item)?,
            // Its tools are offered with the others.
            "additional_tools" => {}
            "configuration_update" => {
                for key in ["reasoning", "text"] {
                    let new = given(item, key).filter(|raw| raw.starts_with('{')).map(spelled::value).transpose()?;
                    self.with.tally.update.extend(new.map(|new| (key.to_owned(), new)));
                }
            }
            // The newest one that can be read is not read here, and one that stands in an earlier reply has nothing to say: the
            // messages before it are there.
            kind if compaction::is_item(kind) => {
                if !compaction::is_ours(item) {
                    self.with.tally.left_out(kind, Some(item));
                }
            }
            // Where it is the last one, it is obeyed.
            "compaction_trigger" => {}
            // Told here before, and for the client.
            "mcp_list_tools" if given(item, "error").is_some() => {
                self.with.head.unreached.extend(item.string("server_label"));
            }
            // For the client: the model has no part in it.
            "ghost_snapshot" => self.with.tally.left_out(&kind, Some(item)),
            "mcp_approval_response" => {
                self.with.tally.line(&kind, item);
                self.push(reminder(&line(&kind, item)));
            }
            // A search that OpenAI ran has no id that a result could name.
            "tool_search_call" if id_of(item, &["call_id"]).is_none() => self.line(&kind, item),
            _ => match Form::of_call(&kind) {
                Some(form) => self.call(item, form),
                None => self.line(&kind, item),
            },
        }
        Ok(())
    }

    fn message(&mut self, item: &Fields<'_>) -> Result<(), WireError> {
        let parts = parts(item.get("content"), self.with.tally)?;
        let role = item.string("role").unwrap_or_default();
        match role.as_str() {
            "assistant" => {
                let lines = std::mem::take(&mut self.lines).into_iter().map(Part::Text);
                self.assistant(Message::of("assistant", lines.chain(parts).collect()).plain());
            }
            "system" | "developer" if self.is_empty() => {
                let words = only_text(parts);
                self.with.head.system.push(words.clone());
                self.system(words);
            }
            "system" | "developer" => self.push(reminder(&only_text(parts))),
            "user" | "" => self.push(Message::of("user", parts).plain()),
            _ => {
                self.with.tally.line("message", item);
                let role = Part::Text(format!("[a message of `{}`]", role.escape_debug()));
                self.push(Message::of("user", std::iter::once(role).chain(parts).collect()).plain());
            }
        }
        Ok(())
    }

    /// Writes what was said before, and reads the reply to it as if it stood in `input`.
    fn go_on(&mut self, before: &Before) -> Result<(), WireError> {
        self.with.head.system.retain(|words| !words.is_empty());
        self.system.extend(self.with.head.system.iter().cloned());
        self.write_last();
        before.messages.iter().for_each(|message| self.chat.push_spelled(message));
        each(&before.reply, |_, item| self.item(&item)).map(|_| ())
    }

    /// Reads an item in the place of a reference to it.
    fn follow(&mut self, item: &Fields<'_>) -> Result<(), WireError> {
        let id = item.string("id").unwrap_or_default();
        let Some(kept) = self.with.known.get(&id) else {
            self.with.tally.reference(&id);
            return Ok(());
        };
        match spelled::object(kept)?.filter(|kept| given(kept, "type").is_some_and(|kind| kind != "\"item_reference\""))
        {
            Some(kept) => self.object(&kept),
            None => Ok(()),
        }
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

    /// Words of the assistant. They come into one message with what it said or called just before: a message of its own would
    /// part calls from their results, and servers refuse two in a row at the end.
    fn assistant(&mut self, mut new: Message) {
        let thought = std::mem::take(&mut self.reasoning);
        if let Some(turn) = self.turn()
            && turn.take_content(&mut new)
        {
            add_reasoning(&mut turn.fields, &thought);
            return;
        }
        add_reasoning(&mut new.fields, &thought);
        self.push_images();
        self.add(new);
    }

    /// What a server elsewhere did in the assistant's turn.
    fn line(&mut self, kind: &str, item: &Fields<'_>) {
        self.with.tally.line(kind, item);
        self.lines.push(line(kind, item));
    }

    fn call(&mut self, item: &Fields<'_>, form: Form) {
        let ids: Vec<String> = ["call_id", "id"].iter().filter_map(|key| id_of(item, &[key])).collect();
        let id = ids.first().cloned().unwrap_or_else(|| format!("call_{}", self.count));
        let name = form.name().map(str::to_owned).or_else(|| item.string("name")).filter(|name| !name.is_empty());
        let namespace = item.string("namespace").filter(|group| !group.is_empty());
        let special = Special { form, namespace, name: name.unwrap_or_else(|| "unknown".into()) };
        let call = spelled::call(&id, self.with.tools.called(&special), form.arguments(item));
        if self.turn().is_none() {
            self.push_images();
            self.add(Message::new("assistant", Value::Null));
        }
        self.open.insert(self.count, id.clone());
        for name in ids.into_iter().chain([id.clone()]) {
            self.calls.insert(name, (id.clone(), self.count));
        }
        self.count += 1;
        let (thought, said) = (std::mem::take(&mut self.reasoning), std::mem::take(&mut self.lines));
        let Some(turn) = self.turn() else { return };
        if !said.is_empty() {
            turn.take_content(&mut Message::new("assistant", joined(said, "\n").into()));
        }
        add_reasoning(&mut turn.fields, &thought);
        match turn.fields.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => _ = turn.fields.insert("tool_calls".into(), vec![call].into()),
        }
    }

    /// What a search for tools found. The tools are offered with the others.
    fn found(&mut self, item: &Fields<'_>) -> Result<(), WireError> {
        let tools = given(item, "tools").map(spelled::value).transpose()?.unwrap_or_default();
        let mut names = Vec::new();
        each_tool(&tools, None, &mut |kind, group, name| {
            if let Some(form) = Form::of_tool(kind) {
                let name = form.name().unwrap_or(name).to_owned();
                let special = Special { form, namespace: group.map(str::to_owned), name };
                names.push(self.with.tools.called(&special));
            }
        });
        let words = match names.is_empty() {
            true => "No tools were found.".to_owned(),
            false => format!("Found, and can be called from now on: {}", names.join(", ")),
        };
        if id_of(item, &["call_id"]).is_some() {
            self.output(item, vec![Part::Text(words)]);
        } else {
            self.lines.push(format!("[{words}]"));
        }
        Ok(())
    }

    /// A result. One whose call is not in this history, or has its result already, is said as a text.
    fn output(&mut self, item: &Fields<'_>, parts: Vec<Part>) {
        let (named, name) = (id_of(item, &["call_id"]), item.string("name"));
        let call = named.clone().or_else(|| id_of(item, &["id"])).and_then(|id| self.calls.get(&id).cloned());
        // Codex reports what no model called, such as a goal that was set: an output with a name and no call.
        if let (None, None, Some(name)) = (&named, &call, name) {
            return self.push(reminder(&format!("{name}: {}", only_text(parts))));
        }
        let next = || self.open.iter().next().map(|(at, id)| (id.clone(), *at)).filter(|_| named.is_none());
        let call = call.or_else(next).filter(|(_, at)| *at >= self.step || self.open.contains_key(at));
        let (mut words, mut images) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Part::Text(text) => words.push(text),
                Part::Media(sound) if is_audio(&sound) => words.push(media("audio", "", None)),
                image @ Part::Media(_) => {
                    images.push(image);
                    words.push(IMAGE.to_owned());
                }
            }
        }
        let words = joined(words, "\n");
        self.reasoning.clear();
        match call {
            Some((id, at)) => {
                self.open.remove(&at);
                self.add(Message::result(&id, words));
                self.images.append(&mut images);
            }
            None => {
                let begin = "The result of a call that is not in this conversation any more:\n";
                let parts = std::iter::once(Part::Text(format!("{begin}{words}"))).chain(images).collect();
                self.push(Message::of("user", parts).plain());
            }
        }
    }

    /// Adds a message that is neither the assistant's nor a tool's.
    fn push(&mut self, message: Message) {
        self.reasoning.clear();
        if !self.lines.is_empty() {
            let lines = joined(std::mem::take(&mut self.lines), "\n");
            self.assistant(Message::new("assistant", lines.into()));
        }
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
        if !message.is_of("tool") {
            self.step = self.count;
        }
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

    /// Lines at the end are no words of the assistant's that a model would go on with.
    fn finish(mut self) {
        if !self.lines.is_empty() {
            let lines = joined(std::mem::take(&mut self.lines), "\n");
            self.push(reminder(&lines));
        }
        self.push_images();
        self.write_last();
    }
}

/// The first of these fields that is a text with something in it.
fn id_of(item: &Fields<'_>, keys: &[&str]) -> Option<String> {
    keys.iter().find_map(|key| item.string(key).filter(|id| !id.is_empty()))
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
