//! Uploads: files that are written without a name, or under a hidden one, until they are complete.

use std::sync::Arc;

use bivouac_client::{Attr, Client, CopyJob, NewInode, OpCtx, ParentAndName};
use bivouac_types::hex::to_hex;
use bivouac_types::{Errno, ExpectedFile, FsError, FsResult, Ino, SetAttr, mode};
use ring::digest::{SHA256, digest};

use crate::cancellation::Cancellation;
use crate::dead_properties;
use crate::load::Share;
use crate::open_file::OpenFile;
use crate::request_path::{RESERVED, RequestPath};
use crate::tree::{Access, NAMES_TRIED, NOREPLACE, REPLACED_TRIES, Tree, WRITE, hidden};
use crate::upload_claims::UploadClaim;

/// Permissions of what is made: servers have no umask of a user.
const FILE_MODE: u32 = 0o644;
/// Permissions of what is not whole.
const PART_MODE: u32 = 0o600;

/// A file that is being written. Without a name it is gone with this, unless it is given one.
pub struct Upload {
    file: OpenFile,
    place: ParentAndName,
    /// The name that it has until then, if any.
    beside: Option<Vec<u8>>,
    /// The directory in which it gets a name before it gets its own; `None` for that of its own.
    through: Option<Ino>,
    /// True if attributes of a replaced file are kept.
    keeps: bool,
    /// Bytes written.
    pub len: u64,
}

/// A file that arrives in several requests, stored under a hidden name between them.
pub struct PartUpload {
    upload: Upload,
    mode: u32,
    claim: UploadClaim,
}

/// Condition on which a file gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// None.
    Always,
    /// The name does not exist.
    Never,
    /// The name exists.
    Existing,
    /// The name still has this file with this content.
    Only(Attr),
}

impl Replace {
    /// Returns whether the name must exist.
    fn needs_file(self) -> bool {
        matches!(self, Replace::Existing | Replace::Only(_))
    }
}

/// Returns under which name the parts of an upload are. Other keys come to other names, whatever they call theirs.
fn part_name(access: &Access, name: &[u8], id: &str) -> Vec<u8> {
    let text = [access.key.id.as_bytes(), id.as_bytes(), name].join(&0);
    let sum = digest(&SHA256, &text);
    let mut hex = to_hex(sum.as_ref());
    hex.truncate(32);
    [RESERVED, b"part-", hex.as_bytes()].concat()
}

