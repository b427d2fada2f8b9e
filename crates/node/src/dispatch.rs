//! The dispatch table: one row per operation.

use std::time::Instant;

use bivouac_net::{Call, DaemonId, Introduction, LaneKind, Reply, Service};
use bivouac_store::{MirroredVolumes, ServeState, with_deferred_writes};
use bivouac_types::limits::CLIENT_CHANNELS_MAX;
use bivouac_types::{ClientId, Errno, FsError, FsResult};
use bivouac_wire::{Encode, Op, Touches, op};

use crate::counters::{ServedRequest, is_look};
use crate::handlers::fence::check_fence;
use crate::handlers::{data, direct, list};
use crate::identity::{SYSTEM, peer_of};
use crate::leases::Principal;
use crate::node::{Node, RECORDS_VOLUME};
use crate::session::{Ctx, context, request};
use crate::step::Handle;

impl Service for Node {
    fn admits(&self, introduction: &Introduction) -> bool {
        let own = DaemonId { node: self.id, epoch: self.own_epoch() };
        // A client that has an older map may reach a daemon that took over the address of the one it means.
        let is_meant = introduction.daemon.is_none_or(|daemon| daemon == own);
        let has_successor =
            self.mirror.as_ref().is_some_and(|tended| tended.mirror.serve_state() == ServeState::Superseded);
        let newest = self.newest_map.lock();
        let peer = peer_of(introduction.client).and_then(|node| newest.nodes.get(usize::from(node.0)));
        // A peer of an earlier epoch has been moved: its former daemon may be alive on a host that was given up.
        !has_successor && is_meant && peer.is_none_or(|entry| introduction.epoch >= entry.epoch)
    }

    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        let (from_peer, begun) = (call.lane != LaneKind::Client, Instant::now());
        if !is_look(call.op) {
            self.recorder.tick(begun, &self.counters);
        }
        self.counters.add(call.op, from_peer);
        if call.frame.flags.is_answer_damaged() {
            self.counters.add_damage(from_peer);
        }
        let serve: fn(&Node, &Call<'_>, &mut Reply<'_>) = match call.op {
            Op::Ping => run::<op::Ping>,
            Op::GetMap => run::<op::GetMap>,
            Op::Lookup => run::<op::Lookup>,
            Op::GetAttr => run::<op::GetAttr>,
            Op::SetAttr => run::<op::SetAttr>,
            Op::Make => run::<op::Make>,
            Op::Unlink => run::<op::Unlink>,
            Op::Rmdir => run::<op::Rmdir>,
            Op::Rename => run::<op::Rename>,
            Op::Link => run::<op::Link>,
            Op::ReadLink => run::<op::ReadLink>,
            Op::ReadDir => run::<op::ReadDir>,
            Op::ListHashes => run::<op::ListHashes>,
            Op::Parent => run::<op::Parent>,
            Op::GetXattr => run::<op::GetXattr>,
            Op::ListXattr => run::<op::ListXattr>,
            Op::SetXattr => run::<op::SetXattr>,
            Op::RemoveXattr => run::<op::RemoveXattr>,
            Op::SetContract => run::<op::SetContract>,
            Op::Open => run::<op::Open>,
            Op::Close => run::<op::Close>,
            Op::Reassert => run::<op::Reassert>,
            Op::Extend => run::<op::Extend>,
            Op::Append => run::<op::Append>,
            Op::Claim => run::<op::Claim>,
            Op::Touch => run::<op::Touch>,
            Op::StatFs => run::<op::StatFs>,
            Op::Status => run::<op::Status>,
            Op::ListUses => run::<op::ListUses>,
            Op::ListHistory => run::<op::ListHistory>,
            Op::AskHost => run::<op::AskHost>,
            Op::SyncRecords => run::<op::SyncRecords>,
            Op::Read => data::serve_read,
            Op::Write => run::<op::Write>,
            Op::StatSubfile => run::<op::StatSubfile>,
            Op::SyncSubfile => run::<op::SyncSubfile>,
            Op::CutTail => run::<op::CutTail>,
            Op::Shutdown => run::<op::Shutdown>,
            Op::Leave => run::<op::Leave>,
            Op::ListRecords => run::<op::ListRecords>,
            Op::ListSubfiles => run::<op::ListSubfiles>,
            Op::Scrub => run::<op::Scrub>,
            Op::Watch => run::<op::Watch>,
            Op::ListTouched => run::<op::ListTouched>,
            Op::OpenSession => direct::serve_session,
            Op::GrantDirect => direct::serve_grant,
            Op::WidenDirect => run::<op::WidenDirect>,
            Op::LendSize => run::<op::LendSize>,
            Op::AccessList => list::serve,
            Op::PutInode => run::<op::PutInode>,
            Op::DropInode => run::<op::DropInode>,
            Op::RemoveDir => run::<op::RemoveDir>,
            Op::AdjustLinks => run::<op::AdjustLinks>,
            Op::InstallEntry => run::<op::InstallEntry>,
            Op::SetParent => run::<op::SetParent>,
            Op::Trim => run::<op::Trim>,
            Op::RemoveSubfiles => run::<op::RemoveSubfiles>,
            Op::LockRename => run::<op::LockRename>,
            Op::UnlockRename => run::<op::UnlockRename>,
            Op::RestoreDir => run::<op::RestoreDir>,
            Op::DropDir => run::<op::DropDir>,
            Op::InstallShard => run::<op::InstallShard>,
            Op::DropShard => run::<op::DropShard>,
            Op::SealShard => run::<op::SealShard>,
            Op::UnsealShard => run::<op::UnsealShard>,
            Op::FoldShard => run::<op::FoldShard>,
            Op::DirChanged => run::<op::DirChanged>,
            Op::UpdateShard => run::<op::UpdateShard>,
            Op::ChangeSpace => run::<op::ChangeSpace>,
            Op::FindData => run::<op::FindData>,
            Op::MakeUnnamed => run::<op::MakeUnnamed>,
            Op::Put => run::<op::Put>,
            Op::CopyRange => run::<op::CopyRange>,
            Op::ExtendOver => run::<op::ExtendOver>,
            Op::Count => run::<op::Count>,
            Op::ChangePartition => run::<op::ChangePartition>,
            Op::ListPartitions => run::<op::ListPartitions>,
            Op::PutPartition => run::<op::PutPartition>,
            Op::BindDirectory => run::<op::BindDirectory>,
            Op::WhichGone => run::<op::WhichGone>,
            Op::SetLock => run::<op::SetLock>,
            Op::CancelLock => run::<op::CancelLock>,
            Op::TestLock => run::<op::TestLock>,
            Op::ListLocks => run::<op::ListLocks>,
            Op::ReleaseLocks => run::<op::ReleaseLocks>,
            Op::LockHolders => run::<op::LockHolders>,
            Op::LockWaits => run::<op::LockWaits>,
            Op::LookAgain => run::<op::LookAgain>,
            Op::SettleLocks => run::<op::SettleLocks>,
            Op::LocksGranted => run::<op::LocksGranted>,
            Op::ServesClient => run::<op::ServesClient>,
            Op::Invalidate => run::<op::Invalidate>,
            Op::HasGrown => run::<op::HasGrown>,
            Op::TakeTokens => run::<op::TakeTokens>,
            Op::ReturnTokens => run::<op::ReturnTokens>,
            Op::RecallTokens => run::<op::RecallTokens>,
            Op::ReclaimTokens => run::<op::ReclaimTokens>,
            Op::ReportAccesses => run::<op::ReportAccesses>,
            Op::ListRaces => run::<op::ListRaces>,
            Op::CancelTokens => run::<op::CancelTokens>,
            Op::ListTokens => run::<op::ListTokens>,
            Op::FindOrigin => run::<op::FindOrigin>,
            Op::ListDirty => run::<op::ListDirty>,
            Op::ListSeen => run::<op::ListSeen>,
            Op::NoteSeen => run::<op::NoteSeen>,
            Op::Flush => run::<op::Flush>,
            Op::MarkFlush => run::<op::MarkFlush>,
            Op::FlushParts => run::<op::FlushParts>,
            Op::FindPlace => run::<op::FindPlace>,
            Op::BringFile => run::<op::BringFile>,
            Op::FlushHere => run::<op::FlushHere>,
            Op::Own => run::<op::Own>,
            Op::Pin => run::<op::Pin>,
            Op::ListPinned => run::<op::ListPinned>,
            Op::Fence => run::<op::Fence>,
            Op::SendUnsent => run::<op::SendUnsent>,
            Op::Mirror => run::<op::Mirror>,
            Op::MakeRoom => run::<op::MakeRoom>,
            Op::Probe => run::<op::Probe>,
            Op::ProbeFor => run::<op::ProbeFor>,
            Op::Reached => run::<op::Reached>,
            Op::BeginReplica => run::<op::BeginReplica>,
            Op::ApplyChanges => run::<op::ApplyChanges>,
            Op::RenewReplica => run::<op::RenewReplica>,
            Op::SealReplica => run::<op::SealReplica>,
            Op::SetBackup => run::<op::SetBackup>,
        };
        let beat = self.rounds.pulse.begin();
        match self.mirror.as_ref().filter(|_| needs_lease(call.op)) {
            Some(tended) => serve_leased(self, &tended.mirror, (call, reply), serve),
            None => serve(self, call, reply),
        }
        drop(beat);
        self.counters.served(&ServedRequest {
            op: call.op,
            from_peer,
            took: begun.elapsed(),
            received: u64::from(call.frame.payload_len),
            sent: reply.payload_len() as u64,
        });
    }

    fn client_connected(&self, client: ClientId) {
        self.sessions.connect(client);
        // A peer that connects was just started, or is reachable again.
        if let Some(node) = peer_of(client) {
            self.peer_answers(node);
        }
    }

    fn request_damaged(&self, lane: LaneKind) {
        self.counters.add_damage(lane != LaneKind::Client);
    }

    fn client_gone(&self, client: ClientId) {
        self.end_connection(client);
    }
}

