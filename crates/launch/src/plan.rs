//! Plan of what is to be started, from what the user asks for.

use std::net::SocketAddr;
use std::path::PathBuf;

use bivouac_types::limits::{DEAD_AFTER_MS_MIN, SLOTS_DEFAULT};
use bivouac_types::{Checksum, SpreadAt, check_stripe};

use crate::clock::unix_ms;
use crate::environment::Environment;
use crate::guarded::guarded;
use crate::hex::to_hex;
use crate::http_options::HttpWish;
use crate::log_events::LogFormat;
use crate::memory::{available_memory, memory_share};
use crate::memory_root;
use crate::name::FormationName;
use crate::process::ProcessId;
use crate::protection::Protection;
use crate::random::random_bytes;
use crate::restarts::RestartLimit;
use crate::state::{FormationState, NodeLife, NodeState, RELEASE, STATE_VERSION, Stage, VolumeState};
use crate::state_dir::StateDir;
use crate::volumes::{LendableDir, VolumeArg, share_out};
use crate::{LaunchError, LaunchResult};

/// Most nodes of one machine, each with a process of its own.
pub const NODES_HERE_MAX: u16 = 256;
/// Most nodes that share a process, so that each still has a slot.
pub const NODES_IN_PROCESS_MAX: u16 = SLOTS_DEFAULT;

/// Names may take this part of a node's share of memory, unless it is said how much.
const NAMES_PART: u64 = 2;
/// Least memory for the names of a node, in bytes.
pub const NAMES_MEMORY_MIN: u64 = 1 << 20;

/// A user's request.
#[derive(Clone, Debug)]
pub struct FormationRequest {
    /// The formation's name.
    pub name: FormationName,
    /// Nodes, all on this machine.
    pub nodes: u16,
    /// Directories to lend; memory if none.
    pub volumes: Vec<VolumeArg>,
    /// Stripe size of new files, in bytes.
    pub stripe: u64,
    /// Width of new files; 0 is all targets.
    pub width: u16,
    /// Entries from which on a directory spreads over all nodes.
    pub spread_at: SpreadAt,
    /// Volumes on which blocks of new subfiles get checksums.
    pub checksum: Checksum,
    /// Bytes that each mount has for pages under the session contract.
    pub page_pool: u64,
    /// Limit of the memory for names, attributes and other records of a node, in bytes; a share of the machine's by
    /// default.
    pub names_memory: Option<u64>,
    /// True if daemons of a host are kept on the parts of it that are near to their volumes.
    pub numa: bool,
    /// Form of the processes' logs.
    pub log_format: LogFormat,
    /// Time that clients wait for a node, in milliseconds.
    pub wait_ms: u64,
    /// After how long a node that does not answer is dead, in milliseconds.
    pub dead_after_ms: Option<u64>,
    /// First port to listen on; 0 for any free ones.
    pub port: u16,
    /// True if the nodes of a machine share a process.
    pub in_process: bool,
    /// True if all that goes over the network is encrypted.
    pub secure: bool,
    /// True if races are detected.
    pub detect_races: bool,
    /// Protection of the volumes.
    pub protect: Protection,
    /// The server for HTTP on each host, if there is to be one.
    pub http: Option<HttpWish>,
    /// Address of the gateway of links on each host, if there is to be one.
    pub link_listen: Option<SocketAddr>,
    /// Deaths after which a daemon is started no more.
    pub tolerance: RestartLimit,
    /// Time that it lives, in milliseconds; for ever if not given.
    pub ttl_ms: Option<u64>,
    /// The process that it is made for: it ends with that one.
    pub owner: Option<ProcessId>,
}

impl FormationRequest {
    /// Checks that they make sense, as far as that can be told without looking at the machine.
    ///
    /// # Errors
    /// What does not, and what to write.
    pub fn check(&self) -> LaunchResult<()> {
        let nodes = format!("--nodes {}", self.nodes);
        if self.nodes == 0 {
            return Err(LaunchError::usage(nodes, "a formation needs a node", "write --nodes 1 or more"));
        }
        if self.nodes > NODES_HERE_MAX && !self.in_process {
            let cause = format!("one machine plays at most {NODES_HERE_MAX} nodes with a process each");
            let remedy =
                format!("use less, more machines, or up to {NODES_IN_PROCESS_MAX} with --in-process");
            return Err(LaunchError::usage(nodes, cause, &remedy));
        }
        if self.nodes > NODES_IN_PROCESS_MAX {
            let cause = format!("one process is at most {NODES_IN_PROCESS_MAX} nodes");
            return Err(LaunchError::usage(nodes, cause, "use less, or more machines"));
        }
        check_stripe(self.stripe)
            .map_err(|e| LaunchError::usage("--stripe", e, "write for instance --stripe 1m"))?;
        let targets = usize::from(self.nodes) * self.volumes.len().max(1);
        if usize::from(self.width) > targets {
            let cause = format!("there are only {targets} targets (volumes of all nodes)");
            let object = format!("--width {}", self.width);
            return Err(LaunchError::usage(object, cause, "use less, or 0 for all"));
        }
        if let Some(ms) = self.dead_after_ms.filter(|ms| *ms < DEAD_AFTER_MS_MIN) {
            let object = format!("--dead-after {ms}ms");
            let cause = format!("nodes of a busy machine can be silent for {DEAD_AFTER_MS_MIN} ms");
            return Err(LaunchError::usage(object, cause, "write for instance --dead-after 5s"));
        }
        let ports = u32::from(self.port) + 2 * u32::from(self.nodes) - 1;
        if self.port != 0 && ports > u32::from(u16::MAX) {
            let object = format!("--port {}", self.port);
            return Err(LaunchError::usage(
                object,
                "two ports per node do not fit below 65536",
                "choose a lower one",
            ));
        }
        self.http.as_ref().map_or(Ok(()), HttpWish::check)
    }

