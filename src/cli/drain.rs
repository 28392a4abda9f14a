//! `windowsill drain`: which servers get requests, and none for one that is to be taken away.

use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use windowsill::config::Config;
use windowsill::proxy::{drain_running, grouped};

use crate::{Failure, out, out_json, runtime};

#[derive(Args)]
pub(crate) struct Drain {
    /// The server, by its name in the config. Without one, all are listed.
    name: Option<String>,
    /// Have it get requests again.
    #[arg(long, requires = "name")]
    undo: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(config: &Config, of: &Drain) -> Result<ExitCode, Failure> {
    let key = config.api_key.as_ref().map(|key| key.expose().to_owned());
    let (address, body) = (config.listen.to_string(), json!({"on": !of.undo}));
    let (method, body) = if of.name.is_some() { (Method::POST, Some(&body)) } else { (Method::GET, None) };
    let asked = drain_running(&address, key.as_deref(), method, of.name.as_deref(), body);
    let answer = runtime()?.block_on(asked)?;
    if of.json {
        out_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let all = answer["upstreams"].as_array().cloned().unwrap_or_else(|| vec![answer.clone()]);
    out(&all.iter().map(line).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// A server in one line.
fn line(one: &Value) -> String {
    let text = |key: &str| one[key].as_str().unwrap_or("").to_owned();
    let count = |key: &str| grouped(u32::try_from(one[key].as_u64().unwrap_or(0)).unwrap_or(u32::MAX));
    let why = one["why"].as_str().map_or_else(String::new, |why| format!(" ({why})"));
    let speed = one["prompt_tokens_per_second"].as_f64();
    let speed = speed.map_or_else(String::new, |speed| format!(", {speed:.0} prompt tokens a second"));
    let (name, url, standing) = (text("upstream"), text("url"), text("standing"));
    let [open, answered, moved] = ["open", "answered", "moved"].map(count);
    // Requests are counted where there is a choice between servers: that a single one answered none would not be true.
    let counts = match [&open, &answered, &moved].into_iter().all(|n| n == "0") {
        true => String::new(),
        false => format!("; {open} open, {answered} answered, {moved} moved to others"),
    };
    format!("{name} at {url}: {standing}{why}{counts}{speed}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_where_they_were_counted() {
        let mut one =
            json!({"upstream": "main", "url": "http://h:1", "standing": "ready", "open": 0, "answered": 0, "moved": 0});
        assert_eq!(line(&one), "main at http://h:1: ready\n");
        one["answered"] = json!(1200);
        assert_eq!(line(&one), "main at http://h:1: ready; 0 open, 1,200 answered, 0 moved to others\n");
    }
}
