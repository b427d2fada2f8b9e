//! The database of pools, with real files; time is what the tests say.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod lives;
mod many;
mod slotted;
