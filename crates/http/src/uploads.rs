//! Uploads: files that are written without a name, or under one that nobody is shown, until they are whole.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use bivouac_client::{Attr, Client, CopyJob, NewInode, OpCtx, Place};
use bivouac_types::{Errno, FsError, FsResult, Ino, SetAttr, mode};
use parking_lot::{Mutex, MutexGuard};
use ring::digest::{SHA256, digest};

use crate::dav;
use crate::load::Share;
use crate::target::{RESERVED, Target};
use crate::tree::{Access, OpenFile, Tree, WRITE};

/// How often another temporary name is drawn.
const NAMES_TRIED: usize = 8;
/// How often what is replaced is looked up while another server replaces it.
const REPLACED_TRIES: usize = 64;
/// How many names may change at the same time.
const LOCKS: usize = 256;
/// Permissions of what is made: servers have no umask of a user.
const FILE_MODE: u32 = 0o644;
/// Permissions of what is not whole.
const PART_MODE: u32 = 0o600;
/// `RENAME_NOREPLACE` of the kernel.
const NOREPLACE: u32 = 1;
/// `RENAME_EXCHANGE` of the kernel.
const EXCHANGE: u32 = 2;

/// A file that is being written. Without a name it is gone with this, unless it is given one.
pub struct Upload {
    file: OpenFile,
    place: Place,
    /// The name that it has until then, if any.
    beside: Option<Vec<u8>>,
    /// Whether what has been given to a file is said of what replaces it.
    keeps: bool,
    /// How much was written.
    pub len: u64,
}

/// A file that comes in several requests, and is kept between them under a name that nobody is shown.
pub struct PartUpload {
    upload: Upload,
    mode: u32,
    turn: Turn,
}

/// On what condition a file gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// On none.
    Always,
    /// Only if nothing has the name.
    Never,
    /// Only if what has the name is this.
    Only(Attr),
}

/// What keeps requests to this server from changing what has a name at the same time. Names share locks.
pub struct Names(Vec<Mutex<()>>);

impl Default for Names {
    fn default() -> Names {
        Names((0..LOCKS).map(|_| Mutex::new(())).collect())
    }
}

impl Names {
    /// The lock of a name.
    pub fn of(&self, place: &Place) -> &Mutex<()> {
        self.at(number(place))
    }

    /// Holds the locks of two names; of whichever two, in one order.
    pub fn of_both(&self, one: &Place, other: &Place) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let index = |place| number(place) % self.0.len() as u64;
        let (one, other) = (index(one), index(other));
        let first = self.at(one.min(other)).lock();
        (first, (one != other).then(|| self.at(one.max(other)).lock()))
    }

    /// The lock of what is said of an inode.
    pub fn of_inode(&self, ino: Ino) -> &Mutex<()> {
        self.at(ino.0)
    }

    fn at(&self, number: u64) -> &Mutex<()> {
        let index = number % self.0.len() as u64;
        &self.0[index as usize]
    }
}

fn number(place: &Place) -> u64 {
    let mut hasher = DefaultHasher::new();
    (place.parent, &place.name).hash(&mut hasher);
    hasher.finish()
}

/// Which request has an upload: the last one that came for it. One that came before, and may only wait for a connection
/// that is dead, writes no more.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<PartName, Arc<Mutex<u64>>>>);

/// Directory and name of what there is of an upload.
type PartName = (Ino, Vec<u8>);

struct Turn {
    tree: Arc<Tree>,
    key: PartName,
    last: Arc<Mutex<u64>>,
    number: u64,
}

impl Turn {
    fn take(tree: &Arc<Tree>, parent: Ino, part: &[u8]) -> Turn {
        let key = (parent, part.to_vec());
        let last = Arc::clone(tree.turns.0.lock().entry(key.clone()).or_default());
        let number = {
            let mut last = last.lock();
            *last += 1;
            *last
        };
        Turn { tree: Arc::clone(tree), key, last, number }
    }

    /// As long as this is held no other request does anything with the upload.
    fn hold(&self) -> FsResult<MutexGuard<'_, u64>> {
        let last = self.last.lock();
        if *last == self.number { Ok(last) } else { Err(Errno::EBUSY.into()) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.tree.turns.0.lock();
        // The table's own, and this one.
        if Arc::strong_count(&self.last) == 2 {
            all.remove(&self.key);
        }
    }
}

/// Under which name the parts of an upload are. Other keys come to other names, whatever they call theirs.
fn part_name(access: &Access, name: &[u8], id: &str) -> Vec<u8> {
    let text = [access.key.id.as_bytes(), id.as_bytes(), name].join(&0);
    let sum = digest(&SHA256, &text);
    let hex: String = sum.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    [RESERVED, b"part-", hex.as_bytes()].concat()
}

