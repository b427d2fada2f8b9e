//! How the files whose home this is were used, as clients tell it with their closes. Fixed memory: where there are too
//! many files or processes, the half that was used less is told together from then on, so that sums stay right (as in
//! lossy counting: Manku and Motwani, VLDB 2002).

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

use bivouac_ranks::Mutex;
use bivouac_record::{Bin, OWN_PROGRAM, Pattern, Timeline};
use bivouac_types::limits::{USES_FILES_MAX, USES_PROCESSES_MAX};
use bivouac_types::{Attr, ClientId, Ino, PartitionId};
use bivouac_wire::{FileUse, ProcessUse, Use, UseTable};

/// What a node was told.
#[derive(Default)]
pub struct Uses(Mutex<Table>);

#[derive(Default)]
struct Table {
    files: HashMap<Ino, FileUse>,
    processes: HashMap<(ClientId, u32), ProcessUse>,
    dropped: u64,
    rest: Pattern,
    timeline: Timeline,
}

/// Of a file, whatever became of it.
#[derive(Clone, Copy)]
pub struct Known {
    /// Its attributes, and the directory that it was made in, if it is there.
    pub inode: Option<(Attr, Ino)>,
    /// Whether its client is a mount.
    pub is_mount: bool,
}

impl Uses {
    /// A client tells what it did. `now_ms` is the time since the daemon was started.
    pub fn note(&self, client: ClientId, told: &Use, known: Known, now_ms: u64) {
        let first_ms = now_ms.saturating_sub(told.first_ago_ms.max(told.last_ago_ms));
        let last_ms = now_ms.saturating_sub(told.last_ago_ms);
        let both = told.pattern.both();
        let mut table = self.0.lock();
        table.note_process(client, told, (first_ms, last_ms));
        // What stages copy is told apart from what programs do, by its process.
        if told.program.0 == OWN_PROGRAM.as_bytes() {
            return;
        }
        let (read, written) = (told.pattern.reads.bytes, told.pattern.writes.bytes);
        let bin = Bin { read, written, ops: both.ops, spent_ns: both.spent_ns };
        table.timeline.add(first_ms..last_ms, bin);
        table.note_file(client, told, known, (first_ms, last_ms));
    }

    /// What it was told, those that did most first.
    pub fn list(&self, started: Instant) -> UseTable {
        let table = self.0.lock();
        let mut files: Vec<FileUse> = table.files.values().cloned().collect();
        let mut processes: Vec<ProcessUse> = table.processes.values().cloned().collect();
        let (dropped, rest, timeline) = (table.dropped, table.rest, table.timeline.clone());
        drop(table);
        files.sort_by_key(|file| std::cmp::Reverse(file.pattern.weight()));
        processes.sort_by_key(|process| std::cmp::Reverse(process.pattern.weight()));
        UseTable { uptime_ms: ms(started), files, processes, dropped, rest, timeline }
    }
}

/// Milliseconds since then.
pub fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Table {
    fn note_file(&mut self, client: ClientId, told: &Use, known: Known, (first_ms, last_ms): (u64, u64)) {
        if self.files.len() >= USES_FILES_MAX && !self.files.contains_key(&told.ino) {
            for file in drop_half(&mut self.files, |file| file.pattern.weight()) {
                self.dropped += 1;
                self.rest.add(&file.pattern);
            }
        }
        let file = self.files.entry(told.ino).or_insert_with(|| FileUse {
            ino: told.ino,
            parent: Ino(0),
            partition: PartitionId::ROOT,
            stripe: 0,
            users: Vec::new(),
            first_ms,
            last_ms,
            read_from_ms: None,
            written_until_ms: None,
            held_ms: 0,
            mounted: 0,
            pattern: Pattern::default(),
        });
        if let Some((attr, parent)) = known.inode {
            (file.parent, file.partition) = (parent, attr.layout.partition());
            file.stripe = attr.layout.stripe;
        }
        file.first_ms = file.first_ms.min(first_ms);
        file.last_ms = file.last_ms.max(last_ms);
        if told.pattern.reads.ops > 0 {
            file.read_from_ms = Some(file.read_from_ms.map_or(first_ms, |from| from.min(first_ms)));
        }
        if told.pattern.writes.ops > 0 {
            file.written_until_ms = Some(file.written_until_ms.map_or(last_ms, |until| until.max(last_ms)));
        }
        file.held_ms = file.held_ms.saturating_add(last_ms - first_ms);
        file.add_user(user(client, told.pid));
        let mounted = if known.is_mount { told.pattern.both().ops } else { 0 };
        file.mounted = file.mounted.saturating_add(mounted);
        file.pattern.add(&told.pattern);
    }

    fn note_process(&mut self, client: ClientId, told: &Use, (first_ms, last_ms): (u64, u64)) {
        let key = (client, told.pid);
        if self.processes.len() >= USES_PROCESSES_MAX && !self.processes.contains_key(&key) {
            drop_half(&mut self.processes, |process| process.pattern.weight());
        }
        let process = self.processes.entry(key).or_insert_with(|| ProcessUse {
            client,
            pid: told.pid,
            program: told.program.clone(),
            first_ms,
            last_ms,
            pattern: Pattern::default(),
        });
        process.first_ms = process.first_ms.min(first_ms);
        process.last_ms = process.last_ms.max(last_ms);
        process.pattern.add(&told.pattern);
    }
}

