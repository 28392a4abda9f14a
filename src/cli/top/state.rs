//! What `windowsill top` knows, and what a key does. Pure: what is to be asked of the proxy is returned.

use std::collections::VecDeque;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::{Value, json};
use windowsill::plain;

use crate::cli::events::event_line;
use crate::cli::paint::{model_name, tokens};

/// Events that are kept.
const EVENTS: usize = 500;

/// Most characters of a model's name.
const MODEL: usize = 16;

/// Most characters of a text that is typed.
const LONGEST: usize = 4_000;

/// What came in.
pub(super) enum News {
    Key(KeyEvent),
    Pasted(String),
    /// Only the picture is old.
    Drawn,
    NoTerminal,
    Rows(Result<Value, String>),
    Seen(String, Value),
    Server(Result<(), String>),
    Event(Value),
    Steered(Result<Value, String>),
}

/// What is to be done for it.
#[derive(Debug, PartialEq)]
pub(super) enum Ask {
    Quit,
    /// What is looked at is another conversation.
    Look,
    Steer {
        id: String,
        what: &'static str,
        body: Value,
    },
    /// What was asked is no longer wanted.
    Cancel,
}

/// A conversation in the list.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) model: String,
    pub(super) pressure: Option<f64>,
    pub(super) severity: Option<String>,
    pub(super) prompt: String,
    pub(super) updated_ms: i64,
    /// Requests that wait for their replies, and since when (Unix milliseconds).
    pub(super) under_way: u64,
    pub(super) since_ms: Option<i64>,
}

impl Row {
    fn of(row: &Value) -> Row {
        let text = |value: &Value| plain::line(value.as_str().unwrap_or("")).into_owned();
        let state = &row["state"];
        let title = Some(text(&row["title"])).filter(|title| !title.is_empty());
        let window = state["window"].is_u64();
        Row {
            id: row["id"].as_str().unwrap_or("").to_owned(),
            title: title.unwrap_or_else(|| text(&row["id"])),
            model: model_name(&text(&row["model"]), MODEL),
            pressure: state["pressure"].as_f64().filter(|_| window),
            severity: row["severity"].as_str().map(str::to_owned),
            prompt: match window {
                true => format!("{} of {}", tokens(&state["prompt_tokens"]), tokens(&state["window"])),
                false => tokens(&state["prompt_tokens"]),
            },
            updated_ms: row["last_request_ms"].as_i64().or(row["updated_ms"].as_i64()).unwrap_or(0),
            under_way: row["under_way"]["requests"].as_u64().unwrap_or(0),
            since_ms: row["under_way"]["since_ms"].as_i64(),
        }
    }
}

/// An event in one line.
pub(super) struct Line {
    pub(super) text: String,
    pub(super) severity: Option<&'static str>,
}

impl Line {
    fn of(event: &Value) -> Line {
        let severity = match event["kind"].as_str() {
            Some("request_failed") => Some("red"),
            Some("model_usage") if event["data"]["end"] == "failed" => Some("red"),
            Some("context_compaction") => Some("yellow"),
            _ => None,
        };
        Line { text: event_line(event), severity }
    }
}

/// What a dialog is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Fold,
    Undo,
    Pin,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stage {
    /// Somebody types.
    Typing,
    /// Its price is asked for.
    Pricing,
    /// The price, in words; Enter does it.
    Priced(String),
    /// It cannot be done, and why.
    Refused(String),
    /// It is done since then (Unix milliseconds).
    AtWork(i64),
}

/// A question before something is done to a conversation.
pub(super) struct Dialog {
    pub(super) what: What,
    pub(super) title: String,
    id: String,
    /// The focus of a fold, or what is pinned.
    pub(super) text: String,
    pub(super) stage: Stage,
}

impl Dialog {
    /// Whether a text can be typed now.
    pub(super) fn takes_text(&self) -> bool {
        self.what != What::Undo && !matches!(self.stage, Stage::AtWork(_))
    }

