//! Files and whole trees are removed.

use bivouac_client::{Attr, DirEntry, ParentAndName};
use bivouac_types::{Errno, ExpectedFile, FsError, FsResult, Ino};

use crate::cancellation::Cancellation;
use crate::request_path::{RequestPath, is_reserved};
use crate::tree::{Access, READ, REPLACED_TRIES, Tree, WRITE};
use crate::tree_state::TreeState;

/// Failure of the removal of a tree, and the path of the object below its top.
#[derive(Debug)]
pub struct RemovalError {
    pub below: Vec<Vec<u8>>,
    pub error: FsError,
}

/// A directory whose entries are being removed.
struct Level {
    dir: Attr,
    place: ParentAndName,
    /// Entries that are still to be removed, the next one last.
    seen: Vec<DirEntry>,
    /// Behind what was seen.
    cookie: u64,
    /// True if an entry was removed since the listing began.
    has_removed: bool,
}

impl Level {
    fn new(dir: Attr, place: ParentAndName) -> Level {
        Level { dir, place, seen: Vec::new(), cookie: 0, has_removed: false }
    }
}

/// Restrictions of a removal.
#[derive(Clone, Copy, Default)]
struct RemovalRules<'a> {
    /// True to respect permissions.
    asks: bool,
    /// Ends the removal when the client is gone.
    cancellation: Option<&'a Cancellation>,
    /// Removes only what was in the tree at its scan.
    seen: Option<&'a TreeState>,
    /// The top of the tree, which may have another name than at its scan.
    top: Option<Ino>,
}

impl RemovalRules<'_> {
    fn allow(&self, place: &ParentAndName, now: &Attr) -> FsResult<()> {
        // States are without hidden names; the top has got one by now.
        let is_top = is_reserved(&place.name) || self.top == Some(now.ino);
        let has = |seen: &TreeState| is_top || seen.has(place.parent, &place.name, now);
        if self.seen.is_none_or(has) { Ok(()) } else { Err(Errno::EBUSY.into()) }
    }
}

impl Tree {
    /// Removes a file, a link, or an empty directory; `check` sees it first, and returns what must still hold at the
    /// removal.
    ///
    /// # Errors
    /// As [`Tree::upload`]; `ENOENT`, `ENOTEMPTY`; what `check` says; `ECANCELED` if it is changed all the time.
    pub fn remove<E: From<FsError>>(
        &self,
        access: &Access,
        target: &RequestPath,
        check: impl Fn(&Attr) -> Result<Option<ExpectedFile>, E>,
    ) -> Result<(), E> {
        let path = RequestPath { is_dir: false, ..target.clone() };
        let place = self.place(access, &path, false)?;
        let _alone = self.names.of(&place).lock();
        let check = |found: &Attr| -> Result<_, E> {
            let expected = check(found)?;
            if target.is_dir && !found.is_dir() {
                Err(FsError::from(Errno::ENOTDIR).into())
            } else {
                Ok(expected)
            }
        };
        if self.remove_file(&place, check)?.is_some() {
            let change = self.member.change()?;
            self.client()?.rmdir(&change.ctx, place.parent, &place.name)?;
        }
        Ok(())
    }

    /// Removes what is no directory, as [`Tree::remove`] does. A directory for which `check` holds is left, and
    /// returned. The caller has the lock of the name.
    pub(crate) fn remove_file<E: From<FsError>>(
        &self,
        place: &ParentAndName,
        check: impl Fn(&Attr) -> Result<Option<ExpectedFile>, E>,
    ) -> Result<Option<Attr>, E> {
        let client = self.client()?;
        for _ in 0..REPLACED_TRIES {
            let found = self.at(place)?.ok_or_else(|| FsError::from(Errno::ENOENT))?;
            let expected = check(&found)?;
            if found.is_dir() {
                return Ok(Some(found));
            }
            let change = self.member.change()?;
            let removed = match expected {
                None => client.unlink(&change.ctx, place.parent, &place.name),
                Some(expected) => client.unlink_expected(&change.ctx, place.parent, &place.name, expected),
            };
            match removed {
                // Changed since the check: the new state is checked again.
                Err(error) if error.errno() == Errno::ECANCELED => {}
                removed => return Ok(removed.map(|()| None)?),
            }
        }
        Err(FsError::from(Errno::ECANCELED).into())
    }

    /// Returns the object to remove with its content; a link to a directory is removed itself.
    ///
    /// # Errors
    /// As [`Tree::upload`]; `ENOENT`; `ENOTDIR` for a file whose path ends in a slash.
    pub fn to_remove(&self, access: &Access, target: &RequestPath) -> FsResult<(ParentAndName, Attr)> {
        let place = self.place(access, &RequestPath { is_dir: false, ..target.clone() }, false)?;
        let found = self.at(&place)?.ok_or(Errno::ENOENT)?;
        if found.is_file() && target.is_dir { Err(Errno::ENOTDIR.into()) } else { Ok((place, found)) }
    }

