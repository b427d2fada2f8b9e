//! Arithmetic on lists of buffers.

use std::io::{IoSlice, IoSliceMut};

/// Returns the number of bytes of all slices together.
pub(crate) fn total(slices: &[IoSlice<'_>]) -> usize {
    slices.iter().map(|slice| slice.len()).fold(0, usize::saturating_add)
}

/// Returns the number of bytes of all slices together.
pub(crate) fn total_mut(slices: &[IoSliceMut<'_>]) -> usize {
    slices.iter().map(|slice| slice.len()).fold(0, usize::saturating_add)
}

/// Returns the `len` bytes (or as many as there are) behind the first `skip` bytes.
pub(crate) fn window_mut<'a>(
    slices: &'a mut [IoSliceMut<'_>],
    skip: usize,
    len: usize,
) -> Vec<IoSliceMut<'a>> {
    let (mut skip, mut left) = (skip, len);
    let mut out = Vec::with_capacity(slices.len());
    for slice in slices {
        let from = skip.min(slice.len());
        skip -= from;
        let len = left.min(slice.len() - from);
        left -= len;
        if let Some(part) = slice.get_mut(from..from + len)
            && len > 0
        {
            out.push(IoSliceMut::new(part));
        }
    }
    out
}

/// Returns all bytes, one slice behind the other.
pub(crate) fn joined(slices: &[IoSlice<'_>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(total(slices));
    slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
    bytes
}

/// Puts bytes to the front of slices that have room for them.
pub(crate) fn scatter(bytes: &[u8], into: &mut [IoSliceMut<'_>]) {
    let mut rest = bytes;
    for slice in window_mut(into, 0, bytes.len()).iter_mut() {
        let (now, later) = rest.split_at(slice.len().min(rest.len()));
        slice.copy_from_slice(now);
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_window_is_what_slicing_the_whole_gives(
            lens in proptest::collection::vec(0usize..9, 0..9), skip in 0usize..60, len in 0usize..60,
        ) {
            let whole: Vec<u8> = (0..lens.iter().sum::<usize>() as u8).collect();
            let mut parts: Vec<Vec<u8>> = Vec::new();
            let mut at = 0;
            for len in &lens {
                parts.push(whole[at..at + len].to_vec());
                at += len;
            }
            let mut slices: Vec<IoSliceMut<'_>> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
            prop_assert_eq!(total_mut(&slices), whole.len());
            let seen: Vec<u8> = window_mut(&mut slices, skip, len).iter().flat_map(|part| part.to_vec()).collect();
            let from = skip.min(whole.len());
            let expected = &whole[from..(from + len).min(whole.len())];
            prop_assert_eq!(&seen[..], expected);
            let given: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            prop_assert_eq!(joined(&given), whole.clone());
            let mut empty: Vec<Vec<u8>> = lens.iter().map(|len| vec![0xff; *len]).collect();
            let front = &whole[..len.min(whole.len())];
            scatter(front, &mut empty.iter_mut().map(|part| IoSliceMut::new(part)).collect::<Vec<_>>());
            prop_assert_eq!(&empty.concat()[..front.len()], front);
            prop_assert!(empty.concat()[front.len()..].iter().all(|byte| *byte == 0xff));
        }
    }
}
