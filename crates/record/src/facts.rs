//! Inputs of rules.

use serde::{Deserialize, Serialize};

use crate::counts::{Counts, Pattern};

/// Use of a formation.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Its directories: partitions, and directories of the root directory.
    pub groups: Vec<Group>,
}

/// The files of a directory, and how they were used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Its path in the formation.
    pub place: String,
    /// True if it is a partition.
    pub is_partition: bool,
    /// True if it has the session contract.
    pub is_session: bool,
    /// True if site storage is behind it.
    pub has_source: bool,
    /// Stripe of its files, in bytes.
    pub stripe: u64,
    /// Files that were read or written.
    pub files: u64,
    /// Files used by several processes.
    pub shared: u64,
    /// Files used by several processes, some of which read while others wrote.
    pub mixed: u64,
    /// Processes that used them.
    pub processes: u64,
    /// Time from the first use to the last, in milliseconds.
    pub span_ms: u64,
    /// Sum over files and processes of the time from first to last use, in milliseconds.
    pub held_ms: u64,
    /// The step.
    pub pattern: Pattern,
    /// Reads and writes that came through mounts.
    pub mounted: u64,
}

impl Group {
    /// Returns the time that its processes had, all together, in nanoseconds: not more than all of them all the time,
    /// and not more than with each of the files for itself.
    #[must_use]
    pub fn time_ns(&self) -> f64 {
        let all = self.span_ms.saturating_mul(self.processes.max(1));
        all.min(self.held_ms).max(1) as f64 * 1e6
    }

    /// Returns the part of that time in which they waited for these.
    #[must_use]
    pub fn share(&self, counts: &Counts) -> f64 {
        (counts.spent_ns as f64 / self.time_ns()).min(1.0)
    }

    /// Returns its description: "12 files, 8 of them shared, from 4 processes".
    #[must_use]
    pub fn said(&self) -> String {
        let files = match (self.files, self.shared) {
            (1, 1) => "1 shared file".to_owned(),
            (files, shared) if files == shared => format!("{files} shared files"),
            (1, _) => "1 file".to_owned(),
            (files, 0) => format!("{files} files"),
            (files, shared) => format!("{files} files, {shared} of them shared,"),
        };
        let processes = if self.processes == 1 { "process" } else { "processes" };
        format!("{files} from {} {processes}", self.processes)
    }
}
