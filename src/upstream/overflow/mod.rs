//! Is this error a prompt that does not fit? Pure: status and body in, the numbers in it out.
//!
//! Every server says it in its own words. What is *no* overflow is looked for first (a rate limit speaks of too many
//! tokens as well), then codes and fields, then the table of phrases. Only the error's own texts are read, never the rest of
//! the body, which may quote the request.

mod phrases;

use std::borrow::Cow;

use http::StatusCode;
use serde_json::Value;

use super::sse;
use crate::wire::reply;

/// A prompt that does not fit, and what the server said about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Tokens of the prompt.
    pub prompt: Option<u32>,
    /// The prompt may be longer than `prompt`: some servers stop counting once it is too long.
    pub prompt_is_lower_bound: bool,
    /// The window, prompt and reply together (tokens).
    pub window: Option<u32>,
    /// The server's own code or fields say it, and not words alone.
    pub coded: bool,
    /// Slots share one pool, and together they filled it: the prompt may be short.
    pub shared_pool: bool,
}

/// JSON inside JSON inside JSON: how far down an error is looked for.
const DEPTH: usize = 6;
/// An error's text is read this far (bytes); the numbers come early, a quoted request late.
const TEXT: usize = 4096;

/// The overflow that this answer tells of; `None` for any other answer, errors included.
///
/// `body` is JSON, plain text, or server-sent events; with a status below 400 only what is plainly an error counts. Words alone
/// tell it with 400 and 413, which is what servers answer; with any other status it takes a code, or a sentence that has both
/// numbers: TGI says 422, and LM Studio, TabbyAPI and Ollama's MLX runner 500 and 503.
pub fn overflow(status: u16, body: &[u8]) -> Option<Overflow> {
    if matches!(status, 401..=404 | 429) {
        return None;
    }
    found(status, body).judge(status < 400 || matches!(status, 400 | 413))
}

/// The status that an error behind a status of 200 should have had: the one that it names itself, 400 for a prompt that is too
/// long, and else 502. `body` is the error in OpenAI's shape.
pub fn status_behind_200(body: &[u8]) -> StatusCode {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let too_long = || overflow(400, body).filter(|o| !o.shared_pool).map(|_| 400);
    let status = reply::status_of(&value["error"]).or_else(too_long);
    status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::BAD_GATEWAY)
}

/// Whether the words that tell of an overflow may come from the request itself, which servers quote in their errors: it holds
/// the sentence, or what is particular of it, each number with the words before it. Never where the server has a code for it.
pub fn is_echo(status: u16, body: &[u8], request: &[u8]) -> bool {
    let found = found(status, body);
    if found.is_coded() {
        return false;
    }
    let texts = found.texts.iter().map(|text| start(text));
    let evidence: Vec<String> = texts.filter_map(|t| phrases::evidence(&t).map(words)).chain(found.quoted()).collect();
    if evidence.is_empty() {
        return false;
    }
    let asked = words(spoken(request));
    let holds = |part: &str| !part.is_empty() && format!(" {asked} ").contains(&format!(" {part} "));
    evidence.iter().any(|e| holds(e) || particular(e).iter().any(|part| holds(part)))
}

/// All texts of a request, whatever they are spelled like.
fn spoken(request: &[u8]) -> String {
    fn walk(value: &Value, out: &mut String) {
        match value {
            Value::String(text) => {
                out.push(' ');
                out.push_str(text);
            }
            Value::Array(all) => all.iter().for_each(|one| walk(one, out)),
            Value::Object(fields) => fields.iter().for_each(|(key, one)| {
                out.push(' ');
                out.push_str(key);
                walk(one, out);
            }),
            Value::Number(number) => {
                out.push(' ');
                out.push_str(&number.to_string());
            }
            Value::Null | Value::Bool(_) => {}
        }
    }
    let text = String::from_utf8_lossy(request);
    let mut out = String::new();
    match serde_json::from_str::<Value>(&text) {
        Ok(value) => walk(&value, &mut out),
        Err(_) => out.push_str(&text),
    }
    out
}

/// The words of a text in lower case, one blank between them.
fn words(text: impl AsRef<str>) -> String {
    let text = text.as_ref().to_lowercase();
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// Each number of a sentence with the two words before it.
fn particular(sentence: &str) -> Vec<String> {
    let words: Vec<&str> = sentence.split(' ').collect();
    let numbers = words.iter().enumerate().filter(|(_, word)| word.bytes().all(|b| b.is_ascii_digit()));
    numbers.filter(|(at, _)| *at >= 2).map(|(at, _)| words[at - 2..=at].join(" ")).collect()
}

/// What an answer says of an error.
fn found(status: u16, body: &[u8]) -> Found {
    let mut found = Found::default();
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => found.read_top(&value, status),
        Err(_) if looks_like_events(body) => found.read_events(body),
        Err(_) if status >= 400 => {
            found.texts.push(String::from_utf8_lossy(&body[..body.len().min(TEXT)]).into_owned())
        }
        Err(_) => {}
    }
    found
}

fn looks_like_events(body: &[u8]) -> bool {
    let start = body.trim_ascii_start();
    ["data:", "event:", ":", "id:"].iter().any(|field| start.starts_with(field.as_bytes()))
}

/// What an answer says of an error: its texts, codes and numbers, wherever they stand.
#[derive(Debug, Default)]
struct Found {
    texts: Vec<String>,
    codes: Vec<String>,
    prompt: Option<u32>,
    window: Option<u32>,
    /// Errors that stood inside a text as JSON: Ollama hands llama-server's on so, and a request may be quoted so.
    inner: Vec<String>,
    /// A code or a field outside of these tells of it.
    outer: bool,
    /// The status that such an error names itself.
    named: Option<u64>,
    /// How deep inside of texts the reading is.
    within: usize,
}

