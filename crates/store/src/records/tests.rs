//! The records as a whole: against a model, against crashes, against damage, against failing volumes.

mod crash;
mod damage;
mod faults;
mod model;
mod rules;
mod salvage;

use super::*;
use crate::MemVolume;
use std::collections::BTreeMap;

/// Model of the records: key → value, per slot.
type Model = Vec<BTreeMap<Vec<u8>, Vec<u8>>>;

const FORMATION: FormationId = FormationId([3; 16]);
const NODE: NodeId = NodeId(5);

fn options(slots: u16) -> RecordsOptions {
    RecordsOptions { slots, ..RecordsOptions::default() }
}

fn open(volume: &Arc<dyn Volume>, slots: u16) -> StoreResult<(Records, Recovery)> {
    Records::open(volume.clone(), FORMATION, NODE, options(slots))
}

fn memory() -> Arc<dyn Volume> {
    Arc::new(MemVolume::default())
}

fn content(records: &Records) -> Model {
    let slot = |slot: u16| {
        let mut map = BTreeMap::new();
        records.scan(Slot(slot), b"", b"", |key, value| {
            map.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        });
        map
    };
    (0..records.slots()).map(slot).collect()
}

/// One commit: slot, key and the value or a delete.
type Commit = Vec<(u16, Vec<u8>, Option<Vec<u8>>)>;

fn commit(records: &Records, changes: &Commit) -> StoreResult<()> {
    let slots: Vec<Slot> = changes.iter().map(|(slot, ..)| Slot(*slot)).collect();
    let mut txn = records.txn(&slots);
    for (slot, key, value) in changes {
        match value {
            Some(value) => txn.put(Slot(*slot), key, value),
            None => txn.delete(Slot(*slot), key),
        }
    }
    txn.commit()
}

fn commit_to_model(model: &mut Model, changes: &Commit) {
    for (slot, key, value) in changes {
        match value {
            Some(value) => model[usize::from(*slot)].insert(key.clone(), value.clone()),
            None => model[usize::from(*slot)].remove(key),
        };
    }
}

/// Some commits over two slots that add, replace and delete, each of two records.
fn workload(count: u8) -> Vec<Commit> {
    let pair = |i: u8| {
        let key = vec![b'k', i % 7];
        let value = (i % 5 != 3).then(|| vec![i; usize::from(i % 23)]);
        vec![(0, key.clone(), value.clone()), (1, key, value)]
    };
    (0..count).map(pair).collect()
}