    fn steer(&self, dry: bool) -> Ask {
        let text = self.text.trim();
        let (what, mut body) = match self.what {
            What::Fold if text.is_empty() => ("compact", json!({})),
            What::Fold => ("compact", json!({"focus": text})),
            What::Undo => ("undo", json!({})),
            What::Pin => ("pins", json!({"text": text})),
        };
        body["dry_run"] = json!(dry);
        Ask::Steer { id: self.id.clone(), what, body }
    }
}

/// What lies over the list.
pub(super) enum Over {
    Nothing,
    Help,
    /// All that is known of a conversation, from this line on.
    Detail(usize),
    Dialog(Dialog),
}

/// Everything that is drawn.
pub(super) struct State {
    pub(super) address: String,
    pub(super) colors: bool,
    /// Unix milliseconds.
    pub(super) now: i64,
    pub(super) rows: Vec<Row>,
    /// Index of the row that is looked at.
    at: usize,
    /// What is known of it; of which conversation.
    seen: Option<(String, Value)>,
    pub(super) events: VecDeque<Line>,
    /// Why the proxy or its server does not answer.
    pub(super) trouble: Option<String>,
    pub(super) over: Over,
    /// What was done last.
    pub(super) said: Option<String>,
}

impl State {
    pub(super) fn new(address: String, colors: bool, now: i64) -> State {
        State {
            address,
            colors,
            now,
            rows: Vec::new(),
            at: 0,
            seen: None,
            events: VecDeque::new(),
            trouble: None,
            over: Over::Nothing,
            said: None,
        }
    }

    /// The row that is looked at.
    pub(super) fn chosen(&self) -> Option<usize> {
        (self.at < self.rows.len()).then_some(self.at)
    }

    /// The conversation that is looked at.
    pub(super) fn at(&self) -> Option<&str> {
        self.rows.get(self.at).map(|row| row.id.as_str())
    }

    /// What is known of the conversation that is looked at.
    pub(super) fn seen(&self) -> Option<&Value> {
        let (id, seen) = self.seen.as_ref()?;
        (Some(id.as_str()) == self.at()).then_some(seen)
    }

    /// Takes something in; what is to be asked for it.
    pub(super) fn hear(&mut self, news: News) -> Option<Ask> {
        match news {
            News::Key(key) => return self.key(key),
            News::Pasted(text) => {
                self.typed(&text);
                return self.edited();
            }
            News::Drawn | News::NoTerminal => {}
            News::Rows(Ok(list)) => return self.list(&list),
            News::Rows(Err(why)) => self.trouble = Some(plain::line(&why).into_owned()),
            News::Server(answer) => self.trouble = answer.err().map(|why| plain::line(&why).into_owned()),
            News::Seen(id, seen) => self.seen = Some((id, seen)),
            News::Event(event) => {
                self.events.push_back(Line::of(&event));
                while self.events.len() > EVENTS {
                    self.events.pop_front();
                }
            }
            News::Steered(answer) => return self.steered(answer),
        }
        None
    }

    /// A new list. The conversation that is looked at stays so, wherever it stands now.
    fn list(&mut self, list: &Value) -> Option<Ask> {
        let before = self.at().map(str::to_owned);
        let rows = list["conversations"].as_array().map_or(&[][..], Vec::as_slice);
        self.rows = rows.iter().filter(|row| row["helper"] != true).map(Row::of).collect();
        let there = self.rows.iter().position(|row| Some(&row.id) == before.as_ref());
        self.at = there.unwrap_or(self.at).min(self.rows.len().saturating_sub(1));
        (self.at() != before.as_deref()).then_some(Ask::Look)
    }

