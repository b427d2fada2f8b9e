//! Counters of a node, by operation: requests served on each lane, their content and how long they took; and requests
//! to peers. Counting takes no lock and allocates nothing, and threads do not share cache lines that they count in.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bivouac_direct::Memory;
use bivouac_record::{Bin, RECORDS};
use bivouac_wire::{Op, OpCount, TIME_RANGES, Times};

/// Most sets of counters; threads share them beyond that.
const SHARDS_MAX: usize = 16;
/// Operations that there is room for, by number. There is none with number 0, where damage is counted.
const OPS: usize = 192;
/// Double words of one operation, on lines of the processors' caches of its own.
const COUNTS: usize = 64;
/// Double words of all counters.
pub const WORDS: usize = SHARDS_MAX * OPS * COUNTS;

// What is counted of an operation, in this order, and behind it the times of requests of clients, and of peers.
const CLIENT: usize = 0;
const PEER: usize = 1;
const CALLS: usize = 2;
const RECEIVED: usize = 3;
const SENT: usize = 4;
const CLIENT_TIMES: usize = 5;
const PEER_TIMES: usize = CLIENT_TIMES + TIMES;
/// Requests that were under way when a daemon was killed.
const CUT_OFF: usize = PEER_TIMES + TIMES;
/// Double words of times: all together in microseconds, and how many were in each range.
const TIMES: usize = 1 + TIME_RANGES;
const _: () = assert!(CUT_OFF < COUNTS);

/// The counters of a node, in memory that outlives its daemon.
pub struct Counters {
    memory: Arc<Memory>,
    at: usize,
    /// Number of sets that threads of this daemon use, and of sets in all, with those of earlier daemons.
    own: usize,
    all: usize,
}

/// A request that was served.
pub struct ServedRequest {
    pub op: Op,
    pub from_peer: bool,
    pub took: Duration,
    /// Bytes of content with the request.
    pub received: u64,
    /// Bytes of content with the answer.
    pub sent: u64,
}

thread_local! {
    /// Number of this thread among those that count.
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

fn this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    THREAD.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        THREAD.set(Some(number));
        number
    })
}

/// Returns the range that a time counts in: at most 2^i microseconds, and more than half of that.
fn range_of(us: u64) -> usize {
    let range = u64::BITS - us.saturating_sub(1).leading_zeros();
    (range as usize).min(TIME_RANGES - 1)
}

/// Returns true for requests by which a formation is observed, and by which nodes observe each other. A node that gets
/// no others is idle.
pub fn is_look(op: Op) -> bool {
    matches!(
        op,
        Op::Ping
            | Op::GetMap
            | Op::Status
            | Op::ListUses
            | Op::ListHistory
            | Op::AskHost
            | Op::Probe
            | Op::ProbeFor
            | Op::Reached
    )
}

fn count(counts: &[AtomicU64], at: usize, more: u64) {
    if let Some(counter) = counts.get(at) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

fn read(counts: &[AtomicU64], at: usize) -> u64 {
    counts.get(at).map_or(0, |counter| counter.load(Ordering::Relaxed))
}

/// Returns how many requests are complete, of clients or of peers.
fn done(counts: &[AtomicU64], times: usize) -> u64 {
    (1..TIMES).map(|range| read(counts, times + range)).fold(0, u64::saturating_add)
}

fn times(counts: &[AtomicU64], at: usize) -> Times {
    let mut ranges: Vec<u64> = (1..TIMES).map(|range| read(counts, at + range)).collect();
    ranges.truncate(ranges.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1));
    Times { total_us: read(counts, at), counts: ranges }
}

