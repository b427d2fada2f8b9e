//! The space of subfiles: reserved, freed, zeroed, looked through and copied. All of it is local to the target's
//! node.

use std::io::{IoSlice, IoSliceMut};

use bivouac_store::{ChangeCondition, SpaceChange};
use bivouac_types::limits::TRANSFER_MAX;
use bivouac_types::{Errno, FsResult};
use bivouac_wire::{
    Copied, CopyRequest, FindDataRequest, FoundData, SpaceKind, SpaceRequest, WriteRequest, Written, op,
};

use super::data;
use crate::identity::is_peer;
use crate::node::Node;
use crate::session::Ctx;
use crate::step::Handle;

/// Bytes that are copied at once.
const COPY_PIECE: usize = 1 << 18;

impl Handle for op::ChangeSpace {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SpaceRequest) -> FsResult<Written> {
        let SpaceRequest { epoch, offset, len, grow, ticket, .. } = request;
        let id = node.subfile(request.ino, request.target)?;
        let spec = node.spec(request.layout)?;
        let may_ask = !is_peer(ctx.client);
        let at = (request.ino, request.target);
        let _writing = node.before_write(at, (&request.layout, epoch), offset, len, may_ask)?;
        let is_awaited = || !ctx.connection.is_superseded();
        let awaited = ChangeCondition::by(&is_awaited);
        let change = SpaceChange { epoch, offset, len, grow, ticket, awaited };
        node.with_room(id.volume, !is_peer(ctx.client), || match request.kind {
            SpaceKind::Punch => node.data.punch(id, &change),
            SpaceKind::TakeBack => node.data.take_back(id, ticket).map(|()| epoch),
            SpaceKind::Reserve => node.data.reserve(id, &spec.get(), &change),
            SpaceKind::Zero => node.data.zero(id, &spec.get(), &change),
        })
    }
}

impl Handle for op::FindData {
    fn handle(node: &Node, _: &Ctx<'_>, request: FindDataRequest) -> FsResult<FoundData> {
        let id = node.subfile(request.ino, request.target)?;
        let (found, epoch) = node.data.next_data(id, request.offset)?;
        // Behind the end of any file, so that the least of all targets' answers is the next data.
        let found = found.unwrap_or(u64::MAX..u64::MAX);
        let found = FoundData { start: found.start, end: found.end, epoch };
        node.find_brought(request.ino, request.target, request.offset, found)
    }
}

impl Handle for op::MakeRoom {
    fn handle(node: &Node, _: &Ctx<'_>, _: ()) -> FsResult<()> {
        node.free_everywhere()
    }
}

/// Copies the part of a range that begins behind its first `done` bytes, through this buffer.
fn copy_piece(
    node: &Node,
    ctx: &Ctx<'_>,
    request: &CopyRequest,
    done: u64,
    piece: &mut [u8],
) -> FsResult<Copied> {
    let (from, at) = (node.subfile(request.from, request.target)?, request.from_offset.saturating_add(done));
    let here = node.bring(request.from, request.target, at, piece.len() as u64)?;
    let (count, epoch) = node.data.read(from, at, &mut [IoSliceMut::new(piece)])?;
    // Room for what is written below may have to come from stripes that were brought.
    drop(here);
    if epoch > request.from_epoch {
        // What is missing here may have been cut off.
        return Ok(Copied { accepted: true, current: false, len: 0 });
    }
    piece.get_mut(count..).unwrap_or_default().fill(0);
    let CopyRequest { to: ino, target, layout, epoch, .. } = *request;
    let offset = request.offset.saturating_add(done);
    let write = WriteRequest { ino, target, layout, epoch, offset };
    let who = (ctx.connection, !is_peer(ctx.client));
    let accepted = data::write(node, &write, &[IoSlice::new(piece)], who)?.accepted;
    Ok(Copied { accepted, current: true, len: if accepted { piece.len() as u32 } else { 0 } })
}

impl Handle for op::CopyRange {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: CopyRequest) -> FsResult<Copied> {
        let len = request.len as usize;
        if len > TRANSFER_MAX {
            return Err(Errno::EINVAL.into());
        }
        let mut buffer = vec![0; len.min(COPY_PIECE)];
        let mut copied = Copied { accepted: true, current: true, len: 0 };
        while copied.accepted && copied.current && (copied.len as usize) < len {
            let left = len - copied.len as usize;
            let piece = buffer.get_mut(..left.min(COPY_PIECE)).ok_or(Errno::EINVAL)?;
            let step = match copy_piece(node, ctx, &request, copied.len.into(), piece) {
                // Whoever asks for the rest must not have this copied once more: others may have replaced it.
                Err(_) if copied.len > 0 => return Ok(copied),
                step => step?,
            };
            copied = Copied { len: copied.len + step.len, ..step };
        }
        Ok(copied)
    }
}
