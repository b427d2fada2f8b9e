//! Steps of the peer lane. They call nobody, and each may come twice.

use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, Name};
use bivouac_wire::{
    AdjustLinksRequest, Encode, InoOnly, InstallEntryRequest, PutInodeRequest, RemoveDirRequest, RemovedDir,
    SetParentRequest, op,
};

use crate::directory::Place;
use crate::dispatch::Handle;
use crate::namespace::{Change, decode};
use crate::node::Node;
use crate::proxy::not_listed;
use crate::record::{Aside, Dentry, Inode, aside_key};
use crate::session::Ctx;

impl Handle for op::PutInode {
    fn handle(node: &Node, _: &Ctx<'_>, request: PutInodeRequest<'_>) -> FsResult<()> {
        let inode: Inode = decode(request.record, "inode", request.ino)?;
        if inode.attr.ino != request.ino {
            return Err(Errno::EINVAL.into());
        }
        let mut change = node.change(&[request.ino.slot()])?;
        if change.inode(request.ino).is_ok() {
            return Ok(());
        }
        change.txn.must_fit();
        change.add_inode(&inode);
        if let Some(file) = request.site {
            change.put_site_file(request.ino, &decode(file, "site storage", request.ino)?);
        }
        if !request.target.is_empty() {
            change.put_target(request.ino, request.target);
        }
        change.commit()
    }
}

impl Handle for op::DropInode {
    fn handle(node: &Node, _: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<()> {
        let mut change = node.change(&[ino.slot()])?;
        match change.inode(ino) {
            Ok(inode) if inode.attr.size == 0 => {
                change.erase_inode(&inode);
                change.commit()
            }
            _ => Ok(()),
        }
    }
}

impl Handle for op::RemoveDir {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: RemoveDirRequest) -> FsResult<RemovedDir> {
        let RemoveDirRequest { ino, sealed, aside } = request;
        if node.is_unlisted(ino)? {
            return Err(not_listed(ino));
        }
        let mut change = node.change(&[ino.slot()])?;
        match change.aside(ino)? {
            Some(was) if aside && (was.driver, was.tx) == ctx.intent() => {
                return Ok(RemovedDir { record: was.inode.to_bytes() });
            }
            Some(_) => return Err(FsError::with(Errno::EBUSY, format!("directory {ino} is being replaced"))),
            None => {}
        }
        if change.inode(ino).is_err_and(|error| error.errno() == Errno::ENOENT) {
            return Ok(RemovedDir { record: Vec::new() });
        }
        let removed =
            if aside { change.set_aside(ino, sealed, ctx)? } else { change.remove_dir(ino, sealed)? };
        change.commit()?;
        Ok(RemovedDir { record: removed.to_bytes() })
    }
}

impl Handle for op::RestoreDir {
    fn handle(node: &Node, ctx: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<()> {
        let mut change = node.change(&[ino.slot()])?;
        let Some(inode) = change.take_aside(ino, ctx)? else { return Ok(()) };
        change.add_inode(&inode);
        change.commit()?;
        // What its shards have told meanwhile was not heard: all of them are asked.
        node.gathers.forget(ino);
        Ok(())
    }
}

impl Handle for op::DropDir {
    fn handle(node: &Node, ctx: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<()> {
        let mut change = node.change(&[ino.slot()])?;
        if let Some(inode) = change.take_aside(ino, ctx)? {
            // As if it were there still: all that belongs to it goes.
            change.add_inode(&inode);
            change.erase_inode(&inode);
        }
        change.commit()
    }
}

impl Change<'_> {
    /// Removes an empty directory's inode. Of a spread one, the shards must be `sealed`.
    ///
    /// # Errors
    /// `ENOTEMPTY`, `ENOTDIR`, `ENOENT`; `EREMOTE` for a spread one whose shards may have entries.
    pub(crate) fn remove_dir(&mut self, ino: Ino, sealed: bool) -> FsResult<Inode> {
        let inode = self.removable_dir(ino, sealed)?;
        self.erase_inode(&inode);
        Ok(inode)
    }

    fn removable_dir(&self, ino: Ino, sealed: bool) -> FsResult<Inode> {
        let inode = self.inode(ino)?;
        match (inode.attr.is_dir(), inode.attr.is_spread()) {
            (false, _) => Err(Errno::ENOTDIR.into()),
            (_, true) if !sealed => Err(Errno::EREMOTE.into()),
            (_, false) if inode.attr.size > 0 => Err(Errno::ENOTEMPTY.into()),
            _ => Ok(inode),
        }
    }

    /// Removes an empty directory's inode, but so that it can be restored, with all that belongs to it.
    fn set_aside(&mut self, ino: Ino, sealed: bool, ctx: &Ctx<'_>) -> FsResult<Inode> {
        let inode = self.removable_dir(ino, sealed)?;
        let (driver, tx) = ctx.intent();
        self.hide_inode(&inode);
        self.txn.put(ino.slot(), &aside_key(ino), &Aside { driver, tx, inode }.to_bytes());
        Ok(inode)
    }

