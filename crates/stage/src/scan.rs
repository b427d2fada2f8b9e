//! Looks through the source: what there is to copy.

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::baseline::Baseline;
use crate::meta::{Mark, Stamp};
use crate::room::space_of;
use crate::straight;
use crate::tag::is_temporary;
use crate::{CopyOptions, Failure, Skipped, Totals};

/// What there is at the source, by name; a directory before what is in it.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) root: PathBuf,
    pub(crate) entries: Vec<Entry>,
    pub(crate) totals: Totals,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) failures: Vec<Failure>,
    /// Objects that are as they were when they were staged.
    pub(crate) unchanged: u64,
    /// Paths below the root that were staged and are not there.
    pub(crate) deleted: Vec<PathBuf>,
}

/// One object at the source.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Relative to the root; empty for the root itself.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) stamp: Stamp,
    /// Whether it is a file with holes.
    pub(crate) sparse: bool,
    /// Bytes that it takes at least.
    pub(crate) space: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Dir,
    File,
    /// A further name of the file that is the entry of this number.
    HardLink(usize),
    Symlink,
    Fifo,
}

impl Plan {
    /// Path of an entry at the source.
    pub(crate) fn source(&self, entry: &Entry) -> PathBuf {
        below(&self.root, &entry.path)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.entries.first().is_some_and(|entry| entry.kind == Kind::Dir)
    }
}

/// `root/path`, and just `root` for the empty path, without the slash that `join` would add.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) }
}

/// Whether a file takes less space than its size.
pub(crate) fn has_holes(meta: &Metadata) -> bool {
    meta.blocks().saturating_mul(512) < meta.len()
}

/// Looks through `root`. What cannot be looked at is among the failures, and everything else that is wanted, and changed
/// where there is a baseline, in the plan.
pub(crate) fn scan(root: PathBuf, opts: &CopyOptions, baseline: Option<&Baseline>) -> Plan {
    let plan = Plan { root: root.clone(), ..Plan::default() };
    let mut scan = Scan { plan, opts, baseline, names: HashMap::new(), seen: HashSet::new() };
    let mut left = vec![root];
    while let Some(path) = left.pop() {
        if opts.cancelled() {
            break;
        }
        if scan.leaves_out(&path) {
            continue;
        }
        let looked = straight::look(&path).and_then(|meta| {
            scan.add(&path, &meta);
            if meta.is_dir() { straight::list(&path) } else { Ok(Vec::new()) }
        });
        match looked {
            // The last one is the next.
            Ok(names) => left.extend(names.iter().rev().map(|name| path.join(name))),
            Err(error) => scan.plan.failures.push(Failure::io("look at it", &path, error)),
        }
    }
    scan.finish()
}

struct Scan<'a> {
    plan: Plan,
    opts: &'a CopyOptions,
    baseline: Option<&'a Baseline>,
    /// Number of the entry by which a file with several names is copied.
    names: HashMap<(u64, u64), usize>,
    /// What was staged and is there.
    seen: HashSet<PathBuf>,
}

