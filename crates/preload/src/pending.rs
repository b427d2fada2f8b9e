//! What has to be said to the formation before something else happens: times of what was written, files that are closed, the
//! end of the program.
#![allow(unsafe_code, reason = "what is given up is passed on by pointer")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::adopt::Direct;
use crate::file::{self, Held};
use crate::quiet::Quiet;
use crate::thread::Busy;
use crate::{members, table};

/// How long the end waits for other threads that are in the middle of a call.
const END_WAIT: Duration = Duration::from_secs(1);

/// Threads in the middle of a call that is done here.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Set when no more calls are done here.
static CLOSED: AtomicBool = AtomicBool::new(true);
/// Whether anything was written whose time may not have been told.
static UNTOLD: AtomicBool = AtomicBool::new(false);
/// What could not be closed where it was given up.
static GIVEN_UP: AtomicPtr<Direct> = AtomicPtr::new(ptr::null_mut());

/// In the middle of a call that is done here.
pub struct Inside(());

impl Inside {
    /// `None` if calls are not done here any more.
    pub fn enter() -> Option<Inside> {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(());
        (!CLOSED.load(Ordering::SeqCst)).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// From now on calls are done here.
pub fn open() {
    CLOSED.store(false, Ordering::SeqCst);
}

/// Whether they are.
pub fn is_open() -> bool {
    !CLOSED.load(Ordering::Relaxed)
}

/// In the child after a fork.
pub fn renew() {
    INSIDE.store(0, Ordering::SeqCst);
    UNTOLD.store(false, Ordering::Relaxed);
    GIVEN_UP.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Nobody has the file open in this process any more.
pub fn give_up(direct: *mut Direct) {
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

/// Closes what was given up, if this is a place to do so; otherwise the next one does.
pub fn close_given_up() {
    if GIVEN_UP.load(Ordering::Relaxed).is_null() {
        return;
    }
    if let Some(busy) = Busy::enter()
        && let Some(_quiet) = Quiet::enter(busy)
    {
        close_all();
    }
}

fn close_all() {
    let mut next = GIVEN_UP.swap(ptr::null_mut(), Ordering::AcqRel);
    while !next.is_null() {
        // SAFETY: a box's, put there by `give_up`, and taken off by this thread alone.
        let direct = unsafe { Box::from_raw(next) };
        next = direct.next.load(Ordering::Relaxed);
        drop(direct);
    }
}

/// Something was written whose time may be told late.
pub fn is_untold() {
    if !UNTOLD.load(Ordering::Relaxed) {
        UNTOLD.store(true, Ordering::Release);
    }
}

/// Tells the times of all that was written: the kernel is about to be asked for them, or told others.
#[inline]
pub fn tell() {
    if UNTOLD.load(Ordering::Acquire) {
        tell_those(file::held, true);
    }
}

/// The same of one descriptor's file.
#[inline]
pub fn tell_of(fd: i32) {
    if UNTOLD.load(Ordering::Acquire) {
        tell_those(|| table::hold(fd).into_iter(), false);
    }
}

#[cold]
fn tell_those<I: Iterator<Item = Held>>(files: impl FnOnce() -> I, all: bool) {
    if let Some(busy) = Busy::enter()
        && let Some(_quiet) = Quiet::enter(busy)
        && let Some(_inside) = Inside::enter()
    {
        if all {
            UNTOLD.store(false, Ordering::SeqCst);
        }
        let told = || files().all(|held| held.direct().is_none_or(Direct::tell));
        if !catch_unwind(AssertUnwindSafe(told)).unwrap_or(false) {
            // Whatever went wrong, the rest is told at the next occasion.
            is_untold();
        }
    }
}

/// Ends it all, also where that cannot be done in order: what is known of descriptors may be wrong from now on.
#[cold]
pub fn cease() {
    end();
    CLOSED.store(true, Ordering::SeqCst);
}

/// Ends it all: from now on all calls are the kernel's. At the end of the program, and before it becomes another one or
/// restricts itself.
pub fn end() {
    if CLOSED.load(Ordering::Relaxed) {
        return;
    }
    if let Some(busy) = Busy::enter()
        && let Some(_quiet) = Quiet::enter(busy)
    {
        CLOSED.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + END_WAIT;
        while INSIDE.load(Ordering::SeqCst) > 0 {
            if Instant::now() > deadline {
                return;
            }
            std::thread::yield_now();
        }
        file::all().for_each(|file| give_up(file.take_direct()));
        close_all();
        let _ = catch_unwind(members::leave);
    }
}
