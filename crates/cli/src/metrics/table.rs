//! The table of metrics: names, meanings, and where their values are. Names stay; docs/monitoring.md has the same rows.

use bivouac_client::Times;

use super::Kind::{Counter, Gauge, Histogram};
use super::{Metric, Samples};
use crate::status::{
    DAMAGED, LEASE_WAIT, NodeReport, OperationReport, PoolReport, Report, UnflushedReport, VolumeReport,
    is_request,
};

/// All metrics.
pub const TABLE: &[Metric] = &[
    Metric {
        name: "bivouac_formation_state",
        kind: Gauge,
        unit: "",
        help: "1 for the state that the formation is in, 0 for the others.",
        read: states,
    },
    Metric {
        name: "bivouac_formation_created_timestamp_seconds",
        kind: Gauge,
        unit: "seconds",
        help: "When the formation was started, since 1970.",
        read: |report, samples| samples.add_float(&[], seconds(report.created_unix_ms)),
    },
    Metric {
        name: "bivouac_formation_end_timestamp_seconds",
        kind: Gauge,
        unit: "seconds",
        help: "When the formation ends by itself, since 1970; left out if it does not.",
        read: |report, samples| {
            report.ends_unix_ms.into_iter().for_each(|ends| samples.add_float(&[], seconds(ends)))
        },
    },
    Metric {
        name: "bivouac_supervisor_up",
        kind: Gauge,
        unit: "",
        help: "1 if the supervisor lives; without it nothing is restarted.",
        read: |report, samples| samples.add(&[], report.supervisor.alive.into()),
    },
    Metric {
        name: "bivouac_mount_up",
        kind: Gauge,
        unit: "",
        help: "1 if nothing is wrong with a mount.",
        read: mounts,
    },
    Metric {
        name: "bivouac_unflushed_files",
        kind: Gauge,
        unit: "",
        help: "Files, directories and links that their sources do not have.",
        read: |report, samples| unflushed(report, samples, |left| left.files as u64),
    },
    Metric {
        name: "bivouac_unflushed_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "About how much of their content.",
        read: |report, samples| unflushed(report, samples, |left| left.bytes),
    },
    Metric {
        name: "bivouac_unflushed_deletions",
        kind: Gauge,
        unit: "",
        help: "Deleted names that are still at their sources.",
        read: |report, samples| unflushed(report, samples, |left| left.deletions as u64),
    },
    Metric {
        name: "bivouac_unflushed_failing",
        kind: Gauge,
        unit: "",
        help: "Reasons for which something could not be flushed the last time.",
        read: |report, samples| unflushed(report, samples, |left| left.failing.len() as u64),
    },
    Metric {
        name: "bivouac_node_up",
        kind: Gauge,
        unit: "",
        help: "1 if a node answers.",
        read: |report, samples| node(report, samples, |node| Some((node.state == "ready").into())),
    },
    Metric {
        name: "bivouac_node_deaths",
        kind: Counter,
        unit: "",
        help: "Daemons of a node that died.",
        read: |report, samples| node(report, samples, |node| Some(node.deaths)),
    },
    Metric {
        name: "bivouac_node_uptime_seconds",
        kind: Gauge,
        unit: "seconds",
        help: "Time since the daemon started.",
        read: uptimes,
    },
    Metric {
        name: "bivouac_node_silent_seconds",
        kind: Gauge,
        unit: "seconds",
        help: "For how long other nodes have had no answer of a node.",
        read: silent,
    },
    Metric {
        name: "bivouac_node_files",
        kind: Gauge,
        unit: "",
        help: "Files and directories whose records a node holds.",
        read: |report, samples| node(report, samples, |node| node.files),
    },
    Metric {
        name: "bivouac_node_open_files",
        kind: Gauge,
        unit: "",
        help: "Open ones of them.",
        read: |report, samples| node(report, samples, |node| node.open_files),
    },
    Metric {
        name: "bivouac_node_records",
        kind: Gauge,
        unit: "",
        help: "Records of a node.",
        read: |report, samples| node(report, samples, |node| node.records),
    },
    Metric {
        name: "bivouac_node_names_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "Memory that names take.",
        read: |report, samples| node(report, samples, |node| node.names_bytes),
    },
    Metric {
        name: "bivouac_node_names_limit_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "Memory that names may take; left out if there is no limit.",
        read: |report, samples| {
            node(report, samples, |node| node.names_max_bytes.filter(|max| *max != u64::MAX))
        },
    },
    Metric {
        name: "bivouac_volume_capacity_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "Size of a volume.",
        read: |report, samples| volume(report, samples, |volume| Some(volume.capacity_bytes)),
    },
    Metric {
        name: "bivouac_volume_used_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "Data on a volume.",
        read: |report, samples| volume(report, samples, |volume| volume.used_bytes),
    },
    Metric {
        name: "bivouac_volume_records_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "Records on a volume.",
        read: |report, samples| volume(report, samples, |volume| volume.records_bytes),
    },
    Metric {
        name: "bivouac_volume_subfiles",
        kind: Gauge,
        unit: "",
        help: "Subfiles on a volume.",
        read: |report, samples| volume(report, samples, |volume| volume.subfiles),
    },
    Metric {
        name: "bivouac_page_pool_size_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "Size of the page pools of a node's mounts.",
        read: |report, samples| pool(report, samples, |pool| pool.size_bytes),
    },
    Metric {
        name: "bivouac_page_pool_used_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "Bytes in page pools.",
        read: |report, samples| pool(report, samples, |pool| pool.used_bytes),
    },
    Metric {
        name: "bivouac_page_pool_unsent_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "Written bytes in page pools that are not sent yet.",
        read: |report, samples| pool(report, samples, |pool| pool.unsent_bytes),
    },
    Metric {
        name: "bivouac_page_pool_hits",
        kind: Counter,
        unit: "",
        help: "Reads that page pools had.",
        read: |report, samples| pool(report, samples, |pool| pool.hits),
    },
    Metric {
        name: "bivouac_page_pool_misses",
        kind: Counter,
        unit: "",
        help: "Reads that they had not.",
        read: |report, samples| pool(report, samples, |pool| pool.misses),
    },
    Metric {
        name: "bivouac_page_pool_sent_bytes",
        kind: Counter,
        unit: "bytes",
        help: "Written bytes that page pools sent.",
        read: |report, samples| pool(report, samples, |pool| pool.sent_bytes),
    },
    Metric {
        name: "bivouac_page_pool_dropped_bytes",
        kind: Counter,
        unit: "bytes",
        help: "Written bytes that were dropped because they could not be sent, or were not wanted any more.",
        read: |report, samples| pool(report, samples, |pool| pool.dropped_bytes),
    },
    Metric {
        name: "bivouac_requests",
        kind: Counter,
        unit: "",
        help: "Requests that a node served, by operation and lane (client, peer).",
        read: requests,
    },
    Metric {
        name: "bivouac_request_duration_seconds",
        kind: Histogram,
        unit: "seconds",
        help: "How long requests took from when a node had them until their answers were made, by operation and lane.",
        read: request_times,
    },
    Metric {
        name: "bivouac_requests_under_way",
        kind: Gauge,
        unit: "",
        help: "Requests that a node has and has not answered, besides looks at it.",
        read: |report, samples| answering(report, samples, under_way),
    },
    Metric {
        name: "bivouac_received_bytes",
        kind: Counter,
        unit: "bytes",
        help: "Content that came with requests, by operation.",
        read: |report, samples| {
            operation(report, samples, |one| Some(one.received_bytes).filter(|bytes| *bytes > 0))
        },
    },
    Metric {
        name: "bivouac_sent_bytes",
        kind: Counter,
        unit: "bytes",
        help: "Content that went with answers, by operation.",
        read: |report, samples| {
            operation(report, samples, |one| Some(one.sent_bytes).filter(|bytes| *bytes > 0))
        },
    },
    Metric {
        name: "bivouac_peer_calls",
        kind: Counter,
        unit: "",
        help: "Requests that a node made to other nodes, by operation.",
        read: |report, samples| operation(report, samples, |one| Some(one.calls)),
    },
    Metric {
        name: "bivouac_lease_waits",
        kind: Counter,
        unit: "",
        help: "Changes that waited for leases of other clients.",
        read: |report, samples| answering(report, samples, |node| counted(node, LEASE_WAIT).0),
    },
    Metric {
        name: "bivouac_damaged_messages",
        kind: Counter,
        unit: "",
        help: "Messages that were changed on their way, and sent again, by lane.",
        read: damaged_messages,
    },
    Metric {
        name: "bivouac_damage_refusals",
        kind: Counter,
        unit: "",
        help: "Reads and writes that were refused for wrong bytes at rest.",
        read: |report, samples| {
            answering(report, samples, |node| node.damage.as_ref().map_or(0, |damage| damage.refused))
        },
    },
    Metric {
        name: "bivouac_damage_wrong_bytes",
        kind: Gauge,
        unit: "bytes",
        help: "Bytes of blocks at rest that are not what was written.",
        read: |report, samples| {
            answering(report, samples, |node| node.damage.as_ref().map_or(0, |damage| damage.wrong_bytes))
        },
    },
];

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

