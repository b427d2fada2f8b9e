//! Identifiers. Each is a newtype, so that a slot is never taken for a node.

use std::fmt;

use crate::limits::{INO_ALLOCATOR_BITS, INO_COUNTER_BITS, INO_SLOT_BITS, OPEN_COUNTER_BITS};

/// A shard of the metadata. The map gives each slot a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u16);

/// Position of a node in the formation's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u16);

/// A partition of the formation. Numbers are never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId(pub u16);

impl PartitionId {
    /// The partition of everything that is in no other: its targets are all targets of the map.
    pub const ROOT: PartitionId = PartitionId(0);
}

/// A target: partition (16 bits), position in its ordered list (16 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetIndex(pub u32);

impl TargetIndex {
    /// Puts a target together.
    #[must_use]
    pub const fn new(partition: PartitionId, position: u16) -> TargetIndex {
        TargetIndex((partition.0 as u32) << 16 | position as u32)
    }

    /// Returns the partition whose target it is.
    #[must_use]
    pub const fn partition(self) -> PartitionId {
        PartitionId((self.0 >> 16) as u16)
    }

    /// Returns the position in the partition's list.
    #[must_use]
    pub const fn position(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}", self.0)
    }
}

impl fmt::Display for TargetIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition() {
            PartitionId::ROOT => write!(f, "{}", self.position()),
            PartitionId(partition) => write!(f, "{partition}.{}", self.position()),
        }
    }
}

/// One client of a formation: a mount, a library instance, a tool. Stable over reconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

impl ClientId {
    /// Set in the number of a node that is a client of its peers.
    pub const PEER_BIT: u64 = 1 << 63;
    /// Bits of a mount's number that hold which of its node's mounts it is; above them are 16 that hold the node.
    const MOUNT_BITS: u32 = 32;

    /// Returns a mount's number: the same after a restart of its daemon, and no other client's.
    #[must_use]
    pub fn of_mount(formation: FormationId, node: NodeId, mount: u32) -> ClientId {
        let id = ClientId(salt(formation) | u64::from(node.0) << Self::MOUNT_BITS | u64::from(mount));
        // Homes ask that node whether the mount lives.
        assert!(
            id.mounted_through(formation) == Some(node),
            "mount {mount} of {node} seems to be at another node"
        );
        id
    }

    /// Returns the number of a process that is no mount, from random bits.
    #[must_use]
    pub fn of_process(formation: FormationId, random: u64) -> ClientId {
        let id = ClientId(random & !Self::PEER_BIT);
        // Homes take the word of a mount's node for whether the mount lives; nobody answers for a process.
        let is_like_a_mount = id.mounted_through(formation).is_some();
        let id = if is_like_a_mount { ClientId(id.0 ^ Self::PEER_BIT >> 1) } else { id };
        assert!(id.mounted_through(formation).is_none(), "a process has the number of a mount");
        id
    }

    /// Returns a second id of such a process, for its cache, so that it is called back for its own changes too.
    #[must_use]
    pub fn of_cache(self) -> ClientId {
        // A bit below the prefix by which mounts are told from processes, so that it stays none.
        ClientId(self.0 ^ 1 << 47)
    }

    /// Returns the node that serves the client, if it is a mount.
    #[must_use]
    pub fn mounted_through(self, formation: FormationId) -> Option<NodeId> {
        const SALT: u64 = !(u64::MAX >> 16);
        (self.0 & SALT == salt(formation)).then_some(NodeId((self.0 >> Self::MOUNT_BITS) as u16))
    }
}

/// Returns the prefix of the ids of a formation's mounts.
fn salt(formation: FormationId) -> u64 {
    let [a, b, ..] = formation.0;
    !ClientId::PEER_BIT & u64::from(u16::from_le_bytes([a, b])) << 48
}

/// One operation of a client; a retried operation keeps its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// One open of a file by a client. Numbers rise, and those of a later process of the client are above all
/// numbers of the earlier ones. Those of opens for writing are odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

impl OpenId {
    /// Distance from one even number to the next.
    pub const STEP: u64 = 2;

    /// Returns the first number of a client's process, of which there were `incarnation` before.
    #[must_use]
    pub fn first(incarnation: u32) -> OpenId {
        OpenId(u64::from(incarnation) << OPEN_COUNTER_BITS)
    }

    /// Returns this number, which is even, or the one for an open for writing.
    #[must_use]
    pub fn for_access(self, writes: bool) -> OpenId {
        assert!(self.0.is_multiple_of(Self::STEP), "the last bit of an open's number says what it is for");
        OpenId(self.0 | u64::from(writes))
    }

