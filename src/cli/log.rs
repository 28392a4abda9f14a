//! How log lines are written: one line an event, whatever stands in its fields.

use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, format};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use windowsill::config::{LogConfig, LogFormat};
use windowsill::plain;

use crate::Failure;

/// Begins to log to stderr.
pub(crate) fn begin(log: &LogConfig) -> Result<(), Failure> {
    let filter = filter(&log.filter).map_err(Failure::Usage)?;
    let (logs, all) = (fmt::layer(), tracing_subscriber::registry());
    match log.format {
        LogFormat::Json => {
            all.with(logs.json().with_writer(|| Json(io::stderr()))).with(filter).init();
        }
        LogFormat::Text => {
            // Fields hold names that clients and servers chose.
            let fields = format::debug_fn(|out, field, value| {
                let text = format!("{value:?}");
                match field.name() {
                    "message" => write!(out, "{}", plain::line(&text)),
                    name => write!(out, "{name}={}", plain::line(&text)),
                }
            });
            let ansi = io::stderr().is_terminal();
            let logs = logs.fmt_fields(fields.delimited(" ")).with_ansi(ansi).with_writer(io::stderr);
            all.with(logs).with(filter).init();
        }
    }
    Ok(())
}

/// Which lines are written: levels by target, such as `warn,windowsill=debug`. There are no spans here that could be named.
fn filter(directives: &str) -> Result<Targets, String> {
    let named: Vec<&str> = directives.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    named
        .join(",")
        .parse()
        .map_err(|e| format!("RUST_LOG: {directives:?}: {e}\n  hint: levels by target: warn,windowsill=debug"))
}

/// Lines of JSON; each is written at once.
struct Json<W>(W);

impl<W: Write> Write for Json<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(plain::json(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn lines_are_chosen_by_level_and_by_target() {
        let both = filter("warn, windowsill=debug,").unwrap();
        assert!(both.would_enable("windowsill::proxy", &tracing::Level::DEBUG));
        assert!(!both.would_enable("windowsill::proxy", &tracing::Level::TRACE));
        assert!(
            both.would_enable("hyper", &tracing::Level::WARN) && !both.would_enable("hyper", &tracing::Level::INFO)
        );
        assert_eq!(filter("info").unwrap().default_level(), Some(LevelFilter::INFO));
        assert_eq!(filter("off").unwrap().default_level(), Some(LevelFilter::OFF));
        assert!(!filter("").unwrap().would_enable("windowsill", &tracing::Level::INFO));
        for wrong in ["windowsill=loud", "a=b=c"] {
            let why = filter(wrong).unwrap_err();
            assert!(why.contains(wrong) && why.contains("hint: "), "{why}");
        }
    }
}
