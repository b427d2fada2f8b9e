//! The journal of a copy: complete objects, from which an interrupted copy is resumed or undone.
//!
//! Lines are appended in one write each time; what a kill cut off has no end and counts as not written. Besides the
//! lines of the manifest there are, with `#` in front: `transfer N` (what follows belongs to it), `scan FILES BYTES`,
//! `mount PATH`, `above PATH`, `dir PATH` (temporary files may be in it), `made PATH` (the directory is ours), `part …`
//! (a piece of a large file), `gone PATH` (the pieces of a file that are not there any more), `copied FILES BYTES`
//! (instead of their lines) and `end WORD`.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::blocks::{BLOCK, BlockHash, PART};
use crate::escape::{escape, unescape};
use crate::manifest_line::{Line, LineKind, ObjectOutcome};
use crate::meta::InodeVersion;
use crate::summary::Totals;

/// Recorder of the steps of a copy.
pub(crate) trait Recorder: Sync {
    /// Appends lines, each with its line end.
    fn note(&self, lines: &str) -> io::Result<()>;
}

/// Records nothing: for copies that are undone when they are interrupted.
pub(crate) struct NullRecorder;

impl Recorder for NullRecorder {
    fn note(&self, _lines: &str) -> io::Result<()> {
        Ok(())
    }
}

/// The journal of a resumable copy.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Mutex<File>,
}

impl Journal {
    /// Opens or creates a journal. A torn last line is cut off.
    pub(crate) fn open(path: &Path) -> io::Result<(Journal, History)> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // A crash may leave a torn line. The next line must not be appended to it.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        bytes.truncate(whole);
        Ok((Journal { file: Mutex::new(file) }, History::read(&bytes)))
    }
}

impl Recorder for Journal {
    fn note(&self, lines: &str) -> io::Result<()> {
        // One write per call, so that lines of concurrent workers do not mix.
        assert!(lines.is_empty() || lines.ends_with('\n'), "a journal line without its end");
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(lines.as_bytes())
    }
}

/// A completed part of a large file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) source: InodeVersion,
    /// Hashes of its blocks; none if the file has holes, which are copied again.
    pub(crate) values: Vec<BlockHash>,
}

impl Part {
    pub(crate) fn encode(&self, name: &Path) -> String {
        assert!(self.values.len() as u64 <= PART / BLOCK, "a part has more blocks than its size");
        let values: String =
            self.values.iter().map(|value| blake3::Hash::from_bytes(*value).to_hex().to_string()).collect();
        format!("#part\t{}\t{}\t{}\t{}\t{values}\n", escape(name), self.number, self.size, self.source)
    }

    /// Returns the bytes that need not be copied again.
    fn bytes(&self) -> u64 {
        let left = self.size.saturating_sub(self.number.saturating_mul(PART));
        left.min(BLOCK.saturating_mul(self.values.len() as u64))
    }

    fn decode(fields: &[&str]) -> Option<(PathBuf, Part)> {
        let [name, number, size, source, values] = fields else { return None };
        let value = |hex: &[u8]| blake3::Hash::from_hex(hex).ok().map(|hash| *hash.as_bytes());
        let part = Part {
            number: number.parse().ok()?,
            size: size.parse().ok()?,
            source: InodeVersion::parse(source)?,
            values: values.as_bytes().chunks(64).map(value).collect::<Option<_>>()?,
        };
        Some((unescape(name)?, part))
    }
}

/// Journal content of one transfer.
#[derive(Debug, Default)]
pub(crate) struct TransferHistory {
    /// Last line of each object, by its path below the target.
    pub(crate) lines: HashMap<PathBuf, Line>,
    /// Parts of incomplete large files.
    pub(crate) parts: HashMap<PathBuf, Vec<Part>>,
    /// Directories that the copy created at the target.
    pub(crate) made: HashSet<PathBuf>,
    pub(crate) totals: Totals,
    /// Totals of copies whose lines have been condensed.
    pub(crate) condensed: Totals,
}

