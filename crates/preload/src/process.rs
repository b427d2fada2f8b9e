//! Forks: how a child is noticed, also one that was made without libc, and since when descriptions are shared.
#![allow(unsafe_code, reason = "a page that the kernel wipes in children has no safe interface")]

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

const PAGE: usize = 4096;

/// A word that is 1 in the process that wrote it, and 0 in its children, also those that were made without libc.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// The function that makes a child a process of its own.
static RENEW_CHILD: OnceLock<fn()> = OnceLock::new();
/// Number of times that descriptions may have come to other processes.
static SHARES: AtomicU32 = AtomicU32::new(0);

/// Begins to watch for forks: `renew_child` runs in each child, before its first call is served. It must take no lock,
/// as their holders may be threads that a child does not have.
pub fn watch(renew_child: fn()) {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is asked for, so nothing that is mapped already is touched.
    let Ok(page) = (unsafe { mmap_anonymous(ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) }) else {
        return;
    };
    // SAFETY: the page is ours. Without the advice children of `fork` are still noticed.
    let _ = unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) };
    // Before the mark, from which on a child is noticed.
    let _set_once = RENEW_CHILD.set(renew_child);
    MARK.store(page.cast(), Ordering::Release);
    mark().store(1, Ordering::Relaxed);
    // SAFETY: the functions are there as long as the library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(prepare), None, Some(renew));
    }
}

fn mark() -> &'static AtomicU32 {
    static NONE: AtomicU32 = AtomicU32::new(1);
    // SAFETY: null, or a page that is never unmapped.
    unsafe { MARK.load(Ordering::Relaxed).as_ref() }.unwrap_or(&NONE)
}

/// Notes that other processes may have all descriptions that there are, from now on.
pub fn share() {
    SHARES.fetch_add(1, Ordering::AcqRel);
}

/// Returns the number of times that that was so.
pub fn shares() -> u32 {
    SHARES.load(Ordering::Acquire)
}

/// Notices that this is a child.
#[inline]
pub fn renew_if_forked() {
    if mark().load(Ordering::Relaxed) == 0 {
        share();
        renew();
    }
}

extern "C" fn prepare() {
    share();
}

extern "C" fn renew() {
    mark().store(1, Ordering::Relaxed);
    if let Some(renew_child) = RENEW_CHILD.get() {
        renew_child();
    }
}
