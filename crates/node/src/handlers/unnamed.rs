//! `MakeUnnamed`: a file without a name, kept by whoever has it open (O_TMPFILE).

use bivouac_types::{Errno, FsResult, Ino, mode};
use bivouac_wire::{Encode, MakeRequest, MakeUnnamedRequest, Seen, op};

use crate::locks::LockTarget;
use crate::namespace::unless_absent;
use crate::new_inode::new_inode;
use crate::node::Node;
use crate::record::{orphan_key, unnamed_key};
use crate::session::Ctx;
use crate::step::Handle;

impl Handle for op::MakeUnnamed {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: MakeUnnamedRequest) -> FsResult<Seen> {
        let slot = request.parent.slot();
        node.check_slot(slot)?;
        if request.mode & mode::TYPE != mode::FILE {
            return Err(Errno::EINVAL.into());
        }
        node.with_room_for_names(ctx, || node.make_unnamed(ctx, &request))
    }
}

impl Node {
    fn make_unnamed(&self, ctx: &Ctx<'_>, request: &MakeUnnamedRequest) -> FsResult<Seen> {
        let (node, slot) = (self, request.parent.slot());
        // A repetition waits here for the first try.
        // There is no name to be locked: what the repetition has in common stands for the hash of one.
        let _turn =
            node.locks.lock(LockTarget::Entry(request.parent, ctx.client.0 ^ u64::from(ctx.channel)))?;
        node.sessions.note(&node.records, ctx.client)?;
        if let Some(ino) = ctx.done_before(&node.records, slot)?.map(Ino)
            && let Some(inode) = unless_absent(node.inode(ino))?
        {
            node.register_open(ctx, ino, request.open)?;
            return Ok(node.seen(ctx, inode.attr));
        }
        // Made before and gone again: its maker was killed before it had taken note of it, and then did not name it
        // among what it has open.
        let ino = node.allocator.next_ino(&node.records, slot)?;
        let mut change = node.change_at(&[slot], &[])?;
        let parent = change.inode(request.parent)?;
        if !parent.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let mut inode = new_inode(node, ino, &as_make(request), &parent.inherited(), change.now)?;
        inode.attr.nlink = 0;
        change.txn.must_fit();
        change.add_inode(&inode);
        // It stays for this client alone, as a file does that lost its last name while it was open.
        change.txn.put(slot, &orphan_key(ino), &vec![ctx.client].to_bytes());
        if request.linkable {
            change.txn.put(slot, &unnamed_key(ino), &[]);
        }
        node.register_open(ctx, ino, request.open)?;
        if let Err(error) = change.commit_for(ctx, slot, ino.0) {
            node.opens.remove(ino, ctx.client, request.open);
            return Err(error);
        }
        Ok(node.seen(ctx, inode.attr))
    }
}

fn as_make(request: &MakeUnnamedRequest) -> MakeRequest<'static> {
    let MakeUnnamedRequest { parent, mode, uid, gid, near, open, .. } = *request;
    let (name, target, open) = (b"", b"", Some(open));
    MakeRequest { parent, name, mode, uid, gid, rdev: 0, target, open, exclusive: true, near }
}
