//! Messages between supervisor and daemon, over the socket that is the daemon's standard input.
//!
//! Everything that must outlive a daemon is the supervisor's and handed over as descriptors: listeners,
//! and for each mount the FUSE device and the memory with its state.

use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use bivouac_types::{Checksum, NodeId, SpreadAt};
use bivouac_wire::{Decode, FormationMap};
use serde::{Deserialize, Serialize};

use crate::hex::{from_hex, to_hex};
use crate::log_events::LogFormat;
use crate::packets;
use crate::phases::Phase;
use crate::reach::Domains;
use crate::state::{FormationState, NodeState, RELEASE, STATE_VERSION, VolumeState};
use crate::state_dir::{SECRET_LEN, StateDir};
use crate::{Kind, LaunchError, LaunchResult};

/// Message from the supervisor to a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToNode {
    /// The first packet. Descriptors: configuration, lock.
    Begin,
    /// Handles that outlive daemons, for the next nodes in the order of the configuration. Descriptors of each: client
    /// lane, peer lane, Unix socket, memory for direct access, memory for statistics.
    Nodes,
    /// Serve a mount. Descriptors: FUSE device, memory.
    Serve {
        /// The node that serves it.
        node: u16,
        /// Number of the mount.
        mount: u32,
        /// Its location, for messages.
        dir: PathBuf,
    },
    /// A newer map. Descriptors: its bytes, in memory.
    Map,
    /// Seal the replicas that a node of this daemon has of another node's volumes.
    Seal {
        /// The node that has them.
        backup: u16,
        /// The other node.
        node: u16,
        /// Mirror epoch of the node from then on.
        epoch: u32,
    },
    /// Another node is dead and will not be restarted.
    Lost {
        /// The node.
        node: u16,
    },
    /// Another node that was dead was restarted after all, and serves.
    Returned {
        /// The node.
        node: u16,
    },
}

/// Message from a daemon to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FromNode {
    /// It serves; with the durations of its start.
    Ready {
        /// The steps of its start.
        phases: Vec<Phase>,
    },
    /// It cannot serve, and will end.
    Failed {
        /// The reason.
        message: String,
    },
    /// The replicas of a node's volumes are sealed, or cannot be.
    Sealed {
        /// The node, and the outcome.
        sealed: SealOutcome,
    },
    /// It serves a mount.
    Serving {
        /// Number of the mount.
        mount: u32,
    },
    /// A mount is over: unmounted, or not to be served.
    Ended {
        /// Number of the mount.
        mount: u32,
        /// The reason, if it was not unmounted.
        message: Option<String>,
    },
}

/// Outcome of sealing the replicas of a node's volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealOutcome {
    /// The node.
    pub node: u16,
    /// Its mirror epoch.
    pub epoch: u32,
    /// Directories of its volumes, in order; or why they cannot be used.
    pub outcome: Result<Vec<PathBuf>, String>,
}

/// A node of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShare {
    /// Position in the map.
    pub node: u16,
    /// Its volumes, by index.
    pub volumes: Vec<VolumeState>,
}

/// Configuration of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonConfig {
    version: u32,
    release: String,
    /// The nodes that it is: one, unless nodes share a process.
    pub nodes: Vec<NodeShare>,
    /// The formation's directory.
    pub dir: PathBuf,
    /// Time that clients wait for a node, in milliseconds.
    pub wait_ms: u64,
    /// Entries from which on a directory spreads over all nodes.
    #[serde(with = "crate::text")]
    pub spread_at: SpreadAt,
    /// Volumes on which blocks of new subfiles get checksums.
    #[serde(with = "crate::text")]
    pub checksum: Checksum,
    /// Bytes that each mount has for pages under the session contract.
    pub page_pool: u64,
    /// Most bytes of memory for the records of each node.
    pub names_memory: u64,
    /// True if it is kept on the part of its host that is near to its volumes.
    pub numa: bool,
    /// Form of its log.
    #[serde(with = "crate::text")]
    pub log_format: LogFormat,
    /// After how long a node that does not answer is dead, in milliseconds, if nodes watch each other.
    pub dead_after_ms: Option<u64>,
    /// Nodes that will not be started again.
    pub lost: Vec<u16>,
    /// True if the formation is being recovered: none of its clients lives.
    pub recovering: bool,
    /// True if it ever was.
    pub was_recovered: bool,
    /// Failure domains, if they are known.
    pub domains: Option<Domains>,
    secret: String,
    map: String,
}

