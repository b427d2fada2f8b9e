//! Status of a formation: from its state file, and from its nodes.

mod damage;
mod elsewhere;
mod links;
mod loss;
mod operations;
mod silence;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bivouac_client::{Client, NodeStatus, PoolStatus, VolumeStatus};
use bivouac_hosts::{look_at_hosts, look_elsewhere};
use bivouac_launch::mount_views::MountViews;
use bivouac_launch::{
    FormationState, HostLife, HostState, HttpState, Kind, LaunchError, LaunchResult, NodeLife, NodeState,
    Stage, StateDir, left_ms, parallel_map, settled,
};
use bivouac_types::table::layout;
use bivouac_types::units::{format_count, format_duration, format_size};
use bivouac_types::{FsResult, NodeId};
use serde::Serialize;

use crate::connection::connect;
use crate::partitions::{PartitionReport, list_partitions, partition_table};
pub use damage::DamageReport;
pub use links::{GatewayReport, KeyReport, LinkReport};
pub use loss::{LossReport, LostHost, LostNode};
pub use operations::{DAMAGED, LEASE_WAIT, OperationReport, is_request, is_work};
pub use silence::SilentReport;

/// Exit code of `status` when something of the formation is away that may come back.
pub const CODE_DEGRADED: u8 = 4;
/// Exit code of `status` when a node was given up.
pub const CODE_FAILED: u8 = 5;
/// The command that shows what a dead formation holds.
pub const LIST_COMMAND: &str = "bivouac list";
/// Time that a node may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// Content of `status --json`. Sizes are in bytes, times in milliseconds.
#[derive(Debug, Serialize)]
pub struct StatusReport {
    /// The formation's name.
    pub name: String,
    /// Its id.
    pub formation: String,
    /// `starting`, `running`, `degraded`, `stopping` or `dead`.
    pub state: &'static str,
    /// True if a node was given up: what only it had cannot be read.
    pub given_up: bool,
    /// Release that started it.
    pub release: String,
    /// Time of its start, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The process that looks after the daemons.
    pub supervisor: SupervisorReport,
    /// Reason why its data is to be kept, if it is.
    pub keep: Option<String>,
    /// Time when it ends by itself, if it does, in milliseconds since 1970.
    pub ends_unix_ms: Option<u64>,
    /// The process that it ends with, if there is one.
    pub owner: Option<u32>,
    /// The map's version, and more with every death and return of a node; the highest that a node knows of.
    pub epoch: u64,
    /// Nodes that others take for dead.
    pub dead: Vec<u16>,
    /// Nodes that do not answer others, the dead among them.
    pub silent: Vec<SilentReport>,
    /// Trouble with it as a whole, if there is any.
    pub message: Option<String>,
    /// The formation's own directory.
    pub directory: PathBuf,
    /// Stripe size of new files.
    pub stripe_bytes: u32,
    /// Width of new files; 0 is all targets.
    pub width: u16,
    /// True if all that goes over the network is encrypted.
    pub secure: bool,
    /// The server for HTTP of this host, if it is to have one.
    pub http: Option<HttpReport>,
    /// The gateway of links of this host, if it is to have one.
    pub gateway: Option<GatewayReport>,
    /// Links to other formations that nodes use.
    pub links: Vec<LinkReport>,
    /// The mounts.
    pub mounts: Vec<MountReport>,
    /// Partitions besides the formation's own.
    pub partitions: Vec<PartitionReport>,
    /// Content of partitions that is not at their sources, if there are any with sources.
    pub unflushed: Option<UnflushedReport>,
    /// Sums over the nodes that answer.
    pub totals: Totals,
    /// The nodes.
    pub nodes: Vec<NodeReport>,
    /// The hosts, if the formation is over several and was started here.
    pub hosts: Vec<HostReport>,
    /// Hosts and nodes that were lost, if any were.
    pub lost: LossReport,
}

/// The server for HTTP.
#[derive(Debug, Serialize)]
pub struct HttpReport {
    /// Its address.
    pub address: Option<SocketAddr>,
    /// True if it speaks TLS.
    pub tls: bool,
    /// The state, with the same words as for a node.
    pub state: &'static str,
    /// Its process.
    pub pid: Option<u32>,
    /// Processes of it that died.
    pub deaths: u64,
    /// End of the last one.
    pub message: Option<String>,
}

impl HttpReport {
    fn of(http: HttpState) -> HttpReport {
        HttpReport {
            address: http.address,
            tls: !http.wish.plain,
            state: http.life.name(),
            pid: http.process.map(|process| process.pid),
            deaths: http.deaths,
            message: http.message,
        }
    }

