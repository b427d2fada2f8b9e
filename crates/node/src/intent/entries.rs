//! Intents on one entry: make or remove a directory, unlink, link.

use bivouac_types::{Errno, FsResult, Ino, Name, PartitionId, mode};
use bivouac_wire::{AdjustLinksRequest, Encode, InoOnly, PutInodeRequest, SetParentRequest, op};

use super::{Outcome, dentry_of, refused, refused_or_full};
use crate::intent_record::{LoggedIntent, NewDir, OldEntry};
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::StepContext;
use crate::record::{Dentry, intent_key};

/// Number of the step of a link by which an inode learns its new name; 0 and 1 count its links.
const NOTE_NAME: u64 = 2;

impl Node {
    /// Carries out the steps: the inode at its home; then the entry.
    pub(super) fn finish_make_dir(
        &self,
        new: &NewDir,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        let (ino, name) = (new.inode.attr.ino, Name::new(&new.name)?);
        let home = self.home_of(ino)?;
        let record = new.inode.to_bytes();
        let site = new.site.as_ref().map(Encode::to_bytes);
        let put = PutInodeRequest { ino, record: &record, target: &[], site: site.as_deref() };
        if let Err(error) = refused_or_full(self.step::<op::PutInode>(home, steps, 0, put))? {
            return Ok(Outcome::Refused(error));
        }
        let partition = new.inode.attr.layout.partition();
        let is_brought = new.site.as_ref().is_some_and(|site| site.origin.is_some());
        let entry = (dentry_of(&new.inode), partition, is_brought);
        match self.add_last(new.inode.parent, &name, entry, logged)? {
            Ok(change) => self.clear(change, logged, steps, ino.0),
            Err(error) => {
                // Nobody has heard of the inode yet: without it all is as it was.
                self.step::<op::DropInode>(home, steps, 1, InoOnly { ino })?;
                // Its parent has become the root of a partition meanwhile: it is made anew, in that.
                let is_other = error.errno() == Errno::EXDEV;
                Ok(Outcome::Refused(if is_other { Errno::EAGAIN.into() } else { error }))
            }
        }
    }

