//! The table of metrics: names, meanings, and where their values are. Names stay; docs/monitoring.md has the same rows.

use bivouac_client::Times;

use super::Kind::{Counter, Gauge, Histogram};
use super::{Kind, Metric, Samples};
use crate::status::{
    DAMAGED, LEASE_WAIT, NodeReport, OperationReport, PoolReport, StatusReport, UnflushedReport,
    VolumeReport, is_request,
};

/// Returns a row: name, kind, meaning, and the function that adds its values.
const fn metric(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    read: fn(&StatusReport, &mut Samples),
) -> Metric {
    Metric { name, kind, help, read }
}

/// All metrics.
pub const TABLE: &[Metric] = &[
    metric(
        "bivouac_formation_state",
        Gauge,
        "1 for the state that the formation is in, 0 for the others.",
        states,
    ),
    metric(
        "bivouac_formation_created_timestamp_seconds",
        Gauge,
        "When the formation was started, since 1970.",
        |report, samples| samples.add_float(&[], seconds(report.created_unix_ms)),
    ),
    metric(
        "bivouac_formation_end_timestamp_seconds",
        Gauge,
        "When the formation ends by itself, since 1970; left out if it does not.",
        |report, samples| {
            report.ends_unix_ms.into_iter().for_each(|ends| samples.add_float(&[], seconds(ends)))
        },
    ),
    metric(
        "bivouac_supervisor_up",
        Gauge,
        "1 if the supervisor lives; without it nothing is restarted.",
        |report, samples| samples.add(&[], report.supervisor.alive.into()),
    ),
    metric("bivouac_mount_up", Gauge, "1 if nothing is wrong with a mount.", mounts),
    metric(
        "bivouac_unflushed_files",
        Gauge,
        "Files, directories and links that their sources do not have.",
        |report, samples| unflushed(report, samples, |left| left.files as u64),
    ),
    metric("bivouac_unflushed_bytes", Gauge, "About how much of their content.", |report, samples| {
        unflushed(report, samples, |left| left.bytes)
    }),
    metric(
        "bivouac_unflushed_deletions",
        Gauge,
        "Deleted names that are still at their sources.",
        |report, samples| unflushed(report, samples, |left| left.deletions as u64),
    ),
    metric(
        "bivouac_unflushed_failing",
        Gauge,
        "Reasons for which something could not be flushed the last time.",
        |report, samples| unflushed(report, samples, |left| left.failing.len() as u64),
    ),
    metric("bivouac_node_up", Gauge, "1 if a node answers.", |report, samples| {
        node(report, samples, |node| Some((node.state == "ready").into()))
    }),
    metric("bivouac_node_deaths", Counter, "Daemons of a node that died.", |report, samples| {
        node(report, samples, |node| Some(node.deaths))
    }),
    metric("bivouac_node_uptime_seconds", Gauge, "Time since the daemon started.", uptimes),
    metric(
        "bivouac_node_silent_seconds",
        Gauge,
        "For how long other nodes have had no answer of a node.",
        silent,
    ),
    metric(
        "bivouac_node_files",
        Gauge,
        "Files and directories whose records a node holds.",
        |report, samples| node(report, samples, |node| node.files),
    ),
    metric("bivouac_node_open_files", Gauge, "Open ones of them.", |report, samples| {
        node(report, samples, |node| node.open_files)
    }),
    metric("bivouac_node_records", Gauge, "Records of a node.", |report, samples| {
        node(report, samples, |node| node.records)
    }),
    metric("bivouac_node_names_bytes", Gauge, "Memory that names take.", |report, samples| {
        node(report, samples, |node| node.names_bytes)
    }),
    metric(
        "bivouac_node_names_limit_bytes",
        Gauge,
        "Memory that names may take; left out if there is no limit.",
        |report, samples| node(report, samples, |node| node.names_max_bytes.filter(|max| *max != u64::MAX)),
    ),
    metric("bivouac_volume_capacity_bytes", Gauge, "Size of a volume.", |report, samples| {
        volume(report, samples, |volume| Some(volume.capacity_bytes))
    }),
    metric("bivouac_volume_used_bytes", Gauge, "Data on a volume.", |report, samples| {
        volume(report, samples, |volume| volume.used_bytes)
    }),
    metric("bivouac_volume_records_bytes", Gauge, "Records on a volume.", |report, samples| {
        volume(report, samples, |volume| volume.records_bytes)
    }),
    metric("bivouac_volume_subfiles", Gauge, "Subfiles on a volume.", |report, samples| {
        volume(report, samples, |volume| volume.subfiles)
    }),
    metric(
        "bivouac_page_pool_size_bytes",
        Gauge,
        "Size of the page pools of a node's mounts.",
        |report, samples| pool(report, samples, |pool| pool.size_bytes),
    ),
    metric("bivouac_page_pool_used_bytes", Gauge, "Bytes in page pools.", |report, samples| {
        pool(report, samples, |pool| pool.used_bytes)
    }),
    metric(
        "bivouac_page_pool_unsent_bytes",
        Gauge,
        "Written bytes in page pools that are not sent yet.",
        |report, samples| pool(report, samples, |pool| pool.unsent_bytes),
    ),
    metric("bivouac_page_pool_hits", Counter, "Reads that page pools had.", |report, samples| {
        pool(report, samples, |pool| pool.hits)
    }),
    metric("bivouac_page_pool_misses", Counter, "Reads that they had not.", |report, samples| {
        pool(report, samples, |pool| pool.misses)
    }),
    metric(
        "bivouac_page_pool_sent_bytes",
        Counter,
        "Written bytes that page pools sent.",
        |report, samples| pool(report, samples, |pool| pool.sent_bytes),
    ),
    metric(
        "bivouac_page_pool_dropped_bytes",
        Counter,
        "Written bytes that were dropped because they could not be sent, or were not wanted any more.",
        |report, samples| pool(report, samples, |pool| pool.dropped_bytes),
    ),
    metric(
        "bivouac_requests",
        Counter,
        "Requests that a node served, by operation and lane (client, peer).",
        requests,
    ),
    metric(
        "bivouac_request_duration_seconds",
        Histogram,
        "How long requests took from when a node had them until their answers were made, by operation and lane.",
        request_times,
    ),
    metric(
        "bivouac_requests_under_way",
        Gauge,
        "Requests that a node has and has not answered, besides looks at it.",
        |report, samples| answering(report, samples, under_way),
    ),
    metric(
        "bivouac_received_bytes",
        Counter,
        "Content that came with requests, by operation.",
        |report, samples| {
            operation(report, samples, |one| Some(one.received_bytes).filter(|bytes| *bytes > 0))
        },
    ),
    metric(
        "bivouac_sent_bytes",
        Counter,
        "Content that went with answers, by operation.",
        |report, samples| operation(report, samples, |one| Some(one.sent_bytes).filter(|bytes| *bytes > 0)),
    ),
    metric(
        "bivouac_peer_calls",
        Counter,
        "Requests that a node made to other nodes, by operation.",
        |report, samples| operation(report, samples, |one| Some(one.calls)),
    ),
    metric(
        "bivouac_lease_waits",
        Counter,
        "Changes that waited for leases of other clients.",
        |report, samples| answering(report, samples, |node| counted(node, LEASE_WAIT).0),
    ),
    metric(
        "bivouac_damaged_messages",
        Counter,
        "Messages that were changed on their way, and sent again, by lane.",
        damaged_messages,
    ),
    metric(
        "bivouac_damage_refusals",
        Counter,
        "Reads and writes that were refused for wrong bytes at rest.",
        |report, samples| {
            answering(report, samples, |node| node.damage.as_ref().map_or(0, |damage| damage.refused))
        },
    ),
    metric(
        "bivouac_damage_wrong_bytes",
        Gauge,
        "Bytes of blocks at rest that are not what was written.",
        |report, samples| {
            answering(report, samples, |node| node.damage.as_ref().map_or(0, |damage| damage.wrong_bytes))
        },
    ),
];

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

