//! Restoration from an archive: into a temporary directory that is renamed when all of it has been compared.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bivouac_source::Source as _;
use rustix::fs::{Advice, OFlags};

use super::content::{Content, OpenFile, Pieces, each_file, read_piece, values};
use super::manifest::{Manifest, Object};
use super::{Archive, ArchiveError};
use crate::blocks::{BLOCK, file_digest, write};
use crate::error::{Cause, Failure};
use crate::manifest_line::LineKind;
use crate::meta::{Attrs, set_xattrs};
use crate::nofollow;
use crate::options::CopyOptions;
use crate::sync_group::{Durability, SyncedFs};
use crate::target::{CopyTarget, TargetOptions, TargetWriter, sync};
use crate::temporary::TemporaryObject;
use crate::temporary_tag::Tag;
use crate::tree::{no_links, no_reach};

/// Restores the tree.
pub(super) fn all(
    archive: &Archive<'_>,
    manifest: &Manifest,
    to: &Path,
    opts: &CopyOptions,
) -> Result<(), ArchiveError> {
    let options =
        TargetOptions { overwrite: false, is_resumable: false, replaces: false, tag: Tag::random() };
    let target = CopyTarget::open(to, true, &options).map_err(ArchiveError::Local)?;
    let files = manifest.objects.iter().filter(|object| object.line.kind == LineKind::File).count();
    let durability = Durability::of(target.anchor(), false, files as u64);
    let failed = |doing, error| ArchiveError::Local(Failure::io(doing, target.anchor(), error));
    let storage = match durability {
        Durability::SyncFs => {
            Some(SyncedFs::open(target.anchor()).map_err(|error| failed("open it", error))?)
        }
        Durability::Acknowledged | Durability::Fsync => None,
    };
    let synced = || {
        let done = storage.as_ref().map_or(Ok(()), SyncedFs::sync);
        done.map_err(|error| failed("write to stable storage", error))
    };
    ArchiveRestore { archive, writer: &target.writer, opts, is_each: storage.is_none() }
        .steps(manifest, &synced)?;
    synced()?;
    target.commit().map_err(ArchiveError::Local)
}

/// A restoration in progress.
struct ArchiveRestore<'a> {
    archive: &'a Archive<'a>,
    writer: &'a TargetWriter,
    opts: &'a CopyOptions,
    /// True if each object is synced separately.
    is_each: bool,
}

/// A file to restore, and the name of the object with its content.
#[derive(Clone, Copy)]
struct FileToFetch<'a> {
    object: &'a Object,
    kept: &'a Path,
}

