//! State file of a running formation, by which every later command, also after a crash, knows what there is.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use bivouac_types::limits::{DEAD_AFTER_MS_DEFAULT, PAGE_POOL_DEFAULT};
use bivouac_types::{Checksum, FormationId, SpreadAt};
use bivouac_wire::{Decode, FormationMap};
use serde::{Deserialize, Serialize};

use crate::hex::{formation_from_hex, from_hex};
use crate::http_options::HttpWish;
use crate::log_events::LogFormat;
use crate::name::FormationName;
use crate::process::ProcessId;
use crate::protection::Protection;
use crate::reach::{Domains, HostAccess};
use crate::restarts::RestartLimit;
use crate::{Kind, LaunchError, LaunchResult};

/// Version of the state file; raised by every change that an older release would misunderstand.
pub const STATE_VERSION: u32 = 1;
/// The release that this is.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Stage of a formation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Not all daemons have been ready yet.
    Starting,
    /// In use.
    Running,
    /// Going down.
    Stopping,
}

/// State of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeLife {
    /// Started, not yet ready.
    Starting,
    /// Serving.
    Ready,
    /// Dead, to be started again.
    Restarting,
    /// Dead for good.
    Failed,
    /// Ended by `down`.
    Stopped,
}

impl NodeLife {
    /// Name of the state, as reports and the state file have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NodeLife::Starting => "starting",
            NodeLife::Ready => "ready",
            NodeLife::Restarting => "restarting",
            NodeLife::Failed => "failed",
            NodeLife::Stopped => "stopped",
        }
    }

    /// Returns the state of this name; for any other name that of a daemon that is dead for good.
    #[must_use]
    pub fn named(name: &str) -> NodeLife {
        let all = [NodeLife::Starting, NodeLife::Ready, NodeLife::Restarting, NodeLife::Stopped];
        all.into_iter().find(|life| life.name() == name).unwrap_or(NodeLife::Failed)
    }
}

