//! Who has how much when: at each moment the earliest deadline is served first, with as much as it can take.

use std::collections::BTreeMap;

use crate::{Entry, Limits, Phase, Slot};

/// Who is served before whom: promises by their deadlines, then the others by theirs, then those who did not come.
fn turn(entry: &Entry) -> (bool, bool, i64, i64) {
    (!entry.promised, entry.phase == Phase::Missed, entry.rank_s, entry.request.id)
}

/// What one of the entries has at a moment.
struct Share {
    /// Which.
    place: usize,
    rate: u64,
}

/// What there is goes to those who can begin and are not done, in their turn.
fn shares(limits: &Limits, at_s: i64, entries: &[Entry], order: &[usize], left: &[u64]) -> Vec<Share> {
    let mut free = limits.bandwidth;
    let mut users = BTreeMap::new();
    let mut shares = Vec::new();
    for &place in order {
        let (Some(entry), Some(left)) = (entries.get(place), left.get(place)) else { continue };
        let is_running = entry.phase == Phase::Running;
        if *left == 0 || !is_running && entry.request.earliest_s > at_s {
            continue;
        }
        let own = users.entry(entry.request.user).or_insert_with(|| limits.user_share());
        let rate = limits.rate_of(&entry.request).min(*own).min(free);
        (*own, free) = (*own - rate, free - rate);
        if rate > 0 {
            shares.push(Share { place, rate });
        }
        if free == 0 {
            break;
        }
    }
    shares
}

fn order(entries: &[Entry]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&place| entries.get(place).map(turn));
    order
}

/// How long shares stay as they are: until one is done, or another can begin.
fn lasts_s(at_s: i64, entries: &[Entry], shares: &[Share], left: &[u64]) -> Option<i64> {
    let done =
        shares.iter().filter_map(|share| i64::try_from(left.get(share.place)?.div_ceil(share.rate)).ok());
    let coming = entries.iter().filter(|entry| entry.phase != Phase::Running);
    let coming = coming.map(|entry| entry.request.earliest_s.saturating_sub(at_s)).filter(|&s| s > 0);
    done.chain(coming).min()
}

fn took(left: &mut [u64], share: &Share, seconds: i64) {
    if let Some(left) = left.get_mut(share.place) {
        let seconds = u64::try_from(seconds).unwrap_or(0);
        *left = left.saturating_sub(share.rate.saturating_mul(seconds));
    }
}

/// What is left of those that run, after all had what they were to have from then until now.
pub(crate) fn pass(limits: &Limits, from_s: i64, until_s: i64, entries: &mut [Entry]) {
    let order = order(entries);
    let mut left: Vec<u64> = entries.iter().map(|entry| entry.left).collect();
    let mut at_s = from_s;
    while at_s < until_s {
        let shares = shares(limits, at_s, entries, &order, &left);
        let Some(lasts_s) = lasts_s(at_s, entries, &shares, &left) else { break };
        let lasts_s = lasts_s.min(until_s - at_s);
        // Who has not come keeps what is kept for them, and takes nothing.
        let runs =
            |share: &&Share| entries.get(share.place).is_some_and(|entry| entry.phase == Phase::Running);
        shares.iter().filter(runs).for_each(|share| took(&mut left, share, lasts_s));
        at_s += lasts_s;
        if shares.iter().all(|share| !runs(&share)) {
            break;
        }
    }
    entries.iter_mut().zip(left).for_each(|(entry, left)| entry.left = left);
}

/// Gives all their slots, as they will be if nothing else happens: when each begins, what it has then, when it is done.
pub(crate) fn plan(limits: &Limits, now_s: i64, entries: &mut [Entry]) {
    let order = order(entries);
    let mut left: Vec<u64> = entries.iter().map(|entry| entry.left).collect();
    let mut slots: Vec<Option<Slot>> = vec![None; entries.len()];
    let mut at_s = now_s;
    loop {
        let shares = shares(limits, at_s, entries, &order, &left);
        let Some(lasts_s) = lasts_s(at_s, entries, &shares, &left) else { break };
        let until_s = at_s.saturating_add(lasts_s);
        for share in &shares {
            took(&mut left, share, lasts_s);
            if let Some(slot) = slots.get_mut(share.place) {
                let first = Slot { begin_s: at_s, end_s: until_s, rate: share.rate };
                slot.get_or_insert(first).end_s = until_s;
            }
        }
        if until_s == i64::MAX {
            break;
        }
        at_s = until_s;
    }
    for (entry, slot) in entries.iter_mut().zip(slots) {
        let none = Slot { begin_s: i64::MAX, end_s: i64::MAX, rate: 0 };
        let slot = slot.unwrap_or(none);
        let (begin_s, rate) = match entry.phase {
            Phase::Running if slot.begin_s > now_s => (entry.slot.begin_s, 0),
            Phase::Running => (entry.slot.begin_s, slot.rate),
            // Whose time has come is waited for since then.
            Phase::Waiting if slot.begin_s == now_s => (entry.slot.begin_s.min(now_s), slot.rate),
            Phase::Waiting | Phase::Missed => (slot.begin_s, slot.rate),
        };
        entry.slot = Slot { begin_s, end_s: slot.end_s, rate };
    }
}
