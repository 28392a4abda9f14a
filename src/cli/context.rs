//! `windowsill context`: conversations, what fills the window of one, and what happens to them as it happens. Prints what the
//! record and the running proxy say; decides nothing.

use std::borrow::Cow;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use windowsill::clock::now_ms;
use windowsill::config::Config;
use windowsill::plain;
use windowsill::proxy::{TraceQuery, ask_running, follow_running};

use super::events::event_line;
use super::paint::{self, Paint, Part, ago, bar, grouped_in, model_name, tokens, walls};
use crate::{Failure, note, opened, out, out_json, runtime};

/// Columns of the list but for the titles; on a terminal that is not so wide, with fewer columns; and least characters of a title.
const COLUMNS: usize = 77;
const WIDE: usize = 110;
const NARROW_COLUMNS: usize = 51;
const TITLE: usize = 24;

/// Characters of a model's name in the list.
const MODEL: usize = 16;

/// Cells of the bar.
const WIDTH: usize = 72;

/// Requests that are shown, the newest.
const TURNS: usize = 10;

/// Rewrites that are shown, the newest.
const REWRITES: usize = 10;

/// Events of the past that `--follow` begins with.
const BEFORE: usize = 10;

#[derive(Args)]
pub(crate) struct Context {
    /// A conversation's id, or the beginning of one.
    id: Option<String>,
    /// Print JSON; with --follow, one object a line.
    #[arg(long)]
    json: bool,
    /// Print what happens as it happens, from the running proxy.
    #[arg(short, long)]
    follow: bool,
    /// Only events of this kind, such as context_compaction or model_usage (may be given several times).
    #[arg(long, value_name = "KIND", requires = "follow")]
    kind: Vec<String>,
}

