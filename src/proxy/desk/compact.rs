//! `windowsill compact`: a conversation of the record is folded now, asked for by a person.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use http::HeaderMap;
use serde_json::{Value, json};

use super::price::{Price, gauge_at, price_of, priced};
use super::record::short;
use super::sight::brief_seconds;
use super::steer::wish;
use crate::apply::{Applied, Words, Written};
use crate::clock::now_ms;
use crate::config::Resolved;
use crate::conversation::edit::View;
use crate::conversation::{Digest, Tokens};
use crate::measure::tokens;
use crate::plan::reason::AskedBy;
use crate::plan::{Action, Because, Counting, Facts, Lines, Plan, Regions, Strategy};
use crate::proxy::state::gauge::{reasons, regions};
use crate::proxy::state::live::Unmade;
use crate::proxy::state::standing::{Held, Standing, held, standing_of};
use crate::proxy::state::steer::{Steer, When};
use crate::proxy::state::view::{Intent, Subject, make_view, planned};
use crate::proxy::turn::brief::{Ask, ask_for_brief, folded, is_asked, left_out};
use crate::proxy::turn::save::{counted_edits, depth, rounded};
use crate::proxy::turn::situation::{Situation, of_record};
use crate::proxy::turn::steering::{focused, nothing};
use crate::proxy::{App, Error, aside, grouped};
use crate::store::{Batch, ConversationRow, ConversationUpdate, Event};
use crate::summarizer::{self, Wanted};
use crate::upstream::ChatOptions;
use crate::wire::openai_chat::Request;

/// The window where nobody says one.
const ASSUMED_WINDOW: Tokens = 8192;

/// What a fold is asked for with.
#[derive(Debug, Default)]
pub struct Compaction {
    /// What the brief is to keep above all.
    pub focus: Option<String>,
    /// When it is folded.
    pub when: When,
    /// Whether only the price is told.
    pub dry_run: bool,
    /// Whether a model writes the brief for the price, too.
    pub write_brief: bool,
}

/// A fold that a person asked for.
pub(super) struct Fold<'a> {
    pub(super) plan: Plan,
    /// Messages that it takes, from the first.
    pub(super) to: usize,
    pub(super) focus: Option<&'a str>,
    /// Whether a model writes the brief.
    asks: bool,
    /// The longest text that the model may write.
    max_tokens: Tokens,
}

impl<'a> Fold<'a> {
    /// Plans it.
    ///
    /// # Errors
    /// When there is nothing to fold.
    fn planned(ground: &'a Ground, focus: Option<&'a str>) -> Result<Fold<'a>, Error> {
        Fold::of(ground, ground.folding().ok_or_else(nothing_to_fold)?, focus)
    }

    /// That of a plan.
    ///
    /// # Errors
    /// When the plan folds nothing.
    pub(super) fn of(ground: &'a Ground, plan: Plan, focus: Option<&'a str>) -> Result<Fold<'a>, Error> {
        let policy = &ground.policy().policy;
        let found = plan.actions.iter().find_map(|a| match a {
            Action::Fold { to, budget, .. } => Some((*to, *budget)),
            _ => None,
        });
        let (to, budget) = found.ok_or_else(nothing_to_fold)?;
        let max_tokens = (budget.min(plan.lines.summary) / 4 * 3).min(policy.summary_max_tokens);
        let asks = matches!(policy.strategy, Strategy::Summarize | Strategy::Off);
        Ok(Fold { plan, to, focus: focus.or(ground.policy().focus.as_deref()), asks, max_tokens })
    }

    /// What is wanted of its brief.
    fn wanted(&self, ground: &Ground) -> Wanted<'a> {
        let temperature = ground.policy().summary_temperature;
        Wanted { max_tokens: self.max_tokens, temperature, focus: self.focus }
    }

    /// What was written for it from a view, to be kept until it is made.
    fn draft(&self, ground: &Ground, old: &View, text: Option<Arc<str>>) -> Unmade {
        let focus = self.focus.map(str::to_owned);
        Unmade { tip: ground.chain().last().copied(), old: old.clone(), to: self.to, focus, text }
    }
}