    fn line(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        let address = self.address.map_or_else(|| "?".to_owned(), |address| address.to_string());
        let mut line = format!("{scheme}://{address}/: {}", self.state);
        if self.deaths > 0 {
            line.push_str(&format!(", died {} times", self.deaths));
        }
        if let Some(message) = self.message.as_ref().filter(|_| self.state != "ready") {
            line.push_str(&format!(": {message}"));
        }
        line + "\n"
    }
}

/// A host of a formation over several.
#[derive(Debug, Serialize)]
pub struct HostReport {
    /// The launcher's name for it.
    pub name: String,
    /// The formation's directory there, where that tells it from others.
    #[serde(skip)]
    dir: String,
    /// `called`, `up`, `joining`, `leaving`, `left`, `missing` or `lost`; `silent` where that is all that another host knows.
    pub state: &'static str,
    /// Reason why it is not up, or what is wrong with it.
    pub message: Option<String>,
    /// Mount point of the formation there.
    pub mount: Option<PathBuf>,
    /// Its nodes.
    pub nodes: Vec<u16>,
}

impl From<&HostState> for HostReport {
    fn from(host: &HostState) -> HostReport {
        HostReport {
            name: host.name.clone(),
            dir: String::new(),
            state: match host.life {
                HostLife::Called => "called",
                HostLife::Up => "up",
                HostLife::Missing => "missing",
                HostLife::Lost => "lost",
                HostLife::Left => "left",
            },
            message: host.message.clone(),
            mount: host.mount.clone(),
            nodes: host.nodes.clone(),
        }
    }
}

fn hosts_of(state: &FormationState) -> Vec<HostReport> {
    let mut reports: Vec<HostReport> = state.hosts.iter().map(HostReport::from).collect();
    for arrival in state.arriving() {
        let report = reports.get_mut(arrival.host).filter(|report| matches!(report.state, "up" | "called"));
        if let Some(report) = report {
            report.state = "joining";
            report.message = report.message.take().or_else(|| arrival.message.clone());
        }
    }
    for departure in state.leaving() {
        if let Some(report) = reports.get_mut(departure.host).filter(|report| report.state == "up") {
            report.state = "leaving";
            report.message = report.message.take().or_else(|| departure.message.clone());
        }
    }
    let shown = reports.into_iter().enumerate().filter(|(at, _)| !state.is_former_host(*at));
    shown.map(|(_, report)| report).collect()
}

/// The supervisor.
#[derive(Debug, Serialize)]
pub struct SupervisorReport {
    /// Its process.
    pub pid: Option<u32>,
    /// True if it lives; if not, nothing is restarted.
    pub alive: bool,
    /// True if a copy of it waits to take its place.
    pub standby: bool,
}

/// Content that site storage does not have.
#[derive(Debug, Serialize)]
pub struct UnflushedReport {
    /// Files, directories and links.
    pub files: usize,
    /// About how much of their content, rounded up to stripes.
    pub bytes: u64,
    /// Names that were deleted, and are still there.
    pub deletions: usize,
    /// Reason why some of it could not be flushed the last time.
    pub failing: Vec<String>,
}

/// A mount.
#[derive(Debug, Serialize)]
pub struct MountReport {
    /// Its location.
    pub dir: PathBuf,
    /// The node that serves it.
    pub node: u16,
    /// Trouble with its place, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Reason why whoever asks does not reach it at this path, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
}

/// Sums.
#[derive(Debug, Default, Serialize)]
pub struct Totals {
    capacity_bytes: u64,
    used_bytes: u64,
    records_bytes: u64,
    files: u64,
    open_files: u64,
}

/// A node.
#[derive(Debug, Serialize)]
pub struct NodeReport {
    /// Position in the map.
    pub id: u16,
    /// Its host: the one that it runs on now.
    pub host: String,
    /// Mirror epoch in which it moved there; 0 if it was started there.
    pub moved_in_epoch: u32,
    /// Process of its daemon.
    pub pid: Option<u32>,
    /// `starting`, `ready`, `unreachable`, `restarting`, `failed`, `stopped` or `dead`.
    pub state: &'static str,
    /// End of its last daemon, or the reason why it does not answer.
    pub message: Option<String>,
    /// Daemons of it that died.
    pub deaths: u64,
    /// Client lane, peer lane, Unix socket.
    pub addresses: Vec<String>,
    /// Since its daemon started.
    pub uptime_ms: Option<u64>,
    /// Files and directories whose records it holds.
    pub files: Option<u64>,
    /// Open ones of them.
    pub open_files: Option<u64>,
    /// Records.
    pub records: Option<u64>,
    /// Memory of the records.
    pub record_bytes: Option<u64>,
    /// Memory that they take.
    pub names_bytes: Option<u64>,
    /// Memory that they may take.
    pub names_max_bytes: Option<u64>,
    /// Its volumes.
    pub volumes: Vec<VolumeReport>,
    /// Pages of its mounts, under the session contract.
    pub page_pool: Option<PoolReport>,
    /// Requests that it has served, and made to other nodes.
    pub operations: Vec<OperationReport>,
    /// Damage found on its volumes, if there is any.
    pub damage: Option<DamageReport>,
}

