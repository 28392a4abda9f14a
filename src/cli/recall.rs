//! `windowsill recall`: searches the record, or prints one text of it exactly as it came.

use std::borrow::Cow;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use windowsill::config::Config;
use windowsill::plain;
use windowsill::proxy::{Asked, Error, Text, ask_original_running, hit_json, lines};

use crate::{Failure, note, opened, out, out_json, out_original, runtime};

#[derive(Args)]
pub(crate) struct Recall {
    /// A record's id, CONVERSATION:MESSAGE, a conversation (as Markdown), or what to search for. Of an id, the first four letters are enough where one of them is a digit, and six otherwise.
    what: String,
    /// Lines A to B only, counted from 1; of a result that came wrapped in JSON, those of the text inside.
    #[arg(long, value_name = "A..B")]
    range: Option<String>,
    /// Have a model read it and answer this, with the lines that say so; asks the running proxy.
    #[arg(long, value_name = "QUESTION", conflicts_with_all = ["range", "limit"])]
    ask: Option<String>,
    /// Only what this conversation, or one it forked from, recorded.
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Most hits.
    #[arg(long, default_value_t = 20, value_name = "N")]
    limit: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(config: &Config, of: &Recall) -> Result<ExitCode, Failure> {
    if let Some(question) = &of.ask {
        return ask(config, of, question);
    }
    // What cannot be meant is a wrong command line; what is not there is a bad answer.
    let usage = |e: Error| match e.status() {
        400 => match Failure::from(e) {
            Failure::Bad(message) | Failure::Usage(message) => Failure::Usage(message),
        },
        _ => e.into(),
    };
    let record = opened(config)?;
    let found = match record.recall(&of.what, of.conversation.as_deref(), of.limit) {
        Ok(Asked::Text(found)) => found,
        Ok(Asked::Hits(hits)) => {
            let list: Vec<Value> = hits.iter().map(hit_json).collect();
            if of.json {
                out_json(&json!({"hits": list}))?;
            }
            for h in hits.iter().filter(|_| !of.json) {
                let id = h.id.clone().unwrap_or_else(|| format!("{}:{}", h.conversation, h.at));
                let what = h.call.as_deref().map_or_else(|| super::context::who(&h.kind), plain::line);
                let date = h.date.as_deref().map(|date| format!(", {}", plain::line(date))).unwrap_or_default();
                let head = format!("{}  {what}, message {}{date}", plain::line(&id), h.at);
                out(&format!("{head}\n    {}\n", plain::line(&h.snippet)))?;
            }
            if let left @ 1.. = record.unindexed()? {
                note(&format!("{left} conversations of an older windowsill are not searched yet: the server is at it"));
            }
            if hits.is_empty() {
                let within = of.conversation.as_deref().map(|c| format!(" in conversation {c}")).unwrap_or_default();
                return Err(Failure::Bad(format!("nothing in the record{within} matches `{}`", of.what)));
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(e) => return Err(usage(e)),
    };
    let inner = of.range.as_ref().and_then(|_| found.inner());
    let text = match &of.range {
        None => found.text.as_str(),
        Some(range) => lines(inner.as_deref().unwrap_or(&found.text), range).map_err(usage)?,
    };
    if inner.is_some() && !of.json {
        note("these are lines of the text inside its JSON; without --range it is printed exactly as it came");
    }
    if of.json {
        out_json(&json!({"id": found.id, "conversation": found.conversation, "message": found.at, "kind": found.kind,
            "role": if found.id.is_none() && found.at.is_some() { Some(&found.kind) } else { None }, "call": found.call,
            "inside_json": inner.is_some(), "text": text}))?;
    } else {
        out_original(&on_a_terminal(&found, of.range.is_some(), text))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The text as it is printed: into a file or a pipe exactly as it came; on a terminal what a message says, and a line end.
fn on_a_terminal<'a>(found: &'a Text, is_part: bool, text: &'a str) -> Cow<'a, str> {
    if !std::io::stdout().is_terminal() {
        return Cow::Borrowed(text);
    }
    let said = if is_part { Cow::Borrowed(text) } else { found.said() };
    if said.ends_with('\n') { said } else { format!("{said}\n").into() }
}

fn ask(config: &Config, of: &Recall, question: &str) -> Result<ExitCode, Failure> {
    let (address, key) = (config.listen.to_string(), config.api_key.as_ref().map(|k| k.expose().to_owned()));
    let asked = ask_original_running(&address, key.as_deref(), &of.what, of.conversation.as_deref(), question);
    let answer = runtime()?.block_on(asked)?;
    if of.json {
        out_json(&answer)?;
    } else {
        out(&format!("{}\n", answer["text"].as_str().unwrap_or("")))?;
    }
    match answer["answers"].as_array().is_some_and(|answers| !answers.is_empty()) {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(1)),
    }
}
