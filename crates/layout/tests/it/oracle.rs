//! The arithmetic against a brute-force oracle that deals out a file byte by byte, and its properties.

use bivouac_layout::{TargetRange, file_offset, file_size_from, locate, split, subfile_len};
use bivouac_types::{Layout, PartitionId, TargetIndex};
use proptest::prelude::*;

/// The subfiles of a file: for each column the file offsets of its bytes, in subfile order.
///
/// Written from the definition (stripe k goes to column k mod width, appended), without division.
fn deal(layout: &Layout, file_size: u64) -> Vec<Vec<u64>> {
    let mut subfiles = vec![Vec::new(); usize::from(layout.width)];
    let (mut column, mut in_stripe) = (0, 0);
    for offset in 0..file_size {
        if in_stripe == layout.stripe {
            in_stripe = 0;
            column = if column + 1 == subfiles.len() { 0 } else { column + 1 };
        }
        subfiles[column].push(offset);
        in_stripe += 1;
    }
    subfiles
}

fn small() -> impl Strategy<Value = Layout> {
    // Stripes far below what a formation accepts make the oracle quick; the arithmetic is the same.
    (1u32..9, 1u16..6, 0u16..4, 0u16..9).prop_map(|(stripe, width, more, base)| {
        let targets = width + more;
        Layout { stripe, width, base: TargetIndex::new(PartitionId(base), base % targets), targets }
    })
}

fn accepted() -> impl Strategy<Value = Layout> {
    (1u32..=1 << 18, 1u16.., 1u16.., any::<u16>()).prop_map(|(pages, a, b, base)| {
        let (width, targets) = (a.min(b), a.max(b));
        Layout {
            stripe: pages * 4096,
            width,
            base: TargetIndex::new(PartitionId(base), base % targets),
            targets,
        }
    })
}