// Sets of all daemons are summed, so that no count ever becomes less.
impl Counters {
    /// Opens the counters that begin at this double word, with what earlier daemons counted. The number of sets that
    /// they used is at `places_at`.
    pub fn open(memory: Arc<Memory>, at: usize, places_at: usize) -> Counters {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let own = threads.min(SHARDS_MAX);
        let places = memory.doubles(places_at, 1).and_then(<[AtomicU64]>::first);
        // The most of any daemon: a machine may have had more processors before, and sums must not shrink.
        let before = places.map_or(0, |places| places.fetch_max(own as u64, Ordering::Relaxed));
        let all = own.max(usize::try_from(before).unwrap_or(SHARDS_MAX).min(SHARDS_MAX));
        let counters = Counters { memory, at, own, all };
        assert!(
            counters.place(all - 1, OPS - 1).is_some(),
            "{all} sets of counters are not inside of the memory"
        );
        if before > 0 {
            counters.end_unanswered();
        }
        counters
    }

    /// Counts requests that a killed daemon had not answered as cut off, so that they are not under way for good. No
    /// count ever becomes less.
    fn end_unanswered(&self) {
        for counts in Op::ALL.iter().flat_map(|op| self.all_of(*op as usize)) {
            let begun = read(counts, CLIENT).saturating_add(read(counts, PEER));
            let done = done(counts, CLIENT_TIMES).saturating_add(done(counts, PEER_TIMES));
            if let Some(counter) = counts.get(CUT_OFF) {
                counter.store(begun.saturating_sub(done), Ordering::Relaxed);
            }
        }
    }

    fn place(&self, shard: usize, op: usize) -> Option<&[AtomicU64]> {
        let first = self.at + (shard * OPS + op) * COUNTS;
        // Beyond that it would be a counter of the next set.
        self.memory.doubles(first, COUNTS).filter(|_| op < OPS)
    }

    /// Returns the counters of an operation for this thread.
    fn of(&self, op: Op) -> Option<&[AtomicU64]> {
        if !RECORDS {
            return None;
        }
        self.place(this_thread() % self.own.max(1), op as usize)
    }

    fn all_of(&self, op: usize) -> impl Iterator<Item = &[AtomicU64]> {
        (0..self.all).filter_map(move |shard| self.place(shard, op))
    }

    /// Counts a request from a client, or from a peer.
    pub fn add(&self, op: Op, from_peer: bool) {
        if let Some(counts) = self.of(op) {
            count(counts, if from_peer { PEER } else { CLIENT }, 1);
        }
    }

    /// Counts that a request which was counted when it came is done.
    pub fn served(&self, served: &ServedRequest) {
        if let Some(counts) = self.of(served.op) {
            count(counts, RECEIVED, served.received);
            count(counts, SENT, served.sent);
            let times = if served.from_peer { PEER_TIMES } else { CLIENT_TIMES };
            let us = u64::try_from(served.took.as_micros()).unwrap_or(u64::MAX);
            count(counts, times, us);
            count(counts, times + 1 + range_of(us), 1);
        }
    }

    /// Counts a request or reply that arrived damaged from, or at, a client or a peer.
    pub fn add_damage(&self, from_peer: bool) {
        if let Some(counts) = self.place(0, 0) {
            count(counts, if from_peer { PEER } else { CLIENT }, 1);
        }
    }

    /// Returns the counts of damaged messages, if there were any.
    pub fn damaged(&self) -> Option<OpCount> {
        let counts = self.place(0, 0)?;
        let [client, peer] = [CLIENT, PEER].map(|at| read(counts, at));
        (client > 0 || peer > 0).then(|| OpCount {
            name: "Damaged".into(),
            client,
            peer,
            ..OpCount::default()
        })
    }

    /// Counts a request to a peer.
    pub fn add_call(&self, op: Op) {
        if let Some(counts) = self.of(op) {
            count(counts, CALLS, 1);
        }
    }

