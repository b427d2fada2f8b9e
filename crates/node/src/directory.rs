//! Directories as their entries see them. A *compact* directory has all of its entries in its own slot, and is
//! counted in its inode. A *spread* one has each entry in the slot of the entry's hash; each node counts its part
//! of them in a *shard*, and the home follows (`gather.rs`).

use bivouac_layout::{entry_hash, slot_of_hash};
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, Name, NodeId, PartitionId, Slot, mode};
use bivouac_wire::{Encode, Inherited};

use crate::locks::{Guard, LockTarget};
use crate::namespace::{Change, decode};
use crate::node::Node;
use crate::record::{
    DENTRY_NAME_AT, Dentry, Inode, Removed, Shard, hashed_key, removed_key, seen_by_key, seen_key, shard_key,
};
use crate::session::Ctx;
use bivouac_session::Item;

/// Returns the slot of a directory's entry with this hash, of `slots` in all: the slot of the directory, or of the hash
/// if it is spread.
#[must_use]
pub fn entry_slot(dir: Ino, is_spread: bool, hash: u64, slots: u16) -> Slot {
    if is_spread { slot_of_hash(hash, slots) } else { dir.slot() }
}

/// Position of an entry in this node's records, whether or not it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPlace {
    /// The directory.
    pub dir: Ino,
    /// The slot of the entry.
    pub slot: Slot,
    /// The slot of the record that counts it: the directory's inode, or this node's shard.
    book: Slot,
    /// Attributes that new entries inherit; `None` if the directory is spread.
    inherited: Option<Inherited>,
    /// The entry's key.
    key: Vec<u8>,
}

impl EntryPlace {
    /// Returns true if the directory is spread.
    pub fn is_spread(&self) -> bool {
        self.inherited.is_none()
    }

    /// Returns the entry's name.
    pub fn name(&self) -> &[u8] {
        self.key.get(DENTRY_NAME_AT..).unwrap_or_default()
    }

    /// Returns what clients may have leases on of the entry and its directory.
    pub fn items(&self) -> Vec<Item> {
        let name = self.name_item();
        // Attributes of a spread directory are gathered from shards, and not leased (S37).
        if self.is_spread() { vec![name] } else { vec![name, Item::Attrs(self.dir)] }
    }

    /// Returns what clients may have leases on of the entry alone.
    pub fn name_item(&self) -> Item {
        Item::Name { slot: self.slot, dir: self.dir, hash: entry_hash(self.dir, self.name()) }
    }

    /// Returns the slots of a change to the entry.
    pub fn slots(&self) -> [Slot; 2] {
        [self.slot, self.book]
    }
}

/// The record that counts the entries of a directory on this node.
pub enum Dir {
    /// The directory itself.
    Whole(Inode),
    /// A shard of it.
    Part(Shard),
}

impl Dir {
    /// Returns the partition of its entries, except of those that are roots of other partitions.
    pub fn partition(&self) -> PartitionId {
        match self {
            Dir::Whole(inode) => inode.attr.layout.partition(),
            Dir::Part(shard) => shard.inherited.layout.partition(),
        }
    }
}

impl Inode {
    /// Returns the attributes that new entries inherit from this directory.
    pub fn inherited(&self) -> Inherited {
        let (attr, placement) = (&self.attr, self.placement);
        let Attr { gid, layout, contract, .. } = *attr;
        Inherited { mode: attr.mode & mode::SETGID, gid, layout, placement, contract }
    }
}

impl Node {
    /// Returns where the entry is. The caller holds the directory's lock, or accepts an answer that may be outdated
    /// when it is used.
    ///
    /// # Errors
    /// `EREMOTE` at the home of a spread directory if the entry is on another node; `ENOENT`; `ESTALE` if it is not
    /// this node's to know.
    pub(crate) fn place(&self, dir: Ino, name: &Name) -> FsResult<EntryPlace> {
        let hash = entry_hash(dir, name.as_bytes());
        let hashed = slot_of_hash(hash, self.map.slot_count());
        let key = hashed_key(dir, hash, name.as_bytes());
        let at_home = self.owns(dir.slot());
        if at_home {
            let inode = self.inode(dir)?;
            if !inode.attr.is_spread() {
                let inherited = Some(inode.inherited());
                return Ok(EntryPlace { dir, slot: dir.slot(), book: dir.slot(), inherited, key });
            }
        }
        if self.owns(hashed) {
            return Ok(EntryPlace {
                dir,
                slot: hashed,
                book: self.shards.slot_of(dir),
                inherited: None,
                key,
            });
        }
        // A client asks the home first, and learns there that the directory is spread.
        // Any other node was asked by mistake.
        self.check_slot(dir.slot())?;
        Err(remote(dir))
    }