impl Tree {
    /// Where a file is to be, and what is there now.
    fn to_upload(&self, access: &Access, target: &Target) -> FsResult<(Place, Option<Attr>)> {
        let place = self.place(access, target, true)?;
        let found = self.at(&place)?;
        match found {
            _ if place.is_dir => return Err(Errno::EISDIR.into()),
            Some(attr) if attr.is_dir() => return Err(Errno::EISDIR.into()),
            Some(attr) if !attr.is_file() => return Err(Errno::EACCES.into()),
            Some(attr) => self.may(&attr, WRITE)?,
            None => {}
        }
        Ok((place, found))
    }

    /// Begins an upload to a path, and says what is there now.
    ///
    /// # Errors
    /// As [`Tree::attr`]; `EACCES`; `EISDIR` where a directory is, or the path is a directory's.
    pub fn upload(self: &Arc<Tree>, access: &Access, target: &Target) -> FsResult<(Upload, Option<Attr>)> {
        let (place, found) = self.to_upload(access, target)?;
        let mode = found.map_or(FILE_MODE, |attr| attr.mode & 0o777);
        Ok((Upload { keeps: true, ..self.upload_at(place, mode)? }, found))
    }

    /// Begins an upload to a place where a file may be put, and that takes nothing over of what is there.
    pub(crate) fn upload_at(self: &Arc<Tree>, place: Place, mode: u32) -> FsResult<Upload> {
        let change = self.member().change()?;
        let new = NewInode { mode: mode::FILE | mode, rdev: 0, target: &[] };
        let attr = self.client()?.tmpfile(&change.ctx, place.parent, &new, true)?;
        let file = OpenFile::of(self, attr);
        Ok(Upload { file, place, beside: None, keeps: false, len: 0 })
    }

    /// Goes on with an upload in several requests, and says what is at its path now. No request that came before goes on with it.
    /// Without `begin` there is none where none was begun.
    ///
    /// # Errors
    /// As [`Tree::upload`].
    pub fn part_upload(
        self: &Arc<Tree>,
        access: &Access,
        target: &Target,
        id: &str,
        begin: bool,
    ) -> FsResult<(Option<PartUpload>, Option<Attr>)> {
        let (place, found) = self.to_upload(access, target)?;
        let part = part_name(access, &place.name, id);
        let turn = Turn::take(self, place.parent, &part);
        if !begin && self.at(&Place { name: part.clone(), ..place.clone() })?.is_none() {
            return Ok((None, found));
        }
        let change = self.member().change()?;
        let new = NewInode { mode: mode::FILE | PART_MODE, rdev: 0, target: &[] };
        let attr = self.client()?.create(&change.ctx, place.parent, &part, &new, false, false)?.attr;
        let file = OpenFile::of(self, attr);
        if !attr.is_file() || !self.is_own(&attr) || attr.nlink != 1 {
            return Err(Errno::EACCES.into());
        }
        let mode = found.map_or(FILE_MODE, |attr| attr.mode & 0o777);
        let upload = Upload { file, place, beside: Some(part), keeps: true, len: attr.size };
        Ok((Some(PartUpload { upload, mode, turn }), found))
    }

    /// Throws away what is there of an upload in several requests.
    ///
    /// # Errors
    /// As [`Tree::upload`]; `ENOENT` if there is none.
    pub fn discard_upload(self: &Arc<Tree>, access: &Access, target: &Target, id: &str) -> FsResult<()> {
        let (place, _) = self.to_upload(access, target)?;
        let part = part_name(access, &place.name, id);
        let turn = Turn::take(self, place.parent, &part);
        let _held = turn.hold()?;
        self.unlink(place.parent, &part)
    }

    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> FsResult<()> {
        let change = self.member().change()?;
        self.client()?.unlink(&change.ctx, parent, name)
    }

    fn rename(&self, parent: Ino, from: &[u8], to: &[u8], flags: u32) -> FsResult<()> {
        let change = self.member().change()?;
        self.client()?.rename(&change.ctx, parent, from, parent, to, flags)
    }
}

