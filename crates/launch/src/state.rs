//! What is written down of a running formation, so that every later command, also after a crash, knows what there is.

use std::net::IpAddr;
use std::path::PathBuf;

use bivouac_types::limits::{DEAD_AFTER_MS_DEFAULT, PAGE_POOL_DEFAULT};
use bivouac_types::{Checksum, FormationId, SpreadAt};
use bivouac_wire::{Decode, FormationMap};
use serde::{Deserialize, Serialize};

use crate::hex::{formation_from_hex, from_hex};
use crate::http::HttpState;
use crate::log_events::LogFormat;
use crate::name::FormationName;
use crate::process::ProcessId;
use crate::reach::{Domains, Reach};
use crate::restarts::Tolerance;
use crate::{Kind, LaunchError, LaunchResult};

/// Version of the state file; raised by every change that an older release would misunderstand.
pub const STATE_VERSION: u32 = 1;
/// The release that this is.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// How far a formation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Not every daemon has been ready yet.
    Starting,
    /// In use.
    Running,
    /// Going down.
    Stopping,
}

/// How a daemon is.
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

/// The state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// [`STATE_VERSION`] of the release that wrote it.
    pub version: u32,
    /// That release.
    pub release: String,
    /// The formation's name.
    pub name: FormationName,
    /// Its id, 32 hexadecimal digits.
    pub formation: String,
    /// When it was begun, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// How far it is.
    pub stage: Stage,
    /// The supervisor.
    pub supervisor: Option<ProcessId>,
    /// Why it must not be taken down without being told to discard its data.
    pub keep: Option<String>,
    /// Site storage that does not have all that was written, unless somebody has looked that it has.
    #[serde(default)]
    pub sources: Option<String>,
    /// Why it failed, if it did.
    pub message: Option<String>,
    /// What it was when it was killed, until it is usable again: a recovery that is killed as well forgets nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Box<State>>,
    /// The process that it was made for: it ends with that one.
    #[serde(default)]
    pub owner: Option<ProcessId>,
    /// When it ends by itself, in milliseconds since 1970.
    #[serde(default)]
    pub ends_unix_ms: Option<u64>,
    /// How long clients wait for a node, in milliseconds.
    pub wait_ms: u64,
    /// After how long a node that does not answer is dead, in milliseconds, if that was chosen.
    #[serde(default)]
    pub dead_after_ms: Option<u64>,
    /// First port to listen on; 0 for any free ones.
    pub port: u16,
    /// Whether one daemon is all nodes of this machine.
    #[serde(default)]
    pub in_process: bool,
    /// Whether all that goes over the network is encrypted.
    #[serde(default)]
    pub secure: bool,
    /// The server for HTTP, if there is to be one.
    #[serde(default)]
    pub http: Option<HttpState>,
    /// When a daemon that dies is started no more.
    #[serde(default)]
    pub tolerance: Tolerance,
    /// Stripe size of new files, in bytes.
    pub stripe: u32,
    /// Width of new files; 0 is all seats.
    pub width: u16,
    /// Entries from which on a directory spreads over all nodes.
    #[serde(default, with = "crate::text")]
    pub spread_at: SpreadAt,
    /// Where blocks of new subfiles get checksums.
    #[serde(default, with = "crate::text")]
    pub checksum: Checksum,
    /// Bytes that each mount has for pages under the session contract.
    #[serde(default = "page_pool_default")]
    pub page_pool: u64,
    /// Most bytes of memory for the records of each node here.
    #[serde(default = "unbounded")]
    pub names_memory: u64,
    /// Whether daemons of a host are kept on the parts of it that are near to their volumes.
    #[serde(default)]
    pub numa: bool,
    /// In which form its processes write their logs.
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
    /// What this part is of, when the formation is over several hosts and this is the part on one of them.
    #[serde(default)]
    pub part: Option<PartState>,
    /// Of the whole of a formation over several hosts: the host that its keeper runs on.
    #[serde(default)]
    pub kept_on: Option<String>,
    /// The hosts, when this is the whole of a formation over several, as the one who started it sees it.
    #[serde(default)]
    pub hosts: Vec<HostState>,
    /// How its hosts were reached, of one over several.
    #[serde(default)]
    pub reach: Option<Reach>,
    /// How often it was recovered after all of its processes had been killed.
    #[serde(default)]
    pub recoveries: u32,
    /// Whether that is being done: its daemons end what clients had, all of which are dead.
    #[serde(default)]
    pub recovering: bool,
}

/// What ties one host's part of a formation to the whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartState {
    /// The address of this host that the nodes listen at.
    pub bind: IpAddr,
    /// Where the formation was started from, for messages.
    pub started_from: String,
    /// Whether the whole is being recovered, and is not again yet: what ends this part leaves its volumes as they are.
    #[serde(default)]
    pub leaves_volumes: bool,
}

/// One host of a formation over several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    /// What the launcher calls it.
    pub name: String,
    /// How it is.
    pub life: HostLife,
    /// Why it is not up, or what is wrong with it.
    pub message: Option<String>,
    /// Its nodes.
    pub nodes: Vec<u16>,
    /// Where the formation is mounted there.
    pub mount: Option<PathBuf>,
}