pub(crate) fn run(config: &Config, of: &Context) -> Result<ExitCode, Failure> {
    if of.follow {
        return follow(config, of);
    }
    let record = opened(config)?;
    if of.json {
        out_json(&record.context(of.id.as_deref())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (paint, now) = (Paint::stdout(config.no_color), now_ms());
    let page = match &of.id {
        None => list(&record.context(None)?, config, paint, now),
        Some(id) => one(&record.insight(id, config)?, paint, now),
    };
    out(&page)?;
    Ok(ExitCode::SUCCESS)
}

/// A text of the record, on one line.
fn text(value: &Value) -> String {
    plain::line(value.as_str().unwrap_or("")).into_owned()
}

fn percent(pressure: &Value) -> String {
    pressure.as_f64().map_or("-".into(), |p| format!("{:.0} %", (p * 100.0).round()))
}

/// All conversations, a line each.
fn list(report: &Value, config: &Config, paint: Paint, now: i64) -> String {
    let rows = report["conversations"].as_array().map_or(&[][..], Vec::as_slice);
    if rows.is_empty() {
        return format!(
            "no conversations yet: point a client at http://{}, or try `windowsill launch`\n",
            config.listen
        );
    }
    let width = paint::width();
    let narrow = width.is_some_and(|width| width < WIDE);
    let room = width.map(|width| width.saturating_sub(if narrow { NARROW_COLUMNS } else { COLUMNS }).max(TITLE));
    let line = |id: &str, messages: &str, prompt: &str, pressure: &str, last: &str, model: &str, title: &str| {
        // Where there is no room for all, the title says more than these.
        let (messages, model) = match narrow {
            true => (String::new(), String::new()),
            false => (format!("{messages:>9}"), format!("{model:<16} ")),
        };
        format!("{id:<14}{messages}{prompt:>10}{pressure}  {last:<15} {model}{title}\n")
    };
    let mut page = line("CONVERSATION", "MESSAGES", "PROMPT", " PRESSURE", "LAST", "MODEL", "TITLE");
    for row in rows {
        let state = &row["state"];
        let full = state["pressure"].as_f64().filter(|_| state["window"].is_u64());
        let severity = full.map(|p| config.gauge.severity(p).as_str());
        page += &line(
            &text(&row["id"]),
            &tokens(&row["messages"]),
            &format!("{}{}", if about(state).is_empty() { "" } else { "~" }, tokens(&state["prompt_tokens"])),
            // Padded before it is colored: a terminal counts no escapes.
            &paint.severity(severity, &format!("{:>9}", percent(&state["pressure"]))),
            &ago(row["last_request_ms"].as_i64().unwrap_or(0), now),
            &model_name(&text(&row["model"]), MODEL),
            &cut(&text(&row["title"]), room),
        );
    }
    page
}

/// At most so many characters of a text; what is cut ends with an ellipsis, at a word where one ends near there.
pub(super) fn cut(text: &str, room: Option<usize>) -> String {
    let Some(room) = room.filter(|room| text.chars().count() > *room) else { return text.to_owned() };
    let kept: String = text.chars().take(room.saturating_sub(1)).collect();
    let word = kept.rfind(' ').filter(|at| kept[*at..].chars().count() <= 12).unwrap_or(kept.len());
    format!("{}…", &kept[..word])
}

/// One conversation: what fills its window, what was done to it, what would help.
pub(super) fn one(seen: &Value, paint: Paint, now: i64) -> String {
    let state = &seen["state"];
    let mut page = format!(
        "{}\n{}\n\n",
        paint.bold(&text(&seen["title"])),
        paint.soft(&format!(
            "{} · {} · {} · last request {}",
            text(&seen["id"]),
            model_name(&text(&seen["model"]), usize::MAX),
            counted(&seen["messages"], "message"),
            ago(seen["last_request_ms"].as_i64().or(seen["updated_ms"].as_i64()).unwrap_or(0), now)
        ))
    );
    page += &gauge(seen, paint);
    page += &section(
        "Largest messages, the first five, as the model sees them (tokens are estimates)",
        seen["largest"].as_array(),
        paint,
        largest_line,
    );
    page += &turns(seen, paint, now);
    page += &done(seen, paint, now);
    page += &models(seen, paint);
    page += &ceilings(seen, paint);
    page += &section("Guardrails", seen["guardrails"].as_array(), paint, |event| {
        let when = ago(event["time_ms"].as_i64().unwrap_or(0), now);
        format!("  {when:<15} {}", grouped_in(&text(&event["what"])))
    });
    page += &section("Advice", seen["advice"].as_array(), paint, advice_line);
    page += &format!(
        "\n{}\n",
        paint.soft(&format!(
            "profile {}{} · originals in {}",
            text(&state["profile"]),
            state["task"].as_str().map_or_else(String::new, |task| format!(", task {}", plain::line(task))),
            text(&seen["history_file"])
        ))
    );
    page
}

/// The window as a bar by region, with its walls.
pub(super) fn gauge(seen: &Value, paint: Paint) -> String {
    let (state, history) = (&seen["state"], &seen["history"]);
    let regions = &state["regions"];
    let Some(window) = state["window"].as_u64() else {
        return format!(
            "{}{} tokens; the window is not known ({})\n",
            about(state),
            tokens(&state["prompt_tokens"]),
            text(&state["window_source"])
        );
    };
    let prompt = about(state).to_owned() + &tokens(&state["prompt_tokens"]);
    let severity = seen["severity"].as_str();
    let mut page = format!(
        "{}  {prompt} of {} tokens, and {} kept for the reply  {}\n\n",
        paint.severity(severity, &percent(&state["pressure"])),
        tokens(&state["window"]),
        tokens(&regions["output_reserved"]),
        paint.soft(&format!(
            "window {}, prompt {}",
            text(&state["window_source"]),
            text(&state["prompt_tokens_source"])
        ))
    );
    let named = [
        ('s', "system", &regions["system"]),
        ('t', "tools", &regions["tools"]),
        ('b', "brief", &regions["brief"]),
        ('u', "you", &history["user"]),
        ('a', "assistant", &history["assistant"]),
        ('r', "results", &history["results"]),
        ('o', "other", &history["other"]),
        ('m', "media", &regions["media"]),
    ];
    let mut parts: Vec<Part> = named.iter().map(|(mark, _, n)| (n.as_u64().unwrap_or(0), *mark)).collect();
    parts.push((regions["output_reserved"].as_u64().unwrap_or(0), '/'));
    page += &format!("  {}\n", paint.severity(severity, &bar(&parts, window, WIDTH)));
    page += &format!("{}\n", paint.soft(&lines(state, window)));
    let legend: Vec<String> = named
        .iter()
        .filter(|(_, _, n)| n.as_u64().is_some_and(|n| n > 0))
        .map(|(mark, name, n)| {
            // Who said how much of the history is shared out by estimates.
            let about = if matches!(mark, 'u' | 'a' | 'r' | 'o') { "about " } else { about(state) };
            format!("{mark} {name} {about}{}", tokens(n))
        })
        .chain([format!("/ kept for the reply {}", tokens(&regions["output_reserved"]))])
        .collect();
    page += &format!("  {}\n", legend.join("   "));
    if let Some(n) = seen["fold_in_requests"].as_u64() {
        let plural = if n == 1 { "" } else { "s" };
        page += &format!("  {}\n", paint.soft(&format!("folds in about {n} request{plural} of the size seen so far")));
    }
    let moved = Some(&state["walls"]["moved"]).filter(|moved| moved.is_string());
    for why in state["waits"].as_array().into_iter().flatten().chain(moved) {
        page += &format!("  {}\n", paint.soft(&text(why)));
    }
    page
}

/// The walls below the bar: pointers, names, and where each stands on the one scale of all percentages, the prompt and what is
/// kept for the reply as a share of the window.
fn lines(state: &Value, window: u64) -> String {
    let kept = state["regions"]["output_reserved"].as_u64().unwrap_or(0);
    let line = |name: &str| state["lines"][name].as_u64().unwrap_or(0);
    let all = [("clear", line("clear_at")), ("fold", fold_line(state)), ("limit", line("limit"))]
        .map(|(name, tokens)| (tokens.saturating_add(kept), name));
    let (marks, names) = walls(&all, window, WIDTH);
    let shares = all.map(|(at, name)| format!("{name} {}", percent(&Value::from(at as f64 / window.max(1) as f64))));
    format!("  {marks}\n  {names}\n  ^ {}\n", shares.join(", "))
}

/// What nobody counted is told as that.
fn about(told: &Value) -> &'static str {
    match told["prompt_tokens_source"].as_str() {
        Some(source) if source.starts_with("estimated") => "about ",
        _ => "",
    }
}

/// A number of things: `1 rewrite`, `2 rewrites`.
fn counted(n: &Value, one: &str) -> String {
    let plural = if n.as_u64() == Some(1) { "" } else { "s" };
    format!("{} {one}{plural}", tokens(n))
}

/// Where the next fold comes. What was recorded before 0.2 says nothing of it.
fn fold_line(state: &Value) -> u64 {
    state["lines"]["fold_at"].as_u64().or(state["lines"]["summarize_at"].as_u64()).unwrap_or(0)
}

/// A heading and a line for each item; nothing where there is none.
fn section(heading: &str, items: Option<&Vec<Value>>, paint: Paint, line: impl Fn(&Value) -> String) -> String {
    let lines: String = items.into_iter().flatten().map(|item| line(item) + "\n").collect();
    if lines.is_empty() { lines } else { format!("\n{}\n{lines}", paint.bold(heading)) }
}

/// Who says a message, in the words of the legend and of the page.
pub(super) fn who(role: &str) -> Cow<'_, str> {
    match role {
        "user" => "you".into(),
        "tool" | "tool_result" => "result".into(),
        role => plain::line(role),
    }
}