/// A volume.
#[derive(Debug, Serialize)]
pub struct VolumeReport {
    /// Its directory.
    pub path: PathBuf,
    /// `memory` or the kind of its file system.
    pub kind: String,
    /// Room that there is.
    pub capacity_bytes: u64,
    /// Bytes of data, replicas of other nodes' volumes among them.
    pub used_bytes: Option<u64>,
    /// Bytes of those replicas.
    pub replica_bytes: Option<u64>,
    /// Bytes of records.
    pub records_bytes: Option<u64>,
    /// Subfiles.
    pub subfiles: Option<u64>,
    /// True if its blocks have checksums.
    pub checksum: Option<bool>,
}

impl From<&VolumeStatus> for VolumeReport {
    fn from(seen: &VolumeStatus) -> VolumeReport {
        VolumeReport {
            path: seen.path.clone().into(),
            kind: seen.kind.clone(),
            capacity_bytes: seen.capacity_bytes,
            used_bytes: Some(seen.used_bytes),
            replica_bytes: Some(seen.replica_bytes),
            records_bytes: Some(seen.records_bytes),
            subfiles: Some(seen.subfiles),
            checksum: Some(seen.checksum),
        }
    }
}

/// The page pools of a node's mounts.
#[derive(Debug, Serialize)]
pub struct PoolReport {
    /// Room that there is.
    pub size_bytes: u64,
    /// Bytes that are in use.
    pub used_bytes: u64,
    /// Bytes that are not at nodes yet.
    pub unsent_bytes: u64,
    /// Reads of pages that were there.
    pub hits: u64,
    /// Reads of pages that were not.
    pub misses: u64,
    /// Bytes that were sent to nodes.
    pub sent_bytes: u64,
    /// Bytes of pages that were dropped to make room.
    pub dropped_bytes: u64,
}

impl From<PoolStatus> for PoolReport {
    fn from(pool: PoolStatus) -> PoolReport {
        let PoolStatus { size_bytes, used_bytes, unsent_bytes, hits, misses, sent_bytes, dropped_bytes } =
            pool;
        PoolReport { size_bytes, used_bytes, unsent_bytes, hits, misses, sent_bytes, dropped_bytes }
    }
}

/// Asks all nodes at the same time: of one host's part of a formation those of that host, unless the keeper of the
/// whole can be asked from there.
///
/// # Errors
/// When the state or the secret cannot be read.
pub fn look(dir: &StateDir) -> LaunchResult<StatusReport> {
    let state = settled(dir)?.ok_or_else(taken_down)?;
    let elsewhere = state.part.as_ref().and_then(|_| look_elsewhere(dir, &state));
    Ok(look_at(dir, elsewhere.unwrap_or(state), |_, _| ())?.0)
}

/// The same, of a host's part always of that host alone, so that what is gathered of all hosts counts each node once.
pub fn look_here(dir: &StateDir) -> LaunchResult<StatusReport> {
    let mut state = settled(dir)?.ok_or_else(taken_down)?;
    elsewhere::forget_moved(&mut state);
    Ok(look_at(dir, state, |_, _| ())?.0)
}

/// Returns the status of all hosts, also where only one host's part is.
pub fn look_at_all(dir: &StateDir) -> LaunchResult<StatusReport> {
    Ok(look_further(dir, |_, _| ())?.0)
}

/// Returns the status, and what else is asked by the same connections, if there are any.
pub fn look_further<T>(
    dir: &StateDir,
    ask: impl FnOnce(&Client, &StatusReport) -> T,
) -> LaunchResult<(StatusReport, Option<T>)> {
    let mut state = settled(dir)?.ok_or_else(taken_down)?;
    elsewhere::forget_moved(&mut state);
    elsewhere::add_nodes(&mut state);
    let hosts_unknown = state.part.is_some();
    let (mut report, asked) = look_at(dir, state, ask)?;
    if hosts_unknown {
        report.hosts = elsewhere::hosts(&report.nodes);
    }
    Ok((report, asked))
}

fn taken_down() -> LaunchError {
    LaunchError::said(Kind::Refused, "the formation was taken down meanwhile")
}

