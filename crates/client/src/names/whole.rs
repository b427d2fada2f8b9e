//! Directories of other nodes all names of which this client knows: a name that is not among them is not there, and
//! nobody need be asked. A kernel looks for every name before it makes it, which is half of what making a file in
//! another node's directory costs.
//!
//! The names come from the directory's home, as hashes, once this client has made a number of entries there. They hold
//! while its lease on the directory's slot runs without a break, until it is told that somebody else changes a name
//! there. A spread takes the leases away first, so it ends them too. What this client itself makes is added before it
//! is asked for. A name that it removed is taken out if nothing else happened in between: one too many costs a question
//! only.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_layout::entry_hash;
use bivouac_types::limits::{NAMES_KNOWN_MAX, WHOLE_DIRS_MAX};
use bivouac_types::{Errno, FsResult, Ino, Slot};
use bivouac_wire::{InoOnly, op};
use parking_lot::Mutex;

use super::Names;
use crate::homes::leases::Run;
use crate::operation::OpCtx;

/// Entries made before the names are fetched; doubled for each further time, since other clients seem to change the
/// directory.
const MADE_FIRST: u32 = 16;

/// Names that may be made at any time; beyond that, no name is taken for absent any more.
const UNSURE_MAX: usize = 1024;

/// Known names, by directory.
#[derive(Default)]
pub struct WholeDirs {
    dirs: Mutex<HashMap<Ino, Dir>>,
    /// Hashes of names that may be made at any time, since the outcome of making them is unknown. Others are known all
    /// the same.
    unsure: Mutex<HashSet<u64>>,
    /// Set once there were too many of these: no absence is certain any more.
    is_unsure: AtomicBool,
}

struct Dir {
    names: Option<Hashes>,
    /// Being made.
    making: Vec<u64>,
    /// While names are fetched: what may be made too late for the answer.
    fetching: Option<Vec<u64>>,
    /// Entries made since names were fetched last, and how many lead to the next time.
    made: u32,
    due: u32,
    /// Grows with every name that is begun, and with every answer that is taken in.
    changes: u64,
}

struct Hashes {
    /// Number of names with each hash, or more.
    hashes: HashMap<u64, u32>,
    /// The lease that they hold with.
    run: Run,
}

impl WholeDirs {
    /// Returns true if a name certainly does not exist, given the present run of the lease on its directory's slot.
    fn lacks(&self, dir: Ino, hash: u64, run: Option<Run>) -> bool {
        let (dirs, Some(run)) = (self.dirs.lock(), run) else { return false };
        let names = dirs.get(&dir).and_then(|dir| dir.names.as_ref());
        let lacks = names.is_some_and(|names| names.run == run && !names.hashes.contains_key(&hash));
        if !lacks {
            return false;
        }
        // Under the lock: a name beyond the limit sets the flag and leaves the set in one step.
        let unsure = self.unsure.lock();
        !self.is_unsure.load(Ordering::Acquire) && !unsure.contains(&hash)
    }

    /// Records that the outcome of making a name is unknown: it may appear at any time.
    fn may_be_made(&self, hash: u64) {
        let mut unsure = self.unsure.lock();
        unsure.insert(hash);
        if unsure.len() > UNSURE_MAX {
            self.is_unsure.store(true, Ordering::Release);
            *unsure = HashSet::new();
        }
    }

    /// Notes that a name is about to be made.
    fn begin(&self, ino: Ino, hash: u64) {
        let mut dirs = self.dirs.lock();
        if dirs.len() >= WHOLE_DIRS_MAX && !dirs.contains_key(&ino) {
            dirs.retain(|_, dir| !dir.making.is_empty() || dir.fetching.is_some());
        }
        let new =
            Dir { names: None, making: Vec::new(), fetching: None, made: 0, due: MADE_FIRST, changes: 0 };
        let dir = dirs.entry(ino).or_insert(new);
        // Before the home is asked: once it has made the name, another program may look for it here.
        dir.changes += 1;
        dir.making.push(hash);
        dir.fetching.iter_mut().for_each(|begun| begun.push(hash));
        if let Some(names) = &mut dir.names {
            names.add(hash);
        }
        // One too large is not worth the memory.
        dir.names.take_if(|names| names.hashes.len() > NAMES_KNOWN_MAX);
    }

