//! Turns a plan into the edits of a new view. Originals are handed back to be saved before the view is sent; nothing here
//! reads, writes or sends anything.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::conversation::edit::{Edit, Rule, View};
use crate::conversation::files::Superseded;
use crate::conversation::step::{self, call_of};
use crate::conversation::task::Keep;
use crate::conversation::{Conversation, Message, Role, Text, Tokens};
use crate::plan::{Action, Plan};
use crate::preview::{Call, Pointer};
use crate::salience::Salience;
use crate::{brief, pinned, preview};

/// A result of fewer bytes than this leaves no findings behind: they would be most of it.
const WITH_FINDINGS: usize = 900;

/// Findings that stay of a cleared result.
const FINDINGS: usize = 2;

/// A text that left the prompt, exactly as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Original {
    /// Record id: `r` and at least 12 hexadecimal digits.
    pub id: String,
    /// The conversation it came from.
    pub conversation: String,
    /// Index in the body of the message that held it.
    pub at: usize,
    /// `tool_result`, `arguments`, `message`, `fold`, or `item` for what has no words in chat completions.
    pub kind: String,
    /// Name of the tool, for results and arguments.
    pub tool: Option<String>,
    /// The call in one line.
    pub call: Option<String>,
    /// The text.
    pub text: Text,
    /// The whole JSON message, where the text does not say everything (media) and no node holds it.
    pub raw: Option<Bytes>,
}

/// What the record says of the names and places of originals.
pub trait Archive {
    /// Why it cannot say.
    type Error;

    /// The id that this text has in the record, or will have: the same text always gets the same one.
    ///
    /// # Errors
    /// When the record cannot be read.
    fn free_id(&self, text: &str) -> Result<String, Self::Error>;

    /// The readable file of an original.
    fn result_path(&self, id: &str) -> PathBuf;

    /// The readable file of a conversation.
    fn history_path(&self, conversation: &str) -> PathBuf;
}

/// What the plan of one request is applied to.
pub struct Input<'a, A> {
    /// The client's history.
    pub conversation: &'a Conversation,
    /// Name of the conversation in the record.
    pub id: &'a str,
    /// What to do.
    pub plan: &'a Plan,
    /// The view so far.
    pub old: &'a View,
    /// The record, asked for ids and paths.
    pub store: &'a A,
    /// Tokens of a text, erring high.
    pub count: &'a dyn Fn(&str) -> Tokens,
    /// Texts of people and models that go into the view.
    pub words: Words<'a>,
}

/// Texts of people and models that go into a view, and what to keep above all. By default there are none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Words<'a> {
    /// What is pinned, and holds through every fold.
    pub pins: &'a [pinned::Pin],
    /// What a model wrote for the brief, where there is something.
    pub written: Option<Written<'a>>,
    /// What the person who asked for it wants kept above all.
    pub focus: Option<&'a str>,
    /// The kind of content that the conversation's task keeps longest.
    pub keep: Option<Keep>,
    /// What a model made of large results, by the message they stand in: it takes the preview's place.
    pub digests: Option<&'a HashMap<usize, String>>,
}

/// What a model wrote for a brief.
#[derive(Debug, Clone, Copy)]
pub struct Written<'a> {
    /// Its words.
    pub text: &'a str,
    /// How many messages of the body it was made from, the ones left out aside: one past the last that it tells of.
    pub read: usize,
    /// Messages among these that it was not made from: see [`View::unread`].
    pub unread: &'a [usize],
}

/// A new view, and what must be saved before it is sent.
#[derive(Debug, Default)]
pub struct Applied {
    /// The complete view.
    pub view: View,
    /// The originals that leave the prompt.
    pub originals: Vec<Original>,
}

/// Makes the material of a plan and puts it into a view. Deterministic.
///
/// # Errors
/// When the record cannot be asked.
pub fn apply<A: Archive>(input: &Input<'_, A>) -> Result<Applied, A::Error> {
    let mut work = Work {
        input,
        edits: Vec::new(),
        originals: Vec::new(),
        used: HashMap::new(),
        salience: OnceCell::new(),
        superseded: OnceCell::new(),
    };
    work.used = work.used_of_cleared();
    for action in &input.plan.actions {
        work.act(action)?;
    }
    let Work { edits, originals, .. } = work;
    let forgotten: Vec<usize> =
        input.plan.actions.iter().filter(|a| matches!(a, Action::Forget { .. })).map(Action::first).collect();
    Ok(Applied { view: merge(input.old, edits, &forgotten, input.conversation.body.len()), originals })
}

