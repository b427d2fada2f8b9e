//! For how long what nodes said may be believed.

use std::time::{Duration, Instant};

use bivouac_types::Slot;
use parking_lot::Mutex;

/// The leases that the nodes gave this client: one per slot.
pub struct Leases {
    start: Instant,
    slots: Vec<Mutex<Lease>>,
}

#[derive(Clone, Copy)]
struct Lease {
    end: Moment,
    run: Run,
}

/// A time through which a slot's lease was renewed before it was over: nobody else has changed anything there
/// between two moments of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run(pub u32);

/// A point in time, in microseconds since the client was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Leases {
    pub fn new(slots: u16) -> Leases {
        let lease = || Mutex::new(Lease { end: Moment(0), run: Run(0) });
        Leases { start: Instant::now(), slots: (0..slots).map(|_| lease()).collect() }
    }

    pub fn now(&self) -> Moment {
        Moment(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// A lease that counts from when it was asked for: the node counts from later. The run that it belongs to, if it
    /// is not over yet.
    pub fn renew(&self, slot: Slot, asked: Moment, lease_ms: u32) -> Option<Run> {
        let mut lease = self.slots.get(usize::from(slot.0))?.lock();
        // Within the lock: a run that is over stays so.
        let (now, end) = (self.now(), Moment(asked.0 + u64::from(lease_ms) * 1000));
        if lease.end <= now && end > now {
            lease.run.0 = lease.run.0.wrapping_add(1);
        }
        lease.end = lease.end.max(end);
        (lease_ms > 0 && lease.end > now).then_some(lease.run)
    }

    /// The run of a slot's lease, while it lasts.
    pub fn run(&self, slot: Slot) -> Option<Run> {
        let lease = self.slots.get(usize::from(slot.0))?.lock();
        (lease.end > self.now()).then_some(lease.run)
    }

    /// What is left of a slot's lease.
    pub fn left(&self, slot: Slot) -> Duration {
        let end = self.slots.get(usize::from(slot.0)).map_or(0, |lease| lease.lock().end.0);
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

    #[test]
    fn a_run_ends_with_its_last_lease() {
        let leases = Leases::new(1);
        assert_eq!(leases.run(Slot(0)), None);
        let first = leases.renew(Slot(0), leases.now(), 20);
        assert_eq!((leases.renew(Slot(0), leases.now(), 3_600_000), leases.run(Slot(0))), (first, first));
        assert_eq!(leases.renew(Slot(0), Moment(0), 0), None);
        leases.slots[0].lock().end = leases.now();
        assert_eq!(leases.run(Slot(0)), None);
        assert_eq!(leases.renew(Slot(0), Moment(0), 0), None, "one that is over when it comes");
        let second = leases.renew(Slot(0), leases.now(), 3_600_000);
        assert!(second.is_some() && second != first);
    }
}
