//! What a change of a view costs, said before it is made: the tokens that the server evaluates again with the next request. The
//! prompt that request will have is made here as it will be made there, and compared with the one that the server holds.

use bytes::Bytes;
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::compact::Ground;
use super::sight::measured_speed;
use super::steer::regions_with;
use super::warm::{Cache, cache_of};
use crate::conversation::Tokens;
use crate::conversation::edit::{Edit, View};
use crate::measure::{Sureness, count, tokens};
use crate::plan::Lines;
use crate::plan::rewrite::{self, Out};
use crate::proxy::state::gauge::{Gauge, Marks};
use crate::proxy::state::steer::When;
use crate::proxy::turn::counted_head::count_brief;
use crate::proxy::turn::situation::Situation;
use crate::proxy::{App, grouped};
use crate::wire::openai_chat::{self, Request};

/// What a change costs.
#[derive(Debug, Clone, Copy)]
pub(in crate::proxy) struct Price {
    /// Prompt tokens as they are.
    pub(in crate::proxy) before: Tokens,
    /// Prompt tokens then.
    pub(in crate::proxy) after: Tokens,
    /// Of these, evaluated again with the next request.
    pub(in crate::proxy) again: Tokens,
    /// Whether that was counted, and not estimated.
    pub(in crate::proxy) counted: bool,
    /// Whether the server still has what was sent last.
    pub(in crate::proxy) cache: Cache,
}

/// A prompt as it would be forwarded.
struct Prompt {
    body: Bytes,
    out: Vec<Out>,
    tools: bool,
}

impl Price {
    /// What it costs to leave things as they are until the next break.
    pub(in crate::proxy) fn nothing(ground: &Ground) -> Price {
        let now = ground.gauge();
        Price { before: now, after: now, again: 0, counted: ground.is_counted(), cache: Cache::Held }
    }
}

/// What it costs to have this view with the next request.
pub(in crate::proxy) async fn price_of(app: &App, ground: &Ground, view: &View) -> Price {
    let Situation { upstream, key, own, .. } = &ground.situation;
    count_brief(app, upstream, (key, own.as_deref()), &ground.request, view).boxed().await;
    let price = price_in_place(app, ground, view).await;
    let cache = cache_of(app, &ground.row, (&ground.situation.upstream, &ground.request.model)).await;
    Price { again: if cache.reads_all() { price.after } else { price.again }, cache, ..price }
}

/// The same where the server still holds what was sent last.
async fn price_in_place(app: &App, ground: &Ground, view: &View) -> Price {
    let old = prompt(ground, ground.old());
    let next = prompt(ground, view);
    // The server holds what was sent last; what was changed since then cost nothing yet.
    let sent = app.lives.with(&ground.row.id, |live| live.prompt.sent_view.clone());
    let held = match &sent {
        Some(sent) if sent != ground.old() => prompt(ground, sent),
        _ => prompt(ground, ground.old()),
    };
    let sizes = (sized(app, ground, &old.body).await, sized(app, ground, &next.body).await);
    let (Some(before), Some(after)) = sizes else {
        return estimated_price(app, ground, view, (&held, &old, &next));
    };
    let again = match shared(app, ground, &held, &next).await {
        Some(shared) => after.saturating_sub(shared),
        // A server may refuse to count a history that ends anywhere.
        None => again_by_share(ground, (&held, &next), after),
    };
    // A price goes on from what the gauge says. Without the head, only the difference is known anyway.
    let follows = !ground.has_head || ground.gauge_is_of_the_record();
    let outside = if follows { i64::from(ground.gauge()) - i64::from(before) } else { 0 };
    let shift = |n: Tokens| Tokens::try_from((i64::from(n) + outside).max(0)).unwrap_or(Tokens::MAX);
    let counted = ground.has_head || ground.is_counted();
    Price { before: shift(before), after: shift(after), again, counted, cache: Cache::Held }
}

