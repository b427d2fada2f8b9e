//! Asks nodes how files were used, and puts it together.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use bivouac_client::{Client, FileUse, ProcessUse, Times, UseTable};
use bivouac_launch::{LaunchResult, StateDir, unix_ms};
use bivouac_record::{Facts, History, Pattern, findings};
use bivouac_stage::jobs::Direction;
use bivouac_types::limits::USE_PROCESSES_MAX;
use bivouac_types::units::format_count;
use bivouac_types::{Contract, FsResult, Ino, NodeId, PartitionId};

use super::places::{PartitionPlace, places};
use super::tables::shown;
use super::{FileRow, JobReport, OperationRow, ProcessRow, ServedRow, SiteRow, VERSION};
use crate::connection::connect;
use crate::stage_jobs::StageMonitor;
use crate::status::{is_work, look_at_all};

/// Time that a node may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Entries of the formation that are looked through for names, at most.
const ENTRIES_MAX: usize = 100_000;
/// Time that files that were just closed may take to be told of.
const SETTLE: Duration = Duration::from_secs(1);
/// Time between two looks for that.
const SETTLE_EVERY: Duration = Duration::from_millis(20);

/// Answer of a node.
struct NodeUses {
    node: u16,
    /// Time when its first daemon was started, in milliseconds since 1970.
    started: u64,
    uses: UseTable,
    /// Work of programs by time, and what the node served.
    used: History,
    served: History,
}

impl NodeUses {
    fn ask(client: &Client, node: u16) -> FsResult<NodeUses> {
        let uses = client.nodes().list_uses(NodeId(node))?;
        let history =
            |served| client.nodes().list_history(NodeId(node), served, u64::MAX).map(|told| told.history);
        let (used, served) = (history(false)?, history(true)?);
        Ok(NodeUses { node, started: unix_ms().saturating_sub(uses.uptime_ms), uses, used, served })
    }
}

/// Answers of nodes and partitions.
struct ReportInputs {
    client: Client,
    /// Of each node that answers.
    tables: Vec<NodeUses>,
    partitions: HashMap<PartitionId, PartitionPlace>,
    /// Paths and sizes.
    paths: HashMap<Ino, (Vec<u8>, u64)>,
    dirs: HashMap<Ino, String>,
    began: u64,
}

/// Reports the use of a formation until now.
///
/// # Errors
/// When it does not run, or cannot be looked at.
pub fn gather(dir: &StateDir) -> LaunchResult<JobReport> {
    let state = dir.read_living()?;
    let status = look_at_all(dir)?;
    let client = connect(dir, &state, ANSWER_WAIT)?;
    settle(&client, status.nodes.len());
    let mut notes = Vec::new();
    let mut tables = Vec::new();
    for node in &status.nodes {
        match NodeUses::ask(&client, node.id) {
            Ok(table) => tables.push(table),
            Err(error) => notes.push(format!("node {} does not say what it knows: {error}", node.id)),
        }
    }
    for NodeUses { node, uses, .. } in tables.iter().filter(|table| table.uses.torn > 0) {
        let torn = format_count(uses.torn, "note");
        notes.push(format!("{torn} of node {node} that its daemon was killed in the middle of: not in here"));
    }
    if state.recoveries > 0 {
        notes.push("what was before the formation was recovered is not in here".into());
    }
    let began = tables.iter().map(|table| table.started).min().unwrap_or_else(unix_ms);
    let gathered = ReportInputs::new(client, tables, began);
    let mut report = gathered.report();
    if gathered.partitions.values().any(|place| place.has_source) {
        notes.push("what partitions brought from their sources and flushed to them is not counted".into());
    }
    if report.more_files > 0 {
        notes.push(format!("{} files that were used less are told together", report.more_files));
    }
    let operations = status.nodes.iter().flat_map(|node| &node.operations);
    let operations = operations.filter(|one| is_work(one));
    report.operations = rows(operations.map(|one| (one.name.as_str(), one.client, &one.client_times)));
    report.site = SiteRow { here: report.site.here, ..staged(dir, &gathered.client, &mut notes)? };
    (report.name, report.nodes, report.notes) = (status.name, status.nodes.len() as u64, notes);
    Ok(report)
}

