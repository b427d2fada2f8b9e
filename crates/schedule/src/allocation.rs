//! Allocation of bandwidth over time: earliest deadline first, each with as much as it can use.

use std::collections::BTreeMap;

use crate::{Entry, Limits, Phase, Slot};

/// Returns the sort key of an entry: promised requests by deadline, then best-effort ones, then missed ones.
fn priority(entry: &Entry) -> (bool, bool, i64, i64) {
    (!entry.promised, entry.phase == Phase::Missed, entry.rank_s, entry.request.id)
}

/// Bandwidth of one entry at a moment.
struct RateShare {
    /// Index of the entry.
    index: usize,
    rate: u64,
}

/// Divides the bandwidth among the entries that can use it, in order of priority.
fn shares(limits: &Limits, at_s: i64, entries: &[Entry], order: &[usize], left: &[u64]) -> Vec<RateShare> {
    let mut free = limits.bandwidth;
    let mut users = BTreeMap::new();
    let mut shares = Vec::new();
    for &index in order {
        let (Some(entry), Some(left)) = (entries.get(index), left.get(index)) else { continue };
        let is_running = entry.phase == Phase::Running;
        // What runs goes on although its earliest start was moved behind now: its data is being copied already.
        if *left == 0 || !is_running && entry.request.earliest_s > at_s {
            continue;
        }
        // The share of a user is divided among his requests, the first of them in order taking what it can.
        let own = users.entry(entry.request.user).or_insert_with(|| limits.user_share());
        let rate = limits.rate_of(&entry.request).min(*own).min(free);
        (*own, free) = (*own - rate, free - rate);
        if rate > 0 {
            shares.push(RateShare { index, rate });
        }
        if free == 0 {
            break;
        }
    }
    let total: u128 = shares.iter().map(|share| u128::from(share.rate)).sum();
    assert!(total <= u128::from(limits.bandwidth), "the allocation exceeds the bandwidth of site storage");
    shares
}

fn order(entries: &[Entry]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&index| entries.get(index).map(priority));
    order
}

/// Returns for how long the shares stay constant: until a transfer ends or another can begin.
fn constant_for_s(at_s: i64, entries: &[Entry], shares: &[RateShare], left: &[u64]) -> Option<i64> {
    let done =
        shares.iter().filter_map(|share| i64::try_from(left.get(share.index)?.div_ceil(share.rate)).ok());
    let coming = entries.iter().filter(|entry| entry.phase != Phase::Running);
    let coming = coming.map(|entry| entry.request.earliest_s.saturating_sub(at_s)).filter(|&s| s > 0);
    let lasts_s = done.chain(coming).min();
    assert!(lasts_s.is_none_or(|seconds| seconds > 0), "the allocation does not advance in time");
    lasts_s
}

fn consume(left: &mut [u64], share: &RateShare, seconds: i64) {
    assert!(share.index < left.len(), "a share of an entry that is not in the schedule");
    if let Some(left) = left.get_mut(share.index) {
        let seconds = u64::try_from(seconds).unwrap_or(0);
        *left = left.saturating_sub(share.rate.saturating_mul(seconds));
    }
}

/// Subtracts from running transfers what they have used between two times.
pub(crate) fn advance(limits: &Limits, from_s: i64, until_s: i64, entries: &mut [Entry]) {
    let order = order(entries);
    let mut left: Vec<u64> = entries.iter().map(|entry| entry.left).collect();
    let mut at_s = from_s;
    while at_s < until_s {
        let shares = shares(limits, at_s, entries, &order, &left);
        let Some(lasts_s) = constant_for_s(at_s, entries, &shares, &left) else { break };
        let lasts_s = lasts_s.min(until_s - at_s);
        // A waiting request keeps its reservation but uses none of it before it starts.
        let runs =
            |share: &&RateShare| entries.get(share.index).is_some_and(|entry| entry.phase == Phase::Running);
        shares.iter().filter(runs).for_each(|share| consume(&mut left, share, lasts_s));
        at_s += lasts_s;
        // Without a running transfer nothing more is used until the end of the interval.
        if shares.iter().all(|share| !runs(&share)) {
            break;
        }
    }
    entries.iter_mut().zip(left).for_each(|(entry, left)| entry.left = left);
}

/// Computes all slots under the assumption that no further event occurs.
pub(crate) fn allocate(limits: &Limits, now_s: i64, entries: &mut [Entry]) {
    let order = order(entries);
    let mut left: Vec<u64> = entries.iter().map(|entry| entry.left).collect();
    let mut slots: Vec<Option<Slot>> = vec![None; entries.len()];
    let mut at_s = now_s;
    loop {
        let shares = shares(limits, at_s, entries, &order, &left);
        let Some(lasts_s) = constant_for_s(at_s, entries, &shares, &left) else { break };
        let until_s = at_s.saturating_add(lasts_s);
        for share in &shares {
            // Unlike in `advance`, waiting requests use theirs as well: each is to start when its slot begins.
            consume(&mut left, share, lasts_s);
            if let Some(slot) = slots.get_mut(share.index) {
                let first = Slot { begin_s: at_s, end_s: until_s, rate: share.rate };
                // Begin and rate are of the first stretch: a request that is displaced later pauses within its slot.
                slot.get_or_insert(first).end_s = until_s;
            }
        }
        // Requests of more work than time remains: their slots end at the end of time, not before.
        if until_s == i64::MAX {
            break;
        }
        at_s = until_s;
    }
    for (entry, slot) in entries.iter_mut().zip(slots) {
        // Without bandwidth in sight the slot begins at the end of time: `Begin` is refused until there is some.
        let none = Slot { begin_s: i64::MAX, end_s: i64::MAX, rate: 0 };
        let slot = slot.unwrap_or(none);
        let (begin_s, rate) = match entry.phase {
            // A running transfer that is preempted keeps its start and pauses at rate 0.
            Phase::Running if slot.begin_s > now_s => (entry.slot.begin_s, 0),
            Phase::Running => (entry.slot.begin_s, slot.rate),
            // A due request keeps the time at which it became due, from which its grace period counts.
            Phase::Waiting if slot.begin_s == now_s => (entry.slot.begin_s.min(now_s), slot.rate),
            Phase::Waiting | Phase::Missed => (slot.begin_s, slot.rate),
        };
        entry.slot = Slot { begin_s, end_s: slot.end_s, rate };
    }
}
