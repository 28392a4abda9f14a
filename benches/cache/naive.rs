//! What else is done about a full window.

use std::rc::Rc;

use windowsill::conversation::{Role, Tokens};
use windowsill::plan;

use super::replay::Writer;
use super::server::{Prompt, Segment, Server, size, text};
use super::sessions::{Session, message_tokens};
use super::tally::Tally;

/// A way to get along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naive {
    /// Nothing is done.
    Direct,
    /// From 60% on, one result a turn is cleared, the oldest first.
    ClearOne,
    /// At the wall a summary of a fresh transcript takes the place of all but the newest six messages.
    Summarize,
    /// The oldest messages are dropped until the rest fits, as Ollama does; the system prompt stays.
    Drop,
}

const CLEARED: &str = "tool\n[Old tool result content cleared]";

/// Newest messages that stay when a summary is made.
const KEPT: usize = 6;

/// Tokens a summary may have.
const SUMMARY: Tokens = 1024;

struct Run<'a> {
    session: &'a Session,
    server: Server,
    limit: Tokens,
    /// Each message of the body as it is forwarded; the first `from` are left out.
    body: Prompt,
    from: usize,
    summary: Option<Rc<Segment>>,
    tally: Tally,
}

/// Replays a session.
pub(crate) fn replay(session: &Session, window: Tokens, naive: Naive) -> Tally {
    let reserved = plan::output_reserved(window, session.system_tokens + session.tool_tokens, session.max_tokens, 1024);
    let server = Server::new(window);
    let limit = window - reserved - 16;
    let tally = Tally::default();
    let mut run = Run { session, server, limit, body: Vec::new(), from: 0, summary: None, tally };
    let mut done = 0;
    for end in &session.ends {
        run.tally.turns += 1;
        run.body.extend_from_slice(&session.segments[run.body.len()..*end]);
        run.make_room(naive, *end);
        let prompt = run.prompt();
        let fits = size(&prompt) <= run.limit;
        let Some(served) = (if fits { run.server.take(&prompt) } else { None }) else {
            run.tally.refuse();
            continue;
        };
        let first = if done == 0 { size(&session.head) } else { 0 };
        let news = first + size(&run.body[done.max(run.from)..*end]);
        run.tally.answer(&prompt, served, news, *end, window);
        done = *end;
    }
    let mut tally = run.tally;
    tally.end(session, "");
    tally
}

impl Run<'_> {
    fn prompt(&self) -> Prompt {
        self.session.head.iter().chain(&self.summary).chain(&self.body[self.from..]).map(Rc::clone).collect()
    }

    fn total(&self) -> Tokens {
        size(&self.prompt())
    }

    fn make_room(&mut self, naive: Naive, end: usize) {
        match naive {
            Naive::Direct => {}
            Naive::ClearOne => {
                let reserved = self.server.window - self.limit;
                let line = ((f64::from(self.server.window) * 0.6) as Tokens).saturating_sub(reserved);
                if self.total() > line {
                    self.clear_one(end);
                }
                while self.total() > self.limit && self.clear_one(end) {}
            }
            Naive::Summarize => {
                if self.total() > self.limit && end > self.from + KEPT {
                    self.summarize(end);
                }
            }
            Naive::Drop => {
                while self.total() > self.limit && self.from + 1 < end {
                    self.from += 1;
                }
            }
        }
    }

    fn clear_one(&mut self, end: usize) -> bool {
        let cleared = Segment::new(CLEARED.to_owned(), message_tokens(CLEARED));
        let body = &self.session.body;
        // The newest result is what the model has asked for.
        let may = |at: &usize| body[*at].role == Role::Tool && self.body[*at].tokens > cleared.tokens;
        let Some(at) = (0..end.saturating_sub(2)).find(may) else { return false };
        self.body[at] = cleared;
        true
    }

    fn summarize(&mut self, end: usize) {
        let mut cut = end - KEPT;
        while cut > self.from && self.session.body[cut].role == Role::Tool {
            cut -= 1;
        }
        let old: Prompt = self.summary.iter().chain(&self.body[self.from..cut]).map(Rc::clone).collect();
        let asked = Segment::of_text(
            "system",
            "You summarize conversations. Write a summary of the following conversation for whoever continues it.",
        );
        // A transcript that is longer than the summarizer's window is cut at its start.
        let room = self.server.window.saturating_sub(SUMMARY.min(self.server.window / 8) + asked.tokens + 32);
        let mut from = 0;
        while size(&old[from..]) > room && from < old.len() {
            from += 1;
        }
        let transcript = text(&old[from..]);
        let prompt = vec![asked, Segment::new(format!("user\n{transcript}"), size(&old[from..]))];
        if let Some(served) = self.server.take(&prompt) {
            self.tally.help(served);
        }
        let mut answer = Writer::Oracle.answer(&transcript, &self.session.wanted);
        // As long as a model may write.
        while message_tokens(&answer) > SUMMARY.min(self.server.window / 8) {
            answer.truncate(answer.rfind('\n').unwrap_or(0));
        }
        self.summary = Some(Segment::of_text("user", &format!("Summary of the conversation so far:\n{answer}")));
        self.from = cut;
    }
}
