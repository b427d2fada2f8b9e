//! Prediction of a file's reads: sequential ones and those at a constant distance are recognised, several of them side
//! by side, so that each process or thread that reads a file has its own stream.

/// Streams of one file that are told apart.
const STREAMS_MAX: usize = 16;
/// Furthest distance between two reads that belong together, in bytes.
const STEP_MAX: u64 = 1 << 30;
/// First, smallest and largest window, in bytes.
const WINDOW: u64 = 256 << 10;
const WINDOW_MIN: u64 = 64 << 10;
/// Largest window, in bytes: what one message per target may carry.
pub const WINDOW_MAX: u64 = 4 << 20;
/// Number of reads in the same distance before more is read where that was in vain before.
const CAUTION: u32 = 4;

/// The range to read where something is missing from the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// Nothing but what is asked for.
    Nothing,
    /// This many bytes, from where the read begins.
    Run(u64),
    /// The read's place and others behind it: the distance from each to the next, and how many places.
    Places(i64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    offset: u64,
    len: u64,
    /// Distance from one read to the next, once there were two.
    step: Option<i64>,
    /// Reads that were expected.
    hits: u32,
    window: u64,
    /// Bytes that were read ahead and not asked for yet.
    unread: u64,
    /// When it was last used.
    used: u64,
}

/// The readers of one file.
#[derive(Debug)]
pub struct Streams {
    streams: Vec<Stream>,
    clock: u64,
    /// Window of the next stream: less after reading ahead in vain.
    first: u64,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { streams: Vec::new(), clock: 0, first: WINDOW }
    }
}

impl Streams {
    /// Takes in a read; `missed` says whether some of it was not there. What to read then.
    pub fn note(&mut self, offset: u64, len: u64, missed: bool) -> ReadAhead {
        self.clock += 1;
        let first = self.first;
        let Some(index) = self.find(offset, len) else {
            self.begin(offset, len);
            // A file is mostly read from its beginning to its end.
            return if missed && offset == 0 && first == WINDOW { self.run(len) } else { ReadAhead::Nothing };
        };
        let Some(stream) = self.streams.get_mut(index) else { return ReadAhead::Nothing };
        stream.follow(offset, len, self.clock);
        if stream.unread > 0 {
            stream.unread = stream.unread.saturating_sub(len);
            if stream.unread == 0 {
                self.first = (first * 2).min(WINDOW);
            }
        }
        if missed && stream.is_sure(first) { stream.plan() } else { ReadAhead::Nothing }
    }

    /// Returns the stream that this read continues, or that it gives a direction.
    fn find(&self, offset: u64, len: u64) -> Option<usize> {
        // What continues a stream does so before it may give another one its direction.
        let expected = self.streams.iter().position(|stream| stream.expects(offset));
        let learns = || {
            let starts = self.streams.iter().enumerate().filter(|(_, stream)| stream.may_learn(offset, len));
            starts.max_by_key(|(_, stream)| stream.used).map(|(index, _)| index)
        };
        expected.or_else(learns)
    }

    fn begin(&mut self, offset: u64, len: u64) {
        if self.streams.len() >= STREAMS_MAX {
            let oldest = self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.used);
            if let Some(index) = oldest.map(|(index, _)| index) {
                let stream = self.streams.swap_remove(index);
                if stream.unread > 0 {
                    // Read ahead in vain: the next streams of the file begin with less.
                    self.first = (self.first / 2).max(WINDOW_MIN);
                }
            }
        }
        let window = self.first;
        self.streams.push(Stream { offset, len, step: None, hits: 0, window, unread: 0, used: self.clock });
        assert!(self.streams.len() <= STREAMS_MAX, "{} streams of a file are followed", self.streams.len());
    }

    /// Returns what to read ahead for the stream that has just begun: that is at once.
    fn run(&mut self, len: u64) -> ReadAhead {
        self.streams.last_mut().map_or(ReadAhead::Nothing, |stream| {
            stream.step = i64::try_from(len).ok();
            stream.plan()
        })
    }
}

impl Stream {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    fn expects(&self, offset: u64) -> bool {
        self.end() == offset
            || self.step.is_some_and(|step| self.offset.checked_add_signed(step) == Some(offset))
    }

    fn may_learn(&self, offset: u64, len: u64) -> bool {
        self.hits == 0
            && self.step.is_none()
            && self.len == len
            && offset != self.offset
            && offset.abs_diff(self.offset) <= STEP_MAX
    }

    fn follow(&mut self, offset: u64, len: u64, now: u64) {
        let sequential = offset == self.end();
        let expected = self.expects(offset);
        let step =
            if sequential { len.cast_signed() } else { offset.wrapping_sub(self.offset).cast_signed() };
        if expected && (self.step == Some(step) || sequential || self.step.is_none()) {
            self.hits = self.hits.saturating_add(1);
        }
        (self.offset, self.len, self.step, self.used) = (offset, len, Some(step), now);
    }

    fn is_sequential(&self) -> bool {
        self.step == Some(self.len.cast_signed())
    }

    /// Returns true if the next read can be predicted well enough.
    fn is_sure(&self, first: u64) -> bool {
        let caution = if first <= WINDOW_MIN { CAUTION } else { 1 };
        self.hits >= caution
    }

