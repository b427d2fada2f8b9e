//! Leases on replies of nodes. A lease belongs to the reply that it came with, so it is kept for the thread that got
//! the reply, until that asks for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_types::{Ino, Slot};
use parking_lot::Mutex;

/// The leases that the nodes gave this client: one per slot.
pub struct Leases {
    /// Number of the client among those of the process.
    number: u64,
    start: Instant,
    slots: Vec<Mutex<Lease>>,
}

#[derive(Clone, Copy)]
struct Lease {
    end: ClientTime,
    run: Run,
}

/// A time through which a slot's lease was renewed before it was over: of what others have changed there between two
/// moments of one run, this client has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run(pub u32);

/// A point in time, in microseconds since the client was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientTime(u64);

/// Ends of the leases that came with a thread's last reply.
#[derive(Clone, Copy, Default)]
struct Last {
    /// The client.
    of: u64,
    /// On attributes.
    attrs: Option<(Ino, ClientTime)>,
    /// On an entry of a directory, or its absence.
    name: Option<(Ino, u64, ClientTime)>,
    /// On all of a directory's entries that have attributes, and these.
    page: Option<(Ino, ClientTime)>,
}

static NUMBERS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static LAST: Cell<Last> = const { Cell::new(Last { of: 0, attrs: None, name: None, page: None }) };
}

impl ClientTime {
    /// Returns the time so many microseconds after the client was created.
    #[cfg(test)]
    pub fn of_micros(micros: u64) -> ClientTime {
        ClientTime(micros)
    }

    /// Returns the end of a lease that counts from this moment.
    pub fn plus_lease(self, lease_ms: u32) -> ClientTime {
        ClientTime(self.0 + u64::from(lease_ms) * 1000)
    }
}

impl Leases {
    fn last(&self) -> Last {
        let last = LAST.get();
        if last.of == self.number { last } else { Last { of: self.number, ..Last::default() } }
    }

    /// Takes in the lease of an answer that has attributes.
    pub fn of_attrs(&self, ino: Ino, asked: ClientTime, lease_ms: u32) {
        self.renew(ino.slot(), asked, lease_ms);
        LAST.set(Last { attrs: Some((ino, asked.plus_lease(lease_ms))), page: None, ..self.last() });
    }

    /// Takes in the lease of an answer that says where a name in a directory leads, or that it does not.
    pub fn of_name(&self, slot: Slot, (dir, hash): (Ino, u64), asked: ClientTime, lease_ms: u32) {
        self.renew(slot, asked, lease_ms);
        LAST.set(Last { name: Some((dir, hash, asked.plus_lease(lease_ms))), page: None, ..self.last() });
    }

    /// Takes in the lease of an answer that is a page of a directory.
    pub fn of_page(&self, dir: Ino, asked: ClientTime, lease_ms: u32) {
        LAST.set(Last { page: Some((dir, asked.plus_lease(lease_ms))), ..self.last() });
    }

    /// Returns what is left of the lease on attributes that this thread has just got.
    pub fn left_of_attrs(&self, ino: Ino) -> Duration {
        let Last { attrs, page, .. } = self.last();
        // What came with a listing is under the listing's lease.
        let own = attrs.filter(|(of, _)| *of == ino && page.is_none());
        self.left(own.or(page).map(|(_, end)| end))
    }

    /// Returns what is left of the lease on a name.
    pub fn left_of_name(&self, dir: Ino, hash: u64) -> Duration {
        let Last { name, page, .. } = self.last();
        let own = name.filter(|(of, name, _)| (*of, *name) == (dir, hash) && page.is_none());
        let listed = page.filter(|(of, _)| *of == dir).map(|(_, end)| end);
        self.left(own.map(|(_, _, end)| end).or(listed))
    }

    fn left(&self, end: Option<ClientTime>) -> Duration {
        Duration::from_micros(end.map_or(0, |end| end.0.saturating_sub(self.now().0)))
    }

