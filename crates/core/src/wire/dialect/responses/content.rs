//! Contents: of messages, of results, of thoughts. What cannot be said becomes a line; nothing here is refused.

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::super::WireError;
use super::super::super::json::{self as spelling, Fields};
use super::super::spelled::{self, Item, Part, each, given, joined};
use super::tally::Tally;
use super::{PLAIN, lines};

/// Before the text of a result that says of itself that it failed.
const FAILED: &str = "Error: ";

/// The parts of a content: a text, a list, or one part alone.
pub(super) fn parts(content: Option<&str>, tally: &mut Tally) -> Result<Vec<Part>, WireError> {
    let Some(content) = content.filter(|content| *content != "null") else { return Ok(Vec::new()) };
    if let Some(text) = spelling::string(content) {
        return Ok(vec![Part::Text(text)]);
    }
    if let Some(one) = spelled::object(content)? {
        return Ok(vec![part(&Item::Object(one), tally)?]);
    }
    let mut all = Vec::new();
    let is_list = each(content, |_, one| {
        all.push(part(&one, tally)?);
        Ok(())
    })?;
    // A number or the like is its own text.
    Ok(if is_list { all } else { vec![Part::Text(content.to_owned())] })
}

fn part(part: &Item<'_>, tally: &mut Tally) -> Result<Part, WireError> {
    let part = match part {
        Item::Object(part) => part,
        Item::Text(text) => return Ok(Part::Text(text.clone())),
        Item::Other => return Ok(Part::Text(String::new())),
    };
    let kind = part.string("type").unwrap_or_default();
    Ok(match kind.as_str() {
        "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => {
            Part::Text(part.string("text").unwrap_or_default())
        }
        "refusal" => Part::Text(part.string("refusal").unwrap_or_default()),
        "input_image" | "computer_screenshot" | "image_url" => image(part, tally),
        "input_audio" => match part.get("input_audio").filter(|audio| audio.starts_with('{')) {
            Some(audio) => Part::media(&json!({"type": "input_audio", "input_audio": spelled::value(audio)?})),
            None => unread("audio", part, tally),
        },
        "input_file" => {
            tally.line(&kind, part);
            Part::Text(lines::file(part))
        }
        "" if given(part, "stdout").or(given(part, "stderr")).or(given(part, "outcome")).is_some() => {
            Part::Text(of_shell(part))
        }
        "" => Part::Text(
            part.string("text").or_else(|| part.string("content")).unwrap_or_else(|| lines::line("part", part)),
        ),
        _ => {
            tally.line(&kind, part);
            Part::Text(lines::line(&kind, part))
        }
    })
}

fn unread(what: &str, part: &Fields<'_>, tally: &mut Tally) -> Part {
    tally.line(&part.string("type").unwrap_or_default(), part);
    let kept = part.string("file_id");
    Part::Text(lines::media(what, &part.string("filename").unwrap_or_default(), kept.as_deref()))
}

fn image(part: &Fields<'_>, tally: &mut Tally) -> Part {
    let url = given(part, "image_url").and_then(|url| match spelling::string(url) {
        Some(url) => Some(url),
        None => spelled::object(url).ok().flatten()?.string("url"),
    });
    let Some(url) = url else { return unread("image", part, tally) };
    let mut image = Map::new();
    image.insert("url".into(), url.into());
    if let Some(detail) = part.string("detail") {
        image.insert("detail".into(), detail.into());
    }
    Part::media(&json!({"type": "image_url", "image_url": image}))
}

/// What a command printed, and how it ended where it did not end well.
fn of_shell(part: &Fields<'_>) -> String {
    let mut all = Vec::new();
    all.extend(part.string("stdout").filter(|text| !text.is_empty()));
    all.extend(part.string("stderr").filter(|text| !text.is_empty()).map(|text| format!("stderr: {text}")));
    let outcome = given(part, "outcome").and_then(|raw| spelled::value(raw).ok()).unwrap_or_default();
    match (outcome["type"].as_str(), &outcome["exit_code"]) {
        (Some("timeout"), _) => all.push("[it took too long and was stopped]".into()),
        (_, code) if code.as_i64().is_some_and(|code| code != 0) => all.push(format!("[exit code {code}]")),
        _ => {}
    }
    joined(all, "\n")
}

/// The parts of a call's result, with a word before them where it says that it failed.
pub(super) fn result(item: &Fields<'_>, tally: &mut Tally) -> Result<Vec<Part>, WireError> {
    let mut output = given(item, "output");
    let says = |key: &str, word: &str| item.get(key) == Some(word);
    let mut failed = matches!(item.string("status").as_deref(), Some("failed" | "incomplete"))
        || says("is_error", "true")
        || says("success", "false");
    // Older versions of Codex put the text into an object.
    let payload = output.map(spelled::object).transpose()?.flatten();
    if let Some(payload) = payload.as_ref().filter(|payload| payload.get("type").is_none()) {
        failed |= payload.get("success") == Some("false");
        output = payload.get("content").filter(|_| payload.get("stdout").is_none()).or(output);
    }
    let mut all = parts(output, tally)?;
    if failed {
        match all.iter_mut().find_map(|part| if let Part::Text(text) = part { Some(text) } else { None }) {
            Some(text) if text.trim_start().starts_with(FAILED) => {}
            Some(text) => text.insert_str(0, FAILED),
            None => all.insert(0, Part::Text(format!("{FAILED}it did not succeed"))),
        }
    }
    Ok(all)
}

pub(super) fn is_audio(media: &RawValue) -> bool {
    media.get().starts_with(r#"{"type":"input_audio""#)
}

/// The text of parts, with a line for each picture or sound.
pub(super) fn only_text(parts: Vec<Part>) -> String {
    let one = |part| match part {
        Part::Text(text) => text,
        Part::Media(media) => lines::media(if is_audio(&media) { "audio" } else { "image" }, "", None),
    };
    joined(parts.into_iter().map(one).collect(), "\n")
}

/// The text of a reasoning item: the reasoning itself, else its summary, else what [`PLAIN`] marks as ours.
pub(super) fn reasoning(item: &Fields<'_>) -> Result<String, WireError> {
    for key in ["content", "summary"] {
        let raw = given(item, key).unwrap_or("[]");
        let mut all: Vec<String> = spelling::string(raw).filter(|text| !text.is_empty()).into_iter().collect();
        each(raw, |_, part: Item<'_>| {
            let text = match part {
                Item::Object(part) => part.string("text"),
                Item::Text(text) => Some(text),
                Item::Other => None,
            };
            all.extend(text.filter(|text| !text.is_empty()));
            Ok(())
        })?;
        if !all.is_empty() {
            return Ok(joined(all, "\n\n"));
        }
    }
    Ok(plain(item).unwrap_or_default())
}

/// What stands plainly in `encrypted_content`, where we wrote it.
pub(super) fn plain(item: &Fields<'_>) -> Option<String> {
    item.string("encrypted_content")?.strip_prefix(PLAIN).map(str::to_owned)
}

/// The tools in a list of them, by group and name.
pub(super) fn each_tool(list: &Value, group: Option<&str>, one: &mut impl FnMut(&str, Option<&str>, &str)) {
    for tool in list.as_array().into_iter().flatten() {
        let text = |key: &str| tool.get(key).and_then(Value::as_str);
        match (text("type"), text("name")) {
            (Some("namespace"), Some(name)) if group.is_none() => each_tool(&tool["tools"], Some(name), one),
            (Some(kind), name) => one(kind, group, name.unwrap_or_default()),
            _ => {}
        }
    }
}
