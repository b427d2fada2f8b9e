//! What was staged, by the formation's own records: everything that is not as it says has changed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use blake3::Hash;

use crate::line::{Line, LineKind};
use crate::meta::{Mark, Time};

/// The state of a tree of the formation at some time.
///
/// An object is unchanged if its path was staged, it still is the inode that was made then, and that inode's
/// last change is the one that staging made. Inode numbers are never used twice, every change of content, attributes or names
/// changes the ctime, and nobody sets a ctime: no clock has to agree with another, and none is compared.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    numbers: HashMap<PathBuf, u64>,
    changes: HashMap<u64, Time>,
    /// What a file's bytes were at that change.
    digests: HashMap<u64, Hash>,
    /// Instead of what was staged: everything that changed after this is changed.
    since: Option<Time>,
}

impl Baseline {
    /// Everything that changed at or after a time, by the clocks of the formation's nodes.
    #[must_use]
    pub fn since(time: Time) -> Baseline {
        Baseline { since: Some(time), ..Baseline::default() }
    }

    /// Adds what a line of a manifest says of the formation's side. Later lines replace earlier ones.
    pub(crate) fn add(&mut self, path: PathBuf, mark: Mark) {
        self.changes.insert(mark.ino, mark.ctime);
        self.numbers.insert(path, mark.ino);
    }

    /// Adds what a file's bytes were when it had this mark.
    pub(crate) fn add_digest(&mut self, mark: Mark, digest: Hash) {
        self.changes.insert(mark.ino, mark.ctime);
        self.digests.insert(mark.ino, digest);
    }

    /// What the bytes of a file are, whatever it is called, if it has not changed since they were staged.
    pub(crate) fn digest(&self, mark: Mark) -> Option<Hash> {
        let is_unchanged = self.changes.get(&mark.ino) == Some(&mark.ctime);
        self.digests.get(&mark.ino).copied().filter(|_| is_unchanged)
    }

    /// What lies below a path, relative to it.
    #[must_use]
    pub fn below(&self, root: &Path) -> Baseline {
        let paths = self.numbers.iter();
        let numbers = paths.filter_map(|(path, ino)| Some((path.strip_prefix(root).ok()?.to_owned(), *ino)));
        Baseline { numbers: numbers.collect(), ..self.clone() }
    }

    /// Whether an object is as it was. Of a directory only that it is the same one: what is in it is looked at by itself.
    pub(crate) fn has(&self, path: &Path, mark: Mark, is_dir: bool) -> bool {
        if let Some(since) = self.since {
            return mark.ctime < since;
        }
        let same = self.numbers.get(path) == Some(&mark.ino);
        same && (is_dir || self.changes.get(&mark.ino) == Some(&mark.ctime))
    }

    /// All paths that were staged.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.numbers.keys().map(PathBuf::as_path)
    }
}

/// The paths and marks that the lines of one transfer give, on the side that is in the formation.
pub(crate) fn marks<'a>(
    lines: impl Iterator<Item = &'a Line>,
    root: &'a Path,
    mark: impl Fn(&Line) -> Option<Mark>,
) -> Vec<(PathBuf, Mark)> {
    let mut found: Vec<(bool, PathBuf, Mark)> = lines
        .filter_map(|line| {
            let is_late = line.kind == LineKind::HardLink;
            Some((is_late, crate::scan::below(root, &line.name), mark(line)?))
        })
        .collect();
    // Making a further name changes the file, so what was noted then is what counts.
    found.sort_by_key(|(is_late, _, mark)| (*is_late, mark.ctime));
    found.into_iter().map(|(_, path, mark)| (path, mark)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(ino: u64, secs: i64) -> Mark {
        Mark { ino, ctime: (secs, 5) }
    }

    #[test]
    fn same_path_same_inode_same_change_is_unchanged_and_nothing_else() {
        let mut baseline = Baseline::default();
        baseline.add("d".into(), mark(1, 10));
        baseline.add("d/a".into(), mark(2, 11));
        baseline.add("d/b".into(), mark(3, 12));
        let has = |path: &str, mark| baseline.has(Path::new(path), mark, false);
        assert!(has("d/a", mark(2, 11)));
        assert!(!has("d/a", mark(2, 12)), "written to");
        assert!(!has("d/a", mark(2, 9)), "written to while a clock went back");
        assert!(!has("d/a", mark(3, 12)), "another file under the name");
        assert!(!has("d/new", mark(2, 11)), "a new name");
        assert!(
            baseline.has(Path::new("d"), mark(1, 99), true)
                && !baseline.has(Path::new("d"), mark(7, 10), true)
        );
        let below = baseline.below(Path::new("d"));
        assert!(below.has(Path::new("b"), mark(3, 12), false));
        assert_eq!(below.paths().count(), 3);
    }

    #[test]
    fn the_digest_is_known_of_what_has_not_changed() {
        let mut baseline = Baseline::default();
        let (first, second) = (blake3::hash(b"first"), blake3::hash(b"second"));
        baseline.add_digest(mark(2, 11), first);
        assert_eq!(baseline.digest(mark(2, 11)), Some(first));
        assert_eq!((baseline.digest(mark(2, 12)), baseline.digest(mark(3, 11))), (None, None));
        baseline.add_digest(mark(2, 15), second);
        assert_eq!((baseline.digest(mark(2, 15)), baseline.digest(mark(2, 11))), (Some(second), None));
    }

    #[test]
    fn a_time_compares_with_the_last_change() {
        let baseline = Baseline::since((100, 0));
        assert!(
            baseline.has(Path::new("x"), mark(1, 99), false)
                && !baseline.has(Path::new("x"), mark(1, 100), false)
        );
    }

    #[test]
    fn the_last_name_of_a_file_has_its_last_change() {
        let line = |kind, name: &str, secs| Line {
            kind,
            target: Some(mark(4, secs)),
            ..Line::said(crate::line::State::Done, Path::new(name), "")
        };
        let lines = [
            line(LineKind::HardLink, "b", 8),
            line(LineKind::File, "a", 7),
            line(LineKind::HardLink, "c", 9),
        ];
        let mut baseline = Baseline::default();
        for (path, mark) in marks(lines.iter(), Path::new("r"), |line| line.target) {
            baseline.add(path, mark);
        }
        assert!(baseline.has(Path::new("r/a"), mark(4, 9), false));
    }
}
