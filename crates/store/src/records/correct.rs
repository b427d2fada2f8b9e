//! Finding the one bit that was flipped, from a checksum that does not fit.
//!
//! CRC-32C is linear: what a flipped bit changes in the checksum depends only on how far it stands from the end. It
//! tells any two such bits of our lengths apart, and from every change of two bits (its Hamming distance is 4 below 2³¹
//! bits).

use crate::crc::crc32c;

/// Returns the byte and bit whose flip explains that `bytes` have checksum `found` where `expected` is written; `None`
/// if none does.
pub(super) fn flipped_bit(bytes: &[u8], expected: u32) -> Option<(usize, u8)> {
    let syndrome = crc32c(bytes) ^ expected;
    let zero = crc32c(&[0]);
    let table: [u32; 256] = std::array::from_fn(|byte| crc32c(&[byte as u8]) ^ zero);
    let mut effects: [u32; 8] = std::array::from_fn(|bit| table[1 << bit]);
    for at in (0..bytes.len()).rev() {
        if let Some(bit) = effects.iter().position(|effect| *effect == syndrome) {
            return Some((at, bit as u8));
        }
        for effect in &mut effects {
            *effect = (*effect >> 8) ^ table[(*effect & 0xff) as usize];
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_flipped_bit_is_found(
            bytes in proptest::collection::vec(any::<u8>(), 1..600),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let (expected, at) = (crc32c(&bytes), at.index(bytes.len()));
            prop_assert_eq!(flipped_bit(&bytes, expected), None, "sound bytes");
            let mut damaged = bytes;
            damaged[at] ^= 1 << bit;
            prop_assert_eq!(flipped_bit(&damaged, expected), Some((at, bit)));
        }

        #[test]
        fn two_flipped_bits_are_never_taken_for_one(
            bytes in proptest::collection::vec(any::<u8>(), 1..600),
            (a, b) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let (expected, bits) = (crc32c(&bytes), bytes.len() * 8);
            let (a, b) = (a.index(bits), b.index(bits));
            prop_assume!(a != b);
            let mut damaged = bytes;
            damaged[a / 8] ^= 1 << (a % 8);
            damaged[b / 8] ^= 1 << (b % 8);
            prop_assert_eq!(flipped_bit(&damaged, expected), None);
        }
    }
}
