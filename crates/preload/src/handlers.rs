//! Handlers that may be interrupted by their own signal (`SA_NODEFER`). Of others the kernel shows that they may be
//! running: their signal waits. Of these nothing does, so a function of this library is called first, which counts, and
//! calls them.
#![allow(unsafe_code, reason = "handlers are pointers")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::sighandler_t as Handler;

use crate::{real, thread};

const SIGNALS: usize = 65;

/// The program's handlers that are called by ours.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(libc::SIG_DFL) }; SIGNALS];

thread_local! {
    /// Number of handlers that this thread is in. One left by a jump stays counted: the kernel serves this thread from
    /// then on.
    static RUNNING: Cell<u32> = const { Cell::new(0) };
}

type Function = unsafe extern "C-unwind" fn(c_int, *mut c_void, *mut c_void);

unsafe extern "C-unwind" fn counted(signal: c_int, info: *mut c_void, context: *mut c_void) {
    let Some(handler) = place(signal).map(|place| place.load(Ordering::Acquire)) else { return };
    if matches!(handler, libc::SIG_DFL | libc::SIG_IGN) {
        return;
    }
    // SAFETY: the program gave it as a handler. The kernel passes all three whatever the handler asked for.
    let handler = unsafe { std::mem::transmute::<Handler, Function>(handler) };
    // Only a thread that is ending has no count.
    let _ = RUNNING.try_with(|running| running.set(running.get() + 1));
    // SAFETY: as the kernel would call it.
    unsafe { handler(signal, info, context) };
    let _ = RUNNING.try_with(|running| running.set(running.get().saturating_sub(1)));
}

fn place(signal: c_int) -> Option<&'static AtomicUsize> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

/// Returns whether this thread is in one of them.
pub fn is_running() -> bool {
    RUNNING.try_with(Cell::get) != Ok(0)
}

/// Returns whether a handler is ours, which counts.
pub fn is_counted(handler: Handler) -> bool {
    handler == counted as Function as Handler
}

/// Returns the program's handler of a signal, if it is called by ours.
pub fn of(signal: c_int) -> Handler {
    place(signal).map_or(libc::SIG_DFL, |place| place.load(Ordering::Acquire))
}

/// Like `sigaction`.
///
/// # Safety
/// As of `sigaction`.
pub unsafe fn set(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let before = of(signal);
    // SAFETY: as the caller says.
    let mut changed = unsafe { new.as_ref() }.copied();
    let counts = changed.as_mut().is_some_and(|new| !thread::is_vforked() && count(signal, new));
    let passed = if counts { changed.as_ref().map_or(new, std::ptr::from_ref) } else { new };
    // SAFETY: as the caller says; what is passed lives until the call returns.
    let outcome = unsafe { real::sigaction(signal, passed, old) };
    if outcome != 0 {
        if let Some(place) = place(signal).filter(|_| counts) {
            place.store(before, Ordering::Release);
        }
        return outcome;
    }
    // SAFETY: as the caller says.
    if let Some(old) = unsafe { old.as_mut() }
        && is_counted(old.sa_sigaction)
    {
        old.sa_sigaction = before;
    }
    outcome
}

/// Puts our handler in the place of one that has to be counted.
fn count(signal: c_int, new: &mut libc::sigaction) -> bool {
    let nests = new.sa_flags & libc::SA_NODEFER != 0;
    if !nests || matches!(new.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) || is_counted(new.sa_sigaction) {
        return false;
    }
    let Some(place) = place(signal) else { return false };
    place.store(new.sa_sigaction, Ordering::Release);
    new.sa_sigaction = counted as Function as Handler;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static SEEN: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handler(_signal: c_int) {
        SEEN.fetch_add(1 + u32::from(is_running()), Ordering::Relaxed);
    }

    fn set_flags(flags: c_int) -> libc::sigaction {
        // SAFETY: zeros are values; the handler adds to a number.
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            let mut old: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = handler as extern "C" fn(c_int) as Handler;
            new.sa_flags = flags;
            assert_eq!(set(libc::SIGURG, &raw const new, &raw mut old), 0);
            libc::raise(libc::SIGURG);
            old
        }
    }

    #[test]
    fn handlers_that_may_nest_are_counted_and_look_as_they_are() {
        assert_eq!(set_flags(libc::SA_NODEFER).sa_sigaction, libc::SIG_DFL);
        assert_eq!((SEEN.swap(0, Ordering::Relaxed), is_running()), (2, false));
        let old = set_flags(libc::SA_RESTART);
        assert_eq!(old.sa_sigaction, handler as extern "C" fn(c_int) as Handler, "the program's own");
        assert_eq!(SEEN.load(Ordering::Relaxed), 1, "the kernel shows it of this one");
    }
}
