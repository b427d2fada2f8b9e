//! A range of a file → one range per target, without allocation.

use bivouac_types::{Layout, TargetIndex};

use crate::stripes::{divisors, subfile_len, target_of};

// Pieces are positions in buffers, ranges positions in files; both have 64 bits.
const _: () = assert!(usize::BITS == 64);

/// Splits the bytes `offset .. offset + len` of a file by target. The end saturates at `u64::MAX`.
///
/// Every target appears at most once, the one with the first byte first. No range is empty; an empty
/// request has none.
#[must_use]
pub fn split(layout: &Layout, offset: u64, len: u64) -> TargetRanges {
    let end = offset.saturating_add(len);
    let (size, width) = divisors(layout);
    let first = offset / size;
    // Counted in stripes: a request has as many targets as stripes, until it has been once round all of them.
    let touched = if end > offset { (end - 1) / size - first + 1 } else { 0 };
    TargetRanges { layout: *layout, offset, end, next: first, stop: first + touched.min(width) }
}

/// The parts of one request, one per target: see [`split`].
#[derive(Clone, Debug)]
pub struct TargetRanges {
    layout: Layout,
    offset: u64,
    end: u64,
    /// The first stripes of the targets that are still to come.
    next: u64,
    stop: u64,
}

impl Iterator for TargetRanges {
    type Item = TargetRange;

