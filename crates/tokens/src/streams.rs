//! What a client's next calls of a file are likely to need: programs read and write in order, or in steps of one
//! distance.

use bivouac_types::ByteRange;

use crate::RANGES_MAX;

/// Programs that are told apart in one file.
const STREAMS_MAX: usize = 8;

/// One after the other, a program's calls.
#[derive(Clone, Copy, Debug)]
struct Stream {
    last: ByteRange,
    /// From the begin of the call before the last one to that of the last one.
    stride: Option<u64>,
}

impl Stream {
    fn is_followed_by(&self, range: &ByteRange) -> bool {
        range.start == self.last.end
            || self.stride.is_some_and(|stride| self.last.start.checked_add(stride) == Some(range.start))
    }
}

/// The calls of all programs of a client, of one file.
#[derive(Clone, Debug, Default)]
pub struct Streams(Vec<Stream>);

impl Streams {
    /// Takes in the range of a call that begins. Returns what it and the next ones are likely to need.
    pub fn follow(&mut self, range: &ByteRange) -> Vec<ByteRange> {
        let at = self.0.iter().position(|stream| stream.is_followed_by(range));
        // The first step of a stride goes from any place to any other: perhaps from the nearest in front. That may as
        // well be another program's, and stays.
        let earlier = at.map(|at| self.0.remove(at)).or_else(|| {
            let before = self.0.iter().filter(|stream| stream.last.end < range.start);
            before.max_by_key(|stream| stream.last.end).copied()
        });
        let stride = earlier.and_then(|stream| range.start.checked_sub(stream.last.start));
        let is_sequential = earlier.is_some_and(|stream| stream.last.end == range.start);
        let is_strided =
            !is_sequential && stride.is_some() && earlier.and_then(|stream| stream.stride) == stride;
        // The latest is in front, so the one that goes has not been followed for longest.
        self.0.truncate(STREAMS_MAX - 1);
        self.0.insert(0, Stream { last: *range, stride });
        match stride {
            _ if is_sequential => vec![ByteRange::from(range.start)],
            Some(stride) if is_strided => comb(range, stride),
            _ => vec![*range],
        }
    }

    /// Returns where the first of the recent calls behind an offset began.
    pub fn next_behind(&self, offset: u64) -> Option<u64> {
        self.0.iter().map(|stream| stream.last.start).filter(|start| *start >= offset).min()
    }
}

/// Returns the range and those that follow it at this distance.
fn comb(range: &ByteRange, stride: u64) -> Vec<ByteRange> {
    let len = range.end - range.start;
    let starts = (0..RANGES_MAX as u64).map_while(|step| range.start.checked_add(stride.checked_mul(step)?));
    starts.map(|start| ByteRange::at(start, len)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_order_need_the_rest_of_the_file() {
        let mut streams = Streams::default();
        assert_eq!(streams.follow(&ByteRange::at(100, 10)), [ByteRange::at(100, 10)]);
        assert_eq!(streams.follow(&ByteRange::at(110, 10)), [ByteRange::from(110)]);
        assert_eq!(streams.follow(&ByteRange::at(120, 5)), [ByteRange::from(120)]);
        assert_eq!((streams.next_behind(120), streams.next_behind(121)), (Some(120), None));
    }

    #[test]
    fn calls_at_one_distance_need_the_next_of_them() {
        let mut streams = Streams::default();
        assert_eq!(streams.follow(&ByteRange::at(0, 10)).len(), 1);
        assert_eq!(streams.follow(&ByteRange::at(40, 10)), [ByteRange::at(40, 10)]);
        let comb = streams.follow(&ByteRange::at(80, 10));
        assert_eq!(
            (comb.len(), comb[0], comb[1]),
            (RANGES_MAX, ByteRange::at(80, 10), ByteRange::at(120, 10))
        );
        let end = ByteRange { start: u64::MAX - 50, end: u64::MAX - 40 };
        assert_eq!(super::comb(&end, 30).len(), 2);
    }

    #[test]
    fn two_programs_in_one_file_are_told_apart() {
        let mut streams = Streams::default();
        for step in 0..4 {
            let (a, b) = (ByteRange::at(step * 10, 10), ByteRange::at(1000 + step * 10, 10));
            let (of_a, of_b) = (streams.follow(&a), streams.follow(&b));
            if step > 0 {
                assert_eq!((of_a, of_b), (vec![ByteRange::from(a.start)], vec![ByteRange::from(b.start)]));
            }
        }
    }
}
