//! `windowsill build`: a new conversation from chosen turns and steps of an old one, as messages for a client.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use windowsill::config::Config;
use windowsill::plain;
use windowsill::proxy::Chosen;

use super::context::cut;
use super::paint::tokens;
use crate::{Failure, note, opened, out, out_json};

#[derive(Args)]
pub(crate) struct Build {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// Turns (what a person asked, with all that follows), counted from 1, and steps of them (an assistant message with its
    /// calls and results): 3-7,12,14.2; step 0 is what the person asked. Without turns and briefs: lists them.
    #[arg(long, value_name = "N-M,…")]
    turns: Option<String>,
    /// A brief, by its number (may be given several times).
    #[arg(long, value_name = "N")]
    brief: Vec<usize>,
    /// Print the whole answer as JSON, not the messages alone.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(config: &Config, of: &Build) -> Result<ExitCode, Failure> {
    let record = opened(config)?;
    if of.turns.is_none() && of.brief.is_empty() {
        let segments = record.segments(&of.id)?;
        if of.json {
            out_json(&segments)?
        } else {
            out(&listed(&segments))?
        }
        return Ok(ExitCode::SUCCESS);
    }
    let turns = match &of.turns {
        None => Vec::new(),
        Some(text) => {
            let wrong = || Failure::Usage(format!("--turns {text}: write numbers and ranges, such as 3-7,12,14.2"));
            numbers(text).ok_or_else(wrong)?
        }
    };
    let built = record.build(&of.id, &turns, &of.brief)?;
    for text in built["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        note(text);
    }
    if of.json {
        out_json(&built)?
    } else {
        out_json(&serde_json::json!({"messages": built["messages"]}))?
    }
    Ok(ExitCode::SUCCESS)
}

/// Numbers and ranges between commas; `None` for anything else, and for more than anybody means.
fn numbers(text: &str) -> Option<Vec<Chosen>> {
    let mut out = Vec::new();
    for part in text.split(',') {
        let Some((from, to)) = part.split_once('-') else {
            out.push(part.parse().ok()?);
            continue;
        };
        let (from, to): (usize, usize) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if from > to || to - from > 1_000_000 {
            return None;
        }
        out.extend((from..=to).map(|turn| Chosen { turn, step: None }));
    }
    Some(out)
}

fn listed(segments: &Value) -> String {
    let mut page = format!("{:>8}{:>12}{:>10}  {}\n", "TURN", "MESSAGES", "~TOKENS", "BEGINS WITH");
    for turn in segments["turns"].as_array().into_iter().flatten() {
        let folded = if turn["partly_folded"] == true { " (partly in brief 1)" } else { in_brief(turn) };
        page += &row(&turn["turn"].to_string(), turn, folded);
        let steps = turn["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
        for step in steps.iter().filter(|_| steps.len() > 2) {
            page += &row(step["step"].as_str().unwrap_or(""), step, in_brief(step));
        }
    }
    for brief in segments["briefs"].as_array().into_iter().flatten() {
        page += &format!(
            "brief {}: messages {}-{}, about {} tokens\n",
            brief["brief"],
            brief["from"],
            brief["to"].as_u64().unwrap_or(1).saturating_sub(1),
            tokens(&brief["tokens"])
        );
    }
    page
}

fn in_brief(part: &Value) -> &'static str {
    if part["folded"] == true { " (in brief 1)" } else { "" }
}

/// A turn or a step in one line.
fn row(name: &str, part: &Value, more: &str) -> String {
    let range = format!("{}-{}", part["from"], part["to"].as_u64().unwrap_or(1).saturating_sub(1));
    let words = cut(&plain::line(part["words"].as_str().unwrap_or("")), Some(70));
    format!("{name:>8}{range:>12}{:>10}  {words}{more}\n", tokens(&part["tokens"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_turns() {
        let told = |text: &str| Some(numbers(text)?.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        assert_eq!(told("3-5,12, 1").as_deref(), Some("3 4 5 12 1"));
        assert_eq!(told("4.2, 5.0,6").as_deref(), Some("4.2 5.0 6"));
        for wrong in ["", "5-3", "a", "1,,2", "-3", "1-99999999999", "1-2-3", "4.1-4.3", "4.x"] {
            assert_eq!(numbers(wrong), None, "{wrong}");
        }
    }
}
