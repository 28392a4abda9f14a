//! A person steers what the model sees of one conversation: a result back in full, a result out of the prompt, another brief, the
//! last rewrite undone, a text or a message pinned. Each has a price, which is told before anything is done, and can wait until
//! something is rewritten anyway. The originals stay as they are, whatever is asked.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::compact::{Asked, Ground};
use super::price::Price;
use super::timeline::touches;
use crate::apply::Words;
use crate::conversation::Role;
use crate::conversation::edit::{Edit, Rule, View};
use crate::pinned;
use crate::plan::{self, Action, Because, Facts, Lines, Plan, Regions};
use crate::proxy::turn::save::now_ms;
use crate::proxy::view::Subject;
use crate::proxy::{App, Error, aside};
use crate::store::{Batch, Event, Original};

/// Longest brief that a person may write (bytes).
const LONGEST_BRIEF: usize = 64 * 1024;

/// Longest focus of a fold (bytes).
const LONGEST_FOCUS: usize = 4 * 1024;

/// Changes that may wait for one break.
const WAITING: usize = 32;

/// The preview of a result that a person evicts takes at most one part in this many of it.
const PREVIEW_SHARE: u32 = 4;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steer {
    /// A message stands in the prompt again as it came.
    Restore(usize),
    /// A result leaves the prompt; a placeholder says where it is.
    Clear(usize),
    /// A result leaves the prompt but for a preview.
    Evict(usize),
    /// The brief says this from now on.
    Brief(String),
    /// The view as it was before the last rewrite.
    Undo,
    /// The next fold keeps this above all.
    Focus(String),
}

/// When it is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// With the next request, whatever that makes the server evaluate again.
    #[default]
    Now,
    /// Once the prompt is rewritten anyway.
    NextBreak,
}

impl Steer {
    /// As it stands in the trace.
    pub(in crate::proxy) fn as_str(&self) -> &'static str {
        match self {
            Steer::Restore(_) => "restore",
            Steer::Clear(_) => "clear",
            Steer::Evict(_) => "evict",
            Steer::Brief(_) => "brief",
            Steer::Undo => "undo",
            Steer::Focus(_) => "focus",
        }
    }

    /// Why the view changed, without any text of it.
    pub(in crate::proxy) fn because(&self) -> String {
        let what = match self {
            Steer::Restore(at) => format!("message {at} stands in full again"),
            Steer::Clear(at) => format!("message {at} became a placeholder"),
            Steer::Evict(at) => format!("message {at} became a preview"),
            Steer::Brief(_) => "a person wrote it".to_owned(),
            Steer::Undo => "the view before the last rewrite".to_owned(),
            Steer::Focus(_) => "the fold had a focus".to_owned(),
        };
        format!("{}: {what}, asked for by a person", self.as_str())
    }
}

impl App {
    /// Changes a conversation's view, or says what that would cost.
    ///
    /// # Errors
    /// 404 for an unknown conversation, 409 where there is nothing to do or it would not fit, 400 for what makes no sense.
    pub async fn steer(self: &Arc<Self>, id: &str, what: Steer, when: When, dry_run: bool) -> Result<Value, Error> {
        let (app, id) = (Arc::clone(self), id.to_owned());
        let work = async move { app.steer_now(&id, &what, when, dry_run).await };
        self.aside.run(aside::LARGE, work.boxed()).await?
    }

    async fn steer_now(self: &Arc<Self>, id: &str, what: &Steer, when: When, dry_run: bool) -> Result<Value, Error> {
        let started = Instant::now();
        let ground = self.ground(id).await?;
        let (view, originals) = match what {
            Steer::Undo => (self.earlier(&ground)?, Vec::new()),
            what => self.steered(&ground.subject(), what)?,
        };
        if when == When::NextBreak {
            return self.wish(&ground, what, dry_run).await;
        }
        if view.edits == ground.recorded.old.edits {
            return Err(nothing("the model sees it like that already"));
        }
        let price = self.price_of(&ground, &view).await;
        self.fitting(&ground, &price)?;
        if !dry_run {
            let batch = Batch { originals, ..Batch::default() };
            let because = vec![why(&ground, &price, what.as_str(), what.because())];
            let asked = Asked { action: what.as_str(), because, focus: None, started };
            self.record_view(&ground, &price, view, asked, batch).await?;
        }
        Ok(self.priced(&ground, &price, when, dry_run))
    }

