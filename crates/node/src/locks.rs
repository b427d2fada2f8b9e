//! Locks that are held while peers are asked: on a directory, on one entry, on a file's size. One table has them all.
//!
//! A lock is a request's until its guard is dropped, or an unfinished intent's until it is released. An intent takes
//! over from the request that began it; both have the lock for a moment. Requests share directories, in which many are
//! at work at a time, and have everything else alone; who moves all entries of a directory *claims* it. Only requests
//! of the client lane wait for locks; steps of the peer lane try, and check and change in one transaction.
//!
//! Nobody waits in a circle: requests take locks by their ranks (the turn at moving, directories, entries, sizes), and
//! several of one rank by their numbers ([`Locks::lock_all`]), which debug builds check as they do for all locks
//! ([`bivouac_ranks`]); who claims a directory waits for no other lock; and intents wait for none. Each wait is bounded
//! all the same, since an intent may need a node that is away.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, InOrder, LockPosition, Mutex, Rank, rank};
use bivouac_types::{Errno, FsError, FsResult, Ino};

const SHARDS: usize = 64;
/// Longest wait of a claim for requests that share the directory, which delays all new ones.
const CLAIM_WAIT: Duration = Duration::from_secs(1);

/// Something that can be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockTarget {
    /// This node's turn at moving directories.
    Moves,
    /// The entries of a directory, which may not be moved to other nodes meanwhile. Taken at the directory's home.
    Dir(Ino),
    /// An entry: directory and hash of the name.
    Entry(Ino, u64),
    /// Size and epoch of a file.
    Size(Ino),
}

/// Holders of a target. Targets without holders are not in the table.
#[derive(Default)]
struct HeldTarget {
    /// Requests that share it.
    shared: u32,
    /// Set if a request has it exclusively or claims it: no other request gets it.
    alone: bool,
    // Intents that have it: several, where requests share it.
    kept: Vec<KeptTarget>,
}

/// An unfinished intent that holds a target.
#[derive(Clone, Copy, Debug)]
struct KeptTarget {
    intent: u64,
    /// Set if the intent finds no space to go on; requests are refused then instead of waiting.
    is_starved: bool,
}

type LockTable = HashMap<LockTarget, HeldTarget>;

/// The locks of a node.
pub struct Locks {
    shards: Vec<(Mutex<LockTable>, Condvar)>,
    bound: Duration,
}

/// A request's lock. Dropping it releases the target, unless an intent holds it too.
#[must_use = "the lock is given up when this is dropped"]
pub struct Guard<'a> {
    locks: &'a Locks,
    target: LockTarget,
    is_alone: bool,
    _order: InOrder,
}

impl Locks {
    /// Creates the locks; `bound` limits each wait.
    pub fn new(bound: Duration) -> Locks {
        Locks { shards: (0..SHARDS).map(|_| Default::default()).collect(), bound }
    }

