//! Locks that programs take.

use std::time::{Duration, Instant};

use bivouac_types::{ClientId, Errno, FsError, FsResult};
use bivouac_wire::{
    GrantedLocks, ListLocksRequest, LockHolderList, LockList, LockMode, LockOf, LockOwners, LockTicket,
    LockWaitList, SetLockRequest, op,
};

use crate::advisory::{LockRequest, check};
use crate::node::Node;
use crate::session::Ctx;
use crate::step::Handle;

/// After so long no other client of the same request is waited for.
const SETTLE_MAX: Duration = Duration::from_millis(100);

impl Handle for op::SetLock {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SetLockRequest) -> FsResult<bool> {
        let SetLockRequest { ino, lock, scope, holds, ticket, node: place } = request;
        check(&lock)?;
        node.check_slot(ino.slot())?;
        let want = LockRequest { client: ctx.client, node: place, lock, ticket, holds };
        // A superseded request may have been overtaken by its repetition and the end of that lock.
        let current = || ctx.check_current();
        if lock.mode == LockMode::Unlock {
            return node.advisory.release(&node.records, ino, &want, scope, current).map(|()| true);
        }
        node.inode(ino)?;
        // Before it is granted: without a session nothing would end the lock of a client that is lost.
        node.sessions.note(&node.records, ctx.client)?;
        node.advisory.acquire(&node.records, ino, &want, current)
    }
}

impl Handle for op::CancelLock {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SetLockRequest) -> FsResult<bool> {
        let SetLockRequest { ino, lock, ticket, node: place, .. } = request;
        check(&lock)?;
        node.check_slot(ino.slot())?;
        let want = LockRequest { client: ctx.client, node: place, lock, ticket, holds: false };
        Ok(node.advisory.cancel(&node.records, ino, &want))
    }
}

impl Handle for op::TestLock {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: LockOf) -> FsResult<Option<LockOf>> {
        check(&request.lock)?;
        node.check_slot(request.ino.slot())?;
        let holders = node.advisory.holders(request.ino, ctx.client, &request.lock);
        Ok(holders.into_iter().min_by_key(|holder| holder.lock.start))
    }
}

impl Handle for op::ListLocks {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ListLocksRequest) -> FsResult<LockList> {
        if request.drop_waits {
            node.advisory.forget(&node.records, ctx.client, false)?;
        }
        // Who asks is here: what it is told that it has, it keeps.
        node.sessions.renew(ctx.client);
        let (locks, end) = node.advisory.list(ctx.client, request.after.as_ref());
        Ok(LockList { locks, end })
    }
}

impl Handle for op::ReleaseLocks {
    fn handle(node: &Node, ctx: &Ctx<'_>, (): ()) -> FsResult<()> {
        ctx.check_current()?;
        node.advisory.forget(&node.records, ctx.client, true)
    }
}

impl Handle for op::LockHolders {
    fn handle(node: &Node, _: &Ctx<'_>, request: LockOf) -> FsResult<LockHolderList> {
        check(&request.lock)?;
        node.check_slot(request.ino.slot())?;
        Ok(LockHolderList { holders: node.advisory.holders(request.ino, request.client, &request.lock) })
    }
}

impl Handle for op::LockWaits {
    fn handle(node: &Node, _: &Ctx<'_>, request: LockOwners) -> FsResult<LockWaitList> {
        let of = |(client, owner): &(ClientId, u64)| {
            node.served.get(*client).locks.map_or(Vec::new(), |served| served.waits(&[*owner]))
        };
        Ok(LockWaitList { waits: request.owners.iter().flat_map(of).collect() })
    }
}

impl Handle for op::LookAgain {
    fn handle(node: &Node, _: &Ctx<'_>, request: LockTicket) -> FsResult<()> {
        let gone = || FsError::with(Errno::ENOENT, "the client is not served here");
        node.served.get(request.client).locks.ok_or_else(gone)?.look_again(request.ticket);
        Ok(())
    }
}

impl Handle for op::SettleLocks {
    fn handle(node: &Node, _: &Ctx<'_>, request: LockOwners) -> FsResult<()> {
        let mut clients: Vec<ClientId> = request.owners.iter().map(|(client, _)| *client).collect();
        clients.sort_unstable();
        clients.dedup();
        let begun = Instant::now();
        for client in clients {
            // Each client waits for a bounded time, and all of them together for not much more.
            if begun.elapsed() < SETTLE_MAX
                && let Some(served) = node.served.get(client).locks
            {
                served.settle();
            }
        }
        Ok(())
    }
}

impl Handle for op::LocksGranted {
    fn handle(node: &Node, _: &Ctx<'_>, request: GrantedLocks) -> FsResult<()> {
        for run in request.tickets.chunk_by(|a, b| a.0 == b.0) {
            let tickets: Vec<u64> = run.iter().map(|(_, ticket)| *ticket).collect();
            let served = run.first().and_then(|(client, _)| node.served.get(*client).locks);
            if let Some(served) = served {
                served.granted(&tickets);
            }
        }
        Ok(())
    }
}

impl Handle for op::ServesClient {
    fn handle(node: &Node, _: &Ctx<'_>, client: ClientId) -> FsResult<bool> {
        Ok(node.served.get(client).locks.is_some())
    }
}
