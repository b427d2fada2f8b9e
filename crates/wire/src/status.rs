//! What a node tells about itself.

use bivouac_types::{Ino, Liveness, NodeId, TargetIndex};

owned! {
    /// State of one volume.
    VolumeStatus {
        /// Directory on the node.
        path: String,
        /// `memory` or `disk`.
        kind: String,
        /// Most bytes it may hold.
        capacity_bytes: u64,
        /// Bytes that subfiles take, and replicas of other nodes' volumes.
        used_bytes: u64,
        /// Bytes that replicas of other nodes' volumes take.
        replica_bytes: u64,
        /// Bytes that the node's records take, and that are kept for them.
        records_bytes: u64,
        /// Subfiles on it.
        subfiles: u64,
        /// True if blocks of new subfiles get checksums.
        checksum: bool,
    }
    /// Bytes at rest that turned out not to be what was written.
    #[derive(Default)]
    DamageStatus {
        /// Reads and writes that were refused for it, since the daemon started.
        refused: u64,
        /// The damage that is known, in bytes of whole blocks.
        wrong_bytes: u64,
        /// The first stretches of it.
        wrong: Vec<WrongBytes>,
        /// Subfiles that were made, and are known not to be there any more.
        lost: u64,
    }
    /// A stretch of a subfile that is not what was written.
    WrongBytes {
        /// The file.
        ino: Ino,
        /// The target.
        target: TargetIndex,
        /// First byte in the subfile's data.
        from: u64,
        /// Behind the last one.
        to: u64,
        /// The subfile on its node.
        path: String,
    }
}

/// For how many ranges of time requests are counted.
pub const TIME_RANGES: usize = 26;

// The end of each range is a shift of one bit.
const _: () = assert!(TIME_RANGES <= 64);

owned! {
    /// How long requests took, from when a node had them until their answers were made.
    #[derive(Default)]
    Times {
        /// All of them together, in microseconds.
        total_us: u64,
        /// How many took how long: at index i at most 2^i microseconds and more than half of that, at the last one
        /// (33 s) also all that took longer. Zeros at the end are left out.
        counts: Vec<u64>,
    }
}

impl Times {
    /// Returns how many requests these are.
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

    /// Returns the times since an earlier look; all, if they were fewer: the daemon has been restarted since.
    #[must_use]
    pub fn since(&self, earlier: &Times) -> Times {
        let before = |index: usize| earlier.counts.get(index).copied().unwrap_or(0);
        let is_later = self.counts.len() >= earlier.counts.len()
            && self.counts.iter().enumerate().all(|(index, count)| *count >= before(index));
        if !is_later {
            return self.clone();
        }
        // None falls below zero: each is at least what it was, or this is another daemon.
        let counts = self.counts.iter().enumerate().map(|(index, count)| count - before(index)).collect();
        Times { total_us: self.total_us.saturating_sub(earlier.total_us), counts }
    }

    /// Returns the time, in microseconds, within which this share of them was done, 0 to 1: the upper end of its range,
    /// so that it is at most twice too long. `None` without requests.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> Option<u64> {
        assert!((0.0..=1.0).contains(&share), "{share} is no part of all requests");
        let wanted = (self.count() as f64 * share).ceil().max(1.0);
        let mut seen = 0.0;
        let index = self.counts.iter().position(|count| {
            seen += *count as f64;
            seen >= wanted
        });
        // The list came in a message, and may be longer than ours.
        index.map(|index| 1 << index.min(TIME_RANGES - 1))
    }
}

owned! {
    /// Number of times that a node served an operation, and how often it asked others for it.
    #[derive(Default)]
    OpCount {
        /// Name of the operation.
        name: String,
        /// Requests from clients.
        client: u64,
        /// Requests from peers.
        peer: u64,
        /// Requests of its own to peers, however often each had to be sent.
        calls: u64,
        /// Bytes of content that came with requests.
        received_bytes: u64,
        /// Bytes of content that went with answers.
        sent_bytes: u64,
        /// How long those of clients took.
        client_times: Times,
        /// How long those of peers took.
        peer_times: Times,
        /// Requests of clients and peers that daemons were killed in the middle of.
        cut_off: u64,
    }
    /// The page pools of a daemon's mounts together, in bytes but for hits and misses.
    #[derive(Copy, Default)]
    PoolStatus {
        /// Most that they may take.
        size_bytes: u64,
        /// The memory that they take now.
        used_bytes: u64,
        /// Written by programs and not sent yet.
        unsent_bytes: u64,
        /// Small reads that found all they wanted.
        hits: u64,
        /// Small reads that did not.
        misses: u64,
        /// Written behind and arrived, since the daemon started.
        sent_bytes: u64,
        /// Given up, after the program had been told, since the daemon started.
        dropped_bytes: u64,
    }
}

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

owned! {
    /// A node that does not answer another.
    #[derive(Copy)]
    UnresponsiveNode {
        /// The node.
        node: NodeId,
        /// The node's liveness, as this one knows it.
        liveness: Liveness,
        /// For how long that is known, in milliseconds.
        for_ms: u64,
    }
    /// State of one node.
    NodeStatus {
        /// Position in the map.
        id: u16,
        /// Process id of the daemon.
        pid: u32,
        /// Milliseconds since the daemon started.
        uptime_ms: u64,
        /// Inodes whose home this node is.
        files: u64,
        /// Open files registered here.
        open_files: u64,
        /// Records and their bytes in memory.
        records: u64,
        /// Bytes of the records.
        record_bytes: u64,
        /// Memory that the records take.
        names_bytes: u64,
        /// Memory that they may take.
        names_max_bytes: u64,
        /// Volumes.
        volumes: Vec<VolumeStatus>,
        /// Pages of its mounts.
        page_pool: PoolStatus,
        /// Requests per operation.
        operations: Vec<OpCount>,
        /// The map's version, and more with every death and return of a node that this one knows of.
        epoch: u64,
        /// Nodes that this one takes for dead, or suspects.
        silent: Vec<UnresponsiveNode>,
        /// The damage that was found at rest.
        damage: DamageStatus,
        /// Links that it uses.
        links: Vec<LinkStatus>,
    }
    /// A link to another formation, as a node has seen it.
    LinkStatus {
        /// Its name.
        name: String,
        /// Address of the gateway.
        address: String,
        /// True if there is a connection.
        is_up: bool,
        /// The shortest round trip of late, in microseconds.
        round_trip_us: u64,
        /// The greatest rate of late, in bytes per second.
        rate: u64,
        /// Connections that broke.
        breaks: u64,
        /// Time of the last error of a connection, in milliseconds since 1970; 0 for none.
        error_unix_ms: u64,
        /// The text of the last error.
        last_error: String,
    }
}
