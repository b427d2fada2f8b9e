//! One daemon as its supervisor sees it: what is its for ever, and the process that serves at the moment. It is one node, or,
//! where nodes share a process, all of this machine.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::DaemonProgram;
use crate::handover::{DaemonConfig, FromNode, NodeHandles, ToNode, hand_nodes};
use crate::http::Serve;
use crate::log_events::Event;
use crate::packets;
use crate::process::ProcessId;
use crate::spawned::Spawned;
use crate::state::State;
use crate::state_dir::{SECRET_LEN, StateDir};
use crate::{Kind, LaunchError, LaunchResult};

/// So much of the end of a log is looked at, in bytes.
const LOG_TAIL: u64 = 4096;

/// The command that serves HTTP.
const SERVE: &str = "serve";

/// What belongs to its nodes for ever, and their present process.
#[derive(Debug)]
pub(super) struct Daemon {
    /// Their positions among the nodes of this machine.
    pub(super) nodes: Range<usize>,
    handles: Vec<NodeHandles>,
    pub(super) mounts: Vec<HeldMount>,
    pub(super) running: Option<Running>,
    /// The port of the server for HTTP, if this is that one and no node.
    http: Option<TcpListener>,
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

/// A process.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) process: Spawned,
    /// What it says; `None` when it will say no more.
    pub(super) socket: Option<OwnedFd>,
    /// Why it said that it cannot serve.
    pub(super) failure: Option<String>,
}

/// How a process ended.
#[derive(Debug)]
pub(super) struct Death {
    pub(super) how: String,
    /// It said so itself.
    pub(super) is_said: bool,
    /// It may have been killed by a signal that cannot be caught.
    pub(super) may_be_killed: bool,
}

impl Daemon {
    pub(super) fn new(first: usize, handles: Vec<NodeHandles>) -> Daemon {
        Daemon { nodes: first..first + handles.len(), handles, mounts: Vec::new(), running: None, http: None }
    }

    /// The server for HTTP, which is supervised as they are; `count` is how many nodes there are.
    pub(super) fn of_http(count: usize, listener: TcpListener) -> Daemon {
        Daemon { http: Some(listener), ..Daemon::new(count, Vec::new()) }
    }

    /// Whether it is the server for HTTP.
    pub(super) fn is_http(&self) -> bool {
        self.http.is_some()
    }

    /// The daemons of all nodes of this machine: one of each, or one of all.
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
        state: &State,
        secret: &[u8; SECRET_LEN],
        lock: &OwnedFd,
    ) -> LaunchResult<ProcessId> {
        let refused = |e: std::io::Error| LaunchError::system("a daemon's process", e);
        let (socket, theirs) = packets::pair().map_err(refused)?;
        let mut command = Command::new(&program.program);
        command.arg0("bivouac");
        if let Some(listener) = &self.http {
            let serve = Serve { nodes: state.nodes.iter().map(|node| node.id).collect() };
            packets::send(&socket, &serve, &[listener.as_fd(), lock.as_fd()]).map_err(refused)?;
            command.arg(SERVE).arg(dir.path());
            return self.spawn(command, socket, theirs, StateDir::open_log(&dir.http_log())?);
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
        rustix::io::ioctl_fionbio(&socket, true).map_err(|e| refused(e.into()))?;
        command.stdin(theirs).stdout(Stdio::null()).stderr(log).current_dir("/");
        // It has the volumes: it is watched, or it is killed.
        let process = command.spawn().and_then(Spawned::watch).map_err(refused)?;
        let id = process.id();
        self.running = Some(Running { process, socket: Some(socket), failure: None });
        Ok(ProcessId::of(id).unwrap_or(ProcessId { pid: id, started_ticks: 0 }))
    }

    /// Hands a mount over.
    pub(super) fn serve(&self, id: u32) {
        if let (Some(running), Some(mount)) = (&self.running, self.mounts.iter().find(|mount| mount.id == id))
        {
            running.serve(mount);
        }
    }

    /// Tells the process that another node is dead for good.
    pub(super) fn tell_lost(&self, node: u16) {
        if self.is_http() {
            return;
        }
        let socket = self.running.as_ref().and_then(|running| running.socket.as_ref());
        if let Some(socket) = socket
            && let Err(error) = packets::send(socket, &ToNode::Lost { node }, &[])
        {
            log::warn!(why:% = error; "a daemon does not hear that node {node} is dead");
        }
    }

    /// Hands all mounts over.
    pub(super) fn serve_all(&self) {
        if let Some(running) = &self.running {
            self.mounts.iter().for_each(|mount| running.serve(mount));
        }
    }

    /// Forgets a mount; answers the command that waited for it.
    pub(super) fn drop_mount(&mut self, id: u32) -> Option<u64> {
        let index = self.mounts.iter().position(|mount| mount.id == id)?;
        self.mounts.swap_remove(index).caller
    }

    /// Everything that the process said meanwhile.
    pub(super) fn hear(&mut self) -> Vec<FromNode> {
        let mut heard = Vec::new();
        let Some(running) = &mut self.running else { return heard };
        while let Some(socket) = &running.socket {
            match packets::receive::<FromNode>(socket) {
                Ok(Some((message, _))) => heard.push(message),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Ok(None) | Err(_) => running.socket = None,
            }
        }
        heard
    }

    /// Says how the process ended, if it did; its log says more when it did not say itself.
    pub(super) fn bury(&mut self, log: &Path) -> Option<Death> {
        let running = self.running.as_mut()?;
        let end = running.process.look()?;
        let failure = running.failure.take();
        self.running = None;
        let is_said = failure.is_some();
        let how = failure.unwrap_or_else(|| match last_line(log) {
            Some(line) => format!("{end}; its log ends with: {line}"),
            None => end.to_string(),
        });
        Some(Death { how, is_said, may_be_killed: end.may_be_killed() && !is_said })
    }
}

impl Running {
    fn serve(&self, mount: &HeldMount) {
        let message = ToNode::Serve { node: mount.node, mount: mount.id, dir: mount.dir.clone() };
        let Some(socket) = &self.socket else { return };
        if let Err(error) = packets::send(socket, &message, &[mount.device.as_fd(), mount.memory.as_fd()]) {
            log::error!(why:% = error; "mount {} could not be handed over", mount.dir.display());
        }
    }
}

/// What a list of processes shows of its nodes.
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
