//! Placement of files: targets of partitions, and layouts of new files.

use std::sync::Arc;

use bivouac_layout::{LayoutRequest, avoiding, layout_for};
use bivouac_store::{SubfileId, SubfileSpec};
use bivouac_types::{
    Errno, FsError, FsResult, Ino, Layout, MasterHash, MirrorDeletes, NodeId, PartitionId, Placement,
    TargetIndex,
};
use bivouac_wire::{Inherited, ListPartitionsRequest, Partition, TargetEntry, op};

use crate::identity::SYSTEM;
use crate::node::Node;
use crate::partitions::Targets;
use crate::peers::StepContext;

impl Node {
    /// Returns the node that knows all partitions.
    pub(crate) fn keeper(&self) -> FsResult<NodeId> {
        self.home_of(Ino::ROOT)
    }

    /// Takes in what there is to know of a partition.
    pub(crate) fn learn(&self, partition: Partition) {
        let id = partition.id;
        if !self.partitions.learn(&self.map, partition) {
            return;
        }
        self.limit_partition(id);
        self.close_sources(id);
    }

    /// Limits what the partitions may take of this node's volumes, as far as they are known.
    pub(crate) fn limit_partitions(&self) {
        self.partitions.all().iter().for_each(|partition| self.limit_partition(partition.id));
    }

    fn limit_partition(&self, id: PartitionId) {
        let Some(partition) = self.partitions.get(id) else { return };
        let own = partition.places(&self.map).into_iter().filter(|place| place.node == self.id);
        for place in own {
            if let Err(error) = self.data.limit_part(place.volume, id, partition.target_capacity()) {
                log::error!(why:% = error; "{id} is not limited on this node");
            }
        }
    }

    /// Returns a partition; the keeper is asked if need be, so not from the peer lane.
    ///
    /// # Errors
    /// `ESTALE` when there is none, `EIO` when the keeper does not answer.
    pub(crate) fn partition(&self, id: PartitionId) -> FsResult<Arc<Partition>> {
        if let Some(partition) = self.partitions.get(id) {
            return Ok(partition);
        }
        let keeper = self.keeper()?;
        if keeper != self.id {
            let request = ListPartitionsRequest { only: Some(id), after: PartitionId::ROOT };
            let list = self.step::<op::ListPartitions>(keeper, StepContext::question(SYSTEM), 0, request)?;
            list.partitions.into_iter().for_each(|partition| self.learn(partition));
        }
        self.partitions.get(id).ok_or_else(|| unknown(id))
    }

    /// Returns the node and volume of a target; the keeper is asked if need be, so not from the peer lane.
    ///
    /// # Errors
    /// `ESTALE` for a target that the formation does not have, `EIO` when the keeper does not answer.
    pub(crate) fn target_place(&self, target: TargetIndex) -> FsResult<TargetEntry> {
        if let Some(place) = self.known_target(target) {
            return Ok(place);
        }
        if target.partition() != PartitionId::ROOT {
            self.partition(target.partition())?;
        }
        self.known_target(target).ok_or_else(|| {
            FsError::with(Errno::ESTALE, format!("the formation has no target {target}: get the map again"))
        })
    }

    /// Returns the node and volume of a target, without asking.
    pub(crate) fn known_target(&self, target: TargetIndex) -> Option<TargetEntry> {
        match target.partition() {
            PartitionId::ROOT => self.map.target(target),
            _ => self.partitions.target(&self.map, target),
        }
    }

    /// Returns all targets of a partition, without asking.
    ///
    /// # Errors
    /// `ESTALE` when it is not known here.
    pub(crate) fn known_targets(&self, id: PartitionId) -> FsResult<Targets<'_>> {
        if id == PartitionId::ROOT {
            return Ok(Targets::Root(&self.map.targets));
        }
        let places = self.partitions.places(id);
        places.map(Targets::Of).ok_or_else(|| unknown(id))
    }

    /// Returns the layout and placement of a new file in a directory that passes these on, on targets of nodes that
    /// live as far as there are any.
    ///
    /// # Errors
    /// `EINVAL` for a layout that cannot be; as [`Node::partition`].
    pub(crate) fn new_layout(
        &self,
        ino: Ino,
        from: &Inherited,
        name: &[u8],
        near: Option<TargetIndex>,
    ) -> FsResult<(Layout, Placement)> {
        let Layout { stripe, width, targets, .. } = from.layout;
        let (partition, placement) = (from.layout.partition(), from.placement.unwrap_or_default());
        let mut wish = LayoutRequest {
            partition,
            stripe,
            width,
            targets,
            placement,
            hash: MasterHash::Xxh3,
            name,
            local: &[],
        };
        let mut local: Vec<u16> = near.map(TargetIndex::position).into_iter().collect();
        if partition != PartitionId::ROOT {
            let found = self.partition(partition)?;
            let settings = &found.settings;
            (wish.targets, wish.hash) = (found.target_count(), settings.master_hash);
            // A directory with a placement of its own passes on the stripe and width that came with it.
            if from.placement.is_none() {
                wish.stripe = settings.stripe_of(name);
                (wish.width, wish.placement) = (settings.width, settings.placement);
            }
            local = self.positions_near(&found, near);
        }
        wish.local = &local;
        let layout = layout_for(ino, &wish).map_err(|text| FsError::with(Errno::EINVAL, text))?;
        Ok((self.avoiding_the_dead(layout)?, wish.placement))
    }

    /// Returns a new file's layout without targets of nodes that are dead: writes to them fail until they are back, if
    /// ever.
    fn avoiding_the_dead(&self, layout: Layout) -> FsResult<Layout> {
        let dead = self.members.dead();
        if dead.is_empty() {
            return Ok(layout);
        }
        let targets = self.known_targets(layout.partition())?;
        let is_dead = |position: u16| {
            targets.get(usize::from(position)).is_some_and(|place| dead.contains(&place.node))
        };
        Ok(avoiding(&layout, is_dead))
    }

    /// Returns the positions of a partition's targets that are nearest to a target of the root partition: on its node,
    /// else on its host, else behind its switch; none if the partition has no such target.
    fn positions_near(&self, partition: &Partition, near: Option<TargetIndex>) -> Vec<u16> {
        let Some(own) = near.and_then(|target| self.map.target(target)).map(|place| place.node) else {
            return Vec::new();
        };
        let distances: Vec<Option<u8>> =
            partition.places(&self.map).iter().map(|place| self.distance(own, place.node)).collect();
        let nearest = distances.iter().flatten().min();
        // On another node, and all of them alike: none is to be preferred.
        if nearest.is_some_and(|nearest| *nearest > 0) && distances.iter().all(|one| one.as_ref() == nearest)
        {
            return Vec::new();
        }
        let places = (0..).zip(&distances);
        let is_nearest = |distance: &Option<u8>| distance.is_some() && distance.as_ref() == nearest;
        places.filter(|(_, distance)| is_nearest(distance)).map(|(position, _)| position).collect()
    }

    /// Returns the distance of two nodes; `None` if it is no shorter than to any other.
    fn distance(&self, own: NodeId, other: NodeId) -> Option<u8> {
        let host = |node: NodeId| self.map.nodes.get(usize::from(node.0)).map(|entry| &entry.host);
        let switch = |node: NodeId| self.switches.get(usize::from(node.0)).copied().flatten();
        if own == other {
            return Some(0);
        }
        if host(own).is_some_and(|own| !own.is_empty()) && host(own) == host(other) {
            return Some(1);
        }
        (switch(own).is_some() && switch(own) == switch(other)).then_some(2)
    }
}

