//! A line of a manifest: an object, its metadata and its outcome. The format is in docs/format.md.

use std::path::{Path, PathBuf};

use blake3::Hash;

use crate::escape::{escape, unescape};
use crate::meta::{InodeVersion, MetadataStamp, UnixTime, format_time, parse_time};

/// Outcome of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectOutcome {
    /// It is complete at the target.
    Done,
    /// It is not at the target; the line has the reason.
    Failed,
    /// The target cannot represent it or an attribute of it.
    Skipped,
    /// It was staged in and no longer exists. Nothing is removed at the target.
    Deleted,
}

/// Type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// A directory.
    Dir,
    /// A file.
    File,
    /// A further name of a file.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// Unknown: it could not be examined.
    Unknown,
}

const STATES: [(ObjectOutcome, &str); 4] = [
    (ObjectOutcome::Done, "done"),
    (ObjectOutcome::Failed, "failed"),
    (ObjectOutcome::Skipped, "skipped"),
    (ObjectOutcome::Deleted, "deleted"),
];
const KINDS: [(LineKind, &str); 6] = [
    (LineKind::Dir, "d"),
    (LineKind::File, "f"),
    (LineKind::HardLink, "h"),
    (LineKind::Symlink, "l"),
    (LineKind::Fifo, "p"),
    (LineKind::Unknown, "-"),
];

/// The manifest line of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Outcome.
    pub state: ObjectOutcome,
    /// Type.
    pub kind: LineKind,
    /// Permission bits at the source.
    pub mode: u32,
    /// Owner and group at the source.
    pub owner: (u32, u32),
    /// Size, in bytes.
    pub size: u64,
    /// Modification time at the source.
    pub mtime: UnixTime,
    /// BLAKE3 of a file's bytes.
    pub digest: Option<Hash>,
    /// Inode number and last change at the source.
    pub source: Option<InodeVersion>,
    /// Inode number and last change at the target.
    pub target: Option<InodeVersion>,
    /// Path below the target; empty for the target itself.
    pub name: PathBuf,
    /// Target of a link, first name of a hard link, or reason of a failure.
    pub more: PathBuf,
}

impl Line {
    /// Creates the line of an object of which only the name is known.
    pub(crate) fn outcome_only(state: ObjectOutcome, name: &Path, more: &str) -> Line {
        Line {
            state,
            kind: LineKind::Unknown,
            mode: 0,
            owner: (0, 0),
            size: 0,
            mtime: (0, 0),
            digest: None,
            source: None,
            target: None,
            name: name.to_owned(),
            more: PathBuf::from(more),
        }
    }

    /// Creates the line of an object with its metadata at the source.
    pub(crate) fn of(kind: LineKind, stamp: &MetadataStamp, name: &Path) -> Line {
        Line {
            kind,
            mode: stamp.attrs.mode,
            owner: (stamp.attrs.uid, stamp.attrs.gid),
            size: stamp.size,
            mtime: stamp.attrs.mtime,
            source: Some(stamp.version),
            ..Line::outcome_only(ObjectOutcome::Done, name, "")
        }
    }

    /// Formats the line, with its line end.
    #[must_use]
    pub fn encode(&self) -> String {
        let digest = self.digest.map_or_else(|| "-".to_owned(), |digest| digest.to_hex().to_string());
        let version = |version: Option<InodeVersion>| {
            version.map_or_else(|| "-".to_owned(), |version| version.to_string())
        };
        let (uid, gid) = self.owner;
        let name = if self.name.as_os_str().is_empty() { ".".to_owned() } else { escape(&self.name) };
        let line = format!(
            "{}\t{}\t{:04o}\t{uid}:{gid}\t{}\t{}\t{digest}\t{}\t{}\t{name}\t{}\n",
            word(&STATES, self.state),
            word(&KINDS, self.kind),
            self.mode,
            self.size,
            format_time(self.mtime),
            version(self.source),
            version(self.target),
            escape(&self.more),
        );
        // The last field included: an unescaped separator would shift the fields of this line.
        assert_eq!(line.matches('\t').count(), 10, "a manifest line has a wrong number of fields");
        line
    }

