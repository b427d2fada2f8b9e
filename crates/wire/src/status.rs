//! What a node tells about itself.

use bivouac_types::{Fate, NodeId};

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

/// The page pools of a daemon's mounts together, in bytes but for hits and misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Most that they may take.
    pub size_bytes: u64,
    /// What they take.
    pub used_bytes: u64,
    /// Written by programs and not sent yet.
    pub unsent_bytes: u64,
    /// Small reads that found all they wanted.
    pub hits: u64,
    /// Small reads that did not.
    pub misses: u64,
    /// Written behind and arrived, since the daemon started.
    pub sent_bytes: u64,
    /// Given up, after the program had been told, since the daemon started.
    pub dropped_bytes: u64,
}
codec_struct!(PoolStatus { size_bytes, used_bytes, unsent_bytes, hits, misses, sent_bytes, dropped_bytes });

impl std::iter::Sum for PoolStatus {
    fn sum<I: Iterator<Item = PoolStatus>>(pools: I) -> PoolStatus {
        pools.fold(PoolStatus::default(), |sum, pool| PoolStatus {
            size_bytes: sum.size_bytes + pool.size_bytes,
            used_bytes: sum.used_bytes + pool.used_bytes,
            unsent_bytes: sum.unsent_bytes + pool.unsent_bytes,
            hits: sum.hits + pool.hits,
            misses: sum.misses + pool.misses,
            sent_bytes: sum.sent_bytes + pool.sent_bytes,
            dropped_bytes: sum.dropped_bytes + pool.dropped_bytes,
        })
    }
}

/// A node that does not answer another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// The node.
    pub node: NodeId,
    /// What is believed of it.
    pub fate: Fate,
    /// For how long that is believed, in milliseconds.
    pub for_ms: u64,
}
codec_struct!(Silent { node, fate, for_ms });

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
    /// Pages of its mounts.
    pub page_pool: PoolStatus,
    /// Requests per operation.
    pub operations: Vec<OpCount>,
    /// The map's version, and more with every death and return of a node that this one knows of.
    pub epoch: u64,
    /// Nodes that this one takes for dead, or suspects.
    pub silent: Vec<Silent>,
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
    page_pool,
    operations,
    epoch,
    silent
});
