//! The hosts of a formation that is recovered: each says which nodes it was, in whatever order it comes.

use bivouac_launch::recovery_notes::older_host;
use bivouac_launch::{HostLife, NodeLife, NodeState, VolumeState};
use bivouac_types::Ino;
use bivouac_wire::rendezvous::PreviousPart;
use bivouac_wire::{FormationMap, NodeEntry};

use super::Keeper;
use super::forming::node_state;

/// A host that is there: what it is called, how many nodes it brings, and what it was.
#[derive(Clone, Copy)]
struct RecoveredHost<'a> {
    host: &'a str,
    nodes: usize,
    past: &'a PreviousPart,
}

impl Keeper {
    /// Returns the map that it had, with addresses of now.
    pub(super) fn place_again(&mut self) -> Result<FormationMap, String> {
        let mut map = map_of(&self.came())?;
        let missing = missing(&map, &self.came());
        self.check_lives()?;
        if !missing.is_empty() {
            let what = what_is_lost(&map, &missing);
            if self.plan.min_nodes.is_none() {
                let remedy = "bring them back, with all hosts named; or go on without them: --min-nodes";
                return Err(format!("{what}; {remedy}"));
            }
            // Without the root directory no path leads anywhere, so nothing that is left could be used.
            if map.home(Ino::ROOT).is_some_and(|home| missing.contains(&home.0)) {
                let remedy =
                    "bring it back, or rebuild files: bivouac fsck --from-subfiles VOLUME... --out DIR";
                return Err(format!(
                    "{what}; the root directory is there, so nothing could be reached; {remedy}"
                ));
            }
            log::warn!(error:% = what; "{what}");
        }
        let mut nodes: Vec<NodeState> =
            (0..).zip(&map.nodes).map(|(id, node)| gone(&map, id, node)).collect();
        for (index, host, join) in self.inventory.here() {
            let Some(past) = self.pasts.get(&index) else { continue };
            let ids = past.first_node..past.first_node + join.nodes.len() as u16;
            for (id, node) in ids.clone().zip(&join.nodes) {
                let new = node_state(id, &host.name, join, node);
                if let Some(entry) = map.nodes.get_mut(usize::from(id)) {
                    entry.host.clone_from(&new.host);
                    entry.client_address.clone_from(&new.client_address);
                    entry.peer_address.clone_from(&new.peer_address);
                    entry.unix_path = new.unix_path.display().to_string();
                }
                if let Some(known) = nodes.get_mut(usize::from(id)) {
                    *known = new;
                }
            }
            if let Some(state) = self.state.hosts.get_mut(index) {
                (state.life, state.nodes) = (HostLife::Up, ids.collect());
            }
        }
        self.state.nodes = nodes;
        self.absent = missing;
        (map.is_secure, map.detects_races) = (self.plan.ticket.secure, self.plan.ticket.detect_races);
        Ok(map)
    }

    /// Refuses volumes that were away while the others were recovered.
    fn check_lives(&self) -> Result<(), String> {
        if self.plan.ticket.with_older {
            return Ok(());
        }
        let pasts: Vec<(&str, &PreviousPart)> = self.came().iter().map(|one| (one.host, one.past)).collect();
        older_host(&pasts).map_or(Ok(()), |older| {
            let remedy = "bring back volumes of one moment; or leave that host out (--hosts without it, --min-nodes); or take \
                          them as they are (--with-older): what was changed meanwhile may be old or mixed";
            Err(format!("{older}; {remedy}"))
        })
    }

    /// Returns the part of the formation that cannot be had without the missing hosts, for the message that too few are
    /// there.
    pub(super) fn what_is_missing(&self) -> String {
        let came = self.came();
        match map_of(&came) {
            Ok(map) => format!("\n{}", what_is_lost(&map, &missing(&map, &came))),
            Err(_) => String::new(),
        }
    }

    fn came(&self) -> Vec<RecoveredHost<'_>> {
        let came = self.inventory.here().filter_map(|(index, host, join)| {
            Some(RecoveredHost { host: &host.name, nodes: join.nodes.len(), past: self.pasts.get(&index)? })
        });
        came.collect()
    }
}

