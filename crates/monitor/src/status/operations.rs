//! Operations that nodes were asked for: as they count them, and as a table.

use std::collections::BTreeMap;

use bivouac_client::{OpCount, Times};
use bivouac_types::table::layout;
use bivouac_types::units::{format_count, format_micros};
use bivouac_wire::Op;
use serde::{Serialize, Serializer};

/// Number of times that a node served an operation on each lane, and asked other nodes for it.
#[derive(Debug, Default, Serialize)]
pub struct OperationReport {
    /// The operation, as docs/protocol.md names it.
    pub name: String,
    /// Served on the client lane.
    pub client: u64,
    /// Served on the peer lane.
    pub peer: u64,
    /// Made to peers.
    pub calls: u64,
    /// Bytes of content that came with requests.
    pub received_bytes: u64,
    /// Bytes of content that went with answers.
    pub sent_bytes: u64,
    /// Times of those of clients.
    #[serde(serialize_with = "times")]
    pub client_times: Times,
    /// Times of those of peers.
    #[serde(serialize_with = "times")]
    pub peer_times: Times,
    /// Requests that were under way when a daemon was killed; their senders send them again.
    pub cut_off: u64,
}

impl OperationReport {
    /// Returns the requests that came and were not answered; without looks, of which this is one.
    pub fn under_way(&self) -> u64 {
        if self.name == Op::Status.name() {
            return 0;
        }
        // Counts are read while requests come and end, so the end of one may be seen before its beginning.
        let done = self.client_times.count().saturating_add(self.peer_times.count());
        self.client.saturating_add(self.peer).saturating_sub(done.saturating_add(self.cut_off))
    }
}

fn times<S: Serializer>(times: &Times, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct TimesJson<'a> {
        p50_us: Option<u64>,
        p99_us: Option<u64>,
        total_us: u64,
        counts: &'a [u64],
    }
    let [p50_us, p99_us] = [0.5, 0.99].map(|share| times.quantile_us(share));
    TimesJson { p50_us, p99_us, total_us: times.total_us, counts: &times.counts }.serialize(to)
}

impl From<OpCount> for OperationReport {
    fn from(count: OpCount) -> OperationReport {
        OperationReport {
            name: count.name,
            client: count.client,
            peer: count.peer,
            calls: count.calls,
            received_bytes: count.received_bytes,
            sent_bytes: count.sent_bytes,
            client_times: count.client_times,
            peer_times: count.peer_times,
            cut_off: count.cut_off,
        }
    }
}

/// Name under which nodes count requests and answers that came with other bytes.
pub const DAMAGED: &str = "Damaged";

/// Name under which nodes count changes that waited for leases.
pub const LEASE_WAIT: &str = "LeaseWait";

/// Returns whether it is one of the operations of the protocol.
pub fn is_request(operation: &OperationReport) -> bool {
    operation.name != DAMAGED && operation.name != LEASE_WAIT
}

/// Operations that only `status`, `top`, `report` and the page send.
const MONITORING: [&str; 4] = ["Status", "ListUses", "ListHistory", "GetMap"];

/// Returns whether an operation is a request of a program, and not one of those that observe the formation.
pub fn is_work(operation: &OperationReport) -> bool {
    is_request(operation) && !MONITORING.contains(&operation.name.as_str())
}

/// Requests of one operation.
#[derive(Default)]
struct RequestCounts {
    /// Served on the client lane, served on the peer lane, made to peers.
    requests: [u64; 3],
    /// Times of those of clients.
    times: Times,
}

impl RequestCounts {
    fn add(&mut self, other: &OperationReport) {
        let counts = [other.client, other.peer, other.calls];
        self.requests.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
        self.times.add(&other.client_times);
    }

    fn row(&self, names: &[&str]) -> Vec<String> {
        let time = |share| self.times.quantile_us(share).map_or_else(|| "-".into(), format_micros);
        let names = names.iter().map(|name| (*name).to_owned());
        names.chain(self.requests.iter().map(u64::to_string)).chain([time(0.5), time(0.99)]).collect()
    }
}

