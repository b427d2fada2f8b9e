//! Choice of the volumes and nodes of a partition.

use std::fmt;
use std::str::FromStr;

use bivouac_sysmap::spread_over;
use bivouac_types::units::format_size;
use bivouac_types::{NodeId, TargetIndex, VolumeKind};

/// Nodes as people write them: `4` is a number of nodes, `0-3,7` and `4,` are lists, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// This many targets, those with the most free space.
    Count(u16),
    /// These.
    List(Vec<NodeId>),
}

impl Nodes {
    /// Returns how many they are, in a formation with `all` nodes.
    pub fn count_of(&self, all: usize) -> Result<usize, String> {
        let there_are = format!("the formation has {all}, from 0 on");
        match self {
            Nodes::Count(count) if usize::from(*count) > all => {
                Err(format!("{count} nodes are wanted; {there_are}"))
            }
            Nodes::Count(count) => Ok(usize::from(*count)),
            Nodes::List(nodes) => match nodes.iter().find(|node| usize::from(node.0) >= all) {
                Some(node) => Err(format!("node {} is not there; {there_are}", node.0)),
                None => Ok(nodes.len()),
            },
        }
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nodes::Count(count) => write!(f, "{count}"),
            // A number without a comma is a count.
            Nodes::List(nodes) if nodes.len() == 1 => {
                nodes.iter().try_for_each(|node| write!(f, "{},", node.0))
            }
            Nodes::List(nodes) => {
                let numbers: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
                f.write_str(&numbers.join(","))
            }
        }
    }
}

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Nodes, String> {
        let bad = || format!("'{text}' is neither a number of nodes (4) nor a list of them (0-3,7 or 4,)");
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| bad());
        if !text.contains([',', '-']) {
            return match number(text)? {
                0 => Err("a partition needs a node: write 1 or more, or a list like 0,".to_owned()),
                count => Ok(Nodes::Count(count)),
            };
        }
        let mut nodes = Vec::new();
        for part in text.strip_suffix(',').unwrap_or(text).split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("'{text}': {first} is above {last}"));
            }
            nodes.extend((first..=last).map(NodeId));
        }
        let mut seen = std::collections::HashSet::new();
        match nodes.iter().find(|node| !seen.insert(**node)) {
            Some(twice) => Err(format!("'{text}' names {twice} twice")),
            None => Ok(Nodes::List(nodes)),
        }
    }
}

/// Amount of data of a partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Bytes of its files together.
    pub bytes: u64,
    /// Share of a node's volumes that they may take, above 0 and up to 1.
    pub keep: f64,
}

/// A volume that a partition may get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its target in the root partition.
    pub target: TargetIndex,
    pub node: NodeId,
    /// Its kind of volume.
    pub kind: VolumeKind,
    /// Bytes that it can hold.
    pub capacity: u64,
    /// Bytes of these that are free.
    pub free: u64,
    /// The switch that its host is behind, if that is known.
    pub switch: Option<String>,
}

/// The targets of a partition, and the reason for these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedTargets {
    /// Round over the nodes, volume by volume.
    pub targets: Vec<TargetIndex>,
    /// Remarks about the number of nodes.
    pub reason: Option<String>,
}

/// Chooses targets. Without a wish for nodes or size it is all that fit.
///
/// # Errors
/// A node that is not there or has no fitting volume; more nodes than there are; no fitting volume at all.
pub fn choose(
    candidates: &[Candidate],
    kind: VolumeKind,
    nodes: Option<&Nodes>,
    sizing: Option<Sizing>,
) -> Result<SelectedTargets, String> {
    let fitting: Vec<&Candidate> =
        candidates.iter().filter(|volume| kind == VolumeKind::Any || volume.kind == kind).collect();
    let mut all: Vec<NodeId> = fitting.iter().map(|volume| volume.node).collect();
    all.sort_unstable();
    all.dedup();
    if all.is_empty() {
        return Err(match kind {
            VolumeKind::Any => "no node answers: see `bivouac status`".to_owned(),
            kind => format!("no node that answers has a volume in {kind}: leave --volumes out"),
        });
    }
    let (nodes, reason) = match (nodes, sizing) {
        (Some(Nodes::List(list)), _) => (listed(list, &all, kind)?, None),
        (Some(Nodes::Count(count)), _) => {
            (in_turns(&fitting, emptiest(&fitting, &all, usize::from(*count))?), None)
        }
        (None, Some(sizing)) => {
            let (count, reason) = needed(&fitting, &all, sizing);
            (in_turns(&fitting, emptiest(&fitting, &all, count)?), Some(reason))
        }
        (None, None) => (in_turns(&fitting, all), None),
    };
    let targets = round(&fitting, &nodes);
    // Every node here has a fitting volume; a partition's targets are its numbers for as long as it lives.
    assert!(!targets.is_empty(), "a partition over {} nodes has no targets", nodes.len());
    let mut unique = targets.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), targets.len(), "a partition has a target twice");
    Ok(SelectedTargets { targets, reason })
}

