//! Rewrite: a conversation and the edits of its view → the messages to forward. Unedited messages keep their bytes.

use bytes::Bytes;

use super::plain;
use super::policy::TemplateFacts;
use crate::admission::through;
use crate::conversation::edit::{Edit, View};
use crate::conversation::step::is_orphan;
use crate::conversation::{Conversation, Message, Role, Tokens};
use crate::wire::openai_chat as wire;

/// What the assistant says between a brief and a user message, since strict templates want the roles to alternate.
pub const ACKNOWLEDGED: &str = "Understood. I have the summary of the earlier conversation and continue from here.";

/// What stands where a strict template wants an assistant's turn and the client has none.
const NOTHING_SAID: &str = "(no reply)";

/// Most tokens of a short message of our own, the template's words included.
const OURS: Tokens = 12;

/// Most tokens of [`ACKNOWLEDGED`] as a message.
const ACKNOWLEDGMENT: Tokens = 32;

/// Most tokens of the words that make plain text of a call or a result.
const AS_TEXT: Tokens = 8;

/// Most tokens that [`rewrite`] adds around a brief; `user_next`: a user message follows it.
pub(super) fn fold_frame(user_next: bool, template: &TemplateFacts) -> Tokens {
    // A message of its own, where there is no user message to append to; a filler or two where steps behind it meet a
    // user message.
    let fillers = if template.strict_alternation { 2 * OURS } else { 0 };
    OURS + fillers + if user_next { ACKNOWLEDGMENT } else { 0 }
}

/// Tokens that [`rewrite`] adds to messages to give them the shape a template wants, as `(message, tokens)`. At most so
/// many: what it merges is not taken off.
pub(super) fn extra(body: &[Message], template: &TemplateFacts) -> Vec<(usize, Tokens)> {
    let mut out = Vec::new();
    let mut last = None;
    for (at, message) in body.iter().enumerate() {
        let (tool, calls) = (message.role == Role::Tool, message.calls.len() as Tokens);
        if !template.tool_role && (tool || calls > 0) || is_orphan(body, at) {
            out.push((at, AS_TEXT * calls.max(1)));
        }
        if !template.strict_alternation {
            continue;
        }
        let role = match message.role {
            Role::Tool if !template.tool_role => Role::User,
            Role::System if !template.later_system => Role::User,
            role => role,
        };
        let counts = role == Role::User || role == Role::Assistant && (calls == 0 || !template.tool_role);
        if role == Role::Assistant && counts && message.text.is_empty() {
            out.push((at, OURS));
        }
        if counts && last == Some(role) || last.is_none() && role == Role::Assistant {
            out.push((at, OURS));
        }
        if counts || last.is_none() && role == Role::Assistant {
            last = Some(if counts { role } else { Role::User });
        }
    }
    out
}

/// One message of the view.
#[derive(Debug, Clone)]
pub struct Out {
    /// Its bytes.
    pub bytes: Bytes,
    /// Who speaks.
    pub role: Role,
    /// Index in the body; `None` for leading system messages and messages of our own.
    pub at: Option<usize>,
    /// Whether it carries tool calls.
    pub calls: bool,
    /// Whether its bytes differ from what the client sent.
    pub changed: bool,
}

/// Applies the edits of a view. Edits whose message is not what they were made for are left out. Calls of tools that the list
/// does not show are made through the index.
pub fn rewrite(conversation: &Conversation, view: &View, template: &TemplateFacts) -> Vec<Out> {
    let mut out = viewed(conversation, view, template);
    if !conversation.hidden.is_empty() {
        for message in out.iter_mut().filter(|m| m.calls) {
            if let Some(bytes) = through(&message.bytes, &conversation.hidden) {
                message.bytes = bytes;
                message.changed = true;
            }
        }
    }
    plain::plain(out, conversation, conversation.plainness)
}

