//! `Put`: a whole small file at once, for who copies many: name, content, owner, mode and time in one message.

use bivouac_types::limits::PUT_LEN_MAX;
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, Name, mode};
use bivouac_wire::{MakeRequest, PutRequest, Seen, op};

use crate::node::Node;
use crate::session::Ctx;
use crate::step::Handle;

/// Permissions that the owner of a directory needs to make entries in it.
const MAY_MAKE: u32 = 0o300;
/// Permission bits that a file may be given.
const MODES: u32 = 0o777;

impl Handle for op::Put {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: PutRequest<'_>) -> FsResult<Seen> {
        let name = Name::new(request.name)?;
        if length(ctx) > PUT_LEN_MAX as u64 || request.mode & !MODES != 0 {
            return Err(Errno::EINVAL.into());
        }
        node.with_room_for_names(ctx, || node.patiently(|| node.put(ctx, &request, &name)))
    }
}

/// Returns the number of bytes of content.
fn length(ctx: &Ctx<'_>) -> u64 {
    ctx.payload.iter().map(|piece| piece.len() as u64).sum()
}

impl Node {
    /// Makes the file, which gets its name first, and its size and time with the last transaction: until then it is an
    /// empty file, and what was written of it belongs to its inode, so that nothing is left over if this process is
    /// killed in between.
    fn put(&self, ctx: &Ctx<'_>, request: &PutRequest<'_>, name: &Name) -> FsResult<Seen> {
        let _entry = self.lock_entries(&[(request.parent, name)])?;
        let ino = match self.entry_done_before(ctx, request.parent, name)? {
            Some(ino) => Ino(ino),
            None => self.put_name(ctx, request, name)?,
        };
        // Nobody cuts it meanwhile.
        let _size = self.lock_size(ino)?;
        let inode = self.regular_file(ino)?;
        if is_put(&inode.attr, request, length(ctx))? {
            return Ok(self.seen(ctx, inode.attr));
        }
        inode.attr.check_changeable()?;
        // The name, and the number's reservation, are at the backup before content is.
        self.peers.make_deferred()?;
        if let Err(error) = self.write_striped(&inode, 0, ctx.payload) {
            // What some targets took must not come up when somebody makes it longer.
            self.mark_tails(vec![ino]);
            return Err(error);
        }
        let mut change = self.change_of(ino)?;
        ctx.check_current().inspect_err(|_| self.mark_tails(vec![ino]))?;
        let mut inode = change.inode(ino)?;
        inode.attr.size = length(ctx);
        inode.attr.mtime = request.mtime;
        inode.attr.ctime = change.now;
        inode.attr.raise_data_version();
        change.put_inode(&inode);
        change.commit().inspect_err(|_| self.mark_tails(vec![ino]))?;
        Ok(self.seen(ctx, inode.attr))
    }

    /// Makes the file, empty, unless this request has made it.
    fn put_name(&self, ctx: &Ctx<'_>, request: &PutRequest<'_>, name: &Name) -> FsResult<Ino> {
        let place = self.place(request.parent, name)?;
        if place.is_spread() {
            return Err(not_here("the directory is a large one"));
        }
        let parent = self.inode(request.parent)?;
        if !parent.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if parent.attr.uid != request.uid || parent.attr.mode & MAY_MAKE != MAY_MAKE {
            return Err(FsError::with(
                Errno::EACCES,
                "the directory is not the asking user's to make files in",
            ));
        }
        if parent.attr.mode & mode::SETGID != 0 {
            return Err(not_here("the directory passes on its group"));
        }
        if self.is_bound(parent.attr.layout.partition()) {
            return Err(not_here("the directory is in front of site storage"));
        }
        if self.dentry(&place)?.is_some() {
            // It may be its own: the content did not fit, and room has been made since.
            let again = Ctx { retry: true, ..*ctx };
            let own = self.entry_done_before(&again, request.parent, name)?;
            return own.map(Ino).ok_or_else(|| Errno::EEXIST.into());
        }
        let PutRequest { parent, name: bytes, uid, gid, near, .. } = *request;
        let mode = mode::FILE | request.mode;
        let make = MakeRequest {
            parent,
            name: bytes,
            mode,
            uid,
            gid,
            rdev: 0,
            target: b"",
            open: None,
            exclusive: true,
            near,
        };
        // A daemon after this one has to know that there may be something behind the ends of files.
        self.sessions.note(&self.records, ctx.client)?;
        let inode = self.new_inode_at(&place, name, &make)?;
        Ok(self.make_here(ctx, &make, &place, &inode)?.found.ino)
    }
}

fn not_here(why: &str) -> FsError {
    FsError::with(Errno::EOPNOTSUPP, format!("{why}: make the file, write it and set its attributes"))
}

/// Returns true if a file that was begun before is complete, false if it is as it was when it got its name.
///
/// # Errors
/// `EIO` if it is neither.
fn is_put(attr: &Attr, request: &PutRequest<'_>, len: u64) -> FsResult<bool> {
    let done = (attr.size, attr.mtime) == (len, request.mtime);
    if done || (attr.size, attr.epoch) == (0, 0) {
        return Ok(done);
    }
    Err(FsError::with(Errno::EIO, "somebody changed the file before it was complete; make it again"))
}
