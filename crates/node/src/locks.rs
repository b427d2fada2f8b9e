//! Locks that are held while peers are asked: on one entry, or on one inode's size. Only requests of
//! the client lane take them; steps of the peer lane check and change in one transaction instead.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_types::{Errno, FsError, FsResult, Ino};
use parking_lot::{Condvar, Mutex};

const SHARDS: usize = 64;

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

/// What is locked, and whether it stays so when its guard is dropped.
type Held = HashMap<Target, bool>;

/// The locks of a node.
pub struct Locks {
    shards: Vec<(Mutex<Held>, Condvar)>,
    bound: Duration,
}

/// A held lock; dropping it lets the next one in.
pub struct Guard<'a> {
    locks: &'a Locks,
    target: Target,
}

impl Locks {
    /// Locks that are waited for so long at most.
    pub fn new(bound: Duration) -> Locks {
        Locks { shards: (0..SHARDS).map(|_| Default::default()).collect(), bound }
    }

    /// Waits until nobody else holds the target. Who takes several takes them by [`Locks::lock_all`].
    ///
    /// # Errors
    /// `EIO` after the bounded time: a change that somebody began waits for a node that is away.
    pub fn lock(&self, target: Target) -> FsResult<Guard<'_>> {
        let deadline = Instant::now() + self.bound;
        let (held, freed) = self.shard(target);
        let mut held = held.lock();
        while held.contains_key(&target) {
            bivouac_net::before_waiting();
            if freed.wait_until(&mut held, deadline).timed_out() && held.contains_key(&target) {
                return Err(FsError::with(
                    Errno::EIO,
                    format!(
                        "{target:?} waits for a change that another node must finish; see `bivouac status`"
                    ),
                ));
            }
        }
        held.insert(target, false);
        Ok(Guard { locks: self, target })
    }

    /// The lock if nobody holds it.
    pub fn try_lock(&self, target: Target) -> Option<Guard<'_>> {
        let mut held = self.shard(target).0.lock();
        if held.contains_key(&target) {
            return None;
        }
        held.insert(target, false);
        Some(Guard { locks: self, target })
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

    /// Locks a target beyond the life of any guard, whether one holds it now or not.
    pub fn keep(&self, target: Target) {
        self.shard(target).0.lock().insert(target, true);
    }

    /// Whether a target is locked beyond the life of its guard.
    pub fn is_kept(&self, target: Target) -> bool {
        self.shard(target).0.lock().get(&target) == Some(&true)
    }

    /// Ends what [`Locks::keep`] began.
    pub fn release(&self, target: Target) {
        let (held, freed) = self.shard(target);
        held.lock().remove(&target);
        freed.notify_all();
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
        let (held, freed) = self.locks.shard(self.target);
        let mut held = held.lock();
        if held.get(&self.target) == Some(&false) {
            held.remove(&self.target);
            freed.notify_all();
        }
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
        locks.keep(target);
        drop(guard);
        assert!(locks.is_kept(target));
        locks.release(target);
        drop(locks.lock(target).unwrap());
    }

    #[test]
    fn the_same_target_twice_is_one_lock() {
        let locks = Locks::new(Duration::from_secs(60));
        assert_eq!(locks.lock_all(&[Target::Size(Ino(1)), Target::Size(Ino(1))]).unwrap().len(), 1);
        drop(locks.lock(Target::Size(Ino(1))).unwrap());
    }

    #[test]
    fn nobody_waits_for_ever() {
        let locks = Locks::new(Duration::from_millis(1));
        locks.keep(Target::Size(Ino(1)));
        let refusal = locks.lock(Target::Size(Ino(1))).map(drop).unwrap_err();
        assert_eq!(refusal.errno(), Errno::EIO);
        assert!(refusal.to_string().contains("another node must finish"));
        drop(locks.lock(Target::Size(Ino(2))).unwrap());
    }
}