    /// Reads ahead as far as the window is, and further the next time.
    fn plan(&mut self) -> ReadAhead {
        let window = self.window.max(self.len);
        self.window = (window * 2).min(WINDOW_MAX);
        if self.is_sequential() {
            self.unread = window - self.len;
            return if window > self.len { ReadAhead::Run(window) } else { ReadAhead::Nothing };
        }
        let count = window.checked_div(self.len).unwrap_or(1);
        self.unread = self.len * count.saturating_sub(1);
        match self.step {
            Some(step) if count > 1 => ReadAhead::Places(step, count),
            _ => ReadAhead::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const KIB: u64 = 1 << 10;

    /// Reads with a cache that never forgets, in units of 4 KiB; how many requests that takes, and how much is read.
    fn requests(reads: impl IntoIterator<Item = (u64, u64)>) -> (usize, usize) {
        let (mut streams, mut cache, mut requests) = (Streams::default(), HashSet::new(), 0);
        let blocks = |offset: u64, len: u64| offset / 4096..(offset + len) / 4096;
        for (offset, len) in reads {
            let missed = blocks(offset, len).any(|block| !cache.contains(&block));
            let ahead = streams.note(offset, len, missed);
            if missed {
                requests += 1;
                cache.extend(blocks(offset, len));
            }
            match ahead {
                ReadAhead::Nothing => {}
                ReadAhead::Run(more) => cache.extend(blocks(offset, more)),
                ReadAhead::Places(step, count) => (0..count as i64)
                    .filter_map(|turn| offset.checked_add_signed(step * turn))
                    .for_each(|place| cache.extend(blocks(place, len))),
            }
        }
        (requests, cache.len())
    }

    /// S204.
    #[test]
    fn sequential_reads_need_few_requests() {
        let small = (0..16_384).map(|turn| (turn * 4 * KIB, 4 * KIB));
        let (requests_made, read) = requests(small);
        assert!(requests_made <= 20, "{requests_made} for 64 MiB");
        assert!(read <= 16_384 + 1024);
        let not_from_the_start = (100..1124).map(|turn| (turn * 4 * KIB, 4 * KIB));
        assert!(requests(not_from_the_start).0 <= 8);
    }

    /// S204.
    #[test]
    fn reads_at_a_constant_distance_need_few_requests() {
        let forward = (0..256).map(|turn| (turn * 8 * 64 * KIB, 64 * KIB));
        let (made, read) = requests(forward);
        assert!(made <= 16, "{made} for 256 reads");
        assert!(read <= (256 + 64) * 16 + 64, "nothing between them is read: {read}");
        let backward = (0..256).rev().map(|turn| (turn * 4 * KIB, 4 * KIB));
        assert!(requests(backward).0 <= 12);
    }

    /// S204.
    #[test]
    fn readers_side_by_side_do_not_disturb_each_other() {
        let reads =
            (0..2048).flat_map(|turn| (0..8).map(move |reader| ((reader << 30) + turn * 4 * KIB, 4 * KIB)));
        let (made, _) = requests(reads);
        assert!(made <= 8 * 12, "{made} for 8 readers of 8 MiB");
        let strided =
            (0..64).flat_map(|turn| (0..8).map(move |reader| ((turn * 8 + reader) * 64 * KIB, 64 * KIB)));
        assert!(requests(strided).0 <= 100);
    }

    fn scattered(count: u64, seed: u64) -> impl Iterator<Item = (u64, u64)> {
        let number = move |turn: u64| (turn + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 34;
        (1..=count).map(move |turn| (number(turn) / 4096 * 4096 + 4096, 4 * KIB))
    }

    /// S204.
    #[test]
    fn random_reads_read_nothing_ahead() {
        let (_, read) = requests(scattered(4000, 7));
        assert!(read <= 4000 + 4000 / 20, "{read}");
    }

    #[test]
    fn the_window_grows_on_hits_and_shrinks_on_misses() {
        let mut streams = Streams::default();
        assert_eq!(streams.note(0, 4 * KIB, true), ReadAhead::Run(WINDOW));
        assert_eq!(streams.note(4 * KIB, 4 * KIB, false), ReadAhead::Nothing);
        assert_eq!(streams.note(8 * KIB, 4 * KIB, true), ReadAhead::Run(2 * WINDOW));
        let mut largest = 0;
        for turn in 3..20 {
            if let ReadAhead::Run(window) = streams.note(turn * 4 * KIB, 4 * KIB, true) {
                largest = window;
            }
        }
        assert_eq!(largest, WINDOW_MAX);
        // Streams that end before their window does.
        for start in 1..200u64 {
            let at = start << 31;
            (0..3).for_each(|turn| _ = streams.note(at + turn * 4 * KIB, 4 * KIB, true));
        }
        assert_eq!(streams.first, WINDOW_MIN);
        let at = 1 << 50;
        let plans: Vec<_> = (0..6).map(|turn| streams.note(at + turn * 4 * KIB, 4 * KIB, true)).collect();
        assert_eq!(plans[..4], [ReadAhead::Nothing; 4], "only who goes on for longer is believed now");
        assert_eq!(plans[4], ReadAhead::Run(WINDOW_MIN));
    }

    proptest! {
        #[test]
        fn any_reads_are_answered_within_limits(
            reads in proptest::collection::vec((any::<u64>(), 1u64..1 << 20, any::<bool>()), 0..200),
            close in proptest::collection::vec((0u64..1 << 16, 1u64..1 << 14, any::<bool>()), 0..200),
        ) {
            let mut streams = Streams::default();
            for (offset, len, missed) in reads.into_iter().chain(close) {
                match streams.note(offset, len, missed) {
                    ReadAhead::Nothing => {}
                    ReadAhead::Run(window) => prop_assert!(missed && window > len && window <= WINDOW_MAX.max(len)),
                    ReadAhead::Places(step, count) => {
                        prop_assert!(missed && step != 0 && count > 1 && count * len <= WINDOW_MAX.max(len));
                    }
                }
                prop_assert!(streams.streams.len() <= STREAMS_MAX);
            }
        }
    }
}
