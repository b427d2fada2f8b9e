//! Data that tells where it belongs: every byte follows from its offset and a seed.
//!
//! Each page of 4 KiB begins with a stamp of 8 bytes, which is different for every page of every seed;
//! the rest of the page depends on the seed and the place within the page. So a block that is written at
//! another offset costs a few stamps, not a whole new filling.

const PAGE: usize = 4096;
const STAMP: usize = 8;

/// Content of a file.
#[derive(Clone, Debug)]
pub struct Pattern {
    seed: u64,
    filler: Vec<u8>,
}

impl Pattern {
    /// The content that belongs to a seed.
    #[must_use]
    pub fn new(seed: u64) -> Pattern {
        let words = (0..PAGE / STAMP).map(|word| mix(seed ^ (word as u64) << 48));
        Pattern { seed, filler: words.flat_map(u64::to_le_bytes).collect() }
    }

    /// Fills a buffer with what belongs at `offset`.
    pub fn fill(&self, buffer: &mut [u8], offset: u64) {
        let mut at = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let within = (at % PAGE as u64) as usize;
            let len = rest.len().min(PAGE - within);
            let (part, behind) = rest.split_at_mut(len);
            self.fill_within_page(part, at / PAGE as u64, within);
            (rest, at) = (behind, at.wrapping_add(len as u64));
        }
    }

    /// Turns the content of one block of whole pages, at an offset of whole pages, into that of another
    /// such block. For anything else it is [`fill`](Pattern::fill).
    pub fn restamp(&self, buffer: &mut [u8], offset: u64) {
        if !offset.is_multiple_of(PAGE as u64) || !buffer.len().is_multiple_of(PAGE) {
            return self.fill(buffer, offset);
        }
        for (page, bytes) in (offset / PAGE as u64..).zip(buffer.chunks_exact_mut(PAGE)) {
            if let Some(place) = bytes.first_chunk_mut::<STAMP>() {
                *place = self.stamp(page);
            }
        }
    }

    /// The place of the first byte that does not belong at `offset`, counted within the buffer.
    #[must_use]
    pub fn mismatch(&self, buffer: &[u8], offset: u64) -> Option<usize> {
        let mut expected = vec![0; buffer.len()];
        self.fill(&mut expected, offset);
        // All at once first: byte by byte it takes many times as long, and mostly there is nothing to find.
        if expected == buffer {
            return None;
        }
        expected.iter().zip(buffer).position(|(a, b)| a != b)
    }

    fn fill_within_page(&self, part: &mut [u8], page: u64, within: usize) {
        for (place, byte) in part.iter_mut().zip(self.filler.iter().skip(within)) {
            *place = *byte;
        }
        let stamp = self.stamp(page);
        for (place, byte) in part.iter_mut().zip(stamp.iter().skip(within)) {
            *place = *byte;
        }
    }

    fn stamp(&self, page: u64) -> [u8; STAMP] {
        mix(self.seed ^ mix(page)).to_le_bytes()
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(seed: u64, offset: u64, len: usize) -> Vec<u8> {
        let mut buffer = vec![0; len];
        Pattern::new(seed).fill(&mut buffer, offset);
        buffer
    }

    #[test]
    fn splitmix_is_the_published_one() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn pages_and_seeds_differ() {
        assert_ne!(content(1, 0, 8), content(1, 4096, 8));
        assert_ne!(content(1, 0, 8), content(2, 0, 8));
        assert_ne!(content(1, 8, 64), content(2, 8, 64));
        assert_ne!(content(1, 8, 8), content(1, 16, 8));
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let pattern = Pattern::new(3);
        let mut buffer = content(3, 100, 9000);
        assert_eq!(pattern.mismatch(&buffer, 100), None);
        buffer[5000] ^= 1;
        assert_eq!(pattern.mismatch(&buffer, 100), Some(5000));
        assert!(pattern.mismatch(&content(3, 4096, 4096), 8192).is_some_and(|at| at < 8));
    }

    proptest! {
        #[test]
        fn any_part_is_a_part_of_the_whole(seed: u64, start in 0usize..9000, len in 0usize..9000) {
            let whole = content(seed, 8192, 18_000);
            prop_assert_eq!(&content(seed, 8192 + start as u64, len)[..], &whole[start..start + len]);
        }

        #[test]
        fn a_restamped_block_is_a_filled_one(from in 0u64..20_000, to in 0u64..20_000, pages in 0usize..4, odd in 0usize..2) {
            let pattern = Pattern::new(5);
            let (from, len) = (from * 4096, pages * 4096 + odd * 17);
            let to = if odd == 0 { to * 4096 } else { to };
            let mut block = content(5, from, len);
            pattern.restamp(&mut block, to);
            prop_assert_eq!(block, content(5, to, len));
        }
    }
}
