//! Nodes of other hosts that are moved here: from the replicas that a daemon of this host has of their volumes.
//!
//! A node that moves here goes through three steps, each of which may be asked for again: the replicas are sealed, so
//! that its former daemon cannot serve any more; its sockets are opened, and whoever decides learns where; and when a
//! map says that the node is there, its daemon is started.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bivouac_wire::FormationMap;

use super::listeners::{open_here, open_ports};
use super::{Daemon, Report, Supervisor};
use crate::LaunchResult;
use crate::adopted::{AdoptedNode, Adoption};
use crate::handover::SealOutcome;
use crate::hex::to_hex;
use crate::packets;
use crate::recovery_notes::write_notes;
use crate::restarts::Event;
use crate::state::{NodeLife, NodeState, VolumeState};

impl Supervisor {
    /// Begins to take a node over, or says again where it is.
    ///
    /// # Errors
    /// Reason why this host cannot do it now; the keeper asks again.
    pub(super) fn adopt(&mut self, adoption: Adoption) -> Result<(), String> {
        let Adoption { node, epoch, backup, .. } = adoption;
        if self.phases.is_some() || self.state.stage != crate::state::Stage::Running {
            return Err("the formation is not in use here".into());
        }
        if let Some(known) = self.state.nodes.iter().rev().find(|known| known.id == node) {
            let daemon = self.daemon_of(node);
            if known.epoch == epoch && daemon.is_some() {
                // Its place may not have been written down.
                self.write_state().map_err(|error| error.to_string())?;
                self.tell_adopted(node);
                return Ok(());
            }
            // It may have moved away from here, or a move here was given up.
            if daemon.is_some_and(|index| epoch < known.epoch || !self.is_over(index)) {
                return Err(format!("node {node} is here already, in epoch {}", known.epoch));
            }
        }
        self.forget_replicas(node)?;
        let sealing = self.daemon_of(backup).and_then(|index| self.daemons.get(index));
        let asked = sealing.is_some_and(|daemon| daemon.seal(backup, node, epoch));
        if !asked {
            return Err(format!("node {backup}, which has the replicas of node {node}, does not run"));
        }
        self.adoptions.retain(|known| known.node != node);
        self.adoptions.push(adoption);
        Ok(())
    }

    /// Forgets that a node was here before, on replicas below the volumes of another one: where it is again, or is a
    /// replica again, they are not to be removed as former volumes.
    fn forget_replicas(&mut self, node: u16) -> Result<(), String> {
        let former = replicas_before(&self.state.nodes, node);
        if former.is_empty() {
            return Ok(());
        }
        for at in former {
            self.state.nodes.get_mut(at).into_iter().for_each(|known| known.volumes.clear());
        }
        self.write_state().map_err(|error| error.to_string())
    }

    /// Returns whether a daemon does not run, and is not started by itself either.
    fn is_over(&self, index: usize) -> bool {
        let runs = self.daemons.get(index).is_none_or(|daemon| daemon.running.is_some());
        !runs && self.restarts.is_over(index)
    }

    /// Takes in that the replicas of a node are sealed, or cannot be.
    pub(super) fn replica_sealed(&mut self, sealed: &SealOutcome) {
        let wanted = |known: &Adoption| (known.node, known.epoch) == (sealed.node, sealed.epoch);
        let Some(at) = self.adoptions.iter().position(wanted) else { return };
        let adoption = self.adoptions.swap_remove(at);
        let Adoption { node, epoch, volumes, .. } = &adoption;
        let dirs = match &sealed.outcome {
            Ok(dirs) if dirs.len() == volumes.len() => dirs,
            other => {
                let message = match other {
                    Ok(dirs) => {
                        format!("node {node} has {} volumes, and {} replicas", volumes.len(), dirs.len())
                    }
                    Err(message) => message.clone(),
                };
                log::error!(why:% = message; "node {node} cannot be taken over");
                return self.tell(&Report::NotAdopted { node: *node, epoch: *epoch, message });
            }
        };
        match self.open_adopted(&adoption, dirs) {
            Ok(()) => self.tell_adopted(*node),
            // Not reported: the keeper would give the node up. Its replicas are whole, what the system refuses now
            // (descriptors, room for the state) it may grant later, and the keeper asks again.
            Err(error) => log::error!(why:% = error; "node {node} cannot be taken over yet"),
        }
    }

