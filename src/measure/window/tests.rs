//! Decisions about windows, without a server.
