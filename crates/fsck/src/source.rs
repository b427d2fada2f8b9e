//! Source of records and subfiles: a running formation, or the volumes of a stopped one.

use bivouac_types::{FsResult, NodeId};
use bivouac_wire::{FormationMap, ListRecordsRequest, ListSubfilesRequest, RecordPage, SubfilePage};

/// State that a check reads.
pub trait Source {
    /// Returns the formation's map.
    fn map(&self) -> &FormationMap;

    /// Returns whether the node's records can be read.
    fn has_records(&self, node: NodeId) -> bool;

    /// Returns whether the volume can be read.
    fn has_volume(&self, node: NodeId, volume: u16) -> bool;

    /// Returns a page of a node's records.
    ///
    /// # Errors
    /// When the node or its volume cannot be read.
    fn records(&self, node: NodeId, request: &ListRecordsRequest) -> FsResult<RecordPage>;

    /// Returns a page of the subfiles of a volume.
    ///
    /// # Errors
    /// When the node or its volume cannot be read.
    fn subfiles(&self, node: NodeId, request: &ListSubfilesRequest) -> FsResult<SubfilePage>;
}

/// Receiver of progress reports.
pub trait Progress {
    /// Reports the number of objects processed in a phase.
    fn at(&self, phase: &'static str, done: u64);
}

/// Ignores progress.
impl Progress for () {
    fn at(&self, _: &'static str, _: u64) {}
}

/// Returns whether the records of every node can be read.
pub(crate) fn has_all_records(source: &dyn Source) -> bool {
    nodes(source.map()).all(|node| source.has_records(node))
}

/// Returns the nodes of a map that have records or content.
pub(crate) fn nodes(map: &FormationMap) -> impl Iterator<Item = NodeId> + use<> {
    (0..map.content_count()).map(|id| NodeId(id as u16))
}

/// Returns the volumes of a map, each once.
pub(crate) fn volumes(map: &FormationMap) -> Vec<(NodeId, u16)> {
    let mut all: Vec<_> = map.targets.iter().map(|target| (target.node, target.volume)).collect();
    all.sort_unstable();
    all.dedup();
    all
}
