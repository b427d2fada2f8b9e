//! Partitions: made, changed and forgotten by their keeper; told to nodes; and directories that come to belong to them.

use bivouac_types::{
    Errno, FsError, FsResult, Ino, NodeId, PartitionId, PartitionSettings, Source, TargetIndex,
};
use bivouac_wire::{
    BindDirectoryRequest, Encode, ListPartitionsRequest, Partition, PartitionChange, PartitionList,
    PartitionState, op,
};

use crate::identity::SYSTEM;
use crate::intent::recorded_partition;
use crate::intent_record::{Intent, NewPartition};
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy::{check_stripes, open};
use crate::reaper::Job;
use crate::record::partition_key;
use crate::session::Ctx;
use crate::step::Handle;
use bivouac_session::Item;

/// Most bytes of partitions in one reply, unless a single one has more.
const PAGE_BYTES: usize = 1 << 16;

impl Handle for op::ListPartitions {
    fn handle(node: &Node, _: &Ctx<'_>, request: ListPartitionsRequest) -> FsResult<PartitionList> {
        let ListPartitionsRequest { only, after } = request;
        let wanted = |id: PartitionId| only.map_or(id > after, |only| only == id);
        let (mut partitions, mut bytes) = (Vec::new(), 0);
        for partition in node.partitions.all().into_iter().filter(|partition| wanted(partition.id)) {
            bytes += partition.to_bytes().len();
            if bytes > PAGE_BYTES && !partitions.is_empty() {
                return Ok(PartitionList { partitions, end: false });
            }
            partitions.push((*partition).clone());
        }
        Ok(PartitionList { partitions, end: true })
    }
}

impl Handle for op::PutPartition {
    fn handle(node: &Node, _: &Ctx<'_>, partition: Partition) -> FsResult<()> {
        partition.check(&node.map).map_err(|text| FsError::with(Errno::EINVAL, text))?;
        node.put_partition(partition)
    }
}

impl Handle for op::BindDirectory {
    fn handle(node: &Node, _: &Ctx<'_>, request: BindDirectoryRequest) -> FsResult<()> {
        let BindDirectoryRequest { dir, outer, layout, placement } = request;
        let mut change = node.change_at(&[dir.slot()], &[Item::Attrs(dir)])?;
        let mut inode = change.inode(dir)?;
        if !inode.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if inode.attr.layout.partition() == layout.partition() {
            return Ok(());
        }
        check_empty(inode.attr.size, inode.attr.is_spread())?;
        if inode.attr.layout.partition() != outer {
            let text = "the directory has come to another partition meanwhile: try again";
            return Err(FsError::with(Errno::EBUSY, text));
        }
        (inode.attr.layout, inode.placement, inode.attr.ctime) = (layout, placement, change.now);
        // The partition has one, which a directory's own would hide.
        inode.attr.contract = None;
        change.put_inode(&inode);
        change.commit()
    }
}

impl Handle for op::ChangePartition {
    fn handle(node: &Node, ctx: &Ctx<'_>, change: PartitionChange) -> FsResult<Partition> {
        if node.keeper()? != node.id {
            return Err(FsError::with(Errno::ESTALE, "partitions are changed by the root directory's home"));
        }
        if let Some(id) = ctx.done_before(&node.records, node.partitions.slot)? {
            return node.partition(PartitionId(id as u16)).map(|partition| (*partition).clone());
        }
        match change {
            PartitionChange::Make { dir, targets, settings } => {
                node.make_partition(ctx, dir, targets, settings)
            }
            PartitionChange::Set { id, version, settings } => node.set_partition(ctx, id, |partition| {
                check_change(partition, version, &settings)?;
                node.check_available(&settings, false)?;
                partition.settings = settings.clone();
                Ok(())
            }),
            PartitionChange::Remove { id } => node.remove_partition(ctx, id),
        }
    }
}

