//! When a window counts as nearly full: the same words and lines on every surface.

use super::problem::Problem;
use super::written::{Sources, note};
use super::{Layers, written as read};

/// Keys of `[gauge]`.
pub(crate) const KEYS: &[&str] = &["yellow_at", "red_at"];

/// From which pressure on a window is yellow, and red.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gauge {
    /// Yellow from this share of the window on.
    pub yellow_at: f64,
    /// Red from this share of the window on.
    pub red_at: f64,
}

/// How full a window is, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// There is room.
    Green,
    /// It fills up.
    Yellow,
    /// It is nearly full.
    Red,
}

impl Severity {
    /// As it stands in headers and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Green => "green",
            Severity::Yellow => "yellow",
            Severity::Red => "red",
        }
    }
}

impl Gauge {
    /// How bad a pressure is: (prompt + what is kept for the reply) / window.
    pub fn severity(&self, pressure: f64) -> Severity {
        match pressure {
            p if p >= self.red_at => Severity::Red,
            p if p >= self.yellow_at => Severity::Yellow,
            _ => Severity::Green,
        }
    }
}

/// Reads `[gauge]`.
pub(super) fn resolve(layers: &Layers, sources: &mut Sources, problems: &mut Vec<Problem>) -> Option<Gauge> {
    let red = layers.take("gauge.red_at", read::share, problems);
    let yellow = layers.take("gauge.yellow_at", read::share, problems);
    note("gauge.red_at", red.as_ref(), f64::to_string, sources);
    note("gauge.yellow_at", yellow.as_ref(), f64::to_string, sources);
    let (yellow, red) = (yellow?, red?);
    if yellow.value > red.value {
        let place = if yellow.source == "default" { &red.source } else { &yellow.source };
        let message = format!(
            "`yellow_at` ({}, {}) is above `red_at` ({}, {}): nothing would ever be yellow",
            yellow.value, yellow.source, red.value, red.source
        );
        problems.push(Problem::new(place, message).hint("set `yellow_at` to `red_at` or less"));
    }
    Some(Gauge { yellow_at: yellow.value, red_at: red.value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_belongs_to_what_begins_there() {
        let gauge = Gauge { yellow_at: 0.7, red_at: 0.9 };
        for (pressure, is) in [(0.0, "green"), (0.6999, "green"), (0.7, "yellow"), (0.9, "red"), (1.4, "red")] {
            assert_eq!(gauge.severity(pressure).as_str(), is, "{pressure}");
        }
    }
}
