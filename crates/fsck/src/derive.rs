//! The map of a formation whose state file is gone, from what its volumes say. Slots and seats of a new formation
//! are given to nodes by a rule ([`slot_to_node`], and volume by volume for seats), so only the number of nodes and of
//! seats has to be found; what is found is compared with every record's place.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bivouac_layout::{seats_of, slot_to_node};
use bivouac_node::record::{Inode, table};
use bivouac_store::Records;
use bivouac_types::limits::{NODES_MAX, SEATS_MAX, SLOTS_DEFAULT, STRIPE_DEFAULT};
use bivouac_types::{Errno, FormationId, FsError, FsResult, NodeId, PartitionId, SeatIndex, Slot};
use bivouac_wire::{Decode, FormationMap, NodeEntry, SeatEntry};

use crate::offline::Opened;

/// What the volumes say of their formation.
struct Evidence {
    slots: u16,
    /// Slots in which a node has records of inodes.
    used: Vec<(NodeId, Slot)>,
    /// Number of seats, as layouts say it.
    seats: Option<u16>,
    /// Seats and their places, as headers say it.
    places: BTreeMap<SeatIndex, SeatEntry>,
    /// Nodes and volumes that are there.
    here: Vec<(NodeId, u16)>,
}

/// The map that explains what is on the volumes.
pub(crate) fn derive_map(
    opened: &[Opened],
    records: &[(NodeId, Records)],
    formation: FormationId,
) -> FsResult<FormationMap> {
    let evidence = Evidence::collect(opened, records, formation)?;
    let first = evidence.here.iter().map(|(node, _)| usize::from(node.0) + 1).max().unwrap_or(1);
    let fits = |count: &usize| evidence.fits(*count);
    let count = (first..=NODES_MAX).find(fits).ok_or_else(|| {
        let text =
            "the volumes do not tell how many nodes the formation has: name the directory of its state too";
        FsError::with(Errno::EINVAL, text)
    })?;
    Ok(evidence.map(count, formation))
}

impl Evidence {
    fn collect(
        opened: &[Opened],
        records: &[(NodeId, Records)],
        formation: FormationId,
    ) -> FsResult<Evidence> {
        let mut evidence = Evidence {
            slots: records.first().map_or(SLOTS_DEFAULT, |(_, records)| records.slots()),
            used: Vec::new(),
            seats: None,
            places: BTreeMap::new(),
            here: opened.iter().map(|opened| (opened.identity.node, opened.identity.index)).collect(),
        };
        records.iter().for_each(|(node, records)| evidence.look_at_records(*node, records));
        for Opened { identity, volume } in opened {
            let subfiles = bivouac_store::Subfiles::new(volume.clone(), identity.index, formation);
            // A page of them says as much as all.
            for found in subfiles.page(None, 512)?.0 {
                if let Ok(header) = found.header {
                    // Other partitions have some of the seats, in an order of their own.
                    if header.layout.partition() != PartitionId::ROOT {
                        continue;
                    }
                    evidence.seats = evidence.seats.max(Some(header.layout.seats));
                    evidence.places.extend(seats_of(&header.layout).zip(header.places));
                }
            }
        }
        Ok(evidence)
    }

    fn look_at_records(&mut self, node: NodeId, records: &Records) {
        for slot in (0..records.slots()).map(Slot) {
            records.scan(slot, &table(b'I'), &table(b'I'), |_, value| {
                if let Ok(inode) = Inode::from_bytes(value)
                    && inode.attr.ino.slot() == slot
                {
                    self.used.push((node, slot));
                    // Other partitions have some of the seats only.
                    let root =
                        Some(inode.attr.layout).filter(|layout| layout.partition() == PartitionId::ROOT);
                    self.seats = self.seats.max(root.map(|layout| layout.seats));
                }
                ControlFlow::Break(())
            });
        }
    }

    /// Whether so many nodes explain everything.
    fn fits(&self, count: usize) -> bool {
        let nodes = count as u16;
        let slots = self.used.iter().all(|(node, slot)| slot_to_node(*slot, self.slots, nodes) == *node);
        let seats = self.seats.is_none_or(|seats| {
            usize::from(seats).is_multiple_of(count) && {
                let per_node = seats / nodes;
                self.here.iter().all(|(_, volume)| *volume < per_node)
            }
        });
        slots && seats && self.places.iter().all(|(seat, place)| seat_place(*seat, nodes) == *place)
    }

    fn map(&self, count: usize, formation: FormationId) -> FormationMap {
        let nodes = count as u16;
        let volumes = self.here.iter().map(|(_, volume)| volume + 1).max().unwrap_or(1);
        let seats = self.seats.unwrap_or(nodes.saturating_mul(volumes)).min(SEATS_MAX as u16);
        let entry = |id: usize| NodeEntry {
            host: format!("node {id}"),
            client_address: String::new(),
            peer_address: String::new(),
            unix_path: String::new(),
        };
        FormationMap {
            version: 1,
            formation,
            name: String::new(),
            slots: (0..self.slots).map(|slot| slot_to_node(Slot(slot), self.slots, nodes)).collect(),
            nodes: (0..count).map(entry).collect(),
            seats: (0..seats).map(|seat| seat_place(SeatIndex(u32::from(seat)), nodes)).collect(),
            stripe: STRIPE_DEFAULT,
            width: 0,
            is_secure: false,
        }
    }
}

/// Seats go round over the nodes, volume by volume.
fn seat_place(seat: SeatIndex, nodes: u16) -> SeatEntry {
    let (seat, nodes) = (seat.position(), nodes.max(1));
    SeatEntry { node: NodeId(seat % nodes), volume: seat / nodes }
}
