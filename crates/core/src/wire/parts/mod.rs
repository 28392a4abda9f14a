//! How a part of a message is said to a server that cannot take it: one decision for all dialects.
//!
//! A history outlives the model that answers it. A picture stays in it when the next model is blind, and a block that a cloud's
//! server wrote stays in it when a local model goes on. So what stands in the history is never refused: what this server cannot
//! take becomes a line that says what it was. The message keeps its own bytes in [`Message::raw`], which is what the record
//! holds and what its digest is made of; only the bytes that are forwarded differ. A server that takes the part gets it whole.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::json::{self, Fields};
use super::openai_chat;
use crate::conversation::{Message, PartKind as Kind, Text};

pub mod blocks;
mod size;

pub use size::{of_base64, size};

/// The kind of part in which a dialect carries a block that chat completions have no word for: `{"type": "block", "block": {…}}`.
/// No server gets it; see [`blocks`].
pub const CARRIED: &str = "block";

/// What a server takes beside text with the model that answers. `None` where that is not known: then it is passed on, and the
/// server says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Takes {
    /// Pictures.
    pub pictures: Option<bool>,
    /// Sounds.
    pub sounds: Option<bool>,
    /// Videos.
    pub videos: Option<bool>,
    /// Files, and parts of any other kind.
    pub others: Option<bool>,
    /// Pictures by their address, which it fetches itself.
    pub links: Option<bool>,
}

impl Takes {
    /// Nothing but text.
    pub const TEXT: Takes = Takes {
        pictures: Some(false),
        sounds: Some(false),
        videos: Some(false),
        others: Some(false),
        links: Some(false),
    };

    /// What both of two take.
    #[must_use]
    pub fn and(self, other: Takes) -> Takes {
        let both = |a: Option<bool>, b: Option<bool>| if a == Some(false) { a } else { b.or(a) };
        Takes {
            pictures: both(self.pictures, other.pictures),
            sounds: both(self.sounds, other.sounds),
            videos: both(self.videos, other.videos),
            others: both(self.others, other.others),
            links: both(self.links, other.links),
        }
    }

    /// Whether it takes parts of `text` alone beside media: whatever else a text stands in is told as one.
    fn is_strict(&self) -> bool {
        self.others == Some(false)
    }
}

fn named(kind: Kind, count: usize) -> String {
    let (one, more) = match kind {
        Kind::Picture => ("picture", "pictures"),
        Kind::Sound => ("sound", "sounds"),
        Kind::Video => ("video", "videos"),
        Kind::Document => ("document", "documents"),
        Kind::Block => ("block of a cloud's server", "blocks of a cloud's server"),
    };
    format!("{count} {}", if count == 1 { one } else { more })
}

/// What the client is told of the parts that stand as lines; `None` where there are none.
pub fn warning<'a>(messages: impl Iterator<Item = &'a Message>) -> Option<String> {
    let mut lines: Vec<Kind> = messages.flat_map(|message| message.lines.iter().copied()).collect();
    lines.sort_unstable();
    let counted: Vec<String> = lines.chunk_by(|a, b| a == b).map(|same| named(same[0], same.len())).collect();
    if counted.is_empty() {
        return None;
    }
    Some(format!(
        "{} said as text, since this model or its server cannot read that; the originals are in the record",
        counted.join(", ")
    ))
}

/// How a part is said.
enum Said {
    /// As it is. `Some` for a text.
    Same(Option<String>),
    /// As it is, spelled in the way that servers know.
    Other(String),
    /// As a text: nothing of it is lost.
    Text(String),
    /// As a text, which lacks something.
    Line(Kind, String),
}

/// Has a message say what a server takes, and lines for the rest. Its digest and its own bytes stay as they are.
pub fn tell(message: &mut Message, takes: &Takes) {
    if !message.mixed {
        return;
    }
    // The bytes are shared, and can be megabytes.
    let bytes = message.bytes().clone();
    let source = String::from_utf8_lossy(&bytes);
    let Some(told) = Fields::read(&source).ok().and_then(|fields| Told::of(fields.get("content")?, takes)) else {
        return;
    };
    let mut whole = told.whole.iter();
    message.media.retain(|_| whole.next() == Some(&true));
    message.lines.extend_from_slice(&told.lines);
    // What it said before makes room for what it says now.
    message.text = Text::default();
    message.repaired = Some(told.within(&source).unwrap_or_else(|_| bytes.clone()));
    message.text = told.text.unwrap_or_default().into();
}