    /// Removes a directory with all directories in it; nothing, if there is anything else in one of them.
    pub fn remove_dirs(&self, access: &Access, target: &RequestPath) -> FsResult<()> {
        let place = self.place(access, &RequestPath { is_dir: false, ..target.clone() }, false)?;
        let top = self.at(&place)?.ok_or(Errno::ENOENT)?;
        if !top.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        // Parents before their entries; removed in reverse.
        let mut dirs = vec![(place, top)];
        let mut seen = 0;
        while let Some(dir) = dirs.get(seen).map(|(_, dir)| *dir) {
            self.may(&dir, READ)?;
            self.each_entry(dir.ino, |entry| {
                // Entries that are already gone do not matter.
                let Some(attr) = entry.attr else { return Ok(()) };
                if !attr.is_dir() {
                    return Err(Errno::ENOTEMPTY.into());
                }
                self.may(&dir, WRITE)?;
                dirs.push((ParentAndName { parent: dir.ino, name: entry.name, is_dir: true }, attr));
                Ok(())
            })?;
            seen += 1;
        }
        for (place, _) in dirs.iter().rev() {
            let change = self.member.change()?;
            self.client()?.rmdir(&change.ctx, place.parent, &place.name)?;
        }
        Ok(())
    }

    /// Removes what is at a place, with all below it. Links are removed, and not what they lead to. What others remove
    /// at the same time is removed.
    ///
    /// # Errors
    /// What stopped it: what is in front of that is gone. `EINTR` if nobody waits for it any more.
    pub fn remove_all_for(
        &self,
        cancellation: &Cancellation,
        place: &ParentAndName,
        top: Attr,
    ) -> Result<(), RemovalError> {
        self.remove_levels(
            place,
            top,
            RemovalRules { asks: true, cancellation: Some(cancellation), ..RemovalRules::default() },
        )
    }

    /// Removes what the server itself has put somewhere, or has replaced, whatever its permissions are.
    pub(crate) fn discard(&self, place: &ParentAndName, top: Attr) -> Result<(), RemovalError> {
        self.remove_levels(place, top, RemovalRules::default())
    }

    /// Removes a tree, but nothing that was not seen in it before.
    ///
    /// # Errors
    /// `EBUSY` for that; what the formation says.
    pub(crate) fn remove_seen(
        &self,
        place: &ParentAndName,
        top: Attr,
        seen: &TreeState,
    ) -> Result<(), RemovalError> {
        self.remove_levels(
            place,
            top,
            RemovalRules { seen: Some(seen), top: Some(top.ino), ..RemovalRules::default() },
        )
    }

    fn remove_levels(
        &self,
        place: &ParentAndName,
        top: Attr,
        rules: RemovalRules<'_>,
    ) -> Result<(), RemovalError> {
        if !top.is_dir() {
            return self.unlink(place.parent, &place.name).map_err(|error| stopped(&[], error));
        }
        let mut levels = vec![Level::new(top, place.clone())];
        while let Some(level) = levels.last_mut() {
            match self.empty(level, rules) {
                Ok(Some(next)) => levels.push(next),
                Ok(None) => {
                    let removed = self.rmdir(&level.place);
                    let has_removed = std::mem::take(&mut level.has_removed);
                    let is_removed = removed.is_ok();
                    match removed {
                        // An entry was created before the position of the listing: it starts again.
                        Err(error) if error.errno() == Errno::ENOTEMPTY && has_removed => {
                            level.cookie = 0;
                            continue;
                        }
                        // That somebody else has removed it is an error for the top alone.
                        Err(error) if error.errno() != Errno::ENOENT || levels.len() == 1 => {
                            return Err(stopped(&levels, error));
                        }
                        _ => levels.pop(),
                    };
                    if let Some(above) = levels.last_mut() {
                        above.has_removed |= is_removed;
                    }
                }
                Err(error) => return Err(stopped(&levels, error)),
            }
        }
        Ok(())
    }

    /// Removes what is in a directory up to the next directory, which is to be removed first.
    fn empty(&self, level: &mut Level, rules: RemovalRules<'_>) -> FsResult<Option<Level>> {
        if rules.asks {
            self.may(&level.dir, READ | WRITE)?;
        }
        rules.allow(&level.place, &level.dir)?;
        let parent = level.dir.ino;
        let is_gone = |error: &FsError| error.errno() == Errno::ENOENT;
        loop {
            while let Some(entry) = level.seen.pop() {
                rules.cancellation.map_or(Ok(()), Cancellation::check_cancelled)?;
                if let Some(attr) = entry.attr.filter(Attr::is_dir) {
                    let place = ParentAndName { parent, name: entry.name, is_dir: true };
                    return Ok(Some(Level::new(attr, place)));
                }
                match self.unlink_if(&ParentAndName { parent, name: entry.name, is_dir: false }, rules) {
                    Ok(()) => level.has_removed = true,
                    Err(error) if is_gone(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            level.seen = match self.entries(parent, level.cookie) {
                Err(error) if is_gone(&error) => return Ok(None),
                seen => seen?,
            };
            let Some(last) = level.seen.last() else { return Ok(None) };
            level.cookie = last.cookie;
            level.seen.reverse();
        }
    }

    /// Removes what is no directory. No request to this server puts something in its place between the look at it and
    /// that.
    fn unlink_if(&self, place: &ParentAndName, rules: RemovalRules<'_>) -> FsResult<()> {
        if rules.seen.is_some() {
            let _alone = self.names.of(place).lock();
            if let Some(now) = self.at(place)? {
                rules.allow(place, &now)?;
            }
            return self.unlink(place.parent, &place.name);
        }
        self.unlink(place.parent, &place.name)
    }

    fn rmdir(&self, place: &ParentAndName) -> FsResult<()> {
        let change = self.member().change()?;
        self.client()?.rmdir(&change.ctx, place.parent, &place.name)
    }
}

fn stopped(levels: &[Level], error: FsError) -> RemovalError {
    RemovalError { below: levels.iter().skip(1).map(|level| level.place.name.clone()).collect(), error }
}