    /// Returns the node of an entry of a spread directory.
    pub(crate) fn shard_node(&self, dir: Ino, name: &Name) -> FsResult<NodeId> {
        let hash = entry_hash(dir, name.as_bytes());
        let node = self.map.slot_node(slot_of_hash(hash, self.map.slot_count()));
        node.ok_or_else(|| Errno::ESTALE.into())
    }

    /// Returns the slot of an entry of a spread directory.
    pub(crate) fn hashed_slot(&self, dir: Ino, name: &Name) -> Slot {
        slot_of_hash(entry_hash(dir, name.as_bytes()), self.map.slot_count())
    }

    /// Returns the lock of an entry.
    pub(crate) fn entry_target(dir: Ino, name: &Name) -> LockTarget {
        LockTarget::Entry(dir, entry_hash(dir, name.as_bytes()))
    }

    /// Locks entries, and keeps their directories from spreading, as far as their homes are here.
    pub(crate) fn lock_entries(&self, entries: &[(Ino, &Name)]) -> FsResult<Vec<Guard<'_>>> {
        let own = entries.iter().map(|(dir, _)| *dir).filter(|dir| self.owns(dir.slot()));
        let names = entries.iter().map(|(dir, name)| Node::entry_target(*dir, name));
        self.locks.lock_all(own.map(LockTarget::Dir).chain(names))
    }

    /// Keeps a compact directory from spreading while its attributes change, since its shards would need them too.
    /// Returns `None` for anything else.
    pub(crate) fn stay(&self, ino: Ino) -> FsResult<Option<Guard<'_>>> {
        let attr = self.inode(ino)?.attr;
        if attr.is_dir() && !attr.is_spread() {
            self.locks.lock(LockTarget::Dir(ino)).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Like [`Ctx::done_before`], for an operation on an entry, whose directory may have spread since.
    pub(crate) fn entry_done_before(&self, ctx: &Ctx<'_>, dir: Ino, name: &Name) -> FsResult<Option<u64>> {
        ctx.check_current()?;
        if !ctx.retry {
            return Ok(None);
        }
        let hashed = slot_of_hash(entry_hash(dir, name.as_bytes()), self.map.slot_count());
        // The record of the operation stayed in the slot where it was committed: the directory's, or the entry's after
        // a spreading.
        for slot in [dir.slot(), hashed] {
            if self.owns(slot)
                && let Some(value) = ctx.done_before(&self.records, slot)?
            {
                self.tell_again(ctx, dir);
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Returns the entry and its slot, if it exists.
    ///
    /// # Errors
    /// As [`Node::place`].
    pub(crate) fn look_up(&self, dir: Ino, name: &Name) -> FsResult<(Option<Dentry>, Slot)> {
        if self.owns(dir.slot()) {
            let key = hashed_key(dir, entry_hash(dir, name.as_bytes()), name.as_bytes());
            if let Some(dentry) = self.read_dentry(dir, dir.slot(), &key)? {
                return Ok((Some(dentry), dir.slot()));
            }
        }
        // Checked after the compact place, so that entries that were spread in between are found.
        let place = self.place(dir, name)?;
        // In a compact one it was looked for above.
        let found = if place.is_spread() { self.dentry(&place)? } else { None };
        Ok((found, place.slot))
    }

    /// Returns the entry at this place, if there is one.
    pub(crate) fn dentry(&self, place: &EntryPlace) -> FsResult<Option<Dentry>> {
        self.read_dentry(place.dir, place.slot, &place.key)
    }

    fn read_dentry(&self, dir: Ino, slot: Slot, key: &[u8]) -> FsResult<Option<Dentry>> {
        self.records.read(slot, key, |bytes| bytes.map(|bytes| decode(bytes, "entry", dir)).transpose())
    }

    /// Returns the attributes that a new entry at this place inherits from its directory.
    pub(crate) fn inherited(&self, place: &EntryPlace) -> FsResult<Inherited> {
        if let Some(inherited) = place.inherited {
            return Ok(inherited);
        }
        self.records.read(place.book, &shard_key(place.dir), |bytes| match bytes {
            Some(bytes) => Ok(decode::<Shard>(bytes, "shard", place.dir)?.inherited),
            None => Err(Errno::ENOENT.into()),
        })
    }
}

impl Change<'_> {
    /// Returns the record that counts the entries at a place where one is to be made.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`; `EAGAIN` while the directory is being removed.
    pub fn directory(&self, place: &EntryPlace) -> FsResult<Dir> {
        if place.is_spread() {
            let shard = self.shard(place.book, place.dir)?.ok_or(Errno::ENOENT)?;
            return match shard.sealed {
                None => Ok(Dir::Part(shard)),
                Some(_) => Err(FsError::with(
                    Errno::EAGAIN,
                    format!("directory {} is being removed: try again", place.dir),
                )),
            };
        }
        let inode = self.inode(place.dir)?;
        if inode.attr.is_spread() {
            // It has spread since its place was found: the caller looks for that again.
            return Err(Errno::EBUSY.into());
        }
        if inode.attr.is_dir() { Ok(Dir::Whole(inode)) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// Returns this node's shard of a directory.
    pub fn shard(&self, book: Slot, dir: Ino) -> FsResult<Option<Shard>> {
        self.txn.get(book, &shard_key(dir)).map(|bytes| decode(bytes, "shard", dir)).transpose()
    }

    /// Like [`Node::dentry`], within the change.
    pub fn dentry(&self, place: &EntryPlace) -> FsResult<Option<Dentry>> {
        let bytes = self.txn.get(place.slot, &place.key);
        bytes.map(|bytes| decode(bytes, "entry", place.dir)).transpose()
    }

    /// Makes an entry.
    ///
    /// # Panics
    /// There is one already.
    pub fn add_entry(&mut self, dir: &mut Dir, place: &EntryPlace, dentry: Dentry) {
        // Entries of a compact directory live with it: whoever looks them up asks no other slot.
        assert!(place.is_spread() || place.slot == place.dir.slot(), "an entry lives with its directory");
        // It would be counted twice, and the inode of the former would keep a link without a name.
        assert!(self.txn.get(place.slot, &place.key).is_none(), "{place:?} has an entry already");
        self.touch(dentry.ino);
        self.txn.put(place.slot, &place.key, &dentry.to_bytes());
        self.count(dir, place, 1, i32::from(dentry.kind == mode::DIR));
    }

    /// Removes an entry.
    ///
    /// # Panics
    /// There is none.
    pub fn remove_entry(&mut self, dir: &mut Dir, place: &EntryPlace, dentry: Dentry) {
        assert!(self.txn.get(place.slot, &place.key).is_some(), "{place:?} has no entry to be removed");
        self.touch(dentry.ino);
        self.note_removed(dir.partition(), place, dentry);
        self.txn.delete(place.slot, &place.key);
        self.count(dir, place, -1, -i32::from(dentry.kind == mode::DIR));
    }

    /// Makes an existing entry lead to another inode.
    ///
    /// # Panics
    /// There is none.
    pub fn replace_entry(&mut self, dir: &mut Dir, place: &EntryPlace, old: Dentry, new: Dentry) {
        assert!(self.txn.get(place.slot, &place.key).is_some(), "{place:?} has no entry to be replaced");
        self.touch(old.ino);
        self.touch(new.ino);
        self.txn.put(place.slot, &place.key, &new.to_bytes());
        let subdirs = i32::from(new.kind == mode::DIR) - i32::from(old.kind == mode::DIR);
        self.count(dir, place, 0, subdirs);
    }

    /// Adjusts a directory's counts of entries and subdirectories, and sets its times.
    fn count(&mut self, dir: &mut Dir, place: &EntryPlace, entries: i64, subdirs: i32) {
        let is_part = matches!(dir, Dir::Part(_));
        assert_eq!(is_part, place.is_spread(), "a directory's entries are counted where they are");
        self.note_partition(dir.partition());
        match dir {
            Dir::Whole(inode) => {
                let attr = &mut inode.attr;
                attr.size = attr.size.saturating_add_signed(entries);
                // Counted as on Linux: its name, `.`, and the `..` of each subdirectory.
                attr.nlink = attr.nlink.saturating_add_signed(subdirs).max(2);
                (attr.mtime, attr.ctime) = (self.now, self.now);
                self.put_inode(inode);
                if entries > 0 {
                    self.note_size(place.dir, inode.attr.size);
                }
            }
            Dir::Part(shard) => {
                shard.entries = shard.entries.saturating_add_signed(entries);
                shard.subdirs = shard.subdirs.saturating_add_signed(subdirs);
                // By this the home sees that something has changed, where the counts have come back to what they were.
                shard.version += 1;
                self.put_shard(place.book, place.dir, shard);
                self.note_shard(place.dir);
            }
        }
    }

    /// Writes the record of a shard.
    pub fn put_shard(&mut self, book: Slot, dir: Ino, shard: &Shard) {
        self.touch(dir);
        self.txn.put(book, &shard_key(dir), &shard.to_bytes());
    }
}

fn remote(dir: Ino) -> FsError {
    FsError::with(Errno::EREMOTE, format!("directory {dir} is spread: ask the node of the entry"))
}

impl Node {
    /// Returns slot and key of an entry of a spread directory; the slot must be this node's.
    pub(crate) fn shard_place(&self, dir: Ino, name: &Name) -> FsResult<(Slot, Vec<u8>)> {
        let hash = entry_hash(dir, name.as_bytes());
        let slot = slot_of_hash(hash, self.map.slot_count());
        self.check_slot(slot)?;
        Ok((slot, hashed_key(dir, hash, name.as_bytes())))
    }
}

/// Records of what site storage has under a name, and of the inode that it was brought as, in encoded form.
pub type SeenRecords = [Option<Vec<u8>>; 2];

fn seen_keys(place: &EntryPlace) -> [Vec<u8>; 2] {
    let name = place.name();
    [seen_key(place.dir, name), seen_by_key(place.dir, name)]
}

impl Change<'_> {
    /// Removes the records of a name at site storage, so that removing the name here does not remove it there. Returns
    /// the records. The directory is not spread.
    pub(crate) fn forget_seen(&mut self, place: &EntryPlace) -> SeenRecords {
        seen_keys(place).map(|key| {
            let known = self.txn.get(place.slot, &key).map(<[u8]>::to_vec);
            self.txn.delete(place.slot, &key);
            known
        })
    }

    /// Puts records back that [`Change::forget_seen`] removed, unless there are newer ones.
    pub(crate) fn restore_seen(&mut self, place: &EntryPlace, known: &SeenRecords) {
        for (key, known) in seen_keys(place).iter().zip(known) {
            // A flush may have put something else there since.
            if let Some(known) = known.as_ref().filter(|_| self.txn.get(place.slot, key).is_none()) {
                self.txn.put(place.slot, key, known);
            }
        }
    }

    /// Records that a name was removed, and is to be removed at site storage too, if the partition's policy says so.
    fn note_removed(&mut self, partition: PartitionId, place: &EntryPlace, dentry: Dentry) {
        if !self.node.mirrors(partition) {
            return;
        }
        let name = place.name();
        // A name that never was there need not be deleted. For a spread directory only its home can tell.
        if !place.is_spread() && self.txn.get(place.slot, &seen_key(place.dir, name)).is_none() {
            return;
        }
        let key = removed_key(place.dir, name);
        let owner = self.txn.get(place.slot, &seen_by_key(place.dir, name));
        let owner = owner.map(|by| decode::<Ino>(by, "owner of a name", place.dir)).transpose();
        let earlier = self.txn.get(place.slot, &key);
        let earlier = earlier.map(|bytes| decode::<Removed>(bytes, "removed name", place.dir)).transpose();
        let (owner, earlier) = match (owner, earlier) {
            (Ok(owner), Ok(earlier)) => (owner, earlier),
            // A change that has begun cannot end otherwise. The new record has what is there compared before it goes.
            (Err(error), _) | (_, Err(error)) => {
                log::error!(why:% = error; "the note of an earlier deletion is made anew");
                (None, None)
            }
        };
        // What is there may still be of an earlier inode with this name, whose deletion is pending: that one is to be
        // deleted, whatever had the name since.
        let is_earliers = |earlier: &Removed| Some(earlier.ino) == owner && earlier.ino != dentry.ino;
        let removed = match earlier.filter(is_earliers) {
            Some(earlier) => Removed { again: earlier.again.wrapping_add(1), ..earlier },
            None => {
                let is_dir = dentry.kind == mode::DIR;
                Removed { ino: dentry.ino, is_dir, partition, seen: None, again: 0 }
            }
        };
        self.txn.put(place.slot, &key, &removed.to_bytes());
        self.node.mirror_later(partition);
    }
}