/// How a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostLife {
    /// Called.
    Called,
    /// Part of the formation.
    Up,
    /// It never came.
    Missing,
    /// It was part of the formation, and is gone.
    Lost,
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
    /// How that is.
    pub life: NodeLife,
    /// How the last daemon ended, if one did.
    pub message: Option<String>,
    /// Daemons that died.
    pub deaths: u64,
    /// `address:port` of the client lane.
    pub client_address: String,
    /// `address:port` of the peer lane.
    pub peer_address: String,
    /// Unix socket of the client lane.
    pub unix_path: PathBuf,
    /// Its volumes, by index.
    pub volumes: Vec<VolumeState>,
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
    /// Whether the directory is ours to make and to remove.
    pub own_dir: bool,
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountState {
    /// Number within the formation.
    pub id: u32,
    /// Where it is.
    pub dir: PathBuf,
    /// The node that serves it.
    pub node: u16,
    /// The number of its connection, by which the kernel's table tells it from others at that place.
    #[serde(default)]
    pub connection: u32,
    /// What is wrong with its place, if anything is: it was taken away there, or covered.
    #[serde(default)]
    pub trouble: Option<String>,
}

impl State {
    /// Which hosts fail together, if that is known.
    #[must_use]
    pub fn domains(&self) -> Option<&Domains> {
        self.reach.as_ref()?.domains.as_ref()
    }

    /// Whether it is a part whose volumes stay as they are when it ends, since the whole is not recovered yet.
    #[must_use]
    pub fn leaves_volumes(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.leaves_volumes)
    }

    /// Why its data is to be kept, if it is.
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
    pub fn parse(text: &[u8], path: &std::path::Path) -> LaunchResult<State> {
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

    /// The map, once the ports are known.
    #[must_use]
    pub fn map(&self) -> Option<FormationMap> {
        let map = FormationMap::from_bytes(&from_hex(&self.map)?).ok()?;
        map.check().is_ok().then_some(map)
    }

    /// After how long a node that does not answer is dead, in milliseconds; never if nodes do not watch each other. On one
    /// host they need not: their supervisor knows who has died, without waking anybody up.
    #[must_use]
    pub fn watching_ms(&self) -> Option<u64> {
        let elsewhere = self.map().is_some_and(|map| map.nodes.len() > self.nodes.len());
        self.dead_after_ms.or((elsewhere || self.is_over_hosts()).then_some(DEAD_AFTER_MS_DEFAULT))
    }

    /// Nodes that will not be started again.
    pub fn lost(&self) -> impl Iterator<Item = u16> + '_ {
        let here = self.nodes.iter().filter(|node| node.life == NodeLife::Failed).map(|node| node.id);
        here.chain(self.lost_elsewhere.iter().copied())
    }

    /// Whether it is the whole of a formation over several hosts: its nodes are not this machine's.
    #[must_use]
    pub fn is_over_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// The position of a node among those of this machine.
    #[must_use]
    pub fn index_of(&self, node: u16) -> Option<usize> {
        self.nodes.iter().position(|known| known.id == node)
    }

    /// The formation's id.
    #[must_use]
    pub fn formation_id(&self) -> Option<FormationId> {
        formation_from_hex(&self.formation)
    }

    /// Every process of it that is said to run, once: daemons, server for HTTP, and supervisor.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> {
        let mut daemons: Vec<ProcessId> = self.nodes.iter().filter_map(|node| node.process).collect();
        // Nodes of one process are neighbours.
        daemons.dedup();
        let server = self.http.as_ref().and_then(|http| http.process);
        daemons.into_iter().chain(server).chain(self.supervisor)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bivouac_wire::Encode;
    use std::path::Path;

    /// A state of one running node.
    pub(crate) fn sample() -> State {
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
            volumes: vec![volume],
        };
        State {
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
            http: None,
            tolerance: Tolerance::default(),
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
            reach: None,
            recoveries: 0,
            recovering: false,
        }
    }

    #[test]
    fn a_state_comes_back() {
        let text = serde_json::to_vec(&sample()).unwrap();
        assert_eq!(State::parse(&text, Path::new("/s")).unwrap(), sample());
        assert_eq!(sample().processes().map(|p| p.pid).collect::<Vec<_>>(), [4_000_000, 4_000_001]);
        assert_eq!(sample().formation_id(), Some(FormationId([7; 16])));
        assert_eq!(sample().map(), None);
        let mut shared = sample();
        shared.nodes = vec![shared.nodes[0].clone(); 3];
        assert_eq!(shared.processes().count(), 2, "nodes of one process, and the supervisor");
    }

    #[test]
    fn nodes_watch_each_other_over_several_hosts_or_when_told_to() {
        let mut state = sample();
        state.nodes.push(NodeState { id: 1, life: NodeLife::Failed, ..state.nodes[0].clone() });
        let of = |state: &State| crate::plan::first_map(state, FormationId([7; 16]));
        state.map = crate::hex::to_hex(&of(&state).to_bytes());
        state.lost_elsewhere = vec![2];
        assert_eq!((state.watching_ms(), state.lost().collect::<Vec<_>>()), (None, vec![1, 2]));
        state.nodes.pop();
        assert_eq!(state.watching_ms(), Some(DEAD_AFTER_MS_DEFAULT), "others are elsewhere");
        state.dead_after_ms = Some(700);
        assert_eq!(state.watching_ms(), Some(700));
    }

    #[test]
    fn another_version_is_named_whatever_follows() {
        let text = br#"{"version": 9, "release": "3.1.0", "alien": []}"#;
        let error = State::parse(text, Path::new("/s")).unwrap_err().to_string();
        assert!(error.starts_with("/s: was written by bivouac 3.1.0 (state version 9)"), "{error}");
        assert!(error.ends_with("use that release for this formation"));
    }

    #[test]
    fn damage_is_said() {
        for text in [&b"{"[..], b"", b"[]", br#"{"version": 1, "release": "x"}"#] {
            assert!(State::parse(text, Path::new("/s")).unwrap_err().to_string().contains("is damaged"));
        }
    }
}
