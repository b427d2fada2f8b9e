//! A daemon from its supervisor's view: what outlives its processes, and the process that serves at the moment. It is
//! one node or, where nodes share a process, all of this machine.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::DaemonProgram;
use crate::fuse_connection::{abort, refuse_all};
use crate::handover::{DaemonConfig, FromNode, NodeHandles, ToNode, hand_nodes};
use crate::http::ToHttp;
use crate::log_events::Event;
use crate::packets;
use crate::process::ProcessId;
use crate::spawned::{ProcessEnd, Spawned};
use crate::state::FormationState;
use crate::state_dir::{SECRET_LEN, StateDir};
use crate::{Kind, LaunchError, LaunchResult};

/// Bytes at the end of a log that are searched.
const LOG_TAIL: u64 = 4096;

/// Time after the end of its connection for which a process is polled for its exit.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Text for the end of a process of which threads are left.
const LINGERS: &str = "killed, but for threads that wait in the kernel for its successor";

/// The commands that serve HTTP and links.
const SERVE: &str = "serve";
const GATEWAY: &str = "gateway";

/// Handles of the nodes, which last, and their present process.
#[derive(Debug)]
pub(super) struct Daemon {
    /// Their positions among the nodes of this machine.
    pub(super) nodes: Range<usize>,
    handles: Vec<NodeHandles>,
    pub(super) mounts: Vec<HeldMount>,
    /// Mounts that the present process has not been handed yet, because its socket was full for instance.
    unserved: Vec<u32>,
    /// A map that could not be handed over yet, for want of a descriptor.
    untold_map: Option<Vec<u8>>,
    pub(super) running: Option<DaemonProcess>,
    /// Former processes of which threads wait in the kernel for what the present one is to answer.
    pub(super) former: Vec<Spawned>,
    /// The server and its port, if it is no node.
    server: Option<(Server, TcpListener)>,
}

/// A server that is supervised as nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// The server for HTTP.
    Http,
    /// The gateway that other formations link to.
    Gateway,
}

impl Server {
    /// Returns the command that it is.
    fn command(self) -> &'static str {
        match self {
            Server::Http => SERVE,
            Server::Gateway => GATEWAY,
        }
    }

    pub(super) fn log(self, dir: &StateDir) -> PathBuf {
        match self {
            Server::Http => dir.http_log(),
            Server::Gateway => dir.gateway_log(),
        }
    }
}

/// A mount that goes from one process to its successor.
#[derive(Debug)]
pub(super) struct HeldMount {
    pub(super) id: u32,
    pub(super) node: u16,
    pub(super) dir: PathBuf,
    pub(super) device: OwnedFd,
    pub(super) memory: OwnedFd,
    /// The command that waits for it to be served.
    pub(super) caller: Option<u64>,
    /// The number of its connection.
    pub(super) connection: u32,
}

/// A daemon, or a server, that runs.
#[derive(Debug)]
pub(super) struct DaemonProcess {
    pub(super) process: Spawned,
    /// Socket that it speaks over; `None` when it will say no more.
    pub(super) socket: Option<OwnedFd>,
    /// Reason why it said that it cannot serve.
    pub(super) failure: Option<String>,
    /// Time when it ceased to be connected: it ends.
    pub(super) cut: Option<Instant>,
}

/// End of a process.
#[derive(Debug)]
pub(super) struct Death {
    pub(super) how: String,
    /// Set if it reported the failure itself.
    pub(super) is_said: bool,
    /// Set if it may have got a signal that cannot be caught.
    pub(super) may_be_killed: bool,
}

impl Daemon {
    pub(super) fn new(first: usize, handles: Vec<NodeHandles>) -> Daemon {
        let nodes = first..first + handles.len();
        Daemon {
            nodes,
            handles,
            mounts: Vec::new(),
            unserved: Vec::new(),
            untold_map: None,
            running: None,
            former: Vec::new(),
            server: None,
        }
    }

    /// Returns a server, which is supervised as they are; `count` is how many nodes there are.
    pub(super) fn of_server(count: usize, server: Server, listener: TcpListener) -> Daemon {
        Daemon { server: Some((server, listener)), ..Daemon::new(count, Vec::new()) }
    }

    /// Closes the sockets of its nodes, which are never served here again: who connects is refused, and looks elsewhere,
    /// rather than wait for an answer.
    pub(super) fn close_sockets(&mut self) {
        self.handles.clear();
    }

