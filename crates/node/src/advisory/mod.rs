//! The locks that programs take, of the files whose home is here: `flock`, and the byte ranges of `fcntl`.
//!
//! A lock is logged before it is granted, and its end before it is acknowledged, so a restarted daemon has all of
//! them at once. Who waits is in memory only: clients ask again. A request that has to wait is answered so, at
//! once; when its turn comes the lock is taken for it, and its client is told by way of the node that serves it
//! (`hints.rs`). A hint may be lost, since its client asks again every second.

mod file;
mod hints;
mod ranges;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, rank};
use bivouac_store::Records;
use bivouac_types::limits::{LOCKS_PER_CLIENT_MAX, LOCKS_PER_MESSAGE_MAX};
use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino, NodeId, Slot};
use bivouac_wire::{Decode, Encode, FileLock, LOCK_END_MAX, LockKind, LockMode, LockOf, UnlockScope};

use crate::peers::Peers;
use crate::record::{lock_key, lock_of_key, table};
use crate::served::ServedClients;
use file::{Granted, LockedFile, too_many};
use hints::Hints;
use ranges::{Delta, Owner, Span};

pub use file::LockRequest;

const SHARDS: usize = 64;

/// A lock in the log: its file, owner and first byte, and the rest.
type FoundLock = ((Ino, (LockKind, ClientId, u64), u64), Span);

/// The locks of a node.
pub struct Advisory {
    id: NodeId,
    shards: Vec<Mutex<HashMap<Ino, LockedFile>>>,
    /// Locked ranges of each client.
    counts: Mutex<HashMap<ClientId, usize>>,
    served: Arc<ServedClients>,
    hints: Arc<Hints>,
}

impl Advisory {
    /// Creates the table from the locks that an earlier daemon logged in these slots.
    pub fn open(
        records: &Records,
        id: NodeId,
        slots: impl Iterator<Item = Slot>,
        peers: Arc<dyn Peers>,
        served: Arc<ServedClients>,
    ) -> Advisory {
        let advisory = Advisory {
            id,
            shards: (0..SHARDS).map(|_| Mutex::new(rank::ADVISORY, HashMap::new())).collect(),
            counts: Mutex::default(),
            served,
            hints: Arc::new(Hints::new(id, peers)),
        };
        let mut found = Vec::<FoundLock>::new();
        for slot in slots {
            records.scan(slot, &table(b'F'), &table(b'F'), |key, value| {
                let Some((ino, owner, start)) = lock_of_key(key) else { return ControlFlow::Continue(()) };
                // In the order of their keys: a range that was not readable ends before its owner's next one.
                if let Some(((last_ino, last_owner, _), last)) = found.last_mut()
                    && (*last_ino, *last_owner) == (ino, owner)
                {
                    last.end = last.end.min(start.saturating_sub(1));
                }
                found.push(((ino, owner, start), Span::from_bytes(value).unwrap_or_else(|error| {
                    log::error!(why:% = error; "a lock of inode {ino} is damaged, and excludes all others");
                    Span { end: LOCK_END_MAX, write: true, handle: 0, pid: 0, node: None }
                })));
                ControlFlow::Continue(())
            });
        }
        found.into_iter().for_each(|((ino, owner, start), span)| advisory.adopt(ino, owner, start, span));
        advisory
    }

    fn adopt(&self, ino: Ino, (kind, client, id): (LockKind, ClientId, u64), start: u64, span: Span) {
        let delta = Delta { removed: Vec::new(), added: vec![(start, span)] };
        let mut shard = self.shard(ino).lock();
        shard.entry(ino).or_default().ranges.apply(Owner { kind, client, id }, &delta);
        // Without a look at the limit: what was granted is held, whatever the limit is by now.
        *self.counts.lock().entry(client).or_default() += 1;
    }

    /// Locks, or makes the request wait; returns true if it is locked.
    ///
    /// # Errors
    /// `EAGAIN` for a request that may not wait; `ENOLCK`; that of the log; that of `check`.
    pub fn acquire(
        &self,
        records: &Records,
        ino: Ino,
        want: &LockRequest,
        check: impl FnOnce() -> FsResult<()>,
    ) -> FsResult<bool> {
        self.with(records, ino, |file, save, granted| {
            check()?;
            let now = Instant::now();
            let outcome = file.acquire(want, now, save);
            // Less than before may let others in.
            if want.lock.mode == LockMode::Read || want.lock.kind == LockKind::Whole {
                file.grant(now, save, granted);
            }
            outcome
        })
    }

