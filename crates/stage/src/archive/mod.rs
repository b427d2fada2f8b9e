//! Copies of trees in an object store, verified as the others are.
//!
//! A copy is an object per file, under the file's name, as a partition in front of the store would have it, and a
//! manifest with all that objects cannot hold: further names, links, empty directories, attributes. It is there when its
//! manifest is, which is put last and as a whole. What stands in for it until then says whose the copy in the making is:
//! who finds something else there at the end has not made one.
//!
//! Objects of a copy that is whole are put again only with the bytes that the manifest has. So whatever is killed when,
//! what was whole is so, and what was not is gone on with, or swept away.

mod content;
mod fetch;
mod manifest;
mod send;

use std::path::{Path, PathBuf};

use bivouac_source::{Attrs, Cause as StoreCause, Expect, S3Source, Source as _, SourceError, Version};

use crate::tag::Tag;
use crate::{CopyOptions, Failure, Summary, escape, straight};
use content::{Content, Text};
use manifest::Found;
pub use manifest::Manifest;

/// What the manifest of a copy has behind its name.
const MANIFEST: &str = ".manifest";
/// Largest manifest that is read, in bytes.
const MANIFEST_MAX: u64 = 16 << 30;
/// Largest stand-in of one, in bytes.
const UNFINISHED_MAX: u64 = 256;

/// Why a tree is not archived, or not brought back.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The caller's flag was set. What is whole stays for the next command.
    #[error("cancelled")]
    Cancelled,
    /// Something on this side.
    #[error("{0}")]
    Here(Failure),
    /// Something at the store.
    #[error("{0}")]
    Store(SourceError),
    /// Something that would not be the same there.
    #[error("{}: {what}", escape(path))]
    Refused {
        /// Its path.
        path: PathBuf,
        /// Why, and what to do about it.
        what: String,
    },
    /// A file has other contents than the whole copy that is there.
    #[error("{}: has other contents than its copy in the archive", escape(.0))]
    Differs(PathBuf),
    /// The store does not have what was put there.
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

/// A copy whose objects are all there, and compared.
pub struct Draft<'a> {
    archive: &'a Archive<'a>,
    manifest: Manifest,
    /// What is where its manifest is to be.
    there: Version,
    /// What that says, if it is one.
    base: Option<Manifest>,
}