impl Node {
    fn make_partition(
        &self,
        ctx: &Ctx<'_>,
        dir: Ino,
        targets: Vec<TargetIndex>,
        settings: PartitionSettings,
    ) -> FsResult<Partition> {
        self.check_available(&settings, true)?;
        let outer = self.check_directory(ctx, dir)?;
        let (version, state) = (0, PartitionState::Making);
        let id = PartitionId::ROOT;
        let mut partition = Partition { id, version, state, dir, outer, targets, settings };
        partition.check(&self.map).map_err(|text| FsError::with(Errno::EINVAL, text))?;
        // After the checks, as numbers are used once.
        partition.id = self.partitions.next_id()?;
        let (id, slot) = (partition.id, self.partitions.slot);
        self.carry_out_begun(ctx, slot, Intent::MakePartition(NewPartition { id, dir }), |_| {
            let mut change = self.change_at(&[slot], &[])?;
            change.txn.must_fit();
            change.txn.put(slot, &partition_key(id), &partition.to_bytes());
            Ok(change)
        })?;
        self.partition(id).map(|partition| (*partition).clone())
    }

    /// Checks that a directory can become the root of a partition; returns the partition that it is in.
    fn check_directory(&self, ctx: &Ctx<'_>, dir: Ino) -> FsResult<PartitionId> {
        if dir == Ino::ROOT {
            let text = "the formation's own directory is the root partition's: name one below it";
            return Err(FsError::with(Errno::EINVAL, text));
        }
        let attr = self.attr_of(ctx, dir)?;
        if !attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let is_root = |partition: &&std::sync::Arc<Partition>| {
            partition.dir == dir && partition.state == PartitionState::Live
        };
        if let Some(partition) = self.partitions.all().iter().find(is_root) {
            let text =
                format!("the directory is that of {} already; `partition set` changes it", partition.id);
            return Err(FsError::with(Errno::EEXIST, text));
        }
        check_empty(attr.size, attr.is_spread())?;
        Ok(attr.layout.partition())
    }

    /// Changes a partition, and tells all nodes.
    fn set_partition(
        &self,
        ctx: &Ctx<'_>,
        id: PartitionId,
        set: impl FnOnce(&mut Partition) -> FsResult<()>,
    ) -> FsResult<Partition> {
        let slot = self.partitions.slot;
        let mut change = self.change_at(&[slot], &[])?;
        // The record: another change may have been committed that memory does not know yet.
        let known = recorded_partition(&change, slot, id)?
            .filter(|partition| partition.state == PartitionState::Live);
        let mut partition = known.ok_or_else(|| none(id))?;
        set(&mut partition)?;
        partition.version += 1;
        partition.check(&self.map).map_err(|text| FsError::with(Errno::EINVAL, text))?;
        change.txn.put(slot, &partition_key(id), &partition.to_bytes());
        change.commit_for(ctx, slot, u64::from(id.0))?;
        self.learn(partition.clone());
        // After the commit: what nodes are told must not be taken back.
        self.tell_partition(ctx, &partition);
        Ok(partition)
    }

    /// Marks a partition as removed, whose directory is gone, and with it the names of all its files.
    ///
    /// # Errors
    /// `ENOTEMPTY` while the directory exists.
    fn remove_partition(&self, ctx: &Ctx<'_>, id: PartitionId) -> FsResult<Partition> {
        let partition = self.partitions.get(id).ok_or_else(|| none(id))?;
        match self.attr_of(ctx, partition.dir) {
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => return Err(error),
            Ok(_) => {
                let text = format!("the directory of {id} is still there: remove it first");
                return Err(FsError::with(Errno::ENOTEMPTY, text));
            }
        }
        self.set_partition(ctx, id, |partition| {
            partition.state = PartitionState::Removed;
            Ok(())
        })
    }

    /// Tells all other nodes of a partition; those that do not answer hear of it when they do.
    fn tell_partition(&self, ctx: &Ctx<'_>, partition: &Partition) {
        let steps = StepContext { background: true, ..StepContext::question(ctx.origin) };
        for node in self.other_nodes() {
            if let Err(error) = self.step::<op::PutPartition>(node, steps, 0, partition.clone()) {
                log::warn!(why:% = error; "{node} goes on with {} as it was until it answers", partition.id);
                self.reaper.add_once(Job::Partitions(node));
            }
        }
    }

    /// Tells a node of all partitions.
    pub(crate) fn tell_partitions(&self, node: NodeId) -> FsResult<()> {
        let steps = StepContext { background: true, ..StepContext::question(SYSTEM) };
        // One that is being made is told by its intent, or comes to nothing.
        self.partitions
            .all()
            .iter()
            .filter(|partition| partition.state != PartitionState::Making)
            .try_for_each(|partition| self.step::<op::PutPartition>(node, steps, 0, (**partition).clone()))
    }