fn viewed(conversation: &Conversation, view: &View, template: &TemplateFacts) -> Vec<Out> {
    let mut out: Vec<Out> = conversation.system.iter().map(|m| keep(m, None)).collect();
    let bodies = edited(&conversation.body, view);
    let fold = view.edits.iter().find_map(|e| match e {
        Edit::Fold { from, to, keep, brief, .. } if from <= to && *to <= bodies.len() => {
            Some((*from, *to, keep, brief))
        }
        _ => None,
    });
    let Some((from, to, kept, brief)) = fold else {
        out.extend(bodies);
        return shape(whole(out, conversation), template);
    };
    out.extend_from_slice(&bodies[..from]);
    match out.last_mut().filter(|m| m.at.is_some() && m.role == Role::User) {
        _ if brief.is_empty() => {}
        Some(anchor) => {
            anchor.bytes = wire::with_text_appended(&anchor.bytes, &format!("\n\n{brief}"));
            anchor.changed = true;
        }
        None => out.push(ours("user", Role::User, brief)),
    }
    if acknowledges(&conversation.body, view) {
        out.push(ours("assistant", Role::Assistant, ACKNOWLEDGED));
    }
    out.extend(kept.iter().filter_map(|at| bodies.get(*at)).chain(&bodies[to..]).cloned());
    shape(whole(out, conversation), template)
}

/// Whether [`ACKNOWLEDGED`] stands between the brief of a view and what follows it.
pub fn acknowledges(body: &[Message], view: &View) -> bool {
    view.edits.iter().any(|edit| match edit {
        Edit::Fold { to, keep, brief, .. } => {
            let next = keep.iter().find_map(|at| body.get(*at)).or(body.get(*to));
            !brief.is_empty() && next.is_some_and(|message| message.role == Role::User)
        }
        _ => false,
    })
}

/// A prompt that is not the client's own any more has no results without their call.
fn whole(mut messages: Vec<Out>, conversation: &Conversation) -> Vec<Out> {
    if messages.iter().any(|m| m.changed) {
        plain::orphans_as_text(&mut messages, conversation);
    }
    messages
}

fn keep(message: &Message, at: Option<usize>) -> Out {
    Out {
        bytes: message.bytes().clone(),
        role: message.role,
        at,
        calls: !message.calls.is_empty(),
        changed: message.repaired.is_some(),
    }
}

fn ours(role: &str, kind: Role, text: &str) -> Out {
    Out { bytes: wire::new_message(role, text), role: kind, at: None, calls: false, changed: true }
}

/// The body with text and argument edits applied.
fn edited(body: &[Message], view: &View) -> Vec<Out> {
    let mut out: Vec<Out> = body.iter().enumerate().map(|(at, m)| keep(m, Some(at))).collect();
    let mut behind = Vec::new();
    for edit in &view.edits {
        match edit {
            Edit::Text { at, digest, text, .. } => {
                if let Some(at) = find(body, *at, digest) {
                    out[at].bytes = wire::with_text(&out[at].bytes, text);
                    if !body[at].reasoning.is_empty() {
                        // It was counted with the text, and leaves with it.
                        out[at].bytes = wire::without_reasoning(&out[at].bytes);
                    }
                    out[at].changed = true;
                }
            }
            Edit::Arguments { at, digest, call, arguments, .. } => {
                if let Some(at) = find(body, *at, digest) {
                    out[at].bytes = wire::with_arguments(&out[at].bytes, &[(*call, arguments)]);
                    out[at].changed = true;
                }
            }
            Edit::Recalled { at, digest, text, .. } => {
                if let Some(at) = find(body, *at, digest) {
                    behind.push((at, text));
                }
            }
            Edit::Fold { .. } => {}
        }
    }
    // Whatever became of the words, these stand behind them.
    for (at, text) in behind {
        out[at].bytes = wire::with_text_appended(&out[at].bytes, &format!("\n\n{text}"));
        out[at].changed = true;
    }
    out
}

/// The message an edit was made for: at its index, or, since results of parallel calls come back in any order, another
/// result of the same step.
fn find(body: &[Message], at: usize, digest: &crate::conversation::Digest) -> Option<usize> {
    let message = body.get(at)?;
    if message.digest == *digest {
        return Some(at);
    }
    if message.role != Role::Tool {
        return None;
    }
    let start = body[..at].iter().rposition(|m| m.role != Role::Tool)? + 1;
    (start..body.len()).take_while(|i| body[*i].role == Role::Tool).find(|i| body[*i].digest == *digest)
}

