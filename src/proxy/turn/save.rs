//! What a prepared request leaves in the record: originals, messages, the view, events, the conversation's gauge. Nothing
//! leaves the prompt before it is durable here.

use std::time::Duration;

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use serde_json::{Value, json};
use tracing::warn;

use super::class::Class;
use super::client::{is_told, is_whole};
use super::gauge;
use super::guard::remember;
use super::prepared::Prepared;
use super::stage::Stage;
use crate::clock::now_ms;
use crate::conversation::edit::{Edit, View};
use crate::conversation::{Digest, Message, Role, Tokens};
use crate::guard::triggers::{Folded, Pace};
use crate::measure::Sureness;
use crate::plan::Lines;
use crate::plan::reason::AskedBy;
use crate::proxy::state::fresh::Told;
use crate::proxy::state::gauge::{Gauge, Parts, regions};
use crate::proxy::state::headers;
use crate::proxy::state::live::Kept;
use crate::proxy::state::scope::Scope;
use crate::proxy::state::sizes::Sizes;
use crate::proxy::state::walls::Walls;
use crate::proxy::{App, Error};
use crate::store::{self, About, Batch, ConversationUpdate, Event, Node};
use crate::upstream::Upstream;
use crate::{passage, plain, remind};

/// Longest that a reply waits for its request to be written.
pub(super) const SLOWEST_WRITE: Duration = Duration::from_secs(1);

/// What became of a request's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(in crate::proxy) enum Saved {
    /// It is on record, or was before.
    Stands,
    /// Another view of the same messages is: the request is to be prepared with that one.
    Overtaken,
}

/// Makes originals, messages and the view durable, before a view without them is sent. What needs no waiting is
/// queued.
///
/// Where another request of a shared record made a view of the same messages meanwhile, nothing of this one is written.
pub(in crate::proxy) async fn save(app: &App, upstream: &Upstream, prepared: &mut Prepared) -> Result<Saved, Error> {
    let Some(tip) = prepared.history.chain.last().copied() else { return Ok(Saved::Stands) };
    Stage::Saved.begins(&prepared.id);
    note_missed(app, prepared);
    let depth = prepared.history.located.as_ref().map_or(0, |l| l.depth);
    // They can be large, and nothing reads them again.
    let originals = std::mem::take(&mut prepared.made.originals);
    let batch = Batch { originals, ..batch(app, upstream, prepared, tip, depth) };
    // What left the system text must be safe, too.
    let left = prepared.head.indexed.as_ref().is_some_and(|i| i.is_new);
    if !prepared.made.view_changed && batch.recalled.is_none() && !left {
        if let Err(e) = app.store.record_soon(batch).await {
            // Nothing left the prompt: the conversation can go on without its record.
            warn!(conversation = %prepared.id, error = %e, "the record cannot be written");
        }
        // Where nobody counts, what was forwarded is planned by what the record says of it: another process knows no other
        // reason to leave it as it was.
        if prepared.own.is_none() && !upstream.can_count() {
            in_record(app).await;
        }
        return Ok(Saved::Stands);
    }
    let seen = prepared.history.seen.record.filter(|_| prepared.made.view_changed);
    match app.store.record_over(batch, seen).await {
        // What was known of it may have been deleted meanwhile, too.
        Err(store::Error::Overtaken | store::Error::Gap { .. }) if seen.is_some() => return Ok(Saved::Overtaken),
        written => written?,
    }
    if let Some(shared) = for_forks(prepared) {
        match app.store.record_over(Batch { view: Some(shared), ..Batch::default() }, seen).await {
            // A fork has one already.
            Err(store::Error::Overtaken) => {}
            written => written?,
        }
    }
    Ok(Saved::Stands)
}

