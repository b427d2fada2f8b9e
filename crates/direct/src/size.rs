//! The size of a file that is lent to a process: how far it has written, told in the memory of a gate. Why that is
//! enough is in docs/decisions/0003-file-size.md.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::gate::Gate;

/// Stands where a gate of a subfile has the target.
const SIZE: u32 = u32::MAX;
/// The same, once what was told is in the file's record.
const WRITTEN_DOWN: u32 = u32::MAX - 1;
/// A size of a file that has nothing behind its end: writes may leave holes in front of them.
const SIZE_OVER_HOLES: u32 = u32::MAX - 2;
/// Words of the gate: the inode, then what is in place of the target, then the epoch.
const INODE: usize = 2;
const KIND: usize = 4;
const EPOCH: usize = 5;
/// Double words of the gate, by their first word.
const END: usize = 6;
const AT: usize = 8;
const FRESH: usize = 10;

/// The end of a write, to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteEnd {
    /// Its offset.
    pub end: u64,
    /// Number of its bytes that lie behind the size that its writer knew.
    pub fresh: u64,
    /// True if it begins behind that size, and so leaves a hole unless others have written there.
    pub leaves_hole: bool,
    /// Time at which it was made, in nanoseconds since 1970.
    pub at_ns: u64,
}

/// Progress of a process's writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteProgress {
    /// The furthest end of its writes; 0 if there was none.
    pub end: u64,
    /// Time of its last write, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Number of bytes that it has written behind what it knew to be the size.
    pub fresh: u64,
}

/// A gate on which a process tells how far it has written to a file of one epoch.
#[derive(Clone, Debug)]
pub struct SizeGate(Gate);

impl SizeGate {
    /// Opens a gate for a file; holes may be left if there is nothing behind its end. It must be closed, with nobody
    /// inside.
    #[must_use]
    pub fn open(gate: &Gate, ino: u64, epoch: u32, over_holes: bool) -> SizeGate {
        // The gate is closed, so nobody tells anything into what is being prepared.
        [END, AT, FRESH].iter().for_each(|at| gate.double(*at).store(0, Ordering::Relaxed));
        gate.word(EPOCH).store(epoch, Ordering::Relaxed);
        gate.word(INODE).store(ino as u32, Ordering::Relaxed);
        gate.word(INODE + 1).store((ino >> 32) as u32, Ordering::Relaxed);
        // A later daemon that finds this finds the rest too.
        gate.word(KIND).store(if over_holes { SIZE_OVER_HOLES } else { SIZE }, Ordering::Release);
        SizeGate(gate.open_next())
    }

    /// Returns the gate as its process has it.
    #[must_use]
    pub fn joined(gate: Gate) -> SizeGate {
        SizeGate(gate)
    }

    /// Returns whether a gate is, or was last, for a size.
    #[must_use]
    pub fn is_one(gate: &Gate) -> bool {
        matches!(gate.word(KIND).load(Ordering::Acquire), SIZE | SIZE_OVER_HOLES | WRITTEN_DOWN)
    }

    /// Returns the gate, if it is for a size that nobody has written down since.
    #[must_use]
    pub fn found(gate: Gate) -> Option<SizeGate> {
        matches!(gate.word(KIND).load(Ordering::Acquire), SIZE | SIZE_OVER_HOLES).then_some(SizeGate(gate))
    }

    /// Returns the inode number and epoch of the file.
    #[must_use]
    pub fn file(&self) -> (u64, u32) {
        let [low, high, epoch] =
            [INODE, INODE + 1, EPOCH].map(|word| self.0.word(word).load(Ordering::Relaxed));
        (u64::from(low) | u64::from(high) << 32, epoch)
    }

    /// Tells the end of a write. Whether whoever lent the size has it; if not it may have it nevertheless, and must be
    /// told in another way.
    #[must_use]
    pub fn tell(&self, told: WriteEnd) -> bool {
        // As long as somebody is inside, the gate is nobody else's.
        let Some(_inside) = self.0.enter() else { return false };
        if told.leaves_hole && self.0.word(KIND).load(Ordering::SeqCst) != SIZE_OVER_HOLES {
            return false;
        }
        self.0.double(AT).fetch_max(told.at_ns, Ordering::SeqCst);
        // In front of the end: what a size has grown by is never less than the bytes that are known to be in it.
        self.0.double(FRESH).fetch_add(told.fresh, Ordering::SeqCst);
        self.0.double(END).fetch_max(told.end, Ordering::SeqCst);
        // Either this sees that it was closed, or whoever closed it sees what was told.
        self.0.is_open_still()
    }