fn largest_line(message: &Value) -> String {
    let call = message["calls"][0].as_str().filter(|call| !call.is_empty());
    let words = call.or(message["words"].as_str()).unwrap_or("");
    let words = cut(&plain::line(words), Some(60));
    let at = message["at"].as_u64().unwrap_or(0);
    let who = who(message["role"].as_str().unwrap_or(""));
    format!("  {at:>5}  {who:<10}{:>9}  {words}", tokens(&message["view_tokens"]))
}

/// What each of the newest requests added.
fn turns(seen: &Value, paint: Paint, now: i64) -> String {
    let Some(all) = seen["requests"].as_array().filter(|requests| !requests.is_empty()) else { return String::new() };
    let newest = &all[all.len().saturating_sub(TURNS)..];
    // The newest alone are told one by one.
    let told = match seen["did"]["requests"].as_u64() {
        Some(n) if n > newest.len() as u64 => {
            format!("Requests (the last {} of {})", newest.len(), tokens(&seen["did"]["requests"]))
        }
        _ => format!("Requests ({} in all)", all.len()),
    };
    let mut page = format!("\n{}\n", paint.bold(&told));
    page += &paint
        .soft(&format!("  {:<16}{:>9}{:>9}{:>9}{:>9}{:>9}\n", "WHEN", "PROMPT", "ADDED", "CACHED", "OUT", "SECONDS"));
    for turn in newest {
        let added = turn["added"].as_i64().map_or("-".into(), |n| {
            let sign = if n < 0 { '-' } else { '+' };
            format!("{sign}{}", tokens(&Value::from(n.unsigned_abs())))
        });
        page += &format!(
            "  {:<16}{:>9}{added:>9}{:>9}{:>9}{:>9.1}{}\n",
            ago(turn["time_ms"].as_i64().unwrap_or(0), now),
            tokens(&turn["prompt_tokens"]),
            tokens(&turn["cached_tokens"]),
            tokens(&turn["completion_tokens"]),
            turn["milliseconds"].as_f64().unwrap_or(0.0) / 1000.0,
            if turn["rewritten"] == true { "  rewritten" } else { "" }
        );
    }
    page
}