    pub fn new(slots: u16) -> Leases {
        let lease = || Mutex::new(Lease { end: ClientTime(0), run: Run(0) });
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Leases { number, start: Instant::now(), slots: (0..slots).map(|_| lease()).collect() }
    }

    pub fn now(&self) -> ClientTime {
        ClientTime(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns a lease that counts from when it was asked for: the node counts from later. The run that it belongs to,
    /// if it is not over yet.
    pub fn renew(&self, slot: Slot, asked: ClientTime, lease_ms: u32) -> Option<Run> {
        let mut lease = self.slots.get(usize::from(slot.0))?.lock();
        // Within the lock: a run that is over stays so.
        let (now, end) = (self.now(), asked.plus_lease(lease_ms));
        if lease.end <= now && end > now {
            lease.run.0 = lease.run.0.wrapping_add(1);
        }
        // Answers come in any order: an older one must not shorten the lease.
        lease.end = lease.end.max(end);
        (lease_ms > 0 && lease.end > now).then_some(lease.run)
    }

    /// Returns the run of a slot's lease, while it lasts.
    pub fn run(&self, slot: Slot) -> Option<Run> {
        let lease = self.slots.get(usize::from(slot.0))?.lock();
        (lease.end > self.now()).then_some(lease.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_the_question() {
        let (leases, [one, other]) = (Leases::new(2), [Ino(1), Ino(2)]);
        leases.of_attrs(one, ClientTime(0), 3_600_000);
        let left = leases.left_of_attrs(one);
        assert!(left > Duration::ZERO && left <= Duration::from_secs(3600), "{left:?}");
        assert_eq!(leases.left_of_attrs(other), Duration::ZERO);
    }

    /// S378. A lease on one thing, or one that another thread got, is none on another.
    #[test]
    fn a_lease_is_of_what_the_answer_says_and_of_who_has_it() {
        let (leases, [one, other], hour) = (Leases::new(2), [Ino(1), Ino(2)], 3_600_000);
        leases.of_name(Slot(0), (one, 7), ClientTime(0), hour);
        let names =
            [(one, 7), (one, 8), (other, 7)].map(|(dir, hash)| leases.left_of_name(dir, hash).is_zero());
        assert_eq!((names, leases.left_of_attrs(one)), ([false, true, true], Duration::ZERO));
        std::thread::scope(|scope| {
            scope.spawn(|| leases.of_attrs(other, ClientTime(0), hour));
        });
        assert_eq!(leases.left_of_attrs(other), Duration::ZERO);
        leases.of_attrs(other, ClientTime(0), hour);
        leases.of_attrs(other, ClientTime(0), 0);
        assert_eq!(leases.left_of_attrs(other), Duration::ZERO, "the last answer counts");
        leases.of_page(one, ClientTime(0), hour);
        assert!([one, other].iter().all(|ino| !leases.left_of_attrs(*ino).is_zero()), "all of the page");
        assert!(leases.left_of_name(other, 7).is_zero() && !leases.left_of_name(one, 9).is_zero());
        leases.of_attrs(one, ClientTime(0), 0);
        assert!(leases.left_of_attrs(other).is_zero(), "the page is not the last answer");
    }

    #[test]
    fn a_run_ends_with_its_last_lease() {
        let leases = Leases::new(1);
        assert_eq!(leases.run(Slot(0)), None);
        let first = leases.renew(Slot(0), leases.now(), 20);
        assert_eq!((leases.renew(Slot(0), leases.now(), 3_600_000), leases.run(Slot(0))), (first, first));
        assert_eq!(leases.renew(Slot(0), ClientTime(0), 0), None);
        leases.slots[0].lock().end = leases.now();
        assert_eq!(leases.run(Slot(0)), None);
        assert_eq!(leases.renew(Slot(0), ClientTime(0), 0), None, "one that is over when it comes");
        let second = leases.renew(Slot(0), leases.now(), 3_600_000);
        assert!(second.is_some() && second != first);
    }
}