/// The old edits that still stand, and the new ones. Behind the messages `forgotten`, nothing stands any more.
fn merge(old: &View, new: Vec<Edit>, forgotten: &[usize], messages: usize) -> View {
    let fold = new.iter().chain(&old.edits).find_map(|e| match e {
        Edit::Fold { from, to, keep, .. } => Some((*from, *to, keep.clone())),
        _ => None,
    });
    let folded =
        |at: usize| fold.as_ref().is_some_and(|(from, to, keep)| (*from..*to).contains(&at) && !keep.contains(&at));
    let replaced = |e: &Edit| {
        new.iter().any(|n| match (n, e) {
            (Edit::Fold { .. }, Edit::Fold { .. }) => true,
            (Edit::Text { at: a, .. }, Edit::Text { at: b, .. }) => a == b,
            (Edit::Arguments { at: a, call: c, .. }, Edit::Arguments { at: b, call: d, .. }) => (a, c) == (b, d),
            // What came behind a text goes with it.
            (Edit::Text { at: a, .. }, Edit::Recalled { at: b, .. }) => a == b,
            _ => false,
        })
    };
    let place = |e: &Edit| match e {
        Edit::Fold { .. } => (0, 0, 0),
        Edit::Text { at, .. } => (1, *at, 0),
        Edit::Arguments { at, call, .. } => (1, *at, call + 1),
        Edit::Recalled { at, .. } => (1, *at, usize::MAX),
    };
    let stands = |e: &Edit| match e {
        Edit::Fold { .. } => true,
        Edit::Text { at, .. } | Edit::Arguments { at, .. } => !folded(*at),
        Edit::Recalled { at, .. } => !folded(*at) && !forgotten.contains(at),
    };
    let kept: Vec<Edit> = old.edits.iter().filter(|e| !replaced(e)).cloned().collect();
    let mut edits: Vec<Edit> = kept.into_iter().chain(new).filter(|e| stands(e)).collect();
    edits.sort_by_key(place);
    let changing = old.changing.iter().copied().filter(|at| !folded(*at)).collect();
    View { messages, edits, bare: old.bare, changing }
}

struct Work<'a, A> {
    input: &'a Input<'a, A>,
    edits: Vec<Edit>,
    originals: Vec<Original>,
    /// What of the results that are cleared now stays beside their placeholders.
    used: HashMap<usize, String>,
    salience: OnceCell<Salience>,
    superseded: OnceCell<Superseded>,
}

