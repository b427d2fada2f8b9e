//! The one checksum of everything on a volume.

use crc_fast::{CrcAlgorithm, checksum};

/// Returns the CRC-32C (Castagnoli), as in docs/format.md.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_published_check_value() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
    }
}
