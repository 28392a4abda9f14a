//! `windowsill rules`: what new conversations of a project begin with. The running proxy keeps them.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};
use windowsill::config::Config;
use windowsill::plain;
use windowsill::proxy::rules_running;

use crate::{Failure, out, out_json, runtime};

#[derive(Args)]
pub(crate) struct Rules {
    #[command(subcommand)]
    what: Option<What>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Give a rule other words. Conversations that have the old ones keep them.
    Edit {
        /// Its number, as `windowsill rules` lists it.
        rule: i64,
        /// The new words.
        text: String,
    },
    /// Remove a rule. Conversations that have it keep it as a pin.
    Remove {
        /// Its number, as `windowsill rules` lists it.
        rule: i64,
    },
}

pub(crate) fn run(config: &Config, of: &Rules) -> Result<ExitCode, Failure> {
    let (answer, done) = match &of.what {
        None => (ask(config, Method::GET, None, None)?, None),
        Some(What::Edit { rule, text }) => {
            (ask(config, Method::PUT, Some(*rule), Some(&json!({"text": text})))?, Some("changed"))
        }
        Some(What::Remove { rule }) => (ask(config, Method::DELETE, Some(*rule), None)?, Some("removed")),
    };
    match done {
        _ if of.json => out_json(&answer)?,
        Some(done) => out(&format!("rule {} is {done}: {}\n", answer["rule"], words(&answer)))?,
        None => out(&listed(&answer))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(config: &Config, method: Method, number: Option<i64>, body: Option<&Value>) -> Result<Value, Failure> {
    let key = config.api_key.as_ref().map(|k| k.expose().to_owned());
    let address = config.listen.to_string();
    Ok(runtime()?.block_on(rules_running(&address, key.as_deref(), method, number, body))?)
}

fn words(rule: &Value) -> String {
    plain::line(rule["text"].as_str().unwrap_or("")).chars().take(100).collect()
}

fn listed(answer: &Value) -> String {
    let rules = answer["rules"].as_array().map_or(&[][..], Vec::as_slice);
    if rules.is_empty() {
        return "there are no rules; `windowsill pin ID TEXT --always` makes one\n".to_owned();
    }
    let mut page = String::new();
    let mut of = (String::new(), String::new());
    let text = |rule: &Value, key: &str| plain::line(rule[key].as_str().unwrap_or("-")).into_owned();
    let mut sorted: Vec<&Value> = rules.iter().collect();
    sorted.sort_by_key(|rule| (text(rule, "client"), text(rule, "project"), rule["rule"].as_i64()));
    for rule in sorted {
        let whose = (text(rule, "client"), text(rule, "project"));
        if whose != of {
            page += &format!("{}, {}\n", whose.0, whose.1);
            of = whose;
        }
        page += &format!("{:>4}  {}\n", rule["rule"].as_i64().unwrap_or(0), words(rule));
    }
    page
}
