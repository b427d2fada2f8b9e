//! The way out of an archive: into a directory that nobody sees until all of it is there, and compared.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bivouac_source::Source as _;
use rustix::fs::{Advice, OFlags};

use super::content::{Content, OpenFile, Pieces, each_file, read_piece, values};
use super::manifest::{Manifest, Object};
use super::{Archive, ArchiveError};
use crate::blocks::{file_digest, write};
use crate::draft::Draft;
use crate::group::{Durability, Storage};
use crate::line::LineKind;
use crate::meta::{Attrs, set_xattrs};
use crate::straight;
use crate::tag::Tag;
use crate::target::{Manner, Spot, Target, sync};
use crate::tree::{no_links, no_reach};
use crate::{Cause, CopyOptions, Failure};

/// Makes the tree.
pub(super) fn all(
    archive: &Archive<'_>,
    manifest: &Manifest,
    to: &Path,
    opts: &CopyOptions,
) -> Result<(), ArchiveError> {
    let manner = Manner { overwrite: false, is_resumable: false, tag: Tag::draw() };
    let target = Target::open(to, true, &manner).map_err(ArchiveError::Here)?;
    let files = manifest.objects.iter().filter(|object| object.line.kind == LineKind::File).count();
    let durability = Durability::of(target.anchor(), false, files as u64);
    let failed = |doing, error| ArchiveError::Here(Failure::io(doing, target.anchor(), error));
    let storage = match durability {
        Durability::Together => {
            Some(Storage::open(target.anchor()).map_err(|error| failed("open it", error))?)
        }
        Durability::Acknowledged | Durability::Each => None,
    };
    let synced = || {
        let done = storage.as_ref().map_or(Ok(()), Storage::sync);
        done.map_err(|error| failed("write to stable storage", error))
    };
    Fetching { archive, spot: &target.spot, opts, is_each: storage.is_none() }.steps(manifest, &synced)?;
    synced()?;
    target.commit().map_err(ArchiveError::Here)
}

/// A tree on its way back.
struct Fetching<'a> {
    archive: &'a Archive<'a>,
    spot: &'a Spot,
    opts: &'a CopyOptions,
    /// Whether each object is written to stable storage by itself.
    is_each: bool,
}

/// A file to be made, and the name under which its content is kept.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    object: &'a Object,
    kept: &'a Path,
}

