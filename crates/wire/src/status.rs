//! What a node tells about itself.

use bivouac_types::{Ino, Liveness, NodeId, SeatIndex};

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
    /// Whether blocks of new subfiles get checksums.
    pub checksum: bool,
}
codec_struct!(VolumeStatus { path, kind, capacity_bytes, used_bytes, records_bytes, subfiles, checksum });

/// Bytes at rest that turned out not to be what was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageStatus {
    /// Reads and writes that were refused for it, since the daemon started.
    pub refused: u64,
    /// What is known to be wrong, in bytes of whole blocks.
    pub wrong_bytes: u64,
    /// The first stretches of it.
    pub wrong: Vec<WrongBytes>,
    /// Subfiles that were made, and are known not to be there any more.
    pub lost: u64,
}
codec_struct!(DamageStatus { refused, wrong_bytes, wrong, lost });

/// A stretch of a subfile that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongBytes {
    /// The file.
    pub ino: Ino,
    /// The seat.
    pub seat: SeatIndex,
    /// First byte in the subfile's data.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
    /// The subfile on its node.
    pub path: String,
}
codec_struct!(WrongBytes { ino, seat, from, to, path });

/// For how many ranges of time requests are counted.
pub const TIME_RANGES: usize = 26;

/// How long requests took, from when a node had them until their answers were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// All of them together, in microseconds.
    pub total_us: u64,
    /// How many took how long: at index i at most 2^i microseconds and more than half of that, at the last one
    /// (33 s) also all that took longer. Zeros at the end are left out.
    pub counts: Vec<u64>,
}
codec_struct!(Times { total_us, counts });

impl Times {
    /// How many requests these are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds those of others.
    pub fn add(&mut self, other: &Times) {
        self.total_us = self.total_us.saturating_add(other.total_us);
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    }

    /// Those since an earlier look; all, if they were fewer: the daemon has been restarted since.
    #[must_use]
    pub fn since(&self, earlier: &Times) -> Times {
        let before = |index: usize| earlier.counts.get(index).copied().unwrap_or(0);
        let is_later = self.counts.len() >= earlier.counts.len()
            && self.counts.iter().enumerate().all(|(index, count)| *count >= before(index));
        if !is_later {
            return self.clone();
        }
        let counts = self.counts.iter().enumerate().map(|(index, count)| count - before(index)).collect();
        Times { total_us: self.total_us.saturating_sub(earlier.total_us), counts }
    }

    /// The time, in microseconds, within which this share of them was done, 0 to 1: the upper end of its range, so that
    /// it is at most twice too long. `None` without requests.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * share).ceil().max(1.0);
        let mut seen = 0.0;
        let index = self.counts.iter().position(|count| {
            seen += *count as f64;
            seen >= wanted
        });
        index.map(|index| 1 << index.min(TIME_RANGES - 1))
    }
}

/// How often a node served an operation, and how often it asked others for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpCount {
    /// Name of the operation.
    pub name: String,
    /// Requests from clients.
    pub client: u64,
    /// Requests from peers.
    pub peer: u64,
    /// Requests of its own to peers, however often each had to be sent.
    pub calls: u64,
    /// Bytes of content that came with requests.
    pub received_bytes: u64,
    /// Bytes of content that went with answers.
    pub sent_bytes: u64,
    /// How long those of clients took.
    pub client_times: Times,
    /// How long those of peers took.
    pub peer_times: Times,
    /// Those of clients and peers that daemons were killed in the middle of.
    pub cut_off: u64,
}
codec_struct!(OpCount {
    name,
    client,
    peer,
    calls,
    received_bytes,
    sent_bytes,
    client_times,
    peer_times,
    cut_off
});

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
    /// What is known of it.
    pub liveness: Liveness,
    /// For how long that is known, in milliseconds.
    pub for_ms: u64,
}
codec_struct!(Silent { node, liveness, for_ms });

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
    /// Memory that the records take.
    pub names_bytes: u64,
    /// Memory that they may take.
    pub names_max_bytes: u64,
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
    /// What turned out to be wrong at rest.
    pub damage: DamageStatus,
}
codec_struct!(NodeStatus {
    id,
    pid,
    uptime_ms,
    files,
    open_files,
    records,
    record_bytes,
    names_bytes,
    names_max_bytes,
    volumes,
    page_pool,
    operations,
    epoch,
    silent,
    damage
});