fn states(report: &Report, samples: &mut Samples) {
    for state in ["starting", "running", "degraded", "stopping", "dead"] {
        samples.add(&[("state", &state)], (report.state == state).into());
    }
}

fn mounts(report: &Report, samples: &mut Samples) {
    for mount in &report.mounts {
        let dir = mount.dir.display();
        samples.add(&[("node", &mount.node), ("mount", &dir)], mount.trouble.is_none().into());
    }
}

fn unflushed(report: &Report, samples: &mut Samples, read: fn(&UnflushedReport) -> u64) {
    report.unflushed.iter().for_each(|left| samples.add(&[], read(left)));
}

fn node(report: &Report, samples: &mut Samples, read: fn(&NodeReport) -> Option<u64>) {
    for node in &report.nodes {
        if let Some(value) = read(node) {
            samples.add(&[("node", &node.id), ("host", &node.host)], value);
        }
    }
}

fn answering(report: &Report, samples: &mut Samples, read: fn(&NodeReport) -> u64) {
    for node in report.nodes.iter().filter(|node| node.state == "ready") {
        samples.add(&[("node", &node.id), ("host", &node.host)], read(node));
    }
}

fn uptimes(report: &Report, samples: &mut Samples) {
    for node in &report.nodes {
        if let Some(uptime) = node.uptime_ms {
            samples.add_float(&[("node", &node.id), ("host", &node.host)], seconds(uptime));
        }
    }
}