impl DaemonConfig {
    /// Returns the configuration of the daemon that is the nodes at these positions among those of this machine; `None`
    /// if there are none.
    #[must_use]
    pub fn of(
        state: &FormationState,
        dir: &StateDir,
        secret: &[u8; SECRET_LEN],
        nodes: Range<usize>,
    ) -> Option<DaemonConfig> {
        let nodes = state.nodes.get(nodes).filter(|nodes| !nodes.is_empty())?;
        let share = |node: &NodeState| NodeShare { node: node.id, volumes: node.volumes.clone() };
        Some(DaemonConfig {
            version: STATE_VERSION,
            release: RELEASE.into(),
            nodes: nodes.iter().map(share).collect(),
            dir: dir.path().to_owned(),
            wait_ms: state.wait_ms,
            spread_at: state.spread_at,
            checksum: state.checksum,
            page_pool: state.page_pool,
            names_memory: state.names_memory,
            numa: state.numa,
            log_format: state.log_format,
            dead_after_ms: state.watching_ms(),
            lost: state.lost().collect(),
            recovering: state.recovering,
            was_recovered: state.recoveries > 0,
            domains: state.domains().cloned(),
            secret: to_hex(secret),
            map: state.map.clone(),
        })
    }

    /// Returns the formation's secret.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn secret(&self) -> LaunchResult<[u8; SECRET_LEN]> {
        from_hex(&self.secret).and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| damaged("secret"))
    }

    /// Returns the map.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn map(&self) -> LaunchResult<FormationMap> {
        let bytes = from_hex(&self.map).ok_or_else(|| damaged("map"))?;
        let map = FormationMap::from_bytes(&bytes).map_err(|_| damaged("map"))?;
        map.check().map_err(|_| damaged("map"))?;
        Ok(map)
    }
}

/// Input of a daemon's start.
#[derive(Debug)]
pub struct Start {
    /// Its configuration.
    pub config: DaemonConfig,
    /// Shows that the formation lives as long as it is open.
    pub lock: OwnedFd,
    /// Handles of each of its nodes.
    pub nodes: Vec<NodeHandles>,
}

/// Handles of a node that outlive its daemons.
#[derive(Debug)]
pub struct NodeHandles {
    /// Client lane.
    pub client: TcpListener,
    /// Peer lane.
    pub peer: TcpListener,
    /// Client lane of this machine.
    pub unix: UnixListener,
    /// Memory that is shared with processes that read and write subfiles themselves.
    pub grants: OwnedFd,
    /// Memory for what the node records of what it does.
    pub recorded: OwnedFd,
}

impl NodeHandles {
    /// Number of these descriptors.
    pub(crate) const COUNT: usize = 5;

    /// Returns the descriptors in the order of [`ToNode::Nodes`].
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; NodeHandles::COUNT] {
        [
            self.client.as_fd(),
            self.peer.as_fd(),
            self.unix.as_fd(),
            self.grants.as_fd(),
            self.recorded.as_fd(),
        ]
    }
}

impl From<[OwnedFd; NodeHandles::COUNT]> for NodeHandles {
    fn from([client, peer, unix, grants, recorded]: [OwnedFd; NodeHandles::COUNT]) -> NodeHandles {
        NodeHandles { client: client.into(), peer: peer.into(), unix: unix.into(), grants, recorded }
    }
}

/// A mount that a daemon is to serve.
#[derive(Debug)]
pub struct ServeMount {
    /// The node of the daemon that serves it.
    pub node: NodeId,
    /// Its number.
    pub mount: u32,
    /// Its location.
    pub dir: PathBuf,
    /// The FUSE device.
    pub device: OwnedFd,
    /// The memory with its state.
    pub memory: OwnedFd,
}

/// A message of the supervisor to a daemon that runs.
#[derive(Debug)]
pub enum SupervisorMessage {
    /// A mount to serve.
    Serve(ServeMount),
    /// A newer map.
    Map(Box<FormationMap>),
    /// Replicas are to be sealed.
    Seal {
        /// The node of this daemon that has them.
        backup: NodeId,
        /// The node whose volumes they are of.
        node: NodeId,
        /// Its mirror epoch from then on.
        epoch: u32,
    },
    /// A node is dead for good.
    Lost(NodeId),
    /// A node that was dead serves again.
    Returned(NodeId),
}

/// The daemon's side of the socket.
#[derive(Debug)]
pub struct Handover {
    socket: OwnedFd,
}

