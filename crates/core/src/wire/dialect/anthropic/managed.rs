//! `context_management` and `compaction` of a request: what the client asks to be done with its history
//! (platform.claude.com/docs: context editing, compaction; types of the SDK anthropic 2.14).

use serde_json::{Map, Value};

use super::{WireError, wrong};
use crate::conversation::Tokens;
use crate::conversation::managed::{Compact, Edits, Inputs, Trigger, Uses};

/// The lines where the client names none (Anthropic's own).
const CLEAR_AT: Tokens = 100_000;
const COMPACT_AT: Tokens = 150_000;

/// The lowest line of a compaction that Anthropic takes (tokens). Where a window is smaller, our own lines come first.
const LEAST_COMPACT_AT: Tokens = 50_000;

/// Results that stay, and turns whose thoughts stay, where the client does not say how many.
const KEEP_USES: usize = 3;
const KEEP_THINKING: usize = 1;

/// Reads what the client asks to be done with its history. What nobody here knows is told in `warnings`.
///
/// # Errors
/// What has the wrong shape, with the path of the field.
pub(super) fn edits(asked: &Map<String, Value>, warnings: &mut Vec<String>) -> Result<Option<Edits>, WireError> {
    let managed = asked.get("context_management").filter(|managed| !managed.is_null());
    let compaction = asked.get("compaction").filter(|compaction| !compaction.is_null());
    if let Some(compaction) = compaction {
        if managed.is_some() {
            return Err(wrong("compaction", "does not go with `context_management`"));
        }
        return compact_now(compaction).map(Some);
    }
    let Some(managed) = managed else { return Ok(None) };
    let fields = managed.as_object().ok_or_else(|| wrong("context_management", "must be an object"))?;
    let list = match fields.get("edits") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(list)) => list,
        Some(_) => return Err(wrong("context_management.edits", "must be an array of edits")),
    };
    let mut out = Edits::default();
    for (at, edit) in list.iter().enumerate() {
        let place = format!("context_management.edits[{at}]");
        let fields = edit.as_object().ok_or_else(|| wrong(&*place, "must be an object with a `type`"))?;
        one(&place, at, fields, &mut out, warnings)?;
    }
    Ok(Some(out))
}

/// Reads one edit.
fn one(
    place: &str,
    at: usize,
    edit: &Map<String, Value>,
    out: &mut Edits,
    warnings: &mut Vec<String>,
) -> Result<(), WireError> {
    let kind = format!("{place}.type");
    let (twice, known): (bool, &[&str]) = match edit.get("type").and_then(Value::as_str) {
        Some("clear_thinking_20251015") => {
            if at > 0 {
                return Err(wrong(kind, "`clear_thinking_20251015` must be the first of the edits"));
            }
            out.thinking = thinking(place, edit)?;
            (false, &["keep"])
        }
        Some("clear_tool_uses_20250919") => {
            let twice = out.uses.replace(uses(place, edit)?).is_some();
            (twice, &["trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"])
        }
        Some("compact_20260112") => {
            let twice = out.compact.replace(compact(place, edit)?).is_some();
            (twice, &["trigger", "pause_after_compaction", "instructions"])
        }
        _ => {
            let known = "must be `clear_thinking_20251015`, `clear_tool_uses_20250919` or `compact_20260112`";
            return Err(wrong(kind, known));
        }
    };
    if twice {
        return Err(wrong(kind, "stands in two edits; each may be asked for once"));
    }
    let unknown = edit.keys().filter(|key| *key != "type" && !known.contains(&key.as_str()));
    let word = |key: &String| key.chars().filter(|c| c.is_ascii_graphic()).take(64).collect::<String>();
    warnings.extend(unknown.map(|key| format!("`{place}.{}` is not known here", word(key))));
    Ok(())
}

/// How many turns keep their thoughts; `None`: all.
fn thinking(place: &str, edit: &Map<String, Value>) -> Result<Option<usize>, WireError> {
    let place = format!("{place}.keep");
    let Some(keep) = given(edit, "keep") else { return Ok(Some(KEEP_THINKING)) };
    if keep == "all" || keep.get("type").is_some_and(|kind| kind == "all") {
        return Ok(None);
    }
    Ok(Some(count(&place, keep, &["thinking_turns"], 1)?.1))
}

