#![allow(unsafe_code, reason = "the file is mapped into memory")]

use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

use super::{Engine, flat};
use crate::records::Key;

/// Room for the file; only what is used is allocated.
const MAP_BYTES: usize = 8 << 30;

/// `NO_SYNC`: a commit is written to the file, not synced.
pub struct Lmdb(Env, Database<Bytes, Bytes>);

impl Lmdb {
    pub fn open(dir: &Path) -> Lmdb {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        // SAFETY: this process alone has the file, and nothing else changes it while it is mapped.
        let env = unsafe { options.flags(EnvFlags::NO_SYNC).open(dir) }.unwrap();
        let mut txn = env.write_txn().unwrap();
        let database = env.create_database(&mut txn, None).unwrap();
        txn.commit().unwrap();
        Lmdb(env, database)
    }
}

impl Engine for Lmdb {
    fn commit(&self, records: &[(Key, Vec<u8>)]) {
        let mut txn = self.0.write_txn().unwrap();
        records.iter().for_each(|(key, value)| self.1.put(&mut txn, &flat(key), value).unwrap());
        txn.commit().unwrap();
    }

    fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let txn = self.0.read_txn().unwrap();
        self.1.get(&txn, &flat(key)).unwrap().map(<[u8]>::to_vec)
    }

    fn scan(&self, prefix: &Key) -> u64 {
        let txn = self.0.read_txn().unwrap();
        let found = self.1.prefix_iter(&txn, &flat(prefix)).unwrap().map(Result::unwrap);
        found.filter(|(_, value)| !value.is_empty()).count() as u64
    }
}
