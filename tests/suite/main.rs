//! The test suite: one binary, so that it links once; one module a subject.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it stands, helpers included")]
#![allow(clippy::print_stderr, reason = "a test that skips says so")]

mod admission;
mod again;
mod agree;
mod answers;
mod apart;
mod ask;
mod background;
mod behind;
mod belief;
mod busy;
mod bytes;
mod checkpoint;
mod cli;
mod clients;
mod compacted_responses;
mod config;
mod crowded;
mod curate;
mod current;
mod dialects;
mod digest;
mod docs;
mod doors;
mod dry_run;
mod errors;
mod failed;
mod fit;
mod fleet;
mod follow;
mod foreign;
mod found;
mod fuzz;
mod gauge;
mod generate;
mod guard;
mod helpers;
mod hostile;
mod house;
mod inside;
mod keys;
mod lines;
mod managed;
mod mcp;
mod memory;
#[cfg(target_os = "linux")]
mod nvml;
mod odd;
mod older;
mod openai_state;
mod openapi;
#[cfg(feature = "engine")]
mod own_count;
mod page;
mod parts;
mod pins;
mod planning;
mod prefix;
#[cfg(all(feature = "engine", target_arch = "x86_64"))]
mod processor;
mod profiles;
mod proxy;
mod publish;
mod random;
mod real_input;
mod recall;
mod record;
mod reference;
mod relay;
mod replies;
mod routing;
mod rules;
#[cfg(feature = "engine")]
mod service;
mod sessions;
mod settings;
mod shadow;
mod shown;
mod simulation;
mod statuses;
mod steer;
mod support;
mod tasks;
mod telemetry;
#[cfg(feature = "engine")]
mod templates;
mod tidy;
#[cfg(unix)]
mod top;
mod trace;
mod waiting;
mod walk;
mod wrap;
