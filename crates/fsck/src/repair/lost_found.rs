//! `/lost+found`: where inodes go that no name leads to, under their number.

use bivouac_node::record::{Dentry, Inode, hashed_key, inode_key};
use bivouac_types::limits::INO_COUNTER_FIRST;
use bivouac_types::{Attr, Errno, FsResult, Ino, Name, Placement, Slot, Timestamp, mode};
use bivouac_wire::{Decode, Encode};

use super::{MARK, Repairer};
use crate::facts::EntryRow;
use crate::gather::place_of_entry;
use crate::source::Source;

const NAME: &[u8] = b"lost+found";

impl Repairer<'_> {
    /// Links an inode as `/lost+found/INO`, after its former name if that is known, and removes its entry in a loop.
    pub(super) fn relink(&self, ino: Ino, from: Option<&EntryRow>) -> FsResult<bool> {
        let dir = self.lost_found()?;
        // First: with the mark left, the next start would remove the inode although it has a name again.
        self.forget_orphan(ino)?;
        let inode = self.read_inode(ino)?.ok_or(Errno::ENOENT)?;
        if inode.attr.is_dir() {
            self.edit(ino, |inode| inode.parent = dir)?;
        }
        let kind = inode.attr.mode & mode::TYPE;
        // The new entry first: after a crash the inode has two names, which the next run resolves, and not none.
        self.add_entry(dir, &self.facts.found_name(ino), Dentry { ino, kind })?;
        if let Some(entry) = from {
            self.drop_entry(entry)?;
        }
        Ok(true)
    }

    /// Adds an entry and updates the counts of its directory.
    fn add_entry(&self, dir: Ino, name: &[u8], dentry: Dentry) -> FsResult<()> {
        let (slot, key) = self.entry_place(dir, name)?;
        let holder = self.stores.map().slot_node(slot).ok_or(Errno::ESTALE)?;
        let mut txn = self.node(holder)?.txn(&[slot]);
        let is_new = txn.get(slot, &key).is_none();
        txn.put(slot, &key, &dentry.to_bytes());
        txn.commit()?;
        // A repeated repair must not count the entry twice.
        if is_new {
            self.edit(dir, |inode| {
                inode.attr.size += 1;
                inode.attr.nlink += u32::from(dentry.kind == mode::DIR);
            })?;
        }
        Ok(())
    }

    /// Returns slot and key of an entry. Counts of a spread directory are corrected in the next round.
    fn entry_place(&self, dir: Ino, name: &[u8]) -> FsResult<(Slot, Vec<u8>)> {
        let hash = bivouac_layout::entry_hash(dir, Name::new(name)?.as_bytes());
        let is_spread = self.read_inode(dir)?.is_some_and(|inode| inode.attr.is_spread());
        Ok((place_of_entry(self.stores.map(), dir, is_spread, hash), hashed_key(dir, hash, name)))
    }

    fn read_inode(&self, ino: Ino) -> FsResult<Option<Inode>> {
        let records = self.home(ino)?;
        let bytes = records.read(ino.slot(), &inode_key(ino), |bytes| bytes.map(<[u8]>::to_vec));
        Ok(bytes.and_then(|bytes| Inode::from_bytes(&bytes).ok()))
    }

    /// Returns `/lost+found`; creates it if it does not exist.
    fn lost_found(&self) -> FsResult<Ino> {
        let root = Ino::ROOT;
        let (slot, key) = self.entry_place(root, NAME)?;
        let holder = self.stores.map().slot_node(slot).ok_or(Errno::ESTALE)?;
        let found = self
            .node(holder)?
            .read(slot, &key, |bytes| bytes.and_then(|bytes| Dentry::from_bytes(bytes).ok()));
        if let Some(dentry) = found {
            let is_dir = self.read_inode(dentry.ino)?.is_some_and(|inode| inode.attr.is_dir());
            return if is_dir { Ok(dentry.ino) } else { Err(Errno::ENOTDIR.into()) };
        }
        let ino = self.new_ino()?;
        let root_inode = self.read_inode(root)?.ok_or(Errno::ENOENT)?;
        let (uid, gid, time) = self.owner();
        let attr =
            Attr { ino, mode: mode::DIR | 0o700, nlink: 2, uid, gid, size: 0, ..at(root_inode.attr, time) };
        let inode = Inode { attr, parent: root, placement: Some(Placement::Striped) };
        let mut txn = self.home(ino)?.txn(&[ino.slot()]);
        txn.put(ino.slot(), &inode_key(ino), &inode.to_bytes());
        txn.commit()?;
        self.add_entry(root, NAME, Dentry { ino, kind: mode::DIR })?;
        Ok(ino)
    }

    /// Returns a new number in the root's slot; its allocator's mark is raised first.
    fn new_ino(&self) -> FsResult<Ino> {
        let slot = Ino::ROOT.slot();
        let node = self.stores.map().slot_node(slot).ok_or(Errno::ESTALE)?;
        let own = self.first_slot(node);
        let mark =
            self.node(node)?.read(own, MARK, |bytes| bytes.and_then(|bytes| u64::from_bytes(bytes).ok()));
        let highest = self.facts.highest.get(usize::from(node.0)).map_or(0, |(highest, _)| *highest);
        let number = mark.unwrap_or(INO_COUNTER_FIRST).max(highest + 1).max(INO_COUNTER_FIRST);
        // Raised before the number is used, as the allocator does.
        self.raise_mark(node, number + 1)?;
        Ok(Ino::new(slot, node, number))
    }
}

/// Returns attributes with all times set.
fn at(attr: Attr, time: Timestamp) -> Attr {
    Attr { atime: time, mtime: time, ctime: time, ..attr }
}
