//! `context` of `/api/generate`: what a client sends back to go on where a reply ended. Ollama's holds the tokens of the
//! conversation so far. This one holds its words, so that it needs no record, outlives a restart, and tells nobody more
//! than what they said and heard themselves.
//!
//! Numbers of three bytes each, which any client keeps as they are: two that no vocabulary has, the version, how many
//! bytes follow, a checksum, then the messages as JSON, deflated.

use serde_json::{Value, json};

use super::super::spelled::{Message, Part, joined};
use super::{WireError, wrong};

/// `win`, `dow`: far above the size of any vocabulary.
const MARK: [u64; 2] = [0x77_69_6e, 0x64_6f_77];

/// How the numbers behind the mark are to be read.
const VERSION: u64 = 1;

/// Numbers before the first that holds text.
const HEAD: usize = 5;

/// The most text that is unpacked (bytes): as much as a request may hold, unless told otherwise.
const LARGEST: usize = 64 << 20;

/// Fast, and within a tenth of the best.
const LEVEL: u8 = 4;

/// Stands for what a context does not carry.
const NO_MEDIA: &str = "[a picture was here; `context` carries none]";

/// What the numbers say.
#[derive(Debug, PartialEq)]
pub(super) enum Context {
    /// Nothing.
    Empty,
    /// The messages so far, the system prompt first if there is one.
    Ours(Vec<Value>),
    /// Tokens of an Ollama.
    Foreign,
}

/// Reads a `context`.
///
/// # Errors
/// Where it is ours and not whole.
pub(super) fn read(context: Option<&Value>) -> Result<Context, WireError> {
    let numbers = match context {
        None | Some(Value::Null) => return Ok(Context::Empty),
        Some(Value::Array(numbers)) if numbers.is_empty() => return Ok(Context::Empty),
        Some(Value::Array(numbers)) => numbers,
        Some(_) => return Err(wrong("context", "must be an array of numbers, as the last reply gave it")),
    };
    let mark = numbers.iter().take(2).map(Value::as_u64);
    if !mark.eq(MARK.iter().map(|n| Some(*n))) {
        return Ok(Context::Foreign);
    }
    let broken = "was made by windowsill and is not whole: send all the numbers that the last reply gave, or none";
    unpacked(numbers).map(Context::Ours).ok_or_else(|| wrong("context", broken))
}

/// The `context` that stands for these messages of a chat.
pub(super) fn write(messages: &[Value]) -> Value {
    let said: Vec<Value> = messages.iter().map(|m| json!([m["role"], text(&m["content"])])).collect();
    let packed = miniz_oxide::deflate::compress_to_vec_zlib(Value::from(said).to_string().as_bytes(), LEVEL);
    let mut out: Vec<Value> = Vec::with_capacity(HEAD + packed.len().div_ceil(3));
    out.extend(MARK.map(Value::from));
    out.extend([VERSION, packed.len() as u64, checksum(&packed)].map(Value::from));
    out.extend(packed.chunks(3).map(|three| Value::from(number(three))));
    out.into()
}

fn unpacked(numbers: &[Value]) -> Option<Vec<Value>> {
    let number_at = |at: usize| numbers.get(at).and_then(Value::as_u64);
    let length = usize::try_from(number_at(3)?).ok()?;
    let data = numbers.get(HEAD..)?;
    if number_at(2)? != VERSION || data.len() != length.div_ceil(3) {
        return None;
    }
    let mut packed = Vec::with_capacity(length + 2);
    for value in data {
        let three = value.as_u64().filter(|n| *n < 1 << 24)?;
        packed.extend_from_slice(&[(three >> 16) as u8, (three >> 8) as u8, three as u8]);
    }
    packed.truncate(length);
    if checksum(&packed) != number_at(4)? {
        return None;
    }
    let text = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(&packed, LARGEST).ok()?;
    let said: Vec<(String, String)> = serde_json::from_slice(&text).ok()?;
    let known = said.iter().all(|(role, _)| matches!(role.as_str(), "system" | "user" | "assistant"));
    known.then(|| said.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect())
}

/// Up to three bytes as one number, the first the highest.
fn number(three: &[u8]) -> u64 {
    let byte = |at: usize| u64::from(three.get(at).copied().unwrap_or(0));
    (byte(0) << 16) | (byte(1) << 8) | byte(2)
}

fn checksum(packed: &[u8]) -> u64 {
    number(&blake3::hash(packed).as_bytes()[..3])
}

/// A message as a context keeps it.
pub(super) fn kept(message: Message) -> Value {
    let Message { mut fields, parts } = message;
    if !parts.is_empty() {
        let text = |part| if let Part::Text(text) = part { text } else { NO_MEDIA.to_owned() };
        fields["content"] = joined(parts.into_iter().map(text).collect(), "\n").into();
    }
    fields.into()
}

/// The text of a message's content, with a marker for each picture or sound.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let said: Vec<&str> = parts.iter().map(|part| part["text"].as_str().unwrap_or(NO_MEDIA)).collect();
            said.join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk() -> Vec<Value> {
        vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "Grüße \u{1f600}\n\"x\" \u{0}"}),
            json!({"role": "assistant", "content": ""}),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for many in [0, 1, 2, 3] {
            let talk = talk()[..many].to_vec();
            assert_eq!(read(Some(&write(&talk))).unwrap(), Context::Ours(talk));
        }
        let long = vec![json!({"role": "user", "content": "all work and no play ".repeat(10_000)})];
        let written = write(&long);
        assert!(written.to_string().len() < 20_000, "it is packed");
        assert!(written.as_array().unwrap().iter().all(|n| n.as_i64().unwrap() <= i64::from(i32::MAX)));
        assert_eq!(read(Some(&written)).unwrap(), Context::Ours(long));
        let picture = json!({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:…"}}]});
        let Context::Ours(said) = read(Some(&write(&[picture]))).unwrap() else { panic!() };
        assert_eq!(said[0]["content"], format!("see\n{NO_MEDIA}"));
    }

    #[test]
    fn others_are_told_apart_and_what_is_broken_is_refused() {
        for (context, expect) in [(json!(null), Context::Empty), (json!([]), Context::Empty)] {
            assert_eq!(read(Some(&context)).unwrap(), expect);
        }
        for tokens in
            [json!([128_006, 882, 128_007, 271]), json!([MARK[0]]), json!([MARK[1], MARK[0], 1]), json!([1.5])]
        {
            assert_eq!(read(Some(&tokens)).unwrap(), Context::Foreign, "{tokens}");
        }
        assert!(read(Some(&json!("text"))).is_err());
        let whole = write(&talk()).as_array().unwrap().clone();
        for cut in 2..whole.len() {
            assert!(read(Some(&whole[..cut].to_vec().into())).is_err(), "{cut}");
        }
        for at in 2..whole.len() {
            let mut changed = whole.clone();
            changed[at] = (changed[at].as_u64().unwrap() ^ 0x010101).into();
            assert!(read(Some(&changed.into())).is_err(), "{at}");
        }
        // It says that it is much larger than anybody may send.
        let bomb = miniz_oxide::deflate::compress_to_vec_zlib(&vec![b' '; LARGEST + 9], 9);
        let mut numbers: Vec<Value> = MARK.map(Value::from).into();
        numbers.extend([VERSION, bomb.len() as u64, checksum(&bomb)].map(Value::from));
        numbers.extend(bomb.chunks(3).map(|three| Value::from(number(three))));
        assert!(read(Some(&numbers.into())).is_err());
    }
}