    fn aside(&self, ino: Ino) -> FsResult<Option<Aside>> {
        let bytes = self.txn.get(ino.slot(), &aside_key(ino));
        bytes.map(|bytes| decode(bytes, "directory", ino)).transpose()
    }

    /// A directory that this intent has set aside is so no longer.
    fn take_aside(&mut self, ino: Ino, ctx: &Ctx<'_>) -> FsResult<Option<Inode>> {
        let aside = self.aside(ino)?.filter(|aside| (aside.driver, aside.tx) == ctx.intent());
        if aside.is_some() {
            self.txn.delete(ino.slot(), &aside_key(ino));
        }
        Ok(aside.map(|aside| aside.inode))
    }

    /// Tells a moved inode; a directory learns its parent.
    pub(crate) fn moved_to(&mut self, ino: Ino, parent: Ino, name: &[u8], back: bool) -> FsResult<()> {
        if self.aside(ino)?.is_some() {
            return Err(FsError::with(Errno::EBUSY, format!("directory {ino} is being replaced")));
        }
        let mut inode = self.inode(ino)?;
        inode.attr.ctime = self.now;
        if inode.attr.is_dir() {
            // It may have been brought there since that was looked at.
            self.leave_site(ino, back)?;
            inode.parent = parent;
        }
        self.put_inode(&inode);
        self.note_name(ino, parent, name)
    }
}

impl Handle for op::AdjustLinks {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: AdjustLinksRequest) -> FsResult<Attr> {
        let AdjustLinksRequest { ino, delta } = request;
        let mut change = node.change(&[ino.slot()])?;
        if ctx.step_done(&change.txn, ino.slot())? {
            // Gone when the earlier try took the last name; who asked for that needs no attributes.
            return change.inode(ino).map(|inode| inode.attr);
        }
        if change.inode(ino)?.attr.is_dir() {
            return Err(Errno::EPERM.into());
        }
        let inode = change.replace_link(ino, delta)?;
        change.commit_for(ctx, ino.slot(), 0)?;
        Ok(inode.attr)
    }
}

impl Handle for op::InstallEntry {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: InstallEntryRequest<'_>) -> FsResult<()> {
        let (dir, name) = (request.parent, Name::new(request.name)?);
        if node.is_unlisted(dir)? {
            return Err(not_listed(dir));
        }
        // A peer must not change what a request of this node is about to change, or what is about to move.
        let own = ctx.client == node.as_client();
        let at_home = node.owns(dir.slot());
        let inside = (!own && at_home).then(|| node.dirs.try_enter(dir));
        let lock = (!own).then(|| node.locks.try_lock(Node::entry_target(dir, &name)));
        // Looked at first: by the time of a repetition the directory may be spread, or gone.
        for slot in [dir.slot(), node.hashed_slot(dir, &name)] {
            if node.owns(slot) && ctx.step_done(&node.change(&[slot])?.txn, slot)? {
                return Ok(());
            }
        }
        let place = node.place(dir, &name)?;
        let [slot, book] = place.slots();
        let mut change = node.change(&[slot, book])?;
        if ctx.step_done(&change.txn, slot)? {
            return Ok(());
        }
        ctx.check_awaited()?;
        if matches!(lock, Some(None)) || matches!(inside, Some(None)) {
            return Err(FsError::with(Errno::EAGAIN, format!("entry '{name}' is being changed: try again")));
        }
        change.install_entry(&place, &name, &request)?;
        change.commit_quietly_for(ctx, slot, 0)?;
        // Peers who ask for this tell the home, unless it is this node.
        if place.is_spread() && at_home { node.dir_changed(dir, node.id, true) } else { Ok(()) }
    }
}

impl Change<'_> {
    fn install_entry(
        &mut self,
        place: &Place,
        name: &Name,
        request: &InstallEntryRequest<'_>,
    ) -> FsResult<()> {
        let mut parent = self.directory(place)?;
        if parent.partition() != request.partition {
            return Err(Errno::EXDEV.into());
        }
        let now = self.dentry(place)?;
        if now.map(|dentry| dentry.ino) != request.expect {
            return Err(FsError::with(
                Errno::EBUSY,
                format!("entry '{name}' was changed meanwhile: try again"),
            ));
        }
        let new = Dentry { ino: request.ino, kind: request.kind };
        match now {
            Some(old) => self.replace_entry(&mut parent, place, old, new),
            None => self.add_entry(&mut parent, place, new),
        }
        Ok(())
    }
}

impl Handle for op::SetParent {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SetParentRequest) -> FsResult<()> {
        let slot = request.ino.slot();
        let mut change = node.change(&[slot])?;
        if ctx.step_done(&change.txn, slot)? {
            return Ok(());
        }
        change.moved_to(request.ino, request.parent, &request.name, request.back)?;
        change.commit_for(ctx, slot, 0)
    }
}