fn nothing_to_fold() -> Error {
    let message = "there is nothing to fold: the conversation is short or was just folded";
    Error::client(409, "nothing_to_fold", message, "")
}

/// What somebody asked to be done with a view.
pub(in crate::proxy) struct Asked<'a> {
    pub(in crate::proxy) by: AskedBy,
    /// As it stands in the trace.
    pub(in crate::proxy) action: &'a str,
    /// Why, in words without message text.
    pub(in crate::proxy) because: Vec<Because>,
    /// What a brief was to dwell on, in the person's words.
    pub(in crate::proxy) focus: Option<&'a str>,
    /// Of an undo: the mark of the view before what it takes back.
    pub(in crate::proxy) undoes: Option<&'a str>,
    /// When it was begun.
    pub(in crate::proxy) started: Instant,
}

/// A recorded conversation, and what must be known to change it.
pub(in crate::proxy) struct Ground {
    pub(in crate::proxy) situation: Situation,
    pub(in crate::proxy) row: ConversationRow,
    pub(in crate::proxy) request: Request,
    pub(in crate::proxy) facts: Facts,
    /// What the estimates of its messages were multiplied by, so that they add up to the last count of the whole.
    pub(in crate::proxy) calibration: f64,
    /// What people want of it.
    pub(in crate::proxy) standing: Arc<Standing>,
    pub(in crate::proxy) held: Held,
    /// Whether the request has the system messages and tools of the last one.
    pub(in crate::proxy) has_head: bool,
    /// The client's tools with ours behind them, where the model may have it once something left its prompt.
    pub(in crate::proxy) with_recall: Option<bytes::Bytes>,
}

impl Ground {
    /// For whoever changes the view.
    pub(in crate::proxy) fn subject(&self) -> Subject<'_> {
        let Situation { key, own, .. } = &self.situation;
        Subject {
            conversation: &self.request.conversation,
            id: &self.row.id,
            key,
            own: own.as_deref(),
            counting: Counting::default(),
            old: self.old(),
        }
    }

    /// The view that it was last forwarded with.
    pub(in crate::proxy) fn old(&self) -> &View {
        &self.situation.history.stored
    }

    /// Chain hash of each prefix of its history.
    pub(in crate::proxy) fn chain(&self) -> &[Digest] {
        &self.situation.history.chain
    }

    /// Its policy.
    pub(in crate::proxy) fn policy(&self) -> &Resolved {
        &self.situation.policy
    }

    /// The plan of a fold that is wanted now; `None` where there is nothing to fold.
    pub(in crate::proxy) fn folding(&self) -> Option<Plan> {
        planned(&self.request.conversation, &self.facts, &self.situation.policy.policy, Intent::Fold)
    }

    /// Prompt tokens, as the gauge says.
    pub(in crate::proxy) fn gauge(&self) -> Tokens {
        stored(&self.row, "/prompt_tokens")
    }

    /// Whether what the gauge says was counted.
    pub(in crate::proxy) fn is_counted(&self) -> bool {
        let source = self.row.state["prompt_tokens_source"].as_str();
        source.is_some_and(|source| !source.starts_with("estimated"))
    }

    /// Whether the gauge is of all messages that are recorded: the newest reply may be on record since.
    pub(in crate::proxy) fn gauge_is_of_the_record(&self) -> bool {
        self.row.state["messages"].as_u64() == u64::try_from(self.chain().len()).ok()
    }

    /// The system prompt, the tools and the brief, as the gauge says.
    pub(in crate::proxy) fn last_regions(&self) -> Regions {
        let of = |path: &str| stored(&self.row, path);
        let (system, tools, brief) = (of("/regions/system"), of("/regions/tools"), of("/regions/brief"));
        Regions { system, tools, brief, ..Regions::default() }
    }

    /// The first counts that are kept with it.
    pub(in crate::proxy) fn counts(&self) -> BTreeMap<String, Tokens> {
        serde_json::from_value(self.row.state["counts"].clone()).unwrap_or_default()
    }

    /// Tokens of the prompt that stand in no message of the recorded request.
    pub(in crate::proxy) fn fixed(&self) -> Tokens {
        let tools = stored(&self.row, "/regions/tools");
        if self.has_head { tools } else { tools.saturating_add(stored(&self.row, "/regions/system")) }
    }
}

