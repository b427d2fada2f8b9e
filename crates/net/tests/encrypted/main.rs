//! What holds in the clear holds over connections that are encrypted, too, and nobody in between reads or changes anything.
//!
//! S426: the tests of transports, and of nodes that go away and come back are run again here; the formation of this program
//! encrypts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod between;
#[path = "../it/reconnect.rs"]
mod reconnect;
#[path = "../it/transports.rs"]
mod transports;
#[path = "../it/world/mod.rs"]
mod world;
