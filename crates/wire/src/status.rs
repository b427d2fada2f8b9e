//! What a node tells about itself.

use crate::codec_struct;

/// State of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Directory on the node.
    pub path: String,
    /// `memory` or `disk`.
    pub kind: String,
    /// Most bytes it may hold.
    pub capacity_bytes: u64,
    /// Bytes that subfiles take.
    pub used_bytes: u64,
    /// Bytes that the node's records take, and that are kept for them.
    pub records_bytes: u64,
    /// Subfiles on it.
    pub subfiles: u64,
}
codec_struct!(VolumeStatus { path, kind, capacity_bytes, used_bytes, records_bytes, subfiles });

/// How often a node served an operation, and how often it asked others for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpCount {
    /// Name of the operation.
    pub name: String,
    /// Requests from clients.
    pub client: u64,
    /// Requests from peers.
    pub peer: u64,
    /// Requests of its own to peers, however often each had to be sent.
    pub calls: u64,
}
codec_struct!(OpCount { name, client, peer, calls });

/// State of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Position in the map.
    pub id: u16,
    /// Process id of the daemon.
    pub pid: u32,
    /// Milliseconds since the daemon started.
    pub uptime_ms: u64,
    /// Inodes whose home this node is.
    pub files: u64,
    /// Open files registered here.
    pub open_files: u64,
    /// Records and their bytes in memory.
    pub records: u64,
    /// Bytes of the records.
    pub record_bytes: u64,
    /// Volumes.
    pub volumes: Vec<VolumeStatus>,
    /// Requests per operation.
    pub operations: Vec<OpCount>,
}
codec_struct!(NodeStatus {
    id,
    pid,
    uptime_ms,
    files,
    open_files,
    records,
    record_bytes,
    volumes,
    operations
});