/// Returns true if an operation reads or changes the node's volumes, and therefore needs the mirror's lease, which
/// excludes that another daemon has taken them over. The others concern the process, its clients, other nodes, or the
/// mirror itself.
fn needs_lease(op: Op) -> bool {
    let is_of_process = matches!(op, Op::Ping | Op::GetMap | Op::Status | Op::AskHost | Op::Shutdown)
        || matches!(op, Op::Probe | Op::ProbeFor | Op::Reached);
    let is_of_clients = matches!(op, Op::Invalidate | Op::HasGrown | Op::LocksGranted | Op::ServesClient)
        || matches!(op, Op::LookAgain | Op::LockWaits | Op::SettleLocks | Op::RecallTokens);
    let is_of_mirrors = matches!(op, Op::BeginReplica | Op::ApplyChanges | Op::RenewReplica)
        || matches!(op, Op::SealReplica | Op::SetBackup);
    !is_of_process && !is_of_clients && !is_of_mirrors
}

/// Returns true if the records that an operation changes may be mirrored as late as before its reply: its handler
/// discloses them by nothing else than the reply and its requests to peers.
fn defers(op: Op) -> bool {
    let is_of_names = matches!(op, Op::Make | Op::MakeUnnamed | Op::Put | Op::Link | Op::Unlink | Op::Rmdir)
        || matches!(op, Op::Rename | Op::SetAttr | Op::SetXattr | Op::RemoveXattr);
    let is_of_content = matches!(op, Op::Write | Op::Append | Op::Extend | Op::ExtendOver | Op::Touch);
    let is_step = matches!(op, Op::PutInode | Op::DropInode | Op::RemoveDir | Op::AdjustLinks)
        || matches!(op, Op::InstallEntry | Op::SetParent | Op::RemoveSubfiles);
    is_of_names || is_of_content || is_step
}

