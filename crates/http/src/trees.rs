//! Whole trees: removed and copied.

use std::sync::Arc;

use bivouac_client::{Attr, DirEntry, NewInode, Place};
use bivouac_types::{Errno, FsError, FsResult, Ino, mode};

use crate::placing::{Landed, State, hidden};
use crate::target::{Target, is_reserved};
use crate::tree::{Access, Asker, READ, Tree, WRITE};
use crate::uploads::{Replace, Upload};

/// How much of a file is copied before it is looked whether anybody still waits for it, in bytes.
const COPIED_AT_ONCE: u64 = 1 << 27;
/// What names of attributes begin with that are copied with a file: those that users give.
const USERS: &[u8] = b"user.";
/// Of those, the ones that are the formation's own.
const OWN: &[u8] = b"user.bivouac.";

/// What stopped the removal of a tree, and where: the names below its top.
#[derive(Debug)]
pub struct Stopped {
    pub below: Vec<Vec<u8>>,
    pub error: FsError,
}

/// A directory whose entries are being removed.
struct Level {
    dir: Attr,
    place: Place,
    /// What was seen of it and is still to be removed, the next one last.
    seen: Vec<DirEntry>,
    /// Behind what was seen.
    cookie: u64,
    /// Whether anything was removed since it was looked at from the front.
    has_removed: bool,
}

impl Level {
    fn new(dir: Attr, place: Place) -> Level {
        Level { dir, place, seen: Vec::new(), cookie: 0, has_removed: false }
    }
}

/// What of a tree is removed.
#[derive(Clone, Copy, Default)]
struct Rules<'a> {
    /// Only what permissions let be removed.
    asks: bool,
    /// Only as long as somebody waits for it.
    asker: Option<&'a Asker>,
    /// Only what was seen.
    seen: Option<&'a State>,
}

impl Rules<'_> {
    fn allow(&self, place: &Place, now: &Attr) -> FsResult<()> {
        let has = |seen: &State| is_reserved(&place.name) || seen.has(place.parent, &place.name, now);
        if self.seen.is_none_or(has) { Ok(()) } else { Err(Errno::EBUSY.into()) }
    }
}

/// What is copied, and for whom.
pub struct Copying<'a> {
    /// Whether with what is in it.
    pub deep: bool,
    /// Who waits for it.
    pub asker: &'a Asker,
    /// Whether it is remembered what is copied.
    pub remember: bool,
    /// Asked when all of it is copied, just before it gets its name: whether it may, with what was copied.
    pub may_land: &'a dyn Fn(State) -> FsResult<()>,
}

impl Tree {
    /// Removes what is at a place, with all below it. Links are removed, and not what they lead to. What others remove
    /// at the same time is removed.
    ///
    /// # Errors
    /// What stopped it: what is in front of that is gone. `EINTR` if nobody waits for it any more.
    pub fn remove_all_for(&self, asker: &Asker, place: &Place, top: Attr) -> Result<(), Stopped> {
        self.remove_levels(place, top, Rules { asks: true, asker: Some(asker), seen: None })
    }

    /// Removes what the server itself has put somewhere, or has replaced, whatever its permissions are.
    pub(crate) fn discard(&self, place: &Place, top: Attr) -> Result<(), Stopped> {
        self.remove_levels(place, top, Rules::default())
    }

    /// Removes a tree that has a hidden name, but nothing that was not seen in it before.
    ///
    /// # Errors
    /// `EBUSY` for that; what the formation says.
    pub(crate) fn remove_seen(&self, place: &Place, top: Attr, seen: &State) -> Result<(), Stopped> {
        self.remove_levels(place, top, Rules { seen: Some(seen), ..Rules::default() })
    }

