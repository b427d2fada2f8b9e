//! Opens: what keeps a file alive when its last name goes.

use bivouac_types::{Errno, FsResult, mode};
use bivouac_wire::{OpenCounts, OpenRequest, ReassertRequest, Seen, op};

use crate::dispatch::Handle;
use crate::node::Node;
use crate::session::Ctx;

impl Handle for op::Open {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: OpenRequest) -> FsResult<Seen> {
        let ino = request.ino;
        // Registered before it is looked at: an unlink in between then leaves it alive.
        node.opens.add(ino, ctx.client, 1);
        let opened = node.inode(ino).and_then(|inode| match inode.attr.mode & mode::TYPE {
            mode::FILE if request.truncate && inode.attr.size > 0 => {
                let _changing = node.leases.change(ctx.origin);
                node.resize(ctx, ino, 0)
            }
            _ => Ok(inode.attr),
        });
        if opened.is_err() {
            node.close(ctx.client, ino, 1)?;
        }
        opened.map(|attr| ctx.seen(attr))
    }
}

impl Handle for op::Close {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: OpenCounts) -> FsResult<()> {
        request.opens.iter().try_for_each(|(ino, count)| node.close(ctx.client, *ino, *count))
    }
}

impl Handle for op::Reassert {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ReassertRequest) -> FsResult<()> {
        let freed = if request.first { node.opens.remove_client(ctx.client) } else { Vec::new() };
        for (ino, count) in request.opens.iter().filter(|(_, count)| *count > 0) {
            node.opens.add(*ino, ctx.client, *count);
        }
        for ino in freed {
            match node.forget_orphan(ino) {
                Err(error) if error.errno() != Errno::ENOENT => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
