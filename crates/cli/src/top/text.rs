//! An interval as text, for logs and terminals that understand nothing else.

use bivouac_monitor::rates::{FileRates, NodeRates, OperationRates, ProcessRates, Rates, UseRates};
use bivouac_types::units::{format_count, format_duration, format_micros, format_size};

use super::sections::{Section, SectionView};
use super::{bandwidth, rate};
use crate::table::layout;

/// Returns the formation, its nodes, its operations, what is busy and what waits, and what is not as it should be.
pub fn table(rates: &Rates) -> String {
    let mut text = format!("{}\n{}\n", headline(rates), totals(rates));
    rates.warnings.iter().for_each(|warning| text.push_str(&format!("! {warning}\n")));
    let rows: Vec<Vec<String>> = rates.nodes.iter().map(|node| row(node).to_vec()).collect();
    text.push_str(&format!("\n{}", layout(&NODES, &[0, 3, 4, 5, 6, 7, 8], &rows)));
    let rows: Vec<Vec<String>> =
        rates.operations.iter().map(|operation| operation_row(operation).to_vec()).collect();
    if !rows.is_empty() {
        text.push_str(&format!("\n{}", layout(&OPERATIONS, &[1, 2, 3, 4, 5, 6], &rows)));
    }
    for section in [Section::Files, Section::Processes, Section::Queue] {
        let SectionView { head, right, rows, .. } = section.shown(rates, usize::MAX);
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let numbers: Vec<usize> = (right..head.len()).collect();
        if !rows.is_empty() {
            text.push_str(&format!("\n{}", layout(&head, &numbers, &rows)));
        }
    }
    text
}

/// Returns the formation's name, state, size and age.
pub fn headline(rates: &Rates) -> String {
    let age = format_duration(rates.unix_ms.saturating_sub(rates.created_unix_ms));
    let nodes = format_count(rates.nodes.len() as u64, "node");
    format!("formation {}: {}, {nodes}, {age} old", rates.name, rates.state)
}

fn totals(rates: &Rates) -> String {
    let total = &rates.total;
    let (written, read) = (bandwidth(total.written), bandwidth(total.read));
    let requests = rate(total.requests);
    format!("written {written}, read {read}, {requests} requests/s, {}", space(rates))
}

/// Returns the files and bytes.
pub fn space(rates: &Rates) -> String {
    let files = format_count(rates.files, "file");
    let (percent, of) = (rates.total.fill() * 100.0, format_size(rates.total.capacity_bytes));
    let mut text = format!("{percent:.0} % of {of}, {files}, {} open", rates.open_files);
    if rates.unsent_bytes > 0 {
        text.push_str(&format!(", {} not sent", format_size(rates.unsent_bytes)));
    }
    if let Some(bytes) = rates.unflushed_bytes.filter(|bytes| *bytes > 0) {
        text.push_str(&format!(", {} not flushed", format_size(bytes)));
    }
    text
}

/// Columns of nodes.
pub const NODES: [&str; 9] =
    ["NODE", "HOST", "STATE", "REQ/S", "WRITTEN", "READ", "LOAD", "UNDER WAY", "FULL"];

/// Returns a node in these.
pub fn row(node: &NodeRates) -> [String; 9] {
    let work = &node.work;
    [
        node.id.to_string(),
        node.host.clone(),
        node.state.to_owned(),
        rate(work.requests),
        bandwidth(work.written),
        bandwidth(work.read),
        format!("{:.2}", work.load),
        work.under_way.to_string(),
        format!("{:.0} %", work.fill() * 100.0),
    ]
}

/// Columns of operations.
pub const OPERATIONS: [&str; 7] = ["OPERATION", "CLIENTS/S", "PEERS/S", "LOAD", "UNDER WAY", "P50", "P99"];

/// Returns an operation in these.
pub fn operation_row(operation: &OperationRates) -> [String; 7] {
    let time = |us: Option<u64>| us.map_or_else(|| "-".into(), format_micros);
    [
        operation.name.clone(),
        rate(operation.client),
        rate(operation.peer),
        format!("{:.2}", operation.load),
        operation.under_way.to_string(),
        time(operation.p50_us),
        time(operation.p99_us),
    ]
}

/// Columns of files.
pub const FILES: [&str; 5] = ["FILE", "CALLS/S", "WRITTEN", "READ", "TOTAL"];

/// Returns a file in these.
pub fn file_row(file: &FileRates) -> [String; 5] {
    let [calls, written, read, total] = paces(&file.pace);
    [file.path.clone(), calls, written, read, total]
}

/// Columns of processes; the second is left out where there is one host.
pub const PROCESSES: [&str; 7] = ["PROGRAM", "HOST", "PID", "CALLS/S", "WRITTEN", "READ", "TOTAL"];

/// Returns a process in these.
pub fn process_row(process: &ProcessRates) -> [String; 7] {
    let pid = if process.pid == 0 { "-".into() } else { process.pid.to_string() };
    let host = process.host.clone().unwrap_or_else(|| "-".into());
    let [calls, written, read, total] = paces(&process.pace);
    [process.program.clone(), host, pid, calls, written, read, total]
}

fn paces(pace: &UseRates) -> [String; 4] {
    [rate(pace.calls), bandwidth(pace.written), bandwidth(pace.read), bandwidth(pace.total())]
}

/// Columns of what is copied and flushed; the second is left out where there is one host.
pub const QUEUE: [&str; 6] = ["QUEUE", "HOST", "FILES", "BYTES", "DONE", "RATE"];

/// Jobs of staging in these, and what waits to be flushed.
pub fn queue_rows(rates: &Rates) -> Vec<[String; 6]> {
    let none = || "-".to_owned();
    let jobs = rates.activity.iter().flat_map(|activity| &activity.stages).map(|job| {
        let share = match (job.bytes_found, job.files_found) {
            (0, 0) => none(),
            (0, files) => format!("{:.0} %", job.files as f64 / files as f64 * 100.0),
            (bytes, _) => format!("{:.0} %", job.bytes as f64 / bytes as f64 * 100.0),
        };
        [
            format!("stage {} {}", job.way, job.job),
            job.host.clone().unwrap_or_else(none),
            format!("{}/{}", job.files, job.files_found),
            format!("{}/{}", format_size(job.bytes), format_size(job.bytes_found)),
            share,
            bandwidth(job.pace),
        ]
    });
    let waits = |what: &str, count: Option<usize>, bytes: Option<u64>| {
        let count = count.filter(|count| *count > 0)?;
        Some([what.into(), none(), count.to_string(), bytes.map_or_else(none, format_size), none(), none()])
    };
    let flushes = [
        waits("flush", rates.unflushed_files, rates.unflushed_bytes),
        waits("delete at source", rates.unflushed_deletions, None),
    ];
    jobs.chain(flushes.into_iter().flatten()).collect()
}

/// Returns whether the formation is over several hosts.
pub fn has_hosts(rates: &Rates) -> bool {
    rates.nodes.iter().any(|node| rates.nodes.first().is_some_and(|first| first.host != node.host))
}
