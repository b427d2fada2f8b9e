//! Verified copies of trees in an object store.
//!
//! A copy is an object per file, under the file's name, as a partition in front of the store would have it, and a
//! manifest with all that objects cannot hold: further names, links, empty directories, attributes. It is there when
//! its manifest is, which is put last and as a whole. What stands in for it until then says whose the copy in the
//! making is: who finds something else there at the end has not made one.
//!
//! Objects of a copy that is whole are put again only with the bytes that the manifest has. So whatever is killed when,
//! what was whole is so, and what was not is gone on with, or swept away.

mod content;
mod fetch;
mod manifest;
mod send;

use std::path::{Path, PathBuf};

use bivouac_source::{Attrs, Cause as StoreCause, Precondition, S3Source, Source as _, SourceError, Version};

use crate::error::Failure;
use crate::escape::escape;
use crate::nofollow;
use crate::options::CopyOptions;
use crate::summary::Summary;
use crate::temporary_tag::Tag;
use content::{Content, MemoryBytes};
pub use manifest::Manifest;
use manifest::StoredManifest;

/// Suffix of the manifest's key.
const MANIFEST: &str = ".manifest";
/// Upper limit of a manifest, in bytes.
const MANIFEST_MAX: u64 = 16 << 30;
/// Upper limit of a placeholder, in bytes.
const UNFINISHED_MAX: u64 = 256;

/// Reason why a tree is not archived or restored.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Cancelled by the caller. Complete objects stay for a retry.
    #[error("cancelled")]
    Cancelled,
    /// A failure of the local tree.
    #[error("{0}")]
    Local(Failure),
    /// A failure of the store.
    #[error("{0}")]
    Store(SourceError),
    /// An object that the archive or the file system cannot represent.
    #[error("{}: {what}", escape(path))]
    Unsupported {
        /// Its path.
        path: PathBuf,
        /// Reason and remedy.
        what: String,
    },
    /// The content of a file differs from that of the complete copy in the archive.
    #[error("{}: has other contents than its copy in the archive", escape(.0))]
    Differs(PathBuf),
    /// The store's content is missing or damaged.
    #[error("{0}")]
    Damaged(String),
}

impl From<SourceError> for ArchiveError {
    fn from(error: SourceError) -> ArchiveError {
        ArchiveError::Store(error)
    }
}

/// A copy of a tree in an object store.
pub struct Archive<'a> {
    store: &'a S3Source,
    name: &'a str,
}

/// A copy whose objects are all stored and compared, without its manifest.
pub struct UncommittedArchive<'a> {
    archive: &'a Archive<'a>,
    manifest: Manifest,
    /// Version of the manifest object that the commit replaces.
    there: Version,
    /// The complete copy that was there before.
    base: Option<Manifest>,
}

