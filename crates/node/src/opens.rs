//! Which client has which inode open, of the inodes whose home is here.
//!
//! An open has a number that its client chose, so that neither a message that comes twice nor one that comes
//! late counts for more than it says. Each client's numbers rise; below its *floor* nothing is under way any more:
//! what comes with a lower number was overtaken by its own repetition, or belongs to an earlier process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bivouac_types::{ClientId, Ino, OpenId};

use crate::sessions::Told;
use bivouac_ranks::{Mutex, rank};

const SHARDS: usize = 64;

/// Sorted.
type Holders = Vec<(ClientId, OpenId)>;
type Shard = HashMap<Ino, Holders>;

/// The table of opens; in memory only: clients repeat theirs after a restart.
pub struct Opens {
    shards: Vec<Mutex<Shard>>,
    /// Number of opens.
    count: AtomicU64,
}

impl Opens {
    pub fn new() -> Opens {
        let shards = (0..SHARDS).map(|_| Mutex::new(rank::OPENS, Shard::new())).collect();
        Opens { shards, count: AtomicU64::new(0) }
    }

    /// One more open; `false` if it was overtaken: `floor` is asked under the lock that [`Opens::replace`] takes too.
    pub fn add(&self, ino: Ino, client: ClientId, open: OpenId, floor: impl FnOnce() -> OpenId) -> bool {
        let mut shard = self.shard(ino).lock();
        if open < floor() {
            return false;
        }
        self.insert(&mut shard, ino, client, open);
        true
    }

    /// One open less. Whether the client does not have the inode open now.
    pub fn remove(&self, ino: Ino, client: ClientId, open: OpenId) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(holders) = shard.get_mut(&ino) else { return true };
        if let Ok(at) = holders.binary_search(&(client, open)) {
            holders.remove(at);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        let free = !holds(holders, client);
        if holders.is_empty() {
            shard.remove(&ino);
        }
        free
    }

    /// The client has open what it has told, and what is not below its floor.
    pub fn replace(&self, client: ClientId, told: &Told, floor: OpenId) {
        let stays = |ino: Ino, open: OpenId| open >= floor || told.contains(&(ino, open));
        self.retain(|ino, holder, open| holder != client || stays(ino, open));
        for (ino, open) in told {
            self.insert(&mut self.shard(*ino).lock(), *ino, client, *open);
        }
    }

    /// Forgets all of a client's opens.
    pub fn remove_client(&self, client: ClientId) {
        self.retain(|_, holder, _| holder != client);
    }

    /// Who has the inode open.
    pub fn holders(&self, ino: Ino) -> Vec<ClientId> {
        let shard = self.shard(ino).lock();
        let mut holders: Vec<ClientId> = shard.get(&ino).into_iter().flatten().map(|(c, _)| *c).collect();
        holders.dedup();
        holders
    }

    /// What a client has open.
    pub fn of_client(&self, client: ClientId) -> Vec<Ino> {
        let of = |shard: &Mutex<Shard>| -> Vec<Ino> {
            let shard = shard.lock();
            shard.iter().filter(|(_, holders)| holds(holders, client)).map(|(ino, _)| *ino).collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Whether a client has the inode open.
    pub fn is_held(&self, ino: Ino, client: ClientId) -> bool {
        self.shard(ino).lock().get(&ino).is_some_and(|holders| holds(holders, client))
    }

    /// Whether anybody has the inode open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Number of opens.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether all its locks can be had within a time each.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.shards.iter().all(|shard| shard.try_lock_for(patience).is_some())
    }

    fn retain(&self, stays: impl Fn(Ino, ClientId, OpenId) -> bool) {
        for shard in &self.shards {
            shard.lock().retain(|ino, holders| {
                let before = holders.len();
                holders.retain(|(holder, open)| stays(*ino, *holder, *open));
                self.count.fetch_sub((before - holders.len()) as u64, Ordering::Relaxed);
                !holders.is_empty()
            });
        }
    }

    fn insert(&self, shard: &mut Shard, ino: Ino, client: ClientId, open: OpenId) {
        let holders = shard.entry(ino).or_default();
        if let Err(at) = holders.binary_search(&(client, open)) {
            holders.insert(at, (client, open));
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

fn holds(holders: &Holders, client: ClientId) -> bool {
    let at = holders.partition_point(|(holder, _)| *holder < client);
    holders.get(at).is_some_and(|(holder, _)| *holder == client)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const INO: Ino = Ino(9);

    impl Opens {
        fn add_any(&self, ino: Ino, client: ClientId, open: OpenId) -> bool {
            self.add(ino, client, open, || OpenId(0))
        }
    }

    fn id(number: u64) -> OpenId {
        OpenId(number)
    }

    #[test]
    fn opens_end_one_by_one() {
        let opens = Opens::new();
        assert!(opens.add_any(INO, A, id(1)) && opens.add_any(INO, A, id(2)) && opens.add_any(INO, B, id(1)));
        assert!(opens.add_any(INO, A, id(2)), "the same one again");
        assert_eq!((opens.count(), opens.holders(INO)), (3, vec![A, B]));
        assert!(!opens.remove(INO, A, id(2)));
        assert!(!opens.remove(INO, A, id(2)), "a close that comes twice takes nothing away");
        assert!(opens.is_held(INO, A));
        assert!(opens.remove(INO, A, id(1)) && opens.is_open(INO));
        assert!(opens.remove(INO, B, id(1)) && !opens.is_open(INO));
    }

    #[test]
    fn what_is_under_way_is_not_forgotten() {
        let opens = Opens::new();
        for number in [3, 5, 7] {
            opens.add_any(Ino(number), A, id(number));
        }
        opens.add_any(Ino(3), B, id(3));
        opens.replace(A, &Told::from([(Ino(3), id(3)), (Ino(4), id(4))]), id(6));
        let held = |ino| opens.is_held(Ino(ino), A);
        assert_eq!([3, 4, 5, 7].map(held), [true, true, false, true]);
        assert!(opens.is_held(Ino(3), B));
        assert!(!opens.add(Ino(8), A, id(5), || id(6)), "it was overtaken");
        assert!(opens.add(Ino(8), A, id(6), || id(6)));
    }

    #[test]
    fn a_client_leaves_with_all_its_opens() {
        let opens = Opens::new();
        opens.add_any(Ino(1), A, id(1));
        opens.add_any(Ino(2), A, id(2));
        opens.add_any(Ino(2), B, id(1));
        opens.remove_client(A);
        assert_eq!((opens.count(), opens.is_open(Ino(1)), opens.is_open(Ino(2))), (1, false, true));
    }
}
