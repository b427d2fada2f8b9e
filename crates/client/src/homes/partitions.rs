//! Partitions: which there are, where their targets are, and changing them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bivouac_layout::TargetRange;
use bivouac_types::{
    Attr, Contract, Errno, FsError, FsResult, Ino, NodeId, PartitionId, PartitionSettings, TargetIndex,
};
use bivouac_wire::{
    ListPartitionsRequest, Partition, PartitionChange, PartitionState, PartitionTable, TargetEntry, op,
};
use parking_lot::{Mutex, RwLock};

use crate::connections::Connections;
use crate::homes::known::KnownFile;
use crate::operation::OpCtx;

/// Time for which the settings of a partition are cached when a file is opened, closed or named.
const BELIEVED: Duration = Duration::from_secs(1);
/// Pause before they are asked for again of a node that does not answer.
const UNANSWERED: Duration = Duration::from_secs(60);

/// The partitions that a client has come across.
pub struct Partitions {
    connections: Arc<Connections>,
    known: RwLock<PartitionTable>,
    /// True once an inode was seen that is in one.
    any: AtomicBool,
    /// Until when settings are valid.
    asked: Mutex<Vec<(PartitionId, Instant)>>,
}

impl Partitions {
    pub(crate) fn new(connections: Arc<Connections>) -> Partitions {
        let (known, any, asked) = Default::default();
        Partitions { connections, known, any, asked }
    }

