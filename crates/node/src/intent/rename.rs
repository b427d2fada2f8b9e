//! Moving an entry between nodes. For a moment both names lead to the inode, never neither.

use bivouac_types::{Errno, FsResult, Ino, Name, mode};
use bivouac_wire::{AdjustLinksRequest, InoOnly, InstallEntryRequest, PutInodeRequest, SetParentRequest};
use bivouac_wire::{codec_struct, op};

use super::{Logged, OldEntry, Outcome, refused};
use crate::namespace::entry_slot;
use crate::node::Node;
use crate::peers::Steps;

/// A move, as it was found to be possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The directory that holds the entry.
    pub parent: Ino,
    /// Its name there.
    pub name: Vec<u8>,
    /// The directory that is to hold it.
    pub new_parent: Ino,
    /// Its name there.
    pub new_name: Vec<u8>,
    /// What is moved.
    pub ino: Ino,
    /// Type bits of that.
    pub kind: u32,
    /// What the new name led to.
    pub replaced: Option<Ino>,
    /// Type bits of that.
    pub replaced_kind: u32,
    /// The turn at moving directories that it needs; 0 for none.
    pub turn: u64,
}
codec_struct!(Move { parent, name, new_parent, new_name, ino, kind, replaced, replaced_kind, turn });

/// Numbers of a move's steps.
const REMOVE_DIR: u64 = 0;
const SET_PARENT: u64 = 1;
const INSTALL: u64 = 2;
const DROP_LINK: u64 = 3;
const PARENT_BACK: u64 = 4;
const DIR_BACK: u64 = 5;

impl Node {
    /// Steps: a replaced directory goes; the moved directory learns its parent; the new name leads to the
    /// inode; a replaced file loses a name; the old name goes.
    pub(super) fn finish_rename(&self, moved: &Move, logged: &Logged, steps: Steps) -> FsResult<Outcome> {
        let replaced_dir = moved.replaced.filter(|_| moved.replaced_kind == mode::DIR);
        let mut dir_record = Vec::new();
        if let Some(ino) = replaced_dir {
            match refused(self.step::<op::RemoveDir>(self.home_of(ino)?, steps, REMOVE_DIR, InoOnly { ino }))?
            {
                Ok(removed) => dir_record = removed.record,
                Err(error) => return Ok(Outcome::Refused(error)),
            }
        }
        let parent_set = refused(self.set_parent(moved, moved.new_parent, SET_PARENT, steps))?;
        let installed = parent_set.and_then(|()| self.install(moved, steps));
        let in_use = installed.as_ref().is_err_and(|error| error.errno() == Errno::EAGAIN);
        if in_use && steps.retry && replaced_dir.is_some() {
            // What was replaced may be gone already: finished as soon as the entry is free.
            return Err(Errno::EIO.into());
        }
        if let Err(error) = refused(installed)? {
            if let Err(error) = refused(self.set_parent(moved, moved.parent, PARENT_BACK, steps))? {
                log::warn!("directory {} keeps a parent that it did not get: {error}", moved.ino);
            }
            if let Some(ino) = replaced_dir.filter(|_| !dir_record.is_empty()) {
                let back = PutInodeRequest { ino, record: &dir_record, target: &[] };
                self.step::<op::PutInode>(self.home_of(ino)?, steps, DIR_BACK, back)?;
            }
            return Ok(Outcome::Refused(error));
        }
        if let Some(ino) = moved.replaced.filter(|_| moved.replaced_kind != mode::DIR) {
            let request = AdjustLinksRequest { ino, delta: -1 };
            if let Err(error) =
                refused(self.step::<op::AdjustLinks>(self.home_of(ino)?, steps, DROP_LINK, request))?
            {
                log::warn!("rename over inode {ino}: {error}");
            }
        }
        let mut change = self.change(&[entry_slot(moved.parent)])?;
        let old = OldEntry { parent: moved.parent, name: moved.name.clone(), ino: moved.ino };
        change.forget_entry(&old, moved.kind)?;
        self.clear(change, logged, steps, 0)
    }

    fn set_parent(&self, moved: &Move, parent: Ino, number: u64, steps: Steps) -> FsResult<()> {
        if moved.kind != mode::DIR || moved.parent == moved.new_parent {
            return Ok(());
        }
        let request = SetParentRequest { ino: moved.ino, parent };
        self.step::<op::SetParent>(self.home_of(moved.ino)?, steps, number, request)
    }

    fn install(&self, moved: &Move, steps: Steps) -> FsResult<()> {
        Name::new(&moved.new_name)?;
        let request = InstallEntryRequest {
            parent: moved.new_parent,
            name: &moved.new_name,
            expect: moved.replaced,
            expect_dir: moved.replaced_kind == mode::DIR,
            ino: moved.ino,
            kind: moved.kind,
        };
        self.step::<op::InstallEntry>(self.home_of(moved.new_parent)?, steps, INSTALL, request)
    }
}
