//! Why a request failed, by whose fault it is. `server` turns it into a status and a body in the caller's dialect.

use serde_json::{Value, json};
use tracing::{error, warn};

use crate::conversation::Tokens;
use crate::plain::line;
use crate::plan::Regions;
use crate::wire::WireError;
use crate::{store, upstream};

/// A request that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller can fix it.
    #[error("{message}")]
    Client {
        /// HTTP status, 4xx.
        status: u16,
        /// OpenAI's `code`, such as `context_length_exceeded`.
        code: Option<&'static str>,
        /// The field that is wrong.
        param: Option<String>,
        /// What is wrong, with numbers.
        message: String,
        /// The next step.
        hint: Option<String>,
        /// Of a prompt that is too long: its tokens, and the window's.
        sizes: Option<(Tokens, Tokens)>,
    },
    /// The request cannot be read. The server may read it all the same; see `doors::dialect::unread`.
    #[error("{0}")]
    Unread(WireError),
    /// The inference server is gone, or answers what nobody can read.
    #[error("{source}")]
    Upstream {
        /// HTTP status: 502 or 504.
        status: u16,
        /// What happened.
        source: upstream::Error,
        /// The next step.
        hint: Option<String>,
    },
    /// The record cannot be written, so nothing may leave the prompt.
    #[error(
        "windowsill cannot write its record, so it rewrote nothing and sent nothing: a message leaves the prompt only once \
         its original is safe ({source})"
    )]
    Record {
        /// What the disk said.
        source: store::Error,
    },
    /// Ours.
    #[error("failed to {doing}")]
    Internal {
        /// What was being done.
        doing: &'static str,
        /// Details, for the log only.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// A client's error with a code.
    pub fn client(status: u16, code: &'static str, message: impl Into<String>, hint: &str) -> Error {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        Error::Client { status, code: Some(code), param: None, message: message.into(), hint, sizes: None }
    }

    /// Whether the prompt cannot be made to fit.
    pub fn is_too_long(&self) -> bool {
        matches!(self, Error::Client { code: Some("context_length_exceeded"), .. })
    }

    /// The code that the caller gets, where there is one.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Error::Client { code, .. } => *code,
            Error::Unread(_) => None,
            Error::Upstream { .. } => Some("upstream_unreachable"),
            Error::Record { .. } => Some("record_unwritable"),
            Error::Internal { .. } => Some("internal_error"),
        }
    }

    /// Why, in one line and in words that quote nothing of a request; `None` where only the code can be told.
    pub(super) fn reason(&self) -> Option<String> {
        match self {
            Error::Client { sizes: Some((prompt, window)), .. } => {
                Some(format!("{prompt} tokens, and the window has {window}"))
            }
            Error::Client { .. } | Error::Unread(_) => None,
            Error::Upstream { source, .. } => Some(line(&chain(source)).chars().take(200).collect()),
            Error::Record { source } => Some(line(&source.to_string()).chars().take(200).collect()),
            Error::Internal { doing, .. } => Some(format!("failed to {doing}")),
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Error::Client { status, .. } | Error::Upstream { status, .. } => *status,
            Error::Unread(_) => 400,
            Error::Record { .. } => 503,
            Error::Internal { .. } => 500,
        }
    }

    /// The prompt cannot be made to fit. Worded so that clients recognize it: they look for the code and for OpenAI's
    /// phrase (`shared` knowledge: LiteLLM, Cline, Qwen Code match on `maximum context length`).
    pub fn cannot_fit(model: &str, window: Tokens, source: &str, regions: &Regions, limit: Tokens) -> Error {
        let prompt = regions.prompt();
        let (system, tools, reserved) = (regions.system, regions.tools, regions.output_reserved);
        let message = format!(
            "This model's maximum context length is {window} tokens. However, your messages resulted in {prompt} tokens \
             even after everything that may be shortened was (system {system}, tools {tools}, history {}, media {}; \
             {reserved} reserved for the reply, {limit} left for the prompt). Please reduce the length of the messages.",
            regions.history + regions.brief,
            regions.media,
        );
        let hint = if system + tools > limit {
            // What takes most of it is what can help.
            let instead = if system > tools {
                "shorten the system prompt, or have windowsill say it by index: `system = \"index\"` under [context]"
            } else {
                "offer fewer tools, or have windowsill name most of them by index: `tools = \"auto\"` under [context], or the header x-windowsill-tools: auto"
            };
            format!(
                "the system prompt and tools alone do not fit; load `{model}` with a larger context (its window was {source}), {instead}"
            )
        } else {
            format!(
                "shorten the last message, lower max_tokens, or load `{model}` with a larger context (its window was {source})"
            )
        };
        Error::Client {
            status: 400,
            code: Some("context_length_exceeded"),
            param: Some("messages".into()),
            message,
            hint: Some(hint),
            sizes: Some((prompt, window)),
        }
    }
}

