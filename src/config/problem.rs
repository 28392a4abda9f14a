//! What is wrong with a setting, where it stands, and what to do about it.
//!
//! A problem is collected, not thrown: one run shows all of them. It never holds a secret's value.

use std::fmt;

/// One thing that is wrong with what a user wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands: `config.toml:9:12`, `environment`, `--listen`, or a path.
    pub place: String,
    /// What is wrong: lower case, no full stop, the name in backticks.
    pub message: String,
    /// The line of the file and a caret below the spot; only where the file could not be read as TOML.
    pub excerpt: Option<String>,
    /// What to do next.
    pub hint: Option<String>,
}

impl Problem {
    /// A problem at `place`.
    pub(crate) fn new(place: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem { place: place.into(), message: message.into(), excerpt: None, hint: None }
    }

    /// The same problem with a next step.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    /// The problem as one JSON object: `place`, `message`, and `hint` where there is one.
    pub fn json(&self) -> serde_json::Value {
        let mut object = serde_json::json!({ "place": self.place, "message": self.message });
        if let Some(hint) = &self.hint {
            object["hint"] = hint.as_str().into();
        }
        object
    }
}

impl fmt::Display for Problem {
    /// `error: PLACE: MESSAGE`, then the excerpt and the hint, each on its own line; no line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}: {}", self.place, self.message)?;
        if let Some(excerpt) = &self.excerpt {
            write!(f, "\n{excerpt}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

/// Puts problems in the order a person reads: flags, environment, the config file by line, other files.
pub(crate) fn in_order(problems: &mut [Problem], config_file: &str) {
    problems.sort_by_cached_key(|problem| {
        let (file, line, column) = split_place(&problem.place);
        let rank = match file {
            _ if file.starts_with("--") || file.starts_with("flag ") => 0,
            _ if file.starts_with("environment") => 1,
            _ if file == config_file => 2,
            _ => 3,
        };
        // Whatever is said of a file as a whole comes after what is said of a line.
        let name = if rank == 3 { file.to_owned() } else { String::new() };
        (rank, name, line.unwrap_or(usize::MAX), column.unwrap_or(0))
    });
}

/// `FILE:LINE:COLUMN`, `FILE:LINE` or `FILE` in its parts.
fn split_place(place: &str) -> (&str, Option<usize>, Option<usize>) {
    let number_after = |text: &str| text.rsplit_once(':').and_then(|(rest, n)| Some((rest.len(), n.parse().ok()?)));
    match number_after(place) {
        None => (place, None, None),
        Some((cut, last)) => match number_after(&place[..cut]) {
            None => (&place[..cut], Some(last), None),
            Some((file, line)) => (&place[..file], Some(line), Some(last)),
        },
    }
}

/// All problems as a person reads them, with a last line that counts them and says `outcome`
/// (for example `nothing was started`).
pub fn report(problems: &[Problem], outcome: &str) -> String {
    let mut text: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
    let count = problems.len();
    let noun = if count == 1 { "problem" } else { "problems" };
    text.push_str(&format!("{count} {noun}; {outcome}\n"));
    text
}

/// `did you mean X?` when a known name is near enough to be what was meant; otherwise all known names.
pub(crate) fn nearest(wrong: &str, known: &[&str]) -> String {
    match near(wrong, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known here: {}", quoted(known)),
    }
}

/// The known name that `wrong` is most likely a slip of, if any is near.
pub(crate) fn near<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    /// Below this share of equal letters two names are not taken for the same (measured by Damerau-Levenshtein):
    /// `keep_turns` and `keep_recent` (0.55) are, `timeout` and `listen` are not.
    const NEAR: f64 = 0.5;
    let wrong = wrong.to_lowercase().replace('-', "_");
    let score = |name: &str| strsim::normalized_damerau_levenshtein(&wrong, name);
    let best = known.iter().copied().max_by(|a, b| score(a).total_cmp(&score(b)))?;
    (score(best) >= NEAR).then_some(best)
}

/// Names in backticks, joined by commas.
pub(crate) fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
