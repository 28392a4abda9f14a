//! A person steers what the model sees of one conversation: a result back in full, a result out of the prompt, another brief, the
//! last rewrite undone. Each has a price, which is told before anything is done. The originals stay as they are, whatever is
//! asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::compact::{Asked, Ground, scaled};
use super::timeline::{size_in, touches};
use super::{App, Error, aside};
use crate::apply;
use crate::conversation::Role;
use crate::conversation::edit::{Edit, View};
use crate::plan::{self, Action, Because, Facts, Plan, Policy, Strategy};
use crate::store::Original;

/// Longest brief that a person may write (bytes).
const LONGEST_BRIEF: usize = 64 * 1024;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Steer {
    /// A message stands in the prompt again as it came.
    Restore(usize),
    /// A result leaves the prompt; a placeholder says where it is.
    Clear(usize),
    /// The brief says this from now on.
    Brief(String),
    /// The view as it was before the last rewrite.
    Undo,
}

impl Steer {
    /// As it stands in the trace.
    fn as_str(&self) -> &'static str {
        match self {
            Steer::Restore(_) => "restore",
            Steer::Clear(_) => "clear",
            Steer::Brief(_) => "brief",
            Steer::Undo => "undo",
        }
    }

    /// Why the view changed, without any text of it.
    fn because(&self) -> String {
        match self {
            Steer::Restore(at) => format!("restore: message {at} stands in full again, asked for by a person"),
            Steer::Clear(at) => format!("clear: message {at} became a placeholder, asked for by a person"),
            Steer::Brief(_) => "brief: a person wrote it anew".to_owned(),
            Steer::Undo => "undo: the view before the last rewrite, asked for by a person".to_owned(),
        }
    }
}

impl App {
    /// Changes a conversation's view, or says what that would cost.
    ///
    /// # Errors
    /// 404 for an unknown conversation, 409 where there is nothing to do or it would not fit, 400 for what makes no sense.
    pub async fn steer(self: &Arc<Self>, id: &str, what: Steer, dry_run: bool) -> Result<Value, Error> {
        let (app, id) = (Arc::clone(self), id.to_owned());
        let work = async move { app.steer_now(&id, &what, dry_run).await };
        self.aside.run(aside::LARGE, work.boxed()).await?
    }

    async fn steer_now(self: &Arc<Self>, id: &str, what: &Steer, dry_run: bool) -> Result<Value, Error> {
        let started = Instant::now();
        let ground = self.ground(id).await?;
        let (view, originals) = self.steered(&ground, what)?;
        let old = &ground.recorded.old;
        if view.edits == old.edits {
            return Err(nothing("the model sees it like that already"));
        }
        let before = measured(&ground, ground.facts.clone());
        let after = measured(&ground, self.facts_with(&ground, &view));
        if !after.fits {
            let message = format!(
                "the prompt would have {} tokens then, and at most {} fit",
                after.before.prompt(),
                after.lines.limit
            );
            return Err(Error::client(409, "cannot_fit", message, "clear or fold something first"));
        }
        let again = evaluated_again(&ground, &view, &after);
        let mut done = self.price(&ground.recorded.row, &before.before, &after.before, again, None);
        if dry_run {
            return Ok(done);
        }
        done["dry_run"] = json!(false);
        let asked = Asked { action: what.as_str(), focus: None, started };
        let plan =
            Plan { before: before.before, after: after.before, because: vec![because(what, &before, &after)], ..after };
        self.record_view(&ground.recorded, &plan, apply::Applied { view, originals }, asked).await?;
        Ok(done)
    }

    /// The view that is asked for, and the originals that leave the prompt with it.
    fn steered(&self, ground: &Ground, what: &Steer) -> Result<(View, Vec<Original>), Error> {
        let old = &ground.recorded.old;
        match what {
            Steer::Restore(at) => Ok((restored(old, *at)?, Vec::new())),
            Steer::Clear(at) => self.cleared(ground, *at),
            Steer::Brief(text) => Ok((rebriefed(old, text)?, Vec::new())),
            Steer::Undo => {
                let earlier = self.store.earlier_view(&ground.recorded.chain)?;
                let view = earlier.ok_or_else(|| nothing("nothing was rewritten yet"))?;
                Ok((View { messages: old.messages, ..view }, Vec::new()))
            }
        }
    }

