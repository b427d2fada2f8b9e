//! Work of a formation between two looks at it.

use std::collections::BTreeMap;
use std::time::Duration;

use bivouac_client::Times;
use serde::Serialize;

use super::activity::Activity;
use crate::status::{NodeReport, OperationReport, StatusReport, VolumeReport, is_work};

/// Use of a volume from which on there is a warning.
pub const FULL: f64 = 0.9;

/// Rates of an interval, per second.
#[derive(Debug, Default, Serialize)]
pub struct Rates {
    /// The formation's name.
    pub name: String,
    /// Like `status` says it.
    pub state: &'static str,
    /// Time when the interval ended, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Its duration.
    pub seconds: f64,
    /// Since when there is the formation, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Work of all nodes together.
    pub total: IntervalWork,
    /// Files and directories.
    pub files: u64,
    /// Open ones of them.
    pub open_files: u64,
    /// Bytes that mounts have taken from programs and not sent to nodes yet.
    pub unsent_bytes: u64,
    /// Bytes that are not at their sources, if there are any with sources.
    pub unflushed_bytes: Option<u64>,
    /// Files, directories and links that are not there.
    pub unflushed_files: Option<usize>,
    /// Deleted names that still are.
    pub unflushed_deletions: Option<usize>,
    /// Each node.
    pub nodes: Vec<NodeRates>,
    /// Each operation that was asked for, over all nodes, what took most time first.
    pub operations: Vec<OperationRates>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Busy files and jobs of staging, where these are asked for.
    #[serde(flatten)]
    pub activity: Option<Activity>,
}

/// Rates of a node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeRates {
    /// Position in the map.
    pub id: u16,
    /// Its host.
    pub host: String,
    /// Like `status` says it.
    pub state: &'static str,
    /// Its work.
    #[serde(flatten)]
    pub work: IntervalWork,
}

/// Work done, and the use of volumes then.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct IntervalWork {
    /// Requests that came.
    pub requests: f64,
    /// Content that came with them, in bytes.
    pub written: f64,
    /// Content that went with answers, in bytes.
    pub read: f64,
    /// Requests that it worked on at the same time, on average.
    pub load: f64,
    /// Requests that it has and has not answered.
    pub under_way: u64,
    /// Bytes on its volumes, names among them.
    pub used_bytes: u64,
    /// Bytes that they have room for.
    pub capacity_bytes: u64,
}

/// Outcomes of an operation.
#[derive(Debug, Default, Serialize)]
pub struct OperationRates {
    /// The name, as in docs/protocol.md.
    pub name: String,
    /// Requests of clients.
    pub client: f64,
    /// Requests of other nodes.
    pub peer: f64,
    /// Requests that nodes worked on at the same time, on average.
    pub load: f64,
    /// Requests that were not answered at the end.
    pub under_way: u64,
    /// Half of the clients' were done within, in microseconds.
    pub p50_us: Option<u64>,
    /// All but one in a hundred.
    pub p99_us: Option<u64>,
}

/// Counts of an operation on one node.
#[derive(Default)]
struct OperationDelta {
    client: u64,
    peer: u64,
    received: u64,
    sent: u64,
    client_times: Times,
    total_us: u64,
    under_way: u64,
}

