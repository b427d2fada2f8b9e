//! About the node itself.

use std::sync::atomic::Ordering;

use bivouac_store::{VolumeUsage, WrongPart};
use bivouac_types::limits::{HOST_ANSWER_MAX, WRONG_LISTED_MAX};
use bivouac_types::{Errno, FsResult, PartitionId, StatFs};
use bivouac_wire::{
    Blob, DamageStatus, FormationMap, HistoryRequest, HistoryTable, HostQuestion, NodeStatus, OpCount,
    StatFsRequest, TargetEntry, UseTable, VolumeStatus, WrongBytes, op,
};

use crate::node::Node;
use crate::session::Ctx;
use crate::step::Handle;

/// Estimate of what a file with a name of usual length takes, in memory and in the log, in bytes.
const BYTES_PER_FILE: u64 = 512;
/// Unit of `statfs` block counts, in bytes.
const BLOCK: u64 = 4096;

impl Handle for op::Ping {
    fn handle(_: &Node, _: &Ctx<'_>, (): ()) -> FsResult<()> {
        Ok(())
    }
}

impl Handle for op::GetMap {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<FormationMap> {
        Ok((*node.newest_map()).clone())
    }
}

impl Handle for op::StatFs {
    fn handle(node: &Node, _: &Ctx<'_>, request: StatFsRequest) -> FsResult<StatFs> {
        // What processes were promised and do not use any more counts as free.
        node.sweep_direct();
        let space = match request.partition {
            // Its volumes take replicas, and no file.
            PartitionId::ROOT if !node.map.has_content(node.id) => Vec::new(),
            PartitionId::ROOT => node.space(),
            partition => node.space_of(partition)?,
        };
        let (blocks, blocks_free) =
            space.iter().fold((0, 0), |sum, (all, free)| (sum.0 + all / BLOCK, sum.1 + free / BLOCK));
        let files = node.files.load(Ordering::Relaxed);
        Ok(StatFs { block_size: BLOCK as u32, blocks, blocks_free, files, files_free: node.files_free() })
    }
}

impl Node {
    /// Returns the bytes that each volume can hold, and those of them that are free.
    fn space(&self) -> Vec<(u64, u64)> {
        let of = |volume: VolumeUsage| {
            (volume.capacity, volume.capacity.saturating_sub(volume.used + volume.records))
        };
        self.data.usage().into_iter().map(of).collect()
    }

    /// Estimates how many more names fit, by the memory for records and the volume that records are on.
    fn files_free(&self) -> u64 {
        if !self.map.has_content(self.id) {
            return 0;
        }
        let records = self.records.stats();
        let memory = records.memory_max.saturating_sub(records.memory);
        let volume = self.space().first().map_or(0, |(_, free)| *free);
        memory.min(volume) / BYTES_PER_FILE
    }

    /// The same of a partition's targets here.
    fn space_of(&self, partition: PartitionId) -> FsResult<Vec<(u64, u64)>> {
        // Asked on the peer lane too, and a node that does not know the partition has no targets of it.
        let Ok(targets) = self.known_targets(partition) else { return Ok(Vec::new()) };
        let own = targets.iter().filter(|place| place.node == self.id);
        let of = |place: &TargetEntry| {
            let usage = self.data.part_usage(place.volume, partition)?;
            Ok((usage.capacity, usage.free))
        };
        own.map(of).collect()
    }
}

impl Handle for op::Status {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<NodeStatus> {
        let records = node.records.stats();
        let (epoch, silent) = node.members.summary(node.newest_map().version);
        Ok(NodeStatus {
            id: node.id.0,
            pid: std::process::id(),
            uptime_ms: u64::try_from(node.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            files: node.files.load(Ordering::Relaxed),
            open_files: node.opens.count(),
            records: records.records,
            record_bytes: records.bytes,
            names_bytes: records.memory,
            names_max_bytes: records.memory_max,
            volumes: node.data.usage().into_iter().map(volume_status).collect(),
            page_pool: node.served.page_pools().iter().map(|pool| pool.status()).sum(),
            operations: operations(node),
            epoch,
            silent,
            damage: damage(node),
            links: node.links.statuses(),
        })
    }
}

impl Handle for op::ListUses {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<UseTable> {
        // What is open is told of now and then; mounts of this node tell it now.
        node.served.page_pools().iter().for_each(|pool| pool.tell_uses());
        Ok(node.uses.list(node.recorder.now_ms(), node.recorder.torn()))
    }
}

impl Handle for op::ListHistory {
    fn handle(node: &Node, _: &Ctx<'_>, request: HistoryRequest) -> FsResult<HistoryTable> {
        let uptime_ms = node.recorder.now_ms();
        let history = match request.served {
            true => node.recorder.served(request.back_ms, &node.counters),
            false => node.uses.history(uptime_ms.saturating_sub(request.back_ms), uptime_ms),
        };
        Ok(HistoryTable { uptime_ms, history })
    }
}

impl Handle for op::AskHost {
    fn handle(node: &Node, _: &Ctx<'_>, question: HostQuestion<'_>) -> FsResult<Blob> {
        let Some(answer) = node.hooks.asked.get() else { return Err(Errno::EOPNOTSUPP.into()) };
        let most = question.most.min(HOST_ANSWER_MAX);
        let bytes = answer(&HostQuestion { most, ..question })?;
        // Whoever answers may have no more to say than goes into one body.
        if bytes.len() > HOST_ANSWER_MAX as usize { Err(Errno::EFBIG.into()) } else { Ok(Blob { bytes }) }
    }
}

/// Returns the requests of each kind, and behind them the changes that had to wait for leases, and what came damaged.
fn operations(node: &Node) -> Vec<OpCount> {
    let waits = OpCount { name: "LeaseWait".into(), client: node.lease_waits(), ..OpCount::default() };
    let waits = (waits.client > 0).then_some(waits);
    node.counters.list().into_iter().chain(waits).chain(node.counters.damaged()).collect()
}

/// Returns the damage that was found at rest.
fn damage(node: &Node) -> DamageStatus {
    let wrong = node.data.wrong(WRONG_LISTED_MAX).into_iter().map(|WrongPart { id, range }| WrongBytes {
        ino: id.ino,
        target: id.target,
        from: range.start,
        to: range.end,
        path: node.data.path_of(id),
    });
    DamageStatus {
        refused: node.data.refused(),
        wrong_bytes: node.data.wrong_bytes(),
        wrong: wrong.collect(),
        lost: node.data.usage().iter().map(|volume| volume.lost).sum(),
    }
}

fn volume_status(usage: VolumeUsage) -> VolumeStatus {
    VolumeStatus {
        path: usage.path.to_string_lossy().into_owned(),
        kind: usage.kind.to_string(),
        capacity_bytes: usage.capacity,
        used_bytes: usage.used,
        replica_bytes: usage.replicas,
        records_bytes: usage.records,
        subfiles: usage.files,
        checksum: usage.checksum,
    }
}

impl Handle for op::SyncRecords {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<()> {
        // A size that only shared memory has would be lost with the machine.
        node.write_down_sizes()?;
        Ok(node.records.sync()?)
    }
}

impl Handle for op::Shutdown {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<()> {
        node.stopping.store(true, Ordering::Relaxed);
        if let Some(act) = node.hooks.shutdown.lock().as_ref() {
            act();
        }
        Ok(())
    }
}
