//! Bytes of files, at their targets, whichever way they go: all connections share the loops of [`publish`], and all but
//! appends are carried by [`carry`].

mod carry;
pub mod copy;
pub mod data;
pub mod direct;
mod lists;
pub mod local;
mod plan;
pub mod publish;
pub mod shown;
pub mod space;

use std::sync::Arc;

use bivouac_layout::{TargetRange, target_of};
use bivouac_net::StartedCall;
use bivouac_types::{Attr, FsResult, Ino, NodeId, TargetIndex};
use bivouac_wire::{Operation, SubfileName, SubfileState, op};

use crate::connections::Connections;
use crate::homes::Homes;
use crate::homes::known::{KnownFile, KnownFiles};
use crate::homes::partitions::Partitions;
use crate::nodes::TargetReport;
use crate::space_reclaimer::SpaceReclaimer;
use crate::traffic::count_content;
use carry::Carried;
use direct::Direct;
use local::LocalFiles;

/// The content of files at targets: reading and writing.
pub struct Content {
    connections: Arc<Connections>,
    pub(crate) known: Arc<KnownFiles>,
    pub(crate) homes: Arc<Homes>,
    pub(crate) partitions: Arc<Partitions>,
    reclaimer: SpaceReclaimer,
    direct: Direct,
    files: Option<Arc<dyn LocalFiles>>,
}

impl Content {
    pub(crate) fn new(
        connections: Arc<Connections>,
        homes: Arc<Homes>,
        partitions: Arc<Partitions>,
        reclaimer: SpaceReclaimer,
        direct: Direct,
        files: Option<Arc<dyn LocalFiles>>,
    ) -> Content {
        let known = Arc::clone(&direct.known);
        Content { connections, known, homes, partitions, reclaimer, direct, files }
    }

    /// Gives back the grants of a file that nobody has open any more.
    pub(crate) fn forget(&self, ino: Ino) {
        self.direct.forget(ino);
    }

    /// Gives the size of a file back to its home, if it was lent.
    pub(crate) fn return_size(&self, ino: Ino) {
        self.direct.sizes.forget(ino);
    }

    /// Returns true if the size of a file is lent to this client.
    pub(crate) fn has_size(&self, ino: Ino) -> bool {
        self.direct.sizes.is_lent(ino)
    }

    /// Makes content durable on its volumes.
    pub(crate) fn sync(&self, attr: &Attr) -> FsResult<()> {
        let targets = bivouac_layout::split(&attr.layout, 0, attr.size);
        let name = |range: &TargetRange| SubfileName { ino: attr.ino, target: range.target };
        self.ask_targets::<op::SyncSubfile>(targets, name).map(drop)
    }

    /// Returns the positions, within the partition of an open file, of the targets of this machine.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached.
    pub fn targets_here(&self, ino: Ino) -> FsResult<Vec<u16>> {
        let layout = self.homes.know(ino)?.layout;
        let here = |position: u16| {
            let place = self.partitions.target_place(TargetIndex::new(layout.partition(), position))?;
            Ok(self.is_here(place.node).then_some(position))
        };
        (0..layout.targets).filter_map(|position| here(position).transpose()).collect()
    }

    /// Returns the targets that a regular file uses, and what each holds of it.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached.
    pub fn targets(&self, attr: &Attr) -> FsResult<Vec<TargetReport>> {
        let mut reports = self.targets_there(attr)?;
        match reports.iter_mut().find_map(|report| report.error.take()) {
            Some(error) => Err(error),
            None => Ok(reports),
        }
    }

    /// Like [`Content::targets`], with an error in the report of each target whose node cannot be reached.
    ///
    /// # Errors
    /// Where the targets of its partition are not known.
    pub fn targets_there(&self, attr: &Attr) -> FsResult<Vec<TargetReport>> {
        let report = |column: u16| {
            let target = target_of(&attr.layout, column);
            let place = self.partitions.target_place(target)?;
            let name = SubfileName { ino: attr.ino, target };
            let (subfile, error) = match self.connections.ask::<op::StatSubfile>(place.node, &name) {
                Ok(subfile) => (subfile, None),
                Err(error) => (SubfileState::default(), Some(error)),
            };
            Ok(TargetReport { column, target, node: place.node, volume: place.volume, subfile, error })
        };
        (0..attr.layout.width).map(report).collect()
    }

    /// Asks the targets of some ranges, all together; the answers in their order.
    fn ask_targets<'r, O: Operation>(
        &self,
        ranges: impl IntoIterator<Item = TargetRange>,
        request: impl Fn(&TargetRange) -> O::Request<'r>,
    ) -> FsResult<Vec<O::Reply>> {
        let ask = |range: TargetRange| {
            self.connections.start::<O>(self.partitions.target_node(&range)?, &request(&range), &[])
        };
        finish_all(ranges.into_iter().map(ask))
    }

    /// Returns true if a node is on this machine.
    fn is_here(&self, node: NodeId) -> bool {
        self.connections.local == Some(node) || self.direct.is_here(node)
    }

    /// Returns true if all bytes of a file are on this machine.
    pub(crate) fn is_all_here(&self, known: &KnownFile) -> FsResult<bool> {
        for column in 0..known.layout.width {
            let place = self.partitions.target_place(target_of(&known.layout, column))?;
            if !self.is_here(place.node) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the nodes of ranges, to which content is about to go, or from which it comes.
    fn content_nodes(&self, ranges: &[TargetRange]) -> FsResult<Vec<NodeId>> {
        ranges.iter().map(|range| self.count_content(range, range.len)).collect()
    }

    /// Counts content that is about to go to a range's target, or comes from it; its node.
    fn count_content(&self, range: &TargetRange, len: u64) -> FsResult<NodeId> {
        let node = self.partitions.target_node(range)?;
        count_content(self.is_here(node), len);
        Ok(node)
    }
}

/// Awaits all answers, and notes which of the numbered messages were accepted, as `judge` says. Whether all were; the
/// first failure if there is one.
fn finish_numbered<'a, O: Operation>(
    started: Vec<(usize, FsResult<StartedCall<'a, O>>)>,
    mut judge: impl FnMut(usize, &O::Reply, &mut Carried) -> FsResult<bool>,
    carried: &mut Carried,
) -> FsResult<bool> {
    let (mut whole, mut failure) = (true, None);
    for (message, started) in started {
        let answer = started.and_then(|started| started.finish(&mut []));
        match answer.and_then(|(reply, _)| judge(message, &reply, carried)) {
            Ok(true) => carried.add(message),
            Ok(false) => whole = false,
            Err(error) => _ = failure.get_or_insert(error),
        }
    }
    failure.map_or(Ok(whole), Err)
}

/// Starts all, and awaits all answers; the first failure if there is one.
fn finish_all<'a, O: Operation>(
    started: impl Iterator<Item = FsResult<StartedCall<'a, O>>>,
) -> FsResult<Vec<O::Reply>> {
    // All are sent before the first answer is awaited, so that the targets work at the same time.
    let started = started.collect::<FsResult<Vec<_>>>()?;
    let answers: Vec<FsResult<O::Reply>> =
        started.into_iter().map(|started| started.finish(&mut []).map(|(reply, _)| reply)).collect();
    answers.into_iter().collect()
}
