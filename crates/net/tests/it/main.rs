//! All integration tests of the crate, in one binary: it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod damaged;
mod garbage;
mod listeners;
mod odd_servers;
mod openings;
mod protocol_doc;
mod reconnect;
mod server;
mod starved;
mod transports;
mod world;