/// Counts what was read again after it had left the prompt.
fn note_missed(app: &App, prepared: &Prepared) {
    if prepared.history.missed.is_empty() {
        return;
    }
    remember(app, &prepared.id);
    app.lives.with(&prepared.id, |live| {
        prepared.history.missed.iter().for_each(|missed| live.accounts.missed.add(missed.kind))
    });
    prepared.history.missed.iter().for_each(|missed| app.metrics.missed(missed.kind.as_str()));
}

/// Notes that a conversation was folded, where a request's view has another fold than the last one.
pub(in crate::proxy) fn note_fold(app: &App, prepared: &Prepared) {
    let to = prepared.made.view.edits.iter().find_map(|edit| match edit {
        Edit::Fold { from, to, .. } if from < to => Some(*to),
        _ => None,
    });
    let body = &prepared.request.conversation.body;
    app.lives.with(&prepared.id, |live| {
        if let Some(to) = to.filter(|to| *to != live.accounts.folded.to) {
            live.accounts.folded = Folded::at(body, to, now_ms());
            live.work.fold_due.take_if(|due| matches!(due, Pace::Fold(_)));
        }
    });
}

/// Notes where the lines stand for a request.
fn note_walls(app: &App, prepared: &Prepared) {
    let Some(window) = prepared.window.tokens else { return };
    let now = Walls::of(window, &prepared.made.lines, &prepared.made.after);
    app.lives.with(&prepared.id, |live| live.accounts.walls = now.after(&live.accounts.walls));
}

/// What a request adds to the record: the messages after the first `depth`, and what its view takes out of the prompt.
fn batch(app: &App, upstream: &Upstream, prepared: &Prepared, tip: Digest, depth: usize) -> Batch {
    let now_ms = now_ms();
    let mut events = Vec::new();
    if prepared.made.view_changed && !prepared.told.actions.is_empty() || is_told(prepared) {
        events.push(Event {
            now_ms,
            conversation: Some(prepared.id.clone()),
            kind: "context_compaction".into(),
            data: compaction(upstream, prepared),
        });
    }
    if let Some(before) = &prepared.history.switched {
        events.push(Event {
            now_ms,
            conversation: Some(prepared.id.clone()),
            kind: "model_changed".into(),
            data: json!({
                "was": before.model, "was_upstream": before.upstream, "model": upstream.canonical(&prepared.request.model),
                "upstream": upstream.name(), "window": prepared.window.tokens,
                "edits": prepared.made.view.edits.len(),
            }),
        });
    }
    let listed = prepared.head.admitted.as_ref().filter(|a| a.is_new);
    events.extend(listed.map(|a| Event {
        now_ms,
        conversation: Some(prepared.id.clone()),
        kind: "tools_listed".into(),
        data: a.event(prepared.made.after.tools),
    }));
    events.extend(prepared.history.missed.iter().map(|missed| Event {
        now_ms,
        conversation: Some(prepared.id.clone()),
        kind: "missed".into(),
        data: json!({"kind": missed.kind.as_str(), "message": missed.at, "of": missed.of}),
    }));
    let sizes = app.lives.with(&prepared.id, |live| live.accounts.sizes);
    events.extend(recalled_ahead(prepared, sizes).map(|data| Event {
        now_ms,
        conversation: Some(prepared.id.clone()),
        kind: "recalled_ahead".into(),
        data,
    }));
    events.extend(prepared.wishes.ruled.as_ref().map(|ruled| ruled.event(&prepared.id, now_ms)));
    let indexed = prepared.head.indexed.as_ref().filter(|i| i.is_new);
    events.extend(indexed.map(|i| i.event(&prepared.id, now_ms)));
    Batch {
        recalled: listed.map(|a| a.kept(tip)),
        conversation: (!prepared.history.repeats_a_beginning).then(|| update(app, upstream, prepared, tip, now_ms)),
        nodes: nodes(&prepared.history.chain, &prepared.request.conversation.body, depth),
        view: prepared.made.view_changed.then(|| (tip, prepared.made.view.clone())),
        events,
        about: prepared.wishes.standing_changed.clone().map(|text| (prepared.id.clone(), About::Standing(text))),
        durable: prepared.made.view_changed || indexed.is_some(),
        ..Batch::default()
    }
}

