//! How files with their homes here were used, as clients report it with their closes. Memory is fixed: where there are
//! too many files or processes, the half that was used less is summed up from then on, so that sums stay right (as in
//! lossy counting: Manku and Motwani, VLDB 2002).

use std::collections::HashMap;
use std::hash::Hash;

use bivouac_ranks::{Mutex, rank};
use bivouac_record::{Bin, History, OWN_PROGRAM, Pattern};
use bivouac_types::limits::USES_FILES_MAX;
use bivouac_types::{Attr, ClientId, Ino, PartitionId};
use bivouac_wire::{Decode, Encode, FileUse, FileUseDelta, ProcessUse, UseTable, codec_struct};

use crate::recorder::{Recorder, Ring, Rows};

/// Usage reported to a node, in memory that outlives its daemon.
pub struct UsageTable(Mutex<Table>);

struct Table {
    files: RowTable<Ino, FileUse>,
    processes: RowTable<(ClientId, u32), ProcessUse>,
    rest: EvictedUses,
    rest_row: Rows,
    ring: Ring,
}

/// Sum of evicted rows, and which rows those were: all that were written before this one.
#[derive(Default)]
struct EvictedUses {
    /// Counts writes of rows of files.
    turn: u64,
    dropped: u64,
    pattern: Pattern,
    /// A bit for each row.
    rows: Vec<u64>,
}
codec_struct!(EvictedUses { turn, dropped, pattern, rows });

/// A file's row.
struct FileRow {
    turn: u64,
    file: FileUse,
}
codec_struct!(FileRow { turn, file });

/// Of a file, whatever became of it.
#[derive(Clone, Copy)]
pub struct UsedFile {
    /// Its attributes, and the directory that it was made in, if it is there.
    pub inode: Option<(Attr, Ino)>,
    /// True if its client is a mount.
    pub is_mount: bool,
}

/// Values by key, each with its row.
struct RowTable<K, V> {
    all: HashMap<K, (usize, V)>,
    free: Vec<usize>,
    rows: Rows,
}

impl UsageTable {
    /// Opens the table with what was reported to earlier daemons.
    pub fn open(recorder: &Recorder) -> UsageTable {
        let rows = recorder.use_rows();
        let rest = EvictedUses::from_bytes(&rows.rest.read(0)).unwrap_or_default();
        let mut turn = rest.turn;
        let files = RowTable::open(rows.files, |row, bytes| {
            let read = FileRow::from_bytes(bytes).ok()?;
            turn = turn.max(read.turn);
            // The row may have been written again since it was dropped.
            let is_dropped = read.turn < rest.turn && rest.has(row);
            (!is_dropped).then_some((read.file.ino, read.file))
        });
        let processes = RowTable::open(rows.processes, |_, bytes| {
            let process = ProcessUse::from_bytes(bytes).ok()?;
            Some(((process.client, process.pid), process))
        });
        let table = Table {
            files,
            processes,
            rest: EvictedUses { turn, ..rest },
            rest_row: rows.rest,
            ring: rows.ring,
        };
        UsageTable(Mutex::new(rank::LEAF, table))
    }

    /// Takes note of what a client says that it did. `now_ms` is the time since the first daemon was started.
    pub fn note(&self, client: ClientId, told: &FileUseDelta, known: UsedFile, now_ms: u64) {
        let first_ms = now_ms.saturating_sub(told.first_ago_ms.max(told.last_ago_ms));
        let last_ms = now_ms.saturating_sub(told.last_ago_ms);
        assert!(first_ms <= last_ms, "a use ends before it begins");
        let both = told.pattern.both();
        let mut table = self.0.lock();
        table.note_process(client, told, (first_ms, last_ms));
        // What stages copy is told apart from what programs do, by its process.
        if told.program.0 == OWN_PROGRAM.as_bytes() {
            return;
        }
        let (read, written) = (told.pattern.reads.bytes, told.pattern.writes.bytes);
        let bin = Bin { read, written, ops: both.ops, spent_ns: both.spent_ns };
        table.ring.add(first_ms..last_ms, bin);
        table.note_file(client, told, known, (first_ms, last_ms));
    }

    /// Returns all that was reported, the most active first. Times count from the start of the first daemon.
    pub fn list(&self, uptime_ms: u64, torn: u64) -> UseTable {
        let table = self.0.lock();
        let mut files: Vec<FileUse> = table.files.values().cloned().collect();
        let mut processes: Vec<ProcessUse> = table.processes.values().cloned().collect();
        let (dropped, rest) = (table.rest.dropped, table.rest.pattern);
        drop(table);
        files.sort_by_key(|file| std::cmp::Reverse(file.pattern.weight()));
        processes.sort_by_key(|process| std::cmp::Reverse(process.pattern.weight()));
        UseTable { uptime_ms, files, processes, dropped, rest, torn }
    }

