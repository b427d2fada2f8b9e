//! Locks that are held while peers are asked: on one entry, or on one inode's size. Only requests of
//! the client lane take them; steps of the peer lane check and change in one transaction instead.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex};
use bivouac_types::{Errno, FsError, FsResult, Ino};

const SHARDS: usize = 64;
/// How long a directory that is to spread waits for those who are at work in it.
const MOVE_WAIT: Duration = Duration::from_secs(1);

/// What can be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// An entry: directory and hash of the name.
    Entry(Ino, u64),
    /// Size and epoch of a file.
    Size(Ino),
    /// This node's turn at moving directories.
    Moves,
}

/// Whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// A request's, until its guard with this number is dropped.
    Request(u64),
    /// An intent's with this number, until it is released.
    Intent(u64),
    /// The same, of one that finds no space to go on: nobody waits for that.
    Starved(u64),
}

impl Owner {
    fn is_intent(self, number: u64) -> bool {
        matches!(self, Owner::Intent(own) | Owner::Starved(own) if own == number)
    }
}

/// What is locked, and whose it is.
type Held = HashMap<Target, Owner>;

/// The locks of a node.
pub struct Locks {
    shards: Vec<(Mutex<Held>, Condvar)>,
    bound: Duration,
    /// Number of the next request's lock.
    next: AtomicU64,
}

/// A held lock; dropping it lets the next one in, unless an intent has taken it over.
pub struct Guard<'a> {
    locks: &'a Locks,
    target: Target,
    number: u64,
}

impl Locks {
    /// Locks that are waited for so long at most.
    pub fn new(bound: Duration) -> Locks {
        Locks { shards: (0..SHARDS).map(|_| Default::default()).collect(), bound, next: AtomicU64::new(0) }
    }

    /// Waits until nobody else holds the target. Who takes several takes them by [`Locks::lock_all`].
    ///
    /// # Errors
    /// `EIO` after the bounded time: a change that somebody began waits for a node that is away. `ENOSPC` at once where
    /// it waits for space.
    pub fn lock(&self, target: Target) -> FsResult<Guard<'_>> {
        let deadline = Instant::now() + self.bound;
        let (shard, freed) = self.shard(target);
        let mut held = shard.lock();
        if held.contains_key(&target) {
            // Others go on meanwhile, which may take a thread to be started: not under the lock.
            drop(held);
            bivouac_net::before_waiting();
            held = shard.lock();
        }
        while let Some(owner) = held.get(&target).copied() {
            if matches!(owner, Owner::Starved(_)) {
                let text = format!(
                    "{target:?} waits for a change that finds no space on a node: free some, see `bivouac status`"
                );
                return Err(FsError::with(Errno::ENOSPC, text));
            }
            if freed.wait_until(&mut held, deadline).timed_out() && held.contains_key(&target) {
                return Err(FsError::with(
                    Errno::EIO,
                    format!(
                        "{target:?} waits for a change that another node must finish; see `bivouac status`"
                    ),
                ));
            }
        }
        Ok(self.taken(&mut held, target))
    }

    /// The lock if nobody holds it.
    pub fn try_lock(&self, target: Target) -> Option<Guard<'_>> {
        let mut held = self.shard(target).0.lock();
        if held.contains_key(&target) {
            return None;
        }
        Some(self.taken(&mut held, target))
    }

    fn taken(&self, held: &mut Held, target: Target) -> Guard<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let before = held.insert(target, Owner::Request(number));
        assert!(before.is_none(), "{target:?} is locked by {before:?} already");
        Guard { locks: self, target, number }
    }

    /// Locks several targets in one order that all requests share, so that none waits in a circle.
    ///
    /// # Errors
    /// As [`Locks::lock`].
    pub fn lock_all(&self, targets: &[Target]) -> FsResult<Vec<Guard<'_>>> {
        let mut sorted = targets.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.into_iter().map(|target| self.lock(target)).collect()
    }

    /// Locks a target for an unfinished intent, which takes the lock over from the request whose intent it is.
    pub fn keep(&self, target: Target, intent: u64) {
        let before = self.shard(target).0.lock().insert(target, Owner::Intent(intent));
        // A handler that panicked after it had logged its intent left the lock to others: a daemon must start all the same.
        if matches!(before, Some(Owner::Intent(other) | Owner::Starved(other)) if other != intent) {
            log::error!("bug: {target:?} is kept by {before:?}, and now by intent {intent}");
        }
    }

    /// An intent that keeps these targets has found no space, or something else that it waits for: whoever waits for it
    /// hears of that.
    pub fn starve(&self, intent: u64, targets: &[Target], is_starved: bool) {
        for target in targets {
            let (held, freed) = self.shard(*target);
            match held.lock().get_mut(target) {
                Some(owner) if owner.is_intent(intent) => {
                    *owner = if is_starved { Owner::Starved(intent) } else { Owner::Intent(intent) };
                    freed.notify_all();
                }
                _ => {}
            }
        }
    }

    /// Whether an unfinished intent has a target locked.
    pub fn is_kept(&self, target: Target) -> bool {
        matches!(self.shard(target).0.lock().get(&target), Some(Owner::Intent(_) | Owner::Starved(_)))
    }

    /// Ends what [`Locks::keep`] began.
    pub fn release(&self, target: Target, intent: u64) {
        self.free(target, |owner| owner.is_intent(intent));
    }

    /// Lets the next one in, if the lock is still this owner's.
    fn free(&self, target: Target, is_owner: impl FnOnce(&Owner) -> bool) {
        let (held, freed) = self.shard(target);
        let mut held = held.lock();
        if held.get(&target).is_some_and(is_owner) {
            held.remove(&target);
            freed.notify_all();
        }
    }

    /// Whether all its locks can be had within a time each.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.shards.iter().all(|(held, _)| held.try_lock_for(patience).is_some())
    }

    fn shard(&self, target: Target) -> &(Mutex<Held>, Condvar) {
        let number = match target {
            Target::Entry(parent, hash) => parent.0 ^ hash,
            Target::Size(ino) => ino.0,
            Target::Moves => 0,
        };
        &self.shards[number as usize % SHARDS]
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.locks.free(self.target, |owner| *owner == Owner::Request(self.number));
    }
}

