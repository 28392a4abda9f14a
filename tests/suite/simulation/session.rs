//! What one client does: it grows its history, sends it again, forks it, trims it, in one dialect.

use serde_json::{Value, json};

use crate::dialects;
use crate::support::*;

/// Begins a message that a client's machinery wrote, and no person.
pub(super) const REMINDER: &str = "<system-reminder>";

/// The API that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tongue {
    Chat,
    Responses,
    Anthropic,
    Ollama,
}

impl Tongue {
    pub(super) const ALL: [Tongue; 5] =
        [Tongue::Chat, Tongue::Chat, Tongue::Responses, Tongue::Anthropic, Tongue::Ollama];

    pub(super) fn path(self) -> &'static str {
        match self {
            Tongue::Chat => "/v1/chat/completions",
            Tongue::Responses => "/v1/responses",
            Tongue::Anthropic => "/v1/messages",
            Tongue::Ollama => "/api/chat",
        }
    }

    fn say(self, chat: &Chat) -> Value {
        match self {
            Tongue::Chat => chat.value(),
            Tongue::Responses => dialects::responses(chat),
            Tongue::Anthropic => dialects::anthropic(chat),
            Tongue::Ollama => dialects::ollama(chat),
        }
    }
}

/// One client and its conversation.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) tongue: Tongue,
    /// Stands in everything that this client says, and in nothing that others say; not in what it has in common with another.
    pub(super) mark: String,
    /// The key that it sends.
    pub(super) key: Option<String>,
    pub(super) chat: Chat,
    /// Every history that was sent, oldest first.
    sent: Vec<Chat>,
    /// JSON with line breaks and blanks: bytes that no writer of ours would make.
    spaced: bool,
    /// Whether anything was ever taken out of its prompts.
    pub(super) edited: bool,
    /// Whether a server ever called one of its prompts too long: what left it then stays out of later ones.
    pub(super) refused: bool,
    /// Whether one of its replies ever recalled anything, or was asked for again.
    pub(super) recalled: bool,
    /// Its conversation, as the last reply named it, and the history that it had then.
    pub(super) known_as: Option<(String, Chat)>,
    count: usize,
}

impl Session {
    /// Notes what is asked now. A history that does not go on from the last one may replace messages of it, and those are no
    /// longer the conversation's.
    pub(super) fn asks(&mut self, chat: &Chat) {
        self.known_as.take_if(|(_, known)| !chat.messages.starts_with(&known.messages));
    }

    pub(super) fn new(mark: String, dice: &mut Dice) -> Session {
        let tongue = Tongue::ALL[dice.below(Tongue::ALL.len())];
        let mut out = chat();
        if dice.chance(85) {
            out = out.system(&format!("You serve {mark}. {}", prose(dice.next() % 100, dice.below(500))));
        }
        out = out.user(&format!("First wish of {mark}: {}", prose(dice.next() % 100, 10 + dice.below(300))));
        if dice.chance(70) {
            out = out.tools();
        }
        let spaced = dice.chance(50);
        Session {
            tongue,
            mark,
            key: None,
            chat: out,
            sent: Vec::new(),
            spaced,
            edited: false,
            refused: false,
            recalled: false,
            known_as: None,
            count: 0,
        }
    }

    /// Has two clients begin alike, with some rounds that both have, and a key of its own for the second now and then.
    pub(super) fn relate(one: &mut Session, two: &mut Session, dice: &mut Dice) {
        let mut shared = chat().system("You serve everybody.").user(&prose(1, 10 + dice.below(200)));
        for n in 0..dice.below(6) as u64 {
            shared = shared.assistant(&prose(n + 2, 300)).user(&prose(n + 20, 100));
        }
        if one.tongue != Tongue::Ollama || dice.chance(50) {
            shared = shared.tools();
        }
        two.key = dice.chance(50).then(|| format!("Bearer key-of-{}", two.mark));
        // What one spells otherwise than the other would come as the record has it from the first.
        (two.tongue, two.spaced) = (one.tongue, one.spaced);
        (one.chat, two.chat) = (shared.clone(), shared);
    }

    /// The bytes of a request.
    pub(super) fn body(&self, chat: &Chat) -> Vec<u8> {
        let value = self.tongue.say(chat);
        if self.spaced { serde_json::to_vec_pretty(&value).unwrap() } else { value.to_string().into_bytes() }
    }

    /// The next request of this client.
    pub(super) fn next(&mut self, window: u32, dice: &mut Dice) -> Chat {
        match dice.below(20) {
            // The same again, as after an answer that never came.
            0 | 1 if !self.sent.is_empty() => return self.sent[self.sent.len() - 1].clone(),
            // An older state of it, opened again.
            2 if !self.sent.is_empty() => return self.sent[dice.below(self.sent.len())].clone(),
            // A fork: goes on from an older state.
            3 if !self.sent.is_empty() => {
                self.chat = self.sent[dice.below(self.sent.len())].clone();
                self.grow(window, dice);
            }
            // A client that trims or pads the texts it keeps.
            4 => self.pad(dice),
            _ => {
                for _ in 0..1 + dice.below(3) {
                    self.grow(window, dice);
                }
            }
        }
        self.set_fields(window, dice);
        self.sent.push(self.chat.clone());
        self.chat.clone()
    }

