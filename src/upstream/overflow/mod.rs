//! Is this error a prompt that does not fit? Pure: status and body in, the numbers in it out.
//!
//! Every server says it in its own words. What is *no* overflow is looked for first (a rate limit speaks of too many
//! tokens as well), then codes and fields, then the table of phrases. Only the error's own texts are read, never the rest of
//! the body, which may quote the request.

mod phrases;

use std::borrow::Cow;

use serde_json::Value;

use super::sse;

/// A prompt that does not fit, and what the server said about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Tokens of the prompt.
    pub prompt: Option<u32>,
    /// The prompt may be longer than `prompt`: some servers stop counting once it is too long.
    pub prompt_is_lower_bound: bool,
    /// The window, prompt and reply together (tokens).
    pub window: Option<u32>,
}

/// JSON inside JSON inside JSON: how far down an error is looked for.
const DEPTH: usize = 6;
/// An error's text is read this far (bytes); the numbers come early, a quoted request late.
const TEXT: usize = 4096;

/// The overflow that this answer tells of; `None` for any other answer, errors included.
///
/// `body` is JSON, plain text, or server-sent events; with a status below 400 only what is plainly an error counts.
pub fn overflow(status: u16, body: &[u8]) -> Option<Overflow> {
    if matches!(status, 401..=404 | 429) {
        return None;
    }
    let mut found = Found::default();
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => found.read_top(&value, status),
        Err(_) if looks_like_events(body) => found.read_events(body),
        Err(_) if status >= 400 => {
            found.texts.push(String::from_utf8_lossy(&body[..body.len().min(TEXT)]).into_owned())
        }
        Err(_) => {}
    }
    found.judge()
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
                Ok(inner) if inner.is_object() => self.read(&inner, depth - 1),
                _ => self.texts.push(text.clone()),
            },
            Value::Array(all) => all.iter().take(16).for_each(|one| self.read(one, depth - 1)),
            Value::Object(fields) => {
                for name in ["error", "message", "detail", "msg", "error_message", "errors"] {
                    fields.get(name).into_iter().for_each(|inner| self.read(inner, depth - 1));
                }
                let codes =
                    ["code", "type", "status", "error_type"].into_iter().filter_map(|name| fields.get(name)?.as_str());
                self.codes.extend(codes.map(str::to_owned));
                let number = |name: &str| fields.get(name).and_then(super::tokens);
                self.prompt = self.prompt.or_else(|| number("n_prompt_tokens"));
                self.window = self.window.or_else(|| number("n_ctx"));
            }
            _ => {}
        }
    }

    fn judge(&self) -> Option<Overflow> {
        let texts: Vec<Cow<'_, str>> = self.texts.iter().map(|text| start(text)).collect();
        if self.codes.iter().any(|code| phrases::is_other_code(code))
            || texts.iter().any(|text| phrases::is_other(text))
        {
            return None;
        }
        let by_text = texts.iter().filter_map(|text| phrases::find(text)).reduce(Overflow::or);
        let by_code = self.codes.iter().any(|code| phrases::is_overflow_code(code)).then(Overflow::default);
        let mut overflow = by_text.or(by_code)?;
        if let Some(prompt) = self.prompt {
            (overflow.prompt, overflow.prompt_is_lower_bound) = (Some(prompt), false);
        }
        overflow.window = self.window.or(overflow.window);
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
        Overflow { prompt, prompt_is_lower_bound, window: self.window.or(other.window) }
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