    /// Asks for all partitions.
    pub(crate) fn ask_for_partitions(&self) -> FsResult<()> {
        let steps = StepContext { background: true, ..StepContext::question(SYSTEM) };
        let mut after = PartitionId::ROOT;
        loop {
            let request = ListPartitionsRequest { only: None, after };
            let list = self.step::<op::ListPartitions>(self.keeper()?, steps, 0, request)?;
            let Some(last) = list.partitions.last() else { return Ok(()) };
            after = last.id;
            let known = list.partitions.into_iter().filter(|one| one.state != PartitionState::Making);
            known.into_iter().try_for_each(|partition| self.put_partition(partition))?;
            if list.end {
                return Ok(());
            }
        }
    }

    /// Queues the exchange of partitions that changed while this daemon was not running, if there are any partitions.
    pub(crate) fn adopt_partitions(&self) {
        if self.partitions.all().is_empty() {
            return;
        }
        if self.keeper().is_ok_and(|keeper| keeper == self.id) {
            self.other_nodes().for_each(|node| self.reaper.add_once(Job::Partitions(node)));
        } else {
            self.reaper.add_once(Job::Partitions(self.id));
        }
    }

    fn other_nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        let own = self.id;
        (0..self.map.content_count()).map(|node| NodeId(node as u16)).filter(move |node| *node != own)
    }
}

/// Checks that a directory has no entries that would have to change their partition.
fn check_empty(entries: u64, is_spread: bool) -> FsResult<()> {
    if entries > 0 {
        let text = format!(
            "the directory has {entries} entries, which belong to its partition: name a new or empty one, then move them by copying"
        );
        return Err(FsError::with(Errno::ENOTEMPTY, text));
    }
    if is_spread {
        let text = "the directory was so large that it is spread over all nodes: name a new one";
        return Err(FsError::with(Errno::EBUSY, text));
    }
    Ok(())
}

/// Checks that these settings may replace the partition's.
fn check_change(partition: &Partition, version: u32, settings: &PartitionSettings) -> FsResult<()> {
    if partition.version != version {
        let text = format!("{} was changed meanwhile: look at it and try again", partition.id);
        return Err(FsError::with(Errno::EBUSY, text));
    }
    if partition.settings.volumes != settings.volumes {
        let text = "the volumes of a partition are chosen when it is made: make another one";
        return Err(FsError::with(Errno::EINVAL, text));
    }
    if partition.settings.contract != settings.contract {
        let text =
            "the contract of a partition is chosen when it is made: programs count on it; make another one";
        return Err(FsError::with(Errno::EINVAL, text));
    }
    let is_detached = |source: &Source| settings.source == source.detached();
    if partition.settings.source != settings.source
        && !partition.settings.source.as_ref().is_some_and(is_detached)
    {
        let text = "the source of a partition is chosen when it is made: make another one";
        return Err(FsError::with(Errno::EINVAL, text));
    }
    Ok(())
}

impl Node {
    /// Refuses what this release has no implementation of, and what the source is not up to; of a new partition it must
    /// be there.
    fn check_available(&self, settings: &PartitionSettings, is_new: bool) -> FsResult<()> {
        if let Some(source) = settings.source.as_ref().filter(|source| !source.is_detached()) {
            let source = open(source.site(), &self.objects, &self.links)?;
            let of_rules = settings.rules.iter().filter_map(|rule| rule.stripe);
            check_stripes(&*source, of_rules.chain([settings.stripe]))?;
            if is_new {
                source.check()?;
            }
        }
        check_implemented(settings)
    }
}

/// Refuses what there is no implementation of, and policies about nothing.
fn check_implemented(settings: &PartitionSettings) -> FsResult<()> {
    let has_policies = settings.read != Default::default()
        || settings.write != Default::default()
        || settings.fsync != Default::default()
        || settings.mirror_deletes != Default::default()
        || settings.rules.iter().any(|rule| rule.read.is_some() || rule.write.is_some());
    match &settings.source {
        None if has_policies => {
            let text = "read, write, fsync and mirror-deletes are about a source, and the partition has none: name one, or leave them out";
            Err(FsError::with(Errno::EINVAL, text))
        }
        _ => Ok(()),
    }
}

fn none(id: PartitionId) -> FsError {
    FsError::with(Errno::ENOENT, format!("there is no {id}; `bivouac partition list` shows those that are"))
}
