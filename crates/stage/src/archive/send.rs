//! Archiving of a tree.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bivouac_source::{Attrs, Cause as StoreCause, Precondition, Source as _};
use bivouac_types::Timestamp;
use blake3::Hash;

use super::content::{Content, OpenFile, Pieces, each_file};
use super::manifest::{Manifest, Object};
use super::{Archive, ArchiveError};
use crate::error::{Cause, Failure};
use crate::manifest_line::{Line, LineKind};
use crate::meta::{MetadataStamp, xattrs_of};
use crate::nofollow;
use crate::options::CopyOptions;
use crate::scan::{Entry, ObjectKind, Plan, has_holes, scan};

/// Scans the tree, and refuses what an archive cannot represent before anything is stored.
pub(super) fn plan(archive: &Archive<'_>, from: &Path, opts: &CopyOptions) -> Result<Plan, ArchiveError> {
    let root = std::fs::canonicalize(from);
    let root = root.map_err(|error| ArchiveError::Local(Failure::io("look at it", from, error)))?;
    let mut plan = scan(root, opts, None);
    if opts.cancelled() {
        return Err(ArchiveError::Cancelled);
    }
    if !plan.failures.is_empty() {
        return Err(ArchiveError::Local(plan.failures.swap_remove(0)));
    }
    if !plan.skipped.is_empty() {
        let skipped = plan.skipped.swap_remove(0);
        let what = format!("is a {}, of which there is no copy in an archive; move it away", skipped.what);
        return Err(ArchiveError::Unsupported { path: skipped.path, what });
    }
    for entry in plan.entries.iter().filter(|entry| entry.kind == ObjectKind::File) {
        // Fails if the name cannot be a key.
        archive.store.plan(&archive.path(&entry.path), entry.stamp.size)?;
    }
    Ok(plan)
}

/// An archiving in progress.
pub(super) struct ArchiveUpload<'a> {
    pub(super) archive: &'a Archive<'a>,
    pub(super) plan: &'a Plan,
    pub(super) opts: &'a CopyOptions,
    /// True if an earlier attempt may have stored objects.
    pub(super) is_resumed: bool,
    /// The complete copy that is there.
    pub(super) base: Option<&'a Manifest>,
}