fn unknown(id: PartitionId) -> FsError {
    FsError::with(Errno::ESTALE, format!("{id} is not known: the formation has none, or this node missed it"))
}

impl Node {
    /// Returns the subfile of a file on one of this node's targets.
    pub(crate) fn subfile(&self, ino: Ino, target: TargetIndex) -> FsResult<SubfileId> {
        match self.known_target(target) {
            Some(place) if place.node == self.id => Ok(SubfileId { volume: place.volume, ino, target }),
            _ => Err(FsError::with(Errno::ESTALE, format!("target {target} is not on {}", self.id))),
        }
    }

    /// Returns the header of a new subfile.
    pub(crate) fn spec(&self, layout: Layout) -> FsResult<Spec<'_>> {
        let targets = self.known_targets(layout.partition())?;
        // The layout is a client's word: subfiles would be made where no home looks for them.
        if usize::from(layout.targets) != targets.len() {
            let text = format!(
                "layout {layout} is not of {}, which has {} targets",
                layout.partition(),
                targets.len()
            );
            return Err(FsError::with(Errno::EINVAL, text));
        }
        Ok(Spec { layout, targets })
    }

    /// Returns whether a partition stands in front of site storage.
    pub(crate) fn is_bound(&self, partition: PartitionId) -> bool {
        self.bound_dir(partition).is_some()
    }

    /// Refuses new files and content in a partition that takes none.
    ///
    /// # Errors
    /// `EROFS`.
    pub(crate) fn check_content_permitted(&self, partition: PartitionId) -> FsResult<()> {
        match partition {
            PartitionId::ROOT => Ok(()),
            id => self.partitions.get(id).map_or(Ok(()), |known| known.settings.check_content_permitted()),
        }
    }

    /// Returns whether names of a partition are brought from its source. Nothing more is brought of a link that is
    /// being removed.
    pub(crate) fn brings_names(&self, partition: PartitionId) -> bool {
        self.has_source(partition, |source| !source.is_detached())
    }

    /// Returns whether names at a partition's source change while it is used.
    pub(crate) fn changes_there(&self, partition: PartitionId) -> bool {
        self.has_source(partition, bivouac_types::Source::is_link)
    }

    fn has_source(&self, partition: PartitionId, is_so: impl Fn(&bivouac_types::Source) -> bool) -> bool {
        let known = if partition == PartitionId::ROOT { None } else { self.partitions.get(partition) };
        known.is_some_and(|known| known.settings.source.as_ref().is_some_and(is_so))
    }

    /// Returns the directory of a partition that stands in front of site storage.
    pub(crate) fn bound_dir(&self, partition: PartitionId) -> Option<Ino> {
        if partition == PartitionId::ROOT {
            return None;
        }
        let known = self.partitions.get(partition)?;
        known.settings.source.as_ref().map(|_| known.dir)
    }

    /// Returns whether deletions in a partition go to its source.
    pub(crate) fn mirrors(&self, partition: PartitionId) -> bool {
        let known = self.partitions.get(partition);
        known.is_some_and(|known| {
            known.settings.source.is_some() && known.settings.mirror_deletes == MirrorDeletes::Yes
        })
    }
}

/// The header of a new subfile, with the targets that it may name.
pub(crate) struct Spec<'a> {
    layout: Layout,
    targets: Targets<'a>,
}

impl Spec<'_> {
    /// Returns the specification in the store's form.
    pub(crate) fn get(&self) -> SubfileSpec<'_> {
        let placement = if self.layout.width == 1 { Placement::Hashed } else { Placement::Striped };
        SubfileSpec { layout: self.layout, placement, targets: &self.targets }
    }
}
