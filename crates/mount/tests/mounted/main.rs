//! Mounts that are served: over a socket that plays the kernel, and under the real one.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "helpers of tests count as tests")]

mod asynchronous;
mod attached;
mod everyday;
mod fuzzed;
mod helper;
mod locks;
mod mappings;
mod memory;
#[path = "../../../../fuzz/mutate.rs"]
mod mutate;
mod protocol;
mod resumed;
mod socket;
