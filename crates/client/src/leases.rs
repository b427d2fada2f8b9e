//! For how long what nodes said may be believed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_types::Slot;

/// The leases that the nodes gave this client: one per slot.
pub struct Leases {
    start: Instant,
    /// Ends, in microseconds since the start.
    ends: Vec<AtomicU64>,
}

/// A point in time, in microseconds since the client was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

impl Leases {
    pub fn new(slots: u16) -> Leases {
        Leases { start: Instant::now(), ends: (0..slots).map(|_| AtomicU64::new(0)).collect() }
    }

    pub fn now(&self) -> Moment {
        Moment(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// A lease that counts from when it was asked for: the node counts from later.
    pub fn renew(&self, slot: Slot, asked: Moment, lease_ms: u32) {
        if let Some(end) = self.ends.get(usize::from(slot.0)).filter(|_| lease_ms > 0) {
            end.fetch_max(asked.0 + u64::from(lease_ms) * 1000, Ordering::Relaxed);
        }
    }

    /// What is left of a slot's lease.
    pub fn left(&self, slot: Slot) -> Duration {
        let end = self.ends.get(usize::from(slot.0)).map_or(0, |end| end.load(Ordering::Relaxed));
        Duration::from_micros(end.saturating_sub(self.now().0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_the_question() {
        let leases = Leases::new(2);
        assert_eq!(leases.left(Slot(0)), Duration::ZERO);
        leases.renew(Slot(0), Moment(0), 3_600_000);
        let left = leases.left(Slot(0));
        assert!(left > Duration::ZERO && left <= Duration::from_secs(3600), "{left:?}");
        leases.renew(Slot(0), Moment(0), 0);
        assert!(leases.left(Slot(0)) > Duration::ZERO, "no further lease does not end the one that runs");
        assert_eq!(leases.left(Slot(1)), Duration::ZERO);
        assert_eq!(leases.left(Slot(7)), Duration::ZERO);
    }
}