/// Content of a journal.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) transfers: Vec<TransferHistory>,
    /// Directories at the target that may contain temporary objects.
    pub(crate) dirs: Vec<PathBuf>,
    /// Directories above a target that the copy created.
    pub(crate) above: Vec<PathBuf>,
    /// Mount of the formation at the last run.
    pub(crate) mount: Option<PathBuf>,
    /// Result word of the last run.
    pub(crate) end: Option<String>,
}

impl History {
    /// Parses a journal. Malformed lines are skipped: what they recorded is copied again.
    pub(crate) fn read(bytes: &[u8]) -> History {
        let mut history = History::default();
        let mut current = 0;
        for line in bytes.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()) {
            match line.strip_prefix('#') {
                Some(control) => history.control(&mut current, &control.split('\t').collect::<Vec<_>>()),
                None => {
                    if let Some(line) = Line::decode(line) {
                        history.past(current).add(line);
                    }
                }
            }
        }
        history
    }

    fn control(&mut self, current: &mut usize, fields: &[&str]) {
        match fields {
            ["transfer", number] => {
                // Bounded, since a damaged number would make a list as long as it says.
                *current = number.parse().unwrap_or(*current).min(TRANSFERS_MAX);
                // A transfer line after an end marks a resumed run.
                self.end = None;
                self.past(*current);
            }
            ["scan", files, bytes] => {
                self.past(*current).totals = parse_totals(files, bytes);
            }
            ["copied", files, bytes] => self.past(*current).condensed = parse_totals(files, bytes),
            ["dir", path] => self.dirs.extend(unescape(path)),
            ["mount", path] => self.mount = unescape(path),
            ["above", path] => self.above.extend(unescape(path)),
            ["made", path] => self.past(*current).made.extend(unescape(path)),
            ["part", part @ ..] => {
                if let Some((name, part)) = Part::decode(part) {
                    self.past(*current).parts.entry(name).or_default().push(part);
                }
            }
            ["gone", path] => {
                if let Some(path) = unescape(path) {
                    self.past(*current).parts.remove(&path);
                }
            }
            ["end", word] => self.end = Some((*word).to_owned()),
            _ => {}
        }
    }

    /// Returns whether the copy ended without failures.
    pub(crate) fn is_done(&self) -> bool {
        self.end.as_deref() == Some("done")
    }

    pub(crate) fn past(&mut self, number: usize) -> &mut TransferHistory {
        if self.transfers.len() <= number {
            self.transfers.resize_with(number + 1, TransferHistory::default);
        }
        // Resized just above.
        &mut self.transfers[number]
    }
}

/// Upper limit of transfers per job; more than an argument list holds.
pub(crate) const TRANSFERS_MAX: usize = 1 << 16;

impl TransferHistory {
    fn add(&mut self, line: Line) {
        if line.state == ObjectOutcome::Done {
            // The file is complete, so its parts are of no interest any more.
            self.parts.remove(&line.name);
            self.lines.insert(line.name.clone(), line);
        }
    }

    /// Returns complete files, their bytes, and the bytes of parts of incomplete files.
    pub(crate) fn done(&self) -> Totals {
        let files = self.lines.values().filter(|line| line.kind == LineKind::File);
        let pieces = Totals { files: 0, bytes: self.parts.values().map(|parts| bytes_of(parts)).sum() };
        files.fold(self.condensed.plus(pieces), |sum, line| sum.plus(Totals { files: 1, bytes: line.size }))
    }
}

fn parse_totals(files: &str, bytes: &str) -> Totals {
    Totals { files: files.parse().unwrap_or(0), bytes: bytes.parse().unwrap_or(0) }
}

