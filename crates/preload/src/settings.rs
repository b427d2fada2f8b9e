//! What the environment and the process's circumstances say, read once at the beginning.
#![allow(unsafe_code, reason = "what the kernel said at the start of the program has no safe interface")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::{Resource, getrlimit};

/// Calls on a description before it is looked at: to reach a file by another way costs as much as some calls.
const AFTER_CALLS: u32 = 6;
/// Bytes that serve as well.
pub const AFTER_BYTES: u64 = 512 << 10;
/// Bytes that are worth it in one call, also in the first: the kernel would make requests of 1 MiB of them, one behind
/// the other, and here they go to all targets at the same time.
pub const LARGE_BYTES: u64 = 4 << 20;

static CALLS: AtomicU32 = AtomicU32::new(AFTER_CALLS);
static REPORTS: AtomicBool = AtomicBool::new(false);
/// True if the size of the files that the program writes is limited.
static LIMITED: AtomicBool = AtomicBool::new(false);

/// Reads them. Whether this library may do anything at all.
pub fn read() -> bool {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    REPORTS.store(variable("BIVOUAC_REPORT").is_some_and(|value| value != "0"), Ordering::Relaxed);
    if let Some(calls) = variable("BIVOUAC_PRELOAD_AFTER").and_then(|value| value.parse().ok()) {
        CALLS.store(calls, Ordering::Relaxed);
    }
    look_at_limits();
    may_act()
}

/// Programs with more rights than who runs them are not meddled with.
fn may_act() -> bool {
    // SAFETY: a number in, a number out.
    unsafe { libc::getauxval(libc::AT_SECURE) == 0 }
}

/// Returns whether calls of MPI-IO may be taken over.
pub fn takes_mpi() -> bool {
    may_act() && std::env::var_os("BIVOUAC_MPIIO").is_none_or(|value| value != "0")
}

/// Returns whether what was done is told at exit.
pub fn reports() -> bool {
    REPORTS.load(Ordering::Relaxed)
}

/// Calls on a description before it is looked at.
pub fn after_calls() -> u32 {
    CALLS.load(Ordering::Relaxed)
}

/// Returns true if there is a limit on the size of files. The kernel keeps to it, with a signal and all; so writes are
/// left to it.
pub fn writes_are_limited() -> bool {
    LIMITED.load(Ordering::Relaxed)
}

/// Looks at the limit, which may be another one now.
pub fn look_at_limits() {
    LIMITED.store(getrlimit(Resource::Fsize).current.is_some(), Ordering::Relaxed);
}