    /// Returns the number of the grant among those of the gate.
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.0.turn()
    }

    /// Progress so far.
    #[must_use]
    pub fn told(&self) -> WriteProgress {
        let [end, fresh, at_ns] = [END, FRESH, AT].map(|at| self.0.double(at).load(Ordering::SeqCst));
        WriteProgress { end, at_ns, fresh }
    }

    /// Forbids processes to leave holes, since there may be bytes behind the end. What was raised until then stays.
    pub fn forbid_holes(&self) {
        let (from, to, order) = (SIZE_OVER_HOLES, SIZE, Ordering::SeqCst);
        // It is not a size any more, or none over holes.
        let _ = self.0.word(KIND).compare_exchange(from, to, order, order);
    }

    /// Marks the progress as recorded elsewhere: a later daemon need not look.
    pub fn clear(&self) {
        // Not 0: a gate that was last for a size must not look like one of a subfile.
        self.0.word(KIND).store(WRITTEN_DOWN, Ordering::Release);
    }

    /// Lets nothing more be told.
    pub fn close(&self) {
        self.0.close();
    }

    /// Returns whether nothing more can be told.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns whether it is closed, with nobody inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Like [`Gate::drain`].
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
        let ours = SizeGate::open(&gate, ino, 3, false);
        let theirs = SizeGate::joined(session.gate(5, ours.turn()).unwrap());
        (ours, theirs)
    }

    fn grants() -> (GrantTable, Session) {
        let grants = GrantTable::open(GrantTable::make().unwrap()).unwrap();
        let (index, file) = grants.new_session().unwrap().unwrap();
        let session = Session::take(file, index).unwrap();
        (grants, session)
    }

    /// A write right behind what was known.
    fn next(end: u64, at_ns: u64) -> WriteEnd {
        WriteEnd { end, fresh: 1, leaves_hole: false, at_ns }
    }

    #[test]
    fn holes_are_left_only_while_nothing_is_behind_the_end() {
        let (grants, session) = grants();
        let (_, theirs) = lent(&grants, &session, 7);
        let over = WriteEnd { end: 900, fresh: 100, leaves_hole: true, at_ns: 5 };
        assert!(!theirs.tell(over) && theirs.told() == WriteProgress::default(), "it was not lent so");
        let gate = grants.gate(session.index(), 6).unwrap();
        gate.close();
        let ours = SizeGate::open(&gate, 8, 3, true);
        let theirs = SizeGate::joined(session.gate(6, ours.turn()).unwrap());
        assert!(theirs.tell(over) && SizeGate::is_one(&gate) && SizeGate::found(gate.clone()).is_some());
        assert_eq!(ours.told(), WriteProgress { end: 900, at_ns: 5, fresh: 100 });
        ours.forbid_holes();
        assert!(!theirs.tell(WriteEnd { end: 2000, ..over }), "a client died");
        assert!(theirs.tell(next(901, 6)), "what leaves none goes on");
        assert_eq!(ours.told(), WriteProgress { end: 901, at_ns: 6, fresh: 101 });
        ours.clear();
        ours.forbid_holes();
        assert!(SizeGate::found(gate).is_none(), "what is written down stays so");
    }

    #[test]
    fn the_furthest_end_counts_until_it_is_closed() {
        let (grants, session) = grants();
        let (ours, theirs) = lent(&grants, &session, 1 << 40 | 7);
        assert_eq!((ours.file(), ours.told()), ((1 << 40 | 7, 3), WriteProgress::default()));
        assert!(theirs.tell(next(200, 10)) && theirs.tell(next(100, 11)));
        assert_eq!(ours.told(), WriteProgress { end: 200, at_ns: 11, fresh: 2 });
        ours.close();
        assert!(!theirs.tell(next(300, 12)));
        assert_eq!(ours.told().end, 200);
        let (later, _) = lent(&grants, &session, 8);
        assert_eq!(later.told(), WriteProgress::default(), "the next one begins anew");
        assert!(!theirs.tell(next(400, 13)) && later.told().end == 0, "and is nobody else's");
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
            assert!(theirs.tell(next(1000 + u64::from(index), 5)));
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
                        .take_while(|end| theirs.tell(next(*end, 1)))
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
