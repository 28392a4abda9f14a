//! What becomes of the events of a streamed reply, over its rounds: each goes on as it came, but for what is ours.

use super::{Answering, Stopped};
use crate::upstream::Reply;
use crate::upstream::event::{Event, Says};

impl Answering {
    /// Takes an event in; what the client may see of it goes to `out`.
    pub(in crate::proxy) async fn event(&mut self, event: Event, out: &mut Vec<Event>) {
        let was_finished = self.filter.is_finished();
        let Event { raw, says } = event;
        let value = match says {
            Says::Nothing => return out.push(Event { raw, says }),
            // Of a round that goes on it is not for the client.
            Says::Done | Says::Other if self.goes_on_now() => return,
            Says::Done | Says::Other => {
                self.let_go(out);
                return out.push(Event { raw, says });
            }
            Says::Chunk(value) => value,
        };
        if value.get("error").is_some_and(|e| !e.is_null()) {
            return out.push(Event { raw, says: Says::Chunk(value) });
        }
        let seen = self.filter.chunk(value);
        if !was_finished && self.filter.is_finished() && !self.filter.goes_on() {
            // The client may be back as soon as it sees this.
            let calls = self.filter.ours();
            if !calls.is_empty() && !self.is_last() {
                self.answer(&calls).await;
            }
            self.remember().await;
        }
        out.extend(seen.map(|(value, changed)| match changed {
            false => Event { raw, says: Says::Chunk(value) },
            true => Event::chunk(value),
        }));
    }

    /// Answers the calls of the round that ended, and has the model go on; or says why it cannot.
    pub(in crate::proxy) async fn next_round(&mut self) -> Result<Reply, String> {
        let calls = self.filter.ours();
        self.answer(&calls).await;
        match self.again().await {
            Ok(reply) => Ok(reply),
            Err(Stopped::Gone(e)) => Err(format!("the reply could not go on: {e}")),
            Err(Stopped::Refused(reply)) => {
                let said = super::refusal(reply).await.map(|(status, said)| {
                    format!("{status}: {}", String::from_utf8_lossy(&said[..said.len().min(600)]))
                });
                let said = said.unwrap_or_else(|e| e.to_string());
                Err(format!("the inference server refused to go on: {said}"))
            }
        }
    }

    /// Text that was held back and is no call after all.
    pub(in crate::proxy) fn let_go(&mut self, out: &mut Vec<Event>) {
        out.extend(self.filter.left().map(Event::chunk));
    }
}
