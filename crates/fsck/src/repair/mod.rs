//! Setting right what was found, by the transactions of the record store: each is whole or not at all, and each
//! leaves less wrong than before, so that a repair that was killed is simply made again.
//!
//! Unfinished changes are left to the daemons: their intents are finished or undone when the formation
//! starts again, before anything is served, by steps that only the nodes together can take.

mod lost_found;
mod rebuild;

pub use rebuild::best_layout;

use std::ops::ControlFlow;

use bivouac_layout::seats_of;
use bivouac_node::record::{Dentry, Inode, Shard, hashed_key, inode_key, orphan_key, shard_key};
use bivouac_store::{Records, SubfileId, Subfiles};
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout, NodeId, Slot};
use bivouac_wire::subfile::SubfileHeader;
use bivouac_wire::{Decode, Encode, Inherited};

use crate::facts::{EntryRow, Facts, RecordPlace, SubfileRow};
use crate::gather::place_of_shard;
use crate::offline::Stores;
use crate::paths::Paths;
use crate::source::Source;

/// Number of changes of a part that is made anew: one that the directory's home cannot know, so that it asks.
const NEW_SHARD_VERSION: u64 = 1 << 40;
/// Key of the allocator's mark.
const MARK: &[u8] = bivouac_node::record::ALLOCATOR_KEY;

/// What sets a finding right.
#[derive(Clone, Debug)]
pub enum Fix {
    /// Remove a record.
    Delete(RecordPlace),
    /// Remove all records whose keys begin so.
    DeleteAll(RecordPlace),
    /// Bring a record to where it is looked for.
    Move(RecordPlace),
    /// Bring an entry to where it is looked for.
    MoveEntry { entry: EntryRow, slot: Slot },
    /// Count a part of a spread directory anew.
    ShardCounts { place: RecordPlace, entries: u64, subdirs: u32 },
    /// Let entries into a part of a spread directory again.
    Unseal(RecordPlace),
    /// Correct what a part of a spread directory gives to new entries.
    Inherit { place: RecordPlace, inherited: Inherited },
    /// Make a part of a spread directory anew.
    AddShard { node: NodeId, dir: Ino },
    /// Remove an entry.
    DropEntry(EntryRow),
    /// Correct the type that an entry says.
    EntryKind { entry: EntryRow, kind: u8 },
    /// Correct a link count.
    Links { ino: Ino, nlink: u32 },
    /// Correct a size.
    Size { ino: Ino, size: u64 },
    /// Correct a directory's parent.
    Parent { ino: Ino, parent: Ino },
    /// Correct a file's epoch.
    Epoch { ino: Ino, epoch: u32 },
    /// Make a directory's inode anew.
    RebuildDir { ino: Ino, parent: Ino },
    /// Make a file's inode anew from its subfiles.
    RebuildFile { ino: Ino },
    /// Link an inode into `/lost+found`, after removing an entry.
    Relink { ino: Ino, from: Option<EntryRow> },
    /// Raise an allocator's mark.
    Mark { node: NodeId, mark: u64 },
    /// Write a subfile's header anew.
    Header { subfile: SubfileRow, layout: Layout, epoch: u32 },
    /// Remove a subfile that has no data.
    RemoveSubfile(SubfileRow),
    /// Remove a subfile that has data, if that is wished.
    DiscardSubfile(SubfileRow),
}

/// What may be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leave {
    /// Remove subfiles of no file with their data, instead of making files of them.
    pub discard_unreferenced: bool,
}

/// Sets things right on volumes that no daemon has.
pub struct Repairer<'a> {
    pub stores: &'a Stores,
    pub facts: &'a Facts,
    pub leave: Leave,
}

