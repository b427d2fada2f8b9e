//! Owners that may have locks on files.

use std::collections::HashMap;

use bivouac_types::{Ino, NodeId};
use bivouac_wire::{FileLock, FormationMap, LockKind};

/// An owner that may have locked something through an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockMark {
    pub kind: LockKind,
    pub owner: u64,
    pub handle: u64,
    /// The process that locked last.
    pid: u32,
    /// Requests under way.
    under_way: u32,
    /// Requests that began or ended.
    events: u64,
}

/// The marks of all files.
#[derive(Debug, Default)]
pub struct LockMarks(HashMap<Ino, Vec<LockMark>>);

impl LockMarks {
    /// Notes that a request for a lock begins.
    pub fn begin(&mut self, ino: Ino, lock: &FileLock) {
        let marks = self.0.entry(ino).or_default();
        let found = marks.iter().position(|mark| mark.is_of(lock));
        let at = found.unwrap_or_else(|| {
            marks.push(LockMark {
                kind: lock.kind,
                owner: lock.owner,
                handle: lock.handle,
                pid: lock.pid,
                under_way: 0,
                events: 0,
            });
            marks.len() - 1
        });
        if let Some(mark) = marks.get_mut(at) {
            mark.pid = lock.pid;
            mark.under_way += 1;
            mark.events += 1;
        }
    }

    /// Ends a request, whatever its outcome.
    pub fn end(&mut self, ino: Ino, lock: &FileLock) {
        let mark = self.0.get_mut(&ino).and_then(|marks| marks.iter_mut().find(|mark| mark.is_of(lock)));
        if let Some(mark) = mark {
            mark.under_way = mark.under_way.saturating_sub(1);
            mark.events += 1;
        }
    }

    /// Returns true if any owner may have a lock on a file.
    pub fn has_any(&self, ino: Ino) -> bool {
        self.0.contains_key(&ino)
    }

    /// Returns true if the owner of `lock` may have a lock.
    pub fn has(&self, ino: Ino, lock: &FileLock) -> bool {
        self.of(ino).any(|mark| (mark.kind, mark.owner) == (lock.kind, lock.owner))
    }

    /// Returns the ranges that an owner may have locked.
    pub fn of_owner(&self, ino: Ino, owner: u64) -> Vec<LockMark> {
        self.of(ino).filter(|mark| (mark.kind, mark.owner) == (LockKind::Range, owner)).copied().collect()
    }

    /// Returns what may have been locked through an open file.
    pub fn of_handle(&self, ino: Ino, handle: u64) -> Vec<LockMark> {
        self.of(ino).filter(|mark| mark.handle == handle).copied().collect()
    }

    /// Forgets a mark, if nothing happened since it was looked at: a request of another thread may have been granted
    /// after the unlocking that this is about.
    pub fn remove(&mut self, ino: Ino, seen: &LockMark) {
        let Some(marks) = self.0.get_mut(&ino) else { return };
        // `events` differs in what was asked for since, so the comparison tells.
        marks.retain(|mark| mark != seen || mark.under_way > 0);
        if marks.is_empty() {
            self.0.remove(&ino);
        }
    }

    /// Returns true if an owner seems to be an open file description rather than a process, which the kernel does not
    /// tell. A process is one owner whatever it opens; descriptions are one each, and a forked process shares them.
    pub fn is_description(&self, lock: &FileLock) -> bool {
        let mut ranges = self.0.values().flatten().filter(|mark| mark.kind == LockKind::Range);
        ranges.any(|mark| (mark.pid == lock.pid) != (mark.owner == lock.owner))
    }

    /// Returns the homes of the files.
    pub fn homes(&self, map: &FormationMap) -> Vec<NodeId> {
        self.0.keys().filter_map(|ino| map.home(*ino)).collect()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn of(&self, ino: Ino) -> impl Iterator<Item = &LockMark> {
        self.0.get(&ino).into_iter().flatten()
    }
}

impl LockMark {
    fn is_of(&self, lock: &FileLock) -> bool {
        (self.kind, self.owner, self.handle) == (lock.kind, lock.owner, lock.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_wire::LockMode;

    fn lock(owner: u64, handle: u64, pid: u32) -> FileLock {
        let (kind, mode) = (LockKind::Range, LockMode::Write);
        FileLock { kind, mode, owner, handle, pid, start: 0, end: 9 }
    }

    fn locked(marks: &mut LockMarks, lock: &FileLock) {
        marks.begin(Ino(5), lock);
        marks.end(Ino(5), lock);
    }

    #[test]
    fn a_mark_goes_only_if_nothing_was_locked_meanwhile() {
        let mut marks = LockMarks::default();
        let lock = lock(1, 10, 100);
        locked(&mut marks, &lock);
        let seen = marks.of_owner(Ino(5), 1);
        marks.begin(Ino(5), &lock);
        marks.remove(Ino(5), &seen[0]);
        assert!(marks.has(Ino(5), &lock), "a request is under way");
        let seen = marks.of_handle(Ino(5), 10);
        marks.remove(Ino(5), &seen[0]);
        marks.end(Ino(5), &lock);
        assert!(marks.has(Ino(5), &lock), "it ended after the look");
        let seen = marks.of_owner(Ino(5), 1);
        marks.remove(Ino(5), &seen[0]);
        assert!(!marks.has(Ino(5), &lock) && marks.0.is_empty());
    }

    #[test]
    fn descriptions_are_told_from_processes() {
        let mut marks = LockMarks::default();
        let process = lock(1, 10, 100);
        locked(&mut marks, &process);
        locked(&mut marks, &lock(1, 11, 100));
        locked(&mut marks, &lock(2, 12, 200));
        assert!(!marks.is_description(&process), "one owner, whatever it opens");
        locked(&mut marks, &lock(3, 13, 300));
        locked(&mut marks, &lock(4, 14, 300));
        assert!(marks.is_description(&lock(3, 13, 300)), "two owners in one process");
        locked(&mut marks, &lock(5, 15, 500));
        assert!(marks.is_description(&lock(5, 15, 501)), "an owner of two processes");
        assert!(!marks.is_description(&process));
    }
}