/// Asks mounts to report open files, and waits a moment for files that were just closed.
fn settle(client: &Client, nodes: usize) {
    let nodes = || (0..nodes).map(|node| NodeId(node as u16));
    // The question itself has each node tell its mounts to report what they have open.
    nodes().for_each(|node| drop(client.nodes().list_uses(node)));
    let begun = Instant::now();
    let is_open =
        || nodes().any(|node| client.nodes().status(node).is_ok_and(|status| status.open_files > 0));
    while is_open() && begun.elapsed() < SETTLE {
        std::thread::park_timeout(SETTLE_EVERY);
    }
}

/// Returns the bytes that jobs of `stage`, and of `run`, have copied, on all hosts.
fn staged(dir: &StateDir, client: &Client, notes: &mut Vec<String>) -> LaunchResult<SiteRow> {
    let mut row = SiteRow::default();
    let (jobs, silent) = StageMonitor::new(dir.clone()).find(client)?;
    for job in &jobs {
        let (bytes, files) = match job["way"] == Direction::In.word() {
            true => (&mut row.staged_in, &mut row.files_in),
            false => (&mut row.staged_out, &mut row.files_out),
        };
        for (sum, key) in [(bytes, "bytes"), (files, "files")] {
            *sum = sum.saturating_add(job[key].as_u64().unwrap_or(0));
        }
    }
    notes.extend(
        silent.iter().map(|(host, why)| format!("host {host} does not say what was staged there: {why}")),
    );
    Ok(row)
}

fn rows<'a>(operations: impl Iterator<Item = (&'a str, u64, &'a Times)>) -> Vec<OperationRow> {
    let mut sums: HashMap<&str, (u64, Times)> = HashMap::new();
    for (name, count, times) in operations {
        let (sum, all) = sums.entry(name).or_default();
        *sum = sum.saturating_add(count);
        all.add(times);
    }
    let row = |(name, (count, times)): (&str, (u64, Times))| OperationRow {
        name: name.into(),
        count,
        total_us: times.total_us,
        p50_us: times.quantile_us(0.5).unwrap_or(0),
        p99_us: times.quantile_us(0.99).unwrap_or(0),
    };
    let mut rows: Vec<OperationRow> = sums.into_iter().map(row).filter(|row| row.count > 0).collect();
    rows.sort_by(|a, b| b.total_us.cmp(&a.total_us).then_with(|| a.name.cmp(&b.name)));
    rows
}

impl ReportInputs {
    fn new(client: Client, tables: Vec<NodeUses>, began: u64) -> ReportInputs {
        let files = || tables.iter().flat_map(|table| &table.uses.files);
        let wanted: HashSet<Ino> = files().map(|file| file.ino).collect();
        let paths = client.sized_paths_to(&wanted, ENTRIES_MAX).unwrap_or_default();
        // Gone, or behind the last entry that is looked through: the directory has to do.
        let lost: HashSet<Ino> =
            files().filter(|file| !paths.contains_key(&file.ino)).map(|file| file.parent).collect();
        let name = |dir: Ino| Some((dir, client.path_of_dir(dir).ok().flatten()?));
        let dirs = lost.into_iter().filter(|dir| *dir != Ino(0)).filter_map(name).collect();
        let partitions = client.partitions.list().unwrap_or_default();
        let place = |partition: &bivouac_client::Partition| {
            let settings = &partition.settings;
            let (is_session, has_source) =
                (settings.contract == Contract::Session, settings.source.is_some());
            let path = client.path_of_dir(partition.dir).ok().flatten()?;
            Some((partition.id, PartitionPlace { path, is_session, has_source }))
        };
        let partitions = partitions.iter().filter_map(place).collect();
        ReportInputs { client, tables, partitions, paths, dirs, began }
    }

