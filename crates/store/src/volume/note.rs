//! Notes of the formation on a volume, besides the identity: texts whose meaning is that of whoever
//! brings formations up. The note is there for the time when nothing else is left of the formation; the lives tell a
//! volume that was put back from an older copy.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Name of the note.
pub const NOTE_NAME: &str = "bivouac-formation";
/// The same while it is written.
pub(super) const NOTE_UNFINISHED_NAME: &str = "bivouac-formation.tmp";
/// Most bytes of a note: a formation of a thousand nodes takes half a mebibyte.
pub const NOTE_LEN_MAX: u64 = 16 << 20;
/// Name of what says in which lives of its formation a volume was there.
pub const LIVES_NAME: &str = "bivouac-lives";
/// The same while it is written.
pub(super) const LIVES_UNFINISHED_NAME: &str = "bivouac-lives.tmp";

/// Name of what a mirror must not forget.
pub(crate) const MIRROR_NOTE_NAME: &str = "bivouac-mirror";
/// The same while it is written.
pub(crate) const MIRROR_NOTE_UNFINISHED_NAME: &str = "bivouac-mirror.tmp";

/// Prefix of the directories of replicas in a volume of their backup.
pub const REPLICA_DIR_PREFIX: &str = "replica-";

/// Writes a volume's note, whole or not at all, and makes it outlive the host.
///
/// # Errors
/// The system's.
pub fn write_note(volume: &Path, text: &[u8]) -> io::Result<()> {
    write_text(volume, (NOTE_NAME, NOTE_UNFINISHED_NAME), text)
}

/// Writes in which lives a volume was there, as [`write_note`] writes the note.
///
/// # Errors
/// The system's.
pub fn write_lives(volume: &Path, text: &[u8]) -> io::Result<()> {
    write_text(volume, (LIVES_NAME, LIVES_UNFINISHED_NAME), text)
}

/// Writes a text under a name, whole or not at all, and makes it outlive the host.
pub(crate) fn write_text(volume: &Path, (name, unfinished): (&str, &str), text: &[u8]) -> io::Result<()> {
    let unfinished = volume.join(unfinished);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let mut file = options.open(&unfinished)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&unfinished, volume.join(name))?;
    // The content is synced before the name and the name after it: a host that fails leaves the old text or the new
    // one.
    File::open(volume)?.sync_all()
}

/// Returns a volume's note; `None` if it has none.
///
/// # Errors
/// The system's; `InvalidData` for one that is longer than any.
pub fn read_note(volume: &Path) -> io::Result<Option<Vec<u8>>> {
    read_text(volume, NOTE_NAME)
}

/// Returns the lives of its formation in which a volume took part; `None` if it does not say.
///
/// # Errors
/// As [`read_note`].
pub fn read_lives(volume: &Path) -> io::Result<Option<Vec<u8>>> {
    read_text(volume, LIVES_NAME)
}

/// Returns the text under a name; `None` if there is none.
pub(crate) fn read_text(volume: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut options = OpenOptions::new();
    // What is no file must not hold anybody up.
    options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = match options.open(volume.join(name)) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = Vec::new();
    file.take(NOTE_LEN_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > NOTE_LEN_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DirVolume, VolumeIdentity, identity_of, remove_volume};
    use bivouac_types::{FormationId, NodeId};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_note_is_for_its_user_and_goes_with_the_volume() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("v");
        let formation = FormationId([7; 16]);
        let identity = VolumeIdentity { formation, node: NodeId(1), index: 2 };
        assert_eq!(identity_of(&dir).unwrap(), None);
        assert_eq!(read_note(&dir).unwrap(), None);
        drop(DirVolume::open(&dir, identity, true).unwrap());
        assert_eq!(identity_of(&dir).unwrap(), Some(identity));
        assert_eq!(read_note(&dir).unwrap(), None);
        write_note(&dir, b"one").unwrap();
        write_note(&dir, b"two").unwrap();
        assert_eq!(read_note(&dir).unwrap().unwrap(), b"two");
        assert_eq!(dir.join(NOTE_NAME).metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_lives(&dir).unwrap(), None);
        write_lives(&dir, b"lives").unwrap();
        assert_eq!(read_lives(&dir).unwrap().unwrap(), b"lives");
        assert_eq!(read_note(&dir).unwrap().unwrap(), b"two");
        std::fs::write(dir.join(NOTE_UNFINISHED_NAME), "x").unwrap();
        std::fs::write(dir.join(LIVES_UNFINISHED_NAME), "x").unwrap();
        drop(DirVolume::open(&dir, identity, true).unwrap());
        remove_volume(&dir, formation, true).unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn what_is_no_note_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join(NOTE_NAME)).unwrap();
        assert!(read_note(dir.path()).is_err());
        std::fs::remove_file(dir.path().join(NOTE_NAME)).unwrap();
        std::fs::create_dir(dir.path().join(NOTE_NAME)).unwrap();
        assert!(read_note(dir.path()).is_err());
        std::fs::remove_dir(dir.path().join(NOTE_NAME)).unwrap();
        File::create(dir.path().join(NOTE_NAME)).unwrap().set_len(NOTE_LEN_MAX + 1).unwrap();
        assert_eq!(read_note(dir.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
