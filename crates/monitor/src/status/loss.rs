//! Losses of a formation: hosts, their nodes, moves to other hosts, and what is lost for good.

use bivouac_launch::{FormationState, HostLife, MoveStage, unix_ms};
use bivouac_types::NodeId;
use bivouac_types::units::format_duration;
use serde::Serialize;

/// Content of `status --lost --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LossReport {
    /// Hosts that were lost.
    pub hosts: Vec<LostHost>,
    /// Hosts that have left in order, by the launcher's names for them.
    pub left: Vec<String>,
    /// Nodes that ran on a host that was lost, or whose daemons are not started again.
    pub nodes: Vec<LostNode>,
    /// True if what a node had is lost for good.
    pub for_good: bool,
}

/// A host that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostHost {
    /// The launcher's name for it.
    pub name: String,
    /// Reason why it was given up.
    pub message: Option<String>,
}

/// A node that was lost with its host, or given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostNode {
    /// Its number.
    pub node: u16,
    /// `moving`, `moved` or `lost`.
    pub state: &'static str,
    /// The host that was lost.
    pub from: Option<String>,
    /// The host that it moves or has moved to.
    pub to: Option<String>,
    /// Its mirror epoch there.
    pub epoch: Option<u32>,
    /// Time when that was decided, in milliseconds since 1970.
    pub since_unix_ms: Option<u64>,
    /// Reason why it is lost, or what it waits for.
    pub message: Option<String>,
}

impl LossReport {
    /// Returns the report of a formation, as the one who started it sees it; of one host's part, as far as it has been
    /// told.
    pub(super) fn of(state: &FormationState) -> LossReport {
        let lost = state.hosts.iter().filter(|host| host.life == HostLife::Lost);
        let left = state.hosts.iter().filter(|host| host.life == HostLife::Left);
        let left = left.map(|host| host.name.clone()).collect();
        let hosts = lost.map(|host| LostHost { name: host.name.clone(), message: host.message.clone() });
        let name = |host: usize| state.hosts.get(host).map(|host| host.name.clone());
        let moved = state.moves.iter().map(|m| LostNode {
            node: m.node,
            state: match m.stage {
                MoveStage::Sealing | MoveStage::Starting => "moving",
                MoveStage::Serving => "moved",
                MoveStage::Failed => "lost",
            },
            from: name(m.from),
            to: name(m.to),
            epoch: Some(m.epoch),
            since_unix_ms: Some(m.since_unix_ms),
            message: m.message.clone().or(match m.stage {
                MoveStage::Sealing => Some("its replicas are being sealed".into()),
                MoveStage::Starting => Some("its daemon starts there".into()),
                MoveStage::Serving | MoveStage::Failed => None,
            }),
        });
        // With the node of a host that joined nothing is lost.
        let map = state.map();
        let has_content = |node: u16| map.as_ref().is_none_or(|map| map.has_content(NodeId(node)));
        let failed = state.failed_here().filter(|node| has_content(node.id));
        // A node that moved stays failed in its former host's part: it is told once, as moved.
        let failed = failed.filter(|node| state.moves.iter().all(|m| m.node != node.id));
        let given_up = failed.map(|node| LostNode {
            node: node.id,
            state: "lost",
            from: Some(node.host.clone()),
            to: None,
            epoch: None,
            since_unix_ms: None,
            message: node.message.clone(),
        });
        let mut nodes: Vec<LostNode> = moved.chain(given_up).collect();
        if state.part.is_some() {
            nodes.extend(seen_from_part(state));
        }
        nodes.sort_by_key(|node| node.node);
        let for_good = nodes.iter().any(|node| node.state == "lost");
        LossReport { hosts: hosts.collect(), left, nodes, for_good }
    }

