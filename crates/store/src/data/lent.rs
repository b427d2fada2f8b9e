//! The volumes that a node lends, as configured and as they are.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bivouac_ranks::{RwLock, rank};
use bivouac_types::{Checksum, PartitionId};

use super::room::SpaceAccount;
use super::table::Table;
use crate::{OpenMode, StoreResult, Volume, VolumeKind};

/// A directory that this node lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    /// The directory.
    pub path: PathBuf,
    /// Limit of the space of its subfiles, in bytes; 0 for what the file system has.
    pub capacity: u64,
    /// True if the directory is made if it does not exist.
    pub create: bool,
}

/// State of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Its directory.
    pub path: PathBuf,
    /// Medium of its bytes.
    pub kind: VolumeKind,
    /// Bytes that subfiles can occupy altogether.
    pub capacity: u64,
    /// Bytes that they do occupy, replicas among them.
    pub used: u64,
    /// Bytes of those that replicas of other nodes' volumes occupy.
    pub replicas: u64,
    /// Bytes that records take, and that are kept for them.
    pub records: u64,
    /// Subfiles.
    pub files: u64,
    /// Subfiles that were made and are known not to be there any more.
    pub lost: u64,
    /// True if new subfiles get checksums.
    pub checksum: bool,
}

#[derive(Debug)]
pub(super) struct LentVolume {
    pub(super) volume: Arc<dyn Volume>,
    /// The table of its subfiles.
    pub(super) table: Table,
    /// True if new subfiles get checksums.
    pub(super) sums: bool,
    /// Space of the whole volume.
    pub(super) room: Arc<SpaceAccount>,
    /// Space of each partition on it.
    parts: RwLock<HashMap<PartitionId, Arc<SpaceAccount>>>,
}

/// A partition's share of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartUsage {
    /// Bytes that its subfiles can occupy altogether.
    pub capacity: u64,
    /// Bytes that they may still occupy.
    pub free: u64,
    /// Bytes that they do occupy.
    pub used: u64,
    /// Its subfiles.
    pub files: u64,
}

impl LentVolume {
    pub(super) fn new(
        volume: Arc<dyn Volume>,
        index: u16,
        capacity: u64,
        checksum: Checksum,
    ) -> StoreResult<LentVolume> {
        let sums = match checksum {
            Checksum::Auto => volume.kind() == VolumeKind::Disk,
            Checksum::On => true,
            Checksum::Off => false,
        };
        let table = Table::open(&*volume, index, OpenMode::Create)?;
        Ok(LentVolume {
            volume,
            table,
            sums,
            room: Arc::new(SpaceAccount::new(capacity)),
            parts: RwLock::new(rank::VOLUME_ROOMS, HashMap::new()),
        })
    }

    /// Returns the account that subfiles of a partition take their bytes from.
    pub(super) fn room_of(&self, partition: PartitionId) -> Arc<SpaceAccount> {
        if partition == PartitionId::ROOT {
            return Arc::clone(&self.room);
        }
        if let Some(room) = self.parts.read().get(&partition) {
            return Arc::clone(room);
        }
        // Between the two locks another thread may have made it; two accounts of one partition would each grant its
        // limit.
        let mut parts = self.parts.write();
        Arc::clone(parts.entry(partition).or_insert_with(|| Arc::new(SpaceAccount::within(&self.room))))
    }

    pub(super) fn part_usage(&self, partition: PartitionId) -> PartUsage {
        let room = self.room_of(partition);
        let used = room.used();
        // What the file system below has is shared with others, so a limit may promise more than there is.
        let there = self.volume.space().map_or(u64::MAX, |space| space.free).min(self.room.memory_left());
        let free = room.free().min(there);
        PartUsage { capacity: used.saturating_add(free), free, used, files: room.files() }
    }

    pub(super) fn usage(&self) -> VolumeUsage {
        let used = self.room.used();
        let records = self.room.kept();
        let held = used.saturating_add(records);
        let free = |space: crate::Space| space.free.min(self.room.memory_left());
        let there = self.volume.space().map_or(held, |space| held.saturating_add(free(space)));
        let capacity = self.room.limit().map_or(there, |limit| limit.min(there));
        let (path, kind) = (self.volume.path().to_owned(), self.volume.kind());
        let (files, lost) = (self.room.files(), self.table.lost_count());
        let replicas = self.room.replicas();
        VolumeUsage { path, kind, capacity, used, replicas, records, files, lost, checksum: self.sums }
    }
}
