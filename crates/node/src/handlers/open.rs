//! Opens: what keeps a file alive when its last name goes.

use bivouac_types::{FsResult, mode};
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
                node.resize_once(ctx, ino, 0)
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
        let mut told = node.reassertions.lock();
        let told = told.entry(ctx.client).or_default();
        if request.first {
            told.clear();
        }
        for (ino, count) in &request.opens {
            node.opens.set(*ino, ctx.client, *count);
            told.insert(*ino);
        }
        if !request.last {
            return Ok(());
        }
        let told = std::mem::take(told);
        let untold = node.opens.of_client(ctx.client).into_iter().filter(|ino| !told.contains(ino));
        untold.for_each(|ino| node.opens.set(ino, ctx.client, 0));
        let mut orphans = node.orphans().into_iter().filter(|ino| !told.contains(ino));
        orphans.try_for_each(|ino| node.forget_orphan(ino, ctx.client))
    }
}
