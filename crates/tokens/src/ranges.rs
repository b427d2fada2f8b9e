//! Sets of ranges, as lists in no particular order.

use bivouac_types::ByteRange;

/// Returns what is left of some ranges without others.
pub fn without(ranges: &[ByteRange], others: &[ByteRange]) -> Vec<ByteRange> {
    let mut left: Vec<ByteRange> = ranges.iter().copied().filter(|range| !range.is_empty()).collect();
    for other in others {
        left = left.iter().flat_map(|range| range.without(other)).filter(|range| !range.is_empty()).collect();
    }
    left
}

/// Returns the bytes that are in both.
pub fn both(ranges: &[ByteRange], others: &[ByteRange]) -> Vec<ByteRange> {
    let pairs = ranges.iter().flat_map(|range| others.iter().map(|other| range.and(other)));
    pairs.filter(|range| !range.is_empty()).collect()
}

/// Returns whether some ranges have a byte of another one.
pub fn overlap(ranges: &[ByteRange], other: &ByteRange) -> bool {
    ranges.iter().any(|range| range.overlaps(other))
}

/// Returns whether all bytes of a range are in some of these.
pub fn cover(ranges: &[ByteRange], range: &ByteRange) -> bool {
    without(&[*range], ranges).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_ranges() -> impl Strategy<Value = Vec<ByteRange>> {
        proptest::collection::vec((0..20u64, 0..6u64).prop_map(|(at, len)| ByteRange::at(at, len)), 0..5)
    }

    fn has(ranges: &[ByteRange], byte: u64) -> bool {
        overlap(ranges, &ByteRange::at(byte, 1))
    }

    proptest! {
        #[test]
        fn sets_are_right_byte_by_byte(a in any_ranges(), b in any_ranges(), range in (0..20u64, 1..6u64)) {
            for byte in 0..30 {
                prop_assert_eq!(has(&without(&a, &b), byte), has(&a, byte) && !has(&b, byte));
                prop_assert_eq!(has(&both(&a, &b), byte), has(&a, byte) && has(&b, byte));
            }
            let (start, len) = range;
            let covered = (start..start + len).all(|byte| has(&a, byte));
            prop_assert_eq!(cover(&a, &ByteRange::at(start, len)), covered);
        }
    }
}