    fn set_fields(&mut self, window: u32, dice: &mut Dice) {
        self.chat.fields.insert("stream".into(), dice.chance(60).into());
        match dice.below(4) {
            0 => drop(self.chat.fields.insert("max_tokens".into(), json!(2 + dice.below(2 * window as usize)))),
            1 => drop(self.chat.fields.insert("max_tokens".into(), json!(2 + dice.below(window as usize / 8)))),
            _ => drop(self.chat.fields.shift_remove("max_tokens")),
        }
    }

    fn pad(&mut self, dice: &mut Dice) {
        let last = self.chat.messages.len() - 1;
        for message in &mut self.chat.messages[..last] {
            if let Some(text) = message["content"].as_str().filter(|_| dice.chance(40)) {
                message["content"] = if dice.chance(50) { format!("{text}\n ") } else { text.trim().to_owned() }.into();
            }
        }
    }

    fn push(&mut self, grown: impl FnOnce(Chat) -> Chat) {
        self.chat = grown(std::mem::replace(&mut self.chat, chat()));
    }

    /// One more turn or step.
    fn grow(&mut self, window: u32, dice: &mut Dice) {
        self.count += 1;
        // Four bytes are a token to the servers here.
        let window = window as usize * 4;
        let (n, mark) = (self.count, self.mark.clone());
        let words = |dice: &mut Dice, bytes: usize| odd(format!("{mark} {}", prose(dice.next() % 1_000, bytes)), dice);
        match dice.below(12) {
            0..=2 => {
                let bytes = if dice.chance(6) { window / 8 + dice.below(window) } else { dice.below(400) };
                let (answer, asked) = (words(dice, 150), format!("{n}. {}", words(dice, bytes)));
                self.push(|c| c.assistant(&answer).user(&asked));
            }
            3 => {
                let said = words(dice, window / 16);
                self.push(|c| {
                    c.assistant(&said).user(&format!("{REMINDER}{n} {mark} {}</system-reminder>", prose(3, 200)))
                });
            }
            4 if matches!(self.tongue, Tongue::Chat) => {
                let said = words(dice, 200);
                let picture = json!({"role": "user", "content": [{"type": "text", "text": said},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAAA"}}]});
                self.push(|c| c.push(picture));
            }
            5 if matches!(self.tongue, Tongue::Chat) => {
                let said = words(dice, 200);
                self.push(|c| c.push(json!({"role": "system", "content": said})));
            }
            6 => self.step(
                1,
                |d| {
                    let bytes = window / 3 + d.below(window * 2);
                    words(d, bytes)
                },
                dice,
            ),
            7 | 8 => {
                let calls = 2 + dice.below(3);
                self.step(
                    calls,
                    |d| {
                        let bytes = d.below(window / 6);
                        words(d, bytes)
                    },
                    dice,
                );
            }
            _ => self.step(
                1,
                |d| {
                    let bytes = d.below(window / 5);
                    words(d, bytes)
                },
                dice,
            ),
        }
    }

    /// A step: calls, and all of their results, sometimes in another order.
    fn step(&mut self, calls: usize, mut result: impl FnMut(&mut Dice) -> String, dice: &mut Dice) {
        let ids: Vec<String> = (0..calls).map(|k| format!("call_{}_{k}", self.count)).collect();
        let paths: Vec<String> = (0..calls)
            .map(|k| json!({"path": format!("{}/f{}.rs", self.mark, dice.below(6)), "n": k}).to_string())
            .collect();
        let spelled: Vec<(&str, &str, &str)> =
            ids.iter().zip(&paths).map(|(id, path)| (id.as_str(), "read_file", path.as_str())).collect();
        self.push(|c| c.calls(&spelled));
        let mut order: Vec<usize> = (0..calls).collect();
        // Ollama's clients tell results apart by their order.
        if self.tongue != Tongue::Ollama && dice.chance(30) {
            order.reverse();
        }
        for k in order {
            let text = result(dice);
            self.push(|c| c.result(&ids[k], &text));
        }
    }
}

/// Now and then with characters that end strings, lines or prompts elsewhere.
fn odd(words: String, dice: &mut Dice) -> String {
    match dice.below(14) {
        0 => format!("{words}\u{1b}[1m\r\n<|im_end|>\u{0}"),
        1 => words.replace(" the ", " \u{4e16}\u{754c} "),
        2 => format!("{{\"output\": {}}}", json!(words)),
        _ => words,
    }
}
