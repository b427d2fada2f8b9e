//! The hashes: golden vectors, order, and how evenly they spread names over nodes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bivouac_layout::{
    COOKIE_FIRST, base_target, byte_sum_hash, dir_slot, entry_hash, first_hash_of_slot, slot_of_hash,
    slot_to_node,
};
use bivouac_types::limits::SLOTS_DEFAULT;
use bivouac_types::{Ino, Slot};
use proptest::prelude::*;

const DIR: Ino = Ino(0x0400_0100_0000_0010);

// These vectors were computed with the reference implementation of XXH3 as well.
#[test]
fn golden_entry_hashes() {
    let long = [b'x'; 255];
    for (parent, name, hash, slot) in [
        (Ino::ROOT, &b"a"[..], 0x697b_684c_b79b_d390, 843),
        (Ino::ROOT, b"", 0x26e2_d866_4137_b381, 311),
        (Ino::ROOT, b"rank0000", 0x68c3_68b5_c66c_a752, 838),
        (DIR, b"rank0000", 0x617f_6c3c_d1c9_58b1, 779),
        (Ino::ROOT, b"\xff\xfe", 0x3851_9db7_eab3_cb9d, 450),
        (Ino::ROOT, &long, 0x059e_cc40_794a_b2a1, 44),
    ] {
        assert_eq!(entry_hash(parent, name), hash, "{}", name.escape_ascii());
        assert_eq!(dir_slot(parent, name, 1024), Slot(slot), "{}", name.escape_ascii());
    }
}

#[test]
fn golden_base_targets() {
    for (ino, targets) in [
        (Ino(0), [0, 2, 3, 49, 12_766]),
        (Ino(1), [0, 0, 0, 11, 3055]),
        (Ino(2), [0, 0, 0, 8, 2081]),
        (DIR, [0, 1, 1, 26, 6861]),
        (Ino(u64::MAX), [0, 0, 1, 20, 5188]),
    ] {
        assert_eq!([1, 3, 4, 64, 16_384].map(|n| base_target(ino, n)), targets, "{ino}");
    }
}

#[test]
fn golden_byte_sums() {
    assert_eq!(byte_sum_hash(b"", 64), 0);
    assert_eq!(byte_sum_hash(b"rank0000", 64), 44);
    assert_eq!(byte_sum_hash(b"rank0001", 64), 45);
    assert_eq!(byte_sum_hash(&[0xff; 255], 64), 1);
}

/// Names on the fullest node, as a multiple of the mean, when `choose` deals them out.
fn fullness(names: impl Iterator<Item = String>, nodes: u16, choose: impl Fn(&[u8]) -> u16) -> f64 {
    let mut counts = vec![0u32; usize::from(nodes)];
    names.for_each(|name| counts[usize::from(choose(name.as_bytes()))] += 1);
    let fullest = counts.iter().max().copied().unwrap_or(0);
    f64::from(fullest) * f64::from(nodes) / f64::from(counts.iter().sum::<u32>())
}

#[test]
fn numbered_names_spread_where_byte_sums_pile_up() {
    let names = || (0..10_000).map(|rank| format!("rank{rank:04}"));
    let published = fullness(names(), 64, |name| byte_sum_hash(name, 64));
    assert!((4.25..4.35).contains(&published), "byte sum: {published} times the mean");
    let ours = |name: &[u8]| slot_to_node(dir_slot(DIR, name, SLOTS_DEFAULT), SLOTS_DEFAULT, 64).0;
    let fullest = fullness(names(), 64, ours);
    assert!(fullest < 1.3, "entry hash: {fullest} times the mean");
}

/// Names that people chose: those of this project's own files.
fn real_names() -> Vec<String> {
    let mut dirs = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))];
    let mut names = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            names.push(entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// The master of a file as a partition chooses it (P5): by its number, or by its name's bytes.
#[test]
fn masters_by_number_are_even_and_masters_by_name_depend_on_the_names() {
    let by_number = |names: &[String]| {
        let mut numbers = 16..;
        let choose = |_: &[u8]| base_target(Ino(DIR.0 + numbers.next().unwrap_or(0)), 64);
        let choose = std::cell::RefCell::new(choose);
        fullness(names.iter().cloned(), 64, |name| (choose.borrow_mut())(name))
    };
    let by_name = |names: &[String]| fullness(names.iter().cloned(), 64, |name| byte_sum_hash(name, 64));
    let real = real_names();
    assert!(real.len() > 200, "{} names", real.len());
    // Among so few names either may be uneven by chance; the sum is not worse by its nature.
    assert!(by_name(&real) < 3.0 && by_number(&real) < 3.0, "{} {}", by_name(&real), by_number(&real));
    // Numbers differ in few digits, so their sums are few: most targets get nothing.
    let numbered: Vec<String> = (0..1000).map(|step| format!("flash_chk_{step:04}")).collect();
    let (sums, numbers) = (by_name(&numbered), by_number(&numbered));
    assert!(sums > 4.5 && numbers < 2.0, "the fullest target has {sums} and {numbers} times the mean");
}

#[test]
fn inodes_of_one_allocator_spread_over_targets() {
    for targets in [3u16, 4, 64] {
        let mut counts = vec![0u32; usize::from(targets)];
        for counter in 16..16 + 1000 * u64::from(targets) {
            counts[usize::from(base_target(Ino(DIR.0 + counter), targets))] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{targets} targets: {counts:?}");
    }
}

proptest! {
    #[test]
    fn hashes_are_cookies(parent: u64, name: Vec<u8>) {
        let hash = entry_hash(Ino(parent), &name);
        prop_assert!((COOKIE_FIRST..1 << 63).contains(&hash));
    }

    #[test]
    fn slot_order_is_hash_order(a: u64, b: u64, bits in 0u32..=12) {
        let slots = 1u16 << bits;
        let (low, high) = (slot_of_hash(a.min(b), slots), slot_of_hash(a.max(b), slots));
        prop_assert!(low <= high && high.0 < slots);
    }

    #[test]
    fn a_hash_is_between_the_first_of_its_slot_and_of_the_next(hash in COOKIE_FIRST..1 << 63, bits in 0u32..=12) {
        let slots = 1u16 << bits;
        let slot = slot_of_hash(hash, slots);
        prop_assert!(first_hash_of_slot(slot, slots).is_some_and(|first| first <= hash));
        prop_assert!(first_hash_of_slot(Slot(slot.0 + 1), slots).is_none_or(|next| hash < next));
    }

    #[test]
    fn nothing_panics(ino: u64, name: Vec<u8>, hash: u64, slots: u16, nodes: u16, slot: u16) {
        prop_assert!(slot_of_hash(hash, slots).0 < slots.max(1));
        prop_assert!(dir_slot(Ino(ino), &name, slots).0 < slots.max(1));
        prop_assert!(base_target(Ino(ino), nodes) < nodes.max(1));
        prop_assert!(byte_sum_hash(&name, nodes) < nodes.max(1));
        prop_assert!(slot_to_node(Slot(slot), slots, nodes).0 < nodes.max(1));
        let _ = first_hash_of_slot(Slot(slot), slots);
    }
}