proptest! {
    #[test]
    fn every_byte_is_where_the_oracle_puts_it(layout in small(), size in 0u64..200) {
        for (column, subfile) in deal(&layout, size).iter().enumerate() {
            let position = (layout.base.position() + column as u16) % layout.targets;
            let target = TargetIndex::new(layout.partition(), position);
            prop_assert_eq!(subfile_len(&layout, column as u16, size), subfile.len() as u64);
            for (at, offset) in subfile.iter().enumerate() {
                let location = locate(&layout, *offset);
                prop_assert_eq!((usize::from(location.column), location.target), (column, target));
                prop_assert_eq!(location.subfile_offset, at as u64);
                prop_assert_eq!(file_offset(&layout, column as u16, at as u64), Some(*offset));
            }
        }
    }

    #[test]
    fn a_request_moves_the_bytes_that_the_oracle_moves(layout in small(), offset in 0u64..150, len in 0u64..150) {
        let subfiles = deal(&layout, offset + len);
        let mut buffer = vec![None; len as usize];
        for range in split(&layout, offset, len) {
            let start = range.subfile_offset as usize;
            let mut source = subfiles[usize::from(range.column)][start..start + range.len as usize].iter();
            for piece in range.pieces() {
                for slot in &mut buffer[piece.range()] {
                    prop_assert!(slot.is_none(), "two pieces overlap");
                    *slot = source.next().copied();
                }
            }
            prop_assert_eq!(source.next(), None, "bytes without a piece");
        }
        let expected: Vec<_> = (offset..offset + len).map(Some).collect();
        prop_assert_eq!(buffer, expected);
    }

    #[test]
    fn a_range_that_is_cut_has_the_same_bytes_in_the_same_places(
        layout in small(), offset in 0u64..150, len in 0u64..150, at in 0u64..90,
    ) {
        let places = |range: &TargetRange| range.pieces().flat_map(|piece| piece.range()).collect::<Vec<_>>();
        for range in split(&layout, offset, len) {
            let all = places(&range);
            let (start, total, column) = (range.subfile_offset, range.len, range.column);
            let (front, behind) = range.split_at(at);
            prop_assert_eq!((front.subfile_offset, front.len), (start, at.min(total)));
            let mut together = places(&front);
            prop_assert_eq!(together.len() as u64, front.len);
            prop_assert_eq!(behind.is_some(), at < total);
            if let Some(behind) = behind {
                prop_assert_eq!((behind.subfile_offset, behind.len, behind.column), (start + at, total - at, column));
                together.extend(places(&behind));
            }
            prop_assert_eq!(together, all);
        }
    }

    #[test]
    fn a_size_comes_back_from_the_subfiles(layout in small(), size in 0u64..200) {
        let lens: Vec<u64> = deal(&layout, size).iter().map(|s| s.len() as u64).collect();
        prop_assert_eq!(file_size_from(&layout, &lens), Some(size));
    }

    #[test]
    fn a_size_from_ragged_subfiles_is_the_smallest(layout in small(), lens in prop::collection::vec(0u64..40, 1..6)) {
        let lens = &lens[..lens.len().min(usize::from(layout.width))];
        let explains = |size| lens.iter().enumerate().all(|(c, len)| subfile_len(&layout, c as u16, size) >= *len);
        let size = file_size_from(&layout, lens).unwrap();
        prop_assert!(explains(size));
        prop_assert!(size == 0 || !explains(size - 1));
    }

    #[test]
    fn locating_inverts_for_every_offset(layout in accepted(), offset: u64) {
        prop_assert_eq!(layout.check(), Ok(()));
        let location = locate(&layout, offset);
        prop_assert!(location.column < layout.width && location.target.position() < layout.targets);
        prop_assert!((1..=u64::from(layout.stripe)).contains(&location.run));
        prop_assert_eq!(file_offset(&layout, location.column, location.subfile_offset), Some(offset));
    }

    #[test]
    fn subfile_offsets_invert_or_are_refused(layout in accepted(), column: u16, subfile_offset: u64) {
        match file_offset(&layout, column, subfile_offset) {
            Some(offset) => {
                let location = locate(&layout, offset);
                prop_assert_eq!((location.column, location.subfile_offset), (column, subfile_offset));
            }
            None => prop_assert!(column >= layout.width || subfile_offset >= u64::MAX / u64::from(layout.width)),
        }
    }

    #[test]
    fn the_columns_hold_exactly_the_file(layout in accepted(), size: u64) {
        let total: u64 = (0..layout.width).map(|column| subfile_len(&layout, column, size)).sum();
        prop_assert_eq!(total, size);
    }

    #[test]
    fn ranges_cover_disjointly(layout in accepted(), offset: u64, len in 0u64..1 << 36) {
        let len = len.min(u64::MAX - offset);
        let ranges: Vec<_> = split(&layout, offset, len).collect();
        prop_assert_eq!(split(&layout, offset, len).len(), ranges.len());
        let mut targets: Vec<_> = ranges.iter().map(|range| range.target).collect();
        targets.sort_unstable();
        targets.dedup();
        prop_assert_eq!(targets.len(), ranges.len(), "a target twice");
        prop_assert!(ranges.iter().all(|range| range.len > 0));
        prop_assert_eq!(ranges.iter().map(|range| range.len).sum::<u64>(), len);
        for range in ranges.iter().take(8) {
            let first = range.pieces().next().map(|piece| locate(&layout, offset + piece.buffer_offset as u64));
            prop_assert_eq!(first.map(|l| (l.target, l.subfile_offset)), Some((range.target, range.subfile_offset)));
        }
    }

    #[test]
    fn nothing_panics(stripe: u32, width: u16, base: u16, targets: u16, a: u64, b: u64, column: u16, lens: Vec<u64>) {
        let layout = Layout { stripe, width, base: TargetIndex::new(PartitionId(base), base), targets };
        let location = locate(&layout, a);
        prop_assert!(location.run > 0 && location.subfile_offset <= a);
        prop_assert!(subfile_len(&layout, column, a) <= a);
        let ranges = split(&layout, a, b).take(64);
        prop_assert!(ranges.flat_map(|range| range.pieces().take(64)).all(|piece| piece.len > 0));
        let _ = (file_offset(&layout, column, a), file_size_from(&layout, &lens));
    }
}
