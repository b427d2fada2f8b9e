//! Offsets in a file ↔ offsets in its subfiles.
//!
//! Stripe `k` of a file is in column `k mod width`, at offset `(k div width) · stripe` of the column's
//! subfile. Column `c` is on target `(base + c) mod targets` of the partition.

use bivouac_types::{Layout, TargetIndex};

/// Location of one byte of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Number of the stripe within the file.
    pub stripe: u64,
    /// Target of the partition that holds the stripe.
    pub target: TargetIndex,
    /// Position among the targets that the file uses, 0 .. width.
    pub column: u16,
    /// Offset in the data of the target's subfile (its header not counted), in bytes.
    pub subfile_offset: u64,
    /// Bytes from here to the end of the stripe, 1 ..= stripe.
    pub run: u64,
}

/// Finds the byte at `offset` of a file.
#[must_use]
pub fn locate(layout: &Layout, offset: u64) -> Location {
    let (size, width) = divisors(layout);
    let (stripe, within) = (offset / size, offset % size);
    let column = (stripe % width) as u16;
    Location {
        stripe,
        target: target_of(layout, column),
        column,
        subfile_offset: stripe / width * size + within,
        run: size - within,
    }
}

/// Returns the offset in the file of the byte at `subfile_offset` of the subfile in `column`: the inverse of
/// [`locate`]. `None` if the file does not use the column or the offset is above what 64 bits can name.
#[must_use]
pub fn file_offset(layout: &Layout, column: u16, subfile_offset: u64) -> Option<u64> {
    let (size, width) = divisors(layout);
    if u64::from(column) >= width {
        return None;
    }
    let stripe = (subfile_offset / size).checked_mul(width)?.checked_add(u64::from(column))?;
    stripe.checked_mul(size)?.checked_add(subfile_offset % size)
}

/// Returns the number of bytes that `column` holds of a file of `file_size` bytes without holes: the length to which a
/// truncate cuts its subfile. 0 for a column that the file does not use.
#[must_use]
pub fn subfile_len(layout: &Layout, column: u16, file_size: u64) -> u64 {
    let (size, width) = divisors(layout);
    let (stripes, rest) = (file_size / size, file_size % size);
    let (rows, last) = (stripes / width, stripes % width);
    let column = u64::from(column);
    if column >= width {
        return 0;
    }
    // The last stripe may be a part of one: its column has that part, those before it a whole stripe more than
    // those behind.
    match column.cmp(&last) {
        std::cmp::Ordering::Less => (rows + 1) * size,
        std::cmp::Ordering::Equal => rows * size + rest,
        std::cmp::Ordering::Greater => rows * size,
    }
}

/// Returns the smallest size of a file whose subfiles have the lengths `lens` (by column; missing ones count as empty).
/// `None` if a column that the file does not use has bytes, or no 64-bit size explains them.
#[must_use]
pub fn file_size_from(layout: &Layout, lens: &[u64]) -> Option<u64> {
    let mut file_size = 0;
    for (column, len) in lens.iter().enumerate() {
        if let Some(last) = len.checked_sub(1) {
            let column = u16::try_from(column).ok()?;
            file_size = file_size.max(file_offset(layout, column, last)?.checked_add(1)?);
        }
    }
    Some(file_size)
}

/// Returns the target of a column, for every column.
#[must_use]
pub fn target_of(layout: &Layout, column: u16) -> TargetIndex {
    let targets = u32::from(layout.targets.max(1));
    let position = (u32::from(layout.base.position()) + u32::from(column)) % targets;
    TargetIndex::new(layout.partition(), position as u16)
}

/// Returns the targets that a file uses, in the order of its columns.
pub fn targets_of(layout: &Layout) -> impl ExactSizeIterator<Item = TargetIndex> + use<> {
    let layout = *layout;
    (0..layout.width).map(move |column| target_of(&layout, column))
}

/// Returns the stripe size and width, never 0.
pub(crate) fn divisors(layout: &Layout) -> (u64, u64) {
    (u64::from(layout.stripe.max(1)), u64::from(layout.width.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1024;
    const LAYOUT: Layout = Layout { stripe: 4096, width: 3, base: TargetIndex(4), targets: 5 };

    #[test]
    fn golden_locations() {
        let at = |offset| {
            let l = locate(&LAYOUT, offset);
            (l.stripe, l.target.position(), l.column, l.subfile_offset, l.run)
        };
        assert_eq!(at(0), (0, 4, 0, 0, 4096));
        assert_eq!(at(4095), (0, 4, 0, 4095, 1));
        assert_eq!(at(4096), (1, 0, 1, 0, 4096));
        assert_eq!(at(8 * K + 1), (2, 1, 2, 1, 4095));
        assert_eq!(at(12 * K), (3, 4, 0, 4 * K, 4096));
        assert_eq!(at(u64::MAX), (4_503_599_627_370_495, 4, 0, 6_148_914_691_236_519_935, 1));
    }

    #[test]
    fn golden_sizes() {
        let lens = |size| [0, 1, 2].map(|column| subfile_len(&LAYOUT, column, size));
        assert_eq!(lens(0), [0, 0, 0]);
        assert_eq!(lens(1), [1, 0, 0]);
        assert_eq!(lens(4 * K), [4 * K, 0, 0]);
        assert_eq!(lens(10 * K), [4 * K, 4 * K, 2 * K]);
        assert_eq!(lens(13 * K), [5 * K, 4 * K, 4 * K]);
        assert_eq!(subfile_len(&LAYOUT, 3, 13 * K), 0);
        assert_eq!(file_size_from(&LAYOUT, &[5 * K, 4 * K, 4 * K]), Some(13 * K));
    }

    #[test]
    fn a_hole_at_the_end_of_a_column_does_not_shrink_the_file() {
        assert_eq!(file_size_from(&LAYOUT, &[0, 0, 1]), Some(8 * K + 1));
        assert_eq!(file_size_from(&LAYOUT, &[]), Some(0));
    }

    #[test]
    fn what_no_file_explains_is_refused() {
        assert_eq!(file_offset(&LAYOUT, 3, 0), None);
        assert_eq!(file_offset(&LAYOUT, 0, u64::MAX), None);
        assert_eq!(file_size_from(&LAYOUT, &[0, 0, 0, 1]), None);
        assert_eq!(file_size_from(&LAYOUT, &[0, u64::MAX]), None);
        let single = Layout { width: 1, ..LAYOUT };
        assert_eq!(file_offset(&single, 0, u64::MAX), Some(u64::MAX));
        assert_eq!(file_size_from(&single, &[u64::MAX]), Some(u64::MAX));
    }

    #[test]
    fn absurd_layouts_do_not_panic() {
        for layout in [
            Layout { stripe: 0, width: 0, base: TargetIndex(0), targets: 0 },
            Layout { stripe: u32::MAX, width: u16::MAX, base: TargetIndex(u32::MAX), targets: u16::MAX },
        ] {
            for offset in [0, 1, u64::MAX] {
                let location = locate(&layout, offset);
                assert_eq!(file_offset(&layout, location.column, location.subfile_offset), Some(offset));
                assert!(subfile_len(&layout, 0, offset) <= offset);
            }
        }
    }
}