/// What the mechanisms did.
fn done(seen: &Value, paint: Paint, now: i64) -> String {
    let did = &seen["did"];
    let rewrites = seen["rewrites"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut page = format!("\n{}\n", paint.bold("What was done"));
    page += &format!(
        "  {} freed {}{} tokens; {}\n",
        counted(&did["compactions"], "rewrite"),
        if did["freed_is_estimated"] == true { "about " } else { "" },
        tokens(&did["freed_tokens"]),
        came_back(did)
    );
    let missed = &seen["state"]["missed"];
    let again: Vec<String> = [("file", "of a file"), ("query", "by the same query"), ("recall", "by recall")]
        .into_iter()
        .filter_map(|(kind, name)| missed[kind].as_u64().filter(|n| *n > 0).map(|n| format!("{n} {name}")))
        .collect();
    if !again.is_empty() {
        page += &format!("  read again after it left the prompt: {}\n", again.join(", "));
    }
    for (kind, n) in did["warnings"].as_object().into_iter().flatten().filter(|(_, n)| n.as_u64() > Some(0)) {
        page += &paint.severity(Some("yellow"), &format!("  warning: {} {}\n", tokens(n), kind.replace('_', " ")));
    }
    if rewrites.len() > REWRITES {
        page +=
            &format!("  {}\n", paint.soft(&format!("the last {REWRITES} changes, those that were undone among them:")));
    }
    for event in &rewrites[rewrites.len().saturating_sub(REWRITES)..] {
        let data = &event["data"];
        let when = ago(event["time_ms"].as_i64().unwrap_or(0), now);
        let undone = if event["undone"] == true { " (undone)" } else { "" };
        page += &format!("  {when:<16}{}{undone}\n", text(&event["told"]));
        if data["focus"].is_string() {
            page += &format!("{:18}{}\n", "", paint.soft(&format!("its focus: {}", text(&data["focus"]))));
        }
    }
    page
}

/// What came back of what had left the prompt: what the model asked for, and what came by itself.
fn came_back(did: &Value) -> String {
    let asked = match (did["recalls"].as_u64(), did["recalls_missed"].as_u64()) {
        (None | Some(0), _) => "the model recalled nothing".to_owned(),
        (_, None | Some(0)) => counted(&did["recalls"], "recall"),
        _ => {
            format!("{}, {} of which found nothing", counted(&did["recalls"], "recall"), tokens(&did["recalls_missed"]))
        }
    };
    let ahead = did["recalled_ahead"].as_u64().filter(|n| *n > 0);
    ahead.map_or(asked.clone(), |_| {
        format!("{asked}, and something came back by itself with {}", counted(&did["recalled_ahead"], "request"))
    })
}

/// What was spent, the model that took most first.
fn models(seen: &Value, paint: Paint) -> String {
    let mut heading = format!(
        "{:<28}{:<10}{:>9}{:>11}{:>11}{:>11}{:>9}",
        "MODEL", "FOR", "REQUESTS", "IN", "CACHED", "EVALUATED", "OUT"
    );
    heading = format!("Spent\n  {heading}");
    section(&heading, seen["models"].as_array(), paint, |entry| {
        let role = match entry["role"].as_str().unwrap_or("") {
            "main" => "requests",
            "summary" => "briefs",
            "digest" => "digests",
            "recall" => "recalls",
            "prefill" => "ahead",
            other => other,
        };
        format!(
            "  {:<28}{:<10}{:>9}{:>11}{:>11}{:>11}{:>9}",
            model_name(&text(&entry["model"]), 27),
            plain::line(role),
            tokens(&entry["requests"]),
            tokens(&entry["prompt_tokens"]),
            tokens(&entry["cached_tokens"]),
            tokens(&entry["evaluated_tokens"]),
            tokens(&entry["completion_tokens"])
        )
    })
}

/// How near the ceilings are, and what the conversation cost.
fn ceilings(seen: &Value, paint: Paint) -> String {
    let books = &seen["books"];
    let near = section("Ceilings", books["ceilings"].as_array(), paint, |ceiling| {
        let share = ceiling["share"].as_f64().unwrap_or(0.0);
        let severity = if share >= 1.0 {
            "red"
        } else if share >= 0.8 {
            "yellow"
        } else {
            "green"
        };
        let line = format!(
            "  {:<40}{:>20}",
            text(&ceiling["key"]),
            format!("{} of {}", tokens(&ceiling["spent"]), tokens(&ceiling["most"]))
        );
        paint.severity(Some(severity), &line)
    });
    near + &super::report::spent(books)
}

fn advice_line(advice: &Value) -> String {
    match advice["key"].as_str().filter(|key| !key.is_empty()) {
        Some(key) => format!("  - {} (`{}` in config.toml)", text(&advice["what"]), plain::line(key)),
        None => format!("  - {}", text(&advice["what"])),
    }
}

/// Prints the trace until the proxy stops, or nobody reads any more.
fn follow(config: &Config, of: &Context) -> Result<ExitCode, Failure> {
    let asked = TraceQuery { since: None, last: Some(BEFORE), conversation: of.id.clone(), kinds: of.kind.clone() };
    let key = config.api_key.as_ref().map(|k| k.expose().to_owned());
    let address = config.listen.to_string();
    let runtime = runtime()?;
    for kind in &of.kind {
        let path = format!("/windowsill/events?last=1&kind={}", plain_kind(kind)?);
        let seen = runtime.block_on(ask_running(&address, key.as_deref(), http::Method::GET, &path, None))?;
        if seen["events"].as_array().is_none_or(Vec::is_empty) {
            note(&format!(
                "no event of the kind `{kind}` was ever recorded; docs/page.md names some, such as context_compaction"
            ));
        }
    }
    note(&format!("following http://{address}; Ctrl-C ends it"));
    let mut wrong = None;
    let print = |event: Value| {
        let line = if of.json { plain::json(&event.to_string()).into_owned() } else { event_line(&event) };
        wrong = out(&format!("{line}\n")).err();
        wrong.is_none()
    };
    runtime.block_on(follow_running(&address, key.as_deref(), &asked, print))?;
    match wrong {
        Some(e) => Err(e),
        None => Err(Failure::Bad("windowsill stopped".into())),
    }
}

/// A kind as it may stand in a query.
fn plain_kind(kind: &str) -> Result<&str, Failure> {
    let known = !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    known
        .then_some(kind)
        .ok_or_else(|| Failure::Usage(format!("--kind {}: kinds are words such as model_usage", kind.escape_debug())))
}
