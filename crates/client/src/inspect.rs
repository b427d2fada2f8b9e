//! Looking at the formation itself: for `status`, `explain` and `down`.

use bivouac_types::limits::HOST_ANSWER_MAX;
use bivouac_types::{Attr, FsResult, Ino, NodeId, SeatIndex};
use bivouac_wire::{
    HistoryRequest, HistoryTable, HostQuestion, Inos, ListRecordsRequest, ListSubfilesRequest, NodeStatus,
    RecordPage, SubfileName, SubfilePage, SubfileState, UseTable, Watched, op,
};

use crate::client::Client;

/// One seat of a file.
#[derive(Clone, Debug)]
pub struct SeatReport {
    /// Position among the seats that the file uses.
    pub column: u16,
    /// The seat.
    pub seat: SeatIndex,
    /// Its node.
    pub node: NodeId,
    /// Position of its volume on the node.
    pub volume: u16,
    /// The subfile there.
    pub subfile: SubfileState,
}

impl Client {
    /// All about a node.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached.
    pub fn status(&self, node: NodeId) -> FsResult<NodeStatus> {
        self.ways.ask::<op::Status>(node, &())
    }

    /// How files whose home a node is were used. Those that are open are told of by mounts of the node; other nodes
    /// hear of it soon.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached.
    pub fn list_uses(&self, node: NodeId) -> FsResult<UseTable> {
        self.ways.ask::<op::ListUses>(node, &())
    }

    /// What was done when: of requests that a node `served`, or of programs with files whose home it is.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached.
    pub fn list_history(&self, node: NodeId, served: bool, back_ms: u64) -> FsResult<HistoryTable> {
        self.ways.ask::<op::ListHistory>(node, &HistoryRequest { served, back_ms })
    }

    /// What there is on a node's host beside its volumes, from an offset on; at most `HOST_ANSWER_MAX` bytes of it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` of what it does not know; `EIO` when it cannot be reached.
    pub fn ask_host(&self, node: NodeId, what: &str, offset: u64) -> FsResult<Vec<u8>> {
        let question = HostQuestion { what: what.as_bytes(), offset, most: HOST_ANSWER_MAX };
        Ok(self.ways.ask::<op::AskHost>(node, &question)?.bytes)
    }

    /// Ends a node's daemon.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached.
    pub fn shutdown(&self, node: NodeId) -> FsResult<()> {
        self.ways.ask::<op::Shutdown>(node, &())
    }

    /// Positions, within the partition of an open file, of the seats of this machine.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached.
    pub fn seats_here(&self, ino: Ino) -> FsResult<Vec<u16>> {
        let layout = self.know(ino)?.layout;
        let is_here = |position: &u16| {
            let place = self.seat_place(SeatIndex::new(layout.partition(), *position))?;
            Ok(self.local == Some(place.node) || self.direct.is_here(place.node))
        };
        (0..layout.seats)
            .filter_map(|position| is_here(&position).map(|here| here.then_some(position)).transpose())
            .collect()
    }

    /// The seats that a regular file uses, and what each holds of it.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached.
    pub fn seats(&self, attr: &Attr) -> FsResult<Vec<SeatReport>> {
        let layout = attr.layout;
        let report = |column: u16| {
            let seat = bivouac_layout::seat_of(&layout, column);
            let place = self.seat_place(seat)?;
            let name = SubfileName { ino: attr.ino, seat };
            let subfile = self.ways.ask::<op::StatSubfile>(place.node, &name)?;
            Ok(SeatReport { column, seat, node: place.node, volume: place.volume, subfile })
        };
        (0..layout.width).map(report).collect()
    }
}

/// Looking at what nodes keep, for checks.
impl Client {
    /// Some of a node's records, as they are kept.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached.
    pub fn list_records(&self, node: NodeId, request: &ListRecordsRequest) -> FsResult<RecordPage> {
        self.ways.ask::<op::ListRecords>(node, request)
    }

    /// Some of the subfiles on a node's volume.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached or the volume cannot be read.
    pub fn list_subfiles(&self, node: NodeId, request: &ListSubfilesRequest) -> FsResult<SubfilePage> {
        self.ways.ask::<op::ListSubfiles>(node, request)
    }

    /// Has a node watch inodes for this client, instead of those before.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached, `EINVAL` for too many.
    pub fn watch_inodes(&self, node: NodeId, inos: &Inos) -> FsResult<()> {
        self.ways.ask::<op::Watch>(node, inos)
    }

    /// What became of the watched inodes.
    ///
    /// # Errors
    /// `EIO` when the node cannot be reached.
    pub fn touched(&self, node: NodeId) -> FsResult<Watched> {
        self.ways.ask::<op::ListTouched>(node, &())
    }
}