fn look_at<T>(
    dir: &StateDir,
    mut state: FormationState,
    ask: impl FnOnce(&Client, &StatusReport) -> T,
) -> LaunchResult<(StatusReport, Option<T>)> {
    // The lock, not the state, tells whether it runs: what was killed has written nothing down.
    let held = dir.is_held();
    if held && state.is_over_hosts() && dir.is_whole() {
        state = look_at_hosts(dir, state)?;
    }
    // Without a map, as at the beginning of a start, nobody can be asked.
    if !held || state.map.is_empty() {
        let answers = state.nodes.iter().map(|_| None).collect();
        return Ok((report(dir, state, held, answers, (Vec::new(), None)), None));
    }
    let client = connect(dir, &state, ANSWER_WAIT)?;
    let answers = ask_all(&client, &state);
    // Asked only when it takes no waiting: their space is on many nodes.
    let all_answer = answers.iter().all(|answer| matches!(answer, Some(Ok(_))));
    let partitions = if all_answer { list_partitions(&client).unwrap_or_default() } else { Vec::new() };
    let has_sources = partitions.iter().any(|partition| partition.has_source());
    let unflushed = has_sources.then(|| unflushed(&client).ok()).flatten();
    let names = damage::names(&client, answers.iter().flatten().flatten());
    let mut report = report(dir, state, held, answers, (partitions, unflushed));
    report.nodes.iter_mut().filter_map(|node| node.damage.as_mut()).for_each(|damage| damage.name(&names));
    let asked = ask(&client, &report);
    Ok((report, Some(asked)))
}

fn any_mirrors(client: &Client) -> FsResult<bool> {
    Ok(client.partitions.list()?.iter().any(|partition| partition.settings.mirrors_deletes()))
}

fn unflushed(client: &Client) -> FsResult<UnflushedReport> {
    let (unsaved, mirrors) = (client.site.unsaved()?, any_mirrors(client)?);
    let left = if mirrors { client.site.removals()?.left } else { Vec::new() };
    let mut failing: Vec<String> = unsaved.failing().map(str::to_owned).collect();
    failing.extend(left.iter().filter(|left| !left.why.is_empty()).map(|left| left.why.clone()));
    Ok(UnflushedReport { files: unsaved.count(), bytes: unsaved.bytes(), deletions: left.len(), failing })
}

type Answer = Option<Result<NodeStatus, String>>;

fn ask_all(client: &Client, state: &FormationState) -> Vec<Answer> {
    let ask = |node: &NodeState| {
        // Of other hosts no process can be looked at from here, so their nodes are asked in any case.
        let is_elsewhere = state.is_over_hosts() || elsewhere::is_elsewhere(state, node);
        let lives = is_elsewhere || node.process.is_some_and(|process| process.is_alive());
        let serves = node.life == NodeLife::Ready && lives;
        serves.then(|| client.nodes().status(NodeId(node.id)).map_err(|error| error.to_string()))
    };
    parallel_map(&state.nodes, ask).into_iter().map(Option::flatten).collect()
}

fn report(
    dir: &StateDir,
    state: FormationState,
    held: bool,
    answers: Vec<Answer>,
    (partitions, unflushed): (Vec<PartitionReport>, Option<UnflushedReport>),
) -> StatusReport {
    assert_eq!(answers.len(), state.nodes.len(), "answers are told by the position of their nodes");
    // A keeper on another host lives: it has just answered.
    let is_kept_elsewhere = state.is_over_hosts() && !dir.is_whole();
    let alive = is_kept_elsewhere || state.supervisor.is_some_and(|process| process.is_alive());
    let views = MountViews::of(&state);
    let seen = || answers.iter().flatten().flatten();
    let epoch = seen().map(|status| status.epoch).max().unwrap_or(0);
    let map = state.map();
    let is_withdrawn = |node: u16| map.as_ref().is_some_and(|map| map.is_withdrawn(NodeId(node)));
    let mut silent = silence::silent(seen());
    silent.retain(|silent| !is_withdrawn(silent.node));
    let links = LinkReport::of(seen());
    let present = state.nodes.iter().zip(answers).filter(|(node, _)| !is_withdrawn(node.id));
    let nodes: Vec<NodeReport> = present.map(|(node, answer)| node_report(node, held, answer)).collect();
    let hosts = hosts_of(&state);
    let is_well = |host: &HostState| match host.life {
        HostLife::Up => host.message.is_none(),
        // What is left there, if anything, is said of it.
        HostLife::Left => true,
        HostLife::Called | HostLife::Missing | HostLife::Lost => false,
    };
    let mut present = state.hosts.iter().enumerate().filter(|(at, _)| !state.is_former_host(*at));
    let all_up = present.all(|(_, host)| is_well(host));
    let given_up = nodes.iter().any(|node| node.state == "failed");
    let lost = LossReport::of(&state);
    let all_ready = all_up && nodes.iter().all(|node| node.state == "ready");
    StatusReport {
        state: match state.stage {
            _ if !held => "dead",
            Stage::Starting => "starting",
            Stage::Stopping => "stopping",
            Stage::Running if all_ready && alive => "running",
            Stage::Running => "degraded",
        },
        given_up,
        name: state.name.to_string(),
        formation: state.formation,
        release: state.release,
        created_unix_ms: state.created_unix_ms,
        supervisor: SupervisorReport {
            pid: state.supervisor.map(|process| process.pid),
            alive,
            standby: alive && !is_kept_elsewhere && dir.has_standby(),
        },
        keep: state.keep,
        ends_unix_ms: state.ends_unix_ms,
        owner: state.owner.map(|process| process.pid),
        epoch,
        dead: silent.iter().filter(|silent| silent.state == "dead").map(|silent| silent.node).collect(),
        silent,
        message: state.message,
        directory: dir.path().to_owned(),
        stripe_bytes: state.stripe,
        width: state.width,
        secure: state.secure,
        http: state.http.filter(|_| state.hosts.is_empty()).map(HttpReport::of),
        gateway: state
            .gateway
            .filter(|_| held && state.hosts.is_empty())
            .map(|gateway| GatewayReport::of(gateway, dir.secret().ok())),
        links,
        mounts: state
            .mounts
            .into_iter()
            .map(|mount| MountReport {
                unreachable: views.view(&mount).trouble(),
                dir: mount.dir,
                node: mount.node,
                trouble: mount.trouble,
            })
            .collect(),
        partitions,
        unflushed,
        totals: totals(&nodes),
        nodes,
        hosts,
        lost,
    }
}

