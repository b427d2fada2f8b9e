//! A source on an S3 object store.
//!
//! A file is the object under its path. A directory is an object of no bytes whose key ends with a slash, or what keys
//! below it say. What else there is to say of a file is in the object's metadata.

mod bucket_address;
mod credentials;
mod error_response;
mod http_client;
mod listing;
mod metadata;
mod objects;
mod upload;
mod xml_responses;

use std::time::Duration;

use bivouac_types::{Timestamp, mode};

pub use credentials::Environment;
pub use http_client::trusted_roots;

use crate::error::Cause;
use crate::model::unique_name;
use crate::{
    Attrs, Entry, Meta, Piece, Precondition, PutOutcome, Source, SourceError, SourceResult, Upload, Version,
};
use bucket_address::BucketAddress;
use http_client::HttpClient;
use objects::{ObjectHead, WriteCondition};

/// Delay before the first retry; it triples with each further one.
const PAUSE: Duration = Duration::from_millis(100);
/// Age of a response up to which the store counts as reachable.
const FRESH: Duration = Duration::from_secs(2);

/// Location of objects: bucket, prefix and store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Location {
    /// Bucket.
    pub bucket: String,
    /// Key prefix: empty, or ends with a slash.
    pub prefix: String,
    /// Endpoint; by default that of the environment, else Amazon's.
    pub endpoint: Option<String>,
    /// Region; by default that of the environment, else `us-east-1`.
    pub region: Option<String>,
}

/// Objects of a bucket with a common key prefix.
pub struct S3Source {
    http: HttpClient,
    /// Owner of objects without one in their metadata.
    owner: (u32, u32),
}

impl S3Source {
    /// Creates a source with the credentials of the environment. Sends no request.
    ///
    /// # Errors
    /// [`Cause::BadName`] for what cannot be a place; [`Cause::Denied`] when there are no credentials.
    pub fn open(place: &S3Location, here: &Environment) -> SourceResult<S3Source> {
        let endpoint = place.endpoint.clone().or_else(|| here.endpoint());
        let region = place.region.clone().or_else(|| here.region());
        let place = BucketAddress::new(&place.bucket, &place.prefix, endpoint.as_deref(), region.as_deref())?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Ok(S3Source { http: HttpClient::new(place, here, PAUSE)?, owner: (uid.as_raw(), gid.as_raw()) })
    }

    /// Sets the delay before the first retry; it triples with each further one.
    #[must_use]
    pub fn with_pause(mut self, pause: Duration) -> S3Source {
        self.http.set_pause(pause);
        self
    }

    /// Returns an object's name as it is shown to users.
    #[must_use]
    pub fn object(&self, path: &[u8]) -> String {
        self.http.address().object(path)
    }

    /// Returns what is at a path. A directory takes precedence over an object of the same name.
    fn find(&self, path: &[u8]) -> SourceResult<ObjectHead> {
        match self.find_dir(path)? {
            Some(dir) => Ok(dir),
            None => self.find_file(path),
        }
    }

    /// Like [`S3Source::find`]; `None` if it does not exist.
    fn find_any(&self, path: &[u8]) -> SourceResult<Option<ObjectHead>> {
        match self.find(path) {
            Err(error) if error.cause() == Cause::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Checks the precondition and returns the condition to send with the write. The check is needed because stores may
    /// ignore conditions.
    fn expect(&self, path: &[u8], expect: &Precondition) -> SourceResult<WriteCondition> {
        let found = self.find_any(path)?;
        let changed = || SourceError::changed(&self.object(path));
        // Also where anything may be replaced: an object of the same name would be hidden by the directory.
        if found.as_ref().is_some_and(|found| found.meta.is_dir()) {
            return Err(changed());
        }
        match (expect, found) {
            (Precondition::Anything, _) => Ok(WriteCondition::Always),
            (Precondition::Absent, None) => Ok(WriteCondition::Absent),
            (Precondition::Version(version), Some(found)) if found.meta.version == *version => {
                Ok(found.unchanged_condition())
            }
            _ => Err(changed()),
        }
    }
}

impl Source for S3Source {
    fn check(&self) -> SourceResult<()> {
        if self.http.has_recent_response(FRESH) {
            return Ok(());
        }
        self.list_some(b"", &self.http.address().dir_key(b"")?, 1).map(drop)
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
        // A path that cannot be a key is refused before any of its content is sent.
        self.http.address().key(path)?;
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

    /// Does nothing: the store has verified each part against its MD5 digest on arrival.
    fn verify(&self, _: &Upload, _: &[Piece]) -> SourceResult<()> {
        Ok(())
    }

    fn commit(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.commit_upload(upload, pieces, attrs, expect)
    }

    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        self.abort_upload(upload)
    }

    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        !tag.is_empty() && found.tag.rsplit_once(' ').is_some_and(|(_, made_by)| made_by == tag)
    }

    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.check()?;
        let key = self.http.address().dir_key(path)?;
        if key.is_empty() {
            let lost = vec![format!("{}: a bucket has no attributes", self.object(path))];
            return Ok(PutOutcome { lost, ..PutOutcome::default() });
        }
        if !path.is_empty() && self.find_any(path)?.is_some_and(|found| !found.meta.is_dir()) {
            let text = format!("{}: is no directory", self.object(path));
            return Err(SourceError::new(Cause::WrongKind, text));
        }
        let (mut headers, lost) = metadata::headers_of(mode::DIR, attrs, &self.object(path));
        match self.head(path, &key) {
            Ok(found) => {
                headers.extend(metadata::other_headers(&found.headers));
                self.copy_over_itself(path, &key, &found, headers)?;
            }
            Err(error) if error.cause() == Cause::NotFound => {
                headers.insert("content-type".to_owned(), "application/x-directory".to_owned());
                self.put_object(path, &key, b"", headers, &WriteCondition::Always)?;
            }
            Err(error) => return Err(error),
        }
        Ok(PutOutcome { version: Version::default(), lost })
    }

    /// Needs no request: the link is created by one `PutObject`.
    fn start_link(&self, plan: Upload, _: &[u8]) -> SourceResult<Upload> {
        Ok(plan)
    }

    fn put_link(
        &self,
        link: &Upload,
        target: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.put_single(mode::LINK, link, target, attrs, expect)
    }

    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.check()?;
        let found = self.find(path)?;
        if found.meta.version != *version {
            return Err(SourceError::changed(&self.object(path)));
        }
        self.replace_attrs(path, &found, attrs)
    }

    /// Returns true if the attributes were applied. A copy onto itself may change the `ETag` but keeps the upload tag,
    /// so the tags are compared.
    fn has_attrs_applied(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
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
        // The comparison above is not the deletion: an object that was written in between is not removed.
        let condition = if version.is_some() { found.unchanged_condition() } else { WriteCondition::Always };
        self.delete(path, &self.http.address().key(path)?, &condition)
    }
}

/// Returns a time of whole seconds, the resolution of HTTP dates.
fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}