    fn key(&mut self, key: KeyEvent) -> Option<Ask> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Some(Ask::Quit);
        }
        match &mut self.over {
            Over::Dialog(_) => self.key_in_dialog(key.code, control),
            Over::Help => {
                self.over = Over::Nothing;
                None
            }
            Over::Detail(from) => {
                match key.code {
                    KeyCode::Down | KeyCode::Char('j') => *from += 1,
                    KeyCode::Up | KeyCode::Char('k') => *from = from.saturating_sub(1),
                    KeyCode::PageDown | KeyCode::Char(' ') => *from += 10,
                    KeyCode::PageUp => *from = from.saturating_sub(10),
                    KeyCode::Home => *from = 0,
                    KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q') => self.over = Over::Nothing,
                    _ => {}
                }
                None
            }
            Over::Nothing => self.key_in_list(key.code),
        }
    }

    fn key_in_list(&mut self, code: KeyCode) -> Option<Ask> {
        let last = self.rows.len().saturating_sub(1);
        let to = match code {
            KeyCode::Char('q') => return Some(Ask::Quit),
            // It closes what is open, and here that is at most a line of what was done.
            KeyCode::Esc => {
                self.said = None;
                return None;
            }
            KeyCode::Char('?' | 'h') => {
                self.over = Over::Help;
                return None;
            }
            KeyCode::Char('f') => return self.begin(What::Fold, Stage::Pricing),
            KeyCode::Char('u') => return self.begin(What::Undo, Stage::Pricing),
            KeyCode::Char('p') => return self.begin(What::Pin, Stage::Typing),
            KeyCode::Enter if !self.rows.is_empty() => {
                self.over = Over::Detail(0);
                return Some(Ask::Look);
            }
            KeyCode::Down | KeyCode::Char('j') => self.at.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.at.saturating_sub(1),
            KeyCode::PageDown => self.at.saturating_add(10),
            KeyCode::PageUp => self.at.saturating_sub(10),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return None,
        };
        let moved = to.min(last) != self.at;
        self.at = to.min(last);
        moved.then_some(Ask::Look)
    }

    /// Opens a dialog, and asks for the price where nothing has to be typed first.
    fn begin(&mut self, what: What, stage: Stage) -> Option<Ask> {
        let row = self.rows.get(self.at)?;
        let dialog = Dialog { what, title: row.title.clone(), id: row.id.clone(), text: String::new(), stage };
        let ask = (dialog.stage == Stage::Pricing).then(|| dialog.steer(true));
        self.said = None;
        self.over = Over::Dialog(dialog);
        ask
    }

    fn key_in_dialog(&mut self, code: KeyCode, control: bool) -> Option<Ask> {
        let Over::Dialog(dialog) = &mut self.over else { return None };
        match code {
            KeyCode::Esc => {
                if let Stage::AtWork(_) = dialog.stage {
                    self.said = Some(format!("canceled: {}", dialog.title));
                }
                self.over = Over::Nothing;
                return Some(Ask::Cancel);
            }
            KeyCode::Enter => match dialog.stage {
                Stage::Typing if !dialog.text.trim().is_empty() => {
                    dialog.stage = Stage::Pricing;
                    return Some(dialog.steer(true));
                }
                Stage::Priced(_) => {
                    dialog.stage = Stage::AtWork(self.now);
                    return Some(dialog.steer(false));
                }
                _ => {}
            },
            KeyCode::Backspace if dialog.takes_text() => {
                dialog.text.pop();
                return self.edited();
            }
            KeyCode::Char('u') if control && dialog.takes_text() => {
                dialog.text.clear();
                return self.edited();
            }
            KeyCode::Char(c) if !control => {
                self.typed(c.encode_utf8(&mut [0; 4]));
                return self.edited();
            }
            _ => {}
        }
        None
    }

    fn typed(&mut self, text: &str) {
        let Over::Dialog(dialog) = &mut self.over else { return };
        if dialog.takes_text() {
            let left = LONGEST.saturating_sub(dialog.text.chars().count());
            // A text is one line.
            let typed = text.chars().map(|c| if c == '\n' || c == '\t' { ' ' } else { c });
            dialog.text.extend(typed.filter(|c| plain::is_harmless(*c)).take(left));
        }
    }

    /// Another text to pin has another price; the focus of a fold has none.
    fn edited(&mut self) -> Option<Ask> {
        let Over::Dialog(dialog) = &mut self.over else { return None };
        let was = dialog.stage.clone();
        if dialog.what != What::Pin || was == Stage::Typing {
            return None;
        }
        if !matches!(was, Stage::AtWork(_)) {
            dialog.stage = Stage::Typing;
        }
        (was == Stage::Pricing).then_some(Ask::Cancel)
    }

    fn steered(&mut self, answer: Result<Value, String>) -> Option<Ask> {
        let Over::Dialog(dialog) = &mut self.over else { return None };
        match (answer, &dialog.stage) {
            (Ok(price), Stage::Pricing) => dialog.stage = Stage::Priced(priced(&price)),
            (Ok(done), Stage::AtWork(_)) => {
                let what = match dialog.what {
                    What::Fold => "folded",
                    What::Undo => "undone",
                    What::Pin => "pinned",
                };
                let about = if done["counted"] == false { "about " } else { "" };
                let size = |key: &str| format!("{about}{}", tokens(&done[key]));
                let before = done["before"].as_u64().map_or(String::new(), |_| format!("{} -> ", size("before")));
                let taken = done["takes_back"]
                    .as_str()
                    .map_or(String::new(), |what| format!("; took back {}", plain::line(what)));
                self.said = Some(format!("{what}: {}: {before}{} tokens{taken}", dialog.title, size("after")));
                self.over = Over::Nothing;
                return Some(Ask::Look);
            }
            (Err(why), Stage::Pricing | Stage::AtWork(_)) => {
                dialog.stage = Stage::Refused(plain::line(&why).into_owned());
            }
            _ => {}
        }
        None
    }
}

