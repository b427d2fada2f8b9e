//! What a check finds, and what became of it.

use bivouac_types::Ino;
use serde::Serialize;

use crate::repair::Fix;

/// The kinds of what can be wrong. The names are those of `--json` and of docs/guide.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Records of a node that cannot be read back.
    Records,
    /// A record whose bytes do not decode.
    Undecodable,
    /// A record in a slot or on a node where nobody looks for it.
    Misplaced,
    /// Entries, or subfiles with data, of an inode that is not there.
    MissingInode,
    /// An entry that says another type than its inode.
    WrongType,
    /// A link count that is not the number of names.
    LinkCount,
    /// A directory whose size is not the number of its entries.
    EntryCount,
    /// A part of a spread directory that is missing, closed, or belongs to none.
    Shard,
    /// A part of a spread directory whose counts are not those of its entries.
    ShardCount,
    /// A directory with more than one name.
    SeveralNames,
    /// A directory that names another parent than the one that has its entry.
    ParentPointer,
    /// An inode that no name leads to.
    Unreachable,
    /// Directories that are in each other and nowhere else.
    Loop,
    /// A symbolic link without target, or a target without symbolic link.
    Target,
    /// An extended attribute of nothing.
    StrayXattr,
    /// A mark of an inode without names on one that has some, or that is not there.
    StaleOrphan,
    /// Subfiles marked for removal whose file is there.
    WrongGarbage,
    /// A number that the allocator will give out again.
    FutureNumber,
    /// A subfile whose header is damaged.
    BadHeader,
    /// A subfile whose header contradicts its file.
    HeaderMismatch,
    /// A subfile that is ahead of the last cut that its file knows.
    EpochAhead,
    /// A subfile that must be there and is not.
    MissingSubfile,
    /// A volume that does not say which subfiles it has to have.
    MissingTable,
    /// A subfile on another volume than that of its seat.
    MisplacedSubfile,
    /// A subfile of no file.
    Unreferenced,
    /// Bytes that are not what was written, by their checksums.
    WrongContent,
    /// A volume that counts other bytes than there are.
    Accounting,
}

impl Kind {
    /// Whether it is a count that follows from the rest: set right when the rest is.
    pub(crate) fn is_count(self) -> bool {
        matches!(self, Kind::LinkCount | Kind::EntryCount | Kind::ShardCount)
    }
}

/// What became of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing was tried, or nothing could be done.
    Left,
    /// `--repair` would set it right.
    Repairable,
    /// It is set right.
    Repaired,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What kind of thing.
    pub kind: Kind,
    /// With what.
    pub object: String,
    /// What is wrong with it.
    pub cause: String,
    /// What to do, or what `--repair` does.
    pub remedy: String,
    /// What became of it.
    pub outcome: Outcome,
    /// All that it depends on.
    #[serde(skip)]
    pub(crate) inos: Vec<Ino>,
    #[serde(skip)]
    pub(crate) fix: Option<Fix>,
}

impl Finding {
    pub(crate) fn new(kind: Kind, object: impl Into<String>, cause: impl Into<String>) -> Finding {
        Finding {
            kind,
            object: object.into(),
            cause: cause.into(),
            remedy: "bring the formation down and look with `bivouac fsck --offline`".into(),
            outcome: Outcome::Left,
            inos: Vec::new(),
            fix: None,
        }
    }

    pub(crate) fn of(mut self, inos: impl IntoIterator<Item = Ino>) -> Finding {
        self.inos.extend(inos);
        self
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = remedy.into();
        self
    }

    pub(crate) fn fix(mut self, remedy: impl Into<String>, fix: Fix) -> Finding {
        self.fix = Some(fix);
        self.remedy(remedy)
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.object, self.cause, self.remedy)
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Nodes whose records were read.
    pub nodes: u64,
    /// Inodes.
    pub inodes: u64,
    /// Of these, directories.
    pub directories: u64,
    /// Entries of directories.
    pub entries: u64,
    /// Subfiles.
    pub subfiles: u64,
    /// Bytes that they occupy.
    pub allocated_bytes: u64,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What was looked at.
    pub totals: Totals,
    /// What is, or was, wrong.
    pub findings: Vec<Finding>,
    /// What looks unusual and is explained, and what was set right besides.
    pub notes: Vec<String>,
    /// What could not be looked at.
    pub unchecked: Vec<String>,
}

impl Report {
    /// Exit code as of fsck(8): 1 something was repaired, 4 something is left, 8 something could not be looked at.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let any = |outcome: Outcome| self.findings.iter().any(|finding| finding.outcome == outcome);
        let left = any(Outcome::Left) || any(Outcome::Repairable);
        u8::from(any(Outcome::Repaired)) + 4 * u8::from(left) + 8 * u8::from(!self.unchecked.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_add_up() {
        let finding = |outcome| Finding { outcome, ..Finding::new(Kind::Loop, "o", "c") };
        let code = |findings: &[Outcome], unchecked: usize| {
            let findings = findings.iter().copied().map(finding).collect();
            Report { findings, unchecked: vec![String::new(); unchecked], ..Report::default() }.exit_code()
        };
        assert_eq!(code(&[], 0), 0);
        assert_eq!(code(&[Outcome::Repaired], 0), 1);
        assert_eq!(code(&[Outcome::Repairable], 0), 4);
        assert_eq!(code(&[Outcome::Repaired, Outcome::Left], 1), 13);
    }
}
