//! A view that a person changed: a message in full again, a result out of the prompt, another brief; and the changes that wait until
//! a request rewrites something anyway. What it costs and whether it is made at once is for `desk`.

use std::sync::Arc;

use crate::apply::Words;
use crate::brief;
use crate::conversation::Role;
use crate::conversation::edit::{Edit, Rule, View};
use crate::pinned;
use crate::plan::{Action, Plan};
use crate::proxy::state::standing::{Standing, text};
use crate::proxy::state::steer::Steer;
use crate::proxy::state::view::{Subject, make_view};
use crate::proxy::{App, Error};
use crate::store::{ConversationRow, Original};

/// Longest brief that a person may write (bytes).
const LONGEST_BRIEF: usize = 64 * 1024;

/// Longest focus of a fold (bytes).
const LONGEST_FOCUS: usize = 4 * 1024;

/// The preview of a result that a person evicts takes at most one part in this many of it.
const PREVIEW_SHARE: u32 = 4;

/// The changes that waited for a break, made.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Granted {
    pub(in crate::proxy) originals: Vec<Original>,
    pub(in crate::proxy) because: Vec<String>,
    done: bool,
}

/// Makes the changes that wait for a break, where this request brings one: the view to go on from, in place of the old one.
/// `breaks`: whether it does.
pub(in crate::proxy) fn grant(
    app: &App,
    subject: &Subject<'_>,
    standing: &Standing,
    breaks: impl FnOnce() -> bool,
) -> Option<(View, Granted)> {
    if standing.wishes.is_empty() || !breaks() {
        return None;
    }
    let (view, originals, because) = wished(app, subject, &standing.wishes);
    Some((view, Granted { originals, because, done: true }))
}

impl Granted {
    /// What is to be recorded as wanted from now on, where that is something else: changes were made, or a fork takes over
    /// what was wanted of the conversation that it parted from.
    pub(in crate::proxy) fn to_record(&self, standing: &Standing, is_fork: bool, folded: bool) -> Option<String> {
        match self.done {
            true => Some(text(&standing.after_break(folded))),
            false => (is_fork && *standing != Standing::default()).then(|| text(standing)),
        }
    }
}

/// The view with every change that waited, the originals that leave the prompt with it, and why. What can no longer be done
/// is left out.
pub(in crate::proxy) fn wished(
    app: &App,
    subject: &Subject<'_>,
    wishes: &[Steer],
) -> (View, Vec<Original>, Vec<String>) {
    let (mut view, mut originals, mut because) = (subject.old.clone(), Vec::new(), Vec::new());
    for wish in wishes {
        if let Ok((next, more)) = steered(app, &Subject { old: &view, ..*subject }, wish)
            && (next.edits != view.edits || matches!(wish, Steer::Focus(_)))
        {
            (view, because) = (next, [because, vec![wish.because()]].concat());
            originals.extend(more);
        }
    }
    (view, originals, because)
}

/// The view that is asked for, and the originals that leave the prompt with it.
pub(in crate::proxy) fn steered(
    app: &App,
    subject: &Subject<'_>,
    what: &Steer,
) -> Result<(View, Vec<Original>), Error> {
    match what {
        Steer::Restore(at) | Steer::Clear(at) | Steer::Evict(at) if *at >= subject.conversation.body.len() => {
            Err(absent(app, subject.id, *at))
        }
        Steer::Restore(at) => Ok((restored(subject.old, *at)?, Vec::new())),
        Steer::Clear(at) => taken_out(app, subject, *at, Action::Placeholder { at: *at, budget: 0 }),
        Steer::Evict(at) => {
            let tokens = subject.conversation.body.get(*at).map_or(0, |m| app.measure.count(subject.key, &m.text));
            taken_out(app, subject, *at, Action::Preview { at: *at, budget: tokens / PREVIEW_SHARE, rule: Rule::Evict })
        }
        Steer::Brief(text) => Ok((rebriefed(subject.old, text)?, Vec::new())),
        Steer::Focus(focus) => focused(focus).map(|()| (subject.old.clone(), Vec::new())),
        Steer::Undo => Err(nothing("only the last change can be undone")),
    }
}

