//! About the node itself.

use std::sync::atomic::Ordering;

use bivouac_types::{FsResult, StatFs};
use bivouac_wire::{FormationMap, NodeStatus, VolumeStatus, op};

use crate::dispatch::Handle;
use crate::node::Node;
use crate::session::Ctx;

/// Unit of `statfs` block counts, in bytes.
const STATFS_BLOCK: u32 = 4096;

impl Handle for op::Ping {
    fn handle(_: &Node, _: &Ctx<'_>, (): ()) -> FsResult<()> {
        Ok(())
    }
}

impl Handle for op::GetMap {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<FormationMap> {
        Ok((*node.map).clone())
    }
}

impl Handle for op::StatFs {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<StatFs> {
        node.sweep_direct();
        let mut total = StatFs { block_size: STATFS_BLOCK, ..StatFs::default() };
        for volume in node.data.usage() {
            total.blocks += volume.capacity / u64::from(STATFS_BLOCK);
            total.blocks_free +=
                volume.capacity.saturating_sub(volume.used + volume.records) / u64::from(STATFS_BLOCK);
        }
        total.files = node.files.load(Ordering::Relaxed);
        Ok(total)
    }
}

impl Handle for op::Status {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<NodeStatus> {
        let records = node.records.stats();
        Ok(NodeStatus {
            id: node.id.0,
            pid: std::process::id(),
            uptime_ms: u64::try_from(node.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            files: node.files.load(Ordering::Relaxed),
            open_files: node.opens.count(),
            records: records.records,
            record_bytes: records.bytes,
            volumes: node.data.usage().into_iter().map(volume_status).collect(),
            operations: node.counters.list(),
        })
    }
}

fn volume_status(usage: bivouac_store::VolumeUsage) -> VolumeStatus {
    VolumeStatus {
        path: usage.path.to_string_lossy().into_owned(),
        kind: usage.kind.to_string(),
        capacity_bytes: usage.capacity,
        used_bytes: usage.used,
        records_bytes: usage.records,
        subfiles: usage.files,
    }
}

impl Handle for op::SyncRecords {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<()> {
        Ok(node.records.sync()?)
    }
}

impl Handle for op::Shutdown {
    fn handle(node: &Node, _: &Ctx<'_>, (): ()) -> FsResult<()> {
        node.stopping.store(true, Ordering::Relaxed);
        if let Some(act) = node.on_shutdown.lock().as_ref() {
            act();
        }
        Ok(())
    }
}