/// A number of tokens in a conversation's gauge.
fn stored(row: &ConversationRow, path: &str) -> Tokens {
    let number = row.state.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    Tokens::try_from(number).unwrap_or(Tokens::MAX)
}

/// Summarizes a conversation of the record now, asked for by a person. Returns what was done; with `dry_run` the price
/// alone, and then nothing is changed. A model is asked in a dry run only with `write_brief`; what it writes is kept for the
/// fold that may follow.
///
/// # Errors
/// When the conversation is unknown, or there is nothing to fold.
pub async fn compact(app: &Arc<App>, id: &str, wanted: Compaction) -> Result<Value, Error> {
    let (owned, id) = (Arc::clone(app), id.to_owned());
    // How much of the record it takes shows only as it is read.
    let work = async move { compact_now(&owned, &id, &wanted).await };
    app.aside.run(aside::LARGE, work.boxed()).await?
}

async fn compact_now(app: &Arc<App>, id: &str, wanted: &Compaction) -> Result<Value, Error> {
    let started = Instant::now();
    let focus = wanted.focus.as_deref().map(str::trim);
    focus.map_or(Ok(()), focused)?;
    if wanted.write_brief && !wanted.dry_run {
        let hint = "with it, the brief is written and priced, and nothing is folded";
        return Err(Error::client(400, "bad_request", "`write_brief` goes with `dry_run`", hint));
    }
    let ground = ground(app, id).await?;
    if wanted.when == When::NextBreak {
        let focus = focus.ok_or_else(|| nothing("the next fold comes by itself; a focus can wait for it"))?;
        return wish(app, &ground, &Steer::Focus(focus.to_owned()), wanted.dry_run).await;
    }
    let fold = Fold::planned(&ground, focus)?;
    if wanted.dry_run {
        priced_fold(app, &ground, &fold, wanted).await
    } else {
        fold_now(app, &ground, &fold, started).await
    }
}

/// What is said of the price of a fold whose brief no model wrote, though one is asked for it.
const UNUSED: &str = "no model wrote a brief of use: this is the one that is made without a model";

/// What a fold costs. What a model will write is known once it has written; until then what is kept without one takes
/// its place.
async fn priced_fold(app: &App, ground: &Ground, fold: &Fold<'_>, wanted: &Compaction) -> Result<Value, Error> {
    let written = if wanted.write_brief {
        written_for(app, ground, ground.old(), fold).await
    } else {
        drafted_for(app, ground, ground.old(), fold)
    };
    let text = written.as_ref().and_then(|text| text.as_deref());
    let view = folded_view(app, ground, &fold.plan, fold.focus, text.map(|text| (text, fold.to)))?.view;
    let price = price_of(app, ground, &view).await;
    let mut told = priced(app, ground, &price, wanted.when, true);
    let own = (&ground.situation.upstream, ground.request.model.as_str());
    let asks = fold.asks && written.is_none() && is_asked(app, own, &ground.policy().summary_model).await;
    let to_read = if asks { Some(reads(app, ground, fold).await) } else { None };
    let id = &ground.row.id;
    told["brief_reads"] = json!(to_read);
    told["brief_seconds"] = json!(to_read.and_then(|reads| brief_seconds(app, id, reads, fold.max_tokens)));
    // Where no model is asked, this is the brief.
    let is_written = !asks;
    told["brief"] = json!(is_written.then(|| view.brief().map(str::to_owned)).flatten());
    told["written_by_a_model"] = json!(text.is_some());
    if written == Some(None) {
        let note = told["note"].as_str().map_or_else(|| UNUSED.to_owned(), |other| format!("{UNUSED}; {other}"));
        told["note"] = json!(note);
    }
    Ok(told)
}