/// The state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormationState {
    /// [`STATE_VERSION`] of the release that wrote it.
    pub version: u32,
    /// Its release.
    pub release: String,
    /// The formation's name.
    pub name: FormationName,
    /// Its id, 32 hexadecimal digits.
    pub formation: String,
    /// Time when it was begun, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Its stage.
    pub stage: Stage,
    /// The supervisor.
    pub supervisor: Option<ProcessId>,
    /// Reason why it must not be taken down without being told to discard its data.
    pub keep: Option<String>,
    /// Site storage that does not have all that was written, unless somebody has looked that it has.
    #[serde(default)]
    pub sources: Option<String>,
    /// Reason why it failed, if it did.
    pub message: Option<String>,
    /// State when it was killed, until it is usable again: a recovery that is killed as well forgets nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Box<FormationState>>,
    /// The process that it was made for: it ends with that one.
    #[serde(default)]
    pub owner: Option<ProcessId>,
    /// Time when it ends by itself, in milliseconds since 1970.
    #[serde(default)]
    pub ends_unix_ms: Option<u64>,
    /// Time that clients wait for a node, in milliseconds.
    pub wait_ms: u64,
    /// After how long a node that does not answer is dead, in milliseconds, if that was chosen.
    #[serde(default)]
    pub dead_after_ms: Option<u64>,
    /// First port to listen on; 0 for any free ones.
    pub port: u16,
    /// True if one daemon is all nodes of this machine.
    #[serde(default)]
    pub in_process: bool,
    /// True if all that goes over the network is encrypted.
    #[serde(default)]
    pub secure: bool,
    /// True if races are detected.
    #[serde(default)]
    pub detect_races: bool,
    /// Protection of the volumes.
    #[serde(default, with = "crate::text")]
    pub protect: Protection,
    /// The server for HTTP, if there is to be one.
    #[serde(default)]
    pub http: Option<HttpState>,
    /// The gateway of links, if there is to be one.
    #[serde(default)]
    pub gateway: Option<GatewayState>,
    /// Deaths after which a daemon is started no more.
    #[serde(default)]
    pub tolerance: RestartLimit,
    /// Stripe size of new files, in bytes.
    pub stripe: u32,
    /// Width of new files; 0 is all targets.
    pub width: u16,
    /// Entries from which on a directory spreads over all nodes.
    #[serde(default, with = "crate::text")]
    pub spread_at: SpreadAt,
    /// Volumes on which blocks of new subfiles get checksums.
    #[serde(default, with = "crate::text")]
    pub checksum: Checksum,
    /// Bytes that each mount has for pages under the session contract.
    #[serde(default = "page_pool_default")]
    pub page_pool: u64,
    /// Limit of the memory for the records of each node here, in bytes.
    #[serde(default = "unbounded")]
    pub names_memory: u64,
    /// True if daemons of a host are kept on the parts of it that are near to their volumes.
    #[serde(default)]
    pub numa: bool,
    /// Form of its processes' logs.
    #[serde(default, with = "crate::text")]
    pub log_format: LogFormat,
    /// The map as it is sent, hexadecimal; empty until the ports are known.
    pub map: String,
    /// The nodes, by id.
    pub nodes: Vec<NodeState>,
    /// Nodes of other hosts that are dead for good.
    #[serde(default)]
    pub lost_elsewhere: Vec<u16>,
    /// Directories that were made to hold volumes or to be mounted on; to be removed in the end.
    pub own_dirs: Vec<PathBuf>,
    /// The mounts.
    pub mounts: Vec<MountState>,
    /// Relation to the whole, when the formation is over several hosts and this is the part on one of them.
    #[serde(default)]
    pub part: Option<PartState>,
    /// Of the whole of a formation over several hosts: the host that its keeper runs on.
    #[serde(default)]
    pub kept_on: Option<String>,
    /// The hosts, when this is the whole of a formation over several, as the one who started it sees it.
    #[serde(default)]
    pub hosts: Vec<HostState>,
    /// The latest move of each node whose host was lost or leaves, when this is the whole of a formation over several
    /// hosts.
    #[serde(default)]
    pub moves: Vec<NodeMove>,
    /// Hosts that leave in order, when this is the whole of a formation over several hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub departures: Vec<Departure>,
    /// Hosts that join, or have joined, when this is the whole of a formation over several hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrivals: Vec<Arrival>,
    /// Position of the host that the keeper runs on, if that is one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_host: Option<usize>,
    /// The keeper and those that can succeed it, when this is the whole of a protected formation over several hosts.
    #[serde(default)]
    pub keepers: Option<KeeperGroup>,
    /// Way in which its hosts were reached, of one over several.
    #[serde(default)]
    pub reach: Option<HostAccess>,
    /// Number of times that it was recovered after all of its processes had been killed.
    #[serde(default)]
    pub recoveries: u32,
    /// True if that is being done: its daemons end what clients had, all of which are dead.
    #[serde(default)]
    pub recovering: bool,
}

/// The keepers of a protected formation over several hosts: the one there is, and those that can succeed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperGroup {
    /// Term of the keeper that wrote this.
    pub term: u32,
    /// Number of the newest record that it has written, which says this.
    pub version: u64,
    /// Positions of the hosts that vote; none if the keeper decides alone.
    pub voters: Vec<u16>,
    /// Hosts that voted before a change of voters, until that is accepted.
    pub former: Vec<u16>,
    /// Hosts that can vote and run the keeper.
    pub places: Vec<KeeperPlace>,
}

/// A host that can vote and run the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperPlace {
    /// Its position.
    pub host: u16,
    /// `address:port` where it is asked for its vote.
    pub vote_address: String,
    /// `address:port` of a keeper there.
    pub keeper_address: String,
}

/// Move of a node whose host was lost, or leaves, to the host of its backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMove {
    /// The node.
    pub node: u16,
    /// Position of the host that was lost, or leaves.
    pub from: usize,
    /// Position of the host that it goes to.
    pub to: usize,
    /// The node there that has the replicas.
    pub backup: u16,
    /// Mirror epoch of the node from then on.
    pub epoch: u32,
    /// Time when it was decided, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// The last completed stage.
    pub stage: MoveStage,
    /// Reason why it failed, or why it takes time.
    pub message: Option<String>,
    /// True if the host leaves in order: the node serves there until its replicas are sealed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_planned: bool,
}

/// Departure of a host that leaves the formation in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// Position of the host.
    pub host: usize,
    /// The first of its nodes, by which it says who it is when it connects anew.
    pub first_node: u16,
    /// True if its mounts are taken away also from programs that use them.
    pub is_forced: bool,
    /// Last step that was completed.
    pub stage: DepartureStage,
    /// The thing it waits for, or the reason why it was given up.
    pub message: Option<String>,
}