    fn remove_levels(&self, place: &Place, top: Attr, rules: Rules<'_>) -> Result<(), Stopped> {
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
                        // Something has come in front of what was seen last.
                        Err(error) if error.errno() == Errno::ENOTEMPTY && has_removed => {
                            level.cookie = 0;
                            continue;
                        }
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
    fn empty(&self, level: &mut Level, rules: Rules<'_>) -> FsResult<Option<Level>> {
        if rules.asks {
            self.may(&level.dir, READ | WRITE)?;
        }
        rules.allow(&level.place, &level.dir)?;
        let parent = level.dir.ino;
        let is_gone = |error: &FsError| error.errno() == Errno::ENOENT;
        loop {
            while let Some(entry) = level.seen.pop() {
                rules.asker.map_or(Ok(()), Asker::must_be_there)?;
                if let Some(attr) = entry.attr.filter(Attr::is_dir) {
                    let place = Place { parent, name: entry.name, is_dir: true };
                    return Ok(Some(Level::new(attr, place)));
                }
                match self.unlink_if(&Place { parent, name: entry.name, is_dir: false }, rules) {
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
    fn unlink_if(&self, place: &Place, rules: Rules<'_>) -> FsResult<()> {
        if rules.seen.is_some() {
            let _alone = self.names.of(place).lock();
            if let Some(now) = self.at(place)? {
                rules.allow(place, &now)?;
            }
            return self.unlink(place.parent, &place.name);
        }
        self.unlink(place.parent, &place.name)
    }

    fn rmdir(&self, place: &Place) -> FsResult<()> {
        let change = self.member().change()?;
        self.client()?.rmdir(&change.ctx, place.parent, &place.name)
    }

    /// Copies a file, or a directory with what is in it if it is to be `deep`. What is there has its name when all of
    /// it is.
    ///
    /// # Errors
    /// As [`Tree::put_in_place`]; `EACCES` for what may not be read, or is neither a file, a directory nor a link;
    /// `EINTR` if nobody waits any more; `EINVAL` if it would take its own place; what `may_land` says.
    pub fn copy_all(
        self: &Arc<Tree>,
        (access, from): (&Access, &Attr),
        (to, replace): (&Target, bool),
        copying: &Copying<'_>,
    ) -> FsResult<Landed> {
        let place = self.place(access, &Target { is_dir: false, ..to.clone() }, false)?;
        let found = self.at(&place)?;
        if found.is_some() && !replace {
            return Err(Errno::EEXIST.into());
        }
        if found.is_some_and(|found| found.ino == from.ino) {
            return Err(Errno::EINVAL.into());
        }
        if from.is_file() && found.is_none_or(|found| found.is_file()) {
            let replace = if replace { Replace::Always } else { Replace::Never };
            let upload = self.copied(from, place, copying.asker)?;
            (copying.may_land)(State::of(from))?;
            let (is_new, _) = upload.finish(replace)?;
            return Ok(if is_new { Landed::New } else { Landed::OnFile });
        }
        if let Some(found) = found {
            self.may_remove(&found)?;
        }
        let aside = Place { name: hidden()?, ..place.clone() };
        let made = self.copy_to(from, &aside, copying);
        let landed =
            made.and_then(copying.may_land).and_then(|()| self.put_in_place(&aside, &place, replace));
        if landed.is_err() {
            self.discard_aside(&aside);
        }
        landed
    }

    /// Copies to a name where nothing is, and says what.
    fn copy_to(self: &Arc<Tree>, from: &Attr, to: &Place, copying: &Copying<'_>) -> FsResult<State> {
        let asker = copying.asker;
        let mut state = State::of(from);
        let made = self.copy_one(from, to, asker)?;
        let mut left: Vec<(Attr, Ino)> =
            made.filter(|_| copying.deep).map(|made| (*from, made)).into_iter().collect();
        while let Some((dir, into)) = left.pop() {
            self.each_entry(dir.ino, |entry| {
                // What is gone meanwhile; the server's own; and, of a copy into itself, the copy.
                let own = is_reserved(&entry.name) || Some(entry.ino) == made;
                let Some(attr) = entry.attr.filter(|_| !own) else { return Ok(()) };
                if copying.remember {
                    state.see(dir.ino, &entry.name, &attr);
                }
                let place = Place { parent: into, name: entry.name, is_dir: false };
                left.extend(self.copy_one(&attr, &place, asker)?.map(|made| (attr, made)));
                Ok(())
            })?;
        }
        Ok(state)
    }

    /// Copies what is no directory whole, and makes a directory, which it tells.
    fn copy_one(self: &Arc<Tree>, from: &Attr, to: &Place, asker: &Asker) -> FsResult<Option<Ino>> {
        asker.must_be_there()?;
        let client = self.client()?;
        match from.mode & mode::TYPE {
            mode::DIR => {
                self.may(from, READ)?;
                let change = self.member().change()?;
                let new = NewInode { mode: mode::DIR | from.mode & mode::PERM, rdev: 0, target: &[] };
                let made = client.mknod(&change.ctx, to.parent, &to.name, &new)?;
                drop(change);
                self.copy_attributes(from.ino, made.ino)?;
                Ok(Some(made.ino))
            }
            mode::LINK => {
                let target = client.readlink(from.ino)?;
                let change = self.member().change()?;
                let new = NewInode { mode: from.mode, rdev: 0, target: &target };
                client.mknod(&change.ctx, to.parent, &to.name, &new).map(|_| None)
            }
            mode::FILE => self.copied(from, to.clone(), asker)?.finish(Replace::Never).map(|_| None),
            _ => Err(Errno::EACCES.into()),
        }
    }

    /// A file's copy, without a name.
    fn copied(self: &Arc<Tree>, from: &Attr, to: Place, asker: &Asker) -> FsResult<Upload> {
        let file = self.open_file(from)?;
        let mut upload = self.upload_at(to, from.mode & 0o777)?;
        let mut at = 0;
        while at < file.attr.size {
            asker.must_be_there()?;
            let end = (at + COPIED_AT_ONCE).min(file.attr.size);
            upload.append_file(&file, (at, end))?;
            at = end;
        }
        upload.mark(|_, _, attr| self.copy_attributes(from.ino, attr.ino))?;
        Ok(upload)
    }

    /// Gives a file what users have given another one.
    fn copy_attributes(&self, from: Ino, to: Ino) -> FsResult<()> {
        let client = self.client()?;
        let names = client.listxattr(from)?;
        let names = names.split(|byte| *byte == 0);
        for name in names.filter(|name| name.starts_with(USERS) && !name.starts_with(OWN)) {
            let value = match client.getxattr(from, name) {
                Err(error) if error.errno() == Errno::ENODATA => continue,
                value => value?,
            };
            let change = self.member().change()?;
            client.setxattr(&change.ctx, to, name, &value, 0)?;
        }
        Ok(())
    }
}

fn stopped(levels: &[Level], error: FsError) -> Stopped {
    Stopped { below: levels.iter().skip(1).map(|level| level.place.name.clone()).collect(), error }
}
