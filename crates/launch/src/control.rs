//! Requests of commands to the supervisor, over the socket in the formation's directory.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use serde::{Deserialize, Serialize};

use crate::adopted::Adoption;
use crate::packets;
use crate::polling::wait_readable;
use crate::standby::settled;
use crate::state_dir::StateDir;
use crate::{Kind, LaunchError, LaunchResult};

/// Most commands that wait to be accepted.
const BACKLOG: i32 = 64;

/// Message from a command to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Keep a mount and have a node serve it. Descriptors: FUSE device, memory.
    Mount {
        /// The node.
        node: u16,
        /// Its location.
        dir: PathBuf,
        /// True if the directory is ours to remove.
        own_dir: bool,
        /// The number of its connection, by which the kernel's table tells it from others at that place.
        connection: u32,
    },
    /// Mark the formation as one that must not be taken down without being told to discard its data.
    Keep {
        /// The reason; `None` takes the mark off.
        reason: Option<String>,
    },
    /// Note that partitions stand in front of site storage, and which: nobody takes the formation down without having
    /// looked whether that has everything.
    Sources {
        /// The partitions; `None` for none any more.
        which: Option<String>,
    },
    /// The process that it was made for lets go of it: it lives on, for so many milliseconds or for ever.
    Leave {
        /// The duration.
        ttl_ms: Option<u64>,
    },
    /// Nodes of other hosts are dead for good.
    Lost {
        /// The nodes.
        nodes: Vec<u16>,
    },
    /// Take over a node whose host was lost.
    Adopt {
        /// The node.
        adoption: Adoption,
    },
    /// A newer map. Descriptors: its bytes, in memory.
    Map,
    /// Start a node once more that was given up.
    Revive {
        /// The node.
        node: u16,
    },
    /// Begin to serve links at an address.
    Listen {
        /// The address.
        wish: SocketAddr,
    },
    /// Of one host's part: the whole is recovered, and takes its volumes with it from now on.
    Recovered,
    /// Of a formation over several hosts: ask all of them how they are, and write it down.
    Look,
    /// Request that hosts of a formation over several hosts leave in order.
    Shrink {
        /// Their names.
        hosts: Vec<String>,
        /// True to take their mounts away from programs that use them.
        is_forced: bool,
    },
    /// Request that hosts join a formation over several hosts.
    Grow {
        /// Their names.
        hosts: Vec<String>,
    },
    /// End all daemons, then yourself.
    Stop,
}

impl Request {
    /// Returns the request, in a line of a log.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Request::Mount { node, dir, .. } => format!("mount {} through node {node}", dir.display()),
            Request::Keep { reason: Some(reason) } => format!("keep the data: {reason}"),
            Request::Keep { reason: None } => "the data need not be kept any more".to_owned(),
            Request::Sources { which: Some(which) } => {
                format!("look after partitions with a source: {which}")
            }
            Request::Sources { which: None } => "no partition has a source any more".to_owned(),
            Request::Leave { ttl_ms: Some(ms) } => format!("live on by itself for {} s", ms / 1000),
            Request::Leave { ttl_ms: None } => "live on by itself".to_owned(),
            Request::Lost { nodes } => {
                let nodes: Vec<String> = nodes.iter().map(u16::to_string).collect();
                format!("nodes {} are lost", nodes.join(", "))
            }
            Request::Adopt { adoption } => {
                format!("take over node {} in epoch {}", adoption.node, adoption.epoch)
            }
            Request::Map => "take a newer map".to_owned(),
            Request::Revive { node } => format!("start node {node} once more"),
            Request::Listen { wish } => format!("serve links at {wish}"),
            Request::Recovered => "the whole is recovered".to_owned(),
            Request::Look => "look at all hosts".to_owned(),
            Request::Shrink { hosts, .. } => format!("have hosts leave: {}", hosts.join(", ")),
            Request::Grow { hosts } => format!("have hosts join: {}", hosts.join(", ")),
            Request::Stop => "end".to_owned(),
        }
    }
}

