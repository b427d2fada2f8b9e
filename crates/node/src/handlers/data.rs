//! Reading and writing subfiles. All of it is local to the seat's node.

use std::io::IoSlice;

use bivouac_net::{Call, Reply};
use bivouac_store::{StoreError, StoreResult, SubfileId, SubfileSpec};
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout, Placement, SeatIndex};
use bivouac_wire::{
    Encode, ReadDone, SubfileName, SubfileState, Subfiles, TrimRequest, WriteRequest, Written, op,
};

use crate::dispatch::{Handle, request};
use crate::node::Node;
use crate::peers::is_peer;
use crate::session::Ctx;

/// Reads straight into the caller's buffers, so it has its own row shape.
pub fn serve_read(node: &Node, call: &Call<'_>, reply: &mut Reply<'_>) {
    let outcome = request::<op::Read>(call).and_then(|read| {
        let id = node.subfile(read.ino, read.seat)?;
        let mut epoch = 0;
        let outcome = reply.payload(read.len as usize, |bufs| {
            let (len, found) = node.data.read(id, read.offset, bufs)?;
            epoch = found;
            Ok(len)
        });
        outcome.map(|_| ReadDone { epoch }).map_err(|error: StoreError| FsError::from(error))
    });
    match outcome {
        Ok(done) => done.encode(reply.body()),
        Err(error) => reply.fail(&error),
    }
}

impl Handle for op::Write {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: WriteRequest) -> FsResult<Written> {
        // On the peer lane nobody may be called, not even to make room.
        write(node, &request, ctx.payload, !is_peer(ctx.client))
    }
}

/// Writes `payload` at one place of a subfile; if there is no room, once more after garbage was removed.
pub fn write(
    node: &Node,
    request: &WriteRequest,
    payload: &[IoSlice<'_>],
    may_collect: bool,
) -> FsResult<Written> {
    let id = node.subfile(request.ino, request.seat)?;
    let spec = node.spec(request.layout)?;
    node.with_room(id.volume, may_collect, || {
        node.data.write(id, &spec, request.epoch, request.offset, payload)
    })
}

impl Handle for op::Trim {
    fn handle(node: &Node, _: &Ctx<'_>, request: TrimRequest) -> FsResult<()> {
        let id = node.subfile(request.ino, request.seat)?;
        let spec = node.spec(request.layout)?;
        Ok(node.data.trim(id, &spec, request.epoch, request.len)?)
    }
}

impl Handle for op::RemoveSubfiles {
    fn handle(node: &Node, _: &Ctx<'_>, request: Subfiles) -> FsResult<()> {
        request.subfiles.iter().try_for_each(|(ino, seat)| {
            let id = node.subfile(*ino, *seat)?;
            node.data.remove(id)?;
            node.removed_direct(id);
            Ok(())
        })
    }
}

impl Handle for op::StatSubfile {
    fn handle(node: &Node, _: &Ctx<'_>, request: SubfileName) -> FsResult<SubfileState> {
        let stat = node.data.stat(node.subfile(request.ino, request.seat)?)?;
        Ok(match stat {
            Some(stat) => SubfileState {
                exists: true,
                len: stat.len,
                allocated: stat.allocated,
                path: stat.path.to_string_lossy().into_owned(),
            },
            None => SubfileState { exists: false, len: 0, allocated: 0, path: String::new() },
        })
    }
}

impl Handle for op::SyncSubfile {
    fn handle(node: &Node, _: &Ctx<'_>, request: SubfileName) -> FsResult<()> {
        Ok(node.data.sync(node.subfile(request.ino, request.seat)?)?)
    }
}

impl Node {
    /// Changes a subfile. If there is no room it is tried again: after what processes that write directly do not need
    /// of their windows was taken back, and if `may_collect` after garbage was removed.
    pub(super) fn with_room(
        &self,
        volume: u16,
        may_collect: bool,
        change: impl Fn() -> StoreResult<u32>,
    ) -> FsResult<Written> {
        let mut outcome = change();
        if matches!(outcome, Err(StoreError::NoSpace { .. })) && self.reclaim_direct(volume) {
            outcome = change();
        }
        if may_collect && outcome.as_ref().is_err_and(StoreError::is_full) {
            self.make_room();
            outcome = change();
        }
        match outcome {
            Ok(epoch) => Ok(Written { accepted: true, epoch }),
            Err(StoreError::StaleEpoch { current }) => Ok(Written { accepted: false, epoch: current }),
            Err(error) => Err(error.into()),
        }
    }

    /// The subfile of a file on one of this node's seats.
    pub(crate) fn subfile(&self, ino: Ino, seat: SeatIndex) -> FsResult<SubfileId> {
        match self.map.seat(seat) {
            Some(place) if place.node == self.id => Ok(SubfileId { volume: place.volume, ino, seat }),
            _ => Err(FsError::with(Errno::ESTALE, format!("seat {} is not on {}", seat.0, self.id))),
        }
    }

    /// What the header of a new subfile says.
    pub(super) fn spec(&self, layout: Layout) -> FsResult<SubfileSpec<'_>> {
        if layout.seats != self.map.seat_count() {
            let text = format!("layout {layout} is not of this formation of {} seats", self.map.seats.len());
            return Err(FsError::with(Errno::EINVAL, text));
        }
        let placement = if layout.width == 1 { Placement::Hashed } else { Placement::Striped };
        Ok(SubfileSpec { partition: 0, layout, placement, seats: &self.map.seats })
    }
}
