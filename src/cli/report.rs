//! `windowsill report`: what was kept out of prompts and what it cost, in sums that can be shown to others.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use windowsill::config::Config;

use super::paint::{model_name, tokens};
use crate::{Failure, opened, out, out_json};
use windowsill::clock::now_ms;

#[derive(Args)]
pub(crate) struct Report {
    /// Only what happened since: 30m, 24h, 7d. Default: all of the record.
    #[arg(long, value_name = "AGE")]
    since: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(config: &Config, of: &Report) -> Result<ExitCode, Failure> {
    let since = match &of.since {
        None => 0,
        Some(age) => {
            let wrong =
                || Failure::Usage(format!("--since {age}: write a number and m, h or d, such as 30m, 24h or 7d"));
            now_ms().saturating_sub(milliseconds(age).ok_or_else(wrong)?)
        }
    };
    let report = opened(config)?.report(since, &config.ceiling)?;
    if of.json {
        out_json(&report)?;
    } else {
        out(&page(&report, of.since.as_deref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An age such as `7d`, in milliseconds.
fn milliseconds(age: &str) -> Option<i64> {
    let unit = age.chars().last()?;
    let seconds = match unit {
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let n: u32 = age.strip_suffix(unit)?.parse().ok()?;
    i64::from(n).checked_mul(seconds * 1000)
}

fn page(report: &Value, since: Option<&str>) -> String {
    let of = |key: &str| tokens(&report[key]);
    let about = |key: &str| if report[key] == true { "about " } else { "" };
    // A brief that was broken off told no counts.
    let least = if report["upkeep_is_at_least"] == true { "at least " } else { "" };
    let share = |part: &str, whole: &str| match (report[part].as_f64(), report[whole].as_f64()) {
        (Some(part), Some(whole)) if whole > 0.0 => format!(" ({:.0} %)", part / whole * 100.0),
        _ => String::new(),
    };
    let mut page = format!(
        "windowsill, {}: conversations {}, requests {}\n\n",
        since.map_or("all of the record".to_owned(), |age| format!("the last {age}")),
        of("conversations"),
        of("requests")
    );
    if report["sent_tokens"].as_u64().is_some_and(|n| n > 0) {
        let share = share("prompt_tokens", "sent_tokens");
        page += &format!(
            "  Your clients sent about {}; models read {}{share}.\n\n",
            of("sent_tokens"),
            of("prompt_tokens")
        );
    }
    for (what, figure) in [
        ("tokens that models read", of("prompt_tokens")),
        ("of them from the servers' caches", of("cached_tokens") + &share("cached_tokens", "prompt_tokens")),
        ("tokens taken out of prompts", about("kept_out_is_estimated").to_owned() + &of("kept_out_tokens")),
        ("of them read back by the model", of("read_back_tokens") + &share("read_back_tokens", "kept_out_tokens")),
        ("of them came back by themselves", "about ".to_owned() + &of("recalled_ahead_tokens")),
        ("rewrites", of("rewrites")),
        ("recalls by the model, and what they found", format!("{}, {}", of("recalls"), of("recalls_found"))),
        ("requests with which something came back", of("recalled_ahead")),
        ("tokens evaluated again after rewrites", "about ".to_owned() + &of("evaluated_again_tokens")),
        ("tokens spent on briefs and other upkeep", least.to_owned() + &of("upkeep_tokens")),
    ] {
        page += &format!("  {what:<40}{figure:>20}\n");
    }
    page += &spent(report);
    if let Some(shadow) = report["shadow"].as_object() {
        page += "\n  in shadow: nothing was changed, and the figures above are what would have been\n";
        for (what, key) in [
            ("requests", "requests"),
            ("of them too long for the window", "too_long"),
            ("tokens that clients sent", "sent_tokens"),
            ("tokens that models would have read", "would_send_tokens"),
        ] {
            page += &format!("  {what:<40}{:>20}\n", tokens(&shadow[key]));
        }
    }
    page += &format!("\n  {:<30}{:>9}{:>13}{:>13}{:>11}{:>11}\n", "MODEL", "REQUESTS", "IN", "CACHED", "OUT", "UPKEEP");
    for model in report["models"].as_array().into_iter().flatten() {
        page += &format!(
            "  {:<30}{:>9}{:>13}{:>13}{:>11}{:>11}\n",
            model_name(model["model"].as_str().unwrap_or(""), 29),
            tokens(&model["requests"]),
            tokens(&model["prompt_tokens"]),
            tokens(&model["cached_tokens"]),
            tokens(&model["completion_tokens"]),
            format!(
                "{}{}",
                if model["upkeep_is_at_least"] == true { "≥ " } else { "" },
                tokens(&model["upkeep_tokens"])
            )
        );
    }
    page
}

/// Money and watt-hours, where the config has a price and the machine's watts.
pub(super) fn spent(books: &Value) -> String {
    let line = |what: &str, figure: Option<f64>, unit: &str| {
        figure.map_or_else(String::new, |n| format!("  {what:<40}{:>20}\n", format!("{n:.2}{unit}")))
    };
    line("cost (`price_per_million`)", books["cost"].as_f64(), "")
        + &line("energy (`watts`)", books["watt_hours"].as_f64(), " Wh")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        assert_eq!(milliseconds("30m"), Some(1_800_000));
        assert_eq!(milliseconds("7d"), Some(604_800_000));
        for wrong in ["", "d", "7", "-1d", "7 d", "1.5h", "7days", "é", "99999999999d"] {
            assert_eq!(milliseconds(wrong), None, "{wrong}");
        }
    }
}
