//! Descriptors that the program around does not know of, kept out of its way.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

/// Puts a descriptor elsewhere in the program's table, and returns it.
type Keep = fn(OwnedFd) -> OwnedFd;

static KEEP: OnceLock<Keep> = OnceLock::new();

/// From now on, sockets that are connected, and descriptors that come over them, are given to `keep` first: for a
/// library in a program that has plans for low numbers. Only the first one of a process counts.
pub fn keep_sockets(keep: Keep) {
    // A second one would have nothing that the first has not.
    let _ = KEEP.set(keep);
}

/// The descriptor, where it is to be.
pub(crate) fn kept(descriptor: OwnedFd) -> OwnedFd {
    match KEEP.get() {
        Some(keep) => keep(descriptor),
        None => descriptor,
    }
}
