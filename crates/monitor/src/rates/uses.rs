//! Files and processes that were busy between two looks, from what nodes were told of uses.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::AddAssign;

use bivouac_client::UseTable;
use bivouac_record::Pattern;
use bivouac_types::{ClientId, Ino};
use serde::Serialize;

use super::interval::grown;

/// Files and processes that are told apart, at most.
pub const BUSY_MAX: usize = 20;

/// Amounts that were read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UseCounts {
    pub calls: u64,
    pub written: u64,
    pub read: u64,
}

/// The same, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct UseRates {
    /// Reads and writes of programs.
    pub calls: f64,
    /// Bytes that they wrote.
    pub written: f64,
    /// Bytes that they read.
    pub read: f64,
}

/// A busy file.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FileRates {
    /// Its path in the formation, with `?` for a name that was not found.
    pub path: String,
    /// Its inode.
    pub ino: u64,
    /// Rates of its use.
    #[serde(flatten)]
    pub pace: UseRates,
}

/// A busy process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProcessRates {
    /// Its program.
    pub program: String,
    /// Its number on its host; 0 if that could not be seen.
    pub pid: u32,
    /// The host whose mount it uses; nothing of one that uses the library or the preload.
    pub host: Option<String>,
    /// Its rates.
    #[serde(flatten)]
    pub pace: UseRates,
}

/// The uses that a node had been told of at one moment.
#[derive(Default)]
pub struct UseSnapshot {
    uptime_ms: u64,
    /// Each with the directory that it was made in.
    files: HashMap<Ino, (Ino, UseCounts)>,
    /// Each with its program.
    processes: HashMap<(ClientId, u32), (Vec<u8>, UseCounts)>,
}

/// Uses between two moments, the busiest first.
#[derive(Default)]
pub struct BusiestUses {
    /// Files, with the directories that they were made in.
    pub files: Vec<(Ino, Ino, UseCounts)>,
    /// Processes, with their programs.
    pub processes: Vec<(ClientId, u32, Vec<u8>, UseCounts)>,
}

impl UseCounts {
    fn since(self, before: Option<UseCounts>) -> UseCounts {
        let before = before.unwrap_or_default();
        // Where a file was told together with others meanwhile, its figures began again.
        if self.calls < before.calls {
            return self;
        }
        UseCounts {
            calls: self.calls - before.calls,
            written: grown(self.written, before.written),
            read: grown(self.read, before.read),
        }
    }

    /// Returns the weight that nodes give to uses, in which many small calls count too.
    fn weight(self) -> u64 {
        self.written.saturating_add(self.read).saturating_add(self.calls.saturating_mul(1 << 10))
    }

    /// Returns the rates over so many seconds.
    pub fn pace(self, seconds: f64) -> UseRates {
        let each = |count: u64| count as f64 / seconds;
        UseRates { calls: each(self.calls), written: each(self.written), read: each(self.read) }
    }
}

impl AddAssign for UseCounts {
    fn add_assign(&mut self, other: UseCounts) {
        self.calls = self.calls.saturating_add(other.calls);
        self.written = self.written.saturating_add(other.written);
        self.read = self.read.saturating_add(other.read);
    }
}

impl From<&Pattern> for UseCounts {
    fn from(pattern: &Pattern) -> UseCounts {
        UseCounts { calls: pattern.both().ops, written: pattern.writes.bytes, read: pattern.reads.bytes }
    }
}

impl UseRates {
    /// Returns the number of bytes either way.
    pub fn total(&self) -> f64 {
        self.written + self.read
    }
}

impl UseSnapshot {
    /// Creates the snapshot of what a node answers.
    pub fn new(table: &UseTable) -> UseSnapshot {
        let files = table.files.iter().map(|file| (file.ino, (file.parent, UseCounts::from(&file.pattern))));
        let processes = table
            .processes
            .iter()
            .map(|one| ((one.client, one.pid), (one.program.0.clone(), UseCounts::from(&one.pattern))));
        UseSnapshot { uptime_ms: table.uptime_ms, files: files.collect(), processes: processes.collect() }
    }
}