impl Tree {
    /// Returns the place of a file, and what is there now.
    fn to_upload(&self, access: &Access, target: &RequestPath) -> FsResult<(ParentAndName, Option<Attr>)> {
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

    /// Starts an upload to a path; returns what is there now.
    ///
    /// # Errors
    /// As [`Tree::attr`]; `EACCES`; `EISDIR` where a directory is, or the path is a directory's.
    pub fn upload(
        self: &Arc<Tree>,
        access: &Access,
        target: &RequestPath,
    ) -> FsResult<(Upload, Option<Attr>)> {
        let (place, found) = self.to_upload(access, target)?;
        let found = found.map(|attr| self.settled(attr)).transpose()?;
        let mode = found.map_or(FILE_MODE, |attr| attr.mode & 0o777);
        Ok((Upload { keeps: true, ..self.upload_at(place, mode)? }, found))
    }

    /// Begins an upload to a place where a file may be put, and that takes nothing over of what is there.
    pub(crate) fn upload_at(self: &Arc<Tree>, place: ParentAndName, mode: u32) -> FsResult<Upload> {
        let change = self.member().change()?;
        let new = NewInode { mode: mode::FILE | mode, rdev: 0, target: &[] };
        let attr = self.client()?.tmpfile(&change.ctx, place.parent, &new, true)?;
        let file = OpenFile::of(self, attr);
        Ok(Upload { file, place, beside: None, through: None, keeps: false, len: 0 })
    }

    /// Continues an upload in several requests; returns what is at its path now. Earlier requests for it end. Without
    /// `begin` it must exist.
    pub fn part_upload(
        self: &Arc<Tree>,
        access: &Access,
        target: &RequestPath,
        id: &str,
        begin: bool,
    ) -> FsResult<(Option<PartUpload>, Option<Attr>)> {
        let (place, found) = self.to_upload(access, target)?;
        let found = found.map(|attr| self.settled(attr)).transpose()?;
        let part = part_name(access, &place.name, id);
        let claim = self.claims.claim(place.parent, &part);
        if !begin && self.at(&ParentAndName { name: part.clone(), ..place.clone() })?.is_none() {
            return Ok((None, found));
        }
        let change = self.member().change()?;
        let new = NewInode { mode: mode::FILE | PART_MODE, rdev: 0, target: &[] };
        let attr = self.client()?.create(&change.ctx, place.parent, &part, &new, false, false)?.attr;
        let file = OpenFile::of(self, attr);
        // Neither what somebody else has put under the name, nor another name of a file that is whole.
        if !attr.is_file() || !self.is_own(&attr) || attr.nlink != 1 {
            return Err(Errno::EACCES.into());
        }
        let mode = found.map_or(FILE_MODE, |attr| attr.mode & 0o777);
        let upload = Upload { file, place, beside: Some(part), through: None, keeps: true, len: attr.size };
        Ok((Some(PartUpload { upload, mode, claim }), found))
    }

    /// Throws away what is there of an upload in several requests.
    ///
    /// # Errors
    /// As [`Tree::upload`]; `ENOENT` if there is none.
    pub fn discard_upload(self: &Arc<Tree>, access: &Access, target: &RequestPath, id: &str) -> FsResult<()> {
        let (place, _) = self.to_upload(access, target)?;
        let part = part_name(access, &place.name, id);
        let claim = self.claims.claim(place.parent, &part);
        let _held = claim.hold()?;
        self.unlink(place.parent, &part)
    }
}

impl Upload {
    /// Writes behind what was written.
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
    /// Errors of the formation; `EIO` if that file has become shorter, `EINTR` if nobody waits for it any more.
    pub fn append_file(
        &mut self,
        from: &OpenFile,
        (start, end): (u64, u64),
        cancellation: &Cancellation,
    ) -> FsResult<()> {
        let (client, to) = (self.file.tree.client()?, self.file.attr.ino);
        let mut at = start;
        while at < end {
            cancellation.check_cancelled()?;
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

    /// Returns its share of the memory for bodies.
    #[must_use]
    pub fn share(&self) -> Share {
        self.file.tree.load.share()
    }

    /// Returns the written content for reading.
    pub fn written(&self) -> FsResult<&OpenFile> {
        self.file.tree.client()?.sessions.send_unsent(self.file.attr.ino)?;
        Ok(&self.file)
    }

    /// Notes something about what was written, before it has a name.
    pub fn mark(&self, act: impl FnOnce(&Client, &OpCtx, &Attr) -> FsResult<()>) -> FsResult<()> {
        let (client, ino) = (self.file.tree.client()?, self.file.attr.ino);
        // What this process has not sent, or alone knows, is not in the attributes yet.
        client.sessions.send_unsent(ino)?;
        client.return_size(ino);
        let attr = client.getattr(ino)?;
        let change = self.file.tree.member().change()?;
        act(client, &change.ctx, &attr)
    }

    /// Ties the upload to a directory: the file gets a name in it first and is moved from there. A removal of the
    /// directory with its content ends the upload, on all servers.
    pub fn goes_through(&mut self, dir: Ino) {
        self.through = Some(dir);
    }

    /// Renames the file atomically, in place of an existing one. Returns whether the name is new, and the file's
    /// attributes.
    ///
    /// # Errors
    /// Errors of the formation; `EEXIST` if it is not to replace anything, `ESTALE` if not what is there by now.
    pub fn finish(self, replace: Replace) -> FsResult<(bool, Attr)> {
        let (client, ino) = (self.file.tree.client()?, self.file.attr.ino);
        client.sessions.send_unsent(ino)?;
        // The response contains its validators.
        client.return_size(ino);
        let is_new = self.name(replace)?;
        client.site.save_at_close(ino)?;
        Ok((is_new, client.getattr(ino)?))
    }

    /// Names the file; returns whether the name is new.
    fn name(&self, replace: Replace) -> FsResult<bool> {
        let tree = &self.file.tree;
        let ParentAndName { parent, name, .. } = &self.place;
        let _alone = tree.names.of(&self.place).lock();
        if let Some(part) = &self.beside {
            let is_new = tree.at(&self.place)?.is_none();
            self.keep_given()?;
            return self.replace((*parent, part), replace).map(|()| is_new);
        }
        if !replace.needs_file() && self.through.is_none() {
            let change = tree.member().change()?;
            // A link replaces nothing that another request has put there meanwhile, as a rename would.
            match tree.client()?.link(&change.ctx, self.file.attr.ino, *parent, name) {
                Ok(_) => return Ok(true),
                Err(error) if error.errno() == Errno::EEXIST && replace == Replace::Always => {}
                Err(error) => return Err(error),
            }
        }
        self.keep_given()?;
        // Else the link has found something, or something has to be there.
        let is_new = self.through.is_some() && tree.at(&self.place)?.is_none();
        let (dir, beside) = self.name_beside()?;
        let named = self.replace((dir, &beside), replace);
        if named.is_err() {
            match tree.unlink(dir, &beside) {
                // It was renamed all the same, and only the answer was lost.
                Err(error) if error.errno() == Errno::ENOENT => {}
                removed => removed?,
            }
        }
        named.map(|()| is_new)
    }

    /// Moves the file from its name in a directory to its final name.
    fn replace(&self, from: (Ino, &[u8]), replace: Replace) -> FsResult<()> {
        match replace {
            Replace::Always => self.rename(from, 0),
            Replace::Never => self.rename(from, NOREPLACE),
            Replace::Existing => self.replace_existing(from),
            Replace::Only(before) => {
                let expected = ExpectedFile { ino: before.ino, data_version: Some(before.data_version) };
                self.replace_expected(from, expected)
            }
        }
    }

    fn rename(&self, (dir, from): (Ino, &[u8]), flags: u32) -> FsResult<()> {
        let (tree, ParentAndName { parent, name, .. }) = (&self.file.tree, &self.place);
        let change = tree.member().change()?;
        tree.client()?.rename(&change.ctx, dir, from, *parent, name, flags)
    }

    /// Copies attributes of the replaced file as they are now: they cannot change as long as the name's lock is held.
    fn keep_given(&self) -> FsResult<()> {
        if !self.keeps {
            return Ok(());
        }
        let (tree, ino) = (&self.file.tree, self.file.attr.ino);
        let client = tree.client()?;
        let mut given = Vec::new();
        for _ in 0..REPLACED_TRIES {
            let Some(found) = tree.at(&self.place)? else { break };
            match dead_properties::read(client, found.ino) {
                // Replaced by another server.
                Err(error) if error.errno() == Errno::ENOENT => {}
                read => {
                    given = read?;
                    break;
                }
            }
        }
        // An upload in parts may have attributes of an earlier attempt to name it.
        if given.is_empty() && self.beside.is_none() {
            return Ok(());
        }
        let change = tree.member().change()?;
        dead_properties::write(client, &change.ctx, ino, &given)
    }

    /// Takes the place of what has the name, if that is the file that was seen before, with the content that it had.
    /// Its home compares and replaces in one step.
    fn replace_expected(&self, from: (Ino, &[u8]), expected: ExpectedFile) -> FsResult<()> {
        let tree = &self.file.tree;
        let ParentAndName { parent, name, .. } = &self.place;
        let change = tree.member().change()?;
        let moved = tree.client()?.rename_over(&change.ctx, from, (*parent, name.as_slice()), expected);
        moved.map_err(|error| if error.errno() == Errno::ECANCELED { Errno::ESTALE.into() } else { error })
    }

    /// Takes the place of whatever file has the name, if any has.
    fn replace_existing(&self, from: (Ino, &[u8])) -> FsResult<()> {
        let mut last = FsError::from(Errno::ESTALE);
        for _ in 0..REPLACED_TRIES {
            let found = self.file.tree.at(&self.place)?.ok_or(Errno::ESTALE)?;
            match self.replace_expected(from, ExpectedFile { ino: found.ino, data_version: None }) {
                // Replaced by another request.
                Err(error) if error.errno() == Errno::ESTALE => last = error,
                replaced => return replaced,
            }
        }
        Err(last)
    }

    /// Gives it a name of its own, in the directory that it goes through, or else beside the one it is for.
    fn name_beside(&self) -> FsResult<(Ino, Vec<u8>)> {
        let tree = &self.file.tree;
        let mut dir = self.through.unwrap_or(self.place.parent);
        for _ in 0..NAMES_TRIED {
            let name = hidden()?;
            let change = tree.member().change()?;
            match tree.client()?.link(&change.ctx, self.file.attr.ino, dir, &name) {
                Ok(_) => return Ok((dir, name)),
                Err(error) if error.errno() == Errno::EEXIST => {}
                // No file has names in two partitions: the directory is only looked for, as late as possible.
                Err(error) if error.errno() == Errno::EXDEV && dir != self.place.parent => {
                    tree.client()?.getattr(dir)?;
                    dir = self.place.parent;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EEXIST.into())
    }
}

impl PartUpload {
    /// Returns the length received so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.upload.len
    }

    /// Leaves only what is in front of an offset.
    ///
    /// # Errors
    /// `EBUSY` if another request has it by now; what the formation says.
    pub fn cut(&mut self, offset: u64) -> FsResult<()> {
        let _held = self.claim.hold()?;
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
    pub fn append(&mut self, bytes: &[u8]) -> FsResult<()> {
        let _held = self.claim.hold()?;
        self.upload.append(bytes)
    }

    /// Like [`Upload::finish`].
    ///
    /// # Errors
    /// As [`Upload::finish`] and [`PartUpload::cut`].
    pub fn finish(self, replace: Replace) -> FsResult<(bool, Attr)> {
        let PartUpload { upload, mode, claim } = self;
        let _held = claim.hold()?;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        upload.mark(|client, ctx, attr| client.setattr(ctx, attr.ino, &set).map(drop))?;
        upload.finish(replace)
    }

    /// Throws away what is there.
    pub fn discard(self) -> FsResult<()> {
        let _held = self.claim.hold()?;
        let upload = &self.upload;
        upload.beside.as_ref().map_or(Ok(()), |part| upload.file.tree.unlink(upload.place.parent, part))
    }

    /// Returns the upload.
    #[must_use]
    pub fn upload(&self) -> &Upload {
        &self.upload
    }

    /// Like [`Upload::share`].
    #[must_use]
    pub fn share(&self) -> Share {
        self.upload.share()
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &OpenFile {
        &self.upload.file
    }
}
