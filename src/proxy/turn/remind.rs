//! Recall ahead: passages that the last message points at and that are missing in the prompt come behind its words. Decided once a
//! history, when it comes for the first time; from then on it is an edit of the view like any other.

use tracing::warn;

use super::attempt::{Attempt, bytes_of};
use super::drafts::{Draft, Drafted, exact};
use super::recall::{as_shown, left_the_prompt};
use crate::conversation::Tokens;
use crate::conversation::edit::Edit;
use crate::conversation::managed::Compact;
use crate::measure::tokens;
use crate::passage::{Found, Said};
use crate::plan::rewrite;
use crate::proxy::App;
use crate::proxy::state::gauge::UNKNOWN_WINDOW;
use crate::proxy::state::headers;
use crate::recall;
use crate::remind::{self, Block, Standing};
use crate::store::{Hit, blocking};
use crate::wire::openai_chat;

/// Passages that are looked at.
const FOUND: usize = 40;

/// A draft with what comes back behind its last message, where anything does and fits into `limit` prompt tokens.
pub(super) async fn reminded(app: &App, draft: &Draft<'_>, limit: Tokens, made: Drafted) -> Drafted {
    let body = &draft.request.conversation.body;
    let Some(block) = found(app, draft, limit, &made) else { return made };
    let mut view = made.view.clone();
    remind::put(&mut view, body, block);
    let out = rewrite::rewrite(&draft.request.conversation, &view, &draft.policy.template);
    let bytes = bytes_of(&draft.request, &out);
    let cost = view.edits.last().map_or(0, |edit| cost(app, draft, edit));
    let estimate = (made.tokens.saturating_add(cost), made.sureness);
    let (tokens, sureness) = match draft.situation.can_count() {
        true => exact(draft, &bytes).await.unwrap_or(estimate),
        false => estimate,
    };
    if tokens > limit {
        return made;
    }
    let mut plan = made.plan;
    plan.after.history = plan.after.history.saturating_add(cost);
    Drafted { view, out, body: bytes, tokens, sureness, plan, ..made }
}

fn cost(app: &App, draft: &Draft<'_>, edit: &Edit) -> Tokens {
    let Edit::Recalled { text, .. } = edit else { return 0 };
    tokens::AROUND + app.measure.text(&draft.situation.key, draft.situation.own.as_deref(), text)
}

/// What comes back, if anything. Nothing that is not a message of this very history does.
fn found(app: &App, draft: &Draft<'_>, limit: Tokens, made: &Drafted) -> Option<Block> {
    let (situation, conversation) = (draft.situation, &draft.request.conversation);
    let body = &conversation.body;
    let off = !situation.policy.recall_ahead || headers::is_off(&situation.from_client, &headers::RECALL_AHEAD);
    let window = situation.known_window();
    let once = situation.attempt == Attempt::First && !situation.is_sent_again(&draft.request);
    let last = body.len().checked_sub(1)?;
    // Whoever asks for a fold asks the model nothing with it.
    let folds = draft.policy.client.compact.as_ref().is_some_and(Compact::is_now);
    if off || folds || !once || window >= UNKNOWN_WINDOW || !made.view.lacks() || remind::is_behind(&made.view, last) {
        return None;
    }
    let room = remind::room(window, limit.saturating_sub(made.tokens));
    let mut cue = remind::cue(body).filter(|_| room > 0)?;
    // A person said that it does not help here.
    let unwanted = &draft.wanted.unwanted;
    let may_come = |at: usize| {
        body.get(at).is_some_and(|message| !unwanted.contains(&message.digest)) && !recall::is_woven(body, at)
    };
    cue.places.retain(|found| found.said.iter().all(|said| may_come(said.at)));
    let mut own = |hit: &mut Hit| {
        let same = |digest| body.get(hit.at).is_some_and(|message| message.digest == digest);
        // The id of a text that once stood in its place says nothing of this one.
        (hit.id, hit.call) = (None, None);
        hit.at < last && hit.digest.is_some_and(same) && may_come(hit.at)
    };
    let count = |text: &str| app.measure.text(&situation.key, situation.own.as_deref(), text);
    blocking(|| {
        let mut search = |conversation: &str| {
            app.store.passages(&cue.query, Some(conversation), FOUND, &mut own).unwrap_or_else(|e| {
                warn!(conversation = situation.id(), error = %e, "the record cannot be searched");
                Vec::new()
            })
        };
        let mut all = search(situation.id());
        // A fork that is not on record yet has what it shares with the conversation that it parts from.
        let parted = situation.history.located.as_ref().map(|located| located.conversation.as_str());
        if let Some(other) = parted.filter(|other| all.is_empty() && *other != situation.id()) {
            all = search(other);
        }
        let all: Vec<Found> = all.into_iter().map(as_shown).collect();
        if all.is_empty() && cue.places.is_empty() {
            return None;
        }
        let texts: Vec<_> = made.out.iter().filter_map(|out| openai_chat::message(out.bytes.clone()).ok()).collect();
        let standing = Standing::of(texts.iter().map(|message| message.text.as_str()));
        let gone = |said: &Said| left_the_prompt(&made.view, said.at) && !standing.holds(said);
        remind::block(&cue, &all, &gone, room, &count)
    })
}