/// Brings the view into a shape that a model's template accepts, where the profile says that it is strict. Templates that
/// take anything get the messages as they are.
fn shape(messages: Vec<Out>, template: &TemplateFacts) -> Vec<Out> {
    let mut out = messages;
    if !template.tool_role {
        out = out.into_iter().map(tool_block_as_text).collect();
    }
    if !template.later_system {
        let leading = out.iter().take_while(|m| m.role == Role::System).count();
        // One leading system message is safe everywhere; a second one is an error or is lost.
        for m in out.iter_mut().skip(leading.max(1)).filter(|m| m.role == Role::System) {
            m.bytes = wire::patch(&m.bytes, "role", "\"user\"");
            (m.role, m.changed) = (Role::User, true);
        }
        merge_leading_systems(&mut out, leading);
    }
    if template.strict_alternation { alternate(out) } else { out }
}

fn text_of(bytes: &Bytes) -> (String, Vec<crate::conversation::ToolCall>) {
    wire::message(bytes.clone()).map(|m| (m.text.to_string(), m.calls)).unwrap_or_default()
}

fn merge_leading_systems(out: &mut Vec<Out>, leading: usize) {
    for at in (1..leading).rev() {
        let (text, _) = text_of(&out[at].bytes);
        let before = wire::with_text_appended(&out[at - 1].bytes, &format!("\n\n{text}"));
        (out[at - 1].bytes, out[at - 1].changed) = (before, true);
        out.remove(at);
    }
}

/// Tool calls and results as plain text, for templates that know no tools.
fn tool_block_as_text(mut m: Out) -> Out {
    if m.calls {
        let (mut text, calls) = text_of(&m.bytes);
        for call in calls {
            text.push_str(&format!("\n[called {} with {}]", call.name, call.arguments));
        }
        m.bytes = wire::new_message("assistant", text.trim_start());
        (m.calls, m.changed) = (false, true);
    } else if m.role == Role::Tool {
        let (text, _) = text_of(&m.bytes);
        m.bytes = wire::new_message("user", &format!("[result]\n{text}"));
        (m.role, m.changed) = (Role::User, true);
    }
    m
}

/// Strict templates refuse an assistant's turn that says nothing, as clients leave behind after an abort.
fn not_empty(mut m: Out) -> Out {
    if wire::message(m.bytes.clone()).is_ok_and(|read| read.text.is_empty() && read.media.is_empty()) {
        m.bytes = wire::with_text(&m.bytes, NOTHING_SAID);
        m.changed = true;
    }
    m
}

/// User and assistant turns in alternation, tool blocks aside, starting with a user.
fn alternate(messages: Vec<Out>) -> Vec<Out> {
    let mut out: Vec<Out> = Vec::with_capacity(messages.len());
    // Who spoke last among user turns and assistant turns without calls.
    let mut last: Option<Role> = None;
    for m in messages {
        let counts = m.role == Role::User || m.role == Role::Assistant && !m.calls;
        if !counts {
            if m.role == Role::Assistant && last.is_none() {
                out.push(ours("user", Role::User, NOTHING_SAID));
                last = Some(Role::User);
            }
            out.push(m);
            continue;
        }
        let m = if m.role == Role::Assistant { not_empty(m) } else { m };
        if last == Some(m.role) {
            let same = out.last().is_some_and(|p| p.role == m.role && !p.calls);
            let has_media = wire::message(m.bytes.clone()).is_ok_and(|read| !read.media.is_empty());
            if same && !has_media {
                let (text, _) = text_of(&m.bytes);
                let previous = out.last_mut().expect("same says that there is one");
                previous.bytes = wire::with_text_appended(&previous.bytes, &format!("\n\n{text}"));
                previous.changed = true;
                previous.at = m.at;
                continue;
            }
            let (name, role) = match m.role {
                Role::User => ("assistant", Role::Assistant),
                _ => ("user", Role::User),
            };
            out.push(ours(name, role, NOTHING_SAID));
        } else if last.is_none() && m.role == Role::Assistant {
            out.push(ours("user", Role::User, NOTHING_SAID));
        }
        last = Some(m.role);
        out.push(m);
    }
    out
}
