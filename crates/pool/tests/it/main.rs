//! The database of pools, with real files and a real server; time is what the tests say.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod databases;
mod encrypted;
mod many;
mod served;
mod server;

/// In a file.
#[allow(clippy::duplicate_mod, reason = "the same is promised of both kinds of databases")]
#[path = "."]
mod in_a_file {
    use super::databases::sqlite as database;

    #[path = "lives.rs"]
    mod lives;
    #[path = "slotted.rs"]
    mod slotted;
}

/// At a server.
#[allow(clippy::duplicate_mod, reason = "the same is promised of both kinds of databases")]
#[path = "."]
mod at_a_server {
    use super::databases::postgres as database;

    #[path = "lives.rs"]
    mod lives;
    #[path = "slotted.rs"]
    mod slotted;
}