    /// Returns the history from a time to now.
    pub fn history(&self, from_ms: u64, now_ms: u64) -> History {
        self.0.lock().ring.list(from_ms, now_ms)
    }
}

impl EvictedUses {
    fn has(&self, row: usize) -> bool {
        self.rows.get(row / 64).is_some_and(|bits| bits & (1_u64 << (row % 64)) != 0)
    }
}

impl<K: Copy + Eq + Hash, V> RowTable<K, V> {
    /// Reads the rows that `read` accepts. Rows are used from the front, so none behind a row that was never used is
    /// looked at: that would take memory.
    fn open(rows: Rows, mut read: impl FnMut(usize, &[u8]) -> Option<(K, V)>) -> RowTable<K, V> {
        let used = (0..rows.count()).take_while(|row| rows.is_used(*row)).count();
        let (mut all, mut free) = (HashMap::new(), Vec::from_iter((used..rows.count()).rev()));
        for row in (0..used).rev() {
            match read(row, &rows.read(row)) {
                // Of two rows of a key one counts; the other one can be used again.
                Some((key, value)) => free.extend(all.insert(key, (row, value)).map(|(other, _)| other)),
                None => free.push(row),
            }
        }
        RowTable { all, free, rows }
    }

    fn values(&self) -> impl Iterator<Item = &V> {
        self.all.values().map(|(_, value)| value)
    }

    fn has_room(&self, key: &K) -> bool {
        !self.free.is_empty() || self.all.contains_key(key)
    }

    /// Returns the row and value of a key, made in a free row if there is none.
    fn of(&mut self, key: K, make: impl FnOnce() -> V) -> (usize, &mut V, &Rows) {
        let free = &mut self.free;
        let (row, value) = self.all.entry(key).or_insert_with(|| (free.pop().unwrap_or(usize::MAX), make()));
        (*row, value, &self.rows)
    }

    /// Takes away the half that weighs less. Its rows are free, and as they were.
    fn drop_half(&mut self, weight: impl Fn(&V) -> u64) -> Vec<(usize, V)> {
        let mut keys: Vec<(u64, K)> =
            self.all.iter().map(|(key, (_, value))| (weight(value), *key)).collect();
        keys.sort_by_key(|(weight, _)| *weight);
        keys.truncate(keys.len() / 2);
        let dropped: Vec<_> = keys.iter().filter_map(|(_, key)| self.all.remove(key)).collect();
        self.free.extend(dropped.iter().map(|(row, _)| *row));
        dropped
    }
}

