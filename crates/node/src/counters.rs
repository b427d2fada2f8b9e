//! What a node has done, per operation: requests served on each lane, the content that they carried, how long they took;
//! and requests made to peers. Counting takes no lock and no memory, and threads do not share what they count in.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bivouac_wire::{Op, OpCount, TIME_RANGES, Times};

/// Most places that threads count in.
const SHARDS_MAX: usize = 16;

/// How long requests took.
#[derive(Default)]
struct Recorded {
    total_us: AtomicU64,
    counts: [AtomicU64; TIME_RANGES],
}

/// The counters of one operation, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Counts {
    client: AtomicU64,
    peer: AtomicU64,
    calls: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    client_times: Recorded,
    peer_times: Recorded,
}

/// What some of the threads count in.
struct Shard(Vec<Counts>);

/// The counters of a node.
pub struct Counters {
    shards: Vec<Shard>,
    damaged: Counts,
}

/// A request that was served.
pub struct Served {
    pub op: Op,
    pub from_peer: bool,
    pub took: Duration,
    /// Bytes of content with the request.
    pub received: u64,
    /// Bytes of content with the answer.
    pub sent: u64,
}

thread_local! {
    /// This thread's number among those that count.
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

impl Recorded {
    fn add(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.total_us.fetch_add(us, Ordering::Relaxed);
        if let Some(count) = self.counts.get(range_of(us)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn add_to(&self, times: &mut Times) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counts: Vec<u64> = self.counts.iter().map(read).collect();
        counts.truncate(counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1));
        times.add(&Times { total_us: read(&self.total_us), counts });
    }
}

/// The range that a time counts in: at most 2^i microseconds, and more than half of that.
fn range_of(us: u64) -> usize {
    let range = u64::BITS - us.saturating_sub(1).leading_zeros();
    (range as usize).min(TIME_RANGES - 1)
}

impl Counters {
    pub fn new() -> Counters {
        let most = Op::ALL.iter().map(|op| *op as usize).max().unwrap_or(0);
        let shard = || Shard((0..=most).map(|_| Counts::default()).collect());
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shards = (0..threads.min(SHARDS_MAX)).map(|_| shard()).collect();
        Counters { shards, damaged: Counts::default() }
    }

    /// Those of an operation that this thread counts in.
    fn of(&self, op: Op) -> Option<&Counts> {
        let shard = this_thread() % self.shards.len().max(1);
        self.shards.get(shard)?.0.get(op as usize)
    }

    /// One more request from a client, or from a peer.
    pub fn add(&self, op: Op, from_peer: bool) {
        if let Some(counts) = self.of(op) {
            let counter = if from_peer { &counts.peer } else { &counts.client };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request that was counted when it came is done.
    pub fn served(&self, served: &Served) {
        if let Some(counts) = self.of(served.op) {
            counts.received.fetch_add(served.received, Ordering::Relaxed);
            counts.sent.fetch_add(served.sent, Ordering::Relaxed);
            let times = if served.from_peer { &counts.peer_times } else { &counts.client_times };
            times.add(served.took);
        }
    }

    /// One more request, or answer, that was changed on its way from or to a client, or a peer.
    pub fn add_damage(&self, from_peer: bool) {
        let counter = if from_peer { &self.damaged.peer } else { &self.damaged.client };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// What was changed on its way from and to others, if anything was.
    pub fn damaged(&self) -> Option<OpCount> {
        let [client, peer] = [&self.damaged.client, &self.damaged.peer].map(|c| c.load(Ordering::Relaxed));
        (client + peer > 0).then(|| OpCount { name: "Damaged".into(), client, peer, ..OpCount::default() })
    }

    /// One more request to a peer.
    pub fn add_call(&self, op: Op) {
        if let Some(counts) = self.of(op) {
            counts.calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Every operation that was asked for, by anybody, in the order of the table.
    pub fn list(&self) -> Vec<OpCount> {
        let read = |op: &Op| {
            let mut sum = OpCount { name: op.name().into(), ..OpCount::default() };
            for counts in self.shards.iter().filter_map(|shard| shard.0.get(*op as usize)) {
                let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
                // First what is done, so that it is never more than what was begun.
                counts.client_times.add_to(&mut sum.client_times);
                counts.peer_times.add_to(&mut sum.peer_times);
                sum.client += read(&counts.client);
                sum.peer += read(&counts.peer);
                sum.calls += read(&counts.calls);
                sum.received_bytes += read(&counts.received);
                sum.sent_bytes += read(&counts.sent);
            }
            (sum.client + sum.peer + sum.calls > 0).then_some(sum)
        };
        Op::ALL.iter().filter_map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_listed() {
        let counters = Counters::new();
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
        let counters = Counters::new();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let counters = &counters;
                scope.spawn(move || {
                    for us in 0..1000 {
                        counters.add(Op::Write, thread % 2 == 0);
                        let (op, from_peer, took) = (Op::Write, thread % 2 == 0, Duration::from_micros(us));
                        counters.served(&Served { op, from_peer, took, received: 10, sent: 1 });
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
