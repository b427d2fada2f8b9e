//! Where records and subfiles come from: a running formation, or the volumes of a stopped one.

use bivouac_types::{FsResult, NodeId};
use bivouac_wire::{FormationMap, ListRecordsRequest, ListSubfilesRequest, RecordPage, SubfilePage};

/// What a check reads.
pub trait Source {
    /// The formation's map.
    fn map(&self) -> &FormationMap;

    /// Whether the node's records can be read.
    fn has_records(&self, node: NodeId) -> bool;

    /// Whether the volume can be read.
    fn has_volume(&self, node: NodeId, volume: u16) -> bool;

    /// Some of a node's records.
    ///
    /// # Errors
    /// When the node or its volume cannot be read.
    fn records(&self, node: NodeId, request: &ListRecordsRequest) -> FsResult<RecordPage>;

    /// Some of the subfiles of a volume.
    ///
    /// # Errors
    /// When the node or its volume cannot be read.
    fn subfiles(&self, node: NodeId, request: &ListSubfilesRequest) -> FsResult<SubfilePage>;
}

/// Told how far a check is.
pub trait Progress {
    /// So many things of a kind have been looked at.
    fn at(&self, phase: &'static str, done: u64);
}

/// Tells nobody.
impl Progress for () {
    fn at(&self, _: &'static str, _: u64) {}
}

/// Whether the home of every inode can be asked.
pub(crate) fn has_all_records(source: &dyn Source) -> bool {
    nodes(source.map()).all(|node| source.has_records(node))
}

/// The nodes of a map.
pub(crate) fn nodes(map: &FormationMap) -> impl Iterator<Item = NodeId> + use<> {
    (0..map.nodes.len()).map(|id| NodeId(id as u16))
}

/// The volumes of a map, each once.
pub(crate) fn volumes(map: &FormationMap) -> Vec<(NodeId, u16)> {
    let mut all: Vec<_> = map.seats.iter().map(|seat| (seat.node, seat.volume)).collect();
    all.sort_unstable();
    all.dedup();
    all
}
