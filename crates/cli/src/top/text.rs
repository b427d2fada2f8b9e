//! An interval as text, for logs and terminals that understand nothing else.

use bivouac_types::units::{format_count, format_size};

use super::{Rates, bandwidth, rate};
use crate::table::{duration, layout, short_time};

/// The formation, its nodes, its operations, and what is not as it should be.
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
    text
}

/// What it is, and for how long.
pub fn headline(rates: &Rates) -> String {
    let age = duration(rates.unix_ms.saturating_sub(rates.created_unix_ms));
    let nodes = format_count(rates.nodes.len() as u64, "node");
    format!("formation {}: {}, {nodes}, {age} old", rates.name, rates.state)
}

fn totals(rates: &Rates) -> String {
    let total = &rates.total;
    let (written, read) = (bandwidth(total.written), bandwidth(total.read));
    let requests = rate(total.requests);
    format!("written {written}, read {read}, {requests} requests/s, {}", space(rates))
}

/// Files and bytes.
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

/// A node in these.
pub fn row(node: &super::rates::NodeRates) -> [String; 9] {
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

/// An operation in these.
pub fn operation_row(operation: &super::rates::OperationRates) -> [String; 7] {
    let time = |us: Option<u64>| us.map_or_else(|| "-".into(), short_time);
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
