//! Atomic replacement of names; the replaced object is removed afterwards.

use bivouac_client::{Attr, ParentAndName};
use bivouac_types::{Errno, FsError, FsResult, Ino};

use crate::tree::{NAMES_TRIED, NOREPLACE, Tree, hidden};
use crate::tree_state::TreeState;

/// `RENAME_EXCHANGE` of the kernel.
const EXCHANGE: u32 = 2;

/// Object that a copy or a move has replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementOutcome {
    /// Nothing: the name is new.
    New,
    /// A file, by a file.
    OnFile,
    /// Another object.
    OnTree,
}

impl Tree {
    /// Moves what is at a place to another one, in place of what is there only if `replace` says so. Files take the
    /// place of files in one step. Where a directory is involved the two change places, and what was replaced is
    /// removed behind that: nothing that was there is gone before what comes is there.
    ///
    /// # Errors
    /// `EEXIST`; `EXDEV` between partitions; `EINVAL` for two paths of one place; `EACCES` if what is to be replaced
    /// could not be removed; what the formation says. Nothing has changed then.
    pub fn put_in_place(
        &self,
        from: &ParentAndName,
        to: &ParentAndName,
        replace: bool,
    ) -> FsResult<PlacementOutcome> {
        if (from.parent, &from.name) == (to.parent, &to.name) {
            return Err(Errno::EINVAL.into());
        }
        // Before the names are locked, because a scan of the tree may take long.
        let seen = if replace { self.at(to)?.filter(Attr::is_dir) } else { None };
        seen.map_or(Ok(()), |dir| self.may_remove(&dir))?;
        // Serializes this server's requests for the two names; other servers are excluded by the flags of the rename.
        let alone = self.names.of_both(from, to);
        // Mostly nothing is there, which the rename finds out by itself.
        match self.move_name(from, to, NOREPLACE) {
            Err(error) if error.errno() == Errno::EEXIST && replace => {}
            moved => return moved.map(|()| PlacementOutcome::New),
        }
        let moving = self.at(from)?.ok_or(Errno::ENOENT)?;
        let Some(found) = self.at(to)? else {
            return self.move_name(from, to, NOREPLACE).map(|()| PlacementOutcome::New);
        };
        if found.ino == moving.ino {
            return self.drop_name(from, to).map(|()| PlacementOutcome::OnFile);
        }
        if !found.is_dir() && !moving.is_dir() {
            return self.move_name(from, to, 0).map(|()| PlacementOutcome::OnFile);
        }
        // What is there by now was not looked through yet.
        if seen.is_none_or(|seen| seen.ino != found.ino) {
            self.may_remove(&found)?;
        }
        self.move_name(from, to, EXCHANGE)?;
        // The exchange has succeeded, so the request has, whatever happens to the replaced object.
        let replaced = self.set_aside(from, found.ino);
        // What was replaced has a hidden name by now, and may take long to be removed.
        drop(alone);
        match replaced {
            Ok(Some(aside)) => self.discard_aside(&aside),
            Ok(None) => {}
            Err(error) => log::warn!(why:% = error; "what was replaced is left where the new one was"),
        }
        Ok(PlacementOutcome::OnTree)
    }

    /// Moves a directory that is complete beside its place there, where a source has what it replaces: that does not get
    /// another name, so it goes first.
    ///
    /// # Errors
    /// As [`Tree::put_in_place`]. What was there may be gone, as a whole or in part.
    pub(crate) fn replace_at_source(
        &self,
        from: &ParentAndName,
        to: &ParentAndName,
    ) -> FsResult<PlacementOutcome> {
        let _alone = self.names.of_both(from, to);
        if let Some(found) = self.at(to)?.filter(Attr::is_dir) {
            self.may_remove(&found)?;
            self.discard(to, found).map_err(|stopped| stopped.error)?;
            self.client()?.finish_removals(to.parent, &to.name)?;
        }
        self.move_name(from, to, NOREPLACE).map(|()| PlacementOutcome::OnTree)
    }

    /// Removes the first of two names of a file. Another object that has taken the name is renamed, not removed.
    fn drop_name(&self, from: &ParentAndName, to: &ParentAndName) -> FsResult<()> {
        let aside = self.hide(from)?;
        // POSIX: a rename between two names of one file leaves both, so the first is hidden and removed.
        if let Err(error) = self.move_name(&aside, to, 0) {
            self.give_back(&aside, from)?;
            return Err(error);
        }
        match self.unlink(aside.parent, &aside.name) {
            Err(error) if error.errno() == Errno::ENOENT => Ok(()),
            removed => removed,
        }
    }