/// Says on a reply that the record cannot be written at present.
pub(in crate::proxy) fn mark_record(app: &App, to: &mut HeaderMap<HeaderValue>) {
    let Some(trouble) = app.store.trouble() else { return };
    let (state, text) = match trouble.error.is_away() {
        true => ("waiting", "what this conversation adds waits on windowsill's own disk"),
        false => ("unwritable", "this conversation goes on unrecorded"),
    };
    headers::set(to, "x-windowsill-record", state);
    let text = format!("{text}: {}", trouble.error);
    headers::warn(to, &[plain::line(&text).to_string()]);
}

fn update(app: &App, upstream: &Upstream, prepared: &Prepared, tip: Digest, now_ms: i64) -> ConversationUpdate {
    let forked = prepared.history.located.as_ref().filter(|l| l.conversation != prepared.id);
    remember(app, &prepared.id);
    note_fold(app, prepared);
    note_walls(app, prepared);
    let kept = app.lives.with(&prepared.id, |l| Kept::of(l));
    let gauge = gauge::planned(&app.measure, prepared);
    let parent = forked.map(|l| (l.conversation.clone(), l.depth));
    ConversationUpdate { parent, ..updated(upstream, prepared, tip, (&kept, &gauge), now_ms) }
}

/// The record's entry of the conversation after a request or its reply.
pub(super) fn updated(
    upstream: &Upstream,
    prepared: &Prepared,
    tip: Digest,
    (kept, gauge): (&Kept, &Gauge),
    now_ms: i64,
) -> ConversationUpdate {
    ConversationUpdate {
        id: prepared.id.clone(),
        parent: None,
        session: prepared.history.session.clone(),
        model: upstream.canonical(&prepared.request.model),
        upstream: upstream.name().to_owned(),
        tip,
        depth: prepared.history.chain.len(),
        state: state(prepared, kept, gauge),
        now_ms,
        title: prepared.title(),
    }
}

/// What is told of a rewrite, or of a brief that a client asked for.
fn compaction(upstream: &Upstream, prepared: &Prepared) -> serde_json::Value {
    let asked_by = is_told(prepared).then(|| AskedBy::Client.as_str());
    // It may say all of it already: then nothing is done.
    let action = if prepared.told.actions.is_empty() { "summarize".to_owned() } else { prepared.action() };
    // The history stays as it was until the client brings the brief back: the next reply tells what it takes.
    let source = if is_whole(prepared) { Sureness::Estimated } else { prepared.made.sureness };
    let folds = prepared.told.actions.contains(&"summarize") || is_told(prepared);
    let focus = prepared.wishes.standing.focus().or(prepared.policy.focus.as_deref()).filter(|_| folds);
    let (before, before_sureness) = prepared.made.before;
    json!({
        "action": action, "asked_by": asked_by, "because": prepared.told.because, "window": prepared.window.tokens,
        "window_source": prepared.window.source, "before": regions(&before),
        "before_source": before_sureness.as_str(),
        "after": regions(&prepared.made.after), "prompt_tokens": prepared.made.tokens,
        "prompt_tokens_source": source.as_str(), "model": upstream.canonical(&prepared.request.model),
        "task": prepared.policy.task, "seconds": rounded(prepared.made.seconds), "focus": focus, "depth": depth(&prepared.made.view),
        "was": was(prepared),
    })
}

/// The mark of the view before, where a request makes another one.
fn was(prepared: &Prepared) -> Option<String> {
    prepared.made.was.filter(|_| prepared.made.view_changed).map(|mark| mark.hex())
}

/// How many messages of a conversation stand as its brief.
pub(in crate::proxy) fn depth(view: &View) -> usize {
    let folded = |edit: &Edit| match edit {
        Edit::Fold { from, to, keep, .. } => Some((to - from).saturating_sub(keep.len())),
        _ => None,
    };
    view.edits.iter().find_map(folded).unwrap_or(0)
}