impl ArchiveUpload<'_> {
    /// Stores all objects that are missing, and returns the manifest.
    pub(super) fn all(&self) -> Result<Manifest, ArchiveError> {
        let base = self.base.map(Manifest::digests).unwrap_or_default();
        let entries = self.plan.entries.iter().enumerate();
        let files = entries.filter(|(_, entry)| entry.kind == ObjectKind::File);
        let files: Vec<(usize, &Entry)> = files.collect();
        let sent: Mutex<HashMap<usize, Object>> = Mutex::default();
        each_file(
            self.archive.store,
            &files,
            |(_, entry)| entry.stamp.size,
            self.opts,
            |(number, entry)| {
                let object = self.file(entry, &base)?;
                sent.lock().unwrap_or_else(PoisonError::into_inner).insert(*number, object);
                Ok(())
            },
        )?;
        let mut sent = sent.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut objects: Vec<Object> = Vec::with_capacity(self.plan.entries.len());
        for (number, entry) in self.plan.entries.iter().enumerate() {
            let object = match (sent.remove(&number), entry.kind) {
                (Some(object), _) => object,
                (None, ObjectKind::HardLink(first)) => {
                    let first = objects.get(first).ok_or_else(|| self.changed(entry))?;
                    let line = Line {
                        kind: LineKind::HardLink,
                        more: first.line.name.clone(),
                        ..first.line.clone()
                    };
                    Object::of(Line { name: entry.path.clone(), ..line })
                }
                (None, _) => self.other(entry)?,
            };
            objects.push(object);
        }
        assert!(sent.is_empty(), "an archived file is missing from the manifest");
        Ok(Manifest { objects })
    }

    fn changed(&self, entry: &Entry) -> ArchiveError {
        ArchiveError::Local(Failure::new(&self.plan.source(entry), Cause::Changed))
    }

    fn file(&self, entry: &Entry, base: &HashMap<&Path, Hash>) -> Result<Object, ArchiveError> {
        let (source, store, opts) = (self.plan.source(entry), self.archive.store, self.opts);
        let failed = |doing| {
            let source = &source;
            move |error: std::io::Error| ArchiveError::Local(Failure::io(doing, source, error))
        };
        let file = nofollow::open_for_reading(&source).map_err(failed("open"))?;
        let meta = file.metadata().map_err(failed("look at it"))?;
        let before = MetadataStamp::of(&meta);
        if !meta.is_file() {
            return Err(self.changed(entry));
        }
        let (key, attrs) = (self.archive.path(&entry.path), attrs_of(&before));
        let from = OpenFile { file: &file, path: &source };
        let content = Content::new(&from, before.size);
        let expected = base.get(entry.path.as_path());
        if !self.is_there(&key, &content)? {
            // Compared before anything is stored: a complete copy must not be damaged by other content.
            if let Some(expected) = expected
                && content.full_digest(store, opts)? != *expected
            {
                return Err(ArchiveError::Differs(source));
            }
            // Parts of an upload that was never completed cost money, and nothing else names them.
            if self.is_resumed && Pieces::of(store, before.size).count() > 1 {
                store.abort_unfinished_uploads(&key)?;
            }
            content.put(store, &key, &attrs, &Precondition::Anything, opts)?;
        }
        let digest = content.full_digest(store, opts)?;
        if expected.is_some_and(|expected| *expected != digest) {
            return Err(ArchiveError::Differs(source));
        }
        // Read before the last check of the ctime, which covers them.
        let xattrs = xattrs_of(&file).map_err(failed("read its attributes"))?;
        if MetadataStamp::of(&file.metadata().map_err(failed("look at it"))?) != before {
            return Err(self.changed(entry));
        }
        let line =
            Line { digest: Some(digest), source: None, ..Line::of(LineKind::File, &before, &entry.path) };
        Ok(Object { line, xattrs, holes: has_holes(&meta) })
    }

    /// Returns whether an earlier attempt has stored the same content.
    fn is_there(&self, key: &[u8], content: &Content<'_>) -> Result<bool, ArchiveError> {
        if !self.is_resumed {
            return Ok(false);
        }
        match self.archive.store.stat(key) {
            Ok(found) if found.is_file() => content.is_at(self.archive.store, key, &found.version, self.opts),
            Err(error) if error.cause() != StoreCause::NotFound => Err(error.into()),
            _ => Ok(false),
        }
    }

    /// Returns an object whose content is in the manifest alone.
    fn other(&self, entry: &Entry) -> Result<Object, ArchiveError> {
        let source = self.plan.source(entry);
        let failed = |doing, error| ArchiveError::Local(Failure::io(doing, &source, error));
        let kind = match entry.kind {
            ObjectKind::Dir => LineKind::Dir,
            ObjectKind::Symlink => LineKind::Symlink,
            ObjectKind::Fifo => LineKind::Fifo,
            ObjectKind::File | ObjectKind::HardLink(_) => return Err(self.changed(entry)),
        };
        let mut object = Object::of(Line { source: None, ..Line::of(kind, &entry.stamp, &entry.path) });
        match kind {
            LineKind::Dir => {
                let dir = nofollow::open_dir(&source).map_err(|error| failed("open", error))?;
                object.xattrs = xattrs_of(&dir).map_err(|error| failed("read its attributes", error))?;
                // The size of a directory depends on its file system.
                object.line.size = 0;
            }
            LineKind::Symlink => {
                object.line.more =
                    nofollow::read_link(&source).map_err(|error| failed("read the link", error))?;
            }
            _ => {}
        }
        Ok(object)
    }
}

/// Returns the attributes stored with a file's object, for other tools.
fn attrs_of(stamp: &MetadataStamp) -> Attrs {
    let (secs, nanos) = stamp.attrs.mtime;
    let time = Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0) };
    let of = &stamp.attrs;
    Attrs { perm: of.mode, uid: of.uid, gid: of.gid, mtime: time, atime: time, xattrs: Vec::new() }
}