impl Fetching<'_> {
    fn steps(
        &self,
        manifest: &Manifest,
        synced: &dyn Fn() -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let of = |kind| manifest.objects.iter().filter(move |object| object.line.kind == kind);
        for object in of(LineKind::Dir) {
            self.spot.dir(&object.line.name).map_err(self.failed(object, "make it"))?;
        }
        let files = of(LineKind::File).map(|object| Wanted { object, kept: &object.line.name });
        self.files(&files.collect::<Vec<_>>(), synced)?;
        let mut copies = Vec::new();
        for object in of(LineKind::HardLink) {
            let first = &object.line.more;
            let linked = self.spot.hard_link(&object.line.name, first).and_then(|draft| self.spot.put(draft));
            match linked {
                // Where no link can be, there is another copy.
                Err(error) if no_links(&error) || no_reach(&error) => {
                    copies.push(Wanted { object, kept: first })
                }
                linked => drop(linked.map_err(self.failed(object, "make the hard link"))?),
            }
        }
        self.files(&copies, synced)?;
        for object in of(LineKind::Symlink) {
            let made = self.spot.symlink(&object.line.name, &object.line.more);
            self.dress(object, made).map_err(self.failed(object, "make the link"))?;
        }
        for object in of(LineKind::Fifo) {
            let made = self.spot.fifo(&object.line.name);
            self.dress(object, made).map_err(self.failed(object, "make the pipe"))?;
        }
        let dirs: Vec<&Object> = of(LineKind::Dir).collect();
        // What is inside before what is around it.
        dirs.into_iter().rev().try_for_each(|object| self.finish_dir(object))
    }

    /// Fetches contents, has them on stable storage, and gives those that read back right their attributes.
    fn files(
        &self,
        wanted: &[Wanted<'_>],
        synced: &dyn Fn() -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let (store, size_of) = (self.archive.store, |wanted: &Wanted<'_>| wanted.object.line.size);
        each_file(store, wanted, size_of, self.opts, |wanted| self.fetch(*wanted))?;
        synced()?;
        each_file(store, wanted, size_of, self.opts, |wanted| self.finish_file(wanted.object))
    }

    fn fetch(&self, Wanted { object, kept }: Wanted<'_>) -> Result<(), ArchiveError> {
        let (store, line, key) = (self.archive.store, &object.line, self.archive.path(kept));
        let damaged = |why: &str| ArchiveError::Damaged(format!("{}: {why}", store.object(&key)));
        let version = store.stat(&key)?.version;
        if version.size != line.size {
            return Err(damaged(&format!("is {} bytes, not {}: it is damaged", version.size, line.size)));
        }
        let (draft, file) =
            self.spot.file(&line.name, 0o600, true).map_err(self.failed(object, "make it"))?;
        // Holes are not written.
        file.set_len(line.size).map_err(self.failed(object, "make it"))?;
        let seen = Mutex::new(Vec::new());
        Pieces::of(store, line.size).each(self.opts, |offset, len| {
            let mut piece = vec![0; len];
            read_piece(store, &key, &version, offset, &mut piece)?;
            let found: Vec<_> = values(offset, &piece, line.size).collect();
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((offset, found));
            write(&file, &piece, offset, object.holes).map_err(self.failed(object, "write"))
        })?;
        let mut seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        seen.sort();
        let values: Vec<_> = seen.into_iter().flat_map(|(_, values)| values).collect();
        if Some(file_digest(&values)) != line.digest {
            return Err(damaged("has other bytes than were put there: it is damaged"));
        }
        if self.is_each {
            file.sync_all().map_err(self.failed(object, "write to stable storage"))?;
        }
        self.spot.put(draft).map_err(self.failed(object, "put in place")).map(drop)
    }

    /// Reads a file back, and gives it its attributes: it may not be readable with them.
    fn finish_file(&self, object: &Object) -> Result<(), ArchiveError> {
        let (line, path) = (&object.line, self.spot.path(&object.line.name));
        let file = straight::open(&path, OFlags::RDWR, 0).map_err(self.failed(object, "read it back"))?;
        let _only_advice = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        let place = self.place(object);
        let from = OpenFile { file: &file, path: &place };
        let content = Content::new(&from, line.size);
        if Some(content.look(self.archive.store, self.opts)?) != line.digest {
            return Err(ArchiveError::Here(Failure::new(&place, Cause::Differs { offset: 0 })));
        }
        self.give(object, &file)?;
        if self.is_each {
            file.sync_all().map_err(self.failed(object, "write to stable storage"))?;
        }
        Ok(())
    }

    fn finish_dir(&self, object: &Object) -> Result<(), ArchiveError> {
        let path = self.spot.path(&object.line.name);
        let dir = straight::open_dir(&path).map_err(self.failed(object, "open it"))?;
        self.give(object, &dir)?;
        if self.is_each { sync(&dir).map_err(self.failed(object, "write to stable storage")) } else { Ok(()) }
    }

    /// Gives a file or directory all its attributes.
    fn give(&self, object: &Object, file: &File) -> Result<(), ArchiveError> {
        let refused = set_xattrs(file, &object.xattrs).map_err(self.failed(object, "set its attributes"))?;
        if let Some(name) = refused.first() {
            let what =
                format!("the file system does not take its attribute {name}, so it would not be as it was");
            return Err(ArchiveError::Refused { path: self.place(object), what });
        }
        object.attrs().apply(file).map_err(self.failed(object, "set mode and times"))
    }

    /// Gives a link or pipe its attributes, and its name.
    fn dress(&self, object: &Object, made: io::Result<Draft>) -> io::Result<()> {
        let draft = made?;
        let attrs: Attrs = object.attrs();
        attrs.apply_at(draft.path())?;
        self.spot.put(draft).map(drop)
    }

    fn place(&self, object: &Object) -> PathBuf {
        self.spot.place(&object.line.name)
    }

    fn failed(&self, object: &Object, doing: &'static str) -> impl Fn(io::Error) -> ArchiveError {
        let place = self.place(object);
        move |error| ArchiveError::Here(Failure::io(doing, &place, error))
    }
}
