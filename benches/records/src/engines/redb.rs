use std::path::Path;

use redb::{Database, Durability, TableDefinition};

use super::{Engine, flat};
use crate::records::Key;

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");

/// Each commit is `Immediate`: the next lower level does not survive a kill. Its syncs cost nothing on tmpfs.
pub struct Redb(Database);

impl Redb {
    pub fn open(dir: &Path) -> Redb {
        Redb(Database::create(dir.join("redb")).unwrap())
    }
}

impl Engine for Redb {
    fn commit(&self, records: &[(Key, Vec<u8>)]) {
        let mut txn = self.0.begin_write().unwrap();
        txn.set_durability(Durability::Immediate);
        {
            let mut table = txn.open_table(TABLE).unwrap();
            for (key, value) in records {
                table.insert(flat(key).as_slice(), value.as_slice()).unwrap();
            }
        }
        txn.commit().unwrap();
    }

    fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let txn = self.0.begin_read().unwrap();
        let table = txn.open_table(TABLE).unwrap();
        table.get(flat(key).as_slice()).unwrap().map(|value| value.value().to_vec())
    }

    fn scan(&self, prefix: &Key) -> u64 {
        let (txn, prefix) = (self.0.begin_read().unwrap(), flat(prefix));
        let table = txn.open_table(TABLE).unwrap();
        let found = table.range(prefix.as_slice()..).unwrap().map(Result::unwrap);
        found.take_while(|(key, _)| key.value().starts_with(&prefix)).filter(|(_, v)| !v.value().is_empty()).count() as u64
    }
}
