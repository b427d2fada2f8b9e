//! `Unlink` and `Rmdir`.

use bivouac_layout::entry_hash;
use bivouac_types::{Errno, FsResult, Name, mode};
use bivouac_wire::{EntryName, op};

use crate::dispatch::Handle;
use crate::intent::{Intent, OldEntry};
use crate::locks::Target;
use crate::namespace::entry_slot;
use crate::node::Node;
use crate::record::Dentry;
use crate::session::Ctx;

impl Handle for op::Unlink {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: EntryName<'_>) -> FsResult<()> {
        node.remove(ctx, &request, false)
    }
}

impl Handle for op::Rmdir {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: EntryName<'_>) -> FsResult<()> {
        node.remove(ctx, &request, true)
    }
}

impl Node {
    fn remove(&self, ctx: &Ctx<'_>, request: &EntryName<'_>, want_dir: bool) -> FsResult<()> {
        let name = Name::new(request.name)?;
        let slot = entry_slot(request.parent);
        self.check_slot(slot)?;
        let hash = entry_hash(request.parent, name.as_bytes());
        let _entry = self.locks.lock(Target::Entry(request.parent, hash))?;
        if ctx.done_before(&self.records, slot)?.is_some() {
            return Ok(());
        }
        let dentry = self.dentry(request.parent, &name)?.ok_or(Errno::ENOENT)?;
        match (dentry.kind == mode::DIR, want_dir) {
            (true, false) => return Err(Errno::EISDIR.into()),
            (false, true) => return Err(Errno::ENOTDIR.into()),
            _ => {}
        }
        if self.map.home(dentry.ino) == Some(self.id) {
            return self.remove_here(ctx, request, &name, dentry);
        }
        let old = OldEntry { parent: request.parent, name: request.name.to_vec(), ino: dentry.ino };
        self.carry_out(ctx, if want_dir { Intent::RemoveDir(old) } else { Intent::Unlink(old) })
    }

    /// All records are this node's: one transaction.
    fn remove_here(
        &self,
        ctx: &Ctx<'_>,
        request: &EntryName<'_>,
        name: &Name,
        dentry: Dentry,
    ) -> FsResult<()> {
        let slot = entry_slot(request.parent);
        let mut change = self.change(&[slot, dentry.ino.slot()])?;
        if change.dentry(request.parent, name)? != Some(dentry) {
            return Err(Errno::EBUSY.into());
        }
        let mut parent = change.directory(request.parent)?;
        if dentry.kind == mode::DIR {
            change.remove_dir(dentry.ino)?;
        } else {
            change.adjust_links(dentry.ino, -1)?;
        }
        change.remove_entry(&mut parent, name, dentry);
        change.commit_for(ctx, slot, 0)
    }
}
