//! Where the time of a request went: whose fault a slow turn is.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::usage::Reported;

/// What a request spent before it went out, and when it did.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::proxy) struct Phases {
    /// Until it was read and its server was found.
    pub(in crate::proxy) queued: Duration,
    /// Finding its history, and measuring it.
    pub(in crate::proxy) counted: Duration,
    /// Planning and making the view.
    pub(in crate::proxy) planned: Duration,
    /// Waiting for a model that writes a brief or a digest.
    pub(in crate::proxy) brief: Duration,
    /// When it was sent to the server.
    pub(in crate::proxy) sent: Option<Instant>,
}

impl Phases {
    /// Of a request that was prepared once more: what the first try took counts, too.
    pub(in crate::proxy) fn and(self, first: Phases) -> Phases {
        Phases {
            queued: self.queued + first.queued,
            counted: self.counted + first.counted,
            planned: self.planned + first.planned,
            brief: self.brief + first.brief,
            sent: self.sent,
        }
    }

    /// In milliseconds, as an event tells them. `waited`: for room at the server. What nobody knows is left out: a server that does
    /// not tell its time of reading is told as `waiting` until its first word, and a reply that is not streamed has no `thinking`.
    pub(in crate::proxy) fn told(&self, waited: Duration, reported: &Reported, ended: Instant) -> Value {
        let mut out = Map::new();
        let mut tell = |name: &str, time: Duration| {
            out.insert(name.to_owned(), json!(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
        };
        tell("queued", self.queued + waited);
        tell("counted", self.counted);
        tell("planned", self.planned);
        tell("brief", self.brief);
        let Some(sent) = self.sent else { return out.into() };
        let (thought, spoke) = (reported.thought, reported.spoke);
        let first = [thought, spoke].into_iter().flatten().min();
        let until = first.unwrap_or(ended).saturating_duration_since(sent);
        let read =
            reported.prompt_ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok()).map(|ms| ms.min(until));
        if let Some(read) = read {
            tell("prefill", read);
        }
        let rest = until.saturating_sub(read.unwrap_or_default());
        // Of a reply that came whole, the rest of the server's time is the answer's, where it told what reading took.
        match first {
            None if read.is_some() => tell("answer", rest),
            _ => tell("waiting", rest),
        }
        if let Some(thought) = thought {
            tell("thinking", spoke.unwrap_or(ended).saturating_duration_since(thought));
        }
        if let Some(spoke) = spoke {
            tell("answer", ended.saturating_duration_since(spoke));
        }
        out.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phases_of_a_reply_add_up_to_its_time() {
        let ms = Duration::from_millis;
        let sent = Instant::now();
        let own = Phases { queued: ms(1), counted: ms(2), planned: ms(3), brief: ms(4), sent: Some(sent) };
        let told = |reported: &Reported, took: u64| {
            let told = own.told(ms(5), reported, sent + ms(took));
            let sum: u64 = told.as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum();
            assert_eq!(sum, 15 + took, "{told}");
            told
        };
        let streamed = Reported {
            thought: Some(sent + ms(120)),
            spoke: Some(sent + ms(300)),
            prompt_ms: Some(100.0),
            ..Reported::default()
        };
        assert_eq!(
            told(&streamed, 1_000),
            json!({"queued": 6, "counted": 2, "planned": 3, "brief": 4, "prefill": 100, "waiting": 20, "thinking": 180, "answer": 700})
        );
        let whole = Reported { prompt_ms: Some(100.0), ..Reported::default() };
        let said = told(&whole, 1_000);
        assert_eq!((&said["prefill"], &said["answer"], &said["waiting"]), (&json!(100), &json!(900), &Value::Null));
        let silent = told(&Reported::default(), 50);
        assert_eq!(
            (&silent["waiting"], &silent["prefill"], &silent["answer"]),
            (&json!(50), &Value::Null, &Value::Null)
        );
        let only_thoughts = Reported { thought: Some(sent + ms(10)), ..Reported::default() };
        assert_eq!(told(&only_thoughts, 50)["thinking"], 40);
        // A server whose clock says more than passed here.
        let odd = Reported { spoke: Some(sent + ms(10)), prompt_ms: Some(1e300), ..Reported::default() };
        assert_eq!(told(&odd, 50)["answer"], 40);
        let twice = own.and(Phases { brief: ms(7), ..Phases::default() });
        assert_eq!((twice.brief, twice.sent), (ms(11), Some(sent)));
    }
}