    /// Returns every operation that was asked for, by anybody, in the order of the table.
    pub fn list(&self) -> Vec<OpCount> {
        let sum = |op: &Op| {
            let mut sum = OpCount { name: op.name().into(), ..OpCount::default() };
            for counts in self.all_of(*op as usize) {
                // First what is done, so that it is never more than what was begun.
                sum.client_times.add(&times(counts, CLIENT_TIMES));
                sum.peer_times.add(&times(counts, PEER_TIMES));
                sum.cut_off = sum.cut_off.saturating_add(read(counts, CUT_OFF));
                sum.client = sum.client.saturating_add(read(counts, CLIENT));
                sum.peer = sum.peer.saturating_add(read(counts, PEER));
                sum.calls = sum.calls.saturating_add(read(counts, CALLS));
                sum.received_bytes = sum.received_bytes.saturating_add(read(counts, RECEIVED));
                sum.sent_bytes = sum.sent_bytes.saturating_add(read(counts, SENT));
            }
            (sum.client > 0 || sum.peer > 0 || sum.calls > 0).then_some(sum)
        };
        Op::ALL.iter().filter_map(sum).collect()
    }

    /// Returns all requests that were answered, but looks.
    pub fn total(&self) -> Bin {
        let mut total = Bin::default();
        for counts in Op::ALL.iter().filter(|op| !is_look(**op)).flat_map(|op| self.all_of(*op as usize)) {
            for times in [CLIENT_TIMES, PEER_TIMES] {
                let spent_ns = read(counts, times).saturating_mul(1000);
                total.add(Bin { ops: done(counts, times), spent_ns, ..Bin::default() });
            }
            let (read, written) = (read(counts, SENT), read(counts, RECEIVED));
            total.add(Bin { read, written, ..Bin::default() });
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Recorder;

    #[test]
    fn all_operations_have_room() {
        assert!(Op::ALL.iter().all(|op| (1..OPS).contains(&(*op as usize))));
    }

    #[test]
    fn only_what_was_asked_for_is_listed() {
        let counters = Recorder::open(None).unwrap().counters();
        counters.add(Op::Read, false);
        counters.add(Op::Read, true);
        counters.add(Op::Trim, true);
        counters.add_call(Op::GetAttr);
        let list = counters.list();
        let names: Vec<_> = list.iter().map(|c| (c.name.as_str(), c.client, c.peer, c.calls)).collect();
        assert_eq!(counters.damaged(), None);
        [false, true, true].into_iter().for_each(|from_peer| counters.add_damage(from_peer));
        let damaged = counters.damaged().map(|count| (count.name, count.client, count.peer, count.calls));
        assert_eq!(damaged, Some(("Damaged".to_owned(), 1, 2, 0)));
        assert_eq!(names, [("GetAttr", 0, 0, 1), ("Read", 1, 1, 0), ("Trim", 0, 1, 0)]);
    }

    #[test]
    fn what_many_threads_served_is_summed_up() {
        let counters = Recorder::open(None).unwrap().counters();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let counters = &counters;
                scope.spawn(move || {
                    for us in 0..1000 {
                        counters.add(Op::Write, thread % 2 == 0);
                        let (op, from_peer, took) = (Op::Write, thread % 2 == 0, Duration::from_micros(us));
                        counters.served(&ServedRequest { op, from_peer, took, received: 10, sent: 1 });
                    }
                });
            }
        });
        let list = counters.list();
        let write = &list[0];
        assert_eq!((list.len(), write.client, write.peer), (1, 4000, 4000));
        assert_eq!((write.received_bytes, write.sent_bytes), (80_000, 8_000));
        for times in [&write.client_times, &write.peer_times] {
            assert_eq!((times.count(), times.total_us), (4000, 4 * 999 * 1000 / 2));
            assert_eq!(times.counts[..3], [8, 4, 8], "0 and 1; 2; 3 and 4");
            assert_eq!(
                (times.counts.len(), times.quantile_us(0.5), times.quantile_us(1.0)),
                (11, Some(512), Some(1024))
            );
        }
    }

    #[test]
    fn every_time_has_a_range() {
        let ranges = [0, 1, 2, 3, 4, 5, 1 << 24, 1 << 25, u64::MAX].map(range_of);
        assert_eq!(ranges, [0, 0, 1, 2, 2, 3, 24, 25, 25]);
    }
}
