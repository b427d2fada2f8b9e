//! Reading and writing subfiles. All of it is local to the target's node.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use bivouac_net::{Call, Reply, RequestOrigin};
use bivouac_store::{ChangeCondition, Places, StoreError, StoreResult, SubfileId, SubfileSpec};
use bivouac_types::limits::FRAME_PAYLOAD_MAX;
use bivouac_types::{Errno, FsError, FsResult, Ino, TargetIndex};
use bivouac_wire::{
    Encode, Op, ReadDone, ReadRequest, SubfileName, SubfileState, Subfiles, TrimRequest, WriteRequest,
    Written, op,
};

use crate::counters::ServedRequest;
use crate::identity::is_peer;
use crate::node::Node;
use crate::proxy::is_making_room;
use crate::session::{Ctx, request};
use crate::step::Handle;

/// Bytes of a read that are brought in at a time, where not all of it fits beside what else is on the volume.
const READ_PIECE: u64 = 64 << 10;

/// Reads straight into the caller's buffers, so it has its own row shape.
pub fn serve_read(node: &Node, call: &Call<'_>, reply: &mut Reply<'_>) {
    let outcome = request::<op::Read>(call).and_then(|read| {
        let read = ReadRequest { len: read.len.min(FRAME_PAYLOAD_MAX as u32), ..read };
        match read_at_once(node, &read, reply) {
            // Its own stripes stay until it has read them, and so do those of others.
            Err(error) if error.errno() == Errno::ENOSPC || is_making_room(&error) => {
                read_in_pieces(node, &read, reply)
            }
            outcome => outcome,
        }
    });
    match outcome {
        Ok(done) => done.encode(reply.body()),
        Err(error) => reply.fail(&error),
    }
}

fn read_at_once(node: &Node, read: &ReadRequest, reply: &mut Reply<'_>) -> FsResult<ReadDone> {
    let id = node.subfile(read.ino, read.target)?;
    // Held over the read: what was brought may make room for others as soon as this is dropped.
    let _here = node.bring(read.ino, read.target, read.offset, u64::from(read.len))?;
    let mut epoch = 0;
    let outcome = reply.payload(read.len as usize, |bufs| {
        let (len, found) = node.data.read(id, read.offset, bufs)?;
        epoch = found;
        Ok(len)
    });
    outcome.map(|_| ReadDone { epoch }).map_err(|error: StoreError| FsError::from(error))
}

/// Reads piece after piece, of which each may go again before the next one is brought.
fn read_in_pieces(node: &Node, read: &ReadRequest, reply: &mut Reply<'_>) -> FsResult<ReadDone> {
    let id = node.subfile(read.ino, read.target)?;
    let (mut content, mut end, mut epoch) = (vec![0; read.len as usize], 0, None);
    let mut from = read.offset;
    for piece in content.chunks_mut(READ_PIECE as usize) {
        let _here = node.bring(read.ino, read.target, from, piece.len() as u64)?;
        let (len, found) = node.data.read(id, from, &mut [IoSliceMut::new(piece)])?;
        if *epoch.get_or_insert(found) != found {
            return Err(FsError::with(Errno::EINPROGRESS, "the file was cut while it was read: ask again"));
        }
        if len > 0 {
            end = (from - read.offset) as usize + len;
        }
        from += piece.len() as u64;
    }
    let put = |bufs: &mut [IoSliceMut<'_>]| {
        let mut left = content.get(..end).unwrap_or_default();
        for buf in bufs {
            let (now, later) = left.split_at(left.len().min(buf.len()));
            buf.iter_mut().zip(now).for_each(|(to, from)| *to = *from);
            left = later;
        }
        Ok::<usize, FsError>(end)
    };
    reply.payload(end, put)?;
    Ok(ReadDone { epoch: epoch.unwrap_or(0) })
}

impl Handle for op::Write {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: WriteRequest) -> FsResult<Written> {
        // On the peer lane nobody may be called, not even to make room.
        write(node, &request, ctx.payload, (ctx.connection, !is_peer(ctx.client)))
    }
}

