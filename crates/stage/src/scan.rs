//! Looks through the source: what there is to copy.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::meta::Attrs;
use crate::{Cause, CopyOptions, Failure, Skipped, Totals};

/// What there is at the source, by name; a directory before what is in it.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) root: PathBuf,
    pub(crate) entries: Vec<Entry>,
    pub(crate) totals: Totals,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) failures: Vec<Failure>,
}

/// One object at the source.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Relative to the root; empty for the root itself.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) attrs: Attrs,
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

/// Looks through `root`. What cannot be looked at is among the failures, and everything else in the plan.
pub(crate) fn scan(root: PathBuf, opts: &CopyOptions) -> Plan {
    let mut plan = Plan { root: root.clone(), ..Plan::default() };
    let mut names = HashMap::new();
    for found in WalkDir::new(root).sort_by_file_name() {
        if opts.cancelled() {
            break;
        }
        let looked_at = found.and_then(|found| Ok((found.metadata()?, found.into_path())));
        match looked_at {
            Ok((meta, path)) => plan.add(&mut names, &path, &meta),
            Err(error) => plan.failures.push(unreadable(error)),
        }
    }
    plan
}

impl Plan {
    fn add(&mut self, names: &mut HashMap<(u64, u64), usize>, path: &Path, meta: &Metadata) {
        let kind = match kind_of(meta) {
            Ok(Kind::File) => self.file_kind(names, meta),
            Ok(kind) => kind,
            Err(what) => return self.skipped.push(Skipped { path: path.to_owned(), what: what.to_owned() }),
        };
        let relative = path.strip_prefix(&self.root).unwrap_or(path).to_owned();
        self.entries.push(Entry { path: relative, kind, attrs: Attrs::of(meta) });
    }

    fn file_kind(&mut self, names: &mut HashMap<(u64, u64), usize>, meta: &Metadata) -> Kind {
        if meta.nlink() > 1 {
            let first = *names.entry((meta.dev(), meta.ino())).or_insert(self.entries.len());
            if first != self.entries.len() {
                return Kind::HardLink(first);
            }
        }
        self.totals.files += 1;
        self.totals.bytes = self.totals.bytes.saturating_add(meta.len());
        Kind::File
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

fn unreadable(error: walkdir::Error) -> Failure {
    let path = error.path().unwrap_or(Path::new("")).to_owned();
    match error.into_io_error() {
        Some(error) => Failure::io("look at it", &path, error),
        None => Failure::new(&path, Cause::Conflict("is inside itself")),
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

        let plan = scan(root.to_owned(), &CopyOptions::default());
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
        let plan = scan(file.path().to_owned(), &CopyOptions::default());
        assert_eq!(plan.entries.len(), 1);
        assert_eq!(plan.source(&plan.entries[0]), file.path());
        assert!(!plan.is_dir());
    }

    #[test]
    fn what_is_not_there_is_a_failure_with_its_name() {
        let plan = scan("/nonexistent/tree".into(), &CopyOptions::default());
        assert_eq!(plan.failures.len(), 1);
        assert!(plan.failures[0].to_string().starts_with("/nonexistent/tree: could not look at it"));
    }
}