    /// Unlocks.
    ///
    /// # Errors
    /// As [`Advisory::acquire`].
    pub fn release(
        &self,
        records: &Records,
        ino: Ino,
        want: &LockRequest,
        scope: UnlockScope,
        check: impl FnOnce() -> FsResult<()>,
    ) -> FsResult<()> {
        self.with(records, ino, |file, save, granted| {
            check()?;
            file.release(want, scope, save)?;
            file.grant(Instant::now(), save, granted);
            Ok(())
        })
    }

    /// Takes a waiting request back. Whether it has its lock already.
    pub fn cancel(&self, records: &Records, ino: Ino, want: &LockRequest) -> bool {
        self.with(records, ino, |file, save, granted| {
            let waited = file.cancel(want);
            file.grant(Instant::now(), save, granted);
            !waited && file.has(want)
        })
    }

    /// Drops a client's waiting requests, and its locks too if asked.
    ///
    /// # Errors
    /// That of the log. A lock whose end is not logged stays: a restarted daemon would have it again.
    pub fn forget(&self, records: &Records, client: ClientId, locks_too: bool) -> FsResult<()> {
        let mut outcome = Ok(());
        for ino in self.files() {
            let forgotten = self.with(records, ino, |file, save, granted| {
                file.cancel_all(client);
                let forgotten = if locks_too { file.forget(client, save) } else { Ok(()) };
                file.grant(Instant::now(), save, granted);
                forgotten
            });
            // The others are released all the same: who waits for them must not wait for a full log.
            outcome = outcome.and(forgotten);
        }
        outcome
    }

    /// Returns the locks that are in the way.
    pub fn holders(&self, ino: Ino, client: ClientId, lock: &FileLock) -> Vec<LockOf> {
        let shard = self.shard(ino).lock();
        let Some(file) = shard.get(&ino) else { return Vec::new() };
        let conflicts = file.ranges.conflicts(Owner::of(client, lock), lock);
        conflicts
            .map(|(owner, start, span)| lock_of(ino, owner, start, span))
            .take(LOCKS_PER_MESSAGE_MAX)
            .collect()
    }

    /// Returns a client's locks behind the given one, by files, kinds, owners and first bytes; and whether those were
    /// the last. What is there all the time is told, whatever is locked and unlocked between two of such questions.
    pub fn list(&self, client: ClientId, after: Option<&LockOf>) -> (Vec<LockOf>, bool) {
        let place = |of: &LockOf| (of.ino, of.lock.kind, of.lock.owner, of.lock.start);
        let after = after.map(place);
        let mut files = self.files();
        files.retain(|ino| after.is_none_or(|(first, ..)| *ino >= first));
        files.sort_unstable();
        let of_file = |ino: Ino| -> Vec<LockOf> {
            let shard = self.shard(ino).lock();
            let all = shard.get(&ino).into_iter().flat_map(|file| file.ranges.iter());
            let own = all.filter(|(owner, ..)| owner.client == client);
            let own = own.map(|(owner, start, span)| lock_of(ino, owner, start, span));
            own.filter(|of| after.is_none_or(|after| place(of) > after)).collect()
        };
        let mut locks: Vec<LockOf> =
            files.into_iter().flat_map(of_file).take(LOCKS_PER_MESSAGE_MAX + 1).collect();
        let end = locks.len() <= LOCKS_PER_MESSAGE_MAX;
        locks.truncate(LOCKS_PER_MESSAGE_MAX);
        (locks, end)
    }

    /// Returns the node through which a client has locked something.
    pub fn node_of(&self, client: ClientId) -> Option<NodeId> {
        let held = |ino: Ino| {
            let shard = self.shard(ino).lock();
            let mut all = shard.get(&ino).into_iter().flat_map(|file| file.ranges.iter());
            all.find_map(|(owner, _, span)| span.node.filter(|_| owner.client == client))
        };
        // Most clients have no locks, and files of others need not be gone through.
        let any = self.counts.lock().contains_key(&client);
        if any { self.files().into_iter().find_map(held) } else { None }
    }

