//! Descriptors that the program around does not know of, kept out of its way.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

/// Puts a descriptor elsewhere in the program's table, and returns it.
type Keep = fn(OwnedFd) -> OwnedFd;

static KEEP: OnceLock<Keep> = OnceLock::new();

/// Registers `keep`, which is called first for sockets that are connected and for descriptors that arrive over them:
/// for a library in a program with plans for low numbers. Only the first call of a process counts.
pub fn keep_sockets(keep: Keep) {
    // A second function would find no descriptor that the first has not moved.
    let _ = KEEP.set(keep);
}

/// Returns the descriptor, where it is to be.
pub(crate) fn kept(descriptor: OwnedFd) -> OwnedFd {
    match KEEP.get() {
        Some(keep) => keep(descriptor),
        None => descriptor,
    }
}