/// Returns the requests per operation over all nodes, and with `per_node` those of each; nothing if there were none.
pub fn table<'r>(
    nodes: impl Iterator<Item = (u16, &'r [OperationReport])>,
    per_node: bool,
    columns: Option<usize>,
) -> String {
    let mut sums = BTreeMap::<&str, (RequestCounts, Vec<(u16, &OperationReport)>)>::new();
    for (node, operations) in nodes {
        for operation in operations {
            let (sum, parts) = sums.entry(&operation.name).or_default();
            sum.add(operation);
            parts.push((node, operation));
        }
    }
    if sums.is_empty() {
        return String::new();
    }
    let head = ["OPERATION", "NODE", "CLIENTS", "PEERS", "CALLS", "P50", "P99"];
    if !per_node {
        let rows: Vec<_> = sums.iter().map(|(name, (sum, _))| sum.row(&[name])).collect();
        let head: Vec<&str> = head.into_iter().filter(|column| *column != "NODE").collect();
        return format!("\n{}", layout(columns, &head, &[1, 2, 3, 4, 5], &rows));
    }
    let mut rows = Vec::new();
    for (name, (sum, parts)) in &sums {
        rows.push(sum.row(&[name, "all"]));
        for (node, operation) in parts {
            let mut own = RequestCounts::default();
            own.add(operation);
            rows.push(own.row(&["", &node.to_string()]));
        }
    }
    format!("\n{}", layout(columns, &head, &[1, 2, 3, 4, 5, 6], &rows))
}

/// Returns the warning that bytes change between hosts, if they do.
pub fn damage_text<'r>(nodes: impl Iterator<Item = (u16, &'r [OperationReport])>) -> String {
    let damaged = |(node, operations): (u16, &[OperationReport])| {
        let report = operations.iter().find(|report| report.name == DAMAGED)?;
        let messages = format_count(report.client.saturating_add(report.peer), "message");
        let what = "changed on the way and sent again: look for a bad cable, card or switch";
        Some(format!("node {node}: {messages} from or to it {what}\n"))
    };
    nodes.filter_map(damaged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u16, counts: &[(&str, [u64; 3])]) -> (u16, Vec<OperationReport>) {
        let report = |(name, [client, peer, calls]): &(&str, [u64; 3])| OperationReport {
            name: (*name).to_owned(),
            client: *client,
            peer: *peer,
            calls: *calls,
            // Of clients' requests all but the last took at most 8 microseconds.
            client_times: Times {
                total_us: 9,
                counts: vec![0, 0, 0, client.saturating_sub(1), 0, u64::from(*client > 0)],
            },
            ..OperationReport::default()
        };
        (id, counts.iter().map(report).collect())
    }

    #[test]
    fn sums_come_first_and_then_the_nodes() {
        let nodes =
            [node(0, &[("Make", [3, 0, 0]), ("PutInode", [0, 0, 1])]), node(1, &[("PutInode", [0, 1, 0])])];
        let lines = |per_node| -> Vec<String> {
            let text =
                table(nodes.iter().map(|(id, operations)| (*id, operations.as_slice())), per_node, None);
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(
            lines(false),
            ["", "OPERATION CLIENTS PEERS CALLS P50 P99", "Make 3 0 0 8 µs 32 µs", "PutInode 0 1 1 - -"]
        );
        assert_eq!(
            lines(true),
            [
                "",
                "OPERATION NODE CLIENTS PEERS CALLS P50 P99",
                "Make all 3 0 0 8 µs 32 µs",
                "0 3 0 0 8 µs 32 µs",
                "PutInode all 0 1 1 - -",
                "0 0 0 1 - -",
                "1 0 1 0 - -"
            ]
        );
        assert_eq!(table(std::iter::empty(), true, None), "");
    }

    #[test]
    fn a_network_that_changes_bytes_is_named() {
        let nodes = [node(0, &[("Make", [3, 0, 0])]), node(1, &[("Damaged", [1, 2, 0])])];
        let text = damage_text(nodes.iter().map(|(id, operations)| (*id, operations.as_slice())));
        assert!(text.starts_with("node 1: 3 messages from or to it changed on the way"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