/// Who is at work in the directories of which this node is the home: many at a time, unless all entries of one move.
pub struct Dirs {
    shards: Vec<(Mutex<HashMap<Ino, Users>>, Condvar)>,
    bound: Duration,
}

#[derive(Default)]
struct Users {
    /// Requests under way.
    active: u32,
    /// Intents that are unfinished.
    kept: u32,
    moving: bool,
}

/// A request at work in a directory.
pub struct InDir<'a> {
    dirs: &'a Dirs,
    dir: Ino,
}

/// The only one at work in a directory.
pub struct Moving<'a> {
    dirs: &'a Dirs,
    dir: Ino,
}

impl Dirs {
    pub fn new(bound: Duration) -> Dirs {
        Dirs { shards: (0..SHARDS).map(|_| Default::default()).collect(), bound }
    }

    /// Begins to work in a directory, when its entries do not move.
    ///
    /// # Errors
    /// `EIO` when they do for longer than the bounded time.
    pub fn enter(&self, dir: Ino) -> FsResult<InDir<'_>> {
        let deadline = Instant::now() + self.bound;
        let (shard, changed) = self.shard(dir);
        let mut users = shard.lock();
        let moves = |all: &HashMap<Ino, Users>| all.get(&dir).is_some_and(|users| users.moving);
        if moves(&users) {
            drop(users);
            bivouac_net::before_waiting();
            users = shard.lock();
        }
        while moves(&users) {
            if changed.wait_until(&mut users, deadline).timed_out() && moves(&users) {
                return Err(FsError::with(
                    Errno::EIO,
                    format!("directory {dir} is being spread over the nodes: try again"),
                ));
            }
        }
        users.entry(dir).or_default().active += 1;
        Ok(InDir { dirs: self, dir })
    }

    /// Begins to work in a directory if its entries do not move.
    pub fn try_enter(&self, dir: Ino) -> Option<InDir<'_>> {
        let mut users = self.shard(dir).0.lock();
        let users = users.entry(dir).or_default();
        if users.moving {
            return None;
        }
        users.active += 1;
        Some(InDir { dirs: self, dir })
    }

    /// Waits a moment until nobody is at work there, and keeps it so. `None` if somebody stays.
    pub fn move_away(&self, dir: Ino) -> Option<Moving<'_>> {
        let deadline = Instant::now() + MOVE_WAIT;
        let (all, changed) = self.shard(dir);
        let mut all = all.lock();
        let users = all.entry(dir).or_default();
        if users.moving || users.kept > 0 {
            return None;
        }
        users.moving = true;
        let moving = Moving { dirs: self, dir };
        while all.get(&dir).is_some_and(|users| users.active > 0) {
            if changed.wait_until(&mut all, deadline).timed_out() {
                drop(all);
                drop(moving);
                return None;
            }
        }
        if all.get(&dir).is_some_and(|users| users.kept > 0) {
            drop(all);
            drop(moving);
            return None;
        }
        Some(moving)
    }

    /// An unfinished intent stays at work in a directory.
    pub fn keep(&self, dir: Ino) {
        self.shard(dir).0.lock().entry(dir).or_default().kept += 1;
    }

    /// Ends what [`Dirs::keep`] began.
    pub fn release(&self, dir: Ino) {
        self.change(dir, |users| users.kept = users.kept.saturating_sub(1));
    }

    fn change(&self, dir: Ino, act: impl FnOnce(&mut Users)) {
        let (all, changed) = self.shard(dir);
        let mut all = all.lock();
        let users = all.entry(dir).or_default();
        let moved = users.moving;
        act(users);
        if moved || users.moving || users.active == 0 {
            changed.notify_all();
        }
        if users.active == 0 && users.kept == 0 && !users.moving {
            all.remove(&dir);
        }
    }

    fn shard(&self, dir: Ino) -> &(Mutex<HashMap<Ino, Users>>, Condvar) {
        &self.shards[(dir.0 ^ dir.0 >> 52) as usize % SHARDS]
    }
}

