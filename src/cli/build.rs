//! `windowsill build`: a new conversation from chosen turns of an old one, as messages for a client.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use windowsill::config::Config;
use windowsill::plain;
use windowsill::proxy::Record;

use super::paint::tokens;
use crate::{Failure, note, out, out_json};

#[derive(Args)]
pub(crate) struct Build {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// Turns, counted from 1, such as 3-7,12. Without turns and briefs: lists them.
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
    let record = Record::open(&config.data_dir)?;
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
            let wrong = || Failure::Usage(format!("--turns {text}: write numbers and ranges, such as 3-7,12"));
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
fn numbers(text: &str) -> Option<Vec<usize>> {
    let mut out = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (usize, usize) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if from > to || to - from > 1_000_000 {
            return None;
        }
        out.extend(from..=to);
    }
    Some(out)
}

fn listed(segments: &Value) -> String {
    let mut page = format!("{:>6}{:>12}{:>10}  {}\n", "TURN", "MESSAGES", "TOKENS", "BEGINS WITH");
    for turn in segments["turns"].as_array().into_iter().flatten() {
        let range = format!("{}-{}", turn["from"], turn["to"].as_u64().unwrap_or(1).saturating_sub(1));
        let words: String = plain::line(turn["words"].as_str().unwrap_or("")).chars().take(70).collect();
        let folded = if turn["folded"] == true { " (in brief 1)" } else { "" };
        page += &format!("{:>6}{range:>12}{:>10}  {words}{folded}\n", turn["turn"], tokens(&turn["tokens"]));
    }
    for brief in segments["briefs"].as_array().into_iter().flatten() {
        page += &format!(
            "brief {}: messages {}-{}, {} tokens\n",
            brief["brief"],
            brief["from"],
            brief["to"],
            tokens(&brief["tokens"])
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_turns() {
        assert_eq!(numbers("3-5,12, 1"), Some(vec![3, 4, 5, 12, 1]));
        for wrong in ["", "5-3", "a", "1,,2", "-3", "1-99999999999", "1-2-3"] {
            assert_eq!(numbers(wrong), None, "{wrong}");
        }
    }
}