impl<'a> Archive<'a> {
    /// Refers to the copy with this name.
    #[must_use]
    pub fn new(store: &'a S3Source, name: &'a str) -> Archive<'a> {
        Archive { store, name }
    }

    fn manifest_path(&self) -> Vec<u8> {
        format!("{}{MANIFEST}", self.name).into_bytes()
    }

    /// Returns the path of a file's object.
    fn path(&self, name: &Path) -> Vec<u8> {
        format!("{}/{}", self.name, escape(name)).into_bytes()
    }

    /// Returns the manifest's path for messages.
    fn shown(&self) -> String {
        self.store.object(&self.manifest_path())
    }

    /// Stores and compares all files of a tree. The copy does not exist before [`UncommittedArchive::commit`].
    ///
    /// # Errors
    /// Of the first object that cannot be put. What has been put stays, for who goes on.
    pub fn put(&'a self, from: &Path, opts: &CopyOptions) -> Result<UncommittedArchive<'a>, ArchiveError> {
        let plan = send::plan(self, from, opts)?;
        let found = self.load_manifest()?;
        let is_resumed = found.is_some();
        let (there, base) = match found {
            None => (self.begin(None)?, None),
            // Under a placeholder of this command's own: one that is still making the same copy cannot complete it any
            // more.
            Some((StoredManifest::Unfinished, there)) => (self.begin(Some(there))?, None),
            Some((found, there)) => (there, Some(self.complete_manifest(found)?)),
        };
        let sending =
            send::ArchiveUpload { archive: self, plan: &plan, opts, is_resumed, base: base.as_ref() };
        let sent = sending.all();
        let is_lost =
            |error: &ArchiveError| matches!(error, ArchiveError::Store(e) if e.cause() == StoreCause::Lost);
        // A store that does not answer would be waited for once more.
        if !sent.as_ref().is_err_and(is_lost) {
            // Includes uploads whose id is unknown, because the response that had it was lost.
            let _as_far_as_it_goes = self.store.abort_unfinished_uploads(self.name.as_bytes());
        }
        Ok(UncommittedArchive { archive: self, manifest: sent?, there, base })
    }

    /// Returns the manifest of a complete copy.
    ///
    /// # Errors
    /// That there is none, or that it is not as it was.
    pub fn manifest(&self) -> Result<Manifest, ArchiveError> {
        match self.load_manifest()? {
            Some((found, _)) => self.complete_manifest(found),
            None => Err(self.damaged("is not there any more; put a copy of it back")),
        }
    }

    fn complete_manifest(&self, found: StoredManifest) -> Result<Manifest, ArchiveError> {
        match found {
            StoredManifest::Complete(manifest) => Ok(manifest),
            StoredManifest::Unfinished => Err(self.damaged("is that of a copy that was never completed")),
            StoredManifest::Damaged(why) => {
                Err(self.damaged(&format!("is damaged: it {why}; put a copy of it back")))
            }
            StoredManifest::OtherVersion => {
                Err(self.damaged("has a form that this release does not know; use a later one"))
            }
        }
    }

    fn damaged(&self, why: &str) -> ArchiveError {
        ArchiveError::Damaged(format!("{}: {why}", self.shown()))
    }

    /// Restores a tree to a path where nothing is.
    ///
    /// # Errors
    /// Of the first object that is not as the manifest has it, or cannot be made: then nothing is there.
    pub fn fetch(&self, manifest: &Manifest, to: &Path, opts: &CopyOptions) -> Result<Summary, ArchiveError> {
        fetch::all(self, manifest, &nofollow::canonical(to), opts)?;
        Ok(manifest.summary())
    }

    /// Reads the manifest object.
    fn load_manifest(&self) -> Result<Option<(StoredManifest, Version)>, ArchiveError> {
        let path = self.manifest_path();
        let version = match self.store.stat(&path) {
            Err(error) if error.cause() == StoreCause::NotFound => return Ok(None),
            found => found?.version,
        };
        // Checked before the read: the size is the store's claim.
        if version.size > MANIFEST_MAX {
            return Ok(Some((
                StoredManifest::Damaged("is larger than a manifest can be".to_owned()),
                version,
            )));
        }
        let bytes = content::read(self.store, &path, &version)?;
        Ok(Some((Manifest::decode(&bytes), version)))
    }

    /// Writes a placeholder manifest: a command that was making the same copy fails from then on.
    fn begin(&self, there: Option<Version>) -> Result<Version, SourceError> {
        let expect = there.map_or(Precondition::Absent, Precondition::Version);
        let text = manifest::unfinished(Tag::random().as_str());
        let put = self.store.put_file(&self.manifest_path(), text.as_bytes(), &attrs(), &expect);
        put.map(|kept| kept.version).map_err(|error| self.conflict_error(error))
    }

    /// Removes an incomplete copy, if its placeholder still has this version.
    fn clear(&self, there: Version) -> Result<(), SourceError> {
        // The placeholder changes first, so a command that is making the copy cannot commit it any more.
        let mine = self.begin(Some(there))?;
        self.store.clear(self.name.as_bytes())?;
        self.store.remove(&self.manifest_path(), Some(&mine))
    }

    fn conflict_error(&self, error: SourceError) -> SourceError {
        match error.cause() {
            StoreCause::Changed => {
                let text =
                    "was replaced or removed meanwhile: does another command make the same copy? Ask again";
                SourceError::new(StoreCause::Changed, format!("{}: {text}", self.shown()))
            }
            _ => error,
        }
    }
}

impl UncommittedArchive<'_> {
    /// Returns totals and digest of the tree.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.manifest.summary()
    }

    /// Completes the copy by writing its manifest.
    ///
    /// # Errors
    /// That somebody else has meanwhile put or removed the same; as [`Archive::put`].
    pub fn commit(self) -> Result<(), ArchiveError> {
        let UncommittedArchive { archive, manifest, there, base } = self;
        // The complete copy has exactly this content already.
        if base.as_ref() == Some(&manifest) {
            return Ok(());
        }
        let text = manifest.encode();
        let text = MemoryBytes(text.as_bytes());
        let content = Content::new(&text, text.0.len() as u64);
        let (path, expect) = (archive.manifest_path(), Precondition::Version(there));
        // With options of its own: what is all there but for the manifest is not cancelled any more.
        content.put(archive.store, &path, &attrs(), &expect, &CopyOptions::default()).map_err(|error| {
            match error {
                ArchiveError::Store(error) => ArchiveError::Store(archive.conflict_error(error)),
                error => error,
            }
        })
    }

    /// Removes the objects, unless a complete copy was there before.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn discard(self) -> Result<(), ArchiveError> {
        if self.base.is_some() { Ok(()) } else { Ok(self.archive.clear(self.there)?) }
    }
}

/// Removes incomplete copies of killed commands, except for one. `is_name` tells names of copies from other names.
///
/// # Errors
/// Errors of the store.
pub fn sweep(store: &S3Source, except: &str, is_name: impl Fn(&str) -> bool) -> Result<(), ArchiveError> {
    for entry in store.list(b"")? {
        let name = str::from_utf8(&entry.name).ok().and_then(|name| name.strip_suffix(MANIFEST));
        let Some(name) = name.filter(|name| *name != except && is_name(name)) else { continue };
        // Manifests of complete copies are hardly ever so short, and are not read for nothing.
        if !entry.meta.is_file() || entry.meta.version.size > UNFINISHED_MAX {
            continue;
        }
        let archive = Archive::new(store, name);
        let Some((StoredManifest::Unfinished, there)) = archive.load_manifest()? else { continue };
        match archive.clear(there) {
            // Another command is removing the copy, or continues it.
            Err(error) if error.cause() == StoreCause::Changed => {}
            cleared => cleared?,
        }
    }
    Ok(())
}

/// Returns the attributes of objects that are not files of the tree.
fn attrs() -> Attrs {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Attrs { perm: 0o600, uid, gid, ..Attrs::default() }
}