impl Handover {
    /// Takes over what the supervisor hands to this process at its standard input.
    ///
    /// # Errors
    /// When this process was not started by a supervisor of the same release.
    pub fn from_stdin() -> LaunchResult<(Handover, Start)> {
        let socket = take_stdin()?;
        let received = packets::receive::<ToNode>(&socket).map_err(|_| not_supervised())?;
        let (message, descriptors) = received.ok_or_else(not_supervised)?;
        let descriptors: [OwnedFd; 2] = descriptors.try_into().map_err(|_| not_supervised())?;
        let (ToNode::Begin, [config, lock]) = (message, descriptors) else { return Err(not_supervised()) };
        let config: DaemonConfig = packets::from_memory(config).map_err(|_| damaged("configuration"))?;
        // An upgrade in place leaves a supervisor of the old release that starts daemons from the new file.
        if (config.version, config.release.as_str()) != (STATE_VERSION, RELEASE) {
            return Err(damaged("configuration of another release"));
        }
        let nodes = take_nodes(&socket, config.nodes.len())?;
        Ok((Handover { socket }, Start { config, lock, nodes }))
    }

    /// Tells the supervisor something. That it is gone is no error: a daemon serves on.
    pub fn tell(&self, message: &FromNode) {
        if let Err(error) = packets::send(&self.socket, message, &[]) {
            log::warn!(why:% = error; "the supervisor does not hear");
        }
    }

    /// Returns the supervisor's next message, waiting for it; `None` when the supervisor is gone.
    ///
    /// # Errors
    /// What the system says, or that it was something else.
    pub fn next(&self) -> io::Result<Option<SupervisorMessage>> {
        let Some((message, descriptors)) = packets::receive::<ToNode>(&self.socket)? else { return Ok(None) };
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "unexpected packet from the supervisor");
        match message {
            ToNode::Serve { node, mount, dir } => {
                let [device, memory]: [OwnedFd; 2] = descriptors.try_into().map_err(|_| invalid())?;
                Ok(Some(SupervisorMessage::Serve(ServeMount {
                    node: NodeId(node),
                    mount,
                    dir,
                    device,
                    memory,
                })))
            }
            ToNode::Map => match map_in(descriptors) {
                Some(map) => Ok(Some(SupervisorMessage::Map(Box::new(map)))),
                None => Err(invalid()),
            },
            ToNode::Seal { backup, node, epoch } => {
                Ok(Some(SupervisorMessage::Seal { backup: NodeId(backup), node: NodeId(node), epoch }))
            }
            ToNode::Lost { node } => Ok(Some(SupervisorMessage::Lost(NodeId(node)))),
            ToNode::Returned { node } => Ok(Some(SupervisorMessage::Returned(NodeId(node)))),
            ToNode::Begin | ToNode::Nodes => Err(invalid()),
        }
    }
}

impl AsFd for Handover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the map in the memory that came with a packet, if it is one.
pub(crate) fn map_in(mut descriptors: Vec<OwnedFd>) -> Option<FormationMap> {
    let bytes: Vec<u8> = packets::from_memory(descriptors.pop()?).ok()?;
    let map = FormationMap::from_bytes(&bytes).ok()?;
    map.check().is_ok().then_some(map)
}

// A packet has all handles of a node, or the daemon would take those of two for one.
const _: () = assert!(packets::DESCRIPTORS_MAX >= NodeHandles::COUNT);

/// Hands over what outlives a daemon of each of its nodes. Nobody is waited for: there are few packets.
pub(crate) fn hand_nodes(socket: &OwnedFd, nodes: &[NodeHandles]) -> io::Result<()> {
    nodes.chunks(packets::DESCRIPTORS_MAX / NodeHandles::COUNT).try_for_each(|some| {
        let descriptors: Vec<_> = some.iter().flat_map(NodeHandles::descriptors).collect();
        packets::send(socket, &ToNode::Nodes, &descriptors)
    })
}

fn take_nodes(socket: &OwnedFd, count: usize) -> LaunchResult<Vec<NodeHandles>> {
    let mut nodes: Vec<NodeHandles> = Vec::with_capacity(count);
    while nodes.len() < count {
        let received = packets::receive::<ToNode>(socket).map_err(|error| cut_short(&error))?;
        let Some((ToNode::Nodes, descriptors)) = received else { return Err(not_supervised()) };
        let before = nodes.len();
        let mut rest = descriptors.into_iter();
        loop {
            let some: Vec<OwnedFd> = rest.by_ref().take(NodeHandles::COUNT).collect();
            let Ok(some) = <[OwnedFd; NodeHandles::COUNT]>::try_from(some) else { break };
            nodes.push(some.into());
        }
        if nodes.len() == before {
            return Err(not_supervised());
        }
    }
    Ok(nodes)
}

/// Returns the error for descriptors that the kernel has left out: those beyond the limit of open files.
fn cut_short(error: &io::Error) -> LaunchError {
    let object = "what the supervisor handed over";
    LaunchError::new(Kind::Refused, object, error.to_string(), "raise the limit of open files: ulimit -n")
}

