//! One line of a manifest: an object, what is known of it, and what became of it. The format is in docs/format.md.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use blake3::Hash;

use crate::baseline::Baseline;
use crate::meta::{Mark, Stamp, Time};

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is at the target, complete.
    Done,
    /// It is not, for the reason that the line names.
    Failed,
    /// It, or an attribute of it, cannot be at the target.
    Skipped,
    /// It was copied in and is not there any more. Nothing was removed at the target.
    Deleted,
}

/// What an object is.
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
    /// Not known: it could not be looked at.
    Unknown,
}

const STATES: [(State, &str); 4] = [
    (State::Done, "done"),
    (State::Failed, "failed"),
    (State::Skipped, "skipped"),
    (State::Deleted, "deleted"),
];
const KINDS: [(LineKind, &str); 6] = [
    (LineKind::Dir, "d"),
    (LineKind::File, "f"),
    (LineKind::HardLink, "h"),
    (LineKind::Symlink, "l"),
    (LineKind::Fifo, "p"),
    (LineKind::Unknown, "-"),
];

/// What a manifest says of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What became of it.
    pub state: State,
    /// What it is.
    pub kind: LineKind,
    /// Permission bits at the source.
    pub mode: u32,
    /// Owner and group at the source.
    pub owner: (u32, u32),
    /// Size, in bytes.
    pub size: u64,
    /// Modification time at the source.
    pub mtime: Time,
    /// BLAKE3 of a file's bytes.
    pub digest: Option<Hash>,
    /// Number and last change at the source.
    pub source: Option<Mark>,
    /// Number and last change at the target.
    pub target: Option<Mark>,
    /// Path below the target; empty for the target itself.
    pub name: PathBuf,
    /// Where a link leads, the first name of a further one, or why it is not done.
    pub more: PathBuf,
}

impl Line {
    /// Of an object of which only a name is known.
    pub(crate) fn said(state: State, name: &Path, more: &str) -> Line {
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

    /// Of an object as it was at the source.
    pub(crate) fn of(kind: LineKind, stamp: &Stamp, name: &Path) -> Line {
        Line {
            kind,
            mode: stamp.attrs.mode,
            owner: (stamp.attrs.uid, stamp.attrs.gid),
            size: stamp.size,
            mtime: stamp.attrs.mtime,
            source: Some(stamp.mark),
            ..Line::said(State::Done, name, "")
        }
    }

    /// Whether the bytes at the source are not those that are known of it as it is.
    pub(crate) fn is_altered(&self, known: &Baseline) -> bool {
        let expected = self.source.and_then(|mark| known.digest(mark));
        expected.is_some_and(|expected| self.digest != Some(expected))
    }

    /// The line, with its end.
    #[must_use]
    pub fn encode(&self) -> String {
        let digest = self.digest.map_or_else(|| "-".to_owned(), |digest| digest.to_hex().to_string());
        let mark = |mark: Option<Mark>| mark.map_or_else(|| "-".to_owned(), |mark| mark.to_string());
        let (uid, gid) = self.owner;
        let name = if self.name.as_os_str().is_empty() { ".".to_owned() } else { escape(&self.name) };
        format!(
            "{}\t{}\t{:04o}\t{uid}:{gid}\t{}\t{}\t{digest}\t{}\t{}\t{name}\t{}\n",
            word(&STATES, self.state),
            word(&KINDS, self.kind),
            self.mode,
            self.size,
            time(self.mtime),
            mark(self.source),
            mark(self.target),
            escape(&self.more),
        )
    }

    /// What a line, without its end, says; `None` if it is none.
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
            source: optional(next()?, Mark::parse)?,
            target: optional(next()?, Mark::parse)?,
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

/// `-` is nothing; `None` if it is neither that nor what it should be.
fn optional<T>(text: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    if text == "-" { Some(None) } else { parse(text).map(Some) }
}

/// Seconds with nine decimals. The decimals count from the second below, also before 1970, as in `struct timespec`.
pub(crate) fn time((secs, nanos): Time) -> String {
    format!("{secs}.{nanos:09}")
}

pub(crate) fn parse_time(text: &str) -> Option<Time> {
    let (secs, nanos) = text.split_once('.')?;
    let nanos =
        (nanos.len() == 9).then(|| nanos.parse().ok())?.filter(|nanos| (0..1_000_000_000).contains(nanos))?;
    Some((secs.parse().ok()?, nanos))
}

/// A name as text without tabs, line ends and what is no UTF-8: `\t`, `\n`, `\\`, `\xHH`, as `printf %b` has them.
#[must_use]
pub fn escape(name: &Path) -> String {
    let mut text = String::new();
    for chunk in name.as_os_str().as_bytes().utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                char if char.is_ascii_control() => text.push_str(&format!("\\x{:02x}", u32::from(char))),
                char => text.push(char),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

pub(crate) fn unescape(text: &str) -> Option<PathBuf> {
    let mut name = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let (byte, used) = match (first, tail) {
            (b'\\', [b'\\', ..]) => (b'\\', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'x', high, low, ..]) => (hex(*high)? << 4 | hex(*low)?, 4),
            (b'\\', _) => return None,
            (byte, _) => (*byte, 1),
        };
        name.push(byte);
        rest = rest.get(used..)?;
    }
    Some(PathBuf::from(OsString::from_vec(name)))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsStr;

    fn line() -> Line {
        Line {
            state: State::Done,
            kind: LineKind::File,
            mode: 0o644,
            owner: (1000, 100),
            size: 5,
            mtime: (-4, 7),
            digest: Some(blake3::hash(b"12345")),
            source: Some(Mark { ino: 12, ctime: (3, 4) }),
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
