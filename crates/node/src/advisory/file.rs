//! One file's locks and the requests that wait for them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bivouac_types::limits::{LOCK_SILENCE_MS, LOCK_TURN_MS, LOCK_WAITS_PER_FILE_MAX, LOCKS_PER_FILE_MAX};
use bivouac_types::{ClientId, Errno, FsError, FsResult, NodeId};
use bivouac_wire::{FileLock, LockKind, LockMode, UnlockScope};

use super::ranges::{Delta, Owner, Ranges};

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    pub client: ClientId,
    pub node: Option<NodeId>,
    pub lock: FileLock,
    /// The number under which it may wait.
    pub ticket: Option<u64>,
    /// Set if the client holds a lock on the file, as far as it can tell.
    pub holds: bool,
}

/// A request that waits.
#[derive(Debug)]
struct Waiter {
    want: LockRequest,
    ticket: u64,
    since: Instant,
    /// Time of its client's latest request for it.
    asked: Instant,
}

/// Locks of a file, and who waits for some, in the order of their coming.
#[derive(Debug, Default)]
pub struct LockedFile {
    pub ranges: Ranges,
    waiters: VecDeque<Waiter>,
}

/// A function that makes a change last before it is made.
pub type Save<'a> = &'a dyn Fn(Owner, &Delta) -> FsResult<()>;

/// Client and number of a request that has its lock now, and the node that serves the client.
pub type Granted = (ClientId, Option<NodeId>, u64);

impl LockRequest {
    fn owner(&self) -> Owner {
        Owner::of(self.client, &self.lock)
    }

    /// Returns true if only one of the two can be granted.
    fn excludes(&self, other: &LockRequest) -> bool {
        let writes = self.lock.mode == LockMode::Write || other.lock.mode == LockMode::Write;
        let meets = self.lock.start <= other.lock.end && other.lock.start <= self.lock.end;
        self.lock.kind == other.lock.kind && self.owner() != other.owner() && writes && meets
    }
}

impl LockedFile {
    /// Returns true if there are neither locks nor waiters.
    pub fn is_idle(&self) -> bool {
        self.ranges.count() == 0 && self.waiters.is_empty()
    }

    /// Locks, or makes the request wait; returns true if it is locked. The same request again finds its place in the
    /// queue, and the same lock again is granted again.
    ///
    /// # Errors
    /// `EAGAIN` for a request that may not wait; `EBADF` for one of a client whose locks were dropped without its
    /// knowing; `ENOLCK`; those of `save`.
    pub fn acquire(&mut self, want: &LockRequest, now: Instant, save: Save<'_>) -> FsResult<bool> {
        let owner = want.owner();
        if want.holds && self.ranges.owners_of(want.client).is_empty() {
            return Err(FsError::with(Errno::EBADF, "what its client had locked of the file was dropped"));
        }
        if want.lock.kind == LockKind::Whole {
            self.give_up_other_mode(owner, want, save)?;
        }
        // Who asks now is not silent, however long it took.
        if let Some(waiter) = self.place(want).and_then(|at| self.waiters.get_mut(at)) {
            waiter.asked = now;
        }
        self.drop_silent(now);
        let place = self.place(want);
        if self.ranges.conflicts(owner, &want.lock).next().is_none()
            && !self.lets_others_go_first(want, place, now)
        {
            self.take(want, save)?;
            place.map(|at| self.waiters.remove(at));
            return Ok(true);
        }
        let Some(ticket) = want.ticket else {
            return Err(FsError::new(Errno::EAGAIN));
        };
        if place.is_none() {
            if self.waiters.len() >= LOCK_WAITS_PER_FILE_MAX {
                return Err(too_many("requests wait for locks of this file", LOCK_WAITS_PER_FILE_MAX));
            }
            self.waiters.push_back(Waiter { want: *want, ticket, since: now, asked: now });
        }
        Ok(false)
    }

    /// Unlocks. A close ends waits, too: one whose end its client could not tell would be granted to nobody.
    ///
    /// # Errors
    /// `ENOLCK` when that would make too many pieces; those of `save`.
    pub fn release(&mut self, want: &LockRequest, scope: UnlockScope, save: Save<'_>) -> FsResult<()> {
        let owner = want.owner();
        if scope != UnlockScope::Range {
            self.waiters.retain(|waiter| {
                let is_of_handle = scope == UnlockScope::Owner || waiter.want.lock.handle == want.lock.handle;
                waiter.want.owner() != owner || !is_of_handle
            });
        }
        let delta = self.ranges.plan_unlock(owner, &want.lock, scope == UnlockScope::Handle);
        self.change(owner, &delta, save)
    }