/// Returns the one map that all of them had, if each is other nodes of it.
fn map_of(came: &[RecoveredHost<'_>]) -> Result<FormationMap, String> {
    let first = came.first().ok_or("no host is there that has a part of it")?;
    let map = &first.past.map;
    let mut owners: Vec<Option<&str>> = vec![None; map.nodes.len()];
    for one in came {
        let theirs = &one.past.map;
        if (theirs.slots.as_slice(), theirs.targets.as_slice())
            != (map.slots.as_slice(), map.targets.as_slice())
        {
            return Err(format!(
                "hosts {} and {} do not agree on which node keeps what; use the volumes of one formation",
                first.host, one.host
            ));
        }
        let from = usize::from(one.past.first_node);
        let Some(own) = owners.get_mut(from..from + one.nodes) else {
            return Err(format!("host {} has nodes that the formation does not have", one.host));
        };
        // Two copies of one volume would both serve its slots, and each acknowledge changes that the other does not
        // have.
        if let Some(other) = own.iter().flatten().next() {
            return Err(format!(
                "hosts {other} and {} both have node {from}: one is a copy; name one",
                one.host
            ));
        }
        own.fill(Some(one.host));
    }
    Ok(map.clone())
}

/// Returns the nodes that no host is.
fn missing(map: &FormationMap, came: &[RecoveredHost<'_>]) -> Vec<u16> {
    let is_there = |id: u16| {
        came.iter().any(|one| (one.past.first_node..one.past.first_node + one.nodes as u16).contains(&id))
    };
    (0..map.nodes.len() as u16).filter(|id| !is_there(*id)).collect()
}

/// Returns the consequences, in words.
fn what_is_lost(map: &FormationMap, missing: &[u16]) -> String {
    let name = |id: &u16| {
        let host = map.nodes.get(usize::from(*id)).map_or("?", |node| node.host.as_str());
        format!("node {id} of host {host}")
    };
    let nodes: Vec<String> = missing.iter().map(name).collect();
    let is_theirs = |node: u16| missing.contains(&node);
    let slots = map.slots.iter().filter(|node| is_theirs(node.0)).count();
    let targets = map.targets.iter().filter(|target| is_theirs(target.node.0)).count();
    format!(
        "missing: {}; without that, {} % of all names, attributes and sizes and {targets} of {} parts of the content of files cannot \
         be reached (EIO)",
        nodes.join(", "),
        (100 * slots).div_ceil(map.slots.len().max(1)),
        map.targets.len(),
    )
}

/// Returns a node that will not come: its volumes are not known, but how many there were.
fn gone(map: &FormationMap, id: u16, node: &NodeEntry) -> NodeState {
    let volume =
        VolumeState { path: "missing".into(), kind: "disk".into(), capacity_bytes: 0, own_dir: false };
    NodeState {
        id,
        host: node.host.clone(),
        process: None,
        life: NodeLife::Failed,
        message: Some("was missing when the formation was recovered".into()),
        deaths: 0,
        client_address: node.client_address.clone(),
        peer_address: node.peer_address.clone(),
        unix_path: node.unix_path.clone().into(),
        epoch: node.epoch,
        volumes: map.targets.iter().filter(|target| target.node.0 == id).map(|_| volume.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{FormationId, NodeId};
    use bivouac_wire::TargetEntry;

    /// Four nodes on hosts h0 to h3.
    fn map() -> FormationMap {
        let node = |id: u16| NodeEntry {
            host: format!("h{id}"),
            client_address: format!("127.0.0.1:{}", 2 * id + 1),
            peer_address: format!("127.0.0.1:{}", 2 * id + 2),
            unix_path: format!("/run/n{id}"),
            epoch: 0,
        };
        FormationMap {
            version: 1,
            formation: FormationId([7; 16]),
            name: "sample".into(),
            slots: (0..16).map(|slot| NodeId(slot % 4)).collect(),
            nodes: (0..4).map(node).collect(),
            targets: (0..4).map(|node| TargetEntry { node: NodeId(node), volume: 0 }).collect(),
            stripe: 1 << 20,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: Vec::new(),
        }
    }

    fn past(first_node: u16) -> PreviousPart {
        PreviousPart { first_node, map: map(), lives: Vec::new(), served: None }
    }

    #[test]
    fn hosts_are_who_they_were_in_any_order() {
        let (a, b, c) = (past(3), past(0), past(1));
        let came = |host, nodes, past| RecoveredHost { host, nodes, past };
        let mut all = vec![came("x", 1, &a), came("y", 1, &b)];
        assert_eq!(map_of(&all).unwrap(), map());
        assert_eq!(missing(&map(), &all), [1, 2]);
        all.push(came("z", 2, &c));
        assert_eq!((map_of(&all).is_ok(), missing(&map(), &all)), (true, vec![]));
        let says = |came: &[RecoveredHost<'_>]| map_of(came).unwrap_err();
        assert!(says(&[]).contains("no host is there"));
        assert!(says(&[all[1], all[1]]).contains("hosts y and y both have node 0"));
        assert!(says(&[came("x", 2, &a)]).contains("nodes that the formation does not have"));
        let mut other = past(2);
        other.map.slots.reverse();
        assert!(says(&[all[0], came("z", 1, &other)]).contains("hosts x and z do not agree"));
    }

    /// S593.
    #[test]
    fn a_host_that_was_away_is_told() {
        let of = |lives: &[u64], served| PreviousPart { lives: lives.into(), served, ..past(0) };
        let (now, begun) = (of(&[1, 2], Some(2)), of(&[1, 2], Some(1)));
        assert_eq!(older_host(&[("a", &now), ("b", &begun)]), None);
        let away = of(&[1], Some(1));
        let says = "host c are older than those of a: the formation was recovered since without";
        assert!(older_host(&[("a", &now), ("b", &begun), ("c", &away)]).unwrap().contains(says));
        assert!(older_host(&[("c", &away), ("a", &now)]).unwrap().contains(says));
        assert_eq!(older_host(&[("c", &away), ("b", &begun)]), None, "the last life was not served");
    }

    #[test]
    fn what_is_lost_with_a_host_is_said() {
        let text = what_is_lost(&map(), &[1, 3]);
        let says = "missing: node 1 of host h1, node 3 of host h3; without that, 50 % of all names, attributes and sizes and 2 of 4 \
                    parts of the content of files cannot be reached (EIO)";
        assert_eq!(text, says);
    }
}