impl Drop for InDir<'_> {
    fn drop(&mut self) {
        self.dirs.change(self.dir, |users| users.active = users.active.saturating_sub(1));
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.dirs.change(self.dir, |users| users.moving = false);
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
                            locks.lock_all(&[Target::Size(Ino(2)), Target::Entry(Ino(1), 3)]).unwrap();
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
        let (locks, target) = (Locks::new(Duration::from_secs(60)), Target::Size(Ino(1)));
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
        let (locks, target) = (Locks::new(Duration::from_secs(600)), Target::Size(Ino(1)));
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
        let (locks, target) = (Locks::new(Duration::from_millis(1)), Target::Size(Ino(1)));
        let late = locks.lock(target).unwrap();
        locks.keep(target, 5);
        locks.release(target, 5);
        let next = locks.lock(target).unwrap();
        drop(late);
        assert!(locks.try_lock(target).is_none(), "the next one has it");
        drop(next);
        drop(locks.try_lock(target).unwrap());
    }

    #[test]
    fn the_same_target_twice_is_one_lock() {
        let locks = Locks::new(Duration::from_secs(60));
        assert_eq!(locks.lock_all(&[Target::Size(Ino(1)), Target::Size(Ino(1))]).unwrap().len(), 1);
        drop(locks.lock(Target::Size(Ino(1))).unwrap());
    }

    #[test]
    fn entries_move_when_nobody_is_at_work_among_them() {
        let dirs = Arc::new(Dirs::new(Duration::from_secs(60)));
        let (first, second) = (dirs.enter(Ino(1)).unwrap(), dirs.enter(Ino(1)).unwrap());
        let mover = {
            let dirs = dirs.clone();
            std::thread::spawn(move || dirs.move_away(Ino(1)).is_some())
        };
        drop((first, second));
        assert!(mover.join().unwrap());
        let moving = dirs.move_away(Ino(1)).unwrap();
        assert!(dirs.try_enter(Ino(1)).is_none() && dirs.move_away(Ino(1)).is_none());
        drop(dirs.try_enter(Ino(2)).unwrap());
        let waiting = {
            let dirs = dirs.clone();
            std::thread::spawn(move || drop(dirs.enter(Ino(1)).unwrap()))
        };
        drop(moving);
        waiting.join().unwrap();
        dirs.keep(Ino(1));
        assert!(dirs.move_away(Ino(1)).is_none(), "an intent is unfinished");
        drop(dirs.enter(Ino(1)).unwrap());
        dirs.release(Ino(1));
        drop(dirs.move_away(Ino(1)).unwrap());
        assert!(dirs.shards.iter().all(|(users, _)| users.lock().is_empty()));
    }

    /// Who gave up to move a directory, as somebody stayed at work in it, let those sleep who had come meanwhile.
    #[test]
    fn who_waits_for_a_move_that_is_given_up_goes_on() {
        let dirs = Arc::new(Dirs::new(Duration::from_secs(3600)));
        let stays = dirs.enter(Ino(1)).unwrap();
        let moving = dirs.shard(Ino(1));
        moving.0.lock().entry(Ino(1)).or_default().moving = true;
        let given_up = Moving { dirs: &dirs, dir: Ino(1) };
        let waiting = {
            let dirs = dirs.clone();
            std::thread::spawn(move || drop(dirs.enter(Ino(1)).unwrap()))
        };
        drop(given_up);
        waiting.join().unwrap();
        drop(stays);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let locks = Locks::new(Duration::from_millis(1));
        locks.keep(Target::Size(Ino(1)), 7);
        let refusal = locks.lock(Target::Size(Ino(1))).map(drop).unwrap_err();
        assert_eq!(refusal.errno(), Errno::EIO);
        assert!(refusal.to_string().contains("another node must finish"));
        drop(locks.lock(Target::Size(Ino(2))).unwrap());
    }
}