    /// Has a change wait for the next break.
    pub(in crate::proxy) async fn wish(&self, ground: &Ground, what: &Steer, dry_run: bool) -> Result<Value, Error> {
        let id = &ground.recorded.row.id;
        if *what == Steer::Undo {
            let hint = "undo it now, or leave it: at the next break something else is the last rewrite";
            return Err(Error::client(400, "bad_request", "undo cannot wait for the next break", hint));
        }
        if ground.standing.wishes.len() >= WAITING {
            let message = format!("{WAITING} changes of this conversation wait already");
            return Err(Error::client(409, "too_many", message, "do one of them now"));
        }
        let price = Price::nothing(ground);
        if !dry_run {
            let wish = what.clone();
            self.change_standing(id, |standing| {
                standing.wishes.retain(|known| known.as_str() != "focus" || wish.as_str() != "focus");
                if !standing.wishes.contains(&wish) {
                    standing.wishes.push(wish);
                }
            })
            .await?;
            self.note_steered(id, what.as_str(), When::NextBreak);
        }
        Ok(self.priced(ground, &price, When::NextBreak, dry_run))
    }

    /// The view with every change that waited, the originals that leave the prompt with it, and why. What can no longer be done
    /// is left out.
    pub(in crate::proxy) fn wished(
        &self,
        subject: &Subject<'_>,
        wishes: &[Steer],
    ) -> (View, Vec<Original>, Vec<String>) {
        let (mut view, mut originals, mut because) = (subject.old.clone(), Vec::new(), Vec::new());
        for wish in wishes {
            if let Ok((next, more)) = self.steered(&Subject { old: &view, ..*subject }, wish)
                && (next.edits != view.edits || matches!(wish, Steer::Focus(_)))
            {
                (view, because) = (next, [because, vec![wish.because()]].concat());
                originals.extend(more);
            }
        }
        (view, originals, because)
    }

    /// The view that is asked for, and the originals that leave the prompt with it.
    fn steered(&self, subject: &Subject<'_>, what: &Steer) -> Result<(View, Vec<Original>), Error> {
        match what {
            Steer::Restore(at) => Ok((restored(subject.old, *at, subject.conversation.body.len())?, Vec::new())),
            Steer::Clear(at) => self.taken_out(subject, *at, Action::Placeholder { at: *at, budget: 0 }),
            Steer::Evict(at) => {
                let tokens = subject.conversation.body.get(*at).map_or(0, |m| self.measure.count(subject.key, &m.text));
                self.taken_out(
                    subject,
                    *at,
                    Action::Preview { at: *at, budget: tokens / PREVIEW_SHARE, rule: Rule::Evict },
                )
            }
            Steer::Brief(text) => Ok((rebriefed(subject.old, text)?, Vec::new())),
            Steer::Focus(focus) => focused(focus).map(|()| (subject.old.clone(), Vec::new())),
            Steer::Undo => Err(nothing("only the last rewrite can be undone")),
        }
    }

    /// The view before the last rewrite.
    fn earlier(&self, ground: &Ground) -> Result<View, Error> {
        let earlier = self.store.earlier_view(&ground.recorded.chain)?;
        let view = earlier.ok_or_else(|| nothing("nothing was rewritten yet"))?;
        Ok(View { messages: ground.recorded.old.messages, ..view })
    }

    /// A view in which one result is replaced, made as the rules make it.
    fn taken_out(&self, subject: &Subject<'_>, at: usize, action: Action) -> Result<(View, Vec<Original>), Error> {
        let body = &subject.conversation.body;
        let message = body.get(at).ok_or_else(|| absent(at, body.len()))?;
        if message.role != Role::Tool {
            let hint = "what people and the model said is folded, not cleared";
            return Err(Error::client(400, "not_a_result", format!("message {at} is no tool result"), hint));
        }
        let touching = subject.old.edits.iter().find(|edit| touches(edit, at));
        let is_preview = matches!(touching, Some(Edit::Text { rule: Rule::Evict, .. }));
        if touching.is_some() && !(is_preview && matches!(action, Action::Placeholder { .. })) {
            return Err(nothing("it left the prompt already"));
        }
        let plan = Plan::of(vec![action]);
        let applied = self.make_view(subject, &plan, Words::default())?;
        Ok((applied.view, applied.originals))
    }

    /// Refuses what would not fit, with the numbers.
    pub(in crate::proxy) fn fitting(&self, ground: &Ground, price: &Price) -> Result<(), Error> {
        let window = ground.facts.window;
        let kept = plan::least_reserve(window);
        let most = window.saturating_sub(kept).saturating_sub(ground.facts.slack);
        if price.after <= most {
            return Ok(());
        }
        let message = format!(
            "the prompt would have {} tokens then, {} more than the {most} that fit: the window has {window}, of which at least \
             {kept} are kept for the reply",
            price.after,
            price.after - most,
        );
        Err(Error::client(409, "cannot_fit", message, "clear or fold something first"))
    }

