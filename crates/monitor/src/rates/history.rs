//! Work of nodes before anybody looked, from what they record.

use std::collections::BTreeMap;
use std::time::Duration;

use bivouac_client::Client;
use bivouac_launch::{LaunchResult, StateDir, parallel_map, unix_ms};
use bivouac_record::{Bin, History, SECOND_MS};
use bivouac_types::NodeId;

use super::interval::{IntervalWork, NodeRates, Rates};
use crate::connection::connect;
use crate::status::StatusReport;

/// Time that a node may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// Work of each node in an interval, by when it began, in milliseconds since 1970, and how long it was.
type Intervals = BTreeMap<(u64, u64), BTreeMap<u16, Bin>>;

/// Returns the history, interval after interval: seconds with activity, minutes where seconds are not kept any more,
/// otherwise the time without activity. A node that does not answer counts as idle.
///
/// # Errors
/// The formation does not run, or cannot be reached.
pub fn past(dir: &StateDir, now: &StatusReport, back_ms: u64) -> LaunchResult<Vec<Rates>> {
    let state = dir.read_living()?;
    let client = connect(dir, &state, ANSWER_WAIT)?;
    let until = unix_ms();
    let intervals = gather(&client, now, until, back_ms);
    let began = now.created_unix_ms.max(until.saturating_sub(back_ms));
    let mut at = began;
    let mut all = Vec::new();
    for ((from, width), nodes) in &intervals {
        if *from > at {
            all.push(interval(now, at, from - at, &BTreeMap::new()));
        }
        all.push(interval(now, *from, *width, nodes));
        at = from.saturating_add(*width);
    }
    if until > at {
        all.push(interval(now, at, until - at, &BTreeMap::new()));
    }
    Ok(all)
}

fn gather(client: &Client, now: &StatusReport, until: u64, back_ms: u64) -> Intervals {
    let ready: Vec<u16> = now.nodes.iter().filter(|node| node.state == "ready").map(|node| node.id).collect();
    let answers = parallel_map(&ready, |node| client.nodes().list_history(NodeId(*node), true, back_ms));
    assert_eq!(answers.len(), ready.len(), "answers are told by the position of their nodes");
    let told = ready.iter().zip(answers).filter_map(|(node, answer)| {
        let told = answer?.ok()?;
        Some((*node, until.saturating_sub(told.uptime_ms), told.history))
    });
    put_together(&told.collect::<Vec<_>>())
}

/// Puts together the histories of nodes, each with when it began: seconds, and minutes that are over before the first
/// second.
fn put_together(told: &[(u16, u64, History)]) -> Intervals {
    let begins = told
        .iter()
        .filter_map(|(_, began, history)| Some(began.saturating_add(history.seconds.first()?.at_ms)));
    let first = begins.min().unwrap_or(u64::MAX);
    let mut intervals = Intervals::new();
    for (node, began, history) in told {
        let minutes = history.minutes.iter().map(|slot| (slot, history.minute_ms));
        let seconds = history.seconds.iter().map(|slot| (slot, SECOND_MS));
        for (slot, width) in minutes.chain(seconds) {
            let at = began.saturating_add(slot.at_ms);
            // Nodes were not started in the same millisecond.
            let at = at - at % width.max(1);
            // Minutes only where no node has seconds, or the same work would be counted twice.
            if width == SECOND_MS || at.saturating_add(width) <= first {
                intervals.entry((at, width)).or_default().entry(*node).or_default().add(slot.bin);
            }
        }
    }
    intervals
}

fn interval(now: &StatusReport, from: u64, width_ms: u64, did: &BTreeMap<u16, Bin>) -> Rates {
    let seconds = width_ms.max(1) as f64 / 1e3;
    let work = |id: u16| {
        let bin = did.get(&id).copied().unwrap_or_default();
        IntervalWork {
            requests: bin.ops as f64 / seconds,
            written: bin.written as f64 / seconds,
            read: bin.read as f64 / seconds,
            load: bin.spent_ns as f64 / 1e9 / seconds,
            ..IntervalWork::default()
        }
    };
    let nodes: Vec<NodeRates> = now
        .nodes
        .iter()
        .map(|node| NodeRates {
            id: node.id,
            host: node.host.clone(),
            state: node.state,
            work: work(node.id),
        })
        .collect();
    Rates {
        name: now.name.clone(),
        state: now.state,
        unix_ms: from.saturating_add(width_ms),
        seconds,
        created_unix_ms: now.created_unix_ms,
        total: nodes.iter().fold(IntervalWork::default(), |sum, node| sum.plus(&node.work)),
        nodes,
        ..Rates::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_record::{HistoryInterval, MINUTE_MS};

    #[test]
    fn seconds_are_told_and_minutes_before_them() {
        let slot = |at_ms, ops| HistoryInterval { at_ms, bin: Bin { ops, ..Bin::default() } };
        let history = History {
            minute_ms: MINUTE_MS,
            seconds: vec![slot(3_600_000, 2), slot(3_605_000, 3)],
            minutes: vec![slot(60_000, 9), slot(3_600_000, 5)],
        };
        let intervals = put_together(&[(1, 0, history.clone()), (2, 400, history)]);
        let told: Vec<_> = intervals
            .iter()
            .map(|((at, width), nodes)| (*at, *width, nodes.values().map(|bin| bin.ops).collect::<Vec<_>>()))
            .collect();
        let both = |ops| vec![ops, ops];
        assert_eq!(told, [(60_000, 60_000, both(9)), (3_600_000, 1000, both(2)), (3_605_000, 1000, both(3))]);
    }
}