/// Writes `payload` at one place of a subfile, if `asker` still waits for that; if there is no room, once more after
/// garbage was removed.
pub fn write(
    node: &Node,
    request: &WriteRequest,
    payload: &[IoSlice<'_>],
    who: (RequestOrigin<'_>, bool),
) -> FsResult<Written> {
    let len: u64 = payload.iter().map(|slice| slice.len() as u64).sum();
    write_by(node, request, len, who, |id, spec, awaited| {
        node.data.write_awaited(id, spec, (request.epoch, request.offset), payload, awaited)
    })
}

/// Like [`write`], at several places, the first of which is at the request's offset.
pub fn write_places(
    node: &Node,
    request: &WriteRequest,
    places: &Places<'_>,
    who: (RequestOrigin<'_>, bool),
) -> FsResult<Written> {
    let span = places.span();
    write_by(node, request, span.end - span.start, who, |id, spec, awaited| {
        node.data.write_places(id, spec, request.epoch, places, awaited)
    })
}

fn write_by(
    node: &Node,
    request: &WriteRequest,
    len: u64,
    (origin, may_collect): (RequestOrigin<'_>, bool),
    write: impl Fn(SubfileId, &SubfileSpec<'_>, ChangeCondition<'_>) -> StoreResult<u32>,
) -> FsResult<Written> {
    let id = node.subfile(request.ino, request.target)?;
    let spec = node.spec(request.layout)?;
    let at = (request.ino, request.target);
    let how = (&request.layout, request.epoch);
    // Held over the write, so that a flush which begins meanwhile does not take it for saved.
    let _writing = node.before_write(at, how, request.offset, len, may_collect)?;
    // Asked under the lock of the subfile: the retransmission of this write may have been there before.
    let is_awaited = || !origin.is_superseded();
    node.with_room(id.volume, may_collect, || write(id, &spec.get(), ChangeCondition::by(&is_awaited)))
}

impl Handle for op::Trim {
    fn handle(node: &Node, _: &Ctx<'_>, request: TrimRequest) -> FsResult<()> {
        let id = node.subfile(request.ino, request.target)?;
        let spec = node.spec(request.layout)?;
        // The new epoch is at the backup behind the intent that it belongs to.
        node.peers.make_deferred()?;
        Ok(node.data.trim(id, &spec.get(), request.epoch, request.len)?)
    }
}

impl Handle for op::RemoveSubfiles {
    fn handle(node: &Node, _: &Ctx<'_>, request: Subfiles) -> FsResult<()> {
        request.subfiles.iter().try_for_each(|(ino, target)| {
            let id = node.subfile(*ino, *target)?;
            node.data.remove(id)?;
            node.lending.removed(id);
            node.forget_part(*ino, *target)?;
            Ok(())
        })
    }
}

impl Handle for op::StatSubfile {
    fn handle(node: &Node, _: &Ctx<'_>, request: SubfileName) -> FsResult<SubfileState> {
        let stat = node.data.stat(node.subfile(request.ino, request.target)?)?;
        Ok(match stat {
            Some(stat) => SubfileState {
                exists: true,
                len: stat.len,
                allocated: stat.allocated,
                front: stat.front,
                data_at: stat.data_at,
                path: stat.path.to_string_lossy().into_owned(),
            },
            None => SubfileState::default(),
        })
    }
}

impl Handle for op::SyncSubfile {
    fn handle(node: &Node, _: &Ctx<'_>, request: SubfileName) -> FsResult<()> {
        Ok(node.data.sync(node.subfile(request.ino, request.target)?)?)
    }
}

impl Node {
    /// Calls `send` with a range of a subfile straight from its file, if all of it is there; see
    /// [`bivouac_store::DataStore::send_part`]. Returns true if it was sent.
    pub fn send_part(
        &self,
        ino: Ino,
        target: TargetIndex,
        epoch: u32,
        range: &Range<u64>,
        send: impl FnOnce(BorrowedFd<'_>, u64) -> bool,
    ) -> bool {
        let Ok(id) = self.subfile(ino, target) else { return false };
        let begun = Instant::now();
        // Content that has to be brought in first is a hole in the file.
        let Ok(_here) = self.bring(ino, target, range.start, range.end - range.start) else { return false };
        let sent = self.data.send_part(id, epoch, range, send).unwrap_or(false);
        if sent {
            self.recorder.tick(begun, &self.counters);
            self.counters.add(Op::Read, false);
            let (op, from_peer, took) = (Op::Read, false, begun.elapsed());
            self.counters.served(&ServedRequest {
                op,
                from_peer,
                took,
                received: 0,
                sent: range.end - range.start,
            });
        }
        sent
    }
}
