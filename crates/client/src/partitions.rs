//! Partitions: which there are, where their seats are, and changing them.

use std::sync::Arc;

use bivouac_types::{
    Errno, FsError, FsResult, Ino, NodeId, PartitionId, PartitionSettings, SeatIndex, StatFs,
};
use bivouac_wire::{
    ListPartitionsRequest, Partition, PartitionChange, PartitionState, PartitionTable, SeatEntry,
    StatFsRequest, op,
};
use parking_lot::RwLock;

use crate::client::{Client, OpCtx};
use crate::data::finish_all;

/// The partitions that a client has come across.
#[derive(Default)]
pub struct Known(RwLock<PartitionTable>);

impl Client {
    /// The node that knows all partitions.
    fn keeper(&self) -> FsResult<NodeId> {
        self.ways.home(Ino::ROOT)
    }

    /// A partition as it was when this client first came across it: its seats never change. `None` for the root
    /// partition, which has all seats.
    ///
    /// # Errors
    /// `ESTALE` when there is none, `EIO` when the root directory's home cannot be reached.
    pub fn partition(&self, id: PartitionId) -> FsResult<Option<Arc<Partition>>> {
        if id == PartitionId::ROOT {
            return Ok(None);
        }
        if let Some(partition) = self.partitions.0.read().get(id) {
            return Ok(Some(Arc::clone(partition)));
        }
        self.partition_now(id).map(Some)
    }

    /// A partition as it is.
    ///
    /// # Errors
    /// As [`Client::partition`].
    pub fn partition_now(&self, id: PartitionId) -> FsResult<Arc<Partition>> {
        let request = ListPartitionsRequest { only: Some(id), after: PartitionId::ROOT };
        let list = self.ways.ask::<op::ListPartitions>(self.keeper()?, &request)?;
        let mut known = self.partitions.0.write();
        for partition in list.partitions {
            known.learn(&self.map, partition);
        }
        known
            .get(id)
            .cloned()
            .ok_or_else(|| FsError::with(Errno::ESTALE, format!("the formation has no {id}")))
    }

    /// All partitions that are there, in the order of their numbers.
    ///
    /// # Errors
    /// `EIO` when the root directory's home cannot be reached.
    pub fn list_partitions(&self) -> FsResult<Vec<Partition>> {
        let (mut all, mut after) = (Vec::new(), PartitionId::ROOT);
        loop {
            let list = self
                .ways
                .ask::<op::ListPartitions>(self.keeper()?, &ListPartitionsRequest { only: None, after })?;
            after = list.partitions.last().map_or(after, |last| last.id);
            let is_last = list.end || list.partitions.is_empty();
            all.extend(list.partitions.into_iter().filter(|one| one.state == PartitionState::Live));
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Makes an empty directory the root of a partition over these seats of the root partition.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOTEMPTY`, `EEXIST` for a directory that is one already; `EINVAL` for seats and settings that cannot
    /// be; `EOPNOTSUPP` for those that this release does not have; `EIO` when a node of them does not answer: then it
    /// is made later, by itself.
    pub fn make_partition(
        &self,
        ctx: &OpCtx,
        dir: Ino,
        seats: Vec<SeatIndex>,
        settings: PartitionSettings,
    ) -> FsResult<Partition> {
        self.change_partition(ctx, &PartitionChange::Make { dir, seats, settings })
    }

    /// Gives a partition other settings, for what is done from now on; `version` is that of the known ones.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL`, `EOPNOTSUPP`; `EBUSY` when it was changed meanwhile; `EIO`. Nodes that do not answer go on with
    /// the old settings until they do.
    pub fn set_partition(
        &self,
        ctx: &OpCtx,
        id: PartitionId,
        version: u32,
        settings: PartitionSettings,
    ) -> FsResult<Partition> {
        self.change_partition(ctx, &PartitionChange::Set { id, version, settings })
    }

    /// Forgets a partition whose directory is gone.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTEMPTY` when the directory is still there; `EIO`.
    pub fn forget_partition(&self, ctx: &OpCtx, id: PartitionId) -> FsResult<Partition> {
        self.change_partition(ctx, &PartitionChange::Remove { id })
    }

    fn change_partition(&self, ctx: &OpCtx, change: &PartitionChange) -> FsResult<Partition> {
        let partition = self.ways.change::<op::ChangePartition>(self.keeper()?, ctx, change, &[])?;
        self.partitions.0.write().learn(&self.map, partition.clone());
        Ok(partition)
    }

    /// Node and volume of a seat.
    ///
    /// # Errors
    /// `ESTALE` for a seat that the formation does not have; as [`Client::partition`].
    pub fn seat_place(&self, seat: SeatIndex) -> FsResult<SeatEntry> {
        let place = match seat.partition() {
            PartitionId::ROOT => self.map.seat(seat),
            id => {
                self.partition(id)?;
                self.partitions.0.read().seat(&self.map, seat)
            }
        };
        place.ok_or_else(|| FsError::with(Errno::ESTALE, format!("seat {seat} is not in the map")))
    }

    /// Space where an inode is: of the formation, or of its partition; and inodes of the formation.
    ///
    /// # Errors
    /// `EIO` when no node can be reached, or of a partition not every one; `ENOENT`.
    pub fn statfs(&self, ino: Ino) -> FsResult<StatFs> {
        let id = if ino == Ino::ROOT { PartitionId::ROOT } else { self.attr_now(ino)?.layout.partition() };
        let Some(partition) = self.partition(id)? else { return self.statfs_all() };
        let mut nodes: Vec<NodeId> = partition.places(&self.map).iter().map(|place| place.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let ask = |node: &NodeId| self.ways.start::<op::StatFs>(*node, &StatFsRequest { partition: id }, &[]);
        let parts = finish_all(nodes.iter().map(ask).collect::<FsResult<Vec<_>>>()?)?;
        let StatFs { files, files_free, .. } = self.statfs_all()?;
        let sum = parts.iter().fold(StatFs::default(), |sum, part| StatFs {
            block_size: part.block_size,
            blocks: sum.blocks + part.blocks,
            blocks_free: sum.blocks_free + part.blocks_free,
            files,
            files_free,
        });
        Ok(sum)
    }
}
