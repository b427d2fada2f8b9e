//! Range tokens: rights to bytes of a file that a client keeps between calls.

use std::fmt;

/// Bytes of a file: from `start` up to, and without, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset behind the last byte.
    pub end: u64,
}

impl ByteRange {
    /// All bytes that a file can have.
    pub const ALL: ByteRange = ByteRange { start: 0, end: u64::MAX };

    /// Returns the `len` bytes from an offset on, as far as offsets reach.
    #[must_use]
    pub fn at(start: u64, len: u64) -> ByteRange {
        ByteRange { start, end: start.saturating_add(len) }
    }

    /// Returns all bytes from an offset on.
    #[must_use]
    pub fn from(start: u64) -> ByteRange {
        ByteRange { start, end: u64::MAX }
    }

    /// Returns whether there is no byte in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Returns whether both have a byte in common.
    #[must_use]
    pub fn overlaps(&self, other: &ByteRange) -> bool {
        !self.and(other).is_empty()
    }

    /// Returns whether all bytes of the other range are in this one.
    #[must_use]
    pub fn covers(&self, other: &ByteRange) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// Returns the bytes that both have.
    #[must_use]
    pub fn and(&self, other: &ByteRange) -> ByteRange {
        ByteRange { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// Returns all bytes from the first to the last of both.
    #[must_use]
    pub fn hull(&self, other: &ByteRange) -> ByteRange {
        ByteRange { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Returns the bytes in front of the other range, and those behind it; either may be empty.
    #[must_use]
    pub fn without(&self, other: &ByteRange) -> [ByteRange; 2] {
        let before = ByteRange { start: self.start, end: self.end.min(other.start) };
        let behind = ByteRange { start: self.start.max(other.end), end: self.end };
        // An empty range would cut this one in two for nothing.
        let rest = if other.is_empty() { [*self, ByteRange::at(0, 0)] } else { [before, behind] };
        assert!(rest.iter().all(|part| !part.overlaps(other)), "bytes that were taken away are still there");
        rest
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            u64::MAX => write!(f, "{}-", self.start),
            end => write!(f, "{}-{end}", self.start),
        }
    }
}

/// Use that a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenMode {
    /// To read; several clients may at a time.
    Read,
    /// To read and to write; one client may.
    Write,
}

impl TokenMode {
    /// Returns whether tokens of both modes of one byte cannot be at two clients at a time.
    #[must_use]
    pub fn conflicts(self, other: TokenMode) -> bool {
        self == TokenMode::Write || other == TokenMode::Write
    }

    /// Returns whether who has a token of this mode may do what the other one allows.
    #[must_use]
    pub fn allows(self, wanted: TokenMode) -> bool {
        self == TokenMode::Write || wanted == TokenMode::Read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_and_compared() {
        let range = |start, end| ByteRange { start, end };
        assert_eq!(range(0, 10).without(&range(3, 5)), [range(0, 3), range(5, 10)]);
        assert!(range(3, 5).without(&range(0, 10)).iter().all(ByteRange::is_empty));
        assert_eq!(range(0, 4).without(&range(6, 9))[0], range(0, 4));
        assert!(range(0, 4).without(&range(6, 9))[1].is_empty());
        assert_eq!(range(0, 10).without(&range(4, 4))[0], range(0, 10));
        assert!(!range(0, 3).overlaps(&range(3, 5)) && range(0, 4).overlaps(&range(3, 5)));
        assert!(ByteRange::ALL.covers(&range(5, 6)) && !range(5, 6).covers(&ByteRange::ALL));
        assert_eq!((range(2, 4).to_string(), ByteRange::from(7).to_string()), ("2-4".into(), "7-".into()));
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        use TokenMode::{Read, Write};
        assert!(!Read.conflicts(Read) && Read.conflicts(Write) && Write.conflicts(Write));
        assert!(Write.allows(Read) && Read.allows(Read) && !Read.allows(Write));
    }
}
