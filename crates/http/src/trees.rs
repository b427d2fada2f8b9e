//! Whole trees: removed, copied, and put where something else is.

use std::sync::Arc;

use bivouac_client::{Attr, DirEntry, NewInode, Place};
use bivouac_types::{Errno, FsError, FsResult, Ino, mode};

use crate::target::{RESERVED, Target, is_reserved};
use crate::tree::{Access, Asker, READ, Tree, WRITE};
use crate::uploads::Replace;

/// `RENAME_NOREPLACE` of the kernel.
const NOREPLACE: u32 = 1;
/// `RENAME_EXCHANGE` of the kernel.
const EXCHANGE: u32 = 2;
/// How often another temporary name is drawn.
const NAMES_TRIED: usize = 8;
/// How much of a file is copied before it is looked whether anybody still waits for it, in bytes.
const COPIED_AT_ONCE: u64 = 1 << 27;
/// What names of attributes begin with that are copied with a file: those that users give.
const USERS: &[u8] = b"user.";
/// Of those, the ones that are the formation's own.
const OWN: &[u8] = b"user.bivouac.";

/// Where a copy or a move ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// Where nothing was.
    New,
    /// In place of a file, and a file it is.
    OnFile,
    /// In place of something else.
    OnTree,
}

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
}

impl Tree {
    /// Removes what is at a place, with all below it. Links are removed, and not what they lead to.
    ///
    /// # Errors
    /// What stopped it: what is in front of that is gone.
    pub fn remove_all(&self, place: &Place, top: Attr) -> Result<(), Stopped> {
        self.remove_all_for(&Asker::default(), place, top)
    }

    /// The same as long as somebody waits for it.
    ///
    /// # Errors
    /// As [`Tree::remove_all`]; `EINTR` if nobody waits any more.
    pub fn remove_all_for(&self, asker: &Asker, place: &Place, top: Attr) -> Result<(), Stopped> {
        if !top.is_dir() {
            return self.unlink(place.parent, &place.name).map_err(|error| stopped(&[], error));
        }
        let mut levels = vec![Level { dir: top, place: place.clone(), seen: Vec::new() }];
        while let Some(level) = levels.last_mut() {
            match self.empty(level, asker) {
                Ok(Some(next)) => levels.push(next),
                Ok(None) => {
                    let removed = self.rmdir(&level.place);
                    removed.map_err(|error| stopped(&levels, error))?;
                    levels.pop();
                }
                Err(error) => return Err(stopped(&levels, error)),
            }
        }
        Ok(())
    }

    /// Removes what is in a directory up to the next directory, which is to be removed first.
    fn empty(&self, level: &mut Level, asker: &Asker) -> FsResult<Option<Level>> {
        self.may(&level.dir, READ | WRITE)?;
        let parent = level.dir.ino;
        loop {
            while let Some(entry) = level.seen.pop() {
                asker.must_be_there()?;
                let Some(attr) = entry.attr else { continue };
                if attr.is_dir() {
                    let place = Place { parent, name: entry.name, is_dir: true };
                    return Ok(Some(Level { dir: attr, place, seen: Vec::new() }));
                }
                self.unlink(parent, &entry.name)?;
            }
            // From the front: what was seen is gone.
            level.seen = self.entries(parent, 0)?;
            level.seen.reverse();
            if level.seen.is_empty() {
                return Ok(None);
            }
        }
    }

    fn rmdir(&self, place: &Place) -> FsResult<()> {
        let change = self.member().change()?;
        self.client()?.rmdir(&change.ctx, place.parent, &place.name)
    }

    fn move_name(&self, from: &Place, to: &Place, flags: u32) -> FsResult<()> {
        let change = self.member().change()?;
        self.client()?.rename(&change.ctx, from.parent, &from.name, to.parent, &to.name, flags)
    }

    /// Moves what is at a place to another one, in place of what is there only if `replace` says so. Files take the place of
    /// files in one step. Where a directory is involved the two change places, and what was replaced is removed behind that:
    /// nothing that was there is gone before what comes is there.
    ///
    /// # Errors
    /// `EEXIST`; `EXDEV` between partitions; what the formation says.
    pub fn put_in_place(&self, from: &Place, to: &Place, replace: bool) -> FsResult<Landed> {
        match self.move_name(from, to, NOREPLACE) {
            Err(error) if error.errno() == Errno::EEXIST && replace => {}
            moved => return moved.map(|()| Landed::New),
        }
        let moving = self.at(from)?.ok_or(Errno::ENOENT)?;
        let found = match self.at(to)? {
            None => return self.move_name(from, to, NOREPLACE).map(|()| Landed::New),
            Some(found) => found,
        };
        if found.ino == moving.ino {
            // Two names of one file: a rename would leave both.
            self.unlink(from.parent, &from.name)?;
            return Ok(Landed::OnFile);
        }
        if !found.is_dir() && !moving.is_dir() {
            return self.move_name(from, to, 0).map(|()| Landed::OnFile);
        }
        self.move_name(from, to, EXCHANGE)?;
        let aside = self.hide(from)?;
        let left = self.at(&aside)?.ok_or(Errno::ENOENT)?;
        self.remove_all(&aside, left).map_err(|stopped| stopped.error)?;
        Ok(Landed::OnTree)
    }

