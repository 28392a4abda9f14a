//! How log lines are written: one line an event, whatever stands in its fields.

use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format;
use windowsill::config::{LogConfig, LogFormat};
use windowsill::plain;

use crate::Failure;

/// Begins to log to stderr.
pub(crate) fn begin(log: &LogConfig) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&log.filter).map_err(|e| Failure::Usage(format!("RUST_LOG: {e}")))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter);
    match log.format {
        LogFormat::Json => logs.json().with_writer(|| Json(io::stderr())).init(),
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
            logs.fmt_fields(fields.delimited(" ")).with_ansi(ansi).with_writer(io::stderr).init();
        }
    }
    Ok(())
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