    /// What a view holds by region, with no rule at work.
    pub(in crate::proxy) fn regions_with(&self, ground: &Ground, view: &View) -> Regions {
        let facts = self.facts_with(ground, view);
        Regions::of(&ground.recorded.request.conversation, &facts, &ground.resolved.policy)
    }

    /// The facts of the conversation under another view.
    fn facts_with(&self, ground: &Ground, view: &View) -> Facts {
        let conversation = &ground.recorded.request.conversation;
        let fresh = self.measure.facts(&ground.key, conversation, view, None);
        let edit_costs =
            fresh.edit_costs.iter().map(|cost| super::compact::scaled(*cost, ground.calibration)).collect();
        Facts { view: fresh.view, edit_costs, ..ground.facts.clone() }
    }

    /// Notes in the trace that a person changed what is wanted of a conversation.
    pub(in crate::proxy) fn note_steered(&self, id: &str, action: &str, when: When) {
        // What was made ahead was made for what was wanted before.
        self.lives.with(id, |live| (live.ahead, live.brief) = (None, None));
        let data = json!({"action": action, "when": when});
        let event = Event { now_ms: now_ms(), conversation: Some(id.to_owned()), kind: "steered".into(), data };
        if let Err(e) = self.store.record_later(Batch { events: vec![event], ..Batch::default() }) {
            tracing::debug!(error = %e, "an event was not recorded");
        }
    }

    /// Stops the rewriting of a conversation, or takes it up again.
    ///
    /// # Errors
    /// 404 for an unknown conversation, 409 where it is so already.
    pub async fn pause(&self, id: &str, on: bool) -> Result<Value, Error> {
        let row = self.whole_row(id).await?;
        if self.standing(&row.id, None)?.paused == on {
            return Err(nothing(if on {
                "nothing is rewritten already"
            } else {
                "it is rewritten as the rules say already"
            }));
        }
        self.change_standing(&row.id, |standing| standing.paused = on).await?;
        self.note_steered(&row.id, if on { "pause" } else { "unpause" }, When::Now);
        Ok(json!({"conversation": row.id, "paused": on}))
    }

    /// Takes back every change that waits for the next break.
    ///
    /// # Errors
    /// 404 for an unknown conversation.
    pub async fn forget_wishes(&self, id: &str) -> Result<Value, Error> {
        let row = self.whole_row(id).await?;
        let had = self.change_standing(&row.id, |standing| std::mem::take(&mut standing.wishes).len()).await?;
        self.note_steered(&row.id, "forget", When::Now);
        Ok(json!({"conversation": row.id, "taken_back": had}))
    }
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
fn restored(old: &View, at: usize, messages: usize) -> Result<View, Error> {
    if at >= messages {
        return Err(absent(at, messages));
    }
    if old.edits.iter().any(|edit| matches!(edit, Edit::Fold { .. }) && touches(edit, at)) {
        let hint = "pin it, undo the fold, or edit the brief so that it says what is missed";
        return Err(Error::client(409, "folded", format!("message {at} is folded into the brief"), hint));
    }
    let edits: Vec<Edit> = old.edits.iter().filter(|edit| !touches(edit, at)).cloned().collect();
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
        Edit::Fold { from, to, brief, .. } => (*from < *to).then_some(brief),
        _ => None,
    });
    let brief = brief.ok_or_else(|| nothing("nothing was folded, so there is no brief"))?;
    let block = brief[..brief.len() - pinned::without(brief).len()].trim_end().to_owned();
    *brief = Arc::from(pinned::with(text, &block));
    Ok(out)
}

/// Why a view changed, with the price of it.
pub(in crate::proxy) fn why(ground: &Ground, price: &Price, rule: &'static str, what: String) -> Because {
    let line = Lines::of(&ground.facts, &ground.resolved.policy).limit;
    Because { rule, before: price.before, after: price.after, line, what }
}

pub(in crate::proxy) fn nothing(why: &str) -> Error {
    Error::client(409, "nothing_to_do", why, "")
}

pub(in crate::proxy) fn absent(at: usize, messages: usize) -> Error {
    let message = format!("there is no message {at}: the conversation has {messages}, counted from 0");
    Error::client(404, "not_found", message, "")
}
