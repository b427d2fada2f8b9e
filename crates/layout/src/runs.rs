//! Places of one subfile that are better accessed together than each by a call of its own.

use std::ops::{DerefMut, Range};

/// Most bytes between two places of a run: fewer are read in less time than a system call takes. It is less than a
/// page, so that each page from the first place of a run to its last has a part of one of them.
pub const GAP_MAX: u64 = 4095;
/// Longest place that has others in its run, in bytes: what goes together is copied once more.
pub const RUN_PLACE_MAX: u64 = 2048;
/// Most bytes from the first place of a run to its last.
pub const RUN_LEN_MAX: u64 = 256 << 10;

/// Takes neighbours together: the indices of those among `places`, each an offset and a length in bytes of one
/// subfile, that one access should cover. All places are in one run each, in their order. Those of a run do not
/// overlap.
pub fn runs(places: impl IntoIterator<Item = (u64, u64)>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let (mut start, mut end, mut longest) = (0u64, 0u64, 0u64);
    for (index, (offset, len)) in places.into_iter().enumerate() {
        let behind = offset.saturating_add(len);
        longest = longest.max(len);
        match runs.last_mut() {
            Some(run)
                if offset >= end
                    && offset - end <= GAP_MAX
                    && behind - start <= RUN_LEN_MAX
                    && longest <= RUN_PLACE_MAX =>
            {
                run.end = index + 1;
            }
            _ => {
                runs.push(index..index + 1);
                (start, longest) = (offset, len);
            }
        }
        end = behind;
    }
    runs
}

/// Returns the bytes of places, each an offset and a length, that lie one behind the other in some slices: pieces of
/// them, each with its offset, in order; no piece is empty. It ends where either does.
pub fn placed<'b>(
    places: impl IntoIterator<Item = (u64, u64)>,
    slices: impl IntoIterator<Item = &'b [u8]>,
) -> impl Iterator<Item = (u64, &'b [u8])> {
    let (mut places, mut slices) = (places.into_iter(), slices.into_iter());
    let (mut at, mut wanted, mut slice) = (0u64, 0u64, &[][..]);
    std::iter::from_fn(move || {
        while wanted == 0 {
            (at, wanted) = places.next()?;
        }
        while slice.is_empty() {
            slice = slices.next()?;
        }
        let len = usize::try_from(wanted).unwrap_or(usize::MAX).min(slice.len());
        let (piece, behind) = slice.split_at(len);
        let here = at;
        (at, wanted, slice) = (at.saturating_add(len as u64), wanted - len as u64, behind);
        Some((here, piece))
    })
}

/// Returns the part of a read from `start` on that brought these bytes which belongs to `len` bytes at `offset`.
pub fn part_of(start: u64, bytes: &[u8], (offset, len): (u64, u64)) -> &[u8] {
    let behind = usize::try_from(offset.saturating_sub(start)).ok().and_then(|at| bytes.get(at..));
    let behind = behind.unwrap_or_default();
    &behind[..behind.len().min(usize::try_from(len).unwrap_or(usize::MAX))]
}

/// Fills buffers, one behind the other, with bytes and with zeros behind them.
pub fn fill(parts: &mut [impl DerefMut<Target = [u8]>], mut bytes: &[u8]) {
    for part in parts {
        let (now, later) = bytes.split_at(bytes.len().min(part.len()));
        let (here, behind) = part.split_at_mut(now.len());
        here.copy_from_slice(now);
        behind.fill(0);
        bytes = later;
    }
}

