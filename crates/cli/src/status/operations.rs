//! How often nodes were asked for what, as a table.

use std::collections::BTreeMap;

use super::{NodeReport, OperationReport};
use crate::table::layout;

/// Served on the client lane, served on the peer lane, made to peers.
type Counts = [u64; 3];

/// Requests per operation over all nodes, and with `per_node` those of each; nothing if there were none.
pub fn table(nodes: &[NodeReport], per_node: bool) -> String {
    let mut sums = BTreeMap::<&str, (Counts, Vec<(u16, Counts)>)>::new();
    for node in nodes {
        for OperationReport { name, client, peer, calls } in &node.operations {
            let (sum, parts) = sums.entry(name).or_default();
            let counts = [*client, *peer, *calls];
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            parts.push((node.id, counts));
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
    let of_nodes = |(name, (sum, parts)): (&&str, &(Counts, Vec<(u16, Counts)>))| -> Vec<Vec<String>> {
        let each = parts.iter().map(|(node, counts)| row(&["", &node.to_string()], counts));
        std::iter::once(row(&[name, "all"], sum)).chain(each).collect()
    };
    let rows: Vec<_> = sums.iter().flat_map(of_nodes).collect();
    format!("\n{}", layout(&head, &[1, 2, 3, 4], &rows))
}

fn row(names: &[&str], counts: &Counts) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).chain(counts.iter().map(u64::to_string)).collect()
}