/// Folds.
async fn fold_now(app: &App, ground: &Ground, fold: &Fold<'_>, started: Instant) -> Result<Value, Error> {
    let written = written_for(app, ground, ground.old(), fold).await.flatten();
    let read = written.as_deref().map(|text| (text, fold.to));
    let Applied { view, originals } = folded_view(app, ground, &fold.plan, fold.focus, read)?;
    let price = price_of(app, ground, &view).await;
    let because = fold.plan.because.clone();
    let done = json!({
        "conversation": ground.row.id, "before": price.before, "after": price.after,
        "evaluated_again": price.again, "counted": price.counted, "cache": price.cache.as_str(), "written_by_a_model": written.is_some(),
        "because": reasons(&because, (price.before, !price.counted), price.after), "brief": view.brief().map(str::to_owned),
    });
    let asked = Asked { by: AskedBy::User, action: "summarize", because, focus: fold.focus, undoes: None, started };
    let batch = Batch { originals, ..Batch::default() };
    record_view(app, ground, &price, view, asked, batch).await?;
    Ok(done)
}

/// What a model wrote for this fold when its price was asked.
fn drafted_for(app: &App, ground: &Ground, old: &View, fold: &Fold<'_>) -> Option<Option<Arc<str>>> {
    let draft = app.lives.with(&ground.row.id, |live| live.work.draft.clone())?;
    (draft == fold.draft(ground, old, draft.text.clone())).then_some(draft.text)
}

/// What a model writes for this fold of a view, asked now unless it was asked before; `None` where none is asked.
pub(super) async fn written_for(app: &App, ground: &Ground, old: &View, fold: &Fold<'_>) -> Option<Option<Arc<str>>> {
    if !fold.asks {
        return None;
    }
    if let Some(written) = drafted_for(app, ground, old, fold) {
        return Some(written);
    }
    let Ground { situation, request, facts, .. } = ground;
    let Situation { upstream, window, policy, .. } = situation;
    let (messages, previous) = folded(request, old, fold.to);
    let text = ask_for_brief(
        app,
        &Ask {
            upstream,
            headers: &HeaderMap::new(),
            options: ChatOptions { num_ctx: window.set, ..ChatOptions::default() },
            request,
            summary_model: &policy.summary_model,
            id: &ground.row.id,
            view: &[],
            view_tokens: 0,
            waited_for: None,
            spare_slot: true,
            messages: &messages,
            previous: previous.as_deref(),
            window: facts.window,
            wanted: fold.wanted(ground),
        },
    )
    .await
    .map(|(text, _)| text);
    let draft = fold.draft(ground, old, text.clone());
    app.lives.with(&ground.row.id, |live| live.work.draft = Some(draft));
    Some(text)
}

/// The view that a plan makes of a recorded conversation. `written`: the brief, and how many messages it was made from.
pub(in crate::proxy) fn folded_view(
    app: &App,
    ground: &Ground,
    plan: &Plan,
    focus: Option<&str>,
    written: Option<(&str, usize)>,
) -> Result<Applied, crate::store::Error> {
    let unread = left_out(ground.old());
    let written = written.map(|(text, read)| Written { text, read, unread: &unread });
    let (keep, pins) = (ground.policy().keep, &*ground.held.texts);
    let words = Words { focus, written, keep, pins, ..Words::default() };
    make_view(app, &ground.subject(), plan, words)
}

/// What is known of a recorded conversation that somebody wants to change.
///
/// # Errors
/// 404 for an unknown one, 400 for the beginning of an id.
pub(in crate::proxy) async fn ground(app: &App, id: &str) -> Result<Ground, Error> {
    ground_at(app, id, None).await
}