impl<A: Archive> Work<'_, A> {
    fn act(&mut self, action: &Action) -> Result<(), A::Error> {
        let input = self.input;
        match action {
            Action::Preview { at, budget, rule } => {
                let (record, path) = self.save(*at)?;
                let (call, pointer) = (call(input.conversation, *at), Pointer { id: &record, path: &path });
                let digest = input
                    .words
                    .digests
                    .and_then(|all| all.get(at))
                    .filter(|d| *rule == Rule::Evict && (input.count)(d) <= *budget);
                let persons = step::is_persons(&input.conversation.body[*at]);
                let settled = if *rule == Rule::Settle { preview::settled(self.text(*at)) } else { None };
                let text = match digest {
                    _ if settled.is_some() => settled.unwrap_or_default() + &preview::settled_note(&record),
                    Some(digest) => digest.clone(),
                    // What a person says is cut in the middle: the question stands at the end as a rule.
                    None if persons => preview::cut(self.text(*at), *budget, input.count, &pointer),
                    None => preview::preview(self.text(*at), &call, &pointer, *budget, input.count).text,
                };
                self.text_edit(*at, *rule, text, record);
            }
            Action::Placeholder { at, .. } => {
                let (record, path) = self.save(*at)?;
                let (call, pointer) = (call(input.conversation, *at), Pointer { id: &record, path: &path });
                let replaced = self.superseded().result(*at);
                let mut text = preview::placeholder(self.text(*at), &call, &pointer, replaced);
                let used = self.used.remove(at);
                let findings = || if replaced { Vec::new() } else { self.findings(*at) };
                for line in used.map_or_else(findings, |used| vec![used]) {
                    text.push('\n');
                    text.push_str(&line);
                }
                self.text_edit(*at, Rule::Clear, text, record);
            }
            Action::Repeat { at, .. } => {
                let (record, _) = self.save(*at)?;
                let text = format!(
                    "[the same output, word for word, as an earlier result in this conversation; windowsill recall {record}]"
                );
                self.text_edit(*at, Rule::Repeat, text, record);
            }
            Action::Restore { at, of, whole } => {
                let (record, path) = self.save(*of)?;
                let stub = self.text(*at);
                let text = if *whole {
                    let original = self.text(*of);
                    format!(
                        "{stub}\n[that earlier result had left this prompt; here it is again, windowsill recall {record}]\n{original}"
                    )
                } else {
                    format!(
                        "{stub}\n[that earlier result is no longer in this prompt; full text: windowsill recall {record} or {path}]"
                    )
                };
                self.text_edit(*at, Rule::Restore, text, record);
            }
            Action::Cut { at, budget } => {
                let (record, path) = self.save(*at)?;
                let text = preview::cut(self.text(*at), *budget, input.count, &Pointer { id: &record, path: &path });
                self.text_edit(*at, Rule::Truncate, text, record);
            }
            Action::Elide { at, call, budget, rule } => self.elide(*at, *call, *budget, *rule)?,
            Action::Quiet { at } => {
                let (record, _) = self.save(*at)?;
                // The words stay; an edit of a text takes away what was thought before it.
                self.text_edit(*at, Rule::Clear, self.text(*at).to_owned(), record);
            }
            Action::Forget { .. } => {}
            Action::Fold { from, to, keep, budget, .. } => self.fold(*from, *to, keep, *budget),
        }
        Ok(())
    }

    /// The lines of a cleared result that would be missed most.
    fn findings(&self, at: usize) -> Vec<String> {
        let body = &self.input.conversation.body;
        if body[at].text.len() < WITH_FINDINGS {
            return Vec::new();
        }
        let made = call_of(body, at).map(|(message, call)| &body[message].calls[call]);
        brief::findings(&body[at], made, FINDINGS)
    }

    fn text(&self, at: usize) -> &str {
        &self.input.conversation.body[at].text
    }

    fn text_edit(&mut self, at: usize, rule: Rule, text: String, record: String) {
        let message = &self.input.conversation.body[at];
        let digest = message.digest;
        let bare = message.media.is_empty() && message.reasoning.is_empty();
        let edited = self.input.old.edits.iter().any(|e| matches!(e, Edit::Text { at: old, .. } if *old == at));
        // An edit that takes nothing away would still cost the message its bytes, and a marker instead of nothing costs room.
        if bare && !edited && (message.text.is_empty() || message.text == text) {
            return;
        }
        self.edits.push(Edit::Text { at, digest, rule, text: text.into(), record });
    }

    /// Puts a message aside to be saved; its record id and the path of its file.
    fn save(&mut self, at: usize) -> Result<(String, String), A::Error> {
        let message = &self.input.conversation.body[at];
        let kind = if message.role == Role::Tool { "tool_result" } else { "message" };
        // Media and reasoning leave with the text: only the whole message brings them back.
        let text = match message.media.is_empty() && message.reasoning.is_empty() {
            true => message.text.clone(),
            false => String::from_utf8_lossy(&message.raw).into_owned().into(),
        };
        self.save_text(at, kind, text, None, &call(self.input.conversation, at))
    }

    fn save_text(
        &mut self,
        at: usize,
        kind: &str,
        text: Text,
        raw: Option<Bytes>,
        call: &Call<'_>,
    ) -> Result<(String, String), A::Error> {
        let id = self.input.store.free_id(&text)?;
        let path = self.input.store.result_path(&id).display().to_string();
        self.originals.push(Original {
            id: id.clone(),
            conversation: self.input.id.to_owned(),
            at,
            kind: kind.to_owned(),
            tool: (!call.tool.is_empty()).then(|| call.tool.to_owned()),
            call: (!call.tool.is_empty()).then(|| one_line(call)),
            text,
            raw,
        });
        Ok((id, path))
    }

    fn elide(&mut self, at: usize, call: usize, budget: Tokens, rule: Rule) -> Result<(), A::Error> {
        let message = &self.input.conversation.body[at];
        let made = &message.calls[call];
        // As the client sent it, should it have been repaired.
        let sent = crate::wire::openai_chat::message(message.raw.clone())
            .ok()
            .and_then(|m| m.calls.get(call).map(|c| c.arguments.clone()))
            .unwrap_or_else(|| made.arguments.clone());
        let named = Call { tool: &made.name, arguments: "" };
        let (record, path) = self.save_text(at, "arguments", sent.into(), None, &named)?;
        let pointer = Pointer { id: &record, path: &path };
        let arguments = preview::elide_arguments(&made.arguments, &pointer, budget, &|text, room| {
            brief::quotes_of(text, self.salience(), room)
        });
        // As with texts: what takes nothing away is no edit.
        let edited = |e: &Edit| matches!(e, Edit::Arguments { at: a, call: c, .. } if (*a, *c) == (at, call));
        if arguments == made.arguments && !self.input.old.edits.iter().any(edited) {
            return Ok(());
        }
        let digest = message.digest;
        self.edits.push(Edit::Arguments { at, digest, call, rule, arguments: arguments.into(), record });
        Ok(())
    }

    fn fold(&mut self, from: usize, to: usize, keep: &[usize], budget: Tokens) {
        let input = self.input;
        let old = input.old.edits.iter().find_map(|e| match e {
            Edit::Fold { from, to, keep, brief, .. } => Some((*from, *to, keep.clone(), brief.clone())),
            _ => None,
        });
        // What the last brief holds already is not read again. A fold may begin before the last one: at a large first
        // message that is history now.
        let (began, done, was_kept) =
            old.as_ref().map_or((from, from, &[][..]), |(from, to, keep, _)| (*from, *to, keep.as_slice()));
        let fresh = (from..began.min(to))
            .chain(was_kept.iter().copied())
            .chain(done.max(from)..to)
            .filter(|at| !keep.contains(at));
        let numbers: Vec<usize> = fresh.collect();
        let messages: Vec<&Message> = numbers.iter().map(|at| &input.conversation.body[*at]).collect();
        let records: Vec<(String, String)> = input
            .old
            .edits
            .iter()
            .filter_map(|e| match e {
                Edit::Text { at, record, .. } if (from..to).contains(at) && !keep.contains(at) => {
                    Some((record.clone(), one_line(&call(input.conversation, *at))))
                }
                _ => None,
            })
            .collect();
        let stands = |at: usize| !(from..to).contains(&at) || keep.contains(&at);
        let mut pinned = pinned::block(input.words.pins, &stands);
        // Where the planner had to give up what is pinned, it left no room for it.
        if (input.count)(&pinned) > budget {
            pinned.clear();
        }
        if from == to {
            // Nothing is folded: the brief carries what is pinned, and nothing else.
            let (keep, unread, struck) = (keep.to_vec(), Vec::new(), Vec::new());
            self.edits.push(Edit::Fold { from, to, keep, brief: Arc::from(pinned), unread, read: Some(to), struck });
            return;
        }
        let budget = budget - if pinned.is_empty() { 0 } else { (input.count)(&pinned) };
        let history = input.store.history_path(input.id).display().to_string();
        // The numbers by which the recall tool and `windowsill recall` bring them back.
        let named = format!("{}, messages {from}-{}", input.id, to.saturating_sub(1));
        let material = brief::Material {
            messages: &messages,
            numbers: &numbers,
            previous: old.as_ref().map(|(_, _, _, brief)| pinned::without(brief)),
            history_path: &history,
            conversation: &named,
            records: &records,
        };
        let written = input.words.written.map(|written| written.read);
        let mut facts = brief::facts(&material).aged(done, to, written);
        let was_pinned = old.as_ref().map(|(.., brief)| pinned::texts(brief)).unwrap_or_default();
        brief::unpin(&mut facts, was_pinned, &input.conversation.body, from..to);
        let body = &input.conversation.body;
        let folded: Vec<usize> = (from..to).filter(|at| !keep.contains(at)).collect();
        brief::restate(&mut facts, folded.iter().map(|at| (*at, &body[*at])), done);
        let struck = brief::still_struck(input.old.struck(), numbers.iter().map(|at| &body[*at]));
        // What stays in full, or is pinned, is said there; and what a person took out is not to be said.
        let mut said = brief::said_in(body, keep);
        said.extend(pinned::texts(&pinned));
        said.extend(struck.iter().map(|text| text.to_string()));
        if !brief::retell(&mut facts, body, &folded, &said) {
            facts.work = self.work(from, to, keep);
        }
        brief::strike(&mut facts, &struck);
        facts.keep = input.words.keep;
        let text = brief::render(input.words.written.map(|written| written.text), &facts, budget, input.count);
        let text = brief::without_words(&text, &said);
        let text = pinned::with(&text, &pinned);
        let (read, unread) = self.made_from(to, keep);
        let (keep, brief, read) = (keep.to_vec(), Arc::from(text), Some(read));
        self.edits.push(Edit::Fold { from, to, keep, brief, unread, read, struck });
    }

    /// How many messages the brief of a fold is made from, with the one before it, and which of these it is not: of those that stand
    /// beside it, what the client is likely to replace and nobody read.
    fn made_from(&self, to: usize, keep: &[usize]) -> (usize, Vec<usize>) {
        let Input { old, words, .. } = self.input;
        let written = words.written.as_ref();
        let read = to.max(old.read()).max(written.map_or(0, |written| written.read));
        let was_read = |at: &usize| written.is_some_and(|w| *at < w.read && !w.unread.contains(at));
        let beside = |at: &usize| keep.contains(at) || (to..read).contains(at);
        (read, old.unread().into_iter().filter(|at| beside(at) && !was_read(at)).collect())
    }
}

