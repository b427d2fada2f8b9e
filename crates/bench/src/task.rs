//! What the processes of a measurement and the one that leads them tell each other: a line of JSON each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::flash::FlashTask;
use crate::io::IoTask;
use crate::latency::LatencyTask;
use crate::meta::MetaTask;
use crate::meta::growth::GrowTask;
use crate::net::{FileTask, NetTask, RemoteTask};
use crate::slow::Slowness;

/// What a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
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

/// What a process says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// It is at a barrier.
    Barrier,
    /// It serves.
    Serving,
    /// It listens at this port.
    Port(u16),
    /// It has ended with this outcome.
    Done(serde_json::Value),
    /// It cannot go on.
    Failed(String),
}

/// What ends a barrier.
pub const GO: &[u8] = b"go\n";

/// One timed part of a process's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// What was done.
    pub what: String,
    /// Bytes or operations.
    pub units: u64,
    /// When it began, by the machine's clock.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// Units per second of all processes together: from the earliest start to the latest end.
#[must_use]
pub fn rate(parts: &[&Timed]) -> f64 {
    let start = parts.iter().map(|part| part.start_ns).min().unwrap_or(0);
    let end = parts.iter().map(|part| part.end_ns).max().unwrap_or(0);
    crate::stats::per_second(parts.iter().map(|part| part.units).sum(), end.saturating_sub(start))
}

/// The rates of everything that all processes did, in the order of the first's list.
#[must_use]
pub fn rates(outcomes: &[Vec<Timed>]) -> Vec<(String, f64)> {
    let of = |what: &str| -> Vec<&Timed> {
        outcomes.iter().flatten().filter(|timed| timed.what == what).collect()
    };
    let first = outcomes.first().map(Vec::as_slice).unwrap_or_default();
    first.iter().map(|timed| (timed.what.clone(), rate(&of(&timed.what)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(what: &str, units: u64, start_ns: u64, end_ns: u64) -> Timed {
        Timed { what: what.into(), units, start_ns, end_ns }
    }

    #[test]
    fn a_rate_counts_from_the_earliest_start_to_the_latest_end() {
        let outcomes = [
            vec![timed("write", 600, 1_000, 2_000), timed("read", 5, 0, 1_000_000_000)],
            vec![timed("write", 400, 1_500, 3_000), timed("read", 5, 0, 500_000_000)],
        ];
        assert_eq!(rates(&outcomes), [("write".to_owned(), 5e8), ("read".to_owned(), 10.0)]);
        assert_eq!(rates(&[]), []);
        assert_eq!(rate(&[]), 0.0);
    }

    #[test]
    fn what_is_said_is_one_line() {
        let said = Said::Failed("a\nb".into());
        let line = serde_json::to_string(&said).unwrap();
        assert!(!line.contains('\n'));
        assert!(matches!(serde_json::from_str(&line), Ok(Said::Failed(text)) if text == "a\nb"));
    }
}
