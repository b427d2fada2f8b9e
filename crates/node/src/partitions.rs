//! Partitions as this node knows them. The *keeper*, the home of the root directory, knows all of them, and makes and
//! changes them; nodes with targets of a partition are told before it can have files, so that steps of the peer lane
//! never have to ask; the others ask the keeper when they first need one.

use std::ops::ControlFlow;
use std::sync::Arc;

use bivouac_ranks::{Mutex, RwLock, rank};
use bivouac_store::Records;
use bivouac_types::limits::PARTITIONS_MAX;
use bivouac_types::{Errno, FsError, FsResult, PartitionId, Slot, TargetIndex};
use bivouac_wire::{Decode, FormationMap, Partition, PartitionTable, TargetEntry};

use crate::record::table;

/// The partitions that a node knows.
pub struct Partitions {
    /// Slot of their records.
    pub slot: Slot,
    table: RwLock<PartitionTable>,
    /// The last number that was given to one that is being made.
    last: Mutex<PartitionId>,
}

/// The targets of a partition, in their order.
pub enum Targets<'a> {
    /// All of the formation.
    Root(&'a [TargetEntry]),
    /// These targets.
    Of(Arc<[TargetEntry]>),
}

impl std::ops::Deref for Targets<'_> {
    type Target = [TargetEntry];

    fn deref(&self) -> &[TargetEntry] {
        match self {
            Targets::Root(targets) => targets,
            Targets::Of(targets) => targets,
        }
    }
}

impl Partitions {
    /// Reads the partitions from the records of an earlier daemon.
    ///
    /// # Errors
    /// `EIO` for a record that is damaged.
    pub fn open(records: &Records, slot: Slot, map: &FormationMap) -> FsResult<Partitions> {
        let mut known = PartitionTable::default();
        let mut damage = None;
        records.scan(slot, &table(b'P'), &table(b'P'), |_, value| match Partition::from_bytes(value) {
            Ok(partition) => {
                known.learn(map, partition);
                ControlFlow::Continue(())
            }
            Err(error) => {
                damage = Some(error);
                ControlFlow::Break(())
            }
        });
        if let Some(error) = damage {
            let text = format!("the record of a partition is damaged: {error}; run `bivouac fsck --offline`");
            return Err(FsError::with(Errno::EIO, text));
        }
        // Removed ones count as well: subfiles of theirs may be left, and go by the number.
        let last = known.all().last().map_or(PartitionId::ROOT, |partition| partition.id);
        Ok(Partitions {
            slot,
            table: RwLock::new(rank::PARTITION_TABLE, known),
            last: Mutex::new(rank::LEAF, last),
        })
    }

    /// Returns a number that no partition had. Only the keeper knows which those are.
    ///
    /// # Errors
    /// `ENOSPC` when there is none left.
    pub fn next_id(&self) -> FsResult<PartitionId> {
        let mut last = self.last.lock();
        let next = last.0.checked_add(1).ok_or_else(|| {
            let text =
                format!("the formation has had {PARTITIONS_MAX} partitions, and numbers are used once");
            FsError::with(Errno::ENOSPC, text)
        })?;
        *last = PartitionId(next);
        Ok(*last)
    }

    /// Returns a partition by its number, if it is known.
    pub fn get(&self, id: PartitionId) -> Option<Arc<Partition>> {
        self.table.read().get(id).cloned()
    }

    /// Takes in what there is to know of a partition. Whether that was more than was known.
    pub fn learn(&self, map: &FormationMap, partition: Partition) -> bool {
        self.table.write().learn(map, partition)
    }

    /// Returns the node and volume of a target of a known partition.
    pub fn target(&self, map: &FormationMap, target: TargetIndex) -> Option<TargetEntry> {
        self.table.read().target(map, target)
    }

    /// Returns all targets of a known partition.
    pub fn places(&self, id: PartitionId) -> Option<Arc<[TargetEntry]>> {
        self.table.read().places(id).cloned()
    }

    /// Returns true if only the root partition is known, so that nothing can be at site storage.
    pub fn is_empty(&self) -> bool {
        self.table.read().is_empty()
    }

    /// Returns whether any known partition stands in front of site storage.
    pub fn has_site_storage(&self) -> bool {
        !self.is_empty() && self.all().iter().any(|partition| partition.settings.source.is_some())
    }

    /// Returns all known partitions, by number.
    pub fn all(&self) -> Vec<Arc<Partition>> {
        self.table.read().all()
    }
}
