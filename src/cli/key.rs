//! `windowsill key` makes a token for a person or a program; `windowsill audit` shows who read and changed what.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;
use windowsill::config::{Config, DEFAULT_SCOPE, TokenHash, is_name};
use windowsill::keys::{audit, token};
use windowsill::plain;

use crate::{Failure, out, out_json};

#[derive(Subcommand)]
pub(crate) enum Key {
    /// Print a new token, once, and the lines for config.toml that let it in.
    New {
        /// Whose it is: small letters, digits, `-` and `_`.
        name: String,
        /// Which conversations it reads and writes; keys of one scope share them. Default: a scope of its name; of an admin,
        /// the conversations from before there were keys.
        #[arg(long)]
        scope: Option<String>,
        /// It may look into every scope, and do what concerns everybody.
        #[arg(long)]
        admin: bool,
    },
}

#[derive(Args)]
pub(crate) struct Audit {
    /// So many lines, the last ones.
    #[arg(long, default_value_t = 100)]
    last: usize,
    /// Those of one key alone.
    #[arg(long)]
    key: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn key(of: &Key) -> Result<ExitCode, Failure> {
    let Key::New { name, scope, admin } = of;
    for (what, name) in [("a key", Some(name)), ("a scope", scope.as_ref())] {
        if name.is_some_and(|name| !is_name(name)) {
            let message =
                format!("the name of {what} is made of small letters, digits, `-` and `_`, at most 64 of them");
            return Err(Failure::Usage(message));
        }
    }
    let token = token()?;
    let mut lines = format!("[[key]]\nname = \"{name}\"\nhash = \"{}\"\n", TokenHash::of(&token));
    if let Some(scope) = &scope {
        lines += &format!("scope = \"{scope}\"\n");
    }
    if *admin {
        lines += "admin = true\n";
    }
    let reads = scope.as_deref().unwrap_or(if *admin { DEFAULT_SCOPE } else { name });
    out(&format!(
        "The token, which is shown this once and kept nowhere:\n\n  {token}\n\n\
         Put these lines at the end of config.toml. A windowsill that has keys already reads them within seconds; one that \
         has none must be started again. It reads and writes the conversations of the scope `{reads}`.\n\n{lines}"
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn audit(config: &Config, of: &Audit) -> Result<ExitCode, Failure> {
    let entries = audit::last(&config.data_dir, of.last, of.key.as_deref())?;
    if of.json {
        out_json(&Value::Array(entries))?;
        return Ok(ExitCode::SUCCESS);
    }
    if entries.is_empty() {
        let file = config.data_dir.join(audit::FILE);
        out(&format!("Nothing is written down in {}. It is, where config.toml has a [[key]].\n", file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = |entry: &Value, name: &str| plain::line(entry[name].as_str().unwrap_or("-")).into_owned();
    let lines = entries.iter().map(|entry| {
        let (key, scope) = (text(entry, "key"), text(entry, "scope"));
        let whose = if key == scope { key } else { format!("{key} in {scope}") };
        let (method, path, of) = (text(entry, "method"), text(entry, "path"), text(entry, "of"));
        format!(
            "{}  {whose:<20} {} {method} {path} {of}\n",
            time(entry["at_ms"].as_i64().unwrap_or(0)),
            entry["status"]
        )
    });
    out(&lines.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// A time as people write it, in UTC.
fn time(at_ms: i64) -> String {
    let seconds = at_ms.div_euclid(1000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 1970 as a date (Howard Hinnant, "chrono-compatible low-level date algorithms"): a year begins in March there.
    let shifted = days.saturating_add(719_468);
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * march + 2) / 5 + 1, if march < 10 { march + 3 } else { march - 9 });
    let year = era * 400 + year + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (at_ms, said) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399_000, "2000-02-28 23:59:59Z"),
            (951_782_400_000, "2000-02-29 00:00:00Z"),
            (1_795_823_999_999, "2026-11-27 23:59:59Z"),
            (-1, "1969-12-31 23:59:59Z"),
        ] {
            assert_eq!(time(at_ms), said);
        }
    }
}
