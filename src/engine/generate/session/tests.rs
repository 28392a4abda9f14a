//! A machine whose tokens are bytes: it says what its prompts tell it to say, and knows exactly what it holds.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// What is seen of the machine from outside.
#[derive(Default)]
struct Seen {
    /// The tokens whose state it has.
    state: Vec<i32>,
    /// Tokens evaluated, all together.
    evaluated: usize,
    /// Gives evaluations up from now on.
    stop: bool,
    /// Neither saves its state nor loads one from now on.
    breaks: bool,
}

struct Bytes {
    seen: Rc<RefCell<Seen>>,
    /// Its state cannot be cut, only put back.
    recurrent: bool,
}

struct Echo {
    prompt: Vec<i32>,
    says: Vec<u8>,
}

impl Machine for Bytes {
    type Job = Echo;

    fn begin(&mut self, request: &Value) -> Result<Echo, String> {
        let prompt = request["prompt"].as_str().ok_or("no prompt")?;
        let says = request["says"].as_str().unwrap_or_default();
        Ok(Echo { prompt: prompt.bytes().map(i32::from).collect(), says: says.bytes().rev().collect() })
    }

    fn tell(&mut self, request: &Value) -> Result<Value, String> {
        Ok(json!({"tokens": request["content"].as_str().ok_or("no content")?.as_bytes()}))
    }

    fn keep(&mut self, n: usize) -> bool {
        let mut seen = self.seen.borrow_mut();
        let able = !self.recurrent || n >= seen.state.len();
        if able {
            seen.state.truncate(n);
        }
        able
    }

    fn forget(&mut self) {
        self.seen.borrow_mut().state.clear();
    }

    fn evaluate(&mut self, tokens: &[i32], at: usize) -> Evaluated {
        let mut seen = self.seen.borrow_mut();
        assert_eq!(at, seen.state.len(), "evaluated where the state does not end");
        if seen.stop {
            // llama.cpp keeps what it was done with.
            seen.state.extend(&tokens[..tokens.len() / 2]);
            return Evaluated::Stopped;
        }
        seen.evaluated += tokens.len();
        seen.state.extend(tokens);
        Evaluated::Done
    }

    fn snapshot(&mut self) -> Option<Vec<u8>> {
        Some(self.seen.borrow().state.iter().map(|t| *t as u8).collect())
    }

    fn restore(&mut self, snapshot: &[u8]) -> bool {
        self.seen.borrow_mut().state = snapshot.iter().map(|b| i32::from(*b)).collect();
        true
    }

    fn size(&mut self) -> u64 {
        self.seen.borrow().state.len() as u64
    }

    fn save(&mut self) -> Option<Vec<u8>> {
        let able = !self.seen.borrow().breaks;
        able.then(|| self.snapshot()).flatten()
    }

    fn load(&mut self, state: &[u8]) -> bool {
        if self.seen.borrow().breaks {
            self.forget();
            return false;
        }
        self.restore(state)
    }

    fn next(&mut self, job: &mut Echo) -> Result<Chosen, String> {
        let seen = self.seen.borrow();
        assert!(seen.state.starts_with(&job.prompt), "the state is not the prompt's");
        Ok(match job.says.pop() {
            Some(byte) => Chosen::Token { token: i32::from(byte), piece: vec![byte], odds: None },
            None => Chosen::End,
        })
    }
}

impl Reply for Echo {
    fn prompt(&self) -> &[i32] {
        &self.prompt
    }

    fn asking(&self) -> usize {
        2
    }

    fn stops(&self) -> &[String] {
        &[]
    }

    fn read(&mut self, _text: &str, _partial: bool) -> Result<Vec<Value>, String> {
        Err("no chats here".into())
    }
}

fn session(recurrent: bool) -> (Session<Bytes>, Rc<RefCell<Seen>>) {
    session_of(recurrent, 64)
}

fn session_of(recurrent: bool, n_ctx: u32) -> (Session<Bytes>, Rc<RefCell<Seen>>) {
    let seen = Rc::new(RefCell::new(Seen::default()));
    let facts = Facts { n_ctx, n_batch: 8, rewinds: !recurrent, ..Facts::default() };
    (Session::new(Bytes { seen: Rc::clone(&seen), recurrent }, facts), seen)
}