    /// Returns a change that makes an entry for what is in a partition, if there is still room for it. By what is brought
    /// from site storage the directory is no other than it is there.
    fn add_last(
        &self,
        dir: Ino,
        name: &Name,
        (dentry, partition, is_brought): (Dentry, PartitionId, bool),
        logged: &LoggedIntent,
    ) -> FsResult<FsResult<Change<'_>>> {
        // Looked up anew: the directory may have been removed since.
        let place = match refused(self.place(dir, name))? {
            Ok(place) => place,
            Err(error) => return Ok(Err(error)),
        };
        let [slot, book] = place.slots();
        let mut change = self.change_at(&[logged.slot, slot, book], &place.items())?;
        if change.dentry(&place)?.is_some() {
            return Ok(Err(Errno::EEXIST.into()));
        }
        match refused(change.directory(&place))? {
            Ok(parent) if parent.partition() != partition => return Ok(Err(Errno::EXDEV.into())),
            Ok(mut parent) => {
                // As `Node::put_entry` does. A spread directory has its record elsewhere, which is not touched here.
                let before = if is_brought && !place.is_spread() { change.site_file(dir)? } else { None };
                change.add_entry(&mut parent, &place, dentry);
                if let Some(before) = before {
                    change.put_site_file(dir, &before);
                }
            }
            Err(error) => return Ok(Err(error)),
        }
        Ok(Ok(change))
    }

    /// Carries out the steps: the empty directory at its home, and its shards; then the entry.
    pub(super) fn finish_remove_dir(
        &self,
        old: &OldEntry,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        let removed = match self.remove_dir_steps(old.ino, false, steps, 0)? {
            Ok(removed) => removed,
            Err(error) => return Ok(Outcome::Refused(error)),
        };
        // Before the entry goes with the intent: nobody would look for shards afterwards.
        if removed.may_have_shards(steps) {
            self.drop_shards(old.ino, steps)?;
        }
        let change = self.forget_last(old, mode::DIR, logged)?;
        self.clear(change, logged, steps, 0)
    }

    /// Returns a change that removes an entry if it still leads where the intent says.
    pub(super) fn forget_last(
        &self,
        old: &OldEntry,
        kind: u32,
        logged: &LoggedIntent,
    ) -> FsResult<Change<'_>> {
        let place = self.place(old.parent, &Name::new(&old.name)?)?;
        let [slot, book] = place.slots();
        let mut change = self.change_at(&[logged.slot, slot, book], &place.items())?;
        if change.dentry(&place)?.is_some_and(|dentry| dentry.ino == old.ino) {
            let mut parent = change.directory(&place)?;
            change.remove_entry(&mut parent, &place, Dentry { ino: old.ino, kind });
        }
        Ok(change)
    }

    /// Begins an unlink: the name goes first, together with the intent, so that what is left cannot be refused.
    pub(super) fn begin_unlink(&self, old: &OldEntry, logged: &LoggedIntent) -> FsResult<Change<'_>> {
        let place = self.place(old.parent, &Name::new(&old.name)?)?;
        let [slot, book] = place.slots();
        let mut change = self.change_at(&[slot, book], &place.items())?;
        let Some(dentry) = change.dentry(&place)?.filter(|dentry| dentry.ino == old.ino) else {
            // Retried by `patiently`: nothing was logged yet.
            return Err(Errno::EBUSY.into());
        };
        let mut parent = change.directory(&place)?;
        change.remove_entry(&mut parent, &place, dentry);
        logged.asker().remember(&mut change.txn, slot, 0);
        Ok(change)
    }

    /// Carries out the step: one name less at the inode's home.
    pub(super) fn finish_unlink(
        &self,
        old: &OldEntry,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        let request = AdjustLinksRequest { ino: old.ino, delta: -1 };
        if let Err(error) = refused(self.step::<op::AdjustLinks>(self.home_of(old.ino)?, steps, 0, request))?
        {
            // The name is gone, and its asker may know that: there is nothing left to refuse.
            log::warn!(why:% = error; "unlink of inode {}", old.ino);
        }
        // The result was remembered when the name went, so that only the intent is left to be ended.
        let mut change = self.change_at(&[logged.slot], &[])?;
        change.txn.delete(logged.slot, &intent_key(steps.tx));
        change.commit()?;
        Ok(Outcome::Done)
    }

    /// Carries out the steps: one name more at the inode's home, which notes it if the inode is in front of site
    /// storage; then the entry.
    pub(super) fn finish_link(
        &self,
        new: &OldEntry,
        logged: &LoggedIntent,
        steps: StepContext,
    ) -> FsResult<Outcome> {
        let (home, name) = (self.home_of(new.ino)?, Name::new(&new.name)?);
        let request = AdjustLinksRequest { ino: new.ino, delta: 1 };
        let attr = match refused(self.step::<op::AdjustLinks>(home, steps, 0, request))? {
            Ok(attr) => attr,
            Err(error) => return Ok(Outcome::Refused(error)),
        };
        if self.is_bound(attr.layout.partition()) {
            let request =
                SetParentRequest { ino: new.ino, parent: new.parent, name: new.name.clone(), back: false };
            self.step::<op::SetParent>(home, steps, NOTE_NAME, request)?;
        }
        let dentry = Dentry { ino: new.ino, kind: attr.mode & mode::TYPE };
        match self.add_last(new.parent, &name, (dentry, attr.layout.partition(), false), logged)? {
            Ok(change) => self.clear(change, logged, steps, 0),
            Err(error) => {
                self.begin_undo(logged, steps)?;
                Ok(Outcome::Refused(error))
            }
        }
    }

    pub(super) fn undo_link(&self, new: &OldEntry, steps: StepContext) -> FsResult<()> {
        let request = AdjustLinksRequest { ino: new.ino, delta: -1 };
        // With the number of the step that it undoes it would be taken for the repetition of that.
        self.step::<op::AdjustLinks>(self.home_of(new.ino)?, steps, 1, request).map(drop)
    }

    /// Commits the last records of an intent together with its end.
    pub(super) fn clear(
        &self,
        mut change: Change<'_>,
        logged: &LoggedIntent,
        steps: StepContext,
        value: u64,
    ) -> FsResult<Outcome> {
        change.txn.delete(logged.slot, &intent_key(steps.tx));
        logged.asker().remember(&mut change.txn, logged.slot, value);
        change.commit()?;
        Ok(Outcome::Done)
    }
}
