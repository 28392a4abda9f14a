//! What an agent may have changed in a conversation: pins, and that its task is done. It is done by the running proxy, by the same
//! functions and with the same checks as over HTTP, and only in a conversation that the agent can name.

use serde_json::{Value, json};

use super::{Agent, Arguments, Running, WHICH, say};
use crate::plan::reason::AskedBy;
use crate::proxy::Record;
use crate::proxy::desk::checkpoint::checkpoint;
use crate::proxy::desk::pins::{self, Pinning, Unpinned};
use crate::proxy::desk::running::steer_running;
use crate::proxy::state::steer::When;

/// Who asks, as the running proxy is told.
const AGENT: &str = AskedBy::Agent.as_str();

/// What is asked for.
enum Change {
    /// What is pinned is to be listed.
    Pins,
    Pin(Pinning, When, bool),
    Unpin(u64, When, bool),
    Done(String),
}

impl Change {
    fn read(tool: &str, arguments: &Arguments<'_>) -> Result<Change, String> {
        let how = || Ok::<_, String>((arguments.when()?, arguments.flag("dry_run")?));
        match tool {
            "pins" => Ok(Change::Pins),
            "pin" => {
                let what = match (arguments.count("message")?, arguments.words("text")?) {
                    (Some(at), None) => Pinning::Message(at),
                    (None, Some(text)) => Pinning::Text(text),
                    _ => return Err("a pin is a text or a message: give `text`, or `message`, counted from 0".into()),
                };
                let (when, dry_run) = how()?;
                Ok(Change::Pin(what, when, dry_run))
            }
            "unpin" => {
                let number = arguments.count("pin")?.ok_or("give `pin`: its number, as `pins` lists it")?;
                let (when, dry_run) = how()?;
                Ok(Change::Unpin(number as u64, when, dry_run))
            }
            _ => Ok(Change::Done(arguments.words("note")?.unwrap_or_default())),
        }
    }

    /// How it is asked for over HTTP, below a conversation: method, path and body.
    fn spelled(&self) -> (http::Method, String, Option<Value>) {
        match self {
            Change::Pins => (http::Method::GET, "pins".into(), None),
            Change::Pin(what, when, dry_run) => {
                let (key, what) = match what {
                    Pinning::Text(text) => ("text", json!(text)),
                    Pinning::Message(at) => ("message", json!(at)),
                };
                (
                    http::Method::POST,
                    "pins".into(),
                    Some(json!({key: what, "when": when, "dry_run": dry_run, "by": AGENT})),
                )
            }
            Change::Unpin(number, when, dry_run) => (
                http::Method::DELETE,
                format!("pins/{number}"),
                Some(json!({"when": when, "dry_run": dry_run, "by": AGENT})),
            ),
            Change::Done(note) => (http::Method::POST, "checkpoint".into(), Some(json!({"note": note, "by": AGENT}))),
        }
    }
}

impl Agent {
    /// Has the running proxy change a conversation, once it is sure that the agent may.
    pub(super) async fn change(&self, tool: &str, arguments: &Arguments<'_>) -> Result<String, String> {
        let change = Change::read(tool, arguments)?;
        let record = Record::open(&self.data_dir).map_err(say)?;
        let id = self.scope(&record.store, arguments)?.ok_or(WHICH)?.id;
        drop(record);
        let told = match &self.running {
            Running::At(address, key) => {
                let (method, what, body) = change.spelled();
                steer_running(address, key.as_deref(), method, (&id, &what), body.as_ref()).await
            }
            Running::Here(app) => match change {
                Change::Pins => pins::pins(app, &id).await,
                Change::Pin(what, when, dry_run) => pins::pin(app, &id, what, (when, dry_run), AskedBy::Agent).await,
                Change::Unpin(number, when, dry_run) => {
                    pins::unpin(app, &id, Unpinned(number), (when, dry_run), AskedBy::Agent).await
                }
                Change::Done(note) => checkpoint(app, &id, &note, AskedBy::Agent).await,
            },
        };
        told.map(|told| format!("{told:#}")).map_err(say)
    }

    /// Messages for a new conversation, or what there is to make them of.
    pub(super) fn build(&self, record: &Record, arguments: &Arguments<'_>) -> Result<String, String> {
        let (turns, briefs) = (arguments.turns()?, arguments.briefs()?);
        let id = self.scope(&record.store, arguments)?.ok_or(WHICH)?.id;
        let told = match turns.is_empty() && briefs.is_empty() {
            true => record.segments(&id),
            false => record.build(&id, &turns, &briefs),
        };
        told.map(|told| format!("{told:#}")).map_err(say)
    }
}
