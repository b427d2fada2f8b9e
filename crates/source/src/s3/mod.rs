//! An object store as a source: anything that speaks S3.
//!
//! A file is the object under its path. A directory is an object of no bytes whose key ends with a slash, or what keys
//! below it say. What else there is to say of a file is in the object's metadata.

mod answers;
mod failure;
mod keys;
mod listing;
mod metadata;
mod objects;
mod place;
mod upload;
mod wire;

use std::time::Duration;

use bivouac_types::{Timestamp, mode};

pub use keys::Environment;
pub use wire::trusted_roots;

use crate::error::Cause;
use crate::model::unique_name;
use crate::{Attrs, Entry, Expect, Kept, Meta, Piece, Source, SourceError, SourceResult, Upload, Version};
use objects::{Found, If};
use place::Place;
use wire::Wire;

/// Wait before a request is sent for the second time; it triples each time.
const PAUSE: Duration = Duration::from_millis(100);
/// A store that has answered within this time is there.
const FRESH: Duration = Duration::from_secs(2);

/// Where objects are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Place {
    /// The bucket.
    pub bucket: String,
    /// What keys begin with: empty, or ends with a slash.
    pub prefix: String,
    /// The store, unless the environment says it; else Amazon's.
    pub endpoint: Option<String>,
    /// Its region, unless the environment says it; else `us-east-1`.
    pub region: Option<String>,
}

/// Objects of a bucket whose keys begin with the same prefix.
pub struct S3Source {
    wire: Wire,
    /// Owner of objects that do not say theirs.
    owner: (u32, u32),
}

impl S3Source {
    /// The objects at a place, with what the environment says of credentials. Asks nothing yet.
    ///
    /// # Errors
    /// [`Cause::BadName`] for what cannot be a place; [`Cause::Denied`] when there are no credentials.
    pub fn open(place: &S3Place, here: &Environment) -> SourceResult<S3Source> {
        let endpoint = place.endpoint.clone().or_else(|| here.endpoint());
        let region = place.region.clone().or_else(|| here.region());
        let place = Place::new(&place.bucket, &place.prefix, endpoint.as_deref(), region.as_deref())?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Ok(S3Source { wire: Wire::new(place, here, PAUSE)?, owner: (uid.as_raw(), gid.as_raw()) })
    }

    /// Waits so long before a request is sent for the second time, three times as long before the next, and so on.
    #[must_use]
    pub fn with_pause(mut self, pause: Duration) -> S3Source {
        self.wire.set_pause(pause);
        self
    }

    /// An object as users know it.
    #[must_use]
    pub fn object(&self, path: &[u8]) -> String {
        self.wire.place().object(path)
    }

    /// What is at a path: a directory if keys below it say so, also beside an object of the same name.
    fn find(&self, path: &[u8]) -> SourceResult<Found> {
        match self.find_dir(path)? {
            Some(dir) => Ok(dir),
            None => self.find_file(path),
        }
    }

