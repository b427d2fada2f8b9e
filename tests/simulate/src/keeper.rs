//! Who decides where nodes are when hosts are lost: what the keeper of a formation does, without its protocol.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bivouac_mirror::ReplicaEpoch;
use bivouac_sim_kernel as sim;
use bivouac_store::{MirrorRole, read_mirror_note, replica_dir_name};
use bivouac_types::{Errno, FormationId, FsResult, NodeId};
use bivouac_wire::{FormationMap, MirrorEntry, SealedReplica};

use crate::mounts::Serving;
use crate::ways::entry_on;
use crate::world::{NEWS, World, host, state};

/// Pause before a daemon is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for the answer of a daemon, which may have been killed.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A host that is to be lost.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// Which.
    pub host: u8,
    /// Milliseconds until its nodes move.
    pub ms: u16,
    /// Whether it lives on, and clients reach it.
    pub is_cut_off: bool,
}

/// A question to a daemon, which is asked again until it is answered as it should be.
#[derive(Debug)]
struct Question {
    /// When it is asked next.
    at: Duration,
}

/// A node that moves to the host of its backup.
#[derive(Debug)]
struct Move {
    node: u8,
    backup: u8,
    epoch: u32,
    seal: Question,
}

/// A node that is told of another backup.
#[derive(Debug)]
struct BackupChange {
    node: u8,
    mirror: MirrorEntry,
    change: Question,
}

/// What it knows and decides.
pub struct Keeper {
    /// The newest map.
    pub map: Arc<FormationMap>,
    /// Of each node, the directory of its volume, and the host that it is on.
    pub volumes: Vec<PathBuf>,
    pub places: Vec<u8>,
    /// Daemons of nodes that have moved, which live on.
    pub former: Vec<u32>,
    lost: Vec<u8>,
    losses: Vec<Loss>,
    moves: Vec<Move>,
    changes: Vec<BackupChange>,
}

impl Default for Keeper {
    fn default() -> Keeper {
        let map = FormationMap {
            version: 0,
            formation: FormationId([0; 16]),
            name: String::new(),
            slots: Vec::new(),
            nodes: Vec::new(),
            targets: Vec::new(),
            stripe: 0,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: Vec::new(),
        };
        Keeper::new(map, Vec::new())
    }
}

impl Keeper {
    /// All nodes are on their own hosts.
    pub fn new(map: FormationMap, volumes: Vec<PathBuf>) -> Keeper {
        let places = (0..map.nodes.len() as u8).collect();
        let (lost, losses, moves, changes) = Default::default();
        Keeper { map: Arc::new(map), volumes, places, former: Vec::new(), lost, losses, moves, changes }
    }

    /// Where a node is: the map, its host, its volume, and whether that was a replica.
    pub fn place_of(&self, node: u8) -> (Arc<FormationMap>, u8, PathBuf, bool) {
        let (at, map) = (usize::from(node), Arc::clone(&self.map));
        let has_moved = map.nodes[at].epoch > 0;
        (map, self.places[at], self.volumes[at].clone(), has_moved)
    }

    /// Whether nothing is under way.
    pub fn rests(&self) -> bool {
        self.losses.is_empty() && self.moves.is_empty() && self.changes.is_empty()
    }

    /// When there is something to do.
    pub fn next_time(&self, now: Duration) -> Option<Duration> {
        let seals = self.moves.iter().map(|moved| moved.seal.at);
        let changes = self.changes.iter().map(|change| change.change.at);
        let losses = self.losses.first().map(|_| now);
        seals.chain(changes).chain(losses).min()
    }

    fn lives(&self, host: u8) -> bool {
        !self.lost.contains(&host)
    }

    fn backup_of(&self, node: u8) -> Option<u8> {
        self.map.mirrors[usize::from(node)].backup.map(|backup| backup.0 as u8)
    }

    /// The nodes of a host, if it may be lost: each with the note of its replica, and the epoch that this has.
    fn nodes_to_lose(&self, host: u8) -> Option<Vec<(u8, PathBuf, u32)>> {
        let nodes: Vec<u8> =
            (0..self.places.len() as u8).filter(|node| self.places[usize::from(*node)] == host).collect();
        let replica = |node: u8| {
            let backup = self.backup_of(node)?;
            let place = self.places[usize::from(backup)];
            let dir = self.volumes[usize::from(backup)].join(replica_dir_name(NodeId(u16::from(node)), 0));
            let is_elsewhere = place != host && self.lives(place);
            is_elsewhere.then_some((node, dir, self.map.mirrors[usize::from(node)].epoch))
        };
        let may_be = self.lives(host) && self.moves.is_empty() && !nodes.is_empty();
        if may_be { nodes.into_iter().map(replica).collect() } else { None }
    }