    /// Ends the making of a name, which was made or certainly not. Returns true if the names should be fetched, given
    /// the present run of the lease.
    fn end(&self, ino: Ino, hash: u64, made: bool, run: Option<Run>) -> bool {
        let mut dirs = self.dirs.lock();
        let Some(dir) = dirs.get_mut(&ino) else { return false };
        let at = dir.making.iter().position(|one| *one == hash);
        assert!(at.is_some(), "a name in directory {ino} was made that nobody had begun");
        at.map(|at| dir.making.swap_remove(at));
        dir.made = dir.made.saturating_add(u32::from(made));
        let known = dir.names.as_ref().is_some_and(|names| Some(names.run) == run);
        if known || run.is_none() || dir.made < dir.due || dir.fetching.is_some() {
            return false;
        }
        (dir.made, dir.due) = (0, dir.due.saturating_mul(2));
        // What is being made now may or may not be in the answer: it is added to that.
        dir.fetching = Some(dir.making.clone());
        true
    }

    /// Takes in the names, with a lease; or notes that they have not come.
    fn fetched(&self, ino: Ino, names: Option<(Vec<u64>, Run)>) {
        let mut dirs = self.dirs.lock();
        let Some(dir) = dirs.get_mut(&ino) else { return };
        let Some(begun) = dir.fetching.take() else { return };
        dir.changes += 1;
        dir.names = names.map(|(hashes, run)| {
            let mut names = Hashes { hashes: HashMap::with_capacity(hashes.len()), run };
            hashes.into_iter().chain(begun).for_each(|hash| names.add(hash));
            names
        });
    }

    /// Forgets the names of directories in this slot, where another client is about to change names. A reply under way
    /// is from before.
    pub fn forget(&self, slot: Slot) {
        let mut dirs = self.dirs.lock();
        for (_, dir) in dirs.iter_mut().filter(|(ino, _)| ino.slot() == slot) {
            (dir.names, dir.fetching) = (None, None);
            dir.changes += 1;
        }
    }

    /// Returns the number of changes so far, before a name is removed, if nothing is being made that could be it.
    fn quiet(&self, ino: Ino) -> Option<u64> {
        let dirs = self.dirs.lock();
        dirs.get(&ino).filter(|dir| dir.names.is_some() && dir.making.is_empty()).map(|dir| dir.changes)
    }

    /// Notes that a name was removed by what began after so many changes.
    fn removed(&self, ino: Ino, hash: u64, changes: u64) {
        let mut dirs = self.dirs.lock();
        let dir = dirs.get_mut(&ino).filter(|dir| dir.changes == changes);
        if let Some(names) = dir.and_then(|dir| dir.names.as_mut()) {
            // Only if nothing else began: a name made anew behind the removal must stay.
            names.take(hash);
        }
    }
}

impl Hashes {
    fn add(&mut self, hash: u64) {
        *self.hashes.entry(hash).or_default() += 1;
    }

