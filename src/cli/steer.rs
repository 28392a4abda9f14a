//! Steering from the terminal, as the page does it: `undo`, `restore`, `clear`, `evict`, `brief`, `pause`, `unpause`. The running proxy does
//! it. And `status`, in one line, for a prompt or a status bar.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use windowsill::config::Config;
use windowsill::plain;
use windowsill::proxy::Exported;

use super::pin::{How, ask, told};
use crate::{Failure, no_conversations, opened, out, out_json};

#[derive(Args)]
pub(crate) struct Undo {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// Only say what it would cost.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct OfMessage {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// The message's number, from 0, as `windowsill context ID` and the page say it.
    message: usize,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
pub(crate) struct Brief {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// A file with the new text of the brief; - for standard input. Without it: prints the brief.
    file: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
pub(crate) struct Paused {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Titled {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// What it is called from now on. Without it: what was found for it.
    title: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Starred {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// Take the star away.
    #[arg(long)]
    off: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Deleted {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// Do it: nothing brings it back.
    #[arg(long)]
    yes: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Export {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// Where it is written. Without it: to standard output.
    file: Option<PathBuf>,
    /// A message a line as JSON, as the client sent it, instead of Markdown.
    #[arg(long)]
    jsonl: bool,
}

#[derive(Args)]
pub(crate) struct Status {
    /// A conversation's id, or the beginning of one. Without it: the one that was active last.
    id: Option<String>,
    /// One line without a title, such as "74 % · fold in 5".
    #[arg(long)]
    short: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "short")]
    json: bool,
}

/// The view before the last change that stands.
pub(crate) fn undo(config: &Config, of: &Undo) -> Result<ExitCode, Failure> {
    let answer = ask(config, &of.id, Method::POST, "undo", Some(&json!({"dry_run": of.dry_run})))?;
    told(&answer, &How { next_break: false, dry_run: of.dry_run, json: of.json }, "the last change is undone")
}

/// One message in another shape: `what` is `restore`, `clear` or `evict`.
pub(crate) fn message(config: &Config, of: &OfMessage, what: &str) -> Result<ExitCode, Failure> {
    let mut body = of.how.body();
    body["message"] = json!(of.message);
    let became = match what {
        "restore" => "stands in full again",
        "clear" => "is cleared: one line stands for it",
        _ => "became a preview",
    };
    let done = format!("message {} {became}", of.message);
    told(&ask(config, &of.id, Method::POST, what, Some(&body))?, &of.how, &done)
}

/// Prints the brief, or has it say something else.
pub(crate) fn brief(config: &Config, of: &Brief) -> Result<ExitCode, Failure> {
    let Some(file) = &of.file else {
        let view = ask(config, &of.id, Method::GET, "view", None)?;
        let fold = view["edits"].as_array().into_iter().flatten().find(|edit| edit["rule"] == "fold");
        let brief = fold.and_then(|fold| fold["brief"].as_str());
        let Some(brief) = brief else {
            return Err(Failure::Bad(format!(
                "nothing of {0} is folded, so it has no brief\n  hint: `windowsill compact {0}` folds it now",
                of.id
            )));
        };
        if of.how.json {
            out_json(&json!({"brief": brief}))?
        } else {
            out(&format!("{brief}\n"))?
        }
        return Ok(ExitCode::SUCCESS);
    };
    let mut text = String::new();
    if file.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text)?;
    } else {
        text = std::fs::read_to_string(file)
            .map_err(|e| Failure::Usage(format!("failed to read {}: {e}", file.display())))?;
    }
    let mut body = of.how.body();
    body["text"] = json!(text.trim());
    told(&ask(config, &of.id, Method::POST, "brief", Some(&body))?, &of.how, "the brief was changed")
}

/// Says in a line what was done, or what the proxy answered.
fn done(answer: &Value, json: bool, line: &str) -> Result<ExitCode, Failure> {
    if json {
        out_json(answer)?;
    } else {
        out(&format!("{line}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Stops the rewriting of a conversation, or takes it up again.
pub(crate) fn rewriting(config: &Config, of: &Paused, on: bool) -> Result<ExitCode, Failure> {
    let answer = ask(config, &of.id, Method::POST, "rewriting", Some(&json!({"on": on})))?;
    let said = if on { "the rules go on" } else { "nothing is rewritten; what no longer fits is refused" };
    done(&answer, of.json, &format!("{}: {said}", of.id))
}

/// Calls a conversation what a person calls it.
pub(crate) fn rename(config: &Config, of: &Titled) -> Result<ExitCode, Failure> {
    let body = json!({"title": of.title.as_deref().unwrap_or("")});
    let answer = ask(config, &of.id, Method::PUT, "title", Some(&body))?;
    done(&answer, of.json, &format!("{}: {}", of.id, plain::line(answer["title"].as_str().unwrap_or(""))))
}

/// Gives a conversation a star, or takes it away.
pub(crate) fn star(config: &Config, of: &Starred) -> Result<ExitCode, Failure> {
    let answer = ask(config, &of.id, Method::PUT, "star", Some(&json!({"on": !of.off})))?;
    let said = if of.off { "has no star any more" } else { "has a star: retention leaves it alone" };
    done(&answer, of.json, &format!("{} {said}", of.id))
}

/// Deletes a conversation.
pub(crate) fn delete(config: &Config, of: &Deleted) -> Result<ExitCode, Failure> {
    if !of.yes {
        return Err(Failure::Usage(format!("this deletes {} with its originals; add --yes if that is meant", of.id)));
    }
    let gone = ask(config, &of.id, Method::DELETE, "", Some(&json!({})))?;
    let (messages, originals) = (&gone["messages"], &gone["originals"]);
    let left = match gone["left"].as_u64() {
        None | Some(0) => String::new(),
        Some(left) => format!("; {left} messages stay, since other conversations have them, too"),
    };
    done(&gone, of.json, &format!("{}: deleted {messages} messages and {originals} originals{left}", of.id))
}

/// Writes a conversation down.
pub(crate) fn export(config: &Config, of: &Export) -> Result<ExitCode, Failure> {
    let how = if of.jsonl { Exported::Lines } else { Exported::Markdown };
    let text = opened(config)?.export(&of.id, how)?;
    match &of.file {
        Some(file) => std::fs::write(file, text)
            .map_err(|e| Failure::Usage(format!("failed to write {}: {e}", file.display())))?,
        None => out(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// How full a window is, in one line. A status bar calls this often: it reads the record alone, and asks no server.
pub(crate) fn status(config: &Config, of: &Status) -> Result<ExitCode, Failure> {
    let record = opened(config)?;
    let id = match &of.id {
        Some(id) => id.clone(),
        None => {
            let all = record.context(None)?;
            let rows = all["conversations"].as_array().map_or(&[][..], Vec::as_slice);
            let own = rows.iter().filter(|row| row["helper"] != true);
            let newest = own.max_by_key(|row| row["updated_ms"].as_i64());
            let Some(newest) = newest.and_then(|row| row["id"].as_str()) else {
                return Err(no_conversations(config));
            };
            newest.to_owned()
        }
    };
    let seen = record.insight(&id, config)?;
    if of.json {
        let state = &seen["state"];
        let keys = ["pressure", "window", "prompt_tokens", "prompt_tokens_source"].map(|key| (key, &state[key]));
        let own = ["id", "title", "severity", "fold_in_requests"].map(|key| (key, &seen[key]));
        let told = own.into_iter().chain(keys).map(|(key, value)| (key.to_owned(), value.clone()));
        out_json(&Value::Object(told.collect()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let short = line(&seen);
    let title = seen["title"].as_str().filter(|title| !title.is_empty()).unwrap_or(&id);
    out(&if of.short { format!("{short}\n") } else { format!("{short} · {title}\n") })?;
    Ok(ExitCode::SUCCESS)
}

/// How full the window is, and how soon it is rewritten.
fn line(seen: &Value) -> String {
    let full = seen["state"]["pressure"].as_f64().filter(|_| seen["state"]["window"].is_u64());
    let full =
        full.map_or_else(|| "window unknown".to_owned(), |pressure| format!("{:.0} %", (pressure * 100.0).round()));
    match seen["fold_in_requests"].as_u64() {
        Some(n) => format!("{full} · fold in {n}"),
        None => full,
    }
}