/// The same as of the request that had so many messages; without a number, of all that are recorded.
///
/// # Errors
/// As [`ground`].
pub(super) async fn ground_at(app: &App, id: &str, messages: Option<usize>) -> Result<Ground, Error> {
    let row = whole_row(app, id).await?;
    let head = app.turn.heads.of(id);
    let head_request = head.as_ref().and_then(|head| head.request());
    let has_head = head_request.is_some();
    let with_recall = head.and_then(|head| head.with_recall.clone()).filter(|_| has_head);
    let (situation, request) = of_record(app, &row, head_request, messages).await?;
    let Situation { key, policy, window, .. } = &situation;
    let standing = standing_of(app, id, None)?;
    let mut facts = facts_of(app, &situation, &row, &request);
    facts.window = window.tokens.unwrap_or(ASSUMED_WINDOW);
    let held = held(app, key, &standing, &policy.pins, &request.conversation.body, facts.window);
    held.tell(&mut facts);
    // A person who steers means it, also where nothing is rewritten by itself.
    facts.paused = false;
    app.measure.firsts.take(&row.state["counts"]);
    let estimated = Regions::of(&request.conversation, &facts, &policy.policy);
    let calibration = calibration(&row, &estimated);
    // What was counted last is the count of all of it.
    let calibration = if messages.is_none() { calibration } else { 1.0 };
    scale(&mut facts, calibration);
    Ok(Ground { situation, row, request, facts, calibration, standing, held, has_head, with_recall })
}

/// The row of a conversation that somebody wants to change, by its whole id.
///
/// # Errors
/// 404 for an unknown one, 400 for the beginning of an id.
pub(in crate::proxy) async fn whole_row(app: &App, id: &str) -> Result<ConversationRow, Error> {
    // The last reply's figures may still be queued, and with them the conversation.
    app.store.flush().await;
    // A prefix is enough to look at something, and not to change it.
    let found = match app.store.conversation(id) {
        Err(e @ crate::store::Error::Ambiguous { .. }) => {
            return Err(Error::client(400, "ambiguous", e.to_string(), "give the whole id"));
        }
        found => found?,
    };
    match found {
        Some(row) if row.id == id => Ok(row),
        // Of a session, or of the beginning of an id: a person who changes something should know what.
        Some(row) => {
            let message =
                format!("`{}` is not a whole id: a request that changes a conversation names it whole", short(id));
            Err(Error::client(404, "not_found", message, &format!("the conversation that it means is {}", row.id)))
        }
        None => {
            let message = format!("no conversation `{}` in the record", short(id));
            Err(Error::client(404, "not_found", message, "`windowsill context` and the page list them"))
        }
    }
}

/// The facts of a recorded conversation but for its window. System messages and tools are outside the record: what
/// they cost last time stands.
fn facts_of(app: &App, situation: &Situation, row: &ConversationRow, request: &Request) -> Facts {
    let stored = |path: &str| stored(row, path);
    Facts {
        system: stored("/regions/system"),
        tools: stored("/regions/tools"),
        output_reserved: stored("/regions/output_reserved"),
        forwarded: 0,
        ..app.measure.facts(&situation.key, &request.conversation, &situation.history.stored, None)
    }
}

