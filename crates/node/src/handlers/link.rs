//! `Link`: one more name for an inode.

use bivouac_layout::entry_hash;
use bivouac_types::{Errno, FsResult, Name, mode};
use bivouac_wire::{LinkRequest, Seen, op};

use crate::dispatch::Handle;
use crate::intent::{Intent, OldEntry};
use crate::locks::Target;
use crate::namespace::entry_slot;
use crate::node::Node;
use crate::record::Dentry;
use crate::session::Ctx;

impl Handle for op::Link {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: LinkRequest<'_>) -> FsResult<Seen> {
        let name = Name::new(request.name)?;
        let slot = entry_slot(request.parent);
        node.check_slot(slot)?;
        let hash = entry_hash(request.parent, name.as_bytes());
        let _entry = node.locks.lock(Target::Entry(request.parent, hash))?;
        let before = ctx.done_before(&node.records, slot)?.is_some();
        if !before && node.dentry(request.parent, &name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if !before && node.map.home(request.ino) == Some(node.id) {
            node.link_here(ctx, &request, &name)?;
        } else if !before {
            let new = OldEntry { parent: request.parent, name: request.name.to_vec(), ino: request.ino };
            node.carry_out(ctx, Intent::Link(new))?;
        }
        Ok(ctx.seen(node.attr_of(ctx, request.ino)?))
    }
}

impl Node {
    /// All records are this node's: one transaction.
    fn link_here(&self, ctx: &Ctx<'_>, request: &LinkRequest<'_>, name: &Name) -> FsResult<()> {
        let slot = entry_slot(request.parent);
        let mut change = self.change(&[slot, request.ino.slot()])?;
        let mut parent = change.directory(request.parent)?;
        if change.dentry(request.parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if change.inode(request.ino)?.attr.is_dir() {
            return Err(Errno::EPERM.into());
        }
        let inode = change.adjust_links(request.ino, 1)?;
        let kind = inode.attr.mode & mode::TYPE;
        change.add_entry(&mut parent, name, Dentry { ino: request.ino, kind });
        change.commit_for(ctx, slot, 0)
    }
}
