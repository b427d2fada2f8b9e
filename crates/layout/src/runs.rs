//! Places of one subfile that are better read together than each by a call of its own.

use std::ops::Range;

/// Most bytes between two places that are read along: fewer are read in less time than a system call takes, and a
/// block of which any byte is wanted is read as a whole for its checksum anyway.
pub const GAP_MAX: u64 = 4096;
/// Most bytes from the first place of a run to its last.
pub const RUN_LEN_MAX: u64 = 256 << 10;
/// Most places of a run. With the gaps between them they are few enough for one system call.
pub const RUN_PLACES_MAX: usize = 256;

/// Takes neighbours together: the indices of those among `places`, each an offset and a length in bytes of one
/// subfile, that one read should cover. All places are in one run each, in their order.
pub fn runs(places: impl IntoIterator<Item = (u64, u64)>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let (mut start, mut end) = (0u64, 0u64);
    for (index, (offset, len)) in places.into_iter().enumerate() {
        let behind = offset.saturating_add(len);
        match runs.last_mut() {
            Some(run)
                if offset >= end
                    && offset - end <= GAP_MAX
                    && behind - start <= RUN_LEN_MAX
                    && run.len() < RUN_PLACES_MAX =>
            {
                run.end = index + 1;
            }
            _ => {
                runs.push(index..index + 1);
                start = offset;
            }
        }
        end = behind;
    }
    runs
}

/// The buffers of one read of a run: those of its places, in their order, and between them parts of `gaps` for what
/// nobody asked for. `gaps` has at least as many bytes as lie between the places.
pub fn spanning<'b>(
    places: impl IntoIterator<Item = (u64, Vec<&'b mut [u8]>)>,
    mut gaps: &'b mut [u8],
) -> Vec<&'b mut [u8]> {
    let (mut bufs, mut end) = (Vec::new(), None);
    for (offset, parts) in places {
        let gap = offset.saturating_sub(end.unwrap_or(offset));
        if gap > 0 {
            let (now, later) = std::mem::take(&mut gaps).split_at_mut(gap as usize);
            bufs.push(now);
            gaps = later;
        }
        end = Some(offset + parts.iter().map(|part| part.len() as u64).sum::<u64>());
        bufs.extend(parts);
    }
    bufs
}

/// How many bytes of the place of `len` bytes at `offset` there were, where a read of `read` bytes began at `start`.
pub fn share(start: u64, read: u64, (offset, len): (u64, u64)) -> u64 {
    start.saturating_add(read).saturating_sub(offset).min(len)
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
        assert_eq!(runs((0..600).map(|i| (i * 2, 1))), [0..256, 256..512, 512..600]);
        assert_eq!(ends([(0, RUN_LEN_MAX - 1), (RUN_LEN_MAX - 1, 1), (RUN_LEN_MAX, 1)]), [(0, 2), (2, 3)]);
        assert_eq!(ends([(u64::MAX, 8), (u64::MAX, 8)]), [(0, 2)], "no arithmetic overflows");
    }

    proptest! {
        /// A read of each run, with its gaps, brings to each place what a read of its own would.
        #[test]
        fn a_run_has_what_its_places_have(
            places in prop::collection::vec((0u64..3 * GAP_MAX, 0u64..64), 0..40),
            size in 0usize..20_000,
        ) {
            let file: Vec<u8> = (0..size).map(|i| (i * 7 % 251) as u8).collect();
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
                let total: u64 = places.iter().map(|(_, len)| len).sum();
                let mut got: Vec<Vec<u8>> = places.iter().map(|(_, len)| vec![0; *len as usize]).collect();
                let mut gaps = vec![0; (end - start - total) as usize];
                let parts = places.iter().zip(&mut got).map(|((offset, _), got)| (*offset, vec![got.as_mut_slice()]));
                let bufs = spanning(parts, &mut gaps);
                prop_assert_eq!(bufs.iter().map(|buf| buf.len() as u64).sum::<u64>(), end - start);
                let mut read = 0usize;
                for buf in bufs {
                    let there = file.get(start as usize + read..).unwrap_or_default();
                    let count = there.len().min(buf.len());
                    buf[..count].copy_from_slice(&there[..count]);
                    read += count;
                    if count < buf.len() {
                        break;
                    }
                }
                for (place, got) in places.iter().zip(&got) {
                    let there = file.get(place.0 as usize..).unwrap_or_default();
                    let there = &there[..there.len().min(place.1 as usize)];
                    prop_assert_eq!(share(start, read as u64, *place), there.len() as u64);
                    prop_assert_eq!(&got[..there.len()], there);
                }
            }
        }
    }
}