/// Fills buffers with zeros behind their first `read` bytes.
pub fn zero_behind(parts: &mut [impl DerefMut<Target = [u8]>], mut read: usize) {
    for part in parts {
        let filled = read.min(part.len());
        part.get_mut(filled..).unwrap_or_default().fill(0);
        read -= filled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends<const N: usize>(places: [(u64, u64); N]) -> Vec<(usize, usize)> {
        runs(places).into_iter().map(|run| (run.start, run.end)).collect()
    }

    #[test]
    fn neighbours_are_taken_together() {
        assert_eq!(ends([]), []);
        assert_eq!(ends([(0, 8), (16, 8), (32, 8)]), [(0, 3)]);
        assert_eq!(
            ends([(0, 8), (8 + GAP_MAX, 8), (17 + 2 * GAP_MAX, 8)]),
            [(0, 2), (2, 3)],
            "a gap too wide"
        );
        assert_eq!(
            ends([(100, 8), (0, 8), (8, 0), (4, 8)]),
            [(0, 1), (1, 3), (3, 4)],
            "back, and over each other"
        );
        let long = RUN_PLACE_MAX + 1;
        assert_eq!(
            ends([(0, 8), (8, long), (8 + long, 8), (16 + long, 8)]),
            [(0, 1), (1, 2), (2, 4)],
            "alone"
        );
        assert_eq!(runs((0..RUN_LEN_MAX).map(|i| (i * 2, 1))).len(), 2);
        assert_eq!(ends([(u64::MAX, 8), (u64::MAX, 8)]), [(0, 2)], "no arithmetic overflows");
    }

    #[test]
    fn behind_what_was_there_are_zeros() {
        let mut parts = [vec![9; 2], vec![], vec![9; 3], vec![9; 2]];
        fill(&mut parts, &[1, 2, 3]);
        assert_eq!(parts, [vec![1, 2], vec![], vec![3, 0, 0], vec![0, 0]]);
        fill(&mut parts, &[7; 20]);
        assert_eq!(parts.concat(), [7; 7], "more than there is room for");
        zero_behind(&mut parts, 4);
        assert_eq!(parts.concat(), [7, 7, 7, 7, 0, 0, 0]);
    }

    proptest! {
        /// Pieces are what places and slices say, byte by byte.
        #[test]
        fn what_is_placed_has_every_byte_at_its_place(
            places in prop::collection::vec((0u64..100, 0u64..20), 0..10),
            cuts in prop::collection::vec(0usize..15, 0..20),
        ) {
            let total: usize = places.iter().map(|(_, len)| *len as usize).sum();
            let bytes: Vec<u8> = (0..total).map(|i| i as u8).collect();
            let (mut slices, mut rest) = (Vec::new(), &bytes[..]);
            for cut in cuts {
                let (now, behind) = rest.split_at(cut.min(rest.len()));
                slices.push(now);
                rest = behind;
            }
            slices.push(rest);
            let wanted: Vec<(u64, u8)> = places.iter().flat_map(|(at, len)| *at..at + len).zip(bytes.iter().copied()).collect();
            let mut found = Vec::new();
            for (at, piece) in placed(places, slices.iter().copied()) {
                prop_assert!(!piece.is_empty());
                found.extend((at..).zip(piece.iter().copied()));
            }
            prop_assert_eq!(found, wanted);
        }

        /// A read of each run has of each place what a read of its own would.
        #[test]
        fn a_run_has_what_its_places_have(
            places in prop::collection::vec((0u64..3 * GAP_MAX, 0u64..3000), 0..40),
            size in 0usize..20_000,
        ) {
            let file: Vec<u8> = (0..size).map(|i| (i * 7 % 251) as u8).collect();
            let read = |offset: u64, len: u64| {
                let behind = file.get(offset as usize..).unwrap_or_default();
                &behind[..behind.len().min(len as usize)]
            };
            let mut at = 0;
            let places: Vec<(u64, u64)> = places.iter().map(|(gap, len)| {
                let offset = at + gap;
                at = offset + len;
                (offset, *len)
            }).collect();
            let runs = runs(places.iter().copied());
            prop_assert_eq!(runs.iter().cloned().flatten().collect::<Vec<_>>(), (0..places.len()).collect::<Vec<_>>());
            for run in runs {
                let places = &places[run];
                let (start, end) = (places[0].0, places[places.len() - 1].0 + places[places.len() - 1].1);
                prop_assert!(places.len() == 1 || end - start <= RUN_LEN_MAX);
                for place in places {
                    prop_assert_eq!(part_of(start, read(start, end - start), *place), read(place.0, place.1));
                }
            }
        }
    }
}