/// Stage of a departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DepartureStage {
    /// Replicas of other nodes that are there are made on hosts that stay.
    Copying,
    /// Its mounts are taken away.
    Unmounting,
    /// Its nodes move, one after the other.
    Moving,
    /// No node runs there any more: it takes its part down.
    Leaving,
    /// It stays, as too few hosts would be left.
    GivenUp,
}

impl DepartureStage {
    /// Name of the stage, as reports have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DepartureStage::Copying => "copying",
            DepartureStage::Unmounting => "unmounting",
            DepartureStage::Moving => "moving",
            DepartureStage::Leaving => "leaving",
            DepartureStage::GivenUp => "given-up",
        }
    }
}

/// Arrival of a host that joins a running formation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Position of the host.
    pub host: usize,
    /// The node that it brings, once the map has it.
    pub node: Option<u16>,
    /// Last step that was begun.
    pub stage: ArrivalStage,
    /// The thing it waits for, or the reason why it was given up.
    pub message: Option<String>,
    /// Time when it was asked for, in milliseconds since 1970.
    pub since_unix_ms: u64,
}

/// Stage of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrivalStage {
    /// The launcher starts the host's part.
    Calling,
    /// The map has its node, whose daemon starts.
    Starting,
    /// The formation is mounted there.
    Mounting,
    /// Nodes move to hosts that run fewer, and replicas to hosts that keep fewer.
    Balancing,
    /// It is part of the formation.
    Done,
    /// It did not come up, or was lost on the way.
    GivenUp,
}

impl ArrivalStage {
    /// Name of the stage, as reports have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ArrivalStage::Calling => "calling",
            ArrivalStage::Starting => "starting",
            ArrivalStage::Mounting => "mounting",
            ArrivalStage::Balancing => "balancing",
            ArrivalStage::Done => "joined",
            ArrivalStage::GivenUp => "given-up",
        }
    }
}

/// Stage of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveStage {
    /// The replicas are being sealed.
    Sealing,
    /// The map says where the node is; its daemon starts there.
    Starting,
    /// The node serves.
    Serving,
    /// The node is lost for good.
    Failed,
}

/// Relation of one host's part of a formation to the whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartState {
    /// The address of this host that the nodes listen at.
    pub bind: IpAddr,
    /// Host that the formation was started from, for messages.
    pub started_from: String,
    /// True if the whole is being recovered, and is not again yet: what ends this part leaves its volumes as they are.
    #[serde(default)]
    pub leaves_volumes: bool,
}

/// One host of a formation over several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    /// The launcher's name for it.
    pub name: String,
    /// Its state.
    pub life: HostLife,
    /// Reason why it is not up, or its problem.
    pub message: Option<String>,
    /// Its nodes.
    pub nodes: Vec<u16>,
    /// Mount point of the formation there.
    pub mount: Option<PathBuf>,
}

/// State of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostLife {
    /// Called.
    Called,
    /// Part of the formation.
    Up,
    /// It never reported.
    Missing,
    /// It was part of the formation, and is gone.
    Lost,
    /// It was part of the formation, and has left in order.
    Left,
}

fn page_pool_default() -> u64 {
    PAGE_POOL_DEFAULT
}

fn unbounded() -> u64 {
    u64::MAX
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// Position in the map.
    pub id: u16,
    /// Its host.
    pub host: String,
    /// Its daemon; others' as well where nodes share a process.
    pub process: Option<ProcessId>,
    /// Its state.
    pub life: NodeLife,
    /// End of the last daemon, if one ended.
    pub message: Option<String>,
    /// Daemons that died.
    pub deaths: u64,
    /// `address:port` of the client lane.
    pub client_address: String,
    /// `address:port` of the peer lane.
    pub peer_address: String,
    /// Unix socket of the client lane.
    pub unix_path: PathBuf,
    /// Mirror epoch in which it moved to its host; 0 if it was started there.
    #[serde(default)]
    pub epoch: u32,
    /// Its volumes, by index.
    pub volumes: Vec<VolumeState>,
}

/// The server of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpState {
    /// The options.
    pub wish: HttpWish,
    /// Its address, once that is known.
    pub address: Option<SocketAddr>,
    /// Its process.
    pub process: Option<ProcessId>,
    /// Its state.
    pub life: NodeLife,
    /// End of its last process, if one ended.
    pub message: Option<String>,
    /// Processes that died.
    pub deaths: u64,
}

