//! Identity of an open file or directory, which a mount returns for [`IDENTIFY`]: enough to reach the same file without
//! the mount.
//!
//! ```text
//! offset 0   magic        8  "BVKfile1"
//!        8   inode        8  little-endian, as all numbers
//!       16   formation   16  its id
//!       32   wait         8  how long its clients wait for a node, in milliseconds
//!       40   length       4  of the directory's name, at most 466
//!       44   node         2  whose mount it is
//!       46   directory  466  where the formation's `map` and `secret` are; zeros behind it
//! ```

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bivouac_types::{FormationId, Ino, NodeId};

/// Bytes of an identity.
pub const IDENTITY_LEN: usize = 512;
/// Number of the ioctl that asks for it: `_IOR(0xb1, 0x76, char[512])` of Linux.
pub const IDENTIFY: u32 = 2 << 30 | (IDENTITY_LEN as u32) << 16 | 0xb1 << 8 | 0x76;

const MAGIC: [u8; 8] = *b"BVKfile1";
const DIRECTORY_AT: usize = 46;

/// A formation, for processes of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormationPlace {
    /// The formation.
    pub id: FormationId,
    /// The node whose mount says so.
    pub node: NodeId,
    /// Time that its clients wait for a node that does not answer, in milliseconds.
    pub wait_ms: u64,
    /// Directory of its files `map` and `secret`.
    pub directory: PathBuf,
}

/// A file of a formation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// The inode.
    pub ino: Ino,
    /// The formation that it is in.
    pub formation: Arc<FormationPlace>,
}

impl FileIdentity {
    /// Encodes it; `None` if the directory's name is too long.
    #[must_use]
    pub fn to_bytes(&self) -> Option<[u8; IDENTITY_LEN]> {
        let mut bytes = [0; IDENTITY_LEN];
        let directory = self.formation.directory.as_os_str().as_bytes();
        let length = u32::try_from(directory.len()).ok()?;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.ino.0.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.formation.id.0);
        bytes[32..40].copy_from_slice(&self.formation.wait_ms.to_le_bytes());
        bytes[40..44].copy_from_slice(&length.to_le_bytes());
        bytes[44..DIRECTORY_AT].copy_from_slice(&self.formation.node.0.to_le_bytes());
        bytes.get_mut(DIRECTORY_AT..DIRECTORY_AT + directory.len())?.copy_from_slice(directory);
        Some(bytes)
    }

    /// Decodes it; `None` if the bytes are no identity.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; IDENTITY_LEN]) -> Option<FileIdentity> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (ino, rest) = rest.split_first_chunk::<8>()?;
        let (id, rest) = rest.split_first_chunk::<16>()?;
        let (wait_ms, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (node, rest) = rest.split_first_chunk::<2>()?;
        let (name, behind) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let directory = Path::new(OsStr::from_bytes(name));
        let sound = *magic == MAGIC && directory.is_absolute() && behind.iter().all(|byte| *byte == 0);
        let (id, node) = (FormationId(*id), NodeId(u16::from_le_bytes(*node)));
        let (wait_ms, directory) = (u64::from_le_bytes(*wait_ms), directory.to_owned());
        let formation = Arc::new(FormationPlace { id, node, wait_ms, directory });
        (sound && !name.contains(&0)).then(|| FileIdentity { ino: Ino(u64::from_le_bytes(*ino)), formation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(directory: &str) -> FileIdentity {
        let (id, node) = (FormationId([7; 16]), NodeId(0x0908));
        let formation = FormationPlace { id, node, wait_ms: 30_000, directory: directory.into() };
        FileIdentity { ino: Ino(0x0102_0304), formation: Arc::new(formation) }
    }

    #[test]
    fn an_identity_is_what_its_bytes_say() {
        let (bytes, short) = (identity("/run/x").to_bytes().unwrap(), identity("/").to_bytes().unwrap());
        assert_eq!(&bytes[..12], b"BVKfile1\x04\x03\x02\x01");
        assert_eq!((&bytes[32..34], &bytes[40..53]), (&[0x30, 0x75][..], &b"\x06\0\0\0\x08\x09/run/x\0"[..]));
        assert_eq!(FileIdentity::from_bytes(&bytes), Some(identity("/run/x")));
        assert_eq!(FileIdentity::from_bytes(&short), Some(identity("/")));
        let longest = "/".repeat(IDENTITY_LEN - DIRECTORY_AT);
        assert_eq!(
            FileIdentity::from_bytes(&identity(&longest).to_bytes().unwrap()),
            Some(identity(&longest))
        );
        assert_eq!(identity(&(longest + "/")).to_bytes(), None);
    }

    #[test]
    fn what_is_no_identity_is_refused() {
        let bytes = identity("/run/x").to_bytes().unwrap();
        for (at, value) in [(0, b'b'), (40, 255), (43, 1), (46, b'r'), (48, 0), (60, 1), (511, 1)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(FileIdentity::from_bytes(&wrong), None, "byte {at}");
        }
        assert_eq!(FileIdentity::from_bytes(&[0; IDENTITY_LEN]), None);
        assert_eq!(FileIdentity::from_bytes(&[255; IDENTITY_LEN]), None);
    }
}
