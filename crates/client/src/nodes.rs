//! Looking at the formation itself: for `status`, `explain` and `down`.

use bivouac_types::limits::HOST_ANSWER_MAX;
use bivouac_types::{FsError, FsResult, Ino, NodeId, TargetIndex};
use bivouac_wire::{
    HistoryRequest, HistoryTable, HostQuestion, Inos, ListRacesRequest, ListRecordsRequest,
    ListSubfilesRequest, NodeStatus, RacePage, RecordPage, ScrubDone, ScrubRequest, SubfilePage,
    SubfileState, TouchedInos, UseTable, op,
};

use crate::connections::Connections;

/// One target of a file.
#[derive(Clone, Debug)]
pub struct TargetReport {
    /// Position among the targets that the file uses.
    pub column: u16,
    /// The target.
    pub target: TargetIndex,
    /// Its node.
    pub node: NodeId,
    /// Position of its volume on the node.
    pub volume: u16,
    /// The subfile there; as one that does not exist if the node did not answer.
    pub subfile: SubfileState,
    /// The node's error, if it did not answer.
    pub error: Option<FsError>,
}

/// Questions to nodes about themselves. All of it fails with `EIO` when the node cannot be reached.
#[derive(Clone, Copy)]
pub struct Nodes<'c>(pub(crate) &'c Connections);

impl Nodes<'_> {
    /// Returns all about a node.
    pub fn status(self, node: NodeId) -> FsResult<NodeStatus> {
        self.0.ask::<op::Status>(node, &())
    }

    /// Returns how files were used whose home is a node. The use of open files is reported by mounts of the node at
    /// once, by other nodes soon.
    pub fn list_uses(self, node: NodeId) -> FsResult<UseTable> {
        self.0.ask::<op::ListUses>(node, &())
    }

    /// Returns the history of requests that a node `served`, or of programs' use of files whose home it is.
    pub fn list_history(self, node: NodeId, served: bool, back_ms: u64) -> FsResult<HistoryTable> {
        self.0.ask::<op::ListHistory>(node, &HistoryRequest { served, back_ms })
    }

    /// Returns what a node's host answers about itself, apart from volumes, from an offset on; at most
    /// `HOST_ANSWER_MAX` bytes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` of what it does not know; `EIO` when it cannot be reached.
    pub fn ask_host(self, node: NodeId, what: &str, offset: u64) -> FsResult<Vec<u8>> {
        let question = HostQuestion { what: what.as_bytes(), offset, most: HOST_ANSWER_MAX };
        Ok(self.0.ask::<op::AskHost>(node, &question)?.bytes)
    }

    /// Returns a page of a node's records, as they are stored.
    pub fn list_records(self, node: NodeId, request: &ListRecordsRequest) -> FsResult<RecordPage> {
        self.0.ask::<op::ListRecords>(node, request)
    }

    /// Returns a page of the subfiles on a node's volume.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached or the volume cannot be read.
    pub fn list_subfiles(self, node: NodeId, request: &ListSubfilesRequest) -> FsResult<SubfilePage> {
        self.0.ask::<op::ListSubfiles>(node, request)
    }

    /// Asks a node to watch inodes for this client, instead of those it watched before.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached, `EINVAL` for too many.
    pub fn watch_inodes(self, node: NodeId, inos: &Inos) -> FsResult<()> {
        self.0.ask::<op::Watch>(node, inos)
    }

    /// Returns the state of the watched inodes.
    pub fn touched(self, node: NodeId) -> FsResult<TouchedInos> {
        self.0.ask::<op::ListTouched>(node, &())
    }

    /// Returns the races that were found until now, and what is to be known of the list. Mounts report what they have
    /// gathered.
    ///
    /// # Errors
    /// `EOPNOTSUPP` of a formation that detects none; `EIO` when the node that does it cannot be reached.
    pub fn list_races(self) -> FsResult<RacePage> {
        let detector = self.0.home(Ino::ROOT)?;
        for node in self.0.node_ids().filter(|node| *node != detector) {
            // What mounts there have gathered is lost with a node that is dead.
            if let Err(error) = self.0.ask::<op::ListRaces>(node, &ListRacesRequest { from: 0 }) {
                log::debug!(why:% = error; "mounts of {node} have not reported");
            }
        }
        let mut all = self.0.ask::<op::ListRaces>(detector, &ListRacesRequest { from: 0 })?;
        while let Some(from) = all.next {
            let page = self.0.ask::<op::ListRaces>(detector, &ListRacesRequest { from })?;
            all.races.extend(page.races);
            (all.counts, all.is_resumed, all.next) = (page.counts, page.is_resumed, page.next);
        }
        Ok(all)
    }

    /// Asks a node to verify the checksums of a part of a subfile.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached or the subfile cannot be read.
    pub fn scrub_subfile(self, node: NodeId, request: &ScrubRequest) -> FsResult<ScrubDone> {
        self.0.ask::<op::Scrub>(node, request)
    }
}
