//! Versions and digests of objects after their last copy; what differs from them has changed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use blake3::Hash;

use crate::manifest_line::{Line, LineKind};
use crate::meta::{InodeVersion, UnixTime};
use crate::paths::below;

/// A snapshot of a tree in the formation.
///
/// An object is unchanged if its path was staged, it still is the inode that was made then, and that inode's last
/// change is the one that staging made. Inode numbers are never used twice, every change of content, attributes or
/// names changes the ctime, and nobody sets a ctime: no clock has to agree with another, and none is compared.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    numbers: HashMap<PathBuf, u64>,
    changes: HashMap<u64, UnixTime>,
    /// Digest of each inode's content, by inode number.
    digests: HashMap<u64, Hash>,
    /// Set instead of versions: everything with a later change has changed.
    since: Option<UnixTime>,
}

impl Baseline {
    /// Creates a baseline of everything that changed before `time`, by the clocks of the formation's nodes.
    #[must_use]
    pub fn since(time: UnixTime) -> Baseline {
        Baseline { since: Some(time), ..Baseline::default() }
    }

    /// Adds the version of an object. Later ones replace earlier ones.
    pub(crate) fn add(&mut self, path: PathBuf, version: InodeVersion) {
        self.changes.insert(version.ino, version.ctime);
        self.numbers.insert(path, version.ino);
    }

    /// Adds the digest of a file at this version.
    pub(crate) fn add_digest(&mut self, version: InodeVersion, digest: Hash) {
        self.changes.insert(version.ino, version.ctime);
        self.digests.insert(version.ino, digest);
    }

    /// Returns the digest of a file under any name, if it has not changed since it was copied.
    pub(crate) fn digest(&self, version: InodeVersion) -> Option<Hash> {
        let is_unchanged = self.changes.get(&version.ino) == Some(&version.ctime);
        self.digests.get(&version.ino).copied().filter(|_| is_unchanged)
    }

    /// Returns whether the source's content differs from the known digest of the same version, which means silent
    /// corruption.
    pub(crate) fn is_altered(&self, line: &Line) -> bool {
        let expected = line.source.and_then(|version| self.digest(version));
        expected.is_some_and(|expected| line.digest != Some(expected))
    }

    /// Returns the part below a path, with relative paths.
    #[must_use]
    pub fn below(&self, root: &Path) -> Baseline {
        let paths = self.numbers.iter();
        let numbers = paths.filter_map(|(path, ino)| Some((path.strip_prefix(root).ok()?.to_owned(), *ino)));
        // Changes and digests are by inode number, and so of any path.
        Baseline { numbers: numbers.collect(), ..self.clone() }
    }

    /// Returns whether an object is unchanged. For a directory only its identity counts: its entries are compared
    /// themselves.
    pub(crate) fn is_unchanged(&self, path: &Path, version: InodeVersion, is_dir: bool) -> bool {
        if let Some(since) = self.since {
            return version.ctime < since;
        }
        let same = self.numbers.get(path) == Some(&version.ino);
        // The ctime of a directory changes with its entries, which are compared themselves.
        same && (is_dir || self.changes.get(&version.ino) == Some(&version.ctime))
    }

    /// Returns whether a path was copied, in any version.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        self.numbers.contains_key(path)
    }

    /// Returns all paths that were copied.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.numbers.keys().map(PathBuf::as_path)
    }
}

/// Returns paths and versions from the journal lines of one transfer, for the side in the formation.
pub(crate) fn manifest_versions<'a>(
    lines: impl Iterator<Item = &'a Line>,
    root: &'a Path,
    version: impl Fn(&Line) -> Option<InodeVersion>,
) -> Vec<(PathBuf, InodeVersion)> {
    let mut found: Vec<(bool, PathBuf, InodeVersion)> = lines
        .filter_map(|line| {
            let is_late = line.kind == LineKind::HardLink;
            Some((is_late, below(root, &line.name), version(line)?))
        })
        .collect();
    // A hard link changes the ctime of the file, so the lines of links come last.
    found.sort_by_key(|(is_late, _, version)| (*is_late, version.ctime));
    found.into_iter().map(|(_, path, version)| (path, version)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(ino: u64, secs: i64) -> InodeVersion {
        InodeVersion { ino, ctime: (secs, 5) }
    }

    #[test]
    fn same_path_same_inode_same_change_is_unchanged_and_nothing_else() {
        let mut baseline = Baseline::default();
        baseline.add("d".into(), version(1, 10));
        baseline.add("d/a".into(), version(2, 11));
        baseline.add("d/b".into(), version(3, 12));
        let has = |path: &str, version| baseline.is_unchanged(Path::new(path), version, false);
        assert!(has("d/a", version(2, 11)));
        assert!(!has("d/a", version(2, 12)), "written to");
        assert!(!has("d/a", version(2, 9)), "written to while a clock went back");
        assert!(!has("d/a", version(3, 12)), "another file under the name");
        assert!(!has("d/new", version(2, 11)), "a new name");
        assert!(
            baseline.is_unchanged(Path::new("d"), version(1, 99), true)
                && !baseline.is_unchanged(Path::new("d"), version(7, 10), true)
        );
        let below = baseline.below(Path::new("d"));
        assert!(below.is_unchanged(Path::new("b"), version(3, 12), false));
        assert_eq!(below.paths().count(), 3);
    }

    #[test]
    fn the_digest_is_known_of_what_has_not_changed() {
        let mut baseline = Baseline::default();
        let (first, second) = (blake3::hash(b"first"), blake3::hash(b"second"));
        baseline.add_digest(version(2, 11), first);
        assert_eq!(baseline.digest(version(2, 11)), Some(first));
        assert_eq!((baseline.digest(version(2, 12)), baseline.digest(version(3, 11))), (None, None));
        baseline.add_digest(version(2, 15), second);
        assert_eq!((baseline.digest(version(2, 15)), baseline.digest(version(2, 11))), (Some(second), None));
    }

    #[test]
    fn a_time_compares_with_the_last_change() {
        let baseline = Baseline::since((100, 0));
        assert!(
            baseline.is_unchanged(Path::new("x"), version(1, 99), false)
                && !baseline.is_unchanged(Path::new("x"), version(1, 100), false)
        );
    }

    #[test]
    fn the_last_name_of_a_file_has_its_last_change() {
        let line = |kind, name: &str, secs| Line {
            kind,
            target: Some(version(4, secs)),
            ..Line::outcome_only(crate::manifest_line::ObjectOutcome::Done, Path::new(name), "")
        };
        let lines = [
            line(LineKind::HardLink, "b", 8),
            line(LineKind::File, "a", 7),
            line(LineKind::HardLink, "c", 9),
        ];
        let mut baseline = Baseline::default();
        for (path, version) in manifest_versions(lines.iter(), Path::new("r"), |line| line.target) {
            baseline.add(path, version);
        }
        assert!(baseline.is_unchanged(Path::new("r/a"), version(4, 9), false));
    }
}