impl Error {
    /// The same error with another next step.
    pub fn with_hint(mut self, text: &str) -> Error {
        if let Error::Client { hint, .. } = &mut self {
            *hint = Some(text.to_owned());
        }
        self
    }
}

impl From<WireError> for Error {
    fn from(e: WireError) -> Error {
        Error::Unread(e)
    }
}

impl From<upstream::Error> for Error {
    fn from(source: upstream::Error) -> Error {
        let hint = source.is_gone().then(|| "is the inference server running, and is its URL right? Without --upstream, `windowsill` looks for one on ports 11434, 8080, 9931, 1234 and 8000".to_owned());
        let status = if matches!(source, upstream::Error::Timeout { .. }) { 504 } else { 502 };
        Error::Upstream { status, source, hint }
    }
}

impl From<store::Error> for Error {
    fn from(source: store::Error) -> Error {
        if source.is_unwritable() {
            return Error::Record { source };
        }
        if matches!(source, store::Error::Overtaken) {
            let message = "somebody changed the same thing a moment before, through another windowsill";
            return Error::client(409, "changed_meanwhile", message, "look at what it is now, and send it again");
        }
        Error::Internal { doing: "use the record", source: Box::new(source) }
    }
}

impl Error {
    /// The `error` in OpenAI's shape. Details of our own faults stay in the log.
    pub fn openai(&self) -> Value {
        let with_hint = |message: &str, hint: &Option<String>| match hint {
            Some(hint) => format!("{}. Hint: {hint}.", message.trim_end_matches('.')),
            None => message.to_owned(),
        };
        let (kind, code, param, message) = match self {
            Error::Client { code, param, message, hint, status, .. } => {
                let kind = match status {
                    // OpenAI's own type for what a field names and nobody has.
                    404 | 410 | 413 if param.is_some() => "invalid_request_error",
                    401 | 403 => "authentication_error",
                    404 | 410 => "not_found_error",
                    429 => "rate_limit_error",
                    502 => "upstream_error",
                    503 => "service_unavailable_error",
                    _ => "invalid_request_error",
                };
                (kind, *code, param.clone(), with_hint(message, hint))
            }
            Error::Unread(e) => ("invalid_request_error", None, e.param().map(str::to_owned), e.to_string()),
            Error::Upstream { source, hint, .. } => {
                ("upstream_error", Some("upstream_unreachable"), None, with_hint(&chain(source), hint))
            }
            Error::Record { source } => {
                let hint = Some(source.hint().to_owned());
                ("service_unavailable_error", Some("record_unwritable"), None, with_hint(&self.to_string(), &hint))
            }
            Error::Internal { .. } => {
                ("internal_error", Some("internal_error"), None, format!("windowsill {self}; its log has the details"))
            }
        };
        let mut error = json!({"message": message, "type": kind, "param": param, "code": code});
        if let Error::Client { sizes: Some((prompt, window)), .. } = self {
            // llama.cpp's names for them: some clients read the numbers there.
            error["n_prompt_tokens"] = json!(prompt);
            error["n_ctx"] = json!(window);
        }
        error
    }

    /// Says in the log that a request got this.
    pub fn log(&self) {
        match self {
            Error::Client { .. } | Error::Unread(_) => {
                warn!(status = self.status(), error = %line(&self.to_string()), "request refused")
            }
            Error::Upstream { source, .. } => {
                warn!(status = self.status(), error = %line(&chain(source)), "upstream failed");
            }
            Error::Record { .. } => error!(status = self.status(), error = %line(&self.to_string()), "request refused"),
            Error::Internal { source, .. } => error!(error = %self, cause = %chain(source.as_ref()), "internal error"),
        }
    }
}

/// An error and its causes in one line.
fn chain(e: &dyn std::error::Error) -> String {
    let mut out = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        out.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_is_about_what_takes_the_room() {
        let told = |system: Tokens, tools: Tokens, history: Tokens| {
            let regions = Regions { system, tools, history, ..Regions::default() };
            let told = Error::cannot_fit("m", 4096, "configured", &regions, 3500).openai();
            told["message"].as_str().expect("a text").to_owned()
        };
        for (regions, advised, not) in [
            ((5000, 0, 10), "`system = \"index\"`", "fewer tools"),
            ((5000, 900, 10), "`system = \"index\"`", "`tools = \"auto\"`"),
            ((900, 5000, 10), "`tools = \"auto\"`", "`system = \"index\"`"),
            ((900, 90, 5000), "shorten the last message", "index"),
        ] {
            let (system, tools, history) = regions;
            let message = told(system, tools, history);
            let hint = message.split("Hint: ").nth(1).expect("a hint");
            assert!(hint.contains(advised) && !hint.contains(not), "{regions:?}: {hint}");
        }
    }
}