/// Seconds to the millisecond.
pub(in crate::proxy) fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// The part of a new view that still holds when the client edits its last message: the edits before it, under the chain
/// hash of what stands before it.
fn for_forks(prepared: &Prepared) -> Option<(Digest, View)> {
    let body = &prepared.request.conversation.body;
    let before = crate::conversation::step::last_user(body)?;
    if prepared.history.located.as_ref().is_some_and(|l| l.depth >= before) {
        // That part was forwarded on its own, in a view of its own, which stays as it is.
        return None;
    }
    let chain = *prepared.history.chain.get(before.checked_sub(1)?)?;
    let holds = |edit: &&Edit| match edit {
        Edit::Text { at, .. } | Edit::Arguments { at, .. } | Edit::Recalled { at, .. } => *at < before,
        // A brief may hold words of messages behind its fold.
        Edit::Fold { to, .. } => *to <= before && prepared.made.view.read() <= before,
    };
    let edits: Vec<Edit> = prepared.made.view.edits.iter().filter(holds).cloned().collect();
    (!edits.is_empty())
        .then_some((chain, View { messages: before, edits, bare: prepared.made.view.bare, ..View::default() }))
}

/// A conversation's state, as it is kept and shown.
#[derive(Serialize)]
struct State<'a> {
    #[serde(flatten)]
    prompt: Prompt<'a>,
    #[serde(flatten)]
    rules: Rules<'a>,
    action: String,
    edits: BTreeMap<String, usize>,
    messages: usize,
    system_messages: usize,
    /// Tools that the client offers.
    tools_offered: usize,
    #[serde(flatten)]
    kept: &'a Kept,
    /// What other windowsills and the next start take from it.
    #[serde(skip_serializing_if = "Told::is_empty")]
    told: Told,
}

/// What its last prompt takes.
#[derive(Serialize)]
struct Prompt<'a> {
    window: Option<Tokens>,
    window_source: &'a str,
    prompt_tokens: Tokens,
    prompt_tokens_source: &'a str,
    /// About what the client's history takes without any rewrite.
    client_tokens: Tokens,
    pressure: f64,
    regions: Parts,
    counts: &'a BTreeMap<String, Tokens>,
    /// About what the tools of ours take of the region of tools.
    tools_of_ours: Tokens,
    lines: Drawn,
}

/// What it is, and what it is planned by.
#[derive(Serialize)]
struct Rules<'a> {
    class: &'a str,
    waits: &'a [String],
    profile: &'a str,
    named_profile: &'a Option<String>,
    task: &'a Option<String>,
    scope: Option<Value>,
}

/// The lines that prompts are kept under.
#[derive(Serialize)]
struct Drawn {
    limit: Tokens,
    clear_at: Tokens,
    clear_to: Tokens,
    summarize_at: Tokens,
    summarize_to: Tokens,
    fold_at: Tokens,
    evict_over: Tokens,
}

/// A conversation's state as JSON.
fn state(prepared: &Prepared, kept: &Kept, gauge: &Gauge) -> String {
    let Lines { limit, clear_at, clear_to, summarize_at, summarize_to, fold_at, evict_over, .. } = prepared.made.lines;
    let prompt = Prompt {
        window: prepared.window.tokens,
        window_source: &prepared.window.source,
        prompt_tokens: gauge.regions.prompt(),
        prompt_tokens_source: gauge.source,
        client_tokens: prepared.client_tokens(gauge.regions.prompt()),
        pressure: gauge.pressure(prepared.window.tokens),
        regions: Parts::of(&gauge.regions),
        counts: &gauge.counts,
        tools_of_ours: gauge.ours,
        lines: Drawn { limit, clear_at, clear_to, summarize_at, summarize_to, fold_at, evict_over },
    };
    let rules = Rules {
        class: Class::of(&prepared.request.conversation).as_str(),
        waits: &prepared.told.waits,
        profile: &prepared.policy.profile,
        named_profile: &prepared.policy.named_profile,
        task: &prepared.policy.task,
        scope: prepared.wishes.scope.as_ref().map(Scope::json),
    };
    let state = State {
        prompt,
        rules,
        action: prepared.action(),
        edits: counted_edits(&prepared.made.view),
        messages: prepared.request.conversation.body.len(),
        system_messages: prepared.request.conversation.system.len(),
        tools_offered: offered(prepared),
        kept,
        told: prepared.sending.told.open_where(prepared.sending.route.is_some()),
    };
    serde_json::to_string(&state).unwrap_or_default()
}