    /// Waits until the target is free for this request, then locks it. A request that needs several targets of one kind
    /// takes them by [`Locks::lock_all`].
    ///
    /// # Errors
    /// `EIO` after the bounded time: an unfinished change holds the target, and waits for a node that is away. `ENOSPC`
    /// at once if that change waits for space.
    pub fn lock(&self, target: LockTarget) -> FsResult<Guard<'_>> {
        target.place().check();
        let deadline = Instant::now() + self.bound;
        let (shard, freed) = self.shard(target);
        let mut table = shard.lock();
        if !target.is_free(&table) {
            // Others go on meanwhile, which may take a thread to be started: not under the lock.
            drop(table);
            bivouac_net::before_waiting();
            table = shard.lock();
        }
        while !target.is_free(&table) {
            if target.is_starved(&table) {
                return Err(target.starved());
            }
            // Checked once more after a time-out: the target may have become free before the thread had the table's
            // lock again.
            if freed.wait_until(&mut table, deadline).timed_out() && !target.is_free(&table) {
                return Err(target.refused());
            }
        }
        Ok(self.taken(&mut table, target))
    }

    /// Returns the lock if the target is free, `None` otherwise. Never waits.
    pub fn try_lock(&self, target: LockTarget) -> Option<Guard<'_>> {
        let mut table = self.shard(target).0.lock();
        target.is_free(&table).then(|| self.taken(&mut table, target))
    }

    /// Locks several targets in the one order.
    ///
    /// # Errors
    /// As [`Locks::lock`].
    pub fn lock_all(&self, targets: impl IntoIterator<Item = LockTarget>) -> FsResult<Vec<Guard<'_>>> {
        let mut sorted: Vec<LockTarget> = targets.into_iter().collect();
        sorted.sort_unstable_by_key(|target| target.order());
        sorted.dedup();
        sorted.into_iter().map(|target| self.lock(target)).collect()
    }

    fn taken(&self, table: &mut LockTable, target: LockTarget) -> Guard<'_> {
        let held = table.entry(target).or_default();
        assert!(!held.alone, "{target:?} is given to two requests");
        assert!(
            target.is_shared() || held.kept.is_empty(),
            "{target:?} is an intent's, and given to a request"
        );
        match target.is_shared() {
            true => held.shared += 1,
            false => held.alone = true,
        }
        self.guard(target, !target.is_shared())
    }

    fn guard(&self, target: LockTarget, is_alone: bool) -> Guard<'_> {
        Guard { locks: self, target, is_alone, _order: target.place().hold() }
    }

    /// Waits, for [`CLAIM_WAIT`] at most, until no request shares a directory, and returns it locked exclusively. New
    /// requests are kept out meanwhile. Returns `None` if a request stays, or an intent or another claim has the
    /// directory.
    pub fn claim(&self, dir: Ino) -> Option<Guard<'_>> {
        let (target, deadline) = (LockTarget::Dir(dir), Instant::now() + CLAIM_WAIT);
        target.place().check();
        let (shard, freed) = self.shard(target);
        let mut table = shard.lock();
        let held = table.entry(target).or_default();
        if held.alone || !held.kept.is_empty() {
            return None;
        }
        // Before the wait, so that no further request joins those that are waited for.
        held.alone = true;
        let claim = self.guard(target, true);
        let is_shared = |table: &LockTable| table.get(&target).is_some_and(|held| held.shared > 0);
        while is_shared(&table) && !freed.wait_until(&mut table, deadline).timed_out() {}
        // Looked at again: the last request may have left just as the time ran out.
        let has_it = table.get(&target).is_some_and(|held| held.shared == 0 && held.kept.is_empty());
        // Dropping the claim takes the table's lock again.
        drop(table);
        has_it.then_some(claim)
    }

    /// Makes an unfinished intent a holder of a target, beside the request that began it.
    pub fn keep(&self, target: LockTarget, intent: u64) {
        let mut table = self.shard(target).0.lock();
        let held = table.entry(target).or_default();
        // A handler that panicked after it had logged its intent left the lock to others: a daemon must start all the
        // same.
        if !target.is_shared() && held.kept.iter().any(|other| other.intent != intent) {
            log::error!("bug: {target:?} is kept by {:?}, and now by intent {intent}", held.kept);
        }
        held.kept.push(KeptTarget { intent, is_starved: false });
    }

    /// Sets whether an intent waits for space (or for something else that requests should not wait for), and wakes the
    /// requests that wait for its targets.
    pub fn starve(&self, intent: u64, targets: &[LockTarget], is_starved: bool) {
        for target in targets {
            let (shard, freed) = self.shard(*target);
            let mut table = shard.lock();
            let mut keepers = table.get_mut(target).into_iter().flat_map(|held| &mut held.kept);
            if let Some(kept) = keepers.find(|kept| kept.intent == intent) {
                kept.is_starved = is_starved;
                freed.notify_all();
            }
        }
    }

    /// Returns true if an unfinished intent holds the target.
    pub fn is_kept(&self, target: LockTarget) -> bool {
        self.shard(target).0.lock().get(&target).is_some_and(|held| !held.kept.is_empty())
    }

    /// Ends what [`Locks::keep`] began.
    pub fn release(&self, target: LockTarget, intent: u64) {
        self.change(target, |held| held.kept.retain(|kept| kept.intent != intent));
    }

    /// Changes the holders of a target, wakes those who may have it then, and drops the entry if no holder is left.
    fn change(&self, target: LockTarget, act: impl FnOnce(&mut HeldTarget)) {
        let (shard, freed) = self.shard(target);
        let mut table = shard.lock();
        let Some(held) = table.get_mut(&target) else { return };
        let was_alone = held.alone;
        act(held);
        // A claim waits for the last request that shares the directory; any other that leaves keeps nobody waiting.
        if held.shared == 0 || was_alone {
            freed.notify_all();
        }
        if held.shared == 0 && !held.alone && held.kept.is_empty() {
            table.remove(&target);
        }
    }

    /// Returns true if each of its locks can be taken within `patience`; for detecting a standstill.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.shards.iter().all(|(table, _)| table.try_lock_for(patience).is_some())
    }

    fn shard(&self, target: LockTarget) -> &(Mutex<LockTable>, Condvar) {
        &self.shards[target.number() as usize % SHARDS]
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.locks.change(self.target, |held| {
            let is_held = if self.is_alone { held.alone } else { held.shared > 0 };
            assert!(is_held, "{:?} is unlocked and was not locked", self.target);
            match self.is_alone {
                true => held.alone = false,
                false => held.shared -= 1,
            }
        });
    }
}

