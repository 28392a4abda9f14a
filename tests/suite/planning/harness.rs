//! Runs the pure pipeline with a trivial measure (a token is four bytes) and a trivial maker of material that uses up
//! every budget it is given: the worst that `apply` may do.

use std::sync::Arc;

use bytes::Bytes;
use windowsill::brief;
use windowsill::conversation::edit::{Edit, Rule, View};
use windowsill::conversation::{Conversation, Message, Role, Tokens};
use windowsill::plan::rewrite::{Out, rewrite};
use windowsill::plan::{Action, Cost, Facts, Plan, Policy, plan};
use windowsill::wire::openai_chat as wire;

/// Tokens of the words that a template puts around a message, or around a call.
pub(crate) const FRAME: Tokens = 4;

/// Tokens of one picture.
pub(crate) const PICTURE: Tokens = 200;

/// Tokens of a placeholder: what the planner counts with at the least (`plan::facts::placeholder`).
const PLACEHOLDER: Tokens = 60;

/// Stands in every brief, so that a test can find it.
pub(crate) const BRIEF_MARK: &str = "[BRIEF]";

/// Stands in every text that replaces another.
pub(crate) const EDIT_MARK: &str = "[EDIT]";

fn of_bytes(bytes: usize) -> Tokens {
    bytes.div_ceil(4) as Tokens
}

/// What a message costs in these tests.
pub(crate) fn cost(message: &Message) -> Cost {
    Cost {
        text: of_bytes(message.text.len()) + FRAME,
        calls: message.calls.iter().map(|c| of_bytes(c.name.len() + c.arguments.len()) + FRAME).collect(),
        media: PICTURE * message.media.len() as Tokens,
    }
}

/// What a message of a view costs.
pub(crate) fn cost_of(out: &Out) -> Tokens {
    cost(&read(out)).total()
}

/// A message of a view, read again from its bytes.
pub(crate) fn read(out: &Out) -> Message {
    wire::message(out.bytes.clone()).expect("a view consists of messages")
}

/// What was measured of a conversation.
pub(crate) fn facts(conversation: &Conversation, view: &View, window: Tokens, reserved: Tokens) -> Facts {
    let head = |m: &Message| cost(m).total();
    Facts {
        window,
        output_reserved: reserved,
        slack: 0,
        system: conversation.system.iter().map(head).sum(),
        tools: conversation.tools.as_ref().map_or(0, |t| of_bytes(t.len())),
        costs: conversation.body.iter().map(cost).collect(),
        edit_costs: view.edits.iter().map(|e| edit_cost(conversation, e)).collect(),
        told: brief::told(view),
        view: view.clone(),
        ..Default::default()
    }
}

/// What an edit put in place costs.
pub(crate) fn edit_cost(conversation: &Conversation, edit: &Edit) -> Tokens {
    match edit {
        Edit::Text { text, .. } => of_bytes(text.len()) + FRAME,
        Edit::Arguments { at, call, arguments, .. } => {
            of_bytes(conversation.body[*at].calls[*call].name.len() + arguments.len()) + FRAME
        }
        Edit::Recalled { text, .. } => of_bytes(text.len()) + FRAME,
        Edit::Fold { brief, .. } => of_bytes(brief.len()),
    }
}

/// A text of exactly `tokens` tokens (not counting a frame), with a mark in front.
pub(crate) fn filler(mark: &str, tokens: Tokens) -> String {
    let bytes = tokens as usize * 4;
    let mut out = String::with_capacity(bytes + mark.len());
    out.push_str(&mark[..mark.len().min(bytes)]);
    while out.len() < bytes {
        out.push('x');
    }
    out
}

