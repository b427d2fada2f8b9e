//! Making a partition: the nodes of its targets learn of it; then its directory comes to belong to it; then it is
//! there. Until the second step nothing of it can be seen.

use bivouac_types::{Errno, FsError, FsResult, NodeId, PartitionId, Slot};
use bivouac_wire::{BindDirectoryRequest, Decode, Encode, Partition, PartitionState, op};

use super::{Outcome, refused};
use crate::intent_record::{LoggedIntent, NewPartition};
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::StepContext;
use crate::record::partition_key;

impl Node {
    /// Carries out the steps: the partition to the nodes of its targets; then the directory.
    pub(super) fn finish_make_partition(
        &self,
        new: NewPartition,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        if self.partitions.get(new.id).is_none() {
            // Not before it is logged: without a record nobody would take it away again.
            let recorded = recorded_partition(&self.change_at(&[logged.slot], &[])?, logged.slot, new.id)?;
            recorded.into_iter().for_each(|partition| self.learn(partition));
        }
        let making = &*self.partition(new.id)?;
        if making.state == PartitionState::Removed {
            // Given up before a kill: some nodes know that by now, and would refuse what goes on all the same.
            return self.give_up_partition(making, Errno::EBUSY.into(), steps);
        }
        let live = Partition { state: PartitionState::Live, ..making.clone() };
        for node in self.nodes_of(making) {
            if let Err(error) = refused(self.step::<op::PutPartition>(node, steps, 0, live.clone()))? {
                return self.give_up_partition(making, error, steps);
            }
        }
        let (dir, outer, layout) = (live.dir, live.outer, live.layout());
        let request = BindDirectoryRequest { dir, outer, layout, placement: None };
        if let Err(error) = refused(self.step::<op::BindDirectory>(self.home_of(dir)?, steps, 1, request))? {
            return self.give_up_partition(making, error, steps);
        }
        let slot = logged.slot;
        let mut change = self.change_at(&[slot], &[])?;
        change.txn.put(slot, &partition_key(live.id), &live.to_bytes());
        let value = u64::from(live.id.0);
        // Its directory belongs to it, so that it is there is certain; who sees the intent gone sees it.
        self.learn(live);
        self.clear(change, logged, steps, value)
    }

    /// Gives up a partition that is being made; its number stays taken. Nodes that do not learn of it lose nothing, as
    /// it is empty.
    fn give_up_partition(
        &self,
        making: &Partition,
        error: bivouac_types::FsError,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        // Above the version that some nodes may have taken for live.
        let version = making.version + 1;
        let gone = Partition { state: PartitionState::Removed, version, ..making.clone() };
        self.put_partition(gone.clone())?;
        for node in self.nodes_of(making) {
            let steps = StepContext { background: true, ..steps };
            if let Err(error) = self.step::<op::PutPartition>(node, steps, 2, gone.clone()) {
                log::info!(why:% = error; "{node} does not hear that {} was refused", gone.id);
            }
        }
        Ok(Outcome::Refused(error))
    }

    /// Returns the other nodes that must know of a partition before there is anything in it, each once.
    fn nodes_of(&self, partition: &Partition) -> Vec<NodeId> {
        let targets = partition.places(&self.map);
        let mut nodes: Vec<NodeId> = match partition.settings.source {
            // Homes of its inodes must know as well: what changes there is not at the source.
            Some(_) => (0..self.map.content_count()).map(|node| NodeId(node as u16)).collect(),
            None => targets.iter().map(|place| place.node).collect(),
        };
        nodes.retain(|node| *node != self.id);
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// Returns a partition as it is written down, within a change of that.
pub(crate) fn recorded_partition(
    change: &Change<'_>,
    slot: Slot,
    id: PartitionId,
) -> FsResult<Option<Partition>> {
    let damaged = |error| FsError::with(Errno::EIO, format!("the record of {id} is damaged: {error}"));
    let record = change.txn.get(slot, &partition_key(id));
    record.map(|bytes| Partition::from_bytes(bytes).map_err(damaged)).transpose()
}

impl Node {
    /// Writes down what there is to know of a partition, unless more is known.
    pub(crate) fn put_partition(&self, partition: Partition) -> FsResult<()> {
        let slot = self.partitions.slot;
        let mut change = self.change_at(&[slot], &[])?;
        let known = recorded_partition(&change, slot, partition.id)?;
        // As `PartitionTable::learn` compares: messages come in any order, and twice.
        let rank = |partition: &Partition| (partition.version, partition.state as u8);
        if known.is_some_and(|known| rank(&known) >= rank(&partition)) {
            return Ok(());
        }
        change.txn.put(slot, &partition_key(partition.id), &partition.to_bytes());
        change.commit()?;
        self.learn(partition);
        Ok(())
    }
}
