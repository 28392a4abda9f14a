//! What becomes of the calls of a round once they are whole: some go to the client after all.

use serde_json::{Map, Value};

use super::answered::Held;
use super::{Filter, LOOKED_AT, Whose, call_json, numbered};
use crate::conversation::Digest;
use crate::wire::reply;

impl Filter {
    /// Says a call in the older form (`function_call`) as one of `tool_calls`. Tools were offered in the newer form, whatever the
    /// server makes of that.
    pub(super) fn newer(&mut self, said: &mut Map<String, Value>) -> bool {
        let none = said.get("tool_calls").and_then(Value::as_array).is_none_or(Vec::is_empty);
        let Some(mut call) = reply::legacy_call(said).filter(|_| none).map(reply::newer) else { return false };
        said.remove("function_call");
        if call.pointer("/function/name").is_some_and(reply::says) {
            let seed = format!("{:?} {}", self.head, self.round);
            call["id"] = format!("call_{}", &Digest::of(seed.as_bytes()).hex()[..16]).into();
        }
        said.insert("tool_calls".into(), vec![call].into());
        self.calls.older = true;
        true
    }

    /// A name that never came is not ours.
    pub(super) fn give_up_waiting(&mut self, kept: &mut Vec<Value>) -> bool {
        let mut changed = false;
        for partial in self.calls.all.iter_mut().filter(|p| p.whose == Whose::Unknown) {
            if self.answered.held(&partial.call.name, true) == Held::Hidden {
                partial.whose = Whose::Held;
                continue;
            }
            let next = self.calls.clients;
            self.calls.clients += 1;
            partial.whose = Whose::Client(next);
            kept.extend(std::mem::take(&mut partial.held).into_iter().map(|f| numbered(f, next)));
            changed = true;
        }
        changed
    }

    /// The reply is whole: calls that go to the client after all are said to it, the others are answered here.
    pub(super) fn settle(&mut self, kept: &mut Vec<Value>) -> bool {
        let cut =
            self.endless || self.calls.many || matches!(self.finish.as_deref(), Some("length" | "content_filter"));
        let mut changed = false;
        for at in 0..self.calls.all.len() {
            let next = self.calls.clients;
            let partial = &mut self.calls.all[at];
            let settled = match partial.whose {
                Whose::Ours => {
                    let same = partial.judged == Some(partial.call.arguments.len());
                    cut || same || self.answered.is_own(&partial.call.name)
                }
                Whose::Held => false,
                Whose::Unknown | Whose::Client(_) => true,
            };
            if settled {
                continue;
            }
            let goes = self.answered.goes(&partial.call.name, &partial.call.arguments, self.last);
            match (partial.whose, goes) {
                (Whose::Held, goes) if cut || goes.is_some() => {
                    // As the model wrote it, whole or not.
                    kept.extend(std::mem::take(&mut partial.held).into_iter().map(|f| numbered(f, next)));
                }
                (_, Some((name, arguments))) => {
                    if partial.call.id.is_empty() {
                        let seed = format!("{:?} {} {at}", self.head, self.round);
                        partial.call.id = format!("call_{}", &Digest::of(seed.as_bytes()).hex()[..16]);
                    }
                    (partial.call.name, partial.call.arguments, partial.instead) = (name, arguments, true);
                    kept.push(numbered(call_json(&partial.call), next));
                }
                (_, None) => {
                    partial.whose = Whose::Ours;
                    partial.judged = Some(partial.call.arguments.len());
                    partial.held.clear();
                    continue;
                }
            }
            partial.whose = Whose::Client(next);
            self.calls.clients += 1;
            changed = true;
        }
        changed
    }

    /// A call of a whole reply as the client may see it.
    pub(super) fn for_client(&self, at: usize, call: Value) -> Option<Value> {
        match self.calls.all.iter().filter(|_| at < LOOKED_AT).find(|p| p.index == at as u64) {
            Some(partial) if partial.whose == Whose::Ours => None,
            Some(partial) if partial.instead => Some(call_json(&partial.call)),
            _ => Some(call),
        }
    }
}
