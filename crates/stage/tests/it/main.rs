//! All integration tests of the crate, in one binary: it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod archived;
mod copy;
mod faults;
mod jobs;
mod random;
mod swapped;
mod trees;
