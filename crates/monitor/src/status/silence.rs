//! Nodes that do not answer the others: who says so, and for how long.

use std::collections::BTreeMap;

use bivouac_client::NodeStatus;
use bivouac_types::Liveness;
use bivouac_types::units::format_duration;
use serde::Serialize;

/// A node that does not answer others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SilentReport {
    /// The node.
    pub node: u16,
    /// `dead`, or `suspect`: it may still say that it lives.
    pub state: &'static str,
    /// Time since the first of the others noticed, in milliseconds.
    pub for_ms: u64,
    /// The nodes that say so, of those that answer.
    pub to: Vec<u16>,
}

/// Returns the nodes that others do not hear, by node. Where some suspect a node that is dead to others, only the
/// latter count.
pub fn silent<'a>(answers: impl Iterator<Item = &'a NodeStatus>) -> Vec<SilentReport> {
    let mut found: BTreeMap<u16, (Liveness, SilentReport)> = BTreeMap::new();
    for status in answers {
        for silent in &status.silent {
            let node = silent.node.0;
            let fresh = || {
                (
                    silent.liveness,
                    SilentReport { node, state: word(silent.liveness), for_ms: 0, to: Vec::new() },
                )
            };
            let entry = found.entry(node).or_insert_with(fresh);
            // The worse word counts from here on, without those who said the milder one.
            if silent.liveness > entry.0 {
                *entry = fresh();
            }
            if silent.liveness == entry.0 {
                entry.1.for_ms = entry.1.for_ms.max(silent.for_ms);
                entry.1.to.push(status.id);
            }
        }
    }
    found.into_values().map(|(_, report)| report).collect()
}

fn word(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::Alive => "alive",
        Liveness::Suspect => "suspect",
        Liveness::Dead => "dead",
    }
}

impl SilentReport {
    /// Returns it in the form for people. `host` is the node's; `others` is the number of other nodes that answer;
    /// `may_return` tells whether anybody restarts it.
    pub fn to_text(&self, host: &str, others: usize, may_return: bool) -> String {
        let SilentReport { node, for_ms, .. } = self;
        let (time, to) = (format_duration(*for_ms), self.to_whom(others));
        if self.state == "suspect" {
            return format!(
                "node {node} ({host}) has not answered {to} for {time}: if it stays silent it is taken for dead\n"
            );
        }
        let end = if may_return { "; when it answers again it goes on with its data" } else { "" };
        format!("node {node} ({host}) has been dead to {to} for {time}: what needs it gives EIO{end}\n")
    }

    fn to_whom(&self, others: usize) -> String {
        match self.to.as_slice() {
            all if all.len() >= others => "the others".into(),
            [one] => format!("node {one}"),
            several => {
                let numbers: Vec<String> = several.iter().map(u16::to_string).collect();
                format!("nodes {}", numbers.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_client::{PoolStatus, UnresponsiveNode};
    use bivouac_types::NodeId;

    fn says(id: u16, silent: &[(u16, Liveness, u64)]) -> NodeStatus {
        let one = |(node, liveness, for_ms): &(u16, Liveness, u64)| UnresponsiveNode {
            node: NodeId(*node),
            liveness: *liveness,
            for_ms: *for_ms,
        };
        NodeStatus {
            id,
            pid: 1,
            uptime_ms: 1,
            files: 0,
            open_files: 0,
            records: 0,
            record_bytes: 0,
            names_bytes: 0,
            names_max_bytes: 0,
            volumes: vec![],
            page_pool: PoolStatus::default(),
            operations: vec![],
            epoch: 1,
            silent: silent.iter().map(one).collect(),
            damage: bivouac_client::DamageStatus::default(),
            links: Vec::new(),
        }
    }

    #[test]
    fn it_is_said_who_is_silent_to_whom_and_for_how_long() {
        let answers = [
            says(0, &[(2, Liveness::Dead, 9000), (3, Liveness::Suspect, 1200)]),
            says(1, &[(2, Liveness::Dead, 12_000), (3, Liveness::Suspect, 800)]),
            says(4, &[(2, Liveness::Suspect, 90_000)]),
        ];
        let silent = silent(answers.iter());
        assert_eq!(silent.len(), 2);
        assert_eq!(
            silent[0].to_text("n3", 3, true),
            "node 2 (n3) has been dead to nodes 0, 1 for 12.0 s: what needs it gives EIO; when it answers again it goes on \
             with its data\n"
        );
        assert_eq!(
            silent[1].to_text("n4", 2, true),
            "node 3 (n4) has not answered the others for 1.2 s: if it stays silent it is taken for dead\n"
        );
        let alone = SilentReport { to: vec![1], ..silent[0].clone() };
        assert_eq!(
            alone.to_text("n3", 2, false),
            "node 2 (n3) has been dead to node 1 for 12.0 s: what needs it gives EIO\n"
        );
    }

    #[test]
    fn nobody_is_silent_in_a_healthy_formation() {
        assert_eq!(silent([says(0, &[]), says(1, &[])].iter()), []);
    }
}
