//! Which client has which inode open, of the inodes whose home is here.
//!
//! An open has a number that its client chose, so that neither a message that comes twice nor one that comes
//! late counts for more than it says. Each client's numbers rise; below its *floor* nothing is under way any more:
//! what comes with a lower number was overtaken by its own repetition, or belongs to an earlier process.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_types::limits::CLIENTS_MAX;
use bivouac_types::{ClientId, Ino, OpenId};
use parking_lot::Mutex;

const SHARDS: usize = 64;

/// Sorted.
type Holders = Vec<(ClientId, OpenId)>;
type Shard = HashMap<Ino, Holders>;

/// What a client says that it has open.
pub type Told = HashSet<(Ino, OpenId)>;

/// How a floor fits with the one that was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It was said before the one that was known.
    Late,
    /// It was said after that, or says the same.
    InOrder,
    /// A later process of the client says it: what the earlier ones had open has ended.
    OfAnotherProcess,
}

/// The table of opens; in memory only: clients repeat theirs after a restart.
pub struct Opens {
    shards: Vec<Mutex<Shard>>,
    /// Taken inside of a shard's lock or alone.
    floors: Mutex<HashMap<ClientId, OpenId>>,
    /// Number of opens.
    count: AtomicU64,
}

impl Opens {
    pub fn new() -> Opens {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Opens { shards, floors: Mutex::default(), count: AtomicU64::new(0) }
    }

    /// One more open; `false` if it was overtaken.
    pub fn add(&self, ino: Ino, client: ClientId, open: OpenId) -> bool {
        let mut shard = self.shard(ino).lock();
        if self.floors.lock().get(&client).is_some_and(|floor| open < *floor) {
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

    /// No open of the client below `floor` is under way. How this fits with what was known.
    pub fn raise_floor(&self, client: ClientId, floor: OpenId) -> News {
        let mut floors = self.floors.lock();
        if !floors.contains_key(&client) && floors.len() >= CLIENTS_MAX {
            // Those of clients without opens; without a floor, what comes late is not told any more.
            floors.clear();
        }
        let known = floors.entry(client).or_insert(floor);
        let before = std::mem::replace(known, floor.max(*known));
        match (before, floor) {
            _ if before > floor => News::Late,
            _ if before.first_of_process() < floor.first_of_process() => News::OfAnotherProcess,
            _ => News::InOrder,
        }
    }

    /// The client has open what it has told, and what is not below its floor.
    pub fn replace(&self, client: ClientId, told: &Told) {
        let floor = self.floors.lock().get(&client).copied().unwrap_or(OpenId(0));
        let stays = |ino: Ino, open: OpenId| open >= floor || told.contains(&(ino, open));
        self.retain(|ino, holder, open| holder != client || stays(ino, open));
        for (ino, open) in told {
            self.insert(&mut self.shard(*ino).lock(), *ino, client, *open);
        }
    }

    /// Forgets all of a client's opens.
    pub fn remove_client(&self, client: ClientId) {
        self.retain(|_, holder, _| holder != client);
        self.floors.lock().remove(&client);
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

    fn id(number: u64) -> OpenId {
        OpenId(number)
    }

    #[test]
    fn opens_end_one_by_one() {
        let opens = Opens::new();
        assert!(opens.add(INO, A, id(1)) && opens.add(INO, A, id(2)) && opens.add(INO, B, id(1)));
        assert!(opens.add(INO, A, id(2)), "the same one again");
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
            opens.add(Ino(number), A, id(number));
        }
        opens.add(Ino(3), B, id(3));
        opens.raise_floor(A, id(6));
        opens.replace(A, &Told::from([(Ino(3), id(3)), (Ino(4), id(4))]));
        let held = |ino| opens.is_held(Ino(ino), A);
        assert_eq!([3, 4, 5, 7].map(held), [true, true, false, true]);
        assert!(opens.is_held(Ino(3), B));
        assert!(!opens.add(Ino(8), A, id(5)), "it was overtaken");
        assert!(opens.add(Ino(8), A, id(6)) && opens.add(Ino(8), B, id(5)));
    }

    #[test]
    fn a_floor_never_sinks_and_tells_a_new_process() {
        let opens = Opens::new();
        assert_eq!(opens.raise_floor(A, id(9)), News::InOrder);
        assert_eq!(opens.raise_floor(A, id(9)), News::InOrder);
        assert_eq!(opens.raise_floor(A, id(4)), News::Late);
        assert!(!opens.add(INO, A, id(8)));
        assert_eq!(opens.raise_floor(A, OpenId::first(1)), News::OfAnotherProcess);
        assert_eq!(opens.raise_floor(A, id(9)), News::Late, "of the earlier process");
        assert!(!opens.add(INO, A, id(10)) && opens.add(INO, A, OpenId::first(1)));
    }

    #[test]
    fn a_client_leaves_with_all_its_opens() {
        let opens = Opens::new();
        opens.add(Ino(1), A, id(1));
        opens.add(Ino(2), A, id(2));
        opens.add(Ino(2), B, id(1));
        opens.remove_client(A);
        assert_eq!((opens.count(), opens.is_open(Ino(1)), opens.is_open(Ino(2))), (1, false, true));
    }
}
