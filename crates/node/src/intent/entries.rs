//! Intents on one entry: make or remove a directory, unlink, link.

use bivouac_types::{Errno, FsResult, Name, mode};
use bivouac_wire::{AdjustLinksRequest, Encode, InoOnly, PutInodeRequest, op};

use super::{Logged, NewDir, OldEntry, Outcome, dentry_of, refused};
use crate::namespace::{Change, entry_slot};
use crate::node::Node;
use crate::peers::Steps;
use crate::record::{Dentry, intent_key};

impl Node {
    /// Steps: the inode at its home; then the entry.
    pub(super) fn finish_make_dir(&self, new: &NewDir, logged: &Logged, steps: Steps) -> FsResult<Outcome> {
        let (ino, name) = (new.inode.attr.ino, Name::new(&new.name)?);
        let home = self.home_of(ino)?;
        let record = new.inode.to_bytes();
        let put = PutInodeRequest { ino, record: &record, target: &[] };
        match self.step::<op::PutInode>(home, steps, 0, put) {
            // Nothing has happened anywhere: better to say so than to finish it some day.
            Err(error) if error.errno() == Errno::ENOSPC => return Ok(Outcome::Refused(error)),
            outcome => {
                if let Err(error) = refused(outcome)? {
                    return Ok(Outcome::Refused(error));
                }
            }
        }
        let slot = entry_slot(new.inode.parent);
        let mut change = self.change(&[slot])?;
        let parent = change.directory(new.inode.parent);
        let taken = change.dentry(new.inode.parent, &name)?.is_some();
        match parent {
            Ok(mut parent) if !taken => {
                change.add_entry(&mut parent, &name, dentry_of(&new.inode));
                self.clear(change, logged, steps, ino.0)
            }
            parent => {
                drop(change);
                self.step::<op::DropInode>(home, steps, 1, InoOnly { ino })?;
                Ok(Outcome::Refused(parent.err().unwrap_or(Errno::EEXIST.into())))
            }
        }
    }

    /// Steps: the empty directory at its home; then the entry.
    pub(super) fn finish_remove_dir(
        &self,
        old: &OldEntry,
        logged: &Logged,
        steps: Steps,
    ) -> FsResult<Outcome> {
        let home = self.home_of(old.ino)?;
        if let Err(error) = refused(self.step::<op::RemoveDir>(home, steps, 0, InoOnly { ino: old.ino }))? {
            return Ok(Outcome::Refused(error));
        }
        let mut change = self.change(&[entry_slot(old.parent)])?;
        change.forget_entry(old, mode::DIR)?;
        self.clear(change, logged, steps, 0)
    }

    /// The name goes first, together with the intent: what is left of an unlink cannot be refused.
    pub(super) fn begin_unlink(&self, old: &OldEntry, logged: &Logged) -> FsResult<Change<'_>> {
        let slot = entry_slot(old.parent);
        let mut change = self.change(&[slot])?;
        let dentry = change.dentry(old.parent, &Name::new(&old.name)?)?;
        let Some(dentry) = dentry.filter(|dentry| dentry.ino == old.ino) else {
            return Err(Errno::EBUSY.into());
        };
        change.forget_entry(old, dentry.kind)?;
        logged.asker().remember(&mut change.txn, slot, 0);
        Ok(change)
    }

    /// Steps: one name less at the inode's home.
    pub(super) fn finish_unlink(&self, old: &OldEntry, _: &Logged, steps: Steps) -> FsResult<Outcome> {
        let request = AdjustLinksRequest { ino: old.ino, delta: -1 };
        if let Err(error) = refused(self.step::<op::AdjustLinks>(self.home_of(old.ino)?, steps, 0, request))?
        {
            log::warn!("unlink of inode {}: {error}", old.ino);
        }
        let slot = entry_slot(old.parent);
        let mut change = self.change(&[slot])?;
        change.txn.delete(slot, &intent_key(steps.tx));
        change.commit()?;
        Ok(Outcome::Done)
    }

    /// Steps: one name more at the inode's home; then the entry.
    pub(super) fn finish_link(&self, new: &OldEntry, logged: &Logged, steps: Steps) -> FsResult<Outcome> {
        let (home, name) = (self.home_of(new.ino)?, Name::new(&new.name)?);
        let request = AdjustLinksRequest { ino: new.ino, delta: 1 };
        let attr = match refused(self.step::<op::AdjustLinks>(home, steps, 0, request))? {
            Ok(attr) => attr,
            Err(error) => return Ok(Outcome::Refused(error)),
        };
        let mut change = self.change(&[entry_slot(new.parent)])?;
        let parent = change.directory(new.parent);
        let taken = change.dentry(new.parent, &name)?.is_some();
        match parent {
            Ok(mut parent) if !taken => {
                let dentry = Dentry { ino: new.ino, kind: attr.mode & mode::TYPE };
                change.add_entry(&mut parent, &name, dentry);
                self.clear(change, logged, steps, 0)
            }
            parent => {
                drop(change);
                self.step::<op::AdjustLinks>(home, steps, 1, AdjustLinksRequest { ino: new.ino, delta: -1 })?;
                Ok(Outcome::Refused(parent.err().unwrap_or(Errno::EEXIST.into())))
            }
        }
    }

    /// Commits the last records of an intent together with its end.
    pub(super) fn clear(
        &self,
        mut change: Change<'_>,
        logged: &Logged,
        steps: Steps,
        value: u64,
    ) -> FsResult<Outcome> {
        let slot = logged.intent.slot();
        change.txn.delete(slot, &intent_key(steps.tx));
        logged.asker().remember(&mut change.txn, slot, value);
        change.commit()?;
        Ok(Outcome::Done)
    }
}

impl Change<'_> {
    /// Removes an entry if it still leads where the intent says.
    pub(super) fn forget_entry(&mut self, old: &OldEntry, kind: u32) -> FsResult<()> {
        let name = Name::new(&old.name)?;
        match self.dentry(old.parent, &name)? {
            Some(dentry) if dentry.ino == old.ino => {
                let mut parent = self.directory(old.parent)?;
                self.remove_entry(&mut parent, &name, Dentry { ino: old.ino, kind });
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
