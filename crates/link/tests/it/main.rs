//! All integration tests of the crate, in one binary: it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod attacked;
mod conformance;
mod far_side;
mod faults;
mod relay;