/// A view in which one result is replaced, made as the rules make it.
fn taken_out(app: &App, subject: &Subject<'_>, at: usize, action: Action) -> Result<(View, Vec<Original>), Error> {
    let body = &subject.conversation.body;
    let message = body.get(at).ok_or_else(|| absent(app, subject.id, at))?;
    if message.role != Role::Tool {
        let hint = "what people and the model said is folded, not cleared";
        return Err(Error::client(400, "not_a_result", format!("message {at} is no tool result"), hint));
    }
    let touching = subject.old.edits.iter().find(|edit| edit.touches(at));
    let is_preview = matches!(touching, Some(Edit::Text { rule: Rule::Evict, .. }));
    if touching.is_some() && !(is_preview && matches!(action, Action::Placeholder { .. })) {
        return Err(nothing("it left the prompt already"));
    }
    let plan = Plan::of(vec![action]);
    let applied = make_view(app, subject, &plan, Words::default())?;
    Ok((applied.view, applied.originals))
}

/// Whether a focus can be asked for.
pub(in crate::proxy) fn focused(focus: &str) -> Result<(), Error> {
    if focus.trim().is_empty() || focus.len() > LONGEST_FOCUS {
        let message = format!("the focus has {} bytes, and may have 1 to {LONGEST_FOCUS}", focus.len());
        return Err(Error::client(400, "bad_focus", message, "say in a sentence or two what the brief should keep"));
    }
    Ok(())
}

/// A view in which a message stands as it came.
fn restored(old: &View, at: usize) -> Result<View, Error> {
    if old.edits.iter().any(|edit| matches!(edit, Edit::Fold { .. }) && edit.touches(at)) {
        let hint = "pin it, undo the fold, or edit the brief so that it says what is missed";
        return Err(Error::client(409, "folded", format!("message {at} is folded into the brief"), hint));
    }
    let edits: Vec<Edit> = old.edits.iter().filter(|edit| !edit.touches(at)).cloned().collect();
    Ok(View { edits, ..old.clone() })
}

/// A view whose brief says something else. What is pinned stays in front of it.
fn rebriefed(old: &View, text: &str) -> Result<View, Error> {
    let text = pinned::without(text.trim());
    if text.is_empty() || text.len() > LONGEST_BRIEF {
        let message = format!("the brief has {} bytes, and may have 1 to {LONGEST_BRIEF}", text.len());
        return Err(Error::client(400, "bad_brief", message, "send what the model should read as `text`"));
    }
    let mut out = old.clone();
    let brief = out.edits.iter_mut().find_map(|edit| match edit {
        Edit::Fold { from, to, brief, struck, .. } => (*from < *to).then(|| (to.saturating_sub(*from), brief, struck)),
        _ => None,
    });
    let (folded, brief, struck) = brief.ok_or_else(|| nothing("nothing was folded, so there is no brief"))?;
    let stood = pinned::without(brief);
    let block = brief[..brief.len() - stood.len()].trim_end().to_owned();
    *struck = brief::struck(stood, text, struck);
    let text = brief::edited(stood, text, u32::try_from(folded).unwrap_or(u32::MAX));
    *brief = Arc::from(pinned::with(&text, &block));
    Ok(out)
}

pub(in crate::proxy) fn nothing(why: &str) -> Error {
    Error::client(409, "nothing_to_do", why, "")
}

/// That a conversation has no message of a number.
pub(in crate::proxy) fn no_message(row: &ConversationRow, at: usize) -> Error {
    let has = match row.messages() {
        0 => "no messages on record".to_owned(),
        1 => "message 0 alone".to_owned(),
        n => format!("messages 0 to {}", n - 1),
    };
    let message = format!("there is no message {at}: conversation {} has {has}", row.id);
    Error::client(404, "not_found", message, "")
}

/// Why a message of a conversation cannot be changed that its history does not have.
pub(in crate::proxy) fn absent(app: &App, id: &str, at: usize) -> Error {
    let row = match app.store.conversation(id) {
        Ok(Some(row)) => row,
        Ok(None) => return Error::client(404, "not_found", format!("there is no message {at}"), ""),
        Err(e) => return e.into(),
    };
    if row.replied && at == row.depth {
        let message = format!("message {at} is the last reply, and its client has not sent it back yet");
        return Error::client(404, "not_found", message, "it can be changed from the next request on");
    }
    no_message(&row, at)
}