    /// Opens the sockets of a node whose replicas are sealed. Its daemon waits for the map.
    fn open_adopted(&mut self, adoption: &Adoption, dirs: &[PathBuf]) -> LaunchResult<()> {
        let Adoption { node, epoch, volumes, .. } = adoption;
        assert_eq!(dirs.len(), volumes.len(), "replicas of node {node}, and its volumes");
        let volume = |(dir, (kind, capacity)): (&PathBuf, &(String, u64))| VolumeState {
            path: dir.clone(),
            kind: kind.clone(),
            capacity_bytes: *capacity,
            own_dir: true,
        };
        let host = self.state.nodes.first().map(|own| own.host.clone()).unwrap_or_default();
        let mut opening = self.state.clone();
        // Ports behind the first one belong to the nodes that were here from the start.
        opening.port = 0;
        opening.nodes = vec![NodeState {
            id: *node,
            host,
            process: None,
            life: NodeLife::Starting,
            message: None,
            deaths: 0,
            client_address: String::new(),
            peer_address: String::new(),
            unix_path: self.dir.node_socket(*node),
            epoch: *epoch,
            volumes: dirs.iter().zip(volumes).map(volume).collect(),
        }];
        // Of an attempt that was not written down.
        let _or_none = std::fs::remove_file(self.dir.node_socket(*node));
        let ports = open_ports(&mut opening)?;
        let handles = open_here(&opening, ports)?;
        // A supervisor that was killed may have written nodes down of which its copy has no daemon.
        let owned = self.daemons.iter().map(|daemon| daemon.nodes.end).max().unwrap_or_default();
        self.state.nodes.truncate(owned);
        self.state.nodes.append(&mut opening.nodes);
        let first = self.state.nodes.len() - 1;
        self.daemons.push(Daemon::new(first, handles));
        // Its volumes are whole: a daemon that is killed while it starts is no reason to lose them.
        let index = self.restarts.add(true);
        assert!(index + 1 == self.daemons.len(), "daemon {index} of {}", self.daemons.len());
        // What takes this part down has to know of the volumes and sockets before anybody else does.
        self.write_state()
    }

    fn tell_adopted(&mut self, node: u16) {
        let Some(known) = self.state.nodes.iter().rev().find(|known| known.id == node) else { return };
        let adopted = AdoptedNode {
            node,
            epoch: known.epoch,
            client_address: known.client_address.clone(),
            peer_address: known.peer_address.clone(),
            unix_path: known.unix_path.clone(),
            volumes: known.volumes.iter().map(|volume| volume.path.clone()).collect(),
        };
        self.tell(&Report::Adopted { adopted });
    }

    /// Takes a newer map: tells all daemons, and starts those of nodes that it has here.
    ///
    /// # Errors
    /// That it cannot be written down.
    pub(super) fn take_map(&mut self, memory: OwnedFd) -> Result<(), String> {
        let bytes: Vec<u8> = packets::from_memory(memory).map_err(|error| error.to_string())?;
        let map = bivouac_wire::Decode::from_bytes(&bytes)
            .map_err(|error: bivouac_wire::DecodeError| error.to_string());
        let map: FormationMap = map?;
        let Some(former) = self.state.map() else { return Err("there is no map yet".into()) };
        if let Err(why) = map.check_succeeds(&former) {
            // Told again, since it is not known whether it was heard.
            log::info!(why:% = why; "a map is not taken");
            if map.version == former.version {
                // A supervisor that was killed may have written it down, and nothing more.
                self.follow_map(&former);
            }
            return Ok(());
        }
        self.state.map = to_hex(&bytes);
        let written = self.write_state().and_then(|()| self.dir.write_map(&self.state));
        if let Err(error) = written {
            self.state.map = to_hex(&bivouac_wire::Encode::to_bytes(&former));
            return Err(error.to_string());
        }
        // A recovery from an older note would take what the former host has for what there was.
        write_notes(&self.state);
        self.follow_map(&map);
        self.discard_moved();
        self.try_write_state();
        Ok(())
    }

    /// Tells all daemons of a map that is written down, starts those of nodes that it has here, and ends those of nodes
    /// that it has elsewhere. It may be done again.
    pub(super) fn follow_map(&mut self, map: &FormationMap) {
        let bytes = bivouac_wire::Encode::to_bytes(map);
        self.daemons.iter_mut().for_each(|daemon| daemon.tell_map(&bytes));
        let epoch = |id: u16| map.nodes.get(usize::from(id)).map_or(0, |entry| entry.epoch);
        for index in 0..self.daemons.len() {
            let nodes: Vec<(u16, u32)> =
                self.nodes_of(index).iter().map(|node| (node.id, node.epoch)).collect();
            if nodes.iter().any(|(id, own)| epoch(*id) > *own) {
                self.retire(index);
            } else if nodes.iter().any(|(id, own)| *own > 0 && epoch(*id) == *own) {
                // Nothing happens if it runs already.
                self.event(Event::Begin(index));
            }
        }
    }

