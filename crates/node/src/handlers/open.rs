//! Opens: what keeps a file alive when its last name goes.

use bivouac_session::{FloorOrder, OpensUnderWay, ReclaimedOpens};
use bivouac_types::limits::OPENS_MAX;
use bivouac_types::{Attr, ClientId, Errno, FsError, FsResult, Ino, NodeId, OpenId, mode};
use bivouac_wire::{CloseRequest, OpenRequest, ReassertRequest, Seen, op};

use crate::leases::Principal;
use crate::node::Node;
use crate::session::Ctx;
use crate::step::Handle;
use crate::uses::UsedFile;

impl Handle for op::Open {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: OpenRequest) -> FsResult<Seen> {
        let OpenRequest { ino, id, floor, truncate } = request;
        // A later daemon has to know whose opens to wait for.
        node.sessions.note(&node.records, ctx.client)?;
        node.hear_of_opens(ctx.client, floor)?;
        // Registered before it is looked at: an unlink in between then leaves it alive.
        node.register_open(ctx, ino, id)?;
        let refreshed = if truncate { Ok(()) } else { node.refresh(ino) };
        let opened = refreshed.and_then(|()| node.inode(ino)).and_then(|inode| {
            if truncate || id.is_for_writing() {
                inode.attr.check_changeable()?;
                node.check_content_permitted(inode.attr.layout.partition())?;
            }
            match inode.attr.mode & mode::TYPE {
                mode::FILE if truncate && inode.attr.size > 0 => {
                    let _principal = Principal::on_behalf_of(ctx.origin);
                    let _quiet = node.recall_other_attr_leases(ino);
                    node.resize_once(ctx, ino, 0).map(|(attr, _)| attr)
                }
                _ => Ok(inode.attr),
            }
        });
        let opened = opened.and_then(|attr| node.hold_nameless(ctx.client, &attr));
        let is_superseded = || ctx.connection.is_superseded();
        // Not if its own repetition has overtaken it: the open is that one's then.
        if opened.is_err() && node.opens.remove_unless(ino, ctx.client, id, is_superseded) {
            node.release_orphan(ino, ctx.client);
        }
        opened.map(|attr| node.seen(ctx, attr))
    }
}

/// Returns the error for an open that its own retransmission overtook. The client has the reply to that, or has given
/// up.
fn overtaken() -> FsError {
    FsError::with(Errno::EIO, "an open arrived behind its own repetition")
}

fn too_many(home: NodeId) -> FsError {
    FsError::with(Errno::EMFILE, format!("{OPENS_MAX} files are open whose home is {home}: close some"))
}

impl Node {
    /// Registers an open.
    ///
    /// # Errors
    /// `EMFILE` when there are too many; `EIO`, which nobody reads, for one that comes too late.
    pub(super) fn register_open(&self, ctx: &Ctx<'_>, ino: Ino, open: OpenId) -> FsResult<()> {
        let client = ctx.client;
        if self.opens.count() >= OPENS_MAX {
            return Err(too_many(self.id));
        }
        let is_overtaken = || ctx.connection.is_superseded() || open < self.sessions.floor(client);
        if self.opens.add(ino, client, open, is_overtaken) { Ok(()) } else { Err(overtaken()) }
    }

    /// Ends the wait for a client's reclaim, at its first other request: it has reclaimed before whatever it has open.
    pub(crate) fn reclaim(&self, client: ClientId) {
        if self.sessions.reclaim_nothing(client) {
            self.release_orphans(client);
        }
    }

    /// Takes note that none of a client's opens below `floor` is under way. What earlier processes of it had open, and
    /// it has not said again, is not open any more.
    fn hear_of_opens(&self, client: ClientId, floor: OpenId) -> FsResult<()> {
        match self.sessions.raise_floor(client, floor) {
            FloorOrder::OfAnotherProcess => {
                self.hand_on_tokens(client);
                self.replace_opens(client, &ReclaimedOpens::new(), &OpensUnderWay::above(floor))
            }
            FloorOrder::InOrder | FloorOrder::Late => Ok(()),
        }
    }

