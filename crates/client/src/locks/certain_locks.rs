//! Locks that this client certainly has, unless their home has dropped them: those that were granted, with no unlocking
//! since. While requests of one owner are under way side by side, their order at the home is unknown; fewer locks are
//! certain then than there are.

use std::collections::HashMap;

use bivouac_types::{Ino, NodeId};
use bivouac_wire::{FileLock, FormationMap, LockKind};

/// Of all files.
#[derive(Debug, Default)]
pub struct CertainLocks {
    files: HashMap<Ino, File>,
    /// Unlockings that began or ended: their numbers.
    unlockings: u64,
}

#[derive(Debug, Default)]
struct File {
    owners: HashMap<(LockKind, u64), Owner>,
    /// The last unlocking, of whomever.
    unlocked: u64,
}

#[derive(Debug, Default)]
struct Owner {
    /// First and last bytes, in their order; none meets another.
    ranges: Vec<(u64, u64)>,
    /// Requests for locks that are under way, and unlockings.
    asking: u32,
    unlocking: u32,
    /// The last unlocking.
    unlocked: u64,
}

/// The unlocking that came last when something began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnlockStamp(u64);

impl CertainLocks {
    /// Notes that a request for a lock begins. One for a whole file gives up the one of another mode, whatever comes of
    /// it.
    pub fn begin(&mut self, ino: Ino, lock: &FileLock) -> UnlockStamp {
        if lock.kind == LockKind::Whole {
            self.note_unlocking(ino, lock);
        }
        let owner = self.owner(ino, lock);
        owner.asking += 1;
        UnlockStamp(owner.unlocked)
    }

    /// Ends a request; `begun` is what [`CertainLocks::begin`] returned.
    pub fn end(&mut self, ino: Ino, lock: &FileLock, begun: UnlockStamp, is_granted: bool) {
        if !is_granted && lock.kind == LockKind::Whole {
            self.note_unlocking(ino, lock);
        }
        let owner = self.owner(ino, lock);
        owner.asking = owner.asking.saturating_sub(1);
        // An unlocking since it began may have reached the home behind the grant.
        if is_granted && owner.unlocking == 0 && owner.unlocked == begun.0 {
            owner.add(lock);
        }
        self.tidy(ino, lock);
    }

    /// Notes that an unlocking begins.
    pub fn begin_unlocking(&mut self, ino: Ino, lock: &FileLock) {
        self.note_unlocking(ino, lock);
        self.owner(ino, lock).unlocking += 1;
    }

    /// Ends an unlocking, whatever its outcome.
    pub fn end_unlocking(&mut self, ino: Ino, lock: &FileLock) {
        self.note_unlocking(ino, lock);
        let owner = self.owner(ino, lock);
        owner.unlocking = owner.unlocking.saturating_sub(1);
        self.tidy(ino, lock);
    }

    /// Returns the state of unlockings before a home is asked what this client has locked there.
    pub fn now(&self) -> UnlockStamp {
        UnlockStamp(self.unlockings)
    }

    /// Notes that a home has said that this is locked, when it was asked after `asked`.
    pub fn learn(&mut self, ino: Ino, lock: &FileLock, asked: UnlockStamp) {
        // Whatever was unlocked since the question may be this.
        if self.now() == asked {
            self.owner(ino, lock).add(lock);
        }
    }

    /// Returns the last unlocking in a file of which something is locked for sure.
    pub fn of(&self, ino: Ino) -> Option<UnlockStamp> {
        let file = self.files.get(&ino)?;
        let has_any = file.owners.values().any(|owner| !owner.ranges.is_empty());
        has_any.then_some(UnlockStamp(file.unlocked))
    }

    /// Returns the files of a home of which something is locked for sure, as [`CertainLocks::of`].
    pub fn files(&self, home: NodeId, map: &FormationMap) -> Vec<(Ino, UnlockStamp)> {
        let files = self.files.keys().filter(|ino| map.home(**ino) == Some(home));
        files.filter_map(|ino| Some((*ino, self.of(*ino)?))).collect()
    }

    /// Forgets what is locked of a file.
    pub fn forget(&mut self, ino: Ino) {
        self.unlockings += 1;
        let Some(file) = self.files.get_mut(&ino) else { return };
        file.unlocked = self.unlockings;
        for owner in file.owners.values_mut() {
            owner.unlocked = self.unlockings;
            owner.ranges.clear();
        }
        // Owners with requests under way stay, and with them the number that makes those uncertain.
        file.owners.retain(|_, owner| !owner.is_idle());
        if file.owners.is_empty() {
            self.files.remove(&ino);
        }
    }

    /// Forgets all locks.
    pub fn clear(&mut self) {
        self.files.clear();
    }

    fn note_unlocking(&mut self, ino: Ino, lock: &FileLock) {
        self.unlockings += 1;
        let number = self.unlockings;
        self.files.entry(ino).or_default().unlocked = number;
        let owner = self.owner(ino, lock);
        owner.unlocked = number;
        owner.remove(lock);
    }

    fn owner(&mut self, ino: Ino, lock: &FileLock) -> &mut Owner {
        self.files.entry(ino).or_default().owners.entry((lock.kind, lock.owner)).or_default()
    }

