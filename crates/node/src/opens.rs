//! Which client has which inode open, of the inodes whose home is here.

use std::collections::HashMap;

use bivouac_types::{ClientId, Ino};
use parking_lot::Mutex;

const SHARDS: usize = 64;

type Shard = HashMap<Ino, Vec<(ClientId, u32)>>;

/// The table of opens; in memory only: clients repeat theirs after a restart.
pub struct Opens {
    shards: Vec<Mutex<Shard>>,
}

impl Opens {
    pub fn new() -> Opens {
        Opens { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// One more open.
    pub fn add(&self, ino: Ino, client: ClientId, count: u32) {
        let mut shard = self.shard(ino).lock();
        let holders = shard.entry(ino).or_default();
        match holders.iter_mut().find(|(holder, _)| *holder == client) {
            Some((_, held)) => *held = held.saturating_add(count),
            None => holders.push((client, count)),
        }
    }

    /// `count` opens less. Whether nobody has the inode open now.
    pub fn remove(&self, ino: Ino, client: ClientId, count: u32) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(holders) = shard.get_mut(&ino) else { return true };
        if let Some((_, held)) = holders.iter_mut().find(|(holder, _)| *holder == client) {
            *held = held.saturating_sub(count);
        }
        holders.retain(|(_, held)| *held > 0);
        let free = holders.is_empty();
        if free {
            shard.remove(&ino);
        }
        free
    }

    /// Forgets all of a client's opens; the inodes that nobody has open now.
    pub fn remove_client(&self, client: ClientId) -> Vec<Ino> {
        let mut freed = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|ino, holders| {
                holders.retain(|(holder, _)| *holder != client);
                if holders.is_empty() {
                    freed.push(*ino);
                }
                !holders.is_empty()
            });
        }
        freed
    }

    /// Who has the inode open.
    pub fn holders(&self, ino: Ino) -> Vec<ClientId> {
        let shard = self.shard(ino).lock();
        shard.get(&ino).into_iter().flatten().map(|(client, _)| *client).collect()
    }

    /// A client has the inode open so often, whatever was known before.
    pub fn set(&self, ino: Ino, client: ClientId, count: u32) {
        self.remove(ino, client, u32::MAX);
        if count > 0 {
            self.add(ino, client, count);
        }
    }

    /// What a client has open.
    pub fn of_client(&self, client: ClientId) -> Vec<Ino> {
        let held = |holders: &Vec<(ClientId, u32)>| holders.iter().any(|(holder, _)| *holder == client);
        let of = |shard: &Mutex<Shard>| -> Vec<Ino> {
            let shard = shard.lock();
            shard.iter().filter(|(_, holders)| held(holders)).map(|(ino, _)| *ino).collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Whether anybody has the inode open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Number of opens.
    pub fn count(&self) -> u64 {
        let of = |shard: &Mutex<Shard>| -> u64 {
            shard.lock().values().flatten().map(|(_, count)| u64::from(*count)).sum()
        };
        self.shards.iter().map(of).sum()
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_are_counted_per_client() {
        let (opens, a, b) = (Opens::new(), ClientId(1), ClientId(2));
        opens.add(Ino(9), a, 2);
        opens.add(Ino(9), b, 1);
        assert!(!opens.remove(Ino(9), a, 2));
        assert!(opens.is_open(Ino(9)));
        assert!(opens.remove(Ino(9), b, 1));
        assert!(!opens.is_open(Ino(9)));
        assert!(opens.remove(Ino(9), b, 1), "one close too many does no harm");
    }

    #[test]
    fn a_client_leaves_with_all_its_opens() {
        let (opens, a, b) = (Opens::new(), ClientId(1), ClientId(2));
        opens.add(Ino(1), a, 1);
        opens.add(Ino(2), a, 1);
        opens.add(Ino(2), b, 1);
        assert_eq!(opens.count(), 3);
        assert_eq!(opens.remove_client(a), [Ino(1)]);
        assert_eq!(opens.count(), 1);
    }
}
