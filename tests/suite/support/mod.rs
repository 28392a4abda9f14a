//! What the tests of the edges are made of: fake servers, a client that sees every byte, the proxy under test.

pub(crate) mod chat;
pub(crate) mod fake;
pub(crate) mod http;
#[path = "../../../crates/record/src/tests/postgres.rs"]
pub(crate) mod postgres;
pub(crate) mod proxy;
pub(crate) mod script;

pub(crate) use chat::{Chat, Dice, MODEL, chat, faults, prose, text, tokens, tool};
pub(crate) use fake::{Fake, Gate, Kind, Play, SUMMARY, Seen, chunk, has_room, sse_head, too_long, whole};
pub(crate) use http::{Answer, Conn, PATIENCE, request};
pub(crate) use proxy::{Served, TestProxy, cli, cli_on_machine};