    /// Gives what is at a place a name beside it that nobody is shown.
    fn hide(&self, from: &Place) -> FsResult<Place> {
        for _ in 0..NAMES_TRIED {
            let place = Place { parent: from.parent, name: hidden()?, is_dir: false };
            match self.move_name(from, &place, NOREPLACE) {
                Err(error) if error.errno() == Errno::EEXIST => {}
                moved => return moved.map(|()| place),
            }
        }
        Err(Errno::EEXIST.into())
    }

    /// Copies a file, or a directory with what is in it if it is to be `deep`. What is there has its name when all of it is.
    ///
    /// # Errors
    /// As [`Tree::put_in_place`]; `EACCES` for what may not be read, or is neither a file, a directory nor a link; `EINTR` if
    /// nobody waits any more.
    pub fn copy_all(
        self: &Arc<Tree>,
        (access, from): (&Access, &Attr),
        (to, replace): (&Target, bool),
        deep: bool,
        asker: &Asker,
    ) -> FsResult<Landed> {
        let place = self.place(access, &Target { is_dir: false, ..to.clone() }, false)?;
        let found = self.at(&place)?;
        if found.is_some() && !replace {
            return Err(Errno::EEXIST.into());
        }
        if from.is_file() && found.is_none_or(|found| found.is_file()) {
            let replace = if replace { Replace::Always } else { Replace::Never };
            let is_new = self.copy_file(from, place, replace, asker)?;
            return Ok(if is_new { Landed::New } else { Landed::OnFile });
        }
        let aside = Place { name: hidden()?, ..place.clone() };
        let made = self.copy_to(from, &aside, deep, asker);
        let landed = made.and_then(|()| self.put_in_place(&aside, &place, replace));
        if landed.is_err()
            && let Some(left) = self.at(&aside)?
        {
            self.remove_all(&aside, left).map_err(|stopped| stopped.error)?;
        }
        landed
    }

    /// Copies to a name where nothing is.
    fn copy_to(self: &Arc<Tree>, from: &Attr, to: &Place, deep: bool, asker: &Asker) -> FsResult<()> {
        let top = self.copy_one(from, to, asker)?;
        let mut left: Vec<(Attr, Ino)> = top.filter(|_| deep).map(|top| (*from, top)).into_iter().collect();
        let made = top;
        while let Some((dir, into)) = left.pop() {
            let mut cookie = 0;
            loop {
                let entries = self.entries(dir.ino, cookie)?;
                let Some(last) = entries.last() else { break };
                cookie = last.cookie;
                for entry in entries {
                    // What is gone meanwhile; the server's own; and, of a copy into itself, the copy.
                    let own = is_reserved(&entry.name) || Some(entry.ino) == made;
                    let Some(attr) = entry.attr.filter(|_| !own) else { continue };
                    let place = Place { parent: into, name: entry.name, is_dir: false };
                    left.extend(self.copy_one(&attr, &place, asker)?.map(|made| (attr, made)));
                }
            }
        }
        Ok(())
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
            mode::FILE => self.copy_file(from, to.clone(), Replace::Never, asker).map(|_| None),
            _ => Err(Errno::EACCES.into()),
        }
    }

    /// Whether the name is new.
    fn copy_file(
        self: &Arc<Tree>,
        from: &Attr,
        to: Place,
        replace: Replace,
        asker: &Asker,
    ) -> FsResult<bool> {
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
        upload.finish(replace).map(|(is_new, _)| is_new)
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

/// A name that nobody is shown.
fn hidden() -> FsResult<Vec<u8>> {
    let drawn =
        getrandom::u64().map_err(|error| FsError::with(Errno::EIO, format!("draw random bytes: {error}")))?;
    Ok([RESERVED, format!("put-{drawn:016x}").as_bytes()].concat())
}

fn stopped(levels: &[Level], error: FsError) -> Stopped {
    Stopped { below: levels.iter().skip(1).map(|level| level.place.name.clone()).collect(), error }
}
