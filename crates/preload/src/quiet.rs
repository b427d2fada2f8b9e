//! Quiet for a call that takes locks: no handler of the program's runs in this thread meanwhile, which could call again
//! or never return; and the thread is not cancelled. Signals wait, as they do while a local file system reads or
//! writes.
#![allow(unsafe_code, reason = "signals and cancelling have no safe interface")]

use std::ffi::{c_int, c_long};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::errno::ErrnoGuard;
use crate::thread::CallGuard;
use crate::{handlers, memory, real, stack};

/// Signals by number, the first of them in the lowest bit, as the kernel has them.
type Signals = u64;

const SIGNALS: c_int = 64;
/// Come from what the thread itself does; to wait with them would be its end.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Signals that the program has a handler for.
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// True if one of these may come again while it runs, and is not counted: then nobody can tell whether a handler runs.
static NESTING: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn pthread_setcancelstate(new: c_int, old: *mut c_int) -> c_int;
}
const CANCEL_DISABLE: c_int = 1;

fn bit(signal: c_int) -> Signals {
    if (1..=SIGNALS).contains(&signal) { 1 << (signal - 1) } else { 0 }
}

/// Looks at the handler of one signal.
pub fn look(signal: c_int) {
    if bit(signal) == 0 || FAULTS.contains(&signal) {
        return;
    }
    let _errno = ErrnoGuard::new();
    // SAFETY: zeros are a value of it.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and there is room for what is found.
    if unsafe { real::sigaction(signal, ptr::null(), &raw mut found) } != 0 {
        return;
    }
    if matches!(found.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
        HANDLED.fetch_and(!bit(signal), Ordering::AcqRel);
    } else {
        HANDLED.fetch_or(bit(signal), Ordering::AcqRel);
        if found.sa_flags & libc::SA_NODEFER != 0 && !handlers::is_counted(found.sa_sigaction) {
            NESTING.store(true, Ordering::Release);
        }
    }
}

/// Looks at all of them.
pub fn look_at_all() {
    (1..=SIGNALS).for_each(look);
}

/// Quiet as long as it lives. What the system says meanwhile is not seen in `errno`.
pub struct SignalBlock {
    busy: Option<CallGuard>,
    before: Option<Signals>,
    cancelling: c_int,
    _errno: ErrnoGuard,
}

impl SignalBlock {
    /// Keeps signals waiting for a thread that serves a call, until the quiet ends: a handler that waited meanwhile may
    /// jump away then. `None` if there may be a handler under way already, where signals are kept waiting that have
    /// one; or if there is too little memory, or room on the stack.
    pub fn enter(busy: CallGuard) -> Option<SignalBlock> {
        SignalBlock::begin(Some(busy))
    }

    fn begin(busy: Option<CallGuard>) -> Option<SignalBlock> {
        if handlers::is_running() {
            return None;
        }
        let errno = ErrnoGuard::new();
        let handled = HANDLED.load(Ordering::Acquire);
        let before = if handled == 0 { None } else { Some(change(libc::SIG_BLOCK, handled)?) };
        if let Some(before) = before.filter(|before| before & handled != 0 || NESTING.load(Ordering::Acquire))
        {
            drop(busy);
            change(libc::SIG_SETMASK, before);
            return None;
        }
        if !memory::is_there() || !stack::has_room() {
            drop(busy);
            before.map(|before| change(libc::SIG_SETMASK, before));
            return None;
        }
        let mut cancelling = 0;
        // SAFETY: there is room for the old state.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancelling) };
        Some(SignalBlock { busy, before, cancelling, _errno: errno })
    }
}

impl Drop for SignalBlock {
    fn drop(&mut self) {
        drop(self.busy.take());
        // SAFETY: the state that was there before.
        unsafe { pthread_setcancelstate(self.cancelling, ptr::null_mut()) };
        if let Some(before) = self.before {
            change(libc::SIG_SETMASK, before);
        }
    }
}

/// Changes which signals wait; which did before.
fn change(how: c_int, signals: Signals) -> Option<Signals> {
    let mut before: Signals = 0;
    let (new, old) = ((&raw const signals) as c_long, (&raw mut before) as c_long);
    let length = size_of::<Signals>() as c_long;
    // SAFETY: both sets live until the call returns, and are as long as is said. The kernel's call is used because
    // libc's leaves out two signals of its own.
    let changed =
        unsafe { real::syscall(libc::SYS_rt_sigprocmask, c_long::from(how), new, old, length, 0, 0) };
    (changed == 0).then_some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn handler(_signal: c_int) {}

    fn handle(signal: c_int, handler: libc::sighandler_t) {
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(signal, handler) };
        look(signal);
    }

    #[test]
    fn handled_signals_wait_and_where_they_wait_there_is_no_quiet() {
        let waiting = || change(libc::SIG_BLOCK, 0).unwrap();
        handle(libc::SIGWINCH, handler as extern "C" fn(c_int) as libc::sighandler_t);
        let before = waiting();
        let quiet = SignalBlock::begin(None).unwrap();
        assert_eq!(waiting(), before | bit(libc::SIGWINCH));
        assert!(SignalBlock::begin(None).is_none());
        drop(quiet);
        assert_eq!(waiting(), before);
        change(libc::SIG_BLOCK, bit(libc::SIGWINCH));
        assert!(SignalBlock::begin(None).is_none(), "a handler may be under way");
        change(libc::SIG_SETMASK, before);
        handle(libc::SIGWINCH, libc::SIG_DFL);
        let quiet = SignalBlock::begin(None).unwrap();
        assert_eq!(waiting(), before);
        drop(quiet);
    }

    #[test]
    fn errno_stays_as_it_was() {
        crate::errno::set(libc::EXDEV);
        let quiet = SignalBlock::begin(None).unwrap();
        crate::errno::set(libc::EIO);
        drop(quiet);
        assert_eq!(crate::errno::get(), libc::EXDEV);
    }
}
