//! What a lease is of.

use bivouac_types::{Ino, Slot};

/// Subject of a lease: something that a client may cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Everything in a slot. Its holders are not asked: a change of what is not named waits for all leases there.
    Slot(Slot),
    /// The same, and that there are no other names in a directory than those that it was told.
    Whole(Slot),
    /// The attributes of an inode.
    Attrs(Ino),
    /// A name in a directory.
    Name {
        /// The slot that its entry is in, or would be.
        slot: Slot,
        /// The directory.
        dir: Ino,
        /// The hash of the name.
        hash: u64,
    },
}

impl Item {
    /// Returns the slot that it is in.
    #[must_use]
    pub fn slot(self) -> Slot {
        match self {
            Item::Slot(slot) | Item::Whole(slot) | Item::Name { slot, .. } => slot,
            Item::Attrs(ino) => ino.slot(),
        }
    }

    /// Returns true if it is everything in its slot.
    #[must_use]
    pub fn is_all(self) -> bool {
        matches!(self, Item::Slot(_) | Item::Whole(_))
    }

    /// Returns what tells it from others of its slot. Two with one key are taken for the same.
    #[must_use]
    pub fn key(self) -> u64 {
        match self {
            Item::Slot(_) | Item::Whole(_) => 0,
            Item::Attrs(ino) => ino.cache_key(None),
            Item::Name { dir, hash, .. } => dir.cache_key(Some(hash)),
        }
    }
}
