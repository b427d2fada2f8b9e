//! Files and whole trees are copied.

use std::sync::Arc;

use bivouac_client::{Attr, NewInode, ParentAndName};
use bivouac_types::{Errno, FsResult, Ino, mode};

use crate::cancellation::Cancellation;
use crate::placing::PlacementOutcome;
use crate::request_path::{RequestPath, is_reserved};
use crate::tree::{Access, READ, Tree, hidden};
use crate::tree_state::TreeState;
use crate::uploads::{Replace, Upload};

/// Bytes of a file that are copied between two checks for a cancelled request.
const COPIED_AT_ONCE: u64 = 1 << 27;
/// Prefix of extended attributes that are copied with a file: those of users.
const USERS: &[u8] = b"user.";
/// Prefix of those that the formation generates.
const OWN: &[u8] = b"user.bivouac.";

/// Parameters of a copy.
pub struct CopyRequest<'a> {
    /// True to copy the content of directories.
    pub deep: bool,
    /// Cancellation by the client.
    pub cancellation: &'a Cancellation,
    /// True to record what is copied.
    pub remember: bool,
    /// Asked when all of it is copied, just before it gets its name: whether it may, with what was copied.
    pub may_land: &'a dyn Fn(TreeState) -> FsResult<()>,
}

impl Tree {
    /// Copies a file, or a directory with what is in it if it is to be `deep`. What is there has its name when all of
    /// it is.
    ///
    /// # Errors
    /// As [`Tree::put_in_place`]; `EACCES` for what may not be read, or is neither a file, a directory nor a link;
    /// `EINTR` if nobody waits any more; `EINVAL` if it would take its own place; what `may_land` says.
    pub fn copy_all(
        self: &Arc<Tree>,
        (access, from): (&Access, &Attr),
        (to, replace): (&RequestPath, bool),
        copying: &CopyRequest<'_>,
    ) -> FsResult<PlacementOutcome> {
        let place = self.place(access, &RequestPath { is_dir: false, ..to.clone() }, false)?;
        let found = self.at(&place)?;
        if found.is_some() && !replace {
            return Err(Errno::EEXIST.into());
        }
        if found.is_some_and(|found| found.ino == from.ino) {
            return Err(Errno::EINVAL.into());
        }
        if from.is_file() && found.is_none_or(|found| found.is_file()) {
            let replace = if replace { Replace::Always } else { Replace::Never };
            let upload = self.copied(from, place, copying.cancellation)?;
            (copying.may_land)(TreeState::of(from))?;
            let (is_new, _) = upload.finish(replace)?;
            return Ok(if is_new { PlacementOutcome::New } else { PlacementOutcome::OnFile });
        }
        if let Some(found) = found {
            self.may_remove(&found)?;
        }
        let aside = ParentAndName { name: hidden()?, ..place.clone() };
        let made = self.copy_to(from, &aside, copying);
        let landed =
            made.and_then(copying.may_land).and_then(|()| match self.put_in_place(&aside, &place, replace) {
                Err(error) if error.errno() == Errno::EXDEV && self.is_dir_of_parent(&place, found)? => {
                    self.replace_at_source(&aside, &place)
                }
                placed => placed,
            });
        if landed.is_err() {
            self.discard_aside(&aside);
        }
        let landed = landed?;
        // What has a hidden name goes to no source.
        if let Some(copied) = self.at(&place)?.filter(Attr::is_dir) {
            self.client()?.save_tree(&copied)?;
        }
        Ok(landed)
    }

    /// Returns whether what is at a place is a directory of its parent's partition. If that cannot be exchanged with one
    /// beside it, a source has it; one that is a partition's own stays.
    fn is_dir_of_parent(&self, place: &ParentAndName, found: Option<Attr>) -> FsResult<bool> {
        let Some(found) = found.filter(Attr::is_dir) else { return Ok(false) };
        let parent = self.client()?.getattr(place.parent)?;
        Ok(found.layout.partition() == parent.layout.partition())
    }

    /// Copies to a free name, and returns what was copied.
    fn copy_to(
        self: &Arc<Tree>,
        from: &Attr,
        to: &ParentAndName,
        copying: &CopyRequest<'_>,
    ) -> FsResult<TreeState> {
        let cancellation = copying.cancellation;
        let mut state = TreeState::of(from);
        let made = self.copy_one(from, to, cancellation)?;
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
                let place = ParentAndName { parent: into, name: entry.name, is_dir: false };
                left.extend(self.copy_one(&attr, &place, cancellation)?.map(|made| (attr, made)));
                Ok(())
            })?;
        }
        Ok(state)
    }

    /// Copies one object that is not a directory, or creates a directory and returns it.
    fn copy_one(
        self: &Arc<Tree>,
        from: &Attr,
        to: &ParentAndName,
        cancellation: &Cancellation,
    ) -> FsResult<Option<Ino>> {
        cancellation.check_cancelled()?;
        let client = self.client()?;
        match from.mode & mode::TYPE {
            mode::DIR => {
                self.may(from, READ)?;
                let change = self.member().change()?;
                let new = NewInode { mode: mode::DIR | from.mode & mode::PERM, rdev: 0, target: &[] };
                let made = client.mknod(&change.ctx, to.parent, &to.name, &new)?;
                // Given back first: each change that a thread holds takes a channel, and attributes need their own.
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
            mode::FILE => self.copied(from, to.clone(), cancellation)?.finish(Replace::Never).map(|_| None),
            _ => Err(Errno::EACCES.into()),
        }
    }

    /// Returns a file's copy, without a name.
    fn copied(
        self: &Arc<Tree>,
        from: &Attr,
        to: ParentAndName,
        cancellation: &Cancellation,
    ) -> FsResult<Upload> {
        let file = self.open_file(from)?;
        let mut upload = self.upload_at(to, from.mode & 0o777)?;
        let mut at = 0;
        while at < file.attr.size {
            let end = (at + COPIED_AT_ONCE).min(file.attr.size);
            upload.append_file(&file, (at, end), cancellation)?;
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