impl BusiestUses {
    /// Returns the rates of all nodes by their numbers, with looks `took_ms` apart.
    pub fn between(
        before: &HashMap<u16, UseSnapshot>,
        now: &HashMap<u16, UseSnapshot>,
        took_ms: u64,
    ) -> BusiestUses {
        let (mut files, mut processes) = (HashMap::new(), HashMap::new());
        let none = UseSnapshot::default();
        for (node, told) in now {
            let earlier = match before.get(node) {
                // A node that began since began at 0.
                _ if told.uptime_ms <= took_ms => &none,
                Some(earlier) => earlier,
                // What it had been told by then it did not say.
                None => continue,
            };
            for (ino, (parent, did)) in &told.files {
                let did = did.since(earlier.files.get(ino).map(|(_, did)| *did));
                add(&mut files, *ino, *parent, did);
            }
            for (key, (program, did)) in &told.processes {
                let did = did.since(earlier.processes.get(key).map(|(_, did)| *did));
                add(&mut processes, *key, program, did);
            }
        }
        let told = |((client, pid), program, did): ((ClientId, u32), &Vec<u8>, UseCounts)| {
            (client, pid, program.clone(), did)
        };
        BusiestUses { files: busiest(files), processes: busiest(processes).into_iter().map(told).collect() }
    }
}

fn add<K: Eq + Hash, V>(sums: &mut HashMap<K, (V, UseCounts)>, key: K, value: V, did: UseCounts) {
    if did.calls > 0 {
        sums.entry(key).or_insert((value, UseCounts::default())).1 += did;
    }
}

fn busiest<K: Ord + Copy, V>(sums: HashMap<K, (V, UseCounts)>) -> Vec<(K, V, UseCounts)> {
    let mut all: Vec<_> = sums.into_iter().map(|(key, (value, did))| (key, value, did)).collect();
    // Maps have no order: with the key, equal rows keep their places from look to look.
    all.sort_by_key(|(key, _, did)| (Reverse(did.weight()), *key));
    all.truncate(BUSY_MAX);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(uptime_ms: u64, all: &[(u64, u64)]) -> HashMap<u16, UseSnapshot> {
        let did = |written: u64| UseCounts { calls: written / 10, written, read: 0 };
        let files = all.iter().map(|(ino, written)| (Ino(*ino), (Ino(1), did(*written)))).collect();
        let process = |(ino, written): &(u64, u64)| {
            ((ClientId(7), u32::try_from(*ino % 2).unwrap()), (b"app".to_vec(), did(*written)))
        };
        let processes = all.iter().map(process).collect();
        HashMap::from([(0, UseSnapshot { uptime_ms, files, processes })])
    }

    fn files(before: &HashMap<u16, UseSnapshot>, now: &HashMap<u16, UseSnapshot>) -> Vec<(u64, u64)> {
        let busy = BusiestUses::between(before, now, 1000);
        busy.files.iter().map(|(ino, _, did)| (ino.0, did.written)).collect()
    }

    #[test]
    fn only_what_was_done_in_between_counts() {
        let before = told(5000, &[(2, 100), (3, 500), (4, 900)]);
        assert_eq!(files(&before, &told(6000, &[(2, 400), (3, 500), (5, 50)])), [(2, 300), (5, 50)]);
        assert_eq!(files(&before, &told(700, &[(3, 520)])), [(3, 520)], "of another daemon all");
        assert_eq!(files(&HashMap::new(), &told(6000, &[(3, 20)])), [], "what it was before is not known");
        assert_eq!(files(&HashMap::new(), &told(600, &[(3, 20)])), [(3, 20)], "it began meanwhile");
        assert_eq!(files(&before, &told(6000, &[(4, 30)])), [(4, 30)], "it was dropped and came again");
    }

    #[test]
    fn processes_are_summed_over_nodes_and_lists_are_bounded() {
        let (mut before, mut now) = (told(9, &[]), told(10, &[(3, 100)]));
        before.extend([(1, UseSnapshot::default())]);
        now.extend(told(10, &[(5, 300)]).remove(&0).map(|told| (1, told)));
        let busy = BusiestUses::between(&before, &now, 1);
        assert_eq!(
            busy.processes,
            [(ClientId(7), 1, b"app".to_vec(), UseCounts { calls: 40, written: 400, read: 0 })]
        );
        let many: Vec<(u64, u64)> = (1..200).map(|ino| (ino, ino * 10)).collect();
        let busy = files(&told(1001, &[]), &told(2001, &many));
        assert_eq!((busy.len(), busy[0]), (BUSY_MAX, (199, 1990)));
    }
}