/// A price where nobody can count: by what the plan's facts say of both views.
fn estimated_price(app: &App, ground: &Ground, view: &View, (held, old, next): (&Prompt, &Prompt, &Prompt)) -> Price {
    let planned = |view: &View| i64::from(regions_with(app, ground, view).prompt());
    let tool = |prompt: &Prompt| i64::from(if prompt.tools { tool_of_ours(app, ground) } else { 0 });
    let before = ground.gauge();
    let more = planned(view) - planned(ground.old()) + tool(next) - tool(old);
    let after = Tokens::try_from((i64::from(before) + more).max(0)).unwrap_or(Tokens::MAX);
    Price { before, after, again: again_by_share(ground, (held, next), after), counted: false, cache: Cache::Held }
}

/// About the tokens of a prompt of `after` tokens that are evaluated again: the share of its messages that the server does not hold.
fn again_by_share(ground: &Ground, (held, next): (&Prompt, &Prompt), after: Tokens) -> Tokens {
    if held.tools != next.tools {
        return after;
    }
    let share = f64::from(estimate(&next.out[same(held, next)..])) / f64::from(estimate(&next.out).max(1));
    super::compact::scaled(after.saturating_sub(ground.fixed()), share)
}

/// Tokens of the tool that reads back what left the prompt.
fn tool_of_ours(app: &App, ground: &Ground) -> Tokens {
    let asks = ground.policy().digest_model.is_some();
    let model = (&ground.situation.key, ground.situation.own.as_deref());
    Marks::of_tool(&app.measure, model, &ground.request, asks)
}

/// What the gauge says of a conversation under another view, at this price.
pub(in crate::proxy) fn gauge_at(app: &App, ground: &Ground, view: &View, price: &Price) -> Gauge {
    let tools = prompt(ground, view).tools;
    let asks = ground.policy().digest_model.is_some();
    let own = ground.situation.own.as_deref();
    let marks = Marks::of(&app.measure, (&ground.situation.key, own), &ground.request, view, (tools, asks));
    let mut kept = marks.kept(&app.measure);
    if !ground.has_head {
        // Nobody has the bytes: they cost what they did.
        let last = ground.last_regions();
        (kept.system, kept.tools) = (Some(last.system), Some(last.tools));
    }
    let planned = regions_with(app, ground, view);
    if kept.brief.is_none() && fold_of(view) == fold_of(ground.old()) {
        // The same fold with other words in its brief, or another pin in front: what stands on keeps the count that it had.
        let other = i64::from(planned.brief) - i64::from(regions_with(app, ground, ground.old()).brief);
        let brief = Tokens::try_from((i64::from(ground.last_regions().brief) + other).max(0)).unwrap_or(Tokens::MAX);
        let others = [kept.system.unwrap_or(planned.system), kept.tools.unwrap_or(planned.tools), planned.media];
        let all = others.into_iter().fold(brief, Tokens::saturating_add);
        kept.brief = Some(brief).filter(|_| all <= price.after);
    }
    let regions = planned.settled(kept, price.after);
    if ground.has_head {
        marks.note(&app.measure, &regions);
    }
    let sureness = if price.counted { Sureness::Counted } else { Sureness::Estimated };
    let mut counts = app.measure.firsts.kept(&marks.all());
    counts.extend(ground.counts());
    // Those of the first prompt stay; the one that reads back comes and goes.
    let told = ground.row.state["tools_of_ours"].as_u64().and_then(|n| Tokens::try_from(n).ok()).unwrap_or(0);
    let reads_back = tool_of_ours(app, ground);
    let had = if prompt(ground, ground.old()).tools { reads_back } else { 0 };
    let ours = told.saturating_sub(had) + if tools { reads_back } else { 0 };
    Gauge { regions, source: sureness.as_str(), counts, ours }
}