    fn next(&mut self) -> Option<TargetRange> {
        if self.next >= self.stop {
            return None;
        }
        let (size, width) = divisors(&self.layout);
        let stripe = self.next;
        self.next += 1;
        let column = (stripe % width) as u16;
        let start = subfile_len(&self.layout, column, self.offset);
        let end = subfile_len(&self.layout, column, self.end);
        // Each of these stripes has a byte of the request: a target without any would be sent a write of nothing, and
        // the bytes that were meant for it be lost.
        assert!(start < end, "column {column} has nothing of bytes {}..{}", self.offset, self.end);
        let pieces = Pieces {
            origin: self.offset,
            at: (stripe * size).max(self.offset),
            end: self.end,
            // On one target neighbouring stripes are neighbours in the subfile as well, so the whole range is one
            // piece.
            stripe: if width == 1 { u64::MAX } else { size },
            gap: (width - 1) * size,
        };
        Some(TargetRange {
            target: target_of(&self.layout, column),
            column,
            subfile_offset: start,
            len: end - start,
            pieces,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.stop.saturating_sub(self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for TargetRanges {}

/// A target's part of a request: one contiguous range of its subfile.
#[derive(Clone, Debug)]
pub struct TargetRange {
    /// Target of the partition.
    pub target: TargetIndex,
    /// Position among the targets that the file uses, 0 .. width.
    pub column: u16,
    /// Start in the data of the subfile (its header not counted), in bytes.
    pub subfile_offset: u64,
    /// Length, in bytes; the sum over the pieces.
    pub len: u64,
    pieces: Pieces,
}

impl TargetRange {
    /// Returns the places in the request's buffer that the bytes of the subfile range belong to, in order.
    #[must_use]
    pub fn pieces(&self) -> Pieces {
        self.pieces.clone()
    }

    /// Returns the first `len` bytes, and what is behind them if anything is. Both keep their places in the request's
    /// buffer.
    #[must_use]
    pub fn split_at(self, len: u64) -> (TargetRange, Option<TargetRange>) {
        if len >= self.len {
            return (self, None);
        }
        let behind = Pieces { at: self.pieces.behind(len), ..self.pieces.clone() };
        // Nothing of this target is between its last byte and the first one behind.
        let front = Pieces {
            end: self.pieces.behind(len.saturating_sub(1)).saturating_add(len.min(1)),
            ..self.pieces
        };
        let rest = TargetRange {
            subfile_offset: self.subfile_offset + len,
            len: self.len - len,
            pieces: behind,
            ..self
        };
        (TargetRange { len, pieces: front, ..self }, Some(rest))
    }
}

/// A run of bytes in the request's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Start in the buffer, in bytes from the request's first.
    pub buffer_offset: usize,
    /// Length, in bytes; never 0.
    pub len: usize,
}

impl Piece {
    /// Returns the piece as an index range of the buffer.
    #[must_use]
    pub fn range(self) -> std::ops::Range<usize> {
        self.buffer_offset..self.buffer_offset + self.len
    }
}

/// The pieces of one target's range: see [`TargetRange::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces {
    /// File offset of the request.
    origin: u64,
    /// File offset of the next piece.
    at: u64,
    /// File offset behind the request.
    end: u64,
    /// Stripe size; `u64::MAX` where all stripes are on one target, and so are one piece.
    stripe: u64,
    /// Bytes of other targets between two stripes.
    gap: u64,
}

impl Pieces {
    /// Returns the file offset of the byte that `len` bytes of the same target are in front of.
    fn behind(&self, len: u64) -> u64 {
        let run = self.stripe - self.at % self.stripe;
        if len < run {
            return self.at.saturating_add(len);
        }
        let (rows, rest) = ((len - run) / self.stripe, (len - run) % self.stripe);
        let next = self.at.saturating_add(run).saturating_add(self.gap);
        next.saturating_add(rows.saturating_mul(self.stripe.saturating_add(self.gap))).saturating_add(rest)
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.at >= self.end {
            return None;
        }
        let run = self.stripe - self.at % self.stripe;
        let len = run.min(self.end - self.at);
        assert!(self.at >= self.origin && len > 0, "a piece of {len} bytes in front of the request");
        let piece = Piece { buffer_offset: (self.at - self.origin) as usize, len: len as usize };
        self.at = self.at.saturating_add(run).saturating_add(self.gap);
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locate;

    const LAYOUT: Layout = Layout { stripe: 4096, width: 3, base: TargetIndex(4), targets: 5 };

    /// Target, column, start, length and pieces of a range.
    type Shown = (u16, u16, u64, u64, Vec<(usize, usize)>);

    fn shown(layout: &Layout, offset: u64, len: u64) -> Vec<Shown> {
        let pieces = |r: &TargetRange| r.pieces().map(|p| (p.buffer_offset, p.len)).collect();
        split(layout, offset, len)
            .map(|r| (r.target.position(), r.column, r.subfile_offset, r.len, pieces(&r)))
            .collect()
    }

    #[test]
    fn golden_splits() {
        assert_eq!(shown(&LAYOUT, 0, 1), [(4, 0, 0, 1, vec![(0, 1)])]);
        assert_eq!(
            shown(&LAYOUT, 5000, 16_384),
            [
                (0, 1, 904, 7288, vec![(0, 3192), (11_384, 4096)]),
                (1, 2, 0, 5000, vec![(3192, 4096), (15_480, 904)]),
                (4, 0, 4096, 4096, vec![(7288, 4096)]),
            ]
        );
    }

    #[test]
    fn a_file_on_one_target_is_one_piece() {
        let layout = Layout { width: 1, ..LAYOUT };
        assert_eq!(shown(&layout, 100, 1 << 20), [(4, 0, 100, 1 << 20, vec![(0, 1 << 20)])]);
    }

    #[test]
    fn the_ends_of_the_range_of_offsets() {
        assert_eq!(shown(&LAYOUT, 77, 0), []);
        assert_eq!(shown(&LAYOUT, u64::MAX, u64::MAX), []);
        let last = shown(&LAYOUT, u64::MAX - 1, u64::MAX);
        assert_eq!(last.iter().map(|r| (r.3, r.4.clone())).collect::<Vec<_>>(), [(1, vec![(0, 1)])]);
        assert_eq!(split(&LAYOUT, 0, u64::MAX).map(|r| r.len).sum::<u64>(), u64::MAX);
        let absurd = Layout { stripe: 0, width: 0, base: TargetIndex(9), targets: 0 };
        assert_eq!(shown(&absurd, 5, 7), [(0, 0, 5, 7, vec![(0, 7)])]);
    }

    #[test]
    fn the_first_range_holds_the_first_byte() {
        let range = split(&LAYOUT, 30_000, 100_000).next();
        let location = locate(&LAYOUT, 30_000);
        assert_eq!(
            range.map(|r| (r.target, r.subfile_offset)),
            Some((location.target, location.subfile_offset))
        );
    }
}
