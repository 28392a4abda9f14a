//! The gauge of a request: what its prompt takes by region, as it is planned and once the server has counted it.

use super::attempt::Attempt;
use super::prepared::Prepared;
use crate::conversation::Tokens;
use crate::measure::{Measure, Sureness};
use crate::plan::Kept;
use crate::proxy::state::gauge::{Gauge, Marks};

/// What tells the fixed parts of the prompt of a prepared request from those of others.
fn marks(measure: &Measure, prepared: &Prepared) -> Marks {
    let (request, own) = (&prepared.request, prepared.own.as_deref());
    let tool = (request.offers(), prepared.policy.digest_model.is_some());
    Marks::of(measure, (&prepared.key, own), request, &prepared.made.view, tool)
}

/// Has the regions of a request that was planned, before and after, add up to what was counted or estimated of the whole.
pub(in crate::proxy) fn settle(measure: &Measure, prepared: &mut Prepared, attempt: Attempt) {
    let marks = marks(measure, prepared);
    let kept = marks.kept(measure);
    prepared.made.after = prepared.made.after.settled(kept, prepared.made.tokens);
    if prepared.made.sureness.is_exact() && !attempt.is_dry() {
        marks.note(measure, &prepared.made.after);
    }
    // Before, the tool of ours was not there; and what stands by index now stood there whole.
    let before = prepared.made.before.0;
    let client = Marks { ours: None, brief: None, ..marks }.kept(measure);
    let kept = Kept {
        system: if prepared.head.indexed.is_some() { Some(before.system) } else { client.system },
        tools: if prepared.head.admitted.is_some() { Some(before.tools) } else { client.tools },
        brief: Some(before.brief),
    };
    prepared.made.before.0 = before.settled(kept, before.prompt());
}

/// About what the tools of ours take in a prepared request.
fn ours(measure: &Measure, prepared: &Prepared, marks: &Marks) -> Tokens {
    let at_head = prepared.head.at_head.definitions();
    let at_head = at_head.map(|definition| measure.text(&prepared.key, prepared.own.as_deref(), definition));
    at_head.fold(marks.ours.map_or(0, |(_, tokens)| tokens), Tokens::saturating_add)
}

/// The gauge after a reply: by what the server counted, where it did.
pub(in crate::proxy) fn after_reply(measure: &Measure, prepared: &Prepared, counted: Option<Tokens>) -> Gauge {
    let marks = marks(measure, prepared);
    let prompt = counted.unwrap_or(prepared.made.tokens);
    let regions = prepared.made.after.settled(marks.kept(measure), prompt);
    marks.note(measure, &regions);
    let sureness = if counted.is_some() { Sureness::Counted } else { prepared.made.sureness };
    let (counts, ours) = (measure.firsts.kept(&marks.all()), ours(measure, prepared, &marks));
    Gauge { regions, source: sureness.as_str(), counts, ours }
}

/// The gauge of a request that was not answered yet.
pub(in crate::proxy) fn planned(measure: &Measure, prepared: &Prepared) -> Gauge {
    let marks = marks(measure, prepared);
    let (counts, ours) = (measure.firsts.kept(&marks.all()), ours(measure, prepared, &marks));
    Gauge { regions: prepared.made.after, source: prepared.made.sureness.as_str(), counts, ours }
}