/// Makes the material for a plan and puts it together with the edits made earlier.
pub(crate) fn view_of(conversation: &Conversation, old: &View, plan: &Plan) -> View {
    let fold = plan.actions.iter().find_map(|a| match a {
        Action::Fold { from, to, keep, budget, .. } => Some((*from, *to, keep.clone(), *budget)),
        _ => None,
    });
    let mut edits: Vec<Edit> = Vec::new();
    let gone = |at: usize| {
        let inside = |from: usize, to: usize, keep: &[usize]| (from..to).contains(&at) && !keep.contains(&at);
        fold.as_ref().is_some_and(|(from, to, keep, _)| inside(*from, *to, keep))
    };
    for edit in &old.edits {
        let stays = match edit {
            Edit::Fold { .. } => fold.is_none(),
            Edit::Text { at, .. } => !gone(*at) && !plan.actions.iter().any(|a| text_edit_of(a) == Some(*at)),
            Edit::Recalled { at, .. } => {
                let goes = |a: &Action| text_edit_of(a) == Some(*at) || *a == Action::Forget { at: *at };
                !gone(*at) && !plan.actions.iter().any(goes)
            }
            Edit::Arguments { at, call, .. } => {
                let again = |a: &Action| matches!(a, Action::Elide { at: m, call: c, .. } if (m, c) == (at, call));
                !gone(*at) && !plan.actions.iter().any(again)
            }
        };
        if stays {
            edits.push(edit.clone());
        }
    }
    edits.extend(plan.actions.iter().filter_map(|a| edit(conversation, a)));
    edits.sort_by_key(|e| match e {
        Edit::Fold { .. } => (0, 0, 0),
        Edit::Text { at, .. } => (1, *at, 0),
        Edit::Arguments { at, call, .. } => (1, *at, 1 + call),
        Edit::Recalled { at, .. } => (1, *at, usize::MAX),
    });
    View { messages: conversation.body.len(), edits, ..View::default() }
}

/// The message whose text an action replaces.
pub(crate) fn text_edit_of(action: &Action) -> Option<usize> {
    match action {
        Action::Preview { at, .. }
        | Action::Placeholder { at, .. }
        | Action::Repeat { at, .. }
        | Action::Restore { at, .. }
        | Action::Quiet { at }
        | Action::Cut { at, .. } => Some(*at),
        Action::Elide { .. } | Action::Forget { .. } | Action::Fold { .. } => None,
    }
}

fn edit(conversation: &Conversation, action: &Action) -> Option<Edit> {
    let text = |at: usize, rule: Rule, text: String| Edit::Text {
        at,
        digest: conversation.body[at].digest,
        rule,
        text: text.into(),
        record: format!("r{at}"),
    };
    Some(match action {
        Action::Forget { .. } => return None,
        Action::Quiet { at } => text(*at, Rule::Clear, conversation.body[*at].text.to_string()),
        Action::Preview { at, budget, rule } => text(*at, *rule, filler(EDIT_MARK, budget.saturating_sub(FRAME))),
        Action::Placeholder { at, .. } => text(*at, Rule::Clear, filler(EDIT_MARK, PLACEHOLDER - FRAME)),
        Action::Repeat { at, .. } => text(*at, Rule::Repeat, filler(EDIT_MARK, 40 - FRAME)),
        Action::Restore { at, of, whole } => {
            let (old, back) = (&conversation.body[*at].text, &conversation.body[*of].text);
            let back = if *whole { back.as_str() } else { "" };
            text(*at, Rule::Restore, format!("{old}{}{back}", filler(EDIT_MARK, 50)))
        }
        Action::Cut { at, budget } => {
            let mut end = (*budget - FRAME) as usize * 4 - EDIT_MARK.len();
            let old = &conversation.body[*at].text;
            while !old.is_char_boundary(end) {
                end -= 1;
            }
            text(*at, Rule::Truncate, format!("{}{EDIT_MARK}", &old[..end.min(old.len())]))
        }
        Action::Elide { at, call, budget, rule } => {
            let message = &conversation.body[*at];
            let name = message.calls[*call].name.len();
            let room = ((*budget - FRAME) as usize * 4).saturating_sub(name + 8);
            Edit::Arguments {
                at: *at,
                digest: message.digest,
                call: *call,
                rule: *rule,
                arguments: format!("{{\"x\":\"{}\"}}", "y".repeat(room)).into(),
                record: format!("r{at}.{call}"),
            }
        }
        Action::Fold { from, to, keep, budget, .. } => Edit::Fold {
            from: *from,
            to: *to,
            keep: keep.clone(),
            brief: Arc::from(filler(BRIEF_MARK, *budget)),
            unread: Vec::new(),
            read: Some(*to),
            struck: Vec::new(),
        },
    })
}

/// One pass through the pipeline.
pub(crate) struct Pass {
    pub plan: Plan,
    pub view: View,
    pub out: Vec<Out>,
    /// Prompt tokens of what is forwarded, tools included.
    pub tokens: Tokens,
}