impl Table {
    fn note_file(
        &mut self,
        client: ClientId,
        told: &FileUseDelta,
        known: UsedFile,
        (first_ms, last_ms): (u64, u64),
    ) {
        if !self.files.has_room(&told.ino) {
            self.drop_files();
        }
        self.rest.turn += 1;
        let (row, file, rows) = self.files.of(told.ino, || FileUse {
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
        rows.write(row, &FileRow { turn: self.rest.turn, file: file.clone() }.to_bytes());
    }

    /// Tells the half that was used less together. It is done with one row; a kill leaves what was before.
    fn drop_files(&mut self) {
        let dropped = self.files.drop_half(|file| file.pattern.weight());
        self.rest.rows = vec![0; USES_FILES_MAX.div_ceil(64)];
        for (row, file) in &dropped {
            self.rest.dropped += 1;
            self.rest.pattern.add(&file.pattern);
            if let Some(bits) = self.rest.rows.get_mut(row / 64) {
                *bits |= 1_u64 << (row % 64);
            }
        }
        self.rest.turn += 1;
        self.rest_row.write(0, &self.rest.to_bytes());
    }

    fn note_process(&mut self, client: ClientId, told: &FileUseDelta, (first_ms, last_ms): (u64, u64)) {
        let key = (client, told.pid);
        if !self.processes.has_room(&key) {
            for (row, _) in self.processes.drop_half(|process| process.pattern.weight()) {
                // One by one, as nothing is summed up of processes: after a kill some are listed a little longer.
                self.processes.rows.write(row, &[]);
            }
        }
        let (row, process, rows) = self.processes.of(key, || ProcessUse {
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
        rows.write(row, &process.to_bytes());
    }
}

/// Returns a process as a number.
fn user(client: ClientId, pid: u32) -> u64 {
    client.0.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_direct::Memory;
    use bivouac_record::Counts;
    use bivouac_types::limits::USES_PROCESSES_MAX;
    use bivouac_wire::Program;

    fn new() -> UsageTable {
        UsageTable::open(&Recorder::open(None).unwrap())
    }

    #[test]
    fn who_reads_what_others_write_is_told_from_who_reads_it_then() {
        for (read_at_ms, is_mixed) in [(9000, true), (20_000, false)] {
            let uses = new();
            uses.note(ClientId(1), &told(7, 10, 100), GONE, 10_000);
            let mut read = told(7, 11, 100);
            read.pattern = Pattern { reads: read.pattern.writes, ..Pattern::default() };
            uses.note(ClientId(1), &read, GONE, read_at_ms);
            assert_eq!(uses.list(0, 0).files[0].is_mixed(), is_mixed);
        }
    }

    const GONE: UsedFile = UsedFile { inode: None, is_mount: true };

    fn told(ino: u64, pid: u32, bytes: u64) -> FileUseDelta {
        let writes = Counts { ops: 1, bytes, ..Counts::default() };
        let pattern = Pattern { writes, ..Pattern::default() };
        let program = Program(b"app".to_vec());
        FileUseDelta { ino: Ino(ino), pid, program, first_ago_ms: 500, last_ago_ms: 100, pattern }
    }

    #[test]
    fn files_processes_and_times_are_put_together() {
        let uses = new();
        for (client, pid) in [(1, 10), (1, 11), (2, 10)] {
            uses.note(ClientId(client), &told(7, pid, 100), GONE, 1000 * u64::from(pid));
        }
        uses.note(ClientId(1), &told(8, 10, 1), UsedFile { is_mount: false, ..GONE }, 300);
        let list = uses.list(0, 0);
        let files: Vec<_> =
            list.files.iter().map(|f| (f.ino.0, f.users.len(), f.mounted, f.first_ms, f.last_ms)).collect();
        assert_eq!(files, [(7, 3, 3, 9500, 10_900), (8, 1, 0, 0, 200)]);
        let first = &list.files[0];
        assert_eq!((first.held_ms, first.written_until_ms, first.is_mixed()), (1200, Some(10_900), false));
        let processes: Vec<_> =
            list.processes.iter().map(|p| (p.client.0, p.pid, p.pattern.writes.bytes)).collect();
        assert_eq!((processes.len(), processes[0]), (3, (1, 10, 101)));
        let line = uses.history(0, u64::MAX).timeline();
        assert_eq!((line.total().written, line.bins[10].written), (301, 100));
        assert_eq!((list.dropped, list.rest), (0, Pattern::default()));
    }

    #[test]
    fn what_stages_copy_is_no_use_by_programs() {
        let uses = new();
        uses.note(ClientId(1), &told(7, 10, 100), GONE, 1000);
        let own = FileUseDelta { program: Program(OWN_PROGRAM.into()), ..told(7, 11, 5000) };
        uses.note(ClientId(1), &own, GONE, 2000);
        let list = uses.list(0, 0);
        assert_eq!(
            (list.files.len(), list.files[0].users.len(), list.files[0].pattern.writes.bytes),
            (1, 1, 100)
        );
        let line = uses.history(0, u64::MAX).timeline();
        assert_eq!((line.total().written, list.rest), (100, Pattern::default()));
        let apart =
            list.processes.iter().find(|process| process.program.0 == OWN_PROGRAM.as_bytes()).unwrap();
        assert_eq!((apart.pid, apart.pattern.writes.bytes), (11, 5000));
    }

    #[test]
    fn memory_is_bounded_and_sums_stay() {
        let uses = new();
        let count = 10 * USES_FILES_MAX as u64;
        uses.note(ClientId(1), &told(1, 1, 1 << 30), GONE, 1000);
        for ino in 2..=count {
            uses.note(ClientId(1), &told(ino, ino as u32, ino), GONE, 1000);
        }
        let list = uses.list(0, 0);
        assert!(list.files.len() <= USES_FILES_MAX && list.processes.len() <= USES_PROCESSES_MAX);
        assert_eq!((list.files[0].ino, list.processes[0].pid), (Ino(1), 1), "what did most stays");
        let listed: u64 = list.files.iter().map(|file| file.pattern.writes.bytes).sum();
        let sum = (1 << 30) + (2..=count).sum::<u64>();
        assert_eq!(listed + list.rest.writes.bytes, sum);
        assert_eq!(list.files.len() as u64 + list.dropped, count);
        assert_eq!(uses.history(0, u64::MAX).timeline().total().written, sum);
    }

    /// Told as often as rows are full, twice over, and known as it was when the next daemon comes.
    #[test]
    fn the_next_daemon_knows_what_was_told() {
        let file = Memory::make("uses").unwrap();
        let open = || UsageTable::open(&Recorder::open(Some(file.try_clone().unwrap())).unwrap());
        let mut before = open();
        for ino in 1..=3 * USES_FILES_MAX as u64 {
            before.note(ClientId(1), &told(ino, ino as u32, ino), GONE, 1000 * ino);
            if ino.is_multiple_of(97) {
                let next = open();
                let sorted = |uses: &UsageTable| {
                    let mut list = uses.list(0, 0);
                    list.files.sort_by_key(|file| file.ino);
                    list.processes.sort_by_key(|process| process.pid);
                    list
                };
                assert_eq!(
                    (sorted(&next), next.history(0, u64::MAX)),
                    (sorted(&before), before.history(0, u64::MAX))
                );
                before = next;
            }
        }
    }
}
