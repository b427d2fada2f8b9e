//! Derivation of the map of a formation whose state file is lost, from its volumes. Slots and targets of a new
//! formation are given to nodes by a rule ([`slot_to_node`], and volume by volume for targets), so only the number of
//! nodes and of targets has to be found; what is found is compared with every record's place.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bivouac_layout::{slot_to_node, targets_of};
use bivouac_node::record::{Inode, table};
use bivouac_store::Records;
use bivouac_types::limits::{NODES_MAX, SLOTS_DEFAULT, STRIPE_DEFAULT, TARGETS_MAX};
use bivouac_types::{Errno, FormationId, FsError, FsResult, NodeId, PartitionId, Slot, TargetIndex};
use bivouac_wire::{Decode, FormationMap, NodeEntry, TargetEntry};

use crate::volumes::OpenVolume;

/// Facts that the volumes have about their formation.
struct Evidence {
    slots: u16,
    /// Slots in which a node has inode records.
    used: Vec<(NodeId, Slot)>,
    /// Number of targets, from layouts.
    targets: Option<u16>,
    /// Nodes and volumes of targets, from headers.
    places: BTreeMap<TargetIndex, TargetEntry>,
    /// Nodes and volumes that were given.
    here: Vec<(NodeId, u16)>,
}

/// Returns the map that is consistent with the volumes.
pub(crate) fn derive_map(
    opened: &[OpenVolume],
    records: &[(NodeId, Records)],
    formation: FormationId,
) -> FsResult<FormationMap> {
    let evidence = Evidence::collect(opened, records, formation)?;
    let first = evidence.here.iter().map(|(node, _)| usize::from(node.0) + 1).max().unwrap_or(1);
    let fits = |count: &usize| evidence.fits(*count);
    // The smallest consistent count: more nodes would be empty.
    let count = (first..=NODES_MAX).find(fits).ok_or_else(|| {
        let text =
            "the volumes do not tell how many nodes the formation has: name the directory of its state too";
        FsError::with(Errno::EINVAL, text)
    })?;
    Ok(evidence.map(count, formation))
}

impl Evidence {
    fn collect(
        opened: &[OpenVolume],
        records: &[(NodeId, Records)],
        formation: FormationId,
    ) -> FsResult<Evidence> {
        let mut evidence = Evidence {
            slots: records.first().map_or(SLOTS_DEFAULT, |(_, records)| records.slots()),
            used: Vec::new(),
            targets: None,
            places: BTreeMap::new(),
            here: opened.iter().map(|opened| (opened.identity.node, opened.identity.index)).collect(),
        };
        records.iter().for_each(|(node, records)| evidence.look_at_records(*node, records));
        for OpenVolume { identity, volume } in opened {
            let subfiles = bivouac_store::Subfiles::new(volume.clone(), identity.index, formation);
            // One page of headers is enough evidence.
            for found in subfiles.page(None, 512)?.0 {
                if let Ok(header) = found.header {
                    // Layouts of other partitions have a subset of the targets, in an order of their own.
                    if header.layout.partition() != PartitionId::ROOT {
                        continue;
                    }
                    evidence.targets = evidence.targets.max(Some(header.layout.targets));
                    evidence.places.extend(targets_of(&header.layout).zip(header.places));
                }
            }
        }
        Ok(evidence)
    }

    fn look_at_records(&mut self, node: NodeId, records: &Records) {
        for slot in (0..records.slots()).map(Slot) {
            records.scan(slot, &table(b'I'), &table(b'I'), |_, value| {
                // A record that is misplaced tells nothing of whose slot this is; one that is not is enough.
                if let Ok(inode) = Inode::from_bytes(value)
                    && inode.attr.ino.slot() == slot
                {
                    self.used.push((node, slot));
                    // Layouts of other partitions have a subset of the targets.
                    let root =
                        Some(inode.attr.layout).filter(|layout| layout.partition() == PartitionId::ROOT);
                    self.targets = self.targets.max(root.map(|layout| layout.targets));
                }
                ControlFlow::Break(())
            });
        }
    }

    /// Returns whether this number of nodes is consistent with the volumes.
    fn fits(&self, count: usize) -> bool {
        let nodes = count as u16;
        let slots = self.used.iter().all(|(node, slot)| slot_to_node(*slot, self.slots, nodes) == *node);
        let targets = self.targets.is_none_or(|targets| {
            usize::from(targets).is_multiple_of(count) && {
                let per_node = targets / nodes;
                self.here.iter().all(|(_, volume)| *volume < per_node)
            }
        });
        // A wrong count would assign records to other nodes, so all evidence must agree.
        slots && targets && self.places.iter().all(|(target, place)| target_place(*target, nodes) == *place)
    }

    fn map(&self, count: usize, formation: FormationId) -> FormationMap {
        let nodes = count as u16;
        let volumes = self.here.iter().map(|(_, volume)| volume + 1).max().unwrap_or(1);
        let targets = self.targets.unwrap_or(nodes.saturating_mul(volumes)).min(TARGETS_MAX as u16);
        let entry = |id: usize| NodeEntry {
            host: format!("node {id}"),
            client_address: String::new(),
            peer_address: String::new(),
            unix_path: String::new(),
            epoch: 0,
        };
        FormationMap {
            version: 1,
            formation,
            name: String::new(),
            slots: (0..self.slots).map(|slot| slot_to_node(Slot(slot), self.slots, nodes)).collect(),
            nodes: (0..count).map(entry).collect(),
            targets: (0..targets).map(|target| target_place(TargetIndex(u32::from(target)), nodes)).collect(),
            stripe: STRIPE_DEFAULT,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: Vec::new(),
        }
    }
}

/// Returns the place of a target: round robin over the nodes, volume by volume.
fn target_place(target: TargetIndex, nodes: u16) -> TargetEntry {
    let (target, nodes) = (target.position(), nodes.max(1));
    TargetEntry { node: NodeId(target % nodes), volume: target / nodes }
}
