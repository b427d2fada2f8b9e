//! SHA-256 of files and their pieces.

use ring::digest::{Context, SHA256};

/// Shortest piece, in bytes.
const PIECE_MIN: u64 = 1 << 20;
/// About how many pieces a large file has.
const PIECES: u64 = 1024;

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new();
        hasher.add(bytes);
        hasher.end()
    }

    /// From 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Digest> {
        let text = text.trim().as_bytes();
        let mut bytes = [0; 32];
        if text.len() != 64 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
        }
        Some(Digest(bytes))
    }

    /// In hexadecimal.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Takes bytes one after the other.
pub struct Hasher(Context);

impl Hasher {
    /// Of nothing yet.
    pub fn new() -> Hasher {
        Hasher(Context::new(&SHA256))
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// What it came to.
    pub fn end(self) -> Digest {
        let mut digest = [0; 32];
        // A SHA-256 has as many.
        digest.iter_mut().zip(self.0.finish().as_ref()).for_each(|(to, from)| *to = *from);
        Digest(digest)
    }
}

/// Length of the pieces of a file of a size, as the servers of formations have them too.
#[must_use]
pub fn piece_len(size: u64) -> u64 {
    (size / PIECES).max(PIECE_MIN).next_multiple_of(PIECE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_and_read() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::parse(&digest.hex().to_uppercase()), Some(digest));
        for wrong in ["", "00", &"g".repeat(64), &"ä".repeat(32), &"0".repeat(65)] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn pieces_are_neither_many_nor_small() {
        assert_eq!((piece_len(0), piece_len(1 << 20), piece_len(1 << 30)), (1 << 20, 1 << 20, 1 << 20));
        assert_eq!(piece_len(5 << 30), 5 << 20);
        assert!(piece_len(u64::MAX / 2).is_multiple_of(PIECE_MIN));
    }
}