    fn tidy(&mut self, ino: Ino, lock: &FileLock) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let of = (lock.kind, lock.owner);
        if file.owners.get(&of).is_some_and(Owner::is_idle) {
            file.owners.remove(&of);
        }
        if file.owners.is_empty() {
            self.files.remove(&ino);
        }
    }
}

impl Owner {
    fn is_idle(&self) -> bool {
        self.ranges.is_empty() && self.asking == 0 && self.unlocking == 0
    }

    fn add(&mut self, lock: &FileLock) {
        let (mut start, mut end) = (lock.start, lock.end);
        self.ranges.retain(|(first, last)| {
            // Ranges that touch are one, as at the home.
            let meets = *first <= end.saturating_add(1) && start <= last.saturating_add(1);
            if meets {
                (start, end) = (start.min(*first), end.max(*last));
            }
            !meets
        });
        let at = self.ranges.partition_point(|(first, _)| *first < start);
        self.ranges.insert(at, (start, end));
    }

    fn remove(&mut self, lock: &FileLock) {
        let rest = self.ranges.iter().flat_map(|(first, last)| {
            // Last bytes, not ends: 0 has none in front of it and the greatest none behind.
            let before = (*first < lock.start).then(|| (*first, (*last).min(lock.start.saturating_sub(1))));
            let behind = (*last > lock.end).then(|| ((*first).max(lock.end.saturating_add(1)), *last));
            [before, behind].into_iter().flatten()
        });
        self.ranges = rest.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_wire::LockMode;
    use proptest::prelude::*;

    const INO: Ino = Ino(5);

    fn lock(kind: LockKind, owner: u64, start: u64, end: u64) -> FileLock {
        FileLock { kind, mode: LockMode::Write, owner, handle: 1, pid: 1, start, end }
    }

    fn range(owner: u64, start: u64, end: u64) -> FileLock {
        lock(LockKind::Range, owner, start, end)
    }

    fn locks(sure: &mut CertainLocks, lock: &FileLock) {
        let begun = sure.begin(INO, lock);
        sure.end(INO, lock, begun, true);
    }

    fn unlocks(sure: &mut CertainLocks, lock: &FileLock) {
        sure.begin_unlocking(INO, lock);
        sure.end_unlocking(INO, lock);
    }

    #[test]
    fn what_was_unlocked_beside_a_request_is_not_sure() {
        let mut sure = CertainLocks::default();
        let (one, other) = (range(1, 0, 9), range(2, 0, 9));
        let begun = sure.begin(INO, &one);
        unlocks(&mut sure, &other);
        sure.end(INO, &one, begun, true);
        assert!(sure.of(INO).is_some(), "another owner's unlocking");
        let begun = sure.begin(INO, &one);
        sure.begin_unlocking(INO, &one);
        sure.end(INO, &one, begun, true);
        assert!(sure.of(INO).is_none(), "it is under way");
        let begun = sure.begin(INO, &one);
        sure.end_unlocking(INO, &one);
        sure.end(INO, &one, begun, true);
        assert!(sure.of(INO).is_none() && sure.files.is_empty(), "it was under way");
        let asked = sure.now();
        unlocks(&mut sure, &other);
        sure.learn(INO, &one, asked);
        assert!(sure.of(INO).is_none(), "it may have been unlocked since");
        sure.learn(INO, &one, sure.now());
        assert!(sure.of(INO).is_some());
        let begun = sure.begin(INO, &one);
        sure.forget(INO);
        sure.end(INO, &one, begun, true);
        assert!(sure.of(INO).is_none() && sure.files.is_empty());
    }

    #[test]
    fn a_whole_file_is_given_up_before_it_is_sought() {
        let mut sure = CertainLocks::default();
        let whole = lock(LockKind::Whole, 1, 0, u64::MAX);
        locks(&mut sure, &whole);
        assert!(sure.of(INO).is_some());
        let first = sure.begin(INO, &whole);
        assert!(sure.of(INO).is_none());
        let second = sure.begin(INO, &whole);
        sure.end(INO, &whole, first, true);
        assert!(sure.of(INO).is_none(), "the second may have given it up");
        sure.end(INO, &whole, second, false);
        assert!(sure.files.is_empty());
    }

    proptest! {
        #[test]
        fn ranges_are_those_of_a_model(
            steps in proptest::collection::vec((any::<bool>(), 0u64..12, 0u64..12), 0..60),
        ) {
            let (mut sure, mut model) = (CertainLocks::default(), [false; 12]);
            for (takes, a, b) in steps {
                let lock = range(1, a.min(b), a.max(b));
                if takes { locks(&mut sure, &lock) } else { unlocks(&mut sure, &lock) }
                model[lock.start as usize..=lock.end as usize].fill(takes);
                let mut seen = [false; 12];
                for (first, last) in sure.files.get(&INO).into_iter().flat_map(|file| &file.owners[&(lock.kind, 1)].ranges) {
                    seen[*first as usize..=*last as usize].fill(true);
                }
                prop_assert_eq!(seen, model);
                prop_assert_eq!(sure.of(INO).is_some(), model.contains(&true));
            }
        }
    }
}