    /// Gives a node another backup on a host that lives, or none.
    fn change_backup(&mut self, node: u8, at: Duration) {
        let place = self.places[usize::from(node)];
        let count = self.places.len() as u8;
        let mut others = (1..count).map(|step| (node + step) % count);
        let backup = others.find(|other| {
            let there = self.places[usize::from(*other)];
            there != place && self.lives(there) && !self.moves.iter().any(|moved| moved.node == *other)
        });
        let mut map = FormationMap::clone(&self.map);
        let mirror = &mut map.mirrors[usize::from(node)];
        *mirror = MirrorEntry { backup: backup.map(|node| NodeId(u16::from(node))), epoch: mirror.epoch + 1 };
        let mirror = *mirror;
        self.map = Arc::new(map);
        self.changes.retain(|change| change.node != node);
        self.changes.push(BackupChange { node, mirror, change: Question { at } });
    }
}

impl World {
    /// A host is to be lost; by whoever looks after nodes, if it may be.
    pub fn ask_for_loss(&'static self, loss: Loss) {
        if self.scenario.mirrored {
            state().keeper.losses.push(loss);
            sim::wake_all(NEWS);
        }
    }

    /// Does what a keeper has to do now.
    pub fn keep(&'static self) {
        let losses = std::mem::take(&mut state().keeper.losses);
        losses.into_iter().for_each(|loss| self.lose(loss));
        let now = sim::now();
        let (mut seals, mut changes) = (Vec::new(), Vec::new());
        {
            let mut state = state();
            let keeper = &mut state.keeper;
            for moved in keeper.moves.iter_mut().filter(|moved| moved.seal.at <= now) {
                moved.seal.at = now + ANSWER_MAX;
                seals.push((moved.node, moved.backup, moved.epoch));
            }
            for change in keeper.changes.iter_mut().filter(|change| change.change.at <= now) {
                change.change.at = now + ANSWER_MAX;
                changes.push((change.node, change.mirror));
            }
        }
        for (node, backup, epoch) in seals {
            let seal = move |serving: &Serving| serving.node.seal_replica(NodeId(u16::from(node)), epoch);
            self.ask(backup, seal, move |sealed| self.sealed(node, epoch, sealed), move || retry_seal(node));
        }
        for (node, mirror) in changes {
            let change = move |serving: &Serving| serving.node.set_backup(mirror.epoch, mirror.backup);
            self.ask(
                node,
                change,
                move |set| backup_is_set(node, mirror.epoch, set),
                move || retry_change(node),
            );
        }
    }

    /// Asks the daemon of a node, in a thread of its own, and goes on with the answer; without a daemon, at once.
    fn ask<T: Send + 'static>(
        &'static self,
        node: u8,
        question: impl FnOnce(&'static Serving) -> T + Send + 'static,
        then: impl FnOnce(T) + Send + 'static,
        otherwise: impl FnOnce(),
    ) {
        let (process, serving) = {
            let state = state();
            let daemon = &state.nodes[usize::from(node)];
            (daemon.process, daemon.node.filter(|_| daemon.start_at.is_none()))
        };
        let Some(serving) = serving.filter(|_| sim::is_alive(process)) else { return otherwise() };
        let thread = std::thread::Builder::new().name("asked".into());
        let run = move || {
            then(question(serving));
            sim::wake_all(NEWS);
        };
        drop(sim::spawn_in(process, || thread.spawn(run)));
    }

    /// Loses a host, if all of its nodes can move.
    fn lose(&'static self, loss: Loss) {
        let nodes = state().keeper.nodes_to_lose(loss.host);
        // Without the lock: reading is a step in which others go on.
        let Some(nodes) = nodes.filter(|nodes| nodes.iter().all(|(_, dir, epoch)| is_complete(dir, *epoch)))
        else {
            return;
        };
        let processes = {
            let mut state = state();
            if state.calm {
                return;
            }
            let at = sim::now() + Duration::from_millis(u64::from(loss.ms));
            let mut processes = Vec::new();
            for (node, ..) in &nodes {
                let daemon = &mut state.nodes[usize::from(*node)];
                processes.push(daemon.process);
                (daemon.process, daemon.start_at, daemon.node) = (0, None, None);
            }
            let keeper = &mut state.keeper;
            keeper.lost.push(loss.host);
            for (node, _, epoch) in nodes {
                let (backup, epoch) = (keeper.backup_of(node).unwrap_or(node), epoch + 1);
                keeper.changes.retain(|change| change.node != node);
                keeper.moves.push(Move { node, backup, epoch, seal: Question { at } });
            }
            let here = |node: u8| keeper.places[usize::from(node)] == loss.host;
            let left: Vec<u8> = (0..self.scenario.nodes)
                .filter(|node| !here(*node) && keeper.backup_of(*node).is_some_and(here))
                .collect();
            left.into_iter().for_each(|node| keeper.change_backup(node, at));
            if loss.is_cut_off {
                keeper.former.extend(&processes);
            }
            processes
        };
        sim::log_line(&format!("host {} is lost: {loss:?}", loss.host));
        if loss.is_cut_off {
            for other in (0..self.scenario.nodes).filter(|other| *other != loss.host) {
                sim::cut(host(loss.host), host(other));
                sim::cut(host(other), host(loss.host));
            }
        } else {
            processes.into_iter().for_each(sim::kill);
        }
    }

