//! The locks of one file against an array with an entry per byte and owner.

use super::*;
use bivouac_wire::LOCK_END_MAX;
use proptest::prelude::*;

const BYTES: u64 = 24;

fn owner(id: u64) -> Owner {
    Owner { kind: LockKind::Range, client: ClientId(id / 2), id }
}

fn lock(mode: LockMode, owner: u64, handle: u64, start: u64, end: u64) -> FileLock {
    FileLock { kind: LockKind::Range, mode, owner, handle, pid: 1, start, end }
}

/// What is known of a byte: whether it is write-locked, and through which handle.
type Byte = Option<(bool, u64)>;

#[derive(Default)]
struct Oracle([[Byte; BYTES as usize]; 4]);

impl Oracle {
    fn set(&mut self, lock: &FileLock, of_handle: bool) {
        for byte in &mut self.0[lock.owner as usize][lock.start as usize..=lock.end as usize] {
            match lock.mode {
                LockMode::Unlock if of_handle && byte.is_some_and(|(_, handle)| handle != lock.handle) => {}
                LockMode::Unlock => *byte = None,
                mode => *byte = Some((mode == LockMode::Write, lock.handle)),
            }
        }
    }

    fn in_the_way(&self, lock: &FileLock) -> Vec<u64> {
        let conflicts = |bytes: &[Byte]| {
            let mut range = bytes[lock.start as usize..=lock.end as usize].iter();
            range.any(|byte| byte.is_some_and(|(write, _)| write || lock.mode == LockMode::Write))
        };
        (0..4).filter(|other| *other != lock.owner && conflicts(&self.0[*other as usize])).collect()
    }

    fn covers(&self, lock: &FileLock) -> bool {
        let bytes = &self.0[lock.owner as usize][lock.start as usize..=lock.end as usize];
        let write = lock.mode == LockMode::Write;
        bytes.iter().all(|byte| byte.is_some_and(|(held, _)| held == write))
    }

    /// Runs of bytes that are alike.
    fn runs(&self, owner: u64) -> Vec<(u64, u64, bool, u64)> {
        let mut runs: Vec<(u64, u64, bool, u64)> = Vec::new();
        for (at, byte) in (0..).zip(&self.0[owner as usize]) {
            let Some((write, handle)) = *byte else { continue };
            match runs.last_mut() {
                Some(last) if last.1 + 1 == at && (last.2, last.3) == (write, handle) => last.1 = at,
                _ => runs.push((at, at, write, handle)),
            }
        }
        runs
    }
}

fn runs(ranges: &Ranges, id: u64) -> Vec<(u64, u64, bool, u64)> {
    let own = ranges.iter().filter(|(other, ..)| *other == owner(id));
    own.map(|(_, start, span)| (start, span.end, span.write, span.handle)).collect()
}

fn steps() -> impl Strategy<Value = Vec<(FileLock, bool)>> {
    let mode = prop_oneof![Just(LockMode::Read), Just(LockMode::Write), Just(LockMode::Unlock)];
    let step = (mode, 0..4u64, 0..2u64, 0..BYTES, 0..BYTES, any::<bool>());
    let step = step.prop_map(|(mode, owner, handle, a, b, of_handle)| {
        (lock(mode, owner, handle, a.min(b), a.max(b)), of_handle)
    });
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn as_if_each_byte_were_locked_by_itself(steps in steps()) {
        let (mut ranges, mut oracle) = (Ranges::default(), Oracle::default());
        for (lock, of_handle) in steps {
            let who = owner(lock.owner);
            let conflicts: Vec<u64> = ranges.conflicts(who, &lock).map(|(other, ..)| other.id).collect();
            if lock.mode == LockMode::Unlock {
                let delta = ranges.plan_unlock(who, &lock, of_handle);
                ranges.apply(who, &delta);
            } else {
                prop_assert_eq!(&conflicts, &oracle.in_the_way(&lock));
                if !conflicts.is_empty() {
                    continue;
                }
                let delta = ranges.plan_lock(who, &lock, None);
                ranges.apply(who, &delta);
                prop_assert!(ranges.plan_lock(who, &lock, None).is_empty(), "the same again changes nothing");
                prop_assert!(ranges.covers(who, &lock));
            }
            oracle.set(&lock, of_handle);
            for id in 0..4 {
                prop_assert_eq!(runs(&ranges, id), oracle.runs(id));
                let other = FileLock { owner: id, ..lock };
                prop_assert_eq!(ranges.covers(owner(id), &other), oracle.covers(&other));
            }
            prop_assert_eq!(ranges.count(), ranges.iter().count());
        }
        for id in 0..4 {
            let delta = ranges.plan_removal(owner(id));
            ranges.apply(owner(id), &delta);
        }
        prop_assert_eq!((ranges.count(), ranges.owners.len()), (0, 0));
    }
}

#[test]
fn ranges_reach_to_the_end_of_what_can_be_named() {
    let mut ranges = Ranges::default();
    let all = lock(LockMode::Write, 0, 1, 0, LOCK_END_MAX);
    ranges.apply(owner(0), &ranges.plan_lock(owner(0), &all, None));
    let part = lock(LockMode::Unlock, 0, 1, 10, 19);
    ranges.apply(owner(0), &ranges.plan_unlock(owner(0), &part, false));
    assert_eq!(runs(&ranges, 0), [(0, 9, true, 1), (20, LOCK_END_MAX, true, 1)]);
    let rest = lock(LockMode::Unlock, 0, 1, 5, LOCK_END_MAX);
    ranges.apply(owner(0), &ranges.plan_unlock(owner(0), &rest, false));
    assert_eq!(runs(&ranges, 0), [(0, 4, true, 1)]);
}

#[test]
fn kinds_do_not_meet() {
    let mut ranges = Ranges::default();
    let all = lock(LockMode::Write, 0, 1, 0, LOCK_END_MAX);
    ranges.apply(owner(0), &ranges.plan_lock(owner(0), &all, None));
    let whole = FileLock { kind: LockKind::Whole, ..all };
    let other = Owner { kind: LockKind::Whole, ..owner(2) };
    assert_eq!(ranges.conflicts(other, &whole).count(), 0);
    assert_eq!(ranges.conflicts(owner(2), &all).count(), 1);
}