    /// A client has open what it has told, and what is under way.
    fn replace_opens(
        &self,
        client: ClientId,
        told: &ReclaimedOpens,
        under_way: &OpensUnderWay,
    ) -> FsResult<()> {
        self.opens.replace(client, told, under_way);
        for (ino, _) in told {
            self.hold_orphan(*ino, client)?;
        }
        // The opens are known now. Who may have any file open by no more than not having said so is not asked for
        // what it has any more, only after that: in between both look at an unlink.
        self.sessions.finish_reclaim(client);
        self.release_orphans(client);
        Ok(())
    }

    /// Records an opener of an inode without names, so that it is kept over restarts as for those who had it open
    /// before.
    fn hold_nameless(&self, client: ClientId, attr: &Attr) -> FsResult<Attr> {
        if attr.nlink == 0 && attr.is_file() {
            self.hold_orphan(attr.ino, client)?;
        }
        Ok(*attr)
    }
}

impl Handle for op::Close {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: CloseRequest) -> FsResult<()> {
        node.hear_of_opens(ctx.client, request.floor)?;
        for (ino, open) in &request.opens {
            // Its process has given the size back before it said this. What is not written down now is later.
            if let Err(error) = node.sweep_sizes_of(*ino) {
                log::warn!(why:% = error; "size of inode {ino} is not in its record yet");
            }
            // Each by itself: what is wrong with one does not keep the others open.
            node.close(ctx.client, *ino, *open);
        }
        let is_mount = ctx.client.mounted_through(node.map.formation).is_some();
        // What came before a kill of this daemon is not noted twice.
        if request.uses.is_empty() || node.recorder.hears(ctx.client, ctx.id) {
            return Ok(());
        }
        for told in &request.uses {
            let inode = node.inode(told.ino).ok().map(|inode| (inode.attr, inode.parent));
            node.uses.note(ctx.client, told, UsedFile { inode, is_mount }, node.recorder.now_ms());
        }
        Ok(())
    }
}

impl Handle for op::Reassert {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ReassertRequest) -> FsResult<()> {
        let client = ctx.client;
        if !request.opens.is_empty() {
            node.sessions.note(&node.records, client)?;
        }
        // Until this is dropped: what was begun later is not taken in before what was begun earlier.
        let reclaim = node.sessions.reclaim(client);
        reclaim.tell(request.first, request.opens)?;
        if !request.last {
            return Ok(());
        }
        let told = reclaim.take_told();
        ctx.check_current()?;
        match node.sessions.raise_floor(client, request.floor) {
            FloorOrder::Late => return Err(overtaken()),
            FloorOrder::OfAnotherProcess => node.hand_on_tokens(client),
            FloorOrder::InOrder => {}
        }
        let ReassertRequest { floor, under_way: numbers, next, .. } = request;
        node.replace_opens(client, &told, &OpensUnderWay { floor, numbers, next })
    }
}

impl Handle for op::Leave {
    fn handle(node: &Node, ctx: &Ctx<'_>, (): ()) -> FsResult<()> {
        ctx.check_current()?;
        node.forget_client(ctx.client)?;
        node.forget_outcomes(ctx.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const A: ClientId = ClientId(9);

    /// S391. Between the moment at which a client was taken for heard and the one at which its opens were known, an
    /// unlink found nobody who had the file open, and removed it.
    #[test]
    fn who_reclaims_is_found_by_an_unlink_at_every_moment() {
        let dir = tempfile::tempdir().unwrap();
        let node = crate::testing::alone(dir.path());
        let told: ReclaimedOpens = (1..400).map(|number| (Ino(number), OpenId(number))).collect();
        for _ in 0..200 {
            node.sessions.await_reclaim(A);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    node.replace_opens(A, &told, &OpensUnderWay::above(OpenId(400))).unwrap();
                    done.store(true, Ordering::Release);
                });
                while !done.load(Ordering::Acquire) {
                    for number in [1, 200, 399] {
                        // As `Change::count_links` looks.
                        let awaits = node.sessions.awaiting().contains(&A);
                        assert!(awaits || node.opens.is_held(Ino(number), A), "inode {number}");
                    }
                }
            });
            node.opens.remove_client(A);
        }
    }
}
