//! Answers without waiting. A request is first carried out on the thread that waits for sockets, in which nothing may
//! wait: what is not at hand ends that, and the same is done again on a thread that may block. Most requests for what
//! was sent a moment ago end at the first.

use std::cell::Cell;

use bivouac_types::{Errno, FsError};

/// Upper limit of bytes read without blocking.
pub const LEN_MAX: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    MayWait,
    AtOnce,
    /// Something was not at hand.
    Ended,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::MayWait) };
}

/// Ends the mode however what is done in it ends.
struct Scope;

impl Drop for Scope {
    fn drop(&mut self) {
        MODE.set(Mode::MayWait);
    }
}

/// Runs `act` without blocking; `None` if it would have had to wait.
pub fn at_once<T>(act: impl FnOnce() -> T) -> Option<T> {
    MODE.set(Mode::AtOnce);
    // The thread serves other requests next, also after a panic.
    let _scope = Scope;
    let done = act();
    (MODE.get() == Mode::AtOnce).then_some(done)
}

/// Returns whether this thread must not block.
pub fn may_not_wait() -> bool {
    MODE.get() != Mode::MayWait
}

/// Returns the error by which an operation unwinds where it would have to wait. It reaches no client.
pub fn not_at_hand() -> FsError {
    MODE.set(Mode::Ended);
    Errno::EINTR.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_to_wait_comes_to_nothing() {
        assert!(!may_not_wait());
        assert_eq!(at_once(|| (may_not_wait(), 1)), Some((true, 1)));
        assert_eq!(at_once(|| (drop(not_at_hand()), may_not_wait())), None);
        assert_eq!(at_once(|| 2), Some(2), "one request is not the next one");
        assert!(std::panic::catch_unwind(|| at_once(|| panic!("a test"))).is_err());
        assert!(!may_not_wait());
    }
}
