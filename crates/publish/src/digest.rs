//! SHA-256 of files and their pieces.

use bivouac_types::hex::{from_hex, to_hex};
use ring::digest::{Context, SHA256};

/// Shortest piece, in bytes.
const PIECE_MIN: u64 = 1 << 20;
/// About how many pieces a large file has.
const PIECES: u64 = 1024;

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Returns the digest of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new();
        hasher.add(bytes);
        hasher.end()
    }

    /// Parses 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Digest> {
        from_hex(&text.trim().to_ascii_lowercase())?.try_into().ok().map(Digest)
    }

    /// Returns the digest in hexadecimal.
    #[must_use]
    pub fn hex(&self) -> String {
        to_hex(&self.0)
    }
}

/// Takes bytes one after the other.
pub struct Hasher(Context);

impl Hasher {
    /// Creates an empty hasher.
    pub fn new() -> Hasher {
        Hasher(Context::new(&SHA256))
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest.
    pub fn end(self) -> Digest {
        let (mut digest, finished) = ([0; 32], self.0.finish());
        assert_eq!(finished.as_ref().len(), digest.len(), "a SHA-256 has 32 bytes");
        digest.copy_from_slice(finished.as_ref());
        Digest(digest)
    }
}

/// Returns the length of the pieces of a file of a size, as the servers of formations have them too.
#[must_use]
pub fn piece_len(size: u64) -> u64 {
    let len = (size / PIECES).max(PIECE_MIN).next_multiple_of(PIECE_MIN);
    // One more for what the division leaves.
    assert!(size.div_ceil(len) <= PIECES + 1, "{size} bytes are more than {PIECES} pieces of {len}");
    len
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