/// Returns the nodes in an order in which neighbours are behind different switches, as far as those are known.
fn in_turns(fitting: &[&Candidate], nodes: Vec<NodeId>) -> Vec<NodeId> {
    let switch =
        |node: &NodeId| fitting.iter().find(|volume| volume.node == *node).map(|volume| &volume.switch);
    let switches: Vec<_> = nodes.iter().map(switch).collect();
    let spread: Vec<NodeId> =
        spread_over(&switches).into_iter().filter_map(|at| nodes.get(at).copied()).collect();
    assert_eq!(spread.len(), nodes.len(), "a node gets lost between the switches");
    spread
}

/// Returns the volumes of these nodes: the first of each, then the second of each, and so on.
fn round(fitting: &[&Candidate], nodes: &[NodeId]) -> Vec<TargetIndex> {
    let of = |node: &NodeId| -> Vec<TargetIndex> {
        fitting.iter().filter(|volume| volume.node == *node).map(|volume| volume.target).collect()
    };
    let per_node: Vec<Vec<TargetIndex>> = nodes.iter().map(of).collect();
    let most = per_node.iter().map(Vec::len).max().unwrap_or(0);
    let targets: Vec<TargetIndex> = (0..most)
        .flat_map(|turn| per_node.iter().filter_map(move |targets| targets.get(turn).copied()))
        .collect();
    let all: usize = per_node.iter().map(Vec::len).sum();
    assert_eq!(targets.len(), all, "a volume was left out of the round");
    targets
}

fn listed(list: &[NodeId], all: &[NodeId], kind: VolumeKind) -> Result<Vec<NodeId>, String> {
    match list.iter().find(|node| !all.contains(node)) {
        Some(missing) => Err(format!(
            "{missing} is not there, does not answer, or has no volume of kind '{kind}': see `bivouac status`"
        )),
        None => Ok(list.to_vec()),
    }
}

/// Returns the nodes with the most free space, by number.
fn emptiest(fitting: &[&Candidate], all: &[NodeId], count: usize) -> Result<Vec<NodeId>, String> {
    if count > all.len() {
        return Err(format!("{count} nodes are asked for, and {} are there with such volumes", all.len()));
    }
    let free = |node: &NodeId| -> u64 {
        fitting.iter().filter(|volume| volume.node == *node).map(|volume| volume.free).sum()
    };
    let mut nodes = all.to_vec();
    nodes.sort_by_key(|node| (std::cmp::Reverse(free(node)), *node));
    nodes.truncate(count);
    assert_eq!(nodes.len(), count, "another number of nodes is chosen than is asked for");
    // Fullness has done its part; switches take turns over nodes in the order of their numbers.
    nodes.sort_unstable();
    Ok(nodes)
}

/// Returns how many nodes so much data needs, as published for the I/O proxies of the Expand file system: at least nio
/// = F·k/D of the N nodes, where F is the size of the data, D what a node has, and 1/k the part of it that may be used.
/// Here D is what the smallest node has.
fn needed(fitting: &[&Candidate], all: &[NodeId], sizing: Sizing) -> (usize, String) {
    let capacity = |node: &NodeId| -> u64 {
        fitting.iter().filter(|volume| volume.node == *node).map(|volume| volume.capacity).sum()
    };
    assert!(!all.is_empty(), "the nodes for {} bytes are counted where there are none", sizing.bytes);
    let disk = all.iter().map(capacity).min().unwrap_or(0).max(1);
    let exact = sizing.bytes as f64 / (disk as f64 * sizing.keep);
    let count = (exact.ceil() as usize).clamp(1, all.len());
    let mut reason = format!(
        "{count} of {} nodes: F·k/D = {} / ({} · {}) = {exact:.2}",
        all.len(),
        format_size(sizing.bytes),
        sizing.keep,
        format_size(disk)
    );
    if exact > all.len() as f64 {
        let room = format_size((disk as f64 * sizing.keep * all.len() as f64) as u64);
        reason.push_str(&format!("; that is more than there are: {room} fit into this part of them"));
    }
    (count, reason)
}

