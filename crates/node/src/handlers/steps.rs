//! Steps of the peer lane. They call nobody, and each may come twice.

use bivouac_layout::entry_hash;
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, Name};
use bivouac_wire::{
    AdjustLinksRequest, Encode, InoOnly, InstallEntryRequest, PutInodeRequest, RemovedDir, SetParentRequest,
    op,
};

use crate::dispatch::Handle;
use crate::locks::Target;
use crate::namespace::{Change, decode, entry_slot};
use crate::node::Node;
use crate::record::{Dentry, Inode};
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
        change.add_inode(&inode);
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
    fn handle(node: &Node, _: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<RemovedDir> {
        let mut change = node.change(&[ino.slot()])?;
        if change.inode(ino).is_err_and(|error| error.errno() == Errno::ENOENT) {
            return Ok(RemovedDir { record: Vec::new() });
        }
        let removed = change.remove_dir(ino)?;
        change.commit()?;
        Ok(RemovedDir { record: removed.to_bytes() })
    }
}

impl Change<'_> {
    /// Removes an empty directory's inode.
    pub(crate) fn remove_dir(&mut self, ino: Ino) -> FsResult<Inode> {
        let inode = self.directory(ino)?;
        if inode.attr.size > 0 {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.erase_inode(&inode);
        Ok(inode)
    }

    /// Tells a moved inode; a directory learns its parent.
    pub(crate) fn moved_to(&mut self, ino: Ino, parent: Ino) -> FsResult<()> {
        let mut inode = self.inode(ino)?;
        inode.attr.ctime = self.now;
        if inode.attr.is_dir() {
            inode.parent = parent;
        }
        self.put_inode(&inode);
        Ok(())
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
        let (slot, name) = (entry_slot(request.parent), Name::new(request.name)?);
        node.check_slot(slot)?;
        // A peer must not change what a request of this node is about to change.
        let hash = entry_hash(request.parent, name.as_bytes());
        let own = ctx.client == node.as_client();
        let lock = (!own).then(|| node.locks.try_lock(Target::Entry(request.parent, hash)));
        let mut change = node.change(&[slot])?;
        if ctx.step_done(&change.txn, slot)? {
            return Ok(());
        }
        if matches!(lock, Some(None)) {
            return Err(FsError::with(Errno::EAGAIN, format!("entry '{name}' is being changed: try again")));
        }
        let mut parent = change.directory(request.parent)?;
        let now = change.dentry(request.parent, &name)?;
        if now.map(|dentry| dentry.ino) != request.expect {
            return Err(FsError::with(
                Errno::EBUSY,
                format!("entry '{name}' was changed meanwhile: try again"),
            ));
        }
        let new = Dentry { ino: request.ino, kind: request.kind };
        match now {
            Some(old) => change.replace_entry(&mut parent, &name, old, new),
            None => change.add_entry(&mut parent, &name, new),
        }
        change.commit_for(ctx, slot, 0)
    }
}

impl Handle for op::SetParent {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SetParentRequest) -> FsResult<()> {
        let slot = request.ino.slot();
        let mut change = node.change(&[slot])?;
        if ctx.step_done(&change.txn, slot)? {
            return Ok(());
        }
        change.moved_to(request.ino, request.parent)?;
        change.commit_for(ctx, slot, 0)
    }
}
