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
use crate::remind::{self, Block, Cue, Of, Standing};
use crate::store::{Hit, blocking};
use crate::wire::openai_chat;

/// Passages that are looked at.
const FOUND: usize = 40;

/// What the last message points at, and what of it a search found.
pub(super) struct Asked {
    cue: Cue,
    found: Vec<Found>,
}

impl Asked {
    /// Whether a person asks, and no trouble that an agent can look into by itself.
    pub(super) fn is_persons(&self) -> bool {
        self.cue.of == Of::Words
    }
}

/// A draft with a block behind its last message, where it fits into `limit` prompt tokens.
pub(super) async fn reminded(
    app: &App,
    draft: &Draft<'_>,
    limit: Tokens,
    made: Drafted,
    block: Option<Block>,
) -> Drafted {
    let Some(block) = block else { return made };
    let mut view = made.view.clone();
    remind::put(&mut view, &draft.request.conversation.body, block);
    let out = rewrite::rewrite(&draft.request.conversation, &view, &draft.policy.template);
    let bytes = bytes_of(&draft.request, &out);
    let cost = view
        .edits
        .last()
        .map_or(0, |edit| if let Edit::Recalled { text, .. } = edit { cost(app, draft, text) } else { 0 });
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

/// Tokens that a block takes behind a message.
pub(super) fn cost(app: &App, draft: &Draft<'_>, block: &str) -> Tokens {
    tokens::AROUND + app.measure.text(&draft.situation.key, draft.situation.own.as_deref(), block)
}

/// What of what was found comes into so many free tokens, if anything.
pub(super) fn block_of(app: &App, draft: &Draft<'_>, free: Tokens, made: &Drafted, asked: &Asked) -> Option<Block> {
    let situation = draft.situation;
    let count = |text: &str| app.measure.text(&situation.key, situation.own.as_deref(), text);
    let room = remind::room(situation.known_window(), free);
    blocking(|| {
        let texts: Vec<_> = made.out.iter().filter_map(|out| openai_chat::message(out.bytes.clone()).ok()).collect();
        let standing = Standing::of(texts.iter().map(|message| message.text.as_str()));
        let gone = |said: &Said| left_the_prompt(&made.view, said.at) && !standing.holds(said);
        remind::block(&asked.cue, &asked.found, &gone, room, &count)
    })
}

/// What is found for the last message, where anything may come back. Nothing that is not a message of this very history does.
pub(super) fn asked(app: &App, draft: &Draft<'_>, made: &Drafted) -> Option<Asked> {
    let (situation, conversation) = (draft.situation, &draft.request.conversation);
    let body = &conversation.body;
    let off = !situation.policy.recall_ahead || headers::is_off(&situation.from_client, &headers::RECALL_AHEAD);
    let once = situation.attempt == Attempt::First && !situation.is_sent_again(&draft.request);
    let last = body.len().checked_sub(1)?;
    // Whoever asks for a fold asks the model nothing with it.
    let folds = draft.policy.client.compact.as_ref().is_some_and(Compact::is_now);
    let known = situation.known_window() < UNKNOWN_WINDOW;
    // A person took it back here.
    let quiet = situation.history.chain.last().is_some_and(|end| draft.wanted.quiet.contains(end));
    if off || quiet || folds || !once || !known || !made.view.lacks() || remind::is_behind(&made.view, last) {
        return None;
    }
    let mut cue = remind::cue(body)?;
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
    let all = blocking(|| {
        let mut search = |conversation: &str| {
            app.store.passages(&cue.query, Some(conversation), FOUND, &mut own).unwrap_or_else(|e| {
                warn!(conversation = situation.id(), error = %e, "the record cannot be searched");
                Vec::new()
            })
        };
        let all = search(situation.id());
        // A fork that is not on record yet has what it shares with the conversation that it parts from.
        let parted = situation.history.located.as_ref().map(|located| located.conversation.as_str());
        match parted.filter(|other| all.is_empty() && *other != situation.id()) {
            Some(other) => search(other),
            None => all,
        }
    });
    let found: Vec<Found> = all.into_iter().map(as_shown).collect();
    (!found.is_empty() || !cue.places.is_empty()).then_some(Asked { cue, found })
}
