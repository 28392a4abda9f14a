//! What counts as the same message, and the chain hash of each prefix of a history.
//!
//! A message is what it *says*: role, text with its parts joined and trimmed, tool names, arguments as canonical JSON,
//! media payloads. Not its incidental bytes: `cache_control`, ids, message names, reasoning, null and empty fields, which
//! real clients move, drop or rewrite every turn. Results of parallel calls compare as a set, since clients send them as
//! they finish.

use serde_json::Number;

use super::{Digest, Message, Role};

/// Bytes that are put together before they are hashed: more are hashed as they come.
const TOGETHER: usize = 4096;

/// What is hashed. What is short is hashed in one go, which takes a third of the time of a hasher that is made for any length.
#[derive(Default)]
struct Said {
    short: Vec<u8>,
    long: Option<Box<blake3::Hasher>>,
}

impl Said {
    /// A part, behind its length.
    fn put(&mut self, bytes: &[u8]) {
        self.add(&(bytes.len() as u64).to_le_bytes());
        self.add(bytes);
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.long.is_none() && self.short.len() + bytes.len() <= TOGETHER {
            return self.short.extend_from_slice(bytes);
        }
        let hash = self.long.get_or_insert_with(|| {
            let mut hash = Box::new(blake3::Hasher::new());
            hash.update(&self.short);
            hash
        });
        hash.update(bytes);
    }

    fn digest(&self) -> Digest {
        self.long.as_ref().map_or_else(|| Digest::of(&self.short), |hash| short(&hash.finalize()))
    }
}

/// Digest of what a message says. `payloads` are digests of its media parts.
pub fn digest(message: &Message, payloads: &[Digest]) -> Digest {
    let text = message.text.trim();
    let mut said = Said { short: Vec::with_capacity((text.len() + 64).min(TOGETHER)), long: None };
    said.put(match message.role {
        Role::System => b"system",
        Role::User => b"user",
        Role::Assistant => b"assistant",
        Role::Tool => b"tool",
        Role::Other => b"other",
    });
    said.put(text.as_bytes());
    for call in &message.calls {
        said.put(call.name.as_bytes());
        said.put(canonical(&call.arguments).as_bytes());
    }
    for payload in payloads {
        said.put(&payload.0);
    }
    said.digest()
}

/// Arguments without their incidental spelling: keys sorted, no white space. What is not JSON is only trimmed.
pub(crate) fn canonical(arguments: &str) -> String {
    fn sorted(value: serde_json::Value) -> serde_json::Value {
        match value {
            serde_json::Value::Object(map) => {
                let mut entries: Vec<_> = map.into_iter().map(|(k, v)| (k, sorted(v))).collect();
                entries.sort_by(|a, b| a.0.cmp(&b.0));
                serde_json::Value::Object(entries.into_iter().collect())
            }
            serde_json::Value::Array(items) => serde_json::Value::Array(items.into_iter().map(sorted).collect()),
            serde_json::Value::Number(number) => serde_json::Value::Number(shortest(number)),
            other => other,
        }
    }
    match serde_json::from_str::<serde_json::Value>(arguments) {
        Ok(value) => sorted(value).to_string(),
        Err(_) => arguments.trim().to_owned(),
    }
}

/// A number as programs write it: clients spell 1.10 as 1.1 on their way. One with more digits than a double holds keeps them.
fn shortest(number: Number) -> Number {
    if (number.is_i64() || number.is_u64()) && number.as_str() != "-0" {
        return number;
    }
    let short = number.as_f64().and_then(Number::from_f64);
    short.filter(|short| decimal(short.as_str()) == decimal(number.as_str())).unwrap_or(number)
}

/// The sign, the digits and the power of ten of a number, which are the same however it is spelled.
fn decimal(number: &str) -> (bool, String, i64) {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{}{fraction}", whole.trim_start_matches('-'));
    let significant = digits.trim_end_matches('0');
    let dropped = i64::try_from(digits.len() - significant.len()).unwrap_or(0);
    let places = i64::try_from(fraction.len()).unwrap_or(0);
    let power = exponent.parse::<i64>().unwrap_or(i64::MAX).saturating_sub(places).saturating_add(dropped);
    (number.starts_with('-'), significant.trim_start_matches('0').to_owned(), power)
}

/// Chain hashes of a body: entry *i* stands for the messages `0..=i`. `seed` separates what must not be shared: the
/// session a client names, the model.
pub fn chain(seed: &str, body: &[Message]) -> Vec<Digest> {
    let mut chain = Chain::new(seed);
    body.iter().map(|message| chain.push(message)).collect()
}

/// The chain hash of the first message of a body, if it is no tool result, by its digest.
pub fn first(seed: &str, digest: &Digest) -> Digest {
    link(Chain::new(seed).tip, &digest.0, 0)
}

/// The chain hash of a body that grows message by message.
#[derive(Debug, Clone)]
pub struct Chain {
    /// What the current run of tool results stands behind.
    before: Digest,
    /// Of the current run of tool results: their digests added up, which no order changes.
    sum: u128,
    run: u64,
    tip: Digest,
}

impl Chain {
    /// No message yet; see [`chain`] for the seed.
    pub fn new(seed: &str) -> Chain {
        let before = Digest::of(format!("windowsill/1 {seed}").as_bytes());
        Chain { before, sum: 0, run: 0, tip: before }
    }

    /// Adds a message. Returns the chain hash of the body up to and with it.
    pub fn push(&mut self, message: &Message) -> Digest {
        if message.role == Role::Tool {
            self.sum = self.sum.wrapping_add(u128::from_le_bytes(message.digest.0));
            self.run += 1;
            self.tip = link(self.before, &self.sum.to_le_bytes(), self.run);
        } else {
            (self.sum, self.run) = (0, 0);
            self.tip = link(self.tip, &message.digest.0, 0);
            self.before = self.tip;
        }
        self.tip
    }

