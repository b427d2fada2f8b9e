//! Bytes of files, at their seats, whichever way they go: all ways share the loops of [`publish`], and all but appends
//! are carried by [`carry`].

mod carry;
pub mod copy;
mod data;
pub mod direct;
mod lists;
pub mod local;
mod plan;
pub mod publish;
pub mod shown;
mod space;

use std::sync::Arc;

use bivouac_layout::{SeatRange, seat_of};
use bivouac_net::Started;
use bivouac_types::{Attr, FsResult, Ino, NodeId, SeatIndex};
use bivouac_wire::{Operation, SubfileName, op};

use crate::homes::Homes;
use crate::homes::known::KnownFiles;
use crate::homes::partitions::Partitions;
use crate::nodes::SeatReport;
use crate::room::Room;
use crate::traffic::count_content;
use crate::ways::Ways;
use direct::Direct;
use local::LocalFiles;

/// Reads and writes at seats.
pub struct Content {
    ways: Arc<Ways>,
    pub(crate) known: Arc<KnownFiles>,
    pub(crate) homes: Arc<Homes>,
    pub(crate) partitions: Arc<Partitions>,
    room: Room,
    direct: Direct,
    files: Option<Arc<dyn LocalFiles>>,
}

impl Content {
    pub(crate) fn new(
        ways: Arc<Ways>,
        homes: Arc<Homes>,
        partitions: Arc<Partitions>,
        room: Room,
        direct: Direct,
        files: Option<Arc<dyn LocalFiles>>,
    ) -> Content {
        let known = Arc::clone(&direct.known);
        Content { ways, known, homes, partitions, room, direct, files }
    }

    /// Nobody has the file open any more: what is granted of it is given back.
    pub(crate) fn forget(&self, ino: Ino) {
        self.direct.forget(ino);
    }

    /// Makes content durable on its volumes.
    pub(crate) fn sync(&self, attr: &Attr) -> FsResult<()> {
        let seats = bivouac_layout::split(&attr.layout, 0, attr.size);
        let name = |range: &SeatRange| SubfileName { ino: attr.ino, seat: range.seat };
        self.ask_seats::<op::SyncSubfile>(seats, name).map(drop)
    }

    /// Positions, within the partition of an open file, of the seats of this machine.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached.
    pub fn seats_here(&self, ino: Ino) -> FsResult<Vec<u16>> {
        let layout = self.homes.know(ino)?.layout;
        let here = |position: u16| {
            let place = self.partitions.seat_place(SeatIndex::new(layout.partition(), position))?;
            Ok(self.is_here(place.node).then_some(position))
        };
        (0..layout.seats).filter_map(|position| here(position).transpose()).collect()
    }

    /// The seats that a regular file uses, and what each holds of it.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached.
    pub fn seats(&self, attr: &Attr) -> FsResult<Vec<SeatReport>> {
        let report = |column: u16| {
            let seat = seat_of(&attr.layout, column);
            let place = self.partitions.seat_place(seat)?;
            let name = SubfileName { ino: attr.ino, seat };
            let subfile = self.ways.ask::<op::StatSubfile>(place.node, &name)?;
            Ok(SeatReport { column, seat, node: place.node, volume: place.volume, subfile })
        };
        (0..attr.layout.width).map(report).collect()
    }

    /// Asks the seats of some ranges, all together; the answers in their order.
    fn ask_seats<'r, O: Operation>(
        &self,
        ranges: impl IntoIterator<Item = SeatRange>,
        request: impl Fn(&SeatRange) -> O::Request<'r>,
    ) -> FsResult<Vec<O::Reply>> {
        let ask = |range: SeatRange| {
            self.ways.start::<O>(self.partitions.seat_node(&range)?, &request(&range), &[])
        };
        finish_all(ranges.into_iter().map(ask))
    }

    /// Whether a node is on this machine.
    fn is_here(&self, node: NodeId) -> bool {
        self.ways.local == Some(node) || self.direct.is_here(node)
    }

    /// The nodes of ranges, to which content is about to go, or from which it comes.
    fn content_nodes(&self, ranges: &[SeatRange]) -> FsResult<Vec<NodeId>> {
        ranges.iter().map(|range| self.count_content(range, range.len)).collect()
    }

    /// Counts content that is about to go to a range's seat, or comes from it; its node.
    fn count_content(&self, range: &SeatRange, len: u64) -> FsResult<NodeId> {
        let node = self.partitions.seat_node(range)?;
        count_content(self.is_here(node), len);
        Ok(node)
    }
}

/// Starts all, and awaits all answers; the first failure if there is one.
fn finish_all<'a, O: Operation>(
    started: impl Iterator<Item = FsResult<Started<'a, O>>>,
) -> FsResult<Vec<O::Reply>> {
    let started = started.collect::<FsResult<Vec<_>>>()?;
    let answers: Vec<FsResult<O::Reply>> =
        started.into_iter().map(|started| started.finish(&mut []).map(|(reply, _)| reply)).collect();
    answers.into_iter().collect()
}
