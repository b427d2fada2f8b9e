//! Inodes that are lost, made anew from what is left of them.

use bivouac_layout::{file_size_from, seats_of};
use bivouac_node::record::{Inode, inode_key};
use bivouac_types::{Attr, FsResult, Ino, Layout, Placement, SeatIndex, Timestamp, mode};
use bivouac_wire::{Decode, Encode};

use super::Repairer;
use crate::facts::SubfileRow;
use crate::source::Source;

const DIR_MODE: u32 = mode::DIR | 0o700;
const FILE_MODE: u32 = mode::FILE | 0o600;

/// What the subfiles of a file say together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromSubfiles {
    /// The layout of the newest of them.
    pub layout: Layout,
    /// The highest epoch.
    pub epoch: u32,
    /// The smallest size that explains their lengths.
    pub size: u64,
}

/// The layout that most of a file's data is kept in: a seat that a later layout does without keeps the old one
/// in its header, and no data.
pub fn best_layout(subfiles: impl Iterator<Item = (Layout, u32, u64)>) -> Option<(Layout, u32)> {
    let weight = |(_, epoch, len): &(Layout, u32, u64)| (*epoch, *len > 0, *len);
    subfiles.max_by_key(weight).map(|(layout, epoch, _)| (layout, epoch))
}

impl Repairer<'_> {
    pub(super) fn rebuild_dir(&self, ino: Ino, parent: Ino) -> FsResult<()> {
        // One that was spread has parts on its nodes.
        let epoch = u32::from(!self.facts.shards_of(ino).is_empty());
        self.add_inode(ino, parent, DIR_MODE, 2, 0, self.default_layout(), epoch)
    }

    /// Makes a file of subfiles that belong to none; or removes them if that is wished and nothing names them.
    pub(super) fn rebuild_or_discard(&self, ino: Ino) -> FsResult<bool> {
        let subfiles = self.facts.subfiles_of(ino);
        let names = self.facts.names_of(ino);
        if self.leave.discard_unreferenced && names.is_empty() {
            subfiles.iter().try_for_each(|subfile| self.remove_subfile(subfile))?;
            return Ok(true);
        }
        let Some(found) = self.as_subfiles_say(subfiles) else { return Ok(false) };
        let parent = names.first().map_or(Ino::ROOT, |entry| entry.parent);
        let links = names.len() as u32;
        self.add_inode(ino, parent, FILE_MODE, links, found.size, found.layout, found.epoch)?;
        Ok(true)
    }

    fn as_subfiles_say(&self, subfiles: &[SubfileRow]) -> Option<FromSubfiles> {
        let known = |row: &SubfileRow| {
            let number = row.layout.ok()?;
            Some((self.facts.layouts.get(number), row.epoch, row.len))
        };
        let (layout, epoch) = best_layout(subfiles.iter().filter_map(known))?;
        let len_on = |seat: SeatIndex| {
            subfiles
                .iter()
                .filter(|row| row.seat == seat && row.layout.is_ok())
                .map(|row| row.len)
                .max()
                .unwrap_or(0)
        };
        let lens: Vec<u64> = seats_of(&layout).map(len_on).collect();
        Some(FromSubfiles { layout, epoch, size: file_size_from(&layout, &lens)? })
    }

    /// The layout that new files of rebuilt directories get: that of the root, if it is there.
    fn default_layout(&self) -> Layout {
        let map = self.stores.map();
        let root = self.facts.inode(Ino::ROOT).map(|row| self.facts.layouts.get(row.layout));
        let seats = map.seat_count();
        root.unwrap_or(Layout { stripe: map.stripe, width: seats, base: SeatIndex(0), seats })
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
        let attr = Attr { ino, mode, nlink, uid, gid, rdev, size, holes, atime, mtime, ctime, epoch, layout };
        let inode = Inode { attr, parent, placement: Some(Placement::Striped) };
        let mut txn = self.home(ino)?.txn(&[slot]);
        if txn.get(slot, &inode_key(ino)).is_none() {
            txn.put(slot, &inode_key(ino), &inode.to_bytes());
        }
        Ok(txn.commit()?)
    }

    /// Owner and time of the root directory stand in for what is lost.
    pub(super) fn owner(&self) -> (u32, u32, Timestamp) {
        let unknown = (0, 0, Timestamp { secs: 0, nanos: 0 });
        let Ok(records) = self.home(Ino::ROOT) else { return unknown };
        records.read(Ino::ROOT.slot(), &inode_key(Ino::ROOT), |bytes| {
            let root = bytes.and_then(|bytes| Inode::from_bytes(bytes).ok());
            root.map_or(unknown, |root| (root.attr.uid, root.attr.gid, root.attr.mtime))
        })
    }
}