fn uses(place: &str, edit: &Map<String, Value>) -> Result<Uses, WireError> {
    let at = |key: &str| format!("{place}.{key}");
    let trigger = match given(edit, "trigger") {
        None => Trigger::Tokens(CLEAR_AT),
        Some(trigger) => match count(&at("trigger"), trigger, &["input_tokens", "tool_uses"], 0)? {
            ("tool_uses", most) => Trigger::Uses(most),
            (_, line) => Trigger::Tokens(tokens(line)),
        },
    };
    let keep = given(edit, "keep").map(|keep| count(&at("keep"), keep, &["tool_uses"], 0)).transpose()?;
    let least = given(edit, "clear_at_least");
    let least = least.map(|least| count(&at("clear_at_least"), least, &["input_tokens"], 0)).transpose()?;
    let exclude = given(edit, "exclude_tools").map(|names| self::names(&at("exclude_tools"), names)).transpose()?;
    let inputs = match given(edit, "clear_tool_inputs") {
        None | Some(Value::Bool(false)) => Inputs::Stay,
        Some(Value::Bool(true)) => Inputs::Go,
        Some(Value::Array(_)) => Inputs::Of(names(&at("clear_tool_inputs"), &edit["clear_tool_inputs"])?),
        Some(_) => return Err(wrong(at("clear_tool_inputs"), "must be true, false or an array of names of tools")),
    };
    Ok(Uses {
        trigger,
        keep: keep.map_or(KEEP_USES, |(_, keep)| keep),
        at_least: least.map_or(0, |(_, least)| tokens(least)),
        exclude: exclude.unwrap_or_default(),
        inputs,
    })
}

fn compact(place: &str, edit: &Map<String, Value>) -> Result<Compact, WireError> {
    let at = |key: &str| format!("{place}.{key}");
    let line = given(edit, "trigger");
    let line =
        line.map(|line| count(&at("trigger"), line, &["input_tokens"], LEAST_COMPACT_AT as usize)).transpose()?;
    let pause = match given(edit, "pause_after_compaction") {
        None => false,
        Some(Value::Bool(pause)) => *pause,
        Some(_) => return Err(wrong(at("pause_after_compaction"), "must be true or false")),
    };
    let instructions = instructions(&at("instructions"), edit.get("instructions"))?;
    Ok(Compact { at: line.map_or(COMPACT_AT, |(_, line)| tokens(line)), whole: false, pause, instructions })
}

/// `compaction`: all messages are summarized now, and nothing else is answered.
fn compact_now(asked: &Value) -> Result<Edits, WireError> {
    let fields = asked.as_object().ok_or_else(|| wrong("compaction", "must be an object with a `type`"))?;
    if fields.get("type").is_none_or(|kind| kind != "summarize") {
        return Err(wrong("compaction.type", "must be `summarize`"));
    }
    let instructions = instructions("compaction.instructions", fields.get("instructions"))?;
    let compact = Compact { at: 0, whole: true, pause: true, instructions };
    Ok(Edits { compact: Some(compact), ..Edits::default() })
}

/// What a summary is to dwell on; a text that says nothing counts as none.
fn instructions(place: &str, text: Option<&Value>) -> Result<Option<String>, WireError> {
    match text {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Some(_) => Err(wrong(place, "must be a text")),
    }
}

/// A number with its kind, such as `{"type": "tool_uses", "value": 3}`.
fn count<'a>(place: &str, value: &Value, kinds: &[&'a str], least: usize) -> Result<(&'a str, usize), WireError> {
    let kind = value.get("type").and_then(Value::as_str);
    let named: Vec<String> = kinds.iter().map(|kind| format!("`{kind}`")).collect();
    let kind = kinds.iter().find(|known| kind == Some(known));
    let kind = kind.ok_or_else(|| wrong(format!("{place}.type"), &format!("must be {}", named.join(" or "))))?;
    let number = value.get("value").and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
    let number = number.filter(|number| *number >= least);
    let what = || wrong(format!("{place}.value"), &format!("must be a whole number, at least {least}"));
    Ok((kind, number.ok_or_else(what)?))
}

fn names(place: &str, list: &Value) -> Result<Vec<String>, WireError> {
    let all = list.as_array().map(|list| list.iter().map(|name| name.as_str().map(str::to_owned)).collect());
    all.flatten().ok_or_else(|| wrong(place, "must be an array of names of tools"))
}

fn given<'a>(edit: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    edit.get(key).filter(|value| !value.is_null())
}