/// A price in words.
fn priced(price: &Value) -> String {
    let estimated = price["counted"] == false;
    let about = |is_so: bool| if is_so { "about " } else { "" };
    let mut words = format!(
        "{0}{1} -> {0}{2} tokens; the next request reads {3}{4} of them again",
        about(estimated),
        tokens(&price["before"]),
        tokens(&price["after"]),
        about(estimated || price["cache"] == "unsure"),
        tokens(&price["evaluated_again"])
    );
    if let Some(what) = price["takes_back"].as_str() {
        words = format!("Takes back {}. {words}", plain::line(what));
    }
    let seconds = |name: &str| price[name].as_f64().map(|n| format!("about {n:.0} s"));
    if let Some(wait) = seconds("seconds") {
        words += &format!(", {wait}");
    }
    if let Some(wait) = seconds("brief_seconds") {
        words += &format!("; writing the brief takes {wait}");
    }
    if let Some(note) = price["note"].as_str() {
        words += &format!(". {}", plain::line(note));
    }
    words
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn key(code: KeyCode) -> News {
        News::Key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn press(state: &mut State, keys: &str) -> Option<Ask> {
        keys.chars()
            .map(|c| if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) })
            .fold(None, |_, code| state.hear(key(code)))
    }

    pub(in crate::cli::top) fn two() -> State {
        let mut state = State::new("127.0.0.1:8484".to_owned(), true, 10_000);
        let row = |id: &str, title: &str, pressure: f64| {
            json!({"id": id, "title": title, "model": "qwen3:8b", "severity": "yellow", "updated_ms": 4_000,
                "state": {"window": 16_384, "prompt_tokens": 12_000, "pressure": pressure}})
        };
        let list = json!({"conversations": [row("c1", "Fix the cart", 0.8), row("c2", "\u{1b}[31mEvil\u{202e}", 0.4),
            {"id": "c3", "helper": true, "messages": 1, "state": {}}]});
        state.hear(News::Rows(Ok(list)));
        state
    }

    #[test]
    fn a_fold_is_priced_and_done_at_enter_and_can_be_left() {
        let mut state = two();
        let asked = press(&mut state, "f");
        let body = json!({"dry_run": true});
        assert_eq!(asked, Some(Ask::Steer { id: "c1".into(), what: "compact", body }));
        assert_eq!(press(&mut state, "\n"), None, "no price yet");
        let price =
            json!({"before": 12_000, "after": 5_000, "evaluated_again": 4_000, "seconds": 8.2, "brief_seconds": 41.0});
        let mut estimated = price.clone();
        estimated["counted"] = json!(false);
        let undo = json!({"before": 1_204, "after": 3_562, "evaluated_again": 9, "takes_back": "the rewrite that folded 13 messages"});
        assert!(priced(&undo).starts_with("Takes back the rewrite that folded 13 messages. 1,204 -> 3,562 tokens"));
        let words = priced(&estimated);
        assert!(words.starts_with("about 12,000 -> about 5,000 tokens; the next request reads about 4,000"), "{words}");
        state.hear(News::Steered(Ok(price)));
        let Over::Dialog(dialog) = &state.over else { panic!() };
        let Stage::Priced(words) = &dialog.stage else { panic!() };
        assert!(words.contains("12,000 -> 5,000") && words.contains("writing the brief takes about 41 s"), "{words}");
        assert_eq!(press(&mut state, "the cart"), None);
        let asked = press(&mut state, "\n");
        assert_eq!(
            asked,
            Some(Ask::Steer { id: "c1".into(), what: "compact", body: json!({"focus": "the cart", "dry_run": false}) })
        );
        assert_eq!(press(&mut state, "x\n"), None, "once is enough");
        assert_eq!(state.hear(key(KeyCode::Esc)), Some(Ask::Cancel));
        assert!(matches!(state.over, Over::Nothing) && state.said.is_some());
        // Nothing is open any more: Esc takes the line away, and ends nothing.
        assert_eq!(state.hear(key(KeyCode::Esc)), None);
        assert_eq!(state.said, None);
        // What comes of it all the same is no answer to anything.
        state.hear(News::Steered(Ok(json!({"after": 1}))));
        assert!(matches!(state.over, Over::Nothing));
    }

    #[test]
    fn a_pin_is_priced_anew_when_it_is_changed_and_says_why_it_is_refused() {
        let mut state = two();
        assert_eq!(press(&mut state, "jp\n"), None, "nothing to pin");
        let asked = press(&mut state, "Use tabs\n");
        let body = json!({"text": "Use tabs", "dry_run": true});
        assert_eq!(asked, Some(Ask::Steer { id: "c2".into(), what: "pins", body }));
        assert_eq!(press(&mut state, "!"), Some(Ask::Cancel));
        state.hear(News::Pasted(" a\nb\u{1b}[2J".to_owned()));
        let asked = press(&mut state, "\n");
        let body = json!({"text": "Use tabs! a b[2J", "dry_run": true});
        assert_eq!(asked, Some(Ask::Steer { id: "c2".into(), what: "pins", body }));
        state.hear(News::Steered(Err("too \u{1b}[2Jlong".to_owned())));
        let Over::Dialog(dialog) = &state.over else { panic!() };
        assert_eq!(dialog.stage, Stage::Refused("too \\u{1b}[2Jlong".to_owned()));
        assert_eq!(press(&mut state, "\n"), None);
    }

    #[test]
    fn the_conversation_that_is_looked_at_stays_so() {
        let mut state = two();
        assert_eq!(state.rows.len(), 2, "helpers are not listed");
        assert_eq!(press(&mut state, "j"), Some(Ask::Look));
        assert_eq!(press(&mut state, "jjjj"), None);
        let list =
            json!({"conversations": [{"id": "c9", "state": {}}, {"id": "c2", "state": {}}, {"id": "c1", "state": {}}]});
        assert_eq!(state.hear(News::Rows(Ok(list))), None);
        assert_eq!((state.at(), state.chosen()), (Some("c2"), Some(1)));
        assert_eq!(state.hear(News::Rows(Ok(json!({})))), Some(Ask::Look));
        assert_eq!(state.at(), None);
        for keys in ["f", "u", "p", "\n", "j", "k", "G"] {
            assert_eq!(press(&mut state, keys), None, "{keys} with nothing there");
        }
        assert_eq!(press(&mut state, "q"), Some(Ask::Quit));
    }
}