    /// Takes a waiting request out of the queue; says whether it was there.
    pub fn cancel(&mut self, want: &LockRequest) -> bool {
        let place = self.place(want);
        place.and_then(|at| self.waiters.remove(at)).is_some()
    }

    /// Returns true if the owner already holds all that is wanted.
    pub fn has(&self, want: &LockRequest) -> bool {
        self.ranges.covers(want.owner(), &want.lock)
    }

    /// Takes all of a client's requests out of the queue.
    pub fn cancel_all(&mut self, client: ClientId) {
        self.waiters.retain(|waiter| waiter.want.client != client);
    }

    /// Drops all locks of a client.
    ///
    /// # Errors
    /// The first of `save`. A lock whose removal cannot be saved stays: it would be there again after a restart.
    pub fn forget(&mut self, client: ClientId, save: Save<'_>) -> FsResult<()> {
        let mut outcome = Ok(());
        for owner in self.ranges.owners_of(client) {
            let delta = self.ranges.plan_removal(owner);
            outcome = outcome.and(self.change(owner, &delta, save));
        }
        outcome
    }

    /// Grants what can be granted, in the order of the queue: to be called when something was unlocked or a request
    /// has left.
    pub fn grant(&mut self, now: Instant, save: Save<'_>, granted: &mut Vec<Granted>) {
        self.drop_silent(now);
        let mut at = 0;
        while let Some(waiter) = self.waiters.get(at) {
            let (want, ticket) = (waiter.want, waiter.ticket);
            let free = self.ranges.conflicts(want.owner(), &want.lock).next().is_none();
            if !free || self.lets_others_go_first(&want, Some(at), now) {
                at += 1;
                continue;
            }
            if let Err(error) = self.take(&want, save) {
                // Its client asks again, and hears of it then.
                log::warn!(why:% = error; "a lock that is free cannot be granted");
                return;
            }
            self.waiters.remove(at);
            granted.push((want.client, want.node, ticket));
        }
    }

    /// Drops requests whose clients have not asked again for long: one that was given up while this node could not be
    /// told would be granted to nobody, as it still is if its turn comes before. Who still waits finds a new place.
    fn drop_silent(&mut self, now: Instant) {
        let silence = Duration::from_millis(LOCK_SILENCE_MS);
        self.waiters.retain(|waiter| now.saturating_duration_since(waiter.asked) < silence);
    }

    fn place(&self, want: &LockRequest) -> Option<usize> {
        let ticket = want.ticket?;
        self.waiters.iter().position(|waiter| (waiter.want.client, waiter.ticket) == (want.client, ticket))
    }

    /// Returns true if earlier conflicting requests come first. An owner that holds a lock here already does not wait
    /// for them, since they may wait for it. No request waits longer than [`LOCK_TURN_MS`] for its turn, since the
    /// earlier ones may, through other files, wait for this one: `flock` has no other remedy against such deadlocks.
    fn lets_others_go_first(&self, want: &LockRequest, place: Option<usize>, now: Instant) -> bool {
        if want.ticket.is_none() || self.ranges.holds(want.owner()) {
            return false;
        }
        let own = place.and_then(|at| self.waiters.get(at));
        let turn = Duration::from_millis(LOCK_TURN_MS);
        if own.is_some_and(|waiter| now.saturating_duration_since(waiter.since) >= turn) {
            return false;
        }
        let ahead = place.unwrap_or(self.waiters.len());
        self.waiters.iter().take(ahead).any(|waiter| waiter.want.excludes(want))
    }

    /// Gives up an `flock` of another mode before the new one is sought, as Linux does: two that both have a shared
    /// lock and want an exclusive one would otherwise wait for each other.
    fn give_up_other_mode(&mut self, owner: Owner, want: &LockRequest, save: Save<'_>) -> FsResult<()> {
        let write = want.lock.mode == LockMode::Write;
        let other = self.ranges.iter().any(|(held, _, span)| held == owner && span.write != write);
        if !other {
            return Ok(());
        }
        let delta = self.ranges.plan_removal(owner);
        self.change(owner, &delta, save)
    }

    fn take(&mut self, want: &LockRequest, save: Save<'_>) -> FsResult<()> {
        let owner = want.owner();
        let delta = self.ranges.plan_lock(owner, &want.lock, want.node);
        self.change(owner, &delta, save)?;
        assert!(self.has(want), "{owner:?} is told of a lock that it does not have: {:?}", want.lock);
        Ok(())
    }