    /// Does something to a file's locks, and then tells those who came to have theirs.
    fn with<T>(
        &self,
        records: &Records,
        ino: Ino,
        act: impl FnOnce(&mut LockedFile, file::Save<'_>, &mut Vec<Granted>) -> T,
    ) -> T {
        let mut granted = Vec::new();
        let outcome = {
            let mut shard = self.shard(ino).lock();
            let file = shard.entry(ino).or_default();
            let save = |owner: Owner, delta: &Delta| self.save(records, ino, owner, delta);
            let outcome = act(file, &save, &mut granted);
            if file.is_idle() {
                // A file that was only asked about must not stay in the table.
                shard.remove(&ino);
            }
            outcome
        };
        // Without the lock: a client of this process may unlock the file at once, on this thread.
        granted.into_iter().for_each(|granted| self.tell(granted));
        outcome
    }

    fn tell(&self, (client, node, ticket): Granted) {
        match self.served.get(client).locks {
            Some(served) => served.granted(&[ticket]),
            None => {
                node.filter(|node| *node != self.id).map_or((), |node| self.hints.send(node, client, ticket))
            }
        }
    }

    fn save(&self, records: &Records, ino: Ino, owner: Owner, delta: &Delta) -> FsResult<()> {
        let growth = delta.growth();
        // What it grows by is counted before it is logged, what it shrinks by after that: never too little.
        self.count(owner.client, growth.max(0))?;
        let logged = Advisory::log(records, ino, owner, delta);
        let rest = if logged.is_ok() { growth.min(0) } else { -growth.max(0) };
        self.count(owner.client, rest)?;
        logged
    }

    /// Counts so many of a client's locks more, or less.
    fn count(&self, client: ClientId, growth: isize) -> FsResult<()> {
        if growth == 0 {
            return Ok(());
        }
        let mut counts = self.counts.lock();
        let count = counts.get(&client).copied().unwrap_or(0);
        assert!(
            growth > 0 || growth.unsigned_abs() <= count,
            "client {} has {count} ranges locked, and unlocks {}",
            client.0,
            growth.unsigned_abs()
        );
        let grown = count.saturating_add_signed(growth);
        if growth > 0 && grown > LOCKS_PER_CLIENT_MAX {
            return Err(too_many("ranges are locked by this client", LOCKS_PER_CLIENT_MAX));
        }
        match grown {
            0 => drop(counts.remove(&client)),
            _ => drop(counts.insert(client, grown)),
        }
        Ok(())
    }

    fn log(records: &Records, ino: Ino, owner: Owner, delta: &Delta) -> FsResult<()> {
        let slot = ino.slot();
        let mut txn = records.txn(&[slot]);
        for start in &delta.removed {
            txn.delete(slot, &lock_key(ino, (owner.kind, owner.client, owner.id), *start));
        }
        for (start, span) in &delta.added {
            txn.put(slot, &lock_key(ino, (owner.kind, owner.client, owner.id), *start), &span.to_bytes());
        }
        Ok(txn.commit()?)
    }

    /// Returns true if each of its locks can be taken within `patience`; for detecting a standstill.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.shards.iter().all(|shard| shard.try_lock_for(patience).is_some())
    }

    fn files(&self) -> Vec<Ino> {
        self.shards.iter().flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>()).collect()
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, LockedFile>> {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

fn lock_of(ino: Ino, owner: Owner, start: u64, span: Span) -> LockOf {
    let mode = if span.write { LockMode::Write } else { LockMode::Read };
    let Span { end, handle, pid, node, .. } = span;
    let lock = FileLock { kind: owner.kind, mode, owner: owner.id, handle, pid, start, end };
    LockOf { client: owner.client, node, ino, lock }
}

/// Refuses ranges that no file can have.
///
/// # Errors
/// `EINVAL`.
pub fn check(lock: &FileLock) -> FsResult<()> {
    match lock.is_sound() {
        true => Ok(()),
        false => {
            Err(FsError::with(Errno::EINVAL, "the range of the lock ends before it begins, or behind 2^63"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;

    /// A lock whose record could not be read was granted to the next that asked.
    #[test]
    fn what_a_damaged_lock_covers_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let (ino, client) = (Ino::ROOT, ClientId(5));
        let lock = |owner: u64, start: u64, end: u64| FileLock {
            kind: LockKind::Range,
            mode: LockMode::Read,
            owner,
            handle: 1,
            pid: 1,
            start,
            end,
        };
        let want = |client: ClientId, lock: FileLock| LockRequest {
            client,
            node: None,
            lock,
            ticket: None,
            holds: false,
        };
        let node = alone(dir.path());
        for lock in [lock(7, 10, 19), lock(7, 30, 39)] {
            assert!(node.advisory.acquire(&node.records, ino, &want(client, lock), || Ok(())).unwrap());
        }
        let mut txn = node.records.txn(&[ino.slot()]);
        txn.put(ino.slot(), &lock_key(ino, (LockKind::Range, client, 7), 10), b"no record");
        txn.commit().unwrap();
        drop(node);
        let node = alone(dir.path());
        let is_free = |start: u64| {
            let asked =
                node.advisory
                    .acquire(&node.records, ino, &want(ClientId(6), lock(8, start, start)), || Ok(()));
            asked.map_err(|error| error.errno()) == Ok(true)
        };
        assert_eq!([9, 10, 29, 30, 40].map(is_free), [true, false, false, true, true]);
    }
}
