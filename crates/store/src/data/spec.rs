//! Which subfile, what it is made with, and what it is.

use std::path::PathBuf;

use bivouac_types::{FormationId, Ino, Layout, Placement, SeatIndex};
use bivouac_wire::SeatEntry;
use bivouac_wire::subfile::SubfileHeader;

use crate::{StoreError, StoreResult};

/// Which subfile: what one seat holds of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubfileId {
    /// Position of the volume on the node.
    pub volume: u16,
    /// The file.
    pub ino: Ino,
    /// The seat.
    pub seat: SeatIndex,
}

/// What the header of a new subfile says about its file.
#[derive(Clone, Copy, Debug)]
pub struct SubfileSpec<'a> {
    /// Where the file's bytes are, and in which partition.
    pub layout: Layout,
    /// How that was chosen.
    pub placement: Placement,
    /// All seats of the partition, in order, as in the map.
    pub seats: &'a [SeatEntry],
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
    /// Where data begins in the local file.
    pub data_at: u64,
    /// Epoch below which writes are refused.
    pub epoch: u32,
    /// Where it is.
    pub path: PathBuf,
}

impl SubfileSpec<'_> {
    /// The header of a new subfile.
    pub(super) fn header(
        &self,
        id: SubfileId,
        formation: FormationId,
        trim_epoch: u32,
        sums: bool,
    ) -> StoreResult<SubfileHeader> {
        let bad = |cause: String| StoreError::BadLayout { ino: id.ino, cause };
        self.layout.check().map_err(bad)?;
        let seats = usize::from(self.layout.seats);
        let known = self
            .seats
            .get(..seats)
            .ok_or_else(|| bad(format!("{seats} seats, of which {} exist", self.seats.len())))?;
        let from_base = known.iter().cycle().skip(usize::from(self.layout.base.position()));
        let header = SubfileHeader {
            formation,
            ino: id.ino,
            seat: id.seat,
            layout: self.layout,
            placement: self.placement,
            trim_epoch,
            places: from_base.take(usize::from(self.layout.width)).copied().collect(),
            sums,
        };
        match header.column() {
            Some(_) if id.seat.position() < self.layout.seats => Ok(header),
            _ => Err(bad(format!("file has nothing on seat {}", id.seat))),
        }
    }
}
