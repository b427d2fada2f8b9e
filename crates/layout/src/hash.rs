//! Names and numbers → hashes → slots and targets. Byte-exact and for ever: what is on disk depends on it.
//!
//! ```text
//! entry hash   h = xxh3_64(bytes of the name, seed = parent inode number) >> 1      63 bits
//!              h = h + 16 if h < 16                     16 .. 2^63: also the readdir cookie
//! slot         h >> (63 - log2(slots))                  so slots in order are hashes in order
//! base target    (xxh3_64(8 little-endian bytes of the inode number, seed 0) · targets) >> 64
//! byte sum     (sum of the bytes of the name) mod n     the published hash, a choice, not the default
//! ```
//! `xxh3_64` is XXH3 with 64 bits of result as of xxHash 0.8, with its default secret. The byte sum is
//! kept because it was published: numbered names differ in few digits, so their sums fall on few values.

use bivouac_types::{Ino, Slot};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bits of an entry hash.
pub const HASH_BITS: u32 = 63;
/// Smallest entry hash: smaller cookies mean `.`, `..` and the start of a directory.
pub const COOKIE_FIRST: u64 = 16;

/// Returns the hash of an entry's name in its directory, 16 .. 2^63.
#[must_use]
pub fn entry_hash(parent: Ino, name: &[u8]) -> u64 {
    // One bit less, since offsets of directories are signed. The seed keeps names that many directories have from
    // always sharing a slot.
    above_reserved(xxh3_64_with_seed(name, parent.0) >> 1)
}

/// Returns the slot of a hash: its top bits. Monotone in the hash. A hash above 63 bits counts as the largest; a number
/// of slots that is not a power of two counts as the next smaller one.
#[must_use]
pub fn slot_of_hash(hash: u64, slots: u16) -> Slot {
    let hash = hash.min((1 << HASH_BITS) - 1);
    Slot((hash >> (HASH_BITS - slot_bits(slots))) as u16)
}

/// Returns the smallest hash that can be in a slot; `None` behind the last slot.
#[must_use]
pub fn first_hash_of_slot(slot: Slot, slots: u16) -> Option<u64> {
    let bits = slot_bits(slots);
    let inside = u64::from(slot.0) < 1 << bits;
    inside.then(|| (u64::from(slot.0) << (HASH_BITS - bits)).max(COOKIE_FIRST))
}

/// Returns the slot of the inode of a new directory: that of its entry's hash, so that directories spread.
#[must_use]
pub fn dir_slot(parent: Ino, name: &[u8], slots: u16) -> Slot {
    slot_of_hash(entry_hash(parent, name), slots)
}

/// Returns the position of the target of a file's first stripe, below `targets` (0 for no targets).
#[must_use]
pub fn base_target(ino: Ino, targets: u16) -> u16 {
    let hash = u128::from(xxh3_64(&ino.0.to_le_bytes()));
    // A product instead of a remainder: as even, and without a division.
    let target = ((hash * u128::from(targets)) >> 64) as u16;
    assert!(target < targets.max(1), "target {target} of {targets}");
    target
}

/// Returns the published hash of a name: the sum of its bytes modulo `n` (0 for `n` = 0).
#[must_use]
pub fn byte_sum_hash(name: &[u8], n: u16) -> u16 {
    let sum = name.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    sum.checked_rem(u64::from(n)).unwrap_or(0) as u16
}

fn above_reserved(hash: u64) -> u64 {
    if hash < COOKIE_FIRST { hash + COOKIE_FIRST } else { hash }
}

fn slot_bits(slots: u16) -> u32 {
    slots.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_hashes_are_lifted_above_the_reserved_cookies() {
        assert_eq!([0, 15, 16, 17].map(above_reserved), [16, 31, 16, 17]);
    }

    #[test]
    fn slots_are_the_top_bits() {
        assert_eq!(slot_of_hash(0, 1024), Slot(0));
        assert_eq!(slot_of_hash(1 << 53, 1024), Slot(1));
        assert_eq!(slot_of_hash((1 << 53) - 1, 1024), Slot(0));
        assert_eq!(slot_of_hash((1 << 63) - 1, 1024), Slot(1023));
        assert_eq!(slot_of_hash(u64::MAX, 4096), Slot(4095));
        assert_eq!([0, 1].map(|slots| slot_of_hash(u64::MAX, slots)), [Slot(0); 2]);
        assert_eq!(slot_of_hash(u64::MAX, 1025), Slot(1023));
    }

    #[test]
    fn the_first_hash_of_a_slot_is_in_it_and_the_one_before_is_not() {
        for slots in [1, 2, 1024, 4096] {
            for slot in [1, slots / 2, slots - 1].into_iter().filter(|slot| (1..slots).contains(slot)) {
                let first = first_hash_of_slot(Slot(slot), slots).unwrap();
                assert_eq!(slot_of_hash(first, slots), Slot(slot));
                assert_eq!(slot_of_hash(first - 1, slots), Slot(slot - 1));
            }
            assert_eq!(first_hash_of_slot(Slot(0), slots), Some(COOKIE_FIRST));
            assert_eq!(first_hash_of_slot(Slot(slots), slots), None);
        }
    }

    #[test]
    fn nothing_to_choose_from_is_zero() {
        assert_eq!((base_target(Ino(77), 0), base_target(Ino(77), 1)), (0, 0));
        assert_eq!(byte_sum_hash(b"name", 0), 0);
        assert_eq!(byte_sum_hash(b"name", 64), ((110 + 97 + 109 + 101) % 64) as u16);
    }
}
