//! Valid inputs, damaged in the ways that find bugs in decoders: the part that tests on stable Rust and the fuzzer
//! have in common is in decoders.rs. Included by path, with `#[path]`, into the tests of several crates.

#![allow(dead_code, reason = "every test uses a part of it")]

/// Numbers that lengths and counts are set to.
const EXTREMES: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x1_0000, 0x7fff_ffff, 0xffff_ffff, 1 << 63, u64::MAX];
/// Bytes that mean something in texts.
const MARKS: &[u8] = b"\0/:\\=.,- \"{}[]0\xff";

/// Makes variants of seeds, the same in every run.
pub struct Mutator {
    seeds: Vec<Vec<u8>>,
    state: u64,
}

impl Mutator {
    /// Over these valid inputs, of which there is at least one.
    pub fn new(seeds: Vec<Vec<u8>>) -> Mutator {
        Mutator { seeds, state: 0x1234_5678 }
    }

    /// The seeds as they are, then `count` variants.
    pub fn each(mut self, count: usize, mut act: impl FnMut(&[u8])) {
        self.seeds.iter().for_each(|seed| act(seed));
        for _ in 0..count {
            act(&self.variant());
        }
    }

    /// One variant.
    pub fn variant(&mut self) -> Vec<u8> {
        let pick = self.below(self.seeds.len());
        let mut bytes = self.seeds[pick].clone();
        for _ in 0..=self.below(3) {
            self.damage(&mut bytes);
        }
        bytes
    }

    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        match self.below(9) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let more = self.next().to_le_bytes();
                bytes.extend_from_slice(&more[..1 + self.below(7)]);
            }
            4 => self.set_number(bytes, at),
            5 => self.splice(bytes, at),
            6 => {
                let end = (at + 1 + self.below(16)).min(bytes.len());
                drop(bytes.drain(at..end));
            }
            7 => {
                let piece: Vec<u8> = bytes.iter().skip(at).take(1 + self.below(40)).copied().collect();
                bytes.splice(at..at, piece);
            }
            _ => {
                let mark = MARKS[self.below(MARKS.len())];
                bytes.insert(at, mark);
            }
        }
    }

    /// A number of 1, 2, 4 or 8 bytes becomes an extreme one, or nearly one.
    fn set_number(&mut self, bytes: &mut [u8], at: usize) {
        let extreme = EXTREMES[self.below(EXTREMES.len())];
        let number = extreme.wrapping_add(self.next() % 3).wrapping_sub(1).to_le_bytes();
        let len = 1 << self.below(4);
        bytes.iter_mut().skip(at).zip(&number[..len]).for_each(|(byte, new)| *byte = *new);
    }

    /// Goes on as another seed does.
    fn splice(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let other = self.below(self.seeds.len());
        let from = self.below(self.seeds[other].len());
        bytes.truncate(at);
        bytes.extend_from_slice(&self.seeds[other][from..]);
    }
}

/// CRC-32C, so that what is behind a checksum is reached too.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let shift = |crc: u32| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc)))
}