/// Plans, makes the material and rewrites.
pub(crate) fn pass(conversation: &Conversation, facts: &Facts, policy: &Policy) -> Pass {
    let plan = plan(conversation, facts, policy);
    let view = view_of(conversation, &facts.view, &plan);
    let out = rewrite(conversation, &view, &policy.template);
    let measured = |o: &Out| match o.at {
        Some(at) if !o.changed => facts.costs[at].total(),
        _ => cost_of(o),
    };
    let tokens = facts.tools + out.iter().map(measured).sum::<Tokens>();
    Pass { plan, view, out, tokens }
}

/// Whether a view is a well-formed conversation: every call answered, every result called for, at the place where
/// servers want it.
pub(crate) fn well_formed(out: &[Out]) -> Result<(), String> {
    let mut waiting: Vec<String> = Vec::new();
    let mut made: Vec<String> = Vec::new();
    for (i, message) in out.iter().map(read).enumerate() {
        if message.role == Role::Tool {
            let id = message.call_id.unwrap_or_default();
            let by_id = waiting.iter().position(|w| *w == id);
            match by_id.or_else(|| waiting.iter().position(|w| w.is_empty() || id.is_empty())) {
                Some(at) => drop(waiting.remove(at)),
                // A second result for the same call is the client's own doing.
                None if made.contains(&id) => {}
                None => return Err(format!("message {i}: result {id:?} without a call")),
            }
            continue;
        }
        if !waiting.is_empty() {
            return Err(format!("message {i}: calls {waiting:?} before it have no result"));
        }
        waiting = message.calls.iter().map(|c| c.id.clone()).collect();
        made.clone_from(&waiting);
        for call in &message.calls {
            let object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&call.arguments);
            object.map_err(|e| format!("message {i}: arguments {:?}: {e}", call.arguments))?;
        }
    }
    if waiting.is_empty() { Ok(()) } else { Err(format!("calls {waiting:?} at the end have no result")) }
}