    fn report(&self) -> JobReport {
        let mut report = JobReport {
            report: VERSION,
            release: env!("CARGO_PKG_VERSION").into(),
            unix_ms: unix_ms(),
            began_unix_ms: self.began,
            ..JobReport::default()
        };
        let mut total = Pattern::default();
        let mut processes: HashMap<(u64, u32), ProcessRow> = HashMap::new();
        let mut used: Vec<(FileRow, &FileUse)> = Vec::new();
        for NodeUses { node, started, uses: table, used: by_time, served } in &self.tables {
            // Each node counts from the start of its first daemon: what they did is put on one line of time.
            let later = started.saturating_sub(self.began);
            report.history.merge(by_time, later);
            let mut row = ServedRow { node: *node, history: History::default() };
            row.history.merge(served, later);
            report.served.push(row);
            total.add(&table.rest);
            report.more_files = report.more_files.saturating_add(table.dropped);
            for file in &table.files {
                total.add(&file.pattern);
                used.push((self.file_row(file, later), file));
            }
            // Processes of a mount work through many homes, and each home has a row of them.
            for process in &table.processes {
                let row = self.process_row(process, later);
                let sum = processes
                    .entry((process.client.0, process.pid))
                    .or_insert_with(|| ProcessRow { pattern: Pattern::default(), ..row.clone() });
                sum.first_ms = sum.first_ms.min(row.first_ms);
                sum.last_ms = sum.last_ms.max(row.last_ms);
                sum.pattern.add(&row.pattern);
            }
        }
        used.sort_by_key(|(row, _)| std::cmp::Reverse(row.pattern.weight()));
        report.places = places(&used, &self.partitions);
        report.findings = findings(&Facts { groups: report.places.clone() });
        let times = used.iter().map(|(row, _)| (row.first_ms, row.last_ms));
        let span = times.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        report.span_ms = span.map_or(0, |(first, last)| {
            assert!(first <= last, "the last use at {last} ms was before the first at {first} ms");
            last - first
        });
        let without = report.places.iter().filter(|place| !place.has_source);
        report.site.here = without.map(|place| place.pattern.both().bytes).fold(0, u64::saturating_add);
        report.files = used.into_iter().map(|(row, _)| row).collect();
        report.processes = processes.into_values().collect();
        report.processes.sort_by_key(|row| std::cmp::Reverse(row.pattern.weight()));
        (report.timeline, report.total) = (report.history.timeline(), total);
        report
    }

    fn file_row(&self, file: &FileUse, later: u64) -> FileRow {
        let found = self.paths.get(&file.ino);
        let path = found.map(|(path, _)| format!("/{}", shown(OsStr::from_bytes(path))));
        let gone = path.is_none();
        let dir = || {
            self.dirs.get(&file.parent).map_or("/?".to_owned(), |dir| format!("{}/?", shown(dir.as_ref())))
        };
        FileRow {
            path: path.unwrap_or_else(dir),
            gone,
            size: found.map(|(_, size)| *size),
            stripe: file.stripe.into(),
            processes: file.users.len() as u64,
            or_more: file.users.len() >= USE_PROCESSES_MAX,
            first_ms: file.first_ms.saturating_add(later),
            last_ms: file.last_ms.max(file.first_ms).saturating_add(later),
            pattern: file.pattern,
        }
    }

    fn process_row(&self, process: &ProcessUse, later: u64) -> ProcessRow {
        let map = self.client.map();
        let node = process.client.mounted_through(map.formation);
        let host = node.and_then(|node| map.nodes.get(usize::from(node.0))).map(|node| node.host.clone());
        ProcessRow {
            program: shown(OsStr::from_bytes(&process.program.0)),
            pid: process.pid,
            host,
            first_ms: process.first_ms.saturating_add(later),
            last_ms: process.last_ms.max(process.first_ms).saturating_add(later),
            pattern: process.pattern,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_summed_over_nodes() {
        let times = |total_us| Times { total_us, counts: vec![0, 2] };
        let (a, b) = (times(10), times(5));
        let rows = rows([("Read", 2, &a), ("Write", 9, &b), ("Read", 2, &b), ("Open", 0, &b)].into_iter());
        let said: Vec<_> =
            rows.iter().map(|row| (row.name.as_str(), row.count, row.total_us, row.p50_us)).collect();
        assert_eq!(said, [("Read", 4, 15, 2), ("Write", 9, 5, 2)]);
    }
}
