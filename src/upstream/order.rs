//! Puts the events of a streamed reply in order, so that whoever comes after can trust what they say. Pure: an event in, what
//! it means out; bytes are kept where nothing has to be said otherwise.
//!
//! - An error, in whatever shape, is one event with `error.message`, and the last one.
//! - A finish reason is one: `""` is none, and one that more of the reply follows was none. A reply ends by its end.
//! - A reply that comes whole where a stream was asked for is told as chunks.

use bytes::Bytes;
use serde_json::{Value, json};

use super::event::{Event, Says};
use crate::wire::reply;

/// The state of one stream.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// A chunk that says both something and why the reply ends: what comes next tells whether it does.
    held: Option<(Event, u64)>,
    /// What the chunks have in common, once one came.
    head: Option<Value>,
    /// The reply has begun to come in pieces.
    spoke: bool,
    /// The finish reason that was passed on last still holds.
    finished: bool,
    /// This server names a finish reason in the middle of replies: only its other signs of the end count.
    misleads: bool,
    called: bool,
    /// The reply came whole: its end is ours to say.
    whole: bool,
    done: bool,
    /// An error was told.
    over: bool,
}

impl Order {
    /// Takes an event in; what it means goes to `out`.
    pub(super) fn event(&mut self, event: Event, out: &mut Vec<Event>) {
        if self.over {
            return;
        }
        match &event.says {
            Says::Nothing => out.push(event),
            Says::Other => {
                self.release(false, out);
                match words_of_error(&event.raw) {
                    Some(words) => self.fail(Event::chunk(json!({"error": reply::error_named(&words)})), out),
                    None => out.push(event),
                }
            }
            Says::Done => {
                self.release(false, out);
                if !self.finished && !self.done && self.head.is_some() {
                    out.push(Event::chunk(self.last(if self.called { "tool_calls" } else { "stop" })));
                }
                (self.finished, self.done) = (true, true);
                out.push(event);
            }
            Says::Chunk(value) => match reply::error_in(value) {
                Some(_) if reply::is_plain(value) => {
                    self.release(false, out);
                    self.fail(event, out);
                }
                Some(error) => {
                    self.release(false, out);
                    self.fail(Event::chunk(json!({"error": error})), out);
                }
                None if reply::is_whole(value) => {
                    // MiniMax says a reply once more, whole, behind its pieces: then its end is what is new.
                    let repeats = |chunk: &Value| chunk.pointer("/choices/0").is_some_and(reply::says_something);
                    self.whole = true;
                    let came = self.spoke;
                    for chunk in reply::chunks(value).into_iter().filter(|chunk| !came || !repeats(chunk)) {
                        self.chunk(Event::chunk(chunk), out);
                    }
                }
                None => self.chunk(event, out),
            },
        }
    }

    /// The stream has ended; `broke`: not as it should.
    pub(super) fn end(&mut self, broke: bool, out: &mut Vec<Event>) {
        // Where every chunk had a finish reason, that of the last one says no more than the others.
        self.release(self.misleads || broke, out);
        if self.whole && self.finished && !self.done && !self.over && !broke {
            self.done = true;
            out.push(Event::done());
        }
    }

    fn fail(&mut self, event: Event, out: &mut Vec<Event>) {
        self.over = true;
        out.push(event);
    }