/// Message from the supervisor to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It is done.
    Done,
    /// All hosts have taken their parts down.
    Down {
        /// Processes, mounts, files and sockets that are left, on all hosts together.
        left: [usize; 4],
        /// Hosts that could not report that, or not all of it, and why.
        notes: Vec<String>,
    },
    /// It cannot be done.
    Refused {
        /// The reason.
        message: String,
    },
}

/// Returns the socket that the supervisor hears commands at.
///
/// # Errors
/// What the system says.
pub fn listen_at(dir: &StateDir) -> LaunchResult<OwnedFd> {
    let path = dir.control_path();
    let refused = |e: Errno| LaunchError::path(&path, "listen there", e);
    let socket = new_socket().map_err(refused)?;
    bind(&socket, &SocketAddrUnix::new(&path).map_err(refused)?).map_err(refused)?;
    // Before `listen`: until then nobody can connect, whatever the mode is.
    for_this_user_only(&path)?;
    listen(&socket, BACKLOG).map_err(refused)?;
    Ok(socket)
}

/// Lets nobody else connect to a socket.
///
/// # Errors
/// What the system says.
pub fn for_this_user_only(path: &Path) -> LaunchResult<()> {
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, mode).map_err(|e| LaunchError::path(path, "change its mode", e))
}

/// Asks the supervisor for something and waits for its answer.
///
/// # Errors
/// What the supervisor refuses, that it is gone, or that it did not answer within `wait_ms`.
pub fn ask(
    dir: &StateDir,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
    wait_ms: u64,
) -> LaunchResult<()> {
    ask_for(dir, request, descriptors, wait_ms).map(drop)
}

/// Like [`ask`], and returns the supervisor's answer.
///
/// # Errors
/// As [`ask`].
pub fn ask_for(
    dir: &StateDir,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
    wait_ms: u64,
) -> LaunchResult<Answer> {
    let gone = |error: std::io::Error| {
        let remedy =
            "nothing is restarted any more; copy out what you need (bivouac stage out), then: bivouac down";
        LaunchError::new(
            Kind::Refused,
            "the supervisor of the formation",
            format_args!("is gone ({error})"),
            remedy,
        )
    };
    let mut asked = ask_once(dir, request, descriptors, wait_ms);
    // Whoever takes its place has not heard it. A mount could have been made already, and its maker removes it.
    if asked.is_err() && !matches!(request, Request::Mount { .. }) && is_supervised(dir)? {
        asked = ask_once(dir, request, descriptors, wait_ms);
    }
    match asked.map_err(gone)? {
        Some(Answer::Refused { message }) => Err(LaunchError::said(Kind::Refused, message)),
        Some(answer) => Ok(answer),
        None => {
            let cause = format!("did not answer within {wait_ms} ms");
            let remedy = "look at supervisor.log in the formation's directory";
            Err(LaunchError::new(Kind::Refused, "the supervisor of the formation", cause, remedy))
        }
    }
}

fn is_supervised(dir: &StateDir) -> LaunchResult<bool> {
    Ok(settled(dir)?.and_then(|state| state.supervisor).is_some_and(|process| process.is_alive()))
}

/// Returns the answer, if one comes in time.
///
/// # Errors
/// That the supervisor is gone.
fn ask_once(
    dir: &StateDir,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
    wait_ms: u64,
) -> std::io::Result<Option<Answer>> {
    let socket = new_socket()?;
    let address = SocketAddrUnix::new(dir.control_path())?;
    // Connecting waits where the supervisor is behind with accepting, and for ever where it stands still.
    set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_millis(wait_ms.max(1))))?;
    match retry_on_intr(|| connect(&socket, &address)) {
        Err(Errno::AGAIN) => return Ok(None),
        connected => connected?,
    }
    match packets::send(&socket, request, descriptors) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
        sent => sent?,
    }
    if !wait_readable(socket.as_fd(), wait_ms) {
        return Ok(None);
    }
    match packets::receive::<Answer>(&socket)? {
        Some((answer, _)) => Ok(Some(answer)),
        None => Err(std::io::ErrorKind::ConnectionReset.into()),
    }
}

