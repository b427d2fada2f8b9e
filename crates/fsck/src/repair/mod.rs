//! Repairs as transactions of the record store: each is atomic and leaves less wrong than before, so a repair that was
//! killed is repeated.
//!
//! Unfinished changes are left to the daemons: their intents are finished or undone when the formation
//! starts again, before anything is served, by steps that only the nodes together can take.

mod lost_found;
mod rebuild;

pub use rebuild::best_layout;

use std::ops::ControlFlow;

use bivouac_layout::targets_of;
use bivouac_node::record::{Dentry, Inode, Shard, hashed_key, inode_key, orphan_key, shard_key};
use bivouac_store::{Records, SubfileId, Subfiles};
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout, NodeId, Slot};
use bivouac_wire::subfile::SubfileHeader;
use bivouac_wire::{Decode, Encode};

use crate::facts::{EntryRow, FormationFacts, RecordLocation, SubfileRow};
use crate::gather::place_of_shard;
use crate::offline::Stores;
use crate::paths::Paths;
use crate::repair_action::RepairAction;
use crate::source::Source;

/// Version of a new shard: the directory's home cannot know it, so it asks for the counts.
const NEW_SHARD_VERSION: u64 = 1 << 40;
/// Key of the allocator's mark.
const MARK: &[u8] = bivouac_node::record::ALLOCATOR_KEY;

/// Permissions to repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairOptions {
    /// True to remove unreferenced subfiles with their data instead of making files of them.
    pub discard_unreferenced: bool,
}

/// Repairer of locked volumes.
pub struct Repairer<'a> {
    pub stores: &'a Stores,
    pub facts: &'a FormationFacts,
    pub leave: RepairOptions,
}