/// Returns the bytes of the parts that belong to the latest version of a file, each counted once.
fn bytes_of(parts: &[Part]) -> u64 {
    let Some(last) = parts.last() else { return 0 };
    // Parts of an earlier version of the file do not count.
    let same = parts.iter().filter(|part| (part.size, part.source) == (last.size, last.source));
    let by_number: HashMap<u64, u64> = same.map(|part| (part.number, part.bytes())).collect();
    by_number.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Formats a control line.
pub(crate) fn control(word: &str, path: &Path) -> String {
    format!("#{word}\t{}\n", escape(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest_line::LineKind;
    use proptest::prelude::*;

    fn done(name: &str, size: u64) -> Line {
        Line { kind: LineKind::File, size, ..Line::outcome_only(ObjectOutcome::Done, Path::new(name), "") }
    }

    #[test]
    fn what_was_written_is_read_again_and_a_torn_end_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let part = Part {
            number: 1,
            size: 9,
            source: InodeVersion { ino: 4, ctime: (5, 6) },
            values: vec![[7; 32], [8; 32]],
        };
        let (journal, history) = Journal::open(&path).unwrap();
        assert!(history.transfers.is_empty());
        journal.note("#transfer\t1\n#scan\t2\t30\n").unwrap();
        journal.note(&control("dir", Path::new("/t/a\tb"))).unwrap();
        journal
            .note(
                &(control("made", Path::new("sub"))
                    + &part.encode(Path::new("big"))
                    + &part.encode(Path::new("c"))),
            )
            .unwrap();
        journal.note(&(done("a", 3).encode() + &done("c", 9).encode())).unwrap();
        // A crash in the middle of a write.
        let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
        torn.write_all(b"done\tf\t0644").unwrap();
        drop(journal);

        let (journal, mut history) = Journal::open(&path).unwrap();
        let past = history.past(1);
        assert_eq!(
            (past.totals, past.done()),
            (Totals { files: 2, bytes: 30 }, Totals { files: 2, bytes: 12 }),
            "the piece begins behind the file's end"
        );
        assert_eq!(past.parts.get(Path::new("big")), Some(&vec![part]));
        assert!(!past.parts.contains_key(Path::new("c")), "a file that is complete has no parts");
        assert!(past.made.contains(Path::new("sub")));
        assert_eq!((history.dirs, history.end), (vec![PathBuf::from("/t/a\tb")], None));
        journal.note(&(done("b", 4).encode() + "#end\tdone\n")).unwrap();
        let (_, history) = Journal::open(&path).unwrap();
        assert_eq!((history.transfers[1].lines.len(), history.end.as_deref()), (3, Some("done")));
    }

    #[test]
    fn pieces_count_once_and_only_those_of_the_file_as_it_is() {
        let part = |number, ino, blocks| {
            let source = InodeVersion { ino, ctime: (5, 6) };
            let part = Part { number, size: PART + 5, source, values: vec![[7; 32]; blocks] };
            part.encode(Path::new("big"))
        };
        let bytes = |text: String| History::read(text.as_bytes()).past(0).done();
        let whole = Totals { files: 0, bytes: PART + 5 };
        assert_eq!(bytes(part(0, 4, 4) + &part(1, 4, 1)), whole);
        assert_eq!(
            bytes(part(0, 4, 4) + &part(1, 4, 1) + &part(0, 4, 4)),
            whole,
            "a resumed copy tells again"
        );
        assert_eq!(bytes(part(0, 4, 4) + &part(1, 5, 1)), Totals { files: 0, bytes: 5 }, "it has changed");
        assert_eq!(bytes(part(0, 4, 0) + &part(1, 4, 0)), Totals::default(), "holes are copied anew");
        assert_eq!(bytes(part(0, 4, 4) + &control("gone", Path::new("big"))), Totals::default());
    }

    #[test]
    fn only_what_is_done_counts() {
        let failed = Line { state: ObjectOutcome::Failed, ..done("a", 3) };
        let history = History::read((failed.encode() + "#transfer\tx\n#part\tx\n").as_bytes());
        assert!(history.transfers[0].lines.is_empty() && history.transfers[0].parts.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_history(bytes: Vec<u8>, number: u64) {
            History::read(&bytes);
            History::read(format!("#transfer\t{}\n#part\ta\t{number}\t{number}\t1@2.000000000\tab\n", number % 100).as_bytes());
        }
    }
}