impl Scan<'_> {
    fn relative<'b>(&self, path: &'b Path) -> &'b Path {
        path.strip_prefix(&self.plan.root).unwrap_or(path)
    }

    fn leaves_out(&mut self, path: &Path) -> bool {
        if path != self.plan.root && path.file_name().is_some_and(is_temporary) {
            let what = "what an unfinished copy left; see bivouac stage status".to_owned();
            self.plan.skipped.push(Skipped { path: path.to_owned(), what });
            return true;
        }
        self.opts.select.excludes(self.relative(path))
    }

    fn add(&mut self, path: &Path, meta: &Metadata) {
        let relative = self.relative(path).to_owned();
        let kind = match kind_of(meta) {
            Ok(kind) => kind,
            Err(what) => {
                self.plan.skipped.push(Skipped { path: path.to_owned(), what: what.to_owned() });
                return;
            }
        };
        if kind != Kind::Dir && !self.opts.select.includes(&relative) {
            return;
        }
        if let Some(baseline) = self.baseline {
            let unchanged = baseline.has(&relative, Mark::of(meta), kind == Kind::Dir);
            if kind != Kind::Dir && unchanged {
                self.plan.unchanged += 1;
                self.seen.insert(relative);
                return;
            }
            self.seen.insert(relative.clone());
        }
        let kind = if kind == Kind::File { self.file_kind(meta) } else { kind };
        let sparse = kind == Kind::File && has_holes(meta);
        self.plan.entries.push(Entry {
            path: relative,
            kind,
            stamp: Stamp::of(meta),
            sparse,
            space: space_of(meta),
        });
    }

    fn file_kind(&mut self, meta: &Metadata) -> Kind {
        if meta.nlink() > 1 {
            let next = self.plan.entries.len();
            let first = *self.names.entry((meta.dev(), meta.ino())).or_insert(next);
            if first != next {
                return Kind::HardLink(first);
            }
        }
        self.plan.totals.files += 1;
        self.plan.totals.bytes = self.plan.totals.bytes.saturating_add(meta.len());
        Kind::File
    }

    fn finish(mut self) -> Plan {
        if let Some(baseline) = self.baseline {
            self.plan.deleted =
                baseline.paths().filter(|path| !self.seen.contains(*path)).map(Path::to_owned).collect();
            self.plan.deleted.sort();
        }
        if self.opts.select.is_partial() || self.baseline.is_some() {
            self.drop_needless_dirs();
        }
        self.plan
    }

    /// Keeps of the directories the root, those that lead to something, and those that are new since the baseline.
    fn drop_needless_dirs(&mut self) {
        let entries = &self.plan.entries;
        let mut needed = HashSet::new();
        for entry in entries {
            let is_new = |baseline: &Baseline| !baseline.has(&entry.path, entry.stamp.mark, true);
            let wanted = entry.kind != Kind::Dir || self.baseline.is_some_and(is_new);
            if wanted && (entry.kind != Kind::Dir || !self.opts.select.is_partial()) {
                needed.extend(entry.path.ancestors().map(Path::to_owned));
            }
        }
        let keep: Vec<bool> = entries
            .iter()
            .map(|entry| entry.path.as_os_str().is_empty() || needed.contains(&entry.path))
            .collect();
        let mut places = Vec::with_capacity(keep.len());
        let mut kept = 0;
        for keep in &keep {
            places.push(kept);
            kept += usize::from(*keep);
        }
        let mut numbers = keep.iter();
        self.plan.entries.retain(|_| numbers.next().copied().unwrap_or(true));
        for entry in &mut self.plan.entries {
            if let Kind::HardLink(first) = &mut entry.kind {
                *first = places.get(*first).copied().unwrap_or(*first);
            }
        }
    }
}

fn kind_of(meta: &Metadata) -> Result<Kind, &'static str> {
    let kind = meta.file_type();
    match () {
        () if kind.is_dir() => Ok(Kind::Dir),
        () if kind.is_file() => Ok(Kind::File),
        () if kind.is_symlink() => Ok(Kind::Symlink),
        () if kind.is_fifo() => Ok(Kind::Fifo),
        () if kind.is_socket() => Err("socket"),
        () => Err("device"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::net::UnixListener;

    #[test]
    fn everything_is_found_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("b/empty")).unwrap();
        fs::write(root.join("a"), "12345").unwrap();
        fs::hard_link(root.join("a"), root.join("b/again")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("link")).unwrap();
        let _socket = UnixListener::bind(root.join("socket")).unwrap();

        let plan = scan(root.to_owned(), &CopyOptions::default(), None);
        let found: Vec<_> = plan.entries.iter().map(|e| (e.path.display().to_string(), e.kind)).collect();
        let expected = [
            ("", Kind::Dir),
            ("a", Kind::File),
            ("b", Kind::Dir),
            ("b/again", Kind::HardLink(1)),
            ("b/empty", Kind::Dir),
            ("link", Kind::Symlink),
        ];
        assert_eq!(found, expected.map(|(path, kind)| (path.to_owned(), kind)));
        assert_eq!(plan.totals, Totals { files: 1, bytes: 5 });
        assert_eq!(plan.skipped, [Skipped { path: root.join("socket"), what: "socket".into() }]);
        assert!(plan.failures.is_empty() && plan.is_dir());
    }

    #[test]
    fn a_file_is_a_tree_of_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let plan = scan(file.path().to_owned(), &CopyOptions::default(), None);
        assert_eq!(plan.entries.len(), 1);
        assert_eq!(plan.source(&plan.entries[0]), file.path());
        assert!(!plan.is_dir());
    }

    #[test]
    fn what_is_not_there_is_a_failure_with_its_name() {
        let plan = scan("/nonexistent/tree".into(), &CopyOptions::default(), None);
        assert_eq!(plan.failures.len(), 1);
        assert!(plan.failures[0].to_string().starts_with("/nonexistent/tree: could not look at it"));
    }
}