/// The gateway of this host, which other formations link to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayState {
    /// The address that it is to listen on.
    pub wish: SocketAddr,
    /// Its address, once that is known.
    pub address: Option<SocketAddr>,
    /// Its process.
    pub process: Option<ProcessId>,
    /// Its state.
    pub life: NodeLife,
    /// End of its last process, if one ended.
    pub message: Option<String>,
    /// Processes that died.
    pub deaths: u64,
}

impl From<SocketAddr> for GatewayState {
    fn from(wish: SocketAddr) -> GatewayState {
        let (address, process, message, deaths) = Default::default();
        GatewayState { wish, address, process, life: NodeLife::Starting, message, deaths }
    }
}

/// State of a supervised server that is no node.
pub(crate) struct ServerState<'a> {
    /// Its process.
    pub process: &'a mut Option<ProcessId>,
    /// Its state.
    pub life: &'a mut NodeLife,
    /// End of its last process.
    pub message: &'a mut Option<String>,
    /// Processes that died.
    pub deaths: &'a mut u64,
}

impl HttpState {
    pub(crate) fn server(&mut self) -> ServerState<'_> {
        let HttpState { process, life, message, deaths, .. } = self;
        ServerState { process, life, message, deaths }
    }
}

impl GatewayState {
    pub(crate) fn server(&mut self) -> ServerState<'_> {
        let GatewayState { process, life, message, deaths, .. } = self;
        ServerState { process, life, message, deaths }
    }
}

impl From<HttpWish> for HttpState {
    fn from(wish: HttpWish) -> HttpState {
        HttpState { wish, address: None, process: None, life: NodeLife::Starting, message: None, deaths: 0 }
    }
}

/// A volume as it was planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeState {
    /// The directory.
    pub path: PathBuf,
    /// `memory` or `disk`.
    pub kind: String,
    /// Most bytes it may hold.
    pub capacity_bytes: u64,
    /// True if the directory is ours to make and to remove.
    pub own_dir: bool,
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountState {
    /// Number within the formation.
    pub id: u32,
    /// Its location.
    pub dir: PathBuf,
    /// The node that serves it.
    pub node: u16,
    /// The number of its connection, by which the kernel's table tells it from others at that place.
    #[serde(default)]
    pub connection: u32,
    /// Trouble with its place, if there is any: it was taken away there, or covered.
    #[serde(default)]
    pub trouble: Option<String>,
}

impl FormationState {
    /// Returns whether a host is not shown any more: it was to join and has not, or another one has its name by now.
    #[must_use]
    pub fn is_former_host(&self, at: usize) -> bool {
        let Some(host) = self.hosts.get(at) else { return false };
        let was_to_join =
            host.life == HostLife::Missing && self.arrivals.iter().any(|known| known.host == at);
        let mut later = self.hosts.iter().enumerate().skip(at + 1);
        let is_named = |other: &HostState| other.name.eq_ignore_ascii_case(&host.name);
        was_to_join || later.any(|(at, other)| is_named(other) && !self.was_given_up(at))
    }

    fn was_given_up(&self, host: usize) -> bool {
        self.arrivals.iter().any(|known| known.host == host && known.stage == ArrivalStage::GivenUp)
    }

    /// Returns arrivals that are under way.
    pub fn arriving(&self) -> impl Iterator<Item = &Arrival> {
        self.arrivals.iter().filter(|arrival| arrival.stage < ArrivalStage::Done)
    }

    /// Departures that are under way.
    pub fn leaving(&self) -> impl Iterator<Item = &Departure> {
        self.departures.iter().filter(|departure| departure.stage != DepartureStage::GivenUp)
    }

    /// Returns the failure domains of the hosts, if they are known.
    #[must_use]
    pub fn domains(&self) -> Option<&Domains> {
        self.reach.as_ref()?.domains.as_ref()
    }