/// Takes away the half that weighs less.
fn drop_half<K: Copy + Eq + Hash, V>(table: &mut HashMap<K, V>, weight: impl Fn(&V) -> u64) -> Vec<V> {
    let mut keys: Vec<(u64, K)> = table.iter().map(|(key, value)| (weight(value), *key)).collect();
    keys.sort_by_key(|(weight, _)| *weight);
    keys.truncate(keys.len() / 2);
    keys.iter().filter_map(|(_, key)| table.remove(key)).collect()
}

/// A process as a number.
fn user(client: ClientId, pid: u32) -> u64 {
    client.0.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_record::Counts;
    use bivouac_wire::Program;

    #[test]
    fn who_reads_what_others_write_is_told_from_who_reads_it_then() {
        for (read_at_ms, is_mixed) in [(9000, true), (20_000, false)] {
            let uses = Uses::default();
            uses.note(ClientId(1), &told(7, 10, 100), GONE, 10_000);
            let mut read = told(7, 11, 100);
            read.pattern = Pattern { reads: read.pattern.writes, ..Pattern::default() };
            uses.note(ClientId(1), &read, GONE, read_at_ms);
            assert_eq!(uses.list(Instant::now()).files[0].is_mixed(), is_mixed);
        }
    }

    const GONE: Known = Known { inode: None, is_mount: true };

    fn told(ino: u64, pid: u32, bytes: u64) -> Use {
        let writes = Counts { ops: 1, bytes, ..Counts::default() };
        let pattern = Pattern { writes, ..Pattern::default() };
        let program = Program(b"app".to_vec());
        Use { ino: Ino(ino), pid, program, first_ago_ms: 500, last_ago_ms: 100, pattern }
    }

    #[test]
    fn files_processes_and_times_are_put_together() {
        let uses = Uses::default();
        for (client, pid) in [(1, 10), (1, 11), (2, 10)] {
            uses.note(ClientId(client), &told(7, pid, 100), GONE, 1000 * u64::from(pid));
        }
        uses.note(ClientId(1), &told(8, 10, 1), Known { is_mount: false, ..GONE }, 300);
        let list = uses.list(Instant::now());
        let files: Vec<_> =
            list.files.iter().map(|f| (f.ino.0, f.users.len(), f.mounted, f.first_ms, f.last_ms)).collect();
        assert_eq!(files, [(7, 3, 3, 9500, 10_900), (8, 1, 0, 0, 200)]);
        let first = &list.files[0];
        assert_eq!((first.held_ms, first.written_until_ms, first.is_mixed()), (1200, Some(10_900), false));
        let processes: Vec<_> =
            list.processes.iter().map(|p| (p.client.0, p.pid, p.pattern.writes.bytes)).collect();
        assert_eq!((processes.len(), processes[0]), (3, (1, 10, 101)));
        assert_eq!((list.timeline.total().written, list.timeline.bins[10].written), (301, 100));
        assert_eq!((list.dropped, list.rest), (0, Pattern::default()));
    }

    #[test]
    fn what_stages_copy_is_no_use_by_programs() {
        let uses = Uses::default();
        uses.note(ClientId(1), &told(7, 10, 100), GONE, 1000);
        let own = Use { program: Program(OWN_PROGRAM.into()), ..told(7, 11, 5000) };
        uses.note(ClientId(1), &own, GONE, 2000);
        let list = uses.list(Instant::now());
        assert_eq!(
            (list.files.len(), list.files[0].users.len(), list.files[0].pattern.writes.bytes),
            (1, 1, 100)
        );
        assert_eq!((list.timeline.total().written, list.rest), (100, Pattern::default()));
        let apart =
            list.processes.iter().find(|process| process.program.0 == OWN_PROGRAM.as_bytes()).unwrap();
        assert_eq!((apart.pid, apart.pattern.writes.bytes), (11, 5000));
    }

    #[test]
    fn memory_is_bounded_and_sums_stay() {
        let uses = Uses::default();
        let count = 10 * USES_FILES_MAX as u64;
        uses.note(ClientId(1), &told(1, 1, 1 << 30), GONE, 1000);
        for ino in 2..=count {
            uses.note(ClientId(1), &told(ino, ino as u32, ino), GONE, 1000);
        }
        let list = uses.list(Instant::now());
        assert!(list.files.len() <= USES_FILES_MAX && list.processes.len() <= USES_PROCESSES_MAX);
        assert_eq!((list.files[0].ino, list.processes[0].pid), (Ino(1), 1), "what did most stays");
        let listed: u64 = list.files.iter().map(|file| file.pattern.writes.bytes).sum();
        let sum = (1 << 30) + (2..=count).sum::<u64>();
        assert_eq!(listed + list.rest.writes.bytes, sum);
        assert_eq!(list.files.len() as u64 + list.dropped, count);
        assert_eq!(list.timeline.total().written, sum);
    }
}
