//! Which client has which inode open, of the inodes whose home is here.
//!
//! An open has a number that its client chose, so that neither a message that comes twice nor one that comes
//! late counts for more than it says. Each client's numbers rise; below its *floor* nothing is under way any more:
//! what comes with a lower number was overtaken by its own repetition, or belongs to an earlier process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bivouac_types::{ClientId, Ino, OpenId};

use crate::sessions::ReclaimedOpens;
use bivouac_ranks::{Mutex, rank};

const SHARDS: usize = 64;

/// Who has an inode open.
#[derive(Default)]
struct Holders {
    /// Sorted.
    opens: Vec<(ClientId, OpenId)>,
    /// Those who may write without telling of each write.
    quiet_writers: Vec<ClientId>,
    /// Mounts that have made the file longer since they opened it.
    growers: Vec<ClientId>,
}
type Shard = HashMap<Ino, Holders>;

/// The table of opens; in memory only: clients repeat theirs after a restart.
pub struct Opens {
    shards: Vec<Mutex<Shard>>,
    /// Number of opens.
    count: AtomicU64,
    /// Number of writers, for a look without the locks.
    writers: AtomicU64,
}

impl Opens {
    pub fn new() -> Opens {
        let shards = (0..SHARDS).map(|_| Mutex::new(rank::OPENS, Shard::new())).collect();
        Opens { shards, count: AtomicU64::new(0), writers: AtomicU64::new(0) }
    }

    /// One more open; `false` if it was overtaken, which is asked under the lock that [`Opens::replace`] takes too.
    pub fn add(&self, ino: Ino, client: ClientId, open: OpenId, is_overtaken: impl FnOnce() -> bool) -> bool {
        let mut shard = self.shard(ino).lock();
        if is_overtaken() {
            return false;
        }
        self.insert(&mut shard, ino, client, open);
        true
    }

    /// One open less. Whether the client does not have the inode open now.
    pub fn remove(&self, ino: Ino, client: ClientId, open: OpenId) -> bool {
        self.remove_unless(ino, client, open, || false)
    }

    /// As [`Opens::remove`], unless it was overtaken, which is asked under the lock that [`Opens::add`] takes too: then the
    /// open is its repetition's.
    pub fn remove_unless(
        &self,
        ino: Ino,
        client: ClientId,
        open: OpenId,
        is_overtaken: impl FnOnce() -> bool,
    ) -> bool {
        let mut shard = self.shard(ino).lock();
        if is_overtaken() {
            return false;
        }
        let Some(holders) = shard.get_mut(&ino) else { return true };
        self.retain_of(ino, holders, |holder, other| (holder, other) != (client, open));
        let free = !holds(&holders.opens, client);
        if holders.opens.is_empty() {
            shard.remove(&ino);
        }
        free
    }

    /// The client has open what it has told, and what is not below its floor.
    pub fn replace(&self, client: ClientId, told: &ReclaimedOpens, floor: OpenId) {
        let stays = |ino: Ino, open: OpenId| open >= floor || told.contains(&(ino, open));
        self.retain(|ino, holder, open| holder != client || stays(ino, open));
        for (ino, open) in told {
            self.insert(&mut self.shard(*ino).lock(), *ino, client, *open);
        }
    }

    /// The client has told of a write to the inode, and need not tell of each that follows before it closes it. Nothing if it
    /// does not have it open: then it tells of each.
    pub fn mark_writer(&self, ino: Ino, client: ClientId) {
        let mut shard = self.shard(ino).lock();
        if let Some(holders) = shard.get_mut(&ino).filter(|holders| holds(&holders.opens, client))
            && !holders.quiet_writers.contains(&client)
        {
            holders.quiet_writers.push(client);
            // Under the lock: with a count of 0 no client has been told yet that it may be quiet.
            self.writers.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether a client has the inode open that may write without telling of each write.
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.writers.load(Ordering::Acquire) > 0
            && self.shard(ino).lock().get(&ino).is_some_and(|holders| !holders.quiet_writers.is_empty())
    }

    /// A client has made a file longer. Which others have it open that have not.
    pub fn note_growth(&self, ino: Ino, by: ClientId) -> Vec<ClientId> {
        let mut shard = self.shard(ino).lock();
        let Some(holders) = shard.get_mut(&ino) else { return Vec::new() };
        if holds(&holders.opens, by) && !holders.growers.contains(&by) {
            holders.growers.push(by);
        }
        let others = holders.opens.iter().map(|(client, _)| *client);
        let mut others: Vec<ClientId> =
            others.filter(|client| *client != by && !holders.growers.contains(client)).collect();
        others.dedup();
        others
    }

    /// Forgets all of a client's opens.
    pub fn remove_client(&self, client: ClientId) {
        self.retain(|_, holder, _| holder != client);
    }

    /// Who has the inode open.
    pub fn holders(&self, ino: Ino) -> Vec<ClientId> {
        let shard = self.shard(ino).lock();
        let mut holders: Vec<ClientId> =
            shard.get(&ino).into_iter().flat_map(|holders| &holders.opens).map(|(c, _)| *c).collect();
        holders.dedup();
        holders
    }

    /// Returns who has the inode open for writing.
    pub fn writers(&self, ino: Ino) -> Vec<ClientId> {
        let shard = self.shard(ino).lock();
        let opens = shard.get(&ino).into_iter().flat_map(|holders| &holders.opens);
        opens.filter(|(_, open)| open.is_for_writing()).map(|(client, _)| *client).collect()
    }

    /// What a client has open.
    pub fn of_client(&self, client: ClientId) -> Vec<Ino> {
        let of = |shard: &Mutex<Shard>| -> Vec<Ino> {
            let shard = shard.lock();
            shard.iter().filter(|(_, holders)| holds(&holders.opens, client)).map(|(ino, _)| *ino).collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Whether a client has the inode open.
    pub fn is_held(&self, ino: Ino, client: ClientId) -> bool {
        self.shard(ino).lock().get(&ino).is_some_and(|holders| holds(&holders.opens, client))
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
                self.retain_of(*ino, holders, |holder, open| stays(*ino, holder, open));
                !holders.opens.is_empty()
            });
        }
    }