fn tokens(number: usize) -> Tokens {
    Tokens::try_from(number).unwrap_or(Tokens::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(asked: Value) -> Result<Option<Edits>, String> {
        let mut warnings = Vec::new();
        let read = edits(asked.as_object().unwrap(), &mut warnings);
        assert!(warnings.is_empty(), "{warnings:?}");
        read.map_err(|e| e.param().unwrap_or_default().to_owned())
    }

    fn of(edits: Value) -> Result<Edits, String> {
        read(json!({"context_management": {"edits": edits}})).map(Option::unwrap)
    }

    #[test]
    fn edits_are_read_with_anthropics_own_defaults() {
        assert_eq!(read(json!({})), Ok(None));
        assert_eq!(read(json!({"context_management": null})), Ok(None));
        assert_eq!(read(json!({"context_management": {}})), Ok(Some(Edits::default())));
        assert_eq!(of(json!([])), Ok(Edits::default()));
        let all = of(
            json!([{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]),
        );
        let uses =
            Uses { trigger: Trigger::Tokens(100_000), keep: 3, at_least: 0, exclude: Vec::new(), inputs: Inputs::Stay };
        let compact = Compact { at: 150_000, ..Compact::default() };
        assert_eq!(all, Ok(Edits { thinking: Some(1), uses: Some(uses), compact: Some(compact), stands: None }));
        for keep in [json!("all"), json!({"type": "all"})] {
            assert_eq!(of(json!([{"type": "clear_thinking_20251015", "keep": keep}])).unwrap().thinking, None);
        }
        let told = of(json!([
            {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 9}, "keep": {"type": "tool_uses", "value": 0},
             "clear_at_least": {"type": "input_tokens", "value": 500}, "exclude_tools": ["memory"], "clear_tool_inputs": ["write"]},
            {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50000}, "pause_after_compaction": true, "instructions": " Keep ports. "},
        ]))
        .unwrap();
        let uses = Uses {
            trigger: Trigger::Uses(9),
            keep: 0,
            at_least: 500,
            exclude: vec!["memory".into()],
            inputs: Inputs::Of(vec!["write".into()]),
        };
        assert_eq!(told.uses, Some(uses));
        let compact = Compact { at: 50_000, whole: false, pause: true, instructions: Some("Keep ports.".into()) };
        assert_eq!(told.compact, Some(compact));
    }

    #[test]
    fn a_wrong_shape_is_named() {
        let thinking = json!({"type": "clear_thinking_20251015"});
        let uses = |key: &str, value: Value| json!([{"type": "clear_tool_uses_20250919", key: value}]);
        for (edits, place) in [
            (json!({}), ""),
            (json!([3]), "[0]"),
            (json!([{}]), "[0].type"),
            (json!([{"type": "clear_all"}]), "[0].type"),
            (json!([{"type": "compact_20260112"}, thinking]), "[1].type"),
            (json!([{"type": "compact_20260112"}, {"type": "compact_20260112"}]), "[1].type"),
            (json!([{"type": "clear_thinking_20251015", "keep": 2}]), "[0].keep.type"),
            (
                json!([{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}}]),
                "[0].keep.value",
            ),
            (uses("trigger", json!({"type": "turns", "value": 3})), "[0].trigger.type"),
            (uses("trigger", json!({"type": "input_tokens", "value": -1})), "[0].trigger.value"),
            (uses("trigger", json!({"type": "input_tokens", "value": 1.5})), "[0].trigger.value"),
            (uses("keep", json!({"type": "tool_uses"})), "[0].keep.value"),
            (uses("keep", json!({"type": "input_tokens", "value": 3})), "[0].keep.type"),
            (uses("clear_at_least", json!(5000)), "[0].clear_at_least.type"),
            (uses("exclude_tools", json!("memory")), "[0].exclude_tools"),
            (uses("clear_tool_inputs", json!("all")), "[0].clear_tool_inputs"),
            (
                json!([{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 49999}}]),
                "[0].trigger.value",
            ),
            (
                json!([{"type": "compact_20260112", "trigger": {"type": "tool_uses", "value": 60000}}]),
                "[0].trigger.type",
            ),
            (json!([{"type": "compact_20260112", "pause_after_compaction": 1}]), "[0].pause_after_compaction"),
            (json!([{"type": "compact_20260112", "instructions": 1}]), "[0].instructions"),
        ] {
            assert_eq!(of(edits.clone()).unwrap_err(), format!("context_management.edits{place}"), "{edits}");
        }
        assert_eq!(read(json!({"context_management": "auto"})).unwrap_err(), "context_management");
    }

    #[test]
    fn a_compaction_now_is_read() {
        let now = |asked: Value| read(json!({"compaction": asked})).map(|edits| edits.unwrap().compact.unwrap());
        let whole = Compact { at: 0, whole: true, pause: true, instructions: None };
        assert_eq!(now(json!({"type": "summarize"})), Ok(whole.clone()));
        assert_eq!(now(json!({"type": "summarize", "instructions": " \n"})), Ok(whole.clone()));
        let told = Compact { instructions: Some("Ports.".into()), ..whole };
        assert_eq!(now(json!({"type": "summarize", "instructions": "Ports."})), Ok(told));
        for (asked, place) in [
            (json!("now"), "compaction"),
            (json!({}), "compaction.type"),
            (json!({"type": "truncate"}), "compaction.type"),
        ] {
            assert_eq!(now(asked).unwrap_err(), place);
        }
        let both = json!({"compaction": {"type": "summarize"}, "context_management": {"edits": []}});
        assert_eq!(read(both).unwrap_err(), "compaction");
    }
}