impl ArchiveRestore<'_> {
    fn steps(
        &self,
        manifest: &Manifest,
        synced: &dyn Fn() -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let of = |kind| manifest.objects.iter().filter(move |object| object.line.kind == kind);
        for object in of(LineKind::Dir) {
            self.writer.dir(&object.line.name).map_err(self.failed(object, "make it"))?;
        }
        // Directories first and hard links after the files: each needs what it is made in, or of, to be there.
        let files = of(LineKind::File).map(|object| FileToFetch { object, kept: &object.line.name });
        self.files(&files.collect::<Vec<_>>(), synced)?;
        let mut copies = Vec::new();
        for object in of(LineKind::HardLink) {
            let first = &object.line.more;
            let linked =
                self.writer.hard_link(&object.line.name, first).and_then(|draft| self.writer.put(draft));
            match linked {
                // Without hard links the name becomes a copy of its own.
                Err(error) if no_links(&error) || no_reach(&error) => {
                    copies.push(FileToFetch { object, kept: first })
                }
                linked => drop(linked.map_err(self.failed(object, "make the hard link"))?),
            }
        }
        self.files(&copies, synced)?;
        for object in of(LineKind::Symlink) {
            let made = self.writer.symlink(&object.line.name, &object.line.more);
            self.finish_special(object, made).map_err(self.failed(object, "make the link"))?;
        }
        for object in of(LineKind::Fifo) {
            let made = self.writer.fifo(&object.line.name);
            self.finish_special(object, made).map_err(self.failed(object, "make the pipe"))?;
        }
        let dirs: Vec<&Object> = of(LineKind::Dir).collect();
        // Entries before their directory, whose times they change.
        dirs.into_iter().rev().try_for_each(|object| self.finish_dir(object))
    }

    /// Fetches contents, syncs them, and sets the attributes of those that read back correctly.
    fn files(
        &self,
        wanted: &[FileToFetch<'_>],
        synced: &dyn Fn() -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let (store, size_of) = (self.archive.store, |wanted: &FileToFetch<'_>| wanted.object.line.size);
        each_file(store, wanted, size_of, self.opts, |wanted| self.fetch(*wanted))?;
        synced()?;
        each_file(store, wanted, size_of, self.opts, |wanted| self.finish_file(wanted.object))
    }

    fn fetch(&self, FileToFetch { object, kept }: FileToFetch<'_>) -> Result<(), ArchiveError> {
        let (store, line, key) = (self.archive.store, &object.line, self.archive.path(kept));
        let damaged = |why: &str| ArchiveError::Damaged(format!("{}: {why}", store.object(&key)));
        let version = store.stat(&key)?.version;
        if version.size != line.size {
            return Err(damaged(&format!("is {} bytes, not {}: it is damaged", version.size, line.size)));
        }
        let (draft, file) =
            self.writer.file(&line.name, 0o600, true).map_err(self.failed(object, "make it"))?;
        // Holes are not written, so the size is set in advance.
        file.set_len(line.size).map_err(self.failed(object, "make it"))?;
        let seen = Mutex::new(Vec::new());
        Pieces::of(store, line.size).each(self.opts, |offset, len| {
            let mut piece = vec![0; len];
            read_piece(store, &key, &version, offset, &mut piece)?;
            let found: Vec<_> = values(offset, &piece, line.size).collect();
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((offset, found));
            write(&file, &piece, offset, object.holes).map_err(self.failed(object, "write"))
        })?;
        // Pieces come in any order.
        let mut seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        seen.sort();
        let values: Vec<_> = seen.into_iter().flat_map(|(_, values)| values).collect();
        assert_eq!(
            values.len() as u64,
            line.size.div_ceil(BLOCK),
            "a file was fetched without all of its blocks"
        );
        if Some(file_digest(&values)) != line.digest {
            return Err(damaged("has other bytes than were put there: it is damaged"));
        }
        if self.is_each {
            file.sync_all().map_err(self.failed(object, "write to stable storage"))?;
        }
        self.writer.put(draft).map_err(self.failed(object, "put in place")).map(drop)
    }

    /// Reads a file back, then sets its attributes, with which it may not be readable any more.
    fn finish_file(&self, object: &Object) -> Result<(), ArchiveError> {
        let (line, path) = (&object.line, self.writer.path(&object.line.name));
        let file = nofollow::open(&path, OFlags::RDWR, 0).map_err(self.failed(object, "read it back"))?;
        let _only_advice = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        let place = self.place(object);
        let from = OpenFile { file: &file, path: &place };
        let content = Content::new(&from, line.size);
        // The second read is from the disk: the page cache has been dropped above.
        if Some(content.full_digest(self.archive.store, self.opts)?) != line.digest {
            return Err(ArchiveError::Local(Failure::new(&place, Cause::Differs { offset: 0 })));
        }
        self.apply_attrs(object, &file)?;
        if self.is_each {
            file.sync_all().map_err(self.failed(object, "write to stable storage"))?;
        }
        Ok(())
    }

    fn finish_dir(&self, object: &Object) -> Result<(), ArchiveError> {
        let path = self.writer.path(&object.line.name);
        let dir = nofollow::open_dir(&path).map_err(self.failed(object, "open it"))?;
        self.apply_attrs(object, &dir)?;
        if self.is_each { sync(&dir).map_err(self.failed(object, "write to stable storage")) } else { Ok(()) }
    }

    /// Sets all attributes of a file or directory.
    fn apply_attrs(&self, object: &Object, file: &File) -> Result<(), ArchiveError> {
        let refused = set_xattrs(file, &object.xattrs).map_err(self.failed(object, "set its attributes"))?;
        if let Some(name) = refused.first() {
            let what =
                format!("the file system does not take its attribute {name}, so it would not be as it was");
            return Err(ArchiveError::Unsupported { path: self.place(object), what });
        }
        object.attrs().apply(file).map_err(self.failed(object, "set mode and times"))
    }

    /// Sets the attributes of a link or pipe, and renames it to its final name.
    fn finish_special(&self, object: &Object, made: io::Result<TemporaryObject>) -> io::Result<()> {
        let draft = made?;
        let attrs: Attrs = object.attrs();
        attrs.apply_at(draft.path())?;
        self.writer.put(draft).map(drop)
    }

    fn place(&self, object: &Object) -> PathBuf {
        self.writer.place(&object.line.name)
    }

    fn failed(&self, object: &Object, doing: &'static str) -> impl Fn(io::Error) -> ArchiveError {
        let place = self.place(object);
        move |error| ArchiveError::Local(Failure::io(doing, &place, error))
    }
}