impl<'a> Archive<'a> {
    /// The copy with this name.
    #[must_use]
    pub fn new(store: &'a S3Source, name: &'a str) -> Archive<'a> {
        Archive { store, name }
    }

    fn manifest_path(&self) -> Vec<u8> {
        format!("{}{MANIFEST}", self.name).into_bytes()
    }

    /// Where the content of a file is.
    fn path(&self, name: &Path) -> Vec<u8> {
        format!("{}/{}", self.name, escape(name)).into_bytes()
    }

    /// The manifest as users know it.
    fn shown(&self) -> String {
        self.store.object(&self.manifest_path())
    }

    /// Puts all files of a tree there, and compares them. It is no copy before [`Draft::commit`].
    ///
    /// # Errors
    /// Of the first object that cannot be put. What has been put stays, for who goes on.
    pub fn put(&'a self, from: &Path, opts: &CopyOptions) -> Result<Draft<'a>, ArchiveError> {
        let plan = send::plan(self, from, opts)?;
        let found = self.look()?;
        let is_resumed = found.is_some();
        let (there, base) = match found {
            None => (self.begin(None)?, None),
            Some((Found::Unfinished, there)) => (self.begin(Some(there))?, None),
            Some((found, there)) => (there, Some(self.whole(found)?)),
        };
        let sending = send::Sending { archive: self, plan: &plan, opts, is_resumed, base: base.as_ref() };
        let sent = sending.all();
        let is_lost =
            |error: &ArchiveError| matches!(error, ArchiveError::Store(e) if e.cause() == StoreCause::Lost);
        if !sent.as_ref().is_err_and(is_lost) {
            // Also those that nobody knows of: the answer was lost that named them.
            let _as_far_as_it_goes = self.store.abort_left(self.name.as_bytes());
        }
        Ok(Draft { archive: self, manifest: sent?, there, base })
    }

    /// The manifest of a copy that is whole.
    ///
    /// # Errors
    /// That there is none, or that it is not as it was.
    pub fn manifest(&self) -> Result<Manifest, ArchiveError> {
        match self.look()? {
            Some((found, _)) => self.whole(found),
            None => Err(self.damaged("is not there any more; put a copy of it back")),
        }
    }

    fn whole(&self, found: Found) -> Result<Manifest, ArchiveError> {
        match found {
            Found::Whole(manifest) => Ok(manifest),
            Found::Unfinished => Err(self.damaged("is that of a copy that was never completed")),
            Found::Damaged(why) => Err(self.damaged(&format!("is damaged: it {why}; put a copy of it back"))),
            Found::Other => Err(self.damaged("has a form that this release does not know; use a later one")),
        }
    }

    fn damaged(&self, why: &str) -> ArchiveError {
        ArchiveError::Damaged(format!("{}: {why}", self.shown()))
    }

    /// Makes a tree of what a copy holds, in the place of nothing.
    ///
    /// # Errors
    /// Of the first object that is not as the manifest has it, or cannot be made: then nothing is there.
    pub fn fetch(&self, manifest: &Manifest, to: &Path, opts: &CopyOptions) -> Result<Summary, ArchiveError> {
        fetch::all(self, manifest, &straight::canonical(to), opts)?;
        Ok(manifest.summary())
    }

    /// What is where the manifest should be.
    fn look(&self) -> Result<Option<(Found, Version)>, ArchiveError> {
        let path = self.manifest_path();
        let version = match self.store.stat(&path) {
            Err(error) if error.cause() == StoreCause::NotFound => return Ok(None),
            found => found?.version,
        };
        if version.size > MANIFEST_MAX {
            return Ok(Some((Found::Damaged("is larger than a manifest can be".to_owned()), version)));
        }
        let bytes = content::read(self.store, &path, &version)?;
        Ok(Some((Manifest::decode(&bytes), version)))
    }

    /// Says at the store that a copy is being made: whoever did before has it no more.
    fn begin(&self, there: Option<Version>) -> Result<Version, SourceError> {
        let expect = there.map_or(Expect::Absent, Expect::Version);
        let text = manifest::unfinished(Tag::draw().as_str());
        let put = self.store.put_file(&self.manifest_path(), text.as_bytes(), &attrs(), &expect);
        put.map(|kept| kept.version).map_err(|error| self.taken(error))
    }

    /// Removes what there is of a copy that is not whole, as it was seen.
    fn clear(&self, there: Version) -> Result<(), SourceError> {
        // Who works on it cannot complete it from now on.
        let mine = self.begin(Some(there))?;
        self.store.clear(self.name.as_bytes())?;
        self.store.remove(&self.manifest_path(), Some(&mine))
    }

    fn taken(&self, error: SourceError) -> SourceError {
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

impl Draft<'_> {
    /// Sums and digest of the tree.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.manifest.summary()
    }

    /// Makes it a copy, by putting its manifest.
    ///
    /// # Errors
    /// That somebody else has meanwhile put or removed the same; as [`Archive::put`].
    pub fn commit(self) -> Result<(), ArchiveError> {
        let Draft { archive, manifest, there, base } = self;
        if base.as_ref() == Some(&manifest) {
            return Ok(());
        }
        let text = manifest.encode();
        let text = Text(text.as_bytes());
        let content = Content::new(&text, text.0.len() as u64);
        let (path, expect) = (archive.manifest_path(), Expect::Version(there));
        content.put(archive.store, &path, &attrs(), &expect, &CopyOptions::default()).map_err(|error| {
            match error {
                ArchiveError::Store(error) => ArchiveError::Store(archive.taken(error)),
                error => error,
            }
        })
    }

    /// Removes it, unless there was a copy before.
    ///
    /// # Errors
    /// What the store says.
    pub fn discard(self) -> Result<(), ArchiveError> {
        if self.base.is_some() { Ok(()) } else { Ok(self.archive.clear(self.there)?) }
    }
}

/// Removes copies that were not whole when their command was killed, but for one. `is_name` says what is one.
///
/// # Errors
/// What the store says.
pub fn sweep(store: &S3Source, except: &str, is_name: impl Fn(&str) -> bool) -> Result<(), ArchiveError> {
    for entry in store.list(b"")? {
        let name = str::from_utf8(&entry.name).ok().and_then(|name| name.strip_suffix(MANIFEST));
        let Some(name) = name.filter(|name| *name != except && is_name(name)) else { continue };
        if !entry.meta.is_file() || entry.meta.version.size > UNFINISHED_MAX {
            continue;
        }
        let archive = Archive::new(store, name);
        let Some((Found::Unfinished, there)) = archive.look()? else { continue };
        match archive.clear(there) {
            // Somebody else does that, or goes on with it.
            Err(error) if error.cause() == StoreCause::Changed => {}
            cleared => cleared?,
        }
    }
    Ok(())
}

/// Of objects that are no files of the tree.
fn attrs() -> Attrs {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Attrs { perm: 0o600, uid, gid, ..Attrs::default() }
}
