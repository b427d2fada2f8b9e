//! Direct access of processes of this machine. Two of the answers bring a descriptor.

use std::ops::Range;
use std::os::fd::OwnedFd;

use bivouac_net::{Call, Reply};
use bivouac_store::Access;
use bivouac_types::{Errno, FsError, FsResult};
use bivouac_wire::{
    DirectSession, Encode, Grant, GrantRequest, HasGrownRequest, InvalidateRequest, LendSizeRequest,
    SizeLease, WidenRequest, Window, op,
};

use crate::lending::NOT_LENT;
use crate::locks::LockTarget;
use crate::node::Node;
use crate::session::{Ctx, request};
use crate::step::Handle;

const REFUSED: Grant =
    Grant { granted: false, gate: 0, turn: 0, epoch: 0, data_at: 0, reads: false, from: 0, to: 0 };

/// Begins a session.
pub fn serve_session(node: &Node, call: &Call<'_>, reply: &mut Reply<'_>) {
    let opened = request::<op::OpenSession>(call)
        .and_then(|()| check_asker(call))
        .and_then(|()| node.open_direct_session(call.frame.client));
    answer(reply, opened.map(|(session, grants)| (DirectSession { session }, Some(grants))));
}

/// Grants access to a subfile.
pub fn serve_grant(node: &Node, call: &Call<'_>, reply: &mut Reply<'_>) {
    // These connections reclaim nothing: those that do have to come first.
    if node.sessions.awaiting().contains(&call.frame.client) {
        return answer(reply, Ok((REFUSED, None)));
    }
    let granted = request::<op::GrantDirect>(call).and_then(|wish| {
        check_asker(call)?;
        grant(node, call, &wish)
    });
    answer(reply, granted);
}

fn grant(node: &Node, call: &Call<'_>, wish: &GrantRequest) -> FsResult<(Grant, Option<OwnedFd>)> {
    let id = node.subfile(wish.ino, wish.target)?;
    // Who reads or writes past this node does not bring, and leaves no marks.
    if node.is_bound(wish.target.partition()) {
        return Ok((REFUSED, None));
    }
    let access = if wish.write { Access::Write } else { Access::Read };
    let range = range_of(wish.offset, wish.len)?;
    let made = node.lending.grant(call.frame.client, wish.session, id, access, range)?;
    let Some(made) = made else { return Ok((REFUSED, None)) };
    let file = made.granted.file.as_fd().map(|file| file.try_clone_to_owned());
    let Some(Ok(file)) = file else {
        // Nobody knows of the grant; it is over as soon as it is in the way.
        return Ok((REFUSED, None));
    };
    let (epoch, reads, window) = (made.granted.epoch, made.granted.reads, made.granted.window);
    let (from, to) = (window.start, window.end);
    let data_at = made.granted.file.data_offset();
    let grant = Grant { granted: true, gate: made.gate, turn: made.turn, epoch, data_at, reads, from, to };
    Ok((grant, Some(file)))
}

impl Handle for op::WidenDirect {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: WidenRequest) -> FsResult<Window> {
        let WidenRequest { session, gate, turn, offset, len } = request;
        let wider = node.lending.widen(ctx.client, (session, gate), turn, range_of(offset, len)?)?;
        let (widened, window) = (wider.is_some(), wider.unwrap_or_default());
        Ok(Window { widened, from: window.start, to: window.end })
    }
}

impl Handle for op::LendSize {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: LendSizeRequest) -> FsResult<SizeLease> {
        let LendSizeRequest { session, ino } = request;
        // What a process has in its memory goes with its host.
        if node.mirror.is_some() {
            return Ok(NOT_LENT);
        }
        let _quiet = node.recall_other_attr_leases(ino);
        // A size that nobody has written down would not be known to be flushed.
        if node.is_bound(node.inode(ino)?.attr.layout.partition()) {
            return Ok(NOT_LENT);
        }
        // While somebody else has it locked, sizes are told by messages, which wait for that.
        let Some(_size) = node.locks.try_lock(LockTarget::Size(ino)) else { return Ok(NOT_LENT) };
        node.lend_size(ctx.client, session, ino)
    }
}

impl Handle for op::Invalidate {
    fn handle(node: &Node, _: &Ctx<'_>, request: InvalidateRequest) -> FsResult<u32> {
        // Rounded up: part of a millisecond is none of nothing.
        let goes_on = node.callbacks.invalidate(request.client, &request.what).as_micros().div_ceil(1000);
        Ok(u32::try_from(goes_on).unwrap_or(u32::MAX))
    }
}

impl Handle for op::HasGrown {
    fn handle(node: &Node, _: &Ctx<'_>, request: HasGrownRequest) -> FsResult<()> {
        node.callbacks.has_grown(request.client, request.ino, request.size);
        Ok(())
    }
}

fn range_of(offset: u64, len: u64) -> FsResult<Range<u64>> {
    let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
    Ok(offset..end)
}

fn check_asker(call: &Call<'_>) -> FsResult<()> {
    if call.connection.takes_descriptors() {
        return Ok(());
    }
    Err(FsError::with(
        Errno::EOPNOTSUPP,
        "descriptors are for processes of this machine, over the Unix socket",
    ))
}

fn answer<T: Encode>(reply: &mut Reply<'_>, outcome: FsResult<(T, Option<OwnedFd>)>) {
    match outcome {
        Ok((answer, descriptor)) => {
            reply.send(&answer);
            if let Some(descriptor) = descriptor {
                reply.descriptor(descriptor);
            }
        }
        Err(error) => reply.fail(&error),
    }
}