/// Records a view that a person asked for, and what the gauge says from now on.
pub(in crate::proxy) async fn record_view(
    app: &App,
    ground: &Ground,
    price: &Price,
    view: View,
    asked: Asked<'_>,
    batch: Batch,
) -> Result<(), Error> {
    let (row, chain, old) = (&ground.row, ground.chain(), ground.old());
    let Some(tip) = chain.last().copied() else { return Ok(()) };
    let was = gauge_at(app, ground, old, &Price { after: price.before, ..*price });
    let gauge = gauge_at(app, ground, &view, price);
    let data = json!({
        "action": asked.action, "asked_by": asked.by.as_str(),
        "because": reasons(&asked.because, (price.before, !price.counted), price.after), "model": row.model,
        "before": regions(&was.regions), "before_source": was.source, "after": regions(&gauge.regions), "focus": asked.focus,
        "prompt_tokens": price.after, "prompt_tokens_source": gauge.source,
        "seconds": rounded(asked.started.elapsed().as_secs_f64()), "depth": depth(&view), "was": old.mark().hex(),
        "undoes": asked.undoes,
    });
    let mut state = row.state.clone();
    if state.is_object() {
        gauge.write(&mut state);
        state["edits"] = json!(counted_edits(&view));
        // Why nothing was done to the prompt of the last request says nothing of this one.
        state["waits"] = json!(undecided(ground, price.after));
    }
    let now_ms = now_ms();
    let event = Event { now_ms, conversation: Some(row.id.clone()), kind: "context_compaction".into(), data };
    let update = ConversationUpdate { tip, depth: chain.len(), state: state.to_string(), ..unchanged(row, now_ms) };
    let batch =
        Batch { conversation: Some(update), view: Some((tip, view)), events: vec![event], durable: true, ..batch };
    app.store.record(batch).await?;
    app.metrics.rewrote(asked.action);
    // What was made ahead was made for the view before.
    app.lives.steer(&row.id);
    app.lives.with(&row.id, |live| live.work.draft = None);
    Ok(())
}

/// That a prompt which a person changed is past a line, and what comes of it: no request was planned with it yet.
fn undecided(ground: &Ground, prompt: Tokens) -> Option<[String; 1]> {
    let line = Lines::of(&ground.facts, &ground.policy().policy).fold_at;
    (prompt > line).then(|| {
        let line = grouped(line);
        [format!("You changed the prompt, and it has passed the {line} tokens from which it is folded: the next request decides.")]
    })
}

/// A conversation as the record has it, for a change of something about it.
pub(in crate::proxy) fn unchanged(row: &ConversationRow, now_ms: i64) -> ConversationUpdate {
    ConversationUpdate {
        id: row.id.clone(),
        parent: None,
        session: row.session.clone(),
        model: row.model.clone(),
        upstream: row.upstream.clone(),
        tip: row.tip,
        depth: row.depth,
        state: row.state.to_string(),
        now_ms,
        title: row.title.clone(),
    }
}

/// How the last count of a prompt compares with what is estimated of it, but for its head, which was counted then: a price should
/// say what the server will. Far off, the count was of something else.
fn calibration(row: &ConversationRow, estimated: &Regions) -> f64 {
    let head = f64::from(estimated.system) + f64::from(estimated.tools);
    let counted = row.state["prompt_tokens"].as_f64().unwrap_or(0.0) - head;
    let estimated = f64::from(estimated.prompt()) - head;
    if counted <= 0.0 || estimated <= 0.0 { 1.0 } else { (counted / estimated).clamp(0.5, 2.0) }
}

/// Multiplies what all messages cost.
fn scale(facts: &mut Facts, by: f64) {
    for cost in &mut facts.costs {
        cost.text = scaled(cost.text, by);
        cost.media = scaled(cost.media, by);
        cost.calls.iter_mut().for_each(|call| *call = scaled(*call, by));
    }
    facts.edit_costs.iter_mut().for_each(|cost| *cost = scaled(*cost, by));
}

/// Tokens, multiplied.
pub(in crate::proxy) fn scaled(tokens: Tokens, by: f64) -> Tokens {
    (f64::from(tokens) * by).round() as Tokens
}

/// Tokens that a model reads to write the brief of a fold: the whole question, as it is asked.
async fn reads(app: &App, ground: &Ground, fold: &Fold<'_>) -> Tokens {
    let Situation { key, own, upstream, .. } = &ground.situation;
    let (messages, previous) = folded(&ground.request, ground.old(), fold.to);
    let folded = (messages.as_slice(), previous.as_deref());
    let count = |text: &str| app.measure.count(key, text);
    let (body, text) = summarizer::foreseen(&ground.request, folded, ground.facts.window, &fold.wanted(ground), &count);
    let counted = if own.is_none() && upstream.can_count() { upstream.count(&body).await.ok() } else { None };
    counted.unwrap_or_else(|| app.measure.text(key, own.as_deref(), &text).saturating_add(tokens::AROUND))
}
