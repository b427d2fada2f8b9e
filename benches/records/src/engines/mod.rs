//! What is compared. A commit has survived a kill of the process when it returns.

mod fjall;
mod lmdb;
mod ours;
mod redb;

use std::path::Path;

use crate::records::Key;

/// Ordered records, changed by whole batches.
pub trait Engine {
    /// Writes some records, all or none.
    fn commit(&self, records: &[(Key, Vec<u8>)]);
    /// A record's value.
    fn get(&self, key: &Key) -> Option<Vec<u8>>;
    /// How many records have keys that begin so; each is looked at, in order.
    fn scan(&self, prefix: &Key) -> u64;
}

/// Opens an engine by its name.
pub fn open(name: &str, dir: &Path) -> Box<dyn Engine> {
    match name {
        "bivouac" => Box::new(ours::Ours::open(dir)),
        "redb" => Box::new(redb::Redb::open(dir)),
        "fjall" => Box::new(fjall::Fjall::open(dir)),
        "lmdb" => Box::new(lmdb::Lmdb::open(dir)),
        _ => panic!("{name} is no engine"),
    }
}

/// Slot and key as one key, for engines without slots.
pub fn flat(key: &Key) -> Vec<u8> {
    [&key.0.to_be_bytes()[..], &key.1].concat()
}