    /// Returns the state of a formation that has nothing yet.
    pub fn first_state(&self, formation: String) -> FormationState {
        let now = unix_ms();
        FormationState {
            version: STATE_VERSION,
            release: RELEASE.into(),
            name: self.name.clone(),
            formation,
            created_unix_ms: now,
            stage: Stage::Starting,
            supervisor: None,
            keep: None,
            sources: None,
            message: None,
            before: None,
            owner: self.owner,
            ends_unix_ms: self.ttl_ms.map(|ttl| now.saturating_add(ttl)),
            wait_ms: self.wait_ms,
            dead_after_ms: self.dead_after_ms,
            port: self.port,
            in_process: self.in_process,
            secure: self.secure,
            detect_races: self.detect_races,
            protect: self.protect,
            http: self.http.clone().map(Into::into),
            gateway: self.link_listen.map(Into::into),
            tolerance: self.tolerance,
            // Checked before: the largest stripe has 32 bits.
            stripe: self.stripe as u32,
            width: self.width,
            spread_at: self.spread_at,
            checksum: self.checksum,
            page_pool: self.page_pool,
            names_memory: self.names_memory.unwrap_or(u64::MAX),
            numa: self.numa,
            log_format: self.log_format,
            map: String::new(),
            nodes: Vec::new(),
            lost_elsewhere: Vec::new(),
            own_dirs: Vec::new(),
            mounts: Vec::new(),
            part: None,
            kept_on: None,
            hosts: Vec::new(),
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
}

/// Returns the state of a formation that is about to be started. Nothing of it is made.
///
/// # Errors
/// What makes no sense, or does not fit this machine.
pub fn plan(here: &Environment, wishes: &FormationRequest, dir: &StateDir) -> LaunchResult<FormationState> {
    wishes.check()?;
    check_descriptors(wishes)?;
    let id: [u8; 16] = random_bytes()?;
    let formation = to_hex(&id);
    let (volumes, own_dirs) = plan_volumes(here, wishes, &formation)?;
    assert_eq!(volumes.len(), usize::from(wishes.nodes), "nodes that get volumes");
    let nodes = volumes.into_iter().enumerate().map(|(id, volumes)| new_node(here, dir, id as u16, volumes));
    // Once, and not at each start of a daemon: what its names take is not available then.
    let share = memory_share(here.batch.memory, usize::from(wishes.nodes)) / NAMES_PART;
    let names_memory = wishes.names_memory.unwrap_or(share.max(NAMES_MEMORY_MIN));
    Ok(FormationState { nodes: nodes.collect(), own_dirs, names_memory, ..wishes.first_state(formation) })
}

/// Descriptors of a node that shares a process: three listeners, memory for direct access, its volume's directory and
/// log, and those of a mount and a command to it, both ends of which may be in that process, and open subfiles.
const DESCRIPTORS_PER_NODE: u64 = 12;
/// Descriptors of a node as its supervisor has them: the five that outlive daemons, a socket to its daemon, its end.
const DESCRIPTORS_SUPERVISED: u64 = 7;
/// Descriptors besides: for commands, mounts and logs.
const DESCRIPTORS_BESIDES: u64 = 200;

/// Checks that there can be as many nodes, given how many files a process of this user may have open.
fn check_descriptors(wishes: &FormationRequest) -> LaunchResult<()> {
    check_descriptors_by(wishes, rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum)
}

fn check_descriptors_by(wishes: &FormationRequest, maximum: Option<u64>) -> LaunchResult<()> {
    let volumes = wishes.volumes.len().max(1) as u64;
    let each = if wishes.in_process { DESCRIPTORS_PER_NODE + volumes - 1 } else { DESCRIPTORS_SUPERVISED };
    let needed = u64::from(wishes.nodes) * each + DESCRIPTORS_BESIDES;
    let Some(maximum) = maximum.filter(|maximum| *maximum < needed) else { return Ok(()) };
    let object = format!("--nodes {}", wishes.nodes);
    let cause =
        format!("needs a process with {needed} open files, and the limit (RLIMIT_NOFILE) is {maximum}");
    let fits = maximum.saturating_sub(DESCRIPTORS_BESIDES) / each;
    let remedy = format!("have the limit raised (ulimit -Hn {needed}), or use at most {} nodes", fits.max(1));
    Err(LaunchError::new(crate::Kind::Refused, object, cause, &remedy))
}

type Volumes = (Vec<Vec<VolumeState>>, Vec<PathBuf>);

fn plan_volumes(here: &Environment, wishes: &FormationRequest, formation: &str) -> LaunchResult<Volumes> {
    let memory = available_memory(here.batch.memory) / 2;
    if wishes.volumes.is_empty() {
        return memory_volumes(here, wishes, formation, memory);
    }
    let look = |volume: &VolumeArg| {
        let place = LendableDir::look(&volume.dir)?;
        // What others could put there would be taken for ours.
        guarded(&volume.dir, "name a directory of your own, which others cannot write to")?;
        Ok((place, volume.capacity))
    };
    let places: Vec<_> = wishes.volumes.iter().map(look).collect::<LaunchResult<_>>()?;
    Ok((share_out(&places, wishes.nodes, memory)?, Vec::new()))
}

fn memory_volumes(
    here: &Environment,
    wishes: &FormationRequest,
    formation: &str,
    memory: u64,
) -> LaunchResult<Volumes> {
    let place = LendableDir::memory()?;
    let root = place.dir.join(memory_root::name_of(here, &wishes.name, formation));
    let mut volumes = share_out(&[(LendableDir { dir: root.clone(), ..place }, None)], wishes.nodes, memory)?;
    for (node, volume) in
        volumes.iter_mut().enumerate().flat_map(|(node, all)| all.iter_mut().map(move |v| (node, v)))
    {
        // Also of a single node: the directory has a link and a note beside its volumes.
        volume.path = root.join(format!("n{node}"));
        volume.own_dir = true;
    }
    Ok((volumes, vec![root]))
}

fn new_node(here: &Environment, dir: &StateDir, id: u16, volumes: Vec<VolumeState>) -> NodeState {
    NodeState {
        id,
        host: here.host.clone(),
        process: None,
        life: NodeLife::Starting,
        message: None,
        deaths: 0,
        client_address: String::new(),
        peer_address: String::new(),
        unix_path: dir.node_socket(id),
        epoch: 0,
        volumes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes() -> FormationRequest {
        FormationRequest {
            name: "x".parse().unwrap(),
            nodes: 2,
            volumes: Vec::new(),
            stripe: 1 << 20,
            width: 0,
            spread_at: SpreadAt::default(),
            checksum: Checksum::default(),
            page_pool: 64 << 20,
            names_memory: None,
            numa: true,
            log_format: LogFormat::default(),
            wait_ms: 30_000,
            dead_after_ms: None,
            port: 0,
            in_process: false,
            secure: false,
            detect_races: false,
            protect: Protection::None,
            http: None,
            link_listen: None,
            tolerance: RestartLimit::default(),
            ttl_ms: None,
            owner: None,
        }
    }

    #[test]
    fn absurd_wishes_are_refused_by_name() {
        assert_eq!(wishes().check(), Ok(()));
        let refusal = |wishes: FormationRequest| wishes.check().unwrap_err();
        for (bad, says) in [
            (
                FormationRequest { nodes: 0, ..wishes() },
                "--nodes 0: a formation needs a node; write --nodes 1 or more",
            ),
            (
                FormationRequest { nodes: 257, ..wishes() },
                "at most 256 nodes with a process each; use less, more machines, or",
            ),
            (
                FormationRequest { nodes: 1025, in_process: true, ..wishes() },
                "one process is at most 1024 nodes",
            ),
            (FormationRequest { stripe: 5, ..wishes() }, "stripe size 5 is not within"),
            (FormationRequest { stripe: 4097, ..wishes() }, "not a multiple"),
            (FormationRequest { stripe: 1 << 40, ..wishes() }, "is not within"),
            (FormationRequest { width: 3, ..wishes() }, "--width 3: there are only 2 targets"),
            (FormationRequest { port: 65_533, ..wishes() }, "--port 65533"),
        ] {
            let error = refusal(bad);
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        assert_eq!(FormationRequest { nodes: 1024, in_process: true, ..wishes() }.check(), Ok(()));
        assert_eq!(FormationRequest { port: 65_532, width: 2, ..wishes() }.check(), Ok(()));
    }

    #[test]
    fn a_limit_of_open_files_that_is_too_low_is_named() {
        let many = FormationRequest { nodes: 1000, in_process: true, ..wishes() };
        assert_eq!(check_descriptors_by(&many, None), Ok(()));
        assert_eq!(check_descriptors_by(&many, Some(12200)), Ok(()));
        let error = check_descriptors_by(&many, Some(4096)).unwrap_err().to_string();
        let says = "--nodes 1000: needs a process with 12200 open files, and the limit (RLIMIT_NOFILE) is 4096; \
                    have the limit raised (ulimit -Hn 12200), or use at most 324 nodes";
        assert_eq!(error, says);
        assert_eq!(check_descriptors_by(&FormationRequest { nodes: 256, ..wishes() }, Some(4096)), Ok(()));
    }
}
