//! Identity, specification and attributes of a subfile.

use std::path::PathBuf;

use bivouac_types::{FormationId, Ino, Layout, Placement, TargetIndex};
use bivouac_wire::TargetEntry;
use bivouac_wire::subfile::SubfileHeader;

use crate::{StoreError, StoreResult};

/// Identity of a subfile: the part of one file on one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubfileId {
    /// Position of the volume on the node.
    pub volume: u16,
    /// The file.
    pub ino: Ino,
    /// The target.
    pub target: TargetIndex,
}

/// Description of the file in the header of a new subfile.
#[derive(Clone, Copy, Debug)]
pub struct SubfileSpec<'a> {
    /// Layout and partition of the file.
    pub layout: Layout,
    /// Rule by which the layout was chosen.
    pub placement: Placement,
    /// All targets of the partition, in order, as in the map.
    pub targets: &'a [TargetEntry],
}

/// State of a subfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubfileStat {
    /// Bytes of data, holes included.
    pub len: u64,
    /// Bytes on the volume, header and checksums included.
    pub allocated: u64,
    /// Bytes of these that are in front of the data.
    pub front: u64,
    /// Offset of the data in the local file.
    pub data_at: u64,
    /// Epoch below which writes are refused.
    pub epoch: u32,
    /// Path of the local file.
    pub path: PathBuf,
}

impl SubfileSpec<'_> {
    /// Returns the header of a new subfile.
    pub(super) fn header(
        &self,
        id: SubfileId,
        formation: FormationId,
        trim_epoch: u32,
        sums: bool,
    ) -> StoreResult<SubfileHeader> {
        let bad = |cause: String| StoreError::BadLayout { ino: id.ino, cause };
        self.layout.check().map_err(bad)?;
        let targets = usize::from(self.layout.targets);
        let known = self
            .targets
            .get(..targets)
            .ok_or_else(|| bad(format!("{targets} targets, of which {} exist", self.targets.len())))?;
        let from_base = known.iter().cycle().skip(usize::from(self.layout.base.position()));
        let header = SubfileHeader {
            formation,
            ino: id.ino,
            target: id.target,
            layout: self.layout,
            placement: self.placement,
            trim_epoch,
            places: from_base.take(usize::from(self.layout.width)).copied().collect(),
            sums,
        };
        match header.column() {
            Some(_) if id.target.position() < self.layout.targets => Ok(header),
            _ => Err(bad(format!("file has nothing on target {}", id.target))),
        }
    }
}