impl Repairer<'_> {
    /// Makes one repair; whether anything was done.
    pub fn apply(&self, fix: &Fix) -> FsResult<bool> {
        match fix {
            Fix::Delete(place) => self.delete(place)?,
            Fix::DeleteAll(place) => self.delete_all(place)?,
            Fix::Move(place) => return self.relocate(place),
            Fix::MoveEntry { entry, slot } => self.move_entry(entry, *slot)?,
            Fix::ShardCounts { place, entries, subdirs } => self.edit_shard(place, |shard| {
                (shard.entries, shard.subdirs) = (*entries, *subdirs);
                // The home asks again.
                shard.version += 1;
            })?,
            Fix::Unseal(place) => self.edit_shard(place, |shard| shard.sealed = None)?,
            Fix::Inherit { place, inherited } => {
                self.edit_shard(place, |shard| shard.inherited = *inherited)?;
            }
            Fix::AddShard { node, dir } => self.add_shard(*node, *dir)?,
            Fix::DropEntry(entry) => self.drop_entry(entry)?,
            Fix::EntryKind { entry, kind } => self.set_kind(entry, *kind)?,
            Fix::Links { ino, nlink } => self.edit(*ino, |inode| inode.attr.nlink = *nlink)?,
            Fix::Size { ino, size } => self.edit(*ino, |inode| inode.attr.size = *size)?,
            Fix::Parent { ino, parent } => self.edit(*ino, |inode| inode.parent = *parent)?,
            Fix::Epoch { ino, epoch } => self.edit(*ino, |inode| inode.attr.epoch = *epoch)?,
            Fix::RebuildDir { ino, parent } => self.rebuild_dir(*ino, *parent)?,
            Fix::RebuildFile { ino } => return self.rebuild_or_discard(*ino),
            Fix::Relink { ino, from } => return self.relink(*ino, from.as_ref()),
            Fix::Mark { node, mark } => self.raise_mark(*node, *mark)?,
            Fix::Header { subfile, layout, epoch } => self.write_header(subfile, *layout, *epoch)?,
            Fix::RemoveSubfile(subfile) => self.remove_subfile(subfile)?,
            Fix::DiscardSubfile(subfile) if self.leave.discard_unreferenced => {
                self.remove_subfile(subfile)?
            }
            Fix::DiscardSubfile(_) => return Ok(false),
        }
        Ok(true)
    }

    /// The records that an inode is in.
    fn home(&self, ino: Ino) -> FsResult<&Records> {
        let node = self.stores.map().home(ino).ok_or(Errno::ESTALE)?;
        self.node(node)
    }

    fn node(&self, node: NodeId) -> FsResult<&Records> {
        let absent = || FsError::with(Errno::ENOENT, format!("the records of {node} are not there"));
        self.stores.of(node).ok_or_else(absent)
    }

    fn delete(&self, place: &RecordPlace) -> FsResult<()> {
        let mut txn = self.node(place.node)?.txn(&[place.slot]);
        txn.delete(place.slot, &place.key);
        Ok(txn.commit()?)
    }

    fn delete_all(&self, place: &RecordPlace) -> FsResult<()> {
        let mut txn = self.node(place.node)?.txn(&[place.slot]);
        let mut keys = Vec::new();
        txn.scan(place.slot, &place.key, &place.key, |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        });
        keys.iter().for_each(|key| txn.delete(place.slot, key));
        Ok(txn.commit()?)
    }

    fn relocate(&self, place: &RecordPlace) -> FsResult<bool> {
        let Some((node, slot)) = self.right_place(place) else { return Ok(false) };
        self.bring(place, node, slot)
    }

    fn move_entry(&self, entry: &EntryRow, slot: Slot) -> FsResult<()> {
        let node = self.stores.map().slot_node(slot).ok_or(Errno::ESTALE)?;
        let place = RecordPlace { node: entry.node, slot: entry.slot, key: self.entry_key(entry)? };
        self.bring(&place, node, slot).map(drop)
    }

    /// First there, then gone here: a kill in between leaves two, of which this one is removed the next time.
    fn bring(&self, place: &RecordPlace, node: NodeId, slot: Slot) -> FsResult<bool> {
        let (from, to) = (self.node(place.node)?, self.node(node)?);
        let Some(value) = from.read(place.slot, &place.key, |value| value.map(<[u8]>::to_vec)) else {
            return Ok(false);
        };
        if to.read(slot, &place.key, |there| there.is_none()) {
            let mut txn = to.txn(&[slot]);
            txn.put(slot, &place.key, &value);
            txn.commit()?;
        }
        self.delete(place)?;
        Ok(true)
    }

    /// Where a record with this key is looked for.
    fn right_place(&self, place: &RecordPlace) -> Option<(NodeId, Slot)> {
        let number = Ino(u64::from_be_bytes(place.key.get(1..9)?.try_into().ok()?));
        let map = self.stores.map();
        match place.key.first()? {
            b'S' => Some((place.node, place_of_shard(map, place.node, number))),
            _ => Some((map.slot_node(number.slot())?, number.slot())),
        }
    }

    fn edit_shard(&self, place: &RecordPlace, change: impl FnOnce(&mut Shard)) -> FsResult<()> {
        let mut txn = self.node(place.node)?.txn(&[place.slot]);
        let bytes = txn.get(place.slot, &place.key).ok_or(Errno::ENOENT)?;
        let mut shard = Shard::from_bytes(bytes).map_err(|_| Errno::EIO)?;
        change(&mut shard);
        txn.put(place.slot, &place.key, &shard.to_bytes());
        Ok(txn.commit()?)
    }

    fn add_shard(&self, node: NodeId, dir: Ino) -> FsResult<()> {
        let slot = place_of_shard(self.stores.map(), node, dir);
        let inherited = *self.facts.inherited.get(&dir).ok_or(Errno::ENOENT)?;
        let (entries, subdirs) = self.facts.parts.get(&(dir, node)).copied().unwrap_or_default();
        let shard = Shard { inherited, entries, subdirs, version: NEW_SHARD_VERSION, tx: 0, sealed: None };
        let mut txn = self.node(node)?.txn(&[slot]);
        txn.put(slot, &shard_key(dir), &shard.to_bytes());
        Ok(txn.commit()?)
    }

    fn entry_key(&self, entry: &EntryRow) -> FsResult<Vec<u8>> {
        let paths = Paths { source: self.stores, facts: self.facts, named: true };
        let name = paths.name_bytes(entry).ok_or(Errno::ENOENT)?;
        Ok(hashed_key(entry.parent, entry.hash, &name))
    }

    fn drop_entry(&self, entry: &EntryRow) -> FsResult<()> {
        let key = self.entry_key(entry)?;
        self.delete(&RecordPlace { node: entry.node, slot: entry.slot, key })
    }

    fn set_kind(&self, entry: &EntryRow, kind: u8) -> FsResult<()> {
        let key = self.entry_key(entry)?;
        let mut txn = self.node(entry.node)?.txn(&[entry.slot]);
        let dentry = Dentry { ino: entry.ino, kind: u32::from(kind) << 12 };
        txn.put(entry.slot, &key, &dentry.to_bytes());
        Ok(txn.commit()?)
    }

    fn edit(&self, ino: Ino, change: impl FnOnce(&mut Inode)) -> FsResult<()> {
        let mut txn = self.home(ino)?.txn(&[ino.slot()]);
        let bytes = txn.get(ino.slot(), &inode_key(ino)).ok_or(Errno::ENOENT)?;
        let mut inode = Inode::from_bytes(bytes).map_err(|_| Errno::EIO)?;
        change(&mut inode);
        txn.put(ino.slot(), &inode_key(ino), &inode.to_bytes());
        Ok(txn.commit()?)
    }

    fn raise_mark(&self, node: NodeId, mark: u64) -> FsResult<()> {
        let slot = self.first_slot(node);
        let mut txn = self.node(node)?.txn(&[slot]);
        txn.put(slot, MARK, &mark.to_bytes());
        Ok(txn.commit()?)
    }

    /// The slot with a node's own records.
    fn first_slot(&self, node: NodeId) -> Slot {
        let slots = &self.stores.map().slots;
        Slot(slots.iter().position(|holder| *holder == node).unwrap_or(0) as u16)
    }

    fn volume(&self, subfile: &SubfileRow) -> FsResult<(&Subfiles, SubfileId)> {
        let id = SubfileId { volume: subfile.volume, ino: subfile.ino, seat: subfile.seat };
        Ok((self.stores.volume(subfile.node, subfile.volume).ok_or(Errno::ENOENT)?, id))
    }

    fn write_header(&self, subfile: &SubfileRow, layout: Layout, trim_epoch: u32) -> FsResult<()> {
        let map = self.stores.map();
        let inode = self.home(subfile.ino)?.read(subfile.ino.slot(), &inode_key(subfile.ino), |bytes| {
            bytes.and_then(|bytes| Inode::from_bytes(bytes).ok())
        });
        let (subfiles, id) = self.volume(subfile)?;
        let header = SubfileHeader {
            sums: subfiles.has_sums(id),
            formation: map.formation,
            ino: id.ino,
            seat: id.seat,
            layout,
            placement: inode.ok_or(Errno::ENOENT)?.placement.unwrap_or_default(),
            trim_epoch,
            places: seats_of(&layout).filter_map(|seat| self.facts.place_of(map, seat)).collect(),
        };
        Ok(subfiles.write_header(id, &header)?)
    }

    fn remove_subfile(&self, subfile: &SubfileRow) -> FsResult<()> {
        let (subfiles, id) = self.volume(subfile)?;
        Ok(subfiles.remove(id)?)
    }

    /// An inode that gets a name again is not removed when it is closed.
    fn forget_orphan(&self, ino: Ino) -> FsResult<()> {
        let mut txn = self.home(ino)?.txn(&[ino.slot()]);
        if txn.get(ino.slot(), &orphan_key(ino)).is_some() {
            txn.delete(ino.slot(), &orphan_key(ino));
        }
        Ok(txn.commit()?)
    }
}
