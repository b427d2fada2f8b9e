//! A process of a measurement: takes its task from standard input, a socket, and answers there.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::task::{GO, Said, Task};
use crate::{BenchError, BenchResult, Host, flash, fuse, io, latency, meta, net, slow};

/// Longest task, in bytes.
const TASK_LEN_MAX: u64 = 1 << 20;

/// Where processes of a measurement meet.
pub trait Meet {
    /// Waits until all have arrived.
    ///
    /// # Errors
    /// When the others are gone.
    fn barrier(&mut self) -> BenchResult<()>;
}

/// Does what the process that started this one wants.
///
/// # Errors
/// When standard input is not its socket. What fails later is told there.
pub fn work(host: &Host<'_>) -> BenchResult<()> {
    // A leader that was killed takes its processes with it.
    let _as_well_as_can_be =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut line = Line::from_stdin()?;
    let task = line.task()?;
    let said = match perform(host, &task, &mut line) {
        Ok(outcome) => Said::Done(outcome),
        Err(error) => Said::Failed(error.to_string()),
    };
    line.say(&said)
}

fn perform(host: &Host<'_>, task: &Task, line: &mut Line) -> BenchResult<Value> {
    match task {
        Task::Io(task) => outcome(io::perform(host, task, line)?),
        Task::Meta(task) => outcome(meta::perform(task, line)?),
        Task::Grow(task) => outcome(meta::growth::perform(task, line)?),
        Task::Latency(task) => outcome(latency::perform(task, line)?),
        Task::Flash(task) => outcome(flash::perform(task, line)?),
        Task::SlowDir(slowness) => slow::serve(slowness, || line.say(&Said::Serving)).and_then(outcome),
        Task::BareFuse(dir) => fuse::serve(dir, || line.say(&Said::Serving)).and_then(outcome),
        Task::TcpServer(dir) => net::serve(dir, |port| line.say(&Said::Port(port))).and_then(outcome),
        Task::TcpClient(task) => outcome(net::perform(task, line)?),
        Task::File(task) => outcome(net::perform_file(task, line)?),
        Task::Remote(task) => outcome(net::perform_remote(host, task, line)?),
    }
}

fn outcome(value: impl serde::Serialize) -> BenchResult<Value> {
    serde_json::to_value(value).map_err(|error| BenchError::refused("the outcome", error))
}

/// The way to the process that leads.
struct Line {
    from: BufReader<UnixStream>,
}

impl Line {
    fn from_stdin() -> BenchResult<Line> {
        let stdin = std::io::stdin();
        let own = stdin.as_fd().try_clone_to_owned().map_err(BenchError::system("standard input"))?;
        Ok(Line { from: BufReader::new(UnixStream::from(own)) })
    }

    fn task(&mut self) -> BenchResult<Task> {
        let alien =
            || BenchError::usage("bench worker", "is what `bivouac bench` starts", "write: bivouac bench");
        let mut text = String::new();
        (&mut self.from).take(TASK_LEN_MAX).read_line(&mut text).map_err(|_| alien())?;
        serde_json::from_str(&text).map_err(|_| alien())
    }

    fn say(&mut self, said: &Said) -> BenchResult<()> {
        let mut text =
            serde_json::to_vec(said).map_err(|error| BenchError::refused("what a process says", error))?;
        text.push(b'\n');
        self.from.get_ref().write_all(&text).map_err(BenchError::system("the leader of the measurement"))
    }
}

impl Meet for Line {
    fn barrier(&mut self) -> BenchResult<()> {
        self.say(&Said::Barrier)?;
        let mut go = [0; GO.len()];
        self.from.read_exact(&mut go).map_err(BenchError::system("the leader of the measurement"))
    }
}

/// A process alone, which waits for nobody.
#[cfg(test)]
pub struct Alone(pub usize);

#[cfg(test)]
impl Meet for Alone {
    fn barrier(&mut self) -> BenchResult<()> {
        self.0 += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Line, UnixStream) {
        let (own, leader) = UnixStream::pair().unwrap();
        (Line { from: BufReader::new(own) }, leader)
    }

    #[test]
    fn a_barrier_is_said_and_ends_with_go() {
        let (mut line, mut leader) = pair();
        leader.write_all(GO).unwrap();
        assert_eq!(line.barrier(), Ok(()));
        let mut said = String::new();
        BufReader::new(&leader).read_line(&mut said).unwrap();
        assert_eq!(said, "\"Barrier\"\n");
        drop(leader);
        assert!(line.barrier().is_err(), "nobody leads any more");
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
    fn a_task_arrives() {
        let (mut line, mut leader) = pair();
        let task = serde_json::to_string(&Task::TcpServer("/d".into())).unwrap();
        leader.write_all(format!("{task}\n").as_bytes()).unwrap();
        assert!(matches!(line.task(), Ok(Task::TcpServer(dir)) if dir.as_os_str() == "/d"));
    }
}