    /// Parses a line without its line end; `None` if it is malformed.
    #[must_use]
    pub fn decode(text: &str) -> Option<Line> {
        let mut fields = text.split('\t');
        let mut next = || fields.next();
        let line = Line {
            state: meaning(&STATES, next()?)?,
            kind: meaning(&KINDS, next()?)?,
            mode: u32::from_str_radix(next()?, 8).ok()?,
            owner: next()?
                .split_once(':')
                .and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)))?,
            size: next()?.parse().ok()?,
            mtime: parse_time(next()?)?,
            digest: optional(next()?, |text| Hash::from_hex(text).ok())?,
            source: optional(next()?, InodeVersion::parse)?,
            target: optional(next()?, InodeVersion::parse)?,
            name: match next()? {
                "." => PathBuf::new(),
                name => unescape(name)?,
            },
            more: unescape(next()?)?,
        };
        fields.next().is_none().then_some(line)
    }
}

fn word<T: PartialEq>(words: &[(T, &'static str)], of: T) -> &'static str {
    words.iter().find(|(meaning, _)| *meaning == of).map_or("-", |(_, word)| word)
}

fn meaning<T: Copy>(words: &[(T, &'static str)], text: &str) -> Option<T> {
    words.iter().find(|(_, word)| *word == text).map(|(meaning, _)| *meaning)
}

/// Parses an optional value: `-` is nothing; `None` if it is neither that nor what it should be.
fn optional<T>(text: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    if text == "-" { Some(None) } else { parse(text).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    fn line() -> Line {
        Line {
            state: ObjectOutcome::Done,
            kind: LineKind::File,
            mode: 0o644,
            owner: (1000, 100),
            size: 5,
            mtime: (-4, 7),
            digest: Some(blake3::hash(b"12345")),
            source: Some(InodeVersion { ino: 12, ctime: (3, 4) }),
            target: None,
            name: OsStr::from_bytes(b"d/a b\t\n\\\xff").into(),
            more: PathBuf::new(),
        }
    }

    #[test]
    fn a_line_as_the_format_has_it() {
        let text = line().encode();
        let expected = "done\tf\t0644\t1000:100\t5\t-4.000000007\t\
            22fdbac3b4d6f0e9d6b2c4bdcbc0a1a6\t12@3.000000004\t-\td/a b\\t\\n\\\\\\xff\t\n";
        let with_digest =
            expected.replace("22fdbac3b4d6f0e9d6b2c4bdcbc0a1a6", blake3::hash(b"12345").to_hex().as_str());
        assert_eq!(text, with_digest);
        assert_eq!(Line::decode(text.trim_end_matches('\n')), Some(line()));
        let root = Line { name: PathBuf::new(), ..line() };
        assert_eq!(Line::decode(root.encode().trim_end_matches('\n')), Some(root));
    }

    #[test]
    fn half_a_line_is_none() {
        let text = line().encode();
        for cut in 0..text.len() - 2 {
            assert_eq!(Line::decode(&text[..cut]), None, "{cut}");
        }
        assert_eq!(Line::decode(&text.replace('\n', "\tmore")), None);
    }

    proptest! {
        #[test]
        fn any_name_comes_back(name: Vec<u8>, more: Vec<u8>, size: u64) {
            let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
            prop_assume!(name != b".");
            let line = Line { name: path(name), more: path(more), size, ..line() };
            let text = line.encode();
            prop_assert_eq!(text.matches('\n').count(), 1);
            prop_assert_eq!(Line::decode(text.trim_end_matches('\n')), Some(line));
        }

        #[test]
        fn any_text_is_a_line_or_none(text: String) {
            let _no_panic = (Line::decode(&text), unescape(&text), parse_time(&text));
        }
    }
}