    /// Returns whether the file is open for writing.
    #[must_use]
    pub fn is_for_writing(self) -> bool {
        !self.0.is_multiple_of(Self::STEP)
    }

    /// Returns the first number of the process that this number belongs to.
    #[must_use]
    pub fn first_of_process(self) -> OpenId {
        OpenId(self.0 >> OPEN_COUNTER_BITS << OPEN_COUNTER_BITS)
    }
}

/// 128 random bits that tell one formation from every other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FormationId(pub [u8; 16]);

impl fmt::Debug for FormationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FormationId({self})")
    }
}

impl fmt::Display for FormationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Inode number: slot (12 bits), allocating node (12 bits), counter (40 bits).
///
/// The slot's node is the inode's home. The allocating node is part of the number, so that any
/// node can allocate an inode in any slot without asking: numbers are never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory. Equal to the kernel's `FUSE_ROOT_ID` by construction.
    pub const ROOT: Ino = Ino(1);

    /// Returns what tells the attributes of this inode, or a name in this directory by its hash, from others among what
    /// is cached; well mixed. Two with one key are taken for the same.
    #[must_use]
    pub fn cache_key(self, name: Option<u64>) -> u64 {
        // Never zero, which stands for the attributes.
        let salt = name.map_or(0, |hash| hash | 1);
        (self.0.rotate_left(32) ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Puts an inode number together. Bits of `counter` above 40 are cut off.
    #[must_use]
    pub fn new(slot: Slot, allocator: NodeId, counter: u64) -> Ino {
        let slot = u64::from(slot.0) & ((1 << INO_SLOT_BITS) - 1);
        let allocator = u64::from(allocator.0) & ((1 << INO_ALLOCATOR_BITS) - 1);
        let counter = counter & ((1 << INO_COUNTER_BITS) - 1);
        Ino(slot << (INO_ALLOCATOR_BITS + INO_COUNTER_BITS) | allocator << INO_COUNTER_BITS | counter)
    }

    /// Returns the slot that holds the inode's record.
    #[must_use]
    pub fn slot(self) -> Slot {
        Slot((self.0 >> (INO_ALLOCATOR_BITS + INO_COUNTER_BITS)) as u16)
    }

    /// Returns the counter part, unique within (slot, allocating node).
    #[must_use]
    pub fn counter(self) -> u64 {
        self.0 & ((1 << INO_COUNTER_BITS) - 1)
    }

    /// Returns the node that allocated the number.
    #[must_use]
    pub fn allocator(self) -> NodeId {
        NodeId(((self.0 >> INO_COUNTER_BITS) & ((1 << INO_ALLOCATOR_BITS) - 1)) as u16)
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ino({self})")
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_told_apart_and_from_nodes_and_say_their_node() {
        let formation = FormationId([0xff; 16]);
        let all = [(0, 1), (0, 2), (1, 1), (4095, u32::MAX)];
        let numbers = all.map(|(node, mount)| ClientId::of_mount(formation, NodeId(node), mount));
        assert!(numbers.iter().all(|number| number.0 & ClientId::PEER_BIT == 0));
        let apart: std::collections::BTreeSet<ClientId> = numbers.into_iter().collect();
        assert_eq!(apart.len(), all.len());
        for ((node, _), number) in all.iter().zip(&numbers) {
            assert_eq!(number.mounted_through(formation), Some(NodeId(*node)));
            assert_eq!(number.mounted_through(FormationId([0; 16])), None);
        }
    }

    #[test]
    fn ino_parts_come_apart_as_they_were_put_together() {
        for (slot, node, counter) in [(0, 0, 1), (4095, 4095, (1 << 40) - 1), (1023, 7, 123_456)] {
            let ino = Ino::new(Slot(slot), NodeId(node), counter);
            assert_eq!((ino.slot(), ino.allocator(), ino.counter()), (Slot(slot), NodeId(node), counter));
        }
    }

    #[test]
    fn opens_of_a_later_process_are_above_those_of_the_earlier() {
        let early = OpenId(OpenId::first(3).0 + 1_000_000);
        assert!(early > OpenId::first(3) && early < OpenId::first(4));
        assert_eq!(early.first_of_process(), OpenId::first(3));
    }

    #[test]
    fn the_root_is_counter_one_of_slot_zero() {
        assert_eq!(Ino::new(Slot(0), NodeId(0), 1), Ino::ROOT);
        assert_eq!(Ino::ROOT.to_string(), "0000000000000001");
    }
}