    /// The chain hash of the body so far.
    pub fn tip(&self) -> Digest {
        self.tip
    }
}

fn link(before: Digest, what: &[u8; 16], run: u64) -> Digest {
    let mut bytes = [0; 40];
    bytes[..16].copy_from_slice(&before.0);
    bytes[16..32].copy_from_slice(what);
    bytes[32..].copy_from_slice(&run.to_le_bytes());
    Digest::of(&bytes)
}

fn short(hash: &blake3::Hash) -> Digest {
    let mut out = [0; 16];
    out.copy_from_slice(&hash.as_bytes()[..16]);
    Digest(out)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::openai_chat::message;

    fn say(raw: &str) -> Message {
        message(Bytes::from(raw.to_owned())).unwrap()
    }

    /// Records have these digests: they stay what they were.
    #[test]
    fn a_digest_is_the_same_however_its_bytes_are_hashed() {
        for length in [0, 1, 63, 64, 1000, TOGETHER - 30, TOGETHER - 8, TOGETHER, TOGETHER + 1, 3 * TOGETHER] {
            let text = "x".repeat(length);
            let arguments = format!("{{\"b\":\"{text}\",\"a\":1}}");
            let call = serde_json::json!({"id": "1", "function": {"name": "f", "arguments": arguments}});
            let raw = serde_json::json!({"role": "assistant", "content": text, "tool_calls": [call]}).to_string();
            let mut hash = blake3::Hasher::new();
            for part in ["assistant", text.as_str(), "f", &format!("{{\"a\":1,\"b\":\"{text}\"}}")] {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part.as_bytes());
            }
            assert_eq!(say(&raw).digest, short(&hash.finalize()), "{length}");
        }
        let tip = chain("s", &[say(r#"{"role":"user","content":"a"}"#)])[0];
        assert_eq!(tip.hex(), chain_before());
    }

    /// The chain hash as it was first written.
    fn chain_before() -> String {
        let mut hash = blake3::Hasher::new();
        hash.update(&Digest::of(b"windowsill/1 s").0);
        hash.update(&say(r#"{"role":"user","content":"a"}"#).digest.0);
        hash.update(&0u64.to_le_bytes());
        short(&hash.finalize()).hex()
    }

    #[test]
    fn incidental_bytes_do_not_count() {
        for (a, b, same) in [
            (
                r#"{"role":"user","content":"a"}"#,
                r#"{"role":"user","content":[{"type":"text","text":"a","cache_control":{}}]}"#,
                true,
            ),
            (
                r#"{"role":"assistant","content":"a\n\n"}"#,
                r#"{"role":"assistant","content":"a","reasoning_content":"x"}"#,
                true,
            ),
            (
                r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"b\" : 1,\"a\":2}"}}]}"#,
                r#"{"role":"assistant","content":"","tool_calls":[{"id":"2","function":{"name":"f","arguments":"{\"a\":2,\"b\":1}"}}]}"#,
                true,
            ),
            (
                r#"{"role":"tool","tool_call_id":"1","name":"t","content":"r"}"#,
                r#"{"role":"tool","tool_call_id":"1","content":"r"}"#,
                true,
            ),
            (r#"{"role":"user","content":"a"}"#, r#"{"role":"assistant","content":"a"}"#, false),
            (r#"{"role":"user","content":"a"}"#, r#"{"role":"user","content":"b"}"#, false),
            (
                r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}"#,
                r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"y"}}]}"#,
                false,
            ),
        ] {
            assert_eq!(say(a).digest == say(b).digest, same, "{a} {b}");
        }
    }

    #[test]
    fn numbers_are_what_they_are_however_they_are_spelled() {
        for (a, b, same) in [
            ("1.10", "1.1", true),
            ("1E5", "100000.0", true),
            ("1.50e2", "150.0", true),
            ("-0.0", "-0", true),
            ("1.0", "1", false),
            ("12345678901234567890123", "12345678901234567890124", false),
            ("0.1000000000000000055", "0.1", false),
            ("1e400", "1e401", false),
            ("9007199254740993", "9007199254740992", false),
        ] {
            let one = |n: &str| canonical(&format!("{{\"n\":[{n}]}}"));
            assert_eq!(one(a) == one(b), same, "{a} {b}: {} {}", one(a), one(b));
        }
        // As records of earlier versions have them.
        for (n, before) in [("1.10", "1.1"), ("1e5", "100000.0"), ("1e20", "1e+20"), ("7", "7"), ("2.5", "2.5")] {
            assert_eq!(canonical(n), before);
        }
    }

    #[test]
    fn parallel_results_are_a_set_and_prefixes_are_prefixes() {
        let call = say(r#"{"role":"assistant","content":"c"}"#);
        let (x, y) = (say(r#"{"role":"tool","content":"x"}"#), say(r#"{"role":"tool","content":"y"}"#));
        let end = say(r#"{"role":"user","content":"u"}"#);
        let a = chain("s", &[call.clone(), x.clone(), y.clone(), end.clone()]);
        let b = chain("s", &[call.clone(), y.clone(), x.clone(), end.clone()]);
        assert_eq!((a[0], a[2], a[3]), (b[0], b[2], b[3]));
        assert_ne!(a[1], b[1]);
        assert_eq!(chain("s", &[call.clone(), x.clone()]), a[..2]);
        assert_ne!(chain("t", std::slice::from_ref(&call)), a[..1]);
        assert_ne!(chain("s", &[call, x.clone(), x, end])[3], a[3]);
    }
}