    /// Returns true if it has a process, or threads of a former one.
    pub(super) fn runs(&self) -> bool {
        self.running.is_some() || !self.former.is_empty()
    }

    /// Returns the server that it is, if it is no node.
    pub(super) fn server(&self) -> Option<Server> {
        self.server.as_ref().map(|(server, _)| *server)
    }

    /// Returns the daemons of all nodes of this machine: one of each, or one of all.
    pub(super) fn of_all(handles: Vec<NodeHandles>, in_process: bool) -> Vec<Daemon> {
        if in_process {
            return vec![Daemon::new(0, handles)];
        }
        handles.into_iter().enumerate().map(|(index, handles)| Daemon::new(index, vec![handles])).collect()
    }

    /// Starts a process and hands everything over to it. Waits for nothing.
    pub(super) fn start(
        &mut self,
        program: &DaemonProgram,
        dir: &StateDir,
        state: &FormationState,
        secret: &[u8; SECRET_LEN],
        lock: &OwnedFd,
    ) -> LaunchResult<ProcessId> {
        // It would wait for the volumes' locks, which the other one has, and then both for the nodes' listeners.
        assert!(self.running.is_none(), "nodes {:?} have a daemon already", self.nodes);
        let refused = |e: std::io::Error| LaunchError::system("a daemon's process", e);
        let (socket, theirs) = packets::pair().map_err(refused)?;
        let mut command = Command::new(&program.program);
        command.arg0("bivouac");
        if let Some((server, listener)) = &self.server {
            let serve = ToHttp::Serve { nodes: state.nodes.iter().map(|node| node.id).collect() };
            packets::send(&socket, &serve, &[listener.as_fd(), lock.as_fd()]).map_err(refused)?;
            command.arg(server.command()).arg(dir.path());
            let log = StateDir::open_log(&server.log(dir))?;
            return self.spawn(command, socket, theirs, log);
        }
        let config = DaemonConfig::of(state, dir, secret, self.nodes.clone()).ok_or_else(|| {
            LaunchError::new(
                Kind::Refused,
                format_args!("node {} of this machine", self.nodes.start),
                "is not in the state",
                "take the formation down",
            )
        })?;
        let called = called(&config);
        let log = StateDir::open_log(&dir.node_log(config.nodes.first().map_or(0, |node| node.node)))?;
        let config = packets::to_memory(&config).map_err(refused)?;
        // In the socket before there is a process, which finds everything when it begins.
        packets::send(&socket, &ToNode::Begin, &[config.as_fd(), lock.as_fd()]).map_err(refused)?;
        hand_nodes(&socket, &self.handles).map_err(refused)?;
        command.args(&program.arguments).arg(format!("{}:{called}", state.name));
        self.spawn(command, socket, theirs, log)
    }

    /// Starts a process that is told what to do over this socket.
    fn spawn(
        &mut self,
        mut command: Command,
        socket: OwnedFd,
        theirs: OwnedFd,
        log: File,
    ) -> LaunchResult<ProcessId> {
        let refused = |e: std::io::Error| LaunchError::system("a daemon's process", e);
        // A daemon that stands still must not hold up its supervisor.
        rustix::io::ioctl_fionbio(&socket, true).map_err(|e| refused(e.into()))?;
        // Standard input is the socket: a descriptor that every program passes on, and that needs no number on the
        // command line.
        command.stdin(theirs).stdout(Stdio::null()).stderr(log).current_dir("/");
        // It has the volumes: it is watched, or it is killed.
        let process = command.spawn().and_then(Spawned::watch).map_err(refused)?;
        let id = process.id();
        self.running = Some(DaemonProcess { process, socket: Some(socket), failure: None, cut: None });
        // It begins with the newest map, and is handed all mounts once it is ready.
        (self.unserved, self.untold_map) = (Vec::new(), None);
        Ok(ProcessId::of(id).unwrap_or(ProcessId { pid: id, started_ticks: 0 }))
    }

    /// Hands a mount over.
    pub(super) fn serve(&mut self, id: u32) {
        self.unserved.push(id);
        self.hand_over_for(true);
    }

    /// Returns whether something has to be handed over again after a pause.
    pub(super) fn has_more_to_hand_over(&self) -> bool {
        !self.unserved.is_empty() || self.untold_map.is_some()
    }

    /// Hands over what could not be handed over before. Programs on a mount wait until it is.
    pub(super) fn hand_over(&mut self) {
        self.hand_over_for(false);
    }