impl LockTarget {
    /// Returns true if several requests may hold it at a time.
    fn is_shared(self) -> bool {
        matches!(self, LockTarget::Dir(_))
    }

    /// Returns true if a request may lock it now. A target that requests share, they also share with intents.
    fn is_free(self, table: &LockTable) -> bool {
        let excludes = |held: &HeldTarget| held.alone || !self.is_shared();
        !table.get(&self).is_some_and(excludes)
    }

    /// Returns true if a wait for it would be in vain: an intent holds it that finds no space.
    fn is_starved(self, table: &LockTable) -> bool {
        let finds_none = |held: &HeldTarget| held.kept.iter().any(|kept| kept.is_starved);
        !self.is_shared() && table.get(&self).is_some_and(finds_none)
    }

    fn rank(self) -> Rank {
        match self {
            LockTarget::Moves => rank::MOVES,
            LockTarget::Dir(_) => rank::DIRECTORY,
            LockTarget::Entry(..) => rank::ENTRY,
            LockTarget::Size(_) => rank::FILE_SIZE,
        }
    }

    fn place(self) -> LockPosition {
        LockPosition::new(self.rank(), self.number())
    }

    /// Returns its number among the targets of its rank: a hash, as ranks have 32 bits for it.
    fn number(self) -> u32 {
        let number = match self {
            LockTarget::Moves => 0,
            LockTarget::Dir(ino) | LockTarget::Size(ino) => ino.0,
            LockTarget::Entry(dir, hash) => dir.0.rotate_left(32) ^ hash,
        };
        // Fibonacci hashing: inode numbers differ in a few bits, and shards and ranks have to spread all the same.
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }

    /// Returns its position in the lock order. Targets with the same rank and number (one pair in four thousand
    /// million) are ordered by their values.
    fn order(self) -> (u16, u32, LockTarget) {
        (self.rank().number(), self.number(), self)
    }

    fn starved(self) -> FsError {
        let text = format!(
            "{self:?} waits for a change that finds no space on a node: free some, see `bivouac status`"
        );
        FsError::with(Errno::ENOSPC, text)
    }

