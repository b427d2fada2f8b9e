use std::path::Path;

use fjall::{Config, Keyspace, PartitionCreateOptions, PartitionHandle, PersistMode};

use super::{Engine, flat};
use crate::records::Key;

/// Each batch is handed to the system (`PersistMode::Buffer`).
pub struct Fjall(Keyspace, PartitionHandle);

impl Fjall {
    pub fn open(dir: &Path) -> Fjall {
        let keyspace = Config::new(dir.join("fjall")).open().unwrap();
        let partition = keyspace.open_partition("records", PartitionCreateOptions::default()).unwrap();
        Fjall(keyspace, partition)
    }
}

impl Engine for Fjall {
    fn commit(&self, records: &[(Key, Vec<u8>)]) {
        let mut batch = self.0.batch();
        records.iter().for_each(|(key, value)| batch.insert(&self.1, flat(key), value));
        batch.commit().unwrap();
        self.0.persist(PersistMode::Buffer).unwrap();
    }

    fn get(&self, key: &Key) -> Option<Vec<u8>> {
        self.1.get(flat(key)).unwrap().map(|value| value.to_vec())
    }

    fn scan(&self, prefix: &Key) -> u64 {
        let found = self.1.prefix(flat(prefix)).map(Result::unwrap);
        found.filter(|(_, value)| !value.is_empty()).count() as u64
    }
}
