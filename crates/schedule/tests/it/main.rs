//! The machine under events that nobody thought of, and some that somebody did: S427 to S430, S435.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod property;
mod sited;
mod turns;