/// The bytes of a message for a server that takes so much; `None` where they are the same.
pub fn bytes(message: &Bytes, takes: &Takes) -> Option<Bytes> {
    let mut read = openai_chat::message(message.clone()).ok()?;
    tell(&mut read, takes);
    read.repaired.filter(|after| after != message)
}

/// A content that is said otherwise than it came.
#[derive(Default)]
struct Told<'a> {
    /// Its parts, as they are spelled now.
    parts: Vec<Cow<'a, str>>,
    /// Its texts, joined by line ends; `None` where there are none.
    text: Option<String>,
    lines: Vec<Kind>,
    /// Of its media in order: whether they still stand there.
    whole: Vec<bool>,
}

impl<'a> Told<'a> {
    /// `None` where nothing is said otherwise: nothing is kept to find that out.
    fn of(content: &'a str, takes: &Takes) -> Option<Told<'a>> {
        let raws: Vec<&RawValue> = serde_json::from_str(content).ok()?;
        if raws.iter().all(|raw| matches!(part(raw.get(), takes).0, Said::Same(_))) {
            return None;
        }
        let mut told = Told::default();
        for raw in raws {
            let (said, is_media) = part(raw.get(), takes);
            if is_media {
                told.whole.push(matches!(said, Said::Same(_) | Said::Other(_)));
            }
            match said {
                Said::Same(text) => {
                    told.parts.push(Cow::Borrowed(raw.get()));
                    text.into_iter().for_each(|text| told.add(text));
                }
                Said::Other(part) => told.parts.push(Cow::Owned(part)),
                Said::Text(text) => told.say(text),
                Said::Line(kind, text) => {
                    told.lines.push(kind);
                    told.say(text);
                }
            }
        }
        Some(told)
    }

    fn say(&mut self, text: String) {
        if !text.is_empty() {
            self.parts.push(Cow::Owned(format!("{{\"type\":\"text\",\"text\":{}}}", json::quote(&text))));
            self.add(text);
        }
    }

    fn add(&mut self, text: String) {
        match &mut self.text {
            None => self.text = Some(text),
            Some(all) => {
                all.push('\n');
                all.push_str(&text);
            }
        }
    }

    /// A message with the content as it is spelled now: texts alone are one string, since some chat templates take no parts.
    fn within(&self, message: &str) -> Result<Bytes, serde_json::Error> {
        if !self.whole.contains(&true) {
            let text = json::quote(self.text.as_deref().unwrap_or_default());
            return json::with_fields(message, &[("content", Some(&text))]);
        }
        let mut pieces = Vec::with_capacity(2 * self.parts.len() + 2);
        for part in &self.parts {
            pieces.extend([if pieces.is_empty() { "[" } else { "," }, part.as_ref()]);
        }
        pieces.push("]");
        json::with_pieces(message, &[("content", Some(&pieces))])
    }
}

/// How a part is said, and whether the conversation counts it among its media.
fn part(raw: &str, takes: &Takes) -> (Said, bool) {
    // Some clients send bare strings among the parts.
    if let Some(text) = json::string(raw) {
        return (if takes.is_strict() { Said::Text(text) } else { Said::Same(Some(text)) }, false);
    }
    let Ok(fields) = Fields::read(raw) else { return (Said::Same(None), false) };
    let kind = fields.string("type").unwrap_or_default();
    let odd = |text: String| if takes.is_strict() { Said::Text(text) } else { Said::Same(Some(text)) };
    match kind.as_str() {
        "text" => (Said::Same(Some(fields.string("text").unwrap_or_default())), false),
        "input_text" | "output_text" => (odd(fields.string("text").unwrap_or_default()), false),
        "refusal" => (odd(fields.string("refusal").unwrap_or_default()), false),
        CARRIED if fields.get("block").is_some() => (carried(&fields).unwrap_or(Said::Text(String::new())), false),
        _ => (media(&kind, &fields, raw, takes), true),
    }
}

fn media(kind: &str, fields: &Fields<'_>, raw: &str, takes: &Takes) -> Said {
    match kind {
        "image_url" | "input_image" | "image" => picture(kind, fields, takes),
        "input_audio" | "audio_url" | "audio" if takes.sounds == Some(false) => {
            let data = fields.get("input_audio").and_then(|inner| Fields::read(inner).ok());
            let data = data.as_ref().and_then(|inner| inner.get("data"));
            let size = size(data.map_or(raw.len(), of_base64));
            Said::Line(Kind::Sound, format!("[sound, {size}: this model hears nothing; in the record]"))
        }
        "input_video" | "video_url" | "video" if takes.videos == Some(false) => {
            let size = size(of_base64(raw));
            Said::Line(Kind::Video, format!("[video, {size}: this model sees no videos; in the record]"))
        }
        "input_audio" | "input_video" => Said::Same(None),
        _ if !takes.is_strict() => Said::Same(None),
        "file" | "input_file" => file(kind, fields),
        _ => match blocks::told(raw) {
            (None, text) => Said::Text(text),
            (Some(kind), text) => Said::Line(kind, text),
        },
    }
}

fn picture(kind: &str, fields: &Fields<'_>, takes: &Takes) -> Said {
    let line = |what: &str, why: &str| Said::Line(Kind::Picture, format!("[image{what}: {why}; in the record]"));
    let Some(url) = address(fields) else {
        // One that is kept at a cloud, by its id there; or one without anything in it.
        let readable = kind == "image_url" && !takes.is_strict();
        return if readable { Said::Same(None) } else { line("", "it is kept elsewhere, and cannot be read here") };
    };
    let is_here = url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    let what = if is_here {
        format!(", {}", size(of_base64(url.split_once(',').map_or("", |(_, data)| data))))
    } else if url.len() <= 200 {
        format!(" {url}")
    } else {
        String::new()
    };
    if takes.pictures == Some(false) {
        return line(&what, "this model reads no pictures");
    }
    if !is_here && takes.links == Some(false) {
        return line(&what, "this server fetches no pictures");
    }
    match kind {
        "image_url" => Said::Same(None),
        "input_image" if !takes.is_strict() => Said::Same(None),
        _ if kind == "image" && !takes.is_strict() && fields.get("source").is_none() => Said::Same(None),
        _ => Said::Other(format!("{{\"type\":\"image_url\",\"image_url\":{{\"url\":{}}}}}", json::quote(&url))),
    }
}

/// Where a picture is: a data URL, or an address. In the words of chat completions, of Responses, and of Anthropic's.
fn address(fields: &Fields<'_>) -> Option<String> {
    if let Some(url) = fields.get("image_url") {
        return json::string(url).or_else(|| Fields::read(url).ok()?.string("url"));
    }
    let source = Fields::read(fields.get("source")?).ok()?;
    match source.string("type").as_deref() {
        Some("url") => source.string("url"),
        Some("base64") => {
            let media_type = source.string("media_type").unwrap_or_else(|| "image/png".into());
            Some(format!("data:{media_type};base64,{}", source.string("data")?))
        }
        _ => None,
    }
}

/// A file for a server that takes none: what is text is told as text.
fn file(kind: &str, fields: &Fields<'_>) -> Said {
    let inner = fields.get("file").filter(|_| kind == "file").and_then(|inner| Fields::read(inner).ok());
    let of = |key: &str| inner.as_ref().unwrap_or(fields).string(key).filter(|text| !text.is_empty());
    let name = of("filename").or_else(|| of("file_url")).or_else(|| of("file_id"));
    let data = of("file_data").unwrap_or_default();
    let (head, payload) = match data.strip_prefix("data:").and_then(|rest| rest.split_once(',')) {
        Some((head, payload)) => (head, payload),
        None => ("", data.as_str()),
    };
    let media_type = head.split(';').next().unwrap_or_default();
    let source = blocks::Source { name: name.as_deref(), media_type, data: payload };
    source.said()
}

/// What a carried block says; `None` where there is none.
fn carried(part: &Fields<'_>) -> Option<Said> {
    Some(match blocks::told(part.get("block")?) {
        (None, text) => Said::Text(text),
        (Some(kind), text) => Said::Line(kind, text),
    })
}

/// The text of a part that no server ever gets as it is; `None` for any other.
pub(super) fn of_carried(kind: &str, part: &Fields<'_>) -> Option<String> {
    Some(blocks::told(part.get("block").filter(|_| kind == CARRIED)?).1)
}

#[cfg(test)]
mod tests;
