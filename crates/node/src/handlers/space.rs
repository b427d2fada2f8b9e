//! The space of subfiles: reserved, freed, zeroed, looked through and copied. All of it is local to the seat's
//! node.

use std::io::{IoSlice, IoSliceMut};

use bivouac_store::{Awaited, SpaceChange};
use bivouac_types::limits::TRANSFER_MAX;
use bivouac_types::{Errno, FsResult};
use bivouac_wire::{
    Copied, CopyRequest, FindDataRequest, FoundData, SpaceKind, SpaceRequest, WriteRequest, Written, op,
};

use super::data;
use crate::dispatch::Handle;
use crate::node::Node;
use crate::peers::is_peer;
use crate::session::Ctx;

/// Bytes that are copied at once.
const COPY_PIECE: usize = 1 << 18;

impl Handle for op::ChangeSpace {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SpaceRequest) -> FsResult<Written> {
        let SpaceRequest { epoch, offset, len, grow, ticket, .. } = request;
        let id = node.subfile(request.ino, request.seat)?;
        let spec = node.spec(request.layout)?;
        let may_ask = !is_peer(ctx.client);
        let at = (request.ino, request.seat);
        let _writing = node.before_write(at, (&request.layout, epoch), offset, len, may_ask)?;
        let is_awaited = || !ctx.asker.is_gone();
        let awaited = Awaited::by(&is_awaited);
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
        let id = node.subfile(request.ino, request.seat)?;
        let (found, epoch) = node.data.next_data(id, request.offset)?;
        let found = found.unwrap_or(u64::MAX..u64::MAX);
        let found = FoundData { start: found.start, end: found.end, epoch };
        node.find_brought(request.ino, request.seat, request.offset, found)
    }
}

impl Handle for op::MakeRoom {
    fn handle(node: &Node, _: &Ctx<'_>, _: ()) -> FsResult<()> {
        node.free_everywhere()
    }
}

impl Handle for op::CopyRange {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: CopyRequest) -> FsResult<Copied> {
        let len = request.len as usize;
        if len > TRANSFER_MAX {
            return Err(Errno::EINVAL.into());
        }
        let from = node.subfile(request.from, request.seat)?;
        let mut buffer = vec![0; len.min(COPY_PIECE)];
        let mut copied = Copied { accepted: true, current: true };
        let mut done = 0;
        while done < len && copied.accepted {
            let piece = buffer.get_mut(..(len - done).min(COPY_PIECE)).ok_or(Errno::EINVAL)?;
            let at = request.from_offset.saturating_add(done as u64);
            let here = node.bring(request.from, request.seat, at, piece.len() as u64)?;
            let (count, epoch) = node.data.read(from, at, &mut [IoSliceMut::new(piece)])?;
            drop(here);
            if epoch > request.from_epoch {
                // What is missing here may have been cut off.
                return Ok(Copied { current: false, ..copied });
            }
            piece.get_mut(count..).unwrap_or_default().fill(0);
            let CopyRequest { to: ino, seat, layout, epoch, .. } = request;
            let offset = request.offset.saturating_add(done as u64);
            let write = WriteRequest { ino, seat, layout, epoch, offset };
            copied.accepted =
                data::write(node, &write, &[IoSlice::new(piece)], (ctx.asker, !is_peer(ctx.client)))?
                    .accepted;
            done += piece.len();
        }
        Ok(copied)
    }
}
