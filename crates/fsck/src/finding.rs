//! Findings of a check and their outcomes.

use bivouac_types::Ino;
use serde::Serialize;

use crate::repair_action::RepairAction;

/// Kind of an inconsistency. The names are those of `--json` and of docs/guide/checks.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Records of a node that cannot be opened.
    Records,
    /// A record that does not decode.
    Undecodable,
    /// A record in a slot or on a node where it is not looked up.
    Misplaced,
    /// Entries, or subfiles with data, of a missing inode.
    MissingInode,
    /// An entry whose type differs from that of its inode.
    WrongType,
    /// A link count that differs from the number of names.
    LinkCount,
    /// A directory whose size differs from the number of its entries.
    EntryCount,
    /// A shard that is missing, sealed, or belongs to no spread directory.
    Shard,
    /// A shard whose counts differ from its entries.
    ShardCount,
    /// A directory with several names.
    SeveralNames,
    /// A directory whose recorded parent is not the directory of its entry.
    ParentPointer,
    /// An inode without a name.
    Unreachable,
    /// Directories that contain each other and are not below the root.
    Loop,
    /// A symbolic link without a target, or a target without a link.
    Target,
    /// An extended attribute without an inode.
    StrayXattr,
    /// An orphan record of an inode that has names or does not exist.
    StaleOrphan,
    /// A garbage record of an existing file.
    WrongGarbage,
    /// An allocator that will assign a number in use.
    FutureNumber,
    /// A subfile whose header is damaged.
    BadHeader,
    /// A subfile whose header contradicts its file.
    HeaderMismatch,
    /// A subfile with a later truncation epoch than its file.
    EpochAhead,
    /// A missing subfile.
    MissingSubfile,
    /// A volume without a table of its subfiles.
    MissingTable,
    /// A subfile on another volume than that of its target.
    MisplacedSubfile,
    /// A subfile without a file.
    Unreferenced,
    /// Content that does not match its checksums.
    WrongContent,
    /// A volume whose byte count differs from its subfiles.
    Accounting,
}

impl Kind {
    /// Returns whether it is a count that follows from other state, and is corrected after that.
    pub(crate) fn is_count(self) -> bool {
        matches!(self, Kind::LinkCount | Kind::EntryCount | Kind::ShardCount)
    }
}

/// Outcome of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Not repaired.
    Left,
    /// `--repair` would set it right.
    Repairable,
    /// Repaired.
    Repaired,
}

/// An inconsistency.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// The object.
    pub object: String,
    /// The cause.
    pub cause: String,
    /// The remedy, or the action of `--repair`.
    pub remedy: String,
    /// The outcome.
    pub outcome: Outcome,
    /// Inodes that it depends on.
    #[serde(skip)]
    pub(crate) inos: Vec<Ino>,
    #[serde(skip)]
    pub(crate) fix: Option<RepairAction>,
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

    pub(crate) fn fix(mut self, remedy: impl Into<String>, fix: RepairAction) -> Finding {
        self.fix = Some(fix);
        self.remedy(remedy)
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.object, self.cause, self.remedy)
    }
}

/// Numbers of checked objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Nodes whose records were read.
    pub nodes: u64,
    /// Inodes.
    pub inodes: u64,
    /// Directories among the inodes.
    pub directories: u64,
    /// Entries of directories.
    pub entries: u64,
    /// Subfiles.
    pub subfiles: u64,
    /// Allocated bytes.
    pub allocated_bytes: u64,
}

/// Result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Numbers of checked objects.
    pub totals: Totals,
    /// The findings.
    pub findings: Vec<Finding>,
    /// Unusual but consistent state, and additional repairs.
    pub notes: Vec<String>,
    /// Objects that could not be checked.
    pub unchecked: Vec<String>,
}

impl Report {
    /// Returns the exit code as of fsck(8): 1 something was repaired, 4 something is left, 8 something could not be
    /// checked.
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