    /// A view with a placeholder for one result, made as the rules make them.
    fn cleared(&self, ground: &Ground, at: usize) -> Result<(View, Vec<Original>), Error> {
        let body = &ground.recorded.request.conversation.body;
        let message = body.get(at).ok_or_else(|| absent(at, body.len()))?;
        if message.role != Role::Tool {
            let hint = "what people and the model said is folded, not cleared";
            return Err(Error::client(400, "not_a_result", format!("message {at} is no tool result"), hint));
        }
        if ground.recorded.old.edits.iter().any(|edit| touches(edit, at)) {
            return Err(nothing("it left the prompt already"));
        }
        let plan = Plan { actions: vec![Action::Placeholder { at }], ..measured(ground, ground.facts.clone()) };
        let count = |text: &str| self.measure.count(&ground.key, text);
        let applied = apply::apply(&apply::Input {
            conversation: &ground.recorded.request.conversation,
            id: &ground.recorded.row.id,
            plan: &plan,
            old: &ground.recorded.old,
            store: &self.store,
            count: &count,
            digests: &HashMap::new(),
            written: None,
        })?;
        Ok((applied.view, applied.originals))
    }

    /// The facts of the conversation under another view.
    fn facts_with(&self, ground: &Ground, view: &View) -> Facts {
        let conversation = &ground.recorded.request.conversation;
        let fresh = self.measure.facts(&ground.key, conversation, view, None);
        let edit_costs = fresh.edit_costs.iter().map(|cost| scaled(*cost, ground.calibration)).collect();
        Facts { view: fresh.view, edit_costs, ..ground.facts.clone() }
    }
}

/// A view in which a message stands as it came.
fn restored(old: &View, at: usize) -> Result<View, Error> {
    if at >= old.messages {
        return Err(absent(at, old.messages));
    }
    if old.edits.iter().any(|edit| matches!(edit, Edit::Fold { .. }) && touches(edit, at)) {
        let hint = "undo the fold, or edit the brief so that it says what is missed";
        return Err(Error::client(409, "folded", format!("message {at} is folded into the brief"), hint));
    }
    let edits: Vec<Edit> = old.edits.iter().filter(|edit| !touches(edit, at)).cloned().collect();
    Ok(View { messages: old.messages, edits })
}

/// A view whose brief says something else.
fn rebriefed(old: &View, text: &str) -> Result<View, Error> {
    let text = text.trim();
    if text.is_empty() || text.len() > LONGEST_BRIEF {
        let message = format!("the brief has {} bytes, and may have 1 to {LONGEST_BRIEF}", text.len());
        return Err(Error::client(400, "bad_brief", message, "send what the model should read as `text`"));
    }
    let mut out = old.clone();
    let brief = out.edits.iter_mut().find_map(|edit| match edit {
        Edit::Fold { brief, .. } => Some(brief),
        _ => None,
    });
    let brief = brief.ok_or_else(|| nothing("nothing was folded, so there is no brief"))?;
    *brief = Arc::from(text);
    Ok(out)
}

/// What a view holds and whether it fits, with no rule at work.
fn measured(ground: &Ground, facts: Facts) -> Plan {
    let policy = &ground.resolved.policy;
    let idle = Policy {
        strategy: Strategy::Off,
        clear_at: 1.0,
        summarize_at: 1.0,
        evict_over: plan::Size::Tokens(u32::MAX),
        ..policy.clone()
    };
    let seen = plan::plan(&ground.recorded.request.conversation, &facts, &idle);
    let fits = seen.before.prompt() <= seen.lines.limit;
    Plan { actions: Vec::new(), after: seen.before, because: Vec::new(), fits, ..seen }
}

/// Tokens that the server evaluates again with the next request: what stands behind the first message that changed. A brief
/// stands in the first message, so all of the history does.
fn evaluated_again(ground: &Ground, view: &View, after: &Plan) -> u32 {
    let regions = &after.before;
    let talk = regions.prompt().saturating_sub(regions.system + regions.tools);
    let old = &ground.recorded.old;
    let is_fold = |edit: &&Edit| matches!(edit, Edit::Fold { .. });
    if view.edits.iter().find(is_fold) != old.edits.iter().find(is_fold) {
        return talk;
    }
    let body = &ground.recorded.request.conversation.body;
    let of = |view: &View, at: usize| view.edits.iter().filter(|edit| touches(edit, at)).cloned().collect::<Vec<_>>();
    let first = (0..body.len()).find(|at| of(view, *at) != of(old, *at)).unwrap_or(0);
    let sizes = || body.iter().enumerate().map(|(at, m)| u64::from(size_in(view, at, &m.raw)));
    let (all, behind) = (sizes().sum::<u64>().max(1), sizes().skip(first).sum::<u64>());
    u32::try_from(u64::from(talk - regions.brief.min(talk)) * behind / all).unwrap_or(talk)
}

fn because(what: &Steer, before: &Plan, after: &Plan) -> Because {
    Because {
        rule: what.as_str(),
        before: before.before.prompt(),
        after: after.before.prompt(),
        line: after.lines.limit,
        what: what.because(),
    }
}

fn nothing(why: &str) -> Error {
    Error::client(409, "nothing_to_do", why, "")
}

fn absent(at: usize, messages: usize) -> Error {
    let message = format!("there is no message {at}: the conversation has {messages}, counted from 0");
    Error::client(404, "not_found", message, "")
}
