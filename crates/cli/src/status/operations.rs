//! How often nodes were asked for what, as a table.

use std::collections::BTreeMap;

use bivouac_types::units::format_count;

use super::OperationReport;
use crate::table::layout;

/// What nodes call requests and answers that came with other bytes.
const DAMAGED: &str = "Damaged";

/// Served on the client lane, served on the peer lane, made to peers.
type Counts = [u64; 3];

/// Requests per operation over all nodes, and with `per_node` those of each; nothing if there were none.
pub fn table<'r>(nodes: impl Iterator<Item = (u16, &'r [OperationReport])>, per_node: bool) -> String {
    let mut sums = BTreeMap::<&str, (Counts, Vec<(u16, Counts)>)>::new();
    for (node, operations) in nodes {
        for OperationReport { name, client, peer, calls } in operations {
            let (sum, parts) = sums.entry(name).or_default();
            let counts = [*client, *peer, *calls];
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            parts.push((node, counts));
        }
    }
    if sums.is_empty() {
        return String::new();
    }
    let head = ["OPERATION", "NODE", "CLIENTS", "PEERS", "CALLS"];
    if !per_node {
        let rows: Vec<_> = sums.iter().map(|(name, (sum, _))| row(&[name], sum)).collect();
        return format!("\n{}", layout(&[head[0], head[2], head[3], head[4]], &[1, 2, 3], &rows));
    }
    let mut rows = Vec::new();
    for (name, (sum, parts)) in &sums {
        rows.push(row(&[name, "all"], sum));
        rows.extend(parts.iter().map(|(node, counts)| row(&["", &node.to_string()], counts)));
    }
    format!("\n{}", layout(&head, &[1, 2, 3, 4], &rows))
}

/// That bytes change between hosts, if they do.
pub fn damage_text<'r>(nodes: impl Iterator<Item = (u16, &'r [OperationReport])>) -> String {
    let damaged = |(node, operations): (u16, &[OperationReport])| {
        let report = operations.iter().find(|report| report.name == DAMAGED)?;
        let messages = format_count(report.client.saturating_add(report.peer), "message");
        let what = "changed on the way and sent again: look for a bad cable, card or switch";
        Some(format!("node {node}: {messages} from or to it {what}\n"))
    };
    nodes.filter_map(damaged).collect()
}

fn row(names: &[&str], counts: &Counts) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).chain(counts.iter().map(u64::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u16, counts: &[(&str, Counts)]) -> (u16, Vec<OperationReport>) {
        let report = |(name, [client, peer, calls]): &(&str, Counts)| OperationReport {
            name: (*name).to_owned(),
            client: *client,
            peer: *peer,
            calls: *calls,
        };
        (id, counts.iter().map(report).collect())
    }

    #[test]
    fn sums_come_first_and_then_the_nodes() {
        let nodes =
            [node(0, &[("Make", [3, 0, 0]), ("PutInode", [0, 0, 1])]), node(1, &[("PutInode", [0, 1, 0])])];
        let lines = |per_node| -> Vec<String> {
            let text = table(nodes.iter().map(|(id, operations)| (*id, operations.as_slice())), per_node);
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(lines(false), ["", "OPERATION CLIENTS PEERS CALLS", "Make 3 0 0", "PutInode 0 1 1"]);
        assert_eq!(
            lines(true),
            [
                "",
                "OPERATION NODE CLIENTS PEERS CALLS",
                "Make all 3 0 0",
                "0 3 0 0",
                "PutInode all 0 1 1",
                "0 0 0 1",
                "1 0 1 0"
            ]
        );
        assert_eq!(table(std::iter::empty(), true), "");
    }

    #[test]
    fn a_network_that_changes_bytes_is_named() {
        let nodes = [node(0, &[("Make", [3, 0, 0])]), node(1, &[("Damaged", [1, 2, 0])])];
        let text = damage_text(nodes.iter().map(|(id, operations)| (*id, operations.as_slice())));
        assert!(text.starts_with("node 1: 3 messages from or to it changed on the way"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