fn states(report: &StatusReport, samples: &mut Samples) {
    // Also those that it is not in, as 0: a query for one state finds a value, not a gap.
    for state in ["starting", "running", "degraded", "stopping", "dead"] {
        samples.add(&[("state", &state)], (report.state == state).into());
    }
}

fn mounts(report: &StatusReport, samples: &mut Samples) {
    for mount in &report.mounts {
        let dir = mount.dir.display();
        samples.add(&[("node", &mount.node), ("mount", &dir)], mount.trouble.is_none().into());
    }
}

fn unflushed(report: &StatusReport, samples: &mut Samples, read: fn(&UnflushedReport) -> u64) {
    report.unflushed.iter().for_each(|left| samples.add(&[], read(left)));
}

fn node(report: &StatusReport, samples: &mut Samples, read: fn(&NodeReport) -> Option<u64>) {
    for node in &report.nodes {
        if let Some(value) = read(node) {
            samples.add(&[("node", &node.id), ("host", &node.host)], value);
        }
    }
}

fn answering(report: &StatusReport, samples: &mut Samples, read: fn(&NodeReport) -> u64) {
    for node in report.nodes.iter().filter(|node| node.state == "ready") {
        samples.add(&[("node", &node.id), ("host", &node.host)], read(node));
    }
}