fn silent(report: &Report, samples: &mut Samples) {
    for silent in &report.silent {
        samples.add_float(&[("node", &silent.node), ("state", &silent.state)], seconds(silent.for_ms));
    }
}

fn volume(report: &Report, samples: &mut Samples, read: fn(&VolumeReport) -> Option<u64>) {
    for node in &report.nodes {
        for volume in &node.volumes {
            let (path, kind) = (volume.path.display(), &volume.kind);
            if let Some(value) = read(volume) {
                let labels: [(_, &dyn ToString); 4] =
                    [("node", &node.id), ("host", &node.host), ("volume", &path), ("kind", kind)];
                samples.add(&labels, value);
            }
        }
    }
}

fn pool(report: &Report, samples: &mut Samples, read: fn(&PoolReport) -> u64) {
    for node in &report.nodes {
        if let Some(pool) = &node.page_pool {
            samples.add(&[("node", &node.id), ("host", &node.host)], read(pool));
        }
    }
}

/// What a node counts under a name that is no operation's: on the client lane, and on the peer lane.
fn counted(node: &NodeReport, name: &str) -> (u64, u64) {
    let found = node.operations.iter().find(|operation| operation.name == name);
    found.map_or((0, 0), |found| (found.client, found.peer))
}

fn requests(report: &Report, samples: &mut Samples) {
    by_lane(report, |labels, count, _| samples.add(labels, count));
}

fn request_times(report: &Report, samples: &mut Samples) {
    by_lane(report, |labels, _, times| {
        if times.count() > 0 {
            samples.add_times(labels, times);
        }
    });
}

/// For each node, operation and lane: labels, how many requests there were, and how long they took.
fn by_lane(report: &Report, mut add: impl FnMut(&[(&'static str, &dyn ToString)], u64, &Times)) {
    for (node, operation) in asked_for(report) {
        let lanes = [
            ("client", operation.client, &operation.client_times),
            ("peer", operation.peer, &operation.peer_times),
        ];
        for (lane, count, times) in lanes {
            let labels: [(_, &dyn ToString); 4] =
                [("node", &node.id), ("host", &node.host), ("operation", &operation.name), ("lane", &lane)];
            add(&labels, count, times);
        }
    }
}

fn operation(report: &Report, samples: &mut Samples, read: fn(&OperationReport) -> Option<u64>) {
    for (node, operation) in asked_for(report) {
        if let Some(value) = read(operation) {
            let labels: [(_, &dyn ToString); 3] =
                [("node", &node.id), ("host", &node.host), ("operation", &operation.name)];
            samples.add(&labels, value);
        }
    }
}

/// Operations of the protocol, by node.
fn asked_for(report: &Report) -> impl Iterator<Item = (&NodeReport, &OperationReport)> {
    report.nodes.iter().flat_map(|node| requests_of(node).map(move |operation| (node, operation)))
}

fn requests_of(node: &NodeReport) -> impl Iterator<Item = &OperationReport> {
    node.operations.iter().filter(|operation| is_request(operation))
}

fn under_way(node: &NodeReport) -> u64 {
    requests_of(node).map(OperationReport::under_way).sum()
}

fn damaged_messages(report: &Report, samples: &mut Samples) {
    for node in report.nodes.iter().filter(|node| node.state == "ready") {
        let counts = counted(node, DAMAGED);
        for (lane, count) in [("client", counts.0), ("peer", counts.1)] {
            samples.add(&[("node", &node.id), ("host", &node.host), ("lane", &lane)], count);
        }
    }
}