    /// Renames an inode to a hidden name; `None` if another object has its name by now.
    pub(crate) fn set_aside(&self, from: &ParentAndName, ino: Ino) -> FsResult<Option<ParentAndName>> {
        if self.at(from)?.is_none_or(|there| there.ino != ino) {
            return Ok(None);
        }
        let aside = match self.hide(from) {
            Err(error) if error.errno() == Errno::ENOENT => return Ok(None),
            aside => aside?,
        };
        // Another request may have replaced the object between the check and the rename.
        match self.at(&aside)? {
            Some(got) if got.ino == ino => Ok(Some(aside)),
            Some(_) => self.give_back(&aside, from).map(|()| None),
            None => Ok(None),
        }
    }

    /// Gives what was hidden its name again.
    ///
    /// # Errors
    /// Where it is, if something else has that name by now.
    pub(crate) fn give_back(&self, aside: &ParentAndName, to: &ParentAndName) -> FsResult<()> {
        self.move_name(aside, to, NOREPLACE).map_err(|error| {
            let (aside, name) = (String::from_utf8_lossy(&aside.name), String::from_utf8_lossy(&to.name));
            let why = error.detail().unwrap_or("the name is taken, or the formation refused");
            let error =
                FsError::with(error.errno(), format!("what was at {name} is in {aside} beside it: {why}"));
            log::error!(why:% = error; "a name could not be given back");
            error
        })
    }

    /// Renames the object at a place to a hidden name beside it.
    fn hide(&self, from: &ParentAndName) -> FsResult<ParentAndName> {
        for _ in 0..NAMES_TRIED {
            let place = ParentAndName { parent: from.parent, name: hidden()?, is_dir: false };
            match self.move_name(from, &place, NOREPLACE) {
                Err(error) if error.errno() == Errno::EEXIST => {}
                moved => return moved.map(|()| place),
            }
        }
        Err(Errno::EEXIST.into())
    }

    /// Removes an object with a hidden name. What cannot be removed stays hidden.
    pub(crate) fn discard_aside(&self, aside: &ParentAndName) {
        let removed = match self.at(aside) {
            Ok(Some(left)) => self.discard(aside, left).map_err(|stopped| stopped.error),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            let name = String::from_utf8_lossy(&aside.name);
            log::warn!(name:% = name, why:% = error; "what is not needed any more is left under a hidden name");
        }
    }

    /// Removes what is at a place, if it is still in this state. Whether it was: what has changed is at its name.
    ///
    /// # Errors
    /// Errors of the formation; where it is, if it has changed and something else has its name by now.
    pub fn remove_as_it_was(&self, place: &ParentAndName, ino: Ino, state: &TreeState) -> FsResult<bool> {
        let alone = self.names.of(place).lock();
        let aside = match self.set_aside(place, ino) {
            // A directory that a source has does not get another name, and is removed where it is.
            Err(error) if error.errno() == Errno::EXDEV => {
                drop(alone);
                return self.remove_in_place(place, ino, state);
            }
            aside => aside?,
        };
        let Some(aside) = aside else { return Ok(false) };
        drop(alone);
        let removed = self.at(&aside).and_then(|top| match top {
            Some(top) if self.state(&top)? == *state => {
                // A request that has opened the directory may still create files in it.
                self.remove_seen(&aside, top, state).map(|()| true).map_err(|stopped| stopped.error)
            }
            Some(_) => Ok(false),
            None => Ok(true),
        });
        match removed {
            Ok(true) => Ok(true),
            Ok(false) => self.give_back(&aside, place).map(|()| false),
            Err(error) => {
                self.give_back(&aside, place)?;
                if matches!(error.errno(), Errno::EBUSY | Errno::ENOTEMPTY) { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Like [`Tree::remove_as_it_was`], without another name: what changes while it is removed stays.
    fn remove_in_place(&self, place: &ParentAndName, ino: Ino, state: &TreeState) -> FsResult<bool> {
        let Some(top) = self.at(place)?.filter(|top| top.ino == ino) else { return Ok(false) };
        if self.state(&top)? != *state {
            return Ok(false);
        }
        match self.remove_seen(place, top, state).map_err(|stopped| stopped.error) {
            Err(error) if matches!(error.errno(), Errno::EBUSY | Errno::ENOTEMPTY) => Ok(false),
            removed => removed.map(|()| true),
        }
    }

    fn move_name(&self, from: &ParentAndName, to: &ParentAndName, flags: u32) -> FsResult<()> {
        let change = self.member().change()?;
        self.client()?.rename(&change.ctx, from.parent, &from.name, to.parent, &to.name, flags)
    }
}