    fn chunk(&mut self, event: Event, out: &mut Vec<Event>) {
        let Event { raw, says: Says::Chunk(mut value) } = event else { return };
        let mut changed = without_empty_finish(&mut value);
        let choice = value.pointer("/choices/0");
        let index = choice.and_then(|c| c.get("index")).and_then(Value::as_u64).unwrap_or(0);
        let says = choice.is_some_and(reply::says_something);
        let finish = choice.and_then(reply::finish_of).map(str::to_owned);
        // A usage alone, or another choice, says nothing of whether the one before was the end.
        let goes_on = says && self.held.as_ref().is_some_and(|(_, held)| *held == index);
        self.misleads |= goes_on || says && self.finished && index == 0;
        self.release(goes_on, out);
        self.finished &= !says;
        self.spoke |= says && index == 0;
        self.called |= choice.and_then(|c| c.get("delta")).is_some_and(|delta| !reply::calls(delta).is_empty());
        if self.head.is_none() && choice.is_some() {
            let of = |key: &str| value.get(key).cloned().unwrap_or_default();
            self.head = Some(json!({"id": of("id"), "created": of("created"), "model": of("model")}));
        }
        let failed = finish.as_deref().filter(|finish| reply::is_failure(finish));
        if failed.is_some() {
            changed |= unfinish(&mut value);
        }
        let role_alone = choice_delta(&value).is_some_and(|delta| !delta.is_empty());
        let event = if changed { Event::chunk(value) } else { Event { raw, says: Says::Chunk(value) } };
        match finish {
            Some(reason) if reply::is_failure(&reason) => {
                out.push(event);
                let why = format!("the inference server ended the reply with finish_reason `{reason}`");
                let error = reply::upstream_error("upstream_died", &why);
                self.fail(Event::chunk(json!({ "error": error })), out);
            }
            Some(_) if says || role_alone => self.held = Some((event, index)),
            Some(_) => {
                self.finished = true;
                out.push(event);
            }
            None => out.push(event),
        }
    }

    /// Lets the chunk go that is held; `goes_on`: the reply did not end with it.
    fn release(&mut self, goes_on: bool, out: &mut Vec<Event>) {
        let Some((event, _)) = self.held.take() else { return };
        if !goes_on {
            self.finished = true;
            return out.push(event);
        }
        let Event { raw, says: Says::Chunk(mut value) } = event else { return };
        let changed = unfinish(&mut value);
        out.push(if changed { Event::chunk(value) } else { Event { raw, says: Says::Chunk(value) } });
    }

    /// The chunk that ends a reply, for a server that only says `[DONE]`.
    fn last(&self, finish: &str) -> Value {
        let mut chunk = self.head.clone().unwrap_or_else(|| json!({}));
        chunk["object"] = "chat.completion.chunk".into();
        chunk["choices"] = json!([{"index": 0, "delta": {}, "finish_reason": finish}]);
        chunk
    }
}

fn choice_delta(chunk: &Value) -> Option<&serde_json::Map<String, Value>> {
    chunk.pointer("/choices/0/delta")?.as_object()
}

/// Makes empty finish reasons `null`; whether there were any.
fn without_empty_finish(chunk: &mut Value) -> bool {
    let choices = chunk.get_mut("choices").and_then(Value::as_array_mut);
    let mut changed = false;
    for choice in choices.into_iter().flatten().filter(|c| c.get("finish_reason").is_some_and(|f| f == "")) {
        choice["finish_reason"] = Value::Null;
        changed = true;
    }
    changed
}

fn unfinish(chunk: &mut Value) -> bool {
    let Some(choice) = chunk.pointer_mut("/choices/0") else { return false };
    choice["finish_reason"] = Value::Null;
    true
}

