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
mod table;

use super::*;
use crate::MemVolume;
use bivouac_types::{Errno, Ino, Layout, Placement, SeatIndex};
use bivouac_wire::SeatEntry;

const FORMATION: FormationId = FormationId([3; 16]);
const SEATS: [SeatEntry; 4] = [
    SeatEntry { node: NodeId(0), volume: 0 },
    SeatEntry { node: NodeId(0), volume: 1 },
    SeatEntry { node: NodeId(1), volume: 0 },
    SeatEntry { node: NodeId(1), volume: 1 },
];
const LAYOUT: Layout = Layout { stripe: 8192, width: 3, base: SeatIndex(2), seats: 4 };
const SPEC: SubfileSpec<'static> =
    SubfileSpec { layout: LAYOUT, placement: Placement::Striped, seats: &SEATS };

/// A subfile on volume 0, seat 0: the third of the layout's columns.
fn id(ino: u64) -> SubfileId {
    SubfileId { volume: 0, ino: Ino(ino), seat: SeatIndex(0) }
}

fn store_on(volume: &Arc<dyn Volume>, capacity: u64, handles_max: usize) -> DataStore {
    DataStore::with_volumes(
        vec![(volume.clone(), capacity)],
        FORMATION,
        &DataOptions { handles_max, ..DataOptions::default() },
    )
    .unwrap()
}

/// As [`store_on`], with checksums.
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

/// What the subfiles occupy by the word of their volume.
fn occupied(store: &DataStore) -> u64 {
    store.list(0).unwrap().map(|listed| listed.allocated).sum()
}
