//! The note of a mirror on a volume: what a primary or a backup must not forget. Lines of text; docs/format.md.

use std::fmt::Write;
use std::io;
use std::path::Path;

use bivouac_mirror::ReplicaEpoch;
use bivouac_types::NodeId;

use crate::volume::{MIRROR_NOTE_NAME, MIRROR_NOTE_UNFINISHED_NAME, read_text, write_text};

const HEAD: &str = "bivouac-mirror 1";

/// Role of a volume's directory in a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorRole {
    /// Mirrored to a backup; without one while its node goes on alone.
    Primary {
        /// The node that keeps the replicas.
        backup: Option<NodeId>,
        /// The mirror epoch.
        epoch: u32,
        /// True if changes were made before there was a session with the backup.
        has_unsent: bool,
    },
    /// A replica.
    Replica {
        /// The primary whose changes it takes.
        epoch: ReplicaEpoch,
        /// Number of the primary's volumes.
        volumes: u16,
        /// Length of a lease of the primary, in milliseconds.
        lease_ms: u32,
    },
}

/// The note of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorNote {
    /// Role of the volume.
    pub role: MirrorRole,
    /// The run of the system on which it was written: what was not synced is lost with that, except in memory, which is
    /// lost as a whole.
    pub boot: String,
}

impl MirrorNote {
    /// Creates a note that is written now.
    #[must_use]
    pub fn new(role: MirrorRole) -> MirrorNote {
        MirrorNote { role, boot: boot_id() }
    }

    /// Returns whether the system has been started anew since it was written.
    #[must_use]
    pub fn is_of_earlier_boot(&self) -> bool {
        // Where it cannot be told, what was not synced is taken for lost.
        self.boot.is_empty() || self.boot != boot_id()
    }

    fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name} {value}");
        };
        line("boot", &self.boot);
        match &self.role {
            MirrorRole::Primary { backup, epoch, has_unsent } => {
                line("role", &"primary");
                line("epoch", epoch);
                line("unsent", has_unsent);
                match backup {
                    Some(backup) => line("backup", &backup.0),
                    None => line("backup", &"none"),
                }
            }
            MirrorRole::Replica { epoch, volumes, lease_ms } => {
                line("role", &"replica");
                line("epoch", &epoch.epoch);
                line("session", &epoch.session);
                line("complete", &epoch.is_complete);
                line("sealed", &epoch.is_sealed);
                line("volumes", volumes);
                line("lease-ms", lease_ms);
            }
        }
        text
    }

    fn parse(text: &str) -> Option<MirrorNote> {
        let mut lines = text.lines();
        lines.next().filter(|head| *head == HEAD)?;
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned);
        let boot = value("boot")?;
        let role = match value("role")?.as_str() {
            "primary" => {
                let epoch = value("epoch")?.parse().ok()?;
                let has_unsent = value("unsent")?.parse().ok()?;
                let backup = match value("backup")?.as_str() {
                    "none" => None,
                    number => Some(NodeId(number.parse().ok()?)),
                };
                MirrorRole::Primary { backup, epoch, has_unsent }
            }
            "replica" => {
                let epoch = ReplicaEpoch {
                    epoch: value("epoch")?.parse().ok()?,
                    session: value("session")?.parse().ok()?,
                    is_complete: value("complete")?.parse().ok()?,
                    is_sealed: value("sealed")?.parse().ok()?,
                };
                let (volumes, lease_ms) = (value("volumes")?.parse().ok()?, value("lease-ms")?.parse().ok()?);
                MirrorRole::Replica { epoch, volumes, lease_ms }
            }
            _ => return None,
        };
        lines.next().is_none().then_some(MirrorNote { role, boot })
    }
}

/// Returns the mirror's note of a volume; `None` if it has none.
///
/// # Errors
/// The system's; `InvalidData` for one that is damaged.
pub fn read_mirror_note(volume: &Path) -> io::Result<Option<MirrorNote>> {
    let Some(text) = read_text(volume, MIRROR_NOTE_NAME)? else { return Ok(None) };
    let note = std::str::from_utf8(&text).ok().and_then(MirrorNote::parse);
    let damaged = || {
        let path = volume.join(MIRROR_NOTE_NAME);
        let text = format!("{}: damaged, so nobody knows whose changes are on the volume", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    note.map(Some).ok_or_else(damaged)
}

/// Writes the mirror's note of a volume, whole or not at all, and makes it outlive the host.
///
/// # Errors
/// The system's.
pub fn write_mirror_note(volume: &Path, note: &MirrorNote) -> io::Result<()> {
    write_text(volume, (MIRROR_NOTE_NAME, MIRROR_NOTE_UNFINISHED_NAME), note.to_text().as_bytes())
}

/// Returns the run of the system; empty where it is not known.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_mirror_note(dir.path()).unwrap(), None);
        let epoch = ReplicaEpoch { epoch: 3, session: 9, is_complete: true, is_sealed: false };
        let roles = [
            MirrorRole::Primary { backup: None, epoch: 1, has_unsent: false },
            MirrorRole::Primary { backup: Some(NodeId(7)), epoch: 2, has_unsent: true },
            MirrorRole::Replica { epoch, volumes: 2, lease_ms: 500 },
        ];
        for role in roles {
            let note = MirrorNote::new(role);
            write_mirror_note(dir.path(), &note).unwrap();
            assert_eq!(read_mirror_note(dir.path()).unwrap(), Some(note.clone()));
            assert!(!note.is_of_earlier_boot());
        }
    }

    #[test]
    fn a_damaged_note_is_refused() {
        let text =
            MirrorNote::new(MirrorRole::Primary { backup: None, epoch: 1, has_unsent: false }).to_text();
        for end in 0..text.len() - 1 {
            assert_eq!(MirrorNote::parse(&text[..end]), None, "{end}");
        }
        assert_eq!(MirrorNote::parse(&format!("{text}more\n")), None);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(MIRROR_NOTE_NAME), "x").unwrap();
        let error = read_mirror_note(dir.path()).unwrap_err().to_string();
        assert!(error.contains("bivouac-mirror: damaged"), "{error}");
    }
}
