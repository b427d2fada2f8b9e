//! The versioned description of a formation that every node and client holds.

use bivouac_types::limits::{NODES_MAX, SLOTS_MAX, TARGETS_MAX};
use bivouac_types::{FormationId, Ino, NodeId, PartitionId, Slot, TargetIndex};

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
    /// Mirror epoch in which the node moved to that host; 0 if it was started there.
    pub epoch: u32,
}

impl NodeEntry {
    /// Returns the entry that takes the place of this one when the node is withdrawn: it has no address any more.
    #[must_use]
    pub fn withdrawn(&self) -> NodeEntry {
        NodeEntry {
            host: String::new(),
            client_address: String::new(),
            peer_address: String::new(),
            unix_path: String::new(),
            epoch: self.epoch.saturating_add(1),
        }
    }

    /// Returns true if the node is withdrawn: its host joined a running formation, and has left or was lost.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        // One that was never moved may be reached without an address, by a socket's path.
        self.epoch > 0 && self.client_address.is_empty()
    }
}

codec_struct!(NodeEntry { host, client_address, peer_address, unix_path, epoch });

/// One target: a volume of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetEntry {
    /// The node.
    pub node: NodeId,
    /// Position of the volume on the node.
    pub volume: u16,
}
codec_struct!(TargetEntry { node, volume });

/// The mirror of a node's volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorEntry {
    /// The node that keeps the replicas; none while the node's volumes are not mirrored.
    pub backup: Option<NodeId>,
    /// Raised whenever the backup changes or a daemon takes over from the replicas: who has an older one is cut off.
    pub epoch: u32,
}
codec_struct!(MirrorEntry { backup, epoch });

/// The map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormationMap {
    /// Raised by every change.
    pub version: u64,
    /// The formation.
    pub formation: FormationId,
    /// Its name.
    pub name: String,
    /// Node of each slot; the length is the number of slots, a power of two.
    pub slots: Vec<NodeId>,
    /// The nodes; position is the id. Those of hosts that joined a running formation come last: they have neither slots
    /// nor targets.
    pub nodes: Vec<NodeEntry>,
    /// The targets of the root partition, in order.
    pub targets: Vec<TargetEntry>,
    /// Stripe size of new files unless their directory says otherwise, in bytes.
    pub stripe: u32,
    /// Width of new files unless their directory says otherwise; 0 is all targets.
    pub width: u16,
    /// True if everything over TCP is encrypted.
    pub is_secure: bool,
    /// True if clients report what they access, so that races are found.
    pub detects_races: bool,
    /// The mirror of each node; empty if no node's volumes are mirrored.
    pub mirrors: Vec<MirrorEntry>,
}
codec_struct!(FormationMap {
    version,
    formation,
    name,
    slots,
    nodes,
    targets,
    stripe,
    width,
    is_secure,
    detects_races,
    mirrors
});