    /// As [`S3Source::find`]; nothing is no error.
    fn find_any(&self, path: &[u8]) -> SourceResult<Option<Found>> {
        match self.find(path) {
            Err(error) if error.cause() == Cause::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// The conditions of a write, what is there now being looked at: a store may not know them.
    fn expect(&self, path: &[u8], expect: &Expect) -> SourceResult<If> {
        let found = self.find_any(path)?;
        let changed = || SourceError::changed(&self.object(path));
        if found.as_ref().is_some_and(|found| found.meta.is_dir()) {
            return Err(changed());
        }
        match (expect, found) {
            (Expect::Anything, _) => Ok(If::Always),
            (Expect::Absent, None) => Ok(If::Absent),
            (Expect::Version(version), Some(found)) if found.meta.version == *version => Ok(found.is_still()),
            _ => Err(changed()),
        }
    }
}

impl Source for S3Source {
    fn check(&self) -> SourceResult<()> {
        if self.wire.has_heard(FRESH) {
            return Ok(());
        }
        self.list_some(b"", &self.wire.place().dir_key(b"")?, 1).map(drop)
    }

    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        self.list_dir(dir)
    }

    fn stat(&self, path: &[u8]) -> SourceResult<Meta> {
        self.find(path).map(|found| found.meta)
    }

    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize> {
        self.read_range(path, version, offset, into)
    }

    fn plan(&self, path: &[u8], size: u64) -> SourceResult<Upload> {
        self.wire.place().key(path)?;
        Ok(Upload { path: path.to_vec(), size, tag: unique_name()?, ..Upload::default() })
    }

    fn start(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload> {
        self.check()?;
        self.begin_upload(plan, attrs)
    }

    fn piece_size(&self, size: u64) -> Option<u64> {
        Some(upload::piece_size(size))
    }

    fn put(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        self.put_part(upload, offset, data)
    }

    /// The store has compared each with its digest when it came, and says so by taking it.
    fn verify(&self, _: &Upload, _: &[Piece]) -> SourceResult<()> {
        Ok(())
    }

    fn commit(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Expect,
    ) -> SourceResult<Kept> {
        self.commit_upload(upload, pieces, attrs, expect)
    }

    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        self.abort_upload(upload)
    }

    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        !tag.is_empty() && found.tag.rsplit_once(' ').is_some_and(|(_, made_by)| made_by == tag)
    }

    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<Kept> {
        self.check()?;
        let key = self.wire.place().dir_key(path)?;
        if key.is_empty() {
            let lost = vec![format!("{}: a bucket has no attributes", self.object(path))];
            return Ok(Kept { lost, ..Kept::default() });
        }
        if !path.is_empty() && self.find_any(path)?.is_some_and(|found| !found.meta.is_dir()) {
            let text = format!("{}: is no directory", self.object(path));
            return Err(SourceError::new(Cause::WrongKind, text));
        }
        let (mut headers, lost) = metadata::headers_of(mode::DIR, attrs, &self.object(path));
        match self.head(path, &key) {
            Ok(found) => {
                headers.extend(metadata::headers_besides(&found.headers));
                self.copy_over_itself(path, &key, &found, headers)?;
            }
            Err(error) if error.cause() == Cause::NotFound => {
                headers.insert("content-type".to_owned(), "application/x-directory".to_owned());
                self.put_object(path, &key, b"", headers, &If::Always)?;
            }
            Err(error) => return Err(error),
        }
        Ok(Kept { version: Version::default(), lost })
    }

    /// One request makes it.
    fn start_link(&self, plan: Upload, _: &[u8]) -> SourceResult<Upload> {
        Ok(plan)
    }

    fn put_link(&self, link: &Upload, target: &[u8], attrs: &Attrs, expect: &Expect) -> SourceResult<Kept> {
        self.put_whole(mode::LINK, link, target, attrs, expect)
    }

    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<Kept> {
        self.check()?;
        let found = self.find(path)?;
        if found.meta.version != *version {
            return Err(SourceError::changed(&self.object(path)));
        }
        self.give_attrs(path, &found, attrs)
    }

    /// A copy over itself may have another `ETag`; whose upload it was it keeps.
    fn is_given(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
        let made_by = |version: &Version| version.tag.split_once(' ').map(|(_, made_by)| made_by.to_owned());
        let same = |attrs: &Attrs| (attrs.perm, attrs.uid, attrs.gid, attrs.mtime);
        found.version.size == was.size
            && made_by(&found.version) == made_by(was)
            && same(&found.attrs) == same(attrs)
    }

    fn remove(&self, path: &[u8], version: Option<&Version>) -> SourceResult<()> {
        let Some(found) = self.find_any(path)? else { return Ok(()) };
        if found.meta.is_dir() {
            return self.remove_dir(path);
        }
        if version.is_some_and(|version| *version != found.meta.version) {
            return Err(SourceError::changed(&self.object(path)));
        }
        let condition = if version.is_some() { found.is_still() } else { If::Always };
        self.delete(path, &self.wire.place().key(path)?, &condition)
    }
}

/// The times of objects are told apart from those of their content.
fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}