    fn retain_of(&self, ino: Ino, holders: &mut Holders, stays: impl Fn(ClientId, OpenId) -> bool) {
        let before = (holders.opens.len(), holders.quiet_writers.len());
        holders.opens.retain(|(holder, open)| stays(*holder, *open));
        let Holders { opens, quiet_writers, growers } = holders;
        quiet_writers.retain(|writer| holds(opens, *writer));
        growers.retain(|grower| holds(opens, *grower));
        assert!(
            quiet_writers.len().max(growers.len()) <= opens.len(),
            "inode {ino} has {} opens, {} quiet writers and {} growers",
            opens.len(),
            quiet_writers.len(),
            growers.len()
        );
        let (closed, quiet) = (before.0 - holders.opens.len(), before.1 - holders.quiet_writers.len());
        let opens = self.count.fetch_sub(closed as u64, Ordering::Relaxed);
        let writers = self.writers.fetch_sub(quiet as u64, Ordering::Release);
        // `has_writer` looks at no file while the count is 0.
        assert!(
            opens >= closed as u64 && writers >= quiet as u64,
            "inode {ino}: {closed} of {opens} opens end, and {quiet} of {writers} writers"
        );
    }

    fn insert(&self, shard: &mut Shard, ino: Ino, client: ClientId, open: OpenId) {
        let holders = shard.entry(ino).or_default();
        // A message that comes twice names the same open, which counts once.
        if let Err(at) = holders.opens.binary_search(&(client, open)) {
            holders.opens.insert(at, (client, open));
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

fn holds(opens: &[(ClientId, OpenId)], client: ClientId) -> bool {
    let at = opens.partition_point(|(holder, _)| *holder < client);
    opens.get(at).is_some_and(|(holder, _)| *holder == client)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const INO: Ino = Ino(9);

    impl Opens {
        fn add_any(&self, ino: Ino, client: ClientId, open: OpenId) -> bool {
            self.add(ino, client, open, || false)
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
    fn opens_for_writing_are_told_from_others() {
        let opens = Opens::new();
        for (client, open) in [(A, 2), (A, 5), (B, 4)] {
            opens.add_any(INO, client, id(open));
        }
        assert_eq!((opens.writers(INO), opens.writers(Ino(8))), (vec![A], vec![]));
        opens.remove(INO, A, id(5));
        assert!(opens.writers(INO).is_empty() && opens.is_held(INO, A));
    }

    #[test]
    fn what_is_under_way_is_not_forgotten() {
        let opens = Opens::new();
        for number in [3, 5, 7] {
            opens.add_any(Ino(number), A, id(number));
        }
        opens.add_any(Ino(3), B, id(3));
        opens.replace(A, &ReclaimedOpens::from([(Ino(3), id(3)), (Ino(4), id(4))]), id(6));
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
    fn writers_are_those_who_have_told_of_a_write_and_not_closed() {
        let opens = Opens::new();
        opens.mark_writer(INO, A);
        assert!(!opens.has_writer(INO), "who has it not open tells of each write");
        for (client, open) in [(A, 1), (A, 2), (B, 1)] {
            opens.add_any(INO, client, id(open));
        }
        assert!(!opens.has_writer(INO), "nobody has written");
        [A, A, B].iter().for_each(|client| opens.mark_writer(INO, *client));
        assert!(opens.has_writer(INO) && !opens.has_writer(Ino(8)));
        opens.remove(INO, A, id(2));
        opens.remove_client(B);
        assert!(opens.has_writer(INO), "it has another open");
        opens.replace(A, &ReclaimedOpens::from([(INO, id(1))]), id(3));
        assert!(opens.has_writer(INO), "it was reclaimed");
        opens.remove(INO, A, id(1));
        opens.add_any(INO, A, id(3));
        assert!(!opens.has_writer(INO) && opens.writers.load(Ordering::Relaxed) == 0);
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
