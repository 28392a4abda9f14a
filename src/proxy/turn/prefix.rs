//! How much of a conversation's last prompt the next one begins with: what the server's prompt cache can save, what a
//! rewrite of ours cost, and what the client itself changed. And the other half of the same matter: a message that was answered
//! before, and says the same to every model, is forwarded with the bytes it had then, so that a client which moves incidental
//! bytes about does not throw the cache away.

use std::time::Instant;

use super::class::Class;
use super::prepared::Prepared;
use crate::conversation::{Role, Tokens};
use crate::measure::tokens;
use crate::plan::rewrite::Out;
use crate::proxy::App;
use crate::proxy::state::live::Switched;
use crate::proxy::state::sent::{Item, Prefix, Sent, compare, mark};
use crate::upstream::Upstream;

/// Notes what is about to be forwarded. Returns what it has in common with the last prompt of its conversation.
pub(in crate::proxy) fn note_sent(app: &App, upstream: &Upstream, prepared: &Prepared) -> Option<Prefix> {
    let now = sent(app, prepared);
    app.turn.heads.note(prepared);
    let helper = Class::of(&prepared.request.conversation) == Class::Helper;
    app.lives.with(&prepared.id, |live| {
        // Another model's cache holds nothing of it.
        let last = live.prompt.sent.as_ref().filter(|_| prepared.history.switched.is_none());
        let prefix = last.map(|last| compare(last, &now));
        let model = upstream.canonical(&prepared.request.model);
        live.prompt.model = Some(Switched { model, upstream: upstream.name().to_owned() });
        let own = now.client.get(1..).unwrap_or_default();
        let known = prepared.history.located.as_ref().map_or(0, |l| l.depth);
        // What the record did not know yet, it holds as it came now.
        if live.prompt.as_recorded.get(..known).is_some_and(|before| own.get(..known) == Some(before)) {
            live.prompt.as_recorded = own.to_vec();
        }
        live.prompt.sent = Some(now);
        live.prompt.sent_view = Some(prepared.made.view.clone());
        live.prompt.of_helper = helper;
        live.prompt.last = Some(Instant::now());
        live.prompt.keep_alive.clone_from(&prepared.request.keep_alive);
        prefix
    })
}

/// Notes what was recalled behind a prompt: the server holds it too, and the next prompt begins with it.
pub(in crate::proxy) fn note_recalled(app: &App, prepared: &Prepared, recalled: &[Out]) {
    let item = |out: &Out| Item {
        mark: mark(&out.bytes),
        tokens: tokens::message(&String::from_utf8_lossy(&out.bytes)),
        at: None,
    };
    let recalled: Vec<Item> = recalled.iter().map(item).collect();
    app.lives.with(&prepared.id, |live| {
        if let Some(sent) = live.prompt.sent.as_mut().filter(|s| s.client == prepared.history.client_marks) {
            sent.forwarded.extend(recalled);
        }
    });
}

fn sent(app: &App, prepared: &Prepared) -> Sent {
    let conversation = &prepared.request.conversation;
    let costs = app.measure.costs(&prepared.key, conversation);
    let tools = conversation.tools.as_deref();
    let mut forwarded =
        vec![Item { mark: mark(tools.unwrap_or_default()), tokens: prepared.made.after.tools, at: Some(0) }];
    let raw: Vec<(u64, Tokens, Option<usize>)> = prepared
        .made
        .out
        .iter()
        .map(|out| {
            let known = out.at.filter(|_| !out.changed).and_then(|at| costs.get(at));
            let tokens = known.map_or_else(|| tokens::message(&String::from_utf8_lossy(&out.bytes)), |c| c.total());
            let at = if out.role == Role::System && out.at.is_none() { Some(0) } else { out.at.map(|at| at + 1) };
            (mark(&out.bytes), tokens, at)
        })
        .collect();
    // Estimates, scaled so that they add up to the count of the whole.
    let estimated: f64 = raw.iter().map(|(_, t, _)| f64::from(*t)).sum();
    let scale = f64::from(prepared.made.tokens.saturating_sub(prepared.made.after.tools)) / estimated.max(1.0);
    forwarded.extend(raw.into_iter().map(|(mark, tokens, at)| Item {
        mark,
        tokens: (f64::from(tokens) * scale).round() as Tokens,
        at,
    }));
    Sent { forwarded, client: prepared.history.client_marks.clone() }
}