/// Everything that must hold for any pass, whatever the conversation.
pub(crate) fn check(conversation: &Conversation, facts: &Facts, policy: &Policy) -> Result<Pass, String> {
    let pass = pass(conversation, facts, policy);
    let again = plan(conversation, facts, policy);
    ensure(again == pass.plan, || "the same input gave another plan".into())?;
    indices(conversation, &pass.plan)?;
    ensure(!pass.plan.fits || pass.tokens <= pass.plan.lines.limit, || {
        let Pass { plan, tokens, .. } = &pass;
        format!("{tokens} tokens pass the limit {}, planned {}", plan.lines.limit, plan.after.prompt())
    })?;
    let waits = |rule: &str| pass.plan.waits.iter().any(|waiting| waiting.rule == rule);
    let both = pass.plan.because.iter().find(|because| waits(because.rule));
    ensure(both.is_none(), || format!("it acted, and waits: {both:?}"))?;
    well_formed(&pass.out)?;
    order(conversation, &pass)?;
    bytes(conversation, &pass, policy)?;
    last_user(conversation, facts, &pass)?;
    if policy.template.strict_alternation {
        alternates(&pass.out)?;
    }
    if pass.plan.fits {
        idempotent(conversation, facts, policy, &pass)?;
    }
    Ok(pass)
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn indices(conversation: &Conversation, plan: &Plan) -> Result<(), String> {
    let len = conversation.body.len();
    let calls = |at: usize| conversation.body.get(at).map_or(0, |m| m.calls.len());
    let mut texts = Vec::new();
    for action in &plan.actions {
        let good = match action {
            Action::Preview { at, .. } | Action::Placeholder { at, .. } | Action::Cut { at, .. } => *at < len,
            Action::Forget { at } | Action::Quiet { at } => *at < len,
            Action::Repeat { at, of } | Action::Restore { at, of, .. } => *at < len && of < at,
            Action::Elide { at, call, .. } => *call < calls(*at),
            Action::Fold { from, to, keep, .. } => {
                from < to && *to <= len && keep.iter().all(|k| (from..to).contains(&k)) && keep.is_sorted()
            }
        };
        ensure(good, || format!("{action:?} with {len} messages"))?;
        if let Some(at) = text_edit_of(action) {
            ensure(!texts.contains(&at), || format!("two edits of the text of {at}"))?;
            texts.push(at);
        }
    }
    let folds = plan.actions.iter().filter(|a| matches!(a, Action::Fold { .. })).count();
    ensure(folds <= 1, || format!("{folds} folds in one plan"))
}

fn order(conversation: &Conversation, pass: &Pass) -> Result<(), String> {
    let at: Vec<usize> = pass.out.iter().filter_map(|m| m.at).collect();
    ensure(at.is_sorted_by(|a, b| a < b), || format!("order lost: {at:?}"))?;
    ensure(at.iter().all(|i| *i < conversation.body.len()), || format!("no such message: {at:?}"))
}

/// Leading system messages and unedited messages keep their bytes, where no template wants another shape.
fn bytes(conversation: &Conversation, pass: &Pass, policy: &Policy) -> Result<(), String> {
    let any = windowsill::plan::TemplateFacts::default();
    let shaped = policy.template != windowsill::plan::TemplateFacts { tool_call_id_length: None, ..any.clone() };
    if shaped {
        return Ok(());
    }
    for (message, out) in conversation.system.iter().zip(&pass.out) {
        ensure(out.bytes == *message.bytes(), || "a leading system message was changed".into())?;
    }
    let fold = pass.view.edits.iter().find_map(|e| match e {
        Edit::Fold { from, .. } => Some(*from),
        _ => None,
    });
    for out in &pass.out {
        let Some(at) = out.at else { continue };
        let edited = pass.view.edits.iter().any(|e| match e {
            Edit::Text { at: m, .. } | Edit::Arguments { at: m, .. } | Edit::Recalled { at: m, .. } => *m == at,
            Edit::Fold { .. } => false,
        });
        let anchor = fold.is_some_and(|from| at + 1 == from);
        let same = out.bytes == *conversation.body[at].bytes();
        ensure(edited || anchor || same, || format!("message {at} was changed without an edit"))?;
    }
    if pass.view.edits.is_empty() {
        let all: Vec<&Bytes> = conversation.system.iter().chain(&conversation.body).map(Message::bytes).collect();
        ensure(pass.out.iter().map(|o| &o.bytes).eq(all), || "nothing to do, but something was changed".into())?;
    }
    Ok(())
}

/// What a person asked last says all it said, unless it alone had to be cut.
fn last_user(conversation: &Conversation, facts: &Facts, pass: &Pass) -> Result<(), String> {
    let Some(last) = windowsill::conversation::step::request(&conversation.body) else { return Ok(()) };
    let message = &conversation.body[last];
    let touched = pass.view.edits.iter().any(|e| matches!(e, Edit::Text { at, .. } if *at == last));
    if touched {
        let cut = pass.plan.actions.iter().any(|a| matches!(a, Action::Cut { at, .. } if *at == last));
        let was = |e: &Edit| matches!(e, Edit::Text { at, rule: Rule::Truncate, .. } if *at == last);
        return ensure(cut || facts.view.edits.iter().any(was), || {
            "the last user message was edited, but not because it had to be cut".into()
        });
    }
    let read: Vec<Message> = pass.out.iter().map(read).collect();
    let found = read.iter().any(|m| m.role == Role::User && m.text.contains(message.text.as_str()));
    ensure(found, || format!("the last user message {:?} is gone", message.text))?;
    let media = read.iter().filter(|m| m.role == Role::User && m.text.contains(message.text.as_str()));
    let kept = media.map(|m| m.media.len()).max().unwrap_or(0);
    ensure(kept >= message.media.len(), || "media of the last user message are gone".into())
}

/// User turns and assistant turns without calls alternate, beginning with a user.
pub(crate) fn alternates(out: &[Out]) -> Result<(), String> {
    let mut last = Role::Assistant;
    for (i, m) in out.iter().enumerate() {
        if m.role == Role::User || m.role == Role::Assistant && !m.calls {
            ensure(m.role != last, || format!("message {i}: two turns of {last:?} in a row"))?;
            last = m.role;
        }
    }
    Ok(())
}

/// Planning a view again changes nothing.
fn idempotent(conversation: &Conversation, facts: &Facts, policy: &Policy, pass: &Pass) -> Result<(), String> {
    let next = Facts { forwarded: conversation.body.len(), ..self::facts(conversation, &pass.view, 0, 0) };
    let next = Facts {
        window: facts.window,
        output_reserved: facts.output_reserved,
        slack: facts.slack,
        system: facts.system,
        tools: facts.tools,
        counting: facts.counting,
        ..next
    };
    let again = plan(conversation, &next, policy);
    ensure(again.actions.is_empty() && again.fits, || {
        format!(
            "planned again: {:?} {:?}\nfirst: {:?} {:?}",
            again.actions, again.because, pass.plan.actions, pass.plan.because
        )
    })
}
