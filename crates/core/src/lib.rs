//! What windowsill does to a history, as pure functions over values: it knows no clock, no disk, no network and no log.
//!
//! - [`conversation`]: messages, steps and turns, chain hashes, edits; [`wire`]: bytes to a conversation and back, a
//!   folder a dialect.
//! - [`plan`]: what should change, one file a rule; it returns a [`plan::Plan`] with its reasons.
//! - [`apply`]: makes a plan into the edits of a new view, with [`preview`], [`brief`], [`pinned`] and [`unwrap`].
//! - [`admission`]: which of a client's tools stand in the prompt in full, and how the others are named, told and called.
//! - [`settings`]: those of requests that a profile sets or strips; [`wire`] writes them.
//! - [`export`]: a conversation as a file for somebody to keep.
//! - [`question`], [`completion`]: what a model is asked about an original; what stands of a task that is done.
//! - [`route`]: which of several servers of one model gets a request.
//! - [`recall`]: the tool by which a model gets an original back: its definition, arguments and pages; [`passage`]: the search;
//!   [`remind`]: what comes back by itself.
//!
//! A history is planned in ten lines. Costs may be counted or estimated; the plan says what to change, and why:
//!
//! ```
//! use windowsill_core::plan::{Cost, Facts, Policy, plan};
//! use windowsill_core::wire::openai_chat;
//!
//! let read = "fn part() {}\\n".repeat(200);
//! let step = format!(r#"{{"role": "assistant", "tool_calls": [{{"id": "ID", "type": "function",
//!     "function": {{"name": "read_file", "arguments": "{{}}"}}}}]}}, {{"role": "tool", "tool_call_id": "ID", "content": "{read}"}}"#);
//! let steps: Vec<String> = (0..9).map(|n| step.replace("ID", &format!("call_{n}"))).collect();
//! let body = format!(r#"{{"model": "m", "messages": [{{"role": "user", "content": "Fix it."}}, {}]}}"#, steps.join(", "));
//! let request = openai_chat::parse(&body.into())?;
//! let cost = |bytes: usize| Cost { text: bytes as u32 / 4 + 4, ..Cost::default() };
//! let costs = request.conversation.body.iter().map(|m| Cost { calls: vec![9; m.calls.len()], ..cost(m.bytes().len()) });
//! let facts = Facts { window: 4096, output_reserved: 512, costs: costs.collect(), ..Facts::default() };
//! let plan = plan(&request.conversation, &facts, &Policy::default());
//! assert!(plan.before.prompt() > 4096 && plan.after.prompt() < 4096 - 512);
//! plan.because.iter().for_each(|why| println!("{why}"));
//! # Ok::<(), windowsill_core::wire::WireError>(())
//! ```
//!
//! The same values always give the same plan, and planning what a plan left changes nothing. Versions below 1.0 may change any
//! signature; what is written into a record stays readable.

pub mod admission;
pub mod apply;
pub mod brief;
pub mod completion;
pub mod conversation;
pub mod export;
pub mod passage;
pub mod pinned;
pub mod plan;
pub mod preview;
pub mod question;
pub mod recall;
pub mod remind;
pub mod route;
pub mod salience;
pub mod settings;
pub mod unwrap;
pub mod wire;