    /// Removes the volumes of nodes that have moved to another host, and serve there: they have a backup again. Before
    /// that, what is here may be all that there is.
    pub(super) fn discard_moved(&mut self) {
        let (Some(map), Some(formation)) = (self.state.map(), self.state.formation_id()) else { return };
        for at in 0..self.state.nodes.len() {
            let Some(node) = self.state.nodes.get(at).filter(|node| !node.volumes.is_empty()) else {
                continue;
            };
            let id = usize::from(node.id);
            let is_settled = map.nodes.get(id).zip(map.mirrors.get(id)).is_some_and(|(entry, mirror)| {
                entry.epoch > node.epoch && mirror.backup.is_some() && mirror.epoch > entry.epoch
            });
            // Its volumes may be those of the backup's replicas that it is to start from.
            let is_adopted = self.adoptions.iter().any(|known| known.node == node.id);
            let runs = self.daemons.iter().any(|daemon| daemon.nodes.contains(&at) && daemon.runs());
            let others = self.state.nodes.iter().enumerate().filter(|(other, _)| *other != at);
            let mut others = others.flat_map(|(_, other)| &other.volumes);
            // A node that has moved here runs on replicas below the volumes of another one.
            let holds = |path: &PathBuf| node.volumes.iter().any(|volume| path.starts_with(&volume.path));
            if !is_settled || runs || is_adopted || others.any(|other| holds(&other.path)) {
                continue;
            }
            let backup = map.mirrors.get(id).and_then(|mirror| mirror.backup);
            // The backup has its replicas there: they go with those.
            let is_replica_again =
                backup.is_some_and(|backup| is_below(&self.state.nodes, node, |other| other.id == backup.0));
            let removed =
                node.volumes.iter().filter(|_| !is_replica_again).try_for_each(|volume| {
                    bivouac_store::remove_volume(&volume.path, formation, volume.own_dir)
                });
            match &removed {
                Ok(()) if is_replica_again => {}
                Ok(()) => {
                    log::warn!("the former volumes of node {id} are removed: it serves on another host")
                }
                Err(error) => log::error!(why:% = error; "the former volumes of node {id} are not removed"),
            }
            if let Some(node) = self.state.nodes.get_mut(at).filter(|_| removed.is_ok()) {
                node.volumes.clear();
                self.changed = true;
            }
        }
    }

    /// Ends the daemon of a node that has moved to another host.
    fn retire(&mut self, index: usize) {
        let reason = "the node has moved to another host";
        log::error!("{} ends: {reason}", self.called(index));
        if let Some(daemon) = self.daemons.get_mut(index) {
            daemon.kill_now();
            daemon.drop_mounts();
            daemon.close_sockets();
        }
        self.event(Event::Retire(index));
        self.set_life(index, NodeLife::Failed, Some(reason.into()));
    }
}

/// Returns the positions of the entries of a node whose volumes are replicas: they lie below volumes of another node.
fn replicas_before(nodes: &[NodeState], node: u16) -> Vec<usize> {
    let is_replica = |known: &NodeState| known.id == node && is_below(nodes, known, |other| other.id != node);
    nodes.iter().enumerate().filter(|(_, known)| is_replica(known)).map(|(at, _)| at).collect()
}

/// Returns whether a volume of a node lies below one of such nodes.
fn is_below(nodes: &[NodeState], node: &NodeState, which: impl Fn(&NodeState) -> bool) -> bool {
    let volumes = || nodes.iter().filter(|other| which(other)).flat_map(|other| &other.volumes);
    node.volumes.iter().any(|volume| volumes().any(|other| volume.path.starts_with(&other.path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u16, epoch: u32, path: &str) -> NodeState {
        let volume =
            VolumeState { path: PathBuf::from(path), kind: "disk".into(), capacity_bytes: 1, own_dir: true };
        NodeState {
            id,
            host: "h".into(),
            process: None,
            life: NodeLife::Failed,
            message: None,
            deaths: 0,
            client_address: String::new(),
            peer_address: String::new(),
            unix_path: PathBuf::new(),
            epoch,
            volumes: vec![volume],
        }
    }

    #[test]
    fn former_volumes_that_are_replicas_are_found() {
        let (own, moved) = (node(1, 0, "/v/1"), node(2, 3, "/v/1/replica-2-0"));
        let nodes = [own, node(2, 0, "/v/2"), moved, node(3, 0, "/v/10")];
        assert_eq!(replicas_before(&nodes, 2), [2]);
        assert!(replicas_before(&nodes, 1).is_empty() && replicas_before(&nodes, 3).is_empty());
        assert!(is_below(&nodes, &nodes[2], |other| other.id == 1));
        assert!(!is_below(&nodes, &nodes[2], |other| other.id == 3), "it went to another backup");
        assert!(!is_below(&nodes, &nodes[1], |other| other.id == 1), "volumes of its own");
    }
}