    /// A replica was sealed, or was not: the node is started from it once its former daemon serves nothing.
    fn sealed(&'static self, node: u8, epoch: u32, sealed: FsResult<SealedReplica>) {
        let sealed = match sealed {
            Ok(sealed) if sealed.wait_ms == 0 => sealed,
            Ok(sealed) => return ask_at(node, Duration::from_millis(u64::from(sealed.wait_ms))),
            Err(error) => {
                sim::log_line(&format!("the replica of node {node} is not sealed: {error}"));
                if error.errno() == Errno::EAGAIN {
                    sim::fail(&format!("a replica that was complete is not any more: {error}"));
                }
                return ask_at(node, PAUSE);
            }
        };
        let map = {
            let mut state = state();
            let keeper = &mut state.keeper;
            let Some(at) = keeper.moves.iter().position(|moved| (moved.node, moved.epoch) == (node, epoch))
            else {
                return;
            };
            let moved = keeper.moves.remove(at);
            let (at, place) = (usize::from(node), keeper.places[usize::from(moved.backup)]);
            let mut map = FormationMap::clone(&keeper.map);
            (map.version, map.nodes[at]) = (map.version + 1, entry_on(node, place, epoch));
            map.mirrors[at] = MirrorEntry { backup: None, epoch };
            keeper.map = Arc::new(map);
            (keeper.places[at], keeper.volumes[at]) = (place, PathBuf::from(&sealed.volumes[0]));
            keeper.change_backup(node, sim::now());
            let map = Arc::clone(&keeper.map);
            state.nodes[at].start_at = Some(sim::now());
            map
        };
        sim::log_line(&format!("node {node} moves, in epoch {epoch}"));
        for other in (0..self.scenario.nodes).filter(|other| *other != node) {
            let map = Arc::clone(&map);
            self.ask(other, move |serving| serving.node.take_map(&map), drop, || {});
        }
    }
}

/// Returns whether a replica has everything, in this epoch.
fn is_complete(dir: &Path, now: u32) -> bool {
    let Ok(Some(note)) = read_mirror_note(dir) else { return false };
    let is_it = |epoch: ReplicaEpoch| epoch.is_complete && !epoch.is_sealed && epoch.epoch == now;
    matches!(note.role, MirrorRole::Replica { epoch, .. } if is_it(epoch))
}

/// The replica of a node is sealed again.
fn ask_at(node: u8, pause: Duration) {
    if let Some(moved) = state().keeper.moves.iter_mut().find(|moved| moved.node == node) {
        moved.seal.at = sim::now() + pause;
    }
}

fn retry_seal(node: u8) {
    ask_at(node, PAUSE);
}

fn retry_change(node: u8) {
    if let Some(change) = state().keeper.changes.iter_mut().find(|change| change.node == node) {
        change.change.at = sim::now() + PAUSE;
    }
}

fn backup_is_set(node: u8, epoch: u32, set: FsResult<()>) {
    match set {
        Ok(()) => {
            let is_it = |change: &BackupChange| (change.node, change.mirror.epoch) == (node, epoch);
            state().keeper.changes.retain(|change| !is_it(change));
        }
        Err(error) => {
            sim::log_line(&format!("node {node} does not take its backup: {error}"));
            retry_change(node);
        }
    }
}

/// How long those may wait who look after nodes.
pub fn next_time(now: Duration) -> Option<Duration> {
    let state = state();
    let starts = state.nodes.iter().filter_map(|daemon| daemon.start_at);
    let next = starts.chain(state.keeper.next_time(now)).min();
    next.map(|at| at.saturating_sub(now) + Duration::from_micros(1))
}