fn ask(session: &mut Session<Bytes>, request: Request) -> (String, Vec<Event>) {
    let (mut text, mut other) = (String::new(), Vec::new());
    session.answer(&request, &mut |event| {
        match event {
            Event::Text(more) => text.push_str(&more),
            Event::Said(_) | Event::Token(_) => {}
            event => other.push(event),
        }
        true
    });
    (text, other)
}

fn say(prompt: &str, says: &str) -> Request {
    Request { body: json!({"prompt": prompt, "says": says}), stream: true, ..Request::default() }
}

#[test]
fn a_prompt_costs_what_it_does_not_share_with_the_last() {
    for recurrent in [false, true] {
        let (mut session, seen) = session(recurrent);
        let (text, events) = ask(&mut session, say("one two three", "four"));
        assert_eq!(text, "four");
        assert_eq!(events[0], Event::Began { prompt_tokens: 13, cached_tokens: 0 });
        let Event::Ended(ended) = &events[1] else { panic!("{events:?}") };
        assert_eq!((ended.cut, ended.completion_tokens), (false, 5));
        // The same and more: only what is new.
        let before = seen.borrow().evaluated;
        ask(&mut session, say("one two threefour five", ""));
        assert_eq!(seen.borrow().evaluated - before, " five".len());
        // The same again, which ends within what is held: its last token at least, or from where it asked for the reply.
        let before = seen.borrow().evaluated;
        let (_, events) = ask(&mut session, say("one two threefour five", ""));
        let cost = if recurrent { 2 } else { 1 };
        assert_eq!(seen.borrow().evaluated - before, cost);
        assert_eq!(events[0], Event::Began { prompt_tokens: 22, cached_tokens: 22 - cost as u32 });
        // Another reply to the same question: from where it was asked for.
        let before = seen.borrow().evaluated;
        ask(&mut session, say("one two threefour fiXX", ""));
        assert!(seen.borrow().evaluated - before <= 2 + cost);
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_and_a_full_window_ends_a_reply() {
    let (mut session, _) = session(false);
    let (_, events) = ask(&mut session, say(&"x".repeat(64), "y"));
    assert_eq!(events, [Event::Refused(Refused::TooLong { prompt_tokens: 64, n_ctx: 64 })]);
    let (text, events) = ask(&mut session, say(&"x".repeat(60), &"y".repeat(60)));
    assert_eq!(text, "yyyy");
    assert!(matches!(&events[1], Event::Ended(Ended { cut: true, completion_tokens: 4, .. })), "{events:?}");
    let (_, events) = ask(&mut session, say("", "y"));
    assert!(matches!(&events[..], [Event::Refused(Refused::Bad(_))]));
}

#[test]
fn a_prompt_is_counted_without_being_evaluated_however_long_it_is() {
    let (mut session, seen) = session(false);
    let (_, events) = ask(&mut session, Request { wants: Wants::Count, ..say(&"x".repeat(90), "y") });
    assert_eq!((events, seen.borrow().evaluated), (vec![Event::Counted(90)], 0));
}

#[test]
fn a_reply_ends_at_its_limit_or_at_a_text_that_ends_it() {
    let (mut session, _) = session(false);
    let (text, events) = ask(&mut session, Request { max_tokens: Some(3), ..say("a", "12345") });
    assert_eq!(text, "123");
    assert!(matches!(&events[1], Event::Ended(Ended { cut: true, completion_tokens: 3, .. })));
    let (text, events) = ask(&mut session, Request { stop: vec!["34".into()], ..say("a", "12345") });
    assert_eq!(text, "12");
    assert!(matches!(&events[1], Event::Ended(Ended { cut: false, completion_tokens: 4, .. })));
    let (text, events) = ask(&mut session, Request { max_tokens: Some(0), stream: false, ..say("a", "12345") });
    assert_eq!(text, "");
    assert!(matches!(&events[1], Event::Ended(Ended { cut: true, completion_tokens: 0, .. })));
    let (text, _) = ask(&mut session, Request { stream: false, ..say("a", "12345") });
    assert_eq!(text, "12345");
}

#[test]
fn what_nobody_wants_any_more_is_given_up_and_what_is_held_is_known() {
    for recurrent in [false, true] {
        let (mut session, seen) = session(recurrent);
        let mut told = 0;
        session.answer(&say("a question", "a very long answer"), &mut |_| {
            told += 1;
            told < 6
        });
        assert_eq!(told, 6);
        seen.borrow_mut().stop = true;
        let (_, events) = ask(&mut session, say("a question that nobody wants the answer of", "x"));
        assert!(matches!(&events[..], [Event::Began { .. }]), "{events:?}");
        seen.borrow_mut().stop = false;
        // The machine itself asserts that its state is that of the prompt.
        assert_eq!(ask(&mut session, say("a question", "yes")).0, "yes");
    }
}

/// A conversation that goes on after another had the context.
#[test]
fn a_prompt_that_another_took_the_place_of_is_taken_back() {
    for (recurrent, spare) in [(false, 1 << 20), (true, 1 << 20), (false, 100), (true, 100)] {
        let (mut session, seen) = session_of(recurrent, 1000);
        let mut ask = |prompt: &str| {
            let before = seen.borrow().evaluated;
            ask(&mut session, Request { spare, ..say(prompt, "yes") });
            seen.borrow().evaluated - before
        };
        let (one, other) = ("one ".repeat(50), "another ".repeat(30));
        assert_eq!(ask(&one), 200 + 3);
        assert_eq!(ask(&other), 240 + 3);
        let on = format!("{one}yes and on");
        match spare {
            // No room for it.
            100 => assert_eq!(ask(&on), on.len() + 3),
            _ => {
                assert_eq!(ask(&on), " and on".len() + 3);
                assert_eq!(ask(&format!("{other}yes and on")), " and on".len() + 3);
                // One that shares its beginning with one of them: from there, or from where there is a copy of the state.
                let cost = ask(&format!("{one}no, not so"));
                assert!(cost <= if recurrent { 2 } else { 0 } + "no, not so".len() + 3, "{cost}");
            }
        }
    }
}

/// What is cached is still there to go on from.
#[test]
fn another_end_to_a_prompt_that_is_cached_costs_that_end() {
    for recurrent in [false, true] {
        let (mut session, seen) = session_of(recurrent, 1000);
        let one = "one ".repeat(100);
        ask(&mut session, Request { spare: 1 << 20, ..say(&one, "yes") });
        let before = seen.borrow().evaluated;
        let other = format!("{}{}", &one[..140], "two ".repeat(30));
        ask(&mut session, Request { spare: 1 << 20, ..say(&other, "") });
        // There is a copy of the state behind each eighth of the window.
        assert_eq!(seen.borrow().evaluated - before, other.len() - if recurrent { 125 } else { 140 });
        let before = seen.borrow().evaluated;
        ask(&mut session, Request { spare: 1 << 20, ..say(&format!("{one}yes and on"), "") });
        assert_eq!(seen.borrow().evaluated - before, " and on".len());
    }
}

proptest! {
    #[test]
    fn whatever_was_cached_the_state_is_that_of_the_prompt(
        asked in prop::collection::vec((0usize..3, 70usize..120, any::<bool>(), 0u64..600), 1..16), recurrent: bool,
    ) {
        let (mut session, seen) = session_of(recurrent, 300);
        for (which, length, breaks, spare) in asked {
            seen.borrow_mut().breaks = breaks;
            let prompt = ["abc", "abd", "xyz"][which].repeat(length / 3);
            let (text, _) = ask(&mut session, Request { spare, ..say(&prompt, "!") });
            prop_assert_eq!(text, "!");
            prop_assert_eq!(&seen.borrow().state, &session.held);
        }
    }

    #[test]
    fn whatever_was_asked_before_the_state_is_that_of_the_prompt(
        asked in prop::collection::vec(("[ab]{1,40}", "[ab]{0,10}", any::<bool>()), 1..12), recurrent: bool,
    ) {
        let (mut session, seen) = session(recurrent);
        for (prompt, says, stop) in asked {
            seen.borrow_mut().stop = stop;
            let (text, _) = ask(&mut session, say(&prompt, &says));
            if !stop {
                prop_assert_eq!(text, says);
            }
            prop_assert_eq!(&seen.borrow().state, &session.held);
            prop_assert!(session.snapshots.len() <= SNAPSHOTS);
        }
    }
}
