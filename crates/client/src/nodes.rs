//! Looking at the formation itself: for `status`, `explain` and `down`.

use bivouac_types::limits::HOST_ANSWER_MAX;
use bivouac_types::{FsResult, NodeId, SeatIndex};
use bivouac_wire::{
    HistoryRequest, HistoryTable, HostQuestion, Inos, ListRecordsRequest, ListSubfilesRequest, NodeStatus,
    RecordPage, ScrubDone, ScrubRequest, SubfilePage, SubfileState, UseTable, Watched, op,
};

use crate::ways::Ways;

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

/// Asks nodes about themselves. All of it fails with `EIO` when the node cannot be reached.
#[derive(Clone, Copy)]
pub struct Nodes<'c>(pub(crate) &'c Ways);

impl Nodes<'_> {
    /// All about a node.
    pub fn status(self, node: NodeId) -> FsResult<NodeStatus> {
        self.0.ask::<op::Status>(node, &())
    }

    /// How files whose home a node is were used. Those that are open are told of by mounts of the node; other nodes
    /// hear of it soon.
    pub fn list_uses(self, node: NodeId) -> FsResult<UseTable> {
        self.0.ask::<op::ListUses>(node, &())
    }

    /// What was done when: of requests that a node `served`, or of programs with files whose home it is.
    pub fn list_history(self, node: NodeId, served: bool, back_ms: u64) -> FsResult<HistoryTable> {
        self.0.ask::<op::ListHistory>(node, &HistoryRequest { served, back_ms })
    }

    /// What there is on a node's host beside its volumes, from an offset on; at most `HOST_ANSWER_MAX` bytes of it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` of what it does not know; `EIO` when it cannot be reached.
    pub fn ask_host(self, node: NodeId, what: &str, offset: u64) -> FsResult<Vec<u8>> {
        let question = HostQuestion { what: what.as_bytes(), offset, most: HOST_ANSWER_MAX };
        Ok(self.0.ask::<op::AskHost>(node, &question)?.bytes)
    }

    /// Some of a node's records, as they are kept.
    pub fn list_records(self, node: NodeId, request: &ListRecordsRequest) -> FsResult<RecordPage> {
        self.0.ask::<op::ListRecords>(node, request)
    }

    /// Some of the subfiles on a node's volume.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached or the volume cannot be read.
    pub fn list_subfiles(self, node: NodeId, request: &ListSubfilesRequest) -> FsResult<SubfilePage> {
        self.0.ask::<op::ListSubfiles>(node, request)
    }

    /// Has a node watch inodes for this client, instead of those before.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached, `EINVAL` for too many.
    pub fn watch_inodes(self, node: NodeId, inos: &Inos) -> FsResult<()> {
        self.0.ask::<op::Watch>(node, inos)
    }

    /// What became of the watched inodes.
    pub fn touched(self, node: NodeId) -> FsResult<Watched> {
        self.0.ask::<op::ListTouched>(node, &())
    }

    /// Has a node compare some of a subfile.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached or the subfile cannot be read.
    pub fn scrub_subfile(self, node: NodeId, request: &ScrubRequest) -> FsResult<ScrubDone> {
        self.0.ask::<op::Scrub>(node, request)
    }
}