/// Marks a formation as one that holds data which is nowhere else, or takes the mark off: the supervisor writes that
/// down, or, if it is gone, this process in its place.
///
/// # Errors
/// What the supervisor refuses, or the system.
pub fn keep(dir: &StateDir, reason: Option<String>, wait_ms: u64) -> LaunchResult<()> {
    let asked = ask(dir, &Request::Keep { reason: reason.clone() }, &[], wait_ms);
    match dir.read()? {
        // Only where no supervisor lives: it would write its own state over this one.
        Some(mut state) if asked.is_err() && !state.supervisor.is_some_and(|process| process.is_alive()) => {
            state.keep = reason;
            dir.write(&state)
        }
        _ => asked,
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::accept;

    fn place() -> (tempfile::TempDir, StateDir) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().into());
        (dir, state)
    }

    #[test]
    fn a_request_is_answered() {
        let (_dir, state) = place();
        let listener = listen_at(&state).unwrap();
        let supervisor = std::thread::spawn(move || {
            let refusal = Answer::Refused { message: "no node 7".into() };
            [Answer::Done, refusal].map(|answer| {
                let caller = accept(&listener).unwrap();
                let (request, descriptors) = packets::receive::<Request>(&caller).unwrap().unwrap();
                packets::send(&caller, &answer, &[]).unwrap();
                (request, descriptors.len())
            })
        });
        let memory = packets::to_memory(&0).unwrap();
        let mount = Request::Mount { node: 7, dir: "/m".into(), own_dir: false, connection: 0 };
        ask(&state, &mount, &[memory.as_fd(), memory.as_fd()], 60_000).unwrap();
        let error = ask(&state, &Request::Stop, &[], 60_000).unwrap_err();
        assert_eq!(error.to_string(), "no node 7");
        assert_eq!(supervisor.join().unwrap(), [(mount, 2), (Request::Stop, 0)]);
    }

    #[test]
    fn a_supervisor_that_is_gone_is_said() {
        let (_dir, state) = place();
        let error = ask(&state, &Request::Stop, &[], 60_000).unwrap_err().to_string();
        assert!(error.contains("is gone") && error.contains("nothing is restarted"), "{error}");
        let listener = listen_at(&state).unwrap();
        let late = ask(&state, &Request::Stop, &[], 1).unwrap_err().to_string();
        assert!(late.contains("did not answer within 1 ms"), "{late}");
        // With the one above, as many as the queue takes; the next would wait for ever.
        let address = SocketAddrUnix::new(state.control_path()).unwrap();
        let waiting: Vec<OwnedFd> = (0..BACKLOG).map(|_| new_socket().unwrap()).collect();
        waiting.iter().for_each(|socket| connect(socket, &address).unwrap());
        let late = ask(&state, &Request::Stop, &[], 1).unwrap_err().to_string();
        assert!(late.contains("did not answer within 1 ms"), "{late}");
        drop(listener);
    }

    #[test]
    fn what_is_to_be_kept_is_written_down_also_without_a_supervisor() {
        let (_dir, state) = place();
        assert!(keep(&state, Some("results".into()), 1).is_err(), "there is nothing to keep");
        state.write(&crate::state::tests::sample()).unwrap();
        keep(&state, Some("results".into()), 1).unwrap();
        assert_eq!(state.read().unwrap().unwrap().keep.as_deref(), Some("results"));
        keep(&state, None, 1).unwrap();
        assert_eq!(state.read().unwrap().unwrap().keep, None);
    }
}