impl Found {
    fn read_top(&mut self, value: &Value, status: u16) {
        let stopped = [&value["stop_reason"], &value["delta"]["stop_reason"], &value["choices"][0]["finish_reason"]];
        self.codes.extend(stopped.into_iter().filter_map(Value::as_str).map(str::to_owned));
        // OpenAI's Responses API: `response.failed`.
        let failed = &value["response"]["error"];
        let is_error = status >= 400 || value["object"] == "error" || value["type"] == "error";
        if is_error || !value["error"].is_null() {
            self.read(value, DEPTH);
        } else if !failed.is_null() {
            self.read(failed, DEPTH);
        }
    }

    fn read_events(&mut self, body: &[u8]) {
        let mut parser = sse::Parser::default();
        let mut blocks = parser.push(body).unwrap_or_default();
        blocks.extend(parser.finish());
        for block in blocks {
            let Some(data) = &block.data else { continue };
            // An event that calls itself an error is one, whatever its shape.
            let status = if block.event.as_deref() == Some(b"error") { 500 } else { 200 };
            match serde_json::from_slice::<Value>(data) {
                Ok(value) => self.read_top(&value, status),
                Err(_) if status == 500 => self.texts.push(String::from_utf8_lossy(data).into_owned()),
                Err(_) => {}
            }
        }
    }

    /// One level of an error, and those inside it. Only the fields that errors are made of are looked into.
    fn read(&mut self, value: &Value, depth: usize) {
        if depth == 0 {
            return;
        }
        match value {
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                Ok(inner) if inner.is_object() => {
                    self.inner.push(text.clone());
                    self.within += 1;
                    self.read(&inner, depth - 1);
                    self.within -= 1;
                }
                _ => self.texts.push(text.clone()),
            },
            Value::Array(all) => all.iter().take(16).for_each(|one| self.read(one, depth - 1)),
            Value::Object(fields) => {
                for name in ["error", "message", "detail", "msg", "error_message", "errors"] {
                    fields.get(name).into_iter().for_each(|inner| self.read(inner, depth - 1));
                }
                let codes =
                    ["code", "type", "status", "error_type"].into_iter().filter_map(|name| fields.get(name)?.as_str());
                let codes: Vec<String> = codes.map(str::to_owned).collect();
                let number = |name: &str| fields.get(name).and_then(super::tokens);
                let tells = codes.iter().any(|code| phrases::is_overflow_code(code)) || number("n_ctx").is_some();
                self.outer |= self.within == 0 && tells;
                if self.within > 0 {
                    self.named = self.named.or_else(|| fields.get("code").and_then(Value::as_u64));
                }
                self.codes.extend(codes);
                self.prompt = self.prompt.or_else(|| number("n_prompt_tokens"));
                self.window = self.window.or_else(|| number("n_ctx"));
            }
            _ => {}
        }
    }

    /// Whether the server's own code or fields tell of it.
    fn is_coded(&self) -> bool {
        self.outer
    }

    /// What may be a quotation where only JSON inside a text has a code.
    fn quoted(&self) -> Vec<String> {
        let coded = self.codes.iter().any(|code| phrases::is_overflow_code(code)) || self.window.is_some();
        if coded && !self.outer { self.inner.iter().map(words).collect() } else { Vec::new() }
    }

    /// `words_do`: words alone tell it.
    fn judge(&self, words_do: bool) -> Option<Overflow> {
        let texts: Vec<Cow<'_, str>> = self.texts.iter().map(|text| start(text)).collect();
        if self.codes.iter().any(|code| phrases::is_other_code(code))
            || texts.iter().any(|text| phrases::is_other(text))
        {
            return None;
        }
        let words_do = words_do || matches!(self.named, Some(400 | 413));
        let by_code = self.codes.iter().any(|code| phrases::is_overflow_code(code));
        let coded = by_code || self.prompt.is_some() && self.window.is_some();
        if !coded && self.window.is_none() && texts.iter().any(|text| phrases::is_shared_pool(text)) {
            return Some(Overflow { shared_pool: true, ..Overflow::default() });
        }
        let by_text = texts.iter().filter_map(|text| phrases::find(text)).reduce(Overflow::or);
        let by_text = by_text.filter(|found| {
            words_do
                || coded
                || found.prompt.is_some() && found.window.is_some()
                || texts.iter().any(|t| phrases::is_shape(t))
        });
        let mut overflow = by_text.or(by_code.then(Overflow::default))?;
        if let Some(prompt) = self.prompt {
            (overflow.prompt, overflow.prompt_is_lower_bound) = (Some(prompt), false);
        }
        overflow.window = self.window.or(overflow.window);
        overflow.coded = coded;
        Some(overflow)
    }
}

impl Overflow {
    /// This, and from the other what this lacks.
    fn or(self, other: Overflow) -> Overflow {
        let (prompt, prompt_is_lower_bound) = match self.prompt {
            Some(_) => (self.prompt, self.prompt_is_lower_bound),
            None => (other.prompt, other.prompt_is_lower_bound),
        };
        Overflow { prompt, prompt_is_lower_bound, window: self.window.or(other.window), ..self }
    }
}

fn start(text: &str) -> Cow<'_, str> {
    let mut end = text.len().min(TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // Typographic apostrophes and the like; case is left to the patterns.
    if text[..end].contains('\u{2019}') { text[..end].replace('\u{2019}', "'").into() } else { text[..end].into() }
}

#[cfg(test)]
mod tests;
