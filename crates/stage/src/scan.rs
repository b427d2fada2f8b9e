//! Scan of the source.

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::baseline::Baseline;
use crate::error::Failure;
use crate::meta::{InodeVersion, MetadataStamp};
use crate::nofollow;
use crate::options::CopyOptions;
use crate::paths::below;
use crate::summary::{Skipped, Totals};
use crate::temporary_tag::is_temporary;

/// Unit of `st_blocks`, in bytes.
pub(crate) const STAT_BLOCK: u64 = 512;

/// Objects to copy, by name; each directory before its entries.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) root: PathBuf,
    pub(crate) entries: Vec<Entry>,
    pub(crate) totals: Totals,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) failures: Vec<Failure>,
    /// Objects that are unchanged since they were staged.
    pub(crate) unchanged: u64,
    /// Paths below the root that were staged and no longer exist.
    pub(crate) deleted: Vec<PathBuf>,
}

/// An object at the source.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Relative to the root; empty for the root itself.
    pub(crate) path: PathBuf,
    pub(crate) kind: ObjectKind,
    pub(crate) stamp: MetadataStamp,
    /// True for a file with holes.
    pub(crate) sparse: bool,
    /// Minimum space, in bytes.
    pub(crate) space: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Dir,
    File,
    /// A further name of the file at this entry number.
    HardLink(usize),
    Symlink,
    Fifo,
}

impl Plan {
    /// Returns the path of an entry at the source.
    pub(crate) fn source(&self, entry: &Entry) -> PathBuf {
        below(&self.root, &entry.path)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.entries.first().is_some_and(|entry| entry.kind == ObjectKind::Dir)
    }
}

/// Returns the minimum space of a file: holes take none.
fn space_of(meta: &Metadata) -> u64 {
    meta.len().min(meta.blocks().saturating_mul(STAT_BLOCK))
}

/// Returns whether a file occupies less space than its size.
pub(crate) fn has_holes(meta: &Metadata) -> bool {
    meta.blocks().saturating_mul(STAT_BLOCK) < meta.len()
}

/// Scans `root`. The plan has all selected objects that differ from the baseline, and the failures.
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
        let looked = nofollow::lstat(&path).and_then(|meta| {
            scan.add(&path, &meta);
            if meta.is_dir() { nofollow::read_dir(&path) } else { Ok(Vec::new()) }
        });
        match looked {
            // Pushed in reverse, so that the names are visited in order.
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
    /// Entry number of the first name of each file with several names.
    names: HashMap<(u64, u64), usize>,
    /// Staged paths that still exist.
    seen: HashSet<PathBuf>,
}

impl Scan<'_> {
    fn relative<'b>(&self, path: &'b Path) -> &'b Path {
        path.strip_prefix(&self.plan.root).unwrap_or(path)
    }

    fn leaves_out(&mut self, path: &Path) -> bool {
        // The root is what was asked for by name.
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
        if kind != ObjectKind::Dir && !self.opts.select.includes(&relative) {
            return;
        }
        if let Some(baseline) = self.baseline {
            let unchanged = baseline.is_unchanged(&relative, InodeVersion::of(meta), kind == ObjectKind::Dir);
            if kind != ObjectKind::Dir && unchanged {
                self.plan.unchanged += 1;
                self.seen.insert(relative);
                return;
            }
            self.seen.insert(relative.clone());
        }
        let kind = if kind == ObjectKind::File { self.file_kind(meta) } else { kind };
        let sparse = kind == ObjectKind::File && has_holes(meta);
        self.plan.entries.push(Entry {
            path: relative,
            kind,
            stamp: MetadataStamp::of(meta),
            sparse,
            space: space_of(meta),
        });
    }

    fn file_kind(&mut self, meta: &Metadata) -> ObjectKind {
        if meta.nlink() > 1 {
            let next = self.plan.entries.len();
            // The first name in the order of the scan becomes the file, all further ones links.
            let first = *self.names.entry((meta.dev(), meta.ino())).or_insert(next);
            if first != next {
                return ObjectKind::HardLink(first);
            }
        }
        self.plan.totals.files += 1;
        self.plan.totals.bytes = self.plan.totals.bytes.saturating_add(meta.len());
        ObjectKind::File
    }

    fn finish(mut self) -> Plan {
        if let Some(baseline) = self.baseline {
            // What patterns leave out, or what is in a directory that cannot be read, was not seen and is there.
            let is_missing = |kind: ErrorKind| matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory);
            let is_gone = |path: &Path| {
                let looked = nofollow::lstat(&below(&self.plan.root, path));
                looked.is_err_and(|error| is_missing(error.kind()))
            };
            let unseen = baseline.paths().filter(|path| !self.seen.contains(*path) && is_gone(path));
            self.plan.deleted = unseen.map(Path::to_owned).collect();
            self.plan.deleted.sort();
        }
        if self.opts.select.is_partial() || self.baseline.is_some() {
            self.drop_needless_dirs();
        }
        let entries = &self.plan.entries;
        let is_file = |number: usize| entries.get(number).is_some_and(|entry| entry.kind == ObjectKind::File);
        let is_resolved = |(number, entry): (usize, &Entry)| match entry.kind {
            ObjectKind::HardLink(first) => first < number && is_file(first),
            _ => true,
        };
        assert!(entries.iter().enumerate().all(is_resolved), "a hard link refers to no earlier file");
        self.plan
    }

    /// Removes directories that are neither the root, nor above an object to copy, nor new since the baseline.
    fn drop_needless_dirs(&mut self) {
        let entries = &self.plan.entries;
        let mut needed = HashSet::new();
        for entry in entries {
            let is_new = |baseline: &Baseline| !baseline.is_unchanged(&entry.path, entry.stamp.version, true);
            let wanted = entry.kind != ObjectKind::Dir || self.baseline.is_some_and(is_new);
            if wanted && (entry.kind != ObjectKind::Dir || !self.opts.select.is_partial()) {
                needed.extend(entry.path.ancestors().map(Path::to_owned));
            }
        }
        let keep: Vec<bool> = entries
            .iter()
            .map(|entry| entry.path.as_os_str().is_empty() || needed.contains(&entry.path))
            .collect();
        // Hard links refer to entries by number, which change.
        let mut places = Vec::with_capacity(keep.len());
        let mut kept = 0;
        for keep in &keep {
            places.push(kept);
            kept += usize::from(*keep);
        }
        let mut numbers = keep.iter();
        self.plan.entries.retain(|_| numbers.next().copied().unwrap_or(true));
        for entry in &mut self.plan.entries {
            if let ObjectKind::HardLink(first) = &mut entry.kind {
                *first = places.get(*first).copied().unwrap_or(*first);
            }
        }
    }
}

fn kind_of(meta: &Metadata) -> Result<ObjectKind, &'static str> {
    let kind = meta.file_type();
    match () {
        () if kind.is_dir() => Ok(ObjectKind::Dir),
        () if kind.is_file() => Ok(ObjectKind::File),
        () if kind.is_symlink() => Ok(ObjectKind::Symlink),
        () if kind.is_fifo() => Ok(ObjectKind::Fifo),
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
            ("", ObjectKind::Dir),
            ("a", ObjectKind::File),
            ("b", ObjectKind::Dir),
            ("b/again", ObjectKind::HardLink(1)),
            ("b/empty", ObjectKind::Dir),
            ("link", ObjectKind::Symlink),
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
