//! The kernel's table of mounts, and which of them is seen where: read as text, because looking at a mount itself may
//! wait for whoever serves it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use bivouac_types::mount_table::{FORMATION_FS_TYPE, MountLine, mount_lines, unescape};

/// A mount of any file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The kernel's number for the mount.
    pub id: u64,
    /// Number of the mount that it is in.
    pub parent: u64,
    /// The minor number of its device, which its files show: of a mount of ours, the number of its connection.
    pub connection: u32,
    /// Its location.
    pub dir: PathBuf,
    /// The file system's type.
    pub kind: String,
    /// Its source, as shown; see `mounts::source_of`.
    pub source: String,
    /// The user who may use it.
    pub user: Option<u32>,
}

/// State of a place where a mount was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountPresence {
    /// The mount.
    Here,
    /// Not one of ours: it was unmounted.
    Gone,
    /// Something that was mounted over it, which shows this as its source.
    Covered(String),
}

/// The mounts as a process sees them.
#[derive(Clone, Debug, Default)]
pub struct Table {
    lines: Vec<MountEntry>,
}

impl Table {
    /// Returns the mounts that this process sees.
    #[must_use]
    pub fn here() -> Table {
        Table::read(Path::new("/proc/self/mountinfo"))
    }

    /// Returns the mounts that another process sees; empty if that is unknown.
    #[must_use]
    pub fn of(pid: u32) -> Table {
        Table::read(Path::new(&format!("/proc/{pid}/mountinfo")))
    }

    fn read(path: &Path) -> Table {
        Table::parse(&std::fs::read(path).unwrap_or_default())
    }

    pub(crate) fn parse(text: &[u8]) -> Table {
        Table { lines: mount_lines(text).map(entry).collect() }
    }

    /// Returns all mounts of formations, the latest last.
    pub fn formations(&self) -> impl DoubleEndedIterator<Item = &MountEntry> {
        self.lines.iter().filter(|line| line.kind == FORMATION_FS_TYPE)
    }

    /// Returns the topmost mount at exactly this place.
    #[must_use]
    pub fn at(&self, dir: &Path) -> Option<&MountEntry> {
        let here = |line: &&MountEntry| line.dir == dir;
        let is_below =
            |line: &MountEntry| self.lines.iter().any(|other| other.dir == dir && other.parent == line.id);
        self.lines.iter().filter(here).find(|line| !is_below(line))
    }

    /// Returns the state of a place where a mount with this connection was made.
    #[must_use]
    pub fn see(&self, dir: &Path, connection: u32) -> MountPresence {
        let is_ours = |line: &&MountEntry| {
            line.dir == dir && line.kind == FORMATION_FS_TYPE && line.connection == connection
        };
        let Some(ours) = self.lines.iter().find(is_ours) else { return MountPresence::Gone };
        self.cover(ours).map_or(MountPresence::Here, |cover| MountPresence::Covered(cover.source.clone()))
    }

    /// Returns the mount that hides another one: on it, or beside it at a directory that leads there; and the same of
    /// the one it is in.
    fn cover(&self, line: &MountEntry) -> Option<&MountEntry> {
        let (mut seen, mut within) = (line, line.id);
        // Each turn goes to the mount around: there are no more than lines.
        for _ in 0..self.lines.len() {
            let hides = |other: &&MountEntry| {
                let on_it = other.parent == seen.id && other.dir == seen.dir;
                let before_it =
                    other.parent == seen.parent && other.id != seen.id && seen.dir.starts_with(&other.dir);
                // What is on the root directory is not seen by whoever had that before; and what is on a mount and has
                // this one in it does not hide it.
                other.dir != Path::new("/") && other.id != within && (on_it || before_it)
            };
            if let Some(cover) = self.lines.iter().find(hides) {
                return Some(cover);
            }
            within = seen.id;
            seen = self.lines.iter().find(|around| around.id == seen.parent && around.id != seen.id)?;
        }
        None
    }
}

fn entry(line: MountLine<'_>) -> MountEntry {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let user = |option: &[u8]| std::str::from_utf8(option.strip_prefix(b"user_id=")?).ok()?.parse().ok();
    MountEntry {
        id: line.id,
        parent: line.parent,
        connection: line.device.1,
        dir: PathBuf::from(OsString::from_vec(unescape(line.dir))),
        kind: text(line.fs_type),
        source: text(&unescape(line.source)),
        user: line.fs_options.split(|byte| *byte == b',').find_map(user),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "20 1 8:1 / / rw - ext4 /dev/sda rw\n30 20 0:40 / /tmp rw - tmpfs tmpfs rw\n\
        40 30 0:54 / /tmp/b/m rw,nosuid shared:3 - fuse.bivouac bivouac:x rw,user_id=7,group_id=7\n";

    fn see(more: &str) -> MountPresence {
        Table::parse(format!("{PLAIN}{more}").as_bytes()).see(Path::new("/tmp/b/m"), 54)
    }

    /// S321.
    #[test]
    fn it_is_told_whether_a_mount_is_still_at_its_place() {
        assert_eq!(see(""), MountPresence::Here);
        assert_eq!(
            see("50 20 0:60 / /home rw - nfs s:/h rw\n50 40 0:61 / /tmp/b/m/in rw - tmpfs t rw\n"),
            MountPresence::Here
        );
        let covered = |source: &str| MountPresence::Covered(source.into());
        assert_eq!(see("50 40 0:60 / /tmp/b/m rw - tmpfs on-it rw\n"), covered("on-it"));
        assert_eq!(see("50 30 0:60 / /tmp/b rw - tmpfs above rw\n"), covered("above"));
        assert_eq!(see("50 30 0:60 / /tmp rw - tmpfs around rw\n"), covered("around"));
        // A directory that two mounts are on, one on the other, and ours is in the upper one.
        let twice = PLAIN.replace("40 30", "40 31") + "31 30 0:40 / /tmp rw - tmpfs tmpfs rw\n";
        assert_eq!(Table::parse(twice.as_bytes()).see(Path::new("/tmp/b/m"), 54), MountPresence::Here);
        let table = Table::parse(PLAIN.as_bytes());
        assert_eq!(table.see(Path::new("/tmp/b/m"), 55), MountPresence::Gone, "another one of the same name");
        assert_eq!(table.see(Path::new("/tmp/b"), 54), MountPresence::Gone);
    }

    #[test]
    fn the_topmost_is_found() {
        let both = format!("{PLAIN}50 40 0:60 / /tmp/b/m rw - tmpfs on-it rw\n");
        let at = |text: &str| Table::parse(text.as_bytes()).at(Path::new("/tmp/b/m")).map(|line| line.id);
        assert_eq!((at(PLAIN), at(&both), at("")), (Some(40), Some(50), None));
    }

    #[test]
    fn mounts_of_formations_are_listed() {
        let table = Table::parse(PLAIN.as_bytes());
        let ours: Vec<_> = table.formations().collect();
        assert_eq!((ours.len(), ours[0].connection, ours[0].user), (1, 54, Some(7)));
    }

    #[test]
    fn a_table_that_goes_round_ends() {
        let round = "1 2 0:1 / /a rw - t s rw\n2 1 0:2 / /b rw - t s rw\n";
        let table = Table::parse(round.as_bytes());
        assert!(table.lines.iter().all(|line| table.cover(line).is_none()));
    }
}
