//! Moving an entry between nodes. For a moment both names lead to the inode, never neither.

use bivouac_types::{Errno, FsResult, Ino, Name, NodeId, mode};
use bivouac_wire::{AdjustLinksRequest, InoOnly, InstallEntryRequest, SetParentRequest, op};

use super::spread::Removed;
use super::{Outcome, refused, refused_or_full};
use crate::intent_record::{LoggedIntent, Move, OldEntry};
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::StepContext;
use crate::record::Dentry;

/// Numbers of a move's steps.
const REMOVE_DIR: u64 = 0;
const SET_PARENT: u64 = 1;
const INSTALL: u64 = 2;
const DROP_LINK: u64 = 3;
const PARENT_BACK: u64 = 4;
const DIR_BACK: u64 = 5;
const OTHER_PARENT: u64 = 6;
const OTHER_PARENT_BACK: u64 = 7;
const DROP_DIR: u64 = 8;

impl Node {
    /// Carries out the steps: a replaced directory goes; the moved inode learns it; the new name leads to the inode; a
    /// replaced file loses a name; the old name goes, or leads to what the new one led to.
    pub(super) fn finish_rename(
        &self,
        moved: &Move,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        // The steps that can be refused come first: once the new name leads to the inode there is no way back.
        let mut removed = Removed::default();
        if let Some(ino) = moved.replaced_dir() {
            match self.remove_dir_steps(ino, true, steps, REMOVE_DIR)? {
                Ok(was) => removed = was,
                Err(error) => return Ok(Outcome::Refused(error)),
            }
        }
        let parents = refused(self.set_parents(moved, steps))?;
        let installed = parents.and_then(|()| self.install(moved, steps));
        let installed_at = match refused_or_full(installed)? {
            Ok(node) => node,
            Err(error) => {
                self.begin_undo(logged, steps)?;
                return Ok(Outcome::Refused(error));
            }
        };
        self.tell_shard(moved.new_parent, installed_at, steps)?;
        // Only now: until the new name leads to the moved inode, it leads to this file, which must not be counted as
        // gone.
        if let Some(ino) = moved.replaced_file() {
            let request = AdjustLinksRequest { ino, delta: -1 };
            if let Err(error) =
                refused(self.step::<op::AdjustLinks>(self.home_of(ino)?, steps, DROP_LINK, request))?
            {
                // Both names are as they are to be, and nobody can be refused any more.
                log::warn!(why:% = error; "rename over inode {ino}");
            }
        }
        // Until here the replaced directory was only set aside, so that it could be restored.
        if let Some(ino) = moved.replaced_dir() {
            if removed.may_have_shards(steps) {
                self.drop_shards(ino, steps)?;
            }
            self.step::<op::DropDir>(self.home_of(ino)?, steps, DROP_DIR, InoOnly { ino })?;
        }
        let change = self.leave_old_name(moved, logged)?;
        self.clear(change, logged, steps, 0)
    }

