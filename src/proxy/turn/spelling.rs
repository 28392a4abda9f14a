//! A message that was answered before, and says the same to every model, is forwarded with the bytes it had then, so that a client
//! which moves incidental bytes about does not throw the server's cache away.

use bytes::Bytes;
use tracing::debug;

use crate::conversation::spelling::{Reasoning, same_step};
use crate::conversation::{Digest, Message, Role, chain, repair, step};
use crate::proxy::App;
use crate::proxy::state::sent::own_bytes;
use crate::store::Located;
use crate::wire::openai_chat::{self, Request};

/// Gives the known messages of a request the bytes that they had before, where no model sees the difference: what the
/// server's cache holds. What came since the newest reply is as the client sends it now, and so is each step that says anything
/// else than before. Returns the places of these: once a server took them, the record gets their spelling.
pub(in crate::proxy) async fn settle(
    app: &App,
    request: &mut Request,
    chain_now: &[Digest],
    marks: &[u64],
    place: (&Located, &str, &str),
    call_id_length: Option<usize>,
) -> Vec<usize> {
    let body = &request.conversation.body;
    let Some(settled) = settled(app, body, chain_now, marks, place, call_id_length).await else {
        return Vec::new();
    };
    if settled.as_before {
        request.conversation.body = settled.body;
        // Also where nothing is edited: these are the bytes that the server's cache holds.
        let all = request.conversation.system.iter().chain(&request.conversation.body);
        let messages: Vec<Bytes> = all.map(|m| m.bytes().clone()).collect();
        request.body = openai_chat::write(request, &messages, &[]);
    }
    settled.new
}

async fn settled(
    app: &App,
    body: &[Message],
    chain_now: &[Digest],
    marks: &[u64],
    (located, id, seed): (&Located, &str, &str),
    call_id_length: Option<usize>,
) -> Option<Respelled> {
    let known = whole_steps(body, located.depth);
    // Only the record decides: what was forwarded last is not remembered after a restart.
    let now = marks.get(1..=known)?;
    if known == 0 || app.lives.with(id, |live| live.prompt.as_recorded.get(..known) == Some(now)) {
        return None;
    }
    // The last request's messages may still be queued.
    app.store.flush().await;
    let rows = app.store.messages(&located.conversation).ok()?;
    if rows.get(known - 1)?.chain != chain_now[known - 1] {
        return None;
    }
    if rows.iter().zip(body).take(known).all(|(row, now)| row.raw == own_bytes(now)) {
        app.lives.with(id, |live| live.prompt.as_recorded = now.to_vec());
        return None;
    }
    let before: Vec<Message> = rows.iter().take(known).map(|row| openai_chat::recorded(row.raw.clone())).collect();
    let mut out = respelled(&before, &body[..known], answered(body).min(taken(app, id, chain_now)));
    // Results in another order stand in other places of the record, which are not theirs.
    out.new.retain(|at| rows[*at].chain == chain_now[*at]);
    out.body.extend_from_slice(&body[known..]);
    out.body = repair::mend(out.body, call_id_length).body;
    let fits = out.body.len() == body.len() && chain::chain(seed, &out.body).last() == chain_now.last();
    debug!(conversation = id, known, fits, new = out.new.len(), "the client spells its history otherwise than before");
    fits.then_some(out)
}

/// How many messages of a history a server took before, as far as that is known: what was only ever refused is nothing to
/// hold on to.
fn taken(app: &App, id: &str, chain: &[Digest]) -> usize {
    let counted = app.store.counted_any(chain).unwrap_or_default();
    let fits = |(tip, depth): &(Digest, usize)| chain.get(depth - 1) == Some(tip);
    let taken = app.lives.with(id, |live| live.prompt.taken).filter(fits).map_or(0, |(_, depth)| depth);
    counted.max(taken)
}