fn uptimes(report: &StatusReport, samples: &mut Samples) {
    for node in &report.nodes {
        if let Some(uptime) = node.uptime_ms {
            samples.add_float(&[("node", &node.id), ("host", &node.host)], seconds(uptime));
        }
    }
}

fn silent(report: &StatusReport, samples: &mut Samples) {
    for silent in &report.silent {
        samples.add_float(&[("node", &silent.node), ("state", &silent.state)], seconds(silent.for_ms));
    }
}

fn volume(report: &StatusReport, samples: &mut Samples, read: fn(&VolumeReport) -> Option<u64>) {
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

fn pool(report: &StatusReport, samples: &mut Samples, read: fn(&PoolReport) -> u64) {
    for node in &report.nodes {
        if let Some(pool) = &node.page_pool {
            samples.add(&[("node", &node.id), ("host", &node.host)], read(pool));
        }
    }
}

/// Returns the counts of a node under a name that is no operation's: on the client lane, and on the peer lane.
fn counted(node: &NodeReport, name: &str) -> (u64, u64) {
    let found = node.operations.iter().find(|operation| operation.name == name);
    found.map_or((0, 0), |found| (found.client, found.peer))
}

fn requests(report: &StatusReport, samples: &mut Samples) {
    by_lane(report, |labels, count, _| samples.add(labels, count));
}

fn request_times(report: &StatusReport, samples: &mut Samples) {
    by_lane(report, |labels, _, times| {
        if times.count() > 0 {
            samples.add_times(labels, times);
        }
    });
}

/// Calls `add` for each node, operation and lane: with labels, the number of requests, and their durations.
fn by_lane(report: &StatusReport, mut add: impl FnMut(&[(&'static str, &dyn ToString)], u64, &Times)) {
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

fn operation(report: &StatusReport, samples: &mut Samples, read: fn(&OperationReport) -> Option<u64>) {
    for (node, operation) in asked_for(report) {
        if let Some(value) = read(operation) {
            let labels: [(_, &dyn ToString); 3] =
                [("node", &node.id), ("host", &node.host), ("operation", &operation.name)];
            samples.add(&labels, value);
        }
    }
}

/// Operations of the protocol, by node.
fn asked_for(report: &StatusReport) -> impl Iterator<Item = (&NodeReport, &OperationReport)> {
    report.nodes.iter().flat_map(|node| requests_of(node).map(move |operation| (node, operation)))
}

fn requests_of(node: &NodeReport) -> impl Iterator<Item = &OperationReport> {
    node.operations.iter().filter(|operation| is_request(operation))
}

fn under_way(node: &NodeReport) -> u64 {
    requests_of(node).map(OperationReport::under_way).sum()
}

fn damaged_messages(report: &StatusReport, samples: &mut Samples) {
    for node in report.nodes.iter().filter(|node| node.state == "ready") {
        let counts = counted(node, DAMAGED);
        for (lane, count) in [("client", counts.0), ("peer", counts.1)] {
            samples.add(&[("node", &node.id), ("host", &node.host), ("lane", &lane)], count);
        }
    }
}
