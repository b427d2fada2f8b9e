//! The kernel's table of mounts, and which of them is seen where: read as text, because looking at a mount itself may wait
//! for whoever serves it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::mounts::{FS_TYPE, unescape};

/// One line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The kernel's number for the mount.
    pub id: u64,
    /// That of the mount that it is in.
    parent: u64,
    /// The minor number of its device: of a mount of ours, the number of its connection.
    pub connection: u32,
    /// Where it is.
    pub dir: PathBuf,
    /// The file system's type.
    pub kind: String,
    /// What it shows as its source.
    pub source: String,
    /// The user who may use it.
    pub user: Option<u32>,
}

/// What is found where a mount was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The mount.
    Here,
    /// Nothing of ours: it was taken away.
    Gone,
    /// Something that was mounted over it, which shows this as its source.
    Covered(String),
}

/// The mounts as a process sees them.
#[derive(Clone, Debug, Default)]
pub struct Table {
    lines: Vec<Line>,
}

impl Table {
    /// As this process sees them.
    #[must_use]
    pub fn here() -> Table {
        Table::read(Path::new("/proc/self/mountinfo"))
    }

    /// As another process sees them; empty if that cannot be told.
    #[must_use]
    pub fn of(pid: u32) -> Table {
        Table::read(Path::new(&format!("/proc/{pid}/mountinfo")))
    }

    fn read(path: &Path) -> Table {
        Table::parse(&std::fs::read(path).unwrap_or_default())
    }

    fn parse(text: &[u8]) -> Table {
        Table { lines: text.split(|byte| *byte == b'\n').filter_map(parse_line).collect() }
    }

    /// All mounts of formations, the latest last.
    pub fn formations(&self) -> impl DoubleEndedIterator<Item = &Line> {
        self.lines.iter().filter(|line| line.kind == FS_TYPE)
    }

    /// What is mounted at exactly this place, the topmost.
    #[must_use]
    pub fn at(&self, dir: &Path) -> Option<&Line> {
        let here = |line: &&Line| line.dir == dir;
        let is_below =
            |line: &Line| self.lines.iter().any(|other| other.dir == dir && other.parent == line.id);
        self.lines.iter().filter(here).find(|line| !is_below(line))
    }

    /// What is seen where a mount with this connection was made.
    #[must_use]
    pub fn see(&self, dir: &Path, connection: u32) -> Seen {
        let is_ours = |line: &&Line| line.dir == dir && line.kind == FS_TYPE && line.connection == connection;
        let Some(ours) = self.lines.iter().find(is_ours) else { return Seen::Gone };
        self.cover(ours).map_or(Seen::Here, |cover| Seen::Covered(cover.source.clone()))
    }

    /// What hides a mount: something on it, or beside it at a directory that leads there; and the same of the one it is in.
    fn cover(&self, line: &Line) -> Option<&Line> {
        let (mut seen, mut within) = (line, line.id);
        // Each turn goes to the mount around: there are no more than lines.
        for _ in 0..self.lines.len() {
            let hides = |other: &&Line| {
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

fn parse_line(line: &[u8]) -> Option<Line> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let number = |at: usize| std::str::from_utf8(fields.get(at)?).ok()?.parse().ok();
    let device = std::str::from_utf8(fields.get(2)?).ok()?;
    let rest = fields.iter().position(|field| *field == b"-")?;
    let options = text(fields.get(rest + 3)?);
    Some(Line {
        id: number(0)?,
        parent: number(1)?,
        connection: device.split_once(':')?.1.parse().ok()?,
        dir: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
        kind: text(fields.get(rest + 1)?),
        source: text(&unescape(fields.get(rest + 2)?)),
        user: options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "20 1 8:1 / / rw - ext4 /dev/sda rw\n30 20 0:40 / /tmp rw - tmpfs tmpfs rw\n\
        40 30 0:54 / /tmp/b/m rw,nosuid shared:3 - fuse.bivouac bivouac:x rw,user_id=7,group_id=7\n";

    fn see(more: &str) -> Seen {
        Table::parse(format!("{PLAIN}{more}").as_bytes()).see(Path::new("/tmp/b/m"), 54)
    }

    /// S321.
    #[test]
    fn it_is_told_whether_a_mount_is_still_at_its_place() {
        assert_eq!(see(""), Seen::Here);
        assert_eq!(
            see("50 20 0:60 / /home rw - nfs s:/h rw\n50 40 0:61 / /tmp/b/m/in rw - tmpfs t rw\n"),
            Seen::Here
        );
        let covered = |source: &str| Seen::Covered(source.into());
        assert_eq!(see("50 40 0:60 / /tmp/b/m rw - tmpfs on-it rw\n"), covered("on-it"));
        assert_eq!(see("50 30 0:60 / /tmp/b rw - tmpfs above rw\n"), covered("above"));
        assert_eq!(see("50 30 0:60 / /tmp rw - tmpfs around rw\n"), covered("around"));
        // A directory that two mounts are on, one on the other, and ours is in the upper one.
        let twice = PLAIN.replace("40 30", "40 31") + "31 30 0:40 / /tmp rw - tmpfs tmpfs rw\n";
        assert_eq!(Table::parse(twice.as_bytes()).see(Path::new("/tmp/b/m"), 54), Seen::Here);
        let table = Table::parse(PLAIN.as_bytes());
        assert_eq!(table.see(Path::new("/tmp/b/m"), 55), Seen::Gone, "another one of the same name");
        assert_eq!(table.see(Path::new("/tmp/b"), 54), Seen::Gone);
    }

    #[test]
    fn the_topmost_is_found() {
        let both = format!("{PLAIN}50 40 0:60 / /tmp/b/m rw - tmpfs on-it rw\n");
        let at = |text: &str| Table::parse(text.as_bytes()).at(Path::new("/tmp/b/m")).map(|line| line.id);
        assert_eq!((at(PLAIN), at(&both), at("")), (Some(40), Some(50), None));
    }

    #[test]
    fn lines_are_read_and_nonsense_is_none() {
        let table = Table::parse(PLAIN.as_bytes());
        let ours: Vec<_> = table.formations().collect();
        assert_eq!((ours.len(), ours[0].connection, ours[0].user), (1, 54, Some(7)));
        for text in ["", "1 2 3 4 5 -", "a b 0:1 / / rw - ext4 x rw", "1 2 01 / / rw - ext4 x rw"] {
            assert!(Table::parse(text.as_bytes()).lines.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_table_that_goes_round_ends() {
        let round = "1 2 0:1 / /a rw - t s rw\n2 1 0:2 / /b rw - t s rw\n";
        let table = Table::parse(round.as_bytes());
        assert!(table.lines.iter().all(|line| table.cover(line).is_none()));
    }
}