    /// Returns whether it is a part whose volumes stay as they are when it ends, since the whole is not recovered yet.
    #[must_use]
    pub fn leaves_volumes(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.leaves_volumes)
    }

    /// Returns the reason why its data is to be kept, if it is.
    #[must_use]
    pub fn why_kept(&self) -> Option<String> {
        let sources =
            self.sources.as_ref().map(|which| format!("what was written and not flushed in {which}"));
        let reasons: Vec<String> = self.keep.iter().cloned().chain(sources).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Reads a state file's text.
    ///
    /// # Errors
    /// For text of another version or none.
    pub fn parse(text: &[u8], path: &std::path::Path) -> LaunchResult<FormationState> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
            release: String,
        }
        let damaged = |error: serde_json::Error| {
            let cause = format_args!("is damaged: {error}").to_string();
            LaunchError::new(
                Kind::Refused,
                path.display(),
                cause,
                "end its processes and remove the directory",
            )
        };
        // The head alone first: the rest of another version need not be readable.
        let head: Head = serde_json::from_slice(text).map_err(damaged)?;
        if head.version != STATE_VERSION {
            let cause = format!(
                "was written by bivouac {} (state version {}), this is {RELEASE} (version {STATE_VERSION})",
                head.release, head.version
            );
            return Err(LaunchError::new(
                Kind::Refused,
                path.display(),
                cause,
                "use that release for this formation",
            ));
        }
        serde_json::from_slice(text).map_err(damaged)
    }

    /// Returns the map, once the ports are known.
    #[must_use]
    pub fn map(&self) -> Option<FormationMap> {
        let map = FormationMap::from_bytes(&from_hex(&self.map)?).ok()?;
        map.check().is_ok().then_some(map)
    }

    /// Returns after how long a node that does not answer is dead, in milliseconds; never if nodes do not watch each
    /// other. On one host they need not: their supervisor knows who has died, without waking anybody up.
    #[must_use]
    pub fn watching_ms(&self) -> Option<u64> {
        let elsewhere = self.map().is_some_and(|map| map.nodes.len() > self.nodes.len());
        self.dead_after_ms.or((elsewhere || self.is_over_hosts()).then_some(DEAD_AFTER_MS_DEFAULT))
    }

    /// Returns true if a node of a whole formation is dead for good.
    #[must_use]
    pub fn is_given_up(&self, node: u16) -> bool {
        self.nodes.get(usize::from(node)).is_some_and(|node| node.life == NodeLife::Failed)
    }

    /// Returns the nodes that will not be started again.
    pub fn lost(&self) -> impl Iterator<Item = u16> + '_ {
        self.failed_here().map(|node| node.id).chain(self.lost_elsewhere.iter().copied())
    }

    /// Returns the nodes of this machine that will not be started again, but for those that have moved to another host.
    pub fn failed_here(&self) -> impl Iterator<Item = &NodeState> {
        let is_any = self.nodes.iter().any(|node| node.life == NodeLife::Failed);
        // Mostly there is none, and a map may be large.
        let map = if is_any { self.map() } else { None };
        let failed = self.nodes.iter().enumerate().filter(|(_, node)| node.life == NodeLife::Failed);
        failed.filter(move |(at, _)| self.is_latest(*at, map.as_ref())).map(|(_, node)| node)
    }

    /// Returns whether a node is one of this machine, and has not moved to another host since.
    #[must_use]
    pub fn has_here(&self, node: u16) -> bool {
        self.index_of(node).is_some_and(|at| self.is_latest(at, self.map().as_ref()))
    }

    /// Returns whether an entry of a node is the latest one: the node has neither come back since nor, by the map,
    /// moved to another host.
    fn is_latest(&self, at: usize, map: Option<&FormationMap>) -> bool {
        let Some(node) = self.nodes.get(at) else { return false };
        let entry = map.and_then(|map| map.nodes.get(usize::from(node.id)));
        let has_moved = entry.is_some_and(|entry| entry.epoch > node.epoch);
        !has_moved && self.index_of(node.id) == Some(at)
    }

    /// Returns the nodes that are where this state says: by the map, none of them has moved to another host, or was
    /// withdrawn.
    #[must_use]
    pub fn present_nodes(&self) -> Vec<&NodeState> {
        let map = self.map();
        let entry = |node: &NodeState| map.as_ref().and_then(|map| map.nodes.get(usize::from(node.id)));
        let is_present = |node: &&NodeState| entry(node).is_none_or(|entry| entry.epoch <= node.epoch);
        self.nodes.iter().filter(is_present).collect()
    }

    /// Returns whether it is the whole of a formation over several hosts: its nodes are not this machine's.
    #[must_use]
    pub fn is_over_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// The position of a node among those of this machine; of one that has come back, the latest.
    #[must_use]
    pub fn index_of(&self, node: u16) -> Option<usize> {
        self.nodes.iter().rposition(|known| known.id == node)
    }

    /// Returns the formation's id.
    #[must_use]
    pub fn formation_id(&self) -> Option<FormationId> {
        formation_from_hex(&self.formation)
    }

    /// Returns every process of it that is said to run, once: daemons, server for HTTP, gateway, and supervisor.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> {
        let mut daemons: Vec<ProcessId> = self.nodes.iter().filter_map(|node| node.process).collect();
        // Nodes of one process are neighbours.
        daemons.dedup();
        let server = self.http.as_ref().and_then(|http| http.process);
        let gateway = self.gateway.as_ref().and_then(|gateway| gateway.process);
        daemons.into_iter().chain(server).chain(gateway).chain(self.supervisor)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::Path;

    /// Returns a state of one running node.
    pub(crate) fn sample() -> FormationState {
        let volume = VolumeState {
            path: "/dev/shm/x/n0".into(),
            kind: "memory".into(),
            capacity_bytes: 1 << 30,
            own_dir: true,
        };
        let node = NodeState {
            id: 0,
            host: "h".into(),
            process: Some(ProcessId { pid: 4_000_000, started_ticks: 7 }),
            life: NodeLife::Ready,
            message: None,
            deaths: 0,
            client_address: "127.0.0.1:1".into(),
            peer_address: "127.0.0.1:2".into(),
            unix_path: "/run/n0".into(),
            epoch: 0,
            volumes: vec![volume],
        };
        FormationState {
            version: STATE_VERSION,
            release: RELEASE.into(),
            name: "sample".parse().unwrap(),
            formation: "07".repeat(16),
            created_unix_ms: 1,
            stage: Stage::Running,
            supervisor: Some(ProcessId { pid: 4_000_001, started_ticks: 8 }),
            keep: None,
            sources: None,
            message: None,
            before: None,
            owner: None,
            ends_unix_ms: None,
            wait_ms: 30_000,
            dead_after_ms: None,
            port: 0,
            in_process: false,
            secure: false,
            detect_races: false,
            protect: Protection::None,
            http: None,
            gateway: None,
            tolerance: RestartLimit::default(),
            stripe: 1 << 20,
            width: 0,
            spread_at: SpreadAt::default(),
            checksum: Checksum::default(),
            page_pool: 64 << 20,
            names_memory: 1 << 30,
            numa: true,
            log_format: LogFormat::default(),
            map: String::new(),
            nodes: vec![node],
            lost_elsewhere: vec![],
            own_dirs: vec![],
            mounts: vec![],
            part: None,
            kept_on: None,
            hosts: vec![],
            moves: Vec::new(),
            departures: Vec::new(),
            arrivals: Vec::new(),
            keeper_host: None,
            keepers: None,
            reach: None,
            recoveries: 0,
            recovering: false,
        }
    }

    #[test]
    fn a_state_comes_back() {
        let text = serde_json::to_vec(&sample()).unwrap();
        assert_eq!(FormationState::parse(&text, Path::new("/s")).unwrap(), sample());
        assert_eq!(sample().processes().map(|p| p.pid).collect::<Vec<_>>(), [4_000_000, 4_000_001]);
        assert_eq!(sample().formation_id(), Some(FormationId([7; 16])));
        assert_eq!(sample().map(), None);
        let mut shared = sample();
        shared.nodes = vec![shared.nodes[0].clone(); 3];
        assert_eq!(shared.processes().count(), 2, "nodes of one process, and the supervisor");
    }

    #[test]
    fn another_version_is_named_whatever_follows() {
        let text = br#"{"version": 9, "release": "3.1.0", "alien": []}"#;
        let error = FormationState::parse(text, Path::new("/s")).unwrap_err().to_string();
        assert!(error.starts_with("/s: was written by bivouac 3.1.0 (state version 9)"), "{error}");
        assert!(error.ends_with("use that release for this formation"));
    }

    #[test]
    fn damage_is_said() {
        for text in [&b"{"[..], b"", b"[]", br#"{"version": 1, "release": "x"}"#] {
            assert!(
                FormationState::parse(text, Path::new("/s")).unwrap_err().to_string().contains("is damaged")
            );
        }
    }
}