    fn change(&mut self, owner: Owner, delta: &Delta, save: Save<'_>) -> FsResult<()> {
        if delta.is_empty() {
            return Ok(());
        }
        // What makes it fewer is never refused, or a full table could not be emptied.
        if delta.growth() > 0 && self.ranges.count() >= LOCKS_PER_FILE_MAX {
            return Err(too_many("ranges of this file are locked", LOCKS_PER_FILE_MAX));
        }
        save(owner, delta)?;
        self.ranges.apply(owner, delta);
        Ok(())
    }
}

/// Returns the error for what goes beyond a limit.
pub fn too_many(what: &str, limit: usize) -> FsError {
    FsError::with(Errno::ENOLCK, format!("{limit} {what}, which is the limit; see docs/semantics/locks.md"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_wire::LOCK_END_MAX;

    const KEPT: Save<'static> = &|_, _| Ok(());

    fn want(client: u64, mode: LockMode, ticket: u64) -> LockRequest {
        let (kind, end) = (LockKind::Range, LOCK_END_MAX);
        let lock = FileLock { kind, mode, owner: client, handle: client, pid: 1, start: 0, end };
        LockRequest { client: ClientId(client), node: None, lock, ticket: Some(ticket), holds: false }
    }

    fn whole(client: u64, mode: LockMode, ticket: Option<u64>) -> LockRequest {
        let ranged = want(client, mode, 0);
        LockRequest { lock: FileLock { kind: LockKind::Whole, ..ranged.lock }, ticket, ..ranged }
    }

    fn granted(file: &mut LockedFile, now: Instant) -> Vec<u64> {
        let mut granted = Vec::new();
        file.grant(now, KEPT, &mut granted);
        granted.into_iter().map(|(.., ticket)| ticket).collect()
    }

    fn unlock(file: &mut LockedFile, client: u64) {
        file.release(&want(client, LockMode::Unlock, 0), UnlockScope::Range, KEPT).unwrap();
    }

    /// S105.
    #[test]
    fn a_writer_is_not_overtaken_by_later_readers() {
        let (mut file, now) = (LockedFile::default(), Instant::now());
        assert_eq!(file.acquire(&want(1, LockMode::Read, 1), now, KEPT), Ok(true));
        assert_eq!(file.acquire(&want(2, LockMode::Write, 2), now, KEPT), Ok(false));
        assert_eq!(file.acquire(&want(3, LockMode::Read, 3), now, KEPT), Ok(false));
        assert_eq!(file.acquire(&want(4, LockMode::Read, 4), now, KEPT), Ok(false));
        unlock(&mut file, 1);
        assert_eq!(granted(&mut file, now), [2]);
        unlock(&mut file, 2);
        assert_eq!(granted(&mut file, now), [3, 4]);
        assert!(!file.is_idle() && file.waiters.is_empty());
    }

    /// S105.
    #[test]
    fn politeness_ends() {
        let (mut file, now) = (LockedFile::default(), Instant::now());
        file.acquire(&want(1, LockMode::Read, 1), now, KEPT).unwrap();
        file.acquire(&want(2, LockMode::Write, 2), now, KEPT).unwrap();
        let reader = want(3, LockMode::Read, 3);
        assert_eq!(file.acquire(&reader, now, KEPT), Ok(false));
        let later = now + Duration::from_millis(LOCK_TURN_MS);
        assert_eq!(file.acquire(&reader, later, KEPT), Ok(true));
    }

    /// S105.
    #[test]
    fn who_does_not_ask_again_is_granted_nothing() {
        let (mut file, now) = (LockedFile::default(), Instant::now());
        let (first, second, third) =
            (want(1, LockMode::Write, 1), want(2, LockMode::Write, 2), want(3, LockMode::Write, 3));
        let silence = Duration::from_millis(LOCK_SILENCE_MS);
        file.acquire(&first, now, KEPT).unwrap();
        file.acquire(&second, now, KEPT).unwrap();
        file.acquire(&third, now, KEPT).unwrap();
        assert_eq!(file.acquire(&third, now + silence / 2, KEPT), Ok(false), "it asks again");
        unlock(&mut file, 1);
        assert_eq!(granted(&mut file, now + silence), [3]);
        assert_eq!(file.acquire(&second, now + silence, KEPT), Ok(false), "it may come back");
        unlock(&mut file, 3);
        assert_eq!(granted(&mut file, now + silence), [2]);
    }

    /// S105.
    #[test]
    fn who_holds_a_part_is_not_held_up_by_who_waits_for_it() {
        let (mut file, now) = (LockedFile::default(), Instant::now());
        file.acquire(&want(1, LockMode::Read, 1), now, KEPT).unwrap();
        file.acquire(&want(2, LockMode::Write, 2), now, KEPT).unwrap();
        assert_eq!(file.acquire(&want(1, LockMode::Write, 3), now, KEPT), Ok(true));
    }

    /// S105.
    #[test]
    fn who_does_not_wait_does_not_queue() {
        let (mut file, now) = (LockedFile::default(), Instant::now());
        file.acquire(&want(1, LockMode::Read, 1), now, KEPT).unwrap();
        file.acquire(&want(2, LockMode::Write, 2), now, KEPT).unwrap();
        let attempt = |client, mode| LockRequest { ticket: None, ..want(client, mode, 0) };
        let refused = file.acquire(&attempt(3, LockMode::Write), now, KEPT).unwrap_err();
        assert_eq!((refused.errno(), file.waiters.len()), (Errno::EAGAIN, 1));
        assert_eq!(file.acquire(&attempt(3, LockMode::Read), now, KEPT), Ok(true));
    }

    #[test]
    fn asking_again_changes_nothing() {
        let (mut file, now) = (LockedFile::default(), Instant::now());
        let (first, second) = (want(1, LockMode::Write, 1), want(2, LockMode::Write, 2));
        for _ in 0..3 {
            assert_eq!(file.acquire(&first, now, KEPT), Ok(true));
            assert_eq!(file.acquire(&second, now, KEPT), Ok(false));
        }
        assert_eq!((file.ranges.count(), file.waiters.len()), (1, 1));
        assert!(file.has(&first) && !file.has(&second));
        assert!(file.cancel(&second) && !file.cancel(&second));
        unlock(&mut file, 1);
        assert_eq!(granted(&mut file, now), [0; 0]);
        assert!(file.is_idle());
    }

    /// S102.
    #[test]
    fn two_that_share_a_file_can_both_come_to_own_it() {
        let (mut file, now) = (LockedFile::default(), Instant::now());
        file.acquire(&whole(1, LockMode::Read, None), now, KEPT).unwrap();
        file.acquire(&whole(2, LockMode::Read, None), now, KEPT).unwrap();
        assert_eq!(file.acquire(&whole(1, LockMode::Write, Some(1)), now, KEPT), Ok(false));
        assert_eq!(file.acquire(&whole(2, LockMode::Write, Some(2)), now, KEPT), Ok(false));
        assert_eq!(granted(&mut file, now), [1]);
        file.release(&whole(1, LockMode::Unlock, None), UnlockScope::Range, KEPT).unwrap();
        assert_eq!(granted(&mut file, now), [2]);
    }

    /// S102.
    #[test]
    fn a_refused_change_of_mode_loses_the_lock() {
        let (mut file, now) = (LockedFile::default(), Instant::now());
        file.acquire(&whole(1, LockMode::Read, None), now, KEPT).unwrap();
        file.acquire(&whole(2, LockMode::Read, None), now, KEPT).unwrap();
        let refused = file.acquire(&whole(1, LockMode::Write, None), now, KEPT).unwrap_err();
        assert_eq!(refused.errno(), Errno::EAGAIN);
        assert_eq!(
            file.acquire(&whole(2, LockMode::Write, None), now, KEPT),
            Ok(true),
            "nobody else is left"
        );
    }

    #[test]
    fn a_change_that_is_not_logged_does_not_happen() {
        let (mut file, now) = (LockedFile::default(), Instant::now());
        let full: Save<'_> = &|_, _| Err(FsError::new(Errno::ENOSPC));
        assert!(file.acquire(&want(1, LockMode::Write, 1), now, full).is_err());
        assert!(file.is_idle());
        file.acquire(&want(1, LockMode::Write, 1), now, KEPT).unwrap();
        assert!(file.release(&want(1, LockMode::Unlock, 0), UnlockScope::Range, full).is_err());
        assert!(file.forget(ClientId(1), full).is_err());
        assert_eq!(file.ranges.count(), 1, "it would be there again after a restart");
        file.forget(ClientId(1), KEPT).unwrap();
        assert!(file.is_idle());
    }
}
