//! Reconstruction of lost inodes.

use bivouac_layout::{file_size_from, targets_of};
use bivouac_node::record::{Inode, inode_key};
use bivouac_types::{Attr, FsResult, Ino, Layout, Placement, TargetIndex, Timestamp, mode};
use bivouac_wire::{Decode, Encode};

use super::Repairer;
use crate::facts::SubfileRow;
use crate::source::Source;

// Who was permitted what is lost: only the owner is let in until somebody decides.
const DIR_MODE: u32 = mode::DIR | 0o700;
const FILE_MODE: u32 = mode::FILE | 0o600;

/// Layout, epoch and size of a file, from its subfiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuiltInode {
    /// The layout of the newest of them.
    pub layout: Layout,
    /// The highest epoch.
    pub epoch: u32,
    /// Smallest size that is consistent with their lengths.
    pub size: u64,
}

/// Returns layout and epoch of the newest subfile, and the longest of those: a target that a later layout does not use
/// keeps the old one in its header, and no data.
pub fn best_layout(subfiles: impl Iterator<Item = (Layout, u32, u64)>) -> Option<(Layout, u32)> {
    let weight = |(_, epoch, len): &(Layout, u32, u64)| (*epoch, *len);
    subfiles.max_by_key(weight).map(|(layout, epoch, _)| (layout, epoch))
}

impl Repairer<'_> {
    pub(super) fn rebuild_dir(&self, ino: Ino, parent: Ino) -> FsResult<()> {
        // Shards prove that the directory was spread.
        let epoch = u32::from(!self.facts.shards_of(ino).is_empty());
        self.add_inode(ino, parent, DIR_MODE, 2, 0, self.default_layout(), epoch)
    }

    /// Creates a file from unreferenced subfiles; or removes them if that is permitted and no entry refers to them.
    pub(super) fn rebuild_or_discard(&self, ino: Ino) -> FsResult<bool> {
        let subfiles = self.facts.subfiles_of(ino);
        let names = self.facts.names_of(ino);
        if self.leave.discard_unreferenced && names.is_empty() {
            subfiles.iter().try_for_each(|subfile| self.remove_subfile(subfile))?;
            return Ok(true);
        }
        let Some(found) = self.inode_from_subfiles(subfiles) else { return Ok(false) };
        let parent = names.first().map_or(Ino::ROOT, |entry| entry.parent);
        let links = names.len() as u32;
        self.add_inode(ino, parent, FILE_MODE, links, found.size, found.layout, found.epoch)?;
        Ok(true)
    }

    fn inode_from_subfiles(&self, subfiles: &[SubfileRow]) -> Option<RebuiltInode> {
        let known = |row: &SubfileRow| {
            let number = row.layout.ok()?;
            Some((self.facts.layouts.get(number), row.epoch, row.len))
        };
        let (layout, epoch) = best_layout(subfiles.iter().filter_map(known))?;
        // Bytes in another layout have no place in this file.
        let is_of_layout = |number| self.facts.layouts.get(number) == layout;
        let len_on = |target: TargetIndex| {
            subfiles
                .iter()
                .filter(|row| row.target == target && row.layout.is_ok_and(is_of_layout))
                .map(|row| row.len)
                .max()
                .unwrap_or(0)
        };
        let lens: Vec<u64> = targets_of(&layout).map(len_on).collect();
        Some(RebuiltInode { layout, epoch, size: file_size_from(&layout, &lens)? })
    }

    /// Returns the layout of new files in rebuilt directories: that of the root, if it exists.
    fn default_layout(&self) -> Layout {
        let map = self.stores.map();
        let root = self.facts.inode(Ino::ROOT).map(|row| self.facts.layouts.get(row.layout));
        let targets = map.target_count();
        root.unwrap_or(Layout { stripe: map.stripe, width: targets, base: TargetIndex(0), targets })
    }

    #[allow(clippy::too_many_arguments, reason = "an inode has so many parts; all callers are above")]
    fn add_inode(
        &self,
        ino: Ino,
        parent: Ino,
        mode: u32,
        nlink: u32,
        size: u64,
        layout: Layout,
        epoch: u32,
    ) -> FsResult<()> {
        let slot = ino.slot();
        let (uid, gid, time) = self.owner();
        let (atime, mtime, ctime) = (time, time, time);
        let (rdev, holes) = (0, 0);
        let data_version = 0;
        let attr = Attr {
            ino,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            holes,
            atime,
            mtime,
            ctime,
            epoch,
            layout,
            data_version,
            contract: None,
        };
        let inode = Inode { attr, parent, placement: Some(Placement::Striped) };
        let mut txn = self.home(ino)?.txn(&[slot]);
        // An existing inode is never overwritten.
        if txn.get(slot, &inode_key(ino)).is_none() {
            txn.put(slot, &inode_key(ino), &inode.to_bytes());
        }
        Ok(txn.commit()?)
    }

    /// Returns owner and time of the root directory, in place of lost ones.
    pub(super) fn owner(&self) -> (u32, u32, Timestamp) {
        let unknown = (0, 0, Timestamp { secs: 0, nanos: 0 });
        let Ok(records) = self.home(Ino::ROOT) else { return unknown };
        records.read(Ino::ROOT.slot(), &inode_key(Ino::ROOT), |bytes| {
            let root = bytes.and_then(|bytes| Inode::from_bytes(bytes).ok());
            root.map_or(unknown, |root| (root.attr.uid, root.attr.gid, root.attr.mtime))
        })
    }
}