    fn refused(self) -> FsError {
        let text = match self {
            LockTarget::Dir(dir) => format!("directory {dir} is being spread over the nodes: try again"),
            _ => format!("{self:?} waits for a change that another node must finish; see `bivouac status`"),
        };
        FsError::with(Errno::EIO, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn one_at_a_time() {
        let locks = Arc::new(Locks::new(Duration::from_secs(60)));
        let inside = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (locks, inside) = (locks.clone(), inside.clone());
                std::thread::spawn(move || {
                    for _ in 0..1000 {
                        let guards =
                            locks.lock_all([LockTarget::Size(Ino(2)), LockTarget::Entry(Ino(1), 3)]).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(guards);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn what_is_kept_outlives_its_guard() {
        let (locks, target) = (Locks::new(Duration::from_secs(60)), LockTarget::Size(Ino(1)));
        let guard = locks.lock(target).unwrap();
        locks.keep(target, 5);
        drop(guard);
        assert!(locks.is_kept(target));
        locks.release(target, 6);
        assert!(locks.is_kept(target), "it is another's");
        locks.release(target, 5);
        drop(locks.lock(target).unwrap());
    }

    #[test]
    fn nobody_waits_for_what_waits_for_space() {
        let (locks, target) = (Locks::new(Duration::from_secs(600)), LockTarget::Size(Ino(1)));
        locks.keep(target, 5);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| locks.lock(target).map(drop).unwrap_err().errno());
            locks.starve(5, &[target], true);
            assert_eq!(waiting.join().unwrap(), Errno::ENOSPC);
        });
        assert_eq!(locks.lock(target).map(drop).unwrap_err().errno(), Errno::ENOSPC);
        locks.starve(5, &[target], false);
        locks.release(target, 5);
        drop(locks.lock(target).unwrap());
    }

    /// Who takes over may be done before the request that it was taken over from has returned: the lock is somebody
    /// else's by then.
    #[test]
    fn a_guard_that_is_dropped_late_frees_nobody_elses_lock() {
        let (locks, target) = (Locks::new(Duration::from_millis(1)), LockTarget::Size(Ino(1)));
        let late = locks.lock(target).unwrap();
        locks.keep(target, 5);
        locks.release(target, 5);
        assert!(locks.try_lock(target).is_none(), "its request has it still");
        locks.keep(target, 6);
        drop(late);
        assert!(locks.try_lock(target).is_none(), "the next one has it");
        locks.release(target, 6);
        drop(locks.try_lock(target).unwrap());
    }

    #[test]
    fn the_same_target_twice_is_one_lock() {
        let locks = Locks::new(Duration::from_secs(60));
        assert_eq!(locks.lock_all([LockTarget::Size(Ino(1)), LockTarget::Size(Ino(1))]).unwrap().len(), 1);
        drop(locks.lock(LockTarget::Size(Ino(1))).unwrap());
    }

    const DIR: LockTarget = LockTarget::Dir(Ino(1));

    #[test]
    fn a_directory_is_claimed_when_nobody_is_at_work_in_it() {
        let locks = Locks::new(Duration::from_secs(60));
        std::thread::scope(|scope| {
            let both = [locks.lock(DIR).unwrap(), locks.try_lock(DIR).unwrap()];
            // A busy machine may take longer than a claim waits.
            let claim = scope.spawn(|| while locks.claim(Ino(1)).is_none() {});
            drop(both);
            claim.join().unwrap();
            let claimed = locks.claim(Ino(1)).unwrap();
            assert!(locks.try_lock(DIR).is_none());
            assert!(scope.spawn(|| locks.claim(Ino(1)).is_none()).join().unwrap());
            drop(locks.try_lock(LockTarget::Dir(Ino(2))).unwrap());
            let waiting = scope.spawn(|| drop(locks.lock(DIR).unwrap()));
            drop(claimed);
            waiting.join().unwrap();
        });
        locks.keep(DIR, 5);
        locks.keep(DIR, 6);
        drop(locks.lock(DIR).unwrap());
        locks.release(DIR, 5);
        assert!(locks.claim(Ino(1)).is_none(), "an intent is unfinished");
        locks.release(DIR, 6);
        drop(locks.claim(Ino(1)).unwrap());
        assert!(locks.shards.iter().all(|(table, _)| table.lock().is_empty()));
    }

    /// Who gave up to claim a directory, as somebody stayed at work in it, let those sleep who had come meanwhile.
    #[test]
    fn who_waits_for_a_claim_that_is_given_up_goes_on() {
        let locks = Locks::new(Duration::from_secs(3600));
        let stays = locks.lock(DIR).unwrap();
        locks.shard(DIR).0.lock().entry(DIR).or_default().alone = true;
        let given_up = locks.guard(DIR, true);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(locks.lock(DIR).unwrap()));
            drop(given_up);
            waiting.join().unwrap();
        });
        drop(stays);
    }

    /// Two renames between the same directories, one of them the other way round, beside two that claim these.
    #[test]
    fn whatever_is_named_first_all_are_taken_in_one_order() {
        let locks = Locks::new(Duration::from_secs(3600));
        let targets = |from: u64, to: u64| {
            [
                LockTarget::Entry(Ino(from), to),
                LockTarget::Dir(Ino(to)),
                LockTarget::Entry(Ino(to), from),
                LockTarget::Dir(Ino(from)),
            ]
        };
        std::thread::scope(|scope| {
            for (from, to) in [(1, 2), (2, 1)] {
                let locks = &locks;
                scope.spawn(move || (0..500).for_each(|_| drop(locks.lock_all(targets(from, to)).unwrap())));
                scope.spawn(move || (0..50).for_each(|_| drop(locks.claim(Ino(from)))));
            }
        });
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "is taken while the lock of an entry")]
    fn who_has_an_entry_takes_no_directory() {
        let locks = Locks::new(Duration::from_secs(60));
        let _entry = locks.lock(LockTarget::Entry(Ino(1), 3)).unwrap();
        let _ = locks.lock(DIR);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let locks = Locks::new(Duration::from_millis(1));
        locks.keep(LockTarget::Size(Ino(1)), 7);
        let refusal = locks.lock(LockTarget::Size(Ino(1))).map(drop).unwrap_err();
        assert_eq!(refusal.errno(), Errno::EIO);
        assert!(refusal.to_string().contains("another node must finish"));
        drop(locks.lock(LockTarget::Size(Ino(2))).unwrap());
    }
}
