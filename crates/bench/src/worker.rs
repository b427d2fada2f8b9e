//! A member of a measurement: a process that takes its task from standard input, a socket, and answers there.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::barrier::Barrier;
use crate::flash::FlashTask;
use crate::io::IoTask;
use crate::latency::LatencyTask;
use crate::member_protocol::{GO, MemberMessage};
use crate::meta::MetaTask;
use crate::meta::growth::GrowTask;
use crate::net::{FileTask, NetTask, RemoteTask};
use crate::slow::Slowness;
use crate::{BenchError, BenchResult, Host, flash, fuse, io, latency, meta, net, slow};

/// Longest task, in bytes.
const TASK_LEN_MAX: u64 = 1 << 20;

/// The task of a member, by its [kind](crate::member_protocol::MemberTask::KIND).
#[derive(Debug, Deserialize)]
enum Task {
    /// Its part of reading and writing.
    Io(IoTask),
    /// Its part of making, looking at and removing files.
    Meta(MetaTask),
    /// Its share of one directory's files.
    Grow(GrowTask),
    /// Timing single calls.
    Latency(LatencyTask),
    /// Its part of writing checkpoints.
    Flash(FlashTask),
    /// Serving a slow directory.
    SlowDir(Slowness),
    /// Serving a bare file system at a directory.
    BareFuse(PathBuf),
    /// Serving a file below a directory over bare TCP.
    TcpServer(PathBuf),
    /// Copying to and from that.
    TcpClient(NetTask),
    /// Copying to and from a plain file.
    File(FileTask),
    /// Copying to and from a formation.
    Remote(RemoteTask),
}

/// Does what the process that started this one wants.
///
/// # Errors
/// When standard input is not its socket. What fails later is told there.
pub fn work(host: &Host<'_>) -> BenchResult<()> {
    // A leader that was killed takes its processes with it.
    let _as_well_as_can_be =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    // A leader that is gone already has closed the socket, which the next read notices.
    let mut line = LeaderLink::from_stdin()?;
    let task = line.task()?;
    let said = match perform(host, &task, &mut line) {
        Ok(outcome) => MemberMessage::Done(outcome),
        Err(error) => MemberMessage::Failed(error.to_string()),
    };
    line.say(&said)
}

fn perform(host: &Host<'_>, task: &Task, line: &mut LeaderLink) -> BenchResult<Value> {
    match task {
        Task::Io(task) => outcome(io::perform(host, task, line)?),
        Task::Meta(task) => outcome(meta::perform(task, line)?),
        Task::Grow(task) => outcome(meta::growth::perform(task, line)?),
        Task::Latency(task) => outcome(latency::perform(task, line)?),
        Task::Flash(task) => outcome(flash::perform(task, line)?),
        Task::SlowDir(slowness) => {
            slow::serve(slowness, || line.say(&MemberMessage::Serving)).and_then(outcome)
        }
        Task::BareFuse(dir) => fuse::serve(dir, || line.say(&MemberMessage::Serving)).and_then(outcome),
        Task::TcpServer(dir) => {
            net::serve(dir, |port| line.say(&MemberMessage::Port(port))).and_then(outcome)
        }
        Task::TcpClient(task) => outcome(net::perform(task, line)?),
        Task::File(task) => outcome(net::perform_file(task, line)?),
        Task::Remote(task) => outcome(net::perform_remote(host, task, line)?),
    }
}

fn outcome(value: impl serde::Serialize) -> BenchResult<Value> {
    serde_json::to_value(value).map_err(|error| BenchError::refused("the outcome", error))
}

/// The connection to the leading process.
struct LeaderLink {
    from: BufReader<UnixStream>,
}

impl LeaderLink {
    fn from_stdin() -> BenchResult<LeaderLink> {
        let stdin = std::io::stdin();
        let own = stdin.as_fd().try_clone_to_owned().map_err(BenchError::system("standard input"))?;
        Ok(LeaderLink { from: BufReader::new(UnixStream::from(own)) })
    }

    fn task(&mut self) -> BenchResult<Task> {
        let alien =
            || BenchError::usage("bench worker", "is what `bivouac bench` starts", "write: bivouac bench");
        let mut text = String::new();
        (&mut self.from).take(TASK_LEN_MAX).read_line(&mut text).map_err(|_| alien())?;
        serde_json::from_str(&text).map_err(|_| alien())
    }

    fn say(&mut self, said: &MemberMessage) -> BenchResult<()> {
        let mut text =
            serde_json::to_vec(said).map_err(|error| BenchError::refused("what a process says", error))?;
        text.push(b'\n');
        self.from.get_ref().write_all(&text).map_err(BenchError::system("the leader of the measurement"))
    }
}

impl Barrier for LeaderLink {
    fn wait(&mut self) -> BenchResult<()> {
        self.say(&MemberMessage::Barrier)?;
        let mut go = [0; GO.len()];
        self.from.read_exact(&mut go).map_err(BenchError::system("the leader of the measurement"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member_protocol::MemberTask;

    fn pair() -> (LeaderLink, UnixStream) {
        let (own, leader) = UnixStream::pair().unwrap();
        (LeaderLink { from: BufReader::new(own) }, leader)
    }

    #[test]
    fn a_barrier_is_said_and_ends_with_go() {
        let (mut line, mut leader) = pair();
        leader.write_all(GO).unwrap();
        assert_eq!(line.wait(), Ok(()));
        let mut said = String::new();
        BufReader::new(&leader).read_line(&mut said).unwrap();
        assert_eq!(said, "\"Barrier\"\n");
        drop(leader);
        assert!(line.wait().is_err(), "nobody leads any more");
    }

    #[test]
    fn what_is_no_task_is_refused() {
        for text in ["", "\n", "{}\n", "\"Io\"\n", "garbage"] {
            let (mut line, mut leader) = pair();
            leader.write_all(text.as_bytes()).unwrap();
            drop(leader);
            let error = line.task().unwrap_err().to_string();
            assert!(error.starts_with("bench worker: is what"), "{text}: {error}");
        }
    }

    #[test]
    fn every_kind_of_task_has_its_variant() {
        fn kind<T: MemberTask>() -> &'static str {
            T::KIND
        }
        let kinds = [
            kind::<IoTask>(),
            kind::<MetaTask>(),
            kind::<GrowTask>(),
            kind::<LatencyTask>(),
            kind::<FlashTask>(),
            kind::<Slowness>(),
            kind::<fuse::BareFuseTask>(),
            kind::<net::TcpServerTask>(),
            kind::<NetTask>(),
            kind::<FileTask>(),
            kind::<RemoteTask>(),
        ];
        // What serde expects is the variants, in their order.
        let error = serde_json::from_str::<Task>("{\"None\":1}").unwrap_err().to_string();
        let expected = kinds.map(|kind| format!("`{kind}`")).join(", ");
        assert!(error.contains(&format!("expected one of {expected} at")), "{error}");
    }

    #[test]
    fn a_task_arrives() {
        let (mut line, mut leader) = pair();
        let task = r#"{"TcpServer":"/d"}"#;
        leader.write_all(format!("{task}\n").as_bytes()).unwrap();
        assert!(matches!(line.task(), Ok(Task::TcpServer(dir)) if dir.as_os_str() == "/d"));
    }
}
