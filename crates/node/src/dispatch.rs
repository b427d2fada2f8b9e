//! The dispatch table: one row per operation.

use std::time::Instant;

use bivouac_net::{Call, LaneKind, Reply, Service};
use bivouac_types::limits::CLIENT_CHANNELS_MAX;
use bivouac_types::{ClientId, Errno, FsError, FsResult};
use bivouac_wire::{Decode, Encode, Op, Operation, Touches, op};

use crate::counters::{Served, is_look};
use crate::handlers::{data, direct, list};
use crate::leases::Principal;
use crate::node::{Node, RECORDS_VOLUME};
use crate::peers::peer_of;
use crate::session::Ctx;

/// The origin of steps that no client's request makes necessary.
pub const SYSTEM: ClientId = ClientId(0);

/// An operation that a node serves.
pub trait Handle: Operation {
    /// Serves one request.
    ///
    /// # Errors
    /// What the client gets instead of the reply.
    fn handle(node: &Node, ctx: &Ctx<'_>, request: Self::Request<'_>) -> FsResult<Self::Reply>;
}

impl Service for Node {
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        let (from_peer, begun) = (call.lane == LaneKind::Peer, Instant::now());
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
            Op::LocksGranted => run::<op::LocksGranted>,
            Op::ServesClient => run::<op::ServesClient>,
            Op::Invalidate => run::<op::Invalidate>,
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
        };
        let beat = self.rounds.pulse.begin();
        serve(self, call, reply);
        drop(beat);
        self.counters.served(&Served {
            op: call.op,
            from_peer,
            took: begun.elapsed(),
            received: u64::from(call.frame.payload_len),
            sent: reply.payload_len() as u64,
        });
    }

    fn client_connected(&self, client: ClientId) {
        self.sessions.connect(client);
        // A peer that connects has just been started, or is back.
        if let Some(node) = peer_of(client) {
            self.peer_answers(node);
        }
    }

    fn request_damaged(&self, lane: LaneKind) {
        self.counters.add_damage(lane == LaneKind::Peer);
    }

    fn client_gone(&self, client: ClientId) {
        self.end_connection(client);
    }
}

fn run<O: Handle>(node: &Node, call: &Call<'_>, reply: &mut Reply<'_>) {
    let origin = if call.lane == LaneKind::Peer { call.frame.origin } else { call.frame.client };
    if call.lane == LaneKind::Client && O::OP != Op::Reassert {
        node.reclaim(origin);
    }
    let touches = if origin == SYSTEM { Touches::Nothing } else { O::OP.touches() };
    let _principal = (touches == Touches::Changes).then(|| Principal::on_behalf_of(origin));
    let ctx = context(call, origin);
    if call.lane == LaneKind::Client && call.frame.channel >= CLIENT_CHANNELS_MAX {
        let text = format!("channel {} is above {CLIENT_CHANNELS_MAX}", call.frame.channel);
        return reply.fail(&FsError::with(Errno::EPROTO, text));
    }
    // These look when the subfile is theirs.
    let writes = matches!(O::OP, Op::Write | Op::ChangeSpace | Op::CopyRange);
    let makes = touches == Touches::Changes || O::OP == Op::MakeUnnamed;
    let awaited = if makes { ctx.check_awaited() } else { Ok(()) };
    let alters = makes || writes;
    // An open may cut.
    let is_fenced = (alters || O::OP == Op::Open) && call.lane == LaneKind::Client;
    let passing = if is_fenced { node.pass_fence().map(Some) } else { Ok(None) };
    let outcome = awaited
        .and_then(|()| check_fence(node, call))
        .and(passing)
        .and_then(|_passing| serve::<O>(node, call, &ctx));
    match outcome {
        Ok(answer) => answer.encode(reply.body()),
        Err(error) => reply.fail(&error),
    }
}

/// Refuses what was begun under locks that may be somebody else's by now.
fn check_fence(node: &Node, call: &Call<'_>) -> FsResult<()> {
    let fence = call.frame.fence;
    if fence == 0 || call.lane == LaneKind::Peer {
        return Ok(());
    }
    match call.frame.client.mounted_through(node.map.formation) {
        Some(host) if !node.members.admits(host, fence) => {
            let text = format!("it was begun under a lock before {host} was taken for dead; lock again");
            Err(FsError::with(Errno::EIO, text))
        }
        _ => Ok(()),
    }
}

/// Handles a request. Records that did not fit are tried again with what processes that write directly were
/// promised and do not need: nothing has happened then, and no lock is held that one of them may wait for.
fn serve<O: Handle>(node: &Node, call: &Call<'_>, ctx: &Ctx<'_>) -> FsResult<O::Reply> {
    let handle = || O::handle(node, ctx, request::<O>(call)?);
    let outcome = handle();
    let adds = matches!(O::OP, Op::Make | Op::MakeUnnamed | Op::Put | Op::Link | Op::SetXattr | Op::PutInode);
    let is_full = adds && outcome.as_ref().is_err_and(|error| error.errno() == Errno::ENOSPC);
    if is_full && node.reclaim_direct(RECORDS_VOLUME) { handle() } else { outcome }
}

/// The decoded request.
pub fn request<'a, O: Operation>(call: &Call<'a>) -> FsResult<O::Request<'a>> {
    O::Request::from_bytes(call.body)
        .map_err(|e| FsError::with(Errno::EPROTO, format!("request {} does not decode: {e}", O::OP.name())))
}

pub fn context<'a>(call: &Call<'a>, origin: ClientId) -> Ctx<'a> {
    Ctx {
        client: call.frame.client,
        origin,
        channel: call.frame.channel,
        id: call.frame.id,
        retry: call.frame.flags.is_retry(),
        leased: call.frame.flags.wants_lease(),
        begun: Instant::now(),
        payload: call.payload,
        asker: call.asker,
    }
}
