//! `windowsill pin` and `unpin`: what the model should read through every fold. The running proxy does it.

use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use windowsill::config::Config;
use windowsill::plain;
use windowsill::proxy::steer_running;

use super::paint::tokens;
use crate::{Failure, out, out_json, runtime};

#[derive(Args)]
pub(crate) struct Pin {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// What the model should read through every fold. Without it: lists what is pinned.
    text: Option<String>,
    /// Pin a message of the history instead of a text, by its number from 0.
    #[arg(long, value_name = "N", conflicts_with = "text")]
    message: Option<usize>,
    /// Have new conversations of this client and project begin with the text, too (`rules = true`).
    #[arg(long, requires = "text", conflicts_with = "dry_run")]
    always: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
pub(crate) struct Unpin {
    /// A conversation's id, or the beginning of one.
    id: String,
    /// The pin's number, as `windowsill pin ID` lists it.
    pin: u64,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
pub(crate) struct How {
    /// Wait until the prompt is rewritten anyway: nothing is evaluated again for it.
    #[arg(long)]
    pub(crate) next_break: bool,
    /// Only say what it would cost.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl How {
    pub(crate) fn body(&self) -> Value {
        json!({"when": if self.next_break { "next_break" } else { "now" }, "dry_run": self.dry_run})
    }
}

pub(crate) fn pin(config: &Config, of: &Pin) -> Result<ExitCode, Failure> {
    let mut body = of.how.body();
    if of.always {
        body["always"] = json!(true);
    }
    match (&of.text, of.message) {
        (Some(text), _) => body["text"] = json!(text),
        (None, Some(at)) => body["message"] = json!(at),
        (None, None) => {
            let pins = ask(config, &of.id, Method::GET, "pins", None)?;
            if of.how.json {
                out_json(&pins)?
            } else {
                out(&listed(&pins))?
            }
            return Ok(ExitCode::SUCCESS);
        }
    }
    let answer = ask(config, &of.id, Method::POST, "pins", Some(&body))?;
    told(&answer, &of.how, "pinned")?;
    // A number is more likely meant as a message's than as a text.
    if let Some(text) = of.text.as_deref().filter(|text| !of.how.json && text.trim().parse::<usize>().is_ok()) {
        let (id, n) = (plain::line(&of.id), text.trim());
        out(&format!("this pins the text \"{n}\"; `windowsill pin {id} --message {n}` pins message {n}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn unpin(config: &Config, of: &Unpin) -> Result<ExitCode, Failure> {
    let answer = ask(config, &of.id, Method::DELETE, &format!("pins/{}", of.pin), Some(&of.how.body()))?;
    told(&answer, &of.how, "unpinned")
}

pub(crate) fn ask(
    config: &Config,
    id: &str,
    method: Method,
    what: &str,
    body: Option<&Value>,
) -> Result<Value, Failure> {
    let key = config.api_key.as_ref().map(|k| k.expose().to_owned());
    let address = config.listen.to_string();
    let asked = async {
        let ask = |method, of, body| steer_running(&address, key.as_deref(), method, of, body);
        if method == Method::GET {
            return ask(method, (id, what), body).await;
        }
        // What changes something takes whole ids alone; what only looks tells which one the beginning of it means.
        let whole = match ask(Method::GET, (id, ""), None).await {
            Ok(found) => found["id"].as_str().filter(|whole| whole.starts_with(id)).map(str::to_owned),
            Err(e) if e.status() == 404 => None,
            Err(e) => return Err(e),
        };
        ask(method, (whole.as_deref().unwrap_or(id), what), body).await
    };
    Ok(runtime()?.block_on(asked)?)
}

/// What is said of a fold once it is done.
pub(crate) const FOLDED: &str = "folded";

/// Says what was done, or what it would cost. `done`: what it is called once it is done.
pub(super) fn told(answer: &Value, how: &How, done: &str) -> Result<ExitCode, Failure> {
    if how.json {
        out_json(answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    out(&said(answer, how, done))?;
    Ok(ExitCode::SUCCESS)
}

/// What [`told`] prints.
pub(crate) fn said(answer: &Value, how: &How, done: &str) -> String {
    let id = plain::line(answer["conversation"].as_str().unwrap_or(""));
    let about = if answer["counted"] == false { "about " } else { "" };
    // The server may have lost meanwhile what it had.
    let unsure = about.is_empty() && answer["cache"] == "unsure";
    let again = if unsure { "about " } else { about };
    let size = |key: &str, about: &str| format!("{about}{} tokens", tokens(&answer[key]));
    let taken = answer["takes_back"].as_str().map(plain::line);
    let mut page = match (answer["pin"].as_u64(), how.dry_run) {
        (_, true) => format!("{id}: nothing was changed, this is the price\n"),
        (Some(n), false) => format!("{id}: {done}, as pin {n}\n"),
        _ if how.next_break => {
            format!("{id}: it waits for the next {}\n", if done == FOLDED { "fold" } else { "rewrite" })
        }
        _ => format!("{id}: {done}\n"),
    };
    if let Some(what) = taken {
        page += &format!("{} {what}\n", if how.dry_run { "it would take back" } else { "taken back:" });
    }
    if let Some(n) = answer["rule"].as_i64() {
        page += &format!("rule {n}: new conversations of this project begin with it\n");
    }
    if how.next_break {
        return page + "it costs nothing of its own\n";
    }
    let (is, reads) = if how.dry_run { ("would be", "would read") } else { ("is", "reads") };
    page += &format!("the prompt {is} {}, after {}\n", size("after", about), size("before", about));
    page += &format!("the server {reads} {} again with the next request", size("evaluated_again", again));
    if let Some(seconds) = answer["seconds"].as_f64().filter(|_| answer["evaluated_again"].as_u64() > Some(0)) {
        page += &format!(", in about {seconds:.1} s");
    }
    page += "\n";
    if let Some(note) = answer["note"].as_str() {
        page += &format!("{}\n", plain::line(note));
    }
    page
}

fn listed(pins: &Value) -> String {
    let list = pins["pins"].as_array().map_or(&[][..], Vec::as_slice);
    if list.is_empty() {
        return "nothing is pinned\n".to_owned();
    }
    let mut page = format!("{:>4}{:>8}  {:<10}{:<9}{}\n", "PIN", "~TOKENS", "STANDS IN", "MESSAGE", "TEXT");
    for pin in list {
        let number = pin["pin"].as_u64().map_or("-".to_owned(), |n| n.to_string());
        let at = pin["message"].as_u64().map_or("-".to_owned(), |n| n.to_string());
        let text: String = plain::line(pin["text"].as_str().unwrap_or("")).chars().take(80).collect();
        let stands = pin["stands"].as_str().unwrap_or("-");
        page += &format!("{number:>4}{:>8}  {stands:<10}{at:<9}{text}\n", tokens(&pin["tokens"]));
    }
    page + &format!("about {} of at most {} tokens\n", tokens(&pins["tokens"]), tokens(&pins["most"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_not_told_as_a_price() {
        let answer = json!({"conversation": "c1", "before": 3_562, "after": 1_204, "evaluated_again": 900, "seconds": 2.14,
            "counted": true});
        let how = |next_break, dry_run| How { next_break, dry_run, json: false };
        assert_eq!(
            said(&answer, &how(false, false), "the last change is undone"),
            "c1: the last change is undone\nthe prompt is 1,204 tokens, after 3,562 tokens\n\
             the server reads 900 tokens again with the next request, in about 2.1 s\n"
        );
        assert_eq!(
            said(&answer, &how(false, true), "undone"),
            "c1: nothing was changed, this is the price\nthe prompt would be 1,204 tokens, after 3,562 tokens\n\
             the server would read 900 tokens again with the next request, in about 2.1 s\n"
        );
        let mut undo = answer.clone();
        undo["takes_back"] = json!("the rewrite that folded 13 messages (3,562 → 1,204 tokens)");
        assert!(
            said(&undo, &how(false, true), "undone").contains("price\nit would take back the rewrite that folded 13 ")
        );
        assert!(
            said(&undo, &how(false, false), "undone")
                .starts_with("c1: undone\ntaken back: the rewrite that folded 13 ")
        );
        let unsure = json!({"conversation": "c1", "before": 9, "after": 8, "evaluated_again": 900, "counted": true, "cache": "unsure"});
        let told = said(&unsure, &how(false, true), "undone");
        assert!(told.contains("would be 8 tokens") && told.contains("would read about 900 tokens again"), "{told}");
        assert!(said(&answer, &how(true, false), "cleared").starts_with("c1: it waits for the next rewrite\n"));
        assert!(said(&answer, &how(true, false), FOLDED).starts_with("c1: it waits for the next fold\n"));
    }
}