/// Returns the growth of a counter; all of it if it is less than before, as after a restart of the daemon.
pub fn grown(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

impl OperationDelta {
    fn between(before: Option<&OperationReport>, now: &OperationReport) -> OperationDelta {
        let none = OperationReport::default();
        let before = before.unwrap_or(&none);
        let client_times = now.client_times.since(&before.client_times);
        let peer_times = now.peer_times.since(&before.peer_times);
        OperationDelta {
            client: grown(now.client, before.client),
            peer: grown(now.peer, before.peer),
            received: grown(now.received_bytes, before.received_bytes),
            sent: grown(now.sent_bytes, before.sent_bytes),
            total_us: client_times.total_us.saturating_add(peer_times.total_us),
            client_times,
            under_way: now.under_way(),
        }
    }

    fn add(&mut self, other: &OperationDelta) {
        self.client = self.client.saturating_add(other.client);
        self.peer = self.peer.saturating_add(other.peer);
        self.received = self.received.saturating_add(other.received);
        self.sent = self.sent.saturating_add(other.sent);
        self.total_us = self.total_us.saturating_add(other.total_us);
        self.client_times.add(&other.client_times);
        self.under_way = self.under_way.saturating_add(other.under_way);
    }
}

impl Rates {
    /// Rates between two looks, `took` apart.
    #[must_use]
    pub fn between(before: &StatusReport, now: &StatusReport, took: Duration, unix_ms: u64) -> Rates {
        // Two looks may be at the same moment, and rates of no time would be endless.
        let seconds = took.as_secs_f64().max(1e-3);
        let mut operations = BTreeMap::<&str, OperationDelta>::new();
        let mut nodes = Vec::new();
        for node in &now.nodes {
            // Another daemon goes on with what the one before counted.
            let earlier = before.nodes.iter().find(|other| other.id == node.id);
            let is_unknown = earlier.is_some_and(|earlier| earlier.state != "ready");
            let mut sum = OperationDelta::default();
            for operation in node.operations.iter().filter(|operation| is_work(operation)) {
                let earlier = earlier
                    .and_then(|node| node.operations.iter().find(|other| other.name == operation.name));
                let done = match is_unknown {
                    // How far it was then it did not say.
                    true => OperationDelta { under_way: operation.under_way(), ..OperationDelta::default() },
                    false => OperationDelta::between(earlier, operation),
                };
                sum.add(&done);
                operations.entry(&operation.name).or_default().add(&done);
            }
            nodes.push(NodeRates::of(node, &sum, seconds));
        }
        let mut operations: Vec<OperationRates> =
            operations.into_iter().map(|(name, done)| OperationRates::of(name, &done, seconds)).collect();
        operations.retain(|operation| operation.client + operation.peer > 0.0 || operation.under_way > 0);
        // By the time that nodes spend, and not by the number: a slow operation matters more than many that cost
        // nothing.
        operations.sort_by(|a, b| b.load.total_cmp(&a.load).then_with(|| a.name.cmp(&b.name)));
        let (files, _) = now.content();
        Rates {
            name: now.name.clone(),
            state: now.state,
            unix_ms,
            seconds,
            created_unix_ms: now.created_unix_ms,
            total: nodes.iter().fold(IntervalWork::default(), |sum, node| sum.plus(&node.work)),
            files,
            open_files: now.nodes.iter().filter_map(|node| node.open_files).sum(),
            unsent_bytes: now
                .nodes
                .iter()
                .filter_map(|node| Some(node.page_pool.as_ref()?.unsent_bytes))
                .sum(),
            unflushed_bytes: now.unflushed.as_ref().map(|left| left.bytes),
            unflushed_files: now.unflushed.as_ref().map(|left| left.files),
            unflushed_deletions: now.unflushed.as_ref().map(|left| left.deletions),
            nodes,
            operations,
            warnings: warnings(now),
            activity: None,
        }
    }

    /// Adds the activity of the interval.
    pub fn add(&mut self, activity: Option<Activity>) {
        self.warnings.extend(activity.iter().flat_map(|activity| activity.unknown.iter().cloned()));
        self.activity = activity;
    }
}

impl NodeRates {
    fn of(node: &NodeReport, done: &OperationDelta, seconds: f64) -> NodeRates {
        NodeRates {
            id: node.id,
            host: node.host.clone(),
            state: node.state,
            work: IntervalWork::of(node, done, seconds),
        }
    }
}

impl IntervalWork {
    fn of(node: &NodeReport, done: &OperationDelta, seconds: f64) -> IntervalWork {
        let used = |volume: &VolumeReport| {
            volume.used_bytes.unwrap_or(0).saturating_add(volume.records_bytes.unwrap_or(0))
        };
        IntervalWork {
            requests: (done.client as f64 + done.peer as f64) / seconds,
            written: done.received as f64 / seconds,
            read: done.sent as f64 / seconds,
            load: done.total_us as f64 / 1e6 / seconds,
            under_way: done.under_way,
            used_bytes: node.volumes.iter().map(used).sum(),
            capacity_bytes: node.volumes.iter().map(|volume| volume.capacity_bytes).sum(),
        }
    }

    /// Returns both together.
    #[must_use]
    pub fn plus(self, other: &IntervalWork) -> IntervalWork {
        IntervalWork {
            requests: self.requests + other.requests,
            written: self.written + other.written,
            read: self.read + other.read,
            load: self.load + other.load,
            under_way: self.under_way.saturating_add(other.under_way),
            used_bytes: self.used_bytes.saturating_add(other.used_bytes),
            capacity_bytes: self.capacity_bytes.saturating_add(other.capacity_bytes),
        }
    }

    /// Returns the use of the volumes, from 0 to 1.
    #[must_use]
    pub fn fill(&self) -> f64 {
        if self.capacity_bytes == 0 { 0.0 } else { self.used_bytes as f64 / self.capacity_bytes as f64 }
    }
}

impl OperationRates {
    fn of(name: &str, done: &OperationDelta, seconds: f64) -> OperationRates {
        OperationRates {
            name: name.to_owned(),
            client: done.client as f64 / seconds,
            peer: done.peer as f64 / seconds,
            load: done.total_us as f64 / 1e6 / seconds,
            under_way: done.under_way,
            p50_us: done.client_times.quantile_us(0.5),
            p99_us: done.client_times.quantile_us(0.99),
        }
    }
}

/// Warnings for somebody who looks, the worst first.
fn warnings(report: &StatusReport) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    if !report.supervisor.alive {
        said.push("the supervisor is gone: nothing is restarted".into());
    }
    said.extend(report.message.clone());
    for node in report.nodes.iter().filter(|node| node.state != "ready") {
        let why = node.message.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        said.push(format!("node {} on {} is {}{why}", node.id, node.host, node.state));
    }
    for host in &report.hosts {
        said.extend(host.message.as_ref().map(|why| format!("host {} is {}: {why}", host.name, host.state)));
    }
    for mount in &report.mounts {
        said.extend(mount.trouble.as_ref().map(|why| format!("mount {}: {why}", mount.dir.display())));
    }
    for node in report.nodes.iter().filter(|node| node.damage.is_some()) {
        said.push(format!("node {} on {} has wrong bytes: bivouac status", node.id, node.host));
    }
    let failing = report.unflushed.iter().flat_map(|left| &left.failing);
    said.extend(failing.map(|why| format!("not flushed: {why}")));
    for node in &report.nodes {
        let fill = IntervalWork::of(node, &OperationDelta::default(), 1.0).fill();
        if fill >= FULL {
            said.push(format!("node {} on {} is {:.0} % full", node.id, node.host, fill * 100.0));
        }
    }
    said
}
