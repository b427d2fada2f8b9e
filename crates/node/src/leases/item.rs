//! What a lease is of.

use bivouac_layout::entry_hash;
use bivouac_types::{Ino, Slot};
use bivouac_wire::Invalidation;

/// What a client may cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Everything in a slot. Its holders are not asked: a change of what is not named waits for all leases there.
    Slot(Slot),
    /// The same, and that there are no other names in a directory than those that it was told.
    Whole(Slot),
    /// The attributes of an inode.
    Attrs(Ino),
    /// A name with this hash in a directory, whose entry is, or would be, in this slot.
    Name { slot: Slot, dir: Ino, hash: u64 },
}

impl Item {
    /// A name in a directory, whose entry is, or would be, in this slot.
    pub fn of_name(slot: Slot, dir: Ino, name: &[u8]) -> Item {
        Item::Name { slot, dir, hash: entry_hash(dir, name) }
    }

    /// The slot that it is in.
    pub(super) fn slot(self) -> Slot {
        match self {
            Item::Slot(slot) | Item::Whole(slot) | Item::Name { slot, .. } => slot,
            Item::Attrs(ino) => ino.slot(),
        }
    }

    /// Whether it is everything in its slot.
    pub(super) fn is_all(self) -> bool {
        matches!(self, Item::Slot(_) | Item::Whole(_))
    }

    /// What tells it from others of its slot, well mixed. Two with one key are taken for the same.
    pub(super) fn key(self) -> u64 {
        self.invalidation().map_or(0, |named| named.key())
    }

    /// What its holders are asked to cache no more.
    pub(super) fn invalidation(self) -> Option<Invalidation> {
        match self {
            Item::Slot(_) | Item::Whole(_) => None,
            Item::Attrs(ino) => Some(Invalidation { ino, name: None }),
            Item::Name { dir, hash, .. } => Some(Invalidation { ino: dir, name: Some(hash) }),
        }
    }
}