impl Upload {
    /// Writes behind what was written.
    ///
    /// # Errors
    /// What the formation says.
    pub fn append(&mut self, bytes: &[u8]) -> FsResult<()> {
        let tree = &self.file.tree;
        let change = tree.member().change()?;
        tree.client()?.write(&change.ctx, self.file.attr.ino, self.len, bytes, false)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Writes a range of another file behind what was written, by the nodes themselves where they have both.
    ///
    /// # Errors
    /// What the formation says; `EIO` if that file has become shorter.
    pub fn append_file(&mut self, from: &OpenFile, (start, end): (u64, u64)) -> FsResult<()> {
        let (client, to) = (self.file.tree.client()?, self.file.attr.ino);
        let mut at = start;
        while at < end {
            let change = self.file.tree.member().change()?;
            let len = end - at;
            let job = CopyJob { from: from.attr.ino, from_offset: at, to, to_offset: self.len, len };
            match client.copy(&change.ctx, &job)? {
                0 => return Err(from.shrunk()),
                copied => {
                    at += copied;
                    self.len += copied;
                }
            }
        }
        Ok(())
    }

    /// Its share of the memory for bodies.
    #[must_use]
    pub fn share(&self) -> Share {
        self.file.tree.load.share()
    }

    /// What was written, to be read again.
    ///
    /// # Errors
    /// What the formation says.
    pub fn written(&self) -> FsResult<&OpenFile> {
        self.file.tree.client()?.sessions.send_unsent(self.file.attr.ino)?;
        Ok(&self.file)
    }

    /// Notes something about what was written, before it has a name.
    ///
    /// # Errors
    /// What the formation says.
    pub fn mark(&self, act: impl FnOnce(&Client, &OpCtx, &Attr) -> FsResult<()>) -> FsResult<()> {
        let (client, ino) = (self.file.tree.client()?, self.file.attr.ino);
        client.sessions.send_unsent(ino)?;
        let attr = client.getattr(ino)?;
        let change = self.file.tree.member().change()?;
        act(client, &change.ctx, &attr)
    }

    /// Gives it its name, in place of what has it; in one step, so that nobody ever sees less than all of it there. Whether the
    /// name is new, and the file's attributes.
    ///
    /// # Errors
    /// What the formation says; `EEXIST` if it is not to replace anything, `ESTALE` if not what is there by now.
    pub fn finish(self, replace: Replace) -> FsResult<(bool, Attr)> {
        let (client, ino) = (self.file.tree.client()?, self.file.attr.ino);
        client.sessions.send_unsent(ino)?;
        let is_new = self.name(replace)?;
        client.site.save_at_close(ino)?;
        Ok((is_new, client.getattr(ino)?))
    }

    /// Whether the name is new.
    fn name(&self, replace: Replace) -> FsResult<bool> {
        let tree = &self.file.tree;
        let Place { parent, name, .. } = &self.place;
        let _alone = tree.names.of(&self.place).lock();
        if let Some(part) = self.beside.as_ref().filter(|_| !matches!(replace, Replace::Only(_))) {
            let is_new = tree.at(&self.place)?.is_none();
            self.keep_given()?;
            let flags = if replace == Replace::Never { NOREPLACE } else { 0 };
            return tree.rename(*parent, part, name, flags).map(|()| is_new);
        }
        if !matches!(replace, Replace::Only(_)) {
            let change = tree.member().change()?;
            match tree.client()?.link(&change.ctx, self.file.attr.ino, *parent, name) {
                Ok(_) => return Ok(true),
                Err(error) if error.errno() == Errno::EEXIST && replace == Replace::Always => {}
                Err(error) => return Err(error),
            }
        }
        self.keep_given()?;
        let beside = self.name_beside()?;
        let named = match replace {
            Replace::Only(before) => self.exchange(&beside, &before),
            _ => tree.rename(*parent, &beside, name, 0),
        };
        if named.is_err() {
            let left = tree.at(&Place { name: beside.clone(), ..self.place.clone() })?;
            match &self.beside {
                _ if left.is_none_or(|left| left.ino != self.file.attr.ino) => {}
                // It can be gone on with.
                Some(part) => tree.rename(*parent, &beside, part, NOREPLACE)?,
                None => tree.unlink(*parent, &beside)?,
            }
        }
        named.map(|()| false)
    }

    /// Has all of what was given to what it replaces, as that is by now: nobody gives it anything else as long as the
    /// name's lock is held.
    fn keep_given(&self) -> FsResult<()> {
        if !self.keeps {
            return Ok(());
        }
        let (tree, ino) = (&self.file.tree, self.file.attr.ino);
        let client = tree.client()?;
        let mut given = Vec::new();
        for _ in 0..REPLACED_TRIES {
            let Some(found) = tree.at(&self.place)? else { break };
            match dav::given(client, found.ino) {
                // Another server has replaced it.
                Err(error) if error.errno() == Errno::ENOENT => {}
                read => {
                    given = read?;
                    break;
                }
            }
        }
        // Of a part there may be what it was given when it was to get its name before.
        if given.is_empty() && self.beside.is_none() {
            return Ok(());
        }
        let change = tree.member().change()?;
        dav::set(client, &change.ctx, ino, &given)
    }

    /// Takes the place of what has the name, if that is what was seen before. The two change places, so that what has the name
    /// by then is not lost, and comes back if it is another.
    fn exchange(&self, beside: &[u8], before: &Attr) -> FsResult<()> {
        let tree = &self.file.tree;
        let Place { parent, name, .. } = &self.place;
        let stale = || FsError::from(Errno::ESTALE);
        let there = |name: &[u8]| tree.at(&Place { name: name.to_vec(), ..self.place.clone() });
        if !there(name)?.is_some_and(|now| is_as(&now, before)) {
            return Err(stale());
        }
        let gone = |error: FsError| if error.errno() == Errno::ENOENT { stale() } else { error };
        tree.rename(*parent, beside, name, EXCHANGE).map_err(gone)?;
        let Some(mut got) = there(beside)? else { return Err(stale()) };
        if is_as(&got, before) {
            return tree.unlink(*parent, beside);
        }
        // Somebody was faster: theirs goes back. Whoever is faster again has replaced what was put there last, and that is left over.
        let mut put_before = self.file.attr.ino;
        loop {
            let put = got.ino;
            match tree.rename(*parent, beside, name, EXCHANGE) {
                // Removed by somebody: with the name, what was to get it back.
                Err(error) if error.errno() == Errno::ENOENT => break,
                Err(error) => {
                    let (beside, name) = (String::from_utf8_lossy(beside), String::from_utf8_lossy(name));
                    let why = error.detail().unwrap_or("the formation refused");
                    let text =
                        format!("what was written to {name} meanwhile is in {beside} beside it: {why}");
                    return Err(FsError::with(error.errno(), text));
                }
                Ok(()) => {}
            }
            match there(beside)? {
                Some(left) if left.ino != put_before => (got, put_before) = (left, put),
                _ => break,
            }
        }
        if there(beside)?.is_some_and(|left| left.ino != self.file.attr.ino) {
            tree.unlink(*parent, beside)?;
        }
        Err(stale())
    }

    /// Gives it a name of its own beside the one it is for. That of a part is moved away from the one by which it would be gone on
    /// with: whatever comes to be there is none.
    fn name_beside(&self) -> FsResult<Vec<u8>> {
        let tree = &self.file.tree;
        let parent = self.place.parent;
        for _ in 0..NAMES_TRIED {
            let drawn = getrandom::u64()
                .map_err(|error| FsError::with(Errno::EIO, format!("draw random bytes: {error}")))?;
            let name = [RESERVED, format!("put-{drawn:016x}").as_bytes()].concat();
            let named = match &self.beside {
                Some(part) => tree.rename(parent, part, &name, NOREPLACE),
                None => {
                    let change = tree.member().change()?;
                    tree.client()?.link(&change.ctx, self.file.attr.ino, parent, &name).map(drop)
                }
            };
            match named {
                Ok(()) => return Ok(name),
                Err(error) if error.errno() == Errno::EEXIST => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EEXIST.into())
    }
}

/// Whether a file is as it was. Its change time differs when it was given another name.
fn is_as(now: &Attr, before: &Attr) -> bool {
    let state = |attr: &Attr| (attr.ino, attr.size, attr.mtime, attr.epoch);
    state(now) == state(before)
}

impl PartUpload {
    /// How much is there.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.upload.len
    }

    /// Leaves only what is in front of an offset.
    ///
    /// # Errors
    /// `EBUSY` if another request has it by now; what the formation says.
    pub fn cut(&mut self, offset: u64) -> FsResult<()> {
        let _held = self.turn.hold()?;
        if offset < self.upload.len {
            let file = &self.upload.file;
            let change = file.tree.member().change()?;
            let set = SetAttr { size: Some(offset), ..SetAttr::default() };
            file.tree.client()?.setattr(&change.ctx, file.attr.ino, &set)?;
            self.upload.len = offset;
        }
        Ok(())
    }

    /// Writes behind what is there.
    ///
    /// # Errors
    /// As [`PartUpload::cut`].
    pub fn append(&mut self, bytes: &[u8]) -> FsResult<()> {
        let _held = self.turn.hold()?;
        self.upload.append(bytes)
    }

    /// As [`Upload::finish`].
    ///
    /// # Errors
    /// As [`Upload::finish`] and [`PartUpload::cut`].
    pub fn finish(self, replace: Replace) -> FsResult<(bool, Attr)> {
        let PartUpload { upload, mode, turn } = self;
        let _held = turn.hold()?;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        upload.mark(|client, ctx, attr| client.setattr(ctx, attr.ino, &set).map(drop))?;
        upload.finish(replace)
    }

    /// Throws away what is there.
    ///
    /// # Errors
    /// As [`PartUpload::cut`].
    pub fn discard(self) -> FsResult<()> {
        let _held = self.turn.hold()?;
        let upload = &self.upload;
        upload.beside.as_ref().map_or(Ok(()), |part| upload.file.tree.unlink(upload.place.parent, part))
    }

    /// What there is of it.
    #[must_use]
    pub fn upload(&self) -> &Upload {
        &self.upload
    }

    /// As [`Upload::share`].
    #[must_use]
    pub fn share(&self) -> Share {
        self.upload.share()
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &OpenFile {
        &self.upload.file
    }
}