/// The messages that a view folds; `None` where its brief only carries what is pinned, or there is none.
fn fold_of(view: &View) -> Option<(usize, usize)> {
    view.edits.iter().find_map(|edit| match edit {
        Edit::Fold { from, to, .. } if from < to => Some((*from, *to)),
        _ => None,
    })
}

/// The size of a prompt, where it can be counted.
async fn sized(_app: &App, ground: &Ground, body: &Bytes) -> Option<Tokens> {
    if let Some(own) = &ground.situation.own {
        let media = count::media(&ground.request.conversation);
        if let Some(exact) = own.total(&ground.situation.upstream, body, media, ground.situation.known_window()).await {
            return Some(exact.tokens);
        }
    }
    if !ground.situation.upstream.can_count() {
        return None;
    }
    ground.situation.upstream.count(body).await.ok()
}

/// Tokens that two prompts begin with.
async fn shared(_app: &App, ground: &Ground, held: &Prompt, next: &Prompt) -> Option<Tokens> {
    if let Some(own) = &ground.situation.own {
        return own.shared(&held.body, &next.body).await;
    }
    if held.tools != next.tools {
        // Tools stand in front of everything, in most templates.
        return Some(0);
    }
    let messages: Vec<Bytes> = next.out[..same(held, next)].iter().map(|out| out.bytes.clone()).collect();
    if messages.is_empty() {
        return Some(0);
    }
    let body = openai_chat::write(&request(ground, next.tools), &messages, &[]);
    ground.situation.upstream.count(&body).await.ok()
}

/// A price as it is told.
pub(in crate::proxy) fn priced(app: &App, ground: &Ground, price: &Price, when: When, dry_run: bool) -> Value {
    let speed = measured_speed(app, &ground.row.id);
    let lines = Lines::of(&ground.facts, &ground.policy().policy);
    let line = lines.fold_at;
    let mut out = json!({
        "conversation": ground.row.id, "dry_run": dry_run, "when": when, "before": price.before,
        "after": price.after, "evaluated_again": price.again, "counted": price.counted, "cache": price.cache.as_str(), "limit": lines.limit,
        "tokens_per_second": speed, "seconds": speed.map(|s| f64::from(price.again) / s), "brief_reads": Value::Null,
    });
    if let Some(note) = price.cache.note() {
        out["note"] = json!(note);
    } else if price.after > line && price.after > price.before {
        out["note"] = json!(format!(
            "{} tokens are {} more than the {} from which the history is folded: a later request may be folded again, unless \
             rewriting is stopped",
            grouped(price.after),
            grouped(price.after - line),
            grouped(line)
        ));
    }
    out
}

/// The request of a recorded conversation, with the tool that reads back what left its prompt or without it.
fn request(ground: &Ground, offers: bool) -> Request {
    let mut request = ground.request.clone();
    if let Some(tools) = ground.with_recall.as_ref().filter(|_| offers) {
        request.offer(tools.clone());
    }
    request
}

/// The prompt that a view makes.
fn prompt(ground: &Ground, view: &View) -> Prompt {
    let out = rewrite::rewrite(&ground.request.conversation, view, &ground.policy().policy.template);
    let tools = ground.with_recall.is_some() && view.lacks() && !view.bare;
    let messages: Vec<Bytes> = out.iter().map(|m| m.bytes.clone()).collect();
    Prompt { body: openai_chat::write(&request(ground, tools), &messages, &[]), out, tools }
}

/// How many messages two prompts begin with.
fn same(held: &Prompt, next: &Prompt) -> usize {
    if held.tools != next.tools {
        return 0;
    }
    held.out.iter().zip(&next.out).take_while(|(a, b)| a.bytes == b.bytes).count()
}

/// Estimated tokens of messages.
fn estimate(out: &[Out]) -> Tokens {
    out.iter().map(|m| tokens::message(&String::from_utf8_lossy(&m.bytes))).fold(0, Tokens::saturating_add)
}
