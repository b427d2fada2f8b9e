//! Files that no descriptor means any more, until they are closed at their homes: where the last one is closed no lock
//! may be taken.
#![allow(unsafe_code, reason = "what is given up is passed on by pointer")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::direct_file::DirectFile;
use crate::quiet::SignalBlock;
use crate::thread::CallGuard;

/// The first of the queue.
static GIVEN_UP: AtomicPtr<DirectFile> = AtomicPtr::new(ptr::null_mut());

/// Queues a file that no descriptor of this process means any more, to be closed at its home. Null is none.
pub fn give_up(direct: *mut DirectFile) {
    // SAFETY: null, or a box's that nobody else has any more.
    let Some(given) = (unsafe { direct.as_ref() }) else { return };
    let mut head = GIVEN_UP.load(Ordering::Relaxed);
    loop {
        given.next.store(head, Ordering::Relaxed);
        match GIVEN_UP.compare_exchange_weak(head, direct, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => head = other,
        }
    }
}

/// Closes the queued files, unless this thread must not take locks here; then a later call does.
pub fn close_given_up() {
    if GIVEN_UP.load(Ordering::Relaxed).is_null() {
        return;
    }
    if let Some(busy) = CallGuard::enter()
        && let Some(_quiet) = SignalBlock::enter(busy)
    {
        close_all();
    }
}

/// Closes the queued files. Only where locks may be taken.
pub fn close_all() {
    let mut next = GIVEN_UP.swap(ptr::null_mut(), Ordering::AcqRel);
    while !next.is_null() {
        // SAFETY: a box's, put there by `give_up`, and taken off by this thread alone.
        let direct = unsafe { Box::from_raw(next) };
        next = direct.next.load(Ordering::Relaxed);
        drop(direct);
    }
}

/// Drops the list in the child after a fork: the parent closes them.
pub fn renew() {
    GIVEN_UP.store(ptr::null_mut(), Ordering::Relaxed);
}
