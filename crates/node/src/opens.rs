//! Which client has which inode open, of the inodes whose home is here: the machine is [`OpenTable`], in shards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bivouac_ranks::{Mutex, rank};
use bivouac_session::{OpenTable, OpensUnderWay, ReclaimedOpens};
use bivouac_types::{ClientId, Ino, OpenId};

const SHARDS: usize = 64;

/// The table of opens; in memory only: clients repeat theirs after a restart.
pub struct Opens {
    shards: Vec<Mutex<OpenTable>>,
    /// Number of opens.
    count: AtomicU64,
    /// Number of quiet writers, for a look without the locks.
    writers: AtomicU64,
}

impl Opens {
    pub fn new() -> Opens {
        let shards = (0..SHARDS).map(|_| Mutex::new(rank::OPENS, OpenTable::default())).collect();
        Opens { shards, count: AtomicU64::new(0), writers: AtomicU64::new(0) }
    }

    /// Adds an open. Returns false if it was overtaken, which is asked under the lock that [`Opens::replace`] takes
    /// too.
    pub fn add(&self, ino: Ino, client: ClientId, open: OpenId, is_overtaken: impl FnOnce() -> bool) -> bool {
        self.change(self.shard(ino), |table| {
            let is_overtaken = is_overtaken();
            if !is_overtaken {
                table.add(ino, client, open);
            }
            !is_overtaken
        })
    }

    /// Removes an open. Returns true if the client does not have the inode open now.
    pub fn remove(&self, ino: Ino, client: ClientId, open: OpenId) -> bool {
        self.remove_unless(ino, client, open, || false)
    }

    /// As [`Opens::remove`], unless it was overtaken, which is asked under the lock that [`Opens::add`] takes too: then
    /// the open is that of its retransmission.
    pub fn remove_unless(
        &self,
        ino: Ino,
        client: ClientId,
        open: OpenId,
        is_overtaken: impl FnOnce() -> bool,
    ) -> bool {
        self.change(self.shard(ino), |table| !is_overtaken() && table.remove(ino, client, open))
    }

    /// A client has open what it has told, and what may be under way.
    pub fn replace(&self, client: ClientId, told: &ReclaimedOpens, under_way: &OpensUnderWay) {
        // An open that is under way may be in the table, and its client could not tell of it.
        let stays = |ino: Ino, open: OpenId| under_way.may_have(open) || told.contains(&(ino, open));
        self.retain_of(client, stays);
        for (ino, open) in told {
            self.change(self.shard(*ino), |table| table.add(*ino, client, *open));
        }
    }

    /// See [`OpenTable::mark_writer`].
    pub fn mark_writer(&self, ino: Ino, client: ClientId) {
        self.change(self.shard(ino), |table| table.mark_writer(ino, client));
    }

    /// See [`OpenTable::has_writer`].
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.writers.load(Ordering::Acquire) > 0 && self.shard(ino).lock().has_writer(ino)
    }

    /// See [`OpenTable::note_growth`].
    pub fn note_growth(&self, ino: Ino, by: ClientId) -> Vec<ClientId> {
        self.shard(ino).lock().note_growth(ino, by)
    }

    /// Forgets all of a client's opens.
    pub fn remove_client(&self, client: ClientId) {
        self.retain_of(client, |_, _| false);
    }

    /// Returns who has the inode open.
    pub fn holders(&self, ino: Ino) -> Vec<ClientId> {
        self.shard(ino).lock().holders(ino)
    }

    /// Returns the clients that have the inode open for writing, one entry for each open.
    pub fn writers(&self, ino: Ino) -> Vec<ClientId> {
        self.shard(ino).lock().writers(ino)
    }

    /// Returns the inodes that a client has open.
    pub fn of_client(&self, client: ClientId) -> Vec<Ino> {
        self.shards.iter().flat_map(|shard| shard.lock().of_client(client).collect::<Vec<_>>()).collect()
    }

    /// Returns true if a client has the inode open.
    pub fn is_held(&self, ino: Ino, client: ClientId) -> bool {
        self.shard(ino).lock().is_held(ino, client)
    }

    /// Returns true if anybody has the inode open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.shard(ino).lock().is_open(ino)
    }

    /// Returns the number of opens.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns true if each of its locks can be taken within `patience`; for detecting a standstill.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.shards.iter().all(|shard| shard.try_lock_for(patience).is_some())
    }

    fn retain_of(&self, client: ClientId, stays: impl Fn(Ino, OpenId) -> bool) {
        self.shards.iter().for_each(|shard| self.change(shard, |table| table.retain_of(client, &stays)));
    }

    /// Changes a shard, and with it the numbers that are looked at without its lock.
    fn change<R>(&self, shard: &Mutex<OpenTable>, act: impl FnOnce(&mut OpenTable) -> R) -> R {
        let mut table = shard.lock();
        let before = (table.opens() as u64, table.quiet_writers() as u64);
        let outcome = act(&mut table);
        // Differences of unsigned numbers that wrap around add up to the right sums. Under the lock: with a number of 0
        // no client has been told yet that it may be quiet.
        self.count.fetch_add((table.opens() as u64).wrapping_sub(before.0), Ordering::Relaxed);
        self.writers.fetch_add((table.quiet_writers() as u64).wrapping_sub(before.1), Ordering::Release);
        outcome
    }

    fn shard(&self, ino: Ino) -> &Mutex<OpenTable> {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    impl Opens {
        fn add_any(&self, ino: Ino, client: ClientId, open: OpenId) -> bool {
            self.add(ino, client, open, || false)
        }
    }

    fn id(number: u64) -> OpenId {
        OpenId(number)
    }

    #[test]
    fn what_is_under_way_is_not_forgotten() {
        let opens = Opens::new();
        for number in [3, 5, 7] {
            opens.add_any(Ino(number), A, id(number));
        }
        opens.add_any(Ino(3), B, id(3));
        opens.replace(
            A,
            &ReclaimedOpens::from([(Ino(3), id(3)), (Ino(4), id(4))]),
            &OpensUnderWay::above(id(6)),
        );
        let held = |ino| opens.is_held(Ino(ino), A);
        assert_eq!([3, 4, 5, 7].map(held), [true, true, false, true]);
        assert!(opens.is_held(Ino(3), B));
        assert!(!opens.add(Ino(8), A, id(6), || true), "it was overtaken");
        assert!(opens.add(Ino(8), A, id(6), || false));
        assert!(!opens.remove_unless(Ino(8), A, id(6), || true) && opens.is_held(Ino(8), A));
        assert!(opens.remove_unless(Ino(8), A, id(6), || false) && !opens.is_held(Ino(8), A));
        assert!(opens.add(Ino(8), A, id(6), || false));
    }

    #[test]
    fn a_client_leaves_with_all_its_opens() {
        let opens = Opens::new();
        opens.add_any(Ino(1), A, id(1));
        opens.add_any(Ino(2), A, id(2));
        opens.add_any(Ino(2), B, id(1));
        [A, B].iter().for_each(|client| opens.mark_writer(Ino(2), *client));
        opens.remove_client(A);
        assert_eq!((opens.count(), opens.is_open(Ino(1)), opens.is_open(Ino(2))), (1, false, true));
        assert!(opens.has_writer(Ino(2)) && opens.writers.load(Ordering::Relaxed) == 1);
    }
}