    /// Takes note that there are partitions.
    pub(crate) fn note(&self, attr: &Attr) {
        if attr.layout.partition() != PartitionId::ROOT && !self.any() {
            // Stored once: each attribute that arrives comes by here, on all processors.
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if anything in a partition was seen.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Returns the node that knows all partitions.
    fn keeper(&self) -> FsResult<NodeId> {
        self.connections.home(Ino::ROOT)
    }

    /// Returns a partition as it was when this client first came across it: its targets never change. `None` for the
    /// root partition, which has all targets.
    ///
    /// # Errors
    /// `ESTALE` when there is none, `EIO` when the root directory's home cannot be reached.
    pub fn get(&self, id: PartitionId) -> FsResult<Option<Arc<Partition>>> {
        if id == PartitionId::ROOT {
            return Ok(None);
        }
        if let Some(partition) = self.known.read().get(id) {
            return Ok(Some(Arc::clone(partition)));
        }
        self.now(id).map(Some)
    }

    /// Returns a partition as it is.
    ///
    /// # Errors
    /// As [`Partitions::get`].
    pub fn now(&self, id: PartitionId) -> FsResult<Arc<Partition>> {
        let request = ListPartitionsRequest { only: Some(id), after: PartitionId::ROOT };
        let list = self.connections.ask::<op::ListPartitions>(self.keeper()?, &request)?;
        let mut known = self.known.write();
        for partition in list.partitions {
            known.learn(&self.connections.map, partition);
        }
        known
            .get(id)
            .cloned()
            .ok_or_else(|| FsError::with(Errno::ESTALE, format!("the formation has no {id}")))
    }

    /// Returns all partitions that are there, in the order of their numbers.
    ///
    /// # Errors
    /// `EIO` when the root directory's home cannot be reached.
    pub fn list(&self) -> FsResult<Vec<Partition>> {
        let (mut all, mut after) = (Vec::new(), PartitionId::ROOT);
        loop {
            let list = self
                .connections
                .ask::<op::ListPartitions>(self.keeper()?, &ListPartitionsRequest { only: None, after })?;
            after = list.partitions.last().map_or(after, |last| last.id);
            let is_last = list.end || list.partitions.is_empty();
            all.extend(list.partitions.into_iter().filter(|one| one.state == PartitionState::Live));
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Makes an empty directory the root of a partition over these targets of the root partition.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOTEMPTY`, `EEXIST` for a directory that is one already; `EINVAL` for targets and settings that
    /// cannot be; `EOPNOTSUPP` for those that this release does not have; `EIO` when a node of them does not answer:
    /// then it is made later, by itself.
    pub fn make(
        &self,
        ctx: &OpCtx,
        dir: Ino,
        targets: Vec<TargetIndex>,
        settings: PartitionSettings,
    ) -> FsResult<Partition> {
        self.change(ctx, &PartitionChange::Make { dir, targets, settings })
    }

    /// Gives a partition other settings, for what is done from now on; `version` is that of the known ones.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL`, `EOPNOTSUPP`; `EBUSY` when it was changed meanwhile; `EIO`. Nodes that do not answer go on
    /// with the old settings until they do.
    pub fn set(
        &self,
        ctx: &OpCtx,
        id: PartitionId,
        version: u32,
        settings: PartitionSettings,
    ) -> FsResult<Partition> {
        self.change(ctx, &PartitionChange::Set { id, version, settings })
    }

    /// Checks that all nodes go by a version of a partition, or a later one.
    ///
    /// # Errors
    /// `EIO` for a node that does not answer, `EBUSY` for one that does not know it yet.
    pub fn check_known(&self, id: PartitionId, version: u32) -> FsResult<()> {
        let request = ListPartitionsRequest { only: Some(id), after: PartitionId::ROOT };
        for node in self.connections.content_node_ids() {
            let list = self.connections.ask::<op::ListPartitions>(node, &request)?;
            if !list.partitions.iter().any(|known| known.id == id && known.version >= version) {
                let text =
                    format!("{node} still goes by earlier settings of {id}: try again when it answers");
                return Err(FsError::with(Errno::EBUSY, text));
            }
        }
        Ok(())
    }

    /// Forgets a partition whose directory is gone.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTEMPTY` when the directory is still there; `EIO`.
    pub fn forget(&self, ctx: &OpCtx, id: PartitionId) -> FsResult<Partition> {
        self.change(ctx, &PartitionChange::Remove { id })
    }

    fn change(&self, ctx: &OpCtx, change: &PartitionChange) -> FsResult<Partition> {
        let partition = self.connections.change::<op::ChangePartition>(self.keeper()?, ctx, change, &[])?;
        self.known.write().learn(&self.connections.map, partition.clone());
        Ok(partition)
    }

    /// Returns the node and volume of a target.
    ///
    /// # Errors
    /// `ESTALE` for a target that the formation does not have; as [`Partitions::get`].
    pub fn target_place(&self, target: TargetIndex) -> FsResult<TargetEntry> {
        let place = match target.partition() {
            PartitionId::ROOT => self.connections.map.target(target),
            id => {
                // For the table below, which is then known to have it.
                self.get(id)?;
                self.known.read().target(&self.connections.map, target)
            }
        };
        place.ok_or_else(|| FsError::with(Errno::ESTALE, format!("target {target} is not in the map")))
    }

    /// Returns the node of a range's target.
    pub(crate) fn target_node(&self, range: &TargetRange) -> FsResult<NodeId> {
        self.target_place(range.target).map(|place| place.node)
    }

    /// Returns the contract of a file: its own, or its partition's.
    pub(crate) fn contract(&self, known: &KnownFile) -> FsResult<Contract> {
        if let Some(contract) = known.contract {
            return Ok(contract);
        }
        Ok(self
            .get(known.layout.partition())?
            .map_or(Contract::default(), |partition| partition.settings.contract))
    }

    /// Returns a partition, if it stands in front of site storage.
    pub(crate) fn bound(&self, id: PartitionId) -> FsResult<Option<Arc<Partition>>> {
        Ok(self.get(id)?.filter(|partition| partition.settings.source.is_some()))
    }

    /// Returns the partition with settings that are hardly older than a second.
    pub(crate) fn refreshed(&self, bound: Arc<Partition>) -> FsResult<Arc<Partition>> {
        let (id, now) = (bound.id, Instant::now());
        let mut asked = self.asked.lock();
        // One asks, and the others go by what is known meanwhile.
        match asked.iter_mut().find(|(known, _)| *known == id) {
            Some((_, until)) if now < *until => return Ok(bound),
            Some((_, until)) => *until = now + UNANSWERED,
            None => asked.push((id, now + UNANSWERED)),
        }
        // Not held while the node is asked, which may take as long as a node may be away.
        drop(asked);
        let answer = self.now(id);
        let is_unknown = answer.as_ref().is_err_and(|error| error.errno() != Errno::ESTALE);
        if let Some((_, until)) = self.asked.lock().iter_mut().find(|(known, _)| *known == id)
            && !is_unknown
        {
            *until = now + BELIEVED;
        }
        // Who cannot be asked now has said it before.
        if is_unknown { Ok(bound) } else { answer }
    }
}
