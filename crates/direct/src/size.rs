//! The size of a file that is lent to a process: how far it has written, told in the memory of a gate. Why that is
//! enough is in docs/decisions/0019-sizes-are-lent.md.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::gate::Gate;

/// Stands where a gate of a subfile has the seat.
const SIZE: u32 = u32::MAX;
/// The same, once what was told is in the file's record.
const WRITTEN_DOWN: u32 = u32::MAX - 1;
/// Words of the gate: the inode, then what is in place of the seat, then the epoch.
const INODE: usize = 2;
const KIND: usize = 4;
const EPOCH: usize = 5;
/// Double words of the gate, by their first word.
const END: usize = 6;
const AT: usize = 8;

/// What a process has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The furthest end of its writes; 0 if there was none.
    pub end: u64,
    /// When it last told one, in nanoseconds since 1970.
    pub at_ns: u64,
}

/// A gate on which a process tells how far it has written to a file of one epoch.
#[derive(Clone, Debug)]
pub struct SizeGate(Gate);

impl SizeGate {
    /// Opens a gate for a file. It must be closed, with nobody inside.
    #[must_use]
    pub fn open(gate: &Gate, ino: u64, epoch: u32) -> SizeGate {
        gate.double(END).store(0, Ordering::Relaxed);
        gate.double(AT).store(0, Ordering::Relaxed);
        gate.word(EPOCH).store(epoch, Ordering::Relaxed);
        gate.word(INODE).store(ino as u32, Ordering::Relaxed);
        gate.word(INODE + 1).store((ino >> 32) as u32, Ordering::Relaxed);
        // A later daemon that finds this finds the rest too.
        gate.word(KIND).store(SIZE, Ordering::Release);
        SizeGate(gate.open_next())
    }

    /// The gate as its process has it.
    #[must_use]
    pub fn joined(gate: Gate) -> SizeGate {
        SizeGate(gate)
    }

    /// Whether a gate is, or was last, for a size.
    #[must_use]
    pub fn is_one(gate: &Gate) -> bool {
        matches!(gate.word(KIND).load(Ordering::Acquire), SIZE | WRITTEN_DOWN)
    }

    /// The gate, if it is for a size that nobody has written down since.
    #[must_use]
    pub fn found(gate: Gate) -> Option<SizeGate> {
        (gate.word(KIND).load(Ordering::Acquire) == SIZE).then_some(SizeGate(gate))
    }

    /// Inode number and epoch of the file.
    #[must_use]
    pub fn file(&self) -> (u64, u32) {
        let [low, high, epoch] =
            [INODE, INODE + 1, EPOCH].map(|word| self.0.word(word).load(Ordering::Relaxed));
        (u64::from(low) | u64::from(high) << 32, epoch)
    }

    /// Tells the end of a write, and when it was made. Whether whoever lent the size has it; if not it may have it
    /// nevertheless, and must be told in another way.
    #[must_use]
    pub fn tell(&self, end: u64, at_ns: u64) -> bool {
        // As long as somebody is inside, the gate is nobody else's.
        let Some(_inside) = self.0.enter() else { return false };
        self.0.double(AT).fetch_max(at_ns, Ordering::SeqCst);
        self.0.double(END).fetch_max(end, Ordering::SeqCst);
        // Either this sees that it was closed, or whoever closed it sees what was told.
        self.0.is_open_still()
    }

    /// Which grant of the gate it is.
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.0.turn()
    }

    /// What was told so far.
    #[must_use]
    pub fn told(&self) -> Told {
        let end = self.0.double(END).load(Ordering::SeqCst);
        Told { end, at_ns: self.0.double(AT).load(Ordering::SeqCst) }
    }

    /// What was told has been written down elsewhere: a later daemon need not look.
    pub fn clear(&self) {
        self.0.word(KIND).store(WRITTEN_DOWN, Ordering::Release);
    }

    /// Lets nothing more be told.
    pub fn close(&self) {
        self.0.close();
    }

    /// Whether nothing more can be told.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Whether it is closed, with nobody inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As [`Gate::drain`].
    pub fn drain(&self, patience: Duration, lives: impl Fn() -> bool) -> bool {
        self.0.drain(patience, lives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GrantTable, Session};
    use std::sync::atomic::AtomicU64;

    fn lent(grants: &GrantTable, session: &Session, ino: u64) -> (SizeGate, SizeGate) {
        let gate = grants.gate(session.index(), 5).unwrap();
        gate.close();
        let ours = SizeGate::open(&gate, ino, 3);
        let theirs = SizeGate::joined(session.gate(5, ours.turn()).unwrap());
        (ours, theirs)
    }

    fn grants() -> (GrantTable, Session) {
        let grants = GrantTable::open(GrantTable::make().unwrap()).unwrap();
        let (index, file) = grants.new_session().unwrap().unwrap();
        let session = Session::take(file, index).unwrap();
        (grants, session)
    }

    #[test]
    fn the_furthest_end_counts_until_it_is_closed() {
        let (grants, session) = grants();
        let (ours, theirs) = lent(&grants, &session, 1 << 40 | 7);
        assert_eq!((ours.file(), ours.told()), ((1 << 40 | 7, 3), Told::default()));
        assert!(theirs.tell(200, 10) && theirs.tell(100, 11));
        assert_eq!(ours.told(), Told { end: 200, at_ns: 11 });
        ours.close();
        assert!(!theirs.tell(300, 12));
        assert_eq!(ours.told().end, 200);
        let (next, _) = lent(&grants, &session, 8);
        assert_eq!(next.told(), Told::default(), "the next one begins anew");
        assert!(!theirs.tell(400, 13) && next.told().end == 0, "and is nobody else's");
    }

    #[test]
    fn a_later_daemon_finds_what_was_told_also_by_the_dead() {
        let file = GrantTable::make().unwrap();
        let first = GrantTable::open(file.try_clone().unwrap()).unwrap();
        let sessions: Vec<(u32, std::os::fd::OwnedFd)> =
            (0..3).map(|_| first.new_session().unwrap().unwrap()).collect();
        for (index, grants) in sessions {
            let session = Session::take(grants, index).unwrap();
            let (ours, theirs) = lent(&first, &session, u64::from(index) + 100);
            assert!(theirs.tell(1000 + u64::from(index), 5));
            if index == 1 {
                ours.clear();
            }
        }
        let found = GrantTable::open(file).unwrap().sizes().unwrap();
        let found: Vec<_> = found.iter().map(|gate| (gate.file(), gate.told().end)).collect();
        assert_eq!(found, [((100, 3), 1000), ((102, 3), 1002)]);
    }

    #[test]
    fn what_was_told_is_seen_by_who_closes() {
        let (grants, session) = grants();
        for round in 0..300 {
            let (ours, theirs) = lent(&grants, &session, round);
            let told = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (1..)
                        .take_while(|end| theirs.tell(*end, 1))
                        .for_each(|end| told.store(end, Ordering::SeqCst));
                });
                while told.load(Ordering::SeqCst) < round % 5 {
                    std::thread::yield_now();
                }
                ours.close();
                // Whoever was told "yes" is in it; who was not yet, may be.
                let seen = ours.told().end;
                assert!(seen >= told.load(Ordering::SeqCst));
                assert!(ours.drain(Duration::from_secs(60), || true));
                assert!(told.load(Ordering::SeqCst) <= seen);
            });
        }
    }
}
