//! Opens: what keeps a file alive when its last name goes.

use bivouac_types::{ClientId, FsResult, Ino, mode};
use bivouac_wire::{OpenCounts, OpenRequest, ReassertRequest, Seen, op};

use crate::dispatch::Handle;
use crate::leases::Acting;
use crate::node::Node;
use crate::session::Ctx;

impl Handle for op::Open {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: OpenRequest) -> FsResult<Seen> {
        let ino = request.ino;
        node.openers.note(&node.records, ctx.client)?;
        // Registered before it is looked at: an unlink in between then leaves it alive.
        node.opens.add(ino, ctx.client, 1);
        let opened = node.inode(ino).and_then(|inode| match inode.attr.mode & mode::TYPE {
            mode::FILE if request.truncate && inode.attr.size > 0 => {
                let _acting = Acting::on_behalf_of(ctx.origin);
                node.resize_once(ctx, ino, 0)
            }
            _ => Ok(inode.attr),
        });
        if opened.is_err() {
            node.close(ctx.client, ino, 1)?;
        }
        opened.map(|attr| node.seen(ctx, attr))
    }
}

impl Node {
    /// Who asks for anything has said before what it has open, if it has anything open.
    pub(crate) fn hear(&self, client: ClientId) {
        if self.openers.heard(client) {
            self.reaper.client_is_back(client);
            self.has_closed_orphans(client);
        }
    }

    /// Inodes without names that a client does not have open are not kept for it.
    pub(crate) fn has_closed_orphans(&self, client: ClientId) {
        let open = |ino: &Ino| self.opens.holders(*ino).contains(&client);
        for ino in self.orphans().into_iter().filter(|ino| !open(ino)) {
            if let Err(error) = self.forget_orphan(ino, client) {
                log::warn!("inode {ino} has no name and could not be removed: {error}");
            }
        }
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
        if !request.opens.is_empty() {
            node.openers.note(&node.records, ctx.client)?;
        }
        for (ino, count) in &request.opens {
            node.opens.set(*ino, ctx.client, *count);
            told.insert(*ino);
        }
        if !request.last {
            return Ok(());
        }
        let told = std::mem::take(told);
        node.reaper.client_is_back(ctx.client);
        node.openers.heard(ctx.client);
        let untold = node.opens.of_client(ctx.client).into_iter().filter(|ino| !told.contains(ino));
        untold.for_each(|ino| node.opens.set(ino, ctx.client, 0));
        let mut orphans = node.orphans().into_iter().filter(|ino| !told.contains(ino));
        orphans.try_for_each(|ino| node.forget_orphan(ino, ctx.client))
    }
}
