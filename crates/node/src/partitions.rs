//! Partitions as this node knows them. The *keeper*, the home of the root directory, knows all of them, and makes and
//! changes them; nodes with seats of a partition are told before it can have files, so that steps of the peer lane
//! never have to ask; the others ask the keeper when they first need one.

use std::ops::ControlFlow;
use std::sync::Arc;

use bivouac_layout::{Wish, layout_for};
use bivouac_ranks::{Mutex, RwLock, rank};
use bivouac_store::Records;
use bivouac_types::limits::PARTITIONS_MAX;
use bivouac_types::{
    Errno, FsError, FsResult, Ino, Layout, MasterHash, NodeId, PartitionId, Placement, SeatIndex, Slot,
};
use bivouac_wire::{
    Decode, FormationMap, Inherited, ListPartitionsRequest, Partition, PartitionTable, SeatEntry, op,
};

use crate::dispatch::SYSTEM;
use crate::node::Node;
use crate::peers::Steps;
use crate::record::table;

/// The partitions that a node knows.
pub struct Partitions {
    /// Slot of their records.
    pub slot: Slot,
    table: RwLock<PartitionTable>,
    /// The last number that was given to one that is being made.
    last: Mutex<PartitionId>,
}

/// The seats of a partition, in their order.
pub enum Seats<'a> {
    /// All of the formation.
    Root(&'a [SeatEntry]),
    /// Some of them.
    Of(Arc<[SeatEntry]>),
}

impl std::ops::Deref for Seats<'_> {
    type Target = [SeatEntry];

    fn deref(&self) -> &[SeatEntry] {
        match self {
            Seats::Root(seats) => seats,
            Seats::Of(seats) => seats,
        }
    }
}

impl Partitions {
    /// Those that an earlier daemon knew.
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
        let last = known.all().last().map_or(PartitionId::ROOT, |partition| partition.id);
        Ok(Partitions {
            slot,
            table: RwLock::new(rank::PARTITION_TABLE, known),
            last: Mutex::new(rank::LEAF, last),
        })
    }

    /// A number that no partition had. Only the keeper knows which those are.
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

    /// What is known of a partition.
    pub fn get(&self, id: PartitionId) -> Option<Arc<Partition>> {
        self.table.read().get(id).cloned()
    }

    /// Whether none is known besides the root partition, so that nothing can be at site storage.
    pub fn is_empty(&self) -> bool {
        self.table.read().is_empty()
    }

    /// All that are known, in the order of their numbers.
    pub fn all(&self) -> Vec<Arc<Partition>> {
        self.table.read().all()
    }
}

impl Node {
    /// The node that knows all partitions.
    pub(crate) fn keeper(&self) -> FsResult<NodeId> {
        self.home_of(Ino::ROOT)
    }

    /// Takes in what there is to know of a partition.
    pub(crate) fn learn(&self, partition: Partition) {
        let id = partition.id;
        if !self.partitions.table.write().learn(&self.map, partition) {
            return;
        }
        self.limit_partition(id);
    }

    /// Limits what the partitions may take of this node's volumes, as far as they are known.
    pub(crate) fn limit_partitions(&self) {
        self.partitions.all().iter().for_each(|partition| self.limit_partition(partition.id));
    }

    fn limit_partition(&self, id: PartitionId) {
        let Some(partition) = self.partitions.get(id) else { return };
        let own = partition.places(&self.map).into_iter().filter(|place| place.node == self.id);
        for place in own {
            if let Err(error) = self.data.limit_part(place.volume, id, partition.seat_capacity()) {
                log::error!(why:% = error; "{id} is not limited on this node");
            }
        }
    }

    /// A partition; the keeper is asked if need be, so not from the peer lane.
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
            let list = self.step::<op::ListPartitions>(keeper, Steps::question(SYSTEM), 0, request)?;
            list.partitions.into_iter().for_each(|partition| self.learn(partition));
        }
        self.partitions.get(id).ok_or_else(|| unknown(id))
    }

    /// Node and volume of a seat; the keeper is asked if need be, so not from the peer lane.
    ///
    /// # Errors
    /// `ESTALE` for a seat that the formation does not have, `EIO` when the keeper does not answer.
    pub(crate) fn seat_place(&self, seat: SeatIndex) -> FsResult<SeatEntry> {
        if let Some(place) = self.known_seat(seat) {
            return Ok(place);
        }
        if seat.partition() != PartitionId::ROOT {
            self.partition(seat.partition())?;
        }
        self.known_seat(seat).ok_or_else(|| {
            FsError::with(Errno::ESTALE, format!("the formation has no seat {seat}: get the map again"))
        })
    }

    /// Node and volume of a seat, without asking.
    pub(crate) fn known_seat(&self, seat: SeatIndex) -> Option<SeatEntry> {
        match seat.partition() {
            PartitionId::ROOT => self.map.seat(seat),
            _ => self.partitions.table.read().seat(&self.map, seat),
        }
    }

    /// All seats of a partition, without asking.
    ///
    /// # Errors
    /// `ESTALE` when it is not known here.
    pub(crate) fn known_seats(&self, id: PartitionId) -> FsResult<Seats<'_>> {
        if id == PartitionId::ROOT {
            return Ok(Seats::Root(&self.map.seats));
        }
        let places = self.partitions.table.read().places(id).cloned();
        places.map(Seats::Of).ok_or_else(|| unknown(id))
    }

    /// Layout and placement of a new file in a directory that passes these on.
    ///
    /// # Errors
    /// `EINVAL` for a layout that cannot be; as [`Node::partition`].
    pub(crate) fn new_layout(
        &self,
        ino: Ino,
        from: &Inherited,
        name: &[u8],
        near: Option<SeatIndex>,
    ) -> FsResult<(Layout, Placement)> {
        let Layout { stripe, width, seats, .. } = from.layout;
        let (partition, placement) = (from.layout.partition(), from.placement.unwrap_or_default());
        let mut wish =
            Wish { partition, stripe, width, seats, placement, hash: MasterHash::Xxh3, name, local: &[] };
        let mut local: Vec<u16> = near.map(SeatIndex::position).into_iter().collect();
        if partition != PartitionId::ROOT {
            let found = self.partition(partition)?;
            let settings = &found.settings;
            (wish.seats, wish.hash) = (found.seat_count(), settings.master_hash);
            if from.placement.is_none() {
                wish.stripe = settings.stripe_of(name);
                (wish.width, wish.placement) = (settings.width, settings.placement);
            }
            local = self.positions_near(&found, near);
        }
        wish.local = &local;
        let layout = layout_for(ino, &wish).map_err(|text| FsError::with(Errno::EINVAL, text))?;
        Ok((layout, wish.placement))
    }

    /// Positions of a partition's seats that are nearest to a seat of the root partition: on its node, else on its
    /// host, else behind its switch; none if the partition has no such seat.
    fn positions_near(&self, partition: &Partition, near: Option<SeatIndex>) -> Vec<u16> {
        let Some(own) = near.and_then(|seat| self.map.seat(seat)).map(|place| place.node) else {
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

    /// How far a node is from another one; nothing if it is no nearer than any other.
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