/// What an event without JSON says of an error, where it calls itself one.
fn words_of_error(raw: &Bytes) -> Option<String> {
    let text = String::from_utf8_lossy(raw);
    let data = text.lines().find_map(|line| line.strip_prefix("data:"))?.trim();
    let lower = data.to_ascii_lowercase();
    let calls = ["error:", "[error]", "error ", "internal server error"];
    calls.iter().any(|start| lower.starts_with(start)).then(|| data.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(delta: Value, finish: Value) -> Value {
        json!({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    }

    fn word(text: &str, finish: Value) -> Value {
        chunk(json!({"content": text}), finish)
    }

    /// What comes of these chunks and then the end, with `[DONE]` or without it.
    fn all(chunks: &[Value], done: bool, broke: bool) -> Vec<Says> {
        let (mut order, mut out) = (Order::default(), Vec::new());
        for value in chunks {
            order.event(Event::chunk(value.clone()), &mut out);
        }
        if done {
            order.event(Event::done(), &mut out);
        }
        order.end(broke, &mut out);
        out.into_iter().map(|event| event.says).collect()
    }

    fn finishes(said: &[Says]) -> Vec<String> {
        let of = |says: &Says| match says {
            Says::Chunk(value) if reply::error_in(value).is_some() => "error".to_owned(),
            Says::Chunk(value) => value["choices"][0]["finish_reason"].as_str().unwrap_or("-").to_owned(),
            Says::Done => "DONE".into(),
            _ => "?".into(),
        };
        said.iter().map(of).collect()
    }

    #[test]
    fn a_reply_ends_by_its_end() {
        let (stop, none, empty) = (json!("stop"), Value::Null, json!(""));
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 3}});
        let end = chunk(json!({}), stop.clone());
        for (chunks, done, broke, want) in [
            // As it should be.
            (vec![word("a", none.clone()), end.clone(), usage.clone()], true, false, "- stop - DONE"),
            (vec![word("a", none.clone()), word("b", stop.clone())], false, false, "- stop"),
            // `""` is none, up to the end or not.
            (vec![word("a", empty.clone()), chunk(json!({}), empty.clone())], true, false, "- - stop DONE"),
            (vec![word("a", empty.clone()), word("b", empty)], false, false, "- -"),
            // A `stop` on every chunk.
            (vec![word("a", stop.clone()), word("b", stop.clone())], true, false, "- stop DONE"),
            (vec![word("a", stop.clone()), word("b", stop.clone()), end.clone()], false, false, "- stop stop"),
            (vec![word("a", stop.clone()), word("b", stop.clone())], false, false, "- -"),
            (vec![word("a", stop.clone()), word("b", stop.clone())], false, true, "- -"),
            (
                vec![chunk(json!({"role": "assistant", "content": ""}), stop.clone()), word("b", none.clone())],
                false,
                true,
                "- -",
            ),
            // The end, and the figures behind it.
            (vec![word("a", stop), usage], false, false, "stop -"),
            // Broken off by the server's own account.
            (vec![word("a", none), chunk(json!({}), json!("abort")), end], true, false, "- - error"),
        ] {
            let said = all(&chunks, done, broke);
            assert_eq!(finishes(&said).join(" "), want, "{chunks:?} {done} {broke}");
        }
    }

    #[test]
    fn an_error_is_the_last_event_in_one_shape() {
        for error in [json!({"error": "gone"}), json!({"detail": "gone"}), json!({"error": {"message": "gone"}})] {
            let said = all(&[word("a", Value::Null), error, word("b", Value::Null)], true, false);
            let Some(Says::Chunk(last)) = said.last() else { panic!("{said:?}") };
            assert_eq!((said.len(), &last["error"]["message"]), (2, &json!("gone")));
        }
        let (mut order, mut out) = (Order::default(), Vec::new());
        order.event(Event { raw: "data: ERROR: out of memory\n\n".into(), says: Says::Other }, &mut out);
        assert!(matches!(&out[0].says, Says::Chunk(v) if v["error"]["message"] == "ERROR: out of memory"), "{out:?}");
    }

    #[test]
    fn what_came_whole_is_told_as_a_stream() {
        let whole = json!({"id": "c", "choices": [{"index": 0, "finish_reason": "length",
            "message": {"role": "assistant", "content": "all of it"}}], "usage": {"prompt_tokens": 3}});
        let said = all(std::slice::from_ref(&whole), false, false);
        assert_eq!(finishes(&said).join(" "), "- length - DONE");
        // Behind the pieces that it came in, it says nothing but its end.
        let said = all(&[word("all of it", Value::Null), whole], true, false);
        assert_eq!(finishes(&said).join(" "), "- length - DONE");
    }
}
