//! Generations of a client's connections to a node: what a newer one has superseded changes nothing any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::time::{ClockId, clock_gettime};

const NS_PER_S: u64 = 1_000_000_000;

/// The connections that a client made to a node since it last lost one there. When the client connects anew, that
/// generation is superseded before the client hears that it is connected, so before it repeats anything: a request that
/// is still under way over one of its connections has been asked again, or given up. A connection that looks open here
/// may be half-open, so this, and not the socket, says whether a request still counts.
///
/// A handler asks under the lock that its request and the repetition both take. So either the original is carried out
/// first, and the repetition finds that it was; or it is refused.
#[derive(Clone, Debug, Default)]
pub struct Generation(Arc<AtomicBool>);

impl Generation {
    /// Returns whether its client has connected anew since, or was forgotten.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Has requests over its connections change nothing from now on.
    pub fn supersede(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Each is equal to itself alone.
impl PartialEq for Generation {
    fn eq(&self, other: &Generation) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Returns the number of a client's next generation, above `last`, and above those of the processes that were this
/// client before: the clock is the machine's, and a client does not move to another machine.
pub(crate) fn next_number(last: u64) -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (s, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    // The clock may stand still between two calls, and a repeated number would supersede nothing.
    s.saturating_mul(NS_PER_S).saturating_add(ns).max(last.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_and_are_never_none() {
        let first = next_number(0);
        assert!(first > 0 && next_number(first) > first);
        assert_eq!(next_number(u64::MAX - 1), u64::MAX);
    }
}