    /// Hands over what is left; says what cannot be if this is the first attempt: it is repeated many times a second.
    fn hand_over_for(&mut self, is_first: bool) {
        if let Some(map) = self.untold_map.take() {
            self.tell_map(&map);
        }
        let Some(running) = self.running.as_ref() else { return self.unserved.clear() };
        let mounts = &self.mounts;
        let mut is_full = false;
        self.unserved.retain(|id| {
            let Some(mount) = mounts.iter().find(|mount| mount.id == *id) else { return false };
            is_full = is_full || !running.serve(mount, is_first);
            is_full
        });
    }

    /// Tells the process that a node is dead for good, or that one which was serves again.
    pub(super) fn tell_dead(&self, node: u16, dead: bool) {
        let Some(socket) = self.running.as_ref().and_then(|running| running.socket.as_ref()) else { return };
        let told = match (self.server.is_some(), dead) {
            (true, _) => packets::send(socket, &ToHttp::Dead { node, dead }, &[]),
            (false, true) => packets::send(socket, &ToNode::Lost { node }, &[]),
            (false, false) => packets::send(socket, &ToNode::Returned { node }, &[]),
        };
        self.restart_unless(told, &format!("how node {node} is"));
    }

    /// Kills the process.
    pub(super) fn kill_now(&self) {
        if let Some(running) = &self.running {
            let _gone_meanwhile =
                rustix::process::pidfd_send_signal(&running.process, rustix::process::Signal::KILL);
        }
    }

    /// Ends a process that cannot be told something: nobody says it again, and the next one is told all of it.
    fn restart_unless(&self, told: io::Result<()>, what: &str) {
        if let Err(error) = told {
            log::error!(why:% = error; "a daemon does not hear {what}: it is started again");
            self.kill_now();
        }
    }

    /// Hands a newer map over.
    pub(super) fn tell_map(&mut self, bytes: &[u8]) {
        let Some(socket) = self.running.as_ref().and_then(|running| running.socket.as_ref()) else { return };
        let memory = match packets::to_memory(&bytes) {
            Ok(memory) => memory,
            // A shortage of the supervisor, which will pass: another process would not be told either.
            Err(error) => {
                log::debug!(why:% = error; "a daemon does not hear of a newer map yet");
                self.untold_map = Some(bytes.to_vec());
                return;
            }
        };
        let told = match self.server.is_some() {
            true => packets::send(socket, &ToHttp::Map, &[memory.as_fd()]),
            false => packets::send(socket, &ToNode::Map, &[memory.as_fd()]),
        };
        self.restart_unless(told, "of a newer map");
    }

    /// Orders the daemon to seal the replicas that its node `backup` has of a node's volumes; returns whether the order
    /// was sent.
    pub(super) fn seal(&self, backup: u16, node: u16, epoch: u32) -> bool {
        let socket = self.running.as_ref().and_then(|running| running.socket.as_ref());
        // If not, whoever decides asks again.
        socket.is_some_and(|socket| packets::send(socket, &ToNode::Seal { backup, node, epoch }, &[]).is_ok())
    }

    /// Hands all mounts over.
    pub(super) fn serve_all(&mut self) {
        self.unserved = self.mounts.iter().map(|mount| mount.id).collect();
        self.hand_over_for(true);
    }

    /// Forgets all mounts, which nobody will serve any more: who waits for them is refused.
    pub(super) fn drop_mounts(&mut self) {
        let mounts = std::mem::take(&mut self.mounts);
        if self.former.is_empty() {
            // With the last descriptor of a device the kernel refuses everything.
            return;
        }
        // Threads that wait for what nobody will answer have the devices as well.
        for mount in mounts {
            // Kernels without that file leave a thread that waits in the kernel; each of its requests gets an error
            // instead.
            if !abort(mount.connection) {
                refuse_all(mount.device);
            }
        }
    }

    /// Forgets a mount; answers the command that waited for it.
    pub(super) fn drop_mount(&mut self, id: u32) -> Option<u64> {
        let index = self.mounts.iter().position(|mount| mount.id == id)?;
        self.mounts.swap_remove(index).caller
    }

    /// Returns everything that the process has sent meanwhile.
    pub(super) fn hear(&mut self) -> Vec<FromNode> {
        let mut heard = Vec::new();
        let Some(running) = &mut self.running else { return heard };
        while let Some(socket) = &running.socket {
            match packets::receive::<FromNode>(socket) {
                Ok(Some((message, _))) => heard.push(message),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Ok(None) | Err(_) => {
                    running.socket = None;
                    running.cut = Some(Instant::now());
                }
            }
        }
        heard
    }

