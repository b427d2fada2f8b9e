//! The versioned description of a formation that every node and client holds.

use bivouac_types::limits::{NODES_MAX, SEATS_MAX, SLOTS_MAX};
use bivouac_types::{FormationId, Ino, NodeId, PartitionId, SeatIndex, Slot};

use crate::codec_struct;

/// One node of the formation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Host name.
    pub host: String,
    /// `address:port` of the client lane.
    pub client_address: String,
    /// `address:port` of the peer lane.
    pub peer_address: String,
    /// Path of the Unix socket of the client lane on that host; empty when there is none.
    pub unix_path: String,
}
codec_struct!(NodeEntry { host, client_address, peer_address, unix_path });

/// One seat: a volume of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatEntry {
    /// The node.
    pub node: NodeId,
    /// Position of the volume on the node.
    pub volume: u16,
}
codec_struct!(SeatEntry { node, volume });

/// The map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormationMap {
    /// Raised by every change.
    pub version: u64,
    /// Which formation this is.
    pub formation: FormationId,
    /// Its name.
    pub name: String,
    /// Node of each slot; the length is the number of slots, a power of two.
    pub slots: Vec<NodeId>,
    /// The nodes; position is the id.
    pub nodes: Vec<NodeEntry>,
    /// The seats of the root partition, in order.
    pub seats: Vec<SeatEntry>,
    /// Stripe size of new files unless their directory says otherwise, in bytes.
    pub stripe: u32,
    /// Width of new files unless their directory says otherwise; 0 is all seats.
    pub width: u16,
    /// Whether all that goes over TCP is encrypted.
    pub is_secure: bool,
}
codec_struct!(FormationMap { version, formation, name, slots, nodes, seats, stripe, width, is_secure });

impl FormationMap {
    /// Whether every reference inside the map leads somewhere.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let (slots, nodes, seats) = (self.slots.len(), self.nodes.len(), self.seats.len());
        if !slots.is_power_of_two() || slots > usize::from(SLOTS_MAX) {
            return Err(format!("map has {slots} slots, not a power of two up to {SLOTS_MAX}"));
        }
        if nodes == 0 || nodes > NODES_MAX {
            return Err(format!("map has {nodes} nodes, not 1 to {NODES_MAX}"));
        }
        if seats == 0 || seats > SEATS_MAX {
            return Err(format!("map has {seats} seats, not 1 to {SEATS_MAX}"));
        }
        let used = self.slots.iter().copied().chain(self.seats.iter().map(|seat| seat.node));
        match used.max_by_key(|node| node.0) {
            Some(node) if usize::from(node.0) >= nodes => Err(format!("map names {node} of {nodes}")),
            _ => Ok(()),
        }
    }

    /// Number of slots.
    #[must_use]
    pub fn slot_count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Number of seats.
    #[must_use]
    pub fn seat_count(&self) -> u16 {
        self.seats.len() as u16
    }

    /// The node that holds a slot; `None` for a slot that the formation does not have.
    #[must_use]
    pub fn slot_node(&self, slot: Slot) -> Option<NodeId> {
        self.slots.get(usize::from(slot.0)).copied()
    }

    /// The home of an inode; `None` for a number that is not of this formation.
    #[must_use]
    pub fn home(&self, ino: Ino) -> Option<NodeId> {
        self.slot_node(ino.slot())
    }

    /// Node and volume of a seat of the root partition; `None` for any other, which [`PartitionTable`] knows, and for one
    /// that the formation does not have.
    ///
    /// [`PartitionTable`]: crate::PartitionTable
    #[must_use]
    pub fn seat(&self, seat: SeatIndex) -> Option<SeatEntry> {
        let is_root = seat.partition() == PartitionId::ROOT;
        self.seats.get(usize::from(seat.position())).copied().filter(|_| is_root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, Encode};

    fn map() -> FormationMap {
        let node = NodeEntry {
            host: "h".into(),
            client_address: "127.0.0.1:1".into(),
            peer_address: "127.0.0.1:2".into(),
            unix_path: String::new(),
        };
        FormationMap {
            version: 1,
            formation: FormationId([7; 16]),
            name: "demo".into(),
            slots: vec![NodeId(0), NodeId(1)],
            nodes: vec![node.clone(), node],
            seats: vec![SeatEntry { node: NodeId(0), volume: 0 }, SeatEntry { node: NodeId(1), volume: 0 }],
            stripe: 4096,
            width: 0,
            is_secure: false,
        }
    }

    #[test]
    fn a_map_travels() {
        assert_eq!(FormationMap::from_bytes(&map().to_bytes()), Ok(map()));
        assert_eq!(map().home(Ino::ROOT), Some(NodeId(0)));
        assert_eq!(map().home(Ino(u64::MAX)), None);
        assert_eq!(map().check(), Ok(()));
    }

    #[test]
    fn a_map_that_leads_nowhere_is_refused() {
        let mut bad = map();
        bad.seats[1].node = NodeId(2);
        assert!(bad.check().unwrap_err().contains("node 2"));
        bad = map();
        bad.slots.push(NodeId(0));
        assert!(bad.check().unwrap_err().contains("3 slots"));
        bad = map();
        bad.nodes.clear();
        assert!(bad.check().is_err());
    }
}