/// Takes standard input as a descriptor of our own, and leaves nothing in its place.
///
/// # Errors
/// What the system says.
pub fn take_stdin() -> LaunchResult<OwnedFd> {
    let refused = |e: io::Error| LaunchError::system("standard input", e);
    // Not one of the standard numbers, should one of these be closed.
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(|e| refused(e.into()))?;
    // Not closed: the next file that is opened would be standard input, and a child would read it.
    let nothing = std::fs::File::open("/dev/null").map_err(refused)?;
    rustix::stdio::dup2_stdin(&nothing).map_err(|e| refused(e.into()))?;
    Ok(socket)
}

fn damaged(what: &str) -> LaunchError {
    let object = format_args!("what the supervisor handed over ({what})").to_string();
    LaunchError::new(Kind::Refused, object, "is damaged", "take the formation down and up again")
}

fn not_supervised() -> LaunchError {
    let remedy = "start a formation with: bivouac up";
    LaunchError::usage("bivouac node", "is what a supervisor starts, not a command of its own", remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::first_map::first_map;
    use crate::state::tests::sample;
    use bivouac_types::FormationId;
    use bivouac_wire::Encode;

    #[test]
    fn a_configuration_travels_through_memory() {
        let mut state = sample();
        state.map = to_hex(&first_map(&state, FormationId([7; 16])).to_bytes());
        let config =
            DaemonConfig::of(&state, &StateDir::at("/run/s".into()), &[9; SECRET_LEN], 0..1).unwrap();
        let back: DaemonConfig = packets::from_memory(packets::to_memory(&config).unwrap()).unwrap();
        assert_eq!(back, config);
        assert_eq!(back.secret().unwrap(), [9; SECRET_LEN]);
        assert_eq!(back.map().unwrap().name, "sample");
        assert_eq!(DaemonConfig::of(&state, &StateDir::at("/run/s".into()), &[9; SECRET_LEN], 1..2), None);
    }

    #[test]
    fn many_nodes_are_handed_over_before_anybody_reads() {
        let (here, there) = packets::pair().unwrap();
        let one = || {
            let tcp = || TcpListener::bind("127.0.0.1:0").unwrap();
            let place = tempfile::tempdir().unwrap();
            let unix = UnixListener::bind(place.path().join("s")).unwrap();
            let memory = || packets::to_memory(&1).unwrap();
            NodeHandles { client: tcp(), peer: tcp(), unix, grants: memory(), recorded: memory() }
        };
        let handles: Vec<NodeHandles> = (0..150).map(|_| one()).collect();
        hand_nodes(&here, &handles).unwrap();
        let taken = take_nodes(&there, handles.len()).unwrap();
        let ports = |all: &[NodeHandles]| -> Vec<_> {
            let of = |one: &NodeHandles| (one.client.local_addr().unwrap(), one.peer.local_addr().unwrap());
            all.iter().map(of).collect()
        };
        assert_eq!(ports(&taken), ports(&handles));
        drop(here);
        assert!(take_nodes(&there, 1).is_err());
    }

    #[test]
    fn damage_is_said() {
        let mut state = sample();
        state.map = "00".into();
        let config =
            DaemonConfig::of(&state, &StateDir::at("/run/s".into()), &[9; SECRET_LEN], 0..1).unwrap();
        assert!(config.map().unwrap_err().to_string().contains("(map): is damaged"));
    }

    #[test]
    fn only_mounts_come_after_the_start() {
        let (here, there) = packets::pair().unwrap();
        let daemon = Handover { socket: there };
        let memory = packets::to_memory(&1).unwrap();
        let serve = ToNode::Serve { node: 2, mount: 3, dir: "/m".into() };
        packets::send(&here, &serve, &[memory.as_fd(), memory.as_fd()]).unwrap();
        packets::send(&here, &serve, &[]).unwrap();
        packets::send(&here, &ToNode::Begin, &[memory.as_fd(), memory.as_fd()]).unwrap();
        let mount = daemon.next().unwrap().unwrap();
        let SupervisorMessage::Serve(mount) = mount else { panic!("{mount:?}") };
        assert_eq!((mount.node, mount.mount, mount.dir), (NodeId(2), 3, PathBuf::from("/m")));
        assert!(daemon.next().is_err());
        assert!(daemon.next().is_err());
        daemon.tell(&FromNode::Serving { mount: 3 });
        assert_eq!(packets::receive::<FromNode>(&here).unwrap().unwrap().0, FromNode::Serving { mount: 3 });
        drop(here);
        assert!(daemon.next().unwrap().is_none());
        daemon.tell(&FromNode::Serving { mount: 3 });
    }
}