impl Repairer<'_> {
    /// Applies one repair; returns whether anything was changed.
    pub fn apply(&self, fix: &RepairAction) -> FsResult<bool> {
        match fix {
            RepairAction::Delete(place) => self.delete(place)?,
            RepairAction::DeleteAll(place) => self.delete_all(place)?,
            RepairAction::Move(place) => return self.relocate(place),
            RepairAction::MoveEntry { entry, slot } => self.move_entry(entry, *slot)?,
            RepairAction::ShardCounts { place, entries, subdirs } => self.edit_shard(place, |shard| {
                (shard.entries, shard.subdirs) = (*entries, *subdirs);
                // A new version makes the directory's home fetch the counts.
                shard.version += 1;
            })?,
            RepairAction::Unseal(place) => self.edit_shard(place, |shard| shard.sealed = None)?,
            RepairAction::Inherit { place, inherited } => {
                self.edit_shard(place, |shard| shard.inherited = *inherited)?;
            }
            RepairAction::AddShard { node, dir } => self.add_shard(*node, *dir)?,
            RepairAction::DropEntry(entry) => self.drop_entry(entry)?,
            RepairAction::EntryKind { entry, kind } => self.set_kind(entry, *kind)?,
            RepairAction::Links { ino, nlink } => self.edit(*ino, |inode| inode.attr.nlink = *nlink)?,
            RepairAction::Size { ino, size } => self.edit(*ino, |inode| inode.attr.size = *size)?,
            RepairAction::Parent { ino, parent } => self.edit(*ino, |inode| inode.parent = *parent)?,
            RepairAction::Epoch { ino, epoch } => self.edit(*ino, |inode| inode.attr.epoch = *epoch)?,
            RepairAction::RebuildDir { ino, parent } => self.rebuild_dir(*ino, *parent)?,
            RepairAction::RebuildFile { ino } => return self.rebuild_or_discard(*ino),
            RepairAction::Relink { ino, from } => return self.relink(*ino, from.as_ref()),
            RepairAction::Mark { node, mark } => self.raise_mark(*node, *mark)?,
            RepairAction::Header { subfile, layout, epoch } => self.write_header(subfile, *layout, *epoch)?,
            RepairAction::RemoveSubfile(subfile) => self.remove_subfile(subfile)?,
            RepairAction::DiscardSubfile(subfile) if self.leave.discard_unreferenced => {
                self.remove_subfile(subfile)?
            }
            RepairAction::DiscardSubfile(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the records of an inode's home.
    fn home(&self, ino: Ino) -> FsResult<&Records> {
        let node = self.stores.map().home(ino).ok_or(Errno::ESTALE)?;
        self.node(node)
    }

    fn node(&self, node: NodeId) -> FsResult<&Records> {
        let absent = || FsError::with(Errno::ENOENT, format!("the records of {node} are not there"));
        self.stores.of(node).ok_or_else(absent)
    }

    fn delete(&self, place: &RecordLocation) -> FsResult<()> {
        let mut txn = self.node(place.node)?.txn(&[place.slot]);
        txn.delete(place.slot, &place.key);
        Ok(txn.commit()?)
    }

    fn delete_all(&self, place: &RecordLocation) -> FsResult<()> {
        assert!(!place.key.is_empty(), "every record of {:?} begins with nothing", place.slot);
        let mut txn = self.node(place.node)?.txn(&[place.slot]);
        let mut keys = Vec::new();
        txn.scan(place.slot, &place.key, &place.key, |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        });
        keys.iter().for_each(|key| txn.delete(place.slot, key));
        Ok(txn.commit()?)
    }

    fn relocate(&self, place: &RecordLocation) -> FsResult<bool> {
        let Some((node, slot)) = self.right_place(place) else { return Ok(false) };
        self.move_record(place, node, slot)
    }

    fn move_entry(&self, entry: &EntryRow, slot: Slot) -> FsResult<()> {
        let node = self.stores.map().slot_node(slot).ok_or(Errno::ESTALE)?;
        let place = RecordLocation { node: entry.node, slot: entry.slot, key: self.entry_key(entry)? };
        self.move_record(&place, node, slot).map(drop)
    }

    /// Copies a record to its place, then deletes it here. After a crash in between both exist, and the next run
    /// deletes this one.
    fn move_record(&self, place: &RecordLocation, node: NodeId, slot: Slot) -> FsResult<bool> {
        // A damaged key may name the place that the record is at: moving it there would delete it.
        if (node, slot) == (place.node, place.slot) {
            return Ok(false);
        }
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

    /// Returns the place at which a record with this key is looked up.
    fn right_place(&self, place: &RecordLocation) -> Option<(NodeId, Slot)> {
        let number = Ino(u64::from_be_bytes(place.key.get(1..9)?.try_into().ok()?));
        let map = self.stores.map();
        match place.key.first()? {
            // Each node has a shard of its own, so it stays on its node.
            b'S' => Some((place.node, place_of_shard(map, place.node, number))),
            _ => Some((map.slot_node(number.slot())?, number.slot())),
        }
    }

    fn edit_shard(&self, place: &RecordLocation, change: impl FnOnce(&mut Shard)) -> FsResult<()> {
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
        self.delete(&RecordLocation { node: entry.node, slot: entry.slot, key })
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
        let former = txn.get(slot, MARK).and_then(|bytes| u64::from_bytes(bytes).ok());
        // `lost+found` may have taken a number since the mark was found too low: lowered, it would be given out again.
        let mark = former.map_or(mark, |former| former.max(mark));
        txn.put(slot, MARK, &mark.to_bytes());
        Ok(txn.commit()?)
    }

    /// Returns the slot with a node's own records.
    fn first_slot(&self, node: NodeId) -> Slot {
        let slots = &self.stores.map().slots;
        Slot(slots.iter().position(|holder| *holder == node).unwrap_or(0) as u16)
    }

    fn volume(&self, subfile: &SubfileRow) -> FsResult<(&Subfiles, SubfileId)> {
        let id = SubfileId { volume: subfile.volume, ino: subfile.ino, target: subfile.target };
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
            target: id.target,
            layout,
            placement: inode.ok_or(Errno::ENOENT)?.placement.unwrap_or_default(),
            trim_epoch,
            // One that is left out would move the places of all later targets.
            places: targets_of(&layout)
                .map(|target| self.facts.place_of(map, target))
                .collect::<Option<_>>()
                .ok_or(Errno::ESTALE)?,
        };
        Ok(subfiles.write_header(id, &header)?)
    }

    fn remove_subfile(&self, subfile: &SubfileRow) -> FsResult<()> {
        let (subfiles, id) = self.volume(subfile)?;
        Ok(subfiles.remove(id)?)
    }

    /// Deletes the orphan record of an inode that gets a name again.
    fn forget_orphan(&self, ino: Ino) -> FsResult<()> {
        let mut txn = self.home(ino)?.txn(&[ino.slot()]);
        if txn.get(ino.slot(), &orphan_key(ino)).is_some() {
            txn.delete(ino.slot(), &orphan_key(ino));
        }
        Ok(txn.commit()?)
    }
}