/// Reads a part of a whole: `0.8` or `80%`.
pub fn parse_fraction(text: &str) -> Result<f64, String> {
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 100.0));
    let part = number.trim().parse::<f64>().ok().map(|number| number / whole);
    part.filter(|part| *part > 0.0 && *part <= 1.0)
        .ok_or_else(|| format!("'{text}' is not a part of a whole; write for instance 0.8 or 80%"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const G: u64 = 1 << 30;

    /// Three nodes with two volumes each; the second ones are disks. Node 1 is emptiest.
    fn candidates() -> Vec<Candidate> {
        let volume = |index: u32| Candidate {
            target: TargetIndex(index),
            node: NodeId((index % 3) as u16),
            kind: if index < 3 { VolumeKind::Memory } else { VolumeKind::Disk },
            capacity: 10 * G,
            free: if index % 3 == 1 { 9 * G } else { 5 * G },
            switch: None,
        };
        (0..6).map(volume).collect()
    }

    fn targets(kind: VolumeKind, nodes: &str) -> Result<Vec<u32>, String> {
        let nodes = nodes.parse::<Nodes>()?;
        choose(&candidates(), kind, Some(&nodes), None)
            .map(|chosen| chosen.targets.iter().map(|target| target.0).collect())
    }

    #[test]
    fn nodes_are_counted_or_listed() {
        assert_eq!("4".parse(), Ok(Nodes::Count(4)));
        let list = |text: &str| text.parse::<Nodes>().map(|nodes| nodes.to_string());
        assert_eq!(list("7,0-2"), Ok("7,0,1,2".into()));
        assert_eq!(list("4,"), Ok("4,".into()));
        for bad in ["", "0", "x", "1-", "3-1", "1,1", "0-2,1", ",", "1,,2", "99999"] {
            assert!(bad.parse::<Nodes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn targets_go_round_over_the_nodes_in_the_order_of_the_list() {
        assert_eq!(targets(VolumeKind::Any, "2,0"), Ok(vec![2, 0, 5, 3]));
        assert_eq!(targets(VolumeKind::Disk, "2,0"), Ok(vec![5, 3]));
        assert_eq!(targets(VolumeKind::Memory, "1"), Ok(vec![1]), "the emptiest");
        assert_eq!(targets(VolumeKind::Memory, "2"), Ok(vec![0, 1]));
        let all = choose(&candidates(), VolumeKind::Any, None, None).unwrap();
        assert_eq!(all.targets.len(), 6);
    }

    /// S539.
    #[test]
    fn neighbours_are_behind_different_switches_unless_nodes_are_listed() {
        let mut candidates = candidates();
        for volume in &mut candidates {
            volume.switch = Some(if volume.node == NodeId(2) { "b" } else { "a" }.into());
        }
        let order = |nodes: Option<&str>| -> Vec<u32> {
            let nodes = nodes.map(|text| text.parse().unwrap());
            let chosen = choose(&candidates, VolumeKind::Memory, nodes.as_ref(), None).unwrap();
            chosen.targets.iter().map(|target| target.0).collect()
        };
        assert_eq!(order(None), [0, 2, 1]);
        assert_eq!(order(Some("3")), [0, 2, 1]);
        assert_eq!(order(Some("0-2")), [0, 1, 2]);
    }

    #[test]
    fn what_is_not_there_is_said() {
        assert!(targets(VolumeKind::Any, "3,").unwrap_err().contains("node 3 is not there"));
        assert!(targets(VolumeKind::Any, "4").unwrap_err().contains("4 nodes are asked for, and 3"));
        let memory: Vec<Candidate> = candidates().into_iter().take(3).collect();
        let refusal = choose(&memory, VolumeKind::Disk, None, None).unwrap_err();
        assert!(refusal.contains("has a volume in disk"), "{refusal}");
        assert!(choose(&[], VolumeKind::Any, None, None).unwrap_err().contains("no node answers"));
    }

    #[test]
    fn the_number_of_nodes_is_computed_and_said() {
        let sized = |gib: u64, keep| {
            let sizing = Sizing { bytes: gib * G, keep };
            let chosen = choose(&candidates(), VolumeKind::Memory, None, Some(sizing)).unwrap();
            (chosen.targets.len(), chosen.reason.unwrap())
        };
        assert_eq!(sized(15, 0.8), (2, "2 of 3 nodes: F·k/D = 15 GiB / (0.8 · 10 GiB) = 1.88".into()));
        assert_eq!(sized(1, 1.0).0, 1);
        let (count, reason) = sized(100, 0.5);
        assert!(
            count == 3 && reason.ends_with("more than there are: 15 GiB fit into this part of them"),
            "{reason}"
        );
    }

    #[test]
    fn fractions_are_read() {
        assert_eq!(
            (parse_fraction("0.8"), parse_fraction("80%"), parse_fraction("1")),
            (Ok(0.8), Ok(0.8), Ok(1.0))
        );
        for bad in ["0", "-1", "1.5", "150%", "all", "NaN", "inf", ""] {
            assert!(parse_fraction(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,% .-]{0,12}") {
            if let Ok(nodes) = text.parse::<Nodes>() {
                prop_assert_eq!(nodes.to_string().parse(), Ok(nodes));
            }
            let _ = parse_fraction(&text);
        }
    }
}