/// How many edits of each kind a view has, and how many messages are folded in it.
pub(in crate::proxy) fn counted_edits(view: &View) -> BTreeMap<String, usize> {
    let mut edits = BTreeMap::new();
    for edit in &view.edits {
        let key = match edit {
            Edit::Text { rule, .. } | Edit::Arguments { rule, .. } => format!("{rule:?}").to_lowercase(),
            Edit::Recalled { .. } => "recalled".to_owned(),
            Edit::Fold { to, from, .. } => {
                edits.insert("folded_messages".to_owned(), to - from);
                "fold".to_owned()
            }
        };
        *edits.entry(key).or_default() += 1;
    }
    edits
}

/// How many tools the client offers.
fn offered(prepared: &Prepared) -> usize {
    let request = &prepared.request;
    let tools = request.client_tools.as_ref().or(request.conversation.tools.as_ref());
    tools.and_then(|tools| serde_json::from_slice::<Vec<serde::de::IgnoredAny>>(tools).ok()).map_or(0, |all| all.len())
}

/// The messages behind `depth` as nodes of the record.
pub(in crate::proxy) fn nodes(chain: &[Digest], body: &[Message], depth: usize) -> Vec<Node> {
    let depth = depth.min(chain.len());
    let size = |messages: &[Message]| messages.iter().map(|m| m.raw.len()).sum::<usize>();
    // A slice keeps the whole request in memory until the new part of it is written: where that is most of it, a copy would
    // take more.
    let most = size(&body[depth..]) * 2 >= size(body);
    (depth..chain.len())
        .map(|at| {
            let message = &body[at];
            let bytes = if message.raw.is_empty() { message.bytes() } else { &message.raw };
            Node {
                chain: chain[at],
                parent: at.checked_sub(1).map(|p| chain[p]),
                depth: at + 1,
                role: match message.role {
                    Role::System => "system",
                    Role::User => "user",
                    Role::Assistant => "assistant",
                    Role::Tool => "tool",
                    Role::Other => "other",
                },
                digest: message.digest,
                raw: if most { bytes.clone() } else { Bytes::copy_from_slice(bytes) },
                text: passage::searched(message),
            }
        })
        .collect()
}

/// What the trace tells of what came with a request, without its words.
fn recalled_ahead(prepared: &Prepared, sizes: Sizes) -> Option<Value> {
    let body = &prepared.request.conversation.body;
    let last = body.len().checked_sub(1).filter(|_| prepared.made.view_changed)?;
    prepared.made.view.edits.iter().find_map(|edit| match edit {
        Edit::Recalled { at, of, .. } if *at == last => {
            let why = match remind::cue(body).map(|cue| cue.of) {
                Some(remind::Of::Trouble) => "trouble",
                _ => "words",
            };
            Some(json!({"message": at, "of": of, "why": why, "tokens": sizes.edit(edit), "was": was(prepared)}))
        }
        _ => None,
    })
}

/// Waits until the request is in the record, so that a crash after the reply loses nothing of it. It was queued before it
/// was forwarded, and a model takes longer than a write: this waits only for a disk that is slow.
pub(in crate::proxy) async fn in_record(app: &App) {
    if tokio::time::timeout(SLOWEST_WRITE, app.store.flush()).await.is_err() {
        warn!("the record is slow: it is not waited for");
    }
}
