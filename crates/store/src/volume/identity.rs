//! The identity file: whose volume a directory is. Byte by byte in docs/format.md.

use bivouac_types::{FormationId, NodeId};

use crate::crc::crc32c;

/// Name of the identity file in a volume's directory.
pub const IDENTITY_NAME: &str = "bivouac-volume";

pub(super) const IDENTITY_LEN: usize = 64;
/// First version in which a volume has a table of its subfiles.
pub(super) const VERSION: u16 = 2;

const MAGIC: &[u8; 8] = b"BVKVOLUM";
const CRC_AT: usize = IDENTITY_LEN - 4;

/// Identity of the volume in a directory.
///
/// ```text
///  0        8         10         12     14     16          32        60    64
/// ┌────────┬─────────┬──────────┬──────┬──────┬───────────┬─────────┬─────┐
/// │ magic  │ version │ position │ node │ 0    │ formation │ 0       │ crc │
/// │ 8      │ 2       │ 2        │ 2    │ 2    │ 16        │ 28      │ 4   │
/// └────────┴─────────┴──────────┴──────┴──────┴───────────┴─────────┴─────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// The formation.
    pub formation: FormationId,
    /// The node that lends it.
    pub node: NodeId,
    /// Its position among the node's volumes.
    pub index: u16,
}

/// Reason why an identity cannot be used by this release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdentityError {
    Damaged(&'static str),
    Newer(u16),
}

impl VolumeIdentity {
    pub(super) fn to_bytes(self) -> [u8; IDENTITY_LEN] {
        let mut out = [0u8; IDENTITY_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10..12].copy_from_slice(&self.index.to_le_bytes());
        out[12..14].copy_from_slice(&self.node.0.to_le_bytes());
        out[16..32].copy_from_slice(&self.formation.0);
        let crc = crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Returns the version of the format in an identity that is sound.
    pub(super) fn version_of(bytes: &[u8]) -> u16 {
        bytes.get(8..10).map_or(0, |half| u16::from_le_bytes([half[0], half[1]]))
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<VolumeIdentity, IdentityError> {
        let short = IdentityError::Damaged("shorter than it should be");
        let (bytes, _) = bytes.split_first_chunk::<IDENTITY_LEN>().ok_or(short)?;
        if !bytes.starts_with(MAGIC) {
            return Err(IdentityError::Damaged("wrong first bytes"));
        }
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if half(8) > VERSION {
            return Err(IdentityError::Newer(half(8)));
        }
        if bytes[CRC_AT..] != crc32c(&bytes[..CRC_AT]).to_le_bytes() {
            return Err(IdentityError::Damaged("wrong checksum"));
        }
        let mut formation = [0u8; 16];
        formation.copy_from_slice(&bytes[16..32]);
        Ok(VolumeIdentity { formation: FormationId(formation), node: NodeId(half(12)), index: half(10) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: VolumeIdentity = VolumeIdentity {
        formation: FormationId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        node: NodeId(2),
        index: 1,
    };

    #[test]
    fn the_worked_example_of_the_format_document() {
        let bytes = SAMPLE.to_bytes();
        assert_eq!(&bytes[..16], b"BVKVOLUM\x02\x00\x01\x00\x02\x00\x00\x00");
        assert_eq!(bytes[16..32], SAMPLE.formation.0);
        assert!(bytes[32..CRC_AT].iter().all(|byte| *byte == 0));
        assert_eq!(VolumeIdentity::from_bytes(&bytes), Ok(SAMPLE));
    }

    #[test]
    fn any_damage_is_noticed() {
        for at in 0..IDENTITY_LEN {
            let mut bytes = SAMPLE.to_bytes();
            bytes[at] ^= 0x10;
            assert!(VolumeIdentity::from_bytes(&bytes).is_err(), "byte {at}");
            assert!(VolumeIdentity::from_bytes(&bytes[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn a_newer_version_is_named_whatever_follows() {
        let mut bytes = SAMPLE.to_bytes();
        bytes[8] = 9;
        assert_eq!(VolumeIdentity::from_bytes(&bytes), Err(IdentityError::Newer(9)));
    }
}