/// A body that the client spells otherwise than before, as it is forwarded.
#[derive(Debug, Default)]
struct Respelled {
    body: Vec<Message>,
    /// Whether any message has the bytes that it had before.
    as_before: bool,
    /// The known messages that have other bytes than before.
    new: Vec<usize>,
}

/// Where the newest reply stands: what is before it was answered. A reply at the very end is one that the model is to go on
/// with.
fn answered(body: &[Message]) -> usize {
    let before = body.len().saturating_sub(1);
    body[..before].iter().rposition(|m| m.role == Role::Assistant).unwrap_or(0)
}

/// The known part of a body, each step in the bytes that it had before where it says the same to every model and was answered
/// since.
fn respelled(before: &[Message], now: &[Message], answered: usize) -> Respelled {
    // A turn that goes on: clients take the reasoning out of its earlier steps.
    let reasoning = if answered >= now.len() { Reasoning::MayBeGone } else { Reasoning::Counts };
    let mut out = Respelled { body: Vec::with_capacity(now.len() + 2), ..Respelled::default() };
    for unit in step::units(now) {
        let places = unit.start..unit.end;
        let (was, is) = (&before[places.clone()], &now[places.clone()]);
        let differ = |at: &usize| own_bytes(&before[*at]) != own_bytes(&now[*at]);
        let differs = places.clone().any(|at| differ(&at));
        if differs && unit.end <= answered && same_step(was, is, reasoning) {
            out.body.extend_from_slice(was);
            out.as_before = true;
        } else {
            out.body.extend_from_slice(is);
            out.new.extend(places.filter(differ));
        }
    }
    out
}

/// The largest part of the first `depth` messages that ends where a step ends: ids of calls and results belong together.
fn whole_steps(body: &[Message], depth: usize) -> usize {
    let mut known = depth.min(body.len());
    while known > 0 && body.get(known).is_some_and(|next| next.role == Role::Tool) {
        known -= 1;
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_answered_and_reads_the_same_keeps_its_bytes() {
        let say = |raw: &str| openai_chat::message(raw.to_owned().into()).unwrap();
        let marked = r#"{"role":"user","content":[{"type":"text","text":"a","cache_control":{}}]}"#;
        let (plain, other) = (r#"{"role":"user","content":"a"}"#, r#"{"role":"user","content":"a","name":"bob"}"#);
        let reply = r#"{"role":"assistant","content":"b"}"#;
        for (before, now, expect) in [
            (vec![marked], vec![plain, reply, plain], (vec![marked], vec![])),
            // Not answered yet, or only by what the model is to go on with.
            (vec![marked], vec![plain], (vec![plain], vec![0])),
            (vec![marked], vec![plain, reply], (vec![plain], vec![0])),
            (vec![marked, reply, marked], vec![plain, reply, plain], (vec![marked, reply, plain], vec![2])),
            // A model may see it.
            (vec![marked], vec![other, reply, plain], (vec![other], vec![0])),
            (vec![plain], vec![plain, reply, plain], (vec![plain], vec![])),
        ] {
            let all = |raws: &[&str]| raws.iter().map(|raw| say(raw)).collect::<Vec<Message>>();
            let (before, now) = (all(&before), all(&now));
            let out = respelled(&before, &now[..before.len()], answered(&now));
            let bodies: Vec<&[u8]> = out.body.iter().map(|m| &m.raw[..]).collect();
            assert_eq!(bodies, expect.0.iter().map(|raw| raw.as_bytes()).collect::<Vec<_>>());
            assert_eq!(out.new, expect.1);
        }
    }

    #[test]
    fn steps_stay_whole() {
        let message = |role| openai_chat::message(format!(r#"{{"role":"{role}","content":"a"}}"#).into()).unwrap();
        let body = ["user", "assistant", "tool", "tool", "user"].map(message);
        assert_eq!([0, 1, 2, 3, 4, 5, 9].map(|d| whole_steps(&body, d)), [0, 1, 1, 1, 4, 5, 5]);
    }
}