/// Serves a request under the mirror's lease. The lease is checked before and after: only if it is still valid then can
/// no other daemon have changed what was read.
fn serve_leased(
    node: &Node,
    mirror: &MirroredVolumes,
    (call, reply): (&Call<'_>, &mut Reply<'_>),
    serve: fn(&Node, &Call<'_>, &mut Reply<'_>),
) {
    if mirror.wait_to_serve() == ServeState::Serves {
        // With a source, a handler also discloses changes by what it does there, which no mirror can take back.
        let may_defer = defers(call.op) && !node.partitions.has_site_storage();
        with_deferred_writes(may_defer, || serve(node, call, reply));
        // Also changes that other requests have deferred: this one may have read them.
        let made = mirror.make_deferred();
        if made.is_ok() && mirror.wait_to_serve() == ServeState::Serves {
            return;
        }
    }
    if mirror.serve_state() == ServeState::Superseded {
        let text = "another daemon has taken over the volumes of this node";
        // No error reply: the successor may have carried the request out, and only it can answer.
        return reply.abandon(&FsError::with(Errno::EIO, text));
    }
    let text =
        "the backup of this node's volumes does not answer; bring it back, or give the node another one";
    reply.fail(&FsError::with(Errno::EIO, text));
}

fn run<O: Handle>(node: &Node, call: &Call<'_>, reply: &mut Reply<'_>) {
    // A client speaks for itself; only a peer may name another client as origin.
    let origin = if call.lane != LaneKind::Client { call.frame.origin } else { call.frame.client };
    // Any other request of a client says that it has nothing to reclaim, or has done so.
    if call.lane == LaneKind::Client && !matches!(O::OP, Op::Reassert | Op::ReclaimTokens) {
        node.reclaim(origin);
    }
    let touches = if origin == SYSTEM { Touches::Nothing } else { O::OP.touches() };
    let _principal = (touches == Touches::Changes).then(|| Principal::on_behalf_of(origin));
    let ctx = context(call, origin);
    // Each channel of a client leaves an `R` record in every slot that it changes.
    if call.lane == LaneKind::Client && call.frame.channel >= CLIENT_CHANNELS_MAX {
        let text = format!("channel {} is above {CLIENT_CHANNELS_MAX}", call.frame.channel);
        return reply.fail(&FsError::with(Errno::EPROTO, text));
    }
    // Writes check for a superseded connection themselves, under the subfile's lock. The peer lane has no reply cache,
    // since handlers there may not wait for another transmission.
    let writes = matches!(O::OP, Op::Write | Op::ChangeSpace | Op::CopyRange);
    let has_cached_reply = writes && call.lane == LaneKind::Client;
    let makes = touches == Touches::Changes || O::OP == Op::MakeUnnamed;
    // To save the work. The check that counts is made once more under the locks of what is changed.
    let current = if makes { ctx.check_current() } else { Ok(()) };
    let alters = makes || writes;
    // A step is part of a change whose request has passed this on another node.
    // An open may truncate.
    let is_fenced = (alters || O::OP == Op::Open) && call.lane == LaneKind::Client;
    let passing = if is_fenced { node.proxy.fence.pass().map(Some) } else { Ok(None) };
    let outcome =
        current.and_then(|()| check_fence(node, call)).and(passing).and_then(
            |_passing| match has_cached_reply {
                true => node.replies.once(&ctx, || serve::<O>(node, call, &ctx)),
                false => serve::<O>(node, call, &ctx),
            },
        );
    match outcome {
        Ok(answer) => answer.encode(reply.body()),
        Err(error) => reply.fail(&node.error_for(&ctx, error)),
    }
}

/// Handles a request. Where it creates records and finds no space, space promised to processes that write directly is
/// reclaimed once, and the request handled again: nothing has happened by then, and no lock is held that such a process
/// may wait for.
fn serve<O: Handle>(node: &Node, call: &Call<'_>, ctx: &Ctx<'_>) -> FsResult<O::Reply> {
    let handle = || O::handle(node, ctx, request::<O>(call)?);
    let outcome = handle();
    let adds = matches!(O::OP, Op::Make | Op::MakeUnnamed | Op::Put | Op::Link | Op::SetXattr | Op::PutInode);
    // Not for what only removes or replaces: that must not need space in the first place.
    let is_full = adds && outcome.as_ref().is_err_and(|error| error.errno() == Errno::ENOSPC);
    if is_full && node.reclaim_direct(RECORDS_VOLUME) { handle() } else { outcome }
}
