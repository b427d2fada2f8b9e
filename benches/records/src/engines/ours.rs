use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use bivouac_store::{DirVolume, Records, RecordsOptions, VolumeIdentity};
use bivouac_types::{FormationId, NodeId, Slot};

use super::Engine;
use crate::records::{Key, SLOTS};

pub struct Ours(Records);

impl Ours {
    pub fn open(dir: &Path) -> Ours {
        let (formation, node) = (FormationId([7; 16]), NodeId(0));
        let volume = DirVolume::open(dir, VolumeIdentity { formation, node, index: 0 }, true).unwrap();
        let options = RecordsOptions { slots: SLOTS, ..RecordsOptions::default() };
        Ours(Records::open(Arc::new(volume), formation, node, options).unwrap().0)
    }
}

impl Engine for Ours {
    fn commit(&self, records: &[(Key, Vec<u8>)]) {
        let slot = Slot(records[0].0.0);
        let mut txn = self.0.txn(&[slot]);
        records.iter().for_each(|((slot, key), value)| txn.put(Slot(*slot), key, value));
        txn.commit().unwrap();
        // In the node another thread does this; here it counts.
        if self.0.wants_compaction() {
            self.0.compact().unwrap();
        }
    }

    fn get(&self, (slot, key): &Key) -> Option<Vec<u8>> {
        self.0.read(Slot(*slot), key, |value| value.map(<[u8]>::to_vec))
    }

    fn scan(&self, (slot, prefix): &Key) -> u64 {
        let mut count = 0;
        self.0.scan(Slot(*slot), prefix, prefix, |_, value| {
            count += u64::from(!value.is_empty());
            ControlFlow::Continue(())
        });
        count
    }
}