    /// Returns the last change: the old name goes, or leads to what the new one led to.
    fn leave_old_name(&self, moved: &Move, logged: &LoggedIntent) -> FsResult<Change<'_>> {
        let old = OldEntry { parent: moved.parent, name: moved.name.clone(), ino: moved.ino };
        let Some(ino) = moved.replaced.filter(|_| moved.exchange) else {
            return self.forget_last(&old, moved.kind, logged);
        };
        let place = self.place(old.parent, &Name::new(&old.name)?)?;
        let [slot, book] = place.slots();
        let mut change = self.change_at(&[logged.slot, slot, book], &place.items())?;
        self.callbacks.moves_to(logged.client, place.name_item());
        if change.dentry(&place)?.is_some_and(|dentry| dentry.ino == moved.ino) {
            let mut parent = change.directory(&place)?;
            let (was, now) =
                (Dentry { ino: moved.ino, kind: moved.kind }, Dentry { ino, kind: moved.replaced_kind });
            change.replace_entry(&mut parent, &place, was, now);
        }
        Ok(change)
    }

    /// Undoes a rename whose new name could not be had: all is as it was.
    pub(super) fn undo_rename(&self, moved: &Move, steps: StepContext) -> FsResult<()> {
        let back = [
            self.set_parent(moved.ino, moved, false, PARENT_BACK, steps),
            self.set_other_parent(moved, false, OTHER_PARENT_BACK, steps),
        ];
        for outcome in back {
            if let Err(error) = refused(outcome)? {
                log::warn!(why:% = error; "inode {} keeps a parent that it did not get", moved.ino);
            }
        }
        if let Some(ino) = moved.replaced_dir() {
            self.step::<op::RestoreDir>(self.home_of(ino)?, steps, DIR_BACK, InoOnly { ino })?;
            // After the inode is back: a shard that opens earlier would take entries of a directory that is not there.
            self.unseal_shards(ino, steps)?;
        }
        Ok(())
    }

    fn set_parents(&self, moved: &Move, steps: StepContext) -> FsResult<()> {
        self.set_parent(moved.ino, moved, true, SET_PARENT, steps)?;
        self.set_other_parent(moved, true, OTHER_PARENT, steps)
    }

    /// Tells an inode that it is moved: a directory has a new parent, and all have a new ctime; `forth` or back again.
    fn set_parent(
        &self,
        ino: Ino,
        moved: &Move,
        forth: bool,
        number: u64,
        steps: StepContext,
    ) -> FsResult<()> {
        let to_new = forth == (ino == moved.ino);
        let (parent, name) =
            if to_new { (moved.new_parent, &moved.new_name) } else { (moved.parent, &moved.name) };
        let request = SetParentRequest { ino, parent, name: name.clone(), back: !forth };
        self.step::<op::SetParent>(self.home_of(ino)?, steps, number, request)
    }

    fn set_other_parent(&self, moved: &Move, forth: bool, number: u64, steps: StepContext) -> FsResult<()> {
        match moved.replaced.filter(|_| moved.exchange) {
            Some(ino) => self.set_parent(ino, moved, forth, number, steps),
            None => Ok(()),
        }
    }

    /// Lets the new name lead to the inode. Answers where it is.
    fn install(&self, moved: &Move, steps: StepContext) -> FsResult<NodeId> {
        let name = Name::new(&moved.new_name)?;
        let at = |node| {
            let request = InstallEntryRequest {
                parent: moved.new_parent,
                name: &moved.new_name,
                expect: moved.replaced,
                expect_dir: moved.replaced_kind == mode::DIR,
                expect_version: moved.expect_version,
                partition: moved.partition,
                ino: moved.ino,
                kind: moved.kind,
            };
            self.step::<op::InstallEntry>(node, steps, INSTALL, request).map(|()| node)
        };
        match self.at_entry(moved.new_parent, &name, at) {
            // If it was done before, the name may have been removed since, and then its directory: the home does
            // not know any more that it was spread.
            Err(error) if steps.retry && error.errno() == Errno::ENOENT => {
                at(self.shard_node(moved.new_parent, &name)?)
            }
            outcome => outcome,
        }
    }

    /// Calls `act` for the node of an entry: its directory's home, or the node of the hash if that says the directory
    /// is spread. Always in this order: the home has the record of what was done before the spreading.
    pub(crate) fn at_entry<T>(
        &self,
        dir: Ino,
        name: &Name,
        act: impl Fn(NodeId) -> FsResult<T>,
    ) -> FsResult<T> {
        match act(self.home_of(dir)?) {
            Err(error) if error.errno() == Errno::EREMOTE => act(self.shard_node(dir, name)?),
            outcome => outcome,
        }
    }

    /// Tells a directory's home that an entry was changed on a node, which could not tell that itself.
    fn tell_shard(&self, dir: Ino, node: NodeId, steps: StepContext) -> FsResult<()> {
        let told = StepContext { background: steps.background, ..StepContext::question(steps.origin) };
        if node == self.home_of(dir)? { Ok(()) } else { self.tell(told, dir, node, true) }
    }
}