    /// Returns whether it was connected until a moment ago, and has not ended: it has to be looked at again soon.
    pub(super) fn is_ending(&self) -> bool {
        let cut = self.running.as_ref().and_then(|running| running.cut);
        cut.is_some_and(|at| at.elapsed() < ENDS_WITHIN)
    }

    /// Says how the process ended, if it did; its log says more when it did not say itself. One of which only threads
    /// are left that wait for its successor counts as ended.
    pub(super) fn bury(&mut self, log: &Path) -> Option<Death> {
        // Looked at with each death: what a former process leaves behind is of no use once its threads have been
        // answered.
        self.former.retain_mut(|former| former.look().is_none());
        let running = self.running.as_mut()?;
        let (end, is_gone) = match running.process.look() {
            Some(end) => (end, true),
            None if running.socket.is_none() && running.process.waits_for_successor() => {
                (ProcessEnd(None), false)
            }
            None => return None,
        };
        let failure = running.failure.take();
        if let Some(running) = self.running.take().filter(|_| !is_gone) {
            self.former.push(running.process);
        }
        let is_said = failure.is_some();
        let ended = if is_gone { end.to_string() } else { LINGERS.to_owned() };
        let how = failure.unwrap_or_else(|| match last_line(log) {
            Some(line) => format!("{ended}; its log ends with: {line}"),
            None => ended,
        });
        Some(Death { how, is_said, may_be_killed: end.may_be_killed() && !is_said })
    }
}

impl DaemonProcess {
    /// Hands a mount over, or returns false if that has to be repeated. A process that is not connected any more ends,
    /// and its successor is handed all mounts.
    fn serve(&self, mount: &HeldMount, is_first: bool) -> bool {
        let message = ToNode::Serve { node: mount.node, mount: mount.id, dir: mount.dir.clone() };
        let Some(socket) = &self.socket else { return true };
        let sent = packets::send(socket, &message, &[mount.device.as_fd(), mount.memory.as_fd()]);
        if let Err(error) = &sent
            && is_first
        {
            log::warn!(why:% = error; "mount {} is not handed over yet", mount.dir.display());
        }
        sent.is_ok()
    }
}

/// Numbers of its nodes as a list of processes shows them.
fn called(config: &DaemonConfig) -> String {
    match config.nodes.as_slice() {
        [first, .., last] => format!("{}-{}", first.node, last.node),
        nodes => nodes.first().map_or_else(String::new, |only| only.node.to_string()),
    }
}

fn last_line(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let last = tail.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(Event::parse(last).map_or_else(|| last.to_owned(), |event| event.plain()))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn mounts_that_do_not_fit_into_the_socket_are_handed_over_later() {
        let (socket, theirs) = packets::pair().unwrap();
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        let process = Command::new("sleep").arg("60").spawn().and_then(Spawned::watch).unwrap();
        let mut daemon = Daemon::new(0, Vec::new());
        daemon.running = Some(DaemonProcess { process, socket: Some(socket), failure: None, cut: None });
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        // With the rest of the message, more than a socket takes at once.
        let dir = PathBuf::from("/".repeat(20_000));
        daemon.mounts = (0..64)
            .map(|id| HeldMount {
                id,
                node: 0,
                dir: dir.clone(),
                device: null(),
                memory: null(),
                caller: None,
                connection: 0,
            })
            .collect();
        daemon.serve_all();
        assert!(daemon.has_more_to_hand_over(), "all of them fit");
        let mut served = Vec::new();
        for _ in 0..64 {
            while let Ok(Some((ToNode::Serve { mount, .. }, _))) = packets::receive::<ToNode>(&theirs) {
                served.push(mount);
            }
            daemon.hand_over();
        }
        assert_eq!(served, (0..64).collect::<Vec<u32>>());
        assert!(!daemon.has_more_to_hand_over());
        daemon.kill_now();
    }

    #[test]
    fn the_last_words_of_a_log_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(last_line(&log), None);
        std::fs::write(&log, "").unwrap();
        assert_eq!(last_line(&log), None);
        std::fs::write(&log, format!("{}\nfirst\n last \n\n", "x".repeat(10_000))).unwrap();
        assert_eq!(last_line(&log).as_deref(), Some("last"));
    }
}
