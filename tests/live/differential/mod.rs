//! *Never worse than direct*: odd but legal requests go to a real server alone, and through windowsill. What the server answers
//! with 200, windowsill answers with 200, with the same end and the same text.
//!
//! `WINDOWSILL_DIFFERENCES=5000` plays so many requests, `WINDOWSILL_SEED=7` begins elsewhere.

mod ask;
mod kinds;
mod odd;
mod said;

use serde_json::Value;

use crate::fakes::Dice;
use crate::support::http::{self, Reply};
use crate::support::say;
use crate::support::servers::{Llama, Ollama, Windowsill};
use ask::Dialect;

/// Requests before each server, unless the environment says otherwise.
const REQUESTS: u64 = 150;

/// Requests of a session: one, and others that are like it.
const ALIKE: u64 = 3;

/// Of a hundred requests, so many have something in them that nobody means.
const ODD: u64 = 35;

/// A difference that is none: what windowsill says of it stands in this header.
const WARNINGS: &str = "warning";

fn number(variable: &str) -> Option<u64> {
    std::env::var_os(variable)?.to_str()?.parse().ok()
}

/// How the answer is worse than the server's own, if it is.
fn worse(dialect: Dialect, url: &str, body: &Value, is_odd: bool, direct: &Reply, through: &Reply) -> Option<String> {
    if direct.status != 200 {
        // A mistake of the client's is never told as one of ours.
        let ours = through.status >= 500 && direct.status < 500;
        return ours.then(|| format!("{} for the server's {}", through.status, direct.status));
    }
    if through.status != 200 {
        // What is to be done with the history is asked of windowsill alone: a server passes over it, right or wrong.
        let asks = ["context_management", "compaction"].iter().any(|key| !body[key].is_null());
        if is_odd && asks && (through.text.contains("`context_management") || through.text.contains("`compaction")) {
            return None;
        }
        return Some(format!("{} where the server alone answers 200", through.status));
    }
    let (theirs, ours) = (said::read(dialect, direct), said::read(dialect, through));
    // Of what nobody means, a server makes this and windowsill that.
    if is_odd {
        return (ours.finish.is_empty() && !theirs.finish.is_empty())
            .then(|| format!("{ours:?} for the server's {theirs:?}"));
    }
    if theirs == ours || !through.ours(WARNINGS).is_empty() || is_better_through(dialect, body) {
        return None;
    }
    // Two replies of the server's own may differ, by what its cache held.
    let once_more = said::read(dialect, &http::post(&format!("{url}{}", dialect.path()), body));
    (once_more == theirs).then(|| format!("{ours:?} for the server's {theirs:?}"))
}

/// Whether windowsill keeps to something that the servers' own endpoints overlook: Ollama's templates leave out what a developer
/// says, messages of one role in a row are one turn in Anthropic's API, and the model is told there that a call failed (`is_error`)
/// and what a search found. There, what the system says in the middle is said as a reminder of the user's, since many templates refuse
/// or lose a second system message. llama-server's Messages endpoint takes an empty last reply for one that was begun and opens no turn for
/// the model (the prompt is four tokens shorter), so it writes a blank token; through windowsill the model answers.
fn is_better_through(dialect: Dialect, body: &Value) -> bool {
    let all: Vec<&Value> = ["messages", "input"].iter().filter_map(|key| body[key].as_array()).flatten().collect();
    let in_a_row = all.windows(2).any(|two| two[0]["role"] == two[1]["role"]);
    let failed = |message: &&Value| {
        message["content"].as_array().is_some_and(|blocks| {
            blocks.iter().any(|block| block["is_error"] == true || block["type"] == "search_result")
        })
    };
    let says_nothing = all.last().is_some_and(|last| {
        let content = &last["content"];
        last["role"] == "assistant" && (content == "" || content.as_array().is_some_and(Vec::is_empty))
    });
    let reminds = |message: &&Value| message["role"] == "system";
    let better = in_a_row || says_nothing || all.iter().skip(1).any(reminds) || all.iter().any(failed);
    dialect == Dialect::Messages && better || all.iter().any(|message| message["role"] == "developer")
}

/// Plays sessions of requests, and returns what came out worse. `revive` starts the server again where a request ended it.
fn play(url: &str, dialects: &[Dialect], mut revive: impl FnMut()) -> Vec<String> {
    let windowsill = Windowsill::before(url, &[]);
    let requests = number("WINDOWSILL_DIFFERENCES").map_or(REQUESTS, |n| n / 2);
    let first = number("WINDOWSILL_SEED").unwrap_or(1);
    let (mut out, mut good) = (Vec::new(), 0);
    for session in 0..requests.div_ceil(ALIKE) {
        let seed = first + session;
        let mut dice = Dice(seed);
        let dialect = dialects[dice.below(dialects.len())];
        let mut body = ask::request(dialect, &mut dice);
        for n in 0..ALIKE {
            if n > 0 {
                body = ask::again(dialect, &body, &mut dice);
            }
            let mut sent = body.clone();
            let is_odd = dice.chance(ODD);
            if is_odd {
                odd::mangle(&mut sent, &mut dice);
            }
            let body = &sent;
            // Twice, for a server may close a connection that was kept open just as it is used again.
            let ask = || http::try_open(&format!("{url}{}", dialect.path()), &[], body);
            let Ok(direct) = ask().or_else(|_| ask()) else {
                // A request that ends the server has no answer to compare with.
                say(&format!("seed {seed}, request {n} ended the server: {body}"));
                revive();
                continue;
            };
            let direct = direct.whole();
            let through = http::post(&format!("{}{}", windowsill.url(), dialect.path()), body);
            good += u64::from(direct.status == 200);
            if let Some(how) = worse(dialect, url, body, is_odd, &direct, &through) {
                out.push(format!(
                    "seed {seed}, request {n}, {}: {how}\n  sent: {body}\n  direct: {}\n  through: {}",
                    dialect.path(),
                    direct.text,
                    through.text
                ));
            }
        }
    }
    say(&format!(
        "{requests} requests, {good} of them answered by the server alone, {} worse through windowsill",
        out.len()
    ));
    out
}

fn assert_none(worse: &[String]) {
    assert!(worse.is_empty(), "{} answers are worse than the server's own:\n{}", worse.len(), worse.join("\n"));
}

#[test]
fn nothing_is_worse_than_llama_cpp_alone() {
    let mut llama = Llama::start(4096);
    let url = llama.url();
    assert_none(&play(&url, &[Dialect::Chat, Dialect::Responses, Dialect::Messages], || llama.restart(4096)));
}

#[test]
fn nothing_is_worse_than_ollama_alone() {
    let ollama = Ollama::start();
    let all = [Dialect::Chat, Dialect::Responses, Dialect::Messages, Dialect::Ollama, Dialect::Generate];
    assert_none(&play(&ollama.url(), &all, || panic!("Ollama is gone")));
}