impl FormationMap {
    /// Checks that all references inside the map are valid.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let (slots, nodes, targets) = (self.slots.len(), self.nodes.len(), self.targets.len());
        if !slots.is_power_of_two() || slots > usize::from(SLOTS_MAX) {
            return Err(format!("map has {slots} slots, not a power of two up to {SLOTS_MAX}"));
        }
        if nodes == 0 || nodes > NODES_MAX {
            return Err(format!("map has {nodes} nodes, not 1 to {NODES_MAX}"));
        }
        if targets == 0 || targets > TARGETS_MAX {
            return Err(format!("map has {targets} targets, not 1 to {TARGETS_MAX}"));
        }
        self.check_mirrors()?;
        let used = self.slots.iter().copied().chain(self.targets.iter().map(|target| target.node));
        match used.max_by_key(|node| node.0) {
            Some(node) if usize::from(node.0) >= nodes => Err(format!("map names {node} of {nodes}")),
            _ => Ok(()),
        }
    }

    fn check_mirrors(&self) -> Result<(), String> {
        let (mirrors, nodes) = (self.mirrors.len(), self.nodes.len());
        if mirrors != 0 && mirrors != nodes {
            return Err(format!("map has {mirrors} mirrors of {nodes} nodes"));
        }
        for (node, mirror) in (0u16..).map(NodeId).zip(&self.mirrors) {
            match mirror.backup {
                Some(backup) if usize::from(backup.0) >= nodes => {
                    return Err(format!("map names {backup} of {nodes} as the backup of {node}"));
                }
                Some(backup) if backup == node => {
                    return Err(format!("map names {node} as the backup of itself"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the mirror of a node's volumes; `None` if they are not mirrored.
    #[must_use]
    pub fn mirror(&self, node: NodeId) -> Option<(NodeId, u32)> {
        let entry = self.mirrors.get(usize::from(node.0))?;
        Some((entry.backup?, entry.epoch))
    }

    /// Returns the number of nodes that have slots or targets, which are those that the formation began with. Any later
    /// one keeps replicas and serves mounts, and nothing else.
    #[must_use]
    pub fn content_count(&self) -> usize {
        let used = self.slots.iter().copied().chain(self.targets.iter().map(|target| target.node));
        used.map(|node| usize::from(node.0) + 1).max().unwrap_or(0)
    }

    /// Returns true if a node has slots or targets.
    #[must_use]
    pub fn has_content(&self, node: NodeId) -> bool {
        self.slots.contains(&node) || self.targets.iter().any(|target| target.node == node)
    }

    /// Returns true if a node is withdrawn: nobody asks it for anything, and nothing is lost with it.
    #[must_use]
    pub fn is_withdrawn(&self, node: NodeId) -> bool {
        self.nodes.get(usize::from(node.0)).is_some_and(NodeEntry::is_withdrawn)
    }

    /// Checks that this map may take the place of `former`: it is a later one of the same formation, in which nothing
    /// but mirrors and places of nodes has changed, each place with a later epoch, and nodes may have been added behind
    /// the others, which have neither slots nor targets.
    ///
    /// # Errors
    /// A sentence that names what is against it.
    pub fn check_succeeds(&self, former: &FormationMap) -> Result<(), String> {
        self.check()?;
        if self.formation != former.formation {
            return Err(format!("map is of another formation than '{}'", former.name));
        }
        if self.version <= former.version {
            return Err(format!("map has version {}, not above {}", self.version, former.version));
        }
        // A formation without mirrors has one map for life.
        let may_grow = !former.mirrors.is_empty() && self.nodes.len() > former.nodes.len();
        let is_of_them = self.nodes.len() == former.nodes.len() || may_grow;
        if !is_of_them || (&self.slots, &self.targets) != (&former.slots, &former.targets) {
            return Err("map has other nodes, slots or targets".into());
        }
        let entries = self.nodes.iter().zip(&former.nodes).zip((0..).map(NodeId));
        for ((entry, before), node) in entries {
            // A daemon that was cut off may listen at the former address still; the epoch fences it.
            let moved = entry.epoch > before.epoch;
            if entry != before && !moved {
                let (now, then) = (entry.epoch, before.epoch);
                return Err(format!(
                    "map has {node} in another place in epoch {now}, which it left in {then}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the nodes that this map has in another place than `former`, but for those that it adds.
    pub fn moved_since<'m>(&'m self, former: &'m FormationMap) -> impl Iterator<Item = NodeId> + 'm {
        // `check_succeeds` is asked first: by position, entries of two formations would be compared.
        assert!(self.nodes.len() >= former.nodes.len(), "a map is compared with a later one");
        let entries = (0..).map(NodeId).zip(self.nodes.iter().zip(&former.nodes));
        entries.filter(|(_, (entry, before))| entry.epoch > before.epoch).map(|(node, _)| node)
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slot_count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Returns the number of targets.
    #[must_use]
    pub fn target_count(&self) -> u16 {
        self.targets.len() as u16
    }

    /// Returns the node that holds a slot; `None` for a slot that the formation does not have.
    #[must_use]
    pub fn slot_node(&self, slot: Slot) -> Option<NodeId> {
        self.slots.get(usize::from(slot.0)).copied()
    }

    /// Returns the home of an inode; `None` for a number that is not of this formation.
    #[must_use]
    pub fn home(&self, ino: Ino) -> Option<NodeId> {
        self.slot_node(ino.slot())
    }

    /// Returns the node and volume of a target of the root partition; `None` for any other, which [`PartitionTable`]
    /// knows, and for one that the formation does not have.
    ///
    /// [`PartitionTable`]: crate::PartitionTable
    #[must_use]
    pub fn target(&self, target: TargetIndex) -> Option<TargetEntry> {
        let is_root = target.partition() == PartitionId::ROOT;
        self.targets.get(usize::from(target.position())).copied().filter(|_| is_root)
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
            epoch: 0,
        };
        FormationMap {
            version: 1,
            formation: FormationId([7; 16]),
            name: "demo".into(),
            slots: vec![NodeId(0), NodeId(1)],
            nodes: vec![node.clone(), node],
            targets: vec![
                TargetEntry { node: NodeId(0), volume: 0 },
                TargetEntry { node: NodeId(1), volume: 0 },
            ],
            stripe: 4096,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: Vec::new(),
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
    fn a_mirror_is_on_another_node_of_the_map() {
        let mirror = |backup| MirrorEntry { backup, epoch: 3 };
        let of = |mirrors| FormationMap { mirrors, ..map() };
        let good = of(vec![mirror(Some(NodeId(1))), mirror(None)]);
        assert_eq!(good.check(), Ok(()));
        assert_eq!(FormationMap::from_bytes(&good.to_bytes()), Ok(good.clone()));
        assert_eq!((good.mirror(NodeId(0)), good.mirror(NodeId(1))), (Some((NodeId(1), 3)), None));
        assert_eq!((map().mirror(NodeId(0)), good.mirror(NodeId(9))), (None, None));
        assert!(of(vec![mirror(None)]).check().unwrap_err().contains("1 mirrors of 2"));
        assert!(of(vec![mirror(Some(NodeId(2))), mirror(None)]).check().unwrap_err().contains("node 2"));
        assert!(of(vec![mirror(Some(NodeId(0))), mirror(None)]).check().unwrap_err().contains("itself"));
    }

    /// S812.
    #[test]
    fn only_a_later_map_succeeds_and_only_places_change() {
        let former = map();
        let mut later = FormationMap { version: 2, ..map() };
        assert_eq!(later.check_succeeds(&former), Ok(()));
        assert_eq!(later.moved_since(&former).count(), 0);
        assert!(former.check_succeeds(&later).unwrap_err().contains("version 1, not above 2"));
        assert!(later.check_succeeds(&later.clone()).is_err());
        later.nodes[1].client_address = "127.0.0.1:9".into();
        assert!(
            later.check_succeeds(&former).unwrap_err().contains("node 1"),
            "the epoch says that it moved"
        );
        later.nodes[1].epoch = 2;
        assert_eq!(later.check_succeeds(&former), Ok(()));
        assert_eq!(later.moved_since(&former).collect::<Vec<_>>(), [NodeId(1)]);
        let back = FormationMap { version: 3, ..map() };
        assert!(back.check_succeeds(&later).unwrap_err().contains("node 1"));
        let other = FormationMap { version: 3, slots: vec![NodeId(1), NodeId(1)], ..later.clone() };
        assert!(other.check_succeeds(&later).unwrap_err().contains("slots"));
        let alien = FormationMap { version: 3, formation: FormationId([8; 16]), ..later.clone() };
        assert!(alien.check_succeeds(&later).unwrap_err().contains("another formation"));
    }

    /// S850: nodes of hosts that join, and of such that have gone.
    #[test]
    fn nodes_are_added_behind_the_others_and_withdrawn() {
        let mirrors = |count: usize| vec![MirrorEntry { backup: None, epoch: 0 }; count];
        let former = FormationMap { mirrors: mirrors(2), ..map() };
        let mut grown = FormationMap { version: 2, mirrors: mirrors(3), ..map() };
        grown.nodes.push(NodeEntry { host: "n3".into(), ..map().nodes[0].clone() });
        assert_eq!(grown.check_succeeds(&former), Ok(()));
        assert_eq!(grown.moved_since(&former).count(), 0);
        assert_eq!((grown.content_count(), former.content_count()), (2, 2));
        assert!(grown.has_content(NodeId(1)) && !grown.has_content(NodeId(2)));
        let shorter = FormationMap { version: 3, ..former.clone() };
        assert!(shorter.check_succeeds(&grown).unwrap_err().contains("other nodes"));
        let mut unprotected = grown.clone();
        unprotected.mirrors.clear();
        assert!(unprotected.check_succeeds(&map()).unwrap_err().contains("other nodes"));
        let mut owns = grown.clone();
        owns.slots[1] = NodeId(2);
        assert!(owns.check_succeeds(&former).unwrap_err().contains("slots"));
        let mut gone = FormationMap { version: 3, ..grown.clone() };
        gone.nodes[2] = grown.nodes[2].withdrawn();
        assert_eq!(gone.check_succeeds(&grown), Ok(()));
        assert_eq!(gone.moved_since(&grown).collect::<Vec<_>>(), [NodeId(2)]);
        assert!(gone.is_withdrawn(NodeId(2)) && !gone.is_withdrawn(NodeId(1)));
    }

    #[test]
    fn a_map_that_leads_nowhere_is_refused() {
        let mut bad = map();
        bad.targets[1].node = NodeId(2);
        assert!(bad.check().unwrap_err().contains("node 2"));
        bad = map();
        bad.slots.push(NodeId(0));
        assert!(bad.check().unwrap_err().contains("3 slots"));
        bad = map();
        bad.nodes.clear();
        assert!(bad.check().is_err());
    }
}