    /// Returns the exit code of `status --lost`: docs/commands.md.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::from(self.for_good)
    }

    /// Returns the report for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.to_text_at(unix_ms())
    }

    fn to_text_at(&self, now_unix_ms: u64) -> String {
        if self.hosts.is_empty() && self.left.is_empty() && self.nodes.is_empty() {
            return "nothing was lost\n".into();
        }
        let mut text = String::new();
        let or_none =
            |message: &Option<String>| message.as_ref().map_or(String::new(), |text| format!(": {text}"));
        for host in &self.hosts {
            text.push_str(&format!("host {} is lost{}\n", host.name, or_none(&host.message)));
        }
        for host in &self.left {
            text.push_str(&format!("host {host} has left\n"));
        }
        for node in &self.nodes {
            // One host's part does not know all of it.
            let of = |word: &str, host: &Option<String>| {
                host.as_ref().map_or(String::new(), |host| format!(" {word} {host}"))
            };
            let (from, to) = (of("from host", &node.from), of("to", &node.to));
            let since = node.since_unix_ms.map(|since| format_duration(now_unix_ms.saturating_sub(since)));
            let ago = |before: &str, behind: &str| {
                since.as_ref().map_or(String::new(), |since| format!("{before}{since}{behind}"))
            };
            let (node_id, epoch) = (node.node, node.epoch.unwrap_or_default());
            text.push_str(&match node.state {
                "moved" => format!("node {node_id} moved{from}{to}{}, epoch {epoch}", ago(" ", " ago")),
                "moving" => format!("node {node_id} moves{from}{to}{}, epoch {epoch}", ago(" since ", "")),
                _ => format!("node {node_id}{} is lost for good", of("of host", &node.from)),
            });
            text.push_str(&or_none(&node.message));
            text.push('\n');
        }
        text.push_str(if self.for_good {
            "what only lost nodes had gives EIO\n"
        } else {
            "nothing is lost for good\n"
        });
        text
    }
}

/// Returns the nodes of other hosts that moved or were given up, as one host's part has been told.
fn seen_from_part(state: &FormationState) -> Vec<LostNode> {
    let node = |node: u16, state: &'static str, to: Option<String>, epoch: Option<u32>| LostNode {
        node,
        state,
        from: None,
        to,
        epoch,
        since_unix_ms: None,
        message: None,
    };
    let map = state.map();
    let has_content = |node: u16| map.as_ref().is_none_or(|map| map.has_content(NodeId(node)));
    let given_up = state.lost_elsewhere.iter().copied().filter(|id| has_content(*id));
    let given_up: Vec<LostNode> = given_up.map(|id| node(id, "lost", None, None)).collect();
    let map = state.map().map(|map| map.nodes).unwrap_or_default();
    let lost: Vec<u16> = state.lost().collect();
    let entries = (0..).zip(map).filter(|(_, entry)| !entry.is_withdrawn());
    let entries = entries.filter(|(id, entry)| entry.epoch > 0 && !lost.contains(id));
    given_up
        .into_iter()
        .chain(entries.map(|(id, entry)| node(id, "moved", Some(entry.host), Some(entry.epoch))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: u16, state: &'static str, message: Option<&str>) -> LostNode {
        LostNode {
            node,
            state,
            from: Some("n1".into()),
            to: Some("n2".into()),
            epoch: Some(3),
            since_unix_ms: Some(1000),
            message: message.map(str::to_owned),
        }
    }

    /// S816.
    #[test]
    fn what_was_lost_is_named_with_where_it_went() {
        assert_eq!(LossReport::default().to_text(), "nothing was lost\n");
        let hosts = vec![LostHost { name: "n1".into(), message: Some("silent".into()) }];
        let nodes = vec![node(1, "moved", None)];
        let moved = LossReport { hosts, nodes: nodes.clone(), ..LossReport::default() };
        let left = LossReport { left: vec!["n1".into()], nodes, ..LossReport::default() };
        let said = "host n1 has left\nnode 1 moved from host n1 to n2 5.0 s ago, epoch 3\nnothing is lost for good\n";
        assert_eq!((left.to_text_at(6000).as_str(), left.exit_code()), (said, 0));
        let text = "host n1 is lost: silent\nnode 1 moved from host n1 to n2 5.0 s ago, epoch 3\nnothing is lost for good\n";
        assert_eq!((moved.to_text_at(6000).as_str(), moved.exit_code()), (text, 0));
        let of_part = LostNode { from: None, since_unix_ms: None, ..node(1, "moved", None) };
        let seen = LossReport { nodes: vec![of_part], ..LossReport::default() };
        assert_eq!(seen.to_text(), "node 1 moved to n2, epoch 3\nnothing is lost for good\n");
        let nodes = vec![node(1, "moved", None), node(2, "lost", Some("no replica"))];
        let lost = LossReport { nodes, for_good: true, ..moved };
        assert!(
            lost.to_text().contains("node 2 of host n1 is lost for good: no replica\n"),
            "{}",
            lost.to_text()
        );
        assert_eq!(lost.exit_code(), 1);
    }
}
