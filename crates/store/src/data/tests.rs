//! The subfiles as a whole: against a model, against crashes, full volumes, damage, and each other.

mod crash;
mod direct;
mod headers;
mod model;
mod room;
mod rules;
mod shared;
mod space;
mod sums;
mod sync;
mod table;

use super::*;
use crate::MemVolume;
use bivouac_types::{Errno, Ino, Layout, Placement, TargetIndex};
use bivouac_wire::TargetEntry;

const FORMATION: FormationId = FormationId([3; 16]);
const TARGETS: [TargetEntry; 4] = [
    TargetEntry { node: NodeId(0), volume: 0 },
    TargetEntry { node: NodeId(0), volume: 1 },
    TargetEntry { node: NodeId(1), volume: 0 },
    TargetEntry { node: NodeId(1), volume: 1 },
];
const LAYOUT: Layout = Layout { stripe: 8192, width: 3, base: TargetIndex(2), targets: 4 };
const SPEC: SubfileSpec<'static> =
    SubfileSpec { layout: LAYOUT, placement: Placement::Striped, targets: &TARGETS };

/// A subfile on volume 0, target 0: the third of the layout's columns.
fn id(ino: u64) -> SubfileId {
    SubfileId { volume: 0, ino: Ino(ino), target: TargetIndex(0) }
}

fn store_on(volume: &Arc<dyn Volume>, capacity: u64, handles_max: usize) -> DataStore {
    DataStore::with_volumes(
        vec![(volume.clone(), capacity)],
        FORMATION,
        &DataOptions { handles_max, ..DataOptions::default() },
    )
    .unwrap()
}

/// Like [`store_on`], with checksums.
fn summed_on(volume: &Arc<dyn Volume>, capacity: u64, handles_max: usize) -> DataStore {
    let options = DataOptions { handles_max, checksum: Checksum::On };
    DataStore::with_volumes(vec![(volume.clone(), capacity)], FORMATION, &options).unwrap()
}

fn memory() -> Arc<dyn Volume> {
    Arc::new(MemVolume::default())
}

fn write(store: &DataStore, id: SubfileId, epoch: u32, offset: u64, bytes: &[u8]) -> StoreResult<u32> {
    store.write(id, &SPEC, epoch, offset, &[IoSlice::new(bytes)])
}

/// Writes a byte to each of some subfiles.
fn touch(store: &DataStore, inos: std::ops::Range<u64>) {
    for ino in inos {
        write(store, id(ino), 0, 0, b"x").unwrap();
    }
}

fn read(store: &DataStore, id: SubfileId, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let (count, _) = store.read(id, offset, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    bytes.truncate(count);
    bytes
}

fn used(store: &DataStore) -> u64 {
    store.usage()[0].used
}

/// Bytes of the subfiles, as their volume counts them.
fn occupied(store: &DataStore) -> u64 {
    store.list(0).unwrap().map(|listed| listed.allocated).sum()
}