/// Tokens of a placeholder without what was used of its result.
const PLACEHOLDER: Tokens = 80;

/// Bytes of what is quoted for a token, to begin with.
const BYTES_A_TOKEN: usize = 3;

impl<A: Archive> Work<'_, A> {
    /// What the session says that it will need.
    fn salience(&self) -> &Salience {
        self.salience
            .get_or_init(|| Salience::of(&self.input.conversation.body, self.input.words.focus, self.input.words.keep))
    }

    /// Which texts of files were replaced since.
    fn superseded(&self) -> &Superseded {
        self.superseded.get_or_init(|| Superseded::of(&self.input.conversation.body))
    }

    /// What was used of the results that the plan clears, in the room that it gives their placeholders together.
    fn used_of_cleared(&self) -> HashMap<usize, String> {
        let input = self.input;
        let mut cleared: Vec<usize> = Vec::new();
        let mut room: Tokens = 0;
        for action in &input.plan.actions {
            if let Action::Placeholder { at, budget } = action {
                cleared.push(*at);
                room += budget.saturating_sub(PLACEHOLDER);
            }
        }
        if room < PLACEHOLDER {
            return HashMap::new();
        }
        cleared.sort_unstable();
        let body = &input.conversation.body;
        let shown: Vec<usize> = (0..body.len()).filter(|at| !self.is_replaced(*at) && !is_folded(input, *at)).collect();
        let work = brief::Work::of(body, &cleared, &shown, self.salience(), self.superseded());
        let mut bytes = room as usize * BYTES_A_TOKEN;
        loop {
            let used = work.by_message(bytes);
            let all: Tokens = used.iter().map(|(_, text)| (input.count)(text)).sum();
            if all <= room {
                return used.into_iter().collect();
            }
            bytes = bytes * room as usize / all as usize * 19 / 20;
        }
    }

    /// Whether something of a message is replaced in the view, now or earlier.
    fn is_replaced(&self, at: usize) -> bool {
        let earlier = self.input.old.edits.iter().any(|e| match e {
            Edit::Text { at: of, .. } | Edit::Arguments { at: of, .. } => *of == at,
            Edit::Fold { .. } | Edit::Recalled { .. } => false,
        });
        earlier || self.input.plan.actions.iter().any(|a| a.touches(at))
    }

    /// What of the folded messages is quoted: all of them each time, since what was of no use then may be of use now.
    fn work(&self, from: usize, to: usize, keep: &[usize]) -> brief::Work {
        let input = self.input;
        let body = &input.conversation.body;
        let is_folded = |at: &usize| (from..to).contains(at) && !keep.contains(at);
        let (folded, stay): (Vec<usize>, Vec<usize>) = (0..body.len()).partition(is_folded);
        let shown: Vec<usize> = stay.into_iter().filter(|at| !self.is_replaced(*at)).collect();
        brief::Work::of(body, &folded, &shown, self.salience(), self.superseded())
    }
}

/// Whether a message is folded in the view so far.
fn is_folded<A>(input: &Input<'_, A>, at: usize) -> bool {
    input.old.edits.iter().any(|e| match e {
        Edit::Fold { from, to, keep, .. } => (*from..*to).contains(&at) && !keep.contains(&at),
        _ => false,
    })
}

/// The call that a message answers, as previews want it; empty for anything but a tool result.
pub fn call(conversation: &Conversation, at: usize) -> Call<'_> {
    match call_of(&conversation.body, at) {
        Some((message, call)) => {
            let made = &conversation.body[message].calls[call];
            Call { tool: &made.name, arguments: &made.arguments }
        }
        None => Call { tool: conversation.body.get(at).and_then(|m| m.name.as_deref()).unwrap_or(""), arguments: "" },
    }
}

/// A call in one short line.
fn one_line(call: &Call<'_>) -> String {
    let arguments: String = call.arguments.split_whitespace().collect::<Vec<_>>().join(" ");
    let short: String = arguments.chars().take(100).collect();
    format!("{} {short}", call.tool).trim().to_owned()
}