fn node_report(node: &NodeState, held: bool, answer: Answer) -> NodeReport {
    let (status, silence) = match answer {
        Some(Ok(status)) => (Some(status), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let state = match node.life {
        _ if !held => "dead",
        NodeLife::Ready if status.is_some() => "ready",
        NodeLife::Ready if silence.is_some() => "unreachable",
        // It was not even asked: its process is gone, and the supervisor has not noted that yet.
        NodeLife::Ready => "dead",
        other => other.name(),
    };
    NodeReport {
        id: node.id,
        host: node.host.clone(),
        moved_in_epoch: node.epoch,
        pid: node.process.map(|process| process.pid),
        state,
        message: silence.or_else(|| node.message.clone()),
        deaths: node.deaths,
        addresses: vec![
            node.client_address.clone(),
            node.peer_address.clone(),
            node.unix_path.display().to_string(),
        ],
        uptime_ms: status.as_ref().map(|status| status.uptime_ms),
        files: status.as_ref().map(|status| status.files),
        open_files: status.as_ref().map(|status| status.open_files),
        records: status.as_ref().map(|status| status.records),
        record_bytes: status.as_ref().map(|status| status.record_bytes),
        names_bytes: status.as_ref().map(|status| status.names_bytes),
        names_max_bytes: status.as_ref().map(|status| status.names_max_bytes),
        volumes: volume_reports(node, status.as_ref()),
        page_pool: status.as_ref().map(|status| status.page_pool.into()),
        damage: status.as_ref().and_then(DamageReport::of),
        operations: status.into_iter().flat_map(|status| status.operations).map(Into::into).collect(),
    }
}

fn volume_reports(node: &NodeState, status: Option<&NodeStatus>) -> Vec<VolumeReport> {
    let one = |(index, planned): (usize, &bivouac_launch::VolumeState)| {
        let seen = status.and_then(|status| status.volumes.get(index));
        VolumeReport {
            path: planned.path.clone(),
            kind: planned.kind.clone(),
            capacity_bytes: seen.map_or(planned.capacity_bytes, |volume| volume.capacity_bytes),
            used_bytes: seen.map(|volume| volume.used_bytes),
            replica_bytes: seen.map(|volume| volume.replica_bytes),
            records_bytes: seen.map(|volume| volume.records_bytes),
            subfiles: seen.map(|volume| volume.subfiles),
            checksum: seen.map(|volume| volume.checksum),
        }
    };
    if !node.volumes.is_empty() {
        return node.volumes.iter().enumerate().map(one).collect();
    }
    // Of another host's node only that node knows them.
    let seen = status.map_or(&[][..], |status| status.volumes.as_slice());
    seen.iter().map(VolumeReport::from).collect()
}

fn totals(nodes: &[NodeReport]) -> Totals {
    let mut totals = Totals::default();
    for node in nodes {
        totals.files += node.files.unwrap_or(0);
        totals.open_files += node.open_files.unwrap_or(0);
        for volume in &node.volumes {
            totals.capacity_bytes = totals.capacity_bytes.saturating_add(volume.capacity_bytes);
            totals.used_bytes = totals.used_bytes.saturating_add(volume.used_bytes.unwrap_or(0));
            totals.records_bytes = totals.records_bytes.saturating_add(volume.records_bytes.unwrap_or(0));
        }
    }
    totals
}

impl StatusReport {
    /// Returns the exit code of `status`: docs/commands.md.
    pub fn exit_code(&self) -> u8 {
        match self.state {
            "dead" => 1,
            "degraded" if self.given_up => CODE_FAILED,
            "degraded" => CODE_DEGRADED,
            _ => 0,
        }
    }

    /// Returns the files and directories besides the root, and bytes of data, as far as nodes answer.
    pub fn content(&self) -> (u64, u64) {
        // The root is counted by its home, and is nothing that a user has made.
        (self.totals.files.saturating_sub(1), self.totals.used_bytes)
    }

    /// Returns the report for people; with `per_node`, requests are shown by node as well. Tables are made for a
    /// terminal of so many columns.
    pub fn to_text(&self, per_node: bool, columns: Option<usize>) -> String {
        let mut text = self.summary();
        text.push_str(&self.node_table(columns));
        if !self.partitions.is_empty() {
            text.push_str(&format!("\n{}", partition_table(&self.partitions, columns)));
            text.extend(self.partitions.iter().filter_map(PartitionReport::pinned_text));
        }
        if let Some(UnflushedReport { files, bytes, deletions, failing }) = &self.unflushed {
            let (files, bytes) = (format_count(*files as u64, "file"), format_size(*bytes));
            if *deletions > 0 {
                let names = format_count(*deletions as u64, "deleted name");
                text.push_str(&format!("still at their source: {names}\n"));
            }
            text.push_str(&format!("not at their source: {files}, about {bytes}\n"));
            failing.iter().for_each(|why| text.push_str(&format!("  not flushed: {why}\n")));
        }
        let operations = self.nodes.iter().map(|node| (node.id, node.operations.as_slice()));
        text.push_str(&operations::table(operations.clone(), per_node, columns));
        text.push_str(&operations::damage_text(operations));
        for (node, damage) in self.nodes.iter().filter_map(|node| Some((node, node.damage.as_ref()?))) {
            text.push_str(&damage.to_text(node.id, &node.host));
        }
        let answering = self.nodes.iter().filter(|node| node.state == "ready");
        for silent in &self.silent {
            let of = self.nodes.iter().find(|node| node.id == silent.node);
            let others = answering.clone().filter(|node| node.id != silent.node).count();
            let may_return = of.is_none_or(|node| node.state != "failed");
            text.push_str(&silent.to_text(of.map_or("?", |node| &node.host), others, may_return));
        }
        for node in self.nodes.iter().filter(|node| node.state != "ready") {
            if let Some(message) = &node.message {
                text.push_str(&format!("node {}: {message}\n", node.id));
            }
        }
        if !self.supervisor.alive && self.state != "dead" {
            text.push_str("supervisor gone: nothing is restarted; copy out what you need (bivouac stage out), then: bivouac down\n");
        }
        if self.state == "dead" && self.hosts.is_empty() {
            let name = &self.name;
            text.push_str(&format!(
                "every process of it was killed; have it back: bivouac recover {name}; or throw it away: bivouac down --name {name} --discard\n"
            ));
        }
        if let Some(message) = &self.message {
            text.push_str(&format!("{message}\n"));
        }
        if let Some(reason) = &self.keep {
            text.push_str(&format!("holds data that is nowhere else: {reason}\n"));
        }
        text
    }

    fn summary(&self) -> String {
        let Totals { capacity_bytes, used_bytes, records_bytes, files, open_files } = &self.totals;
        let free = format_size(capacity_bytes.saturating_sub(used_bytes.saturating_add(*records_bytes)));
        let mut text = format!("formation {}: {}\n", self.name, self.state);
        if self.secure {
            text.push_str("encrypted between hosts\n");
        }
        text.extend(self.http.as_ref().filter(|_| self.state != "dead").map(HttpReport::line));
        text.extend(self.gateway.as_ref().filter(|_| self.state != "dead").map(GatewayReport::text));
        text.extend(self.links.iter().map(LinkReport::line));
        if let Some(ends) = self.ends_unix_ms.filter(|_| self.state != "dead") {
            text.push_str(&format!("ends in {}\n", format_duration(left_ms(ends))));
        }
        if let Some(owner) = self.owner {
            text.push_str(&format!("ends with process {owner}\n"));
        }
        for mount in &self.mounts {
            let trouble = mount.trouble.as_ref().or(mount.unreachable.as_ref());
            let trouble = trouble.map_or(String::new(), |trouble| format!(": {trouble}"));
            text.push_str(&format!("mount {} (node {}){trouble}\n", mount.dir.display(), mount.node));
        }
        text.push_str(&hosts_text(&self.hosts));
        if self.state == "dead" {
            return text + "what it holds: " + LIST_COMMAND + "\n\n";
        }
        let (capacity, used) = (format_size(*capacity_bytes), format_size(*used_bytes));
        let records = format_size(*records_bytes);
        text.push_str(&format!("{used} of data, {records} for names, {free} free of {capacity}; "));
        text + &format!("{}, {open_files} open\n\n", format_count(*files, "file"))
    }

    fn node_table(&self, columns: Option<usize>) -> String {
        let head = [
            "NODE", "HOST", "STATE", "PID", "UPTIME", "FILES", "OPEN", "DEATHS", "MEMORY", "VOLUME", "KIND",
            "DATA", "NAMES", "CAPACITY",
        ];
        let rows: Vec<Vec<String>> = self.nodes.iter().flat_map(NodeReport::rows).collect();
        layout(columns, &head, &[0, 3, 4, 5, 6, 7, 8, 11, 12, 13], &rows)
    }
}

/// Returns the mount point, and the hosts that are not as they should be.
fn hosts_text(hosts: &[HostReport]) -> String {
    let mut text = String::new();
    let mounted: Vec<&HostReport> = hosts.iter().filter(|host| host.mount.is_some()).collect();
    if let Some(mount) = mounted.first().and_then(|host| host.mount.as_ref()) {
        text.push_str(&format!("mount {} on {} of {} hosts\n", mount.display(), mounted.len(), hosts.len()));
    }
    for host in hosts {
        let verb = if host.state == "left" { "has" } else { "is" };
        match &host.message {
            Some(message) => {
                text.push_str(&format!("host {} {verb} {}: {message}\n", host.name, host.state));
            }
            None if host.state == "left" => text.push_str(&format!("host {} has left\n", host.name)),
            None => {}
        }
    }
    text
}

impl NodeReport {
    /// Returns a row per volume, with the node's own columns in the first.
    fn rows(&self) -> Vec<Vec<String>> {
        let or_dash = |value: Option<u64>| value.map_or("-".into(), |value| value.to_string());
        let own = [
            self.id.to_string(),
            self.host.clone(),
            self.state.into(),
            self.pid.map_or("-".into(), |pid| pid.to_string()),
            self.uptime_ms.map_or("-".into(), format_duration),
            or_dash(self.files),
            or_dash(self.open_files),
            self.deaths.to_string(),
            self.memory(),
        ];
        let row = |(index, volume): (usize, &VolumeReport)| {
            let own = own.iter().map(|cell| if index == 0 { cell.clone() } else { String::new() });
            let path = volume.path.display().to_string();
            let size = |bytes: Option<u64>| bytes.map_or("-".into(), format_size);
            let sizes = [volume.used_bytes, volume.records_bytes, Some(volume.capacity_bytes)].map(size);
            own.chain([path, volume.kind.clone()]).chain(sizes).collect()
        };
        self.volumes.iter().enumerate().map(row).collect()
    }

    /// Returns the memory of its names, and of how much, as text.
    fn memory(&self) -> String {
        match (self.names_bytes, self.names_max_bytes) {
            (Some(bytes), Some(u64::MAX)) => format_size(bytes),
            (Some(bytes), Some(max)) => format!("{} of {}", format_size(bytes), format_size(max)),
            _ => "-".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_client::OpCount;
    use bivouac_launch::{ProcessId, RELEASE, STATE_VERSION, VolumeState};

    fn node(id: u16, life: NodeLife) -> NodeState {
        let volume = |index| VolumeState {
            path: format!("/v{index}/n{id}").into(),
            kind: "memory".into(),
            capacity_bytes: 1 << 30,
            own_dir: true,
        };
        NodeState {
            id,
            host: "h".into(),
            process: Some(ProcessId { pid: 7, started_ticks: 1 }),
            life,
            message: (life == NodeLife::Failed).then(|| "died 5 times".into()),
            deaths: 0,
            client_address: "127.0.0.1:1".into(),
            peer_address: "127.0.0.1:2".into(),
            unix_path: "/run/n".into(),
            epoch: 0,
            volumes: vec![volume(0), volume(1)],
        }
    }

    fn state(nodes: Vec<NodeState>) -> FormationState {
        FormationState {
            version: STATE_VERSION,
            release: RELEASE.into(),
            name: "x".parse().unwrap(),
            formation: "07".repeat(16),
            created_unix_ms: 1,
            stage: Stage::Running,
            supervisor: Some(ProcessId::current()),
            keep: None,
            sources: None,
            message: None,
            before: None,
            owner: None,
            ends_unix_ms: None,
            wait_ms: 1,
            dead_after_ms: None,
            port: 0,
            in_process: false,
            secure: false,
            detect_races: false,
            protect: bivouac_launch::Protection::None,
            http: None,
            gateway: None,
            tolerance: bivouac_launch::RestartLimit::default(),
            stripe: 4096,
            width: 0,
            spread_at: bivouac_types::SpreadAt::default(),
            checksum: bivouac_types::Checksum::default(),
            page_pool: 64 << 20,
            names_memory: 1 << 30,
            numa: true,
            log_format: bivouac_launch::LogFormat::default(),
            map: String::new(),
            nodes,
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

    fn answer(id: u16) -> Answer {
        let volume = |records_bytes| VolumeStatus {
            path: "/elsewhere".into(),
            kind: "memory".into(),
            capacity_bytes: 1 << 30,
            used_bytes: 1 << 20,
            replica_bytes: 0,
            records_bytes,
            subfiles: 3,
            checksum: false,
        };
        let count =
            |name: &str, client, peer| OpCount { name: name.into(), client, peer, ..OpCount::default() };
        Some(Ok(NodeStatus {
            id,
            pid: 7,
            uptime_ms: 90_000,
            files: 10,
            open_files: 1,
            records: 20,
            record_bytes: 2000,
            names_bytes: 3 << 20,
            names_max_bytes: 1 << 30,
            volumes: vec![volume(512 << 20), volume(0)],
            page_pool: PoolStatus { size_bytes: 64 << 20, used_bytes: 2 << 20, ..PoolStatus::default() },
            operations: vec![count("Read", 5, 1)],
            epoch: 1,
            silent: vec![],
            damage: bivouac_client::DamageStatus::default(),
            links: Vec::new(),
        }))
    }

    fn look_at(nodes: Vec<NodeState>, answers: Vec<Answer>) -> StatusReport {
        report(&StateDir::at("/run/x".into()), state(nodes), true, answers, (Vec::new(), None))
    }

    #[test]
    fn a_healthy_formation_is_running() {
        let report =
            look_at(vec![node(0, NodeLife::Ready), node(1, NodeLife::Ready)], vec![answer(0), answer(1)]);
        assert_eq!(report.state, "running");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["totals"]["used_bytes"], 4 << 20);
        assert_eq!(json["nodes"][1]["volumes"][1]["path"], "/v1/n1");
        assert_eq!(json["nodes"][0]["operations"].as_array().unwrap().len(), 1);
        let text = report.to_text(false, None);
        assert!(
            text.contains("4 MiB of data, 1 GiB for names, 3 GiB free of 4 GiB; 20 files, 2 open"),
            "{text}"
        );
        assert!(text.contains("Read            10      2      0"), "{text}");
        assert!(text.contains("1 min") && text.contains("3 MiB of 1 GiB"), "{text}");
        assert_eq!(json["nodes"][0]["names_max_bytes"], 1 << 30);
    }

    #[test]
    fn nodes_that_are_not_there_are_shown_as_such() {
        let nodes = vec![node(0, NodeLife::Ready), node(1, NodeLife::Failed), node(2, NodeLife::Ready)];
        let report = look_at(nodes, vec![answer(0), None, Some(Err("no answer within 2 s".into()))]);
        assert_eq!((report.state, report.exit_code()), ("degraded", 5));
        let states: Vec<&str> = report.nodes.iter().map(|node| node.state).collect();
        assert_eq!(states, ["ready", "failed", "unreachable"]);
        let text = report.to_text(false, None);
        assert!(
            text.contains("node 1: died 5 times") && text.contains("node 2: no answer within 2 s"),
            "{text}"
        );
    }

    #[test]
    fn a_lost_supervisor_and_kept_data_are_said() {
        let mut lost = state(vec![node(0, NodeLife::Ready)]);
        lost.supervisor = None;
        lost.keep = Some("results".into());
        let report = report(&StateDir::at("/run/x".into()), lost, true, vec![answer(0)], (Vec::new(), None));
        assert_eq!((report.state, report.exit_code()), ("degraded", 4));
        let text = report.to_text(false, None);
        assert!(text.contains("supervisor gone") && text.contains("nowhere else: results"), "{text}");
    }

    #[test]
    fn a_killed_formation_is_dead() {
        let dead = report(
            &StateDir::at("/run/x".into()),
            state(vec![node(0, NodeLife::Ready)]),
            false,
            vec![None],
            (Vec::new(), None),
        );
        assert_eq!((dead.state, dead.nodes[0].state), ("dead", "dead"));
        let text = dead.to_text(false, None);
        let command = text.lines().find_map(|line| line.strip_prefix("what it holds: "));
        assert_eq!(command, Some(LIST_COMMAND));
    }
}
