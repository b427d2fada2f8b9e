//! `libbivouac_preload`: an accelerator for unchanged programs on a mount.
//!
//! Every descriptor is a real one, opened through the mount: what is not done here, the mount does. After a few calls
//! on a file ([`file`]) this library asks the descriptor who it is ([`adopt`]), joins the formation as a client, and
//! from then on reads and writes itself ([`transfer`]). The kernel keeps the file position. On any doubt the call goes
//! to the kernel.
//!
//! Rules: no threads, no exit, no unwinding into the program, no errno on success. What may run in a signal handler, or
//! in a child of `vfork`, takes no lock and no memory ([`thread`], [`quiet`]). Why it is sound is in
//! docs/decisions/0017-local-direct-access.md.

#![cfg_attr(
    test,
    allow(dead_code, reason = "the calls are not in test binaries, which would call themselves")
)]

// Test binaries must not call themselves instead of libc.
#[cfg(not(test))]
mod calls;

mod adopt;
mod child;
mod devices;
mod direct_file;
mod errno;
mod file;
mod given_up;
mod handlers;
mod hidden;
mod known;
mod members;
mod memory;
mod mpi;
mod names;
mod pending;
mod pool;
mod process;
mod quiet;
mod readable;
mod real;
mod report;
mod serving;
mod settings;
mod stack;
mod table;
mod thread;
mod transfer;
