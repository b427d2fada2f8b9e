//! Neighbouring places of a file that are written together.

use std::io::IoSlice;
use std::ops::Range;

/// Places of a file or a subfile, in order and without overlap, each an offset and a length in bytes, and the bytes
/// for them, one behind the other in slices of any lengths.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    extents: &'a [(u64, u32)],
    bytes: &'a [IoSlice<'a>],
}

impl<'a> Places<'a> {
    /// `None` unless there is a place, none is empty or reaches into another, and there are as many bytes as they take.
    #[must_use]
    pub fn new(extents: &'a [(u64, u32)], bytes: &'a [IoSlice<'a>]) -> Option<Places<'a>> {
        let (mut end, mut wanted) = (0u64, 0u64);
        for (offset, len) in extents {
            if *len == 0 || *offset < end {
                return None;
            }
            end = offset.checked_add(u64::from(*len))?;
            wanted += u64::from(*len);
        }
        let there: u64 = bytes.iter().map(|slice| slice.len() as u64).sum();
        (wanted > 0 && wanted == there).then_some(Places { extents, bytes })
    }

    /// Returns the number of places.
    #[must_use]
    pub fn count(&self) -> usize {
        self.extents.len()
    }

    /// Returns the places, each an offset and a length.
    #[must_use]
    pub(crate) fn extents(&self) -> &'a [(u64, u32)] {
        self.extents
    }

    /// Returns the bytes for them.
    #[must_use]
    pub(crate) fn bytes(&self) -> &'a [IoSlice<'a>] {
        self.bytes
    }

    /// Returns the number of bytes.
    #[must_use]
    pub(crate) fn len(&self) -> u64 {
        self.extents.iter().map(|(_, len)| u64::from(*len)).sum()
    }

    /// Returns the range from the first byte of the first place to the last byte of the last.
    #[must_use]
    pub fn span(&self) -> Range<u64> {
        let end = |(offset, len): &(u64, u32)| offset + u64::from(*len);
        self.extents.first().map_or(0, |(offset, _)| *offset)..self.extents.last().map_or(0, end)
    }

    /// Returns the bytes, in pieces with their offsets.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        let extents = self.extents.iter().map(|(offset, len)| (*offset, u64::from(*len)));
        bivouac_layout::placed(extents, self.bytes.iter().map(|slice| &**slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_places_in_order_with_their_bytes_are_taken() {
        let bytes = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defgh")];
        let places = Places::new(&[(10, 4), (14, 1), (20, 3)], &bytes).unwrap();
        assert_eq!((places.count(), places.span()), (3, 10..23));
        let pieces: Vec<_> = places.pieces().collect();
        assert_eq!(pieces, [(10, &b"abc"[..]), (13, b"d"), (14, b"e"), (20, b"fgh")]);
        let wrong: [&[(u64, u32)]; 6] =
            [&[], &[(0, 7)], &[(0, 9)], &[(0, 4), (3, 4)], &[(9, 4), (0, 4)], &[(0, 8), (9, 0)]];
        for extents in wrong {
            assert!(Places::new(extents, &bytes).is_none(), "{extents:?}");
        }
        assert!(Places::new(&[(u64::MAX, 8)], &bytes).is_none());
        assert!(Places::new(&[], &[]).is_none());
    }
}