    fn take(&mut self, hash: u64) {
        if let Entry::Occupied(mut entry) = self.hashes.entry(hash) {
            assert!(*entry.get() > 0, "hash {hash:x} of a name is known 0 times");
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

impl Names {
    /// Returns true if a name certainly does not exist.
    pub fn lacks(&self, dir: Ino, name: &[u8]) -> bool {
        self.is_elsewhere(dir)
            && self.whole.lacks(dir, entry_hash(dir, name), self.homes.leases.run(dir.slot()))
    }

    /// Does what makes an entry.
    pub fn making<T>(
        &self,
        ctx: &OpCtx,
        dir: Ino,
        name: &[u8],
        make: impl FnMut(&OpCtx) -> FsResult<T>,
    ) -> FsResult<T> {
        let make = ctx.repeatable(make);
        if !self.is_elsewhere(dir) {
            return self.reclaimer.retry_after_reclaim(make);
        }
        let hash = entry_hash(dir, name);
        self.whole.begin(dir, hash);
        let made = self.reclaimer.retry_after_reclaim(make);
        // It may be made yet: from now on this name is not known to be absent.
        if made.as_ref().is_err_and(|error| error.errno() == Errno::EIO) {
            self.whole.may_be_made(hash);
        }
        if self.whole.end(dir, hash, made.is_ok(), self.homes.leases.run(dir.slot())) {
            self.whole.fetched(dir, self.names_of(dir).unwrap_or_default());
        }
        made
    }

    /// Does what removes an entry. What is asked again may have been done before, and be undone since.
    pub fn removing<T>(
        &self,
        ctx: &OpCtx,
        dir: Ino,
        name: &[u8],
        remove: impl FnOnce() -> FsResult<T>,
    ) -> FsResult<T> {
        let may_know = self.is_elsewhere(dir) && !ctx.retry;
        let before = if may_know { self.whole.quiet(dir) } else { None };
        let removed = remove()?;
        if let Some(changes) = before {
            self.whole.removed(dir, entry_hash(dir, name), changes);
        }
        Ok(removed)
    }

    /// Returns true if a lookup takes a message, to one node that knows all names of the directory.
    fn is_elsewhere(&self, dir: Ino) -> bool {
        !self.homes.spread.has(dir)
            && self.connections.take_leases()
            && self.connections.map.home(dir) != self.connections.local
    }

    fn names_of(&self, dir: Ino) -> FsResult<Option<(Vec<u64>, Run)>> {
        let asked = self.homes.leases.now();
        let names =
            self.connections.ask::<op::ListHashes>(self.connections.home(dir)?, &InoOnly { ino: dir })?;
        let run = self.homes.leases.renew(dir.slot(), asked, names.lease_ms);
        Ok(run.filter(|_| names.all).map(|run| (names.hashes, run)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(9);
    const RUN: Option<Run> = Some(Run(3));

    /// Makes so many entries, the first of which has this hash. Whether names are to be fetched then.
    fn make(dirs: &WholeDirs, first: u64, count: u32) -> bool {
        let make = |hash| {
            dirs.begin(DIR, hash);
            dirs.end(DIR, hash, true, RUN)
        };
        (first..first + u64::from(count)).map(make).last().unwrap()
    }

    #[test]
    fn names_are_known_after_some_were_made_and_with_the_lease() {
        let dirs = WholeDirs::default();
        assert!(!make(&dirs, 1, MADE_FIRST - 1) && !dirs.lacks(DIR, 99, RUN));
        assert!(make(&dirs, 50, 1));
        dirs.fetched(DIR, Some(((1..=60).collect(), Run(3))));
        assert!(dirs.lacks(DIR, 99, RUN) && !dirs.lacks(DIR, 60, RUN));
        assert!(
            !dirs.lacks(DIR, 99, None) && !dirs.lacks(DIR, 99, Some(Run(4))) && !dirs.lacks(Ino(1), 99, RUN)
        );
        make(&dirs, 99, 1);
        assert!(!dirs.lacks(DIR, 99, RUN));
    }

    #[test]
    fn what_is_made_while_names_are_fetched_is_among_them() {
        let dirs = WholeDirs::default();
        dirs.begin(DIR, 70);
        assert!(make(&dirs, 1, MADE_FIRST));
        dirs.begin(DIR, 71);
        dirs.end(DIR, 71, true, RUN);
        dirs.fetched(DIR, Some((Vec::new(), Run(3))));
        assert_eq!([70, 71, 72].map(|hash| dirs.lacks(DIR, hash, RUN)), [false, false, true]);
    }

    #[test]
    fn a_removed_name_is_absent_unless_something_was_made_meanwhile() {
        let dirs = WholeDirs::default();
        assert!(dirs.quiet(DIR).is_none() && make(&dirs, 1, MADE_FIRST));
        // Two names with one hash.
        dirs.fetched(DIR, Some((vec![70, 71, 71], Run(3))));
        let changes = dirs.quiet(DIR).unwrap();
        [70, 71].iter().for_each(|hash| dirs.removed(DIR, *hash, changes));
        assert_eq!([70, 71].map(|hash| dirs.lacks(DIR, hash, RUN)), [true, false]);
        make(&dirs, 72, 1);
        dirs.removed(DIR, 71, changes);
        assert!(!dirs.lacks(DIR, 71, RUN), "it may be what was made");
        dirs.begin(DIR, 73);
        assert_eq!(dirs.quiet(DIR), None);
    }

    /// S64.
    #[test]
    fn nothing_is_known_when_others_change_names_not_even_what_is_on_its_way() {
        let dirs = WholeDirs::default();
        assert!(make(&dirs, 1, MADE_FIRST));
        dirs.forget(DIR.slot());
        dirs.fetched(DIR, Some((Vec::new(), Run(3))));
        assert!(!dirs.lacks(DIR, 70, RUN), "it is from before");
        assert!(make(&dirs, 1, 2 * MADE_FIRST));
        dirs.fetched(DIR, Some((Vec::new(), Run(3))));
        dirs.forget(Slot(DIR.slot().0 + 1));
        assert!(dirs.lacks(DIR, 70, RUN));
        dirs.forget(DIR.slot());
        assert!(!dirs.lacks(DIR, 70, RUN));
    }

    #[test]
    fn after_silence_the_name_that_it_was_about_is_not_known() {
        let dirs = WholeDirs::default();
        assert!(make(&dirs, 1, MADE_FIRST));
        dirs.fetched(DIR, Some((Vec::new(), Run(3))));
        assert!(dirs.lacks(DIR, 70, RUN) && dirs.lacks(DIR, 71, RUN));
        dirs.may_be_made(70);
        assert!(!dirs.lacks(DIR, 70, RUN) && dirs.lacks(DIR, 71, RUN));
        (0..UNSURE_MAX as u64).for_each(|hash| dirs.may_be_made(1000 + hash));
        assert!(!dirs.lacks(DIR, 71, RUN), "there were too many");
    }

    #[test]
    fn who_loses_the_lease_again_and_again_fetches_seldom() {
        let dirs = WholeDirs::default();
        let mut fetches = 0;
        for hash in 0..10_000 {
            dirs.begin(DIR, hash);
            if dirs.end(DIR, hash, true, Some(Run(hash as u32))) {
                fetches += 1;
                dirs.fetched(DIR, Some((Vec::new(), Run(hash as u32))));
            }
        }
        assert!((5..=10).contains(&fetches), "{fetches}");
    }

    #[test]
    fn what_is_known_is_bounded() {
        let dirs = WholeDirs::default();
        for ino in 0..2 * WHOLE_DIRS_MAX as u64 {
            dirs.begin(Ino(ino), 1);
            dirs.end(Ino(ino), 1, true, RUN);
        }
        assert!(dirs.dirs.lock().len() <= WHOLE_DIRS_MAX);
        assert!(make(&dirs, 0, MADE_FIRST));
        dirs.fetched(DIR, Some((Vec::new(), Run(3))));
        assert!(dirs.lacks(DIR, u64::MAX, RUN));
        make(&dirs, 0, NAMES_KNOWN_MAX as u32 + 1);
        assert!(!dirs.lacks(DIR, u64::MAX, RUN));
    }
}
